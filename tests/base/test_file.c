/* test_file.c - whole files in and out, and nothing left behind when the disk is full. */
#define _GNU_SOURCE /* O_TMPFILE, memfd_create */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/file.h"
#include "base/rng.h"
#include "tests/base/expect.h"
#include "tests/base/folder.h"

#define BIG ((size_t)3 << 20)

static size_t entries(void)
{
    size_t count = 0;
    DIR *stream = opendir(".");
    cr_assert_not_null(stream);
    while (readdir(stream) != NULL)
        count++;
    (void)closedir(stream);
    return count - 2; /* . and .. */
}

static void expect_contents(const char *path, const void *wanted, size_t wanted_length)
{
    char *data = NULL;
    size_t length = 0;
    EXPECT_OK(file_read(path, BIG, &data, &length));
    cr_assert_eq(length, wanted_length);
    cr_expect(memcmp(data, wanted, length) == 0);
    cr_expect_eq(data[length], '\0');
    free(data);
}

static char *big_data(void)
{
    char *data = malloc(BIG);
    cr_assert_not_null(data);
    for (size_t i = 0; i < BIG; i++)
        data[i] = (char)(rng_u64(1, i / 16) >> 56);
    return data;
}

TestSuite(file, .init = enter_folder, .fini = leave_folder);

Test(file, what_is_written_is_read)
{
    char *big = big_data();
    EXPECT_OK(file_write_atomic("big", big, BIG));
    expect_contents("big", big, BIG);
    EXPECT_OK(file_write_atomic("big", "short", 5));
    expect_contents("big", "short", 5);
    EXPECT_OK(file_write_atomic("empty", "", 0));
    expect_contents("empty", "", 0);
    cr_expect_eq(entries(), 2, "a temporary file is left");
    free(big);
}

Test(file, a_name_without_a_folder_is_in_the_current_one)
{
    char whole[64];
    (void)snprintf(whole, sizeof whole, "%s/here", test_folder);
    EXPECT_OK(file_write_atomic("here", "x", 1));
    expect_contents(whole, "x", 1);
    EXPECT_OK(file_write_atomic(whole, "new", 3));
    expect_contents("here", "new", 3);
}

Test(file, reading_has_a_limit)
{
    char *data = NULL;
    size_t length = 0;
    EXPECT_OK(file_write_atomic("five", "12345", 5));
    EXPECT_OK(file_read("five", 5, &data, &length));
    cr_expect_eq(length, 5);
    free(data);
    EXPECT_FAIL(STATUS_FORMAT, "limit of 4 bytes", file_read("five", 4, &data, &length));
    cr_expect_null(data);
    EXPECT_OK(file_read("five", SIZE_MAX, &data, &length));
    cr_expect_eq(length, 5);
    free(data);
    EXPECT_FAIL(STATUS_FORMAT, "limit of 1000 bytes", file_read("/dev/zero", 1000, &data, &length));
}

Test(file, reading_says_what_is_wrong)
{
    char *data = NULL;
    unsigned char *bytes = NULL;
    size_t length = 0;
    EXPECT_FAIL(STATUS_IO, "absent: No such file", file_read("absent", BIG, &data, &length));
    EXPECT_FAIL(STATUS_IO, "absent: No such file", file_read_gzip("absent", BIG, &bytes, &length));
    EXPECT_FAIL(STATUS_IO, "directory", file_read(".", BIG, &data, &length));
    EXPECT_FAIL(STATUS_IO, "directory", file_read_gzip(".", BIG, &bytes, &length));
    cr_expect_null(data);
    cr_expect_null(bytes);
}

Test(file, pipes_are_read_to_their_end)
{
    int ends[2];
    char name[32];
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(write(ends[1], "through a pipe", 14), 14);
    (void)close(ends[1]);
    (void)snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
    expect_contents(name, "through a pipe", 14);
    (void)close(ends[0]);
}

static void write_gzip(const char *path, const char *data, size_t length)
{
    gzFile stream = gzopen(path, "wb");
    cr_assert_not_null(stream);
    cr_assert_eq(gzwrite(stream, data, (unsigned)length), (int)length);
    cr_assert_eq(gzclose(stream), Z_OK);
}

