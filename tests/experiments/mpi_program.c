/* mpi_program.c - an ordinary MPI program, which knows nothing of ours: calls MPI_Allreduce in many ways and compares
 * with what PMPI_Allreduce says of the same data.
 *
 *   mpi_program [threads | die]   with MPI_THREAD_MULTIPLE; the last rank kills itself before the last call
 *
 * Prints "calls C other O" (of all workers: MPI_Allreduce, and those of them that no algorithm of ours can do), and
 * "WRONG ..." for each wrong result, with which it ends with 1.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE = 300001, LETTER = 1 << 20 };

static unsigned long long calls, other, wrong;
static int rank, size;
static unsigned char *input, *output, *expected;

struct type {
    const char *name;
    MPI_Datatype type;
    size_t bytes;
};

static void fill(void *data, const struct type *type, int count)
{
    for (int i = 0; i < count; i++) {
        const int value = (i * 7 + rank * 13) % 101 - 50;
        if (type->type == MPI_FLOAT)
            ((float *)data)[i] = (float)value;
        else if (type->type == MPI_DOUBLE)
            ((double *)data)[i] = value;
        else if (type->bytes == 4)
            ((int32_t *)data)[i] = value;
        else
            ((int64_t *)data)[i] = value * INT64_C(10000000000);
    }
}

static void compare(const struct type *type, MPI_Op op, MPI_Comm comm, int count, int in_place)
{
    const size_t bytes = (size_t)count * type->bytes;
    fill(input, type, count);
    memset(expected, 1, bytes);
    memset(output, 2, bytes + 8);
    if (in_place)
        memcpy(output, input, bytes);
    PMPI_Allreduce(input, expected, count, type->type, op, comm);
    MPI_Allreduce(in_place ? MPI_IN_PLACE : input, output, count, type->type, op, comm);
    calls++;
    if (memcmp(output, expected, bytes) != 0 || output[bytes] != 2) {
        printf("WRONG: rank %d: %s, %d elements%s\n", rank, type->name, count, in_place ? ", in place" : "");
        wrong++;
    }
}

static void first_and_second(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *count; i++)
        ((int *)inout)[i] = ((int *)in)[i] | ((int *)inout)[i];
}

/* Types, operators and communicators that only MPI knows. */
static void what_is_not_ours(void)
{
    static const struct type bytes4 = {"unsigned", MPI_UNSIGNED, 4}, integer = {"int", MPI_INT, 4};
    MPI_Op own;
    MPI_Op_create(first_and_second, 1, &own);
    compare(&bytes4, MPI_SUM, MPI_COMM_WORLD, 17, 0);
    compare(&integer, MPI_BAND, MPI_COMM_WORLD, 17, 1);
    compare(&integer, own, MPI_COMM_WORLD, 17, 0);
    other += 3;
    MPI_Op_free(&own);
    if (size < 2)
        return;
    MPI_Comm half, between;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 5, &between);
    compare(&integer, MPI_SUM, between, 17, 0);
    other++;
    MPI_Comm_free(&between);
    MPI_Comm_free(&half);
}

static void communicators(const struct type *type)
{
    for (int round = 0; round < 3; round++) {
        MPI_Comm copy, half, reversed;
        MPI_Comm_dup(MPI_COMM_WORLD, &copy);
        MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
        MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
        compare(type, MPI_SUM, reversed, 1000, round == 1);
        compare(type, MPI_MAX, half, 1000, 0);
        compare(type, MPI_SUM, copy, 1000, 1);
        compare(type, MPI_SUM, MPI_COMM_SELF, 1000, round == 1);
        MPI_Comm_free(&copy);
        compare(type, MPI_MIN, half, 999, 0);
        MPI_Comm_free(&half);
        MPI_Comm_free(&reversed);
    }
}

/* The second worker comes to its call only when the first, which waits in its own, has gone on sending. */
static void a_letter_under_way(const struct type *type)
{
    static char letter[LETTER];
    if (size < 2)
        return;
    if (rank == 0) {
        MPI_Request request;
        MPI_Isend(letter, LETTER, MPI_CHAR, 1, 3, MPI_COMM_WORLD, &request);
        MPI_Allreduce(input, output, 10, type->type, MPI_SUM, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
        if (rank == 1)
            MPI_Recv(letter, LETTER, MPI_CHAR, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Allreduce(input, output, 10, type->type, MPI_SUM, MPI_COMM_WORLD);
    }
    calls++;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    int provided;
    if (strcmp(how, "threads") == 0)
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    else
        MPI_Init(&argc, &argv);
    const struct type types[] = {{"float", MPI_FLOAT, 4},        {"double", MPI_DOUBLE, 8},   {"int", MPI_INT, 4},
                                 {"int32_t", MPI_INT32_T, 4},    {"int64_t", MPI_INT64_T, 8}, {"long", MPI_LONG, 8},
                                 {"long long", MPI_LONG_LONG, 8}};
    const MPI_Op operators[] = {MPI_SUM, MPI_MIN, MPI_MAX};
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    input = malloc(LARGE * sizeof(double) + 8);
    output = malloc(LARGE * sizeof(double) + 8);
    expected = malloc(LARGE * sizeof(double) + 8);
    if (input == NULL || output == NULL || expected == NULL)
        return 1;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t o = 0; o < 3; o++)
            compare(&types[t], operators[o], MPI_COMM_WORLD, 1000 + (int)t, (t + o) % 2 == 0);
    for (int count = 0; count <= 40; count++) /* twice: the second from what is kept */
        for (int in_place = 0; in_place < 2; in_place++)
            compare(&types[0], MPI_SUM, MPI_COMM_WORLD, count, in_place);
    compare(&types[1], MPI_SUM, MPI_COMM_WORLD, LARGE, 0);
    communicators(&types[4]);
    what_is_not_ours();
    a_letter_under_way(&types[0]);
    if (strcmp(how, "die") == 0 && rank == size - 1)
        raise(SIGKILL);
    compare(&types[0], MPI_SUM, MPI_COMM_WORLD, 40, 0);

    unsigned long long mine[3] = {calls, other, wrong}, all[3];
    PMPI_Allreduce(mine, all, 3, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("calls %llu other %llu\n", all[0], all[1]);
    free(input);
    free(output);
    free(expected);
    MPI_Finalize();
    return all[2] == 0 ? 0 : 1;
}
