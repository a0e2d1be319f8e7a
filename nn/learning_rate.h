/* learning_rate.h - the learning rate of each step, a pure function of the step.
 *
 * Linear scaling (Goyal et al. 2017): `rate` is for `images`, mostly 256; the rate itself is that times global batch /
 * images. Over the warm-up it rises linearly, in equal increments, from warmup_from to the rate: step t has
 * warmup_from + (rate - warmup_from) (t + 1) / warmup. After it, with p = (t - warmup) / (steps - warmup), where t and steps
 * count from the steps that the warm-up and the way to the end began with:
 *
 *   constant    rate
 *   step        rate * factor^(milestones reached), warm-up included; Goyal et al.: 0.1 at epochs 30, 60, 80 of 90
 *   cosine      end + (rate - end) (1 + cos(pi p)) / 2               Loshchilov, Hutter 2017, without restarts
 *   polynomial  end + (rate - end) (1 - p)^power                     MLPerf's ResNet-50: power 2, end 0.0001
 *
 * warmup_from and end are not scaled with the batch.
 */
#ifndef CHORALE_NN_LEARNING_RATE_H
#define CHORALE_NN_LEARNING_RATE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { MILESTONES_MOST = 16 };

enum rate_schedule { RATE_CONSTANT, RATE_STEP, RATE_COSINE, RATE_POLYNOMIAL };
const char *
rate_schedule_name(enum rate_schedule schedule); /* "constant", ...: as users write it; NULL beyond the last */

struct learning_rate {
    enum rate_schedule schedule;
    double rate;
    size_t images;       /* that `rate` is for; 0: it is not scaled */
    size_t global_batch; /* images of all workers in a step         */
    uint64_t warmup;     /* steps                                   */
    double warmup_from;
    uint64_t steps; /* cosine, polynomial: of the run; they end there */
    double warmup_began,
        began;         /* steps with which the warm-up, the way to the end began; other than 0 where a run goes on
                                   with epochs of another length: with which they would have */
    double end, power; /* cosine, polynomial */
    uint64_t milestone[MILESTONES_MOST]; /* step: from these steps on another `factor` holds */
    int milestones;
    double factor;
};

/* The rate without warm-up and schedule: what linear scaling gives. */
double learning_rate_scaled(const struct learning_rate *rate);
double learning_rate_at(const struct learning_rate *rate, uint64_t step);

/* Milestones from a list of epochs like "30,60,80" ("" = none) and the steps of an epoch, each the first step that begins when
 * so much is over. STATUS_USAGE for anything that is no list of rising positive numbers. */
enum status learning_rate_milestones(struct learning_rate *rate, const char *epochs, double steps_per_epoch) MUST_CHECK;
/* The usual ones, 30, 60 and 80 of 90 epochs, as shares of a run of `steps`, whatever its length was given in. */
void learning_rate_usual_milestones(struct learning_rate *rate, uint64_t steps);
/* All milestones so many steps later; those that would come before step 0 come there. */
void learning_rate_shift(struct learning_rate *rate, double steps);

#endif
