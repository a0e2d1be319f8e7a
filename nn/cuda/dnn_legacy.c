/* dnn_legacy.c - convolutions by cuDNN's legacy calls: the other implementation, to check the graph API against.
 *
 * Which algorithms there are is asked of the library's own ranking (cudnnGetConvolution*Algorithm_v7), which needs a
 * device; they are timed like the graph API's engines. Arguments come in another order in each direction: each is called
 * in one place.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/cuda/dnn_internal.h"

#define RANKED_MAX 16 /* algorithms of one direction: the library has 8 */

static const struct {
    cudnnMathType_t math;
    const char *word;
} math_words[] = {{CUDNN_DEFAULT_MATH, "default"}, {CUDNN_TENSOR_OP_MATH, "tensor-core"}, {CUDNN_FMA_MATH, "fma"}};
#define MATH_WORDS (sizeof math_words / sizeof *math_words)

/* Inputs are never converted to a smaller type; f32 rounds to tf32 where that is allowed. */
static cudnnMathType_t wanted_math(const struct dnn_convolution_request *request)
{
    if (request->type != DTYPE_F32)
        return CUDNN_TENSOR_OP_MATH;
    return request->tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
}

/* ---- descriptors ---- */

static void release(struct shape *shape)
{
    struct legacy *legacy = &shape->legacy;
    if (legacy->convolution != NULL)
        cudnnDestroyConvolutionDescriptor(legacy->convolution);
    if (legacy->w != NULL)
        cudnnDestroyFilterDescriptor(legacy->w);
    if (legacy->y != NULL)
        cudnnDestroyTensorDescriptor(legacy->y);
    if (legacy->x != NULL)
        cudnnDestroyTensorDescriptor(legacy->x);
    *legacy = (struct legacy){NULL};
}

