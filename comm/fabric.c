/* fabric.c - the transport on libfabric: reliable datagram endpoints with tagged messages.
 *
 * Opening is collective. The workers first survey their hosts and decide together, from the same data and so alike,
 * then each opens one endpoint, and the addresses travel over the job's channel. A worker that fails on the way still
 * takes part in what follows, so that everyone learns of it at once instead of waiting for a deadline.
 *
 * One endpoint, one completion queue, manual progress: whoever waits polls. The domain is used by one thread at a time
 * (FI_THREAD_DOMAIN). libfabric notices no death of a peer: posts to it answer "again" for ever, see transport.h.
 */
#define _GNU_SOURCE /* process_vm_readv */
#include "comm/transport.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/host.h"
#include "comm/job.h"

#define API_VERSION FI_VERSION(1, 17)
#define COMPLETION_BATCH 16
#define ADDRESS_BYTES 256
#define NAME_BYTES 64
#define SHM_WORKERS 256                       /* the provider's limit (SMR_MAX_PEERS)                             */
#define SHM_WORKER_BYTES ((uint64_t)18 << 20) /* of /dev/shm for one worker: its queues and buffers, with a margin */
#define DEFAULT_UNIVERSE 256                  /* libfabric's own guess at the number of peers                     */
#define YIELD_ROUNDS 1000                     /* empty rounds before wait() sleeps: some hundred microseconds     */
#define SHORTEST_SLEEP_NS 50000
#define LONGEST_SLEEP_NS 1000000

static_assert(sizeof(struct fi_context2) <= sizeof((struct transfer *)0)->provider,
              "a transfer holds libfabric's context");

enum family {
    FAMILY_SHARED_MEMORY, /* one host, /dev/shm                             */
    FAMILY_IP,            /* sockets: an interface can be chosen            */
    FAMILY_DEVICE         /* adapters: the provider chooses                 */
};

struct choice {
    const char *name;     /* as users type it           */
    const char *provider; /* as libfabric spells it     */
    enum family family;
    size_t eager_limit;
};

static const struct choice choices[] = {
    {"shm", "shm", FAMILY_SHARED_MEMORY, 4096},
    {"tcp", "tcp;ofi_rxm", FAMILY_IP, 8192},
    {"net", "net", FAMILY_IP, 8192},
    {"verbs", "verbs;ofi_rxm", FAMILY_DEVICE, 8192},
    {"efa", "efa", FAMILY_DEVICE, 8192},
};
#define CHOICES (sizeof choices / sizeof choices[0])
#define CHOICE_SHM (&choices[0])
#define CHOICE_TCP (&choices[1])

