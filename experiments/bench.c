/* bench.c - measures one spec on a job: warm-up, back-to-back calls, single calls, and checks of results and bits. */
#include "experiments/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "comm/host.h"
#include "experiments/bench_data.h"
#include "experiments/library.h"
#include "sim/sim.h"

enum {
    PERIOD_MOST = 64,    /* distinct schedules of a strategy that are measured */
    SINGLES_MOST = 4096, /* single calls: their times fit one all-gather       */
    CHUNK = 1024
};

/* One spec under measurement: the schedules of a period (most have one) and the collectives for one vector size. */
struct subject {
    const struct worker *worker;
    const struct bench_settings *settings;
    const struct spec *spec;
    struct text name; /* canonical */
    struct shape *shape[PERIOD_MOST];
    struct collective *collective[PERIOD_MOST];
    size_t period;          /* 0: no shapes made; an external has a period of 1 and no shape */
    struct library library; /* of an external, else empty */
    struct text decided, decided_before;
    struct bench_data data;
    size_t count;
    unsigned char *input, *output; /* bytes of the largest vector; input NULL: all is in place */
    size_t bytes_most;
    void *on_device[2];         /* with a device: its input and output, filled from those and looked at through them */
    struct device_event *event; /* with a device */
};

/* ---- wire format ---- */

static bool is_encoded(const struct bench_settings *settings)
{
    return wire_format_changes(settings->wire, settings->dtype);
}

/* It leaves out a part, which comes later. */
static bool has_feedback(const struct bench_settings *settings)
{
    return is_encoded(settings) && !wire_format_by_element(settings->wire);
}

/* Bytes of an element on the wire; 0: that is not fixed. */
static size_t wire_size(const struct bench_settings *settings)
{
    return is_encoded(settings) ? settings->wire->codec->element_bytes : dtype_size(settings->dtype);
}

/* In which type partial sums must be exact. */
static enum dtype sums_of(const struct bench_settings *settings)
{
    enum dtype dtype = settings->dtype;
    if (is_encoded(settings) && !has_feedback(settings))
        (void)!dtype_parse(settings->wire->codec->name, &dtype);
    return dtype;
}

/* ---- vectors on a device ---- */

static enum status device_copy(const struct subject *s, void *to, const void *from)
{
    struct device *device = s->worker->device;
    struct device_queue *queue = device->ops->compute(device);
    TRY(device->ops->copy(queue, to, from, s->count * dtype_size(s->settings->dtype)));
    TRY(device->ops->record(queue, s->event));
    return device->ops->wait(s->event);
}

/* What has been filled in goes to where calls take it. */
static enum status show_vector(const struct subject *s, bool output)
{
    if (s->worker->device == NULL || s->count == 0)
        return STATUS_OK;
    return device_copy(s, s->on_device[output], output ? s->output : s->input);
}

/* The result comes to where it is looked at. */
static enum status fetch_result(const struct subject *s)
{
    if (s->worker->device == NULL || s->count == 0)
        return STATUS_OK;
    return device_copy(s, s->output, s->on_device[1]);
}

/* What a call is given. */
static void *vector_of(const struct subject *s, bool output)
{
    if (s->worker->device != NULL)
        return s->on_device[output];
    return output ? s->output : s->input;
}

/* ---- calls ---- */

static enum status call_library(struct subject *s, bool in_place)
{
    const struct device_ops *ops = s->worker->device != NULL ? s->worker->device->ops : NULL;
    TRY(external_allreduce(s->library.external, vector_of(s, in_place), vector_of(s, true), s->count,
                           s->settings->dtype, s->data.op));
    if (ops == NULL)
        return STATUS_OK;
    TRY(ops->record(ops->compute(s->worker->device), s->event));
    return external_wait(s->library.external, s->event);
}

/* One period: every schedule once, one after the other. */
static enum status call(struct subject *s, bool in_place)
{
    struct inject *inject = s->worker->inject;
    if (inject != NULL)
        inject_step(inject, job_rank(s->worker->job), inject->calls++);
    if (s->library.external != NULL)
        return call_library(s, in_place);
    for (size_t k = 0; k < s->period; k++) {
        TRY(collective_start(s->collective[k], vector_of(s, in_place), vector_of(s, true)));
        TRY(collective_wait(s->collective[k]));
    }
    return STATUS_OK;
}

