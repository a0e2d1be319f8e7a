/* explain.c - totals and pictures, taken from the ops; figures of gossip graphs, from their matrices. */
#include "algos/explain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* ---- totals ---- */

enum status explain_totals(const struct shape *shape, size_t count, size_t size, const struct cost_model *model,
                           struct explain_totals *totals)
{
    *totals = (struct explain_totals){.rounds = shape->rounds, .seconds = NAN};
    for (int rank = 0; rank < shape->workers; rank++) {
        size_t bytes, messages;
        TRY(shape_traffic(shape, rank, count, size, &bytes, &messages));
        totals->max_messages = messages > totals->max_messages ? messages : totals->max_messages;
        totals->max_bytes = bytes > totals->max_bytes ? bytes : totals->max_bytes;
        totals->total_bytes += bytes;
    }
    if (model != NULL && shape->algorithm->cost != NULL)
        totals->seconds = shape->algorithm->cost(shape, model, count * size);
    return STATUS_OK;
}

static enum status add_totals(const struct shape *shape, size_t count, size_t size, const struct cost_model *model,
                              struct text *text)
{
    struct explain_totals totals;
    TRY(explain_totals(shape, count, size, model, &totals));
    struct text decided = {0};
    if (shape_describe(shape, &decided))
        text_addf(text, "decided      %s\n", text_string(&decided));
    text_release(&decided);
    text_addf(text, "workers      %d\n", shape->workers);
    text_addf(text, "rounds       %u", totals.rounds);
    if (shape->split > 0)
        text_addf(text, " (%u reduce, %u spread)", shape->split, shape->rounds - shape->split);
    text_addf(text, "\nchunks       %u\n", shape->chunks);
    if (shape->lanes > 1)
        text_addf(text, "lanes        %u\n", shape->lanes);
    if (shape->scratch > 0)
        text_addf(text, "scratch      %u times the vector\n", shape->scratch);
    text_addf(text, "vector       %zu B\n", count * size);
    text_addf(text, "most sent    %zu B in %zu messages by one worker, %zu B by all\n", totals.max_bytes,
              totals.max_messages, totals.total_bytes);
    if (isfinite(totals.seconds)) {
        text_add(text, "closed form  ");
        text_add_real(text, totals.seconds * 1e6, 6);
        text_add(text, " us\n");
    }
    return STATUS_OK;
}

/* ---- picture ---- */

/* What a reader has to be told about the marks of a picture. */
enum mark {
    MARK_LANE = 1,
    MARK_JOINED = 2,
    MARK_SCRATCH = 4,
    MARK_LOCAL = 8, /* REDUCE, COPY */
    MARK_ORDER = 16 /* WAIT, FENCE  */
};

struct picture {
    struct sink sink; /* first: the sink that emit sees */
    const struct shape *shape;
    struct text cell; /* the ops of one worker in one round, a blank between two */
    unsigned marks;   /* of all cells so far */
};

static void add_range(struct picture *picture, const struct range *range)
{
    const uint32_t plane = range->chunk / picture->shape->chunks;
    if (range->buffer == BUFFER_VECTOR) {
        text_addf(&picture->cell, "[%u+%u]", range->chunk, range->chunks);
        return;
    }
    picture->marks |= MARK_SCRATCH;
    text_add(&picture->cell, "scratch");
    if (picture->shape->scratch > 1)
        text_addf(&picture->cell, "%u", plane);
    text_addf(&picture->cell, "[%u+%u]", range->chunk - plane * picture->shape->chunks, range->chunks);
}

static void add_words(struct picture *picture, const struct op *op)
{
    struct text *text = &picture->cell;
    switch (op->kind) {
    case OP_SEND:
        text_addf(text, "S>%d", op->peer);
        add_range(picture, &op->src);
        break;
    case OP_RECV:
    case OP_RECV_REDUCE:
        text_addf(text, op->kind == OP_RECV ? "R<%d" : "RR<%d", op->peer);
        add_range(picture, &op->dst);
        break;
    case OP_REDUCE:
    case OP_COPY:
        text_add(text, op->kind == OP_REDUCE ? "RED" : "COPY");
        add_range(picture, &op->src);
        text_add(text, ">");
        add_range(picture, &op->dst);
        picture->marks |= MARK_LOCAL;
        break;
    case OP_SCALE:
        text_add(text, "SCALE");
        add_range(picture, &op->dst);
        break;
    case OP_WAIT:
        text_addf(text, "WAIT(%u,%u)", op->wait_lane, op->wait_round);
        picture->marks |= MARK_ORDER;
        break;
    case OP_FENCE:
        text_addf(text, "FENCE(%u+%u)", op->lane, op->lanes);
        picture->marks |= MARK_ORDER;
        break;
    default:
        text_addf(text, "?%u", op->kind);
        break;
    }
}

