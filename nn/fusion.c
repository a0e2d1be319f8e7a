/* fusion.c - see fusion.h. */
#include "nn/fusion.h"

/* The only layer that reads the output of layer k, or -1. */
static int only_reader(const struct model *model, int k)
{
    int reader = -1, readers = 0;
    for (int r = k + 1; r < model->layers; r++) {
        const struct layer *layer = &model->layer[r];
        const bool second = layer->kind == LAYER_ADD_RELU && layer->second == k;
        if (layer->input == k || second) {
            reader = r;
            readers++;
        }
    }
    return readers == 1 ? reader : -1;
}

int fused_with(const struct model *model, int k)
{
    const int reader = only_reader(model, k);
    if (reader < 0 || model->layer[reader].input != k)
        return -1;
    const enum layer_kind kind = model->layer[reader].kind;
    return kind == LAYER_RELU || kind == LAYER_ADD_RELU ? reader : -1;
}

struct fused fused_layers(const struct model *model, int first, int last)
{
    const struct layer *end = &model->layer[last];
    return (struct fused){
        .input = model->layer[first].input + 1,
        .second = end->kind == LAYER_ADD_RELU ? end->second + 1 : -1,
        .output = last + 1,
        .relu = end->kind == LAYER_RELU || end->kind == LAYER_ADD_RELU,
    };
}
