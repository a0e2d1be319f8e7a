/* test_odd.c - what data sets of people hold besides good photographs: one table says of each what becomes of it. An image is
 * given, converted to three channels; or it is bad: counted, replaced in training and left out of evaluation; or it is no
 * sample, and where somebody may miss it a note says so. The same on all workers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "nn/data.h"
#include "nn/data/tar_index.h"
#include "tests/base/expect.h"
#include "tests/base/folder.h"
#include "tests/nn/support_golden.h"
#include "tests/nn/support_images.h"
#include "tests/nn/support_set.h"
#include "tests/nn/support_tar.h"

TestSuite(odd, .init = enter_folder, .fini = leave_folder);

/* ---- the table ---- */

enum fate { GIVEN, BAD, PASSED_OVER };

enum content {
    GREY,
    CMYK,
    PROGRESSIVE,
    PIXEL,
    WIDE, /* 65500 x 1 */
    HIGH, /* 1 x 65500 */
    PNG,
    TORN,
    TAIL_LOST,
    TEXT,
    NOTHING,
    FOLDER,
    PIPE,
    LINK,          /* to a good image */
    DANGLING_LINK, /* to nothing      */
    LINK_TO_ITSELF
};

static const struct odd {
    const char *name; /* in a class folder */
    enum content content;
    enum fate fate;
} odds[] = {
    {"grey.jpg", GREY, GIVEN},
    {"cmyk.JPEG", CMYK, GIVEN},
    {"progressive.jpeg", PROGRESSIVE, GIVEN},
    {"pixel.Jpg", PIXEL, GIVEN},
    {"wide.jpg", WIDE, GIVEN},
    {"high.jpg", HIGH, GIVEN},
    {"a link.jpg", LINK, GIVEN},
    {"a new\nline.jpg", GREY, GIVEN},
    {"no \xff\xfe utf-8.jpg", GREY, GIVEN},
    {"%s%n.jpg", GREY, GIVEN},
    {"-rf.jpg", GREY, GIVEN},
    {"png.jpg", PNG, BAD},
    {"torn.jpg", TORN, BAD},
    {"tail lost.jpg", TAIL_LOST, BAD},
    {"text.jpg", TEXT, BAD},
    {"nothing.jpg", NOTHING, BAD},
    {"folder.jpg", FOLDER, BAD},
    {"pipe.jpg", PIPE, BAD},
    {"dangling.jpg", DANGLING_LINK, BAD},
    {"circle.jpg", LINK_TO_ITSELF, BAD},
    {".hidden.jpg", GREY, PASSED_OVER},
    {"._resource.jpg", TEXT, PASSED_OVER},
    {"notes.txt", TEXT, PASSED_OVER},
    {"picture.png", PNG, PASSED_OVER},
};
enum { ODDS = sizeof odds / sizeof odds[0] };

/* ---- contents ---- */

/* The file of that name in tests/nn/golden/images.txt; caller frees. */
static uint8_t *golden(const char *name, size_t *length)
{
    static char line[70000];
    FILE *file = golden_open("images.txt");
    char wanted[64];
    uint8_t *bytes = NULL;
    (void)snprintf(wanted, sizeof wanted, "file %s ", name);
    while (bytes == NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, wanted, strlen(wanted)) != 0)
            continue;
        const char *hex = line + strlen(wanted);
        unsigned value;
        bytes = malloc(strlen(hex) / 2 + 1);
        cr_assert_not_null(bytes);
        for (*length = 0; hex[0] != '\n' && sscanf(hex, "%2x", &value) == 1; hex += 2)
            bytes[(*length)++] = (uint8_t)value;
    }
    (void)fclose(file);
    cr_assert_not_null(bytes, "%s", name);
    return bytes;
}

