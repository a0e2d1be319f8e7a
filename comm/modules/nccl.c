/* nccl.c - the module of NCCL (external.h): ncclAllReduce between the cards of a job's workers, as ChainerMN's pure_nccl
 * does it (Akiba, Fukuda, Suzuki 2017).
 *
 * NCCL wants a card for each worker: it refuses two of them on one. avg is NCCL's own (ncclAvg), which divides by the
 * number of workers; halves are summed in their own type, as NCCL does it.
 */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "comm/external.h"

static ncclComm_t communicator; /* a module has one state, as an MPI's has */
static bool joined;

static int said(bool well, const char *what, const char *why, char *message)
{
    if (!well)
        snprintf(message, EXTERNAL_MESSAGE_BYTES, "%s: %.180s", what, why);
    return !well;
}

static int failed(ncclResult_t code, const char *what, char *message)
{
    if (code == ncclSuccess)
        return 0;
    const char *detail = ncclGetLastError(joined ? communicator : NULL);
    return said(false, what, detail != NULL && detail[0] != '\0' ? detail : ncclGetErrorString(code), message);
}

static int cuda_failed(cudaError_t code, const char *what, char *message)
{
    return said(code == cudaSuccess, what, cudaGetErrorString(code), message);
}

/* What a worker tells the others: NCCL itself would wait for ever when a worker's call had failed. */
struct card {
    ncclUniqueId id; /* rank 0's */
    int well;
    char message[EXTERNAL_MESSAGE_BYTES];
};

enum { WORKERS_MOST = 512 };

static int exchange_id(const struct external_given *given, ncclUniqueId *id, char *message)
{
    static struct card all[WORKERS_MOST]; /* once, at the start */
    struct card mine = {.well = 1};
    if (given->place.size > WORKERS_MOST)
        return said(false, "NCCL", "more workers than this module serves (512)", message);
    if (cuda_failed(cudaSetDevice(given->device), "cudaSetDevice", mine.message) ||
        (given->place.rank == 0 && failed(ncclGetUniqueId(&mine.id), "ncclGetUniqueId", mine.message)))
        mine.well = 0;
    if (given->gather(given->context, &mine, sizeof mine, all, message) != 0)
        return 1;
    for (int r = 0; r < given->place.size; r++)
        if (!all[r].well) {
            snprintf(message, EXTERNAL_MESSAGE_BYTES, "rank %d: %.200s", r, all[r].message);
            return 1;
        }
    *id = all[0].id;
    return 0;
}

static int nccl_join(const struct external_given *given, char *message)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    if (exchange_id(given, &id, message) ||
        failed(ncclCommInitRankConfig(&communicator, given->place.size, id, given->place.rank, &config),
               "ncclCommInitRankConfig (NCCL wants a card for each worker)", message))
        return 1;
    joined = true;
    return 0;
}

static ncclDataType_t type_of(enum dtype dtype)
{
    static const ncclDataType_t types[DTYPE_COUNT] = {
        [DTYPE_F32] = ncclFloat32, [DTYPE_F64] = ncclFloat64, [DTYPE_I32] = ncclInt32,
        [DTYPE_I64] = ncclInt64,   [DTYPE_F16] = ncclFloat16, [DTYPE_BF16] = ncclBfloat16};
    return types[dtype];
}

static ncclRedOp_t operator_of(enum reduce_op op)
{
    static const ncclRedOp_t operators[REDUCE_OP_COUNT] = {
        [REDUCE_SUM] = ncclSum, [REDUCE_MIN] = ncclMin, [REDUCE_MAX] = ncclMax, [REDUCE_AVG] = ncclAvg};
    return operators[op];
}

/* An error of another worker or of the network, which would leave the card waiting. */
static int nccl_check(char *message)
{
    ncclResult_t later = ncclSuccess;
    return failed(ncclCommGetAsyncError(communicator, &later), "ncclCommGetAsyncError", message) ||
           failed(later, "NCCL", message);
}

static int nccl_allreduce(const void *input, void *output, size_t count, enum dtype dtype, enum reduce_op op,
                          void *queue, char *message)
{
    if (queue == NULL)
        return said(false, "NCCL", "vectors must lie in device memory: give --device=cuda", message);
    if (count == 0)
        return 0;
    return failed(ncclAllReduce(input, output, count, type_of(dtype), operator_of(op), communicator, queue),
                  "ncclAllReduce", message) ||
           nccl_check(message);
}

static void nccl_describe(char *text, size_t size)
{
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess)
        version = 0;
    snprintf(text, size, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

static void nccl_close(void)
{
    if (joined && ncclCommFinalize(communicator) == ncclSuccess)
        (void)ncclCommDestroy(communicator);
    joined = false;
}

__attribute__((visibility("default"))) extern const struct external_module chorale_external;
const struct external_module chorale_external = {
    .version = EXTERNAL_VERSION,
    .join = nccl_join,
    .allreduce = nccl_allreduce,
    .check = nccl_check,
    .describe = nccl_describe,
    .close = nccl_close,
};
