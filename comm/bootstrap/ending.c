/* ending.c - why a job ends, and how everything of it goes within two seconds.
 *
 *   0.0 s  the workers that have joined are told (STOP); programs that don't know us get a signal
 *   1.0 s  SIGTERM to every process group
 *   1.5 s  SIGKILL to every process group
 *
 * The leaders of the groups are reaped at the very end: until then their numbers can't be given to anybody else, so
 * that a signal to a group can't reach a stranger.
 */
#define _GNU_SOURCE /* sigabbrev_np */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/bootstrap/launcher.h"
#include "comm/host.h"
#include "comm/job.h"

#define RUMOUR_GRACE 0.1     /* seconds: a death is seen later than its consequences by as much, on a busy host, ... */
#define DYING_NS 1000000000u /* ... and later still where the system shows that a worker is about to die */
#define TERM_NS 1000000000u
#define KILL_NS 1500000000u
#define GIVE_UP_NS 10000000000u /* a process that not even SIGKILL ends hangs in the kernel */
#define LOOK_NS 10000000u       /* how often to look whether the groups are gone */

/* --- verdicts --- */

void verdict_give(struct launcher *launcher, enum certainty certainty, enum status status, int rank, int exit_code,
                  const char *format, ...)
{
    struct verdict *verdict = &launcher->verdict;
    if (certainty <= verdict->certainty)
        return; /* the first cause stands */
    *verdict = (struct verdict){.certainty = certainty,
                                .status = status,
                                .rank = rank,
                                .exit_code = exit_code,
                                .due = certainty == VERDICT_RUMOUR ? deadline_after(RUMOUR_GRACE) : NEVER};
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(verdict->message, sizeof verdict->message, format, arguments) < 0)
        verdict->message[0] = '\0';
    va_end(arguments);
}

void verdict_failed(struct launcher *launcher, enum status status)
{
    verdict_give(launcher, VERDICT_CERTAIN, status, -1, status_exit_code(status), "%s on %s: %s",
                 launcher->hosted ? "control server" : "launcher", launcher->host, status_message());
}

/* "SIGKILL" */
static const char *signal_name(int signal, char *text, size_t size)
{
    const char *name = sigabbrev_np(signal);
    if (name == NULL || snprintf(text, size, "SIG%s", name) < 0)
        return "a real-time signal";
    return text;
}

static const char *signal_advice(int signal)
{
    switch (signal) {
    case SIGKILL:
        return "see the kernel log if memory ran out";
    case SIGSEGV:
    case SIGBUS:
    case SIGABRT:
    case SIGFPE:
    case SIGILL:
        return "a crash: look at its own output, or run it in a debugger";
    case SIGPIPE:
        return "who read its output has gone";
    case SIGXCPU:
    case SIGXFSZ:
        return "a limit was reached (ulimit -a)";
    default:
        return "see who sent it";
    }
}

/* --- deaths --- */

/* Whether the others would miss it: someone has joined, or is to join, and has not left. */
static bool others_are_in(const struct launcher *launcher, int rank)
{
    for (int i = 0; i < launcher->size; i++) {
        const struct member *other = &launcher->members[i];
        if (i != rank && (other->state == MEMBER_JOINED || (other->state == MEMBER_STARTED && !other->dead)))
            return true;
    }
    return false;
}

/* How bad a death is: 0 none at all. Of several seen at once the worst is the cause, since the others may follow from
 * it: a worker that is killed takes others with it, hardly the other way round. */
static int death_gravity(const struct launcher *launcher, int rank)
{
    const struct member *member = &launcher->members[rank];
    if (member->aborted) /* it has said why */
        return 0;
    if (member->how != CLD_EXITED)
        return 3;
    if (member->code != 0)
        return 2;
    if (member->state == MEMBER_JOINED)
        return others_are_in(launcher, rank) ? 1 : 0;
    if (member->state == MEMBER_STARTED)
        return launcher->request->must_join || launcher->joined > 0 ? 1 : 0;
    return 0;
}

