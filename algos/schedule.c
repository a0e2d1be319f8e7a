/* schedule.c - shapes, the helpers of emit functions, the one partition, and totals taken from the ops themselves. */
#include "algos/schedule.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define MAX_LANES 256

static enum status check_shape(const struct shape *shape)
{
    if (shape->chunks < 1 || shape->lanes < 1 || shape->lanes > MAX_LANES || shape->split > shape->rounds)
        return fail(STATUS_INTERNAL, "%s made a malformed shape for %d workers: chunks=%u lanes=%u split=%u rounds=%u",
                    shape->algorithm->name, shape->workers, shape->chunks, shape->lanes, shape->split, shape->rounds);
    return STATUS_OK;
}

static enum status check_workers(const struct algorithm *algorithm, int workers)
{
    if ((algorithm->traits & TRAIT_EVEN) != 0 && workers % 2 != 0)
        return fail(STATUS_REFUSED, "%s needs an even number of workers, not %d: %d would do", algorithm->name, workers,
                    workers > 1 ? workers - 1 : 2);
    if ((algorithm->traits & TRAIT_POWER_OF_TWO) != 0 && (workers & (workers - 1)) != 0) {
        long long below = 1;
        while (below * 2 < workers)
            below *= 2;
        return fail(STATUS_REFUSED, "%s needs a power of two of workers, not %d: %lld or %lld would do",
                    algorithm->name, workers, below, 2 * below);
    }
    return STATUS_OK;
}

/* The request as the algorithm sees it always carries values where it has a table: *defaults fills in for NULL. */
static enum status ask(const struct algorithm *algorithm, const struct shape_request *request, struct shape *shape)
{
    if (request->options != NULL || algorithm->options == NULL)
        return algorithm->shape(request, shape);
    struct option_values defaults = {0};
    TRY(option_values_init(&defaults, algorithm->options));
    struct shape_request with_defaults = *request;
    with_defaults.options = &defaults;
    enum status status = algorithm->shape(&with_defaults, shape);
    option_values_release(&defaults);
    return status;
}

enum status shape_create(const struct algorithm *algorithm, const struct shape_request *request, struct shape **shape)
{
    *shape = NULL;
    if (request->layout == NULL || request->layout->workers < 1)
        return fail(STATUS_USAGE, "%s needs at least 1 worker", algorithm->name);
    TRY(check_workers(algorithm, request->layout->workers));
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct shape)));
    struct shape *made = memory;
    *made = (struct shape){.algorithm = algorithm,
                           .workers = request->layout->workers,
                           .chunks = 1,
                           .lanes = 1,
                           .traits = algorithm->traits};
    enum status status = ask(algorithm, request, made);
    if (status < 0) {
        free(made);
        return status;
    }
    status = check_shape(made);
    if (status < 0) {
        shape_destroy(made);
        return status;
    }
    *shape = made;
    return STATUS_OK;
}

void shape_destroy(struct shape *shape)
{
    if (shape == NULL)
        return;
    if (shape->algorithm->release != NULL)
        shape->algorithm->release(shape);
    free(shape);
}

enum status shape_file(const struct shape_request *request, const char *key, const struct attachment **file)
{
    const char *path = option_text(request->options, key);
    *file = NULL;
    if (path == NULL)
        return STATUS_OK;
    const size_t count = request->attachments != NULL ? request->attachments->count : 0;
    for (size_t i = 0; i < count && *file == NULL; i++)
        if (strcmp(request->attachments->file[i].path, path) == 0)
            *file = &request->attachments->file[i];
    if (*file == NULL)
        return fail(STATUS_REFUSED, "%s=%s: files are not read here", key, path);
    return STATUS_OK;
}

bool shape_has_halves(const struct shape *shape)
{
    return shape->algorithm->owner != NULL && (shape->split > 0 || shape->rounds == 0);
}

bool shape_describe(const struct shape *shape, struct text *text)
{
    const size_t before = text->length;
    if (shape->algorithm->describe != NULL)
        shape->algorithm->describe(shape, text);
    return text->length > before;
}

size_t partition_offset(size_t count, uint32_t chunks, uint32_t c)
{
    assert(chunks >= 1 && c <= chunks);
    const size_t quotient = count / chunks, remainder = count % chunks;
    return c * quotient + (c < remainder ? c : remainder);
}

/* ---- helpers of emit functions ---- */

static struct range vector_range(uint32_t chunk, uint32_t chunks)
{
    return (struct range){.chunk = chunk, .chunks = chunks, .buffer = BUFFER_VECTOR};
}

static enum status put(struct sink *sink, struct op op)
{
    op.lane = sink->lane;
    op.round = sink->round;
    return sink->op(sink, &op);
}

