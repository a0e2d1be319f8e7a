/* cmd_doctor.c - chorale doctor: runs the checks, and says what each has found. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "experiments/doctor.h"
#include "experiments/program.h"

static const char head[] =
    "usage: chorale doctor [--json]\n"
    "Looks at what this program was built with and what this host offers it: ok, note (slower or less\n"
    "than it could be), bad (nothing can run: exit code 1), and what to do about it.\n";

static const struct option options_table[] = {
    {.key = "json", .type = OPTION_FLAG, .help = "one JSON document instead of lines"},
    {.key = NULL},
};

static const struct {
    const struct check *checks;
    bool vital; /* one of its first two has to go well */
} lists[] = {{doctor_builds, false}, {doctor_host, false}, {doctor_networks, false}, {doctor_transports, true}};

static const char *const verdict_words[] = {"ok", "note", "bad"};

/* One line of ASCII, whatever the system has said. */
static void make_plain(char *text)
{
    for (; *text != '\0'; text++)
        if (*text < ' ' || *text > '~')
            *text = ' ';
}

void report_add(struct report *report, enum verdict verdict, const char *name, const char *cure, const char *format,
                ...)
{
    va_list arguments;
    if (report->count == FINDINGS)
        return;
    struct finding *finding = &report->finding[report->count];
    finding->verdict = verdict;
    (void)snprintf(finding->name, sizeof finding->name, "%s", name);
    (void)snprintf(finding->cure, sizeof finding->cure, "%s", cure != NULL ? cure : "");
    va_start(arguments, format);
    (void)vsnprintf(finding->value, sizeof finding->value, format, arguments);
    va_end(arguments);
    make_plain(finding->value);
    make_plain(finding->cure);
    report->count++;
}

/* ---- one check ---- */

#define LOOK_NS 1000000U

/* The child's wait status; negative: it was ended at the deadline. */
static int await(pid_t pid, double seconds)
{
    const uint64_t deadline = deadline_after(seconds);
    int status = 0;
    while (!deadline_passed(deadline)) {
        const pid_t ended = waitpid(pid, &status, WNOHANG);
        if (ended == pid || (ended < 0 && errno != EINTR))
            return status;
        clock_sleep_ns(LOOK_NS);
    }
    (void)kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return -1;
}

static void run_check(const struct check *check, struct report *report)
{
    report->count = 0;
    const pid_t pid = fork();
    if (pid < 0) {
        report_add(report, DOCTOR_BAD, check->name, "raise the limit on processes (ulimit -u) or on the container's",
                   "no process for this check: %s", strerror(errno));
        return;
    }
    if (pid == 0) {
        check->run(check, report);
        _exit(0);
    }
    const int status = await(pid, check->seconds);
    if (status < 0)
        report_add(report, DOCTOR_NOTE, check->name, "look at what it waits for: what needs it will hang, too",
                   "no answer within %g s", check->seconds);
    else if (WIFSIGNALED(status))
        report_add(report, DOCTOR_NOTE, check->name, "what needs it will crash, too: install it anew",
                   "crashed: signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (report->count == 0)
        report_add(report, DOCTOR_NOTE, check->name, NULL, "nothing found out");
}

/* ---- telling ---- */

static void say(const struct check *check, const struct finding *finding)
{
    printf("%-4s  %-9s  %-14s  %s", verdict_words[finding->verdict], check->group, finding->name, finding->value);
    if (finding->verdict != DOCTOR_OK && finding->cure[0] != '\0')
        printf(": %s", finding->cure);
    putchar('\n');
    (void)fflush(stdout);
}

static bool add_json(json_t *array, const struct check *check, const struct finding *finding)
{
    const bool cured = finding->verdict != DOCTOR_OK && finding->cure[0] != '\0';
    json_t *object =
        json_pack("{ss ss ss ss ss?}", "group", check->group, "name", finding->name, "verdict",
                  verdict_words[finding->verdict], "value", finding->value, "cure", cured ? finding->cure : NULL);
    return object != NULL && json_array_append_new(array, object) == 0;
}

/* ---- all of them ---- */

enum { CHECKS = 12 }; /* of one list */

static bool is_well(const struct report *report)
{
    for (int i = 0; i < report->count; i++)
        if (report->finding[i].verdict != DOCTOR_OK)
            return false;
    return true;
}

static void make_bad(struct report *report)
{
    for (int i = 0; i < report->count; i++)
        if (report->finding[i].verdict == DOCTOR_NOTE)
            report->finding[i].verdict = DOCTOR_BAD;
}

/* `array` NULL: lines. False: there was no memory. */
static bool run_list(size_t list, struct report *reports, json_t *array, bool *bad)
{
    const struct check *checks = lists[list].checks;
    bool made = true;
    int count = 0;
    for (; checks[count].name != NULL && count < CHECKS; count++)
        run_check(&checks[count], &reports[count]);
    if (lists[list].vital && !is_well(&reports[0]) && !is_well(&reports[1]))
        for (int i = 0; i < 2; i++)
            make_bad(&reports[i]);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < reports[i].count; k++) {
            const struct finding *finding = &reports[i].finding[k];
            *bad = *bad || finding->verdict == DOCTOR_BAD;
            if (array != NULL)
                made = made && add_json(array, &checks[i], finding);
            else
                say(&checks[i], finding);
        }
    return made;
}

static enum status finish(json_t *array, bool bad, bool made)
{
    if (array == NULL)
        return fflush(stdout) == 0 ? STATUS_OK : fail(STATUS_IO, "standard output: a line could not be written");
    json_t *document = json_pack("{sb sO}", "ok", !bad, "checks", array);
    enum status status = made && document != NULL ? json_print(stdout, document)
                                                  : fail(STATUS_NO_MEMORY, "doctor: no memory for the document");
    json_decref(document);
    return status;
}

static int run(bool json)
{
    bool bad = false, made = true;
    /* the checks' processes write there */
    struct report *reports =
        mmap(NULL, CHECKS * sizeof *reports, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (reports == MAP_FAILED)
        return program_error(fail(STATUS_NO_MEMORY, "doctor: no memory: %s", strerror(errno)));
    json_t *array = json ? json_array() : NULL;
    for (size_t list = 0; list < sizeof lists / sizeof lists[0]; list++)
        made = run_list(list, reports, array, &bad) && made;
    const enum status status = finish(array, bad, made);
    json_decref(array);
    (void)munmap(reports, CHECKS * sizeof *reports);
    return status < 0 ? program_error(status) : bad ? 1 : 0;
}

int cmd_doctor(int argc, char **argv)
{
    struct option_values options;
    int exit_code = 0;
    if (!program_options(head, options_table, argc, argv, &options, &exit_code))
        return exit_code;
    exit_code = run(option_flag(&options, "json"));
    option_values_release(&options);
    return exit_code;
}
