/* test_schedule.c - the partition, shapes and the helpers of emit functions. */
#include <criterion/criterion.h>
#include <string.h>

#include "algos/schedule.h"

/* ---- partition ---- */

Test(partition, covers_all_elements_in_order_with_sizes_that_differ_by_one_at_most)
{
    static const size_t counts[] = {0, 1, 2, 3, 5, 7, 12, 100, 101, 1000003};
    for (uint32_t chunks = 1; chunks <= 40; chunks++) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            const size_t count = counts[i];
            cr_assert_eq(partition_offset(count, chunks, 0), 0);
            cr_assert_eq(partition_offset(count, chunks, chunks), count);
            size_t before = count;
            for (uint32_t c = 0; c < chunks; c++) {
                const size_t size = partition_offset(count, chunks, c + 1) - partition_offset(count, chunks, c);
                cr_assert(size == count / chunks || size == count / chunks + 1);
                cr_assert_leq(size, before, "the larger ones come first");
                before = size;
            }
        }
    }
}

Test(partition, does_not_overflow)
{
    const size_t count = SIZE_MAX;
    cr_assert_eq(partition_offset(count, UINT32_MAX, UINT32_MAX), count);
    cr_assert_eq(partition_offset(count, 1, 0), 0);
}

Test(partition, ranges_count_their_elements_in_either_buffer)
{
    const struct range whole = {.chunk = 0, .chunks = 4}, middle = {.chunk = 1, .chunks = 2};
    const struct range scratch = {.chunk = 4 + 3, .chunks = 1, .buffer = BUFFER_SCRATCH};
    cr_assert_eq(range_elements(&whole, 10, 4), 10);
    cr_assert_eq(range_elements(&middle, 10, 4), 3 + 2);
    cr_assert_eq(range_elements(&scratch, 10, 4), 2);
}

/* ---- shapes ---- */

static int released;

static enum status plain_shape(const struct shape_request *request, struct shape *shape)
{
    shape->rounds = 1;
    shape->chunks = (uint32_t)request->layout->workers;
    return STATUS_OK;
}

static enum status option_shape(const struct shape_request *request, struct shape *shape)
{
    shape->chunks = (uint32_t)option_int(request->options, "chunks");
    shape->rounds = 1;
    return STATUS_OK;
}

static enum status malformed_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    shape->lanes = 300;
    return STATUS_OK;
}

static enum status refusing_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request, (void)shape;
    return fail(STATUS_REFUSED, "not today");
}

static void count_release(struct shape *shape)
{
    (void)shape;
    released++;
}

static const struct option chunk_options[] = {
    {.key = "chunks", .type = OPTION_INT, .default_text = "4", .min = 1, .max = 100, .help = "chunks"},
    {.key = NULL},
};

/* Joined sends of the whole vector in leaves, then two empty-handed ops. */
static enum status joined_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    (void)round;
    const struct op op = {
        .kind = OP_SEND, .flags = OP_MORE, .peer = 1 - rank, .src = {0, 1, BUFFER_VECTOR}, .weight = 1};
    TRY(sink->op(sink, &op));
    TRY(emit_send(sink, 1 - rank, 1, shape->chunks - 1));
    TRY(emit_fence(sink, 0, 1));
    return emit_wait(sink, 0, 0);
}

static struct algorithm algorithm_of(enum status (*shape)(const struct shape_request *, struct shape *),
                                     unsigned traits)
{
    return (struct algorithm){.name = "test",
                              .aliases = "",
                              .summary = "",
                              .source = "",
                              .traits = traits,
                              .shape = shape,
                              .emit = joined_emit,
                              .release = count_release};
}

static enum status create(const struct algorithm *algorithm, int workers, struct shape **shape)
{
    struct layout layout;
    cr_assert_eq(layout_flat(workers, &layout), STATUS_OK);
    const struct shape_request request = {.layout = &layout};
    enum status status = shape_create(algorithm, &request, shape);
    layout_release(&layout);
    return status;
}

Test(shape, is_made_with_defaults_and_released_once)
{
    const struct algorithm algorithm = algorithm_of(plain_shape, 0);
    struct shape *shape;
    cr_assert_eq(create(&algorithm, 3, &shape), STATUS_OK);
    cr_assert_eq(shape->workers, 3);
    cr_assert_eq(shape->chunks, 3);
    cr_assert_eq(shape->lanes, 1);
    cr_assert_eq(shape->split, 0);
    cr_assert_not(shape_has_halves(shape));
    shape_destroy(shape);
    cr_assert_eq(released, 1);
    shape_destroy(NULL);
}

Test(shape, options_left_out_are_the_defaults_of_the_table)
{
    struct algorithm algorithm = algorithm_of(option_shape, 0);
    algorithm.options = chunk_options;
    struct shape *shape;
    cr_assert_eq(create(&algorithm, 2, &shape), STATUS_OK);
    cr_assert_eq(shape->chunks, 4);
    shape_destroy(shape);
}

