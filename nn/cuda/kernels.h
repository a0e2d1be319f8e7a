/* kernels.h - our CUDA kernels, behind functions of C: what lies between convolutions, the update, and collectives.
 *
 * Every function puts its launches into `stream` and returns at once: no allocation, no synchronisation, no default
 * stream. It returns what cudaGetLastError() says of its launches as an int (0 = cudaSuccess; kernels that fail later
 * are seen by later calls, as always), or CUDA_BAD_ARGUMENT, which is cudaErrorInvalidValue. A count of 0 is no error
 * and launches nothing. Any thread may call; calls into one stream run in their order.
 *
 * Pointers are device memory unless said otherwise. Activations and 16-bit copies have a storage type: DTYPE_F32,
 * DTYPE_BF16 or DTYPE_F16; arithmetic and sums are f32, the last stage of a sum over many elements is f64. Activations,
 * working copies, masks and whole arenas start at multiples of 16 bytes (CUDA_BAD_ARGUMENT otherwise); ranges for
 * collectives and single tensors of an arena at any multiple of their element. Nothing else is asked of shapes: any
 * number of channels, of pixels, of images.
 *
 * Activations are NHWC: `rows` = images x height x width rows of `channels` elements.
 * Masks of ReLUs are bits: element e (flat, NHWC) is open when bit e % 8 of byte e / 8 is set; (elements + 7) / 8 bytes.
 * A NaN passes through ReLU and its mask, so that it is seen in the loss.
 *
 * Every result is deterministic: sums are added up in an order that depends on shapes only, not on the card.
 * "Bits of F" is said where the result has the bits of the C function F, whatever the compiler contracts elsewhere;
 * only the payload and sign of a NaN that comes out of an addition or multiplication may differ.
 */
#ifndef CHORALE_NN_CUDA_KERNELS_H
#define CHORALE_NN_CUDA_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

typedef struct CUstream_st *cuda_stream; /* cudaStream_t, without the toolkit's headers */

enum { CUDA_BAD_ARGUMENT = 1 };

/* ---- conversions ---- */

/* to[i] = from[i] rounded to nearest even: f32, f16, bf16 in any combination, f16 <-> bf16 by way of f32. Bits of
 * base/half.h. May not overlap unless the types have one size and to == from. */
int cuda_cast(cuda_stream stream, enum dtype to_type, void *to, enum dtype from_type, const void *from,
              size_t count) MUST_CHECK;

/* What an encoding has done to values, counted as codec_examine() of comm/codec.h does. */
struct cuda_encoded {
    unsigned long long infinite; /* finite values that became infinite           */
    unsigned long long nan;      /* values that are NaN afterwards               */
    unsigned long long flushed;  /* values that were not zero, and are afterwards */
};

/* Wire format: f32 -> `wire` (DTYPE_F16 or DTYPE_BF16), bits of base/half.h. `decoded` (may be `from`, or NULL) gets
 * what the receiver will decode; `encoded` (or NULL) is added to. Decoding is cuda_cast(). */
int cuda_encode(cuda_stream stream, enum dtype wire, void *to, const float *from, size_t count, float *decoded,
                struct cuda_encoded *encoded) MUST_CHECK;

/* *flag = 1 if any element (f32, f16, bf16, f64) is infinite or NaN, else *flag stays. */
int cuda_check_finite(cuda_stream stream, enum dtype dtype, const void *x, size_t count, uint32_t *flag) MUST_CHECK;

/* ---- images ---- */

/* (N, C, H, W) f32 -> (N, H, W, padded) storage; channels C .. padded - 1 become 0. Not contracted: only cast. */
int cuda_images_from_planes(cuda_stream stream, enum dtype storage, void *to, const float *from, int images,
                            int channels, int height, int width, int padded) MUST_CHECK;

/* What of an image is taken, in its pixels: rows top .. top + height, columns left .. left + width. Inside the image. */
struct cuda_crop {
    float top, left, height, width;
    uint32_t flip; /* 1: mirrored left to right */
};

