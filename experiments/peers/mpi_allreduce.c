/* mpi_allreduce.c - MPI_Allreduce measured and checked as chorale bench does it, for compare.sh: f32 sum, warm-up, then
 * back-to-back calls, mean over calls and workers; same data, exact check of every element.
 *
 * usage: mpiexec -n WORKERS mpi_allreduce SYSTEM BYTES[,BYTES...] CALLS WARMUP SECONDS no|only|both
 *
 * The last word says whether calls are in place, as bench --in-place= does. The timed calls are fewer when CALLS would
 * take longer than SECONDS: an MPI that spins takes tens of milliseconds for a call when there are more workers than
 * cores. Prints CSV rows system,workers,bytes,in_place,time_us,wrong,calls on rank 0. Exit: 0 done, 1 failed or wrong elements. MPI calls are not checked: by default MPI ends the job itself. */
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
    const char *system, *sizes;
    bool out_of_place, in_place;
    int rank, workers;
    size_t bytes; /* of the vector that is measured now */
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

/* A number up to `most` before the character `end`; returns what follows it, NULL when there is none. */
static const char *read_number(const char *text, char end, double least, double most, double *number)
{
    char *rest = NULL;
    *number = strtod(text, &rest);
    return rest != text && *rest == end && *number >= least && *number <= most ? rest + (end != '\0') : NULL;
}

/* The next of the sizes, which are whole f32. */
static const char *next_size(struct bench *b, const char *sizes)
{
    double bytes = 0;
    const char *rest = read_number(sizes, strchr(sizes, ',') != NULL ? ',' : '\0', sizeof(float),
                                   (double)INT_MAX * sizeof(float), &bytes);
    b->bytes = (size_t)bytes;
    b->count = (int)(b->bytes / sizeof(float));
    return rest != NULL && (double)b->count * sizeof(float) == bytes ? rest : NULL;
}

static bool read_sizes(struct bench *b)
{
    const char *sizes = b->sizes;
    do
        sizes = next_size(b, sizes);
    while (sizes != NULL && *sizes != '\0');
    return sizes != NULL;
}

static bool read_arguments(struct bench *b, int argc, char **argv)
{
    double calls = 0, warmup = 0;
    if (argc != 7)
        return false;
    b->system = argv[1];
    b->sizes = argv[2];
    if (!read_sizes(b) || read_number(argv[3], '\0', 1, INT_MAX, &calls) == NULL ||
        read_number(argv[4], '\0', 0, INT_MAX, &warmup) == NULL ||
        read_number(argv[5], '\0', 1e-3, 1e6, &b->seconds) == NULL)
        return false;
    b->calls = (int)calls;
    b->warmup = (int)warmup;
    b->out_of_place = strcmp(argv[6], "no") == 0 || strcmp(argv[6], "both") == 0;
    b->in_place = strcmp(argv[6], "only") == 0 || strcmp(argv[6], "both") == 0;
    return b->out_of_place || b->in_place;
}

static float *allocate(const struct bench *b)
{
    return aligned_alloc(ALIGNMENT, (b->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static bool run_size(struct bench *b)
{
    bool right = true;
    b->input = allocate(b);
    b->output = allocate(b);
    if (b->input == NULL || b->output == NULL) {
        fprintf(stderr, "mpi_allreduce: no memory for two vectors of %zu bytes: take smaller ones\n", b->bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    } else {
        if (b->out_of_place)
            right = measure(b, false);
        if (b->in_place)
            right = measure(b, true) && right;
    }
    free(b->input);
    free(b->output);
    return right;
}

static bool run(struct bench *b)
{
    bool right = true;
    if (b->rank == 0)
        puts("system,workers,bytes,in_place,time_us,wrong,calls");
    for (const char *sizes = b->sizes; *sizes != '\0';) {
        sizes = next_size(b, sizes); /* never NULL: read_sizes() has been over them */
        right = run_size(b) && right;
    }
    return right;
}

int main(int argc, char **argv)
{
    struct bench bench = {.rank = 0};
    bool right = false;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &bench.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &bench.workers);
    if (read_arguments(&bench, argc, argv))
        right = run(&bench);
    else if (bench.rank == 0)
        fputs("usage: mpiexec -n WORKERS mpi_allreduce SYSTEM BYTES[,BYTES...] CALLS WARMUP SECONDS no|only|both\n",
              stderr);
    MPI_Finalize();
    return right ? 0 : 1;
}
