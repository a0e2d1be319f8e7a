/* engine.c - one run of a schedule on simulated time (sim.h).
 *
 * Each worker's progression says what may start; here it is decided how long that takes. Waiting for a port or a
 * processor is computed (it is free from a known time on), never polled, so a segment costs four events:
 *
 *   SEND   port of the sender free ---------- bytes ----------> COMPLETE (sender may overwrite)
 *            \-- latency --> HEAD, port of the receiver free -- bytes --> DELIVERED: COMPLETE of the POST
 *                                                                           REDUCE, processor free -- bytes -->
 * COMPLETE
 *
 * A message and its receive meet in a channel (sender, receiver, lane), which keeps order: whichever comes first waits.
 */
#include <stdlib.h>

#include "algos/progression.h"
#include "base/clock.h"
#include "base/memory.h"
#include "sim/event_queue.h"
#include "sim/sim.h"

#define NONE UINT32_MAX
#define LOOKAHEAD                                                                                                      \
    8 /* ops that a worker takes in ahead of what is complete: more changes times by little and costs time */
#define DEFAULT_WINDOW 4
#define DESCRIBED_OPS 4

enum event_kind { EVENT_START, EVENT_COMPLETE, EVENT_HEAD, EVENT_DELIVERED };

struct worker {
    struct progression *progression; /* NULL: has not started, or is done                  */
    double processor_free_s;
    bool done;
};

/* A segment that a progression has started and that is not complete. */
struct flight {
    struct action action;
    int worker;
    uint32_t channel; /* messages                                          */
    uint32_t next;    /* in a channel's queue, or in the list of free ones */
    double ready_s;   /* SEND: when the processor has let go of it         */
};

/* A segment between two ports. */
struct message {
    uint32_t channel, round;
    uint32_t post; /* the flight it is for; NONE: whichever is first in the channel */
    uint32_t next; /* in the list of free ones                                      */
    double occupies_s;
};

struct queue {
    uint32_t first, last; /* flights */
};

struct channel {
    int from, to; /* from < 0: an empty place of the table          */
    uint16_t lane;
    uint64_t arrived;      /* segments delivered before their POST                                  */
    uint64_t unbound;      /* rendezvous: segments under way that have left without a POST          */
    struct queue posts;    /* receives that wait for their segment                                  */
    struct queue promised; /* rendezvous: those among them whose segment is under way               */
    struct queue sends;    /* rendezvous: sends that wait for a POST, and what is joined to them    */
};

struct engine {
    const struct sim_request *request;
    const struct platform *platform;
    const struct layout *layout;
    const struct shape *shape;
    struct progression_params params;
    size_t size; /* bytes of an element */
    bool rendezvous;

    struct worker *worker;
    /* When a port is free: first those of the workers, then those of the nodes. */
    double *transmit_free_s, *receive_free_s;
    struct event_queue events;

    struct flight *flight;
    size_t flights, flight_capacity;
    struct message *message;
    size_t messages, message_capacity;
    uint32_t free_flight, free_message;

    struct channel *channel; /* an array; found through the table */
    size_t channels, channel_capacity;
    uint32_t *table; /* open addressing, a power of two: place -> channel */
    size_t table_size;

    int unfinished;
    double *done_s; /* may be NULL */
    struct sim_result *result;
};

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* ---- records ---- */

static enum status flight_take(struct engine *engine, const struct action *action, int worker, uint32_t *index)
{
    if (engine->free_flight == NONE) {
        void *memory = engine->flight;
        TRY(memory_grow(&memory, &engine->flight_capacity, engine->flights + 1, sizeof(struct flight)));
        engine->flight = memory;
        engine->flight[engine->flights].next = NONE;
        engine->free_flight = (uint32_t)engine->flights++;
    }
    *index = engine->free_flight;
    struct flight *flight = &engine->flight[*index];
    engine->free_flight = flight->next;
    flight->action = *action;
    flight->worker = worker;
    flight->channel = NONE;
    flight->next = NONE;
    return STATUS_OK;
}

static void flight_drop(struct engine *engine, uint32_t index)
{
    engine->flight[index].next = engine->free_flight;
    engine->free_flight = index;
}

static enum status message_take(struct engine *engine, uint32_t *index)
{
    if (engine->free_message == NONE) {
        void *memory = engine->message;
        TRY(memory_grow(&memory, &engine->message_capacity, engine->messages + 1, sizeof(struct message)));
        engine->message = memory;
        engine->message[engine->messages].next = NONE;
        engine->free_message = (uint32_t)engine->messages++;
    }
    *index = engine->free_message;
    engine->free_message = engine->message[*index].next;
    return STATUS_OK;
}

