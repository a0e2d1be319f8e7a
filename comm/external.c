/* external.c - loading a module, and calling it with our status instead of its message. */
#define _GNU_SOURCE /* dlopen in a static build's eyes */
#include "comm/external.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"

struct external_library {
    void *handle;
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

/* chorale-external-STEM.so in the program's folder. */
static enum status module_path(const char *stem, char *path, size_t size)
{
    char program[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0)
        return fail(STATUS_IO, "external %s: the program's own path can't be read from /proc/self/exe", stem);
    program[length] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL)
        *slash = '\0';
    if (snprintf(path, size, "%s/chorale-external-%s.so", program, stem) >= (int)size)
        return fail(STATUS_IO, "external %s: the path of its module is too long", stem);
    return STATUS_OK;
}

static enum status load(const char *stem, struct external_library *library)
{
    char path[PATH_MAX + 64];
    TRY(module_path(stem, path, sizeof path));
    if (access(path, R_OK) != 0)
        return fail(STATUS_UNAVAILABLE,
                    "external %s: no module %s: it is built when the library's development files are installed at "
                    "configuration (Debian: libopenmpi-dev, libmpich-dev)",
                    stem, path);
    library->handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* global: Open MPI's own plug-ins look for its symbols */
    if (library->handle == NULL)
        return fail(STATUS_UNAVAILABLE, "external %s: %s", stem, dlerror());
    library->module = dlsym(library->handle, EXTERNAL_SYMBOL);
    if (library->module == NULL || library->module->version != EXTERNAL_VERSION)
        return fail(STATUS_UNAVAILABLE, "external %s: %s belongs to another version of this program: build both anew",
                    stem, path);
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
