/* Batch norm, additions and ReLU against plain C in double precision. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support_kernels.h"

struct shape {
    size_t rows, channels;
};

/* One row, one channel, odd counts, channels by 8 and not, several parts of the rows, many channels. */
static const struct shape shapes[] = {{1, 1},    {1, 8},    {2, 3},    {3, 5},   {5, 64},   {7, 24},  {147, 40},
                                      {333, 17}, {900, 64}, {5000, 8}, {3, 520}, {70, 301}, {4100, 1}};

/* How a case differs from the plainest. */
enum {
    ADDEND = 1, /* z is added                                      */
    RELU = 2,
    MASK = 4,      /* backward takes the mask, else the result        */
    INPUT = 8,     /* backward finds the ReLU's state from x          */
    MORE = 16,     /* a second gradient of y                          */
    DZ = 32,       /* the addend's gradient is wanted                 */
    ADD = 64,      /* gradients of gamma and beta are added to        */
    IN_PLACE = 128 /* y over z, dz over dy, dx over more or dy        */
};

static const unsigned variants[] = {0,
                                    RELU | INPUT,
                                    RELU,
                                    RELU | MASK | MORE,
                                    ADDEND | RELU | MASK | DZ,
                                    ADDEND | RELU | MASK | DZ | MORE | ADD,
                                    ADDEND | RELU | DZ | MORE | IN_PLACE,
                                    ADDEND | DZ,
                                    RELU | INPUT | MORE | IN_PLACE | ADD,
                                    RELU | INPUT | IN_PLACE};

struct test {
    enum dtype storage;
    size_t rows, channels, count;
    unsigned variant;
    struct cuda_norm norm;
    struct cuda_norm_forward forward;
    struct cuda_norm_backward backward;
    float *x, *z, *dy, *more; /* as stored, on the host; z and more 0 where they aren't there */
};

static const float loss_scale = 64;

/* `count` numbers as they will be stored: center + spread * [-1, 1). */
static float *numbers(enum dtype storage, size_t count, uint64_t seed, float center, float spread)
{
    float *values = calloc(count + 1, sizeof *values);
    cr_assert_not_null(values);
    for (size_t i = 0; i < count; i++)
        values[i] = storage_round(storage, center + spread * number(seed, i));
    return values;
}

static float *channel_numbers(size_t channels, uint64_t seed, float center)
{
    float *host = numbers(DTYPE_F32, channels, seed, center, 0.75F), *values = device_f32(host, channels);
    free(host);
    return values;
}

static void set_up(struct test *test, const struct shape *shape, enum dtype storage, unsigned variant, float center)
{
    const size_t count = shape->rows * shape->channels, bytes = count * dtype_size(storage);
    *test = (struct test){
        .storage = storage, .rows = shape->rows, .channels = shape->channels, .count = count, .variant = variant};
    test->x = numbers(storage, count, 1, center, 1);
    test->z = numbers(storage, count, 2, 0, variant & ADDEND ? 1.0F : 0.0F);
    test->dy = numbers(storage, count, 3, 0.25F, 1);
    test->more = numbers(storage, count, 4, 0, variant & MORE ? 1.0F : 0.0F);
    test->norm = (struct cuda_norm){.storage = storage,
                                    .rows = shape->rows,
                                    .channels = shape->channels,
                                    .x = device_storage(storage, test->x, count),
                                    .gamma = channel_numbers(shape->channels, 5, 1),
                                    .beta = channel_numbers(shape->channels, 6, 0),
                                    .epsilon = 1e-5,
                                    .mean = device(shape->channels * sizeof(float)),
                                    .inverse = device(shape->channels * sizeof(float)),
                                    .relu = variant & RELU,
                                    .workspace = device(cuda_norm_workspace(shape->rows, shape->channels))};
    void *z = variant & ADDEND ? device_storage(storage, test->z, count) : NULL;
    test->forward = (struct cuda_norm_forward){.addend = z,
                                               .y = z && variant & IN_PLACE ? z : device(bytes),
                                               .mask = variant & MASK ? device((count + 7) / 8) : NULL,
                                               .running_mean = channel_numbers(shape->channels, 7, 0),
                                               .running_variance = channel_numbers(shape->channels, 8, 1),
                                               .momentum = 0.1};
}

