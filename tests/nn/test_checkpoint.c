/* test_checkpoint.c - the files of a kept run: what is put in comes out, nothing that was changed passes, names and
 * pruning.
 */
#include "nn/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/rng.h"
#include "tests/base/expect.h"
#include "tests/base/folder.h"

enum { FLOATS = 300, BYTES = 77, MUTATIONS = 200 };

TestSuite(checkpoint, .init = enter_folder, .fini = leave_folder);

static void fill(float *floats, unsigned char *bytes)
{
    for (int i = 0; i < FLOATS; i++)
        floats[i] = (float)(i * i - 1000) / 7;
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * 13);
}

static struct checkpoint_identity write_one(const char *path, int step)
{
    static const struct checkpoint_section sections[] = {
        {"floats", FLOATS * sizeof(float)}, {"nothing", 0}, {"bytes", BYTES}};
    float floats[FLOATS];
    unsigned char bytes[BYTES];
    struct checkpoint_writer *writer = NULL;
    struct checkpoint_identity identity = {0};
    fill(floats, bytes);
    EXPECT_OK(checkpoint_create(path, json_pack("{si ss}", "step", step, "word", "w\303\266rt"), sections, 3, &writer));
    cr_assert_not_null(writer);
    EXPECT_OK(checkpoint_put(writer, floats));
    EXPECT_OK(checkpoint_put(writer, NULL));
    EXPECT_OK(checkpoint_put(writer, bytes));
    cr_expect_not(file_exists(path), "before it is committed");
    EXPECT_OK(checkpoint_commit(writer, &identity));
    return identity;
}

Test(checkpoint, what_is_put_in_comes_out)
{
    float floats[FLOATS], wanted[FLOATS];
    unsigned char bytes[BYTES], wanted_bytes[BYTES];
    struct checkpoint *checkpoint = NULL;
    struct stat about;
    size_t length = 1;
    const struct checkpoint_identity identity = write_one("file", 40);
    fill(wanted, wanted_bytes);
    EXPECT_OK(checkpoint_open("file", &checkpoint));
    cr_assert_not_null(checkpoint);
    const struct checkpoint_identity again = checkpoint_identity(checkpoint);
    cr_expect_eq(again.crc32, identity.crc32);
    cr_expect_eq(again.bytes, identity.bytes);
    cr_assert_eq(stat("file", &about), 0);
    cr_expect_eq((uint64_t)about.st_size, identity.bytes);
    cr_expect_eq(json_integer_value(json_object_get(checkpoint_header(checkpoint), "step")), 40);
    EXPECT_OK(checkpoint_verify(checkpoint));
    EXPECT_OK(checkpoint_read(checkpoint, "bytes", bytes, BYTES));
    EXPECT_OK(checkpoint_read(checkpoint, "floats", floats, sizeof floats));
    EXPECT_OK(checkpoint_read(checkpoint, "nothing", NULL, 0));
    cr_expect_arr_eq(floats, wanted, sizeof floats);
    cr_expect_arr_eq(bytes, wanted_bytes, sizeof bytes);
    cr_expect(checkpoint_has(checkpoint, "nothing", &length));
    cr_expect_eq(length, 0);
    cr_expect_not(checkpoint_has(checkpoint, "something", &length));
    EXPECT_FAIL(STATUS_FORMAT, "", checkpoint_read(checkpoint, "something", bytes, 1));
    EXPECT_FAIL(STATUS_FORMAT, "", checkpoint_read(checkpoint, "bytes", bytes, BYTES - 1));
    checkpoint_close(checkpoint);
    cr_expect(checkpoint_is("file"));
    cr_expect_not(checkpoint_is("absent"));
}

/* Without waiting for the disk, which some file systems do when a file is cut to nothing. */
static void put(const char *path, const void *bytes, size_t length)
{
    (void)unlink(path);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, length, file), length);
    cr_assert_eq(fclose(file), 0);
}

/* Read as a run that goes on would. */
static enum status read_all(const char *path)
{
    struct checkpoint *checkpoint = NULL;
    TRY(checkpoint_open(path, &checkpoint));
    const enum status status = checkpoint_verify(checkpoint);
    checkpoint_close(checkpoint);
    return status;
}

/* One byte changed, a bit flipped, cut, added to, two stretches exchanged, a stretch zeroed. Never the same as before. */
static size_t mutate(uint64_t key, unsigned char *file, size_t length)
{
    const size_t at = (size_t)rng_below(key, 1, length), other = (size_t)rng_below(key, 2, length);
    const unsigned char value = (unsigned char)rng_below(key, 3, 255);
    switch (rng_below(key, 0, 6)) {
    case 0:
        file[at] = (unsigned char)(file[at] + 1 + value);
        return length;
    case 1:
        file[at] ^= (unsigned char)(1 << (value % 8));
        return length;
    case 2:
        return at;
    case 3:
        file[length] = value;
        return length + 1;
    case 4:
        file[at] ^= file[other] != 0 ? file[other] : 1;
        return length;
    default:
        for (size_t i = at; i < length && i < at + 40; i++)
            file[i] = (unsigned char)~file[i];
        return length;
    }
}

