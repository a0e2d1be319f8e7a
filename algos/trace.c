/* trace.c - all workers' progressions against each other (trace.h). */
#include "algos/trace.h"

#include <stdlib.h>
#include <string.h>

#include "algos/progression.h"
#include "base/memory.h"

#define NONE UINT32_MAX
#define LOOKAHEAD 16
#define JOINED_WINDOW 64

/* A message under way at one end: the actions of its ops. */
struct message {
    int worker;
    struct action *action;
    size_t actions, capacity;
    uint32_t next; /* in its channel, or free */
};

/* What has arrived for a RECV_REDUCE. */
struct arrival {
    uint64_t sequence;
    uint32_t event;
};

/* Messages from one worker to another on a lane. Of the arrays, [0] is the sender's end and [1] the receiver's. */
struct channel {
    bool used;
    int src, dst;
    uint16_t lane;
    uint32_t open[2];           /* still being joined; NONE: none                   */
    size_t left[2];             /* ops of the latest message that have not been started */
    uint32_t first[2], last[2]; /* complete but for the other end, in order          */
    uint32_t sequence[2];       /* of the next message                               */
    struct arrival *arrival;
    size_t arrivals, capacity;
};

/* Who has touched a chunk of the vector or of scratch. */
struct cell {
    uint32_t writer;  /* event, NONE: none  */
    uint32_t *reader; /* since             */
    size_t readers, capacity;
};

struct worker {
    struct progression *progression;
    struct cell *cell; /* [(1 + scratch) * chunks] */
    bool awake;
};

struct maker {
    const struct shape *shape;
    struct trace *trace;
    bool joined;
    size_t count, events, cells;
    struct worker *worker;
    struct channel *channel; /* open addressing; channels is a power of two */
    size_t channels, channels_used;
    struct message *message;
    size_t messages, message_capacity;
    uint32_t free_message;
    int *queue; /* [workers] ring of those that may start more */
    int head, queued;
};

/* ---- channels and messages ---- */

static size_t channel_place(const struct channel *table, size_t size, int src, int dst, uint16_t lane)
{
    const uint64_t key = (((uint64_t)lane << 48) ^ ((uint64_t)(uint32_t)src << 24) ^ (uint32_t)dst);
    size_t i = (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (size - 1);
    while (table[i].used && (table[i].src != src || table[i].dst != dst || table[i].lane != lane))
        i = (i + 1) & (size - 1);
    return i;
}

static enum status channels_grow(struct maker *m)
{
    const size_t size = m->channels == 0 ? 64 : 2 * m->channels;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, size, sizeof(struct channel)));
    struct channel *table = memory;
    for (size_t i = 0; i < m->channels; i++) {
        const struct channel *c = &m->channel[i];
        if (c->used)
            table[channel_place(table, size, c->src, c->dst, c->lane)] = *c;
    }
    free(m->channel);
    m->channel = table;
    m->channels = size;
    return STATUS_OK;
}

static enum status channel_find(struct maker *m, int src, int dst, uint16_t lane, struct channel **channel)
{
    if ((m->channels_used + 1) * 2 > m->channels)
        TRY(channels_grow(m));
    struct channel *c = &m->channel[channel_place(m->channel, m->channels, src, dst, lane)];
    if (!c->used) {
        *c = (struct channel){.used = true, .src = src, .dst = dst, .lane = lane};
        for (int end = 0; end < 2; end++)
            c->open[end] = c->first[end] = c->last[end] = NONE;
        m->channels_used++;
    }
    *channel = c;
    return STATUS_OK;
}

static enum status message_take(struct maker *m, int worker, uint32_t *index)
{
    if (m->free_message == NONE) {
        void *memory = m->message;
        TRY(memory_grow(&memory, &m->message_capacity, m->messages + 1, sizeof(struct message)));
        m->message = memory;
        m->message[m->messages] = (struct message){.next = NONE};
        m->free_message = (uint32_t)m->messages++;
    }
    *index = m->free_message;
    struct message *message = &m->message[*index];
    m->free_message = message->next;
    message->next = NONE;
    message->worker = worker;
    message->actions = 0;
    return STATUS_OK;
}

static enum status message_append(struct message *message, const struct action *action)
{
    void *memory = message->action;
    TRY(memory_grow(&memory, &message->capacity, message->actions + 1, sizeof(struct action)));
    message->action = memory;
    message->action[message->actions++] = *action;
    return STATUS_OK;
}

/* ---- events ---- */

static enum status too_many(const struct maker *m)
{
    return fail(STATUS_REFUSED,
                "%s on %d workers has more than %zu events: take fewer workers, or an algorithm of fewer rounds",
                m->shape->algorithm->name, m->shape->workers, TRACE_MOST_EVENTS);
}

