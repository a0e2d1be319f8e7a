/* routes.c - a hash table of routes. */
#include "algos/routes.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define NONE UINT32_MAX

static size_t place_of(const struct routes *routes, int src, int dst, uint16_t lane)
{
    const size_t mask = routes->table_size - 1;
    const uint64_t key = ((uint64_t)lane << 48) ^ ((uint64_t)(uint32_t)src << 24) ^ (uint32_t)dst;
    size_t i = (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & mask;
    while (routes->table[i] != NONE) {
        const struct route *route = &routes->route[routes->table[i]];
        if (route->src == src && route->dst == dst && route->lane == lane)
            break;
        i = (i + 1) & mask;
    }
    return i;
}

static enum status grow(struct routes *routes)
{
    const size_t size = routes->table_size == 0 ? 64 : routes->table_size * 2;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, size, sizeof(uint32_t)));
    memset(memory, 0xff, size * sizeof(uint32_t)); /* NONE */
    free(routes->table);
    routes->table = memory;
    routes->table_size = size;
    for (size_t i = 0; i < routes->count; i++)
        routes->table[place_of(routes, routes->route[i].src, routes->route[i].dst, routes->route[i].lane)] =
            (uint32_t)i;
    return STATUS_OK;
}

enum status routes_find(struct routes *routes, int src, int dst, uint16_t lane, uint32_t *number)
{
    if ((routes->count + 1) * 2 > routes->table_size)
        TRY(grow(routes));
    const size_t place = place_of(routes, src, dst, lane);
    if (routes->table[place] == NONE) {
        void *memory = routes->route;
        TRY(memory_grow(&memory, &routes->capacity, routes->count + 1, sizeof(struct route)));
        routes->route = memory;
        routes->route[routes->count] = (struct route){.src = src, .dst = dst, .lane = lane};
        routes->table[place] = (uint32_t)routes->count++;
    }
    *number = routes->table[place];
    return STATUS_OK;
}

void routes_release(struct routes *routes)
{
    free(routes->route);
    free(routes->table);
    *routes = (struct routes){0};
}
