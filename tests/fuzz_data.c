/* fuzz_data.c - hostile data files: whatever the bytes of a JPEG image, a tar shard, its index, an idx file, CIFAR's or a
 * pack, opening and reading end with a status and a message, and every image that is given lies in the memory for it.
 *
 * Inputs are mutations of small good files, a function of seed and number: a crash is found again with --from=N --count=1.
 * In the test run a fixed number; by hand fuzz_data --count=100000. For use under AddressSanitizer.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "nn/data.h"
#include "nn/data/jpeg.h"
#include "nn/data/pack.h"
#include "nn/data/tar_index.h"
#include "nn/data/view.h"

enum { MOST = 1 << 16, SIZE = 20, MOST_SAMPLES = 200 };

static char folder[] = "/tmp/chorale-fuzz-XXXXXX";

/* ---- good files ---- */

struct input {
    uint8_t bytes[MOST];
    size_t length;
};

/* JPEG files of tests/nn/golden/images.txt: "file NAME HEX". */
enum { JPEGS = 8 };
static struct input jpegs[JPEGS];
static int jpeg_count;

static bool read_jpegs(void)
{
    char *text = NULL;
    size_t length = 0;
    if (file_read(CHORALE_SOURCE_DIR "/tests/nn/golden/images.txt", (size_t)1 << 24, &text, &length) < 0)
        return false;
    for (char *line = text; line != NULL && jpeg_count < JPEGS; line = strchr(line, '\n')) {
        line += line != text;
        if (strncmp(line, "file ", 5) != 0)
            continue;
        struct input *jpeg = &jpegs[jpeg_count++];
        unsigned value;
        const char *hex = strchr(line + 5, ' ') + 1;
        for (; hex[0] != '\n' && sscanf(hex, "%2x", &value) == 1; hex += 2)
            jpeg->bytes[jpeg->length++] = (uint8_t)value;
    }
    free(text);
    return jpeg_count == JPEGS;
}

static void append(struct input *input, const void *bytes, size_t length, size_t multiple)
{
    memcpy(input->bytes + input->length, bytes, length);
    input->length += (length + multiple - 1) / multiple * multiple;
}

static void append_entry(struct input *tar, const char *name, const void *bytes, size_t length)
{
    char header[512] = {0};
    unsigned sum = 0;
    (void)snprintf(header, 100, "%s", name);
    (void)snprintf(header + 124, 12, "%011zo", length);
    header[156] = '0';
    memcpy(header + 257, "ustar", 6);
    memset(header + 148, ' ', 8);
    for (int i = 0; i < 512; i++)
        sum += (unsigned char)header[i];
    (void)snprintf(header + 148, 8, "%06o", sum);
    append(tar, header, 512, 512);
    append(tar, bytes, length, 512);
}

static void make_tar(struct input *tar)
{
    char name[32];
    *tar = (struct input){.length = 0};
    for (int i = 0; i < 4; i++) {
        (void)snprintf(name, sizeof name, "%d.jpg", i);
        append_entry(tar, name, jpegs[i].bytes, jpegs[i].length);
        (void)snprintf(name, sizeof name, "%d.cls", i);
        append_entry(tar, name, i % 2 == 0 ? "0" : "1", 1);
    }
    memset(tar->bytes + tar->length, 0, 1024);
    tar->length += 1024;
}

static void make_idx(struct input *idx, bool images)
{
    static const uint8_t head[16] = {0, 0, 8, 3, 0, 0, 0, 9, 0, 0, 0, 5, 0, 0, 0, 7};
    *idx = (struct input){.length = images ? 16 + 9 * 35 : 8 + 9};
    for (size_t i = 0; i < idx->length; i++)
        idx->bytes[i] = (uint8_t)(images ? i * 7 : i % 3);
    memcpy(idx->bytes, head, images ? 16 : 8);
    idx->bytes[3] = images ? 3 : 1;
}

static void make_cifar(struct input *cifar)
{
    *cifar = (struct input){.length = 3 * 3074};
    for (size_t i = 0; i < cifar->length; i++)
        cifar->bytes[i] = (uint8_t)(i % 3074 < 2 ? 7 : i);
}

/* ---- files on disk ---- */

