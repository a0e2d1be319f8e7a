/* topology.c - reading the cores, and sharing them out. */
#include "comm/topology.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#ifdef CHORALE_HWLOC
#include <hwloc.h>
#endif

/* ---- reading ---- */

/* A core is added where it has CPUs; sockets and NUMA nodes are numbered in the end. */
static void add_core(struct topology *topology, const struct topology_core *core)
{
    if (host_cpus_count(&core->cpus) > 0)
        topology->core[topology->cores++] = *core;
}

#ifdef CHORALE_HWLOC

const char *topology_library(void)
{
    return CHORALE_HWLOC;
}

static void take_core(struct topology *topology, hwloc_topology_t machine, hwloc_obj_t object,
                      const struct host_cpus *allowed)
{
    struct topology_core core = {.socket = 0};
    const hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(machine, HWLOC_OBJ_PACKAGE, object);
    int cpu;
    core.socket = package != NULL ? (int)package->logical_index : 0;
    core.numa = hwloc_bitmap_first(object->nodeset);
    for (cpu = hwloc_bitmap_first(object->cpuset); cpu >= 0 && cpu < HOST_CPUS;
         cpu = hwloc_bitmap_next(object->cpuset, cpu))
        if (host_cpus_has(allowed, (unsigned)cpu))
            host_cpus_add(&core.cpus, (unsigned)cpu);
    add_core(topology, &core);
}

/* hwloc loads all plugins that it finds when it is first used. */
static int load_machine(hwloc_topology_t *machine)
{
    static const char variable[] = "HWLOC_PLUGINS_PATH";
    const char *was = getenv(variable); /* NOLINT(concurrency-mt-unsafe): see the header */
    if (was == NULL && setenv(variable, "/", 1) != 0)
        return -1;
    const int failed = hwloc_topology_init(machine);
    if (was == NULL)
        (void)unsetenv(variable);
    if (failed == 0 && hwloc_topology_load(*machine) == 0)
        return 0;
    if (failed == 0)
        hwloc_topology_destroy(*machine);
    return -1;
}

static void read_cores(struct topology *topology, const struct host_cpus *allowed)
{
    hwloc_topology_t machine;
    hwloc_obj_t object = NULL;
    if (load_machine(&machine) != 0)
        return;
    const bool cores = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_CORE) > 0;
    while ((object = hwloc_get_next_obj_by_type(machine, cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU, object)) != NULL)
        if (topology->cores < HOST_CPUS)
            take_core(topology, machine, object, allowed);
    hwloc_topology_destroy(machine);
}

#else

const char *topology_library(void)
{
    return NULL;
}

static void read_cores(struct topology *topology, const struct host_cpus *allowed)
{
    (void)topology;
    (void)allowed;
}

#endif

static void add_rest(struct topology *topology, const struct host_cpus *allowed)
{
    struct host_cpus known = {{0}};
    for (int i = 0; i < topology->cores; i++)
        host_cpus_join(&known, &topology->core[i].cpus);
    for (unsigned cpu = 0; cpu < HOST_CPUS && topology->cores < HOST_CPUS; cpu++) {
        struct topology_core core = {.socket = 0};
        if (host_cpus_has(allowed, cpu) && !host_cpus_has(&known, cpu))
            host_cpus_add(&core.cpus, cpu);
        add_core(topology, &core);
    }
}

/* By first appearance, from 0. */
static int number_anew(struct topology *topology, size_t field)
{
    int count = 0;
    int was[HOST_CPUS];
    for (int i = 0; i < topology->cores; i++) {
        int *number = (int *)(void *)((char *)&topology->core[i] + field);
        int k = 0;
        while (k < count && was[k] != *number)
            k++;
        if (k == count)
            was[count++] = *number;
        *number = k;
    }
    return count;
}

enum status topology_read(const struct host_cpus *allowed, struct topology *topology)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, HOST_CPUS, sizeof(struct topology_core)));
    *topology = (struct topology){.core = memory};
    read_cores(topology, allowed);
    add_rest(topology, allowed);
    topology->sockets = number_anew(topology, offsetof(struct topology_core, socket));
    topology->numas = number_anew(topology, offsetof(struct topology_core, numa));
    return STATUS_OK;
}

void topology_release(struct topology *topology)
{
    free(topology->core);
    *topology = (struct topology){.core = NULL};
}

/* ---- sharing out ---- */

static const char *why_not(const struct bind_request *request, const struct topology *topology)
{
    const int wanted = request->size * request->threads;
    if (request->by_openmp)
        return "OpenMP's variables place threads";
    if (request->bound)
        return "bound by the launcher";
    if (request->size == 1)
        return "alone";
    if (wanted > topology->cores)
        return "fewer cores than threads";
    if (request->quota > 0 && request->quota < wanted)
        return "the container has less time than that";
    if (2 * wanted <= topology->cores)
        return "half of the cores or more are free";
    return NULL;
}

static void take_cores(const struct bind_request *request, const struct topology *topology, struct host_cpus *cpus)
{
    const int first = request->rank * topology->cores / request->size;
    const int end = (request->rank + 1) * topology->cores / request->size;
    for (int i = first; i < end; i++)
        host_cpus_join(cpus, &topology->core[i].cpus);
}

static void take_socket(const struct bind_request *request, const struct topology *topology, struct host_cpus *cpus)
{
    const int socket = request->rank * topology->sockets / request->size;
    for (int i = 0; i < topology->cores; i++)
        if (topology->core[i].socket == socket)
            host_cpus_join(cpus, &topology->core[i].cpus);
}

enum status bind_plan(const struct bind_request *request, const struct topology *topology, struct host_cpus *cpus,
                      const char **why)
{
    *cpus = (struct host_cpus){{0}};
    *why = "as --bind=none says";
    if (request->bind == BIND_NONE)
        return STATUS_OK;
    *why = "the machine has too many CPUs";
    if (topology->cores == 0)
        return STATUS_OK;
    *why = request->bind == BIND_AUTO ? why_not(request, topology) : NULL;
    if (*why != NULL)
        return STATUS_OK;
    if (request->bind == BIND_SOCKET) {
        take_socket(request, topology, cpus);
        return STATUS_OK;
    }
    if (request->size > topology->cores)
        return fail(STATUS_REFUSED, "--bind=core: %d workers share %d core%s: take --bind=none, or fewer workers",
                    request->size, topology->cores, topology->cores == 1 ? "" : "s");
    take_cores(request, topology, cpus);
    return STATUS_OK;
}

int bind_threads(const struct topology *topology, int sharers, double quota)
{
    const int cores = topology->cores > 0 ? topology->cores : host_cores();
    const double time = quota > 0 && quota < cores ? quota : cores;
    const int share = (int)(time / sharers);
    return share > 1 ? share : 1;
}
