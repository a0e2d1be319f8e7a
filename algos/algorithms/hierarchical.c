/* hierarchical.c - two schedules composed: A within the nodes, B between them.
 *
 *   rounds [0, begin)     first half of A in every node: each piece of the vector complete at one worker of the node
 *   rounds [begin, end)   B among the owners of each piece: a team with one worker of every node for each piece
 *   rounds [end, rounds)  second half of A: the pieces spread in every node
 *
 *   2 nodes of 4, intra=ring: 4 pieces, owned by a worker each
 *       node 0    0 -- 1 -- 2 -- 3
 *                 |    |    |    |         4 teams of 2 run B at once
 *       node 1    4 -- 5 -- 6 -- 7
 *
 * Pieces = least common multiple of the nodes' chunk counts (4+2 with rings: 4, of which a worker of the small node
 * owns two); leaves = pieces * chunks of B. Nodes that need fewer rounds idle. It has halves itself when B has (worker
 * owner(c) of B in the team of c's piece), so it nests on either side. While more nodes are still to be added, a sum
 * that A completes in its node is no result: A's FINAL marks are left out then, B's stand. With one node, B has nothing
 * to do and A's stand.
 *
 * All is on the lanes of A and B, unshifted: conflicting ops alone order the phases, segment by segment. More lanes
 * than one are joined by a FENCE between the phases.
 *
 * Cost: that of A on n bytes in the slowest node, and that of B on the pieces of the worker that owns most; exact for
 * equal nodes. Source: Horovod, NCCL; M. Cho et al. (BlueConnect), MLSys 2019; H. Mikami et al. (2D torus),
 * arXiv:1811.05233.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"
#include "base/memory.h"

#define MAX_PIECES 256 /* where nodes differ */

static const struct option hierarchical_options[] = {
    {.key = "intra", .type = OPTION_SPEC, .default_text = "ring", .help = "schedule within a node; must have halves"},
    {.key = "inter", .type = OPTION_SPEC, .default_text = "ring", .help = "schedule between the nodes"},
    {.key = "group",
     .type = OPTION_STRING,
     .help = "workers of a node: 4, or 4+2 to list them; else the nodes as they are"},
    {.key = NULL},
};

/* A's shape for one kind of node; nodes with the same inner layout share it. */
struct kind {
    struct layout layout;
    struct shape *shape;
};

struct hierarchy {
    struct layout nodes;
    int *local_of;     /* rank of a worker within its node                     */
    int *member_first; /* members of node i: members[member_first[i]] ..       */
    int *members;
    struct kind *kinds;
    int kind_count;
    int *kind_of; /* of a node                                            */
    struct shape *inter;
    uint32_t pieces;
    uint32_t begin, end; /* rounds of the inter phase                           */
    int *team;           /* team[piece * nodes + node]: the owner there          */
    size_t *piece_first; /* pieces of a worker, ascending: piece[piece_first[r]] .. */
    uint32_t *piece;
};

static const struct shape *intra_of(const struct hierarchy *h, int node)
{
    return h->kinds[h->kind_of[node]].shape;
}

/* ---- ops of an inner schedule as ops of this one ---- */

struct mapped {
    struct sink sink; /* first: the sink that the inner emit sees */
    struct sink *outer;
    const struct shape *outer_shape, *inner;
    const int *ranks;       /* of the inner team                      */
    uint32_t chunk0, scale; /* inner chunk c is leaves chunk0 + c * scale .. */
    bool strip;             /* FINAL: more is still to be added       */
};

static struct range map_range(const struct mapped *mapped, struct range range)
{
    const uint32_t plane = range.buffer == BUFFER_SCRATCH ? range.chunk / mapped->inner->chunks : 0;
    const uint32_t leaf = range.chunk - plane * mapped->inner->chunks;
    range.chunk = plane * mapped->outer_shape->chunks + mapped->chunk0 + leaf * mapped->scale;
    range.chunks *= mapped->scale;
    return range;
}

