/* test_msccl.c - MSCCL's XML: what is read, what becomes of it, and every way in which a file can be wrong, by line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/msccl.h"
#include "algos/spec.h"
#include "algos/verify.h"
#include "base/file.h"
#include "tests/base/expect.h"

#define DATA CHORALE_SOURCE_DIR "/tests/algos/data/"

/* A file of tests/algos/data, in which the first `old` after line `line` has become `new`; caller frees. */
static char *edited(const char *name, int line, const char *old, const char *new, size_t *length)
{
    char path[512], *text = NULL;
    size_t size = 0;
    (void)snprintf(path, sizeof path, DATA "%s", name);
    cr_assert_eq(file_read(path, 1 << 20, &text, &size), STATUS_OK, "%s", status_message());
    char *at = text;
    for (int i = 1; i < line; i++)
        at = strchr(at, '\n') + 1;
    at = strstr(at, old);
    cr_assert_not_null(at, "%s line %d has no %s", name, line, old);
    *length = size - strlen(old) + strlen(new);
    char *made = malloc(*length + 1);
    cr_assert_not_null(made);
    (void)sprintf(made, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    free(text);
    return made;
}

static enum status parse(const char *text, struct msccl *msccl)
{
    return msccl_parse(text, strlen(text), "f.xml", msccl);
}

static void expect_refused(int line, const char *old, const char *new, const char *message)
{
    struct msccl msccl;
    size_t length = 0;
    char *text = edited("exchange2.xml", line, old, new, &length);
    EXPECT_FAIL(STATUS_FORMAT, message, msccl_parse(text, length, "f.xml", &msccl));
    free(text);
}

Test(msccl, the_example_is_read)
{
    struct msccl msccl;
    size_t length = 0;
    char *text = edited("exchange2.xml", 1, "exchange\"", "ex change\"", &length);
    cr_assert_eq(msccl_parse(text, length, "f.xml", &msccl), STATUS_OK, "%s", status_message());
    cr_expect_str_eq(msccl.name, "ex_change");
    cr_expect_eq(msccl.workers, 2);
    cr_expect_eq(msccl.chunks, 2);
    cr_expect_eq(msccl.channels, 1);
    cr_expect(msccl.in_place);
    cr_assert_eq(msccl.blocks, 2);
    cr_assert_eq(msccl.steps, 8);
    const struct msccl_block *block = &msccl.block[msccl.gpu[1].block];
    cr_expect_eq(block->send, 0);
    cr_expect_eq(block->steps, 4);
    const struct msccl_step *step = &msccl.step[block->step + 1];
    cr_expect_eq(step->type, MSCCL_RRC);
    cr_expect_eq(step->line, 14);
    cr_expect_eq(step->src.offset, 1);
    cr_expect_eq(step->dst.buffer, MSCCL_INPUT);
    cr_expect_eq(step->depends_block, -1);
    msccl_release(&msccl);
    free(text);
}

Test(msccl, optional_attributes_other_quotes_comments_and_any_order_of_gpus)
{
    struct msccl msccl;
    EXPECT_OK(parse("<?xml version='1.0'?>\n<!-- a\n\n <algo> -->\n<algo coll='allreduce' ngpus='2' nchannels='1' "
                    "nchunksperloop='1' >\n<gpu id='1' i_chunks='1' o_chunks='1'><!-- none --></gpu><gpu id='0'\n/>"
                    "</algo>\n<!-- end -->\n",
                    &msccl));
    cr_expect_eq(msccl.gpu[1].chunks[MSCCL_OUTPUT], 1);
    cr_expect_eq(msccl.gpu[0].line, 6);
    cr_expect_not(msccl.in_place);
    msccl_release(&msccl);
}

Test(msccl, a_file_that_is_cut_off_anywhere_is_refused)
{
    struct msccl msccl;
    size_t length = 0;
    char *text = edited("exchange2.xml", 1, "exchange", "exchange", &length);
    const size_t end = (size_t)(strstr(text, "</algo>") + strlen("</algo>") - text);
    for (size_t cut = 0; cut < end; cut++) {
        char *part = malloc(cut + 1); /* of its own, so that a sanitizer sees a read behind the end */
        cr_assert_not_null(part);
        memcpy(part, text, cut);
        cr_assert_eq(msccl_parse(part, cut, "f.xml", &msccl), STATUS_FORMAT, "cut at %zu", cut);
        free(part);
    }
    free(text);
}

Test(msccl, torn_xml_is_refused_by_line)
{
    expect_refused(2, "<algo ", "<algorithm ", "f.xml:2: <algo> is due");
    expect_refused(1, "-->", "--", "f.xml:1: a comment is not closed");
    expect_refused(2, "inplace=\"1\"", "inplace=1", "f.xml:2: the value of inplace is not in quotes");
    expect_refused(2, "inplace=\"1\"", "inplace", "f.xml:2: attribute inplace has no value");
    expect_refused(2, "\"exchange\"", "\"a&amp;b\"", "f.xml:2: the value of name does not end, or has a < or &");
    expect_refused(4, "send=\"1\"", "send=\"1", "f.xml:4");
    expect_refused(4, "send=\"1\"", "send=\"1\" ,", "f.xml:4: unexpected character in <tb>");
    expect_refused(4, "recv=", "send=", "f.xml:4: send is given twice");
    expect_refused(4, "recv=", "receive=", "f.xml:4: unknown attribute receive of <tb>: known are id send recv chan");
    expect_refused(5, "<step", "x<step", "f.xml:5: text outside of tags");
    expect_refused(5, "<step", "<stop", "f.xml:5: <stop> where <step> or </tb> is due");
    expect_refused(5, "/>", ">", "f.xml:5: <step> is not closed");
    expect_refused(9, "</tb>", "</gpu>", "f.xml:9: </gpu> where <step> or </tb> is due");
    expect_refused(9, "</tb>", "</tb id=\"1\">", "f.xml:9: a closing tag with attributes");
    expect_refused(19, "</algo>", "</algo> <algo/>", "f.xml:19: something follows </algo>");
    expect_refused(3, "id=", "a0='' a1='' a2='' a3='' a4='' a5='' a6='' a7='' a8='' a9='' b='' c='' d='' e='' id=",
                   "f.xml:3: <gpu> has more than 16 attributes");
}

Test(msccl, numbers_out_of_bounds_are_refused_by_line)
{
    static const char *const bad[] = {"\"\"",   "\"-\"",  "\"a\"",   "\"1x\"",
                                      "\" 1\"", "\"+1\"", "\"1.0\"", "\"99999999999999999999999999\"",
                                      "\"-2\"", "\"0x1\""};
    char new[64];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        (void)snprintf(new, sizeof new, "ngpus=%s", bad[i]);
        expect_refused(2, "ngpus=\"2\"", new, "f.xml:2: ngpus=");
        (void)snprintf(new, sizeof new, "send=%s", bad[i]);
        expect_refused(4, "send=\"1\"", new, "f.xml:4: send=");
    }
    expect_refused(2, "ngpus=\"2\"", "ngpus=\"1025\"", "f.xml:2: ngpus=\"1025\" of <algo>: it takes 1 to 1024");
    expect_refused(2, "ngpus=\"2\"", "ngpus=\"0\"", "f.xml:2: ngpus=\"0\"");
    expect_refused(2, "ngpus=\"2\"", "", "f.xml:2: <algo> has no ngpus");
    expect_refused(2, "nchunksperloop=\"2\"", "nchunksperloop=\"32768\"", "it takes 1 to 32767");
    expect_refused(2, "nchannels=\"1\"", "nchannels=\"257\"", "it takes 1 to 256");
    expect_refused(3, "s_chunks=\"0\"", "s_chunks=\"-1\"", "f.xml:3: s_chunks");
    expect_refused(4, "chan=\"0\"", "chan=\"1\"", "f.xml:4: chan=\"1\" of <tb>: it takes 0 to 0");
    expect_refused(5, "cnt=\"1\"", "cnt=\"0\"", "f.xml:5: cnt=\"0\"");
    expect_refused(5, "srcoff=\"1\"", "srcoff=\"-1\"", "f.xml:5: srcoff=\"-1\"");
    expect_refused(5, "hasdep=\"0\"", "hasdep=\"2\"", "f.xml:5: hasdep=\"2\"");
}

