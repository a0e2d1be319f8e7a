/* synchronous.c - the mean of this step's gradients is applied in this step: every worker computes what one worker with
 * the whole batch would.
 *
 *   step k:  forward backward | exchange g(k) | update with mean g(k)
 *
 * Source: P. Goyal et al., arXiv:1706.02677; ChainerMN's pure_nccl and naive communicators.
 */
#include "algos/strategies/inner.h"

static const struct option synchronous_options[] = {
    {.key = "inner", .type = OPTION_SPEC, .default_text = "ring", .help = "schedule that reduces the gradients"},
    {.key = NULL},
};

static enum status synchronous_plan(const struct option_values *options, uint64_t step, struct step_plan *plan)
{
    (void)options, (void)step;
    *plan = (struct step_plan){
        .exchanges = true,
        .exchange = {.object = EXCHANGE_GRADIENT, .start = START_AFTER_BACKWARD, .wait_steps = 0},
        .updates = true,
        .gradient_age = 0,
    };
    return STATUS_OK;
}

const struct strategy strategy_synchronous = {
    .name = "synchronous",
    .aliases = "sync",
    .summary = "the mean of this step's gradients is applied in this step; what a plain schedule means in training",
    .source = "Goyal et al. 2017",
    .exact = true,
    .options = synchronous_options,
    .plan = synchronous_plan,
    .shape = inner_shape,
    .period = inner_period,
};
