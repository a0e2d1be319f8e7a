/* train.c - a training run on simulated time: a strategy's step plans (algos/strategy.h) over a profile's compute
 * times.
 *
 * Every worker has its own clock, carried from step to step, so that workers that an exchange leaves earlier begin
 * earlier:
 *
 *   step k:  clock -- forward, backward --> ready -- wait for what is due --> update -- wait for what is due --> clock
 *                                             \-- exchange (after backward) ...   \-- exchange (after update) ...
 *
 * With overlap an exchange after backward is one of buckets that begin as backward completes them.
 *
 * Exchanges of a worker follow one another: one that starts while the last still runs queues behind it. What a worker
 * waits is exposed communication. An exchange depends on nothing but the schedule and by how much the workers' starts
 * differ, so one that was simulated before is remembered; after a few steps nearly all are.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "algos/bucket.h"
#include "base/clock.h"
#include "base/memory.h"
#include "sim/sim.h"

#define ELEMENT_BYTES sizeof(float)
#define WARMUP_STEPS 2  /* the first exchange of a double-buffered run is waited for in step 1 */
#define COUNTED_STEPS 4 /* at least, and whole periods                                         */
#define LONGEST_PERIOD 1024
#define LONG_PERIOD_STEPS 64 /* a sample of what is longer */
#define PENDING_MAX 64
#define MEMORIES 64
#define TIME_GRAIN_S 1e-12 /* starts that differ by less are equal */

/* An exchange that has been started and not yet been waited for. */
struct pending {
    bool used;
    uint64_t due; /* step */
    enum exchange_start start;
    double *done_s; /* of each worker */
};

/* One exchange that has been simulated; times are since the first worker started. */
struct memory {
    bool used;
    uint64_t residue; /* of the step, modulo the period */
    size_t count;
    double *start_s, *done_s;
    size_t *sent; /* bytes of each worker */
    struct sim_result result;
};

struct piece {
    size_t count;  /* elements */
    double left_s; /* of backward, when it has completed them */
};

struct training {
    const struct sim_train_request *request;
    struct sim_request network;
    struct layout layout;
    struct spec strategy;
    uint64_t period;
    size_t workers, parameters;
    double compute_s, backward_s;
    struct piece *piece; /* buckets, in the order in which they are exchanged */
    size_t pieces;

    double *clock_s, *free_s, *begin_s, *exposed_s; /* of each worker; free: its last exchange is over */
    double *sent;                                   /* bytes of each worker in the steps counted       */
    struct pending pending[PENDING_MAX];
    struct memory memory[MEMORIES];
    size_t oldest; /* memory to overwrite next */
    struct sim_train_result *result;
};

static enum status reals_create(const struct training *training, double **out)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, training->workers, sizeof(double)));
    free(*out);
    *out = memory;
    return STATUS_OK;
}

/* ---- exchanges ---- */

static bool remembers(const struct training *training, const struct memory *memory, uint64_t residue, size_t count,
                      double first_s)
{
    if (!memory->used || memory->residue != residue || memory->count != count)
        return false;
    for (size_t r = 0; r < training->workers; r++)
        if (fabs(training->begin_s[r] - first_s - memory->start_s[r]) > TIME_GRAIN_S)
            return false;
    return true;
}

static enum status memory_prepare(const struct training *training, struct memory *memory)
{
    memory->used = false;
    if (memory->sent != NULL)
        return STATUS_OK;
    TRY(reals_create(training, &memory->start_s));
    TRY(reals_create(training, &memory->done_s));
    void *sent = NULL;
    TRY(memory_zeroed(&sent, training->workers, sizeof(size_t)));
    memory->sent = sent;
    return STATUS_OK;
}

