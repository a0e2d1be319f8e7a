/* test_formats.c - every format of data sets, good and bad: what is found, in which order, with which labels; bad images
 * are counted and replaced alike everywhere.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "nn/data.h"
#include "nn/data/loader.h"
#include "nn/data/pack.h"
#include "nn/data/tar_index.h"
#include "tests/base/expect.h"
#include "tests/base/folder.h"
#include "tests/nn/support_images.h"
#include "tests/nn/support_set.h"
#include "tests/nn/support_tar.h"

/* Folders above it are made. */
static void put(const char *name, const void *bytes, size_t length)
{
    char path[400];
    (void)snprintf(path, sizeof path, "./%s", name);
    *strrchr(path, '/') = '\0';
    EXPECT_OK(folder_create(path));
    EXPECT_OK(file_write_atomic(name, bytes, length));
}

static void expect_bad_set(const char *name, enum status wanted, const char *why)
{
    struct data *data = NULL;
    const struct data_request request = {.path = name, .image_size = 8, .seed = 3};
    EXPECT_FAIL(wanted, why, data_open(&request, &data));
    cr_expect_null(data);
}

static const char *format_of(const struct data *data)
{
    struct data_facts facts;
    data_facts(data, &facts);
    return facts.format;
}

static const char *notes_of(const struct data *data)
{
    struct data_facts facts;
    data_facts(data, &facts);
    return facts.notes;
}

/* A grey picture of one value, so that decoding tells which it was. */
static uint8_t *flat(int value, size_t *length)
{
    const struct picture picture = {.width = 24, .height = 24, .grey = true, .quality = 95, .seed = (unsigned)value};
    uint8_t *jpeg = picture_jpeg(&picture, length);
    if (jpeg == NULL)
        cr_skip_test("built without libjpeg-turbo");
    return jpeg;
}

/* ---- tar ---- */

/* A tar file being written, in memory. */
struct archive {
    unsigned char bytes[400000];
    size_t length;
};

static void add_block(struct archive *archive, const void *bytes, size_t length)
{
    cr_assert_lt(archive->length + length + 512, sizeof archive->bytes);
    memcpy(archive->bytes + archive->length, bytes, length);
    archive->length += (length + 511) / 512 * 512;
}

static void add_entry(struct archive *archive, char type, const char *name, const void *bytes, size_t length)
{
    unsigned char header[TAR_BLOCK];
    tar_header(header, type, name, length);
    add_block(archive, header, sizeof header);
    add_block(archive, bytes, length);
}

static void add_sample(struct archive *archive, const char *key, int value, int label)
{
    char name[300], text[16];
    size_t length = 0;
    uint8_t *jpeg = flat(value, &length);
    (void)snprintf(name, sizeof name, "%s.jpg", key);
    add_entry(archive, '0', name, jpeg, length);
    (void)snprintf(name, sizeof name, "%s.cls", key);
    (void)snprintf(text, sizeof text, "%d\n", label);
    add_entry(archive, '0', name, text, strlen(text));
    free(jpeg);
}

static void put_archive(const char *name, struct archive *archive)
{
    memset(archive->bytes + archive->length, 0, 1024);
    put(name, archive->bytes, archive->length + 1024);
    memset(archive, 0, sizeof *archive);
}

static struct archive archive;

static void put_shards(void)
{
    add_sample(&archive, "a/000", 1, 2);
    add_sample(&archive, "a/001", 2, 0);
    put_archive("set/train-1.tar", &archive);
    add_sample(&archive, "b/002", 3, 1);
    put_archive("set/train-0.tar", &archive);
    add_sample(&archive, "c/003", 4, 1);
    put_archive("set/val.tar", &archive);
}

TestSuite(tar, .init = enter_folder, .fini = leave_folder);

Test(tar, shards_and_samples_count_in_the_order_of_names_and_places)
{
    put_shards();
    struct data *data = open_set("set", 16);
    cr_expect_str_eq(format_of(data), "tar");
    cr_expect_eq(data_train_count(data), 3);
    cr_expect_eq(data_test_count(data), 1);
    cr_expect_eq(data_classes(data), 3);
    static const int labels[] = {1, 2, 0};
    for (size_t i = 0; i < 3; i++)
        cr_expect_eq(data_label(data, false, i), labels[i]);
    cr_expect_eq(data_label(data, true, 0), 1);
    cr_expect(file_exists("set/train-0.tar.index"));
    data_close(data);
}

static uint64_t contents_of(const char *set)
{
    uint64_t hash = 0;
    struct data *data = open_set(set, 16);
    EXPECT_OK(data_contents(data, &hash));
    data_close(data);
    return hash;
}

