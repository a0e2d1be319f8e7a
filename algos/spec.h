/* spec.h - what users type after --allreduce=, and the catalogue behind it.
 *
 * Grammar: NAME[:key=value[,key=value...]]. A nested spec with options of its own stands in square brackets:
 * double-buffered:inner=[hierarchical:intra=ring,inter=rhd]. Lists: specs separated by spaces, or by a comma at depth 0
 * whose next token has no '=' before a ':'. In names '_' is read as '-'. The canonical spelling (full names, presets
 * replaced by what they stand for, defaults left out, keys sorted) is what results store.
 *
 * NAME is an algorithm, a strategy, a preset or an external. A preset is a name for a spec: options that follow it
 * replace or join those of that spec (two-dimensional:group=4 is hierarchical:group=4). An external is a collective of
 * another library: it has no schedule, so nothing here can prove, simulate or explain it.
 *
 * Every schedule takes the options of spec_common, too:
 *   deterministic=1  an element's bits depend on nothing but the workers' values of it: a vector alone and inside a
 *                    larger one gives the same bits, on all workers. Schedules that can't promise it are refused: those
 *                    whose shape lacks TRAIT_SAME_ORDER or TRAIT_EQUAL_BITS, and those that look at the size
 *                    (TRAIT_SIZE_DEPENDENT), since two schedules add up in two orders.
 *
 * Files: an option of type OPTION_FILE keeps the path; the spelling has no place for a comma, a bracket or (in lists) a
 * blank in it. algos/ reads nothing: after parsing, the caller gives the contents with spec_read_files(), and shape
 * functions find them with shape_file(). Workers compare spec_call_name(), which holds a hash of the contents.
 */
#ifndef CHORALE_ALGOS_SPEC_H
#define CHORALE_ALGOS_SPEC_H

#include "algos/schedule.h"
#include "algos/strategy.h"

enum spec_kind { SPEC_SCHEDULE, SPEC_STRATEGY, SPEC_EXTERNAL };

struct preset {
    const char *name, *aliases;
    const char *spec; /* what it stands for */
    const char *summary;
};

struct external {
    const char *stem; /* of the module that brings it */
    const char *name, *summary, *source;
};

struct spec {
    enum spec_kind kind;
    const struct algorithm *algorithm; /* SPEC_SCHEDULE                                    */
    const struct strategy *strategy;   /* SPEC_STRATEGY                                    */
    const struct external *external;   /* SPEC_EXTERNAL                                    */
    struct option *table;              /* its options: its own and, for a schedule, spec_common; belongs to the spec */
    struct option_values options;      /* of that table; nested specs are kept as canonical text   */
    const struct attachments *attachments; /* contents of the files that it and the specs in it name; NULL = none */
    struct attachments *own_attachments;   /* the same where they belong to this spec                             */
};

/* The options that every schedule takes beside its own. */
extern const struct option spec_common[];

/* Every algorithm of catalogue.def, in its order. */
const struct algorithm *const *catalogue_algorithms(size_t *count);
const struct strategy *const *catalogue_strategies(size_t *count);
const struct preset *catalogue_presets(size_t *count);
const struct external *catalogue_externals(size_t *count);
/* By name or alias, NULL when there is none. */
const struct algorithm *algorithm_find(const char *name);
const struct strategy *strategy_find(const char *name);
const struct preset *preset_find(const char *name);
const struct external *external_find(const char *name);
/* Whether `all` contains it: a schedule that computes the reduction, and runs with default options. */
bool algorithm_in_all(const struct algorithm *algorithm);

/* One spec. STATUS_USAGE: unknown name or key (with the nearest spelling), torn brackets, bad value, a nested spec that
 * is no schedule, a missing file of one that needs it. Release with spec_release(). */
enum status spec_parse(const char *text, struct spec *spec) MUST_CHECK;
void spec_release(struct spec *spec);
enum status spec_copy(const struct spec *from, struct spec *to) MUST_CHECK;
/* Canonical spelling, appended. */
void spec_canonical(const struct spec *spec, struct text *text);

/* Gives the whole content of `path`: *text allocated with a NUL after it, taken over. On failure nothing is. */
typedef enum status spec_reader(void *context, const char *path, char **text, size_t *length);
/* Read every file that the spec and the specs in it name, each once; none: nothing happens. On failure, with the option
 * before the reader's message, the spec has none. */
enum status spec_read_files(struct spec *spec, spec_reader *reader, void *context) MUST_CHECK;
/* The canonical spelling and, for a spec that names files, "#" and spec_files_hash() in hexadecimal: what tells results
 * apart. Appended. */
void spec_identity(const struct spec *spec, struct text *text);
/* What all workers of a collective must agree on: the identity and, in round brackets, what the shape has decided.
 * Appended. */
void spec_call_name(const struct spec *spec, const struct shape *shape, struct text *text);
/* Of the contents of all its files, in the order in which they were read; false: it names none. */
bool spec_files_hash(const struct spec *spec, uint64_t *hash);
/* True for externals, for schedules without TRAIT_INEXACT, and for strategies that leave all workers with equal parameters, when the
 * schedules inside are exact, too. */
bool spec_is_exact(const struct spec *spec);

/* A list as users type it; "all" stands for every exact schedule with default options. *specs is allocated; release
 * with spec_list_release(). */
enum status spec_list_parse(const char *text, struct spec **specs, size_t *count) MUST_CHECK;
void spec_list_release(struct spec *specs, size_t count);

/* The shape of a schedule for a team, or of the exchange that a strategy starts in `step`, for `count` elements of 4
 * bytes. STATUS_REFUSED with the reason, for an external, too. Free with shape_destroy(). */
enum status spec_shape(const struct spec *spec, const struct layout *layout, uint64_t step, size_t count,
                       struct shape **shape) MUST_CHECK;
/* The same by layout, step, count and element_bytes of a request; its options and attachments are not looked at. */
enum status spec_shape_for(const struct spec *spec, const struct shape_request *request,
                           struct shape **shape) MUST_CHECK;
/* For shape functions: the schedule that their option `key` names, with the request's attachments. Release with
 * spec_release() before the request ends. */
enum status spec_nested(const struct shape_request *request, const char *key, struct spec *nested) MUST_CHECK;
/* Whether vectors of different sizes may have different shapes (TRAIT_SIZE_DEPENDENT, itself or a spec in it). */
bool spec_is_size_dependent(const struct spec *spec);
/* After how many steps the shapes repeat; 1 for schedules. */
enum status spec_period(const struct spec *spec, const struct layout *layout, uint64_t *period) MUST_CHECK;
/* What a training run does in `step`; a schedule is taken as synchronous. */
enum status spec_plan(const struct spec *spec, uint64_t step, struct step_plan *plan) MUST_CHECK;
/* A strategy as it is, a schedule as synchronous:inner=THAT. Release with spec_release(). */
enum status spec_as_strategy(const struct spec *spec, struct spec *strategy) MUST_CHECK;
/* The graph of a gossip spec, NULL for others. */
const struct graph *spec_graph(const struct spec *spec);

#endif