Test(msccl, what_does_not_exist_is_refused_by_line)
{
    expect_refused(2, "ngpus=\"2\"", "ngpus=\"3\"", "f.xml:2: ngpus=\"3\", but there is no gpu 2");
    expect_refused(11, "id=\"1\"", "id=\"0\"", "f.xml:11: gpu 0 is given twice (line 3)");
    expect_refused(4, "send=\"1\"", "send=\"2\"", "f.xml:4: send=\"2\" of <tb>: it takes -1 to 1");
    expect_refused(4, "send=\"1\"", "send=\"0\"", "f.xml:4: the peer of a tb is its own gpu 0");
    expect_refused(4, "id=\"0\"", "id=\"1\"", "f.xml:4: id=\"1\": tbs are numbered 0, 1, 2, ...: 0 is due");
    expect_refused(9, "</tb>", "</tb><tb id=\"1\" send=\"-1\" recv=\"1\" chan=\"0\"/>",
                   "f.xml:9: tbs 0 and 1 use channel 0 with the same peer");
    expect_refused(7, "s=\"2\"", "s=\"3\"", "f.xml:7: s=\"3\": steps are numbered 0, 1, 2, ...: 2 is due");
    expect_refused(5, "type=\"s\"", "type=\"put\"", "f.xml:5: type=\"put\": it takes s r rcs");
    expect_refused(5, "type=\"s\"", "", "f.xml:5: <step> has no type");
    expect_refused(4, "send=\"1\"", "send=\"-1\"", "f.xml:5: type=\"s\" in a tb with send=\"-1\"");
    expect_refused(4, "recv=\"1\"", "recv=\"-1\"", "f.xml:6: type=\"rrc\" in a tb with recv=\"-1\"");
    expect_refused(5, "srcbuf=\"i\"", "srcbuf=\"x\"", "f.xml:5: srcbuf of <step> is missing or none of i o s");
    expect_refused(5, "srcoff=\"1\"", "srcoff=\"2\"", "the i buffer has 2 chunks");
    expect_refused(5, "cnt=\"1\"", "cnt=\"2\"", "the i buffer has 2 chunks");
    expect_refused(5, "srcbuf=\"i\"", "srcbuf=\"s\"", "the s buffer has 0 chunks");
    expect_refused(5, "depid=\"-1\"", "depid=\"0\"", "f.xml:5: depid=\"0\" without deps");
    expect_refused(5, "depid=\"-1\" deps=\"-1\"", "depid=\"0\" deps=\"0\"", "f.xml:5: it waits for itself or a later");
    expect_refused(5, "depid=\"-1\" deps=\"-1\"", "depid=\"1\" deps=\"0\"", "f.xml:5: it waits for tb 1 step 0, which");
    expect_refused(9, "</tb>",
                   "</tb><tb id=\"1\" send=\"-1\" recv=\"-1\" chan=\"0\">"
                   "<step s=\"0\" type=\"nop\" depid=\"0\" deps=\"1\"/></tb>",
                   "f.xml:9: it waits for tb 0 step 1, which does not say hasdep=\"1\"");
}

