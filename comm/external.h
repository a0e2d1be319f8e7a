/* external.h - collectives of other libraries: modules that are loaded on demand.
 *
 * A module is a shared library, chorale-external-STEM.so (base/module.h), which exports one struct external_module
 * under the name chorale_external. It is linked with the library that it stands for and with nothing of ours, so that
 * the program itself needs none of these libraries.
 *
 * An MPI brings a job: started under mpiexec, every worker loads the module of the MPI that started it (openmpi, mpich),
 * and the job's rank, size and all-gather come from there. NCCL is given a job, and reduces vectors in device memory.
 * Whatever a library decides, it decides unseen: no schedule, no count of bytes, no proof.
 *
 * Threads: one at a time.
 */
#ifndef CHORALE_COMM_EXTERNAL_H
#define CHORALE_COMM_EXTERNAL_H

#include <stddef.h>

#include "base/dtype.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/device.h"
#include "comm/job.h"

/* ---- what a module exports ---- */

#define EXTERNAL_VERSION 3u
#define EXTERNAL_SYMBOL "chorale_external"
#define EXTERNAL_MESSAGE_BYTES 256

struct external_place {
    int rank, size, local_rank;
};

/* What a library is given that does not bring its own job. */
struct external_given {
    struct external_place place;
    int device; /* number of the card */
    /* Collective, as `gather` below; `context` is its first argument. */
    int (*gather)(void *context, const void *mine, size_t bytes, void *all, char *message);
    void *context;
};

/* Functions return 0, or 1 with one line in `message` (EXTERNAL_MESSAGE_BYTES); all but abort, check and
 * describe are collective. A module has either open, gather and abort (it brings a job), or join. */
struct external_module {
    unsigned version;                                         /* EXTERNAL_VERSION                        */
    int (*open)(struct external_place *place, char *message); /* joins what mpiexec started, fills `place` */
    /* Every worker gives `bytes`, gets size * bytes in rank order; 0 bytes: a barrier. */
    int (*gather)(const void *mine, size_t bytes, void *all, char *message);
    int (*join)(const struct external_given *given, char *message); /* `given` stays until close */
    /* queue NULL: vectors in host memory, done when it returns. Else vectors in device memory: put into that queue
     * (device_ops.native), after what stands in it. input == output: in place. */
    int (*allreduce)(const void *input, void *output, size_t count, enum dtype dtype, enum reduce_op op, void *queue,
                     char *message);
    int (*check)(char *message); /* whether what stands in queues can still come to its end; NULL: it always can */
    void (*describe)(char *text, size_t size); /* library and version                              */
    void (*abort)(int exit_code);              /* the whole job                                    */
    void (*close)(void);
};

/* ---- for the program ---- */

struct external_library;

/* The stem of the module of the MPI under which this process was started, by its environment ("openmpi", "mpich");
 * NULL: under none. */
const char *external_manager(void);

/* Load the module and open it: collective over what mpiexec started. STATUS_UNAVAILABLE: no such module here, it is
 * another version's, or its library can't start. Close with external_close(). */
enum status external_open(const char *stem, struct external_library **library) MUST_CHECK;
/* The job that the library brings; it must not outlive the library. Free with job_destroy(). */
enum status external_job(struct external_library *library, const struct job_options *options,
                         struct job **job) MUST_CHECK;
/* Load a module whose library is given a job, to reduce on a device: collective. Both must outlive it. STATUS_UNAVAILABLE
 * as for external_open(), STATUS_REFUSED when its library can't serve these workers. Close with external_close(). */
enum status external_join(const char *stem, struct job *job, struct device *device,
                          struct external_library **library) MUST_CHECK;
/* Of a library that brings a job: vectors in host memory, done when it returns. Of one that was given a job: vectors in its
 * device's memory, put into that device's compute queue. input == output: in place. STATUS_IO with the library's words,
 * also for types that it lacks. */
enum status external_allreduce(struct external_library *library, const void *input, void *output, size_t count,
                               enum dtype dtype, enum reduce_op op) MUST_CHECK;
/* Until `event`, recorded after calls that were put into the device's queue, has happened. A worker that dies leaves a
 * library waiting for ever: STATUS_PEER_LOST when the job has ended, STATUS_IO with the library's words, STATUS_TIMEOUT after
 * the job's deadline. */
enum status external_wait(struct external_library *library, struct device_event *event) MUST_CHECK;
void external_describe(const struct external_library *library, struct text *text);
/* End every worker of the job that the library brings; does not return then. */
void external_abort(struct external_library *library, int exit_code);
void external_close(struct external_library *library); /* accepts NULL; collective */

#endif
