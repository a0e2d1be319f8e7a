/* loopback.c - transports within one process, for tests: every endpoint is a mailbox of one hub.
 *
 * What real providers do at their worst is done here on purpose. Messages above the eager limit are read from the
 * sender's buffer only when their receive stands (rendezvous): whoever changes a buffer before its send is reported, or
 * waits for a send before posting the matching receive, is found out. SHUFFLED and DELAYED hold messages back in a
 * `flying` list, from which the receiver's progress rounds take them in random order; only messages of one (peer, tag)
 * keep theirs. There completions are reported in random order, too, and DELAYED refuses a post now and then with
 * STATUS_AGAIN. HOSTS does all this as well, though only workers of different nodes should send.
 *
 * All randomness is drawn from the endpoint's own counter: cranked from one thread, a seed gives the same run again.
 * One mutex guards the hub, so that each endpoint may live on a thread of its own.
 */
#include "comm/transport.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/rng.h"
#include "comm/node.h"

#define EAGER_LIMIT 512
#define LONGEST_DELAY 12  /* progress rounds of the receiver                    */
#define REFUSE_ONE_IN 8   /* posts answered with STATUS_AGAIN in DELAYED        */
#define DELIVER_STOP_IN 4 /* after each delivery, a round ends with this chance */
#define YIELD_ROUNDS 64   /* empty rounds before wait() sleeps                  */
#define SLEEP_NS 50000

struct message {
    struct message *next;
    int source;
    uint64_t tag;
    size_t bytes;
    unsigned delay;            /* rounds still to be held back                                  */
    const void *data;          /* the copy that follows this header, or still the sender's      */
    struct transfer *transfer; /* rendezvous: to be reported to the sender when copied; or NULL */
};

struct receive {
    struct receive *next;
    int peer;
    uint64_t tag, ignore;
    void *data;
    size_t bytes;
    struct transfer *transfer;
};

/* A list with its tail, so that appending is cheap. */
struct message_list {
    struct message *first, **last;
};

struct hub;

struct endpoint {
    struct transport transport; /* must be first */
    struct hub *hub;
    bool open;
    uint64_t key, draws;            /* randomness                                               */
    struct message_list flying;     /* sent to this endpoint, not yet there                     */
    struct message_list unexpected; /* there, no receive stood                                  */
    struct receive *posted, **posted_last;
    struct transfer *done, *done_last; /* to be reported; linked through provider[0]              */
    size_t done_count;
};

struct hub {
    pthread_mutex_t mutex;
    enum loopback_mode mode;
    int size, open;
    struct endpoint endpoints[];
};

static struct endpoint *endpoint_of(struct transport *transport)
{
    return (struct endpoint *)transport;
}

static void lock(struct hub *hub)
{
    int rc = pthread_mutex_lock(&hub->mutex);
    assert(rc == 0);
    (void)rc;
}

static void unlock(struct hub *hub)
{
    int rc = pthread_mutex_unlock(&hub->mutex);
    assert(rc == 0);
    (void)rc;
}

static uint64_t draw(struct endpoint *endpoint, uint64_t bound)
{
    return rng_below(endpoint->key, endpoint->draws++, bound);
}

static void list_append(struct message_list *list, struct message *message)
{
    message->next = NULL;
    *list->last = message;
    list->last = &message->next;
}

/* Take out the message that `link` points to. */
static struct message *list_take(struct message_list *list, struct message **link)
{
    struct message *message = *link;
    *link = message->next;
    if (*link == NULL)
        list->last = link;
    return message;
}

static void report(struct endpoint *endpoint, struct transfer *transfer, enum status status, size_t bytes)
{
    transfer->status = status;
    transfer->bytes = bytes;
    transfer->provider[0] = NULL;
    if (endpoint->done == NULL)
        endpoint->done = transfer;
    else
        endpoint->done_last->provider[0] = transfer;
    endpoint->done_last = transfer;
    endpoint->done_count++;
}

