/* test_train.c - training runs on simulated time: what a strategy hides, and what it cannot. */
#include "tests/sim/support.h"

/* A million parameters, 10 ms a step of batch 10. */
static const struct profile profile = {
    .parameters = 1000000, .affine = true, .fixed_s = 2e-3, .per_image_s = 8e-4, .backward_share = 0.667};
#define BATCH 10
#define COMPUTE_S 1e-2
#define WORKERS 8

static const struct platform ideal = {.node_workers = 1};
static const struct platform slow = {.node_workers = 1, .inter = {1e-5, 1e-8}};

static enum status train_as(const struct sim_train_request *like, const char *text, struct sim_train_result *result)
{
    struct spec spec;
    struct sim_train_request request = *like;
    TRY(spec_parse(text, &spec));
    request.spec = &spec;
    request.profile = &profile;
    request.batch = BATCH;
    if (request.workers == 0)
        request.workers = WORKERS;
    enum status status = sim_train(&request, result);
    spec_release(&spec);
    return status;
}

static struct sim_train_result train(const struct platform *platform, const char *text)
{
    const struct sim_train_request request = {.network = {.platform = platform}};
    struct sim_train_result result = {0};
    EXPECT_OK(train_as(&request, text, &result));
    expect_relative(COMPUTE_S, result.compute_s, 1e-12, "compute");
    expect_relative(result.compute_s + result.exposed_s, result.step_s, 1e-9, "step = compute + exposed");
    expect_relative(WORKERS * BATCH / result.step_s, result.images_per_s, 1e-12, "images/s");
    expect_relative(COMPUTE_S / result.step_s, result.efficiency, 1e-12, "efficiency");
    return result;
}

/* One exchange of the whole vector by itself. */
static double exchange_s(const struct platform *platform, const char *text)
{
    const struct sim_request request = {.platform = platform};
    return time_of(&request, text, WORKERS, profile.parameters);
}

static size_t ring_bytes(void)
{
    return 2 * (WORKERS - 1) * (profile.parameters / WORKERS) * sizeof(float);
}

Test(train, a_network_that_costs_nothing_costs_nothing)
{
    static const char *const specs[] = {"ring", "rd", "hierarchical", "double-buffered", "gossip:graph=ring"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        const struct sim_train_result result = train(&ideal, specs[i]);
        expect_relative(1, result.efficiency, 1e-9, specs[i]);
        cr_expect(result.bytes_sent_per_step > 0);
    }
}

Test(train, exchanging_nothing_is_efficiency_1)
{
    const struct sim_train_result result = train(&slow, "none");
    expect_relative(1, result.efficiency, 1e-12, "none");
    cr_expect_eq(result.bytes_sent_per_step, (size_t)0);
    cr_expect(result.exposed_s <= 0);
}

Test(train, synchronous_exposes_the_whole_exchange)
{
    const struct sim_train_result result = train(&slow, "ring");
    expect_relative(COMPUTE_S + exchange_s(&slow, "ring"), result.step_s, 1e-9, "step");
    cr_expect_eq(result.bytes_sent_per_step, ring_bytes());
}

Test(train, double_buffered_hides_what_is_shorter_than_compute)
{
    const struct sim_train_result result = train(&star, "double-buffered:inner=ring");
    cr_assert(exchange_s(&star, "ring") < COMPUTE_S);
    expect_relative(COMPUTE_S, result.step_s, 1e-12, "step");
    expect_relative(1, result.efficiency, 1e-12, "efficiency");
    cr_expect_eq(result.bytes_sent_per_step, ring_bytes());
}

Test(train, double_buffered_is_as_slow_as_a_longer_exchange)
{
    const struct sim_train_result result = train(&slow, "double-buffered:inner=ring");
    cr_assert(exchange_s(&slow, "ring") > COMPUTE_S);
    expect_relative(exchange_s(&slow, "ring"), result.step_s, 1e-9, "step");
}

/* One message out, one in, and its weighted sum: alpha + n beta after each update, whoever the peer is. */
Test(train, one_peer_gossip_costs_one_message)
{
    const double bytes = (double)profile.parameters * sizeof(float);
    const struct sim_train_result result = train(&slow, "gossip:graph=one-peer-exponential");
    expect_relative(COMPUTE_S + 1e-5 + bytes * 1e-8, result.step_s, 1e-9, "step");
    cr_expect_eq(result.bytes_sent_per_step, profile.parameters * sizeof(float));
}

