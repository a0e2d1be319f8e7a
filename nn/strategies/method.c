/* method.c - the methods by name, and what they share. */
#include "nn/strategies/method.h"

#include <stddef.h>
#include <string.h>

#include "base/clock.h"

enum status replica_update(struct replica *replica, const float *gradient, uint64_t step, bool *finite)
{
    if (replica->optimizer == NULL)
        return STATUS_OK;
    const uint64_t before = clock_ns();
    TRY(optimizer_step(replica->optimizer, learning_rate_at(replica->rate, step), gradient, replica->parameters,
                       finite));
    trace_add(replica->trace, "update", TRACE_STEPS, step, before, clock_ns());
    return STATUS_OK;
}

bool replica_updates_parts(const struct replica *replica)
{
    return replica->optimizer != NULL && optimizer_takes_parts(replica->optimizer);
}

enum status replica_update_part(struct replica *replica, const float *gradient, const struct bucket *part,
                                uint64_t step, bool *finite)
{
    const uint64_t before = clock_ns();
    TRY(optimizer_step_part(replica->optimizer, learning_rate_at(replica->rate, step), part->offset, part->count,
                            gradient, replica->parameters, finite));
    trace_add(replica->trace, "update", TRACE_STEPS, step, before, clock_ns());
    return STATUS_OK;
}

enum status replica_finite(struct replica *replica, bool *finite)
{
    return replica->optimizer != NULL ? optimizer_finite(replica->optimizer, finite) : STATUS_OK;
}

enum status method_find(const char *strategy, const struct method **method)
{
    static const struct method *const methods[] = {&method_synchronous, &method_double_buffered, &method_gossip};
    for (size_t k = 0; k < sizeof methods / sizeof methods[0]; k++) {
        if (strcmp(methods[k]->name, strategy) == 0) {
            *method = methods[k];
            return STATUS_OK;
        }
    }
    return fail(STATUS_REFUSED, "strategy %s: the trainer has no mathematics for it yet", strategy);
}
