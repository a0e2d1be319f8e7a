/* explain.h - what a schedule, a strategy or a graph does, in figures and in words for people. All pure.
 *
 * Figures come from the ops themselves, except for the closed form. Walking all ops of all workers takes a time in
 * proportion to workers * rounds.
 */
#ifndef CHORALE_ALGOS_EXPLAIN_H
#define CHORALE_ALGOS_EXPLAIN_H

#include <stddef.h>
#include <stdint.h>

#include "algos/schedule.h"
#include "algos/spec.h"
#include "base/text.h"

struct explain_totals {
    uint32_t rounds;
    size_t max_messages; /* of the worker that sends most: messages with at least one element */
    size_t max_bytes;    /* of the worker that sends most: payload                            */
    size_t total_bytes;  /* of all workers                                                    */
    double seconds;      /* closed form; NAN without a model, or where there is none          */
};

/* For `count` elements of `size` bytes. model may be NULL. */
enum status explain_totals(const struct shape *shape, size_t count, size_t size, const struct cost_model *model,
                           struct explain_totals *totals) MUST_CHECK;

/* The totals, one a line, and for at most EXPLAIN_PICTURE_WORKERS workers the ops of the first EXPLAIN_PICTURE_ROUNDS
 * rounds: a table with a row for each round and a column for each worker, or, where that is wider than
 * EXPLAIN_PICTURE_COLUMNS, a line for each round and worker; what is cut is said. S>1[0+4] sends leaves 0 to 3 to worker
 * 1, R<1[0+4] receives them, RR<1[0+4] receives and reduces; * marks what completes the sum, x0.5 a weight, 2: a lane
 * other than 0, + a message that the next op continues. Appended to *text. */
#define EXPLAIN_PICTURE_WORKERS 8
#define EXPLAIN_PICTURE_ROUNDS 32
#define EXPLAIN_PICTURE_COLUMNS 160
enum status explain_shape(const struct shape *shape, size_t count, size_t size, const struct cost_model *model,
                          struct text *text) MUST_CHECK;

struct explain_mixing {
    int degree;         /* most messages that a worker sends in a step                                               */
    uint64_t period;    /* steps after which the graph repeats                                                       */
    double contraction; /* by what a step shrinks the disagreement of workers: ||W(T-1)...W(0) - J||_2 ^ (1/T); NAN
                           beyond EXPLAIN_GAP_WORKERS workers                                                        */
    uint64_t exact_after; /* steps after which all hold the exact mean; 0: never within two periods, or not computed */
};
#define EXPLAIN_GAP_WORKERS 128

enum status explain_graph(const struct graph *graph, int workers, struct explain_mixing *mixing) MUST_CHECK;

/* All there is to say about a spec on a team: canonical spelling, step plan of a strategy, graph of gossip, and the
 * schedule of its first step as explain_shape() has it. */
enum status explain_spec(const struct spec *spec, const struct layout *layout, size_t count, size_t size,
                         const struct cost_model *model, struct text *text) MUST_CHECK;

#endif
