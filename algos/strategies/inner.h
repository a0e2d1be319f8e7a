/* inner.h - for strategies that exchange by one schedule, the spec in their option `inner`. */
#ifndef CHORALE_ALGOS_STRATEGIES_INNER_H
#define CHORALE_ALGOS_STRATEGIES_INNER_H

#include "algos/spec.h"

static inline enum status inner_shape(const struct shape_request *request, struct shape **shape)
{
    struct spec inner;
    TRY(spec_nested(request, "inner", &inner));
    enum status status = spec_shape_for(&inner, request, shape);
    spec_release(&inner);
    return status;
}

/* The inner schedule is the same in every step. */
static inline enum status inner_period(const struct option_values *options, const struct layout *layout,
                                       uint64_t *period)
{
    (void)options, (void)layout;
    *period = 1;
    return STATUS_OK;
}

#endif