Test(msccl, ranges_that_overlap_in_part_are_refused)
{
    expect_refused(4, "recv=\"1\" chan=\"0\">",
                   "recv=\"1\" chan=\"0\"></tb><tb id=\"1\" send=\"-1\" recv=\"-1\" chan=\"0\">"
                   "<step s=\"0\" type=\"cpy\" srcbuf=\"i\" srcoff=\"0\" dstbuf=\"o\" dstoff=\"1\" cnt=\"2\"/></tb>",
                   "chunks");
    struct msccl msccl;
    EXPECT_FAIL(STATUS_FORMAT, "f.xml:2: source and destination overlap in part",
                parse("<algo coll='allreduce' ngpus='1' nchannels='1' nchunksperloop='3' inplace='1'><gpu id='0' "
                      "i_chunks='3'><tb id='0' send='-1' recv='-1' chan='0'>\n<step s='0' type='cpy' srcbuf='i' "
                      "srcoff='0' dstbuf='o' dstoff='1' cnt='2'/></tb></gpu></algo>",
                      &msccl));
}

Test(msccl, another_collective_is_refused_as_such)
{
    struct msccl msccl;
    EXPECT_FAIL(STATUS_REFUSED, "f.xml:1: coll=\"allgather\": only allreduce can be run here",
                parse("<algo coll=\"allgather\" ngpus=\"2\"/>", &msccl));
    EXPECT_FAIL(STATUS_FORMAT, "f.xml:1: <algo> has no coll", parse("<algo ngpus=\"2\"/>", &msccl));
}

