/* worker.c - becoming the launcher or a worker, and leaving in order. */
#include "experiments/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/launch.h"
#include "comm/transport.h"
#include "experiments/program.h"

#define SPEAKING_NS UINT64_C(200000000) /* that a rank waits for each rank below it to speak */
#define READING_NS UINT64_C(100000000)  /* that an mpiexec has to read it: MPICH's drops what it has not at an abort */

int worker_count(const struct option_values *options)
{
    return (int)option_int(options, "workers");
}

bool worker_is_one(void)
{
    return job_is_worker();
}

bool worker_launches(const struct option_values *options)
{
    return worker_count(options) > 1 && !worker_is_one();
}

/* ---- the launcher ---- */

/* The running program itself, wherever PATH points by now. */
static void own_program(char *path, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    if (length > 0 && (size_t)length < size - 1)
        path[length] = '\0';
    else
        snprintf(path, size, "/proc/self/exe");
    if (access(path, X_OK) != 0) /* replaced since it was started */
        snprintf(path, size, "/proc/self/exe");
}

double worker_deadline(const struct option_values *options)
{
    const char *text = getenv("CHORALE_DEADLINE");
    double seconds = 0;
    if (option_given(options, "deadline") || text == NULL || parse_real(text, &seconds) != STATUS_OK || !(seconds > 0))
        return option_real(options, "deadline");
    return seconds;
}

int worker_launch(int workers, double deadline, int argc, char **argv)
{
    char program[4096];
    own_program(program, sizeof program);
    void *words = NULL;
    enum status status = memory_zeroed(&words, (size_t)argc + 2, sizeof(char *));
    if (status < 0)
        return program_error(status);
    char **command = words; /* chorale train ... */
    command[0] = program;
    for (int i = 0; i < argc; i++)
        command[i + 1] = argv[i];

    struct launch_request request = {
        .workers = workers, .argv = command, .deadline = deadline, .must_join = true, .note = program_note};
    struct launch_result result;
    status = launch_local(&request, &result);
    free(words);
    if (status < 0)
        return program_error(status);
    if (result.message[0] != '\0')
        fprintf(stderr, "chorale: %s\n", result.message);
    return result.exit_code;
}

/* ---- a worker ---- */

/* The job is over without our doing. Runs in the job's thread while the main thread may be anywhere: no locks, no exit
 * handlers. */
static void job_failed(void *context, enum status status, const char *message, bool speak)
{
    (void)context;
    if (speak)
        fprintf(stderr, "chorale: %s\n", message);
    job_remove_leftovers((long)getpid());
    _exit(status_exit_code(status)); /* that of the worker whose failure it is, whoever is first */
}

enum { NETWORK_OPTIONS = 5, NETWORK_BYTES = 64 };

static const char *const network_options[NETWORK_OPTIONS] = {"transport", "provider", "segment", "window", "nodes"};

static void network_value(const struct option_values *options, const char *key, char value[NETWORK_BYTES])
{
    const char *text = option_text(options, key);
    if (strcmp(key, "segment") == 0 && option_given(options, key)) /* 1M is 1048576 */
        (void)snprintf(value, NETWORK_BYTES, "%zu", option_size(options, key));
    else
        (void)snprintf(value, NETWORK_BYTES, "%s", text != NULL ? text : "the usual one");
}

/* Collective: what decides how workers talk to each other is named where it differs, before they try. */
static enum status agree_on_network(const struct option_values *options, struct job *job)
{
    typedef char values[NETWORK_OPTIONS][NETWORK_BYTES];
    enum status status = STATUS_OK;
    const int size = job_size(job);
    values mine = {{0}}, *all = NULL;
    void *memory = NULL;
    for (size_t k = 0; k < NETWORK_OPTIONS; k++)
        network_value(options, network_options[k], mine[k]);
    TRY(memory_zeroed(&memory, (size_t)size, sizeof mine));
    all = memory;
    TRY_TO(done, job_allgather(job, mine, sizeof mine, all));
    for (size_t k = 0; k < NETWORK_OPTIONS; k++)
        for (int rank = 1; status >= 0 && rank < size; rank++)
            if (memcmp(all[0][k], all[rank][k], NETWORK_BYTES) != 0)
                status = fail(STATUS_MISMATCH,
                              "--%s=%.*s of rank 0, %.*s of rank %d: start all workers with the same options",
                              network_options[k], NETWORK_BYTES, all[0][k], NETWORK_BYTES, all[rank][k], rank);
done:
    free(memory);
    return status;
}

static enum status open_transport(const struct option_values *options, struct job *job, struct transport **transport)
{
    const char *name = option_text(options, "transport");
    const char *provider = option_text(options, "provider");
    int size = job_size(job);
    bool alone = size == 1 && provider == NULL && strcmp(name, "auto") == 0; /* nobody to talk to */
    if (alone || strcmp(name, "loopback") == 0) {
        if (size > 1)
            return fail(STATUS_REFUSED,
                        "--transport=loopback: connects nothing beyond its own process, and this job has %d workers: "
                        "take --transport=auto",
                        size);
        return loopback_open(1, LOOPBACK_IN_ORDER, 0, transport);
    }
    /* libfabric's psm library would take over signal handlers */
    if (setenv("IPATH_NO_BACKTRACE", "1", 0) != 0)
        return fail(STATUS_NO_MEMORY, "out of memory: the environment");
    struct fabric_request request = {
        .job = job, .name = name, .provider = provider, .interface = option_text(options, "interface")};
    return fabric_open(&request, transport);
}

