/* support_device.c - a device in plain C (support_device.h). */
#define _GNU_SOURCE /* memfd_create */
#include "tests/comm/support_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/half.h"
#include "base/rng.h"
#include "comm/kernels.h"

#define PAGE ((size_t)4096)

enum kind { COPY, REDUCE, MIX, SCALE, DIVIDE, CONVERT, RECORD, ORDER };

/* What an event stands for: one recording of it. */
struct moment {
    unsigned users;
    bool happened;
    enum mock_role of;
};

struct work {
    enum kind kind;
    enum dtype dtype, from_type;
    enum reduce_op op;
    void *out;
    const void *first;
    size_t terms, count;
    double weight;
    struct moment *moment;
    struct work *next;
    struct device_term term[DEVICE_TERMS];
};

struct device_event {
    struct mock_card *card;
    struct moment *moment;
};

struct device_queue {
    struct mock_card *card;
    enum mock_role role;
    struct work *first, *last;
    struct device_queue *next;
};

/* A range that the card knows: of the device, with its second mapping, or of the host. */
struct known {
    unsigned char *memory, *alias;
    size_t bytes, mapped;
    enum { DEVICE, PINNED, REGISTERED } kind;
    struct known *next;
};

struct mock_device {
    struct device device; /* first */
    struct mock_card *card;
    struct device_queue *compute;
    int queues;
    struct mock_device *next;
};

struct mock_card {
    uint64_t key, drawn;
    bool exports, hold;
    bool ignores[MOCK_ROLES][MOCK_ROLES], hasty[MOCK_ROLES];
    size_t planted, events, queues_made;
    struct known *known;
    struct device_queue *queues;
    struct mock_device *devices;
    char fault[256];
};

/* Without it no test can go on. */
static void must(bool holds)
{
    if (holds)
        return;
    fprintf(stderr, "mock device: out of memory\n");
    abort();
}

static enum status fault(struct mock_card *card, const char *what)
{
    if (card->fault[0] == '\0')
        snprintf(card->fault, sizeof card->fault, "%s", what);
    return STATUS_OK; /* the test asks for it in the end */
}

static uint64_t draw(struct mock_card *card, uint64_t below)
{
    return rng_below(card->key, card->drawn++, below);
}

static struct mock_card *card_of(struct device *device)
{
    return ((struct mock_device *)device)->card;
}

/* ---- memory ---- */

static struct known *find(struct mock_card *card, const void *memory, size_t bytes)
{
    const unsigned char *at = memory;
    for (struct known *k = card->known; k != NULL; k = k->next)
        if (at >= k->memory && at < k->memory + k->bytes)
            return bytes <= (size_t)(k->memory + k->bytes - at) ? k : NULL;
    return NULL;
}

/* Where the mock may touch it; NULL: nowhere. */
static void *touch(struct mock_card *card, const void *memory, size_t bytes, bool host)
{
    const struct known *k = find(card, memory, bytes);
    if (k == NULL || (k->kind != DEVICE && !host)) {
        (void)fault(card, k == NULL ? "work on memory that is not there, or not pinned"
                                    : "work of the device on host memory");
        return NULL;
    }
    return k->alias + ((const unsigned char *)memory - k->memory);
}

static void *make_known(struct mock_card *card, unsigned char *memory, unsigned char *alias, size_t bytes, int kind)
{
    struct known *k = calloc(1, sizeof *k);
    must(k != NULL);
    k->memory = memory;
    k->alias = alias;
    k->bytes = bytes;
    k->mapped = (bytes + PAGE - 1) / PAGE * PAGE;
    k->kind = kind == DEVICE ? DEVICE : kind == PINNED ? PINNED : REGISTERED;
    k->next = card->known;
    card->known = k;
    return memory;
}

