/* gossip.c - D-PSGD, adapt then combine: every worker updates with its own gradient, then mixes its parameters with
 * those of its neighbours in the graph of the step; no worker ever waits for all.
 *
 *   step t:  forward backward | update x_i with g_i | x_i <- w_ii x_i + sum_j w_ij x_j,  W = W(t)
 *
 * Source: X. Lian et al., NeurIPS 2017 (arXiv:1705.09056); A. Sayed, Found. Trends ML 7(4-5), 2014, for
 * adapt-then-combine.
 */
#include <assert.h>

#include "algos/spec.h"

/* "|ring|one-peer-exponential", from the catalogue. */
#define GRAPH(stem, name) "|" name
static const char graph_names[] =
#include "algos/catalogue.def"
    ;

static const struct option gossip_options[] = {
    {.key = "graph",
     .type = OPTION_CHOICE,
     .default_text = "one-peer-exponential",
     .choices = &graph_names[1],
     .help = "who takes from whom in a step"},
    {.key = "weights",
     .type = OPTION_CHOICE,
     .default_text = "metropolis",
     .choices = "metropolis",
     .help = "what a worker takes: 1/(1 + the larger degree) of each neighbour, the rest of itself"},
    {.key = NULL},
};

static enum status gossip_plan(const struct option_values *options, uint64_t step, struct step_plan *plan)
{
    (void)options, (void)step;
    *plan = (struct step_plan){
        .exchanges = true,
        .exchange = {.object = EXCHANGE_PARAMETER, .start = START_AFTER_UPDATE, .wait_steps = 0},
        .updates = true,
        .gradient_age = 0,
    };
    return STATUS_OK;
}

static const struct graph *graph_of(const struct option_values *options)
{
    const struct graph *graph = graph_find(option_text(options, "graph"));
    assert(graph != NULL && "option_set() takes the catalogue's names only");
    return graph;
}

static enum status gossip_shape(const struct shape_request *request, struct shape **shape)
{
    return mixing_shape(graph_of(request->options), request->layout->workers, request->step, shape);
}

static enum status gossip_period(const struct option_values *options, const struct layout *layout, uint64_t *period)
{
    const struct graph *graph = graph_of(options);
    TRY(graph->check(layout->workers));
    *period = graph->period(layout->workers);
    return STATUS_OK;
}

const struct strategy strategy_gossip = {
    .name = "gossip",
    .aliases = "d-psgd",
    .summary =
        "local update, then parameters are mixed with neighbours only; workers agree in the limit, not in each step",
    .source = "Lian et al. 2017; Ying et al. 2021",
    .exact = false,
    .options = gossip_options,
    .plan = gossip_plan,
    .shape = gossip_shape,
    .period = gossip_period,
};