/* Nothing may pass by it: other libraries' collectives are refused (library.c). */
static enum status read_inject(const struct option_values *options, struct worker *worker)
{
    const char *text = option_text(options, "inject");
    void *memory = NULL;
    if (text == NULL || text[0] == '\0')
        return STATUS_OK;
    TRY(memory_zeroed(&memory, 1, sizeof(struct inject)));
    worker->inject = memory;
    return inject_parse(text, worker->inject);
}

static enum status open_comm(const struct option_values *options, bool progress_thread, struct worker *worker)
{
    struct transport *transport = NULL;
    TRY(read_inject(options, worker));
    TRY(agree_on_network(options, worker->job));
    TRY(open_transport(options, worker->job, &transport));
    if (worker->inject != NULL)
        TRY(inject_open(worker->inject, (uint64_t)option_int(options, "seed"), transport, &transport));
    struct comm_request request = {.transport = transport,
                                   .note = program_note,
                                   .job = worker->job,
                                   .device = worker->device,
                                   .segment = option_size(options, "segment"),
                                   .window = (unsigned)option_int(options, "window"),
                                   .deadline = worker_deadline(options),
                                   .progress_thread = progress_thread};
    return comm_open(&request, &worker->comm);
}

/* Our launcher comes first: it may itself have been started under an mpiexec. */
static enum status join(const struct job_options *options, unsigned wants, struct worker *worker)
{
    const bool external = (wants & WORKER_EXTERNAL) != 0 && !job_is_launched_here();
    const char *manager = external ? external_manager() : NULL;
    if (manager == NULL)
        return job_join(options, &worker->job);
    fabric_set_environment(); /* it may be the first that calls libfabric */
    TRY(external_open(manager, &worker->library));
    return external_job(worker->library, options, &worker->job);
}

enum status worker_open(const struct option_values *options, int workers, unsigned wants,
                        const struct accelerator *accelerator, struct worker *worker)
{
    *worker = (struct worker){.job = NULL};
    struct job_options job = {.deadline = worker_deadline(options),
                              .failed = job_failed,
                              .note = program_note,
                              .interface = option_text(options, "interface"),
                              .told = &worker->told};
    if (workers == 0 && !job_is_worker())
        TRY(job_check_alone());
    TRY(join(&job, wants, worker));
    int size = job_size(worker->job);
    if (workers > 0 && workers != size)
        return fail(STATUS_USAGE,
                    "-n %d: the job that started this program has %d worker%s: give -n %d or leave it out", workers,
                    size, plural((size_t)size), size);
    const char *nodes = option_text(options, "nodes");
    if (nodes != NULL)
        TRY(layout_parse(nodes, size, &worker->layout));
    else
        TRY(layout_copy(job_layout(worker->job), &worker->layout));
    TRY(placement_make(options, worker->job, (wants & WORKER_COMPUTES) != 0, &worker->placement));
    if (accelerator != NULL)
        TRY(accelerator_open(accelerator, worker->job, &worker->device));
    const bool spare =
        worker->placement.spare || worker->device != NULL || (accelerator != NULL && accelerator->profile != NULL);
    return open_comm(options, (wants & WORKER_PROGRESS) != 0 && spare, worker);
}

/* Everyone has all its bytes before anyone's endpoint goes. */
static enum status leave(struct worker *worker)
{
    TRY(job_barrier(worker->job));
    comm_close(worker->comm);
    worker->comm = NULL;
    return job_leave(worker->job);
}

static void say_failure(struct worker *worker, enum status status)
{
    fail_context(status, "rank %d on %s", job_rank(worker->job), job_host(worker->job));
    if (job_abort(worker->job, status, status_message()))
        return;
    if (worker->library != NULL) /* what fails here mostly fails everywhere: let the lowest rank say it */
        clock_sleep_ns((uint64_t)job_rank(worker->job) * SPEAKING_NS);
    fprintf(stderr, "chorale: %s\n", status_message());
    if (worker->library != NULL) {
        clock_sleep_ns(READING_NS);
        job_remove_leftovers((long)getpid());
        external_abort(worker->library, status_exit_code(status));
    }
}

int worker_close(struct worker *worker, enum status status)
{
    if (worker->job == NULL && worker->told)
        return status_exit_code(status);
    if (worker->job == NULL)
        return status < 0 ? program_error(status) : 0;
    if (status >= 0)
        status = leave(worker);
    if (status < 0)
        say_failure(worker, status);
    comm_close(worker->comm);
    if (worker->device != NULL)
        worker->device->ops->close(worker->device);
    job_destroy(worker->job);
    external_close(worker->library);
    layout_release(&worker->layout);
    free(worker->inject);
    placement_release(&worker->placement);
    if (status < 0)
        job_remove_leftovers((long)getpid());
    *worker = (struct worker){.job = NULL};
    return status_exit_code(status);
}
