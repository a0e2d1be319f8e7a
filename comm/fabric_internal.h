/* fabric_internal.h - what the parts of the libfabric transport share: fabric.c moves messages, fabric_choose.c decides
 * on a provider, fabric_open.c opens. Private to comm/. */
#ifndef CHORALE_COMM_FABRIC_INTERNAL_H
#define CHORALE_COMM_FABRIC_INTERNAL_H

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include "comm/host.h"
#include "comm/node.h"
#include "comm/transport.h"

#define FABRIC_NAME_BYTES 64

enum fabric_family {
    FAMILY_SHARED_MEMORY, /* one host, /dev/shm                             */
    FAMILY_IP,            /* sockets: an interface can be chosen            */
    FAMILY_DEVICE         /* adapters: the provider chooses                 */
};

struct fabric_choice {
    const char *name;     /* as users type it           */
    const char *provider; /* as libfabric spells it     */
    enum fabric_family family;
    size_t eager_limit, segment;
    unsigned window, ahead;
    bool with_node; /* the workers of a node use its memory instead */
};

/* What the workers make of what each tells of its host. */
struct fabric_survey {
    int without_shm;  /* a worker that lacks the provider, -1 when all have it   */
    int elsewhere;    /* a worker that shares no memory with worker 0, or -1     */
    bool one_network; /* all reach each other on the loopback interface          */
    bool all_net;     /* all have the provider net, if that was asked            */
    uint64_t shared_memory;
    char without[200]; /* why `auto` does not take shm on one host; "": it does */
};

struct fabric {
    struct transport transport; /* must be first */
    enum fabric_family family;
    bool crowded; /* more workers than cores on this host: a poll takes the time that its peer needs */
    bool sleeps;  /* the completion queue can be slept on                                            */
    bool cma;     /* shm: one copy, straight from the sender's memory                                */
    char name[FABRIC_NAME_BYTES], network[FABRIC_NAME_BYTES]; /* of the transport */
    char provider[FABRIC_NAME_BYTES], address[HOST_ADDRESS_BYTES];
    char interface[HOST_INTERFACE_BYTES]; /* that has the address; "": not known */
    char without[200];                    /* why there is no shm, where `auto` would have taken it; "": none */
    char nodes[64]; /* workers of each node, where only those of a node share memory: "2+1+1+2"; the first of many */
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *endpoint;
    fi_addr_t *peers;                  /* by rank                                     */
    struct fi_cq_tagged_entry stashed; /* a completion that wait() has come upon      */
    bool stash_full;
};

extern const struct transport_ops fabric_ops;

/* What libfabric offers for a provider, at a source address if one is given; release with fi_freeinfo().
 * STATUS_UNAVAILABLE: nothing. */
enum status fabric_query(const char *provider, const char *source, struct fi_info **list) MUST_CHECK;

/* Survey the hosts of all workers and choose; collective, with the same outcome on all. */
enum status fabric_choose(const struct fabric_request *request, struct fabric_choice *choice,
                          struct fabric_survey *survey) MUST_CHECK;

#endif
