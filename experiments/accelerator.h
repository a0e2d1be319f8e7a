/* accelerator.h - what --device= names: where a worker computes, or where the vectors of a benchmark lie. */
#ifndef CHORALE_EXPERIMENTS_ACCELERATOR_H
#define CHORALE_EXPERIMENTS_ACCELERATOR_H

#include <stdbool.h>

#include "base/status.h"
#include "base/text.h"
#include "comm/device.h"
#include "comm/job.h"
#include "nn/backend.h"

struct accelerator {
    const char *name;                   /* "cpu", "replay", "cuda"                                        */
    const struct backend_ops *backend;  /* that computes there; NULL: the module brings none              */
    const struct device_module *module; /* NULL: host memory                                              */
    int number;                         /* of the card; negative: each worker takes that of its local rank */
    const char *profile;                /* replay: into the text; else NULL                               */
};

/* "cpu", "cuda", "cuda:1", "replay:FILE". A module is loaded, no card is opened. STATUS_USAGE for other words,
 * STATUS_UNAVAILABLE where there is no such module. The text must outlive the accelerator. */
enum status accelerator_parse(const char *text, struct accelerator *accelerator) MUST_CHECK;

/* The card of this worker; *device is NULL for host memory. STATUS_UNAVAILABLE: there is none that works. Closed by
 * device->ops->close(). */
enum status accelerator_open(const struct accelerator *accelerator, const struct job *job,
                             struct device **device) MUST_CHECK;

/* The file that remembers which kernels were fastest on such a device, in the user's cache folder, which is made where it
 * is missing: $XDG_CACHE_HOME/chorale/engines-cuda.txt, or under ~/.cache, or else a folder of the user's in that for
 * temporary files. Nothing where there is none. Appended. */
void accelerator_engines(const struct accelerator *accelerator, struct text *path);

#endif
