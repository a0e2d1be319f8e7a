/* windows.h - the windows of a convolution as columns (im2col), in the folded layout.
 *
 * On small images the library's 3x3 kernels are slow or missing, while its 1x1 kernels on a folded value reach the
 * machine's peak: so a k x k convolution is run as a 1x1 convolution of k*k*I channels over these columns. The
 * channels of the columns are (kh, kw, I).
 */
#ifndef CHORALE_NN_CPU_WINDOWS_H
#define CHORALE_NN_CPU_WINDOWS_H

#include <stddef.h>

#include "base/status.h"
#include "nn/cpu/value.h"

struct windows {
    const struct value *source; /* blocked or folded (N, I, H, W) */
    size_t kernel, stride, padding, out_height, out_width;
    int threads;
};

size_t windows_count(const struct windows *windows); /* floats of the columns */
/* columns [k*k*I/b][N*OH*OW][b] */
void windows_gather(const struct windows *windows, const float *source, float *columns);
/* The adjoint: source_gradient (layout of `source`) = sums of the columns' gradients. */
void windows_scatter(const struct windows *windows, const float *columns, float *source_gradient);

/* (O, I, kh, kw) <-> (O, kh, kw, I) */
void windows_weights(const float *canonical, size_t out, size_t in, size_t taps, float *by_tap);
void windows_weights_back(const float *by_tap, size_t out, size_t in, size_t taps, float *canonical);

#endif
