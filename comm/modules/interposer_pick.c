/* interposer_pick.c - libchorale-mpi.so, to be named in LD_PRELOAD under any MPI: finds out which MPI the process has and
 * loads that one's interposer, libchorale-mpi-openmpi.so or libchorale-mpi-mpich.so, from its own folder. interposer.c
 * says what those do.
 *
 * It is built without any MPI. What MPI's handles are (communicators, types, operators) differs: pointers in Open MPI,
 * ints in MPICH and all that share its ABI. Here they are words, in which either arrives whole: arguments of MPI's calls
 * are passed in registers on the machines that we build for.
 *
 * Threads: the first call picks, all others wait for it.
 */
#define _GNU_SOURCE /* dladdr, dl_iterate_phdr */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "how words are passed is known of x86-64 and aarch64"
#endif

typedef uintptr_t handle;

/* In place of mpi.h. */
#define HOOK __attribute__((visibility("default")))
HOOK int MPI_Init(int *argc, char ***argv);
HOOK int MPI_Init_thread(int *argc, char ***argv, int required, int *provided);
HOOK int MPI_Finalize(void);
HOOK int MPI_Comm_free(void *comm);
HOOK int MPI_Comm_disconnect(void *comm);
HOOK int MPI_Allreduce(const void *input, void *output, int count, handle type, handle op, handle comm);
HOOK int MPI_Allreduce_c(const void *input, void *output, intptr_t count, handle type, handle op, handle comm);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *interposer; /* of the MPI that is here */
static bool open_mpi;    /* whose ABI that is       */

static _Noreturn void give_up(const char *what, const char *which, const char *cure)
{
    fprintf(stderr, "chorale: libchorale-mpi.so: %s%s: %s\n", what, which, cure);
    _exit(1);
}

/* ---- which MPI ---- */

struct found {
    char path[PATH_MAX];
    unsigned count;
};

static int look_at(struct dl_phdr_info *object, size_t size, void *context)
{
    struct found *found = context;
    const char *slash = strrchr(object->dlpi_name, '/'), *name = slash != NULL ? slash + 1 : object->dlpi_name;
    (void)size;
    if (strncmp(name, "libmpi.so", strlen("libmpi.so")) != 0 &&
        strncmp(name, "libmpich.so", strlen("libmpich.so")) != 0)
        return 0;
    found->count++;
    snprintf(found->path, sizeof found->path, "%s", object->dlpi_name);
    return 0;
}

/* Only Open MPI's handles are addresses of its own objects. */
static bool is_open_mpi(const char *path)
{
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    const bool is = library != NULL && dlsym(library, "ompi_mpi_comm_world") != NULL;
    if (library != NULL)
        (void)dlclose(library);
    return is;
}

static void pick(void)
{
    struct found found = {.count = 0};
    Dl_info self;
    char path[PATH_MAX + 64];
    (void)dl_iterate_phdr(look_at, &found);
    if (found.count != 1)
        give_up(found.count == 0 ? "this process calls MPI and has no" : "this process has several of",
                " libmpi.so or libmpich.so", "name libchorale-mpi-openmpi.so or libchorale-mpi-mpich.so instead");
    open_mpi = is_open_mpi(found.path);
    if (dladdr(&once, &self) == 0)
        give_up("its own folder", "", dlerror());
    const char *slash = strrchr(self.dli_fname, '/');
    snprintf(path, sizeof path, "%.*slibchorale-mpi-%s.so", slash != NULL ? (int)(slash + 1 - self.dli_fname) : 0,
             self.dli_fname, open_mpi ? "openmpi" : "mpich");
    interposer = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (interposer == NULL)
        give_up("for ", found.path, dlerror());
}

/* ---- what the program calls ---- */

/* Our function of that name. Data and functions have one kind of address where dlsym() is. */
static void *ours(const char *name)
{
    (void)pthread_once(&once, pick);
    void *function = dlsym(interposer, name);
    if (function == NULL)
        give_up("no ", name, "the interposer of this MPI does not have it");
    return function;
}

int MPI_Init(int *argc, char ***argv)
{
    int (*call)(int *, char ***);
    *(void **)&call = ours("MPI_Init");
    return call(argc, argv);
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int (*call)(int *, char ***, int, int *);
    *(void **)&call = ours("MPI_Init_thread");
    return call(argc, argv, required, provided);
}

int MPI_Finalize(void)
{
    int (*call)(void);
    *(void **)&call = ours("MPI_Finalize");
    return call();
}

int MPI_Comm_free(void *comm)
{
    int (*call)(void *);
    *(void **)&call = ours("MPI_Comm_free");
    return call(comm);
}

int MPI_Comm_disconnect(void *comm)
{
    int (*call)(void *);
    *(void **)&call = ours("MPI_Comm_disconnect");
    return call(comm);
}

int MPI_Allreduce(const void *input, void *output, int count, handle type, handle op, handle comm)
{
    static _Atomic(void *) function; /* looked up once: calls may be short */
    void *address = function;
    if (address == NULL)
        function = address = ours("MPI_Allreduce");
    if (open_mpi) {
        int (*call)(const void *, void *, int, handle, handle, handle);
        *(void **)&call = address;
        return call(input, output, count, type, op, comm);
    }
    int (*call)(const void *, void *, int, int, int, int);
    *(void **)&call = address;
    return call(input, output, count, (int)type, (int)op, (int)comm);
}

/* MPI 4: its MPI_Count is as wide as a pointer. */
int MPI_Allreduce_c(const void *input, void *output, intptr_t count, handle type, handle op, handle comm)
{
    void *address = ours("MPI_Allreduce_c");
    if (open_mpi) {
        int (*call)(const void *, void *, intptr_t, handle, handle, handle);
        *(void **)&call = address;
        return call(input, output, count, type, op, comm);
    }
    int (*call)(const void *, void *, intptr_t, int, int, int);
    *(void **)&call = address;
    return call(input, output, count, (int)type, (int)op, (int)comm);
}