/* The transfer at `position` of the list of done ones. */
static struct transfer *done_take(struct endpoint *endpoint, uint64_t position)
{
    struct transfer *before = NULL, *transfer = endpoint->done;
    for (; position > 0; position--) {
        before = transfer;
        transfer = transfer->provider[0];
    }
    if (before == NULL)
        endpoint->done = transfer->provider[0];
    else
        before->provider[0] = transfer->provider[0];
    if (endpoint->done_last == transfer)
        endpoint->done_last = before;
    endpoint->done_count--;
    return transfer;
}

static bool matches(const struct receive *receive, const struct message *message)
{
    return (receive->peer == TRANSPORT_ANY || receive->peer == message->source) &&
           ((receive->tag ^ message->tag) & ~receive->ignore) == 0;
}

/* Copy, report to both sides and forget the message. */
static void complete(struct endpoint *endpoint, const struct receive *receive, struct message *message)
{
    size_t bytes = message->bytes < receive->bytes ? message->bytes : receive->bytes;
    if (bytes > 0)
        memcpy(receive->data, message->data, bytes);
    report(endpoint, receive->transfer, message->bytes > receive->bytes ? STATUS_FORMAT : STATUS_OK, bytes);
    if (message->transfer != NULL)
        report(&endpoint->hub->endpoints[message->source], message->transfer, STATUS_OK, message->bytes);
    free(message);
}

static void receive_unlink(struct endpoint *endpoint, struct receive **link)
{
    struct receive *receive = *link;
    *link = receive->next;
    if (*link == NULL)
        endpoint->posted_last = link;
}

/* The message is there: into the first receive that matches, else it waits for one. */
static void arrive(struct endpoint *endpoint, struct message *message)
{
    for (struct receive **link = &endpoint->posted; *link != NULL; link = &(*link)->next)
        if (matches(*link, message)) {
            struct receive *receive = *link;
            receive_unlink(endpoint, link);
            complete(endpoint, receive, message);
            free(receive);
            return;
        }
    list_append(&endpoint->unexpected, message);
}

/* Nothing of the same (peer, tag) flies ahead of the message. */
static bool leads(const struct endpoint *endpoint, const struct message *message)
{
    for (const struct message *other = endpoint->flying.first; other != message; other = other->next)
        if (other->source == message->source && other->tag == message->tag)
            return false;
    return true;
}

/* A random one of the messages that may land now; NULL when none may. */
static struct message **flying_pick(struct endpoint *endpoint)
{
    struct message **picked = NULL;
    uint64_t candidates = 0;
    for (struct message **link = &endpoint->flying.first; *link != NULL; link = &(*link)->next)
        if ((*link)->delay == 0 && leads(endpoint, *link) && draw(endpoint, ++candidates) == 0)
            picked = link;
    return picked;
}

/* One round of landings. At least one message lands if one may, so that polling always gets somewhere. */
static void flying_land(struct endpoint *endpoint)
{
    for (struct message *message = endpoint->flying.first; message != NULL; message = message->next)
        if (message->delay > 0)
            message->delay--;
    for (;;) {
        struct message **link = flying_pick(endpoint);
        if (link == NULL)
            return;
        arrive(endpoint, list_take(&endpoint->flying, link));
        if (draw(endpoint, DELIVER_STOP_IN) == 0)
            return;
    }
}

static enum status message_create(const struct endpoint *from, uint64_t tag, const void *data, size_t bytes,
                                  struct transfer *transfer, struct message **out)
{
    bool eager = bytes <= EAGER_LIMIT;
    void *block;
    TRY(memory_zeroed(&block, 1, sizeof(struct message) + (eager ? bytes : 0)));
    struct message *message = block;
    *message = (struct message){.source = from->transport.rank, .tag = tag, .bytes = bytes, .data = data};
    if (!eager)
        message->transfer = transfer;
    else if (bytes > 0)
        message->data = memcpy(message + 1, data, bytes);
    *out = message;
    return STATUS_OK;
}

