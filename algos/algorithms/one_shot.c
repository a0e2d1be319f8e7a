/* one_shot.c - everyone sends its vector to everyone and adds up what comes, in rank order: one round.
 *
 *   p = 3    0 -> 1 2    1 -> 2 0    2 -> 0 1     then each: (0 + 1) + 2
 *
 * All workers add in the same order (group.h), so they end with equal bits, and what travels is inputs, never partial
 * sums. Cost: alpha + (p-1) n beta + (p-1) n gamma: the least latency there is, and p/2 times the bytes of a ring.
 * Source: MSCCL's and NCCL's one-phase allreduce (all-pairs, AllReduce_AGxLL) in a node.
 */
#include "algos/algorithms/group.h"

static enum status one_shot_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    shape->rounds = shape->workers > 1;
    shape->scratch = shape->workers > 2;
    return STATUS_OK;
}

static enum status one_shot_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    (void)round;
    const struct group all = group_of_all(shape, rank);
    return group_exchange(sink, shape, &all, 0, 1, true);
}

static double one_shot_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const double others = shape->workers - 1;
    return shape->rounds * model->latency_s +
           others * (double)bytes * (model->seconds_per_byte + model->reduce_s_per_byte);
}

const struct algorithm algorithm_one_shot = {
    .name = "one-shot",
    .aliases = "",
    .summary = "everyone sends everything to everyone: a single round; best for tiny vectors and few workers",
    .source = "NCCL, MSCCL (one-phase all-pairs)",
    .traits = TRAIT_ANY_SIZE | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER | TRAIT_WHOLE_INPUTS,
    .shape = one_shot_shape,
    .emit = one_shot_emit,
    .cost = one_shot_cost,
};
