/* message.h - what the helpers of schedule.h leave out: messages of several ranges, scratch, local ops. */
#ifndef CHORALE_ALGOS_ALGORITHMS_MESSAGE_H
#define CHORALE_ALGOS_ALGORITHMS_MESSAGE_H

#include "algos/schedule.h"

/* `op` in the round and lane of the sink, unweighted. */
static inline enum status emit_op(struct sink *sink, struct op op)
{
    op.round = sink->round;
    op.lane = sink->lane;
    op.weight = 1;
    return sink->op(sink, &op);
}

/* Leaves [chunk, chunk + chunks) of the vector. */
static inline struct range vector_part(uint32_t chunk, uint32_t chunks)
{
    return (struct range){.chunk = chunk, .chunks = chunks, .buffer = BUFFER_VECTOR};
}

/* The same leaves of a scratch plane. */
static inline struct range plane_part(const struct shape *shape, uint32_t plane, uint32_t chunk, uint32_t chunks)
{
    return (struct range){.chunk = plane * shape->chunks + chunk, .chunks = chunks, .buffer = BUFFER_SCRATCH};
}

/* A SEND, RECV or RECV_REDUCE (with flags) of `range`. */
static inline enum status emit_message(struct sink *sink, enum op_kind kind, unsigned flags, int peer,
                                       struct range range)
{
    return emit_op(sink, (struct op){.kind = (uint8_t)kind,
                                     .flags = (uint8_t)flags,
                                     .peer = peer,
                                     .src = kind == OP_SEND ? range : (struct range){0},
                                     .dst = kind == OP_SEND ? (struct range){0} : range});
}

/* One message of `chunks` leaves from `first` (mod shape->chunks) on: two joined ops where they run over the end. */
static inline enum status emit_around(struct sink *sink, const struct shape *shape, enum op_kind kind, unsigned flags,
                                      int peer, uint32_t first, uint32_t chunks)
{
    const uint32_t begin = first % shape->chunks, room = shape->chunks - begin;
    if (chunks <= room)
        return emit_message(sink, kind, flags, peer, vector_part(begin, chunks));
    TRY(emit_message(sink, kind, flags | OP_MORE, peer, vector_part(begin, room)));
    return emit_message(sink, kind, flags, peer, vector_part(0, chunks - room));
}

#endif
