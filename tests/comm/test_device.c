/* test_device.c - collectives on vectors in a device's memory: what they give is what vectors in host memory give, to the
 * bit, with the same bytes and messages, on a mock device whose queues run late and in a random legal order
 * (support_device.h). Every schedule of the catalogue on a few worker counts; ways, types, operators and sizes are drawn.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"
#include "base/half.h"
#include "base/rng.h"
#include "comm/comm.h"
#include "comm/transport.h"
#include "tests/base/expect.h"
#include "tests/comm/support_device.h"

#define MOST 8
#define LONGEST 20011 /* elements */

/* How data travel, and how much at a time. */
struct way {
    enum loopback_mode mode;
    bool exports; /* in a node: neighbours read the device's memory */
    size_t segment, scratch;
    unsigned window;
};
static const struct way ways[] = {
    {.mode = LOOPBACK_IN_ORDER, .segment = 4096, .window = 2},
    {.mode = LOOPBACK_SHUFFLED, .segment = 16384, .window = 4, .scratch = 20000},
    {.mode = LOOPBACK_DELAYED, .segment = 1000, .window = 1},
    {.mode = LOOPBACK_NODE, .exports = true, .segment = 3000, .window = 2},
    {.mode = LOOPBACK_NODE, .exports = true, .segment = 16384, .window = 4, .scratch = 30000},
    {.mode = LOOPBACK_NODE, .segment = 3000, .window = 1},
    {.mode = LOOPBACK_NODE, .segment = 16384, .window = 4},
    {.mode = LOOPBACK_HOSTS, .exports = true, .segment = 3000, .window = 2},
    {.mode = LOOPBACK_HOSTS, .segment = 16384, .window = 4},
};
#define WAYS (sizeof ways / sizeof *ways)
#define WAYS_ALIKE 7 /* those in which all pairs of workers go the same way */

struct crank {
    int workers;
    struct mock_card *card; /* NULL: vectors in host memory */
    struct device *device[MOST];
    struct comm *comm[MOST];
};

static void crank_open(struct crank *crank, int workers, const struct way *way, struct mock_card *card)
{
    struct transport *transports[MOST];
    *crank = (struct crank){.workers = workers, .card = card};
    EXPECT_OK(loopback_open(workers, way->mode, 42, transports));
    if (card != NULL)
        mock_card_exports(card, way->exports);
    for (int r = 0; r < workers; r++) {
        crank->device[r] = card != NULL ? mock_device_open(card, r) : NULL;
        const struct comm_request request = {.transport = transports[r],
                                             .device = crank->device[r],
                                             .segment = way->segment,
                                             .window = way->window,
                                             .scratch = way->scratch,
                                             .deadline = 20};
        EXPECT_OK(comm_open(&request, &crank->comm[r]));
    }
}

static void crank_close(struct crank *crank)
{
    for (int r = 0; r < crank->workers; r++)
        comm_close(crank->comm[r]);
}

/* Until all are done; the first failure's status otherwise. */
static enum status crank_run(struct collective **collectives, int workers)
{
    int left = workers;
    for (long rounds = 0; left > 0; rounds++) {
        left = 0;
        for (int r = 0; r < workers; r++) {
            const enum status status = collective_test(collectives[r]);
            if (status < 0)
                return status;
            left += status == STATUS_AGAIN;
        }
        if (rounds > 300000)
            return fail(STATUS_TIMEOUT, "cranked too long");
    }
    return STATUS_OK;
}

/* ---- vectors ---- */

