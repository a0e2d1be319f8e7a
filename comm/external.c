/* external.c - loading a module, and calling it with our status instead of its message. */
#include "comm/external.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/module.h"

struct external_library {
    const struct external_module *module;
    struct external_place place;
    char stem[32];
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
                                                   "configuration (Debian: libopenmpi-dev, libmpich-dev)",
                                           .global = true}; /* Open MPI's own plug-ins look for its symbols */
    const void *table = NULL;
    TRY(module_load(&request, &table));
    library->module = table;
    return STATUS_OK;
}

enum status external_open(const char *stem, struct external_library **out)
{
    enum status status = STATUS_OK;
    char message[EXTERNAL_MESSAGE_BYTES] = "";
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct external_library)));
    struct external_library *library = memory;
    snprintf(library->stem, sizeof library->stem, "%s", stem);
    TRY_TO(done, load(stem, library));
    if (library->module->open(&library->place, message) != 0)
        TRY_TO(done, fail(STATUS_UNAVAILABLE, "external %s: %s", stem, message));
    *out = library;
done:
    if (status < 0) /* what has been loaded stays: an MPI does not survive its unloading */
        free(library);
    return status;
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
    if (library->module->allreduce(input, output, count, dtype, op, message) != 0)
        return fail(STATUS_IO, "external %s: %s", library->stem, message);
    return STATUS_OK;
}

void external_describe(const struct external_library *library, struct text *text)
{
    char words[EXTERNAL_MESSAGE_BYTES] = "";
    library->module->describe(words, sizeof words);
    text_add(text, words);
}

void external_abort(struct external_library *library, int exit_code)
{
    library->module->abort(exit_code);
}

void external_close(struct external_library *library)
{
    if (library == NULL)
        return;
    library->module->close();
    free(library);
}
