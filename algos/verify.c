/* verify.c - proves a schedule by running it on symbols (verify.h).
 *
 * A trial has one progression for each worker and a world of values: for each leaf of the vector and of the scratch
 * planes, which chunk it is a part of, whose contributions it holds, whether it is finalised, and the hash of its
 * expression tree. What has been started waits in a list; a message is ready when both its ends have started. Values
 * are read as late as allowed, and a posted receive spoils its destination at once, so that an order that nothing
 * guarantees shows in the result.
 *
 * Trials differ in what the contract leaves open: in place or not, the size of segments, how far ahead rounds are taken
 * in, and the order of starts and completions. The expression trees of all trials must be the same. Schedules with
 * halves are then proved half by half: the first must leave each chunk complete at its owner, the second must spread it
 * from there and from nowhere else, which is what a composition relies on.
 */
#include "algos/verify.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/lane_order.h"
#include "algos/progression.h"
#include "algos/rounding.h"
#include "base/memory.h"
#include "base/rng.h"

#define NONE UINT32_MAX
#define WEIGHT_TOLERANCE 1e-12
#define SMALL 32 /* workers; ops taken in ahead */

enum completion_order { OLDEST_FIRST, NEWEST_FIRST, RANDOM_ORDER };
enum part { WHOLE, REDUCING_HALF, SPREADING_HALF };
enum when { ON_SMALL_TEAMS = 1, WITHOUT_HALVES = 2, ALWAYS = 4 };

struct trial {
    enum part part;
    unsigned when; /* enum when */
    bool aliased;
    bool lossy;       /* what travels is rounded (rounding.h) */
    uint32_t segment; /* leaves; NONE: whole ranges */
    uint32_t lookahead;
    enum completion_order order;
    uint64_t seed;
};

/* Up to SMALL workers all of them, above that what verify.h says. */
static const struct trial trials[] = {
    {.when = WITHOUT_HALVES, .aliased = true, .segment = 1, .lookahead = SMALL, .order = OLDEST_FIRST},
    {.when = ALWAYS, .segment = NONE, .lookahead = 12, .order = RANDOM_ORDER, .seed = 3},
    {.when = ON_SMALL_TEAMS, .segment = 1, .lookahead = 8, .order = NEWEST_FIRST},
    {.when = ON_SMALL_TEAMS, .segment = 2, .lookahead = 24, .order = RANDOM_ORDER, .seed = 1},
    {.when = ON_SMALL_TEAMS, .aliased = true, .segment = 1, .lookahead = 1, .order = RANDOM_ORDER, .seed = 2},
};

static const struct trial halves[] = {
    {.part = REDUCING_HALF, .aliased = true, .segment = 1, .lookahead = 16, .order = OLDEST_FIRST},
    {.part = SPREADING_HALF, .aliased = true, .segment = 1, .lookahead = 16, .order = NEWEST_FIRST},
};

static const struct trial rounding = {.lossy = true, .segment = NONE, .lookahead = 12, .order = OLDEST_FIRST};

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

/* What a leaf holds, with the contributors kept apart (struct store). */
struct value {
    uint64_t hash;  /* of the expression tree, alike for a+b and b+a */
    uint32_t round; /* of the latest write                           */
    uint32_t leaf;  /* of the vector that it is a part of            */
    uint32_t count; /* of contributions                              */
    bool known;     /* false: never written, or about to be received */
    bool final;
    bool rounded; /* to a wire format: rounding it again changes nothing */
};

/* Contributors: the bits of 64 workers, or when mixing the weight of one. */
union member {
    uint64_t bits;
    double weight;
};

/* Values, and the contributors of each in world.words members. */
struct store {
    struct value *value;
    union member *members;
};

/* One of them. */
struct ref {
    struct value *value;
    union member *members;
};

/* One message op as emitted, in the list of its channel. */
struct message {
    uint32_t round, chunks, next;
};

struct queue {
    uint32_t first, last, count;
};

/* Messages from src to dst on a lane. */
struct channel {
    int src, dst;
    uint16_t lane;
    struct queue emitted[2]; /* messages: [0] SENDs, [1] RECVs                             */
    struct queue sends;      /* started, receive not posted                                */
    uint32_t post;           /* posted, send not started; NONE: none                       */
    uint64_t sends_begun, posts_begun;
    bool receiving;       /* posted and not complete: the window of 1                   */
    struct store arrived; /* what a RECV_REDUCE has received and not yet reduced        */
};

/* An action that has been started and not completed. */
struct started {
    struct action action;
    int worker;
    uint32_t channel; /* messages                      */
    uint32_t partner; /* of a ready POST: its SEND     */
    uint32_t next;    /* in a queue, or free           */
};

struct world {
    const struct shape *shape; /* what runs: the whole or a half of it */
    const struct shape *whole;
    const struct trial *trial;
    struct verify_result *result;
    bool mixing;
    size_t words; /* of a set: 64-bit words, or doubles when mixing           */
    size_t cells; /* of a worker: vector, input, scratch planes               */
    struct store store;
    struct progression **progression;
    struct channel *channel; /* an array; found through the table */
    size_t channels, channel_capacity;
    uint32_t *table; /* open addressing, a power of two: place -> channel */
    size_t table_size;
    struct message *message;
    size_t messages, message_capacity;
    struct started *started;
    size_t starts, start_capacity;
    uint32_t free_start;
    uint32_t *ready; /* started entries that may complete, in the order in which they became ready */
    size_t readies, ready_capacity;
    int *awake; /* workers that may start more */
    bool *is_awake;
    int awake_count;
    uint64_t picks;
    bool sent_partial; /* a sum that is no result yet has travelled */
    bool malformed;    /* an op is; nothing else is worth looking for */
};

/* ------------------------------------------------------------------------------------------------------------- faults
 */

