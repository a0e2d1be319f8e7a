/* schedule.h - the form of an algorithm: a pure function (shape, rank, round) -> a few ops over symbolic chunks.
 *
 * An algorithm knows no addresses, bytes or tags. The same ops are executed on a network (comm/executor.c), proved
 * (algos/verify.c), simulated (sim/) and counted (algos/explain.c); all of them drive algos/progression.c, the only
 * place where a schedule is interpreted.
 *
 * Rules that every schedule keeps and every sink may rely on:
 *  1. A matching SEND and RECV carry the same lane, round and size. Messages between two workers on a lane match in
 *     order.
 *  2. Two ops of a lane conflict if their ranges overlap and at least one writes. Conflicting ops complete in emitted
 *     order, segment by segment; messages of one (peer, lane, direction) start in emitted order; nothing else is
 *     ordered within a lane.
 *  3. Lanes are ordered only by WAIT and FENCE; a WAIT holds back a segment only until the overlapping segments of the
 *     waited lane are complete.
 *  4. One partition: leaf chunk c of `count` elements in C chunks starts at c*q + min(c, r), q = count / C, r = count
 *     % C. A coarse chunk is a run of leaves. Chunks may be empty.
 *  5. In place: algorithms know VECTOR only. An op that reads chunk c reads the output if an earlier op of this worker
 *     wrote c, else the input; chunks never written are copied at the end.
 *  6. Mean: FINAL marks the RECV_REDUCE or REDUCE that completes the reduction of its dst; there, once for each
 *     element on every path to a result, the sum is divided by the number of workers.
 *  7. Wire formats are an attribute of messages: no algorithm knows of them. Where one is lossy, common code puts a
 *     rounding before each SEND whose range its sender goes on using (ROUND_SOURCE, rounding.h), so that all workers
 *     compute with what travels.
 *  8. Pipelining (segments, window) is never in an algorithm.
 */
#ifndef CHORALE_ALGOS_SCHEDULE_H
#define CHORALE_ALGOS_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "algos/layout.h"
#include "base/option.h"
#include "base/status.h"
#include "base/text.h"

enum buffer {
    BUFFER_VECTOR, /* the vector that is reduced                                                               */
    BUFFER_SCRATCH /* shape.scratch planes of the vector's size and partition: chunk = plane * chunks + leaf    */
};

/* `chunks` leaves from leaf `chunk` on. A scratch range stays within one plane. */
struct range {
    uint32_t chunk, chunks;
    uint8_t buffer;
};

enum op_kind {
    OP_SEND,        /* src -> peer                                                      */
    OP_RECV,        /* peer -> dst                                                      */
    OP_RECV_REDUCE, /* dst = dst (+) weight * incoming                                  */
    OP_REDUCE,      /* dst = dst (+) weight * src; src and dst of equal size            */
    OP_COPY,        /* dst = src; equal size                                            */
    OP_SCALE,       /* dst = weight * dst                                               */
    OP_WAIT,        /* what follows in this lane is ordered after what stands before in `wait_lane` with a round <=
                       `wait_round`, and after what that is ordered after */
    OP_FENCE,       /* joins lanes lane .. lane+lanes-1: what follows in them is ordered after what stands before */
    OP_KINDS
};

enum op_flag {
    OP_MORE = 1,        /* the next op is part of this message (same kind, peer, lane, round)    */
    OP_FINAL = 2,       /* rule 6                                                                */
    OP_ROUND_SOURCE = 4 /* rule 7, on a SCALE by 1: dst becomes what a receiver would decode of it */
};

struct op {
    uint8_t kind, flags;
    uint16_t lane;      /* the lane the op is in                                     */
    uint16_t wait_lane; /* WAIT: the lane waited for                                 */
    uint16_t lanes;     /* FENCE: how many lanes                                     */
    int32_t peer;       /* SEND, RECV, RECV_REDUCE: rank in the team                 */
    struct range src, dst;
    double weight;  /* 1 unless mixing, and then on RECV_REDUCE, REDUCE and SCALE */
    uint32_t round; /* the round it was emitted in; WAIT: see above (round <= its own round) */
    uint32_t wait_round;
};

