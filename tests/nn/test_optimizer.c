/* test_optimizer.c - updates against PyTorch's formula. */
#include "nn/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/base/expect.h"

/* Three tensors: the middle one does not decay. */
enum { FIRST = 37, MIDDLE = 5, LAST = 20, ALL = FIRST + MIDDLE + LAST };
static struct tensor tensors[] = {
    {.name = "a.weight", .layer = 0, .offset = 0, .count = FIRST, .decays = true},
    {.name = "a.bias", .layer = 0, .offset = FIRST, .count = MIDDLE, .decays = false},
    {.name = "b.weight", .layer = 1, .offset = FIRST + MIDDLE, .count = LAST, .decays = true},
};
static struct layer layers[] = {{.kind = LAYER_CONV}, {.kind = LAYER_LINEAR}};
static const struct model model = {.layer = layers, .layers = 2, .tensor = tensors, .tensors = 3, .parameters = ALL};

static void make(float *values, double phase)
{
    for (int i = 0; i < ALL; i++)
        values[i] = (float)sin(phase + i);
}

static bool finite_step(struct optimizer *optimizer, double rate, const float *g, float *w)
{
    bool finite = true, all = true;
    EXPECT_OK(optimizer_step(optimizer, rate, g, w, &finite));
    EXPECT_OK(optimizer_finite(optimizer, &all));
    cr_expect_eq(finite, all, "it is known at once");
    return finite;
}

Test(update, is_pytorchs)
{
    struct optimizer *optimizer = NULL;
    float w[ALL], g[ALL], wanted[ALL], u[ALL] = {0};
    EXPECT_OK(optimizer_create(&model, &(struct optimizer_settings){.momentum = 0.9, .weight_decay = 0.01}, NULL,
                               &optimizer));
    cr_assert_not_null(optimizer);
    make(w, 0);
    memcpy(wanted, w, sizeof w);
    for (int step = 0; step < 5; step++) {
        float rate = 0.1F / (float)(step + 1);
        make(g, step + 1);
        for (int i = 0; i < ALL; i++) {
            float decay = i >= FIRST && i < FIRST + MIDDLE ? 0.0F : 0.01F;
            u[i] = 0.9F * u[i] + (g[i] + decay * wanted[i]);
            wanted[i] = wanted[i] - rate * u[i];
        }
        cr_expect(finite_step(optimizer, (double)rate, g, w));
        for (int i = 0; i < ALL; i++)
            cr_expect_float_eq(w[i], wanted[i], 1e-6);
    }
    optimizer_destroy(optimizer);
}

Test(update, decays_weights_only)
{
    struct optimizer *optimizer = NULL;
    float w[ALL], g[ALL] = {0};
    EXPECT_OK(
        optimizer_create(&model, &(struct optimizer_settings){.momentum = 0.9, .weight_decay = 0.5}, NULL, &optimizer));
    cr_assert_not_null(optimizer);
    for (int i = 0; i < ALL; i++)
        w[i] = 1;
    cr_expect(finite_step(optimizer, 0.5, g, w));
    for (int i = 0; i < ALL; i++)
        cr_expect_eq(w[i], i >= FIRST && i < FIRST + MIDDLE ? 1.0F : 0.75F);
    optimizer_destroy(optimizer);
}

Test(update, notices_what_is_not_finite_wherever_it_is)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int at = 0; at < ALL; at++) {
        struct optimizer *optimizer = NULL;
        float w[ALL], g[ALL];
        make(w, 0);
        make(g, 1);
        g[at] = bad[at % 3];
        EXPECT_OK(optimizer_create(&model, &(struct optimizer_settings){.momentum = 0.9, .weight_decay = 0.0}, NULL,
                                   &optimizer));
        cr_assert_not_null(optimizer);
        cr_expect_not(finite_step(optimizer, 0.1, g, w), "at %d", at);
        optimizer_destroy(optimizer);
    }
}

Test(update, large_gradients_are_finite)
{
    struct optimizer *optimizer = NULL;
    float w[ALL], g[ALL];
    make(w, 0);
    for (int i = 0; i < ALL; i++)
        g[i] = 3e38F;
    EXPECT_OK(
        optimizer_create(&model, &(struct optimizer_settings){.momentum = 0.0, .weight_decay = 0.0}, NULL, &optimizer));
    cr_assert_not_null(optimizer);
    cr_expect(finite_step(optimizer, 0.1, g, w));
    optimizer_destroy(optimizer);
}

