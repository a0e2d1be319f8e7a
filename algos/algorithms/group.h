/* group.h - all members of a group exchange at once: whole ranges, or the parts that each is responsible for.
 *
 * What is added up is added in the order of the members, on whoever adds it: ((0 + 1) + 2) + ... So bits are equal
 * where several members compute the same sum, and do not depend on the part where each computes another. Members 0 and
 * 1 begin with their own operand, a+b being b+a; the others collect what stands before it in scratch plane 0 and add
 * that to their own, so no copy is made. Groups of two need no scratch.
 *
 * Sends begin with the member after one's own, so that no member is everybody's first.
 */
#ifndef CHORALE_ALGOS_ALGORITHMS_GROUP_H
#define CHORALE_ALGOS_ALGORITHMS_GROUP_H

#include "algos/algorithms/message.h"

/* Some of the core of a team. The workers are cut into `core` runs as even as can be (partition_offset); the first of
 * each run is in the core, under the run's number. With core == workers that is everyone. Member i of the group has the
 * core number first + i * stride. */
struct group {
    int workers, core;
    int members, self;
    int first, stride;
};

/* All workers of a shape as one group. */
static inline struct group group_of_all(const struct shape *shape, int rank)
{
    return (struct group){
        .workers = shape->workers, .core = shape->workers, .members = shape->workers, .self = rank, .stride = 1};
}

/* The worker that has a number in the core. */
static inline int core_rank(int workers, int core, int number)
{
    return (int)partition_offset((size_t)workers, (uint32_t)core, (uint32_t)number);
}

/* The number of the run that a worker is in. */
static inline int core_number(int workers, int core, int rank)
{
    const int size = workers / core, longer = workers % core, end = longer * (size + 1);
    return rank < end ? rank / (size + 1) : longer + (rank - end) / size;
}

static inline int group_rank(const struct group *group, int member)
{
    return core_rank(group->workers, group->core, group->first + member * group->stride);
}

/* Member `turn` has its turn in the sum of leaves [chunk, chunk + chunks): called for 0, 1, ... members - 1. `complete`:
 * the whole sum is the result. */
static inline enum status group_add(struct sink *sink, const struct shape *shape, const struct group *group, int turn,
                                    uint32_t chunk, uint32_t chunks, bool complete)
{
    const int self = group->self, last = self <= 1 && group->members == 2 ? 1 - self : group->members - 1;
    const unsigned flags = complete && turn == last ? OP_FINAL : 0;
    const struct range mine = vector_part(chunk, chunks), before = plane_part(shape, 0, chunk, chunks);
    if (turn == self && self <= 1)
        return STATUS_OK;
    if (turn == self)
        return emit_op(sink,
                       (struct op){.kind = OP_REDUCE, .flags = (uint8_t)flags, .peer = -1, .src = before, .dst = mine});
    const int peer = group_rank(group, turn);
    if (self <= 1 || turn > self)
        return emit_message(sink, OP_RECV_REDUCE, flags, peer, mine);
    return emit_message(sink, turn == 0 ? OP_RECV : OP_RECV_REDUCE, 0, peer, before);
}

/* Every member gets the sum of the range. */
static inline enum status group_exchange(struct sink *sink, const struct shape *shape, const struct group *group,
                                         uint32_t chunk, uint32_t chunks, bool complete)
{
    for (int i = 1; i < group->members; i++)
        TRY(emit_send(sink, group_rank(group, (group->self + i) % group->members), chunk, chunks));
    for (int turn = 0; turn < group->members; turn++)
        TRY(group_add(sink, shape, group, turn, chunk, chunks, complete));
    return STATUS_OK;
}

/* Member i gets the sum of part i; parts of `part` leaves follow one another from `chunk` on. */
static inline enum status group_scatter(struct sink *sink, const struct shape *shape, const struct group *group,
                                        uint32_t chunk, uint32_t part, bool complete)
{
    for (int i = 1; i < group->members; i++) {
        const int member = (group->self + i) % group->members;
        TRY(emit_send(sink, group_rank(group, member), chunk + (uint32_t)member * part, part));
    }
    for (int turn = 0; turn < group->members; turn++)
        TRY(group_add(sink, shape, group, turn, chunk + (uint32_t)group->self * part, part, complete));
    return STATUS_OK;
}

/* Member i has part i; every member gets all parts. */
static inline enum status group_gather(struct sink *sink, const struct group *group, uint32_t chunk, uint32_t part)
{
    for (int i = 1; i < group->members; i++)
        TRY(emit_send(sink, group_rank(group, (group->self + i) % group->members), chunk + (uint32_t)group->self * part,
                      part));
    for (int i = 1; i < group->members; i++) { /* in the order in which they come when all begin at once */
        const int member = (group->self + group->members - i) % group->members;
        TRY(emit_recv(sink, group_rank(group, member), chunk + (uint32_t)member * part, part));
    }
    return STATUS_OK;
}

#endif
