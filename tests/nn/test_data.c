/* test_data.c - idx files good and bad, resizing, and the order of training: workers disjoint, together everything. */
#include "nn/data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/file.h"
#include "tests/base/expect.h"
#include "tests/base/folder.h"

/* ---- order ---- */

/* Every sample at most once in an epoch, only an incomplete global batch left out. */
static void expect_cover(size_t samples, int workers, int batch, enum data_shard shard)
{
    struct data_order order = {.seed = 7, .samples = samples, .workers = workers, .batch = batch, .shard = shard};
    int32_t *labels = calloc(samples, sizeof *labels);
    unsigned char *seen = calloc(samples, 1);
    uint32_t *sorted = NULL;
    cr_assert(labels != NULL && seen != NULL);
    for (size_t i = 0; i < samples; i++)
        labels[i] = (int32_t)(i * 7 % 10);
    EXPECT_OK(data_sort_by_label(labels, samples, 10, &sorted));
    order.by_label = sorted;
    size_t batches = data_order_batches(&order), covered = 0;
    for (size_t b = 0; b < batches; b++) {
        for (int rank = 0; rank < workers; rank++) {
            for (int i = 0; i < batch; i++) {
                size_t sample = data_order_sample(&order, 3, b, rank, i);
                cr_assert_lt(sample, samples);
                cr_assert_eq(seen[sample]++, 0, "%s, %d workers: image %zu twice in one epoch", data_shard_name(shard),
                             workers, sample);
                covered++;
            }
        }
    }
    cr_expect_eq(covered, batches * (size_t)workers * (size_t)batch);
    cr_expect_lt(samples - covered, (size_t)workers * (size_t)batch, "only an incomplete global batch is left out");
    free(labels);
    free(seen);
    free(sorted);
}

static const enum data_shard shards[] = {SHARD_GLOBAL, SHARD_FIXED, SHARD_LABEL};
enum { SHARDS = sizeof shards / sizeof shards[0] };

Test(order, workers_are_disjoint_and_cover_the_epoch)
{
    static const int workers[] = {1, 2, 3, 5, 8, 13};
    for (size_t w = 0; w < sizeof workers / sizeof workers[0]; w++) {
        for (int s = 0; s < SHARDS; s++) {
            expect_cover(1000, workers[w], 1, shards[s]);
            expect_cover(1000, workers[w], 7, shards[s]);
            expect_cover(960, workers[w], 4, shards[s]);
            expect_cover(997, workers[w], 3, shards[s]);
        }
    }
}

Test(order, a_global_batch_is_the_same_however_it_is_split)
{
    struct data_order two = {.seed = 1, .samples = 500, .workers = 2, .batch = 8};
    struct data_order sixteen = {.seed = 1, .samples = 500, .workers = 16, .batch = 1};
    for (int i = 0; i < 16; i++)
        cr_expect_eq(data_order_sample(&two, 1, 5, i / 8, i % 8), data_order_sample(&sixteen, 1, 5, i, 0));
}

Test(order, differs_between_epochs_and_seeds_and_is_reproducible)
{
    for (int s = 0; s < SHARDS; s++) {
        uint32_t sorted[1000];
        for (uint32_t i = 0; i < 1000; i++)
            sorted[i] = 999 - i;
        struct data_order order = {
            .seed = 1, .samples = 1000, .workers = 1, .batch = 1, .shard = shards[s], .by_label = sorted};
        struct data_order other = order;
        other.seed = 2;
        int epochs = 0, seeds = 0;
        for (size_t b = 0; b < 1000; b++) {
            size_t sample = data_order_sample(&order, 0, b, 0, 0);
            cr_expect_eq(sample, data_order_sample(&order, 0, b, 0, 0));
            epochs += sample == data_order_sample(&order, 1, b, 0, 0);
            seeds += sample == data_order_sample(&other, 0, b, 0, 0);
        }
        cr_expect_lt(epochs, 20, "%d of 1000 images stay where they were", epochs);
        cr_expect_lt(seeds, 20);
    }
}