struct cuda_resize {
    const uint8_t *from;                 /* (images, height, width, channels)                                    */
    int images, height, width, channels; /* channels 1 (repeated in all three) or 3              */
    const struct cuda_crop *crops;       /* one an image; NULL: the whole images, not mirrored   */
    float mean[3], deviation[3];         /* host: of values 0 .. 1; (v / 255 - mean) / deviation */
    void *to;                            /* (images, out_height, out_width, padded) storage      */
    int out_height, out_width, padded;   /* padded >= 3                                          */
};

/* Crop, bilinear resize (centres of pixels, as PyTorch's align_corners=False; pixels outside the crop are not read),
 * mirror and normalise in one pass: before rounding to storage, bits of data_canonical() of nn/data.h. No antialiasing:
 * where images shrink a lot, this samples them. */
int cuda_images_resize(cuda_stream stream, enum dtype storage, const struct cuda_resize *resize) MUST_CHECK;

/* ---- batch norm ---- */

struct cuda_norm {
    enum dtype storage;
    size_t rows, channels;
    const void *x;             /* (rows, channels) storage                          */
    const float *gamma, *beta; /* (channels)                                        */
    double epsilon;            /* 1e-5                                              */
    float *mean, *inverse;     /* (channels): of the batch, inverse = 1 / sqrt(variance + epsilon); forward writes,
                                * backward reads them */
    bool relu;                 /* y = max(., 0)                                     */
    void *workspace;           /* cuda_norm_workspace() bytes, free after the call's kernels have run */
};

size_t cuda_norm_workspace(size_t rows, size_t channels); /* bytes, for forward and backward */

struct cuda_norm_forward {
    const void *addend;                     /* (rows, channels) storage, added before the ReLU, or NULL */
    void *y;                                /* may be x or addend                                       */
    uint8_t *mask;                          /* of the ReLU, or NULL                                     */
    float *running_mean, *running_variance; /* (channels), or NULL: (1 - momentum) running + momentum batch's; variance
                                             * by n / (n - 1), where n = 1 as it is */
    double momentum;                        /* 0.1                                                      */
};

/* Training: y = [relu] ((x - mean) inverse gamma + beta [+ addend]). Three launches. Each thread's statistics are
 * Welford's, merged by Chan's formula: a mean that is large against the deviation costs no digits. */
int cuda_norm_forward(cuda_stream stream, const struct cuda_norm *norm,
                      const struct cuda_norm_forward *forward) MUST_CHECK;

/* Evaluation: the same with running_mean, running_variance instead of the batch's (only read); mean, inverse, workspace
 * and momentum are not used. One launch. */
int cuda_norm_infer(cuda_stream stream, const struct cuda_norm *norm,
                    const struct cuda_norm_forward *forward) MUST_CHECK;

struct cuda_norm_backward {
    const void *dy;   /* (rows, channels) storage                                                            */
    const void *more; /* a second gradient of y, added to dy, or NULL                                        */
    /* norm.relu: where the ReLU was open. The first that is not NULL; neither: recomputed from x, not with an addend. */
    const uint8_t *mask;
    const void *y;
    void *dz;              /* gradient of the addend = masked dy + more, or NULL; may be dy or more               */
    void *dx;              /* gradient of x; may be dy or more (but not dz)                                       */
    float *dgamma, *dbeta; /* (channels): overwritten, or added to                                              */
    float scale;           /* of dgamma and dbeta: 1 / loss scale                                                 */
    bool add;              /* dgamma and dbeta are added to                                                       */
};

/* Three launches. */
int cuda_norm_backward(cuda_stream stream, const struct cuda_norm *norm,
                       const struct cuda_norm_backward *backward) MUST_CHECK;

/* ---- additions and ReLU without a batch norm ---- */

/* y = relu(a + b), b may be NULL; mask may be NULL; y may be a or b. */
int cuda_add_relu(cuda_stream stream, enum dtype storage, void *y, const void *a, const void *b, size_t count,
                  uint8_t *mask) MUST_CHECK;
/* dx = open ? dy + more : 0; more may be NULL. Open by mask, else by y, else (both NULL) everywhere. dx may be dy or
 * more. It is the gradient of both summands. */
