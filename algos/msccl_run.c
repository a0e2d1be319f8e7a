/* msccl_run.c - the steps of an MSCCL file on symbols (msccl_run.h).
 *
 * A cell is a chunk of a buffer of a gpu. It holds which chunk of the vector it is a part of and the set of gpus whose
 * contributions are in it. Races are found as in FastTrack (Flanagan, Freund 2009): each tb has a vector clock of how
 * many steps of every tb of its gpu are known to be complete; a cell remembers its last writer and its readers since.
 */
#include "algos/msccl_run.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define NONE UINT32_MAX
#define MOST_CELL_BYTES ((size_t)256 << 20)
#define MOST_TOUCHES ((size_t)1 << 24)

/* One access of a cell: a step of a tb of the cell's gpu. */
struct access {
    uint32_t block, step; /* block: of the file; step: within it */
};

struct cell {
    uint32_t leaf; /* NONE: never written */
    struct access writer;
    struct access *readers; /* since; one a block */
    size_t count, capacity;
};

struct runner {
    const struct msccl *msccl;
    struct msccl_run *run;
    size_t words;  /* of a set                                                       */
    size_t *cells; /* [workers + 1]: first cell of a gpu: i, o, then s               */
    struct cell *cell;
    uint64_t *sets;      /* [cells * words]                                                */
    uint64_t **payload;  /* [steps] the sets that a sent message carries until it is received */
    uint32_t *done;      /* [blocks] steps complete                                        */
    uint32_t **clock;    /* [blocks] steps known complete of each block of the gpu         */
    uint32_t **snapshot; /* [steps] the clock after an awaited step                        */
    uint32_t *waiters;   /* [blocks] first block that waits for this one, NONE             */
    uint32_t *next;      /* [blocks] list of waiters                                       */
    uint32_t *queue;     /* [blocks] blocks that may go on; each is in it at most once     */
    size_t queued;
    size_t ran; /* steps in run->order                                            */
};

__attribute__((format(printf, 3, 4))) static enum status wrong(const struct runner *r, int line, const char *format,
                                                               ...)
{
    char what[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return fail(STATUS_FORMAT, "%s:%d: %s", r->msccl->file, line, what);
}

/* ---- memory ---- */

static enum status too_large(const struct msccl *msccl, const char *what, size_t count)
{
    return fail(STATUS_REFUSED, "%s: %zu %s are too many to be checked", msccl->file, count, what);
}

static enum status count_touches(const struct msccl *msccl, struct msccl_run *run)
{
    for (size_t s = 0; s < msccl->steps; s++)
        run->touch[s + 1] = run->touch[s] + msccl->step[s].count;
    if (run->touch[msccl->steps] > MOST_TOUCHES)
        return too_large(msccl, "chunks handled by all steps", run->touch[msccl->steps]);
    return STATUS_OK;
}

static enum status make_run(const struct msccl *msccl, struct msccl_run *run)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, msccl->steps, sizeof(size_t)));
    run->order = memory;
    TRY(memory_zeroed(&memory, msccl->steps + 1, sizeof(size_t)));
    run->touch = memory;
    TRY(memory_zeroed(&memory, msccl->steps, sizeof(size_t)));
    run->to = memory;
    TRY(memory_zeroed(&memory, msccl->steps, sizeof(size_t)));
    run->from = memory;
    TRY(memory_zeroed(&memory, msccl->steps, sizeof(uint32_t)));
    run->block = memory;
    TRY(memory_zeroed(&memory, msccl->blocks, sizeof(int32_t)));
    run->gpu = memory;
    TRY(count_touches(msccl, run));
    TRY(memory_zeroed(&memory, run->touch[msccl->steps], sizeof(uint32_t)));
    run->leaf = memory;
    TRY(memory_zeroed(&memory, run->touch[msccl->steps], sizeof(bool)));
    run->complete = memory;
    for (int g = 0; g < msccl->workers; g++)
        for (size_t b = msccl->gpu[g].block; b < msccl->gpu[g].block + msccl->gpu[g].blocks; b++) {
            run->gpu[b] = g;
            for (size_t s = 0; s < msccl->block[b].steps; s++)
                run->block[msccl->block[b].step + s] = (uint32_t)b;
        }
    return STATUS_OK;
}

void msccl_run_release(struct msccl_run *run)
{
    free(run->order);
    free(run->touch);
    free(run->to);
    free(run->from);
    free(run->block);
    free(run->gpu);
    free(run->leaf);
    free(run->complete);
    *run = (struct msccl_run){0};
}