enum status emit_send(struct sink *sink, int peer, uint32_t chunk, uint32_t chunks)
{
    return put(sink, (struct op){.kind = OP_SEND, .peer = peer, .src = vector_range(chunk, chunks), .weight = 1});
}

enum status emit_recv(struct sink *sink, int peer, uint32_t chunk, uint32_t chunks)
{
    return put(sink, (struct op){.kind = OP_RECV, .peer = peer, .dst = vector_range(chunk, chunks), .weight = 1});
}

enum status emit_recv_reduce(struct sink *sink, int peer, uint32_t chunk, uint32_t chunks, bool final)
{
    return put(sink, (struct op){.kind = OP_RECV_REDUCE,
                                 .flags = final ? OP_FINAL : 0,
                                 .peer = peer,
                                 .dst = vector_range(chunk, chunks),
                                 .weight = 1});
}

enum status emit_recv_mix(struct sink *sink, int peer, uint32_t chunk, uint32_t chunks, double weight)
{
    return put(sink,
               (struct op){.kind = OP_RECV_REDUCE, .peer = peer, .dst = vector_range(chunk, chunks), .weight = weight});
}

enum status emit_scale(struct sink *sink, uint32_t chunk, uint32_t chunks, double weight)
{
    return put(sink, (struct op){.kind = OP_SCALE, .peer = -1, .dst = vector_range(chunk, chunks), .weight = weight});
}

enum status emit_wait(struct sink *sink, uint16_t wait_lane, uint32_t wait_round)
{
    return put(sink,
               (struct op){.kind = OP_WAIT, .peer = -1, .weight = 1, .wait_lane = wait_lane, .wait_round = wait_round});
}

enum status emit_fence(struct sink *sink, uint16_t first_lane, uint16_t lanes)
{
    const struct op op = {
        .kind = OP_FENCE, .peer = -1, .weight = 1, .lane = first_lane, .lanes = lanes, .round = sink->round};
    return sink->op(sink, &op);
}

/* ---- totals ---- */

struct traffic {
    struct sink sink; /* first: the sink that emit sees */
    const struct shape *shape;
    size_t count;
    size_t elements; /* sent so far                              */
    size_t messages; /* with at least one element                */
    size_t joined;   /* elements of the message still being built */
};

bool range_fits(const struct shape *shape, const struct range *range)
{
    if (range->chunks == 0 || range->chunks > shape->chunks)
        return false;
    if (range->buffer == BUFFER_VECTOR)
        return range->chunk <= shape->chunks - range->chunks;
    if (range->buffer != BUFFER_SCRATCH || range->chunk / shape->chunks >= shape->scratch)
        return false;
    return range->chunk % shape->chunks <= shape->chunks - range->chunks;
}

size_t range_elements(const struct range *range, size_t count, uint32_t chunks)
{
    const uint32_t leaf = range->chunk % chunks;
    return partition_offset(count, chunks, leaf + range->chunks) - partition_offset(count, chunks, leaf);
}

static enum status traffic_op(struct sink *sink, const struct op *op)
{
    struct traffic *traffic = (struct traffic *)sink;
    if (op->kind != OP_SEND)
        return STATUS_OK;
    const uint32_t leaf = op->src.chunk % traffic->shape->chunks;
    if (op->src.chunks > traffic->shape->chunks - leaf)
        return fail(STATUS_FORMAT, "%s sends chunks %u to %u of %u", traffic->shape->algorithm->name, op->src.chunk,
                    op->src.chunk + op->src.chunks, traffic->shape->chunks);
    traffic->joined += range_elements(&op->src, traffic->count, traffic->shape->chunks);
    if ((op->flags & OP_MORE) != 0)
        return STATUS_OK;
    traffic->elements += traffic->joined;
    traffic->messages += traffic->joined > 0;
    traffic->joined = 0;
    return STATUS_OK;
}

enum status shape_traffic(const struct shape *shape, int rank, size_t count, size_t size, size_t *bytes_sent,
                          size_t *messages)
{
    struct traffic traffic = {.sink = {.op = traffic_op}, .shape = shape, .count = count};
    for (uint32_t round = 0; round < shape->rounds; round++) {
        traffic.sink.round = round;
        traffic.sink.lane = 0;
        TRY(shape->algorithm->emit(shape, rank, round, &traffic.sink));
    }
    if (bytes_sent != NULL && !checked_multiply(traffic.elements, size, bytes_sent))
        return fail(STATUS_USAGE, "%zu elements of %zu bytes are more than memory can hold", traffic.elements, size);
    if (messages != NULL)
        *messages = traffic.messages;
    return STATUS_OK;
}
