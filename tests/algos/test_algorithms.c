/* test_algorithms.c - every schedule of the catalogue on small teams, run op by op with symbolic values; traffic
 * against closed forms; and two tables worked out by hand. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"

/* ---- running a schedule: each worker executes its ops in order, sends are buffered, receives block ---- */

struct value {
    unsigned char *times; /* [leaf * workers + w]: how often worker w's contribution is in this leaf */
    unsigned char *final; /* [leaf]; leaves of the vector, then of the scratch planes                 */
};
struct message {
    int to;
    struct op op;
    struct value value;
    bool taken;
};
struct program {
    struct sink sink;
    struct op *ops;
    size_t count, capacity, next;
};
struct run {
    const struct shape *shape;
    struct program *programs;
    struct value *values;
    struct message *messages;
    size_t message_count, message_capacity;
};

static enum status record(struct sink *sink, const struct op *op)
{
    struct program *program = (struct program *)sink;
    cr_assert_eq(op->round, sink->round);
    if (program->count == program->capacity) {
        program->capacity = program->capacity * 2 + 16;
        program->ops = realloc(program->ops, program->capacity * sizeof *program->ops);
        cr_assert_not_null(program->ops);
    }
    program->ops[program->count++] = *op;
    return STATUS_OK;
}

static void load(struct program *program, const struct shape *shape, int rank, uint32_t first, uint32_t end)
{
    program->sink = (struct sink){.op = record};
    for (uint32_t round = first; round < end; round++) {
        program->sink.round = round;
        program->sink.lane = 0;
        cr_assert_eq(shape->algorithm->emit(shape, rank, round, &program->sink), STATUS_OK, "%s", status_message());
    }
}

static struct value value_create(uint32_t leaves, int workers)
{
    const struct value value = {calloc((size_t)leaves * (size_t)workers, 1), calloc(leaves, 1)};
    if (value.times == NULL || value.final == NULL)
        abort();
    return value;
}

static void value_release(struct value *value)
{
    free(value->times);
    free(value->final);
}

/* Where a range begins in a worker's value. */
static size_t cell_of(const struct run *run, const struct range *range)
{
    return range->chunk + (range->buffer == BUFFER_SCRATCH ? run->shape->chunks : 0);
}

static void do_send(struct run *run, int rank, const struct op *op)
{
    const size_t p = (size_t)run->shape->workers;
    if (run->message_count == run->message_capacity) {
        run->message_capacity = run->message_capacity * 2 + 64;
        run->messages = realloc(run->messages, run->message_capacity * sizeof *run->messages);
        cr_assert_not_null(run->messages);
    }
    struct message message = {.to = op->peer, .op = *op, .value = value_create(op->src.chunks, (int)p)};
    memcpy(message.value.times, run->values[rank].times + cell_of(run, &op->src) * p, op->src.chunks * p);
    memcpy(message.value.final, run->values[rank].final + cell_of(run, &op->src), op->src.chunks);
    message.op.peer = rank; /* as the receiver names it */
    run->messages[run->message_count++] = message;
}

/* dst = incoming, or dst + incoming, as `op` has it. */
static void put(struct run *run, int rank, const struct op *op, const unsigned char *times, const unsigned char *final)
{
    const size_t p = (size_t)run->shape->workers;
    const bool adds = op->kind == OP_RECV_REDUCE || op->kind == OP_REDUCE;
    struct value *mine = &run->values[rank];
    for (uint32_t c = 0; c < op->dst.chunks; c++) {
        const size_t leaf = cell_of(run, &op->dst) + c;
        for (size_t w = 0; w < p; w++)
            mine->times[leaf * p + w] = (unsigned char)((adds ? mine->times[leaf * p + w] : 0) + times[c * p + w]);
        cr_assert(!adds || (!mine->final[leaf] && !final[c]), "worker %d adds to a finalised leaf %zu in round %u",
                  rank, leaf, op->round);
        mine->final[leaf] = adds ? (op->flags & OP_FINAL) != 0 : final[c];
        for (size_t w = 0; w < p && (op->flags & OP_FINAL) != 0; w++)
            cr_assert_eq(mine->times[leaf * p + w], 1, "worker %d finalises leaf %zu too early", rank, leaf);
    }
}

