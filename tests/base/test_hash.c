/* test_hash.c - FNV-1a against published values (its authors' test suite), and that the quick one sees every bit. */
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

Test(hash, the_quick_one_sees_every_bit_every_byte_more_and_every_exchange)
{
    unsigned char bytes[100] = {0};
    uint64_t of_length[sizeof bytes + 1];
    for (size_t length = 0; length <= sizeof bytes; length++) {
        of_length[length] = hash_quick(bytes, length); /* of zeros */
        for (size_t other = 0; other < length; other++)
            cr_expect_neq(of_length[other], of_length[length], "%zu and %zu zeros", other, length);
        for (size_t bit = 0; bit < 8 * length; bit++) {
            bytes[bit / 8] ^= (unsigned char)(1U << bit % 8);
            cr_expect_neq(hash_quick(bytes, length), of_length[length], "bit %zu of %zu bytes", bit, length);
            bytes[bit / 8] = 0;
        }
    }
    bytes[3] = 1;
    const uint64_t here = hash_quick(bytes, sizeof bytes);
    for (size_t at = 4; at < sizeof bytes; at++) {
        bytes[at - 1] = 0;
        bytes[at] = 1;
        cr_expect_neq(hash_quick(bytes, sizeof bytes), here, "byte 3 lies at %zu", at);
    }
}
