/* inquiry.c - heartbeats, and what is asked when a worker has waited in vain: who is alive, and who waits for what. */
#define _GNU_SOURCE /* mkostemps */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/bootstrap/launcher.h"
#include "comm/host.h"

#define ANSWER_SECONDS 0.4 /* that all have to answer */
#define BEAT_SHORTEST 2.0  /* seconds between two heartbeats: a third of the deadline, but no less */
#define BEATS_UNHEARD 3    /* that may go without an answer */
#define RANKS_NAMED 16

/* ---- asking ---- */

static double beat_seconds(const struct launcher *launcher)
{
    const double part = launcher->deadline / BEATS_UNHEARD;
    return part > BEAT_SHORTEST ? part : BEAT_SHORTEST;
}

static bool is_in(const struct member *member)
{
    return member->state == MEMBER_JOINED && !member->aborted && !member->dead && !member->connection.ended;
}

static void ask(struct launcher *launcher, bool details)
{
    struct blob *blob = NULL;
    if (blob_create(&blob, CONTROL_ASK, 4) != STATUS_OK)
        return; /* without memory there is worse to say */
    control_put_u32(blob_payload(blob), details ? 0 : (uint32_t)(beat_seconds(launcher) * 1e3));
    for (int i = 0; i < launcher->size; i++) {
        if (!is_in(&launcher->members[i]))
            continue;
        launcher->members[i].unheard++;
        connection_send(&launcher->members[i].connection, blob);
    }
    blob_release(blob);
}

void inquiry_begin(struct launcher *launcher)
{
    launcher->asking = true;
    launcher->verdict.due = deadline_after(ANSWER_SECONDS);
    for (int i = 0; i < launcher->size; i++)
        launcher->members[i].unheard = 0; /* an older heartbeat says nothing of now */
    ask(launcher, true);
}

enum status inquiry_answer(struct member *member, const struct control_frame *frame)
{
    void *memory = NULL;
    if (frame->length > CONTROL_ANSWER_BYTES)
        return fail(STATUS_FORMAT, "control channel: an answer of %zu bytes", frame->length);
    member->unheard = 0;
    if (frame->length == 0)
        return STATUS_OK;
    TRY(memory_zeroed(&memory, frame->length + 1, 1));
    control_line_get(memory, frame->payload, frame->length);
    free(member->answer);
    member->answer = memory;
    return STATUS_OK;
}

/* ---- judging ---- */

static bool is_stopped(long pid)
{
    struct host_process process;
    return host_process(pid, &process) && process.state == 'T';
}

/* Its numbers of processes are ours. */
static bool is_seen(const struct launcher *launcher, const struct member *member)
{
    return launcher->hosted ? member->process.memory == launcher->members[0].process.memory
                            : strcmp(member->host, launcher->host) == 0;
}

/* A worker that waited in vain may blame one that waits itself: if some worker is stopped, that one is at fault. */
static int stopped_rank(const struct launcher *launcher)
{
    for (int rank = 0; rank < launcher->size; rank++) {
        const struct member *member = &launcher->members[rank];
        const long pid = member->joined_pid > 0 ? member->joined_pid : (long)member->pid;
        if (member->state != MEMBER_LEFT && pid > 0 && is_seen(launcher, member) && is_stopped(pid))
            return rank;
    }
    return -1;
}

bool inquiry_add_stopped(const struct launcher *launcher, struct text *text)
{
    const int stopped = stopped_rank(launcher);
    if (stopped >= 0)
        text_addf(text, " (rank %d on %s is stopped: SIGCONT would let it go on)", stopped,
                  launcher->members[stopped].host);
    return stopped >= 0;
}

static bool says_nothing(const struct member *member)
{
    return is_in(member) && member->unheard > 0;
}

static bool waits_for_nobody(const struct member *member)
{
    return is_in(member) && member->unheard == 0 && member->answer == NULL && !member->arrived;
}

/* " (rank 3 on HOST ...)" of those that `holds`; false: of none. */
static bool add_ranks(const struct launcher *launcher, bool (*holds)(const struct member *), const char *what,
                      struct text *text)
{
    int count = 0;
    for (int i = 0; i < launcher->size; i++) {
        if (!holds(&launcher->members[i]))
            continue;
        if (count < RANKS_NAMED)
            text_addf(text, "%srank %d on %s", count > 0 ? ", " : " (", i, launcher->members[i].host);
        count++;
    }
    if (count > RANKS_NAMED)
        text_addf(text, " and %d others", count - RANKS_NAMED);
    if (count > 0)
        text_addf(text, " %s)", what);
    return count > 0;
}

