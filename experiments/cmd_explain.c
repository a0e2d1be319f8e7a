/* cmd_explain.c - chorale explain: what an algorithm does, in figures and a picture. */
#include <stdio.h>

#include "algos/explain.h"
#include "algos/spec.h"
#include "experiments/program.h"
#include "experiments/worker.h"
#include "sim/platform.h"

static const char head[] =
    "usage: chorale explain --allreduce=SPEC -n N [--bytes=N --platform=FILE --nodes=2x4]\n"
    "Rounds, messages, bytes, the closed form, and for up to 8 workers a picture of the rounds.\n";

static const struct option options_table[] = {
    PROGRAM_SCHEDULE_OPTIONS,
    {.key = "platform", .type = OPTION_STRING, .help = "platform file: the closed form in seconds"},
    {.key = NULL},
};

static enum status explain(const struct option_values *options)
{
    enum status status = STATUS_OK;
    struct spec spec = {0};
    struct layout layout = {0};
    struct platform platform;
    struct cost_model model;
    struct text text = {0};
    const int workers = (int)option_int(options, "workers");
    const char *path = option_text(options, "platform");
    TRY_TO(done, program_spec(option_text(options, "allreduce"), &spec));
    if (path != NULL) {
        TRY_TO(done, platform_read(path, &platform));
        platform_cost_model(&platform, workers, &model);
    }
    TRY_TO(done, program_layout(options, path != NULL ? &platform : NULL, workers, &layout));
    TRY_TO(done,
           explain_spec(&spec, &layout, option_size(options, "bytes") / 4, 4, path != NULL ? &model : NULL, &text));
    TRY_TO(done, text_check(&text));
    if (fputs(text_string(&text), stdout) == EOF || fflush(stdout) == EOF)
        status = fail(STATUS_IO, "standard output: the text could not be written");
done:
    text_release(&text);
    layout_release(&layout);
    spec_release(&spec);
    return status;
}

int cmd_explain(int argc, char **argv)
{
    struct option_values options;
    int exit_code = 0;
    if (!program_options(head, options_table, argc, argv, &options, &exit_code))
        return exit_code;
    const enum status status = explain(&options);
    option_values_release(&options);
    return status < 0 ? program_error(status) : 0;
}
