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
 *
 * Contributions are sets of bits, or on large teams sums; leaves are all of them, or on large teams some: struct scope.
 */
#include "algos/verify.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/progression.h"
#include "algos/rounding.h"
#include "algos/routes.h"
#include "algos/verify_internal.h"
#include "base/memory.h"
#include "base/rng.h"

#define NONE UINT32_MAX
#define WEIGHT_TOLERANCE 1e-12
#define SMALL 32                        /* workers */
#define PRIME ((UINT64_C(1) << 61) - 1) /* a Mersenne prime: sums are taken modulo it */
#define OP_BYTES 700                    /* of a live op and of what it has started, about */
#define WORKER_BYTES 16384              /* of a worker's progression with few live ops, about */
#define FEW_WORKERS 16
#define EMITS_MOST (1 << 22) /* calls of emit for an estimate, or to name a cause */

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
    uint64_t sum;   /* of the contributors' weights, where sets would be too large */
    uint32_t round; /* of the latest write                           */
    uint32_t leaf;  /* of the vector that it is a part of            */
    uint32_t count; /* of contributions                              */
    bool known;     /* false: never written, or about to be received */
    bool final;
    bool rounded; /* to a wire format: rounding it again changes nothing */
};

/* Contributors: the bits of 64 workers, or when mixing the weight of one. When mixing on a large team: the sum of all
 * weights, and that of the weights times a random number of each worker. */
union member {
    uint64_t bits;
    double weight;
};

/* Values, and the contributors of each in scope.words members. */
struct store {
    struct value *value;
    union member *members;
};

/* One of them. */
struct ref {
    struct value *value;
    union member *members;
};

/* How much is followed. */
struct scope {
    bool mixing;
    bool exact;       /* sets of contributors, not sums                                   */
    size_t words;     /* members of a value                                               */
    uint32_t *column; /* the leaves that are followed, ascending; of every plane the same */
    uint32_t columns;
    bool sampled; /* not all leaves                                                   */
    size_t bytes; /* that the proof may take                                          */
};

struct queue {
    uint32_t first, last;
};

/* Messages of a route. */
struct channel {
    struct queue sends; /* started, receive not posted              */
    uint32_t post;      /* posted, send not started; NONE: none     */
    uint64_t sends_begun, posts_begun;
    bool receiving;       /* posted and not complete: the window of 1                                */
    struct store arrived; /* what a RECV_REDUCE has received and not yet reduced, of each column     */
    uint32_t arrived_columns;
};

/* An action that has been started and not completed. */
struct started {
    struct action action;
    int worker;
    uint32_t channel; /* messages                  */
    uint32_t partner; /* of a ready POST: its SEND */
    uint32_t next;    /* in a queue, or free       */
};

