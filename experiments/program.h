/* program.h - the commands of `chorale`, one thin file each, and what they share.
 *
 * A command's argv[0] is its own name ("train"), so that option_parse() takes argc and argv as they are. It returns the
 * program's exit code: 0 done, 1 failed, 2 wrong usage.
 */
#ifndef CHORALE_EXPERIMENTS_PROGRAM_H
#define CHORALE_EXPERIMENTS_PROGRAM_H

#include <stdbool.h>

#include "algos/spec.h"
#include "base/option.h"
#include "base/status.h"

struct platform;

int cmd_list(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_sim(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_data(int argc, char **argv);
int cmd_calibrate(int argc, char **argv);
int cmd_doctor(int argc, char **argv);

/* Says `chorale: ` and this thread's latest failure on stderr; returns the exit code that belongs to `status`. */
int program_error(enum status status);

/* The same for what is wrong before a job is joined. A worker of a launcher tells its job, which says once what all of its
 * workers find (comm/job.h); it waits a few seconds for the others. */
int program_refuse(enum status status);

/* A line on stderr that is no failure (job_note_fn). */
void program_note(void *context, const char *line);

/* `head` and the table's help on stdout; returns the exit code. */
int program_help(const char *head, const struct option *table);

/* How most commands begin: parse argv by the table into *values, refusing words that are no options. True: go on, and
 * release *values in the end. False: all is said (the help, or what is wrong); return *exit_code. `head` is what the
 * help begins with: the usage line and a sentence. */
bool program_options(const char *head, const struct option *table, int argc, char **argv, struct option_values *values,
                     int *exit_code);

/* Rows of a table: what commands take that look at one schedule. */
#define PROGRAM_SCHEDULE_OPTIONS                                                                                       \
    {.key = "allreduce", .type = OPTION_SPEC, .default_text = "ring", .help = "spec (chorale list)"},                  \
        {.key = "workers",                                                                                             \
         .letter = 'n',                                                                                                \
         .type = OPTION_INT,                                                                                           \
         .default_text = "4",                                                                                          \
         .min = 1,                                                                                                     \
         .max = 16384,                                                                                                 \
         .help = "workers"},                                                                                           \
        {.key = "bytes",                                                                                               \
         .type = OPTION_SIZE,                                                                                          \
         .default_text = "1M",                                                                                         \
         .unit = "B",                                                                                                  \
         .help = "size of the vector, in f32 elements"},                                                               \
    {                                                                                                                  \
        .key = "nodes", .type = OPTION_STRING, .help = "node layout to pretend: 2x4 or 4+2"                            \
    }

/* Where workers are: as --nodes has it; where that is not given, as the platform has it; without one (NULL), all
 * on one node. Release with layout_release(). */
enum status program_layout(const struct option_values *options, const struct platform *platform, int workers,
                           struct layout *layout) MUST_CHECK;

/* spec_parse() and spec_list_parse() for commands: the files that specs name (at most PROGRAM_FILE_MOST bytes each) are
 * read, too. Release with spec_release(), spec_list_release(). */
#define PROGRAM_FILE_MOST ((size_t)64 << 20)
enum status program_spec(const char *text, struct spec *spec) MUST_CHECK;
enum status program_specs(const char *text, struct spec **specs, size_t *count) MUST_CHECK;

#endif
