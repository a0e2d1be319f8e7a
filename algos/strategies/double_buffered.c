/* double_buffered.c - the exchange of step k is hidden behind the whole of step k+1; its mean is applied there.
 *
 *   step k:    forward backward | update with mean g(k-1)         w(k+1) = w(k) - lr mean g(w(k-1))
 *                               | start exchange g(k) ....................
 *   step k+1:  forward backward ......................... | update with mean g(k)
 *
 * Step 0 updates nothing; whoever ends training applies the gradient still in flight.
 * Source: ChainerMN's double buffering, T. Akiba et al., arXiv:1710.11351.
 */
#include "algos/strategies/inner.h"

static const struct option double_buffered_options[] = {
    {.key = "inner", .type = OPTION_SPEC, .default_text = "ring", .help = "schedule that reduces the gradients"},
    {.key = NULL},
};

static enum status double_buffered_plan(const struct option_values *options, uint64_t step, struct step_plan *plan)
{
    (void)options;
    *plan = (struct step_plan){
        .exchanges = true,
        .exchange = {.object = EXCHANGE_GRADIENT, .start = START_AFTER_BACKWARD, .wait_steps = 1},
        .updates = step > 0,
        .gradient_age = 1,
    };
    return STATUS_OK;
}

const struct strategy strategy_double_buffered = {
    .name = "double-buffered",
    .aliases = "db",
    .summary = "the exchange of a step runs during the next one: gradients are one step old, communication is hidden",
    .source = "ChainerMN; Akiba et al. 2017",
    .exact = true,
    .options = double_buffered_options,
    .plan = double_buffered_plan,
    .shape = inner_shape,
    .period = inner_period,
};
