/* test_graphs.c - gossip graphs and the schedules of their mixing steps. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/explain.h"
#include "algos/spec.h"

#define MAX 33

/* w[i][j]: what worker i takes of worker j. */
static void matrix(const struct graph *graph, int n, uint64_t step, double w[MAX][MAX])
{
    memset(w, 0, sizeof(double[MAX][MAX]));
    for (int i = 0; i < n; i++) {
        struct mixing_edge edges[MAX];
        int count = -1;
        cr_assert_eq(graph->row(n, i, step, &w[i][i], edges, &count), STATUS_OK);
        cr_assert(count >= 0 && count < n);
        for (int e = 0; e < count; e++) {
            cr_assert(edges[e].peer >= 0 && edges[e].peer < n && edges[e].peer != i, "%s: %d takes from %d of %d",
                      graph->name, i, edges[e].peer, n);
            cr_assert_eq(w[i][edges[e].peer], 0, "%s: an edge is there twice", graph->name);
            w[i][edges[e].peer] = edges[e].weight;
        }
    }
}

Test(graphs, rows_and_columns_sum_to_one_in_every_step)
{
    size_t count;
    const struct graph *const *graphs = catalogue_graphs(&count);
    static double w[MAX][MAX];
    for (size_t g = 0; g < count; g++) {
        for (int n = 1; n <= MAX; n++) {
            cr_assert_eq(graphs[g]->check(n), STATUS_OK);
            const uint64_t period = graphs[g]->period(n);
            cr_assert_geq(period, 1);
            for (uint64_t step = 0; step < 2 * period; step++) {
                matrix(graphs[g], n, step, w);
                for (int i = 0; i < n; i++) {
                    double row = 0, column = 0;
                    for (int j = 0; j < n; j++) {
                        cr_assert_geq(w[i][j], 0);
                        row += w[i][j];
                        column += w[j][i];
                    }
                    cr_assert_float_eq(row, 1, 1e-15, "%s n=%d row %d", graphs[g]->name, n, i);
                    cr_assert_float_eq(column, 1, 1e-15, "%s n=%d column %d", graphs[g]->name, n, i);
                }
            }
        }
    }
}

Test(graphs, names_agree_with_the_catalogue)
{
    size_t count;
    const struct graph *const *graphs = catalogue_graphs(&count);
    cr_assert_geq(count, 2);
    for (size_t g = 0; g < count; g++) {
        struct spec spec;
        char text[100];
        (void)snprintf(text, sizeof text, "gossip:graph=%s", graphs[g]->name);
        cr_assert_eq(spec_parse(text, &spec), STATUS_OK, "%s", status_message());
        cr_assert_eq(spec_graph(&spec), graphs[g]);
        spec_release(&spec);
    }
}

Test(ring, weights_are_those_of_metropolis)
{
    static double w[MAX][MAX];
    const struct graph *ring = graph_find("ring");
    matrix(ring, 1, 0, w);
    cr_assert_eq(w[0][0], 1);
    matrix(ring, 2, 0, w);
    cr_assert(w[0][0] == 0.5 && w[0][1] == 0.5);
    matrix(ring, 3, 0, w);
    cr_assert(w[0][1] == 1.0 / 3 && w[0][2] == 1.0 / 3);
    matrix(ring, 6, 0, w);
    cr_assert(w[0][1] == 1.0 / 3 && w[0][5] == 1.0 / 3 && w[0][2] == 0);
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++)
            cr_assert_eq(w[i][j], w[j][i]);
}

Test(one_peer_exponential, takes_half_of_the_worker_2_to_the_k_before_it)
{
    static double w[MAX][MAX];
    const struct graph *graph = graph_find("one-peer-exponential");
    cr_assert_eq(graph->period(1), 1);
    cr_assert_eq(graph->period(2), 1);
    cr_assert_eq(graph->period(6), 3);
    cr_assert_eq(graph->period(8), 3);
    for (uint64_t step = 0; step < 9; step++) {
        matrix(graph, 6, step, w);
        for (int i = 0; i < 6; i++) {
            cr_assert_eq(w[i][i], 0.5);
            cr_assert_eq(w[i][(i + 6 - (1 << (step % 3))) % 6], 0.5);
        }
    }
    matrix(graph, 6, UINT64_MAX, w); /* far into a run */
}

Test(one_peer_exponential, any_lg_n_steps_multiply_to_exactly_the_mean_for_powers_of_two)
{
    static double w[MAX][MAX], product[MAX][MAX], next[MAX][MAX];
    const struct graph *graph = graph_find("one-peer-exponential");
    for (int n = 2; n <= 16; n *= 2) {
        const uint64_t period = graph->period(n);
        for (uint64_t start = 0; start < period; start++) {
            memset(product, 0, sizeof product);
            for (int i = 0; i < n; i++)
                product[i][i] = 1;
            for (uint64_t step = start; step < start + period; step++) {
                matrix(graph, n, step, w);
                for (int i = 0; i < n; i++)
                    for (int j = 0; j < n; j++) {
                        next[i][j] = 0;
                        for (int k = 0; k < n; k++)
                            next[i][j] += w[i][k] * product[k][j];
                    }
                memcpy(product, next, sizeof product);
            }
            for (int i = 0; i < n; i++)
                for (int j = 0; j < n; j++)
                    cr_assert_eq(product[i][j], 1.0 / n, "n=%d start=%d", n, (int)start);
        }
    }
}

