/* progression.c - interprets a schedule: which segments may start, given what is complete (progression.h).
 *
 * Ops are taken in round by round and live in slots until complete, in a list by emission order. At intake each op
 * learns which live ops it conflicts with and must follow (its dependencies); a segment is clear when every dependency
 * has completed the segments that overlap it. Channels, one for each (peer, lane), keep messages in order by counting.
 *
 * What an op does is one or two activities: to begin its segments and, of a RECV_REDUCE, to reduce them. An activity is
 * ready, or it waits for one thing: for its channel, for a dependency, for an arrival; what happens there makes it ready
 * again. So nothing is looked at twice in vain, and the oldest that is ready starts.
 */
#include "algos/progression.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "algos/lane_order.h"
#include "base/memory.h"
#include "base/rng.h"

#define NONE UINT32_MAX
#define INDEX_FROM 24   /* live ops; fewer are looked through faster than an index is kept */
#define INDEX_MOST 4096 /* buckets */
#define FREE_SERIAL 0   /* of a slot without an op */

/* Elements [offset, offset + count) in one coordinate for hazards: vector first, then the scratch planes. */
struct interval {
    size_t offset, count;
};

/* Leaves [first, first + count) in one coordinate for the index: vector first, then the scratch planes. */
struct leaves {
    uint32_t first, count;
};

struct dependency {
    uint32_t slot;
    uint64_t serial; /* of the op meant; the slot may have been given to another since */
};

enum activity { REDUCING, BEGINNING, ACTIVITIES }; /* of one op, the first goes first */
enum state { PARKED, READY, WAITING };             /* PARKED: whoever ends the reason makes it ready */
enum access { READS, WRITES, ACCESSES };

struct live {
    struct op op;
    uint64_t serial;   /* emission order, over all runs; FREE_SERIAL: free slot                    */
    uint64_t position; /* for lane_order                                                           */
    size_t elements;
    uint32_t segments;
    struct span src, dst, operand;    /* of the whole op                                                  */
    struct interval hazard[ACCESSES]; /* count 0: none                                                    */
    uint32_t channel;                 /* messages                                                         */
    uint32_t follower;                /* next op of the channel and direction, as long as this one begins */
    uint64_t sequence;                /* of the first segment on the channel                              */
    bool joined;                      /* continues the message of the op before                           */
    bool implicit;                    /* a copy that no algorithm has emitted (rule 5)                    */
    uint8_t state[ACTIVITIES];        /* enum state                                                       */
    uint32_t clock;                   /* of its lane when it was emitted                                  */
    uint32_t begun;                   /* segments started; RECV_REDUCE: posted                            */
    uint32_t reducing;                /* RECV_REDUCE: reductions started                                  */
    uint32_t done;                    /* segments complete, without a gap                                 */
    uint64_t done_mask, arrived_mask; /* bit i: segment done + i                                          */
    uint32_t next, previous;          /* live ops                                                         */
    uint32_t waiter;                  /* first activity that waits for this op: see activity_of()         */
    uint32_t next_waiter[ACTIVITIES];
    struct dependency *dependencies;
    size_t dependency_count, dependency_capacity;
    struct leaves leaves[ACCESSES]; /* index: what it is filed under, count 0: nothing                  */
    uint32_t index_next[ACCESSES], index_previous[ACCESSES];
};

struct channel {
    bool used;
    int32_t peer;
    uint16_t lane;
    uint32_t run;              /* which one the counters below are of: see progression_restart()   */
    uint32_t sender, receiver; /* last op that was taken in                                         */
    uint32_t window_waiter;    /* the receiving op that the window holds back; NONE                 */
    uint64_t send_assigned, send_begun;
    uint64_t recv_assigned, recv_begun, recv_done;
};

/* Live ops by place, once there are many. The leaves are cut into buckets of `width`; an op is filed under the bucket in
 * which its range begins, or apart if the range is wider than a bucket. The newest stand first. */