/* Whether a message was there. */
static bool do_receive(struct run *run, int rank, const struct op *op)
{
    struct message *found = NULL;
    for (size_t i = 0; i < run->message_count && found == NULL; i++)
        if (!run->messages[i].taken && run->messages[i].to == rank && run->messages[i].op.peer == op->peer &&
            run->messages[i].op.lane == op->lane)
            found = &run->messages[i];
    if (found == NULL)
        return false;
    found->taken = true;
    cr_assert_eq(found->op.round, op->round);
    cr_assert_eq(found->op.src.chunks, op->dst.chunks);
    put(run, rank, op, found->value.times, found->value.final);
    value_release(&found->value);
    return true;
}

static void expect_inside(const struct shape *shape, const struct range *range)
{
    const uint32_t planes = range->buffer == BUFFER_SCRATCH ? shape->scratch : 1;
    cr_assert(range->chunks > 0 && range->chunk / shape->chunks < planes);
    cr_assert(range->chunk % shape->chunks + range->chunks <= shape->chunks);
}

static bool do_op(struct run *run, int rank, const struct op *op)
{
    const struct shape *shape = run->shape;
    const size_t p = (size_t)shape->workers;
    const bool local = op->kind == OP_REDUCE || op->kind == OP_COPY;
    cr_assert(local || op->kind == OP_SEND || op->kind == OP_RECV || op->kind == OP_RECV_REDUCE);
    cr_assert(local || (op->peer >= 0 && op->peer < shape->workers && op->peer != rank));
    cr_assert(op->kind == OP_RECV_REDUCE || op->kind == OP_REDUCE || (op->flags & OP_FINAL) == 0,
              "FINAL where nothing is reduced");
    if (local || op->kind == OP_SEND)
        expect_inside(shape, &op->src);
    if (op->kind != OP_SEND)
        expect_inside(shape, &op->dst);
    if (op->kind == OP_RECV || op->kind == OP_RECV_REDUCE)
        return do_receive(run, rank, op);
    if (op->kind == OP_SEND) {
        do_send(run, rank, op);
        return true;
    }
    const size_t from = cell_of(run, &op->src);
    cr_assert_eq(op->src.chunks, op->dst.chunks);
    put(run, rank, op, run->values[rank].times + from * p, run->values[rank].final + from);
    return true;
}

/* Run all workers until none can go on. */
static void run_all(struct run *run)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < run->shape->workers; r++) {
            struct program *program = &run->programs[r];
            while (program->next < program->count && do_op(run, r, &program->ops[program->next])) {
                program->next++;
                moved = true;
            }
        }
    }
    for (int r = 0; r < run->shape->workers; r++)
        cr_assert_eq(run->programs[r].next, run->programs[r].count, "worker %d hangs", r);
    for (size_t i = 0; i < run->message_count; i++)
        cr_assert(run->messages[i].taken, "a message to %d is never received", run->messages[i].to);
}

static void expect_complete(const struct run *run, int rank, uint32_t leaf)
{
    const size_t p = (size_t)run->shape->workers;
    cr_assert(rank >= 0 && rank < run->shape->workers);
    const struct value *value = &run->values[rank];
    if (value->times == NULL || value->final == NULL)
        abort();
    for (size_t w = 0; w < p; w++)
        cr_assert_eq(value->times[leaf * p + w], 1, "worker %d leaf %u has worker %zu %d times", rank, leaf, w,
                     value->times[leaf * p + w]);
    cr_assert(p == 1 || value->final[leaf], "worker %d leaf %u is not finalised", rank, leaf);
}

