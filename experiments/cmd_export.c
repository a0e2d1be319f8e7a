/* cmd_export.c - chorale export: a schedule in the form of another program. */
#include <stdio.h>
#include <stdlib.h>

#include "algos/export.h"
#include "base/file.h"
#include "experiments/program.h"
#include "sim/platform.h"

static const char head[] =
    "usage: chorale export --allreduce=SPEC -n N --format=FORMAT --out=FILE [--bytes=N --platform=FILE --nodes=2x4]\n"
    "Writes a schedule as\n"
    "  msccl    MSCCL XML, for RCCL and for msccl:file=FILE here; at most 64 workers\n"
    "  goal     GOAL text, for LogGOPSim and ATLAHS (through txt2bin)\n"
    "  simgrid  a time-independent trace, for SimGrid's smpirun -replay; a reduced element is one flop\n"
    "  chakra   Chakra execution traces, for ASTRA-sim: a file FILE.RANK.et for each worker\n"
    "Only --format=msccl is for vectors of any size; the others say how many bytes every message has.\n";

static const struct option options_table[] = {
    PROGRAM_SCHEDULE_OPTIONS,
    {.key = "format",
     .type = OPTION_CHOICE,
     .default_text = "msccl",
     .choices = "msccl|goal|simgrid|chakra",
     .help = "what to write"},
    {.key = "out", .type = OPTION_STRING, .help = "the file; chakra: FILE.0.et, FILE.1.et, ..."},
    {.key = "platform",
     .type = OPTION_STRING,
     .help = "platform file: its nodes, and in goal and chakra its price of a reduction; else they cost nothing"},
    {.key = NULL},
};

static enum export_format format_of(const struct option_values *options)
{
    static const char first_letters[EXPORT_FORMATS] = {
        [EXPORT_MSCCL] = 'm', [EXPORT_GOAL] = 'g', [EXPORT_SIMGRID] = 's', [EXPORT_CHAKRA] = 'c'};
    int format = 0;
    while (first_letters[format] != option_text(options, "format")[0])
        format++;
    return (enum export_format)format;
}

/* What was exported, counted in the trace itself. */
static void say(const struct exporter *exporter, const char *path, size_t bytes)
{
    size_t messages = 0, sent = 0, computed = 0;
    for (int r = 0; r < exporter->request.shape->workers; r++)
        for (size_t i = 0; i < exporter->trace.worker[r].events; i++) {
            const struct trace_event *event = &exporter->trace.worker[r].event[i];
            messages += event->kind == TRACE_SEND;
            sent += event->kind == TRACE_SEND ? event->elements * exporter->request.element_bytes : 0;
            computed += event->kind == TRACE_REDUCE;
        }
    printf("%s%s: %zu bytes; %s on %d workers: %zu messages", path, export_files(exporter) > 1 ? ".*.et" : "", bytes,
           exporter->request.name, exporter->request.shape->workers, messages);
    if (exporter->format != EXPORT_MSCCL)
        printf(", %zu bytes sent", sent);
    printf(", %zu reductions and copies\n", computed);
}

static enum status write_files(const struct exporter *exporter, const char *out)
{
    enum status status = STATUS_OK;
    struct text text = {0}, path = {0};
    size_t bytes = 0;
    for (int f = 0; f < export_files(exporter); f++) {
        text_clear(&text);
        text_clear(&path);
        text_add(&path, out);
        if (exporter->format == EXPORT_CHAKRA)
            text_addf(&path, ".%d.et", f);
        TRY_TO(done, text_check(&path));
        TRY_TO(done, export_file(exporter, f, &text));
        TRY_TO(done, file_write_atomic(text_string(&path), text_string(&text), text.length));
        bytes += text.length;
    }
    say(exporter, out, bytes);
    if (fflush(stdout) == EOF)
        status = fail(STATUS_IO, "standard output: the summary could not be written");
done:
    text_release(&text);
    text_release(&path);
    return status;
}

static enum status export_schedule(const struct option_values *options)
{
    enum status status = STATUS_OK;
    struct spec spec = {0};
    struct layout layout = {0};
    struct platform platform = {0};
    struct shape *shape = NULL;
    struct exporter exporter = {0};
    struct text name = {0};
    const char *out = option_text(options, "out"), *path = option_text(options, "platform");
    const size_t count = option_size(options, "bytes") / sizeof(float);
    if (out == NULL || out[0] == '\0')
        return fail(STATUS_USAGE, "no file to write: give --out=FILE");
    TRY(file_writable(out));
    TRY_TO(done, program_spec(option_text(options, "allreduce"), &spec));
    spec_canonical(&spec, &name);
    TRY_TO(done, text_check(&name));
    if (path != NULL)
        TRY_TO(done, platform_read(path, &platform));
    TRY_TO(done,
           program_layout(options, path != NULL ? &platform : NULL, (int)option_int(options, "workers"), &layout));
    TRY_TO(done, spec_shape(&spec, &layout, 0, count, &shape));
    const struct export_request request = {.shape = shape,
                                           .name = text_string(&name),
                                           .count = count,
                                           .element_bytes = sizeof(float),
                                           .reduce_s_per_byte = platform.reduce_s_per_byte};
    TRY_TO(done, export_begin(&request, format_of(options), &exporter));
    status = write_files(&exporter, out);
    export_end(&exporter);
done:
    shape_destroy(shape);
    layout_release(&layout);
    text_release(&name);
    spec_release(&spec);
    return status;
}

int cmd_export(int argc, char **argv)
{
    struct option_values options;
    int exit_code = 0;
    if (!program_options(head, options_table, argc, argv, &options, &exit_code))
        return exit_code;
    const enum status status = export_schedule(&options);
    option_values_release(&options);
    return status < 0 ? program_error(status) : 0;
}
