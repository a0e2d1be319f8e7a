/* synchronous.c - w(k+1) = w(k) - lr mean g(w(k)).
 *
 * Each bucket is applied as soon as its mean is there, during backward or while later ones are waited for: it still lies in
 * a cache then, and no worker waits for another with an update left to do. The bits are those of one update of everything.
 */
#include "nn/strategies/method.h"

/* STATUS_AGAIN: the next part is not there yet. */
static enum status apply_part(struct replica *replica, const struct exchanger *exchanger, uint64_t step, bool waits,
                              bool *finite, bool *last)
{
    struct bucket part;
    const enum status status = exchanger->part(exchanger->context, waits, &part);
    if (status != STATUS_OK)
        return status;
    *last = part.count == 0;
    return *last ? STATUS_OK : replica_update_part(replica, replica->gradient[0], &part, step, finite);
}

static enum status synchronous_during(struct replica *replica, const struct exchanger *exchanger, uint64_t step,
                                      bool *finite)
{
    bool last = false;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && !last)
        status = apply_part(replica, exchanger, step, false, finite, &last);
    return status == STATUS_AGAIN ? STATUS_OK : status;
}

static enum status synchronous_step(struct replica *replica, const struct exchanger *exchanger,
                                    const struct step_plan *plan, uint64_t step, bool *finite)
{
    bool last = !plan->exchanges;
    if (plan->exchanges)
        TRY(exchanger->start(exchanger->context, step, replica->gradient[0]));
    if (plan->exchanges && plan->updates && exchanger->part != NULL && replica_updates_parts(replica)) {
        while (!last)
            TRY(apply_part(replica, exchanger, step, true, finite, &last));
        return STATUS_OK;
    }
    if (plan->exchanges)
        TRY(exchanger->wait(exchanger->context));
    if (plan->updates)
        TRY(replica_update(replica, replica->gradient[0], step, finite));
    return STATUS_OK;
}

const struct method method_synchronous = {
    .name = "synchronous", .gradients = 1, .during = synchronous_during, .step = synchronous_step};
