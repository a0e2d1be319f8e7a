/* test_cuda_plan.c - places of activations and gradients, for every network: nothing lies over what is still needed. */
#include <criterion/criterion.h>
#include <string.h>

#include "nn/cuda/plan.h"
#include "nn/models/build.h"

#define OK(call) cr_assert_geq((call), 0, "%s: %s", #call, status_message())

static struct cuda_plan *plan_of(const struct model *model, int batch)
{
    struct cuda_plan *plan = NULL;
    const struct cuda_plan_request request = {
        .model = model, .batch = batch, .storage = DTYPE_BF16, .image_channels = 8};
    OK(cuda_plan_create(&request, &plan));
    return plan;
}

static bool alive_together(const struct cuda_span *a, const struct cuda_span *b)
{
    return a->first <= b->last && b->first <= a->last;
}

static void check_places(const struct cuda_plan *plan)
{
    for (int k = 0; k < plan->spans; k++) {
        const struct cuda_span *a = &plan->span[k];
        cr_assert(a->bytes % CUDA_SPAN_ALIGNMENT == 0 && a->offset % CUDA_SPAN_ALIGNMENT == 0);
        cr_assert(a->bytes > 0 && a->offset + a->bytes <= plan->bytes);
        for (int j = 0; j < k; j++) {
            const struct cuda_span *b = &plan->span[j];
            const bool apart = a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;
            cr_assert(apart || !alive_together(a, b), "spans %d and %d lie over each other", j, k);
        }
    }
}

static void expect_alive(const struct cuda_plan *plan, int span, int moment, const char *what, int node)
{
    if (span == CUDA_NO_SPAN)
        return;
    cr_assert(plan->span[span].first <= moment && moment <= plan->span[span].last, "%s of node %d at moment %d", what,
              node, moment);
}

/* What each node touches is there when it does. */
static void check_lives(const struct cuda_plan *plan)
{
    for (int k = 0; k < plan->nodes; k++) {
        const struct cuda_node *node = &plan->node[k];
        const int backward = 2 * plan->nodes - k;
        const bool again = node->kind == CUDA_CONV || node->kind == CUDA_NORM || node->kind == CUDA_LINEAR;
        expect_alive(plan, plan->value[node->input].span, k, "the input", k);
        expect_alive(plan, plan->value[node->output].span, k, "the output", k);
        if (node->second >= 0)
            expect_alive(plan, plan->value[node->second].span, k, "the addend", k);
        if (again)
            expect_alive(plan, plan->value[node->input].span, backward, "the input", k);
        expect_alive(plan, node->kept, k, "what is kept", k);
        expect_alive(plan, node->kept, backward, "what is kept", k);
        cr_assert_neq(node->gradient, CUDA_NO_SPAN);
        expect_alive(plan, node->gradient, backward, "the gradient", k);
        expect_alive(plan, node->more, backward, "the other gradient", k);
        expect_alive(plan, node->input_gradient, backward, "the input's gradient", k);
    }
}

Test(cuda_plan, nothing_lies_over_what_is_needed)
{
    static const struct {
        const char *name;
        int size;
    } models[] = {{"cnn", 28}, {"resnet18", 64}, {"resnet50", 64}};
    for (size_t k = 0; k < sizeof models / sizeof models[0]; k++) {
        struct model *model = NULL;
        OK(model_create(models[k].name, 10, models[k].size, &model));
        for (int batch = 1; batch <= 7; batch += 3) {
            struct cuda_plan *plan = plan_of(model, batch);
            check_places(plan);
            check_lives(plan);
            cuda_plan_destroy(plan);
        }
        model_destroy(model);
    }
}