static void death_verdict(struct launcher *launcher, int rank)
{
    const struct member *member = &launcher->members[rank];
    char name[32];
    if (member->how != CLD_EXITED)
        verdict_give(launcher, VERDICT_CERTAIN, STATUS_PEER_LOST, rank, 1,
                     "rank %d on %s: killed by signal %d (%s): the job was ended: %s", rank, member->host, member->code,
                     signal_name(member->code, name, sizeof name), signal_advice(member->code));
    else if (member->code != 0)
        verdict_give(launcher, VERDICT_CERTAIN, STATUS_PEER_LOST, rank, member->code,
                     "rank %d on %s: exit %d: the job was ended: see what it wrote", rank, member->host, member->code);
    else if (member->state == MEMBER_JOINED)
        verdict_give(launcher, VERDICT_CERTAIN, STATUS_PEER_LOST, rank, 1,
                     "rank %d on %s: ended early (exit 0) while others were still in the job: the job was ended: all "
                     "workers must make the same calls",
                     rank, member->host);
    else
        verdict_give(launcher, VERDICT_CERTAIN, STATUS_PEER_LOST, rank, 1,
                     "rank %d on %s: ended (exit 0) without joining the job: the job was ended: all workers must run "
                     "the same program",
                     rank, member->host);
}

