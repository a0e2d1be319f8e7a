/* fabric.c - the transport on libfabric: reliable datagram endpoints with tagged messages.
 *
 * One endpoint, one completion queue, manual progress: whoever waits polls. The domain is used by one thread at a time
 * (FI_THREAD_DOMAIN). libfabric notices no death of a peer: posts to it answer "again" for ever, see transport.h.
 */
#include <assert.h>
#include <errno.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "comm/fabric_internal.h"

#define COMPLETION_BATCH 16
#define SHORTEST_SLEEP_NS 50000
#define LONGEST_SLEEP_NS 1000000
#define QUEUE_SLEEP_MS 1

/* Empty rounds in which wait() only yields. Where nothing wakes a sleeper (shm) more of them: a millisecond or so, less
 * when others need the cores. */
#define YIELDS_BEFORE_QUEUE 100
#define YIELDS_BEFORE_SLEEP 1000
#define YIELDS_CROWDED 300

static_assert(sizeof(struct fi_context2) <= sizeof((struct transfer *)0)->provider,
              "a transfer holds libfabric's context");

static struct fabric *fabric_of(struct transport *transport)
{
    return (struct fabric *)transport;
}

static enum status check_post(const struct fabric *fabric, int peer, uint64_t tag, size_t bytes)
{
    if (peer < TRANSPORT_ANY || peer >= fabric->transport.size)
        return fail(STATUS_USAGE, "%s: peer %d of %d workers", fabric->name, peer, fabric->transport.size);
    if (tag >> TRANSPORT_TAG_BITS != 0)
        return fail(STATUS_USAGE, "%s: tag %#llx has more than %d bits", fabric->name, (unsigned long long)tag,
                    TRANSPORT_TAG_BITS);
    if (bytes > fabric->info->ep_attr->max_msg_size)
        return fail(STATUS_USAGE, "%s: a message of %zu bytes: the provider takes %zu at most", fabric->name, bytes,
                    fabric->info->ep_attr->max_msg_size);
    return STATUS_OK;
}

static bool connection_lost(int error)
{
    switch (error) {
    case FI_ENOTCONN:
    case FI_ECONNRESET:
    case FI_ECONNREFUSED:
    case FI_ECONNABORTED:
    case FI_ESHUTDOWN:
    case FI_EHOSTUNREACH:
    case FI_EHOSTDOWN:
    case FI_ENETUNREACH:
    case EPIPE:
        return true;
    default:
        return false;
    }
}

/* The status of a post. The shm provider says "no memory" when its pool of receives is used up: they come back. */
static enum status posted(const struct fabric *fabric, ssize_t rc, const char *what, int peer)
{
    if (rc == 0)
        return STATUS_OK;
    if (rc == -FI_EAGAIN || (rc == -FI_ENOMEM && fabric->family == FAMILY_SHARED_MEMORY))
        return STATUS_AGAIN;
    return fail(connection_lost((int)-rc) ? STATUS_PEER_LOST : STATUS_IO, "%s: %s worker %d: %s", fabric->name, what,
                peer, fi_strerror((int)-rc));
}

static enum status fabric_send(struct transport *transport, int peer, uint64_t tag, const void *data, size_t bytes,
                               struct transfer *transfer)
{
    struct fabric *fabric = fabric_of(transport);
    TRY(check_post(fabric, peer, tag, bytes));
    if (peer == TRANSPORT_ANY)
        return fail(STATUS_USAGE, "%s: a send needs one peer", fabric->name);
    transfer->bytes = bytes; /* completions of sends do not tell it */
    return posted(fabric, fi_tsend(fabric->endpoint, data, bytes, NULL, fabric->peers[peer], tag, transfer), "send to",
                  peer);
}

static enum status fabric_receive(struct transport *transport, int peer, uint64_t tag, uint64_t ignore, void *data,
                                  size_t bytes, struct transfer *transfer)
{
    struct fabric *fabric = fabric_of(transport);
    TRY(check_post(fabric, peer, tag, bytes));
    fi_addr_t from = peer == TRANSPORT_ANY ? FI_ADDR_UNSPEC : fabric->peers[peer];
    return posted(fabric, fi_trecv(fabric->endpoint, data, bytes, NULL, from, tag, ignore, transfer), "receive from",
                  peer);
}

static struct transfer *completed(const struct fi_cq_tagged_entry *entry)
{
    struct transfer *transfer = entry->op_context;
    transfer->status = STATUS_OK;
    if (entry->flags & FI_RECV)
        transfer->bytes = entry->len;
    return transfer;
}

static enum status failed_status(int error)
{
    if (error == FI_ECANCELED)
        return STATUS_INTERRUPTED;
    if (error == FI_ETRUNC || error == FI_EMSGSIZE)
        return STATUS_FORMAT;
    /* Providers have many words for a peer that is gone (shm: EIO when it dies in the middle of a copy): with this
     * status the launcher looks for a death behind the failure before it believes in it. */
    return STATUS_PEER_LOST;
}

/* Take the failed transfer off the queue, if there is one. A failure that belongs to no transfer (a connection that
 * nobody uses any more) is none of ours. */