Test(tar, contents_are_told_apart_without_paths_and_times)
{
    put_shards();
    const uint64_t hash = contents_of("set");
    put_shards();
    cr_expect_eq(contents_of("set"), hash);
    add_sample(&archive, "b/002", 9, 1); /* the same label */
    put_archive("set/train-0.tar", &archive);
    cr_expect_neq(contents_of("set"), hash);
}

/* One image of 100 with a byte more: among the 64 that are read, or not. */
Test(tar, contents_tell_every_length)
{
    enum { SAMPLES = 100 };
    uint64_t hash = 0;
    for (int longer = -1; longer < 5; longer++) {
        for (int i = 0; i < SAMPLES; i++) {
            char name[32];
            uint8_t bytes[16] = {0};
            (void)snprintf(name, sizeof name, "a/%03d.jpg", i);
            add_entry(&archive, '0', name, bytes, i == longer ? 9 : 8);
            (void)snprintf(name, sizeof name, "a/%03d.cls", i);
            add_entry(&archive, '0', name, "0", 1);
        }
        put_archive("set/train-0.tar", &archive);
        add_sample(&archive, "c/003", 4, 0);
        put_archive("set/val.tar", &archive);
        if (longer < 0)
            hash = contents_of("set");
        else
            cr_expect_neq(contents_of("set"), hash, "image %d", longer);
    }
}

Test(tar, an_index_is_used_until_the_file_changes)
{
    struct tar_index index;
    bool scanned = false, stored = false;
    put_shards();
    EXPECT_OK(tar_index_open("set/train-1.tar", &index, &scanned, &stored));
    cr_expect(scanned && stored && index.count == 2);
    tar_index_release(&index);
    EXPECT_OK(tar_index_open("set/train-1.tar", &index, &scanned, &stored));
    cr_expect(!scanned && index.count == 2);
    cr_expect_eq(index.sample[0].offset, 512);
    cr_expect_eq(index.sample[1].label, 0);
    tar_index_release(&index);
    add_sample(&archive, "d/1", 5, 0);
    put_archive("set/train-1.tar", &archive);
    EXPECT_OK(tar_index_open("set/train-1.tar", &index, &scanned, &stored));
    cr_expect(scanned && index.count == 1);
    tar_index_release(&index);
}

Test(tar, an_index_that_was_altered_is_made_anew)
{
    struct tar_index index;
    bool scanned = false, stored = false;
    char *text = NULL;
    size_t length = 0;
    put_shards();
    EXPECT_OK(tar_index_open("set/val.tar", &index, &scanned, &stored));
    tar_index_release(&index);
    EXPECT_OK(file_read("set/val.tar.index", 10000, &text, &length));
    for (size_t i = 0; i < length; i++) {
        char kept = text[i];
        text[i] = (char)(kept == '1' ? '2' : '1');
        put("set/val.tar.index", text, length);
        EXPECT_OK(tar_index_open("set/val.tar", &index, &scanned, &stored));
        cr_expect(scanned, "byte %zu altered", i);
        cr_expect(index.count == 1 && index.sample[0].label == 1 && index.sample[0].offset == 512);
        tar_index_release(&index);
        text[i] = kept;
    }
    free(text);
}

Test(tar, long_names_of_gnu_and_pax_are_read)
{
    struct tar_index index;
    char name[200], key[160], pax[260];
    size_t length = 0;
    uint8_t *jpeg = flat(7, &length);
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = '\0';
    (void)snprintf(name, sizeof name, "%s.jpg", key);
    add_entry(&archive, 'g', "pax_global_header", "19 comment=nothing\n", 19);
    add_entry(&archive, 'L', "././@LongLink", name, strlen(name) + 1);
    add_entry(&archive, 'K', "././@LongLink", "elsewhere", 10);
    add_entry(&archive, '0', "cut.jpg", jpeg, length);
    (void)snprintf(name, sizeof name, "%s.cls", key);
    (void)snprintf(pax, sizeof pax, "%zu path=%s\n", strlen(name) + 10, name);
    add_entry(&archive, 'x', "PaxHeaders/cut", pax, strlen(pax));
    add_entry(&archive, '0', "other.txt", "6", 1);
    put_archive("long.tar", &archive);
    EXPECT_OK(tar_index_scan("long.tar", &index));
    cr_expect_eq(index.count, 1, "one key, so one sample");
    cr_expect_eq(index.sample[0].label, 6);
    cr_expect_eq(index.sample[0].length, length);
    tar_index_release(&index);
    free(jpeg);
}