Test(msccl, a_file_larger_than_the_limit_is_refused_unread)
{
    struct msccl msccl;
    EXPECT_FAIL(STATUS_FORMAT, "f.xml has 67108865 bytes: at most 67108864 are taken",
                msccl_parse("", MSCCL_MOST_BYTES + 1, "f.xml", &msccl));
}

/* ---- the schedule ---- */

struct content {
    const char *text;
    size_t length;
};

static enum status give(void *context, const char *path, char **text, size_t *length)
{
    const struct content *content = context;
    (void)path;
    void *memory = malloc(content->length + 1);
    cr_assert_not_null(memory);
    memcpy(memory, content->text, content->length);
    *text = memory;
    *length = content->length;
    return STATUS_OK;
}

static enum status make_shape(const char *text, size_t length, int workers, struct shape **shape)
{
    struct spec spec;
    struct layout layout;
    struct content content = {.text = text, .length = length};
    *shape = NULL;
    EXPECT_OK(spec_parse("msccl:file=f.xml", &spec));
    EXPECT_OK(spec_read_files(&spec, give, &content));
    EXPECT_OK(layout_flat(workers, &layout));
    const enum status status = spec_shape(&spec, &layout, 0, 0, shape);
    layout_release(&layout);
    spec_release(&spec);
    return status;
}

static struct shape *expect_proved(const char *name, int workers)
{
    struct shape *shape = NULL;
    size_t length = 0;
    struct verify_result result;
    char *text = edited(name, 1, "<", "<", &length);
    for (int again = 0; again < 2; again++) { /* proved in the process already, it must be as good */
        shape_destroy(shape);
        cr_assert_eq(make_shape(text, length, workers, &shape), STATUS_OK, "%s: %s", name, status_message());
        EXPECT_OK(verify_shape(shape, &result));
        cr_assert(result.ok, "%s: %s", name, result.reason);
        cr_expect_eq((shape->traits & TRAIT_EQUAL_BITS) != 0, result.equal_bits);
        cr_expect_eq((shape->traits & TRAIT_SAME_ORDER) != 0, result.same_order);
        cr_expect_eq((shape->traits & TRAIT_WHOLE_INPUTS) != 0, result.whole_inputs);
    }
    free(text);
    return shape;
}

