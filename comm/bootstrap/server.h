/* server.h - the control server in rank 0's process, for jobs whose workers somebody else has started (mpirun, srun,
 * torchrun): what the local launcher does for its own, done by a thread.
 *
 * It sees no processes, only connections: one that ends without a GOODBYE is a death. When the job fails, all other
 * workers are told first and rank 0's own channel last, since rank 0 then ends and the thread with it; rank 0's failed
 * callback is the one that tells the user.
 */
#ifndef CHORALE_COMM_BOOTSTRAP_SERVER_H
#define CHORALE_COMM_BOOTSTRAP_SERVER_H

#include "base/status.h"
#include "comm/bootstrap/proof.h"
#include "comm/job.h"

struct server;

struct server_request {
    int listener; /* a non-blocking listening socket: the server's from now on, also when this fails */
    int size;
    unsigned char token[PROOF_TOKEN_BYTES];
    double deadline;   /* seconds that workers may come after the first */
    job_note_fn *note; /* from the server's thread; may be NULL */
    void *context;
};

enum status server_open(const struct server_request *request, struct server **server) MUST_CHECK;
/* Wait, for at most a second, until everyone who can be told knows that the job has failed. */
void server_settle(struct server *server);
/* After that, the line that says why the job ends; NULL: it is not settled. */
const char *server_verdict(const struct server *server);
/* Wait until all have left (or the job has failed and they are told), no longer than the deadline; end the thread, close
 * everything. Rank 0's own channel is closed before. Accepts NULL. */
void server_close(struct server *server);

#endif