static enum status map_op(struct sink *sink, const struct op *op)
{
    const struct mapped *mapped = (const struct mapped *)sink;
    struct op out = *op;
    if (op->kind == OP_SEND || op->kind == OP_RECV || op->kind == OP_RECV_REDUCE) {
        if (op->peer < 0 || op->peer >= mapped->inner->workers)
            return fail(STATUS_FORMAT, "%s names worker %d of %d", mapped->inner->algorithm->name, op->peer,
                        mapped->inner->workers);
        out.peer = mapped->ranks[op->peer];
    }
    out.src = map_range(mapped, op->src);
    out.dst = map_range(mapped, op->dst);
    out.round = mapped->outer->round;
    out.wait_round = op->wait_round + (mapped->outer->round - sink->round);
    if (mapped->strip)
        out.flags = (uint8_t)(out.flags & ~OP_FINAL);
    return mapped->outer->op(mapped->outer, &out);
}

static enum status emit_mapped(struct mapped *mapped, int rank, uint32_t round)
{
    mapped->sink = (struct sink){.op = map_op, .round = round, .lane = 0};
    return mapped->inner->algorithm->emit(mapped->inner, rank, round, &mapped->sink);
}

static enum status emit_intra(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct hierarchy *h = shape->state;
    const int node = h->nodes.node_of[rank];
    const struct shape *intra = intra_of(h, node);
    const bool reducing = round < h->begin;
    const uint32_t t = reducing ? round : round - h->end + intra->split;
    if (t >= (reducing ? intra->split : intra->rounds)) /* a smaller node idles */
        return STATUS_OK;
    struct mapped mapped = {.outer = sink,
                            .outer_shape = shape,
                            .inner = intra,
                            .ranks = h->members + h->member_first[node],
                            .scale = shape->chunks / intra->chunks,
                            .strip = h->nodes.nodes > 1};
    return emit_mapped(&mapped, h->local_of[rank], t);
}

static enum status emit_inter(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct hierarchy *h = shape->state;
    for (size_t i = h->piece_first[rank]; i < h->piece_first[rank + 1]; i++) { /* ascending: both ends agree */
        const uint32_t g = h->piece[i];
        struct mapped mapped = {.outer = sink,
                                .outer_shape = shape,
                                .inner = h->inter,
                                .ranks = h->team + (size_t)g * (size_t)h->nodes.nodes,
                                .chunk0 = g * h->inter->chunks,
                                .scale = 1};
        TRY(emit_mapped(&mapped, h->nodes.node_of[rank], round - h->begin));
    }
    return STATUS_OK;
}

static enum status hierarchical_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct hierarchy *h = shape->state;
    if (shape->lanes > 1 && (round == h->begin || round == h->end))
        TRY(emit_fence(sink, 0, shape->lanes));
    return round >= h->begin && round < h->end ? emit_inter(shape, rank, round, sink)
                                               : emit_intra(shape, rank, round, sink);
}

static int hierarchical_owner(const struct shape *shape, uint32_t chunk)
{
    const struct hierarchy *h = shape->state;
    const uint32_t g = chunk / h->inter->chunks;
    int node = 0;
    if (h->nodes.nodes > 1)
        node = h->inter->algorithm->owner(h->inter, chunk % h->inter->chunks);
    return h->team[(size_t)g * (size_t)h->nodes.nodes + (size_t)node];
}

static double hierarchical_cost(const struct shape *shape, const struct cost_model *model, size_t bytes)
{
    const struct hierarchy *h = shape->state;
    double slowest = 0;
    size_t most = 0;
    if (h->inter->algorithm->cost == NULL)
        return NAN;
    for (int k = 0; k < h->kind_count; k++) {
        if (h->kinds[k].shape->algorithm->cost == NULL)
            return NAN;
        slowest = fmax(slowest, h->kinds[k].shape->algorithm->cost(h->kinds[k].shape, model, bytes));
    }
    for (int r = 0; r < shape->workers; r++) {
        const size_t owned = h->piece_first[r + 1] - h->piece_first[r];
        most = owned > most ? owned : most;
    }
    const double part = (double)bytes * (double)most / h->pieces;
    return slowest + h->inter->algorithm->cost(h->inter, model, (size_t)part);
}

/* ---- tables ---- */

static void hierarchy_release(struct hierarchy *h)
{
    if (h == NULL)
        return;
    for (int k = 0; k < h->kind_count; k++) {
        layout_release(&h->kinds[k].layout);
        shape_destroy(h->kinds[k].shape);
    }
    shape_destroy(h->inter);
    layout_release(&h->nodes);
    free(h->local_of);
    free(h->member_first);
    free(h->members);
    free(h->kinds);
    free(h->kind_of);
    free(h->team);
    free(h->piece_first);
    free(h->piece);
    free(h);
}

