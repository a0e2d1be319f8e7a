/* test_strategies.c - step plans, and the schedules that strategies exchange with. */
#include <criterion/criterion.h>
#include <string.h>

#include "algos/explain.h"
#include "algos/spec.h"

static struct step_plan plan_of(const char *text, uint64_t step)
{
    struct spec spec;
    struct step_plan plan;
    cr_assert_eq(spec_parse(text, &spec), STATUS_OK, "%s", status_message());
    cr_assert_eq(spec_plan(&spec, step, &plan), STATUS_OK, "%s", status_message());
    spec_release(&spec);
    return plan;
}

static void expect_plan(const char *text, uint64_t step, struct step_plan wanted)
{
    const struct step_plan plan = plan_of(text, step);
    cr_assert_eq(plan.exchanges, wanted.exchanges, "%s step %d", text, (int)step);
    cr_assert_eq(plan.exchange.object, wanted.exchange.object, "%s step %d", text, (int)step);
    cr_assert_eq(plan.exchange.start, wanted.exchange.start, "%s step %d", text, (int)step);
    cr_assert_eq(plan.exchange.wait_steps, wanted.exchange.wait_steps, "%s step %d", text, (int)step);
    cr_assert_eq(plan.updates, wanted.updates, "%s step %d", text, (int)step);
    cr_assert_eq(plan.gradient_age, wanted.gradient_age, "%s step %d", text, (int)step);
}

static const struct step_plan synchronous = {
    .exchanges = true, .exchange = {EXCHANGE_GRADIENT, START_AFTER_BACKWARD, 0}, .updates = true, .gradient_age = 0};

Test(synchronous, applies_the_mean_of_this_step)
{
    for (uint64_t step = 0; step < 3; step++) {
        expect_plan("synchronous", step, synchronous);
        expect_plan("synchronous:inner=rhd", step, synchronous);
        expect_plan("rhd", step, synchronous); /* what a plain schedule means */
    }
}

Test(double_buffered, waits_a_step_and_updates_nothing_in_step_0)
{
    struct step_plan wanted = {.exchanges = true,
                               .exchange = {EXCHANGE_GRADIENT, START_AFTER_BACKWARD, 1},
                               .updates = false,
                               .gradient_age = 1};
    expect_plan("double-buffered", 0, wanted);
    wanted.updates = true;
    for (uint64_t step = 1; step < 4; step++)
        expect_plan("double-buffered", step, wanted);
}

/* Following the plan with numbers: each update uses the mean that was started the step before, and one is left over. */
Test(double_buffered, is_w_next_equals_w_minus_lr_g_of_the_w_before)
{
    const double rate = 0.25, a = 3;
    double w = 1, before = 0, in_flight = 0, expected[12], reference = 1;
    int waiting = 0;
    for (int k = 0; k < 12; k++) {
        const struct step_plan plan = plan_of("double-buffered", (uint64_t)k);
        const double gradient = a * w;
        if (plan.updates)
            w -= rate * in_flight;
        waiting -= plan.updates;
        in_flight = gradient;
        waiting += plan.exchanges;
        expected[k] = reference;
        if (k > 0)
            reference -= rate * a * before;
        before = expected[k];
        cr_assert_eq(w, reference, "step %d", k);
        cr_assert_eq(waiting, 1);
    }
}

Test(gossip, mixes_parameters_after_the_local_update)
{
    const struct step_plan wanted = {
        .exchanges = true, .exchange = {EXCHANGE_PARAMETER, START_AFTER_UPDATE, 0}, .updates = true, .gradient_age = 0};
    for (uint64_t step = 0; step < 4; step++) {
        expect_plan("gossip", step, wanted);
        expect_plan("gossip:graph=ring,weights=metropolis", step, wanted);
    }
}

