/* test_engine.c - the simulator against closed forms, and what must hold for every schedule. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/support.h"

/* ---- closed forms ---- */

/* Latency-bound, bandwidth-bound, without reductions, and with reductions that dominate. */
static const struct platform machines[] = {
    {.node_workers = 1, .inter = {2e-6, 8e-11}, .reduce_s_per_byte = 2e-11},
    {.node_workers = 1, .inter = {2e-3, 8e-11}, .reduce_s_per_byte = 3e-10},
    {.node_workers = 1, .inter = {0, 1e-9}, .reduce_s_per_byte = 0},
    {.node_workers = 1, .inter = {1e-6, 1e-10}, .reduce_s_per_byte = 1e-9},
};
#define MACHINES (sizeof machines / sizeof machines[0])

static void expect_about_closed_form(const char *text, int workers, const struct platform *platform, bool overlap,
                                     double tolerance)
{
    const struct sim_request request = {.platform = platform, .window = 64, .overlap_reduction = overlap};
    struct shape *shape = shape_of(text, platform, workers, 0);
    struct cost_model model;
    struct sim_result result;
    cr_assert_not_null(shape);
    /* The forms are for parts of equal size. */
    const size_t count = (size_t)shape->chunks * 1000;
    platform_cost_model(platform, workers, &model);
    EXPECT_OK(sim_schedule(&request, shape, count, sizeof(float), NULL, NULL, &result));
    const double wanted = shape->algorithm->cost(shape, &model, count * sizeof(float));
    char what[128];
    (void)snprintf(what, sizeof what, "%s, %d workers, machine %d", text, workers, (int)(platform - machines));
    expect_relative(wanted, result.time_s, tolerance, what);
    shape_destroy(shape);
}

static void expect_closed_form(const char *text, int workers, const struct platform *platform, bool overlap)
{
    expect_about_closed_form(text, workers, platform, overlap, 1e-9);
}

static void expect_closed_forms(const char *text, bool overlap, bool powers_only)
{
    for (size_t m = 0; m < MACHINES; m++)
        for (int p = 2; p <= 64; p++)
            if (!powers_only || (p & (p - 1)) == 0)
                expect_closed_form(text, p, &machines[m], overlap);
}

Test(engine, ring_takes_its_closed_form)
{
    expect_closed_forms("ring", false, false);
    expect_closed_forms("ring", true, false); /* nothing to overlap in messages of one segment */
}

Test(engine, recursive_doubling_takes_its_closed_form)
{
    expect_closed_forms("rd", false, false);
    expect_closed_forms("rd", true, true);
}

Test(engine, recursive_halving_doubling_takes_its_closed_form)
{
    expect_closed_forms("rhd", false, false);
    expect_closed_forms("rhd", true, true);
    expect_closed_forms("rhd:fold=split", false, false);
}

Test(engine, binomial_takes_its_closed_form_for_powers_of_two)
{
    expect_closed_forms("binomial", false, true);
    expect_closed_forms("binomial", true, true);
}

/* For any number of workers, and although a run of chunks that goes around the end arrives in two parts. */
Test(engine, circulant_takes_its_closed_form)
{
    expect_closed_forms("circulant", false, false);
}

Test(engine, exchanges_in_groups_take_their_closed_forms)
{
    expect_closed_forms("bcube", true, false);
    expect_closed_forms("allgather-reduce", false, false);
    expect_closed_forms("recursive-exchange:radix=2", false, false);
    expect_closed_forms("k-nomial-sra:radix=2", false, false);
    expect_closed_forms("binary-blocks", false, true);
}

/* Where some fold more workers than others, members of a group come to their gathering at different times, or what one
 * block hands on arrives staggered at the next. */
Test(engine, uneven_groups_take_about_their_closed_forms)
{
    static const struct {
        const char *spec;
        bool overlap;
        double tolerance;
    } cases[] = {{"recursive-exchange", true, 0.04}, {"k-nomial-sra", true, 0.04}, {"binary-blocks", false, 0.11}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t m = 0; m < MACHINES; m++)
            for (int p = 2; p <= 64; p++)
                expect_about_closed_form(cases[i].spec, p, &machines[m], cases[i].overlap, cases[i].tolerance);
}

/* Their forms have each sender's messages leave in its order, so that no port gets two at once. */
Test(engine, direct_schedules_take_their_closed_forms)
{
    expect_closed_forms("one-shot", true, false);
    expect_closed_forms("all-pairs", true, false);
}

