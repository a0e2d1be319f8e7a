/* collective.c - a call's life: made for a shape, started, waited for, destroyed; and the words when workers disagree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/coder.h"
#include "comm/device_link.h"
#include "comm/internal.h"
#include "comm/kernels.h"

#define DISPUTE_NS UINT64_C(2000000000) /* how long a mismatch waits for the other side's words */
#define DEFAULT_LOOKAHEAD 64
#define FIRST_PLACES 16 /* of a call's table of tasks */

/* ---- who says hello ---- */

struct peers {
    struct sink sink; /* first */
    const struct collective *collective;
    size_t *sent, *received;
};

static enum status count_peer(struct sink *sink, const struct op *op)
{
    struct peers *peers = (struct peers *)sink;
    const struct collective *c = peers->collective;
    const struct range *range = op->kind == OP_SEND ? &op->src : &op->dst;
    if (op->kind != OP_SEND && op->kind != OP_RECV && op->kind != OP_RECV_REDUCE)
        return STATUS_OK;
    if (op->peer < 0 || op->peer >= c->shape->workers)
        return fail(STATUS_FORMAT, "bad-op: peer %d of %d workers", (int)op->peer, c->shape->workers);
    const uint32_t leaf = range->chunk % c->shape->chunks;
    const size_t elements = partition_offset(c->slice, c->shape->chunks, leaf + range->chunks) -
                            partition_offset(c->slice, c->shape->chunks, leaf);
    bool *marks = op->kind == OP_SEND ? c->greets : c->awaits;
    size_t *total = op->kind == OP_SEND ? peers->sent : peers->received;
    marks[op->peer] = true;
    total[op->peer] += elements;
    return STATUS_OK;
}

/* A pair that exchanges no element still compares its calls: mark whom we greet and whose hello we await. */
static enum status find_greetings(struct collective *c)
{
    enum status status = STATUS_OK;
    const size_t n = (size_t)c->shape->workers;
    void *sent = NULL, *received = NULL, *greets = NULL, *awaits = NULL;
    TRY_TO(done, memory_zeroed(&greets, n, sizeof(bool)));
    c->greets = greets;
    TRY_TO(done, memory_zeroed(&awaits, n, sizeof(bool)));
    c->awaits = awaits;
    TRY_TO(done, memory_zeroed(&sent, n, sizeof(size_t)));
    TRY_TO(done, memory_zeroed(&received, n, sizeof(size_t)));
    struct peers peers = {.sink = {.op = count_peer}, .collective = c, .sent = sent, .received = received};
    for (uint32_t round = 0; round < c->shape->rounds; round++) {
        peers.sink.round = round;
        peers.sink.lane = 0;
        TRY_TO(done, c->shape->algorithm->emit(c->shape, c->team->rank, round, &peers.sink));
    }
    for (size_t r = 0; r < n; r++) {
        c->greets[r] = c->greets[r] && peers.sent[r] == 0;
        c->awaits[r] = c->awaits[r] && peers.received[r] == 0;
    }
done:
    free(sent);
    free(received);
    return status;
}

/* ---- create, destroy ---- */

/* Of everything but the call's number. */
static uint64_t call_signature(const struct collective *c)
{
    const struct shape *shape = c->shape; /* differs where the workers' nodes or steps do, if not always */
    const uint64_t numbers[] = {c->count,
                                (uint64_t)c->dtype,
                                (uint64_t)c->op,
                                c->team->comm->segment,
                                (uint64_t)shape->workers,
                                shape->chunks,
                                shape->rounds,
                                shape->lanes,
                                c->on_device};
    const char *format = c->coder != NULL ? coder_name(c->coder) : "";
    const uint64_t names = wire_hash(wire_hash(WIRE_HASH_START, c->name, strlen(c->name)), format, strlen(format));
    return wire_hash(names, numbers, sizeof numbers);
}