Test(msccl, every_type_in_place_and_not_makes_a_schedule_that_is_proved)
{
    struct shape *shape = expect_proved("exchange2.xml", 2);
    size_t bytes = 0, messages = 0;
    cr_expect_eq(shape->rounds, 2);
    cr_expect_eq(shape->scratch, 0);
    EXPECT_OK(shape_traffic(shape, 0, 100, 4, &bytes, &messages));
    cr_expect_eq(bytes, 400);
    cr_expect_eq(messages, 2);
    shape_destroy(shape);

    shape = expect_proved("ring3.xml", 3); /* rrs rrcs rcs; i apart from o, but never needed after o is written */
    cr_expect_eq(shape->rounds, 4);
    cr_expect_eq(shape->scratch, 1);
    cr_expect_not(shape->traits & TRAIT_SAME_ORDER);
    shape_destroy(shape);

    shape = expect_proved("pairs3.xml", 3); /* re nop, dependencies between channels */
    cr_expect_eq(shape->rounds, 3);
    cr_expect_eq(shape->lanes, 2);
    cr_expect_eq(shape->scratch, 2);
    cr_expect(shape->traits & TRAIT_EQUAL_BITS);
    shape_destroy(shape);

    shape = expect_proved("oneshot3.xml", 3); /* cpy; i must be saved */
    cr_expect_eq(shape->rounds, 2);
    cr_expect_eq(shape->scratch, 3);
    cr_expect_not(shape->traits & TRAIT_EQUAL_BITS, "everyone adds to its own");
    shape_destroy(shape);

    shape = expect_proved("tree3.xml", 3); /* two tbs of a gpu on one channel, gpus from the last to the first */
    cr_expect_eq(shape->rounds, 4);
    shape_destroy(shape);
}

Test(msccl, says_what_it_is)
{
    struct text text = {0};
    struct shape *shape = expect_proved("pairs3.xml", 3);
    shape->algorithm->describe(shape, &text);
    cr_expect_str_eq(text_string(&text), "pairs, 6 chunks, 2 channels");
    text_release(&text);
    shape_destroy(shape);
}

Test(msccl, is_refused_for_another_number_of_workers)
{
    struct shape *shape = NULL;
    size_t length = 0;
    char *text = edited("pairs3.xml", 1, "<", "<", &length);
    EXPECT_FAIL(STATUS_REFUSED, "f.xml is for 3 workers, not for 4", make_shape(text, length, 4, &shape));
    free(text);
}

/* ---- steps that are no allreduce ---- */

static void expect_wrong(const char *name, int workers, int line, const char *old, const char *new, const char *message)
{
    struct shape *shape = NULL;
    size_t length = 0;
    char *text = edited(name, line, old, new, &length);
    EXPECT_FAIL(STATUS_FORMAT, message, make_shape(text, length, workers, &shape));
    free(text);
}

Test(msccl, messages_without_their_counterpart_are_named)
{
    expect_wrong("exchange2.xml", 2, 8, "\"r\"  ", "\"nop\"", "f.xml:15: it sends to gpu 0 on channel 0, which has no");
    expect_wrong("exchange2.xml", 2, 15, "\"s\"  ", "\"nop\"",
                 "f.xml:8: it receives from gpu 1 on channel 0, which has");
    expect_wrong("pairs3.xml", 3, 11, "cnt=\"2\"", "cnt=\"1\"", "f.xml:11: it sends 1 chunks to gpu 1, which takes 2");
}

Test(msccl, contributions_that_are_doubled_missing_or_of_another_chunk_are_named)
{
    expect_wrong("exchange2.xml", 2, 8, "\"r\"  ", "\"rrc\"",
                 "f.xml:8: it adds the contribution of gpu 0 to chunk 1 twice");
    expect_wrong("exchange2.xml", 2, 6, "\"rrc\"", "\"r\"  ",
                 "f.xml:3: gpu 0 ends with chunk 0 without the contribution of gpu 0");
    expect_wrong("exchange2.xml", 2, 8, "dstoff=\"1\"", "dstoff=\"0\"",
                 "f.xml:3: gpu 0 ends with chunk 1 in the place of chunk 0");
    expect_wrong("exchange2.xml", 2, 13, "srcoff=\"0\"", "srcoff=\"1\"",
                 "f.xml:6: it adds a part of chunk 1 to one of chunk 0");
    expect_wrong("pairs3.xml", 3, 8, "srcoff=\"2\"", "srcoff=\"0\"",
                 "f.xml:8: it adds the contribution of gpu 1 to chunk 0 twice");
    expect_wrong("ring3.xml", 3, 8, "type=\"rcs\" dstbuf=\"o\"", "type=\"rcs\" dstbuf=\"i\"",
                 "f.xml:3: gpu 0 never writes chunk 2 of its output");
    expect_wrong("oneshot3.xml", 3, 5, "srcbuf=\"i\"", "srcbuf=\"s\"",
                 "f.xml:5: it reads a chunk that no step is sure to have written");
}

