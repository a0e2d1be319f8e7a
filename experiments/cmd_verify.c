/* cmd_verify.c - chorale verify: proves schedules for each worker count asked for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"
#include "algos/verify.h"
#include "base/jobs.h"
#include "base/json.h"
#include "base/memory.h"
#include "comm/host.h"
#include "experiments/counts.h"
#include "experiments/program.h"

static const char head[] =
    "usage: chorale verify --allreduce=SPECS -n COUNTS [--json]\n"
    "Proves from the ops alone that every contribution arrives exactly once, that nothing deadlocks, races or\n"
    "is finalised twice, on all cores. Says what the additions have, as no element's bits depend on timing: equal\n"
    "bits on all workers; the same order of additions for all elements; whole inputs (no partial sum travels).\n"
    "Strategies: each distinct schedule of a period; auto: each that it takes for powers of two from 4 bytes to\n"
    "1 GiB, and where it changes between two of them.\n";

static const struct option options_table[] = {
    {.key = "allreduce", .repeats = true, .type = OPTION_SPEC, .default_text = "all", .help = "specs (chorale list)"},
    {.key = "workers",
     .letter = 'n',
     .type = OPTION_STRING,
     .default_text = "1..64",
     .help = "worker counts: 8 or 2,3,5 or 1..64"},
    {.key = "nodes", .type = OPTION_STRING, .help = "node layout to pretend: 2x4 or 4+2 (its size must be the count)"},
    {.key = "json", .type = OPTION_FLAG, .help = "one JSON document"},
    {.key = NULL},
};

enum { VERIFY_MOST = 16384 };

/* Of one spec, without --json: what is wrong is mostly wrong for every worker count. */
#define SAY_REASONS 5
#define REASON_BYTES 512

/* What came of one spec on one worker count; crosses from the process that proved it. */
struct row {
    bool ok, refused;
    bool equal_bits, same_order, whole_inputs;
    bool exact;                /* by sets, not by random weights            */
    uint32_t chunks, followed; /* of the schedule that was followed in part */
    char reason[REASON_BYTES];
};

/* Every spec on every worker count, one job each. */
struct proofs {
    const struct spec *specs;
    const char **names; /* canonical */
    size_t spec_count;
    const int *counts;
    size_t count;
    const struct option_values *options;

    size_t proved, refused, broken;
    json_t *rows; /* NULL: text */
    struct text first_refusal;
    struct {
        size_t proved;
        size_t said; /* reasons, as text: the first ones tell */
        bool equal_bits, same_order, whole_inputs;
    } here; /* of the spec that is being told */
};

/* ---- proving, in a process of its own ---- */

static enum status verify_one(const struct shape *shape, struct row *row)
{
    struct verify_result result;
    TRY(verify_shape(shape, &result));
    if (result.ok && row->followed == row->chunks) { /* else one before was followed in part, which is to be told */
        row->chunks = shape->chunks;
        row->followed = result.chunks;
    }
    row->exact &= result.exact;
    row->equal_bits &= result.equal_bits;
    row->same_order &= result.same_order;
    row->whole_inputs &= result.whole_inputs;
    row->ok = result.ok;
    if (!result.ok)
        (void)snprintf(row->reason, sizeof row->reason, "%s", result.reason);
    return STATUS_OK;
}

/* Every distinct schedule of a period, as long as all are right. */
static enum status verify_steps(const struct spec *spec, const struct layout *layout, struct row *row)
{
    uint64_t period = 1;
    TRY(spec_period(spec, layout, &period));
    row->ok = true;
    for (uint64_t step = 0; step < period && row->ok; step++) {
        struct shape *shape = NULL;
        TRY(spec_shape(spec, layout, step, 0, &shape));
        const enum status status = verify_one(shape, row);
        shape_destroy(shape);
        TRY(status);
    }
    return STATUS_OK;
}

/* Whether the shape has decided something that is not among the lines of *decisions yet, where it is added. */
static bool decides_anew(const struct shape *shape, struct text *decisions)
{
    struct text line = {0};
    text_add(&line, "\n");
    (void)shape_describe(shape, &line);
    text_add(&line, "\n");
    const bool anew = strstr(text_string(decisions), text_string(&line)) == NULL;
    if (anew)
        text_add(decisions, text_string(&line));
    text_release(&line);
    return anew;
}

/* One that takes different schedules for different sizes. Two add up in two orders. */
struct sizes {
    const struct spec *spec;
    const struct layout *layout;
    struct row *row;
    struct text decisions; /* proved already */
};

/* What it takes for `count` elements, in words, is proved where it is new. */
static enum status verify_size(struct sizes *sizes, size_t count, struct text *words)
{
    struct shape *shape = NULL;
    enum status status = STATUS_OK;
    const bool first = sizes->decisions.length == 0;
    TRY(spec_shape(sizes->spec, sizes->layout, 0, count, &shape));
    (void)shape_describe(shape, words);
    if (decides_anew(shape, &sizes->decisions)) {
        sizes->row->same_order &= first;
        status = verify_one(shape, sizes->row);
    }
    shape_destroy(shape);
    TRY(text_check(words));
    return status < 0 ? status : text_check(&sizes->decisions);
}

