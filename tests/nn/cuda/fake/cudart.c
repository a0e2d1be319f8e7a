/* cudart.c - the CUDA runtime of the fake device: memory, streams, events, graphs; see fake.h. */
#define _GNU_SOURCE /* memfd_create */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/nn/cuda/fake/fake.h"
#include "tests/nn/cuda/shim/shim.h"

enum {
    PAGE = 4096,
    BLOCK = 2 << 20,
    /* what the real one allocates at least */ ALIGNMENT = 256,
    RUNTIME_VERSION = CUDART_VERSION,
    QUERY_STEPS = 3
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local cudaError_t last_error;
static _Thread_local int current_card;

static cudaError_t give(cudaError_t code)
{
    if (code != cudaSuccess)
        last_error = code;
    return code;
}

/* ---- settings ---- */

static struct fake_settings settings;
static uint64_t state, waits, graphs, stalls, executions, imports;
static pthread_once_t configured = PTHREAD_ONCE_INIT;

static void set_word(const char *word)
{
    unsigned long long value = 0;
    const char *equals = strchr(word, '=');
    if (equals != NULL)
        value = strtoull(equals + 1, NULL, 10);
#define IS(name) (strncmp(word, name, strlen(name)) == 0)
    if (IS("seed="))
        settings.seed = value;
    else if (IS("cards="))
        settings.cards = (int)value;
    else if (IS("driver="))
        settings.driver = (int)value;
    else if (IS("capability="))
        settings.capability = (int)value;
    else if (IS("drop="))
        settings.drop = value;
    else if (IS("megabytes="))
        settings.megabytes = value;
    else if (IS("clobber="))
        settings.clobber = value != 0;
    else if (IS("first="))
        settings.first = (int)value;
    else if (IS("fail="))
        settings.fail = value;
    else if (IS("import="))
        settings.import = value;
    else if (IS("report="))
        snprintf(settings.report, sizeof settings.report, "%s", equals + 1);
    else if (IS("refuse-capture"))
        settings.refuse_capture = true;
    else {
        (void)fprintf(stderr, "fake device: CHORALE_FAKE: %s is no setting\n", word);
        abort();
    }
#undef IS
}

static void configure(const char *words)
{
    char copy[256], *rest = NULL;
    settings = (struct fake_settings){
        .seed = 1, .cards = 1, .driver = RUNTIME_VERSION, .capability = 90, .megabytes = 16384, .clobber = true};
    waits = graphs = stalls = executions = imports = 0;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        set_word(word);
    state = settings.seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

static void configure_once(void)
{
    const char *words = getenv("CHORALE_FAKE"); /* NOLINT(concurrency-mt-unsafe): nobody sets the environment */
    configure(words != NULL ? words : "");
}

const struct fake_settings *fake_settings(void)
{
    (void)pthread_once(&configured, configure_once);
    return &settings;
}

static uint64_t draw(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

/* ---- memory ---- */

enum kind { DEVICE, PINNED, IMPORTED };

struct block {
    enum kind kind;
    unsigned char *base; /* what the caller has got */
    size_t bytes;
    unsigned char *map; /* with a page that faults at both ends; NULL: the caller's own memory (registered) */
    size_t map_bytes;
    int file;     /* memfd, -1: none */
    int exporter; /* process: imported */
    struct block *next;
};

static struct block *blocks;

static struct block *find_block(const void *address)
{
    const unsigned char *at = address;
    struct block *block = blocks;
    while (block != NULL && !(at >= block->base && at < block->base + block->bytes))
        block = block->next;
    return block;
}

static bool of_device(const struct block *block)
{
    return block != NULL && block->kind != PINNED;
}

/* The whole range lies in the block. */
static bool holds(const struct block *block, const void *address, size_t bytes)
{
    return bytes <= block->bytes - (size_t)((const unsigned char *)address - block->base);
}

static bool is_device(const void *address, size_t bytes)
{
    const struct block *block = find_block(address);
    return of_device(block) && holds(block, address, bytes);
}

bool fake_is_device(const void *address, size_t bytes)
{
    (void)pthread_mutex_lock(&lock);
    const bool is = is_device(address, bytes);
    (void)pthread_mutex_unlock(&lock);
    return is;
}

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static size_t taken(void)
{
    size_t bytes = 0;
    for (const struct block *block = blocks; block != NULL; block = block->next)
        bytes += block->kind == DEVICE ? block->bytes : 0;
    return bytes;
}

/* Maps a file between two pages that fault, the memory's end at the last page's. */
static struct block *map_block(enum kind kind, int file, size_t bytes)
{
    struct block *block = calloc(1, sizeof *block);
    const size_t data = round_up(bytes, PAGE);
    if (block == NULL)
        return NULL;
    block->map_bytes = data + 2 * (size_t)PAGE;
    block->map = mmap(NULL, block->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block->map == MAP_FAILED ||
        mmap(block->map + PAGE, data, PROT_NONE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
        free(block);
        return NULL;
    }
    block->kind = kind;
    block->file = file;
    block->bytes = bytes;
    block->base = block->map + PAGE + (data - round_up(bytes, ALIGNMENT));
    block->next = blocks;
    blocks = block;
    return block;
}

static void open_block(const struct block *block, int protection)
{
    if (block->map != NULL && block->kind != PINNED)
        (void)mprotect(block->map + PAGE, block->map_bytes - 2 * (size_t)PAGE, protection);
}

static int gates; /* who is in */

/* While work of queues runs, device memory can be reached. */
static void open_gates(void)
{
    if (gates++ > 0)
        return;
    for (const struct block *block = blocks; block != NULL; block = block->next)
        open_block(block, PROT_READ | PROT_WRITE);
}

static void close_gates(void)
{
    if (--gates > 0)
        return;
    for (const struct block *block = blocks; block != NULL; block = block->next)
        open_block(block, PROT_NONE);
}

static void remove_block(struct block *block)
{
    struct block **at = &blocks;
    while (*at != block)
        at = &(*at)->next;
    *at = block->next;
    if (block->map != NULL)
        (void)munmap(block->map, block->map_bytes);
    if (block->file >= 0)
        (void)close(block->file);
    free(block);
}

static struct block *new_block(enum kind kind, size_t bytes)
{
    const int file = memfd_create("chorale fake device", MFD_CLOEXEC);
    if (file < 0)
        return NULL;
    struct block *block = ftruncate(file, (off_t)round_up(bytes, PAGE)) == 0 ? map_block(kind, file, bytes) : NULL;
    if (block == NULL) {
        (void)close(file);
        return NULL;
    }
    (void)mprotect(block->map + PAGE, block->map_bytes - 2 * (size_t)PAGE, PROT_READ | PROT_WRITE);
    memset(block->base, 0xff, bytes); /* NaN in every type */
    open_block(block, PROT_NONE);
    return block;
}

/* ---- streams and events ---- */

enum task_kind { CALL, RECORD, WAIT };

/* One recording of an event: who waits, waits for it, whatever becomes of the event meanwhile. */
struct recording {
    bool happened;
    uint64_t time_ns; /* when */
    int users;        /* tasks, and the event whose latest it is */
};

struct event {
    struct recording *latest; /* NULL: never recorded */
    bool timing;
    int card;
};

/* Work that graphs and streams share. */
struct shared {
    struct fake_work work;
    int users;
};

struct task {
    enum task_kind kind;
    struct shared *shared;
    struct recording *recording;
    struct task *next;
};

struct tasks {
    struct task *first, **end;
};

struct graph {
    struct tasks tasks;
};

struct stream {
    struct tasks tasks;
    struct graph *capture;
    pthread_t capturer;
    enum cudaStreamCaptureMode mode;
    bool invalid; /* the capture met what it can't hold */
    int card, priority;
    struct stream *next;
};

static struct stream *streams;

static struct event *event_of(cudaEvent_t event)
{
    return (struct event *)(void *)event;
}

static struct stream *stream_of(cudaStream_t stream)
{
    return (struct stream *)(void *)stream;
}

static bool known(const struct stream *stream)
{
    const struct stream *other = streams;
    while (other != NULL && other != stream)
        other = other->next;
    return stream != NULL && other != NULL;
}

static void release_shared(struct shared *shared)
{
    if (shared == NULL || --shared->users > 0)
        return;
    if (shared->work.release != NULL)
        shared->work.release(shared->work.argument);
    free(shared);
}

static void release_recording(struct recording *recording)
{
    if (recording != NULL && --recording->users == 0)
        free(recording);
}

/* What was recorded last is done, or there was nothing. */
static bool happened(const struct event *event)
{
    return event->latest == NULL || event->latest->happened;
}

static void append(struct tasks *tasks, struct task *task)
{
    if (tasks->first == NULL)
        tasks->end = &tasks->first;
    *tasks->end = task;
    tasks->end = &task->next;
}

static cudaError_t append_new(struct tasks *tasks, struct task like)
{
    struct task *task = malloc(sizeof *task);
    if (task == NULL)
        return cudaErrorMemoryAllocation;
    *task = like;
    task->next = NULL;
    if (task->shared != NULL)
        task->shared->users++;
    if (task->recording != NULL)
        task->recording->users++;
    append(tasks, task);
    return cudaSuccess;
}

static void release_task(struct task *task)
{
    release_shared(task->shared);
    release_recording(task->recording);
    free(task);
}

static void release_tasks(struct tasks *tasks)
{
    for (struct task *task = tasks->first, *next; task != NULL; task = next) {
        next = task->next;
        release_task(task);
    }
    tasks->first = NULL;
}

static bool can_run(const struct stream *stream)
{
    const struct task *task = stream->tasks.first;
    return task != NULL && (task->kind != WAIT || task->recording->happened);
}

static void run_first(struct stream *stream)
{
    struct task *task = stream->tasks.first;
    if (task->kind == CALL)
        task->shared->work.run(task->shared->work.argument);
    if (task->kind == RECORD) {
        task->recording->happened = true;
        task->recording->time_ns = clock_ns();
    }
    stream->tasks.first = task->next;
    release_task(task);
}

/* One task of any stream; false: none can run. Now and then another stream is preferred, so that each gets far ahead of
 * the others at some time. */
static bool run_any(void)
{
    enum { STAYS = 5 };
    static const struct stream *preferred; /* compared only: it may be gone */
    struct stream *able[64], *chosen = NULL;
    uint64_t count = 0;
    for (struct stream *stream = streams; stream != NULL && count < 64; stream = stream->next) {
        if (can_run(stream))
            able[count++] = stream;
        if (can_run(stream) && stream == preferred)
            chosen = stream;
    }
    if (count == 0)
        return false;
    if (chosen == NULL || draw(STAYS) == 0)
        chosen = able[draw(count)];
    preferred = chosen;
    run_first(chosen);
    return true;
}

/* Until the stream is empty. */
static cudaError_t drain(const struct stream *stream)
{
    cudaError_t code = cudaSuccess;
    if (stream->tasks.first == NULL)
        return code;
    open_gates();
    while (stream->tasks.first != NULL && code == cudaSuccess)
        code = run_any() ? cudaSuccess : cudaErrorUnknown;
    close_gates();
    return code;
}

static void drain_all(void)
{
    open_gates();
    while (run_any())
        ;
    close_gates();
}

static bool pending(void)
{
    const struct stream *stream = streams;
    while (stream != NULL && !can_run(stream))
        stream = stream->next;
    return stream != NULL;
}

/* Somebody asks: a little gets done. */
static void do_some(void)
{
    const uint64_t steps = draw(QUERY_STEPS);
    if (steps == 0 || !pending())
        return;
    open_gates();
    for (uint64_t k = 0; k < steps && run_any(); k++)
        ;
    close_gates();
}

/* Whatever a capture can't hold spoils it, as CUDA has it. */
static cudaError_t put_task(struct stream *stream, struct task like)
{
    if (!known(stream) || stream->card != current_card)
        return cudaErrorInvalidResourceHandle;
    if (stream->capture == NULL)
        return append_new(&stream->tasks, like);
    /* Another thread's work would become a part of the graph: CUDA has no word against it, but nobody can mean that. */
    if (like.kind != CALL || pthread_equal(stream->capturer, pthread_self()) == 0) {
        stream->invalid = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    return append_new(&stream->capture->tasks, like);
}

cudaError_t fake_put(cudaStream_t stream, const struct fake_work *work)
{
    struct shared *shared = malloc(sizeof *shared);
    if (shared == NULL)
        return give(cudaErrorMemoryAllocation);
    *shared = (struct shared){.work = *work, .users = 1};
    (void)pthread_mutex_lock(&lock);
    const cudaError_t code = put_task(stream_of(stream), (struct task){.kind = CALL, .shared = shared});
    release_shared(shared);
    (void)pthread_mutex_unlock(&lock);
    return give(code);
}

/* While a thread captures, it may neither allocate nor wait for the card; in the global mode nobody may. */
static bool capturing(void)
{
    bool any = false;
    for (struct stream *stream = streams; stream != NULL; stream = stream->next) {
        const bool mine = pthread_equal(stream->capturer, pthread_self()) != 0;
        if (stream->capture != NULL && (mine || stream->mode == cudaStreamCaptureModeGlobal))
            stream->invalid = any = true;
    }
    return any;
}

/* ---- launches ---- */

static void run_kernel(void *kernel)
{
    shim_run(kernel);
}

static void release_kernel(void *kernel)
{
    shim_release(kernel);
}

static void launch(void *stream, void *kernel)
{
    (void)fake_put(stream, &(struct fake_work){run_kernel, release_kernel, kernel});
}

__attribute__((constructor)) static void take_launches(void)
{
    shim_set_launcher(launch);
}

/* ---- control ---- */

static uint64_t count_waits(void)
{
    return waits;
}

static uint64_t count_graphs(void)
{
    return graphs;
}

static uint64_t count_stalls(void)
{
    return stalls;
}

static uint64_t count_executions(void)
{
    return executions;
}

bool fake_execution(void)
{
    (void)fake_settings();
    (void)pthread_mutex_lock(&lock);
    const bool good = ++executions != settings.fail;
    (void)pthread_mutex_unlock(&lock);
    return good;
}

__attribute__((destructor)) static void report(void)
{
    char path[256];
    if (settings.report[0] == '\0')
        return;
    snprintf(path, sizeof path, "%s/%ld", settings.report, (long)getpid());
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return;
    (void)fprintf(file, "%llu\n", (unsigned long long)executions);
    (void)fclose(file);
}

static size_t count_bytes(void)
{
    size_t bytes = 0;
    (void)pthread_mutex_lock(&lock);
    for (const struct block *block = blocks; block != NULL; block = block->next)
        bytes += block->bytes;
    (void)pthread_mutex_unlock(&lock);
    return bytes;
}

static void (*at_capture)(void *context);
static void *at_capture_context;

static void call_at_capture(void (*call)(void *context), void *context)
{
    at_capture = call;
    at_capture_context = context;
}

static void configure_again(const char *words)
{
    (void)fake_settings();
    (void)pthread_mutex_lock(&lock);
    configure(words);
    (void)pthread_mutex_unlock(&lock);
}

static bool device_address(const void *address)
{
    return fake_is_device(address, 1);
}

static int priority_of(void *stream);

extern const struct fake_control chorale_fake;
__attribute__((visibility("default"))) const struct fake_control chorale_fake = {
    .configure = configure_again,
    .waits = count_waits,
    .graphs = count_graphs,
    .stalls = count_stalls,
    .allocated = count_bytes,
    .executions = count_executions,
    .priority = priority_of,
    .is_device = device_address,
    .at_capture = call_at_capture,
    .put = fake_put,
};

/* ---- the runtime: cards ---- */

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = RUNTIME_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = fake_settings()->driver;
    return cudaSuccess;
}

static cudaError_t usable(void)
{
    if (fake_settings()->driver < RUNTIME_VERSION)
        return give(cudaErrorInsufficientDriver);
    return fake_settings()->cards == 0 ? give(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    const cudaError_t code = usable();
    if (code == cudaSuccess)
        *count = fake_settings()->cards;
    return code;
}

cudaError_t cudaSetDevice(int device)
{
    const cudaError_t code = usable();
    if (code != cudaSuccess)
        return code;
    if (device < 0 || device >= settings.cards)
        return give(cudaErrorInvalidDevice);
    current_card = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    memset(properties, 0, sizeof *properties);
    if (device < 0 || device >= fake_settings()->cards)
        return give(cudaErrorInvalidDevice);
    snprintf(properties->name, sizeof properties->name, "fake device");
    snprintf(properties->uuid.bytes, sizeof properties->uuid.bytes, "fake %d", settings.first + device);
    properties->major = settings.capability / 10;
    properties->minor = settings.capability % 10;
    properties->multiProcessorCount = 4;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t code)
{
    switch (code) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidResourceHandle:
        return "invalid resource handle";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
        return "operation failed due to a previous error during capture";
    case cudaErrorNotReady:
        return "device not ready";
    default:
        return "another error";
    }
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

/* ---- the runtime: memory ---- */

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    (void)pthread_mutex_lock(&lock);
    *total = (size_t)fake_settings()->megabytes << 20;
    *left = *total - taken();
    (void)pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static cudaError_t allocate(enum kind kind, size_t bytes, void **memory)
{
    const cudaError_t code = usable();
    if (code != cudaSuccess)
        return code;
    if (bytes == 0)
        return give(cudaErrorInvalidValue);
    (void)pthread_mutex_lock(&lock);
    const bool room = kind != DEVICE || bytes <= ((size_t)settings.megabytes << 20) - taken();
    const bool captured = capturing();
    stalls++;
    struct block *block = room && !captured ? new_block(kind, bytes) : NULL;
    if (block != NULL)
        *memory = block->base;
    (void)pthread_mutex_unlock(&lock);
    if (captured)
        return give(cudaErrorStreamCaptureUnsupported);
    return block != NULL ? cudaSuccess : give(cudaErrorMemoryAllocation);
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    return allocate(DEVICE, bytes, memory);
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    return allocate(PINNED, bytes, memory);
}

/* Like CUDA, whoever frees waits for everything. */
static cudaError_t give_back(void *memory, enum kind kind)
{
    cudaError_t code = cudaSuccess;
    if (memory == NULL)
        return code;
    (void)pthread_mutex_lock(&lock);
    drain_all();
    stalls++;
    struct block *block = find_block(memory);
    if (capturing())
        code = cudaErrorStreamCaptureUnsupported;
    else if (block == NULL || block->base != memory || block->kind != kind)
        code = cudaErrorInvalidValue;
    else
        remove_block(block);
    (void)pthread_mutex_unlock(&lock);
    return give(code);
}

cudaError_t cudaFree(void *memory)
{
    return give_back(memory, DEVICE);
}

cudaError_t cudaFreeHost(void *memory)
{
    return give_back(memory, PINNED);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    (void)flags;
    struct block *block = calloc(1, sizeof *block);
    if (block == NULL)
        return give(cudaErrorMemoryAllocation);
    *block = (struct block){.kind = PINNED, .base = memory, .bytes = bytes, .file = -1};
    (void)pthread_mutex_lock(&lock);
    const bool again = find_block(memory) != NULL;
    if (!again) {
        block->next = blocks;
        blocks = block;
    }
    (void)pthread_mutex_unlock(&lock);
    if (again)
        free(block);
    return again ? give(cudaErrorHostMemoryAlreadyRegistered) : cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
    return give_back(memory, PINNED);
}

struct ipc {
    int process, file;
    size_t offset, bytes;
};

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory)
{
    (void)pthread_mutex_lock(&lock);
    const struct block *block = find_block(memory);
    const bool good = block != NULL && block->kind == DEVICE && block->base == memory;
    struct ipc ipc = {.process = (int)getpid()};
    if (good) {
        ipc.file = block->file;
        ipc.bytes = block->bytes;
    }
    (void)pthread_mutex_unlock(&lock);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &ipc, sizeof ipc);
    return good ? cudaSuccess : give(cudaErrorInvalidValue);
}

/* Allocations that fill no blocks share one, of which only one part can be had at a time. */
static bool shares_a_block(const struct ipc *ipc)
{
    const struct block *block = blocks;
    while (block != NULL && !(block->kind == IMPORTED && block->exporter == ipc->process && block->bytes % BLOCK != 0))
        block = block->next;
    return ipc->bytes % BLOCK != 0 && block != NULL;
}

cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned flags)
{
    struct ipc ipc;
    char path[64];
    memcpy(&ipc, &handle, sizeof ipc);
    if (ipc.process == (int)getpid() || flags != cudaIpcMemLazyEnablePeerAccess)
        return give(cudaErrorInvalidValue);
    if (fake_settings()->import > 0 && ++imports >= fake_settings()->import)
        return give(cudaErrorInvalidResourceHandle);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ipc.process, ipc.file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return give(cudaErrorInvalidValue);
    (void)pthread_mutex_lock(&lock);
    const bool mapped = shares_a_block(&ipc);
    struct block *block = mapped ? NULL : map_block(IMPORTED, file, ipc.bytes);
    if (block != NULL) {
        block->exporter = ipc.process;
        *memory = block->base;
    }
    (void)pthread_mutex_unlock(&lock);
    if (mapped)
        (void)close(file);
    return block != NULL ? cudaSuccess : give(mapped ? cudaErrorAlreadyMapped : cudaErrorMemoryAllocation);
}

cudaError_t cudaIpcCloseMemHandle(void *memory)
{
    return give_back(memory, IMPORTED);
}

/* ---- the runtime: copies ---- */

struct copy {
    void *to;
    const void *from;
    void *staged; /* what `from` was, of host memory that is not pinned */
    size_t bytes;
};

static void run_copy(void *argument)
{
    const struct copy *copy = argument;
    memmove(copy->to, copy->staged != NULL ? copy->staged : copy->from, copy->bytes);
}

static void release_copy(void *argument)
{
    struct copy *copy = argument;
    free(copy->staged);
    free(copy);
}

struct fill {
    void *to;
    int value;
    size_t bytes;
};

static void run_fill(void *argument)
{
    const struct fill *fill = argument;
    memset(fill->to, fill->value, fill->bytes);
}

/* Neither end may leave its block, and ends are what the kind says. */
static bool good_ends(const struct copy *copy, enum cudaMemcpyKind kind)
{
    const struct block *to = find_block(copy->to), *from = find_block(copy->from);
    if ((to != NULL && !holds(to, copy->to, copy->bytes)) || (from != NULL && !holds(from, copy->from, copy->bytes)))
        return false;
    if (kind == cudaMemcpyDeviceToHost)
        return of_device(from) && !of_device(to);
    return kind == cudaMemcpyDefault;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    struct copy *copy = calloc(1, sizeof *copy);
    if (copy == NULL)
        return give(cudaErrorMemoryAllocation);
    *copy = (struct copy){.to = to, .from = from, .bytes = bytes};
    (void)pthread_mutex_lock(&lock);
    const bool good = good_ends(copy, kind), waits_for = find_block(to) == NULL;
    stalls += waits_for || find_block(from) == NULL;
    if (good && find_block(from) == NULL) {
        copy->staged = malloc(bytes);
        if (copy->staged != NULL)
            memcpy(copy->staged, from, bytes);
    }
    (void)pthread_mutex_unlock(&lock);
    if (!good) {
        release_copy(copy);
        return give(cudaErrorInvalidValue);
    }
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the work has it, and release_copy() frees it */
    const cudaError_t code = fake_put(stream, &(struct fake_work){run_copy, release_copy, copy});
    return code == cudaSuccess && waits_for ? cudaStreamSynchronize(stream) : code;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    struct fill *fill = malloc(sizeof *fill);
    if (fill == NULL)
        return give(cudaErrorMemoryAllocation);
    *fill = (struct fill){to, value, bytes};
    if (!fake_is_device(to, bytes)) {
        free(fill);
        return give(cudaErrorInvalidValue);
    }
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the work has it, and frees it */
    return fake_put(stream, &(struct fake_work){run_fill, free, fill});
}

/* ---- the runtime: streams ---- */

enum { PRIORITY_LEAST = 0, PRIORITY_GREATEST = -5 };

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = PRIORITY_LEAST;
    *greatest = PRIORITY_GREATEST;
    return cudaSuccess;
}

static int priority_of(void *stream)
{
    return ((struct stream *)stream)->priority;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, PRIORITY_LEAST);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    struct stream *made = calloc(1, sizeof *made);
    if (made == NULL || flags != cudaStreamNonBlocking || priority > PRIORITY_LEAST || priority < PRIORITY_GREATEST) {
        free(made);
        return give(made == NULL ? cudaErrorMemoryAllocation : cudaErrorInvalidValue);
    }
    (void)pthread_mutex_lock(&lock);
    made->card = current_card;
    made->priority = priority;
    made->next = streams;
    streams = made;
    (void)pthread_mutex_unlock(&lock);
    *stream = (cudaStream_t)(void *)made;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    struct stream *gone = stream_of(stream);
    (void)pthread_mutex_lock(&lock);
    const bool good = known(gone) && gone->capture == NULL;
    if (good) {
        (void)drain(gone);
        struct stream **at = &streams;
        while (*at != gone)
            at = &(*at)->next;
        *at = gone->next;
        release_tasks(&gone->tasks);
        free(gone);
    }
    (void)pthread_mutex_unlock(&lock);
    return good ? cudaSuccess : give(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    struct stream *of = stream_of(stream);
    cudaError_t code = cudaErrorInvalidResourceHandle;
    (void)pthread_mutex_lock(&lock);
    stalls++;
    if (known(of) && of->capture == NULL) {
        code = drain(of);
    } else if (known(of)) {
        of->invalid = true;
        code = cudaErrorStreamCaptureUnsupported;
    }
    (void)pthread_mutex_unlock(&lock);
    return give(code);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    cudaError_t code = cudaSuccess;
    struct event *of = event_of(event);
    (void)pthread_mutex_lock(&lock);
    if (of == NULL)
        code = cudaErrorInvalidResourceHandle;
    else if (++waits != settings.drop && of->latest != NULL)
        code = put_task(stream_of(stream), (struct task){.kind = WAIT, .recording = of->latest});
    (void)pthread_mutex_unlock(&lock);
    return give(code);
}

/* ---- the runtime: events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    struct event *made = calloc(1, sizeof *made);
    if (made == NULL)
        return give(cudaErrorMemoryAllocation);
    made->timing = (flags & cudaEventDisableTiming) == 0;
    made->card = current_card;
    *event = (cudaEvent_t)(void *)made;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    struct event *gone = event_of(event);
    if (gone == NULL)
        return give(cudaErrorInvalidResourceHandle);
    (void)pthread_mutex_lock(&lock);
    release_recording(gone->latest);
    free(gone);
    (void)pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* Of the event: what was recorded before keeps its own. */
static cudaError_t record(struct event *event, struct stream *stream)
{
    struct recording *made = calloc(1, sizeof *made);
    if (made == NULL)
        return cudaErrorMemoryAllocation;
    made->users = 1;
    const cudaError_t code = put_task(stream, (struct task){.kind = RECORD, .recording = made});
    if (code == cudaSuccess) {
        release_recording(event->latest);
        event->latest = made;
    } else {
        release_recording(made);
    }
    return code;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    struct event *of = event_of(event);
    if (of == NULL)
        return give(cudaErrorInvalidResourceHandle);
    (void)pthread_mutex_lock(&lock);
    cudaError_t code = cudaErrorInvalidResourceHandle;
    if (known(stream_of(stream)) && stream_of(stream)->card == of->card)
        code = record(of, stream_of(stream));
    (void)pthread_mutex_unlock(&lock);
    return give(code);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    const struct event *of = event_of(event);
    (void)pthread_mutex_lock(&lock);
    if (!happened(of))
        do_some();
    const bool ready = happened(of);
    (void)pthread_mutex_unlock(&lock);
    return ready ? cudaSuccess : give(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    const struct event *of = event_of(event);
    cudaError_t code = cudaSuccess;
    (void)pthread_mutex_lock(&lock);
    struct recording *awaited = of->latest;
    if (awaited != NULL && !awaited->happened) {
        awaited->users++;
        open_gates();
        while (!awaited->happened && code == cudaSuccess)
            code = run_any() ? cudaSuccess : cudaErrorUnknown;
        close_gates();
        release_recording(awaited);
    }
    (void)pthread_mutex_unlock(&lock);
    return give(code);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    const struct event *from = event_of(start), *to = event_of(end);
    if (!from->timing || !to->timing)
        return give(cudaErrorInvalidResourceHandle);
    (void)pthread_mutex_lock(&lock);
    cudaError_t code = from->latest != NULL && to->latest != NULL ? cudaSuccess : cudaErrorInvalidResourceHandle;
    if (code == cudaSuccess && !(happened(from) && happened(to)))
        code = cudaErrorNotReady;
    if (code == cudaSuccess)
        *milliseconds = (float)((double)(to->latest->time_ns - from->latest->time_ns) * 1e-6);
    (void)pthread_mutex_unlock(&lock);
    return give(code);
}

/* ---- the runtime: graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    struct stream *of = stream_of(stream);
    if (fake_settings()->refuse_capture)
        return give(cudaErrorStreamCaptureUnsupported);
    (void)pthread_mutex_lock(&lock);
    const bool good = known(of) && of->capture == NULL;
    if (good) {
        of->capture = calloc(1, sizeof *of->capture);
        of->capturer = pthread_self();
        of->mode = mode;
        of->invalid = false;
    }
    (void)pthread_mutex_unlock(&lock);
    if (good && at_capture != NULL)
        at_capture(at_capture_context);
    return good ? cudaSuccess : give(cudaErrorInvalidResourceHandle);
}

static struct graph *graph_of(void *graph)
{
    return graph;
}

static void destroy_graph(struct graph *graph)
{
    (void)pthread_mutex_lock(&lock);
    release_tasks(&graph->tasks);
    free(graph);
    (void)pthread_mutex_unlock(&lock);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    struct stream *of = stream_of(stream);
    *graph = NULL;
    (void)pthread_mutex_lock(&lock);
    struct graph *made = known(of) && pthread_equal(of->capturer, pthread_self()) != 0 ? of->capture : NULL;
    const bool invalid = made != NULL && of->invalid;
    if (made != NULL)
        of->capture = NULL;
    (void)pthread_mutex_unlock(&lock);
    if (made == NULL)
        return give(cudaErrorInvalidResourceHandle);
    if (invalid) {
        destroy_graph(made);
        return give(cudaErrorStreamCaptureInvalidated);
    }
    *graph = (cudaGraph_t)(void *)made;
    return cudaSuccess;
}

static cudaError_t copy_tasks(struct tasks *to, const struct tasks *from)
{
    cudaError_t code = cudaSuccess;
    for (const struct task *task = from->first; task != NULL && code == cudaSuccess; task = task->next)
        code = append_new(to, *task);
    return code;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    struct graph *made = calloc(1, sizeof *made);
    if (made == NULL)
        return give(cudaErrorMemoryAllocation);
    (void)pthread_mutex_lock(&lock);
    const cudaError_t code = copy_tasks(&made->tasks, &graph_of(graph)->tasks);
    (void)pthread_mutex_unlock(&lock);
    *executable = (cudaGraphExec_t)(void *)made;
    return give(code);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream)
{
    struct stream *of = stream_of(stream);
    (void)pthread_mutex_lock(&lock);
    cudaError_t code =
        known(of) && of->card == current_card && of->capture == NULL ? cudaSuccess : cudaErrorInvalidResourceHandle;
    if (code == cudaSuccess)
        code = copy_tasks(&of->tasks, &graph_of(executable)->tasks);
    graphs++;
    (void)pthread_mutex_unlock(&lock);
    return give(code);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    destroy_graph(graph_of(graph));
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable)
{
    destroy_graph(graph_of(executable));
    return cudaSuccess;
}