/* What MSCCL leaves to luck. */
Test(msccl, races_are_named_by_both_lines)
{
    expect_wrong("pairs3.xml", 3, 6, "depid=\"1\" deps=\"1\"", "", "f.xml:7: race: it and line 12 touch");
    expect_wrong("pairs3.xml", 3, 7, "depid=\"2\" deps=\"1\"", "",
                 "f.xml:8: it reads a chunk that no step is sure to have written");
    expect_wrong("pairs3.xml", 3, 19, "depid=\"0\" deps=\"2\"", "", "race: it and line");
    expect_wrong("tree3.xml", 3, 8, "depid=\"0\" deps=\"0\"", "", "f.xml:8: race: it and line 5 touch the same chunk");
    expect_wrong("oneshot3.xml", 3, 6, "depid=\"1\" deps=\"1\"", "", "f.xml:6: it reads a chunk that no step is sure");
}

Test(msccl, steps_that_wait_in_a_circle_are_named)
{
    /* gpu 0 receives before it sends, as gpu 1 does */
    struct shape *shape = NULL;
    static const char head[] = "<algo coll='allreduce' ngpus='2' nchannels='2' nchunksperloop='1' inplace='1'>\n";
    char text[2000];
    (void)snprintf(text, sizeof text,
                   "%s<gpu id='0' i_chunks='1'><tb id='0' send='1' recv='1' chan='0'>\n"
                   "<step s='0' type='rrc' srcbuf='i' srcoff='0' dstbuf='i' dstoff='0' cnt='1'/>\n"
                   "<step s='1' type='s' srcbuf='i' srcoff='0' cnt='1'/></tb></gpu>"
                   "<gpu id='1' i_chunks='1'><tb id='0' send='0' recv='0' chan='0'>\n"
                   "<step s='0' type='rrc' srcbuf='i' srcoff='0' dstbuf='i' dstoff='0' cnt='1'/>\n"
                   "<step s='1' type='s' srcbuf='i' srcoff='0' cnt='1'/></tb></gpu></algo>",
                   head);
    EXPECT_FAIL(STATUS_FORMAT, "f.xml:3: deadlock: it waits, in a circle, for line 5",
                make_shape(text, strlen(text), 2, &shape));
    /* two tbs of a gpu wait for each other */
    (void)snprintf(text, sizeof text,
                   "%s<gpu id='0'><tb id='0' send='-1' recv='-1' chan='0'>\n"
                   "<step s='0' type='nop' depid='1' deps='0' hasdep='1'/></tb>"
                   "<tb id='1' send='-1' recv='-1' chan='0'>\n"
                   "<step s='0' type='nop' depid='0' deps='0' hasdep='1'/></tb></gpu><gpu id='1'/></algo>",
                   head);
    EXPECT_FAIL(STATUS_FORMAT, "f.xml:3: deadlock: it waits, in a circle, for line 4",
                make_shape(text, strlen(text), 2, &shape));
}

/* Both send their chunk on one channel, and take the other's on another one once their own has gone. The channels run in
 * opposite directions, so that neither can be received first: without buffers both would hang, were it not for rounds
 * that the exchange shares. */