/* Note the death, if it has happened. The process stays a zombie. */
static bool notice_death(struct launcher *launcher, int rank)
{
    struct member *member = &launcher->members[rank];
    siginfo_t info = {.si_pid = 0};
    if (member->pid == 0 || member->dead || waitid(P_PID, (id_t)member->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0)
        return false;
    member->dead = true;
    member->how = info.si_code;
    member->code = info.si_status;
    members_read(launcher, rank); /* its last words came before */
    if (member->aborted && launcher->verdict.rank == rank && member->how == CLD_EXITED && member->code != 0)
        launcher->verdict.exit_code = member->code;
    return true;
}

void ending_notice_deaths(struct launcher *launcher)
{
    int worst = -1, worst_gravity = 0;
    for (int i = 0; i < launcher->size; i++) {
        int gravity = notice_death(launcher, i) ? death_gravity(launcher, i) : 0;
        if (gravity > worst_gravity) {
            worst = i;
            worst_gravity = gravity;
        }
    }
    if (worst >= 0)
        death_verdict(launcher, worst);
}

static bool is_dying(long pid)
{
    struct host_process process;
    return pid > 0 && host_process(pid, &process) && process.dying;
}

bool ending_is_near(const struct launcher *launcher, int rank, uint64_t due)
{
    const struct member *member = &launcher->members[rank];
    return !launcher->hosted && !member->dead && clock_ns() < due + DYING_NS &&
           (is_dying((long)member->pid) || is_dying(member->joined_pid));
}

/* Time to believe it: no death is to come that would explain it. */
static bool rumour_is_due(const struct launcher *launcher)
{
    const uint64_t due = launcher->verdict.due;
    bool near = false;
    for (int i = 0; deadline_passed(due) && !near && i < launcher->size; i++)
        near = ending_is_near(launcher, i, due);
    return deadline_passed(due) && !near;
}

/* --- signals to the workers --- */

/* To the worker's whole process group. Only groups that we have made, and only while the leader is not reaped. */
static void group_signal(const struct member *member, int signal)
{
    if (member->pid > 1)
        (void)kill(-member->pid, signal); /* nobody left in it: as wanted */
}

void ending_signal(struct launcher *launcher, int signal)
{
    char name[32];
    if (launcher->signal != 0 || launcher->ending_since != NEVER)
        launcher->hurry = true;
    if (launcher->signal == 0)
        launcher->signal = signal;
    if (launcher->verdict.certainty == VERDICT_RUMOUR)
        launcher->verdict.certainty = VERDICT_NONE; /* the signal has reached them, too, or soon will */
    verdict_give(launcher, VERDICT_CERTAIN, STATUS_INTERRUPTED, -1, 128 + signal, "interrupted by %s",
                 signal_name(signal, name, sizeof name));
}

/* A program that has not joined can't be told: it gets the signal that we got. */
static void ending_begin(struct launcher *launcher)
{
    launcher->ending_since = clock_ns();
    members_stop(launcher, 0, launcher->size);
    for (int i = 0; i < launcher->size; i++) {
        struct member *member = &launcher->members[i];
        if (member->state != MEMBER_STARTED)
            continue;
        group_signal(member, launcher->signal != 0 ? launcher->signal : SIGTERM);
        member->terminated = launcher->signal == 0 || launcher->signal == SIGTERM;
    }
}

/* --- looking whether they are gone --- */

static bool all_dead(const struct launcher *launcher)
{
    for (int i = 0; i < launcher->size; i++) {
        if (launcher->members[i].pid != 0 && !launcher->members[i].dead)
            return false;
    }
    return true;
}

/* Whether the process is alive and in a group of ours. */
static bool is_ours(const struct launcher *launcher, long pid)
{
    struct host_process process;
    if (!host_process(pid, &process) || process.state == 'Z' || process.state == 'X')
        return false;
    for (int i = 0; i < launcher->size; i++) {
        if (launcher->members[i].pid != 0 && launcher->members[i].pid == process.group)
            return true;
    }
    return false;
}

/* A worker may have started processes of its own, which are not our children: only /proc tells. */
static bool groups_alive(const struct launcher *launcher)
{
    DIR *proc = opendir("/proc");
    bool alive = false;
    if (proc == NULL)
        return false;
    for (struct dirent *entry; !alive && (entry = readdir(proc)) != NULL;)
        alive = isdigit((unsigned char)entry->d_name[0]) != 0 && is_ours(launcher, strtol(entry->d_name, NULL, 10));
    closedir(proc);
    return alive;
}

/* --- the steps --- */

static void signal_groups(struct launcher *launcher, uint64_t since)
{
    bool term = since >= TERM_NS || launcher->hurry, end = since >= KILL_NS || launcher->hurry;
    for (int i = 0; i < launcher->size; i++) {
        struct member *member = &launcher->members[i];
        if (!member->terminated && (term || member->dead)) { /* dead: what it has started is on its own now */
            group_signal(member, SIGTERM);
            member->terminated = true;
        }
        if (end)
            group_signal(member, SIGKILL);
    }
}

void ending_step(struct launcher *launcher)
{
    struct verdict *verdict = &launcher->verdict;
    bool dead = all_dead(launcher);
    if (verdict->certainty == VERDICT_RUMOUR && (dead || rumour_is_due(launcher)))
        verdict->certainty = VERDICT_CERTAIN;
    if (verdict->certainty == VERDICT_NONE && dead)
        verdict_give(launcher, VERDICT_CERTAIN, STATUS_PEER_LOST, -1, 0, "%s", ""); /* all is well */
    if (verdict->certainty != VERDICT_CERTAIN || launcher->gone)
        return;
    if (launcher->ending_since == NEVER)
        ending_begin(launcher);
    uint64_t since = clock_ns() - launcher->ending_since;
    signal_groups(launcher, since);
    launcher->gone = (dead && !groups_alive(launcher)) || since >= GIVE_UP_NS;
}

uint64_t ending_next_deadline(const struct launcher *launcher)
{
    if (launcher->verdict.certainty == VERDICT_RUMOUR)
        return launcher->verdict.due;
    if (launcher->verdict.certainty == VERDICT_NONE)
        return NEVER;
    uint64_t now = clock_ns();
    if (launcher->ending_since == NEVER)
        return now;
    uint64_t since = now - launcher->ending_since;
    if (all_dead(launcher))
        return now + LOOK_NS;
    if (since < TERM_NS)
        return launcher->ending_since + TERM_NS;
    if (since < KILL_NS)
        return launcher->ending_since + KILL_NS;
    return now + LOOK_NS;
}

void ending_reap(struct launcher *launcher)
{
    for (int i = 0; i < launcher->size; i++) {
        struct member *member = &launcher->members[i];
        if (member->pid == 0)
            continue;
        group_signal(member, SIGKILL); /* nobody is left as far as /proc tells, which may be hidden from us */
        while (waitpid(member->pid, NULL, member->dead ? 0 : WNOHANG) < 0 && errno == EINTR)
            ;
        job_remove_leftovers(member->pid);
        if (member->joined_pid != member->pid && member->joined_pid > 1 && kill((pid_t)member->joined_pid, 0) != 0)
            job_remove_leftovers(member->joined_pid);
    }
}
