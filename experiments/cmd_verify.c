/* cmd_verify.c - chorale verify: proves schedules for each worker count asked for. */
#include <stdio.h>
#include <stdlib.h>

#include "algos/spec.h"
#include "algos/verify.h"
#include "base/json.h"
#include "experiments/counts.h"
#include "experiments/program.h"

static const char head[] =
    "usage: chorale verify --allreduce=SPECS -n COUNTS [--json]\n"
    "Proves from the ops alone that every contribution arrives exactly once, that nothing deadlocks, races or\n"
    "is finalised twice. Strategies: each distinct schedule of a period.\n";

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

struct tally {
    size_t proved, refused, broken;
    size_t said;  /* reasons of this spec, as text: the first ones tell */
    json_t *rows; /* NULL: text */
    struct text first_refusal;
};

static void add_row(struct tally *tally, const char *name, int workers, bool ok, bool refused, const char *reason)
{
    tally->proved += ok;
    tally->refused += refused;
    tally->broken += !ok && !refused;
    if (refused && tally->first_refusal.length == 0)
        text_add(&tally->first_refusal, reason);
    if (tally->rows != NULL)
        json_array_append_new(tally->rows,
                              json_pack("{s:s, s:i, s:b, s:b, s:s?}", "allreduce", name, "workers", workers, "ok",
                                        (int)ok, "refused", (int)refused, "reason", reason[0] != '\0' ? reason : NULL));
    else if (!ok && tally->said++ < SAY_REASONS)
        printf("%s -n %d: %s: %s\n", name, workers, refused ? "refused" : "BROKEN", reason);
}

/* Every distinct schedule of a period. */
static enum status verify_one(const struct spec *spec, const char *name, const struct layout *layout,
                              struct tally *tally)
{
    uint64_t period = 1;
    if (spec->kind == SPEC_STRATEGY)
        TRY(spec->strategy->period(&spec->options, layout, &period));
    for (uint64_t step = 0; step < period; step++) {
        struct shape *shape = NULL;
        struct verify_result result;
        enum status status = spec_shape(spec, layout, step, 0, &shape);
        if (status == STATUS_REFUSED) {
            add_row(tally, name, layout->workers, false, true, status_message());
            return STATUS_OK;
        }
        TRY(status);
        status = verify_shape(shape, &result);
        shape_destroy(shape);
        TRY(status);
        if (!result.ok) {
            add_row(tally, name, layout->workers, false, false, result.reason);
            return STATUS_OK;
        }
    }
    add_row(tally, name, layout->workers, true, false, "");
    return STATUS_OK;
}

static enum status verify_counts(const struct spec *spec, const struct option_values *options, const int *counts,
                                 size_t n, struct tally *tally)
{
    enum status status = STATUS_OK;
    const char *nodes = option_text(options, "nodes");
    struct text name = {0};
    const size_t proved = tally->proved;
    tally->said = 0;
    spec_canonical(spec, &name);
    for (size_t i = 0; i < n && status >= 0; i++) {
        struct layout layout = {0};
        status = nodes != NULL ? layout_parse(nodes, counts[i], &layout) : layout_flat(counts[i], &layout);
        if (status >= 0)
            status = verify_one(spec, text_string(&name), &layout, tally);
        layout_release(&layout);
    }
    if (tally->rows == NULL && tally->said > SAY_REASONS)
        printf("%s: and %zu more (--json has them all)\n", text_string(&name), tally->said - SAY_REASONS);
    if (status >= 0 && tally->rows == NULL)
        printf("%-32s %zu of %zu worker counts proved\n", text_string(&name), tally->proved - proved, n);
    text_release(&name);
    return status;
}

static enum status finish(struct tally *tally)
{
    if (tally->rows != NULL) {
        json_t *document = json_pack("{s:O}", "results", tally->rows);
        const enum status status = document != NULL ? json_print(stdout, document)
                                                    : fail(STATUS_NO_MEMORY, "verify: no memory for the document");
        json_decref(document);
        TRY(status);
    } else {
        printf("%zu proved, %zu refused, %zu broken\n", tally->proved, tally->refused, tally->broken);
        if (fflush(stdout) != 0)
            return fail(STATUS_IO, "standard output: the results could not be written");
    }
    if (tally->broken > 0)
        return fail(STATUS_FORMAT, "verify: %zu schedule%s broken", tally->broken, tally->broken > 1 ? "s are" : " is");
    if (tally->proved == 0) /* a name that no count of workers can have is no success */
        return fail(STATUS_REFUSED, "%s", text_string(&tally->first_refusal));
    return STATUS_OK;
}

static enum status verify(const struct option_values *options)
{
    enum status status = STATUS_OK;
    struct spec *specs = NULL;
    size_t spec_count = 0, count = 0;
    int *counts = NULL;
    struct tally tally = {0};
    if (option_flag(options, "json"))
        tally.rows = json_array();
    TRY_TO(done, program_specs(option_text(options, "allreduce"), &specs, &spec_count));
    TRY_TO(done, counts_parse(option_text(options, "workers"), VERIFY_MOST, &counts, &count));
    for (size_t i = 0; i < spec_count; i++)
        TRY_TO(done, verify_counts(&specs[i], options, counts, count, &tally));
    status = finish(&tally);
done:
    text_release(&tally.first_refusal);
    json_decref(tally.rows);
    free(counts);
    spec_list_release(specs, spec_count);
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
