/* test_progression.c - rules 1-3 and 5 of schedules, each on a few ops written out. */
#include <criterion/criterion.h>
#include <string.h>

#include "algos/progression.h"
#include "tests/algos/support_toy.h"

#define MOST 512

/* A progression, and what it has started that has not been completed. */
struct driver {
    struct progression *progression;
    struct action begun[MOST];
    size_t count;
};

static const struct progression_params simple = {
    .count = 6, .segment = 2, .window = 8, .lookahead = UINT32_MAX, .aliased = true};

static struct driver drive(const struct shape *shape, const struct progression_params *params)
{
    struct driver driver = {.count = 0};
    cr_assert_eq(progression_create(shape, 0, params, &driver.progression), STATUS_OK, "%s", status_message());
    return driver;
}

/* Start all that may start; returns how many that were. */
static size_t run(struct driver *driver)
{
    size_t n = 0;
    enum status status = STATUS_OK;
    while ((status = progression_next(driver->progression, &driver->begun[driver->count])) == STATUS_OK) {
        n++;
        driver->count++;
        cr_assert_lt(driver->count, MOST);
    }
    cr_assert_eq(status, STATUS_AGAIN, "%s", status_message());
    return n;
}

/* Complete the i-th of what is outstanding, then start what may start. */
static size_t finish(struct driver *driver, size_t i)
{
    cr_assert_lt(i, driver->count);
    const struct action action = driver->begun[i];
    driver->count--;
    memmove(&driver->begun[i], &driver->begun[i + 1], (driver->count - i) * sizeof action);
    progression_complete(driver->progression, &action);
    return run(driver);
}

/* The outstanding action of that kind and round, NULL when there is none. */
static const struct action *begun(const struct driver *driver, enum action_kind kind, uint32_t round)
{
    for (size_t i = 0; i < driver->count; i++)
        if (driver->begun[i].kind == kind && driver->begun[i].op.round == round)
            return &driver->begun[i];
    return NULL;
}

static size_t place_of(const struct driver *driver, const struct action *action)
{
    cr_assert_not_null(action);
    return (size_t)(action - driver->begun);
}

static void finish_all(struct driver *driver)
{
    run(driver);
    while (driver->count > 0)
        finish(driver, 0);
    cr_expect(progression_finished(driver->progression));
}

static void expect_span(struct span span, enum place place, size_t offset, size_t count)
{
    cr_expect_eq(span.place, place, "place %d instead of %d", (int)span.place, (int)place);
    cr_expect_eq(span.offset, offset, "offset %zu instead of %zu", span.offset, offset);
    cr_expect_eq(span.count, count, "%zu elements instead of %zu", span.count, count);
}

/* ---- messages of a channel ---- */

TOY(sends, TOY_RECV(0, 0, 0, 2, 0, 1), TOY_SEND(0, 1, 0, 1, 0, 1), TOY_SEND(0, 2, 0, 1, 1, 1),
    TOY_SEND(0, 3, 0, 2, 2, 1));

Test(progression, sends_of_a_channel_start_in_emitted_order)
{
    const struct shape shape = toy_shape(&sends, 3, 3, 1);
    struct driver d = drive(&shape, &simple);
    run(&d);
    cr_expect_null(begun(&d, ACTION_SEND, 1), "its data has not come");
    cr_expect_null(begun(&d, ACTION_SEND, 2), "must not overtake round 1, which has not begun");
    cr_expect_not_null(begun(&d, ACTION_SEND, 3), "another peer is another channel");
    finish(&d, place_of(&d, begun(&d, ACTION_POST, 0)));
    cr_expect_not_null(begun(&d, ACTION_SEND, 1));
    cr_expect_not_null(begun(&d, ACTION_SEND, 2), "starts in order, does not wait for completion");
    finish_all(&d);
    progression_destroy(d.progression);
}

TOY(lanes, TOY_RECV(0, 0, 0, 2, 0, 1), TOY_SEND(0, 1, 0, 1, 0, 1), TOY_SEND(0, 2, 1, 1, 1, 1));

Test(progression, lanes_to_one_peer_are_channels_of_their_own)
{
    const struct shape shape = toy_shape(&lanes, 3, 3, 2);
    struct driver d = drive(&shape, &simple);
    run(&d);
    cr_expect_null(begun(&d, ACTION_SEND, 1));
    cr_expect_not_null(begun(&d, ACTION_SEND, 2));
    progression_destroy(d.progression);
}

TOY(numbered, TOY_SEND(0, 0, 0, 1, 0, 2), TOY_RECV(0, 0, 0, 1, 2, 1), TOY_SEND(0, 1, 0, 1, 1, 1),
    TOY_SEND(0, 1, 0, 2, 0, 1), TOY_RECV(0, 2, 0, 1, 2, 1));

