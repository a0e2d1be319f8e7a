/* trivance.c - reduce-scatter and allgather with both neighbours at tripling distances: least bytes in 2 ceil(log3 p)
 * rounds, for networks whose workers send both ways at once.
 *
 * In round s of the first half worker r passes blocks on to r+d and others to r-d, d = 3^s; after ceil(log3 p) rounds
 * block r is complete at worker r, and the second half goes the same way back. Looking back from its owner, a block's
 * tree reaches three times as many workers in each round, and all trees are one turned (blocks.h).
 *
 *   p = 9, the tree of block 0      round 0: 8 -> 0 <- 1   2 -> 3 <- 4   5 -> 6 <- 7        d = 1
 *                                   round 1: 6 -> 0 <- 3   complete                         d = 3
 *
 * Where p is no power of three, m = 3^(rounds - 1) workers around the owner, and around its two peers of the last round,
 * need not cover more than p: d = ceil((p - m) / 2) then, and whoever has been found in a later round, or from the other
 * side, is left out. For p = 3^k the blocks of a message are a residue, and one range (chunks are blocks by reversed
 * digits).
 *
 * Cost: 2 ceil(log3 p) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma with one port, as others have; two ports halve beta
 * for p = 3^k. Source: A. Juerss, V. Addanki, S. Schmid, 2026, arXiv:2602.17254.
 */
#include <stdlib.h>

#include "algos/blocks.h"
#include "base/memory.h"

struct trivance {
    struct block_sets *sets; /* 2 s: what goes up in step s, 2 s + 1: what goes down */
    long long widest;        /* distance of the last step                            */
};

/* 3^step, or what is left to cover in the last one. */
static int distance_of(const struct shape *shape, uint32_t step)
{
    const struct trivance *trivance = shape->state;
    if (step == shape->split - 1)
        return (int)trivance->widest;
    int distance = 1;
    while (step-- > 0)
        distance *= 3;
    return distance;
}

static int turned(const struct shape *shape, int worker, int by)
{
    const long long p = shape->workers;
    return (int)((worker + by + p) % p);
}

/* Whoever passes block 0 on to a holder in `step`, from below and from above; returns how many hold it then. */
static uint32_t find_step(const struct shape *shape, uint32_t step, uint32_t *holders, uint32_t known, uint32_t *set_of)
{
    const int distance = distance_of(shape, step);
    uint32_t count = known;
    for (uint32_t i = 0; i < known; i++)
        for (uint32_t down = 0; down < 2; down++) {
            const int sender = turned(shape, (int)holders[i], down ? distance : -distance);
            const int delta = shape->workers - sender;
            if (sender == 0 || set_of[delta] != BLOCKS_OWN)
                continue;
            set_of[delta] = 2 * step + down;
            holders[count++] = (uint32_t)sender;
        }
    return count;
}

static enum status make_sets(const struct shape *shape, uint32_t radix, struct block_sets **sets)
{
    enum status status;
    const size_t p = (size_t)shape->workers;
    void *holders = NULL, *set_of = NULL;
    TRY_TO(done, memory_zeroed(&holders, p, sizeof(uint32_t)));
    TRY_TO(done, memory_zeroed(&set_of, p, sizeof(uint32_t)));
    for (size_t delta = 0; delta < p; delta++)
        ((uint32_t *)set_of)[delta] = BLOCKS_OWN;
    uint32_t known = 1;
    for (uint32_t step = shape->split; step-- > 0;)
        known = find_step(shape, step, holders, known, set_of);
    TRY_TO(done, block_sets_create(set_of, (uint32_t)p, 2 * shape->split, radix, sets));
done:
    free(holders);
    free(set_of);
    return status;
}

static enum status trivance_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    const long long p = shape->workers;
    long long covered = 1; /* before the last step */
    void *memory = NULL;
    if (p == 1)
        return STATUS_OK;
    for (shape->split = 1; 3 * covered < p; shape->split++)
        covered *= 3;
    TRY(memory_zeroed(&memory, 1, sizeof(struct trivance)));
    struct trivance *trivance = memory;
    trivance->widest = (p - covered + 1) / 2;
    shape->chunks = (uint32_t)p;
    shape->rounds = 2 * shape->split;
    shape->state = trivance;
    const enum status status = make_sets(shape, p == 3 * covered ? 3 : 0, &trivance->sets);
    if (status < 0)
        free(trivance);
    return status;
}

static void trivance_release(struct shape *shape)
{
    struct trivance *trivance = shape->state;
    if (trivance != NULL)
        block_sets_destroy(trivance->sets);
    free(trivance);
    shape->state = NULL;
}

static enum status trivance_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct trivance *trivance = shape->state;
    const bool reducing = round < shape->split;
    const uint32_t step = reducing ? round : shape->rounds - 1 - round;
    const int distance = distance_of(shape, step);
    const int up = turned(shape, rank, distance), down = turned(shape, rank, -distance);
    const bool last = step == shape->split - 1, one_peer = up == down;
    const struct block_move moves[] = {
        {.set = 2 * step, .from = rank, .to = up, .reducing = reducing},
        {.set = 2 * step + 1, .from = rank, .to = down, .reducing = reducing},
        {.set = 2 * step, .from = down, .to = rank, .reducing = reducing, .final = last && one_peer},
        {.set = 2 * step + 1, .from = up, .to = rank, .reducing = reducing, .final = last},
    };
    for (size_t i = 0; i < 4; i++) /* what is sent first, in either half */
        TRY(blocks_emit(trivance->sets, rank, &moves[reducing ? i : 3 - i], sink));
    return STATUS_OK;
}

static int trivance_owner(const struct shape *shape, uint32_t chunk)
{
    const struct trivance *trivance = shape->state;
    return trivance == NULL ? 0 : (int)block_of_chunk(trivance->sets, chunk);
}

static void trivance_describe(const struct shape *shape, struct text *text)
{
    for (uint32_t step = 0; step < shape->split; step++)
        text_addf(text, "%s%d", step == 0 ? "distances " : ", ", distance_of(shape, step));
}

static double trivance_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const double part = (shape->workers - 1.0) / shape->workers * (double)bytes;
    return shape->rounds * model->latency_s + part * (2 * model->seconds_per_byte + model->reduce_s_per_byte);
}

const struct algorithm algorithm_trivance = {
    .name = "trivance",
    .aliases = "",
    .summary =
        "reduce-scatter and allgather with both neighbours at tripling distances; best for rings with two ports, "
        "powers of three",
    .source = "Juerss, Addanki, Schmid 2026",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS,
    .shape = trivance_shape,
    .emit = trivance_emit,
    .owner = trivance_owner,
    .release = trivance_release,
    .describe = trivance_describe,
    .cost = trivance_cost,
};
