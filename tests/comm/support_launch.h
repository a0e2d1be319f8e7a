/* support_launch.h - for tests of job and launcher: a launcher in a process of its own, and looking at processes. */
#ifndef CHORALE_TESTS_COMM_SUPPORT_LAUNCH_H
#define CHORALE_TESTS_COMM_SUPPORT_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "comm/launch.h"

enum { FOLDER_BYTES = 64 };

/* A short deadline may pass on a loaded machine before the workers have come to what is tested. What then ends the job says
 * so, and the test goes on with a longer one. */
enum { DEADLINE_TURNS = 4 };
#define DEADLINE_OF(turn, first) ((first) * (1 << (2 * (turn))))

/* A fresh folder under /tmp; removed with folder_remove(), files and all. */
bool folder_make(char folder[FOLDER_BYTES]);
void folder_remove(const char *folder);
void folder_path(const char *folder, const char *name, char *path, size_t size);
bool folder_touch(const char *folder, const char *name);
/* The number in FOLDER/RANK+suffix, awaited for up to 30 s; -1 when it does not come. */
long folder_number(const char *folder, int rank, const char *suffix);

/* A launcher that runs in a child of this process. */
struct background {
    pid_t pid;
    int pipe;
    int unwanted; /* before the start: a descriptor that the launcher shall not hold open; 0: none */
};

struct outcome {
    enum status status;
    char why[1024]; /* status_message() */
    struct launch_result result;
};

bool background_start(struct background *background, const struct launch_request *request);
/* False when the launcher ended without an outcome (killed). */
bool background_wait(struct background *background, struct outcome *outcome);

/* The process has ended; one that nobody has reaped yet counts. */
bool process_gone(long pid);
/* Seconds until all are gone; more than `limit` when they are not. */
double processes_gone_after(const long *pids, int count, double limit);
/* Whether /dev/shm holds the file that worker_job makes. */
bool leftover_exists(long pid);
int open_descriptors(void);

#endif
