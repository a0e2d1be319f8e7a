/* launch.c - the local launcher: prepares, starts the workers, and runs the loop until nothing of the job is left. */
#define _GNU_SOURCE /* accept4's flags on socket(), pipe2 */
#include "comm/launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/bootstrap/launcher.h"
#include "comm/bootstrap/spawn.h"

#define LOOK_MS 500 /* deaths are signalled, but a signal may go to another thread of the caller */

#define LOST_OUTPUT "launcher on %s: standard %s: %s: lines of the workers are lost"

static const char *const stream_name[] = {"output", "error"};

/* What of the process is changed while the launcher runs, and is put back. */
struct setting {
    sigset_t mask;
    struct sigaction child, pipe;
    bool signals_set;
    struct rlimit files;
    bool files_set;
    int null; /* /dev/null, not one of the three standard descriptors; -1: not open */
    bool filled[3];
};

/* --- the process's settings --- */

/* With a standard descriptor closed, a socket of ours would take its place, and a worker inherit it as its stdin. What
 * takes it can only be read, so that who writes to a closed output is told so, as without us. */
static enum status fill_standard(struct setting *setting)
{
    for (;;) {
        int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return fail(STATUS_IO, "open /dev/null: %s", strerror(errno));
        if (fd > 2) {
            setting->null = fd;
            return STATUS_OK;
        }
        setting->filled[fd] = true;
    }
}

static bool is_ignored(int number)
{
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

/* The signals that the launcher takes are blocked and read from a descriptor. SIGCHLD must not be ignored, or the
 * children's codes are lost; a reader of our output that has gone must not end us before the workers. */
static enum status signals_take(struct setting *setting, int *descriptor)
{
    struct sigaction action;
    sigset_t taken;
    sigemptyset(&taken);
    sigaddset(&taken, SIGCHLD);
    sigaddset(&taken, SIGINT);
    sigaddset(&taken, SIGTERM);
    if (!is_ignored(SIGHUP)) /* nohup */
        sigaddset(&taken, SIGHUP);
    *descriptor = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    if (*descriptor < 0)
        return fail(STATUS_IO, "signalfd: %s", strerror(errno));
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &action, &setting->child);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, &setting->pipe);
    pthread_sigmask(SIG_BLOCK, &taken, &setting->mask);
    setting->signals_set = true;
    return STATUS_OK;
}

static size_t open_files(void)
{
    size_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL)
        return 3;
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count > 3 ? count - 3 : 0; /* ".", ".." and the folder itself */
}

/* Find out before the first worker is started whether the last one will still be connected. */
static enum status files_reserve(struct setting *setting, const struct launch_request *request)
{
    size_t workers = (size_t)request->workers;
    size_t needed = open_files() + 8 + STRANGERS + workers + (request->label ? 2 * workers : 0);
    if (getrlimit(RLIMIT_NOFILE, &setting->files) != 0)
        return fail(STATUS_IO, "getrlimit: %s", strerror(errno));
    struct rlimit wanted = setting->files;
    if (wanted.rlim_cur >= needed)
        return STATUS_OK;
    wanted.rlim_cur = needed;
    if (wanted.rlim_max < needed || setrlimit(RLIMIT_NOFILE, &wanted) != 0)
        return fail(STATUS_UNAVAILABLE,
                    "start %d workers: the launcher needs %zu open files, the limit is %llu: raise it (ulimit -n) or "
                    "start fewer",
                    request->workers, needed, (unsigned long long)setting->files.rlim_max);
    setting->files_set = true;
    return STATUS_OK;
}

static void settings_restore(struct setting *setting)
{
    if (setting->signals_set) {
        sigaction(SIGCHLD, &setting->child, NULL);
        pthread_sigmask(SIG_SETMASK, &setting->mask, NULL);
        sigaction(SIGPIPE, &setting->pipe, NULL);
    }
    if (setting->files_set)
        (void)setrlimit(RLIMIT_NOFILE, &setting->files); /* to what it was: not refused */
    for (int fd = 0; fd < 3; fd++) {
        if (setting->filled[fd])
            close(fd);
    }
    if (setting->null >= 0)
        close(setting->null);
}

/* --- the listener --- */

/* A socket on a free port of 127.0.0.1. */
static enum status bind_loopback(int *out, int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fail(STATUS_IO, "control channel: socket: %s", strerror(errno));
    if (bind(fd, (struct sockaddr *)&address, bytes) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) {
        int error = errno;
        close(fd);
        return fail(STATUS_IO, "control channel: bind to 127.0.0.1: %s", strerror(error));
    }
    *out = fd;
    *port = ntohs(address.sin_port);
    return STATUS_OK;
}

