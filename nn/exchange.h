/* exchange.h - the collectives of a training run: one vector cut into buckets, the schedules of a strategy's period
 * made once, traffic counted where the transport is called and compared with what the schedules tell.
 *
 * Where the spec is an external its library computes the means: in host memory while start() is called, on a device in
 * its compute queue. No bytes are known then, and no wire format is taken.
 */
#ifndef CHORALE_NN_EXCHANGE_H
#define CHORALE_NN_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "algos/bucket.h"
#include "algos/spec.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/comm.h"
#include "comm/external.h"
#include "nn/backend.h"
#include "nn/model.h"
#include "nn/strategies/method.h"
#include "nn/trace.h"

#define BUCKET_WHOLE ((size_t)0)         /* the whole vector is one bucket */
#define BUCKET_TENSOR ((size_t)SIZE_MAX) /* one bucket for each tensor     */

/* Cut a model's arena into whole tensors of at most `bytes` together (a larger tensor is a bucket of its own), from the
 * end, as gradients become ready (algos/bucket.h). *buckets is allocated, in the order in which they are exchanged; caller
 * frees. */
enum status bucket_cut(const struct model *model, size_t bytes, struct bucket **buckets, size_t *count) MUST_CHECK;

struct exchange_request {
    struct comm *comm;
    const struct spec *spec;     /* a schedule computes means of gradients */
    const struct layout *layout; /* must outlive the exchanges             */
    const struct model *model;
    size_t bucket;                    /* bytes, or BUCKET_WHOLE, BUCKET_TENSOR */
    const struct wire_format *wire;   /* what travels (comm.h); NULL: elements as they are */
    struct device *device;            /* vectors lie in its memory (nn/arena.h); NULL: host memory */
    struct external_library *library; /* of an external; else NULL */
    bool sums;                        /* exchanges_sums() is wanted */
    struct trace *trace;              /* gets every bucket's time in flight, and waits; NULL: none */
    bool emulated;                    /* compute is slept: what happens in the watch passes beside it, as on a device */
};

struct exchanges;

/* Collective. The spec and the wire format must outlive the exchanges. STATUS_REFUSED when the workers don't fit the
 * spec, or the wire format the schedules, or what is exchanged: parameters are not sent in part, and residuals need
 * schedules that are kept. Free with exchanges_destroy(). */
enum status exchanges_create(const struct exchange_request *request, struct exchanges **exchanges) MUST_CHECK;
void exchanges_destroy(struct exchanges *exchanges); /* accepts NULL */

/* What the schedules of the first step have decided that the spec leaves open (struct algorithm, describe), each kind once
 * with its buckets: "ring, by the closed forms: 3 buckets of 37632 to 9437184 B; ...". Nothing where nothing is. Appended.
 */
void exchanges_describe(const struct exchanges *exchanges, struct text *text);

/* For a method. start: all buckets of the step's exchange, in the order of bucket_cut(). wait: until all are done;
 * STATUS_INTERNAL when the bytes sent are not those of the schedule (where the wire format has a fixed size for each
 * element).
 *
 * With a device: an exchange runs after what the device's compute queue was given before its start, what the queue is given
 * after the wait runs after the exchange; the host waits for the exchange alone. */
struct exchanger exchanges_exchanger(struct exchanges *exchanges);

/* STATUS_OK where what a run exchanges can begin during backward. STATUS_REFUSED, with the reason: parameters are
 * exchanged, or by a library, which computes in its caller's thread, or in the device's compute queue. */
enum status exchange_can_overlap(const struct spec *spec) MUST_CHECK;

/* Where it can: the exchange of `step`, whose vector a backend is about to fill from its end on. What the watch is told
 * starts every bucket that is complete, always in the order of bucket_cut(), but for the last; the exchanger's start()
 * then starts those that are left. One exchange of an earlier step may still be under way: wait() waits for the older. The
 * bits are those of an exchange that is started after backward.
 *
 * Where the comm has no thread each call drives whatever is under way (comm_drive()). vector NULL: nothing else.
 * watch->ready is NULL where there is nothing to do. */
enum status exchanges_watch(struct exchanges *exchanges, uint64_t step, float *vector,
                            struct gradient_watch *watch) MUST_CHECK;

/* Vectors may still be read and written, also by what has failed. */
bool exchanges_under_way(const struct exchanges *exchanges);

/* ---- going on after a restart ---- */

/* Waits for what is under way, if anything is; the next wait() of the exchanger then finds it done. Changes no bit. */
enum status exchanges_settle(struct exchanges *exchanges) MUST_CHECK;
/* The other end: the next wait() finds an exchange done that an earlier run has settled, its vector being the caller's. */
void exchanges_restore_settled(struct exchanges *exchanges, size_t bytes);
/* What this worker has sent in a settled exchange that no step has been told of yet: its wait() counts it. */
size_t exchanges_settled_bytes(const struct exchanges *exchanges);

/* What a lossy wire format carries over from step to step (comm.h), of this worker: so many floats, 0: nothing. */
size_t exchanges_feedback_count(const struct exchanges *exchanges);
/* Between exchanges. runs[exchanges_lines()]: of each schedule so far. */
void exchanges_feedback_get(struct exchanges *exchanges, float *residuals, uint32_t *runs);
void exchanges_feedback_set(struct exchanges *exchanges, const float *residuals, const uint32_t *runs);
size_t exchanges_lines(const struct exchanges *exchanges); /* schedules that are kept */

/* ---- times and bytes ---- */

/* What has happened in a step. */
struct exchange_tally {
    size_t bytes; /* payload sent by exchanges that were started                                       */
    uint64_t
        flight_ns; /* an exchange was in flight: the union of all of them, hidden behind compute or not; on a device
                            from the time on when its vector was there */
    uint64_t
        blocked_ns; /* the caller was in start or wait, or inside; on a device: in wait, and the device had nothing to do */
    uint64_t
        inside_ns; /* of that in the watch, in parts that are not waited for, and in sums: within a backend's step */
};
/* A step ends at `now_ns` (clock_ns()): what has happened since the last call, or since exchanges_mark(). */
enum status exchanges_take(struct exchanges *exchanges, uint64_t now_ns, struct exchange_tally *tally) MUST_CHECK;
/* A step begins at `now_ns`: what is in flight counts from here on. */
void exchanges_mark(struct exchanges *exchanges, uint64_t now_ns);

/* inside_ns of the step that is under way, so far. */
uint64_t exchanges_inside_ns(const struct exchanges *exchanges);

/* What this worker's encoding has done to values since the beginning, in exchanges that are over. */
struct codec_statistics exchanges_wire(const struct exchanges *exchanges);

/* For a backend: sums in double precision by the run's own schedule where it is exact, else by a ring, on a team of their
 * own, so that they may come between buckets that other workers start earlier or later. In step(), whose caller they block:
 * counted as exposed, not in bytes. */
struct worker_sums exchanges_sums(struct exchanges *exchanges);

/* The exact mean over all workers, in place, with equal bits everywhere: for statistics, not counted. Collective.
 * `what` names it in messages. */
enum status exchanges_mean(struct exchanges *exchanges, const char *what, float *vector, size_t count) MUST_CHECK;

#endif