/* Numbers whose sums show in which order they were added. */
static void fill(enum dtype dtype, void *data, size_t count, int rank, uint64_t seed)
{
    const uint64_t key = rng_key(seed, "device test", (uint64_t)rank, 0);
    for (size_t i = 0; i < count; i++) {
        const double v = (rng_uniform(key, i) - 0.5) * (double)(1 << (i % 13)) * 3;
        if (dtype == DTYPE_F32)
            ((float *)data)[i] = (float)v;
        else if (dtype == DTYPE_F64)
            ((double *)data)[i] = v;
        else if (dtype == DTYPE_I32)
            ((int32_t *)data)[i] = (int32_t)(v * 1000);
        else if (dtype == DTYPE_I64)
            ((int64_t *)data)[i] = (int64_t)(v * 1e6);
        else if (dtype == DTYPE_F16)
            ((uint16_t *)data)[i] = f16_from_f32((float)v / 64);
        else
            ((uint16_t *)data)[i] = bf16_from_f32((float)v);
    }
}

/* One worker's vectors, in host memory and, where there is a card, on the device. */
struct vectors {
    void *host[2], *device[2], *pinned; /* input and output */
};

/* On every third seed the comm does not know the memory: neighbours are shown copies. */
static void *device_make(struct crank *crank, int r, size_t bytes, uint64_t seed)
{
    void *memory = NULL;
    if (seed % 3 == 0)
        EXPECT_OK(crank->device[r]->ops->alloc(crank->device[r], bytes + 1, &memory));
    else
        EXPECT_OK(comm_device_alloc(crank->comm[r], bytes + 1, &memory));
    return memory;
}

static void vectors_make(struct crank *crank, int r, struct vectors *v, size_t bytes, uint64_t seed)
{
    *v = (struct vectors){.pinned = NULL};
    for (int k = 0; k < 2; k++) {
        v->host[k] = malloc(bytes + 1);
        cr_assert_not_null(v->host[k]);
        memset(v->host[k], 0x5a, bytes + 1);
        if (crank->card != NULL)
            v->device[k] = device_make(crank, r, bytes, seed);
    }
    if (crank->card != NULL)
        EXPECT_OK(crank->device[r]->ops->host_alloc(crank->device[r], bytes + 1, &v->pinned));
}

static void vectors_free_device(struct crank *crank, int r, struct vectors *v, uint64_t seed)
{
    for (int k = 0; k < 2; k++) {
        if (crank->card != NULL && seed % 3 == 0)
            crank->device[r]->ops->free(crank->device[r], v->device[k]);
        else if (crank->card != NULL)
            comm_device_free(crank->comm[r], v->device[k]);
    }
    if (crank->card != NULL)
        crank->device[r]->ops->host_free(crank->device[r], v->pinned);
}

static void vectors_free_host(struct vectors *v)
{
    for (int k = 0; k < 2; k++)
        free(v->host[k]);
}

static void vectors_free(struct crank *crank, int r, struct vectors *v, uint64_t seed)
{
    vectors_free_device(crank, r, v, seed);
    vectors_free_host(v);
}

/* Whoever computes a vector puts that into the compute queue: it is not there yet at the start. */
static void compute(struct crank *crank, int r, struct vectors *v, int which, size_t bytes)
{
    if (crank->card == NULL || bytes == 0)
        return;
    struct device *device = crank->device[r];
    cr_assert_not_null(v->pinned);
    memcpy(v->pinned, v->host[which], bytes);
    EXPECT_OK(device->ops->copy(device->ops->compute(device), v->device[which], v->pinned, bytes));
}

/* ---- cases ---- */

struct call {
    const char *spec;
    int workers;
    size_t count;
    enum dtype dtype;
    enum reduce_op op;
    bool in_place;
    const struct way *way;
    const struct wire_format *wire; /* NULL: none */
    uint64_t seed;
    int runs;
};

static struct shape *call_shape(const struct call *call)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape = NULL;
    EXPECT_OK(spec_parse(call->spec, &spec));
    EXPECT_OK(layout_flat(call->workers, &layout));
    EXPECT_OK(spec_shape(&spec, &layout, 0, 0, &shape));
    layout_release(&layout);
    spec_release(&spec);
    return shape;
}

