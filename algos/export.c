/* export.c - traces written as MSCCL XML, GOAL, SimGrid's time-independent traces and Chakra ETs (export.h). */
#include "algos/export.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "algos/msccl.h"
#include "base/memory.h"

#define NONE UINT32_MAX
#define MSCCL_LARGEST_VECTOR "1099511627776" /* 1 TiB: its readers insist on a bound */

static size_t bytes_of(const struct exporter *x, const struct trace_event *event)
{
    return event->elements * x->request.element_bytes;
}

/* A number that both ends of a message have for it alone, among those from its sender to its receiver. */
static int tag_of(const struct exporter *x, const struct trace_event *event)
{
    return (int)(event->sequence * x->request.shape->lanes + event->op.lane);
}

/* ---- MSCCL ---- */

/* A tb: the sends to a peer on a lane, the receives from one, or the local ops of a lane. */
struct block {
    uint16_t lane;
    int32_t send, recv;
    uint32_t steps;
    uint32_t *known; /* [blocks] how many steps of each other tb are complete for certain */
    struct text text;
};

/* Where an event of the worker stands. */
struct step {
    uint32_t block, step;
    size_t flag; /* place of its hasdep in the text of its block */
};

struct msccl_writer {
    const struct trace_worker *worker;
    struct step *step; /* [events] */
    struct block *block;
    uint32_t blocks;
    size_t block_capacity;
    uint32_t *waits; /* [blocks] of the step at hand: for which event of each tb, NONE: none */
};

/* What arrives for a reduction is no step of its own: rrc does both. */
static bool is_step(const struct trace_event *event)
{
    return event->kind != TRACE_RECV || event->op.kind == OP_RECV;
}

static enum status find_block(struct msccl_writer *w, const struct op *op, uint32_t *index)
{
    const int32_t send = op->kind == OP_SEND ? op->peer : -1;
    const int32_t recv = op->kind == OP_RECV || op->kind == OP_RECV_REDUCE ? op->peer : -1;
    for (*index = 0; *index < w->blocks; ++*index) {
        const struct block *block = &w->block[*index];
        if (block->lane == op->lane && block->send == send && block->recv == recv)
            return STATUS_OK;
    }
    void *memory = w->block;
    TRY(memory_grow(&memory, &w->block_capacity, (size_t)w->blocks + 1, sizeof(struct block)));
    w->block = memory;
    w->block[w->blocks++] = (struct block){.lane = op->lane, .send = send, .recv = recv};
    return STATUS_OK;
}

static enum status make_blocks(struct msccl_writer *w)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, w->worker->events, sizeof(struct step)));
    w->step = memory;
    for (size_t i = 0; i < w->worker->events; i++)
        if (is_step(&w->worker->event[i]))
            TRY(find_block(w, &w->worker->event[i].op, &w->step[i].block));
    for (uint32_t b = 0; b < w->blocks; b++) {
        TRY(memory_zeroed(&memory, w->blocks, sizeof(uint32_t)));
        w->block[b].known = memory;
    }
    TRY(memory_zeroed(&memory, w->blocks, sizeof(uint32_t)));
    w->waits = memory;
    return STATUS_OK;
}

static void release_blocks(struct msccl_writer *w)
{
    for (uint32_t b = 0; b < w->blocks; b++) {
        free(w->block[b].known);
        text_release(&w->block[b].text);
    }
    free(w->block);
    free(w->step);
    free(w->waits);
}

/* For each other tb, the latest event that event i must follow and that its tb has not waited for yet; how many. */
static uint32_t find_waits(struct msccl_writer *w, size_t i)
{
    const struct trace_event *event = &w->worker->event[i];
    struct block *block = &w->block[w->step[i].block];
    uint32_t count = 0;
    for (uint32_t b = 0; b < w->blocks; b++)
        w->waits[b] = NONE;
    for (size_t k = 0; k < event->count; k++) {
        const uint32_t f = w->worker->follow[event->follows + k];
        const struct step *step = &w->step[f];
        if (!is_step(&w->worker->event[f]) || step->block == w->step[i].block || step->step < block->known[step->block])
            continue;
        count += w->waits[step->block] == NONE;
        w->waits[step->block] = f;
        block->known[step->block] = step->step + 1;
    }
    return count;
}

