/* test_inject.c - --inject in the program: results are right and say it, links are slower, and deaths are those asked for. */
#include <string.h>

#include "tests/experiments/support_program.h"

TestSuite(inject_program, .init = program_setup, .fini = program_teardown, .timeout = 300);

#define CNN "train --model=cnn --image-size=28 --batch=8 --threads=1 --eval=never --out=run "

/* Two rounds of the ring on two workers, each later by the delay. */
static void slow_ring(const char *transport)
{
    char words[256];
    (void)snprintf(words, sizeof words,
                   "bench --allreduce=ring -n 2 --sizes=4K --iters=3 -w 0 --check --json --transport=%s "
                   "--inject=jitter=1us,delay=3ms",
                   transport);
    json_t *document = program_json(words);
    const json_t *rows = json_object_get(document, "rows");
    cr_assert_eq(json_array_size(rows), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = json_array_get(rows, i);
        cr_expect_str_eq(string_of(row, "inject"), "delay=3000us,jitter=1us");
        cr_expect_eq(integer_of(row, "wrong"), 0);
        cr_expect_geq(number_of(row, "time_us"), 6000.0);
    }
    json_decref(document);
}

/* As a script with an empty variable has it. */
Test(inject_program, nothing_asked_for_is_nothing)
{
    json_t *document = program_json("bench --allreduce=ring -n 2 --sizes=8 --iters=1 -w 0 --json --inject=");
    const json_t *row = json_array_get(json_object_get(document, "rows"), 0);
    cr_expect(json_is_null(json_object_get(row, "inject")));
    cr_expect(!contains(string_of(row, "network"), "impaired"));
    json_decref(document);
}

Test(inject_program, slows_shared_memory_and_tcp)
{
    slow_ring("shm");
    slow_ring("tcp");
}

Test(inject_program, every_algorithm_runs)
{
    json_t *document = program_json("bench --allreduce=all -n 4 --sizes=40000 --iters=1 -w 0 --check --json "
                                    "--in-place=only --inject=delay=50us,jitter=200us,bandwidth=500MB/s,straggler=2:2");
    const json_t *rows = json_object_get(document, "rows");
    cr_expect_gt(json_array_size(rows), 20);
    for (size_t i = 0; i < json_array_size(rows); i++)
        if (json_is_null(json_object_get(json_array_get(rows, i), "refused")))
            cr_expect_eq(integer_of(json_array_get(rows, i), "wrong"), 0);
    json_decref(document);
}

Test(inject_program, training_is_the_same_and_says_it)
{
    json_t *plain = program_json(CNN "-n 2 --steps=4 --json");
    program_teardown();
    program_setup();
    json_t *slow = program_json(CNN "-n 2 --steps=4 --json --inject=delay=1ms,straggler=1:3");
    cr_expect(json_is_null(json_object_get(plain, "inject")));
    cr_expect_str_eq(string_of(slow, "inject"), "delay=1000us,straggler=1:3");
    cr_expect(json_equal(json_object_get(plain, "parameter_hash"), json_object_get(slow, "parameter_hash")));
    cr_expect(contains(string_of(json_object_get(slow, "versions"), "transport"), "impaired by delay=1000us"));
    json_decref(plain);
    json_decref(slow);
}

static void dies(const char *words, const char *what)
{
    struct outcome outcome;
    program_run(words, &outcome);
    cr_expect_eq(outcome.exit_code, 1, "%s: %s", words, outcome.err);
    expect_one_line(&outcome, words);
    cr_expect(contains(outcome.err, what), "%s: %s", words, outcome.err);
    outcome_release(&outcome);
}

Test(inject_program, a_worker_dies_as_asked)
{
#define BENCH "bench --allreduce=ring -n 3 --sizes=8..64K --iters=5 -w 0 "
    dies(BENCH "--inject=die=1@12", "rank 1 on ");
    dies(BENCH "--inject=die=2@12:kill", "killed by signal 9");
    dies(BENCH "--inject=die=2@12:exit0", "ended early (exit 0)");
    dies(BENCH "--deadline=10 --inject=die=0@12:stop", "rank 0 "); /* which leaves time for all to join */
    dies(CNN "-n 2 --steps=100 --inject=die=1@2", "rank 1 on ");
}

Test(inject_program, a_death_after_the_last_step_is_said)
{
    struct outcome outcome;
    program_run(CNN "-n 2 --steps=2 --inject=die=1@2", &outcome);
    cr_expect_eq(outcome.exit_code, 0, "%s", outcome.err);
    cr_expect_not_null(strstr(outcome.err, "nobody died"), "%s", outcome.err);
    outcome_release(&outcome);
}

Test(inject_program, refuses_what_it_cannot_do)
{
    REFUSED("bench -n 1 --inject=die=0@1:stop --sizes=8", 2, "die=0@1:stop", "only worker");
    REFUSED("bench -n 2 --inject=drop=0.1", 2, "drop=0.1", "deadlock");
    REFUSED("train -n 2 --inject=drop=0.1", 2, "drop=0.1", "deadlock");
    REFUSED("bench -n 2 --inject=delay=1us@0-2 --sizes=8", 2, "rank 2", "2 workers");
    REFUSED("train -n 2 --inject=slow=1", 2, "slow=1", "delay, jitter");
}
