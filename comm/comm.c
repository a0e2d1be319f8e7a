/* comm.c - the communicator: tasks handed to the transport, the pool of small messages, teams, the progress thread. */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/internal.h"
#include "comm/job.h"

#define POOL_BUFFERS 64        /* small messages that may land between two rounds of progress */
#define DEFAULT_SEGMENT 262144 /* bytes */
#define DEFAULT_WINDOW 4
#define DEFAULT_DEADLINE 30.0
#define BATCH 32 /* completions taken at once */

/* Granted receives posted before only the oldest collective of a team may post more: its progress never waits for
 * younger ones whose senders wait for it. The pool, these and one collective's window fit the 1024 receives of shm. */
#define YOUNG_RECEIVES 512

/* ------------------------------------------------------------------------------------------------------ lists, buffers
 */

void task_append(struct task_list *list, struct task *task)
{
    task->next = NULL;
    task->previous = list->last;
    if (list->last == NULL)
        list->first = task;
    else
        list->last->next = task;
    list->last = task;
}

void task_remove(struct task_list *list, struct task *task)
{
    if (task->previous == NULL)
        list->first = task->next;
    else
        task->previous->next = task->next;
    if (task->next == NULL)
        list->last = task->previous;
    else
        task->next->previous = task->previous;
    task->next = task->previous = NULL;
}

enum status task_take(struct comm *comm, enum task_kind kind, struct task **out)
{
    struct task *task = comm->spare.first;
    if (task != NULL) {
        task_remove(&comm->spare, task);
    } else {
        void *memory = NULL;
        TRY(memory_zeroed(&memory, 1, sizeof(struct task)));
        task = memory;
    }
    *task = (struct task){.kind = kind};
    task->transfer.context = task;
    *out = task;
    return STATUS_OK;
}

/* Buffers go back to their shelf; a shelf that can't grow lets them go. */
static void shelve(void ***shelf, size_t *count, size_t *capacity, void *buffer)
{
    void *memory = *shelf;
    if (memory_grow(&memory, capacity, *count + 1, sizeof(void *)) < 0) {
        free(buffer);
        return;
    }
    *shelf = memory;
    (*shelf)[(*count)++] = buffer;
}

void task_give(struct comm *comm, struct task *task)
{
    if (task->buffer != NULL && (task->kind == TASK_SMALL || task->kind == TASK_POOL))
        shelve(&comm->small_spare, &comm->small_spares, &comm->small_capacity, task->buffer);
    else if (task->buffer != NULL)
        shelve(&comm->landing_spare, &comm->landing_spares, &comm->landing_capacity, task->buffer);
    task->buffer = NULL;
    task_append(&comm->spare, task);
}

static enum status buffer_take(void **shelf, size_t *count, size_t bytes, void **buffer)
{
    if (*count > 0) {
        *buffer = shelf[--*count];
        return STATUS_OK;
    }
    const size_t rounded = (bytes + 63) / 64 * 64;
    *buffer = aligned_alloc(64, rounded);
    return *buffer != NULL ? STATUS_OK : fail(STATUS_NO_MEMORY, "comm: no memory for a buffer of %zu bytes", rounded);
}

enum status landing_take(struct comm *comm, void **buffer)
{
    return buffer_take(comm->landing_spare, &comm->landing_spares, comm->segment, buffer);
}

enum status small_take(struct comm *comm, void **buffer)
{
    return buffer_take(comm->small_spare, &comm->small_spares, comm->small_bytes, buffer);
}

static void free_tasks(struct task_list *list)
{
    struct task *task = list->first;
    *list = (struct task_list){.first = NULL};
    while (task != NULL) {
        struct task *next = task->next;
        free(task->buffer);
        free(task);
        task = next;
    }
}

/* ---- failures ---- */

enum status comm_fail(struct comm *comm, enum status status)
{
    if (comm->status == STATUS_OK) {
        comm->status = status;
        snprintf(comm->message, sizeof comm->message, "%s", status_message());
    }
    return status;
}