/* i and o have a cell for each chunk of the vector, whatever the file says that it uses. */
static enum status make_cells(struct runner *r)
{
    const struct msccl *msccl = r->msccl;
    const size_t p = (size_t)msccl->workers;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, p + 1, sizeof(size_t)));
    r->cells = memory;
    for (size_t g = 0; g < p; g++)
        r->cells[g + 1] = r->cells[g] + 2 * (size_t)msccl->chunks + msccl->gpu[g].chunks[MSCCL_SCRATCH];
    r->words = (p + 63) / 64;
    if (r->cells[p] > MOST_CELL_BYTES / (sizeof(struct cell) + r->words * sizeof(uint64_t)))
        return too_large(msccl, "chunks in the buffers of all gpus", r->cells[p]);
    TRY(memory_zeroed(&memory, r->cells[p], sizeof(struct cell)));
    r->cell = memory;
    TRY(memory_zeroed(&memory, r->cells[p] * r->words, sizeof(uint64_t)));
    r->sets = memory;
    for (size_t g = 0; g < p; g++)
        for (size_t c = r->cells[g]; c < r->cells[g + 1]; c++) {
            const bool input = c < r->cells[g] + msccl->chunks;
            r->cell[c].leaf = input ? (uint32_t)(c - r->cells[g]) : NONE;
            r->cell[c].writer.block = NONE;
            if (input)
                r->sets[c * r->words + g / 64] = (uint64_t)1 << (g % 64);
        }
    return STATUS_OK;
}

static enum status make_runner(struct runner *r)
{
    const struct msccl *msccl = r->msccl;
    void *memory = NULL;
    TRY(make_cells(r));
    TRY(memory_zeroed(&memory, msccl->steps, sizeof(uint64_t *)));
    r->payload = memory;
    TRY(memory_zeroed(&memory, msccl->blocks, sizeof(uint32_t)));
    r->done = memory;
    TRY(memory_zeroed(&memory, msccl->blocks, sizeof(uint32_t *)));
    r->clock = memory;
    TRY(memory_zeroed(&memory, msccl->steps, sizeof(uint32_t *)));
    r->snapshot = memory;
    TRY(memory_zeroed(&memory, msccl->blocks, sizeof(uint32_t)));
    r->waiters = memory;
    TRY(memory_zeroed(&memory, msccl->blocks, sizeof(uint32_t)));
    r->next = memory;
    TRY(memory_zeroed(&memory, msccl->blocks, sizeof(uint32_t)));
    r->queue = memory;
    size_t clock_bytes = 0;
    for (size_t b = 0; b < msccl->blocks; b++) {
        const size_t bytes = msccl->gpu[r->run->gpu[b]].blocks * sizeof(uint32_t);
        size_t clocks = 1;
        for (size_t s = 0; s < msccl->block[b].steps; s++)
            clocks += msccl->step[msccl->block[b].step + s].awaited;
        clock_bytes += clocks * bytes;
        if (clock_bytes > MOST_CELL_BYTES)
            return too_large(msccl, "tbs with as many steps that others wait for", msccl->blocks);
        TRY(memory_zeroed(&memory, bytes, 1));
        r->clock[b] = memory;
        r->waiters[b] = NONE;
    }
    return STATUS_OK;
}

static void release_runner(struct runner *r)
{
    const struct msccl *msccl = r->msccl;
    for (size_t c = 0; r->cell != NULL && c < r->cells[msccl->workers]; c++)
        free(r->cell[c].readers);
    for (size_t s = 0; r->payload != NULL && s < msccl->steps; s++)
        free(r->payload[s]);
    for (size_t b = 0; r->clock != NULL && b < msccl->blocks; b++)
        free(r->clock[b]);
    for (size_t s = 0; r->snapshot != NULL && s < msccl->steps; s++)
        free(r->snapshot[s]);
    free(r->cells);
    free(r->cell);
    free(r->sets);
    free(r->payload);
    free(r->done);
    free(r->clock);
    free(r->snapshot);
    free(r->waiters);
    free(r->next);
    free(r->queue);
}

/* ---- matching ---- */

/* The block of gpu `peer` that receives from (or sends to) gpu `self` on the channel; NULL: none. */
static const struct msccl_block *other_end(const struct msccl *msccl, int peer, int self, uint16_t channel,
                                           bool receives)
{
    const struct msccl_gpu *gpu = &msccl->gpu[peer];
    for (size_t b = gpu->block; b < gpu->block + gpu->blocks; b++) {
        const struct msccl_block *block = &msccl->block[b];
        if (block->channel == channel && (receives ? block->recv : block->send) == self)
            return block;
    }
    return NULL;
}

