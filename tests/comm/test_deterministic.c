/* test_deterministic.c - what deterministic=1 promises: random floats give the same bits alone and inside a larger vector,
 * on all workers. Every schedule of the catalogue that takes it, on loopback with shuffled delivery.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"
#include "base/rng.h"
#include "comm/comm.h"
#include "comm/transport.h"
#include "tests/base/expect.h"

enum { WORKERS_MOST = 8, WHOLE = 5003, FIRST = 1237, PART = 997 };

struct crank {
    int workers;
    struct comm *comm[WORKERS_MOST];
};

static void crank_open(struct crank *crank, int workers)
{
    struct transport *transports[WORKERS_MOST];
    crank->workers = workers;
    EXPECT_OK(loopback_open(workers, LOOPBACK_SHUFFLED, 7, transports));
    for (int r = 0; r < workers; r++) {
        const struct comm_request request = {.transport = transports[r], .segment = 2048, .window = 3, .deadline = 20};
        EXPECT_OK(comm_open(&request, &crank->comm[r]));
    }
}

static void crank_close(struct crank *crank)
{
    for (int r = 0; r < crank->workers; r++)
        comm_close(crank->comm[r]);
}

/* Values of many magnitudes, so that the order in which they are added up shows. */
static float value(int rank, size_t i)
{
    const uint64_t key = rng_key(11, "deterministic", (uint64_t)rank, 0);
    return (float)((rng_uniform(key, 2 * i) - 0.5) * (double)(1 << rng_below(key, 2 * i + 1, 16)));
}

/* Elements first .. first+count-1 of every worker's vector, reduced in place: vector[r] is worker r's, caller frees. */
static void reduce(struct crank *crank, const struct shape *shape, size_t first, size_t count, float **vector)
{
    struct collective *collective[WORKERS_MOST];
    int left = crank->workers;
    for (int r = 0; r < crank->workers; r++) {
        const struct collective_request request = {.team = comm_world(crank->comm[r]),
                                                   .shape = shape,
                                                   .name = "deterministic",
                                                   .count = count,
                                                   .dtype = DTYPE_F32,
                                                   .op = REDUCE_SUM};
        vector[r] = malloc(count * sizeof(float));
        for (size_t i = 0; i < count; i++)
            vector[r][i] = value(r, first + i);
        EXPECT_OK(collective_create(&request, &collective[r]));
        EXPECT_OK(collective_start(collective[r], vector[r], vector[r]));
    }
    for (long rounds = 0; left > 0 && rounds < 200000; rounds++) {
        left = 0;
        for (int r = 0; r < crank->workers; r++) {
            const enum status status = collective_test(collective[r]);
            cr_assert_geq(status, 0, "%s", status_message());
            left += status == STATUS_AGAIN;
        }
    }
    cr_assert_eq(left, 0);
    for (int r = 0; r < crank->workers; r++)
        collective_destroy(collective[r]);
}

static bool same_bits(const void *a, const void *b, size_t count)
{
    cr_assert(a != NULL && b != NULL);
    return memcmp(a, b, count * sizeof(float)) == 0;
}

static void expect_same_bits(const char *text, const struct shape *shape)
{
    struct crank crank;
    float *whole[WORKERS_MOST], *part[WORKERS_MOST];
    crank_open(&crank, shape->workers);
    reduce(&crank, shape, 0, WHOLE, whole);
    reduce(&crank, shape, FIRST, PART, part);
    for (int r = 0; r < shape->workers; r++) {
        cr_expect(same_bits(whole[r] + FIRST, part[r], PART), "%s: worker %d of %d", text, r, shape->workers);
        cr_expect(same_bits(whole[0], whole[r], WHOLE), "%s: worker %d of %d", text, r, shape->workers);
    }
    for (int r = 0; r < shape->workers; r++) {
        free(whole[r]);
        free(part[r]);
    }
    crank_close(&crank);
}

/* Whether the spec takes deterministic=1 on this team; then it must keep the promise. */
static bool keeps_promise(const char *text, const char *nodes)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape = NULL;
    EXPECT_OK(spec_parse(text, &spec));
    EXPECT_OK(layout_parse(nodes, 0, &layout));
    const enum status status = spec_shape(&spec, &layout, 0, WHOLE, &shape);
    cr_expect(status == STATUS_OK || status == STATUS_REFUSED, "%s", status_message());
    if (shape != NULL)
        expect_same_bits(text, shape);
    shape_destroy(shape);
    layout_release(&layout);
    spec_release(&spec);
    return status == STATUS_OK;
}

Test(deterministic, every_schedule_that_takes_it_keeps_it)
{
    static const char *const nodes[] = {"1x1", "1x2", "1x3", "1x5", "1x7", "1x8"};
    size_t count, kept = 0;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t a = 0; a < count; a++)
        for (size_t n = 0; n < sizeof nodes / sizeof nodes[0]; n++) {
            char text[100];
            if ((algorithms[a]->traits & TRAIT_NEEDS_FILE) != 0)
                continue;
            (void)snprintf(text, sizeof text, "%s:deterministic=1", algorithms[a]->name);
            kept += keeps_promise(text, nodes[n]);
        }
    cr_expect_geq(kept, 18);
}

Test(deterministic, hierarchies_of_deterministic_parts_keep_it)
{
    static const char *const nodes[] = {"2x2", "2x3", "4x2", "3+3+2", "4+1"};
    for (size_t n = 0; n < sizeof nodes / sizeof nodes[0]; n++) {
        cr_expect(keeps_promise("hierarchical:intra=binomial,inter=rd,deterministic=1", nodes[n]));
        cr_expect(keeps_promise("hierarchical:intra=naive,inter=rhd,deterministic=1", nodes[n]));
        cr_expect_not(keeps_promise("hierarchical:intra=binomial,inter=ring,deterministic=1", nodes[n]));
    }
}

Test(deterministic, ring_would_not_keep_it)
{
    /* The test can fail: without the refusal a ring's bits differ. */
    struct spec spec;
    struct layout layout;
    struct shape *shape = NULL;
    struct crank crank;
    float *whole[WORKERS_MOST] = {NULL}, *part[WORKERS_MOST] = {NULL};
    EXPECT_OK(spec_parse("ring", &spec));
    EXPECT_OK(layout_flat(5, &layout));
    EXPECT_OK(spec_shape(&spec, &layout, 0, WHOLE, &shape));
    crank_open(&crank, 5);
    reduce(&crank, shape, 0, WHOLE, whole);
    reduce(&crank, shape, FIRST, PART, part);
    cr_assert(whole[0] != NULL && part[0] != NULL);
    cr_expect(!same_bits(whole[0] + FIRST, part[0], PART));
    for (int r = 0; r < 5; r++) {
        free(whole[r]);
        free(part[r]);
    }
    crank_close(&crank);
    shape_destroy(shape);
    layout_release(&layout);
    spec_release(&spec);
}
