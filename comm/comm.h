/* comm.h - collectives on a real network: a communicator, teams, and collectives that run a schedule.
 *
 * A comm belongs to one job and one transport. A collective is made once for a shape and a vector size and may be
 * started many times; its buffers are given at each start. Collectives of one team must be created and started in the
 * same order on all its workers; several may be under way at once.
 *
 * Progress: whoever waits drives it. While nobody waits, a thread of the comm does with `progress_thread`, for callers
 * who leave it a core: it sleeps when nothing is under way. Without it a caller who computes calls comm_drive() now and
 * then. Every wait has a deadline, and its message tells algorithm, round, lane, peer, bytes posted and completed.
 *
 * Threads: one thread starts and waits at a time (the progress thread is the comm's own affair).
 */
#ifndef CHORALE_COMM_COMM_H
#define CHORALE_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "algos/schedule.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/codec.h"

struct comm;
struct team;
struct collective;
struct device;
struct job;
struct transport;

struct comm_request {
    struct transport *transport; /* taken over: closed by comm_close(), also when comm_open() fails */
    struct job *job;             /* watched while waiting; NULL in tests on loopback                */
    struct device
        *device;     /* for vectors in its memory (device.h), must outlive the comm; NULL: none. All workers have one,
                              or none has; with a job, comm_open() is collective then */
    size_t segment;  /* bytes of a wire segment; 0 = the transport's best, else 256 KiB */
    unsigned window; /* receives posted ahead on each (peer, lane); 0 = the transport's best, else 4 */
    double deadline; /* seconds of waiting without any progress before it fails; <= 0 = 30 */
    bool progress_thread;
    void (*note)(void *context, const char *line); /* what the user should read, though it goes on; may be NULL */
    void *context;
    size_t
        scratch; /* bytes of memory that the planes of a schedule may take in a call; 0 = 64 MiB. A vector for which they
                       would be larger goes through the schedule in slices, two at a time; alike on all workers */
};

enum status comm_open(const struct comm_request *request, struct comm **comm) MUST_CHECK;
void comm_close(struct comm *comm); /* accepts NULL; ends what is under way */
/* What is under way goes on as far as it can without waiting. Nothing to do where a thread of the comm sees to it. */
enum status comm_drive(struct comm *comm) MUST_CHECK;
bool comm_has_thread(const struct comm *comm);
int comm_rank(const struct comm *comm);
int comm_size(const struct comm *comm);
size_t comm_segment(const struct comm *comm);
unsigned comm_window(const struct comm *comm);
const char *comm_transport(const struct comm *comm); /* "shm", "tcp", "loopback" */
/* Provider, version, interface, memory shared in the node, segment and window: stored with every result. */
void comm_describe(const struct comm *comm, struct text *text);

/* `bytes` of memory, zeroed, at a page's boundary, for vectors: workers of one node that share memory (comm_describe tells)
 * read it in place, which is the fastest that they can do. Any other memory serves as well. STATUS_NO_MEMORY names what is
 * needed and what is available. Goes with comm_free(), or with the comm. */
enum status comm_alloc(struct comm *comm, size_t bytes, void **memory) MUST_CHECK;
void comm_free(struct comm *comm, void *memory); /* accepts NULL; no collective may be using it, here or elsewhere */

/* The same in the memory of the comm's device. Goes with comm_device_free(), or with the comm. STATUS_USAGE: it has none. */
enum status comm_device_alloc(struct comm *comm, size_t bytes, void **memory) MUST_CHECK;
void comm_device_free(struct comm *comm, void *memory); /* accepts NULL; as comm_free(); work in queues must be done */

/* All workers. Belongs to the comm. */
struct team *comm_world(struct comm *comm);
/* A team of some workers, in the given order; called by those workers only, with the same list, in one order with other
 * teams of the same workers. STATUS_USAGE: rank out of range, twice, or not ours. At most 255 at once. Free with
 * team_destroy(), after its collectives and before the comm is closed. */
enum status team_create(struct comm *comm, const int *ranks, int count, struct team **team) MUST_CHECK;
void team_destroy(struct team *team); /* accepts NULL */
int team_rank(const struct team *team);
int team_size(const struct team *team);

