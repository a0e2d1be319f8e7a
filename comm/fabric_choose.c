/* fabric_choose.c - which provider serves all workers: decided together, from the same data and so alike. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/fabric_internal.h"
#include "comm/job.h"
#include "comm/wire.h"

#define SHM_WORKERS 256 /* the provider's limit (SMR_MAX_PEERS) */

/* Each segment costs several calls into the system: fewer and longer ones, more of them ahead. Over tcp, libfabric 1.15 to
 * 1.17 has a provider that knows tags itself, net. It is twice as quick as the layers of tcp;ofi_rxm: no copies between
 * them, no rendezvous of their own. It keeps next to nothing that comes before its receive and stops reading from that
 * peer instead, which ends when the executor's pool stands again. It is taken where every worker has it. */
#define IP_SEGMENT ((size_t)1 << 20)
#define IP_WINDOW 8

/* A link between hosts is slower than that: it pays to fill it soon. The last segment of each phase travels alone: 8 ms of
 * 1 Gbit/s for a mebibyte (experiments/bench/link.sh). */
#define LINK_SEGMENT ((size_t)128 << 10)
#define LINK_WINDOW 32
#define LINK_AHEAD 2 /* grants that stand behind more stop the other direction */

/* A grant costs a round trip, and both ends wake up for it: more than to copy so many bytes, between any number of workers. */
#define NET_EAGER (((size_t)64 << 10) + WIRE_HEADER_BYTES)

static const struct fabric_choice choices[] = {
    {"shm", "shm", FAMILY_SHARED_MEMORY, 4096, 0, 0, 0, true},
    {"tcp", "tcp;ofi_rxm", FAMILY_IP, 8192, IP_SEGMENT, IP_WINDOW, 0, false},
    {"net", "net", FAMILY_IP, NET_EAGER, IP_SEGMENT, IP_WINDOW, 0, false},
    {"verbs", "verbs;ofi_rxm", FAMILY_DEVICE, 8192, 0, 0, 0, false},
    {"efa", "efa", FAMILY_DEVICE, 8192, 0, 0, 0, false},
};
#define CHOICES (sizeof choices / sizeof choices[0])
#define CHOICE_SHM (&choices[0])
#define CHOICE_TCP (&choices[1])
#define CHOICE_NET (&choices[2])

/* What each worker tells of its host. */
struct survey {
    struct host_identity identity;
    uint64_t shared_memory; /* bytes free           */
    uint64_t has_shm;       /* the provider answers */
    uint64_t has_net;       /* and this one         */
};

static bool answers(const struct fabric_choice *choice)
{
    struct fi_info *list = NULL;
    if (fabric_query(choice->provider, NULL, &list) < 0)
        return false;
    fi_freeinfo(list);
    return true;
}

static void survey_read(const struct survey *all, int size, struct fabric_survey *result)
{
    *result = (struct fabric_survey){.without_shm = -1,
                                     .elsewhere = -1,
                                     .one_network = true,
                                     .all_net = true,
                                     .shared_memory = all[0].shared_memory};
    for (int i = size - 1; i >= 0; i--) {
        if (!all[i].has_shm)
            result->without_shm = i;
        result->all_net = result->all_net && all[i].has_net;
        if (all[i].identity.memory != all[0].identity.memory)
            result->elsewhere = i;
        if (all[i].identity.network != all[0].identity.network)
            result->one_network = false;
        if (all[i].shared_memory < result->shared_memory)
            result->shared_memory = all[i].shared_memory;
    }
}

static enum status survey_hosts(struct job *job, bool want_shm, bool want_net, struct fabric_survey *result)
{
    int size = job_size(job);
    struct survey mine = {.shared_memory = host_shared_memory(),
                          .has_shm = want_shm && answers(CHOICE_SHM),
                          .has_net = want_net && answers(CHOICE_NET)};
    void *all;
    host_identify(&mine.identity);
    TRY(memory_zeroed(&all, (size_t)size, sizeof mine));
    enum status status = job_allgather(job, &mine, sizeof mine, all);
    if (status == STATUS_OK)
        survey_read(all, size, result);
    free(all);
    return status;
}