static enum status check(const struct transport *transport, int peer, uint64_t tag)
{
    if (peer < TRANSPORT_ANY || peer >= transport->size)
        return fail(STATUS_USAGE, "loopback: peer %d of %d workers", peer, transport->size);
    if (tag >> TRANSPORT_TAG_BITS != 0)
        return fail(STATUS_USAGE, "loopback: tag %#llx has more than %d bits", (unsigned long long)tag,
                    TRANSPORT_TAG_BITS);
    return STATUS_OK;
}

static bool delays(const struct hub *hub)
{
    return hub->mode == LOOPBACK_DELAYED || hub->mode == LOOPBACK_HOSTS;
}

static bool refused(struct endpoint *endpoint)
{
    return delays(endpoint->hub) && draw(endpoint, REFUSE_ONE_IN) == 0;
}

static enum status post_send(struct endpoint *from, struct endpoint *to, uint64_t tag, const void *data, size_t bytes,
                             struct transfer *transfer)
{
    if (!to->open)
        return fail(STATUS_PEER_LOST, "loopback: worker %d has closed its endpoint", to->transport.rank);
    if (refused(from))
        return STATUS_AGAIN;
    struct message *message;
    TRY(message_create(from, tag, data, bytes, transfer, &message));
    if (bytes <= EAGER_LIMIT)
        report(from, transfer, STATUS_OK, bytes);
    if (from->hub->mode == LOOPBACK_IN_ORDER || from->hub->mode == LOOPBACK_NODE) {
        arrive(to, message);
        return STATUS_OK;
    }
    if (delays(from->hub))
        message->delay = (unsigned)draw(from, LONGEST_DELAY + 1);
    list_append(&to->flying, message);
    return STATUS_OK;
}

static enum status loopback_send(struct transport *transport, int peer, uint64_t tag, const void *data, size_t bytes,
                                 struct transfer *transfer)
{
    struct endpoint *from = endpoint_of(transport);
    TRY(check(transport, peer, tag));
    if (peer == TRANSPORT_ANY)
        return fail(STATUS_USAGE, "loopback: a send needs one peer");
    lock(from->hub);
    enum status status = post_send(from, &from->hub->endpoints[peer], tag, data, bytes, transfer);
    unlock(from->hub);
    return status;
}

static enum status post_receive(struct endpoint *endpoint, const struct receive *wanted)
{
    if (refused(endpoint))
        return STATUS_AGAIN;
    for (struct message **link = &endpoint->unexpected.first; *link != NULL; link = &(*link)->next)
        if (matches(wanted, *link)) {
            complete(endpoint, wanted, list_take(&endpoint->unexpected, link));
            return STATUS_OK;
        }
    void *block;
    TRY(memory_zeroed(&block, 1, sizeof(struct receive)));
    struct receive *receive = block;
    *receive = *wanted;
    *endpoint->posted_last = receive;
    endpoint->posted_last = &receive->next;
    return STATUS_OK;
}

static enum status loopback_receive(struct transport *transport, int peer, uint64_t tag, uint64_t ignore, void *data,
                                    size_t bytes, struct transfer *transfer)
{
    struct endpoint *endpoint = endpoint_of(transport);
    TRY(check(transport, peer, tag));
    const struct receive wanted = {
        .peer = peer, .tag = tag, .ignore = ignore, .data = data, .bytes = bytes, .transfer = transfer};
    lock(endpoint->hub);
    enum status status = post_receive(endpoint, &wanted);
    unlock(endpoint->hub);
    return status;
}

/* The words for a transfer that failed, for whoever looks at it next. */
static void explain(const struct endpoint *endpoint, const struct transfer *transfer)
{
    if (transfer->status == STATUS_FORMAT)
        (void)fail(STATUS_FORMAT, "loopback: worker %d received a message longer than the %zu bytes of its receive",
                   endpoint->transport.rank, transfer->bytes);
    else if (transfer->status == STATUS_INTERRUPTED)
        (void)fail(STATUS_INTERRUPTED, "loopback: receive cancelled");
    else if (transfer->status == STATUS_PEER_LOST)
        (void)fail(STATUS_PEER_LOST, "loopback: the receiver has closed its endpoint");
}

