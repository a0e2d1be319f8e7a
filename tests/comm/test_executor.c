/* test_executor.c - walks the catalogue: every exact schedule on every listed worker count, on loopback with shuffled
 * and delayed delivery, over counts, element types, operators, in place and not, with exact integer data and guard
 * bytes.
 *
 * All workers live in this process and are cranked by hand, so a failure repeats. One test for each schedule.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"
#include "base/clock.h"
#include "base/half.h"
#include "comm/comm.h"
#include "comm/transport.h"
#include "tests/base/expect.h"

#define MAX_WORKERS 26
#define LONGEST (65537 * sizeof(double) + (size_t)2 * GUARD)
#define GUARD 64 /* bytes before and after each output */
#define GUARD_BYTE 0xa5

struct crank {
    int workers;
    struct comm *comm[MAX_WORKERS];
    unsigned char *arena[2][MAX_WORKERS]; /* input and output of LONGEST bytes from comm_alloc(); NULL: from malloc() */
};

static void crank_open(struct crank *crank, int workers, enum loopback_mode mode, size_t segment, unsigned window)
{
    struct transport *transports[MAX_WORKERS];
    cr_assert_leq(workers, MAX_WORKERS);
    *crank = (struct crank){.workers = workers};
    const uint64_t seed = 42 + (mode == LOOPBACK_HOSTS ? window % 2 : 0); /* both ways to lay nodes out */
    EXPECT_OK(loopback_open(workers, mode, seed, transports));
    for (int r = 0; r < workers; r++) {
        const struct comm_request request = {
            .transport = transports[r], .segment = segment, .window = window, .deadline = 20};
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
        if (rounds > 200000)
            return fail(STATUS_TIMEOUT, "cranked too long");
    }
    return STATUS_OK;
}

/* ---- data ---- */

/* Small integers that depend on rank and index: every partial sum is exact in every type, in any order. */
static long value(int rank, size_t i)
{
    return (long)((i * 7 + (size_t)rank * 13 + i / 11) % 41) - 20;
}

/* bf16 has whole numbers up to 256 only. */
static long value_of(enum dtype dtype, int rank, size_t i)
{
    return dtype == DTYPE_BF16 ? value(rank, i) % 9 : value(rank, i);
}

static long reduced_of(enum dtype dtype, enum reduce_op op, int workers, size_t i)
{
    long result = value_of(dtype, 0, i);
    for (int r = 1; r < workers; r++) {
        const long v = value_of(dtype, r, i);
        if (op == REDUCE_MIN)
            result = v < result ? v : result;
        else if (op == REDUCE_MAX)
            result = v > result ? v : result;
        else
            result += v;
    }
    return result;
}

static long reduced(enum reduce_op op, int workers, size_t i)
{
    return reduced_of(DTYPE_F32, op, workers, i);
}

static void put(enum dtype dtype, void *data, size_t i, long v)
{
    switch (dtype) {
    case DTYPE_F32:
        ((float *)data)[i] = (float)v;
        break;
    case DTYPE_F64:
        ((double *)data)[i] = (double)v;
        break;
    case DTYPE_I32:
        ((int32_t *)data)[i] = (int32_t)v;
        break;
    case DTYPE_F16:
        ((uint16_t *)data)[i] = f16_from_f32((float)v);
        break;
    case DTYPE_BF16:
        ((uint16_t *)data)[i] = bf16_from_f32((float)v);
        break;
    default:
        ((int64_t *)data)[i] = v;
    }
}

/* Element i is `total` (for the mean: divided by workers once, integers truncated). */
static bool is_right(enum dtype dtype, enum reduce_op op, const void *data, size_t i, long total, int workers)
{
    const int divisor = op == REDUCE_AVG ? workers : 1;
    switch (dtype) {
    case DTYPE_F32:
        return ((const float *)data)[i] == (float)total / (float)divisor;
    case DTYPE_F64:
        return ((const double *)data)[i] == (double)total / divisor;
    case DTYPE_I32:
        return ((const int32_t *)data)[i] == (int32_t)(total / divisor);
    case DTYPE_F16: /* by value: a sum of zeros has the sign that its order gave it */
        return f16_to_f32(((const uint16_t *)data)[i]) == f16_to_f32(f16_from_f32((float)total / (float)divisor));
    case DTYPE_BF16:
        return bf16_to_f32(((const uint16_t *)data)[i]) == bf16_to_f32(bf16_from_f32((float)total / (float)divisor));
    default:
        return ((const int64_t *)data)[i] == total / divisor;
    }
}

struct buffers {
    unsigned char *input[MAX_WORKERS], *block[MAX_WORKERS], *output[MAX_WORKERS];
};

static unsigned char *vector_make(const struct crank *crank, int which, int rank, size_t bytes)
{
    cr_assert_leq(bytes, LONGEST);
    unsigned char *memory = crank->arena[which][rank] != NULL ? crank->arena[which][rank] : malloc(bytes);
    cr_assert_not_null(memory);
    return memory;
}

static void buffers_make(const struct crank *crank, struct buffers *b, size_t count, enum dtype dtype, bool in_place)
{
    const size_t bytes = count * dtype_size(dtype);
    for (int r = 0; r < crank->workers; r++) {
        b->block[r] = vector_make(crank, 1, r, bytes + 2 * GUARD);
        b->input[r] = vector_make(crank, 0, r, bytes + 1);
        memset(b->block[r], GUARD_BYTE, bytes + 2 * GUARD);
        b->output[r] = b->block[r] + GUARD;
        for (size_t i = 0; i < count; i++)
            put(dtype, in_place ? b->output[r] : b->input[r], i, value_of(dtype, r, i));
    }
}

