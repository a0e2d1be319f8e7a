/* exchange.c - buckets, and the collectives that a strategy's steps start. */
#include "nn/exchange.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"

enum {
    PERIOD_KEPT = 64, /* schedules of longer periods are made anew in each step */
    RUNS_MOST = 2     /* the exchange of the last step, and this step's that begins during backward */
};

/* ---- buckets ---- */

enum status bucket_cut(const struct model *model, size_t bytes, struct bucket **buckets, size_t *count)
{
    void *memory = NULL;
    *buckets = NULL;
    *count = 0;
    TRY(memory_zeroed(&memory, (size_t)model->tensors, sizeof(struct bucket)));
    struct bucket *cut = memory;
    size_t cuts = 0;
    const size_t most = bytes == BUCKET_TENSOR ? 0 : bytes / sizeof(float);
    for (int t = model->tensors - 1; t >= 0; t--) {
        const struct tensor *tensor = &model->tensor[t];
        bool joins =
            cuts > 0 && (bytes == BUCKET_WHOLE || cut[cuts - 1].count + tensor->count <= bucket_room(cuts - 1, most));
        if (!joins)
            cut[cuts++].count = 0;
        cut[cuts - 1].offset = tensor->offset;
        cut[cuts - 1].count += tensor->count;
    }
    *buckets = cut;
    *count = cuts;
    return STATUS_OK;
}

/* ---- when a device is done ---- */

#define LOOK_EVERY_NS 20000U

/* Times at which the host has seen that the device had done what it was given; 0: not yet. */
struct device_clock {
    struct device *device;                 /* NULL: none */
    struct device_event *ready, *computed; /* all that was given before a library's start, before an exchange's wait */
    uint64_t ready_ns, idle_ns;
};

static enum status device_clock_open(struct device *device, struct device_clock *clock)
{
    *clock = (struct device_clock){.device = device};
    if (device == NULL)
        return STATUS_OK;
    TRY(device->ops->event_create(device, &clock->ready));
    return device->ops->event_create(device, &clock->computed);
}

static void device_clock_close(struct device_clock *clock)
{
    if (clock->device == NULL)
        return;
    clock->device->ops->event_destroy(clock->ready);
    clock->device->ops->event_destroy(clock->computed);
}

static enum status device_clock_start(struct device_clock *clock)
{
    const struct device_ops *ops = clock->device->ops;
    clock->ready_ns = 0;
    return ops->record(ops->compute(clock->device), clock->ready);
}

static enum status device_clock_wait(struct device_clock *clock)
{
    const struct device_ops *ops = clock->device->ops;
    clock->idle_ns = 0;
    return ops->record(ops->compute(clock->device), clock->computed);
}

static enum status look(const struct device_clock *clock, struct device_event *event, uint64_t *seen_ns)
{
    if (*seen_ns > 0)
        return STATUS_OK;
    const enum status status = clock->device->ops->query(event);
    if (status == STATUS_OK)
        *seen_ns = clock_ns();
    return status < 0 ? status : STATUS_OK;
}

static enum status device_clock_look(struct device_clock *clock)
{
    TRY(look(clock, clock->ready, &clock->ready_ns));
    return look(clock, clock->computed, &clock->idle_ns);
}

/* ---- collectives ---- */

/* The schedule of one step for one bucket, ready to run. */
struct line {
    struct shape *shape;
    struct collective *collective;
    size_t bytes; /* that this worker sends, by the schedule; 0 where the wire format does not tell */
    uint64_t step, started_ns;
    struct device_event *ready; /* on a device: its slice has been computed, */
    uint64_t ready_ns;          /* which the host has seen by then; 0: not yet */
};

/* The exchange of one step, bucket by bucket: those before `waited` are over, those before `started` under way. */
struct run {
    uint64_t step;
    float *vector;
    struct line *lines;
    size_t started, waited;
};

/* Sums of one size. */
struct sums {
    size_t count;
    struct line line;
};

struct exchanges {
    struct comm *comm;
    struct device *device;            /* NULL: vectors lie in host memory */
    struct external_library *library; /* computes the means; NULL: schedules do */
    bool emulated;
    struct trace *trace;
    bool alone;  /* one worker on a device, which need not wait to learn that there is nothing to exchange */
    bool drives; /* the comm has no thread of its own */
    const struct spec *spec;
    const struct layout *layout;
    char *name;
    enum reduce_op op;
    struct bucket *bucket;
    size_t buckets;
    struct line *line; /* line[slot * buckets + b], slot = step % slots */
    uint64_t period, slots;
    uint64_t made_for; /* long periods: the step that slot 0 holds, UINT64_MAX = none */

    const struct wire_format *wire; /* NULL: elements travel as they are */
    struct codec_statistics encoded;

