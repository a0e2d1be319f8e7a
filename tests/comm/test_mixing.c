/* test_mixing.c - gossip steps on real data: the executor runs the mixing schedules of a graph, step after step.
 *
 * One-peer-exponential gives every worker the exact mean after log2 n steps, for powers of two, on integer data; any graph keeps
 * the sum over the workers; a ring converges by its spectral gap.
 */
#include <criterion/criterion.h>
#include <math.h>

#include "algos/spec.h"
#include "comm/comm.h"
#include "comm/transport.h"
#include "tests/base/expect.h"

enum { MOST = 16, COUNT = 1500 };

struct mix {
    int workers;
    struct comm *comm[MOST];
    double value[MOST][COUNT];
};

static void mix_open(struct mix *mix, int workers)
{
    struct transport *transports[MOST];
    mix->workers = workers;
    EXPECT_OK(loopback_open(workers, LOOPBACK_SHUFFLED, 3, transports));
    for (int r = 0; r < workers; r++) {
        const struct comm_request request = {.transport = transports[r], .segment = 2048, .window = 2};
        EXPECT_OK(comm_open(&request, &mix->comm[r]));
        for (int i = 0; i < COUNT; i++) /* multiples of n: the mean is a whole number after exact halving */
            mix->value[r][i] = (double)(workers * ((r * 31 + i * 7) % 101));
    }
}

static void mix_close(struct mix *mix)
{
    for (int r = 0; r < mix->workers; r++)
        comm_close(mix->comm[r]);
}

static void mix_step(struct mix *mix, const struct graph *graph, uint64_t step)
{
    struct shape *shape = NULL;
    struct collective *c[MOST];
    EXPECT_OK(mixing_shape(graph, mix->workers, step, &shape));
    for (int r = 0; r < mix->workers; r++) {
        const struct collective_request request = {.team = comm_world(mix->comm[r]),
                                                   .shape = shape,
                                                   .name = graph->name,
                                                   .count = COUNT,
                                                   .dtype = DTYPE_F64,
                                                   .op = REDUCE_SUM};
        EXPECT_OK(collective_create(&request, &c[r]));
        EXPECT_OK(collective_start(c[r], mix->value[r], mix->value[r]));
    }
    for (int left = 1, rounds = 0; left > 0; rounds++) {
        cr_assert_lt(rounds, 100000);
        left = 0;
        for (int r = 0; r < mix->workers; r++) {
            const enum status status = collective_test(c[r]);
            cr_assert_geq(status, 0, "%s", status_message());
            left += status == STATUS_AGAIN;
        }
    }
    for (int r = 0; r < mix->workers; r++)
        collective_destroy(c[r]);
    shape_destroy(shape);
}

static double mean_at(const struct mix *mix, int i)
{
    double sum = 0;
    for (int r = 0; r < mix->workers; r++)
        sum += mix->value[r][i];
    return sum / mix->workers;
}

static double disagreement(const struct mix *mix)
{
    double sum = 0;
    for (int i = 0; i < COUNT; i++) {
        const double mean = mean_at(mix, i);
        for (int r = 0; r < mix->workers; r++)
            sum += (mix->value[r][i] - mean) * (mix->value[r][i] - mean);
    }
    return sqrt(sum);
}

/* Exact, and from any phase. */
Test(mixing, one_peer_exponential_is_exact_after_log2_n_steps)
{
    static struct mix mix;
    const struct graph *graph = graph_find("one-peer-exponential");
    cr_assert_not_null(graph);
    for (int workers = 2, steps = 1; workers <= 16; workers *= 2, steps++) {
        for (uint64_t phase = 0; phase < (uint64_t)steps; phase++) {
            double mean[COUNT];
            mix_open(&mix, workers);
            for (int i = 0; i < COUNT; i++)
                mean[i] = mean_at(&mix, i);
            for (int t = 0; t < steps; t++) {
                cr_assert_gt(disagreement(&mix), 0, "n=%d exact after %d steps already", workers, t);
                mix_step(&mix, graph, phase + (uint64_t)t);
            }
            for (int r = 0; r < workers; r++)
                for (int i = 0; i < COUNT; i++)
                    cr_assert_eq(mix.value[r][i], mean[i], "n=%d phase %d worker %d element %d", workers, (int)phase, r,
                                 i);
            mix_close(&mix);
        }
    }
}

/* Six workers: the same graph is never exact, and no step changes the mean. */
Test(mixing, keeps_the_mean_where_it_is_not_exact)
{
    static struct mix mix;
    static const char *const names[] = {"one-peer-exponential", "ring"};
    for (int g = 0; g < 2; g++) {
        const struct graph *graph = graph_find(names[g]);
        cr_assert_not_null(graph);
        mix_open(&mix, 6);
        double before = disagreement(&mix), mean = mean_at(&mix, 17);
        for (uint64_t t = 0; t < 6; t++) {
            mix_step(&mix, graph, t);
            cr_assert_float_eq(mean_at(&mix, 17), mean, 1e-9 * mean);
        }
        const double after = disagreement(&mix);
        cr_assert(after > 0 && after < before / 4, "%s: %g -> %g", names[g], before, after);
        mix_close(&mix);
    }
}

/* The ring of n = 8 shrinks the disagreement by its second eigenvalue, (1 + 2 cos(2 pi / n)) / 3, in the long run. */
Test(mixing, ring_converges_by_its_spectral_gap)
{
    static struct mix mix;
    const struct graph *graph = graph_find("ring");
    mix_open(&mix, 8);
    for (uint64_t t = 0; t < 30; t++)
        mix_step(&mix, graph, t);
    const double before = disagreement(&mix);
    mix_step(&mix, graph, 30);
    const double ratio = disagreement(&mix) / before, wanted = (1 + 2 * cos(2 * acos(-1.0) / 8)) / 3;
    cr_assert_float_eq(ratio, wanted, 1e-3, "%.6f instead of %.6f", ratio, wanted);
    mix_close(&mix);
}
