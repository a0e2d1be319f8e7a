/* steps.c - a training step: images, forward and backward, exchange and update, records.
 *
 * On a device three things overlap: step k computes, the batch of k + 1 is made, and the host collects k - 1. So a step's
 * result, and with it a loss that is not finite, is known one step later.
 */
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "nn/trainer.h"

static enum status plan_step(const struct trainer *trainer, uint64_t step, struct step_plan *plan)
{
    const struct spec *spec = trainer->request->spec;
    if (spec->kind == SPEC_STRATEGY)
        return spec->strategy->plan(&spec->options, step, plan);
    *plan = (struct step_plan){.exchanges = true, .exchange = {.object = EXCHANGE_GRADIENT}, .updates = true};
    return STATUS_OK;
}

/* ---- what is not finite ---- */

/* In exact runs all workers are here in the same step: the first one whose own loss was at fault reports, the others wait
 * to be ended by that. */
static enum status wait_for_culprit(struct trainer *trainer)
{
    struct job *job = trainer->request->job;
    const double mine = trainer->bad.known ? trainer->bad.loss : 0;
    void *all = NULL;
    TRY(memory_zeroed(&all, (size_t)job_size(job), sizeof(double)));
    const double *losses = all;
    enum status status = job_allgather(job, &mine, sizeof mine, all);
    int culprit = 0;
    while (status >= 0 && culprit < job_size(job) && isfinite(losses[culprit]))
        culprit++;
    free(all);
    TRY(status);
    if (culprit != job_rank(job) && culprit < job_size(job))
        TRY(job_barrier(job));
    return STATUS_OK;
}

/* The gradient of `step` was not finite. */
static enum status not_finite(struct trainer *trainer, uint64_t step)
{
    if (trainer->exact) {
        TRY(metrics_flush(trainer->metrics, NULL)); /* the steps before */
        TRY(wait_for_culprit(trainer));
    }
    if (!trainer->bad.known)
        return fail(STATUS_FORMAT, "step %llu: the gradient is not finite: lower --lr", (unsigned long long)step);
    struct text loss = {0};
    text_add_real(&loss, trainer->bad.loss, 6);
    const enum status status = fail(STATUS_FORMAT, "step %llu: the loss is %s: lower --lr, or raise --warmup-steps",
                                    (unsigned long long)trainer->bad.step, text_string(&loss));
    text_release(&loss);
    return status;
}

/* Whoever gets the mean of this gradient notices. */
static enum status spoil(struct trainer *trainer, float *gradient)
{
    struct device *device = trainer->place.device;
    trainer->spoils = false;
    if (device != NULL)
        return device->ops->copy(device->ops->compute(device), gradient, trainer->poison, sizeof(float));
    gradient[0] = NAN;
    return STATUS_OK;
}

/* ---- forward and backward ---- */

static bool watches(const struct trainer *trainer, const struct step_plan *plan)
{
    return trainer->overlaps && plan->exchanges && plan->exchange.object == EXCHANGE_GRADIENT &&
           plan->exchange.start == START_AFTER_BACKWARD;
}

/* Between layers: buckets begin, and what is done is used. */
struct between {
    struct trainer *trainer;
    struct gradient_watch exchanges;
    uint64_t step;
    bool applies; /* parts of this step's exchange */
    bool *finite;
};

static enum status between_layers(void *context, size_t offset)
{
    struct between *between = context;
    struct trainer *trainer = between->trainer;
    TRY(between->exchanges.ready(between->exchanges.context, offset));
    if (!between->applies)
        return STATUS_OK;
    const struct exchanger exchanger = exchanges_exchanger(trainer->exchanges);
    const uint64_t before = clock_ns(), inside_ns = exchanges_inside_ns(trainer->exchanges);
    TRY(trainer->method->during(&trainer->replica, &exchanger, between->step, between->finite));
    trainer->applied_ns += clock_ns() - before - (exchanges_inside_ns(trainer->exchanges) - inside_ns);
    return STATUS_OK;
}

/* Of this step's exchange, or of one that is under way. */
static enum status watch_exchange(struct between *between, const struct step_plan *plan, float *gradient,
                                  struct gradient_watch *watch)
{
    struct trainer *trainer = between->trainer;
    const bool begins = watches(trainer, plan);
    TRY(exchanges_watch(trainer->exchanges, between->step, begins ? gradient : NULL, watch));
    between->applies = begins && plan->updates && trainer->method->during != NULL && trainer->place.device == NULL &&
                       replica_updates_parts(&trainer->replica);
    if (watch->ready == NULL || !between->applies)
        return STATUS_OK;
    between->exchanges = *watch;
    watch->context = between;
    watch->ready = between_layers;
    return STATUS_OK;
}