static enum status loopback_progress(struct transport *transport, struct transfer **done, size_t limit, size_t *count)
{
    struct endpoint *endpoint = endpoint_of(transport);
    size_t taken = 0;
    lock(endpoint->hub);
    flying_land(endpoint);
    while (taken < limit && endpoint->done != NULL) {
        bool in_order = endpoint->hub->mode == LOOPBACK_IN_ORDER || endpoint->hub->mode == LOOPBACK_NODE;
        done[taken] = done_take(endpoint, in_order ? 0 : draw(endpoint, endpoint->done_count));
        explain(endpoint, done[taken++]);
    }
    unlock(endpoint->hub);
    *count = taken;
    return STATUS_OK;
}

static void loopback_wait(struct transport *transport, uint64_t ns, unsigned idle)
{
    (void)transport;
    if (idle < YIELD_ROUNDS)
        (void)sched_yield();
    else
        clock_sleep_ns(ns < SLEEP_NS ? ns : SLEEP_NS);
}

static void loopback_cancel(struct transport *transport, struct transfer *transfer)
{
    struct endpoint *endpoint = endpoint_of(transport);
    lock(endpoint->hub);
    for (struct receive **link = &endpoint->posted; *link != NULL; link = &(*link)->next)
        if ((*link)->transfer == transfer) {
            struct receive *receive = *link;
            receive_unlink(endpoint, link);
            free(receive);
            report(endpoint, transfer, STATUS_INTERRUPTED, 0);
            break;
        }
    unlock(endpoint->hub);
}

static void loopback_describe(const struct transport *transport, struct text *text)
{
    static const char *const modes[] = {"in order", "shuffled", "delayed", "node memory", "several hosts"};
    const struct endpoint *endpoint = (const struct endpoint *)transport;
    text_addf(text, "loopback, %s", modes[endpoint->hub->mode]);
}

/* Drop what was sent to a closing endpoint; senders whose buffers wait there are told. */
static void inbox_drop(struct endpoint *endpoint, struct message_list *list)
{
    while (list->first != NULL) {
        struct message *message = list_take(list, &list->first);
        if (message->transfer != NULL)
            report(&endpoint->hub->endpoints[message->source], message->transfer, STATUS_PEER_LOST, 0);
        free(message);
    }
}

/* Drop what a closing endpoint has sent by rendezvous: its buffers may go away with it. */
static void outbox_drop(const struct endpoint *from, struct message_list *list)
{
    struct message **link = &list->first;
    while (*link != NULL) {
        if ((*link)->source == from->transport.rank && (*link)->transfer != NULL)
            free(list_take(list, link));
        else
            link = &(*link)->next;
    }
}

static void endpoint_drop(struct endpoint *endpoint)
{
    struct hub *hub = endpoint->hub;
    for (int peer = 0; peer < hub->size; peer++) {
        outbox_drop(endpoint, &hub->endpoints[peer].flying);
        outbox_drop(endpoint, &hub->endpoints[peer].unexpected);
    }
    inbox_drop(endpoint, &endpoint->flying);
    inbox_drop(endpoint, &endpoint->unexpected);
    while (endpoint->posted != NULL) {
        struct receive *receive = endpoint->posted;
        endpoint->posted = receive->next;
        free(receive);
    }
}

static void loopback_close(struct transport *transport)
{
    if (transport == NULL)
        return;
    struct endpoint *endpoint = endpoint_of(transport);
    struct hub *hub = endpoint->hub;
    node_close(transport->node);
    transport->node = NULL;
    lock(hub);
    endpoint->open = false;
    endpoint_drop(endpoint);
    int open = --hub->open;
    unlock(hub);
    if (open > 0)
        return;
    (void)pthread_mutex_destroy(&hub->mutex);
    free(hub);
}

static const struct transport_ops loopback_ops = {
    .close = loopback_close,
    .send = loopback_send,
    .receive = loopback_receive,
    .progress = loopback_progress,
    .wait = loopback_wait,
    .cancel = loopback_cancel,
    .describe = loopback_describe,
};