static const char *const fault_names[] = {
    [FAULT_NONE] = "none",
    [FAULT_BAD_OP] = "bad-op",
    [FAULT_UNMATCHED] = "unmatched-message",
    [FAULT_SIZE] = "size-mismatch",
    [FAULT_ROUND] = "round-mismatch",
    [FAULT_DEADLOCK] = "deadlock",
    [FAULT_RACE] = "race",
    [FAULT_MISSING] = "missing-contribution",
    [FAULT_DOUBLED] = "doubled-contribution",
    [FAULT_NOT_FINALISED] = "not-finalised",
    [FAULT_FINALISED_EARLY] = "finalised-early",
    [FAULT_FINALISED_TWICE] = "finalised-twice",
    [FAULT_SCRATCH] = "scratch",
    [FAULT_WAIT] = "wait-in-future",
    [FAULT_OWNER] = "owner",
    [FAULT_WEIGHTS] = "weights",
    [FAULT_TRAIT] = "trait",
    [FAULT_ROUNDING] = "rounding",
};

const char *fault_name(enum fault fault)
{
    return fault_names[fault];
}

__attribute__((format(printf, 3, 4))) static void report(struct world *w, enum fault fault, const char *format, ...)
{
    struct verify_result *result = w->result;
    if (result->fault != FAULT_NONE)
        return; /* the first is the cause */
    result->fault = fault;
    const int n = snprintf(result->reason, sizeof result->reason, "%s: ", fault_name(fault));
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(result->reason + n, sizeof result->reason - (size_t)n, format, arguments);
    va_end(arguments);
}

/* A malformed op, whose name stands before the message; anything else stays an error. */
static enum status report_malformed(struct world *w, enum status status)
{
    const char *message = status_message(), *colon = strchr(message, ':');
    if (status != STATUS_FORMAT || colon == NULL)
        return status;
    for (size_t f = FAULT_NONE + 1; f < LENGTH(fault_names); f++)
        if (strlen(fault_names[f]) == (size_t)(colon - message) &&
            strncmp(fault_names[f], message, (size_t)(colon - message)) == 0) {
            report(w, (enum fault)f, "%s", colon + 2);
            w->malformed = true;
            return STATUS_OK;
        }
    return status;
}

static const char *op_words(const struct op *op)
{
    static const char *const words[OP_KINDS] = {"SEND to", "RECV from", "RECV_REDUCE from", "REDUCE", "COPY", "SCALE",
                                                "WAIT",    "FENCE"};
    return words[op->kind];
}

/* ------------------------------------------------------------------------------------------------------------- values
 */

static enum status store_create(const struct world *w, size_t cells, struct store *store)
{
    enum status status = STATUS_OK;
    void *value = NULL, *members = NULL;
    TRY_TO(done, memory_zeroed(&value, cells, sizeof(struct value)));
    TRY_TO(done, memory_zeroed(&members, cells * w->words, sizeof(union member)));
    *store = (struct store){.value = value, .members = members};
done:
    if (status < 0) {
        free(value);
        free(members);
    }
    return status;
}

static void store_release(struct store *store)
{
    free(store->value);
    free(store->members);
    *store = (struct store){0};
}

static struct ref ref_of(const struct world *w, const struct store *store, size_t i)
{
    return (struct ref){.value = store->value + i, .members = store->members + i * w->words};
}

