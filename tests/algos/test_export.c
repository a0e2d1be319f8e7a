/* test_export.c - what is exported, read back by readers that share nothing with the writers: MSCCL XML by msccl:file=,
 * GOAL, SimGrid's traces and Chakra's protobuf by readers of this file, which replay them with rendezvous for every
 * message and recount messages, bytes and what is computed against the schedule.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/export.h"
#include "algos/spec.h"
#include "algos/verify.h"
#include "tests/base/expect.h"

#define MOST_WORKERS 64

static struct shape *shape_of(const char *text, const struct layout *layout)
{
    struct spec spec;
    struct shape *shape = NULL;
    cr_assert_eq(spec_parse(text, &spec), STATUS_OK, "%s", status_message());
    if (spec_shape(&spec, layout, 0, 1000, &shape) == STATUS_REFUSED)
        shape = NULL;
    spec_release(&spec);
    return shape;
}

/* ---- replaying ---- */

enum what { SEND, RECV, COMPUTE };

/* An event as a file tells it. */
struct told {
    enum what what;
    int peer;
    long tag;
    size_t amount; /* bytes; computed: as the format counts it                   */
    size_t *after; /* indices of events that must be complete                    */
    size_t afters;
    size_t begun_after; /* index + 1 of an event that must have been started; 0: none */
    bool started, done;
};

struct told_worker {
    struct told *event;
    size_t count, capacity;
};

static struct told *add(struct told_worker *worker, enum what what, int peer, long tag, size_t amount)
{
    if (worker->count == worker->capacity) {
        worker->capacity = worker->capacity == 0 ? 64 : 2 * worker->capacity;
        worker->event = realloc(worker->event, worker->capacity * sizeof(struct told));
        cr_assert_not_null(worker->event);
    }
    struct told *event = &worker->event[worker->count++];
    memset(event, 0, sizeof *event);
    event->what = what;
    event->peer = peer;
    event->tag = tag;
    event->amount = amount;
    return event;
}

static void after(struct told *event, size_t earlier)
{
    event->after = realloc(event->after, (event->afters + 1) * sizeof *event->after);
    cr_assert_not_null(event->after);
    event->after[event->afters++] = earlier;
}

static bool may_start(const struct told_worker *worker, const struct told *event)
{
    for (size_t i = 0; i < event->afters; i++) {
        cr_assert_lt(event->after[i], worker->count);
        if (!worker->event[event->after[i]].done)
            return false;
    }
    return event->begun_after == 0 || worker->event[event->begun_after - 1].started;
}

/* The first started and not complete receive of `peer` for a message from `self`. */
static struct told *partner_of(struct told_worker *peer, int self, long tag)
{
    for (size_t i = 0; i < peer->count; i++) {
        struct told *event = &peer->event[i];
        if (event->what == RECV && event->peer == self && event->tag == tag && event->started && !event->done)
            return event;
    }
    return NULL;
}

static bool step(struct told_worker *workers, int p, const char *name)
{
    bool moved = false;
    for (int r = 0; r < p; r++)
        for (size_t i = 0; i < workers[r].count; i++) {
            struct told *event = &workers[r].event[i];
            if (!event->started && may_start(&workers[r], event)) {
                event->started = moved = true;
                event->done = event->what == COMPUTE;
            }
        }
    for (int r = 0; r < p; r++)
        for (size_t i = 0; i < workers[r].count; i++) {
            struct told *event = &workers[r].event[i];
            if (event->what != SEND || !event->started || event->done)
                continue;
            cr_assert(event->peer >= 0 && event->peer < p && event->peer != r, "%s", name);
            struct told *other = partner_of(&workers[event->peer], r, event->tag);
            if (other == NULL)
                continue;
            cr_assert_eq(other->amount, event->amount, "%s: %d to %d", name, r, event->peer);
            other->done = event->done = moved = true;
        }
    return moved;
}

/* Everything comes to an end, and is as much as the schedule says. `computed`: the amount of all that a worker reduces or
 * copies, SIZE_MAX: not compared. */