static void tear_down(struct test *test)
{
    free(test->x);
    free(test->z);
    free(test->dy);
    free(test->more);
    devices_release();
}

static double mean_of(const struct test *test, size_t c)
{
    double sum = 0;
    for (size_t r = 0; r < test->rows; r++)
        sum += (double)test->x[r * test->channels + c];
    return sum / (double)test->rows;
}

static double variance_of(const struct test *test, size_t c, double mean)
{
    double sum = 0;
    for (size_t r = 0; r < test->rows; r++) {
        const double apart = (double)test->x[r * test->channels + c] - mean;
        sum += apart * apart;
    }
    return sum / (double)test->rows;
}

/* y of element (r, c) before it is stored, from a mean and a variance. */
static double result_of(const struct test *test, size_t i, double mean, double variance)
{
    const size_t c = i % test->channels;
    const double inverse = 1 / sqrt(variance + 1e-5);
    const double y = ((double)test->x[i] - mean) * inverse * (double)test->norm.gamma[c] + (double)test->norm.beta[c] +
                     (double)test->z[i];
    return test->variant & RELU && y < 0 ? 0 : y;
}

/* Bits by what is stored, and none beyond the last element. */
static void check_mask(const struct test *test, const uint8_t *mask, const void *y)
{
    for (size_t i = 0; i < (test->count + 7) / 8 * 8; i++) {
        const bool open = i < test->count && storage_at(test->storage, y, i) > 0;
        cr_assert_eq(mask[i / 8] >> i % 8 & 1, open, "mask of element %zu", i);
    }
}

static void check_forward(struct test *test, double tolerance)
{
    float *running_mean = channel_numbers(test->channels, 7, 0),
          *running_variance = channel_numbers(test->channels, 8, 1);
    DONE(cuda_norm_forward(NULL, &test->norm, &test->forward));
    const double epsilon = storage_epsilon(test->storage), n = (double)test->rows;
    for (size_t c = 0; c < test->channels; c++) {
        const double mean = mean_of(test, c), variance = variance_of(test, c, mean);
        expect_near((double)test->norm.mean[c], mean, 1e-6, 1e-7, "mean", c);
        expect_near((double)test->norm.inverse[c], 1 / sqrt(variance + 1e-5), tolerance, 0, "inverse", c);
        expect_near((double)test->forward.running_mean[c], 0.9 * (double)running_mean[c] + 0.1 * mean, 1e-6, 1e-6,
                    "running mean", c);
        expect_near((double)test->forward.running_variance[c],
                    0.9 * (double)running_variance[c] + 0.1 * (n > 1 ? variance * n / (n - 1) : variance),
                    1e-6 + tolerance, 1e-7, "running variance", c);
        for (size_t i = c; i < test->count; i += test->channels)
            expect_near((double)storage_at(test->storage, test->forward.y, i), result_of(test, i, mean, variance),
                        epsilon + tolerance, 10 * tolerance, "y", i);
    }
    if (test->forward.mask)
        check_mask(test, test->forward.mask, test->forward.y);
}

/* ---- backward ---- */

/* The masked gradient, as kernels may store it in between. */
static double gradient_of(const struct test *test, const float *y, size_t i)
{
    if (test->variant & RELU && !(y[i] > 0))
        return 0;
    const float sum = test->dy[i] + test->more[i];
    return (double)(test->variant & DZ ? storage_round(test->storage, sum) : sum);
}

