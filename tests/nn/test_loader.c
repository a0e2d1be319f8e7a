/* test_loader.c - stored images are those of the files and, resized, the canonical ones; a loader gives every batch of a
 * run in order and leaves alone what is out.
 */
#include "nn/data/loader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "tests/base/expect.h"

enum { TRAIN = 41, TEST = 13, HEIGHT = 5, WIDTH = 7, PIXELS = HEIGHT * WIDTH, SIZE = 9, STEPS = 25, BATCH = 3 };

static char folder[] = "/tmp/chorale-loader-XXXXXX";
static unsigned char train_images[16 + TRAIN * PIXELS], train_labels[8 + TRAIN];
static unsigned char test_images[16 + TEST * PIXELS], test_labels[8 + TEST];

static void put(const char *name, unsigned char *file, unsigned char kind, int count, int header, size_t bytes)
{
    char path[64];
    const unsigned char start[16] = {0, 0, 8, kind, 0, 0, 0, (unsigned char)count, 0, 0, 0, HEIGHT, 0, 0, 0, WIDTH};
    memcpy(file, start, (size_t)header);
    for (size_t i = (size_t)header; i < bytes; i++)
        file[i] = kind == 3 ? (unsigned char)(i * i * 7 + i * 31) : (unsigned char)(i * 3 % 10);
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    EXPECT_OK(file_write_atomic(path, file, bytes));
}

static struct data *open_data(void)
{
    struct data *data = NULL;
    cr_assert_not_null(mkdtemp(folder));
    put("train-images-idx3-ubyte", train_images, 3, TRAIN, 16, sizeof train_images);
    put("train-labels-idx1-ubyte", train_labels, 1, TRAIN, 8, sizeof train_labels);
    put("t10k-images-idx3-ubyte", test_images, 3, TEST, 16, sizeof test_images);
    put("t10k-labels-idx1-ubyte", test_labels, 1, TEST, 8, sizeof test_labels);
    EXPECT_OK(data_open(&(struct data_request){.path = folder, .image_size = SIZE}, &data));
    cr_assert_not_null(data);
    return data;
}

static void close_data(struct data *data)
{
    char command[80];
    (void)snprintf(command, sizeof command, "rm -r '%s'", folder);
    data_close(data);
    cr_expect_eq(system(command), 0);
}

/* ---- memory that counts as a device's ---- */

static int pinned;

static enum status host_alloc(struct device *device, size_t bytes, void **memory)
{
    (void)device;
    *memory = calloc(1, bytes);
    pinned++;
    return STATUS_OK;
}

static void host_free(struct device *device, void *memory)
{
    (void)device;
    pinned -= memory != NULL;
    free(memory);
}

static const struct device_ops ops = {.host_alloc = host_alloc, .host_free = host_free};
static struct device device = {.ops = &ops};

/* ---- what is in a batch ---- */

/* One coordinate of an axis of `in` pixels that becomes SIZE: neighbours between which a centre lies, and how far. */
static void centre(int in, int at, int *low, int *high, double *weight)
{
    double source = ((double)at + 0.5) * in / SIZE - 0.5;
    source = source < 0 ? 0 : source;
    *low = (int)source < in - 1 ? (int)source : in - 1;
    *high = *low + 1 < in ? *low + 1 : *low;
    *weight = source - *low;
}

static double resized(const struct stored_images *stored, const unsigned char *image, int channel, int y, int x)
{
    int north, south, west, east;
    double down, right;
    centre(stored->height, y, &north, &south, &down);
    centre(stored->width, x, &west, &east, &right);
    const int width = stored->width;
    const double upper = (1 - right) * image[north * width + west] + right * image[north * width + east];
    const double lower = (1 - right) * image[south * width + west] + right * image[south * width + east];
    return (((1 - down) * upper + down * lower) / 255 - (double)stored->mean[channel]) /
           (double)stored->deviation[channel];
}

/* Stored image i of a batch is image `index` of a file, all of it, and what a backend makes of it is canonical. */
static void expect_image(const struct batch *batch, int i, const unsigned char *images, const unsigned char *labels,
                         size_t index, const float *canonical)
{
    const struct stored_images *stored = batch->stored;
    const unsigned char *image = stored->bytes + (size_t)i * PIXELS;
    cr_assert(stored->height == HEIGHT && stored->width == WIDTH && stored->channels == 1);
    cr_expect_arr_eq(image, images + 16 + index * PIXELS, PIXELS);
    cr_expect_eq(batch->labels[i], labels[8 + index]);
    const struct image_box *box = &stored->box[i];
    cr_expect(box->left == 0 && box->top == 0 && box->width == WIDTH && box->height == HEIGHT && !box->flip);
    for (int k = 0; k < 3 * SIZE * SIZE; k++) {
        const double value = resized(stored, image, k / (SIZE * SIZE), k / SIZE % SIZE, k % SIZE);
        cr_expect_float_eq((double)canonical[k], value, 1e-5, "element %d: %g, not %g", k, (double)canonical[k], value);
    }
}

