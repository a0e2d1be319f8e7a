/* windows.h - the windows of a convolution as columns (im2col).
 *
 * The library's 1x1 kernels reach the machine's peak in all directions where its 3x3 kernels are slow (gradients of the
 * weights, small images) or missing. So a k x k convolution may run as a 1x1 convolution of I*k*k channels over these
 * columns. Block c of the source and tap t are block c*k*k + t of the columns: then the weights lie in memory as those
 * of the k x k convolution do (OIhw8i8o), and each direction of a layer may choose its own way.
 */
#ifndef CHORALE_NN_CPU_WINDOWS_H
#define CHORALE_NN_CPU_WINDOWS_H

#include <stddef.h>

#include "base/status.h"
#include "nn/cpu/value.h"

struct windows {
    const struct value *source; /* blocked or folded (N, I, H, W)                                        */
    struct value columns;       /* (N, I*k*k, OH, OW), in the layout of the convolution's output; no data */
    size_t kernel, stride, padding;
    int threads;
};

/* columns.count may overflow; *count is checked. */
enum status windows_count(const struct windows *windows, size_t *count) MUST_CHECK;
void windows_gather(const struct windows *windows, const float *source, float *columns);
/* The adjoint: source_gradient (layout of `source`) = sums of the columns' gradients. */
void windows_scatter(const struct windows *windows, const float *columns, float *source_gradient);

#endif
