/* slices.c - progressions for the slices of a vector, two at a time (slices.h). */
#include "comm/slices.h"

#include <stdlib.h>

#include "base/memory.h"

#define SECOND ((uint32_t)1 << 31) /* in action.slot: of the second run */

/* The slices that are under way, even and odd ones. */
struct run {
    struct progression *whole;   /* for slices of full length; NULL: none was needed yet */
    struct progression *running; /* NULL: no slice is under way                          */
    size_t slice;
};

struct slices {
    const struct shape *shape;
    int rank;
    struct progression_params params;
    size_t slice, number, next; /* elements, how many, the next to be started */
    struct run run[2];
    struct progression *last; /* for the last slice, which may be shorter */
};

size_t slice_elements(const struct shape *shape, size_t count, size_t size, size_t bound)
{
    size_t planes = 0, all = 0;
    const bool fits = checked_multiply(shape->scratch, size, &planes) && checked_multiply(planes, count, &all);
    if (count == 0 || shape->scratch == 0 || (fits && all <= bound))
        return count;
    const size_t most = planes > 0 ? bound / 2 / planes : 0, least = (count - 1) / SLICES_MOST + 1;
    const size_t slice = most > least ? most : least;
    return slice < count ? slice : count;
}

enum status slices_scratch(const struct shape *shape, size_t count, size_t size, size_t slice, size_t *bytes)
{
    size_t plane = 0;
    if (!checked_multiply(slice, size, &plane) || !checked_multiply(plane, slice < count ? 2 : 1, &plane) ||
        !checked_multiply(plane, shape->scratch, bytes))
        return fail(STATUS_NO_MEMORY, "%u scratch planes for %zu elements are more than can be addressed",
                    (unsigned)shape->scratch, count);
    return STATUS_OK;
}

/* ---- one slice after the other ---- */

static enum status progression_for(struct slices *s, struct run *run, size_t slice, struct progression **out)
{
    const bool last = slice == s->number - 1;
    struct progression **kept = last ? &s->last : &run->whole;
    if (*kept != NULL) {
        progression_restart(*kept);
    } else {
        struct progression_params params = s->params;
        if (s->number > 1)
            params.count = last ? s->params.count - slice * s->slice : s->slice;
        TRY(progression_create(s->shape, s->rank, &params, kept));
    }
    *out = *kept;
    return STATUS_OK;
}

static enum status start_slice(struct slices *s, struct run *run)
{
    run->running = NULL;
    if (s->next == s->number)
        return STATUS_OK;
    TRY(progression_for(s, run, s->next, &run->running));
    run->slice = s->next++;
    return STATUS_OK;
}

static void shift(const struct slices *s, const struct run *run, struct span *span)
{
    if (span->place == PLACE_SCRATCH)
        span->offset += (size_t)(run - s->run) * s->shape->scratch * s->slice;
    else
        span->offset += run->slice * s->slice;
}

/* From the slice's own places and numbers to those of the whole. */
static void translate(const struct slices *s, const struct run *run, struct action *action)
{
    shift(s, run, &action->src);
    shift(s, run, &action->dst);
    shift(s, run, &action->operand);
    action->sequence |= (uint64_t)run->slice << WIRE_SLICE_SHIFT;
    if (run == &s->run[1])
        action->slot |= SECOND;
}

/* The next action of a run, which takes up a new slice when it has done with one. */
static enum status run_next(struct slices *s, struct run *run, struct action *action)
{
    while (run->running != NULL || s->next < s->number) {
        if (run->running == NULL || progression_finished(run->running))
            TRY(start_slice(s, run));
        if (run->running == NULL)
            break;
        const enum status status = progression_next(run->running, action);
        if (status != STATUS_AGAIN || !progression_finished(run->running)) {
            if (status == STATUS_OK)
                translate(s, run, action);
            return status;
        }
    }
    return STATUS_AGAIN;
}

enum status slices_next(struct slices *s, struct action *action)
{
    if (s->number == 1)
        return progression_next(s->run[0].running, action);
    const int older = s->run[1].running != NULL && s->run[0].running != NULL && s->run[1].slice < s->run[0].slice;
    const enum status status = run_next(s, &s->run[older], action);
    return status == STATUS_AGAIN ? run_next(s, &s->run[!older], action) : status;
}

void slices_complete(struct slices *s, const struct action *action)
{
    if (s->number == 1) {
        progression_complete(s->run[0].running, action);
        return;
    }
    struct action own = *action;
    own.slot &= ~SECOND;
    own.sequence &= ((uint64_t)1 << WIRE_SLICE_SHIFT) - 1;
    progression_complete(s->run[(action->slot & SECOND) != 0].running, &own);
}

bool slices_finished(const struct slices *s)
{
    bool finished = s->next == s->number;
    for (int i = 0; i < 2; i++)
        finished = finished && (s->run[i].running == NULL || progression_finished(s->run[i].running));
    return finished;
}

void slices_describe(const struct slices *s, size_t limit, struct text *text)
{
    for (int i = 0; i < 2; i++) {
        if (s->run[i].running == NULL || progression_finished(s->run[i].running))
            continue;
        if (s->number > 1)
            text_addf(text, "slice %zu of %zu: ", s->run[i].slice, s->number);
        progression_describe(s->run[i].running, limit, text);
    }
}

/* ---- life ---- */

void slices_restart(struct slices *s)
{
    if (s->number == 1) {
        progression_restart(s->run[0].running);
        return;
    }
    s->next = 0;
    s->run[0].running = s->run[1].running = NULL;
}

enum status slices_create(const struct shape *shape, int rank, const struct progression_params *params, size_t slice,
                          struct slices **out)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct slices)));
    struct slices *s = memory;
    *s = (struct slices){.shape = shape, .rank = rank, .params = *params, .slice = slice, .number = 1};
    if (slice < params->count)
        s->number = (params->count - 1) / slice + 1;
    if (s->number == 1) {
        const enum status status = start_slice(s, &s->run[0]);
        if (status < 0) {
            slices_destroy(s);
            return status;
        }
    }
    *out = s;
    return STATUS_OK;
}

void slices_destroy(struct slices *s)
{
    if (s == NULL)
        return;
    progression_destroy(s->run[0].whole);
    progression_destroy(s->run[1].whole);
    progression_destroy(s->last);
    free(s);
}