/* Batches of `request` as they are stored, beside the canonical ones. */
static void open_both(struct loader_request *request, struct loader **stored, struct loader **canonical)
{
    request->held = request->ahead = 1;
    request->batch = BATCH;
    EXPECT_OK(loader_open(request, canonical));
    request->stored = true;
    request->device = &device;
    EXPECT_OK(loader_open(request, stored));
    cr_assert(*stored != NULL && *canonical != NULL);
}

static void next_of_both(struct loader *stored, struct loader *canonical, const struct batch **bytes,
                         const struct batch **floats)
{
    EXPECT_OK(loader_next(stored, bytes));
    EXPECT_OK(loader_next(canonical, floats));
    cr_expect_null((*bytes)->canonical);
    cr_expect_null((*floats)->stored);
    cr_expect_eq((*bytes)->count, (*floats)->count);
    for (int i = 0; i < (*bytes)->count; i++)
        cr_expect_eq((*bytes)->labels[i], (*floats)->labels[i]);
}

static void close_both(struct loader *stored, struct loader *canonical)
{
    loader_close(stored);
    loader_close(canonical);
    cr_expect_eq(pinned, 0);
}

Test(stored, training_images_are_the_files_and_become_the_canonical_ones)
{
    struct data *data = open_data();
    const struct data_order order = {.seed = 5, .samples = TRAIN, .workers = 2, .batch = BATCH};
    struct loader_request request = {.data = data, .batches = 8, .order = &order, .rank = 1}; /* an epoch has 6 */
    struct loader *stored = NULL, *canonical = NULL;
    const struct batch *bytes = NULL, *floats = NULL;
    open_both(&request, &stored, &canonical);
    for (uint64_t step = 0; step < 8; step++) {
        next_of_both(stored, canonical, &bytes, &floats);
        cr_expect_eq(bytes->count, BATCH);
        for (int i = 0; i < BATCH; i++)
            expect_image(bytes, i, train_images, train_labels,
                         data_order_sample(&order, step / 6, (size_t)(step % 6), 1, i),
                         floats->canonical + (size_t)i * 3 * SIZE * SIZE);
        loader_done(stored);
        loader_done(canonical);
    }
    close_both(stored, canonical);
    close_data(data);
}

Test(stored, test_batches_are_those_of_a_stride)
{
    struct data *data = open_data();
    struct loader_request request = {.data = data, .batches = 2, .first = 1, .stride = 3}; /* of five */
    struct loader *stored = NULL, *canonical = NULL;
    const struct batch *bytes = NULL, *floats = NULL;
    open_both(&request, &stored, &canonical);
    for (size_t b = 0; b < 2; b++) {
        next_of_both(stored, canonical, &bytes, &floats);
        cr_expect_eq(bytes->count, b == 0 ? 3 : 1, "the last one is not full");
        for (int i = 0; i < bytes->count; i++)
            expect_image(bytes, i, test_images, test_labels, (1 + 3 * b) * BATCH + (size_t)i,
                         floats->canonical + (size_t)i * 3 * SIZE * SIZE);
        loader_done(stored);
        loader_done(canonical);
    }
    close_both(stored, canonical);
    close_data(data);
}

/* ---- a run ---- */

static const struct data_order order = {.seed = 2, .samples = TRAIN, .workers = 3, .batch = BATCH};

static void expect_step(const struct data *data, const struct batch *batch, uint64_t step)
{
    float images[BATCH * 3 * SIZE * SIZE];
    int32_t labels[BATCH];
    EXPECT_OK(data_train_batch(data, &order, step, 2, images, labels));
    cr_assert_eq(batch->count, BATCH);
    cr_expect_arr_eq(batch->canonical, images, sizeof images, "step %d", (int)step);
    cr_expect_arr_eq(batch->labels, labels, sizeof labels, "step %d", (int)step);
}

