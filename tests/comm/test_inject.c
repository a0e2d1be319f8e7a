/* test_inject.c - impairments: their spelling, what they draw, and that messages held back keep their order and arrive once.
 * Lower bounds only: how much later something comes is the machine's affair.
 */
#include "comm/inject.h"

#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/transport.h"
#include "tests/base/expect.h"

enum { MESSAGES = 60, PAIR = 2, TAGS = 3 };

static struct inject parsed(const char *text)
{
    struct inject inject;
    cr_assert_eq(inject_parse(text, &inject), STATUS_OK, "%s: %s", text, status_message());
    return inject;
}

/* ---- the text ---- */

Test(inject, has_one_spelling)
{
    static const char *const same[][2] = {
        {"", ""},
        {"delay=50", "delay=50us"},
        {"delay=0.05ms", "delay=50us"},
        {"jitter=2ms@3-0,delay=1us", "delay=1us,jitter=2000us@3-0"},
        {"bandwidth=100MB/s,bandwidth=1Gbit/s@0-1", "bandwidth=0.1GB/s,bandwidth=0.125GB/s@0-1"},
        {"die=1@7,straggler=2:1.50", "straggler=2:1.5,die=1@7:kill"},
        {"die=0@0:stop", "die=0@0:stop"},
        {"die=0@3:exit0", "die=0@3:exit0"},
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        struct text text = {0};
        struct inject inject = parsed(same[i][0]);
        inject_describe(&inject, &text);
        cr_expect_str_eq(text_string(&text), same[i][1], "%s", same[i][0]);
        inject = parsed(text_string(&text));
        text_clear(&text);
        inject_describe(&inject, &text);
        cr_expect_str_eq(text_string(&text), same[i][1]);
        text_release(&text);
    }
}

Test(inject, says_what_is_wrong)
{
    static const char *const wrong[][2] = {
        {"delay", "KEY=VALUE"},
        {"delay=x", "microseconds"},
        {"delay=-1", "microseconds"},
        {"delay=2h", "microseconds"},
        {"delay=7200s", "an hour"},
        {"bandwidth=5", "with its unit"},
        {"bandwidth=0GB/s", "a rate"},
        {"delay=1@0", "@FROM-TO"},
        {"delay=1@1-1", "@FROM-TO"},
        {"delay=1@a-b", "@FROM-TO"},
        {"straggler=1", "RANK:FACTOR"},
        {"straggler=1:0.5", "RANK:FACTOR"},
        {"straggler=-1:2", "RANK"},
        {"die=1", "RANK@STEP"},
        {"die=1@", "RANK@STEP"},
        {"die=1@2:fall", "kill, stop"},
        {"latency=3us", "unknown"},
        {"delay=1,,jitter=", "microseconds"},
        {"straggler=1:2,straggler=0:2", "one straggler"},
        {"die=1@2,die=0@2", "one worker dies"},
    };
    struct inject inject;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_expect_eq(inject_parse(wrong[i][0], &inject), STATUS_USAGE, "%s", wrong[i][0]);
        cr_expect(strstr(status_message(), wrong[i][1]) != NULL, "%s: %s", wrong[i][0], status_message());
    }
    cr_expect_eq(inject_parse("delay=1us,drop=0.01", &inject), STATUS_REFUSED);
    cr_expect(strstr(status_message(), "deadlock") != NULL, "%s", status_message());
    inject = parsed("delay=1us@0-4");
    cr_expect_eq(inject_check(&inject, 4), STATUS_USAGE);
    cr_expect_eq(inject_check(&inject, 5), STATUS_OK);
    inject = parsed("straggler=3:2");
    cr_expect_eq(inject_check(&inject, 3), STATUS_USAGE);
    inject = parsed("die=0@1:stop");
    EXPECT_FAIL(STATUS_USAGE, "only worker", inject_check(&inject, 1));
    EXPECT_OK(inject_check(&inject, 2));
    inject = parsed("die=3@1");
    cr_expect_eq(inject_check(&inject, 3), STATUS_USAGE);
}

/* ---- what is drawn ---- */

