/* pairwise.c - every worker sends its input of chunk c straight to the owner of c, and gets c's sum straight from it; in
 * round t all partners are t apart, so that nobody gets two messages at once.
 *
 *   p = 4        round 0   r sends chunk r+1 to r+1     | round 3   r sends chunk r to r+1
 *                round 1   r sends chunk r+2 to r+2     | round 4   r sends chunk r to r+2
 *                round 2   r sends chunk r+3 to r+3     | round 5   r sends chunk r to r+3
 *
 * No partial sum travels, and no round of a half depends on an earlier one: the executor overlaps them as far as its
 * window goes. Any p.
 *
 * Cost, rounds one after the other: 2(p-1) (alpha + n/p beta) + (p-1) n/p gamma, that of the ring; with all of a half in
 * flight its p-1 latencies shrink to one. Sent: 2(p-1)/p n bytes. Source: MPICH (reduce_scatter pairwise exchange); R.
 * Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19(1), 2005.
 */
#include "algos/schedule.h"

static enum status pairwise_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    shape->chunks = (uint32_t)shape->workers;
    shape->split = shape->chunks - 1;
    shape->rounds = 2 * shape->split;
    return STATUS_OK;
}

static enum status pairwise_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const bool reducing = round < shape->split;
    const uint32_t p = shape->chunks, own = (uint32_t)rank;
    const uint32_t distance = 1 + (reducing ? round : round - shape->split);
    const uint32_t to = own < p - distance ? own + distance : own - (p - distance);
    const uint32_t from = own >= distance ? own - distance : own + (p - distance);
    TRY(emit_send(sink, (int)to, reducing ? to : own, 1));
    if (reducing)
        return emit_recv_reduce(sink, (int)from, own, 1, round == shape->split - 1);
    return emit_recv(sink, (int)from, from, 1);
}

static int pairwise_owner(const struct shape *shape, uint32_t chunk)
{
    (void)shape;
    return (int)chunk;
}

static double pairwise_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const double steps = shape->workers - 1, part = (double)bytes / shape->workers;
    return 2 * steps * (model->latency_s + part * model->seconds_per_byte) + steps * part * model->reduce_s_per_byte;
}

const struct algorithm algorithm_pairwise = {
    .name = "pairwise",
    .aliases = "",
    .summary = "each part straight to its owner and back, partners t apart in round t: least bytes, no partial sums",
    .source = "MPICH; Thakur, Rabenseifner, Gropp 2005",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS | TRAIT_WHOLE_INPUTS,
    .shape = pairwise_shape,
    .emit = pairwise_emit,
    .owner = pairwise_owner,
    .cost = pairwise_cost,
};
