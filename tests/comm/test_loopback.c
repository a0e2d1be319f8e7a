/* test_loopback.c - the loopback transport cranked from one thread: matching, order, disorder, rendezvous, ends. */
#include "comm/transport.h"

#include <stdint.h>
#include <string.h>

#include "tests/base/expect.h"

#define MODES 3
#define MOST 128
#define SMALL 64  /* eager      */
#define LARGE 600 /* rendezvous */

struct net {
    struct transport *transports[4];
    int size;
};

static struct net net_open(int size, int mode, uint64_t seed)
{
    struct net net = {.size = size};
    cr_assert_eq(loopback_open(size, (enum loopback_mode)mode, seed, net.transports), STATUS_OK);
    return net;
}

static void net_close(struct net *net)
{
    for (int i = 0; i < net->size; i++)
        net->transports[i]->ops->close(net->transports[i]);
}

static void post_send(struct net *net, int from, int to, uint64_t tag, const void *data, size_t bytes,
                      struct transfer *transfer)
{
    struct transport *transport = net->transports[from];
    enum status status = STATUS_AGAIN;
    while (status == STATUS_AGAIN)
        status = transport->ops->send(transport, to, tag, data, bytes, transfer);
    cr_assert_eq(status, STATUS_OK, "send: %s", status_message());
}

static void post_receive(struct net *net, int at, int from, uint64_t tag, uint64_t ignore, void *data, size_t bytes,
                         struct transfer *transfer)
{
    struct transport *transport = net->transports[at];
    enum status status = STATUS_AGAIN;
    while (status == STATUS_AGAIN)
        status = transport->ops->receive(transport, from, tag, ignore, data, bytes, transfer);
    cr_assert_eq(status, STATUS_OK, "receive: %s", status_message());
}

/* One round at one endpoint. */
static size_t crank(struct net *net, int rank, struct transfer **done)
{
    size_t count = 0;
    cr_assert_eq(net->transports[rank]->ops->progress(net->transports[rank], done, MOST, &count), STATUS_OK);
    return count;
}

/* Crank all endpoints until `wanted` transfers are reported; in order of reporting. */
static void crank_until(struct net *net, size_t wanted, struct transfer **order)
{
    size_t have = 0;
    for (int rounds = 0; have < wanted; rounds++) {
        cr_assert_lt(rounds, 10000, "%zu of %zu transfers are done", have, wanted);
        for (int rank = 0; rank < net->size; rank++) {
            struct transfer *done[MOST];
            size_t count = crank(net, rank, done);
            cr_assert_leq(have + count, wanted, "something was reported twice");
            for (size_t i = 0; i < count; i++)
                order[have++] = done[i];
        }
    }
}

static void expect_silence(struct net *net)
{
    struct transfer *done[MOST];
    for (int rounds = 0; rounds < 50; rounds++)
        for (int rank = 0; rank < net->size; rank++)
            cr_assert_eq(crank(net, rank, done), 0, "something was reported that should not be");
}

Test(loopback, describes_itself)
{
    struct net net = net_open(2, LOOPBACK_SHUFFLED, 1);
    struct text text = {0};
    net.transports[1]->ops->describe(net.transports[1], &text);
    cr_assert_str_eq(text_string(&text), "loopback, shuffled");
    cr_assert_eq(net.transports[1]->rank, 1);
    cr_assert_eq(net.transports[1]->size, 2);
    cr_assert_gt(net.transports[1]->eager_limit, SMALL);
    cr_assert_lt(net.transports[1]->eager_limit, LARGE);
    text_release(&text);
    net_close(&net);
}

/* Messages of both sizes, in both orders of posting, with their contents. */
static void check_contents(int mode, bool receive_first)
{
    static const size_t sizes[] = {0, 1, SMALL, 512, 513, LARGE, 4097};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    static unsigned char from[SIZES][4097], to[SIZES][4097];
    struct transfer sends[SIZES], receives[SIZES], *order[2 * SIZES];
    struct net net = net_open(2, mode, 5);
    for (size_t i = 0; i < SIZES; i++) {
        for (size_t k = 0; k < sizes[i]; k++)
            from[i][k] = (unsigned char)(k * 7 + i);
        memset(to[i], 0, sizeof to[i]);
    }
    for (size_t i = 0; receive_first && i < SIZES; i++)
        post_receive(&net, 1, 0, i, 0, to[i], sizes[i], &receives[i]);
    for (size_t i = 0; i < SIZES; i++)
        post_send(&net, 0, 1, i, from[i], sizes[i], &sends[i]);
    for (size_t i = 0; !receive_first && i < SIZES; i++)
        post_receive(&net, 1, 0, i, 0, to[i], sizes[i], &receives[i]);
    crank_until(&net, 2 * SIZES, order);
    for (size_t i = 0; i < SIZES; i++) {
        cr_assert_eq(receives[i].status, STATUS_OK);
        cr_assert_eq(sends[i].status, STATUS_OK);
        cr_assert_eq(receives[i].bytes, sizes[i]);
        cr_assert_eq(sends[i].bytes, sizes[i]);
        cr_assert(memcmp(from[i], to[i], sizeof to[i]) == 0, "mode %d, size %zu", mode, sizes[i]);
    }
    expect_silence(&net);
    net_close(&net);
}

