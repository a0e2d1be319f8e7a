/* transport.h - bytes between workers: tagged messages, matched by (peer, tag), behind one table of functions.
 *
 * fabric.c (libfabric RDM tagged endpoints: shm, net, tcp;ofi_rxm, ...) and loopback.c (one process, for tests).
 *
 * Threads: a transport is used by one thread at a time; the executor's lock sees to it. Nothing blocks except `wait`.
 * Messages are matched by exact tag under the receive's `ignore` mask; several messages of one tag from one peer arrive
 * in order. A receive should stand before its message comes; what comes first is kept by the provider, within its
 * limits. A message must not be longer than its receive: loopback says so (STATUS_FORMAT), and so do libfabric's
 * providers at best; at worst shm's copy never ends and tcp drops the connection.
 */
#ifndef CHORALE_COMM_TRANSPORT_H
#define CHORALE_COMM_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

#define TRANSPORT_ANY (-1)    /* receive from any peer             */
#define TRANSPORT_TAG_BITS 60 /* tags are below 2^60               */
/* Of /dev/shm for one worker on shm: its queues and buffers, with a margin. */
#define TRANSPORT_SHM_BYTES ((uint64_t)18 << 20)

/* One transfer under way. Owned by the caller, who must leave it in place until it is reported by progress(). The
 * provider keeps its own context in `provider`, which must come first. */
struct transfer {
    void *provider[8];  /* libfabric's fi_context2                                               */
    void *context;      /* the caller's                                                          */
    size_t bytes;       /* set when done: bytes moved                                            */
    enum status status; /* set when done: STATUS_OK, PEER_LOST, INTERRUPTED (cancelled), ...     */
};

struct transport;

struct transport_ops {
    /* Accepts NULL; outstanding transfers are abandoned. To be called when everyone has what was sent (a barrier). */
    void (*close)(struct transport *transport);
    /* Start a send or receive. STATUS_AGAIN: no room now, call progress() and try again (bounded by the caller's
     * deadline: a dead peer answers AGAIN for ever). Completion is reported by progress(), also for small messages. */
    enum status (*send)(struct transport *transport, int peer, uint64_t tag, const void *data, size_t bytes,
                        struct transfer *transfer);
    enum status (*receive)(struct transport *transport, int peer, uint64_t tag, uint64_t ignore, void *data,
                           size_t bytes, struct transfer *transfer);
    /* Move things on and report what is done: up to `limit` transfers. Never blocks. */
    enum status (*progress)(struct transport *transport, struct transfer **done, size_t limit, size_t *count);
    /* Nothing to do: wait until something may have happened, `ns` at most, by the provider's best means (sched_yield, a
     * short sleep, or sleeping on the completion queue). `idle` counts the empty rounds before, so that it may begin
     * by yielding and sleep later. Never spins when there are more workers than cores. */
    void (*wait)(struct transport *transport, uint64_t ns, unsigned idle);
    /* Ask for a receive to be given up; it is then reported with STATUS_INTERRUPTED (or done after all). */
    void (*cancel)(struct transport *transport, struct transfer *transfer);
    /* Provider, version, interface: stored with every result. */
    void (*describe)(const struct transport *transport, struct text *text);
};

struct node;

struct transport {
    const struct transport_ops *ops;
    const char *name;    /* as users type it: "shm", "tcp", "loopback"; "shm+tcp" where both are used */
    const char *network; /* the same where `node` is left alone; NULL: alike                          */
    struct node
        *node;  /* memory shared with the workers of this node (node.h): to them nothing need be sent; closed with
                          the transport; NULL: none */
    bool mixed; /* some workers share memory with some, and others are elsewhere; alike on all workers. Else those
                          of `node` are all */
    int rank, size;
    size_t eager_limit; /* messages up to this travel best without the receiver's grant (bytes, with our header) */
    size_t segment;     /* bytes of a segment, and receives posted ahead, that serve it best; 0: no opinion      */
    unsigned window,
        ahead; /* ahead: segments that it should hold for one peer, before which small messages can't pass; 0 */
    int sends, receives; /* of payload that should be under way at most, within its queues; 0: no opinion         */
};

struct job;

struct fabric_request {
    struct job *job;
    const char *name;      /* auto, shm, tcp, net, verbs, efa. auto: shm if every worker has it and all are on one host
                              with one /dev/shm, else tcp, with node memory among the workers of each host; decided
                              jointly over the job's channel. tcp: provider net where every worker has it, else
                              tcp;ofi_rxm                                                                      */
    const char *provider;  /* raw libfabric provider string that overrides `name`; NULL = none                       */
    const char *interface; /* tcp: the interface to use; NULL = lo when all workers are on this host                  */
};

/* Collective over the job. `shm` and `auto` come with node memory where the system permits it, `provider` never does.
 * STATUS_UNAVAILABLE when the provider is missing here, naming it and what to install or free
 * (e.g. /dev/shm too small: wanted and available bytes); STATUS_USAGE for an unknown name. */
enum status fabric_open(const struct fabric_request *request, struct transport **transport) MUST_CHECK;

/* Settings of libfabric's that fabric_open() relies on, where the user has made none. It calls this itself; before that
 * only where another library may call libfabric first, which reads them once. Sets the environment, which nobody may read
 * meanwhile. */
void fabric_set_environment(void);

/* `size` endpoints in one process. mode: how messages arrive. Any thread may use its own endpoint. Close each endpoint
 * with ops->close; the hub goes with the last one. */
enum loopback_mode {
    LOOPBACK_IN_ORDER,
    LOOPBACK_SHUFFLED, /* messages between different (peer, tag) overtake each other at random */
    LOOPBACK_DELAYED,  /* and are held back for a random number of progress rounds             */
    LOOPBACK_NODE,     /* in order, and the workers share memory as those of a node do         */
    LOOPBACK_HOSTS     /* delayed between nodes of several sizes, shared memory in each of them: by blocks for an even
                          seed, else dealt out like cards                                      */
};
enum status loopback_open(int size, enum loopback_mode mode, uint64_t seed, struct transport **transports) MUST_CHECK;

#endif
