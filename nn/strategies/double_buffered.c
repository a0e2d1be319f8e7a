/* double_buffered.c - w(k+1) = w(k) - lr mean g(w(k-1)): the exchange of step k runs during step k+1.
 *
 *   gradient[0]   backward 0 | exchange ............ | applied in step 1 | backward 2 | exchange ...
 *   gradient[1]                backward 1            | exchange .................... | applied in step 2
 *
 * Momentum, weight decay and learning rate are those of the step that applies the gradient. Step 0 applies nothing;
 * what is in flight after the last step is applied as a step after it would.
 */
#include "nn/strategies/method.h"

static enum status double_buffered_step(struct replica *replica, const struct exchanger *exchanger,
                                        const struct step_plan *plan, uint64_t step, bool *finite)
{
    if (step > 0)
        TRY(exchanger->wait(exchanger->context));
    if (plan->exchanges)
        TRY(exchanger->start(exchanger->context, step, replica->gradient[step % 2]));
    if (plan->updates)
        TRY(replica_update(replica, replica->gradient[(step - 1) % 2], step, finite));
    return STATUS_OK;
}

static enum status double_buffered_finish(struct replica *replica, const struct exchanger *exchanger, uint64_t steps,
                                          bool *finite)
{
    TRY(exchanger->wait(exchanger->context));
    return replica_update(replica, replica->gradient[(steps - 1) % 2], steps, finite);
}

const struct method method_double_buffered = {
    .name = "double-buffered",
    .gradients = 2,
    .step = double_buffered_step,
    .finish = double_buffered_finish,
};
