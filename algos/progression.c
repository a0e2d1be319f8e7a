/* progression.c - interprets a schedule: which segments may start, given what is complete (progression.h).
 *
 * Ops are taken in round by round and live in slots until complete, in a list by emission order. At intake each op
 * learns which live ops it conflicts with and must follow (its dependencies); a segment is clear when every dependency
 * has completed the segments that overlap it. Channels, one for each (peer, lane), keep messages in order by counting.
 */
#include "algos/progression.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"

#define NONE UINT32_MAX

/* Elements [offset, offset + count) in one coordinate for hazards: vector first, then the scratch planes. */
struct interval {
    size_t offset, count;
};

struct dependency {
    uint32_t slot;
    uint64_t serial; /* of the op meant; the slot may have been given to another since */
};

struct live {
    struct op op;
    uint64_t serial; /* emission order, from 1; 0: free slot                                     */
    size_t elements;
    uint32_t segments;
    struct span src, dst, operand;    /* of the whole op                                                  */
    struct interval reads, writes;    /* for hazards; count 0: none                                       */
    uint32_t channel;                 /* messages                                                         */
    uint64_t sequence;                /* of the first segment on the channel                              */
    bool joined;                      /* continues the message of the op before                           */
    uint32_t begun;                   /* segments started; RECV_REDUCE: posted                            */
    uint32_t reducing;                /* RECV_REDUCE: reductions started                                  */
    uint32_t done;                    /* segments complete, without a gap                                 */
    uint64_t done_mask, arrived_mask; /* bit i: segment done + i                                       */
    uint32_t next, previous;
    struct dependency *dependencies;
    size_t dependency_count, dependency_capacity;
};

struct channel {
    bool used;
    int32_t peer;
    uint16_t lane;
    uint64_t send_assigned, send_begun;
    uint64_t recv_assigned, recv_begun, recv_done;
};

struct progression {
    const struct shape *shape;
    int rank;
    struct progression_params params;

    uint32_t round;  /* next to take in                                                           */
    bool tail_taken; /* the copies of never-written chunks are in                                 */
    uint64_t serial;
    bool stalled;   /* nothing could start, and nothing has completed since                      */
    uint64_t picks; /* counter of the disorder's randomness                                      */

    struct live *slot;
    size_t slots, slot_capacity;
    uint32_t first, last, free; /* list of live ops; list of free slots through `next`                 */
    uint32_t alive, waits;      /* live ops; WAITs and FENCEs among them                               */
    uint32_t round_first;       /* first live op of the round that is being taken in                   */

    struct channel *channel; /* open addressing; channels is a power of two                            */
    size_t channels, channels_used;

    uint64_t *written;    /* bit c: leaf c of the output has been written; NULL when aliased        */
    struct op previous;   /* last message op taken in, for MORE                                     */
    bool previous_counts; /* and whether its message has begun                                      */

    progression_race_fn *race;
    void *race_context;
};

struct intake {
    struct sink sink; /* first */
    struct progression *progression;
};

/* ------------------------------------------------------------------------------------------- written leaves (rule 5)
 */

static bool is_written(const struct progression *p, uint32_t leaf)
{
    return (p->written[leaf / 64] >> (leaf % 64)) & 1;
}

static void mark_written(struct progression *p, const struct range *range)
{
    if (p->written == NULL || range->buffer != BUFFER_VECTOR)
        return;
    for (uint32_t c = range->chunk; c < range->chunk + range->chunks; c++)
        p->written[c / 64] |= (uint64_t)1 << (c % 64);
}

/* How many leaves of a vector range have been written. */
static uint32_t written_leaves(const struct progression *p, const struct range *range)
{
    uint32_t n = 0;
    for (uint32_t c = range->chunk; c < range->chunk + range->chunks; c++)
        n += is_written(p, c);
    return n;
}

/* ------------------------------------------------------------------------------------------------------ ranges, spans
 */

