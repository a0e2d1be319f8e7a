/* test_doctor.c - what doctor says where all is well, and where little is: it never hangs, crashes, or stays silent. */
#include <string.h>
#include <unistd.h>

#include "support_program.h"

TestSuite(doctor, .init = program_setup, .fini = program_teardown, .timeout = 300);

/* The document of a script that runs `doctor --json`; release with json_decref(). */
static json_t *doctor(const char *script, int exit_code)
{
    struct outcome outcome;
    script_run(script, &outcome);
    cr_assert_eq(outcome.exit_code, exit_code, "%s: %d: %s%s", script, outcome.exit_code, outcome.out, outcome.err);
    cr_expect_str_empty(outcome.err);
    json_t *document = json_loads(outcome.out, JSON_REJECT_DUPLICATES, NULL);
    cr_assert_not_null(document, "%s", outcome.out);
    outcome_release(&outcome);
    return document;
}

static const json_t *line_of(const json_t *document, const char *group, const char *name)
{
    size_t i;
    const json_t *line;
    json_array_foreach(json_object_get(document, "checks"), i,
                       line) if (strcmp(string_of(line, "group"), group) == 0 &&
                                 strcmp(string_of(line, "name"), name) == 0) return line;
    cr_assert_fail("no line %s %s", group, name);
    return NULL;
}

static void expect_line(const json_t *document, const char *group, const char *name, const char *verdict,
                        const char *fragment)
{
    const json_t *line = line_of(document, group, name);
    cr_expect_str_eq(string_of(line, "verdict"), verdict, "%s %s: %s", group, name, string_of(line, "value"));
    cr_expect(contains(string_of(line, "value"), fragment), "%s %s: %s", group, name, string_of(line, "value"));
}

/* A command that a script can run in namespaces of its own: then it may mount and rename. */
static bool may(const char *command)
{
    struct outcome outcome;
    script_run(command, &outcome);
    const bool can = outcome.exit_code == 0;
    outcome_release(&outcome);
    return can;
}

static void check_document(const json_t *document)
{
    size_t i, bad = 0;
    const json_t *line;
    const json_t *lines = json_object_get(document, "checks");
    cr_assert_gt(json_array_size(lines), 20);
    json_array_foreach(lines, i, line)
    {
        const char *verdict = string_of(line, "verdict");
        const json_t *cure = json_object_get(line, "cure");
        cr_expect(strcmp(verdict, "ok") == 0 || strcmp(verdict, "note") == 0 || strcmp(verdict, "bad") == 0);
        cr_expect_gt(strlen(string_of(line, "value")), 0);
        cr_expect_eq(json_object_size(line), 5);
        cr_expect(json_is_null(cure) || (json_is_string(cure) && strcmp(verdict, "ok") != 0), "%s", verdict);
        bad += strcmp(verdict, "bad") == 0;
    }
    cr_expect_eq(json_is_true(json_object_get(document, "ok")), bad == 0);
}

Test(doctor, here)
{
    static const char *const lines[][2] = {
        {"build", "chorale"},    {"build", "libfabric"}, {"build", "oneDNN"},         {"build", "hwloc"},
        {"module", "PMIx"},      {"module", "MPICH"},    {"module", "CUDA"},          {"cards", "driver"},
        {"host", "cores"},       {"host", "features"},   {"limit", "open files"},     {"limit", "processes"},
        {"memory", "available"}, {"memory", "/dev/shm"}, {"memory", "shared arenas"}, {"network", "host name"},
        {"network", "launcher"}, {"transport", "shm"},   {"transport", "verbs"}};
    json_t *document = doctor("exec \"$CHORALE\" doctor --json", 0);
    check_document(document);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        (void)line_of(document, lines[i][0], lines[i][1]);
    expect_line(document, "transport", "tcp", "ok", "two workers exchanged vectors");
    json_decref(document);
    struct outcome outcome;
    program_run("doctor", &outcome);
    cr_expect_eq(outcome.exit_code, 0);
    cr_expect(contains(outcome.out, "\nok    transport  tcp "), "%s", outcome.out);
    outcome_release(&outcome);
}

Test(doctor, few_open_files)
{
    struct outcome outcome;
    json_t *document = doctor("ulimit -n 16; exec \"$CHORALE\" doctor --json", 1);
    check_document(document);
    expect_line(document, "limit", "open files", "note", "16 (at most 16)");
    expect_line(document, "transport", "shm", "bad", "open files, the limit is 16: raise it (ulimit -n)");
    json_decref(document);
    script_run("ulimit -n 16; exec \"$CHORALE\" bench -n 2 --sizes=8", &outcome);
    cr_expect_eq(outcome.exit_code, 1);
    cr_expect(contains(outcome.err, "open files, the limit is 16: raise it (ulimit -n)"), "%s", outcome.err);
    expect_one_line(&outcome, "bench");
    outcome_release(&outcome);
}