static enum status add_event(struct maker *m, int rank, const struct trace_event *event)
{
    struct trace_worker *worker = &m->trace->worker[rank];
    if (++m->events > TRACE_MOST_EVENTS)
        return too_many(m);
    void *memory = worker->event;
    TRY(memory_grow(&memory, &worker->event_capacity, worker->events + 1, sizeof(struct trace_event)));
    worker->event = memory;
    worker->event[worker->events] = *event;
    worker->event[worker->events++].follows = worker->followed;
    return STATUS_OK;
}

/* The latest event of the worker follows `earlier`. */
static enum status follow(struct trace_worker *worker, uint32_t earlier)
{
    struct trace_event *event = &worker->event[worker->events - 1];
    if (earlier == NONE || earlier == worker->events - 1)
        return STATUS_OK;
    for (size_t i = event->follows; i < worker->followed; i++)
        if (worker->follow[i] == earlier)
            return STATUS_OK;
    void *memory = worker->follow;
    TRY(memory_grow(&memory, &worker->follow_capacity, worker->followed + 1, sizeof(uint32_t)));
    worker->follow = memory;
    worker->follow[worker->followed++] = earlier;
    event->count++;
    return STATUS_OK;
}

/* It reads or writes a range (rule 2). */
static enum status touch(struct maker *m, int rank, const struct range *range, bool writes)
{
    struct trace_worker *worker = &m->trace->worker[rank];
    const uint32_t event = (uint32_t)(worker->events - 1);
    const size_t first = range->chunk + (range->buffer == BUFFER_SCRATCH ? m->shape->chunks : 0);
    for (size_t c = first; c < first + range->chunks; c++) {
        struct cell *cell = &m->worker[rank].cell[c];
        TRY(follow(worker, cell->writer));
        if (!writes) {
            void *memory = cell->reader;
            TRY(memory_grow(&memory, &cell->capacity, cell->readers + 1, sizeof(uint32_t)));
            cell->reader = memory;
            cell->reader[cell->readers++] = event;
            continue;
        }
        for (size_t i = 0; i < cell->readers; i++)
            TRY(follow(worker, cell->reader[i]));
        cell->readers = 0;
        cell->writer = event;
    }
    return STATUS_OK;
}

/* ---- starting and completing ---- */

static void wake(struct maker *m, int rank)
{
    if (!m->worker[rank].awake) {
        m->worker[rank].awake = true;
        m->queue[(m->head + m->queued++) % m->shape->workers] = rank;
    }
}

static void complete(struct maker *m, uint32_t index)
{
    struct message *message = &m->message[index];
    for (size_t i = 0; i < message->actions; i++)
        progression_complete(m->worker[message->worker].progression, &message->action[i]);
    wake(m, message->worker);
    message->next = m->free_message;
    m->free_message = index;
}

static uint32_t take_first(struct maker *m, struct channel *channel, int end)
{
    const uint32_t index = channel->first[end];
    channel->first[end] = m->message[index].next;
    return index;
}

/* The latest event is that of the message: what it touches, or what has arrived by it. */
static enum status touch_message(struct maker *m, struct channel *channel, const struct message *message)
{
    struct trace_worker *worker = &m->trace->worker[message->worker];
    for (size_t i = 0; i < message->actions; i++) {
        const struct op *op = &message->action[i].op;
        if (op->kind == OP_SEND) {
            TRY(touch(m, message->worker, &op->src, false));
        } else if (op->kind == OP_RECV) {
            TRY(touch(m, message->worker, &op->dst, true));
        } else {
            void *memory = channel->arrival;
            TRY(memory_grow(&memory, &channel->capacity, channel->arrivals + 1, sizeof(struct arrival)));
            channel->arrival = memory;
            channel->arrival[channel->arrivals++] =
                (struct arrival){.sequence = message->action[i].sequence, .event = (uint32_t)(worker->events - 1)};
        }
    }
    return STATUS_OK;
}

static size_t elements_of(const struct message *message)
{
    size_t elements = 0;
    for (size_t i = 0; i < message->actions; i++)
        elements += message->action[i].op.kind == OP_SEND ? message->action[i].src.count : message->action[i].dst.count;
    return elements;
}

