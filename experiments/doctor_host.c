/* doctor_host.c - cores, limits and memory of this host, as this process may use them. */
#define _GNU_SOURCE /* memfd_create, process_vm_readv, RLIMIT_NPROC, RLIMIT_MEMLOCK */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "comm/launch.h"
#include "comm/topology.h"
#include "comm/transport.h"
#include "experiments/doctor.h"

#define MIB 1048576.0

/* ---- cores ---- */

static void say_features(struct report *report)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") != 0, fma = __builtin_cpu_supports("fma") != 0;
    report_add(report, avx2 && fma ? DOCTOR_OK : DOCTOR_NOTE, "features",
               "reductions and conversions are slower without", "%s%s%s", avx2 ? "AVX2" : "no AVX2",
               fma ? ", FMA" : ", no FMA", __builtin_cpu_supports("avx512f") ? ", AVX-512" : "");
#else
    report_add(report, DOCTOR_NOTE, "features", "reductions are written for AVX2", "no x86-64: plain C");
#endif
}

static void say_governor(struct report *report)
{
    char *text = NULL;
    size_t length = 0;
    if (file_read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", 100, &text, &length) < 0)
        return; /* virtual machines show none */
    text[strcspn(text, "\n")] = '\0';
    const bool fast = strcmp(text, "performance") == 0;
    report_add(report, fast ? DOCTOR_OK : DOCTOR_NOTE, "governor",
               "cpupower frequency-set -g performance, for steady times", "%s", text);
    free(text);
}

static void check_cores(const struct check *check, struct report *report)
{
    struct host_cpus allowed;
    struct topology topology;
    struct text cpus = {0};
    const double quota = host_cpu_quota();
    (void)check;
    host_cpus_allowed(&allowed);
    if (topology_read(&allowed, &topology) != STATUS_OK)
        return;
    host_cpus_describe(&allowed, &cpus);
    report_add(report, DOCTOR_OK, "cores", NULL, "%d on %d socket%s and %d NUMA node%s, CPUs %s of %ld", topology.cores,
               topology.sockets, topology.sockets == 1 ? "" : "s", topology.numas, topology.numas == 1 ? "" : "s",
               text_string(&cpus), sysconf(_SC_NPROCESSORS_ONLN));
    if (quota > 0)
        report_add(report, quota < topology.cores ? DOCTOR_NOTE : DOCTOR_OK, "cgroup cpu",
                   "raise cpu.max of the container, or start no more workers and threads than that", "time of %g CPUs",
                   quota);
    say_features(report);
    say_governor(report);
    text_release(&cpus);
    topology_release(&topology);
}

/* ---- limits ---- */

static void limit_text(rlim_t limit, double unit, char text[32])
{
    if (limit == RLIM_INFINITY)
        (void)snprintf(text, 32, "unlimited");
    else
        (void)snprintf(text, 32, "%.0f", (double)limit / unit);
}

static void check_files(const struct check *check, struct report *report)
{
    enum { FEW = 64, FOR_LAUNCHER = 32 };
    struct rlimit limit;
    char soft[32], hard[32];
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit_text(limit.rlim_cur, 1, soft);
    limit_text(limit.rlim_max, 1, hard);
    report_add(report, limit.rlim_cur < FEW ? DOCTOR_NOTE : DOCTOR_OK, check->name,
               "ulimit -n 1024: a worker has a dozen files open, and over tcp one more for each other worker",
               "%s (at most %s): the launcher needs %d and one more for each worker", soft, hard, FOR_LAUNCHER);
}

static void check_locked(const struct check *check, struct report *report)
{
    struct rlimit limit;
    char text[32];
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return;
    limit_text(limit.rlim_cur, 1024, text);
    report_add(report, DOCTOR_OK, check->name, NULL, "%s KiB: only adapters for verbs and efa need more", text);
}

static void check_processes(const struct check *check, struct report *report)
{
    enum { FEW = 200 };
    struct rlimit limit;
    char text[32], *pids = NULL;
    size_t length = 0;
    long most = 0;
    if (getrlimit(RLIMIT_NPROC, &limit) != 0)
        return;
    limit_text(limit.rlim_cur, 1, text);
    if (file_read("/proc/sys/kernel/pid_max", 100, &pids, &length) == STATUS_OK)
        most = strtol(pids, NULL, 10);
    free(pids);
    report_add(report, limit.rlim_cur < FEW ? DOCTOR_NOTE : DOCTOR_OK, check->name,
               "ulimit -u 4096: a worker is a process of several threads, which all count",
               "%s of this user, %ld in all", text, most);
}

/* ---- memory ---- */

static void check_memory(const struct check *check, struct report *report)
{
    const uint64_t bytes = host_memory_available();
    report_add(report, bytes > 0 && bytes < 512 * MIB ? DOCTOR_NOTE : DOCTOR_OK, check->name,
               "end something, or raise memory.max of the container", "%.0f MiB available", (double)bytes / MIB);
}

static void check_shared(const struct check *check, struct report *report)
{
    static const char cure[] =
        "mount a larger one (docker run --shm-size=1g, mount -o remount,size=1g /dev/shm) for --transport=shm: "
        "--transport=auto, the default, needs none of it where neighbours' memory files open";
    const uint64_t bytes = host_shared_memory(), workers = bytes / TRANSPORT_SHM_BYTES;
    if (access("/dev/shm", W_OK | X_OK) != 0)
        report_add(report, DOCTOR_NOTE, check->name, cure, "%s", strerror(errno));
    else
        report_add(report, workers < 2 ? DOCTOR_NOTE : DOCTOR_OK, check->name, cure,
                   "%.0f MiB free: enough for %llu workers of %.0f MiB", (double)bytes / MIB,
                   (unsigned long long)workers, TRANSPORT_SHM_BYTES / MIB);
}

/* What a neighbour does: read this process's memory, and open its memory files. */
static int look_at_parent(const char *magic, int file)
{
    char byte = 0, path[64];
    struct iovec here = {.iov_base = &byte, .iov_len = 1}, there = {.iov_base = (void *)(uintptr_t)magic, .iov_len = 1};
    const bool reads = process_vm_readv(getppid(), &here, 1, &there, 1, 0) == 1 && byte == *magic;
    (void)snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getppid(), file);
    const bool opens = file >= 0 && open(path, O_RDWR | O_CLOEXEC) >= 0;
    return (reads ? 1 : 0) | (opens ? 2 : 0);
}

