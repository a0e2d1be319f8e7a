/* negabinary.h - the peers that Swing and Bine have in common.
 *
 * In step s worker r meets r + rho(s) if r is even, r - rho(s) if it is odd, rho(s) = 1 - 2 + 4 - ... + (-2)^s, which is
 * 1, -1, 3, -5, 11, -21, ...: about 2/3 of the distance 2^s, swinging from one side to the other. As rho is odd, even
 * and odd workers meet, so each step is a perfect matching of any even number of workers.
 */
#ifndef CHORALE_ALGOS_ALGORITHMS_NEGABINARY_H
#define CHORALE_ALGOS_ALGORITHMS_NEGABINARY_H

/* s from 0 to 60. */
static inline long long negabinary_distance(int step)
{
    const long long power = 1LL << (step + 1); /* |(-2)^(s+1)| */
    return (step % 2 == 0 ? 1 + power : 1 - power) / 3;
}

/* Whom `worker` of an even number of workers meets in step s. */
static inline int negabinary_peer(int worker, int step, int workers)
{
    const long long distance = negabinary_distance(step) % workers;
    const long long peer = worker % 2 == 0 ? worker + distance : worker - distance;
    return (int)((peer + workers) % workers);
}

#endif