/* ---- rules, decays and clipping, each step against its formula in double precision ---- */

enum { STEPS = 6 };

struct oracle {
    double w[ALL], u[ALL];
};

static bool is_middle(int i)
{
    return i >= FIRST && i < FIRST + MIDDLE;
}

static double norm(const double *values, int from, int to)
{
    double sum = 0;
    for (int i = from; i < to; i++)
        sum += values[i] * values[i];
    return sqrt(sum);
}

static void oracle_step(struct oracle *oracle, const struct optimizer_settings *by, double rate, const float *gradient)
{
    double g[ALL], scale = 1;
    for (int i = 0; i < ALL; i++)
        g[i] = (double)gradient[i];
    if (by->clip > 0 && norm(g, 0, ALL) > by->clip)
        scale = by->clip / norm(g, 0, ALL);
    for (int i = 0; i < ALL; i++) {
        const int from = i < FIRST ? 0 : i < FIRST + MIDDLE ? FIRST : FIRST + MIDDLE;
        const int to = i < FIRST ? FIRST : i < FIRST + MIDDLE ? FIRST + MIDDLE : ALL;
        const double d = is_middle(i) ? by->bias_decay : by->weight_decay;
        g[i] = scale * (double)gradient[i];
        if (by->rule == UPDATE_LARS && i == from && !is_middle(i)) { /* norms of the tensor before it changes */
            for (int k = from; k < to; k++)
                g[k] = scale * (double)gradient[k];
            const double of_w = norm(oracle->w, from, to), of_g = norm(g, from, to);
            const double local = 0.001 * of_w / (of_g + d * of_w);
            for (int k = from; k < to; k++) {
                oracle->u[k] = by->momentum * oracle->u[k] + rate * local * (g[k] + d * oracle->w[k]);
                oracle->w[k] -= oracle->u[k];
            }
        }
        if (by->rule == UPDATE_LARS && !is_middle(i))
            continue;
        const double decayed = g[i] + d * oracle->w[i];
        if (by->rule == UPDATE_LARS) {
            oracle->u[i] = by->momentum * oracle->u[i] + rate * decayed;
            oracle->w[i] -= oracle->u[i];
            continue;
        }
        oracle->u[i] = by->momentum * oracle->u[i] + decayed;
        oracle->w[i] -= rate * (by->rule == UPDATE_NESTEROV ? decayed + by->momentum * oracle->u[i] : oracle->u[i]);
    }
}

static void expect_formula(const struct optimizer_settings *by)
{
    struct optimizer *optimizer = NULL;
    struct oracle oracle = {.u = {0}};
    float w[ALL], g[ALL];
    EXPECT_OK(optimizer_create(&model, by, NULL, &optimizer));
    cr_assert_not_null(optimizer);
    make(w, 0);
    for (int i = 0; i < ALL; i++)
        oracle.w[i] = (double)w[i];
    for (int step = 0; step < STEPS; step++) {
        const double rate = 0.5 / (step + 1); /* changes, so that what holds it in u is told from what does not */
        make(g, step + 1);
        oracle_step(&oracle, by, rate, g);
        cr_expect(finite_step(optimizer, rate, g, w));
        for (int i = 0; i < ALL; i++)
            cr_expect_float_eq((double)w[i], oracle.w[i], 2e-6, "%s, step %d, element %d: %.9g, not %.9g",
                               update_rule_name(by->rule), step, i, (double)w[i], oracle.w[i]);
    }
    optimizer_destroy(optimizer);
}

Test(rules, are_their_formulas)
{
    static const enum update_rule rules[] = {UPDATE_SGD, UPDATE_NESTEROV, UPDATE_LARS};
    for (size_t k = 0; k < sizeof rules / sizeof rules[0]; k++) {
        struct optimizer_settings by = {.rule = rules[k], .momentum = 0.9, .weight_decay = 0.01};
        expect_formula(&by);
        by.bias_decay = 0.02;
        by.norm_decay = 0.5; /* there is none */
        expect_formula(&by);
        by.clip = 2;
        expect_formula(&by);
    }
}

