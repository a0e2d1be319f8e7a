/* device.c - the toy's memory, queues and events (toy.h). */
#define _GNU_SOURCE /* memfd_create */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/half.h"
#include "base/rng.h"
#include "comm/kernels.h"
#include "tests/nn/toy/toy.h"

enum { PAGE = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void toy_fault(const char *what)
{
    (void)fprintf(stderr, "toy device: %s\n", what);
    abort();
}

static void *get(size_t size)
{
    void *memory = calloc(1, size);
    if (memory == NULL)
        toy_fault("out of memory");
    return memory;
}

/* ---- settings ---- */

static struct toy_settings settings;
static pthread_once_t configured = PTHREAD_ONCE_INIT;

static void configure(void)
{
    const char *words = getenv("CHORALE_TOY"); /* NOLINT(concurrency-mt-unsafe): nobody sets the environment */
    settings = (struct toy_settings){.seed = 1, .cards = 1, .end = -1, .nan = -1};
    for (const char *at = words != NULL ? words : ""; *at != '\0'; at += strcspn(at, " "), at += strspn(at, " ")) {
        const char *equals = strchr(at, '=');
        const long long value = equals != NULL ? (long long)strtoull(equals + 1, NULL, 10) : 0;
        if (strncmp(at, "seed=", 5) == 0)
            settings.seed = (uint64_t)value;
        else if (strncmp(at, "cards=", 6) == 0)
            settings.cards = (int)value;
        else if (strncmp(at, "end=", 4) == 0)
            settings.end = value;
        else if (strncmp(at, "nan=", 4) == 0)
            settings.nan = value;
        else
            toy_fault("CHORALE_TOY: no such setting");
    }
}

const struct toy_settings *toy_settings(void)
{
    (void)pthread_once(&configured, configure);
    return &settings;
}

/* ---- the device ---- */

/* What an event stands for: one recording of it. */
struct moment {
    unsigned users;
    bool happened;
};

struct device_event {
    struct moment *moment; /* NULL: never recorded */
};

struct device_queue {
    struct toy *toy;
    struct toy_work *first, **last;
    struct device_queue *next;
};

/* A range that the toy knows: of the device, with its second mapping, or of the host. */
struct known {
    unsigned char *memory, *alias;
    size_t bytes, mapped; /* mapped 0: host memory, registered or, with `ours`, allocated */
    bool ours;
    struct known *next;
};

struct toy {
    struct device device; /* first */
    int local_rank;
    uint64_t drawn;
    struct device_queue *compute, *queues;
};

static struct known *knowns;

static struct toy *toy_of(struct device *device)
{
    return (struct toy *)device;
}

static uint64_t draw(struct toy *toy, uint64_t below)
{
    return rng_below(rng_key(toy_settings()->seed, "toy", (uint64_t)toy->local_rank, 0), toy->drawn++, below);
}

/* ---- memory ---- */

void *toy_touch(const void *memory, size_t bytes, bool host)
{
    const unsigned char *at = memory;
    for (const struct known *k = knowns; k != NULL; k = k->next) {
        if (at < k->memory || at >= k->memory + k->bytes)
            continue;
        if (bytes > (size_t)(k->memory + k->bytes - at))
            toy_fault("work beyond the end of memory");
        if (k->mapped == 0 && !host)
            toy_fault("work of the device on host memory");
        return k->alias + (at - k->memory);
    }
    if (!host)
        toy_fault("work on memory that is not there");
    return NULL;
}

static void know(struct known known)
{
    struct known *k = get(sizeof *k);
    *k = known;
    k->next = knowns;
    knowns = k;
}

static void forget(const void *memory, struct known *was)
{
    for (struct known **at = &knowns; *at != NULL; at = &(*at)->next) {
        struct known *k = *at;
        if (k->memory != memory)
            continue;
        *was = *k;
        *at = k->next;
        free(k);
        return;
    }
    toy_fault("freed twice, or never allocated");
}

static enum status device_alloc(struct device *device, size_t bytes, void **memory)
{
    (void)device;
    const size_t mapped = (bytes + PAGE - 1) / PAGE * PAGE;
    const int fd = memfd_create("toy", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)mapped) != 0)
        toy_fault("no memory file");
    unsigned char *base = mmap(NULL, mapped, PROT_NONE, MAP_SHARED, fd, 0);
    unsigned char *alias = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (base == MAP_FAILED || alias == MAP_FAILED)
        toy_fault("no mapping");
    (void)pthread_mutex_lock(&lock);
    know((struct known){.memory = base, .alias = alias, .bytes = bytes, .mapped = mapped});
    (void)pthread_mutex_unlock(&lock);
    *memory = base;
    return STATUS_OK;
}

