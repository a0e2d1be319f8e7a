#include "support_dnn.h"

#include <string.h>

#include "base/file.h"

char *h200_description(void)
{
    char *text = NULL;
    size_t length = 0;
    OK(file_read(CHORALE_SOURCE_DIR "/tests/nn/cuda/h200.json", 1 << 16, &text, &length));
    cr_assert_not_null(text);
    return text;
}

struct dnn *open_planning(const char *engine_file)
{
    struct dnn *dnn = NULL;
    char *description = h200_description();
    struct dnn_request request = {.planning = true, .description = description, .engine_file = engine_file};
    OK(dnn_open(&request, &dnn));
    free(description);
    cr_assert_not_null(dnn);
    return dnn;
}

struct dnn_convolution_request request_3x3(void)
{
    return (struct dnn_convolution_request){.name = "conv",
                                            .type = DTYPE_BF16,
                                            .batch = 64,
                                            .in_channels = 64,
                                            .in_height = 56,
                                            .in_width = 56,
                                            .out_channels = 64,
                                            .kernel_height = 3,
                                            .kernel_width = 3,
                                            .stride = 1,
                                            .padding = 1,
                                            .workspace_cap = 256 * MIB,
                                            .candidates = 4};
}

struct dnn_convolution_request request_of_layer(const struct layer *layer, int batch, enum dtype type, bool tf32)
{
    return (struct dnn_convolution_request){.name = layer->name,
                                            .type = type,
                                            .tf32 = tf32,
                                            .batch = batch,
                                            .in_channels = (layer->in_channels + 7) / 8 * 8,
                                            .in_height = layer->in_height,
                                            .in_width = layer->in_width,
                                            .out_channels = layer->out_channels,
                                            .kernel_height = layer->kernel,
                                            .kernel_width = layer->kernel,
                                            .stride = layer->stride,
                                            .padding = layer->padding,
                                            .no_backward_data = layer->input < 0,
                                            .workspace_cap = 256 * MIB,
                                            .candidates = 4};
}

struct dnn_convolution *create(struct dnn *dnn, const struct dnn_convolution_request *request)
{
    struct dnn_convolution *convolution = NULL;
    OK(dnn_convolution_create(dnn, request, &convolution));
    cr_assert_not_null(convolution);
    return convolution;
}