static struct span span_of(const struct progression *p, const struct range *range, enum place vector_place)
{
    const uint32_t chunks = p->shape->chunks;
    const uint32_t plane = range->chunk / chunks, leaf = range->chunk % chunks;
    const size_t begin = partition_offset(p->params.count, chunks, leaf);
    const size_t end = partition_offset(p->params.count, chunks, leaf + range->chunks);
    const bool scratch = range->buffer == BUFFER_SCRATCH;
    return (struct span){.place = scratch ? PLACE_SCRATCH : vector_place,
                         .offset = begin + (scratch ? plane * p->params.count : 0),
                         .count = end - begin};
}

static struct interval interval_of(const struct progression *p, const struct span *span)
{
    const size_t base = span->place == PLACE_SCRATCH ? p->params.count : 0;
    return (struct interval){.offset = base + span->offset, .count = span->count};
}

static struct span span_part(const struct span *span, size_t begin, size_t count)
{
    return (struct span){.place = span->place, .offset = span->offset + begin, .count = count};
}

/* ------------------------------------------------------------------------------------------------------------- checks
 */

static bool has_src(uint8_t kind)
{
    return kind == OP_SEND || kind == OP_REDUCE || kind == OP_COPY;
}

static bool has_dst(uint8_t kind)
{
    return kind == OP_RECV || kind == OP_RECV_REDUCE || kind == OP_REDUCE || kind == OP_COPY || kind == OP_SCALE;
}

static bool is_message(uint8_t kind)
{
    return kind == OP_SEND || kind == OP_RECV || kind == OP_RECV_REDUCE;
}

static bool range_fits(const struct shape *shape, const struct range *range)
{
    if (range->chunks == 0 || range->chunks > shape->chunks)
        return false;
    if (range->buffer == BUFFER_VECTOR)
        return range->chunk <= shape->chunks - range->chunks;
    if (range->buffer != BUFFER_SCRATCH || range->chunk / shape->chunks >= shape->scratch)
        return false;
    return range->chunk % shape->chunks <= shape->chunks - range->chunks;
}

static enum status malformed(const struct progression *p, const struct op *op, const char *fault, const char *why)
{
    return fail(STATUS_FORMAT, "%s: worker %d round %u lane %u: %s", fault, p->rank, (unsigned)op->round,
                (unsigned)op->lane, why);
}

/* Segments of one op run in any order, so source and destination are the same range or apart. */
static bool half_overlap(const struct range *a, const struct range *b)
{
    return a->buffer == b->buffer && a->chunk != b->chunk && a->chunk < b->chunk + b->chunks &&
           b->chunk < a->chunk + a->chunks;
}

/* Whether `op` is what `before`, which says MORE, promises. */
static bool continues(const struct op *before, const struct op *op)
{
    return before->kind == op->kind && before->peer == op->peer && before->lane == op->lane &&
           before->round == op->round;
}

/* The op before may have promised more of its message; op NULL: the round is over. */
static enum status check_joined(const struct progression *p, const struct op *op)
{
    if (!(p->previous.flags & OP_MORE) || (op != NULL && continues(&p->previous, op)))
        return STATUS_OK;
    return malformed(p, &p->previous, "bad-op", "MORE, but the message goes on nowhere");
}

