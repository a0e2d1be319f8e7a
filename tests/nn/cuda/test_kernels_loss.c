/* Bias and cross-entropy against plain C in double precision. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support_kernels.h"

/* ---- bias ---- */

static void check_bias(enum dtype type, size_t rows, size_t columns, bool add)
{
    const size_t count = rows * columns;
    float *y = calloc(count + 1, sizeof *y), *bias = device(columns * sizeof *bias);
    float *gradient = device(columns * sizeof *gradient);
    for (size_t i = 0; i < count; i++)
        y[i] = storage_round(type, number(1, i));
    for (size_t o = 0; o < columns; o++)
        bias[o] = number(2, o), gradient[o] = add ? 3 : NAN;
    void *got = device_storage(type, y, count);
    DONE(cuda_bias_gradient(NULL, type, got, gradient, rows, columns, 0.5F, add));
    for (size_t o = 0; o < columns; o++) {
        double sum = 0;
        for (size_t r = 0; r < rows; r++)
            sum += (double)y[r * columns + o];
        expect_near((double)gradient[o], sum / 2 + (add ? 3 : 0), 1e-6, 1e-6 * (1 + (double)rows), "bias gradient", o);
    }
    DONE(cuda_bias_add(NULL, type, got, bias, rows, columns));
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(storage_at(type, got, i), storage_round(type, y[i] + bias[i % columns]));
    free(y);
    devices_release();
}

Test(kernels_loss, bias)
{
    EACH_ORDER(order)
    EACH_STORAGE(type)
    {
        check_bias(*type, 1, 1, false);
        check_bias(*type, 3, 10, true);
        check_bias(*type, 65, 8, false);
        check_bias(*type, 7, 1000, false);
    }
}

/* ---- cross-entropy ---- */

struct want {
    double loss;
    uint32_t rank;
};

static struct want row_of(const float *logit, int32_t label, size_t classes, double smoothing, double *gradient)
{
    struct want want = {0, UINT32_MAX};
    memset(gradient, 0, classes * sizeof *gradient);
    if (label < 0 || (size_t)label >= classes)
        return want;
    double most = -INFINITY, sum = 0;
    want.rank = 0;
    for (size_t k = 0; k < classes; k++) {
        most = fmax(most, (double)logit[k]);
        want.rank += logit[k] > logit[label] || (logit[k] == logit[label] && k < (size_t)label);
    }
    for (size_t k = 0; k < classes; k++)
        sum += exp((double)logit[k] - most);
    for (size_t k = 0; k < classes; k++) {
        const double log_probability = (double)logit[k] - most - log(sum);
        const double target = smoothing / (double)classes + (k == (size_t)label ? 1 - smoothing : 0);
        want.loss -= target * log_probability;
        gradient[k] = exp(log_probability) - target;
    }
    return want;
}

static void check_cross_entropy(enum dtype type, size_t rows, size_t classes, float smoothing, bool in_place,
                                bool bad_labels)
{
    const size_t count = rows * classes;
    float *logits = calloc(count + 1, sizeof *logits);
    double *gradient = calloc(classes, sizeof *gradient);
    for (size_t i = 0; i < count; i++)
        logits[i] = storage_round(type, 6 * floorf(8 * number(1, i)) / 8); /* steps, so that some are equal */
    int32_t *labels = device(rows * sizeof *labels);
    for (size_t r = 0; r < rows; r++)
        labels[r] = (int32_t)((r * 7 + 3) % classes);
    if (bad_labels)
        labels[0] = -1, labels[rows - 1] = (int32_t)classes;
    void *at = device_storage(type, logits, count);
    const struct cuda_cross_entropy in = {.type = type,
                                          .logits = at,
                                          .labels = labels,
                                          .rows = rows,
                                          .classes = classes,
                                          .smoothing = smoothing,
                                          .scale = 128.0F / (float)(rows + 1),
                                          .gradient = in_place ? at : device(count * dtype_size(type)),
                                          .row_loss = device(rows * sizeof(float)),
                                          .row_rank = device(rows * sizeof(uint32_t)),
                                          .loss = device(sizeof(struct cuda_loss))};
    DONE(cuda_cross_entropy(NULL, &in));
    struct cuda_loss sum = {0};
    for (size_t r = 0; r < rows; r++) {
        const struct want want = row_of(logits + r * classes, labels[r], classes, (double)smoothing, gradient);
        expect_near((double)in.row_loss[r], want.loss, 2e-6, 2e-6, "loss", r);
        cr_assert_eq(in.row_rank[r], want.rank);
        sum.sum += want.loss;
        sum.top1 += want.rank == 0;
        sum.top5 += want.rank < 5;
        sum.bad_labels += want.rank == UINT32_MAX;
        for (size_t k = 0; k < classes; k++)
            expect_near((double)storage_at(type, in.gradient, r * classes + k), gradient[k] * (double)in.scale,
                        storage_epsilon(type) + 2e-6, 1e-6 * (double)in.scale, "gradient", r * classes + k);
    }
    expect_near(in.loss->sum, sum.sum, 2e-6, 1e-6, "sum", 0);
    cr_assert_eq(in.loss->top1, sum.top1);
    cr_assert_eq(in.loss->top5, sum.top5);
    cr_assert_eq(in.loss->bad_labels, sum.bad_labels);
    free(logits);
    free(gradient);
    devices_release();
}

