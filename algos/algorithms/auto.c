/* auto.c - takes the schedule that is quickest for the size of the vector, as MPI and NCCL do inside.
 *
 * Candidates are the exact schedules that take the team and leave equal bits on all workers. Without costs: those of the
 * catalogue with default options, by their closed form with latency=, bandwidth= and reduce=, and overhead= for each
 * message that worker 0 sends and for as many that it receives (closed forms let a root talk to everybody at once). With
 * costs=FILE: those that `chorale bench --format=csv` has measured, with the options they were measured with
 * (algos/costs.h; of the worker count that is nearest to the team's, interpolated over the size). Of equally quick ones
 * the first. Whoever needs halves gets a candidate with halves.
 *
 * Defaults are measured, on two cores of an EPYC (Zen 3): latency and bandwidth are what `chorale calibrate` fits to two
 * workers in shared memory, each time the least of 8 runs; over tcp on the same machine both are ten times that (11 us, 1.2
 * GB/s), which leaves the choice as it is. overhead: chain with 16 chunks instead of 1 takes 0.6 us more for each, in which
 * a worker sends one message and receives one; likewise over tcp. reduce: hardly anything in shared memory, where the
 * reduction is what reads; 0.02 lets two workers change from recursive doubling to halving at 180 KB, where they meet within
 * a factor of two over both. A network of yours wants its own.
 *
 * The choice is by size, so deterministic=1 is refused: two schedules add up in two orders. All else is that of the
 * schedule taken: rounds, traits, halves.
 *
 * Source: tables of R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19(1), 2005; NCCL's tuning model.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "algos/costs.h"
#include "algos/spec.h"
#include "base/memory.h"

/* Of the closed forms. */
#define FIGURE(name, standard, dimension, least, says)                                                                 \
    {                                                                                                                  \
        .key = (name), .type = OPTION_REAL, .default_text = (standard), .unit = (dimension), .min = (least),           \
        .max = 1e9, .help = (says)                                                                                     \
    }

static const struct option auto_options[] = {
    {.key = "costs", .type = OPTION_FILE, .help = "what bench --format=csv measured, instead of closed forms"},
    FIGURE("latency", "1.2", "us", 0, "of a message"),
    FIGURE("bandwidth", "10", "GB/s", 1e-6, "of one direction of a worker"),
    FIGURE("reduce", "0.02", "ns/B", 0, "of reducing"),
    FIGURE("overhead", "0.3", "us", 0, "a worker's own work for a message sent, or received"),
    {.key = NULL},
};

struct choice {
    struct shape *shape; /* NULL: none yet */
    char *name;          /* canonical */
    double seconds;
    int measured; /* on so many workers; 0: by the closed form */
};

static size_t bytes_of(const struct shape_request *request)
{
    return request->count * (request->element_bytes > 0 ? request->element_bytes : 4);
}

static void choice_release(struct choice *choice)
{
    if (choice == NULL)
        return;
    shape_destroy(choice->shape);
    free(choice->name);
    free(choice);
}

/* Takes *shape over if it is quicker than the choice so far, else destroys it. */
static enum status consider(struct choice *choice, struct shape *shape, const char *name, double seconds)
{
    char *copy = NULL;
    if (!(seconds < choice->seconds)) {
        shape_destroy(shape);
        return STATUS_OK;
    }
    const enum status status = memory_string(&copy, name);
    if (status < 0) {
        shape_destroy(shape);
        return status;
    }
    shape_destroy(choice->shape);
    free(choice->name);
    choice->shape = shape;
    choice->name = copy;
    choice->seconds = seconds;
    return STATUS_OK;
}

/* Whether it has no choice of its own, leaves the sum in equal bits on all workers, and has what is asked for. */
static bool suits(const struct shape_request *request, const struct shape *shape)
{
    return (shape->traits & (TRAIT_INEXACT | TRAIT_SIZE_DEPENDENT | TRAIT_EQUAL_BITS)) == TRAIT_EQUAL_BITS &&
           (!request->halves || shape_has_halves(shape));
}

/* ---- closed forms ---- */

/* NAN: it doesn't suit. */
static enum status form_seconds(const struct shape_request *request, const struct shape *shape, double *seconds)
{
    const struct option_values *options = request->options;
    const struct cost_model model = {.latency_s = option_real(options, "latency") * 1e-6,
                                     .seconds_per_byte = 1e-9 / option_real(options, "bandwidth"),
                                     .reduce_s_per_byte = option_real(options, "reduce") * 1e-9};
    size_t messages = 0;
    *seconds = NAN;
    if (!suits(request, shape))
        return STATUS_OK;
    TRY(shape_traffic(shape, 0, request->count, 1, NULL, &messages));
    *seconds = shape->algorithm->cost(shape, &model, bytes_of(request)) +
               2 * (double)messages * option_real(options, "overhead") * 1e-6;
    return STATUS_OK;
}

static enum status consider_form(const struct shape_request *request, const struct algorithm *algorithm,
                                 struct choice *choice)
{
    struct shape_request with_defaults = *request;
    struct shape *shape;
    double seconds;
    with_defaults.options = NULL;
    enum status status = shape_create(algorithm, &with_defaults, &shape);
    if (status == STATUS_REFUSED)
        return STATUS_OK;
    TRY(status);
    status = form_seconds(request, shape, &seconds);
    if (status >= 0)
        return consider(choice, shape, algorithm->name, seconds);
    shape_destroy(shape);
    return status;
}

