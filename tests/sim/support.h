/* support.h - simulating a spec in one call, for Criterion suites. */
#ifndef CHORALE_TESTS_SIM_SUPPORT_H
#define CHORALE_TESTS_SIM_SUPPORT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "algos/spec.h"
#include "sim/sim.h"
#include "tests/base/expect.h"

/* Latency and bandwidth of a fast network; reducing takes a quarter of the time of sending. */
static const struct platform star = {
    .name = "star", .node_workers = 1, .intra = {2e-6, 8e-11}, .inter = {2e-6, 8e-11}, .reduce_s_per_byte = 2e-11};
/* Four workers share an interface that is slower than what connects them. */
static const struct platform shared = {
    .name = "shared", .node_workers = 4, .intra = {1e-6, 5e-11}, .inter = {2e-6, 2e-10}, .reduce_s_per_byte = 2e-11};

/* The shape of a schedule spec with default layout of the platform; NULL when refused. */
static inline struct shape *shape_of(const char *text, const struct platform *platform, int workers, size_t count)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape = NULL;
    EXPECT_OK(spec_parse(text, &spec));
    EXPECT_OK(platform_layout(platform, workers, &layout));
    enum status status = spec_shape(&spec, &layout, 0, count, &shape);
    cr_expect(status == STATUS_OK || status == STATUS_REFUSED, "%s, %d workers: %s", text, workers, status_message());
    layout_release(&layout);
    spec_release(&spec);
    return shape;
}

static inline struct sim_result simulate(const struct sim_request *request, const char *text, int workers, size_t count)
{
    struct sim_result result = {0};
    struct shape *shape = shape_of(text, request->platform, workers, count);
    cr_assert_not_null(shape, "%s refuses %d workers", text, workers);
    EXPECT_OK(sim_schedule(request, shape, count, sizeof(float), NULL, NULL, &result));
    shape_destroy(shape);
    return result;
}

static inline double time_of(const struct sim_request *request, const char *text, int workers, size_t count)
{
    return simulate(request, text, workers, count).time_s;
}

static inline bool same_bits(double a, double b)
{
    uint64_t first;
    uint64_t second;
    memcpy(&first, &a, sizeof first);
    memcpy(&second, &b, sizeof second);
    return first == second;
}

static inline void expect_relative(double wanted, double value, double tolerance, const char *what)
{
    cr_expect(fabs(value - wanted) <= tolerance * fabs(wanted), "%s: %.12g instead of %.12g", what, value, wanted);
}

#endif