/* The next step at or after *at in the block that receives (or sends). */
static bool next_message(const struct msccl *msccl, const struct msccl_block *block, bool receives, size_t *at)
{
    for (; block != NULL && *at < block->steps; ++*at) {
        const uint8_t type = msccl->step[block->step + *at].type;
        if (receives ? msccl_receives(type) : msccl_sends(type))
            return true;
    }
    return false;
}

static enum status match_sends(const struct runner *r, size_t b)
{
    const struct msccl *msccl = r->msccl;
    const struct msccl_block *block = &msccl->block[b];
    const struct msccl_block *peer = other_end(msccl, block->send, r->run->gpu[b], block->channel, true);
    size_t s = 0, t = 0;
    for (; next_message(msccl, block, false, &s); s++, t++) {
        const size_t send = block->step + s;
        const struct msccl_step *step = &msccl->step[send];
        if (!next_message(msccl, peer, true, &t))
            return wrong(r, step->line, "it sends to gpu %d on channel %u, which has no receive for it", block->send,
                         (unsigned)block->channel);
        const size_t recv = peer->step + t;
        if (msccl->step[recv].count != step->count)
            return wrong(r, step->line, "it sends %u chunks to gpu %d, which takes %u (line %d)", (unsigned)step->count,
                         block->send, (unsigned)msccl->step[recv].count, msccl->step[recv].line);
        r->run->to[send] = recv;
        r->run->from[recv] = send;
    }
    return STATUS_OK;
}

static enum status match_messages(const struct runner *r)
{
    const struct msccl *msccl = r->msccl;
    for (size_t s = 0; s < msccl->steps; s++)
        r->run->to[s] = r->run->from[s] = MSCCL_NO_STEP;
    for (size_t b = 0; b < msccl->blocks; b++)
        if (msccl->block[b].send >= 0)
            TRY(match_sends(r, b));
    for (size_t s = 0; s < msccl->steps; s++)
        if (msccl_receives(msccl->step[s].type) && r->run->from[s] == MSCCL_NO_STEP) {
            const struct msccl_block *block = &msccl->block[r->run->block[s]];
            return wrong(r, msccl->step[s].line, "it receives from gpu %d on channel %u, which has no send for it",
                         block->recv, (unsigned)block->channel);
        }
    return STATUS_OK;
}

/* ---- accesses ---- */

static size_t cell_of(const struct runner *r, int gpu, const struct msccl_place *place)
{
    return r->cells[gpu] + place->buffer * (size_t)r->msccl->chunks + place->offset;
}

static uint64_t *set_of(const struct runner *r, size_t cell)
{
    return r->sets + cell * r->words;
}

/* Is an earlier access known to be complete to the step that block b is at? */
static bool ordered(const struct runner *r, const struct access *before, uint32_t b)
{
    const size_t first = r->msccl->gpu[r->run->gpu[b]].block;
    return before->block == NONE || before->block == b || r->clock[b][before->block - first] > before->step;
}

static enum status race(const struct runner *r, const struct msccl_step *step, const struct access *before)
{
    const int line = r->msccl->step[r->msccl->block[before->block].step + before->step].line;
    return wrong(r, step->line, "race: it and line %d touch the same chunk, and nothing orders them", line);
}

static enum status read_cell(struct runner *r, size_t c, uint32_t b, const struct msccl_step *step)
{
    struct cell *cell = &r->cell[c];
    if (cell->leaf == NONE)
        return wrong(r, step->line, "it reads a chunk that no step is sure to have written before");
    if (!ordered(r, &cell->writer, b))
        return race(r, step, &cell->writer);
    const struct access mine = {.block = b, .step = r->done[b]};
    for (size_t i = 0; i < cell->count; i++)
        if (cell->readers[i].block == b) {
            cell->readers[i] = mine;
            return STATUS_OK;
        }
    void *memory = cell->readers;
    TRY(memory_grow(&memory, &cell->capacity, cell->count + 1, sizeof(struct access)));
    cell->readers = memory;
    cell->readers[cell->count++] = mine;
    return STATUS_OK;
}

static enum status write_cell(struct runner *r, size_t c, uint32_t b, const struct msccl_step *step)
{
    struct cell *cell = &r->cell[c];
    if (!ordered(r, &cell->writer, b))
        return race(r, step, &cell->writer);
    for (size_t i = 0; i < cell->count; i++)
        if (!ordered(r, &cell->readers[i], b))
            return race(r, step, &cell->readers[i]);
    cell->count = 0;
    cell->writer = (struct access){.block = b, .step = r->done[b]};
    return STATUS_OK;
}