static uint8_t *bytes_of(enum content content, size_t *length)
{
    static const char *const words[] = {[PNG] = "\x89PNG\r\n\x1a\n........", [TEXT] = "hello", [NOTHING] = ""};
    struct picture picture = {.width = content == WIDE ? 65500 : 1, .height = content == HIGH ? 65500 : 1};
    uint8_t *bytes = NULL;
    switch (content) {
    case GREY:
        return golden("grey", length);
    case CMYK:
        return golden("cmyk", length);
    case PROGRESSIVE:
        return golden("progressive", length);
    case TORN:
    case TAIL_LOST:
        bytes = golden("h2v2", length);
        *length = content == TORN ? *length / 2 : *length - 1;
        return bytes;
    case PIXEL:
    case WIDE:
    case HIGH:
        bytes = picture_jpeg(&picture, length);
        break;
    default:
        bytes = (uint8_t *)strdup(words[content]);
        *length = strlen(words[content]);
    }
    cr_assert_not_null(bytes);
    return bytes;
}

static void write_file(const char *path, const void *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file, "%s", path);
    cr_assert_eq(fwrite(bytes, 1, length, file), length);
    cr_assert_eq(fclose(file), 0);
}

static void put(const char *path, enum content content)
{
    size_t length = 0;
    uint8_t *bytes = NULL;
    switch (content) {
    case FOLDER:
        cr_assert_eq(mkdir(path, 0700), 0);
        return;
    case PIPE:
        cr_assert_eq(mkfifo(path, 0600), 0);
        return;
    case LINK:
        cr_assert_eq(symlink("grey.jpg", path), 0);
        return;
    case DANGLING_LINK:
        cr_assert_eq(symlink("absent", path), 0);
        return;
    case LINK_TO_ITSELF:
        cr_assert_eq(symlink(strrchr(path, '/') + 1, path), 0);
        return;
    default:
        bytes = bytes_of(content, &length);
        write_file(path, bytes, length);
        free(bytes);
    }
}

/* ---- folders ---- */

static const struct odd *odd_of(const struct data *data, bool test, size_t index)
{
    struct text name = {0};
    const struct odd *found = NULL;
    data_name(data, test, index, &name);
    for (int i = 0; i < ODDS; i++)
        if (strcmp(strrchr(text_string(&name), '/') + 1, odds[i].name) == 0)
            found = &odds[i];
    cr_assert_not_null(found, "%s", text_string(&name));
    text_release(&name);
    return found;
}

/* All in one class of training and of test, one more class folder with nothing in it. */
static void put_odds(void)
{
    static const char *const folders[] = {"set",         "set/train", "set/val",  "set/train/a",
                                          "set/train/b", "set/val/a", "set/val/b"};
    char path[300];
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        cr_assert_eq(mkdir(folders[i], 0700), 0);
    for (int i = 0; i < 2 * ODDS; i++) {
        (void)snprintf(path, sizeof path, "set/%s/a/%s", i < ODDS ? "train" : "val", odds[i % ODDS].name);
        put(path, odds[i % ODDS].content);
    }
}

static int with_fate(enum fate fate)
{
    int count = 0;
    for (int i = 0; i < ODDS; i++)
        count += odds[i].fate == fate;
    return count;
}

static struct data_facts facts_of(const struct data *data)
{
    struct data_facts facts;
    data_facts(data, &facts);
    return facts;
}

enum { SIZE = 8, VALUES = 3 * SIZE * SIZE };

