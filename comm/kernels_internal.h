/* kernels_internal.h - one set of kernels per instruction set; kernels.c chooses. */
#ifndef CHORALE_COMM_KERNELS_INTERNAL_H
#define CHORALE_COMM_KERNELS_INTERNAL_H

#include <stddef.h>

#include "base/dtype.h"

#define REAL_DTYPES 2 /* DTYPE_F32 and DTYPE_F64 come first */
#define WIDE_DTYPES 4 /* then the integers, then the halves */

typedef void combine_kernel(void *out, const void *a, const void *b, size_t count);
typedef void average_kernel(void *out, const void *a, const void *b, size_t count, double divisor);
typedef void divide_kernel(void *out, const void *a, size_t count, int divisor);
typedef void axpy_kernel(void *out, const void *a, const void *b, double weight, size_t count);
typedef void scale_kernel(void *out, const void *a, double weight, size_t count);

struct kernel_set {
    const char *name;
    combine_kernel *sum[DTYPE_COUNT], *min[DTYPE_COUNT], *max[DTYPE_COUNT];
    average_kernel *average[DTYPE_COUNT];
    divide_kernel *divide[WIDE_DTYPES];
    axpy_kernel *axpy[REAL_DTYPES];
    scale_kernel *scale[DTYPE_COUNT]; /* NULL for integers */
};

extern const struct kernel_set kernel_set_plain;
const struct kernel_set *kernels_avx2(void); /* NULL where the processor has no AVX2 */

#endif
