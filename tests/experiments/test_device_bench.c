/* test_device_bench.c - `chorale bench --device=cuda` from the outside, on devices that need no card: a toy whose memory
 * stays in its process (tests/nn/toy), and a played CUDA device whose memory neighbours read (tests/nn/cuda/fake). What is not
 * built here is left out.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/base/expect.h"
#include "tests/base/shared_memory.h"
#include "tests/experiments/support_program.h"

TestSuite(device_bench, .init = program_setup, .fini = program_teardown, .timeout = 300);

/* The modules that are built beside the program in `folder`; false: there are none. */
static bool use_modules(const char *folder)
{
    char path[4096], module[4200];
    (void)snprintf(path, sizeof path, "%s", CHORALE_PROGRAM);
    char *slash = strrchr(path, '/');
    cr_assert_not_null(slash);
    (void)snprintf(slash, sizeof path - (size_t)(slash - path), "/%s", folder);
    (void)snprintf(module, sizeof module, "%s/chorale-device-cuda.so", path);
    cr_assert_eq(setenv("CHORALE_MODULES", path, 1), 0);
    return access(module, R_OK) == 0;
}

/* Right elements, equal bits, and the bytes that the schedule has. */
static void check_rows(const char *words, size_t least)
{
    json_t *document = program_json(words), *row = NULL;
    const json_t *rows = json_object_get(document, "rows");
    size_t i = 0;
    cr_assert_geq(json_array_size(rows), least, "%s: %zu rows", words, json_array_size(rows));
    json_array_foreach(rows, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "allreduce"));
        cr_expect_str_eq(json_string_value(json_object_get(row, "device")), "cuda");
        cr_expect(json_is_null(json_object_get(row, "refused")), "%s: %s is refused", words, name);
        cr_expect_eq(json_integer_value(json_object_get(row, "wrong")), 0, "%s: %s is wrong", words, name);
        cr_expect(json_is_true(json_object_get(row, "equal_bits")), "%s: %s: bits differ", words, name);
        cr_expect(json_equal(json_object_get(row, "wire_bytes"), json_object_get(row, "schedule_bytes")));
        cr_expect(json_is_null(json_object_get(row, "wire_infinite")));
    }
    json_decref(document);
}

static void check_device(const char *folder)
{
    if (!use_modules(folder))
        cr_skip_test("the module in %s is not built", folder);
    check_rows("bench -n 2 --device=cuda --transport=shm --allreduce=ring,rd --sizes=8..64K:x64 --iters=2 -w 1 --check "
               "--json",
               4);
    check_rows("bench -n 3 --device=cuda --transport=tcp --allreduce=ring --sizes=4..400K:x99 --iters=1 -w 0 --check "
               "--dtype=f64 --op=avg --json",
               2);
    need_shared_memory(3);
    check_rows("bench -n 3 --device=cuda --transport=shm --allreduce=one-shot --sizes=12K..12K --iters=1 -w 0 --check "
               "--wire=bf16 --in-place=only --json",
               1);
}

Test(device_bench, memory_of_one_process)
{
    check_device("toy");
}

Test(device_bench, memory_that_neighbours_read)
{
    check_device("fake");
}

/* NCCL's module, on NCCL as it is played between played cards. */
static bool use_nccl(const char *cards)
{
    char module[4200];
    if (!use_modules("fake"))
        return false;
    (void)snprintf(module, sizeof module, "%s/chorale-external-nccl.so", getenv("CHORALE_MODULES"));
    cr_assert_eq(setenv("CHORALE_FAKE", cards, 1), 0);
    return access(module, R_OK) == 0;
}

Test(device_bench, nccl_beside_ours)
{
    static const char *const types[] = {"f32 --op=avg", "f64 --op=max", "i32 --op=min", "i64 --op=sum"};
    if (!use_nccl("cards=3"))
        cr_skip_test("NCCL's module is not built");
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
        char words[256];
        json_t *row = NULL;
        size_t i = 0;
        (void)snprintf(words, sizeof words,
                       "bench -n 3 --device=cuda --allreduce=nccl,ring --sizes=8..400K:x99 --iters=2 -w 1 --check "
                       "--json --dtype=%s",
                       types[k]);
        json_t *document = program_json(words);
        const json_t *rows = json_object_get(document, "rows");
        cr_expect_geq(json_array_size(rows), 8, "%s", words);
        json_array_foreach(rows, i, row)
        {
            const bool nccl = strcmp(json_string_value(json_object_get(row, "allreduce")), "nccl") == 0;
            cr_expect(json_is_null(json_object_get(row, "refused")), "%s", words);
            cr_expect_eq(json_integer_value(json_object_get(row, "wrong")), 0, "%s", words);
            cr_expect_eq(json_is_null(json_object_get(row, "wire_bytes")), nccl, "%s", words);
        }
        json_decref(document);
    }
}

Test(device_bench, nccl_wants_a_card_for_each_worker)
{
    if (!use_nccl("cards=1"))
        cr_skip_test("NCCL's module is not built");
    json_t *document = program_json("bench -n 2 --device=cuda --allreduce=nccl --sizes=1K --iters=1 --json");
    const json_t *row = json_array_get(json_object_get(document, "rows"), 0);
    const char *refused = json_string_value(json_object_get(row, "refused"));
    cr_expect(refused != NULL && strstr(refused, "NCCL wants a card for each worker") != NULL, "%s", refused);
    json_decref(document);
    REFUSED("bench -n 2 --allreduce=nccl", 2, "external", "--device=cuda");
}

Test(device_bench, what_can_not_be_is_refused)
{
    cr_assert_eq(setenv("CHORALE_MODULES", "/nowhere", 1), 0);
    REFUSED("bench -n 2 --device=cuda", 1, "device cuda: no module /nowhere/chorale-device-cuda.so");
    REFUSED("bench -n 2 --device=gpu", 2, "--device=gpu: take cpu, cuda");
    REFUSED("bench -n 2 --device=replay:nothing", 2, "a replayed device has no memory of its own");
    if (!use_modules("toy") && !use_modules("fake"))
        cr_skip_test("no module without a card is built");
    REFUSED("bench -n 2 --device=cuda --allreduce=mpi", 2, "is not known to read device memory", "--device=cuda");
    REFUSED("bench -n 2 --device=cuda --allreduce=one-shot --wire=sign", 2, "take --wire=f16 or bf16");
}