static void write_place(struct text *text, const char *which, const struct range *range)
{
    text_addf(text, " %sbuf=\"%c\" %soff=\"%u\"", which, range->buffer == BUFFER_VECTOR ? 'i' : 's', which,
              (unsigned)range->chunk);
}

/* depid, deps and hasdep of a step that waits for event f (NONE: for none). */
static void write_wait(struct msccl_writer *w, struct block *block, uint32_t f)
{
    if (f == NONE) {
        text_add(&block->text, " depid=\"-1\" deps=\"-1\" hasdep=\"0\"/>\n");
    } else {
        const struct step *step = &w->step[f];
        struct text *other = &w->block[step->block].text;
        text_addf(&block->text, " depid=\"%u\" deps=\"%u\" hasdep=\"0\"/>\n", (unsigned)step->block,
                  (unsigned)step->step);
        if (!other->failed)
            other->data[step->flag] = '1';
    }
    block->steps++;
}

/* The step of event i, after a nop for each event beyond one that it waits for. */
static void write_step(struct msccl_writer *w, size_t i)
{
    static const char *const types[OP_KINDS] = {
        [OP_SEND] = "s", [OP_RECV] = "r", [OP_RECV_REDUCE] = "rrc", [OP_REDUCE] = "re", [OP_COPY] = "cpy"};
    const struct op *op = &w->worker->event[i].op;
    const bool reads = op->kind == OP_SEND || op->kind == OP_REDUCE || op->kind == OP_COPY;
    struct block *block = &w->block[w->step[i].block];
    uint32_t left = find_waits(w, i), last = NONE;
    for (uint32_t b = 0; b < w->blocks; b++) {
        if (w->waits[b] == NONE)
            continue;
        last = w->waits[b];
        if (--left == 0)
            break;
        text_addf(&block->text,
                  "      <step s=\"%u\" type=\"nop\" srcbuf=\"i\" srcoff=\"-1\" dstbuf=\"i\" dstoff=\"-1\" cnt=\"0\"",
                  (unsigned)block->steps);
        write_wait(w, block, last);
    }
    text_addf(&block->text, "      <step s=\"%u\" type=\"%s\"", (unsigned)block->steps, types[op->kind]);
    write_place(&block->text, "src", reads ? &op->src : &op->dst);
    write_place(&block->text, "dst", op->kind == OP_SEND ? &op->src : &op->dst);
    text_addf(&block->text, " cnt=\"%u\"", (unsigned)(op->kind == OP_SEND ? op->src.chunks : op->dst.chunks));
    w->step[i].step = block->steps;
    write_wait(w, block, last);
    w->step[i].flag = block->text.length - strlen("0\"/>\n");
}

static enum status write_gpu(const struct exporter *x, int rank, struct text *text)
{
    enum status status = STATUS_OK;
    const struct shape *shape = x->request.shape;
    struct msccl_writer w = {.worker = &x->trace.worker[rank]};
    TRY_TO(done, make_blocks(&w));
    for (size_t i = 0; i < w.worker->events; i++)
        if (is_step(&w.worker->event[i]))
            write_step(&w, i);
    text_addf(text, "  <gpu id=\"%d\" i_chunks=\"%u\" o_chunks=\"0\" s_chunks=\"%u\">\n", rank, (unsigned)shape->chunks,
              (unsigned)(shape->chunks * shape->scratch));
    for (uint32_t b = 0; b < w.blocks; b++) {
        const struct block *block = &w.block[b];
        text_addf(text, "    <tb id=\"%u\" send=\"%d\" recv=\"%d\" chan=\"%u\">\n", (unsigned)b, (int)block->send,
                  (int)block->recv, (unsigned)block->lane);
        TRY_TO(done, text_check(&block->text));
        text_add_bytes(text, text_string(&block->text), block->text.length);
        text_add(text, "    </tb>\n");
    }
    text_add(text, "  </gpu>\n");
done:
    release_blocks(&w);
    return status;
}