/* By tensors from the end, or several at once: not a bit differs; and what is not finite is noticed in its part. */
Test(rules, parts_are_the_whole)
{
    static const enum update_rule rules[] = {UPDATE_SGD, UPDATE_NESTEROV, UPDATE_LARS};
    static const size_t cuts[][4] = {{ALL, FIRST + MIDDLE, FIRST, 0}, {ALL, FIRST, 0, 0}, {ALL, 0, 0, 0}};
    for (size_t k = 0; k < 9; k++) {
        const struct optimizer_settings by = {
            .rule = rules[k % 3], .momentum = 0.9, .weight_decay = 0.01, .bias_decay = 0.02};
        struct optimizer *whole = NULL, *parts = NULL;
        float w[ALL], by_parts[ALL], g[ALL];
        bool finite = true;
        EXPECT_OK(optimizer_create(&model, &by, NULL, &whole));
        EXPECT_OK(optimizer_create(&model, &by, NULL, &parts));
        cr_assert(whole != NULL && parts != NULL);
        cr_assert(optimizer_takes_parts(parts));
        make(w, 0.5);
        memcpy(by_parts, w, sizeof w);
        for (int step = 0; step < 4; step++) {
            const size_t *cut = cuts[k / 3];
            make(g, step);
            cr_expect(finite_step(whole, 0.1, g, w));
            for (; cut[0] > 0; cut++)
                EXPECT_OK(optimizer_step_part(parts, 0.1, cut[1], cut[0] - cut[1], g, by_parts, &finite));
            cr_expect(finite);
            cr_expect_arr_eq(w, by_parts, sizeof w, "%s, step %d", update_rule_name(by.rule), step);
        }
        g[FIRST + 1] = NAN;
        EXPECT_OK(optimizer_step_part(parts, 0.1, FIRST + MIDDLE, LAST, g, by_parts, &finite));
        cr_expect(finite);
        EXPECT_OK(optimizer_step_part(parts, 0.1, FIRST, MIDDLE, g, by_parts, &finite));
        cr_expect_not(finite);
        optimizer_destroy(whole);
        optimizer_destroy(parts);
    }
}

/* A tensor that is cut and one that is not. */
enum { LONG = 131101, SHORT = 19 };
static struct tensor uneven_tensors[] = {{.layer = 0, .offset = 0, .count = LONG, .decays = true},
                                         {.layer = 1, .offset = LONG, .count = SHORT, .decays = false}};
static const struct model uneven = {
    .layer = layers, .layers = 2, .tensor = uneven_tensors, .tensors = 2, .parameters = LONG + SHORT};
static float uneven_gradient[LONG + SHORT], uneven_weights[2][LONG + SHORT];

static void step_by_threads(struct optimizer_settings by, int threads, bool finite, float *w)
{
    struct optimizer *optimizer = NULL;
    by.threads = threads;
    EXPECT_OK(optimizer_create(&uneven, &by, NULL, &optimizer));
    cr_assert_not_null(optimizer);
    for (int i = 0; i < LONG + SHORT; i++)
        w[i] = (float)(i % 1000) / 8;
    for (int step = 0; step < 2; step++)
        cr_expect_eq(finite_step(optimizer, 0.1, uneven_gradient, w), finite);
    optimizer_destroy(optimizer);
}

Test(rules, the_number_of_threads_changes_no_bit)
{
    static const int threads[] = {1, 2, 3, 5, 7, 64};
    for (int i = 0; i < LONG + SHORT; i++)
        uneven_gradient[i] = (float)sin(i);
    for (enum update_rule rule = UPDATE_SGD; rule <= UPDATE_LARS; rule++) {
        const struct optimizer_settings by = {.rule = rule, .momentum = 0.9, .weight_decay = 0.01};
        step_by_threads(by, 0, true, uneven_weights[0]);
        for (size_t k = 0; k < sizeof threads / sizeof threads[0]; k++) {
            step_by_threads(by, threads[k], true, uneven_weights[1]);
            cr_expect_arr_eq(uneven_weights[1], uneven_weights[0], sizeof uneven_weights[0], "%d threads", threads[k]);
        }
    }
    for (int i = 0; i < LONG + SHORT; i += LONG / 5) { /* in each slice */
        const float kept = uneven_gradient[i];
        uneven_gradient[i] = NAN;
        step_by_threads((struct optimizer_settings){.momentum = 0.9}, 5, false, uneven_weights[1]);
        uneven_gradient[i] = kept;
    }
}

