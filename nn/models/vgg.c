/* vgg.c - VGG-16 (Simonyan, Zisserman 2015, configuration D), as torchvision's vgg16: convolutions with bias, no batch
 * norm. Nearly all of its 138 million parameters are in the first linear layer: much to exchange for little computing.
 *
 * Without the two dropouts of the original, which change no shape: runs stay a function of seed and step alone.
 */
#include <stdio.h>

#include "nn/models/build.h"

enum { POOL = 0, SIDE = 7, WIDTH = 4096 };

void vgg16_layers(struct build *build)
{
    static const int channels[] = {64,   64,  POOL, 128, 128,  POOL, 256, 256, 256,
                                   POOL, 512, 512,  512, POOL, 512,  512, 512, POOL};
    char name[24];
    int x = BUILD_IMAGES, number = 0; /* as torchvision numbers them: convolution, ReLU, ..., pooling */
    for (size_t k = 0; k < sizeof channels / sizeof channels[0]; k++) {
        snprintf(name, sizeof name, "features.%d", number++);
        if (channels[k] == POOL) {
            x = build_max_pool_2x2(build, x, name);
            continue;
        }
        x = build_conv_bias(build, x, name, channels[k], 3, 1);
        snprintf(name, sizeof name, "features.%d", number++);
        x = build_relu(build, x, name);
    }
    x = build_average_pool_to(build, x, "avgpool", SIDE);
    x = build_relu(build, build_linear_normal(build, x, "classifier.0", WIDTH, 0.01), "classifier.1");
    x = build_relu(build, build_linear_normal(build, x, "classifier.3", WIDTH, 0.01), "classifier.4");
    build_linear_normal(build, x, "classifier.6", build->model ? build->model->classes : 0, 0.01);
}
