/* train_cpu.c - bench_train_cpu: how near each kind of convolution comes to this processor's peak, within whole steps.
 *
 * Runs steps of ResNet-50 on noise, and before each a loop of multiplications with addition that reaches the peak. Of
 * every layer and direction the fastest step counts, and of the loop the fastest run. The arithmetic is that of the
 * definition, so a kernel that needs less of it can be above the peak. Prints Markdown.
 *
 *   bench_train_cpu [PIXELS BATCH THREADS STEPS]      default 224 8 2 5
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/clock.h"
#include "base/memory.h"
#include "nn/cpu/net.h"

void omp_set_num_threads(int threads); /* as in omp.h, which belongs to one compiler and stops the tools of others */

enum direction { FORWARD, BY_DATA, BY_WEIGHTS, DIRECTIONS };

static const char *const direction_names[] = {"forward", "by data", "by weights"};

static void need(enum status status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "bench_train_cpu: %s\n", status_message());
    exit(1);
}

static int number(const char *word)
{
    char *end;
    long value = strtol(word, &end, 10);
    if (*end != '\0' || value < 1 || value > 10000) {
        fprintf(stderr, "bench_train_cpu: %s: takes four numbers from 1 to 10000: PIXELS BATCH THREADS STEPS\n", word);
        exit(2);
    }
    return (int)value;
}

/* ---- peak ---- */

enum { PEAK_TRIPS = 1 << 18, PEAK_RUNS = 32, CHAINS = 12 }; /* runs short enough not to be interrupted */

#if defined(__x86_64__)
/* Independent chains enough for the latency of two units. */
__attribute__((target("avx2,fma"))) static float multiply_add(void)
{
    __m256 sum[CHAINS], factor = _mm256_set1_ps(0.999F), addend = _mm256_set1_ps(1e-3F);
    for (int k = 0; k < CHAINS; k++)
        sum[k] = _mm256_set1_ps((float)k);
    for (int trip = 0; trip < PEAK_TRIPS; trip++) {
#pragma GCC unroll 12
        for (int k = 0; k < CHAINS; k++)
            sum[k] = _mm256_fmadd_ps(sum[k], factor, addend);
    }
    float total = 0;
    for (int k = 0; k < CHAINS; k++)
        total += _mm256_cvtss_f32(sum[k]);
    return total;
}

