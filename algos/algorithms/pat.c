/* pat.c - parallel aggregated trees: reduce-scatter and allgather in which far messages are small, for any p: least bytes
 * in 2 ceil(lg p) rounds, or in more rounds of smaller messages.
 *
 * Spreading, block b goes along a binomial tree shifted by b, far first: whoever is o after b has it from o less the
 * lowest bit of o (that many below), so a message over distance 2^i carries about p / 2^(i+1) blocks. Reducing is the same
 * backwards, near first. All trees move at once (blocks.h).
 *
 *   p = 8, block 0 is spread        distance 4    0 -> 4                            1 block a message
 *                                   distance 2    0 -> 2   4 -> 6                   2
 *                                   distance 1    0 -> 1   2 -> 3   4 -> 5   6 -> 7 4
 *
 * With aggregation=A (a power of two) at most A blocks share a message: the farthest bits are spread in lg A rounds as
 * above, the A subtrees then go in step, each depth first, one worker a round. So aggregation=1 takes p - 1 rounds each
 * way, and few blocks are ever under way (which is what it is for in NCCL, whose buffers they pass through).
 *
 * For p = 2^k the blocks of a message are a residue, and one range (chunks are blocks by reversed digits).
 *
 * Cost with R rounds each way: 2 R alpha + 2 (p-1)/p n beta + (p-1)/p n gamma. Source: S. Jeaugey, 2025, arXiv:2506.20252;
 * NCCL from 2.23 on (there for reduce-scatter and allgather alone).
 */
#include <stdlib.h>

#include "algos/blocks.h"
#include "base/memory.h"

static const struct option pat_options[] = {
    {.key = "aggregation",
     .type = OPTION_INT,
     .min = 1,
     .max = 1 << 30,
     .unit = "chunks",
     .help = "most that share a message, a power of two; else all that go the same way"},
    {.key = NULL},
};

static uint32_t lowest_bit(uint32_t value)
{
    return value & (~value + 1);
}

/* Depth first, far child first: 4 6 7 5 2 3 1, then 0. */
static uint32_t next_in_tree(uint32_t offset)
{
    if (offset % 2 == 0)
        return offset + lowest_bit(offset) / 2;
    const uint32_t parent = offset - 1; /* and all its children are done */
    return parent == 0 ? 0 : parent - lowest_bit(parent) / 2;
}

struct plan {
    uint32_t workers, span; /* span: 2^bits >= p              */
    uint32_t subtree;       /* span / aggregation             */
    uint32_t steps;         /* found so far                   */
    uint32_t *step_of;      /* of an offset, far first; 0: own */
};

/* In one step: offsets first, first + stride, ... */
static void add_step(struct plan *plan, uint32_t first, uint32_t stride)
{
    if (first >= plan->workers)
        return;
    for (uint64_t offset = first; offset < plan->workers; offset += stride)
        plan->step_of[offset] = plan->steps;
    plan->steps++;
}

static void find_steps(struct plan *plan)
{
    for (uint32_t bit = plan->span / 2; bit >= plan->subtree; bit /= 2)
        add_step(plan, bit, 2 * bit);
    for (uint32_t offset = plan->subtree / 2; offset > 0; offset = next_in_tree(offset))
        add_step(plan, offset, plan->subtree);
}

/* Sets in the order of the reducing half, by what a sender that is o after the owner sees: delta = -o. */
static enum status make_sets(struct plan *plan, struct block_sets **sets)
{
    enum status status;
    const uint32_t p = plan->workers;
    void *step_of = NULL, *set_of = NULL;
    TRY_TO(done, memory_zeroed(&step_of, p, sizeof(uint32_t)));
    TRY_TO(done, memory_zeroed(&set_of, p, sizeof(uint32_t)));
    plan->step_of = step_of;
    find_steps(plan);
    for (uint32_t offset = 1; offset < p; offset++)
        ((uint32_t *)set_of)[p - offset] = plan->steps - 1 - plan->step_of[offset];
    TRY_TO(done, block_sets_create(set_of, p, plan->steps, p == plan->span ? 2 : 0, sets));
done:
    free(step_of);
    free(set_of);
    return status;
}

static enum status pat_shape(const struct shape_request *request, struct shape *shape)
{
    const uint32_t p = (uint32_t)shape->workers, aggregation = (uint32_t)option_int(request->options, "aggregation");
    struct block_sets *sets = NULL;
    if ((aggregation & (aggregation - 1)) != 0 && aggregation != 0)
        return fail(STATUS_USAGE, "pat: aggregation=%u: it takes a power of two", aggregation);
    if (p == 1)
        return STATUS_OK;
    struct plan plan = {.workers = p, .span = 1};
    while (plan.span < p)
        plan.span *= 2;
    plan.subtree = aggregation == 0 || aggregation >= plan.span ? 1 : plan.span / aggregation;
    TRY(make_sets(&plan, &sets));
    shape->chunks = p;
    shape->split = plan.steps;
    shape->rounds = 2 * plan.steps;
    shape->state = sets;
    return STATUS_OK;
}

static void pat_release(struct shape *shape)
{
    block_sets_destroy(shape->state);
    shape->state = NULL;
}

static enum status pat_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct block_sets *sets = shape->state;
    const bool reducing = round < shape->split;
    const uint32_t step = reducing ? round : shape->rounds - 1 - round;
    const uint32_t offset = sets->blocks - sets->delta[sets->first[step]]; /* any of the set */
    const long long p = shape->workers, distance = lowest_bit(offset);
    const struct block_move down = {
        .set = step, .from = rank, .to = (int)((rank + p - distance) % p), .reducing = reducing};
    const struct block_move up = {.set = step,
                                  .from = (int)((rank + distance) % p),
                                  .to = rank,
                                  .reducing = reducing,
                                  .final = step == shape->split - 1};
    TRY(blocks_emit(sets, rank, reducing ? &down : &up, sink));
    return blocks_emit(sets, rank, reducing ? &up : &down, sink);
}

static int pat_owner(const struct shape *shape, uint32_t chunk)
{
    return shape->state == NULL ? 0 : (int)block_of_chunk(shape->state, chunk);
}

static void pat_describe(const struct shape *shape, struct text *text)
{
    const struct block_sets *sets = shape->state;
    uint32_t most = 0;
    for (uint32_t step = 0; step < shape->split; step++) {
        const uint32_t blocks = sets->first[step + 1] - sets->first[step];
        most = blocks > most ? blocks : most;
    }
    if (shape->rounds > 0)
        text_addf(text, "at most %u of %u chunks in a message", most, shape->chunks);
}

static double pat_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const double part = (shape->workers - 1.0) / shape->workers * (double)bytes;
    return shape->rounds * model->latency_s + part * (2 * model->seconds_per_byte + model->reduce_s_per_byte);
}

const struct algorithm algorithm_pat = {
    .name = "pat",
    .aliases = "",
    .summary = "reduce-scatter and allgather along shifted binomial trees, small messages far, large ones near; any "
               "number of workers",
    .source = "Jeaugey 2025; NCCL 2.23",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS,
    .options = pat_options,
    .shape = pat_shape,
    .emit = pat_emit,
    .owner = pat_owner,
    .release = pat_release,
    .describe = pat_describe,
    .cost = pat_cost,
};
