/* test_mutants.c - good schedules with one thing wrong: the verifier must find each, under its right name.
 *
 * A mutant wraps the emit of a good schedule in a sink that changes, drops or adds ops. The mutations are aimed at the
 * first message of the schedule (or its first reduction), so that they apply to any algorithm.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"
#include "algos/verify.h"
#include "base/rng.h"
#include "tests/algos/support_toy.h"

/* ---- wrapping ---- */

struct mutator;

/* Passes on, changes, drops or adds ops; op is NULL at the end of every round. */
typedef enum status mutation(struct mutator *m, const struct op *op);

/* The message that is aimed at: the first of the schedule by round and sender. */
struct target {
    int src, dst;
    uint32_t round;
    bool whole; /* it covers the vector */
};

struct mutant {
    const struct shape *good;
    struct target target;
    mutation *mutate;
    int wrong_owner;
};

struct mutator {
    struct sink sink; /* first: what the good emit sees */
    struct sink *outer;
    const struct mutant *mutant;
    int rank;
    bool done; /* the one change of this round has been made */
    bool holds;
    struct op held;
};

static enum status mutant_op(struct sink *sink, const struct op *op)
{
    struct mutator *m = (struct mutator *)sink;
    return m->mutant->mutate(m, op);
}

static enum status mutant_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct mutant *mutant = shape->state;
    struct mutator m = {.sink = {.op = mutant_op, .round = round}, .outer = sink, .mutant = mutant, .rank = rank};
    if (round < mutant->good->rounds)
        TRY(mutant->good->algorithm->emit(mutant->good, rank, round, &m.sink));
    return mutant->mutate(&m, NULL);
}

static int mutant_owner(const struct shape *shape, uint32_t chunk)
{
    const struct mutant *mutant = shape->state;
    const int owner = mutant->good->algorithm->owner(mutant->good, chunk);
    return chunk == 0 ? (owner + mutant->wrong_owner) % shape->workers : owner;
}

static enum status pass(struct mutator *m, const struct op *op)
{
    return op == NULL ? STATUS_OK : m->outer->op(m->outer, op);
}

static enum status pass_as(struct mutator *m, struct op op)
{
    return m->outer->op(m->outer, &op);
}

/* ---- the first message ---- */

struct finder {
    struct sink sink; /* first */
    const struct shape *shape;
    struct target target;
    int rank;
    bool found;
};

static enum status find_send(struct sink *sink, const struct op *op)
{
    struct finder *finder = (struct finder *)sink;
    if (op->kind == OP_SEND && !finder->found) {
        finder->found = true;
        finder->target = (struct target){
            .src = finder->rank, .dst = op->peer, .round = op->round, .whole = op->src.chunks == finder->shape->chunks};
    }
    return STATUS_OK;
}

static struct target first_message(const struct shape *shape)
{
    struct finder finder = {.sink = {.op = find_send}, .shape = shape};
    for (uint32_t round = 0; round < shape->rounds && !finder.found; round++)
        for (finder.rank = 0; finder.rank < shape->workers && !finder.found; finder.rank++) {
            finder.sink.round = round;
            finder.sink.lane = 0;
            cr_assert_eq(shape->algorithm->emit(shape, finder.rank, round, &finder.sink), STATUS_OK);
        }
    cr_assert(finder.found);
    return finder.target;
}

/* Once a round: the SEND that is aimed at. */
static bool hit_send(struct mutator *m, const struct op *op)
{
    const struct target *t = &m->mutant->target;
    const bool hit = op != NULL && !m->done && op->kind == OP_SEND && m->rank == t->src && op->peer == t->dst &&
                     op->round == t->round;
    m->done |= hit;
    return hit;
}

/* ... and its receive. */
static bool hit_receive(struct mutator *m, const struct op *op)
{
    const struct target *t = &m->mutant->target;
    const bool hit = op != NULL && !m->done && op->kind == OP_RECV_REDUCE && m->rank == t->dst && op->peer == t->src &&
                     op->round == t->round;
    m->done |= hit;
    return hit;
}

/* At the end of the round that is put after the good ones. */
static bool extra_round(const struct mutator *m, const struct op *op)
{
    return op == NULL && m->sink.round == m->mutant->good->rounds;
}

/* ---- mutations ---- */

static enum status drop_send(struct mutator *m, const struct op *op)
{
    return hit_send(m, op) ? STATUS_OK : pass(m, op);
}

static enum status drop_receive(struct mutator *m, const struct op *op)
{
    return hit_receive(m, op) ? STATUS_OK : pass(m, op);
}

static enum status drop_message(struct mutator *m, const struct op *op)
{
    return hit_send(m, op) || hit_receive(m, op) ? STATUS_OK : pass(m, op);
}

static enum status receive_without_adding(struct mutator *m, const struct op *op)
{
    if (!hit_receive(m, op))
        return pass(m, op);
    struct op changed = *op;
    changed.kind = OP_RECV;
    changed.flags = 0;
    return pass_as(m, changed);
}

static enum status send_another_chunk(struct mutator *m, const struct op *op)
{
    if (!hit_send(m, op))
        return pass(m, op);
    struct op changed = *op;
    changed.src.chunk = op->src.chunk > 0 ? op->src.chunk - 1 : op->src.chunk + 1;
    return pass_as(m, changed);
}

static enum status send_less_or_more(struct mutator *m, const struct op *op)
{
    if (!hit_send(m, op))
        return pass(m, op);
    struct op changed = *op;
    if (op->src.chunks > 1)
        changed.src.chunks--;
    else {
        changed.src.chunks++;
        changed.src.chunk -= op->src.chunk > 0;
    }
    return pass_as(m, changed);
}

static enum status send_to_another(struct mutator *m, const struct op *op)
{
    if (!hit_send(m, op))
        return pass(m, op);
    struct op changed = *op;
    do
        changed.peer = (changed.peer + 1) % m->mutant->good->workers;
    while (changed.peer == m->rank);
    return pass_as(m, changed);
}

static enum status send_to_itself(struct mutator *m, const struct op *op)
{
    if (!hit_send(m, op))
        return pass(m, op);
    struct op changed = *op;
    changed.peer = m->rank;
    return pass_as(m, changed);
}

static enum status send_to_nobody(struct mutator *m, const struct op *op)
{
    if (!hit_send(m, op))
        return pass(m, op);
    struct op changed = *op;
    changed.peer = m->mutant->good->workers;
    return pass_as(m, changed);
}