static enum status picture_op(struct sink *sink, const struct op *op)
{
    struct picture *picture = (struct picture *)sink;
    struct text *text = &picture->cell;
    if (text->length > 0)
        text_add(text, " ");
    if (op->lane != 0 && op->kind != OP_FENCE) {
        text_addf(text, "%u:", op->lane);
        picture->marks |= MARK_LANE;
    }
    add_words(picture, op);
    if (op->weight != 1) {
        text_add(text, "x");
        text_add_real(text, op->weight, 3);
    }
    if ((op->flags & OP_FINAL) != 0)
        text_add(text, "*");
    if ((op->flags & OP_MORE) != 0) {
        text_add(text, "+");
        picture->marks |= MARK_JOINED;
    }
    return text_check(text);
}

/* The ops of one worker in one round, in picture->cell. */
static enum status fill_cell(struct picture *picture, int rank, uint32_t round)
{
    const struct shape *shape = picture->shape;
    picture->sink = (struct sink){.op = picture_op, .round = round};
    text_clear(&picture->cell);
    return shape->algorithm->emit(shape, rank, round, &picture->sink);
}

static void end_line(struct text *text)
{
    while (text->length > 0 && text->data[text->length - 1] == ' ')
        text->data[--text->length] = '\0';
    text_add(text, "\n");
}

static void add_legend(const struct picture *picture, struct text *text)
{
    const unsigned marks = picture->marks;
    text_add(text,
             "\nThe ops of each worker in each round: S>1[0+4] sends chunks 0 to 3 to worker 1, R<1[0+4] receives "
             "them from\nit, RR<1[0+4] receives and reduces; * the sum is complete then.");
    if ((picture->shape->traits & TRAIT_MIXING) != 0)
        text_add(text, " x0.5: with this weight.\nThis is the first step.");
    if ((marks & ~(unsigned)MARK_ORDER) != 0)
        text_add(text, "\n");
    if ((marks & MARK_LANE) != 0)
        text_add(text, "1: in lane 1, else in lane 0. ");
    if ((marks & MARK_JOINED) != 0)
        text_add(text, "+ the next op is part of the same message. ");
    if ((marks & MARK_LOCAL) != 0)
        text_add(text, "RED[0+1]>[2+1] adds chunk 0 to chunk 2, COPY copies. ");
    if ((marks & MARK_SCRATCH) != 0)
        text_add(text, "scratch: memory beside the vector, in its chunks. ");
    if ((marks & MARK_ORDER) != 0)
        text_add(text,
                 "\nWAIT(1,3): until round 3 of lane 1 is done. FENCE(0+2): what follows in 2 lanes from 0 on is after "
                 "all before.");
    end_line(text);
}

/* Of the columns of a table, in picture->cell; and how wide they are with what stands between them. */
static enum status column_widths(struct picture *picture, uint32_t rounds, size_t *widths, size_t *sum)
{
    *sum = strlen("round");
    for (int rank = 0; rank < picture->shape->workers; rank++) {
        widths[rank] = 1;
        for (uint32_t round = 0; round < rounds; round++) {
            TRY(fill_cell(picture, rank, round));
            if (picture->cell.length > widths[rank])
                widths[rank] = picture->cell.length;
        }
        *sum += strlen(" | ") + widths[rank];
    }
    return STATUS_OK;
}

/* A row for each round, a column for each worker. */
static enum status add_table(struct picture *picture, uint32_t rounds, const size_t *widths, struct text *text)
{
    const int workers = picture->shape->workers;
    text_add(text, "round");
    for (int rank = 0; rank < workers; rank++)
        text_addf(text, " | %-*d", (int)widths[rank], rank);
    end_line(text);
    for (uint32_t round = 0; round < rounds; round++) {
        text_addf(text, "%5u", round);
        for (int rank = 0; rank < workers; rank++) {
            TRY(fill_cell(picture, rank, round));
            text_addf(text, " | %-*s", (int)widths[rank], text_string(&picture->cell));
        }
        end_line(text);
    }
    return STATUS_OK;
}

/* The cell, cut between two ops where it is too long for a line. */
static void add_cut(const char *cell, struct text *text)
{
    size_t fits = strlen(cell), left = 0;
    if (fits > EXPLAIN_PICTURE_COLUMNS) {
        for (fits = EXPLAIN_PICTURE_COLUMNS; fits > 0 && cell[fits] != ' '; fits--)
            ;
        for (const char *c = cell + fits; *c != '\0'; c++)
            left += *c == ' ';
    }
    text_add_bytes(text, cell, fits);
    if (left > 0)
        text_addf(text, " ... and %zu more", left);
}

