/* host.h - what this process may know about its host: who shares memory or a loopback interface with it, how many cores
 * and how much shared memory there are, which interface has which address. */
#ifndef CHORALE_COMM_HOST_H
#define CHORALE_COMM_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

/* Hashes; equal on two processes that ... (host names and namespaces are compared, so that containers and network
 * namespaces count as hosts of their own). Where the job says which node this is (CHORALE_NODE, any text, or Slurm's
 * SLURM_NODEID), that counts, too: it keeps apart what looks alike otherwise, but joins nothing. */
struct host_identity {
    uint64_t memory;  /* ... can share memory through /dev/shm and see each other's process ids */
    uint64_t network; /* ... reach each other on the loopback interface                         */
    uint64_t machine; /* ... share one kernel's cores and memory, in whatever containers        */
};
void host_identify(struct host_identity *identity);

/* A process as /proc tells of it. False: there is none of that number, or it is hidden from us. */
struct host_process {
    char state; /* 'T': stopped, 'Z' and 'X': dead */
    bool dying; /* killed, or about to end: what others saw of it may be its death */
    long parent, group;
};
bool host_process(long pid, struct host_process *process);

/* A set of CPUs (hardware threads) by the system's numbers. */
#define HOST_CPUS 1024
struct host_cpus {
    uint64_t word[HOST_CPUS / 64];
};
/* Those that the calling thread may run on; empty: not known, since the machine has more than HOST_CPUS. */
void host_cpus_allowed(struct host_cpus *cpus);
/* Bind the calling thread, and those that it starts from now on. STATUS_UNAVAILABLE with the system's words. */
enum status host_bind(const struct host_cpus *cpus) MUST_CHECK;
bool host_cpus_has(const struct host_cpus *cpus, unsigned cpu);
void host_cpus_add(struct host_cpus *cpus, unsigned cpu); /* below HOST_CPUS */
int host_cpus_count(const struct host_cpus *cpus);
bool host_cpus_equal(const struct host_cpus *a, const struct host_cpus *b);
void host_cpus_join(struct host_cpus *into, const struct host_cpus *from);
void host_cpus_describe(const struct host_cpus *cpus, struct text *text); /* "0-3,8" */
/* CPUs' worth of time that the container has (cgroup v1 and v2, the narrowest above this process); 0: no limit. */
double host_cpu_quota(void);
int host_cores(void); /* that this process may run on and has time for, at least 1 */

uint64_t host_shared_memory(void); /* bytes free in /dev/shm, 0 when there is none that we may write to */
/* Bytes that can be allocated without swapping, within the limits of the container (cgroup v1 and v2); 0: unknown. */
uint64_t host_memory_available(void);

#define HOST_ADDRESS_BYTES 64 /* holds any address's text */

/* The address of an interface as text, IPv4 before IPv6. STATUS_USAGE names the interfaces that there are. */
enum status host_interface_address(const char *interface, char address[HOST_ADDRESS_BYTES]) MUST_CHECK;

/* The name of the interface that has the address; false, and "", when none has. */
#define HOST_INTERFACE_BYTES 32
bool host_address_interface(const char *address, char interface[HOST_INTERFACE_BYTES]);

/* The address of the first interface that is up and no loopback, IPv4 before IPv6, for when nobody has named one.
 * STATUS_UNAVAILABLE: there is none. */
enum status host_outward_address(char address[HOST_ADDRESS_BYTES]) MUST_CHECK;

#endif