/* Theirs add one vector while the next arrives, too. */
Test(engine, k_nomial_takes_its_closed_form_for_powers_of_its_radix)
{
    static const struct {
        const char *spec;
        int workers;
    } full[] = {{"k-nomial", 4},           {"k-nomial", 16},           {"k-nomial", 64},
                {"k-nomial:radix=3", 3},   {"k-nomial:radix=3", 9},    {"k-nomial:radix=3", 27},
                {"k-nomial:radix=64", 17}, {"k-nomial:radix=8", 2 * 8}};
    for (size_t m = 0; m < MACHINES; m++)
        for (size_t i = 0; i < sizeof full / sizeof full[0]; i++) {
            expect_closed_form(full[i].spec, full[i].workers, &machines[m], true);
            expect_closed_form(full[i].spec, full[i].workers, &machines[m], false);
        }
}

Test(engine, a_chain_of_one_piece_takes_its_closed_form)
{
    expect_closed_forms("chain:chunks=1", false, false);
    expect_closed_forms("chain:chunks=1", true, false);
}

Test(engine, bucket_takes_its_closed_form)
{
    expect_closed_forms("bucket", false, false);
    expect_closed_forms("bucket", true, false);
    for (size_t m = 0; m < MACHINES; m++)
        expect_closed_form("bucket:dims=2x3x5", 30, &machines[m], true);
}

/* Rounds one after the other. */
Test(engine, pairwise_takes_its_closed_form)
{
    expect_closed_forms("pairwise", false, false);
}

Test(engine, neighbor_exchange_takes_its_closed_form)
{
    for (size_t m = 0; m < MACHINES; m++)
        for (int p = 2; p <= 64; p += 2) {
            expect_closed_form("neighbor-exchange", p, &machines[m], true);
            expect_closed_form("neighbor-exchange", p, &machines[m], false);
        }
}

/* Its form adds one vector while the next arrives. */
Test(engine, naive_takes_its_closed_form)
{
    expect_closed_forms("naive", true, false);
}

Test(engine, schedules_for_shared_links_take_their_closed_forms)
{
    expect_closed_forms("swing-latency", false, false);
    expect_closed_forms("bine-latency", false, false);
    expect_closed_forms("bine", false, false);
    /* Where a message is one range: of several, one is reduced while the next arrives. */
    expect_closed_forms("pat", false, true);
    expect_closed_forms("pat:aggregation=2", false, true);
}

/* Two messages each way in a round, one after the other: the form holds where nothing is to be reduced meanwhile. */
Test(engine, trivance_takes_its_closed_form_for_powers_of_three)
{
    const struct platform *free_of_reductions = &machines[2];
    for (int p = 3; p <= 81; p *= 3)
        for (size_t i = 0; i < 2; i++)
            expect_closed_form(i == 0 ? "trivance" : "trivance-latency", p, free_of_reductions, true);
}

/* By hand: a pipelined chain of S segments over one hop costs alpha + S segments of bytes, and the reduction of the
 * last. */
Test(engine, segments_pay_latency_once_and_hide_reductions)
{
    const struct platform platform = {.node_workers = 1, .inter = {1e-3, 1e-9}, .reduce_s_per_byte = 5e-10};
    struct sim_request request = {.platform = &platform, .segment = 4000, .overlap_reduction = true};
    const double bytes = 40000, reduce = 4000 * 5e-10;
    /* naive on 2: 1 sends all, 0 reduces segment by segment and sends each on as soon as it is reduced. */
    expect_relative(2e-3 + bytes * 1e-9 + reduce + 4000 * 1e-9, time_of(&request, "naive", 2, 10000), 1e-9, "segments");
    request.segment = 0;
    expect_relative(2e-3 + 2 * bytes * 1e-9 + bytes * 5e-10, time_of(&request, "naive", 2, 10000), 1e-9, "whole");
}

Test(engine, overheads_are_processor_time)
{
    struct platform platform = machines[1];
    platform.send_overhead_s = 3e-4;
    platform.receive_overhead_s = 5e-4;
    const struct sim_request with = {.platform = &platform};
    const struct sim_request without = {.platform = &machines[1]};
    const double added = time_of(&with, "rd", 8, 1000) - time_of(&without, "rd", 8, 1000);
    expect_relative(3 * 8e-4, added, 1e-9, "three rounds of one message each way");
}