/* Who takes the ops. `op` copies what it keeps. */
struct sink {
    enum status (*op)(struct sink *sink, const struct op *op);
    uint32_t round; /* put into every op by the helpers below; set by whoever calls emit */
    uint16_t lane;  /* the lane that the helpers use; an emit may change it, 0 at its start */
};

/* Helpers for emit functions: ops on VECTOR in sink->lane. FINAL versions mark rule 6. */
enum status emit_send(struct sink *sink, int peer, uint32_t chunk, uint32_t chunks) MUST_CHECK;
enum status emit_recv(struct sink *sink, int peer, uint32_t chunk, uint32_t chunks) MUST_CHECK;
enum status emit_recv_reduce(struct sink *sink, int peer, uint32_t chunk, uint32_t chunks, bool final) MUST_CHECK;
/* Mixing: dst = dst + weight * incoming, and dst = weight * dst; never FINAL. */
enum status emit_recv_mix(struct sink *sink, int peer, uint32_t chunk, uint32_t chunks, double weight) MUST_CHECK;
enum status emit_scale(struct sink *sink, uint32_t chunk, uint32_t chunks, double weight) MUST_CHECK;
enum status emit_wait(struct sink *sink, uint16_t wait_lane, uint32_t wait_round) MUST_CHECK;
enum status emit_fence(struct sink *sink, uint16_t first_lane, uint16_t lanes) MUST_CHECK;

struct algorithm;

/* A file that a spec names (OPTION_FILE), as its caller has read it: algos/ does no I/O. */
struct attachment {
    char *path; /* as the spec spells it                  */
    char *text; /* the whole content, with a NUL after it */
    size_t length;
    uint64_t hash; /* hash_bytes() of the content */
};
struct attachments {
    struct attachment *file;
    size_t count;
};

/* What an algorithm is asked to make a shape for. */
struct shape_request {
    const struct layout *layout;           /* workers and the node of each                                          */
    const struct option_values *options;   /* of the algorithm's own table; NULL = all defaults (shape_create fills
                                            them in: a `shape` function whose algorithm has a table finds values) */
    const struct attachments *attachments; /* files named by the options and by nested specs; NULL = none       */
    uint64_t step;                         /* of the training run or the collective's number; for PERIOD traits     */
    size_t count;                          /* elements; only algorithms with SIZE_DEPENDENT may look                */
    size_t element_bytes;                  /* likewise; 0 = 4                                                       */
    bool halves; /* whoever asks needs them: a shape function that has a choice takes one with halves */
};

/* One algorithm for one team. Made by shape_create(), immutable afterwards, shared by all ranks and threads. */
struct shape {
    const struct algorithm *algorithm;
    int workers;
    uint32_t chunks;  /* C: leaves of the partition, >= 1                                     */
    uint32_t scratch; /* planes of BUFFER_SCRATCH                                             */
    uint32_t rounds;
    uint32_t split;  /* halves: rounds [0, split) leave chunk c complete at owner(c); 0 = no halves, unless
                         rounds is 0, too (one worker): see shape_has_halves()                        */
    uint16_t lanes;  /* >= 1, at most 256                                                    */
    unsigned traits; /* of the algorithm, unless its shape function knows better (a composition: what all parts have) */
    void *state;     /* the algorithm's own tables; freed by its release                     */
};

enum trait {
    TRAIT_ANY_SIZE = 1,     /* every worker count >= 1                                       */
    TRAIT_POWER_OF_TWO = 2, /* only these; others are refused                                */
    TRAIT_EVEN = 4,
    TRAIT_SIZE_DEPENDENT = 8,  /* shape looks at count                                          */
    TRAIT_PERIOD = 16,         /* shape looks at step                                           */
    TRAIT_INEXACT = 32,        /* does not compute the reduction (none, mixing): not in `all`   */
    TRAIT_HALVES = 64,         /* has owner() and split                                         */
    TRAIT_MIXING = 128,        /* weights: a gossip step                                        */
    TRAIT_EQUAL_BITS = 256,    /* all workers end with the same bits, whatever the numbers      */
    TRAIT_SAME_ORDER = 512,    /* every chunk is added up in the same order: the bits of an element do not depend on
                                 its place and on the size of the vector                       */
    TRAIT_WHOLE_INPUTS = 1024, /* no partial sum travels: only inputs of one worker and results */
    TRAIT_NEEDS_FILE = 2048    /* can't run with default options: a file must be named; so it is not in `all` */
};

