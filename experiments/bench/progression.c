/* progression.c - bench_progression: what the interpreter of schedules costs, without data, network or clock.
 *
 * Runs all workers of one collective through their progressions in one thread: a message arrives when both its ends have
 * started. Prints the least and the median time of a collective for one worker, restart included, over some batches;
 * the driver's own time is in it.
 *
 *   bench_progression [SPEC WORKERS]...      default: a few of both, small and large
 */
#include <stdio.h>
#include <stdlib.h>

#include "algos/progression.h"
#include "algos/spec.h"
#include "base/clock.h"
#include "base/memory.h"

#define BATCHES 15
#define BATCH_NS 20000000

#define SENDS 256 /* under way between two workers */

/* From one worker to another, on one lane. */
struct channel {
    struct action send[SENDS], post;
    unsigned sent, received;
    bool posted;
};

struct driver {
    struct progression **progression;
    int workers;
    struct channel **channel; /* of from * workers + to; NULL: not yet used */
};

static void give_up(void)
{
    fprintf(stderr, "bench_progression: %s\n", status_message());
    exit(status_exit_code(STATUS_INTERNAL));
}

static void refuse(void)
{
    fprintf(stderr, "bench_progression: more messages under way between two workers than are kept here\n");
    exit(1);
}

static struct channel *channel_of(struct driver *d, int from, int to)
{
    struct channel **channel = &d->channel[(size_t)from * (size_t)d->workers + (size_t)to];
    void *memory = *channel;
    if (memory == NULL && memory_zeroed(&memory, 1, sizeof(struct channel)) < 0)
        give_up();
    *channel = memory;
    return *channel;
}

static void meet(struct driver *d, struct channel *channel, int from, int to)
{
    if (!channel->posted || channel->sent == channel->received)
        return;
    channel->posted = false;
    progression_complete(d->progression[from], &channel->send[channel->received++ % SENDS]);
    progression_complete(d->progression[to], &channel->post);
}

/* Start what worker may start; true: something was. */
static bool run_worker(struct driver *d, int worker)
{
    struct action action;
    enum status status = STATUS_OK;
    bool moved = false;
    while ((status = progression_next(d->progression[worker], &action)) == STATUS_OK) {
        moved = true;
        if (action.kind == ACTION_REDUCE || action.kind == ACTION_LOCAL) {
            progression_complete(d->progression[worker], &action);
            continue;
        }
        const bool sends = action.kind == ACTION_SEND;
        const int from = sends ? worker : action.op.peer, to = sends ? action.op.peer : worker;
        struct channel *channel = channel_of(d, from, to);
        if (sends ? channel->sent - channel->received == SENDS : channel->posted)
            refuse();
        if (sends)
            channel->send[channel->sent++ % SENDS] = action;
        else
            channel->post = action;
        channel->posted |= !sends;
        meet(d, channel, from, to);
    }
    if (status < 0)
        give_up();
    return moved;
}

static void run_once(struct driver *d)
{
    bool moved = true;
    for (int r = 0; r < d->workers; r++)
        progression_restart(d->progression[r]);
    while (moved) {
        moved = false;
        for (int r = 0; r < d->workers; r++)
            moved |= run_worker(d, r);
    }
    for (int r = 0; r < d->workers; r++)
        if (!progression_finished(d->progression[r]))
            refuse();
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void time_it(struct driver *d, const char *name, bool aliased)
{
    double ns[BATCHES];
    size_t repeats = 1;
    for (int b = -1; b < BATCHES; b++) { /* the first batch warms up, and finds how many make one */
        const uint64_t begun = clock_ns();
        for (size_t i = 0; i < repeats; i++)
            run_once(d);
        const double each = (double)(clock_ns() - begun) / (double)repeats;
        if (b < 0)
            repeats = each < BATCH_NS ? (size_t)(BATCH_NS / each) + 1 : 1;
        else
            ns[b] = each / d->workers;
    }
    qsort(ns, BATCHES, sizeof ns[0], ascending);
    printf("%-28s %5d workers %-12s %10.0f ns least, %10.0f ns median\n", name, d->workers,
           aliased ? "in place" : "out of place", ns[0], ns[BATCHES / 2]);
}

static void measure(const char *text, int workers, bool aliased)
{
    struct spec spec;
    struct layout layout;
    struct shape *shape = NULL;
    struct driver d = {.workers = workers};
    void *memory = NULL;
    if (spec_parse(text, &spec) < 0 || layout_flat(workers, &layout) < 0 ||
        spec_shape(&spec, &layout, 0, 1000, &shape) < 0 ||
        memory_zeroed(&memory, (size_t)workers, sizeof(struct progression *)) < 0)
        give_up();
    d.progression = memory;
    const size_t pairs = (size_t)workers * (size_t)workers;
    if (memory_zeroed(&memory, pairs, sizeof(struct channel *)) < 0)
        give_up();
    d.channel = memory;
    const struct progression_params params = {
        .count = shape->chunks, .segment = shape->chunks, .window = 1, .lookahead = 64, .aliased = aliased};
    for (int r = 0; r < workers; r++)
        if (progression_create(shape, r, &params, &d.progression[r]) < 0)
            give_up();
    time_it(&d, text, aliased);
    for (int r = 0; r < workers; r++)
        progression_destroy(d.progression[r]);
    free(d.progression);
    for (size_t i = 0; i < pairs; i++)
        free(d.channel[i]);
    free(d.channel);
    shape_destroy(shape);
    layout_release(&layout);
    spec_release(&spec);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *spec;
        int workers;
    } usual[] = {{"recursive-doubling", 2},  {"ring", 2},  {"recursive-halving-doubling", 2},
                 {"recursive-doubling", 16}, {"ring", 16}, {"ring", 128},
                 {"all-pairs", 128}};
    if (argc == 1)
        for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
            for (int aliased = 1; aliased >= 0; aliased--)
                measure(usual[i].spec, usual[i].workers, aliased);
    for (int i = 1; i + 1 < argc; i += 2)
        for (int aliased = 1; aliased >= 0; aliased--)
            measure(argv[i], atoi(argv[i + 1]), aliased);
    return 0;
}
