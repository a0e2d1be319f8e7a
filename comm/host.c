/* host.c - facts about this host. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "comm/host.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"

#define SHARED_MEMORY "/dev/shm"
#define BOOT_ID "/proc/sys/kernel/random/boot_id"

/* FNV-1a, started with `hash`. */
static uint64_t mix(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ byte[i]) * UINT64_C(0x100000001B3);
    return hash;
}

static uint64_t mix_link(uint64_t hash, const char *path)
{
    char target[128];
    ssize_t length = readlink(path, target, sizeof target);
    return length > 0 ? mix(hash, target, (size_t)length) : hash;
}

static uint64_t mix_name(uint64_t hash)
{
    char name[256] = {0};
    return gethostname(name, sizeof name - 1) == 0 ? mix(hash, name, strlen(name)) : hash;
}

static uint64_t mix_given(uint64_t hash)
{
    static const char *const variables[] = {"CHORALE_NODE", "SLURM_NODEID"};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = getenv(variables[i]);
        if (value != NULL && value[0] != '\0')
            hash = mix(mix(hash, variables[i], strlen(variables[i])), value, strlen(value));
    }
    return hash;
}

/* What cannot be read adds nothing: then the rest has to tell hosts apart. */
void host_identify(struct host_identity *identity)
{
    char *boot = NULL;
    size_t length = 0;
    struct stat folder;
    const uint64_t start = UINT64_C(0xCBF29CE484222325);
    if (file_read(BOOT_ID, 1024, &boot, &length) == STATUS_OK && length > 0)
        identity->machine = mix(start, boot, length);
    else
        identity->machine = mix_given(mix_name(start));
    free(boot);
    uint64_t hash = mix_given(mix_name(identity->machine));
    identity->network = hash = mix_link(hash, "/proc/self/ns/net");
    hash = mix_link(hash, "/proc/self/ns/pid");
    if (stat(SHARED_MEMORY, &folder) == 0)
        hash = mix(hash, &folder.st_dev, sizeof folder.st_dev);
    identity->memory = hash;
}

#define EXITING 0x4ul           /* PF_EXITING of the kernel's flags */
#define KILLED (1ul << (9 - 1)) /* SIGKILL among what is pending   */

bool host_process(long pid, struct host_process *process)
{
    char path[64], line[1024], *rest = NULL;
    (void)snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t count = read(fd, line, sizeof line - 1);
    (void)close(fd);
    line[count > 0 ? count : 0] = '\0';
    const char *end = strrchr(line, ')'); /* "12 (any name) S 1 12 ..." */
    if (end == NULL || end[1] != ' ' || end[2] == '\0' || end[3] != ' ')
        return false;
    process->state = end[2];
    process->parent = strtol(end + 4, &rest, 10);
    process->group = strtol(rest, &rest, 10);
    unsigned long field[32] = {0}; /* by the numbers of proc(5) */
    for (int number = 6; number < 32; number++)
        field[number] = strtoul(rest, &rest, 10);
    process->dying = (field[9] & EXITING) != 0 || (field[31] & KILLED) != 0;
    return true;
}

uint64_t host_shared_memory(void)
{
    struct statvfs space;
    if (access(SHARED_MEMORY, W_OK | X_OK) != 0 || statvfs(SHARED_MEMORY, &space) != 0)
        return 0;
    return (uint64_t)space.f_bavail * space.f_frsize;
}

/* The number after `key` in a small file, in `unit` bytes ("" and 1: the number that the file is); `missing` when there
 * is none ("max" included). */
static uint64_t number_in(const char *path, const char *key, uint64_t unit, uint64_t missing)
{
    char *text = NULL;
    size_t length = 0;
    if (file_read(path, 65536, &text, &length) < 0)
        return missing;
    const char *at = strstr(text, key);
    char *end = NULL;
    const unsigned long long number = at != NULL ? strtoull(at + strlen(key), &end, 10) : 0;
    const bool found = at != NULL && end != at + strlen(key);
    free(text);
    return found ? number * unit : missing;
}

/* What is used holds cached files, which give way. */
static uint64_t room_in(const char *limit_path, const char *used_path, const char *stat_path, const char *cached)
{
    const uint64_t limit = number_in(limit_path, "", 1, UINT64_MAX), used = number_in(used_path, "", 1, 0);
    const uint64_t given = number_in(stat_path, cached, 1, 0), firm = used > given ? used - given : 0;
    return limit == UINT64_MAX ? limit : limit > firm ? limit - firm : 0;
}

