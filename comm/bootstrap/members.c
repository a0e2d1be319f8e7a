/* members.c - the launcher's side of the control protocol. */
#define _GNU_SOURCE /* accept4 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/bootstrap/launcher.h"

#define LOST_GRACE 0.3         /* seconds from the end of a connection to the end of its process */
#define RANKS_NAMED 16         /* in a message */
#define STRANGER_PATIENCE 10.0 /* seconds for a greeting, or the deadline if that is shorter */
#define CLOSED "it closed without a greeting"
#define STRANGERS_NAMED 8 /* one line each; whoever scans ports must not fill the log */

/* --- life --- */

/* Where temporary files go. Asked for at the start: later the worker beside a server's thread may set variables. */
static void find_folder(char *folder, size_t size)
{
    const char *value = getenv("TMPDIR"); /* NOLINT(concurrency-mt-unsafe): see above */
    (void)snprintf(folder, size, "%s", value != NULL && value[0] == '/' && strlen(value) < size ? value : "/tmp");
}

enum status members_init(struct launcher *launcher, int size, double deadline)
{
    void *members = NULL, *strangers = NULL;
    *launcher = (struct launcher){.size = size,
                                  .deadline = control_deadline(deadline),
                                  .listener = -1,
                                  .signals = -1,
                                  .join_due = NEVER,
                                  .ending_since = NEVER,
                                  .beat_due = NEVER,
                                  .gather = {.sequence = 1, .due = NEVER}};
    if (gethostname(launcher->host, sizeof launcher->host - 1) != 0)
        memcpy(launcher->host, "localhost", sizeof "localhost");
    find_folder(launcher->folder, sizeof launcher->folder);
    TRY(memory_zeroed(&members, (size_t)size, sizeof(struct member)));
    launcher->members = members;
    for (int i = 0; i < size; i++) {
        connection_init(&launcher->members[i].connection, -1);
        launcher->members[i].lost_due = NEVER;
    }
    TRY(memory_zeroed(&strangers, (size_t)size + STRANGERS, sizeof(struct stranger)));
    launcher->strangers = strangers;
    for (int i = 0; i < size + STRANGERS; i++)
        connection_init(&launcher->strangers[i].connection, -1);
    return STATUS_OK;
}

void members_release(struct launcher *launcher)
{
    for (int i = 0; launcher->members != NULL && i < launcher->size; i++) {
        connection_close(&launcher->members[i].connection);
        free(launcher->members[i].answer);
    }
    for (int i = 0; launcher->strangers != NULL && i < launcher->size + STRANGERS; i++)
        connection_close(&launcher->strangers[i].connection);
    blob_release(launcher->gather.result);
    if (launcher->listener >= 0)
        close(launcher->listener);
    free(launcher->members);
    free(launcher->strangers);
}

/* --- sending --- */

/* STOP; `dead`: the process behind it, NULL: none that others have to clean up after. */
static struct blob *stop_blob(const struct control_process *dead, enum status status, const char *text)
{
    static const struct control_process none = {.pid = 0};
    unsigned char payload[CONTROL_PROCESS_BYTES + 4 + CONTROL_TEXT_BYTES];
    struct blob *blob = NULL;
    control_process_put(payload, dead != NULL ? dead : &none);
    size_t length = CONTROL_PROCESS_BYTES + control_text_put(payload + CONTROL_PROCESS_BYTES, status, text);
    if (blob_create(&blob, CONTROL_STOP, length) != STATUS_OK)
        return NULL; /* without a word, the workers are ended by signals */
    memcpy(blob_payload(blob), payload, length);
    return blob;
}

/* The last word on a connection: told if it can be, then closed. */
static void dismiss(struct connection *connection, enum status status, const char *text)
{
    struct blob *blob = stop_blob(NULL, status, text);
    if (blob != NULL)
        connection_send(connection, blob);
    blob_release(blob);
    connection_close(connection);
}

