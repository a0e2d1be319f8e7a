/* recursive_exchange.c - recursive doubling with groups of up to `radix` workers: fewer rounds, more messages in each.
 *
 * The number of workers is taken as a product of factors up to the radix; in round i those whose numbers differ in
 * digit i alone send each other what they have so far (radix.h), and all add it in the same order (group.h): equal bits
 * without a second pass. Where there are no such factors, workers fold into a core.
 *
 *   radix 4, p = 12 = 4 * 3    round 0: {0 1 2 3} {4 5 6 7} {8 9 10 11}
 *                              round 1: {0 4 8} {1 5 9} {2 6 10} {3 7 11}: everyone has everything
 *   radix 4, p = 11            no such product: the runs {0 1 2} {3 4 5} {6 7 8} {9 10} fold into a core of 4
 *
 * Cost, factors f: sum of (alpha + (f-1) n (beta + gamma)) over the rounds; folding, e into one: 2 alpha + 2 e n beta +
 * e n gamma more, less what of the adding hides behind the receiving. Radix 2 is recursive doubling.
 * Source: MPICH (recexch, recursive multiplying); J. Bruck et al., 1997; A. Bernaschi, G. Iannello, M. Lauria, 2003.
 */
#include "algos/radix.h"

static const struct option exchange_options[] = {
    {.key = "radix",
     .type = OPTION_INT,
     .default_text = "4",
     .min = 2,
     .max = 256,
     .unit = "workers",
     .help = "the largest group that exchanges in a round"},
    {.key = NULL},
};

static enum status exchange_shape(const struct shape_request *request, struct shape *shape)
{
    const int radix = (int)option_int(request->options, "radix");
    TRY(radix_choose(shape, radix, radix - 1, 1, false));
    const struct radices *radices = shape->state;
    shape->rounds = (uint32_t)radices->digits + (radices->folded > 0 ? 2 : 0);
    return STATUS_OK;
}

static enum status exchange_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct radices *radices = shape->state;
    const int digit = (int)round - (radices->folded > 0);
    if (digit < 0)
        return radix_fold(shape, rank, sink);
    if (digit == radices->digits)
        return radix_unfold(shape, rank, sink);
    return radix_exchange(shape, rank, digit, sink);
}

static double exchange_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    return radix_fold_cost(shape, model, bytes) + radix_exchange_cost(shape, model, bytes);
}

const struct algorithm algorithm_recursive_exchange = {
    .name = "recursive-exchange",
    .aliases = "recexch",
    .summary =
        "whole vectors exchanged in groups of up to `radix`: fewer rounds than recursive doubling; for small vectors",
    .source = "MPICH (recexch)",
    .traits = TRAIT_ANY_SIZE | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER,
    .options = exchange_options,
    .shape = exchange_shape,
    .emit = exchange_emit,
    .release = radix_release,
    .describe = radix_describe,
    .cost = exchange_cost,
};