static enum status mock_alloc(struct device *device, size_t bytes, void **memory)
{
    const size_t mapped = (bytes + PAGE - 1) / PAGE * PAGE;
    const int fd = memfd_create("mock", MFD_CLOEXEC);
    must(fd >= 0 && ftruncate(fd, (off_t)mapped) == 0);
    void *base = mmap(NULL, mapped, PROT_NONE, MAP_SHARED, fd, 0);
    void *alias = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    must(base != MAP_FAILED && alias != MAP_FAILED);
    memset(alias, 0xff, mapped);
    *memory = make_known(card_of(device), base, alias, bytes, DEVICE);
    return STATUS_OK;
}

/* Takes it out if it begins there and is of that kind. */
static struct known *forget(struct mock_card *card, const void *memory, int kind)
{
    for (struct known **at = &card->known; *at != NULL; at = &(*at)->next) {
        struct known *k = *at;
        if (k->memory != memory || (int)k->kind != kind)
            continue;
        *at = k->next;
        return k;
    }
    (void)fault(card, "freed twice, or never allocated");
    return NULL;
}

static void mock_free(struct device *device, void *memory)
{
    struct known *k = memory != NULL ? forget(card_of(device), memory, DEVICE) : NULL;
    if (k == NULL)
        return;
    (void)munmap(k->memory, k->mapped);
    (void)munmap(k->alias, k->mapped);
    free(k);
}

static enum status mock_host_alloc(struct device *device, size_t bytes, void **memory)
{
    unsigned char *made = calloc(1, bytes);
    must(made != NULL);
    *memory = make_known(card_of(device), made, made, bytes, PINNED);
    return STATUS_OK;
}

static void mock_host_free(struct device *device, void *memory)
{
    struct known *k = memory != NULL ? forget(card_of(device), memory, PINNED) : NULL;
    if (k != NULL)
        free(k->memory);
    free(k);
}

static enum status mock_host_register(struct device *device, void *memory, size_t bytes)
{
    if ((uintptr_t)memory % PAGE != 0 || bytes % PAGE != 0)
        (void)fault(card_of(device), "registered memory that is no whole pages");
    (void)make_known(card_of(device), memory, memory, bytes, REGISTERED);
    return STATUS_OK;
}

static void mock_host_unregister(struct device *device, void *memory)
{
    free(forget(card_of(device), memory, REGISTERED));
}

static enum status mock_export(struct device *device, void *memory, struct device_export *out)
{
    struct mock_card *card = card_of(device);
    const struct known *k = find(card, memory, 1);
    if (!card->exports)
        return fail(STATUS_UNAVAILABLE, "mock: no exports");
    if (k == NULL || k->memory != memory || k->kind != DEVICE)
        (void)fault(card, "exported what was not allocated");
    *out = (struct device_export){{0}};
    return STATUS_OK;
}

static enum status mock_import(struct device *device, const struct device_export *exported, void **memory)
{
    (void)exported, (void)memory;
    (void)fault(card_of(device), "imported in its own process");
    return fail(STATUS_UNAVAILABLE, "mock: no imports");
}

static void mock_import_release(struct device *device, void *memory)
{
    (void)memory;
    (void)fault(card_of(device), "gave back an import");
}

/* ---- work ---- */

static void moment_give(struct moment *moment)
{
    if (moment != NULL && --moment->users == 0)
        free(moment);
}

static void run_reduction(struct mock_card *card, const struct work *w)
{
    const size_t bytes = w->count * dtype_size(w->dtype);
    void *out = touch(card, w->out, bytes, false);
    const void *left = touch(card, w->first, bytes, false);
    for (size_t k = 0; k < w->terms; k++) {
        const void *right = touch(card, w->term[k].data, bytes, false);
        if (out == NULL || left == NULL || right == NULL)
            return;
        if (w->kind == MIX)
            kernel_axpy(w->dtype, out, left, right, w->term[k].weight, w->count);
        else
            kernel_reduce(w->dtype, w->op, out, left, right, w->count, w->term[k].divisor);
        left = out;
    }
}

static void convert(enum dtype to_type, void *to, enum dtype from_type, const void *from, size_t count)
{
    if (to_type == DTYPE_F16)
        f16_encode(to, from, count);
    else if (to_type == DTYPE_BF16)
        bf16_encode(to, from, count);
    else if (from_type == DTYPE_F16)
        f16_decode(to, from, count);
    else
        bf16_decode(to, from, count);
}