static void device_free(struct device *device, void *memory)
{
    (void)device;
    struct known was;
    if (memory == NULL)
        return;
    (void)pthread_mutex_lock(&lock);
    forget(memory, &was);
    (void)pthread_mutex_unlock(&lock);
    (void)munmap(was.memory, was.mapped);
    (void)munmap(was.alias, was.mapped);
}

static enum status host_alloc(struct device *device, size_t bytes, void **memory)
{
    (void)device;
    unsigned char *made = get(bytes > 0 ? bytes : 1);
    (void)pthread_mutex_lock(&lock);
    know((struct known){.memory = made, .alias = made, .bytes = bytes, .ours = true});
    (void)pthread_mutex_unlock(&lock);
    *memory = made;
    return STATUS_OK;
}

static enum status host_register(struct device *device, void *memory, size_t bytes)
{
    (void)device;
    (void)pthread_mutex_lock(&lock);
    know((struct known){.memory = memory, .alias = memory, .bytes = bytes});
    (void)pthread_mutex_unlock(&lock);
    return STATUS_OK;
}

static void host_free(struct device *device, void *memory)
{
    (void)device;
    struct known was;
    if (memory == NULL)
        return;
    (void)pthread_mutex_lock(&lock);
    forget(memory, &was);
    (void)pthread_mutex_unlock(&lock);
    if (was.ours)
        free(was.memory);
}

static enum status export_memory(struct device *device, void *memory, struct device_export *card)
{
    (void)device, (void)memory, (void)card;
    return fail(STATUS_UNAVAILABLE, "toy device: its memory can't be shared");
}

static enum status import_memory(struct device *device, const struct device_export *card, void **memory)
{
    (void)device, (void)card, (void)memory;
    return fail(STATUS_UNAVAILABLE, "toy device: its memory can't be shared");
}

/* ---- queues: the lock is held ---- */

static void put(struct device_queue *queue, struct toy_work *work)
{
    work->next = NULL;
    *queue->last = work;
    queue->last = &work->next;
}

struct order {
    struct toy_work work;
    struct moment *moment;
};

static void run_order(struct toy_work *work)
{
    struct moment *moment = ((struct order *)work)->moment;
    if (--moment->users == 0)
        free(moment);
}

static bool is_ready(const struct device_queue *queue)
{
    const struct toy_work *work = queue->first;
    return work != NULL && (work->run != run_order || ((const struct order *)work)->moment->happened);
}

/* False: no queue can go on. */
static bool run_any(struct toy *toy)
{
    struct device_queue *chosen = NULL;
    uint64_t seen = 0;
    for (struct device_queue *q = toy->queues; q != NULL; q = q->next)
        if (is_ready(q) && draw(toy, ++seen) == 0)
            chosen = q;
    if (chosen == NULL)
        return false;
    struct toy_work *work = chosen->first;
    chosen->first = work->next;
    if (chosen->first == NULL)
        chosen->last = &chosen->first;
    work->run(work);
    free(work);
    return true;
}

/* Now and then a queue goes on while others put work. */
static void run_some(struct toy *toy)
{
    for (uint64_t left = draw(toy, 3); left > 0 && run_any(toy); left--)
        continue;
}

