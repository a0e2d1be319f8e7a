/* nccl.c - a stand-in of NCCL between the fake cards (fake.h) of processes of one host: a segment of shared memory and a
 * barrier. Sums are added in the order of ranks. As the real one does, it refuses two workers on one card.
 *
 * It is linked into a module of its own, beside that of the fake device, whose queues it finds by the module's file.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/half.h"
#include "fake.h"

enum { RANKS_MOST = 64, SLOT = 1 << 16, WAIT_S = 20 };

/* One for all ranks; zeroed memory is its start. */
struct segment {
    pthread_mutex_t lock;
    pthread_cond_t turn;
    unsigned arrived, turns, ready;
    int card[RANKS_MOST];
    unsigned char slot[RANKS_MOST][SLOT];
};

struct ncclComm {
    struct segment *segment;
    int rank, size;
};

static int current_card;

/* ---- what nccl.c of the module calls besides NCCL ---- */

cudaError_t cudaSetDevice(int device)
{
    current_card = device;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t code)
{
    (void)code;
    return "fake";
}

static const struct fake_control *find_control(void)
{
    Dl_info here;
    char path[4096];
    if (dladdr(&current_card, &here) == 0)
        return NULL;
    snprintf(path, sizeof path, "%s", here.dli_fname);
    char *slash = strrchr(path, '/');
    if (slash == NULL)
        return NULL;
    snprintf(slash + 1, sizeof path - (size_t)(slash + 1 - path), "chorale-device-cuda.so");
    void *module = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    return module != NULL ? dlsym(module, FAKE_CONTROL_SYMBOL) : NULL;
}

/* ---- meeting ---- */

/* Until all ranks have come; false: somebody does not. */
static bool meet(struct ncclComm *comm)
{
    struct segment *segment = comm->segment;
    struct timespec until;
    bool all = true;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    (void)pthread_mutex_lock(&segment->lock);
    const unsigned turn = segment->turns;
    if (++segment->arrived == (unsigned)comm->size) {
        segment->arrived = 0;
        segment->turns++;
        (void)pthread_cond_broadcast(&segment->turn);
    }
    while (segment->turns == turn && all)
        all = pthread_cond_timedwait(&segment->turn, &segment->lock, &until) != ETIMEDOUT;
    (void)pthread_mutex_unlock(&segment->lock);
    return all;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/chorale-fake-nccl-%ld-%ld", (long)getpid(), now.tv_nsec);
    return ncclSuccess;
}

static void make_shared(struct segment *segment)
{
    pthread_mutexattr_t lock;
    pthread_condattr_t turn;
    (void)pthread_mutexattr_init(&lock);
    (void)pthread_mutexattr_setpshared(&lock, PTHREAD_PROCESS_SHARED);
    (void)pthread_mutex_init(&segment->lock, &lock);
    (void)pthread_condattr_init(&turn);
    (void)pthread_condattr_setpshared(&turn, PTHREAD_PROCESS_SHARED);
    (void)pthread_cond_init(&segment->turn, &turn);
    __atomic_store_n(&segment->ready, 1, __ATOMIC_RELEASE);
}

static struct segment *map_segment(const char *name, bool first)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    int file = -1;
    for (int tries = 0; file < 0 && tries < WAIT_S * 1000; tries++) {
        file = shm_open(name, O_RDWR | (first ? O_CREAT | O_EXCL : 0), 0600);
        if (file < 0)
            (void)nanosleep(&pause, NULL);
    }
    if (file < 0 || ftruncate(file, sizeof(struct segment)) != 0)
        return NULL;
    struct segment *segment = mmap(NULL, sizeof *segment, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    (void)close(file);
    if (segment == MAP_FAILED)
        return NULL;
    if (first)
        make_shared(segment);
    while (__atomic_load_n(&segment->ready, __ATOMIC_ACQUIRE) == 0)
        (void)nanosleep(&pause, NULL);
    return segment;
}

static bool cards_differ(const struct ncclComm *comm)
{
    for (int a = 0; a < comm->size; a++)
        for (int b = 0; b < a; b++)
            if (comm->segment->card[a] == comm->segment->card[b])
                return false;
    return true;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (comm == NULL || config->blocking != 1 || size > RANKS_MOST) {
        free(comm);
        return ncclInvalidArgument;
    }
    *comm = (struct ncclComm){.segment = map_segment(id.internal, rank == 0), .rank = rank, .size = size};
    if (comm->segment != NULL)
        comm->segment->card[rank] = current_card;
    const bool met = comm->segment != NULL && meet(comm);
    if (rank == 0)
        (void)shm_unlink(id.internal);
    if (met && cards_differ(comm)) {
        *out = comm;
        return ncclSuccess;
    }
    if (comm->segment != NULL)
        (void)munmap(comm->segment, sizeof *comm->segment);
    free(comm);
    return ncclInvalidUsage;
}

