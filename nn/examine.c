/* examine.c - accuracy, hashes, consensus. */
#include "nn/examine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* `bytes` of every worker, allocated. */
static enum status gather(const struct examiner *examiner, const void *mine, size_t bytes, void **all)
{
    TRY(memory_zeroed(all, (size_t)job_size(examiner->job), bytes));
    enum status status = job_allgather(examiner->job, mine, bytes, *all);
    if (status < 0) {
        free(*all);
        *all = NULL;
    }
    return status;
}

/* ---- accuracy ---- */

struct score {
    double loss_sum, top1, top5, images;
};

/* Multiples of 2^-24 add up without rounding, so in any order to the same bits, as long as sums stay below 2^29. */
static double on_grid(double loss)
{
    enum { DIGITS = 24 };
    return ldexp(nearbyint(ldexp(loss, DIGITS)), -DIGITS);
}

/* This worker's part of the test set. */
static enum status score_part(const struct examiner *examiner, const float *parameters, const float *state,
                              struct score *score)
{
    struct loader_request request = *examiner->loading;
    struct loader *loader = NULL;
    const struct batch *batch = NULL;
    const size_t images = data_test_count(examiner->data), batch_images = (size_t)request.batch;
    const uint64_t batches = (images + batch_images - 1) / batch_images;
    request.order = NULL;
    request.first = examiner->exact ? (uint64_t)job_rank(examiner->job) : 0;
    request.stride = examiner->exact ? (size_t)job_size(examiner->job) : 1;
    request.batches = batches > request.first ? (batches - request.first + request.stride - 1) / request.stride : 0;
    enum status status = loader_open(&request, &loader);
    for (uint64_t b = 0; status >= 0 && b < request.batches; b++) {
        struct evaluation sum = {.loss_sum = 0};
        TRY_TO(done, loader_next(loader, &batch));
        if (batch->count > 0) /* else none of them could be decoded */
            TRY_TO(done, examiner->ops->evaluate(examiner->backend, parameters, state, batch, &sum));
        score->loss_sum += on_grid(sum.loss_sum);
        score->top1 += (double)sum.top1;
        score->top5 += (double)sum.top5;
        score->images += batch->count;
        loader_done(loader);
    }
done:
    loader_close(loader);
    return status;
}

enum status examine_accuracy(const struct examiner *examiner, const float *parameters, const float *state,
                             struct accuracy *accuracy, double *top1_of)
{
    struct score mine = {.images = 0}, sum = {.images = 0};
    void *all = NULL;
    TRY(score_part(examiner, parameters, state, &mine));
    TRY(gather(examiner, &mine, sizeof mine, &all));
    const struct score *scores = all;
    size_t workers = (size_t)job_size(examiner->job);
    for (size_t rank = 0; rank < workers; rank++) {
        sum.loss_sum += scores[rank].loss_sum;
        sum.top1 += scores[rank].top1;
        sum.top5 += scores[rank].top5;
        sum.images += scores[rank].images;
    }
    *accuracy = (struct accuracy){
        .top1 = sum.top1 / sum.images, .top5 = sum.top5 / sum.images, .loss = sum.loss_sum / sum.images};
    for (size_t rank = 0; top1_of != NULL && rank < workers; rank++)
        top1_of[rank] = examiner->exact ? accuracy->top1 : scores[rank].top1 / scores[rank].images;
    free(all);
    return STATUS_OK;
}

/* ---- hashes ---- */

uint64_t examine_hash(const float *values, size_t count)
{
    uint64_t hash = 0xcbf29ce484222325U;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        hash = (hash ^ bits) * 0x100000001b3U;
    }
    return hash;
}

/* Of an arena as it lies there. */
static enum status hash_arena(const struct examiner *examiner, const float *arena, size_t count, uint64_t *hash)
{
    void *values = NULL;
    if (examiner->place->device == NULL) {
        *hash = examine_hash(arena, count);
        return STATUS_OK;
    }
    TRY(memory_pages(&values, count * sizeof(float)));
    enum status status = arena_read(examiner->place, arena, values, count);
    if (status >= 0)
        *hash = examine_hash(values, count);
    memory_pages_release(values, count * sizeof(float));
    return status;
}

static enum status hash_canonical(const struct examiner *examiner, const float *parameters, uint64_t *hash)
{
    size_t count = examiner->model->parameters;
    if (examiner->ops->to_canonical == NULL)
        return hash_arena(examiner, parameters, count, hash);
    void *canonical = NULL;
    TRY(memory_pages(&canonical, count * sizeof(float)));
    enum status status = examiner->ops->to_canonical(examiner->backend, parameters, canonical);
    if (status >= 0)
        *hash = examine_hash(canonical, count);
    memory_pages_release(canonical, count * sizeof(float));
    return status;
}

