/* msccl_plan.c - the ops of an MSCCL file (msccl_plan.h).
 *
 * Steps are cut into parts, each of which becomes ops of one kind: rrcs is a copy (if src is not dst), a receive that
 * reduces into dst, and a send of dst. A part belongs to a node: a local part has its own, a send and its receive share
 * one. Parts that touch a place in conflict give edges between nodes, of weight 1 where the later must be in a later
 * round. Nodes that are in a circle of weight 0 share a round (workers that exchange); the longest path is the round.
 */
#include "algos/msccl_plan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define NONE UINT32_MAX
#define MOST_PLANES 32767
#define MOST_PLACES ((size_t)1 << 25) /* of all gpus */

enum part_kind {
    PART_COPY,   /* the src of a fused step to its dst, or of cpy */
    PART_REDUCE, /* re                                            */
    PART_SEND,
    PART_RECV,
    PART_SAVE /* a leaf of the input to scratch, before anything else */
};

struct part {
    uint8_t kind;
    uint32_t node;
    size_t step;    /* PART_SAVE: the leaf                     */
    uint32_t place; /* PART_SAVE: where to                     */
};

struct edge {
    uint32_t to, weight;
    uint32_t next; /* of the same node, NONE: last */
};

struct node {
    uint32_t first_edge;
    uint32_t round;
    uint32_t group; /* strongly connected component, in reverse topological order */
};

/* Where a leaf is kept while a cell (or the sum of an rrs) holds it. */
struct kept {
    uint32_t leaf, place;
};

struct keeping {
    struct kept *kept;
    size_t count, capacity;
};

/* Who has touched a place: for edges the last writer and readers since (parts); for WAITs the latest rounds by lane. */
struct toucher {
    uint32_t part;        /* or lane              */
    uint32_t read, write; /* lane: rounds + 1, 0: none */
};

struct place {
    uint32_t writer; /* part, NONE: none */
    struct toucher *touchers;
    size_t count, capacity;
};

struct gpu {
    struct keeping *cell; /* [i, o, s]: of each chunk of the buffers                */
    struct keeping *sum;  /* [blocks]: of the rrs of each block                      */
    uint32_t *planes;     /* [chunks] scratch planes in use for a leaf               */
    uint32_t most_planes;
    bool *save; /* [chunks] the input must be copied; not in place         */
    struct part *part;
    size_t parts, part_capacity;
    struct place *place; /* [chunks * (1 + most_planes)] */
};

struct planner {
    const struct msccl *msccl;
    const struct msccl_run *run;
    struct msccl_plan *plan;
    struct gpu *gpu;
    uint32_t *src, *dst; /* [touches] places that a step reads and writes; rrs writes its sum */
    uint32_t *sent;      /* [steps] the node of what a step sends                               */
    struct node *node;
    size_t nodes, node_capacity;
    struct edge *edge;
    size_t edges, edge_capacity;
    size_t op_capacity;
};

static const struct msccl_step *step_of(const struct planner *p, size_t s)
{
    return &p->msccl->step[s];
}

static struct gpu *gpu_of(const struct planner *p, size_t s)
{
    return &p->gpu[p->run->gpu[p->run->block[s]]];
}

static uint16_t lane_of(const struct planner *p, size_t s)
{
    return p->msccl->block[p->run->block[s]].channel;
}

static enum status too_large(const struct planner *p)
{
    return fail(STATUS_REFUSED, "%s needs too much scratch memory: at most %d planes of the vector's size are taken",
                p->msccl->file, MOST_PLANES);
}

/* ---- places ---- */

static enum status new_plane(const struct planner *p, struct gpu *gpu, uint32_t leaf, uint32_t *place)
{
    if (gpu->planes[leaf] == MOST_PLANES)
        return too_large(p);
    *place = p->msccl->chunks * (1 + gpu->planes[leaf]++) + leaf;
    if (gpu->planes[leaf] > gpu->most_planes)
        gpu->most_planes = gpu->planes[leaf];
    return STATUS_OK;
}