int cuda_add_relu_backward(cuda_stream stream, enum dtype storage, void *dx, const void *dy, const void *more,
                           const uint8_t *mask, const void *y, size_t count) MUST_CHECK;

/* ---- pooling ---- */

/* Shape of the input; the output of max pooling has (side - 1) / 2 + 1 rows and columns. */
struct cuda_shape {
    int images, height, width, channels;
};

/* 3x3, stride 2, padding 1. which (N, out_height, out_width, C) bytes: number (row * 3 + column of the window) of the
 * first largest input; NaN is larger than everything. */
int cuda_max_pool_forward(cuda_stream stream, enum dtype storage, const struct cuda_shape *shape, const void *x,
                          void *y, uint8_t *which) MUST_CHECK;
/* dx is overwritten. Each input gathers from its windows, in their order. */
int cuda_max_pool_backward(cuda_stream stream, enum dtype storage, const struct cuda_shape *shape, const void *dy,
                           const uint8_t *which, void *dx) MUST_CHECK;
/* Global: (N, H, W, C) -> (N, C), both storage. */
int cuda_average_pool_forward(cuda_stream stream, enum dtype storage, const struct cuda_shape *shape, const void *x,
                              void *y) MUST_CHECK;
int cuda_average_pool_backward(cuda_stream stream, enum dtype storage, const struct cuda_shape *shape, const void *dy,
                               void *dx) MUST_CHECK;

/* ---- the linear layer's bias, and the loss ---- */

/* y[r][o] += bias[o], y (rows, columns) of type `type`. */
int cuda_bias_add(cuda_stream stream, enum dtype type, void *y, const float *bias, size_t rows,
                  size_t columns) MUST_CHECK;
/* gradient[o] (+)= scale * sum over r of dy[r][o]. */
int cuda_bias_gradient(cuda_stream stream, enum dtype type, const void *dy, float *gradient, size_t rows,
                       size_t columns, float scale, bool add) MUST_CHECK;

/* Of one call; an image whose label is not in 0 .. classes - 1 counts in bad_labels only. */
struct cuda_loss {
    double sum; /* of cross-entropies */
    uint32_t top1, top5, bad_labels;
    uint32_t reserved;
};

struct cuda_cross_entropy {
    enum dtype type;       /* of logits and gradient                                                       */
    const void *logits;    /* (rows, classes)                                                              */
    const int32_t *labels; /* (rows)                                                                       */
    size_t rows, classes;
    float smoothing; /* s: the target is 1 - s + s / classes at the label, s / classes elsewhere     */
    float scale;     /* of the gradient: loss scale / batch                                          */
    void *gradient;  /* (rows, classes): (softmax - target) * scale; NULL: not wanted; may be logits */
    float *row_loss; /* (rows)                                                                       */
    uint32_t
        *row_rank; /* (rows): logits ahead of the label's (larger, or equal and before it); UINT32_MAX: bad label */
    struct cuda_loss *loss; /* overwritten                                                                 */
};

int cuda_cross_entropy(cuda_stream stream, const struct cuda_cross_entropy *in) MUST_CHECK;

/* ---- parameters ---- */

#define CUDA_NO_COPY UINT64_MAX

/* A tensor, or several in a row that are alike. A table of them lies in device memory, sorted by offset, without
 * overlap. Elements of the arena that no entry covers are left alone. */
struct cuda_tensor {
    uint64_t offset,
        count;     /* elements of the f32 arenas: parameters, gradients, momentum                               */
    uint64_t copy; /* its place in the working copy, elements; CUDA_NO_COPY: it has none                        */
    uint32_t channels,
        padded;      /* innermost extent in the arenas, and in the working copy; equal where nothing is padded */
    uint32_t decays; /* 1: weight decay applies, and LARS adapts its rate                                         */
    uint32_t bias;   /* 1: decays as biases do; 0, and does not decay: as batch norms do                       */
};

/* A whole arena with its table. */
struct cuda_arena {
    const struct cuda_tensor *tensor; /* device memory */
    int tensors;
    size_t elements; /* of each f32 arena */
};

