/* The file that remembers engines: what is written is read, others' lines stay, damage is named by line. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "nn/cuda/engine_file.h"
#include "support_dnn.h"

#define A "H200 9.19.0 graph forward bf16 1x2x2x8,8x1x1x8,s1,p0 any cap=0"
#define B "H200 9.19.0 graph backward-data bf16 1x2x2x8,8x1x1x8,s1,p0 any cap=0"
#define OTHER "A100 9.1.0 legacy forward f16 1x2x2x8,8x1x1x8,s1,p0 deterministic cap=7"

static char path[64];

static void make_path(void)
{
    snprintf(path, sizeof path, "/tmp/chorale-test-engines-%ld", (long)getpid());
    unlink(path);
}

static void remove_path(void)
{
    unlink(path);
}

TestSuite(engine_file, .init = make_path, .fini = remove_path);

static void put_text(const char *text)
{
    OK(file_write_atomic(path, text, strlen(text)));
}

static void expect_text(const char *expected)
{
    char *text = NULL;
    size_t length = 0;
    OK(file_read(path, 1 << 16, &text, &length));
    cr_expect_str_eq(text, expected);
    free(text);
}

Test(engine_file, what_is_written_is_read)
{
    struct engine_file file = {NULL}, again = {NULL};
    OK(engine_file_put(&file, A, "62:2=4,13=0", 41.5));
    OK(engine_file_put(&file, B, "7", 0.25));
    OK(engine_file_put(&file, A, "62:2=5", 40.125));
    OK(engine_file_write(&file, path));
    expect_text("chorale-engines 1\n" A " = 62:2=5 40.125us\n" B " = 7 0.25us\n");
    OK(engine_file_read(&again, path));
    cr_expect_eq(again.lines, 2);
    const struct engine_line *line = engine_file_find(&again, A);
    cr_assert_not_null(line);
    cr_expect_str_eq(line->engine, "62:2=5");
    cr_expect_float_eq(line->microseconds, 40.125, 1e-9);
    cr_expect_eq(line->number, 2);
    cr_expect_null(engine_file_find(&again, OTHER));
    engine_file_release(&again);
    engine_file_release(&file);
}

Test(engine_file, an_absent_file_has_no_lines)
{
    struct engine_file file = {NULL};
    OK(engine_file_read(&file, path));
    cr_expect_eq(file.lines, 0);
    OK(engine_file_write(&file, path));
    cr_expect_not(file_exists(path), "nothing to say, nothing written");
    engine_file_release(&file);
}

Test(engine_file, comments_and_blanks_are_read_over)
{
    struct engine_file file = {NULL};
    put_text("# mine\n\nchorale-engines 1 # form\n  " A "   =  3  2ms\n");
    OK(engine_file_read(&file, path));
    cr_assert_eq(file.lines, 1);
    cr_expect_str_eq(file.line[0].key, A);
    cr_expect_float_eq(file.line[0].microseconds, 2000, 1e-9);
    cr_expect_eq(file.line[0].number, 4);
    engine_file_release(&file);
}

Test(engine_file, lines_that_others_wrote_meanwhile_stay)
{
    struct engine_file file = {NULL};
    put_text("chorale-engines 1\n" A " = 1 5us\n");
    OK(engine_file_read(&file, path));
    put_text("chorale-engines 1\n" OTHER " = 5:fma 9us\n" A " = 2 4us\n");
    OK(engine_file_put(&file, B, "3", 6));
    OK(engine_file_write(&file, path));
    expect_text("chorale-engines 1\n" OTHER " = 5:fma 9us\n" A " = 2 4us\n" B " = 3 6us\n");
    engine_file_release(&file);
}

Test(engine_file, a_new_choice_replaces_an_old_one_and_an_equal_one_writes_nothing)
{
    struct engine_file file = {NULL};
    struct stat before, after;
    put_text("chorale-engines 1\n" A " = 1 5us\n");
    cr_assert_eq(stat(path, &before), 0);
    OK(engine_file_put(&file, A, "1", 7));
    OK(engine_file_write(&file, path));
    cr_assert_eq(stat(path, &after), 0);
    cr_expect_eq(before.st_ino, after.st_ino, "the same engine: not written");
    OK(engine_file_put(&file, A, "2", 3));
    OK(engine_file_write(&file, path));
    expect_text("chorale-engines 1\n" A " = 2 3us\n");
    engine_file_release(&file);
}

static void expect_damage(const char *text, const char *part)
{
    struct engine_file file = {NULL};
    put_text(text);
    EXPECT_STATUS(engine_file_read(&file, path), STATUS_FORMAT);
    EXPECT_MESSAGE(path);
    EXPECT_MESSAGE(part);
    engine_file_release(&file);
}

Test(engine_file, damage_is_named_by_line)
{
    expect_damage("", "not an engine file");
    expect_damage("something else\n", ":1: not an engine file");
    expect_damage("chorale-engines 2\n", ":1: version 2");
    expect_damage("chorale-engines 1\n" A " = 1 5us\n" A " = 1\n", ":3: damaged");
    expect_damage("chorale-engines 1\n" A " 1 5us\n", ":2: damaged");
    expect_damage("chorale-engines 1\n" A " = 1 5us more\n", ":2: damaged");
    expect_damage("chorale-engines 1\n" A " = 1 5\n", ":2: damaged: 5");
    expect_damage("chorale-engines 1\n" A " = 1 -5us\n", ":2: damaged: -5us");
    expect_damage("chorale-engines 1\n" A " = 1 5us\nH200 9.1", ":3: damaged");
}

Test(engine_file, zero_bytes_are_damage)
{
    static const char text[] = "chorale-engines 1\n\0\0\0\0";
    struct engine_file file = {NULL};
    OK(file_write_atomic(path, text, sizeof text - 1));
    EXPECT_STATUS(engine_file_read(&file, path), STATUS_FORMAT);
    EXPECT_MESSAGE("zero bytes");
    engine_file_release(&file);
}

Test(engine_file, a_damaged_file_is_not_written_over)
{
    struct engine_file file = {NULL};
    put_text("chorale-engines 1\ntorn\n");
    OK(engine_file_put(&file, A, "1", 5));
    EXPECT_STATUS(engine_file_write(&file, path), STATUS_FORMAT);
    expect_text("chorale-engines 1\ntorn\n");
    engine_file_release(&file);
}

Test(engine_file, only_a_plain_file_is_one)
{
    struct engine_file file = {NULL};
    EXPECT_STATUS(engine_file_read(&file, "/tmp"), STATUS_FORMAT);
    EXPECT_MESSAGE("/tmp: no plain file");
    cr_assert_eq(mkfifo(path, 0600), 0);
    EXPECT_STATUS(engine_file_read(&file, path), STATUS_FORMAT); /* and does not wait for a writer */
    EXPECT_MESSAGE("no plain file");
}