static enum status kept_place(const struct planner *p, struct gpu *gpu, struct keeping *keeping, uint32_t leaf,
                              uint32_t *place)
{
    for (size_t i = 0; i < keeping->count; i++)
        if (keeping->kept[i].leaf == leaf) {
            *place = keeping->kept[i].place;
            return STATUS_OK;
        }
    void *memory = keeping->kept;
    TRY(memory_grow(&memory, &keeping->capacity, keeping->count + 1, sizeof(struct kept)));
    keeping->kept = memory;
    TRY(new_plane(p, gpu, leaf, place));
    keeping->kept[keeping->count++] = (struct kept){.leaf = leaf, .place = *place};
    return STATUS_OK;
}

/* The place of chunk k of a step's src or dst. */
static enum status place_of(const struct planner *p, struct gpu *gpu, const struct msccl_place *at, uint32_t k,
                            uint32_t leaf, uint32_t *place)
{
    const uint32_t chunk = at->offset + k;
    const bool result = at->buffer == (p->msccl->in_place ? MSCCL_INPUT : MSCCL_OUTPUT);
    const bool input = !p->msccl->in_place && at->buffer == MSCCL_INPUT && !gpu->save[chunk];
    if (chunk == leaf && (result || input)) {
        *place = leaf;
        return STATUS_OK;
    }
    return kept_place(p, gpu, &gpu->cell[at->buffer * (size_t)p->msccl->chunks + chunk], leaf, place);
}

/* Which chunks of i are written, or read after the same chunk of o was written. A step that reads i and writes o at
 * once is none of these. */
static enum status find_saves(const struct planner *p)
{
    const struct msccl *msccl = p->msccl;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, (size_t)msccl->workers * msccl->chunks, sizeof(bool)));
    bool *written = memory;
    for (size_t i = 0; i < msccl->steps; i++) {
        const size_t s = p->run->order[i];
        const struct msccl_step *step = step_of(p, s);
        struct gpu *gpu = gpu_of(p, s);
        bool *mine = written + (size_t)(gpu - p->gpu) * msccl->chunks;
        for (uint32_t k = 0; msccl_reads_src(step->type) && step->src.buffer == MSCCL_INPUT && k < step->count; k++)
            gpu->save[step->src.offset + k] |= mine[step->src.offset + k];
        for (uint32_t k = 0; msccl_writes_dst(step->type) && k < step->count; k++) {
            if (step->dst.buffer == MSCCL_INPUT)
                gpu->save[step->dst.offset + k] = true;
            else if (step->dst.buffer == MSCCL_OUTPUT)
                mine[step->dst.offset + k] = true;
        }
    }
    free(written);
    return STATUS_OK;
}

static enum status find_places(const struct planner *p)
{
    for (size_t i = 0; i < p->msccl->steps; i++) {
        const size_t s = p->run->order[i], t = p->run->touch[s];
        const struct msccl_step *step = step_of(p, s);
        const uint32_t block = p->run->block[s];
        struct gpu *gpu = gpu_of(p, s);
        struct keeping *sum = &gpu->sum[block - p->msccl->gpu[gpu - p->gpu].block];
        for (uint32_t k = 0; k < step->count; k++) {
            const uint32_t leaf = p->run->leaf[t + k];
            if (msccl_reads_src(step->type))
                TRY(place_of(p, gpu, &step->src, k, leaf, &p->src[t + k]));
            if (msccl_writes_dst(step->type))
                TRY(place_of(p, gpu, &step->dst, k, leaf, &p->dst[t + k]));
            else if (step->type == MSCCL_RRS)
                TRY(kept_place(p, gpu, sum, leaf, &p->dst[t + k]));
        }
    }
    return STATUS_OK;
}

/* ---- nodes and edges ---- */

static enum status new_node(struct planner *p, uint32_t *node)
{
    void *memory = p->node;
    TRY(memory_grow(&memory, &p->node_capacity, p->nodes + 1, sizeof(struct node)));
    p->node = memory;
    *node = (uint32_t)p->nodes;
    p->node[p->nodes++] = (struct node){.first_edge = NONE, .group = NONE};
    return STATUS_OK;
}