uint64_t host_memory_available(void)
{
    const uint64_t host = number_in("/proc/meminfo", "MemAvailable:", 1024, UINT64_MAX);
    uint64_t room = room_in("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat",
                            "inactive_file ");
    if (room == UINT64_MAX)
        room = room_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                       "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file ");
    const uint64_t least = room < host ? room : host;
    if (least == UINT64_MAX)
        return 0;
    return least > 0 ? least : 1; /* nothing is left, which is known */
}

/* ---- CPUs ---- */

bool host_cpus_has(const struct host_cpus *cpus, unsigned cpu)
{
    return cpu < HOST_CPUS && (cpus->word[cpu / 64] >> (cpu % 64) & 1) != 0;
}

void host_cpus_add(struct host_cpus *cpus, unsigned cpu)
{
    cpus->word[cpu / 64] |= UINT64_C(1) << (cpu % 64);
}

void host_cpus_allowed(struct host_cpus *cpus)
{
    cpu_set_t set;
    *cpus = (struct host_cpus){{0}};
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    for (unsigned i = 0; i < HOST_CPUS && i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set))
            host_cpus_add(cpus, i);
}

enum status host_bind(const struct host_cpus *cpus)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (unsigned i = 0; i < HOST_CPUS && i < CPU_SETSIZE; i++)
        if (host_cpus_has(cpus, i))
            CPU_SET(i, &set);
    if (sched_setaffinity(0, sizeof set, &set) == 0)
        return STATUS_OK;
    struct text text = {0};
    host_cpus_describe(cpus, &text);
    const enum status status = fail(STATUS_UNAVAILABLE, "bind to CPUs %s: %s", text_string(&text), strerror(errno));
    text_release(&text);
    return status;
}

int host_cpus_count(const struct host_cpus *cpus)
{
    int count = 0;
    for (size_t i = 0; i < HOST_CPUS / 64; i++)
        count += __builtin_popcountll(cpus->word[i]);
    return count;
}

