/* calibrate.h - what a machine's messages and reductions cost, from measured times of collectives.
 *
 * The closed forms of algorithms are linear in alpha, beta and gamma (struct cost_model), so that these follow from
 * times by least squares, weighted anew until they are least in |log(fit / time)|, with no figure below 0.
 */
#ifndef CHORALE_SIM_CALIBRATE_H
#define CHORALE_SIM_CALIBRATE_H

#include <stddef.h>

#include "algos/schedule.h"
#include "base/status.h"

/* One measured time. */
struct calibration_row {
    const char *allreduce; /* spec */
    int workers;
    size_t bytes;
    double time_s;
};

/* Fit *out to the rows and tell how far the fit is from the median row (|fit - time| / time; may be NULL).
 *
 * Rows without a closed form, of one worker, or with a form that is not linear are passed over. What the rows cannot
 * separate (in rings beta and gamma always come together) is charged to the earlier of alpha, beta, gamma. STATUS_USAGE
 * names a row that is no measurement; STATUS_REFUSED: no row is left. */
enum status calibrate_fit(const struct calibration_row *rows, size_t count, struct cost_model *out,
                          double *median_error) MUST_CHECK;

#endif