static void enter(struct device_queue *queue, struct toy_work *work)
{
    (void)pthread_mutex_lock(&lock);
    run_some(queue->toy);
    put(queue, work);
    (void)pthread_mutex_unlock(&lock);
}

static enum status queue_create(struct device *device, struct device_queue **queue)
{
    struct toy *toy = toy_of(device);
    struct device_queue *made = get(sizeof *made);
    made->toy = toy;
    made->last = &made->first;
    (void)pthread_mutex_lock(&lock);
    made->next = toy->queues;
    toy->queues = made;
    (void)pthread_mutex_unlock(&lock);
    *queue = made;
    return STATUS_OK;
}

static void queue_destroy(struct device_queue *queue)
{
    if (queue == NULL)
        return;
    (void)pthread_mutex_lock(&lock);
    if (queue->first != NULL)
        toy_fault("a queue is destroyed that has still something to do");
    struct device_queue **at = &queue->toy->queues;
    while (*at != queue)
        at = &(*at)->next;
    *at = queue->next;
    (void)pthread_mutex_unlock(&lock);
    free(queue);
}

static struct device_queue *compute(struct device *device)
{
    return toy_of(device)->compute;
}

void toy_put(struct device *device, struct toy_work *work)
{
    enter(compute(device), work);
}

void toy_finish(struct device *device)
{
    (void)pthread_mutex_lock(&lock);
    while (compute(device)->first != NULL)
        if (!run_any(toy_of(device)))
            toy_fault("queues that wait for each other");
    (void)pthread_mutex_unlock(&lock);
}

int toy_local_rank(const struct device *device)
{
    return ((const struct toy *)device)->local_rank;
}

/* ---- events ---- */

struct record {
    struct toy_work work;
    struct moment *moment;
};

static void moment_leave(struct moment *moment)
{
    if (moment != NULL && --moment->users == 0)
        free(moment);
}

static void run_record(struct toy_work *work)
{
    struct moment *moment = ((struct record *)work)->moment;
    moment->happened = true;
    moment_leave(moment);
}

static enum status event_create(struct device *device, struct device_event **event)
{
    (void)device;
    *event = get(sizeof **event);
    return STATUS_OK;
}

static void event_destroy(struct device_event *event)
{
    if (event == NULL)
        return;
    (void)pthread_mutex_lock(&lock);
    moment_leave(event->moment);
    (void)pthread_mutex_unlock(&lock);
    free(event);
}

static enum status record(struct device_queue *queue, struct device_event *event)
{
    struct record *work = get(sizeof *work);
    struct moment *moment = get(sizeof *moment);
    moment->users = 2;
    work->work.run = run_record;
    work->moment = moment;
    (void)pthread_mutex_lock(&lock);
    moment_leave(event->moment);
    event->moment = moment;
    put(queue, &work->work);
    (void)pthread_mutex_unlock(&lock);
    return STATUS_OK;
}

static enum status order(struct device_queue *queue, struct device_event *event)
{
    struct order *work = get(sizeof *work);
    (void)pthread_mutex_lock(&lock);
    if (event->moment == NULL)
        toy_fault("ordered after an event that was never recorded");
    event->moment->users++;
    work->work.run = run_order;
    work->moment = event->moment;
    put(queue, &work->work);
    (void)pthread_mutex_unlock(&lock);
    return STATUS_OK;
}

/* All queues of the process may have to go on: an event is not told of its device. */
static struct toy *the_toy;

static enum status query(struct device_event *event)
{
    (void)pthread_mutex_lock(&lock);
    if (event->moment != NULL && !event->moment->happened)
        run_some(the_toy);
    const bool happened = event->moment == NULL || event->moment->happened;
    (void)pthread_mutex_unlock(&lock);
    return happened ? STATUS_OK : STATUS_AGAIN;
}

