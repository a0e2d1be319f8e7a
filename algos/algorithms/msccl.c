/* msccl.c - a schedule that somebody has written for MSCCL, read from its XML (algos/msccl.h) and proved before it is used.
 *
 * What becomes of channels, buffers and dependencies is in algos/msccl_plan.h. A file that is wrong is refused: with its
 * line by the reader and by the run on symbols, and whatever these let pass by the verifier, which has the last word.
 * Which bits the workers end with (TRAIT_EQUAL_BITS and so on) is what the verifier finds.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "algos/msccl_plan.h"
#include "algos/verify.h"
#include "base/hash.h"
#include "base/memory.h"

#define PROVED 16
#define FOUND_TRAITS ((uint64_t)(TRAIT_EQUAL_BITS | TRAIT_SAME_ORDER | TRAIT_WHOLE_INPUTS))

struct state {
    struct msccl_plan plan;
    char name[64]; /* of the <algo> */
    uint16_t channels;
};

/* The content hashes of files proved in this process, with the traits found in place of some of their bits: shapes are
 * made again and again. Losing an entry to another file costs a proof. */
static _Atomic uint64_t proved[PROVED];

static enum status msccl_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct msccl_plan *plan = &((const struct state *)shape->state)->plan;
    const size_t *first = &plan->first[(size_t)rank * plan->rounds + round];
    for (size_t i = first[0]; i < first[1]; i++)
        TRY(sink->op(sink, &plan->op[i]));
    return STATUS_OK;
}

static void release(struct shape *shape)
{
    struct state *state = shape->state;
    if (state != NULL)
        msccl_plan_release(&state->plan);
    free(state);
}

static void describe(const struct shape *shape, struct text *text)
{
    const struct state *state = shape->state;
    text_addf(text, "%s, %u chunks, %u channels", state->name[0] != '\0' ? state->name : "a file without a name",
              (unsigned)shape->chunks, (unsigned)state->channels);
}

static enum status prove(struct shape *shape, const struct attachment *file)
{
    _Atomic uint64_t *slot = &proved[(file->hash >> 32) % PROVED];
    const uint64_t key = (file->hash & ~FOUND_TRAITS) | 1, found = atomic_load(slot);
    if ((found & ~FOUND_TRAITS) == key) {
        shape->traits |= (unsigned)(found & FOUND_TRAITS);
        return STATUS_OK;
    }
    struct verify_result result;
    TRY(verify_shape(shape, &result));
    if (!result.ok)
        return fail(STATUS_FORMAT, "%s: the schedule is wrong: %s", file->path, result.reason);
    shape->traits |= (result.equal_bits ? TRAIT_EQUAL_BITS : 0) | (result.same_order ? TRAIT_SAME_ORDER : 0) |
                     (result.whole_inputs ? TRAIT_WHOLE_INPUTS : 0);
    atomic_store(slot, key | (shape->traits & FOUND_TRAITS));
    return STATUS_OK;
}

/* The schedule in the file, into a shape that is to be released whatever comes out. */
static enum status make_schedule(const struct msccl *msccl, struct shape *shape)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct state)));
    struct state *state = memory;
    shape->state = state;
    for (size_t i = 0; i < sizeof state->name; i++)
        state->name[i] = msccl->name[i];
    state->channels = msccl->channels;
    struct msccl_run run;
    TRY(msccl_run(msccl, &run));
    const enum status status = msccl_plan(msccl, &run, &state->plan);
    msccl_run_release(&run);
    shape->chunks = msccl->chunks;
    shape->scratch = state->plan.scratch;
    shape->rounds = state->plan.rounds;
    shape->lanes = msccl->channels;
    return status;
}

static enum status msccl_shape(const struct shape_request *request, struct shape *shape)
{
    enum status status = STATUS_OK;
    const struct attachment *file = NULL;
    struct msccl msccl;
    TRY(shape_file(request, "file", &file));
    if (file == NULL)
        return fail(STATUS_USAGE, "msccl needs a file: msccl:file=X.xml");
    TRY(msccl_parse(file->text, file->length, file->path, &msccl));
    if (msccl.workers != shape->workers)
        TRY_TO(done,
               fail(STATUS_REFUSED, "%s is for %d workers, not for %d", file->path, msccl.workers, shape->workers));
    TRY_TO(done, make_schedule(&msccl, shape));
    TRY_TO(done, prove(shape, file));
done:
    msccl_release(&msccl);
    if (status < 0)
        release(shape);
    return status;
}

static const struct option options[] = {
    {.key = "file", .type = OPTION_FILE, .help = "MSCCL XML with coll=\"allreduce\", for exactly as many workers"},
    {.key = NULL},
};

const struct algorithm algorithm_msccl = {
    .name = "msccl",
    .aliases = "",
    .summary = "a schedule from an MSCCL XML file, proved before it is used",
    .source = "msccl-tools; Cowan et al. 2023 (MSCCLang)",
    .traits = TRAIT_NEEDS_FILE,
    .options = options,
    .shape = msccl_shape,
    .emit = msccl_emit,
    .release = release,
    .describe = describe,
};
