/* worker.h - the start and the end of a command that runs on several workers (train, bench).
 *
 *   parse the options; check all that can be checked without a job, so that wrong usage is said once
 *   if (worker_launches(&options))                      -n N outside a job: start N copies of this command
 *       return worker_launch(...);
 *   status = worker_open(&options, ..., &worker);       join the job, open the transport and the comm
 *   if (status == STATUS_OK) status = the work
 *   return worker_close(&worker, status);               says what failed, once in the whole job
 */
#ifndef CHORALE_EXPERIMENTS_WORKER_H
#define CHORALE_EXPERIMENTS_WORKER_H

#include <stdbool.h>

#include "algos/layout.h"
#include "base/option.h"
#include "base/status.h"
#include "comm/comm.h"
#include "comm/external.h"
#include "comm/inject.h"
#include "comm/job.h"
#include "experiments/accelerator.h"
#include "experiments/placement.h"

enum { WORKERS_MOST = 1024 }; /* the launcher's limit */

/* Rows for the option tables of such commands. A command that takes several counts has its own row for -n. */
#define WORKER_OPTION_COUNT                                                                                            \
    {                                                                                                                  \
        .key = "workers", .letter = 'n', .type = OPTION_INT, .min = 1, .max = WORKERS_MOST,                            \
        .help =                                                                                                        \
            "workers to start on this host; under mpirun, srun, torchrun: their number, or leave it out (default 1)"   \
    }
#define WORKER_OPTIONS                                                                                                 \
    {.key = "transport",                                                                                               \
     .type = OPTION_CHOICE,                                                                                            \
     .default_text = "auto",                                                                                           \
     .choices = "auto|shm|tcp|net|verbs|efa|loopback",                                                                 \
     .help = "what carries the bytes; auto: shared memory within a host, tcp between hosts"},                          \
        {.key = "provider", .type = OPTION_STRING, .help = "libfabric provider, overrides --transport"},               \
        {.key = "interface",                                                                                           \
         .type = OPTION_STRING,                                                                                        \
         .help =                                                                                                       \
             "network interface for tcp and rank 0's control server (default lo when all workers are on this host)"},  \
        {.key = "segment",                                                                                             \
         .type = OPTION_SIZE,                                                                                          \
         .unit = "B",                                                                                                  \
         .min = 64,                                                                                                    \
         .max = 1 << 30,                                                                                               \
         .help = "piece of a message on the wire (default 256K, tcp and net on one host 1M, else 128K)"},              \
        {.key = "window",                                                                                              \
         .type = OPTION_INT,                                                                                           \
         .min = 1,                                                                                                     \
         .max = 64,                                                                                                    \
         .help = "receives posted ahead on each peer and lane (default 4, tcp and net on one host 8, else 32)"},       \
        {.key = "nodes", .type = OPTION_STRING, .help = "node layout to pretend: 2x4 or 4+2 (default: as it is)"},     \
        {.key = "inject",                                                                                              \
         .type = OPTION_STRING,                                                                                        \
         .help = "impairments: delay=50us,jitter=20us,bandwidth=1GB/s (each also with @FROM-TO), "                     \
                 "straggler=RANK:FACTOR, die=RANK@STEP[:kill|stop|exit0]"},                                            \
        {.key = "bind",                                                                                                \
         .type = OPTION_CHOICE,                                                                                        \
         .default_text = "auto",                                                                                       \
         .choices = "auto|none|core|socket",                                                                           \
         .help = "CPUs of a worker: core, cores of its own; socket; none, as it is; auto: core where the workers' "    \
                 "threads fill more than half of the machine, and nobody has bound them yet"},                         \
        {.key = "deadline",                                                                                            \
         .type = OPTION_SECONDS,                                                                                       \
         .default_text = "30",                                                                                         \
         .unit = "s",                                                                                                  \
         .min = 0.1,                                                                                                   \
         .max = 86400,                                                                                                 \
         .help = "a wait without any progress fails after this"},                                                      \
    {                                                                                                                  \
        .key = "seed", .type = OPTION_INT, .default_text = "1", .min = 0, .max = 9007199254740991.0,                   \
        .help = "of everything random"                                                                                 \
    }

/* This process's part in the job. */
struct worker {
    struct external_library *library; /* the MPI that brings the job, for its own collectives; else NULL */
    struct job *job;
    struct device *device; /* NULL: it works in host memory */
    struct comm *comm;
    struct layout layout; /* the nodes of the workers, real or pretended */
    struct placement placement;
    struct inject *inject; /* --inject; NULL: none */
    bool told;             /* joining failed because the launcher has ended the job, and says why */
};

/* The count that -n gives, 0 when it is not given. */
int worker_count(const struct option_values *options);

/* True when a launcher has started this process as a worker: ours, or another (job.h). */
bool worker_is_one(void);
/* True when this process shall start the workers: -n above 1, and nobody has started it as a worker. */
bool worker_launches(const struct option_values *options);
/* Start `workers` copies of this command (argv as the command got it) and wait for all of them. Says what went wrong;
 * returns the program's exit code. */
int worker_launch(int workers, double deadline, int argc, char **argv);
/* Seconds: --deadline=, where it is not given CHORALE_DEADLINE (job_join() says when that is no number), else the option's default. */
double worker_deadline(const struct option_values *options);

enum {
    WORKER_PROGRESS = 1, /* a progress thread of the comm, where computing leaves it a core: on a device or for
                            an emulated one, or with fewer threads than cores                                   */
    WORKER_COMPUTES = 4, /* the command has --threads                                                          */
    WORKER_EXTERNAL = 2  /* an MPI's own collectives are wanted: where its mpiexec has started us, the MPI brings
                            the job (external.h), and nobody but mpiexec watches the workers                  */
};

/* Join the job that started this process (without one: a job of one worker), bind it (placement.h), open the device, transport and comm.
 * `workers`: as demanded by -n, 0 = whatever the job has; a job of another size is refused, and so is working alone
 * unasked in an allocation for several. `wants`: WORKER_.... accelerator: NULL for host memory. On failure call
 * worker_close(), too. */
enum status worker_open(const struct option_values *options, int workers, unsigned wants,
                        const struct accelerator *accelerator, struct worker *worker) MUST_CHECK;

/* The end of the work, well or badly. Returns the program's exit code. A failure is said once in the whole job, as
 * "chorale: rank R on HOST: ...": by the launcher, or here when there is none. */
int worker_close(struct worker *worker, enum status status);

#endif