    struct run run[RUNS_MOST]; /* the oldest first */
    size_t runs;
    bool watched;           /* the newest begins during backward */
    size_t *cut;            /* where each bucket but the last begins */
    bool settled;           /* the oldest of all was waited for before its time, ... */
    size_t settled_bytes;   /* ... and has sent this, uncounted so far */
    struct team *sums_team; /* NULL: no sums are wanted */
    struct sums *sums;      /* of each size that was wanted so far */
    size_t sums_made, sums_capacity;
    bool lost; /* a mean has failed: its vector may still be written */
    struct device_clock clock;
    struct exchange_tally tally;
    uint64_t finished_ns; /* of the latest line that was waited for */
    uint64_t counted_ns;  /* flights are counted up to here */
};

/* A mean that is not the same to the last bit on all workers would let their parameters drift apart. */
static enum status check_bits(const struct exchanges *exchanges, const struct shape *shape)
{
    if (shape->workers == 1 || !spec_is_exact(exchanges->spec) || (shape->traits & TRAIT_EQUAL_BITS) != 0)
        return STATUS_OK;
    return fail(STATUS_REFUSED,
                "%s: it does not promise %d workers equal bits, so their parameters might drift apart: take one with "
                "equal-bits (chorale list); one of your own that chorale verify finds to have them declares "
                "TRAIT_EQUAL_BITS",
                exchanges->name, shape->workers);
}

static enum status make_shape(const struct exchanges *exchanges, uint64_t step, size_t count, struct shape **shape)
{
    TRY(spec_shape(exchanges->spec, exchanges->layout, step, count, shape));
    enum status status = check_bits(exchanges, *shape);
    if (status < 0)
        shape_destroy(*shape);
    return status;
}

static void release_line(const struct exchanges *exchanges, struct line *line)
{
    collective_destroy(line->collective);
    shape_destroy(line->shape);
    if (exchanges->device != NULL && line->ready != NULL)
        exchanges->device->ops->event_destroy(line->ready);
    *line = (struct line){.shape = NULL};
}

/* Takes the shape over, also on failure. */
static enum status fill_line(const struct exchanges *exchanges, struct shape *shape, const char *name, size_t count,
                             enum reduce_op op, const struct wire_format *wire, struct line *line)
{
    enum status status = STATUS_OK;
    const size_t size = wire != NULL ? wire->codec->element_bytes : sizeof(float);
    struct collective_request request = {.team = comm_world(exchanges->comm),
                                         .shape = shape,
                                         .name = name,
                                         .count = count,
                                         .dtype = DTYPE_F32,
                                         .op = op,
                                         .wire = wire,
                                         .on_device = exchanges->device != NULL};
    *line = (struct line){.shape = shape};
    size_t messages = 0;
    TRY_TO(failed, collective_create(&request, &line->collective));
    TRY_TO(failed, collective_due(line->collective, size, &line->bytes, &messages));
    return STATUS_OK;
failed:
    release_line(exchanges, line);
    return status;
}

static enum status make_step(struct exchanges *exchanges, uint64_t step, struct line *lines)
{
    for (size_t b = 0; b < exchanges->buckets; b++) {
        struct shape *shape = NULL;
        size_t count = exchanges->bucket[b].count;
        release_line(exchanges, &lines[b]);
        TRY(make_shape(exchanges, step, count, &shape));
        struct text name = {0};
        spec_call_name(exchanges->spec, shape, &name);
        enum status status =
            fill_line(exchanges, shape, text_string(&name), count, exchanges->op, exchanges->wire, &lines[b]);
        text_release(&name);
        TRY(status);
        if (exchanges->device != NULL)
            TRY(exchanges->device->ops->event_create(exchanges->device, &lines[b].ready));
    }
    return STATUS_OK;
}

/* The lines of `step`. */
static enum status lines_of(struct exchanges *exchanges, uint64_t step, struct line **lines)
{
    *lines = exchanges->line + (step % exchanges->slots) * exchanges->buckets;
    if (exchanges->slots == exchanges->period || exchanges->made_for == step)
        return STATUS_OK;
    TRY(make_step(exchanges, step, *lines));
    exchanges->made_for = step;
    return STATUS_OK;
}

static enum status find_period(struct exchanges *exchanges)
{
    if (exchanges->library != NULL) {
        exchanges->period = exchanges->slots = 1;
        return STATUS_OK;
    }
    TRY(spec_period(exchanges->spec, exchanges->layout, &exchanges->period));
    exchanges->slots = exchanges->period <= PERIOD_KEPT ? exchanges->period : 1;
    return STATUS_OK;
}