Test(progression, segments_are_numbered_for_each_peer_and_direction)
{
    const struct shape shape = toy_shape(&numbered, 3, 3, 1);
    struct driver d = drive(&shape, &simple);
    run(&d);
    uint64_t next[3][2] = {{0}};
    size_t seen = 0;
    while (d.count > 0) {
        const struct action a = d.begun[0];
        cr_expect_eq(a.sequence, next[a.op.peer][a.kind == ACTION_SEND]++);
        seen++;
        finish(&d, 0);
    }
    cr_expect_eq(seen, 6);
    cr_expect_eq(next[1][1], 3, "two segments, then one");
    cr_expect_eq(next[1][0], 2);
    cr_expect_eq(next[2][1], 1);
    progression_destroy(d.progression);
}

TOY(windowed, TOY_REDUCE(0, 0, 0, 1, 0, 1), TOY_REDUCE(0, 1, 0, 1, 1, 1), TOY_REDUCE(0, 2, 0, 1, 2, 1),
    TOY_REDUCE(0, 2, 0, 2, 2, 1));

Test(progression, a_window_bounds_the_receives_posted_on_a_channel)
{
    const struct shape shape = toy_shape(&windowed, 3, 3, 1);
    struct progression_params params = simple;
    params.window = 2;
    struct driver d = drive(&shape, &params);
    cr_expect_eq(run(&d), 3, "two from worker 1, one from worker 2");
    cr_expect_eq(finish(&d, 0), 1, "arrived: only its reduction may start, the slot is still in use");
    cr_expect_not_null(begun(&d, ACTION_REDUCE, 0));
    cr_expect_eq(finish(&d, place_of(&d, begun(&d, ACTION_REDUCE, 0))), 1, "reduced: the third is posted");
    finish_all(&d);
    progression_destroy(d.progression);
}

TOY(wide, TOY_SEND(0, 0, 0, 1, 0, 1), TOY_RECV(0, 0, 0, 1, 1, 1));

Test(progression, no_op_has_more_outstanding_than_its_callers_can_count)
{
    const struct shape shape = toy_shape(&wide, 2, 2, 1);
    const struct progression_params params = {
        .count = 400, .segment = 1, .window = 64, .lookahead = UINT32_MAX, .aliased = true};
    struct driver d = drive(&shape, &params);
    cr_expect_eq(run(&d), 2 * PROGRESSION_OUTSTANDING);
    for (size_t i = PROGRESSION_OUTSTANDING; i > 1; i--)
        cr_expect_eq(finish(&d, i - 1), 0, "the oldest is still out: no later one moves the bound");
    cr_expect_eq(finish(&d, 0), PROGRESSION_OUTSTANDING);
    finish_all(&d);
    progression_destroy(d.progression);
}

/* ---- hazards, rule 2 ---- */

TOY(relay, TOY_RECV(0, 0, 0, 1, 0, 1), TOY_SEND(0, 1, 0, 2, 0, 1));

Test(progression, a_later_op_follows_an_earlier_one_segment_by_segment)
{
    const struct shape shape = toy_shape(&relay, 3, 1, 1);
    struct driver d = drive(&shape, &simple);
    cr_expect_eq(run(&d), 3, "three receives, no send");
    cr_expect_eq(finish(&d, 2), 0, "the last segment has come, the first has not");
    cr_expect_eq(finish(&d, 0), 1, "the first segment goes on while the second is still coming");
    const struct action *send = begun(&d, ACTION_SEND, 1);
    cr_assert_not_null(send);
    expect_span(send->src, PLACE_VECTOR, 0, 2);
    cr_expect_eq(finish(&d, place_of(&d, begun(&d, ACTION_POST, 0))), 2);
    finish_all(&d);
    progression_destroy(d.progression);
}

/* Segments count from the start of each op's own range: leaf 1 of 3 elements begins in the middle of a segment. */
TOY(shifted, TOY_RECV(0, 0, 0, 1, 0, 2), TOY_SEND(0, 1, 0, 2, 1, 1));

Test(progression, segments_that_overlap_in_part_hold_each_other_back)
{
    const struct shape shape = toy_shape(&shifted, 3, 2, 1);
    struct driver d = drive(&shape, &simple);
    run(&d);
    cr_expect_eq(finish(&d, 0), 0, "elements 3 and 4 need the receives of 2..3 and 4..5");
    cr_expect_eq(finish(&d, 0), 0);
    cr_expect_eq(finish(&d, 0), 2);
    progression_destroy(d.progression);
}

TOY(reads, TOY_SEND(0, 0, 0, 1, 0, 1), TOY_SEND(0, 0, 0, 2, 0, 1));

Test(progression, two_reads_of_a_range_do_not_conflict)
{
    const struct shape shape = toy_shape(&reads, 3, 3, 1);
    struct driver d = drive(&shape, &simple);
    cr_expect_eq(run(&d), 2);
    progression_destroy(d.progression);
}

