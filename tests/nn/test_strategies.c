/* test_strategies.c - the mathematics of each strategy on small vectors and two workers, and buckets. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"
#include "base/memory.h"
#include "nn/exchange.h"
#include "nn/strategies/method.h"
#include "tests/base/expect.h"

enum { WORKERS = 2, COUNT = 6, STEPS = 7 };

static struct tensor tensors[] = {
    {.name = "a", .offset = 0, .count = 4, .decays = true},
    {.name = "b", .offset = 4, .count = 2, .decays = false},
};
static struct layer layers[] = {{.kind = LAYER_LINEAR}};
static const struct model model = {.layer = layers, .layers = 1, .tensor = tensors, .tensors = 2, .parameters = COUNT};
static const struct learning_rate rate = {.rate = 0.5, .global_batch = 256, .warmup = 3};
#define MOMENTUM 0.5F
#define DECAY 0.25F

/* One worker whose exchanges bring what the test says: result[step % 2] lies in the vector after the wait. */
struct member {
    struct replica replica;
    float parameters[COUNT], gradient[2][COUNT];
    float result[2][COUNT];
    struct exchanger exchanger;

    float *vector;       /* under way */
    float before[COUNT]; /* what it held at the start */
    uint64_t step;
    int starts, waits;
};

static enum status member_start(void *context, uint64_t step, float *vector)
{
    struct member *member = context;
    cr_expect_null(member->vector, "one exchange is under way at a time");
    member->vector = vector;
    member->step = step;
    memcpy(member->before, vector, sizeof member->before);
    member->starts++;
    return STATUS_OK;
}

static enum status member_wait(void *context)
{
    struct member *member = context;
    cr_assert_not_null(member->vector, "nothing is under way");
    cr_expect_arr_eq(member->vector, member->before, sizeof member->before, "touched while under way");
    memcpy(member->vector, member->result[member->step % 2], sizeof member->result[0]);
    member->vector = NULL;
    member->waits++;
    return STATUS_OK;
}

static void members_open(struct member *members)
{
    for (int r = 0; r < WORKERS; r++) {
        struct member *member = &members[r];
        *member = (struct member){.starts = 0};
        for (int i = 0; i < COUNT; i++)
            member->parameters[i] = (float)(i + 1) * 0.25F;
        member->replica = (struct replica){
            .parameters = member->parameters, .gradient = {member->gradient[0], member->gradient[1]}, .rate = &rate};
        EXPECT_OK(optimizer_create(
            &model, &(struct optimizer_settings){.momentum = (double)MOMENTUM, .weight_decay = (double)DECAY}, NULL,
            &member->replica.optimizer));
        member->exchanger = (struct exchanger){.context = member, .start = member_start, .wait = member_wait};
    }
}

static void members_close(struct member *members)
{
    for (int r = 0; r < WORKERS; r++)
        optimizer_destroy(members[r].replica.optimizer);
}

/* A gradient that depends on worker, step and parameters: a stale one differs. */
static void make_gradient(int rank, uint64_t step, const float *parameters, float *gradient)
{
    for (int i = 0; i < COUNT; i++)
        gradient[i] = parameters[i] * (rank == 0 ? 0.5F : -0.25F) + 0.125F * (float)(step % 3);
}

static void mean_gradient(uint64_t step, const float *parameters, float *mean)
{
    float g[WORKERS][COUNT];
    for (int r = 0; r < WORKERS; r++)
        make_gradient(r, step, parameters, g[r]);
    for (int i = 0; i < COUNT; i++)
        mean[i] = (g[0][i] + g[1][i]) / 2.0F;
}

static void update(float *w, float *u, const float *g, uint64_t step)
{
    for (int i = 0; i < COUNT; i++) {
        float decay = i < 4 ? DECAY : 0.0F;
        u[i] = MOMENTUM * u[i] + (g[i] + decay * w[i]);
        w[i] = w[i] - (float)learning_rate_at(&rate, step) * u[i];
    }
}

/* The method and the plan of `spec` in `step`. */
static const struct method *method_of(const char *name, uint64_t step, struct step_plan *plan)
{
    const struct method *method = NULL;
    struct spec spec;
    EXPECT_OK(method_find(name, &method));
    cr_assert_not_null(method);
    EXPECT_OK(spec_parse(name, &spec));
    cr_assert_eq(spec.kind, SPEC_STRATEGY);
    EXPECT_OK(spec.strategy->plan(&spec.options, step, plan));
    spec_release(&spec);
    return method;
}

Test(synchronous, applies_the_mean_of_this_step)
{
    struct member members[WORKERS];
    struct step_plan plan;
    float w[COUNT], u[COUNT] = {0}, mean[COUNT];
    members_open(members);
    memcpy(w, members[0].parameters, sizeof w);
    for (uint64_t step = 0; step < STEPS; step++) {
        const struct method *method = method_of("synchronous", step, &plan);
        mean_gradient(step, w, mean);
        update(w, u, mean, step);
        for (int r = 0; r < WORKERS; r++) {
            bool finite = true;
            make_gradient(r, step, members[r].parameters, members[r].gradient[0]);
            memcpy(members[r].result[step % 2], mean, sizeof mean);
            EXPECT_OK(method->step(&members[r].replica, &members[r].exchanger, &plan, step, &finite));
            cr_expect(finite);
            cr_expect_arr_eq(members[r].parameters, w, sizeof w, "step %d", (int)step);
            cr_expect_null(members[r].vector, "nothing is under way after a step");
        }
    }
    members_close(members);
}

