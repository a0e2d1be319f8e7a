/* channel.c - a worker's end of the control channel. */
#include "comm/bootstrap/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/bootstrap/address.h"

#define CHANNEL_GRACE 3.0 /* seconds that the server has to name who is missing */
#define SILENCES 3        /* times that its heartbeat may be missing */
#define ABORT_SECONDS 1.0 /* that rank 0 has to say that it has heard of a failure */
#define BEAT_MS_MOST 60000000
#define RETRY_FIRST_NS 1000000u
#define RETRY_LAST_NS 200000000u

struct channel {
    int parent; /* pidfd, or -1 */
    int fd;     /* non-blocking */
    int wake;   /* eventfd: channel_close() wants the thread to end */
    pthread_t thread;
    bool running;
    uint32_t rank, size;
    uint64_t memory; /* that this process shares with some of the others */
    bool hosted;
    double deadline;
    unsigned char welcome[PROOF_BYTES]; /* what the server's proof must be */
    atomic_bool speak;                  /* when the server is lost         */
    atomic_bool asked;                  /* what this worker waits for      */
    int beat_ms, silences;              /* the thread only: how often a hosted server is heard; 0: not known yet */
    atomic_bool aborting;               /* this worker has said why it ends: no callback any more */
    job_failed_fn *failed;
    void *context;
    uint32_t sequence;         /* of the latest gather; the caller's thread only */
    pthread_mutex_t send_lock; /* one frame at a time on the socket */

    pthread_mutex_t lock; /* guards what follows; `changed` is broadcast */
    pthread_cond_t changed;
    bool welcomed, acknowledged, gathered;
    bool stopped;                          /* the server has ended the job: it tells the user */
    char server[CONTROL_HOST_BYTES + 1];   /* its host; "": not known yet */
    struct control_process server_process; /* pid 0: not known, or one that needs nobody to clean up after it */
    unsigned char *payload;                /* of the latest GATHERED: sequence, then bytes */
    size_t payload_bytes;
    char text[CONTROL_TEXT_BYTES + 1]; /* why it failed: written before `status`, never again after */
    atomic_int status;
};

/* --- connecting --- */

/* Milliseconds for poll() that do not end before the deadline; at most a second, so that callers look around. */
static int poll_ms(uint64_t deadline)
{
    uint64_t left = deadline_left_ns(deadline);
    return left >= 1000000000u ? 1000 : (int)(left / 1000000u) + 1;
}

static const char *server_name(bool hosted)
{
    return hosted ? "rank 0" : "the launcher";
}

/* The server speaks first: what does not is none. */
static enum status read_challenge(int fd, uint64_t deadline, unsigned char nonce[PROOF_NONCE_BYTES])
{
    struct control_reader reader = {.have = 0};
    struct control_frame frame = {.length = 0};
    enum status status;
    while ((status = control_read(&reader, fd, CONTROL_UNKNOWN_SERVER_LIMIT, &frame)) == STATUS_AGAIN) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        (void)poll(&ready, 1, poll_ms(deadline)); /* reading tells what is wrong */
        if (deadline_passed(deadline)) {
            status = fail(STATUS_TIMEOUT, "it takes connections and says nothing");
            break;
        }
    }
    if (status == STATUS_OK)
        status = control_challenge_get(&frame, nonce);
    control_reader_release(&reader);
    return status;
}