/* ---- joined messages ---- */

#define PIECES 6

/* Worker 1 sends every second of 2 * PIECES leaves to worker 0; a state says whether as one message. */
static enum status pieces_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const bool joined = shape->state != NULL;
    for (uint32_t i = 0; i < PIECES; i++) {
        const struct range range = {.chunk = 2 * i, .chunks = 1};
        TRY(sink->op(sink, &(struct op){.kind = rank == 1 ? OP_SEND : OP_RECV,
                                        .flags = joined && i + 1 < PIECES ? OP_MORE : 0,
                                        .peer = 1 - rank,
                                        .src = range,
                                        .dst = range,
                                        .round = round,
                                        .weight = 1}));
    }
    return STATUS_OK;
}

static double time_of_pieces(const struct sim_request *request, bool joined)
{
    static const struct algorithm pieces = {.name = "pieces", .emit = pieces_emit};
    struct shape shape = {.algorithm = &pieces, .workers = 2, .chunks = 2 * PIECES, .rounds = 1, .lanes = 1};
    struct sim_result result;
    shape.state = joined ? &shape : NULL;
    EXPECT_OK(sim_schedule(request, &shape, (size_t)shape.chunks * 1000, sizeof(float), NULL, NULL, &result));
    cr_expect_eq(result.messages, joined ? 1 : PIECES);
    return result.time_s;
}

Test(engine, joined_pieces_pay_latency_and_overheads_once)
{
    struct platform platform = {.node_workers = 1, .inter = {1e-3, 1e-9}};
    const double piece = 4000 * 1e-9;
    for (uint32_t window = 1; window <= 8; window *= 2)
        for (int overlap = 0; overlap <= 1; overlap++) {
            const struct sim_request request = {
                .platform = &platform, .window = window, .overlap_reduction = overlap != 0};
            expect_relative(1e-3 + PIECES * piece, time_of_pieces(&request, true), 1e-9, "one latency");
        }
    const struct sim_request one_by_one = {.platform = &platform, .window = 1};
    expect_relative(PIECES * (1e-3 + piece), time_of_pieces(&one_by_one, false), 1e-9, "each its own");
    platform.send_overhead_s = 3e-4;
    platform.receive_overhead_s = 5e-4;
    for (int overlap = 0; overlap <= 1; overlap++) {
        const struct sim_request request = {.platform = &platform, .window = 1, .overlap_reduction = overlap != 0};
        /* What is joined to the first piece comes while the processor is at it, and is there when that is over. */
        expect_relative(3e-4 + 1e-3 + piece + 5e-4, time_of_pieces(&request, true), 1e-9, "overheads once");
    }
}

/* ---- what holds for every schedule ---- */

/* The i-th of those that run without a file, NULL behind the last. */
static const struct algorithm *algorithm_at(size_t i)
{
    size_t count;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t a = 0; a < count; a++)
        if ((algorithms[a]->traits & TRAIT_NEEDS_FILE) == 0 && i-- == 0)
            return algorithms[a];
    return NULL;
}

static void expect_finishes(const struct algorithm *algorithm, int workers, const struct platform *platform,
                            bool overlap)
{
    const struct sim_request request = {
        .platform = platform, .segment = 256, .window = 1, .overlap_reduction = overlap};
    const size_t count = 1009; /* prime: no partition is even */
    struct shape *shape = shape_of(algorithm->name, platform, workers, count);
    size_t bytes = 0;
    size_t messages = 0;
    if (shape == NULL)
        return;
    double *done_s = calloc((size_t)workers, sizeof *done_s);
    struct sim_result result;
    EXPECT_OK(sim_schedule(&request, shape, count, sizeof(float), NULL, done_s, &result));
    for (int r = 0; r < workers; r++) {
        size_t bytes_of_worker;
        size_t messages_of_worker;
        EXPECT_OK(shape_traffic(shape, r, count, sizeof(float), &bytes_of_worker, &messages_of_worker));
        bytes += bytes_of_worker;
        messages += messages_of_worker;
        cr_expect(done_s != NULL && done_s[r] >= result.first_s && done_s[r] <= result.time_s);
    }
    cr_expect_eq(result.bytes, bytes, "%s, %d workers", algorithm->name, workers);
    cr_expect_eq(result.messages, messages, "%s, %d workers", algorithm->name, workers);
    free(done_s);
    shape_destroy(shape);
}

