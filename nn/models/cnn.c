/* cnn.c - a small network for first runs and tests: four convolutions, 61 thousand parameters at 10 classes. */
#include <stdio.h>

#include "nn/models/build.h"

void cnn_layers(struct build *build)
{
    /* Channel counts are multiples of 16, so that vector kernels exist on every CPU. */
    static const int channels[] = {16, 32, 64, 64};
    enum { STAGES = sizeof channels / sizeof channels[0] };
    int x = BUILD_IMAGES;
    for (int stage = 0; stage < STAGES; stage++) {
        char name[16];
        snprintf(name, sizeof name, "conv%d", stage + 1);
        x = build_conv(build, x, name, channels[stage], 3, 1);
        snprintf(name, sizeof name, "bn%d", stage + 1);
        x = build_batch_norm(build, x, name, false);
        snprintf(name, sizeof name, "relu%d", stage + 1);
        x = build_relu(build, x, name);
        if (stage + 1 < STAGES) {
            snprintf(name, sizeof name, "pool%d", stage + 1);
            x = build_max_pool(build, x, name);
        }
    }
    x = build_average_pool(build, x, "avgpool");
    build_linear(build, x, "fc", build->model ? build->model->classes : 0);
}
