/* radix.c - choosing radices, and what the groups of a round do (radix.h). */
#include "algos/radix.h"

#include <assert.h>
#include <stdlib.h>

#include "algos/algorithms/group.h"
#include "base/memory.h"

/* ---- choosing ---- */

/* The best way to write a number as a product. */
struct product {
    int first;  /* factor; 0: there is no way                        */
    int digits; /* factors                                           */
    int sum;    /* of (factor - 1): the messages that a worker sends */
};

static bool is_better(int digits, int sum, const struct product *than)
{
    return than->first == 0 || digits < than->digits || (digits == than->digits && sum < than->sum);
}

static void find_products(struct product *products, int workers, int largest)
{
    products[1] = (struct product){.first = 1};
    for (int m = 2; m <= workers; m++)
        for (int f = m < largest ? m : largest; f >= 2; f--) {
            const struct product *rest = &products[m / f];
            if (m % f == 0 && rest->first != 0 && is_better(rest->digits + 1, rest->sum + f - 1, &products[m]))
                products[m] = (struct product){.first = f, .digits = rest->digits + 1, .sum = rest->sum + f - 1};
        }
}

/* Workers outside the core that its most burdened member heads. */
static int folded_by(int workers, int core)
{
    return (workers - 1) / core;
}

static int choose_core(const struct product *products, int workers, int fold, int passes)
{
    if (products[workers].first != 0)
        return workers;
    struct product best = {0}; /* first: the core */
    for (int core = workers - 1; core >= 1 && folded_by(workers, core) <= fold; core--) {
        const int digits = passes * products[core].digits;
        const int sum = passes * products[core].sum + folded_by(workers, core);
        if (products[core].first != 0 && is_better(digits, sum, &best))
            best = (struct product){.first = core, .digits = digits, .sum = sum};
    }
    assert(best.first > 0); /* with fold >= 1 a power of two is among them */
    return best.first;
}

static enum status make_state(struct shape *shape, struct radices **radices)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct radices)));
    shape->state = *radices = memory;
    return STATUS_OK;
}

static void add_digit(struct shape *shape, int radix)
{
    struct radices *radices = shape->state;
    radices->radix[radices->digits++] = radix;
    if (radix > 2)
        shape->scratch = 1; /* group.h */
}

enum status radix_choose(struct shape *shape, int largest, int fold, int passes, bool far_first)
{
    const int workers = shape->workers;
    void *memory = NULL;
    struct radices *radices = NULL;
    TRY(memory_zeroed(&memory, (size_t)workers + 1, sizeof(struct product)));
    struct product *products = memory;
    const enum status status = make_state(shape, &radices);
    if (status >= 0) {
        find_products(products, workers, largest);
        radices->core = choose_core(products, workers, fold, passes);
        radices->folded = folded_by(workers, radices->core);
        radices->far_first = far_first;
        for (int rest = radices->core; rest > 1; rest /= products[rest].first)
            add_digit(shape, products[rest].first);
    }
    free(products);
    return status;
}

enum status radix_divide(struct shape *shape, int base)
{
    struct radices *radices = NULL;
    TRY(make_state(shape, &radices));
    int rest = radices->core = shape->workers;
    for (; rest % base == 0; rest /= base)
        add_digit(shape, base);
    if (rest > 1)
        add_digit(shape, rest);
    return STATUS_OK;
}

void radix_release(struct shape *shape)
{
    free(shape->state);
    shape->state = NULL;
}

void radix_describe(const struct shape *shape, struct text *text)
{
    const struct radices *radices = shape->state;
    const int folded = shape->workers - radices->core;
    text_add(text, "groups of ");
    for (int i = 0; i < radices->digits; i++)
        text_addf(text, i > 0 ? "x%d" : "%d", radices->radix[i]);
    if (radices->digits == 0)
        text_add(text, "1");
    if (folded > 0)
        text_addf(text, ", %d worker%s folded", folded, folded > 1 ? "s" : "");
}

/* ---- rounds ---- */

/* How far apart two numbers are that differ by one in a digit. */
static int distance_of(const struct radices *radices, int digit)
{
    int product = 1;
    for (int i = 0; i < digit + radices->far_first; i++)
        product *= radices->radix[i];
    return radices->far_first ? radices->core / product : product;
}

/* A worker's group in a round, and what it shares out: members * part leaves from `chunk` on. */
struct turn {
    bool idle; /* outside the core */
    struct group group;
    uint32_t chunk, part;
};