static void check_shape(const struct shape *shape)
{
    const size_t p = (size_t)shape->workers;
    struct run run = {
        .shape = shape, .programs = calloc(p, sizeof *run.programs), .values = calloc(p, sizeof *run.values)};
    if (run.programs == NULL || run.values == NULL)
        abort();
    for (size_t r = 0; r < p; r++) {
        run.values[r] = value_create(shape->chunks * (1 + shape->scratch), shape->workers);
        for (size_t leaf = 0; leaf < shape->chunks; leaf++)
            run.values[r].times[leaf * p + r] = 1;
    }
    if (shape_has_halves(shape)) {
        for (size_t r = 0; r < p; r++)
            load(&run.programs[r], shape, (int)r, 0, shape->split);
        run_all(&run);
        for (uint32_t leaf = 0; leaf < shape->chunks; leaf++)
            expect_complete(&run, shape->algorithm->owner(shape, leaf), leaf);
    }
    for (size_t r = 0; r < p; r++)
        load(&run.programs[r], shape, (int)r, shape_has_halves(shape) ? shape->split : 0, shape->rounds);
    run_all(&run);
    for (size_t r = 0; r < p; r++)
        for (uint32_t leaf = 0; leaf < shape->chunks; leaf++)
            expect_complete(&run, (int)r, leaf);
    for (size_t r = 0; r < p; r++) {
        value_release(&run.values[r]);
        free(run.programs[r].ops);
    }
    free(run.programs);
    free(run.values);
    free(run.messages);
}

static void check_spec(const char *text, const struct layout *layout)
{
    struct spec spec;
    struct shape *shape;
    cr_assert_eq(spec_parse(text, &spec), STATUS_OK, "%s", status_message());
    cr_assert_eq(spec_shape(&spec, layout, 0, 1000, &shape), STATUS_OK, "%s: %s", text, status_message());
    check_shape(shape);
    shape_destroy(shape);
    spec_release(&spec);
}

static struct shape *shape_of(const char *text, const char *nodes)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape;
    cr_assert_eq(spec_parse(text, &spec), STATUS_OK, "%s", status_message());
    cr_assert_eq(layout_parse(nodes, 0, &layout), STATUS_OK, "%s", status_message());
    cr_assert_eq(spec_shape(&spec, &layout, 0, 1000, &shape), STATUS_OK, "%s: %s", text, status_message());
    layout_release(&layout);
    spec_release(&spec);
    return shape;
}

static void expect_refused(const char *text, const char *nodes, const char *reason)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape;
    cr_assert_eq(spec_parse(text, &spec), STATUS_OK, "%s", status_message());
    cr_assert_eq(layout_parse(nodes, 0, &layout), STATUS_OK, "%s", status_message());
    cr_assert_eq(spec_shape(&spec, &layout, 0, 1000, &shape), STATUS_REFUSED, "%s on %s", text, nodes);
    cr_assert_null(shape);
    cr_assert_not_null(strstr(status_message(), reason), "%s", status_message());
    layout_release(&layout);
    spec_release(&spec);
}

/* ---- correctness ---- */

Test(catalogue, every_schedule_reduces_each_contribution_once_for_any_team)
{
    size_t count;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t i = 0; i < count; i++) {
        if (!algorithm_in_all(algorithms[i]))
            continue;
        const bool even = (algorithms[i]->traits & TRAIT_EVEN) != 0;
        if (!even && (algorithms[i]->traits & TRAIT_ANY_SIZE) == 0)
            continue;
        for (int p = even ? 2 : 1; p <= 20; p += even ? 2 : 1) {
            struct layout layout;
            cr_assert_eq(layout_flat(p, &layout), STATUS_OK);
            check_spec(algorithms[i]->name, &layout);
            layout_release(&layout);
        }
    }
}

Test(catalogue, traits_agree_with_what_is_there)
{
    size_t count;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t i = 0; i < count; i++) {
        const struct algorithm *a = algorithms[i];
        cr_assert_eq((a->traits & TRAIT_HALVES) != 0, a->owner != NULL, "%s", a->name);
        cr_assert(a->name[0] != '\0' && a->summary[0] != '\0' && a->source[0] != '\0' && a->aliases != NULL);
        cr_assert_eq(algorithm_find(a->name), a);
    }
}

