/* synchronous.c - w(k+1) = w(k) - lr mean g(w(k)). */
#include "nn/strategies/method.h"

static enum status synchronous_step(struct replica *replica, const struct exchanger *exchanger,
                                    const struct step_plan *plan, uint64_t step, bool *finite)
{
    if (plan->exchanges) {
        TRY(exchanger->start(exchanger->context, step, replica->gradient[0]));
        TRY(exchanger->wait(exchanger->context));
    }
    if (plan->updates)
        TRY(replica_update(replica, replica->gradient[0], step, finite));
    return STATUS_OK;
}

const struct method method_synchronous = {.name = "synchronous", .gradients = 1, .step = synchronous_step};