static enum status check_equal(const char *what, const uint64_t *hash_of, int workers, uint64_t step)
{
    for (int rank = 1; rank < workers; rank++) {
        if (hash_of[rank] != hash_of[0])
            return fail(STATUS_INTERNAL,
                        "after %llu steps: %s of rank 0 and rank %d differ (hashes %016llx and %016llx): the algorithm "
                        "does not leave all workers with equal bits: chorale verify it",
                        (unsigned long long)step, what, rank, (unsigned long long)hash_of[0],
                        (unsigned long long)hash_of[rank]);
    }
    return STATUS_OK;
}

enum status examine_hashes(const struct examiner *examiner, const float *parameters, const float *state, uint64_t step,
                           uint64_t *parameter_of, uint64_t *state_of)
{
    int workers = job_size(examiner->job);
    uint64_t mine[2];
    void *all = NULL;
    TRY(hash_canonical(examiner, parameters, &mine[0]));
    TRY(hash_arena(examiner, state, examiner->model->state, &mine[1]));
    TRY(gather(examiner, mine, sizeof mine, &all));
    const uint64_t *hashes = all;
    for (int rank = 0; rank < workers; rank++) {
        parameter_of[rank] = hashes[2 * rank];
        state_of[rank] = hashes[2 * rank + 1];
    }
    free(all);
    if (!examiner->exact)
        return STATUS_OK;
    TRY(check_equal("the parameters", parameter_of, workers, step));
    return check_equal("the running statistics", state_of, workers, step);
}

/* ---- consensus ---- */

static double squared_distance(const float *a, const float *b, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        double difference = (double)a[i] - (double)b[i];
        sum += difference * difference;
    }
    return sum;
}

/* Of this worker's parameters from the mean of all, by copies in host memory. */
static enum status distance_to_mean(const struct examiner *examiner, const float *parameters, float *mean,
                                    double *distance)
{
    const size_t count = examiner->model->parameters, bytes = count * sizeof(float);
    void *mine = NULL, *host = NULL;
    enum status status = STATUS_OK;
    TRY_TO(done, memory_pages(&mine, bytes));
    TRY_TO(done, memory_pages(&host, bytes));
    TRY_TO(done, arena_read(examiner->place, parameters, mine, count));
    TRY_TO(done, arena_write(examiner->place, mean, mine, count));
    TRY_TO(done, exchanges_mean(examiner->exchanges, "mean of the parameters", mean, count));
    TRY_TO(done, arena_read(examiner->place, mean, host, count));
    *distance = squared_distance(mine, host, count);
done:
    memory_pages_release(mine, bytes);
    memory_pages_release(host, bytes);
    return status;
}

/* The mean over the workers of an arena, in one of its own; after a failure an exchange may still be writing it: it goes
 * with the comm. */
static enum status average_arena(const struct examiner *examiner, const char *what, const float *arena, size_t count,
                                 float **mean)
{
    void *host = NULL;
    TRY(arena_create(examiner->place, count, mean));
    enum status status = memory_pages(&host, count * sizeof(float));
    if (status >= 0)
        status = arena_read(examiner->place, arena, host, count);
    if (status >= 0)
        status = arena_write(examiner->place, *mean, host, count);
    memory_pages_release(host, count * sizeof(float));
    return status < 0 ? status : exchanges_mean(examiner->exchanges, what, *mean, count);
}

enum status examine_average(const struct examiner *examiner, const float *parameters, const float *state,
                            struct accuracy *accuracy)
{
    struct examiner shared = *examiner;
    float *mean = NULL, *mean_state = NULL;
    shared.exact = true; /* all have the same now, and share the test set */
    TRY(average_arena(examiner, "mean of the parameters", parameters, examiner->model->parameters, &mean));
    TRY(average_arena(examiner, "mean of the running statistics", state, examiner->model->state, &mean_state));
    const enum status status = examine_accuracy(&shared, mean, mean_state, accuracy, NULL);
    arena_destroy(examiner->place, mean);
    arena_destroy(examiner->place, mean_state);
    return status;
}

enum status examine_consensus(const struct examiner *examiner, const float *parameters, double *consensus)
{
    const size_t workers = (size_t)job_size(examiner->job);
    double mine = 0;
    float *mean = NULL;
    void *all = NULL;
    TRY(arena_create(examiner->place, examiner->model->parameters, &mean));
    enum status status = distance_to_mean(examiner, parameters, mean, &mine);
    if (status < 0)
        return status; /* an exchange may still be writing the mean: it goes with the comm */
    arena_destroy(examiner->place, mean);
    TRY(gather(examiner, &mine, sizeof mine, &all));
    const double *distances = all;
    *consensus = 0;
    for (size_t rank = 0; rank < workers; rank++)
        *consensus += distances[rank] / (double)workers;
    free(all);
    return STATUS_OK;
}
