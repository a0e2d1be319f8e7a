/* device.h - one card: the memory, queues and events of comm/device.h on the CUDA runtime.
 *
 * Queues are streams that do not wait for the default one, which is never used. Work of any kind may be put into a queue
 * of the card from any thread: the functions make the card current in the calling thread.
 */
#ifndef CHORALE_NN_CUDA_DEVICE_H
#define CHORALE_NN_CUDA_DEVICE_H

#include <cuda_runtime_api.h>

#include "comm/device.h"

/* STATUS_UNAVAILABLE: no driver, one that is too old, no card, a card before compute capability 8.0, cuDNN or cuBLAS of
 * another major version; STATUS_USAGE: there is no card of that number. Close with device->ops->close(). */
enum status cuda_device_open(const struct device_request *request, struct device **device) MUST_CHECK;

/* The stream of device->ops->compute(device). */
cudaStream_t cuda_device_stream(struct device *device);
/* Make the card current in this thread: before any call of the runtime on memory, streams and events of the card. */
enum status cuda_device_use(const struct device *device) MUST_CHECK;

#endif
