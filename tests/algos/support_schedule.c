#include "tests/algos/support_schedule.h"

#include <criterion/criterion.h>
#include <string.h>

#include "algos/spec.h"
#include "algos/verify.h"

static enum status try_schedule(const char *text, int workers, struct shape **shape)
{
    struct spec spec;
    struct layout layout;
    cr_assert_eq(spec_parse(text, &spec), STATUS_OK, "%s", status_message());
    cr_assert_eq(layout_flat(workers, &layout), STATUS_OK, "%s", status_message());
    const enum status status = spec_shape(&spec, &layout, 0, 1000, shape);
    layout_release(&layout);
    spec_release(&spec);
    return status;
}

struct shape *schedule_of(const char *spec, int workers)
{
    struct shape *shape = NULL;
    cr_assert_eq(try_schedule(spec, workers, &shape), STATUS_OK, "%s: %s", spec, status_message());
    return shape;
}

void expect_schedule_refused(const char *spec, int workers, const char *reason)
{
    struct shape *shape = NULL;
    cr_assert_eq(try_schedule(spec, workers, &shape), STATUS_REFUSED, "%s for %d workers", spec, workers);
    cr_assert_null(shape);
    cr_assert_not_null(strstr(status_message(), reason), "%s", status_message());
}

struct record {
    struct sink sink; /* first */
    struct op *ops;
    size_t count, capacity;
};

static enum status record_op(struct sink *sink, const struct op *op)
{
    struct record *record = (struct record *)sink;
    cr_assert_lt(record->count, record->capacity);
    record->ops[record->count++] = *op;
    return STATUS_OK;
}

size_t ops_of(const struct shape *shape, int rank, uint32_t round, struct op *ops, size_t capacity)
{
    struct record record = {.sink = {.op = record_op, .round = round}, .ops = ops, .capacity = capacity};
    cr_assert_eq(shape->algorithm->emit(shape, rank, round, &record.sink), STATUS_OK, "%s", status_message());
    return record.count;
}

static bool same_op(const struct op *a, const struct op *b)
{
    return a->kind == b->kind && a->flags == b->flags && a->lane == b->lane && a->peer == b->peer &&
           a->src.chunk == b->src.chunk && a->src.chunks == b->src.chunks && a->dst.chunk == b->dst.chunk &&
           a->dst.chunks == b->dst.chunks;
}

void expect_same_ops(const char *spec, const char *other, int workers)
{
    enum { MOST = 64 };
    struct op ops[MOST], others[MOST];
    struct shape *shape = schedule_of(spec, workers), *second = schedule_of(other, workers);
    cr_assert_eq(shape->rounds, second->rounds);
    cr_assert_eq(shape->chunks, second->chunks);
    cr_assert_eq(shape->split, second->split);
    for (int rank = 0; rank < workers; rank++)
        for (uint32_t round = 0; round < shape->rounds; round++) {
            const size_t count = ops_of(shape, rank, round, ops, MOST);
            cr_assert_eq(count, ops_of(second, rank, round, others, MOST));
            for (size_t i = 0; i < count; i++)
                cr_assert(same_op(&ops[i], &others[i]), "%s and %s, worker %d of %d, round %u", spec, other, rank,
                          workers, round);
        }
    shape_destroy(shape);
    shape_destroy(second);
}

void expect_sends(const struct shape *shape, int rank, size_t count, size_t elements, size_t messages)
{
    size_t bytes = 0, sent = 0;
    cr_assert_eq(shape_traffic(shape, rank, count, 1, &bytes, &sent), STATUS_OK, "%s", status_message());
    cr_expect_eq(bytes, elements, "%s: worker %d of %d sends %zu elements, not %zu", shape->algorithm->name, rank,
                 shape->workers, bytes, elements);
    cr_expect_eq(sent, messages, "%s: worker %d of %d sends %zu messages, not %zu", shape->algorithm->name, rank,
                 shape->workers, sent, messages);
}

void expect_proved(const char *spec, int workers)
{
    struct shape *shape = schedule_of(spec, workers);
    struct verify_result result;
    cr_assert_eq(verify_shape(shape, &result), STATUS_OK, "%s", status_message());
    cr_expect(result.ok, "%s for %d workers: %s", spec, workers, result.reason);
    const bool same_order = result.same_order;
    cr_expect(result.equal_bits || !(shape->traits & TRAIT_EQUAL_BITS), "%s for %d: bits differ", spec, workers);
    cr_expect(same_order || !(shape->traits & TRAIT_SAME_ORDER), "%s for %d: orders differ", spec, workers);
    shape_destroy(shape);
}