static void expect_replays(struct told_worker *workers, const struct shape *shape, size_t count, const char *name)
{
    while (step(workers, shape->workers, name)) {
    }
    for (int r = 0; r < shape->workers; r++) {
        size_t bytes = 0, messages = 0, sent = 0, sends = 0;
        EXPECT_OK(shape_traffic(shape, r, count, 4, &bytes, &messages));
        for (size_t i = 0; i < workers[r].count; i++) {
            const struct told *event = &workers[r].event[i];
            cr_assert(event->done, "%s: event %zu of worker %d never happens", name, i, r);
            cr_assert(event->amount > 0 || event->what == COMPUTE, "%s: an empty message", name);
            sent += event->what == SEND ? event->amount : 0;
            sends += event->what == SEND;
        }
        cr_assert_eq(sent, bytes, "%s: worker %d sends %zu bytes, not %zu", name, r, sent, bytes);
        cr_assert_eq(sends, messages, "%s: worker %d sends %zu messages, not %zu", name, r, sends, messages);
    }
}

static size_t computed(const struct told_worker *workers, int p)
{
    size_t sum = 0;
    for (int r = 0; r < p; r++)
        for (size_t i = 0; i < workers[r].count; i++)
            sum += workers[r].event[i].what == COMPUTE ? workers[r].event[i].amount : 0;
    return sum;
}

static void told_release(struct told_worker *workers, int p)
{
    for (int r = 0; r < p; r++) {
        for (size_t i = 0; i < workers[r].count; i++)
            free(workers[r].event[i].after);
        free(workers[r].event);
    }
    memset(workers, 0, (size_t)p * sizeof *workers);
}

/* ---- GOAL ---- */

static struct told *labelled(struct told_worker *worker, size_t label)
{
    cr_assert(worker->event != NULL && label >= 1 && label <= worker->count);
    return &worker->event[label - 1];
}

static void read_goal_line(char *line, struct told_worker *worker)
{
    size_t label = 0, other = 0, bytes = 0;
    int peer = 0;
    long tag = 0, value = 0;
    if (sscanf(line, "l%zu: send %zub to %d tag %ld", &label, &bytes, &peer, &tag) == 4)
        (void)add(worker, SEND, peer, tag, bytes);
    else if (sscanf(line, "l%zu: recv %zub from %d tag %ld", &label, &bytes, &peer, &tag) == 4)
        (void)add(worker, RECV, peer, tag, bytes);
    else if (sscanf(line, "l%zu: calc %ld", &label, &value) == 2)
        (void)add(worker, COMPUTE, -1, 0, (size_t)value);
    else if (sscanf(line, "l%zu irequires l%zu", &label, &other) == 2)
        labelled(worker, label)->begun_after = other;
    else if (sscanf(line, "l%zu requires l%zu", &label, &other) == 2)
        after(labelled(worker, label), other - 1);
    else
        cr_assert_fail("GOAL: %s", line);
    if (strchr(line, ':') != NULL)
        cr_assert_eq(label, worker->count, "labels count from 1");
}

static void read_goal(char *text, int p, struct told_worker *workers)
{
    int ranks = 0, rank = -1;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        int next = 0;
        if (sscanf(line, "num_ranks %d", &ranks) == 1)
            continue;
        if (sscanf(line, "rank %d {", &next) == 1)
            cr_assert_eq(next, ++rank);
        else if (strcmp(line, "}") != 0)
            read_goal_line(line, &workers[rank]);
    }
    cr_assert_eq(ranks, p);
    cr_assert_eq(rank, p - 1);
}

/* ---- SimGrid: actions of a rank run one after the other ---- */