static void set_up_backward(struct test *test)
{
    const unsigned variant = test->variant;
    const size_t bytes = test->count * dtype_size(test->storage);
    void *dy = device_storage(test->storage, test->dy, test->count);
    void *more = variant & MORE ? device_storage(test->storage, test->more, test->count) : NULL;
    void *over = more ? more : dy; /* dz may lie over dy, then dx must not */
    test->backward = (struct cuda_norm_backward){.dy = dy,
                                                 .more = more,
                                                 .mask = test->forward.mask,
                                                 .y = variant & (MASK | INPUT) ? NULL : test->forward.y,
                                                 .dz = variant & DZ ? variant & IN_PLACE ? dy : device(bytes) : NULL,
                                                 .dx = variant & IN_PLACE ? over : device(bytes),
                                                 .dgamma = channel_numbers(test->channels, 9, 0),
                                                 .dbeta = channel_numbers(test->channels, 10, 0),
                                                 .scale = 1 / loss_scale,
                                                 .add = variant & ADD};
}

static void check_channel_backward(const struct test *test, const float *y, size_t c, const float *dgamma,
                                   const float *dbeta)
{
    const double mean = (double)test->norm.mean[c], inverse = (double)test->norm.inverse[c], n = (double)test->rows;
    const double gain = (double)test->norm.gamma[c] * inverse, epsilon = storage_epsilon(test->storage);
    double sum = 0, product = 0, size = 0;
    for (size_t i = c; i < test->count; i += test->channels) {
        const double g = gradient_of(test, y, i);
        sum += g;
        product += g * ((double)test->x[i] - mean);
        size += fabs(g);
    }
    const double was_gamma = test->variant & ADD ? (double)dgamma[c] : 0;
    const double was_beta = test->variant & ADD ? (double)dbeta[c] : 0;
    expect_near((double)test->backward.dgamma[c], was_gamma + product * inverse / (double)loss_scale, 1e-6,
                1e-6 * (1 + size * inverse), "dgamma", c);
    expect_near((double)test->backward.dbeta[c], was_beta + sum / (double)loss_scale, 1e-6, 1e-6 * (1 + size), "dbeta",
                c);
    for (size_t i = c; i < test->count; i += test->channels) {
        const double g = gradient_of(test, y, i), apart = (double)test->x[i] - mean;
        const double dx = gain * (g - sum / n - apart * inverse * inverse * product / n);
        expect_near((double)storage_at(test->storage, test->backward.dx, i), dx, epsilon + 1e-5,
                    1e-5 * fabs(gain) * (1 + size / n), "dx", i);
        if (test->variant & DZ)
            cr_assert_eq(storage_at(test->storage, test->backward.dz, i), storage_round(test->storage, (float)g));
    }
}

static void check_backward(struct test *test)
{
    float *y = calloc(test->count + 1, sizeof *y);
    for (size_t i = 0; i < test->count; i++)
        y[i] = storage_at(test->storage, test->forward.y, i);
    set_up_backward(test);
    float *dgamma = channel_numbers(test->channels, 9, 0), *dbeta = channel_numbers(test->channels, 10, 0);
    DONE(cuda_norm_backward(NULL, &test->norm, &test->backward));
    for (size_t c = 0; c < test->channels; c++)
        check_channel_backward(test, y, c, dgamma, dbeta);
    free(y);
}

/* Evaluation with the running statistics that training left. */
static void check_infer(struct test *test)
{
    struct cuda_norm_forward forward = test->forward;
    const struct cuda_norm norm = {.storage = test->storage,
                                   .rows = test->rows,
                                   .channels = test->channels,
                                   .x = test->norm.x,
                                   .gamma = test->norm.gamma,
                                   .beta = test->norm.beta,
                                   .epsilon = 1e-5,
                                   .relu = test->norm.relu};
    forward.addend = test->variant & ADDEND ? device_storage(test->storage, test->z, test->count) : NULL;
    DONE(cuda_norm_infer(NULL, &norm, &forward));
    for (size_t i = 0; i < test->count; i++) {
        const size_t c = i % test->channels;
        expect_near((double)storage_at(test->storage, forward.y, i),
                    result_of(test, i, (double)forward.running_mean[c], (double)forward.running_variance[c]),
                    storage_epsilon(test->storage) + 1e-6, 2e-6, "evaluated", i);
    }
}