static void buffers_free(const struct crank *crank, struct buffers *b)
{
    for (int r = 0; crank->arena[0][0] == NULL && r < crank->workers; r++) {
        free(b->block[r]);
        free(b->input[r]);
    }
}

static void buffers_check(const struct buffers *b, int workers, size_t count, enum dtype dtype, enum reduce_op op,
                          bool in_place, const char *name)
{
    const size_t bytes = count * dtype_size(dtype);
    for (size_t i = 0; i < count; i++) {
        const long total = reduced_of(dtype, op, workers, i);
        for (int r = 0; r < workers; r++)
            cr_assert(is_right(dtype, op, b->output[r], i, total, workers),
                      "%s p=%d count=%zu %s %s %s: worker %d element %zu is wrong", name, workers, count,
                      dtype_name(dtype), reduce_op_name(op), in_place ? "in place" : "out of place", r, i);
    }
    for (int r = 0; r < workers; r++) {
        for (size_t g = 0; g < GUARD; g++)
            cr_assert(b->block[r][g] == GUARD_BYTE && b->output[r][bytes + g] == GUARD_BYTE,
                      "%s p=%d count=%zu: worker %d wrote outside its buffer", name, workers, count, r);
        for (size_t i = 0; !in_place && i < count; i++)
            cr_assert(is_right(dtype, REDUCE_SUM, b->input[r], i, value_of(dtype, r, i), 1),
                      "%s: worker %d changed its input", name, r);
    }
}

/* ---- cases ---- */

static void run_case(struct crank *crank, const struct shape *shape, const char *name, size_t count, enum dtype dtype,
                     enum reduce_op op, bool in_place)
{
    struct collective *collectives[MAX_WORKERS];
    struct buffers buffers;
    const int p = crank->workers;
    buffers_make(crank, &buffers, count, dtype, in_place);
    for (int r = 0; r < p; r++) {
        const struct collective_request request = {
            .team = comm_world(crank->comm[r]), .shape = shape, .name = name, .count = count, .dtype = dtype, .op = op};
        EXPECT_OK(collective_create(&request, &collectives[r]));
    }
    for (int r = 0; r < p; r++)
        EXPECT_OK(collective_start(collectives[r], in_place ? buffers.output[r] : buffers.input[r], buffers.output[r]));
    const enum status status = crank_run(collectives, p);
    cr_assert_eq(status, STATUS_OK, "%s p=%d count=%zu: %s", name, p, count, status_message());
    buffers_check(&buffers, p, count, dtype, op, in_place, name);
    for (int r = 0; r < p; r++) {
        struct collective_traffic traffic;
        size_t bytes = 0, messages = 0;
        collective_traffic(collectives[r], &traffic);
        EXPECT_OK(shape_traffic(shape, r, count, dtype_size(dtype), &bytes, &messages));
        cr_assert_eq(traffic.bytes_sent, bytes, "%s p=%d count=%zu worker %d: sent %zu bytes, schedule says %zu", name,
                     p, count, r, traffic.bytes_sent, bytes);
        cr_assert_eq(traffic.messages_sent, messages);
        collective_destroy(collectives[r]);
    }
    buffers_free(crank, &buffers);
}

/* How data travel: by messages; in a node from arenas, from other memory, and where that may not be read; in nodes and
 * by messages between them. */
static const struct {
    enum loopback_mode mode;
    size_t segment;
    unsigned window;
    bool arenas, closed;
} ways[] = {
    {.mode = LOOPBACK_SHUFFLED, .segment = 16384, .window = 4},
    {.mode = LOOPBACK_DELAYED, .segment = 3000, .window = 1},
    {.mode = LOOPBACK_NODE, .segment = 16384, .window = 4, .arenas = true},
    {.mode = LOOPBACK_NODE, .segment = 1000, .window = 1, .arenas = true},
    {.mode = LOOPBACK_NODE, .segment = 5000, .window = 2},
    {.mode = LOOPBACK_NODE, .segment = 3000, .window = 3, .closed = true},
    {.mode = LOOPBACK_HOSTS, .segment = 16384, .window = 4, .arenas = true},
    {.mode = LOOPBACK_HOSTS, .segment = 3000, .window = 1},
};
#define WAYS (sizeof ways / sizeof *ways)
#define WAYS_HOSTS 6 /* the first of several hosts */

/* Few workers go all ways. With more, the first always has its turn, the others at every fifth count, and one of those of
 * several hosts at every odd one. */
static bool goes_way(int p, size_t way)
{
    if (way == 0 || p <= 3)
        return true;
    if (way >= WAYS_HOSTS)
        return p % 2 != 0 && (size_t)p / 2 % (WAYS - WAYS_HOSTS) == way - WAYS_HOSTS;
    return (size_t)p % (WAYS_HOSTS - 1) + 1 == way;
}