static enum status send_on_an_unknown_lane(struct mutator *m, const struct op *op)
{
    if (!hit_send(m, op))
        return pass(m, op);
    struct op changed = *op;
    changed.lane = m->mutant->good->lanes;
    return pass_as(m, changed);
}

static enum status send_beyond_the_vector(struct mutator *m, const struct op *op)
{
    if (!hit_send(m, op))
        return pass(m, op);
    struct op changed = *op;
    changed.src.chunk = m->mutant->good->chunks;
    return pass_as(m, changed);
}

static enum status promise_more(struct mutator *m, const struct op *op)
{
    if (!hit_send(m, op))
        return pass(m, op);
    struct op changed = *op;
    changed.flags |= OP_MORE;
    return pass_as(m, changed);
}

/* Both ends are there, but the receive is a round late. */
static enum status receive_a_round_late(struct mutator *m, const struct op *op)
{
    const struct target *t = &m->mutant->target;
    if (hit_receive(m, op))
        return STATUS_OK;
    if (op == NULL && m->rank == t->dst && m->sink.round == t->round + 1) {
        const struct op late = {.kind = OP_RECV_REDUCE,
                                .round = m->sink.round,
                                .peer = t->src,
                                .dst = TOY_LEAVES(0, m->mutant->good->chunks),
                                .weight = 1};
        return pass_as(m, late);
    }
    return pass(m, op);
}

static enum status weigh(struct mutator *m, const struct op *op)
{
    if (!hit_receive(m, op))
        return pass(m, op);
    struct op changed = *op;
    changed.weight = 0.5;
    return pass_as(m, changed);
}

static enum status finalise_at_once(struct mutator *m, const struct op *op)
{
    if (!hit_receive(m, op))
        return pass(m, op);
    struct op changed = *op;
    changed.flags |= OP_FINAL;
    return pass_as(m, changed);
}

static enum status finalise_never(struct mutator *m, const struct op *op)
{
    if (op == NULL)
        return STATUS_OK;
    struct op changed = *op;
    changed.flags = (uint8_t)(op->flags & ~OP_FINAL);
    return pass_as(m, changed);
}

static enum status finalise_a_receive(struct mutator *m, const struct op *op)
{
    if (op == NULL)
        return STATUS_OK;
    struct op changed = *op;
    if (op->kind == OP_RECV)
        changed.flags |= OP_FINAL;
    return pass_as(m, changed);
}

/* Worker 0 hands its result to worker 1 once more, which adds it. */
static enum status add_again(struct mutator *m, const struct op *op, uint8_t flags)
{
    if (!extra_round(m, op) || m->rank > 1)
        return pass(m, op);
    const struct range leaf = TOY_LEAVES(0, 1);
    struct op extra = {.kind = OP_SEND, .round = m->sink.round, .peer = 1, .src = leaf, .weight = 1};
    if (m->rank == 1)
        extra = (struct op){
            .kind = OP_RECV_REDUCE, .flags = flags, .round = m->sink.round, .peer = 0, .dst = leaf, .weight = 1};
    return pass_as(m, extra);
}

static enum status add_twice(struct mutator *m, const struct op *op)
{
    return add_again(m, op, 0);
}

static enum status finalise_twice(struct mutator *m, const struct op *op)
{
    return add_again(m, op, OP_FINAL);
}

/* Both receive into a chunk before they send it. */
static enum status wait_for_each_other(struct mutator *m, const struct op *op)
{
    if (!extra_round(m, op) || m->rank > 1)
        return pass(m, op);
    const struct range leaf = TOY_LEAVES(0, 1);
    TRY(pass_as(m,
                (struct op){.kind = OP_RECV, .round = m->sink.round, .peer = 1 - m->rank, .dst = leaf, .weight = 1}));
    return pass_as(m,
                   (struct op){.kind = OP_SEND, .round = m->sink.round, .peer = 1 - m->rank, .src = leaf, .weight = 1});
}

static enum status wait_for_the_future(struct mutator *m, const struct op *op)
{
    if (op != NULL || m->rank != 0 || m->sink.round != 0)
        return pass(m, op);
    return pass_as(m, (struct op){.kind = OP_WAIT, .wait_round = 1, .peer = -1, .weight = 1});
}

static enum status copy_from_scratch(struct mutator *m, const struct op *op, uint32_t plane)
{
    if (!extra_round(m, op) || m->rank != 0)
        return pass(m, op);
    return pass_as(m, (struct op){.kind = OP_COPY,
                                  .round = m->sink.round,
                                  .peer = -1,
                                  .src = TOY_PLANE(plane * m->mutant->good->chunks, 1),
                                  .dst = TOY_LEAVES(0, 1),
                                  .weight = 1});
}

static enum status read_unwritten_scratch(struct mutator *m, const struct op *op)
{
    return copy_from_scratch(m, op, 0);
}

static enum status read_scratch_beyond_its_planes(struct mutator *m, const struct op *op)
{
    return copy_from_scratch(m, op, 1);
}

/* The two ops of the aimed-at round of one worker, or of every worker, change places. */
static enum status swap_ops(struct mutator *m, const struct op *op, bool everywhere)
{
    const struct target *t = &m->mutant->target;
    if (m->sink.round != t->round || (!everywhere && m->rank != t->src))
        return pass(m, op);
    if (op == NULL)
        return m->holds ? pass_as(m, m->held) : STATUS_OK;
    if (!m->holds) {
        m->holds = true;
        m->held = *op;
        return STATUS_OK;
    }
    return pass(m, op);
}

static enum status swap_in_one(struct mutator *m, const struct op *op)
{
    return swap_ops(m, op, false);
}

static enum status swap_in_all(struct mutator *m, const struct op *op)
{
    return swap_ops(m, op, true);
}

/* ---- judging ---- */

static struct shape *good_shape(const char *text, const char *nodes, int workers)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape = NULL;
    cr_assert_eq(spec_parse(text, &spec), STATUS_OK, "%s", status_message());
    cr_assert_eq(nodes == NULL ? layout_flat(workers, &layout) : layout_parse(nodes, workers, &layout), STATUS_OK, "%s",
                 status_message());
    cr_assert_eq(spec_shape(&spec, &layout, 0, 1000, &shape), STATUS_OK, "%s", status_message());
    layout_release(&layout);
    spec_release(&spec);
    return shape;
}