/* Which worker sees sample i in an epoch; -1: none. */
static void owners(const struct data_order *order, uint64_t epoch, int *owner)
{
    for (size_t i = 0; i < order->samples; i++)
        owner[i] = -1;
    for (size_t b = 0; b < data_order_batches(order); b++)
        for (int rank = 0; rank < order->workers; rank++)
            for (int i = 0; i < order->batch; i++)
                owner[data_order_sample(order, epoch, b, rank, i)] = rank;
}

Test(order, fixed_shares_stay_and_global_ones_do_not)
{
    enum { SAMPLES = 999, WORKERS = 3 };
    int first[SAMPLES], second[SAMPLES], moved[2] = {0, 0};
    for (int s = 0; s < 2; s++) {
        struct data_order order = {.seed = 1, .samples = SAMPLES, .workers = WORKERS, .batch = 9, .shard = shards[s]};
        owners(&order, 0, first);
        owners(&order, 1, second);
        for (int i = 0; i < SAMPLES; i++)
            moved[s] += first[i] != second[i];
    }
    cr_expect_eq(moved[1], 0, "fixed: every sample is with its worker");
    cr_expect_gt(moved[0], SAMPLES / 2, "global: two of three move");
}

Test(order, shares_by_label_hold_few_classes)
{
    enum { SAMPLES = 1000, WORKERS = 5 };
    int32_t labels[SAMPLES];
    int owner[SAMPLES];
    uint32_t *sorted = NULL;
    for (int i = 0; i < SAMPLES; i++)
        labels[i] = i * 3 % 10;
    EXPECT_OK(data_sort_by_label(labels, SAMPLES, 10, &sorted));
    struct data_order order = {
        .seed = 1, .samples = SAMPLES, .workers = WORKERS, .batch = 10, .shard = SHARD_LABEL, .by_label = sorted};
    owners(&order, 4, owner);
    for (int i = 0; i < SAMPLES; i++)
        cr_expect_eq(owner[i], labels[i] / 2, "100 images of each of 10 classes: two classes a worker");
    free(sorted);
}

Test(order, substitutes_come_from_the_own_share_and_are_reproducible)
{
    enum { SAMPLES = 90, WORKERS = 3 };
    int owner[SAMPLES];
    struct data_order order = {.seed = 5, .samples = SAMPLES, .workers = WORKERS, .batch = 1, .shard = SHARD_FIXED};
    owners(&order, 0, owner);
    bool other = false;
    for (int attempt = 0; attempt < 50; attempt++) {
        size_t one = data_order_substitute(&order, 1, 2, 17, attempt);
        cr_expect_eq(owner[one], 2);
        cr_expect_eq(one, data_order_substitute(&order, 1, 2, 17, attempt));
        other = other || one != data_order_substitute(&order, 1, 2, 17, 0);
    }
    cr_expect(other, "one that is bad, too, would be tried for ever");
    order.shard = SHARD_GLOBAL;
    cr_expect_eq(data_order_substitute(&order, 1, 0, 17, 0), data_order_substitute(&order, 1, 2, 17, 0),
                 "alike on all workers");
}

Test(order, has_no_batch_when_the_set_is_smaller)
{
    struct data_order order = {.seed = 1, .samples = 15, .workers = 2, .batch = 8};
    cr_expect_eq(data_order_batches(&order), 0);
    order.samples = 16;
    cr_expect_eq(data_order_batches(&order), 1);
}

/* ---- a small data set ---- */

static void put(const char *name, const void *bytes, size_t length)
{
    EXPECT_OK(file_write_atomic(name, bytes, length));
}

static void put_gzip(const char *name, const void *bytes, unsigned length)
{
    gzFile file = gzopen(name, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(gzwrite(file, bytes, length), (int)length);
    cr_assert_eq(gzclose(file), Z_OK);
}

/* Two images of 2x2 and their labels. */
static const unsigned char images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 255, 51, 102, 255, 255, 0, 0};
static const unsigned char labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 1, 0};