static void read_simgrid(char *text, int p, struct told_worker *workers)
{
    bool open[MOST_WORKERS] = {false}, closed[MOST_WORKERS] = {false};
    size_t waited[MOST_WORKERS] = {0}; /* the latest event that a wait of this rank was for, + 1 */
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        int rank = -1, a = 0, b = 0;
        long tag = 0;
        size_t amount = 0;
        char word[16] = "";
        cr_assert_geq(sscanf(line, "%d %15s", &rank, word), 2, "%s", line);
        cr_assert(rank >= 0 && rank < p && !closed[rank], "%s", line);
        struct told_worker *worker = &workers[rank];
        struct told *event = NULL;
        if (strcmp(word, "init") == 0) {
            cr_assert(!open[rank]);
            open[rank] = true;
        } else if (strcmp(word, "finalize") == 0) {
            closed[rank] = true;
        } else if (sscanf(line, "%d isend %d %ld %zu", &rank, &a, &tag, &amount) == 4) {
            event = add(worker, SEND, a, tag, amount);
        } else if (sscanf(line, "%d irecv %d %ld %zu", &rank, &a, &tag, &amount) == 4) {
            event = add(worker, RECV, a, tag, amount);
        } else if (sscanf(line, "%d compute %zu", &rank, &amount) == 2) {
            event = add(worker, COMPUTE, -1, 0, amount);
        } else if (sscanf(line, "%d wait %d %d %ld", &rank, &a, &b, &tag) == 4) {
            size_t i = worker->count;
            while (i > 0 && !(worker->event[i - 1].tag == tag &&
                              (a == rank ? worker->event[i - 1].what == SEND && worker->event[i - 1].peer == b
                                         : worker->event[i - 1].what == RECV && worker->event[i - 1].peer == a)))
                i--;
            cr_assert_gt(i, 0, "nothing to wait for: %s", line);
            event = add(worker, COMPUTE, -1, 0, 0); /* the wait itself, in its turn */
            after(event, i - 1);
            waited[rank]++;
        } else {
            cr_assert_fail("SimGrid: %s", line);
        }
        if (event == NULL)
            continue;
        const size_t index = worker->count - 1;
        for (size_t i = index; i > 0; i--) /* what blocks is complete before the next begins; messages only begin */
            if (worker->event[i - 1].what == COMPUTE) {
                after(event, i - 1);
                break;
            }
        event->begun_after = index;
    }
    for (int r = 0; r < p; r++) {
        size_t messages = 0;
        for (size_t i = 0; i < workers[r].count; i++)
            messages += workers[r].event[i].what != COMPUTE;
        cr_assert(closed[r]);
        cr_assert_eq(waited[r], messages, "every message is waited for once");
    }
}

/* ---- Chakra ---- */

struct bytes {
    const unsigned char *at, *end;
};

static uint64_t varint(struct bytes *in)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        cr_assert(in->at < in->end && shift < 64, "a torn varint");
        value |= (uint64_t)(*in->at & 0x7f) << shift;
        if (*in->at++ < 0x80)
            return value;
    }
}

static struct bytes part(struct bytes *in)
{
    const uint64_t length = varint(in);
    cr_assert_leq(length, (uint64_t)(in->end - in->at), "a torn field");
    const struct bytes inner = {in->at, in->at + length};
    in->at += length;
    return inner;
}

static bool is(struct bytes name, const char *word)
{
    return (size_t)(name.end - name.at) == strlen(word) && memcmp(name.at, word, strlen(word)) == 0;
}

/* AttributeProto: its name, and a value in the field that its type has. */
static void read_attribute(struct bytes in, struct told *event, int *src, int *dst)
{
    struct bytes name = {NULL, NULL};
    uint64_t value = 0, field = 0;
    while (in.at < in.end) {
        const uint64_t key = varint(&in);
        if (key == (1 << 3 | 2)) {
            name = part(&in);
        } else {
            cr_assert_eq(key & 7, 0);
            field = key >> 3;
            value = varint(&in);
        }
    }
    if (is(name, "comm_size") || is(name, "num_ops")) {
        cr_assert_eq(field, 9);
        event->amount = (size_t)value;
    } else if (is(name, "is_cpu_op")) {
        cr_assert_eq(field, 27);
    } else {
        cr_assert_eq(field, 7);
        if (is(name, "comm_src"))
            *src = (int)value;
        else if (is(name, "comm_dst"))
            *dst = (int)value;
        else if (is(name, "comm_tag"))
            event->tag = (long)value;
        else
            cr_assert_fail("an unknown attribute");
    }
}

static void read_node(struct bytes in, int rank, struct told_worker *worker)
{
    struct told *event = add(worker, COMPUTE, -1, 0, 0);
    int src = rank, dst = rank;
    while (in.at < in.end) {
        const uint64_t key = varint(&in);
        struct bytes inner = {NULL, NULL};
        if ((key & 7) == 2)
            inner = part(&in);
        const uint64_t value = (key & 7) == 0 ? varint(&in) : 0;
        switch (key >> 3) {
        case 1:
            cr_assert_eq(value, worker->count, "ids count from 1");
            break;
        case 3:
            cr_assert(value >= 4 && value <= 6);
            event->what = value == 4 ? COMPUTE : value == 5 ? SEND : RECV;
            break;
        case 5:
            while (inner.at < inner.end)
                after(event, (size_t)varint(&inner) - 1);
            break;
        case 10:
            read_attribute(inner, event, &src, &dst);
            break;
        default:
            cr_assert(key >> 3 == 2 || key >> 3 == 7);
        }
    }
    cr_assert_eq(event->what == SEND ? src : dst, rank);
    event->peer = event->what == SEND ? dst : src;
}