static enum status check_op(const struct progression *p, const struct op *op)
{
    const struct shape *shape = p->shape;
    if (op->kind >= OP_KINDS)
        return malformed(p, op, "bad-op", "unknown kind of op");
    if (op->round != p->round)
        return malformed(p, op, "bad-op", "emitted in another round than it is marked with");
    if (op->lane >= shape->lanes)
        return malformed(p, op, "bad-op", "lane out of range");
    if (is_message(op->kind) && (op->peer < 0 || op->peer >= shape->workers || op->peer == p->rank))
        return malformed(p, op, "bad-op", "peer out of range");
    const bool scratch_src = has_src(op->kind) && op->src.buffer != BUFFER_VECTOR;
    const bool scratch_dst = has_dst(op->kind) && op->dst.buffer != BUFFER_VECTOR;
    if (has_src(op->kind) && !range_fits(shape, &op->src))
        return malformed(p, op, scratch_src ? "scratch" : "bad-op", "source range out of bounds");
    if (has_dst(op->kind) && !range_fits(shape, &op->dst))
        return malformed(p, op, scratch_dst ? "scratch" : "bad-op", "destination range out of bounds");
    if (has_src(op->kind) && has_dst(op->kind) && half_overlap(&op->src, &op->dst))
        return malformed(p, op, "bad-op", "source and destination overlap in part");
    if (op->kind == OP_WAIT && (op->wait_lane >= shape->lanes || op->wait_round > op->round))
        return malformed(p, op, "wait-in-future", "WAIT for a later round or an unknown lane");
    if (op->kind == OP_FENCE && (op->lanes == 0 || op->lanes > shape->lanes - op->lane))
        return malformed(p, op, "bad-op", "FENCE over unknown lanes");
    if ((op->flags & OP_FINAL) && op->kind != OP_RECV_REDUCE && op->kind != OP_REDUCE)
        return malformed(p, op, "bad-op", "FINAL on an op that reduces nothing");
    if ((op->flags & OP_MORE) && !is_message(op->kind))
        return malformed(p, op, "bad-op", "MORE on an op that is no message");
    return check_joined(p, op);
}

/* ------------------------------------------------------------------------------------------------------------ channels
 */

static size_t channel_hash(int32_t peer, uint16_t lane)
{
    const uint64_t key = ((uint64_t)lane << 32) | (uint32_t)peer;
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}

static size_t channel_place(const struct channel *table, size_t size, int32_t peer, uint16_t lane)
{
    size_t i = channel_hash(peer, lane) & (size - 1);
    while (table[i].used && (table[i].peer != peer || table[i].lane != lane))
        i = (i + 1) & (size - 1);
    return i;
}

/* Twice as many places; live ops are told their new ones. */
static enum status channels_grow(struct progression *p)
{
    const size_t size = p->channels * 2;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, size, sizeof(struct channel)));
    struct channel *table = memory;
    for (size_t i = 0; i < p->channels; i++)
        if (p->channel[i].used)
            table[channel_place(table, size, p->channel[i].peer, p->channel[i].lane)] = p->channel[i];
    free(p->channel);
    p->channel = table;
    p->channels = size;
    for (uint32_t s = p->first; s != NONE; s = p->slot[s].next)
        if (is_message(p->slot[s].op.kind))
            p->slot[s].channel = (uint32_t)channel_place(table, size, p->slot[s].op.peer, p->slot[s].op.lane);
    return STATUS_OK;
}

static enum status channel_find(struct progression *p, int32_t peer, uint16_t lane, uint32_t *index)
{
    size_t i = channel_place(p->channel, p->channels, peer, lane);
    if (!p->channel[i].used) {
        if ((p->channels_used + 1) * 2 > p->channels) {
            TRY(channels_grow(p));
            i = channel_place(p->channel, p->channels, peer, lane);
        }
        p->channel[i] = (struct channel){.used = true, .peer = peer, .lane = lane};
        p->channels_used++;
    }
    *index = (uint32_t)i;
    return STATUS_OK;
}

/* --------------------------------------------------------------------------------------------------------- slots, list
 */

static enum status slot_take(struct progression *p, uint32_t *index)
{
    if (p->free == NONE) {
        void *memory = p->slot;
        TRY(memory_grow(&memory, &p->slot_capacity, p->slots + 1, sizeof(struct live)));
        p->slot = memory;
        memset(&p->slot[p->slots], 0, sizeof p->slot[p->slots]);
        p->slot[p->slots].next = NONE;
        p->free = (uint32_t)p->slots++;
    }
    const uint32_t s = p->free;
    struct live *live = &p->slot[s];
    p->free = live->next;
    struct dependency *kept = live->dependencies;
    const size_t capacity = live->dependency_capacity;
    *live = (struct live){.dependencies = kept, .dependency_capacity = capacity, .next = NONE, .previous = p->last};
    live->serial = ++p->serial;
    if (p->last == NONE)
        p->first = s;
    else
        p->slot[p->last].next = s;
    p->last = s;
    p->alive++;
    if (p->round_first == NONE)
        p->round_first = s;
    *index = s;
    return STATUS_OK;
}