static void message_drop(struct engine *engine, uint32_t index)
{
    engine->message[index].next = engine->free_message;
    engine->free_message = index;
}

static void queue_append(struct engine *engine, struct queue *queue, uint32_t flight)
{
    engine->flight[flight].next = NONE;
    if (queue->first == NONE)
        queue->first = flight;
    else
        engine->flight[queue->last].next = flight;
    queue->last = flight;
}

/* NONE when it is empty. */
static uint32_t queue_take(struct engine *engine, struct queue *queue)
{
    const uint32_t flight = queue->first;
    if (flight != NONE)
        queue->first = engine->flight[flight].next;
    return flight;
}

/* ---- channels ---- */

static size_t channel_hash(int from, int to, uint16_t lane)
{
    uint64_t key = ((uint64_t)(uint32_t)from << 32 | (uint32_t)to) * UINT64_C(0x9e3779b97f4a7c15);
    key = (key ^ key >> 32 ^ lane) * UINT64_C(0xd6e8feb86659fd93);
    return (size_t)(key >> 32);
}

/* Where the channel is in the table, or the empty place for it. */
static size_t table_place(const struct engine *engine, int from, int to, uint16_t lane)
{
    size_t place = channel_hash(from, to, lane) & (engine->table_size - 1);
    for (; engine->table[place] != NONE; place = (place + 1) & (engine->table_size - 1)) {
        const struct channel *channel = &engine->channel[engine->table[place]];
        if (channel->from == from && channel->to == to && channel->lane == lane)
            break;
    }
    return place;
}

static enum status table_create(struct engine *engine, size_t size)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, size, sizeof(uint32_t)));
    free(engine->table);
    engine->table = memory;
    engine->table_size = size;
    for (size_t i = 0; i < size; i++)
        engine->table[i] = NONE;
    for (size_t i = 0; i < engine->channels; i++) {
        const struct channel *channel = &engine->channel[i];
        engine->table[table_place(engine, channel->from, channel->to, channel->lane)] = (uint32_t)i;
    }
    return STATUS_OK;
}

static enum status channel_find(struct engine *engine, int from, int to, uint16_t lane, uint32_t *index)
{
    size_t place = table_place(engine, from, to, lane);
    if (engine->table[place] == NONE) {
        if ((engine->channels + 1) * 2 > engine->table_size) {
            TRY(table_create(engine, engine->table_size * 2));
            place = table_place(engine, from, to, lane);
        }
        void *memory = engine->channel;
        TRY(memory_grow(&memory, &engine->channel_capacity, engine->channels + 1, sizeof(struct channel)));
        engine->channel = memory;
        engine->channel[engine->channels] = (struct channel){.from = from,
                                                             .to = to,
                                                             .lane = lane,
                                                             .posts = {NONE, NONE},
                                                             .promised = {NONE, NONE},
                                                             .sends = {NONE, NONE}};
        engine->table[place] = (uint32_t)engine->channels++;
    }
    *index = engine->table[place];
    return STATUS_OK;
}

/* ---- time ---- */

static double bytes_of(const struct engine *engine, const struct span *span)
{
    return (double)span->count * (double)engine->size;
}

/* Keep the worker's processor for `seconds` from `from_s` on, or from when it is free. Returns when that is over. */
static double use_processor(struct engine *engine, int worker, double from_s, double seconds)
{
    struct worker *at = &engine->worker[worker];
    at->processor_free_s = later(from_s, at->processor_free_s) + seconds;
    return at->processor_free_s;
}

struct route {
    const struct link *link;
    size_t from, to; /* ports */
};

static struct route route_of(const struct engine *engine, const struct channel *channel)
{
    const int *node_of = engine->layout->node_of;
    const size_t workers = (size_t)engine->shape->workers;
    if (node_of[channel->from] == node_of[channel->to])
        return (struct route){&engine->platform->intra, (size_t)channel->from, (size_t)channel->to};
    return (struct route){&engine->platform->inter, workers + (size_t)node_of[channel->from],
                          workers + (size_t)node_of[channel->to]};
}

static enum status push(struct engine *engine, double time_s, enum event_kind kind, uint32_t record)
{
    return event_queue_push(&engine->events, time_s, 0, kind, record);
}