/* One attempt. */
static enum status connect_once(const char *host, int port, uint64_t deadline, int *fd,
                                unsigned char nonce[PROOF_NONCE_BYTES])
{
    struct addrinfo *list = NULL;
    TRY(address_resolve(host, port, &list));
    const int error = address_connect(list, deadline, fd);
    freeaddrinfo(list);
    if (error != 0)
        return fail(STATUS_UNAVAILABLE, "%s", strerror(error));
    enum status status = read_challenge(*fd, deadline, nonce);
    if (status != STATUS_OK) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

static enum status connect_until(const struct channel_request *request, int *fd, unsigned char nonce[PROOF_NONCE_BYTES])
{
    uint64_t deadline = deadline_after(request->deadline), pause = RETRY_FIRST_NS;
    char host[ADDRESS_HOST_BYTES];
    enum status status;
    int port = 0;
    TRY(address_split(request->hosted ? "rank 0's address" : "CHORALE_CONTROL", request->address, host, &port));
    while ((status = connect_once(host, port, deadline, fd, nonce)) != STATUS_OK) {
        if (status == STATUS_NO_MEMORY)
            return status;
        if (deadline_passed(deadline)) {
            char why[256];
            (void)snprintf(why, sizeof why, "%.255s", status_message());
            return fail(STATUS_TIMEOUT, "connect to %s at %s: %s, for %.3g s: %s", server_name(request->hosted),
                        request->address, why, request->deadline,
                        request->hosted ? "see whether it was started there, and that the port is its own"
                                        : "is it still running?");
        }
        clock_sleep_ns(pause);
        pause = pause < RETRY_LAST_NS ? pause * 2 : pause;
    }
    return STATUS_OK;
}

/* --- the thread --- */

/* Keep the first reason why the job is over for this worker; waits end. */
static void note_failure(struct channel *channel, enum status status, const char *text)
{
    pthread_mutex_lock(&channel->lock);
    if (atomic_load(&channel->status) == STATUS_OK) {
        size_t length = strnlen(text, CONTROL_TEXT_BYTES);
        memcpy(channel->text, text, length);
        channel->text[length] = '\0';
        atomic_store(&channel->status, status);
        pthread_cond_broadcast(&channel->changed);
    }
    pthread_mutex_unlock(&channel->lock);
}

/* The job has ended without our doing. Called once: the thread ends after it. */
static void channel_fail(struct channel *channel, enum status status, const char *text, bool speak)
{
    note_failure(channel, status, text);
    pthread_mutex_lock(&channel->lock);
    bool tell = channel->welcomed && channel->failed != NULL && !atomic_load(&channel->aborting);
    pthread_mutex_unlock(&channel->lock);
    if (tell) /* before the welcome channel_open() returns the failure instead */
        channel->failed(channel->context, status, text, speak);
}

static void raise_flag(struct channel *channel, bool *flag)
{
    pthread_mutex_lock(&channel->lock);
    *flag = true;
    pthread_cond_broadcast(&channel->changed);
    pthread_mutex_unlock(&channel->lock);
}

/* The reader's buffer becomes the result: it may be large. */
static void take_gathered(struct channel *channel, struct control_reader *reader, size_t length)
{
    pthread_mutex_lock(&channel->lock);
    free(channel->payload);
    channel->payload = reader->payload;
    channel->payload_bytes = length;
    reader->payload = NULL;
    reader->capacity = 0;
    channel->gathered = true;
    pthread_cond_broadcast(&channel->changed);
    pthread_mutex_unlock(&channel->lock);
}

/* Whoever listened at the address, only this job's server can answer our nonce. */
static enum status take_welcome(struct channel *channel, const struct control_frame *frame)
{
    if (frame->length < CONTROL_WELCOME_FIXED || frame->length > CONTROL_WELCOME_BYTES ||
        !proof_equal(frame->payload, channel->welcome))
        return fail(STATUS_USAGE,
                    "join the job: what listens at the address of %s does not know the job's token: it "
                    "belongs to another job",
                    server_name(channel->hosted));
    pthread_mutex_lock(&channel->lock);
    channel->server_process = control_process_get(frame->payload + PROOF_BYTES);
    control_line_get(channel->server, frame->payload + CONTROL_WELCOME_FIXED, frame->length - CONTROL_WELCOME_FIXED);
    pthread_mutex_unlock(&channel->lock);
    raise_flag(channel, &channel->welcomed);
    return STATUS_OK;
}

/* Nobody else may be there to remove what the dead one has left; each of its neighbours tries. */
static void bury(const struct channel *channel, struct control_process dead)
{
    if (dead.pid > 1 && dead.memory == channel->memory)
        job_remove_leftovers((long)dead.pid);
}

/* The connection to the server has ended. */
static enum status server_lost(struct channel *channel)
{
    if (!channel->hosted)
        return fail(STATUS_PEER_LOST, "the launcher is gone: it was killed or has crashed: start the job again");
    bury(channel, channel->server_process);
    if (channel->server[0] == '\0')
        return fail(STATUS_PEER_LOST,
                    "rank 0: ended before all workers had joined, or its connection was lost: see what "
                    "it wrote");
    return fail(STATUS_PEER_LOST,
                "rank 0 on %s: ended or was killed, or its connection was lost: the job was ended: see "
                "what its launcher says",
                channel->server);
}

/* A server in rank 0's process may end when all have left. */
static bool may_end(struct channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    const bool left = channel->hosted && channel->acknowledged;
    pthread_mutex_unlock(&channel->lock);
    return left;
}

static enum status send_frame(struct channel *channel, enum control_type type, const unsigned char *head,
                              size_t head_bytes, const void *body, size_t body_bytes);

/* The thread itself is the answer; whoever waits adds what for. */
static enum status take_ask(struct channel *channel, const struct control_frame *frame)
{
    if (frame->length != 4)
        return fail(STATUS_FORMAT, "control channel: a torn message");
    const uint32_t ms = control_get_u32(frame->payload);
    if (ms == 0)
        atomic_store(&channel->asked, true);
    else if (channel->hosted && channel->rank > 0)
        channel->beat_ms = ms < BEAT_MS_MOST ? (int)ms : BEAT_MS_MOST;
    (void)!send_frame(channel, CONTROL_ANSWER, NULL, 0, NULL, 0); /* a lost server is found out otherwise */
    return STATUS_OK;
}

/* STATUS_OK, or why the job is over; *stopped when the launcher said so. */
static enum status handle_frame(struct channel *channel, struct control_reader *reader,
                                const struct control_frame *frame, bool *stopped)
{
    char text[CONTROL_TEXT_BYTES + 1];
    enum status why;
    switch (frame->type) {
    case CONTROL_WELCOME:
        return take_welcome(channel, frame);
    case CONTROL_GATHERED:
        take_gathered(channel, reader, frame->length);
        return STATUS_OK;
    case CONTROL_GOODBYE_ACK:
        raise_flag(channel, &channel->acknowledged);
        return STATUS_OK;
    case CONTROL_ASK:
        return take_ask(channel, frame);
    case CONTROL_STOP:
        if (frame->length < CONTROL_PROCESS_BYTES)
            return fail(STATUS_FORMAT, "control channel: a torn message");
        TRY(control_text_get(frame->payload + CONTROL_PROCESS_BYTES, frame->length - CONTROL_PROCESS_BYTES, &why,
                             text));
        bury(channel, control_process_get(frame->payload));
        *stopped = true;
        return fail(why, "%s", text);
    default:
        return fail(STATUS_FORMAT, "control channel: %s sent a message of type %d", server_name(channel->hosted),
                    (int)frame->type);
    }
}

/* Read what has come. False when the job is over for us. */
static bool read_frames(struct channel *channel, struct control_reader *reader)
{
    struct control_frame frame = {.length = 0};
    bool stopped = false;
    enum status status = STATUS_OK;
    while (status == STATUS_OK) {
        status = control_read(reader, channel->fd, CONTROL_WORKER_LIMIT, &frame);
        if (status == STATUS_PEER_LOST && may_end(channel))
            return false;
        if (status == STATUS_PEER_LOST || status == STATUS_IO)
            status = server_lost(channel);
        if (status == STATUS_OK)
            status = handle_frame(channel, reader, &frame, &stopped);
    }
    if (status == STATUS_AGAIN)
        return true;
    if (stopped &&
        status != STATUS_REFUSED) /* a wrong token: then the server stops us, but tells of us as of a stranger */
        raise_flag(channel, &channel->stopped);
    /* the server tells the user why it stops us: the launcher itself, or who hosts it; without it, one has to speak */
    channel_fail(channel, status, status_message(),
                 stopped ? channel->hosted && channel->rank == 0 : atomic_load(&channel->speak));
    return false;
}

/* Nobody else would end us: an mpirun that is killed, or interrupted twice, leaves its workers. */
static void parent_gone(struct channel *channel)
{
    channel_fail(channel, STATUS_PEER_LOST,
                 "the launcher is gone: it was killed, interrupted twice, or has crashed: start the job again",
                 channel->rank == 0);
}

/* A server that is stopped closes nothing. Several looks, since time also passes while this worker itself is stopped. */
static bool is_silent(struct channel *channel)
{
    if (channel->beat_ms == 0 || ++channel->silences < SILENCES || may_end(channel))
        return false;
    const double seconds = SILENCES * (double)channel->beat_ms / 1e3;
    const enum status status = fail(STATUS_TIMEOUT,
                                    "rank 0 on %s: nothing was heard of it for %.3g s: it is stopped or hangs, or the "
                                    "connection is lost: the job was ended",
                                    channel->server, seconds);
    channel_fail(channel, status, status_message(), atomic_load(&channel->speak));
    return true;
}

static void *channel_thread(void *argument)
{
    struct channel *channel = argument;
    struct control_reader reader = {.have = 0};
    for (bool open = true; open;) {
        struct pollfd ready[3] = {{.fd = channel->wake, .events = POLLIN},
                                  {.fd = channel->fd, .events = POLLIN},
                                  {.fd = channel->parent, .events = POLLIN}};
        const int count = poll(ready, 3, channel->beat_ms > 0 ? channel->beat_ms : -1);
        if (count < 0)
            continue; /* EINTR; all signals are blocked here, but a debugger may interrupt */
        if (count == 0) {
            open = !is_silent(channel);
            continue;
        }
        channel->silences = 0;
        if (ready[0].revents != 0)
            break;
        if (ready[1].revents != 0)
            open = read_frames(channel, &reader);
        if (open && ready[2].revents != 0) {
            parent_gone(channel);
            open = false;
        }
    }
    control_reader_release(&reader);
    return NULL;
}

/* Signals belong to the program's own threads: the channel's thread takes none. */
static enum status thread_start(struct channel *channel)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&channel->thread, NULL, channel_thread, channel);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return fail(STATUS_IO, "control channel: start a thread: %s", strerror(error));
    channel->running = true;
    return STATUS_OK;
}