static void slot_drop(struct progression *p, uint32_t s)
{
    struct live *live = &p->slot[s];
    if (live->previous == NONE)
        p->first = live->next;
    else
        p->slot[live->previous].next = live->next;
    if (live->next == NONE)
        p->last = live->previous;
    else
        p->slot[live->next].previous = live->previous;
    live->serial = 0;
    live->next = p->free;
    p->free = s;
    p->alive--;
}

/* ---- hazards ---- */

static bool overlap(const struct interval *a, const struct interval *b)
{
    return a->count > 0 && b->count > 0 && a->offset < b->offset + b->count && b->offset < a->offset + a->count;
}

/* Rule 2: their ranges overlap and at least one writes. */
static bool conflict(const struct live *a, const struct live *b)
{
    return overlap(&a->writes, &b->writes) || overlap(&a->writes, &b->reads) || overlap(&a->reads, &b->writes);
}

/* Rule 3: a live WAIT before `after` in its lane names the lane of `before`, or a live FENCE stands between them. */
static bool lanes_ordered(const struct progression *p, const struct live *before, const struct live *after)
{
    if (p->waits == 0)
        return false;
    for (uint32_t s = p->first; s != NONE && p->slot[s].serial < after->serial; s = p->slot[s].next) {
        const struct live *w = &p->slot[s];
        if (w->op.kind == OP_WAIT && w->op.lane == after->op.lane && w->op.wait_lane == before->op.lane &&
            before->op.round <= w->op.wait_round)
            return true;
        if (w->op.kind == OP_FENCE && w->serial > before->serial && before->op.lane >= w->op.lane &&
            after->op.lane >= w->op.lane && before->op.lane - w->op.lane < w->op.lanes &&
            after->op.lane - w->op.lane < w->op.lanes)
            return true;
    }
    return false;
}

static enum status depend(struct live *live, uint32_t slot, uint64_t serial)
{
    void *memory = live->dependencies;
    TRY(memory_grow(&memory, &live->dependency_capacity, live->dependency_count + 1, sizeof(struct dependency)));
    live->dependencies = memory;
    live->dependencies[live->dependency_count++] = (struct dependency){.slot = slot, .serial = serial};
    return STATUS_OK;
}

/* What `live`, of the round just taken in, must follow. Ops of the same round in a waited lane may have been emitted
 * later. */
static enum status find_dependencies(struct progression *p, struct live *live)
{
    for (uint32_t s = p->first; s != NONE; s = p->slot[s].next) {
        const struct live *other = &p->slot[s];
        const bool earlier = other->serial < live->serial;
        if (other == live || (!earlier && p->waits == 0) || !conflict(other, live))
            continue;
        if (other->op.lane == live->op.lane) {
            if (earlier)
                TRY(depend(live, s, other->serial));
        } else if (lanes_ordered(p, other, live)) {
            TRY(depend(live, s, other->serial));
        } else if (earlier && p->race != NULL && !lanes_ordered(p, live, other)) {
            p->race(p->race_context, &other->op, &live->op);
        }
    }
    return STATUS_OK;
}

/* Has `other` completed every segment that touches [offset, offset + count)? */
static bool passed(const struct progression *p, const struct live *other, const struct interval *theirs, size_t offset,
                   size_t count)
{
    const struct interval mine = {offset, count};
    if (!overlap(theirs, &mine))
        return true;
    const size_t end =
        offset + count < theirs->offset + theirs->count ? offset + count : theirs->offset + theirs->count;
    return other->done > (end - 1 - theirs->offset) / p->params.segment;
}

