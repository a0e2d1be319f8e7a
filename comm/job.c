/* job.c - this process's membership in a job. */
#include "comm/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "comm/bootstrap/channel.h"
#include "comm/bootstrap/control.h"

struct job {
    int rank, size, local_rank;
    double deadline;
    bool left;
    struct channel *channel;    /* NULL: a job of one without a launcher, or one of a manager's */
    struct job_manager manager; /* allgather NULL: none */
    char host[CONTROL_HOST_BYTES + 1];
};

static const char *environment(const char *name)
{
    const char *value = getenv(name); /* NOLINT(concurrency-mt-unsafe): nobody sets the environment while joining */
    return value != NULL && value[0] != '\0' ? value : NULL;
}

bool job_is_worker(void)
{
    return environment("CHORALE_CONTROL") != NULL && environment("CHORALE_TOKEN") != NULL;
}

/* A whole number of the launcher's environment, in [low, high]. */
static enum status environment_int(const char *name, int low, int high, int *out)
{
    const char *text = environment(name);
    long long value = 0;
    if (text == NULL)
        return fail(STATUS_USAGE, "environment: %s is not set although CHORALE_CONTROL is: let the launcher set both",
                    name);
    if (parse_int(text, &value) != STATUS_OK || value < low || value > high)
        return fail(STATUS_USAGE, "environment: %s=%.40s: a whole number from %d to %d is wanted", name, text, low,
                    high);
    *out = (int)value;
    return STATUS_OK;
}

static enum status environment_deadline(double *seconds)
{
    const char *text = environment("CHORALE_DEADLINE");
    double value = 0;
    if (text != NULL && (parse_real(text, &value) != STATUS_OK || !(value > 0)))
        return fail(STATUS_USAGE, "environment: CHORALE_DEADLINE=%.40s: a number of seconds above 0 is wanted", text);
    *seconds = value;
    return STATUS_OK;
}

static enum status read_place(struct job *job)
{
    TRY(environment_int("WORLD_SIZE", 1, CONTROL_WORKERS, &job->size));
    TRY(environment_int("RANK", 0, job->size - 1, &job->rank));
    job->local_rank = job->rank;
    if (environment("LOCAL_RANK") != NULL)
        TRY(environment_int("LOCAL_RANK", 0, job->size - 1, &job->local_rank));
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
    struct channel_request request = {.address = environment("CHORALE_CONTROL"),
                                      .deadline = job->deadline,
                                      .failed = options->failed,
                                      .context = options->context,
                                      .told = options->told};
    TRY(control_token_parse(environment("CHORALE_TOKEN"), request.token));
    request.hello.rank = (uint32_t)job->rank;
    request.hello.size = (uint32_t)job->size;
    request.hello.pid = (uint32_t)getpid();
    request.hello.deadline_ms = (uint32_t)ceil(job->deadline * 1e3);
    memcpy(request.hello.host, job->host, sizeof request.hello.host);
    TRY(channel_open(&request, &job->channel));
    outlive_launcher(options);
    return STATUS_OK;
}

static enum status join(struct job *job, const struct job_options *options)
{
    bool control = environment("CHORALE_CONTROL") != NULL, token = environment("CHORALE_TOKEN") != NULL;
    if (gethostname(job->host, sizeof job->host - 1) != 0)
        memcpy(job->host, "localhost", sizeof "localhost"); /* longer names are cut where the system does not */
    TRY(environment_deadline(&job->deadline));
    job->deadline = control_deadline(options->deadline > 0 ? options->deadline : job->deadline);
    if (!control && !token)
        return STATUS_OK;
    if (!control || !token)
        return fail(STATUS_USAGE, "environment: %s is not set although %s is: let the launcher set both",
                    control ? "CHORALE_TOKEN" : "CHORALE_CONTROL", control ? "CHORALE_CONTROL" : "CHORALE_TOKEN");
    TRY(read_place(job));
    return open_channel(job, options);
}

enum status job_join(const struct job_options *options, struct job **out)
{
    static const struct job_options none = {.deadline = 0};
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct job)));
    struct job *job = memory;
    job->size = 1;
    enum status status = join(job, options != NULL ? options : &none);
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
    if (manager->size < 1 || manager->rank < 0 || manager->rank >= manager->size || manager->local_rank < 0)
        return fail(STATUS_INTERNAL, "job: adopted as rank %d of %d", manager->rank, manager->size);
    TRY(memory_zeroed(&memory, 1, sizeof(struct job)));
    struct job *job = memory;
    *job = (struct job){.rank = manager->rank,
                        .size = manager->size,
                        .local_rank = manager->local_rank,
                        .deadline = control_deadline(options != NULL ? options->deadline : 0),
                        .manager = *manager};
    if (gethostname(job->host, sizeof job->host - 1) != 0)
        memcpy(job->host, "localhost", sizeof "localhost");
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

bool job_abort(struct job *job, enum status status, const char *message)
{
    return job->channel != NULL && channel_abort(job->channel, status, message);
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
    free(job);
}