/* Gradients are averaged, parameters are mixed by the weights of their schedules. */
static enum status find_op(struct exchanges *exchanges)
{
    const struct spec *spec = exchanges->spec;
    struct step_plan plan = {.exchange = {.object = EXCHANGE_GRADIENT}};
    if (spec->kind == SPEC_STRATEGY)
        TRY(spec->strategy->plan(&spec->options, 0, &plan));
    exchanges->op = plan.exchange.object == EXCHANGE_GRADIENT ? REDUCE_AVG : REDUCE_SUM;
    return STATUS_OK;
}

static enum status check_wire(const struct exchanges *exchanges)
{
    if (exchanges->library != NULL && exchanges->wire != NULL)
        return fail(STATUS_REFUSED, "%s: its library decides what is on the wire: leave out --wire=", exchanges->name);
    if (exchanges->wire == NULL || wire_format_by_element(exchanges->wire))
        return STATUS_OK;
    const struct codec *codec = exchanges->wire->codec;
    if (exchanges->op != REDUCE_AVG && (codec->traits & CODEC_COARSE) != 0)
        return fail(STATUS_REFUSED,
                    "%s exchanges parameters, of which the wire format %s leaves too little to go on with: take "
                    "--wire=f16, bf16 or int8",
                    exchanges->name, codec->name);
    if (exchanges->slots != exchanges->period)
        return fail(STATUS_REFUSED,
                    "%s has a period of %llu schedules, more than are kept: nothing would keep what the wire format %s "
                    "leaves out: take --wire=f16 or bf16",
                    exchanges->name, (unsigned long long)exchanges->period, codec->name);
    return STATUS_OK;
}

/* All workers again: what is started on a team must be started in one order. */
static enum status open_sums(struct exchanges *exchanges)
{
    const int workers = comm_size(exchanges->comm);
    void *memory = NULL;
    TRY(memory_zeroed(&memory, (size_t)workers, sizeof(int)));
    int *ranks = memory;
    for (int r = 0; r < workers; r++)
        ranks[r] = r;
    const enum status status = team_create(exchanges->comm, ranks, workers, &exchanges->sums_team);
    free(memory);
    return status;
}

static enum status list_cuts(struct exchanges *exchanges)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, exchanges->buckets, sizeof exchanges->cut[0]));
    exchanges->cut = memory;
    for (size_t b = 0; b < exchanges->buckets; b++)
        exchanges->cut[b] = exchanges->bucket[b].offset;
    return STATUS_OK;
}

enum status exchanges_create(const struct exchange_request *request, struct exchanges **out)
{
    *out = NULL;
    void *memory = NULL, *lines = NULL;
    enum status status = STATUS_OK;
    struct text name = {0};
    TRY(memory_zeroed(&memory, 1, sizeof(struct exchanges)));
    struct exchanges *exchanges = memory;
    exchanges->comm = request->comm;
    exchanges->device = request->device;
    exchanges->library = request->library;
    exchanges->emulated = request->emulated;
    exchanges->trace = request->trace;
    exchanges->alone = request->device != NULL && comm_size(request->comm) == 1;
    exchanges->drives = request->library == NULL && !comm_has_thread(request->comm);
    exchanges->spec = request->spec;
    exchanges->layout = request->layout;
    exchanges->made_for = UINT64_MAX;
    exchanges->wire = wire_format_changes(request->wire, DTYPE_F32) ? request->wire : NULL;
    spec_canonical(request->spec, &name);
    TRY_TO(done, text_check(&name));
    TRY_TO(done, memory_string(&exchanges->name, text_string(&name)));
    TRY_TO(done, device_clock_open(request->device, &exchanges->clock));
    TRY_TO(done, find_op(exchanges));
    TRY_TO(done, find_period(exchanges));
    TRY_TO(done, check_wire(exchanges));
    TRY_TO(done, bucket_cut(request->model, request->bucket, &exchanges->bucket, &exchanges->buckets));
    TRY_TO(done, list_cuts(exchanges));
    if (request->sums && comm_size(request->comm) > 1)
        TRY_TO(done, open_sums(exchanges));
    TRY_TO(done, memory_zeroed(&lines, (size_t)exchanges->slots * exchanges->buckets, sizeof(struct line)));
    exchanges->line = lines;
    if (exchanges->slots == exchanges->period && exchanges->library == NULL) {
        for (uint64_t step = 0; step < exchanges->period; step++)
            TRY_TO(done, make_step(exchanges, step, exchanges->line + step * exchanges->buckets));
    }
    *out = exchanges;
done:
    text_release(&name);
    if (status < 0)
        exchanges_destroy(exchanges);
    return status;
}

void exchanges_destroy(struct exchanges *exchanges)
{
    if (exchanges == NULL)
        return;
    for (size_t k = 0; exchanges->line != NULL && k < (size_t)exchanges->slots * exchanges->buckets; k++)
        release_line(exchanges, &exchanges->line[k]);
    for (size_t k = 0; k < exchanges->sums_made; k++)
        release_line(exchanges, &exchanges->sums[k].line);
    free(exchanges->sums);
    team_destroy(exchanges->sums_team);
    device_clock_close(&exchanges->clock);
    free(exchanges->line);
    free(exchanges->bucket);
    free(exchanges->cut);
    free(exchanges->name);
    free(exchanges);
}

