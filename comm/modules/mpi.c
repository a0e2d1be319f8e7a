/* mpi.c - the module of an MPI library (external.h), built once for each that is installed: rank, size and all-gather
 * for a job that mpiexec started, and MPI_Allreduce as that library does it.
 *
 * avg is MPI_SUM and then a division by the number of workers, as everywhere here; MPI has no types for halves. Counts
 * above 2^30 elements go in several calls, since MPI counts in int.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "comm/external.h"

#define PIECE ((size_t)1 << 30) /* elements of one call */

static MPI_Comm all_workers = MPI_COMM_NULL; /* a module has one state, as the library has one MPI_COMM_WORLD */
static MPI_Comm bootstrap = MPI_COMM_NULL;
static int workers;

static int failed(int code, const char *what, char *message)
{
    char words[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return 0;
    MPI_Error_string(code, words, &length);
    snprintf(message, EXTERNAL_MESSAGE_BYTES, "%s: %.180s", what, words);
    return 1;
}

static int duplicate(MPI_Comm *comm, char *message)
{
    return failed(MPI_Comm_dup(MPI_COMM_WORLD, comm), "MPI_Comm_dup", message) ||
           failed(MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", message);
}

static int find_place(struct external_place *place, char *message)
{
    MPI_Comm node = MPI_COMM_NULL;
    if (failed(MPI_Comm_rank(all_workers, &place->rank), "MPI_Comm_rank", message) ||
        failed(MPI_Comm_size(all_workers, &place->size), "MPI_Comm_size", message) ||
        failed(MPI_Comm_split_type(all_workers, MPI_COMM_TYPE_SHARED, place->rank, MPI_INFO_NULL, &node),
               "MPI_Comm_split_type", message) ||
        failed(MPI_Comm_rank(node, &place->local_rank), "MPI_Comm_rank", message))
        return 1;
    workers = place->size;
    return failed(MPI_Comm_free(&node), "MPI_Comm_free", message);
}

static int mpi_open(struct external_place *place, char *message)
{
    int provided = 0;
    if (failed(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread", message))
        return 1;
    return duplicate(&all_workers, message) || duplicate(&bootstrap, message) || find_place(place, message);
}

static int mpi_gather(const void *mine, size_t bytes, void *all, char *message)
{
    if (bytes == 0)
        return failed(MPI_Barrier(bootstrap), "MPI_Barrier", message);
    return failed(MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, bootstrap), "MPI_Allgather",
                  message);
}

static MPI_Datatype type_of(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32:
        return MPI_FLOAT;
    case DTYPE_F64:
        return MPI_DOUBLE;
    case DTYPE_I32:
        return MPI_INT32_T;
    case DTYPE_I64:
        return MPI_INT64_T;
    default:
        return MPI_DATATYPE_NULL;
    }
}

static MPI_Op operator_of(enum reduce_op op)
{
    if (op == REDUCE_MIN)
        return MPI_MIN;
    return op == REDUCE_MAX ? MPI_MAX : MPI_SUM;
}

static void divide(void *data, size_t count, enum dtype dtype)
{
    for (size_t i = 0; i < count; i++)
        switch (dtype) {
        case DTYPE_F32:
            ((float *)data)[i] /= (float)workers;
            break;
        case DTYPE_F64:
            ((double *)data)[i] /= workers;
            break;
        case DTYPE_I32:
            ((int32_t *)data)[i] /= workers;
            break;
        default:
            ((int64_t *)data)[i] /= workers;
        }
}

static int mpi_allreduce(const void *input, void *output, size_t count, enum dtype dtype, enum reduce_op op,
                         void *queue, char *message)
{
    (void)queue; /* vectors lie in host memory */
    const MPI_Datatype type = type_of(dtype);
    int size = 0;
    if (type == MPI_DATATYPE_NULL) {
        snprintf(message, EXTERNAL_MESSAGE_BYTES, "MPI has no type for halves: give --dtype=f32, f64, i32 or i64");
        return 1;
    }
    if (failed(MPI_Type_size(type, &size), "MPI_Type_size", message))
        return 1;
    for (size_t done = 0; done < count;) {
        const size_t n = count - done < PIECE ? count - done : PIECE;
        const char *from = (const char *)input + done * (size_t)size;
        char *to = (char *)output + done * (size_t)size;
        if (failed(MPI_Allreduce(input == output ? MPI_IN_PLACE : from, to, (int)n, type, operator_of(op), all_workers),
                   "MPI_Allreduce", message))
            return 1;
        done += n;
    }
    if (op == REDUCE_AVG && workers > 1)
        divide(output, count, dtype);
    return 0;
}

static void mpi_describe(char *text, size_t size)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(version, &length);
    version[strcspn(version, "\n,")] = '\0'; /* the first words: name and release */
    for (char *c = version; *c != '\0'; c++)
        if (*c == '\t')
            *c = ' ';
    snprintf(text, size, "%s", version);
}

static void mpi_abort(int exit_code)
{
    MPI_Abort(MPI_COMM_WORLD, exit_code);
}

static void mpi_close(void)
{
    MPI_Comm_free(&bootstrap);
    MPI_Comm_free(&all_workers);
    MPI_Finalize();
}

__attribute__((visibility("default"))) extern const struct external_module chorale_external;
const struct external_module chorale_external = {
    .version = EXTERNAL_VERSION,
    .open = mpi_open,
    .gather = mpi_gather,
    .allreduce = mpi_allreduce,
    .describe = mpi_describe,
    .abort = mpi_abort,
    .close = mpi_close,
};
