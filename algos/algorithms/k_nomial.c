/* k_nomial.c - k-nomial tree reduce to worker 0, then broadcast back: fewer levels than binomial, more messages in
 * each; any p.
 *
 *   radix 3, p = 9:  round 0: 1 2 -> 0   4 5 -> 3   7 8 -> 6     | round 2: 0 -> 3 6
 *                    round 1: 3 6 -> 0                           | round 3: 0 -> 1 2   3 -> 4 5   6 -> 7 8
 *
 * In round t worker r with r = j k^t (mod k^(t+1)), 0 < j < k, sends to r - j k^t, which adds in ascending order of j;
 * the broadcast goes back the same way. radix=2 is binomial, a radix of p or more a star.
 *
 * Cost, L = ceil(log_k p): L (alpha + n beta + (k-2) n max(beta, gamma) + n gamma) up, each vector added while the next
 * arrives, and L (alpha + (k-1) n beta) down; exact for powers of k, an upper bound for others. Sent: at most (k-1) L n
 * bytes (worker 0). Source: MPICH (tree type knomial), UCC, libfabric.
 */
#include <math.h>
#include <stdlib.h>

#include "algos/schedule.h"
#include "base/memory.h"

static const struct option k_nomial_options[] = {
    {.key = "radix",
     .type = OPTION_INT,
     .default_text = "4",
     .min = 2,
     .max = 1024,
     .help = "k: a worker has up to k-1 children on each level"},
    {.key = NULL},
};

struct k_nomial {
    long long radix;
};

static enum status k_nomial_shape(const struct shape_request *request, struct shape *shape)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct k_nomial)));
    struct k_nomial *tree = memory;
    tree->radix = option_int(request->options, "radix");
    for (long long reach = 1; reach < shape->workers; reach *= tree->radix)
        shape->split++;
    shape->rounds = 2 * shape->split;
    shape->state = tree;
    return STATUS_OK;
}

/* Towards worker 0: the children that `rank` has on the level of `distance`. */
static enum status add_children(struct sink *sink, const struct shape *shape, int rank, long long distance)
{
    const struct k_nomial *tree = shape->state;
    const bool top = distance * tree->radix >= shape->workers;
    for (long long j = 1; j < tree->radix; j++) {
        const long long child = rank + j * distance;
        if (child >= shape->workers)
            break;
        const bool last = top && (j == tree->radix - 1 || child + distance >= shape->workers);
        TRY(emit_recv_reduce(sink, (int)child, 0, 1, last));
    }
    return STATUS_OK;
}

static enum status serve_children(struct sink *sink, const struct shape *shape, int rank, long long distance)
{
    const struct k_nomial *tree = shape->state;
    for (long long j = 1; j < tree->radix && rank + j * distance < shape->workers; j++)
        TRY(emit_send(sink, (int)(rank + j * distance), 0, 1));
    return STATUS_OK;
}

static enum status k_nomial_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct k_nomial *tree = shape->state;
    const bool reducing = round < shape->split;
    long long distance = 1;
    for (uint32_t level = reducing ? round : shape->rounds - 1 - round; level > 0; level--)
        distance *= tree->radix;
    const long long place = rank % (distance * tree->radix);
    if (place == 0)
        return reducing ? add_children(sink, shape, rank, distance) : serve_children(sink, shape, rank, distance);
    if (place % distance != 0)
        return STATUS_OK;
    const int parent = (int)(rank - place);
    return reducing ? emit_send(sink, parent, 0, 1) : emit_recv(sink, parent, 0, 1);
}

static int k_nomial_owner(const struct shape *shape, uint32_t chunk)
{
    (void)shape, (void)chunk;
    return 0;
}

static void k_nomial_release(struct shape *shape)
{
    free(shape->state);
    shape->state = NULL;
}

/* A level above the last worker has fewer children than k-1. */
static double k_nomial_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const struct k_nomial *tree = shape->state;
    const double move = (double)bytes * model->seconds_per_byte, add = (double)bytes * model->reduce_s_per_byte;
    double seconds = 0;
    for (long long distance = 1; distance < shape->workers; distance *= tree->radix) {
        const double others = (double)(shape->workers - 1) / (double)distance;
        const double children = fmin((double)(tree->radix - 1), floor(others));
        seconds += 2 * model->latency_s + move + (children - 1) * fmax(move, add) + add + children * move;
    }
    return seconds;
}

const struct algorithm algorithm_k_nomial = {
    .name = "k-nomial",
    .aliases = "knomial",
    .summary = "k-nomial tree reduce, then broadcast: few levels; for small vectors where latency is all",
    .source = "MPICH; UCC",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER,
    .options = k_nomial_options,
    .shape = k_nomial_shape,
    .emit = k_nomial_emit,
    .owner = k_nomial_owner,
    .release = k_nomial_release,
    .cost = k_nomial_cost,
};