struct index {
    uint32_t *head[ACCESSES]; /* of each bucket, and of the wide ones at [buckets]; NULL: not kept */
    uint32_t buckets, width;
};

struct progression {
    const struct shape *shape;
    int rank;
    struct progression_params params;
    size_t leaf_elements, leaf_rest; /* count / chunks and the rest (rule 4) */

    uint32_t round; /* next to take in                                                           */
    uint32_t position;
    bool tail_taken; /* the copies of never-written chunks are in                                 */
    uint32_t run;
    uint64_t serial;
    uint64_t picks; /* counter of the disorder's randomness                                      */

    struct live *slot;
    size_t slots, slot_capacity;
    uint32_t first, last, free; /* list of live ops; list of free slots through `next`                 */
    uint32_t alive;

    uint32_t *ready; /* activities: a heap, oldest first; with disorder in no order                 */
    size_t readies, ready_capacity;

    struct channel *channel; /* open addressing; channels is a power of two                            */
    size_t channels, channels_used;
    struct index index;
    struct lane_order order;

    uint64_t *written;    /* bit c: leaf c of the output has been written; NULL when aliased        */
    struct op previous;   /* last message op taken in, for MORE                                     */
    bool previous_counts; /* and whether its message has begun                                      */
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

/* partition_offset() without its division. */
static size_t leaf_offset(const struct progression *p, uint32_t leaf)
{
    return leaf * p->leaf_elements + (leaf < p->leaf_rest ? leaf : p->leaf_rest);
}

static struct span span_of(const struct progression *p, const struct range *range, enum place vector_place)
{
    const bool scratch = range->buffer == BUFFER_SCRATCH;
    const uint32_t plane = scratch ? range->chunk / p->shape->chunks : 0;
    const uint32_t leaf = range->chunk - plane * p->shape->chunks;
    const size_t begin = leaf_offset(p, leaf), end = leaf_offset(p, leaf + range->chunks);
    return (struct span){.place = scratch ? PLACE_SCRATCH : vector_place,
                         .offset = begin + plane * p->params.count,
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
    if (op->weight != 1 && (op->kind == OP_SEND || op->kind == OP_RECV || op->kind == OP_COPY))
        return malformed(p, op, "bad-op", "a weight on an op that moves what is there");
    if ((op->flags & OP_MORE) && !is_message(op->kind))
        return malformed(p, op, "bad-op", "MORE on an op that is no message");
    return check_joined(p, op);
}

/* ---- channels ---- */

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

/* With the counters of this run. */
static enum status channel_find(struct progression *p, int32_t peer, uint16_t lane, uint32_t *index)
{
    size_t i = channel_place(p->channel, p->channels, peer, lane);
    if (!p->channel[i].used) {
        if ((p->channels_used + 1) * 2 > p->channels) {
            TRY(channels_grow(p));
            i = channel_place(p->channel, p->channels, peer, lane);
        }
        p->channels_used++;
    }
    if (!p->channel[i].used || p->channel[i].run != p->run)
        p->channel[i] =
            (struct channel){.used = true, .peer = peer, .lane = lane, .run = p->run, .window_waiter = NONE};
    *index = (uint32_t)i;
    return STATUS_OK;
}

/* ---- what is ready ---- */

static uint32_t activity_of(uint32_t slot, enum activity activity)
{
    return slot * ACTIVITIES + activity;
}

/* Ascends with emission, and within an op by activity. */
static uint64_t age_of(const struct progression *p, uint32_t activity)
{
    return p->slot[activity / ACTIVITIES].serial * ACTIVITIES + activity % ACTIVITIES;
}

/* Room for both activities of every slot, so that making one ready can't fail. */
static enum status ready_reserve(struct progression *p)
{
    void *memory = p->ready;
    TRY(memory_grow(&memory, &p->ready_capacity, p->slots * ACTIVITIES, sizeof(uint32_t)));
    p->ready = memory;
    return STATUS_OK;
}

static void make_ready(struct progression *p, uint32_t slot, enum activity which)
{
    const uint32_t activity = activity_of(slot, which);
    size_t i = p->readies++;
    p->slot[slot].state[which] = READY;
    if (p->params.disorder == 0) {
        const uint64_t age = age_of(p, activity);
        while (i > 0 && age_of(p, p->ready[(i - 1) / 2]) > age) {
            p->ready[i] = p->ready[(i - 1) / 2];
            i = (i - 1) / 2;
        }
    }
    p->ready[i] = activity;
}

/* Takes out the oldest or, with disorder, whichever stands at `i`. */
static void ready_remove(struct progression *p, size_t i, enum state state)
{
    p->slot[p->ready[i] / ACTIVITIES].state[p->ready[i] % ACTIVITIES] = (uint8_t)state;
    const uint32_t moved = p->ready[--p->readies];
    if (p->params.disorder == 0 && p->readies > 0) {
        const uint64_t age = age_of(p, moved);
        for (size_t child = 1; child < p->readies; child = 2 * i + 1) {
            if (child + 1 < p->readies && age_of(p, p->ready[child + 1]) < age_of(p, p->ready[child]))
                child++;
            if (age_of(p, p->ready[child]) >= age)
                break;
            p->ready[i] = p->ready[child];
            i = child;
        }
    }
    p->ready[i] = moved;
}

/* ---- slots, list ---- */

static enum status slot_take(struct progression *p, uint32_t *index)
{
    if (p->free == NONE) {
        void *memory = p->slot;
        TRY(memory_grow(&memory, &p->slot_capacity, p->slots + 1, sizeof(struct live)));
        p->slot = memory;
        memset(&p->slot[p->slots], 0, sizeof p->slot[p->slots]);
        p->slot[p->slots].next = NONE;
        p->free = (uint32_t)p->slots++;
        TRY(ready_reserve(p));
    }
    const uint32_t s = p->free;
    struct live *live = &p->slot[s];
    p->free = live->next;
    struct dependency *kept = live->dependencies;
    const size_t capacity = live->dependency_capacity;
    *live = (struct live){.serial = ++p->serial,
                          .clock = LANE_CLOCK_NONE,
                          .dependencies = kept,
                          .dependency_capacity = capacity,
                          .follower = NONE,
                          .waiter = NONE,
                          .next = NONE,
                          .previous = p->last};
    if (p->last == NONE)
        p->first = s;
    else
        p->slot[p->last].next = s;
    p->last = s;
    p->alive++;
    *index = s;
    return STATUS_OK;
}

static void index_remove(struct progression *p, uint32_t s);

static void slot_drop(struct progression *p, uint32_t s)
{
    struct live *live = &p->slot[s];
    if (p->index.head[READS] != NULL)
        index_remove(p, s);
    if (live->previous == NONE)
        p->first = live->next;
    else
        p->slot[live->previous].next = live->next;
    if (live->next == NONE)
        p->last = live->previous;
    else
        p->slot[live->next].previous = live->previous;
    live->serial = FREE_SERIAL;
    live->next = p->free;
    p->free = s;
    p->alive--;
}

/* ---- the index ---- */

static struct leaves leaves_of(const struct progression *p, const struct range *range)
{
    const uint32_t base = range->buffer == BUFFER_SCRATCH ? p->shape->chunks : 0;
    return (struct leaves){.first = base + range->chunk, .count = range->chunks};
}

static uint32_t *index_head(struct progression *p, const struct leaves *leaves, enum access access)
{
    const bool wide = leaves->count > p->index.width;
    return &p->index.head[access][wide ? p->index.buckets : leaves->first / p->index.width];
}

static void index_add(struct progression *p, uint32_t s)
{
    struct live *live = &p->slot[s];
    for (enum access a = READS; a < ACCESSES; a++) {
        if (live->hazard[a].count == 0)
            continue;
        live->leaves[a] = leaves_of(p, a == READS ? &live->op.src : &live->op.dst);
        uint32_t *head = index_head(p, &live->leaves[a], a);
        live->index_previous[a] = NONE;
        live->index_next[a] = *head;
        if (*head != NONE)
            p->slot[*head].index_previous[a] = s;
        *head = s;
    }
}

static void index_remove(struct progression *p, uint32_t s)
{
    struct live *live = &p->slot[s];
    for (enum access a = READS; a < ACCESSES; a++) {
        if (live->leaves[a].count == 0)
            continue;
        const uint32_t next = live->index_next[a], previous = live->index_previous[a];
        if (previous != NONE)
            p->slot[previous].index_next[a] = next;
        else
            *index_head(p, &live->leaves[a], a) = next;
        if (next != NONE)
            p->slot[next].index_previous[a] = previous;
        live->leaves[a].count = 0;
    }
}

static enum status index_create(struct progression *p)
{
    struct index *index = &p->index;
    const uint64_t leaves = (uint64_t)p->shape->chunks * (1 + (uint64_t)p->shape->scratch);
    const size_t buckets = leaves < INDEX_MOST ? (size_t)leaves : INDEX_MOST;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, (buckets + 1) * ACCESSES, sizeof(uint32_t)));
    memset(memory, 0xff, (buckets + 1) * ACCESSES * sizeof(uint32_t)); /* NONE */
    index->head[READS] = memory;
    index->head[WRITES] = index->head[READS] + buckets + 1;
    index->buckets = (uint32_t)buckets;
    index->width = (uint32_t)((leaves + buckets - 1) / buckets);
    for (uint32_t s = p->first; s != NONE; s = p->slot[s].next)
        index_add(p, s);
    return STATUS_OK;
}

