/* test_explain.c - totals and pictures of schedules: tables, lines where a table is too wide, what is cut, and a word for
 * every mark that is used and for no other.
 */
#include <stdlib.h>

#include "algos/explain.h"
#include "tests/algos/support_toy.h"
#include "tests/base/expect.h"

static struct text picture_of(const struct shape *shape)
{
    struct text text = {0};
    EXPECT_OK(explain_shape(shape, 64, 4, NULL, &text));
    return text;
}

static struct text picture_of_spec(const char *spec_text, int workers)
{
    struct spec spec;
    struct layout layout;
    struct text text = {0};
    EXPECT_OK(spec_parse(spec_text, &spec));
    EXPECT_OK(layout_flat(workers, &layout));
    EXPECT_OK(explain_spec(&spec, &layout, 1000, 4, NULL, &text));
    layout_release(&layout);
    spec_release(&spec);
    return text;
}

static void expect_has(const struct text *text, const char *fragment)
{
    cr_expect_not_null(strstr(text_string(text), fragment), "\"%s\" is not in\n%s", fragment, text_string(text));
}

static void expect_lacks(const struct text *text, const char *fragment)
{
    cr_expect_null(strstr(text_string(text), fragment), "\"%s\" is in\n%s", fragment, text_string(text));
}

/* ---- totals ---- */

Test(totals, of_a_ring)
{
    struct text text = picture_of_spec("ring", 5);
    expect_has(&text, "rounds       8 (4 reduce, 4 spread)\n");
    expect_has(&text, "chunks       5\n");
    expect_has(&text, "vector       4000 B\n");
    expect_has(&text, "most sent    6400 B in 8 messages by one worker, 32000 B by all\n");
    expect_lacks(&text, "lanes");
    expect_lacks(&text, "scratch");
    expect_lacks(&text, "closed form");
    text_release(&text);
}

Test(totals, say_what_a_shape_has_decided)
{
    struct text text = picture_of_spec("auto", 5);
    expect_has(&text, "decided      ");
    expect_has(&text, ", by the closed forms");
    text_release(&text);
}

Test(totals, closed_form_in_microseconds)
{
    const struct cost_model model = {.latency_s = 1e-6, .seconds_per_byte = 1e-9, .reduce_s_per_byte = 0};
    struct spec spec;
    struct layout layout;
    struct text text = {0};
    EXPECT_OK(spec_parse("ring", &spec));
    EXPECT_OK(layout_flat(4, &layout));
    EXPECT_OK(explain_spec(&spec, &layout, 1000, 4, &model, &text));
    expect_has(&text, "closed form  12 us\n"); /* 6 (1 us + 1000 B / 1 GB/s) */
    text_release(&text);
    layout_release(&layout);
    spec_release(&spec);
}

/* ---- pictures ---- */

TOY(pair, TOY_SEND(0, 0, 0, 1, 0, 2), TOY_FINAL(1, 0, 0, 0, 0, 2), TOY_RECV(0, 1, 0, 1, 0, 2),
    TOY_SEND(1, 1, 0, 0, 0, 2));

Test(picture, table_of_rounds_and_workers)
{
    struct shape shape = toy_shape(&pair, 2, 2, 1);
    struct text text = picture_of(&shape);
    expect_has(&text, "round | 0        | 1\n"
                      "    0 | S>1[0+2] | RR<0[0+2]*\n"
                      "    1 | R<1[0+2] | S>0[0+2]\n");
    expect_lacks(&text, "lane 1");
    expect_lacks(&text, "same message");
    expect_lacks(&text, "scratch");
    expect_lacks(&text, "COPY");
    expect_lacks(&text, "WAIT");
    expect_lacks(&text, "more");
    text_release(&text);
}

TOY(everything, TOY_SEND(0, 0, 1, 1, 0, 1), TOY_WAIT(0, 1, 0, 1, 0), TOY_FENCE(0, 1, 0, 2),
    {0, {.kind = OP_COPY, .round = 1, .src = TOY_PLANE(3, 1), .dst = TOY_LEAVES(1, 1), .weight = 1}},
    {0, {.kind = OP_REDUCE, .round = 1, .src = TOY_LEAVES(0, 1), .dst = TOY_PLANE(0, 1), .weight = 0.5}},
    {1, {.kind = OP_RECV, .flags = OP_MORE, .round = 0, .lane = 1, .peer = 0, .dst = TOY_LEAVES(0, 1), .weight = 1}});

Test(picture, has_a_word_for_every_mark)
{
    struct shape shape = toy_shape(&everything, 2, 2, 2);
    shape.scratch = 2;
    struct text text = picture_of(&shape);
    expect_has(&text, "1:S>1[0+1]");
    expect_has(&text, "1:R<0[0+1]+");
    expect_has(&text, "WAIT(1,0) FENCE(0+2) COPYscratch1[1+1]>[1+1] RED[0+1]>scratch0[0+1]x0.5");
    expect_has(&text, "lanes        2\n");
    expect_has(&text, "scratch      2 times the vector\n");
    expect_has(&text, "in lane 1, else in lane 0");
    expect_has(&text, "same message");
    expect_has(&text, "scratch: memory");
    expect_has(&text, "COPY copies");
    expect_has(&text, "WAIT(1,3)");
    text_release(&text);
}

static size_t longest_line(const struct text *text)
{
    size_t longest = 0, length = 0;
    for (const char *c = text_string(text); *c != '\0'; c++) {
        length = *c == '\n' ? 0 : length + 1;
        longest = length > longest ? length : longest;
    }
    return longest;
}

Test(picture, is_never_too_wide_nor_too_long)
{
    size_t count;
    const struct algorithm *const *algorithms = catalogue_algorithms(&count);
    for (size_t i = 0; i < count; i++)
        for (int workers = 1; workers <= EXPLAIN_PICTURE_WORKERS; workers++) {
            struct spec spec;
            struct layout layout;
            struct shape *shape = NULL;
            struct text text = {0};
            if (!algorithm_in_all(algorithms[i]))
                continue;
            EXPECT_OK(spec_parse(algorithms[i]->name, &spec));
            EXPECT_OK(layout_flat(workers, &layout));
            if (spec_shape(&spec, &layout, 0, 1000, &shape) == STATUS_OK)
                EXPECT_OK(explain_shape(shape, 1000, 4, NULL, &text));
            cr_expect_leq(longest_line(&text), EXPLAIN_PICTURE_COLUMNS + 30, "%s", text_string(&text));
            shape_destroy(shape);
            text_release(&text);
            layout_release(&layout);
            spec_release(&spec);
        }
}

Test(picture, says_how_many_rounds_are_left_out)
{
    struct text text = picture_of_spec("chain:chunks=100", 3);
    expect_has(&text, "\n   31 | ");
    expect_lacks(&text, "\n   32 | ");
    expect_has(&text, " more rounds, which are not shown\n");
    text_release(&text);
}

Test(picture, cuts_what_is_too_long_for_a_line_between_two_ops)
{
    enum { OPS = 40 };
    struct toy_op ops[OPS];
    struct toy toy = {.ops = ops, .count = OPS};
    for (uint32_t i = 0; i < OPS; i++)
        ops[i] = (struct toy_op)TOY_SEND(0, 0, 0, 1, i, 1);
    struct shape shape = toy_shape(&toy, 2, OPS, 1);
    struct text text = picture_of(&shape);
    expect_has(&text, "round 0\n    0 | S>1[0+1] S>1[1+1] ");
    expect_has(&text, " S>1[16+1] ... and 23 more\n"); /* 10 of 9 bytes and 7 of 10 fit 160 */
    text_release(&text);
}