TOY(overwrite, TOY_SEND(0, 0, 0, 1, 0, 1), TOY_RECV(0, 1, 0, 1, 0, 1));
TOY(add_ahead, TOY_SEND(0, 0, 0, 1, 0, 1), TOY_REDUCE(0, 1, 0, 1, 0, 1));

Test(progression, a_receive_is_posted_only_when_its_destination_is_free)
{
    const struct shape shape = toy_shape(&overwrite, 2, 3, 1);
    struct driver d = drive(&shape, &simple);
    cr_expect_eq(run(&d), 1);
    cr_expect_eq(finish(&d, 0), 1);
    cr_expect_not_null(begun(&d, ACTION_POST, 1));
    progression_destroy(d.progression);
}

Test(progression, a_reducing_receive_is_posted_ahead_and_reduced_when_its_destination_is_free)
{
    const struct shape shape = toy_shape(&add_ahead, 2, 3, 1);
    struct driver d = drive(&shape, &simple);
    cr_expect_eq(run(&d), 2);
    cr_expect_eq(finish(&d, place_of(&d, begun(&d, ACTION_POST, 1))), 0, "what is being sent may not change");
    cr_expect_eq(finish(&d, place_of(&d, begun(&d, ACTION_SEND, 0))), 1);
    cr_expect_not_null(begun(&d, ACTION_REDUCE, 1));
    cr_expect_not(progression_finished(d.progression));
    finish(&d, 0);
    cr_expect(progression_finished(d.progression));
    progression_destroy(d.progression);
}

TOY(additions, TOY_REDUCE(0, 0, 0, 1, 0, 1), TOY_REDUCE(0, 0, 0, 2, 0, 1));

Test(progression, additions_to_a_range_keep_the_emitted_order)
{
    const struct shape shape = toy_shape(&additions, 3, 3, 1);
    struct driver d = drive(&shape, &simple);
    cr_expect_eq(run(&d), 2, "both are posted");
    cr_expect_eq(finish(&d, 1), 0, "the second has come first and waits");
    cr_expect_eq(finish(&d, 0), 1);
    cr_expect_eq(d.begun[0].op.peer, 1);
    cr_expect_eq(finish(&d, 0), 1);
    cr_expect_eq(d.begun[0].op.peer, 2);
    progression_destroy(d.progression);
}

/* ---- first touch, rule 5 ---- */

TOY(touches, TOY_SEND(0, 0, 0, 1, 0, 1), TOY_REDUCE(0, 0, 0, 1, 0, 1), TOY_SEND(0, 1, 0, 1, 0, 1),
    TOY_REDUCE(0, 1, 0, 1, 0, 1), {0, {.kind = OP_SCALE, .round = 2, .dst = TOY_LEAVES(1, 1), .weight = 0.5}});

Test(progression, out_of_place_a_chunk_is_read_from_the_input_until_it_is_written)
{
    const struct shape shape = toy_shape(&touches, 2, 3, 1);
    struct progression_params params = simple;
    params.aliased = false;
    struct driver d = drive(&shape, &params);
    run(&d);
    expect_span(begun(&d, ACTION_SEND, 0)->src, PLACE_INPUT, 0, 2);
    const struct action scale = *begun(&d, ACTION_LOCAL, 2);
    expect_span(scale.operand, PLACE_INPUT, 2, 2);
    expect_span(scale.dst, PLACE_VECTOR, 2, 2);
    finish(&d, place_of(&d, begun(&d, ACTION_SEND, 0)));
    finish(&d, place_of(&d, begun(&d, ACTION_POST, 0)));
    expect_span(begun(&d, ACTION_REDUCE, 0)->operand, PLACE_INPUT, 0, 2);
    expect_span(begun(&d, ACTION_REDUCE, 0)->dst, PLACE_VECTOR, 0, 2);
    finish(&d, place_of(&d, begun(&d, ACTION_POST, 1)));
    finish(&d, place_of(&d, begun(&d, ACTION_REDUCE, 0)));
    expect_span(begun(&d, ACTION_SEND, 1)->src, PLACE_VECTOR, 0, 2);
    finish(&d, place_of(&d, begun(&d, ACTION_SEND, 1)));
    expect_span(begun(&d, ACTION_REDUCE, 1)->operand, PLACE_VECTOR, 0, 2);
    progression_destroy(d.progression);
}

Test(progression, in_place_there_is_only_the_vector)
{
    const struct shape shape = toy_shape(&touches, 2, 3, 1);
    struct driver d = drive(&shape, &simple);
    run(&d);
    expect_span(begun(&d, ACTION_SEND, 0)->src, PLACE_VECTOR, 0, 2);
    expect_span(begun(&d, ACTION_LOCAL, 2)->operand, PLACE_VECTOR, 2, 2);
    while (d.count > 0) {
        cr_expect_neq(d.begun[0].op.kind, OP_COPY, "nothing is to be copied");
        finish(&d, 0);
    }
    cr_expect(progression_finished(d.progression));
    progression_destroy(d.progression);
}