static struct loader *open_loader(const struct data *data, int threads)
{
    struct loader *loader = NULL;
    const struct loader_request request = {.data = data,
                                           .batch = BATCH,
                                           .batches = STEPS,
                                           .order = &order,
                                           .rank = 2,
                                           .threads = threads,
                                           .ahead = 1 + threads % 2,
                                           .held = 2,
                                           .device = &device};
    EXPECT_OK(loader_open(&request, &loader));
    cr_assert_not_null(loader);
    return loader;
}

static const struct batch *next(struct loader *loader)
{
    const struct batch *batch = NULL;
    EXPECT_OK(loader_next(loader, &batch));
    cr_assert_not_null(batch);
    return batch;
}

static const int thread_counts[] = {0, 1, 2, 5};
enum { THREAD_COUNTS = sizeof thread_counts / sizeof thread_counts[0] };

Test(loader, gives_the_same_batches_in_order_with_any_number_of_threads)
{
    struct data *data = open_data();
    for (int t = 0; t < THREAD_COUNTS; t++) {
        struct loader *loader = open_loader(data, thread_counts[t]);
        for (uint64_t step = 0; step < STEPS; step++) {
            expect_step(data, next(loader), step);
            loader_done(loader);
        }
        loader_close(loader);
    }
    close_data(data);
}

Test(loader, a_set_that_repeats_has_the_same_images_with_any_number_of_threads_from_any_step)
{
    struct data *data = NULL;
    struct loader *one = NULL, *other = NULL;
    const struct batch *a = NULL, *b = NULL;
    EXPECT_OK(data_open(&(struct data_request){.path = "synthetic", .image_size = SIZE}, &data));
    const struct data_order drawn = {.seed = 5, .samples = 100, .workers = 2, .batch = BATCH};
    struct loader_request request = {
        .data = data, .batch = BATCH, .batches = STEPS, .order = &drawn, .rank = 1, .stored = true, .held = 1};
    EXPECT_OK(loader_open(&request, &one));
    request.threads = request.ahead = 3;
    request.held = 2;
    request.first = 4;
    EXPECT_OK(loader_open(&request, &other));
    for (int step = 0; step < STEPS; step++) {
        EXPECT_OK(loader_next(one, &a));
        EXPECT_OK(loader_next(other, &b));
        cr_expect_arr_eq(a->stored->bytes, b->stored->bytes,
                         (size_t)BATCH * (size_t)a->stored->height * (size_t)a->stored->width *
                             (size_t)a->stored->channels);
        cr_expect_arr_eq(a->labels, b->labels, BATCH * sizeof a->labels[0]);
        loader_done(one);
        loader_done(other);
    }
    loader_close(one);
    loader_close(other);
    data_close(data);
}

Test(loader, a_set_that_repeats_is_shared_out_like_others)
{
    enum { SAMPLES = 100, WORKERS = 7, MANY = 20 }; /* more than a share has */
    struct data *data = NULL;
    struct data_facts facts;
    uint32_t *sorted = NULL;
    EXPECT_OK(data_open(&(struct data_request){.path = "synthetic", .image_size = SIZE}, &data));
    data_facts(data, &facts);
    EXPECT_OK(data_sort_by_label(facts.labels, SAMPLES, data_classes(data), &sorted));
    const struct data_order few = {
        .seed = 5, .samples = SAMPLES, .workers = WORKERS, .batch = MANY, .shard = SHARD_LABEL, .by_label = sorted};
    for (int rank = 0; rank < WORKERS; rank++) {
        const size_t begin = (size_t)rank * 14 + (size_t)(rank < 2 ? rank : 2), end = begin + (rank < 2 ? 15 : 14);
        struct loader *loader = NULL;
        const struct loader_request request = {
            .data = data, .batch = MANY, .batches = 1, .order = &few, .rank = rank, .stored = true, .held = 1};
        EXPECT_OK(loader_open(&request, &loader));
        const struct batch *batch = next(loader);
        for (int i = 0; i < MANY; i++) {
            cr_expect_geq(batch->labels[i], facts.labels[sorted[begin]], "rank %d, image %d", rank, i);
            cr_expect_leq(batch->labels[i], facts.labels[sorted[end - 1]], "rank %d, image %d", rank, i);
        }
        loader_done(loader);
        loader_close(loader);
    }
    free(sorted);
    data_close(data);
}

