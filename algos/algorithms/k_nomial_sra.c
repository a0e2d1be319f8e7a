/* k_nomial_sra.c - k-nomial scatter-reduce, then allgather: recursive halving with groups of up to `radix` workers.
 *
 * In each round of the first half the workers of a group cut what they are responsible for into a part for each of
 * them, and every member adds up its part; far apart first, as in recursive halving. The second half takes the same way
 * back. The groups are those of radix.h: factors of the number of workers up to the radix, with folding where there are
 * none.
 *
 *   radix 4, p = 6 = 3 * 2    round 0: {0 2 4} {1 3 5}, a third each       chunks 01 23 45
 *                             round 1: {0 1} {2 3} {4 5}, a half of that   worker r has chunk r
 *
 * Cost, d factors: 2 d alpha + 2 (m-1)/m n beta + (m-1)/m n gamma for a core of m, and with folding 2 (alpha + n beta)
 * + n gamma more. Source: UCC (sra_knomial); P. Sack, W. Gropp, JPDC 85, 2015.
 */
#include "algos/radix.h"

static const struct option sra_options[] = {
    {.key = "radix",
     .type = OPTION_INT,
     .default_text = "4",
     .min = 2,
     .max = 256,
     .unit = "workers",
     .help = "the largest group that shares out parts in a round"},
    {.key = NULL},
};

static enum status sra_shape(const struct shape_request *request, struct shape *shape)
{
    TRY(radix_choose(shape, (int)option_int(request->options, "radix"), 1, 2, true));
    const struct radices *radices = shape->state;
    shape->chunks = (uint32_t)radices->core;
    shape->split = (uint32_t)(radices->digits + radices->folded);
    shape->rounds = 2 * shape->split;
    return STATUS_OK;
}

static enum status sra_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct radices *radices = shape->state;
    const bool reducing = round < shape->split;
    const int digit = (int)(reducing ? round : shape->rounds - 1 - round) - radices->folded;
    if (digit < 0)
        return reducing ? radix_fold(shape, rank, sink) : radix_unfold(shape, rank, sink);
    return reducing ? radix_scatter(shape, rank, digit, sink) : radix_gather(shape, rank, digit, sink);
}

static double sra_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    return radix_fold_cost(shape, model, bytes) + radix_parts_cost(shape, model, bytes);
}

const struct algorithm algorithm_k_nomial_sra = {
    .name = "k-nomial-sra",
    .aliases = "sra",
    .summary = "reduce-scatter and allgather in groups of up to `radix`: recursive halving in fewer rounds",
    .source = "UCC (sra_knomial)",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER,
    .options = sra_options,
    .shape = sra_shape,
    .emit = sra_emit,
    .owner = radix_owner,
    .release = radix_release,
    .describe = radix_describe,
    .cost = sra_cost,
};