Test(file, gzip_and_plain_read_alike)
{
    char *big = big_data();
    unsigned char *bytes = NULL;
    size_t length = 0;
    write_gzip("packed.gz", big, BIG);
    EXPECT_OK(file_write_atomic("plain", big, BIG));
    static const char *const names[] = {"packed.gz", "plain"};
    for (size_t i = 0; i < 2; i++) {
        EXPECT_OK(file_read_gzip(names[i], BIG, &bytes, &length));
        cr_assert_eq(length, BIG);
        cr_expect(memcmp(bytes, big, BIG) == 0);
        free(bytes);
        EXPECT_FAIL(STATUS_FORMAT, "limit", file_read_gzip(names[i], BIG - 1, &bytes, &length));
        cr_expect_null(bytes);
    }
    free(big);
}

/* Rewrite the packed file with `length` bytes of it, the one at `flip` changed. */
static void damage(size_t length, size_t flip)
{
    char *data = NULL;
    size_t whole = 0;
    EXPECT_OK(file_read("packed.gz", BIG, &data, &whole));
    cr_assert_lt(flip, whole);
    data[flip] = (char)(data[flip] ^ 0x55);
    EXPECT_OK(file_write_atomic("damaged.gz", data, length < whole ? length : whole));
    free(data);
}

Test(file, damaged_gzip_is_refused)
{
    char *big = big_data();
    unsigned char *bytes = NULL;
    size_t length = 0;
    write_gzip("packed.gz", big, 50000);
    free(big);
    damage(1000, 1001);
    EXPECT_FAIL(STATUS_FORMAT, "ends too early", file_read_gzip("damaged.gz", BIG, &bytes, &length));
    cr_expect_null(bytes);
    cr_expect_eq(length, 0);
    struct stat about;
    cr_assert_eq(stat("packed.gz", &about), 0);
    damage(BIG, (size_t)about.st_size - 6); /* in the checksum */
    EXPECT_FAIL(STATUS_FORMAT, "damaged.gz", file_read_gzip("damaged.gz", BIG, &bytes, &length));
    cr_expect_null(bytes);
}

Test(file, a_failed_write_leaves_the_old_file_and_no_other)
{
    EXPECT_OK(file_write_atomic("kept", "old", 3));
    char *big = big_data();
    /* A file size limit ends the write in the middle, as a full disk does. */
    struct rlimit limit = {.rlim_cur = 65536, .rlim_max = RLIM_INFINITY};
    cr_assert_neq(signal(SIGXFSZ, SIG_IGN), SIG_ERR);
    struct rlimit before;
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit.rlim_max = before.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_FAIL(STATUS_IO, "kept: File too large", file_write_atomic("kept", big, BIG));
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect_contents("kept", "old", 3);
    cr_expect_eq(entries(), 1, "the temporary file is left");
    free(big);
}

/* So a process that is killed leaves nothing of it. */
Test(file, what_is_being_written_has_no_name)
{
    struct file_writer *writer = NULL;
    const int fd = open(".", O_TMPFILE | O_RDWR, 0600);
    if (fd < 0) {
        leave_folder();
        cr_skip_test("no files without a name in /tmp");
    }
    (void)close(fd);
    EXPECT_OK(file_write_atomic("kept", "old", 3));
    for (int end = 0; end < 2; end++) {
        EXPECT_OK(file_begin("kept", &writer));
        cr_assert_not_null(writer);
        EXPECT_OK(file_append(writer, "newer words", 11));
        EXPECT_OK(file_rewrite_start(writer, "NEW", 3));
        expect_contents("kept", "old", 3);
        cr_expect_eq(entries(), 1);
        if (end == 0)
            file_abandon(writer);
        else
            EXPECT_OK(file_commit(writer));
        cr_expect_eq(entries(), 1);
    }
    expect_contents("kept", "NEWer words", 11);
    EXPECT_OK(file_begin("first", &writer));
    EXPECT_OK(file_append(writer, "x", 1));
    EXPECT_OK(file_commit(writer));
    expect_contents("first", "x", 1);
    cr_expect_eq(entries(), 2);
}