/* What travels of a span. */
static double wire_bytes(const struct engine *engine, const struct span *span)
{
    const double ratio = engine->request->wire_ratio;
    return bytes_of(engine, span) * (ratio > 0 ? ratio : 1);
}

/* ---- what a progression starts ---- */

/* Put the segment of `send` on its way; `post` is its receive, or NONE when that is found on arrival. */
static enum status transfer(struct engine *engine, uint32_t send, uint32_t post, double from_s)
{
    const struct flight *flight = &engine->flight[send];
    const struct route route = route_of(engine, &engine->channel[flight->channel]);
    const double occupies_s = wire_bytes(engine, &flight->action.src) * route.link->seconds_per_byte;
    const double begin_s = later(from_s, engine->transmit_free_s[route.from]);
    engine->transmit_free_s[route.from] = begin_s + occupies_s;
    uint32_t index;
    TRY(message_take(engine, &index));
    engine->message[index] = (struct message){.channel = flight->channel,
                                              .round = flight->action.op.round,
                                              .post = post,
                                              .next = NONE,
                                              .occupies_s = occupies_s};
    TRY(event_queue_push(&engine->events, begin_s + route.link->latency_s, flight->action.op.round, EVENT_HEAD, index));
    return push(engine, begin_s + occupies_s, EVENT_COMPLETE, send);
}

/* The parts of a joined message leave as one: the processor is asked once. */
static bool begins_message(const struct action *action)
{
    return action->first || action->segment > 0;
}

/* Rendezvous: a message goes when its receive is posted, and what is joined to it goes with it. */
static enum status meet(struct engine *engine, uint32_t send, double from_s)
{
    struct channel *channel = &engine->channel[engine->flight[send].channel];
    const uint32_t post = queue_take(engine, &channel->posts);
    if (post == NONE && begins_message(&engine->flight[send].action)) {
        queue_append(engine, &channel->sends, send);
        return STATUS_OK;
    }
    channel->unbound += post == NONE;
    return transfer(engine, send, post, from_s);
}

static enum status start_send(struct engine *engine, int worker, const struct action *action, double now_s)
{
    uint32_t send;
    uint32_t channel;
    TRY(flight_take(engine, action, worker, &send));
    TRY(channel_find(engine, worker, action->op.peer, action->op.lane, &channel));
    engine->flight[send].channel = channel;
    engine->result->messages += action->first;
    engine->result->bytes += (size_t)(wire_bytes(engine, &action->src) + 0.5);
    double ready_s = now_s;
    if (engine->platform->send_overhead_s > 0 && begins_message(action))
        ready_s = use_processor(engine, worker, now_s, engine->platform->send_overhead_s);
    engine->flight[send].ready_s = ready_s;
    if (!engine->rendezvous)
        return transfer(engine, send, NONE, ready_s);
    if (engine->channel[channel].sends.first != NONE) { /* in order */
        queue_append(engine, &engine->channel[channel].sends, send);
        return STATUS_OK;
    }
    return meet(engine, send, ready_s);
}

static void complete(struct engine *engine, uint32_t index)
{
    progression_complete(engine->worker[engine->flight[index].worker].progression, &engine->flight[index].action);
    flight_drop(engine, index);
}

/* The segment for `post` is there; *completed tells whether that is all, or the processor has to be waited for. */
static enum status receive(struct engine *engine, uint32_t post, double now_s, bool *completed)
{
    const double overhead_s = engine->platform->receive_overhead_s;
    *completed = overhead_s <= 0 || !begins_message(&engine->flight[post].action);
    if (*completed) {
        complete(engine, post);
        return STATUS_OK;
    }
    return push(engine, use_processor(engine, engine->flight[post].worker, now_s, overhead_s), EVENT_COMPLETE, post);
}