Test(tar, what_lacks_image_or_label_is_counted)
{
    struct tar_index index;
    add_entry(&archive, '5', "folder/", "", 0);
    add_entry(&archive, '0', "folder/1.cls", "3", 1);
    add_entry(&archive, '0', "folder/2.txt", "words", 5);
    add_entry(&archive, '0', "folder/3.jpg", "x", 1);
    add_entry(&archive, '0', "folder/3.json", "{}", 2);
    add_entry(&archive, '0', "folder/4.cls", "2", 1);
    add_entry(&archive, '0', "folder/4.JPEG", "x", 1);
    put_archive("holes.tar", &archive);
    EXPECT_OK(tar_index_scan("holes.tar", &index));
    cr_expect_eq(index.count, 1);
    cr_expect_eq(index.sample[0].label, 2);
    cr_expect_eq(index.left_out, 2);
    tar_index_release(&index);
}

static void expect_bad_tar(const void *bytes, size_t length, const char *why)
{
    struct tar_index index;
    put("bad.tar", bytes, length);
    EXPECT_FAIL(STATUS_FORMAT, why, tar_index_scan("bad.tar", &index));
    cr_expect_not_null(strstr(status_message(), "bad.tar"));
}

Test(tar, damaged_files_are_named_with_the_place)
{
    add_entry(&archive, '0', "1.cls", "3", 1);
    add_entry(&archive, '0', "1.jpg", "xyz", 3);
    expect_bad_tar("no tar at all", 13, "in the middle of a header");
    expect_bad_tar(archive.bytes, 512, "byte 0: an entry that is longer than the file");
    expect_bad_tar(archive.bytes, 1300, "byte 1024: it ends in the middle");
    archive.bytes[1024] ^= 1;
    expect_bad_tar(archive.bytes, archive.length, "byte 1024: no header");
    archive.length = 0;
    add_entry(&archive, '0', "1.cls", "dog", 3);
    expect_bad_tar(archive.bytes, archive.length, "label");
}

/* Opening one would wait for a writer who never comes. */
Test(tar, a_pipe_is_refused_at_once)
{
    struct tar_index index;
    bool scanned = false, stored = false;
    cr_assert_eq(mkfifo("pipe.tar", 0600), 0);
    cr_expect_eq(tar_index_open("pipe.tar", &index, &scanned, &stored), STATUS_FORMAT);
    cr_expect_not_null(strstr(status_message(), "no regular file"), "%s", status_message());
}

/* Nor is one written that stands where the index would be. */
Test(tar, a_pipe_instead_of_the_index_is_left_alone)
{
    struct tar_index index;
    bool scanned = false, stored = true;
    put_shards();
    cr_assert_eq(mkfifo("set/val.tar.index", 0600), 0);
    EXPECT_OK(tar_index_open("set/val.tar", &index, &scanned, &stored));
    cr_expect(scanned && !stored && index.count == 1);
    tar_index_release(&index);
    cr_assert_eq(mkfifo("set/classes.txt", 0600), 0);
    expect_bad_set("set", STATUS_FORMAT, "classes.txt: no regular file");
}

Test(tar, labels_and_names_must_agree)
{
    put_shards();
    put("set/classes.txt", "cat\ndog\n", 8);
    expect_bad_set("set", STATUS_FORMAT, "names 2 classes");
    put("set/classes.txt", "cat\ndog\nhorse\nsheep\n\n", 21);
    struct data *data = open_set("set", 8);
    struct data_facts facts;
    data_facts(data, &facts);
    cr_expect_eq(data_classes(data), 4);
    cr_expect_str_eq(facts.class_name[3], "sheep");
    data_close(data);
    put("set/classes.txt", "cat\ndog\nhorse\n", 14);
    add_sample(&archive, "c/003", 4, 3);
    put_archive("set/val.tar", &archive);
    expect_bad_set("set", STATUS_FORMAT, "label 3");
}

/* ---- folders ---- */

static void put_picture(const char *name, int value)
{
    size_t length = 0;
    uint8_t *jpeg = flat(value, &length);
    put(name, jpeg, length);
    free(jpeg);
}

static void put_folders(void)
{
    put_picture("set/train/dog/2.jpg", 1);
    put_picture("set/train/cat/b.JPEG", 2);
    put_picture("set/train/dog/10.jpg", 3);
    put_picture("set/train/cat/a.jpeg", 4);
    put_picture("set/val/cat/z.jpg", 5);
    put_picture("set/val/dog/y.jpg", 6);
    put("set/train/.hidden/1.jpg", "x", 1);
    put("set/train/cat/.DS_Store", "x", 1);
    put("set/train/README", "x", 1);
}

TestSuite(imagefolder, .init = enter_folder, .fini = leave_folder);

static void expect_name(const struct data *data, bool test, size_t index, const char *end, int label)
{
    struct text name = {0};
    data_name(data, test, index, &name);
    cr_expect_not_null(strstr(text_string(&name), end), "%s: not %s", text_string(&name), end);
    cr_expect_eq(data_label(data, test, index), label);
    text_release(&name);
}