static void expect_fault(const struct shape *shape, enum fault fault, const char *what)
{
    struct verify_result result;
    cr_assert_eq(verify_shape(shape, &result), STATUS_OK, "%s", status_message());
    cr_expect_eq(result.fault, fault, "%s, %d workers: %s instead of %s (%s)", what, shape->workers,
                 fault_name(result.fault), fault_name(fault), result.reason);
    cr_expect_eq(result.ok, fault == FAULT_NONE);
    if (fault != FAULT_NONE)
        cr_expect_eq(strncmp(result.reason, fault_name(fault), strlen(fault_name(fault))), 0, "%s", result.reason);
}

static struct shape mutant_shape(struct mutant *mutant, struct algorithm *algorithm, uint32_t extra_rounds)
{
    const struct shape *good = mutant->good;
    *algorithm = *good->algorithm;
    algorithm->emit = mutant_emit;
    algorithm->owner = good->algorithm->owner == NULL ? NULL : mutant_owner;
    struct shape shape = *good;
    shape.algorithm = algorithm;
    shape.rounds += extra_rounds;
    shape.state = mutant;
    return shape;
}

enum {
    SEVERAL_CHUNKS = 1,
    PART_SENT = 2, /* only where the first message does not cover the vector */
    THREE_WORKERS = 4,
    EXTRA_ROUND = 8,
    ONE_SCRATCH_PLANE = 16,
    SECOND_HALF = 32, /* only where results are received */
};

static const struct {
    const char *name;
    mutation *mutate;
    enum fault fault;
    unsigned needs;
} mutations[] = {
    {"dropped SEND", drop_send, FAULT_UNMATCHED, 0},
    {"dropped RECV_REDUCE", drop_receive, FAULT_UNMATCHED, 0},
    {"dropped message", drop_message, FAULT_MISSING, 0},
    {"RECV for RECV_REDUCE", receive_without_adding, FAULT_MISSING, 0},
    {"another chunk sent", send_another_chunk, FAULT_MISSING, PART_SENT},
    {"another size sent", send_less_or_more, FAULT_SIZE, SEVERAL_CHUNKS},
    {"sent to another", send_to_another, FAULT_UNMATCHED, THREE_WORKERS},
    {"sent to itself", send_to_itself, FAULT_BAD_OP, 0},
    {"sent to nobody", send_to_nobody, FAULT_BAD_OP, 0},
    {"unknown lane", send_on_an_unknown_lane, FAULT_BAD_OP, 0},
    {"beyond the vector", send_beyond_the_vector, FAULT_BAD_OP, 0},
    {"MORE without more", promise_more, FAULT_BAD_OP, 0},
    {"received a round late", receive_a_round_late, FAULT_ROUND, EXTRA_ROUND},
    {"weighted", weigh, FAULT_WEIGHTS, 0},
    {"finalised at once", finalise_at_once, FAULT_FINALISED_EARLY, THREE_WORKERS},
    {"finalised never", finalise_never, FAULT_NOT_FINALISED, 0},
    {"FINAL on a RECV", finalise_a_receive, FAULT_BAD_OP, SECOND_HALF},
    {"added twice", add_twice, FAULT_DOUBLED, EXTRA_ROUND},
    {"finalised twice", finalise_twice, FAULT_FINALISED_TWICE, EXTRA_ROUND},
    {"waiting for each other", wait_for_each_other, FAULT_DEADLOCK, EXTRA_ROUND},
    {"waiting for the future", wait_for_the_future, FAULT_WAIT, 0},
    {"unwritten scratch", read_unwritten_scratch, FAULT_SCRATCH, EXTRA_ROUND | ONE_SCRATCH_PLANE},
    {"scratch out of range", read_scratch_beyond_its_planes, FAULT_SCRATCH, EXTRA_ROUND | ONE_SCRATCH_PLANE},
};

/* The mutant of the good shape, if this mutation has something to change in it. */
static void expect_mutants_found(const char *spec, const char *nodes, int workers)
{
    struct shape *good = good_shape(spec, nodes, workers);
    expect_fault(good, FAULT_NONE, spec);
    for (size_t i = 0; i < sizeof mutations / sizeof mutations[0]; i++) {
        const unsigned needs = mutations[i].needs;
        struct algorithm algorithm;
        struct mutant mutant = {.good = good, .target = first_message(good), .mutate = mutations[i].mutate};
        struct shape shape = mutant_shape(&mutant, &algorithm, needs & EXTRA_ROUND ? 1 : 0);
        shape.scratch = needs & ONE_SCRATCH_PLANE ? 1 : shape.scratch;
        if (((needs & PART_SENT) && mutant.target.whole) || ((needs & SEVERAL_CHUNKS) && shape.chunks < 2) ||
            ((needs & THREE_WORKERS) && workers < 3) || ((needs & SECOND_HALF) && good->algorithm->owner == NULL))
            continue;
        expect_fault(&shape, mutations[i].fault, mutations[i].name);
    }
    shape_destroy(good);
}

Test(mutants, of_the_ring)
{
    for (int p = 2; p <= 9; p++)
        expect_mutants_found("ring", NULL, p);
}

Test(mutants, of_recursive_doubling)
{
    for (int p = 2; p <= 9; p++)
        expect_mutants_found("rd", NULL, p);
}

Test(mutants, of_binomial_trees)
{
    for (int p = 2; p <= 9; p++)
        expect_mutants_found("binomial", NULL, p);
}

Test(mutants, of_recursive_halving_doubling)
{
    for (int p = 2; p <= 9; p++)
        expect_mutants_found("rhd", NULL, p);
}

Test(mutants, of_hierarchies)
{
    expect_mutants_found("hierarchical", "4+2", 6);
    expect_mutants_found("hierarchical", "2x4", 8);
    expect_mutants_found("hierarchical:intra=rhd,inter=rd", "3+3+2", 8);
    expect_mutants_found("hierarchical:intra=binomial,inter=rhd", "4+4+4", 12);
}

static void expect_mutant(const char *spec, int workers, mutation *mutate, enum fault fault)
{
    struct shape *good = good_shape(spec, NULL, workers);
    struct algorithm algorithm;
    struct mutant mutant = {.good = good, .target = first_message(good), .mutate = mutate};
    const struct shape shape = mutant_shape(&mutant, &algorithm, 0);
    expect_fault(&shape, fault, spec);
    shape_destroy(good);
}