Test(inject, draws_the_same_for_the_same_seed)
{
    const struct inject inject = parsed("delay=100us,jitter=50us,jitter=0us@2-1");
    int equal_links = 0, equal_seeds = 0;
    double sum = 0;
    for (uint64_t number = 0; number < 1000; number++) {
        const double late = inject_lateness(&inject, 7, 0, 1, number);
        cr_assert(late >= 100e-6 && late < 150e-6, "%g", late);
        cr_assert_eq(late, inject_lateness(&inject, 7, 0, 1, number));
        cr_assert_eq(inject_lateness(&inject, 7, 2, 1, number), 100e-6);
        equal_links += late == inject_lateness(&inject, 7, 1, 0, number);
        equal_seeds += late == inject_lateness(&inject, 8, 0, 1, number);
        sum += late;
    }
    cr_expect_lt(equal_links, 5);
    cr_expect_lt(equal_seeds, 5);
    cr_expect(sum / 1000 > 120e-6 && sum / 1000 < 130e-6, "mean %g", sum / 1000);
}

Test(inject, a_straggler_is_late_by_its_factor)
{
    const struct inject nominal = parsed("straggler=1:3"), given = parsed("delay=40us,straggler=1:3");
    cr_expect_eq(inject_lateness(&nominal, 1, 0, 1, 0), 0);
    cr_expect_float_eq(inject_lateness(&nominal, 1, 1, 0, 0), 20e-6, 1e-12);
    cr_expect_float_eq(inject_lateness(&given, 1, 1, 0, 0), 120e-6, 1e-12);
    cr_expect_float_eq(inject_lateness(&given, 1, 0, 1, 0), 40e-6, 1e-12);
    const double begin = clock_seconds();
    inject_compute(&nominal, 0, 100);
    inject_compute(&nominal, 1, 0.005);
    cr_expect_geq(clock_seconds() - begin, 0.01);
}

/* ---- messages ---- */

static void open_pair(const char *text, enum loopback_mode mode, struct transport **pair)
{
    const struct inject inject = parsed(text);
    struct transport *plain[PAIR];
    cr_assert_eq(loopback_open(PAIR, mode, 11, plain), STATUS_OK);
    for (int i = 0; i < PAIR; i++)
        cr_assert_eq(inject_open(&inject, 5, plain[i], &pair[i]), STATUS_OK, "%s", status_message());
}

static void close_pair(struct transport **pair)
{
    for (int i = 0; i < PAIR; i++)
        pair[i]->ops->close(pair[i]);
}

static size_t turn(struct transport *transport, struct transfer **done, size_t limit)
{
    size_t count = 0;
    cr_assert_eq(transport->ops->progress(transport, done, limit, &count), STATUS_OK, "%s", status_message());
    return count;
}

/* Numbers 0, 1, ... in messages of several tags; every message arrives once, in its tag's order, and none early. */
static void exchange(const char *text, enum loopback_mode mode, double least)
{
    static struct transfer sent[MESSAGES], received[MESSAGES];
    static uint32_t numbers[MESSAGES][200], landed[MESSAGES][200];
    static double began[MESSAGES];
    struct transport *pair[PAIR];
    struct transfer *done[16];
    int reports = 0, arrivals = 0;
    open_pair(text, mode, pair);
    for (int i = 0; i < MESSAGES; i++) {
        const size_t bytes = sizeof(uint32_t) * (size_t)(i % 5 == 4 ? 200 : 1); /* beyond the eager limit, and below */
        numbers[i][0] = (uint32_t)i;
        while (pair[1]->ops->receive(pair[1], 0, (uint64_t)i % TAGS, 0, landed[i], sizeof landed[i], &received[i]) ==
               STATUS_AGAIN)
            (void)turn(pair[1], done, 0);
        began[i] = clock_seconds();
        cr_assert_eq(pair[0]->ops->send(pair[0], 1, (uint64_t)i % TAGS, numbers[i], bytes, &sent[i]), STATUS_OK);
    }
    while (reports < MESSAGES || arrivals < MESSAGES) {
        reports += (int)turn(pair[0], done, 16);
        const size_t count = turn(pair[1], done, 16);
        for (size_t k = 0; k < count; k++) {
            const int number = (int)(done[k] - received);
            cr_assert_eq(done[k]->status, STATUS_OK);
            cr_assert_eq(landed[number][0], (uint32_t)number, "%s: %u came in the place of %d", text, landed[number][0],
                         number);
            cr_assert_geq(clock_seconds() - began[number], least, "%s: message %d is early", text, number);
        }
        arrivals += (int)count;
        pair[0]->ops->wait(pair[0], 100000, 1000);
    }
    cr_expect_eq(reports, MESSAGES);
    cr_expect_eq(arrivals, MESSAGES);
    close_pair(pair);
}