struct outcome {
    enum status status;
    char message[256];
    unsigned char *output[MOST]; /* as bytes */
    struct collective_traffic traffic[MOST];
    size_t due_bytes[MOST], due_messages[MOST];
};

static void outcome_free(struct outcome *outcome)
{
    for (int r = 0; r < MOST; r++)
        free(outcome->output[r]);
}

static void make_all(struct crank *crank, const struct call *call, const struct shape *shape, struct collective **c)
{
    for (int r = 0; r < call->workers; r++) {
        const struct collective_request request = {.team = comm_world(crank->comm[r]),
                                                   .shape = shape,
                                                   .name = call->spec,
                                                   .count = call->count,
                                                   .dtype = call->dtype,
                                                   .op = call->op,
                                                   .wire = call->wire,
                                                   .on_device = crank->card != NULL};
        EXPECT_OK(collective_create(&request, &c[r]));
    }
}

static void start_all(struct crank *crank, const struct call *call, struct vectors *v, struct collective **c)
{
    const size_t bytes = call->count * dtype_size(call->dtype);
    for (int r = 0; r < call->workers; r++) {
        void **vector = crank->card != NULL ? v[r].device : v[r].host;
        fill(call->dtype, v[r].host[call->in_place], call->count, r, call->seed);
        compute(crank, r, &v[r], call->in_place, bytes);
        EXPECT_OK(collective_start(c[r], vector[call->in_place], vector[1]));
    }
}

static void take_outcome(struct crank *crank, const struct call *call, struct vectors *v, struct collective **c,
                         struct outcome *outcome)
{
    const size_t bytes = call->count * dtype_size(call->dtype);
    for (int r = 0; r < call->workers; r++) {
        outcome->output[r] = malloc(bytes + 1);
        cr_assert_not_null(outcome->output[r]);
        if (crank->card != NULL)
            mock_read(crank->card, outcome->output[r], v[r].device[1], bytes);
        else
            memcpy(outcome->output[r], v[r].host[1], bytes);
        collective_traffic(c[r], &outcome->traffic[r]);
        EXPECT_OK(collective_due(c[r], call->wire != NULL ? 2 : dtype_size(call->dtype), &outcome->due_bytes[r],
                                 &outcome->due_messages[r]));
    }
}

/* On host memory (card NULL), or on the card's. */
static void run_call(const struct call *call, const struct shape *shape, struct mock_card *card,
                     struct outcome *outcome)
{
    struct crank crank;
    struct vectors v[MOST];
    struct collective *c[MOST];
    const size_t bytes = call->count * dtype_size(call->dtype);
    *outcome = (struct outcome){.status = STATUS_OK};
    crank_open(&crank, call->workers, call->way, card);
    for (int r = 0; r < call->workers; r++)
        vectors_make(&crank, r, &v[r], bytes, call->seed);
    make_all(&crank, call, shape, c);
    for (int run = 0; run < call->runs && outcome->status >= 0; run++) {
        start_all(&crank, call, v, c);
        outcome->status = crank_run(c, call->workers);
    }
    snprintf(outcome->message, sizeof outcome->message, "%s", outcome->status < 0 ? status_message() : "");
    take_outcome(&crank, call, v, c, outcome);
    for (int r = 0; r < call->workers; r++)
        collective_destroy(c[r]);
    for (int r = 0; r < call->workers && outcome->status >= 0; r++) /* else queues may still use them */
        vectors_free_device(&crank, r, &v[r], call->seed);
    crank_close(&crank);
    for (int r = 0; r < call->workers; r++)
        vectors_free_host(&v[r]);
}

static void describe(const struct call *call, char *text, size_t size)
{
    snprintf(text, size, "%s p=%d count=%zu %s %s %s way=%d wire=%s seed=%d", call->spec, call->workers, call->count,
             dtype_name(call->dtype), reduce_op_name(call->op), call->in_place ? "in place" : "out of place",
             (int)(call->way - ways), call->wire != NULL ? call->wire->codec->name : "none", (int)call->seed);
}