Test(hierarchical, every_pair_of_inner_schedules_on_equal_and_unequal_nodes)
{
    static const char *const inner[] = {"ring", "rhd", "binomial", "naive", "rd", "hierarchical"};
    static const char *const nodes[] = {"1x1", "1x4", "2x1", "2x2", "4+2", "3+3+3+2", "2x3", "5+1", "1+1+3", "3x4"};
    for (size_t a = 0; a < 6; a++) {
        for (size_t b = 0; b < 6; b++) {
            for (size_t n = 0; n < sizeof nodes / sizeof nodes[0]; n++) {
                char text[100];
                if (strcmp(inner[a], "rd") == 0)
                    continue;
                (void)snprintf(text, sizeof text, "hierarchical:intra=%s,inter=%s", inner[a], inner[b]);
                struct shape *shape = shape_of(text, nodes[n]);
                check_shape(shape);
                shape_destroy(shape);
            }
        }
    }
}

Test(hierarchical, nests_on_either_side)
{
    static const char *const specs[] = {
        "hierarchical:group=4,intra=[hierarchical:group=2]",
        "hierarchical:group=4,intra=[hierarchical:group=2,intra=binomial,inter=rhd],inter=rd",
        "hierarchical:group=2,inter=[hierarchical:group=2]",
        "hierarchical:group=2,inter=[hierarchical:group=3,intra=binomial,inter=[hierarchical:group=1,inter=rd]]",
        "hierarchical:group=1",
        "hierarchical:group=100",
        "hierarchical:group=3,intra=[hierarchical:group=2+1]",
    };
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        for (int p = 12; p <= 13; p++) {
            if (p == 13 && strstr(specs[i], "2+1") != NULL)
                continue;
            struct layout layout;
            cr_assert_eq(layout_groups(p, 4, &layout), STATUS_OK);
            check_spec(specs[i], &layout);
            layout_release(&layout);
        }
    }
}

Test(hierarchical, works_where_the_workers_of_a_node_are_not_neighbours)
{
    int node_of[] = {0, 1, 0, 2, 1, 0, 2, 1};
    const struct layout layout = {.workers = 8, .nodes = 3, .node_of = node_of};
    check_spec("hierarchical", &layout);
    check_spec("hierarchical:intra=rhd,inter=rhd", &layout);
    check_spec("hierarchical:group=4,intra=hierarchical,inter=binomial", &layout);
}

Test(hierarchical, three_nodes_of_sizes_with_a_common_multiple)
{
    struct shape *shape = shape_of("hierarchical", "4+2");
    cr_assert_eq(shape->chunks, 8);
    shape_destroy(shape);
    shape = shape_of("hierarchical", "3+3+3+2");
    cr_assert_eq(shape->chunks, 24);
    shape_destroy(shape);
}

Test(hierarchical, refuses_with_the_reason)
{
    expect_refused("hierarchical", "5+6+7+8", "intra=binomial");
    expect_refused("hierarchical:intra=rd", "2x2", "halves");
    expect_refused("hierarchical:intra=none", "2x2", "does not compute the sum");
    expect_refused("hierarchical:inter=none", "2x2", "does not compute the sum");
    expect_refused("hierarchical:group=4+2", "2x4", "6 workers");
    expect_refused("hierarchical:intra=[hierarchical:inter=rd,group=2]", "2x4", "halves");
    struct shape *shape = shape_of("hierarchical:intra=binomial", "5+6+7+8");
    check_shape(shape);
    shape_destroy(shape);
}

