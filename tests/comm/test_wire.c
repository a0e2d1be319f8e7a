/* test_wire.c - collectives with wire formats, over the catalogue, on networks and in nodes (loopback): exact data come
 * out exactly, all workers end with equal bits, traffic is what was encoded, overflow is counted, residuals make up for
 * what was left out, and what can't be is refused.
 */
#include "comm/comm.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"
#include "base/half.h"
#include "base/rng.h"
#include "comm/transport.h"
#include "tests/base/expect.h"

enum { MOST = 8, LONGEST = 20011 };

struct crank {
    int workers;
    struct comm *comm[MOST];
};

static float input[MOST][LONGEST], output[MOST][LONGEST];

static void crank_open(struct crank *crank, int workers, enum loopback_mode mode, size_t segment)
{
    struct transport *transports[MOST];
    crank->workers = workers;
    EXPECT_OK(loopback_open(workers, mode, 42, transports));
    for (int r = 0; r < workers; r++) {
        const struct comm_request request = {
            .transport = transports[r], .segment = segment, .window = 2, .deadline = 20};
        EXPECT_OK(comm_open(&request, &crank->comm[r]));
    }
}

static void crank_close(struct crank *crank)
{
    for (int r = 0; r < crank->workers; r++)
        comm_close(crank->comm[r]);
}

/* NULL: refused for this number of workers. */
static struct shape *shape_of(const char *text, int workers)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape = NULL;
    EXPECT_OK(spec_parse(text, &spec));
    EXPECT_OK(layout_flat(workers, &layout));
    const enum status status = spec_shape(&spec, &layout, 0, LONGEST, &shape);
    cr_assert(status == STATUS_OK || status == STATUS_REFUSED, "%s", status_message());
    layout_release(&layout);
    spec_release(&spec);
    return shape;
}

/* Released when the test ends: each runs in a process of its own. */
static struct wire_format formats[64];
static size_t format_count;

static struct wire_format format_of(const char *text)
{
    cr_assert_lt(format_count, 64);
    EXPECT_OK(wire_format_parse(text, &formats[format_count]));
    return formats[format_count++];
}

static void release_formats(void)
{
    while (format_count > 0)
        wire_format_release(&formats[--format_count]);
}

TestSuite(wire, .fini = release_formats);

static enum status create(struct crank *crank, const struct shape *shape, const struct wire_format *format,
                          size_t count, enum reduce_op op, struct collective **c)
{
    enum status status = STATUS_OK;
    for (int r = 0; r < crank->workers; r++)
        c[r] = NULL;
    for (int r = 0; r < crank->workers && status >= 0; r++) {
        const struct collective_request request = {.team = comm_world(crank->comm[r]),
                                                   .shape = shape,
                                                   .name = "call",
                                                   .count = count,
                                                   .dtype = DTYPE_F32,
                                                   .op = op,
                                                   .wire = format};
        status = collective_create(&request, &c[r]);
    }
    return status;
}

static void destroy(const struct crank *crank, struct collective **c)
{
    for (int r = 0; r < crank->workers; r++)
        collective_destroy(c[r]);
}