/* NULL: the device gives what the host gives. */
static const char *differs(const struct call *call, const struct outcome *host, const struct outcome *device)
{
    const size_t bytes = call->count * dtype_size(call->dtype);
    if (host->status != STATUS_OK)
        return "the host fails";
    if (device->status != STATUS_OK)
        return device->message;
    for (int r = 0; r < call->workers; r++) {
        if (memcmp(host->output[r], device->output[r], bytes) != 0)
            return "other bits";
        if (device->traffic[r].bytes_sent != device->due_bytes[r] ||
            device->traffic[r].messages_sent != device->due_messages[r] ||
            device->traffic[r].bytes_sent != host->traffic[r].bytes_sent ||
            device->traffic[r].messages_sent != host->traffic[r].messages_sent)
            return "other bytes or messages";
    }
    return NULL;
}

/* The device gives what the host gives, and nothing is left behind. */
static void check_shape(const struct call *call, const struct shape *shape)
{
    struct outcome host, device;
    char text[256];
    struct mock_card *card = mock_card_create(call->seed);
    run_call(call, shape, NULL, &host);
    run_call(call, shape, card, &device);
    describe(call, text, sizeof text);
    const char *difference = differs(call, &host, &device);
    cr_assert_null(difference, "%s: %s", text, difference);
    cr_assert_null(mock_card_fault(card), "%s: %s", text, mock_card_fault(card));
    cr_assert_eq(mock_card_live(card), 0, "%s: %zu things are left on the device", text, mock_card_live(card));
    mock_card_destroy(card);
    outcome_free(&host);
    outcome_free(&device);
}

static void check_call(const struct call *call)
{
    struct shape *shape = call_shape(call);
    check_shape(call, shape);
    shape_destroy(shape);
}

/* ---- the catalogue ---- */

struct parameter {
    char spec[48];
};

ParameterizedTestParameters(device, catalogue)
{
    size_t algorithms = 0, n = 0;
    const struct algorithm *const *list = catalogue_algorithms(&algorithms);
    struct parameter *parameters = cr_malloc(algorithms * sizeof *parameters);
    for (size_t a = 0; a < algorithms; a++)
        if (algorithm_in_all(list[a]))
            snprintf(parameters[n++].spec, sizeof parameters->spec, "%s", list[a]->name);
    return cr_make_param_array(struct parameter, parameters, n);
}

static size_t drawn_count(uint64_t key, int workers)
{
    const size_t p = (size_t)workers, counts[] = {0, 1, p - 1, p, p + 1, 127, 1000, 4099, 10007, LONGEST};
    return counts[rng_below(key, 0, sizeof counts / sizeof *counts)];
}

ParameterizedTest(struct parameter *parameter, device, catalogue)
{
    static const int workers[] = {1, 2, 3, 4, 5, 7, 8};
    const struct algorithm *algorithm = algorithm_find(parameter->spec);
    for (size_t i = 0; i < 7; i++)
        for (size_t w = 0; w < WAYS; w++) {
            const uint64_t seed = w + 10 * i, key = rng_key(seed, parameter->spec, 0, 0);
            const bool odd = (algorithm->traits & TRAIT_EVEN) != 0 && workers[i] % 2 != 0;
            if (odd || (workers[i] > 2 && (w + i) % 2 == 0))
                continue;
            const struct call call = {.spec = parameter->spec,
                                      .workers = workers[i],
                                      .count = drawn_count(key, workers[i]),
                                      .dtype = (enum dtype)rng_below(key, 1, DTYPE_COUNT),
                                      .op = (enum reduce_op)rng_below(key, 2, REDUCE_OP_COUNT),
                                      .in_place = rng_below(key, 3, 2) != 0,
                                      .way = &ways[w],
                                      .seed = seed,
                                      .runs = 1 + (int)rng_below(key, 4, 2)};
            check_call(&call);
        }
}