static enum status add_edge(struct planner *p, uint32_t from, uint32_t to, uint32_t weight)
{
    assert(p->node != NULL);
    const uint32_t latest = p->node[from].first_edge;
    if (from == to || (latest != NONE && p->edge[latest].to == to && p->edge[latest].weight >= weight))
        return STATUS_OK;
    void *memory = p->edge;
    TRY(memory_grow(&memory, &p->edge_capacity, p->edges + 1, sizeof(struct edge)));
    p->edge = memory;
    p->edge[p->edges] = (struct edge){.to = to, .weight = weight, .next = latest};
    p->node[from].first_edge = (uint32_t)p->edges++;
    return STATUS_OK;
}

static uint16_t part_lane(const struct planner *p, const struct part *part)
{
    return part->kind == PART_SAVE ? 0 : lane_of(p, part->step);
}

/* Must `after` be in a later round than `before`? Within a round, what receives is emitted last; a WAIT for the own
 * round then covers only ops that are to come first if all that receives in it follows sends. */
static uint32_t weight(const struct planner *p, const struct part *before, const struct part *after)
{
    if (before->kind == PART_RECV && after->kind != PART_RECV)
        return 1;
    if (part_lane(p, before) == part_lane(p, after))
        return 0;
    return before->kind != PART_SEND || after->kind != PART_RECV;
}

static enum status touch(struct planner *p, struct gpu *gpu, uint32_t at, uint32_t part, bool writes)
{
    struct place *place = &gpu->place[at];
    const struct part *mine = &gpu->part[part];
    if (place->writer != NONE)
        TRY(add_edge(p, gpu->part[place->writer].node, mine->node, weight(p, &gpu->part[place->writer], mine)));
    if (!writes) {
        void *memory = place->touchers;
        TRY(memory_grow(&memory, &place->capacity, place->count + 1, sizeof(struct toucher)));
        place->touchers = memory;
        place->touchers[place->count++] = (struct toucher){.part = part};
        return STATUS_OK;
    }
    for (size_t i = 0; i < place->count; i++) {
        const struct part *reader = &gpu->part[place->touchers[i].part];
        TRY(add_edge(p, reader->node, mine->node, weight(p, reader, mine)));
    }
    place->count = 0;
    place->writer = part;
    return STATUS_OK;
}

/* The places that chunk k of a part reads and writes; NONE: none. */
static void part_places(const struct planner *p, const struct part *part, uint32_t k, uint32_t *reads, uint32_t *writes)
{
    *reads = *writes = NONE;
    if (part->kind == PART_SAVE) {
        *reads = (uint32_t)part->step;
        *writes = part->place;
        return;
    }
    const size_t t = p->run->touch[part->step] + k;
    const struct msccl_step *step = step_of(p, part->step);
    if (part->kind == PART_SEND) {
        *reads = step->type == MSCCL_S ? p->src[t] : p->dst[t];
    } else if (part->kind == PART_RECV) {
        *writes = p->dst[t];
    } else if (p->src[t] != p->dst[t]) { /* else there is nothing to copy; re adds to itself nowhere */
        *reads = p->src[t];
        *writes = p->dst[t];
    }
}

static enum status add_part(struct planner *p, struct gpu *gpu, struct part part)
{
    void *memory = gpu->part;
    TRY(memory_grow(&memory, &gpu->part_capacity, gpu->parts + 1, sizeof(struct part)));
    gpu->part = memory;
    const uint32_t index = (uint32_t)gpu->parts++;
    gpu->part[index] = part;
    const uint32_t count = part.kind == PART_SAVE ? 1 : step_of(p, part.step)->count;
    for (uint32_t k = 0; k < count; k++) {
        uint32_t reads = NONE, writes = NONE;
        part_places(p, &part, k, &reads, &writes);
        if (reads != NONE)
            TRY(touch(p, gpu, reads, index, false));
        if (writes != NONE)
            TRY(touch(p, gpu, writes, index, true));
    }
    return STATUS_OK;
}

static bool copies(const struct planner *p, size_t s)
{
    const struct msccl_step *step = step_of(p, s);
    if (step->type != MSCCL_CPY && !(msccl_receives(step->type) && msccl_reduces(step->type)))
        return false;
    for (size_t t = p->run->touch[s]; t < p->run->touch[s + 1]; t++)
        if (p->src[t] != p->dst[t])
            return true;
    return false;
}

