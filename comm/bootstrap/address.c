/* address.c - listening and connecting. */
#define _GNU_SOURCE /* TCP_USER_TIMEOUT */
#include "comm/bootstrap/address.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"

/* A host that lost its power or its cable says nothing: after so long without an answer it is taken for gone. */
enum { SILENT_SECONDS = 2, PROBE_SECONDS = 1, PROBES = 2, UNANSWERED_MS = 5000 };

enum status address_print(const char *host, int port, char *address)
{
    const bool colons = strchr(host, ':') != NULL;
    if (strlen(host) >= ADDRESS_HOST_BYTES)
        return fail(STATUS_USAGE, "address %.60s...: too long", host);
    (void)snprintf(address, ADDRESS_BYTES, colons ? "[%s]:%d" : "%s:%d", host, port);
    return STATUS_OK;
}

enum status address_split(const char *what, const char *address, char *host, int *port)
{
    const char *colon = strrchr(address, ':');
    long long number = 0;
    size_t length = colon != NULL ? (size_t)(colon - address) : 0;
    if (length == 0 || parse_int(colon + 1, &number) != STATUS_OK || number < 1 || number > 65535)
        return fail(STATUS_USAGE, "%s=%.80s: not HOST:PORT with a port from 1 to 65535", what, address);
    if (address[0] == '[' && address[length - 1] == ']') {
        address++;
        length -= 2;
    }
    if (length == 0 || length >= ADDRESS_HOST_BYTES)
        return fail(STATUS_USAGE, "%s=%.80s: not HOST:PORT", what, address);
    memcpy(host, address, length);
    host[length] = '\0';
    *port = (int)number;
    return STATUS_OK;
}

void address_of(int fd, bool other_end, char *address)
{
    struct sockaddr_storage name;
    socklen_t bytes = sizeof name;
    char host[ADDRESS_HOST_BYTES], port[16];
    struct sockaddr *where = (struct sockaddr *)&name;
    (void)snprintf(address, ADDRESS_BYTES, "?");
    if ((other_end ? getpeername(fd, where, &bytes) : getsockname(fd, where, &bytes)) != 0 ||
        getnameinfo(where, bytes, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return;
    (void)snprintf(address, ADDRESS_BYTES, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, port);
}

enum status address_resolve(const char *host, int port, struct addrinfo **list)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char service[16];
    (void)snprintf(service, sizeof service, "%d", port);
    const int error = getaddrinfo(host, service, &hints, list);
    if (error != 0)
        return fail(STATUS_UNAVAILABLE, "host %.200s: %s", host,
                    error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
    return STATUS_OK;
}

bool address_is_loopback(const struct sockaddr *address)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (address->sa_family == AF_INET) {
        memcpy(&v4, address, sizeof v4);
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    }
    if (address->sa_family != AF_INET6)
        return false;
    memcpy(&v6, address, sizeof v6);
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) && v6.sin6_addr.s6_addr[12] == 127);
}

int address_listen(const struct addrinfo *address, int *out)
{
    const int on = 1, off = 0;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    /* connections of an earlier job on this port that are still being closed are no hindrance */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->ai_family == AF_INET6) /* on all interfaces: IPv4 comes in, too */
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, address->ai_addr, address->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
        const int error = errno;
        close(fd);
        return error;
    }
    *out = fd;
    return 0;
}

void address_tune(int fd)
{
    const int on = 1, silent = SILENT_SECONDS, probe = PROBE_SECONDS, probes = PROBES;
    const unsigned unanswered = UNANSWERED_MS;
    /* without these, frames are late and vanished hosts are noticed late; nothing is wrong */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &silent, sizeof silent);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &probe, sizeof probe);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, sizeof unanswered);
}

/* A connect() to a port of this host where nobody listens may meet itself: source and destination are then the same. */
static bool connected_to_itself(int fd)
{
    char here[ADDRESS_BYTES], there[ADDRESS_BYTES];
    address_of(fd, false, here);
    address_of(fd, true, there);
    return strcmp(here, there) == 0;
}

/* Milliseconds for poll() that do not end before the deadline; at most a second, so that callers look around. */
static int poll_ms(uint64_t deadline)
{
    const uint64_t left = deadline_left_ns(deadline);
    return left >= 1000000000u ? 1000 : (int)(left / 1000000u) + 1;
}

static int connect_socket(int fd, const struct addrinfo *address, uint64_t deadline)
{
    if (connect(fd, address->ai_addr, address->ai_addrlen) == 0)
        return 0;
    if (errno != EINPROGRESS && errno != EINTR)
        return errno;
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    while (poll(&ready, 1, poll_ms(deadline)) <= 0) {
        if (deadline_passed(deadline))
            return ETIMEDOUT;
    }
    int error = 0;
    socklen_t bytes = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

int address_connect(const struct addrinfo *list, uint64_t deadline, int *out)
{
    int error = EADDRNOTAVAIL;
    for (; list != NULL; list = list->ai_next) {
        int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) {
            error = errno;
            continue;
        }
        address_tune(fd);
        error = connect_socket(fd, list, deadline);
        if (error == 0 && connected_to_itself(fd))
            error = ECONNREFUSED;
        if (error == 0) {
            *out = fd;
            return 0;
        }
        close(fd);
    }
    return error;
}
