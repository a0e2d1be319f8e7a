/* fold.h - the power-of-two core of any number of workers, as recursive doubling and halving need it.
 *
 * core = 2^levels is the largest power of two <= p, extra = p - core. Of the first 2*extra workers the even ones hand
 * their vector to the odd neighbour above them, sit out, and get the result back: the odd ones and all from 2*extra on
 * are the core.
 *
 *   p = 6:  worker  0 -> 1   2 -> 3   4   5
 *   core number         0        1    2   3
 */
#ifndef CHORALE_ALGOS_ALGORITHMS_FOLD_H
#define CHORALE_ALGOS_ALGORITHMS_FOLD_H

#include "algos/schedule.h"

/* What follows fold_of() serves a core of any size, from half the workers on: extra = p - core. */
struct fold {
    int levels, core, extra;
};

static inline struct fold fold_of(int workers)
{
    struct fold fold = {.levels = 0, .core = 1};
    while (fold.core <= workers / 2) {
        fold.core *= 2;
        fold.levels++;
    }
    fold.extra = workers - fold.core;
    return fold;
}

/* Number of `rank` within the core, -1 when it sits out. */
static inline int fold_core_of(const struct fold *fold, int rank)
{
    if (rank >= 2 * fold->extra)
        return rank - fold->extra;
    return rank % 2 != 0 ? rank / 2 : -1;
}

/* The worker that has number `core` within the core. */
static inline int fold_rank_of(const struct fold *fold, int core)
{
    return core < fold->extra ? 2 * core + 1 : core + fold->extra;
}

/* The round before the core's work (`folding`: who sits out hands over all chunks) or the one after it (and gets the
 * result). */
static inline enum status fold_emit(const struct fold *fold, int rank, bool folding, uint32_t chunks, struct sink *sink)
{
    if (rank >= 2 * fold->extra)
        return STATUS_OK;
    if (fold_core_of(fold, rank) < 0)
        return folding ? emit_send(sink, rank + 1, 0, chunks) : emit_recv(sink, rank + 1, 0, chunks);
    return folding ? emit_recv_reduce(sink, rank - 1, 0, chunks, false) : emit_send(sink, rank - 1, 0, chunks);
}

/* Seconds for exchanging whole vectors with a peer of the core in each of `levels` rounds, and for folding. */
static inline double fold_cost_of_vectors(const struct fold *fold, const struct cost_model *model, size_t bytes)
{
    const double move = model->latency_s + (double)bytes * model->seconds_per_byte;
    const double add = (double)bytes * model->reduce_s_per_byte;
    return fold->levels * (move + add) + (fold->extra > 0 ? 2 * move + add : 0);
}

#endif