/* What a message costs; see sim/platform.h for where the values come from. */
struct cost_model {
    double latency_s;         /* alpha: per message                     */
    double seconds_per_byte;  /* beta: one direction of one worker      */
    double reduce_s_per_byte; /* gamma                                  */
};

struct algorithm {
    const char *name;             /* "recursive-halving-doubling"                                          */
    const char *aliases;          /* "rhd", several separated by spaces, "" for none                       */
    const char *summary;          /* one line: what it is good for                                         */
    const char *source;           /* paper or system                                                       */
    unsigned traits;              /* enum trait                                                            */
    const struct option *options; /* NULL = none                                                  */

    /* Fill chunks, scratch, rounds, split, lanes, state (algorithm and workers are set). Refuses with STATUS_REFUSED
     * and the reason, naming the nearest worker count that works. On failure it leaves nothing behind. */
    enum status (*shape)(const struct shape_request *request, struct shape *shape);
    /* The ops of `rank` in `round`, in order. Pure; rank in [0, workers), round in [0, rounds). */
    enum status (*emit)(const struct shape *shape, int rank, uint32_t round, struct sink *sink);
    /* Who holds chunk complete after round split-1; NULL: no halves. */
    int (*owner)(const struct shape *shape, uint32_t chunk);
    void (*release)(struct shape *shape); /* frees state; NULL: nothing to free */
    /* What this shape has decided that its spec leaves open ("ring, for 4 workers and 1 MiB", "dims 4x2"): a phrase, no
     * full stop; NULL: nothing to say. */
    void (*describe)(const struct shape *shape, struct text *text);
    /* Seconds by the closed form for contention-free full-duplex links, one segment per message, no overlap of
     * reduction; NULL where there is none. */
    double (*cost)(const struct shape *shape, const struct cost_model *model, size_t bytes);
};

/* shape_create: calls the algorithm's shape with workers checked (>= 1, and against TRAIT_POWER_OF_TWO and TRAIT_EVEN:
 * STATUS_REFUSED naming the nearest counts that work). Free with shape_destroy(). */
enum status shape_create(const struct algorithm *algorithm, const struct shape_request *request,
                         struct shape **shape) MUST_CHECK;
void shape_destroy(struct shape *shape); /* accepts NULL */

/* For `shape` functions: the file that option `key` (of type OPTION_FILE) names, *file NULL when it is not given. Belongs
 * to the caller: a shape copies what it keeps. STATUS_REFUSED when nobody has read it (spec_read_files()). */
enum status shape_file(const struct shape_request *request, const char *key, const struct attachment **file) MUST_CHECK;

/* Whether this shape can be cut into reducing and spreading: an owner, and a split or nothing to do at all. */
bool shape_has_halves(const struct shape *shape);

/* What its algorithm's describe says, appended; false: nothing. */
bool shape_describe(const struct shape *shape, struct text *text);

/* Rule 4. Elements before leaf c of `count` elements in `chunks` leaves: c*q + min(c, r); c == chunks gives count. */
size_t partition_offset(size_t count, uint32_t chunks, uint32_t c);
/* Elements in a range of either buffer (a scratch range lies in one plane of `chunks` leaves). */
size_t range_elements(const struct range *range, size_t count, uint32_t chunks);

/* Whether a range lies within the vector, or within one of the planes that the shape has. */
bool range_fits(const struct shape *shape, const struct range *range);

/* Totals of one rank's schedule for count elements of `size` bytes, by walking emit: payload bytes sent and messages
 * (SENDs with at least one element; joined ones once). Any pointer may be NULL. */
enum status shape_traffic(const struct shape *shape, int rank, size_t count, size_t size, size_t *bytes_sent,
                          size_t *messages) MUST_CHECK;

#endif