/* Recursive doubling sends and adds to the whole vector in a round: who adds first, sends what it was given. With two
 * workers that is a result already. */
Test(mutants, with_conflicting_ops_in_reverse)
{
    for (int p = 2; p <= 16; p *= 2) {
        expect_mutant("rd", p, swap_in_one, p == 2 ? FAULT_FINALISED_TWICE : FAULT_DOUBLED);
        expect_mutant("rd", p, swap_in_all, FAULT_DEADLOCK);
    }
}

static void expect_half_mutant(const char *spec, int workers, int wrong_owner, int split)
{
    struct shape *good = good_shape(spec, NULL, workers);
    struct algorithm algorithm;
    struct mutant mutant = {.good = good, .mutate = pass, .wrong_owner = wrong_owner};
    struct shape shape = mutant_shape(&mutant, &algorithm, 0);
    shape.split += (uint32_t)split;
    expect_fault(&shape, FAULT_OWNER, spec);
    shape_destroy(good);
}

Test(mutants, with_halves_that_are_not_what_they_say)
{
    for (int p = 3; p <= 8; p++) {
        expect_half_mutant("ring", p, 1, 0);
        expect_half_mutant("ring", p, 0, -1);
        expect_half_mutant("ring", p, 0, 1);
        expect_half_mutant("rhd", p, 1, 0);
        expect_half_mutant("rhd", p, 0, -1);
        expect_half_mutant("binomial", p, 1, 0);
        expect_half_mutant("binomial", p, 0, 1);
    }
}

/* ---- at random places of every algorithm ---- */

#define OPS_MOST 4096 /* of a worker in a round */

/* What is done with an op, or with an op and the one after it. */
enum edit_kind { EDIT_DROP, EDIT_TWICE, EDIT_SWAP, EDIT_REPLACE };

/* One op of one worker, by its number within its round. */
struct edit {
    enum edit_kind kind;
    int rank;
    uint32_t round;
    size_t number;
    struct op op; /* EDIT_REPLACE */
};

struct edited {
    const struct shape *good;
    struct edit edits[2];
    size_t count;
};

struct ops {
    struct sink sink; /* first */
    struct op op[OPS_MOST];
    size_t count;
};

static enum status keep_op(struct sink *sink, const struct op *op)
{
    struct ops *ops = (struct ops *)sink;
    cr_assert_lt(ops->count, OPS_MOST);
    ops->op[ops->count++] = *op;
    return STATUS_OK;
}

static void list_ops(const struct shape *shape, int rank, uint32_t round, struct ops *ops)
{
    ops->sink = (struct sink){.op = keep_op, .round = round};
    ops->count = 0;
    cr_assert_eq(shape->algorithm->emit(shape, rank, round, &ops->sink), STATUS_OK, "%s", status_message());
}

static enum status edited_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct edited *edited = shape->state;
    static struct ops ops;
    list_ops(edited->good, rank, round, &ops);
    for (size_t e = edited->count; e-- > 0;) { /* the later first, if they are of one round */
        const struct edit *edit = &edited->edits[e];
        struct op *at = &ops.op[edit->number];
        if (edit->rank != rank || edit->round != round)
            continue;
        const struct op first = *at;
        if (edit->kind == EDIT_DROP)
            memmove(at, at + 1, (--ops.count - edit->number) * sizeof *at);
        else if (edit->kind == EDIT_TWICE)
            memmove(at + 1, at, (ops.count++ - edit->number) * sizeof *at);
        else if (edit->kind == EDIT_REPLACE)
            *at = edit->op;
        else {
            at[0] = at[1];
            at[1] = first;
        }
    }
    for (size_t i = 0; i < ops.count; i++)
        TRY(sink->op(sink, &ops.op[i]));
    return STATUS_OK;
}

static int edited_owner(const struct shape *shape, uint32_t chunk)
{
    const struct edited *edited = shape->state;
    return edited->good->algorithm->owner(edited->good, chunk);
}

/* An op of a schedule, and its partner if it is a message. */
struct place {
    int rank, peer;
    uint32_t round;
    size_t number, partner; /* within the round of rank, of peer */
    struct op op, partner_op;
    bool joined; /* the op before or this one says MORE */
};

static bool is_receive(const struct op *op)
{
    return op->kind == OP_RECV || op->kind == OP_RECV_REDUCE;
}

/* The receive of the k-th SEND to a peer on a lane of a round is the k-th receive there (rule 1). */
static void find_partner(const struct shape *shape, const struct ops *ops, struct place *place)
{
    static struct ops theirs;
    size_t k = 0;
    place->peer = place->op.peer;
    for (size_t i = 0; i < place->number; i++)
        k += ops->op[i].kind == OP_SEND && ops->op[i].peer == place->peer && ops->op[i].lane == place->op.lane;
    list_ops(shape, place->peer, place->round, &theirs);
    for (size_t i = 0; i < theirs.count; i++)
        if (is_receive(&theirs.op[i]) && theirs.op[i].peer == place->rank && theirs.op[i].lane == place->op.lane &&
            k-- == 0) {
            place->partner = i;
            place->partner_op = theirs.op[i];
            return;
        }
    cr_assert_fail("a SEND without its receive");
}

/* A mutation that fits where it is drawn, and the names under which the verifier may find it. */
struct drawn {
    const char *name;
    struct edited edited;
    unsigned faults; /* bit f: FAULT f */
};

#define BIT(fault) (1u << (fault))

/* What a wrong value may show as, depending on where it goes. */
#define WRONG_VALUE                                                                                                    \
    (BIT(FAULT_MISSING) | BIT(FAULT_DOUBLED) | BIT(FAULT_NOT_FINALISED) | BIT(FAULT_FINALISED_EARLY) |                 \
     BIT(FAULT_FINALISED_TWICE) | BIT(FAULT_SCRATCH))

static void edit(struct drawn *drawn, enum edit_kind kind, int rank, uint32_t round, size_t number, struct op op)
{
    drawn->edited.edits[drawn->edited.count++] =
        (struct edit){.kind = kind, .rank = rank, .round = round, .number = number, .op = op};
}

enum random_mutation {
    SEND_DROPPED,
    RECEIVE_DROPPED,
    MESSAGE_DROPPED,
    MESSAGE_TWICE,
    ANOTHER_CHUNK,
    ANOTHER_SIZE,
    ANOTHER_PEER,
    WEIGHTED,
    NOT_ADDED,
    REVERSED,
    FINAL_DROPPED,
    FINAL_ADDED,
    RANDOM_MUTATIONS
};

