/* progression.h - the one interpreter of schedules: a pure state machine for one worker of one collective.
 *
 * Fed with completions, it says which segments may start. The executor drives it with the network, the simulator with
 * simulated time, the verifier with adversarial orders. It holds rules 1-3 and 5 of schedule.h; it touches no data.
 *
 * Segments: a message of n elements travels as ceil(n / segment) segments, counted from the start of its op's range;
 * sender and receiver cut alike since sizes match (rule 1). Local ops are cut the same way, so that hazards clear
 * segment by segment and phases pipeline without any algorithm knowing.
 *
 * Life of an op's segment:
 *   SEND         started (ACTION_SEND)             -> completed when its memory may be overwritten
 *   RECV         posted  (ACTION_POST) into dst    -> completed when the data is there
 *   RECV_REDUCE  posted  (ACTION_POST) into a slot of the caller -> arrived -> ACTION_REDUCE, hazards clear -> completed
 *   local        started (ACTION_LOCAL)            -> completed
 * A RECV is posted only when its hazards are clear (the data may land at any time); a RECV_REDUCE may be posted ahead.
 *
 * Receives of one (peer, lane) are posted in order, at most `window` posted and not completed; sends of one (peer,
 * lane) start in order. Segments of a channel carry `sequence`, counted from 0 for each (peer, lane, direction): the
 * same number on both sides, which is how transports match them.
 *
 * Not thread-safe: one caller at a time.
 */
#ifndef CHORALE_ALGOS_PROGRESSION_H
#define CHORALE_ALGOS_PROGRESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "algos/schedule.h"
#include "base/text.h"

struct progression;

struct progression_params {
    size_t count;       /* elements of the vector                                                           */
    size_t segment;     /* elements of a segment, >= 1                                                      */
    uint32_t window;    /* receives posted ahead on each (peer, lane), 1 .. 64                              */
    uint32_t lookahead; /* rounds are taken in while fewer ops than this are alive; UINT32_MAX = all at once */
    bool aliased;       /* in place: input and output are one                                               */
    uint64_t disorder;  /* 0: oldest first; else a seed: whatever may start is picked at random (verifier)  */
};

enum place { PLACE_INPUT, PLACE_VECTOR, PLACE_SCRATCH };

/* Elements [offset, offset + count) of the input, the output vector, or the scratch planes (plane k starts at k *
 * count). */
struct span {
    enum place place;
    size_t offset, count;
};

enum action_kind { ACTION_SEND, ACTION_POST, ACTION_REDUCE, ACTION_LOCAL };

/* One segment that has just been started; hand it back to progression_complete() when done. */
struct action {
    enum action_kind kind;
    struct op op;        /* a copy: kind, flags, lane, peer, round, weight                                    */
    struct span src;     /* SEND: what is sent; LOCAL REDUCE and COPY: what is read; POST, REDUCE: unused     */
    struct span dst;     /* POST of RECV: where to; REDUCE, LOCAL: what is written                            */
    struct span operand; /* REDUCE, LOCAL REDUCE and SCALE: the first operand: dst = operand (+) weight * incoming;
                            differs from dst where the range was never written (rule 5)                       */
    uint64_t sequence;   /* SEND, POST, REDUCE: number of this segment on its (peer, lane, direction)         */
    uint32_t slot;       /* private: which live op                                                            */
    uint32_t segment;    /* index of the segment in its op                                                    */
    bool first;          /* first segment of a message (joined ops: of the first op)                          */
};

/* `shape` must outlive the progression. Free with progression_destroy(). */
enum status progression_create(const struct shape *shape, int rank, const struct progression_params *params,
                               struct progression **progression) MUST_CHECK;
void progression_destroy(struct progression *progression); /* accepts NULL */

/* Back to the start, to run the same collective again without allocating. */
void progression_restart(struct progression *progression);

/* Start one more segment. STATUS_OK: *action tells which; STATUS_AGAIN: nothing may start before more completions (or
 * all is done); errors come from the algorithm's emit, from memory, or from a malformed op (STATUS_FORMAT, a named
 * fault). */
enum status progression_next(struct progression *progression, struct action *action) MUST_CHECK;

/* The segment is done: SEND sent, POST arrived, REDUCE and LOCAL computed. In any order. A completed POST of a
 * RECV_REDUCE makes its ACTION_REDUCE possible. */
void progression_complete(struct progression *progression, const struct action *action);

/* Every op of every round is complete. */
bool progression_finished(const struct progression *progression);

/* Bounds for callers: how many actions can be outstanding on one op. */
#define PROGRESSION_OUTSTANDING 64

/* What is alive, for a timeout's message: "round 5 lane 0: receiving from 3 (2 of 9 segments done, 4 begun, next is number
 * 7); ..." (at most `limit` ops). Appends nothing when finished. */
void progression_describe(const struct progression *progression, size_t limit, struct text *text);

/* The oldest incomplete op, NULL when none. Valid until the next call. */
const struct op *progression_oldest(const struct progression *progression);

#endif
