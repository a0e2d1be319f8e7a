/* input.h - images and labels on their way into the net: copied by a queue of their own while the step before computes,
 * then converted in the compute queue.
 */
#ifndef CHORALE_NN_CUDA_INPUT_H
#define CHORALE_NN_CUDA_INPUT_H

#include "base/status.h"
#include "comm/device.h"
#include "nn/batch.h"
#include "nn/cuda/net.h"
#include "nn/model.h"

struct cuda_input;

enum { CUDA_SLOTS = 2 }; /* steps that may be under way */

enum status cuda_input_create(const struct model *model, int batch, struct device *device,
                              struct cuda_input **input) MUST_CHECK;
void cuda_input_destroy(struct cuda_input *input);        /* accepts NULL */
size_t cuda_input_memory(const struct cuda_input *input); /* bytes of device memory */

/* STATUS_INTERNAL: not a batch of 1 to `batch` images in a form that is taken; STATUS_FORMAT: a label or a box that can't
 * be. */
enum status cuda_input_check(const struct cuda_input *input, const struct batch *batch) MUST_CHECK;

/* Copy a batch into the slot's device memory, without waiting; the compute queue waits for it. Whatever has read the slot
 * before must be done. Memory is taken when images first come, or come larger. */
enum status cuda_input_copy(struct cuda_input *input, int slot, const struct batch *batch) MUST_CHECK;
/* In the compute queue: the slot's batch as the net reads it. */
enum status cuda_input_convert(struct cuda_input *input, int slot, const struct batch *batch,
                               const struct cuda_net_input *to) MUST_CHECK;

#endif
