/* weights.h - the tensors of a model on a card: the table that kernels read, the working copies that convolutions read,
 * and the way of filter gradients back into the arena.
 *
 * Arenas are f32; convolutions (K, R, S, C), linear layers (O, I). A working copy exists where the storage type is not
 * f32, where channels are padded, or where a tensor of the arena does not begin at a multiple of 16 bytes; all others are
 * read where they lie. Copies are made anew at the start of each pass: whoever writes parameters need not know of them.
 */
#ifndef CHORALE_NN_CUDA_WEIGHTS_H
#define CHORALE_NN_CUDA_WEIGHTS_H

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "comm/device.h"
#include "nn/cuda/kernels.h"
#include "nn/model.h"

struct cuda_weights;

struct cuda_weights_request {
    const struct model *model; /* must outlive the weights */
    struct device *device;
    enum dtype storage;
    int image_channels; /* of the padded images: the first convolution's filters are padded likewise */
};

enum status cuda_weights_create(const struct cuda_weights_request *request, struct cuda_weights **weights) MUST_CHECK;
void cuda_weights_destroy(struct cuda_weights *weights);        /* accepts NULL */
size_t cuda_weights_memory(const struct cuda_weights *weights); /* bytes of device memory */

/* The whole model, as the kernels of the update take it. */
const struct cuda_arena *cuda_weights_arena(const struct cuda_weights *weights);

/* Make the working copies. */
enum status cuda_weights_pack(struct cuda_weights *weights, const float *parameters) MUST_CHECK;
/* Tensor t as the layer's computation reads it. */
const void *cuda_weights_read(const struct cuda_weights *weights, const float *parameters, int t);
/* Where the gradient of filter t is to be written, in the storage type; then cuda_weights_settle() brings it to its place
 * in `gradients`, times `scale` (f32 storage: 1), before the next one is written. */
void *cuda_weights_gradient(const struct cuda_weights *weights, float *gradients, int t);
enum status cuda_weights_settle(struct cuda_weights *weights, float *gradients, int t, float scale) MUST_CHECK;

/* Host memory to host memory: convolutions between (O, I, kh, kw) and (K, R, S, C); the rest is copied. */
void cuda_weights_to_native(const struct model *model, const float *canonical, float *native);
void cuda_weights_to_canonical(const struct model *model, const float *native, float *canonical);

#endif
