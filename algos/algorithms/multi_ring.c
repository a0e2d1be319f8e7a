/* multi_ring.c - several rings at once, each for its part of the vector, every second one in the other direction.
 *
 *   p = 5, rings=4:   ring 0  0 > 1 > 2 > 3 > 4 > 0      chunks  0 .. 4      lane 0
 *                     ring 1  0 < 1 < 2 < 3 < 4 < 0              5 .. 9      lane 1
 *                     ring 2  0 > 2 > 4 > 1 > 3 > 0             10 .. 14     lane 2
 *                     ring 3  0 < 2 < 4 < 1 < 3 < 0             15 .. 19     lane 3
 *
 * Rings 2i and 2i+1 go up and down with the i-th smallest stride up to p/2 that has no divisor in common with p, and
 * begin again with stride 1 when there are no more: so no two of them share a directed link as long as strides last,
 * which is what a full mesh of links wants. rings=2 stays with neighbours, as a ring or torus of links and nodes of
 * several workers want. Behind one port a worker gains nothing but more messages in flight.
 *
 * Each ring is that of ring.c on p chunks of its own. Sent: 2(p-1)/p n bytes in 2k(p-1) messages by every worker. There
 * is no closed form for one port: the rings drift apart and get into each other's way (the simulator has it); with a
 * port for each ring the cost is that of ring on n/k. Source: NCCL's channels; UCC (bidirectional ring).
 */
#include "algos/schedule.h"

static const struct option multi_ring_options[] = {
    {.key = "rings",
     .type = OPTION_INT,
     .default_text = "2",
     .min = 1,
     .max = 64,
     .help = "how many; 2: neighbours only, more: other strides, too"},
    {.key = NULL},
};

static uint32_t rings_of(const struct shape *shape)
{
    return shape->chunks / (uint32_t)shape->workers;
}

static enum status multi_ring_shape(const struct shape_request *request, struct shape *shape)
{
    const uint32_t rings = (uint32_t)option_int(request->options, "rings");
    if ((uint64_t)rings * (uint64_t)shape->workers > UINT32_MAX)
        return fail(STATUS_REFUSED, "multi-ring: %u rings of %d workers have too many chunks: ring works", rings,
                    shape->workers);
    shape->chunks = rings * (uint32_t)shape->workers;
    shape->lanes = (uint16_t)rings;
    shape->split = (uint32_t)shape->workers - 1;
    shape->rounds = 2 * shape->split;
    return STATUS_OK;
}

static bool coprime(int a, int b)
{
    while (b != 0) {
        const int rest = a % b;
        a = b;
        b = rest;
    }
    return a == 1;
}

/* The stride after `stride` (0: the first) for p workers. */
static int next_stride(int stride, int p)
{
    for (int s = stride + 1; s <= p / 2; s++)
        if (coprime(p, s))
            return s;
    return 1;
}

/* value mod p, from 0 to p-1 for negative values, too. */
static int wrap(long long value, int p)
{
    const int rest = (int)(value % p);
    return rest < 0 ? rest + p : rest;
}

/* One ring in one round. The ring's own ranks are what rank / step (mod p) would be: chunk and rank are both taken
 * times step, which permutes the chunks of ring.c. */
static enum status emit_ring(const struct shape *shape, int rank, uint32_t round, uint32_t first, long long step,
                             struct sink *sink)
{
    const int p = shape->workers, next = wrap(rank + step, p), previous = wrap(rank - step, p);
    const long long r = rank, t = round < shape->split ? round : round - shape->split;

    if (round < shape->split) { /* reduce-scatter */
        const bool complete = round == shape->split - 1;
        TRY(emit_send(sink, next, first + (uint32_t)wrap(r - t * step, p), 1));
        return emit_recv_reduce(sink, previous, first + (uint32_t)wrap(r - (t + 1) * step, p), 1, complete);
    }
    TRY(emit_send(sink, next, first + (uint32_t)wrap(r - (t - 1) * step, p), 1)); /* allgather */
    return emit_recv(sink, previous, first + (uint32_t)wrap(r - t * step, p), 1);
}

static enum status multi_ring_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const uint32_t rings = rings_of(shape), chunks = (uint32_t)shape->workers;
    int stride = 0;
    for (uint32_t ring = 0; ring < rings; ring++) {
        if (ring % 2 == 0)
            stride = next_stride(stride, shape->workers);
        sink->lane = (uint16_t)ring;
        TRY(emit_ring(shape, rank, round, ring * chunks, ring % 2 == 0 ? stride : -stride, sink));
    }
    return STATUS_OK;
}

static int multi_ring_owner(const struct shape *shape, uint32_t chunk)
{
    const uint32_t ring = chunk / (uint32_t)shape->workers;
    int stride = 0;
    for (uint32_t i = 0; i <= ring; i += 2)
        stride = next_stride(stride, shape->workers);
    return wrap((long long)chunk - (ring % 2 == 0 ? stride : -stride), shape->workers);
}

static void multi_ring_describe(const struct shape *shape, struct text *text)
{
    const uint32_t rings = rings_of(shape);
    int stride = 0;
    text_add(text, rings > 1 ? "strides" : "stride");
    for (uint32_t ring = 0; ring < rings; ring++) {
        if (ring % 2 == 0)
            stride = next_stride(stride, shape->workers);
        text_addf(text, " %+d", ring % 2 == 0 ? stride : -stride);
    }
}

const struct algorithm algorithm_multi_ring = {
    .name = "multi-ring",
    .aliases = "",
    .summary = "several rings with a part of the vector each, in both directions: for workers with several links",
    .source = "NCCL (channels); UCC (bidirectional ring)",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS,
    .options = multi_ring_options,
    .shape = multi_ring_shape,
    .emit = multi_ring_emit,
    .owner = multi_ring_owner,
    .describe = multi_ring_describe,
};