static void run_unary(struct mock_card *card, const struct work *w)
{
    void *out = touch(card, w->out, w->count * dtype_size(w->dtype), false);
    const void *from = touch(card, w->first, w->count * dtype_size(w->from_type), false);
    if (out == NULL || from == NULL)
        return;
    if (w->kind == SCALE)
        kernel_scale(w->dtype, out, from, w->weight, w->count);
    else if (w->kind == DIVIDE)
        kernel_divide(w->dtype, out, from, (int)w->weight, w->count);
    else
        convert(w->dtype, out, w->from_type, from, w->count);
}

static void run_copy(struct mock_card *card, const struct work *w)
{
    void *out = touch(card, w->out, w->count, true);
    const void *from = touch(card, w->first, w->count, true);
    if (out != NULL && from != NULL)
        memmove(out, from, w->count);
}

static bool is_ready(const struct mock_card *card, const struct device_queue *queue)
{
    return queue->first != NULL && (queue->first->kind != ORDER || queue->first->moment->happened) &&
           !(card->hold && queue->role == MOCK_COMPUTE);
}

static void run_first(struct device_queue *queue)
{
    struct work *w = queue->first;
    queue->first = w->next;
    if (queue->first == NULL)
        queue->last = NULL;
    if (w->kind == RECORD)
        w->moment->happened = true;
    else if (w->kind == COPY)
        run_copy(queue->card, w);
    else if (w->kind == REDUCE || w->kind == MIX)
        run_reduction(queue->card, w);
    else if (w->kind != ORDER)
        run_unary(queue->card, w);
    moment_give(w->moment);
    free(w);
}

/* Slow queues go on when no other can, or rarely. */
static bool run_any(struct mock_card *card)
{
    struct device_queue *chosen = NULL;
    uint64_t seen = 0;
    const enum mock_role slow = (enum mock_role)(card->key % (MOCK_ROLES + 1));
    for (struct device_queue *q = card->queues; q != NULL; q = q->next) {
        if (!is_ready(card, q) || (q->role == slow && draw(card, 8) != 0 && chosen != NULL))
            continue;
        seen++;
        if (chosen == NULL || chosen->role == slow || draw(card, seen) == 0)
            chosen = q;
    }
    if (chosen != NULL)
        run_first(chosen);
    return chosen != NULL;
}

static void run_some(struct mock_card *card, uint64_t most)
{
    for (uint64_t left = draw(card, most + 1); left > 0; left--)
        if (!run_any(card))
            return;
}

static struct work *put(struct device_queue *queue, enum kind kind)
{
    struct work *w = calloc(1, sizeof *w);
    must(w != NULL);
    w->kind = kind;
    if (queue->last == NULL)
        queue->first = w;
    else
        queue->last->next = w;
    queue->last = w;
    return w;
}

static enum status mock_copy(struct device_queue *queue, void *to, const void *from, size_t bytes)
{
    run_some(queue->card, 1);
    struct work *w = put(queue, COPY);
    w->out = to;
    w->first = from;
    w->count = bytes;
    return STATUS_OK;
}

static enum status put_terms(struct device_queue *queue, struct work *w, const struct device_term *term, size_t terms)
{
    if (terms < 1 || terms > DEVICE_TERMS)
        return fault(queue->card, "a chain without terms, or with too many");
    w->terms = terms;
    memcpy(w->term, term, terms * sizeof *term);
    return STATUS_OK;
}

static enum status mock_reduce(struct device_queue *queue, enum dtype dtype, enum reduce_op op, void *out,
                               const void *first, const struct device_term *term, size_t terms, size_t count)
{
    struct work *w = put(queue, REDUCE);
    w->dtype = dtype;
    w->op = op;
    w->out = out;
    w->first = first;
    w->count = count;
    return put_terms(queue, w, term, terms);
}