static enum status add_step(struct planner *p, size_t s)
{
    const struct msccl_step *step = step_of(p, s);
    struct gpu *gpu = gpu_of(p, s);
    struct part part = {.step = s};
    if (copies(p, s) || step->type == MSCCL_RE) {
        part.kind = step->type == MSCCL_RE ? PART_REDUCE : PART_COPY;
        TRY(new_node(p, &part.node));
        TRY(add_part(p, gpu, part));
    }
    if (msccl_receives(step->type)) {
        part.kind = PART_RECV;
        part.node = p->sent[p->run->from[s]];
        TRY(add_part(p, gpu, part));
    }
    if (msccl_sends(step->type)) {
        part.kind = PART_SEND;
        TRY(new_node(p, &part.node));
        p->sent[s] = part.node;
        TRY(add_part(p, gpu, part));
    }
    return STATUS_OK;
}

static enum status add_saves(struct planner *p, struct gpu *gpu)
{
    for (uint32_t c = 0; c < p->msccl->chunks; c++) {
        if (!gpu->save[c])
            continue;
        struct part part = {.kind = PART_SAVE, .step = c};
        TRY(kept_place(p, gpu, &gpu->cell[c], c, &part.place));
        TRY(new_node(p, &part.node));
        TRY(add_part(p, gpu, part));
    }
    return STATUS_OK;
}

/* Messages of a channel keep their order. */
static enum status order_messages(struct planner *p)
{
    for (size_t b = 0; b < p->msccl->blocks; b++) {
        const struct msccl_block *block = &p->msccl->block[b];
        uint32_t previous = NONE;
        for (size_t s = block->step; s < block->step + block->steps; s++) {
            if (!msccl_sends(step_of(p, s)->type))
                continue;
            if (previous != NONE)
                TRY(add_edge(p, previous, p->sent[s], 0));
            previous = p->sent[s];
        }
    }
    return STATUS_OK;
}

static enum status make_places(struct planner *p)
{
    size_t all = 0;
    void *memory = NULL;
    for (int g = 0; g < p->msccl->workers; g++) {
        struct gpu *gpu = &p->gpu[g];
        for (uint32_t c = 0; c < p->msccl->chunks; c++) { /* saves are placed first */
            uint32_t place = 0;
            if (gpu->save[c])
                TRY(kept_place(p, gpu, &gpu->cell[c], c, &place));
        }
        const size_t places = (size_t)p->msccl->chunks * (1 + gpu->most_planes);
        all += places;
        if (all > MOST_PLACES)
            return too_large(p);
        TRY(memory_zeroed(&memory, places, sizeof(struct place)));
        gpu->place = memory;
        for (size_t i = 0; i < places; i++)
            gpu->place[i].writer = NONE;
        if (gpu->most_planes > p->plan->scratch)
            p->plan->scratch = gpu->most_planes;
    }
    return STATUS_OK;
}

static enum status make_nodes(struct planner *p)
{
    TRY(make_places(p));
    for (int g = 0; g < p->msccl->workers; g++)
        TRY(add_saves(p, &p->gpu[g]));
    for (size_t i = 0; i < p->msccl->steps; i++)
        TRY(add_step(p, p->run->order[i]));
    return order_messages(p);
}

/* ---- rounds ---- */

/* Tarjan's algorithm with a stack of its own: groups are numbered so that edges lead to lower numbers. */
struct tarjan {
    uint32_t *index, *low; /* [nodes] order of discovery + 1, 0: not yet    */
    uint32_t *edge;        /* [nodes] next edge to follow                   */
    uint32_t *path, *open; /* [nodes] stacks: being visited; not yet in a group */
    size_t path_length, opened;
    uint32_t found, groups;
};

static void enter(struct planner *p, struct tarjan *t, uint32_t v)
{
    t->index[v] = t->low[v] = ++t->found;
    t->edge[v] = p->node[v].first_edge;
    t->path[t->path_length++] = v;
    t->open[t->opened++] = v;
}

static void leave(struct planner *p, struct tarjan *t, uint32_t v)
{
    t->path_length--;
    if (t->path_length > 0 && t->low[v] < t->low[t->path[t->path_length - 1]])
        t->low[t->path[t->path_length - 1]] = t->low[v];
    if (t->low[v] != t->index[v])
        return;
    while (p->node[v].group == NONE)
        p->node[t->open[--t->opened]].group = t->groups;
    t->groups++;
}

