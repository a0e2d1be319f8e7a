/* external.c - loading a module, and calling it with our status instead of its message. */
#include "comm/external.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/module.h"

struct external_library {
    const struct external_module *module;
    struct external_place place;
    char stem[32];
    struct device *device; /* in whose memory its vectors lie; NULL: host memory */
    struct job *job;       /* that it was given; NULL: it brings one           */
    struct external_given given;
};

static bool is_set(const char *name)
{
    const char *value = getenv(name); /* NOLINT(concurrency-mt-unsafe): nobody sets the environment meanwhile */
    return value != NULL && value[0] != '\0';
}

const char *external_manager(void)
{
    if (is_set("OMPI_COMM_WORLD_RANK") && is_set("OMPI_COMM_WORLD_SIZE"))
        return "openmpi";
    if (is_set("PMI_RANK") && is_set("PMI_SIZE"))
        return "mpich";
    return NULL;
}

static enum status load(const char *stem, struct external_library *library)
{
    char what[48], file[64];
    snprintf(what, sizeof what, "external %s", stem);
    snprintf(file, sizeof file, "chorale-external-%s", stem);
    const struct module_request request = {.what = what,
                                           .file = file,
                                           .symbol = EXTERNAL_SYMBOL,
                                           .version = EXTERNAL_VERSION,
                                           .cure = "it is built when the library's development files are installed at "
                                                   "configuration (Debian: libopenmpi-dev, libmpich-dev; NCCL with the "
                                                   "CUDA toolkit)",
                                           .global = true}; /* Open MPI's own plug-ins look for its symbols */
    const void *table = NULL;
    TRY(module_load(&request, &table));
    library->module = table;
    return STATUS_OK;
}

static enum status create(const char *stem, struct external_library **out)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct external_library)));
    struct external_library *library = memory;
    snprintf(library->stem, sizeof library->stem, "%s", stem);
    const enum status status = load(stem, library);
    if (status < 0)
        free(library);
    else
        *out = library;
    return status;
}

/* After a failure what has been loaded stays: an MPI does not survive its unloading. */
enum status external_open(const char *stem, struct external_library **out)
{
    char message[EXTERNAL_MESSAGE_BYTES] = "";
    struct external_library *library = NULL;
    TRY(create(stem, &library));
    if (library->module->open == NULL || library->module->open(&library->place, message) != 0) {
        free(library);
        return fail(STATUS_UNAVAILABLE, "external %s: %s", stem, message);
    }
    *out = library;
    return STATUS_OK;
}

/* ---- a job that it is given ---- */

static int gather_for(void *context, const void *mine, size_t bytes, void *all, char *message)
{
    if (job_allgather(context, mine, bytes, all) >= 0)
        return 0;
    snprintf(message, EXTERNAL_MESSAGE_BYTES, "%s", status_message());
    return 1;
}

enum status external_join(const char *stem, struct job *job, struct device *device, struct external_library **out)
{
    char message[EXTERNAL_MESSAGE_BYTES] = "";
    struct external_library *library = NULL;
    TRY(create(stem, &library));
    library->job = job;
    library->device = device;
    library->place =
        (struct external_place){.rank = job_rank(job), .size = job_size(job), .local_rank = job_local_rank(job)};
    library->given = (struct external_given){
        .place = library->place, .device = device->number, .gather = gather_for, .context = job};
    if (library->module->join == NULL || library->module->join(&library->given, message) != 0) {
        free(library);
        return fail(STATUS_REFUSED, "external %s: %s", stem, message);
    }
    *out = library;
    return STATUS_OK;
}

/* ---- the job that it brings ---- */

static enum status gather(void *context, const void *mine, size_t bytes, void *all)
{
    char message[EXTERNAL_MESSAGE_BYTES] = "";
    const struct external_library *library = context;
    if (library->module->gather(mine, bytes, all, message) != 0)
        return fail(STATUS_IO, "external %s: %s", library->stem, message);
    return STATUS_OK;
}

enum status external_job(struct external_library *library, const struct job_options *options, struct job **job)
{
    const struct job_manager manager = {.rank = library->place.rank,
                                        .size = library->place.size,
                                        .local_rank = library->place.local_rank,
                                        .allgather = gather,
                                        .context = library};
    return job_adopt(&manager, options, job);
}

/* ---- calls ---- */

enum status external_allreduce(struct external_library *library, const void *input, void *output, size_t count,
                               enum dtype dtype, enum reduce_op op)
{
    char message[EXTERNAL_MESSAGE_BYTES] = "";
    struct device *device = library->device;
    void *queue = device != NULL ? device->ops->native(device->ops->compute(device)) : NULL;
    if (library->module->allreduce(input, output, count, dtype, op, queue, message) != 0)
        return fail(STATUS_IO, "external %s: %s", library->stem, message);
    return STATUS_OK;
}

#define EAGER_NS 2000000U /* that are waited without sleeping */
#define PAUSE_NS 20000U

static enum status check_library(const struct external_library *library)
{
    char message[EXTERNAL_MESSAGE_BYTES] = "";
    TRY(job_check(library->job));
    if (library->module->check == NULL || library->module->check(message) == 0)
        return STATUS_OK;
    return fail(STATUS_IO, "external %s: %s", library->stem, message);
}

enum status external_wait(struct external_library *library, struct device_event *event)
{
    const struct device_ops *ops = library->device->ops;
    const uint64_t began_ns = clock_ns();
    const double deadline = job_deadline(library->job);
    for (;;) {
        const enum status status = ops->query(event);
        if (status != STATUS_AGAIN)
            return status;
        const uint64_t waited_ns = clock_ns() - began_ns;
        if (waited_ns < EAGER_NS)
            continue;
        TRY(check_library(library));
        if ((double)waited_ns * 1e-9 > deadline)
            return fail(STATUS_TIMEOUT,
                        "external %s: not done within %g s: another worker does not make the same call, or hangs",
                        library->stem, deadline);
        clock_sleep_ns(PAUSE_NS);
    }
}

void external_describe(const struct external_library *library, struct text *text)
{
    char words[EXTERNAL_MESSAGE_BYTES] = "";
    library->module->describe(words, sizeof words);
    text_add(text, words);
}

void external_abort(struct external_library *library, int exit_code)
{
    if (library->module->abort != NULL)
        library->module->abort(exit_code);
}

void external_close(struct external_library *library)
{
    if (library == NULL)
        return;
    library->module->close();
    free(library);
}
