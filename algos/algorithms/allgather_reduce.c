/* allgather_reduce.c - Bruck's allgather of all inputs, then everyone adds them up in rank order.
 *
 * The input of worker w lies in the vector of w and in a scratch plane of everyone else. In round k worker r has the
 * inputs of r, r+1, ... r+2^k-1 (mod p) and sends them, as one message, to r-2^k; in the last of these rounds only as
 * many as are still missing there. Then a round without messages: ((0 + 1) + 2) + ...
 *
 *   p = 5, worker 0 has    0    after round 0: 0 1    round 1: 0 1 2 3    round 2: 0 1 2 3 4    round 3: their sum
 *
 * Cost, L = ceil(lg p): L alpha + (p-1) n beta + (p-1) n gamma; p-1 vectors of memory. What travels is inputs alone, and
 * all add in the same order. Source: Open MPI (allgather_reduce); J. Bruck et al., IEEE TPDS 8(11), 1997.
 */
#include "algos/algorithms/message.h"

static enum status gather_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    shape->scratch = (uint32_t)shape->workers - 1;
    while ((1LL << shape->rounds) < shape->workers)
        shape->rounds++;
    shape->rounds += shape->workers > 1;
    return STATUS_OK;
}

/* Where worker `rank` has the input of worker w. */
static struct range input_of(const struct shape *shape, int rank, int w)
{
    if (w == rank)
        return vector_part(0, 1);
    return plane_part(shape, (uint32_t)(w < rank ? w : w - 1), 0, 1);
}

/* The inputs of `count` workers from `first` on, as one message. */
static enum status emit_inputs(const struct shape *shape, struct sink *sink, enum op_kind kind, int rank, int peer,
                               int first, int count)
{
    for (int i = 0; i < count; i++) {
        const struct range range = input_of(shape, rank, (first + i) % shape->workers);
        TRY(emit_message(sink, kind, i + 1 < count ? OP_MORE : 0, peer, range));
    }
    return STATUS_OK;
}

static enum status add(struct sink *sink, struct range src, struct range dst, bool last)
{
    return emit_op(
        sink,
        (struct op){.kind = OP_REDUCE, .flags = (uint8_t)(last ? OP_FINAL : 0), .peer = -1, .src = src, .dst = dst});
}

/* In rank order: what stands before the own input is added up in plane 0, a+b being b+a. */
static enum status add_up(const struct shape *shape, struct sink *sink, int rank)
{
    const int p = shape->workers;
    const struct range own = vector_part(0, 1);
    for (int w = 1; w < rank; w++)
        TRY(add(sink, input_of(shape, rank, w), input_of(shape, rank, 0), false));
    if (rank > 0)
        TRY(add(sink, input_of(shape, rank, 0), own, rank == p - 1));
    for (int w = rank + 1; w < p; w++)
        TRY(add(sink, input_of(shape, rank, w), own, w == p - 1));
    return STATUS_OK;
}

static enum status gather_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const int p = shape->workers;
    if (round == shape->rounds - 1)
        return add_up(shape, sink, rank);
    const int distance = 1 << round, count = distance < p - distance ? distance : p - distance;
    const int below = (rank + p - distance) % p, above = (rank + distance) % p;
    TRY(emit_inputs(shape, sink, OP_SEND, rank, below, rank, count));
    return emit_inputs(shape, sink, OP_RECV, rank, above, above, count);
}

static double gather_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    if (shape->workers == 1)
        return 0;
    return (shape->rounds - 1) * model->latency_s +
           (shape->workers - 1) * (double)bytes * (model->seconds_per_byte + model->reduce_s_per_byte);
}

const struct algorithm algorithm_allgather_reduce = {
    .name = "allgather-reduce",
    .aliases = "",
    .summary =
        "all inputs gathered in few rounds, then added up by everyone; for tiny vectors, with p-1 more in memory",
    .source = "Open MPI (allgather_reduce); Bruck et al. 1997",
    .traits = TRAIT_ANY_SIZE | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER | TRAIT_WHOLE_INPUTS,
    .shape = gather_shape,
    .emit = gather_emit,
    .cost = gather_cost,
};