static enum status put(struct trainer *trainer, const struct step_plan *plan, uint64_t step, float *gradient,
                       bool *finite)
{
    struct gradient_watch watch = {.ready = NULL};
    struct between between = {.trainer = trainer, .step = step, .finite = finite};
    const struct train_request *request = trainer->request;
    const struct batch nothing = {.count = request->batch};
    const struct batch *batch = &nothing;
    const uint64_t before = clock_ns();
    if (trainer->loader != NULL)
        TRY(loader_next(trainer->loader, &batch));
    trainer->put_ns = clock_ns();
    trainer->wait_s += (double)(trainer->put_ns - before) * 1e-9;
    trace_add(trainer->trace, "images", TRACE_STEPS, step, before, trainer->put_ns);
    trainer->applied_ns = 0;
    TRY(watch_exchange(&between, plan, gradient, &watch));
    TRY(request->backend->step(trainer->backend, trainer->replica.parameters, trainer->state, batch, gradient,
                               watch.ready != NULL ? &watch : NULL));
    trainer->row[step % 2].images = (double)batch->count;
    trainer->put = step + 1;
    return STATUS_OK;
}

/* Of a host backend, which has just returned. */
static void trace_phases(const struct trainer *trainer, const struct step_result *result)
{
    const uint64_t begin = trainer->put_ns, middle = begin + (uint64_t)(result->forward_s * 1e9);
    if (trainer->place.device != NULL)
        return;
    trace_add(trainer->trace, "forward", TRACE_STEPS, trainer->collected, begin, middle);
    trace_add(trainer->trace, "backward", TRACE_STEPS, trainer->collected, middle,
              middle + (uint64_t)(result->backward_s * 1e9));
}

/* The results of all steps before `end`. *applied: the step whose update is known to have read what is not finite. */
static enum status collect(struct trainer *trainer, uint64_t end, bool *finite, uint64_t *applied)
{
    struct step_result result;
    for (; trainer->collected < end; trainer->collected++) {
        struct step_row *row = &trainer->row[trainer->collected % 2];
        TRY(trainer->request->backend->collect(trainer->backend, &result));
        if (trainer->loader != NULL)
            loader_done(trainer->loader);
        row->loss = result.loss;
        row->compute_s = result.forward_s + result.backward_s;
        trace_phases(trainer, &result);
        if (*finite && !result.updates_finite) {
            *finite = false;
            *applied = trainer->collected - 1;
        }
        if (isfinite(result.loss) || trainer->bad.known)
            continue;
        trainer->bad.known = trainer->spoils = true;
        trainer->bad.step = trainer->collected;
        trainer->bad.loss = result.loss;
    }
    return STATUS_OK;
}

/* ---- records ---- */

void trainer_mark(struct trainer *trainer)
{
    trainer->mark_ns = clock_ns();
    exchanges_mark(trainer->exchanges, trainer->mark_ns);
}

static enum status take_times(struct trainer *trainer, uint64_t step)
{
    struct exchange_tally tally;
    struct step_row *row = &trainer->row[step % 2];
    const struct data_place place = data_order_place(&trainer->order, step);
    const uint64_t now = clock_ns();
    TRY(exchanges_take(trainer->exchanges, now, &tally));
    trace_add(trainer->trace, "step", TRACE_STEPS, step, trainer->mark_ns, now);
    row->step_s = (double)(now - trainer->mark_ns) * 1e-9;
    row->comm_s = (double)tally.flight_ns * 1e-9;
    row->exposed_s = (double)tally.blocked_ns * 1e-9;
    row->compute_s -= (double)(tally.inside_ns + trainer->applied_ns) * 1e-9;
    row->bytes = (double)tally.bytes;
    row->epoch = (double)place.epoch;
    row->rate = learning_rate_at(&trainer->rate, step);
    trainer->mark_ns = now;
    if (step > trainer->first || trainer->steps == 1) { /* the first one is no measure of the others */
        trainer->run_s += row->step_s;
        trainer->run_images += (double)data_order_all_images(&trainer->order, place.epoch, place.batch);
        trainer->run_steps++;
    }
    return STATUS_OK;
}

static enum status record(struct trainer *trainer)
{
    for (; trainer->recorded < trainer->collected; trainer->recorded++) {
        TRY(metrics_add(trainer->metrics, &trainer->row[trainer->recorded % 2]));
        trainer_tell(trainer, trainer->recorded, false);
    }
    return STATUS_OK;
}

