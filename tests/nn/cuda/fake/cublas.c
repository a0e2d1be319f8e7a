/* cublas.c - cuBLAS's matrix product on the fake device. */
#include <cublas_v2.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "tests/nn/cuda/fake/fake.h"

struct cublasContext {
    cudaStream_t stream;
    void *workspace;
    size_t bytes;
};

cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
    *handle = calloc(1, sizeof **handle);
    return *handle != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

/* Like the real one, it forgets the workspace. */
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
{
    *handle = (struct cublasContext){.stream = stream};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes)
{
    if (!fake_is_device(workspace, bytes))
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->workspace = workspace;
    handle->bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    (void)handle;
    (void)mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetProperty(libraryPropertyType type, int *value)
{
    *value = type == MAJOR_VERSION ? CUBLAS_VER_MAJOR : type == MINOR_VERSION ? CUBLAS_VER_MINOR : CUBLAS_VER_PATCH;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "failure";
}

/* ---- the product ---- */

struct matrix {
    void *data;
    cudaDataType type;
    int leading;
    cublasOperation_t operation;
};

/* C (m, n) = alpha op(A) (m, k) op(B) (k, n) + beta C, by columns. */
struct product {
    int m, n, k;
    float alpha, beta;
    struct matrix a, b, c;
};

static float read(const struct matrix *matrix, int row, int column)
{
    const bool transposed = matrix->operation != CUBLAS_OP_N;
    const size_t at = transposed ? (size_t)column + (size_t)row * (size_t)matrix->leading
                                 : (size_t)row + (size_t)column * (size_t)matrix->leading;
    if (matrix->type == CUDA_R_32F)
        return ((const float *)matrix->data)[at];
    const uint16_t bits = ((const uint16_t *)matrix->data)[at];
    return matrix->type == CUDA_R_16BF ? bf16_to_f32(bits) : f16_to_f32(bits);
}

static void write(const struct matrix *matrix, int row, int column, float value)
{
    const size_t at = (size_t)row + (size_t)column * (size_t)matrix->leading;
    if (matrix->type == CUDA_R_32F)
        ((float *)matrix->data)[at] = value;
    else
        ((uint16_t *)matrix->data)[at] = matrix->type == CUDA_R_16BF ? bf16_from_f32(value) : f16_from_f32(value);
}

static void run(void *argument)
{
    const struct product *product = argument;
    for (int column = 0; column < product->n; column++) {
        for (int row = 0; row < product->m; row++) {
            double sum = 0;
            for (int i = 0; i < product->k; i++)
                sum += (double)read(&product->a, row, i) * (double)read(&product->b, i, column);
            const float before = product->beta == 0 ? 0 : product->beta * read(&product->c, row, column);
            write(&product->c, row, column, product->alpha * (float)sum + before);
        }
    }
}

static bool good(const struct matrix *matrix, int rows, int columns)
{
    const size_t size = matrix->type == CUDA_R_32F ? sizeof(float) : sizeof(uint16_t);
    const bool transposed = matrix->operation != CUBLAS_OP_N;
    const int stored_rows = transposed ? columns : rows, stored_columns = transposed ? rows : columns;
    const bool type = matrix->type == CUDA_R_32F || matrix->type == CUDA_R_16BF || matrix->type == CUDA_R_16F;
    const size_t elements = (size_t)matrix->leading * (size_t)(stored_columns - 1) + (size_t)stored_rows;
    return type && matrix->leading >= stored_rows && fake_is_device(matrix->data, elements * size);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType a_type, int a_leading, const void *b,
                            cudaDataType b_type, int b_leading, const void *beta, void *c, cudaDataType c_type,
                            int c_leading, cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    (void)algorithm;
    struct product product = {.m = m,
                              .n = n,
                              .k = k,
                              .a = {(void *)(uintptr_t)a, a_type, a_leading, of_a},
                              .b = {(void *)(uintptr_t)b, b_type, b_leading, of_b},
                              .c = {c, c_type, c_leading, CUBLAS_OP_N}};
    memcpy(&product.alpha, alpha, sizeof product.alpha);
    memcpy(&product.beta, beta, sizeof product.beta);
    if (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (handle->workspace == NULL || a_type != b_type || !good(&product.a, m, k) || !good(&product.b, k, n) ||
        !good(&product.c, m, n))
        return CUBLAS_STATUS_INVALID_VALUE;
    struct product *copy = malloc(sizeof *copy);
    if (copy == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *copy = product;
    return fake_put(handle->stream, &(struct fake_work){run, free, copy}) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