static void read_chakra(const struct text *text, int rank, struct told_worker *worker)
{
    struct bytes in = {(const unsigned char *)text->data, (const unsigned char *)text->data + text->length};
    struct bytes head = part(&in);
    cr_assert_eq(varint(&head), 1 << 3 | 2, "GlobalMetadata has a version");
    cr_assert(is(part(&head), "0.0.4"));
    while (in.at < in.end)
        read_node(part(&in), rank, worker);
}

/* ---- every schedule in every format ---- */

static enum status begin(const struct shape *shape, const char *name, size_t count, enum export_format format,
                         struct exporter *exporter)
{
    const struct export_request request = {
        .shape = shape, .name = name, .count = count, .element_bytes = 4, .reduce_s_per_byte = 1e-9};
    return export_begin(&request, format, exporter);
}

static void export_one(const struct shape *shape, const char *name, size_t count, enum export_format format, int index,
                       struct text *text)
{
    struct exporter exporter;
    cr_assert_eq(begin(shape, name, count, format, &exporter), STATUS_OK, "%s: %s", name, status_message());
    cr_assert_eq(export_files(&exporter), format == EXPORT_CHAKRA ? shape->workers : 1);
    EXPECT_OK(export_file(&exporter, index, text));
    export_end(&exporter);
}

static void expect_formats(const struct shape *shape, const char *name, size_t count)
{
    struct told_worker workers[MOST_WORKERS] = {{0}};
    const int p = shape->workers;
    struct text text = {0};
    export_one(shape, name, count, EXPORT_GOAL, 0, &text);
    read_goal(text.data, p, workers);
    expect_replays(workers, shape, count, name);
    const size_t reduced = computed(workers, p); /* 4 ns an element */
    told_release(workers, p);
    text_clear(&text);

    export_one(shape, name, count, EXPORT_SIMGRID, 0, &text);
    read_simgrid(text.data, p, workers);
    expect_replays(workers, shape, count, name);
    cr_assert_eq(4 * computed(workers, p), reduced, "%s", name);
    told_release(workers, p);

    for (int r = 0; r < p; r++) {
        text_clear(&text);
        export_one(shape, name, count, EXPORT_CHAKRA, r, &text);
        read_chakra(&text, r, &workers[r]);
    }
    expect_replays(workers, shape, count, name);
    cr_assert_eq(4 * computed(workers, p), reduced, "%s", name);
    if (p > 1 && count > 0)
        cr_assert_geq(reduced / 4, count * (size_t)(p - 1), "%s: each element is added p - 1 times", name);
    told_release(workers, p);
    text_release(&text);
}

static enum status give(void *context, const char *path, char **text, size_t *length)
{
    const struct text *content = context;
    (void)path;
    *text = strdup(text_string(content));
    *length = content->length;
    return *text != NULL ? STATUS_OK : fail(STATUS_NO_MEMORY, "no memory");
}

static struct shape *imported(struct text *text, const struct layout *layout, const char *name)
{
    struct spec spec;
    struct shape *shape = NULL;
    EXPECT_OK(spec_parse("msccl:file=exported.xml", &spec));
    EXPECT_OK(spec_read_files(&spec, give, text));
    cr_assert_eq(spec_shape(&spec, layout, 0, 0, &shape), STATUS_OK, "%s: %s", name, status_message());
    spec_release(&spec);
    return shape;
}

/* There and back again: proved, with the same bytes and as good promises. */
static void expect_round_trip(const struct shape *shape, const struct layout *layout, const char *name)
{
    struct text text = {0};
    struct verify_result before, now;
    export_one(shape, name, 1000, EXPORT_MSCCL, 0, &text);
    struct shape *back = imported(&text, layout, name);
    EXPECT_OK(verify_shape(shape, &before));
    EXPECT_OK(verify_shape(back, &now));
    cr_assert(before.ok && now.ok, "%s: %s%s", name, before.reason, now.reason);
    cr_expect_eq(before.equal_bits, now.equal_bits, "%s", name);
    cr_expect_eq(before.same_order, now.same_order, "%s", name);
    cr_expect_eq(before.whole_inputs, now.whole_inputs, "%s", name);
    for (int r = 0; r < layout->workers; r++) {
        size_t bytes[2] = {0, 0};
        EXPECT_OK(shape_traffic(shape, r, 1009, 4, &bytes[0], NULL));
        EXPECT_OK(shape_traffic(back, r, 1009, 4, &bytes[1], NULL));
        cr_expect_eq(bytes[0], bytes[1], "%s: worker %d", name, r);
    }
    shape_destroy(back);
    text_release(&text);
}