static enum status wait_event(struct device_event *event)
{
    (void)pthread_mutex_lock(&lock);
    while (event->moment != NULL && !event->moment->happened)
        if (!run_any(the_toy))
            toy_fault("an event that can't happen is waited for");
    (void)pthread_mutex_unlock(&lock);
    return STATUS_OK;
}

/* ---- work ---- */

struct job {
    struct toy_work work;
    enum dtype dtype, from_type;
    enum reduce_op op;
    void *out;
    const void *first;
    struct device_term term[DEVICE_TERMS];
    size_t terms, count;
    double weight;
};

static void run_copy(struct toy_work *work)
{
    const struct job *job = (struct job *)work;
    void *out = toy_touch(job->out, job->count, true);
    const void *from = toy_touch(job->first, job->count, true);
    memmove(out, from, job->count);
}

/* Host memory that is not pinned can't wait for the queue: the call blocks. */
static bool is_known(const void *memory, size_t bytes)
{
    (void)pthread_mutex_lock(&lock);
    const bool known = toy_touch(memory, bytes, true) != NULL;
    (void)pthread_mutex_unlock(&lock);
    return known;
}

static struct job *new_job(void (*run)(struct toy_work *), void *out, const void *first, size_t count)
{
    struct job *job = get(sizeof *job);
    job->work.run = run;
    job->out = out;
    job->first = first;
    job->count = count;
    return job;
}

static enum status copy(struct device_queue *queue, void *to, const void *from, size_t bytes)
{
    const bool to_pinned = is_known(to, bytes), from_pinned = is_known(from, bytes);
    if (to_pinned && from_pinned) {
        enter(queue, &new_job(run_copy, to, from, bytes)->work);
        return STATUS_OK;
    }
    (void)pthread_mutex_lock(&lock);
    while (queue->first != NULL)
        if (!run_any(queue->toy))
            toy_fault("queues that wait for each other");
    void *out = to_pinned ? toy_touch(to, bytes, true) : to;
    memmove(out, from_pinned ? toy_touch(from, bytes, true) : from, bytes);
    (void)pthread_mutex_unlock(&lock);
    return STATUS_OK;
}

static void run_reduce(struct toy_work *work)
{
    const struct job *job = (struct job *)work;
    const size_t bytes = job->count * dtype_size(job->dtype);
    void *out = toy_touch(job->out, bytes, false);
    const void *left = toy_touch(job->first, bytes, false);
    for (size_t k = 0; k < job->terms; k++, left = out)
        kernel_reduce(job->dtype, job->op, out, left, toy_touch(job->term[k].data, bytes, false), job->count,
                      job->term[k].divisor);
}

static void run_mix(struct toy_work *work)
{
    const struct job *job = (struct job *)work;
    const size_t bytes = job->count * dtype_size(job->dtype);
    void *out = toy_touch(job->out, bytes, false);
    const void *left = toy_touch(job->first, bytes, false);
    for (size_t k = 0; k < job->terms; k++, left = out)
        kernel_axpy(job->dtype, out, left, toy_touch(job->term[k].data, bytes, false), job->term[k].weight, job->count);
}

static enum status reduce(struct device_queue *queue, enum dtype dtype, enum reduce_op op, void *out, const void *first,
                          const struct device_term *term, size_t terms, size_t count)
{
    struct job *job = new_job(run_reduce, out, first, count);
    job->dtype = dtype;
    job->op = op;
    job->terms = terms;
    memcpy(job->term, term, terms * sizeof *term);
    enter(queue, &job->work);
    return STATUS_OK;
}

static enum status mix(struct device_queue *queue, enum dtype dtype, void *out, const void *first,
                       const struct device_term *term, size_t terms, size_t count)
{
    struct job *job = new_job(run_mix, out, first, count);
    job->dtype = dtype;
    job->terms = terms;
    memcpy(job->term, term, terms * sizeof *term);
    enter(queue, &job->work);
    return STATUS_OK;
}

