/* backend.c - the words of backend.h. */
#include "nn/backend.h"

const char *precision_name(enum precision precision)
{
    static const char *const names[] = {
        [PRECISION_F32] = "f32", [PRECISION_TF32] = "tf32", [PRECISION_BF16] = "bf16", [PRECISION_F16] = "f16"};
    return names[precision];
}
