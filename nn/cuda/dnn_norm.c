/* dnn_norm.c - batch normalisation by cuDNN's legacy Ex calls, alone or joined with ReLU and addition.
 *
 * Mode SPATIAL_PERSISTENT, NHWC. Whether the library has it for a type and shape is what its size queries say; they need
 * a device. The order of arguments changes between siblings: each is called in one place.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "nn/cuda/dnn_internal.h"

#define MODE CUDNN_BATCHNORM_SPATIAL_PERSISTENT

struct dnn_norm {
    struct dnn *dnn;
    char name[48];
    cudnnBatchNormOps_t operation;
    cudnnTensorDescriptor_t activations;    /* of x, y, z and their gradients  */
    cudnnTensorDescriptor_t channels;       /* of gamma and its kind: 1xCx1x1  */
    cudnnActivationDescriptor_t activation; /* ReLU; NULL for the norm alone   */
    size_t workspace, reserve;
};

static enum status make_descriptors(struct dnn_norm *norm, const struct dnn_norm_request *request)
{
    DNN_TRY(cudnnCreateTensorDescriptor(&norm->activations));
    DNN_TRY(cudnnSetTensor4dDescriptor(norm->activations, CUDNN_TENSOR_NHWC, dnn_data_type(request->type),
                                       request->batch, request->channels, request->height, request->width));
    DNN_TRY(cudnnCreateTensorDescriptor(&norm->channels));
    DNN_TRY(cudnnDeriveBNTensorDescriptor(norm->channels, norm->activations, MODE));
    if (request->kind == DNN_NORM)
        return STATUS_OK;
    DNN_TRY(cudnnCreateActivationDescriptor(&norm->activation));
    DNN_TRY(cudnnSetActivationDescriptor(norm->activation, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, 0));
    return STATUS_OK;
}

static cudnnTensorDescriptor_t added(const struct dnn_norm *norm)
{
    return norm->operation == CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION ? norm->activations : NULL;
}

static cudnnTensorDescriptor_t output_of_activation(const struct dnn_norm *norm)
{
    return norm->activation != NULL ? norm->activations : NULL;
}

static enum status ask_sizes(struct dnn_norm *norm)
{
    cudnnHandle_t handle = norm->dnn->handle;
    cudnnTensorDescriptor_t t = norm->activations, z = added(norm), y = output_of_activation(norm);
    size_t forward = 0, backward = 0;
    DNN_TRY(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(handle, MODE, norm->operation, t, z, t,
                                                                     norm->channels, norm->activation, &forward));
    DNN_TRY(cudnnGetBatchNormalizationBackwardExWorkspaceSize(handle, MODE, norm->operation, t, y, t, z, t,
                                                              norm->channels, norm->activation, &backward));
    DNN_TRY(cudnnGetBatchNormalizationTrainingExReserveSpaceSize(handle, MODE, norm->operation, norm->activation, t,
                                                                 &norm->reserve));
    norm->workspace = forward > backward ? forward : backward;
    return STATUS_OK;
}

enum status dnn_norm_create(struct dnn *dnn, const struct dnn_norm_request *request, struct dnn_norm **norm)
{
    static const cudnnBatchNormOps_t operations[] = {[DNN_NORM] = CUDNN_BATCHNORM_OPS_BN,
                                                     [DNN_NORM_RELU] = CUDNN_BATCHNORM_OPS_BN_ACTIVATION,
                                                     [DNN_NORM_ADD_RELU] = CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION};
    void *memory = NULL;
    enum status status = STATUS_OK;
    *norm = NULL;
    TRY(dnn_need_device(dnn, request->name));
    TRY(memory_zeroed(&memory, 1, sizeof **norm));
    struct dnn_norm *made = memory;
    made->dnn = dnn;
    made->operation = operations[request->kind];
    snprintf(made->name, sizeof made->name, "%s", request->name);
    TRY_TO(fail, make_descriptors(made, request));
    if (ask_sizes(made) < 0)
        TRY_TO(fail, fail(STATUS_REFUSED, "%s in %s: %s", request->name, dtype_name(request->type), status_message()));
    *norm = made;
    return STATUS_OK;
fail:
    dnn_norm_destroy(made);
    return status;
}

void dnn_norm_destroy(struct dnn_norm *norm)
{
    if (norm == NULL)
        return;
    if (norm->activation != NULL)
        cudnnDestroyActivationDescriptor(norm->activation);
    if (norm->channels != NULL)
        cudnnDestroyTensorDescriptor(norm->channels);
    if (norm->activations != NULL)
        cudnnDestroyTensorDescriptor(norm->activations);
    free(norm);
}

size_t dnn_norm_workspace(const struct dnn_norm *norm)
{
    return norm->workspace;
}

size_t dnn_norm_reserve(const struct dnn_norm *norm)
{
    return norm->reserve;
}

enum status dnn_norm_forward(struct dnn_norm *norm, const struct dnn_norm_tensors *tensors, double momentum,
                             double epsilon)
{
    const float one = 1, zero = 0;
    cudnnTensorDescriptor_t t = norm->activations;
    enum status status =
        dnn_status(cudnnBatchNormalizationForwardTrainingEx(
                       norm->dnn->handle, MODE, norm->operation, &one, &zero, t, tensors->x, added(norm), tensors->z, t,
                       tensors->y, norm->channels, tensors->gamma, tensors->beta, momentum, tensors->running_mean,
                       tensors->running_variance, epsilon, tensors->saved_mean, tensors->saved_inverse_deviation,
                       norm->activation, tensors->workspace, norm->workspace, tensors->reserve, norm->reserve),
                   "cudnnBatchNormalizationForwardTrainingEx");
    return status < 0 ? fail_context(status, "%s", norm->name) : STATUS_OK;
}

enum status dnn_norm_backward(struct dnn_norm *norm, const struct dnn_norm_tensors *tensors, double epsilon)
{
    const float one = 1, zero = 0;
    cudnnTensorDescriptor_t t = norm->activations;
    bool activated = norm->activation != NULL;
    enum status status =
        dnn_status(cudnnBatchNormalizationBackwardEx(
                       norm->dnn->handle, MODE, norm->operation, &one, &zero, &one, &zero, t, tensors->x,
                       output_of_activation(norm), activated ? tensors->y : NULL, t, tensors->dy, added(norm),
                       tensors->dz, t, tensors->dx, norm->channels, tensors->gamma, tensors->beta, tensors->dgamma,
                       tensors->dbeta, epsilon, tensors->saved_mean, tensors->saved_inverse_deviation, norm->activation,
                       tensors->workspace, norm->workspace, tensors->reserve, norm->reserve),
                   "cudnnBatchNormalizationBackwardEx");
    return status < 0 ? fail_context(status, "%s", norm->name) : STATUS_OK;
}