Test(imagefolder, classes_and_files_are_sorted_by_name)
{
    put_folders();
    struct data *data = open_set("set", 8);
    cr_expect_str_eq(format_of(data), "folder");
    cr_expect_str_eq(notes_of(data), "");
    cr_expect_eq(data_classes(data), 2);
    cr_assert(data_train_count(data) == 4 && data_test_count(data) == 2);
    expect_name(data, false, 0, "train/cat/a.jpeg", 0);
    expect_name(data, false, 1, "train/cat/b.JPEG", 0);
    expect_name(data, false, 2, "train/dog/10.jpg", 1);
    expect_name(data, false, 3, "train/dog/2.jpg", 1);
    expect_name(data, true, 1, "val/dog/y.jpg", 1);
    data_close(data);
}

Test(imagefolder, what_is_odd_is_noted)
{
    put_folders();
    put("set/train/dog/notes.txt", "x", 1);
    EXPECT_OK(folder_create("set/train/emu"));
    EXPECT_OK(folder_create("set/val/emu"));
    struct data *data = open_set("set", 8);
    cr_expect_not_null(strstr(notes_of(data), "1 empty class folder in "), "%s", notes_of(data));
    cr_expect_not_null(strstr(notes_of(data), ": emu"), "%s", notes_of(data));
    cr_expect_not_null(strstr(notes_of(data), "1 files in class folders are named neither"), "%s", notes_of(data));
    data_close(data);
}

Test(imagefolder, training_and_validation_have_the_same_classes)
{
    put_folders();
    put_picture("set/val/emu/1.jpg", 1);
    expect_bad_set("set", STATUS_FORMAT, "class emu is missing in train/");
    put_picture("set/train/emu/1.jpg", 1);
    put_picture("set/train/cow/1.jpg", 1);
    expect_bad_set("set", STATUS_FORMAT, "class cow is missing here");
}

Test(imagefolder, without_validation_nothing_is_evaluated)
{
    put_picture("set/train/dog/1.jpg", 1);
    struct data *data = open_set("set", 8);
    cr_expect_eq(data_test_count(data), 0);
    cr_expect_not_null(strstr(notes_of(data), "nothing is evaluated"));
    data_close(data);
    EXPECT_OK(folder_create("none/train"));
    expect_bad_set("none", STATUS_FORMAT, "no class folders");
}

/* ---- bad images ---- */

enum { GOOD = 30, BAD = 6, SIZE = 12, BATCH = 4 };

/* Every sixth of 36 is no picture. */
static void put_some_bad(void)
{
    char name[64];
    for (int i = 0; i < GOOD + BAD; i++) {
        (void)snprintf(name, sizeof name, "set/train/c%d/%02d.jpg", i % 3, i);
        if (i % 6 == 5)
            put(name, "\x89PNG\r\n\x1a\n........", 16);
        else
            put_picture(name, i);
    }
    put_picture("set/val/c0/1.jpg", 1);
    put("set/val/c0/2.jpg", "hello", 5);
    put_picture("set/val/c1/1.jpg", 2);
    put_picture("set/val/c2/1.jpg", 3);
}

static const struct batch *next(struct loader *loader)
{
    const struct batch *batch = NULL;
    EXPECT_OK(loader_next(loader, &batch));
    cr_assert_not_null(batch);
    return batch;
}

TestSuite(bad_images, .init = enter_folder, .fini = leave_folder);

Test(bad_images, are_replaced_alike_by_any_number_of_threads_and_workers)
{
    enum { BATCHES = 9, BYTES = BATCHES * BATCH * SIZE * SIZE * 3 };
    static uint8_t once[BYTES], again[BYTES];
    put_some_bad();
    struct data *data = open_set("set", SIZE);
    for (int threads = 0; threads < 4; threads++) {
        for (int workers = 1; workers <= 2; workers++) {
            const struct data_order order = {
                .seed = 4, .samples = GOOD + BAD, .workers = workers, .batch = BATCH / workers};
            for (int rank = 0; rank < workers; rank++) {
                struct loader *loader = NULL;
                const struct loader_request request = {.data = data,
                                                       .batch = BATCH / workers,
                                                       .batches = BATCHES,
                                                       .order = &order,
                                                       .rank = rank,
                                                       .stored = true,
                                                       .threads = threads,
                                                       .ahead = 1,
                                                       .held = 1};
                EXPECT_OK(loader_open(&request, &loader));
                for (int b = 0; b < BATCHES; b++) {
                    const struct batch *batch = next(loader);
                    cr_expect_eq(batch->count, BATCH / workers, "batches stay full");
                    memcpy(again + (b * BATCH + rank * batch->count) * SIZE * SIZE * 3, batch->stored->bytes,
                           (size_t)batch->count * SIZE * SIZE * 3);
                    loader_done(loader);
                }
                loader_close(loader);
            }
            if (threads == 0 && workers == 1)
                memcpy(once, again, sizeof once);
            cr_expect_arr_eq(once, again, sizeof once, "%d threads, %d workers", threads, workers);
        }
    }
    struct data_facts facts;
    data_facts(data, &facts);
    cr_expect_geq(facts.skipped, 8 * BAD, "each time anew: %zu", facts.skipped);
    data_close(data);
}