static void put_all(void)
{
    put("train-images-idx3-ubyte", images, sizeof images);
    put("train-labels-idx1-ubyte", labels, sizeof labels);
    put_gzip("t10k-images-idx3-ubyte.gz", images, sizeof images);
    put_gzip("t10k-labels-idx1-ubyte.gz", labels, sizeof labels);
}

static enum status open_at(const char *path, int size, struct data **data)
{
    struct data_request request = {.path = path, .image_size = size, .seed = 1};
    return data_open(&request, data);
}

static void test_batch(const struct data *data, size_t first, size_t stride, int count, float *pixels, int32_t *label)
{
    int good = count;
    EXPECT_OK(data_test_batch(data, first, stride, &good, pixels, label));
    cr_expect_eq(good, count);
}

static float normal(double grey)
{
    return (float)((grey / 255 - 0.2860) / 0.3530);
}

TestSuite(files, .init = enter_folder, .fini = leave_folder);

Test(files, plain_and_gzip_are_read)
{
    struct data *data = NULL;
    put_all();
    EXPECT_OK(open_at(".", 2, &data));
    cr_assert_not_null(data);
    cr_expect_eq(data_train_count(data), 2);
    cr_expect_eq(data_test_count(data), 2);
    cr_expect_eq(data_classes(data), 2);

    float pixels[12];
    int32_t label = -1;
    test_batch(data, 0, 1, 1, pixels, &label);
    cr_expect_eq(label, 1);
    static const double greys[] = {0, 255, 51, 102};
    for (int i = 0; i < 12; i++)
        cr_expect_float_eq(pixels[i], normal(greys[i % 4]), 1e-6, "three equal channels, normalised");
    data_close(data);
}

Test(files, images_are_resized_bilinearly_between_centres)
{
    struct data *data = NULL;
    put_all();
    EXPECT_OK(open_at(".", 4, &data));
    cr_assert_not_null(data);
    float pixels[48];
    int32_t label = -1;
    test_batch(data, 0, 1, 1, pixels, &label);
    static const double right[] = {0, 0.25, 0.75, 1}; /* output centres -0.25 (clamped), 0.25, 0.75, 1.25 (clamped) */
    for (int y = 0; y < 4; y++) {
        for (int x = 0; x < 4; x++) {
            double upper = 0 + 255 * right[x], lower = 51 + (102 - 51) * right[x];
            cr_expect_float_eq(pixels[4 * y + x], normal(upper + (lower - upper) * right[y]), 1e-5);
        }
    }
    data_close(data);
}

Test(files, a_stride_walks_the_test_set)
{
    struct data *data = NULL;
    put_all();
    EXPECT_OK(open_at(".", 2, &data));
    cr_assert_not_null(data);
    float pixels[24];
    int32_t label[2] = {-1, -1};
    test_batch(data, 1, 2, 1, pixels, label);
    cr_expect_eq(label[0], 0);
    cr_expect_float_eq(pixels[0], normal(255), 1e-6);
    test_batch(data, 0, 1, 2, pixels, label);
    cr_expect_eq(label[0], 1);
    cr_expect_eq(label[1], 0);
    data_close(data);
}

/* Opening fails, naming the file, what is wrong and the cure. */
static void expect_bad(const char *file, const char *what)
{
    struct data *data = NULL;
    EXPECT_FAIL(STATUS_FORMAT, what, open_at(".", 2, &data));
    cr_expect_null(data);
    cr_expect_not_null(strstr(status_message(), file), "%s: no %s in it", status_message(), file);
    cr_expect_not_null(strstr(status_message(), "apt-get install dataset-fashion-mnist"));
    cr_expect_not_null(strstr(status_message(), "--data="));
}

Test(files, a_missing_file_is_named_with_the_cure)
{
    struct data *data = NULL;
    put_all();
    cr_assert_eq(unlink("train-labels-idx1-ubyte"), 0);
    EXPECT_FAIL(STATUS_IO, "train-labels-idx1-ubyte", open_at(".", 2, &data));
    cr_expect_not_null(strstr(status_message(), "apt-get install dataset-fashion-mnist, or --data="));
    EXPECT_FAIL(STATUS_IO, "no such file or folder", open_at("nothing", 2, &data));
}