static void run_all_cases(const char *spec_text, const struct layout *layout)
{
    struct spec spec;
    struct shape *shape = NULL;
    struct crank crank;
    const int p = layout->workers;
    EXPECT_OK(spec_parse(spec_text, &spec));
    EXPECT_OK(spec_shape(&spec, layout, 0, 0, &shape));
    const size_t counts[] = {0, 1, (size_t)p - 1, (size_t)p, (size_t)p + 1, 1000, 65537};
    unsigned turn = (unsigned)p * 7; /* every type and operator has its turn with every schedule, few meet all sizes */
    for (size_t way = 0; way < WAYS; way++) {
        if (!goes_way(p, way))
            continue;
        cr_assert_eq(setenv("FI_SHM_DISABLE_CMA", ways[way].closed ? "1" : "0", 1), 0);
        crank_open(&crank, p, ways[way].mode, ways[way].segment, ways[way].window);
        for (int r = 0; ways[way].arenas && r < p; r++)
            for (int which = 0; which < 2; which++) {
                void *memory = NULL;
                EXPECT_OK(comm_alloc(crank.comm[r], LONGEST, &memory));
                crank.arena[which][r] = memory;
            }
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
            for (int in_place = 0; in_place < 2; in_place++, turn++) {
                const enum dtype dtype = (enum dtype)(turn % DTYPE_COUNT);
                const enum reduce_op op = (enum reduce_op)(turn / DTYPE_COUNT % REDUCE_OP_COUNT);
                if (counts[k] > 1000 && (turn + way) % 4 != 0)
                    continue; /* a few of the long vectors */
                run_case(&crank, shape, spec_text, counts[k], dtype, op, in_place);
            }
        crank_close(&crank);
    }
    shape_destroy(shape);
    spec_release(&spec);
}

struct exact_case {
    char spec[48];
    bool even; /* goes on even numbers of workers alone */
};

/* A test for each schedule, not for each number of workers: under sanitizers it takes longer to start a test than to run
 * most of these. */
ParameterizedTestParameters(executor, exact)
{
    size_t algorithms = 0, n = 0;
    const struct algorithm *const *list = catalogue_algorithms(&algorithms);
    struct exact_case *cases = cr_malloc(algorithms * sizeof *cases);
    for (size_t a = 0; a < algorithms; a++) {
        if (!algorithm_in_all(list[a]))
            continue;
        snprintf(cases[n].spec, sizeof cases[n].spec, "%s", list[a]->name);
        cases[n++].even = (list[a]->traits & TRAIT_EVEN) != 0;
    }
    return cr_make_param_array(struct exact_case, cases, n);
}

ParameterizedTest(struct exact_case *c, executor, exact)
{
    struct layout layout;
    for (int workers = 1; workers <= 16; workers++) {
        if (c->even && workers % 2 != 0)
            continue;
        EXPECT_OK(layout_flat(workers, &layout));
        run_all_cases(c->spec, &layout);
        layout_release(&layout);
    }
}

struct node_case {
    char spec[80], layout[24];
};

ParameterizedTestParameters(executor, hierarchical_nodes)
{
    static const char *const specs[] = {"hierarchical", "hierarchical:inter=rhd", "hierarchical:intra=rhd,inter=rd",
                                        "hierarchical:intra=binomial"};
    static const char *const layouts[] = {"4+2", "3+3+3+2", "2x4"};
    /* Several lanes within, between, and in both, fenced off from each other; scratch within a piece of the whole. */
    static const struct node_case fenced[] = {
        {"hierarchical:intra=multi-ring", "4+2"},
        {"hierarchical:inter=double-binary-tree", "2x4"},
        {"hierarchical:intra=multi-ring,inter=[dbt:chunks=3]", "3+3+3+2"},
        {"hierarchical:intra=[dbt:chunks=1],inter=all-pairs", "3+3+3+2"},
        {"hierarchical:group=4,intra=[hierarchical:group=2,intra=multi-ring]", "2x4"},
    };
    const size_t fenced_count = sizeof fenced / sizeof *fenced;
    size_t n = 0;
    struct node_case *cases = cr_malloc((13 + fenced_count) * sizeof *cases);
    for (size_t s = 0; s < 4; s++)
        for (size_t l = 0; l < 3; l++) {
            snprintf(cases[n].spec, sizeof cases[n].spec, "%s", specs[s]);
            snprintf(cases[n++].layout, sizeof cases[n].layout, "%s", layouts[l]);
        }
    snprintf(cases[n].spec, sizeof cases[n].spec, "hierarchical:intra=binomial");
    snprintf(cases[n++].layout, sizeof cases[n].layout, "5+6+7+8");
    for (size_t f = 0; f < fenced_count; f++)
        cases[n++] = fenced[f];
    return cr_make_param_array(struct node_case, cases, n);
}

ParameterizedTest(struct node_case *c, executor, hierarchical_nodes)
{
    struct layout layout;
    EXPECT_OK(layout_parse(c->layout, 0, &layout));
    run_all_cases(c->spec, &layout);
    layout_release(&layout);
}

/* ---- behaviour ---- */

static struct shape *flat_shape(const char *text, int workers)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape = NULL;
    EXPECT_OK(spec_parse(text, &spec));
    EXPECT_OK(layout_flat(workers, &layout));
    EXPECT_OK(spec_shape(&spec, &layout, 0, 0, &shape));
    layout_release(&layout);
    spec_release(&spec);
    return shape;
}

static void make(struct crank *crank, int r, const struct shape *shape, const char *name, size_t count,
                 enum dtype dtype, struct collective **c)
{
    const struct collective_request request = {.team = comm_world(crank->comm[r]),
                                               .shape = shape,
                                               .name = name,
                                               .count = count,
                                               .dtype = dtype,
                                               .op = REDUCE_SUM};
    EXPECT_OK(collective_create(&request, c));
}