/* Fills *drawn for a SEND at `place`; false when this mutation does not fit there. */
static bool mutate_message(const struct shape *shape, const struct place *at, enum random_mutation which,
                           struct drawn *drawn)
{
    const unsigned torn = at->joined ? BIT(FAULT_BAD_OP) : 0; /* MORE, and nothing more */
    const bool adds = at->partner_op.kind == OP_RECV_REDUCE;
    struct op send = at->op, receive = at->partner_op;
    switch (which) {
    case SEND_DROPPED:
        *drawn = (struct drawn){.name = "a dropped SEND", .faults = BIT(FAULT_UNMATCHED) | torn};
        edit(drawn, EDIT_DROP, at->rank, at->round, at->number, send);
        return true;
    case RECEIVE_DROPPED:
        *drawn = (struct drawn){.name = "a dropped receive", .faults = BIT(FAULT_UNMATCHED) | torn};
        edit(drawn, EDIT_DROP, at->peer, at->round, at->partner, receive);
        return true;
    case MESSAGE_DROPPED:
        *drawn = (struct drawn){.name = "a dropped message", .faults = WRONG_VALUE | torn};
        edit(drawn, EDIT_DROP, at->rank, at->round, at->number, send);
        edit(drawn, EDIT_DROP, at->peer, at->round, at->partner, receive);
        return true;
    case MESSAGE_TWICE:
        *drawn =
            (struct drawn){.name = "a message twice", .faults = BIT(FAULT_DOUBLED) | BIT(FAULT_FINALISED_TWICE) | torn};
        edit(drawn, EDIT_TWICE, at->rank, at->round, at->number, send);
        edit(drawn, EDIT_TWICE, at->peer, at->round, at->partner, receive);
        return adds;
    case ANOTHER_CHUNK:
        *drawn = (struct drawn){.name = "another chunk sent", .faults = WRONG_VALUE | BIT(FAULT_RACE)};
        send.src.chunk = send.src.chunk > 0 ? send.src.chunk - 1 : send.src.chunk + 1;
        edit(drawn, EDIT_REPLACE, at->rank, at->round, at->number, send);
        return send.src.buffer == BUFFER_VECTOR && at->op.src.chunks < shape->chunks;
    case ANOTHER_SIZE:
        *drawn = (struct drawn){.name = "another size sent", .faults = BIT(FAULT_SIZE)};
        send.src.chunks += send.src.chunks > 1 ? (uint32_t)-1 : 1;
        send.src.chunk -= at->op.src.chunks == 1 && send.src.chunk > 0;
        edit(drawn, EDIT_REPLACE, at->rank, at->round, at->number, send);
        return send.src.buffer == BUFFER_VECTOR && shape->chunks > 1;
    case ANOTHER_PEER:
        *drawn = (struct drawn){.name = "sent to another", .faults = BIT(FAULT_UNMATCHED) | torn};
        do
            send.peer = (send.peer + 1) % shape->workers;
        while (send.peer == at->rank);
        edit(drawn, EDIT_REPLACE, at->rank, at->round, at->number, send);
        return shape->workers > 2;
    case WEIGHTED:
        *drawn = (struct drawn){.name = "weighted", .faults = BIT(FAULT_WEIGHTS)};
        receive.weight = 0.5;
        edit(drawn, EDIT_REPLACE, at->peer, at->round, at->partner, receive);
        return adds;
    case NOT_ADDED:
        *drawn = (struct drawn){.name = "RECV for RECV_REDUCE", .faults = WRONG_VALUE | torn};
        receive.kind = OP_RECV;
        receive.flags &= (uint8_t)~OP_FINAL;
        edit(drawn, EDIT_REPLACE, at->peer, at->round, at->partner, receive);
        return adds;
    default:
        return false;
    }
}

static bool ranges_overlap(const struct range *a, const struct range *b)
{
    return a->buffer == b->buffer && a->chunk < b->chunk + b->chunks && b->chunk < a->chunk + a->chunks;
}

/* The same for any op, and the one after it. */
static bool mutate_op(const struct place *at, const struct op *after, enum random_mutation which, struct drawn *drawn)
{
    const bool adds = at->op.kind == OP_RECV_REDUCE || at->op.kind == OP_REDUCE;
    struct op op = at->op;
    switch (which) {
    case REVERSED: /* what is sent, and then added to or overwritten */
        *drawn = (struct drawn){.name = "a reversed dependency",
                                .faults = WRONG_VALUE | BIT(FAULT_DEADLOCK) | BIT(FAULT_OWNER) | BIT(FAULT_TRAIT)};
        edit(drawn, EDIT_SWAP, at->rank, at->round, at->number, op);
        return op.kind == OP_SEND && !at->joined && after != NULL && is_receive(after) && after->lane == op.lane &&
               ranges_overlap(&op.src, &after->dst);
    case FINAL_DROPPED:
        *drawn = (struct drawn){.name = "not finalised", .faults = BIT(FAULT_NOT_FINALISED)};
        op.flags &= (uint8_t)~OP_FINAL;
        edit(drawn, EDIT_REPLACE, at->rank, at->round, at->number, op);
        return adds && (at->op.flags & OP_FINAL);
    case FINAL_ADDED:
        *drawn = (struct drawn){.name = "finalised early",
                                .faults = BIT(FAULT_FINALISED_EARLY) | BIT(FAULT_FINALISED_TWICE)};
        op.flags |= OP_FINAL;
        edit(drawn, EDIT_REPLACE, at->rank, at->round, at->number, op);
        return adds && !(at->op.flags & OP_FINAL);
    default:
        return false;
    }
}

static bool draw_mutation(const struct shape *shape, uint64_t key, uint64_t *counter, enum random_mutation which,
                          struct drawn *drawn)
{
    static struct ops ops;
    struct place at = {.rank = (int)rng_below(key, (*counter)++, (uint64_t)shape->workers),
                       .round = (uint32_t)rng_below(key, (*counter)++, shape->rounds)};
    list_ops(shape, at.rank, at.round, &ops);
    if (ops.count == 0)
        return false;
    at.number = (size_t)rng_below(key, (*counter)++, ops.count);
    at.op = ops.op[at.number];
    at.joined = (at.op.flags & OP_MORE) || (at.number > 0 && (ops.op[at.number - 1].flags & OP_MORE));
    if (which >= REVERSED)
        return mutate_op(&at, at.number + 1 < ops.count ? &ops.op[at.number + 1] : NULL, which, drawn);
    if (at.op.kind != OP_SEND)
        return false;
    find_partner(shape, &ops, &at);
    at.joined |= (at.partner_op.flags & OP_MORE) != 0;
    return mutate_message(shape, &at, which, drawn);
}

