/* verify_internal.h - what verify.c and verify_emitted.c share. */
#ifndef CHORALE_ALGOS_VERIFY_INTERNAL_H
#define CHORALE_ALGOS_VERIFY_INTERNAL_H

#include "algos/verify.h"

/* The first fault that is reported is the cause; later ones are not kept. */
void verify_report(struct verify_result *result, enum fault fault, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

const char *verify_op_words(const struct op *op); /* "RECV from" */

/* Matching of the messages as emitted (rule 1): each fault that there is, named without running anything. Takes memory
 * for every message of the schedule. */
enum status verify_matching(const struct shape *shape, struct verify_result *result) MUST_CHECK;

/* Conflicting ops of two lanes of a worker that nothing orders (rules 2 and 3). */
enum status verify_races(const struct shape *shape, struct verify_result *result) MUST_CHECK;

#endif
