/* bench.c - measures one spec on a job: warm-up, back-to-back calls, single calls, and a check with exact data. */
#include "experiments/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/half.h"
#include "base/memory.h"
#include "sim/sim.h"

enum {
    PERIOD_MOST = 64,    /* distinct schedules of a strategy that are measured */
    TABLE = 1021,        /* data repeat after this prime number of elements    */
    SINGLES_MOST = 4096, /* single calls: their times fit one all-gather       */
    CHUNK = 1024
};

/* One spec under measurement: the schedules of a period (most have one) and the collectives for one vector size. */
struct subject {
    const struct worker *worker;
    const struct bench_settings *settings;
    struct shape *shape[PERIOD_MOST];
    struct collective *collective[PERIOD_MOST];
    size_t period;
    bool exact;
    const char *identity; /* of the spec: what the workers compare */
    enum reduce_op op;    /* of the collectives made: the one asked for, or avg in the second check */
    size_t count;
    unsigned char *input, *output; /* bytes of the largest vector */
    size_t bytes_most;
};

/* ---- data ---- */

/* The largest whole number up to which an element type has all of them, beyond what is needed here. */
static long whole_most(enum dtype dtype)
{
    return dtype == DTYPE_F16 ? 1L << 11 : dtype == DTYPE_BF16 ? 1L << 8 : 1L << 24;
}

/* Small integers that depend on worker and index: partial sums are exact in every type and order. Where even ones are
 * too large for that, only the first workers have something to say. */
static long value(enum dtype dtype, int workers, int rank, size_t i)
{
    const size_t k = i % TABLE;
    const long room = whole_most(dtype) / workers, most = room > 20 ? 20 : room > 0 ? room : 1;
    if (rank >= whole_most(dtype))
        return 0;
    return (long)((k * 7 + (size_t)rank * 13 + k / 11) % (size_t)(2 * most + 1)) - most;
}

static long expected(enum dtype dtype, enum reduce_op op, int workers, size_t i)
{
    long result = value(dtype, workers, 0, i);
    for (int r = 1; r < workers; r++) {
        const long v = value(dtype, workers, r, i);
        if (op == REDUCE_MIN)
            result = v < result ? v : result;
        else if (op == REDUCE_MAX)
            result = v > result ? v : result;
        else
            result += v;
    }
    return result;
}

static void put(enum dtype dtype, void *data, size_t i, long v)
{
    switch (dtype) {
    case DTYPE_F32:
        ((float *)data)[i] = (float)v;
        break;
    case DTYPE_F64:
        ((double *)data)[i] = (double)v;
        break;
    case DTYPE_I32:
        ((int32_t *)data)[i] = (int32_t)v;
        break;
    case DTYPE_F16:
        ((uint16_t *)data)[i] = f16_from_f32((float)v);
        break;
    case DTYPE_BF16:
        ((uint16_t *)data)[i] = bf16_from_f32((float)v);
        break;
    default:
        ((int64_t *)data)[i] = v;
    }
}

static bool equals(enum dtype dtype, const void *data, size_t i, long total, int divisor)
{
    switch (dtype) {
    case DTYPE_F32:
        return ((const float *)data)[i] == (float)total / (float)divisor;
    case DTYPE_F64:
        return ((const double *)data)[i] == (double)total / divisor;
    case DTYPE_I32:
        return ((const int32_t *)data)[i] == (int32_t)(total / divisor);
    case DTYPE_F16: /* by value: a sum of zeros has the sign that its order gave it */
        return f16_to_f32(((const uint16_t *)data)[i]) == f16_to_f32(f16_from_f32((float)total / (float)divisor));
    case DTYPE_BF16:
        return bf16_to_f32(((const uint16_t *)data)[i]) == bf16_to_f32(bf16_from_f32((float)total / (float)divisor));
    default:
        return ((const int64_t *)data)[i] == total / divisor;
    }
}

