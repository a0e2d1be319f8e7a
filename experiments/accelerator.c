/* accelerator.c - the words of --device=, and the modules behind them. */
#include "experiments/accelerator.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

static const char *const modules[] = {"cuda"};
static const char replay[] = "replay:";

enum { HIGHEST_NUMBER = 255 };

static enum status unknown(const char *text)
{
    return fail(STATUS_USAGE, "--device=%s: take cpu, cuda, cuda:NUMBER, or replay:FILE", text);
}

/* What follows a module's name: nothing, or ":1". */
static enum status read_number(const char *text, const char *rest, int *number)
{
    char *end = NULL;
    *number = -1;
    if (*rest == '\0')
        return STATUS_OK;
    if (rest[0] != ':' || rest[1] < '0' || rest[1] > '9')
        return unknown(text);
    const long value = strtol(rest + 1, &end, 10);
    if (*end != '\0' || value > HIGHEST_NUMBER)
        return unknown(text);
    *number = (int)value;
    return STATUS_OK;
}

enum status accelerator_parse(const char *text, struct accelerator *accelerator)
{
    *accelerator = (struct accelerator){.name = "cpu", .backend = &backend_cpu, .number = -1};
    if (strcmp(text, "cpu") == 0)
        return STATUS_OK;
    if (strncmp(text, replay, sizeof replay - 1) == 0 && text[sizeof replay - 1] != '\0') {
        *accelerator = (struct accelerator){
            .name = "replay", .backend = &backend_replay, .number = -1, .profile = text + sizeof replay - 1};
        return STATUS_OK;
    }
    for (size_t k = 0; k < sizeof modules / sizeof modules[0]; k++) {
        const size_t length = strlen(modules[k]);
        if (strncmp(text, modules[k], length) != 0 || (text[length] != '\0' && text[length] != ':'))
            continue;
        accelerator->name = modules[k];
        TRY(read_number(text, text + length, &accelerator->number));
        TRY(device_module_load(modules[k], &accelerator->module));
        accelerator->backend = accelerator->module->backend;
        return STATUS_OK;
    }
    return unknown(text);
}

enum status accelerator_open(const struct accelerator *accelerator, const struct job *job, struct device **device)
{
    *device = NULL;
    if (accelerator->module == NULL)
        return STATUS_OK;
    const struct device_request request = {.number = accelerator->number, .local_rank = job_local_rank(job)};
    return accelerator->module->open(&request, device);
}

static const char *variable(const char *name)
{
    const char *value = getenv(name); /* NOLINT(concurrency-mt-unsafe): nobody sets the environment */
    return value != NULL && value[0] == '/' ? value : NULL;
}

/* In a folder where all may write: whoever comes first takes any name, so only what is this user's, and closed to the
 * others, is used. */
static bool make_own_folder(const char *path)
{
    struct stat found;
    (void)mkdir(path, 0700);
    return lstat(path, &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid() &&
           (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

void accelerator_engines(const struct accelerator *accelerator, struct text *path)
{
    const char *cache = variable("XDG_CACHE_HOME"), *home = variable("HOME"), *temporary = variable("TMPDIR");
    struct text folder = {0};
    if (cache != NULL)
        text_addf(&folder, "%s/chorale", cache);
    else if (home != NULL)
        text_addf(&folder, "%s/.cache/chorale", home);
    bool usable = folder.length > 0 && !folder.failed && folder_create(text_string(&folder)) == STATUS_OK;
    if (!usable) {
        text_release(&folder);
        text_addf(&folder, "%s/chorale-%lu", temporary != NULL ? temporary : "/tmp", (unsigned long)geteuid());
        usable = !folder.failed && make_own_folder(text_string(&folder));
    }
    if (usable)
        text_addf(path, "%s/engines-%s.txt", text_string(&folder), accelerator->name);
    text_release(&folder);
}