bool host_cpus_equal(const struct host_cpus *a, const struct host_cpus *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

void host_cpus_join(struct host_cpus *into, const struct host_cpus *from)
{
    for (size_t i = 0; i < HOST_CPUS / 64; i++)
        into->word[i] |= from->word[i];
}

void host_cpus_describe(const struct host_cpus *cpus, struct text *text)
{
    const char *comma = "";
    for (unsigned i = 0; i < HOST_CPUS; i++) {
        const unsigned first = i;
        if (!host_cpus_has(cpus, i))
            continue;
        while (host_cpus_has(cpus, i + 1))
            i++;
        text_addf(text, "%s%u", comma, first);
        if (i > first)
            text_addf(text, "-%u", i);
        comma = ",";
    }
}

/* CPUs' worth of time that the folder of one group gives; 0: no limit there. cgroup v2 has both numbers in one file, of which the
 * first may be "max"; v1 has a file for each, and -1 for none. */
static double quota_in(const char *folder)
{
    char path[4400], *text = NULL, *end = NULL;
    size_t length = 0;
    double quota = 0, period = 0;
    (void)snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (file_read(path, 256, &text, &length) == STATUS_OK) {
        quota = strtod(text, &end);
        period = strtod(end, NULL);
        free(text);
    } else {
        (void)snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        const uint64_t units = number_in(path, "", 1, 0);
        (void)snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        quota = units < INT64_MAX ? (double)units : 0;
        period = (double)number_in(path, "", 1, 0);
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* The group that a line of /proc/self/cgroup names after `key`, and those above it, as far as our view reaches. */
static void narrow_quota(const char *lines, const char *key, const char *root, double *least)
{
    char folder[4300];
    const char *group = strstr(lines, key);
    if (group == NULL)
        return;
    group += strlen(key);
    (void)snprintf(folder, sizeof folder, "%s%.*s", root, (int)strcspn(group, "\n"), group);
    while (strstr(folder, "..") == NULL && strlen(folder) >= strlen(root)) {
        const double quota = quota_in(folder);
        *least = quota > 0 && (*least <= 0 || quota < *least) ? quota : *least;
        *strrchr(folder, '/') = '\0';
    }
}

double host_cpu_quota(void)
{
    char *lines = NULL;
    size_t length = 0;
    double least = quota_in("/sys/fs/cgroup");
    if (file_read("/proc/self/cgroup", 65536, &lines, &length) < 0)
        return least;
    narrow_quota(lines, "0::", "/sys/fs/cgroup", &least);
    narrow_quota(lines, ":cpu:", "/sys/fs/cgroup/cpu", &least);
    narrow_quota(lines, ":cpu,cpuacct:", "/sys/fs/cgroup/cpu", &least);
    free(lines);
    return least;
}

int host_cores(void)
{
    struct host_cpus cpus;
    host_cpus_allowed(&cpus);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const double quota = host_cpu_quota();
    int cores = host_cpus_count(&cpus);
    if (cores == 0)
        cores = online > 0 ? (int)online : 1;
    return quota > 0 && quota < cores ? (int)ceil(quota) : cores;
}

/* The first address of `family` that the interface has. */
static bool find_address(const struct ifaddrs *list, const char *interface, int family, char *text)
{
    socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    for (; list != NULL; list = list->ifa_next)
        if (list->ifa_addr != NULL && list->ifa_addr->sa_family == family && strcmp(list->ifa_name, interface) == 0 &&
            getnameinfo(list->ifa_addr, length, text, HOST_ADDRESS_BYTES, NULL, 0, NI_NUMERICHOST) == 0)
            return true;
    return false;
}

static enum status unknown_interface(const struct ifaddrs *list, const char *interface)
{
    struct text names = {0};
    for (; list != NULL; list = list->ifa_next)
        if (list->ifa_addr != NULL && list->ifa_addr->sa_family == AF_INET)
            text_addf(&names, " %s", list->ifa_name);
    enum status status = fail(STATUS_USAGE, "interface %s: there is none with an address; this host has:%s", interface,
                              text_string(&names));
    text_release(&names);
    return status;
}

enum status host_interface_address(const char *interface, char address[HOST_ADDRESS_BYTES])
{
    struct ifaddrs *list;
    if (getifaddrs(&list) != 0)
        return fail(STATUS_IO, "interfaces: %s", strerror(errno));
    enum status status = STATUS_OK;
    if (!find_address(list, interface, AF_INET, address) && !find_address(list, interface, AF_INET6, address))
        status = unknown_interface(list, interface);
    freeifaddrs(list);
    return status;
}

bool host_address_interface(const char *address, char interface[HOST_INTERFACE_BYTES])
{
    struct ifaddrs *list = NULL;
    char text[HOST_ADDRESS_BYTES];
    interface[0] = '\0';
    if (getifaddrs(&list) != 0)
        return false;
    for (const struct ifaddrs *at = list; at != NULL && interface[0] == '\0'; at = at->ifa_next) {
        const int family = at->ifa_addr != NULL ? at->ifa_addr->sa_family : AF_UNSPEC;
        if ((family != AF_INET && family != AF_INET6) ||
            getnameinfo(at->ifa_addr, family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6),
                        text, sizeof text, NULL, 0, NI_NUMERICHOST) != 0)
            continue;
        text[strcspn(text, "%")] = '\0';
        if (strcmp(text, address) == 0)
            (void)snprintf(interface, HOST_INTERFACE_BYTES, "%s", at->ifa_name);
    }
    freeifaddrs(list);
    return interface[0] != '\0';
}

static bool find_outward(const struct ifaddrs *list, int family, char *address)
{
    for (; list != NULL; list = list->ifa_next)
        if ((list->ifa_flags & IFF_UP) != 0 && (list->ifa_flags & IFF_LOOPBACK) == 0 &&
            find_address(list, list->ifa_name, family, address) && strchr(address, '%') == NULL) /* link-local */
            return true;
    return false;
}

enum status host_outward_address(char address[HOST_ADDRESS_BYTES])
{
    struct ifaddrs *list;
    if (getifaddrs(&list) != 0)
        return fail(STATUS_IO, "interfaces: %s", strerror(errno));
    const bool found = find_outward(list, AF_INET, address) || find_outward(list, AF_INET6, address);
    freeifaddrs(list);
    return found ? STATUS_OK : fail(STATUS_UNAVAILABLE, "interfaces: none but the loopback one has an address");
}