/* ---- steps ---- */

/* into += set, which must have nothing in common. *complete: all are in. */
static enum status add_set(const struct runner *r, const struct msccl_step *step, uint32_t leaf, uint64_t *into,
                           const uint64_t *set, bool *complete)
{
    size_t members = 0;
    for (size_t w = 0; w < r->words; w++) {
        if (into[w] & set[w]) {
            const int doubled = (int)(w * 64) + __builtin_ctzll(into[w] & set[w]);
            return wrong(r, step->line, "it adds the contribution of gpu %d to chunk %u twice", doubled,
                         (unsigned)leaf);
        }
        into[w] |= set[w];
        members += (size_t)__builtin_popcountll(into[w]);
    }
    *complete = members == (size_t)r->msccl->workers;
    return STATUS_OK;
}

/* One chunk of a step: `set` and *leaf come in with what was received, and leave with what the step has made. */
static enum status run_chunk(struct runner *r, uint32_t b, const struct msccl_step *step, uint32_t k, uint64_t *set,
                             uint32_t *leaf, bool *complete)
{
    assert(r->cell != NULL);
    const int gpu = r->run->gpu[b];
    const size_t bytes = r->words * sizeof(uint64_t);
    const size_t src = cell_of(r, gpu, &step->src) + k, dst = cell_of(r, gpu, &step->dst) + k;
    if (msccl_reads_src(step->type)) {
        TRY(read_cell(r, src, b, step));
        if (!msccl_receives(step->type)) {
            memcpy(set, set_of(r, src), bytes);
            *leaf = r->cell[src].leaf;
        }
    }
    if (msccl_reduces(step->type)) {
        const size_t operand = step->type == MSCCL_RE ? dst : src;
        if (step->type == MSCCL_RE)
            TRY(read_cell(r, dst, b, step));
        if (r->cell[operand].leaf != *leaf)
            return wrong(r, step->line, "it adds a part of chunk %u to one of chunk %u", (unsigned)*leaf,
                         (unsigned)r->cell[operand].leaf);
        TRY(add_set(r, step, *leaf, set, set_of(r, operand), complete));
    }
    if (msccl_writes_dst(step->type)) {
        TRY(write_cell(r, dst, b, step));
        memcpy(set_of(r, dst), set, bytes);
        r->cell[dst].leaf = *leaf;
    }
    return STATUS_OK;
}

static enum status run_step(struct runner *r, uint32_t b, size_t s)
{
    enum status status = STATUS_OK;
    const struct msccl_step *step = &r->msccl->step[s];
    void *sets = NULL;
    uint32_t *leaf = &r->run->leaf[r->run->touch[s]];
    TRY(memory_zeroed(&sets, step->count * r->words, sizeof(uint64_t)));
    if (msccl_receives(step->type)) {
        const size_t from = r->run->from[s];
        memcpy(sets, r->payload[from], step->count * r->words * sizeof(uint64_t));
        memcpy(leaf, &r->run->leaf[r->run->touch[from]], step->count * sizeof(uint32_t));
        free(r->payload[from]);
        r->payload[from] = NULL;
    }
    for (uint32_t k = 0; k < step->count; k++)
        TRY_TO(done, run_chunk(r, b, step, k, (uint64_t *)sets + k * r->words, &leaf[k],
                               &r->run->complete[r->run->touch[s] + k]));
    if (msccl_sends(step->type)) {
        r->payload[s] = sets;
        sets = NULL;
    }
done:
    free(sets);
    return status;
}

/* ---- order ---- */

/* The block that block b must wait for before its next step, NONE when it may go on. */
static uint32_t awaited_block(const struct runner *r, uint32_t b)
{
    const struct msccl *msccl = r->msccl;
    const size_t s = msccl->block[b].step + r->done[b];
    const struct msccl_step *step = &msccl->step[s];
    if (step->depends_block >= 0) {
        const uint32_t d = (uint32_t)(msccl->gpu[r->run->gpu[b]].block + (size_t)step->depends_block);
        if (r->done[d] <= step->depends_step)
            return d;
    }
    if (msccl_receives(step->type)) {
        const size_t from = r->run->from[s];
        const uint32_t sender = r->run->block[from];
        if (r->done[sender] <= from - msccl->block[sender].step)
            return sender;
    }
    return NONE;
}