/* A port for a rendezvous of the workers themselves (MASTER_PORT): free now, nobody can promise more. */
static enum status free_port(int *port)
{
    int fd = -1;
    TRY(bind_loopback(&fd, port));
    close(fd);
    return STATUS_OK;
}

static enum status listen_loopback(struct launcher *launcher, int *port)
{
    TRY(bind_loopback(&launcher->listener, port));
    if (listen(launcher->listener, SOMAXCONN) != 0)
        return fail(STATUS_IO, "control channel: listen: %s", strerror(errno));
    return STATUS_OK;
}

/* --- starting --- */

static enum status label_pipes(struct launcher *launcher, int rank, int *write_ends)
{
    for (int stream = 0; stream < 2; stream++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0)
            return fail(STATUS_UNAVAILABLE, "pipe: %s", strerror(errno));
        write_ends[stream] = ends[1];
        launcher->members[rank].streams[stream].fd = ends[0];
        if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) /* the worker's end blocks, as it would expect */
            return fail(STATUS_IO, "fcntl: %s", strerror(errno));
    }
    return STATUS_OK;
}

/* Rank 0 reads what the launcher could; but from a terminal only its foreground group may read, and ours is another. */
static int worker_stdin(int rank, const struct setting *setting)
{
    return rank == 0 && isatty(0) == 0 ? 0 : setting->null;
}

static enum status start_worker(struct launcher *launcher, const struct setting *setting,
                                const struct spawn_place *place)
{
    struct member *member = &launcher->members[place->rank];
    int ends[2] = {-1, -1};
    char **environment = NULL;
    enum status status = STATUS_OK;
    if (launcher->request->label)
        TRY_TO(done, label_pipes(launcher, place->rank, ends));
    TRY_TO(done, environment_build(place, &environment));
    const struct spawn_request request = {.argv = launcher->request->argv,
                                          .environment = environment,
                                          .in = worker_stdin(place->rank, setting),
                                          .out = ends[0] >= 0 ? ends[0] : 1,
                                          .err = ends[1] >= 0 ? ends[1] : 2,
                                          .mask = &setting->mask,
                                          .files = &setting->files};
    TRY_TO(done, spawn_worker(&request, &member->pid));
done:
    environment_release(environment);
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0)
            close(ends[i]);
    }
    return status;
}

static enum status start_workers(struct launcher *launcher, const struct setting *setting)
{
    char token[CONTROL_TOKEN_TEXT];
    struct spawn_place place = {.size = launcher->size, .token = token, .deadline = launcher->deadline};
    TRY(listen_loopback(launcher, &place.control_port));
    TRY(free_port(&place.master_port));
    TRY(proof_random(launcher->token, sizeof launcher->token));
    control_token_text(launcher->token, token);
    for (place.rank = 0; place.rank < launcher->size; place.rank++)
        TRY(start_worker(launcher, setting, &place));
    return STATUS_OK;
}

/* --- the loop --- */

/* Where each descriptor stands in the array for poll(): the signals, the listener, the launcher's two streams,
 * strangers, members, two streams of each member. Those that are not open are -1. */
enum { SLOT_SIGNALS, SLOT_LISTENER, SLOT_SINKS, SLOT_STRANGERS = SLOT_SINKS + 2 };

static int slot_member(const struct launcher *launcher, int rank)
{
    return SLOT_STRANGERS + launcher->size + STRANGERS + rank;
}

static int slot_stream(const struct launcher *launcher, int rank, int stream)
{
    return slot_member(launcher, launcher->size) + 2 * rank + stream;
}

static int slot_count(const struct launcher *launcher)
{
    return slot_stream(launcher, launcher->size, 0);
}

static void slots_fill(const struct launcher *launcher, struct pollfd *slots)
{
    slots[SLOT_SIGNALS] = (struct pollfd){.fd = launcher->signals, .events = POLLIN};
    slots[SLOT_LISTENER] = (struct pollfd){.fd = launcher->listener, .events = POLLIN};
    for (int i = 0; i < 2; i++) {
        const struct label_sink *sink = &launcher->sinks[i];
        slots[SLOT_SINKS + i] = (struct pollfd){.fd = label_sink_wanted(sink) ? sink->fd : -1, .events = POLLOUT};
    }
    for (int i = 0; i < launcher->size + STRANGERS; i++) {
        const struct connection *connection = &launcher->strangers[i].connection;
        slots[SLOT_STRANGERS + i] = (struct pollfd){.fd = connection->ended ? -1 : connection->fd, .events = POLLIN};
    }
    for (int i = 0; i < launcher->size; i++) {
        const struct member *member = &launcher->members[i];
        const struct connection *connection = &member->connection;
        slots[slot_member(launcher, i)] =
            (struct pollfd){.fd = connection->ended ? -1 : connection->fd, .events = connection_events(connection)};
        for (int stream = 0; stream < 2; stream++) {
            const struct label_source *source = &member->streams[stream];
            slots[slot_stream(launcher, i, stream)] =
                (struct pollfd){.fd = label_source_wanted(source) ? source->fd : -1, .events = POLLIN};
        }
    }
}

