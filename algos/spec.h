/* spec.h - what users type after --allreduce=, and the catalogue behind it.
 *
 * Grammar: NAME[:key=value[,key=value...]]. A nested spec with options of its own stands in square brackets:
 * double-buffered:inner=[hierarchical:intra=ring,inter=rhd]. Lists: specs separated by spaces, or by a comma at depth 0
 * whose next token has no '=' before a ':'. The canonical spelling (full names, defaults left out, keys sorted) is what
 * results store.
 */
#ifndef CHORALE_ALGOS_SPEC_H
#define CHORALE_ALGOS_SPEC_H

#include "algos/schedule.h"
#include "algos/strategy.h"

enum spec_kind { SPEC_SCHEDULE, SPEC_STRATEGY };

struct spec {
    enum spec_kind kind;
    const struct algorithm *algorithm; /* SPEC_SCHEDULE                                    */
    const struct strategy *strategy;   /* SPEC_STRATEGY                                    */
    struct option_values options;      /* of its table; nested specs are kept as canonical text */
};

/* Every algorithm of catalogue.def, in its order. */
const struct algorithm *const *catalogue_algorithms(size_t *count);
const struct strategy *const *catalogue_strategies(size_t *count);
/* By name or alias, NULL when there is none. */
const struct algorithm *algorithm_find(const char *name);
const struct strategy *strategy_find(const char *name);

/* One spec. STATUS_USAGE: unknown name or key (with the nearest spelling), torn brackets, bad value, a nested spec that
 * is no schedule. Release with spec_release(). */
enum status spec_parse(const char *text, struct spec *spec) MUST_CHECK;
void spec_release(struct spec *spec);
enum status spec_copy(const struct spec *from, struct spec *to) MUST_CHECK;
/* Canonical spelling, appended. */
void spec_canonical(const struct spec *spec, struct text *text);
/* True for schedules without TRAIT_INEXACT, and for strategies that leave all workers with equal parameters, when the
 * schedules inside are exact, too. */
bool spec_is_exact(const struct spec *spec);

/* A list as users type it; "all" stands for every exact schedule with default options. *specs is allocated; release
 * with spec_list_release(). */
enum status spec_list_parse(const char *text, struct spec **specs, size_t *count) MUST_CHECK;
void spec_list_release(struct spec *specs, size_t count);

/* The shape of a schedule for a team, or of the exchange that a strategy starts in `step`. STATUS_REFUSED with the
 * reason. Free with shape_destroy(). */
enum status spec_shape(const struct spec *spec, const struct layout *layout, uint64_t step, size_t count,
                       struct shape **shape) MUST_CHECK;
/* After how many steps the shapes repeat; 1 for schedules. */
enum status spec_period(const struct spec *spec, const struct layout *layout, uint64_t *period) MUST_CHECK;
/* What a training run does in `step`; a schedule is taken as synchronous. */
enum status spec_plan(const struct spec *spec, uint64_t step, struct step_plan *plan) MUST_CHECK;
/* A strategy as it is, a schedule as synchronous:inner=THAT. Release with spec_release(). */
enum status spec_as_strategy(const struct spec *spec, struct spec *strategy) MUST_CHECK;
/* The graph of a gossip spec, NULL for others. */
const struct graph *spec_graph(const struct spec *spec);

#endif