static void fill(const struct subject *s, void *data)
{
    const int workers = job_size(s->worker->job), rank = job_rank(s->worker->job);
    long table[TABLE];
    for (size_t k = 0; k < TABLE; k++)
        table[k] = value(s->settings->dtype, workers, rank, k);
    for (size_t i = 0, k = 0; i < s->count; i++, k = k + 1 == TABLE ? 0 : k + 1)
        put(s->settings->dtype, data, i, table[k]);
}

static size_t count_wrong(const struct subject *s)
{
    const int workers = job_size(s->worker->job), divisor = s->op == REDUCE_AVG ? workers : 1;
    long table[TABLE];
    size_t wrong = 0;
    for (size_t k = 0; k < TABLE; k++)
        table[k] = expected(s->settings->dtype, s->op, workers, k);
    for (size_t i = 0, k = 0; i < s->count; i++, k = k + 1 == TABLE ? 0 : k + 1)
        wrong += !equals(s->settings->dtype, s->output, i, table[k], divisor);
    return wrong;
}

/* ---- calls ---- */

/* One period: every schedule once, one after the other. */
static enum status call(struct subject *s, bool in_place)
{
    for (size_t k = 0; k < s->period; k++) {
        TRY(collective_start(s->collective[k], in_place ? s->output : s->input, s->output));
        TRY(collective_wait(s->collective[k]));
    }
    return STATUS_OK;
}

static enum status back_to_back(struct subject *s, bool in_place, double *time_s)
{
    double mine = 0, all[WORKERS_MOST], sum = 0;
    struct job *job = s->worker->job;
    TRY(job_barrier(job));
    const double begin = clock_seconds();
    for (int i = 0; i < s->settings->iterations; i++)
        TRY(call(s, in_place));
    mine = (clock_seconds() - begin) / s->settings->iterations / (double)s->period;
    TRY(job_allgather(job, &mine, sizeof mine, all));
    for (int r = 0; r < job_size(job); r++)
        sum += all[r];
    *time_s = sum / job_size(job);
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
    half->p50_s = times[n / 2];
    half->p99_s = times[(n * 99 + 99) / 100 - 1];
done:
    free(times_memory);
    free(all_memory);
    return status;
}

static enum status check(struct subject *s, bool in_place, struct bench_half *half)
{
    uint64_t mine = 0, all[WORKERS_MOST], sum = 0;
    fill(s, s->input);
    if (in_place)
        fill(s, s->output);
    else
        memset(s->output, 0x7f, s->count * dtype_size(s->settings->dtype));
    TRY(call(s, in_place));
    mine = count_wrong(s);
    TRY(job_allgather(s->worker->job, &mine, sizeof mine, all));
    for (int r = 0; r < job_size(s->worker->job); r++)
        sum += all[r];
    half->wrong = (isfinite(half->wrong) ? half->wrong : 0) + (double)sum;
    return STATUS_OK;
}

static enum status measure_half(struct subject *s, bool in_place, struct bench_half *half)
{
    half->measured = true;
    fill(s, s->input);
    fill(s, s->output);
    for (int i = 0; i < s->settings->warmup; i++)
        TRY(call(s, in_place));
    TRY(back_to_back(s, in_place, &half->time_s));
    TRY(single_calls(s, in_place, half));
    if (s->settings->check && s->exact)
        TRY(check(s, in_place, half));
    return STATUS_OK;
}

/* ----------------------------------------------------------------------------------------------------- traffic,
 * prediction */