Test(double_buffered, is_its_definition)
{
    struct member members[WORKERS];
    struct step_plan plan;
    const struct method *method = NULL;
    float w[COUNT], u[COUNT] = {0}, mean[2][COUNT];
    members_open(members);
    memcpy(w, members[0].parameters, sizeof w);
    for (uint64_t step = 0; step < STEPS; step++) {
        method = method_of("double-buffered", step, &plan);
        mean_gradient(step, w, mean[step % 2]); /* of w(k), before the update */
        if (step > 0)
            update(w, u, mean[(step + 1) % 2], step); /* w(k+1) = w(k) - lr mean g(w(k-1)) */
        for (int r = 0; r < WORKERS; r++) {
            bool finite = true;
            make_gradient(r, step, members[r].parameters, members[r].gradient[step % 2]);
            memcpy(members[r].result[step % 2], mean[step % 2], sizeof mean[0]);
            EXPECT_OK(method->step(&members[r].replica, &members[r].exchanger, &plan, step, &finite));
            cr_expect(finite);
            cr_expect_arr_eq(members[r].parameters, w, sizeof w, "step %d", (int)step);
            cr_expect_eq(members[r].vector, members[r].gradient[step % 2], "it runs during the next step");
        }
    }
    update(w, u, mean[(STEPS + 1) % 2], STEPS); /* the last gradient is applied when training ends */
    for (int r = 0; r < WORKERS; r++) {
        bool finite = true;
        EXPECT_OK(method->finish(&members[r].replica, &members[r].exchanger, STEPS, &finite));
        cr_expect_arr_eq(members[r].parameters, w, sizeof w);
        cr_expect_eq(members[r].waits, STEPS);
    }
    members_close(members);
}

Test(gossip, adapts_then_combines)
{
    struct member members[WORKERS];
    struct step_plan plan;
    float w[WORKERS][COUNT], u[WORKERS][COUNT] = {{0}}, g[COUNT], mixed[WORKERS][COUNT];
    members_open(members);
    for (int r = 0; r < WORKERS; r++)
        memcpy(w[r], members[r].parameters, sizeof w[r]);
    for (uint64_t step = 0; step < STEPS; step++) {
        const struct method *method = method_of("gossip", step, &plan);
        for (int r = 0; r < WORKERS; r++) {
            make_gradient(r, step, w[r], g);
            memcpy(members[r].gradient[0], g, sizeof g);
            update(w[r], u[r], g, step); /* own gradient */
        }
        for (int i = 0; i < COUNT; i++) {
            mixed[0][i] = 0.75F * w[0][i] + 0.25F * w[1][i];
            mixed[1][i] = 0.25F * w[0][i] + 0.75F * w[1][i];
        }
        for (int r = 0; r < WORKERS; r++) {
            bool finite = true;
            memcpy(members[r].result[step % 2], mixed[r], sizeof mixed[r]);
            EXPECT_OK(method->step(&members[r].replica, &members[r].exchanger, &plan, step, &finite));
            cr_expect(finite);
            cr_expect_arr_eq(members[r].before, w[r], sizeof w[r], "what is mixed is the updated copy");
            cr_expect_arr_eq(members[r].parameters, mixed[r], sizeof mixed[r]);
            memcpy(w[r], mixed[r], sizeof w[r]);
        }
    }
    members_close(members);
}

Test(gossip, does_not_infect_its_neighbours)
{
    struct member members[WORKERS];
    struct step_plan plan;
    members_open(members);
    const struct method *method = method_of("gossip", 0, &plan);
    bool finite = true;
    make_gradient(0, 0, members[0].parameters, members[0].gradient[0]);
    members[0].gradient[0][3] = NAN;
    EXPECT_OK(method->step(&members[0].replica, &members[0].exchanger, &plan, 0, &finite));
    cr_expect_not(finite);
    cr_expect_eq(members[0].starts, 0);
    members_close(members);
}

/* A device on which an update is only put: what it has read is known when it is asked for. */
static bool put, spoiled;

static enum status device_alloc(struct device *device, size_t bytes, void **memory)
{
    (void)device;
    return memory_zeroed(memory, 1, bytes);
}

static void device_free(struct device *device, void *memory)
{
    (void)device;
    free(memory);
}

static enum status device_update(struct backend *backend, const struct update *update, const float *gradient,
                                 float *velocity, float *parameters)
{
    (void)backend, (void)velocity, (void)parameters;
    cr_expect_float_eq(update->rate, 0.5 / 3, 1e-12);
    cr_expect(update->momentum == (double)MOMENTUM && update->weight_decay == (double)DECAY && update->trust == 0);
    spoiled = !isfinite(gradient[3]);
    put = true;
    return STATUS_OK;
}