/* Rule 2, segment by segment. */
static bool clear(struct progression *p, struct live *live, uint32_t segment)
{
    const size_t begin = (size_t)segment * p->params.segment;
    const size_t left = live->elements - begin, count = left < p->params.segment ? left : p->params.segment;
    for (size_t i = 0; i < live->dependency_count;) {
        const struct dependency *d = &live->dependencies[i];
        const struct live *other = &p->slot[d->slot];
        if (other->serial != d->serial) { /* complete and gone */
            live->dependencies[i] = live->dependencies[--live->dependency_count];
            continue;
        }
        if (live->writes.count > 0 && (!passed(p, other, &other->writes, live->writes.offset + begin, count) ||
                                       !passed(p, other, &other->reads, live->writes.offset + begin, count)))
            return false;
        if (live->reads.count > 0 && !passed(p, other, &other->writes, live->reads.offset + begin, count))
            return false;
        i++;
    }
    return true;
}

/* ---- intake ---- */

/* Give a message op its place on its channel. */
static enum status join_channel(struct progression *p, struct live *live)
{
    TRY(channel_find(p, live->op.peer, live->op.lane, &live->channel));
    struct channel *channel = &p->channel[live->channel];
    uint64_t *assigned = live->op.kind == OP_SEND ? &channel->send_assigned : &channel->recv_assigned;
    live->sequence = *assigned;
    *assigned += live->segments;
    return STATUS_OK;
}

/* MORE on the op before: one message. It has begun once one of its ops has elements. */
static bool continues_message(struct progression *p, const struct op *op, size_t elements)
{
    const bool joined = (p->previous.flags & OP_MORE) && p->previous_counts;
    p->previous = *op;
    p->previous_counts = joined || elements > 0;
    return joined;
}

static enum status take(struct progression *p, const struct op *op, enum place src_place, enum place operand_place)
{
    const struct span src = has_src(op->kind) ? span_of(p, &op->src, src_place) : (struct span){.place = PLACE_VECTOR};
    const struct span dst =
        has_dst(op->kind) ? span_of(p, &op->dst, PLACE_VECTOR) : (struct span){.place = PLACE_VECTOR};
    const size_t elements = has_dst(op->kind) ? dst.count : src.count;
    if (has_src(op->kind) && has_dst(op->kind) && src.count != dst.count)
        return malformed(p, op, "bad-op", "source and destination differ in size");
    const bool joined = is_message(op->kind) && continues_message(p, op, elements);
    const bool orders = op->kind == OP_WAIT || op->kind == OP_FENCE;
    if (elements == 0 && !orders)
        return STATUS_OK; /* an empty chunk: nothing travels, on either side */
    const size_t segments = orders ? 0 : (elements - 1) / p->params.segment + 1;
    if (segments > UINT32_MAX)
        return malformed(p, op, "bad-op", "more than 2^32 segments: use a larger --segment");

    uint32_t s = NONE;
    TRY(slot_take(p, &s));
    struct live *live = &p->slot[s];
    live->op = *op;
    live->elements = elements;
    live->segments = (uint32_t)segments;
    live->src = src;
    live->dst = dst;
    live->operand = dst;
    if (dst.place == PLACE_VECTOR)
        live->operand.place = operand_place;
    live->joined = joined;
    if (has_src(op->kind))
        live->reads = interval_of(p, &src);
    if (has_dst(op->kind))
        live->writes = interval_of(p, &dst);
    p->waits += orders;
    if (is_message(op->kind))
        TRY(join_channel(p, live));
    return STATUS_OK;
}

/* Copy the leaves of `range` that were never written from the input to the output. */
static enum status take_copies(struct progression *p, const struct range *range, uint16_t lane, uint32_t round)
{
    for (uint32_t c = range->chunk; c < range->chunk + range->chunks; c++) {
        if (is_written(p, c))
            continue;
        struct range run = {.chunk = c, .chunks = 1, .buffer = BUFFER_VECTOR};
        while (c + 1 < range->chunk + range->chunks && !is_written(p, c + 1)) {
            run.chunks++;
            c++;
        }
        const struct op copy = {
            .kind = OP_COPY, .lane = lane, .round = round, .peer = -1, .src = run, .dst = run, .weight = 1};
        TRY(take(p, &copy, PLACE_INPUT, PLACE_VECTOR));
        mark_written(p, &run);
    }
    return STATUS_OK;
}