static enum status start_post(struct engine *engine, int worker, const struct action *action, double now_s)
{
    uint32_t post;
    uint32_t index;
    bool completed;
    TRY(flight_take(engine, action, worker, &post));
    TRY(channel_find(engine, action->op.peer, worker, action->op.lane, &index));
    struct channel *channel = &engine->channel[index];
    engine->flight[post].channel = index;
    if (channel->arrived > 0) {
        channel->arrived--;
        return receive(engine, post, now_s, &completed);
    }
    if (channel->unbound > 0) {
        channel->unbound--;
        queue_append(engine, &channel->promised, post);
        return STATUS_OK;
    }
    const uint32_t send = queue_take(engine, &channel->sends);
    if (send == NONE) {
        queue_append(engine, &channel->posts, post);
        return STATUS_OK;
    }
    TRY(transfer(engine, send, post, later(now_s, engine->flight[send].ready_s)));
    channel = &engine->channel[index];
    while (channel->sends.first != NONE && !begins_message(&engine->flight[channel->sends.first].action)) {
        const uint32_t joined = queue_take(engine, &channel->sends);
        TRY(meet(engine, joined, later(now_s, engine->flight[joined].ready_s)));
    }
    return STATUS_OK;
}

/* Reductions, and local copies and scalings at the same price: all read and write each byte once. */
static enum status start_compute(struct engine *engine, int worker, const struct action *action, double now_s)
{
    uint32_t index;
    TRY(flight_take(engine, action, worker, &index));
    const double seconds = bytes_of(engine, &action->dst) * engine->platform->reduce_s_per_byte;
    return push(engine, use_processor(engine, worker, now_s, seconds), EVENT_COMPLETE, index);
}

static enum status start(struct engine *engine, int worker, const struct action *action, double now_s)
{
    switch (action->kind) {
    case ACTION_SEND:
        return start_send(engine, worker, action, now_s);
    case ACTION_POST:
        return start_post(engine, worker, action, now_s);
    case ACTION_REDUCE:
    case ACTION_LOCAL:
        break;
    }
    return start_compute(engine, worker, action, now_s);
}

static void worker_done(struct engine *engine, int worker, double now_s)
{
    struct worker *at = &engine->worker[worker];
    struct sim_result *result = engine->result;
    at->done = true;
    progression_destroy(at->progression);
    at->progression = NULL;
    result->first_s = engine->unfinished == engine->shape->workers ? now_s : result->first_s;
    result->time_s = now_s; /* events come in order of time */
    engine->unfinished--;
    if (engine->done_s != NULL)
        engine->done_s[worker] = now_s;
}

/* Start all that the worker may start now. */
static enum status advance(struct engine *engine, int worker, double now_s)
{
    struct progression *progression = engine->worker[worker].progression;
    struct action action;
    for (;;) {
        const enum status status = progression_next(progression, &action);
        if (status == STATUS_AGAIN)
            break;
        if (status < 0)
            return fail_context(status, "worker %d", worker);
        TRY(start(engine, worker, &action, now_s));
    }
    if (progression_finished(progression))
        worker_done(engine, worker, now_s);
    return STATUS_OK;
}

/* ---- events ---- */

static enum status on_start(struct engine *engine, const struct event *event)
{
    const int worker = (int)event->record;
    TRY(progression_create(engine->shape, worker, &engine->params, &engine->worker[worker].progression));
    return advance(engine, worker, event->time_s);
}

static enum status on_complete(struct engine *engine, const struct event *event)
{
    const int worker = engine->flight[event->record].worker;
    complete(engine, event->record);
    return advance(engine, worker, event->time_s);
}

static enum status on_head(struct engine *engine, const struct event *event)
{
    const struct message *message = &engine->message[event->record];
    const struct route route = route_of(engine, &engine->channel[message->channel]);
    double *free_s = &engine->receive_free_s[route.to];
    *free_s = later(event->time_s, *free_s) + message->occupies_s;
    return event_queue_push(&engine->events, *free_s, message->round, EVENT_DELIVERED, event->record);
}

static enum status on_delivered(struct engine *engine, const struct event *event)
{
    const struct message *message = &engine->message[event->record];
    struct channel *channel = &engine->channel[message->channel];
    struct queue *queue = engine->rendezvous ? &channel->promised : &channel->posts;
    const uint32_t post = message->post != NONE ? message->post : queue_take(engine, queue);
    message_drop(engine, event->record);
    if (post == NONE) {
        channel->unbound -= engine->rendezvous;
        channel->arrived++;
        return STATUS_OK;
    }
    const int worker = engine->flight[post].worker;
    bool completed;
    TRY(receive(engine, post, event->time_s, &completed));
    return completed ? advance(engine, worker, event->time_s) : STATUS_OK;
}

static enum status handle(struct engine *engine, const struct event *event)
{
    switch ((enum event_kind)event->kind) {
    case EVENT_START:
        return on_start(engine, event);
    case EVENT_COMPLETE:
        return on_complete(engine, event);
    case EVENT_HEAD:
        return on_head(engine, event);
    case EVENT_DELIVERED:
        break;
    }
    return on_delivered(engine, event);
}