/* Two sizes for which it takes different schedules may have a third between them: down to where one follows the other. */
static enum status verify_between(struct sizes *sizes, size_t low, size_t high, const struct text *at_low,
                                  const struct text *at_high)
{
    const size_t middle = low + (high - low) / 2;
    struct text words = {0};
    if (!sizes->row->ok || middle == low || strcmp(text_string(at_low), text_string(at_high)) == 0)
        return STATUS_OK;
    enum status status = verify_size(sizes, middle, &words);
    if (status >= 0)
        status = verify_between(sizes, low, middle, at_low, &words);
    if (status >= 0)
        status = verify_between(sizes, middle, high, &words, at_high);
    text_release(&words);
    return status;
}

static enum status verify_sizes(const struct spec *spec, const struct layout *layout, struct row *row)
{
    struct sizes sizes = {.spec = spec, .layout = layout, .row = row};
    struct text words[2] = {{0}, {0}}; /* of a power of two, and of the one before */
    enum status status = STATUS_OK;
    row->ok = true;
    for (size_t count = 1, k = 0; count <= (size_t)1 << 28 && row->ok && status >= 0; count *= 2, k = 1 - k) {
        text_clear(&words[k]);
        status = verify_size(&sizes, count, &words[k]);
        if (status >= 0 && count > 1)
            status = verify_between(&sizes, count / 2, count, &words[1 - k], &words[k]);
    }
    text_release(&words[0]);
    text_release(&words[1]);
    text_release(&sizes.decisions);
    return status;
}

static enum status verify_spec(const struct spec *spec, const struct layout *layout, struct row *row)
{
    row->equal_bits = row->same_order = row->whole_inputs = row->exact = true;
    if (spec_is_size_dependent(spec))
        return verify_sizes(spec, layout, row);
    return verify_steps(spec, layout, row);
}

static void prove(void *context, size_t job, void *result)
{
    const struct proofs *proofs = context;
    struct row *row = result;
    struct layout layout = {0};
    enum status status = program_layout(proofs->options, NULL, proofs->counts[job % proofs->count], &layout);
    if (status >= 0)
        status = verify_spec(&proofs->specs[job / proofs->count], &layout, row);
    if (status < 0) {
        row->ok = false;
        row->refused = status == STATUS_REFUSED;
        (void)snprintf(row->reason, sizeof row->reason, "%s", status_message());
    }
    layout_release(&layout);
}

/* ---- telling, in order ---- */

static json_t *known(bool is_known, bool value)
{
    return is_known ? json_boolean(value) : json_null();
}

static enum status add_json(const struct proofs *proofs, const char *name, int workers, const struct row *row)
{
    const char *reason = row->reason[0] != '\0' ? row->reason : NULL;
    json_t *object = json_pack(
        "{s:s, s:i, s:b, s:b, s:s?, s:o, s:o, s:o, s:o, s:I, s:I}", "allreduce", name, "workers", workers, "ok",
        (int)row->ok, "refused", (int)row->refused, "reason", reason, "equal_bits", known(row->ok, row->equal_bits),
        "same_order", known(row->ok, row->same_order), "whole_inputs", known(row->ok, row->whole_inputs), "exact",
        known(row->ok, row->exact), "chunks", (json_int_t)row->chunks, "chunks_followed", (json_int_t)row->followed);
    if (json_array_append_new(proofs->rows, object) != 0)
        return fail(STATUS_NO_MEMORY, "verify: no memory for the document");
    return STATUS_OK;
}

static void begin_spec(struct proofs *proofs)
{
    proofs->here.proved = proofs->here.said = 0;
    proofs->here.equal_bits = proofs->here.same_order = proofs->here.whole_inputs = true;
}

static void end_spec(const struct proofs *proofs, const char *name)
{
    if (proofs->here.said > SAY_REASONS)
        printf("%s: and %zu more (--json has them all)\n", name, proofs->here.said - SAY_REASONS);
    printf("%-32s %zu of %zu worker counts proved", name, proofs->here.proved, proofs->count);
    if (proofs->here.proved > 0)
        printf("%s%s%s", proofs->here.equal_bits ? ", equal bits" : "", proofs->here.same_order ? ", same order" : "",
               proofs->here.whole_inputs ? ", whole inputs" : "");
    printf("\n");
    (void)fflush(stdout); /* a proof may take long; finish() looks at the outcome */
}