static void expect_drawn_found(const struct shape *good, const char *name, uint64_t seed, const struct drawn *drawn)
{
    struct algorithm algorithm = *good->algorithm;
    struct edited edited = drawn->edited;
    struct shape shape = *good;
    struct verify_result result;
    const struct edit *first = &edited.edits[0];
    algorithm.emit = edited_emit;
    algorithm.owner = good->algorithm->owner == NULL ? NULL : edited_owner;
    edited.good = good;
    shape.algorithm = &algorithm;
    shape.state = &edited;
    cr_assert_eq(verify_shape(&shape, &result), STATUS_OK, "%s", status_message());
    cr_expect(drawn->faults & BIT(result.fault),
              "%s for %d workers, seed %llu: %s (worker %d round %u op %zu) is %s: %s", name, good->workers,
              (unsigned long long)seed, drawn->name, first->rank, (unsigned)first->round, first->number,
              fault_name(result.fault), result.reason);
}

/* Some worker counts, of each mutation some places; every draw depends on the seed alone. */
static size_t expect_random_mutants_found(const char *name, uint64_t seed)
{
    const uint64_t key = rng_key(seed, "mutants", 0, 0);
    uint64_t counter = 0;
    size_t found = 0;
    struct layout layout;
    struct spec spec;
    struct shape *good = NULL;
    const int workers = 2 + (int)rng_below(key, counter++, 11);
    cr_assert_eq(spec_parse(name, &spec), STATUS_OK, "%s", status_message());
    cr_assert_eq(layout_flat(workers, &layout), STATUS_OK);
    const enum status status = spec_shape(&spec, &layout, 0, 1000, &good);
    cr_assert(status == STATUS_OK || status == STATUS_REFUSED, "%s: %s", name, status_message());
    for (int which = 0; good != NULL && which < RANDOM_MUTATIONS; which++)
        for (int tries = 0; tries < 40; tries++) {
            struct drawn drawn;
            if (!draw_mutation(good, key, &counter, (enum random_mutation)which, &drawn))
                continue;
            expect_drawn_found(good, name, seed, &drawn);
            found |= (size_t)1 << which;
            break;
        }
    shape_destroy(good);
    layout_release(&layout);
    spec_release(&spec);
    return found;
}

Test(mutants, at_random_places_of_every_algorithm)
{
    const char *given = getenv("CHORALE_TEST_SEED");
    const uint64_t first = given != NULL ? strtoull(given, NULL, 10) : 1;
    const size_t always = ((size_t)1 << SEND_DROPPED) | ((size_t)1 << RECEIVE_DROPPED) | ((size_t)1 << MESSAGE_DROPPED);
    size_t count = 0;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t i = 0; i < count; i++) {
        size_t found = 0;
        for (uint64_t seed = first; seed < first + 6 && algorithm_in_all(algorithms[i]); seed++)
            found |= expect_random_mutants_found(algorithms[i]->name, seed);
        cr_expect(!algorithm_in_all(algorithms[i]) || (found & always) == always, "%s: mutations have found no place",
                  algorithms[i]->name);
    }
}

/* ---- lanes ---- */

TOY(two_lanes, TOY_SEND(1, 0, 0, 0, 0, 1), TOY_FINAL(0, 0, 0, 1, 0, 1), TOY_WAIT(0, 1, 1, 0, 0),
    TOY_SEND(0, 1, 1, 1, 0, 1), TOY_WAIT(1, 1, 1, 0, 0), TOY_RECV(1, 1, 1, 0, 0, 1));
TOY(sender_does_not_wait, TOY_SEND(1, 0, 0, 0, 0, 1), TOY_FINAL(0, 0, 0, 1, 0, 1), TOY_SEND(0, 1, 1, 1, 0, 1),
    TOY_WAIT(1, 1, 1, 0, 0), TOY_RECV(1, 1, 1, 0, 0, 1));
TOY(receiver_does_not_wait, TOY_SEND(1, 0, 0, 0, 0, 1), TOY_FINAL(0, 0, 0, 1, 0, 1), TOY_WAIT(0, 1, 1, 0, 0),
    TOY_SEND(0, 1, 1, 1, 0, 1), TOY_RECV(1, 1, 1, 0, 0, 1));
TOY(with_fences, TOY_SEND(1, 0, 0, 0, 0, 1), TOY_FINAL(0, 0, 0, 1, 0, 1), TOY_FENCE(0, 1, 0, 2),
    TOY_SEND(0, 1, 1, 1, 0, 1), TOY_FENCE(1, 1, 0, 2), TOY_RECV(1, 1, 1, 0, 0, 1));
TOY(fence_in_one, TOY_SEND(1, 0, 0, 0, 0, 1), TOY_FINAL(0, 0, 0, 1, 0, 1), TOY_FENCE(0, 1, 0, 2),
    TOY_SEND(0, 1, 1, 1, 0, 1), TOY_RECV(1, 1, 1, 0, 0, 1));
TOY(fence_of_one_lane, TOY_SEND(1, 0, 0, 0, 0, 1), TOY_FINAL(0, 0, 0, 1, 0, 1), TOY_FENCE(0, 1, 1, 1),
    TOY_SEND(0, 1, 1, 1, 0, 1), TOY_FENCE(1, 1, 0, 2), TOY_RECV(1, 1, 1, 0, 0, 1));
TOY(fence_too_wide, TOY_FENCE(0, 0, 1, 2));

static void expect_toy(struct toy *toy, uint32_t chunks, uint16_t lanes, enum fault fault, const char *what)
{
    const struct shape shape = toy_shape(toy, 2, chunks, lanes);
    expect_fault(&shape, fault, what);
}