enum status comm_failed(const struct comm *comm)
{
    return comm->status == STATUS_OK ? STATUS_OK : fail(comm->status, "%s", comm->message);
}

/* ------------------------------------------------------------------------------------------------- handing to
 * transport */

static enum status hand_over(struct comm *comm, struct task *task)
{
    struct transport *transport = comm->transport;
    if (task->kind == TASK_POOL)
        return transport->ops->receive(transport, TRANSPORT_ANY, WIRE_TAG_SMALL, WIRE_TAG_IGNORE, task->data,
                                       task->bytes, &task->transfer);
    if (task->kind == TASK_RECEIVE)
        return transport->ops->receive(transport, task->peer, task->tag, 0, task->data, task->bytes, &task->transfer);
    return transport->ops->send(transport, task->peer, task->tag, task->data, task->bytes, &task->transfer);
}

static enum pending pending_of(const struct task *task)
{
    if (task->kind == TASK_POOL)
        return PENDING_POOL;
    return task->kind == TASK_RECEIVE ? PENDING_RECEIVE : PENDING_SEND;
}

/* The next task of a list that may be handed over; NULL: none. */
static struct task *next_pending(const struct comm *comm, enum pending which)
{
    struct task *task = comm->pending[which].first;
    if (which != PENDING_RECEIVE)
        return task;
    if (comm->pending[PENDING_POOL].first != NULL)
        return NULL;
    while (task != NULL && comm->receiving >= YOUNG_RECEIVES && !executor_is_oldest(task->collective))
        task = task->next;
    return task;
}

static enum status flush_list(struct comm *comm, enum pending which, bool *moved)
{
    struct task *task = next_pending(comm, which);
    for (; task != NULL; task = next_pending(comm, which)) {
        const enum status status = hand_over(comm, task);
        if (status != STATUS_OK)
            return status < 0 ? status : STATUS_OK;
        task_remove(&comm->pending[which], task);
        task_append(&comm->flying, task);
        task->flying = true;
        *moved = true;
        if (task->kind != TASK_RECEIVE)
            continue;
        comm->receiving++;
        TRY(executor_grant(task));
    }
    return STATUS_OK;
}

static enum status flush_pending(struct comm *comm, bool *moved)
{
    for (int which = 0; which < PENDING_LISTS; which++)
        TRY(flush_list(comm, (enum pending)which, moved));
    return STATUS_OK;
}

enum status task_submit(struct comm *comm, struct task *task)
{
    const enum pending which = pending_of(task);
    bool moved = false;
    task_append(&comm->pending[which], task);
    return comm->pending[which].first == task ? flush_list(comm, which, &moved) : STATUS_OK;
}

enum status comm_send_small(struct comm *comm, struct collective *collective, int peer, struct wire_header *header,
                            const void *payload, size_t bytes)
{
    struct task *task = NULL;
    TRY(task_take(comm, TASK_SMALL, &task));
    if (small_take(comm, &task->buffer) < 0) {
        task_give(comm, task);
        return STATUS_NO_MEMORY;
    }
    header->source = (uint16_t)comm->transport->rank;
    header->bytes = (uint32_t)bytes;
    wire_encode(header, task->buffer);
    if (bytes > 0)
        memcpy((unsigned char *)task->buffer + WIRE_HEADER_BYTES, payload, bytes);
    task->collective = collective;
    task->peer = peer;
    task->tag = WIRE_TAG_SMALL;
    task->data = task->buffer;
    task->bytes = WIRE_HEADER_BYTES + bytes;
    return task_submit(comm, task);
}

static enum status pool_post(struct comm *comm)
{
    struct task *task = NULL;
    TRY(task_take(comm, TASK_POOL, &task));
    if (small_take(comm, &task->buffer) < 0) {
        task_give(comm, task);
        return STATUS_NO_MEMORY;
    }
    task->data = task->buffer;
    task->bytes = comm->small_bytes;
    return task_submit(comm, task);
}

