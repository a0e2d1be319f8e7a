/* support_program.c - runs the program, and looks after its processes. */
#include "support_program.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"

#define LIMIT 280.0 /* seconds: ends a hang, no promise */

/* ---- the folder ---- */

#define TEMPLATE "/tmp/chorale-program-XXXXXX"
static char folder[] = TEMPLATE;

void program_setup(void)
{
    memcpy(folder, TEMPLATE, sizeof folder);
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
    cr_assert_eq(setenv("CHORALE", CHORALE_PROGRAM, 1), 0);
    cr_assert_eq(setenv("TMPDIR", folder, 1), 0);
    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
}

void program_teardown(void)
{
    char command[300];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    cr_expect_eq(chdir("/"), 0);
    cr_expect_eq(system(command), 0);
}

void program_write(const char *name, const char *text)
{
    cr_assert_eq(file_write_atomic(name, text, strlen(text)), STATUS_OK, "%s", status_message());
}

/* ---- looking at processes ---- */

enum { PROCESSES_MOST = 8192 };

static bool read_start(const char *path, char *text, size_t size, size_t *length)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    size_t have = 0;
    for (ssize_t count = 1; count > 0 && have<size - 1; have += count> 0 ? (size_t)count : 0)
        count = read(fd, text + have, size - 1 - have);
    close(fd);
    text[have] = '\0';
    *length = have;
    return true;
}

/* "12 (any name) S 1 ..."; the 22nd field is when it began. */
bool process_find(long pid, struct process *process)
{
    char path[64], line[1024];
    size_t length = 0;
    (void)snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    if (!read_start(path, line, sizeof line, &length))
        return false;
    char *rest = strrchr(line, ')');
    if (rest == NULL || rest[1] == '\0')
        return false;
    *process = (struct process){.pid = pid, .state = rest[2]};
    rest += 3;
    process->parent = strtol(rest, &rest, 10);
    for (int field = 5; field < 22; field++)
        (void)strtol(rest, &rest, 10);
    process->began = strtoull(rest, NULL, 10);
    return true;
}

static int processes_read(struct process *all)
{
    int count = 0;
    DIR *proc = opendir("/proc");
    cr_assert_not_null(proc);
    for (struct dirent *entry; count < PROCESSES_MOST && (entry = readdir(proc)) != NULL;)
        if (isdigit((unsigned char)entry->d_name[0]) && process_find(strtol(entry->d_name, NULL, 10), &all[count]))
            count++;
    closedir(proc);
    return count;
}

static bool ended(const struct process *process)
{
    struct process now;
    return !process_find(process->pid, &now) || now.began != process->began || now.state == 'Z' || now.state == 'X';
}

static bool is_below(const struct process *all, int count, long pid, long root)
{
    for (int depth = 0; depth < 64 && pid > 1; depth++) {
        long parent = 0;
        for (int i = 0; i < count; i++)
            if (all[i].pid == pid)
                parent = all[i].parent;
        if (parent == root)
            return true;
        pid = parent;
    }
    return false;
}

/* The live ones that descend from this process. */
static int descendants(struct process *below)
{
    static struct process all[PROCESSES_MOST];
    int count = processes_read(all), found = 0;
    for (int i = 0; i < count; i++)
        if (all[i].state != 'Z' && all[i].state != 'X' && is_below(all, count, all[i].pid, (long)getpid()))
            below[found++] = all[i];
    return found;
}

/* Returns how many there were at first. */
static int end_descendants(void)
{
    static struct process below[PROCESSES_MOST];
    int first = descendants(below);
    for (int count = first, round = 0; count > 0 && round < 500; round++) {
        for (int i = 0; i < count; i++)
            (void)kill((pid_t)below[i].pid, SIGKILL);
        clock_sleep_ns(2000000);
        count = descendants(below);
    }
    return first;
}

double processes_gone_after(const struct process *processes, int count, double limit)
{
    double start = clock_seconds();
    for (int i = 0; i < count;) {
        if (ended(&processes[i])) {
            i++;
            continue;
        }
        if (clock_seconds() - start > limit)
            break;
        clock_sleep_ns(1000000);
    }
    return clock_seconds() - start;
}

/* The value of a variable in the environment that the process began with; NULL: not set, or no such process. */
static const char *variable_of(long pid, const char *name)
{
    static char environment[1 << 17];
    char path[64];
    size_t length = 0, name_length = strlen(name);
    (void)snprintf(path, sizeof path, "/proc/%ld/environ", pid);
    if (!read_start(path, environment, sizeof environment, &length))
        return NULL;
    for (const char *word = environment; word < environment + length; word += strlen(word) + 1)
        if (strncmp(word, name, name_length) == 0 && word[name_length] == '=')
            return word + name_length + 1;
    return NULL;
}

