/* doctor_network.c - names, interfaces and launchers, and transports: what would carry the bytes of a job. */
#define _GNU_SOURCE /* IFF_RUNNING */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file.h"
#include "comm/bootstrap/origin.h"
#include "comm/host.h"
#include "comm/launch.h"
#include "comm/transport.h"
#include "experiments/doctor.h"

/* ---- names ---- */

static const char name_cure[] = "jobs of several hosts need --interface=NAME, or the host's own address in /etc/hosts";

static void check_name(const struct check *check, struct report *report)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char name[256] = "", address[HOST_ADDRESS_BYTES] = "";
    if (gethostname(name, sizeof name - 1) != 0) {
        report_add(report, DOCTOR_NOTE, check->name, name_cure, "none: %s", strerror(errno));
        return;
    }
    const int error = getaddrinfo(name, NULL, &hints, &list);
    if (error != 0) {
        report_add(report, DOCTOR_NOTE, check->name, name_cure, "%s stands for no address: %s", name,
                   gai_strerror(error));
        return;
    }
    (void)getnameinfo(list->ai_addr, list->ai_addrlen, address, sizeof address, NULL, 0, NI_NUMERICHOST);
    const bool loopback = address_is_loopback(list->ai_addr);
    report_add(report, loopback ? DOCTOR_NOTE : DOCTOR_OK, check->name, name_cure, "%s is %s%s", name, address,
               loopback ? ", which other hosts can't reach" : "");
    freeaddrinfo(list);
}

/* ---- interfaces ---- */

static long number_of(const char *interface, const char *what)
{
    char path[128], *text = NULL;
    size_t length = 0;
    (void)snprintf(path, sizeof path, "/sys/class/net/%.40s/%s", interface, what);
    if (file_read(path, 100, &text, &length) < 0)
        return -1;
    const long number = strtol(text, NULL, 10);
    free(text);
    return number;
}

static void say_interface(const struct ifaddrs *entry, struct report *report)
{
    char address[HOST_ADDRESS_BYTES] = "", size[40] = "", speed[40] = "";
    const long rate = number_of(entry->ifa_name, "speed"), mtu = number_of(entry->ifa_name, "mtu");
    if (getnameinfo(entry->ifa_addr, sizeof(struct sockaddr_in), address, sizeof address, NULL, 0, NI_NUMERICHOST) != 0)
        return;
    if (mtu > 0)
        (void)snprintf(size, sizeof size, ", MTU %ld", mtu);
    if (rate > 0)
        (void)snprintf(speed, sizeof speed, ", %ld Mbit/s", rate);
    report_add(report, DOCTOR_OK, entry->ifa_name, NULL, "%s%s%s%s", address, size, speed,
               (entry->ifa_flags & IFF_LOOPBACK) != 0 ? ", loopback" : "");
}

static void check_interfaces(const struct check *check, struct report *report)
{
    struct ifaddrs *list = NULL;
    bool outward = false, loopback = false;
    if (getifaddrs(&list) != 0) {
        report_add(report, DOCTOR_NOTE, check->name, "tcp needs them", "%s", strerror(errno));
        return;
    }
    for (const struct ifaddrs *entry = list; entry != NULL; entry = entry->ifa_next) {
        if (entry->ifa_addr == NULL || entry->ifa_addr->sa_family != AF_INET || (entry->ifa_flags & IFF_UP) == 0)
            continue;
        outward = outward || (entry->ifa_flags & IFF_LOOPBACK) == 0;
        loopback = loopback || (entry->ifa_flags & IFF_LOOPBACK) != 0;
        say_interface(entry, report);
    }
    freeifaddrs(list);
    if (!outward)
        report_add(report, DOCTOR_NOTE, check->name, "bring one up for jobs of several hosts",
                   "only loopback has an address");
    if (!loopback)
        report_add(report, DOCTOR_NOTE, "lo", "ip link set lo up: the workers of a host meet there", "no address");
}

/* libfabric does not say so when it can't follow these. */
static void check_variables(const struct check *check, struct report *report)
{
    static const char *const names[] = {"FI_TCP_IFACE", "FI_NET_IFACE", "FI_SOCKETS_IFACE", "FI_PROVIDER",
                                        "FI_SHM_DISABLE_CMA"};
    char address[HOST_ADDRESS_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = origin_variable(names[i]);
        if (value == NULL)
            continue;
        const bool interface = strstr(names[i], "IFACE") != NULL;
        if (interface && host_interface_address(value, address) != STATUS_OK)
            report_add(report, DOCTOR_NOTE, names[i], "unset it, and take --interface=", "%s", status_message());
        else
            report_add(report, interface ? DOCTOR_OK : DOCTOR_NOTE, names[i], "unset it, unless you mean it", "%s",
                       value);
    }
    if (report->count == 0)
        report_add(report, DOCTOR_OK, check->name, NULL, "none of libfabric's is set");
}