static void send_empty(struct launcher *launcher, struct connection *connection, enum control_type type)
{
    struct blob *blob = NULL;
    enum status status = blob_create(&blob, type, 0);
    if (status != STATUS_OK)
        verdict_failed(launcher, status);
    else
        connection_send(connection, blob);
    blob_release(blob);
}

void members_stop(struct launcher *launcher, int low, int high)
{
    const struct verdict *verdict = &launcher->verdict;
    const bool died = launcher->hosted && verdict->status == STATUS_PEER_LOST && verdict->rank >= 0;
    struct blob *blob =
        stop_blob(died ? &launcher->members[verdict->rank].process : NULL, verdict->status, verdict->message);
    for (int i = low; i < high && blob != NULL; i++) {
        if (!launcher->members[i].aborted ||
            (launcher->hosted && i > 0)) /* who has said it knows it, but not that it is heard */
            connection_send(&launcher->members[i].connection, blob);
    }
    blob_release(blob);
}

/* "rank 3" or "ranks 1, 2 and 5 others" of those that `missing` holds for. */
static void name_ranks(const struct launcher *launcher, bool (*missing)(const struct member *), struct text *text)
{
    int count = 0;
    for (int i = 0; i < launcher->size; i++)
        count += missing(&launcher->members[i]) ? 1 : 0;
    text_add(text, count == 1 ? "rank " : "ranks ");
    int named = 0;
    for (int i = 0; i < launcher->size && named < RANKS_NAMED; i++) {
        if (missing(&launcher->members[i]))
            text_addf(text, "%s%d", named++ > 0 ? ", " : "", i);
    }
    if (count > named)
        text_addf(text, " and %d others", count - named);
}

static bool has_not_joined(const struct member *member)
{
    return member->state == MEMBER_STARTED;
}

static bool has_not_arrived(const struct member *member)
{
    return !member->arrived;
}

/* --- joining --- */

static void welcome_one(struct launcher *launcher, struct member *member)
{
    const size_t host = strnlen(launcher->host, CONTROL_HOST_BYTES);
    struct blob *blob = NULL;
    enum status status = blob_create(&blob, CONTROL_WELCOME, CONTROL_WELCOME_FIXED + host);
    if (status != STATUS_OK) {
        verdict_failed(launcher, status);
        return;
    }
    memcpy(blob_payload(blob), member->welcome, PROOF_BYTES);
    if (launcher->hosted)
        control_process_put(blob_payload(blob) + PROOF_BYTES, &launcher->members[0].process);
    memcpy(blob_payload(blob) + CONTROL_WELCOME_FIXED, launcher->host, host);
    connection_send(&member->connection, blob);
    blob_release(blob);
}

static void welcome(struct launcher *launcher)
{
    if (launcher->joined < launcher->size)
        return;
    launcher->welcomed = true;
    launcher->join_due = NEVER;
    launcher->beat_due = clock_ns(); /* the first one says how often they come */
    for (int i = 0; i < launcher->size; i++)
        welcome_one(launcher, &launcher->members[i]);
}

