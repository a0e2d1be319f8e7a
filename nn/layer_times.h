/* layer_times.h - the times of the layers over the latest steps, and the profile file made of them. */
#ifndef CHORALE_NN_LAYER_TIMES_H
#define CHORALE_NN_LAYER_TIMES_H

#include <stddef.h>

#include "base/status.h"
#include "base/text.h"
#include "nn/model.h"

struct layer_times; /* the latest LAYER_TIMES_STEPS steps; the first two after creation are warm-up and don't count */

enum { LAYER_TIMES_STEPS = 64, LAYER_TIMES_WARM_UP = 2 };

enum status layer_times_create(const struct model *model, struct layer_times **times) MUST_CHECK;
void layer_times_destroy(struct layer_times *times); /* accepts NULL */

/* One step: seconds of each layer. */
void layer_times_add(struct layer_times *times, const double *forward, const double *backward);

/* The text of a profile file (base/profile.h), medians; warm-up steps serve where there are no others.
 * STATUS_REFUSED before the first step. */
enum status layer_times_profile(const struct layer_times *times, int batch, const char *device,
                                struct text *text) MUST_CHECK;

#endif
