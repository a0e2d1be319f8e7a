/* rounding.c - finds where a lossy wire format needs the sender's copy rounded, and emits it there (rounding.h).
 *
 * One walk over the ops of a rank, in emitted order, keeps for each leaf (vector, then scratch planes) whether its value
 * is rounded, and which SEND has read it unrounded ("pending"): that SEND gets a rounding op as soon as the value is
 * read again, or when it is still there at the end.
 */
#include "algos/rounding.h"

#include <stdlib.h>

#include "base/memory.h"

#define NONE UINT32_MAX
#define AT_END UINT32_MAX

/* A rounding op to be emitted: before op `at` of `round`, or after all ops of the last round. */
struct insertion {
    uint32_t round, at;
    uint16_t lane;
    bool needed; /* only those are kept                                             */
    bool fenced; /* other lanes touch the range, too: nothing else orders them      */
    struct range range;
};

struct rounding_state {
    struct algorithm algorithm; /* the inner one's with another emit */
    const struct shape *inner;
    int first_rank;
    struct insertion *insertion;
    size_t *first; /* insertions of rank r: [first[r - first_rank], first[r - first_rank + 1]) */
};

/* What the walk knows of a leaf. */
struct leaf {
    uint32_t pending;   /* insertion of the SEND that has read it unrounded; NONE       */
    bool rounded;       /* its value is one of the format                               */
    bool final;         /* a complete result                                            */
    bool encoded;       /* SEGMENTS: this worker has rounded a value here before        */
    struct range whole; /* SEGMENTS: in which piece it was rounded                      */
    uint16_t lane;      /* of the first op that touches it                              */
    bool touched, in_lanes;
};

struct walk {
    struct sink sink; /* first */
    const struct shape *shape;
    int rank;
    enum rounding kind;
    bool looking; /* first pass: only which lanes touch a leaf */
    struct leaf *leaf;
    uint32_t op;      /* number of the op in its round            */
    uint32_t message; /* number of the first op of its message    */
    bool joined;      /* the op before said MORE                  */
    struct insertion *insertion;
    size_t count, capacity, begin; /* [begin, count) are this rank's */
};

/* ---- leaves ---- */

static uint32_t leaf_index(const struct walk *w, const struct range *range)
{
    return range->chunk + (range->buffer == BUFFER_SCRATCH ? w->shape->chunks : 0);
}

static enum status check_range(const struct walk *w, const struct range *range)
{
    const uint32_t leaves = range->buffer == BUFFER_SCRATCH ? w->shape->scratch * w->shape->chunks : w->shape->chunks;
    if (range->chunks > leaves || range->chunk > leaves - range->chunks)
        return fail(STATUS_FORMAT, "bad-op: worker %d: range out of bounds", w->rank);
    return STATUS_OK;
}

/* The value is used again: the SEND that has read it rounds it first. */
static void use(struct walk *w, struct leaf *leaf)
{
    const uint32_t at = leaf->pending;
    if (at == NONE)
        return;
    struct insertion *insertion = &w->insertion[at];
    struct leaf *first = &w->leaf[leaf_index(w, &insertion->range)];
    insertion->needed = true;
    for (uint32_t i = 0; i < insertion->range.chunks; i++)
        if (first[i].pending == at) {
            first[i].pending = NONE;
            first[i].rounded = true;
        }
}

static void read_range(struct walk *w, const struct range *range)
{
    struct leaf *leaf = &w->leaf[leaf_index(w, range)];
    for (uint32_t i = 0; i < range->chunks; i++)
        use(w, &leaf[i]);
}

static void write_range(struct walk *w, const struct range *range, bool rounded, bool final)
{
    struct leaf *leaf = &w->leaf[leaf_index(w, range)];
    for (uint32_t i = 0; i < range->chunks; i++) {
        leaf[i].pending = NONE;
        leaf[i].rounded = rounded;
        leaf[i].final = final;
        leaf[i].whole = *range;
    }
}

