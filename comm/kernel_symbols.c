/* kernel_symbols.c - see kernel_symbols.h. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "comm/kernel_symbols.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static atomic_bool hidden;

void kernel_symbols_hide(bool hide)
{
    atomic_store(&hidden, hide && access("/sys/class/infiniband", F_OK) != 0);
}

FILE *fopen(const char *restrict path, const char *restrict mode)
{
    FILE *(*next)(const char *restrict, const char *restrict) = NULL;
    void *const found = dlsym(RTLD_NEXT, "fopen");
    memcpy(&next, &found, sizeof next);
    if (next == NULL || (atomic_load(&hidden) && strcmp(path, "/proc/kallsyms") == 0)) {
        errno = ENOENT;
        return NULL;
    }
    return next(path, mode);
}
