/* leftovers.c - the files in /dev/shm that libfabric's shm provider leaves when a process is killed. */
#define _GNU_SOURCE /* F_SETLEASE */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/job.h"

/* A lease for reading is refused while anybody, in whatever container, has the file open or mapped for writing. */
static bool is_in_use(int folder, const char *name)
{
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return true;
    bool in_use = fcntl(fd, F_SETLEASE, F_RDLCK) != 0;
    (void)close(fd);
    return in_use;
}

static void remove_files(long pid, bool stale_only)
{
    char prefix[64];
    if (pid <= 1)
        return;
    int length = snprintf(prefix, sizeof prefix, "%ld:%lu:", pid, (unsigned long)getuid());
    DIR *folder = length > 0 ? opendir("/dev/shm") : NULL;
    if (folder == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (strncmp(entry->d_name, prefix, (size_t)length) == 0 &&
            (!stale_only || !is_in_use(dirfd(folder), entry->d_name)))
            (void)unlinkat(dirfd(folder), entry->d_name, 0); /* gone already, or not ours: both are fine */
    }
    closedir(folder);
}

void job_remove_leftovers(long pid)
{
    remove_files(pid, false);
}

void job_remove_stale(long pid)
{
    remove_files(pid, true);
}
