/* job.c - this process's membership in a job. */
#include "comm/job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "comm/bootstrap/channel.h"
#include "comm/bootstrap/control.h"
#include "comm/bootstrap/join.h"
#include "comm/bootstrap/origin.h"
#include "comm/bootstrap/server.h"
#include "comm/host.h"

struct job {
    int rank, size, local_rank, local_size, share_rank, share_size;
    bool crowded;
    struct layout layout;
    double deadline;
    bool left;
    struct channel *channel;    /* NULL: a job of one without a launcher, or one of a manager's */
    struct server *server;      /* rank 0 under another launcher; else NULL                     */
    struct job_manager manager; /* allgather NULL: none */
    char host[CONTROL_HOST_BYTES + 1];
};

bool job_is_worker(void)
{
    return origin_is_launched();
}

bool job_is_launched_here(void)
{
    return origin_variable("CHORALE_CONTROL") != NULL && origin_variable("CHORALE_TOKEN") != NULL;
}

enum status job_check_alone(void)
{
    return origin_check_alone();
}

static enum status environment_deadline(double *seconds)
{
    const char *text = origin_variable("CHORALE_DEADLINE");
    double value = 0;
    if (text != NULL && (parse_real(text, &value) != STATUS_OK || !(value > 0)))
        return fail(STATUS_USAGE, "environment: CHORALE_DEADLINE=%.40s: a number of seconds above 0 is wanted", text);
    *seconds = value;
    return STATUS_OK;
}

static enum status read_place(struct job *job)
{
    TRY(origin_number("WORLD_SIZE", "CHORALE_CONTROL", 1, CONTROL_WORKERS, &job->size));
    TRY(origin_number("RANK", "CHORALE_CONTROL", 0, job->size - 1, &job->rank));
    job->local_rank = job->rank;
    if (origin_variable("LOCAL_RANK") != NULL)
        TRY(origin_number("LOCAL_RANK", "CHORALE_CONTROL", 0, job->size - 1, &job->local_rank));
    return STATUS_OK;
}

/* The kernel kills us with the launcher (spawn.c) until the control channel is watched by someone who cleans up, which
 * a SIGKILL would prevent. Without a callback nobody would end this process: then it stays as it is. The setting is
 * one of the main thread's, so that this has no effect from another thread: then too it stays as it is. */
static void outlive_launcher(const struct job_options *options)
{
    if (options->failed != NULL)
        (void)prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
}

static enum status open_channel(struct job *job, const struct job_options *options)
{
    struct channel_request request = {.address = origin_variable("CHORALE_CONTROL"),
                                      .deadline = job->deadline,
                                      .failed = options->failed,
                                      .context = options->context,
                                      .told = options->told};
    TRY(control_token_parse(origin_variable("CHORALE_TOKEN"), request.token));
    request.hello.rank = (uint32_t)job->rank;
    request.hello.size = (uint32_t)job->size;
    request.hello.process.pid = (uint32_t)getpid();
    request.hello.deadline_ms = (uint32_t)ceil(job->deadline * 1e3);
    memcpy(request.hello.host, job->host, sizeof request.hello.host);
    TRY(channel_open(&request, &job->channel));
    outlive_launcher(options);
    return STATUS_OK;
}

/* ---- under another launcher ---- */

/* What the workers tell each other first: where they are. */
struct neighbour {
    struct host_identity identity;
    int64_t local_rank; /* as the launcher says; -1: it does not */
    struct host_cpus cpus;
};

static bool same_machine(const struct neighbour *a, const struct neighbour *b)
{
    return a->identity.machine == b->identity.machine;
}

/* Two workers of one machine with the same local rank, or one with none. */
static bool find_clash(const struct neighbour *all, int size, int *one, int *other)
{
    for (*one = 0; *one < size; ++*one)
        for (*other = *one; *other < size; ++*other)
            if (*other == *one
                    ? all[*one].local_rank < 0
                    : all[*one].local_rank == all[*other].local_rank && same_machine(&all[*one], &all[*other]))
                return true;
    return false;
}