static void hierarchical_release(struct shape *shape)
{
    hierarchy_release(shape->state);
    shape->state = NULL;
}

static enum status make_nodes(const struct shape_request *request, struct layout *nodes)
{
    const char *group = option_text(request->options, "group");
    const int workers = request->layout->workers;
    if (group == NULL)
        return layout_copy(request->layout, nodes);
    if (strpbrk(group, "+x") == NULL) {
        long long size;
        if (parse_int(group, &size) < 0 || size < 1 || size > INT32_MAX)
            return fail(STATUS_USAGE, "hierarchical: group=%s: it takes the workers of a node, 4, or a list, 4+2",
                        group);
        return layout_groups(workers, (int)size, nodes);
    }
    TRY(layout_parse(group, 0, nodes));
    if (nodes->workers == workers)
        return STATUS_OK;
    const int grouped = nodes->workers;
    layout_release(nodes);
    return fail(STATUS_REFUSED, "hierarchical: group=%s is for %d workers, not %d", group, grouped, workers);
}

static enum status make_members(struct hierarchy *h)
{
    const size_t workers = (size_t)h->nodes.workers, nodes = (size_t)h->nodes.nodes;
    void *local = NULL, *first = NULL, *members = NULL, *kinds = NULL, *kind_of = NULL;
    TRY(memory_zeroed(&local, workers, sizeof(int)));
    h->local_of = local;
    TRY(memory_zeroed(&first, nodes + 1, sizeof(int)));
    h->member_first = first;
    TRY(memory_zeroed(&members, workers, sizeof(int)));
    h->members = members;
    TRY(memory_zeroed(&kinds, nodes, sizeof(struct kind)));
    h->kinds = kinds;
    TRY(memory_zeroed(&kind_of, nodes, sizeof(int)));
    h->kind_of = kind_of;
    for (size_t r = 0; r < workers; r++) /* sizes, shifted by one */
        h->local_of[r] = h->member_first[h->nodes.node_of[r] + 1]++;
    for (size_t i = 0; i < nodes; i++)
        h->member_first[i + 1] += h->member_first[i];
    for (size_t r = 0; r < workers; r++)
        h->members[h->member_first[h->nodes.node_of[r]] + h->local_of[r]] = (int)r;
    return STATUS_OK;
}

/* Which real node each of `count` workers is on, numbered in order of first appearance. */
static enum status sub_layout(const struct layout *real, const int *workers, int count, struct layout *sub)
{
    void *seen = NULL;
    TRY(layout_flat(count, sub));
    enum status status = memory_zeroed(&seen, (size_t)real->nodes, sizeof(int));
    if (status < 0) {
        layout_release(sub);
        return status;
    }
    int *number = seen; /* of a real node, from 1; 0: not yet seen */
    sub->nodes = 0;
    for (int i = 0; i < count; i++) {
        int *mine = &number[real->node_of[workers[i]]];
        if (*mine == 0)
            *mine = ++sub->nodes;
        sub->node_of[i] = *mine - 1;
    }
    free(seen);
    return STATUS_OK;
}

static bool same_layout(const struct layout *a, const struct layout *b)
{
    return a->workers == b->workers && a->nodes == b->nodes &&
           memcmp(a->node_of, b->node_of, (size_t)a->workers * sizeof(int)) == 0;
}

/* The kind of a node whose workers are laid out like *layout, which it takes over (or releases). */
static enum status find_kind(struct hierarchy *h, const struct spec *intra, const struct shape_request *request,
                             struct layout *layout, int *kind)
{
    for (*kind = 0; *kind < h->kind_count; (*kind)++) {
        if (same_layout(&h->kinds[*kind].layout, layout)) {
            layout_release(layout);
            return STATUS_OK;
        }
    }
    struct shape *shape;
    struct shape_request inner = *request;
    inner.layout = layout;
    inner.halves = true;
    enum status status = spec_shape_for(intra, &inner, &shape);
    if (status < 0) {
        layout_release(layout);
        return status;
    }
    h->kinds[h->kind_count++] = (struct kind){.layout = *layout, .shape = shape};
    if (!shape_has_halves(shape))
        return fail(STATUS_REFUSED,
                    "hierarchical: intra=%s never leaves a piece complete at one worker (it has no halves), so nothing "
                    "can go between the nodes: it may stand as inter",
                    shape->algorithm->name);
    return STATUS_OK;
}

