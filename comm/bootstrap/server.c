/* server.c - the thread in rank 0's process that serves the control channel. */
#include "comm/bootstrap/server.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/bootstrap/launcher.h"

#define LOOK_MS 500
#define OTHERS_NS 300000000u /* that slow readers among the others have before rank 0 ends, and this thread with it */
#define SETTLE_NS 1000000000u
#define OTHER_FILES 256 /* of rank 0's process: transports, data */

struct server {
    struct launcher state;
    int wake; /* eventfd: server_close() has been called */
    pthread_t thread;
    bool running;
    atomic_bool settled; /* all that can be told that the job has failed have been */
    bool told_self;      /* the thread only, as what follows */
    bool closing;
    uint64_t closing_due;
    struct pollfd *slots; /* the open descriptors only: poll() refuses more than the limit on open files */
};

/* Room in poll()'s array: wake, listener, strangers, members. */
static size_t slots_most(const struct launcher *state)
{
    return 2 + 2 * (size_t)state->size + STRANGERS;
}

/* The descriptors that are open, in the order in which serve() looks at them. */
static nfds_t slots_fill(const struct server *server)
{
    const struct launcher *state = &server->state;
    nfds_t count = 0;
    server->slots[count++] = (struct pollfd){.fd = server->closing ? -1 : server->wake, .events = POLLIN};
    server->slots[count++] = (struct pollfd){.fd = state->listener, .events = POLLIN};
    for (int i = 0; i < state->size + STRANGERS; i++) {
        const struct connection *connection = &state->strangers[i].connection;
        if (connection->fd >= 0)
            server->slots[count++] = (struct pollfd){.fd = connection->fd, .events = connection_events(connection)};
    }
    for (int i = 0; i < state->size; i++) {
        const struct connection *connection = &state->members[i].connection;
        if (connection->fd >= 0 && !connection->ended)
            server->slots[count++] = (struct pollfd){.fd = connection->fd, .events = connection_events(connection)};
    }
    return count;
}

/* Reading finds out what is there: a wake-up too many costs a call. */
static void serve(struct server *server)
{
    struct launcher *state = &server->state;
    for (int i = 0; i < state->size; i++) {
        connection_flush(&state->members[i].connection);
        members_read(state, i);
    }
    for (int i = 0; i < state->size + STRANGERS; i++)
        if (state->strangers[i].connection.fd >= 0)
            members_read_stranger(state, i);
    if (server->slots[1].revents != 0)
        members_accept(state);
}

static bool is_flushed(const struct launcher *state, int low)
{
    for (int i = low; i < state->size; i++)
        if (state->members[i].connection.fd >= 0 && state->members[i].connection.queued > 0)
            return false;
    return true;
}

/* The job has failed: the others first. */
static void end_step(struct server *server)
{
    struct launcher *state = &server->state;
    if (state->verdict.certainty == VERDICT_RUMOUR && deadline_passed(state->verdict.due))
        state->verdict.certainty = VERDICT_CERTAIN;
    if (state->verdict.certainty != VERDICT_CERTAIN || server->told_self)
        return;
    if (state->ending_since == NEVER) {
        state->ending_since = clock_ns();
        members_stop(state, 1, state->size);
    }
    if (!is_flushed(state, 1) && clock_ns() - state->ending_since < OTHERS_NS)
        return;
    atomic_store(&server->settled, true);
    members_stop(state, 0, 1);
    server->told_self = true;
}

/* Nobody is in the job any more, and everyone knows what there is to know. */
static bool is_over(const struct server *server)
{
    const struct launcher *state = &server->state;
    if (server->told_self || state->members[0].state == MEMBER_STARTED) /* rank 0 itself could not join */
        return true;
    for (int i = 0; i < state->size; i++)
        if (state->members[i].state != MEMBER_LEFT)
            return false;
    return is_flushed(state, 0);
}

static int wait_ms(const struct server *server)
{
    const struct launcher *state = &server->state;
    uint64_t due = members_next_deadline(state);
    if (state->verdict.certainty == VERDICT_RUMOUR && state->verdict.due < due)
        due = state->verdict.due;
    if (state->ending_since != NEVER && !server->told_self)
        return 1;
    const uint64_t left = deadline_left_ns(due) / 1000000u;
    return left < LOOK_MS ? (int)left + 1 : LOOK_MS;
}

static void *server_thread(void *argument)
{
    struct server *server = argument;
    while (!server->closing || !(is_over(server) || deadline_passed(server->closing_due))) {
        const nfds_t count = slots_fill(server);
        if (poll(server->slots, count, wait_ms(server)) < 0 && errno != EINTR) {
            verdict_failed(&server->state, fail(STATUS_INTERNAL, "poll: %s", strerror(errno)));
            clock_sleep_ns(1000000);
        }
        if (server->slots[0].revents != 0) {
            server->closing = true;
            server->closing_due = deadline_after(server->state.deadline);
        }
        serve(server);
        members_check_deadlines(&server->state);
        end_step(server);
    }
    return NULL;
}

/* --- life --- */

/* One descriptor for each worker, besides what the process itself opens. Where the limit can't be raised, the accept()
 * that fails says so. */
static void files_reserve(int size)
{
    struct rlimit files;
    const rlim_t wanted = (rlim_t)size + STRANGERS + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= wanted)
        return;
    files.rlim_cur = wanted < files.rlim_max ? wanted : files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
}

static void release(struct server *server)
{
    members_release(&server->state);
    if (server->wake >= 0)
        close(server->wake);
    free(server->slots);
    free(server);
}

static enum status start(struct server *server)
{
    void *slots = NULL;
    sigset_t all, before;
    TRY(memory_zeroed(&slots, slots_most(&server->state), sizeof(struct pollfd)));
    server->slots = slots;
    server->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->wake < 0)
        return fail(STATUS_IO, "control server: eventfd: %s", strerror(errno));
    files_reserve(server->state.size);
    sigfillset(&all); /* signals belong to the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&server->thread, NULL, server_thread, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return fail(STATUS_IO, "control server: start a thread: %s", strerror(error));
    server->running = true;
    return STATUS_OK;
}

enum status server_open(const struct server_request *request, struct server **out)
{
    void *memory = NULL;
    enum status status = memory_zeroed(&memory, 1, sizeof(struct server));
    if (status != STATUS_OK) {
        close(request->listener);
        return status;
    }
    struct server *server = memory;
    server->wake = -1;
    atomic_init(&server->settled, false);
    status = members_init(&server->state, request->size, request->deadline);
    server->state.hosted = true;
    server->state.listener = request->listener;
    server->state.note = request->note;
    server->state.note_context = request->context;
    memcpy(server->state.token, request->token, sizeof server->state.token);
    if (status == STATUS_OK)
        status = start(server);
    if (status != STATUS_OK) {
        release(server);
        return status;
    }
    *out = server;
    return STATUS_OK;
}

void server_settle(struct server *server)
{
    for (uint64_t since = clock_ns(); !atomic_load(&server->settled) && clock_ns() - since < SETTLE_NS;)
        clock_sleep_ns(1000000);
}

const char *server_verdict(const struct server *server)
{
    return atomic_load(&server->settled) ? server->state.verdict.message : NULL; /* it changes no more */
}

void server_close(struct server *server)
{
    if (server == NULL)
        return;
    const uint64_t one = 1;
    while (write(server->wake, &one, sizeof one) < 0 && errno == EINTR)
        ;
    pthread_join(server->thread, NULL);
    release(server);
}