static enum status mock_mix(struct device_queue *queue, enum dtype dtype, void *out, const void *first,
                            const struct device_term *term, size_t terms, size_t count)
{
    const enum status status = mock_reduce(queue, dtype, REDUCE_SUM, out, first, term, terms, count);
    queue->last->kind = MIX;
    return status;
}

static struct work *put_unary(struct device_queue *queue, enum kind kind, enum dtype dtype, void *out, const void *from,
                              size_t count)
{
    struct work *w = put(queue, kind);
    w->dtype = w->from_type = dtype;
    w->out = out;
    w->first = from;
    w->count = count;
    return w;
}

static enum status mock_scale(struct device_queue *queue, enum dtype dtype, void *out, const void *from, double weight,
                              size_t count)
{
    put_unary(queue, SCALE, dtype, out, from, count)->weight = weight;
    return STATUS_OK;
}

static enum status mock_divide(struct device_queue *queue, enum dtype dtype, void *out, const void *from, int divisor,
                               size_t count)
{
    put_unary(queue, DIVIDE, dtype, out, from, count)->weight = divisor;
    return STATUS_OK;
}

static enum status mock_convert(struct device_queue *queue, enum dtype to_type, void *to, enum dtype from_type,
                                const void *from, size_t count)
{
    put_unary(queue, CONVERT, to_type, to, from, count)->from_type = from_type;
    return STATUS_OK;
}

/* ---- queues and events ---- */

static struct device_queue *make_queue(struct mock_card *card, enum mock_role role)
{
    struct device_queue *queue = calloc(1, sizeof *queue);
    must(queue != NULL);
    *queue = (struct device_queue){.card = card, .role = role, .next = card->queues};
    card->queues = queue;
    return queue;
}

static enum status mock_queue_create(struct device *device, struct device_queue **queue)
{
    struct mock_device *mock = (struct mock_device *)device;
    *queue = make_queue(mock->card, (enum mock_role)(mock->queues++ % MOCK_COMPUTE));
    mock->card->queues_made++;
    return STATUS_OK;
}

static void queue_remove(struct device_queue *queue)
{
    struct device_queue **at = &queue->card->queues;
    while (*at != queue)
        at = &(*at)->next;
    *at = queue->next;
    free(queue);
}

static void mock_queue_destroy(struct device_queue *queue)
{
    if (queue == NULL)
        return;
    if (queue->first != NULL)
        (void)fault(queue->card, "a queue destroyed with work in it");
    queue->card->queues_made--;
    queue_remove(queue);
}

static struct device_queue *mock_compute(struct device *device)
{
    return ((struct mock_device *)device)->compute;
}

static void *mock_native(struct device_queue *queue)
{
    return queue;
}

static enum status mock_event_create(struct device *device, struct device_event **event)
{
    *event = calloc(1, sizeof **event);
    must(*event != NULL);
    (*event)->card = card_of(device);
    (*event)->card->events++;
    return STATUS_OK;
}

static void mock_event_destroy(struct device_event *event)
{
    if (event == NULL)
        return;
    event->card->events--;
    moment_give(event->moment);
    free(event);
}

static enum status mock_record(struct device_queue *queue, struct device_event *event)
{
    struct moment *moment = calloc(1, sizeof *moment);
    must(moment != NULL);
    *moment = (struct moment){.users = 2, .of = queue->role};
    moment_give(event->moment);
    event->moment = moment;
    put(queue, RECORD)->moment = moment;
    return STATUS_OK;
}

static enum status mock_order(struct device_queue *queue, struct device_event *event)
{
    struct mock_card *card = queue->card;
    if (event->moment == NULL)
        return fault(card, "ordered after an event that was never recorded");
    if (card->ignores[event->moment->of][queue->role]) {
        card->planted++;
        return STATUS_OK;
    }
    event->moment->users++;
    put(queue, ORDER)->moment = event->moment;
    return STATUS_OK;
}

static enum status mock_query(struct device_event *event)
{
    struct mock_card *card = event->card;
    run_some(card, 3);
    if (event->moment == NULL)
        return fault(card, "asked after an event that was never recorded");
    if (!event->moment->happened && card->hasty[event->moment->of]) {
        card->planted++;
        return STATUS_OK;
    }
    return event->moment->happened ? STATUS_OK : STATUS_AGAIN;
}