Test(loopback, carries_messages_of_every_size)
{
    for (int mode = 0; mode < MODES; mode++) {
        check_contents(mode, true);
        check_contents(mode, false);
    }
}

/* Numbered messages over three tags and both sizes from two peers: in order within each (peer, tag). */
static void check_order(int mode, uint64_t seed)
{
    enum { EACH = 10, TAGS = 3, ALL = 2 * TAGS * EACH };
    static int from[ALL][LARGE], to[ALL][LARGE];
    static struct transfer sends[ALL], receives[ALL];
    struct transfer *order[2 * ALL];
    struct net net = net_open(3, mode, seed);
    for (int i = 0; i < ALL; i++) {
        int peer = 1 + i % 2;
        size_t bytes = i % 3 == 0 ? LARGE : SMALL;
        from[i][0] = i / (2 * TAGS);
        post_send(&net, peer, 0, (uint64_t)(i / 2 % TAGS), from[i], bytes, &sends[i]);
    }
    for (int i = 0; i < ALL; i++)
        post_receive(&net, 0, 1 + i % 2, (uint64_t)(i / 2 % TAGS), 0, to[i], LARGE, &receives[i]);
    crank_until(&net, 2 * (size_t)ALL, order);
    for (int i = 0; i < ALL; i++)
        cr_assert_eq(to[i][0], i / (2 * TAGS), "mode %d, seed %d: message %d overtook another of its tag", mode,
                     (int)seed, i);
    net_close(&net);
}

Test(loopback, keeps_the_order_of_each_peer_and_tag)
{
    for (int mode = 0; mode < MODES; mode++)
        for (uint64_t seed = 0; seed < 30; seed++)
            check_order(mode, seed);
}

/* The order in which messages of different tags come in through wildcards. */
static void arrivals(int mode, uint64_t seed, int order[20])
{
    static int from[20], to[20];
    struct transfer sends[20], receives[20], *done[40];
    struct net net = net_open(2, mode, seed);
    for (int i = 0; i < 20; i++)
        post_receive(&net, 1, TRANSPORT_ANY, 0, UINT64_MAX, &to[i], sizeof to[i], &receives[i]);
    for (int i = 0; i < 20; i++) {
        from[i] = i;
        post_send(&net, 0, 1, (uint64_t)i, &from[i], sizeof from[i], &sends[i]);
    }
    crank_until(&net, 40, done);
    memcpy(order, to, sizeof to);
    net_close(&net);
}

Test(loopback, shuffles_when_asked_and_repeats_a_seed)
{
    int first[20], again[20], in_order[20];
    for (int i = 0; i < 20; i++)
        in_order[i] = i;
    arrivals(LOOPBACK_IN_ORDER, 1, first);
    cr_assert(memcmp(first, in_order, sizeof first) == 0);
    for (int mode = LOOPBACK_SHUFFLED; mode <= LOOPBACK_DELAYED; mode++) {
        arrivals(mode, 1, first);
        cr_assert(memcmp(first, in_order, sizeof first) != 0, "mode %d does not shuffle", mode);
        arrivals(mode, 1, again);
        cr_assert(memcmp(first, again, sizeof first) == 0, "mode %d does not repeat a seed", mode);
        arrivals(mode, 2, again);
        cr_assert(memcmp(first, again, sizeof first) != 0, "mode %d ignores the seed", mode);
    }
}