static enum status check_request(const struct collective_request *request)
{
    const struct shape *shape = request->shape;
    if (shape->workers != request->team->size)
        return fail(STATUS_USAGE, "%s: a schedule for %d workers on a team of %d", request->name, shape->workers,
                    request->team->size);
    if (request->on_device && request->team->comm->link == NULL)
        return fail(STATUS_USAGE, "%s: vectors in device memory, and the communicator has no device", request->name);
    const bool mixing = (shape->algorithm->traits & TRAIT_MIXING) != 0;
    if (mixing && (request->op != REDUCE_SUM || (request->dtype != DTYPE_F32 && request->dtype != DTYPE_F64)))
        return fail(STATUS_USAGE, "%s: mixing is for sums of f32 or f64", request->name);
    size_t bytes = 0;
    if (!checked_multiply(request->count, dtype_size(request->dtype), &bytes) || bytes > SIZE_MAX / 2)
        return fail(STATUS_USAGE, "%s: %zu elements of %s are more than can be addressed", request->name,
                    request->count, dtype_name(request->dtype));
    return STATUS_OK;
}

/* Of a vector's place: the device converts halves; whoever looks at a whole segment is on the host. */
static enum status check_format(const struct collective *c)
{
    if (!c->on_device || c->coder == NULL || coder_half(c->coder) != DTYPE_F32)
        return STATUS_OK;
    return fail(STATUS_REFUSED,
                "%s: the wire format %s is encoded by the host's processor, not on a device: take f16 or "
                "bf16, or vectors in host memory",
                c->name, coder_name(c->coder));
}

static enum status scratch_make(struct collective *c, size_t bytes)
{
    void *memory = NULL;
    struct comm *comm = c->team->comm;
    TRY(c->on_device ? comm_device_alloc(comm, bytes, &memory) : comm_alloc(comm, bytes, &memory));
    c->scratch = memory;
    return STATUS_OK;
}

static void scratch_free(struct collective *c)
{
    if (c->on_device)
        comm_device_free(c->team->comm, c->scratch);
    else
        comm_free(c->team->comm, c->scratch);
}

enum status collective_create(const struct collective_request *request, struct collective **out)
{
    enum status status = STATUS_OK;
    void *memory = NULL;
    size_t planes = 0;
    TRY(check_request(request));
    TRY(memory_zeroed(&memory, 1, sizeof(struct collective)));
    struct collective *c = memory;
    *c = (struct collective){.team = request->team,
                             .shape = request->shape,
                             .count = request->count,
                             .size = dtype_size(request->dtype),
                             .dtype = request->dtype,
                             .op = request->op,
                             .on_device = request->on_device,
                             .mixes = (request->shape->algorithm->traits & TRAIT_MIXING) != 0,
                             .places = FIRST_PLACES};
    TRY_TO(done, memory_string(&c->name, request->name));
    TRY_TO(done, memory_zeroed(&memory, c->places, sizeof(struct task *)));
    c->table = memory;
    TRY_TO(done, coder_create(request, c->team->comm->segment, &c->coder));
    TRY_TO(done, check_format(c));
    if (c->coder != NULL)
        c->shape = coder_shape(c->coder);
    c->slice = slice_elements(c->shape, c->count, c->size, c->team->comm->scratch);
    TRY_TO(done, find_greetings(c));
    TRY_TO(done, slices_scratch(c->shape, c->count, c->size, c->slice, &planes));
    if (planes > 0)
        TRY_TO(done, scratch_make(c, planes));
    c->signature = call_signature(c);
    *out = c;
done:
    if (status < 0)
        collective_destroy(c);
    return status;
}

/* After a failure tasks of a dead collective may still be with the transport: they stay there, belonging to nobody.
 * Receives are called off as far as that is possible. True: there are some. */
static bool orphan(struct task_list *list, const struct collective *c)
{
    struct comm *comm = c->team->comm;
    bool any = false;
    for (struct task *task = list->first; task != NULL; task = task->next) {
        if (task->collective != c)
            continue;
        any = true;
        task->collective = NULL;
        if (task->flying && task->kind == TASK_RECEIVE)
            comm->transport->ops->cancel(comm->transport, &task->transfer);
    }
    return any;
}