Test(inject, keeps_the_order_of_messages)
{
    for (int mode = LOOPBACK_IN_ORDER; mode <= LOOPBACK_DELAYED; mode++) {
        exchange("", (enum loopback_mode)mode, 0);
        exchange("delay=2ms", (enum loopback_mode)mode, 2e-3);
        exchange("delay=1ms,jitter=3ms", (enum loopback_mode)mode, 1e-3);
        exchange("bandwidth=1MB/s,jitter=1ms", (enum loopback_mode)mode, 4e-6);
        exchange("delay=5ms@1-0", (enum loopback_mode)mode, 0);
        exchange("straggler=0:101", (enum loopback_mode)mode, 1e-3);
    }
}

/* 10 messages of 1000 bytes at 1 MB/s: the last leaves after 10 ms. */
Test(inject, bandwidth_adds_up)
{
    struct transport *pair[PAIR];
    struct transfer *done[16], sent[10], received[10];
    unsigned char from[1000] = {0}, to[10][1000];
    int arrivals = 0;
    open_pair("bandwidth=1MB/s", LOOPBACK_IN_ORDER, pair);
    const double begin = clock_seconds();
    for (int i = 0; i < 10; i++) {
        cr_assert_eq(pair[1]->ops->receive(pair[1], 0, 1, 0, to[i], sizeof to[i], &received[i]), STATUS_OK);
        cr_assert_eq(pair[0]->ops->send(pair[0], 1, 1, from, sizeof from, &sent[i]), STATUS_OK);
    }
    while (arrivals < 10) {
        (void)turn(pair[0], done, 16);
        arrivals += (int)turn(pair[1], done, 16);
    }
    cr_expect_geq(clock_seconds() - begin, 0.01);
    close_pair(pair);
}

Test(inject, what_is_held_can_be_cancelled)
{
    struct transport *pair[PAIR];
    struct transfer *done[16], sent[3];
    const char byte = 1;
    open_pair("delay=1000s", LOOPBACK_IN_ORDER, pair);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(pair[0]->ops->send(pair[0], 1, 1, &byte, 1, &sent[i]), STATUS_OK);
    pair[0]->ops->cancel(pair[0], &sent[1]);
    pair[0]->ops->cancel(pair[0], &sent[2]);
    cr_assert_eq(turn(pair[0], done, 16), 2);
    for (int i = 0; i < 2; i++)
        cr_expect(done[i] != &sent[0] && done[i]->status == STATUS_INTERRUPTED);
    pair[0]->ops->cancel(pair[0], &sent[0]);
    cr_assert_eq(turn(pair[0], done, 16), 1);
    cr_expect_eq(done[0], &sent[0]);
    close_pair(pair);
}

Test(inject, nothing_passes_by)
{
    struct transport *pair[PAIR];
    struct text text = {0};
    open_pair("delay=1us", LOOPBACK_NODE, pair);
    cr_expect_null(pair[0]->node);
    pair[0]->ops->describe(pair[0], &text);
    cr_expect(strstr(text_string(&text), "impaired by delay=1us, which switches node memory off") != NULL, "%s",
              text_string(&text));
    text_release(&text);
    close_pair(pair);
}

/* ---- teams ---- */

struct maker {
    struct comm *comm;
    struct team *team;
    enum status status;
};

static void *make_team(void *context)
{
    static const int both[PAIR] = {0, 1};
    struct maker *maker = context;
    maker->status = team_create(maker->comm, both, PAIR, &maker->team);
    return NULL;
}

/* Worker 0, whose answer is held back, does nothing more for the network once it has its team. */
Test(inject, a_team_is_made_for_all_or_none)
{
    struct transport *pair[PAIR];
    struct maker makers[PAIR] = {{NULL}};
    pthread_t thread[PAIR];
    open_pair("delay=5ms", LOOPBACK_IN_ORDER, pair);
    for (int i = 0; i < PAIR; i++) {
        EXPECT_OK(comm_open(&(struct comm_request){.transport = pair[i], .deadline = 20}, &makers[i].comm));
        cr_assert_eq(pthread_create(&thread[i], NULL, make_team, &makers[i]), 0);
    }
    for (int i = 0; i < PAIR; i++)
        cr_assert_eq(pthread_join(thread[i], NULL), 0);
    for (int i = 0; i < PAIR; i++) {
        cr_expect_eq(makers[i].status, STATUS_OK, "worker %d", i);
        team_destroy(makers[i].team);
    }
    for (int i = 0; i < PAIR; i++)
        comm_close(makers[i].comm);
}