/* Those of my machine, and among them those that may run where I may. */
static int count_locals(struct job *job, const struct neighbour *all)
{
    const struct neighbour *mine = &all[job->rank];
    struct host_cpus together = mine->cpus;
    int before = 0;
    for (int rank = 0; rank < job->size; rank++) {
        if (!same_machine(&all[rank], mine))
            continue;
        const bool shares = host_cpus_equal(&all[rank].cpus, &mine->cpus);
        before += rank < job->rank;
        job->share_rank += shares && rank < job->rank;
        job->share_size += shares;
        job->local_size++;
        host_cpus_join(&together, &all[rank].cpus);
    }
    const double quota = host_cpu_quota();
    const int cpus = host_cpus_count(&together);
    job->crowded = job->local_size > (cpus > 0 ? cpus : host_cores()) || (quota > 0 && job->local_size > quota);
    return before;
}

static void check_local_rank(struct job *job, const struct neighbour *all, int counted,
                             const struct job_options *options)
{
    int one = 0, other = 0;
    char line[160];
    if (!find_clash(all, job->size, &one, &other))
        return;
    job->local_rank = counted;
    if (one == other || job->rank != 0 || options->note == NULL)
        return;
    if (all[one].identity.network != all[other].identity.network)
        return; /* hosts made of one machine, each with ranks of its own */
    (void)snprintf(line, sizeof line,
                   "ranks %d and %d are on one machine and both have the local rank %lld: counted anew", one, other,
                   (long long)all[one].local_rank);
    options->note(options->context, line);
}

static enum status number_nodes(const struct neighbour *all, int size, struct layout *layout)
{
    TRY(layout_flat(size, layout));
    layout->nodes = 0;
    for (int rank = 0; rank < size; rank++) {
        int first = 0;
        while (all[first].identity.memory != all[rank].identity.memory)
            first++;
        layout->node_of[rank] = first == rank ? layout->nodes++ : layout->node_of[first];
    }
    return STATUS_OK;
}

/* The first worker of each host other than rank 0's, and rank 1. */
static bool may_speak(const struct job *job, const struct neighbour *all)
{
    const uint64_t mine = all[job->rank].identity.network;
    int first = 0;
    while (all[first].identity.network != mine)
        first++;
    return job->rank == 1 || (first == job->rank && first > 0);
}

static enum status meet(struct job *job, const struct job_options *options, bool hosted)
{
    struct neighbour mine = {.local_rank = job->local_rank};
    void *memory = NULL;
    TRY(memory_zeroed(&memory, (size_t)job->size, sizeof mine));
    struct neighbour *all = memory;
    host_identify(&mine.identity);
    host_cpus_allowed(&mine.cpus);
    enum status status = job_allgather(job, &mine, sizeof mine, all);
    if (status == STATUS_OK)
        status = number_nodes(all, job->size, &job->layout);
    if (status == STATUS_OK)
        check_local_rank(job, all, count_locals(job, all), options);
    if (status == STATUS_OK && hosted && job->channel != NULL)
        channel_speak(job->channel, may_speak(job, all));
    free(memory);
    return status;
}

static enum status join_others(struct job *job, const struct origin *origin, const struct job_options *options)
{
    struct joined joined;
    TRY(join_hosted(origin, options, job->deadline, job->host, &joined));
    job->rank = joined.rank;
    job->size = joined.size;
    job->local_rank = joined.local_rank;
    job->channel = joined.channel;
    job->server = joined.server;
    return STATUS_OK;
}

static enum status join(struct job *job, const struct job_options *options)
{
    struct origin origin;
    if (gethostname(job->host, sizeof job->host - 1) != 0)
        memcpy(job->host, "localhost", sizeof "localhost"); /* longer names are cut where the system does not */
    TRY(environment_deadline(&job->deadline));
    job->deadline = control_deadline(options->deadline > 0 ? options->deadline : job->deadline);
    TRY(origin_find(&origin));
    if (origin.kind == ORIGIN_CHORALE) {
        TRY(read_place(job));
        TRY(open_channel(job, options));
    } else if (origin.kind != ORIGIN_NONE) {
        TRY(join_others(job, &origin, options));
    }
    return meet(job, options, origin.kind != ORIGIN_CHORALE);
}