static void copy_range(struct walk *w, const struct op *op)
{
    const struct leaf *from = &w->leaf[leaf_index(w, &op->src)];
    struct leaf *to = &w->leaf[leaf_index(w, &op->dst)];
    for (uint32_t i = 0; i < op->dst.chunks && i < op->src.chunks; i++) {
        to[i].pending = NONE;
        to[i].rounded = from[i].rounded;
        to[i].final = from[i].final;
        to[i].whole = op->dst;
    }
}

/* Lanes that touch a leaf, before anything is decided. */
static void touch(struct walk *w, const struct range *range, uint16_t lane)
{
    struct leaf *leaf = &w->leaf[leaf_index(w, range)];
    for (uint32_t i = 0; i < range->chunks; i++) {
        leaf[i].in_lanes |= leaf[i].touched && leaf[i].lane != lane;
        leaf[i].lane = lane;
        leaf[i].touched = true;
    }
}

/* ---- insertions ---- */

static enum status insert(struct walk *w, struct insertion insertion, uint32_t *index)
{
    const struct leaf *leaf = &w->leaf[leaf_index(w, &insertion.range)];
    void *memory = w->insertion;
    TRY(memory_grow(&memory, &w->capacity, w->count + 1, sizeof insertion));
    w->insertion = memory;
    for (uint32_t i = 0; i < insertion.range.chunks; i++)
        insertion.fenced |= leaf[i].in_lanes;
    *index = (uint32_t)w->count;
    w->insertion[w->count++] = insertion;
    return STATUS_OK;
}

static enum status refuse(const struct walk *w, const struct op *op, const char *why)
{
    return fail(STATUS_REFUSED, "%s: worker %d %s in round %u: take --wire=f16 or bf16", w->shape->algorithm->name,
                w->rank, why, (unsigned)op->round);
}

static bool is_range(const struct range *a, const struct range *b)
{
    return a->chunk == b->chunk && a->chunks == b->chunks && a->buffer == b->buffer;
}

static enum status check_segments(const struct walk *w, const struct op *op, bool fresh)
{
    const struct leaf *leaf = &w->leaf[leaf_index(w, &op->src)];
    for (uint32_t i = 0; i < op->src.chunks; i++) {
        if (fresh && (leaf[i].rounded || op->src.buffer != BUFFER_VECTOR))
            return refuse(w, op, "sends what is rounded in part or lies in scratch");
        if (fresh && leaf[i].encoded)
            return refuse(w, op, "sends a second value of one chunk, and residuals are kept for one");
        if (!fresh && !is_range(&leaf[i].whole, &op->src))
            return refuse(w, op, "sends a value in other pieces than it was rounded in");
    }
    return STATUS_OK;
}

/* A SEND of a value that is not rounded yet. */
static enum status send_range(struct walk *w, const struct op *op)
{
    struct leaf *leaf = &w->leaf[leaf_index(w, &op->src)];
    uint32_t index = NONE;
    bool fresh = false;
    for (uint32_t i = 0; i < op->src.chunks; i++)
        fresh |= !leaf[i].rounded;
    if (w->kind == ROUNDING_SEGMENTS)
        TRY(check_segments(w, op, fresh));
    if (!fresh)
        return STATUS_OK;
    TRY(insert(w,
               (struct insertion){.round = op->round,
                                  .at = w->message,
                                  .lane = op->lane,
                                  .range = op->src,
                                  .needed = w->kind == ROUNDING_SEGMENTS},
               &index));
    for (uint32_t i = 0; i < op->src.chunks; i++) {
        if (w->kind == ROUNDING_ELEMENTS && !leaf[i].rounded)
            leaf[i].pending = index;
        if (w->kind == ROUNDING_SEGMENTS) {
            leaf[i].rounded = leaf[i].encoded = true;
            leaf[i].whole = op->src;
        }
    }
    return STATUS_OK;
}

/* ---- the walk ---- */

static bool has_src(const struct op *op)
{
    return op->kind == OP_SEND || op->kind == OP_REDUCE || op->kind == OP_COPY;
}