/* Reading one would wait for a writer who never comes. */
Test(file, a_pipe_that_nobody_writes_is_refused_at_once)
{
    char *data = NULL;
    unsigned char *bytes = NULL;
    size_t length = 0;
    cr_assert_eq(mkfifo("pipe", 0600), 0);
    EXPECT_FAIL(STATUS_IO, "pipe: a pipe that nobody writes to", file_read("pipe", 100, &data, &length));
    cr_expect_null(data);
    EXPECT_OK(file_read_gzip("pipe", 100, &bytes, &length));
    cr_expect_eq(length, 0);
    free(bytes);
}

Test(file, a_link_and_what_is_no_file_stay)
{
    EXPECT_OK(file_write_atomic("target", "old", 3));
    cr_assert_eq(symlink("target", "link"), 0);
    EXPECT_OK(file_write_atomic("link", "new", 3));
    expect_contents("target", "new", 3);
    struct stat about;
    cr_assert_eq(lstat("link", &about), 0);
    cr_expect(S_ISLNK(about.st_mode));

    cr_assert_eq(mkfifo("pipe", 0600), 0);
    int reader = open("pipe", O_RDWR); /* nobody waits for the other end */
    cr_assert_geq(reader, 0);
    EXPECT_OK(file_write_atomic("pipe", "words", 5));
    char words[8];
    cr_expect_eq(read(reader, words, sizeof words), 5);
    (void)close(reader);
    cr_assert_eq(lstat("pipe", &about), 0);
    cr_expect(S_ISFIFO(about.st_mode));
    cr_expect_eq(entries(), 3, "a temporary file is left");

    EXPECT_FAIL(STATUS_IO, "/dev/full: No space left on device", file_write_atomic("/dev/full", "x", 1));
    cr_assert_eq(stat("/dev/full", &about), 0);
    cr_expect(S_ISCHR(about.st_mode));
}

Test(file, a_file_without_a_name_is_written)
{
    char path[64];
    int fd = memfd_create("rows", MFD_CLOEXEC);
    cr_assert_geq(fd, 0);
    (void)snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), fd);
    EXPECT_OK(file_writable(path));
    EXPECT_OK(file_write_atomic(path, "longer", 6));
    EXPECT_OK(file_write_atomic(path, "rows", 4));
    expect_contents(path, "rows", 4);
    (void)close(fd);
}

Test(file, a_folder_in_the_way_is_reported)
{
    cr_assert_eq(mkdir("taken", 0700), 0);
    EXPECT_FAIL(STATUS_IO, "taken: Is a directory", file_write_atomic("taken", "x", 1));
    EXPECT_FAIL(STATUS_IO, "No such file", file_write_atomic("absent/file", "x", 1));
    cr_expect_eq(entries(), 1, "the temporary file is left");
}

Test(file, whether_it_can_be_written_is_known_before)
{
    EXPECT_OK(file_writable("new"));
    EXPECT_OK(file_writable("new"));
    EXPECT_OK(file_writable("/dev/null"));
    cr_assert_eq(symlink("absent/file", "dangling"), 0);
    EXPECT_OK(file_writable("dangling")); /* the link is replaced */
    EXPECT_FAIL(STATUS_IO, "directory", file_writable(test_folder));
    EXPECT_FAIL(STATUS_IO, "absent/file: No such file", file_writable("absent/file"));
    cr_expect_eq(entries(), 1, "a file is made");
}

Test(file, exists)
{
    cr_expect(file_exists(test_folder));
    cr_expect_not(file_exists("absent"));
}

Test(file, folders_are_made_all_the_way)
{
    char whole[64];
    (void)snprintf(whole, sizeof whole, "%s/a/b//c/", test_folder);
    EXPECT_OK(folder_create(whole));
    cr_expect(file_exists("a/b/c"));
    EXPECT_OK(folder_create("a/b/c"));
    EXPECT_OK(folder_create("/"));
    EXPECT_OK(folder_create("relative/./x"));
    cr_expect(file_exists("relative/x"));
    EXPECT_OK(file_write_atomic("file", "", 0));
    EXPECT_FAIL(STATUS_IO, "in the way", folder_create("file"));
    EXPECT_FAIL(STATUS_IO, "in the way", folder_create("file/x"));
    EXPECT_FAIL(STATUS_IO, "", folder_create(""));
}