static int expect_all(const char *name, const char *nodes)
{
    struct layout layout;
    EXPECT_OK(layout_parse(nodes, 0, &layout));
    struct shape *shape = shape_of(name, &layout);
    if (shape != NULL) {
        expect_round_trip(shape, &layout, name);
        expect_formats(shape, name, 1000);
        expect_formats(shape, name, 3); /* most chunks are empty */
    }
    layout_release(&layout);
    shape_destroy(shape);
    return shape != NULL;
}

Test(export, every_schedule_is_read_back_and_replayed)
{
    static const char *const nodes[] = {"1x1", "1x2", "1x3", "1x5", "2x3", "1x7", "2x4"};
    size_t algorithms = 0, done = 0, refused = 0;
    const struct algorithm *const *list = catalogue_algorithms(&algorithms);
    for (size_t a = 0; a < algorithms; a++)
        for (size_t n = 0; algorithm_in_all(list[a]) && n < sizeof nodes / sizeof *nodes; n++) {
            const int ok = expect_all(list[a]->name, nodes[n]);
            done += (size_t)ok;
            refused += (size_t)!ok;
        }
    cr_expect_gt(done, 6 * refused);
}

Test(export, hierarchies_on_unequal_nodes_and_of_several_levels)
{
    cr_expect(expect_all("hierarchical:intra=rhd,inter=rd", "3+2"));
    cr_expect(expect_all("hierarchical:intra=binomial,inter=ring", "4+3+2"));
    cr_expect(expect_all("hierarchical:group=4,inter=[hierarchical:group=2]", "1x16"));
}

/* ---- what an event follows ---- */

static bool overlap(const struct range *a, const struct range *b)
{
    return a->chunks > 0 && b->chunks > 0 && a->buffer == b->buffer && a->chunk < b->chunk + b->chunks &&
           b->chunk < a->chunk + a->chunks;
}

/* The ranges that an event reads and writes; no chunks: none. */
static void ranges_of(const struct trace_event *event, struct range *reads, struct range *writes)
{
    const struct op *op = &event->op;
    *reads = *writes = (struct range){.chunks = 0};
    if (event->kind == TRACE_RECV && op->kind == OP_RECV_REDUCE)
        return;
    if (op->kind == OP_SEND || op->kind == OP_REDUCE || op->kind == OP_COPY)
        *reads = op->src;
    if (op->kind != OP_SEND)
        *writes = op->dst;
}

static bool conflict(const struct trace_event *a, const struct trace_event *b)
{
    struct range reads[2], writes[2];
    ranges_of(a, &reads[0], &writes[0]);
    ranges_of(b, &reads[1], &writes[1]);
    return overlap(&writes[0], &writes[1]) || overlap(&writes[0], &reads[1]) || overlap(&reads[0], &writes[1]);
}

/* before[i * n + j]: event i follows event j, directly or not. */
static void close_over(const struct trace_worker *worker, bool *before)
{
    const size_t n = worker->events;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < worker->event[i].count; k++) {
            const size_t f = worker->follow[worker->event[i].follows + k];
            cr_assert_lt(f, i);
            before[i * n + f] = true;
            for (size_t j = 0; j < f; j++)
                before[i * n + j] |= before[f * n + j];
        }
}

static void expect_followed(const struct trace_worker *worker, const char *name)
{
    const size_t n = worker->events;
    bool *before = calloc(n * n + 1, sizeof *before);
    size_t arrivals = 0, reduced = 0;
    cr_assert_not_null(before);
    close_over(worker, before);
    for (size_t i = 0; i < n; i++) {
        const struct trace_event *event = &worker->event[i];
        const bool incoming = event->op.kind == OP_RECV_REDUCE;
        arrivals += incoming && event->kind == TRACE_RECV;
        for (size_t k = 0; incoming && event->kind == TRACE_REDUCE && k < event->count; k++)
            reduced += worker->event[worker->follow[event->follows + k]].kind == TRACE_RECV &&
                       worker->event[worker->follow[event->follows + k]].op.kind == OP_RECV_REDUCE;
        for (size_t j = 0; j < i; j++) {
            if (!conflict(event, &worker->event[j]))
                continue;
            cr_assert(before[i * n + j], "%s: event %zu does not follow event %zu", name, i, j);
            cr_assert(event->op.lane != worker->event[j].op.lane || event->op.round >= worker->event[j].op.round);
        }
    }
    cr_assert_eq(arrivals, reduced, "%s: what arrives is reduced after that", name);
    free(before);
}