/* The norm of the whole gradient comes first. */
Test(rules, clipping_takes_no_parts)
{
    const struct optimizer_settings by = {.momentum = 0.9, .clip = 1};
    struct optimizer *optimizer = NULL;
    float w[ALL] = {0}, g[ALL] = {0};
    bool finite = true;
    EXPECT_OK(optimizer_create(&model, &by, NULL, &optimizer));
    cr_assert_not_null(optimizer);
    cr_expect_not(optimizer_takes_parts(optimizer));
    EXPECT_FAIL(STATUS_INTERNAL, "by parts", optimizer_step_part(optimizer, 0.1, 0, FIRST, g, w, &finite));
    optimizer_destroy(optimizer);
}

Test(rules, lars_of_nothing_is_plain)
{
    const struct optimizer_settings by = {.rule = UPDATE_LARS, .momentum = 0.9, .weight_decay = 0.01};
    struct optimizer *optimizer = NULL;
    float w[ALL] = {0}, g[ALL];
    EXPECT_OK(optimizer_create(&model, &by, NULL, &optimizer));
    cr_assert_not_null(optimizer);
    for (int i = 0; i < ALL; i++)
        g[i] = 1;
    cr_expect(finite_step(optimizer, 0.5, g, w));
    for (int i = 0; i < ALL; i++)
        cr_expect_eq(w[i], -0.5F, "the norm of the weights is 0: local = 1");
    optimizer_destroy(optimizer);
}

/* Clipping is by the norm of all tensors together, and leaves smaller gradients their bits. */
Test(rules, clipping_changes_only_what_is_too_large)
{
    static const double clips[] = {0, 1e6, 0.5};
    float w[3][ALL], g[ALL];
    make(g, 1);
    for (int k = 0; k < 3; k++) {
        struct optimizer *optimizer = NULL;
        EXPECT_OK(optimizer_create(&model, &(struct optimizer_settings){.clip = clips[k]}, NULL, &optimizer));
        cr_assert_not_null(optimizer);
        memset(w[k], 0, sizeof w[k]);
        cr_expect(finite_step(optimizer, 1, g, w[k]));
        optimizer_destroy(optimizer);
    }
    cr_expect_arr_eq(w[0], w[1], sizeof w[0]);
    double square = 0;
    for (int i = 0; i < ALL; i++)
        square += (double)w[2][i] * (double)w[2][i];
    cr_expect_float_eq(sqrt(square), 0.5, 1e-6);
}

Test(rules, norms_biases_and_weights_decay_by_their_own)
{
    struct model *net = NULL;
    struct optimizer *optimizer = NULL;
    EXPECT_OK(model_create("cnn", 10, 8, &net));
    cr_assert_not_null(net);
    float *w = calloc(net->parameters, sizeof *w), *g = calloc(net->parameters, sizeof *g);
    cr_assert(w != NULL && g != NULL);
    for (size_t i = 0; i < net->parameters; i++)
        w[i] = 1;
    const struct optimizer_settings by = {.weight_decay = 0.5, .norm_decay = 0.25, .bias_decay = 0.125};
    EXPECT_OK(optimizer_create(net, &by, NULL, &optimizer));
    cr_expect(finite_step(optimizer, 1, g, w));
    for (int t = 0; t < net->tensors; t++) {
        const struct tensor *tensor = &net->tensor[t];
        const bool of_norm = strstr(tensor->name, "bn") != NULL;
        const float left = of_norm ? 0.75F : strcmp(tensor->name, "fc.bias") == 0 ? 0.875F : 0.5F;
        for (size_t i = 0; i < tensor->count; i++)
            cr_expect_eq(w[tensor->offset + i], left, "%s", tensor->name);
    }
    optimizer_destroy(optimizer);
    model_destroy(net);
    free(w);
    free(g);
}

Test(rules, what_a_device_does_not_do_is_refused)
{
    const struct optimizer_device on = {.device = NULL};
    struct optimizer *optimizer = NULL;
    const struct optimizer_settings clips = {.clip = 1};
    EXPECT_FAIL(STATUS_REFUSED, "clip", optimizer_create(&model, &clips, &on, &optimizer));
    cr_expect_null(optimizer);
}