/* All variants at small shapes, one at large ones: they differ only in how rows are shared out. */
static void check_shape(const struct shape *shape, enum dtype storage, size_t variant)
{
    struct first_bits y = {0}, dx = {0}, dgamma = {0}, running = {0};
    EACH_ORDER(order)
    {
        struct test test;
        set_up(&test, shape, storage, variants[variant], (shape->channels + variant) % 2 == 0 ? 0.5F : -0.5F);
        check_forward(&test, 1e-5);
        expect_same_bits(&y, test.forward.y, test.count * dtype_size(storage), "y");
        expect_same_bits(&running, test.forward.running_variance, test.channels * sizeof(float), "running variance");
        check_backward(&test);
        expect_same_bits(&dx, test.backward.dx, test.count * dtype_size(storage), "dx");
        expect_same_bits(&dgamma, test.backward.dgamma, test.channels * sizeof(float), "dgamma");
        check_infer(&test);
        tear_down(&test);
    }
    first_bits_release(&y);
    first_bits_release(&dx);
    first_bits_release(&dgamma);
    first_bits_release(&running);
}

Test(kernels_norm, small_shapes_every_variant)
{
    EACH_STORAGE(storage)
    for (size_t v = 0; v < COUNT_OF(variants); v++) {
        for (size_t s = 0; s < COUNT_OF(shapes); s++) {
            if (shapes[s].rows * shapes[s].channels <= 400)
                check_shape(&shapes[s], *storage, v);
        }
    }
}

Test(kernels_norm, large_shapes)
{
    size_t v = 0;
    for (size_t s = 0; s < COUNT_OF(shapes); s++) {
        if (shapes[s].rows * shapes[s].channels > 400)
            EACH_STORAGE(storage)
        check_shape(&shapes[s], *storage, v++ % COUNT_OF(variants));
    }
}

/* A mean of 1000 deviations: sums of squares would leave nothing of the variance. */
Test(kernels_norm, mean_that_is_large_against_the_deviation)
{
    static const struct shape tall[] = {{3000, 8}, {700, 3}};
    for (size_t s = 0; s < COUNT_OF(tall); s++) {
        struct test test;
        set_up(&test, &tall[s], DTYPE_F32, 0, 600);
        check_forward(&test, 1e-4);
        tear_down(&test);
    }
}

/* A single value a channel: variance 0, and the running one takes it as it is. */
Test(kernels_norm, one_row)
{
    struct test test;
    set_up(&test, &(struct shape){1, 16}, DTYPE_BF16, 0, 3);
    check_forward(&test, 1e-6);
    for (size_t c = 0; c < 16; c++) {
        cr_assert_eq(storage_at(DTYPE_BF16, test.forward.y, c), storage_round(DTYPE_BF16, test.norm.beta[c]));
        cr_assert(isfinite(test.forward.running_variance[c]));
    }
    tear_down(&test);
}

Test(kernels_norm, nan_is_not_hidden_by_relu)
{
    struct test test;
    set_up(&test, &(struct shape){6, 8}, DTYPE_F16, RELU | MASK, 0);
    ((uint16_t *)(void *)(uintptr_t)test.norm.x)[2 * 8 + 3] = 0x7e00;
    DONE(cuda_norm_forward(NULL, &test.norm, &test.forward));
    for (size_t i = 0; i < test.count; i++) {
        const bool lost = i % 8 == 3;
        cr_assert_eq(isnan(storage_at(DTYPE_F16, test.forward.y, i)) != 0, lost);
        cr_assert(!lost || test.forward.mask[i / 8] >> 3 & 1);
    }
    cr_assert(isnan(test.norm.mean[3]));
    tear_down(&test);
}