/* ---- wire formats, mixing ---- */

Test(device, halves_on_the_wire)
{
    static const char *const specs[] = {"ring", "rhd", "recursive-doubling", "binomial", "one-shot", "all-pairs"};
    struct wire_format format[2];
    EXPECT_OK(wire_format_parse("f16", &format[0]));
    EXPECT_OK(wire_format_parse("bf16", &format[1]));
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++)
        for (size_t w = 0; w < WAYS; w++) {
            const uint64_t seed = s * WAYS + w;
            const struct call call = {.spec = specs[s],
                                      .workers = (int[]){2, 3, 5, 8}[seed % 4],
                                      .count = seed % 3 == 0 ? LONGEST : 1511,
                                      .dtype = DTYPE_F32,
                                      .op = seed % 2 == 0 ? REDUCE_SUM : REDUCE_AVG,
                                      .in_place = seed % 5 < 2,
                                      .way = &ways[w],
                                      .wire = &format[seed / 2 % 2],
                                      .seed = seed,
                                      .runs = 1};
            check_call(&call);
        }
    wire_format_release(&format[0]);
    wire_format_release(&format[1]);
}

/* f32 and f64 by SCALE and weighted RECV_REDUCE. */
Test(device, mixing)
{
    static const char *const names[] = {"ring", "one-peer-exponential"};
    for (size_t g = 0; g < 2; g++)
        for (size_t w = 0; w < WAYS; w++) {
            const struct graph *graph = graph_find(names[g]);
            const struct call call = {.spec = names[g],
                                      .workers = w % 2 == 0 ? 4 : 7,
                                      .count = 5003,
                                      .dtype = w % 3 == 0 ? DTYPE_F64 : DTYPE_F32,
                                      .op = REDUCE_SUM,
                                      .in_place = (g + w) % 2 == 0,
                                      .way = &ways[w],
                                      .seed = g * WAYS + w,
                                      .runs = 1};
            struct shape *shape = NULL;
            cr_assert_not_null(graph, "%s", names[g]);
            EXPECT_OK(mixing_shape(graph, call.workers, g + w, &shape));
            check_shape(&call, shape);
            shape_destroy(shape);
        }
}

/* ---- what the tests would notice ---- */

struct planted {
    char what[64];
    int from, to; /* an order that is left out; to < 0: queues `from` are believed to be done at once */
};

ParameterizedTestParameters(device, notices)
{
    static const struct planted list[] = {
        {"reductions don't wait for copies in", MOCK_IN, MOCK_WORK},
        {"copies out don't wait for copies in", MOCK_IN, MOCK_OUT},
        {"copies in don't wait for reductions", MOCK_WORK, MOCK_IN},
        {"copies out don't wait for reductions", MOCK_WORK, MOCK_OUT},
        {"copies out are not awaited", MOCK_OUT, -1},
        {"copies in are not awaited", MOCK_IN, -1},
        {"reductions are not awaited", MOCK_WORK, -1},
        {"the start does not wait for who computes", MOCK_COMPUTE, -1},
    };
    const size_t n = sizeof list / sizeof *list;
    struct planted *parameters = cr_malloc(n * sizeof *parameters);
    memcpy(parameters, list, sizeof list);
    return cr_make_param_array(struct planted, parameters, n);
}

static bool is_noticed(const struct planted *planted, const struct call *call, const struct shape *shape)
{
    struct outcome host, device;
    struct mock_card *card = mock_card_create(call->seed);
    if (planted->to < 0)
        mock_card_hasty(card, (enum mock_role)planted->from);
    else
        mock_card_ignore_order(card, (enum mock_role)planted->from, (enum mock_role)planted->to);
    run_call(call, shape, NULL, &host);
    run_call(call, shape, card, &device);
    const bool noticed = differs(call, &host, &device) != NULL || mock_card_fault(card) != NULL;
    cr_assert(!noticed || mock_card_planted(card) > 0, "noticed what was not there");
    mock_card_destroy(card);
    outcome_free(&host);
    outcome_free(&device);
    return noticed;
}

