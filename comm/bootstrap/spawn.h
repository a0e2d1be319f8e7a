/* spawn.h - starting one worker process, and the environment that it gets. */
#ifndef CHORALE_COMM_BOOTSTRAP_SPAWN_H
#define CHORALE_COMM_BOOTSTRAP_SPAWN_H

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "base/status.h"

struct spawn_place {
    int rank, size;
    int control_port, master_port;
    const char *token;
    double deadline;
};

/* This process's environment with the job's variables in place of any older ones. Release with environment_release().
 */
enum status environment_build(const struct spawn_place *place, char ***environment) MUST_CHECK;
void environment_release(char **environment);

struct spawn_request {
    char *const *argv;
    char *const *environment;
    int in, out, err;           /* become descriptors 0, 1, 2; may be these already */
    const sigset_t *mask;       /* the worker's signal mask */
    const struct rlimit *files; /* the worker's limit on open files */
};

/* Start argv[0] (searched in PATH) as the leader of a process group of its own, with default signal actions; the kernel
 * kills it when the calling thread ends. Returns when the program runs. STATUS_USAGE when there is no such command,
 * STATUS_UNAVAILABLE when a limit is met, STATUS_IO. */
enum status spawn_worker(const struct spawn_request *request, pid_t *pid) MUST_CHECK;

#endif
