/* fuzz_msccl.c - hostile MSCCL files: whatever the bytes, the reader, the run on symbols and the plan end with a status and
 * a message, and what they let pass is a schedule that the verifier proves.
 *
 * A driver of its own runs everywhere: it mutates the files in tests/algos/data, the same inputs for the same seed. In the
 * test run a fixed number; by hand fuzz_msccl --seconds=300. An input is a function of seed and number, so a crash is found
 * again with --from=N --count=M, and --count=1 prints the input. With clang it is a libFuzzer target, too:
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -DCHORALE_LIBFUZZER -D_POSIX_C_SOURCE=200809L -I. -o fuzz \
 *         tests/fuzz_msccl.c $(find algos base -name '*.c') -ljansson -lz -lm && ./fuzz FOLDER tests/algos/data
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/msccl_plan.h"
#include "algos/verify.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"

/* Larger ones are read, run and planned, but not verified: that is a matter of time. */
#define PROVED_CELLS 400

/* ---- one input ---- */

struct state {
    const struct msccl_plan *plan;
};

static enum status emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct msccl_plan *plan = ((const struct state *)shape->state)->plan;
    const size_t *first = &plan->first[(size_t)rank * plan->rounds + round];
    for (size_t i = first[0]; i < first[1]; i++)
        TRY(sink->op(sink, &plan->op[i]));
    return STATUS_OK;
}

/* What has passed so far must be an allreduce. */
static void prove(const struct msccl *msccl, const struct msccl_plan *plan)
{
    static const struct algorithm algorithm = {.name = "fuzzed", .emit = emit};
    struct state state = {.plan = plan};
    const struct shape shape = {.algorithm = &algorithm,
                                .workers = msccl->workers,
                                .chunks = msccl->chunks,
                                .scratch = plan->scratch,
                                .rounds = plan->rounds,
                                .lanes = msccl->channels,
                                .state = &state};
    struct verify_result result;
    if (verify_shape(&shape, &result) == STATUS_OK && !result.ok) {
        fprintf(stderr, "fuzz_msccl: let pass, but: %s\n", result.reason);
        abort();
    }
}

/* Whether it was taken as an allreduce. */
static bool try(const char *text, size_t length)
{
    struct msccl msccl;
    struct msccl_run run;
    struct msccl_plan plan;
    bool taken = false;
    status_clear();
    if (msccl_parse(text, length, "fuzzed", &msccl) == STATUS_OK) {
        if (msccl_run(&msccl, &run) == STATUS_OK) {
            if (msccl_plan(&msccl, &run, &plan) == STATUS_OK) {
                taken = true;
                if ((size_t)msccl.workers * msccl.chunks <= PROVED_CELLS)
                    prove(&msccl, &plan);
                msccl_plan_release(&plan);
            }
            msccl_run_release(&run);
        }
        msccl_release(&msccl);
    }
    if (!taken && status_message()[0] == '\0') {
        fprintf(stderr, "fuzz_msccl: refused without a message\n");
        abort();
    }
    return taken;
}

#ifdef CHORALE_LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    (void)try((const char *)data, length);
    return 0;
}

#else

/* ---- mutations ---- */

#define MOST_BYTES 65536

static const char *const names[] = {"exchange2.xml", "ring3.xml", "pairs3.xml", "oneshot3.xml", "tree3.xml"};
enum { SEEDS = sizeof names / sizeof *names };

static const char *const words[] = {
    "<step",    "</tb>",        "</gpu>",    "</algo>",         "<tb ",          "<gpu ",   "/>",      "<!--",
    "-->",      "\"",           "type=",     "\"s\"",           "\"r\"",         "\"rcs\"", "\"rrs\"", "\"rrc\"",
    "\"rrcs\"", "\"cpy\"",      "\"re\"",    "\"nop\"",         "\"i\"",         "\"o\"",   "\"s\"",   "depid=",
    "deps=",    "hasdep=\"1\"", "cnt=",      "inplace=\"0\"",   "inplace=\"1\"", "\"-1\"",  "\"0\"",   "\"1\"",
    "\"2\"",    "\"3\"",        "\"32767\"", "\"99999999999\"", "chan=\"1\"",    "&",       "\n"};
enum { WORDS = sizeof words / sizeof *words };

struct source {
    char *text[SEEDS];
    size_t length[SEEDS];
};

struct draw {
    uint64_t seed, counter;
};

static size_t below(struct draw *draw, size_t bound)
{
    return bound == 0 ? 0 : (size_t)rng_below(draw->seed, draw->counter++, bound);
}

/* Replace `gone` bytes at `at` by `length` bytes of `with`. */
static void replace(char *text, size_t *size, size_t at, size_t gone, const char *with, size_t length)
{
    if (gone > *size - at)
        gone = *size - at;
    if (*size - gone + length > MOST_BYTES)
        return;
    memmove(text + at + length, text + at + gone, *size - at - gone);
    memcpy(text + at, with, length);
    *size += length - gone;
}

/* The next place at or after a random one that has `wanted`, SIZE_MAX when there is none. */
static size_t find(struct draw *draw, const char *text, size_t size, const char *wanted)
{
    const size_t length = strlen(wanted);
    for (size_t at = below(draw, size); at + length <= size; at++)
        if (memcmp(text + at, wanted, length) == 0)
            return at;
    return SIZE_MAX;
}