/* Each order between two queues, and each wait for one, is needed: without it some seed gives a wrong result. */
ParameterizedTest(struct planted *planted, device, notices)
{
    static const char *const specs[] = {"ring", "rhd", "recursive-doubling", "one-shot", "naive"};
    int noticed = 0, tried = 0;
    for (uint64_t seed = 0; seed < 70 && noticed < 3; seed++, tried++) {
        const struct call call = {.spec = specs[seed % 5],
                                  .workers = 3 + (int)(seed % 2),
                                  .count = seed % 4 == 0 ? LONGEST : 3001,
                                  .dtype = DTYPE_F32,
                                  .op = REDUCE_SUM,
                                  .in_place = seed % 3 == 0,
                                  .way = &ways[seed % WAYS_ALIKE],
                                  .seed = seed,
                                  .runs = 2};
        struct shape *shape = call_shape(&call);
        noticed += is_noticed(planted, &call, shape);
        shape_destroy(shape);
    }
    cr_assert_eq(noticed, 3, "%s: noticed %d times in %d", planted->what, noticed, tried);
}

/* Receives into one place, each copied away at once before the next comes: no schedule of the catalogue needs copies in to
 * wait for that, and copies to wait for what came. */
enum { TURNS = 5 };

static enum status turns_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    (void)shape;
    if (rank == 1)
        return emit_send(sink, 0, round + 1, 1);
    const struct op copy = {.kind = OP_COPY,
                            .src = {.chunk = 0, .chunks = 1},
                            .dst = {.chunk = round + 1, .chunks = 1},
                            .weight = 1,
                            .round = round};
    TRY(emit_recv(sink, 1, 0, 1));
    return sink->op(sink, &copy);
}

static const struct algorithm turns = {.name = "turns", .traits = TRAIT_INEXACT, .emit = turns_emit};
static const struct shape turns_shape = {
    .algorithm = &turns, .workers = 2, .chunks = TURNS + 1, .rounds = TURNS, .lanes = 1};

static struct call turns_call(uint64_t seed)
{
    return (struct call){.spec = "turns",
                         .workers = 2,
                         .count = (size_t)(TURNS + 1) * 700,
                         .dtype = DTYPE_F32,
                         .op = REDUCE_SUM,
                         .in_place = seed % 2 == 0,
                         .way = &ways[seed % WAYS_ALIKE],
                         .seed = seed,
                         .runs = 1};
}

Test(device, receives_and_copies_take_turns)
{
    static const struct planted list[] = {{"copies don't wait for copies in", MOCK_IN, MOCK_WORK},
                                          {"copies in don't wait for copies", MOCK_WORK, MOCK_IN}};
    int noticed[2] = {0, 0};
    for (uint64_t seed = 0; seed < 70; seed++) {
        const struct call call = turns_call(seed);
        check_shape(&call, &turns_shape);
        for (size_t k = 0; k < 2; k++)
            noticed[k] += noticed[k] < 3 && is_noticed(&list[k], &call, &turns_shape);
    }
    for (size_t k = 0; k < 2; k++)
        cr_assert_eq(noticed[k], 3, "%s: noticed %d times", list[k].what, noticed[k]);
}

/* ---- behaviour ---- */