Test(mutants, without_a_wait_or_a_fence_between_lanes)
{
    expect_toy(&two_lanes, 1, 2, FAULT_NONE, "two lanes");
    expect_toy(&sender_does_not_wait, 1, 2, FAULT_RACE, "sender does not wait");
    expect_toy(&receiver_does_not_wait, 1, 2, FAULT_RACE, "receiver does not wait");
    expect_toy(&with_fences, 1, 2, FAULT_NONE, "fences");
    expect_toy(&fence_in_one, 1, 2, FAULT_RACE, "a fence in one worker only");
    expect_toy(&fence_of_one_lane, 1, 2, FAULT_RACE, "a fence of one lane");
    expect_toy(&fence_too_wide, 1, 2, FAULT_BAD_OP, "a fence over unknown lanes");
}

/* Waits across two lanes of one worker, each for what stands after it in the other. */
TOY(waits_in_a_circle, TOY_SEND(1, 0, 0, 0, 0, 2), TOY_FINAL(0, 0, 0, 1, 0, 2), TOY_WAIT(0, 1, 0, 1, 1),
    TOY_WAIT(0, 1, 1, 0, 1), TOY_SEND(0, 1, 0, 1, 0, 1), TOY_RECV(0, 1, 1, 1, 0, 1), TOY_FENCE(1, 1, 0, 2),
    TOY_RECV(1, 1, 0, 0, 0, 1), TOY_SEND(1, 1, 1, 0, 1, 1));

Test(mutants, with_lanes_that_wait_for_each_other)
{
    expect_toy(&waits_in_a_circle, 2, 2, FAULT_RACE, "waits in a circle");
}

/* Worker 0 adds what 1 and 2 have in lanes 0 and 1, and sends the result back in lane 2: a chain. */
#define CHAIN(...)                                                                                                     \
    TOY_SEND(1, 0, 0, 0, 0, 1), TOY_REDUCE(0, 0, 0, 1, 0, 1), TOY_SEND(2, 1, 1, 0, 0, 1), __VA_ARGS__,                 \
        TOY_SEND(0, 2, 2, 1, 0, 1), TOY_SEND(0, 2, 2, 2, 0, 1), TOY_WAIT(1, 2, 2, 0, 0), TOY_RECV(1, 2, 2, 0, 0, 1),   \
        TOY_WAIT(2, 2, 2, 1, 1), TOY_RECV(2, 2, 2, 0, 0, 1)
TOY(chain_of_waits, CHAIN(TOY_WAIT(0, 1, 1, 0, 0), TOY_FINAL(0, 1, 1, 2, 0, 1), TOY_WAIT(0, 2, 2, 1, 1)));
TOY(chain_of_waits_and_fences, CHAIN(TOY_FENCE(0, 1, 0, 2), TOY_FINAL(0, 1, 1, 2, 0, 1), TOY_WAIT(0, 2, 2, 1, 1)));
TOY(chain_of_fences, CHAIN(TOY_FENCE(0, 1, 0, 2), TOY_FINAL(0, 1, 1, 2, 0, 1), TOY_FENCE(0, 2, 1, 2)));
TOY(chain_without_its_first, CHAIN(TOY_FINAL(0, 1, 1, 2, 0, 1), TOY_WAIT(0, 2, 2, 1, 1)));
TOY(chain_without_its_second, CHAIN(TOY_WAIT(0, 1, 1, 0, 0), TOY_FINAL(0, 1, 1, 2, 0, 1), TOY_WAIT(0, 2, 2, 0, 0)));
TOY(chain_for_too_early_a_round, CHAIN(TOY_WAIT(0, 1, 1, 0, 0), TOY_FINAL(0, 1, 1, 2, 0, 1), TOY_WAIT(0, 2, 2, 1, 0)));
TOY(chain_waited_for_too_early, CHAIN(TOY_WAIT(0, 1, 1, 0, 0), TOY_WAIT(0, 1, 2, 1, 1), TOY_FINAL(0, 1, 1, 2, 0, 1)));
/* Lane 2 waits for a lane that touches nothing, but has waited for lane 0. */
TOY(through_an_idle_lane, TOY_SEND(1, 0, 0, 0, 0, 1), TOY_FINAL(0, 0, 0, 1, 0, 1), TOY_WAIT(0, 1, 1, 0, 0),
    TOY_WAIT(0, 2, 2, 1, 1), TOY_SEND(0, 2, 2, 1, 0, 1), TOY_WAIT(1, 1, 1, 0, 0), TOY_WAIT(1, 2, 2, 1, 2),
    TOY_RECV(1, 2, 2, 0, 0, 1));

static void expect_lanes(struct toy *toy, int workers, enum fault fault, const char *what)
{
    const struct shape shape = toy_shape(toy, workers, 1, 3);
    expect_fault(&shape, fault, what);
}

Test(mutants, with_chains_of_waits_and_fences_between_lanes)
{
    expect_lanes(&chain_of_waits, 3, FAULT_NONE, "waits");
    expect_lanes(&chain_of_waits_and_fences, 3, FAULT_NONE, "a fence and a wait");
    expect_lanes(&chain_of_fences, 3, FAULT_NONE, "fences");
    expect_lanes(&chain_without_its_first, 3, FAULT_RACE, "lanes 0 and 1 are not ordered");
    expect_lanes(&chain_without_its_second, 3, FAULT_RACE, "lane 2 does not wait for lane 1");
    expect_lanes(&chain_for_too_early_a_round, 3, FAULT_RACE, "a wait for round 0");
    expect_lanes(&chain_waited_for_too_early, 3, FAULT_RACE, "a wait before what it is for");
    expect_lanes(&through_an_idle_lane, 2, FAULT_NONE, "through a lane that does nothing");
}

/* Two lanes of worker 0 and what they do with leaves 0 and 1. */
TOY(lanes_apart, TOY_SEND(1, 0, 0, 0, 0, 1), TOY_SEND(1, 0, 1, 0, 1, 1), TOY_FINAL(0, 0, 0, 1, 0, 1),
    TOY_FINAL(0, 0, 1, 1, 1, 1), TOY_SEND(0, 1, 0, 1, 0, 1), TOY_SEND(0, 1, 1, 1, 1, 1), TOY_RECV(1, 1, 0, 0, 0, 1),
    TOY_RECV(1, 1, 1, 0, 1, 1));
TOY(lanes_overlap, TOY_SEND(1, 0, 0, 0, 0, 1), TOY_SEND(1, 0, 1, 0, 1, 1), TOY_FINAL(0, 0, 0, 1, 0, 1),
    TOY_FINAL(0, 0, 1, 1, 1, 1), TOY_SEND(0, 1, 0, 1, 0, 2), TOY_FENCE(1, 1, 0, 2), TOY_RECV(1, 1, 0, 0, 0, 2));
