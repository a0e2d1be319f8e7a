/* program.c - errors and help, alike for all commands. */
#include "experiments/program.h"

#include <stdio.h>

#include "base/text.h"

int program_error(enum status status)
{
    fprintf(stderr, "chorale: %s\n", status_message());
    return status_exit_code(status);
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
    *exit_code = status < 0 ? program_error(status) : program_help(head, table);
    option_values_release(values);
    return false;
}
