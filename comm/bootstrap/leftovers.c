/* leftovers.c - the files in /dev/shm that libfabric's shm provider leaves when a process is killed. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/job.h"

void job_remove_leftovers(long pid)
{
    char prefix[64];
    if (pid <= 1)
        return;
    int length = snprintf(prefix, sizeof prefix, "%ld:%lu:", pid, (unsigned long)getuid());
    DIR *folder = length > 0 ? opendir("/dev/shm") : NULL;
    if (folder == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (strncmp(entry->d_name, prefix, (size_t)length) == 0)
            (void)unlinkat(dirfd(folder), entry->d_name, 0); /* gone already, or not ours: both are fine */
    }
    closedir(folder);
}