static enum status write_msccl(const struct exporter *x, struct text *text)
{
    const struct shape *shape = x->request.shape;
    text_add(text, "<algo name=\"");
    for (const char *c = x->request.name; *c != '\0'; c++)
        text_add_bytes(text, strchr("<>&\"", *c) == NULL ? c : "_", 1);
    text_addf(
        text,
        "\" proto=\"Simple\" nchannels=\"%u\" nchunksperloop=\"%u\" ngpus=\"%d\" coll=\"allreduce\" inplace=\"1\" "
        "outofplace=\"0\" minBytes=\"0\" maxBytes=\"" MSCCL_LARGEST_VECTOR "\">\n",
        (unsigned)shape->lanes, (unsigned)shape->chunks, shape->workers);
    for (int r = 0; r < shape->workers; r++)
        TRY(write_gpu(x, r, text));
    text_add(text, "</algo>\n");
    return STATUS_OK;
}

static enum status check_msccl(const struct export_request *request)
{
    const struct shape *shape = request->shape;
    const size_t most = shape->scratch > 1 ? (size_t)shape->chunks * shape->scratch : shape->chunks;
    if (shape->workers > EXPORT_MSCCL_WORKERS)
        return fail(STATUS_REFUSED, "%s as msccl: %d workers, but at most %d are written", request->name,
                    shape->workers, EXPORT_MSCCL_WORKERS);
    if (most > MSCCL_MOST_CHUNKS)
        return fail(STATUS_REFUSED, "%s as msccl: a buffer of %zu chunks, but MSCCL counts to %d", request->name, most,
                    MSCCL_MOST_CHUNKS);
    return STATUS_OK;
}

/* ---- GOAL ---- */

/* Messages of a (peer, lane, direction) are matched in order, so they must start in order: `latest` has the event of the
 * last one. */
static void write_order(const struct exporter *x, size_t i, const struct trace_event *event, uint32_t *latest,
                        struct text *text)
{
    const struct shape *shape = x->request.shape;
    const size_t channel = ((size_t)event->op.peer * shape->lanes + event->op.lane) * 2 + (event->kind == TRACE_RECV);
    if (latest[channel] > 0)
        text_addf(text, "l%zu irequires l%u\n", i + 1, (unsigned)latest[channel]);
    latest[channel] = (uint32_t)i + 1;
}

static void write_goal_event(const struct exporter *x, size_t i, const struct trace_event *event, struct text *text)
{
    const size_t bytes = bytes_of(x, event);
    if (event->kind == TRACE_REDUCE)
        text_addf(text, "l%zu: calc %lld\n", i + 1, llround((double)bytes * x->request.reduce_s_per_byte * 1e9));
    else
        text_addf(text, "l%zu: %s %zub %s %d tag %u\n", i + 1, event->kind == TRACE_SEND ? "send" : "recv", bytes,
                  event->kind == TRACE_SEND ? "to" : "from", (int)event->op.peer, (unsigned)event->op.lane);
}

static enum status write_goal(const struct exporter *x, struct text *text)
{
    const struct shape *shape = x->request.shape;
    const size_t channels = (size_t)shape->workers * shape->lanes * 2;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, channels, sizeof(uint32_t)));
    uint32_t *latest = memory;
    text_addf(text, "num_ranks %d\n", shape->workers);
    for (int r = 0; r < shape->workers; r++) {
        const struct trace_worker *worker = &x->trace.worker[r];
        memset(latest, 0, channels * sizeof(uint32_t));
        text_addf(text, "\nrank %d {\n", r);
        for (size_t i = 0; i < worker->events; i++)
            write_goal_event(x, i, &worker->event[i], text);
        for (size_t i = 0; i < worker->events; i++) {
            const struct trace_event *event = &worker->event[i];
            for (size_t k = 0; k < event->count; k++)
                text_addf(text, "l%zu requires l%u\n", i + 1, (unsigned)worker->follow[event->follows + k] + 1);
            if (event->kind != TRACE_REDUCE)
                write_order(x, i, event, latest, text);
        }
        text_add(text, "}\n");
    }
    free(memory);
    return STATUS_OK;
}

/* ---- SimGrid ---- */

static void write_simgrid_wait(const struct exporter *x, int rank, const struct trace_event *event, struct text *text)
{
    const bool sends = event->kind == TRACE_SEND;
    text_addf(text, "%d wait %d %d %d\n", rank, sends ? rank : (int)event->op.peer, sends ? (int)event->op.peer : rank,
              tag_of(x, event));
}

