/* test_cpu_norms.c - batch norms over all workers: several backends with a part of a batch each against one that has all
 * of it. The workers are threads; sums are added up by a barrier.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "nn/backend.h"
#include "nn/models/build.h"
#include "support_golden.h"

#define OK(expression) cr_assert_geq((expression), 0, "%s", status_message())

enum { WORKERS_MOST = 5, CLASSES = 10, VALUES_MOST = 2048 };

/* What workers share. */
struct meeting {
    pthread_barrier_t barrier;
    int workers;
    double *values[WORKERS_MOST];
    size_t calls;
};

struct worker {
    struct meeting *meeting;
    int rank, batch;
    int capacity;   /* of the backend; 0: batch */
    double divisor; /* of the gradients; 0: batch */
    const struct model *model;
    const float *parameters, *images;
    const int32_t *labels;
    float *gradients, *state; /* canonical */
    struct step_result result;
};

static enum status add_at_meeting(void *context, double *values, size_t count)
{
    const struct worker *worker = context;
    struct meeting *meeting = worker->meeting;
    double sum[VALUES_MOST];
    cr_assert_leq(count, VALUES_MOST);
    meeting->values[worker->rank] = values;
    (void)pthread_barrier_wait(&meeting->barrier);
    for (size_t i = 0; i < count; i++) {
        sum[i] = 0;
        for (int r = 0; r < meeting->workers; r++)
            sum[i] += meeting->values[r][i];
    }
    meeting->calls += worker->rank == 0;
    (void)pthread_barrier_wait(&meeting->barrier);
    memcpy(values, sum, count * sizeof *values);
    return STATUS_OK;
}

static float *floats(size_t count)
{
    float *values = calloc(count + 1, sizeof *values);
    cr_assert_not_null(values);
    return values;
}

static void *work(void *context)
{
    struct worker *worker = context;
    const struct model *model = worker->model;
    const struct worker_sums sums = {.context = worker, .add = add_at_meeting};
    const struct backend_request request = {.model = model,
                                            .batch = worker->capacity > 0 ? worker->capacity : worker->batch,
                                            .threads = 1,
                                            .sums = worker->meeting != NULL ? &sums : NULL};
    struct backend *backend = NULL;
    OK(backend_cpu.open(&request, &backend));
    float *parameters = floats(model->parameters), *gradients = floats(model->parameters);
    OK(backend_cpu.to_native(backend, worker->parameters, parameters));
    const struct batch batch = {
        .count = worker->batch, .divisor = worker->divisor, .canonical = worker->images, .labels = worker->labels};
    OK(backend_cpu.step(backend, parameters, worker->state, &batch, gradients, NULL));
    OK(backend_cpu.collect(backend, &worker->result));
    OK(backend_cpu.to_canonical(backend, gradients, worker->gradients));
    free(parameters);
    free(gradients);
    backend_cpu.close(backend);
    return NULL;
}

/* |a - b| / |b| */
static double distance(const float *a, const float *b, size_t count)
{
    double sum = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(sum / size);
}

static struct worker worker_make(const struct model *model, const float *initial_state)
{
    struct worker worker = {.model = model, .gradients = floats(model->parameters), .state = floats(model->state)};
    memcpy(worker.state, initial_state, model->state * sizeof(float));
    return worker;
}

static void worker_free(struct worker *worker)
{
    free(worker->gradients);
    free(worker->state);
}

/* "plain": without batch norms, so that nothing but sums is shared. */
static struct model *make_model(const char *name, int size)
{
    struct model *model = NULL;
    struct build build;
    if (strcmp(name, "plain") != 0) {
        OK(model_create(name, CLASSES, size, &model));
        return model;
    }
    build_begin(&build, name, CLASSES, size, 3);
    int x = build_relu(&build, build_conv_bias(&build, BUILD_IMAGES, "conv1", 16, 3, 1), "relu1");
    x = build_max_pool_2x2(&build, x, "pool");
    x = build_relu(&build, build_conv_bias(&build, x, "conv2", 32, 3, 1), "relu2");
    x = build_relu(&build, build_linear(&build, build_average_pool_to(&build, x, "average", 2), "linear1", 24),
                   "relu3");
    build_linear(&build, x, "linear2", CLASSES);
    OK(build_end(&build, &model));
    return model;
}

/* Parts of `batch[workers]` images against all of them in one batch. Their gradients are weighted by their shares; with a
 * capacity backends are opened for so many images and weight them by a common divisor. */