/* The rank that a launcher of ours gave it; -1: not (yet) a worker. */
static int rank_of(long pid)
{
    if (variable_of(pid, "CHORALE_CONTROL") == NULL)
        return -1;
    const char *rank = variable_of(pid, "RANK");
    return rank != NULL ? (int)strtol(rank, NULL, 10) : -1;
}

/* The rank that another launcher gave it, if it is our program. */
static int foreign_rank_of(long pid)
{
    static const char *const names[] = {"RANK", "PMIX_RANK", "PMI_RANK"};
    char path[64], program[4096];
    (void)snprintf(path, sizeof path, "/proc/%ld/exe", pid);
    const ssize_t length = readlink(path, program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    if (strcmp(program, CHORALE_PROGRAM) != 0)
        return -1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *rank = variable_of(pid, names[i]);
        if (rank != NULL)
            return (int)strtol(rank, NULL, 10);
    }
    return -1;
}

static bool descends(const struct process *all, int count, const struct process *process, long ancestor)
{
    long parent = process->parent;
    for (int turn = 0; turn < count && parent > 1; turn++) {
        if (parent == ancestor)
            return true;
        long next = 0;
        for (int i = 0; i < count && next == 0; i++)
            next = all[i].pid == parent ? all[i].parent : 0;
        parent = next;
    }
    return false;
}

static bool find_workers(const struct program *program, struct process *workers, int count, bool foreign)
{
    static struct process all[PROCESSES_MOST];
    struct process launcher;
    for (uint64_t deadline = deadline_after(30); !deadline_passed(deadline); clock_sleep_ns(2000000)) {
        int processes = processes_read(all), found = 0;
        for (int i = 0; i < processes; i++) {
            int rank = -1;
            if (foreign && descends(all, processes, &all[i], (long)program->pid))
                rank = foreign_rank_of(all[i].pid);
            else if (!foreign && all[i].parent == (long)program->pid)
                rank = rank_of(all[i].pid);
            if (rank < 0 || rank >= count)
                continue;
            workers[rank] = all[i];
            found++;
        }
        if (found == count)
            return true;
        if (!process_find((long)program->pid, &launcher) || launcher.state == 'Z')
            return false;
    }
    return false;
}

bool program_workers(const struct program *program, struct process *workers, int count)
{
    return find_workers(program, workers, count, false);
}

bool program_foreign_workers(const struct program *program, struct process *workers, int count)
{
    return find_workers(program, workers, count, true);
}

bool shared_memory_left(long pid)
{
    char prefix[32];
    bool left = false;
    DIR *entries = opendir("/dev/shm");
    if (entries == NULL)
        return false;
    int length = snprintf(prefix, sizeof prefix, "%ld:", pid);
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        left = left || strncmp(entry->d_name, prefix, (size_t)length) == 0;
    closedir(entries);
    return left;
}

/* ---- running ---- */

/* None is ignored or blocked, as nohup and shells leave them. */
static bool signals_by_default(void)
{
    sigset_t none;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    for (int number = 1; number < 32; number++)
        (void)sigaction(number, &action, NULL);
    sigemptyset(&none);
    return sigprocmask(SIG_SETMASK, &none, NULL) == 0;
}

/* The child: only what may be called after fork(). */
static void become(const char *script, int in, int out, int err)
{
    char *words[] = {(char *)(size_t) "sh", (char *)(size_t) "-c", (char *)(size_t)script, NULL};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0 && signals_by_default() && dup2(in, 0) == 0 &&
        dup2(out, 1) == 1 && dup2(err, 2) == 2)
        execv("/bin/sh", words);
    _exit(126);
}

void program_start_script(struct program *program, const char *script)
{
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    cr_assert_geq(in, 0);
    program->out = tmpfile();
    program->err = tmpfile();
    cr_assert_not_null(program->out);
    cr_assert_not_null(program->err);
    int out = fileno(program->out), err = fileno(program->err);
    (void)fcntl(out, F_SETFD, FD_CLOEXEC);
    (void)fcntl(err, F_SETFD, FD_CLOEXEC);
    program->pid = fork();
    if (program->pid == 0)
        become(script, in, out, err);
    cr_assert_gt(program->pid, 0);
    close(in);
}