Test(files, a_truncated_file_is_refused)
{
    put_all();
    put("train-images-idx3-ubyte", images, sizeof images - 1);
    expect_bad("train-images-idx3-ubyte", "cut short: 23 of 24 bytes");
    put("train-images-idx3-ubyte", images, 7);
    expect_bad("train-images-idx3-ubyte", "header");
    put("train-images-idx3-ubyte", images, 0);
    expect_bad("train-images-idx3-ubyte", "header");
}

/* Reading a pipe would wait for a writer, a device would never end. */
Test(files, pipes_devices_and_folders_are_refused_at_once)
{
    put_all();
    cr_assert_eq(unlink("train-images-idx3-ubyte"), 0);
    cr_assert_eq(mkfifo("train-images-idx3-ubyte", 0600), 0);
    expect_bad("train-images-idx3-ubyte", "no regular file");
    cr_assert_eq(unlink("train-images-idx3-ubyte"), 0);
    cr_assert_eq(symlink("/dev/zero", "train-images-idx3-ubyte"), 0);
    expect_bad("train-images-idx3-ubyte", "no regular file");
    cr_assert_eq(unlink("train-images-idx3-ubyte"), 0);
    cr_assert_eq(mkdir("train-images-idx3-ubyte", 0700), 0);
    expect_bad("train-images-idx3-ubyte", "no regular file");
}

Test(files, a_truncated_gzip_file_is_refused)
{
    char *bytes = NULL;
    size_t length = 0;
    put_all();
    EXPECT_OK(file_read("t10k-labels-idx1-ubyte.gz", 1000, &bytes, &length));
    put("t10k-labels-idx1-ubyte.gz", bytes, length - 6);
    expect_bad("t10k-labels-idx1-ubyte.gz", "");
    free(bytes);
}

Test(files, a_wrong_magic_number_is_refused)
{
    put_all();
    put("train-images-idx3-ubyte", labels, sizeof labels);
    expect_bad("train-images-idx3-ubyte", "shorter than the header");
    put_all();
    put("train-labels-idx1-ubyte", images, sizeof images);
    expect_bad("train-labels-idx1-ubyte", "magic number");
}

Test(files, too_many_bytes_or_labels_are_refused)
{
    unsigned char longer[sizeof images + 1] = {0};
    static const unsigned char one[] = {0, 0, 8, 1, 0, 0, 0, 1, 1};
    put_all();
    memcpy(longer, images, sizeof images);
    put("train-images-idx3-ubyte", longer, sizeof longer);
    expect_bad("train-images-idx3-ubyte", "25 bytes, its header tells of 24");
    put_all();
    put("train-labels-idx1-ubyte", one, sizeof one);
    expect_bad("train-labels-idx1-ubyte", "1 labels for 2 images");
}

Test(files, absurd_sizes_are_refused)
{
    unsigned char absurd[sizeof images];
    put_all();
    memcpy(absurd, images, sizeof images);
    memset(absurd + 8, 0xff, 8); /* 2^32-1 pixels each way */
    put("train-images-idx3-ubyte", absurd, sizeof absurd);
    expect_bad("train-images-idx3-ubyte", "1024");
    memcpy(absurd, images, sizeof images);
    memset(absurd + 4, 0, 4);
    put("train-images-idx3-ubyte", absurd, sizeof absurd);
    expect_bad("train-images-idx3-ubyte", "empty");
}

Test(files, test_labels_unknown_to_training_are_refused)
{
    static const unsigned char strange[] = {0, 0, 8, 1, 0, 0, 0, 2, 1, 2};
    struct data *data = NULL;
    put_all();
    put_gzip("t10k-labels-idx1-ubyte.gz", strange, sizeof strange);
    EXPECT_FAIL(STATUS_FORMAT, "labels that the training set lacks", open_at(".", 2, &data));
}

/* ---- Fashion-MNIST ---- */

