/* test_trees.c - what is particular to schedules on trees: their shape, their steps, who sends how much. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/algos/support_schedule.h"

#define MOST_WORKERS 70
#define MOST_OPS 32

static uint32_t ceil_log2(int n)
{
    uint32_t levels = 0;
    while ((1 << levels) < n)
        levels++;
    return levels;
}

static uint32_t floor_log2(int n)
{
    uint32_t levels = 0;
    while ((2 << levels) <= n)
        levels++;
    return levels;
}

static struct shape *shape_with(const char *name, const char *key, int value, int workers)
{
    char spec[64];
    (void)snprintf(spec, sizeof spec, "%s:%s=%d", name, key, value);
    return schedule_of(spec, workers);
}

/* ---- what a tree looks like, from its ops ---- */

struct tree {
    int parent[MOST_WORKERS], children[MOST_WORKERS];
    int sums[MOST_WORKERS]; /* ops of a worker that complete a chunk */
};

/* Who sends what is still to be added to whom, in one lane. Nobody has two parents. */
static void find_tree(const struct shape *shape, uint16_t lane, struct tree *tree)
{
    bool child[MOST_WORKERS][MOST_WORKERS] = {{false}};
    struct op ops[MOST_OPS];
    *tree = (struct tree){.children = {0}};
    for (int r = 0; r < shape->workers; r++)
        tree->parent[r] = -1;
    for (int r = 0; r < shape->workers; r++)
        for (uint32_t round = 0; round < shape->rounds; round++) {
            const size_t count = ops_of(shape, r, round, ops, MOST_OPS);
            for (size_t i = 0; i < count; i++) {
                if (ops[i].kind != OP_RECV_REDUCE || ops[i].lane != lane)
                    continue;
                tree->sums[r] += (ops[i].flags & OP_FINAL) != 0;
                if (child[r][ops[i].peer])
                    continue;
                child[r][ops[i].peer] = true;
                tree->children[r]++;
                cr_assert_eq(tree->parent[ops[i].peer], -1, "worker %d has two parents", ops[i].peer);
                tree->parent[ops[i].peer] = r;
            }
        }
}

static uint32_t depth_of(const struct tree *tree, int rank)
{
    uint32_t depth = 0;
    for (; tree->parent[rank] >= 0; rank = tree->parent[rank]) {
        depth++;
        cr_assert_lt(depth, MOST_WORKERS, "a circle");
    }
    return depth;
}

static uint32_t height_of(const struct tree *tree, int workers)
{
    uint32_t height = 0;
    for (int r = 0; r < workers; r++)
        height = depth_of(tree, r) > height ? depth_of(tree, r) : height;
    return height;
}

static bool touches(const struct op *op, const struct op *other)
{
    const struct range *a = op->kind == OP_SEND ? &op->src : &op->dst;
    const struct range *b = other->kind == OP_SEND ? &other->src : &other->dst;
    return (op->kind != OP_SEND || other->kind != OP_SEND) && a->chunk < b->chunk + b->chunks &&
           b->chunk < a->chunk + a->chunks;
}

static bool both_reduce(const struct op *op, const struct op *other)
{
    return op->kind == OP_RECV_REDUCE && other->kind == OP_RECV_REDUCE; /* from two children */
}

/* A round is a step: what a worker does in it rests on earlier ones alone. */
static void expect_steps(const struct shape *shape)
{
    struct op ops[MOST_OPS];
    for (int r = 0; r < shape->workers; r++)
        for (uint32_t round = 0; round < shape->rounds; round++) {
            const size_t count = ops_of(shape, r, round, ops, MOST_OPS);
            for (size_t i = 0; i < count; i++)
                for (size_t k = 0; k < i; k++)
                    cr_expect(both_reduce(&ops[i], &ops[k]) || !touches(&ops[i], &ops[k]),
                              "%s for %d: worker %d round %u", shape->algorithm->name, shape->workers, r, round);
        }
}

/* ---- k-nomial ---- */

Test(k_nomial, of_radix_2_is_binomial)
{
    for (int p = 1; p <= 40; p++)
        expect_same_ops("k-nomial:radix=2", "binomial", p);
}

Test(k_nomial, has_a_level_for_each_digit_and_a_message_for_each_edge)
{
    for (int radix = 2; radix <= 9; radix++)
        for (int p = 1; p <= 40; p++) {
            struct shape *shape = shape_with("k-nomial", "radix", radix, p);
            uint32_t levels = 0;
            size_t all = 0;
            for (long long reach = 1; reach < p; reach *= radix)
                levels++;
            cr_expect_eq(shape->rounds, 2 * levels);
            cr_expect_eq(shape->split, levels);
            for (int r = 0; r < p; r++) {
                size_t messages;
                cr_assert_eq(shape_traffic(shape, r, 10, 1, NULL, &messages), STATUS_OK);
                all += messages;
            }
            cr_expect_eq(all, 2 * ((size_t)p - 1));
            shape_destroy(shape);
        }
}