Test(engine, every_algorithm_finishes_and_sends_what_it_says)
{
    for (size_t i = 0; algorithm_at(i) != NULL; i++) {
        for (int p = 1; p <= 33; p++) {
            expect_finishes(algorithm_at(i), p, &star, p % 2 == 0);
            expect_finishes(algorithm_at(i), p, &shared, p % 2 != 0);
        }
        expect_finishes(algorithm_at(i), 64, &shared, true);
        expect_finishes(algorithm_at(i), 64, &star, false);
    }
}

Test(engine, more_bytes_never_take_less)
{
    for (size_t i = 0; algorithm_at(i) != NULL; i++) {
        const struct sim_request request = {.platform = &shared, .overlap_reduction = i % 2 == 0};
        double last_s = 0;
        if ((algorithm_at(i)->traits & (TRAIT_POWER_OF_TWO | TRAIT_SIZE_DEPENDENT)) != 0)
            continue;
        for (size_t count = 12000; count <= 1536000; count *= 2) {
            const double time_s = time_of(&request, algorithm_at(i)->name, 12, count);
            cr_expect(time_s >= last_s, "%s: %zu elements in %g s, half of them in %g s", algorithm_at(i)->name, count,
                      time_s, last_s);
            last_s = time_s;
        }
    }
}

Test(engine, without_latency_twice_the_bandwidth_is_half_the_time)
{
    struct platform slow = {.node_workers = 4, .intra = {0, 2e-10}, .inter = {0, 4e-10}};
    struct platform fast = {.node_workers = 4, .intra = {0, 1e-10}, .inter = {0, 2e-10}};
    const struct sim_request slowly = {.platform = &slow, .overlap_reduction = true};
    const struct sim_request quickly = {.platform = &fast, .overlap_reduction = true};
    static const char *const specs[] = {"ring", "rd", "rhd", "binomial", "naive", "hierarchical"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        expect_relative(time_of(&slowly, specs[i], 12, 120000) / 2, time_of(&quickly, specs[i], 12, 120000), 1e-12,
                        specs[i]);
}

Test(engine, equal_input_gives_equal_bits)
{
    const struct sim_request request = {.platform = &shared, .segment = 1000, .overlap_reduction = true};
    static const char *const specs[] = {"ring", "rhd", "naive", "hierarchical"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        const struct sim_result first = simulate(&request, specs[i], 13, 100003);
        const struct sim_result second = simulate(&request, specs[i], 13, 100003);
        cr_expect(same_bits(first.time_s, second.time_s), "%s", specs[i]);
        cr_expect_eq(first.events, second.events);
    }
}

/* ---- nodes ---- */

Test(engine, workers_of_a_node_share_its_interface)
{
    const struct sim_request request = {.platform = &shared, .overlap_reduction = true};
    const size_t count = 4000000;
    const double hierarchical_s = time_of(&request, "hierarchical", 32, count);
    const double two_level_tree_s = time_of(&request, "hierarchical:intra=binomial,inter=ring", 32, count);
    const double naive_s = time_of(&request, "naive", 32, count);
    const double doubling_s = time_of(&request, "rd", 32, count);
    cr_expect(hierarchical_s < naive_s / 5, "%g s against %g s", hierarchical_s, naive_s);
    cr_expect(two_level_tree_s < naive_s / 5, "%g s against %g s", two_level_tree_s, naive_s);
    cr_expect(hierarchical_s < doubling_s / 2, "%g s against %g s", hierarchical_s, doubling_s);
}

/* Every interface carries one worker's messages at a time: four pairs across two nodes take four times one pair. */
Test(engine, an_interface_serves_one_message_at_a_time)
{
    const struct platform platform = {.node_workers = 4, .intra = {0, 0}, .inter = {0, 1e-9}};
    const struct sim_request request = {.platform = &platform, .overlap_reduction = true};
    struct layout spread;
    struct shape *shape = shape_of("rd", &platform, 8, 1000);
    struct sim_result together;
    struct sim_result apart;
    EXPECT_OK(layout_groups(8, 1, &spread));
    struct sim_request own = request;
    own.layout = &spread;
    EXPECT_OK(sim_schedule(&request, shape, 1000, 4, NULL, NULL, &together));
    EXPECT_OK(sim_schedule(&own, shape, 1000, 4, NULL, NULL, &apart));
    expect_relative(4 * 4e-6, together.time_s, 1e-9, "four through one interface");
    expect_relative(3 * 4e-6, apart.time_s, 1e-9, "each its own, three rounds");
    shape_destroy(shape);
    layout_release(&spread);
}

Test(engine, nodes_may_differ_in_size)
{
    struct layout layout;
    struct spec spec;
    struct shape *shape = NULL;
    struct sim_result result;
    EXPECT_OK(layout_parse("4+2+3", 9, &layout));
    EXPECT_OK(spec_parse("hierarchical", &spec));
    EXPECT_OK(spec_shape(&spec, &layout, 0, 100000, &shape));
    const struct sim_request request = {.platform = &shared, .layout = &layout, .overlap_reduction = true};
    EXPECT_OK(sim_schedule(&request, shape, 100000, 4, NULL, NULL, &result));
    cr_expect(result.time_s > 0 && result.first_s > 0 && result.first_s <= result.time_s);
    shape_destroy(shape);
    spec_release(&spec);
    layout_release(&layout);
}

Test(engine, refuses_a_layout_for_other_workers)
{
    struct layout layout;
    struct sim_result result;
    struct shape *shape = shape_of("ring", &star, 4, 100);
    EXPECT_OK(layout_flat(5, &layout));
    const struct sim_request request = {.platform = &star, .layout = &layout};
    EXPECT_FAIL(STATUS_USAGE, "give a layout for 4", sim_schedule(&request, shape, 100, 4, NULL, NULL, &result));
    shape_destroy(shape);
    layout_release(&layout);
}

/* ---- starts ---- */

Test(engine, a_late_worker_holds_up_the_others)
{
    const struct sim_request request = {.platform = &star};
    double start_s[8] = {0};
    double done_s[8];
    struct sim_result result;
    struct shape *shape = shape_of("rd", &star, 8, 1000);
    const double prompt_s = time_of(&request, "rd", 8, 1000);
    start_s[3] = 1;
    EXPECT_OK(sim_schedule(&request, shape, 1000, 4, start_s, done_s, &result));
    expect_relative(1 + prompt_s, result.time_s, 1e-9, "everyone waits for worker 3");
    for (int r = 0; r < 8; r++)
        expect_relative(1 + prompt_s, done_s[r], 1e-9, "each");
    shape_destroy(shape);
}

Test(engine, nothing_to_do_takes_no_time)
{
    const struct sim_request request = {.platform = &star, .overlap_reduction = true};
    cr_expect(time_of(&request, "none", 5, 1000) <= 0);
    cr_expect(time_of(&request, "ring", 1, 1000) <= 0);
    cr_expect(time_of(&request, "ring", 5, 0) <= 0);
}

/* ---- faults ---- */

/* Both wait for what the other never sends. */
static enum status stuck_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    (void)shape, (void)round;
    return emit_recv(sink, 1 - rank, 0, 1);
}

