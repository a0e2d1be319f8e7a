/* support_program.h - for suites that run the real program: under a time limit that reaches everything it has started,
 * with what it wrote and the code it ended with; and looking at its processes.
 *
 * Processes are ended one by one, by their numbers: those that descend from the test's own process, which adopts
 * orphans. Every test works in a fresh folder of its own.
 */
#ifndef CHORALE_TESTS_EXPERIMENTS_SUPPORT_PROGRAM_H
#define CHORALE_TESTS_EXPERIMENTS_SUPPORT_PROGRAM_H

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* Setup and teardown of a suite: the working folder is a fresh one under /tmp; it goes with all that is in it. */
void program_setup(void);
void program_teardown(void);
void program_write(const char *name, const char *text); /* a file in it */

/* ---- running ---- */

struct program {
    pid_t pid;
    FILE *out, *err;
};

/* How it ended, and what it wrote. */
struct outcome {
    int exit_code; /* 128 + N when signal N ended it */
    bool timed_out;
    int left; /* processes that it left running; they have been ended */
    char *out, *err;
};

/* `chorale WORDS`, the words as a shell reads them. stdin is empty. */
void program_start(struct program *program, const char *words);
/* A shell script; "$CHORALE" is the program. */
void program_start_script(struct program *program, const char *script);
/* Sets PORT to one that is free, as the next one is (torchrun's agent takes the first), and that the kernel gives to nobody
 * meanwhile. */
#define FREE_PORT                                                                                                      \
    "PORT=$(/usr/bin/python3 -c 'import random, socket\n"                                                              \
    "while True:\n"                                                                                                    \
    "    port = random.randrange(10000, 32000)\n"                                                                      \
    "    try:\n"                                                                                                       \
    "        for p in port, port + 1: socket.socket().bind((\"\", p))\n"                                               \
    "        break\n"                                                                                                  \
    "    except OSError: pass\n"                                                                                       \
    "print(port)')"
/* Until it ends, or for `limit` seconds: then it is ended with all that it has started. Release the outcome. */
void program_wait(struct program *program, double limit, struct outcome *outcome);
void outcome_release(struct outcome *outcome);

/* Start and wait, with a generous limit; nothing may be left running. */
void program_run(const char *words, struct outcome *outcome);
void script_run(const char *script, struct outcome *outcome);
/* It succeeds, says nothing on stderr, and stdout is exactly one JSON document. Release with json_decref(). */
json_t *program_json(const char *words);

/* One line on stderr that begins with "chorale: ", this exit code, and nothing left running. */
void expect_one_line(const struct outcome *outcome, const char *words);
/* `chorale WORDS` fails with this code and one line that says each of the fragments (the list ends with NULL). */
void expect_refused(const char *words, int exit_code, const char *const *fragments);
#define REFUSED(words, exit_code, ...) expect_refused(words, exit_code, (const char *const[]){__VA_ARGS__, NULL})

/* ---- processes ---- */

struct process {
    long pid, parent;
    unsigned long long began; /* tells a process from a later one with the same number */
    char state;
};

bool process_find(long pid, struct process *process); /* false: there is none */
/* The workers that a launcher has started, by rank; awaited. False when they have not all come after 30 s, or the
 * launcher has ended. */
bool program_workers(const struct program *program, struct process *workers, int count);
/* The same for workers that another launcher below `program` has started. */
bool program_foreign_workers(const struct program *program, struct process *workers, int count);
/* Seconds until all have ended (one that nobody has reaped yet has); more than `limit` when they have not. */
double processes_gone_after(const struct process *processes, int count, double limit);
/* Whether /dev/shm holds a file of this process (libfabric calls them PID:UID:N). */
bool shared_memory_left(long pid);

/* ---- the rest ---- */

/* Of everything random in a test: CHORALE_TEST_SEED, else the clock's; printed, so that a failure can be repeated. */
uint64_t test_seed(void);
bool contains(const char *text, const char *fragment);
int lines_of(const char *text);
/* A number, or an integer, of a JSON object; asserts that it is one. */
double number_of(const json_t *object, const char *key);
json_int_t integer_of(const json_t *object, const char *key);
const char *string_of(const json_t *object, const char *key);

#endif
