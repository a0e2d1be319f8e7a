/* layout.h - which node each worker of a team is on. */
#ifndef CHORALE_ALGOS_LAYOUT_H
#define CHORALE_ALGOS_LAYOUT_H

#include "base/status.h"
#include "base/text.h"

struct layout {
    int workers;
    int nodes;
    int *node_of; /* node of each worker, 0 .. nodes-1, in order of first appearance; owned */
};

/* All on one node. */
enum status layout_flat(int workers, struct layout *layout) MUST_CHECK;
/* "2x4" (two nodes of four) or "4+2" (nodes of four and two). workers > 0: must agree, else STATUS_USAGE with both
 * counts. */
enum status layout_parse(const char *text, int workers, struct layout *layout) MUST_CHECK;
/* Nodes of `group` workers, the last one smaller when it does not divide. */
enum status layout_groups(int workers, int group, struct layout *layout) MUST_CHECK;
enum status layout_copy(const struct layout *from, struct layout *to) MUST_CHECK;
void layout_describe(const struct layout *layout, struct text *text); /* "2x4", "4+2", "1x8" */
void layout_release(struct layout *layout);

#endif