TOY(partly, TOY_RECV(0, 0, 0, 1, 1, 1), TOY_SEND(0, 1, 0, 1, 0, 3));

Test(progression, a_range_written_in_part_is_completed_before_it_is_read)
{
    const struct shape shape = toy_shape(&partly, 2, 3, 1);
    struct progression_params params = simple;
    params.aliased = false;
    struct driver d = drive(&shape, &params);
    cr_expect_eq(run(&d), 3, "the receive, and copies of chunks 0 and 2");
    size_t copies = 0;
    for (size_t i = 0; i < d.count; i++)
        if (d.begun[i].kind == ACTION_LOCAL) {
            cr_expect_eq(d.begun[i].op.kind, OP_COPY);
            expect_span(d.begun[i].src, PLACE_INPUT, copies == 0 ? 0 : 4, 2);
            expect_span(d.begun[i].dst, PLACE_VECTOR, copies == 0 ? 0 : 4, 2);
            copies++;
        }
    cr_expect_eq(copies, 2);
    cr_expect_eq(finish(&d, place_of(&d, begun(&d, ACTION_POST, 0))), 0);
    cr_expect_eq(finish(&d, 0), 2, "segments 0 and 1 of the send");
    expect_span(begun(&d, ACTION_SEND, 1)->src, PLACE_VECTOR, 0, 2);
    finish_all(&d);
    progression_destroy(d.progression);
}

TOY(partly_in_lanes, TOY_RECV(0, 0, 0, 1, 1, 1), TOY_FENCE(0, 1, 0, 3), TOY_SEND(0, 1, 1, 1, 0, 3),
    TOY_SEND(0, 1, 2, 1, 0, 3));

Test(progression, a_copy_for_one_lane_is_there_for_the_others_too)
{
    const struct shape shape = toy_shape(&partly_in_lanes, 2, 3, 3);
    struct progression_params params = simple;
    params.aliased = false;
    params.segment = 6;
    struct driver d = drive(&shape, &params);
    cr_expect_eq(run(&d), 3, "the receive, and copies of chunks 0 and 2 in lane 1");
    cr_expect_eq(finish(&d, 0), 0);
    cr_expect_eq(finish(&d, 1), 0);
    cr_expect_eq(finish(&d, 0), 2, "sends in both lanes");
    finish_all(&d);
    progression_destroy(d.progression);
}

Test(progression, out_of_place_what_is_read_from_the_input_may_be_overwritten_in_the_output)
{
    const struct shape shape = toy_shape(&overwrite, 2, 3, 1);
    struct progression_params params = simple;
    params.aliased = false;
    struct driver d = drive(&shape, &params);
    run(&d);
    cr_expect_not_null(begun(&d, ACTION_POST, 1), "before the send is over");
    finish_all(&d);
    progression_destroy(d.progression);
}

TOY(middle, TOY_RECV(0, 0, 0, 1, 1, 1));

Test(progression, chunks_never_written_are_copied_at_the_end)
{
    const struct shape shape = toy_shape(&middle, 2, 3, 1);
    struct progression_params params = simple;
    params.aliased = false;
    struct driver d = drive(&shape, &params);
    cr_expect_eq(run(&d), 3);
    expect_span(d.begun[1].src, PLACE_INPUT, 0, 2);
    expect_span(d.begun[1].dst, PLACE_VECTOR, 0, 2);
    expect_span(d.begun[2].src, PLACE_INPUT, 4, 2);
    expect_span(d.begun[2].dst, PLACE_VECTOR, 4, 2);
    cr_expect_eq(d.begun[1].op.weight, 1);
    finish_all(&d);
    progression_destroy(d.progression);
}

Test(progression, without_any_op_out_of_place_is_one_copy)
{
    struct toy nothing = {.ops = NULL, .count = 0};
    const struct shape shape = toy_shape(&nothing, 1, 1, 1);
    struct progression_params params = simple;
    params.aliased = false;
    params.segment = 100;
    struct driver d = drive(&shape, &params);
    cr_expect_eq(run(&d), 1);
    expect_span(d.begun[0].src, PLACE_INPUT, 0, 6);
    expect_span(d.begun[0].dst, PLACE_VECTOR, 0, 6);
    finish_all(&d);
    progression_destroy(d.progression);
}

TOY(planes, {0, {.kind = OP_RECV, .peer = 1, .dst = TOY_PLANE(4, 2), .weight = 1}},
    {0, {.kind = OP_REDUCE, .round = 1, .src = TOY_PLANE(4, 2), .dst = TOY_LEAVES(1, 2), .weight = 1}});

