/* proof.h - how workers and the control server show each other that they know the job's token, without sending it.
 *
 * The server sends a nonce with its first frame. A worker answers with a nonce of its own and HMAC-SHA-256 over both
 * nonces and all that it says of itself; the server answers with the same over both nonces. So a recorded greeting is
 * worth nothing later, a greeting can't be changed on its way, and a worker does not follow a server of another job.
 * What is said afterwards is not encrypted: whoever can write into other people's connections is not kept out.
 *
 * HMAC and SHA-256 (RFC 2104, FIPS 180-4) are nettle's: a library of Debian's base system that needs libc alone.
 */
#ifndef CHORALE_COMM_BOOTSTRAP_PROOF_H
#define CHORALE_COMM_BOOTSTRAP_PROOF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum { PROOF_BYTES = 32, PROOF_NONCE_BYTES = 32, PROOF_TOKEN_BYTES = 16 };

/* Fresh random bytes from the kernel: nonces, tokens. */
enum status proof_random(unsigned char *bytes, size_t count) MUST_CHECK;
/* A token from a secret text of any length. */
void proof_token(const char *secret, unsigned char token[PROOF_TOKEN_BYTES]);

/* Who shows it: the two must not be able to show each other's. */
enum proof_side { PROOF_WORKER, PROOF_SERVER };

/* Over the side, both nonces, and `length` bytes that are said with it. */
void proof_make(const unsigned char token[PROOF_TOKEN_BYTES], enum proof_side side,
                const unsigned char server_nonce[PROOF_NONCE_BYTES],
                const unsigned char worker_nonce[PROOF_NONCE_BYTES], const void *said, size_t length,
                unsigned char proof[PROOF_BYTES]);
/* The time that it takes tells nothing of where they differ. */
bool proof_equal(const unsigned char a[PROOF_BYTES], const unsigned char b[PROOF_BYTES]);

#endif
