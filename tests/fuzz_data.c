/* fuzz_data.c - hostile files of training: whatever the bytes of a JPEG image, a tar shard, its index, an idx file, CIFAR's, a
 * class folder, a pack, a checkpoint or a recipe, reading them as training does ends with a status and a message that names
 * the file, every image that is given lies in the memory for it, memory stays in proportion to the file, and two workers
 * get what one gets.
 *
 * Inputs are mutations of small good files, a function of seed, kind and number: a crash is found again with
 * --only=KIND --from=N --count=1. Every second one has its checksums put right afterwards, so that what lies behind them is
 * reached, too. In the test run 1000 of each kind under AddressSanitizer and fewer without; by hand fuzz_data
 * --count=100000.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/option.h"
#include "base/rng.h"
#include "experiments/recipe.h"
#include "nn/checkpoint.h"
#include "nn/data.h"
#include "nn/data/jpeg.h"
#include "nn/data/pack.h"
#include "nn/data/tar_index.h"
#include "nn/data/view.h"
#include "tests/nn/support_tar.h"

#if defined(__SANITIZE_ADDRESS__)
enum { COUNT = 1000 };
/* Files of at most 64 KiB, of which a JPEG image may need the 1024-fold: whoever asks for more believed a header. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "max_allocation_size_mb=100";
}
#else
enum { COUNT = 200 };
#endif

enum { MOST = 1 << 16, SIZE = 20, MOST_STEPS = 40 };

static char folder[] = "/dev/shm/chorale-fuzz-XXXXXX"; /* no disk to wait for; else in /tmp */

static void broken(const char *what)
{
    fprintf(stderr, "fuzz_data: %s: %s\n", what, status_message());
    abort();
}

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
    unsigned char header[TAR_BLOCK];
    tar_header(header, '0', name, length);
    append(tar, header, TAR_BLOCK, TAR_BLOCK);
    append(tar, bytes, length, TAR_BLOCK);
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

/* Two sections behind a header. */
enum { FLOATS = 50, RANKS = 7 };