static struct turn turn_of(const struct shape *shape, int rank, int digit)
{
    const struct radices *radices = shape->state;
    const int number = core_number(shape->workers, radices->core, rank);
    struct turn turn = {.idle = rank != core_rank(shape->workers, radices->core, number),
                        .part = (uint32_t)radices->core};
    for (int i = 0; i <= digit; i++) {
        const int distance = distance_of(radices, i), radix = radices->radix[i], self = number / distance % radix;
        turn.part /= (uint32_t)radix;
        if (i < digit)
            turn.chunk += (uint32_t)self * turn.part;
        else
            turn.group = (struct group){.workers = shape->workers,
                                        .core = radices->core,
                                        .members = radix,
                                        .self = self,
                                        .first = number - self * distance,
                                        .stride = distance};
    }
    return turn;
}

static bool is_last(const struct shape *shape, int digit)
{
    return digit == ((const struct radices *)shape->state)->digits - 1;
}

enum status radix_exchange(const struct shape *shape, int rank, int digit, struct sink *sink)
{
    const struct turn turn = turn_of(shape, rank, digit);
    return turn.idle ? STATUS_OK : group_exchange(sink, shape, &turn.group, 0, shape->chunks, is_last(shape, digit));
}

enum status radix_scatter(const struct shape *shape, int rank, int digit, struct sink *sink)
{
    const struct turn turn = turn_of(shape, rank, digit);
    return turn.idle ? STATUS_OK
                     : group_scatter(sink, shape, &turn.group, turn.chunk, turn.part, is_last(shape, digit));
}

enum status radix_gather(const struct shape *shape, int rank, int digit, struct sink *sink)
{
    const struct turn turn = turn_of(shape, rank, digit);
    return turn.idle ? STATUS_OK : group_gather(sink, &turn.group, turn.chunk, turn.part);
}

int radix_owner(const struct shape *shape, uint32_t chunk)
{
    const struct radices *radices = shape->state;
    uint32_t part = (uint32_t)radices->core;
    int number = 0;
    for (int i = 0; i < radices->digits; i++) {
        part /= (uint32_t)radices->radix[i];
        number += (int)(chunk / part) % radices->radix[i] * distance_of(radices, i);
    }
    return core_rank(shape->workers, radices->core, number);
}

/* ---- workers outside the core ---- */

/* The run that a worker is in: [head, end). */
struct run {
    int head, end;
};

static struct run run_of(const struct shape *shape, int rank)
{
    const int core = ((const struct radices *)shape->state)->core, number = core_number(shape->workers, core, rank);
    return (struct run){core_rank(shape->workers, core, number), core_rank(shape->workers, core, number + 1)};
}

enum status radix_fold(const struct shape *shape, int rank, struct sink *sink)
{
    const struct run run = run_of(shape, rank);
    if (rank != run.head)
        return emit_send(sink, run.head, 0, shape->chunks);
    for (int other = run.head + 1; other < run.end; other++)
        TRY(emit_recv_reduce(sink, other, 0, shape->chunks, false));
    return STATUS_OK;
}

enum status radix_unfold(const struct shape *shape, int rank, struct sink *sink)
{
    const struct run run = run_of(shape, rank);
    if (rank != run.head)
        return emit_recv(sink, run.head, 0, shape->chunks);
    for (int other = run.head + 1; other < run.end; other++)
        TRY(emit_send(sink, other, 0, shape->chunks));
    return STATUS_OK;
}

/* ---- costs ---- */

double radix_fold_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const double folded = ((const struct radices *)shape->state)->folded;
    const double move = (double)bytes * model->seconds_per_byte, add = (double)bytes * model->reduce_s_per_byte;
    if (folded <= 0)
        return 0;
    return 2 * model->latency_s + (folded + 1) * move + (folded - 1) * (add > move ? add : move) + add;
}

double radix_exchange_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const struct radices *radices = shape->state;
    int messages = 0;
    for (int i = 0; i < radices->digits; i++)
        messages += radices->radix[i] - 1;
    return radices->digits * model->latency_s +
           messages * (double)bytes * (model->seconds_per_byte + model->reduce_s_per_byte);
}

double radix_parts_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const struct radices *radices = shape->state;
    const double part = (radices->core - 1.0) / radices->core * (double)bytes;
    return 2 * radices->digits * model->latency_s + part * (2 * model->seconds_per_byte + model->reduce_s_per_byte);
}