Test(checkpoint, nothing_that_was_changed_passes)
{
    char *good = NULL;
    size_t length = 0;
    (void)write_one("file", 40);
    EXPECT_OK(file_read("file", 1 << 20, &good, &length));
    EXPECT_OK(read_all("file"));
    for (uint64_t m = 0; m < MUTATIONS; m++) {
        unsigned char *bad = malloc(length + 1);
        cr_assert_not_null(bad);
        memcpy(bad, good, length);
        const size_t changed = mutate(rng_key(1, "mutation", m, 0), bad, length);
        put("bad", bad, changed);
        const enum status status = read_all("bad");
        cr_expect_eq(status, STATUS_FORMAT, "mutation %llu: %d %s", (unsigned long long)m, (int)status,
                     status < 0 ? status_message() : "");
        if (status < 0)
            cr_expect_not_null(strstr(status_message(), "bad"), "mutation %llu: %s", (unsigned long long)m,
                               status_message());
        free(bad);
    }
    free(good);
}

/* Every single bit of the first line and the header, and every length. */
Test(checkpoint, no_bit_and_no_length_of_it_may_differ)
{
    char *good = NULL;
    size_t length = 0;
    (void)write_one("file", 40);
    EXPECT_OK(file_read("file", 1 << 20, &good, &length));
    for (size_t bit = 0; bit < length * 8; bit += bit < (size_t)600 * 8 ? 1 : 97) {
        good[bit / 8] = (char)(good[bit / 8] ^ (1 << bit % 8));
        put("bad", good, length);
        cr_expect_eq(read_all("bad"), STATUS_FORMAT, "bit %zu", bit);
        good[bit / 8] = (char)(good[bit / 8] ^ (1 << bit % 8));
    }
    for (size_t cut = 0; cut < length; cut += 7) {
        put("bad", good, cut);
        cr_expect_eq(read_all("bad"), STATUS_FORMAT, "cut at %zu", cut);
    }
    put("bad", good, 70); /* within the header, which tells the rest */
    EXPECT_FAIL(STATUS_FORMAT, "it has 70 bytes instead of at least ", read_all("bad"));
    free(good);
}

/* A header that somebody has written, with the right checksum. */
static void write_header(const char *header, const char *first)
{
    FILE *stream = fopen("sum.py", "w");
    cr_assert_not_null(stream);
    (void)fprintf(stream,
                  "import zlib\nbody = b'''%s'''\nopen('made', 'wb').write(b'%s %%010d bytes, crc32 %%08x\\n' %% "
                  "(len(body), zlib.crc32(body)) + body)\n",
                  header, first);
    cr_assert_eq(fclose(stream), 0);
    cr_assert_eq(system("/usr/bin/python3 sum.py"), 0);
}

static void expect_says(const char *fragment)
{
    EXPECT_FAIL(STATUS_FORMAT, "", read_all("made"));
    cr_expect_not_null(strstr(status_message(), fragment), "\"%s\" does not say \"%s\"", status_message(), fragment);
}

Test(checkpoint, what_another_program_has_written_is_named)
{
    static const char good[] = "{\"byte_order\": \"little-endian\", \"sections\": []}";
    write_header(good, "chorale checkpoint 2, header");
    EXPECT_OK(read_all("made"));
    write_header(good, "chorale checkpoint 1, header");
    expect_says("written by an older chorale (version 1, this one reads 2): go on with that one, or begin another run");
    write_header(good, "chorale checkpoint 3, header");
    expect_says("written by a newer chorale (version 3, this one reads 2)");
    write_header("{\"byte_order\": \"big-endian\", \"sections\": []}", "chorale checkpoint 2, header");
    expect_says("big-endian");
    write_header("[1, 2]", "chorale checkpoint 2, header");
    expect_says("no JSON object");
    write_header("{\"byte_order\": \"little-endian\"}", "chorale checkpoint 2, header");
    expect_says("no list of sections");
    write_header("{\"byte_order\": \"little-endian\", \"sections\": [{\"name\": \"a\", \"bytes\": -1, \"crc32\": "
                 "\"00000000\"}]}",
                 "chorale checkpoint 2, header");
    expect_says("without name, length or checksum");
    write_header("{\"byte_order\": \"little-endian\", \"sections\": [{\"name\": \"a\", \"bytes\": 2305843009213693951, "
                 "\"crc32\": \"00000000\"}, {\"name\": \"b\", \"bytes\": 2305843009213693951, \"crc32\": "
                 "\"00000000\"}, {\"name\": \"c\", \"bytes\": 2305843009213693951, \"crc32\": \"00000000\"}]}",
                 "chorale checkpoint 2, header");
    expect_says("longer than any file");
    write_header("{\"byte_order\": \"little-endian\", \"sections\": [{\"name\": \"a\", \"bytes\": 5, \"crc32\": "
                 "\"00000000\"}]}",
                 "chorale checkpoint 2, header");
    expect_says("cut");
}