Test(k_nomial, worker_0_of_a_full_tree_serves_all_its_children)
{
    struct shape *shape = schedule_of("k-nomial:radix=3", 27);
    expect_sends(shape, 0, 100, 6 * 100, 6);
    expect_sends(shape, 9, 100, 5 * 100, 5);
    expect_sends(shape, 1, 100, 100, 1);
    shape_destroy(shape);
    shape = schedule_of("k-nomial:radix=64", 20);
    cr_expect_eq(shape->rounds, 2);
    expect_sends(shape, 0, 100, 19 * 100, 19);
    shape_destroy(shape);
}

Test(k_nomial, is_proved_for_any_radix)
{
    static const char *const specs[] = {"k-nomial:radix=2", "k-nomial:radix=3", "k-nomial", "k-nomial:radix=8"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        for (int p = 1; p <= 30; p++)
            expect_proved(specs[i], p);
}

/* ---- pipelined trees ---- */

static const int pieces[] = {1, 2, 17};

Test(pipelined_trees, are_proved_for_any_number_of_pieces)
{
    static const char *const names[] = {"chain", "binary-tree", "double-binary-tree", "dual-root"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (size_t k = 0; k < sizeof pieces / sizeof pieces[0]; k++)
            for (int p = 1; p <= 20; p++) {
                char spec[64];
                (void)snprintf(spec, sizeof spec, "%s:chunks=%d", names[i], pieces[k]);
                expect_proved(spec, p);
            }
}

Test(pipelined_trees, have_halves_where_pieces_do_not_overlap)
{
    static const char *const names[] = {"chain", "binary-tree", "double-binary-tree"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct shape *one = shape_with(names[i], "chunks", 1, 6), *two = shape_with(names[i], "chunks", 2, 6);
        cr_expect(shape_has_halves(one));
        cr_expect_eq(one->split, one->rounds / 2);
        cr_expect_not(shape_has_halves(two));
        shape_destroy(one);
        shape_destroy(two);
    }
    expect_schedule_refused("hierarchical:group=3,intra=chain", 6, "halves");
    expect_proved("hierarchical:group=3,intra=[chain:chunks=1],inter=dbt", 9); /* NCCL's trees over nodes */
}

Test(dual_root, has_no_halves)
{
    expect_schedule_refused("hierarchical:group=2,intra=[dual-root:chunks=1]", 4, "halves");
}

Test(chain, passes_on_along_a_line_and_back)
{
    for (size_t k = 0; k < sizeof pieces / sizeof pieces[0]; k++)
        for (int p = 2; p <= 20; p++) {
            struct shape *shape = shape_with("chain", "chunks", pieces[k], p);
            const uint32_t last = (uint32_t)p - 1;
            const size_t n = 34, sent = (size_t)pieces[k];
            struct tree tree;
            cr_expect_eq(shape->rounds, 2 * last + (uint32_t)pieces[k] - 1);
            find_tree(shape, 0, &tree);
            for (int r = 0; r < p; r++) {
                const bool end = r == 0 || r == p - 1;
                cr_expect_eq(tree.parent[r], r == p - 1 ? -1 : r + 1, "sums are taken in the order of ranks");
                cr_expect_eq(tree.sums[r], r == p - 1 ? pieces[k] : 0);
                expect_sends(shape, r, n, end ? n : 2 * n, end ? sent : 2 * sent);
            }
            expect_steps(shape);
            shape_destroy(shape);
        }
}

Test(binary_tree, is_balanced_and_a_worker_sends_three_vectors_at_most)
{
    for (size_t k = 0; k < sizeof pieces / sizeof pieces[0]; k++)
        for (int p = 2; p <= 40; p++) {
            struct shape *shape = shape_with("binary-tree", "chunks", pieces[k], p);
            const size_t n = 34, sent = (size_t)pieces[k];
            struct tree tree;
            find_tree(shape, 0, &tree);
            cr_expect_eq(height_of(&tree, p), floor_log2(p));
            cr_expect_eq(shape->rounds, 2 * floor_log2(p) + (uint32_t)pieces[k] - 1);
            for (int r = 0; r < p; r++) {
                const size_t edges = (size_t)tree.children[r] + (r != 0);
                cr_expect_leq(tree.children[r], 2);
                cr_expect_eq(tree.sums[r], r == 0 ? pieces[k] : 0);
                expect_sends(shape, r, n, edges * n, edges * sent);
            }
            expect_steps(shape);
            shape_destroy(shape);
        }
}

/* Even counts: each worker is interior in one tree. Odd ones: worker 0 in both, with a child in each. */
Test(double_binary_tree, nobody_is_interior_twice)
{
    for (int p = 2; p <= MOST_WORKERS; p++) {
        struct shape *shape = shape_with("double-binary-tree", "chunks", 1, p);
        struct tree a, b;
        find_tree(shape, 0, &a);
        find_tree(shape, 1, &b);
        cr_expect_eq(height_of(&a, p), ceil_log2(p), "%d workers", p);
        cr_expect_eq(height_of(&b, p), ceil_log2(p), "%d workers", p);
        for (int r = 0; r < p; r++) {
            const int interior = (a.children[r] > 0) + (b.children[r] > 0);
            cr_expect_eq(interior, p % 2 != 0 && r == 0 ? 2 : 1, "worker %d of %d", r, p);
            cr_expect_leq(a.children[r] + b.children[r], 2, "worker %d of %d", r, p);
        }
        shape_destroy(shape);
    }
}

Test(double_binary_tree, takes_half_the_vector_through_each)
{
    for (size_t k = 0; k < sizeof pieces / sizeof pieces[0]; k++)
        for (int p = 2; p <= 40; p++) {
            struct shape *shape = shape_with("double-binary-tree", "chunks", pieces[k], p);
            const size_t half = 34, sent = (size_t)pieces[k];
            struct tree a, b;
            find_tree(shape, 0, &a);
            find_tree(shape, 1, &b);
            cr_expect_eq(shape->rounds, 2 * ceil_log2(p) + (uint32_t)pieces[k] - 1);
            cr_expect_eq(shape->chunks, 2 * (uint32_t)pieces[k]);
            cr_expect_eq(shape->lanes, 2);
            for (int r = 0; r < p; r++) {
                const size_t edges = (size_t)(a.children[r] + b.children[r]) + (a.parent[r] >= 0) + (b.parent[r] >= 0);
                cr_expect_leq(edges * half, 2 * 2 * half, "at most two vectors");
                expect_sends(shape, r, 2 * half, edges * half, edges * sent);
                cr_expect_eq(a.sums[r], a.parent[r] < 0 ? pieces[k] : 0);
                cr_expect_eq(b.sums[r], b.parent[r] < 0 ? pieces[k] : 0);
            }
            expect_steps(shape);
            shape_destroy(shape);
        }
}

Test(double_binary_tree, is_the_one_of_the_picture)
{
    static const int parents[2][8] = {{-1, 2, 4, 2, 0, 6, 4, 6}, {1, 3, 1, 7, 5, 3, 5, -1}};
    struct shape *shape = schedule_of("dbt", 8);
    for (uint16_t lane = 0; lane < 2; lane++) {
        struct tree tree;
        find_tree(shape, lane, &tree);
        for (int r = 0; r < 8; r++)
            cr_expect_eq(tree.parent[r], parents[lane][r], "lane %u worker %d", lane, r);
    }
    shape_destroy(shape);
}

Test(dual_root, is_two_trees_joined_at_their_roots)
{
    for (size_t k = 0; k < sizeof pieces / sizeof pieces[0]; k++)
        for (int p = 2; p <= 40; p++) {
            struct shape *shape = shape_with("dual-root", "chunks", pieces[k], p);
            const int half = (p + 1) / 2;
            const size_t n = 34, sent = (size_t)pieces[k];
            size_t edges[MOST_WORKERS] = {0};
            struct op ops[MOST_OPS];
            cr_expect_eq(shape->rounds, 2 * floor_log2(half) + (uint32_t)pieces[k]);
            for (int r = 0; r < p; r++)
                for (uint32_t round = 0; round < shape->rounds; round++) {
                    const size_t count = ops_of(shape, r, round, ops, MOST_OPS);
                    for (size_t i = 0; i < count; i++) {
                        if (ops[i].kind != OP_RECV_REDUCE)
                            continue;
                        const bool roots = (r == 0 && ops[i].peer == half) || (r == half && ops[i].peer == 0);
                        cr_expect_eq((ops[i].flags & OP_FINAL) != 0, roots, "only the roots complete a chunk");
                        cr_expect(roots || (r < half) == (ops[i].peer < half), "only the roots leave their tree");
                        edges[r]++;
                        edges[ops[i].peer] += !roots; /* of that exchange the other one has an op itself */
                    }
                }
            for (int r = 0; r < p; r++)
                expect_sends(shape, r, n, edges[r] / sent * n, edges[r]);
            shape_destroy(shape);
        }
}
