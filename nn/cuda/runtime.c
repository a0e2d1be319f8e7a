/* runtime.c - see runtime.h. */
#include "nn/cuda/runtime.h"

enum status cuda_check(cudaError_t code, const char *what)
{
    if (code == cudaSuccess)
        return STATUS_OK;
    (void)cudaGetLastError();
    const enum status status = code == cudaErrorMemoryAllocation ? STATUS_NO_MEMORY : STATUS_INTERNAL;
    return fail(status, "device cuda: %s: %s", what, cudaGetErrorString(code));
}

enum status cuda_launched(int code, const char *what)
{
    return cuda_check((cudaError_t)code, what);
}
