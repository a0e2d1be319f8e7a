/* linear.c - see linear.h. cuBLAS sees each matrix of ours, which is stored by rows, as its transpose. */
#include "nn/cuda/linear.h"

#include <cublas_v2.h>
#include <stdlib.h>

#include "base/memory.h"
#include "nn/cuda/device.h"

/* What NVIDIA recommends for Hopper; more than older cards want. */
static const size_t workspace_bytes = (size_t)32 << 20;

struct cuda_linear {
    struct device *device;
    cublasHandle_t library;
    void *workspace;
    cudaDataType_t storage;
    cublasComputeType_t compute;
};

static enum status check(cublasStatus_t code, const char *what)
{
    if (code == CUBLAS_STATUS_SUCCESS)
        return STATUS_OK;
    return fail(code == CUBLAS_STATUS_ALLOC_FAILED ? STATUS_NO_MEMORY : STATUS_INTERNAL, "device cuda: cuBLAS: %s: %s",
                what, cublasGetStatusString(code));
}

static cudaDataType_t type_of(enum dtype storage)
{
    return storage == DTYPE_F32 ? CUDA_R_32F : storage == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

enum status cuda_linear_open(struct device *device, enum dtype storage, bool tf32, struct cuda_linear **linear)
{
    *linear = NULL;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct cuda_linear)));
    struct cuda_linear *made = memory;
    made->device = device;
    made->storage = type_of(storage);
    made->compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    enum status status;
    TRY_TO(failed, check(cublasCreate(&made->library), "a handle"));
    TRY_TO(failed, check(cublasSetStream(made->library, cuda_device_stream(device)), "the queue"));
    TRY_TO(failed, device->ops->alloc(device, workspace_bytes, &made->workspace));
    TRY_TO(failed, check(cublasSetWorkspace(made->library, made->workspace, workspace_bytes), "the workspace"));
    TRY_TO(failed,
           check(cublasSetMathMode(made->library, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION), "sums in f32"));
    *linear = made;
    return STATUS_OK;
failed:
    cuda_linear_close(made);
    return status;
}

void cuda_linear_close(struct cuda_linear *linear)
{
    if (linear == NULL)
        return;
    if (linear->library != NULL)
        (void)cublasDestroy(linear->library);
    linear->device->ops->free(linear->device, linear->workspace);
    free(linear);
}

size_t cuda_linear_memory(void)
{
    return workspace_bytes;
}

/* One product in cuBLAS's words: C (m, n), leading dimensions a, b, c. */
struct product {
    cublasOperation_t of_a, of_b;
    int m, n, k, a, b, c;
    cudaDataType_t to;
    float scale;
};

static enum status multiply(struct cuda_linear *linear, const struct product *product, const void *a, const void *b,
                            void *c)
{
    const float zero = 0; /* what c held is overwritten */
    return check(cublasGemmEx(linear->library, product->of_a, product->of_b, product->m, product->n, product->k,
                              &product->scale, a, linear->storage, product->a, b, linear->storage, product->b, &zero, c,
                              product->to, product->c, linear->compute, CUBLAS_GEMM_DEFAULT),
                 "a product");
}

enum status cuda_linear_forward(struct cuda_linear *linear, const struct cuda_linear_shape *shape, const void *x,
                                const void *w, float *y)
{
    const struct product product = {.of_a = CUBLAS_OP_T,
                                    .of_b = CUBLAS_OP_N,
                                    .m = shape->outputs,
                                    .n = shape->rows,
                                    .k = shape->inputs,
                                    .a = shape->inputs,
                                    .b = shape->inputs,
                                    .c = shape->outputs,
                                    .to = CUDA_R_32F,
                                    .scale = 1};
    return multiply(linear, &product, w, x, y);
}

enum status cuda_linear_backward_data(struct cuda_linear *linear, const struct cuda_linear_shape *shape, const void *dy,
                                      const void *w, void *dx)
{
    const struct product product = {.of_a = CUBLAS_OP_N,
                                    .of_b = CUBLAS_OP_N,
                                    .m = shape->inputs,
                                    .n = shape->rows,
                                    .k = shape->outputs,
                                    .a = shape->inputs,
                                    .b = shape->outputs,
                                    .c = shape->inputs,
                                    .to = linear->storage,
                                    .scale = 1};
    return multiply(linear, &product, w, dy, dx);
}

enum status cuda_linear_backward_weights(struct cuda_linear *linear, const struct cuda_linear_shape *shape,
                                         const void *dy, const void *x, float scale, float *dw)
{
    const struct product product = {.of_a = CUBLAS_OP_N,
                                    .of_b = CUBLAS_OP_T,
                                    .m = shape->inputs,
                                    .n = shape->outputs,
                                    .k = shape->rows,
                                    .a = shape->inputs,
                                    .b = shape->outputs,
                                    .c = shape->inputs,
                                    .to = CUDA_R_32F,
                                    .scale = scale};
    return multiply(linear, &product, x, dy, dw);
}