/* 8 x 16384 is more than f16 holds, their mean is not; by every schedule, in place and not. */
Test(executor, the_mean_of_halves_does_not_overflow_on_the_way)
{
    enum { P = 8, COUNT = 37 };
    size_t algorithms = 0;
    const struct algorithm *const *list = catalogue_algorithms(&algorithms);
    for (size_t a = 0; a < 2 * algorithms; a++) {
        const struct algorithm *algorithm = list[a / 2];
        struct crank crank;
        struct collective *c[P];
        static uint16_t input[P][COUNT], output[P][COUNT];
        if (!algorithm_in_all(algorithm))
            continue;
        struct shape *shape = flat_shape(algorithm->name, P);
        crank_open(&crank, P, LOOPBACK_SHUFFLED, 16, 2);
        for (int r = 0; r < P; r++) {
            const struct collective_request request = {.team = comm_world(crank.comm[r]),
                                                       .shape = shape,
                                                       .name = algorithm->name,
                                                       .count = COUNT,
                                                       .dtype = DTYPE_F16,
                                                       .op = REDUCE_AVG};
            for (size_t i = 0; i < COUNT; i++)
                input[r][i] = output[r][i] = f16_from_f32(16384);
            EXPECT_OK(collective_create(&request, &c[r]));
            EXPECT_OK(collective_start(c[r], a % 2 == 0 ? input[r] : output[r], output[r]));
        }
        EXPECT_OK(crank_run(c, P));
        for (int r = 0; r < P; r++) {
            for (size_t i = 0; i < COUNT; i++)
                cr_assert_eq(f16_to_f32(output[r][i]), 16384, "%s: worker %d has %g", algorithm->name, r,
                             (double)f16_to_f32(output[r][i]));
            collective_destroy(c[r]);
        }
        crank_close(&crank);
        shape_destroy(shape);
    }
}

/* Several collectives of one team under way at once, started in one order, finished in any. */
Test(executor, several_in_flight)
{
    enum { P = 5, N = 6 };
    struct crank crank;
    struct shape *shape = flat_shape("ring", P);
    struct collective *c[N][P];
    static float data[N][P][700];
    crank_open(&crank, P, LOOPBACK_DELAYED, 1024, 2);
    for (int k = 0; k < N; k++)
        for (int r = 0; r < P; r++) {
            for (size_t i = 0; i < 700; i++)
                data[k][r][i] = (float)(value(r, i) + k);
            make(&crank, r, shape, "ring", 700, DTYPE_F32, &c[k][r]);
        }
    for (int r = 0; r < P; r++)
        for (int k = 0; k < N; k++)
            EXPECT_OK(collective_start(c[k][r], data[k][r], data[k][r]));
    for (int k = N - 1; k >= 0; k--)
        EXPECT_OK(crank_run(c[k], P));
    for (int k = 0; k < N; k++)
        for (int r = 0; r < P; r++) {
            for (size_t i = 0; i < 700; i++)
                cr_assert_eq(data[k][r][i], (float)(reduced(REDUCE_SUM, P, i) + k * P));
            collective_destroy(c[k][r]);
        }
    crank_close(&crank);
    shape_destroy(shape);
}

/* Whoever computes and drives now and then gets through; a call without anything to do changes nothing. */
Test(executor, driven_now_and_then)
{
    enum { P = 3 };
    struct crank crank;
    struct shape *shape = flat_shape("ring", P);
    struct collective *c[P];
    static float data[P][5000];
    int calls = 0;
    crank_open(&crank, P, LOOPBACK_SHUFFLED, 1024, 2);
    for (int r = 0; r < P; r++) {
        for (size_t i = 0; i < 5000; i++)
            data[r][i] = (float)value(r, i);
        make(&crank, r, shape, "ring", 5000, DTYPE_F32, &c[r]);
        EXPECT_OK(comm_drive(crank.comm[r]));
        cr_expect_not(comm_has_thread(crank.comm[r]));
    }
    for (int r = 0; r < P; r++)
        EXPECT_OK(collective_start(c[r], data[r], data[r]));
    for (bool done = false; !done && calls < 10000; calls++) {
        EXPECT_OK(comm_drive(crank.comm[calls % P]));
        done = true;
        for (int r = 0; r < P; r++) {
            struct collective_traffic traffic;
            collective_traffic(c[r], &traffic);
            done = done && traffic.finished_ns != 0;
        }
    }
    cr_expect_lt(calls, 10000, "nothing but comm_drive() was needed");
    EXPECT_OK(crank_run(c, P));
    for (int r = 0; r < P; r++) {
        for (size_t i = 0; i < 5000; i++)
            cr_assert_eq(data[r][i], (float)reduced(REDUCE_SUM, P, i));
        collective_destroy(c[r]);
    }
    crank_close(&crank);
    shape_destroy(shape);
}