/* ---- hazards ---- */

static bool overlap(const struct interval *a, const struct interval *b)
{
    return a->count > 0 && b->count > 0 && a->offset < b->offset + b->count && b->offset < a->offset + a->count;
}

static bool contains(const struct interval *a, const struct interval *b)
{
    return b->count == 0 || (a->offset <= b->offset && b->offset + b->count <= a->offset + a->count);
}

/* Rule 2: their ranges overlap and at least one writes. */
static bool conflict(const struct live *a, const struct live *b)
{
    return overlap(&a->hazard[WRITES], &b->hazard[WRITES]) || overlap(&a->hazard[WRITES], &b->hazard[READS]) ||
           overlap(&a->hazard[READS], &b->hazard[WRITES]);
}

/* Rules 2 and 3, of two that conflict. What is copied without being asked for comes before whatever uses it. */
static bool precedes(const struct progression *p, const struct live *before, const struct live *after)
{
    return before->op.lane == after->op.lane || before->implicit ||
           lane_order_precedes(&p->order, before->op.lane, before->position, after->clock);
}

/* A search for what `live` must follow, from the newest to the oldest. */
struct search {
    struct live *live;
    uint64_t floor; /* older ones have been followed by one that covers all of `live` */
};

static enum status look_at(struct progression *p, struct search *search, uint32_t s)
{
    struct live *live = search->live;
    const struct live *other = &p->slot[s];
    if (other->serial <= search->floor || other == live || !conflict(other, live) || !precedes(p, other, live))
        return STATUS_OK;
    const size_t n = live->dependency_count;
    const bool filed_twice = other->leaves[READS].count > 0 && other->leaves[WRITES].count > 0;
    for (size_t i = 0; i < n && filed_twice; i++)
        if (live->dependencies[i].serial == other->serial)
            return STATUS_OK;
    if (n == live->dependency_capacity) {
        void *memory = live->dependencies;
        TRY(memory_grow(&memory, &live->dependency_capacity, n + 1, sizeof(struct dependency)));
        live->dependencies = memory;
    }
    live->dependencies[live->dependency_count++] = (struct dependency){.slot = s, .serial = other->serial};
    if (contains(&other->hazard[WRITES], &live->hazard[READS]) &&
        contains(&other->hazard[WRITES], &live->hazard[WRITES]))
        search->floor = other->serial;
    return STATUS_OK;
}

