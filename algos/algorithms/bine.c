/* bine.c - Bine's reduce-scatter and allgather with permuted blocks: the bytes and rounds of recursive halving and
 * doubling, most of them to near peers, and one contiguous range a message.
 *
 * In round s of the first half peers at distance rho(s) = 1, -1, 3, -5, ... (negabinary.h) swap the halves that the
 * other one keeps; the second half goes back the same way. The halves, the quarters, ... fall to the classes of workers
 * who meet later on: one residue of the even workers mod 2^(s+2) and the odd ones whom they meet. Numbered by class, a
 * worker's part is always one range: `position` is the number of a worker in that order.
 *
 *   core of 8    worker       0  1  2  3  4  5  6  7
 *                position     0  7  4  1  2  5  6  3
 *     round 0: 0<->1 2<->3 4<->5 6<->7    0 keeps [0 1 2 3], sends [4 5 6 7]
 *     round 1: 0<->7 2<->1 4<->3 6<->5    0 keeps [0 1], sends [2 3]
 *     round 2: 0<->3 2<->5 4<->7 6<->1    0 keeps [0], sends [1]          chunk c is complete at position c
 *
 * What tells it from others: recursive halving sends most bytes to the farthest peer (distance p/2 first), Bine to a
 * neighbour (distances double while parts halve). Swing has the same peers, but block c belongs to worker c: its messages
 * are many ranges, and other counts than powers of two drop blocks; here they fold (fold.h).
 *
 * Cost, m = 2^l: 2 l alpha + 2 (m-1)/m n beta + (m-1)/m n gamma, and with folding 2 (alpha + n beta) + n gamma more.
 * Source: D. De Sensi et al., SC'25, arXiv:2508.17311.
 */
#include "algos/algorithms/fold.h"
#include "algos/algorithms/negabinary.h"
#include "algos/blocks.h"

static enum status bine_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    const struct fold fold = fold_of(shape->workers);
    shape->chunks = (uint32_t)fold.core;
    shape->split = (uint32_t)fold.levels + (fold.extra > 0);
    shape->rounds = 2 * shape->split;
    return STATUS_OK;
}

/* The number of a core worker in the order of classes: its even one of the last round (itself or whom it meets then)
 * halved and reversed, so that the lowest bits, which part the workers first, weigh most; the last bit is even or odd. */
static uint32_t position_of(const struct fold *fold, int core)
{
    if (fold->levels == 0)
        return 0;
    const int even = core % 2 == 0 ? core : negabinary_peer(core, fold->levels - 1, fold->core);
    return reversed_digits((uint32_t)even / 2, 2, fold->levels - 1) << 1 | (uint32_t)(core % 2);
}

static int core_at(const struct fold *fold, uint32_t position)
{
    if (fold->levels == 0)
        return 0;
    const int even = (int)(2 * reversed_digits(position >> 1, 2, fold->levels - 1));
    return position % 2 == 0 ? even : negabinary_peer(even, fold->levels - 1, fold->core);
}

static enum status bine_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct fold fold = fold_of(shape->workers);
    const int core = fold_core_of(&fold, rank), t = (int)round - (fold.extra > 0);

    if (t < 0 || t >= 2 * fold.levels) /* fold, unfold */
        return fold_emit(&fold, rank, t < 0, shape->chunks, sink);
    if (core < 0)
        return STATUS_OK;

    const bool halving = t < fold.levels;
    const int step = halving ? t : 2 * fold.levels - 1 - t;
    const int peer = fold_rank_of(&fold, negabinary_peer(core, step, fold.core));
    const uint32_t n = shape->chunks >> (step + 1), mine = position_of(&fold, core) & ~(n - 1), theirs = mine ^ n;
    if (halving) {
        TRY(emit_send(sink, peer, theirs, n));
        return emit_recv_reduce(sink, peer, mine, n, step == fold.levels - 1);
    }
    TRY(emit_send(sink, peer, mine, n));
    return emit_recv(sink, peer, theirs, n);
}

static int bine_owner(const struct shape *shape, uint32_t chunk)
{
    const struct fold fold = fold_of(shape->workers);
    return fold_rank_of(&fold, core_at(&fold, chunk));
}

static double bine_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const struct fold fold = fold_of(shape->workers);
    const double move = (double)bytes * model->seconds_per_byte, add = (double)bytes * model->reduce_s_per_byte;
    const double part = (fold.core - 1.0) / fold.core, folding = fold.extra > 0 ? 1 : 0;
    return 2 * fold.levels * model->latency_s + part * (2 * move + add) +
           folding * (2 * (model->latency_s + move) + add);
}

const struct algorithm algorithm_bine = {
    .name = "bine",
    .aliases = "",
    .summary = "reduce-scatter and allgather whose large messages go to near peers, one range each; best for powers of "
               "two where links are shared",
    .source = "De Sensi et al. 2025",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS,
    .shape = bine_shape,
    .emit = bine_emit,
    .owner = bine_owner,
    .cost = bine_cost,
};