static void compare_parts(const char *name, int size, int workers, const int *batch, int capacity)
{
    struct model *model = make_model(name, size);
    struct meeting meeting = {.workers = workers};
    struct worker worker[WORKERS_MOST];
    pthread_t thread[WORKERS_MOST];
    const size_t image = 3 * (size_t)size * (size_t)size;
    int all = 0, norms = 0;
    for (int k = 0; k < model->layers; k++)
        norms += model->layer[k].kind == LAYER_BATCH_NORM;
    for (int r = 0; r < workers; r++)
        all += batch[r];
    cr_assert_gt(all, 0);
    float *parameters = floats(model->parameters), *state = floats(model->state);
    float *images = floats((size_t)all * image), *mean = floats(model->parameters);
    int32_t *labels = calloc((size_t)all, sizeof *labels);
    cr_assert_not_null(labels);
    model_initialise(model, 3, parameters, state);
    formula_fill(SEED_INPUT, 1, 0, images, (size_t)all * image);
    for (int n = 0; n < all; n++)
        labels[n] = n * 7 % CLASSES;
    struct worker whole = worker_make(model, state);
    whole.batch = all;
    whole.parameters = parameters;
    whole.images = images;
    whole.labels = labels;
    (void)work(&whole);

    cr_assert_eq(pthread_barrier_init(&meeting.barrier, NULL, (unsigned)workers), 0);
    for (int r = 0, first = 0; r < workers; first += batch[r++]) {
        worker[r] = worker_make(model, state);
        worker[r].meeting = &meeting;
        worker[r].rank = r;
        worker[r].batch = batch[r];
        worker[r].capacity = capacity;
        worker[r].divisor = capacity > 0 ? (double)all / workers : 0;
        worker[r].parameters = parameters;
        worker[r].images = images + (size_t)first * image;
        worker[r].labels = labels + first;
        cr_assert_eq(pthread_create(&thread[r], NULL, work, &worker[r]), 0);
    }
    double loss = 0;
    for (int r = 0; r < workers; r++) {
        const double share = (double)batch[r] / all, weight = capacity > 0 ? 1.0 / workers : share;
        cr_assert_eq(pthread_join(thread[r], NULL), 0);
        loss += share * worker[r].result.loss;
        for (size_t i = 0; i < model->parameters; i++)
            mean[i] += (float)weight * worker[r].gradients[i];
        if (norms > 0)
            cr_expect_lt(distance(worker[r].state, whole.state, model->state), 1e-6, "running statistics");
        cr_expect_arr_eq(worker[r].state, worker[0].state, model->state * sizeof(float));
        if (batch[r] < all)
            cr_expect_neq(distance(worker[r].gradients, whole.gradients, model->parameters), 0);
    }
    cr_expect_float_eq(loss, whole.result.loss, 1e-6 * whole.result.loss, "%.9g, of the whole %.9g", loss,
                       whole.result.loss);
    const double off = distance(mean, whole.gradients, model->parameters);
    cr_expect_lt(off, norms > 0 ? 1e-5 : 1e-6, "%s on %d workers: gradients are %g off", name, workers, off);
    cr_expect_eq(meeting.calls, (size_t)(2 * norms), "one exchange of each norm and direction");
    for (int r = 0; r < workers; r++)
        worker_free(&worker[r]);
    worker_free(&whole);
    (void)pthread_barrier_destroy(&meeting.barrier);
    free(parameters);
    free(state);
    free(images);
    free(mean);
    free(labels);
    model_destroy(model);
}

static void parts_make_a_whole(const char *name, int size, int workers, const int *batch)
{
    compare_parts(name, size, workers, batch, 0);
}

Test(norms, parts_of_a_batch_make_a_whole)
{
    parts_make_a_whole("cnn", 28, 2, (const int[]){6, 6});
    parts_make_a_whole("cnn", 28, 3, (const int[]){4, 4, 4});
    parts_make_a_whole("resnet18", 32, 2, (const int[]){8, 8});
    parts_make_a_whole("resnet18", 32, 3, (const int[]){8, 8, 8});
}

Test(norms, uneven_parts_are_weighted)
{
    parts_make_a_whole("cnn", 28, 2, (const int[]){9, 3});
    parts_make_a_whole("resnet18", 32, 3, (const int[]){2, 13, 9});
}

/* What is left at the end of an epoch: some workers have an image less than others, some none. */
Test(norms, parts_that_do_not_fill_their_batches_make_a_whole)
{
    compare_parts("cnn", 28, 2, (const int[]){4, 3}, 6);
    compare_parts("cnn", 28, 5, (const int[]){1, 1, 1, 0, 0}, 3);
    compare_parts("resnet18", 32, 3, (const int[]){8, 8, 0}, 9);
    compare_parts("resnet18", 32, 3, (const int[]){3, 2, 2}, 5);
    compare_parts("plain", 16, 1, (const int[]){5}, 7);
    compare_parts("plain", 16, 3, (const int[]){1, 1, 0}, 4);
    compare_parts("plain", 16, 5, (const int[]){3, 3, 2, 2, 2}, 3);
}

static enum status add_nothing(void *context, double *values, size_t count)
{
    (void)context, (void)values, (void)count;
    return fail(STATUS_TIMEOUT, "nobody answers");
}

Test(norms, a_failure_ends_the_step)
{
    struct model *model = NULL;
    const struct worker_sums sums = {.add = add_nothing};
    struct backend *backend = NULL;
    OK(model_create("cnn", CLASSES, 8, &model));
    OK(backend_cpu.open(&(struct backend_request){.model = model, .batch = 2, .threads = 1, .sums = &sums}, &backend));
    float *parameters = floats(model->parameters), *state = floats(model->state), *images = floats(2 * 3 * 64);
    const int32_t labels[2] = {0, 1};
    const struct batch batch = {.count = 2, .canonical = images, .labels = labels};
    float *gradients = floats(model->parameters);
    cr_expect_eq(backend_cpu.step(backend, parameters, state, &batch, gradients, NULL), STATUS_TIMEOUT);
    backend_cpu.close(backend);
    free(gradients);
    free(parameters);
    free(state);
    free(images);
    model_destroy(model);
}