/* Leaf i of a span of `worker`. Every leaf is one element. */
static struct ref ref_in(const struct world *w, int worker, const struct span *span, size_t i)
{
    static const size_t planes_before[] = {[PLACE_VECTOR] = 0, [PLACE_INPUT] = 1, [PLACE_SCRATCH] = 2};
    const size_t cell = planes_before[span->place] * w->shape->chunks + span->offset + i;
    return ref_of(w, &w->store, (size_t)worker * w->cells + cell);
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Commutative, not associative. */
static uint64_t mix_pair(uint64_t a, uint64_t b)
{
    return mix(a + b + UINT64_C(0x9e3779b97f4a7c15));
}

static void spoil(const struct world *w, struct ref ref)
{
    *ref.value = (struct value){.known = false};
    for (size_t i = 0; i < w->words; i++)
        ref.members[i] = w->mixing ? (union member){.weight = 0} : (union member){.bits = 0};
}

static void copy(const struct world *w, struct ref to, struct ref from, const struct op *op)
{
    *to.value = *from.value;
    to.value->round = op->round;
    const bool weighted = w->mixing && (op->kind == OP_COPY || op->kind == OP_SCALE);
    for (size_t i = 0; i < w->words; i++) {
        to.members[i] = from.members[i];
        if (weighted)
            to.members[i].weight *= op->weight;
    }
}

/* Q(x) of a lossy wire format, with Q(Q(x)) = Q(x): a node of the expression tree. */
static void round_value(const struct world *w, struct value *value)
{
    if (w->trial->lossy && !value->rounded)
        value->hash = mix(value->hash ^ UINT64_C(0x51afd7ed558ccd51));
    value->rounded = true;
}

/* The first worker whose contribution is missing, -1 when complete. */
static int first_missing(const struct world *w, struct ref ref)
{
    if (ref.value->count == (uint32_t)w->shape->workers) /* none is there twice: that is a fault at once */
        return -1;
    for (int i = 0; i < w->shape->workers; i++)
        if (!((ref.members[i / 64].bits >> (i % 64)) & 1))
            return i;
    return -1;
}

/* The first worker that is in both, -1 when there is none. */
static int first_common(const struct world *w, struct ref a, struct ref b)
{
    for (size_t i = 0; i < w->words; i++) {
        const uint64_t common = a.members[i].bits & b.members[i].bits;
        for (int bit = 0; common != 0 && bit < 64; bit++)
            if ((common >> bit) & 1)
                return (int)i * 64 + bit;
    }
    return -1;
}

/* What is read must have been written; in the spreading half, whatever is not the owner's is unknown by design. */
static void check_known(struct world *w, int worker, const struct span *span, size_t i, const struct op *op)
{
    if (span->place == PLACE_INPUT || w->trial->part == SPREADING_HALF || ref_in(w, worker, span, i).value->known)
        return;
    const bool scratch = span->place == PLACE_SCRATCH;
    report(w, scratch ? FAULT_SCRATCH : FAULT_MISSING, "worker %d reads %s chunk %zu before it is there (round %u)",
           worker, scratch ? "scratch" : "vector", span->offset + i, (unsigned)op->round);
}

static void check_weight(struct world *w, int worker, const struct op *op)
{
    if (!w->mixing && op->weight != 1)
        report(w, FAULT_WEIGHTS, "worker %d round %u: weight %.6f in a reduction", worker, (unsigned)op->round,
               op->weight);
    if (w->mixing && (op->flags & OP_FINAL))
        report(w, FAULT_BAD_OP, "worker %d round %u: FINAL when mixing", worker, (unsigned)op->round);
}

/* What is finalised before it is complete shows when more is added; if nothing is, a contribution is missing. */
static void combine_sets(struct world *w, int worker, size_t leaf, struct ref to, struct ref a, struct ref b,
                         const struct op *op)
{
    const bool final = op->flags & OP_FINAL;
    const unsigned round = op->round;
    if ((a.value->final && first_missing(w, a) >= 0) || (b.value->final && first_missing(w, b) >= 0))
        report(w, FAULT_FINALISED_EARLY, "worker %d chunk %zu: there is more to add (round %u)", worker, leaf, round);
    if (final && (a.value->final || b.value->final))
        report(w, FAULT_FINALISED_TWICE, "worker %d chunk %zu (round %u)", worker, leaf, round);
    const int doubled = first_common(w, a, b);
    if (doubled >= 0)
        report(w, FAULT_DOUBLED, "worker %d chunk %zu has worker %d twice (round %u)", worker, leaf, doubled, round);
    for (size_t i = 0; i < w->words; i++)
        to.members[i].bits = a.members[i].bits | b.members[i].bits;
}

/* to = a (+) weight * b; `leaf` for messages. */
static void combine(struct world *w, int worker, size_t leaf, struct ref to, struct ref a, struct ref b,
                    const struct op *op)
{
    const struct value made = {.hash = mix_pair(a.value->hash, b.value->hash),
                               .round = op->round,
                               .leaf = a.value->leaf,
                               .count = a.value->count + b.value->count,
                               .known = a.value->known && b.value->known,
                               .final = op->flags & OP_FINAL};
    if (made.known && a.value->leaf != b.value->leaf)
        report(w, FAULT_MISSING, "worker %d adds a part of chunk %u to one of chunk %u (round %u)", worker,
               (unsigned)b.value->leaf, (unsigned)a.value->leaf, (unsigned)op->round);
    for (size_t i = 0; w->mixing && i < w->words; i++)
        to.members[i].weight = a.members[i].weight + op->weight * b.members[i].weight;
    if (!w->mixing)
        combine_sets(w, worker, leaf, to, a, b, op);
    *to.value = made;
}

/* The worker's own contribution to `leaf` in `ref`. */
static void contribute(const struct world *w, struct ref ref, int worker, uint32_t leaf)
{
    spoil(w, ref);
    *ref.value = (struct value){.hash = mix((uint64_t)worker + 1), .leaf = leaf, .count = 1, .known = true};
    if (w->mixing)
        ref.members[worker].weight = 1;
    else
        ref.members[worker / 64].bits |= (uint64_t)1 << (worker % 64);
}

/* A complete chunk, as its owner has it before the spreading half. */
static void make_complete(const struct world *w, struct ref ref, uint32_t leaf)
{
    *ref.value =
        (struct value){.hash = 1, .leaf = leaf, .count = (uint32_t)w->shape->workers, .known = true, .final = true};
    for (int i = 0; i < w->shape->workers; i++)
        ref.members[i / 64].bits |= (uint64_t)1 << (i % 64);
}

static void set_up_values(struct world *w)
{
    for (int r = 0; r < w->shape->workers; r++) {
        const struct span vector = {.place = PLACE_VECTOR, .count = w->shape->chunks};
        const struct span input = {.place = PLACE_INPUT, .count = w->shape->chunks};
        for (uint32_t c = 0; c < w->shape->chunks; c++) {
            const struct ref ref = ref_in(w, r, &vector, c);
            contribute(w, ref_in(w, r, &input, c), r, c);
            if (w->trial->part == SPREADING_HALF && w->whole->algorithm->owner(w->whole, c) == r)
                make_complete(w, ref, c);
            else if (w->trial->part != SPREADING_HALF && w->trial->aliased)
                contribute(w, ref, r, c);
        }
    }
}

/* ----------------------------------------------------------------------------------------------------------- channels
 */

static size_t channel_place(const struct world *w, int src, int dst, uint16_t lane)
{
    const size_t mask = w->table_size - 1;
    size_t i = (size_t)mix(((uint64_t)lane << 48) ^ ((uint64_t)(uint32_t)src << 24) ^ (uint32_t)dst) & mask;
    while (w->table[i] != NONE) {
        const struct channel *c = &w->channel[w->table[i]];
        if (c->src == src && c->dst == dst && c->lane == lane)
            break;
        i = (i + 1) & mask;
    }
    return i;
}

static enum status table_create(struct world *w, size_t size)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, size, sizeof(uint32_t)));
    free(w->table);
    w->table = memory;
    w->table_size = size;
    memset(memory, 0xff, size * sizeof(uint32_t)); /* NONE */
    for (size_t i = 0; i < w->channels; i++)
        w->table[channel_place(w, w->channel[i].src, w->channel[i].dst, w->channel[i].lane)] = (uint32_t)i;
    return STATUS_OK;
}

static const struct queue empty_queue = {.first = NONE, .last = NONE};

static enum status channel_find(struct world *w, int src, int dst, uint16_t lane, uint32_t *index)
{
    size_t place = channel_place(w, src, dst, lane);
    if (w->table[place] == NONE) {
        if ((w->channels + 1) * 2 > w->table_size) {
            TRY(table_create(w, w->table_size * 2));
            place = channel_place(w, src, dst, lane);
        }
        void *memory = w->channel;
        TRY(memory_grow(&memory, &w->channel_capacity, w->channels + 1, sizeof(struct channel)));
        w->channel = memory;
        w->channel[w->channels] =
            (struct channel){.src = src, .dst = dst, .lane = lane, .sends = empty_queue, .post = NONE};
        w->channel[w->channels].emitted[0] = w->channel[w->channels].emitted[1] = empty_queue;
        w->table[place] = (uint32_t)w->channels++;
    }
    *index = w->table[place];
    return STATUS_OK;
}