/* --- the caller's side --- */

void channel_speak(struct channel *channel, bool speak)
{
    atomic_store(&channel->speak, speak);
}

enum status channel_check(struct channel *channel)
{
    int status = atomic_load_explicit(&channel->status, memory_order_acquire);
    return status == STATUS_OK ? STATUS_OK : fail((enum status)status, "%s", channel->text);
}

static enum status send_all(struct channel *channel, const unsigned char *bytes, size_t length, uint64_t deadline)
{
    for (size_t sent = 0; sent < length;) {
        ssize_t count = send(channel->fd, bytes + sent, length - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count >= 0) {
            sent += (size_t)count;
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            return fail(STATUS_PEER_LOST, "control channel: send: %s: %s is gone", strerror(errno),
                        server_name(channel->hosted));
        struct pollfd ready = {.fd = channel->fd, .events = POLLOUT};
        (void)poll(&ready, 1, poll_ms(deadline)); /* send() tells what is wrong */
        if (deadline_passed(deadline))
            return fail(STATUS_TIMEOUT, "control channel: %s takes no messages: it is stopped or hangs",
                        server_name(channel->hosted));
    }
    return STATUS_OK;
}

/* A frame whose payload is `head` and then `body`. */
static enum status send_frame(struct channel *channel, enum control_type type, const unsigned char *head,
                              size_t head_bytes, const void *body, size_t body_bytes)
{
    uint64_t deadline = deadline_after(channel->deadline);
    void *frame = NULL;
    TRY(memory_zeroed(&frame, CONTROL_HEADER_BYTES + head_bytes + body_bytes, 1));
    unsigned char *bytes = frame;
    control_header(bytes, type, head_bytes + body_bytes);
    if (head_bytes > 0)
        memcpy(bytes + CONTROL_HEADER_BYTES, head, head_bytes);
    if (body_bytes > 0)
        memcpy(bytes + CONTROL_HEADER_BYTES + head_bytes, body, body_bytes);
    pthread_mutex_lock(&channel->send_lock);
    enum status status = send_all(channel, bytes, CONTROL_HEADER_BYTES + head_bytes + body_bytes, deadline);
    pthread_mutex_unlock(&channel->send_lock);
    free(frame);
    return status;
}

/* Wait, holding the lock, until *flag or the job's failure. */
static enum status wait_locked(struct channel *channel, const bool *flag, const char *what)
{
    double seconds = channel->deadline + CHANNEL_GRACE;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    while (!*flag && atomic_load(&channel->status) == STATUS_OK) {
        if (pthread_cond_timedwait(&channel->changed, &channel->lock, &until) == ETIMEDOUT && !*flag)
            return fail(STATUS_TIMEOUT, "%s: no answer from %s in %.3g s: it is stopped or hangs", what,
                        server_name(channel->hosted), seconds);
    }
    return *flag ? STATUS_OK : channel_check(channel);
}

/* What went wrong may be known better by the thread than by a failed send: it reads the server's last words. */
static enum status send_or_reason(struct channel *channel, enum status sent)
{
    if (sent != STATUS_PEER_LOST)
        return sent;
    const bool never = false;
    pthread_mutex_lock(&channel->lock);
    sent = wait_locked(channel, &never, "control channel");
    pthread_mutex_unlock(&channel->lock);
    return sent;
}

static enum status await(struct channel *channel, const bool *flag, const char *what)
{
    pthread_mutex_lock(&channel->lock);
    enum status status = wait_locked(channel, flag, what);
    pthread_mutex_unlock(&channel->lock);
    return status;
}

/* Copy the result out, holding the lock. */
static enum status copy_gathered(struct channel *channel, size_t bytes, void *all)
{
    size_t total = (size_t)channel->size * bytes;
    if (channel->payload_bytes != total + 4 || control_get_u32(channel->payload) != channel->sequence)
        return fail(STATUS_INTERNAL, "all-gather %lu: %s answered with %zu bytes, %zu are expected",
                    (unsigned long)channel->sequence, server_name(channel->hosted), channel->payload_bytes, total + 4);
    if (total > 0)
        memcpy(all, channel->payload + 4, total);
    return STATUS_OK;
}

enum status channel_gather(struct channel *channel, const void *mine, size_t bytes, void *all)
{
    unsigned char sequence[4];
    TRY(channel_check(channel));
    pthread_mutex_lock(&channel->lock);
    channel->gathered = false;
    pthread_mutex_unlock(&channel->lock);
    control_put_u32(sequence, ++channel->sequence);
    TRY(send_or_reason(channel, send_frame(channel, CONTROL_GATHER, sequence, sizeof sequence, mine, bytes)));
    pthread_mutex_lock(&channel->lock);
    enum status status = wait_locked(channel, &channel->gathered, bytes > 0 ? "all-gather" : "barrier");
    if (status == STATUS_OK)
        status = copy_gathered(channel, bytes, all);
    free(channel->payload);
    channel->payload = NULL;
    channel->payload_bytes = 0;
    pthread_mutex_unlock(&channel->lock);
    return status;
}

enum status channel_goodbye(struct channel *channel)
{
    TRY(channel_check(channel));
    TRY(send_or_reason(channel, send_frame(channel, CONTROL_GOODBYE, NULL, 0, NULL, 0)));
    return await(channel, &channel->acknowledged, "leave the job");
}

bool channel_asked(struct channel *channel)
{
    return atomic_load_explicit(&channel->asked, memory_order_relaxed) && atomic_exchange(&channel->asked, false);
}

void channel_answer(struct channel *channel, const char *text)
{
    const size_t length = strnlen(text, CONTROL_ANSWER_BYTES);
    (void)!send_frame(channel, CONTROL_ANSWER, NULL, 0, text, length); /* a lost server is found out otherwise */
}

bool channel_has_told(struct channel *channel)
{
    return atomic_load(&channel->status) != STATUS_OK && channel->failed != NULL;
}

/* Rank 0 may itself be stopped or gone: only its STOP in answer tells that it will tell. */
static bool await_stop(struct channel *channel)
{
    bool stopped = false;
    for (uint64_t deadline = deadline_after(ABORT_SECONDS); !stopped && !deadline_passed(deadline);) {
        clock_sleep_ns(1000000);
        pthread_mutex_lock(&channel->lock);
        stopped = channel->stopped;
        pthread_mutex_unlock(&channel->lock);
    }
    return stopped;
}

/* Who waits in vain has then found out for whom; nobody else is left to say so. */
static void blame_server(struct channel *channel, const char *text)
{
    char server[CONTROL_HOST_BYTES + 1];
    pthread_mutex_lock(&channel->lock);
    memcpy(server, channel->server, sizeof server);
    pthread_mutex_unlock(&channel->lock);
    (void)fail(STATUS_TIMEOUT, "%s (rank 0 on %s does not answer: stopped, hanging, or its connection is lost)", text,
               server);
}

bool channel_abort(struct channel *channel, enum status status, const char *text)
{
    unsigned char payload[4 + CONTROL_TEXT_BYTES];
    char said[CONTROL_TEXT_BYTES + 1]; /* `text` may be status_message(), which a send that fails replaces */
    size_t length = control_text_put(payload, status, text);
    memcpy(said, payload + 4, length - 4);
    said[length - 4] = '\0';
    const bool awaits = channel->hosted && channel->rank > 0;
    atomic_store(&channel->aborting, awaits);
    note_failure(channel, status, said); /* the other threads of this worker may stop, too */
    const bool sent = send_frame(channel, CONTROL_ABORT, payload, length, NULL, 0) == STATUS_OK;
    const bool heard = sent && (!awaits || await_stop(channel));
    if (!heard && awaits && status == STATUS_TIMEOUT)
        blame_server(channel, said);
    else if (!heard)
        (void)fail(status, "%s", said);
    return heard;
}

/* --- life --- */

static enum status locks_init(struct channel *channel)
{
    pthread_condattr_t attributes;
    int error = pthread_condattr_init(&attributes);
    if (error == 0) {
        error = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        if (error == 0)
            error = pthread_cond_init(&channel->changed, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    if (error != 0)
        return fail(STATUS_INTERNAL, "control channel: condition variable: %s", strerror(error));
    pthread_mutex_init(&channel->lock, NULL);
    pthread_mutex_init(&channel->send_lock, NULL);
    return STATUS_OK;
}

void channel_close(struct channel *channel)
{
    if (channel == NULL)
        return;
    if (channel->running) {
        const uint64_t one = 1;
        while (write(channel->wake, &one, sizeof one) < 0 && errno == EINTR)
            ;
        pthread_join(channel->thread, NULL);
    }
    if (channel->fd >= 0)
        close(channel->fd);
    if (channel->wake >= 0)
        close(channel->wake);
    if (channel->parent >= 0)
        close(channel->parent);
    pthread_mutex_destroy(&channel->send_lock);
    pthread_mutex_destroy(&channel->lock);
    pthread_cond_destroy(&channel->changed);
    free(channel->payload);
    free(channel);
}

static enum status create(const struct channel_request *request, struct channel **out)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct channel)));
    struct channel *channel = memory;
    channel->fd = -1;
    channel->wake = -1;
    channel->parent = request->parent > 0 ? pidfd_open(request->parent, 0) : -1;
    channel->rank = request->hello.rank;
    channel->size = request->hello.size;
    channel->memory = request->hello.process.memory;
    channel->hosted = request->hosted;
    atomic_init(&channel->speak, request->hello.rank == (request->hosted ? 1 : 0));
    channel->deadline = request->deadline;
    channel->failed = request->failed;
    channel->context = request->context;
    atomic_init(&channel->aborting, false);
    atomic_init(&channel->asked, false);
    atomic_init(&channel->status, STATUS_OK);
    enum status status = locks_init(channel);
    if (status != STATUS_OK) {
        if (channel->parent >= 0)
            close(channel->parent);
        free(channel);
        return status;
    }
    *out = channel;
    return STATUS_OK;
}