/* ------------------------------------------------------------------------------------------------------ small messages
 */

enum status early_add(struct early **list, const struct wire_header *header, const void *payload)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct early) + header->bytes));
    struct early *early = memory;
    early->header = *header;
    if (header->bytes > 0)
        memcpy(early->payload, payload, header->bytes);
    while (*list != NULL)
        list = &(*list)->next;
    *list = early;
    return STATUS_OK;
}

static void early_free(struct early **list)
{
    while (*list != NULL) {
        struct early *early = *list;
        *list = early->next;
        free(early);
    }
}

static void team_answer(struct comm *comm, const struct wire_header *header, const unsigned char *used)
{
    for (uint32_t i = 0; i < header->bytes && i < TEAM_ID_BYTES; i++)
        comm->team_talk.used[i] |= used[i];
    comm->team_talk.value = header->sequence;
    comm->team_talk.answers++;
}

static enum status small_arrived(struct comm *comm, const struct task *task)
{
    struct wire_header header;
    const unsigned char *bytes = task->data;
    TRY(wire_decode(bytes, task->transfer.bytes, &header));
    if (header.source >= comm->transport->size)
        return fail(STATUS_FORMAT, "wire: a message from unknown rank %d", (int)header.source);
    if (header.class == WIRE_TEAM) {
        if (!comm->team_talk.waiting || header.hash != comm->team_talk.hash)
            return early_add(&comm->early, &header, bytes + WIRE_HEADER_BYTES);
        team_answer(comm, &header, bytes + WIRE_HEADER_BYTES);
        return STATUS_OK;
    }
    return executor_arrived(comm, &header, bytes + WIRE_HEADER_BYTES);
}

/* ---- progress ---- */

static enum status task_done(struct comm *comm, struct task *task)
{
    task->flying = false;
    task_remove(&comm->flying, task);
    comm->receiving -= task->kind == TASK_RECEIVE;
    if (task->transfer.status < 0) {
        const enum status status = task->transfer.status;
        const int peer = task->peer;
        const enum task_kind kind = task->kind;
        task_give(comm, task);
        if (kind == TASK_POOL) /* from anyone */
            return fail_context(status, "%s: receive of a small message", comm->transport->name);
        return fail_context(status, "%s: %s rank %d", comm->transport->name,
                            kind == TASK_RECEIVE ? "receive from" : "send to", peer);
    }
    switch (task->kind) {
    case TASK_POOL: {
        const enum status status = small_arrived(comm, task);
        task_give(comm, task);
        TRY(status);
        return pool_post(comm);
    }
    case TASK_SMALL:
        if (task->collective != NULL)
            executor_small_done(task->collective);
        task_give(comm, task);
        return STATUS_OK;
    default:
        return executor_task_done(comm, task);
    }
}

static enum status progress_once(struct comm *comm, bool *moved)
{
    struct transfer *done[BATCH];
    size_t count = 0;
    TRY(comm->transport->ops->progress(comm->transport, done, BATCH, &count));
    *moved = count > 0;
    for (size_t i = 0; i < count; i++)
        TRY(task_done(comm, done[i]->context));
    TRY(flush_pending(comm, moved));
    return executor_advance(comm, moved);
}

enum status comm_progress(struct comm *comm, bool *moved)
{
    *moved = false;
    TRY(comm_failed(comm));
    const enum status status = progress_once(comm, moved);
    if (status < 0)
        return comm_fail(comm, status);
    if (*moved)
        comm->progressed_ns = clock_ns();
    return STATUS_OK;
}

