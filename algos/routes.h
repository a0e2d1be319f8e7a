/* routes.h - numbers 0, 1, 2, ... for the channels (sender, receiver, lane) of a team, in the order of first use. */
#ifndef CHORALE_ALGOS_ROUTES_H
#define CHORALE_ALGOS_ROUTES_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct route {
    int src, dst;
    uint16_t lane;
};

/* A zeroed one is empty and valid; fields may be read. */
struct routes {
    struct route *route;
    size_t count, capacity;
    uint32_t *table; /* open addressing, a power of two: place -> number */
    size_t table_size;
};

/* The number of a route; a new one gets number `count`, and `count` grows. */
enum status routes_find(struct routes *routes, int src, int dst, uint16_t lane, uint32_t *number) MUST_CHECK;
void routes_release(struct routes *routes);

#endif
