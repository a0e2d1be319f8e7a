/* join.h - joining a job whose workers somebody else has started: find rank 0, which serves the control channel (server.h),
 * and connect to it.
 *
 * Where the launcher has a key-value store (exchange.h), rank 0 listens on a free port and puts address and token there; else
 * the address is known from the environment (origin.h). Who listens where:
 *
 *   all workers on one host      loopback
 *   several hosts, a store       the address of the interface that was asked for; else the one that this host's name stands
 *                                for; else that of the first interface that is up
 *   several hosts, an address    that address of rank 0's host; all interfaces when it only knows itself as 127.0.1.1
 *
 * Beyond loopback nobody listens without a secret: without a store, CHORALE_JOB_TOKEN must be set.
 */
#ifndef CHORALE_COMM_BOOTSTRAP_JOIN_H
#define CHORALE_COMM_BOOTSTRAP_JOIN_H

#include "base/status.h"
#include "comm/bootstrap/channel.h"
#include "comm/bootstrap/origin.h"
#include "comm/bootstrap/server.h"

struct joined {
    int rank, size;
    int local_rank;          /* -1: not known        */
    struct server *server;   /* rank 0's, else NULL  */
    struct channel *channel; /* NULL: a job of one   */
};

/* Waits until all workers have joined, at most the deadline. On failure nothing is left open. STATUS_USAGE, STATUS_UNAVAILABLE
 * (no module for PMIx, a port that is taken, ...), STATUS_TIMEOUT, STATUS_PEER_LOST, STATUS_IO. */
enum status join_hosted(const struct origin *origin, const struct job_options *options, double deadline,
                        const char *host_name, struct joined *joined) MUST_CHECK;

/* What rank 0 puts into the store, as letters and digits: token and address, or why there is no server. `text` holds
 * EXCHANGE_VALUE_BYTES. */
void join_card_put(const char *address, const unsigned char token[PROOF_TOKEN_BYTES], char *text);
void join_card_put_failure(const char *why, char *text);
/* `address` holds ADDRESS_BYTES. STATUS_FORMAT; rank 0's failure as STATUS_UNAVAILABLE. */
enum status join_card_get(const char *text, char *address, unsigned char token[PROOF_TOKEN_BYTES]) MUST_CHECK;

#endif