/* ---- what was decided ---- */

/* Of bucket b in the first step; NULL: nothing. Caller frees. */
static char *decision_of(const struct exchanges *exchanges, size_t b)
{
    struct text text = {0};
    const struct shape *shape = exchanges->line[b].shape;
    if (shape != NULL && shape_describe(shape, &text) && !text.failed)
        return text.data;
    text_release(&text);
    return NULL;
}

/* All buckets from `first` on that share its decision, unless one before does. */
static void add_decision(const struct exchanges *exchanges, size_t first, struct text *text)
{
    char *decision = decision_of(exchanges, first);
    size_t count = 0, least = SIZE_MAX, most = 0;
    for (size_t b = 0; decision != NULL && b < exchanges->buckets; b++) {
        char *other = decision_of(exchanges, b);
        const bool same = other != NULL && strcmp(decision, other) == 0;
        const size_t bytes = exchanges->bucket[b].count * sizeof(float);
        free(other);
        if (!same)
            continue;
        if (b < first)
            break;
        count++;
        least = bytes < least ? bytes : least;
        most = bytes > most ? bytes : most;
    }
    if (count == 1)
        text_addf(text, "%s%s: %zu B", text->length > 0 ? "; " : "", decision, most);
    else if (count > 1)
        text_addf(text, "%s%s: %zu buckets of %zu to %zu B", text->length > 0 ? "; " : "", decision, count, least,
                  most);
    free(decision);
}

void exchanges_describe(const struct exchanges *exchanges, struct text *text)
{
    if (exchanges->library != NULL)
        external_describe(exchanges->library, text);
    for (size_t b = 0; b < exchanges->buckets; b++)
        add_decision(exchanges, b, text);
}

/* ---- an exchange ---- */

static enum status call_library(const struct exchanges *exchanges, float *vector)
{
    for (size_t b = 0; b < exchanges->buckets; b++) {
        float *slice = vector + exchanges->bucket[b].offset;
        TRY(external_allreduce(exchanges->library, slice, slice, exchanges->bucket[b].count, DTYPE_F32, exchanges->op));
    }
    return STATUS_OK;
}

static enum status open_run(struct exchanges *exchanges, uint64_t step, float *vector)
{
    struct line *lines = exchanges->line;
    if (exchanges->runs == RUNS_MOST || (exchanges->runs > 0 && exchanges->slots != exchanges->period))
        return fail(STATUS_INTERNAL, "exchange of step %llu: another one is under way", (unsigned long long)step);
    if (exchanges->library == NULL)
        TRY(lines_of(exchanges, step, &lines));
    exchanges->run[exchanges->runs++] = (struct run){.step = step, .vector = vector, .lines = lines};
    return STATUS_OK;
}

static struct run *newest_run(struct exchanges *exchanges)
{
    return &exchanges->run[exchanges->runs - 1];
}

static enum status start_bucket(struct exchanges *exchanges, struct run *run)
{
    struct line *line = &run->lines[run->started];
    float *slice = run->vector + exchanges->bucket[run->started].offset;
    if (exchanges->device != NULL) {
        const struct device_ops *ops = exchanges->device->ops;
        line->ready_ns = 0;
        TRY(ops->record(ops->compute(exchanges->device), line->ready));
    }
    line->step = run->step;
    line->started_ns = clock_ns();
    TRY(collective_start(line->collective, slice, slice));
    run->started++;
    exchanges->tally.bytes += line->bytes;
    return STATUS_OK;
}

/* Flights come in the order of their starts: what is past `counted_ns` is new. */
static void count_flight(struct exchanges *exchanges, uint64_t from_ns, uint64_t to_ns, uint64_t *counted_ns)
{
    if (from_ns < *counted_ns)
        from_ns = *counted_ns;
    if (to_ns <= from_ns)
        return;
    exchanges->tally.flight_ns += to_ns - from_ns;
    *counted_ns = to_ns;
}

/* On a device a vector that is still being computed is not in flight. */
static uint64_t flight_start(const struct exchanges *exchanges, const struct line *line)
{
    if (exchanges->device == NULL)
        return line->started_ns;
    return line->ready_ns > 0 ? line->ready_ns : UINT64_MAX;
}

static void trace_flight(const struct exchanges *exchanges, const struct line *line, uint64_t finished_ns)
{
    const size_t bucket = (size_t)(line - exchanges->line) % exchanges->buckets;
    const uint64_t from_ns = flight_start(exchanges, line);
    if (from_ns < finished_ns)
        trace_add(exchanges->trace, "in flight", TRACE_BUCKETS + bucket, line->step, from_ns, finished_ns);
}