/* Rule 5: where a read of `range` finds its data. A range written in part is completed first. */
static enum status first_touch(struct progression *p, const struct range *range, const struct op *op, enum place *place)
{
    *place = PLACE_VECTOR;
    if (p->written == NULL || range->buffer != BUFFER_VECTOR)
        return STATUS_OK;
    const uint32_t written = written_leaves(p, range);
    if (written == 0)
        *place = PLACE_INPUT;
    else if (written < range->chunks)
        TRY(take_copies(p, range, op->lane, op->round));
    return STATUS_OK;
}

static enum status intake_op(struct sink *sink, const struct op *op)
{
    struct progression *p = ((struct intake *)sink)->progression;
    TRY(check_op(p, op));
    enum place src_place = PLACE_VECTOR, operand_place = PLACE_VECTOR;
    if (has_src(op->kind))
        TRY(first_touch(p, &op->src, op, &src_place));
    if (op->kind == OP_RECV_REDUCE || op->kind == OP_REDUCE || op->kind == OP_SCALE)
        TRY(first_touch(p, &op->dst, op, &operand_place));
    TRY(take(p, op, src_place, operand_place));
    if (has_dst(op->kind))
        mark_written(p, &op->dst);
    return STATUS_OK;
}

static enum status take_tail(struct progression *p)
{
    p->tail_taken = true;
    if (p->written == NULL)
        return STATUS_OK;
    const struct range all = {.chunk = 0, .chunks = p->shape->chunks, .buffer = BUFFER_VECTOR};
    return take_copies(p, &all, 0, p->shape->rounds);
}

/* Take in one more round (the last is the tail of copies), then let its ops find what they must follow. */
static enum status take_round(struct progression *p)
{
    p->round_first = NONE;
    if (p->round < p->shape->rounds) {
        struct intake intake = {.sink = {.op = intake_op, .round = p->round}, .progression = p};
        TRY(p->shape->algorithm->emit(p->shape, p->rank, p->round, &intake.sink));
        TRY(check_joined(p, NULL));
        p->round++;
    } else {
        TRY(take_tail(p));
    }
    for (uint32_t s = p->round_first; s != NONE; s = p->slot[s].next)
        if (p->slot[s].segments > 0)
            TRY(find_dependencies(p, &p->slot[s]));
    return STATUS_OK;
}

static bool taken_in(const struct progression *p)
{
    return p->round == p->shape->rounds && p->tail_taken;
}

/* ---- retirement ---- */

static bool wait_over(const struct progression *p, const struct live *wait)
{
    for (uint32_t s = p->first; s != NONE; s = p->slot[s].next) {
        const struct live *live = &p->slot[s];
        if (live->segments == 0)
            continue;
        if (wait->op.kind == OP_WAIT && live->op.lane == wait->op.wait_lane && live->op.round <= wait->op.wait_round)
            return false;
        if (wait->op.kind == OP_FENCE && live->serial < wait->serial && live->op.lane >= wait->op.lane &&
            live->op.lane - wait->op.lane < wait->op.lanes)
            return false;
    }
    return true;
}

static void drop_waits(struct progression *p)
{
    for (uint32_t s = p->first; p->waits > 0 && s != NONE;) {
        const uint32_t next = p->slot[s].next;
        if (p->slot[s].segments == 0 && wait_over(p, &p->slot[s])) {
            slot_drop(p, s);
            p->waits--;
        }
        s = next;
    }
}

/* One segment of slot s is complete. */
static void segment_done(struct progression *p, uint32_t s, uint32_t segment)
{
    struct live *live = &p->slot[s];
    live->done_mask |= (uint64_t)1 << (segment - live->done);
    while (live->done_mask & 1) {
        live->done_mask >>= 1;
        live->arrived_mask >>= 1;
        live->done++;
    }
    if (live->op.kind == OP_RECV || live->op.kind == OP_RECV_REDUCE)
        p->channel[live->channel].recv_done++;
    if (live->done == live->segments) {
        slot_drop(p, s);
        if (p->waits > 0)
            drop_waits(p);
    }
}

