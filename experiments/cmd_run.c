/* cmd_run.c - chorale run: any command as N local workers. */
#include <stdio.h>
#include <stdlib.h>

#include "comm/launch.h"
#include "experiments/program.h"
#include "experiments/worker.h"

static const char head[] =
    "usage: chorale run -n N [--label] -- COMMAND [ARGUMENT ...]\n"
    "Starts COMMAND as N local workers with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and\n"
    "MASTER_PORT set, forwards signals, and returns the first failing worker's exit code.\n";

static const struct option options_table[] = {
    WORKER_OPTION_COUNT,
    {.key = "label", .type = OPTION_FLAG, .help = "put [rank] before each line that a worker writes"},
    {.key = "deadline",
     .type = OPTION_SECONDS,
     .default_text = "30",
     .unit = "s",
     .min = 0.1,
     .max = 86400,
     .help = "all workers of a job must have joined within this"},
    {.key = NULL},
};

static int run(const struct option_values *options, char *const *command)
{
    const int workers = worker_count(options);
    const struct launch_request request = {.workers = workers > 0 ? workers : 1,
                                           .argv = command,
                                           .label = option_flag(options, "label"),
                                           .deadline = worker_deadline(options),
                                           .note = program_note};
    struct launch_result result;
    const enum status status = launch_local(&request, &result);
    if (status < 0)
        return program_error(status);
    if (result.message[0] != '\0')
        fprintf(stderr, "chorale: %s\n", result.message);
    return result.exit_code;
}

int cmd_run(int argc, char **argv)
{
    struct option_values options;
    bool help = false;
    char **rest = NULL;
    size_t words = 0;
    int exit_code = 0;
    enum status status = option_values_init(&options, options_table);
    if (status == STATUS_OK)
        status = option_parse(&options, argc, argv, &help, &rest, &words);
    if (status == STATUS_OK && !help && words == 0)
        status = fail(STATUS_USAGE, "run: no command: write it after --, as in chorale run -n 2 -- hostname");
    if (status < 0) {
        exit_code = program_error(status);
    } else if (help) {
        exit_code = program_help(head, options_table);
    } else {
        char **command = calloc(words + 1, sizeof *command);
        for (size_t i = 0; command != NULL && i < words; i++)
            command[i] = rest[i];
        exit_code = command != NULL ? run(&options, command) : program_error(fail(STATUS_NO_MEMORY, "run: no memory"));
        free(command);
    }
    free(rest);
    option_values_release(&options);
    return exit_code;
}