static const char *path_of(const char *name)
{
    static char path[4][96];
    static int turn;
    turn = (turn + 1) % 4;
    (void)snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

/* Not atomic: there are many, and nobody else reads them. */
static void put(const char *name, const struct input *input)
{
    FILE *file = fopen(path_of(name), "wbe");
    if (file == NULL || fwrite(input->bytes, 1, input->length, file) != input->length || fclose(file) != 0) {
        fprintf(stderr, "fuzz_data: %s can't be written\n", path_of(name));
        abort();
    }
}

static bool get(const char *name, struct input *input)
{
    char *bytes = NULL;
    size_t length = 0;
    *input = (struct input){.length = 0};
    if (file_read(path_of(name), MOST, &bytes, &length) < 0)
        return false;
    append(input, bytes, length, 1);
    free(bytes);
    return true;
}

/* ---- mutations ---- */

struct draw {
    uint64_t key, counter;
};

static size_t below(struct draw *draw, size_t bound)
{
    return (size_t)rng_below(draw->key, draw->counter++, bound);
}

static void mutate(struct draw *draw, struct input *input)
{
    static const uint8_t telling[] = {0, 1, 0x7f, 0x80, 0xff, 0xd8, 0xd9, 0xda, 0xc0, 0xc2, '0', '7', '\n', ','};
    for (size_t left = 1 + below(draw, 5); left > 0 && input->length > 0; left--) {
        /* Often near the beginning, where headers are. */
        size_t at =
            below(draw, 2) == 0 ? below(draw, input->length < 600 ? input->length : 600) : below(draw, input->length);
        switch (below(draw, 5)) {
        case 0:
            input->bytes[at] ^= (uint8_t)(1U << below(draw, 8));
            break;
        case 1:
            input->bytes[at] = telling[below(draw, sizeof telling)];
            break;
        case 2:
            input->length = at;
            break;
        case 3: {
            size_t run = 1 + below(draw, 40);
            for (size_t i = at; i < input->length && i < at + run; i++)
                input->bytes[i] = (uint8_t)rng_u64(draw->key, draw->counter++);
            break;
        }
        default: {
            size_t from = below(draw, input->length), run = below(draw, 200);
            run = run < input->length - from ? run : input->length - from;
            run = run < input->length - at ? run : input->length - at;
            memmove(input->bytes + at, input->bytes + from, run);
        }
        }
    }
}

/* ---- trials ---- */

/* The message that belongs to a failure; returns whether there was none. */
static bool went_well(enum status status)
{
    if (status >= 0)
        return true;
    if (status_message()[0] == '\0') {
        fprintf(stderr, "fuzz_data: a failure without a message\n");
        abort();
    }
    return false;
}

static bool try_jpeg(struct draw *draw, struct jpeg *jpeg)
{
    struct input input = jpegs[below(draw, JPEGS)];
    int width = 0, height = 0;
    mutate(draw, &input);
    uint8_t *exact = malloc(input.length > 0 ? input.length : 1), *rgb = malloc((size_t)SIZE * SIZE * 3);
    if (exact == NULL || rgb == NULL)
        abort();
    memcpy(exact, input.bytes, input.length);
    bool good = went_well(jpeg_begin(jpeg, exact, input.length, &width, &height));
    if (good) {
        struct view view = view_random(width, height, SIZE, draw->key, 0, draw->counter);
        good = went_well(jpeg_view(jpeg, &view, below(draw, 2) == 0, rgb));
    }
    free(exact);
    free(rgb);
    return good;
}

/* A set is opened and read from end to end, if it can be. */
static bool try_set(const char *words)
{
    const struct data_request request = {.path = words, .image_size = SIZE, .seed = 1};
    struct data *data = NULL;
    float *images = malloc((size_t)2 * 3 * SIZE * SIZE * sizeof *images);
    int32_t labels[2];
    if (images == NULL)
        abort();
    bool good = went_well(data_open(&request, &data));
    const size_t samples = good ? data_train_count(data) : 0, tests = good ? data_test_count(data) : 0;
    struct data_order order = {.seed = 1, .samples = samples, .workers = 1, .batch = 1};
    for (uint64_t step = 0; good && step < samples && step < MOST_SAMPLES; step++)
        good = went_well(data_train_batch(data, &order, step, 0, images, labels));
    for (size_t i = 0; good && i < tests && i < MOST_SAMPLES; i++) {
        int count = 1;
        good = went_well(data_test_batch(data, i, 1, &count, images, labels));
    }
    data_close(data);
    free(images);
    return good;
}

static bool try_tar(struct draw *draw)
{
    struct input tar;
    make_tar(&tar);
    put("val.tar", &tar);
    mutate(draw, &tar);
    put("train.tar", &tar);
    (void)unlink(path_of("train.tar.index"));
    char words[96];
    (void)snprintf(words, sizeof words, "tar:%s", folder);
    return try_set(words);
}

/* The index is that of the tar file, but for what was altered: then it is not believed. */
static bool try_index(struct draw *draw)
{
    struct input tar, index;
    struct tar_index made;
    bool scanned = false, stored = false;
    make_tar(&tar);
    put("train.tar", &tar);
    (void)unlink(path_of("train.tar.index"));
    if (tar_index_open(path_of("train.tar"), &made, &scanned, &stored) < 0 || !get("train.tar.index", &index))
        abort();
    tar_index_release(&made);
    mutate(draw, &index);
    put("train.tar.index", &index);
    bool good = went_well(tar_index_open(path_of("train.tar"), &made, &scanned, &stored));
    if (!good || made.count != 4) {
        fprintf(stderr, "fuzz_data: a good tar file with an altered index\n");
        abort();
    }
    tar_index_release(&made);
    return true;
}

static bool try_idx(struct draw *draw)
{
    static const char *const names[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                                        "t10k-labels-idx1-ubyte"};
    size_t altered = below(draw, 4);
    char words[96];
    for (size_t i = 0; i < 4; i++) {
        struct input input;
        make_idx(&input, i % 2 == 0);
        if (i == altered)
            mutate(draw, &input);
        put(names[i], &input);
    }
    (void)snprintf(words, sizeof words, "idx:%s", folder);
    return try_set(words);
}

static bool try_cifar(struct draw *draw)
{
    struct input input;
    char words[96];
    make_cifar(&input);
    put("test.bin", &input);
    mutate(draw, &input);
    put("train.bin", &input);
    (void)snprintf(words, sizeof words, "cifar:%s", folder);
    return try_set(words);
}

static bool try_pack(struct draw *draw, const struct input *good)
{
    struct input input = *good;
    mutate(draw, &input);
    put("b.pack", &input);
    (void)went_well(pack_check(path_of("b.pack")));
    return try_set(path_of("b.pack"));
}

/* A pack of the images of a good tar file. */
static bool make_pack(struct input *pack)
{
    struct input tar;
    struct data *data = NULL;
    size_t skipped = 0;
    char words[96];
    make_tar(&tar);
    put("train.tar", &tar);
    (void)snprintf(words, sizeof words, "tar:%s", folder);
    const struct data_request request = {.path = words, .image_size = SIZE, .seed = 1};
    bool good = data_open(&request, &data) >= 0 && pack_write(data, path_of("a.pack"), &skipped) >= 0 && skipped == 0;
    data_close(data);
    return good && get("a.pack", pack);
}

/* ---- driver ---- */

static unsigned long long argument(int argc, char **argv, const char *key, unsigned long long standard)
{
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], key, strlen(key)) == 0 && argv[i][strlen(key)] == '=')
            return strtoull(argv[i] + strlen(key) + 1, NULL, 10);
    return standard;
}