/* ---- starting ---- */

static void fill_action(const struct progression *p, uint32_t s, enum action_kind kind, uint32_t segment,
                        struct action *action)
{
    const struct live *live = &p->slot[s];
    const size_t begin = (size_t)segment * p->params.segment;
    const size_t left = live->elements - begin, count = left < p->params.segment ? left : p->params.segment;
    *action = (struct action){.kind = kind,
                              .op = live->op,
                              .src = span_part(&live->src, begin, count),
                              .dst = span_part(&live->dst, begin, count),
                              .operand = span_part(&live->operand, begin, count),
                              .sequence = live->sequence + segment,
                              .slot = s,
                              .segment = segment,
                              .first = segment == 0 && !live->joined};
}

static bool start_send(struct progression *p, uint32_t s, struct action *action)
{
    struct live *live = &p->slot[s];
    struct channel *channel = &p->channel[live->channel];
    if (channel->send_begun != live->sequence + live->begun || !clear(p, live, live->begun))
        return false;
    channel->send_begun++;
    fill_action(p, s, ACTION_SEND, live->begun++, action);
    return true;
}

/* A RECV lands in the vector, so its hazards must be clear; a RECV_REDUCE lands in a slot of the caller. */
static bool start_post(struct progression *p, uint32_t s, struct action *action)
{
    struct live *live = &p->slot[s];
    struct channel *channel = &p->channel[live->channel];
    if (channel->recv_begun != live->sequence + live->begun ||
        channel->recv_begun - channel->recv_done >= p->params.window)
        return false;
    if (live->op.kind == OP_RECV && !clear(p, live, live->begun))
        return false;
    channel->recv_begun++;
    fill_action(p, s, ACTION_POST, live->begun++, action);
    return true;
}

static bool start_reduce(struct progression *p, uint32_t s, struct action *action)
{
    struct live *live = &p->slot[s];
    if (live->reducing >= live->begun || !((live->arrived_mask >> (live->reducing - live->done)) & 1) ||
        !clear(p, live, live->reducing))
        return false;
    fill_action(p, s, ACTION_REDUCE, live->reducing++, action);
    return true;
}

static bool start_one(struct progression *p, uint32_t s, struct action *action)
{
    struct live *live = &p->slot[s];
    if (live->op.kind == OP_RECV_REDUCE && start_reduce(p, s, action))
        return true;
    if (live->begun == live->segments || live->begun - live->done >= PROGRESSION_OUTSTANDING)
        return false;
    if (live->op.kind == OP_SEND)
        return start_send(p, s, action);
    if (is_message(live->op.kind))
        return start_post(p, s, action);
    if (!clear(p, live, live->begun))
        return false;
    fill_action(p, s, ACTION_LOCAL, live->begun++, action);
    return true;
}

/* Where a scan begins: the oldest, or with disorder anywhere. */
static uint32_t scan_start(struct progression *p)
{
    uint32_t s = p->first;
    if (p->params.disorder != 0 && p->alive > 0) {
        uint64_t skip = rng_below(p->params.disorder, p->picks++, p->alive);
        while (skip-- > 0)
            s = p->slot[s].next;
    }
    return s;
}

static bool start_any(struct progression *p, struct action *action)
{
    const uint32_t start = scan_start(p);
    for (uint32_t s = start; s != NONE; s = p->slot[s].next)
        if (p->slot[s].segments > 0 && start_one(p, s, action))
            return true;
    for (uint32_t s = p->first; s != start; s = p->slot[s].next)
        if (p->slot[s].segments > 0 && start_one(p, s, action))
            return true;
    return false;
}

enum status progression_next(struct progression *p, struct action *action)
{
    for (;;) {
        while (!taken_in(p) && p->alive < p->params.lookahead) {
            TRY(take_round(p));
            p->stalled = false;
        }
        if (p->stalled)
            return STATUS_AGAIN;
        if (start_any(p, action))
            return STATUS_OK;
        p->stalled = true;
        if (p->waits > 0)
            drop_waits(p); /* those that had nothing to wait for: they may have kept the next round out */
    }
}

