/* layer_times.c - see layer_times.h. */
#include "nn/layer_times.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

struct layer_times {
    const struct model *model;
    size_t layers, steps;       /* steps seen, warm-up included */
    double *forward, *backward; /* [LAYER_TIMES_STEPS][layers]  */
};

enum status layer_times_create(const struct model *model, struct layer_times **times)
{
    *times = NULL;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct layer_times)));
    struct layer_times *made = memory;
    made->model = model;
    made->layers = (size_t)model->layers;
    enum status status;
    TRY_TO(failed, memory_zeroed(&memory, made->layers, LAYER_TIMES_STEPS * sizeof *made->forward));
    made->forward = memory;
    TRY_TO(failed, memory_zeroed(&memory, made->layers, LAYER_TIMES_STEPS * sizeof *made->backward));
    made->backward = memory;
    *times = made;
    return STATUS_OK;
failed:
    layer_times_destroy(made);
    return status;
}

void layer_times_destroy(struct layer_times *times)
{
    if (!times)
        return;
    free(times->forward);
    free(times->backward);
    free(times);
}

/* Steps that count: the warm-up's rows are written over as soon as there are others. */
static size_t after_warm_up(const struct layer_times *times)
{
    return times->steps < LAYER_TIMES_WARM_UP ? times->steps : times->steps - LAYER_TIMES_WARM_UP;
}

static size_t rows_held(const struct layer_times *times)
{
    size_t rows = times->steps <= LAYER_TIMES_WARM_UP ? times->steps : after_warm_up(times);
    return rows < LAYER_TIMES_STEPS ? rows : LAYER_TIMES_STEPS;
}

void layer_times_add(struct layer_times *times, const double *forward, const double *backward)
{
    size_t row = after_warm_up(times) % LAYER_TIMES_STEPS;
    memcpy(times->forward + row * times->layers, forward, times->layers * sizeof *forward);
    memcpy(times->backward + row * times->layers, backward, times->layers * sizeof *backward);
    times->steps++;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *table, size_t layers, size_t layer, size_t rows)
{
    double column[LAYER_TIMES_STEPS];
    for (size_t row = 0; row < rows; row++)
        column[row] = table[row * layers + layer];
    qsort(column, rows, sizeof *column, compare);
    return rows % 2 ? column[rows / 2] : (column[rows / 2 - 1] + column[rows / 2]) / 2;
}

static size_t layer_parameters(const struct model *model, const struct layer *layer)
{
    size_t count = 0;
    for (int t = layer->first_tensor; t < layer->first_tensor + layer->tensors; t++)
        count += model->tensor[t].count;
    return count;
}

static void add_layer(const struct layer_times *times, size_t k, size_t rows, struct text *text)
{
    const struct layer *layer = &times->model->layer[k];
    text_addf(text, "layer %s parameters=%zu forward=", layer->name, layer_parameters(times->model, layer));
    text_add_fixed(text, 1e3 * median(times->forward, times->layers, k, rows), 4);
    text_add(text, "ms backward=");
    text_add_fixed(text, 1e3 * median(times->backward, times->layers, k, rows), 4);
    text_add(text, "ms\n");
}

enum status layer_times_profile(const struct layer_times *times, int batch, const char *device, struct text *text)
{
    const struct model *model = times->model;
    size_t rows = rows_held(times);
    if (rows == 0)
        return fail(STATUS_REFUSED, "profile: no step has run yet");
    text_add(text, "# chorale model profile\n");
    text_addf(text, "model %s classes=%d image_size=%d batch=%d parameters=%zu\n", model->name, model->classes,
              model->image_size, batch, model->parameters);
    text_addf(text, "device %s\n", device);
    for (size_t k = 0; k < times->layers; k++)
        add_layer(times, k, rows, text);
    return text_check(text);
}
