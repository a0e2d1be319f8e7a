/* module.c - what chorale-device-cuda.so exports. This is the only symbol that the program sees. */
#include "nn/backend.h"
#include "nn/cuda/device.h"

extern const struct backend_ops backend_cuda;
extern const struct device_module chorale_device;

__attribute__((visibility("default"))) const struct device_module chorale_device = {
    .version = DEVICE_MODULE_VERSION,
    .share = status_share,
    .open = cuda_device_open,
    .backend = &backend_cuda,
};