/* The last batch of an epoch is smaller, and tells by what its gradient is to be divided: each image comes once. */
Test(loader, gives_all_of_an_epoch_if_the_last_batch_is_kept)
{
    struct data *data = open_data();
    const struct data_order kept = {.seed = 2, .samples = TRAIN, .workers = 5, .batch = BATCH, .keep_last = true};
    for (int t = 0; t < THREAD_COUNTS; t++) {
        int images = 0, labels[10] = {0};
        for (int rank = 0; rank < 5; rank++) {
            struct loader *loader = NULL;
            const struct loader_request request = {.data = data,
                                                   .batch = BATCH,
                                                   .batches = 6,
                                                   .order = &kept,
                                                   .rank = rank,
                                                   .threads = thread_counts[t],
                                                   .ahead = 2,
                                                   .held = 1};
            EXPECT_OK(loader_open(&request, &loader));
            for (int step = 0; step < 6; step++) { /* 15, 15 and 11 images, twice */
                const struct batch *batch = next(loader);
                cr_expect_eq(batch->count, step % 3 < 2 ? 3 : rank == 0 ? 3 : 2, "rank %d, step %d", rank, step);
                cr_expect_float_eq(batch->divisor, step % 3 < 2 ? 3 : 11 / 5.0, 1e-15);
                images += batch->count;
                for (int i = 0; i < batch->count; i++)
                    labels[batch->labels[i]]++;
                loader_done(loader);
            }
            loader_close(loader);
        }
        cr_expect_eq(images, 2 * TRAIN);
        for (int i = 0; i < TRAIN; i++)
            labels[train_labels[8 + i]] -= 2;
        for (int c = 0; c < 10; c++)
            cr_expect_eq(labels[c], 0, "class %d", c);
    }
    close_data(data);
}

/* Slots that are first filled for a small batch have what a large one needs later. */
Test(loader, a_set_that_repeats_may_begin_with_its_last_batch)
{
    struct data *data = NULL;
    EXPECT_OK(data_open(&(struct data_request){.path = "synthetic", .image_size = SIZE}, &data));
    const size_t samples = data_train_count(data);
    const struct data_order kept = {.seed = 5,
                                    .samples = samples,
                                    .workers = 2,
                                    .batch = BATCH,
                                    .keep_last = true,
                                    .origin = {.step = 9, .epoch = 0, .position = samples - 2}};
    for (int threads = 0; threads < 3; threads++) {
        struct loader *loader = NULL;
        const struct loader_request request = {.data = data,
                                               .batch = BATCH,
                                               .batches = 4,
                                               .order = &kept,
                                               .first = 9,
                                               .stored = true,
                                               .threads = threads,
                                               .ahead = 1,
                                               .held = 1};
        uint8_t first[BATCH * 3 * SIZE * SIZE];
        EXPECT_OK(loader_open(&request, &loader));
        for (int step = 0; step < 4; step++) {
            const struct batch *batch = next(loader);
            cr_expect_eq(batch->count, step == 0 ? 1 : BATCH);
            if (step < 2)
                memcpy(first, batch->stored->bytes, sizeof first);
            const size_t bytes = (size_t)batch->count * 3 * SIZE * SIZE;
            cr_expect_arr_eq(batch->stored->bytes, first, bytes, "step %d", step);
            cr_expect_arr_neq(batch->stored->bytes + bytes - 12, "\0\0\0\0\0\0\0\0\0\0\0", 12);
            loader_done(loader);
        }
        loader_close(loader);
    }
    data_close(data);
}

Test(loader, leaves_alone_the_two_that_a_device_may_still_read)
{
    struct data *data = open_data();
    for (int t = 0; t < THREAD_COUNTS; t++) {
        struct loader *loader = open_loader(data, thread_counts[t]);
        const struct batch *before = next(loader);
        for (uint64_t step = 1; step < STEPS; step++) {
            const struct batch *batch = next(loader);
            clock_sleep_ns(step % 4 == 0 ? 2000000 : 0); /* time enough to spoil it */
            expect_step(data, before, step - 1);
            expect_step(data, batch, step);
            loader_done(loader);
            before = batch;
        }
        expect_step(data, before, STEPS - 1);
        loader_close(loader);
        cr_expect_eq(pinned, 0);
    }
    close_data(data);
}

Test(loader, may_end_at_any_step)
{
    struct data *data = open_data();
    for (uint64_t last = 0; last < 5; last++) {
        struct loader *loader = open_loader(data, 3);
        for (uint64_t step = 0; step < last; step++) {
            expect_step(data, next(loader), step);
            if (step > 0)
                loader_done(loader);
        }
        loader_close(loader);
        cr_expect_eq(pinned, 0);
    }
    loader_close(NULL);
    close_data(data);
}
