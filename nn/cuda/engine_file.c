/* engine_file.c - reading, merging and writing what engine_file.h describes. */
#define _DEFAULT_SOURCE /* flock */
#include "nn/cuda/engine_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/lines.h"
#include "base/memory.h"
#include "base/text.h"

#define FORMAT_WORD "chorale-engines"
#define FORMAT_VERSION "1"
#define FILE_LIMIT ((size_t)16 << 20)
#define LOCK_LOOK_NS UINT64_C(20000000)        /* between two looks at the lock */
#define LINE_FORM_WORDS (ENGINE_KEY_WORDS + 3) /* key = engine time */

static struct engine_line *find(const struct engine_file *file, const char *key)
{
    for (size_t i = 0; i < file->lines; i++) {
        if (strcmp(file->line[i].key, key) == 0)
            return &file->line[i];
    }
    return NULL;
}

const struct engine_line *engine_file_find(const struct engine_file *file, const char *key)
{
    return find(file, key);
}

static void line_release(struct engine_line *line)
{
    free(line->key);
    free(line->engine);
}

static enum status add(struct engine_file *file, const char *key, const char *engine, double microseconds, int number)
{
    struct engine_line made = {.microseconds = microseconds, .number = number};
    enum status status = STATUS_OK;
    void *lines = file->line;
    TRY_TO(out, memory_string(&made.key, key));
    TRY_TO(out, memory_string(&made.engine, engine));
    struct engine_line *place = find(file, key);
    if (place != NULL) {
        line_release(place);
    } else {
        TRY_TO(out, memory_grow(&lines, &file->capacity, file->lines + 1, sizeof *file->line));
        file->line = lines;
        place = &file->line[file->lines++];
    }
    *place = made;
    made = (struct engine_line){NULL};
out:
    line_release(&made);
    return status;
}

enum status engine_file_put(struct engine_file *file, const char *key, const char *engine, double microseconds)
{
    return add(file, key, engine, microseconds, 0);
}

static enum status read_heading(struct lines *lines)
{
    enum status status = lines_next(lines);
    if (status == STATUS_OK && lines->count == 2 && strcmp(lines->word[0], FORMAT_WORD) == 0) {
        if (strcmp(lines->word[1], FORMAT_VERSION) == 0)
            return STATUS_OK;
        return lines_fail(lines, "version %s of the engine file's form; this program reads " FORMAT_VERSION,
                          lines->word[1]);
    }
    TRY(status);
    return lines_fail(lines, "not an engine file: its first line is \"" FORMAT_WORD " " FORMAT_VERSION
                             "\"; remove the file to "
                             "have it made anew");
}

static enum status read_line(struct engine_file *file, const struct lines *lines)
{
    double seconds = 0;
    if (lines->count != LINE_FORM_WORDS || strcmp(lines->word[ENGINE_KEY_WORDS], "=") != 0)
        return lines_fail(lines,
                          "damaged: a line is %d words, =, the engine and its time; remove it to have it "
                          "measured anew",
                          ENGINE_KEY_WORDS);
    const char *time = lines->word[ENGINE_KEY_WORDS + 2];
    if (parse_quantity(time, "s", &seconds) < 0 || seconds < 0)
        return lines_fail(lines, "damaged: %s is no time (41.5us); remove the line to have it measured anew", time);
    struct text key = {NULL};
    for (size_t i = 0; i < ENGINE_KEY_WORDS; i++) {
        text_add(&key, i > 0 ? " " : "");
        text_add(&key, lines->word[i]);
    }
    enum status status = text_check(&key);
    const struct engine_line *there = status >= 0 ? find(file, text_string(&key)) : NULL;
    if (status >= 0 && (there == NULL || there->number > 0))
        status = add(file, text_string(&key), lines->word[ENGINE_KEY_WORDS + 1], seconds * 1e6, lines->number);
    text_release(&key);
    return status;
}

enum status engine_file_read(struct engine_file *file, const char *path)
{
    if (!file_exists(path))
        return STATUS_OK;
    if (!file_is_plain(path))
        return fail(STATUS_FORMAT, "%s: no plain file: what is remembered is written there, and read again", path);
    char *data = NULL;
    size_t length = 0;
    enum status status = STATUS_OK;
    struct lines lines;
    TRY_TO(out, file_read(path, FILE_LIMIT, &data, &length));
    if (strlen(data) != length)
        TRY_TO(out, fail(STATUS_FORMAT, "%s: damaged: zero bytes; remove the file to have it made anew", path));
    lines_begin(&lines, data, path);
    TRY_TO(out, read_heading(&lines));
    for (;;) {
        TRY_TO(out, lines_next(&lines));
        if (status == STATUS_AGAIN)
            break;
        TRY_TO(out, read_line(file, &lines));
    }
    status = STATUS_OK;
out:
    free(data);
    return status;
}

static enum status merge(struct engine_file *into, const struct engine_file *from, bool *changed)
{
    for (size_t i = 0; i < from->lines; i++) {
        const struct engine_line *line = &from->line[i], *there = find(into, line->key);
        if (line->number != 0 || (there != NULL && strcmp(there->engine, line->engine) == 0))
            continue;
        TRY(engine_file_put(into, line->key, line->engine, line->microseconds));
        *changed = true;
    }
    return STATUS_OK;
}

enum status engine_file_write(const struct engine_file *file, const char *path)
{
    struct engine_file merged = {NULL};
    struct text text = {NULL};
    bool changed = false;
    enum status status = STATUS_OK;
    TRY_TO(out, engine_file_read(&merged, path));
    TRY_TO(out, merge(&merged, file, &changed));
    if (!changed)
        goto out;
    text_add(&text, FORMAT_WORD " " FORMAT_VERSION "\n");
    for (size_t i = 0; i < merged.lines; i++) {
        text_addf(&text, "%s = %s ", merged.line[i].key, merged.line[i].engine);
        text_add_real(&text, merged.line[i].microseconds, 6);
        text_add(&text, "us\n");
    }
    TRY_TO(out, text_check(&text));
    TRY_TO(out, file_write_atomic(path, text_string(&text), text.length));
out:
    text_release(&text);
    engine_file_release(&merged);
    return status;
}

enum status engine_file_lock(const char *path, double seconds, int *lock)
{
    const uint64_t until = clock_ns() + (uint64_t)(seconds * 1e9);
    struct text name = {NULL};
    text_addf(&name, "%s.lock", path);
    *lock = -1;
    enum status status = text_check(&name);
    if (status >= 0)
        *lock = open(text_string(&name), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    text_release(&name);
    while (*lock >= 0 && flock(*lock, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) { /* this file system knows no locks */
            engine_file_unlock(*lock);
            *lock = -1;
        } else if (clock_ns() >= until) {
            engine_file_unlock(*lock);
            *lock = -1;
            return STATUS_AGAIN;
        } else {
            clock_sleep_ns(LOCK_LOOK_NS);
        }
    }
    return status;
}

void engine_file_unlock(int lock)
{
    if (lock >= 0)
        (void)close(lock);
}

void engine_file_release(struct engine_file *file)
{
    for (size_t i = 0; i < file->lines; i++)
        line_release(&file->line[i]);
    free(file->line);
    *file = (struct engine_file){NULL};
}
