/* 3x3 convolutions by minimal filtering against sums over taps: exact with m = 2, where small even weights keep every
 * number whole; rounded with m = 4, whose transforms have thirds. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nn/cpu/winograd.h"

#define OK(expression) cr_assert_geq((expression), 0, "%s", status_message())

enum { TAPS = 9 };

struct shape {
    size_t images, in, out, height, width; /* of the source */
    bool folded;
};

/* Outputs in panels of 16 and groups of 24; tiles in rows of six; edges inside and outside of a tile. The last two have
 * weights that are transformed panel by panel, and summed up part by part where there are no more than 24 tiles. */
static const struct shape shapes[] = {
    {1, 16, 16, 1, 1, true},    {2, 16, 32, 2, 2, true},    {3, 32, 16, 3, 3, true},   {1, 48, 16, 5, 7, false},
    {2, 16, 64, 7, 5, false},   {1, 16, 80, 4, 4, true},    {7, 16, 16, 6, 9, false},  {5, 32, 48, 8, 3, true},
    {2, 16, 16, 13, 11, false}, {1, 16, 16, 31, 29, false}, {37, 16, 16, 5, 9, false}, {1, 288, 256, 9, 5, false},
    {27, 256, 272, 2, 1, true},
};

enum { SHAPES = sizeof shapes / sizeof shapes[0] };

struct tensors {
    struct value source, result;
    size_t stride, weights; /* floats */
    float *x, *w, *y, *dx, *dw, *dy;
    double *expected_y, *expected_dx, *expected_dw;
};

static float *floats(size_t count)
{
    float *values = NULL;
    cr_assert_eq(posix_memalign((void **)&values, 64, count * sizeof *values), 0);
    memset(values, 0xFF, count * sizeof *values); /* NaN wherever nothing is written */
    return values;
}

static double *doubles(size_t count)
{
    double *values = calloc(count, sizeof *values);
    cr_assert_not_null(values);
    return values;
}

/* Whole numbers from -3 to 3 that depend on the index. */
static float whole(size_t index, unsigned seed)
{
    size_t h = (index + 1) * 2654435761U + seed * 40503U;
    return (float)((h ^ h >> 15) % 7) - 3;
}

static struct value value_of(const struct shape *shape, size_t block, size_t channels, size_t stride)
{
    size_t height = (shape->height - 1) / stride + 1, width = (shape->width - 1) / stride + 1;
    return (struct value){.images = shape->images,
                          .channels = channels,
                          .height = height,
                          .width = width,
                          .block = block,
                          .folded = shape->folded,
                          .count = shape->images * channels * height * width};
}

static size_t at(const struct value *value, size_t n, size_t c, size_t y, size_t x)
{
    return value_offset(value, n, c / value->block) + (y * value->width + x) * value->block + c % value->block;
}

static size_t at_weight(size_t b, size_t in, size_t o, size_t i, size_t tap)
{
    return ((o / b * (in / b) + i / b) * TAPS + tap) * b * b + i % b * b + o % b;
}

/* One product of the definition enters all three sums. */
static void add_products(struct tensors *t, size_t n, size_t o, size_t i, size_t y, size_t x)
{
    for (size_t tap = 0; tap < TAPS; tap++) {
        size_t row = t->stride * y + tap / 3 - 1, column = t->stride * x + tap % 3 - 1;
        if (row >= t->source.height || column >= t->source.width)
            continue;
        size_t from = at(&t->source, n, i, row, column), to = at(&t->result, n, o, y, x);
        size_t weight = at_weight(t->source.block, t->source.channels, o, i, tap);
        t->expected_y[to] += (double)t->x[from] * (double)t->w[weight];
        t->expected_dx[from] += (double)t->dy[to] * (double)t->w[weight];
        t->expected_dw[weight] += (double)t->dy[to] * (double)t->x[from];
    }
}

static void make(const struct shape *shape, size_t block, size_t stride, struct tensors *t)
{
    *t = (struct tensors){.source = value_of(shape, block, shape->in, 1),
                          .result = value_of(shape, block, shape->out, stride),
                          .stride = stride,
                          .weights = shape->in * shape->out * TAPS};
    t->x = floats(t->source.count);
    t->dx = floats(t->source.count);
    t->y = floats(t->result.count);
    t->dy = floats(t->result.count);
    t->w = floats(t->weights);
    t->dw = floats(t->weights);
    t->expected_dx = doubles(t->source.count);
    t->expected_y = doubles(t->result.count);
    t->expected_dw = doubles(t->weights);
    for (size_t k = 0; k < t->source.count; k++)
        t->x[k] = whole(k, 1);
    for (size_t k = 0; k < t->result.count; k++)
        t->dy[k] = 4 * whole(k, 2); /* transforms halve twice */
    for (size_t k = 0; k < t->weights; k++)
        t->w[k] = 4 * whole(k, 3);
}

static void make_expected(struct tensors *t)
{
    size_t pixels = value_pixels(&t->result), in = t->source.channels, out = t->result.channels;
    for (size_t k = 0; k < t->result.images * out * in * pixels; k++)
        add_products(t, k / pixels / in / out, k / pixels / in % out, k / pixels % in, k % pixels / t->result.width,
                     k % t->result.width);
}