static bool has_dst(const struct op *op)
{
    return op->kind != OP_SEND && op->kind != OP_WAIT && op->kind != OP_FENCE;
}

static enum status walk_op(struct sink *sink, const struct op *op)
{
    struct walk *w = (struct walk *)sink;
    const bool final = op->flags & OP_FINAL;
    if (!w->joined)
        w->message = w->op;
    w->joined = op->flags & OP_MORE;
    w->op++;
    if (has_src(op))
        TRY(check_range(w, &op->src));
    if (has_dst(op))
        TRY(check_range(w, &op->dst));
    if (w->looking) {
        if (has_src(op))
            touch(w, &op->src, op->lane);
        if (has_dst(op))
            touch(w, &op->dst, op->lane);
        return STATUS_OK;
    }
    if (has_src(op))
        read_range(w, &op->src);
    if (op->kind == OP_RECV_REDUCE || op->kind == OP_REDUCE || op->kind == OP_SCALE)
        read_range(w, &op->dst);
    if (op->kind == OP_SEND)
        return send_range(w, op);
    if (op->kind == OP_COPY)
        copy_range(w, op);
    else if (has_dst(op))
        write_range(w, &op->dst, op->kind == OP_RECV, final);
    return STATUS_OK;
}

static enum status walk_rounds(struct walk *w, bool looking)
{
    w->looking = looking;
    for (uint32_t round = 0; round < w->shape->rounds; round++) {
        w->sink = (struct sink){.op = walk_op, .round = round};
        w->op = 0;
        w->joined = false;
        TRY(w->shape->algorithm->emit(w->shape, w->rank, round, &w->sink));
    }
    return STATUS_OK;
}

/* What is left as a result: pending SENDs, and complete sums that were never sent. */
static enum status walk_end(struct walk *w)
{
    const uint32_t chunks = w->shape->chunks;
    uint32_t index = NONE;
    for (uint32_t c = 0; c < chunks; c++)
        use(w, &w->leaf[c]);
    for (uint32_t c = 0; w->kind == ROUNDING_ELEMENTS && c < chunks; c++) {
        struct range run = {.chunk = c, .buffer = BUFFER_VECTOR};
        while (c < chunks && w->leaf[c].final && !w->leaf[c].rounded && w->leaf[c].lane == w->leaf[run.chunk].lane)
            run.chunks++, c++;
        if (run.chunks == 0)
            continue;
        TRY(insert(w,
                   (struct insertion){.round = w->shape->rounds - 1,
                                      .at = AT_END,
                                      .lane = w->leaf[run.chunk].lane,
                                      .range = run,
                                      .needed = true},
                   &index));
        c--;
    }
    return STATUS_OK;
}

static void drop_needless(struct walk *w)
{
    size_t kept = w->begin;
    for (size_t i = w->begin; i < w->count; i++)
        if (w->insertion[i].needed)
            w->insertion[kept++] = w->insertion[i];
    w->count = kept;
}

static enum status walk_rank(struct walk *w, int rank)
{
    const size_t leaves = (size_t)w->shape->chunks * (1 + (size_t)w->shape->scratch);
    w->rank = rank;
    w->begin = w->count;
    for (size_t i = 0; i < leaves; i++)
        w->leaf[i] = (struct leaf){.pending = NONE};
    if (w->shape->rounds == 0)
        return STATUS_OK;
    if (w->shape->lanes > 1)
        TRY(walk_rounds(w, true));
    TRY(walk_rounds(w, false));
    TRY(walk_end(w));
    drop_needless(w);
    return STATUS_OK;
}

/* ---- the shape ---- */

struct emission {
    struct sink sink; /* first */
    struct sink *outer;
    const struct shape *shape;
    const struct insertion *next, *end;
    uint32_t op;
};

static enum status emit_fences(const struct emission *e, const struct insertion *insertion)
{
    const struct op fence = {
        .kind = OP_FENCE, .peer = -1, .weight = 1, .lanes = e->shape->lanes, .round = insertion->round};
    return insertion->fenced ? e->outer->op(e->outer, &fence) : STATUS_OK;
}

