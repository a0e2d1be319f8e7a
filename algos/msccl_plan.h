/* msccl_plan.h - makes a schedule of the steps of an MSCCL file.
 *
 * Lanes. A channel of the file is a lane of the same number. MSCCL matches messages in order for each (source,
 * destination, channel), we do for each (peer, lane); since only one tb of a gpu sends to a peer on a channel, and only
 * one receives from it, both orders are the order of steps within these tbs. All tbs of a channel share its lane: in a
 * lane only conflicting ops are ordered, as they are emitted, and conflicting steps of the file have an order
 * (msccl_run() refuses races), so that nothing is ordered that the file leaves open. The order of steps within a tb and
 * its dependencies are kept where data depend on them, and nowhere else. Between lanes a WAIT says so.
 *
 * Places. Chunk c of the result buffer is leaf c of VECTOR as long as it holds a part of leaf c. Whatever else a chunk
 * of a buffer holds is kept in scratch, in one plane for each chunk that a leaf is ever kept in, since leaves may differ
 * in size by an element and a scratch range must be as large as its leaf. The sum that rrs sends and does not store is
 * kept in scratch, too. When not in place, a chunk of i is VECTOR's (which reads the input until it is written) unless
 * it is needed after the same chunk of o was written, or is written itself: then it is copied to scratch first.
 *
 * Rounds. A message has one round at both ends, as late as the later end needs. What depends on data received in a round
 * is in a later one. A file in which that goes round in a circle is refused: it relies on the network to buffer
 * messages, and would hang when they are large.
 *
 * FINAL is where a step's reduction adds the last contribution, which msccl_run() has found out.
 */
#ifndef CHORALE_ALGOS_MSCCL_PLAN_H
#define CHORALE_ALGOS_MSCCL_PLAN_H

#include "algos/msccl_run.h"
#include "algos/schedule.h"

struct msccl_plan {
    uint32_t scratch, rounds;
    struct op *op; /* by gpu, then round, in emission order             */
    size_t ops;
    size_t *first; /* [workers * rounds + 1]: ops of (gpu, round) begin */
};

/* Release with msccl_plan_release(); on failure there is nothing to release. STATUS_FORMAT: see above; STATUS_REFUSED:
 * too large. */
enum status msccl_plan(const struct msccl *msccl, const struct msccl_run *run, struct msccl_plan *plan) MUST_CHECK;
void msccl_plan_release(struct msccl_plan *plan);

#endif
