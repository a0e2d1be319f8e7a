/* test_bench.c - `chorale bench` on the real transports: right results, the traffic that the schedule tells, and the
 * formats as they are promised.
 */
#include <criterion/hooks.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "support_program.h"
#include "tests/base/shared_memory.h"

#define TRANSPORTS "shm, tcp"
#define WORKERS "2,3,5"

TestSuite(bench, .init = program_setup, .fini = program_teardown, .timeout = 300);

/* ---- the last line of the suite: what it ran on ---- */

static size_t passed, tested;

static void say_matrix(void)
{
    (void)fprintf(stderr, "bench: transports %s; %s workers, each exact schedule: %zu of %zu tests passed\n",
                  TRANSPORTS, WORKERS, passed, tested);
}

ReportHook(POST_ALL)(struct criterion_global_stats *stats)
{
    passed = stats->tests_passed;
    tested = stats->nb_tests - stats->tests_skipped;
    if (tested > 0)
        (void)atexit(say_matrix);
}

/* ---- rows ---- */

static json_t *rows_of(const char *words)
{
    json_t *document = program_json(words);
    json_t *rows = json_incref(json_object_get(document, "rows"));
    cr_assert(json_is_array(rows), "%s", words);
    json_decref(document);
    return rows;
}

static bool is_about(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fabs(b);
}

static bool is_refused(const json_t *row)
{
    return !json_is_null(json_object_get(row, "refused"));
}

/* What holds for every row that was measured. */
static void expect_row(const json_t *row, const char *words)
{
    const char *name = string_of(row, "allreduce");
    double time_us = number_of(row, "time_us"), bytes = (double)integer_of(row, "bytes");
    double workers = (double)integer_of(row, "workers");
    cr_expect(json_is_null(json_object_get(row, "refused")), "%s: %s is refused", words, name);
    cr_expect_gt(time_us, 0, "%s: %s", words, name);
    cr_expect_gt(number_of(row, "p50_us"), 0, "%s: %s", words, name);
    cr_expect_leq(number_of(row, "p50_us"), number_of(row, "p99_us"), "%s: %s", words, name);
    cr_expect(is_about(number_of(row, "algbw"), bytes / (time_us * 1e-6) / 1e9), "%s: %s", words, name);
    cr_expect(is_about(number_of(row, "busbw"), number_of(row, "algbw") * 2 * (workers - 1) / workers), "%s: %s", words,
              name);
    cr_expect_eq(integer_of(row, "wire_bytes"), integer_of(row, "schedule_bytes"), "%s: %s, %g workers, %g bytes",
                 words, name, workers, bytes);
    cr_expect_eq(integer_of(row, "messages"), integer_of(row, "schedule_messages"), "%s: %s, %g workers, %g bytes",
                 words, name, workers, bytes);
    cr_expect(json_is_boolean(json_object_get(row, "in_place")));
}

static void expect_right(const json_t *row, const char *words)
{
    expect_row(row, words);
    cr_expect_eq(integer_of(row, "wrong"), 0, "%s: %s, %lld workers, %lld bytes", words, string_of(row, "allreduce"),
                 integer_of(row, "workers"), integer_of(row, "bytes"));
}

/* The rows with these values; -1 and NULL: any. */
static size_t count_rows(const json_t *rows, const char *name, json_int_t workers, json_int_t bytes, int in_place)
{
    size_t index = 0, found = 0;
    json_t *row = NULL;
    json_array_foreach(rows, index, row)
    {
        found += (name == NULL || strcmp(string_of(row, "allreduce"), name) == 0) &&
                 (workers < 0 || integer_of(row, "workers") == workers) &&
                 (bytes < 0 || integer_of(row, "bytes") == bytes) &&
                 (in_place < 0 || json_is_true(json_object_get(row, "in_place")) == (in_place == 1));
    }
    return found;
}

static bool has_trait(const json_t *entry, const char *name)
{
    size_t index = 0;
    json_t *trait = NULL;
    bool found = false;
    json_array_foreach(json_object_get(entry, "traits"), index, trait) found =
        found || strcmp(json_string_value(trait), name) == 0;
    return found;
}

