/* sim.h - the same schedules on simulated time.
 *
 * One progression (algos/progression.h) for each worker is driven by an event queue; nothing else interprets a
 * schedule. Deterministic: equal input gives equal output to the last bit; independent of the host's load.
 */
#ifndef CHORALE_SIM_SIM_H
#define CHORALE_SIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "algos/schedule.h"
#include "algos/spec.h"
#include "base/profile.h"
#include "base/status.h"
#include "sim/platform.h"

/* How a worker goes about its schedule.
 *
 * overlap_reduction = true: as the executor does. A worker takes in a few ops ahead of what is complete, messages leave
 * without asking (one that comes before its receive waits there), and only the worker's processor serialises its
 * reductions. overlap_reduction = false: as closed forms have it. A worker goes through its rounds one by one, its next
 * messages after its reductions, and a message moves when both sides have come to it.
 *
 * Local copies and scalings cost what reductions cost. The schedule runs in place: no first copy from an input.
 */
struct sim_request {
    const struct platform *platform;
    const struct layout *layout; /* node of each worker; NULL: as the platform has it */
    size_t segment;              /* bytes; 0: one segment for each message            */
    unsigned window;             /* 0 = 4                                             */
    bool overlap_reduction;      /* see above                                         */
    double wire_ratio; /* bytes on the wire in proportion to the elements' own; 0 = 1. Encoding is free here */
};

struct sim_result {
    double time_s;  /* until the last worker is done */
    double first_s; /* until the first is            */
    uint64_t events;
    size_t messages, bytes; /* all workers */
    double wall_s;          /* how long simulating took */
};

/* One run of a schedule on `count` elements of `size` bytes; worker r starts at start_s[r] (NULL: all at 0). done_s[r]
 * receives when worker r is done (may be NULL). STATUS_INTERNAL names a deadlock (a schedule that verify would refuse).
 */
enum status sim_schedule(const struct sim_request *request, const struct shape *shape, size_t count, size_t size,
                         const double *start_s, double *done_s, struct sim_result *result) MUST_CHECK;

/* A training run: steps of a profile's forward and backward, exchanges of f32 vectors of its parameters as the
 * strategy's step plans say. */
struct sim_train_request {
    struct sim_request network;
    const struct spec *spec; /* schedule or strategy */
    const struct profile *profile;
    int workers, batch; /* batch per worker */
    int steps;          /* simulated, the first two (fewer where there are no more) are left out of the means;
                           0: two, then at least four and whole periods of the strategy */
    size_t bucket; /* bytes; 0 = the whole vector in one exchange. From the end (algos/bucket.h), of whole layers where
                           the profile has them */
    bool overlap;  /* means of gradients: each bucket's exchange begins when backward has completed it
                           (profile_backward_until), else when backward has ended */
};

struct sim_train_result {
    double step_s, compute_s, exposed_s; /* means over the steps counted and the workers; step = compute + exposed */
    double images_per_s, efficiency;     /* efficiency against one worker of the same profile (no communication)   */
    size_t bytes_sent_per_step;          /* of the worker that sends most                                          */
    struct sim_result totals;            /* of the whole run; time: until the last worker has done its last step   */
};
enum status sim_train(const struct sim_train_request *request, struct sim_train_result *result) MUST_CHECK;

#endif