Test(export, events_follow_whatever_they_conflict_with)
{
    size_t algorithms = 0;
    const struct algorithm *const *list = catalogue_algorithms(&algorithms);
    for (size_t a = 0; a < algorithms; a++)
        for (int p = 2; algorithm_in_all(list[a]) && p <= 7; p++) {
            struct layout layout;
            struct trace trace;
            EXPECT_OK(layout_flat(p, &layout));
            struct shape *shape = shape_of(list[a]->name, &layout);
            layout_release(&layout);
            if (shape == NULL)
                continue;
            EXPECT_OK(trace_make(shape, shape->chunks, false, &trace));
            for (int r = 0; r < p; r++)
                expect_followed(&trace.worker[r], list[a]->name);
            trace_release(&trace);
            shape_destroy(shape);
        }
}

/* ---- how it looks ---- */

static void expect_text(const char *name, int workers, enum export_format format, const char *expected)
{
    struct layout layout;
    struct text text = {0};
    EXPECT_OK(layout_flat(workers, &layout));
    struct shape *shape = shape_of(name, &layout);
    cr_assert_not_null(shape);
    export_one(shape, name, 10, format, 0, &text);
    cr_expect_str_eq(text_string(&text), expected);
    text_release(&text);
    shape_destroy(shape);
    layout_release(&layout);
}

Test(export, goal_of_a_ring_of_two)
{
    expect_text("ring", 2, EXPORT_GOAL,
                "num_ranks 2\n\nrank 0 {\n"
                "l1: send 20b to 1 tag 0\nl2: recv 20b from 1 tag 0\nl3: calc 20\nl4: send 20b to 1 tag 0\n"
                "l5: recv 20b from 1 tag 0\n"
                "l3 requires l2\nl4 requires l3\nl4 irequires l1\nl5 requires l1\nl5 irequires l2\n}\n\nrank 1 {\n"
                "l1: send 20b to 0 tag 0\nl2: recv 20b from 0 tag 0\nl3: calc 20\nl4: send 20b to 0 tag 0\n"
                "l5: recv 20b from 0 tag 0\n"
                "l3 requires l2\nl4 requires l3\nl4 irequires l1\nl5 requires l1\nl5 irequires l2\n}\n");
}

Test(export, simgrid_of_a_ring_of_two)
{
    expect_text("ring", 2, EXPORT_SIMGRID,
                "0 init\n0 isend 1 0 20\n0 irecv 1 0 20\n0 wait 1 0 0\n0 compute 5\n0 isend 1 1 20\n0 wait 0 1 0\n"
                "0 irecv 1 1 20\n0 wait 0 1 1\n0 wait 1 0 1\n0 finalize\n"
                "1 init\n1 isend 0 0 20\n1 irecv 0 0 20\n1 wait 0 1 0\n1 compute 5\n1 isend 0 1 20\n1 wait 1 0 0\n"
                "1 irecv 0 1 20\n1 wait 1 0 1\n1 wait 0 1 1\n1 finalize\n");
}

/* ---- what is refused ---- */

static void expect_refused(const char *name, int workers, size_t count, enum export_format format, const char *why)
{
    struct layout layout;
    struct exporter exporter;
    EXPECT_OK(layout_flat(workers, &layout));
    struct shape *shape = shape_of(name, &layout);
    cr_assert_not_null(shape, "%s", status_message());
    EXPECT_FAIL(STATUS_REFUSED, why, begin(shape, name, count, format, &exporter));
    shape_destroy(shape);
    layout_release(&layout);
}

Test(export, what_a_format_cannot_say_is_refused_with_the_number)
{
    for (int format = 0; format < EXPORT_FORMATS; format++) {
        expect_refused("none", 3, 10, (enum export_format)format, "none is no allreduce");
        expect_refused("gossip:graph=ring", 3, 10, (enum export_format)format, "is no allreduce");
        expect_refused("ring", 3, SIZE_MAX / 2, (enum export_format)format, "are more than files can say");
    }
    expect_refused("ring", 65, 10, EXPORT_MSCCL, "65 workers, but at most 64 are written");
    expect_refused("ring", 4096, 100000, EXPORT_GOAL, "ring on 4096 workers has");
}