Test(progression, a_scratch_plane_has_the_partition_of_the_vector)
{
    struct shape shape = toy_shape(&planes, 2, 3, 1);
    shape.scratch = 2;
    struct progression_params params = simple;
    params.count = 7; /* leaves of 3, 2, 2: not a multiple of the segment */
    params.segment = 4;
    params.aliased = false;
    struct driver d = drive(&shape, &params);
    run(&d);
    expect_span(begun(&d, ACTION_POST, 0)->dst, PLACE_SCRATCH, 7 + 3, 4);
    finish(&d, 0);
    expect_span(begun(&d, ACTION_LOCAL, 1)->src, PLACE_SCRATCH, 7 + 3, 4);
    expect_span(begun(&d, ACTION_LOCAL, 1)->operand, PLACE_INPUT, 3, 4);
    expect_span(begun(&d, ACTION_LOCAL, 1)->dst, PLACE_VECTOR, 3, 4);
    finish_all(&d);
    progression_destroy(d.progression);
}

/* ---- WAIT and FENCE, rule 3 ---- */

TOY(unordered, TOY_RECV(0, 0, 0, 1, 0, 1), TOY_SEND(0, 1, 1, 2, 0, 1));
TOY(waiting, TOY_RECV(0, 0, 0, 1, 0, 1), TOY_WAIT(0, 1, 1, 0, 0), TOY_SEND(0, 1, 1, 2, 0, 1));
TOY(too_early, TOY_RECV(0, 1, 0, 1, 0, 1), TOY_WAIT(0, 1, 1, 0, 0), TOY_SEND(0, 1, 1, 2, 0, 1));
TOY(fenced, TOY_RECV(0, 0, 1, 1, 0, 1), TOY_FENCE(0, 1, 0, 3), TOY_SEND(0, 1, 2, 2, 0, 1));
TOY(fenced_elsewhere, TOY_RECV(0, 0, 1, 1, 0, 1), TOY_FENCE(0, 1, 1, 1), TOY_SEND(0, 1, 2, 2, 0, 1));

Test(progression, lanes_are_not_ordered_by_themselves)
{
    const struct shape shape = toy_shape(&unordered, 3, 1, 2);
    struct driver d = drive(&shape, &simple);
    cr_expect_eq(run(&d), 6, "receives and sends alike");
    progression_destroy(d.progression);
}

Test(progression, a_wait_holds_back_a_segment_until_what_it_overlaps_is_complete)
{
    const struct shape shape = toy_shape(&waiting, 3, 1, 2);
    struct driver d = drive(&shape, &simple);
    cr_expect_eq(run(&d), 3);
    cr_expect_eq(finish(&d, 0), 1, "one segment has come, one may go on");
    finish_all(&d);
    progression_destroy(d.progression);
}

Test(progression, a_wait_for_an_earlier_round_orders_no_later_op)
{
    const struct shape shape = toy_shape(&too_early, 3, 1, 2);
    struct driver d = drive(&shape, &simple);
    cr_expect_eq(run(&d), 6, "receives and sends alike");
    finish_all(&d);
    progression_destroy(d.progression);
}

TOY(waiting_within, TOY_RECV(0, 0, 0, 1, 0, 1), TOY_WAIT(0, 0, 1, 0, 0), TOY_SEND(0, 0, 1, 2, 0, 1),
    TOY_RECV(0, 0, 0, 1, 1, 1), TOY_SEND(0, 0, 1, 2, 1, 1));

Test(progression, a_wait_is_for_what_stands_before_it_of_its_own_round_too)
{
    const struct shape shape = toy_shape(&waiting_within, 3, 3, 2);
    struct progression_params params = simple;
    params.segment = 6;
    struct driver d = drive(&shape, &params);
    cr_expect_eq(run(&d), 2, "both receives; the second send stands behind the first on its channel");
    cr_expect_eq(finish(&d, 0), 2, "and does not wait for the receive that was emitted after the wait");
    finish_all(&d);
    progression_destroy(d.progression);
}

TOY(waiting_aside, TOY_RECV(0, 0, 0, 1, 0, 1), TOY_WAIT(0, 1, 1, 0, 0), TOY_SEND(0, 1, 1, 2, 1, 1));

Test(progression, a_wait_does_not_hold_back_what_overlaps_nothing)
{
    const struct shape shape = toy_shape(&waiting_aside, 3, 3, 2);
    struct driver d = drive(&shape, &simple);
    run(&d);
    cr_expect_not_null(begun(&d, ACTION_SEND, 1));
    progression_destroy(d.progression);
}

TOY(waiting_in_a_chain, TOY_RECV(0, 0, 0, 1, 0, 1), TOY_WAIT(0, 1, 1, 0, 0), TOY_WAIT(0, 1, 2, 1, 1),
    TOY_SEND(0, 1, 2, 2, 0, 1));