static void make_recipe(struct input *recipe)
{
    static const char text[] =
        "# a recipe\nepochs = 90\nbatch=32  # of one worker\nlr=0.1\nlr-schedule=step\nwarmup-epochs=5\n"
        "weight-decay=0.0001\nnesterov=1\n";
    *recipe = (struct input){.length = 0};
    append(recipe, text, sizeof text - 1, 1);
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
    (void)unlink(path_of(name)); /* some file systems write out at once what is cut to nothing */
    FILE *file = fopen(path_of(name), "wbe");
    if (file == NULL || fwrite(input->bytes, 1, input->length, file) != input->length || fclose(file) != 0)
        broken("a file can't be written");
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

static void compress_input(struct input *input)
{
    gzFile file = gzopen(path_of("packed.gz"), "wb1");
    if (file == NULL || gzwrite(file, input->bytes, (unsigned)input->length) != (int)input->length ||
        gzclose(file) != Z_OK || !get("packed.gz", input))
        broken("a file can't be compressed");
}

/* ---- mutations ---- */

struct draw {
    uint64_t key, counter;
};

static size_t below(struct draw *draw, size_t bound)
{
    return (size_t)rng_below(draw->key, draw->counter++, bound);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Bytes `at` + `run` and later become those from `at` on; what is beyond the room is lost. */
static void make_room(struct input *input, size_t at, size_t run)
{
    run = least(run, MOST - at);
    const size_t kept = least(input->length - at, MOST - at - run);
    memmove(input->bytes + at + run, input->bytes + at, kept);
    input->length = at + run + kept;
}

static void swap_blocks(struct input *input, size_t at, size_t from, size_t run)
{
    run = least(run, input->length - (at > from ? at : from));
    for (size_t i = 0; i < run; i++) {
        const uint8_t kept = input->bytes[at + i];
        input->bytes[at + i] = input->bytes[from + i];
        input->bytes[from + i] = kept;
    }
}

/* What lengths and counts are afraid of, in either byte order, or in digits. */
static void put_extreme(struct draw *draw, struct input *input, size_t at)
{
    static const char *const digits[] = {"00000000000", "77777777777", "99999999999999999999", "18446744073709551615",
                                         "-1",          "1e400",       "4294967296",           "9223372036854775807"};
    static const uint64_t numbers[] = {0,          1,          0x7f,       0xff,      0x7fff,    0xffff,
                                       0x7fffffff, 0xffffffff, 0x80000000, INT64_MAX, UINT64_MAX};
    if (below(draw, 3) == 0) {
        const char *text = digits[below(draw, sizeof digits / sizeof digits[0])];
        memcpy(input->bytes + at, text, least(strlen(text), input->length - at));
        return;
    }
    const uint64_t number = numbers[below(draw, sizeof numbers / sizeof numbers[0])];
    const size_t width = (size_t)1 << below(draw, 4);
    const bool little = below(draw, 2) == 0;
    for (size_t i = 0; i < width && at + i < input->length; i++)
        input->bytes[at + i] = (uint8_t)(number >> 8 * (little ? i : width - 1 - i));
}

static void mutate_once(struct draw *draw, struct input *input)
{
    static const uint8_t telling[] = {0,    1,    0x7f, 0x80, 0xff, 0xd8, 0xd9, 0xda,
                                      0xc0, 0xc2, '0',  '7',  '\n', ',',  '=',  '"'};
    /* Often near the beginning, where headers are. */
    const size_t at = below(draw, 2) == 0 ? below(draw, least(input->length, 600)) : below(draw, input->length);
    const size_t from = below(draw, input->length), run = 1 + below(draw, 200);
    switch (below(draw, 8)) {
    case 0:
        input->bytes[at] ^= (uint8_t)(1U << below(draw, 8));
        break;
    case 1:
        input->bytes[at] = telling[below(draw, sizeof telling)];
        break;
    case 2:
        input->length = at;
        break;
    case 3:
        for (size_t i = at; i < input->length && i < at + run / 4; i++)
            input->bytes[i] = (uint8_t)rng_u64(draw->key, draw->counter++);
        break;
    case 4:
        memmove(input->bytes + at, input->bytes + from, least(run, input->length - (at > from ? at : from)));
        break;
    case 5:
        swap_blocks(input, at, from, run);
        break;
    case 6:
        make_room(input, at, run); /* what stood there stands twice */
        break;
    default:
        put_extreme(draw, input, at);
    }
}

static void mutate(struct draw *draw, struct input *input)
{
    for (size_t left = 1 + below(draw, 4); left > 0 && input->length > 0; left--)
        mutate_once(draw, input);
}

/* ---- checksums put right ---- */

static void put_number(uint8_t *to, uint64_t value)
{
    for (int i = 0; i < 8; i++, value >>= 8)
        to[i] = (uint8_t)value;
}

static uint64_t get_number(const uint8_t *from)
{
    uint64_t value = 0;
    for (int i = 8; i-- > 0;)
        value = value << 8 | from[i];
    return value;
}

static void repair_tar(struct input *tar)
{
    for (size_t at = 0; at + 512 <= tar->length; at += 512) {
        uint8_t *header = tar->bytes + at;
        unsigned sum = 0;
        char digits[8] = "";
        if (memcmp(header + 257, "ustar", 5) != 0)
            continue;
        memset(header + 148, ' ', 8);
        for (int i = 0; i < 512; i++)
            sum += header[i];
        (void)snprintf(digits, sizeof digits, "%06o", sum);
        memcpy(header + 148, digits, sizeof digits);
    }
}

static void repair_index(struct input *index)
{
    char *text = (char *)index->bytes, digits[17];
    index->bytes[least(index->length, MOST - 1)] = '\0';
    char *first = strchr(text, '\n'), *head = first != NULL ? strchr(first + 1, '\n') : NULL;
    char *left_out = strstr(text, "left_out="), *hash = strstr(text, "hash=");
    if (head == NULL || left_out == NULL || hash == NULL || hash + 5 + 16 > head)
        return;
    const size_t count = strtoull(left_out + 9, NULL, 10);
    uint64_t right = hash_bytes(HASH_START, &count, sizeof count);
    right = hash_bytes(right, head + 1, index->length - (size_t)(head + 1 - text));
    (void)snprintf(digits, sizeof digits, "%016llx", (unsigned long long)right);
    memcpy(hash + 5, digits, 16);
}

static void repair_pack(struct input *pack)
{
    if (pack->length < 112)
        return;
    const uint64_t images_at = get_number(pack->bytes + 72);
    if (images_at > 112 && images_at <= pack->length)
        put_number(pack->bytes + 96, hash_bytes(HASH_START, pack->bytes + 112, images_at - 112));
    put_number(pack->bytes + 104, hash_bytes(HASH_START, pack->bytes, 104));
}

/* The length of the header stays what the first line says. */
static void repair_checkpoint(struct input *file)
{
    enum { LINE = 62, CRC = 53 };
    char digits[9];
    if (file->length < LINE)
        return;
    const size_t length = strtoul((const char *)file->bytes + 29, NULL, 10);
    if (length > file->length - LINE)
        return;
    (void)snprintf(digits, sizeof digits, "%08x", (unsigned)crc32_z(0, file->bytes + LINE, length));
    memcpy(file->bytes + CRC, digits, 8);
}

/* ---- reading ---- */

/* A failure has a message that tells where; returns whether there was none. */
static bool went_well(enum status status, const char *where)
{
    if (status >= 0)
        return true;
    if (strstr(status_message(), where) == NULL || status_message()[0] == '\0')
        broken("a failure that does not tell where");
    if (status == STATUS_NO_MEMORY || status == STATUS_INTERNAL)
        broken("not the file's fault");
    return false;
}

static bool try_jpeg(struct draw *draw, bool repaired)
{
    static struct jpeg *jpeg;
    struct input input = jpegs[below(draw, JPEGS)];
    int width = 0, height = 0;
    (void)repaired;
    if (jpeg == NULL && jpeg_open(&jpeg) < 0)
        broken("no decoder");
    mutate(draw, &input);
    uint8_t *exact = malloc(input.length > 0 ? input.length : 1), *rgb = malloc((size_t)SIZE * SIZE * 3);
    if (exact == NULL || rgb == NULL)
        abort();
    memcpy(exact, input.bytes, input.length);
    bool good = went_well(jpeg_begin(jpeg, exact, input.length, &width, &height), "JPEG");
    if (good) {
        struct view view = view_random(width, height, SIZE, draw->key, 0, draw->counter);
        good = went_well(jpeg_view(jpeg, &view, below(draw, 2) == 0, rgb), "JPEG");
    }
    free(exact);
    free(rgb);
    return good;
}

struct pair {
    float images[2][3 * SIZE * SIZE];
    int32_t labels[2];
};

static bool same(const struct pair *one, const struct pair *two)
{
    bool equal = one->labels[0] == two->labels[0] && one->labels[1] == two->labels[1];
    for (int i = 0; i < 3 * SIZE * SIZE; i++)
        equal = equal && one->images[0][i] == two->images[0][i] && one->images[1][i] == two->images[1][i];
    return equal;
}

/* The global batch of two images, read by one worker and by two. */
static bool read_step(const struct data *data, uint64_t step)
{
    static struct pair one, two;
    struct data_order order = {.seed = 1, .samples = data_train_count(data), .workers = 1, .batch = 2};
    const bool good = went_well(data_train_batch(data, &order, step, 0, one.images[0], one.labels), folder);
    order.workers = 2;
    order.batch = 1;
    for (int rank = 0; rank < 2; rank++) {
        bool read = went_well(data_train_batch(data, &order, step, rank, two.images[rank], two.labels + rank), folder);
        if (good && !read)
            broken("two workers can't read what one can");
    }
    if (good && !same(&one, &two))
        broken("two workers get other images than one");
    return good;
}

/* A set is opened and read from end to end, if it can be. */
static bool try_set(const char *words)
{
    const struct data_request request = {.path = words, .image_size = SIZE, .seed = 1};
    struct data *data = NULL;
    static float image[3 * SIZE * SIZE];
    int32_t label;
    bool good = went_well(data_open(&request, &data), folder);
    const size_t steps = good ? data_train_count(data) / 2 : 0, tests = good ? data_test_count(data) : 0;
    for (uint64_t step = 0; good && step < steps && step < MOST_STEPS; step++)
        good = read_step(data, step);
    for (size_t i = 0; good && i < tests && i < MOST_STEPS; i++) {
        int count = 1;
        good = went_well(data_test_batch(data, i, 1, &count, image, &label), folder);
    }
    data_close(data);
    return good;
}

static bool try_format(const char *format)
{
    char words[96];
    (void)snprintf(words, sizeof words, "%s:%s", format, folder);
    return try_set(words);
}

/* ---- trials ---- */

static bool try_tar(struct draw *draw, bool repaired)
{
    struct input tar;
    make_tar(&tar);
    put("val.tar", &tar);
    mutate(draw, &tar);
    if (repaired)
        repair_tar(&tar);
    put("train.tar", &tar);
    (void)unlink(path_of("train.tar.index"));
    return try_format("tar");
}

/* The index is that of the tar file, but for what was altered: it is believed only if its checksum is right. */
static bool try_index(struct draw *draw, bool repaired)
{
    struct input tar, index;
    struct tar_index made;
    bool scanned = false, stored = false;
    make_tar(&tar);
    put("train.tar", &tar);
    (void)unlink(path_of("train.tar.index"));
    if (tar_index_open(path_of("train.tar"), &made, &scanned, &stored) < 0 || !get("train.tar.index", &index))
        broken("a good tar file");
    tar_index_release(&made);
    mutate(draw, &index);
    if (repaired)
        repair_index(&index);
    put("train.tar.index", &index);
    if (repaired)
        return try_format("tar");
    if (!went_well(tar_index_open(path_of("train.tar"), &made, &scanned, &stored), folder) || made.count != 4)
        broken("a good tar file with an altered index");
    tar_index_release(&made);
    return true;
}

static bool try_idx(struct draw *draw, bool compressed)
{
    static const char *const names[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                                        "t10k-labels-idx1-ubyte"};
    const size_t altered = below(draw, 4);
    char gzip[64];
    for (size_t i = 0; i < 4; i++) {
        struct input input;
        make_idx(&input, i % 2 == 0);
        (void)snprintf(gzip, sizeof gzip, "%s.gz", names[i]);
        (void)unlink(path_of(gzip));
        if (i == altered && compressed)
            compress_input(&input);
        if (i == altered)
            mutate(draw, &input);
        put(i == altered && compressed ? gzip : names[i], &input);
    }
    return try_format("idx");
}

static bool try_cifar(struct draw *draw, bool repaired)
{
    struct input input;
    (void)repaired;
    make_cifar(&input);
    put("test.bin", &input);
    mutate(draw, &input);
    put("train.bin", &input);
    return try_format("cifar");
}

static bool try_folder(struct draw *draw, bool all)
{
    static const char *const names[] = {"train/c0/0.jpg", "train/c0/1.jpg", "train/c1/0.jpg",
                                        "train/c1/1.jpg", "val/c0/0.jpg",   "val/c1/0.jpg"};
    static const char *const folders[] = {"train/c0", "train/c1", "val/c0", "val/c1"};
    for (size_t i = 0; i < 4; i++)
        if (folder_create(path_of(folders[i])) < 0)
            broken("a folder");
    for (size_t i = 0; i < 6; i++) {
        struct input input = jpegs[below(draw, JPEGS)];
        if (all || i == draw->key % 6)
            mutate(draw, &input);
        put(names[i], &input);
    }
    return try_format("folder");
}

/* A pack of the images of a good tar file. */
static void make_pack(struct input *pack)
{
    struct input tar;
    struct data *data = NULL;
    struct pack_written written;
    char words[96];
    make_tar(&tar);
    put("train.tar", &tar);
    (void)snprintf(words, sizeof words, "tar:%s", folder);
    const struct data_request request = {.path = words, .image_size = SIZE, .seed = 1};
    if (data_open(&request, &data) < 0 || pack_write(data, path_of("a.pack"), &written) < 0 || written.left_out != 0 ||
        !get("a.pack", pack))
        broken("a good pack");
    data_close(data);
}

static bool try_pack(struct draw *draw, bool repaired)
{
    static struct input good;
    if (good.length == 0)
        make_pack(&good);
    struct input input = good;
    mutate(draw, &input);
    if (repaired)
        repair_pack(&input);
    put("b.pack", &input);
    (void)went_well(pack_check(path_of("b.pack")), folder);
    return try_set(path_of("b.pack"));
}

static void make_checkpoint(struct input *file)
{
    static const struct checkpoint_section sections[] = {{"parameters", FLOATS * sizeof(float)}, {"ranks", RANKS}};
    float floats[FLOATS];
    struct checkpoint_writer *writer = NULL;
    for (int i = 0; i < FLOATS; i++)
        floats[i] = (float)i / 7;
    if (checkpoint_create(path_of("checkpoint-000000040"), json_pack("{si ss}", "step", 40, "model", "cnn"), sections,
                          2, &writer) < 0 ||
        checkpoint_put(writer, floats) < 0 || checkpoint_put(writer, "0123456") < 0 ||
        checkpoint_commit(writer, NULL) < 0 || !get("checkpoint-000000040", file))
        broken("a good checkpoint");
}

static bool try_checkpoint(struct draw *draw, bool repaired)
{
    static struct input good;
    struct checkpoint *checkpoint = NULL;
    float floats[FLOATS];
    size_t bytes = 0;
    if (good.length == 0)
        make_checkpoint(&good);
    struct input input = good;
    if (repaired && below(draw, 2) == 0) /* JSON still, in most cases */
        input.bytes[62 + below(draw, 300)] = (uint8_t)("0129aebZ-"[below(draw, 9)]);
    else
        mutate(draw, &input);
    if (repaired)
        repair_checkpoint(&input);
    put("checkpoint-000000041", &input);
    (void)checkpoint_is(path_of("checkpoint-000000041"));
    bool fine = went_well(checkpoint_open(path_of("checkpoint-000000041"), &checkpoint), folder);
    if (fine) {
        fine = went_well(checkpoint_verify(checkpoint), folder);
        if (checkpoint_has(checkpoint, "parameters", &bytes))
            fine = went_well(checkpoint_read(checkpoint, "parameters", floats, sizeof floats), folder) && fine;
    }
    checkpoint_close(checkpoint);
    if (fine && !repaired && (input.length != good.length || memcmp(input.bytes, good.bytes, good.length) != 0))
        broken("a checkpoint that was changed passes");
    return fine;
}

static bool try_recipe(struct draw *draw, bool repaired)
{
    static const struct option table[] = {
        {.key = "epochs", .type = OPTION_INT, .min = 1, .max = 1000000, .help = "x"},
        {.key = "batch", .type = OPTION_INT, .min = 1, .max = 1000000, .help = "x"},
        {.key = "lr", .type = OPTION_REAL, .min = 0, .max = 1e9, .help = "x"},
        {.key = "lr-schedule", .type = OPTION_CHOICE, .choices = "step|cosine", .help = "x"},
        {.key = "warmup-epochs", .type = OPTION_REAL, .min = 0, .max = 1e9, .help = "x"},
        {.key = "warmup-steps", .type = OPTION_INT, .min = 0, .max = 1e9, .help = "x"},
        {.key = "weight-decay", .type = OPTION_REAL, .min = 0, .max = 1e9, .help = "x"},
        {.key = "bucket", .type = OPTION_SIZE, .help = "x"},
        {.key = "nesterov", .type = OPTION_FLAG, .help = "x"},
        {.key = NULL},
    };
    static const struct recipe_instead instead[] = {{"warmup-epochs", "warmup-steps"}};
    struct option_values values;
    struct input input;
    (void)repaired;
    make_recipe(&input);
    mutate(draw, &input);
    put("recipe.txt", &input);
    if (option_values_init(&values, table) < 0)
        broken("options");
    bool good = went_well(recipe_read(path_of("recipe.txt"), instead, 1, &values), folder);
    option_values_release(&values);
    return good;
}

/* ---- driver ---- */

/* `second`: every second time; checksums are put right, or what a kind has instead of them. */
static const struct {
    const char *name;
    bool (*one)(struct draw *draw, bool second);
} kinds[] = {{"jpeg", try_jpeg},    {"tar", try_tar},       {"index", try_index}, {"idx", try_idx},
             {"cifar", try_cifar},  {"folder", try_folder}, {"pack", try_pack},   {"checkpoint", try_checkpoint},
             {"recipe", try_recipe}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static const char *word(int argc, char **argv, const char *key)
{
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], key, strlen(key)) == 0 && argv[i][strlen(key)] == '=')
            return argv[i] + strlen(key) + 1;
    return NULL;
}