/* Before an event, wait for the messages that it follows, each once. */
static void write_simgrid_event(const struct exporter *x, int rank, size_t i, bool *waited, struct text *text)
{
    const struct trace_worker *worker = &x->trace.worker[rank];
    const struct trace_event *event = &worker->event[i];
    for (size_t k = 0; k < event->count; k++) {
        const uint32_t f = worker->follow[event->follows + k];
        if (!waited[f] && worker->event[f].kind != TRACE_REDUCE)
            write_simgrid_wait(x, rank, &worker->event[f], text);
        waited[f] = true;
    }
    if (event->kind == TRACE_REDUCE)
        text_addf(text, "%d compute %zu\n", rank, event->elements);
    else
        text_addf(text, "%d %s %d %d %zu\n", rank, event->kind == TRACE_SEND ? "isend" : "irecv", (int)event->op.peer,
                  tag_of(x, event), bytes_of(x, event));
}

static enum status write_simgrid_worker(const struct exporter *x, int rank, struct text *text)
{
    const struct trace_worker *worker = &x->trace.worker[rank];
    void *memory = NULL;
    TRY(memory_zeroed(&memory, worker->events, sizeof(bool)));
    bool *waited = memory;
    text_addf(text, "%d init\n", rank);
    for (size_t i = 0; i < worker->events; i++)
        write_simgrid_event(x, rank, i, waited, text);
    for (size_t i = 0; i < worker->events; i++)
        if (!waited[i] && worker->event[i].kind != TRACE_REDUCE)
            write_simgrid_wait(x, rank, &worker->event[i], text);
    text_addf(text, "%d finalize\n", rank);
    free(memory);
    return STATUS_OK;
}

static enum status write_simgrid(const struct exporter *x, struct text *text)
{
    for (int r = 0; r < x->request.shape->workers; r++)
        TRY(write_simgrid_worker(x, r, text));
    return STATUS_OK;
}

/* ---- Chakra: protobuf, encoded by hand ---- */

enum wire { WIRE_VARINT = 0, WIRE_BYTES = 2 };
enum chakra_node { NODE_COMP = 4, NODE_COMM_SEND = 5, NODE_COMM_RECV = 6 };
enum chakra_value { VALUE_INT32 = 7, VALUE_INT64 = 9, VALUE_BOOL = 27 };

