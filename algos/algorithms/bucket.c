/* bucket.c - the workers as a grid: reduce-scatter along one dimension after the other, then allgather along them
 * backwards; as few bytes as the ring in far fewer rounds, neighbours of a torus only.
 *
 *   dims=2x3     0 - 1 - 2     first rings of 3 along the rows, on the whole vector: a third each
 *                |   |   |     then rings of 2 along the columns, on that third: a sixth each
 *                3 - 4 - 5     back: columns, then rows
 *
 * The last dimension is that of consecutive workers (2x3 is two rows of three, as a node layout 2x3 is two nodes of
 * three) and comes first, with the most bytes. Within a dimension of s workers, the block of chunks that a worker is
 * left with is cut into s; in step t place x passes part x-t-1 on and adds to part x-t-2, so that it ends with part x.
 *
 * Without dims= the grid is the most nearly square one of two dimensions, a x b = p; for a prime p that is 1 x p: a
 * plain ring. Any number of dimensions, 2x2x2 say, gives recursive halving's partners.
 *
 * Cost: the sum over dimensions of 2(s-1)(alpha + m/s beta) + (s-1) m/s gamma, m what the dimensions before have left:
 * 2 sum(s-1) alpha + 2(p-1)/p n beta + (p-1)/p n gamma. Source: E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn,
 * CCPE 19(13), 2007; P. Sack, W. Gropp, TOPC 2015; 2D torus: H. Mikami et al., arXiv:1811.05233.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "algos/schedule.h"
#include "base/memory.h"

#define MAX_DIMS 31 /* of at least 2 workers each, below 2^31 workers */

static const struct option bucket_options[] = {
    {.key = "dims",
     .type = OPTION_STRING,
     .help = "the grid, as 4x8 or 2x3x5, the last dimension of consecutive workers; else as square as it can be"},
    {.key = NULL},
};

struct grid {
    int dims;
    int size[MAX_DIMS];
};

/* ---- the grid ---- */

/* The divisor of p whose ratio to `wanted` is nearest to 1; of two alike the smaller. */
static int nearest_divisor(int p, double wanted)
{
    int best = 1;
    for (long long low = 1; low * low <= p; low++) {
        if (p % low != 0)
            continue;
        const int pair[] = {(int)low, (int)(p / low)};
        for (int i = 0; i < 2; i++)
            if (fabs(log(pair[i] / wanted)) < fabs(log(best / wanted)))
                best = pair[i];
    }
    return best;
}

static void square_grid(int p, struct grid *grid)
{
    int rows = 1;
    for (int d = 1; d <= p / d; d++)
        if (p % d == 0)
            rows = d;
    *grid = (struct grid){.dims = 2, .size = {rows, p / rows}};
}

static void describe_grid(const struct grid *grid, struct text *text)
{
    for (int i = 0; i < grid->dims; i++)
        text_addf(text, "%s%d", i > 0 ? "x" : "", grid->size[i]);
}

/* "4x8" into sizes; the product may be anything. */
static enum status parse_grid(const char *dims, struct grid *grid)
{
    *grid = (struct grid){.dims = 0};
    for (const char *at = dims;; at++) {
        char *end = NULL;
        const long size = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : 0;
        if (size < 1 || size > INT32_MAX || (*end != 'x' && *end != '\0') || grid->dims == MAX_DIMS)
            return fail(STATUS_USAGE, "bucket: dims=%s: it takes up to %d whole numbers from 1 on, as 4x8 or 2x3x5",
                        dims, MAX_DIMS);
        grid->size[grid->dims++] = (int)size;
        at = end;
        if (*at == '\0')
            return STATUS_OK;
    }
}

/* STATUS_REFUSED with a grid of p workers that is like *grid. */
static enum status refuse_grid(const char *dims, const struct grid *grid, int p)
{
    struct grid like = *grid;
    struct text text = {0};
    int left = p;
    for (int i = 0; i < like.dims; i++) {
        like.size[i] = i == like.dims - 1 ? left : nearest_divisor(left, grid->size[i]);
        left /= like.size[i];
    }
    describe_grid(&like, &text);
    enum status status =
        fail(STATUS_REFUSED, "bucket: dims=%s is not a grid of %d workers: dims=%s is", dims, p, text_string(&text));
    text_release(&text);
    return status;
}

static enum status make_grid(const char *dims, int p, struct grid *grid)
{
    if (dims == NULL) {
        square_grid(p, grid);
        return STATUS_OK;
    }
    TRY(parse_grid(dims, grid));
    size_t product = 1;
    for (int i = 0; i < grid->dims; i++)
        if (!checked_multiply(product, (size_t)grid->size[i], &product))
            return refuse_grid(dims, grid, p);
    return product == (size_t)p ? STATUS_OK : refuse_grid(dims, grid, p);
}