static void find_groups(struct planner *p, struct tarjan *t)
{
    for (uint32_t root = 0; root < p->nodes; root++) {
        if (t->index[root] != 0)
            continue;
        enter(p, t, root);
        while (t->path_length > 0) {
            const uint32_t v = t->path[t->path_length - 1];
            if (t->edge[v] == NONE) {
                leave(p, t, v);
                continue;
            }
            const uint32_t to = p->edge[t->edge[v]].to;
            t->edge[v] = p->edge[t->edge[v]].next;
            if (t->index[to] == 0)
                enter(p, t, to);
            else if (p->node[to].group == NONE && t->index[to] < t->low[v])
                t->low[v] = t->index[to];
        }
    }
}

/* Names a message of the group; there is one, since the steps of a gpu alone are in no circle. */
static enum status report_circle(const struct planner *p, uint32_t group)
{
    size_t s = 0;
    while (s + 1 < p->msccl->steps && !(msccl_sends(step_of(p, s)->type) && p->node[p->sent[s]].group == group))
        s++;
    return fail(STATUS_FORMAT,
                "%s:%d: deadlock: this message is in a circle of messages each of which must arrive before the next is "
                "sent, unless the network buffers them",
                p->msccl->file, step_of(p, s)->line);
}

/* The longest path to each group; `order` has the nodes by falling group, that is, from the sources on. */
static enum status find_rounds(struct planner *p, const uint32_t *order, uint32_t *round)
{
    for (size_t i = 0; i < p->nodes; i++) {
        const struct node *node = &p->node[order[i]];
        for (uint32_t e = node->first_edge; e != NONE; e = p->edge[e].next) {
            const struct node *to = &p->node[p->edge[e].to];
            if (to->group == node->group && p->edge[e].weight > 0)
                return report_circle(p, node->group);
            if (round[node->group] + p->edge[e].weight > round[to->group])
                round[to->group] = round[node->group] + p->edge[e].weight;
        }
    }
    for (size_t n = 0; n < p->nodes; n++) {
        p->node[n].round = round[p->node[n].group];
        if (p->node[n].round + 1 > p->plan->rounds)
            p->plan->rounds = p->node[n].round + 1;
    }
    return STATUS_OK;
}

/* Nodes by falling group, by counting. */
static void sort_nodes(const struct planner *p, uint32_t groups, uint32_t *begin, uint32_t *order)
{
    for (size_t n = 0; n < p->nodes; n++)
        begin[groups - p->node[n].group]++;
    for (uint32_t g = 0; g < groups; g++)
        begin[g + 1] += begin[g];
    for (size_t n = 0; n < p->nodes; n++)
        order[begin[groups - 1 - p->node[n].group]++] = (uint32_t)n;
}

static enum status group_nodes(struct planner *p, uint32_t *groups)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 5 * p->nodes, sizeof(uint32_t)));
    struct tarjan t = {.index = memory};
    t.low = t.index + p->nodes;
    t.edge = t.low + p->nodes;
    t.path = t.edge + p->nodes;
    t.open = t.path + p->nodes;
    find_groups(p, &t);
    *groups = t.groups;
    free(memory);
    return STATUS_OK;
}

static enum status make_rounds(struct planner *p)
{
    uint32_t groups = 0;
    TRY(group_nodes(p, &groups));
    void *memory = NULL;
    TRY(memory_zeroed(&memory, p->nodes + 2 * (size_t)groups + 1, sizeof(uint32_t)));
    uint32_t *order = memory, *round = order + p->nodes, *begin = round + groups;
    sort_nodes(p, groups, begin, order);
    const enum status status = find_rounds(p, order, round);
    free(memory);
    return status;
}

/* ---- ops ---- */

/* A part in its place in the emission. */
struct turn {
    uint32_t round, part;
    bool receives;
};

static int compare_turns(const void *a, const void *b)
{
    const struct turn *x = a, *y = b;
    if (x->round != y->round)
        return x->round < y->round ? -1 : 1;
    if (x->receives != y->receives)
        return x->receives ? 1 : -1;
    return (x->part > y->part) - (x->part < y->part);
}

