/* test_proof.c - proofs against values that Python's hmac and hashlib have computed. */
#include <criterion/criterion.h>

#include <string.h>

#include "comm/bootstrap/proof.h"

TestSuite(proof, .timeout = 60);

static void count_up(unsigned char *bytes, size_t length, unsigned first)
{
    for (size_t i = 0; i < length; i++)
        bytes[i] = (unsigned char)(first + i);
}

Test(proof, known_values)
{
    static const unsigned char workers[PROOF_BYTES] = {0x71, 0x4d, 0xaa, 0x96, 0xb0, 0x7d, 0x7d, 0x74, 0x57, 0x2b, 0x4d,
                                                       0x20, 0xa0, 0x2a, 0x26, 0xd4, 0xb1, 0x11, 0xcc, 0x1c, 0xcb, 0x32,
                                                       0x2f, 0x3d, 0x2d, 0x98, 0x2b, 0xe6, 0xa8, 0x6d, 0x3b, 0x20};
    static const unsigned char servers[PROOF_BYTES] = {0x8c, 0x14, 0x3a, 0x34, 0x02, 0x12, 0x66, 0xb3, 0x0b, 0x37, 0x4d,
                                                       0x79, 0x42, 0x3d, 0xa1, 0xcf, 0x6d, 0xc3, 0x1c, 0xda, 0xf7, 0xa1,
                                                       0xf6, 0x67, 0x23, 0xce, 0xf0, 0x4d, 0xd4, 0x5e, 0x95, 0x54};
    unsigned char token[PROOF_TOKEN_BYTES], server[PROOF_NONCE_BYTES], worker[PROOF_NONCE_BYTES], proof[PROOF_BYTES];
    count_up(token, sizeof token, 0);
    count_up(server, sizeof server, 100);
    count_up(worker, sizeof worker, 200);
    proof_make(token, PROOF_WORKER, server, worker, "said", 4, proof);
    cr_expect_arr_eq(proof, workers, sizeof proof);
    proof_make(token, PROOF_SERVER, server, worker, NULL, 0, proof);
    cr_expect_arr_eq(proof, servers, sizeof proof);
    cr_expect(proof_equal(proof, servers));
    proof[PROOF_BYTES - 1] ^= 0x80;
    cr_expect_not(proof_equal(proof, servers));
}

Test(proof, tokens_follow_from_secrets)
{
    static const unsigned char known[PROOF_TOKEN_BYTES] = {0xc4, 0xbb, 0xcb, 0x1f, 0xbe, 0xc9, 0x9d, 0x65,
                                                           0xbf, 0x59, 0xd8, 0x5c, 0x8c, 0xb6, 0x2e, 0xe2};
    unsigned char token[PROOF_TOKEN_BYTES];
    proof_token("correct horse battery staple", token);
    cr_expect_arr_eq(token, known, sizeof token);
}

Test(proof, random_bytes_differ)
{
    unsigned char one[64] = {0}, two[64] = {0};
    cr_assert_eq(proof_random(one, sizeof one), STATUS_OK);
    cr_assert_eq(proof_random(two, sizeof two), STATUS_OK);
    cr_expect_neq(memcmp(one, two, sizeof one), 0);
    cr_expect_neq(memcmp(one + 48, two + 48, 16), 0);
}