/* A line for each worker that has something to do in a round: where columns would be too wide. */
static enum status add_lines(struct picture *picture, uint32_t rounds, struct text *text)
{
    for (uint32_t round = 0; round < rounds; round++) {
        text_addf(text, "round %u\n", round);
        for (int rank = 0; rank < picture->shape->workers; rank++) {
            TRY(fill_cell(picture, rank, round));
            if (picture->cell.length == 0)
                continue;
            text_addf(text, "%5d | ", rank);
            add_cut(text_string(&picture->cell), text);
            text_add(text, "\n");
        }
    }
    return STATUS_OK;
}

static enum status add_picture(struct picture *picture, struct text *text)
{
    size_t widths[EXPLAIN_PICTURE_WORKERS], width;
    const uint32_t rounds = picture->shape->rounds;
    const uint32_t shown = rounds > EXPLAIN_PICTURE_ROUNDS ? EXPLAIN_PICTURE_ROUNDS : rounds;
    TRY(column_widths(picture, shown, widths, &width));
    add_legend(picture, text);
    if (width <= EXPLAIN_PICTURE_COLUMNS)
        TRY(add_table(picture, shown, widths, text));
    else
        TRY(add_lines(picture, shown, text));
    if (shown < rounds)
        text_addf(text, "... and %u more rounds, which are not shown\n", rounds - shown);
    return STATUS_OK;
}

enum status explain_shape(const struct shape *shape, size_t count, size_t size, const struct cost_model *model,
                          struct text *text)
{
    TRY(add_totals(shape, count, size, model, text));
    if (shape->workers <= EXPLAIN_PICTURE_WORKERS && shape->rounds > 0) {
        struct picture picture = {.shape = shape};
        enum status status = add_picture(&picture, text);
        text_release(&picture.cell);
        TRY(status);
    }
    return text_check(text);
}

/* ---- graphs ---- */

/* What is needed to follow products of W(t): n x n matrices, by rows. */
struct product {
    const struct graph *graph;
    size_t n;
    double *now, *next;        /* W(t) ... W(0), and the one being computed */
    struct mixing_edge *edges; /* one row                                   */
};

static void product_release(struct product *product)
{
    free(product->now);
    free(product->next);
    free(product->edges);
}

static enum status product_create(const struct graph *graph, size_t n, struct product *product)
{
    void *now = NULL, *next = NULL, *edges = NULL;
    enum status status = STATUS_OK;
    *product = (struct product){.graph = graph, .n = n};
    TRY_TO(out, memory_zeroed(&now, n * n, sizeof(double)));
    TRY_TO(out, memory_zeroed(&next, n * n, sizeof(double)));
    TRY_TO(out, memory_zeroed(&edges, n, sizeof(struct mixing_edge)));
out:
    product->now = now;
    product->next = next;
    product->edges = edges;
    if (status < 0) {
        product_release(product);
        return status;
    }
    for (size_t i = 0; i < n; i++)
        product->now[i * n + i] = 1;
    return STATUS_OK;
}

/* now = W(step) * now */
static enum status product_step(struct product *product, uint64_t step)
{
    const size_t n = product->n;
    for (size_t i = 0; i < n; i++) {
        double self;
        int count;
        TRY(product->graph->row((int)n, (int)i, step, &self, product->edges, &count));
        for (size_t k = 0; k < n; k++)
            product->next[i * n + k] = self * product->now[i * n + k];
        for (int e = 0; e < count; e++) {
            const double *from = product->now + (size_t)product->edges[e].peer * n;
            for (size_t k = 0; k < n; k++)
                product->next[i * n + k] += product->edges[e].weight * from[k];
        }
    }
    double *swap = product->now;
    product->now = product->next;
    product->next = swap;
    return STATUS_OK;
}

static bool product_is_mean(const struct product *product)
{
    for (size_t i = 0; i < product->n * product->n; i++)
        if (fabs(product->now[i] - 1.0 / (double)product->n) > 1e-12)
            return false;
    return true;
}

/* y = (A - J) x, or of the transpose. */
static void apply(const struct product *product, bool transpose, const double *x, double *y)
{
    const size_t n = product->n;
    double mean = 0;
    for (size_t i = 0; i < n; i++) {
        mean += x[i] / (double)n;
        y[i] = 0;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++)
            y[transpose ? k : i] += product->now[i * n + k] * x[transpose ? i : k];
    for (size_t i = 0; i < n; i++)
        y[i] -= mean;
}

static double normalise(double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    const double norm = sqrt(sum);
    for (size_t i = 0; i < n && norm > 0; i++)
        x[i] /= norm;
    return norm;
}