static enum status device_finite(struct backend *backend, bool *finite)
{
    (void)backend;
    cr_expect(put);
    *finite = !spoiled;
    return STATUS_OK;
}

Test(gossip, does_not_infect_its_neighbours_from_a_device)
{
    static const struct device_ops device_ops = {.alloc = device_alloc, .free = device_free};
    static const struct backend_ops ops = {.update = device_update, .updates_finite = device_finite};
    struct device device = {.ops = &device_ops};
    const struct optimizer_device on = {.device = &device, .ops = &ops};
    for (int bad = 0; bad < 2; bad++) {
        struct member members[WORKERS];
        struct step_plan plan;
        bool finite = true;
        members_open(members);
        struct member *member = &members[0];
        optimizer_destroy(member->replica.optimizer);
        EXPECT_OK(optimizer_create(
            &model, &(struct optimizer_settings){.momentum = (double)MOMENTUM, .weight_decay = (double)DECAY}, &on,
            &member->replica.optimizer));
        const struct method *method = method_of("gossip", 0, &plan);
        make_gradient(0, 0, member->parameters, member->gradient[0]);
        member->gradient[0][3] = bad ? NAN : 1;
        put = false;
        EXPECT_OK(method->step(&member->replica, &member->exchanger, &plan, 0, &finite));
        cr_expect_eq(finite, !bad);
        cr_expect_eq(member->starts, !bad);
        members_close(members);
    }
}

Test(methods, an_unknown_strategy_is_refused)
{
    const struct method *method = NULL;
    EXPECT_FAIL(STATUS_REFUSED, "no mathematics", method_find("telepathy", &method));
}

Test(methods, every_strategy_of_the_catalogue_can_be_trained_with)
{
    size_t count = 0;
    const struct strategy *const *strategies = catalogue_strategies(&count);
    for (size_t i = 0; i < count; i++) {
        const struct method *method = NULL;
        EXPECT_OK(method_find(strategies[i]->name, &method));
    }
}

/* ---- buckets ---- */

static struct tensor five_tensors[] = {
    {.offset = 0, .count = 10}, {.offset = 10, .count = 1},  {.offset = 11, .count = 5},
    {.offset = 16, .count = 4}, {.offset = 20, .count = 20},
};
static const struct model five = {.tensor = five_tensors, .tensors = 5, .parameters = 40};

static void expect_buckets(size_t bytes, size_t count, const struct bucket *wanted)
{
    struct bucket *buckets = NULL;
    size_t made = 0;
    EXPECT_OK(bucket_cut(&five, bytes, &buckets, &made));
    cr_assert_not_null(buckets);
    cr_assert_eq(made, count, "%zu buckets of %zu bytes", made, bytes);
    for (size_t b = 0; b < count; b++) {
        cr_expect_eq(buckets[b].offset, wanted[b].offset);
        cr_expect_eq(buckets[b].count, wanted[b].count);
    }
    free(buckets);
}

Test(buckets, are_whole_tensors_from_the_end)
{
    expect_buckets(BUCKET_WHOLE, 1, (const struct bucket[]){{0, 40}});
    expect_buckets(BUCKET_TENSOR, 5, (const struct bucket[]){{20, 20}, {16, 4}, {11, 5}, {10, 1}, {0, 10}});
    expect_buckets(1, 5, (const struct bucket[]){{20, 20}, {16, 4}, {11, 5}, {10, 1}, {0, 10}});
    expect_buckets(40, 3,
                   (const struct bucket[]){{20, 20}, {10, 10}, {0, 10}}); /* 10 elements; 20 is a bucket of its own */
    expect_buckets(96, 2, (const struct bucket[]){{16, 24}, {0, 16}});
    expect_buckets(1 << 20, 1, (const struct bucket[]){{0, 40}});
}

Test(buckets, the_first_is_smaller)
{
    enum { MEBI = (1 << 20) / sizeof(float) };
    static struct tensor tensors_of_512_kib[9];
    struct model large = {.tensor = tensors_of_512_kib, .tensors = 9, .parameters = 9 * MEBI / 2};
    for (size_t t = 0; t < 9; t++)
        tensors_of_512_kib[t] = (struct tensor){.offset = t * MEBI / 2, .count = MEBI / 2};
    static const size_t bytes[] = {BUCKET_FIRST, 3 << 19, 2 << 20, BUCKET_WHOLE};
    static const size_t first[] = {2, 2, 2, 9}, second[] = {2, 3, 4, 0};
    for (size_t k = 0; k < 4; k++) {
        struct bucket *buckets = NULL;
        size_t made = 0;
        EXPECT_OK(bucket_cut(&large, bytes[k], &buckets, &made));
        cr_assert_not_null(buckets);
        cr_expect_eq(buckets[0].count, first[k] * MEBI / 2);
        cr_expect(second[k] == 0 ? made == 1 : buckets[1].count == second[k] * MEBI / 2);
        free(buckets);
    }
}
