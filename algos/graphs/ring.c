/* ring.c - every worker takes a third of each of its two neighbours and keeps a third of itself, in every step.
 *
 *   W = circulant(1/3, 1/3, 0, ..., 0, 1/3): symmetric, doubly stochastic (Metropolis: all degrees are 2)
 *   second eigenvalue (1 + 2 cos(2 pi / n)) / 3, so a step shrinks disagreement by little on a long ring
 *
 * Two workers are one edge (1/2 each), one worker keeps its own.
 * Source: X. Lian et al., NeurIPS 2017; L. Xiao, S. Boyd, Systems and Control Letters 53, 2004, for the weights.
 */
#include "algos/strategy.h"

static enum status ring_check(int workers)
{
    (void)workers;
    return STATUS_OK;
}

static uint64_t ring_period(int workers)
{
    (void)workers;
    return 1;
}

static enum status ring_row(int workers, int rank, uint64_t step, double *self, struct mixing_edge *edges, int *count)
{
    (void)step;
    const int degree = workers < 3 ? workers - 1 : 2;
    const int next = rank == workers - 1 ? 0 : rank + 1, previous = rank == 0 ? workers - 1 : rank - 1;
    const double weight = 1.0 / (1 + degree);
    *self = 1 - degree * weight;
    *count = degree;
    if (degree >= 1)
        edges[0] = (struct mixing_edge){.peer = next < previous ? next : previous, .weight = weight};
    if (degree == 2)
        edges[1] = (struct mixing_edge){.peer = next < previous ? previous : next, .weight = weight};
    return STATUS_OK;
}

const struct graph graph_ring = {
    .name = "ring",
    .aliases = "",
    .summary = "both neighbours on a ring, a third each",
    .source = "Lian et al. 2017; Metropolis weights",
    .check = ring_check,
    .period = ring_period,
    .row = ring_row,
};