Test(fashion_mnist, is_what_it_should_be)
{
    struct data *data = NULL;
    if (!file_exists(DATA_FOLDER "/train-images-idx3-ubyte.gz"))
        cr_skip_test("Debian's dataset-fashion-mnist is not installed");
    EXPECT_OK(open_at(NULL, 28, &data));
    cr_assert_not_null(data);
    cr_expect_eq(data_train_count(data), 60000);
    cr_expect_eq(data_test_count(data), 10000);
    cr_expect_eq(data_classes(data), 10);

    enum { COUNT = 1000, PIXELS = 3 * 28 * 28 };
    float *pixels = calloc((size_t)COUNT * PIXELS, sizeof *pixels);
    int32_t label[COUNT];
    cr_assert_not_null(pixels);
    test_batch(data, 0, 10, COUNT, pixels, label);
    double sum = 0, squares = 0;
    for (size_t i = 0; i < (size_t)COUNT * PIXELS; i++) {
        sum += pixels[i];
        squares += (double)pixels[i] * pixels[i];
    }
    double mean = sum / ((double)COUNT * PIXELS);
    cr_expect_float_eq(mean, 0, 0.05, "mean %f", mean);
    cr_expect_float_eq(sqrt(squares / ((double)COUNT * PIXELS) - mean * mean), 1, 0.05);

    static const int32_t first[] = {9, 2, 1, 1, 6}; /* as everyone sees them */
    test_batch(data, 0, 1, 5, pixels, label);
    for (int i = 0; i < 5; i++)
        cr_expect_eq(label[i], first[i]);
    free(pixels);
    data_close(data);
}

/* ---- what is left at the end of an epoch, and other workers within one ---- */

/* Every sample once, over all workers and batches; *first: samples of the epoch in the order in which they are given. */
static void expect_all_once(const struct data_order *order, uint64_t epoch, size_t before, size_t *first)
{
    unsigned char seen[200] = {0};
    size_t given = before;
    const size_t samples = order->samples;
    const size_t global = (size_t)order->workers * (size_t)order->batch;
    const size_t left = samples - before, batches = (left + global - 1) / global;
    for (size_t b = 0; b < batches; b++) {
        int most = 0, least = order->batch;
        for (int rank = 0; rank < order->workers; rank++) {
            const int taken = data_order_images(order, epoch, b, rank);
            most = taken > most ? taken : most;
            least = taken < least ? taken : least;
            for (int i = 0; i < taken; i++) {
                const size_t sample = data_order_sample(order, epoch, b, rank, i);
                cr_assert_lt(sample, samples);
                cr_expect_eq(seen[sample]++, 0, "%d workers: image %zu twice", order->workers, sample);
                first[given++] = sample;
            }
        }
        cr_expect_leq(most - least, 1, "%d workers, batch %zu", order->workers, b);
    }
    cr_expect_eq(given, samples, "%d workers", order->workers);
}

Test(data, what_is_left_of_an_epoch_is_a_smaller_batch_if_kept)
{
    static const int workers[] = {1, 2, 3, 5};
    size_t reference[200], other[200];
    struct data_order order = {.seed = 3, .samples = 101, .workers = 1, .batch = 30, .keep_last = true};
    expect_all_once(&order, 1, 0, reference);
    for (size_t w = 0; w < sizeof workers / sizeof *workers; w++) {
        order.workers = workers[w];
        order.batch = 30 / workers[w];
        cr_expect_eq(data_order_batches(&order), 4);
        cr_expect_eq(data_order_rest(&order), 11);
        cr_expect_eq(data_order_all_images(&order, 1, 2), 30);
        cr_expect_eq(data_order_all_images(&order, 1, 3), 11);
        expect_all_once(&order, 1, 0, other);
        cr_expect_arr_eq(reference, other, 101 * sizeof *reference, "the same order for %d workers", workers[w]);
        expect_all_once(&order, 2, 0, other);
        cr_expect_arr_neq(reference, other, 101 * sizeof *reference, "another one in another epoch");
        cr_expect_eq(data_order_place(&order, 3).epoch, 0);
        cr_expect_eq(data_order_place(&order, 4).epoch, 1);
    }
    for (size_t w = 1; w < sizeof workers / sizeof *workers; w++) {
        static const enum data_shard fixed = SHARD_FIXED;
        order = (struct data_order){
            .seed = 3, .samples = 101, .workers = workers[w], .batch = 7, .shard = fixed, .keep_last = true};
        unsigned char seen[101] = {0};
        for (size_t b = 0; b < data_order_batches(&order); b++)
            for (int rank = 0; rank < order.workers; rank++)
                for (int i = 0; i < data_order_images(&order, 1, b, rank); i++)
                    seen[data_order_sample(&order, 1, b, rank, i)]++;
        for (size_t i = 0; i < 101; i++)
            cr_expect_eq(seen[i], 1, "%d shares: image %zu %d times", workers[w], i, seen[i]);
    }
}