static enum status progress_failed(struct fabric *fabric, struct transfer **done, size_t *count)
{
    struct fi_cq_err_entry entry = {0};
    ssize_t rc = fi_cq_readerr(fabric->cq, &entry, 0);
    if (rc == -FI_EAGAIN)
        return STATUS_OK;
    if (rc < 0)
        return fail(STATUS_IO, "%s: completion queue: %s", fabric->name, fi_strerror((int)-rc));
    struct transfer *transfer = entry.op_context;
    if (transfer == NULL)
        return STATUS_OK;
    char text[256] = "";
    const char *words = fi_cq_strerror(fabric->cq, entry.prov_errno, entry.err_data, text, sizeof text);
    int error = abs(entry.err); /* shm gives some of them with a minus */
    transfer->bytes = 0;
    transfer->status = fail(failed_status(error), "%s: transfer: %s (%s)", fabric->name, fi_strerror(error),
                            words != NULL ? words : text);
    done[(*count)++] = transfer;
    return STATUS_OK;
}

static enum status fabric_progress(struct transport *transport, struct transfer **done, size_t limit, size_t *count)
{
    struct fabric *fabric = fabric_of(transport);
    *count = 0;
    if (fabric->stash_full && limit > 0) {
        fabric->stash_full = false;
        done[(*count)++] = completed(&fabric->stashed);
    }
    while (*count < limit) {
        struct fi_cq_tagged_entry entries[COMPLETION_BATCH];
        size_t wanted = limit - *count < COMPLETION_BATCH ? limit - *count : COMPLETION_BATCH;
        ssize_t rc = fi_cq_read(fabric->cq, entries, wanted);
        if (rc == -FI_EAGAIN || rc == 0)
            return STATUS_OK;
        if (rc == -FI_EAVAIL) {
            TRY(progress_failed(fabric, done, count));
            continue;
        }
        if (rc < 0)
            return fail(STATUS_IO, "%s: completion queue: %s", fabric->name, fi_strerror((int)-rc));
        for (ssize_t i = 0; i < rc; i++)
            done[(*count)++] = completed(&entries[i]);
        if ((size_t)rc < wanted)
            return STATUS_OK;
    }
    return STATUS_OK;
}

static unsigned patience(const struct fabric *fabric)
{
    if (fabric->sleeps)
        return YIELDS_BEFORE_QUEUE;
    return fabric->crowded ? YIELDS_CROWDED : YIELDS_BEFORE_SLEEP;
}

/* Longer and longer, so that a short gap costs little delay and a long one little processor time. */
static uint64_t sleep_length(unsigned rounds, uint64_t ns)
{
    uint64_t length = SHORTEST_SLEEP_NS * (uint64_t)(1 + rounds / 16);
    if (length > LONGEST_SLEEP_NS)
        length = LONGEST_SLEEP_NS;
    return length < ns ? length : ns;
}

/* Never spins: with a core of its own, yielding comes back at once, and on a shared one it is what lets the peer run.
 */
static void fabric_wait(struct transport *transport, uint64_t ns, unsigned idle)
{
    struct fabric *fabric = fabric_of(transport);
    unsigned yields = patience(fabric);
    if (idle < yields)
        (void)sched_yield();
    else if (!fabric->sleeps || ns < QUEUE_SLEEP_MS * UINT64_C(1000000))
        clock_sleep_ns(sleep_length(idle - yields, ns));
    else if (!fabric->stash_full)
        fabric->stash_full = fi_cq_sread(fabric->cq, &fabric->stashed, 1, NULL, QUEUE_SLEEP_MS) == 1;
}

static void fabric_cancel(struct transport *transport, struct transfer *transfer)
{
    (void)fi_cancel(&fabric_of(transport)->endpoint->fid, transfer); /* not found: it is done, and reported so */
}

static void fabric_describe(const struct transport *transport, struct text *text)
{
    const struct fabric *fabric = (const struct fabric *)transport;
    uint32_t version = fi_version();
    if (transport->mixed)
        text_addf(text, "node memory among the workers of a host (%s), between hosts ", fabric->nodes);
    text_addf(text, "%s, libfabric %u.%u", fabric->provider, FI_MAJOR(version), FI_MINOR(version));
    const bool shared = fabric->family == FAMILY_SHARED_MEMORY;
    if (shared || (transport->node != NULL && !transport->mixed))
        text_addf(text, ", node memory %s", transport->node != NULL ? "yes" : "no");
    if (shared)
        text_addf(text, ", CMA %s", fabric->cma ? "yes" : "no");
    else if (fabric->address[0] != '\0')
        text_addf(text, ", %s%s%s", fabric->address, fabric->interface[0] != '\0' ? " on " : "", fabric->interface);
    if (transport->node != NULL)
        text_addf(text, ", vectors outside of arenas %s",
                  node_reads(transport->node) ? "read in place" : "copied twice");
    if (fabric->without[0] != '\0')
        text_addf(text, " (no %s)", fabric->without);
}

static void fid_close(struct fid *fid)
{
    if (fid != NULL)
        (void)fi_close(fid); /* busy after transfers that never completed: the process's end takes the rest */
}

#define FID(object) ((object) != NULL ? &(object)->fid : NULL)

static void fabric_close(struct transport *transport)
{
    if (transport == NULL)
        return;
    struct fabric *fabric = fabric_of(transport);
    node_close(transport->node);
    fid_close(FID(fabric->endpoint));
    fid_close(FID(fabric->cq));
    fid_close(FID(fabric->av));
    fid_close(FID(fabric->domain));
    fid_close(FID(fabric->fabric));
    fi_freeinfo(fabric->info);
    free(fabric->peers);
    free(fabric);
}

const struct transport_ops fabric_ops = {
    .close = fabric_close,
    .send = fabric_send,
    .receive = fabric_receive,
    .progress = fabric_progress,
    .wait = fabric_wait,
    .cancel = fabric_cancel,
    .describe = fabric_describe,
};