static enum status bucket_shape(const struct shape_request *request, struct shape *shape)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct grid)));
    struct grid *grid = memory;
    enum status status = make_grid(option_text(request->options, "dims"), shape->workers, grid);
    if (status < 0) {
        free(grid);
        return status;
    }
    for (int i = 0; i < grid->dims; i++)
        shape->split += (uint32_t)grid->size[i] - 1;
    shape->rounds = 2 * shape->split;
    shape->chunks = (uint32_t)shape->workers;
    shape->state = grid;
    return STATUS_OK;
}

static void bucket_release(struct shape *shape)
{
    free(shape->state);
    shape->state = NULL;
}

/* ---- the ops ---- */

/* A worker in one dimension: one of `size` workers `stride` apart, and the block of chunks they reduce among them. */
struct line {
    int size, stride, place;
    uint32_t block, part; /* first chunk of the block; chunks of each of its `size` parts */
};

/* The line of `rank` at step *step of the reduce-scatter, which becomes the step within the line. */
static struct line line_at(const struct shape *shape, int rank, uint32_t *step)
{
    const struct grid *grid = shape->state;
    struct line line = {.stride = 1, .part = shape->chunks};
    for (int i = grid->dims - 1;; i--) {
        line.size = grid->size[i];
        line.place = rank / line.stride % line.size;
        line.part /= (uint32_t)line.size;
        if (*step < (uint32_t)line.size - 1)
            return line;
        *step -= (uint32_t)line.size - 1;
        line.block += (uint32_t)line.place * line.part;
        line.stride *= line.size;
    }
}

/* First chunk of part x of the line's block, which may be beyond its ends by less than `size`. */
static uint32_t part_of(const struct line *line, int x)
{
    return line->block + (uint32_t)((x + line->size) % line->size) * line->part;
}

static enum status bucket_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const bool reducing = round < shape->split;
    uint32_t step = reducing ? round : shape->rounds - 1 - round; /* the allgather is the mirror image */
    const struct line line = line_at(shape, rank, &step);
    const int size = line.size, x = line.place, t = (int)step;
    const int up = rank + ((x + 1) % size - x) * line.stride;
    const int down = rank + ((x + size - 1) % size - x) * line.stride;
    if (reducing) {
        TRY(emit_send(sink, up, part_of(&line, x - t - 1), line.part));
        return emit_recv_reduce(sink, down, part_of(&line, x - t - 2), line.part, round == shape->split - 1);
    }
    TRY(emit_send(sink, down, part_of(&line, x - t - 2), line.part));
    return emit_recv(sink, up, part_of(&line, x - t - 1), line.part);
}

/* The digits of a chunk are the places in the dimensions, the last dimension being the most significant. */
static int bucket_owner(const struct shape *shape, uint32_t chunk)
{
    const struct grid *grid = shape->state;
    uint32_t part = shape->chunks;
    int owner = 0, stride = 1;
    for (int i = grid->dims - 1; i >= 0; i--) {
        part /= (uint32_t)grid->size[i];
        owner += (int)(chunk / part) * stride;
        chunk %= part;
        stride *= grid->size[i];
    }
    return owner;
}

static void bucket_describe(const struct shape *shape, struct text *text)
{
    const struct grid *grid = shape->state;
    text_add(text, "dims ");
    describe_grid(grid, text);
    for (int i = 0; i < grid->dims && shape->workers > 1; i++)
        if (grid->size[i] == shape->workers)
            text_add(text, ", a plain ring");
}

static double bucket_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const struct grid *grid = shape->state;
    const double p = shape->workers, part = (p - 1) / p * (double)bytes;
    double steps = 0;
    for (int i = 0; i < grid->dims; i++)
        steps += grid->size[i] - 1;
    return 2 * steps * model->latency_s + part * (2 * model->seconds_per_byte + model->reduce_s_per_byte);
}

const struct algorithm algorithm_bucket = {
    .name = "bucket",
    .aliases = "torus",
    .summary = "rings along the dimensions of a grid, one after the other: least bytes, few rounds; best on a torus",
    .source = "Chan et al. 2007; Sack, Gropp 2015",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS,
    .options = bucket_options,
    .shape = bucket_shape,
    .emit = bucket_emit,
    .owner = bucket_owner,
    .release = bucket_release,
    .describe = bucket_describe,
    .cost = bucket_cost,
};