Test(odd, each_file_of_a_folder_is_given_bad_or_passed_over)
{
    struct data_scratch *scratch = NULL;
    struct data_facts facts;
    static float image[VALUES];
    int width = 0, height = 0, evaluated = 0;
    put_odds();
    struct data *data = open_set("set", SIZE);
    facts = facts_of(data);
    cr_expect_eq(data_classes(data), 2);
    cr_assert_eq(data_train_count(data), (size_t)(with_fate(GIVEN) + with_fate(BAD)));
    cr_assert_eq(data_test_count(data), data_train_count(data));
    cr_expect_not_null(strstr(facts.notes, "1 empty class folder in set/train: b"), "%s", facts.notes);
    cr_expect_not_null(strstr(facts.notes, "4 files in class folders are named neither .jpg nor .jpeg"), "%s",
                       facts.notes);
    EXPECT_OK(data_scratch_open(data, &scratch));
    for (size_t i = 0; i < data_train_count(data); i++) {
        const struct odd *odd = odd_of(data, false, i);
        const enum status status = data_look(data, scratch, false, i, true, &width, &height);
        cr_expect_eq(status, odd->fate == GIVEN ? STATUS_OK : STATUS_FORMAT, "%s: %s", odd->name, status_message());
        cr_expect_null(strchr(status_message(), '\n'), "in one line");
        int count = 1;
        int32_t label = 7;
        EXPECT_OK(data_test_batch(data, i, 1, &count, image, &label));
        cr_expect_eq(count, odd_of(data, true, i)->fate == GIVEN, "%s", odd->name);
        evaluated += count;
        for (int p = 0; count == 1 && odd->content == GREY && p < VALUES / 3; p++) {
            const float value = image[p] * 0.229F + 0.485F; /* three equal channels */
            cr_expect_float_eq(image[p + VALUES / 3] * 0.224F + 0.456F, value, 1e-6F);
            cr_expect_float_eq(image[p + VALUES / 3 * 2] * 0.225F + 0.406F, value, 1e-6F);
        }
    }
    cr_expect_eq(evaluated, with_fate(GIVEN));
    facts = facts_of(data);
    cr_expect_eq(facts.skipped, (size_t)with_fate(BAD));
    data_scratch_close(scratch);
    data_close(data);
}

/* One epoch of global batches, split among the workers; returns the images of all. */
static float *epoch(const struct data *data, int workers, int global, int steps)
{
    float *images = malloc((size_t)steps * (size_t)global * VALUES * sizeof *images);
    int32_t labels[16];
    cr_assert_not_null(images);
    const struct data_order order = {
        .seed = 1, .samples = data_train_count(data), .workers = workers, .batch = global / workers};
    for (int step = 0; step < steps; step++)
        for (int rank = 0; rank < workers; rank++)
            EXPECT_OK(data_train_batch(data, &order, (uint64_t)step, rank,
                                       images + (size_t)(step * global + rank * order.batch) * VALUES, labels));
    return images;
}

Test(odd, what_stands_for_bad_images_is_the_same_for_any_number_of_workers)
{
    static const int counts[] = {1, 3, 5, 15};
    enum { GLOBAL = 15, STEPS = 4 };
    put_odds();
    struct data *data = open_set("set", SIZE);
    float *once = epoch(data, 1, GLOBAL, STEPS);
    const size_t skipped = facts_of(data).skipped;
    cr_expect_gt(skipped, 0);
    for (size_t i = 1; i < sizeof counts / sizeof counts[0]; i++) {
        const size_t before = facts_of(data).skipped;
        float *again = epoch(data, counts[i], GLOBAL, STEPS);
        cr_expect_arr_eq(once, again, sizeof(float) * VALUES * GLOBAL * STEPS, "%d workers", counts[i]);
        cr_expect_eq(facts_of(data).skipped - before, skipped, "%d workers", counts[i]);
        free(again);
    }
    free(once);
    data_close(data);
}

/* ---- tar ---- */

static uint8_t archive[400000];
static size_t archived;

static void add_entry(char type, const char *name, const void *bytes, size_t length)
{
    uint8_t *header = archive + archived;
    cr_assert_lt(archived + length + 2048, sizeof archive);
    tar_header(header, type, name, length);
    archived += TAR_BLOCK;
    if (type == 'S') {
        memset(archive + archived, 0, 512);
        archived += 512;
    }
    memcpy(archive + archived, bytes, length);
    archived += (length + 511) / 512 * 512;
}

static void add_image(char type, const char *name, enum content content)
{
    size_t length = 0;
    uint8_t *bytes = bytes_of(content, &length);
    add_entry(type, name, bytes, length);
    free(bytes);
}