static enum status simulate(struct training *training, uint64_t step, size_t count, double first_s,
                            struct memory *memory)
{
    struct shape *shape = NULL;
    enum status status;
    TRY(memory_prepare(training, memory));
    memory->residue = step % training->period;
    memory->count = count;
    for (size_t r = 0; r < training->workers; r++)
        memory->start_s[r] = training->begin_s[r] - first_s;
    TRY(spec_shape(&training->strategy, &training->layout, step, count, &shape));
    for (int r = 0; r < shape->workers; r++) {
        TRY_TO(done, shape_traffic(shape, r, count, ELEMENT_BYTES, &memory->sent[r], NULL));
        if (training->network.wire_ratio > 0)
            memory->sent[r] = (size_t)((double)memory->sent[r] * training->network.wire_ratio + 0.5);
    }
    TRY_TO(done, sim_schedule(&training->network, shape, count, ELEMENT_BYTES, memory->start_s, memory->done_s,
                              &memory->result));
    training->result->totals.events += memory->result.events;
    memory->used = true;
done:
    shape_destroy(shape);
    return status;
}

/* The exchange of `count` elements, begun by worker r at begin_s[r]: simulated, or remembered. */
static enum status recall(struct training *training, uint64_t step, size_t count, double first_s,
                          const struct memory **found)
{
    for (size_t i = 0; i < MEMORIES; i++) {
        if (remembers(training, &training->memory[i], step % training->period, count, first_s)) {
            *found = &training->memory[i];
            return STATUS_OK;
        }
    }
    struct memory *memory = &training->memory[training->oldest];
    training->oldest = (training->oldest + 1) % MEMORIES;
    TRY(simulate(training, step, count, first_s, memory));
    *found = memory;
    return STATUS_OK;
}

static enum status exchange_bucket(struct training *training, uint64_t step, size_t count)
{
    const struct memory *memory;
    double first_s = training->begin_s[0];
    for (size_t r = 1; r < training->workers; r++)
        first_s = fmin(first_s, training->begin_s[r]);
    TRY(recall(training, step, count, first_s, &memory));
    for (size_t r = 0; r < training->workers; r++) {
        training->begin_s[r] = first_s + memory->done_s[r];
        training->sent[r] += (double)memory->sent[r];
    }
    training->result->totals.messages += memory->result.messages;
    training->result->totals.bytes += memory->result.bytes;
    return STATUS_OK;
}

static enum status pending_take(struct training *training, struct pending **taken)
{
    for (size_t i = 0; i < PENDING_MAX; i++) {
        struct pending *pending = &training->pending[i];
        if (pending->used)
            continue;
        if (pending->done_s == NULL)
            TRY(reals_create(training, &pending->done_s));
        pending->used = true;
        *taken = pending;
        return STATUS_OK;
    }
    return fail(STATUS_REFUSED, "%s: more than %d exchanges in flight: wait for them earlier",
                training->strategy.strategy->name, PENDING_MAX);
}

/* Worker r comes to the exchange of `step` at clock_s[r]; its buckets go one after the other. */
static enum status exchange(struct training *training, uint64_t step, const struct exchange *plan)
{
    struct pending *pending = NULL;
    TRY(pending_take(training, &pending));
    const bool overlaps = training->request->overlap && plan->start == START_AFTER_BACKWARD;
    memcpy(training->begin_s, training->free_s, training->workers * sizeof(double));
    for (size_t k = 0; k < training->pieces; k++) {
        const double left_s = overlaps ? training->piece[k].left_s : 0;
        for (size_t r = 0; r < training->workers; r++)
            training->begin_s[r] = fmax(training->clock_s[r] - left_s, training->begin_s[r]);
        TRY(exchange_bucket(training, step, training->piece[k].count));
    }
    memcpy(training->free_s, training->begin_s, training->workers * sizeof(double));
    memcpy(pending->done_s, training->begin_s, training->workers * sizeof(double));
    pending->due = step + (uint64_t)plan->wait_steps;
    pending->start = plan->start;
    return STATUS_OK;
}

/* ---- steps ---- */