Test(progression, a_wait_takes_over_what_the_waited_lane_has_waited_for)
{
    const struct shape shape = toy_shape(&waiting_in_a_chain, 3, 1, 3);
    struct driver d = drive(&shape, &simple);
    cr_expect_eq(run(&d), 3, "no send before its receive");
    cr_expect_eq(finish(&d, 0), 1);
    finish_all(&d);
    progression_destroy(d.progression);
}

Test(progression, a_wait_holds_when_what_it_is_for_was_taken_in_long_before)
{
    const struct shape shape = toy_shape(&waiting_in_a_chain, 3, 1, 3);
    struct progression_params params = simple;
    params.lookahead = 1;
    struct driver d = drive(&shape, &params);
    finish_all(&d);
    progression_restart(d.progression);
    cr_expect_eq(run(&d), 3);
    cr_expect_eq(finish(&d, 2), 0);
    finish_all(&d);
    progression_destroy(d.progression);
}

Test(progression, a_fence_orders_the_lanes_that_it_joins)
{
    const struct shape shape = toy_shape(&fenced, 3, 1, 3);
    struct driver d = drive(&shape, &simple);
    cr_expect_eq(run(&d), 3);
    cr_expect_eq(finish(&d, 0), 1);
    finish_all(&d);
    progression_destroy(d.progression);
}

Test(progression, a_fence_orders_no_other_lanes)
{
    const struct shape shape = toy_shape(&fenced_elsewhere, 3, 1, 3);
    struct driver d = drive(&shape, &simple);
    cr_expect_eq(run(&d), 6);
    finish_all(&d);
    progression_destroy(d.progression);
}

TOY(idle_waits, TOY_WAIT(0, 0, 1, 0, 0), TOY_WAIT(0, 1, 1, 0, 1), TOY_FENCE(0, 2, 0, 2), TOY_SEND(0, 3, 0, 1, 0, 1),
    TOY_WAIT(0, 4, 1, 0, 4));

Test(progression, waits_for_nothing_do_not_keep_later_rounds_out)
{
    const struct shape shape = toy_shape(&idle_waits, 2, 1, 2);
    struct progression_params params = simple;
    params.lookahead = 1;
    params.segment = 6;
    struct driver d = drive(&shape, &params);
    cr_expect_eq(run(&d), 1, "nothing will be completed before this send, so it must start");
    finish(&d, 0);
    cr_expect(progression_finished(d.progression));
    progression_destroy(d.progression);
}

/* ---- taking in, again and again ---- */

TOY(chain, TOY_SEND(0, 0, 0, 1, 0, 1), TOY_REDUCE(0, 0, 0, 1, 1, 1), TOY_SEND(0, 1, 0, 2, 1, 1),
    TOY_REDUCE(0, 1, 0, 2, 0, 2), TOY_SEND(0, 2, 0, 1, 0, 1), TOY_RECV(0, 2, 0, 1, 1, 1), TOY_SEND(0, 3, 0, 2, 1, 1),
    TOY_RECV(0, 3, 0, 2, 0, 1));

Test(progression, rounds_are_taken_in_as_far_ahead_as_asked)
{
    const struct shape shape = toy_shape(&chain, 3, 3, 1);
    struct progression_params params = simple;
    params.lookahead = 1;
    struct driver d = drive(&shape, &params);
    cr_expect_eq(run(&d), 2, "two ops of round 0, and no more");
    finish_all(&d);
    progression_destroy(d.progression);
}

static bool same_op(const struct op *a, const struct op *b)
{
    return a->kind == b->kind && a->peer == b->peer && a->round == b->round && a->src.chunk == b->src.chunk &&
           a->dst.chunk == b->dst.chunk;
}

/* All actions of a run in which the second-oldest is completed first. */
static size_t trace(struct driver *d, struct action *actions)
{
    size_t n = 0;
    run(d);
    while (d->count > 0) {
        const size_t i = d->count > 1 ? 1 : 0;
        cr_assert_lt(n, MOST);
        actions[n++] = d->begun[i];
        finish(d, i);
    }
    cr_expect(progression_finished(d->progression));
    return n;
}

static void expect_same_again(const struct progression_params *params)
{
    static struct action before[MOST], after[MOST];
    const struct shape shape = toy_shape(&chain, 3, 3, 1);
    struct driver d = drive(&shape, params);
    const size_t n = trace(&d, before);
    progression_restart(d.progression);
    cr_expect_not(progression_finished(d.progression));
    cr_assert_eq(trace(&d, after), n);
    for (size_t i = 0; i < n; i++) {
        cr_expect_eq(after[i].kind, before[i].kind);
        cr_expect(same_op(&after[i].op, &before[i].op));
        cr_expect_eq(after[i].sequence, before[i].sequence);
        cr_expect_eq(after[i].segment, before[i].segment);
        cr_expect_eq(after[i].first, before[i].first);
        expect_span(after[i].src, before[i].src.place, before[i].src.offset, before[i].src.count);
        expect_span(after[i].dst, before[i].dst.place, before[i].dst.offset, before[i].dst.count);
        expect_span(after[i].operand, before[i].operand.place, before[i].operand.offset, before[i].operand.count);
    }
    progression_destroy(d.progression);
}

