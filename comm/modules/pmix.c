/* pmix.c - the module of PMIx (bootstrap/exchange.h): for mpirun of Open MPI and srun --mpi=pmix. Linked with libpmix and
 * nothing of ours.
 *
 * Fences go through PMIx's non-blocking call, since the servers of Open MPI 4 and Slurm 22 do not end a fence that not all
 * reach, whatever PMIX_TIMEOUT says.
 */
#include <pmix.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/bootstrap/exchange.h"

struct session {
    pmix_proc_t self;
};

/* A fence under way. It outlives the call when the deadline comes first: whoever comes last frees it. */
struct fence {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done, abandoned;
    pmix_status_t status;
};

static int failed(pmix_status_t status, const char *what, char *message)
{
    if (status == PMIX_SUCCESS)
        return 0;
    (void)snprintf(message, EXCHANGE_MESSAGE_BYTES, "%s: %s", what, PMIx_Error_string(status));
    return 1;
}

static int job_size(const pmix_proc_t *self, int *size, char *message)
{
    pmix_proc_t all;
    pmix_value_t *value = NULL;
    PMIX_LOAD_PROCID(&all, self->nspace, PMIX_RANK_WILDCARD);
    if (failed(PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &value), "PMIx: job size", message) != 0)
        return 1;
    const bool fits = value->type == PMIX_UINT32 && value->data.uint32 <= INT32_MAX;
    *size = fits ? (int)value->data.uint32 : 0;
    PMIX_VALUE_RELEASE(value);
    return failed(fits ? PMIX_SUCCESS : PMIX_ERR_BAD_PARAM, "PMIx: job size", message);
}

static int pmix_open(double seconds, void **state, int *rank, int *size, char *message)
{
    (void)seconds; /* the server is on this host, and answers or is not there */
    struct session *session = calloc(1, sizeof *session);
    if (session == NULL)
        return failed(PMIX_ERR_NOMEM, "PMIx", message);
    if (failed(PMIx_Init(&session->self, NULL, 0), "PMIx_Init", message) != 0) {
        free(session);
        return 1;
    }
    if (job_size(&session->self, size, message) != 0) {
        (void)PMIx_Finalize(NULL, 0);
        free(session);
        return 1;
    }
    *rank = (int)session->self.rank;
    *state = session;
    return 0;
}

static int pmix_put(void *state, const char *key, const char *value, char *message)
{
    (void)state;
    char *text = strdup(value);
    if (text == NULL)
        return failed(PMIX_ERR_NOMEM, "PMIx_Put", message);
    pmix_value_t entry = {.type = PMIX_STRING, .data.string = text};
    pmix_key_t name;
    (void)snprintf(name, sizeof name, "%s", key);
    pmix_status_t status = PMIx_Put(PMIX_GLOBAL, name, &entry);
    free(text);
    if (status == PMIX_SUCCESS)
        status = PMIx_Commit();
    return failed(status, "PMIx_Put", message);
}

static void fence_free(struct fence *fence)
{
    pthread_cond_destroy(&fence->changed);
    pthread_mutex_destroy(&fence->lock);
    free(fence);
}

static void fence_done(pmix_status_t status, void *context)
{
    struct fence *fence = context;
    pthread_mutex_lock(&fence->lock);
    fence->done = true;
    fence->status = status;
    const bool abandoned = fence->abandoned;
    pthread_cond_signal(&fence->changed);
    pthread_mutex_unlock(&fence->lock);
    if (abandoned)
        fence_free(fence);
}

static int fence_wait(struct fence *fence, double seconds, char *message)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)seconds + 1;
    pthread_mutex_lock(&fence->lock);
    int error = 0;
    while (!fence->done && error == 0)
        error = pthread_cond_timedwait(&fence->changed, &fence->lock, &until);
    const bool done = fence->done;
    fence->abandoned = !done;
    const pmix_status_t status = done ? fence->status : PMIX_ERR_TIMEOUT;
    pthread_mutex_unlock(&fence->lock);
    if (done)
        fence_free(fence);
    return failed(status, done ? "PMIx_Fence" : "PMIx_Fence: not all workers came within the deadline", message);
}

static int pmix_fence(void *state, double seconds, char *message)
{
    (void)state;
    struct fence *fence = calloc(1, sizeof *fence);
    if (fence == NULL)
        return failed(PMIX_ERR_NOMEM, "PMIx_Fence", message);
    pthread_mutex_init(&fence->lock, NULL);
    pthread_cond_init(&fence->changed, NULL);
    pmix_info_t collect;
    const bool yes = true;
    PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    const pmix_status_t status = PMIx_Fence_nb(NULL, 0, &collect, 1, fence_done, fence);
    if (status != PMIX_SUCCESS) {
        fence_free(fence);
        return failed(status, "PMIx_Fence", message);
    }
    return fence_wait(fence, seconds, message);
}

static int pmix_get(void *state, int rank, const char *key, char *text, size_t bytes, char *message)
{
    const struct session *session = state;
    pmix_proc_t other;
    pmix_key_t name;
    pmix_value_t *value = NULL;
    PMIX_LOAD_PROCID(&other, session->self.nspace, (pmix_rank_t)rank);
    (void)snprintf(name, sizeof name, "%s", key);
    if (failed(PMIx_Get(&other, name, NULL, 0, &value), "PMIx_Get", message) != 0)
        return 1;
    const bool fits = value->type == PMIX_STRING && value->data.string != NULL && strlen(value->data.string) < bytes;
    if (fits)
        memcpy(text, value->data.string, strlen(value->data.string) + 1);
    PMIX_VALUE_RELEASE(value);
    return failed(fits ? PMIX_SUCCESS : PMIX_ERR_BAD_PARAM, "PMIx_Get", message);
}

static void pmix_close(void *state)
{
    (void)PMIx_Finalize(NULL, 0);
    free(state);
}

__attribute__((visibility("default"))) extern const struct exchange_module chorale_exchange;
const struct exchange_module chorale_exchange = {.version = EXCHANGE_VERSION,
                                                 .open = pmix_open,
                                                 .put = pmix_put,
                                                 .fence = pmix_fence,
                                                 .get = pmix_get,
                                                 .close = pmix_close};