/* STATUS_OK when shared memory serves all workers; else the reason why not. */
static enum status shm_possible(const struct fabric_survey *survey, int size)
{
    uint64_t wanted = (uint64_t)size * TRANSPORT_SHM_BYTES;
    if (size > SHM_WORKERS)
        return fail(STATUS_UNAVAILABLE, "shm: %d workers: the provider takes %d at most", size, SHM_WORKERS);
    if (survey->elsewhere >= 0)
        return fail(STATUS_UNAVAILABLE, "shm: worker %d shares no memory with worker 0", survey->elsewhere);
    if (survey->shared_memory < wanted)
        return fail(STATUS_UNAVAILABLE, "shm: /dev/shm is too small for %d workers: %llu MiB wanted, %llu MiB free",
                    size, (unsigned long long)(wanted >> 20), (unsigned long long)(survey->shared_memory >> 20));
    if (survey->without_shm >= 0)
        return fail(STATUS_UNAVAILABLE,
                    "shm: worker %d's libfabric offers no provider shm (%llu MiB are free in /dev/shm)",
                    survey->without_shm, (unsigned long long)(survey->shared_memory >> 20));
    return STATUS_OK;
}

/* For who asks for nothing else; `raw`: by libfabric's own name. */
static enum status shm_demanded(const struct fabric_survey *survey, int size, bool raw)
{
    char why[256];
    const enum status status = shm_possible(survey, size);
    if (status == STATUS_OK)
        return status;
    (void)snprintf(why, sizeof why, "%s", status_message());
    return fail(status, "%s: %s", why, raw ? "leave --provider out" : "take --transport=auto");
}

static const struct fabric_choice *choice_named(const char *name)
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

/* A provider that the user spells: ours, or what we know of its kind follows from its name. */
static struct fabric_choice choice_raw(const char *provider)
{
    struct fabric_choice choice = {.family = FAMILY_DEVICE, .eager_limit = 4096};
    static const char *const sockets[] = {"tcp", "net", "udp", "sockets"};
    if (strncmp(provider, "shm", 3) == 0)
        choice.family = FAMILY_SHARED_MEMORY;
    for (size_t i = 0; i < sizeof sockets / sizeof sockets[0]; i++)
        if (strncmp(provider, sockets[i], strlen(sockets[i])) == 0)
            choice.family = FAMILY_IP;
    for (size_t i = 0; i < CHOICES; i++)
        if (strcmp(choices[i].provider, provider) == 0)
            choice = choices[i];
    choice.name = choice.provider = provider;
    choice.with_node = false;
    return choice;
}

enum status fabric_choose(const struct fabric_request *request, struct fabric_choice *choice,
                          struct fabric_survey *survey)
{
    const char *name = request->name != NULL ? request->name : "auto";
    const struct fabric_choice *named = choice_named(name);
    const bool raw = request->provider != NULL, automatic = !raw && strcmp(name, "auto") == 0;
    if (named == NULL && strcmp(name, "auto") != 0)
        return unknown_name(name);
    *choice = raw ? choice_raw(request->provider) : named != NULL ? *named : *CHOICE_TCP;
    const bool shm = choice->family == FAMILY_SHARED_MEMORY;
    const bool tcp = !raw && (automatic || named == CHOICE_TCP);
    TRY(survey_hosts(request->job, automatic || shm, tcp, survey));
    if (shm)
        return shm_demanded(survey, job_size(request->job), raw);
    if (automatic && shm_possible(survey, job_size(request->job)) == STATUS_OK)
        *choice = *CHOICE_SHM;
    else if (tcp && survey->all_net) {
        choice->provider = CHOICE_NET->provider;
        choice->eager_limit = CHOICE_NET->eager_limit;
    }
    if (choice->family == FAMILY_IP && choice->segment > 0 && !survey->one_network) {
        choice->segment = LINK_SEGMENT;
        choice->window = LINK_WINDOW;
        choice->ahead = LINK_AHEAD;
    }
    if (!automatic || choice->family == FAMILY_SHARED_MEMORY)
        return STATUS_OK;
    choice->with_node = true; /* which takes nothing of /dev/shm */
    if (survey->elsewhere < 0)
        (void)snprintf(survey->without, sizeof survey->without, "%s", status_message());
    return STATUS_OK;
}