static enum status emit(struct planner *p, const struct op *op)
{
    void *memory = p->plan->op;
    TRY(memory_grow(&memory, &p->op_capacity, p->plan->ops + 1, sizeof(struct op)));
    p->plan->op = memory;
    p->plan->op[p->plan->ops++] = *op;
    return STATUS_OK;
}

static struct range range_of(const struct planner *p, uint32_t place, uint32_t count)
{
    const uint32_t chunks = p->msccl->chunks;
    if (place < chunks)
        return (struct range){.chunk = place, .chunks = count, .buffer = BUFFER_VECTOR};
    return (struct range){.chunk = place - chunks, .chunks = count, .buffer = BUFFER_SCRATCH};
}

/* Do chunks k-1 and k lie side by side at this end of a message, or in this local part? */
static bool continues(const struct planner *p, const struct part *part, uint32_t k)
{
    uint32_t reads[2], writes[2];
    const size_t t = p->run->touch[part->step] + k;
    if (p->run->leaf[t] != p->run->leaf[t - 1] + 1 || p->run->complete[t] != p->run->complete[t - 1])
        return false;
    part_places(p, part, k - 1, &reads[0], &writes[0]);
    part_places(p, part, k, &reads[1], &writes[1]);
    return (reads[0] == NONE ? reads[1] == NONE : reads[1] == reads[0] + 1) &&
           (writes[0] == NONE ? writes[1] == NONE : writes[1] == writes[0] + 1);
}

/* The same, for both ends of a message. */
static bool joins(const struct planner *p, const struct part *part, uint32_t k)
{
    struct part other = {.kind = PART_RECV};
    if (!continues(p, part, k))
        return false;
    if (part->kind == PART_SEND) {
        other.step = p->run->to[part->step];
    } else if (part->kind == PART_RECV) {
        other.kind = PART_SEND;
        other.step = p->run->from[part->step];
    } else {
        return true;
    }
    return continues(p, &other, k);
}

static enum status emit_piece(struct planner *p, const struct part *part, uint32_t k, uint32_t count, bool more)
{
    uint32_t reads = NONE, writes = NONE;
    part_places(p, part, k, &reads, &writes);
    if (reads == NONE && writes == NONE)
        return STATUS_OK; /* a copy onto itself */
    struct op op = {.lane = part_lane(p, part), .peer = -1, .weight = 1, .round = p->node[part->node].round};
    if (reads != NONE)
        op.src = range_of(p, reads, count);
    if (writes != NONE)
        op.dst = range_of(p, writes, count);
    if (part->kind == PART_SAVE || part->kind == PART_COPY) {
        op.kind = OP_COPY;
        return emit(p, &op);
    }
    const struct msccl_block *block = &p->msccl->block[p->run->block[part->step]];
    const bool reduces = part->kind != PART_SEND && msccl_reduces(step_of(p, part->step)->type);
    if (reduces && p->run->complete[p->run->touch[part->step] + k])
        op.flags = OP_FINAL;
    if (more)
        op.flags |= OP_MORE;
    if (part->kind == PART_SEND) {
        op.kind = OP_SEND;
        op.peer = block->send;
    } else if (part->kind == PART_RECV) {
        op.kind = reduces ? OP_RECV_REDUCE : OP_RECV;
        op.peer = block->recv;
    } else {
        op.kind = OP_REDUCE;
    }
    return emit(p, &op);
}

static enum status emit_part(struct planner *p, const struct part *part)
{
    if (part->kind == PART_SAVE)
        return emit_piece(p, part, 0, 1, false);
    const uint32_t count = step_of(p, part->step)->count;
    const bool message = part->kind == PART_SEND || part->kind == PART_RECV;
    for (uint32_t k = 0, end = 1; k < count; k = end) {
        for (end = k + 1; end < count && joins(p, part, end);)
            end++;
        TRY(emit_piece(p, part, k, end - k, message && end < count));
    }
    return STATUS_OK;
}

/* ---- waits ---- */

/* For each place: the latest round of every lane that reads or writes it; waited[own][other]: rounds waited for + 1. */
struct waits {
    size_t lanes;
    uint32_t *waited; /* [lanes * lanes] */
    uint32_t *wanted; /* [lanes]         */
};

