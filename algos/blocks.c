/* blocks.c - sets of blocks that travel together, and the messages they make (blocks.h). */
#include "algos/blocks.h"

#include <stdlib.h>

#include "base/memory.h"

/* ---- sets ---- */

uint32_t reversed_digits(uint32_t value, uint32_t radix, int digits)
{
    uint32_t reversed = 0;
    for (int i = 0; i < digits; i++) {
        reversed = reversed * radix + value % radix;
        value /= radix;
    }
    return reversed;
}

uint32_t block_of_chunk(const struct block_sets *sets, uint32_t chunk)
{
    return sets->radix == 0 ? chunk : reversed_digits(chunk, sets->radix, sets->digits);
}

static enum status check_sets(const uint32_t *set_of, uint32_t blocks, uint32_t sets)
{
    for (uint32_t delta = 1; delta < blocks; delta++)
        if (set_of[delta] >= sets)
            return fail(STATUS_INTERNAL, "blocks: nobody passes on the block that is %u of %u away", delta, blocks);
    return STATUS_OK;
}

/* By counting: ascending within each set. */
static void sort_deltas(struct block_sets *made, const uint32_t *set_of, uint32_t sets)
{
    for (uint32_t delta = 1; delta < made->blocks; delta++)
        made->first[set_of[delta]]++;
    uint32_t before = 0;
    for (uint32_t i = 0; i < sets; i++) {
        const uint32_t count = made->first[i];
        made->first[i] = before;
        before += count;
    }
    for (uint32_t delta = 1; delta < made->blocks; delta++)
        made->delta[made->first[set_of[delta]]++] = delta;
    for (uint32_t i = sets; i > 0; i--) /* each first has moved to the next one's place */
        made->first[i] = made->first[i - 1];
    made->first[0] = 0;
}

enum status block_sets_create(const uint32_t *set_of, uint32_t blocks, uint32_t sets, uint32_t radix,
                              struct block_sets **made)
{
    enum status status = STATUS_OK;
    void *memory = NULL, *first = NULL, *delta = NULL;
    *made = NULL;
    TRY(check_sets(set_of, blocks, sets));
    TRY_TO(done, memory_zeroed(&memory, 1, sizeof **made));
    TRY_TO(done, memory_zeroed(&first, (size_t)sets + 1, sizeof(uint32_t)));
    TRY_TO(done, memory_zeroed(&delta, blocks, sizeof(uint32_t)));
    *made = memory;
    **made = (struct block_sets){.blocks = blocks, .radix = radix, .first = first, .delta = delta};
    for (uint32_t power = 1; radix > 0 && power < blocks; power *= radix)
        (*made)->digits++;
    sort_deltas(*made, set_of, sets);
done:
    if (status < 0) {
        free(memory);
        free(first);
        free(delta);
    }
    return status;
}

void block_sets_destroy(struct block_sets *sets)
{
    if (sets == NULL)
        return;
    free(sets->first);
    free(sets->delta);
    free(sets);
}

/* ---- messages ---- */

/* A message that grows: the latest range waits, since whether another follows shows later. */
struct message {
    struct sink *sink;
    struct op op;
    bool begun;
};

static struct range *message_range(struct message *message)
{
    return message->op.kind == OP_SEND ? &message->op.src : &message->op.dst;
}

static enum status message_add(struct message *message, uint32_t chunk, uint32_t chunks)
{
    struct range *range = message_range(message);
    if (message->begun && range->chunk + range->chunks == chunk) {
        range->chunks += chunks;
        return STATUS_OK;
    }
    if (message->begun) {
        const uint8_t flags = message->op.flags;
        message->op.flags |= OP_MORE;
        TRY(message->sink->op(message->sink, &message->op));
        message->op.flags = flags;
    }
    message->begun = true;
    *range = (struct range){.chunk = chunk, .chunks = chunks, .buffer = BUFFER_VECTOR};
    return STATUS_OK;
}

static enum status message_end(const struct message *message)
{
    return message->begun ? message->sink->op(message->sink, &message->op) : STATUS_OK;
}

static uint32_t block_at(const struct block_sets *sets, int from, bool mirrored, uint32_t delta)
{
    const uint32_t sender = (uint32_t)from;
    const uint32_t ahead = mirrored ? sets->blocks - delta : delta; /* delta is never 0 */
    return ahead < sets->blocks - sender ? sender + ahead : sender - (sets->blocks - ahead);
}

static enum status add_blocks(const struct block_sets *sets, const struct block_move *move, struct message *message)
{
    const uint32_t first = sets->first[move->set], count = sets->first[move->set + 1] - first;
    if (sets->radix > 0 && count > 0) { /* one residue: one range, of which any block names the place */
        const uint32_t chunk = block_of_chunk(sets, block_at(sets, move->from, move->mirrored, sets->delta[first]));
        return message_add(message, chunk - chunk % count, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t k = move->mirrored ? first + count - 1 - i : first + i; /* so that blocks ascend */
        TRY(message_add(message, block_at(sets, move->from, move->mirrored, sets->delta[k]), 1));
    }
    return STATUS_OK;
}

enum status blocks_emit(const struct block_sets *sets, int rank, const struct block_move *move, struct sink *sink)
{
    const bool sends = move->reducing ? rank == move->from : rank == move->to;
    const enum op_kind receive = move->reducing ? OP_RECV_REDUCE : OP_RECV;
    const bool final = move->final && !sends && move->reducing;
    struct message message = {.sink = sink,
                              .op = {.kind = (uint8_t)(sends ? OP_SEND : receive),
                                     .flags = final ? OP_FINAL : 0,
                                     .lane = sink->lane,
                                     .peer = rank == move->from ? move->to : move->from,
                                     .weight = 1,
                                     .round = sink->round}};
    TRY(add_blocks(sets, move, &message));
    return message_end(&message);
}