static bool try_one(uint64_t seed, uint64_t number, struct jpeg *jpeg, const struct input *pack)
{
    struct draw draw = {.key = rng_key(seed, "fuzz", number, 0)};
    switch (number % 9) {
    case 0:
        return try_tar(&draw);
    case 1:
        return try_index(&draw);
    case 2:
        return try_idx(&draw);
    case 3:
        return try_cifar(&draw);
    case 4:
        return try_pack(&draw, pack);
    default:
        return try_jpeg(&draw, jpeg);
    }
}

int main(int argc, char **argv)
{
    const unsigned long long seed = argument(argc, argv, "--seed", 1), from = argument(argc, argv, "--from", 0);
    const unsigned long long count = argument(argc, argv, "--count", 1000);
    static struct input pack;
    struct jpeg *jpeg = NULL;
    unsigned long long good = 0;
    const uint64_t begun = clock_ns();
    if (jpeg_open(&jpeg) == STATUS_UNAVAILABLE) {
        printf("fuzz_data: skipped: built without libjpeg-turbo\n");
        return 77;
    }
    if (!read_jpegs() || mkdtemp(folder) == NULL || !make_pack(&pack)) {
        fprintf(stderr, "fuzz_data: %s\n", status_message());
        return 1;
    }
    for (unsigned long long n = 0; n < count; n++)
        good += try_one(seed, from + n, jpeg, &pack);
    jpeg_close(jpeg);
    char command[96];
    (void)snprintf(command, sizeof command, "rm -r '%s'", folder);
    const bool cleaned = system(command) == 0;
    printf("fuzz_data: seed %llu: %llu inputs from %llu, %llu of them taken, in %.1f s\n", seed, count, from, good,
           (double)(clock_ns() - begun) * 1e-9);
    return cleaned && (good > 0 || count < 100) ? 0 : 1;
}
