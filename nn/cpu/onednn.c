/* onednn.c - every call of oneDNN is in this file. */
#include "nn/cpu/onednn.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "nn/cpu/kernels.h"

struct onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_attr_t attributes; /* the caller lends the scratchpad: nothing is allocated in a step */
};

enum { MOST_ARGUMENTS = 4 };

/* A primitive with the memory objects of its arguments, whose pointers are set at each run. */
struct action {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t argument[MOST_ARGUMENTS];
    int arguments;
    size_t scratch_bytes;
};

/* Strides of blocks, in floats. */
struct block_order {
    size_t out, in, tap;
};

/* The same blocks of weights, each turned from (8 i, 8 o) to (8 o, 8 i); out 0 = nothing to do. */
struct transposition {
    size_t out, in, taps; /* blocks */
    struct block_order from, to;
};

struct conv {
    struct onednn *library;
    struct action forward, backward_weights, backward_data;
    struct action rearrange;              /* forward's weights -> backward_data's; no primitive where they are alike, */
    struct transposition transposition;   /* or where this does it                                                    */
    dnnl_memory_desc_t weights;           /* as the primitives see them                         */
    dnnl_memory_desc_t native, canonical; /* the same memory, and PyTorch's order: (O, I, kh, kw) */
    size_t rearranged_bytes;
};

static enum status check(dnnl_status_t result, const char *what)
{
    if (result == dnnl_success)
        return STATUS_OK;
    if (result == dnnl_out_of_memory)
        return fail(STATUS_NO_MEMORY, "oneDNN: %s: out of memory", what);
    return fail(STATUS_INTERNAL, "oneDNN: %s: status %d", what, (int)result);
}

/* ---- library ---- */

enum status onednn_create(struct onednn **library)
{
    *library = NULL;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct onednn)));
    struct onednn *made = memory;
    enum status status;
    TRY_TO(failed, check(dnnl_engine_create(&made->engine, dnnl_cpu, 0), "engine"));
    TRY_TO(failed, check(dnnl_stream_create(&made->stream, made->engine, dnnl_stream_default_flags), "stream"));
    TRY_TO(failed, check(dnnl_primitive_attr_create(&made->attributes), "attributes"));
    TRY_TO(failed, check(dnnl_primitive_attr_set_scratchpad_mode(made->attributes, dnnl_scratchpad_mode_user),
                         "scratchpad mode"));
    *library = made;
    return STATUS_OK;
failed:
    onednn_destroy(made);
    return status;
}

void onednn_destroy(struct onednn *library)
{
    if (!library)
        return;
    if (library->attributes)
        dnnl_primitive_attr_destroy(library->attributes);
    if (library->stream)
        dnnl_stream_destroy(library->stream);
    if (library->engine)
        dnnl_engine_destroy(library->engine);
    free(library);
}

static bool has_isa(dnnl_cpu_isa_t isa)
{
    return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)isa) == (unsigned)isa;
}

int onednn_block(void)
{
    return has_isa(dnnl_cpu_isa_avx512_core) ? 16 : 8;
}

void onednn_describe(struct text *text)
{
    const dnnl_version_t *version = dnnl_version();
    const char *isa = "no vector extension known";
    if (has_isa(dnnl_cpu_isa_avx512_core))
        isa = "AVX-512";
    else if (has_isa(dnnl_cpu_isa_avx2))
        isa = "AVX2";
    else if (has_isa(dnnl_cpu_isa_avx))
        isa = "AVX";
    else if (has_isa(dnnl_cpu_isa_sse41))
        isa = "SSE4.1";
    text_addf(text, "oneDNN %d.%d.%d, %s", version->major, version->minor, version->patch, isa);
}

/* ---- actions ---- */

static void action_release(struct action *action)
{
    for (int k = 0; k < action->arguments; k++)
        dnnl_memory_destroy(action->argument[k].memory);
    if (action->primitive)
        dnnl_primitive_destroy(action->primitive);
    *action = (struct action){0};
}

static enum status action_add(struct action *action, struct onednn *library, int role, const dnnl_memory_desc_t *layout)
{
    dnnl_exec_arg_t *argument = &action->argument[action->arguments];
    argument->arg = role;
    TRY(check(dnnl_memory_create(&argument->memory, layout, library->engine, DNNL_MEMORY_NONE), "memory object"));
    action->arguments++;
    return STATUS_OK;
}

