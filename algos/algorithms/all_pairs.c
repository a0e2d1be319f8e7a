/* all_pairs.c - direct reduce-scatter and allgather: two rounds at the least bytes.
 *
 * p chunks; worker r owns chunk r.
 *
 *   p = 3    round 0: r sends chunk c to c, for each c but r; r adds up chunk r in rank order
 *            round 1: r sends chunk r, complete, to everyone
 *
 * Cost: 2 alpha + 2 (p-1)/p n beta + (p-1)/p n gamma, if a worker's p-1 messages cost no more than one of their size:
 * with a cost per message, or many senders to one port, that is the limit. What travels is inputs and results, never
 * partial sums. Source: NCCL (RSxLD_AGxST), MSCCL (two-phase all-pairs); direct reduce-scatter of MPI libraries.
 */
#include "algos/algorithms/group.h"

static enum status all_pairs_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    shape->chunks = (uint32_t)shape->workers;
    shape->split = shape->workers > 1;
    shape->rounds = 2 * shape->split;
    shape->scratch = shape->workers > 2;
    return STATUS_OK;
}

static enum status all_pairs_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct group all = group_of_all(shape, rank);
    return round == 0 ? group_scatter(sink, shape, &all, 0, 1, true) : group_gather(sink, &all, 0, 1);
}

static int all_pairs_owner(const struct shape *shape, uint32_t chunk)
{
    (void)shape;
    return (int)chunk;
}

static double all_pairs_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const double part = (shape->workers - 1.0) / shape->workers * (double)bytes;
    return shape->rounds * model->latency_s + part * (2 * model->seconds_per_byte + model->reduce_s_per_byte);
}

const struct algorithm algorithm_all_pairs = {
    .name = "all-pairs",
    .aliases = "two-shot direct",
    .summary = "direct reduce-scatter and allgather: least bytes in two rounds; best for few workers on a switch",
    .source = "NCCL, MSCCL (two-phase all-pairs)",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER | TRAIT_WHOLE_INPUTS,
    .shape = all_pairs_shape,
    .emit = all_pairs_emit,
    .owner = all_pairs_owner,
    .cost = all_pairs_cost,
};
