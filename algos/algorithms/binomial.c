/* binomial.c - binomial tree reduce to worker 0, then binomial broadcast; any p (the tree is ragged then).
 *
 *   p = 6, reduce: round 0        1         2      | broadcast: round 3     4          5
 *            1->0 3->2 5->4     2->0      4->0     |             0->4      0->2    0->1 2->3 4->5
 *
 * In round t worker r with r = 2^t (mod 2^(t+1)) sends to r - 2^t; the broadcast goes back the same way.
 * Cost, L = ceil(lg p): 2 L (alpha + n beta) + L n gamma; exact for powers of two, an upper bound for others.
 * Sent: at most L n bytes (worker 0).
 * Source: MPICH, Open MPI (nonoverlapping); R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19(1), 2005.
 */
#include "algos/schedule.h"

static uint32_t levels_of(int workers)
{
    uint32_t levels = 0;
    while ((1LL << levels) < workers)
        levels++;
    return levels;
}

static enum status binomial_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    shape->split = levels_of(shape->workers);
    shape->rounds = 2 * shape->split;
    return STATUS_OK;
}

static enum status binomial_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const bool reducing = round < shape->split;
    const uint32_t level = reducing ? round : shape->rounds - 1 - round;
    const long long distance = 1LL << level, place = rank % (2 * distance);
    if (place == distance) {
        const int parent = (int)(rank - distance);
        return reducing ? emit_send(sink, parent, 0, 1) : emit_recv(sink, parent, 0, 1);
    }
    if (place == 0 && rank + distance < shape->workers) {
        const int child = (int)(rank + distance);
        const bool last = rank == 0 && level == shape->split - 1;
        return reducing ? emit_recv_reduce(sink, child, 0, 1, last) : emit_send(sink, child, 0, 1);
    }
    return STATUS_OK;
}

static int binomial_owner(const struct shape *shape, uint32_t chunk)
{
    (void)shape, (void)chunk;
    return 0;
}

static double binomial_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const double n = (double)bytes, levels = shape->split;
    return levels * (2 * (model->latency_s + n * model->seconds_per_byte) + n * model->reduce_s_per_byte);
}

const struct algorithm algorithm_binomial = {
    .name = "binomial",
    .aliases = "",
    .summary = "binomial tree reduce, then broadcast: few messages, good for small vectors",
    .source = "MPICH; Thakur, Rabenseifner, Gropp 2005",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER,
    .shape = binomial_shape,
    .emit = binomial_emit,
    .owner = binomial_owner,
    .cost = binomial_cost,
};
