/* channel.c - a worker's end of the control channel. */
#include "comm/bootstrap/channel.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"

#define CHANNEL_GRACE 3.0 /* seconds that the launcher has to name who is missing */
#define RETRY_FIRST_NS 1000000u
#define RETRY_LAST_NS 200000000u

struct channel {
    int fd;   /* non-blocking */
    int wake; /* eventfd: channel_close() wants the thread to end */
    pthread_t thread;
    bool running;
    uint32_t rank, size;
    double deadline;
    job_failed_fn *failed;
    void *context;
    uint32_t sequence;         /* of the latest gather; the caller's thread only */
    pthread_mutex_t send_lock; /* one frame at a time on the socket */

    pthread_mutex_t lock; /* guards what follows; `changed` is broadcast */
    pthread_cond_t changed;
    bool welcomed, acknowledged, gathered;
    bool stopped;           /* the launcher has ended the job: it tells the user */
    unsigned char *payload; /* of the latest GATHERED: sequence, then bytes */
    size_t payload_bytes;
    char text[CONTROL_TEXT_BYTES + 1]; /* why it failed: written before `status`, never again after */
    atomic_int status;
};

/* --- connecting --- */

static enum status address_parse(const char *text, struct sockaddr_in *address)
{
    char host[INET_ADDRSTRLEN];
    const char *colon = strrchr(text, ':');
    long long port = 0;
    size_t length = colon != NULL ? (size_t)(colon - text) : 0;
    if (length == 0 || length >= sizeof host || parse_int(colon + 1, &port) != STATUS_OK || port < 1 || port > 65535)
        return fail(STATUS_USAGE, "CHORALE_CONTROL=%.60s: not ADDRESS:PORT", text);
    memcpy(host, text, length);
    host[length] = '\0';
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &address->sin_addr) != 1)
        return fail(STATUS_USAGE, "CHORALE_CONTROL=%.60s: not an IPv4 address", text);
    return STATUS_OK;
}

/* Milliseconds for poll() that do not end before the deadline; at most a second, so that callers look around. */
static int poll_ms(uint64_t deadline)
{
    uint64_t left = deadline_left_ns(deadline);
    return left >= 1000000000u ? 1000 : (int)(left / 1000000u) + 1;
}

/* A connect() to a port of this host where nobody listens may meet itself: source and destination are then the same. */
static bool connected_to_itself(int fd)
{
    struct sockaddr_in here, there;
    socklen_t here_bytes = sizeof here, there_bytes = sizeof there;
    return getsockname(fd, (struct sockaddr *)&here, &here_bytes) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &there_bytes) == 0 && here.sin_port == there.sin_port &&
           here.sin_addr.s_addr == there.sin_addr.s_addr;
}

/* errno's value, 0 when connected. */
static int connect_socket(int fd, const struct sockaddr_in *address, uint64_t deadline)
{
    if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0)
        return 0;
    if (errno != EINPROGRESS && errno != EINTR)
        return errno;
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    while (poll(&ready, 1, poll_ms(deadline)) <= 0) {
        if (deadline_passed(deadline))
            return ETIMEDOUT;
    }
    int error = 0;
    socklen_t bytes = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

/* One attempt. STATUS_AGAIN: nobody listens, *error says how that shows. */
static enum status connect_once(const struct sockaddr_in *address, uint64_t deadline, int *out, int *error)
{
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fail(STATUS_IO, "control channel: socket: %s", strerror(errno));
    *error = connect_socket(fd, address, deadline);
    if (*error == 0 && connected_to_itself(fd))
        *error = ECONNREFUSED;
    if (*error != 0) {
        close(fd);
        return STATUS_AGAIN;
    }
    /* small messages that are waited for; without it they are late, not wrong */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    *out = fd;
    return STATUS_OK;
}

