/* shared_memory.h - whether workers can talk over shm here: a container may have 64 MiB for all that runs in it. */
#ifndef CHORALE_TESTS_BASE_SHARED_MEMORY_H
#define CHORALE_TESTS_BASE_SHARED_MEMORY_H

#include <criterion/criterion.h>
#include <sys/statvfs.h>

/* libfabric takes 18 MiB for each worker; other suites run beside this one. */
#define SHARED_MEMORY_MIB 24

/* Skips the test where /dev/shm has no room for so many workers. */
static inline void need_shared_memory(int workers)
{
    struct statvfs room;
    const bool known = statvfs("/dev/shm", &room) == 0;
    const int free = known ? (int)(((unsigned long long)room.f_bavail * room.f_frsize) >> 20) : 0;
    if (free < workers * SHARED_MEMORY_MIB)
        cr_skip_test("/dev/shm has %d MiB free, %d workers over shm need %d", free, workers,
                     workers * SHARED_MEMORY_MIB);
}

#endif