/* ||A - J||_2, the largest singular value, by power iteration; `next` gives the two vectors it needs. */
static double product_norm(const struct product *product)
{
    const size_t n = product->n;
    double *x = product->next, *y = product->next + n, norm = 0;
    if (n < 2)
        return 0;
    for (size_t i = 0; i < n; i++) /* no symmetry that could hide a direction */
        x[i] = sin(1.0 + 3.7 * (double)i) + 0.01 * (double)i;
    (void)normalise(x, n);
    for (int iteration = 0; iteration < 5000; iteration++) {
        const double before = norm;
        apply(product, false, x, y);
        apply(product, true, y, x);
        norm = sqrt(normalise(x, n));
        if (norm < 1e-12)
            return 0;
        if (fabs(norm - before) < 1e-13 * norm)
            break;
    }
    return norm;
}

static enum status contract(struct product *product, struct explain_mixing *mixing)
{
    for (uint64_t step = 0; step < 2 * mixing->period; step++) {
        if (mixing->exact_after == 0 && product_is_mean(product))
            mixing->exact_after = step;
        if (step == mixing->period)
            mixing->contraction = pow(product_norm(product), 1.0 / (double)mixing->period);
        TRY(product_step(product, step));
    }
    if (mixing->exact_after == 0 && product_is_mean(product))
        mixing->exact_after = 2 * mixing->period;
    return STATUS_OK;
}

static enum status largest_degree(const struct graph *graph, int workers, struct explain_mixing *mixing)
{
    for (uint64_t step = 0; step < mixing->period; step++) {
        struct shape *shape;
        TRY(mixing_shape(graph, workers, step, &shape));
        for (int rank = 0; rank < workers; rank++) {
            size_t messages = 0;
            enum status status = shape_traffic(shape, rank, 1, 1, NULL, &messages);
            if (status < 0) {
                shape_destroy(shape);
                return status;
            }
            mixing->degree = (int)messages > mixing->degree ? (int)messages : mixing->degree;
        }
        shape_destroy(shape);
    }
    return STATUS_OK;
}

enum status explain_graph(const struct graph *graph, int workers, struct explain_mixing *mixing)
{
    *mixing = (struct explain_mixing){.contraction = NAN};
    TRY(graph->check(workers));
    mixing->period = graph->period(workers);
    TRY(largest_degree(graph, workers, mixing));
    if (workers > EXPLAIN_GAP_WORKERS)
        return STATUS_OK;
    struct product product;
    TRY(product_create(graph, (size_t)workers, &product));
    enum status status = contract(&product, mixing);
    product_release(&product);
    return status;
}

static enum status add_graph(const struct graph *graph, int workers, struct text *text)
{
    struct explain_mixing mixing;
    TRY(explain_graph(graph, workers, &mixing));
    text_addf(text, "graph        %s\ndegree       %d\nperiod       %llu\n", graph->name, mixing.degree,
              (unsigned long long)mixing.period);
    if (isnan(mixing.contraction))
        return STATUS_OK;
    text_add(text, "gap          ");
    text_add_real(text, 1 - mixing.contraction, 6);
    text_add(text, " (a step multiplies disagreement by ");
    text_add_real(text, mixing.contraction, 6);
    text_add(text, ")\n");
    if (mixing.exact_after > 0)
        text_addf(text, "exact after  %llu\n", (unsigned long long)mixing.exact_after);
    else
        text_add(text, "exact after  never\n");
    return STATUS_OK;
}

/* ---- specs ---- */

static enum status add_plan(const struct spec *spec, struct text *text)
{
    struct step_plan plan;
    TRY(spec_plan(spec, 1, &plan));
    const struct exchange *exchange = &plan.exchange;
    text_addf(text, "exchanges    %s, started after the %s, waited for ",
              exchange->object == EXCHANGE_GRADIENT ? "the mean of gradients" : "parameters",
              exchange->start == START_AFTER_BACKWARD ? "backward pass" : "update");
    if (exchange->wait_steps == 0)
        text_add(text, "in the same step\n");
    else
        text_addf(text, "%d step%s later\n", exchange->wait_steps, exchange->wait_steps > 1 ? "s" : "");
    text_addf(text, "update       with the gradient of %s\n",
              plan.gradient_age == 0 ? "the same step" : "the step before");
    return STATUS_OK;
}

enum status explain_spec(const struct spec *spec, const struct layout *layout, size_t count, size_t size,
                         const struct cost_model *model, struct text *text)
{
    struct shape *shape;
    TRY(spec_shape(spec, layout, 0, count, &shape));
    enum status status = STATUS_OK;
    text_add(text, "allreduce    ");
    spec_canonical(spec, text);
    text_add(text, "\nnodes        ");
    layout_describe(layout, text);
    text_add(text, "\n");
    if (spec->kind == SPEC_STRATEGY)
        TRY_TO(out, add_plan(spec, text));
    if (spec_graph(spec) != NULL)
        TRY_TO(out, add_graph(spec_graph(spec), layout->workers, text));
    TRY_TO(out, explain_shape(shape, count, size, model, text));
out:
    shape_destroy(shape);
    return status;
}