/* Working copy = parameters, in storage type, padded. The padding itself is not written: zero the copy once. */
int cuda_pack(cuda_stream stream, const struct cuda_arena *arena, const float *parameters, enum dtype storage,
              void *copy) MUST_CHECK;

/* Gradient of one filter as a convolution leaves it, (rows, padded) of type `type` with rows = K R S, to its place in
 * the f32 arena, (rows, channels): to (+)= scale * from; scale = 1 / loss scale. */
int cuda_unpack_gradient(cuda_stream stream, enum dtype type, const void *from, float *to, size_t rows, int channels,
                         int padded, float scale, bool add) MUST_CHECK;

struct cuda_update {
    const float *gradients;
    float *parameters, *momentum; /* momentum: u */
    float rate, momentum_factor;
    float weight_decay, norm_decay, bias_decay;
    uint32_t nesterov;    /* 1: by Nesterov's rule; not of cuda_lars()                            */
    float gradient_scale; /* g is gradient * scale; 1 multiplies nothing away: bits stay           */
    enum dtype storage;   /* of the working copy                                                  */
    void *copy;           /* gets the new parameters as cuda_pack() does; NULL: there is none     */
    uint32_t *not_finite; /* becomes 1 where a gradient is infinite or NaN, else stays; or NULL   */
    const uint32_t *skip; /* not 0: nothing is changed (loss scaling; may be `not_finite` of an earlier
                                   * cuda_check_finite(), but not of this call); or NULL                  */
};

/* SGD: u = m u + (g + d w), w = w - lr u; Nesterov: w = w - lr ((g + d w) + m u). Bits of nn/optimizer.c. */
int cuda_sgd(cuda_stream stream, const struct cuda_arena *arena, const struct cuda_update *update) MUST_CHECK;

struct cuda_lars {
    float trust, epsilon; /* eta 0.001, 0                                        */
    float *rates;         /* (tensors): the rate that each has got                */
    void *workspace;      /* cuda_lars_workspace() bytes                          */
};

size_t cuda_lars_workspace(int tensors);

/* LARS (You, Gitman, Ginsburg 2017): v = m v + lr local (g + d w), w = w - v, with local = trust |w| / (|g| + d |w| +
 * epsilon) over each entry of the table, so one entry a tensor; local = 1 where a tensor doesn't decay or a norm is 0.
 * `momentum` holds v. Norms are deterministic. */
int cuda_lars(cuda_stream stream, const struct cuda_arena *arena, const struct cuda_update *update,
              const struct cuda_lars *lars) MUST_CHECK;

/* ---- collectives, and sums over vectors ---- */

enum { CUDA_TERMS_MOST = 16 };

/* dst = ((term[0] op term[1]) op term[2]) ..., element by element, and for REDUCE_AVG the last sum divided by `divisor`
 * (also where there is one term). Bits of kernel_reduce() of comm/kernels.h called pair by pair; every dtype and
 * operator. `term`: host array of 1 .. CUDA_TERMS_MOST device pointers; dst may be any of them, else no overlap. */
int cuda_reduce(cuda_stream stream, enum dtype dtype, enum reduce_op op, void *dst, const void *const *term, int terms,
                size_t count, double divisor) MUST_CHECK;
/* dst = a + weight * b (f32, f64), bits of kernel_axpy(); dst = weight * a (not integers), bits of kernel_scale().
 * dst may be a or b. */
int cuda_axpy(cuda_stream stream, enum dtype dtype, void *dst, const void *a, const void *b, double weight,
              size_t count) MUST_CHECK;
int cuda_scale(cuda_stream stream, enum dtype dtype, void *dst, const void *a, double weight, size_t count) MUST_CHECK;

size_t cuda_squared_distance_workspace(size_t count); /* bytes */

/* *sum = sum of (a[i] - b[i])^2; b NULL: of a[i]^2. */
int cuda_squared_distance(cuda_stream stream, const float *a, const float *b, size_t count, double *sum,
                          void *workspace) MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