static enum status check_deadline(struct comm *comm)
{
    const uint64_t now = clock_ns();
    if (comm->dispute_until != 0 && now > comm->dispute_until)
        return fail(STATUS_MISMATCH,
                    "%s: the other side did not say what it called: call the same collective everywhere",
                    comm->dispute);
    if (comm->waiters == 0 || (double)(now - comm->progressed_ns) / 1e9 <= comm->deadline)
        return STATUS_OK; /* whoever computes meanwhile is not kept waiting */
    struct text text = {0};
    executor_describe(comm, &text);
    const enum status status =
        fail(STATUS_TIMEOUT, "nothing moved for %.0f s: %s: a worker may hang; --deadline= changes the limit",
             comm->deadline, text_string(&text));
    text_release(&text);
    return status;
}

enum status comm_idle(struct comm *comm, unsigned idle)
{
    if (idle % 64 == 63) {
        enum status status = comm->job != NULL ? job_check(comm->job) : STATUS_OK;
        if (status >= 0)
            status = check_deadline(comm);
        if (status < 0)
            return comm_fail(comm, status);
    }
    comm->transport->ops->wait(comm->transport, 1000000, idle);
    return STATUS_OK;
}

void comm_enter(struct comm *comm)
{
    atomic_fetch_add(&comm->wanted, 1);
    pthread_mutex_lock(&comm->lock);
    atomic_fetch_sub(&comm->wanted, 1);
}

void comm_leave(struct comm *comm)
{
    pthread_mutex_unlock(&comm->lock);
}

/* Drives progress while collectives are under way and nobody waits for one; failures are kept for whoever comes. */
static void *progress_thread(void *context)
{
    struct comm *comm = context;
    unsigned idle = 0;
    pthread_mutex_lock(&comm->lock);
    while (!comm->stop) {
        if (comm->active == 0 || comm->waiters > 0 || comm->status != STATUS_OK) {
            pthread_cond_wait(&comm->work, &comm->lock);
            idle = 0;
            continue;
        }
        bool moved = false;
        if (comm_progress(comm, &moved) >= 0 && !moved)
            (void)!(comm_idle(comm, ++idle));
        else
            idle = 0;
        if (atomic_load(&comm->wanted) > 0) {
            pthread_mutex_unlock(&comm->lock);
            while (atomic_load(&comm->wanted) > 0)
                clock_sleep_ns(20000); /* the lock is unfair: until whoever wants it has it */
            pthread_mutex_lock(&comm->lock);
        }
    }
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

/* ----------------------------------------------------------------------------------------------------------- open,
 * close */

static enum status world_fill(struct comm *comm)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, (size_t)comm->transport->size, sizeof(int)));
    comm->world = (struct team){
        .comm = comm, .id = 0, .rank = comm->transport->rank, .size = comm->transport->size, .ranks = memory};
    for (int r = 0; r < comm->world.size; r++)
        comm->world.ranks[r] = r;
    comm->teams = &comm->world;
    return STATUS_OK;
}

static enum status start_thread(struct comm *comm)
{
    const int error = pthread_create(&comm->thread, NULL, progress_thread, comm);
    if (error != 0)
        return fail(STATUS_INTERNAL, "comm: no progress thread: %s", strerror(error));
    comm->has_thread = true;
    return STATUS_OK;
}

enum status comm_open(const struct comm_request *request, struct comm **out)
{
    enum status status = STATUS_OK;
    void *memory = NULL;
    if (memory_zeroed(&memory, 1, sizeof(struct comm)) < 0) {
        request->transport->ops->close(request->transport);
        return STATUS_NO_MEMORY;
    }
    struct comm *comm = memory;
    comm->transport = request->transport;
    comm->job = request->job;
    comm->segment = request->segment > 0 ? request->segment : DEFAULT_SEGMENT;
    comm->window = request->window > 0 ? request->window : DEFAULT_WINDOW;
    comm->deadline = request->deadline > 0 ? request->deadline : DEFAULT_DEADLINE;
    comm->small_bytes = request->transport->eager_limit > 512 ? request->transport->eager_limit : 512;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->work, NULL);
    if (comm->window > 64 || comm->segment < 8)
        TRY_TO(done, fail(STATUS_USAGE, "comm: segment must be at least 8 bytes and window 1..64"));
    TRY_TO(done, world_fill(comm));
    for (int i = 0; i < POOL_BUFFERS; i++)
        TRY_TO(done, pool_post(comm));
    comm->progressed_ns = clock_ns();
    if (request->progress_thread && comm->transport->size > 1)
        TRY_TO(done, start_thread(comm));
    *out = comm;