static enum status stuck_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    shape->rounds = 1;
    return STATUS_OK;
}

Test(engine, a_deadlock_is_named)
{
    static const struct algorithm stuck = {
        .name = "stuck", .aliases = "", .summary = "", .source = "", .shape = stuck_shape, .emit = stuck_emit};
    struct layout layout;
    struct shape *shape;
    struct sim_result result;
    EXPECT_OK(layout_flat(2, &layout));
    const struct shape_request ask = {.layout = &layout};
    EXPECT_OK(shape_create(&stuck, &ask, &shape));
    const struct sim_request request = {.platform = &star};
    EXPECT_FAIL(STATUS_INTERNAL,
                "stuck: deadlock: 2 of 2 workers wait for ever; worker 0: round 0 lane 0: receiving from 1",
                sim_schedule(&request, shape, 100, 4, NULL, NULL, &result));
    shape_destroy(shape);
    layout_release(&layout);
}

/* ---- scale ---- */

Test(engine, a_ring_of_1024_workers_with_100_MiB)
{
    const struct sim_request request = {.platform = &star};
    const size_t bytes = (size_t)100 << 20;
    const struct sim_result result = simulate(&request, "ring", 1024, bytes / sizeof(float));
    const double part = (double)bytes / 1024;
    expect_relative(2046 * (2e-6 + part * 8e-11) + 1023 * part * 2e-11, result.time_s, 1e-9, "ring of 1024");
    cr_expect_eq(result.messages, (size_t)2046 * 1024);
    cr_log_info("%llu events in %.2f s", (unsigned long long)result.events, result.wall_s);
}
