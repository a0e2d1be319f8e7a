/* support_golden.h - reads the files that golden.py wrote, and makes the same inputs as it did. */
#ifndef CHORALE_TESTS_NN_SUPPORT_GOLDEN_H
#define CHORALE_TESTS_NN_SUPPORT_GOLDEN_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Seeds of the formula, as in golden.py; parameter tensor t has SEED_PARAMETER + t. */
enum { SEED_INPUT = 1, SEED_GRADIENT = 2, SEED_PROBE = 3, SEED_PARAMETER = 100 };

double formula(uint64_t seed, uint64_t index); /* [-1, 1), exact in single precision */
void formula_fill(uint64_t seed, double scale, double shift, float *values, size_t count); /* shift + scale * formula */

/* What is known of a tensor: its norm, its product with formula(SEED_PROBE), every step-th element. */
struct golden {
    char name[32];
    size_t count, step;
    double l2, probe;
    double sample[256];
};

FILE *golden_open(const char *name); /* tests/nn/golden/NAME; ends the test if it can't be read */
void golden_read(FILE *file, const char *name, struct golden *golden); /* the next tensor, which must be `name` */

/* The largest of three relative differences: of the samples (L2), of the norm, of the probe. */
double golden_difference(const struct golden *golden, const float *values);

#endif
