/* launch.h - the local launcher: N workers on this host, watched, cleaned up after.
 *
 * The launcher starts the workers in process groups of their own, serves their control channel, and ends the job when
 * one of them dies, exits with a code other than 0, or ends early (exit 0 without job_leave while others are in the
 * job). Whatever happens, within two seconds no process of the job is left, and nothing of it in /dev/shm: the workers
 * are told at once, their process groups get SIGTERM after one second and SIGKILL after one and a half. What a worker
 * has started and left running in its process group goes, too. When the launcher itself is killed, the workers see it
 * and end.
 */
#ifndef CHORALE_COMM_LAUNCH_H
#define CHORALE_COMM_LAUNCH_H

#include <stdbool.h>

#include "base/status.h"
#include "comm/job.h"

struct launch_request {
    int workers;       /* 1 .. 1024 */
    char *const *argv; /* the command, NULL-terminated; argv[0] is searched in PATH unless it holds a slash */
    bool label;        /* put "[rank] " before each line that a worker writes to stdout or stderr           */
    double deadline;   /* seconds until all started workers must have joined once one has; <= 0 means 30    */
    bool must_join;    /* the workers are chorale programs: exit 0 without joining is a failure too          */
    job_note_fn *note; /* strangers that were turned away; may be NULL                                       */
    void *context;     /* of note                                                                            */
};

/* How the job ended. */
struct launch_result {
    int exit_code;      /* what the launching program shall return: 0, the first failing worker's own code (1 when
                           a signal ended it), 130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP            */
    char message[1024]; /* "" when all went well, else the one line without "chorale: ": "rank 1 on HOST: killed by
                           signal 9 (SIGKILL): ..." or what the failing worker said with job_abort              */
};

/* Runs the whole job; returns when every process of it is gone. SIGINT, SIGTERM and SIGHUP (unless ignored, as by
 * nohup) are taken by the launcher while it runs (everything is put back) and end the job; a second one ends it at
 * once. Rank 0 reads the launcher's stdin unless that is a terminal; the others, /dev/null. Workers get RANK,
 * WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, CHORALE_CONTROL, CHORALE_TOKEN, CHORALE_DEADLINE
 * and IPATH_NO_BACKTRACE=1 (libfabric's psm library would take over signal handlers). Bad arguments and a command that
 * cannot be started fail with a status: STATUS_USAGE, STATUS_UNAVAILABLE when a limit on processes or open files is
 * met, STATUS_IO, STATUS_NO_MEMORY. One at a time in a process, since signals are the process's. */
enum status launch_local(const struct launch_request *request, struct launch_result *result) MUST_CHECK;

#endif
