/* test_hash.c - FNV-1a against published values (its authors' test suite). */
#include <criterion/criterion.h>
#include <string.h>

#include "base/hash.h"

static uint64_t hash_of(const char *word)
{
    return hash_bytes(HASH_START, word, strlen(word));
}

Test(hash, published_values)
{
    cr_expect_eq(hash_of(""), UINT64_C(0xcbf29ce484222325));
    cr_expect_eq(hash_of("a"), UINT64_C(0xaf63dc4c8601ec8c));
    cr_expect_eq(hash_of("foobar"), UINT64_C(0x85944171f73967e8));
}

Test(hash, goes_on_where_it_was)
{
    cr_expect_eq(hash_bytes(hash_of("foo"), "bar", 3), hash_of("foobar"));
}