static enum status back_to_back(struct subject *s, bool in_place, struct bench_half *half)
{
    double mine = 0, all[WORKERS_MOST], sum = 0;
    struct job *job = s->worker->job;
    TRY(job_barrier(job));
    const double begin = clock_seconds();
    for (int i = 0; i < s->settings->iterations; i++)
        TRY(call(s, in_place));
    mine = (clock_seconds() - begin) / s->settings->iterations / (double)s->period;
    TRY(job_allgather(job, &mine, sizeof mine, all));
    half->least_s = half->most_s = mine;
    for (int r = 0; r < job_size(job); r++) {
        sum += all[r];
        half->least_s = fmin(half->least_s, all[r]);
        half->most_s = fmax(half->most_s, all[r]);
    }
    half->time_s = sum / job_size(job);
    return STATUS_OK;
}

static int compare_times(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* slowest[i] = the longest time of call i on any worker. */
static enum status slowest_of(struct job *job, double *slowest, size_t n, double *all)
{
    for (size_t begin = 0; begin < n; begin += CHUNK) {
        const size_t part = n - begin < CHUNK ? n - begin : CHUNK;
        TRY(job_allgather(job, slowest + begin, part * sizeof *slowest, all));
        for (int r = 0; r < job_size(job); r++)
            for (size_t i = 0; i < part; i++)
                slowest[begin + i] = fmax(slowest[begin + i], all[(size_t)r * part + i]);
    }
    return STATUS_OK;
}

static enum status single_calls(struct subject *s, bool in_place, struct bench_half *half)
{
    enum status status = STATUS_OK;
    void *times_memory = NULL, *all_memory = NULL;
    struct job *job = s->worker->job;
    const size_t wanted = (size_t)s->settings->iterations, n = wanted < SINGLES_MOST ? wanted : SINGLES_MOST;
    TRY_TO(done, memory_zeroed(&times_memory, n, sizeof(double)));
    TRY_TO(done, memory_zeroed(&all_memory, CHUNK * (size_t)job_size(job), sizeof(double)));
    double *times = times_memory;
    TRY_TO(done, job_barrier(job));
    for (size_t i = 0; i < n; i++) {
        const double begin = clock_seconds();
        TRY_TO(done, call(s, in_place));
        times[i] = (clock_seconds() - begin) / (double)s->period;
    }
    TRY_TO(done, slowest_of(job, times, n, all_memory));
    qsort(times, n, sizeof *times, compare_times);
    half->p50_s = times[(n - 1) / 2]; /* by nearest rank, as p99 is */
    half->p99_s = times[(n * 99 + 99) / 100 - 1];
done:
    free(times_memory);
    free(all_memory);
    return status;
}

static enum status measure_half(struct subject *s, bool in_place, struct bench_half *half)
{
    half->measured = true;
    if (!in_place) {
        bench_fill(&s->data, s->input, s->count);
        TRY(show_vector(s, false));
    }
    bench_fill(&s->data, s->output, s->count);
    TRY(show_vector(s, true));
    for (int i = 0; i < s->settings->warmup; i++)
        TRY(call(s, in_place));
    TRY(back_to_back(s, in_place, half));
    return single_calls(s, in_place, half);
}

/* ----------------------------------------------------------------------------------------------------- traffic,
 * prediction */

/* Of the latest period: counted in the transport, and by the schedules; maxima over the workers, for one call. */
static enum status compare_traffic(const struct subject *s, struct bench_row *row, size_t *faults)
{
    uint64_t mine[4] = {0}, all[4 * WORKERS_MOST];
    struct job *job = s->worker->job;
    bool differs = false;
    const size_t size = wire_size(s->settings);
    if (s->library.external != NULL)
        return STATUS_OK; /* what travels there nobody sees */
    row->counted = true;
    for (size_t k = 0; k < s->period; k++) {
        struct collective_traffic traffic;
        size_t bytes = 0, messages = 0;
        collective_traffic(s->collective[k], &traffic);
        TRY(collective_due(s->collective[k], size > 0 ? size : dtype_size(s->settings->dtype), &bytes, &messages));
        mine[0] += traffic.bytes_sent;
        mine[1] += traffic.messages_sent;
        mine[2] += bytes;
        mine[3] += messages;
    }
    TRY(job_allgather(job, mine, sizeof mine, all));
    for (int r = 0; r < job_size(job); r++) {
        const uint64_t *one = all + 4 * r;
        differs = differs || (size > 0 && one[0] != one[2]) || one[1] != one[3];
        row->wire_bytes = one[0] > row->wire_bytes ? one[0] : row->wire_bytes;
        row->messages = one[1] > row->messages ? one[1] : row->messages;
        row->schedule_bytes = one[2] > row->schedule_bytes ? one[2] : row->schedule_bytes;
        row->schedule_messages = one[3] > row->schedule_messages ? one[3] : row->schedule_messages;
    }
    row->wire_bytes /= s->period; /* NOLINT(clang-analyzer-core.DivideZero): make_shapes() takes no period of 0 */
    row->messages /= s->period;
    row->schedule_bytes /= s->period;
    row->schedule_messages /= s->period;
    *faults += differs;
    return STATUS_OK;
}

static enum status predict(const struct subject *s, struct bench_row *row)
{
    const size_t segment = comm_segment(s->worker->comm) / sizeof(float);
    if (s->settings->platform == NULL || s->library.external != NULL)
        return STATUS_OK;
    const struct sim_request request = {
        .platform = s->settings->platform,
        .layout = &s->worker->layout,
        .segment = comm_segment(s->worker->comm),
        .window = comm_window(s->worker->comm),
        .overlap_reduction = true,
        .wire_ratio = is_encoded(s->settings) ? wire_format_ratio(s->settings->wire, segment) : 1};
    double total_s = 0;
    for (size_t k = 0; k < s->period; k++) {
        struct sim_result result;
        TRY(sim_schedule(&request, s->shape[k], s->count, dtype_size(s->settings->dtype), NULL, NULL, &result));
        total_s += result.time_s;
    }
    row->predicted_s = total_s / (double)s->period;
    return STATUS_OK;
}

/* ---- collectives ---- */

static enum status make_collective(const struct subject *s, const struct shape *shape, struct collective **collective)
{
    struct text name = {0};
    const bool mixing = (shape->traits & TRAIT_MIXING) != 0;
    spec_call_name(s->spec, shape, &name);
    const struct collective_request request = {.team = comm_world(s->worker->comm),
                                               .shape = shape,
                                               .name = text_string(&name),
                                               .count = s->count,
                                               .dtype = s->settings->dtype,
                                               .op = mixing ? REDUCE_SUM : s->data.op,
                                               .wire = s->settings->wire,
                                               .on_device = s->worker->device != NULL};
    enum status status = text_check(&name);
    if (status >= 0)
        status = collective_create(&request, collective);
    text_release(&name);
    return status;
}

static enum status make_collectives(struct subject *s)
{
    for (size_t k = 0; s->library.external == NULL && k < s->period; k++)
        TRY(make_collective(s, s->shape[k], &s->collective[k]));
    return STATUS_OK;
}

static void drop_collectives(struct subject *s)
{
    for (size_t k = 0; k < s->period; k++) {
        collective_destroy(s->collective[k]);
        s->collective[k] = NULL;
    }
}

/* ---- checks ---- */

static size_t bytes_of(const struct subject *s)
{
    return s->count * dtype_size(s->settings->dtype);
}

static enum status check_results(struct subject *s, bool in_place, struct bench_half *half)
{
    uint64_t mine = 0, all[WORKERS_MOST], sum = 0;
    if (in_place) {
        bench_fill(&s->data, s->output, s->count);
    } else {
        bench_fill(&s->data, s->input, s->count);
        memset(s->output, 0x7f, bytes_of(s));
        TRY(show_vector(s, false));
    }
    TRY(show_vector(s, true));
    TRY(call(s, in_place));
    TRY(fetch_result(s));
    mine = bench_count_wrong(&s->data, s->output, s->count);
    TRY(job_allgather(s->worker->job, &mine, sizeof mine, all));
    for (int r = 0; r < job_size(s->worker->job); r++)
        sum += all[r];
    half->wrong = (isfinite(half->wrong) ? half->wrong : 0) + (double)sum;
    return STATUS_OK;
}

/* One call on random elements first, first + 1, ... of a vector that does not depend on how much of it is here. */
static enum status call_random(struct subject *s, bool in_place, size_t first)
{
    bench_fill_random(&s->data, in_place ? s->output : s->input, first, s->count);
    TRY(show_vector(s, in_place));
    TRY(call(s, in_place));
    return fetch_result(s);
}

/* What encoding does to random numbers; those of the timed calls have grown from call to call. */
static enum status gather_statistics(struct subject *s, struct bench_row *row)
{
    struct codec_statistics mine = {0}, all[WORKERS_MOST];
    if (!is_encoded(s->settings))
        return STATUS_OK;
    TRY(call_random(s, s->settings->in_place, 0));
    for (size_t k = 0; k < s->period; k++) {
        struct collective_traffic traffic;
        collective_traffic(s->collective[k], &traffic);
        codec_statistics_add(&mine, &traffic.wire);
    }
    TRY(job_allgather(s->worker->job, &mine, sizeof mine, all));
    for (int r = 0; r < job_size(s->worker->job); r++)
        codec_statistics_add(&row->wire, &all[r]);
    return STATUS_OK;
}

static enum status all_equal(struct job *job, uint64_t mine, enum bench_answer *answer)
{
    uint64_t all[WORKERS_MOST];
    TRY(job_allgather(job, &mine, sizeof mine, all));
    *answer = BENCH_YES;
    for (int r = 1; r < job_size(job); r++)
        if (all[r] != all[0])
            *answer = BENCH_NO;
    return STATUS_OK;
}

static enum status check_equal_bits(struct subject *s, bool in_place, struct bench_half *half)
{
    TRY(call_random(s, in_place, 0));
    return all_equal(s->worker->job, hash_bytes(HASH_START, s->output, bytes_of(s)), &half->equal_bits);
}

/* Residuals are from before: a collective made anew has none. */
static enum status check_promise(struct subject *s, bool in_place, struct bench_half *half)
{
    uint64_t all[WORKERS_MOST];
    double distance, promised;
    drop_collectives(s);
    TRY(make_collectives(s));
    TRY(call_random(s, in_place, 0));
    bench_distance(&s->data, s->output, s->count, &distance, &promised);
    const uint64_t mine = distance <= promised ? 0 : s->count;
    TRY(job_allgather(s->worker->job, &mine, sizeof mine, all));
    half->wrong = isfinite(half->wrong) ? half->wrong : 0;
    for (int r = 0; r < job_size(s->worker->job); r++)
        half->wrong += (double)all[r];
    return STATUS_OK;
}

static bool is_deterministic(const struct spec *spec)
{
    return spec->kind == SPEC_SCHEDULE && option_flag(&spec->options, "deterministic");
}

/* Whether half of the vector, from its third on, gives alone what it gives within the whole. */
static enum status check_part(struct subject *s, bool in_place, struct bench_half *half)
{
    const size_t size = dtype_size(s->settings->dtype), whole = s->count, first = whole / 3;
    TRY(call_random(s, in_place, 0));
    drop_collectives(s);
    s->count = whole / 2;
    const uint64_t within = hash_bytes(HASH_START, s->output + first * size, bytes_of(s));
    enum status status = make_collectives(s);
    if (status >= 0)
        status = call_random(s, in_place, first);
    const uint64_t alone = hash_bytes(HASH_START, s->output, bytes_of(s));
    drop_collectives(s);
    s->count = whole;
    TRY(status);
    TRY(make_collectives(s));
    const uint64_t differs = within != alone;
    uint64_t all[WORKERS_MOST];
    TRY(job_allgather(s->worker->job, &differs, sizeof differs, all));
    half->deterministic = BENCH_YES;
    for (int r = 0; r < job_size(s->worker->job); r++)
        if (all[r] != 0)
            half->deterministic = BENCH_NO;
    return STATUS_OK;
}

static enum status check_half(struct subject *s, bool in_place, struct bench_half *half)
{
    if (spec_is_exact(s->spec) && has_feedback(s->settings))
        TRY(check_promise(s, in_place, half));
    else if (spec_is_exact(s->spec))
        TRY(check_results(s, in_place, half));
    TRY(check_equal_bits(s, in_place, half));
    return is_deterministic(s->spec) ? check_part(s, in_place, half) : STATUS_OK;
}

/* A sum does not show where a schedule divides for the mean: after it, the mean is checked as well. */
static enum status check_mean(struct subject *s, struct bench_row *row)
{
    if (!spec_is_exact(s->spec) || s->settings->op != REDUCE_SUM)
        return STATUS_OK;
    drop_collectives(s);
    s->data.op = REDUCE_AVG;
    TRY(make_collectives(s));
    for (int h = 0; h < 2; h++)
        if (row->half[h].measured)
            TRY(has_feedback(s->settings) ? check_promise(s, h == 1, &row->half[h])
                                          : check_results(s, h == 1, &row->half[h]));
    return STATUS_OK;
}

static enum status check_row(struct subject *s, struct bench_row *row, size_t *faults)
{
    bool claims_equal_bits = s->library.external == NULL;
    for (size_t k = 0; s->library.external == NULL && k < s->period; k++)
        claims_equal_bits = claims_equal_bits && (s->shape[k]->traits & TRAIT_EQUAL_BITS) != 0;
    for (int h = 0; h < 2; h++)
        if (row->half[h].measured)
            TRY(check_half(s, h == 1, &row->half[h]));
    TRY(check_mean(s, row));
    for (int h = 0; h < 2; h++) {
        const struct bench_half *half = &row->half[h];
        *faults +=
            half->wrong > 0 || (claims_equal_bits && half->equal_bits == BENCH_NO) || half->deterministic == BENCH_NO;
    }
    return STATUS_OK;
}

/* ---- sizes ---- */

static struct bench_row row_for(const struct subject *s)
{
    const struct bench_half none = {.time_s = NAN, .p50_s = NAN, .p99_s = NAN, .wrong = NAN};
    struct bench_row row = {.name = text_string(&s->name),
                            .workers = job_size(s->worker->job),
                            .transport = comm_transport(s->worker->comm),
                            .bytes = bytes_of(s),
                            .count = s->count,
                            .settings = s->settings,
                            .half = {none, none},
                            .predicted_s = NAN};
    if (s->decided.length > 0)
        row.decided = text_string(&s->decided);
    row.decided_anew = strcmp(text_string(&s->decided), text_string(&s->decided_before)) != 0;
    row.has_files = spec_files_hash(s->spec, &row.files_hash);
    return row;
}

static enum status measure_size(struct subject *s, bench_row_fn *say, void *context, size_t *faults)
{
    enum status status = STATUS_OK;
    struct bench_row row = row_for(s);
    s->data.op = s->settings->op;
    TRY_TO(done, make_collectives(s));
    if (s->settings->out_of_place)
        TRY_TO(done, measure_half(s, false, &row.half[0]));
    if (s->settings->in_place)
        TRY_TO(done, measure_half(s, true, &row.half[1]));
    TRY_TO(done, gather_statistics(s, &row));
    TRY_TO(done, compare_traffic(s, &row, faults));
    TRY_TO(done, predict(s, &row));
    if (s->settings->check)
        TRY_TO(done, check_row(s, &row, faults));
    if (job_rank(s->worker->job) == 0)
        status = say(context, &row);
done:
    drop_collectives(s);
    return status;
}

/* ---- shapes ---- */

static void drop_shapes(struct subject *s)
{
    for (size_t k = 0; k < s->period; k++)
        shape_destroy(s->shape[k]);
    s->period = 0;
}

/* What brings an external's collective. Without a job nothing is looked for yet. */
static enum status find_library(struct subject *s)
{
    const struct external *external = s->spec->external;
    if (is_encoded(s->settings))
        return fail(STATUS_REFUSED, "%s: its library decides what is on the wire: leave out --wire=", external->name);
    TRY(library_possible(external, s->settings->device));
    if (library_is_mpi(external) && dtype_is_half(s->settings->dtype))
        return fail(STATUS_REFUSED, "%s: MPI has no %s: give --dtype=f32, f64, i32 or i64", external->name,
                    dtype_name(s->settings->dtype));
    if (s->worker->job != NULL)
        TRY(library_find(external, s->worker, &s->library));
    s->period = 1;
    return STATUS_OK;
}

static enum status make_shape(struct subject *s, uint64_t step, struct shape **shape)
{
    const struct shape_request request = {
        .layout = &s->worker->layout, .step = step, .count = s->count, .element_bytes = dtype_size(s->settings->dtype)};
    return spec_shape_for(s->spec, &request, shape);
}

/* For s->count elements. */
static enum status make_shapes(struct subject *s)
{
    const struct spec *spec = s->spec;
    uint64_t period = 1;
    drop_shapes(s);
    if (spec->kind == SPEC_EXTERNAL)
        return find_library(s);
    TRY(spec_period(spec, &s->worker->layout, &period));
    if (period < 1 || period > PERIOD_MOST)
        return fail(STATUS_REFUSED, "a period of %llu schedules: 1 to %d can be timed", (unsigned long long)period,
                    PERIOD_MOST);
    for (; s->period < period; s->period++)
        TRY(make_shape(s, s->period, &s->shape[s->period]));
    for (size_t k = 0; k < s->period; k++)
        TRY(wire_format_check(s->settings->wire, s->settings->dtype,
                              (s->shape[k]->traits & TRAIT_MIXING) != 0 ? REDUCE_SUM : s->settings->op, s->shape[k]));
    if (has_feedback(s->settings) && s->settings->device != NULL)
        return fail(STATUS_REFUSED,
                    "the wire format %s is encoded by the host's processor: with --device=%s take --wire=f16 or bf16",
                    s->settings->wire_name, s->settings->device);
    if (has_feedback(s->settings) && is_deterministic(spec))
        return fail(
            STATUS_REFUSED,
            "deterministic=1 is for bits that do not depend on where an element lies; with the wire format %s they "
            "do: take --wire=f16 or bf16",
            s->settings->wire_name);
    if ((s->shape[0]->traits & TRAIT_MIXING) != 0 &&
        (s->settings->dtype == DTYPE_I32 || s->settings->dtype == DTYPE_I64))
        return fail(STATUS_REFUSED, "mixing averages, which whole numbers can't: give --dtype=f32 or f64");
    return STATUS_OK;
}

/* The shapes for s->count, and what they have decided. */
static enum status renew_shapes(struct subject *s)
{
    if (s->period == 0 || spec_is_size_dependent(s->spec))
        TRY(make_shapes(s));
    text_clear(&s->decided_before);
    text_add(&s->decided_before, text_string(&s->decided));
    text_clear(&s->decided);
    if (s->library.external != NULL)
        external_describe(s->library.external, &s->decided);
    else
        (void)shape_describe(s->shape[0], &s->decided);
    TRY(text_check(&s->decided_before));
    return text_check(&s->decided);
}

enum status bench_possible(const struct spec *spec, const struct layout *layout, const struct bench_settings *settings)
{
    const struct worker nobody = {.layout = *layout};
    struct subject s = {
        .worker = &nobody, .settings = settings, .spec = spec, .count = settings->end / dtype_size(settings->dtype)};
    const enum status status = make_shapes(&s);
    drop_shapes(&s);
    return status;
}

/* ---- memory ---- */

/* Input and output, or one vector where all is in place. */
static size_t buffers_of(const struct bench_settings *settings)
{
    return settings->out_of_place ? 2 : 1;
}

enum status bench_memory(const struct bench_settings *settings, int workers, size_t scratch)
{
    const uint64_t available = host_memory_available();
    const size_t vectors = buffers_of(settings);
    size_t each, needed;
    if (!checked_multiply(vectors, settings->end, &each) || !checked_add(each, scratch, &each) ||
        !checked_multiply(each, (size_t)workers, &needed))
        needed = SIZE_MAX;
    if (available == 0 || needed <= available)
        return STATUS_OK;
    return fail(
        STATUS_REFUSED,
        "bench: vectors of %zu bytes need %zu bytes for %d worker%s on this host (%zu vector%s%s each), and %llu "
        "are available: give a smaller --end%s",
        settings->end, needed, workers, workers > 1 ? "s" : "", vectors, vectors > 1 ? "s" : "",
        scratch > 0 ? " and scratch" : "", (unsigned long long)available,
        settings->out_of_place ? ", or --in-place=only" : "");
}

/* All workers refuse if one must. */
static enum status check_memory(const struct subject *s)
{
    size_t scratch = 0;
    uint64_t all[WORKERS_MOST];
    const size_t size = dtype_size(s->settings->dtype);
    for (size_t k = 0; s->library.external == NULL && k < s->period; k++) {
        const size_t bytes = collective_scratch(s->shape[k], s->settings->end / size, size);
        scratch = bytes > scratch ? bytes : scratch;
    }
    enum status status = bench_memory(s->settings, job_local_size(s->worker->job), scratch);
    const uint64_t refuses = status < 0;
    TRY(job_allgather(s->worker->job, &refuses, sizeof refuses, all));
    for (int r = 0; r < job_size(s->worker->job) && status >= 0; r++)
        if (all[r] != 0)
            status = fail(STATUS_REFUSED, "bench: the host of rank %d has too little memory for vectors of %zu bytes",
                          r, s->settings->end);
    return status;
}

static enum status make_device_buffers(struct subject *s)
{
    struct device *device = s->worker->device;
    TRY(device->ops->event_create(device, &s->event));
    TRY(comm_device_alloc(s->worker->comm, s->bytes_most, &s->on_device[1]));
    return s->settings->out_of_place ? comm_device_alloc(s->worker->comm, s->bytes_most, &s->on_device[0]) : STATUS_OK;
}

static void drop_device_buffers(struct subject *s, bool used)
{
    struct device *device = s->worker->device;
    for (int k = 0; k < 2 && !used; k++)
        comm_device_free(s->worker->comm, s->on_device[k]);
    if (device != NULL)
        device->ops->event_destroy(s->event);
}

static enum status make_buffers(struct subject *s)
{
    void *memory = NULL;
    s->bytes_most = s->settings->end + 64;
    if (s->worker->device != NULL)
        TRY(make_device_buffers(s));
    TRY(comm_alloc(s->worker->comm, s->bytes_most, &memory));
    s->output = memory;
    if (!s->settings->out_of_place)
        return STATUS_OK;
    TRY(comm_alloc(s->worker->comm, s->bytes_most, &memory));
    s->input = memory;
    return STATUS_OK;
}

/* ---- spec ---- */

static enum status say_refused(const struct subject *s, bench_row_fn *say, void *context)
{
    char reason[1024];
    struct bench_row row = row_for(s);
    snprintf(reason, sizeof reason, "%s", status_message());
    row.refused = reason;
    return job_rank(s->worker->job) == 0 ? say(context, &row) : STATUS_OK;
}

static enum status measure_sizes(struct subject *s, bench_row_fn *say, void *context, size_t *faults)
{
    const struct bench_settings *settings = s->settings;
    for (size_t bytes = settings->begin; bytes <= settings->end; bytes *= settings->factor) {
        s->count = bytes / dtype_size(settings->dtype);
        const enum status status = renew_shapes(s);
        if (status == STATUS_REFUSED)
            TRY(say_refused(s, say, context));
        else
            TRY(status);
        if (status >= 0)
            TRY(measure_size(s, say, context, faults));
        if (bytes == 0 || bytes > SIZE_MAX / settings->factor)
            break;
    }
    return STATUS_OK;
}

/* Whether it can be done at all: for the largest vector, since memory must hold it, and without a size in the row. */
static enum status prepare(struct subject *s)
{
    s->count = s->settings->end / dtype_size(s->settings->dtype);
    enum status status = make_shapes(s);
    s->count = 0;
    TRY(status);
    TRY(check_memory(s));
    return make_buffers(s);
}

enum status bench_spec(const struct worker *worker, const struct spec *spec, const struct bench_settings *settings,
                       bench_row_fn *say, void *context, size_t *faults)
{
    struct subject s = {.worker = worker,
                        .settings = settings,
                        .spec = spec,
                        .data = {.dtype = settings->dtype,
                                 .sums = sums_of(settings),
                                 .wire = is_encoded(settings) ? settings->wire : NULL,
                                 .op = settings->op,
                                 .workers = job_size(worker->job),
                                 .rank = job_rank(worker->job)}};
    spec_canonical(spec, &s.name);
    enum status status = prepare(&s);
    if (status == STATUS_REFUSED)
        status = say_refused(&s, say, context);
    else if (status >= 0)
        status = measure_sizes(&s, say, context, faults);
    drop_device_buffers(&s, status < 0);
    if (status >= 0) { /* else they go with the comm: a neighbour may be reading them */
        comm_free(worker->comm, s.input);
        comm_free(worker->comm, s.output);
    }
    library_release(&s.library, status >= 0);
    drop_shapes(&s);
    text_release(&s.name);
    text_release(&s.decided);
    text_release(&s.decided_before);
    return status;
}