Test(bad_images, are_left_out_of_evaluation)
{
    put_some_bad();
    struct data *data = open_set("set", SIZE);
    cr_expect_eq(data_test_count(data), 4);
    for (int threads = 0; threads < 3; threads++) {
        struct loader *loader = NULL;
        const struct loader_request request = {
            .data = data, .batch = 3, .batches = 2, .stride = 1, .threads = threads, .ahead = 1, .held = 1};
        EXPECT_OK(loader_open(&request, &loader));
        const struct batch *batch = next(loader);
        cr_expect_eq(batch->count, 2);
        cr_expect(batch->labels[0] == 0 && batch->labels[1] == 1);
        loader_done(loader);
        cr_expect_eq(next(loader)->count, 1);
        loader_close(loader);
    }
    data_close(data);
}

Test(bad_images, a_set_of_nothing_else_ends_with_a_reason)
{
    put("set/train/c0/1.jpg", "hello", 5);
    struct data *data = open_set("set", SIZE);
    struct data_order order = {.seed = 1, .samples = 1, .workers = 1, .batch = 1};
    float image[3 * SIZE * SIZE];
    int32_t label = 0;
    EXPECT_FAIL(STATUS_FORMAT, "in a row can't be decoded", data_train_batch(data, &order, 0, 0, image, &label));
    data_close(data);
}

Test(bad_images, a_file_that_goes_away_is_an_error_with_its_name)
{
    put_folders();
    struct data *data = open_set("set", SIZE);
    cr_assert_eq(unlink("set/train/dog/2.jpg"), 0);
    struct data_order order = {.seed = 1, .samples = 4, .workers = 1, .batch = 4};
    for (int threads = 0; threads < 3; threads++) {
        struct loader *loader = NULL;
        const struct batch *batch = NULL;
        const struct loader_request request = {
            .data = data, .batch = 4, .batches = 3, .order = &order, .threads = threads, .ahead = 1, .held = 1};
        EXPECT_OK(loader_open(&request, &loader));
        EXPECT_FAIL(STATUS_IO, "dog/2.jpg: No such file", loader_next(loader, &batch));
        loader_close(loader);
    }
    data_close(data);
}

/* ---- epochs over a real format ---- */

TestSuite(epochs, .init = enter_folder, .fini = leave_folder);

/* The order in which a folder lists its files is that of their making, more or less: another one changes nothing. */
Test(epochs, the_order_of_files_on_disk_does_not_matter)
{
    static float one[4 * 3 * SIZE * SIZE], two[4 * 3 * SIZE * SIZE];
    int32_t labels[2][4];
    struct data_order order = {.seed = 1, .samples = 12, .workers = 1, .batch = 4};
    char name[64];
    for (int i = 0; i < 12; i++) {
        (void)snprintf(name, sizeof name, "one/train/c%d/%02d.jpg", i % 2, i);
        put_picture(name, i);
        (void)snprintf(name, sizeof name, "two/train/c%d/%02d.jpg", (11 - i) % 2, 11 - i);
        put_picture(name, 11 - i);
    }
    struct data *first = open_set("one", SIZE), *second = open_set("two", SIZE);
    for (uint64_t step = 0; step < 6; step++) {
        EXPECT_OK(data_train_batch(first, &order, step, 0, one, labels[0]));
        EXPECT_OK(data_train_batch(second, &order, step, 0, two, labels[1]));
        cr_expect_arr_eq(one, two, sizeof one);
        cr_expect_arr_eq(labels[0], labels[1], sizeof labels[0]);
    }
    data_close(first);
    data_close(second);
}

/* ---- CIFAR ---- */

TestSuite(cifar, .init = enter_folder, .fini = leave_folder);

static void put_records(const char *name, int count, int label_bytes, int first)
{
    static uint8_t bytes[4 * 3074];
    uint8_t *at = bytes;
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < label_bytes; k++)
            *at++ = (uint8_t)(k + 1 < label_bytes ? 19 : (first + i) % 10); /* the coarse one comes first */
        for (int p = 0; p < 3072; p++)
            *at++ = (uint8_t)(first + i + 3 * (p / 1024) + p % 1024);
    }
    put(name, bytes, (size_t)(at - bytes));
}

