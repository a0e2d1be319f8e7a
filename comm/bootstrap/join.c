/* join.c - finding rank 0, being it, connecting to it. */
#include "comm/bootstrap/join.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/module.h"
#include "comm/bootstrap/exchange.h"
#include "comm/host.h"

#define LOOK_AGAIN_NS UINT64_C(100000000) /* between two questions for a name */
#define RIVAL_SECONDS 2.0                 /* for whoever holds rank 0's port to say whether it is this job's */

/* What is needed to connect. */
struct way {
    char address[ADDRESS_BYTES];
    unsigned char token[PROOF_TOKEN_BYTES];
};

struct joining {
    const struct job_options *options;
    double deadline;
    const char *host_name;
    struct control_process process;
    pid_t parent; /* of a launcher that stays; 0: scripts may start workers and leave */
    struct joined *joined;
};

/* ---- listening ---- */

/* The first of the list that this process may listen on; `loopback`: whether those addresses count. errno's value; EADDRINUSE
 * stands above others, since it is the address. */
static int listen_first(const struct addrinfo *list, bool loopback, int *fd)
{
    int worst = EADDRNOTAVAIL;
    for (; list != NULL; list = list->ai_next) {
        if (address_is_loopback(list->ai_addr) != loopback)
            continue;
        const int error = address_listen(list, fd);
        if (error == 0)
            return 0;
        if (worst != EADDRINUSE)
            worst = error;
    }
    return worst;
}

static enum status listen_on(const char *host, int port, bool loopback, int *fd)
{
    struct addrinfo *list = NULL;
    TRY(address_resolve(host, port, &list));
    const int error = listen_first(list, loopback, fd);
    freeaddrinfo(list);
    if (error == 0)
        return STATUS_OK;
    return fail(error == EADDRINUSE ? STATUS_MISMATCH : STATUS_UNAVAILABLE, "listen on %s, port %d: %s", host, port,
                strerror(error));
}

static enum status listen_everywhere(int port, int *fd)
{
    const enum status status = listen_on("::", port, false, fd);
    return status == STATUS_UNAVAILABLE ? listen_on("0.0.0.0", port, false, fd) : status;
}

/* Any port of the interface that all hosts are to reach. */
static enum status listen_outward(const struct joining *joining, int *fd, char *address)
{
    char host[HOST_ADDRESS_BYTES];
    if (joining->options->interface != NULL)
        TRY(host_interface_address(joining->options->interface, host));
    else if (listen_on(joining->host_name, 0, false, fd) == STATUS_OK) {
        address_of(*fd, false, address);
        return STATUS_OK;
    } else
        TRY(host_outward_address(host));
    TRY(listen_on(host, 0, false, fd));
    address_of(*fd, false, address);
    return STATUS_OK;
}

static enum status listen_loopback(int *fd, char *address)
{
    if (listen_on("127.0.0.1", 0, true, fd) != STATUS_OK)
        TRY(listen_on("::1", 0, true, fd));
    address_of(*fd, false, address);
    return STATUS_OK;
}

/* ---- connecting ---- */

static enum status connect_to(const struct joining *joining, const struct way *way, double deadline, bool *told)
{
    struct joined *joined = joining->joined;
    struct channel_request request = {.address = way->address,
                                      .hosted = true,
                                      .deadline = deadline,
                                      .failed = joining->options->failed,
                                      .context = joining->options->context,
                                      .parent = joining->parent,
                                      .told = told};
    memcpy(request.token, way->token, sizeof request.token);
    request.hello.rank = (uint32_t)joined->rank;
    request.hello.size = (uint32_t)joined->size;
    request.hello.process = joining->process;
    request.hello.deadline_ms = (uint32_t)ceil(joining->deadline * 1e3);
    (void)snprintf(request.hello.host, sizeof request.hello.host, "%.*s", CONTROL_HOST_BYTES, joining->host_name);
    return channel_open(&request, &joined->channel);
}

static enum status serve(const struct joining *joining, int listener, const unsigned char token[PROOF_TOKEN_BYTES])
{
    struct server_request request = {.listener = listener,
                                     .size = joining->joined->size,
                                     .deadline = joining->deadline,
                                     .note = joining->options->note,
                                     .context = joining->options->context};
    memcpy(request.token, token, sizeof request.token);
    return server_open(&request, &joining->joined->server);
}

