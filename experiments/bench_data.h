/* bench_data.h - what vectors hold while they are measured: small whole numbers, whose results are exact in every order,
 * and random ones, whose bits tell in which order they were added up.
 */
#ifndef CHORALE_EXPERIMENTS_BENCH_DATA_H
#define CHORALE_EXPERIMENTS_BENCH_DATA_H

#include <stddef.h>

#include "base/dtype.h"
#include "comm/codec.h"

/* Of which vector. */
struct bench_data {
    enum dtype dtype;
    enum reduce_op op;
    int workers, rank;
    enum dtype sums;                /* the type that holds partial sums exactly: dtype, or f16 or bf16 on the wire */
    const struct wire_format *wire; /* whose values results are; NULL: elements travel as they are */
};

/* This worker's input. */
void bench_fill(const struct bench_data *data, void *vector, size_t count);
/* How many elements of `vector` are not what op makes of all workers' inputs. */
size_t bench_count_wrong(const struct bench_data *data, const void *vector, size_t count);

/* Elements first .. first + count - 1 of this worker's endless random vector: of many magnitudes, none so large that a
 * sum over the workers overflows f16 below 16 workers. */
void bench_fill_random(const struct bench_data *data, void *vector, size_t first, size_t count);
/* How far (Euclidean) `vector` of f32 is from the exact result for random vectors from element 0 on, and how far it may
 * be: what the wire format promises of every worker's input, and of the result that is spread. */
void bench_distance(const struct bench_data *data, const void *vector, size_t count, double *distance,
                    double *promised);

#endif