Test(kernels_norm, what_is_refused)
{
    struct test test;
    set_up(&test, &(struct shape){4, 8}, DTYPE_F32, 0, 0);
    set_up_backward(&test);
    struct cuda_norm norm = test.norm;
    norm.storage = DTYPE_I32;
    REFUSED(cuda_norm_forward(NULL, &norm, &test.forward));
    norm = test.norm;
    norm.x = (const char *)norm.x + 4;
    REFUSED(cuda_norm_forward(NULL, &norm, &test.forward));
    REFUSED(cuda_norm_infer(NULL, &norm, &test.forward));
    struct cuda_norm_backward backward = test.backward;
    backward.dz = backward.dx;
    REFUSED(cuda_norm_backward(NULL, &test.norm, &backward));
    norm = test.norm;
    norm.rows = 0;
    DONE(cuda_norm_forward(NULL, &norm, &test.forward));
    DONE(cuda_norm_backward(NULL, &norm, &test.backward));
    cr_assert_eq(cuda_norm_workspace(0, 8), 0);
    tear_down(&test);
}

/* ---- additions and ReLU ---- */

static void check_add_relu(enum dtype storage, size_t count, bool two, bool masked)
{
    float *a = numbers(storage, count, 11, 0, 1), *b = numbers(storage, count, 12, 0, two ? 1 : 0);
    float *dy = numbers(storage, count, 13, 0, 1), *more = numbers(storage, count, 14, 0, two ? 1 : 0);
    void *y = device_storage(storage, a, count); /* in place */
    uint8_t *mask = masked ? device((count + 7) / 8) : NULL;
    DONE(cuda_add_relu(NULL, storage, y, y, two ? device_storage(storage, b, count) : NULL, count, mask));
    void *dx = device_storage(storage, dy, count);
    DONE(cuda_add_relu_backward(NULL, storage, dx, dx, two ? device_storage(storage, more, count) : NULL, mask,
                                masked ? NULL : y, count));
    for (size_t i = 0; i < count; i++) {
        const float sum = a[i] + b[i], want = storage_round(storage, sum > 0 ? sum : 0);
        cr_assert_eq(storage_at(storage, y, i), want);
        cr_assert_eq(storage_at(storage, dx, i), want > 0 ? storage_round(storage, dy[i] + more[i]) : 0);
        cr_assert(!masked || (mask[i / 8] >> i % 8 & 1) == (want > 0));
    }
    free(a);
    free(b);
    free(dy);
    free(more);
    devices_release();
}

Test(kernels_norm, additions_and_relu)
{
    static const size_t counts[] = {0, 1, 7, 8, 13, 1000, 4099};
    EACH_ORDER(order)
    EACH_STORAGE(storage)
    for (size_t k = 0; k < COUNT_OF(counts); k++) {
        check_add_relu(*storage, counts[k], true, true);
        check_add_relu(*storage, counts[k], false, true);
        check_add_relu(*storage, counts[k], true, false);
    }
}

/* Without mask and result it is a sum of gradients. */
Test(kernels_norm, sum_of_gradients)
{
    enum { COUNT = 21 };
    float *a = numbers(DTYPE_BF16, COUNT, 1, 0, 1), *b = numbers(DTYPE_BF16, COUNT, 2, 0, 1);
    void *to = device(COUNT * sizeof(uint16_t));
    DONE(cuda_add_relu_backward(NULL, DTYPE_BF16, to, device_storage(DTYPE_BF16, a, COUNT),
                                device_storage(DTYPE_BF16, b, COUNT), NULL, NULL, COUNT));
    for (size_t i = 0; i < COUNT; i++)
        cr_assert_eq(storage_at(DTYPE_BF16, to, i), storage_round(DTYPE_BF16, a[i] + b[i]));
    free(a);
    free(b);
    devices_release();
}
