/* program.c - errors and help, alike for all commands. */
#include "experiments/program.h"

#include <stdio.h>

#include "base/file.h"
#include "base/text.h"
#include "comm/job.h"
#include "sim/platform.h"

#define REFUSAL_SECONDS 3.0

int program_error(enum status status)
{
    fprintf(stderr, "chorale: %s\n", status_message());
    return status_exit_code(status);
}

int program_refuse(enum status status)
{
    char why[1024];
    struct job *job = NULL;
    bool told = false;
    const struct job_options options = {.deadline = REFUSAL_SECONDS, .told = &told};
    (void)snprintf(why, sizeof why, "%s", status_message());
    if (!job_is_worker() || (job_join(&options, &job) != STATUS_OK && !told))
        return program_error(fail(status, "%s", why));
    if (job == NULL) /* whoever has ended the job says why */
        return status_exit_code(status);
    (void)fail(status, "rank %d on %s: %s", job_rank(job), job_host(job), why);
    if (!job_abort(job, status, status_message()))
        (void)program_error(status);
    job_destroy(job);
    return status_exit_code(status);
}

void program_note(void *context, const char *line)
{
    (void)context;
    fprintf(stderr, "chorale: %s\n", line);
}

int program_help(const char *head, const struct option *table)
{
    struct text text = {0};
    text_add(&text, head);
    text_add(&text, "\n");
    option_help(table, &text);
    enum status status = text_check(&text);
    if (status == STATUS_OK && (fputs(text_string(&text), stdout) == EOF || fflush(stdout) == EOF))
        status = fail(STATUS_IO, "standard output: the help could not be written");
    text_release(&text);
    return status < 0 ? program_error(status) : 0;
}

bool program_options(const char *head, const struct option *table, int argc, char **argv, struct option_values *values,
                     int *exit_code)
{
    bool help = false;
    enum status status = option_values_init(values, table);
    if (status == STATUS_OK)
        status = option_parse(values, argc, argv, &help, NULL, NULL);
    if (status == STATUS_OK && !help)
        return true;
    *exit_code = status < 0 ? program_refuse(status) : program_help(head, table);
    option_values_release(values);
    return false;
}

enum status program_layout(const struct option_values *options, const struct platform *platform, int workers,
                           struct layout *layout)
{
    const char *nodes = option_text(options, "nodes");
    if (nodes != NULL)
        return layout_parse(nodes, workers, layout);
    return platform != NULL ? platform_layout(platform, workers, layout) : layout_flat(workers, layout);
}

static enum status read_whole(void *context, const char *path, char **text, size_t *length)
{
    (void)context;
    return file_read(path, PROGRAM_FILE_MOST, text, length);
}

enum status program_spec(const char *text, struct spec *spec)
{
    TRY(spec_parse(text, spec));
    enum status status = spec_read_files(spec, read_whole, NULL);
    if (status < 0)
        spec_release(spec);
    return status;
}

enum status program_specs(const char *text, struct spec **specs, size_t *count)
{
    enum status status = STATUS_OK;
    TRY(spec_list_parse(text, specs, count));
    for (size_t i = 0; i < *count && status >= 0; i++)
        status = spec_read_files(&(*specs)[i], read_whole, NULL);
    if (status < 0) {
        spec_list_release(*specs, *count);
        *specs = NULL;
        *count = 0;
    }
    return status;
}