/* ResNet-50 at 224 pixels: gradients lie where activations have done their work. */
Test(cuda_plan, gradients_take_little_more_than_activations)
{
    struct model *model = NULL;
    OK(model_create("resnet50", 1000, 224, &model));
    struct cuda_plan *plan = plan_of(model, 64);
    size_t activations = 0;
    for (int v = 0; v <= model->layers; v++)
        activations += plan->value[v].span != CUDA_NO_SPAN ? plan->span[plan->value[v].span].bytes : 0;
    cr_expect_lt(plan->bytes, activations + activations / 5, "%zu MiB, activations are %zu MiB", plan->bytes >> 20,
                 activations >> 20);
    cr_expect_lt(plan->bytes, cuda_plan_unshared(plan) / 3 * 2, "%zu of %zu MiB", plan->bytes >> 20,
                 cuda_plan_unshared(plan) >> 20);
    cuda_plan_destroy(plan);
    model_destroy(model);
}

/* ---- bytes moved ---- */

static void expect_moved(const struct moved *moved, const uint64_t *expected)
{
    for (int k = 0; k < MOVED_PARTS; k++)
        cr_expect_eq(moved->bytes[k], expected[k], "%s: %lu, by hand %lu", moved_part_name((enum moved_part)k),
                     (unsigned long)moved->bytes[k], (unsigned long)expected[k]);
}

/* 2 images of 8x8 pixels; a: 3 (8 padded) -> 16 channels, b: 16 -> 16 with the addition of a's output. Written out. */
static void moved_by(enum dtype storage, int image_channels, const uint64_t *expected)
{
    struct build build;
    struct model *model = NULL;
    struct cuda_plan *plan = NULL;
    struct moved moved;
    build_begin(&build, "model", 10, 8, 3);
    int a = build_conv(&build, BUILD_IMAGES, "a", 16, 3, 1);
    a = build_relu(&build, build_batch_norm(&build, a, "an", false), "ar");
    int b = build_conv(&build, a, "b", 16, 3, 1);
    b = build_add_relu(&build, build_batch_norm(&build, b, "bn", false), a, "br");
    b = build_max_pool(&build, b, "pool");
    build_linear(&build, build_average_pool(&build, b, "average"), "fc", 10);
    OK(build_end(&build, &model));
    const struct cuda_plan_request request = {
        .model = model, .batch = 2, .storage = storage, .image_channels = image_channels};
    OK(cuda_plan_create(&request, &plan));
    cuda_plan_moved(plan, &moved);
    expect_moved(&moved, expected);
    cuda_plan_destroy(plan);
    model_destroy(model);
}

Test(cuda_plan, what_a_small_network_moves_is_what_is_counted_by_hand)
{
    /* Elements: images 128 pixels x 8, activations 128 x 16 = 2048, filters 16 x 9 x 8 = 1152 and 16 x 9 x 16 = 2304; after
     * the pool 2 x 4 x 4 x 16 = 512, then 32, then 20 logits. Parameters 432 + 32 + 2304 + 32 + 160 + 10 = 2970. */
    const uint64_t halves[MOVED_PARTS] = {
        [MOVED_CONV_FORWARD] = 2 * (1024 + 1152 + 2048) + 2 * (2048 + 2304 + 2048),
        [MOVED_CONV_DATA] = 2 * (2048 + 2304 + 2048),
        [MOVED_CONV_WEIGHTS] = 2 * (1024 + 2048) + 4 * 432 + 2 * (2048 + 2048) + 4 * 2304,
        [MOVED_LINEAR] = (64 + 320 + 40 + 80) + (64 + 40 + 80 + 640 + 40) + (40 + 320 + 64),
        /* a: x, y; dy, the second dy, x, dx. b: x, addend, y, bits; dy, x, bits, dz, dx. Each 14 vectors of 16 floats. */
        [MOVED_NORM] = 6 * 4096 + 14 * 64 + (3 * 4096 + 256) + (4 * 4096 + 256) + 14 * 64,
        [MOVED_POOL] = 2 * (4096 + 1024 + 512) + 2 * (1024 + 64),
        [MOVED_LOSS] = 80 + 8 + 80 + 40,
        [MOVED_UPDATE] = 20 * 2970 + 2 * (1152 + 2304 + 160),
    };
    moved_by(DTYPE_BF16, 8, halves);
    moved_by(DTYPE_F16, 8, halves);
    const uint64_t floats[MOVED_PARTS] = {
        [MOVED_CONV_FORWARD] = 4 * (512 + 576 + 2048) + 4 * (2048 + 2304 + 2048),
        [MOVED_CONV_DATA] = 4 * (2048 + 2304 + 2048),
        [MOVED_CONV_WEIGHTS] = 4 * (512 + 2048 + 432) + 4 * (2048 + 2048 + 2304),
        [MOVED_LINEAR] = (128 + 640 + 40 + 80) + (128 + 80 + 80 + 640 + 40) + (80 + 640 + 128),
        [MOVED_NORM] = 6 * 8192 + 14 * 64 + (3 * 8192 + 256) + (4 * 8192 + 256) + 14 * 64,
        [MOVED_POOL] = 2 * (8192 + 2048 + 512) + 2 * (2048 + 128),
        [MOVED_LOSS] = 80 + 8 + 80 + 80,
        [MOVED_UPDATE] = 20 * 2970,
    };
    moved_by(DTYPE_F32, 4, floats);
}

