/* address.h - stream sockets between the workers and the control server: addresses as text, listening, connecting.
 *
 * An address is "HOST:PORT": a name, an IPv4 address, or an IPv6 address in brackets, "[::1]:4711".
 */
#ifndef CHORALE_COMM_BOOTSTRAP_ADDRESS_H
#define CHORALE_COMM_BOOTSTRAP_ADDRESS_H

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/status.h"

enum { ADDRESS_HOST_BYTES = 256, ADDRESS_BYTES = ADDRESS_HOST_BYTES + 16 };

/* "HOST:PORT", brackets where they belong. `address` holds ADDRESS_BYTES. */
enum status address_print(const char *host, int port, char *address) MUST_CHECK;
/* Both parts; ports 1 .. 65535. `host` holds ADDRESS_HOST_BYTES, and is without brackets. `what` names the text in messages. */
enum status address_split(const char *what, const char *address, char *host, int *port) MUST_CHECK;
/* Of a socket's other end, or its own; "?" when there is none any more. */
void address_of(int fd, bool other_end, char *address);

/* All that the host and port stand for; release with freeaddrinfo(). STATUS_UNAVAILABLE: the name is not known (yet). */
enum status address_resolve(const char *host, int port, struct addrinfo **list) MUST_CHECK;
bool address_is_loopback(const struct sockaddr *address);

/* A non-blocking listening socket on exactly this address. errno's value, 0 when it listens. */
int address_listen(const struct addrinfo *address, int *fd);

/* One attempt at all addresses, until `deadline`. errno's value, 0 when connected; *fd is non-blocking. A connection
 * whose other end vanishes without a word is given up after some seconds (ETIMEDOUT while reading). */
int address_connect(const struct addrinfo *list, uint64_t deadline, int *fd);
/* Small frames at once, and the same care for vanished ends: for each accepted connection. */
void address_tune(int fd);

#endif