/* Makes the primitive; its scratchpad, if it has one, becomes the last argument. */
static enum status action_finish(struct action *action, struct onednn *library, const_dnnl_primitive_desc_t description,
                                 const char *name)
{
    const char *implementation = "";
    TRY(check(dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, &implementation), name));
    if (strncmp(implementation, "ref", 3) == 0)
        return fail(STATUS_INTERNAL, "layer %s: oneDNN has only its reference implementation (%s) for this shape", name,
                    implementation);
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    action->scratch_bytes = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
    if (action->scratch_bytes > 0)
        TRY(action_add(action, library, DNNL_ARG_SCRATCHPAD, scratch));
    return check(dnnl_primitive_create(&action->primitive, description), name);
}

/* `pointer` in the order of action_add(); the scratchpad comes after them. Inputs are never written. */
static enum status action_run(struct action *action, struct onednn *library, const void *const *pointer, int pointers,
                              void *scratch)
{
    for (int k = 0; k < action->arguments; k++) {
        const void *data = k < pointers ? pointer[k] : scratch;
        TRY(check(dnnl_memory_set_data_handle(action->argument[k].memory, (void *)(size_t)data), "pointer"));
    }
    TRY(check(dnnl_primitive_execute(action->primitive, library->stream, action->arguments, action->argument), "run"));
    return check(dnnl_stream_wait(library->stream), "wait");
}

/* ---- convolutions ---- */

struct conv_layouts {
    dnnl_memory_desc_t source, result, weights;
    dnnl_dims_t strides, before, after;
};

static dnnl_format_tag_t blocked_data(void)
{
    return onednn_block() == 16 ? dnnl_nChw16c : dnnl_nChw8c;
}

/* The order whose memory is the same for a k x k convolution and for a 1x1 convolution over its columns. */
static dnnl_format_tag_t blocked_weights(void)
{
    return onednn_block() == 16 ? dnnl_OIhw16i16o : dnnl_OIhw8i8o;
}

static enum status make_layout(dnnl_memory_desc_t *layout, const char *name, dnnl_format_tag_t tag, int a, int b, int c,
                               int d)
{
    return check(dnnl_memory_desc_init_by_tag(layout, 4, (dnnl_dims_t){a, b, c, d}, dnnl_f32, tag), name);
}

/* Padding after the last pixel; a stride may leave some unread. */
static int padding_after(const struct conv_shape *shape, int in, int out)
{
    int after = (out - 1) * shape->stride + shape->kernel - in - shape->padding;
    return after > 0 ? after : 0;
}

static enum status make_direct_layouts(const struct conv_shape *shape, struct conv_layouts *layouts)
{
    TRY(make_layout(&layouts->source, shape->name, shape->plain_source ? dnnl_nchw : blocked_data(), shape->batch,
                    shape->in_channels, shape->in_height, shape->in_width));
    TRY(make_layout(&layouts->weights, shape->name, dnnl_format_tag_any, shape->out_channels, shape->in_channels,
                    shape->kernel, shape->kernel));
    layouts->after[0] = padding_after(shape, shape->in_height, shape->out_height);
    layouts->after[1] = padding_after(shape, shape->in_width, shape->out_width);
    for (int k = 0; k < 2; k++) {
        layouts->strides[k] = shape->stride;
        layouts->before[k] = shape->padding;
    }
    return STATUS_OK;
}

static enum status make_column_layouts(const struct conv_shape *shape, struct conv_layouts *layouts)
{
    int channels = shape->in_channels * shape->kernel * shape->kernel;
    TRY(make_layout(&layouts->source, shape->name, blocked_data(), shape->batch, channels, shape->out_height,
                    shape->out_width));
    TRY(make_layout(&layouts->weights, shape->name, blocked_weights(), shape->out_channels, channels, 1, 1));
    layouts->strides[0] = layouts->strides[1] = 1;
    return STATUS_OK;
}

static enum status make_layouts(const struct conv_shape *shape, struct conv_layouts *layouts)
{
    *layouts = (struct conv_layouts){0};
    TRY(shape->columns ? make_column_layouts(shape, layouts) : make_direct_layouts(shape, layouts));
    return make_layout(&layouts->result, shape->name, blocked_data(), shape->batch, shape->out_channels,
                       shape->out_height, shape->out_width);
}

