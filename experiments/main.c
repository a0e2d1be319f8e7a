/* main.c - chorale: one program, its commands in cmd_*.c. */
#define _GNU_SOURCE /* NSIG */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "experiments/program.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
};

static const struct command commands[] = {
    {"list", cmd_list, "the catalogue: algorithms, strategies, graphs and their options"},
    {"bench", cmd_bench, "time and check allreduce algorithms on a real network"},
    {"train", cmd_train, "train a network with any algorithm"},
    {"sim", cmd_sim, "predict collectives and training runs on a simulated platform"},
    {"verify", cmd_verify, "prove schedules from their ops"},
    {"explain", cmd_explain, "what an algorithm does: rounds, messages, bytes, a picture"},
    {"export", cmd_export, "write a schedule for other programs: MSCCL, GOAL, SimGrid, Chakra"},
    {"run", cmd_run, "start any command as several local workers"},
    {"data", cmd_data, "index, pack and inspect data sets"},
    {"calibrate", cmd_calibrate, "fit a platform file to measured times"},
    {"doctor", cmd_doctor, "what this host and this build offer, what is missing, and what to do about it"},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static int say_commands(void)
{
    puts("usage: chorale COMMAND [options]      chorale COMMAND --help tells its options\n");
    for (int i = 0; i < COMMANDS; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].help);
    if (fflush(stdout) == 0)
        return 0;
    return program_error(fail(STATUS_IO, "standard output: the help could not be written"));
}

static int unknown(const char *word)
{
    const char *names[COMMANDS];
    for (int i = 0; i < COMMANDS; i++)
        names[i] = commands[i].name;
    const char *near = nearest_spelling(word, names, COMMANDS);
    if (near != NULL)
        fprintf(stderr, "chorale: unknown command %s: did you mean %s?\n", word, near);
    else
        fprintf(stderr, "chorale: unknown command %s: chorale --help lists them\n", word);
    return 2;
}

/* libfabric's psm library takes over signals before main() begins: Ctrl-C would then end in exit code 1, a crash in
 * none at all. A sanitizer keeps what it has taken. */
static void signals_to_default(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const struct sigaction standard = {.sa_handler = SIG_DFL};
    struct sigaction action;
    for (int number = 1; number < NSIG; number++) {
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN)
            (void)sigaction(number, &standard, NULL);
    }
#endif
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit on files' sizes fails the write, which says so */
}

int main(int argc, char **argv)
{
    signals_to_default();
    if (argc < 2) {
        fputs("chorale: no command: chorale --help lists them\n", stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0)
        return say_commands();
    if (strcmp(argv[1], "--version") == 0) {
        puts("chorale " CHORALE_VERSION);
        return 0;
    }
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    return unknown(argv[1]);
}