/* It knows the token, so it is one of ours; can it be the rank it says? Otherwise the job can't go on. */
static bool is_welcome(struct launcher *launcher, const struct control_hello *hello)
{
    if (hello->size != (uint32_t)launcher->size || hello->rank >= hello->size) {
        verdict_give(launcher, VERDICT_CERTAIN, STATUS_USAGE, -1, 2,
                     "process %lu on %s: joins as rank %lu of %lu, but the job has %d workers: %s",
                     (unsigned long)hello->process.pid, hello->host, (unsigned long)hello->rank,
                     (unsigned long)hello->size, launcher->size,
                     launcher->hosted ? "start all with the same number of workers"
                                      : "RANK or WORLD_SIZE was changed after the launcher set it");
        return false;
    }
    const struct member *member = &launcher->members[hello->rank];
    if (member->state != MEMBER_STARTED) {
        verdict_give(launcher, VERDICT_CERTAIN, STATUS_USAGE, (int)hello->rank, 2,
                     "rank %lu on %s: process %lu on %s joins although process %ld has joined as this rank: %s",
                     (unsigned long)hello->rank, member->host, (unsigned long)hello->process.pid, hello->host,
                     member->joined_pid,
                     launcher->hosted ? "give each worker a rank of its own"
                                      : "one program a worker can join, once; unset CHORALE_CONTROL for the others");
        return false;
    }
    if (member->dead) {
        verdict_give(launcher, VERDICT_CERTAIN, STATUS_USAGE, (int)hello->rank, 2,
                     "rank %lu on %s: process %lu joins after the worker itself has ended: let the command wait for it",
                     (unsigned long)hello->rank, member->host, (unsigned long)hello->process.pid);
        return false;
    }
    return true;
}

/* The stranger becomes a member. */
static void admit(struct launcher *launcher, struct stranger *stranger, const struct control_hello *hello)
{
    struct member *member = &launcher->members[hello->rank];
    member->connection = stranger->connection;
    connection_init(&stranger->connection, -1);
    proof_make(launcher->token, PROOF_SERVER, stranger->nonce, hello->nonce, NULL, 0, member->welcome);
    member->state = MEMBER_JOINED;
    launcher->joined++;
    member->joined_pid = (long)hello->process.pid;
    member->process = hello->process;
    if (hello->host[0] != '\0')
        memcpy(member->host, hello->host, sizeof member->host);
    member->patience = (double)hello->deadline_ms / 1e3;
    if (launcher->join_due == NEVER)
        launcher->join_due = deadline_after(launcher->deadline);
    for (int i = 0; i < launcher->size; i++) {
        if (launcher->members[i].dead && launcher->members[i].state == MEMBER_STARTED)
            verdict_give(launcher, VERDICT_CERTAIN, STATUS_PEER_LOST, i, 1,
                         "rank %d on %s: ended (exit 0) without joining, while rank %lu waits for it: all workers must "
                         "run the same program",
                         i, launcher->members[i].host, (unsigned long)hello->rank);
    }
    if (launcher->ending_since == NEVER)
        welcome(launcher);
}

static void greet(struct launcher *launcher, struct stranger *stranger, const struct control_hello *hello)
{
    if (launcher->verdict.certainty == VERDICT_CERTAIN || !is_welcome(launcher, hello)) {
        dismiss(&stranger->connection, launcher->verdict.status, launcher->verdict.message);
        return;
    }
    admit(launcher, stranger, hello);
}

/* Not of this job, whatever it was: it goes, the job goes on, and one line says so. */
static void turn_away(struct launcher *launcher, struct stranger *stranger, const char *why)
{
    char line[ADDRESS_BYTES + 192];
    connection_close(&stranger->connection);
    if (launcher->note == NULL || launcher->turned_away > STRANGERS_NAMED ||
        launcher->verdict.certainty == VERDICT_CERTAIN) /* workers that are ended before they have greeted */
        return;
    if (launcher->turned_away++ < STRANGERS_NAMED)
        (void)snprintf(line, sizeof line, "control channel: turned away %s: %s: the job goes on", stranger->address,
                       why);
    else
        (void)snprintf(line, sizeof line, "control channel: more strangers come: they are turned away in silence");
    launcher->note(launcher->note_context, line);
}

/* Without a secret the token is made of names and numbers, the number of workers among them: a wrong one is the likeliest
 * cause. It was not proved, so it only makes the line clearer. */
