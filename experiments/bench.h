/* bench.h - measuring collectives (bench.c) and saying so (bench_print.c), for cmd_bench.c. */
#ifndef CHORALE_EXPERIMENTS_BENCH_H
#define CHORALE_EXPERIMENTS_BENCH_H

#include <stdbool.h>
#include <stddef.h>

#include "algos/spec.h"
#include "base/dtype.h"
#include "base/json.h"
#include "comm/codec.h"
#include "experiments/worker.h"
#include "sim/platform.h"

enum bench_format { BENCH_NCCL, BENCH_OSU, BENCH_CSV, BENCH_JSON };

struct bench_settings {
    size_t begin, end, factor; /* bytes */
    int iterations, warmup;
    enum dtype dtype;
    enum reduce_op op;
    const struct wire_format *wire; /* what travels */
    const char *device;             /* where vectors lie: "cuda"; NULL: in host memory */
    const char *wire_name;          /* its canonical spelling; the element type where nothing changes */
    const char *inject;             /* what impairs the network, in its canonical spelling; NULL: nothing */
    bool out_of_place, in_place;    /* which are measured */
    bool check, extended;
    bool head; /* CSV: the line of column names */
    enum bench_format format;
    const struct platform *platform; /* for predictions; NULL = none */
};

enum bench_answer { BENCH_NOT_ASKED, BENCH_NO, BENCH_YES };

/* One vector size, out of place and in place. Times in seconds; NAN where not measured. */
struct bench_half {
    bool measured;
    double time_s;                   /* back-to-back calls, mean over calls and workers           */
    double least_s, most_s;          /* means over calls of the quickest and of the slowest worker */
    double p50_s, p99_s;             /* second pass: each call of the slowest worker              */
    double wrong;                    /* elements that are wrong, all workers; NAN: not checked    */
    enum bench_answer equal_bits;    /* after a call on random numbers, on all workers */
    enum bench_answer deterministic; /* with deterministic=1: a part of the vector gives alone what it gives within */
};
struct bench_row {
    const char *name; /* canonical spec */
    int workers;
    const char *transport;
    size_t bytes, count;
    const struct bench_settings *settings;
    struct bench_half half[2];                /* [0] out of place, [1] in place                  */
    bool counted;                             /* the next four: not known of an external */
    size_t wire_bytes, messages;              /* counted in the transport, maximum over workers  */
    size_t schedule_bytes, schedule_messages; /* the schedule's, likewise                */
    struct codec_statistics wire;             /* of a call on random numbers, all workers         */
    double predicted_s;                       /* NAN without a platform                          */
    const char *decided;                      /* what the shape says that it has decided; NULL: nothing */
    bool decided_anew;                        /* something else than for the size before                */
    bool has_files;
    uint64_t files_hash; /* of the files that the spec names */
    const char *refused; /* NULL: measured                                  */
};

/* Measure one spec at every size, on all workers of the job together; rank 0 gets each row through `row`. A schedule
 * that refuses this team is one row with its reason. Wrong elements, traffic that differs from the schedule's (bytes: where
 * the wire format has a fixed size for each element), and bits that differ where the spec promises equal ones make
 * *faults grow. With a wire format that keeps residuals, all elements of a result are wrong when it is farther from the
 * exact one than the format promises. */
typedef enum status bench_row_fn(void *context, const struct bench_row *row);
enum status bench_spec(const struct worker *worker, const struct spec *spec, const struct bench_settings *settings,
                       bench_row_fn *row, void *context, size_t *faults) MUST_CHECK;

/* STATUS_REFUSED, with the reason, when a team of this layout can't run the spec: known without a job. */
enum status bench_possible(const struct spec *spec, const struct layout *layout,
                           const struct bench_settings *settings) MUST_CHECK;

/* STATUS_REFUSED, with what is needed and what there is, when this host can't hold the largest vectors of `workers` of its
 * workers: input, output (one of them where all is in place) and `scratch` bytes more. */
enum status bench_memory(const struct bench_settings *settings, int workers, size_t scratch) MUST_CHECK;

/* Of the rows of one spec, for the lines under its table. */
struct bench_totals {
    double busbw, wrong;      /* sums over halves: GB/s, elements */
    size_t measured, checked; /* halves */
};

/* Heads and rows in each format on stdout; JSON rows are collected. Under the table of a spec nccl-tests has two lines,
 * which scripts look for: wrong elements ("N/A" without --check) and the mean of all bus bandwidths. */
void bench_print_head(const struct bench_settings *settings, int workers, const char *transport);
void bench_print_spec(const struct bench_settings *settings, const char *name, const char *timed);
enum status bench_print_row(const struct bench_row *row, json_t *rows, struct bench_totals *totals) MUST_CHECK;
void bench_print_end(const struct bench_settings *settings, const struct bench_totals *totals);

#endif
