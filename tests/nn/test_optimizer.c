/* test_optimizer.c - updates against PyTorch's formula. */
#include "nn/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/base/expect.h"

/* Three tensors: the middle one does not decay. */
enum { FIRST = 37, MIDDLE = 5, LAST = 20, ALL = FIRST + MIDDLE + LAST };
static struct tensor tensors[] = {
    {.name = "a.weight", .offset = 0, .count = FIRST, .decays = true},
    {.name = "b.weight", .offset = FIRST, .count = MIDDLE, .decays = false},
    {.name = "c.weight", .offset = FIRST + MIDDLE, .count = LAST, .decays = true},
};
static const struct model model = {.tensor = tensors, .tensors = 3, .parameters = ALL};

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
    EXPECT_OK(optimizer_create(&model, 0.9, 0.01, NULL, &optimizer));
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
    EXPECT_OK(optimizer_create(&model, 0.9, 0.5, NULL, &optimizer));
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
        EXPECT_OK(optimizer_create(&model, 0.9, 0.0, NULL, &optimizer));
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
    EXPECT_OK(optimizer_create(&model, 0.0, 0.0, NULL, &optimizer));
    cr_assert_not_null(optimizer);
    cr_expect(finite_step(optimizer, 0.1, g, w));
    optimizer_destroy(optimizer);
}