static void refuse_token(struct launcher *launcher, struct stranger *stranger, const struct control_hello *hello)
{
    char told[128], why[128];
    if (hello->size == (uint32_t)launcher->size) {
        dismiss(&stranger->connection, STATUS_REFUSED,
                "join the job: wrong token: it is of another job than the address");
        turn_away(launcher, stranger, "it does not know the job's token");
        return;
    }
    (void)snprintf(told, sizeof told,
                   "join the job: wrong token: this is a worker of %" PRIu32 ", and the job at the address has %d",
                   hello->size, launcher->size);
    (void)snprintf(why, sizeof why, "it does not know the job's token, and is a worker of %" PRIu32 ", not of %d",
                   hello->size, launcher->size);
    dismiss(&stranger->connection, STATUS_REFUSED, told);
    turn_away(launcher, stranger, why);
}

void members_read_stranger(struct launcher *launcher, int index)
{
    struct stranger *stranger = &launcher->strangers[index];
    struct connection *connection = &stranger->connection;
    struct control_frame frame = {.length = 0};
    struct control_hello hello = {.size = 0};
    connection_flush(connection);
    enum status status = control_read(&connection->reader, connection->fd, CONTROL_STRANGER_LIMIT, &frame);
    if (status == STATUS_AGAIN)
        return;
    if (status == STATUS_OK)
        status = control_hello_get(&frame, launcher->token, stranger->nonce, &hello);
    if (status == STATUS_OK) {
        greet(launcher, stranger, &hello);
        return;
    }
    if (status == STATUS_REFUSED) {
        refuse_token(launcher, stranger, &hello);
        return;
    }
    if (status == STATUS_PEER_LOST && !launcher->hosted) { /* perhaps a worker, whose end says more */
        connection->ended = true;
        stranger->due = deadline_after(LOST_GRACE);
        return;
    }
    turn_away(launcher, stranger,
              status == STATUS_FORMAT      ? "what it sends is no greeting of this program"
              : status == STATUS_PEER_LOST ? CLOSED
                                           : status_message());
}

/* A free place; when too many are silent, the one that has been so for longest makes room. */
static int stranger_place(struct launcher *launcher)
{
    int places = launcher->size + STRANGERS, used = 0, oldest = -1, free_place = 0;
    for (int i = 0; i < places; i++) {
        const struct stranger *stranger = &launcher->strangers[i];
        if (stranger->connection.fd < 0) {
            free_place = i;
            continue;
        }
        used++;
        if (oldest < 0 || stranger->since < launcher->strangers[oldest].since)
            oldest = i;
    }
    if (used < places - launcher->joined || oldest < 0)
        return free_place;
    turn_away(launcher, &launcher->strangers[oldest], "too many connections without a greeting");
    return oldest;
}

static void challenge(struct launcher *launcher, struct stranger *stranger, int fd)
{
    struct blob *blob = NULL;
    connection_init(&stranger->connection, fd);
    stranger->since = clock_ns();
    stranger->due = deadline_after(launcher->deadline < STRANGER_PATIENCE ? launcher->deadline : STRANGER_PATIENCE);
    address_of(fd, true, stranger->address);
    enum status status = proof_random(stranger->nonce, sizeof stranger->nonce);
    if (status == STATUS_OK)
        status = blob_create(&blob, CONTROL_CHALLENGE, CONTROL_CHALLENGE_BYTES);
    if (status != STATUS_OK) {
        verdict_failed(launcher, status);
        return;
    }
    control_challenge_put(blob_payload(blob), stranger->nonce);
    connection_send(&stranger->connection, blob);
    blob_release(blob);
}

void members_accept(struct launcher *launcher)
{
    for (int i = 0; i < STRANGERS; i++) { /* then the loop looks at the others again */
        int fd = accept4(launcher->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
                verdict_give(launcher, VERDICT_CERTAIN, STATUS_UNAVAILABLE, -1, 1,
                             "launcher on %s: take a connection: %s: raise the limit on open files (ulimit -n)",
                             launcher->host, strerror(errno));
            return; /* EAGAIN: that was all; others: that connection is gone already */
        }
        address_tune(fd);
        challenge(launcher, &launcher->strangers[stranger_place(launcher)], fd);
    }
}