/* What the part of `lane` must wait for at this place, and that it was here. */
static enum status wait_at(struct waits *waits, struct place *place, uint16_t lane, uint32_t round, bool writes)
{
    size_t mine = place->count;
    for (size_t i = 0; i < place->count; i++) {
        const struct toucher *other = &place->touchers[i];
        if (other->part == lane) {
            mine = i;
            continue;
        }
        const uint32_t until = writes && other->read > other->write ? other->read : other->write;
        if (until > waits->wanted[other->part])
            waits->wanted[other->part] = until;
    }
    if (mine == place->count) {
        void *memory = place->touchers;
        TRY(memory_grow(&memory, &place->capacity, place->count + 1, sizeof(struct toucher)));
        place->touchers = memory;
        place->touchers[place->count++] = (struct toucher){.part = lane};
    }
    if (writes)
        place->touchers[mine].write = round + 1;
    else
        place->touchers[mine].read = round + 1;
    return STATUS_OK;
}

static enum status emit_waits(struct planner *p, struct gpu *gpu, struct waits *waits, const struct part *part)
{
    const uint16_t lane = part_lane(p, part);
    const uint32_t round = p->node[part->node].round;
    const uint32_t count = part->kind == PART_SAVE ? 1 : step_of(p, part->step)->count;
    memset(waits->wanted, 0, waits->lanes * sizeof(uint32_t));
    for (uint32_t k = 0; k < count; k++) {
        uint32_t reads = NONE, writes = NONE;
        part_places(p, part, k, &reads, &writes);
        if (reads != NONE)
            TRY(wait_at(waits, &gpu->place[reads], lane, round, false));
        if (writes != NONE)
            TRY(wait_at(waits, &gpu->place[writes], lane, round, true));
    }
    uint32_t *waited = waits->waited + lane * waits->lanes;
    for (size_t l = 0; l < waits->lanes; l++) {
        if (l == lane || waits->wanted[l] <= waited[l])
            continue;
        waited[l] = waits->wanted[l];
        TRY(emit(p, &(struct op){.kind = OP_WAIT,
                                 .lane = lane,
                                 .peer = -1,
                                 .weight = 1,
                                 .round = round,
                                 .wait_lane = (uint16_t)l,
                                 .wait_round = waits->wanted[l] - 1}));
    }
    return STATUS_OK;
}

/* ---- emission ---- */

static enum status emit_turns(struct planner *p, size_t g, struct waits *waits, const struct turn *turns)
{
    struct gpu *gpu = &p->gpu[g];
    memset(waits->waited, 0, waits->lanes * waits->lanes * sizeof(uint32_t));
    size_t i = 0;
    for (uint32_t round = 0; round < p->plan->rounds; round++) {
        p->plan->first[g * p->plan->rounds + round] = p->plan->ops;
        for (; i < gpu->parts && turns[i].round == round; i++) {
            const struct part *part = &gpu->part[turns[i].part];
            TRY(emit_waits(p, gpu, waits, part));
            TRY(emit_part(p, part));
        }
    }
    return STATUS_OK;
}

static enum status emit_gpu(struct planner *p, size_t g, struct waits *waits)
{
    struct gpu *gpu = &p->gpu[g];
    void *memory = NULL;
    TRY(memory_zeroed(&memory, gpu->parts, sizeof(struct turn)));
    struct turn *turns = memory;
    for (uint32_t i = 0; i < gpu->parts; i++)
        turns[i] = (struct turn){
            .round = p->node[gpu->part[i].node].round, .part = i, .receives = gpu->part[i].kind == PART_RECV};
    if (gpu->parts > 0)
        qsort(turns, gpu->parts, sizeof *turns, compare_turns);
    for (size_t i = 0; i < (size_t)p->msccl->chunks * (1 + gpu->most_planes); i++)
        gpu->place[i].count = 0; /* from now on by lane */
    const enum status status = emit_turns(p, g, waits, turns);
    free(turns);
    return status;
}