/* Planes that would take too much: the vector goes through the schedule in slices, twice, with all that it should send. */
static void run_sliced(const char *spec, int workers, enum loopback_mode mode, size_t count)
{
    struct transport *transports[MAX_WORKERS];
    struct crank crank = {.workers = workers};
    struct collective *c[MAX_WORKERS];
    struct buffers buffers;
    struct shape *shape = flat_shape(spec, workers);
    EXPECT_OK(loopback_open(workers, mode, 3, transports));
    for (int r = 0; r < workers; r++) {
        const struct comm_request request = {
            .transport = transports[r], .segment = 1024, .scratch = 9000, .deadline = 20};
        EXPECT_OK(comm_open(&request, &crank.comm[r]));
        make(&crank, r, shape, spec, count, DTYPE_I32, &c[r]);
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        buffers_make(&crank, &buffers, count, DTYPE_I32, in_place);
        for (int run = 0; run < 1 + !in_place; run++) {
            for (int r = 0; r < workers; r++) /* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): filled for all */
                EXPECT_OK(collective_start(c[r], in_place ? buffers.output[r] : buffers.input[r], buffers.output[r]));
            EXPECT_OK(crank_run(c, workers));
            buffers_check(&buffers, workers, count, DTYPE_I32, REDUCE_SUM, in_place, spec);
        }
        buffers_free(&crank, &buffers);
    }
    for (int r = 0; r < workers; r++) {
        struct collective_traffic traffic;
        size_t bytes = 0, messages = 0, whole = 0;
        collective_traffic(c[r], &traffic);
        EXPECT_OK(collective_due(c[r], 4, &bytes, &messages));
        EXPECT_OK(shape_traffic(shape, r, count, 4, NULL, &whole));
        cr_assert_eq(traffic.bytes_sent, bytes, "%s: %zu bytes, %zu were due", spec, traffic.bytes_sent, bytes);
        cr_assert_eq(traffic.messages_sent, messages);
        cr_assert(count < 8000 || whole == 0 || messages > whole, "%s: one slice only", spec);
        collective_destroy(c[r]);
    }
    crank_close(&crank);
    shape_destroy(shape);
}

Test(executor, large_scratch_goes_in_slices)
{
    static const char *const specs[] = {"one-shot", "all-pairs", "allgather-reduce", "trivance-latency"};
    static const size_t counts[] = {0, 1, 7, 1000, 9000, 20001};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++)
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            run_sliced(specs[s], 5, LOOPBACK_DELAYED, counts[k]);
            run_sliced(specs[s], 7, LOOPBACK_NODE, counts[k]);
        }
}

/* One collective run again and again gives the same result. */
Test(executor, restarts)
{
    enum { P = 3 };
    struct crank crank;
    struct shape *shape = flat_shape("rhd", P);
    struct collective *c[P];
    int64_t data[P][50];
    crank_open(&crank, P, LOOPBACK_SHUFFLED, 4096, 4);
    for (int r = 0; r < P; r++)
        make(&crank, r, shape, "rhd", 50, DTYPE_I64, &c[r]);
    for (int run = 0; run < 100; run++) {
        for (int r = 0; r < P; r++) {
            for (size_t i = 0; i < 50; i++)
                data[r][i] = value(r, i + (size_t)run);
            EXPECT_OK(collective_start(c[r], data[r], data[r]));
        }
        EXPECT_OK(crank_run(c, P));
        for (int r = 0; r < P; r++)
            for (size_t i = 0; i < 50; i++)
                cr_assert_eq(data[r][i], reduced(REDUCE_SUM, P, i + (size_t)run));
    }
    for (int r = 0; r < P; r++)
        collective_destroy(c[r]);
    crank_close(&crank);
    shape_destroy(shape);
}

/* A transport with room for a few posted receives only, as real ones have: the rest is told to come again. */
struct narrow {
    struct transport transport; /* first */
    struct transport *inner;
    int posted, limit;
};

static enum status narrow_send(struct transport *transport, int peer, uint64_t tag, const void *data, size_t bytes,
                               struct transfer *transfer)
{
    struct transport *inner = ((struct narrow *)transport)->inner;
    transfer->provider[7] = NULL;
    return inner->ops->send(inner, peer, tag, data, bytes, transfer);
}

static enum status narrow_receive(struct transport *transport, int peer, uint64_t tag, uint64_t ignore, void *data,
                                  size_t bytes, struct transfer *transfer)
{
    struct narrow *narrow = (struct narrow *)transport;
    if (narrow->posted >= narrow->limit)
        return STATUS_AGAIN;
    narrow->posted++;
    transfer->provider[7] = narrow; /* loopback leaves it alone */
    return narrow->inner->ops->receive(narrow->inner, peer, tag, ignore, data, bytes, transfer);
}

static enum status narrow_progress(struct transport *transport, struct transfer **done, size_t limit, size_t *count)
{
    struct narrow *narrow = (struct narrow *)transport;
    const enum status status = narrow->inner->ops->progress(narrow->inner, done, limit, count);
    for (size_t i = 0; i < *count; i++)
        narrow->posted -= done[i]->provider[7] == narrow;
    return status;
}

static void narrow_wait(struct transport *transport, uint64_t ns, unsigned idle)
{
    struct transport *inner = ((struct narrow *)transport)->inner;
    inner->ops->wait(inner, ns, idle);
}

static void narrow_cancel(struct transport *transport, struct transfer *transfer)
{
    struct transport *inner = ((struct narrow *)transport)->inner;
    inner->ops->cancel(inner, transfer);
}

static void narrow_close(struct transport *transport)
{
    struct transport *inner = ((struct narrow *)transport)->inner;
    inner->ops->close(inner);
}

static void crank_open_narrow(struct crank *crank, int workers, int limit, unsigned window, struct narrow *narrow)
{
    static const struct transport_ops ops = {.close = narrow_close,
                                             .send = narrow_send,
                                             .receive = narrow_receive,
                                             .progress = narrow_progress,
                                             .wait = narrow_wait,
                                             .cancel = narrow_cancel};
    struct transport *transports[MAX_WORKERS];
    crank->workers = workers;
    EXPECT_OK(loopback_open(workers, LOOPBACK_IN_ORDER, 9, transports));
    for (int r = 0; r < workers; r++) {
        narrow[r] = (struct narrow){.transport = *transports[r], .inner = transports[r], .limit = limit};
        narrow[r].transport.ops = &ops;
        const struct comm_request request = {.transport = &narrow[r].transport, .segment = 1024, .window = window};
        EXPECT_OK(comm_open(&request, &crank->comm[r]));
    }
}

