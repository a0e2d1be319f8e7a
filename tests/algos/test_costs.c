/* test_costs.c - measured times: read from a CSV, looked up between and beyond what was measured. */
#include <math.h>
#include <stdio.h>

#include "algos/costs.h"
#include "tests/base/expect.h"

static const char head[] = "allreduce,workers,transport,bytes,in_place,time_us,refused\n";

static struct costs parse(const char *rows)
{
    char text[2000];
    struct costs costs;
    (void)snprintf(text, sizeof text, "%s%s", head, rows);
    EXPECT_OK(costs_parse(text, "costs.csv", &costs));
    return costs;
}

static void expect_fault(const char *text, const char *fragment)
{
    struct costs costs;
    EXPECT_FAIL(STATUS_FORMAT, fragment, costs_parse(text, "costs.csv", &costs));
    cr_expect_null(costs.curve);
}

static void expect_near(double found, double wanted)
{
    cr_expect(fabs(found - wanted) <= 1e-12 * wanted, "%g instead of %g", found, wanted);
}

Test(costs, least_time_of_each_size_in_ascending_order)
{
    struct costs costs = parse("ring,2,shm,1024,false,30,\n"
                               "ring,2,shm,64,false,5,\n"
                               "ring,2,shm,1024,true,20,\n"
                               "\"hierarchical:group=2,inter=naive\",4,shm,64,true,7.5,\n"
                               "rhd,3,shm,0,false,,\"it can't, really\"\n");
    cr_assert_eq(costs.count, 2);
    cr_assert_eq(costs.curve[0].count, 2);
    cr_expect_str_eq(costs.curve[0].spec, "ring");
    cr_expect_eq(costs.curve[0].workers, 2);
    cr_expect_eq(costs.curve[0].point[0].bytes, 64);
    expect_near(costs.curve[0].point[1].seconds, 20e-6);
    cr_expect_str_eq(costs.curve[1].spec, "hierarchical:group=2,inter=naive");
    costs_release(&costs);
}

Test(costs, columns_are_found_by_name_and_heads_may_be_repeated)
{
    struct costs costs;
    EXPECT_OK(costs_parse("time_us,bytes,workers,allreduce\n3,8,2,ring\ntime_us,bytes,workers,allreduce\n4,16,2,ring\n",
                          "costs.csv", &costs));
    cr_assert_eq(costs.count, 1);
    cr_expect_eq(costs.curve[0].count, 2);
    costs_release(&costs);
}

Test(costs, between_sizes_logarithms_are_linear)
{
    struct costs costs = parse("ring,2,shm,0,false,1,\nring,2,shm,100,false,2,\nring,2,shm,10000,false,50,\n");
    const struct cost_curve *curve = &costs.curve[0];
    expect_near(cost_curve_seconds(curve, 0), 1e-6);
    expect_near(cost_curve_seconds(curve, 50), 2e-6);
    expect_near(cost_curve_seconds(curve, 100), 2e-6);
    expect_near(cost_curve_seconds(curve, 1000), 10e-6); /* the geometric mean of both */
    expect_near(cost_curve_seconds(curve, 10000), 50e-6);
    expect_near(cost_curve_seconds(curve, 40000), 200e-6);
    costs_release(&costs);
}

Test(costs, a_single_size_grows_in_proportion)
{
    struct costs costs = parse("ring,2,shm,100,false,2,\nnaive,2,shm,0,false,3,\n");
    expect_near(cost_curve_seconds(&costs.curve[0], 8), 2e-6);
    expect_near(cost_curve_seconds(&costs.curve[0], 300), 6e-6);
    expect_near(cost_curve_seconds(&costs.curve[1], 1000), 3e-6); /* a time of nothing tells no more */
    costs_release(&costs);
}

Test(costs, the_nearest_worker_count_is_one_by_ratio)
{
    struct costs costs = parse("ring,16,shm,8,false,1,\nring,2,shm,8,false,1,\nring,4,shm,8,false,1,\n");
    static const int asked[][2] = {{1, 2}, {2, 2}, {3, 4}, {4, 4}, {7, 4}, {8, 4}, {9, 16}, {1000, 16}};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++)
        cr_expect_eq(costs_nearest_workers(&costs, asked[i][0]), asked[i][1], "%d: %d", asked[i][0],
                     costs_nearest_workers(&costs, asked[i][0]));
    costs_release(&costs);
}

Test(costs, faults_are_named_with_their_line)
{
    expect_fault("", "costs.csv:1: the column allreduce");
    expect_fault("allreduce,workers,bytes\nring,2,8\n", "the column time_us");
    expect_fault("allreduce,workers,bytes,time_us\n", "no row with a time");
    expect_fault("allreduce,workers,bytes,time_us\nring,2,8,\n", "no row with a time");
    expect_fault("allreduce,workers,bytes,time_us\nring,2,8,1\nring,x,8,1\n", "costs.csv:3: workers is \"x\"");
    expect_fault("allreduce,workers,bytes,time_us\nring,0,8,1\n", "workers is \"0\"");
    expect_fault("allreduce,workers,bytes,time_us\nring,2,-8,1\n", "bytes is \"-8\"");
    expect_fault("allreduce,workers,bytes,time_us\nring,2,8,0\n", "time_us is \"0\"");
    expect_fault("allreduce,workers,bytes,time_us\nring,2,8,inf\n", "time_us is \"inf\"");
    expect_fault("allreduce,workers,bytes,time_us\nring,2,8,1us\n", "time_us is \"1us\"");
    expect_fault("allreduce,workers,bytes,time_us\n\"ring,2,8,1\n", "costs.csv:2: a quote");
}