Test(loopback, delays_when_asked)
{
    int rounds_of[MODES];
    for (int mode = 0; mode < MODES; mode++) {
        struct net net = net_open(2, mode, 3);
        struct transfer sends[20], receives[20], *done[MOST];
        char byte[20];
        for (int i = 0; i < 20; i++) {
            post_receive(&net, 1, 0, (uint64_t)i, 0, &byte[i], 1, &receives[i]);
            post_send(&net, 0, 1, (uint64_t)i, "x", 1, &sends[i]);
        }
        int rounds = 0;
        for (size_t have = 0; have < 20; rounds++)
            have += crank(&net, 1, done);
        rounds_of[mode] = rounds;
        net_close(&net);
    }
    cr_assert_eq(rounds_of[LOOPBACK_IN_ORDER], 1);
    cr_assert_gt(rounds_of[LOOPBACK_DELAYED], rounds_of[LOOPBACK_IN_ORDER] + 5);
}

Test(loopback, refuses_some_posts_when_delayed)
{
    struct net net = net_open(2, LOOPBACK_DELAYED, 3);
    struct transfer sends[100];
    int refused = 0;
    for (int i = 0; i < 100; i++)
        refused += net.transports[0]->ops->send(net.transports[0], 1, 1, "x", 1, &sends[i]) == STATUS_AGAIN;
    cr_assert_gt(refused, 0);
    cr_assert_lt(refused, 50);
    net_close(&net);
}

/* A large message is read when its receive stands: the send is not done before, and the buffer still counts. */
Test(loopback, reads_large_messages_late)
{
    for (int mode = 0; mode < MODES; mode++) {
        struct net net = net_open(2, mode, 9);
        char from[LARGE] = "early", to[LARGE] = "";
        struct transfer send, receive, *order[2];
        post_send(&net, 0, 1, 1, from, sizeof from, &send);
        expect_silence(&net);
        memcpy(from, "late!", 6);
        post_receive(&net, 1, 0, 1, 0, to, sizeof to, &receive);
        crank_until(&net, 2, order);
        cr_assert_str_eq(to, "late!");
        net_close(&net);
    }
}

Test(loopback, matches_under_the_mask_and_the_peer)
{
    struct net net = net_open(3, LOOPBACK_IN_ORDER, 0);
    struct transfer sends[3], receives[3], *order[6];
    int from[] = {10, 20, 30}, to[3];
    post_receive(&net, 0, TRANSPORT_ANY, 0x100, 0x0FF, &to[0], sizeof to[0], &receives[0]);
    post_receive(&net, 0, 2, 0x200, 0x0FF, &to[1], sizeof to[1], &receives[1]);
    post_receive(&net, 0, 1, 0x200, 0, &to[2], sizeof to[2], &receives[2]);
    post_send(&net, 1, 0, 0x200, &from[0], sizeof from[0], &sends[0]); /* exact, for the third */
    post_send(&net, 2, 0, 0x2AB, &from[1], sizeof from[1], &sends[1]); /* masked, from worker 2 */
    post_send(&net, 1, 0, 0x1CD, &from[2], sizeof from[2], &sends[2]); /* masked, from anyone   */
    crank_until(&net, 6, order);
    cr_assert_eq(to[0], 30);
    cr_assert_eq(to[1], 20);
    cr_assert_eq(to[2], 10);
    net_close(&net);
}

Test(loopback, sends_to_itself)
{
    for (int mode = 0; mode < MODES; mode++) {
        struct net net = net_open(1, mode, 4);
        char from[LARGE] = "me", to[LARGE] = "";
        struct transfer send, receive, *order[2];
        post_send(&net, 0, 0, 1, from, sizeof from, &send);
        post_receive(&net, 0, 0, 1, 0, to, sizeof to, &receive);
        crank_until(&net, 2, order);
        cr_assert_str_eq(to, "me");
        net_close(&net);
    }
}

Test(loopback, reports_what_is_too_long)
{
    struct net net = net_open(2, LOOPBACK_IN_ORDER, 0);
    char to[8 + 1] = "........";
    struct transfer send, receive, *order[2];
    post_receive(&net, 1, 0, 1, 0, to, 4, &receive);
    post_send(&net, 0, 1, 1, "abcdefgh", 8, &send);
    crank_until(&net, 2, order);
    cr_assert_eq(send.status, STATUS_OK);
    cr_assert_eq(receive.status, STATUS_FORMAT);
    cr_assert_str_eq(to, "abcd....");
    net_close(&net);
}

Test(loopback, reports_at_most_the_limit)
{
    struct net net = net_open(1, LOOPBACK_IN_ORDER, 0);
    struct transfer sends[5], *done[MOST];
    size_t count = 0, have = 0;
    for (int i = 0; i < 5; i++)
        post_send(&net, 0, 0, 1, "x", 1, &sends[i]);
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(net.transports[0]->ops->progress(net.transports[0], done, 2, &count));
        cr_assert_leq(count, 2);
        have += count;
    }
    cr_assert_eq(have, 5);
    net_close(&net);
}