static void run_narrow(const char *name, int limit, unsigned window, int calls)
{
    enum { P = 8, N = 80, COUNT = 6000 };
    struct crank crank;
    struct narrow narrow[P];
    struct shape *shape = flat_shape(name, P);
    struct collective *c[N][P];
    static float data[N][P][COUNT];
    crank_open_narrow(&crank, P, limit, window, narrow);
    for (int k = 0; k < calls; k++)
        for (int r = 0; r < P; r++) {
            for (size_t i = 0; i < COUNT; i++)
                data[k][r][i] = (float)(value(r, i) + k);
            make(&crank, r, shape, name, COUNT, DTYPE_F32, &c[k][r]);
            EXPECT_OK(collective_start(c[k][r], data[k][r], data[k][r]));
        }
    for (int k = 0; k < calls; k++) {
        const enum status status = crank_run(c[k], P);
        cr_assert_eq(status, STATUS_OK, "%s with room for %d receives: %s", name, limit, status_message());
    }
    for (int k = 0; k < calls; k++)
        for (int r = 0; r < P; r++) {
            for (size_t i = 0; i < COUNT; i++)
                cr_assert_eq(data[k][r][i], (float)(reduced(REDUCE_SUM, P, i) + k * P));
            collective_destroy(c[k][r]);
        }
    crank_close(&crank);
    shape_destroy(shape);
}

/* Receives without room keep neither grants nor payload nor small messages from moving. The pool holds 64. */
Test(executor, little_room_for_receives)
{
    run_narrow("naive", 64 + 8, 64, 1);
    run_narrow("ring", 64 + 2, 4, 1);
}

/* Many collectives want more receives than there is room for: the oldest always gets its own. */
Test(executor, many_in_flight_with_little_room)
{
    run_narrow("rhd", 64 + 512 + 24, 4, 80);
}

/* Counts what the transport is asked to send. */
struct counting {
    struct transport transport; /* first */
    struct transport *inner;
    size_t sends;
};

static enum status counting_send(struct transport *transport, int peer, uint64_t tag, const void *data, size_t bytes,
                                 struct transfer *transfer)
{
    struct counting *counting = (struct counting *)transport;
    counting->sends++;
    return counting->inner->ops->send(counting->inner, peer, tag, data, bytes, transfer);
}

static enum status counting_receive(struct transport *transport, int peer, uint64_t tag, uint64_t ignore, void *data,
                                    size_t bytes, struct transfer *transfer)
{
    struct transport *inner = ((struct counting *)transport)->inner;
    return inner->ops->receive(inner, peer, tag, ignore, data, bytes, transfer);
}

static enum status counting_progress(struct transport *transport, struct transfer **done, size_t limit, size_t *count)
{
    struct transport *inner = ((struct counting *)transport)->inner;
    return inner->ops->progress(inner, done, limit, count);
}

static void counting_wait(struct transport *transport, uint64_t ns, unsigned idle)
{
    struct transport *inner = ((struct counting *)transport)->inner;
    inner->ops->wait(inner, ns, idle);
}

static void counting_cancel(struct transport *transport, struct transfer *transfer)
{
    struct transport *inner = ((struct counting *)transport)->inner;
    inner->ops->cancel(inner, transfer);
}

static void counting_close(struct transport *transport)
{
    struct transport *inner = ((struct counting *)transport)->inner;
    inner->ops->close(inner);
}

static const struct transport_ops counting_ops = {.close = counting_close,
                                                  .send = counting_send,
                                                  .receive = counting_receive,
                                                  .progress = counting_progress,
                                                  .wait = counting_wait,
                                                  .cancel = counting_cancel};

struct send_counter {
    struct sink sink; /* first */
    size_t count, sends;
    uint32_t chunks;
};

static enum status count_send(struct sink *sink, const struct op *op)
{
    struct send_counter *counter = (struct send_counter *)sink;
    counter->sends += op->kind == OP_SEND && range_elements(&op->src, counter->count, counter->chunks) > 0;
    return STATUS_OK;
}

/* How many sends a schedule has that carry something, over all workers. */
static size_t sends_of(const struct shape *shape, size_t count)
{
    struct send_counter counter = {.sink = {.op = count_send}, .count = count, .chunks = shape->chunks};
    for (int r = 0; r < shape->workers; r++)
        for (counter.sink.round = 0; counter.sink.round < shape->rounds; counter.sink.round++) {
            counter.sink.lane = 0;
            EXPECT_OK(shape->algorithm->emit(shape, r, counter.sink.round, &counter.sink));
        }
    return counter.sends;
}

/* Small ranges that one message joins travel together where they are ready together: fewer sends than ranges. */
Test(executor, joined_ranges_travel_together)
{
    enum { P = 7, COUNT = 70 };
    struct transport *transports[P];
    struct counting counting[P];
    struct crank crank = {.workers = P};
    struct shape *shape = flat_shape("circulant", P);
    struct collective *c[P];
    static float data[P][COUNT];
    size_t sends = 0;
    EXPECT_OK(loopback_open(P, LOOPBACK_SHUFFLED, 5, transports));
    for (int r = 0; r < P; r++) {
        counting[r] = (struct counting){.transport = *transports[r], .inner = transports[r]};
        counting[r].transport.ops = &counting_ops;
        const struct comm_request request = {.transport = &counting[r].transport, .deadline = 20};
        EXPECT_OK(comm_open(&request, &crank.comm[r]));
        for (size_t i = 0; i < COUNT; i++)
            data[r][i] = (float)value(r, i);
        make(&crank, r, shape, "circulant", COUNT, DTYPE_F32, &c[r]);
        EXPECT_OK(collective_start(c[r], data[r], data[r]));
    }
    EXPECT_OK(crank_run(c, P));
    for (int r = 0; r < P; r++) {
        sends += counting[r].sends;
        for (size_t i = 0; i < COUNT; i++)
            cr_assert_eq(data[r][i], (float)reduced(REDUCE_SUM, P, i));
        collective_destroy(c[r]);
    }
    cr_assert_lt(sends, sends_of(shape, COUNT));
    crank_close(&crank);
    shape_destroy(shape);
}

