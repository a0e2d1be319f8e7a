/* bcube.c - reduce-scatter and allgather along the dimensions of a cube with `base` workers on a side.
 *
 * p = base * base * ... * rest. In each round of the first half those whose numbers differ in one digit alone share out
 * the parts of what they are responsible for, neighbours first, so that the largest parts have the shortest way; the
 * last dimension has what is left of p. The second half takes the same way back. Nobody folds: where base does not
 * divide p, as for a prime p, it is the direct exchange of all-pairs.
 *
 *   base 2, p = 6 = 2 * 3    round 0: {0 1} {2 3} {4 5}, a half each     chunks 012 345
 *                            round 1: {0 2 4} {1 3 5}, a third of that   chunks of worker 0..5: 0 3 1 4 2 5
 *
 * Cost, d dimensions: 2 d alpha + 2 (p-1)/p n beta + (p-1)/p n gamma, if the messages of a round cost no more than one
 * of their size. Source: Gloo (bcube); C. Guo et al. (BCube), SIGCOMM 2009.
 */
#include "algos/radix.h"

static const struct option bcube_options[] = {
    {.key = "base",
     .type = OPTION_INT,
     .default_text = "2",
     .min = 2,
     .max = 65536,
     .unit = "workers",
     .help = "workers of a group, as often as it divides their number"},
    {.key = NULL},
};

static enum status bcube_shape(const struct shape_request *request, struct shape *shape)
{
    TRY(radix_divide(shape, (int)option_int(request->options, "base")));
    shape->chunks = (uint32_t)shape->workers;
    shape->split = (uint32_t)((const struct radices *)shape->state)->digits;
    shape->rounds = 2 * shape->split;
    return STATUS_OK;
}

static enum status bcube_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    if (round < shape->split)
        return radix_scatter(shape, rank, (int)round, sink);
    return radix_gather(shape, rank, (int)(shape->rounds - 1 - round), sink);
}

const struct algorithm algorithm_bcube = {
    .name = "bcube",
    .aliases = "",
    .summary = "reduce-scatter and allgather in groups of `base`, near ones first; p with many small factors",
    .source = "Gloo (bcube)",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER,
    .options = bcube_options,
    .shape = bcube_shape,
    .emit = bcube_emit,
    .owner = radix_owner,
    .release = radix_release,
    .describe = radix_describe,
    .cost = radix_parts_cost,
};
