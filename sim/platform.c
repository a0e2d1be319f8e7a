/* platform.c - reading and writing platform files. */
#include "sim/platform.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/lines.h"

#define PLATFORM_FILE_LIMIT ((size_t)1 << 20)
#define LARGEST_NODE 1e6    /* workers */
#define LONGEST_LATENCY 1e3 /* seconds */
#define SLOWEST_REDUCE 1.0  /* seconds a byte */

/* What has been read so far; the line numbers are for messages, 0 = not yet. */
struct reading {
    struct lines lines;
    struct platform *platform;
    int platform_line, node_line, intra_line, inter_line, reduce_line, overhead_line;
};

static enum status once(struct reading *reading, int *line, const char *what)
{
    if (*line != 0)
        return lines_fail(&reading->lines, "%s stands twice: the first is in line %d", what, *line);
    *line = reading->lines.number;
    return STATUS_OK;
}

static enum status read_name(struct reading *reading)
{
    struct platform *platform = reading->platform;
    TRY(once(reading, &reading->platform_line, "\"platform\""));
    TRY(lines_word(&reading->lines, 1, "name", platform->name, sizeof platform->name));
    if (reading->lines.count > 2)
        return lines_fail(&reading->lines, "\"%s\" after the platform's name: a name is one word",
                          reading->lines.word[2]);
    return STATUS_OK;
}

static enum status read_node(struct reading *reading)
{
    struct field field = {.key = "workers", .dimension = "", .min = 1, .max = LARGEST_NODE, .whole = true};
    TRY(once(reading, &reading->node_line, "\"node\""));
    TRY(lines_fields(&reading->lines, 1, &field, 1));
    reading->platform->node_workers = (int)field.value;
    return STATUS_OK;
}

static enum status read_link(struct reading *reading)
{
    char name[16];
    TRY(lines_word(&reading->lines, 1, "class, intra or inter", name, sizeof name));
    bool intra = strcmp(name, "intra") == 0;
    if (!intra && strcmp(name, "inter") != 0)
        return lines_fail(&reading->lines, "unknown link \"%s\": give intra (within a node) or inter (between nodes)",
                          name);
    TRY(once(reading, intra ? &reading->intra_line : &reading->inter_line,
             intra ? "\"link intra\"" : "\"link inter\""));
    struct field fields[] = {
        {.key = "latency", .dimension = "s", .max = LONGEST_LATENCY},
        {.key = "bandwidth", .dimension = "B/s", .min = 1, .max = INFINITY}, /* inf: bytes cost nothing */
    };
    TRY(lines_fields(&reading->lines, 2, fields, 2));
    struct link *link = intra ? &reading->platform->intra : &reading->platform->inter;
    link->latency_s = fields[0].value;
    link->seconds_per_byte = 1 / fields[1].value;
    return STATUS_OK;
}

static enum status read_reduce(struct reading *reading)
{
    struct field field = {.key = "cost", .dimension = "s/B", .max = SLOWEST_REDUCE};
    TRY(once(reading, &reading->reduce_line, "\"reduce\""));
    TRY(lines_fields(&reading->lines, 1, &field, 1));
    reading->platform->reduce_s_per_byte = field.value;
    return STATUS_OK;
}

static enum status read_overhead(struct reading *reading)
{
    struct field fields[] = {
        {.key = "send", .dimension = "s", .max = LONGEST_LATENCY, .optional = true},
        {.key = "receive", .dimension = "s", .max = LONGEST_LATENCY, .optional = true},
    };
    TRY(once(reading, &reading->overhead_line, "\"overhead\""));
    TRY(lines_fields(&reading->lines, 1, fields, 2));
    reading->platform->send_overhead_s = fields[0].value;
    reading->platform->receive_overhead_s = fields[1].value;
    return STATUS_OK;
}

static enum status read_line(struct reading *reading)
{
    static const char *const words[] = {"platform", "node", "link", "reduce", "overhead"};
    static enum status (*const readers[])(struct reading *) = {read_name, read_node, read_link, read_reduce,
                                                               read_overhead};
    const char *word = reading->lines.word[0];
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(word, words[i]) == 0)
            return readers[i](reading);
    return lines_fail(&reading->lines,
                      "unknown word \"%s\": a platform has lines of platform, node, link, reduce and overhead", word);
}

static enum status check_whole(const struct reading *reading)
{
    const struct {
        int line;
        const char *example;
    } required[] = {
        {reading->platform_line, "platform NAME"},
        {reading->node_line, "node workers=4"},
        {reading->intra_line, "link intra latency=5us bandwidth=10GB/s"},
        {reading->inter_line, "link inter latency=2us bandwidth=6GB/s"},
        {reading->reduce_line, "reduce cost=0.02ns/B"},
    };
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++)
        if (required[i].line == 0)
            return fail(STATUS_FORMAT, "%s: a line is missing: add one such as \"%s\"", reading->lines.name,
                        required[i].example);
    return STATUS_OK;
}

enum status platform_parse(const char *text, const char *name_for_messages, struct platform *platform)
{
    struct reading reading = {.platform = platform};
    *platform = (struct platform){0};
    lines_begin(&reading.lines, text, name_for_messages);
    for (;;) {
        enum status status = lines_next(&reading.lines);
        if (status == STATUS_AGAIN)
            break;
        TRY(status);
        TRY(read_line(&reading));
    }
    return check_whole(&reading);
}

enum status platform_read(const char *path, struct platform *platform)
{
    char *text = NULL;
    size_t length = 0;
    TRY(file_read(path, PLATFORM_FILE_LIMIT, &text, &length));
    enum status status;
    if (strlen(text) != length)
        status = fail(STATUS_FORMAT, "%s: holds NUL bytes: a platform is plain text", path);
    else
        status = platform_parse(text, path, platform);
    free(text);
    return status;
}

enum status platform_layout(const struct platform *platform, int workers, struct layout *layout)
{
    return layout_groups(workers, platform->node_workers, layout);
}

void platform_cost_model(const struct platform *platform, int workers, struct cost_model *model)
{
    const struct link *link = workers <= platform->node_workers ? &platform->intra : &platform->inter;
    model->latency_s = link->latency_s;
    model->seconds_per_byte = link->seconds_per_byte;
    model->reduce_s_per_byte = platform->reduce_s_per_byte;
}

/* ---- writing ---- */

static void add_value(struct text *text, const char *key, double value, const char *unit)
{
    text_addf(text, " %s=", key);
    text_add_real(text, value, 12);
    text_add(text, unit);
}

static void add_link(struct text *text, const char *name, const struct link *link)
{
    text_addf(text, "link %s", name);
    add_value(text, "latency", link->latency_s * 1e6, "us");
    add_value(text, "bandwidth", link->seconds_per_byte > 0 ? 1e-9 / link->seconds_per_byte : INFINITY, "GB/s");
    text_add(text, "\n");
}

void platform_text(const struct platform *platform, struct text *text)
{
    text_addf(text, "platform %s\nnode workers=%d\n", platform->name, platform->node_workers);
    add_link(text, "intra", &platform->intra);
    add_link(text, "inter", &platform->inter);
    text_add(text, "reduce");
    add_value(text, "cost", platform->reduce_s_per_byte * 1e9, "ns/B");
    text_add(text, "\n");
    if (platform->send_overhead_s > 0 || platform->receive_overhead_s > 0) {
        text_add(text, "overhead");
        add_value(text, "send", platform->send_overhead_s * 1e6, "us");
        add_value(text, "receive", platform->receive_overhead_s * 1e6, "us");
        text_add(text, "\n");
    }
}
