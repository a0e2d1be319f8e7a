/* gossip.c - adapt, then combine: x_i <- x_i - lr g_i(x_i), then x_i <- w_ii x_i + sum_j w_ij x_j. */
#include "nn/strategies/method.h"

static enum status gossip_step(struct replica *replica, const struct exchanger *exchanger, const struct step_plan *plan,
                               uint64_t step, bool *finite)
{
    if (plan->updates)
        TRY(replica_update(replica, replica->gradient[0], step, finite));
    if (!plan->exchanges)
        return STATUS_OK;
    TRY(replica_finite(replica, finite));
    if (!*finite) /* neighbours are not to be infected */
        return STATUS_OK;
    TRY(exchanger->start(exchanger->context, step, replica->parameters));
    return exchanger->wait(exchanger->context);
}

const struct method method_gossip = {.name = "gossip", .gradients = 1, .step = gossip_step};
