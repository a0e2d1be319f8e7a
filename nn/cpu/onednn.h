/* onednn.h - the only door to oneDNN (2.6): convolutions, matrix products and weight layouts.
 *
 * A later port to oneDNN 3 changes onednn.c and nothing else. Data are f32 in blocks of onednn_block() channels
 * (nChw8c, nChw16c on AVX-512), which is where the library's generated kernels are; a primitive that would be a
 * reference implementation is a failure at creation, never a slow run.
 *
 * Blocks of 8 run with AVX2 (measured on Zen 3). Blocks of 16 are chosen by the same look at the library, but no machine with
 * AVX-512 has run them: batch norm and 3x3 kernels are tested with both on AVX2, pooling and windows are loops over
 * blocks of any size. With AVX or SSE4.1 alone oneDNN 2.6 has reference implementations for some shapes: refused.
 */
#ifndef CHORALE_NN_CPU_ONEDNN_H
#define CHORALE_NN_CPU_ONEDNN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

struct onednn; /* engine and stream */
struct conv;   /* one convolution: forward, backward by weights, backward by data */

enum status onednn_create(struct onednn **library) MUST_CHECK;
void onednn_destroy(struct onednn *library); /* accepts NULL; after every conv made with it */
void onednn_describe(struct text *text);     /* "oneDNN 2.6.3, AVX2" */
int onednn_block(void);                      /* channels of a block: 8 or 16 */

struct conv_shape {
    const char *name; /* of the layer, for messages */
    int batch, in_channels, out_channels;
    int in_height, in_width, out_height, out_width;
    int kernel, stride, padding;
    bool plain_source; /* the source is (N, C, H, W): the images                                         */
    bool columns;      /* the source is (N, I*kernel*kernel, OH, OW): windows.h; in_height, in_width, stride and
                          padding do not matter */
    bool forward, weights_gradient, data_gradient; /* which of the three will be called                   */
};

enum status conv_create(struct onednn *library, const struct conv_shape *shape, struct conv **conv) MUST_CHECK;
void conv_destroy(struct conv *conv); /* accepts NULL */

/* Bytes that the caller lends to every call below: scratchpad, and weights rearranged for backward by data. */
size_t conv_scratch_bytes(const struct conv *conv);
size_t conv_rearranged_bytes(const struct conv *conv);

enum status conv_forward(struct conv *conv, const float *source, const float *weights, float *result,
                         void *scratch) MUST_CHECK;
enum status conv_backward_weights(struct conv *conv, const float *source, const float *result_gradient,
                                  float *weights_gradient, void *scratch) MUST_CHECK;
enum status conv_backward_data(struct conv *conv, const float *result_gradient, const float *weights,
                               float *source_gradient, void *scratch, float *rearranged) MUST_CHECK;

/* Weights between (O, I, kh, kw) and the order that the three calls want. */
enum status conv_weights_to_native(struct conv *conv, const float *canonical, float *native) MUST_CHECK;
enum status conv_weights_to_canonical(struct conv *conv, const float *native, float *canonical) MUST_CHECK;

/* Whether two ways of running a layer want the weights in the same order. */
bool conv_same_order(const struct conv *a, const struct conv *b);

/* C (m, n) = A (m, k) B (k, n) + beta C, row-major; a `transposed` factor is stored as (k, m) or (n, k). */
struct product {
    size_t m, n, k;
    bool a_transposed, b_transposed;
    float beta;
};
enum status onednn_product(const struct product *product, const float *a, const float *b, float *c) MUST_CHECK;

#endif