/* Without the thread nothing can be awaited, but the server can be told: it then is the one who tells the user. */
static enum status give_up(struct channel *channel, const struct channel_request *request, const unsigned char *hello,
                           size_t length, enum status status)
{
    unsigned char payload[4 + CONTROL_TEXT_BYTES];
    fail_context(status, "rank %d on %s", (int)request->hello.rank, request->hello.host);
    char why[CONTROL_TEXT_BYTES + 1];
    size_t why_length = strnlen(status_message(), CONTROL_TEXT_BYTES);
    memcpy(why, status_message(), why_length);
    why[why_length] = '\0';
    if (send_frame(channel, CONTROL_HELLO, hello, length, NULL, 0) == STATUS_OK &&
        send_frame(channel, CONTROL_ABORT, payload, control_text_put(payload, status, why), NULL, 0) == STATUS_OK)
        channel->stopped = true;
    return fail(status, "%s", why);
}

static enum status greet(struct channel *channel, const struct channel_request *request)
{
    struct control_hello said = request->hello;
    unsigned char nonce[PROOF_NONCE_BYTES], hello[CONTROL_HELLO_BYTES];
    TRY(proof_random(said.nonce, sizeof said.nonce));
    TRY(connect_until(request, &channel->fd, nonce));
    const size_t length = control_hello_put(hello, &said, request->token, nonce);
    proof_make(request->token, PROOF_SERVER, nonce, said.nonce, NULL, 0, channel->welcome);
    channel->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (channel->wake < 0)
        return fail(STATUS_IO, "control channel: eventfd: %s", strerror(errno));
    enum status started = thread_start(channel);
    if (started != STATUS_OK)
        return give_up(channel, request, hello, length, started);
    TRY(send_or_reason(channel, send_frame(channel, CONTROL_HELLO, hello, length, NULL, 0)));
    return await(channel, &channel->welcomed, "join the job");
}

enum status channel_open(const struct channel_request *request, struct channel **out)
{
    struct channel *channel = NULL;
    enum status status = create(request, &channel);
    if (status != STATUS_OK)
        return status;
    status = greet(channel, request);
    if (status != STATUS_OK) {
        pthread_mutex_lock(&channel->lock);
        if (request->told != NULL)
            *request->told = channel->stopped;
        pthread_mutex_unlock(&channel->lock);
        channel_close(channel);
        return status;
    }
    *out = channel;
    return STATUS_OK;
}
