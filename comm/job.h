/* job.h - this process's membership in a job: who am I, who else, is everyone alive.
 *
 * A job is N workers, started by the local launcher (launch.h) or by somebody else: mpirun, mpiexec, srun, torchrun, a
 * script (bootstrap/origin.h says how each is known, and in which order). Each worker holds one control connection to the
 * control server, which is the launcher itself or, under others, a thread in rank 0's process. A thread of the job
 * watches it, so that the death of any worker is noticed while this one computes (libfabric alone notices no death). The
 * control channel also carries what the transports need to start: small all-gathers and barriers. A job token, which is
 * proved and never sent (bootstrap/proof.h), turns strangers away.
 *
 * Threads: job_join from the main thread (from another, the kernel would still kill the worker together with a
 * launcher that is killed, before it has cleaned up); job_allgather, job_barrier and job_leave from one thread at a
 * time; job_check, job_abort and the queries from any thread.
 */
#ifndef CHORALE_COMM_JOB_H
#define CHORALE_COMM_JOB_H

#include <stdbool.h>
#include <stddef.h>

#include "algos/layout.h"
#include "base/status.h"

struct job;

/* Called once, from the job's thread, when the job has ended without this worker's doing: another worker died, the
 * server is gone, or the server asks us to stop. `speak` is true on the one worker that should tell the user (under our
 * launcher only when it is gone: otherwise the launcher tells; under others rank 0, and when that is gone rank 1 and the
 * first worker of each other host). The callback ends the process (_exit) after it has
 * removed what would stay behind (job_remove_leftovers); if it returns, job_check() fails from then on, and the
 * launcher, if there is one, ends the process by SIGTERM one second and SIGKILL one and a half seconds after the
 * failure. It may be called as soon as the job is complete, just before job_join() returns; it must not call
 * job_destroy(). */
typedef void job_failed_fn(void *context, enum status status, const char *message, bool speak);

/* Something that the user should read although the job goes on: one line, without "chorale: ". From any thread. */
typedef void job_note_fn(void *context, const char *line);

struct job_options {
    double deadline;       /* seconds that any wait of the control channel may take; <= 0: the launcher's, or 30   */
    job_failed_fn *failed; /* NULL: job_check() tells, and the kernel kills this worker together with its launcher */
    void *context;
    job_note_fn *note;     /* strangers that rank 0's server has turned away; may be NULL; same context            */
    const char *interface; /* of rank 0's server, when another launcher has started workers on several hosts; NULL:
                              bootstrap/join.h says which                                                          */
    bool *told; /* set when job_join() fails because the server has ended the job: it tells the user; may be NULL */
};

/* True when the environment says that a launcher, ours or another, has started this process as a worker; also when what it
 * says is torn: then job_join() says what is wrong. */
bool job_is_worker(void);
/* True when it was a launcher of ours. */
bool job_is_launched_here(void);
/* For a program that is about to work alone unasked: STATUS_USAGE when it stands in a launcher's allocation for several
 * tasks (a batch script of Slurm) and is none of them. */
enum status job_check_alone(void) MUST_CHECK;

/* Join the job that the environment names, and wait until all workers have; without one, a job of one worker (rank 0 of
 * 1, no control channel, no thread). `options` may be NULL. When it fails the callback has not been called.
 * STATUS_USAGE when the environment is torn, STATUS_TIMEOUT, STATUS_PEER_LOST, STATUS_IO. Free with job_destroy(). */
enum status job_join(const struct job_options *options, struct job **job) MUST_CHECK;

/* A job whose workers somebody else has started and watches (an MPI's mpiexec): what joining would have found out.
 * allgather is collective and gives size * bytes in rank order; 0 bytes are a barrier. */
struct job_manager {
    int rank, size, local_rank; /* local_rank -1: not known */
    enum status (*allgather)(void *context, const void *mine, size_t bytes, void *all);
    void *context;
};
/* The same kind of job from there; collective. Nobody here watches the workers: job_check() always says STATUS_OK, job_abort() tells
 * nobody, and `failed` is never called; the manager ends what is left of a job. Free with job_destroy(). */
enum status job_adopt(const struct job_manager *manager, const struct job_options *options,
                      struct job **job) MUST_CHECK;

int job_rank(const struct job *job);
int job_size(const struct job *job);
/* This worker's number among those of its machine, and how many they are: they share its cores, cards and memory. The launcher's
 * numbers, unless it tells none or two workers of a machine the same one: then they are counted, in rank order. */
int job_local_rank(const struct job *job);
int job_local_size(const struct job *job);
/* The same among those of them that may run on the very same CPUs (all, unless somebody has bound them), for sharing these. */
int job_share_rank(const struct job *job);
int job_share_size(const struct job *job);
/* More workers than cores on this machine: what one spins, another lacks. */
bool job_is_crowded(const struct job *job);
/* The nodes of the workers: those of a node can share memory (host.h). Belongs to the job. */
const struct layout *job_layout(const struct job *job);
const char *job_host(const struct job *job); /* host name, for messages and results */
double job_deadline(const struct job *job);  /* seconds */

/* Every worker gives `bytes` (the same number on all, at most 64 KiB), every worker gets job_size() * bytes in rank
 * order. STATUS_MISMATCH when the numbers differ or a worker has left, STATUS_TIMEOUT when some have not come within
 * the deadline of the first (the launcher then ends the job, naming them), STATUS_PEER_LOST. */
enum status job_allgather(struct job *job, const void *mine, size_t bytes, void *all) MUST_CHECK;
enum status job_barrier(struct job *job) MUST_CHECK;

/* STATUS_OK while everyone lives; else the reason (STATUS_PEER_LOST, ...). Cheap: one atomic load. Wait loops call it.
 */
enum status job_check(struct job *job) MUST_CHECK;

/* When a worker has waited in vain, all are asked what they wait for. True once: whoever waits in this worker is to say it.
 * Cheap: one atomic load. */
bool job_asked(struct job *job);
/* What this worker waits for, at most 16 KiB: of all workers it goes into a file that the job's last line names. Also
 * before a job_abort() with STATUS_TIMEOUT. */
void job_answer(struct job *job, const char *text);

/* Tell everyone that the job has failed here, with the one line that the user shall read ("rank R on HOST: what: why:
 * what to do"; the launcher prints it, once). With STATUS_PEER_LOST the launcher looks a moment for the death that is
 * behind it, and names that instead; with STATUS_TIMEOUT it asks all workers, and adds who does not answer. Returns when it
 * is sent; job_check() fails from then on, and the caller ends the process within a second. True: the launcher, or rank 0
 * under another's, will print it (which rank 0 confirms within a second); false (nobody will): the caller must print
 * status_message(), in which rank 0 then finds what is known by all, and who waited in vain that rank 0 does not answer. */
bool job_abort(struct job *job, enum status status, const char *message);

/* Say goodbye: from now on this worker's end with exit code 0 is no failure. The job is still watched until
 * job_destroy(). Waits until the launcher has taken note. Collective only
 * in the sense that everyone must leave some time; returns at once for a job of one. */
enum status job_leave(struct job *job) MUST_CHECK;
void job_destroy(struct job *job); /* accepts NULL */

/* Remove the shared-memory files that libfabric's shm provider made for process `pid`: /dev/shm/PID:UID:*. For an exit
 * path of any thread; not for a signal handler (it allocates). */
void job_remove_leftovers(long pid);
/* The same for what an earlier process of that number has left, which the provider would find in its way: in a container
 * the numbers come again at each start. Files that some process still has open stay. */
void job_remove_stale(long pid);

#endif