done:
    if (status < 0)
        comm_close(comm);
    return status;
}

void comm_close(struct comm *comm)
{
    if (comm == NULL)
        return;
    if (comm->has_thread) {
        comm_enter(comm);
        comm->stop = true;
        pthread_cond_broadcast(&comm->work);
        comm_leave(comm);
        pthread_join(comm->thread, NULL);
    }
    comm->transport->ops->close(comm->transport); /* abandons what is flying */
    free_tasks(&comm->flying);
    for (int which = 0; which < PENDING_LISTS; which++)
        free_tasks(&comm->pending[which]);
    free_tasks(&comm->spare);
    while (comm->small_spares > 0)
        free(comm->small_spare[--comm->small_spares]);
    while (comm->landing_spares > 0)
        free(comm->landing_spare[--comm->landing_spares]);
    free(comm->small_spare);
    free(comm->landing_spare);
    early_free(&comm->early);
    early_free(&comm->world.early);
    free(comm->world.ranks);
    pthread_cond_destroy(&comm->work);
    pthread_mutex_destroy(&comm->lock);
    free(comm);
}

int comm_rank(const struct comm *comm)
{
    return comm->transport->rank;
}

int comm_size(const struct comm *comm)
{
    return comm->transport->size;
}

size_t comm_segment(const struct comm *comm)
{
    return comm->segment;
}

unsigned comm_window(const struct comm *comm)
{
    return comm->window;
}

const char *comm_transport(const struct comm *comm)
{
    return comm->transport->name;
}

void comm_describe(const struct comm *comm, struct text *text)
{
    comm->transport->ops->describe(comm->transport, text);
}

struct team *comm_world(struct comm *comm)
{
    return &comm->world;
}

/* ---- teams ---- */

int team_rank(const struct team *team)
{
    return team->rank;
}

int team_size(const struct team *team)
{
    return team->size;
}

static enum status check_ranks(const struct comm *comm, const int *ranks, int count, int *mine)
{
    *mine = -1;
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= comm->transport->size)
            return fail(STATUS_USAGE, "team: rank %d is not in 0..%d", ranks[i], comm->transport->size - 1);
        for (int j = 0; j < i; j++)
            if (ranks[j] == ranks[i])
                return fail(STATUS_USAGE, "team: rank %d stands twice", ranks[i]);
        if (ranks[i] == comm->transport->rank)
            *mine = i;
    }
    return *mine >= 0 ? STATUS_OK
                      : fail(STATUS_USAGE, "team: this worker, rank %d, is not in it", comm->transport->rank);
}

static enum status team_send(struct comm *comm, int peer, uint64_t value, const unsigned char *used, size_t bytes)
{
    struct wire_header header = {.class = WIRE_TEAM, .hash = comm->team_talk.hash, .sequence = value};
    return comm_send_small(comm, NULL, peer, &header, used, bytes);
}

static enum status team_await(struct comm *comm, int answers)
{
    unsigned idle = 0;
    for (struct early **at = &comm->early; *at != NULL;) {
        struct early *early = *at;
        if (early->header.class != WIRE_TEAM || early->header.hash != comm->team_talk.hash ||
            comm->team_talk.answers == answers) {
            at = &early->next;
            continue;
        }
        team_answer(comm, &early->header, early->payload);
        *at = early->next;
        free(early);
    }
    while (comm->team_talk.answers < answers) {
        bool moved = false;
        TRY(comm_progress(comm, &moved));
        idle = moved ? 0 : idle + 1;
        if (!moved)
            TRY(comm_idle(comm, idle));
    }
    return STATUS_OK;
}