static void check_launcher(const struct check *check, struct report *report)
{
    struct origin origin;
    if (origin_find(&origin) != STATUS_OK)
        report_add(report, DOCTOR_BAD, check->name, "", "%s", status_message());
    else if (origin.kind == ORIGIN_NONE)
        report_add(report, DOCTOR_OK, check->name, NULL, "none: -n N starts workers here");
    else
        report_add(report, DOCTOR_OK, check->name, NULL, "%s has started this process as a worker", origin.name);
}

const struct check doctor_networks[] = {
    {"network", "host name", 8, check_name, NULL},
    {"network", "interfaces", 5, check_interfaces, NULL},
    {"network", "variables", 5, check_variables, NULL},
    {"network", "launcher", 5, check_launcher, NULL},
    {.name = NULL},
};

/* ---- transports ---- */

static enum status gather_alone(void *context, const void *mine, size_t bytes, void *all)
{
    (void)context;
    if (bytes > 0)
        memmove(all, mine, bytes);
    return STATUS_OK;
}

/* An endpoint of this process alone; what it is, in words. */
static enum status open_alone(const char *name, struct text *described)
{
    const struct job_manager manager = {.size = 1, .allgather = gather_alone};
    struct job *job = NULL;
    struct transport *transport = NULL;
    TRY(job_adopt(&manager, NULL, &job));
    const struct fabric_request request = {.job = job, .name = name};
    const enum status status = fabric_open(&request, &transport);
    if (status == STATUS_OK) {
        transport->ops->describe(transport, described);
        transport->ops->close(transport);
    }
    job_destroy(job);
    return status;
}

/* Two workers, a real exchange, every element compared. */
static enum status exchange(const char *name, struct launch_result *result)
{
    char program[4096] = "", transport[64];
    char rest[][24] = {"bench",      "--allreduce=ring", "--sizes=64K", "--iters=2",
                       "--warmup=0", "--check",          "--bind=none", "--deadline=8"};
    enum { REST = sizeof rest / sizeof rest[0] };
    char *words[REST + 3] = {program};
    for (int i = 0; i < REST; i++)
        words[i + 1] = rest[i];
    words[REST + 1] = transport;
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (length <= 0 || nowhere < 0 || dup2(nowhere, 1) < 0 || dup2(nowhere, 2) < 0)
        return fail(STATUS_IO, "two workers can't be started: %s", strerror(errno));
    (void)snprintf(transport, sizeof transport, "--transport=%s", name);
    const struct launch_request request = {.workers = 2, .argv = words, .deadline = 8, .must_join = true};
    return launch_local(&request, result);
}

/* Without shared memory a host has tcp, and the other way round. */
static void check_transport(const struct check *check, struct report *report)
{
    static const char cure[] = "see the lines above: what it needs is missing there, or a limit is too low";
    struct launch_result result = {.exit_code = 1};
    struct text described = {0};
    enum status status = open_alone(check->argument, &described);
    if (status == STATUS_OK)
        status = exchange(check->argument, &result);
    if (status != STATUS_OK)
        report_add(report, DOCTOR_NOTE, check->name, cure, "%s", status_message());
    else if (result.exit_code != 0)
        report_add(report, DOCTOR_NOTE, check->name, cure, "%s", result.message);
    else
        report_add(report, DOCTOR_OK, check->name, NULL, "two workers exchanged vectors (%s)", text_string(&described));
    text_release(&described);
}

static void check_adapter(const struct check *check, struct report *report)
{
    struct text described = {0};
    if (open_alone(check->argument, &described) == STATUS_OK)
        report_add(report, DOCTOR_OK, check->name, NULL, "an endpoint opens (%s)", text_string(&described));
    else
        report_add(report, DOCTOR_OK, check->name, NULL, "no adapter for it here");
    text_release(&described);
}

const struct check doctor_transports[] = {
    {"transport", "shm", 20, check_transport, "shm"},
    {"transport", "tcp", 20, check_transport, "tcp"},
    {"transport", "verbs", 10, check_adapter, "verbs"},
    {"transport", "efa", 10, check_adapter, "efa"},
    {.name = NULL},
};