/* --- all-gathers --- */

static void gather_begin(struct launcher *launcher, int rank, size_t bytes)
{
    struct gather *gather = &launcher->gather;
    enum status status = blob_create(&gather->result, CONTROL_GATHERED, 4 + (size_t)launcher->size * bytes);
    if (status != STATUS_OK) {
        verdict_failed(launcher, status);
        return;
    }
    control_put_u32(blob_payload(gather->result), gather->sequence);
    gather->first = rank;
    gather->bytes = bytes;
    gather->arrived = 0;
    gather->due = NEVER;
}

static void gather_end(struct launcher *launcher)
{
    struct gather *gather = &launcher->gather;
    for (int i = 0; i < launcher->size; i++) {
        launcher->members[i].arrived = false;
        connection_send(&launcher->members[i].connection, gather->result);
    }
    blob_release(gather->result);
    gather->result = NULL;
    gather->due = NEVER;
    gather->sequence++;
}

/* Whether rank's contribution fits what the others do; if not, the job ends. */
static bool gather_fits(struct launcher *launcher, int rank, uint32_t sequence, size_t bytes)
{
    const struct gather *gather = &launcher->gather;
    const char *host = launcher->members[rank].host;
    if (sequence != gather->sequence || launcher->members[rank].arrived) {
        verdict_give(launcher, VERDICT_CERTAIN, STATUS_INTERNAL, rank, 1,
                     "rank %d on %s: sends all-gather %lu while the job is at %lu: a bug of the control channel", rank,
                     host, (unsigned long)sequence, (unsigned long)gather->sequence);
        return false;
    }
    for (int i = 0; i < launcher->size; i++) {
        if (launcher->members[i].state != MEMBER_LEFT)
            continue;
        verdict_give(
            launcher, VERDICT_CERTAIN, STATUS_MISMATCH, rank, 1,
            "rank %d on %s: calls all-gather %lu, but rank %d has left the job: all workers must make the same "
            "calls",
            rank, host, (unsigned long)sequence, i);
        return false;
    }
    if (gather->result != NULL && bytes != gather->bytes) {
        verdict_give(launcher, VERDICT_CERTAIN, STATUS_MISMATCH, rank, 1,
                     "rank %d on %s: gives %zu bytes to all-gather %lu (0: a barrier), rank %d gives %zu: all workers "
                     "must make the same calls",
                     rank, host, bytes, (unsigned long)sequence, gather->first, gather->bytes);
        return false;
    }
    return true;
}

static void handle_gather(struct launcher *launcher, int rank, const struct control_frame *frame)
{
    struct gather *gather = &launcher->gather;
    struct member *member = &launcher->members[rank];
    size_t bytes = frame->length - 4;
    if (!gather_fits(launcher, rank, control_get_u32(frame->payload), bytes))
        return;
    if (gather->result == NULL)
        gather_begin(launcher, rank, bytes);
    if (gather->result == NULL)
        return;
    if (bytes > 0)
        memcpy(blob_payload(gather->result) + 4 + (size_t)rank * bytes, frame->payload + 4, bytes);
    member->arrived = true;
    uint64_t due = deadline_after(member->patience);
    if (due < gather->due)
        gather->due = due;
    if (++gather->arrived == launcher->size)
        gather_end(launcher);
}

/* --- what members say --- */

static void handle_abort(struct launcher *launcher, int rank, const struct control_frame *frame)
{
    char text[CONTROL_TEXT_BYTES + 1];
    enum status why = STATUS_INTERNAL;
    enum status status = control_text_get(frame->payload, frame->length, &why, text);
    if (status != STATUS_OK) {
        verdict_failed(launcher, status);
        return;
    }
    launcher->members[rank].aborted = true;
    const bool rumour = why == STATUS_PEER_LOST || why == STATUS_TIMEOUT;
    const bool first = launcher->verdict.certainty == VERDICT_NONE;
    verdict_give(launcher, rumour ? VERDICT_RUMOUR : VERDICT_CERTAIN, why, rank, status_exit_code(why), "%s", text);
    if (first && why == STATUS_TIMEOUT)
        inquiry_begin(launcher);
}