void program_start(struct program *program, const char *words)
{
    struct text script = {0};
    text_addf(&script, "exec \"$CHORALE\" %s", words);
    program_start_script(program, text_string(&script));
    text_release(&script);
}

static char *take_text(FILE *file)
{
    struct text text = {0};
    char piece[4096];
    rewind(file);
    for (size_t count; (count = fread(piece, 1, sizeof piece, file)) > 0;)
        text_add_bytes(&text, piece, count);
    (void)fclose(file);
    cr_assert_eq(text_check(&text), STATUS_OK);
    char *copy = strdup(text_string(&text));
    cr_assert_not_null(copy);
    text_release(&text);
    return copy;
}

void program_wait(struct program *program, double limit, struct outcome *outcome)
{
    int status = 0;
    *outcome = (struct outcome){.exit_code = -1};
    for (uint64_t deadline = deadline_after(limit); waitpid(program->pid, &status, WNOHANG) == 0;) {
        if (deadline_passed(deadline)) {
            outcome->timed_out = true;
            (void)end_descendants();
            (void)waitpid(program->pid, &status, 0);
            break;
        }
        clock_sleep_ns(1000000);
    }
    outcome->left = end_descendants();
    while (waitpid(-1, NULL, WNOHANG) > 0) /* orphans that came to us */
        ;
    outcome->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    outcome->out = take_text(program->out);
    outcome->err = take_text(program->err);
}

void outcome_release(struct outcome *outcome)
{
    free(outcome->out);
    free(outcome->err);
}

void script_run(const char *script, struct outcome *outcome)
{
    struct program program;
    program_start_script(&program, script);
    program_wait(&program, LIMIT, outcome);
    cr_expect_not(outcome->timed_out, "%s: not done after %.0f s", script, LIMIT);
    cr_expect_eq(outcome->left, 0, "%s: %d processes are left", script, outcome->left);
}

void program_run(const char *words, struct outcome *outcome)
{
    struct text script = {0};
    text_addf(&script, "exec \"$CHORALE\" %s", words);
    script_run(text_string(&script), outcome);
    text_release(&script);
}

json_t *program_json(const char *words)
{
    struct outcome outcome;
    json_error_t error;
    program_run(words, &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s: exit code %d: %s", words, outcome.exit_code, outcome.err);
    cr_expect_str_empty(outcome.err, "%s: \"%s\"", words, outcome.err);
    json_t *document = json_loads(outcome.out, 0, &error);
    cr_assert_not_null(document, "%s: stdout is not one JSON document: %d: %s", words, error.line, error.text);
    outcome_release(&outcome);
    return document;
}

void expect_one_line(const struct outcome *outcome, const char *words)
{
    cr_expect_eq(strncmp(outcome->err, "chorale: ", 9), 0, "%s: \"%s\"", words, outcome->err);
    cr_expect_eq(lines_of(outcome->err), 1, "%s: one line is wanted: \"%s\"", words, outcome->err);
    cr_expect_eq(outcome->left, 0, "%s: %d processes are left", words, outcome->left);
}

void expect_refused(const char *words, int exit_code, const char *const *fragments)
{
    struct outcome outcome;
    program_run(words, &outcome);
    cr_expect_eq(outcome.exit_code, exit_code, "%s: exit code %d instead of %d: %s", words, outcome.exit_code,
                 exit_code, outcome.err);
    expect_one_line(&outcome, words);
    for (; *fragments != NULL; fragments++)
        cr_expect(contains(outcome.err, *fragments), "%s: \"%s\" does not say \"%s\"", words, outcome.err, *fragments);
    outcome_release(&outcome);
}

/* ---- the rest ---- */

uint64_t test_seed(void)
{
    const char *given = getenv("CHORALE_TEST_SEED"); /* NOLINT(concurrency-mt-unsafe): one thread */
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : clock_ns();
    printf("CHORALE_TEST_SEED=%llu\n", (unsigned long long)seed);
    (void)fflush(stdout);
    return seed;
}

bool contains(const char *text, const char *fragment)
{
    return strstr(text, fragment) != NULL;
}

int lines_of(const char *text)
{
    int lines = 0;
    for (const char *end; (end = strchr(text, '\n')) != NULL; text = end + 1)
        lines++;
    return lines + (*text != '\0');
}

double number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    cr_assert(json_is_number(value), "%s is no number", key);
    return json_number_value(value);
}

json_int_t integer_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    cr_assert(json_is_integer(value), "%s is no integer", key);
    return json_integer_value(value);
}

const char *string_of(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    cr_assert_not_null(value, "%s is no string", key);
    return value;
}
