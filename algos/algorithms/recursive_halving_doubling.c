/* recursive_halving_doubling.c - reduce-scatter by recursive halving, allgather by recursive doubling: as few bytes as
 * the ring in 2 lg p rounds.
 *
 * The core of 2^l workers halves what it is responsible for in each round: partners at distance core/2, core/4, ...
 * swap the halves that the other one keeps; the second part goes back the same way. Workers beyond the core fold into a
 * neighbour first and get the result at the end (fold.h): with fold=whole they send it their vector, which it adds; with
 * fold=split the two swap halves, each adds one, and the sum of the other half is handed over.
 *
 *   core of 4, 4 chunks    round 0: 0<->2, 1<->3           round 1: 0<->1, 2<->3     complete
 *   worker 0               keeps [0 1], sends [2 3]        keeps [0], sends [1]      chunk 0
 *   worker 1               keeps [0 1], sends [2 3]        keeps [1], sends [0]      chunk 1
 *   worker 2               keeps [2 3], sends [0 1]        keeps [2], sends [3]      chunk 2
 *   worker 3               keeps [2 3], sends [0 1]        keeps [3], sends [2]      chunk 3
 *
 * Cost, m = 2^l: 2 l alpha + 2 (m-1)/m n beta + (m-1)/m n gamma, and with folding 2 alpha + 2 n beta + n gamma more,
 * or, split, 3 alpha + 2 n beta + n/2 gamma.
 * Source: R. Rabenseifner, 2004; MPICH (whole), Open MPI (split); R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19(1),
 * 2005.
 */
#include <string.h>

#include "algos/algorithms/fold.h"
#include "algos/schedule.h"

static const struct option rhd_options[] = {
    {.key = "fold",
     .type = OPTION_CHOICE,
     .default_text = "whole",
     .choices = "whole|split",
     .help = "how workers beyond a power of two fold: split halves the adding for one more message"},
    {.key = NULL},
};

static enum status rhd_shape(const struct shape_request *request, struct shape *shape)
{
    const bool split = strcmp(option_text(request->options, "fold"), "split") == 0;
    const struct fold fold = fold_of(shape->workers);
    const uint32_t unfolding = fold.extra > 0, folding = unfolding + (split ? unfolding : 0);
    shape->chunks = (uint32_t)fold.core;
    shape->split = folding + (uint32_t)fold.levels;
    shape->rounds = shape->split + (uint32_t)fold.levels + unfolding;
    return STATUS_OK;
}

/* Rounds before the halving: 0 without workers beyond the core, 1 folding whole, 2 split. */
static int folding_rounds(const struct shape *shape, const struct fold *fold)
{
    return (int)shape->split - fold->levels;
}

/* Round 0: the worker that sits out adds the first half, its partner the second; round 1: it hands over what it has. */
static enum status emit_split(const struct shape *shape, const struct fold *fold, int rank, uint32_t round,
                              struct sink *sink)
{
    if (rank >= 2 * fold->extra)
        return STATUS_OK;
    const uint32_t half = shape->chunks / 2; /* of a core of two at least: a single worker folds nobody */
    const bool sits_out = rank % 2 == 0;
    const int peer = rank ^ 1;
    if (round == 1)
        return sits_out ? emit_send(sink, peer, 0, half) : emit_recv(sink, peer, 0, half);
    TRY(emit_send(sink, peer, sits_out ? half : 0, half));
    return emit_recv_reduce(sink, peer, sits_out ? 0 : half, half, false);
}

static enum status rhd_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct fold fold = fold_of(shape->workers);
    const int folding = folding_rounds(shape, &fold), core = fold_core_of(&fold, rank), t = (int)round - folding;

    if (t < 0 || t >= 2 * fold.levels)
        return t < 0 && folding == 2 ? emit_split(shape, &fold, rank, round, sink)
                                     : fold_emit(&fold, rank, t < 0, shape->chunks, sink);
    if (core < 0)
        return STATUS_OK;

    const bool halving = t < fold.levels;
    const int distance = halving ? fold.core >> (t + 1) : 1 << (t - fold.levels);
    const int peer = fold_rank_of(&fold, core ^ distance);
    const uint32_t n = (uint32_t)distance, mine = (uint32_t)(core & ~(distance - 1)), theirs = mine ^ n;
    if (halving) {
        TRY(emit_send(sink, peer, theirs, n));
        return emit_recv_reduce(sink, peer, mine, n, distance == 1);
    }
    TRY(emit_send(sink, peer, mine, n));
    return emit_recv(sink, peer, theirs, n);
}

static int rhd_owner(const struct shape *shape, uint32_t chunk)
{
    const struct fold fold = fold_of(shape->workers);
    return fold_rank_of(&fold, (int)chunk);
}

static double rhd_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const struct fold fold = fold_of(shape->workers);
    const double move = (double)bytes * model->seconds_per_byte, add = (double)bytes * model->reduce_s_per_byte;
    const double part = (fold.core - 1.0) / fold.core;
    const double core = 2 * fold.levels * model->latency_s + part * (2 * move + add);
    const int folding = folding_rounds(shape, &fold);
    return folding == 0 ? core : core + (folding + 1) * model->latency_s + 2 * move + add / folding;
}

const struct algorithm algorithm_recursive_halving_doubling = {
    .name = "recursive-halving-doubling",
    .aliases = "rhd rabenseifner",
    .summary = "recursive halving, then doubling: least bytes in few rounds; best for powers of two",
    .source = "Rabenseifner 2004; MPICH, Open MPI",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER,
    .options = rhd_options,
    .shape = rhd_shape,
    .emit = rhd_emit,
    .owner = rhd_owner,
    .cost = rhd_cost,
};
