/* mpi_allreduce.c - MPI_Allreduce measured and checked as chorale bench does it, for compare.sh: f32 sum, warm-up, then
 * back-to-back calls, mean over calls and workers; out of place and in place; same data, exact check of every element.
 *
 * usage: mpiexec -n WORKERS mpi_allreduce SYSTEM BYTES CALLS WARMUP SECONDS
 *
 * The timed calls are fewer when CALLS would take longer than SECONDS: an MPI that spins takes tens of milliseconds for
 * a call when there are more workers than cores. Prints CSV rows system,workers,bytes,in_place,time_us,wrong,calls on
 * rank 0. Exit: 0 done, 1 failed or wrong elements. MPI calls are not checked: by default MPI ends the job itself. */
#include <limits.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TABLE = 1021, /* data repeat after this prime number of elements */
    ALIGNMENT = 64,
    TRIAL = 3, /* calls that show how long one takes */
    CALLS_LEAST = 5
};

struct bench {
    const char *system;
    int rank, workers;
    size_t bytes;
    int count;
    int calls, warmup;
    double seconds;
    float *input, *output;
};

/* ---- data ---- */

/* Small integers that depend on worker and index: partial sums are exact in every order. */
static long value(int rank, size_t i)
{
    const size_t k = i % TABLE;
    return (long)((k * 7 + (size_t)rank * 13 + k / 11) % 41) - 20;
}

static void fill(const struct bench *b, float *data)
{
    float table[TABLE];
    for (size_t k = 0; k < TABLE; k++)
        table[k] = (float)value(b->rank, k);
    for (size_t i = 0, k = 0; i < (size_t)b->count; i++, k = k + 1 == TABLE ? 0 : k + 1)
        data[i] = table[k];
}

static double count_wrong(const struct bench *b)
{
    float table[TABLE];
    double wrong = 0;
    for (size_t k = 0; k < TABLE; k++) {
        long sum = 0;
        for (int r = 0; r < b->workers; r++)
            sum += value(r, k);
        table[k] = (float)sum;
    }
    for (size_t i = 0, k = 0; i < (size_t)b->count; i++, k = k + 1 == TABLE ? 0 : k + 1)
        wrong += b->output[i] != table[k];
    return wrong;
}

/* ---- calls ---- */

static void call(const struct bench *b, bool in_place)
{
    MPI_Allreduce(in_place ? MPI_IN_PLACE : b->input, b->output, b->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static double sum_over_workers(double mine)
{
    double sum = 0;
    MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum;
}

/* Seconds of one call: mean over back-to-back calls and workers. */
static double back_to_back(const struct bench *b, bool in_place, int calls)
{
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int i = 0; i < calls; i++)
        call(b, in_place);
    return sum_over_workers((MPI_Wtime() - begin) / calls) / b->workers;
}

/* The calls that fit `seconds`, between CALLS_LEAST and `wanted`; rank 0 decides. */
static int affordable(int wanted, double call_s, double seconds)
{
    int calls = wanted;
    if (call_s * wanted > seconds)
        calls = (int)(seconds / call_s);
    if (calls < CALLS_LEAST)
        calls = wanted < CALLS_LEAST ? wanted : CALLS_LEAST;
    MPI_Bcast(&calls, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return calls;
}

/* Warms up; returns how many calls to time. */
static int warm_up(const struct bench *b, bool in_place)
{
    call(b, in_place); /* the first one connects */
    double call_s = back_to_back(b, in_place, TRIAL);
    const int warmup = affordable(b->warmup, call_s, b->seconds / 4);
    if (warmup > 0)
        call_s = back_to_back(b, in_place, warmup);
    return affordable(b->calls, call_s, b->seconds);
}

/* Wrong elements of all workers. */
static double check(const struct bench *b, bool in_place)
{
    if (in_place)
        fill(b, b->output);
    else
        memset(b->output, 0x7f, b->bytes);
    call(b, in_place);
    return sum_over_workers(count_wrong(b));
}

/* Measures, prints a row; false when elements are wrong. */
static bool measure(const struct bench *b, bool in_place)
{
    fill(b, b->input);
    fill(b, b->output);
    const int calls = warm_up(b, in_place);
    const double time_s = back_to_back(b, in_place, calls);
    const double wrong = check(b, in_place);
    if (b->rank == 0)
        printf("%s,%d,%zu,%s,%.7g,%.17g,%d\n", b->system, b->workers, b->bytes, in_place ? "true" : "false",
               time_s * 1e6, wrong, calls);
    return wrong == 0;
}

/* ---- program ---- */

static bool read_number(const char *text, long least, long most, long *number)
{
    char *end = NULL;
    *number = strtol(text, &end, 10);
    return end != text && *end == '\0' && *number >= least && *number <= most;
}

static bool read_arguments(struct bench *b, int argc, char **argv)
{
    const long size = (long)sizeof(float);
    long bytes = 0, calls = 0, warmup = 0, seconds = 0;
    if (argc != 6 || !read_number(argv[2], size, INT_MAX * size, &bytes) || bytes % size != 0 ||
        !read_number(argv[3], 1, INT_MAX, &calls) || !read_number(argv[4], 0, INT_MAX, &warmup) ||
        !read_number(argv[5], 1, INT_MAX, &seconds)) {
        if (b->rank == 0)
            fputs("usage: mpiexec -n WORKERS mpi_allreduce SYSTEM BYTES CALLS WARMUP SECONDS\n", stderr);
        return false;
    }
    b->system = argv[1];
    b->bytes = (size_t)bytes;
    b->count = (int)(bytes / size);
    b->calls = (int)calls;
    b->warmup = (int)warmup;
    b->seconds = (double)seconds;
    return true;
}

static float *allocate(const struct bench *b)
{
    return aligned_alloc(ALIGNMENT, (b->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static bool run(struct bench *b)
{
    bool right = false;
    b->input = allocate(b);
    b->output = allocate(b);
    if (b->input == NULL || b->output == NULL) {
        fprintf(stderr, "mpi_allreduce: no memory for two vectors of %zu bytes: take smaller ones\n", b->bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    } else {
        if (b->rank == 0)
            puts("system,workers,bytes,in_place,time_us,wrong,calls");
        right = measure(b, false);
        right = measure(b, true) && right;
    }
    free(b->input);
    free(b->output);
    return right;
}

int main(int argc, char **argv)
{
    struct bench bench = {.rank = 0};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &bench.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &bench.workers);
    const bool right = read_arguments(&bench, argc, argv) && run(&bench);
    MPI_Finalize();
    return right ? 0 : 1;
}