static enum status look_in_bucket(struct progression *p, struct search *search, uint32_t bucket, enum access access)
{
    for (uint32_t s = p->index.head[access][bucket]; s != NONE && p->slot[s].serial > search->floor;
         s = p->slot[s].index_next[access])
        TRY(look_at(p, search, s));
    return STATUS_OK;
}

/* Those with `access` whose range may overlap the leaves of `range`. */
static enum status look_up(struct progression *p, struct search *search, const struct range *range, enum access access)
{
    const struct leaves leaves = leaves_of(p, range);
    const uint32_t width = p->index.width, reach = width - 1 < leaves.first ? width - 1 : leaves.first;
    TRY(look_in_bucket(p, search, p->index.buckets, access));
    for (uint32_t b = (leaves.first - reach) / width; b <= (leaves.first + leaves.count - 1) / width; b++)
        TRY(look_in_bucket(p, search, b, access));
    return STATUS_OK;
}

/* What `live`, just taken in, must follow. */
static enum status find_dependencies(struct progression *p, struct live *live)
{
    struct search search = {.live = live, .floor = FREE_SERIAL};
    const bool reads = live->hazard[READS].count > 0, writes = live->hazard[WRITES].count > 0;
    const uint32_t widest =
        reads && live->op.src.chunks > live->op.dst.chunks ? live->op.src.chunks : live->op.dst.chunks;
    if (p->index.head[READS] == NULL || widest / p->index.width > p->alive) {
        for (uint32_t s = live->previous; s != NONE && p->slot[s].serial > search.floor; s = p->slot[s].previous)
            TRY(look_at(p, &search, s));
        return STATUS_OK;
    }
    if (writes)
        TRY(look_up(p, &search, &live->op.dst, WRITES));
    if (writes)
        TRY(look_up(p, &search, &live->op.dst, READS));
    return reads ? look_up(p, &search, &live->op.src, WRITES) : STATUS_OK;
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
    return other->done > 0 && other->done > (end - 1 - theirs->offset) / p->params.segment;
}