static void put_varint(struct text *text, uint64_t value)
{
    do {
        const char byte = (char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        text_add_bytes(text, &byte, 1);
        value >>= 7;
    } while (value > 0);
}

static void put_number(struct text *text, unsigned field, uint64_t value)
{
    put_varint(text, field << 3 | WIRE_VARINT);
    put_varint(text, value);
}

static void put_bytes(struct text *text, unsigned field, const char *bytes, size_t length)
{
    put_varint(text, field << 3 | WIRE_BYTES);
    put_varint(text, length);
    text_add_bytes(text, bytes, length);
}

/* AttributeProto{name = 1, value in the field of its type}, as field 10 of a Node. `part` is scratch. */
static void put_attribute(struct text *node, struct text *part, const char *name, enum chakra_value type,
                          uint64_t value)
{
    text_clear(part);
    put_bytes(part, 1, name, strlen(name));
    put_number(part, type, value);
    put_bytes(node, 10, text_string(part), part->length);
}

/* Node{id = 1, name = 2, type = 3, data_deps = 5 (packed), duration_micros = 7, attr = 10}. */
static void put_node(const struct exporter *x, int rank, size_t i, struct text *node, struct text *part)
{
    static const enum chakra_node types[] = {
        [TRACE_SEND] = NODE_COMM_SEND, [TRACE_RECV] = NODE_COMM_RECV, [TRACE_REDUCE] = NODE_COMP};
    static const char *const words[] = {[TRACE_SEND] = "send", [TRACE_RECV] = "recv", [TRACE_REDUCE] = "compute"};
    const struct trace_worker *worker = &x->trace.worker[rank];
    const struct trace_event *event = &worker->event[i];
    const bool sends = event->kind == TRACE_SEND;
    text_clear(part);
    text_addf(part, "%s round %u lane %u", words[event->kind], (unsigned)event->op.round, (unsigned)event->op.lane);
    put_number(node, 1, i + 1);
    put_bytes(node, 2, text_string(part), part->length);
    put_number(node, 3, types[event->kind]);
    text_clear(part);
    for (size_t k = 0; k < event->count; k++)
        put_varint(part, (uint64_t)worker->follow[event->follows + k] + 1);
    if (event->count > 0)
        put_bytes(node, 5, text_string(part), part->length);
    if (event->kind == TRACE_REDUCE)
        put_number(node, 7, (uint64_t)llround((double)bytes_of(x, event) * x->request.reduce_s_per_byte * 1e6));
    put_attribute(node, part, "is_cpu_op", VALUE_BOOL, 0);
    if (event->kind == TRACE_REDUCE) {
        put_attribute(node, part, "num_ops", VALUE_INT64, event->elements);
        return;
    }
    put_attribute(node, part, "comm_size", VALUE_INT64, bytes_of(x, event));
    put_attribute(node, part, "comm_src", VALUE_INT32, (uint64_t)(sends ? rank : event->op.peer));
    put_attribute(node, part, "comm_dst", VALUE_INT32, (uint64_t)(sends ? event->op.peer : rank));
    put_attribute(node, part, "comm_tag", VALUE_INT32, (uint64_t)tag_of(x, event));
}

static enum status write_chakra(const struct exporter *x, int rank, struct text *text)
{
    struct text message = {0}, part = {0};
    put_bytes(&message, 1, "0.0.4", strlen("0.0.4")); /* GlobalMetadata{version = 1} */
    put_varint(text, message.length);
    text_add_bytes(text, text_string(&message), message.length);
    for (size_t i = 0; i < x->trace.worker[rank].events; i++) {
        text_clear(&message);
        put_node(x, rank, i, &message, &part);
        put_varint(text, message.length);
        text_add_bytes(text, text_string(&message), message.length);
    }
    const enum status status = message.failed || part.failed ? text_check(&message) : STATUS_OK;
    text_release(&message);
    text_release(&part);
    return status;
}

/* ---- the whole ---- */

static enum status check_request(const struct export_request *request, enum export_format format)
{
    size_t bytes = 0;
    if ((request->shape->traits & TRAIT_INEXACT) != 0)
        return fail(STATUS_REFUSED, "%s is no allreduce: there is nothing to export", request->name);
    if (!checked_multiply(request->count, request->element_bytes, &bytes) || bytes > INT64_MAX)
        return fail(STATUS_REFUSED, "%zu elements of %zu bytes are more than files can say", request->count,
                    request->element_bytes);
    return format == EXPORT_MSCCL ? check_msccl(request) : STATUS_OK;
}

static enum status check_event(const struct exporter *x, const struct trace_event *event)
{
    if (event->op.kind == OP_SCALE || event->op.weight != 1)
        return fail(STATUS_REFUSED, "%s has weights, which no format here can express", x->request.name);
    if (event->sequence > (uint32_t)(INT_MAX / x->request.shape->lanes) - 1)
        return fail(STATUS_REFUSED, "%s: %u messages between two workers are more than tags can number",
                    x->request.name, (unsigned)event->sequence);
    return STATUS_OK;
}

enum status export_begin(const struct export_request *request, enum export_format format, struct exporter *x)
{
    enum status status = STATUS_OK;
    *x = (struct exporter){.request = *request, .format = format};
    TRY(check_request(request, format));
    TRY(trace_make(request->shape, format == EXPORT_MSCCL ? request->shape->chunks : request->count,
                   format != EXPORT_MSCCL, &x->trace));
    for (int r = 0; r < request->shape->workers; r++)
        for (size_t i = 0; i < x->trace.worker[r].events; i++)
            TRY_TO(done, check_event(x, &x->trace.worker[r].event[i]));
done:
    if (status < 0)
        export_end(x);
    return status;
}

int export_files(const struct exporter *x)
{
    return x->format == EXPORT_CHAKRA ? x->request.shape->workers : 1;
}

enum status export_file(const struct exporter *x, int index, struct text *text)
{
    switch (x->format) {
    case EXPORT_MSCCL:
        TRY(write_msccl(x, text));
        break;
    case EXPORT_GOAL:
        TRY(write_goal(x, text));
        break;
    case EXPORT_SIMGRID:
        TRY(write_simgrid(x, text));
        break;
    default:
        TRY(write_chakra(x, index, text));
    }
    return text_check(text);
}

void export_end(struct exporter *x)
{
    trace_release(&x->trace);
}