Test(engine_file, what_was_put_stays_when_the_file_is_read_again)
{
    struct engine_file file = {NULL};
    put_text("chorale-engines 1\n" A " = 1 5us\n" B " = 2 5us\n");
    OK(engine_file_read(&file, path));
    OK(engine_file_put(&file, A, "7", 3));
    put_text("chorale-engines 1\n" A " = 1 5us\n" B " = 3 4us\n");
    OK(engine_file_read(&file, path));
    cr_expect_str_eq(engine_file_find(&file, A)->engine, "7");
    cr_expect_str_eq(engine_file_find(&file, B)->engine, "3");
    engine_file_release(&file);
}

/* ---- the lock ---- */

static pid_t start_holder(void)
{
    int ready[2], lock = -1;
    char byte = 0;
    cr_assert_eq(pipe(ready), 0);
    const pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        if (engine_file_lock(path, 5, &lock) != STATUS_OK || write(ready[1], &byte, 1) != 1)
            _exit(1);
        for (;;)
            (void)pause();
    }
    (void)close(ready[1]);
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    (void)close(ready[0]);
    return child;
}

Test(engine_file, one_holds_the_lock_until_it_ends)
{
    char name[80];
    int lock = -1;
    const pid_t holder = start_holder();
    cr_expect_eq(engine_file_lock(path, 0.05, &lock), STATUS_AGAIN);
    cr_expect_eq(lock, -1);
    cr_assert_eq(kill(holder, SIGKILL), 0);
    cr_assert_eq(waitpid(holder, NULL, 0), holder);
    cr_expect_eq(engine_file_lock(path, 5, &lock), STATUS_OK);
    cr_expect_geq(lock, 0);
    engine_file_unlock(lock);
    cr_expect_eq(engine_file_lock(path, 0, &lock), STATUS_OK, "given back");
    engine_file_unlock(lock);
    snprintf(name, sizeof name, "%s.lock", path);
    unlink(name);
}

Test(engine_file, without_a_folder_there_is_no_lock)
{
    int lock = 0;
    cr_expect_eq(engine_file_lock("/nonexistent/engines.txt", 0, &lock), STATUS_OK);
    cr_expect_eq(lock, -1);
    engine_file_unlock(lock);
}