/* Rule 2, segment by segment; false: *blocker is one that must come first. */
static bool clear(struct progression *p, struct live *live, uint32_t segment, uint32_t *blocker)
{
    const size_t begin = (size_t)segment * p->params.segment;
    const size_t left = live->elements - begin, count = left < p->params.segment ? left : p->params.segment;
    const struct interval *reads = &live->hazard[READS], *writes = &live->hazard[WRITES];
    for (size_t i = 0; i < live->dependency_count;) {
        const struct dependency *d = &live->dependencies[i];
        const struct live *other = &p->slot[d->slot];
        if (other->serial != d->serial) { /* complete and gone */
            live->dependencies[i] = live->dependencies[--live->dependency_count];
            continue;
        }
        *blocker = d->slot;
        if (writes->count > 0 && (!passed(p, other, &other->hazard[WRITES], writes->offset + begin, count) ||
                                  !passed(p, other, &other->hazard[READS], writes->offset + begin, count)))
            return false;
        if (reads->count > 0 && !passed(p, other, &other->hazard[WRITES], reads->offset + begin, count))
            return false;
        i++;
    }
    return true;
}

/* ---- intake ---- */

/* Give a message op its place on its channel. It may begin once the op before it there has begun; *begins says whether
 * that is so. */
static enum status join_channel(struct progression *p, uint32_t s, bool *begins)
{
    struct live *live = &p->slot[s];
    TRY(channel_find(p, live->op.peer, live->op.lane, &live->channel));
    struct channel *channel = &p->channel[live->channel];
    const bool sends = live->op.kind == OP_SEND;
    uint64_t *assigned = sends ? &channel->send_assigned : &channel->recv_assigned;
    uint32_t *last = sends ? &channel->sender : &channel->receiver;
    *begins = *assigned == (sends ? channel->send_begun : channel->recv_begun);
    if (!*begins)
        p->slot[*last].follower = s;
    *last = s;
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

/* Where an op reads, and where its first operand is: the output, or as long as nothing was written the input. */
struct places {
    enum place src, operand;
    bool implicit; /* the op is a copy of leaves that were never written */
};

/* What an op reads and writes, in elements. */
struct extent {
    struct span src, dst;
    size_t elements;
};

static struct extent extent_of(const struct progression *p, const struct op *op, const struct places *places)
{
    struct extent extent = {.src = {.place = PLACE_VECTOR}, .dst = {.place = PLACE_VECTOR}};
    if (has_src(op->kind))
        extent.src = span_of(p, &op->src, places->src);
    if (has_dst(op->kind))
        extent.dst = span_of(p, &op->dst, PLACE_VECTOR);
    extent.elements = has_dst(op->kind) ? extent.dst.count : extent.src.count;
    return extent;
}

static void fill_live(const struct progression *p, struct live *live, const struct op *op, const struct places *places,
                      const struct extent *extent)
{
    live->op = *op;
    live->src = extent->src;
    live->dst = live->operand = extent->dst;
    live->elements = extent->elements;
    if (live->dst.place == PLACE_VECTOR)
        live->operand.place = places->operand;
    if (has_src(op->kind) && places->src != PLACE_INPUT) /* nothing ever writes the input */
        live->hazard[READS] = interval_of(p, &live->src);
    if (has_dst(op->kind))
        live->hazard[WRITES] = interval_of(p, &live->dst);
    live->implicit = places->implicit;
    live->position = (uint64_t)op->round << 32 | p->position;
    live->clock = lane_order_clock(&p->order, op->lane);
}

static enum status take(struct progression *p, const struct op *op, const struct places *places)
{
    const struct extent extent = extent_of(p, op, places);
    if (has_src(op->kind) && has_dst(op->kind) && extent.src.count != extent.elements)
        return malformed(p, op, "bad-op", "source and destination differ in size");
    const bool joined = is_message(op->kind) && continues_message(p, op, extent.elements);
    if (extent.elements == 0)
        return STATUS_OK; /* an empty chunk: nothing travels, on either side */
    const bool whole = extent.elements <= p->params.segment;
    const size_t segments = whole ? 1 : (extent.elements - 1) / p->params.segment + 1;
    if (segments > UINT32_MAX)
        return malformed(p, op, "bad-op", "more than 2^32 segments: use a larger --segment");