static void handle_goodbye(struct launcher *launcher, int rank)
{
    struct member *member = &launcher->members[rank];
    member->state = MEMBER_LEFT;
    send_empty(launcher, &member->connection, CONTROL_GOODBYE_ACK);
    if (launcher->gather.result != NULL)
        verdict_give(launcher, VERDICT_CERTAIN, STATUS_MISMATCH, rank, 1,
                     "rank %d on %s: leaves the job while rank %d waits in all-gather %lu: all workers must make the "
                     "same calls",
                     rank, member->host, launcher->gather.first, (unsigned long)launcher->gather.sequence);
}

static void malformed(struct launcher *launcher, int rank, const char *what)
{
    struct member *member = &launcher->members[rank];
    connection_close(&member->connection);
    verdict_give(launcher, VERDICT_CERTAIN, STATUS_FORMAT, rank, 1,
                 "rank %d on %s: %s: a bug, or another version of "
                 "the program",
                 rank, member->host, what);
}

static void handle_frame(struct launcher *launcher, int rank, const struct control_frame *frame)
{
    const struct member *member = &launcher->members[rank];
    bool ending = launcher->verdict.certainty == VERDICT_CERTAIN;
    if (frame->type == CONTROL_ABORT && member->state == MEMBER_JOINED)
        handle_abort(launcher, rank, frame);
    else if (frame->type == CONTROL_ANSWER && member->state != MEMBER_STARTED) {
        if (inquiry_answer(&launcher->members[rank], frame) != STATUS_OK)
            malformed(launcher, rank, status_message());
    } else if (frame->type == CONTROL_GATHER && frame->length >= 4 && member->state == MEMBER_JOINED &&
               launcher->welcomed) {
        if (!ending)
            handle_gather(launcher, rank, frame);
    } else if (frame->type == CONTROL_GOODBYE && frame->length == 0 && member->state == MEMBER_JOINED)
        handle_goodbye(launcher, rank);
    else
        malformed(launcher, rank, "control channel: a message out of place");
}

void members_read(struct launcher *launcher, int rank)
{
    struct member *member = &launcher->members[rank];
    struct control_frame frame = {.length = 0};
    while (member->connection.fd >= 0 && !member->connection.ended) {
        enum status status =
            control_read(&member->connection.reader, member->connection.fd, CONTROL_MEMBER_LIMIT, &frame);
        if (status == STATUS_AGAIN)
            return;
        if (status == STATUS_OK) {
            handle_frame(launcher, rank, &frame);
        } else if (status == STATUS_FORMAT) {
            malformed(launcher, rank, status_message());
        } else { /* closed; mostly the process is about to die, and how it dies says more */
            member->connection.ended = true;
            member->lost_due = launcher->hosted ? clock_ns() : deadline_after(LOST_GRACE);
        }
    }
}

/* --- deadlines --- */

static void check_lost(struct launcher *launcher, int rank)
{
    struct member *member = &launcher->members[rank];
    if (!deadline_passed(member->lost_due) || ending_is_near(launcher, rank, member->lost_due))
        return;
    member->lost_due = NEVER;
    if (member->state != MEMBER_JOINED || member->aborted || member->dead)
        return;
    if (launcher->hosted)
        verdict_give(
            launcher, VERDICT_CERTAIN, STATUS_PEER_LOST, rank, 1,
            "rank %d on %s: process %ld ended or was killed, or its connection was lost: the job was ended: see "
            "what it wrote and what its launcher says",
            rank, member->host, member->joined_pid);
    else
        verdict_give(launcher, VERDICT_CERTAIN, STATUS_PEER_LOST, rank, 1,
                     "rank %d on %s: closed its control channel without leaving the job, while process %ld still runs: "
                     "it can't be watched any more",
                     rank, member->host, (long)member->pid);
}