/* All ops of the message have been started: it is an event, and complete if it is at the other end, too. */
static enum status close_message(struct maker *m, struct channel *channel, int end)
{
    const uint32_t index = channel->open[end];
    struct message *message = &m->message[index];
    const struct trace_event event = {.kind = end == 0 ? TRACE_SEND : TRACE_RECV,
                                      .op = message->action[0].op,
                                      .elements = elements_of(message),
                                      .sequence = channel->sequence[end]++};
    channel->open[end] = NONE;
    TRY(add_event(m, message->worker, &event));
    TRY(touch_message(m, channel, message));
    if (channel->first[end] == NONE)
        channel->first[end] = index;
    else
        m->message[channel->last[end]].next = index;
    channel->last[end] = index;
    while (channel->first[0] != NONE && channel->first[1] != NONE) {
        const uint32_t send = take_first(m, channel, 0), recv = take_first(m, channel, 1);
        if (elements_of(&m->message[send]) != elements_of(&m->message[recv]))
            return fail(STATUS_FORMAT, "%s: a message from worker %d to %d is joined at one end only",
                        m->shape->algorithm->name, channel->src, channel->dst);
        complete(m, send);
        complete(m, recv);
    }
    return STATUS_OK;
}

/* Counts the ops with elements from `wanted` on to the end of its message. */
struct counter {
    struct sink sink; /* first */
    const struct op *wanted;
    size_t count; /* elements of the vector */
    uint32_t chunks;
    bool goes_on;
    size_t ops;
};

static enum status count_op(struct sink *sink, const struct op *op)
{
    struct counter *counter = (struct counter *)sink;
    const struct op *wanted = counter->wanted;
    const struct range *range = op->kind == OP_SEND ? &op->src : &op->dst;
    const struct range *first = wanted->kind == OP_SEND ? &wanted->src : &wanted->dst;
    const bool begins = counter->ops == 0 && op->kind == wanted->kind && op->peer == wanted->peer &&
                        op->lane == wanted->lane && range->buffer == first->buffer && range->chunk == first->chunk &&
                        range->chunks == first->chunks;
    if (!begins && !counter->goes_on)
        return STATUS_OK;
    counter->ops += range_elements(range, counter->count, counter->chunks) > 0;
    counter->goes_on = (op->flags & OP_MORE) != 0;
    return STATUS_OK;
}

/* How many ops with elements a message has that begins with this action. */
static enum status count_ops(const struct maker *m, int rank, const struct op *op, size_t *ops)
{
    *ops = 1;
    if (!m->joined || (op->flags & OP_MORE) == 0)
        return STATUS_OK;
    struct counter counter = {
        .sink = {.op = count_op, .round = op->round}, .wanted = op, .count = m->count, .chunks = m->shape->chunks};
    TRY(m->shape->algorithm->emit(m->shape, rank, op->round, &counter.sink));
    *ops = counter.ops > 0 ? counter.ops : 1;
    return STATUS_OK;
}

static enum status start_message(struct maker *m, int rank, const struct action *action)
{
    const int end = action->kind == ACTION_POST, peer = action->op.peer;
    struct channel *channel = NULL;
    TRY(channel_find(m, end ? peer : rank, end ? rank : peer, action->op.lane, &channel));
    if (action->first)
        TRY(count_ops(m, rank, &action->op, &channel->left[end]));
    if (channel->open[end] == NONE)
        TRY(message_take(m, rank, &channel->open[end]));
    TRY(message_append(&m->message[channel->open[end]], action));
    if (channel->left[end] > 0)
        channel->left[end]--;
    if (channel->left[end] > 0 && m->message[channel->open[end]].actions < JOINED_WINDOW)
        return STATUS_OK;
    return close_message(m, channel, end);
}

static enum status start_reduce(struct maker *m, int rank, const struct action *action)
{
    const struct op *op = &action->op;
    struct trace_worker *worker = &m->trace->worker[rank];
    const struct trace_event event = {.kind = TRACE_REDUCE, .op = *op, .elements = action->dst.count};
    TRY(add_event(m, rank, &event));
    if (op->kind == OP_RECV_REDUCE) {
        struct channel *channel = NULL;
        TRY(channel_find(m, op->peer, rank, op->lane, &channel));
        for (size_t i = 0; i < channel->arrivals; i++)
            if (channel->arrival[i].sequence == action->sequence) {
                TRY(follow(worker, channel->arrival[i].event));
                channel->arrival[i] = channel->arrival[--channel->arrivals];
            }
    } else if (op->kind != OP_SCALE) {
        TRY(touch(m, rank, &op->src, false));
    }
    TRY(touch(m, rank, &op->dst, true));
    progression_complete(m->worker[rank].progression, action);
    return STATUS_OK;
}

/* ---- driving ---- */

static enum status run_worker(struct maker *m, int rank)
{
    struct action action;
    for (;;) {
        const enum status status = progression_next(m->worker[rank].progression, &action);
        if (status != STATUS_OK)
            return status < 0 ? status : STATUS_OK;
        if (action.kind == ACTION_SEND || action.kind == ACTION_POST)
            TRY(start_message(m, rank, &action));
        else
            TRY(start_reduce(m, rank, &action));
    }
}