static void endpoint_init(struct hub *hub, int rank, uint64_t seed)
{
    struct endpoint *endpoint = &hub->endpoints[rank];
    endpoint->transport = (struct transport){
        .ops = &loopback_ops, .name = "loopback", .rank = rank, .size = hub->size, .eager_limit = EAGER_LIMIT};
    endpoint->hub = hub;
    endpoint->open = true;
    endpoint->key = rng_key(seed, "loopback", (uint64_t)rank, 0);
    endpoint->flying.last = &endpoint->flying.first;
    endpoint->unexpected.last = &endpoint->unexpected.first;
    endpoint->posted_last = &endpoint->posted;
}

/* Where each worker is. HOSTS: nodes of 2, 1, 3, 2, 1, 3, ... workers, or about a third of them, in turns. */
static void place_workers(enum loopback_mode mode, uint64_t seed, int size, int *place)
{
    static const int sizes[] = {2, 1, 3};
    for (int rank = 0, node = 0, room = sizes[0]; rank < size && mode == LOOPBACK_HOSTS; rank++) {
        place[rank] = seed % 2 == 0 ? node : rank % (size / 3 + 1);
        if (--room == 0)
            room = sizes[++node % 3];
    }
}

static bool is_alone(const int *place, int rank, int size)
{
    int neighbours = 0;
    for (int other = 0; other < size; other++)
        neighbours += place[other] == place[rank];
    return neighbours == 1;
}

/* One endpoint after the other makes its block, then all attach. */
static enum status nodes_attach(struct transport **transports, const int *place, int size, struct node_card *cards)
{
    bool reads = false;
    for (int rank = 0; rank < size; rank++)
        if (!transports[rank]->mixed || !is_alone(place, rank, size))
            TRY(node_create(rank, size, place, true, &transports[rank]->node, &cards[rank]));
    for (int rank = 0; rank < size; rank++) {
        if (transports[rank]->node == NULL)
            continue;
        TRY(node_attach(transports[rank]->node, cards, &reads));
        node_permit_reads(transports[rank]->node, reads);
    }
    return STATUS_OK;
}

static enum status nodes_open(struct transport **transports, enum loopback_mode mode, uint64_t seed, int size)
{
    enum status status = STATUS_OK;
    void *place = NULL, *cards = NULL;
    TRY(memory_zeroed(&place, (size_t)size, sizeof(int)));
    TRY_TO(done, memory_zeroed(&cards, (size_t)size, sizeof(struct node_card)));
    place_workers(mode, seed, size, place);
    status = nodes_attach(transports, place, size, cards);
done:
    free(place);
    free(cards);
    return status;
}

enum status loopback_open(int size, enum loopback_mode mode, uint64_t seed, struct transport **transports)
{
    if (size < 1)
        return fail(STATUS_USAGE, "loopback: %d workers: at least one is needed", size);
    void *block;
    TRY(memory_zeroed(&block, 1, sizeof(struct hub) + (size_t)size * sizeof(struct endpoint)));
    struct hub *hub = block;
    int rc = pthread_mutex_init(&hub->mutex, NULL);
    if (rc != 0) {
        free(hub);
        return fail(STATUS_INTERNAL, "loopback: mutex: %s", strerror(rc));
    }
    hub->mode = mode;
    hub->size = hub->open = size;
    for (int rank = 0; rank < size; rank++) {
        endpoint_init(hub, rank, seed);
        transports[rank] = &hub->endpoints[rank].transport;
        transports[rank]->mixed = mode == LOOPBACK_HOSTS;
    }
    if (mode != LOOPBACK_NODE && mode != LOOPBACK_HOSTS)
        return STATUS_OK;
    const enum status status = nodes_open(transports, mode, seed, size);
    if (status == STATUS_OK)
        return STATUS_OK;
    for (int rank = 0; rank < size; rank++)
        node_close(transports[rank]->node);
    (void)pthread_mutex_destroy(&hub->mutex);
    free(hub);
    return status;
}