static enum status run_two_calls(size_t count0, size_t count1, const char *name0, const char *name1)
{
    struct crank crank;
    struct shape *shape0 = flat_shape(name0, 2), *shape1 = flat_shape(name1, 2);
    struct collective *c[2];
    float *data = calloc(2 * 100000, sizeof *data);
    cr_assert_not_null(data);
    crank_open(&crank, 2, LOOPBACK_IN_ORDER, 4096, 4);
    make(&crank, 0, shape0, name0, count0, DTYPE_F32, &c[0]);
    make(&crank, 1, shape1, name1, count1, DTYPE_F32, &c[1]);
    enum status status = collective_start(c[0], data, data);
    if (status >= 0)
        status = collective_start(c[1], data + 100000, data + 100000);
    for (int i = 0; status >= 0 && i < 1000; i++) { /* both keep going: each must hear of it */
        status = collective_test(c[0]);
        if (status >= 0)
            status = collective_test(c[1]);
    }
    collective_destroy(c[0]);
    collective_destroy(c[1]);
    crank_close(&crank);
    shape_destroy(shape0);
    shape_destroy(shape1);
    free(data);
    return status;
}

/* Workers that call different things are told both calls, at any size, zero included. */
Test(executor, mismatch_names_both_calls)
{
    static const size_t counts[][2] = {{1000, 999}, {1, 2}, {0, 5}, {5, 0}, {90000, 90001}, {90000, 10}};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        const enum status status = run_two_calls(counts[k][0], counts[k][1], "ring", "ring");
        cr_assert_eq(status, STATUS_MISMATCH, "counts %zu and %zu: %s %s", counts[k][0], counts[k][1],
                     status_name(status), status_message());
    }
    cr_assert_eq(run_two_calls(1000, 999, "ring", "ring"), STATUS_MISMATCH);
    cr_assert_not_null(strstr(status_message(), "1000"));
    cr_assert_not_null(strstr(status_message(), "999"));
    cr_assert_eq(run_two_calls(1000, 1000, "ring", "rhd"), STATUS_MISMATCH);
    cr_assert_not_null(strstr(status_message(), "ring"));
}

/* A worker that never comes: the wait ends at its deadline and says what it waited for. */
Test(executor, deadline_says_what)
{
    struct transport *transports[2];
    struct comm *comm[2];
    struct shape *shape = flat_shape("ring", 2);
    struct collective *c;
    float data[100] = {0};
    EXPECT_OK(loopback_open(2, LOOPBACK_IN_ORDER, 1, transports));
    for (int r = 0; r < 2; r++) {
        const struct comm_request request = {.transport = transports[r], .deadline = 0.2};
        EXPECT_OK(comm_open(&request, &comm[r]));
    }
    const struct collective_request request = {.team = comm_world(comm[0]),
                                               .shape = shape,
                                               .name = "ring",
                                               .count = 100,
                                               .dtype = DTYPE_F32,
                                               .op = REDUCE_SUM};
    EXPECT_OK(collective_create(&request, &c));
    EXPECT_OK(collective_start(c, data, data));
    cr_assert_eq(collective_wait(c), STATUS_TIMEOUT);
    cr_assert_not_null(strstr(status_message(), "ring"), "%s", status_message());
    cr_assert_not_null(strstr(status_message(), "from 1"), "%s", status_message());
    collective_destroy(c);
    comm_close(comm[0]);
    comm_close(comm[1]);
    shape_destroy(shape);
}

/* Worker 1 starts `late` s after worker 0. */
struct late_worker {
    struct collective *collective;
    double late;
    enum status status;
};

static void *late_worker(void *context)
{
    static float data[100];
    struct late_worker *worker = context;
    clock_sleep_ns((uint64_t)(worker->late * 1e9));
    worker->status = collective_start(worker->collective, data, data);
    if (worker->status >= 0)
        worker->status = collective_wait(worker->collective);
    return NULL;
}

/* Worker 0 computes for longer than the deadline, and then waits for half as long. False: on a loaded machine that was no
 * half, and it waited in vain. */
static bool compute_beyond(double deadline, bool progress_thread, const struct shape *shape)
{
    struct transport *transports[2];
    struct crank crank = {.workers = 2};
    struct collective *c[2];
    float data[100] = {0};
    pthread_t thread;
    EXPECT_OK(loopback_open(2, LOOPBACK_IN_ORDER, 1, transports));
    for (int r = 0; r < 2; r++) {
        const struct comm_request request = {
            .transport = transports[r], .deadline = deadline, .progress_thread = progress_thread};
        EXPECT_OK(comm_open(&request, &crank.comm[r]));
        make(&crank, r, shape, "ring", 100, DTYPE_F32, &c[r]);
    }
    struct late_worker late = {.collective = c[1], .late = 1.5 * deadline};
    EXPECT_OK(collective_start(c[0], data, data));
    cr_assert_eq(pthread_create(&thread, NULL, late_worker, &late), 0);
    clock_sleep_ns((uint64_t)(1.25 * deadline * 1e9));
    const enum status status = collective_wait(c[0]);
    pthread_join(thread, NULL);
    cr_assert(status == STATUS_OK || status == STATUS_TIMEOUT, "%s", status_message());
    collective_destroy(c[0]);
    collective_destroy(c[1]);
    crank_close(&crank);
    return status == STATUS_OK && late.status == STATUS_OK;
}

