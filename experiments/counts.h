/* counts.h - lists of worker counts ("2,3,5", "1..64") and of sizes ("8..64M:x2"), as users type them. */
#ifndef CHORALE_EXPERIMENTS_COUNTS_H
#define CHORALE_EXPERIMENTS_COUNTS_H

#include <stddef.h>

#include "base/status.h"

/* Comma-separated numbers and ranges A..B, each in [1, most]; allocated, caller frees. STATUS_USAGE names the bad
 * piece. */
enum status counts_parse(const char *text, int most, int **counts, size_t *count) MUST_CHECK;

/* "A..B[:xF]": from A bytes to B, times F (a whole number >= 2, default 2) each. */
enum status sizes_parse(const char *text, size_t *begin, size_t *end, size_t *factor) MUST_CHECK;

#endif