/* ---- matching, as emitted (rule 1): names what is wrong, after a trial has gone wrong ---- */

struct collector {
    struct sink sink; /* first */
    struct world *world;
    int rank;
};

static enum status collect_message(struct world *w, int rank, const struct op *op)
{
    const bool receives = op->kind != OP_SEND;
    uint32_t c = NONE;
    TRY(channel_find(w, receives ? op->peer : rank, receives ? rank : op->peer, op->lane, &c));
    void *memory = w->message;
    TRY(memory_grow(&memory, &w->message_capacity, w->messages + 1, sizeof(struct message)));
    w->message = memory;
    const uint32_t m = (uint32_t)w->messages++;
    w->message[m] =
        (struct message){.round = op->round, .chunks = receives ? op->dst.chunks : op->src.chunks, .next = NONE};
    struct queue *queue = &w->channel[c].emitted[receives];
    if (queue->count++ == 0)
        queue->first = m;
    else
        w->message[queue->last].next = m;
    queue->last = m;
    return STATUS_OK;
}

static enum status collect(struct sink *sink, const struct op *op)
{
    struct collector *collector = (struct collector *)sink;
    if (op->kind == OP_SEND || op->kind == OP_RECV || op->kind == OP_RECV_REDUCE)
        return collect_message(collector->world, collector->rank, op);
    return STATUS_OK;
}

static enum status collect_messages(struct world *w)
{
    for (int r = 0; r < w->shape->workers; r++) {
        struct collector collector = {.sink = {.op = collect}, .world = w, .rank = r};
        for (uint32_t round = 0; round < w->shape->rounds; round++) {
            collector.sink.round = round;
            collector.sink.lane = 0;
            TRY(w->shape->algorithm->emit(w->shape, r, round, &collector.sink));
        }
    }
    return STATUS_OK;
}

static void match_channel(struct world *w, const struct channel *c)
{
    const struct queue *sends = &c->emitted[0], *recvs = &c->emitted[1];
    const bool unequal = sends->count != recvs->count;
    const struct message *const messages = w->message;
    if (messages == NULL)
        return;
    uint32_t s = sends->first, r = recvs->first;
    for (; s != NONE && r != NONE; s = messages[s].next, r = messages[r].next) {
        const struct message *send = &messages[s], *recv = &messages[r];
        if (unequal && send->round != recv->round)
            break;
        if (!unequal && send->round != recv->round)
            report(w, FAULT_ROUND, "worker %d sends to %d in round %u, which receives it in round %u (lane %u)", c->src,
                   c->dst, (unsigned)send->round, (unsigned)recv->round, (unsigned)c->lane);
        if (!unequal && send->chunks != recv->chunks)
            report(w, FAULT_SIZE, "worker %d sends %u chunks to %d, which takes %u (round %u lane %u)", c->src,
                   (unsigned)send->chunks, c->dst, (unsigned)recv->chunks, (unsigned)send->round, (unsigned)c->lane);
    }
    if (!unequal)
        return;
    if (sends->count > recvs->count)
        report(w, FAULT_UNMATCHED, "worker %d sends to %d in round %u, which has no receive for it (lane %u)", c->src,
               c->dst, (unsigned)messages[s == NONE ? sends->last : s].round, (unsigned)c->lane);
    else
        report(w, FAULT_UNMATCHED, "worker %d receives from %d in round %u, which has no send for it (lane %u)", c->dst,
               c->src, (unsigned)messages[r == NONE ? recvs->last : r].round, (unsigned)c->lane);
}