Test(doctor, without_modules)
{
    json_t *document = doctor("export CHORALE_MODULES=\"$PWD\"; exec \"$CHORALE\" doctor --json", 0);
    check_document(document);
    expect_line(document, "module", "PMIx", "note", "no module ");
    expect_line(document, "module", "CUDA", "note", "no module ");
    json_decref(document);
}

/* Modules that are none, and one that belongs to another version. */
Test(doctor, broken_modules)
{
    program_write("chorale-bootstrap-pmix.so", "no library\n");
    json_t *document = doctor("export CHORALE_MODULES=\"$PWD\"; exec \"$CHORALE\" doctor --json", 0);
    expect_line(document, "module", "PMIx", "note", "chorale-bootstrap-pmix.so");
    json_decref(document);
}

Test(doctor, too_little_shared_memory)
{
    if (!may("unshare -m mount -t tmpfs -o size=1m none /dev/shm"))
        cr_skip_test("needs the right to mount");
    json_t *document =
        doctor("exec unshare -m sh -c 'mount -t tmpfs -o size=1m none /dev/shm && exec \"$0\" doctor --json' "
               "\"$CHORALE\"",
               0);
    check_document(document);
    expect_line(document, "memory", "/dev/shm", "note", "enough for 0 workers");
    expect_line(document, "transport", "shm", "note", "/dev/shm is too small");
    expect_line(document, "transport", "tcp", "ok", "exchanged");
    json_decref(document);
    struct outcome outcome; /* the workers' own memory needs none of it; what is taken instead is said */
    script_run(
        "exec unshare -m sh -c 'mount -t tmpfs -o size=1m none /dev/shm && exec \"$0\" bench -n 2 --sizes=64K --check' "
        "\"$CHORALE\"",
        &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect(contains(outcome.out, "node memory yes"), "%s", outcome.out);
    cr_expect(contains(outcome.out, "no shm: /dev/shm is too small for 2 workers: 36 MiB wanted, 1 MiB free)"), "%s",
              outcome.out);
    outcome_release(&outcome);
    script_run("exec unshare -m sh -c 'mount -t tmpfs -o size=1m none /dev/shm && exec \"$0\" bench -n 2 --sizes=8 "
               "--transport=shm' \"$CHORALE\"",
               &outcome);
    cr_expect_eq(outcome.exit_code, 1);
    cr_expect(contains(outcome.err, "1 MiB free: take --transport=auto"), "%s", outcome.err);
    outcome_release(&outcome);
    /* with that memory left alone, it is called what then carries the bytes */
    script_run("exec unshare -m sh -c 'mount -t tmpfs -o size=1m none /dev/shm && exec \"$0\" bench -n 2 --sizes=8 "
               "--inject=delay=1us --format=json' \"$CHORALE\"",
               &outcome);
    cr_expect(contains(outcome.out, "\"transport\": \"tcp\""), "%s", outcome.out);
    outcome_release(&outcome);
}

Test(doctor, no_shared_memory)
{
    if (!may("unshare -m mount -t tmpfs -o size=1m none /dev/shm"))
        cr_skip_test("needs the right to mount");
    json_t *document = doctor("exec unshare -m sh -c 'mount -t tmpfs -o ro none /dev/shm && exec \"$0\" doctor --json' "
                              "\"$CHORALE\"",
                              0);
    check_document(document);
    expect_line(document, "memory", "/dev/shm", "note", "Read-only");
    json_decref(document);
}

Test(doctor, a_host_that_nobody_knows)
{
    if (!may("unshare --uts hostname nosuchhost.invalid"))
        cr_skip_test("needs the right to rename a host");
    json_t *document =
        doctor("exec unshare --uts sh -c 'hostname nosuchhost.invalid && exec \"$0\" doctor --json' \"$CHORALE\"", 0);
    check_document(document);
    const json_t *line = line_of(document, "network", "host name"); /* a name server may not answer in time */
    cr_expect_str_eq(string_of(line, "verdict"), "note");
    json_decref(document);
}

Test(doctor, a_torn_environment_is_bad)
{
    json_t *document = doctor("export RANK=0 WORLD_SIZE=2; exec \"$CHORALE\" doctor --json", 1);
    expect_line(document, "network", "launcher", "bad", "MASTER_ADDR");
    json_decref(document);
}

Test(doctor, variables_that_libfabric_would_ignore)
{
    json_t *document =
        doctor("export FI_TCP_IFACE=nosuch0 PMIX_NAMESPACE=job PMIX_RANK=0; exec \"$CHORALE\" doctor --json", 0);
    expect_line(document, "network", "FI_TCP_IFACE", "note", "interface nosuch0");
    expect_line(document, "network", "launcher", "ok", "PMIx"); /* whose workers are not those that are tried here */
    expect_line(document, "transport", "shm", "ok", "exchanged");
    json_decref(document);
}
