/* verify_emitted.c - what can be said of a schedule from its ops as they are emitted, without running it.
 *
 * Messages of a channel match in order, so two lists a channel tell whether every SEND has its RECV. Races need, for each
 * leaf and lane, only the latest read and the latest write: if these come before an op (lane_order.h), so do all earlier
 * ones of that lane. So every pair of conflicting ops is judged, in time proportional to what is touched times lanes.
 */
#include <stdlib.h>
#include <string.h>

#include "algos/lane_order.h"
#include "algos/routes.h"
#include "algos/verify_internal.h"
#include "base/memory.h"

#define NONE UINT32_MAX

/* ---- matching ---- */

/* One message op as emitted, in the list of its channel. */
struct message {
    uint32_t round, chunks, next;
};

struct queue {
    uint32_t first, last, count;
};

/* Messages of a route. */
struct channel {
    struct queue sends, receives;
};

struct matching {
    const struct shape *shape;
    struct verify_result *result;
    struct routes routes;
    struct channel *channel; /* of each route */
    size_t channels, channel_capacity;
    struct message *message;
    size_t messages, message_capacity;
};

static const struct queue empty_queue = {.first = NONE, .last = NONE};

static enum status queue_find(struct matching *m, int rank, const struct op *op, struct queue **queue)
{
    const bool receives = op->kind != OP_SEND;
    uint32_t c = NONE;
    TRY(routes_find(&m->routes, receives ? op->peer : rank, receives ? rank : op->peer, op->lane, &c));
    void *memory = m->channel;
    TRY(memory_grow(&memory, &m->channel_capacity, m->routes.count, sizeof(struct channel)));
    m->channel = memory;
    while (m->channels < m->routes.count)
        m->channel[m->channels++] = (struct channel){.sends = empty_queue, .receives = empty_queue};
    *queue = receives ? &m->channel[c].receives : &m->channel[c].sends;
    return STATUS_OK;
}

struct collector {
    struct sink sink; /* first */
    struct matching *matching;
    int rank;
};

static enum status collect_message(struct matching *m, int rank, const struct op *op)
{
    const bool receives = op->kind != OP_SEND;
    struct queue *queue = NULL;
    TRY(queue_find(m, rank, op, &queue));
    void *memory = m->message;
    TRY(memory_grow(&memory, &m->message_capacity, m->messages + 1, sizeof(struct message)));
    m->message = memory;
    const uint32_t index = (uint32_t)m->messages++;
    m->message[index] =
        (struct message){.round = op->round, .chunks = receives ? op->dst.chunks : op->src.chunks, .next = NONE};
    if (queue->count++ == 0)
        queue->first = index;
    else
        m->message[queue->last].next = index;
    queue->last = index;
    return STATUS_OK;
}

static enum status collect(struct sink *sink, const struct op *op)
{
    struct collector *collector = (struct collector *)sink;
    if (op->kind == OP_SEND || op->kind == OP_RECV || op->kind == OP_RECV_REDUCE)
        return collect_message(collector->matching, collector->rank, op);
    return STATUS_OK;
}

static enum status collect_messages(struct matching *m)
{
    for (int r = 0; r < m->shape->workers; r++) {
        struct collector collector = {.sink = {.op = collect}, .matching = m, .rank = r};
        for (uint32_t round = 0; round < m->shape->rounds; round++) {
            collector.sink.round = round;
            collector.sink.lane = 0;
            TRY(m->shape->algorithm->emit(m->shape, r, round, &collector.sink));
        }
    }
    return STATUS_OK;
}

static void match_channel(struct matching *m, size_t i)
{
    const struct route *route = &m->routes.route[i];
    const struct queue *sends = &m->channel[i].sends, *recvs = &m->channel[i].receives;
    const bool unequal = sends->count != recvs->count;
    const struct message *const messages = m->message;
    if (messages == NULL)
        return;
    uint32_t s = sends->first, r = recvs->first;
    for (; s != NONE && r != NONE; s = messages[s].next, r = messages[r].next) {
        const struct message *send = &messages[s], *recv = &messages[r];
        if (unequal && send->round != recv->round)
            break;
        if (!unequal && send->round != recv->round)
            verify_report(m->result, FAULT_ROUND,
                          "worker %d sends to %d in round %u, which receives it in round %u (lane %u)", route->src,
                          route->dst, (unsigned)send->round, (unsigned)recv->round, (unsigned)route->lane);
        if (!unequal && send->chunks != recv->chunks)
            verify_report(m->result, FAULT_SIZE, "worker %d sends %u chunks to %d, which takes %u (round %u lane %u)",
                          route->src, (unsigned)send->chunks, route->dst, (unsigned)recv->chunks, (unsigned)send->round,
                          (unsigned)route->lane);
    }
    if (!unequal)
        return;
    if (sends->count > recvs->count)
        verify_report(m->result, FAULT_UNMATCHED,
                      "worker %d sends to %d in round %u, which has no receive for it (lane %u)", route->src,
                      route->dst, (unsigned)messages[s == NONE ? sends->last : s].round, (unsigned)route->lane);
    else
        verify_report(m->result, FAULT_UNMATCHED,
                      "worker %d receives from %d in round %u, which has no send for it (lane %u)", route->dst,
                      route->src, (unsigned)messages[r == NONE ? recvs->last : r].round, (unsigned)route->lane);
}

enum status verify_matching(const struct shape *shape, struct verify_result *result)
{
    enum status status = STATUS_OK;
    struct matching m = {.shape = shape, .result = result};
    TRY_TO(done, collect_messages(&m));
    for (size_t i = 0; i < m.channels; i++) /* a missing partner shifts what follows: look for that first */
        if (m.channel[i].sends.count != m.channel[i].receives.count)
            match_channel(&m, i);
    for (size_t i = 0; i < m.channels; i++)
        match_channel(&m, i);
done:
    free(m.channel);
    routes_release(&m.routes);
    free(m.message);
    return status;
}

