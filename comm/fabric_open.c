/* fabric_open.c - opening a libfabric transport, together.
 *
 * The workers choose a provider, then each opens one endpoint, and the addresses travel over the job's channel. A
 * worker that fails on the way still takes part in the exchange, so that everyone learns of it at once instead of
 * waiting for a deadline.
 */
#define _GNU_SOURCE /* process_vm_readv */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/fi_cm.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "algos/layout.h"
#include "base/memory.h"
#include "comm/fabric_internal.h"
#include "comm/job.h"
#include "comm/kernel_symbols.h"

#define API_VERSION FI_VERSION(1, 17)
#define ADDRESS_BYTES 256
#define DEFAULT_UNIVERSE 256 /* libfabric's own guess at the number of peers */

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

enum status fabric_query(const char *provider, const char *source, struct fi_info **list)
{
    struct fi_info *hints = NULL;
    TRY(hints_create(provider, &hints));
    kernel_symbols_hide(true);
    const int rc = fi_getinfo(API_VERSION, source, NULL, source != NULL ? FI_SOURCE : 0, hints, list);
    kernel_symbols_hide(false);
    fi_freeinfo(hints);
    if (rc != 0)
        return fail(STATUS_UNAVAILABLE, "libfabric offers no provider %s here: %s: fi_info -l lists what there is",
                    provider, fi_strerror(-rc));
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
    TRY(fabric_query(provider, source, &list));
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

/* What each worker tells of its endpoint. */
struct card {
    int32_t status;           /* of opening it             */
    uint32_t length;          /* of the address            */
    int64_t pid;              /* for the probe of CMA      */
    uint64_t probe;           /* address of a byte to read */
    char text[ADDRESS_BYTES]; /* the address, or why there is none */
};

/* libfabric's own variables for an interface count with some of its providers only, and not at all where there is none of that
 * name: in silence. So they are taken here. */
static const char *wanted_interface(const struct fabric_request *request, const char *provider, const char **by)
{
    const char *const names[] = {strcmp(provider, "net") == 0 ? "FI_NET_IFACE" : "FI_TCP_IFACE", "FI_TCP_IFACE"};
    for (size_t i = 0; request->interface == NULL && i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        *by = names[i];
        if (value != NULL && value[0] != '\0')
            return value;
    }
    return request->interface;
}

/* The source address to ask for: the interface that the user named, else the loopback one where all workers are on
 * this host, else none: libfabric's first. */
static enum status source_address(const struct fabric_request *request, const struct fabric_survey *survey,
                                  const char *provider, char address[HOST_ADDRESS_BYTES], const char **source)
{
    const char *by = NULL, *interface = wanted_interface(request, provider, &by);
    *source = NULL;
    if (interface == NULL && !survey->one_network)
        return STATUS_OK;
    const enum status status = host_interface_address(interface != NULL ? interface : "lo", address);
    if (status < 0)
        return by != NULL ? fail_context(status, "%s", by) : status;
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
    (void)host_address_interface(fabric->address, fabric->interface);
    /* libfabric falls back in silence when it cannot do as told. A link-local address carries its interface: cut it. */
    const size_t bare = source != NULL ? strcspn(source, "%") : 0;
    if (source != NULL && (strncmp(source, fabric->address, bare) != 0 || fabric->address[bare] != '\0'))
        return fail(STATUS_UNAVAILABLE, "%s: address %s was asked for, libfabric took %s", fabric->name, source,
                    fabric->address);
    return STATUS_OK;
}

/* Within the provider's queues: some places stay free for small messages, half of the receives for the pool and for
 * whoever must not wait. */
static void queue_limits(struct fabric *fabric)
{
    const size_t sends = fabric->info->tx_attr->size, receives = fabric->info->rx_attr->size;
    fabric->transport.sends = sends > 4096 ? 4096 : sends > 16 ? (int)sends - 8 : 8;
    fabric->transport.receives = receives > 4096 ? 2048 : receives > 16 ? (int)(receives / 2) : 8;
}

/* Everything up to the address, alone. */
static enum status open_alone(struct fabric *fabric, const struct fabric_request *request,
                              const struct fabric_survey *survey, struct card *card)
{
    char address[HOST_ADDRESS_BYTES];
    const char *source = NULL;
    if (fabric->family == FAMILY_IP)
        TRY(source_address(request, survey, fabric->provider, address, &source));
    if (fabric->family == FAMILY_SHARED_MEMORY)
        job_remove_stale((long)getpid());
    TRY(provider_find(fabric, fabric->provider, source));
    queue_limits(fabric);
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

static void copy_name(char *to, size_t size, const char *from)
{
    size_t length = strlen(from);
    if (length >= size)
        length = size - 1;
    memcpy(to, from, length);
    to[length] = '\0';
}

/* "2+1+1+2", or as many of the numbers as there is room for: "2+1+1+..." */
static void copy_list(char *to, size_t size, const char *from)
{
    static const char more[] = "...";
    copy_name(to, size, from);
    if (strlen(from) < size)
        return;
    char *end = to + size - sizeof more;
    while (end > to && end[-1] != '+')
        end--;
    memcpy(end, more, sizeof more);
}

struct node_outcome {
    int32_t attached, reads;
};

static int workers_at(const struct layout *layout, int node)
{
    int workers = 0;
    for (int rank = 0; rank < layout->workers; rank++)
        workers += layout->node_of[rank] == node;
    return workers;
}

/* All workers of a node have attached to each other's memory; *reads: and can read it. */
static bool node_usable(const struct layout *layout, int node, const struct node_outcome *all, bool *reads)
{
    *reads = true;
    for (int rank = 0; rank < layout->workers; rank++) {
        if (layout->node_of[rank] == node && all[rank].attached == 0)
            return false;
        *reads = *reads && (layout->node_of[rank] != node || all[rank].reads != 0);
    }
    return workers_at(layout, node) > 1 || layout->nodes == 1;
}

/* What has come of it: the workers of a node share its memory, or none of them does. */
static void node_settle(struct fabric *fabric, const struct layout *layout, const struct node_outcome *all,
                        struct node **node)
{
    const int here = layout->node_of[fabric->transport.rank];
    struct text nodes = {0};
    bool reads = false, every = true;
    for (int n = 0; n < layout->nodes && layout->nodes > 1; n++) {
        const bool usable = node_usable(layout, n, all, &reads);
        fabric->transport.mixed = fabric->transport.mixed || usable;
        every = every && (usable || workers_at(layout, n) == 1);
        text_addf(&nodes, "%s%d", n > 0 ? "+" : "", usable ? workers_at(layout, n) : 1);
    }
    if (every) { /* in its shortest form */
        text_release(&nodes);
        layout_describe(layout, &nodes);
    }
    if (fabric->transport.mixed) {
        copy_list(fabric->nodes, sizeof fabric->nodes, text_string(&nodes));
        copy_name(fabric->name, sizeof fabric->name, "shm+tcp");
    }
    text_release(&nodes);
    if (*node == NULL || !node_usable(layout, here, all, &reads))
        return;
    node_permit_reads(*node, reads);
    fabric->transport.node = *node;
    *node = NULL;
    if (fabric->family != FAMILY_SHARED_MEMORY && layout->nodes == 1) { /* which leaves nothing to the provider */
        copy_name(fabric->name, sizeof fabric->name, "shm");
        fabric->transport.segment = 0;
        fabric->transport.window = fabric->transport.ahead = 0;
    }
}

/* Collective over the job, also for workers that have no neighbours. */
static enum status node_open(struct fabric *fabric, struct job *job)
{
    const struct layout *layout = job_layout(job);
    const int rank = job_rank(job), size = job_size(job);
    struct node_card mine = {.magic = 0};
    struct node_outcome outcome = {0};
    struct node *node = NULL;
    void *cards = NULL, *all = NULL;
    bool reads = false;
    enum status status = STATUS_OK;
    TRY_TO(done, memory_zeroed(&cards, (size_t)size, sizeof mine));
    TRY_TO(done, memory_zeroed(&all, (size_t)size, sizeof outcome));
    if (workers_at(layout, layout->node_of[rank]) > 1)
        (void)!node_create(rank, size, layout->node_of, fabric->crowded, &node, &mine); /* the card tells */
    TRY_TO(done, job_allgather(job, &mine, sizeof mine, cards));
    outcome.attached = node != NULL && node_attach(node, cards, &reads) == STATUS_OK;
    outcome.reads = reads;
    TRY_TO(done, job_allgather(job, &outcome, sizeof outcome, all));
    node_settle(fabric, layout, all, &node);
done:
    node_close(node);
    free(cards);
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

/* What is in libfabric's staging buffer of a connection counts as sent, but only this worker's next call pushes it into a
 * socket that was full: whoever computes or waits elsewhere meanwhile holds its peer up. Without the buffer a completion
 * means that the socket has it. Left alone when the user has set it. */
void fabric_set_environment(void)
{
    (void)setenv("FI_NET_STAGING_SBUF_SIZE", "0", 0);
    (void)setenv("FI_TCP_STAGING_SBUF_SIZE", "0", 0);
}

static enum status fabric_create(struct job *job, const struct fabric_choice *choice, const char *without,
                                 struct fabric **out)
{
    void *block;
    TRY(memory_zeroed(&block, 1, sizeof(struct fabric)));
    struct fabric *fabric = block;
    *out = fabric;
    copy_name(fabric->name, sizeof fabric->name, choice->name);
    copy_name(fabric->network, sizeof fabric->network, choice->name);
    copy_name(fabric->provider, sizeof fabric->provider, choice->provider);
    fabric->family = choice->family;
    copy_name(fabric->without, sizeof fabric->without, without);
    fabric->crowded = job_is_crowded(job);
    fabric->transport = (struct transport){.ops = &fabric_ops,
                                           .name = fabric->name,
                                           .network = fabric->network,
                                           .rank = job_rank(job),
                                           .size = job_size(job),
                                           .eager_limit = choice->eager_limit,
                                           .segment = choice->segment,
                                           .window = choice->window,
                                           .ahead = choice->ahead};
    void *peers;
    TRY(memory_zeroed(&peers, (size_t)job_size(job), sizeof(fi_addr_t)));
    fabric->peers = peers;
    return STATUS_OK;
}

enum status fabric_open(const struct fabric_request *request, struct transport **transport)
{
    struct fabric *fabric = NULL;
    struct fabric_choice choice = {0};
    struct fabric_survey survey = {0};
    struct card card = {.pid = getpid(), .probe = (uintptr_t)&probe_byte};
    enum status status;
    expect_peers(job_size(request->job));
    fabric_set_environment();
    TRY_TO(out, fabric_choose(request, &choice, &survey));
    TRY_TO(out, fabric_create(request->job, &choice, survey.without, &fabric));
    card.status = open_alone(fabric, request, &survey, &card);
    if (card.status != STATUS_OK)
        strncat(memset(card.text, 0, sizeof card.text), status_message(), sizeof card.text - 1);
    TRY_TO(out, meet(fabric, request->job, &card));
    if (choice.with_node)
        TRY_TO(out, node_open(fabric, request->job));
    *transport = &fabric->transport;
    fabric = NULL;
out:
    if (fabric != NULL)
        fabric_ops.close(&fabric->transport);
    return status;
}