Test(progression, started_again_it_does_the_same)
{
    struct progression_params params = simple;
    expect_same_again(&params);
    params.aliased = false;
    params.lookahead = 2;
    params.segment = 1;
    expect_same_again(&params);
    params.disorder = 7;
    expect_same_again(&params);
}

Test(progression, started_again_half_way_it_does_the_same)
{
    static struct action whole[MOST], again[MOST];
    const struct shape shape = toy_shape(&chain, 3, 3, 1);
    struct driver d = drive(&shape, &simple);
    const size_t n = trace(&d, whole);
    progression_restart(d.progression);
    run(&d);
    finish(&d, 0);
    d.count = 0;
    progression_restart(d.progression);
    cr_assert_eq(trace(&d, again), n);
    for (size_t i = 0; i < n; i++)
        cr_expect(same_op(&again[i].op, &whole[i].op));
    progression_destroy(d.progression);
}

/* ---- joined messages, empty chunks ---- */

TOY(joined, {0, {.kind = OP_SEND, .flags = OP_MORE, .peer = 1, .src = TOY_LEAVES(0, 1), .weight = 1}},
    TOY_SEND(0, 0, 0, 1, 2, 1), TOY_SEND(0, 0, 0, 1, 1, 1));

Test(progression, only_the_first_segment_of_joined_ops_begins_a_message)
{
    const struct shape shape = toy_shape(&joined, 2, 3, 1);
    struct progression_params params = simple;
    params.segment = 1;
    struct driver d = drive(&shape, &params);
    cr_expect_eq(run(&d), 6);
    const bool first[] = {true, false, false, false, true, false};
    for (size_t i = 0; i < 6; i++)
        cr_expect_eq(d.begun[i].first, first[i], "segment %zu", i);
    progression_destroy(d.progression);
}

TOY(joined_to_empty, {0, {.kind = OP_SEND, .flags = OP_MORE, .peer = 1, .src = TOY_LEAVES(2, 1), .weight = 1}},
    TOY_SEND(0, 0, 0, 1, 0, 1));

Test(progression, a_message_begins_with_its_first_element)
{
    const struct shape shape = toy_shape(&joined_to_empty, 2, 3, 1);
    struct progression_params params = simple;
    params.count = 1;
    struct driver d = drive(&shape, &params);
    cr_expect_eq(run(&d), 1);
    cr_expect(d.begun[0].first);
    progression_destroy(d.progression);
}

TOY(empties, TOY_SEND(0, 0, 0, 1, 2, 1), TOY_SEND(0, 0, 0, 1, 0, 1), TOY_RECV(0, 1, 0, 1, 1, 1),
    TOY_RECV(0, 1, 0, 1, 0, 1));

Test(progression, of_an_empty_chunk_nothing_travels)
{
    const struct shape shape = toy_shape(&empties, 2, 3, 1);
    struct progression_params params = simple;
    params.count = 1;
    struct driver d = drive(&shape, &params);
    cr_expect_eq(run(&d), 1);
    cr_expect_eq(d.begun[0].sequence, 0, "empty ops take no number");
    expect_span(d.begun[0].src, PLACE_VECTOR, 0, 1);
    cr_expect_eq(finish(&d, 0), 1);
    cr_expect_eq(d.begun[0].sequence, 0);
    finish_all(&d);
    progression_destroy(d.progression);
}

Test(progression, of_no_elements_nothing_is_done)
{
    const struct shape shape = toy_shape(&empties, 2, 3, 1);
    struct progression_params params = simple;
    params.count = 0;
    params.aliased = false;
    struct driver d = drive(&shape, &params);
    cr_expect_eq(run(&d), 0);
    cr_expect(progression_finished(d.progression));
    progression_destroy(d.progression);
}

Test(progression, the_last_segment_may_be_short)
{
    const struct shape shape = toy_shape(&relay, 3, 1, 1);
    struct progression_params params = simple;
    params.count = 5;
    struct driver d = drive(&shape, &params);
    cr_expect_eq(run(&d), 3);
    expect_span(d.begun[2].dst, PLACE_VECTOR, 4, 1);
    progression_destroy(d.progression);
}

/* ---- words ---- */