static void release(struct tensors *t)
{
    free(t->x), free(t->dx), free(t->y), free(t->dy), free(t->w), free(t->dw);
    free(t->expected_y), free(t->expected_dx), free(t->expected_dw);
}

static void run(struct tensors *t, int tile, int threads)
{
    struct winograd winograd = {
        .source = &t->source, .result = &t->result, .tile = tile, .stride = (int)t->stride, .threads = threads};
    size_t count = 0;
    OK(winograd_scratch(&winograd, &count));
    float *scratch = floats(count);
    winograd_forward(&winograd, t->x, t->w, t->y, scratch);
    winograd_backward_weights(&winograd, t->x, t->dy, t->dw, scratch);
    winograd_backward_data(&winograd, t->dy, t->w, t->dx, scratch);
    free(scratch);
}

/* 2-norm of the difference relative to that of what is expected; NaN where something was not written. */
static double difference(const float *values, const double *expected, size_t count)
{
    double sum = 0, square = 0;
    for (size_t k = 0; k < count; k++) {
        double d = (double)values[k] - expected[k];
        sum += d * d;
        square += expected[k] * expected[k];
    }
    return sqrt(sum / square);
}

static void expect_within(double limit, const char *name, int tile, size_t stride, const float *values,
                          const double *expected, size_t count, const struct value *value)
{
    double d = difference(values, expected, count);
    cr_expect(d <= limit /* false for NaN */,
              "tiles of %d, stride %zu: %s of %zu images of %zu x %zu, %zu channels: %.3g", tile, stride, name,
              value->images, value->height, value->width, value->channels, d);
}

static void check_block(size_t block, int tile, size_t stride, double limit)
{
    for (size_t s = 0; s < SHAPES; s++) {
        struct tensors t;
        make(&shapes[s], block, stride, &t);
        make_expected(&t);
        run(&t, tile, 1);
        expect_within(limit, "result", tile, stride, t.y, t.expected_y, t.result.count, &t.source);
        expect_within(limit, "gradient by data", tile, stride, t.dx, t.expected_dx, t.source.count, &t.source);
        expect_within(limit, "gradient by weights", tile, stride, t.dw, t.expected_dw, t.weights, &t.source);
        release(&t);
    }
}

static void check_all(int tile, size_t stride, double limit)
{
    check_block(8, tile, stride, limit);
    check_block(16, tile, stride, limit);
}

static void need_processor(void)
{
    if (!winograd_runs())
        cr_skip_test("a processor without AVX2 and FMA");
}

Test(cpu_winograd, tiles_of_two_are_exact)
{
    need_processor();
    check_all(2, 1, 0);
}

Test(cpu_winograd, a_stride_of_two_is_exact)
{
    need_processor();
    check_all(2, 2, 0);
}

Test(cpu_winograd, tiles_of_four_round_little)
{
    need_processor();
    check_all(4, 1, 1e-5);
}

static void compare_threads(const struct shape *shape, int tile, size_t stride)
{
    struct tensors one, more;
    make(shape, 8, stride, &one);
    run(&one, tile, 1);
    for (int threads = 2; threads <= 7; threads += threads == 2 ? 1 : 2) {
        make(shape, 8, stride, &more);
        run(&more, tile, threads);
        cr_expect_arr_eq(more.y, one.y, one.result.count * sizeof *one.y);
        cr_expect_arr_eq(more.dx, one.dx, one.source.count * sizeof *one.dx);
        cr_expect_arr_eq(more.dw, one.dw, one.weights * sizeof *one.dw);
        release(&more);
    }
    release(&one);
}

Test(cpu_winograd, the_number_of_threads_changes_no_bit)
{
    need_processor();
    for (size_t s = 0; s < SHAPES; s++) {
        compare_threads(&shapes[s], 2, 1);
        compare_threads(&shapes[s], 4, 1);
        compare_threads(&shapes[s], 2, 2);
    }
}

Test(cpu_winograd, only_shapes_that_gain_are_taken)
{
    need_processor();
    struct shape shape = {16, 64, 64, 16, 16, false};
    struct value source = value_of(&shape, 8, 64, 1), result = source, half = value_of(&shape, 8, 64, 2);
    struct value odd = value_of(&shape, 8, 24, 1);
    cr_expect_eq(winograd_tile(&source, &result, 1), 4);
    cr_expect_eq(winograd_tile(&source, &half, 2), 2);
    cr_expect_eq(winograd_tile(&source, &half, 1), 0);
    cr_expect_eq(winograd_tile(&source, &half, 3), 0);
    cr_expect_eq(winograd_tile(&odd, &result, 1), 0);
    cr_expect_eq(winograd_tile(&source, &odd, 1), 0);
    result.block = 16;
    cr_expect_eq(winograd_tile(&source, &result, 1), 0);
    source.block = 16;
    cr_expect_eq(winograd_tile(&source, &result, 1), 4);
    shape = (struct shape){32, 64, 64, 2, 2, true};
    source = result = value_of(&shape, 8, 64, 1);
    cr_expect_eq(winograd_tile(&source, &result, 1), 2);
    source.images = result.images = 1; /* the weights' transform costs more than it saves */
    cr_expect_eq(winograd_tile(&source, &result, 1), 0);
}