static struct shape *shape_of(const char *text, int workers, uint64_t step)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape;
    cr_assert_eq(spec_parse(text, &spec), STATUS_OK, "%s", status_message());
    cr_assert_eq(layout_groups(workers, 2, &layout), STATUS_OK);
    cr_assert_eq(spec_shape(&spec, &layout, step, 100, &shape), STATUS_OK, "%s", status_message());
    layout_release(&layout);
    spec_release(&spec);
    return shape;
}

Test(strategies, exchange_with_their_inner_schedule)
{
    static const struct {
        const char *text, *algorithm;
    } cases[] = {{"synchronous", "ring"},
                 {"double-buffered:inner=rhd", "recursive-halving-doubling"},
                 {"double-buffered:inner=[hierarchical:inter=rd]", "hierarchical"},
                 {"gossip", "mixing"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct shape *shape = shape_of(cases[i].text, 6, 3);
        cr_assert_str_eq(shape->algorithm->name, cases[i].algorithm);
        shape_destroy(shape);
    }
}

static uint64_t period_of(const char *text, int workers)
{
    struct spec spec;
    struct layout layout;
    uint64_t period = 0;
    cr_assert_eq(spec_parse(text, &spec), STATUS_OK);
    cr_assert_eq(layout_flat(workers, &layout), STATUS_OK);
    cr_assert_eq(spec_period(&spec, &layout, &period), STATUS_OK);
    layout_release(&layout);
    spec_release(&spec);
    return period;
}

Test(strategies, periods_are_those_of_their_schedules)
{
    cr_assert_eq(period_of("ring", 8), 1);
    cr_assert_eq(period_of("db", 8), 1);
    cr_assert_eq(period_of("gossip:graph=ring", 8), 1);
    cr_assert_eq(period_of("gossip", 8), 3);
    cr_assert_eq(period_of("gossip", 9), 4);
}

/* ---- what explain says ---- */

static void expect_words(const char *text, int workers, const char *const *parts)
{
    struct spec spec;
    struct layout layout;
    struct text words = {0};
    const struct cost_model model = {.latency_s = 1e-6, .seconds_per_byte = 1e-9};
    cr_assert_eq(spec_parse(text, &spec), STATUS_OK);
    cr_assert_eq(layout_flat(workers, &layout), STATUS_OK);
    cr_assert_eq(explain_spec(&spec, &layout, 600, 4, &model, &words), STATUS_OK, "%s", status_message());
    for (; *parts != NULL; parts++)
        cr_assert_not_null(strstr(text_string(&words), *parts), "\"%s\" is not in:\n%s", *parts, text_string(&words));
    text_release(&words);
    layout_release(&layout);
    spec_release(&spec);
}

Test(explain, shows_totals_and_a_picture)
{
    expect_words("rhd", 6,
                 (const char *const[]){"recursive-halving-doubling\n", "rounds       6 (3 reduce, 3 spread)\n",
                                       "S>4[2+2] RR<4[0+2]", "S>3[1+1] RR<3[0+1]*", "6000 B in 5 messages", NULL});
    expect_words("ring", 6, (const char *const[]){"4000 B in 10 messages", "closed form  14 us\n", NULL});
    expect_words("db:inner=ring", 2, (const char *const[]){"1 step later", "the step before", NULL});
    expect_words("gossip", 8,
                 (const char *const[]){"degree       1\n", "period       3\n", "exact after  3\n", "x0.5", NULL});
    expect_words("gossip:graph=ring", 8, (const char *const[]){"gap          0.195262", "exact after  never\n", NULL});
    expect_words("none", 1, (const char *const[]){"rounds       0\n", NULL});
}

Test(explain, totals_are_maxima_over_workers)
{
    struct shape *shape = shape_of("naive", 5, 0);
    struct explain_totals totals;
    cr_assert_eq(explain_totals(shape, 10, 4, NULL, &totals), STATUS_OK);
    cr_assert_eq(totals.max_messages, 4);
    cr_assert_eq(totals.max_bytes, 160);
    cr_assert_eq(totals.total_bytes, 320);
    cr_assert(totals.seconds != totals.seconds, "no model, no closed form");
    shape_destroy(shape);
}
