/* naive.c - linear reduce to worker 0, then linear broadcast: the reference that everything else has to beat.
 *
 *   round 0      1      2   |  3      4      5          (p = 4)
 *       1->0   2->0   3->0  | 0->1   0->2   0->3
 *
 * Nothing but worker 0's port orders the rounds. Cost: the p-1 vectors come in one behind another and each is added
 * while the next arrives, then p-1 go out: 2 alpha + n beta + (p-2) n max(beta, gamma) + n gamma + (p-1) n beta. Worker
 * 0 sends (p-1) n bytes, every other one n. Source: folklore; MPI libraries call it basic linear.
 */
#include "algos/schedule.h"

static enum status naive_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    shape->split = (uint32_t)shape->workers - 1;
    shape->rounds = 2 * shape->split;
    return STATUS_OK;
}

static enum status naive_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const bool reducing = round < shape->split;
    const int other = (int)(reducing ? round : round - shape->split) + 1;
    if (rank != 0 && rank != other)
        return STATUS_OK;
    if (reducing)
        return rank == 0 ? emit_recv_reduce(sink, other, 0, 1, round == shape->split - 1) : emit_send(sink, 0, 0, 1);
    return rank == 0 ? emit_send(sink, other, 0, 1) : emit_recv(sink, 0, 0, 1);
}

static int naive_owner(const struct shape *shape, uint32_t chunk)
{
    (void)shape, (void)chunk;
    return 0;
}

static double naive_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    if (shape->workers == 1)
        return 0;
    const double others = shape->workers - 1, move = (double)bytes * model->seconds_per_byte;
    const double add = (double)bytes * model->reduce_s_per_byte;
    const double gather = model->latency_s + move + (others - 1) * (add > move ? add : move) + add;
    return gather + model->latency_s + others * move;
}

const struct algorithm algorithm_naive = {
    .name = "naive",
    .aliases = "linear",
    .summary = "linear reduce to worker 0, then linear broadcast: the reference; only for very few workers",
    .source = "folklore (basic linear)",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER | TRAIT_WHOLE_INPUTS,
    .shape = naive_shape,
    .emit = naive_emit,
    .owner = naive_owner,
    .cost = naive_cost,
};
