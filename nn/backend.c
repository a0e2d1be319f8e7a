/* backend.c - the words of backend.h. */
#include "nn/backend.h"

const char *precision_name(enum precision precision)
{
    static const char *const names[] = {
        [PRECISION_F32] = "f32", [PRECISION_TF32] = "tf32", [PRECISION_BF16] = "bf16", [PRECISION_F16] = "f16"};
    return names[precision];
}

const char *moved_part_name(enum moved_part part)
{
    static const char *const names[MOVED_PARTS] = {[MOVED_CONV_FORWARD] = "conv_forward",
                                                   [MOVED_CONV_DATA] = "conv_data",
                                                   [MOVED_CONV_WEIGHTS] = "conv_weights",
                                                   [MOVED_LINEAR] = "linear",
                                                   [MOVED_NORM] = "norm",
                                                   [MOVED_POOL] = "pool",
                                                   [MOVED_LOSS] = "loss",
                                                   [MOVED_UPDATE] = "update"};
    return names[part];
}
