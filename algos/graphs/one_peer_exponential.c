/* one_peer_exponential.c - in step t every worker takes half of the one worker 2^k before it, k = t mod ceil(lg n).
 *
 *   n = 8, into worker 7:   t = 0: from 6    t = 1: from 5    t = 2: from 3    t = 3: from 6 ...
 *
 * One message out, one in. For n = 2^m any m steps in a row multiply to the exact mean; for other n each W(t) is doubly
 * stochastic, but no finite number of steps is exact.
 * Source: B. Ying et al., NeurIPS 2021 (arXiv:2110.13363); M. Assran et al., ICML 2019.
 */
#include "algos/strategy.h"

static enum status exponential_check(int workers)
{
    (void)workers;
    return STATUS_OK;
}

/* ceil(lg n), at least 1. */
static uint64_t exponential_period(int workers)
{
    uint64_t period = 1;
    while ((1LL << period) < workers)
        period++;
    return period;
}

static enum status exponential_row(int workers, int rank, uint64_t step, double *self, struct mixing_edge *edges,
                                   int *count)
{
    *self = 1;
    *count = 0;
    if (workers == 1)
        return STATUS_OK;
    const long long distance = 1LL << (step % exponential_period(workers)); /* below n: the other is never itself */
    *self = 0.5;
    *count = 1;
    edges[0] = (struct mixing_edge){.peer = (int)((rank + workers - distance) % workers), .weight = 0.5};
    return STATUS_OK;
}

const struct graph graph_one_peer_exponential = {
    .name = "one-peer-exponential",
    .aliases = "",
    .summary = "half of one worker, at a distance that doubles with each step; exact after lg n steps for n = 2^m",
    .source = "Ying et al. 2021",
    .check = exponential_check,
    .period = exponential_period,
    .row = exponential_row,
};
