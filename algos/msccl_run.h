/* msccl_run.h - runs the steps of an MSCCL file on symbols: what every step handles, in which order steps can run, and
 * what is wrong with them as an allreduce, named by file and line.
 *
 * Sends are taken to be buffered without bound, as nothing in the format says how much is. Refused (STATUS_FORMAT):
 *  - messages without a counterpart or of unequal cnt: the k-th send of a tb belongs to the k-th receive of the tb of
 *    its peer that receives from this gpu on the same channel;
 *  - steps that wait for each other in a circle;
 *  - races: two steps of a gpu touch a chunk, one of them writes, and neither the order within a tb nor a dependency
 *    (or a chain of them) says which comes first. MSCCL itself does not check that;
 *  - reading what was never written; adding parts of different chunks of the vector; adding a contribution twice;
 *  - ending without the whole sum in every chunk of o (i, when in place) of every gpu.
 */
#ifndef CHORALE_ALGOS_MSCCL_RUN_H
#define CHORALE_ALGOS_MSCCL_RUN_H

#include "algos/msccl.h"

#define MSCCL_NO_STEP SIZE_MAX

/* Step k of msccl.step handles chunks touch[k] .. touch[k+1]-1 of the arrays below, `count` of them. */
struct msccl_run {
    size_t *order;   /* [steps] steps in an order in which they can run                            */
    size_t *touch;   /* [steps + 1]                                                                */
    size_t *to;      /* [steps] of a step that sends: the step that receives it                    */
    size_t *from;    /* [steps] of a step that receives: the step that sends it                    */
    uint32_t *block; /* [steps] the block a step is in                                             */
    int32_t *gpu;    /* [blocks] the gpu a block is in                                             */
    uint32_t *leaf;  /* [touch[steps]] which chunk of the vector the data is a part of             */
    bool *complete;  /* [touch[steps]] this step's reduction adds the last contribution            */
};

/* Release with msccl_run_release(); on failure there is nothing to release. STATUS_REFUSED when the file is too large to
 * be run in memory. */
enum status msccl_run(const struct msccl *msccl, struct msccl_run *run) MUST_CHECK;
void msccl_run_release(struct msccl_run *run);

#endif