/* ---- figures ---- */

static struct explain_mixing figures(const char *graph, int n)
{
    struct explain_mixing mixing;
    cr_assert_eq(explain_graph(graph_find(graph), n, &mixing), STATUS_OK, "%s", status_message());
    return mixing;
}

Test(explain, gap_of_the_ring_is_the_closed_form)
{
    const double pi = acos(-1);
    for (int n = 4; n <= 64; n *= 2)
        cr_assert_float_eq(1 - figures("ring", n).contraction, 2.0 / 3 * (1 - cos(2 * pi / n)), 1e-7, "n=%d", n);
    cr_assert_eq(figures("ring", 6).degree, 2);
    cr_assert_eq(figures("ring", 6).exact_after, 0);
    cr_assert_eq(figures("ring", 2).exact_after, 1);
    cr_assert_eq(figures("ring", 3).exact_after, 1);
    cr_assert(isnan(figures("ring", EXPLAIN_GAP_WORKERS + 1).contraction));
}

Test(explain, one_peer_exponential_is_exact_after_lg_n_for_powers_of_two_only)
{
    for (int n = 2, levels = 1; n <= 64; n *= 2, levels++) {
        const struct explain_mixing mixing = figures("one-peer-exponential", n);
        cr_assert_eq(mixing.exact_after, levels);
        cr_assert_eq(mixing.degree, 1);
        cr_assert_eq(mixing.contraction, 0);
    }
    for (int n = 3; n <= 24; n++)
        if ((n & (n - 1)) != 0)
            cr_assert_eq(figures("one-peer-exponential", n).exact_after, 0, "n=%d", n);
}

/* ---- the schedule of a step ---- */

struct recorder {
    struct sink sink;
    struct op ops[3 * MAX];
    int count;
};

static enum status record(struct sink *sink, const struct op *op)
{
    struct recorder *recorder = (struct recorder *)sink;
    recorder->ops[recorder->count++] = *op;
    return STATUS_OK;
}

static struct recorder recorded(const struct shape *shape, int rank)
{
    struct recorder recorder = {.sink = {.op = record}};
    cr_assert_eq(shape->algorithm->emit(shape, rank, 0, &recorder.sink), STATUS_OK);
    return recorder;
}

Test(mixing, sends_the_old_value_then_scales_then_takes_in_ascending_order)
{
    struct shape *shape;
    cr_assert_eq(mixing_shape(graph_find("ring"), 5, 0, &shape), STATUS_OK);
    cr_assert_eq(shape->rounds, 1);
    cr_assert((shape->algorithm->traits & TRAIT_MIXING) != 0);
    const struct recorder r = recorded(shape, 4);
    cr_assert_eq(r.count, 5);
    cr_assert(r.ops[0].kind == OP_SEND && r.ops[0].peer == 0);
    cr_assert(r.ops[1].kind == OP_SEND && r.ops[1].peer == 3);
    cr_assert(r.ops[2].kind == OP_SCALE);
    cr_assert_float_eq(r.ops[2].weight, 1.0 / 3, 1e-15);
    cr_assert(r.ops[3].kind == OP_RECV_REDUCE && r.ops[3].peer == 0 && r.ops[3].weight == 1.0 / 3);
    cr_assert(r.ops[4].kind == OP_RECV_REDUCE && r.ops[4].peer == 3 && r.ops[4].weight == 1.0 / 3);
    for (int i = 0; i < r.count; i++)
        cr_assert_eq(r.ops[i].flags, 0, "no FINAL in gossip");
    shape_destroy(shape);
}

Test(mixing, computes_the_matrix_for_every_graph_and_step)
{
    size_t count;
    const struct graph *const *graphs = catalogue_graphs(&count);
    static double w[MAX][MAX];
    for (size_t g = 0; g < count; g++) {
        for (int n = 2; n <= 17; n++) {
            for (uint64_t step = 0; step < graphs[g]->period(n); step++) {
                struct shape *shape;
                cr_assert_eq(mixing_shape(graphs[g], n, step, &shape), STATUS_OK);
                matrix(graphs[g], n, step, w);
                int sent[MAX][MAX] = {{0}}, taken[MAX][MAX] = {{0}};
                for (int i = 0; i < n; i++) {
                    const struct recorder r = recorded(shape, i);
                    for (int k = 0; k < r.count; k++) {
                        const struct op *op = &r.ops[k];
                        if (op->kind == OP_SEND)
                            sent[i][op->peer]++;
                        else if (op->kind == OP_SCALE)
                            cr_assert_eq(op->weight, w[i][i]);
                        else
                            cr_assert_eq(op->weight, w[i][op->peer]);
                        if (op->kind == OP_RECV_REDUCE)
                            taken[op->peer][i]++;
                    }
                }
                for (int i = 0; i < n; i++)
                    for (int j = 0; j < n; j++) {
                        cr_assert_eq(sent[i][j], taken[i][j]);
                        cr_assert_eq(sent[i][j], i != j && w[j][i] > 0);
                    }
                shape_destroy(shape);
            }
        }
    }
}

Test(mixing, one_worker_has_nothing_to_do)
{
    struct shape *shape;
    cr_assert_eq(mixing_shape(graph_find("ring"), 1, 0, &shape), STATUS_OK);
    cr_assert_eq(shape->rounds, 0);
    shape_destroy(shape);
    cr_assert_eq(mixing_shape(graph_find("ring"), 0, 0, &shape), STATUS_USAGE);
}
