/* proof.c - nonces and HMACs. */
#include "comm/bootstrap/proof.h"

#include <errno.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>

enum status proof_random(unsigned char *bytes, size_t count)
{
    for (size_t have = 0; have < count;) {
        const ssize_t got = getrandom(bytes + have, count - have, 0);
        if (got < 0 && errno != EINTR)
            return fail(STATUS_IO, "getrandom: %s", strerror(errno));
        have += got > 0 ? (size_t)got : 0;
    }
    return STATUS_OK;
}

void proof_token(const char *secret, unsigned char token[PROOF_TOKEN_BYTES])
{
    struct sha256_ctx hash;
    sha256_init(&hash);
    sha256_update(&hash, strlen(secret), (const uint8_t *)secret);
    sha256_digest(&hash, PROOF_TOKEN_BYTES, token);
}

void proof_make(const unsigned char token[PROOF_TOKEN_BYTES], enum proof_side side,
                const unsigned char server_nonce[PROOF_NONCE_BYTES],
                const unsigned char worker_nonce[PROOF_NONCE_BYTES], const void *said, size_t length,
                unsigned char proof[PROOF_BYTES])
{
    const uint8_t label = side == PROOF_WORKER ? 'w' : 's';
    struct hmac_sha256_ctx mac;
    hmac_sha256_set_key(&mac, PROOF_TOKEN_BYTES, token);
    hmac_sha256_update(&mac, sizeof label, &label);
    hmac_sha256_update(&mac, PROOF_NONCE_BYTES, server_nonce);
    hmac_sha256_update(&mac, PROOF_NONCE_BYTES, worker_nonce);
    if (length > 0)
        hmac_sha256_update(&mac, length, said);
    hmac_sha256_digest(&mac, PROOF_BYTES, proof);
}

bool proof_equal(const unsigned char a[PROOF_BYTES], const unsigned char b[PROOF_BYTES])
{
    return memeql_sec(a, b, PROOF_BYTES) != 0;
}