static enum status choose_by_form(const struct shape_request *request, struct choice *choice)
{
    size_t count;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t i = 0; i < count; i++)
        if (algorithm_in_all(algorithms[i]) && (algorithms[i]->traits & TRAIT_SIZE_DEPENDENT) == 0 &&
            algorithms[i]->cost != NULL)
            TRY(consider_form(request, algorithms[i], choice));
    return STATUS_OK;
}

/* ---- measured times ---- */

static enum status consider_curve(const struct shape_request *request, const struct cost_curve *curve,
                                  struct choice *choice)
{
    struct spec spec;
    struct shape *shape = NULL;
    struct text name = {0};
    const double seconds = cost_curve_seconds(curve, bytes_of(request));
    if (!(seconds < choice->seconds))
        return STATUS_OK;
    TRY(spec_parse(curve->spec, &spec));
    enum status status = STATUS_OK;
    if (spec.kind == SPEC_SCHEDULE && spec_is_exact(&spec) && !spec_is_size_dependent(&spec))
        status = spec_shape_for(&spec, request, &shape);
    if (shape != NULL && !suits(request, shape)) {
        shape_destroy(shape);
        shape = NULL;
    }
    spec_canonical(&spec, &name);
    if (shape != NULL)
        status = consider(choice, shape, text_string(&name), seconds);
    text_release(&name);
    spec_release(&spec);
    return status == STATUS_REFUSED ? STATUS_OK : status;
}

static enum status choose_by_costs(const struct shape_request *request, const struct attachment *file,
                                   struct choice *choice)
{
    struct costs costs;
    enum status status = STATUS_OK;
    TRY(costs_parse(file->text, file->path, &costs));
    choice->measured = costs_nearest_workers(&costs, request->layout->workers);
    for (size_t i = 0; i < costs.count; i++)
        if (costs.curve[i].workers == choice->measured)
            TRY_TO(done, consider_curve(request, &costs.curve[i], choice));
done:
    costs_release(&costs);
    return status;
}

/* ---- the shape ---- */

static enum status choose(const struct shape_request *request, struct choice *choice)
{
    const struct attachment *file;
    TRY(shape_file(request, "costs", &file));
    TRY(file != NULL ? choose_by_costs(request, file, choice) : choose_by_form(request, choice));
    if (choice->shape != NULL)
        return STATUS_OK;
    return fail(STATUS_REFUSED, "auto: no schedule%s%s%s takes this team of %d",
                file != NULL ? " measured in " : " with a closed form", file != NULL ? file->path : "",
                request->halves ? " that has halves" : "", request->layout->workers);
}

static enum status auto_shape(const struct shape_request *request, struct shape *shape)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct choice)));
    struct choice *choice = memory;
    choice->seconds = INFINITY;
    const enum status status = choose(request, choice);
    if (status < 0) {
        choice_release(choice);
        return status;
    }
    const struct shape *taken = choice->shape;
    shape->chunks = taken->chunks;
    shape->scratch = taken->scratch;
    shape->rounds = taken->rounds;
    shape->split = shape_has_halves(taken) ? taken->split : 0;
    shape->lanes = taken->lanes;
    shape->traits = taken->traits | TRAIT_SIZE_DEPENDENT;
    shape->state = choice;
    return STATUS_OK;
}

static const struct shape *taken_by(const struct shape *shape)
{
    return ((const struct choice *)shape->state)->shape;
}

static enum status auto_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct shape *taken = taken_by(shape);
    return taken->algorithm->emit(taken, rank, round, sink);
}

static int auto_owner(const struct shape *shape, uint32_t chunk)
{
    const struct shape *taken = taken_by(shape);
    return taken->algorithm->owner(taken, chunk);
}

static double auto_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const struct shape *taken = taken_by(shape);
    return taken->algorithm->cost != NULL ? taken->algorithm->cost(taken, model, bytes) : (double)NAN;
}

static void auto_describe(const struct shape *shape, struct text *text)
{
    const struct choice *choice = shape->state;
    text_addf(text, "%s, ", choice->name);
    if (choice->measured > 0)
        text_addf(text, "as measured on %d worker%s", choice->measured, choice->measured > 1 ? "s" : "");
    else
        text_add(text, "by the closed forms");
    struct text more = {0};
    if (shape_describe(choice->shape, &more))
        text_addf(text, "; %s", text_string(&more));
    text_release(&more);
}

static void auto_release(struct shape *shape)
{
    choice_release(shape->state);
    shape->state = NULL;
}

const struct algorithm algorithm_auto = {
    .name = "auto",
    .aliases = "",
    .summary = "the schedule that is quickest for the vector's size, by closed forms or by measured times",
    .source = "Thakur, Rabenseifner, Gropp 2005; NCCL",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_SIZE_DEPENDENT | TRAIT_EQUAL_BITS,
    .options = auto_options,
    .shape = auto_shape,
    .emit = auto_emit,
    .owner = auto_owner,
    .release = auto_release,
    .describe = auto_describe,
    .cost = auto_cost,
};
