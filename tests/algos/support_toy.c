/* support_toy.c - emits what a table says. */
#include "tests/algos/support_toy.h"

static enum status toy_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const struct toy *toy = shape->state;
    for (size_t i = 0; i < toy->count; i++)
        if (toy->ops[i].rank == rank && toy->ops[i].op.round == round)
            TRY(sink->op(sink, &toy->ops[i].op));
    return STATUS_OK;
}

static const struct algorithm toy_algorithm = {.name = "toy", .emit = toy_emit};

struct shape toy_shape(struct toy *toy, int workers, uint32_t chunks, uint16_t lanes)
{
    uint32_t rounds = 0;
    for (size_t i = 0; i < toy->count; i++)
        if (toy->ops[i].op.round >= rounds)
            rounds = toy->ops[i].op.round + 1;
    return (struct shape){.algorithm = &toy_algorithm,
                          .workers = workers,
                          .chunks = chunks,
                          .rounds = rounds,
                          .lanes = lanes,
                          .state = toy};
}