/* Rank 0 tells its user itself what its server stops it for. */
static enum status connect_all(const struct joining *joining, const struct way *way)
{
    return connect_to(joining, way, joining->deadline, joining->joined->rank > 0 ? joining->options->told : NULL);
}

/* ---- a known address ---- */

static bool is_loopback_literal(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

/* The name as this host knows it, awaited: names of workers become known when they start. */
static enum status resolve_until(const char *host, int port, double seconds, struct addrinfo **list)
{
    const uint64_t deadline = deadline_after(seconds);
    enum status status;
    while ((status = address_resolve(host, port, list)) != STATUS_OK && !deadline_passed(deadline))
        clock_sleep_ns(LOOK_AGAIN_NS);
    return status;
}

/* Beyond loopback everyone could join who can guess the job's names and numbers. */
static enum status check_secret(const struct origin *origin, const struct addrinfo *list)
{
    for (; list != NULL && !origin->secret; list = list->ai_next)
        if (!address_is_loopback(list->ai_addr))
            return fail(
                STATUS_USAGE,
                "%s: the workers are on several hosts, and no secret keeps strangers out: set CHORALE_JOB_TOKEN alike "
                "for all workers (openssl rand -hex 16)",
                origin->name);
    return STATUS_OK;
}

static enum status listen_known(const struct origin *origin, const struct addrinfo *list, const char *host, int *fd)
{
    int error = listen_first(list, false, fd);
    if (error == EADDRNOTAVAIL && origin->secret &&
        !is_loopback_literal(host)) /* 127.0.1.1, or an address before ours */
        return listen_everywhere(origin->port, fd);
    if (error == EADDRNOTAVAIL)
        error = listen_first(list, true, fd);
    if (error == 0)
        return STATUS_OK;
    if (error == EADDRNOTAVAIL)
        return fail(STATUS_USAGE,
                    "%s: rank 0 listens on %s, which is no address of this host: rank 0 must run on the host that "
                    "MASTER_ADDR names",
                    origin->name, host);
    return fail(error == EADDRINUSE ? STATUS_MISMATCH : STATUS_UNAVAILABLE,
                "%s: rank 0 listens on %s, port %d: %s: free it, or set CHORALE_PORT alike for all workers",
                origin->name, host, origin->port, strerror(error));
}

/* The port is taken. If by another rank 0 of this very job, its server ends the job with both named; else by somebody. */
static enum status meet_rival(const struct joining *joining, const struct way *way, enum status busy)
{
    char why[512];
    bool told = false;
    (void)snprintf(why, sizeof why, "%.500s", status_message());
    if (busy != STATUS_MISMATCH)
        return busy;
    const enum status status = connect_to(joining, way, RIVAL_SECONDS, &told);
    channel_close(joining->joined->channel);
    joining->joined->channel = NULL;
    return told ? status : fail(STATUS_UNAVAILABLE, "%s", why);
}

static enum status join_known(const struct joining *joining, const struct origin *origin)
{
    struct joined *joined = joining->joined;
    struct addrinfo *list = NULL;
    struct way way;
    enum status status;
    int listener = -1;
    *joined = (struct joined){.rank = origin->rank, .size = origin->size, .local_rank = origin->local_rank};
    if (origin->size == 1)
        return STATUS_OK;
    const char *host = origin->one_host && !is_loopback_literal(origin->host) ? "127.0.0.1" : origin->host;
    memcpy(way.token, origin->token, sizeof way.token);
    TRY(address_print(host, origin->port, way.address));
    TRY(resolve_until(host, origin->port, joining->deadline, &list));
    TRY_TO(done, check_secret(origin, list));
    if (origin->rank == 0) {
        status = listen_known(origin, list, host, &listener);
        if (status != STATUS_OK)
            TRY_TO(done, meet_rival(joining, &way, status));
        TRY_TO(done, serve(joining, listener, way.token));
        if (!origin->one_host && !is_loopback_literal(host)) /* rank 0 itself needs no way round */
            address_of(listener, false, way.address);
    }
    TRY_TO(done, connect_all(joining, &way));
done:
    freeaddrinfo(list);
    return status;
}

/* ---- a key-value store ---- */

enum { CARD_BYTES = EXCHANGE_VALUE_BYTES / 2 - 1, CARD_SERVER = 'A', CARD_FAILURE = 'E' };

void join_card_put(const char *address, const unsigned char token[PROOF_TOKEN_BYTES], char *text)
{
    unsigned char card[CARD_BYTES] = {CARD_SERVER};
    const size_t length = strnlen(address, CARD_BYTES - 1 - PROOF_TOKEN_BYTES);
    memcpy(card + 1, token, PROOF_TOKEN_BYTES);
    memcpy(card + 1 + PROOF_TOKEN_BYTES, address, length);
    control_hex_put(card, 1 + PROOF_TOKEN_BYTES + length, text);
}

void join_card_put_failure(const char *why, char *text)
{
    unsigned char card[CARD_BYTES] = {CARD_FAILURE};
    const size_t length = strnlen(why, CARD_BYTES - 1);
    memcpy(card + 1, why, length);
    control_hex_put(card, 1 + length, text);
}

enum status join_card_get(const char *text, char *address, unsigned char token[PROOF_TOKEN_BYTES])
{
    unsigned char card[CARD_BYTES];
    char line[CARD_BYTES + 1];
    const int bytes = control_hex_get(text, card, sizeof card);
    if (bytes >= 1 && card[0] == CARD_FAILURE) {
        control_line_get(line, card + 1, (size_t)bytes - 1);
        return fail(STATUS_UNAVAILABLE, "rank 0: %s", line);
    }
    if (bytes <= 1 + PROOF_TOKEN_BYTES || bytes - 1 - PROOF_TOKEN_BYTES >= ADDRESS_BYTES || card[0] != CARD_SERVER)
        return fail(STATUS_FORMAT, "what rank 0 has put into the launcher's store is no address of this program");
    memcpy(token, card + 1, PROOF_TOKEN_BYTES);
    control_line_get(address, card + 1 + PROOF_TOKEN_BYTES, (size_t)bytes - 1 - PROOF_TOKEN_BYTES);
    return STATUS_OK;
}

/* A launcher's store while it is open. */
struct store {
    const struct exchange_module *module;
    const char *name;
    void *state;
    double seconds;
    char message[EXCHANGE_MESSAGE_BYTES];
};

static enum status checked(const struct store *store, int code)
{
    return code == 0 ? STATUS_OK : fail(STATUS_UNAVAILABLE, "join through %s: %s", store->name, store->message);
}

static enum status pmix_module(const struct exchange_module **module)
{
    const struct module_request request = {
        .what = "join through PMIx",
        .file = "chorale-bootstrap-pmix",
        .symbol = EXCHANGE_SYMBOL,
        .version = EXCHANGE_VERSION,
        .cure =
            "it is built beside the program (all targets: cmake --build) where CMake finds PMIx (Debian: libpmix-dev)"};
    const void *table = NULL;
    TRY(module_load(&request, &table));
    *module = table;
    return STATUS_OK;
}

static void identity_text(char text[17])
{
    struct host_identity identity;
    host_identify(&identity);
    (void)snprintf(text, 17, "%016llx", (unsigned long long)identity.network);
}

/* Rank 0: whether all workers have put the same host. */
static enum status look_for_hosts(struct store *store, int size, bool *one_host)
{
    char mine[17], other[EXCHANGE_VALUE_BYTES];
    identity_text(mine);
    *one_host = true;
    for (int rank = 1; rank < size && *one_host; rank++) {
        TRY(checked(store,
                    store->module->get(store->state, rank, "chorale-host", other, sizeof other, store->message)));
        *one_host = strcmp(mine, other) == 0;
    }
    return STATUS_OK;
}

static enum status open_server(const struct joining *joining, struct store *store, struct way *way)
{
    bool one_host = true;
    int listener = -1;
    TRY(look_for_hosts(store, joining->joined->size, &one_host));
    TRY(proof_random(way->token, sizeof way->token));
    TRY(one_host ? listen_loopback(&listener, way->address) : listen_outward(joining, &listener, way->address));
    return serve(joining, listener, way->token);
}

/* Rank 0 puts the way to its server there, or why there is none: the others wait for either. */
static enum status put_card(const struct joining *joining, struct store *store, struct way *way)
{
    char card[EXCHANGE_VALUE_BYTES], why[512];
    const enum status status = open_server(joining, store, way);
    (void)snprintf(why, sizeof why, "%.500s", status == STATUS_OK ? "" : status_message());
    if (status == STATUS_OK)
        join_card_put(way->address, way->token, card);
    else
        join_card_put_failure(why, card);
    TRY(checked(store, store->module->put(store->state, "chorale-card", card, store->message)));
    TRY(checked(store, store->module->fence(store->state, store->seconds, store->message)));
    return status == STATUS_OK ? STATUS_OK : fail(status, "%s", why);
}

static enum status get_card(struct store *store, struct way *way)
{
    char card[EXCHANGE_VALUE_BYTES];
    TRY(checked(store, store->module->fence(store->state, store->seconds, store->message)));
    TRY(checked(store, store->module->get(store->state, 0, "chorale-card", card, sizeof card, store->message)));
    return join_card_get(card, way->address, way->token);
}

static enum status find_way(const struct joining *joining, struct store *store, struct way *way)
{
    char identity[17];
    identity_text(identity);
    TRY(checked(store, store->module->put(store->state, "chorale-host", identity, store->message)));
    TRY(checked(store, store->module->fence(store->state, store->seconds, store->message)));
    return joining->joined->rank == 0 ? put_card(joining, store, way) : get_card(store, way);
}

static enum status join_stored(const struct joining *joining, const struct origin *origin)
{
    struct joined *joined = joining->joined;
    struct store store = {.module = &exchange_pmi, .name = origin->name, .seconds = joining->deadline};
    struct way way;
    *joined = (struct joined){.local_rank = -1};
    if (origin->kind == ORIGIN_PMIX)
        TRY(pmix_module(&store.module));
    TRY(checked(&store, store.module->open(store.seconds, &store.state, &joined->rank, &joined->size, store.message)));
    enum status status = STATUS_OK;
    if (joined->size < 1 || joined->size > CONTROL_WORKERS || joined->rank < 0 || joined->rank >= joined->size)
        status = fail(STATUS_USAGE, "join through %s: rank %d of %d: at most %d workers", origin->name, joined->rank,
                      joined->size, CONTROL_WORKERS);
    else if (joined->size > 1)
        status = find_way(joining, &store, &way);
    store.module->close(store.state);
    if (status == STATUS_OK && joined->size > 1)
        status = connect_all(joining, &way);
    return status;
}

/* ---- who watches ---- */

enum { ANCESTORS = 16, ENVIRONMENT_BYTES = 1 << 18 };

/* Whether the process was started with this variable in its environment; not known: it was not. */
static bool has_variable(pid_t pid, const char *name)
{
    char path[64];
    void *memory = NULL;
    size_t length = 0;
    bool found = false;
    (void)snprintf(path, sizeof path, "/proc/%ld/environ", (long)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    if (memory_zeroed(&memory, ENVIRONMENT_BYTES, 1) == STATUS_OK)
        length = fread(memory, 1, ENVIRONMENT_BYTES - 1, file);
    (void)fclose(file);
    for (const char *at = memory; at != NULL && at < (const char *)memory + length && !found; at += strlen(at) + 1)
        found = strncmp(at, name, strlen(name)) == 0 && at[strlen(name)] == '=';
    free(memory);
    return found;
}

/* 0: there is none. */
static pid_t parent_of(pid_t pid)
{
    struct host_process process;
    return host_process((long)pid, &process) ? (pid_t)process.parent : 0;
}

/* The process whose end is the end of the job: the nearest above that has no rank itself. Shells and wrappers between have
 * it, and don't end with a launcher that is killed. 0: nobody's; scripts may start workers and leave. */
static pid_t launcher_above(enum origin_kind kind)
{
    if (kind == ORIGIN_ADDRESS)
        return 0;
    pid_t pid = getppid();
    for (int i = 0; i < ANCESTORS && pid > 1 && has_variable(pid, kind == ORIGIN_PMIX ? "PMIX_RANK" : "PMI_RANK"); i++)
        pid = parent_of(pid);
    return pid > 1 ? pid : getppid();
}

enum status join_hosted(const struct origin *origin, const struct job_options *options, double deadline,
                        const char *host_name, struct joined *joined)
{
    struct host_identity identity;
    host_identify(&identity);
    const struct joining joining = {.options = options,
                                    .deadline = deadline,
                                    .host_name = host_name,
                                    .process = {.pid = (uint32_t)getpid(), .memory = identity.memory},
                                    .parent = launcher_above(origin->kind),
                                    .joined = joined};
    *joined = (struct joined){.rank = 0};
    const enum status status =
        origin->kind == ORIGIN_ADDRESS ? join_known(&joining, origin) : join_stored(&joining, origin);
    if (status != STATUS_OK) {
        server_close(joined->server);
        joined->server = NULL;
    }
    return status;
}