/* All workers wait for the exchanges of this kind that are due. */
static void wait_due(struct training *training, uint64_t step, enum exchange_start start)
{
    for (size_t i = 0; i < PENDING_MAX; i++) {
        struct pending *pending = &training->pending[i];
        if (!pending->used || pending->due > step || pending->start != start)
            continue;
        for (size_t r = 0; r < training->workers; r++) {
            const double waits_s = fmax(0, pending->done_s[r] - training->clock_s[r]);
            training->exposed_s[r] += waits_s;
            training->clock_s[r] += waits_s;
        }
        pending->used = false;
    }
}

static enum status run_step(struct training *training, uint64_t step)
{
    struct step_plan plan;
    TRY(spec_plan(&training->strategy, step, &plan));
    for (size_t r = 0; r < training->workers; r++)
        training->clock_s[r] += training->compute_s;
    if (plan.exchanges && plan.exchange.start == START_AFTER_BACKWARD)
        TRY(exchange(training, step, &plan.exchange));
    wait_due(training, step, START_AFTER_BACKWARD);
    if (plan.exchanges && plan.exchange.start == START_AFTER_UPDATE)
        TRY(exchange(training, step, &plan.exchange));
    wait_due(training, step, START_AFTER_UPDATE);
    return STATUS_OK;
}

static double mean(const struct training *training, const double *values)
{
    double sum = 0;
    for (size_t r = 0; r < training->workers; r++)
        sum += values[r];
    return sum / (double)training->workers;
}

/* How many steps are left out of the means, and how many are counted. */
static void choose_steps(const struct training *training, uint64_t *warmup, uint64_t *counted)
{
    const uint64_t steps = (uint64_t)training->request->steps, period = training->period;
    *warmup = WARMUP_STEPS;
    if (steps > 0 && steps <= WARMUP_STEPS)
        *warmup = steps - 1;
    if (steps > 0)
        *counted = steps - *warmup;
    else if (period > LONGEST_PERIOD)
        *counted = LONG_PERIOD_STEPS;
    else
        *counted = (COUNTED_STEPS + period - 1) / period * period;
}

/* The clocks have come from `from_s` on average through the steps counted. */
static void report(struct training *training, double from_s, uint64_t counted)
{
    struct sim_train_result *result = training->result;
    double most = 0;
    result->step_s = (mean(training, training->clock_s) - from_s) / (double)counted;
    result->exposed_s = mean(training, training->exposed_s) / (double)counted;
    result->compute_s = training->compute_s;
    result->images_per_s = (double)training->workers * training->request->batch / result->step_s;
    result->efficiency = result->compute_s / result->step_s;
    result->totals.first_s = training->clock_s[0];
    for (size_t r = 0; r < training->workers; r++) {
        most = fmax(most, training->sent[r]);
        result->totals.time_s = fmax(result->totals.time_s, training->clock_s[r]);
        result->totals.first_s = fmin(result->totals.first_s, training->clock_s[r]);
    }
    result->bytes_sent_per_step = (size_t)(most / (double)counted + 0.5);
}

static enum status run_steps(struct training *training)
{
    uint64_t warmup;
    uint64_t counted;
    choose_steps(training, &warmup, &counted);
    double from_s = 0;
    for (uint64_t step = 0; step < warmup + counted; step++) {
        if (step == warmup) {
            from_s = mean(training, training->clock_s);
            memset(training->exposed_s, 0, training->workers * sizeof(double));
            memset(training->sent, 0, training->workers * sizeof(double));
        }
        TRY(run_step(training, step));
    }
    report(training, from_s, counted);
    return STATUS_OK;
}

/* ---- life ---- */

static enum status check_request(const struct sim_train_request *request)
{
    if (request->workers < 1 || request->batch < 1 || request->steps < 0)
        return fail(STATUS_USAGE, "%d workers, batch %d, %d steps: give at least 1 worker and a batch of at least 1",
                    request->workers, request->batch, request->steps);
    const struct layout *layout = request->network.layout;
    if (layout != NULL && layout->workers != request->workers)
        return fail(STATUS_USAGE, "the layout has %d workers, the run %d: make them agree", layout->workers,
                    request->workers);
    return STATUS_OK;
}