static void add_culprit(const struct launcher *launcher, struct text *text)
{
    if (!inquiry_add_stopped(launcher, text) &&
        !add_ranks(launcher, says_nothing, "does not answer: stopped, hanging, or its connection is lost", text))
        (void)add_ranks(launcher, waits_for_nobody, "answers, and waits for nobody: it computes, or calls nothing more",
                        text);
}

/* ---- what they have said ---- */

static void describe_all(const struct launcher *launcher, struct text *text)
{
    text_addf(text, "%s\n\n", launcher->verdict.message);
    for (int i = 0; i < launcher->size; i++) {
        const struct member *member = &launcher->members[i];
        text_addf(text, "rank %d on %s, process %ld: ", i, member->host, member->joined_pid);
        if (member->answer != NULL)
            text_add(text, member->answer);
        else if (member->state == MEMBER_LEFT)
            text_add(text, "has left the job");
        else if (member->arrived)
            text_addf(text, "waits in all-gather %lu", (unsigned long)launcher->gather.sequence);
        else if (says_nothing(member))
            text_add(text, "does not answer");
        else if (!is_in(member))
            text_add(text, "has ended, or is about to");
        else
            text_add(text, "answers, and waits for nobody");
        text_add(text, "\n");
    }
}

/* Into a file of its own where temporary files go; false: it can't be written. */
static bool write_all(const struct launcher *launcher, char *path, size_t size)
{
    struct text text = {.length = 0};
    (void)snprintf(path, size, "%s/chorale-timeout-XXXXXX.txt", launcher->folder);
    const int fd = mkostemps(path, 4, O_CLOEXEC);
    if (fd < 0)
        return false;
    describe_all(launcher, &text);
    const bool written = !text.failed && write(fd, text.data, text.length) == (ssize_t)text.length;
    text_release(&text);
    if (!written)
        (void)unlink(path);
    return (close(fd) == 0) && written;
}

static void conclude(struct launcher *launcher)
{
    struct verdict *verdict = &launcher->verdict;
    char path[256];
    struct text text = {.length = 0};
    add_culprit(launcher, &text);
    if (write_all(launcher, path, sizeof path))
        text_addf(&text, "; what each waited for: %s%s%s", path, launcher->hosted ? " on " : "",
                  launcher->hosted ? launcher->host : "");
    const size_t room = sizeof verdict->message - 1, length = strlen(text_string(&text));
    const size_t kept = strnlen(verdict->message, length < room ? room - length : 0);
    (void)snprintf(verdict->message + kept, sizeof verdict->message - kept, "%s", text_string(&text));
    text_release(&text);
    verdict->due = clock_ns();
}

static bool all_have_answered(const struct launcher *launcher)
{
    for (int i = 0; i < launcher->size; i++) {
        const struct member *member = &launcher->members[i];
        if (is_in(member) && !member->arrived && member->answer == NULL)
            return false;
    }
    return true;
}

static void end_inquiry(struct launcher *launcher)
{
    if (!launcher->asking || !(all_have_answered(launcher) || deadline_passed(launcher->verdict.due)))
        return;
    launcher->asking = false;
    if (launcher->verdict.certainty == VERDICT_RUMOUR)
        conclude(launcher);
}

/* ---- heartbeats ---- */

static void beat(struct launcher *launcher)
{
    if (!deadline_passed(launcher->beat_due))
        return;
    launcher->beat_due = launcher->verdict.certainty == VERDICT_NONE ? deadline_after(beat_seconds(launcher)) : NEVER;
    for (int i = 0; i < launcher->size && launcher->verdict.certainty == VERDICT_NONE; i++) {
        const struct member *member = &launcher->members[i];
        if (!is_in(member) || member->unheard < BEATS_UNHEARD)
            continue;
        verdict_give(launcher, VERDICT_CERTAIN, STATUS_TIMEOUT, i, 1,
                     "rank %d on %s: does not answer for %.3g s: it is stopped, or its connection is lost: the job was "
                     "ended",
                     i, member->host, BEATS_UNHEARD * beat_seconds(launcher));
    }
    if (launcher->verdict.certainty == VERDICT_NONE)
        ask(launcher, false);
}

void inquiry_check(struct launcher *launcher)
{
    end_inquiry(launcher);
    beat(launcher);
}

uint64_t inquiry_next_deadline(const struct launcher *launcher)
{
    return launcher->asking && launcher->verdict.due < launcher->beat_due ? launcher->verdict.due : launcher->beat_due;
}