static enum status emit_insertions(struct emission *e, uint32_t at)
{
    for (; e->next < e->end && e->next->at == at; e->next++) {
        const struct op op = {.kind = OP_SCALE,
                              .flags = OP_ROUND_SOURCE,
                              .lane = e->next->lane,
                              .peer = -1,
                              .dst = e->next->range,
                              .weight = 1,
                              .round = e->next->round};
        TRY(emit_fences(e, e->next));
        TRY(e->outer->op(e->outer, &op));
        TRY(emit_fences(e, e->next));
    }
    return STATUS_OK;
}

static enum status emission_op(struct sink *sink, const struct op *op)
{
    struct emission *e = (struct emission *)sink;
    TRY(emit_insertions(e, e->op++));
    return e->outer->op(e->outer, op);
}

/* The first insertion of [begin, end) in `round` or later. */
static const struct insertion *seek(const struct insertion *begin, const struct insertion *end, uint32_t round)
{
    while (begin < end) {
        const struct insertion *middle = begin + (end - begin) / 2;
        if (middle->round < round)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

static enum status rounding_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct rounding_state *state = shape->state;
    const size_t *first = &state->first[rank - state->first_rank];
    const struct insertion *begin = state->insertion + first[0], *end = state->insertion + first[1];
    struct emission e = {.sink = {.op = emission_op, .round = round, .lane = sink->lane},
                         .outer = sink,
                         .shape = shape,
                         .next = seek(begin, end, round),
                         .end = seek(begin, end, round + 1)};
    TRY(state->inner->algorithm->emit(state->inner, rank, round, &e.sink));
    return emit_insertions(&e, AT_END);
}

static void rounding_release(struct shape *shape)
{
    struct rounding_state *state = shape->state;
    if (state == NULL)
        return;
    free(state->insertion);
    free(state->first);
    free(state);
    shape->state = NULL;
}

static enum status find_insertions(struct rounding_state *state, int ranks, enum rounding kind)
{
    enum status status = STATUS_OK;
    const struct shape *shape = state->inner;
    struct walk walk = {.shape = shape, .kind = kind};
    void *leaves = NULL;
    TRY(memory_zeroed(&leaves, (size_t)shape->chunks * (1 + (size_t)shape->scratch), sizeof(struct leaf)));
    walk.leaf = leaves;
    for (int i = 0; i < ranks && status >= 0; i++) {
        status = walk_rank(&walk, state->first_rank + i);
        state->first[i + 1] = walk.count;
    }
    state->insertion = walk.insertion;
    free(leaves);
    return status;
}

enum status rounding_shape(const struct shape *shape, int rank, enum rounding kind, struct shape **rounded)
{
    enum status status = STATUS_OK;
    void *memory = NULL, *state_memory = NULL;
    const int ranks = rank == ROUNDING_ALL_RANKS ? shape->workers : 1;
    *rounded = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct shape)));
    struct shape *made = memory;
    status = memory_zeroed(&state_memory, 1, sizeof(struct rounding_state));
    if (status < 0) {
        free(made);
        return status;
    }
    struct rounding_state *state = state_memory;
    *state = (struct rounding_state){
        .algorithm = *shape->algorithm, .inner = shape, .first_rank = rank == ROUNDING_ALL_RANKS ? 0 : rank};
    state->algorithm.emit = rounding_emit;
    state->algorithm.release = rounding_release;
    state->algorithm.owner = NULL;
    state->algorithm.describe = NULL;
    state->algorithm.cost = NULL;
    *made = *shape;
    made->algorithm = &state->algorithm;
    made->split = 0;
    made->state = state;
    status = memory_zeroed(&memory, (size_t)ranks + 1, sizeof(size_t));
    state->first = status < 0 ? NULL : memory;
    if (status >= 0)
        status = find_insertions(state, ranks, kind);
    if (status < 0)
        shape_destroy(made);
    else
        *rounded = made;
    return status;
}