void progression_complete(struct progression *p, const struct action *action)
{
    struct live *live = &p->slot[action->slot];
    p->stalled = false;
    if (action->kind == ACTION_POST && live->op.kind == OP_RECV_REDUCE)
        live->arrived_mask |= (uint64_t)1 << (action->segment - live->done);
    else
        segment_done(p, action->slot, action->segment);
}

bool progression_finished(const struct progression *p)
{
    return taken_in(p) && p->alive == p->waits;
}

/* ----------------------------------------------------------------------------------------------------- life and
 * messages */

void progression_restart(struct progression *p)
{
    while (p->first != NONE)
        slot_drop(p, p->first);
    memset(p->channel, 0, p->channels * sizeof(struct channel));
    p->channels_used = 0;
    if (p->written != NULL)
        memset(p->written, 0, ((size_t)p->shape->chunks / 64 + 1) * sizeof(uint64_t));
    p->round = 0;
    p->tail_taken = false;
    p->waits = 0;
    p->stalled = false;
    p->picks = 0;
    p->previous = (struct op){0};
    p->previous_counts = false;
}

enum status progression_create(const struct shape *shape, int rank, const struct progression_params *params,
                               struct progression **out)
{
    enum status status = STATUS_OK;
    void *memory = NULL;
    if (rank < 0 || rank >= shape->workers || params->segment == 0 || params->window == 0 || params->window > 64 ||
        params->lookahead == 0)
        return fail(STATUS_INTERNAL, "progression: rank, segment, window or lookahead out of range");
    TRY(memory_zeroed(&memory, 1, sizeof(struct progression)));
    struct progression *p = memory;
    *p = (struct progression){
        .shape = shape, .rank = rank, .params = *params, .first = NONE, .last = NONE, .free = NONE};
    p->channels = 8;
    TRY_TO(done, memory_zeroed(&memory, p->channels, sizeof(struct channel)));
    p->channel = memory;
    if (!params->aliased) {
        TRY_TO(done, memory_zeroed(&memory, (size_t)shape->chunks / 64 + 1, sizeof(uint64_t)));
        p->written = memory;
    }
    *out = p;
done:
    if (status < 0)
        progression_destroy(p);
    return status;
}

void progression_destroy(struct progression *p)
{
    if (p == NULL)
        return;
    for (size_t s = 0; s < p->slots; s++)
        free(p->slot[s].dependencies);
    free(p->slot);
    free(p->channel);
    free(p->written);
    free(p);
}

void progression_watch_races(struct progression *p, progression_race_fn *race, void *context)
{
    p->race = race;
    p->race_context = context;
}

const struct op *progression_oldest(const struct progression *p)
{
    return p->first == NONE ? NULL : &p->slot[p->first].op;
}

static void describe_live(const struct live *live, struct text *text)
{
    static const char *const doing[OP_KINDS] = {"sending to", "receiving from", "reducing from", "reducing locally",
                                                "copying",    "scaling",        "waiting",       "at a fence"};
    text_addf(text, "round %u lane %u: %s", (unsigned)live->op.round, (unsigned)live->op.lane, doing[live->op.kind]);
    if (is_message(live->op.kind))
        text_addf(text, " %d", (int)live->op.peer);
    if (live->segments > 0)
        text_addf(text, " (%u of %u segments done, %u begun)", (unsigned)live->done, (unsigned)live->segments,
                  (unsigned)live->begun);
}

void progression_describe(const struct progression *p, size_t limit, struct text *text)
{
    size_t n = 0;
    for (uint32_t s = p->first; s != NONE && n < limit; s = p->slot[s].next, n++) {
        if (n > 0)
            text_add(text, "; ");
        describe_live(&p->slot[s], text);
    }
    if (p->alive > limit)
        text_addf(text, "; and %zu more", (size_t)p->alive - limit);
}