/* Vectors that are still being computed hold up nobody who started before. */
Test(device, late_vectors_hold_up_no_older_collective)
{
    enum { P = 3 };
    struct crank crank;
    struct vectors v[2][P];
    struct collective *c[2][P];
    struct mock_card *card = mock_card_create(3);
    const struct call call = {.spec = "ring", .workers = P, .count = 5000, .dtype = DTYPE_F32, .way = &ways[0]};
    struct shape *shape = call_shape(&call);
    crank_open(&crank, P, call.way, card);
    for (int k = 0; k < 2; k++) {
        for (int r = 0; r < P; r++)
            vectors_make(&crank, r, &v[k][r], call.count * sizeof(float), 1);
        make_all(&crank, &call, shape, c[k]);
    }
    start_all(&crank, &call, v[0], c[0]);
    for (int r = 0; r < P; r++) { /* the first vectors are there */
        struct device_event *event = NULL;
        EXPECT_OK(crank.device[r]->ops->event_create(crank.device[r], &event));
        EXPECT_OK(crank.device[r]->ops->record(crank.device[r]->ops->compute(crank.device[r]), event));
        EXPECT_OK(crank.device[r]->ops->wait(event));
        crank.device[r]->ops->event_destroy(event);
    }
    mock_card_hold(card, true);
    start_all(&crank, &call, v[1], c[1]);
    EXPECT_OK(crank_run(c[0], P));
    for (int i = 0; i < 1000; i++)
        for (int r = 0; r < P; r++)
            cr_assert_eq(collective_test(c[1][r]), STATUS_AGAIN);
    mock_card_hold(card, false);
    EXPECT_OK(crank_run(c[1], P));
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < P; r++) {
            collective_destroy(c[k][r]);
            vectors_free(&crank, r, &v[k][r], 1);
        }
    crank_close(&crank);
    cr_assert_null(mock_card_fault(card), "%s", mock_card_fault(card));
    cr_assert_eq(mock_card_live(card), 0);
    mock_card_destroy(card);
    shape_destroy(shape);
}

/* One worker goes at any moment: nothing stays behind, whatever the queues still had to do. */
static void die_after(const struct way *way, const struct shape *shape, const struct call *call, int rounds)
{
    struct crank crank;
    struct vectors v[MOST];
    struct collective *c[MOST];
    const int p = call->workers;
    struct mock_card *card = mock_card_create((uint64_t)rounds);
    crank_open(&crank, p, way, card);
    for (int r = 0; r < p; r++)
        vectors_make(&crank, r, &v[r], call->count * dtype_size(call->dtype), 0);
    make_all(&crank, call, shape, c);
    start_all(&crank, call, v, c);
    for (int i = 0; i < rounds; i++)
        for (int r = 0; r < p; r++)
            (void)!collective_test(c[r]);
    for (int r = 0; r < p; r++) {
        collective_destroy(c[r]);
        comm_close(crank.comm[r]);
        crank.comm[r] = NULL;
        for (int i = 0; r == 0 && i < 20; i++)
            for (int other = 1; other < p; other++)
                (void)!collective_test(c[other]);
    }
    for (int r = 0; r < p; r++)
        vectors_free(&crank, r, &v[r], 0);
    if (!way->exports) /* else queues still read the memory of who has gone: in one process it is no longer there */
        cr_assert_null(mock_card_fault(card), "after %d rounds: %s", rounds, mock_card_fault(card));
    cr_assert_eq(mock_card_live(card), 0, "after %d rounds: %zu things are left", rounds, mock_card_live(card));
    mock_card_destroy(card);
}

Test(device, a_death_leaves_nothing_behind)
{
    for (size_t w = 0; w < WAYS; w++) {
        const struct call call = {
            .spec = w % 2 == 0 ? "ring" : "one-shot", .workers = 3, .count = 9001, .dtype = DTYPE_F32, .way = &ways[w]};
        struct shape *shape = call_shape(&call);
        for (int rounds = 0; rounds < 60; rounds += 3)
            die_after(&ways[w], shape, &call, rounds);
        shape_destroy(shape);
    }
}