/* A share of an epoch that is a whole number of steps is that number, whatever the division has rounded. */
Test(data, rounding_adds_no_step)
{
    cr_expect_gt(0.07 * 100, 7);
    cr_expect_eq(data_order_steps(0.07, 100), 7);
    cr_expect_eq(data_order_steps(0.1, 10), 1);
    cr_expect_eq(data_order_steps(0.1, 3), 1, "a part of a step");
    cr_expect_eq(data_order_steps(1e-6, 3), 1);
    cr_expect_eq(data_order_steps(90, 1281167), 115305030);
    cr_expect_eq(data_order_steps(2.0001, 10000), 20001);
    for (uint64_t batches = 1; batches < 700; batches++)
        for (uint64_t step = 0; step <= 3 * batches; step++)
            cr_assert_eq(data_order_steps((double)step / (double)batches, (double)batches), step);
}

/* Other workers take over where the first ones were: nothing twice, nothing left out, then whole epochs. */
Test(data, other_workers_go_on_in_the_middle_of_an_epoch)
{
    struct data_order two = {.seed = 3, .samples = 100, .workers = 2, .batch = 8};
    for (uint64_t step = 0; step < 13; step++) {
        const struct data_place at = data_order_place(&two, step);
        struct data_order five = {.seed = 3,
                                  .samples = 100,
                                  .workers = 5,
                                  .batch = 4,
                                  .origin = {.step = step, .epoch = at.epoch, .position = at.position}};
        unsigned char seen[100] = {0};
        for (uint64_t s = step - at.batch; s < step; s++)
            for (int i = 0; i < 16; i++)
                seen[data_order_sample(&two, at.epoch, (size_t)(s - (step - at.batch)), i / 8, i % 8)]++;
        uint64_t now = step;
        for (; data_order_place(&five, now).epoch == at.epoch; now++)
            for (int i = 0; i < 20; i++)
                seen[data_order_sample(&five, at.epoch, data_order_place(&five, now).batch, i / 4, i % 4)]++;
        size_t given = 0;
        for (size_t i = 0; i < 100; i++) {
            cr_expect_leq(seen[i], 1, "step %llu: image %zu twice", (unsigned long long)step, i);
            given += seen[i];
        }
        cr_expect_gt(given, 80, "less than a batch is left out");
        cr_expect_eq(now - step, (100 - at.position) / 20);
        cr_expect_eq(data_order_end(&five, (double)at.epoch + 1), now);
        cr_expect_eq(data_order_end(&five, (double)at.epoch + 2.5), now + 8, "two of five and a half are three");
        cr_expect_eq(data_order_end(&five, (double)at.epoch), step);
        cr_expect_eq(data_order_rest(&five), 0);
        cr_expect_eq(data_order_place(&five, now).epoch, at.epoch + 1);
        cr_expect_eq(data_order_place(&five, now).position, 0);
        cr_expect_eq(data_order_place(&five, now + 5).epoch, at.epoch + 2);
        cr_expect_float_eq(data_order_epochs(&five, now), (double)at.epoch + 1, 1e-12);
    }
}
