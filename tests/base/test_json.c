/* test_json.c - documents as text, in files, and where they cannot be written. */
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "tests/base/expect.h"

/* What json_print writes; the caller frees. */
static char *printed(const json_t *document)
{
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    cr_assert_not_null(stream);
    EXPECT_OK(json_print(stream, document));
    cr_assert_eq(fclose(stream), 0);
    return text;
}

static void expect_printed(json_t *document, const char *wanted)
{
    char *text = printed(document);
    cr_expect_str_eq(text, wanted);
    free(text);
    json_decref(document);
}

Test(json, numbers_that_are_none_become_null)
{
    expect_printed(json_number(0.1), "0.1\n");
    expect_printed(json_number(1.0 / 3), "0.333333333333\n");
    expect_printed(json_number((double)NAN), "null\n");
    expect_printed(json_number(-(double)INFINITY), "null\n");
}

Test(json, documents_keep_their_order)
{
    json_t *document = json_pack("{s:i, s:o, s:[s]}", "workers", 4, "time_us", json_number(12.5), "algorithms", "ring");
    expect_printed(document, "{\n  \"workers\": 4,\n  \"time_us\": 12.5,\n  \"algorithms\": [\n    \"ring\"\n  ]\n}\n");
}

Test(json, output_ignores_the_locale)
{
    if (setlocale(LC_ALL, "de_DE.UTF-8") == NULL)
        cr_skip_test("de_DE.UTF-8 is not installed");
    expect_printed(json_number(0.5), "0.5\n");
}

Test(json, a_file_holds_what_is_printed)
{
    char folder[] = "/tmp/chorale-json-XXXXXX", path[64];
    cr_assert_not_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/summary.json", folder);
    json_t *document = json_pack("{s:i}", "seed", 7);
    EXPECT_OK(json_write(path, document));
    char *text = printed(document), *data = NULL;
    size_t length = 0;
    EXPECT_OK(file_read(path, 1000, &data, &length));
    cr_expect_str_eq(data, text);
    free(data);
    free(text);
    json_decref(document);
    cr_expect_eq(unlink(path), 0);
    cr_expect_eq(rmdir(folder), 0);
}

Test(json, failures_are_reported)
{
    json_t *document = json_pack("{s:i}", "seed", 7);
    EXPECT_FAIL(STATUS_NO_MEMORY, "JSON", json_print(stdout, NULL));
    EXPECT_FAIL(STATUS_IO, "/nonexistent", json_write("/nonexistent/summary.json", document));
    FILE *full = fopen("/dev/full", "w");
    if (full != NULL) {
        EXPECT_FAIL(STATUS_IO, "No space left", json_print(full, document));
        (void)fclose(full);
    }
    json_decref(document);
}

Test(json, a_name_may_have_any_bytes)
{
    static const struct {
        const char *name, *wanted;
    } cases[] = {
        {"plain", "plain"}, {"w\303\266rt", "w\303\266rt"}, {"a\xff\n\303\266", "a\\xff\n\\xc3\\xb6"}, {"", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *json = json_name(cases[i].name);
        cr_assert_not_null(json);
        cr_expect_str_eq(json_string_value(json), cases[i].wanted);
        json_decref(json);
    }
    json_t *none = json_name(NULL);
    cr_expect(json_is_null(none));
    json_decref(none);
}