static void run(struct crank *crank, struct collective **c, bool in_place, const char *name)
{
    for (int r = 0; r < crank->workers; r++) {
        if (in_place)
            memcpy(output[r], input[r], sizeof output[r]);
        EXPECT_OK(collective_start(c[r], in_place ? output[r] : input[r], output[r]));
    }
    int left = crank->workers;
    for (long rounds = 0; left > 0; rounds++) {
        left = 0;
        cr_assert_lt(rounds, 200000, "%s does not end", name);
        for (int r = 0; r < crank->workers; r++) {
            const enum status status = collective_test(c[r]);
            cr_assert_geq(status, 0, "%s: %s", name, status_message());
            left += status == STATUS_AGAIN;
        }
    }
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void expect_equal_bits(int workers, size_t count, const char *name)
{
    for (int r = 1; r < workers; r++)
        for (size_t i = 0; i < count; i++)
            cr_assert_eq(bits_of(output[r][i]), bits_of(output[0][i]),
                         "%s, %d workers, %zu elements: element %zu is %a on worker %d, %a on worker 0", name, workers,
                         count, i, (double)output[r][i], r, (double)output[0][i]);
}

static void fill_random(int workers, size_t count, uint64_t seed)
{
    for (int r = 0; r < workers; r++)
        for (size_t i = 0; i < count; i++)
            input[r][i] = (float)rng_normal(seed + (uint64_t)r, i);
}

/* Whole numbers whose sums bf16 holds. */
static long whole(int rank, size_t i)
{
    return (long)((i * 7 + (size_t)rank * 13 + i / 11) % 17) - 8;
}

static void fill_whole(int workers, size_t count)
{
    for (int r = 0; r < workers; r++)
        for (size_t i = 0; i < count; i++)
            input[r][i] = (float)whole(r, i);
}

/* ---- halves, every schedule ---- */

struct half_case {
    const char *spec;
    int workers;
    const char *format;
};

static float rounded(const struct wire_format *format, float value)
{
    unsigned char bytes[16];
    float decoded = 0;
    const size_t length = wire_format_encode(format, 0, &value, 1, bytes);
    EXPECT_OK(wire_format_decode(format, bytes, length, &decoded, 1));
    return decoded;
}

static void expect_whole(const struct half_case *c, const struct wire_format *format, size_t count, enum reduce_op op)
{
    for (size_t i = 0; i < count; i++) {
        long total = 0, most = -100;
        for (int r = 0; r < c->workers; r++) {
            total += whole(r, i);
            most = whole(r, i) > most ? whole(r, i) : most;
        }
        const float mean = (float)total / (float)c->workers;
        const float wanted = op == REDUCE_SUM ? (float)total : op == REDUCE_AVG ? rounded(format, mean) : (float)most;
        cr_assert_eq(output[0][i], wanted, "%s as %s, %d workers, %s of %zu: element %zu is %g, not %g", c->spec,
                     c->format, c->workers, reduce_op_name(op), count, i, (double)output[0][i], (double)wanted);
    }
}

static void expect_half_traffic(const struct half_case *c, struct collective **calls, const struct shape *shape,
                                size_t count)
{
    for (int r = 0; r < c->workers; r++) {
        struct collective_traffic traffic;
        size_t bytes = 0, messages = 0;
        collective_traffic(calls[r], &traffic);
        EXPECT_OK(shape_traffic(shape, r, count, 2, &bytes, &messages));
        cr_assert_eq(traffic.bytes_sent, bytes, "%s, worker %d of %d sent %zu bytes, half of the schedule's are %zu",
                     c->spec, r, c->workers, traffic.bytes_sent, bytes);
        cr_assert_eq(traffic.messages_sent, messages);
    }
}

/* Exact where partial sums are, the mean rounded once; equal bits with any data; half of the bytes. */
static void run_half(const struct half_case *c)
{
    static const enum reduce_op ops[] = {REDUCE_SUM, REDUCE_AVG, REDUCE_MAX};
    const enum loopback_mode modes[] = {LOOPBACK_SHUFFLED, LOOPBACK_NODE,
                                        c->workers % 2 == 0 ? LOOPBACK_DELAYED : LOOPBACK_HOSTS};
    const size_t counts[] = {0, 1, (size_t)c->workers + 1, 1000, LONGEST};
    struct wire_format format = format_of(c->format);
    struct shape *shape = shape_of(c->spec, c->workers);
    for (int m = 0; m < 3 && shape != NULL; m++) {
        struct crank crank;
        crank_open(&crank, c->workers, modes[m], m == 2 ? 3000 : 16384);
        for (size_t k = 0; k < (m == 2 ? 4 : 5); k++)
            for (int o = 0; o < 3; o++) {
                struct collective *calls[MOST];
                if (counts[k] == LONGEST && (o + c->workers + m) % 3 != 0)
                    continue; /* a third of the long ones */
                const bool in_place = (k + (size_t)o + (size_t)c->workers) % 2 == 0;
                EXPECT_OK(create(&crank, shape, &format, counts[k], ops[o], calls));
                fill_whole(c->workers, counts[k]);
                run(&crank, calls, in_place, c->spec);
                expect_whole(c, &format, counts[k], ops[o]);
                expect_half_traffic(c, calls, shape, counts[k]);
                fill_random(c->workers, counts[k], k);
                run(&crank, calls, !in_place, c->spec);
                if (shape->traits & TRAIT_EQUAL_BITS)
                    expect_equal_bits(c->workers, counts[k], c->spec);
                for (size_t i = 0; c->workers > 1 && i < counts[k]; i++)
                    cr_assert_eq(output[0][i], rounded(&format, output[0][i]), "%s: no value of %s", c->spec,
                                 c->format);
                destroy(&crank, calls);
            }
        crank_close(&crank);
    }
    shape_destroy(shape);
}

/* A test for each schedule: where starting a test takes long (sanitizers), one for each case takes longer. */
struct half_schedule {
    char spec[40];
    size_t number;
};

ParameterizedTestParameters(wire, halves)
{
    size_t algorithms = 0, n = 0;
    const struct algorithm *const *list = catalogue_algorithms(&algorithms);
    struct half_schedule *schedules = cr_malloc(algorithms * sizeof *schedules);
    for (size_t a = 0; a < algorithms; a++) {
        if (!algorithm_in_all(list[a]))
            continue;
        snprintf(schedules[n].spec, sizeof schedules[n].spec, "%s", list[a]->name);
        schedules[n++].number = a;
    }
    return cr_make_param_array(struct half_schedule, schedules, n);
}

ParameterizedTest(struct half_schedule *schedule, wire, halves)
{
    static const int sizes[] = {1, 2, 3, 5, 6, 7, 8};
    for (size_t s = 0; s < 14; s++) {
        const struct half_case c = {schedule->spec, sizes[s % 7], s < 7 ? "f16" : "bf16"};
        if (s < 7 || (schedule->number + s) % 3 == 0) /* bf16: a third of them */
            run_half(&c);
    }
}

/* ---- overflow ---- */

static struct codec_statistics run_constant(enum reduce_op op, float value)
{
    enum { P = 4, COUNT = 100 };
    struct crank crank;
    struct collective *c[P];
    struct wire_format format = format_of("f16");
    struct shape *shape = shape_of("ring", P);
    struct codec_statistics sum = {0};
    crank_open(&crank, P, LOOPBACK_IN_ORDER, 0);
    EXPECT_OK(create(&crank, shape, &format, COUNT, op, c));
    for (int r = 0; r < P; r++)
        for (size_t i = 0; i < COUNT; i++)
            input[r][i] = value;
    run(&crank, c, false, "ring");
    for (int r = 0; r < P; r++) {
        struct collective_traffic traffic;
        collective_traffic(c[r], &traffic);
        codec_statistics_add(&sum, &traffic.wire);
    }
    destroy(&crank, c);
    crank_close(&crank);
    shape_destroy(shape);
    return sum;
}

/* A sum that f16 can't hold is counted, and infinite on all workers; a mean that it can hold is exact. */
Test(wire, overflow_is_counted_and_means_do_not)
{
    struct codec_statistics s = run_constant(REDUCE_SUM, 40000);
    cr_expect_gt(s.infinite, 0);
    for (int r = 0; r < 4; r++)
        for (size_t i = 0; i < 100; i++)
            cr_assert(isinf(output[r][i]));
    s = run_constant(REDUCE_AVG, 57344);
    cr_expect(s.infinite == 0 && s.nan == 0 && s.worst == 0);
    for (size_t i = 0; i < 100; i++)
        cr_assert_eq(output[3][i], 57344);
    s = run_constant(REDUCE_SUM, 1e-9F);
    cr_expect_gt(s.flushed, 0);
    s = run_constant(REDUCE_SUM, NAN);
    cr_expect_gt(s.nan, 0);
    s = run_constant(REDUCE_SUM, 1.0F / 3);
    cr_expect(s.worst > 1e-5 && s.worst < 0x1p-11, "%g", s.worst);
}

/* ---- error feedback ---- */

static const char *const with_feedback[] = {"top-k:ratio=0.1", "random-k:ratio=0.2", "sign", "int8"};
static const char *const whole_inputs[] = {"naive", "pairwise", "one-shot", "all-pairs"};

static double distance(const double *a, double factor, const double *b, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (a[i] * factor - b[i]) * (a[i] * factor - b[i]);
    return sqrt(sum);
}

/* Equal bits in every run; what was left out comes later: the mean of many runs goes to the exact one as 1 / runs. */
static void check_feedback(const char *spec, const char *format_text, int workers, enum loopback_mode mode)
{
    enum { COUNT = 1500, RUNS = 60 };
    static double exact[COUNT], sum[COUNT];
    struct crank crank;
    struct collective *c[MOST];
    struct wire_format format = format_of(format_text);
    struct shape *shape = shape_of(spec, workers);
    double far = 0;
    memset(exact, 0, sizeof exact);
    memset(sum, 0, sizeof sum);
    crank_open(&crank, workers, mode, 2048);
    EXPECT_OK(create(&crank, shape, &format, COUNT, REDUCE_AVG, c));
    fill_random(workers, COUNT, 7);
    for (int r = 0; r < workers; r++)
        for (size_t i = 0; i < COUNT; i++)
            exact[i] += (double)input[r][i] / workers;
    for (int t = 0; t < RUNS; t++) {
        run(&crank, c, t % 2 == 0, spec);
        expect_equal_bits(workers, COUNT, spec);
        for (size_t i = 0; i < COUNT; i++)
            sum[i] += (double)output[0][i];
        if (t == 0)
            far = distance(sum, 1, exact, COUNT);
    }
    const double near = distance(sum, 1.0 / RUNS, exact, COUNT);
    cr_expect(far > 0 && near < far / 3, "%s as %s, %d workers: %g from the mean after one run, %g after %d", spec,
              format_text, workers, far, near, RUNS);
    struct collective_traffic traffic;
    collective_traffic(c[1], &traffic);
    cr_expect(traffic.wire.worst > 0 && traffic.wire.worst <= 1 + 1e-6, "%g", traffic.wire.worst);
    destroy(&crank, c);
    crank_close(&crank);
    shape_destroy(shape);
}

Test(wire, residuals_make_up_for_what_was_left_out)
{
    static const int sizes[] = {2, 3, 5, 7};
    static const enum loopback_mode modes[] = {LOOPBACK_SHUFFLED, LOOPBACK_NODE, LOOPBACK_HOSTS};
    for (size_t f = 0; f < 4; f++)
        for (size_t s = 0; s < 4; s++)
            check_feedback(whole_inputs[s], with_feedback[f], sizes[(s + f) % 4], modes[(2 * f + s) % 3]);
}

/* By hand: top-1 of three elements, two workers, worker 0 adds and spreads. */
/* All that there is travels, in more bytes than it has: with an index for each element, or a key for each segment. */
Test(wire, segments_have_room_for_what_is_longer_when_encoded)
{
    enum { P = 3 };
    static const enum loopback_mode modes[] = {LOOPBACK_SHUFFLED, LOOPBACK_NODE};
    static const char *const texts[] = {"top-k:ratio=1", "random-k:ratio=1"};
    for (int i = 0; i < 4; i++) {
        struct crank crank;
        struct collective *calls[P];
        const struct half_case c = {.spec = "naive", .workers = P, .format = texts[i / 2]};
        const struct wire_format format = format_of(c.format);
        struct shape *shape = shape_of(c.spec, P);
        crank_open(&crank, P, modes[i % 2], 1024);
        fill_whole(P, LONGEST);
        EXPECT_OK(create(&crank, shape, &format, LONGEST, REDUCE_SUM, calls));
        run(&crank, calls, false, c.format);
        expect_whole(&c, &format, LONGEST, REDUCE_SUM);
        expect_equal_bits(P, LONGEST, c.format);
        destroy(&crank, calls);
        crank_close(&crank);
        shape_destroy(shape);
    }
}

Test(wire, residuals_by_hand)
{
    struct crank crank;
    struct collective *c[2];
    struct wire_format format = format_of("top-k:ratio=0.1");
    struct shape *shape = shape_of("naive", 2);
    crank_open(&crank, 2, LOOPBACK_IN_ORDER, 0);
    EXPECT_OK(create(&crank, shape, &format, 3, REDUCE_SUM, c));
    /*            worker 1 sends         worker 0 spreads
     *   run 0    5 of (2 1 5)           9 of (1 0 4) + (0 0 5)
     *   run 1    5 of (2 1 5)+(2 1 0)   9 of (1 0 4) + (0 0 5) + (1 0 0)
     *   run 2    6 of (2 1 5)+(4 2 0)   9 of (1 0 4) + (6 0 0) + (2 0 0) */
    for (int t = 0; t < 3; t++) {
        const float zero[3] = {1, 0, 4}, one[3] = {2, 1, 5};
        memcpy(input[0], zero, sizeof zero);
        memcpy(input[1], one, sizeof one);
        run(&crank, c, t == 1, "naive");
        expect_equal_bits(2, 3, "naive");
        for (size_t i = 0; i < 3; i++)
            cr_expect_eq(output[0][i], t < 2 ? (float)(i == 2 ? 9 : 0) : (float)(i == 0 ? 9 : 0),
                         "run %d element %zu is %g", t, i, (double)output[0][i]);
    }
    destroy(&crank, c);
    crank_close(&crank);
    shape_destroy(shape);
}

/* ---- mixing ---- */

/* Every worker's share is mixed as the others decode it, its own included: the sum over the workers is kept. */
Test(wire, mixing_is_of_what_travels)
{
    enum { P = 5, COUNT = 700 };
    static const char *const texts[] = {"f16", "int8", "top-k:ratio=0.25"};
    for (size_t f = 0; f < 3; f++) {
        struct crank crank;
        struct collective *c[P];
        struct wire_format format = format_of(texts[f]);
        struct shape *shape = shape_of("gossip:graph=ring", P);
        static float decoded[P][COUNT];
        static unsigned char bytes[8 * COUNT];
        crank_open(&crank, P, LOOPBACK_NODE, 65536);
        EXPECT_OK(create(&crank, shape, &format, COUNT, REDUCE_SUM, c));
        fill_random(P, COUNT, 5);
        for (int r = 0; r < P; r++) {
            const size_t length = wire_format_encode(&format, 0, input[r], COUNT, bytes);
            EXPECT_OK(wire_format_decode(&format, bytes, length, decoded[r], COUNT));
        }
        run(&crank, c, false, texts[f]);
        for (int r = 0; r < P; r++)
            for (size_t i = 0; i < COUNT; i++) {
                const double wanted =
                    ((double)decoded[(r + 4) % P][i] + (double)decoded[r][i] + (double)decoded[(r + 1) % P][i]) / 3;
                cr_assert_float_eq(output[r][i], wanted, 1e-6, "%s: worker %d element %zu is %g, not %g", texts[f], r,
                                   i, (double)output[r][i], wanted);
            }
        destroy(&crank, c);
        crank_close(&crank);
        shape_destroy(shape);
    }
}

/* ---- what can't be ---- */

Test(wire, refusals_tell_what_can)
{
    struct crank crank;
    struct collective *c[2];
    struct wire_format top = format_of("top-k"), f16 = format_of("f16");
    struct shape *ring = shape_of("ring", 2), *naive = shape_of("naive", 2);
    crank_open(&crank, 2, LOOPBACK_IN_ORDER, 0);
    EXPECT_FAIL(STATUS_REFUSED, "all-pairs", create(&crank, ring, &top, 10, REDUCE_SUM, c));
    EXPECT_FAIL(STATUS_REFUSED, "not min", create(&crank, naive, &top, 10, REDUCE_MIN, c));
    const struct collective_request wide = {.team = comm_world(crank.comm[0]),
                                            .shape = ring,
                                            .name = "ring",
                                            .count = 10,
                                            .dtype = DTYPE_F64,
                                            .op = REDUCE_SUM,
                                            .wire = &f16};
    EXPECT_FAIL(STATUS_REFUSED, "made from f32", collective_create(&wide, &c[0]));
    crank_close(&crank);
    shape_destroy(ring);
    shape_destroy(naive);
}

/* Workers with different formats are told both. */
Test(wire, mismatch_names_both_formats)
{
    struct crank crank;
    struct collective *c[2];
    struct wire_format either[2] = {format_of("f16"), format_of("bf16")};
    struct shape *shape = shape_of("ring", 2);
    enum status status = STATUS_OK;
    crank_open(&crank, 2, LOOPBACK_IN_ORDER, 0);
    for (int r = 0; r < 2; r++) {
        const struct collective_request request = {.team = comm_world(crank.comm[r]),
                                                   .shape = shape,
                                                   .name = "ring",
                                                   .count = 1000,
                                                   .dtype = DTYPE_F32,
                                                   .op = REDUCE_SUM,
                                                   .wire = &either[r]};
        EXPECT_OK(collective_create(&request, &c[r]));
        status = collective_start(c[r], input[r], output[r]);
    }
    for (int i = 0; status >= 0 && i < 2000; i++)
        status = collective_test(c[i % 2]);
    cr_expect_eq(status, STATUS_MISMATCH);
    cr_expect_not_null(strstr(status_message(), "as f16"), "%s", status_message());
    cr_expect_not_null(strstr(status_message(), "as bf16"), "%s", status_message());
    destroy(&crank, c);
    crank_close(&crank);
    shape_destroy(shape);
}