/* The deadline is one of waiting: not of computing between start and wait, with a progress thread or without. */
Test(executor, deadline_leaves_computing_alone)
{
    struct shape *shape = flat_shape("ring", 2);
    for (int threads = 0; threads < 2; threads++) {
        bool waited = false;
        for (int turn = 0; !waited && turn < 3; turn++)
            waited = compute_beyond(0.4 * (1 << (2 * turn)), threads > 0, shape);
        cr_expect(waited, "%d threads: %s", threads, status_message());
    }
    shape_destroy(shape);
}

/* Whose tags could be told apart no more. */
Test(executor, too_many_under_way_are_refused)
{
    enum { N = 4097 };
    struct crank crank;
    struct shape *shape = flat_shape("ring", 2);
    static struct collective *c[N];
    static float data[N];
    crank_open(&crank, 2, LOOPBACK_IN_ORDER, 0, 0);
    for (int k = 0; k < N; k++) {
        make(&crank, 0, shape, "ring", 1, DTYPE_F32, &c[k]);
        if (k < N - 1)
            EXPECT_OK(collective_start(c[k], &data[k], &data[k]));
    }
    EXPECT_FAIL(STATUS_USAGE, "oldest", collective_start(c[N - 1], &data[N - 1], &data[N - 1]));
    for (int k = 0; k < N; k++)
        collective_destroy(c[k]);
    crank_close(&crank);
    shape_destroy(shape);
}

/* Worker 1 gives up after `steps` steps of worker 0, which goes on and may still send what was granted. */
static void give_up_after(const struct shape *shape, int steps)
{
    enum { COUNT = 20000 };
    struct transport *transports[2];
    struct crank crank = {.workers = 2};
    struct collective *c[2];
    float *data[2];
    EXPECT_OK(loopback_open(2, LOOPBACK_IN_ORDER, 1, transports));
    for (int r = 0; r < 2; r++) {
        const struct comm_request request = {.transport = transports[r], .segment = 16384, .deadline = 0.02};
        EXPECT_OK(comm_open(&request, &crank.comm[r]));
        data[r] = calloc(COUNT, sizeof(float));
        cr_assert_not_null(data[r]);
        make(&crank, r, shape, "rhd", COUNT, DTYPE_F32, &c[r]);
        EXPECT_OK(collective_start(c[r], data[r], data[r]));
    }
    for (int i = 0; i < steps; i++)
        for (int r = 1; r >= 0; r--)
            (void)!collective_test(c[r]);
    const enum status status = collective_wait(c[1]);
    cr_assert(status == STATUS_OK || status == STATUS_TIMEOUT, "%s", status_message());
    collective_destroy(c[1]);
    free(data[1]);
    for (int i = 0; status == STATUS_TIMEOUT && i < 50; i++)
        (void)!collective_test(c[0]);
    collective_destroy(c[0]);
    crank_close(&crank);
    free(data[0]);
}

/* After a failure no receive stands in memory that is no longer ours (seen by the address sanitizer). */
Test(executor, receives_are_called_off_after_a_failure)
{
    struct shape *shape = flat_shape("rhd", 2);
    for (int steps = 0; steps < 12; steps++)
        give_up_after(shape, steps);
    shape_destroy(shape);
}

/* Whoever fails for another reason may free what is under way: the comm stops, and the reason's words stay. */
Test(executor, destroyed_under_way_ends_the_comm)
{
    struct crank crank;
    struct shape *shape = flat_shape("ring", 2);
    struct collective *c[2];
    float data[2][100] = {{0}};
    crank_open(&crank, 2, LOOPBACK_IN_ORDER, 0, 0);
    for (int k = 0; k < 2; k++)
        make(&crank, 0, shape, "ring", 100, DTYPE_F32, &c[k]);
    EXPECT_OK(collective_start(c[0], data[0], data[0]));
    cr_assert_eq(fail(STATUS_IO, "disk full"), STATUS_IO);
    collective_destroy(c[0]);
    cr_assert_str_eq(status_message(), "disk full");
    EXPECT_FAIL(STATUS_INTERRUPTED, "under way", collective_start(c[1], data[1], data[1]));
    collective_destroy(c[1]);
    crank_close(&crank);
    shape_destroy(shape);
}

Test(executor, bad_buffers_are_refused)
{
    struct crank crank;
    struct shape *shape = flat_shape("ring", 1);
    struct collective *c;
    double data[20] = {0};
    crank_open(&crank, 1, LOOPBACK_IN_ORDER, 0, 0);
    make(&crank, 0, shape, "ring", 10, DTYPE_F64, &c);
    EXPECT_FAIL(STATUS_USAGE, "overlap", collective_start(c, data, data + 5));
    EXPECT_FAIL(STATUS_USAGE, "aligned", collective_start(c, (char *)data + 4, data + 10));
    EXPECT_FAIL(STATUS_USAGE, "missing", collective_start(c, NULL, data));
    collective_destroy(c);
    crank_close(&crank);
    shape_destroy(shape);
}