Test(kernels_loss, cross_entropy)
{
    EACH_ORDER(order)
    EACH_STORAGE(type)
    {
        check_cross_entropy(*type, 1, 1, 0, false, false);
        check_cross_entropy(*type, 5, 10, 0, true, false);
        check_cross_entropy(*type, 9, 31, 0.1F, false, true);
        check_cross_entropy(*type, 3, 1000, 0.1F, true, false);
        check_cross_entropy(*type, 300, 3, 0, false, true);
    }
}

/* Results of one order are those of another, and the gradient may be left out. */
Test(kernels_loss, loss_alone)
{
    struct first_bits bits = {0};
    float logits[70 * 10];
    for (size_t i = 0; i < COUNT_OF(logits); i++)
        logits[i] = 9 * number(4, i);
    EACH_ORDER(order)
    {
        int32_t labels[70];
        for (int r = 0; r < 70; r++)
            labels[r] = r % 10;
        struct cuda_loss *loss = device(sizeof *loss);
        const struct cuda_cross_entropy in = {.type = DTYPE_F32,
                                              .logits = device_f32(logits, COUNT_OF(logits)),
                                              .labels = labels,
                                              .rows = 70,
                                              .classes = 10,
                                              .row_loss = device(70 * sizeof(float)),
                                              .row_rank = device(70 * sizeof(uint32_t)),
                                              .loss = loss};
        DONE(cuda_cross_entropy(NULL, &in));
        expect_same_bits(&bits, loss, sizeof *loss, "loss");
        devices_release();
    }
    first_bits_release(&bits);
}

/* Large logits, one of them infinitely small; NaN is seen. */
Test(kernels_loss, extremes)
{
    float logits[2 * 4] = {1e4F, 1e4F, -INFINITY, 0, 0, NAN, 1, 2}, loss_of[2];
    int32_t labels[2] = {1, 3};
    uint32_t rank[2];
    struct cuda_loss loss;
    const struct cuda_cross_entropy in = {.type = DTYPE_F32,
                                          .logits = device_f32(logits, 8),
                                          .labels = labels,
                                          .rows = 2,
                                          .classes = 4,
                                          .row_loss = loss_of,
                                          .row_rank = rank,
                                          .loss = &loss};
    DONE(cuda_cross_entropy(NULL, &in));
    expect_near((double)loss_of[0], log(2), 1e-6, 0, "loss", 0);
    cr_assert_eq(rank[0], 1);
    cr_assert(isnan(loss_of[1]));
    cr_assert(isnan(loss.sum));
    struct cuda_cross_entropy none = in;
    none.rows = 0;
    DONE(cuda_cross_entropy(NULL, &none));
    cr_assert_eq(loss.sum, 0);
    none.classes = 0;
    REFUSED(cuda_cross_entropy(NULL, &none));
    devices_release();
}