struct world {
    const struct shape *shape; /* what runs: the whole or a half of it */
    const struct shape *whole;
    const struct trial *trial;
    const struct scope *scope;
    struct verify_result *result;
    size_t cells; /* of a worker: vector, scratch planes                   */
    struct store store;
    struct store input; /* of each worker: its contribution, which is the same for all leaves */
    uint64_t total;     /* of all workers' weights                                            */
    struct progression **progression;
    struct routes routes;
    struct channel *channel; /* of each route */
    size_t channels, channel_capacity;
    struct started *started;
    size_t starts, start_capacity;
    uint32_t free_start;
    uint32_t *ready; /* started entries that may complete, in the order in which they became ready */
    size_t readies, ready_capacity;
    int *awake; /* workers that may start more */
    bool *is_awake;
    int awake_count;
    uint64_t picks, tosses;
    bool sent_partial; /* a sum that is no result yet has travelled */
    bool malformed;    /* an op is; nothing else is worth looking for */
    bool moves;        /* a leaf has gone to another place: columns are not closed */
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

void verify_report(struct verify_result *result, enum fault fault, const char *format, ...)
{
    if (result->fault != FAULT_NONE)
        return; /* the first is the cause */
    result->fault = fault;
    const int n = snprintf(result->reason, sizeof result->reason, "%s: ", fault_name(fault));
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(result->reason + n, sizeof result->reason - (size_t)n, format, arguments);
    va_end(arguments);
}

#define report(w, ...) verify_report((w)->result, __VA_ARGS__)

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

const char *verify_op_words(const struct op *op)
{
    static const char *const words[OP_KINDS] = {"SEND to", "RECV from", "RECV_REDUCE from", "REDUCE", "COPY", "SCALE",
                                                "WAIT",    "FENCE"};
    return words[op->kind];
}

/* ---- values ---- */

static enum status store_create(const struct scope *scope, size_t cells, struct store *store)
{
    enum status status = STATUS_OK;
    void *value = NULL, *members = NULL;
    TRY_TO(done, memory_zeroed(&value, cells, sizeof(struct value)));
    if (scope->words > 0)
        TRY_TO(done, memory_zeroed(&members, cells * scope->words, sizeof(union member)));
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
    return (struct ref){.value = store->value + i, .members = store->members + i * w->scope->words};
}

/* The columns that a span touches: [first, end) of scope.column. */
struct columns {
    uint32_t first, end;
};

static uint32_t column_from(const struct scope *scope, uint32_t leaf)
{
    uint32_t low = 0, high = scope->columns;
    if (!scope->sampled)
        return leaf;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (scope->column[middle] < leaf)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Leaf of a span's first element within its plane. Every leaf is one element. */
static uint32_t leaf_of(const struct world *w, const struct span *span)
{
    return (uint32_t)(span->place == PLACE_SCRATCH ? span->offset % w->shape->chunks : span->offset);
}

static struct columns columns_of(const struct world *w, const struct span *span)
{
    const uint32_t leaf = leaf_of(w, span);
    return (struct columns){.first = column_from(w->scope, leaf),
                            .end = column_from(w->scope, leaf + (uint32_t)span->count)};
}

/* What a span of `worker` holds in a column; of the input, which nothing writes, its contribution. */
static struct ref ref_in(const struct world *w, int worker, const struct span *span, uint32_t column)
{
    if (span->place == PLACE_INPUT) {
        const struct ref ref = ref_of(w, &w->input, (size_t)worker);
        ref.value->leaf = w->scope->column[column];
        return ref;
    }
    const size_t plane = span->place == PLACE_SCRATCH ? 1 + span->offset / w->shape->chunks : 0;
    return ref_of(w, &w->store, (size_t)worker * w->cells + plane * w->scope->columns + column);
}

static struct ref ref_at(const struct world *w, int worker, uint32_t column)
{
    const struct span vector = {.place = PLACE_VECTOR};
    return ref_in(w, worker, &vector, column);
}

/* How far on `from` begins, in columns, from where `to` does. A leaf that goes elsewhere leaves a sample. */
static uint32_t shift_between(struct world *w, const struct span *to, const struct span *from)
{
    const uint32_t shift = leaf_of(w, from) - leaf_of(w, to); /* modulo 2^32 */
    w->moves |= shift != 0;
    return w->scope->sampled ? 0 : shift;
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

/* Modulo PRIME; both are below it. */
static uint64_t add(uint64_t a, uint64_t b)
{
    return a + b >= PRIME ? a + b - PRIME : a + b;
}

static uint64_t random_weight(int worker)
{
    static const uint64_t purpose = UINT64_C(0x766572696679); /* any: schedules know nothing of it */
    return rng_below(purpose, (uint64_t)worker, PRIME);
}

static double random_real(int worker)
{
    return 1 + rng_uniform(UINT64_C(0x6d6978696e67), (uint64_t)worker);
}

static void spoil(const struct world *w, struct ref ref)
{
    *ref.value = (struct value){.known = false};
    for (size_t i = 0; i < w->scope->words; i++)
        ref.members[i] = w->scope->mixing ? (union member){.weight = 0} : (union member){.bits = 0};
}

static void copy(const struct world *w, struct ref to, struct ref from, const struct op *op)
{
    *to.value = *from.value;
    to.value->round = op->round;
    const bool weighted = w->scope->mixing && op->kind == OP_SCALE;
    for (size_t i = 0; i < w->scope->words; i++) {
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

static bool is_complete(const struct world *w, const struct value *value)
{
    return value->count == (uint32_t)w->shape->workers && (w->scope->exact || value->sum == w->total);
}

/* The first worker whose contribution is missing, for messages; -1 when that is not known. */
static int first_missing(const struct world *w, struct ref ref)
{
    for (int i = 0; w->scope->exact && i < w->shape->workers; i++)
        if (!((ref.members[i / 64].bits >> (i % 64)) & 1))
            return i;
    return -1;
}

/* The first worker that is in both, -1 when there is none. */
static int first_common(const struct world *w, struct ref a, struct ref b)
{
    for (size_t i = 0; i < w->scope->words; i++) {
        const uint64_t common = a.members[i].bits & b.members[i].bits;
        for (int bit = 0; common != 0 && bit < 64; bit++)
            if ((common >> bit) & 1)
                return (int)i * 64 + bit;
    }
    return -1;
}

/* What is read must have been written; in the spreading half, whatever is not the owner's is unknown by design. */
static void check_known(struct world *w, int worker, const struct span *span, uint32_t column, const struct op *op)
{
    if (span->place == PLACE_INPUT || w->trial->part == SPREADING_HALF || ref_in(w, worker, span, column).value->known)
        return;
    const bool scratch = span->place == PLACE_SCRATCH;
    report(w, scratch ? FAULT_SCRATCH : FAULT_MISSING, "worker %d reads %s chunk %u before it is there (round %u)",
           worker, scratch ? "scratch" : "vector", (unsigned)w->scope->column[column], (unsigned)op->round);
}

static void check_weight(struct world *w, int worker, const struct op *op)
{
    if (!w->scope->mixing && op->weight != 1)
        report(w, FAULT_WEIGHTS, "worker %d round %u: weight %.6f in a reduction", worker, (unsigned)op->round,
               op->weight);
    if (w->scope->mixing && (op->flags & OP_FINAL))
        report(w, FAULT_BAD_OP, "worker %d round %u: FINAL when mixing", worker, (unsigned)op->round);
}

/* What is finalised before it is complete shows when more is added; if nothing is, a contribution is missing. */
static void combine_sets(struct world *w, int worker, uint32_t leaf, struct ref to, struct ref a, struct ref b,
                         const struct op *op)
{
    const bool final = op->flags & OP_FINAL;
    const unsigned round = op->round;
    if ((a.value->final && !is_complete(w, a.value)) || (b.value->final && !is_complete(w, b.value)))
        report(w, FAULT_FINALISED_EARLY, "worker %d chunk %u: there is more to add (round %u)", worker, (unsigned)leaf,
               round);
    if (final && (a.value->final || b.value->final))
        report(w, FAULT_FINALISED_TWICE, "worker %d chunk %u (round %u)", worker, (unsigned)leaf, round);
    const int doubled = w->scope->exact ? first_common(w, a, b) : -1;
    if (doubled >= 0)
        report(w, FAULT_DOUBLED, "worker %d chunk %u has worker %d twice (round %u)", worker, (unsigned)leaf, doubled,
               round);
    else if (a.value->count + b.value->count > (uint32_t)w->shape->workers)
        report(w, FAULT_DOUBLED, "worker %d chunk %u has more contributions than there are workers (round %u)", worker,
               (unsigned)leaf, round);
    for (size_t i = 0; i < w->scope->words; i++)
        to.members[i].bits = a.members[i].bits | b.members[i].bits;
}

/* to = a (+) weight * b; `leaf` for messages. */
static void combine(struct world *w, int worker, uint32_t leaf, struct ref to, struct ref a, struct ref b,
                    const struct op *op)
{
    const struct value made = {.hash = mix_pair(a.value->hash, b.value->hash),
                               .sum = add(a.value->sum, b.value->sum),
                               .round = op->round,
                               .leaf = a.value->leaf,
                               .count = a.value->count + b.value->count,
                               .known = a.value->known && b.value->known,
                               .final = op->flags & OP_FINAL};
    if (made.known && a.value->leaf != b.value->leaf)
        report(w, FAULT_MISSING, "worker %d adds a part of chunk %u to one of chunk %u (round %u)", worker,
               (unsigned)b.value->leaf, (unsigned)a.value->leaf, (unsigned)op->round);
    for (size_t i = 0; w->scope->mixing && i < w->scope->words; i++)
        to.members[i].weight = a.members[i].weight + op->weight * b.members[i].weight;
    if (!w->scope->mixing)
        combine_sets(w, worker, leaf, to, a, b, op);
    *to.value = made;
}

/* The worker's own contribution to `leaf` in `ref`. */
static void contribute(const struct world *w, struct ref ref, int worker, uint32_t leaf)
{
    spoil(w, ref);
    *ref.value = (struct value){
        .hash = mix((uint64_t)worker + 1), .sum = random_weight(worker), .leaf = leaf, .count = 1, .known = true};
    if (w->scope->mixing && w->scope->exact) {
        ref.members[worker].weight = 1;
    } else if (w->scope->mixing) {
        ref.members[0].weight = 1;
        ref.members[1].weight = random_real(worker);
    } else if (w->scope->exact) {
        ref.members[worker / 64].bits |= (uint64_t)1 << (worker % 64);
    }
}

/* A complete chunk, as its owner has it before the spreading half. */
static void make_complete(const struct world *w, struct ref ref, uint32_t leaf)
{
    const int p = w->shape->workers;
    *ref.value =
        (struct value){.hash = 1, .sum = w->total, .leaf = leaf, .count = (uint32_t)p, .known = true, .final = true};
    for (int i = 0; w->scope->exact && i < p; i++)
        ref.members[i / 64].bits |= (uint64_t)1 << (i % 64);
}

static void set_up_values(struct world *w)
{
    const bool spreading = w->trial->part == SPREADING_HALF;
    for (int r = 0; r < w->shape->workers; r++) {
        contribute(w, ref_of(w, &w->input, (size_t)r), r, 0);
        w->total = add(w->total, random_weight(r));
    }
    for (uint32_t k = 0; k < w->scope->columns; k++) {
        const uint32_t leaf = w->scope->column[k];
        if (spreading)
            make_complete(w, ref_at(w, w->whole->algorithm->owner(w->whole, leaf), k), leaf);
        for (int r = 0; !spreading && w->trial->aliased && r < w->shape->workers; r++) {
            copy(w, ref_at(w, r, k), ref_of(w, &w->input, (size_t)r), &(struct op){.weight = 1});
            ref_at(w, r, k).value->leaf = leaf;
        }
    }
}

/* ---- started ---- */

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

static void mismatch(struct world *w, uint32_t route, const struct action *sent, const struct action *posted)
{
    const struct route *r = &w->routes.route[route];
    report(w, sent->op.round != posted->op.round ? FAULT_ROUND : FAULT_SIZE,
           "worker %d sends %u chunks to %d in round %u, which takes %u in round %u (lane %u)", r->src,
           (unsigned)sent->op.src.chunks, r->dst, (unsigned)sent->op.round, (unsigned)posted->op.dst.chunks,
           (unsigned)posted->op.round, (unsigned)r->lane);
}

/* The post of a channel and its oldest send have met. */
static enum status meet(struct world *w, uint32_t route)
{
    struct channel *channel = &w->channel[route];
    const uint32_t send = channel->sends.first, post = channel->post;
    if (send == NONE || post == NONE)
        return STATUS_OK;
    const struct action *sent = &w->started[send].action, *posted = &w->started[post].action;
    if (sent->sequence != posted->sequence)
        return fail(STATUS_INTERNAL, "progression: segments of a channel meet out of order");
    if (sent->op.round != posted->op.round || sent->op.src.chunks != posted->op.dst.chunks) {
        mismatch(w, route, sent, posted);
        return STATUS_OK;
    }
    channel->sends.first = w->started[send].next;
    channel->post = NONE;
    w->started[post].partner = send;
    return make_ready(w, post);
}

static enum status start_send(struct world *w, uint32_t route, uint32_t index)
{
    struct started *started = &w->started[index];
    struct channel *channel = &w->channel[route];
    if (started->action.sequence != channel->sends_begun++)
        return fail(STATUS_INTERNAL, "progression: sends of a channel started out of order");
    if (channel->sends.first == NONE)
        channel->sends.first = index;
    else
        w->started[channel->sends.last].next = index;
    channel->sends.last = index;
    return meet(w, route);
}

static enum status start_post(struct world *w, uint32_t route, uint32_t index)
{
    const struct started *started = &w->started[index];
    const struct action *action = &started->action;
    struct channel *channel = &w->channel[route];
    if (action->sequence != channel->posts_begun++)
        return fail(STATUS_INTERNAL, "progression: receives of a channel posted out of order");
    if (channel->receiving)
        return fail(STATUS_INTERNAL, "progression: more receives posted than the window allows");
    channel->receiving = true;
    channel->post = index;
    const struct columns columns = columns_of(w, &action->dst);
    for (uint32_t k = columns.first; action->op.kind == OP_RECV && k < columns.end; k++)
        spoil(w, ref_in(w, started->worker, &action->dst, k));
    return meet(w, route);
}

static enum status channel_find(struct world *w, int src, int dst, uint16_t lane, uint32_t *route)
{
    TRY(routes_find(&w->routes, src, dst, lane, route));
    void *memory = w->channel;
    TRY(memory_grow(&memory, &w->channel_capacity, w->routes.count, sizeof(struct channel)));
    w->channel = memory;
    while (w->channels < w->routes.count)
        w->channel[w->channels++] = (struct channel){.sends = {NONE, NONE}, .post = NONE};
    return STATUS_OK;
}

/* What started[index].action says. */
static enum status start(struct world *w, int worker, uint32_t index)
{
    struct started *started = &w->started[index];
    const struct action *action = &started->action;
    started->worker = worker;
    started->partner = started->channel = started->next = NONE;
    if (action->kind == ACTION_LOCAL)
        return make_ready(w, index);
    const int peer = action->op.peer;
    const bool sends = action->kind == ACTION_SEND;
    TRY(channel_find(w, sends ? worker : peer, sends ? peer : worker, action->op.lane, &started->channel));
    if (sends)
        return start_send(w, started->channel, index);
    return action->kind == ACTION_POST ? start_post(w, started->channel, index) : make_ready(w, index);
}

/* ---- completion ---- */

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

/* Room for what a RECV_REDUCE receives, which the window makes one segment a channel. */
static enum status make_arrived(const struct world *w, struct channel *channel, uint32_t columns)
{
    if (columns <= channel->arrived_columns)
        return STATUS_OK;
    store_release(&channel->arrived);
    channel->arrived_columns = 0;
    TRY(store_create(w->scope, columns, &channel->arrived));
    channel->arrived_columns = columns;
    return STATUS_OK;
}

/* On large teams there are too many channels to keep it. */
static void drop_arrived(const struct world *w, struct channel *channel)
{
    channel->receiving = false;
    if (w->scope->exact)
        return;
    store_release(&channel->arrived);
    channel->arrived_columns = 0;
}

/* The data of a message moves when both ends have long been waiting for it. */
static enum status complete_message(struct world *w, uint32_t index)
{
    const struct started *post = &w->started[index], *send = &w->started[post->partner];
    const struct span *to = &post->action.dst, *from = &send->action.src;
    struct channel *channel = &w->channel[post->channel];
    const bool reduces = post->action.op.kind == OP_RECV_REDUCE;
    const struct columns columns = columns_of(w, to);
    const uint32_t shift = shift_between(w, to, from);
    if (reduces)
        TRY(make_arrived(w, channel, columns.end - columns.first));
    for (uint32_t k = columns.first; k < columns.end; k++) {
        const uint32_t sent = k + shift;
        check_known(w, send->worker, from, sent, &send->action.op);
        const struct ref source = ref_in(w, send->worker, from, sent);
        const struct ref target =
            reduces ? ref_of(w, &channel->arrived, k - columns.first) : ref_in(w, post->worker, to, k);
        w->sent_partial |= source.value->count > 1 && !source.value->final;
        copy(w, target, source, &post->action.op);
        round_value(w, target.value);
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
    const struct columns columns = columns_of(w, &a->dst);
    const bool has_src = a->op.kind == OP_REDUCE || a->op.kind == OP_COPY;
    const uint32_t shift = has_src ? shift_between(w, &a->dst, &a->src) : 0;
    check_weight(w, worker, &a->op);
    for (uint32_t k = columns.first; k < columns.end; k++) {
        const struct ref to = ref_in(w, worker, &a->dst, k), operand = ref_in(w, worker, &a->operand, k);
        const uint32_t source = k + shift, leaf = w->scope->column[k];
        if (a->op.kind != OP_COPY)
            check_known(w, worker, &a->operand, k, &a->op);
        if (has_src)
            check_known(w, worker, &a->src, source, &a->op);
        if (a->op.kind == OP_RECV_REDUCE)
            combine(w, worker, leaf, to, operand, ref_of(w, &w->channel[started->channel].arrived, k - columns.first),
                    &a->op);
        else if (a->op.kind == OP_REDUCE)
            combine(w, worker, leaf, to, operand, ref_in(w, worker, &a->src, source), &a->op);
        else if (a->op.kind == OP_COPY)
            copy(w, to, ref_in(w, worker, &a->src, source), &a->op);
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
        drop_arrived(w, &w->channel[started->channel]);
    return complete(w, index);
}

/* ---- driving ---- */

/* One random bit. */
static bool toss(struct world *w)
{
    if (w->trial->order != RANDOM_ORDER)
        return false;
    if (w->picks++ % 64 == 0)
        w->tosses = rng_u64(w->trial->seed, w->picks / 64);
    return (w->tosses >> (w->picks % 64)) & 1;
}

/* Start what this worker may start; at random, stop early and come back to it. */
static enum status run_worker(struct world *w, int worker, bool *more)
{
    *more = true;
    do {
        uint32_t index = NONE;
        TRY(start_take(w, &index));
        const enum status status = progression_next(w->progression[worker], &w->started[index].action);
        if (status != STATUS_OK) {
            *more = false;
            start_free(w, index);
            return status < 0 ? report_malformed(w, status) : STATUS_OK;
        }
        TRY(start(w, worker, index));
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
                       (unsigned)op->round, (unsigned)op->lane, verify_op_words(op), (int)op->peer);
    }
    report(w, FAULT_DEADLOCK, "%s; %s", waiting[0], found > 1 ? waiting[1] : "all others are done");
}

static enum status drive(struct world *w)
{
    for (int r = 0; r < w->shape->workers; r++)
        wake(w, r);
    while (w->result->fault == FAULT_NONE && (w->awake_count > 0 || w->readies > 0)) {
        TRY(run_awake(w));
        TRY(complete_wave(w));
    }
    for (int r = 0; w->result->fault == FAULT_NONE && r < w->shape->workers; r++)
        if (!progression_finished(w->progression[r]))
            report_deadlock(w);
    return STATUS_OK;
}

/* ---- judgement ---- */

static void judge_half(struct world *w, int worker, uint32_t leaf, struct ref ref)
{
    const char *rounds = w->trial->part == REDUCING_HALF ? "the reducing" : "spreading from the owners in the other";
    if (ref.value->known && ref.value->leaf != leaf)
        report(w, FAULT_OWNER, "worker %d chunk %u holds chunk %u", worker, (unsigned)leaf, (unsigned)ref.value->leaf);
    if (!is_complete(w, ref.value) && w->scope->exact)
        report(w, FAULT_OWNER, "worker %d chunk %u lacks worker %d after %s rounds", worker, (unsigned)leaf,
               first_missing(w, ref), rounds);
    else if (!is_complete(w, ref.value))
        report(w, FAULT_OWNER, "worker %d chunk %u is not complete after %s rounds", worker, (unsigned)leaf, rounds);
}

static void judge_leaf(struct world *w, int worker, uint32_t leaf, struct ref ref)
{
    const unsigned round = ref.value->round;
    if (ref.value->known && ref.value->leaf != leaf)
        report(w, FAULT_MISSING, "worker %d chunk %u holds chunk %u (round %u)", worker, (unsigned)leaf,
               (unsigned)ref.value->leaf, round);
    if (!is_complete(w, ref.value) && w->scope->exact)
        report(w, FAULT_MISSING, "worker %d chunk %u lacks worker %d (round %u)", worker, (unsigned)leaf,
               first_missing(w, ref), round);
    else if (!is_complete(w, ref.value))
        report(w, FAULT_MISSING, "worker %d chunk %u holds %u contributions, not one of each of %d workers (round %u)",
               worker, (unsigned)leaf, (unsigned)ref.value->count, w->shape->workers, round);
    if (w->shape->workers > 1 && !ref.value->final)
        report(w, FAULT_NOT_FINALISED, "worker %d chunk %u (round %u)", worker, (unsigned)leaf, round);
}

/* Of a column: every row and column of the matrix of weights. */
static void judge_matrix(struct world *w, uint32_t k)
{
    const int p = w->shape->workers;
    for (int i = 0; i < p; i++) {
        double row = 0, column = 0;
        for (int j = 0; j < p; j++) {
            row += ref_at(w, i, k).members[j].weight;
            column += ref_at(w, j, k).members[i].weight;
        }
        if (!(fabs(row - 1) <= WEIGHT_TOLERANCE))
            report(w, FAULT_WEIGHTS, "row %d sums to %.12f (chunk %u)", i, row, (unsigned)w->scope->column[k]);
        if (!(fabs(column - 1) <= WEIGHT_TOLERANCE))
            report(w, FAULT_WEIGHTS, "column %d sums to %.12f (chunk %u)", i, column, (unsigned)w->scope->column[k]);
    }
}

/* The same from one product with a random vector, which is kept if all columns sum to one (verify.h). */
static void judge_product(struct world *w, uint32_t k)
{
    double before = 0, after = 0;
    for (int r = 0; r < w->shape->workers; r++) {
        const double row = ref_at(w, r, k).members[0].weight;
        before += random_real(r);
        after += ref_at(w, r, k).members[1].weight;
        if (!(fabs(row - 1) <= WEIGHT_TOLERANCE))
            report(w, FAULT_WEIGHTS, "row %d sums to %.12f (chunk %u)", r, row, (unsigned)w->scope->column[k]);
    }
    if (!(fabs(after - before) <= WEIGHT_TOLERANCE * before))
        report(w, FAULT_WEIGHTS, "a column does not sum to one (chunk %u)", (unsigned)w->scope->column[k]);
}

static void judge_mixed(struct world *w, uint32_t k)
{
    for (int r = 0; r < w->shape->workers; r++)
        if (ref_at(w, r, k).value->leaf != w->scope->column[k])
            report(w, FAULT_MISSING, "worker %d chunk %u holds another chunk", r, (unsigned)w->scope->column[k]);
    if (w->scope->exact)
        judge_matrix(w, k);
    else
        judge_product(w, k);
}

static void judge(struct world *w)
{
    for (uint32_t k = 0; k < w->scope->columns; k++) {
        const uint32_t leaf = w->scope->column[k];
        if (w->trial->part == REDUCING_HALF) {
            const int owner = w->whole->algorithm->owner(w->whole, leaf);
            judge_half(w, owner, leaf, ref_at(w, owner, k));
        } else if (w->scope->mixing) {
            judge_mixed(w, k);
        } else {
            for (int r = 0; r < w->shape->workers; r++)
                (w->trial->part == WHOLE ? judge_leaf : judge_half)(w, r, leaf, ref_at(w, r, k));
        }
    }
}

/* Expression trees: alike on all workers, for all chunks, and in every trial. */
static void judge_trees(struct world *w, uint64_t *trees, bool first)
{
    struct verify_result *result = w->result;
    result->equal_bits = result->same_order = true;
    if (first)
        result->whole_inputs = !w->sent_partial;
    for (int r = 0; r < w->shape->workers; r++)
        for (uint32_t k = 0; k < w->scope->columns; k++) {
            uint64_t *kept = &trees[(size_t)r * w->scope->columns + k];
            const uint64_t tree = ref_at(w, r, k).value->hash;
            if (first)
                *kept = tree;
            if (*kept != tree)
                report(w, FAULT_RACE, "worker %d chunk %u: the order of its additions depends on timing", r,
                       (unsigned)w->scope->column[k]);
            result->equal_bits &= tree == trees[k];
            result->same_order &= tree == trees[0];
        }
}

/* With rounding on the wire, all workers still end with equal bits. */
static void judge_rounding(struct world *w)
{
    for (int r = 1; r < w->shape->workers; r++)
        for (uint32_t k = 0; k < w->scope->columns; k++)
            if (ref_at(w, r, k).value->hash != ref_at(w, 0, k).value->hash)
                report(w, FAULT_ROUNDING, "worker %d chunk %u: other bits than worker 0 where the wire format rounds",
                       r, (unsigned)w->scope->column[k]);
}

/* ---- trials ---- */

static enum status progressions_create(struct world *w)
{
    const uint32_t chunks = w->shape->chunks;
    for (int r = 0; r < w->shape->workers; r++) {
        const struct progression_params params = {
            .count = chunks,
            .segment = w->trial->segment < chunks && w->scope->exact ? w->trial->segment : chunks,
            .window = 1,
            .lookahead = w->trial->lookahead,
            .aliased = w->trial->aliased,
            .disorder = w->trial->order == RANDOM_ORDER ? w->trial->seed * 1000003 + (uint64_t)r : 0};
        TRY(progression_create(w->shape, r, &params, &w->progression[r]));
    }
    return STATUS_OK;
}

static enum status world_create(struct world *w)
{
    const size_t p = (size_t)w->shape->workers;
    void *memory = NULL;
    w->cells = (size_t)w->scope->columns * (1 + (size_t)w->shape->scratch);
    w->free_start = NONE;
    TRY(store_create(w->scope, p * w->cells, &w->store));
    TRY(store_create(w->scope, p, &w->input));
    TRY(memory_zeroed(&memory, p, sizeof(struct progression *)));
    w->progression = memory;
    TRY(memory_zeroed(&memory, p, sizeof(int)));
    w->awake = memory;
    TRY(memory_zeroed(&memory, p, sizeof(bool)));
    w->is_awake = memory;
    set_up_values(w);
    return progressions_create(w);
}

static void world_release(struct world *w)
{
    for (int r = 0; w->progression != NULL && r < w->shape->workers; r++)
        progression_destroy(w->progression[r]);
    for (size_t i = 0; i < w->channels; i++)
        store_release(&w->channel[i].arrived);
    store_release(&w->store);
    store_release(&w->input);
    routes_release(&w->routes);
    free(w->progression);
    free(w->channel);
    free(w->started);
    free(w->ready);
    free(w->awake);
    free(w->is_awake);
}

/* A trial has gone wrong: if messages do not match or lanes race, that is the cause. */
static enum status name_cause(const struct world *w)
{
    const struct verify_result found = *w->result;
    if (w->malformed || (uint64_t)w->shape->workers * w->shape->rounds > EMITS_MOST)
        return STATUS_OK;
    w->result->fault = FAULT_NONE;
    TRY(verify_matching(w->shape, w->result));
    if (w->result->fault == FAULT_NONE)
        TRY(verify_races(w->shape, w->result));
    if (w->result->fault == FAULT_NONE)
        *w->result = found;
    return STATUS_OK;
}

/* What runs: `shape`, which is `whole` or a half of it; what of it is followed; what is known of it so far. */
struct subject {
    const struct shape *shape, *whole;
    const struct scope *scope;
    uint64_t *trees; /* of each worker and column, NULL: not compared */
    bool first;      /* no trial has gone before                      */
};

static enum status run_trial(const struct subject *subject, const struct trial *trial, struct verify_result *result)
{
    enum status status = STATUS_OK;
    struct world w = {
        .shape = subject->shape, .whole = subject->whole, .trial = trial, .scope = subject->scope, .result = result};
    TRY_TO(done, world_create(&w));
    TRY_TO(done, drive(&w));
    if (w.moves && w.scope->sampled) {
        status =
            fail(STATUS_REFUSED,
                 "%s moves chunks to other places: of %d workers with %u chunks no sample can be proved alone, and "
                 "all of them take more than the %d MiB that a proof may take",
                 w.whole->algorithm->name, w.shape->workers, (unsigned)w.shape->chunks, VERIFY_MEBIBYTES);
        goto done;
    }
    if (result->fault == FAULT_NONE)
        judge(&w);
    if (result->fault == FAULT_NONE && trial->lossy)
        judge_rounding(&w);
    else if (result->fault == FAULT_NONE && subject->trees != NULL)
        judge_trees(&w, subject->trees, subject->first);
    if (result->fault == FAULT_NONE && (subject->first || trial->lossy))
        TRY_TO(done, verify_races(w.shape, result));
    if (result->fault != FAULT_NONE)
        TRY_TO(done, name_cause(&w));
done:
    world_release(&w);
    return status;
}

/* ---- halves ---- */

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

static enum status verify_half(const struct shape *shape, const struct scope *scope, const struct trial *trial,
                               struct verify_result *result)
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
    const struct subject subject = {.shape = &half, .whole = shape, .scope = scope};
    return run_trial(&subject, trial, result);
}

/* The schedule that runs with a lossy wire format: what is put in must not race, and must do what it is for. */
static enum status verify_rounding(const struct shape *shape, const struct scope *scope, struct verify_result *result)
{
    struct shape *rounded = NULL;
    TRY(rounding_shape(shape, ROUNDING_ALL_RANKS, ROUNDING_ELEMENTS, &rounded));
    const struct subject subject = {.shape = rounded, .whole = rounded, .scope = scope};
    const enum status status = run_trial(&subject, &rounding, result);
    shape_destroy(rounded);
    return status;
}

static bool owners_in_range(const struct shape *shape, struct verify_result *result)
{
    for (uint32_t c = 0; c < shape->chunks; c++) {
        const int owner = shape->algorithm->owner(shape, c);
        if (owner < 0 || owner >= shape->workers) {
            verify_report(result, FAULT_OWNER, "chunk %u belongs to worker %d of %d", (unsigned)c, owner,
                          shape->workers);
            return false;
        }
    }
    return true;
}

/* ---- how much is followed ---- */

/* Counts the ops of a round. */
struct counter {
    struct sink sink; /* first */
    size_t ops;
};

static enum status count_op(struct sink *sink, const struct op *op)
{
    (void)op;
    ((struct counter *)sink)->ops++;
    return STATUS_OK;
}

/* Bytes of all ops that are live at a time, about: the longest rounds of all workers, or of some where that would take
 * too long. */
static enum status estimate_ops(const struct shape *shape, size_t *bytes)
{
    const uint64_t most = EMITS_MOST / ((uint64_t)shape->rounds + 1) + 1;
    const int stride = (int)(((uint64_t)shape->workers + most - 1) / most);
    size_t ops = 0, counted = 0;
    for (int r = 0; r < shape->workers && (counted < FEW_WORKERS || ops < EMITS_MOST); r += stride, counted++) {
        size_t longest = 0;
        for (uint32_t round = 0; round < shape->rounds; round++) {
            struct counter counter = {.sink = {.op = count_op, .round = round}};
            TRY(shape->algorithm->emit(shape, r, round, &counter.sink));
            longest = counter.ops > longest ? counter.ops : longest;
        }
        ops += longest;
    }
    *bytes = ops / counted * (size_t)shape->workers * OP_BYTES + (size_t)shape->workers * WORKER_BYTES;
    return STATUS_OK;
}

static enum status refuse_memory(const struct shape *shape, const char *what, double bytes, size_t most)
{
    return fail(
        STATUS_REFUSED,
        "%s for %d workers: %s take %.0f MiB, and a proof may take %zu: about %d workers fit, if that grows with "
        "the square of the workers",
        shape->algorithm->name, shape->workers, what, bytes / 1048576, most >> 20,
        (int)(shape->workers * sqrt((double)most / bytes)));
}

/* Ascending, `columns` of them at random. */
static void fill_columns(struct scope *scope, uint32_t chunks)
{
    uint32_t n = 0;
    for (uint32_t c = 0; c < chunks && n < scope->columns; c++) /* each sample is as likely: Knuth's algorithm S */
        if (!scope->sampled || rng_below(UINT64_C(0x636f6c756d6e73), c, chunks - c) < scope->columns - n)
            scope->column[n++] = c;
}

static enum status scope_create(const struct shape *shape, size_t bytes, struct scope *scope)
{
    const size_t p = (size_t)shape->workers;
    const bool mixing = shape->algorithm->traits & TRAIT_MIXING, exact = shape->workers <= VERIFY_EXACT_WORKERS;
    size_t others = 0;
    void *memory = NULL;
    *scope = (struct scope){.mixing = mixing,
                            .exact = exact,
                            .words = !exact   ? (mixing ? 2 : 0)
                                     : mixing ? p
                                              : (p + 63) / 64,
                            .columns = shape->chunks,
                            .bytes = bytes};
    if (!exact)
        TRY(estimate_ops(shape, &others));
    if (others > bytes)
        return refuse_memory(shape, "ops that are under way at a time", (double)others, bytes);
    const double column =
        (double)p * (1 + (double)shape->scratch) * (double)(sizeof(struct value) + scope->words * sizeof(union member));
    if (column > (double)(bytes - others))
        return refuse_memory(shape, "the planes of one chunk", column, bytes);
    if (column * shape->chunks > (double)(bytes - others)) {
        const double fit = (double)(bytes - others) / column;
        scope->sampled = true;
        scope->columns = fit < VERIFY_SAMPLE ? (uint32_t)fit : VERIFY_SAMPLE;
    }
    TRY(memory_zeroed(&memory, (size_t)shape->chunks + 1, sizeof(uint32_t)));
    scope->column = memory;
    fill_columns(scope, shape->chunks);
    return STATUS_OK;
}

/* ---- all of it ---- */

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
    for (size_t i = 0; i < LENGTH(traits); i++)
        if ((shape->traits & traits[i].trait) && !traits[i].has)
            verify_report(result, FAULT_TRAIT, "%s claims %s", shape->algorithm->name, traits[i].lack);
}

static bool applies(const struct trial *trial, const struct shape *shape, bool in_halves)
{
    return trial->when == ALWAYS || shape->workers <= SMALL || (trial->when == WITHOUT_HALVES && !in_halves);
}

static enum status verify_all(const struct shape *shape, const struct scope *scope, uint64_t *trees,
                              struct verify_result *result)
{
    const bool in_halves = shape_has_halves(shape) && shape->split > 0;
    struct subject subject = {.shape = shape, .whole = shape, .scope = scope, .trees = trees, .first = true};
    for (size_t i = 0; i < LENGTH(trials) && result->fault == FAULT_NONE; i++)
        if (applies(&trials[i], shape, in_halves)) {
            TRY(run_trial(&subject, &trials[i], result));
            subject.first = false;
        }
    if (in_halves && result->fault == FAULT_NONE && owners_in_range(shape, result))
        for (size_t i = 0; i < LENGTH(halves) && result->fault == FAULT_NONE; i++)
            TRY(verify_half(shape, scope, &halves[i], result));
    if (result->fault == FAULT_NONE)
        judge_traits(shape, result);
    if (result->fault == FAULT_NONE && result->equal_bits && shape->workers <= SMALL)
        TRY(verify_rounding(shape, scope, result));
    return STATUS_OK;
}

enum status verify_shape_within(const struct shape *shape, size_t bytes, struct verify_result *result)
{
    enum status status = STATUS_OK;
    void *trees = NULL;
    struct scope scope;
    *result = (struct verify_result){.fault = FAULT_NONE};
    TRY(scope_create(shape, bytes, &scope));
    TRY_TO(done, memory_zeroed(&trees, (size_t)shape->workers * scope.columns, sizeof(uint64_t)));
    TRY_TO(done, verify_all(shape, &scope, trees, result));
    result->ok = result->fault == FAULT_NONE;
    result->exact = scope.exact;
    result->chunks = scope.columns;
    if (!result->ok)
        result->equal_bits = result->same_order = result->whole_inputs = false;
done:
    free(trees);
    free(scope.column);
    return status;
}

enum status verify_shape(const struct shape *shape, struct verify_result *result)
{
    return verify_shape_within(shape, VERIFY_BYTES, result);
}
