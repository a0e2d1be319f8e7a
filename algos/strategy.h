/* strategy.h - strategies: what is exchanged and when, as a pure step plan; and the graphs that gossip walks.
 *
 * The trainer and the simulator both follow plan(); the mathematics on state (which parameters, what update) is in
 * nn/strategies/. A plain schedule spec given to the trainer means synchronous:inner=THAT.
 */
#ifndef CHORALE_ALGOS_STRATEGY_H
#define CHORALE_ALGOS_STRATEGY_H

#include <stdbool.h>
#include <stdint.h>

#include "algos/layout.h"
#include "base/option.h"
#include "base/status.h"

struct shape;
struct shape_request;

enum exchange_object {
    EXCHANGE_GRADIENT, /* mean of the gradients            */
    EXCHANGE_PARAMETER /* parameters are mixed             */
};
enum exchange_start {
    START_AFTER_BACKWARD, /* when the step's gradients are there     */
    START_AFTER_UPDATE    /* when the step's local update is done    */
};

/* One exchange that step t starts. */
struct exchange {
    enum exchange_object object;
    enum exchange_start start;
    int wait_steps; /* waited for before the update of step t + wait_steps (0: of the same step; for START_AFTER_UPDATE:
                       at the end of step t + wait_steps)                                                            */
};

struct step_plan {
    bool exchanges; /* false: this step starts nothing                             */
    struct exchange exchange;
    bool updates;     /* an update is applied in this step                           */
    int gradient_age; /* of the update in this step: 0 = this step's, 1 = the last's */
};

struct strategy {
    const char *name, *aliases, *summary, *source;
    bool exact; /* all workers end each step with equal parameters when the inner schedule is exact */
    const struct option *options;
    /* The plan of `step` (from 0). Pure. */
    enum status (*plan)(const struct option_values *options, uint64_t step, struct step_plan *plan);
    /* The schedule of the exchange of request->step: the inner spec's shape, or a mixing step. Free with
     * shape_destroy(). */
    enum status (*shape)(const struct shape_request *request, struct shape **shape);
    /* After how many steps the sequence of schedules repeats; 1 when all are equal. */
    enum status (*period)(const struct option_values *options, const struct layout *layout, uint64_t *period);
};

/* A graph says who talks in `step`: for each worker, from whom it takes what weight. */
struct mixing_edge {
    int peer; /* the worker whose value comes in */
    double weight;
};
struct graph {
    const char *name, *aliases, *summary, *source;
    /* Refuses worker counts that it can't do, with the reason. */
    enum status (*check)(int workers);
    uint64_t (*period)(int workers);
    /* Row `rank` of W(step): own weight, and edges (at most `workers`-1, array of the caller). Pure. */
    enum status (*row)(int workers, int rank, uint64_t step, double *self, struct mixing_edge *edges, int *count);
};
const struct graph *const *catalogue_graphs(size_t *count);
const struct graph *graph_find(const char *name);

/* The one-round schedule of W(step): every worker sends its vector to those that take it and reduces what comes in with
 * weights, x_i <- w_ii x_i + sum_j w_ij x_j. Free with shape_destroy(). */
enum status mixing_shape(const struct graph *graph, int workers, uint64_t step, struct shape **shape) MUST_CHECK;

#endif
