/* neighbor_exchange.c - reduce-scatter and allgather by exchanges with the two neighbours in turn: as few bytes as the
 * ring in half its rounds; even worker counts only.
 *
 *   allgather, p = 6       0 - 1   2 - 3   4 - 5     round 0: own chunks; now each pair has both of its chunks
 *   (0 is beside 5)       -0   1 - 2   3 - 4   5-    round 1: the pair of chunks that came last (here the own pair)
 *                          0 - 1   2 - 3   4 - 5     round 2: the pair of chunks that came last
 *
 * Pairs of workers and of chunks are (0 1), (2 3), ... After round i of the allgather worker r has got chunk pair r/2 +-
 * (i+1)/2 (mod p/2), minus where i + r is odd and r even or i + r even and r odd. The reduce-scatter is its mirror in
 * time: what was received is sent, and what was sent is received and added, from the last round to the first.
 *
 * Cost: p alpha + 2(p-1)/p n beta + (p-1)/p n gamma, 2(p-1)/p n bytes sent by every worker. Source: J. Chen, Y. Zhang, L.
 * Zhang, W. Yuan, HPC Asia 2005; Open MPI (allgather neighbor exchange).
 */
#include "algos/schedule.h"

static enum status neighbor_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    shape->chunks = (uint32_t)shape->workers;
    shape->split = shape->chunks / 2;
    shape->rounds = 2 * shape->split;
    return STATUS_OK;
}

/* First chunk of the pair that `rank` has got when round `i` of the allgather is over. */
static uint32_t pair_after(const struct shape *shape, int rank, uint32_t i)
{
    const uint32_t pairs = shape->chunks / 2, own = (uint32_t)rank / 2, moved = (i + 1) / 2;
    const bool below = (i % 2 != 0) == (rank % 2 == 0);
    return 2 * ((below ? own + pairs - moved : own + moved) % pairs);
}

static enum status neighbor_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const bool reducing = round < shape->split;
    const uint32_t i = reducing ? shape->split - 1 - round : round - shape->split; /* round of the allgather */
    const int p = shape->workers, peer = i % 2 == 0 ? rank ^ 1 : (rank % 2 == 0 ? rank + p - 1 : rank + 1) % p;
    const uint32_t chunks = i == 0 ? 1 : 2;
    const uint32_t sent = i == 0 ? (uint32_t)rank : pair_after(shape, rank, i - 1);
    const uint32_t got = i == 0 ? (uint32_t)peer : pair_after(shape, rank, i);
    if (reducing) {
        TRY(emit_send(sink, peer, got, chunks));
        return emit_recv_reduce(sink, peer, sent, chunks, i == 0);
    }
    TRY(emit_send(sink, peer, sent, chunks));
    return emit_recv(sink, peer, got, chunks);
}

static int neighbor_owner(const struct shape *shape, uint32_t chunk)
{
    (void)shape;
    return (int)chunk;
}

static double neighbor_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const double p = shape->workers, part = (p - 1) / p * (double)bytes;
    return p * model->latency_s + part * (2 * model->seconds_per_byte + model->reduce_s_per_byte);
}

const struct algorithm algorithm_neighbor_exchange = {
    .name = "neighbor-exchange",
    .aliases = "",
    .summary = "exchanges with both neighbours in turn: least bytes in half the ring's rounds; even worker counts",
    .source = "Chen et al. 2005; Open MPI",
    .traits = TRAIT_EVEN | TRAIT_HALVES | TRAIT_EQUAL_BITS,
    .shape = neighbor_shape,
    .emit = neighbor_emit,
    .owner = neighbor_owner,
    .cost = neighbor_cost,
};