/* ---- sums ---- */

struct call {
    struct ncclComm *comm;
    const void *input;
    void *output;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
};

static double combine(ncclRedOp_t op, double a, double b)
{
    if (op == ncclMin || op == ncclMax)
        return (op == ncclMin) == (b < a) ? b : a;
    return a + b;
}

/* Halves: every sum is one, as in a ring of NCCL's. */
#define REDUCE_HALF(widen, narrow)                                                                                     \
    for (size_t i = 0; i < n; i++) {                                                                                   \
        float value = 0;                                                                                               \
        for (int r = 0; r < comm->size; r++) {                                                                         \
            uint16_t one;                                                                                              \
            memcpy(&one, comm->segment->slot[r] + i * sizeof one, sizeof one);                                         \
            value = r == 0 ? widen(one) : (float)combine(call->op, (double)value, (double)widen(one));                 \
            value = widen(narrow(value));                                                                              \
        }                                                                                                              \
        const uint16_t result = narrow(call->op == ncclAvg ? value / (float)comm->size : value);                       \
        memcpy(to + i * sizeof result, &result, sizeof result);                                                        \
    }

/* Of all ranks, in their order. Enough for the types of the tests. */
#define REDUCE(type)                                                                                                   \
    for (size_t i = 0; i < n; i++) {                                                                                   \
        double value = 0;                                                                                              \
        for (int r = 0; r < comm->size; r++) {                                                                         \
            type one;                                                                                                  \
            memcpy(&one, comm->segment->slot[r] + i * sizeof one, sizeof one);                                         \
            value = r == 0 ? (double)one : combine(call->op, value, (double)one);                                      \
        }                                                                                                              \
        const type result = (type)(call->op == ncclAvg ? value / comm->size : value);                                  \
        memcpy(to + i * sizeof result, &result, sizeof result);                                                        \
    }

static size_t size_of(ncclDataType_t type)
{
    if (type == ncclFloat16 || type == ncclBfloat16)
        return 2;
    return type == ncclFloat64 || type == ncclInt64 ? 8 : 4;
}

static void run(void *argument)
{
    const struct call *call = argument;
    struct ncclComm *comm = call->comm;
    const size_t size = size_of(call->type), step = SLOT / size;
    for (size_t begin = 0; begin < call->count; begin += step) {
        const size_t n = call->count - begin < step ? call->count - begin : step;
        unsigned char *to = (unsigned char *)call->output + begin * size;
        memcpy(comm->segment->slot[comm->rank], (const unsigned char *)call->input + begin * size, n * size);
        if (!meet(comm))
            return; /* the result stays wrong */
        if (call->type == ncclFloat32) {
            REDUCE(float)
        } else if (call->type == ncclFloat64) {
            REDUCE(double)
        } else if (call->type == ncclFloat16) {
            REDUCE_HALF(f16_to_f32, f16_from_f32)
        } else if (call->type == ncclBfloat16) {
            REDUCE_HALF(bf16_to_f32, bf16_from_f32)
        } else if (call->type == ncclInt32) {
            REDUCE(int32_t)
        } else {
            REDUCE(int64_t)
        }
        if (!meet(comm))
            return;
    }
}

ncclResult_t ncclAllReduce(const void *input, void *output, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    const struct fake_control *control = find_control();
    if (control == NULL || !control->is_device(input) || !control->is_device(output))
        return ncclInvalidArgument;
    struct call *call = malloc(sizeof *call);
    if (call == NULL)
        return ncclSystemError;
    *call = (struct call){comm, input, output, count, type, op};
    return control->put(stream, &(struct fake_work){run, free, call}) == cudaSuccess ? ncclSuccess : ncclInvalidUsage;
}

/* ---- the rest ---- */

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    (void)comm;
    *error = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    return meet(comm) ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    (void)munmap(comm->segment, sizeof *comm->segment);
    free(comm);
    return ncclSuccess;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = 22809;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclInvalidUsage ? "Duplicate GPU detected" : "fake NCCL: no such call";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}