/* Another number in some attribute: most of what is wrong in files looks like that. */
static void mutate_number(struct draw *draw, char *text, size_t *size)
{
    char number[8];
    const size_t at = find(draw, text, *size, "=\"");
    if (at == SIZE_MAX)
        return;
    const int length = snprintf(number, sizeof number, "%d", (int)below(draw, 5) - 1);
    size_t end = at + 2;
    while (end < *size && text[end] != '"')
        end++;
    replace(text, size, at + 2, end - at - 2, number, (size_t)length);
}

/* A step goes, comes twice, or changes its place. */
static void mutate_line(struct draw *draw, char *text, size_t *size)
{
    char line[512];
    const size_t at = find(draw, text, *size, "<step");
    if (at == SIZE_MAX)
        return;
    size_t length = 0;
    while (at + length < *size && length < sizeof line && text[at + length] != '\n')
        length++;
    memcpy(line, text + at, length);
    const size_t choice = below(draw, 3);
    if (choice != 1)
        replace(text, size, at, length, "", 0);
    const size_t to = choice == 0 ? SIZE_MAX : find(draw, text, *size, "<step");
    if (to != SIZE_MAX)
        replace(text, size, to, 0, line, length);
}

static void mutate(struct draw *draw, const struct source *source, char *text, size_t *size)
{
    const size_t at = below(draw, *size), other = below(draw, SEEDS), from = below(draw, source->length[other]);
    const char *word = words[below(draw, WORDS)];
    const char byte = (char)below(draw, 256);
    switch (below(draw, 9)) {
    case 0:
        replace(text, size, at, 1, &byte, 1);
        break;
    case 1:
        replace(text, size, at, below(draw, 40), "", 0);
        break;
    case 2:
        replace(text, size, at, below(draw, 12), word, strlen(word));
        break;
    case 3:
        replace(text, size, at, below(draw, 200), source->text[other] + from,
                below(draw, source->length[other] - from < 200 ? source->length[other] - from : 200));
        break;
    case 4:
        *size = below(draw, 10) == 0 ? at : *size;
        break;
    case 5:
        mutate_line(draw, text, size);
        break;
    default:
        mutate_number(draw, text, size);
    }
}

/* Input `number`, in memory of just its size, so that a sanitizer sees what is read behind it. */
static char *make_input(const struct source *source, uint64_t seed, uint64_t number, size_t *length)
{
    static char text[MOST_BYTES];
    struct draw draw = {.seed = rng_u64(seed, number)};
    const size_t which = below(&draw, SEEDS);
    size_t size = source->length[which];
    memcpy(text, source->text[which], size);
    for (size_t left = 1 + below(&draw, 6); left > 0; left--)
        mutate(&draw, source, text, &size);
    char *input = malloc(size + 1);
    if (input != NULL)
        memcpy(input, text, size);
    *length = size;
    return input;
}

/* ---- driver ---- */

static bool read_source(struct source *source)
{
    for (size_t i = 0; i < SEEDS; i++) {
        char path[512];
        (void)snprintf(path, sizeof path, CHORALE_SOURCE_DIR "/tests/algos/data/%s", names[i]);
        if (file_read(path, MOST_BYTES / 2, &source->text[i], &source->length[i]) != STATUS_OK) {
            fprintf(stderr, "fuzz_msccl: %s\n", status_message());
            return false;
        }
    }
    return true;
}

/* --key=value of the command line, else the standard. */
static unsigned long long argument(int argc, char **argv, const char *key, unsigned long long standard)
{
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], key, strlen(key)) == 0 && argv[i][strlen(key)] == '=')
            return strtoull(argv[i] + strlen(key) + 1, NULL, 10);
    return standard;
}

int main(int argc, char **argv)
{
    struct source source = {.text = {NULL}};
    const unsigned long long seconds = argument(argc, argv, "--seconds", 0);
    const unsigned long long seed = argument(argc, argv, "--seed", 1), from = argument(argc, argv, "--from", 0);
    const unsigned long long count = argument(argc, argv, "--count", seconds > 0 ? UINT64_MAX : 30000);
    unsigned long long ran = 0, taken = 0;
    const uint64_t begun = clock_ns();
    bool ok = read_source(&source);
    while (ok && ran < count && (seconds == 0 || clock_ns() - begun < seconds * UINT64_C(1000000000))) {
        size_t length = 0;
        char *input = make_input(&source, seed, from + ran, &length);
        ok = input != NULL;
        if (ok && count == 1)
            (void)fwrite(input, 1, length, stdout);
        taken += ok && try(input, length);
        ran++;
        free(input);
    }
    for (size_t i = 0; i < SEEDS; i++)
        free(source.text[i]);
    printf("fuzz_msccl: seed %llu: %llu inputs from %llu, %llu of them an allreduce, in %.1f s\n", seed, ran, from,
           taken, (double)(clock_ns() - begun) * 1e-9);
    return ok && (taken > 0 || count == 1) ? 0 : 1;
}

#endif