static uint64_t lowest_free(const unsigned char used[TEAM_ID_BYTES])
{
    uint64_t id = 0;
    while (id < TEAM_IDS && (used[id / 8] >> (id % 8)) & 1)
        id++;
    return id;
}

/* All members agree on an id that none of them has in use: each tells member 0 which it has, and it takes the lowest. */
static enum status agree_on_id(struct comm *comm, const int *ranks, int count, int mine, uint64_t *id)
{
    enum status status = STATUS_OK;
    unsigned char *used = comm->team_talk.used;
    memset(used, 0, TEAM_ID_BYTES);
    for (const struct team *team = comm->teams; team != NULL; team = team->next)
        used[team->id / 8] = (unsigned char)(used[team->id / 8] | 1U << (team->id % 8));
    comm->team_talk.waiting = true;
    comm->team_talk.hash = wire_hash(WIRE_HASH_START, ranks, (size_t)count * sizeof *ranks);
    comm->team_talk.answers = 0;
    comm->progressed_ns = clock_ns();
    if (mine == 0) {
        TRY_TO(done, team_await(comm, count - 1));
        comm->team_talk.value = lowest_free(used);
        for (int i = 1; i < count; i++)
            TRY_TO(done, team_send(comm, ranks[i], comm->team_talk.value, NULL, 0));
    } else {
        TRY_TO(done, team_send(comm, ranks[0], 0, used, TEAM_ID_BYTES));
        TRY_TO(done, team_await(comm, 1));
    }
    *id = comm->team_talk.value;
    if (*id >= TEAM_IDS)
        status = fail(STATUS_REFUSED, "team: more than %d teams at once: destroy some first", TEAM_IDS - 1);
done:
    comm->team_talk.waiting = false;
    return status;
}

/* Small messages for the new team that came before it. */
static enum status adopt_early(struct comm *comm, struct team *team)
{
    for (struct early **at = &comm->early; *at != NULL;) {
        struct early *early = *at;
        if (early->header.class == WIRE_TEAM || early->header.team != team->id) {
            at = &early->next;
            continue;
        }
        TRY(early_add(&team->early, &early->header, early->payload));
        *at = early->next;
        free(early);
    }
    return STATUS_OK;
}

enum status team_create(struct comm *comm, const int *ranks, int count, struct team **out)
{
    enum status status = STATUS_OK;
    int mine = -1;
    uint64_t id = 0;
    void *memory = NULL;
    struct team *team = NULL;
    if (count < 1)
        return fail(STATUS_USAGE, "team: at least one worker is needed");
    TRY(check_ranks(comm, ranks, count, &mine));
    TRY(memory_zeroed(&memory, 1, sizeof(struct team)));
    team = memory;
    comm_enter(comm);
    comm->waiters++;
    TRY_TO(done, comm_failed(comm));
    TRY_TO(done, memory_zeroed(&memory, (size_t)count, sizeof(int)));
    team->ranks = memory;
    memcpy(team->ranks, ranks, (size_t)count * sizeof(int));
    TRY_TO(done, agree_on_id(comm, ranks, count, mine, &id));
    team->comm = comm;
    team->id = (uint8_t)id;
    team->rank = mine;
    team->size = count;
    TRY_TO(done, adopt_early(comm, team));
    team->next = comm->teams;
    comm->teams = team;
    *out = team;
done:
    comm->waiters--;
    pthread_cond_broadcast(&comm->work);
    comm_leave(comm);
    if (status < 0) {
        early_free(&team->early);
        free(team->ranks);
        free(team);
    }
    return status;
}

void team_destroy(struct team *team)
{
    if (team == NULL || team == &team->comm->world)
        return;
    struct comm *comm = team->comm;
    comm_enter(comm);
    for (struct team **at = &comm->teams; *at != NULL; at = &(*at)->next) {
        if (*at == team) {
            *at = team->next;
            break;
        }
    }
    comm_leave(comm);
    early_free(&team->early);
    free(team->ranks);
    free(team);
}