static enum status emit_all(struct planner *p)
{
    enum status status = STATUS_OK;
    struct waits waits = {.lanes = p->msccl->channels};
    void *memory = NULL;
    const size_t p_rounds = (size_t)p->msccl->workers * p->plan->rounds;
    TRY(memory_zeroed(&memory, p_rounds + 1, sizeof(size_t)));
    p->plan->first = memory;
    TRY(memory_zeroed(&memory, (waits.lanes + 1) * waits.lanes, sizeof(uint32_t)));
    waits.waited = memory;
    waits.wanted = waits.waited + waits.lanes * waits.lanes;
    for (int g = 0; g < p->msccl->workers; g++)
        TRY_TO(done, emit_gpu(p, (size_t)g, &waits));
    p->plan->first[p_rounds] = p->plan->ops;
done:
    free(waits.waited);
    return status;
}

/* ---- the whole ---- */

static enum status make_gpu(const struct planner *p, int g)
{
    const struct msccl *msccl = p->msccl;
    struct gpu *gpu = &p->gpu[g];
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 2 * (size_t)msccl->chunks + msccl->gpu[g].chunks[MSCCL_SCRATCH],
                      sizeof(struct keeping)));
    gpu->cell = memory;
    TRY(memory_zeroed(&memory, msccl->gpu[g].blocks, sizeof(struct keeping)));
    gpu->sum = memory;
    TRY(memory_zeroed(&memory, msccl->chunks, sizeof(uint32_t)));
    gpu->planes = memory;
    TRY(memory_zeroed(&memory, msccl->chunks, sizeof(bool)));
    gpu->save = memory;
    return STATUS_OK;
}

static enum status make_planner(struct planner *p)
{
    const size_t touches = p->run->touch[p->msccl->steps];
    void *memory = NULL;
    TRY(memory_zeroed(&memory, (size_t)p->msccl->workers, sizeof(struct gpu)));
    p->gpu = memory;
    for (int g = 0; g < p->msccl->workers; g++)
        TRY(make_gpu(p, g));
    TRY(memory_zeroed(&memory, touches, sizeof(uint32_t)));
    p->src = memory;
    TRY(memory_zeroed(&memory, touches, sizeof(uint32_t)));
    p->dst = memory;
    TRY(memory_zeroed(&memory, p->msccl->steps, sizeof(uint32_t)));
    p->sent = memory;
    return STATUS_OK;
}

static void release_gpu(const struct msccl *msccl, int g, struct gpu *gpu)
{
    const size_t cells = 2 * (size_t)msccl->chunks + msccl->gpu[g].chunks[MSCCL_SCRATCH];
    for (size_t c = 0; gpu->cell != NULL && c < cells; c++)
        free(gpu->cell[c].kept);
    for (size_t b = 0; gpu->sum != NULL && b < msccl->gpu[g].blocks; b++)
        free(gpu->sum[b].kept);
    for (size_t i = 0; gpu->place != NULL && i < (size_t)msccl->chunks * (1 + gpu->most_planes); i++)
        free(gpu->place[i].touchers);
    free(gpu->cell);
    free(gpu->sum);
    free(gpu->planes);
    free(gpu->save);
    free(gpu->part);
    free(gpu->place);
}

static void release_planner(struct planner *p)
{
    for (int g = 0; p->gpu != NULL && g < p->msccl->workers; g++)
        release_gpu(p->msccl, g, &p->gpu[g]);
    free(p->gpu);
    free(p->src);
    free(p->dst);
    free(p->sent);
    free(p->node);
    free(p->edge);
}

enum status msccl_plan(const struct msccl *msccl, const struct msccl_run *run, struct msccl_plan *plan)
{
    enum status status = STATUS_OK;
    struct planner p = {.msccl = msccl, .run = run, .plan = plan};
    *plan = (struct msccl_plan){0};
    TRY_TO(done, make_planner(&p));
    if (!msccl->in_place)
        TRY_TO(done, find_saves(&p));
    TRY_TO(done, find_places(&p));
    TRY_TO(done, make_nodes(&p));
    TRY_TO(done, make_rounds(&p));
    TRY_TO(done, emit_all(&p));
done:
    release_planner(&p);
    if (status < 0)
        msccl_plan_release(plan);
    return status;
}

void msccl_plan_release(struct msccl_plan *plan)
{
    free(plan->op);
    free(plan->first);
    *plan = (struct msccl_plan){0};
}
