/* resnet.c - ResNet-18, 34, 50, 101 and 152 v1.5 (He et al. 2015; the stride sits in the 3x3, as in torchvision). */
#include <stdio.h>

#include "nn/models/build.h"

enum { STAGES = 4 };

struct resnet {
    int blocks[STAGES];
    bool bottleneck; /* 1x1, 3x3, 1x1 with four times the channels; else 3x3, 3x3 */
};

/* "layer2.0" and "conv1" -> "layer2.0.conv1" */
static const char *join(char *text, size_t size, const char *block, const char *part)
{
    snprintf(text, size, "%s.%s", block, part);
    return text;
}

/* Convolution number `k` of a block, and the batch norm after it. */
static int conv_norm(struct build *build, int input, const char *block, int k, int channels, int kernel, int stride,
                     bool ends_block)
{
    char part[16], name[48];
    snprintf(part, sizeof part, "conv%d", k);
    int x = build_conv(build, input, join(name, sizeof name, block, part), channels, kernel, stride);
    snprintf(part, sizeof part, "bn%d", k);
    return build_batch_norm(build, x, join(name, sizeof name, block, part), ends_block);
}

static int conv_norm_relu(struct build *build, int input, const char *block, int k, int channels, int kernel,
                          int stride)
{
    char part[16], name[48];
    int x = conv_norm(build, input, block, k, channels, kernel, stride, false);
    snprintf(part, sizeof part, "relu%d", k);
    return build_relu(build, x, join(name, sizeof name, block, part));
}

/* (N, C, H, W) -> (N, out, H / stride, W / stride). `width` is the inner channel count. */
static int residual_block(struct build *build, int input, const char *block, bool bottleneck, int width, int stride,
                          bool project)
{
    char name[48];
    int out = bottleneck ? 4 * width : width, x;
    if (bottleneck) {
        x = conv_norm_relu(build, input, block, 1, width, 1, 1);
        x = conv_norm_relu(build, x, block, 2, width, 3, stride);
        x = conv_norm(build, x, block, 3, out, 1, 1, true);
    } else {
        x = conv_norm_relu(build, input, block, 1, width, 3, stride);
        x = conv_norm(build, x, block, 2, out, 3, 1, true);
    }
    int shortcut = input;
    if (project) {
        shortcut = build_conv(build, input, join(name, sizeof name, block, "downsample.0"), out, 1, stride);
        shortcut = build_batch_norm(build, shortcut, join(name, sizeof name, block, "downsample.1"), false);
    }
    return build_add_relu(build, x, shortcut, join(name, sizeof name, block, "add"));
}

static void resnet_layers(struct build *build, const struct resnet *net)
{
    int x = build_conv(build, BUILD_IMAGES, "conv1", 64, 7, 2);
    x = build_batch_norm(build, x, "bn1", false);
    x = build_relu(build, x, "relu");
    x = build_max_pool(build, x, "maxpool");
    for (int stage = 0; stage < STAGES; stage++) {
        for (int k = 0; k < net->blocks[stage]; k++) {
            char block[24];
            snprintf(block, sizeof block, "layer%d.%d", stage + 1, k);
            int stride = stage > 0 && k == 0 ? 2 : 1;
            bool project = k == 0 && (stage > 0 || net->bottleneck); /* the shape changes, so the shortcut must */
            x = residual_block(build, x, block, net->bottleneck, 64 << stage, stride, project);
        }
    }
    x = build_average_pool(build, x, "avgpool");
    build_linear(build, x, "fc", build->model ? build->model->classes : 0);
}

void resnet18_layers(struct build *build)
{
    resnet_layers(build, &(struct resnet){{2, 2, 2, 2}, false});
}

void resnet34_layers(struct build *build)
{
    resnet_layers(build, &(struct resnet){{3, 4, 6, 3}, false});
}

void resnet50_layers(struct build *build)
{
    resnet_layers(build, &(struct resnet){{3, 4, 6, 3}, true});
}

void resnet101_layers(struct build *build)
{
    resnet_layers(build, &(struct resnet){{3, 4, 23, 3}, true});
}

void resnet152_layers(struct build *build)
{
    resnet_layers(build, &(struct resnet){{3, 8, 36, 3}, true});
}