static enum status match_messages(struct world *w)
{
    TRY(collect_messages(w));
    for (size_t i = 0; i < w->channels; i++) /* a missing partner shifts what follows: look for that first */
        if (w->channel[i].emitted[0].count != w->channel[i].emitted[1].count)
            match_channel(w, &w->channel[i]);
    for (size_t i = 0; i < w->channels; i++)
        match_channel(w, &w->channel[i]);
    return STATUS_OK;
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

static enum status report_race(struct world *w, int rank, const struct watcher *watcher)
{
    struct op earlier = {0}, later = {0};
    TRY(op_at(w->shape, rank, watcher->earlier, &earlier));
    TRY(op_at(w->shape, rank, watcher->later, &later));
    report(w, FAULT_RACE, "worker %d: nothing orders round %u lane %u %s %d and round %u lane %u %s %d", rank,
           (unsigned)earlier.round, (unsigned)earlier.lane, op_words(&earlier), (int)earlier.peer,
           (unsigned)later.round, (unsigned)later.lane, op_words(&later), (int)later.peer);
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

static enum status find_races(struct world *w)
{
    enum status status = STATUS_OK;
    const struct shape *shape = w->shape;
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
            TRY_TO(done, report_race(w, r, &watcher));
    }
done:
    free(watcher.touches);
    lane_order_release(&watcher.order);
    return status;
}

/* A trial has gone wrong: if messages do not match or lanes race, that is the cause. */
static enum status name_cause(struct world *w)
{
    const struct verify_result found = *w->result;
    *w->result = (struct verify_result){.fault = FAULT_NONE};
    TRY(match_messages(w));
    if (w->result->fault == FAULT_NONE)
        TRY(find_races(w));
    if (w->result->fault == FAULT_NONE)
        *w->result = found;
    return STATUS_OK;
}

/* ------------------------------------------------------------------------------------------------------------ started
 */

static enum status start_take(struct world *w, uint32_t *index)
{
    if (w->free_start == NONE) {
        void *memory = w->started;
        TRY(memory_grow(&memory, &w->start_capacity, w->starts + 1, sizeof(struct started)));
        w->started = memory;
        w->started[w->starts].next = NONE;
        w->free_start = (uint32_t)w->starts++;
    }
    *index = w->free_start;
    w->free_start = w->started[*index].next;
    return STATUS_OK;
}

static void start_free(struct world *w, uint32_t index)
{
    w->started[index].next = w->free_start;
    w->free_start = index;
}

static enum status make_ready(struct world *w, uint32_t index)
{
    void *memory = w->ready;
    TRY(memory_grow(&memory, &w->ready_capacity, w->readies + 1, sizeof(uint32_t)));
    w->ready = memory;
    w->ready[w->readies++] = index;
    return STATUS_OK;
}

static void mismatch(struct world *w, const struct channel *channel, const struct action *sent,
                     const struct action *posted)
{
    report(w, sent->op.round != posted->op.round ? FAULT_ROUND : FAULT_SIZE,
           "worker %d sends %u chunks to %d in round %u, which takes %u in round %u (lane %u)", channel->src,
           (unsigned)sent->op.src.chunks, channel->dst, (unsigned)sent->op.round, (unsigned)posted->op.dst.chunks,
           (unsigned)posted->op.round, (unsigned)channel->lane);
}

/* The post of a channel and its oldest send have met. */
static enum status meet(struct world *w, struct channel *channel)
{
    const uint32_t send = channel->sends.first, post = channel->post;
    if (send == NONE || post == NONE)
        return STATUS_OK;
    const struct action *sent = &w->started[send].action, *posted = &w->started[post].action;
    if (sent->sequence != posted->sequence)
        return fail(STATUS_INTERNAL, "progression: segments of a channel meet out of order");
    if (sent->op.round != posted->op.round || sent->op.src.chunks != posted->op.dst.chunks) {
        mismatch(w, channel, sent, posted);
        return STATUS_OK;
    }
    channel->sends.first = w->started[send].next;
    channel->post = NONE;
    w->started[post].partner = send;
    return make_ready(w, post);
}

static enum status start_send(struct world *w, struct channel *channel, uint32_t index)
{
    struct started *started = &w->started[index];
    if (started->action.sequence != channel->sends_begun++)
        return fail(STATUS_INTERNAL, "progression: sends of a channel started out of order");
    started->next = NONE;
    if (channel->sends.first == NONE)
        channel->sends.first = index;
    else
        w->started[channel->sends.last].next = index;
    channel->sends.last = index;
    return meet(w, channel);
}

static enum status start_post(struct world *w, struct channel *channel, uint32_t index)
{
    const struct started *started = &w->started[index];
    const struct action *action = &started->action;
    if (action->sequence != channel->posts_begun++)
        return fail(STATUS_INTERNAL, "progression: receives of a channel posted out of order");
    if (channel->receiving)
        return fail(STATUS_INTERNAL, "progression: more receives posted than the window allows");
    channel->receiving = true;
    channel->post = index;
    for (size_t i = 0; action->op.kind == OP_RECV && i < action->dst.count; i++)
        spoil(w, ref_in(w, started->worker, &action->dst, i));
    return meet(w, channel);
}

static enum status start(struct world *w, int worker, const struct action *action)
{
    uint32_t index = NONE;
    TRY(start_take(w, &index));
    struct started *started = &w->started[index];
    *started = (struct started){.action = *action, .worker = worker, .partner = NONE, .channel = NONE, .next = NONE};
    if (action->kind == ACTION_LOCAL)
        return make_ready(w, index);
    const int peer = action->op.peer;
    const bool sends = action->kind == ACTION_SEND;
    TRY(channel_find(w, sends ? worker : peer, sends ? peer : worker, action->op.lane, &started->channel));
    struct channel *channel = &w->channel[started->channel];
    if (sends)
        return start_send(w, channel, index);
    return action->kind == ACTION_POST ? start_post(w, channel, index) : make_ready(w, index);
}

/* ---------------------------------------------------------------------------------------------------------- completion
 */

static void wake(struct world *w, int worker)
{
    if (!w->is_awake[worker]) {
        w->is_awake[worker] = true;
        w->awake[w->awake_count++] = worker;
    }
}

static enum status complete(struct world *w, uint32_t index)
{
    struct started *started = &w->started[index];
    struct progression *progression = w->progression[started->worker];
    if (progression_finished(progression))
        return fail(STATUS_INTERNAL, "progression: finished while a segment is under way");
    progression_complete(progression, &started->action);
    wake(w, started->worker);
    start_free(w, index);
    return STATUS_OK;
}

/* The data of a message moves when both ends have long been waiting for it. */
static enum status complete_message(struct world *w, uint32_t index)
{
    const struct started *post = &w->started[index], *send = &w->started[post->partner];
    struct channel *channel = &w->channel[post->channel];
    const bool reduces = post->action.op.kind == OP_RECV_REDUCE;
    if (reduces && channel->arrived.value == NULL) {
        const uint32_t most = w->trial->segment < w->shape->chunks ? w->trial->segment : w->shape->chunks;
        TRY(store_create(w, most, &channel->arrived));
    }
    for (size_t i = 0; i < post->action.dst.count; i++) {
        check_known(w, send->worker, &send->action.src, i, &send->action.op);
        const struct ref to = reduces ? ref_of(w, &channel->arrived, i) : ref_in(w, post->worker, &post->action.dst, i);
        const struct ref from = ref_in(w, send->worker, &send->action.src, i);
        w->sent_partial |= from.value->count > 1 && !from.value->final;
        copy(w, to, from, &post->action.op);
        round_value(w, to.value);
    }
    if (!reduces)
        channel->receiving = false;
    const uint32_t partner = post->partner;
    TRY(complete(w, partner));
    return complete(w, index);
}

/* Element by element, as late as possible. */
static void compute(struct world *w, const struct started *started)
{
    const struct action *a = &started->action;
    const int worker = started->worker;
    check_weight(w, worker, &a->op);
    for (size_t i = 0; i < a->dst.count; i++) {
        const struct ref to = ref_in(w, worker, &a->dst, i), operand = ref_in(w, worker, &a->operand, i);
        if (a->op.kind != OP_COPY)
            check_known(w, worker, &a->operand, i, &a->op);
        if (a->op.kind == OP_REDUCE || a->op.kind == OP_COPY)
            check_known(w, worker, &a->src, i, &a->op);
        if (a->op.kind == OP_RECV_REDUCE)
            combine(w, worker, a->dst.offset + i, to, operand, ref_of(w, &w->channel[started->channel].arrived, i),
                    &a->op);
        else if (a->op.kind == OP_REDUCE)
            combine(w, worker, a->dst.offset + i, to, operand, ref_in(w, worker, &a->src, i), &a->op);
        else if (a->op.kind == OP_COPY)
            copy(w, to, ref_in(w, worker, &a->src, i), &a->op);
        else
            copy(w, to, operand, &a->op); /* SCALE */
        if (a->op.flags & OP_ROUND_SOURCE)
            round_value(w, to.value);
    }
}

static enum status complete_ready(struct world *w, uint32_t index)
{
    const struct started *started = &w->started[index];
    if (started->action.kind == ACTION_POST)
        return complete_message(w, index);
    compute(w, started);
    if (started->action.kind == ACTION_REDUCE)
        w->channel[started->channel].receiving = false;
    return complete(w, index);
}

/* ------------------------------------------------------------------------------------------------------------- driving
 */

static bool toss(struct world *w)
{
    return w->trial->order == RANDOM_ORDER && rng_below(w->trial->seed, w->picks++, 2) != 0;
}

/* Start what this worker may start; at random, stop early and come back to it. */
static enum status run_worker(struct world *w, int worker, bool *more)
{
    struct action action;
    *more = true;
    do {
        const enum status status = progression_next(w->progression[worker], &action);
        if (status < 0) {
            *more = false;
            return report_malformed(w, status);
        }
        if (status == STATUS_AGAIN) {
            *more = false;
            return STATUS_OK;
        }
        TRY(start(w, worker, &action));
    } while (!toss(w));
    return STATUS_OK;
}

static enum status run_awake(struct world *w)
{
    int kept = 0;
    const int count = w->awake_count;
    for (int i = 0; i < count; i++) {
        const int worker = w->awake[i];
        bool more = false;
        TRY(run_worker(w, worker, &more));
        w->is_awake[worker] = more;
        if (more)
            w->awake[kept++] = worker;
    }
    w->awake_count = kept;
    return STATUS_OK;
}

/* Complete what is ready; at random, only a part. Completing makes nothing else ready. */
static enum status complete_wave(struct world *w)
{
    const size_t count = w->readies;
    size_t kept = 0;
    if (w->trial->order == NEWEST_FIRST)
        for (size_t i = 0; i < count / 2; i++) {
            const uint32_t other = w->ready[count - 1 - i];
            w->ready[count - 1 - i] = w->ready[i];
            w->ready[i] = other;
        }
    for (size_t i = 0; i < count; i++) {
        if (toss(w))
            w->ready[kept++] = w->ready[i];
        else
            TRY(complete_ready(w, w->ready[i]));
    }
    w->readies = kept;
    return STATUS_OK;
}

static void report_deadlock(struct world *w)
{
    char waiting[2][80] = {"", ""};
    int found = 0;
    for (int r = 0; r < w->shape->workers && found < 2; r++) {
        const struct op *op = progression_oldest(w->progression[r]);
        if (op == NULL)
            continue;
        (void)snprintf(waiting[found++], sizeof waiting[0], "worker %d is at round %u lane %u, %s %d", r,
                       (unsigned)op->round, (unsigned)op->lane, op_words(op), (int)op->peer);
    }
    report(w, FAULT_DEADLOCK, "%s; %s", waiting[0], found > 1 ? waiting[1] : "all others are done");
}

static enum status drive(struct world *w)
{
    while (w->result->fault == FAULT_NONE && (w->awake_count > 0 || w->readies > 0)) {
        TRY(run_awake(w));
        TRY(complete_wave(w));
    }
    for (int r = 0; w->result->fault == FAULT_NONE && r < w->shape->workers; r++)
        if (!progression_finished(w->progression[r]))
            report_deadlock(w);
    return STATUS_OK;
}

/* ---------------------------------------------------------------------------------------------------------- judgement
 */

static void judge_leaf(struct world *w, int worker, uint32_t leaf, struct ref ref)
{
    const unsigned round = ref.value->round;
    const int missing = first_missing(w, ref);
    if (w->trial->part != WHOLE) {
        if (ref.value->known && ref.value->leaf != leaf)
            report(w, FAULT_OWNER, "worker %d chunk %u holds chunk %u", worker, (unsigned)leaf,
                   (unsigned)ref.value->leaf);
        if (missing >= 0)
            report(w, FAULT_OWNER, "worker %d chunk %u lacks worker %d after %s rounds", worker, (unsigned)leaf,
                   missing,
                   w->trial->part == REDUCING_HALF ? "the reducing" : "spreading from the owners in the other");
        return;
    }
    if (ref.value->known && ref.value->leaf != leaf)
        report(w, FAULT_MISSING, "worker %d chunk %u holds chunk %u (round %u)", worker, (unsigned)leaf,
               (unsigned)ref.value->leaf, round);
    if (missing >= 0)
        report(w, FAULT_MISSING, "worker %d chunk %u lacks worker %d (round %u)", worker, (unsigned)leaf, missing,
               round);
    if (w->shape->workers > 1 && !ref.value->final)
        report(w, FAULT_NOT_FINALISED, "worker %d chunk %u (round %u)", worker, (unsigned)leaf, round);
}

static void judge_sums(struct world *w)
{
    const int p = w->shape->workers;
    const struct span vector = {.place = PLACE_VECTOR, .count = w->shape->chunks};
    for (uint32_t c = 0; c < w->shape->chunks; c++)
        for (int i = 0; i < p; i++) {
            double row = 0, column = 0;
            if (ref_in(w, i, &vector, c).value->leaf != c)
                report(w, FAULT_MISSING, "worker %d chunk %u holds another chunk", i, (unsigned)c);
            for (int j = 0; j < p; j++) {
                row += ref_in(w, i, &vector, c).members[j].weight;
                column += ref_in(w, j, &vector, c).members[i].weight;
            }
            if (!(fabs(row - 1) <= WEIGHT_TOLERANCE))
                report(w, FAULT_WEIGHTS, "row %d sums to %.12f (chunk %u)", i, row, (unsigned)c);
            if (!(fabs(column - 1) <= WEIGHT_TOLERANCE))
                report(w, FAULT_WEIGHTS, "column %d sums to %.12f (chunk %u)", i, column, (unsigned)c);
        }
}

static void judge(struct world *w)
{
    const struct span vector = {.place = PLACE_VECTOR, .count = w->shape->chunks};
    for (uint32_t c = 0; c < w->shape->chunks; c++) {
        if (w->trial->part == REDUCING_HALF) {
            const int owner = w->whole->algorithm->owner(w->whole, c);
            judge_leaf(w, owner, c, ref_in(w, owner, &vector, c));
            continue;
        }
        for (int r = 0; !w->mixing && r < w->shape->workers; r++)
            judge_leaf(w, r, c, ref_in(w, r, &vector, c));
    }
    if (w->mixing)
        judge_sums(w);
}

/* Expression trees: alike on all workers, for all chunks, and in every trial. */
static void judge_trees(struct world *w, uint64_t *trees, bool first)
{
    const struct span vector = {.place = PLACE_VECTOR, .count = w->shape->chunks};
    struct verify_result *result = w->result;
    result->equal_bits = result->same_order = true;
    if (first)
        result->whole_inputs = !w->sent_partial;
    for (int r = 0; r < w->shape->workers; r++)
        for (uint32_t c = 0; c < w->shape->chunks; c++) {
            uint64_t *kept = &trees[(size_t)r * w->shape->chunks + c];
            const uint64_t tree = ref_in(w, r, &vector, c).value->hash;
            if (first)
                *kept = tree;
            if (*kept != tree)
                report(w, FAULT_RACE, "worker %d chunk %u: the order of its additions depends on timing", r,
                       (unsigned)c);
            result->equal_bits &= tree == trees[c];
            result->same_order &= tree == trees[0];
        }
}

/* With rounding on the wire, all workers still end with equal bits. */
static void judge_rounding(struct world *w)
{
    const struct span vector = {.place = PLACE_VECTOR, .count = w->shape->chunks};
    for (int r = 1; r < w->shape->workers; r++)
        for (uint32_t c = 0; c < w->shape->chunks; c++)
            if (ref_in(w, r, &vector, c).value->hash != ref_in(w, 0, &vector, c).value->hash)
                report(w, FAULT_ROUNDING, "worker %d chunk %u: other bits than worker 0 where the wire format rounds",
                       r, (unsigned)c);
}

/* ------------------------------------------------------------------------------------------------------------- trials
 */

/* Every worker takes in its first rounds and starts one action, which is kept. */
static enum status prime(struct world *w, struct action *first, bool *has_first)
{
    for (int r = 0; r < w->shape->workers; r++) {
        const struct progression_params params = {
            .count = w->shape->chunks,
            .segment = w->trial->segment < w->shape->chunks ? w->trial->segment : w->shape->chunks,
            .window = 1,
            .lookahead = w->trial->lookahead,
            .aliased = w->trial->aliased,
            .disorder = w->trial->order == RANDOM_ORDER ? w->trial->seed * 1000003 + (uint64_t)r : 0};
        TRY(progression_create(w->shape, r, &params, &w->progression[r]));
        const enum status status = progression_next(w->progression[r], &first[r]);
        if (status < 0)
            return report_malformed(w, status);
        has_first[r] = status == STATUS_OK;
    }
    return STATUS_OK;
}

static enum status begin(struct world *w, const struct action *first, const bool *has_first)
{
    for (int r = 0; r < w->shape->workers; r++) {
        wake(w, r);
        if (has_first[r])
            TRY(start(w, r, &first[r]));
    }
    return STATUS_OK;
}

static enum status world_create(struct world *w)
{
    const size_t p = (size_t)w->shape->workers;
    void *memory = NULL;
    w->mixing = w->whole->algorithm->traits & TRAIT_MIXING;
    w->words = w->mixing ? p : (p + 63) / 64;
    w->cells = (size_t)w->shape->chunks * (2 + (size_t)w->shape->scratch);
    w->free_start = NONE;
    TRY(store_create(w, p * w->cells, &w->store));
    TRY(memory_zeroed(&memory, p, sizeof(struct progression *)));
    w->progression = memory;
    TRY(memory_zeroed(&memory, p, sizeof(int)));
    w->awake = memory;
    TRY(memory_zeroed(&memory, p, sizeof(bool)));
    w->is_awake = memory;
    return table_create(w, 64);
}

static void world_release(struct world *w)
{
    for (int r = 0; w->progression != NULL && r < w->shape->workers; r++)
        progression_destroy(w->progression[r]);
    for (size_t i = 0; i < w->channels; i++)
        store_release(&w->channel[i].arrived);
    store_release(&w->store);
    free(w->progression);
    free(w->channel);
    free(w->table);
    free(w->message);
    free(w->started);
    free(w->ready);
    free(w->awake);
    free(w->is_awake);
}

/* One trial of `shape`, which is `whole` or a half of it. */
static enum status run_trial(const struct shape *shape, const struct shape *whole, const struct trial *trial,
                             uint64_t *trees, bool first_trial, struct verify_result *result)
{
    enum status status = STATUS_OK;
    struct world w = {.shape = shape, .whole = whole, .trial = trial, .result = result};
    void *first = NULL, *has_first = NULL;
    TRY_TO(done, memory_zeroed(&first, (size_t)shape->workers, sizeof(struct action)));
    TRY_TO(done, memory_zeroed(&has_first, (size_t)shape->workers, sizeof(bool)));
    TRY_TO(done, world_create(&w));
    set_up_values(&w);
    TRY_TO(done, prime(&w, first, has_first));
    if (result->fault == FAULT_NONE) {
        TRY_TO(done, begin(&w, first, has_first));
        TRY_TO(done, drive(&w));
    }
    if (result->fault == FAULT_NONE)
        judge(&w);
    if (result->fault == FAULT_NONE && trial->lossy)
        judge_rounding(&w);
    else if (result->fault == FAULT_NONE && trial->part == WHOLE)
        judge_trees(&w, trees, first_trial);
    if (result->fault == FAULT_NONE && (first_trial || trial->lossy))
        TRY_TO(done, find_races(&w));
    if (result->fault != FAULT_NONE && !w.malformed)
        TRY_TO(done, name_cause(&w));
done:
    free(first);
    free(has_first);
    world_release(&w);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------- halves
 */

/* A shape that runs rounds [first, first + rounds) of another; its state. */
struct excerpt {
    const struct shape *whole;
    uint32_t first;
};

struct excerpt_sink {
    struct sink sink; /* first */
    struct sink *outer;
    uint32_t first;
};

static enum status excerpt_op(struct sink *sink, const struct op *op)
{
    const struct excerpt_sink *excerpt = (const struct excerpt_sink *)sink;
    struct op shifted = *op;
    shifted.round -= excerpt->first;
    if (op->kind == OP_WAIT && op->wait_round < excerpt->first)
        return STATUS_OK; /* for what is over before this part begins */
    shifted.wait_round -= excerpt->first;
    return excerpt->outer->op(excerpt->outer, &shifted);
}

static enum status excerpt_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct excerpt *excerpt = shape->state;
    struct excerpt_sink inner = {
        .sink = {.op = excerpt_op, .round = round + excerpt->first}, .outer = sink, .first = excerpt->first};
    return excerpt->whole->algorithm->emit(excerpt->whole, rank, round + excerpt->first, &inner.sink);
}

static const struct algorithm excerpt_algorithm = {.name = "excerpt", .emit = excerpt_emit};

static enum status verify_half(const struct shape *shape, const struct trial *trial, struct verify_result *result)
{
    const bool reducing = trial->part == REDUCING_HALF;
    struct excerpt excerpt = {.whole = shape, .first = reducing ? 0 : shape->split};
    const struct shape half = {.algorithm = &excerpt_algorithm,
                               .workers = shape->workers,
                               .chunks = shape->chunks,
                               .scratch = shape->scratch,
                               .rounds = reducing ? shape->split : shape->rounds - shape->split,
                               .lanes = shape->lanes,
                               .traits = shape->traits,
                               .state = &excerpt};
    return run_trial(&half, shape, trial, NULL, false, result);
}

/* The schedule that runs with a lossy wire format: what is put in must not race, and must do what it is for. */
static enum status verify_rounding(const struct shape *shape, struct verify_result *result)
{
    struct shape *rounded = NULL;
    TRY(rounding_shape(shape, ROUNDING_ALL_RANKS, ROUNDING_ELEMENTS, &rounded));
    const enum status status = run_trial(rounded, rounded, &rounding, NULL, false, result);
    shape_destroy(rounded);
    return status;
}

static bool owners_in_range(const struct shape *shape, struct verify_result *result)
{
    for (uint32_t c = 0; c < shape->chunks; c++) {
        const int owner = shape->algorithm->owner(shape, c);
        if (owner < 0 || owner >= shape->workers) {
            struct world w = {.result = result};
            report(&w, FAULT_OWNER, "chunk %u belongs to worker %d of %d", (unsigned)c, owner, shape->workers);
            return false;
        }
    }
    return true;
}

/* What the shape promises of its additions must be so. */
static void judge_traits(const struct shape *shape, struct verify_result *result)
{
    const struct {
        unsigned trait;
        bool has;
        const char *lack;
    } traits[] = {
        {TRAIT_EQUAL_BITS, result->equal_bits, "equal bits, but workers add in different orders"},
        {TRAIT_SAME_ORDER, result->same_order, "the same order, but chunks are added up in different orders"},
        {TRAIT_WHOLE_INPUTS, result->whole_inputs, "whole inputs, but a partial sum is sent"},
    };
    struct world w = {.result = result};
    for (size_t i = 0; i < LENGTH(traits); i++)
        if ((shape->traits & traits[i].trait) && !traits[i].has)
            report(&w, FAULT_TRAIT, "%s claims %s", shape->algorithm->name, traits[i].lack);
}

static bool applies(const struct trial *trial, const struct shape *shape, bool in_halves)
{
    return trial->when == ALWAYS || shape->workers <= SMALL || (trial->when == WITHOUT_HALVES && !in_halves);
}

enum status verify_shape(const struct shape *shape, struct verify_result *result)
{
    enum status status = STATUS_OK;
    void *trees = NULL;
    const bool in_halves = shape_has_halves(shape) && shape->split > 0;
    *result = (struct verify_result){.fault = FAULT_NONE};
    TRY(memory_zeroed(&trees, (size_t)shape->workers * shape->chunks, sizeof(uint64_t)));
    bool first = true;
    for (size_t i = 0; i < LENGTH(trials) && result->fault == FAULT_NONE; i++)
        if (applies(&trials[i], shape, in_halves)) {
            TRY_TO(done, run_trial(shape, shape, &trials[i], trees, first, result));
            first = false;
        }
    if (in_halves && result->fault == FAULT_NONE && owners_in_range(shape, result))
        for (size_t i = 0; i < LENGTH(halves) && result->fault == FAULT_NONE; i++)
            TRY_TO(done, verify_half(shape, &halves[i], result));
    if (result->fault == FAULT_NONE)
        judge_traits(shape, result);
    if (result->fault == FAULT_NONE && result->equal_bits && shape->workers <= SMALL)
        TRY_TO(done, verify_rounding(shape, result));
    result->ok = result->fault == FAULT_NONE;
    if (!result->ok)
        result->equal_bits = result->same_order = result->whole_inputs = false;
done:
    free(trees);
    return status;
}