Test(progression, describes_what_is_alive)
{
    const struct shape shape = toy_shape(&relay, 3, 1, 1);
    struct driver d = drive(&shape, &simple);
    struct text text = {0};
    run(&d);
    finish(&d, 0);
    progression_describe(d.progression, 8, &text);
    cr_expect_str_eq(text_string(&text),
                     "round 0 lane 0: receiving from 1 (1 of 3 segments done, 3 begun, next is number 1); "
                     "round 1 lane 0: sending to 2 (0 of 3 segments done, 1 begun, next is number 0)");
    text_clear(&text);
    progression_describe(d.progression, 1, &text);
    cr_expect_str_eq(text_string(&text),
                     "round 0 lane 0: receiving from 1 (1 of 3 segments done, 3 begun, next is number 1); and 1 more");
    cr_expect_eq(progression_oldest(d.progression)->kind, OP_RECV);
    finish_all(&d);
    text_clear(&text);
    progression_describe(d.progression, 8, &text);
    cr_expect_str_eq(text_string(&text), "");
    cr_expect_null(progression_oldest(d.progression));
    text_release(&text);
    progression_destroy(d.progression);
}

static void expect_malformed(struct op op, const char *fault)
{
    const struct toy_op table[] = {{0, op}};
    struct toy toy = {.ops = table, .count = 1};
    struct shape shape = toy_shape(&toy, 2, 3, 1);
    shape.scratch = 1;
    struct progression *progression = NULL;
    struct action action;
    cr_assert_eq(progression_create(&shape, 0, &simple, &progression), STATUS_OK);
    status_clear();
    cr_expect_eq(progression_next(progression, &action), STATUS_FORMAT, "op of kind %d", (int)op.kind);
    cr_expect_eq(strncmp(status_message(), fault, strlen(fault)), 0, "\"%s\" does not begin with %s", status_message(),
                 fault);
    progression_destroy(progression);
}

Test(progression, names_what_is_wrong_with_a_malformed_op)
{
    const struct range leaf = TOY_LEAVES(0, 1), beyond = TOY_LEAVES(2, 2), pair = TOY_LEAVES(0, 2),
                       next_pair = TOY_LEAVES(1, 2), none = TOY_LEAVES(1, 0), plane = TOY_PLANE(3, 1),
                       astride = TOY_PLANE(2, 2);
    expect_malformed((struct op){.kind = OP_KINDS}, "bad-op: ");
    expect_malformed((struct op){.kind = OP_SEND, .lane = 1, .peer = 1, .src = leaf}, "bad-op: ");
    expect_malformed((struct op){.kind = OP_SEND, .peer = 2, .src = leaf}, "bad-op: ");
    expect_malformed((struct op){.kind = OP_SEND, .peer = -1, .src = leaf}, "bad-op: ");
    expect_malformed((struct op){.kind = OP_SEND, .peer = 0, .src = leaf}, "bad-op: ");
    expect_malformed((struct op){.kind = OP_SEND, .peer = 1, .src = beyond}, "bad-op: ");
    expect_malformed((struct op){.kind = OP_RECV, .peer = 1, .dst = none}, "bad-op: ");
    expect_malformed((struct op){.kind = OP_RECV, .flags = OP_FINAL, .peer = 1, .dst = leaf}, "bad-op: ");
    expect_malformed((struct op){.kind = OP_COPY, .src = pair, .dst = leaf}, "bad-op: ");
    expect_malformed((struct op){.kind = OP_COPY, .src = pair, .dst = next_pair}, "bad-op: ");
    expect_malformed((struct op){.kind = OP_FENCE, .lanes = 2}, "bad-op: ");
    expect_malformed((struct op){.kind = OP_FENCE, .lanes = 0}, "bad-op: ");
    expect_malformed((struct op){.kind = OP_SEND, .peer = 1, .src = plane}, "scratch: ");
    expect_malformed((struct op){.kind = OP_RECV, .peer = 1, .dst = astride}, "scratch: ");
    expect_malformed((struct op){.kind = OP_WAIT, .wait_round = 1}, "wait-in-future: ");
    expect_malformed((struct op){.kind = OP_WAIT, .wait_lane = 1}, "wait-in-future: ");
}

Test(progression, refuses_parameters_out_of_range)
{
    const struct shape shape = toy_shape(&relay, 3, 1, 1);
    struct progression *progression = NULL;
    struct progression_params params = simple;
    cr_expect_eq(progression_create(&shape, 3, &params, &progression), STATUS_INTERNAL);
    params.window = 65;
    cr_expect_eq(progression_create(&shape, 0, &params, &progression), STATUS_INTERNAL);
    params = simple;
    params.segment = 0;
    cr_expect_eq(progression_create(&shape, 0, &params, &progression), STATUS_INTERNAL);
    params = simple;
    params.lookahead = 0;
    cr_expect_eq(progression_create(&shape, 0, &params, &progression), STATUS_INTERNAL);
    progression_destroy(NULL);
}