Test(shape, malformed_ones_are_named_and_released)
{
    const struct algorithm algorithm = algorithm_of(malformed_shape, 0);
    struct shape *shape;
    cr_assert_eq(create(&algorithm, 2, &shape), STATUS_INTERNAL);
    cr_assert_null(shape);
    cr_assert_eq(released, 1);
}

Test(shape, refusals_pass_through)
{
    const struct algorithm algorithm = algorithm_of(refusing_shape, 0);
    struct shape *shape;
    cr_assert_eq(create(&algorithm, 2, &shape), STATUS_REFUSED);
    cr_assert_null(shape);
    cr_assert_eq(released, 0);
    cr_assert_str_eq(status_message(), "not today");
}

Test(shape, traits_on_the_worker_count_are_enforced_with_the_nearest_that_work)
{
    const struct algorithm power = algorithm_of(plain_shape, TRAIT_POWER_OF_TWO);
    const struct algorithm even = algorithm_of(plain_shape, TRAIT_EVEN);
    struct shape *shape;
    cr_assert_eq(create(&power, 6, &shape), STATUS_REFUSED);
    cr_assert_not_null(strstr(status_message(), "4 or 8"), "%s", status_message());
    cr_assert_eq(create(&even, 5, &shape), STATUS_REFUSED);
    cr_assert_not_null(strstr(status_message(), "4"), "%s", status_message());
    for (int p = 1; p <= 16; p *= 2) {
        cr_assert_eq(create(&power, p, &shape), STATUS_OK);
        shape_destroy(shape);
    }
    cr_assert_eq(create(&even, 6, &shape), STATUS_OK);
    shape_destroy(shape);
}

Test(shape, no_workers_are_wrong_usage)
{
    const struct algorithm algorithm = algorithm_of(plain_shape, 0);
    const struct layout layout = {0};
    const struct shape_request request = {.layout = &layout};
    struct shape *shape;
    cr_assert_eq(shape_create(&algorithm, &request, &shape), STATUS_USAGE);
    cr_assert_null(shape);
}

/* ---- helpers and totals ---- */

Test(traffic, joined_sends_are_one_message)
{
    const struct algorithm algorithm = algorithm_of(plain_shape, 0);
    struct shape *shape;
    size_t bytes, messages;
    cr_assert_eq(create(&algorithm, 2, &shape), STATUS_OK);
    cr_assert_eq(shape_traffic(shape, 0, 5, 8, &bytes, &messages), STATUS_OK);
    cr_assert_eq(bytes, 40);
    cr_assert_eq(messages, 1);
    cr_assert_eq(shape_traffic(shape, 0, 0, 8, &bytes, &messages), STATUS_OK);
    cr_assert_eq(bytes, 0);
    cr_assert_eq(messages, 0);
    cr_assert_eq(shape_traffic(shape, 0, 5, 8, NULL, NULL), STATUS_OK);
    shape_destroy(shape);
}

static struct op last;
static enum status keep(struct sink *sink, const struct op *op)
{
    (void)sink;
    last = *op;
    return STATUS_OK;
}

Test(emit, helpers_fill_in_lane_round_and_weight)
{
    struct sink sink = {.op = keep, .round = 7, .lane = 3};
    cr_assert_eq(emit_recv_reduce(&sink, 2, 4, 5, true), STATUS_OK);
    cr_assert(last.kind == OP_RECV_REDUCE && last.flags == OP_FINAL && last.peer == 2 && last.lane == 3);
    cr_assert(last.round == 7 && last.weight == 1 && last.dst.chunk == 4 && last.dst.chunks == 5);
    cr_assert_eq(emit_recv(&sink, 2, 4, 5), STATUS_OK);
    cr_assert(last.kind == OP_RECV && last.flags == 0 && last.dst.chunks == 5);
    cr_assert_eq(emit_send(&sink, 2, 4, 5), STATUS_OK);
    cr_assert(last.kind == OP_SEND && last.src.chunk == 4 && last.dst.chunks == 0);
    cr_assert_eq(emit_recv_mix(&sink, 2, 0, 1, 0.25), STATUS_OK);
    cr_assert(last.kind == OP_RECV_REDUCE && last.flags == 0 && last.weight == 0.25);
    cr_assert_eq(emit_scale(&sink, 0, 1, 0.5), STATUS_OK);
    cr_assert(last.kind == OP_SCALE && last.weight == 0.5 && last.peer == -1);
    cr_assert_eq(emit_wait(&sink, 1, 6), STATUS_OK);
    cr_assert(last.kind == OP_WAIT && last.wait_lane == 1 && last.wait_round == 6 && last.lane == 3);
    cr_assert_eq(emit_fence(&sink, 1, 4), STATUS_OK);
    cr_assert(last.kind == OP_FENCE && last.lane == 1 && last.lanes == 4 && last.round == 7);
}