static void put_cifar10(void)
{
    for (int f = 1; f <= 5; f++) {
        char name[32];
        (void)snprintf(name, sizeof name, "set/data_batch_%d.bin", f);
        put_records(name, f % 3 + 1, 1, 10 * f);
    }
    put_records("set/test_batch.bin", 2, 1, 7);
    put("set/batches.meta.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n", 21);
}

Test(cifar, ten_and_hundred_are_read)
{
    put_cifar10();
    struct data *data = open_set("set", 32);
    struct data_facts facts;
    data_facts(data, &facts);
    cr_expect_str_eq(facts.format, "cifar");
    cr_expect_str_eq(facts.augment, "crop-flip");
    cr_expect_str_eq(facts.class_name[9], "j");
    cr_expect_eq(data_train_count(data), 2 + 3 + 1 + 2 + 3);
    cr_expect_eq(data_label(data, false, 2), 20 % 10);
    uint8_t pixels[3072];
    int32_t label = -1;
    struct data_scratch *scratch = NULL;
    EXPECT_OK(data_scratch_open(data, &scratch));
    EXPECT_OK(data_square(data, scratch, true, 1, pixels, &label));
    cr_expect_eq(label, 8);
    for (int p = 0; p < 1024; p++)
        for (int c = 0; c < 3; c++)
            cr_assert_eq(pixels[p * 3 + c], (uint8_t)(8 + 3 * c + p));
    data_scratch_close(scratch);
    data_close(data);

    put_records("hundred/train.bin", 3, 2, 1);
    put_records("hundred/test.bin", 1, 2, 5);
    data = open_set("hundred", 32);
    cr_expect_eq(data_classes(data), 100);
    cr_expect_eq(data_label(data, false, 2), 3, "the fine label");
    data_close(data);
}

Test(cifar, what_is_torn_or_missing_is_named)
{
    put_cifar10();
    put("set/data_batch_3.bin", "12345", 5);
    expect_bad_set("set", STATUS_FORMAT, "no whole number of records");
    cr_assert_eq(unlink("set/data_batch_3.bin"), 0);
    expect_bad_set("set", STATUS_IO, "data_batch_3.bin");
    put_records("set/data_batch_3.bin", 1, 1, 30);
    static uint8_t strange[3073] = {10};
    put("set/test_batch.bin", strange, sizeof strange);
    expect_bad_set("set", STATUS_FORMAT, "label 10 of 10");
}

/* ---- packs ---- */

TestSuite(pack, .init = enter_folder, .fini = leave_folder);

static void expect_equal_sets(const struct data *a, const struct data *b)
{
    struct stored_images form;
    struct data_scratch *scratch[2] = {NULL, NULL};
    data_form(a, &form);
    const size_t bytes = (size_t)form.height * (size_t)form.width * (size_t)form.channels;
    uint8_t *image[2] = {malloc(bytes), malloc(bytes)};
    cr_assert(image[0] != NULL && image[1] != NULL);
    EXPECT_OK(data_scratch_open(a, &scratch[0]));
    EXPECT_OK(data_scratch_open(b, &scratch[1]));
    for (int test = 0; test < 2; test++) {
        const size_t count = test ? data_test_count(a) : data_train_count(a);
        cr_expect_eq(count, test ? data_test_count(b) : data_train_count(b));
        for (size_t i = 0; i < count; i++) {
            int32_t label[2];
            EXPECT_OK(data_square(a, scratch[0], test, i, image[0], &label[0]));
            EXPECT_OK(data_square(b, scratch[1], test, i, image[1], &label[1]));
            cr_expect_arr_eq(image[0], image[1], bytes);
            cr_expect_eq(label[0], label[1]);
        }
    }
    for (int k = 0; k < 2; k++) {
        data_scratch_close(scratch[k]);
        free(image[k]);
    }
}

Test(pack, has_the_images_of_what_it_was_made_of)
{
    struct pack_written written;
    put_folders();
    put_cifar10();
    struct data *data = open_set("set", 16), *packed = NULL; /* of both, cifar is asked first */
    cr_expect_str_eq(format_of(data), "cifar");
    EXPECT_OK(pack_write(data, "cifar.pack", &written));
    cr_expect_eq(written.left_out, 0);
    cr_expect_eq(written.train, data_train_count(data));
    cr_expect_eq(written.test, data_test_count(data));
    packed = open_set("cifar.pack", 16);
    expect_equal_sets(data, packed);
    struct data_facts of, in;
    data_facts(data, &of);
    data_facts(packed, &in);
    cr_expect_eq(of.class_hash, in.class_hash);
    cr_expect_eq(of.hash, in.hash);
    cr_expect_str_eq(in.augment, "crop-flip");
    data_close(data);
    data_close(packed);
    EXPECT_OK(pack_check("cifar.pack"));
}