void trainer_tell(struct trainer *trainer, uint64_t step, bool evaluated)
{
    const struct train_request *request = trainer->request;
    if (request->progress == NULL || job_rank(request->job) != 0)
        return;
    double step_s = trainer->run_steps > 0 ? trainer->run_s / (double)trainer->run_steps : 0;
    struct train_progress progress = {
        .step = step + 1,
        .steps = trainer->steps,
        .epoch = data_order_epochs(&trainer->order, step + 1),
        .loss = trainer->row[step % 2].loss,
        .rate = learning_rate_at(&trainer->rate, step),
        .global_batch = trainer->rate.global_batch,
        .images_per_s = trainer->run_s > 0 ? trainer->run_images / trainer->run_s : 0,
        .left_s = (double)(trainer->steps - step - 1) * step_s,
        .evaluated = evaluated,
        .top1 = trainer->accuracy.top1,
        .top5 = trainer->accuracy.top5,
        .test_loss = trainer->accuracy.loss,
    };
    request->progress(request->context, &progress);
}

/* ---- a step ---- */

static void begin_impaired(const struct trainer *trainer, uint64_t step)
{
    if (trainer->request->inject != NULL)
        inject_step(trainer->request->inject, job_rank(trainer->request->job), step);
}

/* On a device the latest step that is known to be computed is one before. Who waits for others computes no slower. */
static void compute_impaired(const struct trainer *trainer)
{
    if (trainer->request->inject != NULL && trainer->collected > 0)
        inject_compute(trainer->request->inject, job_rank(trainer->request->job),
                       trainer->row[(trainer->collected - 1) % 2].compute_s -
                           (double)(exchanges_inside_ns(trainer->exchanges) + trainer->applied_ns) * 1e-9);
}

enum status trainer_step(struct trainer *trainer, bool settle)
{
    const bool waits = trainer->place.device == NULL; /* a host backend is done when it returns */
    const struct exchanger exchanger = exchanges_exchanger(trainer->exchanges);
    const uint64_t step = trainer->put;
    uint64_t applied = step;
    float *gradient = trainer->replica.gradient[step % (uint64_t)trainer->method->gradients];
    struct step_plan plan;
    bool finite = true;
    TRY(plan_step(trainer, step, &plan));
    begin_impaired(trainer, step);
    TRY(put(trainer, &plan, step, gradient, &finite));
    if (waits)
        TRY(collect(trainer, step + 1, &finite, &applied));
    compute_impaired(trainer);
    if (trainer->spoils)
        TRY(spoil(trainer, gradient));
    TRY(trainer->method->step(&trainer->replica, &exchanger, &plan, step, &finite));
    TRY(collect(trainer, settle ? step + 1 : step, &finite, &applied));
    if (settle)
        TRY(replica_finite(&trainer->replica, &finite));
    if (!finite)
        return not_finite(trainer, applied - (uint64_t)plan.gradient_age);
    TRY(take_times(trainer, step));
    TRY(record(trainer));
    trace_add(trainer->trace, "records", TRACE_STEPS, step, trainer->mark_ns, clock_ns());
    return STATUS_OK;
}

/* True in *bad: on some worker a loss was not finite that no gradient has told the others of. */
static enum status gather_bad(struct trainer *trainer, bool *bad)
{
    struct job *job = trainer->request->job;
    void *all = NULL;
    TRY(memory_zeroed(&all, (size_t)job_size(job), sizeof(bool)));
    const bool *known = all;
    const enum status status = job_allgather(job, &trainer->bad.known, sizeof(bool), all);
    for (int r = 0; status >= 0 && r < job_size(job); r++)
        *bad = *bad || known[r];
    free(all);
    return status;
}

enum status trainer_finish_steps(struct trainer *trainer)
{
    const struct exchanger exchanger = exchanges_exchanger(trainer->exchanges);
    bool finite = true, bad = !trainer->exact && trainer->bad.known;
    if (trainer->method->finish != NULL)
        TRY(trainer->method->finish(&trainer->replica, &exchanger, trainer->steps, &finite));
    TRY(replica_finite(&trainer->replica, &finite));
    /* On a device it was known too late for a gradient to tell; a lossy wire format may have left it out. */
    if (trainer->exact)
        TRY(gather_bad(trainer, &bad));
    return finite && !bad ? STATUS_OK : not_finite(trainer, trainer->steps - 1);
}