Test(hierarchical, strips_final_within_nodes_only_while_more_is_to_be_added)
{
    static const struct {
        const char *nodes;
        uint32_t round;
        bool final;
    } cases[] = {{"1x3", 1, true}, {"2x3", 1, false}, {"2x3", 2, true}, {"3x1", 1, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct shape *shape = shape_of("hierarchical", cases[i].nodes);
        struct program program = {.count = 0};
        load(&program, shape, 0, cases[i].round, cases[i].round + 1);
        cr_assert_eq(program.count, 2);
        cr_assert_eq(program.ops[1].kind, OP_RECV_REDUCE);
        cr_assert_eq((program.ops[1].flags & OP_FINAL) != 0, cases[i].final, "%s", cases[i].nodes);
        free(program.ops);
        shape_destroy(shape);
    }
}

/* ---- the tables worked out by hand ---- */

static void expect_row(const struct shape *shape, int rank, const char *const *cells)
{
    for (uint32_t round = 0; round < shape->rounds; round++) {
        struct program program = {.count = 0};
        char text[200] = "";
        load(&program, shape, rank, round, round + 1);
        for (size_t i = 0; i < program.count; i++) {
            const struct op *op = &program.ops[i];
            const struct range *range = op->kind == OP_SEND ? &op->src : &op->dst;
            const char *word = op->kind == OP_SEND ? "S>" : op->kind == OP_RECV ? "R<" : "RR<";
            const size_t used = strlen(text);
            (void)snprintf(text + used, sizeof text - used, "%s%s%d[%u+%u]", i > 0 ? " " : "", word, op->peer,
                           range->chunk, range->chunks);
        }
        cr_assert_str_eq(text, cells[round], "worker %d round %u", rank, round);
        free(program.ops);
    }
}

Test(rhd, six_workers_as_worked_out_by_hand)
{
    static const char *const table[6][6] = {
        {"S>1[0+4]", "", "", "", "", "R<1[0+4]"},
        {"RR<0[0+4]", "S>4[2+2] RR<4[0+2]", "S>3[1+1] RR<3[0+1]", "S>3[0+1] R<3[1+1]", "S>4[0+2] R<4[2+2]", "S>0[0+4]"},
        {"S>3[0+4]", "", "", "", "", "R<3[0+4]"},
        {"RR<2[0+4]", "S>5[2+2] RR<5[0+2]", "S>1[0+1] RR<1[1+1]", "S>1[1+1] R<1[0+1]", "S>5[0+2] R<5[2+2]", "S>2[0+4]"},
        {"", "S>1[0+2] RR<1[2+2]", "S>5[3+1] RR<5[2+1]", "S>5[2+1] R<5[3+1]", "S>1[2+2] R<1[0+2]", ""},
        {"", "S>3[0+2] RR<3[2+2]", "S>4[2+1] RR<4[3+1]", "S>4[3+1] R<4[2+1]", "S>3[2+2] R<3[0+2]", ""},
    };
    struct shape *shape = shape_of("rhd", "1x6");
    cr_assert_eq(shape->rounds, 6);
    cr_assert_eq(shape->split, 3);
    cr_assert_eq(shape->chunks, 4);
    for (int r = 0; r < 6; r++)
        expect_row(shape, r, table[r]);
    shape_destroy(shape);
}

Test(ring, six_workers_as_worked_out_by_hand)
{
    struct shape *shape = shape_of("ring", "1x6");
    cr_assert_eq(shape->rounds, 10);
    cr_assert_eq(shape->split, 5);
    for (int r = 0; r < 6; r++) {
        char cells[10][40];
        const char *row[10];
        for (int t = 0; t < 5; t++) { /* chunk r-t goes on, r-t-1 comes in; then r+1-t goes on and r-t comes in */
            (void)snprintf(cells[t], sizeof cells[t], "S>%d[%d+1] RR<%d[%d+1]", (r + 1) % 6, (r - t + 6) % 6,
                           (r + 5) % 6, (r - t + 5) % 6);
            (void)snprintf(cells[t + 5], sizeof cells[t], "S>%d[%d+1] R<%d[%d+1]", (r + 1) % 6, (r + 1 - t + 6) % 6,
                           (r + 5) % 6, (r - t + 6) % 6);
        }
        for (int t = 0; t < 10; t++)
            row[t] = cells[t];
        expect_row(shape, r, row);
    }
    shape_destroy(shape);
}

/* ---- traffic against closed forms ---- */

static void expect_traffic(const char *text, const char *nodes, int rank, size_t count, size_t elements,
                           size_t messages)
{
    struct shape *shape = shape_of(text, nodes);
    size_t bytes = 0, sent = 0;
    cr_assert_eq(shape_traffic(shape, rank, count, 4, &bytes, &sent), STATUS_OK);
    cr_assert_eq(bytes, 4 * elements, "%s on %s: worker %d sends %zu bytes", text, nodes, rank, bytes);
    cr_assert_eq(sent, messages, "%s on %s: worker %d sends %zu messages", text, nodes, rank, sent);
    shape_destroy(shape);
}

Test(traffic, is_that_of_the_closed_forms)
{
    for (int p = 2; p <= 16; p++) {
        char nodes[20];
        (void)snprintf(nodes, sizeof nodes, "1x%d", p);
        const size_t others = (size_t)p - 1, count = (size_t)p * 100;
        for (int r = 0; r < p; r++) {
            expect_traffic("ring", nodes, r, count, 2 * others * 100, 2 * others);
            expect_traffic("naive", nodes, r, count, r == 0 ? others * count : count, r == 0 ? others : 1);
        }
    }
    for (int levels = 1; levels <= 4; levels++) {
        char nodes[20];
        const size_t p = (size_t)1 << levels, count = 160;
        (void)snprintf(nodes, sizeof nodes, "1x%zu", p);
        for (int r = 0; r < (int)p; r++) {
            expect_traffic("rhd", nodes, r, count, 2 * (p - 1) * count / p, 2 * (size_t)levels);
            expect_traffic("rd", nodes, r, count, (size_t)levels * count, (size_t)levels);
        }
        expect_traffic("binomial", nodes, 0, count, (size_t)levels * count, (size_t)levels);
    }
    expect_traffic("rhd", "1x6", 0, 100, 100, 1);
    expect_traffic("rhd", "1x6", 1, 100, 250, 5);
    expect_traffic("rd", "1x6", 1, 100, 300, 3);
    expect_traffic("none", "1x6", 1, 100, 0, 0);
    /* a node of 4: 3 + 3 quarters within, then 1 + 1 halves of the own quarter between */
    expect_traffic("hierarchical", "2x4", 5, 800, 6 * 200 + 2 * 100, 8);
    expect_traffic("gossip:graph=ring", "1x6", 2, 100, 200, 2);
    expect_traffic("gossip", "1x6", 2, 100, 100, 1);
}

Test(traffic, empty_chunks_are_no_messages)
{
    expect_traffic("ring", "1x4", 0, 0, 0, 0);
    expect_traffic("ring", "1x4", 0, 1, 2, 2); /* chunk 0 is all there is: it leaves worker 0 once in each half */
}

static double cost_of(const char *text, const char *nodes, size_t bytes)
{
    const struct cost_model model = {.latency_s = 1, .seconds_per_byte = 0.01, .reduce_s_per_byte = 0.001};
    struct shape *shape = shape_of(text, nodes);
    const double seconds = shape->algorithm->cost(shape, &model, bytes);
    shape_destroy(shape);
    return seconds;
}

static void expect_cost(const char *text, const char *nodes, double alphas, double moved, double added)
{
    const double seconds = cost_of(text, nodes, 1200), wanted = alphas + 1200 * (0.01 * moved + 0.001 * added);
    cr_assert_float_eq(seconds, wanted, 1e-9, "%s on %s costs %f, not %f", text, nodes, seconds, wanted);
}

Test(cost, is_the_closed_form)
{
    expect_cost("ring", "1x6", 10, 10 / 6.0, 5 / 6.0);
    expect_cost("rd", "1x8", 3, 3, 3);
    expect_cost("rd", "1x6", 4, 4, 3);
    expect_cost("rhd", "1x8", 6, 14 / 8.0, 7 / 8.0);
    expect_cost("rhd", "1x6", 6, 2 + 6 / 4.0, 1 + 3 / 4.0);
    expect_cost("binomial", "1x8", 6, 6, 3);
    expect_cost("naive", "1x4", 2, 6, 1);
    expect_cost("hierarchical", "2x3", 4 + 2, 4 / 3.0 + 2 / 6.0, 2 / 3.0 + 1 / 6.0);
    for (const char *const *text =
             (const char *const[]){"ring", "rd", "rhd", "binomial", "naive", "hierarchical", NULL};
         *text != NULL; text++)
        cr_assert_eq(cost_of(*text, "1x1", 100), 0, "%s with one worker", *text);
}
