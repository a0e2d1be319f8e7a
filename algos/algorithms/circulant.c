/* circulant.c - reduce-scatter and allgather on a circulant graph: fewest rounds and least bytes for any p.
 *
 * p chunks; worker r will own chunk r. What r still holds for others are the chunks r, r+1, ... r+s-1 (mod p), at first
 * s = p. In a round of the first half s becomes s' = ceil(s/2): r sends chunks r+s' ... r+s-1 to worker r+s', for which
 * they are the first s-s' of its own. At s = 1 chunk r is complete; the second half takes the same way back. A run of
 * chunks that goes around the end is one message of two joined ranges.
 *
 *   p = 5, worker 0:   s   holds         sends              gets and adds
 *     round 0          5   0 1 2 3 4     3 4 to worker 3    0 1 from worker 2
 *     round 1          3   0 1 2         2   to worker 2    0   from worker 3
 *     round 2          2   0 1           1   to worker 1    0   from worker 4     complete: chunk 0
 *
 * Every chunk is complete because the skips s' are such that each number below p is a sum of distinct ones of them.
 * Cost, L = ceil(lg p): 2 L alpha + 2 (p-1)/p n beta + (p-1)/p n gamma: recursive halving's for powers of two, and for
 * other p nothing is folded. Source: J. L. Traeff, arXiv:2410.14234, 2024; J. Bruck et al., IEEE TPDS 8(11), 1997.
 */
#include "algos/algorithms/message.h"

static uint32_t half_up(uint32_t s)
{
    return s - s / 2;
}

static enum status circulant_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    shape->chunks = (uint32_t)shape->workers;
    for (uint32_t s = shape->chunks; s > 1; s = half_up(s))
        shape->split++;
    shape->rounds = 2 * shape->split;
    return STATUS_OK;
}

static enum status circulant_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const bool reducing = round < shape->split;
    const uint32_t p = shape->chunks, r = (uint32_t)rank, step = reducing ? round : shape->rounds - 1 - round;
    uint32_t held = p;
    for (uint32_t i = 0; i < step; i++)
        held = half_up(held);
    const uint32_t skip = half_up(held), n = held - skip;
    const int above = (int)((r + skip) % p), below = (int)((r + p - skip) % p);
    if (reducing) {
        TRY(emit_around(sink, shape, OP_SEND, 0, above, r + skip, n));
        return emit_around(sink, shape, OP_RECV_REDUCE, skip == 1 ? OP_FINAL : 0, below, r, n);
    }
    TRY(emit_around(sink, shape, OP_SEND, 0, below, r, n));
    return emit_around(sink, shape, OP_RECV, 0, above, r + skip, n);
}

static int circulant_owner(const struct shape *shape, uint32_t chunk)
{
    (void)shape;
    return (int)chunk;
}

static double circulant_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const double move = (double)bytes * model->seconds_per_byte, add = (double)bytes * model->reduce_s_per_byte;
    const double part = (shape->workers - 1.0) / shape->workers;
    return shape->rounds * model->latency_s + part * (2 * move + add);
}

const struct algorithm algorithm_circulant = {
    .name = "circulant",
    .aliases = "traeff",
    .summary = "reduce-scatter and allgather at halving distances: least bytes in fewest rounds for any number",
    .source = "Traeff 2024",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS,
    .shape = circulant_shape,
    .emit = circulant_emit,
    .owner = circulant_owner,
    .cost = circulant_cost,
};