Test(loopback, cancels_a_receive)
{
    struct net net = net_open(2, LOOPBACK_IN_ORDER, 0);
    const struct transport_ops *ops = net.transports[1]->ops;
    char to[3][4] = {{0}};
    struct transfer sends[2], receives[3], *order[5];
    for (int i = 0; i < 3; i++)
        post_receive(&net, 1, 0, 1, 0, to[i], 4, &receives[i]);
    ops->cancel(net.transports[1], &receives[2]);
    ops->cancel(net.transports[1], &receives[0]);
    post_send(&net, 0, 1, 1, "one", 4, &sends[0]);
    crank_until(&net, 4, order);
    cr_assert_eq(receives[0].status, STATUS_INTERRUPTED);
    cr_assert_eq(receives[2].status, STATUS_INTERRUPTED);
    cr_assert_str_eq(to[1], "one", "the next receive takes the message");
    ops->cancel(net.transports[1], &receives[1]); /* done: nothing happens */
    post_receive(&net, 1, 0, 1, 0, to[0], 4, &receives[0]);
    post_send(&net, 0, 1, 1, "two", 4, &sends[1]);
    crank_until(&net, 2, order);
    cr_assert_str_eq(to[0], "two", "receives can be posted after a cancelled one");
    net_close(&net);
}

Test(loopback, tells_senders_when_the_receiver_closes)
{
    for (int mode = 0; mode < MODES; mode++) {
        struct net net = net_open(2, mode, 6);
        char from[LARGE] = "";
        struct transfer small, large, late, *order[2];
        post_send(&net, 0, 1, 1, from, SMALL, &small);
        post_send(&net, 0, 1, 2, from, LARGE, &large);
        net.transports[1]->ops->close(net.transports[1]);
        net.size = 1;
        crank_until(&net, 2, order);
        cr_assert_eq(small.status, STATUS_OK);
        cr_assert_eq(large.status, STATUS_PEER_LOST);
        EXPECT_FAIL(STATUS_PEER_LOST, "worker 1", net.transports[0]->ops->send(net.transports[0], 1, 1, "x", 1, &late));
        net_close(&net);
    }
}

/* What a closed endpoint has sent small still arrives; its buffers are not touched any more. */
Test(loopback, forgets_the_buffers_of_a_closed_sender)
{
    struct net net = net_open(2, LOOPBACK_SHUFFLED, 6);
    char from[LARGE] = "gone", small[SMALL] = "", large[LARGE] = "";
    struct transfer sends[2], receives[2], *done[MOST];
    post_send(&net, 1, 0, 1, "kept", 5, &sends[0]);
    post_send(&net, 1, 0, 2, from, LARGE, &sends[1]);
    net.transports[1]->ops->close(net.transports[1]);
    net.size = 1;
    post_receive(&net, 0, 1, 1, 0, small, SMALL, &receives[0]);
    post_receive(&net, 0, 1, 2, 0, large, LARGE, &receives[1]);
    size_t have = 0;
    for (int rounds = 0; rounds < 50; rounds++)
        have += crank(&net, 0, done);
    cr_assert_eq(have, 1);
    cr_assert_str_eq(small, "kept");
    net_close(&net);
}

Test(loopback, refuses_wrong_words)
{
    struct net net = net_open(2, LOOPBACK_IN_ORDER, 0);
    struct transport *transport = net.transports[0], *none[1];
    struct transfer transfer;
    char byte = 0;
    EXPECT_FAIL(STATUS_USAGE, "peer 2", transport->ops->send(transport, 2, 1, "x", 1, &transfer));
    EXPECT_FAIL(STATUS_USAGE, "peer -2", transport->ops->receive(transport, -2, 1, 0, &byte, 1, &transfer));
    EXPECT_FAIL(STATUS_USAGE, "one peer", transport->ops->send(transport, TRANSPORT_ANY, 1, "x", 1, &transfer));
    EXPECT_FAIL(STATUS_USAGE, "60 bits", transport->ops->send(transport, 1, UINT64_C(1) << 60, "x", 1, &transfer));
    EXPECT_FAIL(STATUS_USAGE, "0 workers", loopback_open(0, LOOPBACK_IN_ORDER, 0, none));
    transport->ops->close(NULL);
    net_close(&net);
}