static enum status wait_line(struct exchanges *exchanges, struct line *line)
{
    struct collective_traffic traffic = {0};
    TRY(collective_wait(line->collective));
    collective_traffic(line->collective, &traffic);
    codec_statistics_add(&exchanges->encoded, &traffic.wire);
    if (exchanges->wire != NULL && exchanges->wire->codec->element_bytes == 0)
        exchanges->tally.bytes += traffic.bytes_sent; /* known only now */
    else if (traffic.bytes_sent != line->bytes)
        return fail(STATUS_INTERNAL, "%s: %zu bytes sent, the schedule tells of %zu: a bug of the executor",
                    exchanges->name, traffic.bytes_sent, line->bytes);
    count_flight(exchanges, flight_start(exchanges, line), traffic.finished_ns, &exchanges->counted_ns);
    trace_flight(exchanges, line, traffic.finished_ns);
    if (traffic.finished_ns > exchanges->finished_ns)
        exchanges->finished_ns = traffic.finished_ns;
    return STATUS_OK;
}

/* Every bucket of the oldest exchange that is done, in order. */
static enum status take_done(struct exchanges *exchanges, struct run *run)
{
    for (; run->waited < run->started; run->waited++) {
        struct line *line = &run->lines[run->waited];
        const enum status status = collective_test(line->collective);
        if (status != STATUS_OK)
            return status < 0 ? status : STATUS_OK;
        TRY(wait_line(exchanges, line));
    }
    return STATUS_OK;
}

/* The vector is complete from `offset` on. A bucket whose last exchange is still under way waits for it, and with it those
 * after it: all workers start buckets in one order. */
static enum status start_ready(struct exchanges *exchanges, size_t offset, size_t end)
{
    struct run *run = newest_run(exchanges), *older = exchanges->runs > 1 ? &exchanges->run[0] : NULL;
    while (run->started < end && exchanges->bucket[run->started].offset >= offset) {
        if (older != NULL)
            TRY(take_done(exchanges, older));
        if (older != NULL && older->waited <= run->started)
            return STATUS_OK;
        TRY(start_bucket(exchanges, run));
    }
    return STATUS_OK;
}

/* The last bucket begins when the step's own thread comes to start(): until then something may be put into it. */
static enum status gradients_ready(void *context, size_t offset)
{
    struct exchanges *exchanges = context;
    const uint64_t before = clock_ns();
    if (exchanges->watched)
        TRY(start_ready(exchanges, offset, exchanges->buckets - 1));
    if (exchanges->drives)
        TRY(comm_drive(exchanges->comm));
    if (exchanges->device != NULL || exchanges->emulated)
        return STATUS_OK;
    const uint64_t ns = clock_ns() - before;
    exchanges->tally.blocked_ns += ns;
    exchanges->tally.inside_ns += ns;
    return STATUS_OK;
}

enum status exchange_can_overlap(const struct spec *spec)
{
    struct step_plan plan = {.exchange = {.object = EXCHANGE_GRADIENT}};
    if (spec->kind == SPEC_EXTERNAL)
        return fail(STATUS_REFUSED,
                    "%s: its library exchanges in the thread or queue that computes: nothing would overlap: take "
                    "--overlap=none",
                    spec->external->name);
    if (spec->kind == SPEC_STRATEGY)
        TRY(spec->strategy->plan(&spec->options, 0, &plan));
    if (plan.exchange.object == EXCHANGE_GRADIENT && plan.exchange.start == START_AFTER_BACKWARD)
        return STATUS_OK;
    return fail(STATUS_REFUSED, "%s exchanges after the update, so nothing can overlap backward: take --overlap=none",
                spec->strategy->name);
}

enum status exchanges_watch(struct exchanges *exchanges, uint64_t step, float *vector, struct gradient_watch *watch)
{
    *watch = (struct gradient_watch){.cuts = 0};
    exchanges->watched = vector != NULL && !exchanges->alone;
    if (exchanges->watched)
        TRY(open_run(exchanges, step, vector));
    if (exchanges->watched || (exchanges->runs > 0 && exchanges->drives))
        *watch = (struct gradient_watch){
            .context = exchanges, .ready = gradients_ready, .cut = exchanges->cut, .cuts = exchanges->buckets - 1};
    return STATUS_OK;
}

static enum status start_rest(struct exchanges *exchanges, uint64_t step, float *vector)
{
    if (!exchanges->watched)
        TRY(open_run(exchanges, step, vector));
    exchanges->watched = false;
    if (exchanges->library != NULL)
        return call_library(exchanges, vector);
    TRY(start_ready(exchanges, 0, exchanges->buckets));
    if (newest_run(exchanges)->started < exchanges->buckets)
        return fail(STATUS_INTERNAL, "exchange of step %llu: another one is under way", (unsigned long long)step);
    return STATUS_OK;
}