struct shape {
    uint64_t pixels, channels;
};

/* One of ResNet-50's convolutions with its batch norm, in halves: what both move in activations alone. `reads`: how often the
 * norm goes over y's size, both ways, but for bits. */
static uint64_t block_bytes(struct shape in, struct shape out, uint64_t passes, uint64_t reads)
{
    return 2 * (passes * (in.pixels * in.channels + out.pixels * out.channels) + reads * out.pixels * out.channels);
}

/* Of one image: activations alone, by the table of He et al. (2015). 1x1, 3x3, 1x1; the stride is in the 3x3. */
static uint64_t resnet50_activations(void)
{
    static const uint64_t blocks[] = {3, 4, 6, 3};
    uint64_t side = 56, channels = 64, width = 64;
    uint64_t bytes = block_bytes((struct shape){224 * 224, 8}, (struct shape){112 * 112, 64}, 2, 5);
    bytes += 2 * (2 * 64 * (112 * 112 + 56 * 56) + 56 * 56 * 64); /* max pool, a byte a place */
    for (int stage = 0; stage < 4; stage++, width *= 2) {
        for (uint64_t b = 0; b < blocks[stage]; b++) {
            const uint64_t to = b == 0 && stage > 0 ? side / 2 : side;
            const struct shape x = {side * side, channels}, one = {side * side, width}, two = {to * to, width},
                               y = {to * to, 4 * width};
            const bool last = stage == 3 && b == 2;
            bytes += block_bytes(x, one, 3, 5) + block_bytes(one, two, 3, 5);
            /* x, addend, y; dy, the second dy but at the end, x, dz, dx; bits both ways */
            bytes += block_bytes(two, y, 3, last ? 7 : 8) + 2 * (y.pixels * y.channels / 8);
            if (b == 0)
                bytes += block_bytes(x, y, 3, 5);
            side = to;
            channels = 4 * width;
        }
    }
    /* The stem's pool is read by two branches: their gradients are added up. */
    bytes += 3 * 2 * 56 * 56 * 64;
    return bytes + 2 * 2 * 2048 * (49 + 1) + 3 * 2 * 2048;
}