static enum status run(struct maker *m)
{
    for (int r = 0; r < m->shape->workers; r++)
        wake(m, r);
    while (m->queued > 0) {
        const int rank = m->queue[m->head];
        m->head = (m->head + 1) % m->shape->workers;
        m->queued--;
        m->worker[rank].awake = false;
        TRY(run_worker(m, rank));
    }
    for (int r = 0; r < m->shape->workers; r++)
        if (!progression_finished(m->worker[r].progression))
            return fail(STATUS_FORMAT, "%s: worker %d does not finish: chorale verify names the cause",
                        m->shape->algorithm->name, r);
    return STATUS_OK;
}

/* ---- the whole ---- */

static enum status make_worker(struct maker *m, int rank, size_t count)
{
    const struct progression_params params = {.count = count,
                                              .segment = count > 0 ? count : 1,
                                              .window = m->joined ? JOINED_WINDOW : 1,
                                              .lookahead = LOOKAHEAD,
                                              .aliased = true};
    void *memory = NULL;
    TRY(progression_create(m->shape, rank, &params, &m->worker[rank].progression));
    TRY(memory_zeroed(&memory, m->cells, sizeof(struct cell)));
    m->worker[rank].cell = memory;
    for (size_t c = 0; c < m->cells; c++)
        m->worker[rank].cell[c].writer = NONE;
    return STATUS_OK;
}

/* Every op makes at least one event, unless it is empty or only orders. */
struct tally {
    struct sink sink; /* first */
    const struct maker *maker;
    size_t ops;
};

static enum status tally_op(struct sink *sink, const struct op *op)
{
    struct tally *tally = (struct tally *)sink;
    const struct maker *m = tally->maker;
    if (op->kind == OP_WAIT || op->kind == OP_FENCE)
        return STATUS_OK;
    tally->ops += range_elements(op->kind == OP_SEND ? &op->src : &op->dst, m->count, m->shape->chunks) > 0;
    if (tally->ops > TRACE_MOST_EVENTS)
        return too_many(m);
    return STATUS_OK;
}

/* Refuse before the work, not after it. */
static enum status check_size(const struct maker *m)
{
    struct tally tally = {.sink = {.op = tally_op}, .maker = m};
    for (int r = 0; r < m->shape->workers; r++)
        for (uint32_t round = 0; round < m->shape->rounds; round++) {
            tally.sink.round = round;
            tally.sink.lane = 0;
            TRY(m->shape->algorithm->emit(m->shape, r, round, &tally.sink));
        }
    return STATUS_OK;
}

static enum status make(struct maker *m, size_t count)
{
    TRY(check_size(m));
    const size_t workers = (size_t)m->shape->workers;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, workers, sizeof(struct trace_worker)));
    m->trace->worker = memory;
    TRY(memory_zeroed(&memory, workers, sizeof(int)));
    m->queue = memory;
    TRY(memory_zeroed(&memory, workers, sizeof(struct worker)));
    m->worker = memory;
    if (m->cells > TRACE_MOST_EVENTS * 8 / workers)
        return fail(STATUS_REFUSED, "%s on %zu workers has %zu chunks on each of them: too many for a trace",
                    m->shape->algorithm->name, workers, m->cells);
    for (size_t r = 0; r < workers; r++)
        TRY(make_worker(m, (int)r, count));
    return run(m);
}

static void release_maker(struct maker *m)
{
    for (int r = 0; m->worker != NULL && r < m->shape->workers; r++) {
        progression_destroy(m->worker[r].progression);
        for (size_t c = 0; m->worker[r].cell != NULL && c < m->cells; c++)
            free(m->worker[r].cell[c].reader);
        free(m->worker[r].cell);
    }
    for (size_t i = 0; i < m->messages; i++)
        free(m->message[i].action);
    for (size_t i = 0; i < m->channels; i++)
        free(m->channel[i].arrival);
    free(m->worker);
    free(m->message);
    free(m->channel);
    free(m->queue);
}

enum status trace_make(const struct shape *shape, size_t count, bool joined, struct trace *trace)
{
    struct maker m = {.shape = shape,
                      .trace = trace,
                      .joined = joined,
                      .count = count,
                      .cells = (size_t)shape->chunks * (1 + (size_t)shape->scratch),
                      .free_message = NONE};
    *trace = (struct trace){.shape = shape};
    const enum status status = make(&m, count);
    release_maker(&m);
    if (status < 0)
        trace_release(trace);
    return status;
}

void trace_release(struct trace *trace)
{
    for (int r = 0; trace->worker != NULL && r < trace->shape->workers; r++) {
        free(trace->worker[r].event);
        free(trace->worker[r].follow);
    }
    free(trace->worker);
    *trace = (struct trace){.shape = trace->shape};
}