/* Makes the forward action; `description` is also the hint of the two backward ones and is freed by the caller. */
static enum status make_forward(struct conv *conv, const struct conv_shape *shape, struct conv_layouts *layouts,
                                dnnl_primitive_desc_t *description)
{
    struct onednn *library = conv->library;
    dnnl_convolution_desc_t operation;
    TRY(check(dnnl_convolution_forward_desc_init(&operation, dnnl_forward_training, dnnl_convolution_direct,
                                                 &layouts->source, &layouts->weights, NULL, &layouts->result,
                                                 layouts->strides, layouts->before, layouts->after),
              shape->name));
    TRY(check(dnnl_primitive_desc_create(description, &operation, library->attributes, library->engine, NULL),
              shape->name));
    conv->weights = *dnnl_primitive_desc_query_md(*description, dnnl_query_weights_md, 0);
    if (!shape->forward)
        return STATUS_OK;
    TRY(action_add(&conv->forward, library, DNNL_ARG_SRC, &layouts->source));
    TRY(action_add(&conv->forward, library, DNNL_ARG_WEIGHTS, &conv->weights));
    TRY(action_add(&conv->forward, library, DNNL_ARG_DST, &layouts->result));
    return action_finish(&conv->forward, library, *description, shape->name);
}

static enum status make_backward_weights(struct conv *conv, const struct conv_shape *shape,
                                         struct conv_layouts *layouts, const_dnnl_primitive_desc_t hint)
{
    struct onednn *library = conv->library;
    dnnl_convolution_desc_t operation;
    TRY(check(dnnl_convolution_backward_weights_desc_init(&operation, dnnl_convolution_direct, &layouts->source,
                                                          &conv->weights, NULL, &layouts->result, layouts->strides,
                                                          layouts->before, layouts->after),
              shape->name));
    dnnl_primitive_desc_t description = NULL;
    enum status status;
    TRY_TO(done, check(dnnl_primitive_desc_create(&description, &operation, library->attributes, library->engine, hint),
                       shape->name));
    TRY_TO(done, action_add(&conv->backward_weights, library, DNNL_ARG_SRC, &layouts->source));
    TRY_TO(done, action_add(&conv->backward_weights, library, DNNL_ARG_DIFF_DST, &layouts->result));
    TRY_TO(done, action_add(&conv->backward_weights, library, DNNL_ARG_DIFF_WEIGHTS, &conv->weights));
    TRY_TO(done, action_finish(&conv->backward_weights, library, description, shape->name));
done:
    if (description)
        dnnl_primitive_desc_destroy(description);
    return status;
}

/* False unless the layout has blocks of 8 x 8 channels, in this order of dimensions. */
static bool block_order_of(const dnnl_memory_desc_t *layout, int outer, int inner, struct block_order *order)
{
    const dnnl_blocking_desc_t *blocks = &layout->format_desc.blocking;
    if (layout->format_kind != dnnl_blocked || blocks->inner_nblks != 2 || blocks->inner_blks[0] != TRANSPOSED ||
        blocks->inner_blks[1] != TRANSPOSED || blocks->inner_idxs[0] != outer || blocks->inner_idxs[1] != inner ||
        layout->dims[0] % TRANSPOSED != 0 || layout->dims[1] % TRANSPOSED != 0 ||
        blocks->strides[2] != layout->dims[3] * blocks->strides[3])
        return false;
    *order = (struct block_order){
        .out = (size_t)blocks->strides[0], .in = (size_t)blocks->strides[1], .tap = (size_t)blocks->strides[3]};
    return true;
}

static bool make_transposition(struct conv *conv, const dnnl_memory_desc_t *wanted)
{
    struct transposition made = {.out = (size_t)conv->weights.dims[0] / TRANSPOSED,
                                 .in = (size_t)conv->weights.dims[1] / TRANSPOSED,
                                 .taps = (size_t)(conv->weights.dims[2] * conv->weights.dims[3])};
    if (!block_order_of(&conv->weights, 1, 0, &made.from) || !block_order_of(wanted, 0, 1, &made.to))
        return false;
    conv->transposition = made;
    conv->rearranged_bytes = dnnl_memory_desc_get_size(wanted);
    return true;
}

