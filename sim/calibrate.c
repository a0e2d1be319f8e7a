/* calibrate.c - nonnegative least squares of three figures: every subset of them is fitted, the best that is allowed
 * wins. */
#include "sim/calibrate.h"

#include <math.h>
#include <stdlib.h>

#include "algos/spec.h"
#include "base/memory.h"

#define FIGURES 3 /* alpha, beta, gamma */
#define LINEAR_TOLERANCE 1e-9
#define SINGULAR 1e-9       /* of a pivot of columns of length 1: these columns are the same                   */
#define ROUNDS 60           /* of fitting and weighing anew      */
#define LEAST_RATIO 1e-3    /* of fit to time, for weights       */
#define LEAST_ERROR 1e-2    /* rows nearer than this weigh alike */
#define BETTER (1.0 - 1e-9) /* of the squared error: a subset with more or later figures must be truly better */

/* A row as an equation: sum of share[k] * figure[k] = 1, where share = coefficient / time. */
struct equation {
    double share[FIGURES];
    double weight;
};

struct system {
    struct equation *equation;
    size_t count;
    double length[FIGURES]; /* of each column of shares */
};

static double cost_with(const struct shape *shape, size_t bytes, double alpha, double beta, double gamma)
{
    const struct cost_model model = {.latency_s = alpha, .seconds_per_byte = beta, .reduce_s_per_byte = gamma};
    return shape->algorithm->cost(shape, &model, bytes);
}

/* The equation of a row; false where the closed form is missing, zero or not linear. */
static bool equation_of(const struct shape *shape, const struct calibration_row *row, struct equation *equation)
{
    if (shape->algorithm->cost == NULL)
        return false;
    double coefficient[FIGURES];
    double sum = 0;
    equation->weight = 1;
    for (int k = 0; k < FIGURES; k++) {
        coefficient[k] = cost_with(shape, row->bytes, k == 0, k == 1, k == 2);
        equation->share[k] = coefficient[k] / row->time_s;
        sum += coefficient[k];
    }
    /* Unequal figures as well: a max() that hides behind equal ones shows. */
    const double whole = cost_with(shape, row->bytes, 1, 1, 1), mixed = cost_with(shape, row->bytes, 1, 2, 3);
    const double wanted = coefficient[0] + 2 * coefficient[1] + 3 * coefficient[2];
    return sum > 0 && fabs(whole - sum) <= LINEAR_TOLERANCE * sum && fabs(mixed - wanted) <= LINEAR_TOLERANCE * wanted;
}

static enum status check_row(const struct calibration_row *row, size_t number)
{
    if (row->workers < 1 || !(row->time_s > 0) || !isfinite(row->time_s))
        return fail(STATUS_USAGE, "row %zu (%s): %d workers in %g s is no measurement: remove the row", number,
                    row->allreduce, row->workers, row->time_s);
    return STATUS_OK;
}

static enum status add_row(struct system *system, const struct calibration_row *row, size_t number)
{
    struct spec spec;
    struct layout layout = {0};
    struct shape *shape = NULL;
    enum status status;
    TRY(check_row(row, number));
    status = spec_parse(row->allreduce, &spec);
    if (status < 0)
        return fail_context(status, "row %zu", number);
    if (spec.kind == SPEC_SCHEDULE) {
        TRY_TO(done, layout_flat(row->workers, &layout));
        TRY_TO(done, spec_shape(&spec, &layout, 0, row->bytes / sizeof(float), &shape));
        system->count += equation_of(shape, row, &system->equation[system->count]);
    }
done:
    shape_destroy(shape);
    layout_release(&layout);
    spec_release(&spec);
    return status < 0 ? fail_context(status, "row %zu", number) : STATUS_OK;
}

static void measure_columns(struct system *system)
{
    for (int k = 0; k < FIGURES; k++) {
        double sum = 0;
        for (size_t i = 0; i < system->count; i++)
            sum += system->equation[i].weight * system->equation[i].share[k] * system->equation[i].share[k];
        system->length[k] = sqrt(sum);
    }
}

/* Solve the normal equations `a` x = `b` of n unknowns by Cholesky's method; false when they are singular. */
static bool solve(int n, double a[FIGURES][FIGURES], double b[FIGURES])
{
    for (int k = 0; k < n; k++) {
        for (int j = 0; j < k; j++)
            a[k][k] -= a[k][j] * a[k][j];
        if (!(a[k][k] > SINGULAR))
            return false;
        a[k][k] = sqrt(a[k][k]);
        for (int i = k + 1; i < n; i++) {
            for (int j = 0; j < k; j++)
                a[i][k] -= a[i][j] * a[k][j];
            a[i][k] /= a[k][k];
        }
    }
    for (int k = 0; k < n; k++) {
        for (int j = 0; j < k; j++)
            b[k] -= a[k][j] * b[j];
        b[k] /= a[k][k];
    }
    for (int k = n - 1; k >= 0; k--) {
        for (int j = k + 1; j < n; j++)
            b[k] -= a[j][k] * b[j];
        b[k] /= a[k][k];
    }
    return true;
}