static bool peak_known(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
static float multiply_add(void)
{
    return 0;
}

static bool peak_known(void)
{
    return false;
}
#endif

/* GFLOP/s of all threads together */
static double peak_once(int threads)
{
    const double flop = 2.0 * 8 * CHAINS * PEAK_TRIPS * threads;
    float total = 0;
    double start = clock_seconds();
#pragma omp parallel num_threads(threads) reduction(+ : total)
    total += multiply_add();
    double seconds = clock_seconds() - start;
    return total < 0 ? 0 : flop / seconds / 1e9; /* the sum is used, so the loop stays */
}

static double run_peak(int threads)
{
    double best = 0;
    for (int k = 0; k < PEAK_RUNS; k++) {
        double rate = peak_once(threads);
        best = rate > best ? rate : best;
    }
    return best;
}

/* ---- steps ---- */

struct times {
    double *least[DIRECTIONS]; /* [layers] seconds */
    double step, peak;
};

static void *zeroed(size_t count, size_t size)
{
    void *memory = NULL;
    need(memory_zeroed(&memory, count, size));
    return memory;
}

static void fill(float *values, size_t count)
{
    unsigned state = 1;
    for (size_t k = 0; k < count; k++) {
        state = state * 1664525U + 1013904223U;
        values[k] = (float)(state >> 8) / (float)(1 << 23) - 1;
    }
}

static void keep_least(double *least, double seconds, bool first)
{
    if (first || seconds < *least)
        *least = seconds;
}

static void keep(const struct model *model, const struct net *net, double step, bool first, struct times *times)
{
    for (int k = 0; k < model->layers; k++) {
        double by_weights = net_weights_seconds(net)[k];
        keep_least(&times->least[FORWARD][k], net_forward_seconds(net)[k], first);
        keep_least(&times->least[BY_WEIGHTS][k], by_weights, first);
        keep_least(&times->least[BY_DATA][k], net_backward_seconds(net)[k] - by_weights, first);
    }
    keep_least(&times->step, step, first);
}

static void run(const struct model *model, int batch, int threads, int steps, struct times *times)
{
    size_t images = (size_t)batch * 3 * (size_t)model->image_size * (size_t)model->image_size;
    float *image = zeroed(images, sizeof *image), *parameters = zeroed(model->parameters, sizeof *parameters);
    float *native = zeroed(model->parameters, sizeof *native),
          *gradients = zeroed(model->parameters, sizeof *gradients);
    float *state = zeroed(model->state, sizeof *state);
    struct net *net = NULL;
    omp_set_num_threads(threads);
    need(net_create(&(struct net_request){.model = model, .batch = batch, .threads = threads}, &net));
    fill(image, images);
    model_initialise(model, 1, parameters, state);
    need(net_to_native(net, parameters, native));
    for (int step = -1; step < steps; step++) { /* the first is not counted */
        double peak = run_peak(threads), start = clock_seconds();
        need(net_train(net, native, state, image, NULL));
        fill(net_last_gradient(net), (size_t)batch * (size_t)model->classes);
        need(net_backward(net, native, gradients, NULL));
        if (step >= 0)
            keep(model, net, clock_seconds() - start, step == 0, times);
        if (step >= 0 && peak > times->peak)
            times->peak = peak;
    }
    net_destroy(net);
    free(image), free(parameters), free(native), free(gradients), free(state);
}

/* ---- table ---- */

/* "conv1" and "layer1" to "layer4" with kernel and stride */
static void group_name(const struct layer *layer, char *name, size_t size)
{
    int length = (int)strcspn(layer->name, ".");
    (void)snprintf(name, size, "%.*s %dx%d%s", length, layer->name, layer->kernel, layer->kernel,
                   layer->stride > 1 ? " stride 2" : "");
}

static double gflop_of(const struct layer *layer, int batch)
{
    return 2e-9 * batch * layer->in_channels * layer->out_channels * layer->kernel * layer->kernel * layer->out_height *
           layer->out_width;
}

struct sum {
    double gflop, seconds;
};

static void print_cells(const struct sum *sum, double peak)
{
    printf(" %.1f |", sum->gflop);
    if (sum->seconds <= 0) {
        printf(" - | - | - |");
        return;
    }
    printf(" %.2f | %.0f |", sum->seconds * 1e3, sum->gflop / sum->seconds);
    if (peak_known())
        printf(" %.0f %% |", 100 * sum->gflop / sum->seconds / peak);
    else
        printf(" - |");
}

static void print_row(const char *name, enum direction direction, const struct sum *sum, double peak)
{
    printf("| %s | %s |", name, direction_names[direction]);
    print_cells(sum, peak);
    printf("\n");
}

/* All layers whose group has the name; NULL = all convolutions. */
static struct sum sum_of(const struct model *model, int batch, const struct times *times, enum direction direction,
                         const char *name)
{
    struct sum sum = {0};
    for (int k = 0; k < model->layers; k++) {
        const struct layer *layer = &model->layer[k];
        char own[64];
        group_name(layer, own, sizeof own);
        bool no_gradient = direction == BY_DATA && layer->input < 0;
        if (layer->kind != LAYER_CONV || no_gradient || (name != NULL && strcmp(own, name) != 0))
            continue;
        sum.gflop += gflop_of(layer, batch);
        sum.seconds += times->least[direction][k];
    }
    return sum;
}

static bool seen_before(const struct model *model, int layer, const char *name)
{
    for (int k = 0; k < layer; k++) {
        char other[64];
        group_name(&model->layer[k], other, sizeof other);
        if (model->layer[k].kind == LAYER_CONV && strcmp(other, name) == 0)
            return true;
    }
    return false;
}

static double other_seconds(const struct model *model, const struct times *times)
{
    double seconds = 0;
    for (int k = 0; k < model->layers; k++) {
        if (model->layer[k].kind != LAYER_CONV)
            seconds += times->least[FORWARD][k] + times->least[BY_DATA][k];
    }
    return seconds;
}

static void print_table(const struct model *model, int batch, int threads, const struct times *times)
{
    printf("ResNet-50, %d pixels, batch %d, threads: %d. Fastest step %.1f ms without optimizer, layers that are no "
           "convolutions %.1f ms. ",
           model->image_size, batch, threads, times->step * 1e3, other_seconds(model, times) * 1e3);
    if (peak_known())
        printf("Peak of multiplications with addition: %.1f GFLOP/s.", times->peak);
    printf("\n\n| convolutions | direction | GFLOP | ms | GFLOP/s | of the peak |\n"
           "| --- | --- | ---: | ---: | ---: | ---: |\n");
    for (int k = 0; k < model->layers; k++) {
        char name[64];
        group_name(&model->layer[k], name, sizeof name);
        if (model->layer[k].kind != LAYER_CONV || seen_before(model, k, name))
            continue;
        for (enum direction d = FORWARD; d < DIRECTIONS; d++) {
            struct sum sum = sum_of(model, batch, times, d, name);
            if (sum.gflop > 0)
                print_row(name, d, &sum, times->peak);
        }
    }
    for (enum direction d = FORWARD; d < DIRECTIONS; d++) {
        struct sum sum = sum_of(model, batch, times, d, NULL);
        print_row("all", d, &sum, times->peak);
    }
}

int main(int count, char **words)
{
    int pixels = 224, batch = 8, threads = 2, steps = 5;
    if (count != 1 && count != 5) {
        fprintf(stderr, "usage: bench_train_cpu [PIXELS BATCH THREADS STEPS]\n");
        return 2;
    }
    if (count == 5) {
        pixels = number(words[1]), batch = number(words[2]);
        threads = number(words[3]), steps = number(words[4]);
    }
    struct model *model = NULL;
    struct times times = {0};
    need(model_create("resnet50", 10, pixels, &model));
    for (int d = 0; d < DIRECTIONS; d++)
        times.least[d] = zeroed((size_t)model->layers, sizeof *times.least[d]);
    run(model, batch, threads, steps, &times);
    print_table(model, batch, threads, &times);
    for (int d = 0; d < DIRECTIONS; d++)
        free(times.least[d]);
    model_destroy(model);
    return 0;
}