static void transpose(const struct transposition *of, const float *from, float *to)
{
    const struct kernels *kernels = kernels_select();
#pragma omp parallel for schedule(static)
    for (int o = 0; o < (int)of->out; o++) {
        for (size_t i = 0; i < of->in; i++) {
            for (size_t tap = 0; tap < of->taps; tap++)
                kernels->transpose(from + (size_t)o * of->from.out + i * of->from.in + tap * of->from.tap,
                                   to + (size_t)o * of->to.out + i * of->to.in + tap * of->to.tap);
        }
    }
}

/* Backward by data wants the inner blocks of the weights transposed. */
static enum status make_rearrange(struct conv *conv, const dnnl_memory_desc_t *wanted, const char *name)
{
    struct onednn *library = conv->library;
    if (dnnl_memory_desc_equal(&conv->weights, wanted) || make_transposition(conv, wanted))
        return STATUS_OK;
    dnnl_primitive_desc_t description = NULL;
    enum status status;
    TRY_TO(done, check(dnnl_reorder_primitive_desc_create(&description, &conv->weights, library->engine, wanted,
                                                          library->engine, library->attributes),
                       name));
    conv->rearranged_bytes = dnnl_memory_desc_get_size(wanted);
    TRY_TO(done, action_add(&conv->rearrange, library, DNNL_ARG_FROM, &conv->weights));
    TRY_TO(done, action_add(&conv->rearrange, library, DNNL_ARG_TO, wanted));
    TRY_TO(done, action_finish(&conv->rearrange, library, description, name));
done:
    if (description)
        dnnl_primitive_desc_destroy(description);
    return status;
}

static enum status make_backward_data(struct conv *conv, const struct conv_shape *shape, struct conv_layouts *layouts,
                                      const_dnnl_primitive_desc_t hint)
{
    struct onednn *library = conv->library;
    dnnl_convolution_desc_t operation;
    dnnl_memory_desc_t any_weights;
    TRY(check(dnnl_memory_desc_init_by_tag(&any_weights, 4, conv->weights.dims, dnnl_f32, dnnl_format_tag_any),
              shape->name));
    TRY(check(dnnl_convolution_backward_data_desc_init(&operation, dnnl_convolution_direct, &layouts->source,
                                                       &any_weights, &layouts->result, layouts->strides,
                                                       layouts->before, layouts->after),
              shape->name));
    dnnl_primitive_desc_t description = NULL;
    enum status status;
    TRY_TO(done, check(dnnl_primitive_desc_create(&description, &operation, library->attributes, library->engine, hint),
                       shape->name));
    const dnnl_memory_desc_t *weights = dnnl_primitive_desc_query_md(description, dnnl_query_weights_md, 0);
    TRY_TO(done, action_add(&conv->backward_data, library, DNNL_ARG_DIFF_DST, &layouts->result));
    TRY_TO(done, action_add(&conv->backward_data, library, DNNL_ARG_WEIGHTS, weights));
    TRY_TO(done, action_add(&conv->backward_data, library, DNNL_ARG_DIFF_SRC, &layouts->source));
    TRY_TO(done, action_finish(&conv->backward_data, library, description, shape->name));
    TRY_TO(done, make_rearrange(conv, weights, shape->name));
done:
    if (description)
        dnnl_primitive_desc_destroy(description);
    return status;
}

/* The arenas have exactly O * I * kh * kw elements for the weights, so a padded layout can't be native. */
static enum status describe_weights(struct conv *conv, const struct conv_shape *shape)
{
    TRY(make_layout(&conv->canonical, shape->name, dnnl_oihw, shape->out_channels, shape->in_channels, shape->kernel,
                    shape->kernel));
    conv->native = conv->weights;
    if (shape->columns)
        TRY(make_layout(&conv->native, shape->name, blocked_weights(), shape->out_channels, shape->in_channels,
                        shape->kernel, shape->kernel));
    if (dnnl_memory_desc_get_size(&conv->native) != dnnl_memory_desc_get_size(&conv->canonical))
        return fail(STATUS_INTERNAL, "layer %s: oneDNN pads its weights: channels must be multiples of %d", shape->name,
                    onednn_block());
    return STATUS_OK;
}

bool conv_same_order(const struct conv *a, const struct conv *b)
{
    return dnnl_memory_desc_equal(&a->native, &b->native) != 0;
}

