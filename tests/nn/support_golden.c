#include "support_golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double formula(uint64_t seed, uint64_t index)
{
    uint64_t z = (seed << 32) + index + UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    z ^= z >> 31;
    return (double)(z >> 40) / 8388608.0 - 1.0;
}

void formula_fill(uint64_t seed, double scale, double shift, float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(shift + scale * formula(seed, i));
}

/* Criterion reports an abort with the test's name. */
static void stop(const char *what, const char *name)
{
    fprintf(stderr, "golden: %s: %s\n", what, name);
    abort();
}

FILE *golden_open(const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/tests/nn/golden/%s", CHORALE_SOURCE_DIR, name);
    FILE *file = fopen(path, "r");
    if (!file)
        stop("can't read", path);
    return file;
}

void golden_read(FILE *file, const char *name, struct golden *golden)
{
    if (fscanf(file, " tensor %31s count=%zu step=%zu l2=%lf probe=%lf", golden->name, &golden->count, &golden->step,
               &golden->l2, &golden->probe) != 5 ||
        strcmp(golden->name, name) != 0 || golden->step == 0)
        stop("not the tensor that should come next", name);
    size_t samples = (golden->count + golden->step - 1) / golden->step;
    if (samples > sizeof golden->sample / sizeof golden->sample[0])
        stop("too many samples", name);
    for (size_t k = 0; k < samples; k++) {
        if (fscanf(file, "%lf", &golden->sample[k]) != 1)
            stop("too few samples", name);
    }
}

static double larger(double a, double b)
{
    return a > b || isnan(a) ? a : b;
}

double golden_difference(const struct golden *golden, const float *values)
{
    double wrong = 0, of_samples = 0, square = 0, probe = 0;
    for (size_t i = 0; i < golden->count; i++) {
        double value = (double)values[i];
        square += value * value;
        probe += value * formula(SEED_PROBE, i);
        if (i % golden->step == 0) {
            double expected = golden->sample[i / golden->step];
            wrong += (value - expected) * (value - expected);
            of_samples += expected * expected;
        }
    }
    double by_norm = fabs(sqrt(square) - golden->l2) / golden->l2, by_probe = fabs(probe - golden->probe) / golden->l2;
    return larger(sqrt(wrong / of_samples), larger(by_norm, by_probe));
}