Test(pack, leaves_bad_images_out)
{
    struct pack_written written;
    struct data_facts facts;
    char note[100];
    put_some_bad();
    struct data *data = open_set("set", SIZE);
    EXPECT_OK(pack_write(data, "some.pack", &written));
    cr_expect_eq(written.left_out, BAD + 1);
    struct data *packed = open_set("some.pack", SIZE);
    cr_expect_eq(data_train_count(packed), GOOD);
    cr_expect_eq(data_test_count(packed), 3);
    cr_expect_eq(written.train, GOOD);
    cr_expect_eq(written.test, 3);
    data_facts(packed, &facts);
    (void)snprintf(note, sizeof note, "%d images that could not be decoded left out", BAD + 1);
    cr_expect_not_null(strstr(facts.notes, note), "%s", facts.notes);
    EXPECT_OK(pack_check("some.pack"));
    data_close(data);
    data_close(packed);
}

Test(pack, every_altered_byte_is_noticed)
{
    struct pack_written written;
    size_t length = 0;
    char *bytes = NULL;
    put_records("set/train.bin", 2, 2, 1);
    put_records("set/test.bin", 1, 2, 5);
    struct data *data = open_set("set", SIZE);
    EXPECT_OK(pack_write(data, "a.pack", &written));
    data_close(data);
    EXPECT_OK(file_read("a.pack", 100000, &bytes, &length));
    for (size_t i = 0; i < length; i += i < 200 ? 1 : 97) {
        bytes[i] = (char)(bytes[i] ^ 0x10);
        put("b.pack", bytes, length);
        bytes[i] = (char)(bytes[i] ^ 0x10);
        if (i < 4096)
            expect_bad_set("b.pack", STATUS_FORMAT, "b.pack");
        EXPECT_FAIL(STATUS_FORMAT, "b.pack", pack_check("b.pack"));
    }
    put("b.pack", bytes, length - 1);
    expect_bad_set("b.pack", STATUS_FORMAT, "cut short");
    put("b.pack", bytes, 50);
    expect_bad_set("b.pack", STATUS_FORMAT, "no pack");
    bytes[8] = 1; /* whatever else it has */
    put("b.pack", bytes, length);
    expect_bad_set("b.pack", STATUS_FORMAT, "written by an older chorale (version 1, this one reads 2): make it anew");
    bytes[8] = 3;
    put("b.pack", bytes, length);
    expect_bad_set("b.pack", STATUS_FORMAT, "written by a newer chorale (version 3, this one reads 2)");
    free(bytes);
}

/* In the epoch in which it is read; the others are given. */
Test(pack, a_pixel_that_was_altered_ends_training_with_its_image)
{
    enum { IMAGES = 4 };
    struct pack_written written;
    size_t length = 0;
    char *bytes = NULL;
    float image[3 * 32 * 32];
    int32_t label;
    put_records("set/train.bin", IMAGES, 2, 1);
    put_records("set/test.bin", 1, 2, 5);
    struct data *data = open_set("set", 32);
    EXPECT_OK(pack_write(data, "a.pack", &written));
    data_close(data);
    EXPECT_OK(file_read("a.pack", 100000, &bytes, &length));
    bytes[length - (size_t)2 * 3072 + 1000] ^= 1; /* training image 3, before the test image */
    put("a.pack", bytes, length);
    free(bytes);
    data = open_set("a.pack", 32);
    const struct data_order order = {.seed = 1, .samples = IMAGES, .workers = 1, .batch = 1};
    for (uint64_t step = 0; step < IMAGES; step++) {
        enum status status = data_train_batch(data, &order, step, 0, image, &label);
        const bool damaged = data_order_sample(&order, 0, (size_t)step, 0, 0) == 3;
        cr_expect_eq(status, damaged ? STATUS_FORMAT : STATUS_OK);
        if (damaged)
            cr_expect_not_null(strstr(status_message(), "a.pack: training image 3 is damaged"), "%s", status_message());
    }
    data_close(data);
    EXPECT_FAIL(STATUS_FORMAT, "training image 3 is damaged", pack_check("a.pack"));
}

/* ---- cut or changed while they are read ---- */

TestSuite(cut, .init = enter_folder, .fini = leave_folder);

