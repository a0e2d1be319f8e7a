/* swing.c - reduce-scatter and allgather among peers that swing from side to side: least bytes in 2 ceil(lg p) rounds for
 * any even p, most of them to neighbours.
 *
 * In round s of the first half worker r meets the one at rho(s) = 1, -1, 3, -5, ... (negabinary.h) and passes on the
 * blocks of all whom that one still reaches later; after ceil(lg p) rounds block r is complete at worker r, and the
 * second half goes the same way back. Where p is no power of two, a block would reach some workers twice: looking back
 * from its owner, whoever has been found in a later round is left out of the earlier one. So each block has one tree,
 * and the trees of all even owners are one turned, those of odd owners its mirror image (blocks.h).
 *
 *   p = 6, the tree of block 0       round 0: 1 -> 0   2 -> 3      (4 and 5 go in round 1: left out here)
 *                                    round 1: 5 -> 0   4 -> 3
 *                                    round 2: 3 -> 0               complete
 *
 * An odd worker is a helper of the others: it gives block b to its owner b directly, in rounds that keep its bytes in
 * step with theirs, and gets it back likewise: p-1 messages each way instead of one more vector.
 *
 * Cost for even p: 2 ceil(lg p) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma. Source: D. De Sensi, T. Bonato, D. Saam, T.
 * Hoefler, NSDI 2024, arXiv:2401.09356.
 */
#include <math.h>
#include <stdlib.h>

#include "algos/algorithms/negabinary.h"
#include "algos/blocks.h"
#include "base/memory.h"

/* Whoever passes block 0 on in each step, found from its owner back: set_of[delta of an even worker]. */
static void find_senders(int core, int steps, uint32_t *holders, uint32_t *set_of)
{
    uint32_t count = 1;
    holders[0] = 0;
    for (int delta = 0; delta < core; delta++)
        set_of[delta] = BLOCKS_OWN;
    for (int step = steps - 1; step >= 0; step--) {
        const uint32_t known = count;
        for (uint32_t i = 0; i < known; i++) {
            const int sender = negabinary_peer((int)holders[i], step, core);
            const int delta = sender % 2 != 0 ? sender : core - sender; /* odd workers see the mirror image */
            if (sender == 0 || set_of[delta] != BLOCKS_OWN)
                continue;
            set_of[delta] = (uint32_t)step;
            holders[count++] = (uint32_t)sender;
        }
    }
}

static enum status make_sets(int core, int steps, struct block_sets **sets)
{
    enum status status;
    void *holders = NULL, *set_of = NULL;
    TRY_TO(done, memory_zeroed(&holders, (size_t)core, sizeof(uint32_t)));
    TRY_TO(done, memory_zeroed(&set_of, (size_t)core, sizeof(uint32_t)));
    find_senders(core, steps, holders, set_of);
    TRY_TO(done, block_sets_create(set_of, (uint32_t)core, (uint32_t)steps, 0, sets));
done:
    free(holders);
    free(set_of);
    return status;
}

static enum status swing_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    const int core = shape->workers - shape->workers % 2;
    struct block_sets *sets = NULL;
    if (core == 0)
        return STATUS_OK;
    while (1LL << shape->split < core)
        shape->split++;
    TRY(make_sets(core, (int)shape->split, &sets));
    shape->chunks = (uint32_t)core;
    shape->rounds = 2 * shape->split;
    shape->state = sets;
    return STATUS_OK;
}

static void swing_release(struct shape *shape)
{
    block_sets_destroy(shape->state);
    shape->state = NULL;
}

/* When the helper gives block b to its owner: the upper half of all in step 0, the next quarter in step 1, ... */
static uint32_t helper_step(const struct shape *shape, uint32_t block)
{
    uint32_t step = shape->split - 1;
    for (; block > 1; block /= 2)
        step--;
    return step;
}

static enum status emit_helper(const struct shape *shape, uint32_t step, bool reducing, struct sink *sink)
{
    for (uint32_t b = 0; b < shape->chunks; b++)
        if (helper_step(shape, b) == step)
            TRY(reducing ? emit_send(sink, (int)b, b, 1) : emit_recv(sink, (int)b, b, 1));
    return STATUS_OK;
}

/* The own block, from the helper or back to it. */
static enum status emit_helped(const struct shape *shape, int rank, uint32_t step, bool reducing, struct sink *sink)
{
    const int helper = (int)shape->chunks;
    const uint32_t own = (uint32_t)rank;
    if (helper == shape->workers || helper_step(shape, own) != step)
        return STATUS_OK;
    return reducing ? emit_recv_reduce(sink, helper, own, 1, false) : emit_send(sink, helper, own, 1);
}

static enum status swing_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const int core = (int)shape->chunks;
    const bool reducing = round < shape->split;
    const uint32_t step = reducing ? round : shape->rounds - 1 - round;
    if (rank == core)
        return emit_helper(shape, step, reducing, sink);
    const int peer = negabinary_peer(rank, (int)step, core);
    const bool odd = rank % 2 != 0;
    const struct block_move there = {.set = step,
                                     .from = rank,
                                     .to = peer,
                                     .mirrored = odd,
                                     .reducing = reducing,
                                     .final = step == shape->split - 1};
    struct block_move here = there;
    here.from = peer;
    here.to = rank;
    here.mirrored = !odd;
    TRY(emit_helped(shape, rank, step, reducing, sink)); /* first: the peer's part completes the block */
    TRY(blocks_emit(shape->state, rank, reducing ? &there : &here, sink));
    return blocks_emit(shape->state, rank, reducing ? &here : &there, sink);
}

static int swing_owner(const struct shape *shape, uint32_t chunk)
{
    (void)shape;
    return (int)chunk;
}

static void swing_describe(const struct shape *shape, struct text *text)
{
    if (shape->workers % 2 != 0 && shape->workers > 1)
        text_addf(text, "%d workers swing, worker %d helps them", shape->workers - 1, shape->workers - 1);
}

static double swing_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    if (shape->workers == 1)
        return 0;
    if (shape->workers % 2 != 0)
        return NAN;
    const double part = (shape->workers - 1.0) / shape->workers * (double)bytes;
    return shape->rounds * model->latency_s + part * (2 * model->seconds_per_byte + model->reduce_s_per_byte);
}

const struct algorithm algorithm_swing = {
    .name = "swing",
    .aliases = "",
    .summary = "reduce-scatter and allgather among peers that swing from side to side; best for large vectors on rings "
               "and tori",
    .source = "De Sensi, Bonato, Saam, Hoefler 2024",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS,
    .shape = swing_shape,
    .emit = swing_emit,
    .owner = swing_owner,
    .release = swing_release,
    .describe = swing_describe,
    .cost = swing_cost,
};
