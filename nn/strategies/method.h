/* method.h - what a strategy does to one worker's copy of the model. When it exchanges and updates is told by the
 * strategy's step plan (algos/strategy.h); here is the mathematics.
 */
#ifndef CHORALE_NN_STRATEGIES_METHOD_H
#define CHORALE_NN_STRATEGIES_METHOD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "algos/strategy.h"
#include "base/status.h"
#include "nn/learning_rate.h"
#include "nn/optimizer.h"
#include "nn/trace.h"

/* A slice of the parameter and gradient arenas, of whole tensors. */
struct bucket {
    size_t offset, count; /* elements */
};

/* One worker's copy. Nothing is owned. */
struct replica {
    float *parameters;           /* and gradients: where the optimizer works */
    float *gradient[2];          /* as many as the method says */
    struct optimizer *optimizer; /* NULL: updates are not computed (an emulated device) */
    const struct learning_rate *rate;
    struct trace *trace; /* of updates; NULL: none */
};

/* For methods: one update with `gradient` and the rate of `step`. *finite turns false when the gradient is not finite; on a
 * device that is not known yet. */
enum status replica_update(struct replica *replica, const float *gradient, uint64_t step, bool *finite) MUST_CHECK;
/* The same by parts, each element once, in host memory: the same bits. Only where replica_updates_parts(). */
enum status replica_update_part(struct replica *replica, const float *gradient, const struct bucket *part,
                                uint64_t step, bool *finite) MUST_CHECK;
bool replica_updates_parts(const struct replica *replica);
/* For methods whose next act would spread a spoiled copy: all updates are waited for, and *finite turns false when one had
 * a gradient that was not finite. */
enum status replica_finite(struct replica *replica, bool *finite) MUST_CHECK;

/* How vectors travel: one exchange is under way at a time, its vector belongs to it from start to wait. What becomes of
 * the vector (the mean over the workers, a mixture with the neighbours') is the strategy's schedule of `step`. */
struct exchanger {
    void *context;
    enum status (*start)(void *context, uint64_t step, float *vector);
    enum status (*wait)(void *context);
    /* Instead of wait, by pieces: the next one, which belongs to the caller from then on. Count 0: all are done, as after
     * wait. STATUS_AGAIN: it is not done yet, and the caller does not wait. NULL on devices and of a library's exchanges.
     */
    enum status (*part)(void *context, bool waits, struct bucket *part);
};

struct method {
    const char *name; /* of its strategy */
    int gradients;    /* gradient arenas: step t's backward pass writes gradient[t % gradients] */
    /* Parts of the exchange of `step`, which began during its backward pass, that are done by now: elements whose tensors
     * backward has left behind. Called in host memory, between layers, where replica_updates_parts() and plan->updates. NULL:
     * nothing is done then. */
    enum status (*during)(struct replica *replica, const struct exchanger *exchanger, uint64_t step, bool *finite);
    /* What follows the backward pass of `step`. *finite turns false when the gradient it applied was not finite (the
     * gradient of step - plan->gradient_age); the parameters are then worthless. On a device the backward pass may still be
     * under way, and so is the update then: the result of a later step tells. */
    enum status (*step)(struct replica *replica, const struct exchanger *exchanger, const struct step_plan *plan,
                        uint64_t step, bool *finite);
    /* Training ends after `steps` >= 1 steps: what is under way is waited for and applied. NULL: nothing to do. */
    enum status (*finish)(struct replica *replica, const struct exchanger *exchanger, uint64_t steps, bool *finite);
};

/* The method of a strategy by its name. STATUS_REFUSED when it can't be trained with. */
enum status method_find(const char *strategy, const struct method **method) MUST_CHECK;

extern const struct method method_synchronous, method_double_buffered, method_gossip;

#endif