struct fabric {
    struct transport transport; /* must be first */
    enum family family;
    bool crowded; /* more workers than cores on this host: a poll takes the time that its peer needs */
    bool sleeps;  /* the completion queue can be slept on                                            */
    bool cma;     /* shm: one copy, straight from the sender's memory                                */
    char name[NAME_BYTES], provider[NAME_BYTES], address[HOST_ADDRESS_BYTES];
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

static struct fabric *fabric_of(struct transport *transport)
{
    return (struct fabric *)transport;
}

/* --- transfers ---------------------------------------------------------------------------------------------------- */

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
    return connection_lost(error) ? STATUS_PEER_LOST : STATUS_IO;
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
    transfer->bytes = 0;
    transfer->status = fail(failed_status(entry.err), "%s: transfer: %s (%s)", fabric->name, fi_strerror(entry.err),
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

/* Longer and longer, so that a short gap costs little and a long one no processor time. */
static uint64_t sleep_length(unsigned idle, uint64_t ns)
{
    uint64_t length = SHORTEST_SLEEP_NS * (uint64_t)(1 + (idle - YIELD_ROUNDS) / 16);
    if (length > LONGEST_SLEEP_NS)
        length = LONGEST_SLEEP_NS;
    return length < ns ? length : ns;
}

static void fabric_wait(struct transport *transport, uint64_t ns, unsigned idle)
{
    struct fabric *fabric = fabric_of(transport);
    if (idle < YIELD_ROUNDS) {
        (void)sched_yield();
        return;
    }
    if (!fabric->sleeps || ns < LONGEST_SLEEP_NS) {
        clock_sleep_ns(sleep_length(idle, ns));
        return;
    }
    if (!fabric->stash_full)
        fabric->stash_full = fi_cq_sread(fabric->cq, &fabric->stashed, 1, NULL, 1 /* ms */) == 1;
}

static void fabric_cancel(struct transport *transport, struct transfer *transfer)
{
    (void)fi_cancel(&fabric_of(transport)->endpoint->fid, transfer); /* not found: it is done, and reported so */
}

static void fabric_describe(const struct transport *transport, struct text *text)
{
    const struct fabric *fabric = (const struct fabric *)transport;
    uint32_t version = fi_version();
    text_addf(text, "%s, libfabric %u.%u", fabric->provider, FI_MAJOR(version), FI_MINOR(version));
    if (fabric->family == FAMILY_SHARED_MEMORY)
        text_addf(text, ", CMA %s", fabric->cma ? "yes" : "no");
    else if (fabric->address[0] != '\0')
        text_addf(text, ", %s", fabric->address);
}

/* --- opening and closing ------------------------------------------------------------------------------------------ */

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
    fid_close(FID(fabric->endpoint));
    fid_close(FID(fabric->cq));
    fid_close(FID(fabric->av));
    fid_close(FID(fabric->domain));
    fid_close(FID(fabric->fabric));
    fi_freeinfo(fabric->info);
    free(fabric->peers);
    free(fabric);
}

static const struct transport_ops fabric_ops = {
    .close = fabric_close,
    .send = fabric_send,
    .receive = fabric_receive,
    .progress = fabric_progress,
    .wait = fabric_wait,
    .cancel = fabric_cancel,
    .describe = fabric_describe,
};

static enum status hints_create(const char *provider, struct fi_info **out)
{
    struct fi_info *hints = fi_allocinfo();
    char *name = NULL;
    if (hints == NULL)
        return fail(STATUS_NO_MEMORY, "out of memory: libfabric's hints");
    enum status status = memory_string(&name, provider);
    if (status < 0) {
        fi_freeinfo(hints);
        return status;
    }
    hints->fabric_attr->prov_name = name;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_TAGGED | FI_DIRECTED_RECV; /* no FI_HMEM: it turns off shm's single copy */
    hints->mode = FI_CONTEXT | FI_CONTEXT2;     /* no FI_BUFFERED_RECV                        */
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->domain_attr->av_type = FI_AV_TABLE;
    hints->tx_attr->msg_order = FI_ORDER_SAS;
    hints->rx_attr->msg_order = FI_ORDER_SAS;
    *out = hints;
    return STATUS_OK;
}

/* What libfabric offers for a provider, at a source address if one is given. STATUS_UNAVAILABLE: nothing. */
static enum status query(const char *provider, const char *source, struct fi_info **list)
{
    struct fi_info *hints = NULL;
    TRY(hints_create(provider, &hints));
    int rc = fi_getinfo(API_VERSION, source, NULL, source != NULL ? FI_SOURCE : 0, hints, list);
    fi_freeinfo(hints);
    if (rc != 0)
        return fail(STATUS_UNAVAILABLE, "libfabric has no provider %s here: %s", provider, fi_strerror(-rc));
    return STATUS_OK;
}

/* The first offer of exactly this provider (it offers itself in layers, too), without demands on us but contexts. */
static const struct fi_info *pick(const struct fi_info *list, const char *provider)
{
    for (const struct fi_info *info = list; info != NULL; info = info->next)
        if (strcmp(info->fabric_attr->prov_name, provider) == 0 && (info->mode & ~(FI_CONTEXT | FI_CONTEXT2)) == 0)
            return info;
    for (const struct fi_info *info = list; info != NULL; info = info->next)
        if ((info->mode & ~(FI_CONTEXT | FI_CONTEXT2)) == 0)
            return info;
    return NULL;
}

static enum status provider_find(struct fabric *fabric, const char *provider, const char *source)
{
    struct fi_info *list = NULL;
    TRY(query(provider, source, &list));
    const struct fi_info *info = pick(list, provider);
    fabric->info = info != NULL ? fi_dupinfo(info) : NULL;
    fi_freeinfo(list);
    if (info == NULL)
        return fail(STATUS_UNAVAILABLE, "provider %s: it offers no tagged messages that fit", provider);
    if (fabric->info == NULL)
        return fail(STATUS_NO_MEMORY, "out of memory: libfabric's info");
    return STATUS_OK;
}

static enum status opened(const struct fabric *fabric, int rc, const char *what)
{
    if (rc == 0)
        return STATUS_OK;
    return fail(rc == -FI_ENOMEM ? STATUS_NO_MEMORY : STATUS_UNAVAILABLE, "%s: open %s: %s", fabric->name, what,
                fi_strerror(-rc));
}

static enum status queue_open(struct fabric *fabric)
{
    struct fi_cq_attr attr = {.size = fabric->info->tx_attr->size + fabric->info->rx_attr->size,
                              .format = FI_CQ_FORMAT_TAGGED,
                              .wait_obj = FI_WAIT_NONE};
    /* shm has no way to sleep on its queue: its sread yields in a loop. */
    fabric->sleeps = fabric->family != FAMILY_SHARED_MEMORY;
    if (fabric->sleeps) {
        attr.wait_obj = FI_WAIT_UNSPEC;
        if (fi_cq_open(fabric->domain, &attr, &fabric->cq, NULL) == 0)
            return STATUS_OK;
        fabric->sleeps = false;
        attr.wait_obj = FI_WAIT_NONE;
    }
    return opened(fabric, fi_cq_open(fabric->domain, &attr, &fabric->cq, NULL), "completion queue");
}

static enum status endpoint_open(struct fabric *fabric)
{
    struct fi_av_attr attr = {.type = FI_AV_TABLE, .count = (size_t)fabric->transport.size};
    TRY(opened(fabric, fi_fabric(fabric->info->fabric_attr, &fabric->fabric, NULL), "fabric"));
    TRY(opened(fabric, fi_domain(fabric->fabric, fabric->info, &fabric->domain, NULL), "domain"));
    TRY(opened(fabric, fi_av_open(fabric->domain, &attr, &fabric->av, NULL), "address table"));
    TRY(queue_open(fabric));
    TRY(opened(fabric, fi_endpoint(fabric->domain, fabric->info, &fabric->endpoint, NULL), "endpoint"));
    TRY(opened(fabric, fi_ep_bind(fabric->endpoint, &fabric->av->fid, 0), "endpoint's address table"));
    TRY(opened(fabric, fi_ep_bind(fabric->endpoint, &fabric->cq->fid, FI_TRANSMIT | FI_RECV), "endpoint's queue"));
    return opened(fabric, fi_enable(fabric->endpoint), "endpoint for use");
}

/* --- the joint decision ------------------------------------------------------------------------------------------- */

/* What each worker tells of its host. */
struct survey {
    struct host_identity identity;
    uint64_t shared_memory; /* bytes free           */
    uint64_t has_shm;       /* the provider answers */
};

/* What the workers make of it. */
struct survey_result {
    int without_shm;  /* a worker that lacks the provider, -1 when all have it   */
    int elsewhere;    /* a worker that shares no memory with worker 0, or -1     */
    bool one_network; /* all reach each other on the loopback interface          */
    int neighbours;   /* workers on this host, this one included                 */
    uint64_t shared_memory;
};

static bool shm_answers(void)
{
    struct fi_info *list = NULL;
    if (query(CHOICE_SHM->provider, NULL, &list) < 0)
        return false;
    fi_freeinfo(list);
    return true;
}

static void survey_read(const struct survey *all, int rank, int size, struct survey_result *result)
{
    *result = (struct survey_result){
        .without_shm = -1, .elsewhere = -1, .one_network = true, .shared_memory = all[0].shared_memory};
    for (int i = size - 1; i >= 0; i--) {
        if (!all[i].has_shm)
            result->without_shm = i;
        if (all[i].identity.memory != all[0].identity.memory)
            result->elsewhere = i;
        if (all[i].identity.network != all[0].identity.network)
            result->one_network = false;
        if (all[i].identity.network == all[rank].identity.network)
            result->neighbours++;
        if (all[i].shared_memory < result->shared_memory)
            result->shared_memory = all[i].shared_memory;
    }
}

static enum status survey_hosts(struct job *job, bool want_shm, struct survey_result *result)
{
    int size = job_size(job);
    struct survey mine = {.shared_memory = host_shared_memory(), .has_shm = want_shm && shm_answers()};
    void *all;
    host_identify(&mine.identity);
    TRY(memory_zeroed(&all, (size_t)size, sizeof mine));
    enum status status = job_allgather(job, &mine, sizeof mine, all);
    if (status == STATUS_OK)
        survey_read(all, job_rank(job), size, result);
    free(all);
    return status;
}

/* STATUS_OK when shared memory serves all workers; else the reason why not. */
static enum status shm_possible(const struct survey_result *survey, int size)
{
    uint64_t wanted = (uint64_t)size * SHM_WORKER_BYTES;
    if (size > SHM_WORKERS)
        return fail(STATUS_UNAVAILABLE, "shm: %d workers: the provider takes %d at most: use tcp", size, SHM_WORKERS);
    if (survey->elsewhere >= 0)
        return fail(STATUS_UNAVAILABLE, "shm: worker %d shares no memory with worker 0: use tcp", survey->elsewhere);
    if (survey->shared_memory < wanted)
        return fail(STATUS_UNAVAILABLE,
                    "shm: /dev/shm is too small for %d workers: %llu MiB wanted, %llu MiB free: free some or use tcp",
                    size, (unsigned long long)(wanted >> 20), (unsigned long long)(survey->shared_memory >> 20));
    if (survey->without_shm >= 0)
        return fail(STATUS_UNAVAILABLE,
                    "shm: worker %d's libfabric offers no provider shm (%llu MiB are free in /dev/shm): use tcp",
                    survey->without_shm, (unsigned long long)(survey->shared_memory >> 20));
    return STATUS_OK;
}

static const struct choice *choice_named(const char *name)
{
    for (size_t i = 0; i < CHOICES; i++)
        if (strcmp(choices[i].name, name) == 0)
            return &choices[i];
    return NULL;
}

static enum status unknown_name(const char *name)
{
    const char *candidates[CHOICES + 1] = {"auto"};
    for (size_t i = 0; i < CHOICES; i++)
        candidates[i + 1] = choices[i].name;
    const char *nearest = nearest_spelling(name, candidates, CHOICES + 1);
    return fail(STATUS_USAGE, "transport %s: unknown%s%s; there are auto, shm, tcp, net, verbs, efa", name,
                nearest != NULL ? ": did you mean " : "", nearest != NULL ? nearest : "");
}

/* A provider that the user spells: what we know of its kind follows from its name. */
static struct choice choice_raw(const char *provider)
{
    struct choice choice = {.name = provider, .provider = provider, .family = FAMILY_DEVICE, .eager_limit = 4096};
    static const char *const sockets[] = {"tcp", "net", "udp", "sockets"};
    if (strncmp(provider, "shm", 3) == 0)
        choice.family = FAMILY_SHARED_MEMORY;
    for (size_t i = 0; i < sizeof sockets / sizeof sockets[0]; i++)
        if (strncmp(provider, sockets[i], strlen(sockets[i])) == 0)
            choice.family = FAMILY_IP;
    return choice;
}

static enum status choose(const struct fabric_request *request, struct choice *choice, struct survey_result *survey)
{
    const char *name = request->name != NULL ? request->name : "auto";
    const struct choice *named = choice_named(name);
    bool automatic = strcmp(name, "auto") == 0;
    if (named == NULL && !automatic)
        return unknown_name(name);
    if (request->provider != NULL) {
        *choice = choice_raw(request->provider);
        automatic = false;
    } else {
        *choice = named != NULL ? *named : *CHOICE_TCP;
    }
    bool shm = choice->family == FAMILY_SHARED_MEMORY;
    TRY(survey_hosts(request->job, automatic || shm, survey));
    if (shm)
        return shm_possible(survey, job_size(request->job));
    if (automatic && shm_possible(survey, job_size(request->job)) == STATUS_OK)
        *choice = *CHOICE_SHM;
    return STATUS_OK;
}

/* --- opening together --------------------------------------------------------------------------------------------- */

/* What each worker tells of its endpoint. */
struct card {
    int32_t status;           /* of opening it             */
    uint32_t length;          /* of the address            */
    int64_t pid;              /* for the probe of CMA      */
    uint64_t probe;           /* address of a byte to read */
    char text[ADDRESS_BYTES]; /* the address, or why there is none */
};

/* The source address to ask for: the interface that the user named, else the loopback one where all workers are on
 * this host, else none: libfabric's first. */
static enum status source_address(const struct fabric_request *request, const struct survey_result *survey,
                                  char address[HOST_ADDRESS_BYTES], const char **source)
{
    *source = NULL;
    if (request->interface == NULL && !survey->one_network)
        return STATUS_OK;
    TRY(host_interface_address(request->interface != NULL ? request->interface : "lo", address));
    *source = address;
    return STATUS_OK;
}

static void address_print(struct fabric *fabric, const char *name, size_t length)
{
    uint32_t format = fabric->info->addr_format;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if ((format == FI_SOCKADDR_IN || format == FI_SOCKADDR) && length == sizeof v4) {
        memcpy(&v4, name, sizeof v4);
        (void)inet_ntop(AF_INET, &v4.sin_addr, fabric->address, sizeof fabric->address);
    } else if ((format == FI_SOCKADDR_IN6 || format == FI_SOCKADDR) && length == sizeof v6) {
        memcpy(&v6, name, sizeof v6);
        (void)inet_ntop(AF_INET6, &v6.sin6_addr, fabric->address, sizeof fabric->address);
    }
}

static enum status address_read(struct fabric *fabric, const char *source, struct card *card)
{
    size_t length = sizeof card->text;
    TRY(opened(fabric, fi_getname(&fabric->endpoint->fid, card->text, &length), "endpoint's address"));
    if (length > sizeof card->text)
        return fail(STATUS_INTERNAL, "%s: an address of %zu bytes", fabric->name, length);
    card->length = (uint32_t)length;
    address_print(fabric, card->text, length);
    /* libfabric falls back in silence when it cannot do as told. A link-local address carries its interface: cut it. */
    if (source != NULL && strncmp(source, fabric->address, strcspn(source, "%")) != 0)
        return fail(STATUS_UNAVAILABLE, "%s: address %s was asked for, libfabric took %s", fabric->name, source,
                    fabric->address);
    return STATUS_OK;
}

/* Everything up to the address, alone. */
static enum status open_alone(struct fabric *fabric, const struct fabric_request *request,
                              const struct survey_result *survey, struct card *card)
{
    char address[HOST_ADDRESS_BYTES];
    const char *source = NULL;
    if (fabric->family == FAMILY_IP)
        TRY(source_address(request, survey, address, &source));
    TRY(provider_find(fabric, fabric->provider, source));
    TRY(endpoint_open(fabric));
    return address_read(fabric, source, card);
}

static enum status peers_insert(struct fabric *fabric, const struct card *cards)
{
    for (int rank = 0; rank < fabric->transport.size; rank++)
        if (cards[rank].status != STATUS_OK)
            return fail((enum status)cards[rank].status, "worker %d: %s", rank, cards[rank].text);
    for (int rank = 0; rank < fabric->transport.size; rank++)
        if (fi_av_insert(fabric->av, cards[rank].text, 1, &fabric->peers[rank], 0, NULL) != 1)
            return fail(STATUS_UNAVAILABLE, "%s: the address of worker %d is not taken", fabric->name, rank);
    return STATUS_OK;
}

static const char probe_byte = 42;

/* The provider copies straight from the sender's memory if the system lets it. */
static bool memory_readable(const struct card *card)
{
    char byte = 0;
    struct iovec here = {.iov_base = &byte, .iov_len = 1};
    struct iovec there = {.iov_base = (void *)(uintptr_t)card->probe, .iov_len = 1};
    const char *disabled = getenv("FI_SHM_DISABLE_CMA");
    if (disabled != NULL && strcmp(disabled, "0") != 0)
        return false;
    return process_vm_readv((pid_t)card->pid, &here, 1, &there, 1, 0) == 1 && byte == probe_byte;
}

/* Exchange the cards, also those of workers that have failed, and meet: nobody sends to an endpoint that isn't ready.
 */
static enum status meet(struct fabric *fabric, struct job *job, struct card *mine)
{
    int size = fabric->transport.size, rank = fabric->transport.rank;
    void *all;
    TRY(memory_zeroed(&all, (size_t)size, sizeof *mine));
    const struct card *cards = all;
    enum status status = job_allgather(job, mine, sizeof *mine, all);
    if (status == STATUS_OK)
        status = peers_insert(fabric, cards);
    if (status == STATUS_OK)
        fabric->cma = memory_readable(&cards[(rank + 1) % size]);
    if (status == STATUS_OK)
        status = job_barrier(job);
    free(all);
    return status;
}

/* Left alone when the user has set it. libfabric reads it once, at its first call. */
static void expect_peers(int size)
{
    char text[16];
    struct text number = {0};
    if (size <= DEFAULT_UNIVERSE || getenv("FI_UNIVERSE_SIZE") != NULL)
        return;
    text_addf(&number, "%d", size);
    if (number.length < sizeof text)
        (void)setenv("FI_UNIVERSE_SIZE", text_string(&number), 0);
    text_release(&number);
}

static void copy_name(char to[NAME_BYTES], const char *from)
{
    size_t length = strlen(from);
    if (length >= NAME_BYTES)
        length = NAME_BYTES - 1;
    memcpy(to, from, length);
    to[length] = '\0';
}

static enum status fabric_create(struct job *job, const struct choice *choice, int neighbours, struct fabric **out)
{
    void *block;
    TRY(memory_zeroed(&block, 1, sizeof(struct fabric)));
    struct fabric *fabric = block;
    *out = fabric;
    copy_name(fabric->name, choice->name);
    copy_name(fabric->provider, choice->provider);
    fabric->family = choice->family;
    fabric->crowded = neighbours > host_cores();
    fabric->transport = (struct transport){.ops = &fabric_ops,
                                           .name = fabric->name,
                                           .rank = job_rank(job),
                                           .size = job_size(job),
                                           .eager_limit = choice->eager_limit};
    void *peers;
    TRY(memory_zeroed(&peers, (size_t)job_size(job), sizeof(fi_addr_t)));
    fabric->peers = peers;
    return STATUS_OK;
}

enum status fabric_open(const struct fabric_request *request, struct transport **transport)
{
    struct fabric *fabric = NULL;
    struct choice choice = *CHOICE_TCP;
    struct survey_result survey = {0};
    struct card card = {.pid = getpid(), .probe = (uintptr_t)&probe_byte};
    enum status status;
    expect_peers(job_size(request->job));
    TRY_TO(out, choose(request, &choice, &survey));
    TRY_TO(out, fabric_create(request->job, &choice, survey.neighbours, &fabric));
    card.status = open_alone(fabric, request, &survey, &card);
    if (card.status != STATUS_OK)
        strncat(memset(card.text, 0, sizeof card.text), status_message(), sizeof card.text - 1);
    TRY_TO(out, meet(fabric, request->job, &card));
    *transport = &fabric->transport;
    fabric = NULL;
out:
    if (fabric != NULL)
        fabric_close(&fabric->transport);
    return status;
}