Test(msccl, an_exchange_over_two_channels_shares_a_round)
{
    struct shape *shape = NULL;
    struct verify_result result;
    char text[2000];
    size_t length = (size_t)snprintf(
        text, sizeof text, "<algo coll='allreduce' ngpus='2' nchannels='2' nchunksperloop='1' inplace='1'>\n");
    for (int g = 0; g < 2; g++)
        length += (size_t)snprintf(text + length, sizeof text - length,
                                   "<gpu id='%d' i_chunks='1'><tb id='0' send='%d' recv='-1' chan='%d'>\n"
                                   "<step s='0' type='s' srcbuf='i' srcoff='0' cnt='1' hasdep='1'/></tb>"
                                   "<tb id='1' send='-1' recv='%d' chan='%d'>\n"
                                   "<step s='0' type='rrc' srcbuf='i' srcoff='0' dstbuf='i' dstoff='0' cnt='1' "
                                   "depid='0' deps='0'/></tb></gpu>",
                                   g, 1 - g, g, 1 - g, 1 - g);
    length += (size_t)snprintf(text + length, sizeof text - length, "</algo>");
    cr_assert_eq(make_shape(text, length, 2, &shape), STATUS_OK, "%s", status_message());
    cr_expect_eq(shape->rounds, 1);
    EXPECT_OK(verify_shape(shape, &result));
    cr_expect(result.ok, "%s", result.reason);
    shape_destroy(shape);
}

/* Gpu 0 sends line 4 before line 6, gpu 1 wants line 6 before line 4: it passes line 6 on before line 4 may land in the
 * same chunk. */
Test(msccl, what_needs_buffers_in_the_network_is_refused)
{
    struct shape *shape = NULL;
    static const char text[] =
        "<algo coll='allreduce' ngpus='2' nchannels='3' nchunksperloop='1' inplace='1'>\n"
        "<gpu id='0' i_chunks='1' s_chunks='2'><tb id='0' send='1' recv='1' chan='0'>\n"
        "<step s='0' type='cpy' srcbuf='i' srcoff='0' dstbuf='s' dstoff='0' cnt='1'/>\n"
        "<step s='1' type='s' srcbuf='s' srcoff='0' cnt='1'/>\n"
        "<step s='2' type='cpy' srcbuf='i' srcoff='0' dstbuf='s' dstoff='0' cnt='1' hasdep='1'/></tb>"
        "<tb id='1' send='1' recv='-1' chan='1'>\n"
        "<step s='0' type='s' srcbuf='s' srcoff='0' cnt='1' depid='0' deps='2' hasdep='1'/></tb>"
        "<tb id='2' send='-1' recv='1' chan='1'>\n"
        "<step s='0' type='r' dstbuf='s' dstoff='1' cnt='1'/></tb>"
        "<tb id='3' send='-1' recv='1' chan='2'>\n"
        "<step s='0' type='r' dstbuf='i' dstoff='0' cnt='1' depid='1' deps='0'/></tb></gpu>\n"
        "<gpu id='1' i_chunks='1' s_chunks='1'><tb id='0' send='-1' recv='0' chan='0'>\n"
        "<step s='0' type='r' dstbuf='s' dstoff='0' cnt='1' depid='2' deps='0' hasdep='1'/></tb>"
        "<tb id='1' send='-1' recv='0' chan='1'>\n"
        "<step s='0' type='r' dstbuf='s' dstoff='0' cnt='1' hasdep='1'/></tb>"
        "<tb id='2' send='0' recv='-1' chan='1'>\n"
        "<step s='0' type='s' srcbuf='s' srcoff='0' cnt='1' depid='1' deps='0' hasdep='1'/></tb>"
        "<tb id='3' send='0' recv='-1' chan='2'>\n"
        "<step s='0' type='re' srcbuf='s' srcoff='0' dstbuf='i' dstoff='0' cnt='1' depid='0' deps='0'/>"
        "<step s='1' type='s' srcbuf='i' srcoff='0' cnt='1'/></tb></gpu></algo>";
    EXPECT_FAIL(STATUS_FORMAT, "deadlock: this message is in a circle of messages",
                make_shape(text, sizeof text - 1, 2, &shape));
}