/* A vector much longer than what is under way needs no more of it. */
Test(device, pinned_memory_is_bounded)
{
    static const struct way staged[] = {{.mode = LOOPBACK_IN_ORDER, .segment = 1024, .window = 2},
                                        {.mode = LOOPBACK_NODE, .segment = 1024, .window = 2}};
    for (size_t w = 0; w < 2; w++) {
        size_t most = 0;
        struct crank crank;
        struct collective *c[2];
        void *memory[2] = {NULL, NULL};
        struct mock_card *card = mock_card_create(5);
        const struct call call = {.spec = "ring", .workers = 2, .count = 500000, .dtype = DTYPE_F32, .way = &staged[w]};
        struct shape *shape = call_shape(&call);
        crank_open(&crank, 2, call.way, card);
        make_all(&crank, &call, shape, c);
        for (int r = 0; r < 2; r++)
            EXPECT_OK(comm_device_alloc(crank.comm[r], call.count * sizeof(float), &memory[r]));
        for (int r = 0; r < 2; r++)
            EXPECT_OK(collective_start(c[r], memory[r], memory[r]));
        EXPECT_OK(crank_run(c, 2));
        most = mock_card_pinned(card);
        cr_assert_leq(most, (size_t)256 << 10, "%zu bytes pinned for vectors of 2 MB", most);
        for (int r = 0; r < 2; r++)
            collective_destroy(c[r]);
        crank_close(&crank);
        cr_assert_null(mock_card_fault(card), "%s", mock_card_fault(card));
        mock_card_destroy(card);
        shape_destroy(shape);
    }
}

Test(device, says_what_is_wrong)
{
    struct crank crank;
    struct transport *transport = NULL;
    struct comm *plain = NULL;
    struct collective *c = NULL;
    struct text text = {0};
    struct wire_format format;
    void *on_device = NULL, *on_host = NULL;
    struct mock_card *card = mock_card_create(1);
    const struct call call = {.spec = "ring", .workers = 1, .count = 4, .dtype = DTYPE_F32, .way = &ways[0]};
    struct shape *shape = call_shape(&call);
    EXPECT_OK(wire_format_parse("top-k:ratio=0.5", &format));
    EXPECT_OK(loopback_open(1, LOOPBACK_IN_ORDER, 1, &transport));
    EXPECT_OK(comm_open(&(struct comm_request){.transport = transport}, &plain));
    struct collective_request request = {
        .team = comm_world(plain), .shape = shape, .name = "ring", .count = 4, .on_device = true};
    EXPECT_FAIL(STATUS_USAGE, "has no device", collective_create(&request, &c));
    EXPECT_FAIL(STATUS_USAGE, "has none", comm_device_alloc(plain, 4, &on_device));
    comm_close(plain);

    crank_open(&crank, 1, &ways[0], card);
    comm_describe(crank.comm[0], &text);
    cr_assert_not_null(strstr(text_string(&text), "device memory through pinned memory (mock 0)"), "%s",
                       text_string(&text));
    text_release(&text);
    EXPECT_OK(comm_alloc(crank.comm[0], 16, &on_host));
    EXPECT_OK(comm_device_alloc(crank.comm[0], 16, &on_device));
    request.team = comm_world(crank.comm[0]);
    request.wire = &format;
    struct shape *whole = call_shape(&(struct call){.spec = "one-shot", .workers = 1});
    request.shape = whole;
    EXPECT_FAIL(STATUS_REFUSED, "take f16 or bf16", collective_create(&request, &c));
    request.shape = shape;
    request.wire = NULL;
    for (int there = 0; there < 2; there++) {
        request.on_device = there == 1;
        EXPECT_OK(collective_create(&request, &c));
        EXPECT_FAIL(STATUS_USAGE, there ? "host memory, where" : "which was not said",
                    collective_start(c, there ? on_host : on_device, there ? on_device : on_host));
        collective_destroy(c);
    }
    crank_close(&crank);
    cr_assert_eq(mock_card_live(card), 0);
    mock_card_destroy(card);
    wire_format_release(&format);
    shape_destroy(shape);
    shape_destroy(whole);
}