/* What is read of the file from then on is an error with its name: never a signal, never another image. */
static void expect_error(const struct data *data, const char *file, const char *told)
{
    static float image[3 * SIZE * SIZE];
    int32_t label;
    int failed = 0;
    const size_t count = data_train_count(data);
    const struct data_order order = {.seed = 1, .samples = count, .workers = 1, .batch = 1};
    for (uint64_t step = 0; step < count; step++) {
        const enum status status = data_train_batch(data, &order, step, 0, image, &label);
        cr_expect(status == STATUS_OK || status == STATUS_IO, "%s: %d", file, status);
        failed += status < 0;
        if (status < 0)
            cr_expect_not_null(strstr(status_message(), told), "%s", status_message());
        if (status < 0)
            cr_expect_not_null(strstr(status_message(), file), "%s", status_message());
    }
    cr_expect_gt(failed, 0, "%s", file);
}

static void expect_cut(const char *set, const char *file, off_t length)
{
    struct data *data = open_set(set, SIZE);
    cr_assert_eq(truncate(file, length), 0);
    expect_error(data, file, "was cut while it was read");
    data_close(data);
}

/* As long as before, at a later time, even within the clock tick in which it was made. */
static void expect_changed(const char *set, const char *file)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 2000000000}};
    struct data *data = open_set(set, SIZE);
    const int fd = open(file, O_WRONLY | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    cr_assert_eq(pwrite(fd, "xyz", 3, 700), 3);
    cr_assert_eq(futimens(fd, times), 0);
    cr_assert_eq(close(fd), 0);
    expect_error(data, file, "was changed while it was read");
    data_close(data);
}

Test(cut, packs_and_records_end_with_their_name)
{
    enum { RECORD = 3074 };
    struct pack_written written;
    for (int k = 0; k < 2; k++) {
        put_records("set/train.bin", 4, 2, 1);
        put_records("set/test.bin", 1, 2, 5);
        struct data *data = open_set("set", SIZE);
        EXPECT_OK(pack_write(data, "a.pack", &written));
        data_close(data);
        expect_cut("a.pack", "a.pack", k == 0 ? 4096 + 2 * 3072 + 7 : 0); /* within the third image */
        expect_cut("set", "set/train.bin", k == 0 ? 3 * RECORD + 5 : 0);
    }
}

Test(cut, a_shard_that_is_cut_is_no_bad_image)
{
    put_shards();
    expect_cut("set", "set/train-1.tar", 700); /* within its first image */
}

Test(cut, other_pixels_do_not_get_the_labels_of_before)
{
    struct pack_written written;
    put_records("set/train.bin", 4, 2, 1);
    put_records("set/test.bin", 1, 2, 5);
    struct data *data = open_set("set", SIZE);
    EXPECT_OK(pack_write(data, "a.pack", &written));
    data_close(data);
    expect_changed("a.pack", "a.pack");
    expect_changed("set", "set/train.bin");
}

Test(cut, a_shard_that_is_changed_is_no_bad_image)
{
    put_shards();
    expect_changed("set", "set/train-1.tar");
}

/* ---- choosing ---- */

TestSuite(choosing, .init = enter_folder, .fini = leave_folder);

Test(choosing, a_format_may_be_named)
{
    struct data *data = NULL;
    put_folders();
    put_cifar10();
    EXPECT_OK(data_open(&(struct data_request){.path = "folder:set", .image_size = 8}, &data));
    cr_assert_not_null(data);
    cr_expect_str_eq(format_of(data), "folder");
    data_close(data);
    EXPECT_FAIL(STATUS_IO, "train-images-idx3-ubyte",
                data_open(&(struct data_request){.path = "idx:set", .image_size = 8}, &data));
}

Test(choosing, without_a_path_nothing_is_read)
{
    static const char *const words[] = {"", "folder:", "tar:", "idx:"};
    struct data *data = NULL;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        EXPECT_FAIL(STATUS_USAGE, "a path is missing",
                    data_open(&(struct data_request){.path = words[i], .image_size = 8}, &data));
}

Test(choosing, synthetic_images_are_the_seeds)
{
    struct data *data[3];
    static float images[3][2 * 3 * 8 * 8];
    int32_t labels[3][2];
    struct data_order order = {.seed = 1, .samples = 1000, .workers = 1, .batch = 2};
    for (uint64_t k = 0; k < 3; k++) {
        EXPECT_OK(data_open(&(struct data_request){.path = "synthetic", .image_size = 8, .seed = k / 2}, &data[k]));
        cr_assert_not_null(data[k]);
        EXPECT_OK(data_train_batch(data[k], &order, 3, 0, images[k], labels[k]));
    }
    cr_expect_eq(data_train_count(data[0]), 1281167);
    cr_expect_eq(data_test_count(data[0]), 0);
    cr_expect_arr_eq(images[0], images[1], sizeof images[0]);
    int equal = 0;
    for (int i = 0; i < 2 * 3 * 8 * 8; i++)
        equal += images[0][i] == images[2][i];
    cr_expect_lt(equal, 40, "another seed, other images: %d values are equal", equal);
    for (int k = 0; k < 3; k++)
        data_close(data[k]);
}