static bool sources_open(const struct launcher *launcher)
{
    for (int i = 0; i < launcher->size; i++) {
        if (launcher->members[i].streams[0].fd >= 0 || launcher->members[i].streams[1].fd >= 0)
            return true;
    }
    return false;
}

/* Milliseconds that poll() may sleep. */
static int wait_ms(const struct launcher *launcher)
{
    if (launcher->gone) /* only output is left: what lies in the pipes is taken, then it is written */
        return label_sink_wanted(&launcher->sinks[0]) || label_sink_wanted(&launcher->sinks[1]) ? LOOK_MS : 0;
    uint64_t members = members_next_deadline(launcher), ending = ending_next_deadline(launcher);
    uint64_t left = deadline_left_ns(members < ending ? members : ending) / 1000000u;
    return left < LOOK_MS ? (int)left + 1 : LOOK_MS;
}

static void take_signals(struct launcher *launcher)
{
    struct signalfd_siginfo info;
    while (read(launcher->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo != SIGCHLD) /* deaths are looked for in any case */
            ending_signal(launcher, (int)info.ssi_signo);
    }
}

static void serve_members(struct launcher *launcher, const struct pollfd *slots)
{
    for (int i = 0; i < launcher->size; i++) {
        const struct pollfd *slot = &slots[slot_member(launcher, i)];
        if (slot->fd < 0 || slot->revents == 0)
            continue;
        connection_flush(&launcher->members[i].connection);
        members_read(launcher, i);
    }
    for (int i = 0; i < launcher->size + STRANGERS; i++) {
        const struct pollfd *slot = &slots[SLOT_STRANGERS + i];
        if (slot->fd >= 0 && slot->revents != 0)
            members_read_stranger(launcher, i);
    }
    if (slots[SLOT_LISTENER].revents != 0)
        members_accept(launcher);
}

static void serve_labels(struct launcher *launcher, const struct pollfd *slots)
{
    for (int i = 0; i < 2 * launcher->size; i++) {
        struct label_source *source = &launcher->members[i / 2].streams[i % 2];
        const struct pollfd *slot = &slots[slot_stream(launcher, i / 2, i % 2)];
        if (slot->fd < 0)
            continue;
        enum status status = STATUS_OK;
        if (slot->revents != 0)
            status = label_source_pump(source);
        else if (launcher->gone) /* empty, and held open by a process that has left its group */
            label_source_close(source);
        if (status != STATUS_OK)
            verdict_failed(launcher, status);
    }
    for (int i = 0; i < 2; i++) {
        if (slots[SLOT_SINKS + i].fd >= 0 && slots[SLOT_SINKS + i].revents != 0)
            label_sink_flush(&launcher->sinks[i]);
        if (launcher->sinks[i].error != 0)
            verdict_give(launcher, VERDICT_CERTAIN, STATUS_IO, -1, 1, LOST_OUTPUT, launcher->host, stream_name[i],
                         strerror(launcher->sinks[i].error));
    }
}

static bool finished(const struct launcher *launcher)
{
    if (!launcher->gone)
        return false;
    return launcher->hurry || (!sources_open(launcher) && !label_sink_wanted(&launcher->sinks[0]) &&
                               !label_sink_wanted(&launcher->sinks[1]));
}

/* poll() on the open ones, put together at the end of the array: it refuses more than the limit on open files. */
static void slots_poll(struct launcher *launcher, struct pollfd *slots)
{
    int count = slot_count(launcher), open = 0;
    struct pollfd *dense = slots + count;
    for (int i = 0; i < count; i++) {
        if (slots[i].fd >= 0)
            dense[open++] = slots[i];
    }
    int ready = poll(dense, (nfds_t)open, wait_ms(launcher));
    if (ready < 0 && errno != EINTR) { /* nothing can be watched any more; deaths are still seen */
        verdict_failed(launcher, fail(STATUS_INTERNAL, "poll: %s", strerror(errno)));
        clock_sleep_ns(1000000);
    }
    for (int i = 0, j = 0; i < count; i++) {
        if (slots[i].fd >= 0)
            slots[i].revents = ready > 0 ? dense[j++].revents : 0;
    }
}