struct collective_request {
    struct team *team;
    const struct shape *shape; /* for team_size workers; must outlive the collective */
    const char *name;          /* canonical spec: compared with the other workers' and used in messages; copied */
    size_t count;              /* elements */
    enum dtype dtype;
    enum reduce_op op; /* mixing shapes take only REDUCE_SUM of f32 or f64; REDUCE_AVG of f16 and bf16 makes the inputs
                          smaller by a power of two first (kernels.h), so that it does not overflow where the mean fits;
                          their REDUCE_SUM may: it gives infinity */
    const struct wire_format *wire; /* what travels; copied. NULL: elements as they are. See below */
    bool
        on_device; /* its vectors lie in the memory of the comm's device, on all workers: STATUS_USAGE where the comm has
                       none, STATUS_REFUSED with a wire format other than f16 and bf16. See collective_start() */
};

/* Wire formats. Every segment is encoded when it leaves and decoded when it arrives; sums are computed in f32. What a
 * worker sends and uses itself is first rounded to what others decode (algos/rounding.h), so that all workers end with
 * equal bits where the schedule has them.
 *
 * f16, bf16: any schedule, any op. With REDUCE_AVG the inputs are made smaller first, as for elements of these types.
 * REDUCE_SUM in f16 may overflow on the wire, which is counted (collective_traffic).
 *
 * top-k, random-k, sign, int8: only where no partial sum travels (TRAIT_WHOLE_INPUTS), REDUCE_SUM and REDUCE_AVG, with
 * error feedback. A collective keeps one residual for each element, of 4 bytes, from run to run: what the last encoding
 * of its worker left out of that element, of the worker's input or of the result that it spreads, whichever the worker
 * is the first to send. It is added to what is encoded next. Made anew, a collective starts with residuals of 0;
 * whoever wants to go on after a restart keeps them (collective_feedback()). An element that is not finite leaves none.
 * Mixing: every worker's own share is mixed as the others decode it.
 */

/* Sent by this worker in the latest run, counted where the transport is called: payload only, and messages before
 * segmentation (as schedules count them). Times are CLOCK_MONOTONIC of start() and of the last completion. */
struct collective_traffic {
    size_t bytes_sent, messages_sent;
    size_t control_messages; /* grants, acknowledgements, hellos: no payload */
    uint64_t started_ns, finished_ns;
    struct codec_statistics wire; /* what this worker's encoding has done; a value is counted in each encoding of it;
                                     zeros for vectors on a device, which nobody looks into */
};

enum status collective_create(const struct collective_request *request, struct collective **collective) MUST_CHECK;
/* Accepts NULL. One under way is given up, and the comm with it: it fails from then on. */
void collective_destroy(struct collective *collective);

/* Start. input and output are equal (in place) or don't overlap; both hold count elements aligned to their type, both
 * may be NULL when count is 0. They belong to the collective until it is done, and after a failure to the comm until it
 * is closed. STATUS_USAGE: already under way, bad buffers, or 4096 collectives under way in the team.
 *
 * on_device: it begins when all is done that stands in the device's compute queue by now, which is looked at, so that
 * other collectives go on meanwhile; to be called by whoever uses that queue. When collective_test() or
 * collective_wait() says STATUS_OK, the device is done with it, so whatever is put into any queue then sees the
 * result. */
enum status collective_start(struct collective *collective, const void *input, void *output) MUST_CHECK;
/* STATUS_OK when done, STATUS_AGAIN when not; drives progress a little. */
enum status collective_test(struct collective *collective) MUST_CHECK;
/* Until done. STATUS_TIMEOUT, STATUS_PEER_LOST, STATUS_MISMATCH (another worker called something else: both calls are
 * named, with their wire formats), STATUS_IO. After a failure the comm is unusable: close it. */
enum status collective_wait(struct collective *collective) MUST_CHECK;
/* What shape_traffic() says of this call on this worker, in its slices: `size` bytes of an element on the wire. */
enum status collective_due(const struct collective *collective, size_t size, size_t *bytes_sent,
                           size_t *messages) MUST_CHECK;
/* Bytes of scratch planes that a call of this shape takes in a comm with the usual bound. */
size_t collective_scratch(const struct shape *shape, size_t count, size_t size);
void collective_traffic(const struct collective *collective, struct collective_traffic *traffic);

/* What a lossy wire format carries over from run to run: to be read and written while the collective is not under way, by
 * the thread that starts it. Valid as long as the collective. */
struct collective_feedback {
    float *residual; /* (count) of the request; NULL: none */
    uint32_t *runs;  /* so far; NULL: nothing depends on it */
};
struct collective_feedback collective_feedback(struct collective *collective);

#endif