static enum status make_intra(struct hierarchy *h, const struct spec *intra, const struct shape_request *request)
{
    for (int node = 0; node < h->nodes.nodes; node++) {
        const int first = h->member_first[node], count = h->member_first[node + 1] - first;
        struct layout layout;
        TRY(sub_layout(request->layout, h->members + first, count, &layout));
        TRY(find_kind(h, intra, request, &layout, &h->kind_of[node]));
    }
    return STATUS_OK;
}

static enum status make_inter(struct hierarchy *h, const struct spec *inter, const struct shape_request *request)
{
    void *leaders = NULL;
    struct layout layout = {0};
    TRY(memory_zeroed(&leaders, (size_t)h->nodes.nodes, sizeof(int)));
    for (int node = 0; node < h->nodes.nodes; node++)
        ((int *)leaders)[node] = h->members[h->member_first[node]];
    enum status status = sub_layout(request->layout, leaders, h->nodes.nodes, &layout);
    free(leaders);
    if (status < 0)
        return status;
    struct shape_request inner = *request;
    inner.layout = &layout;
    assert(h->kinds[0].shape->chunks >= 1);
    inner.count = request->count / h->kinds[0].shape->chunks; /* of a piece, where nodes are equal */
    status = spec_shape_for(inter, &inner, &h->inter);
    layout_release(&layout);
    return status;
}

static uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static enum status count_pieces(struct hierarchy *h)
{
    uint64_t pieces = 1;
    for (int k = 0; k < h->kind_count; k++) {
        const uint32_t chunks = h->kinds[k].shape->chunks;
        const uint64_t before = pieces;
        assert(chunks >= 1);
        pieces = pieces / greatest_divisor(pieces, chunks) * chunks;
        if (k > 0 && before != chunks && pieces > MAX_PIECES)
            return fail(
                STATUS_REFUSED,
                "hierarchical: nodes of different sizes cut the vector into %llu and %u chunks, which have %llu "
                "pieces in common, more than %d: intra=binomial works",
                (unsigned long long)before, chunks, (unsigned long long)pieces, MAX_PIECES);
    }
    if (pieces * h->inter->chunks > UINT32_MAX)
        return fail(STATUS_REFUSED, "hierarchical: %llu pieces of %u chunks are too many: intra=binomial works",
                    (unsigned long long)pieces, h->inter->chunks);
    h->pieces = (uint32_t)pieces;
    return STATUS_OK;
}

/* Who owns each piece in each node, and which pieces each worker owns. */
static enum status make_teams(struct hierarchy *h)
{
    const size_t nodes = (size_t)h->nodes.nodes, workers = (size_t)h->nodes.workers;
    const uint32_t pieces = h->pieces;
    void *team = NULL, *first = NULL, *piece = NULL;
    if (!checked_multiply(pieces, nodes, &(size_t){0}))
        return fail(STATUS_NO_MEMORY, "hierarchical: %u pieces on %zu nodes", pieces, nodes);
    TRY(memory_zeroed(&team, pieces * nodes, sizeof(int)));
    h->team = team;
    TRY(memory_zeroed(&first, workers + 2, sizeof(size_t)));
    h->piece_first = first;
    TRY(memory_zeroed(&piece, pieces * nodes, sizeof(uint32_t)));
    h->piece = piece;
    for (uint32_t g = 0; g < pieces; g++) {
        for (size_t node = 0; node < nodes; node++) {
            const struct shape *intra = intra_of(h, (int)node);
            const uint32_t chunk = (uint32_t)((uint64_t)g * intra->chunks / pieces);
            const int local = intra->algorithm->owner(intra, chunk);
            if (local < 0 || local >= intra->workers)
                return fail(STATUS_INTERNAL, "%s: chunk %u is owned by worker %d of %d", intra->algorithm->name, chunk,
                            local, intra->workers);
            const int owner = h->members[h->member_first[node] + local];
            h->team[g * nodes + node] = owner;
            h->piece_first[owner + 2]++; /* counts, shifted by two: the filling below shifts them back by one */
        }
    }
    for (size_t r = 0; r < workers; r++)
        h->piece_first[r + 2] += h->piece_first[r + 1];
    for (uint32_t g = 0; g < pieces; g++)
        for (size_t node = 0; node < nodes; node++)
            h->piece[h->piece_first[h->team[g * nodes + node] + 1]++] = g;
    return STATUS_OK;
}

