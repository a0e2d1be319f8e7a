/* test_wire.c - --wire from the outside: bench checks what the formats promise, train ends with equal models and a loss
 * that falls, sim scales bytes; what can't be is refused in one line that tells what can.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "base/text.h"
#include "tests/experiments/support_program.h"

TestSuite(wire, .init = program_setup, .fini = program_teardown);

/* ---- bench ---- */

/* The rows of a bench that finds everything right; how many there were. */
static size_t expect_right(const char *specs, const char *format, const char *options, bool fixed)
{
    struct text words = {0};
    text_addf(&words, "bench --allreduce='%s' -n 3 --sizes=4..16K:x64 --iters=1 -w 1 --check --wire=%s --json %s",
              specs, format, options);
    json_t *document = program_json(text_string(&words)), *rows = json_object_get(document, "rows"), *row = NULL;
    const size_t count = json_array_size(rows);
    size_t index = 0;
    json_array_foreach(rows, index, row)
    {
        const double elements = number_of(row, "count");
        cr_expect_str_eq(string_of(row, "wire"), format);
        cr_expect(json_is_null(json_object_get(row, "refused")), "%s", text_string(&words));
        cr_expect_eq(number_of(row, "wrong"), 0, "%s, %s: %g elements", format, string_of(row, "allreduce"), elements);
        cr_expect(json_is_true(json_object_get(row, "equal_bits")), "%s, %s", format, string_of(row, "allreduce"));
        cr_expect_eq(number_of(row, "wire_infinite"), 0);
        cr_expect_leq(number_of(row, "wire_error"), 1 + 1e-6);
        if (fixed)
            cr_expect_eq(number_of(row, "wire_bytes"), number_of(row, "schedule_bytes"));
        else if (elements > 1000)
            cr_expect_lt(number_of(row, "wire_bytes"), 0.3 * number_of(row, "schedule_bytes"));
    }
    json_decref(document);
    text_release(&words);
    return count;
}

Test(wire, bench_finds_the_promises_kept)
{
    cr_expect_eq(expect_right("ring rd naive", "f16", "", true), 18);
    cr_expect_eq(expect_right("rhd one-shot", "bf16", "--op=avg --in-place=no", true), 6);
    cr_expect_eq(expect_right("all-pairs naive", "top-k:ratio=0.1", "", false), 12);
    cr_expect_eq(expect_right("all-pairs one-shot", "random-k", "--in-place=only", false), 6);
    cr_expect_eq(expect_right("naive", "sign", "--op=avg", false), 6);
    cr_expect_eq(expect_right("one-shot", "int8", "--transport=tcp --in-place=no", false), 3);
}

Test(wire, a_schedule_that_can_not_is_a_row_with_its_reason)
{
    json_t *document = program_json("bench --allreduce='ring all-pairs' -n 2 -b 64 -e 64 --iters=1 -w 0 --in-place=no "
                                    "--wire=int8 --json");
    const json_t *rows = json_object_get(document, "rows");
    cr_assert_eq(json_array_size(rows), 2);
    cr_expect_not_null(strstr(string_of(json_array_get(rows, 0), "refused"), "all-pairs"));
    cr_expect(json_is_null(json_object_get(json_array_get(rows, 1), "refused")));
    json_decref(document);
}

/* ---- train ---- */

#define SMALL " -n 2 --model=cnn --image-size=28 --batch=16 --threads=1 --steps=24 --eval=never --json"

static json_t *expect_trained(const char *spec, const char *format)
{
    struct text words = {0};
    text_addf(&words, "train --allreduce=%s --wire=%s" SMALL, spec, format);
    json_t *summary = program_json(text_string(&words)), *hashes = json_object_get(summary, "parameter_hash");
    cr_expect_str_eq(string_of(summary, "wire"), format);
    cr_expect_str_eq(json_string_value(json_array_get(hashes, 0)), json_string_value(json_array_get(hashes, 1)),
                     "%s as %s: the models differ", spec, format);
    cr_expect_lt(number_of(summary, "loss_last"), number_of(summary, "loss_first"), "%s as %s", spec, format);
    cr_expect_eq(number_of(summary, "wire_infinite") + number_of(summary, "wire_nan"), 0);
    text_release(&words);
    return summary;
}

Test(wire, training_ends_with_equal_models_and_a_falling_loss)
{
    static const char *const runs[][2] = {
        {"naive", "top-k:ratio=0.1"}, {"all-pairs", "sign"}, {"double-buffered:inner=one-shot", "int8"}};
    json_t *exact = expect_trained("all-pairs", "f32"), *half = expect_trained("all-pairs", "f16"),
           *top = expect_trained("all-pairs", "top-k:ratio=0.1");
    const double bytes = number_of(exact, "bytes_sent_per_step");
    cr_expect_eq(number_of(half, "bytes_sent_per_step") * 2, bytes);
    cr_expect(number_of(top, "bytes_sent_per_step") < 0.16 * bytes &&
              number_of(top, "bytes_sent_per_step") > 0.1 * bytes);
    cr_expect_float_eq(number_of(half, "loss_last"), number_of(exact, "loss_last"), 0.1);
    cr_expect_gt(number_of(top, "wire_flushed"), 0);
    json_decref(exact);
    json_decref(half);
    json_decref(top);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        json_decref(expect_trained(runs[i][0], runs[i][1]));
}

Test(wire, gossip_mixes_what_travels)
{
    json_t *summary = program_json("train --allreduce=gossip --wire=f16" SMALL);
    cr_expect_lt(number_of(summary, "loss_last"), number_of(summary, "loss_first"));
    json_decref(summary);
    REFUSED("train --allreduce=gossip --wire=top-k" SMALL, 2, "exchanges parameters", "--wire=f16");
}

/* ---- sim ---- */

static double simulated_us(const char *format)
{
    struct text words = {0};
    text_addf(&words, "sim allreduce --allreduce=ring -n 4 --bytes=64M --platform=p.txt --wire=%s --json", format);
    json_t *document = program_json(text_string(&words));
    const double time_us = number_of(document, "time_us");
    cr_expect_str_eq(string_of(document, "wire"), format);
    json_decref(document);
    text_release(&words);
    return time_us;
}

Test(wire, sim_scales_bytes)
{
    program_write("p.txt", "platform p\nnode workers=1\nlink intra latency=0us bandwidth=1GB/s\nlink inter latency=0us "
                           "bandwidth=1GB/s\nreduce cost=0ns/B\n");
    cr_expect_float_eq(simulated_us("f16") * 2, simulated_us("f32"), 1);
    REFUSED("sim allreduce --allreduce=ring -n 4 --platform=p.txt --wire=top-k", 2, "all-pairs");
}

/* ---- usage ---- */

Test(wire, wrong_usage_is_said_in_one_line)
{
    REFUSED("bench --wire=f17 -n 2", 2, "did you mean f16?");
    REFUSED("train --wire=topk -n 2", 2, "did you mean top-k?");
    REFUSED("sim train --wire=top-k:ration=1 -n 2 --platform=x --profile=y", 2, "ratio");
    REFUSED("bench --wire=f16 --dtype=i32 -n 2 -e 8", 2, "made from f32");
    REFUSED("bench --wire=int8 --allreduce=all-pairs:deterministic=1 -n 2 -e 8", 2, "deterministic=1");
    REFUSED("bench --wire=sign --allreduce=naive --op=max -n 2 -e 8", 2, "not max");
    REFUSED("train --allreduce=ring --wire=top-k" SMALL, 2, "ring sends partial sums", "one-shot");
}
