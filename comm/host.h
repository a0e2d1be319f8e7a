/* host.h - what this process may know about its host: who shares memory or a loopback interface with it, how many cores
 * and how much shared memory there are, which interface has which address. */
#ifndef CHORALE_COMM_HOST_H
#define CHORALE_COMM_HOST_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Hashes; equal on two processes that ... (host names and namespaces are compared, so that containers and network
 * namespaces count as hosts of their own). */
struct host_identity {
    uint64_t memory;  /* ... can share memory through /dev/shm and see each other's process ids */
    uint64_t network; /* ... reach each other on the loopback interface                         */
};
void host_identify(struct host_identity *identity);

int host_cores(void);              /* that this process may run on, at least 1   */
uint64_t host_shared_memory(void); /* bytes free in /dev/shm, 0 when there is none that we may write to */
/* Bytes that can be allocated without swapping, within the limits of the container (cgroup v1 and v2); 0: unknown. */
uint64_t host_memory_available(void);

#define HOST_ADDRESS_BYTES 64 /* holds any address's text */

/* The address of an interface as text, IPv4 before IPv6. STATUS_USAGE names the interfaces that there are. */
enum status host_interface_address(const char *interface, char address[HOST_ADDRESS_BYTES]) MUST_CHECK;

/* The address of the first interface that is up and no loopback, IPv4 before IPv6, for when nobody has named one.
 * STATUS_UNAVAILABLE: there is none. */
enum status host_outward_address(char address[HOST_ADDRESS_BYTES]) MUST_CHECK;

#endif
