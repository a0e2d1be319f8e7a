/* device.c - loading the module of a kind of device. */
#include "comm/device.h"

#include <stdio.h>

#include "base/module.h"

enum status device_module_load(const char *name, const struct device_module **module)
{
    char what[48], file[64];
    snprintf(what, sizeof what, "device %s", name);
    snprintf(file, sizeof file, "chorale-device-%s", name);
    const struct module_request request = {.what = what,
                                           .file = file,
                                           .symbol = DEVICE_MODULE_SYMBOL,
                                           .version = DEVICE_MODULE_VERSION,
                                           .cure = "it is built when CMake finds the CUDA toolkit, cuBLAS and cuDNN 9"};
    const void *table = NULL;
    TRY(module_load(&request, &table));
    *module = table;
    (*module)->share(status_buffer());
    return STATUS_OK;
}
