/* test_calibrate.c - figures found again in synthetic times, and what the rows cannot tell. */
#include "base/rng.h"
#include "sim/calibrate.h"
#include "tests/sim/support.h"

#define ROWS 64

static const struct cost_model truth = {.latency_s = 12e-6, .seconds_per_byte = 4e-10, .reduce_s_per_byte = 1.5e-10};

static double cost_of(const char *text, int workers, size_t bytes, const struct cost_model *model)
{
    struct shape *shape = shape_of(text, &star, workers, bytes / sizeof(float));
    cr_assert_not_null(shape);
    const double cost_s = shape->algorithm->cost(shape, model, bytes);
    shape_destroy(shape);
    return cost_s;
}

/* Rows of the specs by turns over workers and bytes, times off by up to `noise`. */
static size_t make_rows(const char *const *specs, size_t count, double noise, struct calibration_row rows[ROWS])
{
    static const int workers[] = {2, 3, 4, 8};
    const uint64_t key = rng_key(7, "noise", 0, 0);
    for (size_t i = 0; i < ROWS; i++) {
        struct calibration_row *row = &rows[i];
        row->allreduce = specs[i % count];
        row->workers = workers[i / count % 4];
        row->bytes = (size_t)1024 << (i / 4 % 15);
        row->time_s = cost_of(row->allreduce, row->workers, row->bytes, &truth);
        row->time_s *= 1 + noise * (2 * rng_uniform(key, i) - 1);
    }
    return ROWS;
}

static void expect_truth(const struct cost_model *found, double tolerance)
{
    expect_relative(truth.latency_s, found->latency_s, tolerance, "alpha");
    expect_relative(truth.seconds_per_byte, found->seconds_per_byte, tolerance, "beta");
    expect_relative(truth.reduce_s_per_byte, found->reduce_s_per_byte, tolerance, "gamma");
}

Test(calibrate, finds_exact_figures_again)
{
    static const char *const specs[] = {"ring", "rd", "rhd"};
    struct calibration_row rows[ROWS];
    struct cost_model found;
    double error;
    EXPECT_OK(calibrate_fit(rows, make_rows(specs, 3, 0, rows), &found, &error));
    expect_truth(&found, 1e-6);
    cr_expect(error < 1e-9, "median error %g", error);
}

Test(calibrate, finds_noisy_figures_roughly)
{
    static const char *const specs[] = {"ring", "rd", "rhd"};
    struct calibration_row rows[ROWS];
    struct cost_model found;
    double error;
    EXPECT_OK(calibrate_fit(rows, make_rows(specs, 3, 0.05, rows), &found, &error));
    expect_relative(truth.latency_s, found.latency_s, 0.05, "alpha");
    expect_relative(truth.seconds_per_byte, found.seconds_per_byte, 0.2, "beta");
    cr_expect(error > 0.005 && error < 0.05, "median error %g", error);
}

/* In a ring each reduced byte has come twice: beta and gamma cannot be told apart. */
Test(calibrate, what_cannot_be_separated_is_bandwidth)
{
    static const char *const specs[] = {"ring"};
    struct calibration_row rows[ROWS];
    struct cost_model found;
    double error;
    EXPECT_OK(calibrate_fit(rows, make_rows(specs, 1, 0, rows), &found, &error));
    expect_relative(truth.latency_s, found.latency_s, 1e-6, "alpha");
    expect_relative(truth.seconds_per_byte + truth.reduce_s_per_byte / 2, found.seconds_per_byte, 1e-6, "beta");
    cr_expect(found.reduce_s_per_byte <= 0);
    cr_expect(error < 1e-9, "median error %g", error);
}

Test(calibrate, no_figure_is_negative)
{
    /* Large vectors come cheaper than small ones promise: the best line has a latency below 0. */
    const struct calibration_row rows[] = {
        {"rd", 2, 1000, 1e-6}, {"rd", 2, 10000, 20e-6}, {"rd", 2, 100000, 210e-6}, {"ring", 4, 100000, 400e-6}};
    struct cost_model found;
    EXPECT_OK(calibrate_fit(rows, 4, &found, NULL));
    cr_expect(found.latency_s >= 0 && found.seconds_per_byte >= 0 && found.reduce_s_per_byte >= 0);
    cr_expect(found.seconds_per_byte + found.reduce_s_per_byte > 0);
}

Test(calibrate, passes_over_what_has_no_form)
{
    const struct calibration_row rows[] = {{"gossip", 4, 4096, 3e-3},
                                           {"none", 4, 4096, 1e-6},
                                           {"ring", 1, 4096, 1e-6},
                                           {"rd", 2, 0, 5e-6},
                                           {"rd", 2, 4000, 9e-6}};
    struct cost_model found;
    double error;
    EXPECT_OK(calibrate_fit(rows, 5, &found, &error));
    expect_relative(5e-6, found.latency_s, 1e-9, "alpha");
    expect_relative(1e-9, found.seconds_per_byte, 1e-9, "beta");
    cr_expect(error < 1e-9);
    EXPECT_FAIL(STATUS_REFUSED, "none of 3 rows", calibrate_fit(rows, 3, &found, &error));
    EXPECT_FAIL(STATUS_REFUSED, "none of 0 rows", calibrate_fit(rows, 0, &found, &error));
}

Test(calibrate, names_the_row_at_fault)
{
    struct calibration_row rows[] = {{"ring", 2, 4096, 1e-6}, {"rink", 2, 4096, 1e-6}};
    struct cost_model found;
    EXPECT_FAIL(STATUS_USAGE, "row 2", calibrate_fit(rows, 2, &found, NULL));
    rows[1].allreduce = "ring";
    rows[1].time_s = 0;
    EXPECT_FAIL(STATUS_USAGE, "row 2 (ring): 2 workers in 0 s is no measurement", calibrate_fit(rows, 2, &found, NULL));
    rows[1].time_s = NAN;
    EXPECT_FAIL(STATUS_USAGE, "row 2", calibrate_fit(rows, 2, &found, NULL));
}