static enum status exchange_start(void *context, uint64_t step, float *vector)
{
    struct exchanges *exchanges = context;
    if (exchanges->alone)
        return STATUS_OK;
    uint64_t before = clock_ns();
    if (exchanges->device != NULL && exchanges->library != NULL)
        TRY(device_clock_start(&exchanges->clock));
    enum status status = start_rest(exchanges, step, vector);
    if (exchanges->device == NULL) {
        const uint64_t now = clock_ns();
        exchanges->tally.blocked_ns += now - before;
        trace_add(exchanges->trace, "start", TRACE_STEPS, step, before, now);
    }
    if (exchanges->device == NULL && exchanges->library != NULL)
        exchanges->tally.flight_ns += clock_ns() - before;
    return status;
}

static void close_run(struct exchanges *exchanges)
{
    exchanges->run[0] = exchanges->run[1];
    exchanges->runs--;
}

/* STATUS_AGAIN: the next one is not done, and is not waited for. */
static enum status take_bucket(struct exchanges *exchanges, const struct run *run, bool waits)
{
    struct line *line = &run->lines[run->waited];
    if (!waits) {
        const enum status done = run->waited == run->started ? STATUS_AGAIN : collective_test(line->collective);
        if (done != STATUS_OK)
            return done;
    }
    return wait_line(exchanges, line);
}

/* The next bucket of the oldest exchange. */
static enum status exchange_part(void *context, bool waits, struct bucket *part)
{
    struct exchanges *exchanges = context;
    struct run *run = &exchanges->run[0];
    *part = (struct bucket){.count = 0};
    if (exchanges->runs == 0)
        return fail(STATUS_INTERNAL, "exchange: none is under way");
    if (run->waited == exchanges->buckets) {
        close_run(exchanges);
        return STATUS_OK;
    }
    const uint64_t before = clock_ns();
    const enum status status = take_bucket(exchanges, run, waits);
    const uint64_t now = clock_ns();
    exchanges->tally.blocked_ns += now - before;
    if (waits)
        trace_add(exchanges->trace, "wait", TRACE_STEPS, run->step, before, now);
    else
        exchanges->tally.inside_ns += now - before;
    if (status == STATUS_OK)
        *part = exchanges->bucket[run->waited++];
    return status;
}

static enum status wait_lines(struct exchanges *exchanges)
{
    struct run *run = &exchanges->run[0];
    for (; run->waited < run->started; run->waited++)
        TRY(wait_line(exchanges, &run->lines[run->waited]));
    close_run(exchanges);
    return STATUS_OK;
}

/* Which slices the device has computed by now. */
static enum status look_at_lines(struct exchanges *exchanges)
{
    for (size_t r = 0; r < exchanges->runs; r++) {
        const struct run *run = &exchanges->run[r];
        for (size_t b = run->waited; b < run->started; b++)
            TRY(look(&exchanges->clock, run->lines[b].ready, &run->lines[b].ready_ns));
    }
    return STATUS_OK;
}