static bool orphan_all(struct collective *c)
{
    struct comm *comm = c->team->comm;
    bool any = orphan(&comm->flying, c);
    any = orphan(&comm->receives, c) || any;
    for (int side = 0; comm->link != NULL && side < SIDES; side++)
        any = orphan(&comm->link->side[side].waiting, c) || any;
    for (struct outbox *outbox = comm->outboxes; outbox != NULL; outbox = outbox->next) {
        any = orphan(&outbox->small, c) || any;
        any = orphan(&outbox->payload, c) || any;
    }
    for (struct outbox *outbox = comm->open; outbox != NULL; outbox = outbox->next_open)
        if (outbox->open != NULL && outbox->open->collective == c)
            outbox->open->collective = NULL;
    return any;
}

void collective_unlink(struct collective *c)
{
    struct team *team = c->team;
    if (c->previous == NULL)
        team->first = c->next;
    else
        c->previous->next = c->next;
    if (c->next == NULL)
        team->last = c->previous;
    else
        c->next->previous = c->previous;
    c->next = c->previous = NULL;
    c->running = NULL;
    team->comm->active--;
}

/* The comm must not go on with buffers that the caller takes back. This thread's message is left alone: it tells why. */
static void give_up(struct collective *c)
{
    struct comm *comm = c->team->comm;
    if (comm->status == STATUS_OK) {
        comm->status = STATUS_INTERRUPTED;
        snprintf(comm->message, sizeof comm->message, "%s: destroyed while it was under way", c->name);
    }
    collective_unlink(c);
}

static void drop_gate(struct collective *c)
{
    struct device_link *link = c->team->comm->link;
    device_mark_give(link, c->gate);
    c->gate = NULL;
    link->gated--;
}

void collective_destroy(struct collective *c)
{
    if (c == NULL)
        return;
    struct comm *comm = c->team->comm;
    comm_enter(comm);
    bool shared = c->running != NULL && c->on_device; /* by queues */
    if (c->running != NULL)
        give_up(c);
    executor_clear(c);
    shared =
        orphan_all(c) || shared; /* whoever else may touch the scratch planes keeps them until the comm is closed */
    if (c->gate != NULL)
        drop_gate(c);
    comm_leave(comm);
    if (!shared)
        scratch_free(c);
    slices_destroy(c->slices[0]);
    slices_destroy(c->slices[1]);
    free(c->table);
    coder_destroy(c->coder);
    free(c->greets);
    free(c->awaits);
    free(c->name);
    free(c);
}

/* ---- mismatches ---- */

static void describe_call(const struct collective *c, char *text, size_t size)
{
    const char *format = c->coder != NULL ? coder_name(c->coder) : "";
    snprintf(text, size, "rank %d called %s %s %s of %zu elements%s in segments of %zu bytes%s%s (call %u of its team)",
             c->team->ranks[c->team->rank], c->name, reduce_op_name(c->op), dtype_name(c->dtype), c->count,
             c->on_device ? " in device memory" : "", c->team->comm->segment,
             format[0] != '\0' ? " on the wire as " : "", format, (unsigned)c->epoch);
}

enum status collective_dispute(struct comm *comm, const struct collective *c, int peer)
{
    char call[400];
    if (comm->dispute_until != 0)
        return STATUS_OK;
    describe_call(c, call, sizeof call);
    snprintf(comm->dispute, sizeof comm->dispute, "%s, rank %d something else", call, peer);
    comm->dispute_until = clock_ns() + DISPUTE_NS;
    struct wire_header header = {.class = WIRE_CALL, .team = c->team->id, .epoch = c->epoch};
    size_t bytes = strlen(call);
    if (bytes > eager_most(comm, peer))
        bytes = eager_most(comm, peer);
    return comm_send_small(comm, NULL, peer, &header, call, bytes);
}

enum status collective_told(struct comm *comm, const struct collective *c, const struct wire_header *header,
                            const void *payload)
{
    char mine[400] = "this worker has left that collective";
    if (c != NULL) {
        describe_call(c, mine, sizeof mine);
        TRY(collective_dispute(comm, c, header->source)); /* our own words, before we fail */
    }
    return fail(STATUS_MISMATCH, "the workers called different collectives: %.*s, but %s: call the same everywhere",
                (int)header->bytes, (const char *)payload, mine);
}

bool collective_scales(const struct collective *c)
{
    const bool rounds = dtype_is_half(c->dtype) || (c->coder != NULL && coder_scales(c->coder));
    return c->op == REDUCE_AVG && rounds && c->shape->workers > 1 && c->shape->rounds > 0;
}