static enum status add_row(struct proofs *proofs, const char *name, int workers, const struct row *row)
{
    proofs->proved += row->ok;
    proofs->refused += row->refused;
    proofs->broken += !row->ok && !row->refused;
    if (row->refused && proofs->first_refusal.length == 0)
        text_add(&proofs->first_refusal, row->reason);
    if (proofs->rows != NULL)
        return add_json(proofs, name, workers, row);
    proofs->here.proved += row->ok;
    if (row->ok) {
        proofs->here.equal_bits &= row->equal_bits;
        proofs->here.same_order &= row->same_order;
        proofs->here.whole_inputs &= row->whole_inputs;
        if (row->followed < row->chunks)
            printf("%s -n %d: proved for a random sample of %u of its %u chunks\n", name, workers,
                   (unsigned)row->followed, (unsigned)row->chunks);
    } else if (proofs->here.said++ < SAY_REASONS) {
        printf("%s -n %d: %s: %s\n", name, workers, row->refused ? "refused" : "BROKEN", row->reason);
    }
    return STATUS_OK;
}

static enum status tell(void *context, size_t job, const void *result, const char *death)
{
    struct proofs *proofs = context;
    const char *name = proofs->names[job / proofs->count];
    const int workers = proofs->counts[job % proofs->count];
    struct row row = {.ok = false};
    if (death == NULL)
        row = *(const struct row *)result;
    else
        (void)snprintf(row.reason, sizeof row.reason, "the proof was ended: %s", death);
    if (job % proofs->count == 0)
        begin_spec(proofs);
    TRY(add_row(proofs, name, workers, &row));
    if (proofs->rows == NULL && (job + 1) % proofs->count == 0)
        end_spec(proofs, name);
    return STATUS_OK;
}

static enum status finish(const struct proofs *proofs)
{
    if (proofs->rows != NULL) {
        json_t *document = json_pack("{s:O}", "results", proofs->rows);
        const enum status status = document != NULL ? json_print(stdout, document)
                                                    : fail(STATUS_NO_MEMORY, "verify: no memory for the document");
        json_decref(document);
        TRY(status);
    } else {
        printf("%zu proved, %zu refused, %zu broken\n", proofs->proved, proofs->refused, proofs->broken);
        if (fflush(stdout) != 0 || ferror(stdout))
            return fail(STATUS_IO, "standard output: the results could not be written");
    }
    if (proofs->broken > 0)
        return fail(STATUS_FORMAT, "verify: %zu schedule%s broken", proofs->broken,
                    proofs->broken > 1 ? "s are" : " is");
    if (proofs->proved == 0) /* a name that no count of workers can have is no success */
        return fail(STATUS_REFUSED, "%s", text_string(&proofs->first_refusal));
    return STATUS_OK;
}

/* ---- the command ---- */

/* A layout that is wrong for a count is wrong usage, found before anything is proved. */
static enum status check_layouts(const struct proofs *proofs)
{
    for (size_t i = 0; i < proofs->count; i++) {
        struct layout layout = {0};
        const enum status status = program_layout(proofs->options, NULL, proofs->counts[i], &layout);
        layout_release(&layout);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status verify_all(struct proofs *proofs)
{
    enum status status = STATUS_OK;
    void *memory = NULL;
    struct text *names = NULL;
    TRY(memory_zeroed(&memory, proofs->spec_count, sizeof(struct text)));
    names = memory;
    TRY_TO(done, memory_zeroed(&memory, proofs->spec_count, sizeof(char *)));
    proofs->names = memory;
    for (size_t i = 0; i < proofs->spec_count; i++) {
        spec_canonical(&proofs->specs[i], &names[i]);
        TRY_TO(done, text_check(&names[i]));
        proofs->names[i] = text_string(&names[i]);
    }
    const struct jobs jobs = {.count = proofs->spec_count * proofs->count,
                              .processes = host_cores(),
                              .result_bytes = sizeof(struct row),
                              .context = proofs,
                              .run = prove,
                              .done = tell};
    TRY_TO(done, jobs_run(&jobs));
    status = finish(proofs);
done:
    for (size_t i = 0; i < proofs->spec_count; i++)
        text_release(&names[i]);
    free(names);
    free(proofs->names);
    return status;
}

static enum status verify(const struct option_values *options)
{
    enum status status = STATUS_OK;
    struct spec *specs = NULL;
    int *counts = NULL;
    struct proofs proofs = {.options = options};
    if (option_flag(options, "json"))
        proofs.rows = json_array();
    TRY_TO(done, program_specs(option_text(options, "allreduce"), &specs, &proofs.spec_count));
    TRY_TO(done, counts_parse(option_text(options, "workers"), VERIFY_MOST, &counts, &proofs.count));
    proofs.specs = specs;
    proofs.counts = counts;
    TRY_TO(done, check_layouts(&proofs));
    status = verify_all(&proofs);
done:
    text_release(&proofs.first_refusal);
    json_decref(proofs.rows);
    free(counts);
    spec_list_release(specs, proofs.spec_count);
    return status;
}

int cmd_verify(int argc, char **argv)
{
    struct option_values options;
    int exit_code = 0;
    if (!program_options(head, options_table, argc, argv, &options, &exit_code))
        return exit_code;
    const enum status status = verify(&options);
    option_values_release(&options);
    return status < 0 ? program_error(status) : 0;
}