static void run_scale(struct toy_work *work)
{
    const struct job *job = (struct job *)work;
    const size_t bytes = job->count * dtype_size(job->dtype);
    kernel_scale(job->dtype, toy_touch(job->out, bytes, false), toy_touch(job->first, bytes, false), job->weight,
                 job->count);
}

static enum status scale(struct device_queue *queue, enum dtype dtype, void *out, const void *from, double weight,
                         size_t count)
{
    struct job *job = new_job(run_scale, out, from, count);
    job->dtype = dtype;
    job->weight = weight;
    enter(queue, &job->work);
    return STATUS_OK;
}

static void run_divide(struct toy_work *work)
{
    const struct job *job = (struct job *)work;
    const size_t bytes = job->count * dtype_size(job->dtype);
    kernel_divide(job->dtype, toy_touch(job->out, bytes, false), toy_touch(job->first, bytes, false), (int)job->weight,
                  job->count);
}

static enum status divide(struct device_queue *queue, enum dtype dtype, void *out, const void *from, int divisor,
                          size_t count)
{
    struct job *job = new_job(run_divide, out, from, count);
    job->dtype = dtype;
    job->weight = divisor;
    enter(queue, &job->work);
    return STATUS_OK;
}

static void run_convert(struct toy_work *work)
{
    const struct job *job = (struct job *)work;
    void *to = toy_touch(job->out, job->count * dtype_size(job->dtype), false);
    const void *from = toy_touch(job->first, job->count * dtype_size(job->from_type), false);
    if (job->dtype == DTYPE_F16)
        f16_encode(to, from, job->count);
    else if (job->dtype == DTYPE_BF16)
        bf16_encode(to, from, job->count);
    else if (job->from_type == DTYPE_F16)
        f16_decode(to, from, job->count);
    else
        bf16_decode(to, from, job->count);
}

static enum status convert(struct device_queue *queue, enum dtype to_type, void *to, enum dtype from_type,
                           const void *from, size_t count)
{
    struct job *job = new_job(run_convert, to, from, count);
    job->dtype = to_type;
    job->from_type = from_type;
    enter(queue, &job->work);
    return STATUS_OK;
}

/* ---- open and close ---- */

static void close_device(struct device *device)
{
    struct toy *toy = toy_of(device);
    queue_destroy(toy->compute);
    if (toy->queues != NULL)
        toy_fault("closed with queues of others");
    for (const struct known *k = knowns; k != NULL; k = k->next)
        if (k->ours || k->mapped > 0)
            toy_fault("closed with memory that is not freed");
    the_toy = NULL;
    free(toy);
}

static void describe(const struct device *device, struct text *text)
{
    text_addf(text, "toy card %d", device->number);
}

static const struct device_ops ops = {
    .name = "cuda",
    .close = close_device,
    .describe = describe,
    .alloc = device_alloc,
    .free = device_free,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .host_register = host_register,
    .host_unregister = host_free,
    .export_memory = export_memory,
    .import_memory = import_memory,
    .import_release = host_free,
    .queue_create = queue_create,
    .queue_destroy = queue_destroy,
    .compute = compute,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .record = record,
    .order = order,
    .query = query,
    .wait = wait_event,
    .copy = copy,
    .reduce = reduce,
    .mix = mix,
    .scale = scale,
    .divide = divide,
    .convert = convert,
};

enum status toy_open(const struct device_request *request, struct device **device)
{
    const int cards = toy_settings()->cards;
    *device = NULL;
    if (cards == 0 || request->number >= cards)
        return fail(STATUS_UNAVAILABLE, "device cuda: the toy has %d cards", cards);
    struct toy *toy = get(sizeof *toy);
    toy->device =
        (struct device){.ops = &ops, .number = request->number >= 0 ? request->number : request->local_rank % cards};
    toy->local_rank = request->local_rank;
    the_toy = toy;
    TRY(queue_create(&toy->device, &toy->compute));
    *device = &toy->device;
    return STATUS_OK;
}