static bool is_exact_schedule(const json_t *entry)
{
    return strcmp(string_of(entry, "kind"), "schedule") == 0 && json_is_true(json_object_get(entry, "exact")) &&
           !has_trait(entry, "needs-file");
}

/* ---- right, everywhere ---- */

static void expect_a_row(const json_t *rows, const char *name, json_int_t workers, json_int_t bytes)
{
    for (int in_place = 0; in_place < 2; in_place++)
        cr_expect_eq(count_rows(rows, name, workers, bytes, in_place), 1, "%s on %lld workers, %lld bytes, %d", name,
                     workers, bytes, in_place);
}

/* Rows of one name and count of workers: one each, or one that is refused with a reason. */
static void expect_rows_of(const json_t *rows, const char *name, json_int_t workers)
{
    static const json_int_t sizes[] = {4, 64, 1024, 16384, 262144};
    size_t index = 0;
    json_t *row = NULL;
    json_array_foreach(rows, index, row)
    {
        const char *reason = json_string_value(json_object_get(row, "refused"));
        if (reason != NULL && strcmp(string_of(row, "allreduce"), name) == 0 && integer_of(row, "workers") == workers) {
            cr_expect_str_not_empty(reason);
            cr_expect_eq(count_rows(rows, name, workers, -1, -1), 1, "%s", name);
            return;
        }
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        expect_a_row(rows, name, workers, sizes[i]);
}

static void expect_all_right(const char *transport)
{
    static const json_int_t workers[] = {2, 3, 5};
    char words[200];
    size_t index = 0, names = 0;
    json_t *row = NULL, *entry = NULL, *list = program_json("list --json");
    (void)snprintf(words, sizeof words,
                   "bench --allreduce=all -n " WORKERS
                   " --sizes=4..1M:x16 --check --iters=2 -w 1 --json --transport=%s",
                   transport);
    json_t *rows = rows_of(words);
    json_array_foreach(rows, index, row)
    {
        if (is_refused(row))
            continue;
        expect_right(row, words);
        cr_expect_str_eq(string_of(row, "transport"), transport);
        cr_expect_eq(integer_of(row, "bytes"), 4 * integer_of(row, "count"));
        cr_expect_str_eq(string_of(row, "dtype"), "f32");
        cr_expect_str_eq(string_of(row, "op"), "sum");
    }
    json_array_foreach(json_object_get(list, "algorithms"), index, entry)
    {
        if (!is_exact_schedule(entry))
            continue;
        names++;
        for (size_t i = 0; i < sizeof workers / sizeof workers[0]; i++)
            expect_rows_of(rows, string_of(entry, "name"), workers[i]);
    }
    cr_expect_gt(names, 0);
    cr_expect_eq(count_rows(rows, "ring", -1, 262144, 1), 3);
    json_decref(rows);
    json_decref(list);
}

Test(bench, every_exact_schedule_is_right_over_shm)
{
    expect_all_right("shm");
}

Test(bench, every_exact_schedule_is_right_over_tcp)
{
    expect_all_right("tcp");
}

Test(bench, every_type_and_reduction_is_right)
{
    static const char *const types[] = {"f32", "f64", "i32", "i64"}, *const ops[] = {"sum", "min", "max", "avg"};
    for (int i = 0; i < 16; i++) {
        char words[200];
        size_t index = 0;
        json_t *row = NULL;
        (void)snprintf(words, sizeof words,
                       "bench --allreduce=all -n 3 --sizes=8..4K:x512 --check --iters=1 -w 0 --json --dtype=%s --op=%s",
                       types[i / 4], ops[i % 4]);
        json_t *rows = rows_of(words);
        cr_expect_gt(count_rows(rows, "ring", 3, 4096, -1), 0);
        json_array_foreach(rows, index, row)
        {
            if (!json_is_null(json_object_get(row, "refused")))
                continue;
            expect_right(row, words);
            cr_expect_str_eq(string_of(row, "dtype"), types[i / 4]);
            cr_expect_str_eq(string_of(row, "op"), ops[i % 4]);
        }
        json_decref(rows);
    }
}

/* ---- bits ---- */

Test(bench, deterministic_schedules_give_a_part_the_bits_that_it_has_in_the_whole)
{
    struct text words = {0};
    size_t index = 0, asked = 0;
    need_shared_memory(5);
    json_t *entry = NULL, *row = NULL, *list = program_json("list --json");
    text_add(&words, "bench -n 3,5 --sizes=4..40000:x100 --check --iters=1 -w 0 --json --transport=shm "
                     "--allreduce='hierarchical:group=2,intra=rhd,inter=rd,deterministic=1");
    json_array_foreach(json_object_get(list, "algorithms"), index, entry)
    {
        if (!has_trait(entry, "same-order") || !has_trait(entry, "equal-bits") || has_trait(entry, "needs-file"))
            continue;
        text_addf(&words, " %s:deterministic=1", string_of(entry, "name"));
        asked++;
    }
    text_add(&words, "'");
    cr_assert_gt(asked, 2);
    json_t *rows = rows_of(text_string(&words));
    cr_expect_gt(json_array_size(rows), 2 * 2 * 3);
    json_array_foreach(rows, index, row)
    {
        if (is_refused(row))
            continue;
        cr_expect(json_is_true(json_object_get(row, "deterministic")), "%s", string_of(row, "allreduce"));
        cr_expect(json_is_true(json_object_get(row, "equal_bits")), "%s", string_of(row, "allreduce"));
        cr_expect_eq(integer_of(row, "wrong"), 0);
    }
    json_decref(rows);
    json_decref(list);
    text_release(&words);
}

Test(bench, equal_bits_are_told_with_check_only)
{
    json_t *rows = rows_of("bench --allreduce='ring none gossip' -n 3 -b 4K -e 4K --check --iters=1 -w 0 --json");
    cr_assert_eq(json_array_size(rows), 6);
    for (size_t i = 0; i < 6; i++) {
        const json_t *equal = json_object_get(json_array_get(rows, i), "equal_bits");
        cr_expect(i < 2 ? json_is_true(equal) : json_is_false(equal), "%zu", i);
        cr_expect(json_is_null(json_object_get(json_array_get(rows, i), "deterministic")));
    }
    json_decref(rows);
    rows = rows_of("bench --allreduce=ring -n 3 -b 4K -e 4K --iters=1 -w 0 --json");
    cr_expect(json_is_null(json_object_get(json_array_get(rows, 0), "equal_bits")));
    json_decref(rows);
}

/* ---- auto ---- */

Test(bench, auto_says_for_each_size_what_it_takes)
{
    struct outcome outcome;
    size_t index = 0;
    json_t *row = NULL;
    json_t *rows = rows_of("bench --allreduce='auto ring' -n 3 --sizes=4..4M:x1048576 --check --iters=1 -w 0 --json "
                           "--in-place=only");
    cr_assert_eq(json_array_size(rows), 4);
    json_array_foreach(rows, index, row) expect_right(row, "auto");
    const char *small = string_of(json_array_get(rows, 0), "decided"),
               *large = string_of(json_array_get(rows, 1), "decided");
    cr_expect(contains(small, ", by the closed forms") && contains(large, ", by the closed forms"));
    cr_expect_str_neq(small, large);
    cr_expect(json_is_null(json_object_get(json_array_get(rows, 2), "decided")));
    json_decref(rows);
    program_run("bench --allreduce=auto -n 3 --sizes=4..4M:x1048576 --iters=1 -w 0", &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    const char *first = strstr(outcome.out, "# decided: ");
    cr_expect(first != NULL && strstr(first + 1, "# decided: ") != NULL, "%s", outcome.out);
    outcome_release(&outcome);
}

Test(bench, its_csv_is_what_auto_takes_as_costs)
{
    struct outcome outcome;
    char words[300];
    program_run("bench --allreduce='ring naive' -n 2,3 --sizes=64..64K:x32 --iters=2 -w 0 --format=csv > costs.csv",
                &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    outcome_release(&outcome);
    (void)snprintf(words, sizeof words,
                   "bench --allreduce=auto:costs=costs.csv -n 3 --sizes=64..1M:x16384 --check --iters=1 -w 0 --json");
    json_t *rows = rows_of(words), *row = NULL;
    size_t index = 0;
    cr_assert_eq(json_array_size(rows), 4);
    json_array_foreach(rows, index, row)
    {
        expect_right(row, words);
        cr_expect(contains(string_of(row, "decided"), "as measured on 3 workers"));
        cr_expect_eq(strlen(string_of(row, "files_hash")), 16);
    }
    json_decref(rows);
}

/* ---- memory ---- */

Test(bench, what_memory_cannot_hold_is_refused_before_it_is_tried)
{
    struct outcome outcome;
    program_run("bench --allreduce='ring naive' -n 4 -b 8 -e 1000T", &outcome);
    cr_expect_eq(outcome.exit_code, 2);
    cr_expect(contains(outcome.err, "8796093022208000 bytes for 4 workers"), "%s", outcome.err);
    cr_expect(contains(outcome.err, "are available"), "%s", outcome.err);
    cr_expect_str_empty(outcome.out);
    outcome_release(&outcome);
    program_run("bench -n 4 -b 8 -e 1000T --in-place=only", &outcome);
    cr_expect(contains(outcome.err, "4398046511104000 bytes for 4 workers"), "%s", outcome.err);
    outcome_release(&outcome);
}

Test(bench, counted_traffic_is_the_textbooks)
{
    enum { BYTES = 1920 }; /* a multiple of 4 bytes x 2, 3 and 5 workers */
    size_t index = 0;
    json_t *row = NULL;
    json_t *rows = rows_of("bench --allreduce=ring --allreduce=naive -n " WORKERS
                           " -b 1920 -e 1920 --check --iters=1 -w 0 --in-place=only --json");
    cr_expect_eq(json_array_size(rows), 6);
    json_array_foreach(rows, index, row)
    {
        json_int_t others = integer_of(row, "workers") - 1;
        bool ring = strcmp(string_of(row, "allreduce"), "ring") == 0;
        cr_expect_eq(integer_of(row, "wire_bytes"), ring ? 2 * BYTES * others / (others + 1) : BYTES * others);
        cr_expect_eq(integer_of(row, "messages"), ring ? 2 * others : others);
    }
    json_decref(rows);
}

Test(bench, nothing_and_less_than_an_element_each_are_vectors_too)
{
    size_t index = 0;
    json_t *row = NULL;
    json_t *rows = rows_of("bench --allreduce=all -n 5 -b 0 -e 0 --check --iters=2 -w 0 --json");
    cr_expect_gt(json_array_size(rows), 0);
    json_array_foreach(rows, index, row)
    {
        if (is_refused(row))
            continue;
        expect_right(row, "0 bytes");
        cr_expect_eq(integer_of(row, "wire_bytes"), 0);
        cr_expect_eq(number_of(row, "busbw"), 0);
    }
    json_decref(rows);
}

Test(bench, one_worker_needs_nobody)
{
    json_t *rows = rows_of("bench --allreduce=all -n 1 -b 4K -e 4K --check --iters=2 -w 0 --json");
    cr_expect_gt(json_array_size(rows), 0);
    size_t index = 0;
    json_t *row = NULL;
    json_array_foreach(rows, index, row)
    {
        if (is_refused(row))
            continue;
        cr_expect_eq(integer_of(row, "wrong"), 0);
        cr_expect_eq(integer_of(row, "wire_bytes"), 0);
    }
    json_decref(rows);
}

/* ---- strategies ---- */

Test(bench, strategies_are_one_period_of_their_communication)
{
    static const struct {
        const char *name;
        json_int_t wire, messages; /* -1: not said here */
        bool exact;
    } expected[] = {
        {"gossip:graph=ring", 2 * 4096, 2, false},
        {"gossip", 4096, 1, false}, /* one-peer-exponential */
        {"double-buffered", 6144, 6, true},
        {"double-buffered:inner=[hierarchical:inter=recursive-halving-doubling]", -1, -1, true},
        {"synchronous", 6144, 6, true},
    };
    json_t *rows = rows_of("bench --allreduce='gossip:graph=ring gossip:graph=one-peer-exponential double-buffered "
                           "double-buffered:inner=[hierarchical:intra=ring,inter=rhd] synchronous:inner=ring' -n 4 "
                           "-b 4K -e 4K --check --iters=2 -w 1 --json");
    cr_assert_eq(json_array_size(rows), 10);
    for (size_t i = 0; i < 10; i++) {
        const json_t *row = json_array_get(rows, i);
        cr_expect_str_eq(string_of(row, "allreduce"), expected[i / 2].name);
        expect_row(row, expected[i / 2].name);
        if (expected[i / 2].exact)
            cr_expect_eq(integer_of(row, "wrong"), 0);
        else
            cr_expect(json_is_null(json_object_get(row, "wrong")), "what is mixed has no exact result");
        if (expected[i / 2].wire < 0)
            continue;
        cr_expect_eq(integer_of(row, "wire_bytes"), expected[i / 2].wire, "%s", expected[i / 2].name);
        cr_expect_eq(integer_of(row, "messages"), expected[i / 2].messages, "%s", expected[i / 2].name);
    }
    json_decref(rows);
}

Test(bench, gossip_with_its_period_is_told_in_a_comment)
{
    struct outcome outcome;
    program_run("bench --allreduce=gossip -n 4 -b 8 -e 8 --iters=1 -w 0", &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect(contains(outcome.out, "# gossip: timed: its communication without compute, a period of 2, divided"), "%s",
              outcome.out);
    outcome_release(&outcome);
}

/* ---- sizes ---- */

Test(bench, sizes_are_what_was_asked_for)
{
    static const json_int_t sizes[] = {8, 16, 32, 64};
    static const char *const words[] = {
        "bench -n 2 -b 8 -e 64 -f 2 --iters=1 -w 0 --in-place=no --json",
        "bench -n 2 --sizes=8..64 --iters=1 -w 0 --in-place=no --json",
        "bench -n 2 --sizes=8..100:x2 --iters=1 -w 0 --in-place=no --format=json",
        "bench -n2 --begin=8 --end 127 --iters 1 --warmup 0 --in-place no --format json",
    };
    for (size_t w = 0; w < sizeof words / sizeof words[0]; w++) {
        json_t *rows = rows_of(words[w]);
        cr_expect_eq(json_array_size(rows), 4, "%s", words[w]);
        for (size_t i = 0; i < 4; i++)
            cr_expect_eq(integer_of(json_array_get(rows, i), "bytes"), sizes[i], "%s", words[w]);
        json_decref(rows);
    }
}

/* ---- formats ---- */

enum { TOKENS_MOST = 64 };

/* The line is cut into its words. */
static size_t tokens_of(char *line, char **tokens)
{
    size_t count = 0;
    char *rest = NULL;
    for (char *token = strtok_r(line, " ", &rest); token != NULL && count < TOKENS_MOST;
         token = strtok_r(NULL, " ", &rest))
        tokens[count++] = token;
    return count;
}

static void expect_tokens(const char *line, const char *expected)
{
    char *copy = strdup(line), *wanted = strdup(expected), *tokens[TOKENS_MOST], *others[TOKENS_MOST];
    cr_assert(copy != NULL && wanted != NULL);
    size_t count = tokens_of(copy, tokens);
    cr_expect_eq(count, tokens_of(wanted, others), "\"%s\" is not \"%s\"", line, expected);
    for (size_t i = 0; i < count; i++)
        cr_expect_str_eq(tokens[i], others[i], "\"%s\" is not \"%s\"", line, expected);
    free(copy);
    free(wanted);
}

static bool is_number(const char *token)
{
    char *end = NULL;
    (void)strtod(token, &end);
    return end != token && *end == '\0';
}

/* Lines of `out`: comments are counted, the others go through `row`. Returns their number. */
static size_t each_line(char *out, size_t *comments, void (*row)(char *line, const void *context), const void *context)
{
    char *rest = NULL;
    size_t rows = 0;
    for (char *line = strtok_r(out, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        if (line[0] == '#') {
            ++*comments;
            continue;
        }
        row(line, context);
        rows++;
    }
    return rows;
}

struct nccl {
    const char *type, *op;
    size_t fields;
    const char *wrong[2]; /* of out of place, in place; NULL: the half was not measured */
};

static void expect_nccl_row(char *line, const void *context)
{
    const struct nccl *nccl = context;
    char *tokens[TOKENS_MOST];
    char *whole = strdup(line);
    size_t count = tokens_of(line, tokens);
    cr_assert_not_null(whole);
    cr_assert_eq(count, nccl->fields, "%zu fields in \"%s\"", count, whole);
    cr_expect(is_number(tokens[0]) && is_number(tokens[1]), "%s", whole);
    cr_expect_str_eq(tokens[2], nccl->type);
    cr_expect_str_eq(tokens[3], nccl->op);
    cr_expect_str_eq(tokens[4], "-1");
    for (int half = 0; half < 2; half++) {
        char **fields = tokens + 5 + 4 * half;
        for (int i = 0; i < 3; i++)
            cr_expect_eq(is_number(fields[i]), nccl->wrong[half] != NULL, "%s", whole);
        cr_expect_str_eq(fields[3], nccl->wrong[half] != NULL ? nccl->wrong[half] : "-", "%s", whole);
    }
    free(whole);
}

static void expect_nccl(const char *words, const struct nccl *nccl)
{
    struct outcome outcome;
    size_t comments = 0;
    program_run(words, &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s: %s", words, outcome.err);
    cr_expect_eq(each_line(outcome.out, &comments, expect_nccl_row, nccl), 3, "%s", words);
    cr_expect_gt(comments, 4, "%s", words);
    outcome_release(&outcome);
}

Test(bench, nccl_columns_are_those_of_nccl_tests)
{
    expect_nccl("bench -n 2 --sizes=8..2K:x16 --iters=1 -w 0 --check", &(struct nccl){"float", "sum", 13, {"0", "0"}});
    expect_nccl("bench -n 2 --sizes=8..2K:x16 --iters=1 -w 0 --dtype=f64 --op=max",
                &(struct nccl){"double", "max", 13, {"N/A", "N/A"}});
    expect_nccl("bench -n 2 --sizes=8..2K:x16 --iters=1 -w 0 --dtype=i32 --op=min --check --in-place=only",
                &(struct nccl){"int32", "min", 13, {NULL, "0"}});
    expect_nccl("bench -n 2 --sizes=8..2K:x16 --iters=1 -w 0 --dtype=i64 --op=avg --check --in-place=no --extended",
                &(struct nccl){"int64", "avg", 21, {"0", NULL}});
}

Test(bench, nccl_heads_are_those_of_nccl_tests)
{
    struct outcome outcome;
    char *rest = NULL;
    int found = 0;
    program_run("bench -n 2 -b 8 -e 8 --iters=1 -w 0", &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s", outcome.err);
    for (char *line = strtok_r(outcome.out, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        if (contains(line, "redop")) {
            expect_tokens(line, "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong");
            found++;
        } else if (contains(line, "(elements)")) {
            expect_tokens(line, "# (B) (elements) (us) (GB/s) (GB/s) (us) (GB/s) (GB/s)");
            found++;
        } else if (contains(line, "in-place")) {
            expect_tokens(line, "# out-of-place in-place");
            found++;
        }
    }
    cr_expect_eq(found, 3);
    outcome_release(&outcome);
}

/* The lines under the table, and the mean against the busbw columns of the only row, which have two decimals. */
static void expect_nccl_end(const char *words, const char *wrong)
{
    struct outcome outcome;
    double out_of_place = -1, in_place = -1, mean = -1;
    program_run(words, &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect(contains(outcome.out, wrong), "%s", outcome.out);
    const char *row = strstr(outcome.out, "  float"), *end = strstr(outcome.out, "# Avg bus bandwidth    : ");
    cr_assert(row != NULL && end != NULL, "%s", outcome.out);
    cr_assert_eq(sscanf(row, " float sum -1 %*s %*s %lf %*s %*s %*s %lf", &out_of_place, &in_place), 2, "%s", row);
    cr_assert_eq(sscanf(end, "# Avg bus bandwidth : %lf", &mean), 1, "%s", end);
    cr_expect_float_eq(mean, (out_of_place + in_place) / 2, 0.0051, "%s", outcome.out);
    outcome_release(&outcome);
}

Test(bench, nccl_ends_are_those_of_nccl_tests)
{
    expect_nccl_end("bench -n 2 -b 1M -e 1M --iters=1 -w 0 --check", "\n# Out of bounds values : 0 OK\n");
    expect_nccl_end("bench -n 2 -b 1M -e 1M --iters=1 -w 0", "\n# Out of bounds values : N/A\n");
}

static void expect_osu_row(char *line, const void *context)
{
    char *tokens[TOKENS_MOST];
    (void)context;
    cr_assert_eq(tokens_of(line, tokens), 3);
    cr_expect(is_number(tokens[0]) && is_number(tokens[1]));
    cr_expect_str_eq(tokens[2], "Pass");
}

Test(bench, osu_columns_are_size_latency_and_validation)
{
    struct outcome outcome;
    size_t comments = 0;
    program_run("bench -n 2 --sizes=8..2K:x16 --iters=1 -w 0 --check --format=osu", &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect(contains(outcome.out, "Avg Latency(us)"));
    cr_expect_eq(each_line(outcome.out, &comments, expect_osu_row, NULL), 3);
    outcome_release(&outcome);
}

/* Size, mean, least, most, calls, two percentiles: of the workers' means, and of single calls. */
static void expect_osu_full_row(char *line, const void *context)
{
    char *tokens[TOKENS_MOST];
    (void)context;
    cr_assert_eq(tokens_of(line, tokens), 7);
    cr_expect_str_eq(tokens[0], "1024");
    cr_expect_str_eq(tokens[4], "3");
    cr_expect_leq(strtod(tokens[2], NULL), strtod(tokens[1], NULL));
    cr_expect_geq(strtod(tokens[3], NULL), strtod(tokens[1], NULL));
    cr_expect_leq(strtod(tokens[5], NULL), strtod(tokens[6], NULL));
}

Test(bench, osu_has_least_most_and_calls_when_extended)
{
    struct outcome outcome;
    size_t comments = 0;
    program_run("bench -n 3 --sizes=1K --iters=3 -w 0 -d float --format=osu --extended", &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect(contains(outcome.out, "Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"));
    cr_expect_eq(each_line(outcome.out, &comments, expect_osu_full_row, NULL), 1);
    outcome_release(&outcome);
}

/* The fields of one line of CSV, quotes taken off. */
static size_t csv_fields(char *line, char **fields)
{
    size_t count = 0;
    for (char *from = line; from != NULL && count < TOKENS_MOST;) {
        char *to = from;
        bool quoted = *from == '"';
        fields[count++] = to;
        from += quoted;
        while (*from != '\0' && (quoted || *from != ',')) {
            if (quoted && *from == '"' && *++from != '"')
                quoted = false;
            else
                *to++ = *from++;
        }
        from = *from == ',' ? from + 1 : NULL;
        *to = '\0';
    }
    return count;
}

Test(bench, csv_is_one_table_with_named_columns)
{
    static const char *const columns[] = {"allreduce", "workers",  "transport",  "bytes",   "count",  "dtype",
                                          "op",        "in_place", "time_us",    "p50_us",  "p99_us", "algbw",
                                          "busbw",     "wrong",    "wire_bytes", "messages"};
    struct outcome outcome;
    char *rest = NULL, *fields[TOKENS_MOST] = {NULL};
    size_t width = 0, rows = 0, refused = 0;
    program_run("bench --allreduce='hierarchical:intra=recursive-doubling hierarchical:intra=naive,inter=rhd' -n 2,3 "
                "-b 12 -e 12 --iters=1 -w 0 --check --format=csv",
                &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s", outcome.err);
    for (char *line = strtok_r(outcome.out, "\r\n", &rest); line != NULL; line = strtok_r(NULL, "\r\n", &rest)) {
        size_t count = csv_fields(line, fields);
        if (width == 0) {
            width = count;
            cr_assert_geq(count, sizeof columns / sizeof columns[0]);
            for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
                cr_expect_str_eq(fields[i], columns[i]);
            cr_expect_str_eq(fields[count - 1], "refused");
            continue;
        }
        rows++;
        cr_assert_eq(count, width, "row %zu", rows);
        if (fields[count - 1][0] != '\0') {
            refused++;
            cr_expect_str_eq(fields[0], "hierarchical:intra=recursive-doubling");
            cr_expect_str_empty(fields[8]);
            continue;
        }
        cr_expect_str_eq(fields[0], "hierarchical:inter=recursive-halving-doubling,intra=naive");
        cr_expect_str_eq(fields[3], "12");
        cr_expect(is_number(fields[8]) && is_number(fields[12]));
        cr_expect_str_eq(fields[13], "0");
    }
    cr_expect_eq(refused, 2);
    cr_expect_eq(rows, 6);
    outcome_release(&outcome);
}

Test(bench, a_refusal_is_a_row_with_its_reason)
{
    json_t *rows = rows_of("bench --allreduce='hierarchical:intra=recursive-doubling ring' -n 4 -b 8 -e 8 --iters=1 "
                           "-w 0 --in-place=no --json");
    cr_assert_eq(json_array_size(rows), 2);
    const json_t *row = json_array_get(rows, 0);
    cr_expect(contains(string_of(row, "refused"), "no halves"));
    cr_expect(json_is_null(json_object_get(row, "time_us")));
    cr_expect(json_is_null(json_object_get(row, "busbw")));
    expect_row(json_array_get(rows, 1), "ring");
    json_decref(rows);
}

/* ---- predictions ---- */

Test(bench, what_was_measured_gives_a_platform_that_predicts)
{
    struct outcome outcome;
    json_t *document = program_json("bench --allreduce='ring rd rhd' -n 2,3 --sizes=1K..256K:x16 --iters=5 --json");
    cr_assert_eq(json_dump_file(document, "bench.json", 0), 0);
    json_decref(document);
    program_run("calibrate --bench=bench.json --out=here.txt --name=here", &outcome);
    cr_assert_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect_str_empty(outcome.out);
    outcome_release(&outcome);
    json_t *rows = rows_of("bench --allreduce=ring -n 3 --sizes=1K..256K:x256 --iters=2 --platform=here.txt --json");
    cr_assert_eq(json_array_size(rows), 4);
    cr_expect_gt(number_of(json_array_get(rows, 0), "predicted_us"), 0);
    cr_expect_gt(number_of(json_array_get(rows, 2), "predicted_us"),
                 number_of(json_array_get(rows, 0), "predicted_us"));
    json_decref(rows);
}

/* A hundred times as quick would be the wire's bandwidth, or nobody's. */
Test(bench, a_platform_is_fitted_to_what_travels_as_it_is_and_is_right)
{
    static const char plain[] = "{\"allreduce\": \"ring\", \"workers\": 2, \"bytes\": 1000000, \"time_us\": 1000, "
                                "\"dtype\": \"f32\", \"wire\": \"f32\", \"wrong\": 0}";
    static const char other[] = "{\"allreduce\": \"ring\", \"workers\": 2, \"bytes\": 1000000, \"time_us\": 10, "
                                "\"dtype\": \"f32\", \"wire\": \"%s\", \"wrong\": %d}";
    char document[1024], rows[2][256];
    struct outcome outcome;
    snprintf(rows[0], sizeof rows[0], other, "f16", 0);
    snprintf(rows[1], sizeof rows[1], other, "f32", 1);
    snprintf(document, sizeof document, "{\"rows\": [%s, %s, %s]}", plain, rows[0], rows[1]);
    program_write("bench.json", document);
    program_run("calibrate --bench=bench.json", &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect(contains(outcome.out, "fitted to 1 rows") && contains(outcome.out, "latency=500us"), "%s", outcome.out);
    outcome_release(&outcome);
}
