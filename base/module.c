/* module.c - finding a module, and looking whether it is of this build. */
#define _GNU_SOURCE /* dlopen in a static build's eyes */
#include "base/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum status program_folder(const char *what, char *folder, size_t size)
{
    const ssize_t length = readlink("/proc/self/exe", folder, size - 1);
    if (length <= 0)
        return fail(STATUS_IO, "%s: the program's own path can't be read from /proc/self/exe", what);
    folder[length] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        *slash = '\0';
    return STATUS_OK;
}

static enum status module_path(const struct module_request *request, char *path, size_t size)
{
    char program[PATH_MAX];
    const char *folder = getenv("CHORALE_MODULES"); /* NOLINT(concurrency-mt-unsafe): nobody sets the environment */
    if (folder == NULL || folder[0] == '\0') {
        TRY(program_folder(request->what, program, sizeof program));
        folder = program;
    }
    if (snprintf(path, size, "%s/%s.so", folder, request->file) >= (int)size)
        return fail(STATUS_IO, "%s: the path of its module is too long", request->what);
    return STATUS_OK;
}

enum status module_load(const struct module_request *request, const void **table)
{
    char path[PATH_MAX + 64];
    TRY(module_path(request, path, sizeof path));
    if (access(path, R_OK) != 0)
        return fail(STATUS_UNAVAILABLE, "%s: no module %s: %s", request->what, path, request->cure);
    void *handle = dlopen(path, RTLD_NOW | (request->global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (handle == NULL)
        return fail(STATUS_UNAVAILABLE, "%s: %s", request->what, dlerror());
    const unsigned *version = dlsym(handle, request->symbol);
    if (version == NULL || *version != request->version)
        return fail(STATUS_UNAVAILABLE, "%s: %s belongs to another version of this program: build both anew",
                    request->what, path);
    *table = version;
    return STATUS_OK;
}