    uint32_t s = NONE;
    bool begins = true;
    TRY(slot_take(p, &s));
    struct live *live = &p->slot[s];
    fill_live(p, live, op, places, &extent);
    live->segments = (uint32_t)segments;
    live->joined = joined;
    if (is_message(op->kind))
        TRY(join_channel(p, s, &begins));
    if (p->alive > INDEX_FROM && p->index.head[READS] == NULL)
        TRY(index_create(p));
    else if (p->index.head[READS] != NULL)
        index_add(p, s);
    TRY(find_dependencies(p, live));
    if (begins)
        make_ready(p, s, BEGINNING);
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
        TRY(take(p, &copy, &(struct places){.src = PLACE_INPUT, .operand = PLACE_VECTOR, .implicit = true}));
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
    p->position++;
    if (op->kind == OP_WAIT || op->kind == OP_FENCE)
        return lane_order_take(&p->order, (uint64_t)op->round << 32 | p->position, op);
    struct places places = {.src = PLACE_VECTOR, .operand = PLACE_VECTOR};
    if (has_src(op->kind))
        TRY(first_touch(p, &op->src, op, &places.src));
    if (op->kind == OP_RECV_REDUCE || op->kind == OP_REDUCE || op->kind == OP_SCALE)
        TRY(first_touch(p, &op->dst, op, &places.operand));
    TRY(take(p, op, &places));
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

/* Take in one more round; the last is the tail of copies. */
static enum status take_round(struct progression *p)
{
    if (p->round == p->shape->rounds)
        return take_tail(p);
    struct intake intake = {.sink = {.op = intake_op, .round = p->round}, .progression = p};
    p->position = 0;
    TRY(p->shape->algorithm->emit(p->shape, p->rank, p->round, &intake.sink));
    TRY(check_joined(p, NULL));
    p->round++;
    return STATUS_OK;
}

static bool taken_in(const struct progression *p)
{
    return p->round == p->shape->rounds && p->tail_taken;
}

/* ---- retirement ---- */

/* What waits for op `s` may look again. */
static void wake_waiters(struct progression *p, struct live *live)
{
    uint32_t activity = live->waiter;
    live->waiter = NONE;
    while (activity != NONE) {
        const uint32_t slot = activity / ACTIVITIES, which = activity % ACTIVITIES;
        activity = p->slot[slot].next_waiter[which];
        make_ready(p, slot, (enum activity)which);
    }
}

/* A receive has left the window of its channel. */
static void window_moved(struct progression *p, struct channel *channel)
{
    channel->recv_done++;
    if (channel->window_waiter != NONE)
        make_ready(p, channel->window_waiter, BEGINNING);
    channel->window_waiter = NONE;
}

static void segment_done(struct progression *p, uint32_t s, uint32_t segment)
{
    struct live *live = &p->slot[s];
    const uint32_t before = live->done;
    live->done_mask |= (uint64_t)1 << (segment - live->done);
    while (live->done_mask & 1) {
        live->done_mask >>= 1;
        live->arrived_mask >>= 1;
        live->done++;
    }
    if (live->op.kind == OP_RECV || live->op.kind == OP_RECV_REDUCE)
        window_moved(p, &p->channel[live->channel]);
    if (live->done == before)
        return;
    wake_waiters(p, live);
    if (live->done == live->segments)
        slot_drop(p, s);
    else if (live->begun < live->segments && live->state[BEGINNING] == PARKED) /* PROGRESSION_OUTSTANDING */
        make_ready(p, s, BEGINNING);
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

/* What has come of an activity that was ready: it has started a segment and may start more, has started its last, or is
 * parked or waits. */
enum outcome { STARTED_AND_READY, STARTED, HELD_BACK };

/* Until `blocker` completes another segment. */
static enum state wait_for(struct progression *p, uint32_t s, enum activity which, uint32_t blocker)
{
    p->slot[s].next_waiter[which] = p->slot[blocker].waiter;
    p->slot[blocker].waiter = activity_of(s, which);
    return WAITING;
}

static bool may_reduce(const struct live *live)
{
    return live->reducing < live->begun && ((live->arrived_mask >> (live->reducing - live->done)) & 1);
}

static enum outcome reduce_one(struct progression *p, uint32_t s, struct action *action, enum state *state)
{
    struct live *live = &p->slot[s];
    uint32_t blocker = NONE;
    if (!may_reduce(live))
        return HELD_BACK;
    if (!clear(p, live, live->reducing, &blocker)) {
        *state = wait_for(p, s, REDUCING, blocker);
        return HELD_BACK;
    }
    fill_action(p, s, ACTION_REDUCE, live->reducing++, action);
    return may_reduce(live) ? STARTED_AND_READY : STARTED;
}

/* Messages of a channel begin in order, receives within the window. A RECV lands in the vector, so its hazards must be
 * clear; a RECV_REDUCE lands in a slot of the caller. */
static bool channel_allows(struct progression *p, uint32_t s)
{
    const struct live *live = &p->slot[s];
    struct channel *channel = &p->channel[live->channel];
    if (live->op.kind == OP_SEND)
        return channel->send_begun == live->sequence + live->begun;
    if (channel->recv_begun != live->sequence + live->begun)
        return false;
    if (channel->recv_begun - channel->recv_done >= p->params.window) {
        channel->window_waiter = s;
        return false;
    }
    return true;
}

static enum outcome begin_one(struct progression *p, uint32_t s, struct action *action, enum state *state)
{
    struct live *live = &p->slot[s];
    const bool message = is_message(live->op.kind), sends = live->op.kind == OP_SEND;
    uint32_t blocker = NONE;
    if (live->begun - live->done >= PROGRESSION_OUTSTANDING)
        return HELD_BACK;
    if (message && !channel_allows(p, s))
        return HELD_BACK;
    if (live->op.kind != OP_RECV_REDUCE && !clear(p, live, live->begun, &blocker)) {
        *state = wait_for(p, s, BEGINNING, blocker);
        return HELD_BACK;
    }
    if (message) {
        struct channel *channel = &p->channel[live->channel];
        *(sends ? &channel->send_begun : &channel->recv_begun) += 1;
    }
    fill_action(p, s, sends ? ACTION_SEND : message ? ACTION_POST : ACTION_LOCAL, live->begun++, action);
    if (live->begun < live->segments)
        return STARTED_AND_READY;
    if (live->follower != NONE)
        make_ready(p, live->follower, BEGINNING);
    return STARTED;
}

/* The oldest, or with disorder any. */
static size_t pick(struct progression *p)
{
    return p->params.disorder == 0 ? 0 : (size_t)rng_below(p->params.disorder, p->picks++, p->readies);
}

enum status progression_next(struct progression *p, struct action *action)
{
    for (;;) {
        while (!taken_in(p) && p->alive < p->params.lookahead)
            TRY(take_round(p));
        if (p->readies == 0)
            return STATUS_AGAIN;
        const size_t i = pick(p);
        const uint32_t s = p->ready[i] / ACTIVITIES;
        enum state state = PARKED;
        if (p->ready[i] % ACTIVITIES == REDUCING) {
            const enum outcome outcome = reduce_one(p, s, action, &state);
            if (outcome != STARTED_AND_READY)
                ready_remove(p, i, state);
            if (outcome != HELD_BACK)
                return STATUS_OK;
            continue;
        }
        const enum outcome outcome = begin_one(p, s, action, &state);
        if (outcome != STARTED_AND_READY)
            ready_remove(p, i, state);
        if (outcome != HELD_BACK)
            return STATUS_OK;
    }
}

void progression_complete(struct progression *p, const struct action *action)
{
    struct live *live = &p->slot[action->slot];
    if (action->kind != ACTION_POST || live->op.kind != OP_RECV_REDUCE) {
        segment_done(p, action->slot, action->segment);
        return;
    }
    live->arrived_mask |= (uint64_t)1 << (action->segment - live->done);
    if (live->state[REDUCING] == PARKED && may_reduce(live))
        make_ready(p, action->slot, REDUCING);
}

bool progression_finished(const struct progression *p)
{
    return taken_in(p) && p->alive == 0;
}

/* ---- life and messages ---- */

void progression_restart(struct progression *p)
{
    p->readies = 0;
    while (p->first != NONE)
        slot_drop(p, p->first);
    if (++p->run == 0) { /* once in 2^32 runs the counters of old ones must go */
        memset(p->channel, 0, p->channels * sizeof(struct channel));
        p->channels_used = 0;
    }
    if (p->written != NULL)
        memset(p->written, 0, ((size_t)p->shape->chunks / 64 + 1) * sizeof(uint64_t));
    lane_order_restart(&p->order);
    p->round = 0;
    p->tail_taken = false;
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
    *p = (struct progression){.shape = shape,
                              .rank = rank,
                              .params = *params,
                              .leaf_elements = params->count / shape->chunks,
                              .leaf_rest = params->count % shape->chunks,
                              .first = NONE,
                              .last = NONE,
                              .free = NONE};
    lane_order_init(&p->order, shape->lanes);
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
    free(p->ready);
    free(p->channel);
    free(p->index.head[READS]);
    lane_order_release(&p->order);
    free(p->written);
    free(p);
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
        text_addf(text, " (%u of %u segments done, %u begun", (unsigned)live->done, (unsigned)live->segments,
                  (unsigned)live->begun);
    if (live->segments > 0 && is_message(live->op.kind))
        text_addf(text, ", next is number %" PRIu64, live->sequence + live->done);
    if (live->segments > 0)
        text_add(text, ")");
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