bool collective_is_oldest(const struct collective *collective)
{
    return collective != NULL && collective->team->first == collective;
}

struct collective *collective_find(const struct team *team, uint32_t epoch)
{
    for (struct collective *c = team->first; c != NULL; c = c->next)
        if (c->epoch == epoch)
            return c;
    return NULL;
}

void collectives_describe(struct comm *comm, size_t ops, struct text *text)
{
    bool any = false;
    for (const struct team *team = comm->teams; team != NULL; team = team->next) {
        for (const struct collective *c = team->first; c != NULL; c = c->next) {
            text_addf(text, "%s%s of %zu bytes: ", any ? "; " : "", c->name, c->count * c->size);
            const size_t before = text->length;
            slices_describe(c->running, ops, text);
            if (c->outgoing > 0)
                text_addf(text, "%s%zu small messages not yet out", text->length > before ? "; " : "", c->outgoing);
            if (c->hellos > 0)
                text_addf(text, "%s%d workers have not said what they call", text->length > before ? "; " : "",
                          c->hellos);
            any = true;
        }
    }
    if (!any)
        text_add(text, "waiting for the members of a team");
}

/* ---- start and wait ---- */

/* As far as the comm knows them: others may be either. */
static enum status check_places(const struct collective *c, const void *input, const void *output)
{
    const struct comm *comm = c->team->comm;
    if (c->on_device && (comm_owns_host(comm, input) || comm_owns_host(comm, output)))
        return fail(STATUS_USAGE, "%s: a vector in host memory, where device memory was said", c->name);
    if (!c->on_device && (device_memory_owns(comm->link, input) || device_memory_owns(comm->link, output)))
        return fail(STATUS_USAGE, "%s: a vector in device memory, which was not said", c->name);
    return STATUS_OK;
}

static enum status check_buffers(const struct collective *c, const void *input, const void *output)
{
    const uintptr_t in = (uintptr_t)input, out = (uintptr_t)output, bytes = c->count * c->size;
    if (c->running != NULL)
        return fail(STATUS_USAGE, "%s: started again before it was done", c->name);
    if (c->count == 0)
        return STATUS_OK;
    if (input == NULL || output == NULL || in % c->size != 0 || out % c->size != 0)
        return fail(STATUS_USAGE, "%s: a buffer is missing or not aligned to its elements of %zu bytes", c->name,
                    c->size);
    if (in != out && in < out + bytes && out < in + bytes)
        return fail(STATUS_USAGE, "%s: input and output overlap without being equal", c->name);
    return c->team->comm->link != NULL ? check_places(c, input, output) : STATUS_OK;
}

static enum status prepare_slices(struct collective *c, bool aliased)
{
    struct slices **slices = &c->slices[aliased];
    if (*slices != NULL) {
        slices_restart(*slices);
        c->running = *slices;
        return STATUS_OK;
    }
    const struct comm *comm = c->team->comm;
    const size_t segment = c->coder != NULL ? coder_segment(c->coder) : comm->segment / c->size;
    const struct progression_params params = {.count = c->count,
                                              .segment = segment > 0 ? segment : 1,
                                              .window = comm->window,
                                              .lookahead = DEFAULT_LOOKAHEAD,
                                              .aliased = aliased};
    TRY(slices_create(c->shape, c->team->rank, &params, c->slice, slices));
    c->running = *slices;
    return STATUS_OK;
}

