/* mixing.c - one gossip step x_i <- w_ii x_i + sum_j w_ij x_j as a schedule of one round, for any graph.
 *
 *   worker i:  SEND to everyone who takes from it    (they read the old value: emitted before anything is written)
 *              SCALE by w_ii
 *              RECV_REDUCE with weight w_ij from each j it takes from, in ascending order: equal bits in every run
 *
 * Cost, d = the largest number of messages into or out of a worker: alpha + d n beta + d n gamma (a worker's port is
 * serial; additions that hide behind the next arrival are counted as if they did not).
 */
#include <stdlib.h>

#include "algos/schedule.h"
#include "algos/strategy.h"
#include "base/memory.h"

/* W(step), by rows (who i takes from) and by columns (who takes from i), both ascending. */
struct mixing {
    double *self;              /* w_ii                                    */
    size_t *row, *column;      /* entries of i: [row[i], row[i + 1]), ... */
    struct mixing_edge *edges; /* by rows                                 */
    int *takers;               /* by columns                              */
};

static void mixing_release(struct shape *shape)
{
    struct mixing *mixing = shape->state;
    if (mixing == NULL)
        return;
    free(mixing->self);
    free(mixing->row);
    free(mixing->column);
    free(mixing->edges);
    free(mixing->takers);
    free(mixing);
    shape->state = NULL;
}

static enum status mixing_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    (void)round;
    const struct mixing *mixing = shape->state;
    for (size_t i = mixing->column[rank]; i < mixing->column[rank + 1]; i++)
        TRY(emit_send(sink, mixing->takers[i], 0, 1));
    TRY(emit_scale(sink, 0, 1, mixing->self[rank]));
    for (size_t i = mixing->row[rank]; i < mixing->row[rank + 1]; i++)
        TRY(emit_recv_mix(sink, mixing->edges[i].peer, 0, 1, mixing->edges[i].weight));
    return STATUS_OK;
}

static double mixing_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const struct mixing *mixing = shape->state;
    size_t degree = 0;
    if (mixing == NULL)
        return 0;
    for (int i = 0; i < shape->workers; i++) {
        const size_t in = mixing->row[i + 1] - mixing->row[i], out = mixing->column[i + 1] - mixing->column[i];
        degree = in > degree ? in : degree;
        degree = out > degree ? out : degree;
    }
    const double each = (double)bytes * (model->seconds_per_byte + model->reduce_s_per_byte);
    return degree == 0 ? 0 : model->latency_s + (double)degree * each;
}

/* Not in the catalogue: made for a graph by mixing_shape(). */
static const struct algorithm mixing_algorithm = {
    .name = "mixing",
    .aliases = "",
    .summary = "one gossip step: weighted sums over the neighbours of a graph",
    .source = "Xiao, Boyd 2004",
    .traits = TRAIT_ANY_SIZE | TRAIT_INEXACT | TRAIT_MIXING | TRAIT_PERIOD | TRAIT_WHOLE_INPUTS,
    .emit = mixing_emit,
    .release = mixing_release,
    .cost = mixing_cost,
};

static int by_peer(const void *a, const void *b)
{
    const struct mixing_edge *x = a, *y = b;
    return (x->peer > y->peer) - (x->peer < y->peer);
}

/* All rows, one behind another; `capacity` entries of *edges are allocated. */
static enum status read_rows(const struct graph *graph, int workers, uint64_t step, struct mixing *mixing,
                             struct mixing_edge *row)
{
    void *edges = NULL;
    size_t capacity = 0;
    for (int rank = 0; rank < workers; rank++) {
        int count = 0;
        TRY(graph->row(workers, rank, step, &mixing->self[rank], row, &count));
        qsort(row, (size_t)count, sizeof *row, by_peer);
        const size_t at = mixing->row[rank];
        TRY(memory_grow(&edges, &capacity, at + (size_t)count, sizeof *row));
        mixing->edges = edges;
        for (int i = 0; i < count; i++) {
            mixing->edges[at + (size_t)i] = row[i];
            mixing->column[row[i].peer + 1]++;
        }
        mixing->row[rank + 1] = at + (size_t)count;
    }
    return STATUS_OK;
}

/* The columns from the rows: column[i + 1] holds the count of i when it starts. */
static enum status make_columns(int workers, struct mixing *mixing, size_t *next)
{
    void *takers = NULL;
    for (int i = 0; i < workers; i++) {
        mixing->column[i + 1] += mixing->column[i];
        next[i] = mixing->column[i];
    }
    TRY(memory_zeroed(&takers, mixing->column[workers], sizeof(int)));
    mixing->takers = takers;
    for (int rank = 0; rank < workers; rank++)
        for (size_t i = mixing->row[rank]; i < mixing->row[rank + 1]; i++)
            mixing->takers[next[mixing->edges[i].peer]++] = rank;
    return STATUS_OK;
}

static enum status fill(const struct graph *graph, int workers, uint64_t step, struct mixing *mixing)
{
    enum status status;
    const size_t n = (size_t)workers;
    void *self = NULL, *row = NULL, *column = NULL, *next = NULL, *scratch = NULL;
    TRY_TO(out, memory_zeroed(&self, n, sizeof(double)));
    mixing->self = self;
    TRY_TO(out, memory_zeroed(&row, n + 1, sizeof(size_t)));
    mixing->row = row;
    TRY_TO(out, memory_zeroed(&column, n + 1, sizeof(size_t)));
    mixing->column = column;
    TRY_TO(out, memory_zeroed(&next, n, sizeof(size_t)));
    TRY_TO(out, memory_zeroed(&scratch, n, sizeof(struct mixing_edge)));
    TRY_TO(out, read_rows(graph, workers, step, mixing, scratch));
    TRY_TO(out, make_columns(workers, mixing, next));
out:
    free(next);
    free(scratch);
    return status;
}

enum status mixing_shape(const struct graph *graph, int workers, uint64_t step, struct shape **shape)
{
    *shape = NULL;
    if (workers < 1)
        return fail(STATUS_USAGE, "gossip on the graph %s needs at least 1 worker", graph->name);
    TRY(graph->check(workers));
    void *memory = NULL, *state = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct shape)));
    struct shape *made = memory;
    *made = (struct shape){.algorithm = &mixing_algorithm,
                           .workers = workers,
                           .chunks = 1,
                           .lanes = 1,
                           .rounds = workers > 1 ? 1 : 0,
                           .traits = mixing_algorithm.traits};
    enum status status = memory_zeroed(&state, 1, sizeof(struct mixing));
    made->state = state;
    if (status >= 0)
        status = fill(graph, workers, step, state);
    if (status < 0) {
        shape_destroy(made);
        return status;
    }
    *shape = made;
    return STATUS_OK;
}
