/* topology.h - the cores that a process may run on, as hwloc sees them, and how the workers of a machine share them.
 *
 * Where the program was built without hwloc (topology_library() is NULL), every CPU counts as a core of its own and all as
 * one socket.
 */
#ifndef CHORALE_COMM_TOPOLOGY_H
#define CHORALE_COMM_TOPOLOGY_H

#include "base/status.h"
#include "comm/host.h"

struct topology_core {
    struct host_cpus cpus; /* its hardware threads that the process may run on */
    int socket, numa;      /* numbers within this topology, from 0             */
};

struct topology {
    int cores, sockets, numas;
    struct topology_core *core; /* neighbours in hardware stand together */
};

/* hwloc's version ("2.9.0"), or NULL. */
const char *topology_library(void);

/* The cores with a CPU in `allowed`; CPUs that hwloc does not tell of are cores, too. Changes the environment for a moment, so
 * that hwloc loads none of its plugins (OpenCL, X11): while no other thread reads it. Release with topology_release(). */
enum status topology_read(const struct host_cpus *allowed, struct topology *topology) MUST_CHECK;
void topology_release(struct topology *topology);

enum bind {
    BIND_AUTO,  /* as BIND_CORE where the workers fill the machine, else none */
    BIND_NONE,  /* as it is                                                   */
    BIND_CORE,  /* cores of its own for each worker, all of them shared out   */
    BIND_SOCKET /* a whole socket, which several workers may share            */
};

/* One of several workers that may run on the same CPUs. */
struct bind_request {
    enum bind bind;
    int rank, size; /* among them                                                           */
    int threads;    /* that each computes with                                              */
    double quota;   /* CPUs' worth of time that all have (host_cpu_quota); 0: no limit      */
    bool bound;     /* somebody has given workers of this machine different CPUs            */
    bool by_openmp; /* the environment tells OpenMP where to put threads                    */
};

/* Which CPUs the worker shall be bound to. Empty: none, and *why says why not, in a few words.
 *
 * auto binds when workers x threads fill more than half of the cores, and all of them fit: with fewer, the system finds free
 * cores better than we do, who know nothing of other jobs (two that begin to count at core 0 would share it); with more, it
 * shares them out more evenly. What a launcher or OpenMP's variables have bound stays as it is.
 *
 * STATUS_REFUSED: BIND_CORE, and there are more workers than cores. */
enum status bind_plan(const struct bind_request *request, const struct topology *topology, struct host_cpus *cpus,
                      const char **why) MUST_CHECK;

/* Compute threads for each of `sharers` workers: their cores divided by them, within the quota, at least 1. */
int bind_threads(const struct topology *topology, int sharers, double quota);

#endif
