/* layout.c - nodes of a team, from the words that users type. */
#include "algos/layout.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static enum status allocate(int workers, struct layout *layout)
{
    *layout = (struct layout){0};
    if (workers < 1)
        return fail(STATUS_USAGE, "a layout of %d workers: there must be at least 1", workers);
    void *node_of = NULL;
    TRY(memory_zeroed(&node_of, (size_t)workers, sizeof(int)));
    *layout = (struct layout){.workers = workers, .nodes = 1, .node_of = node_of};
    return STATUS_OK;
}

enum status layout_flat(int workers, struct layout *layout)
{
    return allocate(workers, layout);
}

enum status layout_groups(int workers, int group, struct layout *layout)
{
    if (group < 1)
        return fail(STATUS_USAGE, "nodes of %d workers: there must be at least 1 in each", group);
    TRY(allocate(workers, layout));
    for (int i = 0; i < workers; i++)
        layout->node_of[i] = i / group;
    layout->nodes = (workers - 1) / group + 1;
    return STATUS_OK;
}

enum status layout_copy(const struct layout *from, struct layout *to)
{
    TRY(allocate(from->workers, to));
    to->nodes = from->nodes;
    memcpy(to->node_of, from->node_of, (size_t)from->workers * sizeof(int));
    return STATUS_OK;
}

void layout_release(struct layout *layout)
{
    free(layout->node_of);
    *layout = (struct layout){0};
}

/* ---- reading ---- */

static enum status malformed(const char *text)
{
    return fail(STATUS_USAGE, "nodes %s: two nodes of four workers are written 2x4, nodes of four and two 4+2", text);
}

/* A whole number >= 1 at *text, and past it. */
static bool take_number(const char **text, int *number)
{
    if (**text < '0' || **text > '9')
        return false;
    char *end = NULL;
    errno = 0;
    const long value = strtol(*text, &end, 10);
    if (errno != 0 || value < 1 || value > INT32_MAX)
        return false;
    *text = end;
    *number = (int)value;
    return true;
}

static enum status wrong_count(const char *text, long long there, int workers)
{
    return fail(STATUS_USAGE, "nodes %s have %lld workers, but there are %d", text, there, workers);
}

static enum status parse_grid(const char *text, int nodes, int each, int workers, struct layout *layout)
{
    const long long product = (long long)nodes * each;
    if (workers > 0 && product != workers)
        return wrong_count(text, product, workers);
    if (product > INT32_MAX)
        return malformed(text);
    return layout_groups((int)product, each, layout);
}

/* "4+2+1": the total first, so that one allocation holds all. */
static enum status parse_sum(const char *text, int workers, struct layout *layout)
{
    long long total = 0;
    int size;
    const char *rest = text;
    for (bool more = true; more; rest += more) {
        if (!take_number(&rest, &size))
            return malformed(text);
        total += size;
        more = *rest == '+';
    }
    if (*rest != '\0' || total > INT32_MAX)
        return malformed(text);
    if (workers > 0 && total != workers)
        return wrong_count(text, total, workers);
    TRY(allocate((int)total, layout));
    rest = text;
    int next = 0, node = 0;
    while (take_number(&rest, &size)) {
        for (int i = 0; i < size; i++)
            layout->node_of[next++] = node;
        node++;
        rest += *rest == '+';
    }
    layout->nodes = node;
    return STATUS_OK;
}

enum status layout_parse(const char *text, int workers, struct layout *layout)
{
    *layout = (struct layout){0};
    const char *rest = text;
    int nodes, each;
    if (take_number(&rest, &nodes) && *rest == 'x') {
        rest++;
        if (!take_number(&rest, &each) || *rest != '\0')
            return malformed(text);
        return parse_grid(text, nodes, each, workers, layout);
    }
    return parse_sum(text, workers, layout);
}

/* ---- writing ---- */

/* Workers of each node, in the order of nodes; NULL when there is no memory. Free with free(). */
static int *node_sizes(const struct layout *layout)
{
    int *sizes = calloc((size_t)layout->nodes, sizeof(int));
    for (int i = 0; sizes != NULL && i < layout->workers; i++)
        sizes[layout->node_of[i]]++;
    return sizes;
}

void layout_describe(const struct layout *layout, struct text *text)
{
    int *sizes = node_sizes(layout);
    if (sizes == NULL) {
        text->failed = true;
        return;
    }
    bool equal = true;
    for (int i = 1; i < layout->nodes; i++)
        equal = equal && sizes[i] == sizes[0];
    if (equal) {
        text_addf(text, "%dx%d", layout->nodes, sizes[0]);
    } else {
        for (int i = 0; i < layout->nodes; i++)
            text_addf(text, "%s%d", i > 0 ? "+" : "", sizes[i]);
    }
    free(sizes);
}
