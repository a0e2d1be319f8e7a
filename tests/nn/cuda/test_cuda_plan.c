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