TOY(lanes_both_read, TOY_SEND(1, 0, 0, 0, 0, 1), TOY_SEND(2, 0, 0, 0, 0, 1), TOY_REDUCE(0, 0, 0, 1, 0, 1),
    TOY_FINAL(0, 0, 0, 2, 0, 1), TOY_FENCE(0, 1, 0, 2), TOY_SEND(0, 1, 0, 1, 0, 1), TOY_SEND(0, 1, 1, 2, 0, 1),
    TOY_RECV(1, 1, 0, 0, 0, 1), TOY_FENCE(2, 1, 0, 2), TOY_RECV(2, 1, 1, 0, 0, 1));
TOY(overwritten_while_read, TOY_SEND(1, 0, 0, 0, 0, 1), TOY_FINAL(0, 0, 0, 1, 0, 1), TOY_SEND(0, 1, 0, 1, 0, 1),
    TOY_RECV(1, 1, 0, 0, 0, 1), TOY_SEND(1, 2, 0, 0, 0, 1), TOY_WAIT(0, 2, 1, 0, 0), TOY_RECV(0, 2, 0, 1, 0, 1),
    {0,
     {.kind = OP_COPY,
      .round = 2,
      .lane = 1,
      .peer = -1,
      .src = TOY_LEAVES(0, 1),
      .dst = TOY_LEAVES(0, 1),
      .weight = 1}});

Test(mutants, with_lanes_that_touch_the_same_or_not)
{
    const struct shape apart = toy_shape(&lanes_apart, 2, 2, 2), across = toy_shape(&lanes_overlap, 2, 2, 2),
                       readers = toy_shape(&lanes_both_read, 3, 1, 2),
                       overwritten = toy_shape(&overwritten_while_read, 2, 1, 2);
    expect_fault(&apart, FAULT_NONE, "each its own leaf");
    expect_fault(&across, FAULT_RACE, "one lane reads what the other has written");
    expect_fault(&readers, FAULT_NONE, "both read");
    expect_fault(&overwritten, FAULT_RACE, "one lane writes what the other reads");
}

#define PLANE_RECV(t, l, c)                                                                                            \
    {                                                                                                                  \
        0,                                                                                                             \
        {                                                                                                              \
            .kind = OP_RECV, .round = (t), .lane = (l), .peer = 1, .dst = TOY_PLANE(c, 1), .weight = 1                 \
        }                                                                                                              \
    }
/* Worker 0 takes the other's vector into a plane in lane 1 and adds it in lane 0. */
#define THROUGH_SCRATCH(...)                                                                                           \
    TOY_SEND(1, 0, 1, 0, 0, 1), PLANE_RECV(0, 1, 0), __VA_ARGS__, TOY_SEND(0, 2, 0, 1, 0, 1), TOY_FENCE(1, 2, 0, 2),   \
        TOY_RECV(1, 2, 0, 0, 0, 1)
TOY(scratch_waited_for,
    THROUGH_SCRATCH(TOY_WAIT(0, 1, 0, 1, 0), TOY_LOCAL(0, 1, 0, OP_REDUCE, OP_FINAL, 0, TOY_VECTOR)));
TOY(scratch_not_waited_for, THROUGH_SCRATCH(TOY_LOCAL(0, 1, 0, OP_REDUCE, OP_FINAL, 0, TOY_VECTOR)));
TOY(scratch_of_another_plane,
    THROUGH_SCRATCH(TOY_WAIT(0, 1, 0, 1, 0), TOY_LOCAL(0, 1, 0, OP_REDUCE, OP_FINAL, 1, TOY_VECTOR)));
TOY(scratch_copied, THROUGH_SCRATCH(TOY_WAIT(0, 1, 0, 1, 0), TOY_LOCAL(0, 1, 0, OP_COPY, 0, 0, 1),
                                    TOY_LOCAL(0, 1, 0, OP_REDUCE, OP_FINAL, 1, TOY_VECTOR)));
TOY(scratch_as_the_sum, THROUGH_SCRATCH(TOY_WAIT(0, 1, 0, 1, 0), TOY_LOCAL(0, 1, 0, OP_REDUCE, OP_FINAL, TOY_VECTOR, 0),
                                        TOY_LOCAL(0, 1, 0, OP_COPY, 0, 0, TOY_VECTOR)));

static void expect_scratch(struct toy *toy, enum fault fault, const char *what)
{
    struct shape shape = toy_shape(toy, 2, 1, 2);
    shape.scratch = 2;
    expect_fault(&shape, fault, what);
}

Test(mutants, with_scratch_planes)
{
    expect_scratch(&scratch_waited_for, FAULT_NONE, "waited for");
    expect_scratch(&scratch_not_waited_for, FAULT_RACE, "not waited for");
    expect_scratch(&scratch_of_another_plane, FAULT_SCRATCH, "another plane");
    expect_scratch(&scratch_copied, FAULT_NONE, "from plane to plane");
    expect_scratch(&scratch_as_the_sum, FAULT_NONE, "summed up in the plane");
}

/* Complete everywhere after the first round, and then spread by a worker that does not own it. */
TOY(spread_by_another, TOY_SEND(0, 0, 0, 1, 0, 1), TOY_FINAL(0, 0, 0, 1, 0, 1), TOY_SEND(1, 0, 0, 0, 0, 1),
    TOY_FINAL(1, 0, 0, 0, 0, 1), TOY_SEND(1, 1, 0, 0, 0, 1), TOY_RECV(0, 1, 0, 1, 0, 1));

static int owner_zero(const struct shape *shape, uint32_t chunk)
{
    (void)shape, (void)chunk;
    return 0;
}

static int owner_nobody(const struct shape *shape, uint32_t chunk)
{
    (void)chunk;
    return shape->workers;
}

Test(mutants, with_a_result_that_its_owner_does_not_spread)
{
    struct shape shape = toy_shape(&spread_by_another, 2, 1, 1);
    expect_fault(&shape, FAULT_NONE, "no halves claimed");
    struct algorithm algorithm = *shape.algorithm;
    algorithm.owner = owner_zero;
    shape.algorithm = &algorithm;
    shape.split = 1;
    expect_fault(&shape, FAULT_OWNER, "spread by another");
    algorithm.owner = owner_nobody;
    expect_fault(&shape, FAULT_OWNER, "owned by nobody");
}