/* Of the latest period: counted in the transport, and by the schedules; maxima over the workers, for one call. */
static enum status compare_traffic(const struct subject *s, struct bench_row *row, size_t *faults)
{
    uint64_t mine[4] = {0}, all[4 * WORKERS_MOST];
    struct job *job = s->worker->job;
    bool differs = false;
    for (size_t k = 0; k < s->period; k++) {
        struct collective_traffic traffic;
        size_t bytes = 0, messages = 0;
        collective_traffic(s->collective[k], &traffic);
        TRY(shape_traffic(s->shape[k], job_rank(job), s->count, dtype_size(s->settings->dtype), &bytes, &messages));
        mine[0] += traffic.bytes_sent;
        mine[1] += traffic.messages_sent;
        mine[2] += bytes;
        mine[3] += messages;
    }
    TRY(job_allgather(job, mine, sizeof mine, all));
    for (int r = 0; r < job_size(job); r++) {
        const uint64_t *one = all + 4 * r;
        differs = differs || one[0] != one[2] || one[1] != one[3];
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
    if (s->settings->platform == NULL)
        return STATUS_OK;
    const struct sim_request request = {.platform = s->settings->platform,
                                        .layout = &s->worker->layout,
                                        .segment = comm_segment(s->worker->comm),
                                        .window = comm_window(s->worker->comm),
                                        .overlap_reduction = true};
    double total_s = 0;
    for (size_t k = 0; k < s->period; k++) {
        struct sim_result result;
        TRY(sim_schedule(&request, s->shape[k], s->count, dtype_size(s->settings->dtype), NULL, NULL, &result));
        total_s += result.time_s;
    }
    row->predicted_s = total_s / (double)s->period;
    return STATUS_OK;
}

/* ---- sizes ---- */

static enum status make_collectives(struct subject *s)
{
    for (size_t k = 0; k < s->period; k++) {
        const bool mixing = (s->shape[k]->algorithm->traits & TRAIT_MIXING) != 0;
        const struct collective_request request = {.team = comm_world(s->worker->comm),
                                                   .shape = s->shape[k],
                                                   .name = s->identity,
                                                   .count = s->count,
                                                   .dtype = s->settings->dtype,
                                                   .op = mixing ? REDUCE_SUM : s->op};
        TRY(collective_create(&request, &s->collective[k]));
    }
    return STATUS_OK;
}

static void drop_collectives(struct subject *s)
{
    for (size_t k = 0; k < s->period; k++) {
        collective_destroy(s->collective[k]);
        s->collective[k] = NULL;
    }
}

static struct bench_row row_for(const struct subject *s, const char *name)
{
    const struct bench_half none = {.time_s = NAN, .p50_s = NAN, .p99_s = NAN, .wrong = NAN};
    return (struct bench_row){.name = name,
                              .workers = job_size(s->worker->job),
                              .transport = comm_transport(s->worker->comm),
                              .bytes = s->count * dtype_size(s->settings->dtype),
                              .count = s->count,
                              .settings = s->settings,
                              .half = {none, none},
                              .predicted_s = NAN};
}

/* A sum does not show where a schedule divides for the mean: after it, the mean is checked as well. */
static enum status check_mean(struct subject *s, struct bench_row *row)
{
    if (!s->settings->check || !s->exact || s->settings->op != REDUCE_SUM)
        return STATUS_OK;
    drop_collectives(s);
    s->op = REDUCE_AVG;
    TRY(make_collectives(s));
    for (int h = 0; h < 2; h++)
        if (row->half[h].measured)
            TRY(check(s, h == 1, &row->half[h]));
    return STATUS_OK;
}

static enum status measure_size(struct subject *s, const char *name, bench_row_fn *say, void *context, size_t *faults)
{
    enum status status = STATUS_OK;
    struct bench_row row = row_for(s, name);
    s->op = s->settings->op;
    TRY_TO(done, make_collectives(s));
    if (s->settings->out_of_place)
        TRY_TO(done, measure_half(s, false, &row.half[0]));
    if (s->settings->in_place)
        TRY_TO(done, measure_half(s, true, &row.half[1]));
    TRY_TO(done, compare_traffic(s, &row, faults));
    TRY_TO(done, predict(s, &row));
    TRY_TO(done, check_mean(s, &row));
    for (int h = 0; h < 2; h++)
        *faults += row.half[h].wrong > 0;
    if (job_rank(s->worker->job) == 0)
        status = say(context, &row);
done:
    drop_collectives(s);
    return status;
}

static enum status measure_sizes(struct subject *s, const char *name, bench_row_fn *say, void *context, size_t *faults)
{
    const struct bench_settings *settings = s->settings;
    const size_t size = dtype_size(settings->dtype);
    for (size_t bytes = settings->begin; bytes <= settings->end; bytes *= settings->factor) {
        s->count = bytes / size;
        TRY(measure_size(s, name, say, context, faults));
        if (bytes == 0 || bytes > SIZE_MAX / settings->factor)
            break;
    }
    return STATUS_OK;
}

/* ---- spec ---- */

static enum status make_shapes(struct subject *s, const struct spec *spec)
{
    uint64_t period = 1;
    if (spec->kind == SPEC_EXTERNAL)
        return fail(STATUS_REFUSED, "%s: an external, not built into this program: take a schedule, such as ring",
                    spec->external->name);
    TRY(spec_period(spec, &s->worker->layout, &period));
    if (period < 1 || period > PERIOD_MOST)
        return fail(STATUS_REFUSED, "a period of %llu schedules: 1 to %d can be timed", (unsigned long long)period,
                    PERIOD_MOST);
    for (s->period = 0; s->period < period; s->period++)
        TRY(spec_shape(spec, &s->worker->layout, s->period, 0, &s->shape[s->period]));
    if (s->shape[0]->algorithm->traits & TRAIT_MIXING && s->settings->dtype != DTYPE_F32 &&
        s->settings->dtype != DTYPE_F64)
        return fail(STATUS_REFUSED,
                    "mixing averages, which whole numbers can't, and halves only coarsely: give --dtype=f32 or f64");
    return STATUS_OK;
}

static void drop_shapes(struct subject *s)
{
    for (size_t k = 0; k < s->period; k++)
        shape_destroy(s->shape[k]);
}

enum status bench_possible(const struct spec *spec, const struct layout *layout, const struct bench_settings *settings)
{
    const struct worker nobody = {.layout = *layout};
    struct subject s = {.worker = &nobody, .settings = settings};
    const enum status status = make_shapes(&s, spec);
    drop_shapes(&s);
    return status;
}

static enum status say_refused(const struct subject *s, const char *name, bench_row_fn *say, void *context)
{
    char reason[512];
    struct bench_row row = row_for(s, name);
    snprintf(reason, sizeof reason, "%s", status_message());
    row.refused = reason;
    return job_rank(s->worker->job) == 0 ? say(context, &row) : STATUS_OK;
}

enum status bench_spec(const struct worker *worker, const struct spec *spec, const struct bench_settings *settings,
                       bench_row_fn *say, void *context, size_t *faults)
{
    void *memory = NULL;
    struct text name = {0}, identity = {0};
    struct subject s = {
        .worker = worker, .settings = settings, .exact = spec_is_exact(spec), .bytes_most = settings->end + 64};
    spec_canonical(spec, &name);
    spec_identity(spec, &identity);
    s.identity = text_string(&identity);
    enum status status = make_shapes(&s, spec);
    if (status == STATUS_REFUSED) {
        status = say_refused(&s, text_string(&name), say, context);
        goto done;
    }
    TRY_TO(done, status);
    TRY_TO(done, memory_pages(&memory, s.bytes_most));
    s.input = memory;
    TRY_TO(done, memory_pages(&memory, s.bytes_most));
    s.output = memory;
    status = measure_sizes(&s, text_string(&name), say, context, faults);
done:
    memory_pages_release(s.input, s.bytes_most);
    memory_pages_release(s.output, s.bytes_most);
    drop_shapes(&s);
    text_release(&name);
    text_release(&identity);
    return status;
}
