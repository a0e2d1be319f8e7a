/* test_option.c - one table: parsing, checks with helpful words, help, and the canonical description. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>

#include "base/option.h"
#include "tests/base/expect.h"

static const struct option table[] = {
    {.key = "allreduce", .repeats = true, .type = OPTION_SPEC, .help = "algorithms to run"},
    {.key = "workers",
     .letter = 'n',
     .type = OPTION_INT,
     .default_text = "1",
     .unit = "workers",
     .min = 1,
     .max = 64,
     .help = "workers to start"},
    {.key = "segment",
     .type = OPTION_SIZE,
     .default_text = "256K",
     .unit = "B",
     .min = 1,
     .max = 1073741824.0,
     .help = "wire piece"},
    {.key = "lr", .type = OPTION_REAL, .default_text = "0.1", .min = 0, .max = (double)INFINITY, .help = "rate"},
    {.key = "offset", .letter = 'o', .type = OPTION_REAL, .help = "any number"},
    {.key = "deadline", .type = OPTION_SECONDS, .default_text = "30", .unit = "s", .help = "longest wait"},
    {.key = "transport",
     .letter = 't',
     .type = OPTION_CHOICE,
     .default_text = "auto",
     .choices = "auto|shm|tcp",
     .help = "how bytes travel"},
    {.key = "data", .type = OPTION_STRING, .help = "folder of images"},
    {.key = "check", .letter = 'c', .type = OPTION_FLAG, .help = "compare with a reference"},
    {.key = NULL},
};

static struct option_values values;

static void setup(void)
{
    cr_assert_eq(option_values_init(&values, table), STATUS_OK);
}

static void teardown(void)
{
    option_values_release(&values);
}

TestSuite(option, .init = setup, .fini = teardown);

#define WORD_LIMIT 16

/* Parse "program" and the words given, without help and with or without words that are no options. */
static enum status parse(const char *const *words, size_t count, char ***rest, size_t *rest_count)
{
    char *argv[WORD_LIMIT + 1] = {(char *)(uintptr_t) "program"};
    cr_assert_lt(count, WORD_LIMIT);
    for (size_t i = 0; i < count; i++)
        argv[i + 1] = (char *)(uintptr_t)words[i];
    return option_parse(&values, (int)count + 1, argv, NULL, rest, rest_count);
}

#define WORDS(...) (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)

Test(option, the_table_is_sound)
{
    EXPECT_OK(option_table_check(table));
}

Test(option, defaults_stand_until_set)
{
    cr_expect_eq(option_int(&values, "workers"), 1);
    cr_expect_eq(option_size(&values, "segment"), 256 * 1024);
    cr_expect_eq(option_real(&values, "lr"), 0.1);
    cr_expect_eq(option_real(&values, "deadline"), 30);
    cr_expect_eq(option_real(&values, "offset"), 0);
    cr_expect_str_eq(option_text(&values, "transport"), "auto");
    cr_expect_null(option_text(&values, "data"));
    cr_expect_not(option_flag(&values, "check"));
    cr_expect_not(option_given(&values, "workers"));
    EXPECT_OK(option_set(&values, "workers", "8"));
    cr_expect_eq(option_int(&values, "workers"), 8);
    cr_expect(option_given(&values, "workers"));
}

Test(option, values_are_kept_in_their_canonical_spelling)
{
    EXPECT_OK(option_set(&values, "segment", "65536K"));
    cr_expect_str_eq(option_text(&values, "segment"), "64M");
    EXPECT_OK(option_set(&values, "segment", "1000"));
    cr_expect_str_eq(option_text(&values, "segment"), "1000");
    EXPECT_OK(option_set(&values, "lr", "0.10"));
    cr_expect_str_eq(option_text(&values, "lr"), "0.1");
    EXPECT_OK(option_set(&values, "workers", "+04"));
    cr_expect_str_eq(option_text(&values, "workers"), "4");
}