/* Entries of one key each, with a label unless that is missing. */
static const struct member {
    const char *image; /* name of the image's entry; NULL: none             */
    const char *cls;   /* name of the label's entry; NULL: none             */
    enum content content;
    char type, twice; /* of the entry; 'i', 'l': image, label a second time */
    enum fate fate;
} members[] = {
    {"plain.jpg", "plain.cls", GREY, '0', 0, GIVEN},
    {"/etc/absolute.jpg", "/etc/absolute.cls", CMYK, '0', 0, GIVEN},
    {"../../above.jpg", "../../above.cls", PROGRESSIVE, '0', 0, GIVEN},
    {"./new\nline.jpg", "./new\nline.cls", GREY, '0', 0, GIVEN},
    {"no \xff\xfe utf-8.jpg", "no \xff\xfe utf-8.cls", GREY, '0', 0, GIVEN},
    {"old.jpg", "old.cls", GREY, '\0', 0, GIVEN},
    {"continuous.jpg", "continuous.cls", GREY, '7', 0, GIVEN},
    {"png.jpg", "png.cls", PNG, '0', 0, BAD},
    {"torn.jpg", "torn.cls", TORN, '0', 0, BAD},
    {"nothing.jpg", "nothing.cls", NOTHING, '0', 0, BAD},
    {"unlabelled.jpg", NULL, GREY, '0', 0, PASSED_OVER},
    {NULL, "blind.cls", GREY, '0', 0, PASSED_OVER},
    {"two.jpg", "two.cls", GREY, '0', 'i', PASSED_OVER},
    {"twice.jpg", "twice.cls", GREY, '0', 'l', PASSED_OVER},
    {"sparse.jpg", "sparse.cls", GREY, 'S', 0, PASSED_OVER},
    {"symbolic.jpg", "symbolic.cls", NOTHING, '2', 0, PASSED_OVER},
    {"device.jpg", "device.cls", NOTHING, '3', 0, PASSED_OVER},
    {"pipe.jpg", "pipe.cls", NOTHING, '6', 0, PASSED_OVER},
    {"._plain.jpg", NULL, GREY, '0', 0, PASSED_OVER}, /* hidden: not counted */
};
enum { MEMBERS = sizeof members / sizeof members[0], HIDDEN = 1 };

static void put_members(void)
{
    add_entry('5', "folder/", "", 0);
    for (int i = 0; i < MEMBERS; i++) {
        const struct member *member = &members[i];
        if (member->image != NULL)
            add_image(member->type, member->image, member->content);
        if (member->cls != NULL)
            add_entry('0', member->cls, i % 2 == 0 ? "0" : "1", 1);
        if (member->twice == 'i')
            add_image('0', member->image, GREY);
        if (member->twice == 'l')
            add_entry('0', member->cls, "1", 1);
    }
    memset(archive + archived, 0, 1024);
    cr_assert_eq(mkdir("shards", 0700), 0);
    write_file("shards/train.tar", archive, archived + 1024);
    write_file("shards/val.tar", archive, archived + 1024);
}

Test(odd, each_entry_of_a_tar_file_is_given_bad_or_passed_over)
{
    struct data_scratch *scratch = NULL;
    struct text note = {0};
    size_t sample = 0, passed = 0;
    int width = 0, height = 0;
    put_members();
    struct data *data = open_set("shards", SIZE);
    EXPECT_OK(data_scratch_open(data, &scratch));
    for (int i = 0; i < MEMBERS; i++) {
        if (members[i].fate == PASSED_OVER) {
            passed++;
            continue;
        }
        cr_assert_lt(sample, data_train_count(data));
        cr_expect_eq(data_label(data, false, sample), i % 2, "%s", members[i].image);
        const enum status status = data_look(data, scratch, false, sample++, true, &width, &height);
        cr_expect_eq(status, members[i].fate == GIVEN ? STATUS_OK : STATUS_FORMAT, "%s: %s", members[i].image,
                     status_message());
    }
    cr_expect_eq(sample, data_train_count(data));
    text_addf(&note, "%zu training samples without .jpg or .cls, or with two, are left out", passed - HIDDEN);
    cr_expect_not_null(strstr(facts_of(data).notes, text_string(&note)), "%s, not %s", facts_of(data).notes,
                       text_string(&note));
    cr_expect_not(file_exists("/etc/absolute.jpg"));
    text_release(&note);
    data_scratch_close(scratch);
    data_close(data);
}