/* ---- names ---- */

Test(checkpoint, names_and_steps)
{
    struct text path = {0};
    uint64_t step = 0;
    checkpoint_path("run", 40, -1, &path);
    cr_expect_str_eq(text_string(&path), "run/checkpoint-000000040");
    cr_expect(checkpoint_parse(text_string(&path), &step));
    cr_expect_eq(step, 40);
    text_clear(&path);
    checkpoint_path("run", 1234567890123, 7, &path);
    cr_expect_str_eq(text_string(&path), "run/checkpoint-1234567890123.worker-7");
    cr_expect_not(checkpoint_parse(text_string(&path), &step));
    cr_expect_not(checkpoint_parse("run/checkpoint-000000040.tmp", &step));
    cr_expect_not(checkpoint_parse("run/checkpoint-40", &step));
    cr_expect_not(checkpoint_parse("run/metrics.jsonl", &step));
    text_release(&path);
}

static void touch(const char *name)
{
    put(name, "x", 1);
}

Test(checkpoint, the_last_two_stay_and_what_was_never_finished_goes)
{
    uint64_t *steps = NULL;
    size_t count = 0;
    static const char *const stay[] = {"checkpoint-000000030", "checkpoint-000000030.worker-0",
                                       "checkpoint-000000040", "checkpoint-000000040.worker-1",
                                       "metrics.jsonl",        "checkpoint-mine"};
    static const char *const go[] = {"checkpoint-000000010",
                                     "checkpoint-000000020",
                                     "checkpoint-000000020.worker-0",
                                     "checkpoint-000000050",
                                     "checkpoint-000000050.worker-1",
                                     "checkpoint-000000045.tmp",
                                     "checkpoint-000000040.worker-1.tmp"};
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++)
        touch(stay[i]);
    for (size_t i = 0; i < sizeof go / sizeof *go; i++)
        touch(go[i]);
    EXPECT_OK(checkpoint_list(".", &steps, &count));
    cr_assert_eq(count, 5);
    for (size_t i = 0; i < count; i++)
        cr_expect_eq(steps[i], 50 - 10 * i);
    free(steps);
    EXPECT_OK(checkpoint_prune(".", 40, 2));
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++)
        cr_expect(file_exists(stay[i]), "%s", stay[i]);
    for (size_t i = 0; i < sizeof go / sizeof *go; i++)
        cr_expect_not(file_exists(go[i]), "%s", go[i]);
    EXPECT_OK(checkpoint_list("absent", &steps, &count));
    cr_expect_eq(count, 0);
    free(steps);
}

/* It would be noticed when the first one is to be written, after hours. */
Test(checkpoint, a_folder_that_is_called_like_one_is_noticed)
{
    EXPECT_OK(checkpoint_check_folder("absent"));
    EXPECT_OK(folder_create("run/other"));
    touch("run/checkpoint-000000040");
    EXPECT_OK(checkpoint_check_folder("run"));
    EXPECT_OK(folder_create("run/checkpoint-000000041"));
    EXPECT_FAIL(STATUS_REFUSED, "run/checkpoint-000000041: a folder that is called like",
                checkpoint_check_folder("run"));
}

Test(checkpoint, what_is_given_up_leaves_nothing)
{
    static const struct checkpoint_section sections[] = {{"bytes", 3}, {"more", 1}};
    struct checkpoint_writer *writer = NULL;
    EXPECT_OK(checkpoint_create("file", json_object(), sections, 2, &writer));
    EXPECT_OK(checkpoint_put(writer, "abc"));
    cr_expect_not(file_exists("file"));
    checkpoint_abandon(writer);
    cr_expect_not(file_exists("file.tmp"));
    EXPECT_OK(checkpoint_create("file", json_object(), sections, 2, &writer));
    EXPECT_OK(checkpoint_put(writer, "abc"));
    EXPECT_FAIL(STATUS_INTERNAL, "", checkpoint_commit(writer, NULL));
    cr_expect_not(file_exists("file"));
    cr_expect_not(file_exists("file.tmp"));
    EXPECT_FAIL(STATUS_IO, "", checkpoint_create("absent/file", json_object(), sections, 2, &writer));
    cr_expect_null(writer);
}
