/* test_node.c - node memory, all workers in this process: rings under any mixture of lengths, full rings, many workers,
 * arenas that come and go, what must be refused. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/rng.h"
#include "comm/node.h"
#include "tests/base/expect.h"

enum { MOST = 40 };

struct nodes {
    int size;
    struct node *node[MOST];
};

/* Worker r is in node r mod `parts`. */
static void parts_open(struct nodes *nodes, int size, int parts)
{
    struct node_card cards[MOST];
    int place[MOST];
    nodes->size = size;
    for (int r = 0; r < size; r++)
        place[r] = r % parts + 5;
    for (int r = 0; r < size; r++)
        EXPECT_OK(node_create(r, size, parts > 1 ? place : NULL, true, &nodes->node[r], &cards[r]));
    for (int r = 0; r < size; r++) {
        bool reads = false;
        EXPECT_OK(node_attach(nodes->node[r], cards, &reads));
        node_permit_reads(nodes->node[r], reads);
        cr_assert_eq(node_workers(nodes->node[r]), size / parts + (r % parts < size % parts));
    }
}

static void nodes_open(struct nodes *nodes, int size)
{
    parts_open(nodes, size, 1);
}

static void nodes_close(struct nodes *nodes)
{
    for (int r = 0; r < nodes->size; r++)
        node_close(nodes->node[r]);
}

static unsigned char content(int from, int to, uint64_t number, size_t i)
{
    return (unsigned char)((size_t)from * 31 + (size_t)to * 7 + number * 13 + i + i / 251);
}

static enum status send_numbered(const struct nodes *nodes, int from, int to, uint64_t number, size_t bytes)
{
    unsigned char header[NODE_HEADER_BYTES] = {0}, payload[NODE_PAYLOAD_BYTES_MOST];
    memcpy(header, &number, sizeof number);
    for (size_t i = 0; i < bytes; i++)
        payload[i] = content(from, to, number, i);
    return node_send(nodes->node[from], to, header, payload, bytes);
}

static uint64_t check_message(int to, const struct node_message *message)
{
    uint64_t number = 0;
    memcpy(&number, message->header, sizeof number);
    const unsigned char *payload = message->payload;
    for (size_t i = 0; i < message->bytes; i++)
        cr_assert_eq(payload[i], content(message->source, to, number, i), "message %llu byte %zu",
                     (unsigned long long)number, i);
    return number;
}

/* Lengths around a cell, a line and the longest; every message arrives whole, once, in order, also from full rings. */
static void mix(int size, int parts, uint64_t seed)
{
    static const size_t lengths[] = {
        0, 1, 8, 24, 25, 63, 64, 65, 4096, NODE_PAYLOAD_BYTES_MOST - 1, NODE_PAYLOAD_BYTES_MOST};
    static uint64_t sent[MOST][MOST], got[MOST][MOST];
    struct nodes nodes;
    uint64_t draws = 0, full = 0;
    const uint64_t key = rng_key(seed, "node", 0, 0);
    memset(sent, 0, sizeof sent);
    memset(got, 0, sizeof got);
    parts_open(&nodes, size, parts);
    for (int step = 0; step < 20000; step++) {
        const int me = (int)rng_below(key, draws++, (uint64_t)size),
                  peer = (int)rng_below(key, draws++, (uint64_t)size);
        struct node_message message;
        cr_assert_eq(node_has(nodes.node[me], peer), me % parts == peer % parts);
        if (me == peer || !node_has(nodes.node[me], peer))
            continue;
        if (rng_below(key, draws++, 4) < 3) {
            const size_t bytes = lengths[rng_below(key, draws++, sizeof lengths / sizeof *lengths)];
            const enum status status = send_numbered(&nodes, me, peer, sent[me][peer], bytes);
            full += status == STATUS_AGAIN;
            sent[me][peer] += status == STATUS_OK;
            node_kick(nodes.node[me]);
            continue;
        }
        for (uint64_t most = rng_below(key, draws++, 6); most > 0 && node_peek(nodes.node[me], &message); most--) {
            cr_assert_eq(check_message(me, &message), got[message.source][me]++);
            node_take(nodes.node[me], &message);
        }
        node_release(nodes.node[me]);
    }
    for (int me = 0; me < size; me++) {
        struct node_message message;
        while (node_peek(nodes.node[me], &message)) {
            cr_assert_eq(check_message(me, &message), got[message.source][me]++);
            node_take(nodes.node[me], &message);
            node_release(nodes.node[me]);
        }
        for (int from = 0; from < size; from++)
            cr_assert_eq(got[from][me], sent[from][me]);
    }
    cr_assert(size > 3 || full > 0, "no ring was ever full");
    nodes_close(&nodes);
}

Test(node, messages_arrive_whole_and_in_order)
{
    mix(2, 1, 1);
    mix(3, 1, 2);
    mix(7, 1, 3);
    mix(MOST, 1, 4); /* by doorbells */
    mix(5, 2, 5);
    mix(MOST, 2, 6); /* by doorbells, two nodes of 20 */
}

/* What is not taken is found again; what is taken stays until it is released. */
Test(node, taken_messages_stay)
{
    struct nodes nodes;
    struct node_message message, again;
    int accepted = 0;
    nodes_open(&nodes, 2);
    cr_assert_not(node_peek(nodes.node[1], &message));
    EXPECT_OK(send_numbered(&nodes, 0, 1, 0, 4000));
    cr_assert(node_peek(nodes.node[1], &message));
    cr_assert(node_peek(nodes.node[1], &again));
    cr_assert_eq(message.payload, again.payload);
    node_take(nodes.node[1], &message);
    cr_assert_not(node_peek(nodes.node[1], &again));
    while (send_numbered(&nodes, 0, 1, 1, 4000) == STATUS_OK)
        accepted++;
    cr_assert_gt(accepted, 0);
    cr_assert_eq(check_message(1, &message), 0);
    node_release(nodes.node[1]);
    cr_assert_eq(send_numbered(&nodes, 0, 1, 1, 4000), STATUS_OK);
    nodes_close(&nodes);
}