/* Nothing will happen any more and some workers are not done. */
static enum status fail_deadlock(const struct engine *engine)
{
    struct text text = {0};
    int worker = 0;
    while (engine->worker[worker].done)
        worker++;
    progression_describe(engine->worker[worker].progression, DESCRIBED_OPS, &text);
    const enum status status =
        fail(STATUS_INTERNAL, "%s: deadlock: %d of %d workers wait for ever; worker %d: %s",
             engine->shape->algorithm->name, engine->unfinished, engine->shape->workers, worker, text_string(&text));
    text_release(&text);
    return status;
}

/* ---- life ---- */

static enum status check_request(const struct sim_request *request, const struct shape *shape, size_t size)
{
    if (size == 0)
        return fail(STATUS_INTERNAL, "sim: elements of 0 bytes");
    if (request->layout != NULL && request->layout->workers != shape->workers)
        return fail(STATUS_USAGE, "the layout has %d workers, the schedule %d: give a layout for %d",
                    request->layout->workers, shape->workers, shape->workers);
    return STATUS_OK;
}

static struct progression_params params_of(const struct sim_request *request, size_t count, size_t size)
{
    const size_t whole = count > 0 ? count : 1, segment = request->segment / size;
    return (struct progression_params){
        .count = count,
        .segment = request->segment == 0 || segment > whole ? whole
                   : segment > 0                            ? segment
                                                            : 1,
        .window = request->window == 0 ? DEFAULT_WINDOW : request->window,
        .lookahead = request->overlap_reduction ? LOOKAHEAD : 1,
        .aliased = true,
    };
}

static enum status engine_create(struct engine *engine)
{
    const size_t workers = (size_t)engine->shape->workers, ports = workers + (size_t)engine->layout->nodes;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, workers, sizeof(struct worker)));
    engine->worker = memory;
    TRY(memory_zeroed(&memory, ports, sizeof(double)));
    engine->transmit_free_s = memory;
    TRY(memory_zeroed(&memory, ports, sizeof(double)));
    engine->receive_free_s = memory;
    size_t size = 16;
    while (size < 4 * workers)
        size *= 2;
    return table_create(engine, size);
}

static void engine_release(struct engine *engine)
{
    for (int r = 0; engine->worker != NULL && r < engine->shape->workers; r++)
        progression_destroy(engine->worker[r].progression);
    event_queue_release(&engine->events);
    free(engine->worker);
    free(engine->transmit_free_s);
    free(engine->receive_free_s);
    free(engine->flight);
    free(engine->message);
    free(engine->channel);
    free(engine->table);
}

static enum status engine_run(struct engine *engine, const double *start_s)
{
    TRY(engine_create(engine));
    engine->unfinished = engine->shape->workers;
    for (int r = 0; r < engine->shape->workers; r++) {
        engine->worker[r].processor_free_s = start_s != NULL ? start_s[r] : 0;
        TRY(push(engine, start_s != NULL ? start_s[r] : 0, EVENT_START, (uint32_t)r));
    }
    struct event event;
    while (event_queue_pop(&engine->events, &event)) {
        engine->result->events++;
        TRY(handle(engine, &event));
    }
    return engine->unfinished > 0 ? fail_deadlock(engine) : STATUS_OK;
}

enum status sim_schedule(const struct sim_request *request, const struct shape *shape, size_t count, size_t size,
                         const double *start_s, double *done_s, struct sim_result *result)
{
    const double wall_s = clock_seconds();
    struct layout own = {0};
    enum status status = STATUS_OK;
    *result = (struct sim_result){0};
    TRY(check_request(request, shape, size));
    if (request->layout == NULL)
        TRY(platform_layout(request->platform, shape->workers, &own));
    struct engine engine = {
        .request = request,
        .platform = request->platform,
        .layout = request->layout != NULL ? request->layout : &own,
        .shape = shape,
        .params = params_of(request, count, size),
        .size = size,
        .rendezvous = !request->overlap_reduction,
        .free_flight = NONE,
        .free_message = NONE,
        .done_s = done_s,
        .result = result,
    };
    TRY_TO(done, engine_run(&engine, start_s));
    result->wall_s = clock_seconds() - wall_s;
done:
    engine_release(&engine);
    layout_release(&own);
    return status;
}