static enum status add_piece(struct training *training, size_t *capacity, size_t begin, size_t count)
{
    const struct sim_train_request *request = training->request;
    void *memory = training->piece;
    TRY(memory_grow(&memory, capacity, training->pieces + 1, sizeof(struct piece)));
    training->piece = memory;
    const double until_s = profile_backward_until(request->profile, request->batch, begin);
    training->piece[training->pieces++] = (struct piece){.count = count, .left_s = training->backward_s - until_s};
    return STATUS_OK;
}

/* The elements that the next bucket takes, of the `left` first ones. *layers: those that are left. */
static size_t next_bucket(const struct training *training, size_t most, size_t left, size_t *layers)
{
    const struct profile *profile = training->request->profile;
    const size_t room = bucket_room(training->pieces, most);
    size_t count = 0;
    if (profile->layers == 0)
        return left < room ? left : room;
    while (*layers > 0 && (count == 0 || count + profile->layer[*layers - 1].parameters <= room))
        count += profile->layer[--*layers].parameters;
    return count;
}

static enum status cut_pieces(struct training *training)
{
    const size_t bytes = training->request->bucket;
    const size_t most = bytes / ELEMENT_BYTES > 0 ? bytes / ELEMENT_BYTES : 1;
    size_t capacity = 0, left = training->parameters, layers = training->request->profile->layers;
    while (left > 0) {
        const size_t count = bytes > 0 ? next_bucket(training, most, left, &layers) : left;
        if (count == 0)
            break; /* layers without parameters */
        left -= count;
        TRY(add_piece(training, &capacity, left, count));
    }
    return STATUS_OK;
}

static enum status training_create(struct training *training)
{
    const struct sim_train_request *request = training->request;
    double forward_s;
    double backward_s;
    if (request->network.layout != NULL)
        TRY(layout_copy(request->network.layout, &training->layout));
    else
        TRY(platform_layout(request->network.platform, request->workers, &training->layout));
    TRY(spec_as_strategy(request->spec, &training->strategy));
    TRY(spec_period(&training->strategy, &training->layout, &training->period));
    profile_times(request->profile, request->batch, &forward_s, &backward_s, NULL);
    training->compute_s = forward_s + backward_s;
    training->backward_s = backward_s;
    training->network = request->network;
    training->network.layout = &training->layout;
    training->workers = (size_t)request->workers;
    training->parameters = request->profile->parameters;
    TRY(cut_pieces(training));
    TRY(reals_create(training, &training->clock_s));
    TRY(reals_create(training, &training->free_s));
    TRY(reals_create(training, &training->begin_s));
    TRY(reals_create(training, &training->exposed_s));
    return reals_create(training, &training->sent);
}

static void training_release(struct training *training)
{
    for (size_t i = 0; i < PENDING_MAX; i++)
        free(training->pending[i].done_s);
    for (size_t i = 0; i < MEMORIES; i++) {
        free(training->memory[i].start_s);
        free(training->memory[i].done_s);
        free(training->memory[i].sent);
    }
    free(training->piece);
    free(training->clock_s);
    free(training->free_s);
    free(training->begin_s);
    free(training->exposed_s);
    free(training->sent);
    spec_release(&training->strategy);
    layout_release(&training->layout);
}

enum status sim_train(const struct sim_train_request *request, struct sim_train_result *result)
{
    const double wall_s = clock_seconds();
    *result = (struct sim_train_result){0};
    TRY(check_request(request));
    struct training training = {.request = request, .result = result};
    enum status status;
    TRY_TO(done, training_create(&training));
    TRY_TO(done, run_steps(&training));
    result->totals.wall_s = clock_seconds() - wall_s;
done:
    training_release(&training);
    return status;
}