Test(cuda_plan, what_resnet50_moves_grows_with_the_batch_as_its_shapes_say)
{
    struct model *model = NULL;
    struct moved one, many;
    uint64_t sum[2] = {0, 0};
    OK(model_create("resnet50", 1000, 224, &model));
    struct cuda_plan *plan = plan_of(model, 1);
    cuda_plan_moved(plan, &one);
    cuda_plan_destroy(plan);
    plan = plan_of(model, 64);
    cuda_plan_moved(plan, &many);
    cuda_plan_destroy(plan);
    for (int k = 0; k < MOVED_PARTS; k++) {
        sum[0] += one.bytes[k];
        sum[1] += many.bytes[k];
    }
    const uint64_t loss = 4 * 1000 + 4 + 4 * 1000 + 2 * 1000, logits = 4 * 2 * 1000 + 2 * 2 * 1000;
    cr_expect_eq(sum[1] - sum[0], 63 * (resnet50_activations() + loss + logits), "%lu, by the table %lu",
                 (unsigned long)((sum[1] - sum[0]) / 63), (unsigned long)(resnet50_activations() + loss + logits));
    cr_expect_eq(one.bytes[MOVED_UPDATE], many.bytes[MOVED_UPDATE]);
    model_destroy(model);
}

static void expect_refusal(struct build *build, const char *why)
{
    struct model *model = NULL;
    struct cuda_plan *plan = NULL;
    OK(build_end(build, &model));
    const struct cuda_plan_request request = {.model = model, .batch = 1, .storage = DTYPE_F32, .image_channels = 4};
    cr_expect_eq(cuda_plan_create(&request, &plan), STATUS_REFUSED);
    cr_expect_null(plan);
    cr_expect_not_null(strstr(status_message(), why), "%s", status_message());
    model_destroy(model);
}

Test(cuda_plan, networks_that_can_not_run_are_refused_by_layer)
{
    struct build build;
    build_begin(&build, "model", 10, 8, 3);
    int x = build_conv(&build, BUILD_IMAGES, "conv", 16, 3, 1);
    x = build_relu(&build, x, "lonely");
    build_linear(&build, build_average_pool(&build, x, "pool"), "fc", 10);
    expect_refusal(&build, "layer lonely: the cuda backend wants a batch norm of its own before it");

    build_begin(&build, "model", 10, 8, 3);
    x = build_conv(&build, BUILD_IMAGES, "conv", 16, 3, 1);
    build_linear(&build, x, "fc", 10);
    expect_refusal(&build, "layer fc: the cuda backend wants a linear layer after an average pool");

    build_begin(&build, "model", 10, 8, 3);
    build_average_pool(&build, build_conv(&build, BUILD_IMAGES, "conv", 16, 3, 1), "pool");
    expect_refusal(&build, "model model: the cuda backend wants a linear layer at the end");

    build_begin(&build, "model", 10, 8, 3);
    x = build_conv(&build, BUILD_IMAGES, "conv", 16, 3, 1);
    build_conv(&build, x, "unread", 16, 3, 1);
    build_linear(&build, build_average_pool(&build, x, "pool"), "fc", 10);
    expect_refusal(&build, "layer unread: nothing reads it");

    build_begin(&build, "model", 10, 8, 3);
    x = build_batch_norm(&build, build_conv(&build, BUILD_IMAGES, "conv", 16, 3, 1), "popular", false);
    int y = build_relu(&build, build_batch_norm(&build, build_conv(&build, x, "a", 16, 3, 1), "an", false), "ar");
    int z =
        build_add_relu(&build, build_batch_norm(&build, build_conv(&build, x, "b", 16, 3, 1), "bn", false), x, "br");
    y = build_add_relu(&build, build_batch_norm(&build, build_conv(&build, y, "c", 16, 3, 1), "cn", false), z, "cr");
    build_linear(&build, build_average_pool(&build, y, "pool"), "fc", 10);
    expect_refusal(&build, "layer popular: the cuda backend wants at most 2 readers of a layer");
}

Test(cuda_plan, a_batch_that_is_too_large_is_refused)
{
    struct model *model = NULL;
    struct cuda_plan *plan = NULL;
    OK(model_create("cnn", 10, 28, &model));
    const struct cuda_plan_request none = {.model = model, .batch = 0, .storage = DTYPE_F32, .image_channels = 4};
    cr_expect_eq(cuda_plan_create(&none, &plan), STATUS_USAGE);
    model_destroy(model);
}