Test(option, wrong_values_name_key_value_and_what_is_taken)
{
    const struct {
        const char *key, *value, *says;
    } bad[] = {
        {"workers", "0", "workers=0: it takes a whole number from 1 to 64 (workers)"},
        {"workers", "65", "from 1 to 64"},
        {"workers", "four", "workers=four"},
        {"workers", "", "workers="},
        {"segment", "1X", "segment=1X: it takes a size (bytes with an optional K, M or G) from 1 to 1G"},
        {"segment", "0", "segment=0"},
        {"lr", "-1", "lr=-1: it takes a number at least 0"},
        {"lr", "0,1", "lr=0,1"},
        {"offset", "north", "offset=north: it takes a number"},
        {"deadline", "1m", "deadline=1m: it takes a number of seconds"},
        {"transport", "tpc", "transport=tpc: did you mean tcp? it takes one of auto, shm, tcp"},
        {"transport", "pigeon", "transport=pigeon: it takes one of auto, shm, tcp"},
        {"transport", "", "transport="},
        {"transport", "auto|shm", "it takes one of"},
        {"check", "yes", "check=yes: it takes 0 or 1"},
        {"allreduce", "", "allreduce=: it takes an algorithm spec"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        EXPECT_FAIL(STATUS_USAGE, bad[i].says, option_set(&values, bad[i].key, bad[i].value));
        cr_expect_not(option_given(&values, bad[i].key));
    }
}

Test(option, unknown_keys_name_the_nearest)
{
    EXPECT_FAIL(STATUS_USAGE, "unknown option segmnet: did you mean segment?", option_set(&values, "segmnet", "1"));
    EXPECT_FAIL(STATUS_USAGE, "unknown option colour: known are allreduce, workers,",
                option_set(&values, "colour", "1"));
    static const struct option none[] = {{.key = NULL}};
    struct option_values empty;
    EXPECT_OK(option_values_init(&empty, none));
    EXPECT_FAIL(STATUS_USAGE, "unknown option chunks: none is taken here", option_set(&empty, "chunks", "1"));
    option_values_release(&empty);
}

Test(option, repeated_values_are_joined_and_others_replaced)
{
    EXPECT_OK(option_set(&values, "allreduce", "ring"));
    EXPECT_OK(option_set(&values, "allreduce", "hierarchical:intra=ring,inter=rhd"));
    cr_expect_str_eq(option_text(&values, "allreduce"), "ring hierarchical:intra=ring,inter=rhd");
    EXPECT_OK(option_set(&values, "data", "a"));
    EXPECT_OK(option_set(&values, "data", ""));
    cr_expect_str_eq(option_text(&values, "data"), "");
    cr_expect(option_given(&values, "data"));
}

Test(option, command_lines_in_every_spelling)
{
    EXPECT_OK(parse(WORDS("--allreduce=ring", "-n4", "--segment", "1M", "--check", "-t", "tcp", "-o", "-3",
                          "--allreduce", "rhd", "--data="),
                    NULL, NULL));
    cr_expect_str_eq(option_text(&values, "allreduce"), "ring rhd");
    cr_expect_eq(option_int(&values, "workers"), 4);
    cr_expect_eq(option_size(&values, "segment"), (size_t)1 << 20);
    cr_expect(option_flag(&values, "check"));
    cr_expect_str_eq(option_text(&values, "transport"), "tcp");
    cr_expect_eq(option_real(&values, "offset"), -3);
    cr_expect_str_eq(option_text(&values, "data"), "");
    EXPECT_OK(parse(WORDS("--check=0", "--data=a=b"), NULL, NULL));
    cr_expect_not(option_flag(&values, "check"));
    cr_expect_str_eq(option_text(&values, "data"), "a=b");
}

Test(option, other_words_go_to_rest_or_are_refused)
{
    char **rest = NULL;
    size_t count = 9;
    EXPECT_OK(parse(WORDS("first", "-n", "2", "-", "-c", "--", "--check=maybe", "-x"), &rest, &count));
    cr_assert_eq(count, 4);
    cr_expect_str_eq(rest[0], "first");
    cr_expect_str_eq(rest[1], "-");
    cr_expect_str_eq(rest[2], "--check=maybe");
    cr_expect_str_eq(rest[3], "-x");
    cr_expect_eq(option_int(&values, "workers"), 2);
    cr_expect(option_flag(&values, "check"));
    free(rest);
    EXPECT_FAIL(STATUS_USAGE, "unexpected word \"ring\"", parse(WORDS("ring"), NULL, NULL));
    EXPECT_OK(option_parse(&values, 0, NULL, NULL, &rest, &count));
    cr_expect_eq(count, 0);
    free(rest);
}

Test(option, wrong_command_lines_say_why)
{
    char **rest = NULL;
    size_t count = 0;
    EXPECT_FAIL(STATUS_USAGE, "unknown option --allreduse: did you mean --allreduce?",
                parse(WORDS("word", "--allreduse=ring"), &rest, &count));
    cr_expect_null(rest);
    cr_expect_eq(count, 0);
    EXPECT_FAIL(STATUS_USAGE, "unknown option -allreduce: did you mean --allreduce?",
                parse(WORDS("-allreduce=ring"), NULL, NULL));
    EXPECT_FAIL(STATUS_USAGE, "unknown option --colour: --help", parse(WORDS("--colour=red"), NULL, NULL));
    EXPECT_FAIL(STATUS_USAGE, "unknown option --", parse(WORDS("--=red"), NULL, NULL));
    EXPECT_FAIL(STATUS_USAGE, "--segment needs a value: it takes a size", parse(WORDS("--segment"), NULL, NULL));
    EXPECT_FAIL(STATUS_USAGE, "--data needs a value", parse(WORDS("--data", "--check"), NULL, NULL));
    EXPECT_FAIL(STATUS_USAGE, "--data needs a value", parse(WORDS("--data", "-n", "4"), NULL, NULL));
    EXPECT_FAIL(STATUS_USAGE, "--workers=x: it takes", parse(WORDS("-n", "x"), NULL, NULL));
    EXPECT_FAIL(STATUS_USAGE, "-cn: -c takes no value", parse(WORDS("-cn"), NULL, NULL));
}

static enum status parse_help(const char *const *words, size_t count, bool *help)
{
    char *argv[WORD_LIMIT + 1] = {(char *)(uintptr_t) "program"};
    for (size_t i = 0; i < count; i++)
        argv[i + 1] = (char *)(uintptr_t)words[i];
    char **rest = NULL;
    size_t rest_count = 0;
    enum status status = option_parse(&values, (int)count + 1, argv, help, &rest, &rest_count);
    free(rest);
    return status;
}

Test(option, help_is_given_to_who_asks)
{
    bool help = false;
    EXPECT_OK(parse_help(WORDS("--colour=red", "--help"), &help));
    cr_expect(help);
    EXPECT_OK(parse_help(WORDS("-h"), &help));
    cr_expect(help);
    EXPECT_OK(parse_help(WORDS("-n", "2", "--", "--help"), &help));
    cr_expect_not(help);
    EXPECT_FAIL(STATUS_USAGE, "did you mean --help?", parse_help(WORDS("--hlep"), &help));
    EXPECT_FAIL(STATUS_USAGE, "unknown option --help", parse(WORDS("--help"), NULL, NULL));
}

Test(option, help_comes_from_the_table)
{
    struct text help = {0};
    option_help(table, &help);
    EXPECT_OK(text_check(&help));
    cr_expect_str_eq(text_string(&help),
                     "  --allreduce=SPEC              algorithms to run (may be repeated)\n"
                     "  -n, --workers=INT             workers to start (default 1, 1 to 64, workers)\n"
                     "  --segment=SIZE                wire piece (default 256K, 1 to 1G, B)\n"
                     "  --lr=REAL                     rate (default 0.1, at least 0)\n"
                     "  -o, --offset=REAL             any number\n"
                     "  --deadline=SECONDS            longest wait (default 30, s)\n"
                     "  -t, --transport=auto|shm|tcp  how bytes travel (default auto)\n"
                     "  --data=TEXT                   folder of images\n"
                     "  -c, --check                   compare with a reference\n");
    text_release(&help);
}

static void expect_described(const char *wanted)
{
    struct text text = {0};
    option_describe(&values, &text);
    EXPECT_OK(text_check(&text));
    cr_expect_str_eq(text_string(&text), wanted);
    text_release(&text);
}

Test(option, the_description_is_sorted_and_leaves_defaults_out)
{
    expect_described("");
    EXPECT_OK(option_set(&values, "workers", "4"));
    EXPECT_OK(option_set(&values, "segment", "262144"));
    EXPECT_OK(option_set(&values, "check", "0"));
    EXPECT_OK(option_set(&values, "lr", "0.10"));
    expect_described("workers=4");
    EXPECT_OK(option_set(&values, "check", "1"));
    EXPECT_OK(option_set(&values, "allreduce", "ring"));
    EXPECT_OK(option_set(&values, "segment", "1024K"));
    expect_described("allreduce=ring check=1 segment=1M workers=4");
}

Test(option, copies_are_their_own)
{
    struct option_values copy;
    EXPECT_OK(option_set(&values, "workers", "4"));
    EXPECT_OK(option_values_copy(&copy, &values));
    EXPECT_OK(option_set(&copy, "workers", "5"));
    cr_expect_eq(option_int(&values, "workers"), 4);
    cr_expect_eq(option_int(&copy, "workers"), 5);
    cr_expect_not(option_given(&copy, "segment"));
    option_values_release(&copy);
    option_values_release(&copy);
}

#ifndef NDEBUG
Test(option, a_key_that_is_not_in_the_table_is_a_bug, .signal = SIGABRT)
{
    (void)option_int(&values, "wrokers");
}

Test(option, the_wrong_type_is_a_bug, .signal = SIGABRT)
{
    (void)option_size(&values, "workers");
}
#endif

Test(option, unsound_tables_are_found)
{
    static const struct option twice[] = {
        {.key = "a", .type = OPTION_INT}, {.key = "a", .type = OPTION_INT}, {.key = NULL}};
    static const struct option letter[] = {{.key = "a", .letter = 'x', .type = OPTION_INT},
                                           {.key = "b", .letter = 'x', .type = OPTION_INT},
                                           {.key = NULL}};
    static const struct option standing[] = {{.key = "a", .type = OPTION_CHOICE, .choices = "x|y", .default_text = "z"},
                                             {.key = NULL}};
    EXPECT_FAIL(STATUS_INTERNAL, "the key stands twice", option_table_check(twice));
    EXPECT_FAIL(STATUS_INTERNAL, "the letter x stands twice", option_table_check(letter));
    EXPECT_FAIL(STATUS_INTERNAL, "its own default z", option_table_check(standing));
}