static void check_join(struct launcher *launcher)
{
    if (!deadline_passed(launcher->join_due))
        return;
    struct text ranks = {.length = 0}, stopped = {.length = 0};
    name_ranks(launcher, has_not_joined, &ranks);
    (void)inquiry_add_stopped(launcher, &stopped);
    verdict_give(launcher, VERDICT_CERTAIN, STATUS_TIMEOUT, -1, 1,
                 launcher->hosted
                     ? "%s, awaited by rank 0 on %s: not joined within %.3g s: see whether they were started "
                       "and can reach it, or raise the deadline%s"
                     : "%s on %s: not joined within %.3g s of the first: see whether the host is "
                       "overloaded, or raise the deadline%s",
                 text_string(&ranks), launcher->host, launcher->deadline, text_string(&stopped));
    text_release(&stopped);
    text_release(&ranks);
    launcher->join_due = NEVER;
}

/* Of the first that is missing. */
static const char *missing_host(const struct launcher *launcher)
{
    int rank = 0;
    while (rank + 1 < launcher->size && !has_not_arrived(&launcher->members[rank]))
        rank++;
    return launcher->members[rank].host;
}

static void check_gather(struct launcher *launcher)
{
    struct gather *gather = &launcher->gather;
    if (!deadline_passed(gather->due))
        return;
    struct text ranks = {.length = 0}, stopped = {.length = 0};
    name_ranks(launcher, has_not_arrived, &ranks);
    (void)inquiry_add_stopped(launcher, &stopped);
    verdict_give(
        launcher, VERDICT_CERTAIN, STATUS_TIMEOUT, -1, 1,
        "%s on %s: not at %s %lu within %.3g s of rank %d: stopped, hanging or slow; raise the deadline if slow%s",
        text_string(&ranks), missing_host(launcher), gather->bytes > 0 ? "all-gather" : "barrier",
        (unsigned long)gather->sequence, launcher->members[gather->first].patience, gather->first,
        text_string(&stopped));
    text_release(&stopped);
    text_release(&ranks);
    gather->due = NEVER;
}

/* When a connection without a greeting is given up. While workers are awaited, a silent one may be of one that is stopped,
 * which is named when they should have come. */
static uint64_t stranger_due(const struct launcher *launcher, const struct stranger *stranger)
{
    const bool awaited = !launcher->hosted && !stranger->connection.ended && launcher->joined < launcher->size;
    return stranger->connection.fd < 0 || awaited ? NEVER : stranger->due;
}

void members_check_deadlines(struct launcher *launcher)
{
    for (int i = 0; i < launcher->size; i++)
        check_lost(launcher, i);
    for (int i = 0; i < launcher->size + STRANGERS; i++) {
        struct stranger *stranger = &launcher->strangers[i];
        if (deadline_passed(stranger_due(launcher, stranger)))
            turn_away(launcher, stranger,
                      stranger->connection.ended ? CLOSED : "it said nothing, or not all of a greeting");
    }
    check_join(launcher);
    check_gather(launcher);
    inquiry_check(launcher);
}

uint64_t members_next_deadline(const struct launcher *launcher)
{
    uint64_t next = launcher->join_due < launcher->gather.due ? launcher->join_due : launcher->gather.due;
    if (inquiry_next_deadline(launcher) < next)
        next = inquiry_next_deadline(launcher);
    for (int i = 0; i < launcher->size; i++) {
        if (launcher->members[i].lost_due < next)
            next = launcher->members[i].lost_due;
    }
    for (int i = 0; i < launcher->size + STRANGERS; i++) {
        const uint64_t due = stranger_due(launcher, &launcher->strangers[i]);
        if (due < next)
            next = due;
    }
    return next;
}