Test(node, sleepers_see_what_has_come)
{
    struct nodes nodes;
    nodes_open(&nodes, 2);
    cr_assert(node_drowse(nodes.node[1]));
    node_sleep(nodes.node[1], 1000000); /* in vain */
    EXPECT_OK(send_numbered(&nodes, 0, 1, 0, 8));
    node_kick(nodes.node[0]);
    cr_assert_not(node_drowse(nodes.node[1]));
    nodes_close(&nodes);
}

/* Neighbours see what the owner writes; after free and alloc they see the new arena. */
Test(node, arenas_are_seen_by_neighbours)
{
    struct nodes nodes;
    nodes_open(&nodes, 3);
    for (int round = 0; round < 5; round++) {
        const size_t bytes = (size_t)10000 * (size_t)(round + 1);
        struct node_place place;
        const void *seen = NULL;
        void *memory = NULL;
        EXPECT_OK(node_alloc(nodes.node[1], bytes, &memory));
        unsigned char *mine = memory;
        cr_assert_eq(mine[0] | mine[bytes - 1], 0);
        memset(mine, round + 1, bytes);
        cr_assert(node_locate(nodes.node[1], mine + 100, bytes - 100, &place));
        cr_assert_eq(place.arena, 1);
        EXPECT_OK(node_map(nodes.node[2], 1, &place, bytes - 100, &seen));
        for (size_t i = 0; i < bytes - 100; i++)
            cr_assert_eq(((const unsigned char *)seen)[i], round + 1);
        EXPECT_FAIL(STATUS_FORMAT, "names", node_map(nodes.node[2], 1, &place, bytes + 10000, &seen));
        cr_assert(node_free(nodes.node[1], memory));
        cr_assert_not(node_free(nodes.node[1], memory));
        EXPECT_FAIL(STATUS_PEER_LOST, "given back", node_map(nodes.node[0], 1, &place, 1, &seen));
    }
    nodes_close(&nodes);
}

Test(node, other_memory_is_copied)
{
    struct nodes nodes;
    struct node_place place;
    unsigned char here[5000], there[5000] = {0};
    nodes_open(&nodes, 2);
    for (size_t i = 0; i < sizeof here; i++)
        here[i] = content(0, 0, 0, i);
    if (!node_locate(nodes.node[0], here, sizeof here, &place))
        cr_skip_test("process_vm_readv is not permitted here");
    cr_assert_eq(place.arena, 0);
    EXPECT_OK(node_read(nodes.node[1], 0, &place, there, sizeof there));
    cr_assert_eq(memcmp(here, there, sizeof here), 0);
    node_permit_reads(nodes.node[0], false);
    cr_assert_not(node_locate(nodes.node[0], here, sizeof here, &place));
    nodes_close(&nodes);
}

/* Each arena is an open file. */
static void need_open_files(rlim_t wanted)
{
    struct rlimit files;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_max < wanted)
        cr_skip_test("needs %llu open files", (unsigned long long)wanted);
    files.rlim_cur = files.rlim_cur < wanted ? wanted : files.rlim_cur;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
}

Test(node, the_table_of_arenas_ends)
{
    struct nodes nodes;
    void *memory = NULL;
    int made = 0;
    need_open_files(400);
    nodes_open(&nodes, 1);
    while (node_alloc(nodes.node[0], 1, &memory) == STATUS_OK)
        made++;
    cr_assert_eq(made, 240);
    cr_assert_eq(node_alloc(nodes.node[0], 1, &memory), STATUS_AGAIN);
    while (node_alloc_staging(nodes.node[0], 1, &memory) == STATUS_OK)
        made++;
    cr_assert_eq(made, 256, "what vectors leave is for buffers");
    cr_assert_eq(node_alloc_staging(nodes.node[0], 1, &memory), STATUS_AGAIN);
    nodes_close(&nodes);
}

Test(node, memory_that_is_not_there_is_refused)
{
    struct nodes nodes;
    void *memory = NULL;
    nodes_open(&nodes, 2);
    EXPECT_FAIL(STATUS_NO_MEMORY, "available", node_alloc(nodes.node[0], (size_t)1 << 46, &memory));
    EXPECT_FAIL(STATUS_NO_MEMORY, "address space", node_alloc(nodes.node[0], SIZE_MAX - 5, &memory));
    nodes_close(&nodes);
}

/* Nobody attaches to what is no block. */
Test(node, strangers_are_refused)
{
    struct node_card cards[2];
    struct node *node[2];
    bool reads = false;
    for (int r = 0; r < 2; r++)
        EXPECT_OK(node_create(r, 2, NULL, true, &node[r], &cards[r]));
    struct node_card wrong[2] = {cards[0], cards[1]};
    wrong[1].magic = 0;
    EXPECT_FAIL(STATUS_UNAVAILABLE, "worker 1 has none", node_attach(node[0], wrong, &reads));
    wrong[1] = cards[1];
    wrong[1].fd = 0;
    EXPECT_FAIL(STATUS_UNAVAILABLE, "node memory", node_attach(node[0], wrong, &reads));
    node_close(node[0]);
    node_close(node[1]);
    node_close(NULL);
}