Test(train, gossip_on_a_ring_sends_to_two)
{
    const struct sim_train_result result = train(&slow, "gossip:graph=ring");
    cr_expect_eq(result.bytes_sent_per_step, 2 * profile.parameters * sizeof(float));
    cr_expect(result.step_s < train(&slow, "naive").step_s);
}

Test(train, a_faster_exchange_is_a_faster_step)
{
    cr_expect(train(&slow, "ring").step_s < train(&slow, "rd").step_s);
    cr_expect(train(&slow, "rd").step_s < train(&slow, "naive").step_s);
    cr_expect(train(&slow, "double-buffered").step_s < train(&slow, "ring").step_s);
}

Test(train, buckets_go_one_after_the_other)
{
    struct sim_train_request request = {.network = {.platform = &slow}, .bucket = 1000000};
    struct sim_train_result result = {0};
    const struct sim_request network = {.platform = &slow};
    EXPECT_OK(train_as(&request, "ring", &result));
    const double bucket_s = time_of(&network, "ring", WORKERS, 250000);
    expect_relative(COMPUTE_S + 4 * bucket_s, result.step_s, 1e-9, "four buckets");
    cr_expect_eq(result.bytes_sent_per_step, ring_bytes());
    request.bucket = 1600000; /* 400,000 elements, but at first 1 MiB */
    EXPECT_OK(train_as(&request, "ring", &result));
    const double first_s = time_of(&network, "ring", WORKERS, 262144);
    const double whole_s = time_of(&network, "ring", WORKERS, 400000);
    const double rest_s = time_of(&network, "ring", WORKERS, 1000000 - 262144 - 400000);
    expect_relative(COMPUTE_S + first_s + whole_s + rest_s, result.step_s, 1e-9, "a first, a whole, a rest");
}

/* Four buckets are complete at a quarter, a half, three quarters and the end of backward (of 6.67 ms). */
Test(train, overlap_hides_what_backward_leaves_time_for)
{
    const struct platform fast = {.node_workers = 1, .inter = {1e-6, 1e-10}};
    struct sim_train_request request = {.network = {.platform = &fast}, .bucket = 1000000, .overlap = true};
    const struct sim_request network = {.platform = &fast};
    struct sim_train_result result = {0};
    double bucket_s = time_of(&network, "ring", WORKERS, 250000);
    cr_assert_lt(bucket_s, 0.667 * COMPUTE_S / 4);
    EXPECT_OK(train_as(&request, "ring", &result));
    expect_relative(COMPUTE_S + bucket_s, result.step_s, 1e-9, "only the last bucket is exposed");
    expect_relative(bucket_s, result.exposed_s, 1e-9, "exposed");
    request.network.platform = &slow;
    const struct sim_request slowly = {.platform = &slow};
    bucket_s = time_of(&slowly, "ring", WORKERS, 250000);
    cr_assert_gt(bucket_s, 0.667 * COMPUTE_S);
    EXPECT_OK(train_as(&request, "ring", &result));
    expect_relative(COMPUTE_S - 0.667 * COMPUTE_S * 0.75 + 4 * bucket_s, result.step_s, 1e-9,
                    "three quarters are hidden");
    request.bucket = 0;
    EXPECT_OK(train_as(&request, "ring", &result));
    expect_relative(COMPUTE_S + exchange_s(&slow, "ring"), result.step_s, 1e-9, "one bucket hides nothing");
    struct sim_train_result without = {0};
    EXPECT_OK(train_as(&request, "gossip:graph=ring", &result));
    request.overlap = false;
    EXPECT_OK(train_as(&request, "gossip:graph=ring", &without));
    expect_relative(without.step_s, result.step_s, 1e-12, "what is exchanged after the update");
}