static unsigned long long argument(int argc, char **argv, const char *key, unsigned long long standard)
{
    const char *text = word(argc, argv, key);
    return text != NULL ? strtoull(text, NULL, 10) : standard;
}

/* An input is the same whatever was tried before. */
static bool clean(const char *what)
{
    char command[96];
    (void)snprintf(command, sizeof command, "rm -rf %s%s", folder, what);
    return system(command) == 0;
}

int main(int argc, char **argv)
{
    const unsigned long long seed = argument(argc, argv, "--seed", 1), from = argument(argc, argv, "--from", 0);
    const unsigned long long count = argument(argc, argv, "--count", COUNT);
    const char *only = word(argc, argv, "--only");
    const uint64_t begun = clock_ns();
    bool all = true;
    if (strcmp(jpeg_version(), "none") == 0) {
        printf("fuzz_data: skipped: built without libjpeg-turbo\n");
        return 77;
    }
    if (access("/dev/shm", W_OK) != 0)
        memcpy(folder, "/tmp/chorale-fuzz-XXXXXX", sizeof "/tmp/chorale-fuzz-XXXXXX");
    if (!read_jpegs() || mkdtemp(folder) == NULL)
        broken("setting up");
    for (int k = 0; k < KINDS; k++) {
        unsigned long long good = 0;
        if (only != NULL && strcmp(only, kinds[k].name) != 0)
            continue;
        for (unsigned long long n = from; n < from + count; n++) {
            struct draw draw = {.key = rng_key(seed, kinds[k].name, n, 0)};
            good += kinds[k].one(&draw, n % 2 == 1);
        }
        printf("fuzz_data: %llu of %llu mutations of %s taken\n", good, count, kinds[k].name);
        all = all && (good > 0 || count < 100) && clean("/*");
    }
    const bool cleaned = clean("");
    printf("fuzz_data: seed %llu from %llu in %.1f s\n", seed, from, (double)(clock_ns() - begun) * 1e-9);
    return cleaned && all ? 0 : 1;
}