/* Fit the figures of `subset` (a bit each) to all equations, the others being 0. False: singular, or one below 0. */
static bool fit_subset(const struct system *system, unsigned subset, double figure[FIGURES])
{
    int column[FIGURES];
    int n = 0;
    for (int k = 0; k < FIGURES; k++) {
        figure[k] = 0;
        if ((subset >> k & 1) != 0)
            column[n++] = k;
    }
    double a[FIGURES][FIGURES] = {{0}};
    double b[FIGURES] = {0};
    for (int i = 0; i < n; i++) {
        if (!(system->length[column[i]] > 0))
            return false;
        for (size_t e = 0; e < system->count; e++) {
            const double *share = system->equation[e].share;
            const double scaled = system->equation[e].weight * share[column[i]] / system->length[column[i]];
            b[i] += scaled;
            for (int j = 0; j <= i; j++)
                a[i][j] += scaled * share[column[j]] / system->length[column[j]];
        }
    }
    if (!solve(n, a, b))
        return false;
    for (int i = 0; i < n; i++) {
        if (!(b[i] >= 0))
            return false;
        figure[column[i]] = b[i] / system->length[column[i]];
    }
    return true;
}

static double error_of(const struct equation *equation, const double figure[FIGURES])
{
    double sum = -1;
    for (int k = 0; k < FIGURES; k++)
        sum += equation->share[k] * figure[k];
    return fabs(sum);
}

static double squared_error(const struct system *system, const double figure[FIGURES])
{
    double sum = 0;
    for (size_t i = 0; i < system->count; i++) {
        const double error = error_of(&system->equation[i], figure);
        sum += system->equation[i].weight * error * error;
    }
    return sum;
}

/* Least squares of relative errors favour figures that are too small (a time can be missed by at most 100 % below, by any
 * factor above) and follow the worst rows. These weights make the weighted squares sum up to |log(fit / time)|. */
static void weigh(struct system *system, const double figure[FIGURES])
{
    for (size_t i = 0; i < system->count; i++) {
        struct equation *equation = &system->equation[i];
        double ratio = 0;
        for (int k = 0; k < FIGURES; k++)
            ratio += equation->share[k] * figure[k];
        ratio = fmax(ratio, LEAST_RATIO);
        const double off = fabs(log(ratio)), error = fabs(ratio - 1);
        const double slope = error > LEAST_ERROR ? off / error : 1;
        equation->weight = slope * slope / fmax(off, LEAST_ERROR);
    }
}

static void fit(const struct system *system, double best[FIGURES])
{
    /* Few and early figures first: what the rows cannot separate goes to the earliest. */
    static const unsigned subsets[] = {1, 2, 4, 3, 5, 6, 7};
    double least = INFINITY;
    for (size_t i = 0; i < sizeof subsets / sizeof subsets[0]; i++) {
        double figure[FIGURES];
        if (!fit_subset(system, subsets[i], figure))
            continue;
        const double error = squared_error(system, figure);
        if (error >= least * BETTER)
            continue;
        least = error;
        for (int k = 0; k < FIGURES; k++)
            best[k] = figure[k];
    }
}

static int compare_reals(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum status median_of(const struct system *system, const double figure[FIGURES], double *median)
{
    void *memory = NULL;
    const size_t count = system->count;
    TRY(memory_zeroed(&memory, count, sizeof(double)));
    double *error = memory;
    for (size_t i = 0; i < count; i++)
        error[i] = error_of(&system->equation[i], figure);
    qsort(error, count, sizeof *error, compare_reals);
    *median = count % 2 != 0 ? error[count / 2] : (error[count / 2 - 1] + error[count / 2]) / 2;
    free(error);
    return STATUS_OK;
}

enum status calibrate_fit(const struct calibration_row *rows, size_t count, struct cost_model *out,
                          double *median_error)
{
    struct system system = {0};
    void *memory = NULL;
    double figure[FIGURES] = {0};
    TRY(memory_zeroed(&memory, count, sizeof(struct equation)));
    system.equation = memory;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count; i++)
        TRY_TO(done, add_row(&system, &rows[i], i + 1));
    if (system.count == 0) {
        status = fail(STATUS_REFUSED,
                      "none of %zu rows has a linear closed form: measure ring, rd or rhd with at least 2 "
                      "workers, too",
                      count);
        goto done;
    }
    for (int round = 0; round < ROUNDS; round++) {
        if (round > 0)
            weigh(&system, figure);
        measure_columns(&system);
        fit(&system, figure);
    }
    if (median_error != NULL)
        TRY_TO(done, median_of(&system, figure, median_error));
    *out = (struct cost_model){.latency_s = figure[0], .seconds_per_byte = figure[1], .reduce_s_per_byte = figure[2]};
done:
    free(system.equation);
    return status;
}