/* Buckets are of whole layers, from the last one on. */
Test(train, buckets_are_of_whole_layers)
{
    struct profile_layer layers[] = {{.name = "a", .parameters = 80, .backward_s = 1e-3},
                                     {.name = "b", .backward_s = 2e-3},
                                     {.name = "c", .parameters = 320, .backward_s = 4e-3},
                                     {.name = "d", .parameters = 40, .backward_s = 8e-3}};
    const struct profile layered = {.parameters = 440, .batch = BATCH, .layer = layers, .layers = 4};
    const struct sim_request network = {.platform = &slow};
    struct spec spec;
    struct sim_train_request request = {.network = network,
                                        .profile = &layered,
                                        .spec = &spec,
                                        .workers = WORKERS,
                                        .batch = BATCH,
                                        .bucket = 1440, /* d and c; then a */
                                        .overlap = true};
    struct sim_train_result result = {0};
    EXPECT_OK(spec_parse("ring", &spec));
    EXPECT_OK(sim_train(&request, &result));
    const double large_s = time_of(&network, "ring", WORKERS, 360), small_s = time_of(&network, "ring", WORKERS, 80);
    cr_assert_lt(large_s, 3e-3);
    expect_relative(15e-3 + small_s, result.step_s, 1e-9, "the second bucket is exposed");
    expect_relative(small_s, result.exposed_s, 1e-9, "exposed");
    request.bucket = 1300; /* d; then c; then a */
    EXPECT_OK(sim_train(&request, &result));
    expect_relative(15e-3 + small_s, result.step_s, 1e-9, "three buckets");
    spec_release(&spec);
}

Test(train, more_steps_are_the_same_steps)
{
    struct sim_train_request request = {.network = {.platform = &slow, .overlap_reduction = true}};
    static const char *const specs[] = {"ring", "double-buffered", "gossip:graph=one-peer-exponential"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        struct sim_train_result few = {0};
        struct sim_train_result many = {0};
        request.steps = 8;
        EXPECT_OK(train_as(&request, specs[i], &few));
        request.steps = 50;
        EXPECT_OK(train_as(&request, specs[i], &many));
        expect_relative(few.step_s, many.step_s, 1e-9, specs[i]);
        cr_expect(many.totals.time_s > few.totals.time_s);
    }
}

Test(train, few_steps_are_counted_all_but_the_first)
{
    struct sim_train_request request = {.network = {.platform = &slow}};
    struct sim_train_result result = {0};
    for (request.steps = 1; request.steps <= 3; request.steps++) {
        EXPECT_OK(train_as(&request, "ring", &result));
        expect_relative(COMPUTE_S + exchange_s(&slow, "ring"), result.step_s, 1e-9, "step");
    }
}

Test(train, one_worker_is_the_baseline)
{
    const struct sim_train_request request = {.network = {.platform = &slow}, .workers = 1};
    struct sim_train_result result = {0};
    EXPECT_OK(train_as(&request, "ring", &result));
    expect_relative(1, result.efficiency, 1e-12, "efficiency");
    expect_relative(BATCH / COMPUTE_S, result.images_per_s, 1e-12, "images/s");
}

Test(train, equal_input_gives_equal_bits)
{
    const struct sim_train_request request = {.network = {.platform = &shared, .overlap_reduction = true},
                                              .workers = 13};
    struct sim_train_result first = {0};
    struct sim_train_result second = {0};
    EXPECT_OK(train_as(&request, "hierarchical:intra=binomial", &first));
    EXPECT_OK(train_as(&request, "hierarchical:intra=binomial", &second));
    cr_expect(same_bits(first.step_s, second.step_s));
    cr_expect_eq(first.totals.events, second.totals.events);
}

Test(train, refuses_what_makes_no_sense)
{
    struct sim_train_result result = {0};
    struct sim_train_request request = {.network = {.platform = &slow}, .workers = -1};
    EXPECT_FAIL(STATUS_USAGE, "at least 1 worker", train_as(&request, "ring", &result));
    struct layout layout;
    EXPECT_OK(layout_flat(5, &layout));
    request.workers = 6;
    request.network.layout = &layout;
    EXPECT_FAIL(STATUS_USAGE, "the layout has 5 workers, the run 6", train_as(&request, "ring", &result));
    layout_release(&layout);
}

Test(train, a_thousand_workers)
{
    const struct sim_train_request request = {
        .network = {.platform = &shared, .overlap_reduction = true}, .workers = 1024, .steps = 2};
    struct sim_train_result result = {0};
    EXPECT_OK(train_as(&request, "hierarchical", &result));
    cr_expect(result.efficiency > 0 && result.efficiency < 1);
    cr_log_info("%llu events in %.2f s", (unsigned long long)result.totals.events, result.totals.wall_s);
}
