/* none.c - moves nothing: what remains of a training step when communication costs nothing. Every worker keeps its own
 * vector, so the result is no reduction: an upper bound for speed, not a way to train. */
#include "algos/schedule.h"

static enum status none_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request, (void)shape;
    return STATUS_OK;
}

static enum status none_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    (void)shape, (void)rank, (void)round, (void)sink;
    return STATUS_OK;
}

static double none_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    (void)shape, (void)model, (void)bytes;
    return 0;
}

const struct algorithm algorithm_none = {
    .name = "none",
    .aliases = "",
    .summary = "moves nothing, every worker keeps its own: the bound that no communication can beat",
    .source = "for comparison",
    .traits = TRAIT_ANY_SIZE | TRAIT_INEXACT,
    .shape = none_shape,
    .emit = none_emit,
    .cost = none_cost,
};
