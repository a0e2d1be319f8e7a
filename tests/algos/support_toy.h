/* support_toy.h - schedules written out op by op, for suites that need exactly these ops. */
#ifndef CHORALE_TESTS_ALGOS_SUPPORT_TOY_H
#define CHORALE_TESTS_ALGOS_SUPPORT_TOY_H

#include "algos/schedule.h"

/* An op of one worker; op.round says in which round it is emitted, rounds ascend for each worker. */
struct toy_op {
    int rank;
    struct op op;
};

struct toy {
    const struct toy_op *ops;
    size_t count;
};

#define TOY_LEAVES(first, n)                                                                                           \
    {                                                                                                                  \
        .chunk = (first), .chunks = (n), .buffer = BUFFER_VECTOR                                                       \
    }
#define TOY_PLANE(first, n)                                                                                            \
    {                                                                                                                  \
        .chunk = (first), .chunks = (n), .buffer = BUFFER_SCRATCH                                                      \
    }
/* rank r, round t, lane l, peer q, n leaves from c on */
#define TOY_SEND(r, t, l, q, c, n)                                                                                     \
    {                                                                                                                  \
        (r),                                                                                                           \
        {                                                                                                              \
            .kind = OP_SEND, .round = (t), .lane = (l), .peer = (q), .src = TOY_LEAVES(c, n), .weight = 1              \
        }                                                                                                              \
    }
#define TOY_RECV(r, t, l, q, c, n)                                                                                     \
    {                                                                                                                  \
        (r),                                                                                                           \
        {                                                                                                              \
            .kind = OP_RECV, .round = (t), .lane = (l), .peer = (q), .dst = TOY_LEAVES(c, n), .weight = 1              \
        }                                                                                                              \
    }
#define TOY_REDUCE(r, t, l, q, c, n)                                                                                   \
    {                                                                                                                  \
        (r),                                                                                                           \
        {                                                                                                              \
            .kind = OP_RECV_REDUCE, .round = (t), .lane = (l), .peer = (q), .dst = TOY_LEAVES(c, n), .weight = 1       \
        }                                                                                                              \
    }
#define TOY_FINAL(r, t, l, q, c, n)                                                                                    \
    {                                                                                                                  \
        (r),                                                                                                           \
        {                                                                                                              \
            .kind = OP_RECV_REDUCE, .flags = OP_FINAL, .round = (t), .lane = (l), .peer = (q),                         \
            .dst = TOY_LEAVES(c, n), .weight = 1                                                                       \
        }                                                                                                              \
    }
#define TOY_WAIT(r, t, l, waited, until)                                                                               \
    {                                                                                                                  \
        (r),                                                                                                           \
        {                                                                                                              \
            .kind = OP_WAIT, .round = (t), .lane = (l), .peer = -1, .wait_lane = (waited), .wait_round = (until),      \
            .weight = 1                                                                                                \
        }                                                                                                              \
    }
#define TOY_FENCE(r, t, l, n)                                                                                          \
    {                                                                                                                  \
        (r),                                                                                                           \
        {                                                                                                              \
            .kind = OP_FENCE, .round = (t), .lane = (l), .lanes = (n), .peer = -1, .weight = 1                         \
        }                                                                                                              \
    }

/* Leaf 0 of a scratch plane of a shape of one chunk, or of the vector. */
#define TOY_VECTOR (-1)
#define TOY_LEAF_OF(plane)                                                                                             \
    {                                                                                                                  \
        .chunk = (plane) < 0 ? 0 : (plane), .chunks = 1, .buffer = (plane) < 0 ? BUFFER_VECTOR : BUFFER_SCRATCH        \
    }
/* REDUCE, COPY: from one of these to another */
#define TOY_LOCAL(r, t, l, op_kind, op_flags, from, to)                                                                \
    {                                                                                                                  \
        (r),                                                                                                           \
        {                                                                                                              \
            .kind = (op_kind), .flags = (op_flags), .round = (t), .lane = (l), .peer = -1, .src = TOY_LEAF_OF(from),   \
            .dst = TOY_LEAF_OF(to), .weight = 1                                                                        \
        }                                                                                                              \
    }

/* A shape of `ops`; the toy and the ops must outlive it, nothing is to be freed. Rounds: up to the last op's. */
struct shape toy_shape(struct toy *toy, int workers, uint32_t chunks, uint16_t lanes);

#define TOY(name, ...)                                                                                                 \
    static const struct toy_op name##_ops[] = {__VA_ARGS__};                                                           \
    static struct toy name = {.ops = name##_ops, .count = sizeof name##_ops / sizeof name##_ops[0]}

#endif