static void run(struct launcher *launcher, struct pollfd *slots)
{
    while (!finished(launcher)) {
        slots_fill(launcher, slots);
        slots_poll(launcher, slots);
        if (slots[SLOT_SIGNALS].revents != 0)
            take_signals(launcher);
        serve_members(launcher, slots);
        ending_notice_deaths(launcher);
        members_check_deadlines(launcher);
        ending_step(launcher);
        serve_labels(launcher, slots);
    }
}

/* --- life --- */

static void launcher_release(struct launcher *launcher)
{
    for (int i = 0; launcher->members != NULL && i < launcher->size; i++) {
        label_source_close(&launcher->members[i].streams[0]);
        label_source_close(&launcher->members[i].streams[1]);
    }
    text_release(&launcher->sinks[0].pending);
    text_release(&launcher->sinks[1].pending);
    if (launcher->signals >= 0)
        close(launcher->signals);
    members_release(launcher);
}

static enum status launcher_init(struct launcher *launcher, const struct launch_request *request)
{
    enum status status = members_init(launcher, request->workers, request->deadline);
    launcher->request = request;
    launcher->note = request->note;
    launcher->note_context = request->context;
    for (int stream = 0; stream < 2; stream++)
        launcher->sinks[stream] = (struct label_sink){.fd = stream + 1};
    for (int i = 0; status == STATUS_OK && i < launcher->size; i++) {
        struct member *member = &launcher->members[i];
        memcpy(member->host, launcher->host, sizeof launcher->host);
        for (int stream = 0; stream < 2; stream++)
            member->streams[stream] = (struct label_source){.fd = -1, .rank = i, .sink = &launcher->sinks[stream]};
    }
    return status;
}

/* Start all, or end those that have been started: either way the loop runs until nothing is left. */
static enum status launch(struct launcher *launcher, const struct setting *setting, struct launch_result *result)
{
    void *slots = NULL;
    TRY(memory_zeroed(&slots, 2 * (size_t)slot_count(launcher), sizeof(struct pollfd)));
    enum status started = start_workers(launcher, setting);
    if (started != STATUS_OK)
        verdict_failed(launcher, started);
    char why[CONTROL_TEXT_BYTES + 1];
    memcpy(why, status_message(), strnlen(status_message(), CONTROL_TEXT_BYTES) + 1);
    run(launcher, slots);
    ending_reap(launcher);
    free(slots);
    if (started != STATUS_OK)
        return fail(started, "%s", why);
    result->exit_code = launcher->verdict.exit_code;
    memcpy(result->message, launcher->verdict.message, sizeof result->message);
    for (int i = 0; i < 2; i++) { /* seen after the last worker had ended well */
        if (launcher->sinks[i].error == 0 || result->exit_code != 0)
            continue;
        result->exit_code = 1;
        (void)snprintf(result->message, sizeof result->message, LOST_OUTPUT, launcher->host, stream_name[i],
                       strerror(launcher->sinks[i].error));
    }
    /* the user's second and third Ctrl-C were for the job; it is gone now */
    take_signals(launcher);
    return STATUS_OK;
}

static enum status request_check(const struct launch_request *request)
{
    if (request->workers < 1 || request->workers > CONTROL_WORKERS)
        return fail(STATUS_USAGE, "start %d workers: 1 to %d can be started", request->workers, CONTROL_WORKERS);
    if (request->argv == NULL || request->argv[0] == NULL || request->argv[0][0] == '\0')
        return fail(STATUS_USAGE, "start %d workers: no command", request->workers);
    return STATUS_OK;
}

enum status launch_local(const struct launch_request *request, struct launch_result *result)
{
    struct setting setting = {.null = -1};
    struct launcher launcher;
    *result = (struct launch_result){.exit_code = 0};
    TRY(request_check(request));
    enum status status = launcher_init(&launcher, request);
    if (status == STATUS_OK)
        status = fill_standard(&setting);
    if (status == STATUS_OK)
        status = files_reserve(&setting, request);
    if (status == STATUS_OK)
        status = signals_take(&setting, &launcher.signals);
    if (status == STATUS_OK)
        status = launch(&launcher, &setting, result);
    launcher_release(&launcher);
    settings_restore(&setting);
    return status;
}
