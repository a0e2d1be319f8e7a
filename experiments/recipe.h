/* recipe.h - a training recipe: a text file of options, one `key=value` a line, without the dashes; `#` begins a comment, and blanks
 * around key and value do not count.
 *
 * What the command line gives stands, whatever the recipe says; so does `--steps` there against the recipe's `epochs`, and
 * the like (`instead`). A flag is written `deterministic=1`.
 */
#ifndef CHORALE_EXPERIMENTS_RECIPE_H
#define CHORALE_EXPERIMENTS_RECIPE_H

#include <stddef.h>

#include "base/option.h"
#include "base/status.h"

/* Two options of which one is given. */
struct recipe_instead {
    const char *one, *other;
};

/* Sets what `values` has not from the command line. STATUS_USAGE names file and line: a key that is unknown (with the
 * nearest one), stands twice or is `recipe` itself, a value that its option does not take. */
enum status recipe_read(const char *path, const struct recipe_instead *instead, size_t count,
                        struct option_values *values) MUST_CHECK;

#endif