/* STATUS_AGAIN: not all of the oldest exchange are done. */
static enum status test_lines(const struct exchanges *exchanges)
{
    const struct run *run = &exchanges->run[0];
    for (size_t b = run->waited; b < run->started; b++) {
        const enum status status = collective_test(run->lines[b].collective);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* Until the exchange is done, or the device: from then on it has nothing to do. The comm's thread drives the exchange
 * meanwhile. */
static enum status wait_device(struct exchanges *exchanges)
{
    struct device_clock *clock = &exchanges->clock;
    TRY(device_clock_wait(clock));
    for (;;) {
        TRY(look_at_lines(exchanges));
        TRY(look(clock, clock->computed, &clock->idle_ns));
        if (clock->idle_ns > 0)
            return STATUS_OK;
        const enum status status = test_lines(exchanges);
        if (status < 0)
            return status;
        if (status != STATUS_AGAIN) {
            TRY(look_at_lines(exchanges));
            return look(clock, clock->computed, &clock->idle_ns);
        }
        clock_sleep_ns(LOOK_EVERY_NS);
    }
}

static enum status wait_on_device(struct exchanges *exchanges)
{
    TRY(wait_device(exchanges));
    TRY(wait_lines(exchanges));
    const uint64_t idle_ns = exchanges->clock.idle_ns;
    if (idle_ns > 0 && exchanges->finished_ns > idle_ns)
        exchanges->tally.blocked_ns += exchanges->finished_ns - idle_ns;
    return STATUS_OK;
}

/* A library's work stands in the compute queue: all of its time is exposed. */
static enum status wait_library(struct exchanges *exchanges)
{
    struct device_clock *clock = &exchanges->clock;
    close_run(exchanges);
    if (exchanges->device == NULL)
        return STATUS_OK;
    TRY(external_wait(exchanges->library, clock->ready));
    TRY(device_clock_look(clock));
    TRY(device_clock_wait(clock));
    TRY(external_wait(exchanges->library, clock->computed));
    TRY(device_clock_look(clock));
    exchanges->tally.blocked_ns += clock->idle_ns - clock->ready_ns;
    count_flight(exchanges, clock->ready_ns, clock->idle_ns, &exchanges->counted_ns);
    return STATUS_OK;
}

static enum status wait_for_running(struct exchanges *exchanges)
{
    if (exchanges->runs == 0)
        return fail(STATUS_INTERNAL, "exchange: none is under way");
    if (exchanges->library != NULL)
        return wait_library(exchanges);
    if (exchanges->device != NULL)
        return wait_on_device(exchanges);
    uint64_t before = clock_ns();
    TRY(wait_lines(exchanges));
    exchanges->tally.blocked_ns += clock_ns() - before;
    return STATUS_OK;
}

static enum status exchange_wait(void *context)
{
    struct exchanges *exchanges = context;
    if (exchanges->alone)
        return STATUS_OK;
    if (!exchanges->settled) {
        const uint64_t before = clock_ns(), step = exchanges->runs > 0 ? exchanges->run[0].step : 0;
        TRY(wait_for_running(exchanges));
        trace_add(exchanges->trace, "wait", TRACE_STEPS, step, before, clock_ns());
        return STATUS_OK;
    }
    exchanges->settled = false;
    exchanges->tally.bytes += exchanges->settled_bytes;
    exchanges->settled_bytes = 0;
    return STATUS_OK;
}

struct exchanger exchanges_exchanger(struct exchanges *exchanges)
{
    const bool whole = exchanges->library != NULL || exchanges->device != NULL;
    return (struct exchanger){
        .context = exchanges, .start = exchange_start, .wait = exchange_wait, .part = whole ? NULL : exchange_part};
}

bool exchanges_under_way(const struct exchanges *exchanges)
{
    return exchanges->runs > 0 || exchanges->lost;
}

/* ---- going on after a restart ---- */

enum status exchanges_settle(struct exchanges *exchanges)
{
    const size_t before = exchanges->tally.bytes;
    if (exchanges->runs > 0) {
        TRY(wait_for_running(exchanges));
        exchanges->settled = true;
        exchanges->settled_bytes = exchanges->tally.bytes - before;
        exchanges->tally.bytes = before;
    }
    return STATUS_OK;
}

void exchanges_restore_settled(struct exchanges *exchanges, size_t bytes)
{
    exchanges->settled = true;
    exchanges->settled_bytes = bytes;
}

size_t exchanges_settled_bytes(const struct exchanges *exchanges)
{
    return exchanges->settled_bytes;
}

size_t exchanges_lines(const struct exchanges *exchanges)
{
    return (size_t)exchanges->slots * exchanges->buckets;
}

size_t exchanges_feedback_count(const struct exchanges *exchanges)
{
    size_t count = 0;
    if (exchanges->wire == NULL || exchanges->library != NULL || wire_format_by_element(exchanges->wire))
        return 0; /* all others keep residuals of all lines (check_wire) */
    for (size_t b = 0; b < exchanges->buckets; b++)
        count += exchanges->bucket[b].count;
    return count * (size_t)exchanges->slots;
}

void exchanges_feedback_get(struct exchanges *exchanges, float *residuals, uint32_t *runs)
{
    for (size_t k = 0; k < exchanges_lines(exchanges); k++) {
        const struct collective_feedback feedback = collective_feedback(exchanges->line[k].collective);
        const size_t count = exchanges->bucket[k % exchanges->buckets].count;
        memcpy(residuals, feedback.residual, count * sizeof(float));
        runs[k] = *feedback.runs;
        residuals += count;
    }
}

void exchanges_feedback_set(struct exchanges *exchanges, const float *residuals, const uint32_t *runs)
{
    for (size_t k = 0; k < exchanges_lines(exchanges); k++) {
        const struct collective_feedback feedback = collective_feedback(exchanges->line[k].collective);
        const size_t count = exchanges->bucket[k % exchanges->buckets].count;
        memcpy(feedback.residual, residuals, count * sizeof(float));
        *feedback.runs = runs[k];
        residuals += count;
    }
}

/* The part up to now of what is still under way, and of what has ended without being waited for yet. */
static enum status count_running(struct exchanges *exchanges, uint64_t now_ns, uint64_t *counted_ns)
{
    if (exchanges->library != NULL)
        return STATUS_OK;
    for (size_t r = 0; r < exchanges->runs; r++) {
        const struct run *run = &exchanges->run[r];
        for (size_t b = run->waited; b < run->started; b++) {
            struct collective_traffic traffic = {.finished_ns = now_ns};
            const enum status status = collective_test(run->lines[b].collective);
            if (status == STATUS_OK)
                collective_traffic(run->lines[b].collective, &traffic);
            else if (status != STATUS_AGAIN)
                return status;
            count_flight(exchanges, flight_start(exchanges, &run->lines[b]),
                         traffic.finished_ns < now_ns ? traffic.finished_ns : now_ns, counted_ns);
        }
    }
    return STATUS_OK;
}

enum status exchanges_take(struct exchanges *exchanges, uint64_t now_ns, struct exchange_tally *tally)
{
    TRY(count_running(exchanges, now_ns, &exchanges->counted_ns));
    *tally = exchanges->tally;
    exchanges->tally = (struct exchange_tally){.bytes = 0};
    exchanges->counted_ns = now_ns;
    return STATUS_OK;
}

void exchanges_mark(struct exchanges *exchanges, uint64_t now_ns)
{
    exchanges->tally = (struct exchange_tally){.bytes = 0};
    exchanges->counted_ns = now_ns;
}

uint64_t exchanges_inside_ns(const struct exchanges *exchanges)
{
    return exchanges->tally.inside_ns;
}

struct codec_statistics exchanges_wire(const struct exchanges *exchanges)
{
    return exchanges->encoded;
}

/* ---- exact means ---- */

/* The run's own schedule when it is exact, else a ring. */
static enum status mean_shape(const struct exchanges *exchanges, size_t count, struct shape **shape)
{
    if (exchanges->library == NULL && spec_is_exact(exchanges->spec))
        return make_shape(exchanges, 0, count, shape);
    struct spec ring;
    TRY(spec_parse("ring", &ring));
    enum status status = spec_shape(&ring, exchanges->layout, 0, count, shape);
    spec_release(&ring);
    return status;
}

static enum status make_sums(struct exchanges *exchanges, size_t count, struct sums *sums)
{
    struct shape *shape = NULL;
    TRY(mean_shape(exchanges, count, &shape));
    *sums = (struct sums){.count = count, .line = {.shape = shape}};
    const struct collective_request request = {.team = exchanges->sums_team,
                                               .shape = shape,
                                               .name = "sums of batch norms",
                                               .count = count,
                                               .dtype = DTYPE_F64,
                                               .op = REDUCE_SUM};
    const enum status status = collective_create(&request, &sums->line.collective);
    if (status < 0)
        release_line(exchanges, &sums->line);
    return status;
}

static enum status find_sums(struct exchanges *exchanges, size_t count, struct collective **collective)
{
    void *memory = exchanges->sums;
    for (size_t k = 0; k < exchanges->sums_made; k++) {
        *collective = exchanges->sums[k].line.collective;
        if (exchanges->sums[k].count == count)
            return STATUS_OK;
    }
    TRY(memory_grow(&memory, &exchanges->sums_capacity, exchanges->sums_made + 1, sizeof(struct sums)));
    exchanges->sums = memory;
    TRY(make_sums(exchanges, count, &exchanges->sums[exchanges->sums_made]));
    *collective = exchanges->sums[exchanges->sums_made++].line.collective;
    return STATUS_OK;
}

static enum status add_over_workers(void *context, double *values, size_t count)
{
    struct exchanges *exchanges = context;
    struct collective *collective = NULL;
    const uint64_t before = clock_ns();
    if (exchanges->sums_team == NULL)
        return STATUS_OK;
    TRY(find_sums(exchanges, count, &collective));
    TRY(collective_start(collective, values, values));
    TRY(collective_wait(collective));
    const uint64_t now = clock_ns();
    TRY(count_running(exchanges, now, &exchanges->counted_ns)); /* buckets came first */
    count_flight(exchanges, before, now, &exchanges->counted_ns);
    exchanges->tally.blocked_ns += now - before;
    exchanges->tally.inside_ns += now - before;
    return STATUS_OK;
}

struct worker_sums exchanges_sums(struct exchanges *exchanges)
{
    return (struct worker_sums){.context = exchanges, .add = add_over_workers};
}

enum status exchanges_mean(struct exchanges *exchanges, const char *what, float *vector, size_t count)
{
    struct shape *shape = NULL;
    struct line line = {.shape = NULL};
    TRY(mean_shape(exchanges, count, &shape));
    TRY(fill_line(exchanges, shape, what, count, REDUCE_AVG, NULL, &line));
    enum status status = collective_start(line.collective, vector, vector);
    if (status >= 0)
        status = collective_wait(line.collective);
    exchanges->lost = exchanges->lost || status < 0;
    release_line(exchanges, &line);
    return status;
}
