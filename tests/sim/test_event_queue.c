/* test_event_queue.c - events come out by time, then round, then in the order of their pushes. */
#include "base/rng.h"
#include "sim/event_queue.h"
#include "tests/base/expect.h"

Test(event_queue, empty)
{
    struct event_queue queue = {0};
    struct event event;
    cr_expect(!event_queue_pop(&queue, &event));
    event_queue_release(&queue);
}

Test(event_queue, by_time_then_round_then_push)
{
    static const struct {
        double time_s;
        uint32_t round, record;
    } pushes[] = {{2, 0, 5}, {1, 7, 3}, {1, 2, 1}, {1, 7, 4}, {1, 2, 2}, {0.5, 9, 0}};
    struct event_queue queue = {0};
    struct event event;
    for (size_t i = 0; i < sizeof pushes / sizeof pushes[0]; i++)
        EXPECT_OK(event_queue_push(&queue, pushes[i].time_s, pushes[i].round, 42, pushes[i].record));
    for (uint32_t i = 0; i < sizeof pushes / sizeof pushes[0]; i++) {
        cr_assert(event_queue_pop(&queue, &event));
        cr_expect_eq(event.record, i);
        cr_expect_eq(event.kind, 42u);
    }
    cr_expect(!event_queue_pop(&queue, &event));
    event_queue_release(&queue);
}

/* Pushes and pops in random turn: what comes out never goes back in time, and nothing is lost. */
Test(event_queue, a_long_random_run)
{
    enum { TURNS = 200000 };
    struct event_queue queue = {0};
    struct event event;
    const uint64_t key = rng_key(1, "events", 0, 0);
    double now_s = 0;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < TURNS; i++) {
        EXPECT_OK(event_queue_push(&queue, now_s + rng_uniform(key, i), 0, 0, (uint32_t)i));
        sum += i;
        if (rng_below(key, TURNS + i, 3) == 0)
            continue;
        cr_assert(event_queue_pop(&queue, &event));
        cr_assert(event.time_s >= now_s, "%g s after %g s", event.time_s, now_s);
        now_s = event.time_s;
        sum -= event.record;
    }
    while (event_queue_pop(&queue, &event)) {
        cr_assert(event.time_s >= now_s, "%g s after %g s", event.time_s, now_s);
        now_s = event.time_s;
        sum -= event.record;
    }
    cr_expect_eq(sum, (uint64_t)0);
    event_queue_release(&queue);
}
