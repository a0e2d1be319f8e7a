/* support_kernels.h - for tests of the kernels: memory that tells who leaves it, data, comparisons, thread orders. */
#ifndef CHORALE_TESTS_NN_CUDA_SUPPORT_KERNELS_H
#define CHORALE_TESTS_NN_CUDA_SUPPORT_KERNELS_H

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nn/cuda/kernels.h"
#include "shim.h"

#define DONE(expression) cr_assert_eq((expression), 0)
#define REFUSED(expression) cr_assert_eq((expression), CUDA_BAD_ARGUMENT)
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* NOLINTBEGIN(bugprone-macro-parentheses): the arguments are names of variables */

/* Each test body runs in these orders of threads and blocks. */
extern const unsigned orders[4];
#define EACH_ORDER(order)                                                                                              \
    for (const unsigned *order = orders; order < orders + COUNT_OF(orders) && (shim_set_order(*order), true); order++)

extern const enum dtype storages[3];
#define EACH_STORAGE(type) for (const enum dtype *type = storages; type < storages + COUNT_OF(storages); type++)

/* NOLINTEND(bugprone-macro-parentheses) */

/* `bytes` at a multiple of 16, full of NaN, directly before a page that can't be touched, after another one. */
void *device(size_t bytes);
/* Fails when something was written between the end of a device() and that page; releases them all. */
void devices_release(void);

/* Numbers in [-1, 1), by index and seed. */
float number(uint64_t seed, size_t i);

/* A device array of a storage type from f32, and back. */
void *device_storage(enum dtype type, const float *values, size_t count);
float *device_f32(const float *values, size_t count);
float storage_at(enum dtype type, const void *array, size_t i);
float storage_round(enum dtype type, float value);
/* Half of the last place, relative: 2^-8 for bf16 */
double storage_epsilon(enum dtype type);

/* |got - want| <= relative |want| + absolute, or both NaN. `what` and i are told. */
void expect_near(double got, double want, double relative, double absolute, const char *what, size_t i);

/* Results must have the same bits in every order: keeps those of the first call, compares those of later ones. */
struct first_bits {
    void *bits;
};
void expect_same_bits(struct first_bits *first, const void *got, size_t bytes, const char *what);
void first_bits_release(struct first_bits *first);

#endif