enum status conv_create(struct onednn *library, const struct conv_shape *shape, struct conv **conv)
{
    *conv = NULL;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct conv)));
    struct conv *made = memory;
    made->library = library;
    struct conv_layouts layouts;
    dnnl_primitive_desc_t forward = NULL;
    enum status status;
    TRY_TO(done, make_layouts(shape, &layouts));
    TRY_TO(done, make_forward(made, shape, &layouts, &forward));
    TRY_TO(done, describe_weights(made, shape));
    if (shape->weights_gradient)
        TRY_TO(done, make_backward_weights(made, shape, &layouts, forward));
    if (shape->data_gradient)
        TRY_TO(done, make_backward_data(made, shape, &layouts, forward));
    *conv = made;
    made = NULL;
done:
    if (forward)
        dnnl_primitive_desc_destroy(forward);
    conv_destroy(made);
    return status;
}

void conv_destroy(struct conv *conv)
{
    if (!conv)
        return;
    action_release(&conv->forward);
    action_release(&conv->backward_weights);
    action_release(&conv->backward_data);
    action_release(&conv->rearrange);
    free(conv);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t conv_scratch_bytes(const struct conv *conv)
{
    return larger(larger(conv->forward.scratch_bytes, conv->backward_weights.scratch_bytes),
                  larger(conv->backward_data.scratch_bytes, conv->rearrange.scratch_bytes));
}

size_t conv_rearranged_bytes(const struct conv *conv)
{
    return conv->rearranged_bytes;
}

enum status conv_forward(struct conv *conv, const float *source, const float *weights, float *result, void *scratch)
{
    return action_run(&conv->forward, conv->library, (const void *[]){source, weights, result}, 3, scratch);
}

enum status conv_backward_weights(struct conv *conv, const float *source, const float *result_gradient,
                                  float *weights_gradient, void *scratch)
{
    return action_run(&conv->backward_weights, conv->library,
                      (const void *[]){source, result_gradient, weights_gradient}, 3, scratch);
}

enum status conv_backward_data(struct conv *conv, const float *result_gradient, const float *weights,
                               float *source_gradient, void *scratch, float *rearranged)
{
    const float *used = weights;
    if (conv->transposition.out > 0) {
        transpose(&conv->transposition, weights, rearranged);
        used = rearranged;
    } else if (conv->rearrange.primitive) {
        TRY(action_run(&conv->rearrange, conv->library, (const void *[]){weights, rearranged}, 2, scratch));
        used = rearranged;
    }
    return action_run(&conv->backward_data, conv->library, (const void *[]){result_gradient, used, source_gradient}, 3,
                      scratch);
}

/* Rare, so the primitive is made for the one run, with the library's own scratchpad. */
static enum status reorder_once(struct onednn *library, const dnnl_memory_desc_t *from_layout, const float *from,
                                const dnnl_memory_desc_t *to_layout, float *to)
{
    struct action action = {0};
    dnnl_primitive_desc_t description = NULL;
    enum status status;
    TRY_TO(done, check(dnnl_reorder_primitive_desc_create(&description, from_layout, library->engine, to_layout,
                                                          library->engine, NULL),
                       "weights reorder"));
    TRY_TO(done, action_add(&action, library, DNNL_ARG_FROM, from_layout));
    TRY_TO(done, action_add(&action, library, DNNL_ARG_TO, to_layout));
    TRY_TO(done, check(dnnl_primitive_create(&action.primitive, description), "weights reorder"));
    TRY_TO(done, action_run(&action, library, (const void *[]){from, to}, 2, NULL));
done:
    if (description)
        dnnl_primitive_desc_destroy(description);
    action_release(&action);
    return status;
}

enum status conv_weights_to_native(struct conv *conv, const float *canonical, float *native)
{
    return reorder_once(conv->library, &conv->canonical, canonical, &conv->native, native);
}

enum status conv_weights_to_canonical(struct conv *conv, const float *native, float *canonical)
{
    return reorder_once(conv->library, &conv->native, native, &conv->canonical, canonical);
}

enum status onednn_product(const struct product *product, const float *a, const float *b, float *c)
{
    size_t row_a = product->a_transposed ? product->m : product->k;
    size_t row_b = product->b_transposed ? product->k : product->n;
    return check(dnnl_sgemm(product->a_transposed ? 'T' : 'N', product->b_transposed ? 'T' : 'N',
                            (dnnl_dim_t)product->m, (dnnl_dim_t)product->n, (dnnl_dim_t)product->k, 1.0F, a,
                            (dnnl_dim_t)row_a, b, (dnnl_dim_t)row_b, product->beta, c, (dnnl_dim_t)product->n),
                 "matrix product");
}