static enum status mock_wait(struct device_event *event)
{
    while (!event->moment->happened)
        if (!run_any(event->card))
            return fail(STATUS_INTERNAL, "mock: queues wait for each other");
    return STATUS_OK;
}

/* ---- cards ---- */

static void mock_close(struct device *device)
{
    (void)device; /* goes with its card */
}

static void mock_describe(const struct device *device, struct text *text)
{
    text_addf(text, "mock %d", device->number);
}

static const struct device_ops ops = {.name = "mock",
                                      .close = mock_close,
                                      .describe = mock_describe,
                                      .alloc = mock_alloc,
                                      .free = mock_free,
                                      .host_alloc = mock_host_alloc,
                                      .host_free = mock_host_free,
                                      .host_register = mock_host_register,
                                      .host_unregister = mock_host_unregister,
                                      .export_memory = mock_export,
                                      .import_memory = mock_import,
                                      .import_release = mock_import_release,
                                      .queue_create = mock_queue_create,
                                      .queue_destroy = mock_queue_destroy,
                                      .compute = mock_compute,
                                      .native = mock_native,
                                      .event_create = mock_event_create,
                                      .event_destroy = mock_event_destroy,
                                      .record = mock_record,
                                      .order = mock_order,
                                      .query = mock_query,
                                      .wait = mock_wait,
                                      .copy = mock_copy,
                                      .reduce = mock_reduce,
                                      .mix = mock_mix,
                                      .scale = mock_scale,
                                      .divide = mock_divide,
                                      .convert = mock_convert};

struct mock_card *mock_card_create(uint64_t seed)
{
    struct mock_card *card = calloc(1, sizeof *card);
    must(card != NULL);
    card->key = rng_key(seed, "mock", 0, 0);
    card->exports = true;
    return card;
}

struct device *mock_device_open(struct mock_card *card, int number)
{
    struct mock_device *mock = calloc(1, sizeof *mock);
    must(mock != NULL);
    *mock = (struct mock_device){.device = {.ops = &ops, .number = number}, .card = card, .next = card->devices};
    mock->compute = make_queue(card, MOCK_COMPUTE);
    card->devices = mock;
    return &mock->device;
}

void mock_card_destroy(struct mock_card *card)
{
    card->hold = false;
    while (run_any(card)) {
    }
    while (card->devices != NULL) {
        struct mock_device *mock = card->devices;
        card->devices = mock->next;
        queue_remove(mock->compute);
        free(mock);
    }
    free(card);
}

void mock_card_exports(struct mock_card *card, bool exports)
{
    card->exports = exports;
}

void mock_card_hold(struct mock_card *card, bool hold)
{
    card->hold = hold;
}

void mock_card_ignore_order(struct mock_card *card, enum mock_role from, enum mock_role to)
{
    card->ignores[from][to] = true;
}

void mock_card_hasty(struct mock_card *card, enum mock_role of)
{
    card->hasty[of] = true;
}

size_t mock_card_planted(const struct mock_card *card)
{
    return card->planted;
}

const char *mock_card_fault(const struct mock_card *card)
{
    return card->fault[0] != '\0' ? card->fault : NULL;
}

size_t mock_card_live(const struct mock_card *card)
{
    size_t live = card->events + card->queues_made;
    for (const struct known *k = card->known; k != NULL; k = k->next)
        live++;
    return live;
}

size_t mock_card_pinned(const struct mock_card *card)
{
    size_t bytes = 0;
    for (const struct known *k = card->known; k != NULL; k = k->next)
        bytes += k->kind == DEVICE ? 0 : k->bytes;
    return bytes;
}

void mock_read(struct mock_card *card, void *to, const void *memory, size_t bytes)
{
    const void *from = bytes > 0 ? touch(card, memory, bytes, false) : NULL;
    if (from != NULL)
        memcpy(to, from, bytes);
}