static enum status connect_until(const char *text, const struct sockaddr_in *address, double seconds, int *fd)
{
    uint64_t deadline = deadline_after(seconds), pause = RETRY_FIRST_NS;
    enum status status;
    int error = 0;
    while ((status = connect_once(address, deadline, fd, &error)) == STATUS_AGAIN) {
        if (deadline_passed(deadline))
            return fail(STATUS_TIMEOUT, "connect to the launcher at %.60s: %s for %.3g s: is it still running?", text,
                        strerror(error), seconds);
        clock_sleep_ns(pause);
        pause = pause < RETRY_LAST_NS ? pause * 2 : pause;
    }
    return status;
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
    bool tell = channel->welcomed && channel->failed != NULL;
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

/* STATUS_OK, or why the job is over; *stopped when the launcher said so. */
static enum status handle_frame(struct channel *channel, struct control_reader *reader,
                                const struct control_frame *frame, bool *stopped)
{
    char text[CONTROL_TEXT_BYTES + 1];
    enum status why;
    switch (frame->type) {
    case CONTROL_WELCOME:
        raise_flag(channel, &channel->welcomed);
        return STATUS_OK;
    case CONTROL_GATHERED:
        take_gathered(channel, reader, frame->length);
        return STATUS_OK;
    case CONTROL_GOODBYE_ACK:
        raise_flag(channel, &channel->acknowledged);
        return STATUS_OK;
    case CONTROL_STOP:
        TRY(control_text_get(frame, &why, text));
        *stopped = true;
        return fail(why, "%s", text);
    default:
        return fail(STATUS_FORMAT, "control channel: the launcher sent a message of type %d", (int)frame->type);
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
        if (status == STATUS_PEER_LOST)
            (void)fail(status, "the launcher is gone: it was killed or has crashed: start the job again");
        if (status == STATUS_OK)
            status = handle_frame(channel, reader, &frame, &stopped);
    }
    if (status == STATUS_AGAIN)
        return true;
    if (stopped && status != STATUS_USAGE) /* a wrong token: then the launcher stops us, but tells nobody */
        raise_flag(channel, &channel->stopped);
    /* the launcher tells the user why it stops us; without it, one of us has to speak */
    channel_fail(channel, status, status_message(), !stopped && channel->rank == 0);
    return false;
}

static void *channel_thread(void *argument)
{
    struct channel *channel = argument;
    struct control_reader reader = {.have = 0};
    for (bool open = true; open;) {
        struct pollfd ready[2] = {{.fd = channel->wake, .events = POLLIN}, {.fd = channel->fd, .events = POLLIN}};
        if (poll(ready, 2, -1) < 0)
            continue; /* EINTR; all signals are blocked here, but a debugger may interrupt */
        if (ready[0].revents != 0)
            break;
        if (ready[1].revents != 0)
            open = read_frames(channel, &reader);
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
            return fail(STATUS_PEER_LOST, "control channel: send: %s: the launcher is gone", strerror(errno));
        struct pollfd ready = {.fd = channel->fd, .events = POLLOUT};
        (void)poll(&ready, 1, poll_ms(deadline)); /* send() tells what is wrong */
        if (deadline_passed(deadline))
            return fail(STATUS_TIMEOUT, "control channel: the launcher takes no messages: it is stopped or hangs");
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
            return fail(STATUS_TIMEOUT, "%s: no answer from the launcher in %.3g s: it is stopped or hangs", what,
                        seconds);
    }
    return *flag ? STATUS_OK : channel_check(channel);
}

/* What went wrong may be known better by the thread than by a failed send: it reads the launcher's last words. */
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
        return fail(STATUS_INTERNAL, "all-gather %lu: the launcher answered with %zu bytes, %zu are expected",
                    (unsigned long)channel->sequence, channel->payload_bytes, total + 4);
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

bool channel_abort(struct channel *channel, enum status status, const char *text)
{
    unsigned char payload[4 + CONTROL_TEXT_BYTES];
    size_t length = control_text_put(payload, status, text);
    /* If the job has ended already, whoever ended it has told the user, or the callback has. */
    bool told = atomic_load(&channel->status) != STATUS_OK && channel->failed != NULL;
    note_failure(channel, status, text); /* the other threads of this worker may stop, too */
    return send_frame(channel, CONTROL_ABORT, payload, length, NULL, 0) == STATUS_OK || told;
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
    channel->rank = request->hello.rank;
    channel->size = request->hello.size;
    channel->deadline = request->deadline;
    channel->failed = request->failed;
    channel->context = request->context;
    atomic_init(&channel->status, STATUS_OK);
    enum status status = locks_init(channel);
    if (status != STATUS_OK) {
        free(channel);
        return status;
    }
    *out = channel;
    return STATUS_OK;
}

/* Without the thread nothing can be awaited, but the launcher can be told: it then is the one who tells the user. */
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
    struct sockaddr_in address;
    unsigned char hello[CONTROL_HELLO_BYTES];
    const size_t length = control_hello_put(hello, &request->hello);
    TRY(address_parse(request->address, &address));
    TRY(connect_until(request->address, &address, request->deadline, &channel->fd));
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