/* ---- races: conflicting ops of two lanes that nothing orders (rules 2 and 3) ---- */

/* The latest position + 1 at which a lane has read and written a leaf, 0: never. If these come before an op, all earlier
 * ones of that lane do. */
struct touches {
    uint64_t read, written;
};

/* Watches the ops of one worker. */
struct watcher {
    struct sink sink; /* first */
    const struct shape *shape;
    struct lane_order order;
    struct touches *touches; /* of each leaf, then each lane */
    size_t size;
    uint32_t number; /* of ops in this round */
    bool found;
    uint64_t earlier, later; /* positions of a pair */
};

static void watch_range(struct watcher *watcher, const struct op *op, const struct range *range, bool writes)
{
    const uint64_t position = (uint64_t)op->round << 32 | watcher->number;
    const uint32_t clock = lane_order_clock(&watcher->order, op->lane);
    const size_t base = range->buffer == BUFFER_SCRATCH ? watcher->shape->chunks : 0, lanes = watcher->shape->lanes;
    for (uint32_t i = 0; i < range->chunks && !watcher->found; i++) {
        struct touches *leaf = &watcher->touches[(base + range->chunk + i) * lanes];
        for (uint16_t l = 0; l < lanes && !watcher->found; l++) {
            uint64_t latest = leaf[l].written;
            if (writes && leaf[l].read > latest)
                latest = leaf[l].read;
            if (l == op->lane || latest == 0 || lane_order_precedes(&watcher->order, l, latest - 1, clock))
                continue;
            watcher->found = true;
            watcher->earlier = latest - 1;
            watcher->later = position;
        }
        *(writes ? &leaf[op->lane].written : &leaf[op->lane].read) = position + 1;
    }
}

static enum status watch(struct sink *sink, const struct op *op)
{
    struct watcher *watcher = (struct watcher *)sink;
    const struct shape *shape = watcher->shape;
    const bool orders = op->kind == OP_WAIT || op->kind == OP_FENCE;
    watcher->number++;
    if (op->lane >= shape->lanes || (op->kind == OP_WAIT && op->wait_lane >= shape->lanes) ||
        (op->kind == OP_FENCE && op->lanes > shape->lanes - op->lane))
        return STATUS_OK; /* malformed, which no trial has come to */
    if (orders)
        return lane_order_take(&watcher->order, (uint64_t)op->round << 32 | watcher->number, op);
    const bool reads = op->kind == OP_SEND || op->kind == OP_REDUCE || op->kind == OP_COPY;
    if (reads && range_fits(shape, &op->src))
        watch_range(watcher, op, &op->src, false);
    if (op->kind != OP_SEND && range_fits(shape, &op->dst))
        watch_range(watcher, op, &op->dst, true);
    return STATUS_OK;
}

/* Gives the op at a position. */
struct getter {
    struct sink sink; /* first */
    uint32_t number;
    struct op op;
};

static enum status get(struct sink *sink, const struct op *op)
{
    struct getter *getter = (struct getter *)sink;
    if (--getter->number == 0)
        getter->op = *op;
    return STATUS_OK;
}

static enum status op_at(const struct shape *shape, int rank, uint64_t position, struct op *op)
{
    struct getter getter = {.sink = {.op = get, .round = (uint32_t)(position >> 32)}, .number = (uint32_t)position};
    TRY(shape->algorithm->emit(shape, rank, getter.sink.round, &getter.sink));
    *op = getter.op;
    return STATUS_OK;
}

static enum status report_race(struct verify_result *result, int rank, const struct watcher *watcher)
{
    struct op earlier = {0}, later = {0};
    TRY(op_at(watcher->shape, rank, watcher->earlier, &earlier));
    TRY(op_at(watcher->shape, rank, watcher->later, &later));
    verify_report(result, FAULT_RACE, "worker %d: nothing orders round %u lane %u %s %d and round %u lane %u %s %d",
                  rank, (unsigned)earlier.round, (unsigned)earlier.lane, verify_op_words(&earlier), (int)earlier.peer,
                  (unsigned)later.round, (unsigned)later.lane, verify_op_words(&later), (int)later.peer);
    return STATUS_OK;
}

static enum status watch_worker(struct watcher *watcher, int rank)
{
    const struct shape *shape = watcher->shape;
    memset(watcher->touches, 0, watcher->size * sizeof(struct touches));
    lane_order_restart(&watcher->order);
    for (uint32_t round = 0; round < shape->rounds && !watcher->found; round++) {
        watcher->sink.round = round;
        watcher->sink.lane = 0;
        watcher->number = 0;
        TRY(shape->algorithm->emit(shape, rank, round, &watcher->sink));
    }
    return STATUS_OK;
}

enum status verify_races(const struct shape *shape, struct verify_result *result)
{
    enum status status = STATUS_OK;
    struct watcher watcher = {.sink = {.op = watch}, .shape = shape};
    void *memory = NULL;
    if (shape->lanes == 1)
        return STATUS_OK;
    lane_order_init(&watcher.order, shape->lanes);
    watcher.size = (size_t)shape->chunks * (1 + (size_t)shape->scratch) * shape->lanes;
    TRY_TO(done, memory_zeroed(&memory, watcher.size, sizeof(struct touches)));
    watcher.touches = memory;
    for (int r = 0; r < shape->workers && !watcher.found; r++) {
        TRY_TO(done, watch_worker(&watcher, r));
        if (watcher.found)
            TRY_TO(done, report_race(result, r, &watcher));
    }
done:
    free(watcher.touches);
    lane_order_release(&watcher.order);
    return status;
}
