/* ring.c - reduce-scatter around the ring, then allgather around it: least bytes, neighbours only.
 *
 * p chunks. In round t of the first half worker r passes chunk r-t on to r+1 and adds what comes from r-1 to its chunk
 * r-t-1 (mod p); after p-1 rounds it owns chunk r+1, which the second half carries around once more.
 *
 *   p = 4, chunk c as it grows:      worker  0    1    2    3
 *   round 0: r sends chunk r                 0 -> 1 -> 2 -> 3 -> (0)
 *   round 1: r sends chunk r-1               3 -> 0 -> 1 -> 2 -> (3)
 *   round 2: r sends chunk r-2               2 -> 3 -> 0 -> 1 -> (2)      complete: worker r has chunk r+1
 *
 * Cost: 2(p-1)(alpha + n/p beta) + (p-1) n/p gamma; 2(p-1)/p n bytes sent by every worker, which no algorithm
 * undercuts. Source: P. Patarasuk, X. Yuan, JPDC 69(2), 2009; Baidu, Horovod, NCCL.
 */
#include "algos/schedule.h"

static enum status ring_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    shape->chunks = (uint32_t)shape->workers;
    shape->split = shape->chunks - 1;
    shape->rounds = 2 * shape->split;
    return STATUS_OK;
}

/* value mod p, from 0 to p-1 for negative values, too. */
static int wrap(long long value, int p)
{
    const int rest = (int)(value % p);
    return rest < 0 ? rest + p : rest;
}

static enum status ring_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const int p = shape->workers, next = wrap(rank + 1LL, p), previous = wrap(rank - 1LL, p);
    const long long r = rank, t = round < shape->split ? round : round - shape->split;

    if (round < shape->split) { /* reduce-scatter */
        const bool complete = round == shape->split - 1;
        TRY(emit_send(sink, next, (uint32_t)wrap(r - t, p), 1));
        return emit_recv_reduce(sink, previous, (uint32_t)wrap(r - t - 1, p), 1, complete);
    }
    TRY(emit_send(sink, next, (uint32_t)wrap(r + 1 - t, p), 1)); /* allgather */
    return emit_recv(sink, previous, (uint32_t)wrap(r - t, p), 1);
}

static int ring_owner(const struct shape *shape, uint32_t chunk)
{
    return wrap((long long)chunk - 1, shape->workers);
}

static double ring_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const double steps = shape->workers - 1, part = (double)bytes / shape->workers;
    return 2 * steps * (model->latency_s + part * model->seconds_per_byte) + steps * part * model->reduce_s_per_byte;
}

const struct algorithm algorithm_ring = {
    .name = "ring",
    .aliases = "",
    .summary = "reduce-scatter and allgather around a ring: least bytes, neighbours only; best for large vectors",
    .source = "Patarasuk, Yuan 2009; NCCL",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS,
    .shape = ring_shape,
    .emit = ring_emit,
    .owner = ring_owner,
    .cost = ring_cost,
};
