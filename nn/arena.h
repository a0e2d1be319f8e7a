/* arena.h - flat vectors of floats where a backend computes: in host memory, or in the memory of a device. */
#ifndef CHORALE_NN_ARENA_H
#define CHORALE_NN_ARENA_H

#include <stddef.h>

#include "base/status.h"
#include "comm/comm.h"
#include "comm/device.h"

/* Where arenas lie. Nothing is owned. */
struct place {
    struct comm *comm;     /* whose collectives they travel in */
    struct device *device; /* NULL: host memory                */
};

/* Zeroed, where workers of a node can read it in place if they share memory. Goes with arena_destroy(), or with the comm. */
enum status arena_create(const struct place *place, size_t count, float **arena) MUST_CHECK;
void arena_destroy(const struct place *place, float *arena); /* accepts NULL; nothing may be using it */

/* `count` elements between an arena (from any element on) and host memory. After what the device's compute queue was given
 * before; blocks until done. */
enum status arena_write(const struct place *place, float *arena, const float *host, size_t count) MUST_CHECK;
enum status arena_read(const struct place *place, const float *arena, float *host, size_t count) MUST_CHECK;

#endif