/* What the step that block b is about to run knows to be complete. */
static void take_clock(struct runner *r, uint32_t b, const struct msccl_step *step)
{
    const struct msccl_gpu *gpu = &r->msccl->gpu[r->run->gpu[b]];
    r->clock[b][b - gpu->block] = r->done[b];
    if (step->depends_block < 0)
        return;
    const uint32_t *other =
        r->snapshot[r->msccl->block[gpu->block + (size_t)step->depends_block].step + step->depends_step];
    for (size_t i = 0; other != NULL && i < gpu->blocks; i++)
        if (other[i] > r->clock[b][i])
            r->clock[b][i] = other[i];
}

static enum status leave_clock(struct runner *r, uint32_t b, size_t s)
{
    const struct msccl_gpu *gpu = &r->msccl->gpu[r->run->gpu[b]];
    r->clock[b][b - gpu->block] = r->done[b];
    if (!r->msccl->step[s].awaited)
        return STATUS_OK;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, gpu->blocks, sizeof(uint32_t)));
    memcpy(memory, r->clock[b], gpu->blocks * sizeof(uint32_t));
    r->snapshot[s] = memory;
    return STATUS_OK;
}

/* Run block b as far as it goes; if it went on, let those that wait for it look again. */
static enum status run_block(struct runner *r, uint32_t b)
{
    const struct msccl_block *block = &r->msccl->block[b];
    const size_t ran = r->ran;
    while (r->done[b] < block->steps) {
        const uint32_t awaited = awaited_block(r, b);
        if (awaited != NONE) {
            r->next[b] = r->waiters[awaited];
            r->waiters[awaited] = b;
            break;
        }
        const size_t s = block->step + r->done[b];
        take_clock(r, b, &r->msccl->step[s]);
        TRY(run_step(r, b, s));
        r->run->order[r->ran++] = s;
        r->done[b]++;
        TRY(leave_clock(r, b, s));
    }
    while (r->ran > ran && r->waiters[b] != NONE) {
        r->queue[r->queued++] = r->waiters[b];
        r->waiters[b] = r->next[r->waiters[b]];
    }
    return STATUS_OK;
}

static enum status report_circle(const struct runner *r)
{
    const struct msccl *msccl = r->msccl;
    uint32_t b = 0;
    while (r->done[b] == msccl->block[b].steps)
        b++;
    for (size_t i = 0; i < msccl->blocks; i++) /* after so many steps it is in a circle */
        b = awaited_block(r, b);
    const uint32_t other = awaited_block(r, b);
    return wrong(r, msccl->step[msccl->block[b].step + r->done[b]].line,
                 "deadlock: it waits, in a circle, for line %d and that for others or for it",
                 msccl->step[msccl->block[other].step + r->done[other]].line);
}

static enum status run_blocks(struct runner *r)
{
    for (size_t b = 0; b < r->msccl->blocks; b++)
        r->queue[r->queued++] = (uint32_t)(r->msccl->blocks - 1 - b);
    while (r->queued > 0)
        TRY(run_block(r, r->queue[--r->queued]));
    return r->ran < r->msccl->steps ? report_circle(r) : STATUS_OK;
}

/* ---- results ---- */

static enum status check_results(const struct runner *r)
{
    const struct msccl *msccl = r->msccl;
    for (int g = 0; g < msccl->workers; g++)
        for (uint32_t c = 0; c < msccl->chunks; c++) {
            const struct msccl_place place = {.buffer = msccl->in_place ? MSCCL_INPUT : MSCCL_OUTPUT, .offset = c};
            const size_t cell = cell_of(r, g, &place);
            if (r->cell[cell].leaf == NONE)
                return wrong(r, msccl->gpu[g].line, "gpu %d never writes chunk %u of its output", g, (unsigned)c);
            if (r->cell[cell].leaf != c)
                return wrong(r, msccl->gpu[g].line, "gpu %d ends with chunk %u in the place of chunk %u", g,
                             (unsigned)r->cell[cell].leaf, (unsigned)c);
            for (int i = 0; i < msccl->workers; i++)
                if (!((set_of(r, cell)[i / 64] >> (i % 64)) & 1))
                    return wrong(r, msccl->gpu[g].line, "gpu %d ends with chunk %u without the contribution of gpu %d",
                                 g, (unsigned)c, i);
        }
    return STATUS_OK;
}

enum status msccl_run(const struct msccl *msccl, struct msccl_run *run)
{
    enum status status = STATUS_OK;
    struct runner r = {.msccl = msccl, .run = run};
    *run = (struct msccl_run){0};
    TRY_TO(done, make_run(msccl, run));
    TRY_TO(done, match_messages(&r));
    TRY_TO(done, make_runner(&r));
    TRY_TO(done, run_blocks(&r));
    TRY_TO(done, check_results(&r));
done:
    release_runner(&r);
    if (status < 0)
        msccl_run_release(run);
    return status;
}