/* Small messages for this call that came before it was started here. */
static enum status adopt_early(struct collective *c, bool *moved)
{
    for (struct early **at = &c->team->early[c->epoch % EARLY_LISTS]; *at != NULL && c->running != NULL;) {
        struct early *early = *at;
        if (early->header.epoch != c->epoch) {
            at = &early->next;
            continue;
        }
        *at = early->next;
        enum status status = executor_dispatch(c, &early->header, early->payload);
        if (status >= 0)
            status = executor_advance(c, moved);
        if (status >= 0)
            status = executor_settle(c->team->comm);
        free(early);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status start_locked(struct collective *c, const void *input, void *output)
{
    struct team *team = c->team;
    struct comm *comm = team->comm;
    TRY(comm_failed(comm));
    TRY(check_buffers(c, input, output));
    if (team->first != NULL && team->next_epoch - team->first->epoch >= WIRE_EPOCHS)
        return fail(STATUS_USAGE, "%s: %d collectives are under way already: wait for the oldest first", c->name,
                    WIRE_EPOCHS);
    c->unscaled = input;
    if (collective_scales(c)) {
        if (!c->on_device)
            kernel_scale(c->dtype, output, input, mean_scale(c->shape->workers), c->count);
        input = output;
    }
    TRY(prepare_slices(c, input == output));
    c->input = input;
    c->output = output;
    c->epoch = team->next_epoch++;
    c->hash = wire_hash(c->signature, &c->epoch, sizeof c->epoch);
    c->traffic = (struct collective_traffic){.started_ns = clock_ns()};
    c->outgoing = 0;
    if (c->coder != NULL)
        coder_start(c->coder);
    c->previous = team->last;
    c->next = NULL;
    if (team->last == NULL)
        team->first = c;
    else
        team->last->next = c;
    team->last = c;
    comm->active++;
    comm->moved = true;
    bool moved = false;
    enum status status = c->on_device ? executor_device_start(c) : STATUS_OK;
    if (status >= 0)
        status = executor_greet(c);
    if (status >= 0)
        status = executor_advance(c, &moved);
    if (status >= 0)
        status = adopt_early(c, &moved);
    return status < 0 ? comm_fail(comm, status) : STATUS_OK;
}

enum status collective_start(struct collective *c, const void *input, void *output)
{
    struct comm *comm = c->team->comm;
    comm_enter(comm);
    const enum status status = start_locked(c, input, output);
    comm_leave(comm);
    return status;
}

enum status collective_test(struct collective *c)
{
    struct comm *comm = c->team->comm;
    bool moved = false;
    comm_enter(comm);
    enum status status = comm_failed(comm);
    if (status >= 0 && c->running != NULL)
        status = comm_progress(comm, &moved);
    if (status >= 0)
        status = c->running == NULL ? STATUS_OK : STATUS_AGAIN;
    comm_leave(comm);
    return status;
}

enum status collective_wait(struct collective *c)
{
    struct comm *comm = c->team->comm;
    unsigned idle = 0;
    comm_enter(comm);
    comm->waiters++;
    comm->moved = true; /* the time before was not spent waiting */
    enum status status = comm_failed(comm);
    while (status >= 0 && c->running != NULL) {
        bool moved = false;
        status = comm_progress(comm, &moved);
        idle = moved ? 0 : idle + 1;
        if (status >= 0 && !moved)
            status = comm_idle(comm, idle);
    }
    comm->waiters--;
    comm_leave(comm);
    return status;
}

void collective_traffic(const struct collective *c, struct collective_traffic *traffic)
{
    *traffic = c->traffic;
    if (c->coder != NULL)
        traffic->wire = *coder_statistics(c->coder);
}

struct collective_feedback collective_feedback(struct collective *c)
{
    struct collective_feedback feedback = {.residual = NULL};
    if (c->coder != NULL)
        feedback.residual = coder_residual(c->coder, &feedback.runs);
    return feedback;
}

/* So many slices of full length, and a shorter one. */
enum status collective_due(const struct collective *c, size_t size, size_t *bytes_sent, size_t *messages)
{
    const size_t whole = c->slice > 0 ? c->count / c->slice : 1, rest = c->slice > 0 ? c->count % c->slice : 0;
    size_t bytes = 0, more_bytes = 0, sends = 0, more_sends = 0;
    TRY(shape_traffic(c->shape, c->team->rank, c->slice, size, &bytes, &sends));
    if (rest > 0)
        TRY(shape_traffic(c->shape, c->team->rank, rest, size, &more_bytes, &more_sends));
    *bytes_sent = whole * bytes + more_bytes;
    *messages = whole * sends + more_sends;
    return STATUS_OK;
}

size_t collective_scratch(const struct shape *shape, size_t count, size_t size)
{
    size_t bytes = 0;
    if (slices_scratch(shape, count, size, slice_elements(shape, count, size, COMM_SCRATCH), &bytes) < 0)
        return SIZE_MAX;
    return bytes;
}