static enum status prepare(struct dnn *dnn, struct shape *shape, enum dnn_direction direction)
{
    const struct dnn_convolution_request *request = &shape->request;
    struct legacy *legacy = &shape->legacy;
    cudnnDataType_t type = dnn_data_type(request->type);
    (void)direction;
    TRY(dnn_need_device(dnn, "a legacy convolution"));
    if (legacy->convolution != NULL)
        return STATUS_OK;
    release(shape); /* of an attempt that failed */
    DNN_TRY(cudnnCreateTensorDescriptor(&legacy->x));
    DNN_TRY(cudnnSetTensor4dDescriptor(legacy->x, CUDNN_TENSOR_NHWC, type, request->batch, request->in_channels,
                                       request->in_height, request->in_width));
    DNN_TRY(cudnnCreateTensorDescriptor(&legacy->y));
    DNN_TRY(cudnnSetTensor4dDescriptor(legacy->y, CUDNN_TENSOR_NHWC, type, request->batch, request->out_channels,
                                       shape_out_height(request), shape_out_width(request)));
    DNN_TRY(cudnnCreateFilterDescriptor(&legacy->w));
    DNN_TRY(cudnnSetFilter4dDescriptor(legacy->w, type, CUDNN_TENSOR_NHWC, request->out_channels, request->in_channels,
                                       request->kernel_height, request->kernel_width));
    DNN_TRY(cudnnCreateConvolutionDescriptor(&legacy->convolution));
    DNN_TRY(cudnnSetConvolution2dDescriptor(legacy->convolution, request->padding, request->padding, request->stride,
                                            request->stride, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    return STATUS_OK;
}

/* ---- algorithms ---- */

/* One row of the library's ranking, alike for all directions. */
struct ranked {
    int algorithm;
    cudnnStatus_t status;
    size_t workspace;
    cudnnDeterminism_t determinism;
    cudnnMathType_t math;
};

#define COPY_RANKING(from)                                                                                             \
    for (int k = 0; k < *count; k++)                                                                                   \
        ranked[k] = (struct ranked)                                                                                    \
        {                                                                                                              \
            (int)(from)[k].algo, (from)[k].status, (from)[k].memory, (from)[k].determinism, (from)[k].mathType         \
        }

static enum status rank_forward(struct dnn *dnn, const struct legacy *legacy, struct ranked *ranked, int *count)
{
    cudnnConvolutionFwdAlgoPerf_t found[RANKED_MAX];
    DNN_TRY(cudnnGetConvolutionForwardAlgorithm_v7(dnn->handle, legacy->x, legacy->w, legacy->convolution, legacy->y,
                                                   RANKED_MAX, count, found));
    COPY_RANKING(found);
    return STATUS_OK;
}

static enum status rank_backward_data(struct dnn *dnn, const struct legacy *legacy, struct ranked *ranked, int *count)
{
    cudnnConvolutionBwdDataAlgoPerf_t found[RANKED_MAX];
    DNN_TRY(cudnnGetConvolutionBackwardDataAlgorithm_v7(dnn->handle, legacy->w, legacy->y, legacy->convolution,
                                                        legacy->x, RANKED_MAX, count, found));
    COPY_RANKING(found);
    return STATUS_OK;
}

static enum status rank_backward_filter(struct dnn *dnn, const struct legacy *legacy, struct ranked *ranked, int *count)
{
    cudnnConvolutionBwdFilterAlgoPerf_t found[RANKED_MAX];
    DNN_TRY(cudnnGetConvolutionBackwardFilterAlgorithm_v7(dnn->handle, legacy->x, legacy->y, legacy->convolution,
                                                          legacy->w, RANKED_MAX, count, found));
    COPY_RANKING(found);
    return STATUS_OK;
}

static enum status rank(struct dnn *dnn, struct shape *shape, enum dnn_direction direction, struct ranked *ranked,
                        int *count)
{
    *count = 0;
    DNN_TRY(cudnnSetConvolutionMathType(shape->legacy.convolution, wanted_math(&shape->request)));
    if (direction == DNN_FORWARD)
        return rank_forward(dnn, &shape->legacy, ranked, count);
    if (direction == DNN_BACKWARD_DATA)
        return rank_backward_data(dnn, &shape->legacy, ranked, count);
    return rank_backward_filter(dnn, &shape->legacy, ranked, count);
}

static bool within_bounds(const struct dnn_convolution_request *request, const struct ranked *ranked)
{
    return ranked->status == CUDNN_STATUS_SUCCESS && ranked->workspace <= request->workspace_cap &&
           (!request->deterministic || ranked->determinism == CUDNN_DETERMINISTIC) &&
           ranked->math != CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION;
}

static struct plan plan_of(const struct dnn_convolution_request *request, const struct ranked *ranked)
{
    struct plan plan = {.algorithm = ranked->algorithm, .math = ranked->math};
    const char *word = "default";
    for (size_t k = 0; k < MATH_WORDS; k++) {
        if (math_words[k].math == ranked->math)
            word = math_words[k].word;
    }
    snprintf(plan.choice.engine, sizeof plan.choice.engine, "%d:%s", ranked->algorithm, word);
    plan.choice.workspace = ranked->workspace;
    plan.choice.tensor_core =
        ranked->math == CUDNN_TENSOR_OP_MATH || (request->tf32 && ranked->math == CUDNN_DEFAULT_MATH);
    plan.choice.deterministic = ranked->determinism == CUDNN_DETERMINISTIC;
    return plan;
}

static enum status candidates(struct dnn *dnn, struct shape *shape, enum dnn_direction direction, size_t wanted)
{
    struct ranked ranked[RANKED_MAX];
    struct direction *into = &shape->direction[direction];
    int count = 0;
    TRY(rank(dnn, shape, direction, ranked, &count));
    for (int k = 0; k < count && into->plans < wanted; k++) {
        if (within_bounds(&shape->request, &ranked[k]))
            into->plan[into->plans++] = plan_of(&shape->request, &ranked[k]);
    }
    if (into->plans == 0)
        return fail(STATUS_REFUSED, "cuDNN %s offers no legacy algorithm in %zu bytes of workspace%s", dnn->version,
                    shape->request.workspace_cap, shape->request.deterministic ? " that is deterministic" : "");
    return STATUS_OK;
}

static enum status recall(struct dnn *dnn, struct shape *shape, enum dnn_direction direction, const char *engine)
{
    struct ranked ranked[RANKED_MAX];
    int count = 0;
    TRY(rank(dnn, shape, direction, ranked, &count));
    for (int k = 0; k < count; k++) {
        struct plan plan = plan_of(&shape->request, &ranked[k]);
        if (!within_bounds(&shape->request, &ranked[k]) || strcmp(plan.choice.engine, engine) != 0)
            continue;
        plan.choice.chosen = true;
        shape->direction[direction].plan[0] = plan;
        shape->direction[direction].plans = 1;
        return STATUS_OK;
    }
    return fail(STATUS_REFUSED, "cuDNN %s does not offer algorithm %s", dnn->version, engine);
}

static void plan_release(struct plan *plan)
{
    (void)plan; /* it owns nothing */
}

/* ---- running ---- */

static void pack_release(struct pack *pack)
{
    (void)pack;
}

static enum status run(struct dnn *dnn, struct shape *shape, enum dnn_direction direction, const struct plan *plan,
                       struct pack *pack, const struct addresses *addresses)
{
    const float one = 1, zero = 0;
    const struct legacy *d = &shape->legacy;
    const struct addresses *a = addresses;
    size_t bytes = plan->choice.workspace;
    (void)pack;
    DNN_TRY(cudnnSetConvolutionMathType(d->convolution, plan->math));
    switch (direction) {
    case DNN_FORWARD:
        DNN_TRY(cudnnConvolutionForward(dnn->handle, &one, d->x, a->x, d->w, a->w, d->convolution,
                                        (cudnnConvolutionFwdAlgo_t)plan->algorithm, a->workspace, bytes, &zero, d->y,
                                        a->y));
        return STATUS_OK;
    case DNN_BACKWARD_DATA:
        DNN_TRY(cudnnConvolutionBackwardData(dnn->handle, &one, d->w, a->w, d->y, a->y, d->convolution,
                                             (cudnnConvolutionBwdDataAlgo_t)plan->algorithm, a->workspace, bytes, &zero,
                                             d->x, a->x));
        return STATUS_OK;
    case DNN_BACKWARD_FILTER:
        DNN_TRY(cudnnConvolutionBackwardFilter(dnn->handle, &one, d->x, a->x, d->y, a->y, d->convolution,
                                               (cudnnConvolutionBwdFilterAlgo_t)plan->algorithm, a->workspace, bytes,
                                               &zero, d->w, a->w));
        return STATUS_OK;
    case DNN_DIRECTIONS:
        break;
    }
    return fail(STATUS_INTERNAL, "no such direction: %d", (int)direction);
}

const struct implementation dnn_legacy = {.prepare = prepare,
                                          .candidates = candidates,
                                          .recall = recall,
                                          .run = run,
                                          .plan_release = plan_release,
                                          .release = release,
                                          .pack_release = pack_release};
