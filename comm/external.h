/* external.h - collectives of other libraries: modules that are loaded on demand, and the jobs that some of them bring.
 *
 * A module is a shared library beside the program, chorale-external-STEM.so, which exports one struct external_module
 * under the name chorale_external. It is linked with the library that it stands for and with nothing of ours, so that
 * the program itself needs none of these libraries.
 *
 * openmpi and mpich bring a job: started under mpiexec, every worker loads the module of the MPI that started it, and
 * the job's rank, size and all-gather come from there. nccl is given a job. Whatever a library decides, it decides
 * unseen: no schedule, no count of bytes, no proof.
 *
 * Threads: one at a time.
 */
#ifndef CHORALE_COMM_EXTERNAL_H
#define CHORALE_COMM_EXTERNAL_H

#include <stddef.h>

#include "base/dtype.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/job.h"

/* ---- what a module exports ---- */

#define EXTERNAL_VERSION 1u
#define EXTERNAL_SYMBOL "chorale_external"
#define EXTERNAL_MESSAGE_BYTES 256

struct external_place {
    int rank, size, local_rank;
};

/* Every worker gives `bytes`, gets size * bytes in rank order. 0: done. */
typedef int external_gather_fn(void *context, const void *mine, size_t bytes, void *all);

/* Functions return 0, or 1 with one line in `message` (EXTERNAL_MESSAGE_BYTES); all but abort and describe are
 * collective. */
struct external_module {
    unsigned version;    /* EXTERNAL_VERSION                                                                      */
    unsigned brings_job; /* open() fills `place`; else `place` and `gather` are given                             */
    int (*open)(struct external_place *place, external_gather_fn *gather, void *context, char *message);
    int (*gather)(const void *mine, size_t bytes, void *all, char *message); /* NULL where brings_job is 0; bytes 0: a
                                                                                barrier */
    /* Memory of the library's own for vectors (NULL: any memory of the host will do), and what moves data there. */
    int (*allocate)(size_t bytes, void **memory, char *message);
    void (*release)(void *memory);
    int (*upload)(void *to, const void *from, size_t bytes, char *message);
    int (*download)(void *to, const void *from, size_t bytes, char *message);
    /* Done when it returns. input == output: in place. */
    int (*allreduce)(const void *input, void *output, size_t count, enum dtype dtype, enum reduce_op op, char *message);
    void (*describe)(char *text, size_t size); /* library and version                              */
    void (*abort)(int exit_code);              /* the whole job, if it is the library's; else NULL */
    void (*close)(void);
};

/* ---- for the program ---- */

struct external_library;

/* The stem of the module of the MPI under which this process was started, by its environment ("openmpi", "mpich");
 * NULL: under none. */
const char *external_manager(void);

/* Load the module and open it: collective over what mpiexec started, or over `job` for modules that bring none.
 * STATUS_UNAVAILABLE: no such module here, what it needs is missing, or it is another version's; STATUS_IO: its library
 * says no. Close with external_close(). */
enum status external_open(const char *stem, struct job *job, struct external_library **library) MUST_CHECK;
/* The job that the library brings; it must not outlive the library. STATUS_INTERNAL when it brings none. */
enum status external_job(struct external_library *library, const struct job_options *options,
                         struct job **job) MUST_CHECK;
/* STATUS_REFUSED for types and operators that the library lacks, else STATUS_IO with its words. */
enum status external_allreduce(struct external_library *library, const void *input, void *output, size_t count,
                               enum dtype dtype, enum reduce_op op) MUST_CHECK;
/* NULL when vectors may lie anywhere in the host's memory. */
const struct external_module *external_memory(const struct external_library *library);
void external_describe(const struct external_library *library, struct text *text);
/* End every worker of the job that the library brings; does not return then. */
void external_abort(struct external_library *library, int exit_code);
void external_close(struct external_library *library); /* accepts NULL; collective */

#endif