static void fill_shape(struct hierarchy *h, struct shape *shape)
{
    const unsigned common = TRAIT_SAME_ORDER; /* what the whole has if every part has it */
    uint32_t spread = 0;
    shape->traits = (shape->traits & ~(common | TRAIT_EQUAL_BITS)) |
                    (h->inter->traits & (common | TRAIT_EQUAL_BITS)); /* in a node one worker owns each piece */
    shape->traits |= h->inter->traits & TRAIT_SIZE_DEPENDENT;
    shape->lanes = h->inter->lanes;
    shape->scratch = h->inter->scratch;
    for (int k = 0; k < h->kind_count; k++) {
        const struct shape *intra = h->kinds[k].shape;
        h->begin = intra->split > h->begin ? intra->split : h->begin;
        shape->traits &= intra->traits | ~common;
        shape->traits |= intra->traits & TRAIT_SIZE_DEPENDENT;
        spread = intra->rounds - intra->split > spread ? intra->rounds - intra->split : spread;
        shape->lanes = intra->lanes > shape->lanes ? intra->lanes : shape->lanes;
        shape->scratch = intra->scratch > shape->scratch ? intra->scratch : shape->scratch;
    }
    h->end = h->begin + h->inter->rounds;
    shape->chunks = h->pieces * h->inter->chunks;
    shape->rounds = h->end + spread;
    if (h->nodes.nodes == 1 || shape_has_halves(h->inter))
        shape->split = h->begin + h->inter->split;
    shape->state = h;
}

static enum status refuse_inexact(const char *key, const struct spec *spec)
{
    if (spec_is_exact(spec))
        return STATUS_OK;
    return fail(STATUS_REFUSED, "hierarchical: %s=%s does not compute the sum", key, spec->algorithm->name);
}

static enum status hierarchical_shape(const struct shape_request *request, struct shape *shape)
{
    enum status status;
    struct spec intra = {0}, inter = {0};
    void *memory = NULL;
    struct hierarchy *h = NULL;
    TRY_TO(out, spec_nested(request, "intra", &intra));
    TRY_TO(out, spec_nested(request, "inter", &inter));
    TRY_TO(out, refuse_inexact("intra", &intra));
    TRY_TO(out, refuse_inexact("inter", &inter));
    TRY_TO(out, memory_zeroed(&memory, 1, sizeof *h));
    h = memory;
    TRY_TO(out, make_nodes(request, &h->nodes));
    TRY_TO(out, make_members(h));
    TRY_TO(out, make_intra(h, &intra, request));
    TRY_TO(out, make_inter(h, &inter, request));
    TRY_TO(out, count_pieces(h));
    TRY_TO(out, make_teams(h));
    fill_shape(h, shape);
out:
    spec_release(&intra);
    spec_release(&inter);
    if (status < 0)
        hierarchy_release(h);
    return status;
}

/* What the parts have decided, that of the first node for all. */
static void hierarchical_describe(const struct shape *shape, struct text *text)
{
    const struct hierarchy *h = shape->state;
    struct text intra = {0}, inter = {0};
    if (shape_describe(intra_of(h, 0), &intra))
        text_addf(text, "intra %s", text_string(&intra));
    if (shape_describe(h->inter, &inter))
        text_addf(text, "%sinter %s", intra.length > 0 ? "; " : "", text_string(&inter));
    text_release(&intra);
    text_release(&inter);
}

const struct algorithm algorithm_hierarchical = {
    .name = "hierarchical",
    .aliases = "hier",
    .summary = "one schedule within the nodes around another between them; best where links within a node are faster",
    .source = "Horovod; BlueConnect (Cho et al. 2019)",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS,
    .options = hierarchical_options,
    .shape = hierarchical_shape,
    .emit = hierarchical_emit,
    .owner = hierarchical_owner,
    .release = hierarchical_release,
    .describe = hierarchical_describe,
    .cost = hierarchical_cost,
};