static const struct job_options no_options = {.deadline = 0};

enum status job_join(const struct job_options *options, struct job **out)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct job)));
    struct job *job = memory;
    job->size = 1;
    enum status status = join(job, options != NULL ? options : &no_options);
    if (status != STATUS_OK) {
        job_destroy(job);
        return status;
    }
    *out = job;
    return STATUS_OK;
}

enum status job_adopt(const struct job_manager *manager, const struct job_options *options, struct job **out)
{
    void *memory = NULL;
    if (options == NULL)
        options = &no_options;
    if (manager->size < 1 || manager->rank < 0 || manager->rank >= manager->size)
        return fail(STATUS_INTERNAL, "job: adopted as rank %d of %d", manager->rank, manager->size);
    TRY(memory_zeroed(&memory, 1, sizeof(struct job)));
    struct job *job = memory;
    *job = (struct job){.rank = manager->rank,
                        .size = manager->size,
                        .local_rank = manager->local_rank,
                        .deadline = control_deadline(options->deadline),
                        .manager = *manager};
    if (gethostname(job->host, sizeof job->host - 1) != 0)
        memcpy(job->host, "localhost", sizeof "localhost");
    const enum status status = meet(job, options, false);
    if (status != STATUS_OK) {
        job_destroy(job);
        return status;
    }
    *out = job;
    return STATUS_OK;
}

int job_rank(const struct job *job)
{
    return job->rank;
}

int job_size(const struct job *job)
{
    return job->size;
}

int job_local_rank(const struct job *job)
{
    return job->local_rank;
}

int job_local_size(const struct job *job)
{
    return job->local_size;
}

int job_share_rank(const struct job *job)
{
    return job->share_rank;
}

int job_share_size(const struct job *job)
{
    return job->share_size;
}

bool job_is_crowded(const struct job *job)
{
    return job->crowded;
}

const struct layout *job_layout(const struct job *job)
{
    return &job->layout;
}

const char *job_host(const struct job *job)
{
    return job->host;
}

double job_deadline(const struct job *job)
{
    return job->deadline;
}

enum status job_allgather(struct job *job, const void *mine, size_t bytes, void *all)
{
    if (bytes > CONTROL_GATHER_BYTES)
        return fail(STATUS_USAGE, "all-gather of %zu bytes: at most %d go over the control channel", bytes,
                    CONTROL_GATHER_BYTES);
    if (job->left)
        return fail(STATUS_USAGE, "all-gather: this worker has left the job");
    if (job->channel != NULL)
        return channel_gather(job->channel, mine, bytes, all);
    if (job->manager.allgather != NULL)
        return job->manager.allgather(job->manager.context, mine, bytes, all);
    if (bytes > 0)
        memmove(all, mine, bytes);
    return STATUS_OK;
}

enum status job_barrier(struct job *job)
{
    return job_allgather(job, NULL, 0, NULL);
}

enum status job_check(struct job *job)
{
    return job->channel != NULL ? channel_check(job->channel) : STATUS_OK;
}

bool job_asked(struct job *job)
{
    return job->channel != NULL && channel_asked(job->channel);
}

void job_answer(struct job *job, const char *text)
{
    if (job->channel != NULL)
        channel_answer(job->channel, text);
}

/* Rank 0 ends when this returns, and its server with it: the others must know by then. It then tells the user itself. */
bool job_abort(struct job *job, enum status status, const char *message)
{
    if (job->channel == NULL)
        return false;
    const bool told = channel_has_told(job->channel);
    const bool sent = channel_abort(job->channel, status, message);
    if (job->server == NULL)
        return sent || told;
    server_settle(job->server);
    const char *verdict = server_verdict(job->server);
    if (!told && verdict != NULL)
        (void)fail(status, "%s", verdict);
    return told;
}

enum status job_leave(struct job *job)
{
    if (job->channel != NULL && !job->left)
        TRY(channel_goodbye(job->channel));
    job->left = true;
    return STATUS_OK;
}

void job_destroy(struct job *job)
{
    if (job == NULL)
        return;
    channel_close(job->channel);
    server_close(job->server); /* waits until the others have left, too */
    layout_release(&job->layout);
    free(job);
}
