/* cmd_calibrate.c - chorale calibrate: fits a platform file to the times of a bench. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "experiments/program.h"
#include "sim/calibrate.h"
#include "sim/platform.h"

static const char head[] =
    "usage: chorale calibrate --bench=FILE [--out=FILE --name=NAME]\n"
    "Fits latency, bandwidth and the cost of reducing to the rows of `chorale bench --json`, by the closed forms.\n";

static const struct option options_table[] = {
    {.key = "bench", .type = OPTION_STRING, .help = "what chorale bench --json wrote"},
    {.key = "out", .type = OPTION_STRING, .help = "platform file to write (default: stdout)"},
    {.key = "name", .type = OPTION_STRING, .default_text = "calibrated", .help = "name of the platform"},
    {.key = "smallest", .type = OPTION_SIZE, .default_text = "0", .unit = "B", .help = "rows below are left out"},
    {.key = "largest", .type = OPTION_SIZE, .default_text = "1T", .unit = "B", .help = "rows above are left out"},
    {.key = NULL},
};

enum { FILE_MOST = 1 << 28 }; /* bytes */

struct rows {
    struct calibration_row *row;
    size_t count, capacity;
};

/* Whether what was timed is an allreduce whose elements travel as they are. */
static bool is_plain(const json_t *row)
{
    const char *wire = json_string_value(json_object_get(row, "wire"));
    const char *dtype = json_string_value(json_object_get(row, "dtype"));
    return (wire == NULL || dtype == NULL || strcmp(wire, dtype) == 0) &&
           !(json_number_value(json_object_get(row, "wrong")) > 0);
}

/* Rows that were measured, right, and within the sizes asked for. */
static enum status take_rows(const json_t *document, size_t smallest, size_t largest, struct rows *rows)
{
    size_t index = 0;
    json_t *row = NULL;
    json_array_foreach(json_object_get(document, "rows"), index, row)
    {
        const char *name = json_string_value(json_object_get(row, "allreduce"));
        const json_t *time = json_object_get(row, "time_us");
        const json_int_t bytes = json_integer_value(json_object_get(row, "bytes"));
        if (name == NULL || !json_is_number(time) || (size_t)bytes < smallest || (size_t)bytes > largest ||
            bytes <= 0 || !is_plain(row))
            continue;
        void *memory = rows->row;
        TRY(memory_grow(&memory, &rows->capacity, rows->count + 1, sizeof *rows->row));
        rows->row = memory;
        rows->row[rows->count++] =
            (struct calibration_row){.allreduce = name,
                                     .workers = (int)json_integer_value(json_object_get(row, "workers")),
                                     .bytes = (size_t)bytes,
                                     .time_s = json_number_value(time) * 1e-6};
    }
    return STATUS_OK;
}

/* Four digits: a fit knows no more. */
static double rounded(double value)
{
    char text[32];
    double result = value;
    snprintf(text, sizeof text, "%.3e", value);
    return parse_real(text, &result) == STATUS_OK ? result : value;
}

static enum status write_platform(const struct option_values *options, const struct cost_model *model, double error,
                                  size_t rows)
{
    struct platform platform = {.node_workers = 1,
                                .intra = {rounded(model->latency_s), rounded(model->seconds_per_byte)},
                                .inter = {rounded(model->latency_s), rounded(model->seconds_per_byte)},
                                .reduce_s_per_byte = rounded(model->reduce_s_per_byte)};
    struct text text = {0};
    const char *out = option_text(options, "out"), *name = option_text(options, "name");
    const size_t length = strcspn(name, " \t\r\n#");
    if (length == 0 || name[length] != '\0' || length >= sizeof platform.name)
        return fail(STATUS_USAGE, "--name=%.80s: one word is wanted, of at most %zu characters", name,
                    sizeof platform.name - 1);
    snprintf(platform.name, sizeof platform.name, "%s", name);
    text_addf(&text, "# fitted to %zu rows of %s; median error of the closed forms ", rows,
              option_text(options, "bench"));
    text_add_fixed(&text, error * 100, 1);
    text_add(&text, " %\n");
    platform_text(&platform, &text);
    enum status status = text_check(&text);
    if (status >= 0 && out != NULL)
        status = file_write_atomic(out, text_string(&text), text.length);
    else if (status >= 0 && (fputs(text_string(&text), stdout) == EOF || fflush(stdout) == EOF))
        status = fail(STATUS_IO, "standard output: the platform could not be written");
    text_release(&text);
    return status;
}

static enum status read_bench(const char *path, json_t **document)
{
    char *text = NULL;
    size_t length = 0;
    json_error_t where;
    TRY(file_read(path, FILE_MOST, &text, &length));
    *document = json_loadb(text, length, 0, &where);
    free(text);
    return *document != NULL
               ? STATUS_OK
               : fail(STATUS_FORMAT, "%s:%d: %s: give what chorale bench --json wrote", path, where.line, where.text);
}

static enum status calibrate(const struct option_values *options)
{
    enum status status = STATUS_OK;
    struct rows rows = {0};
    struct cost_model model;
    double error = 0;
    json_t *document = NULL;
    const char *path = option_text(options, "bench");
    if (path == NULL)
        return fail(STATUS_USAGE, "calibrate: no measurement: give --bench=FILE, written by chorale bench --json");
    TRY(read_bench(path, &document));
    TRY_TO(done, take_rows(document, option_size(options, "smallest"), option_size(options, "largest"), &rows));
    TRY_TO(done, calibrate_fit(rows.row, rows.count, &model, &error));
    status = write_platform(options, &model, error, rows.count);
done:
    free(rows.row);
    json_decref(document);
    return status;
}

int cmd_calibrate(int argc, char **argv)
{
    struct option_values options;
    int exit_code = 0;
    if (!program_options(head, options_table, argc, argv, &options, &exit_code))
        return exit_code;
    const enum status status = calibrate(&options);
    option_values_release(&options);
    return status < 0 ? program_error(status) : 0;
}