static void check_neighbours(const struct check *check, struct report *report)
{
    static const char magic[] = "m";
    int status = 0;
    const int file = memfd_create("chorale-doctor", MFD_CLOEXEC);
    const pid_t pid = fork();
    (void)check;
    if (pid == 0)
        _exit(look_at_parent(magic, file));
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return;
    report_add(
        report, (WEXITSTATUS(status) & 1) != 0 ? DOCTOR_OK : DOCTOR_NOTE, "read of memory",
        "allow ptrace (docker run --cap-add=SYS_PTRACE, kernel.yama.ptrace_scope=0): vectors outside of arenas are "
        "copied twice until then",
        "process_vm_readv %s", (WEXITSTATUS(status) & 1) != 0 ? "works" : "is forbidden");
    report_add(report, (WEXITSTATUS(status) & 2) != 0 ? DOCTOR_OK : DOCTOR_NOTE, "shared arenas",
               "mount /proc and allow ptrace: workers use libfabric's shm alone until then",
               "memory files of neighbours %s", (WEXITSTATUS(status) & 2) != 0 ? "open" : "do not open");
}

const struct check doctor_host[] = {
    {"host", "cores", 10, check_cores, NULL},
    {"limit", "open files", 5, check_files, NULL},
    {"limit", "locked memory", 5, check_locked, NULL},
    {"limit", "processes", 5, check_processes, NULL},
    {"memory", "available", 5, check_memory, NULL},
    {"memory", "/dev/shm", 5, check_shared, NULL},
    {"memory", "neighbours", 5, check_neighbours, NULL},
    {.name = NULL},
};
