/* test_cuda.c - the cuda backend's host code on the fake device (fake/fake.h), against the cpu backend and itself.
 *
 * The whole module runs as the program loads it; only what needs a card is played. Tolerances are a few times what was
 * measured: f32 differs from the cpu in the order of sums alone. On a card (CHORALE_CARD=1) engines may compute by other
 * ways than plain sums (Winograd), and nothing has been measured yet: there a thousandth is asked for.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/half.h"
#include "base/profile.h"
#include "base/rng.h"
#include "comm/kernels.h"
#include "nn/optimizer.h"
#include "support_cuda.h"

static const struct update usual = {.rate = 0.02, .momentum = 0.9, .weight_decay = 1e-4};

static struct backend_request request_of(int batch, enum precision precision)
{
    return (struct backend_request){.batch = batch, .precision = precision, .deterministic = true};
}

/* ---- against the cpu ---- */

#define CARD_TOLERANCE 1e-3

/* What may be off here, where `measured` is enough on the fake device. */
static double tolerated(double measured)
{
    return on_card() ? fmax(measured, CARD_TOLERANCE) : measured;
}

static void expect_near(struct rig *cuda, struct rig *cpu, double tolerance)
{
    const struct model *model = cpu->model;
    float *ours = rig_canonical(cuda, cuda->gradients), *theirs = rig_canonical(cpu, cpu->gradients);
    for (int t = 0; t < model->tensors; t++) {
        const struct tensor *tensor = &model->tensor[t];
        const double off = distance(ours + tensor->offset, theirs + tensor->offset, tensor->count);
        cr_expect_leq(off, tolerance, "gradient of %s: %g off", tensor->name, off);
    }
    float *our_state = rig_state(cuda), *their_state = rig_state(cpu);
    const double off = distance(our_state, their_state, model->state);
    cr_expect_leq(off, tolerance, "running statistics: %g off", off);
    free(ours);
    free(theirs);
    free(our_state);
    free(their_state);
}

static void one_step(int image_size, int batch, uint64_t seed)
{
    struct model *model = small_resnet(image_size);
    const struct backend_request request = request_of(batch, PRECISION_F32);
    struct rig cpu = rig_open(model, &request, false), cuda = rig_open(model, &request, true);
    rig_fill(&cpu, seed);
    rig_fill(&cuda, seed);
    const struct step_result theirs = rig_step(&cpu), ours = rig_step(&cuda);
    cr_expect_float_eq(ours.loss, theirs.loss, tolerated(1e-6) * theirs.loss, "loss %.9g, of the cpu %.9g", ours.loss,
                       theirs.loss);
    cr_expect_eq(ours.correct, theirs.correct);
    cr_expect(ours.updates_finite && ours.forward_s > 0 && ours.backward_s > 0);
    expect_near(&cuda, &cpu, tolerated(2e-5)); /* measured: 4e-6 */
    rig_close(&cuda);
    rig_close(&cpu);
    model_destroy(model);
}

Test(cuda, every_gradient_is_that_of_the_cpu)
{
    one_step(32, 4, 3);
    one_step(20, 3, 4);
    one_step(16, 1, 5);
}

/* Losses of some steps of training, by both. */
static void train_both(enum precision precision, int image_size, int steps, double tolerance)
{
    struct model *model = small_resnet(image_size);
    struct backend_request request = request_of(6, PRECISION_F32);
    struct rig cpu = rig_open(model, &request, false);
    request.precision = precision;
    request.loss_scale = precision == PRECISION_F16 ? 1024 : 1;
    struct rig cuda = rig_open(model, &request, true);
    rig_fill(&cpu, 7);
    rig_fill(&cuda, 7);
    double first = 0, last = 0;
    for (int k = 0; k < steps; k++) {
        const struct step_result theirs = rig_step(&cpu), ours = rig_step(&cuda);
        const double off = fabs(ours.loss - theirs.loss) / theirs.loss;
        cr_expect_leq(off, tolerance, "step %d: loss %.9g, of the cpu %.9g: %g off", k, ours.loss, theirs.loss, off);
        rig_update(&cpu, &usual);
        rig_update(&cuda, &usual);
        last = ours.loss;
        first = k == 0 ? last : first;
    }
    cr_expect_lt(last, 0.8 * first, "it learns: %g, then %g", first, last);
    rig_close(&cuda);
    rig_close(&cpu);
    model_destroy(model);
}

Test(cuda, twenty_steps_of_f32_are_those_of_the_cpu)
{
    train_both(PRECISION_F32, 16, 20, tolerated(1e-5)); /* measured: 8e-7 */
}

Test(cuda, halves_train_like_the_cpu)
{
    train_both(PRECISION_BF16, 32, 8, 4e-2);  /* measured: 1.7e-2 */
    train_both(PRECISION_F16, 32, 8, 1.5e-2); /* measured: 5e-3 */
}

/* What halves lose shows in the gradients as it should: f16 has 3 bits more than bf16. */
Test(cuda, gradients_of_halves_are_as_near_as_their_digits)
{
    static const enum precision precisions[] = {PRECISION_BF16, PRECISION_F16};
    struct model *model = small_resnet(16);
    const struct backend_request request = request_of(8, PRECISION_F32);
    struct rig cpu = rig_open(model, &request, false);
    rig_fill(&cpu, 3);
    rig_step(&cpu);
    float *theirs = rig_canonical(&cpu, cpu.gradients);
    const struct tensor *last = &model->tensor[model->tensors - 2]; /* the linear layer's weights */
    double off[2];
    for (size_t k = 0; k < 2; k++) {
        struct backend_request with = request_of(8, precisions[k]);
        with.loss_scale = precisions[k] == PRECISION_F16 ? 256 : 1;
        struct rig cuda = rig_open(model, &with, true);
        rig_fill(&cuda, 3);
        rig_step(&cuda);
        float *ours = rig_canonical(&cuda, cuda.gradients);
        off[k] = distance(ours + last->offset, theirs + last->offset, last->count);
        cr_expect_lt(distance(ours, theirs, model->parameters), 0.5);
        free(ours);
        rig_close(&cuda);
    }
    cr_expect(off[0] < 3e-2 && off[1] < off[0] / 4, "bf16 %g, f16 %g off", off[0], off[1]);
    free(theirs);
    rig_close(&cpu);
    model_destroy(model);
}

/* ---- against itself ---- */

/* What five steps of training leave, of which no two see the same images. */
static uint64_t train(struct rig *rig)
{
    const struct model *model = rig->model;
    const size_t pixels = (size_t)rig->batch * 3 * (size_t)model->image_size * (size_t)model->image_size;
    uint64_t hash = 0;
    rig_fill(rig, 11);
    for (int k = 0; k < 5; k++) {
        for (size_t i = 0; i < pixels; i++)
            rig->images[i] *= -0.9F;
        const struct step_result result = rig_step(rig);
        hash = hash * 31 + fingerprint((const float *)&result.loss, 2);
        rig_update(rig, &usual);
    }
    float *parameters = rig_canonical(rig, rig->parameters), *state = rig_state(rig);
    hash = hash * 31 + fingerprint(parameters, model->parameters);
    hash = hash * 31 + fingerprint(state, model->state);
    free(parameters);
    free(state);
    return hash;
}

/* The same with a backend of its own. */
static uint64_t trained(const char *words, const struct backend_request *request, struct text *description)
{
    struct model *model = small_resnet(16);
    fake_control()->configure(words);
    struct rig rig = rig_open(model, request, true);
    const uint64_t hash = train(&rig);
    if (description != NULL)
        rig.ops->describe(rig.backend, description);
    rig_close(&rig);
    model_destroy(model);
    return hash;
}

Test(cuda, bits_depend_on_no_order_of_queues_and_on_no_graph)
{
    struct backend_request request = request_of(3, PRECISION_F32);
    struct text text = {0};
    const uint64_t bits = trained("seed=1", &request, &text);
    cr_expect_eq(fake_control()->graphs(), 2 * 3, "forward and backward are replayed from the third step on");
    cr_expect_not_null(strstr(text_string(&text), "fake device"));
    cr_expect_not_null(strstr(text_string(&text), "f32, deterministic, graphs"));
    for (int seed = 2; seed < 5; seed++) {
        char words[32];
        snprintf(words, sizeof words, "seed=%d", seed);
        cr_expect_eq(trained(words, &request, NULL), bits, "%s", words);
    }
    text_clear(&text);
    cr_expect_eq(trained("refuse-capture", &request, &text), bits, "without graphs");
    cr_expect_eq(fake_control()->graphs(), 0);
    cr_expect_not_null(strstr(text_string(&text), "no graphs (device cuda: a capture: "), "%s", text_string(&text));
    request.legacy = true;
    text_clear(&text);
    cr_expect_eq(trained("", &request, &text), bits, "legacy convolutions");
    cr_expect_not_null(strstr(text_string(&text), "legacy convolutions"));
    text_release(&text);
}

Test(cuda, waits_after_each_node_change_nothing)
{
    const struct backend_request request = request_of(3, PRECISION_BF16);
    struct text text = {0};
    const uint64_t bits = trained("", &request, NULL);
    cr_assert_eq(setenv("CHORALE_CUDA_SYNC", "1", 1), 0);
    cr_expect_eq(trained("", &request, &text), bits);
    cr_expect_not_null(strstr(text_string(&text), "no graphs (CHORALE_CUDA_SYNC)"), "%s", text_string(&text));
    text_release(&text);
}

/* Engines that were timed may add up in other orders on a card; the fake ones don't. */
Test(cuda, timed_convolutions_compute_the_same)
{
    struct backend_request request = request_of(3, PRECISION_F16);
    const uint64_t bits = trained("", &request, NULL);
    request.deterministic = false;
    request.workspace = 1 << 20;
    cr_expect_eq(trained("", &request, NULL), bits);
}

static void take_note(void *context, const char *line)
{
    text_add(context, line);
    text_add(context, "\n");
}

/* Before training: nothing is replayed yet, and nobody's gradient is half done. */
Test(cuda, an_engine_that_fails_is_replaced_by_the_next)
{
    struct text notes = {0};
    struct backend_request request = request_of(3, PRECISION_F16);
    const uint64_t bits = trained("", &request, NULL);
    request.note = take_note;
    request.note_context = &notes;
    cr_expect_eq(trained("fail=1", &request, NULL), bits);
    cr_expect_not_null(strstr(text_string(&notes), "stem.conv, forward: engine "), "%s", text_string(&notes));
    cr_expect_not_null(strstr(text_string(&notes), "the next one is taken"));
    text_release(&notes);
}

Test(cuda, a_remembered_engine_that_fails_is_corrected_in_the_file)
{
    struct text notes = {0};
    char path[64], lock[72], *before = NULL, *after = NULL;
    size_t length = 0;
    snprintf(path, sizeof path, "/tmp/chorale-test-cuda-%ld", (long)getpid());
    snprintf(lock, sizeof lock, "%s.lock", path);
    unlink(path); /* of a run that crashed */
    struct backend_request request = request_of(3, PRECISION_F16);
    const uint64_t bits = trained("", &request, NULL);
    request.deterministic = false;
    request.engines = path;
    request.note = take_note;
    request.note_context = &notes;
    cr_expect_eq(trained("", &request, NULL), bits);
    OK(file_read(path, 1 << 20, &before, &length));
    const uint64_t measuring = fake_control()->executions();
    cr_expect_eq(trained("", &request, NULL), bits);
    cr_expect_lt(fake_control()->executions(), measuring, "nothing is timed again");
    cr_expect_eq(notes.length, 0);
    cr_expect_eq(trained("fail=1", &request, NULL), bits);
    cr_expect_not_null(strstr(text_string(&notes), "it is forgotten, another one is chosen"));
    OK(file_read(path, 1 << 20, &after, &length));
    cr_expect_str_neq(after, before);
    free(before);
    free(after);
    text_release(&notes);
    unlink(path);
    unlink(lock);
}

/* The event between the copies of a batch and its use is there for a reason. */
Test(cuda, a_missing_wait_shows)
{
    enum { SEEDS = 40, WAITS = 5 };
    struct model *model = small_resnet(16);
    const struct backend_request request = request_of(2, PRECISION_F32);
    struct rig rig = rig_open(model, &request, true);
    const size_t velocity = model->parameters * sizeof(float);
    void *zeros = calloc(1, velocity);
    fake_control()->configure("");
    const uint64_t bits = train(&rig);
    cr_assert_eq(fake_control()->waits(), WAITS, "one a step");
    for (int drop = 1; drop <= WAITS; drop++) {
        bool noticed = false;
        for (int seed = 1; seed < SEEDS && !noticed; seed++) {
            char words[64];
            snprintf(words, sizeof words, "seed=%d drop=%d", seed, drop);
            OK(rig.device->ops->copy(rig.device->ops->compute(rig.device), rig.velocity, zeros, velocity));
            fake_control()->configure(words);
            noticed = train(&rig) != bits;
        }
        cr_expect(noticed, "wait %d of %d is needed by nobody", drop, WAITS);
    }
    free(zeros);
    rig_close(&rig);
    model_destroy(model);
}

/* ---- steps in flight ---- */

Test(cuda, two_steps_are_under_way_and_no_more)
{
    struct model *model = small_resnet(16);
    const struct backend_request request = request_of(2, PRECISION_F32);
    struct rig rig = rig_open(model, &request, true);
    struct step_result one, other, result;
    rig_fill(&rig, 2);
    const struct batch batch = rig_batch(&rig, 2);
    cr_expect_eq(rig.ops->collect(rig.backend, &result), STATUS_INTERNAL);
    OK(rig.ops->step(rig.backend, rig.parameters, rig.state, &batch, rig.gradients, NULL));
    rig_update(&rig, &usual);
    OK(rig.ops->step(rig.backend, rig.parameters, rig.state, &batch, rig.gradients, NULL));
    cr_expect_eq(rig.ops->step(rig.backend, rig.parameters, rig.state, &batch, rig.gradients, NULL), STATUS_INTERNAL);
    struct evaluation sum;
    cr_expect_eq(rig.ops->evaluate(rig.backend, rig.parameters, rig.state, &batch, &sum), STATUS_INTERNAL);
    OK(rig.ops->collect(rig.backend, &one));
    OK(rig.ops->collect(rig.backend, &other));
    cr_expect_eq(rig.ops->collect(rig.backend, &result), STATUS_INTERNAL);

    rig_fill(&rig, 2); /* the same, one after the other */
    result = rig_step(&rig);
    cr_expect_eq(result.loss, one.loss, "to the bit");
    cr_expect_neq(one.loss, other.loss, "the second step saw the update");
    rig_close(&rig);
    model_destroy(model);
}

/* As double-buffered training has it: graphs know whose gradients they write. */
Test(cuda, two_arenas_of_gradients_take_turns)
{
    struct model *model = small_resnet(16);
    const struct backend_request request = request_of(2, PRECISION_F32);
    struct rig rig = rig_open(model, &request, true);
    float *zeros = calloc(model->parameters, sizeof *zeros), *gradients[2] = {NULL, NULL};
    cr_assert_not_null(zeros);
    rig_fill(&rig, 2);
    for (int k = 0; k < 10; k++) {
        if (k == 8) { /* all captured */
            OK(rig.ops->to_native(rig.backend, zeros, rig.gradients));
            OK(rig.ops->to_native(rig.backend, zeros, rig.velocity));
        }
        rig_step(&rig);
        if (k >= 8)
            gradients[k - 8] = rig_canonical(&rig, rig.gradients);
        float *other = rig.velocity; /* an arena like any other: nothing is updated here */
        rig.velocity = rig.gradients;
        rig.gradients = other;
    }
    cr_expect_neq(fingerprint(gradients[0], model->parameters), fingerprint(zeros, model->parameters));
    cr_expect_arr_eq(gradients[0], gradients[1], model->parameters * sizeof *zeros);
    for (int k = 0; k < 2; k++)
        free(gradients[k]);
    free(zeros);
    rig_close(&rig);
    model_destroy(model);
}

Test(cuda, a_batch_may_be_written_over_once_it_is_collected)
{
    struct model *model = small_resnet(16);
    const struct backend_request request = request_of(2, PRECISION_F32);
    const size_t bytes = 2 * 3 * 16 * 16 * sizeof(float);
    double loss[2][3];
    for (int lagging = 0; lagging < 2; lagging++) {
        struct rig rig = rig_open(model, &request, true);
        void *memory[2] = {NULL, NULL};
        rig_fill(&rig, 2);
        for (int k = 0; k < 2; k++)
            OK(rig.device->ops->host_alloc(rig.device, bytes, &memory[k]));
        for (int k = 0; k < 3 + lagging; k++) {
            float *images = memory[k % 2];
            struct batch batch = rig_batch(&rig, 2);
            batch.canonical = images;
            for (size_t i = 0; i < bytes / sizeof(float); i++)
                images[i] = rig.images[i] * (float)(k + 1);
            struct step_result result;
            if (k < 3)
                OK(rig.ops->step(rig.backend, rig.parameters, rig.state, &batch, rig.gradients, NULL));
            if (k >= lagging) {
                OK(rig.ops->collect(rig.backend, &result));
                loss[lagging][k - lagging] = result.loss;
            }
        }
        for (int k = 0; k < 2; k++)
            rig.device->ops->host_free(rig.device, memory[k]);
        rig_close(&rig);
    }
    cr_expect_arr_eq(loss[0], loss[1], sizeof loss[0]);
    model_destroy(model);
}

/* ---- who is told of gradients ---- */

enum { CUTS_MOST = 64 };

struct told {
    struct rig *rig;
    float *pinned;      /* what was complete when it was told, from each offset on, read by the compute queue */
    size_t end, calls;  /* of the part that comes next */
    uint64_t plans[64]; /* put by then */
};

/* An arena as it lies there. */
static float *native_bits(struct rig *rig, const float *arena)
{
    const struct device_ops *ops = rig->device->ops;
    const size_t bytes = rig->model->parameters * sizeof(float);
    struct device_event *done = NULL;
    void *pinned = NULL, *values = malloc(bytes);
    cr_assert_not_null(values);
    OK(ops->host_alloc(rig->device, bytes, &pinned));
    OK(ops->event_create(rig->device, &done));
    OK(ops->copy(ops->compute(rig->device), pinned, arena, bytes));
    OK(ops->record(ops->compute(rig->device), done));
    OK(ops->wait(done));
    memcpy(values, pinned, bytes);
    ops->event_destroy(done);
    ops->host_free(rig->device, pinned);
    return values;
}

/* The queue reads the part now: whatever is put later can't help it. */
static enum status told_of(void *context, size_t offset)
{
    struct told *told = context;
    struct device *device = told->rig->device;
    cr_assert_lt(offset, told->end);
    OK(device->ops->copy(device->ops->compute(device), told->pinned + offset, told->rig->gradients + offset,
                         (told->end - offset) * sizeof(float)));
    told->end = offset;
    told->plans[told->calls++] = fake_control()->executions();
    return STATUS_OK;
}

Test(cuda, gradients_are_complete_where_the_watch_is_told)
{
    struct model *model = small_resnet(16);
    const struct backend_request request = request_of(2, PRECISION_F32);
    const size_t bytes = model->parameters * sizeof(float);
    size_t cut[CUTS_MOST], cuts = 0;
    for (int t = model->tensors - 1; t > 0 && cuts < CUTS_MOST; t--)
        cut[cuts++] = model->tensor[t].offset;
    fake_control()->configure("seed=5");
    struct rig rig = rig_open(model, &request, true);
    void *memory = NULL;
    OK(rig.device->ops->host_alloc(rig.device, bytes, &memory));
    rig_fill(&rig, 2);
    rig_step(&rig);
    float *whole = native_bits(&rig, rig.gradients);
    struct told told = {.rig = &rig, .pinned = memory};
    const struct gradient_watch watch = {.context = &told, .ready = told_of, .cut = cut, .cuts = cuts};
    const struct batch batch = rig_batch(&rig, 2);
    for (int k = 0; k < 5; k++) { /* the last ones are replayed */
        struct step_result result;
        memset(told.pinned, 0, bytes);
        told.end = model->parameters;
        told.calls = 0;
        const uint64_t graphs = fake_control()->graphs();
        OK(rig.ops->step(rig.backend, rig.parameters, rig.state, &batch, rig.gradients, &watch));
        OK(rig.ops->collect(rig.backend, &result));
        cr_expect_eq(told.end, 0);
        cr_expect(told.calls > 3 && told.calls <= 13, "in %zu parts", told.calls);
        cr_expect_arr_eq(told.pinned, whole, bytes);
        if (k == 0)
            cr_expect_lt(told.plans[0], told.plans[told.calls - 1], "most of backward is put after the first part");
        if (k == 4)
            cr_expect_eq(fake_control()->graphs() - graphs, 1 + told.calls, "forward, and each part");
    }
    free(whole);
    rig.device->ops->host_free(rig.device, memory);
    rig_close(&rig);
    model_destroy(model);
}

/* ---- evaluation ---- */

Test(cuda, evaluation_is_that_of_the_cpu_for_any_count)
{
    struct model *model = small_resnet(16);
    struct backend_request request = request_of(5, PRECISION_F32);
    request.label_smoothing = 0.2; /* of training alone */
    struct rig cpu = rig_open(model, &request, false), cuda = rig_open(model, &request, true);
    rig_fill(&cpu, 9);
    rig_fill(&cuda, 9);
    const double of_cpu = rig_step(&cpu).loss, of_cuda = rig_step(&cuda).loss; /* statistics are not the first ones */
    cr_expect_float_eq(of_cuda, of_cpu, 1e-6 * of_cpu, "with smoothed labels: %.9g, of the cpu %.9g", of_cuda, of_cpu);
    expect_near(&cuda, &cpu, 2e-5);
    float *before = rig_state(&cuda);
    for (int count = 1; count <= 5; count++) {
        struct evaluation ours, theirs;
        struct batch batch = rig_batch(&cpu, count);
        OK(cpu.ops->evaluate(cpu.backend, cpu.parameters, cpu.state, &batch, &theirs));
        batch = rig_batch(&cuda, count);
        OK(cuda.ops->evaluate(cuda.backend, cuda.parameters, cuda.state, &batch, &ours));
        cr_expect_float_eq(ours.loss_sum, theirs.loss_sum, 1e-5 * theirs.loss_sum, "%d images: %.9g, of the cpu %.9g",
                           count, ours.loss_sum, theirs.loss_sum);
        cr_expect_eq(ours.top1, theirs.top1);
        cr_expect_eq(ours.top5, theirs.top5);
    }
    float *after = rig_state(&cuda);
    cr_expect_arr_eq(before, after, model->state * sizeof *before);
    free(before);
    free(after);
    rig_close(&cuda);
    rig_close(&cpu);
    model_destroy(model);
}

/* ---- stored images ---- */

/* Bilinear, centres of pixels; pixels outside of the box are not read. */
static float sample(const uint8_t *image, const struct image_box *box, int width, int x, int y, int size)
{
    const double u = ((box->flip ? size - 1 - x : x) + 0.5) * (double)box->width / size - 0.5;
    const double v = (y + 0.5) * (double)box->height / size - 0.5;
    const double column = fmin(fmax(u, 0), (double)box->width - 1), row = fmin(fmax(v, 0), (double)box->height - 1);
    const int left = (int)column, top = (int)row;
    const int right = left + 1 < (int)box->width ? left + 1 : left;
    const int bottom = top + 1 < (int)box->height ? top + 1 : top;
    const double a = column - left, b = row - top;
#define AT(r, c) ((double)image[((int)box->top + (r)) * width + (int)box->left + (c)])
    const double value = (1 - b) * ((1 - a) * AT(top, left) + a * AT(top, right)) +
                         b * ((1 - a) * AT(bottom, left) + a * AT(bottom, right));
#undef AT
    return (float)((value / 255 - 0.3) / 0.4);
}

Test(cuda, stored_images_are_resized_on_the_device)
{
    enum { BATCH = 3, HEIGHT = 12, WIDTH = 14, SIZE = 16 };
    static const struct image_box boxes[BATCH] = {
        {0, 0, WIDTH, HEIGHT, false}, {0, 0, WIDTH, HEIGHT, true}, {3, 2, 8, 9, false}};
    struct model *model = small_resnet(SIZE);
    const struct backend_request request = request_of(BATCH, PRECISION_F32);
    struct rig rig = rig_open(model, &request, true);
    void *bytes = NULL;
    rig_fill(&rig, 6);
    OK(rig.device->ops->host_alloc(rig.device, BATCH * HEIGHT * WIDTH, &bytes));
    uint8_t *pixels = bytes;
    for (int i = 0; i < BATCH * HEIGHT * WIDTH; i++)
        pixels[i] = (uint8_t)(i * 89 % 256);
    for (int n = 0; n < BATCH; n++) {
        for (int i = 0; i < 3 * SIZE * SIZE; i++)
            rig.images[n * 3 * SIZE * SIZE + i] =
                sample(pixels + n * HEIGHT * WIDTH, &boxes[n], WIDTH, i % SIZE, i / SIZE % SIZE, SIZE);
    }
    const struct stored_images stored = {.bytes = pixels,
                                         .height = HEIGHT,
                                         .width = WIDTH,
                                         .channels = 1,
                                         .box = boxes,
                                         .mean = {0.3F, 0.3F, 0.3F},
                                         .deviation = {0.4F, 0.4F, 0.4F}};
    struct batch batch = rig_batch(&rig, BATCH);
    struct evaluation ours, theirs;
    OK(rig.ops->evaluate(rig.backend, rig.parameters, rig.state, &batch, &theirs));
    batch.canonical = NULL;
    batch.stored = &stored;
    OK(rig.ops->evaluate(rig.backend, rig.parameters, rig.state, &batch, &ours));
    cr_expect_float_eq(ours.loss_sum, theirs.loss_sum, 1e-5 * theirs.loss_sum, "%.9g, resized here %.9g", ours.loss_sum,
                       theirs.loss_sum);
    batch.stored = NULL;
    cr_expect_eq(rig.ops->evaluate(rig.backend, rig.parameters, rig.state, &batch, &ours), STATUS_INTERNAL);
    rig.device->ops->host_free(rig.device, bytes);
    rig_close(&rig);
    model_destroy(model);
}

/* ---- parameters ---- */

Test(cuda, orders_of_parameters_keep_every_bit)
{
    struct model *model = small_resnet(16);
    const struct backend_request request = request_of(1, PRECISION_BF16);
    struct rig rig = rig_open(model, &request, true);
    uint32_t *canonical = malloc(model->parameters * sizeof *canonical);
    cr_assert_not_null(canonical);
    for (size_t i = 0; i < model->parameters; i++)
        canonical[i] = (uint32_t)rng_u64(1, i); /* NaN of every kind among them */
    OK(rig.ops->to_native(rig.backend, (const float *)canonical, rig.parameters));
    float *back = rig_canonical(&rig, rig.parameters);
    cr_expect_arr_eq(back, canonical, model->parameters * sizeof *canonical);
    free(back);
    free(canonical);
    rig_close(&rig);
    model_destroy(model);
}

static float *random_floats(size_t count, uint64_t key)
{
    float *values = malloc(count * sizeof *values);
    cr_assert_not_null(values);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)rng_normal(key, i);
    return values;
}

static void expect_bits_of_the_optimizer(const struct optimizer_settings *settings)
{
    const struct update by = {.rate = usual.rate,
                              .momentum = settings->momentum,
                              .weight_decay = settings->weight_decay,
                              .norm_decay = settings->norm_decay,
                              .bias_decay = settings->bias_decay,
                              .nesterov = settings->rule == UPDATE_NESTEROV};
    struct model *model = small_resnet(16);
    const struct backend_request request = request_of(1, PRECISION_BF16);
    struct rig rig = rig_open(model, &request, true);
    struct optimizer *optimizer = NULL;
    OK(optimizer_create(model, settings, NULL, &optimizer));
    float *parameters = random_floats(model->parameters, 1);
    OK(rig.ops->to_native(rig.backend, parameters, rig.parameters));
    bool finite = true;
    for (uint64_t k = 0; k < 3; k++) {
        float *gradient = random_floats(model->parameters, 2 + k);
        OK(rig.ops->to_native(rig.backend, gradient, rig.gradients));
        rig_update(&rig, &by);
        OK(optimizer_step(optimizer, usual.rate, gradient, parameters, &finite));
        free(gradient);
    }
    float *ours = rig_canonical(&rig, rig.parameters);
    cr_expect_arr_eq(ours, parameters, model->parameters * sizeof *ours);
    OK(rig.ops->updates_finite(rig.backend, &finite));
    cr_expect(finite);

    parameters[model->parameters - 1] = INFINITY;
    OK(rig.ops->to_native(rig.backend, parameters, rig.gradients));
    rig_update(&rig, &by);
    OK(rig.ops->updates_finite(rig.backend, &finite));
    cr_expect_not(finite);
    rig_fill(&rig, 1);
    cr_expect_not(rig_step(&rig).updates_finite, "what was read stays read");
    optimizer_destroy(optimizer);
    free(parameters);
    free(ours);
    rig_close(&rig);
    model_destroy(model);
}

Test(cuda, the_update_has_the_bits_of_the_optimizer)
{
    expect_bits_of_the_optimizer(
        &(struct optimizer_settings){.momentum = usual.momentum, .weight_decay = usual.weight_decay});
    expect_bits_of_the_optimizer(&(struct optimizer_settings){
        .rule = UPDATE_NESTEROV, .momentum = 0.9, .weight_decay = 0.01, .norm_decay = 0.02, .bias_decay = 0.03});
}

/* One tensor's LARS in double precision. */
Test(cuda, lars_adapts_the_rate_of_each_tensor)
{
    const struct update lars = {.rate = 0.5, .momentum = 0, .weight_decay = 1e-2, .trust = 0.1};
    struct model *model = small_resnet(16);
    const struct backend_request request = request_of(1, PRECISION_F32);
    struct rig rig = rig_open(model, &request, true);
    float *parameters = random_floats(model->parameters, 1), *gradient = random_floats(model->parameters, 2);
    OK(rig.ops->to_native(rig.backend, parameters, rig.parameters));
    OK(rig.ops->to_native(rig.backend, gradient, rig.gradients));
    rig_update(&rig, &lars);
    float *ours = rig_canonical(&rig, rig.parameters);
    for (int t = 0; t < model->tensors; t++) {
        const struct tensor *tensor = &model->tensor[t];
        const float *w = parameters + tensor->offset, *g = gradient + tensor->offset;
        double of_w = 0, of_g = 0;
        for (size_t i = 0; i < tensor->count; i++) {
            of_w += (double)w[i] * (double)w[i];
            of_g += (double)g[i] * (double)g[i];
        }
        const double decay = tensor->decays ? lars.weight_decay : 0;
        const double local = tensor->decays ? lars.trust * sqrt(of_w) / (sqrt(of_g) + decay * sqrt(of_w)) : 1;
        const double expected = (double)w[0] - lars.rate * local * ((double)g[0] + decay * (double)w[0]);
        cr_expect_float_eq((double)ours[tensor->offset], expected, 1e-5, "%s: %g, not %g", tensor->name,
                           (double)ours[tensor->offset], expected);
    }
    free(ours);
    free(parameters);
    free(gradient);
    rig_close(&rig);
    model_destroy(model);
}

/* ---- layer times ---- */

Test(cuda, the_profile_leaves_training_as_it_was)
{
    struct model *model = small_resnet(16);
    const struct backend_request request = request_of(2, PRECISION_F32);
    struct rig rig = rig_open(model, &request, true);
    struct text text = {0};
    rig_fill(&rig, 2);
    cr_expect_eq(rig.ops->profile(rig.backend, &text), STATUS_REFUSED);
    rig_step(&rig);
    float *state = rig_state(&rig), *gradients = rig_canonical(&rig, rig.gradients);
    OK(rig.ops->profile(rig.backend, &text));
    struct profile profile;
    OK(profile_parse(text_string(&text), "profile", &profile));
    cr_expect_eq(profile.layers, (size_t)model->layers);
    cr_expect_eq(profile.batch, 2);
    double forward = 0, backward = 0;
    for (size_t k = 0; k < profile.layers; k++) {
        forward += profile.layer[k].forward_s;
        backward += profile.layer[k].backward_s;
    }
    cr_expect(forward > 0 && backward > 0, "%g and %g s", forward, backward);
    float *state_after = rig_state(&rig), *gradients_after = rig_canonical(&rig, rig.gradients);
    cr_expect_arr_eq(state, state_after, model->state * sizeof *state);
    cr_expect_arr_eq(gradients, gradients_after, model->parameters * sizeof *gradients);
    profile_release(&profile);
    text_release(&text);
    free(state);
    free(state_after);
    free(gradients);
    free(gradients_after);
    rig_close(&rig);
    model_destroy(model);
}

/* ---- what goes wrong ---- */

static void expect_refusal(const char *words, int number, enum status status, const char *why)
{
    struct device *device = NULL;
    fake_control()->configure(words);
    cr_expect_eq(cuda_module()->open(&(struct device_request){.number = number}, &device), status, "%s: %s", words,
                 status_message());
    cr_expect_null(device);
    cr_expect_not_null(strstr(status_message(), why), "%s: %s", words, status_message());
}

Test(cuda, opening_tells_what_is_missing)
{
    expect_refusal("driver=0", 0, STATUS_UNAVAILABLE, "no NVIDIA driver on this machine");
    expect_refusal("driver=12040", 0, STATUS_UNAVAILABLE, "is for CUDA 12.4, this build is for 13.0");
    expect_refusal("cards=0", 0, STATUS_UNAVAILABLE, "finds no card");
    expect_refusal("capability=75", 0, STATUS_UNAVAILABLE, "compute capability 7.5: 8.0 or newer");
    expect_refusal("cards=2", 2, STATUS_USAGE, "cards 0 to 1 are here");
    struct device *device = NULL;
    fake_control()->configure("cards=2");
    OK(cuda_module()->open(&(struct device_request){.number = -1, .local_rank = 3}, &device));
    cr_expect_eq(device->number, 1);
    device->ops->close(device);
}

Test(cuda, requests_that_make_no_sense_are_refused)
{
    struct model *model = small_resnet(16);
    struct device *device = NULL;
    struct backend *backend = NULL;
    const struct backend_ops *ops = cuda_module()->backend;
    OK(cuda_module()->open(&(struct device_request){.number = 0}, &device));
    const struct backend_request good = {.model = model, .batch = 2, .device = device};
    struct backend_request bad[5];
    for (size_t k = 0; k < 5; k++)
        bad[k] = good;
    bad[0].batch = 0;
    bad[1].loss_scale = 2; /* of f32 */
    bad[2].precision = PRECISION_F16;
    bad[2].loss_scale = 3;
    bad[3].label_smoothing = 1;
    bad[4].device = NULL;
    for (size_t k = 0; k < 5; k++) {
        cr_expect_lt(ops->open(&bad[k], &backend), 0, "request %zu", k);
        cr_expect_null(backend);
    }
    ops->close(NULL);
    device->ops->close(device);
    model_destroy(model);
}

Test(cuda, labels_and_boxes_are_checked)
{
    struct model *model = small_resnet(16);
    const struct backend_request request = request_of(2, PRECISION_F32);
    struct rig rig = rig_open(model, &request, true);
    rig_fill(&rig, 1);
    struct batch batch = rig_batch(&rig, 2);
    rig.labels[1] = 10;
    cr_expect_eq(rig.ops->step(rig.backend, rig.parameters, rig.state, &batch, rig.gradients, NULL), STATUS_FORMAT);
    rig.labels[1] = 9;
    batch.count = 1;
    cr_expect_eq(rig.ops->step(rig.backend, rig.parameters, rig.state, &batch, rig.gradients, NULL), STATUS_INTERNAL);
    const struct image_box outside[2] = {{0, 0, 4, 4, false}, {1, 0, 4, 4, false}};
    static const uint8_t pixels[2 * 4 * 4];
    const struct stored_images stored = {.bytes = pixels, .height = 4, .width = 4, .channels = 1, .box = outside};
    batch = (struct batch){.count = 2, .stored = &stored, .labels = rig.labels};
    cr_expect_eq(rig.ops->step(rig.backend, rig.parameters, rig.state, &batch, rig.gradients, NULL), STATUS_FORMAT);
    rig_close(&rig);
    model_destroy(model);
}

/* Wherever memory ends while a backend opens, all of it is given back, with one line. */
Test(cuda, a_card_that_is_too_small_keeps_nothing)
{
    struct model *model = small_resnet(64);
    struct device *device = NULL;
    struct backend *backend = NULL;
    OK(cuda_module()->open(&(struct device_request){.number = 0}, &device));
    const size_t before = fake_control()->allocated();
    const struct backend_request request = {.model = model, .batch = 64, .device = device, .deterministic = true};
    for (int megabytes = 0; megabytes < 70; megabytes += 17) {
        char words[32];
        snprintf(words, sizeof words, "megabytes=%d", megabytes);
        fake_control()->configure(words);
        cr_expect_eq(cuda_module()->backend->open(&request, &backend), STATUS_NO_MEMORY, "%s: %s", words,
                     status_message());
        cr_expect_eq(fake_control()->allocated(), before, "%s", words);
        cr_expect_not_null(strstr(status_message(), "MiB are wanted"), "%s", status_message());
    }
    device->ops->close(device);
    model_destroy(model);
}

Test(cuda, everything_is_given_back)
{
    const struct backend_request request = request_of(2, PRECISION_F16);
    (void)cuda_module();
    const size_t before = fake_control()->allocated();
    trained("", &request, NULL);
    cr_expect_eq(fake_control()->allocated(), before);
}

/* ---- beside other threads ---- */

struct allocator {
    struct device *device;
    enum status status;
    int done;
};

static void *allocate_and_free(void *context)
{
    struct allocator *allocator = context;
    void *memory = NULL;
    allocator->status = allocator->device->ops->alloc(allocator->device, 64, &memory);
    allocator->device->ops->free(allocator->device, memory);
    return NULL;
}

static void allocate_in_a_thread(void *context)
{
    struct allocator *allocator = context;
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, allocate_and_free, allocator), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_expect_eq(allocator->status, STATUS_OK);
    allocator->done++;
}

/* As a comm's thread does for the exchange of the step before. */
Test(cuda, memory_is_taken_while_another_thread_captures)
{
    struct model *model = small_resnet(16);
    const struct backend_request request = request_of(2, PRECISION_F32);
    struct rig rig = rig_open(model, &request, true);
    struct allocator allocator = {.device = rig.device};
    struct text text = {0};
    fake_control()->configure("");
    fake_control()->at_capture(allocate_in_a_thread, &allocator);
    rig_fill(&rig, 3);
    for (int k = 0; k < 4; k++)
        (void)rig_step(&rig);
    fake_control()->at_capture(NULL, NULL);
    cr_expect_eq(allocator.done, 2, "forward and backward");
    rig.ops->describe(rig.backend, &text);
    cr_expect_not_null(strstr(text_string(&text), ", graphs"), "%s", text_string(&text));
    cr_expect_eq(fake_control()->graphs(), 4, "of two steps");
    text_release(&text);
    rig_close(&rig);
    model_destroy(model);
}

/* Once it is under way, training waits for events alone. */
Test(cuda, no_step_waits_for_more_than_its_result)
{
    struct model *model = small_resnet(16);
    const struct backend_request request = request_of(2, PRECISION_F32);
    const struct update update = {.rate = 0.1, .momentum = 0.9, .weight_decay = 1e-4, .trust = 0.01};
    struct rig rig = rig_open(model, &request, true);
    rig_fill(&rig, 3);
    fake_control()->configure("");
    for (int k = 0; k < 5; k++) {
        if (k == 2) {
            cr_expect_gt(fake_control()->stalls(), 0, "each slot takes memory at its first step");
            fake_control()->configure("");
        }
        (void)rig_step(&rig);
        rig_update(&rig, &update);
    }
    cr_expect_eq(fake_control()->stalls(), 0);
    rig_close(&rig);
    model_destroy(model);
}

/* ---- the device's own operations ---- */

static void device_wait(struct device *device, struct device_queue *queue)
{
    struct device_event *event = NULL;
    OK(device->ops->event_create(device, &event));
    OK(device->ops->record(queue, event));
    OK(device->ops->wait(event));
    device->ops->event_destroy(event);
}

Test(cuda, chains_have_the_bits_of_pairs)
{
    enum { COUNT = 1003, TERMS = DEVICE_TERMS };
    struct device *device = NULL;
    struct device_queue *queue = NULL;
    OK(cuda_module()->open(&(struct device_request){.number = 0}, &device));
    const struct device_ops *ops = device->ops;
    OK(ops->queue_create(device, &queue));
    float *host[TERMS + 1], *expected = malloc(COUNT * sizeof *expected), *got = malloc(COUNT * sizeof *got);
    void *memory[TERMS + 2];
    struct device_term term[TERMS];
    for (int k = 0; k < TERMS + 2; k++)
        OK(ops->alloc(device, COUNT * sizeof(float), &memory[k]));
    for (int k = 0; k <= TERMS; k++) {
        host[k] = random_floats(COUNT, 40 + (uint64_t)k);
        OK(ops->copy(queue, memory[k], host[k], COUNT * sizeof(float)));
    }
    memcpy(expected, host[0], COUNT * sizeof *expected);
    for (int k = 0; k < TERMS; k++) {
        term[k] = (struct device_term){.data = memory[k + 1], .divisor = k % 7 == 6 || k == TERMS - 1 ? 3 : 1};
        kernel_reduce(DTYPE_F32, REDUCE_AVG, expected, expected, host[k + 1], COUNT, term[k].divisor);
    }
    OK(ops->reduce(queue, DTYPE_F32, REDUCE_AVG, memory[TERMS + 1], memory[0], term, TERMS, COUNT));
    OK(ops->copy(queue, got, memory[TERMS + 1], COUNT * sizeof *got));
    cr_expect_arr_eq(got, expected, COUNT * sizeof *got);

    memcpy(expected, host[0], COUNT * sizeof *expected);
    for (int k = 0; k < 3; k++) {
        term[k].weight = 0.25 + 0.1 * k;
        kernel_axpy(DTYPE_F32, expected, expected, host[k + 1], term[k].weight, COUNT);
    }
    OK(ops->mix(queue, DTYPE_F32, memory[0], memory[0], term, 3, COUNT));
    OK(ops->scale(queue, DTYPE_F32, memory[0], memory[0], 0.3, COUNT));
    kernel_scale(DTYPE_F32, expected, expected, 0.3, COUNT);
    OK(ops->divide(queue, DTYPE_F32, memory[0], memory[0], 7, COUNT));
    kernel_divide(DTYPE_F32, expected, expected, 7, COUNT);
    OK(ops->copy(queue, got, memory[0], COUNT * sizeof *got));
    device_wait(device, queue);
    cr_expect_arr_eq(got, expected, COUNT * sizeof *got);

    uint16_t halves[COUNT];
    OK(ops->convert(queue, DTYPE_F16, memory[1], DTYPE_F32, memory[0], COUNT));
    OK(ops->copy(queue, halves, memory[1], sizeof halves));
    f16_decode(got, halves, COUNT);
    for (int i = 0; i < COUNT; i++)
        cr_expect_eq(halves[i], f16_from_f32(expected[i]));
    for (int k = 0; k < TERMS + 2; k++)
        ops->free(device, memory[k]);
    for (int k = 0; k <= TERMS; k++)
        free(host[k]);
    free(expected);
    free(got);
    ops->queue_destroy(queue);
    ops->close(device);
}

Test(cuda, queues_go_before_the_one_that_computes)
{
    struct device *device = NULL;
    struct device_queue *queue = NULL;
    OK(cuda_module()->open(&(struct device_request){.number = 0}, &device));
    const struct device_ops *ops = device->ops;
    OK(ops->queue_create(device, &queue));
    cr_expect_lt(fake_control()->priority(ops->native(queue)),
                 fake_control()->priority(ops->native(ops->compute(device))));
    ops->queue_destroy(queue);
    ops->close(device);
}

/* A queue waits for what the event stood for when the wait was put: neither for less, where it is recorded anew in a queue
 * that comes sooner, nor for more, where that comes after the wait itself. */
Test(cuda, a_wait_is_for_the_recording_of_its_time)
{
    enum { SEEDS = 250, BYTES = 64 };
    struct device *device = NULL;
    struct device_queue *first = NULL, *other = NULL;
    struct device_event *again = NULL, *passed = NULL;
    void *memory = NULL, *from = NULL, *to = NULL;
    OK(cuda_module()->open(&(struct device_request){.number = 0}, &device));
    const struct device_ops *ops = device->ops;
    struct device_queue *compute = ops->compute(device);
    OK(ops->queue_create(device, &first));
    OK(ops->queue_create(device, &other));
    OK(ops->event_create(device, &again));
    OK(ops->event_create(device, &passed));
    OK(ops->alloc(device, BYTES, &memory));
    OK(ops->host_alloc(device, BYTES, &from));
    OK(ops->host_alloc(device, BYTES, &to));
    for (int seed = 1; seed <= SEEDS; seed++) {
        char words[32];
        snprintf(words, sizeof words, "seed=%d", seed);
        fake_control()->configure(words);
        memset(from, seed, BYTES);
        OK(ops->copy(first, memory, from, BYTES));
        OK(ops->record(first, again));
        OK(ops->order(compute, again));
        if (seed % 2 == 0) { /* what comes now waits for the compute queue, which must not wait for it */
            OK(ops->record(compute, passed));
            OK(ops->order(other, passed));
        }
        OK(ops->record(other, again));
        OK(ops->copy(compute, to, memory, BYTES));
        device_wait(device, compute);
        cr_assert_eq(memcmp(to, from, BYTES), 0, "seed %d: the queue has not waited", seed);
        OK(ops->wait(again));
        device_wait(device, first);
    }
    ops->host_free(device, from);
    ops->host_free(device, to);
    ops->free(device, memory);
    ops->event_destroy(again);
    ops->event_destroy(passed);
    ops->queue_destroy(first);
    ops->queue_destroy(other);
    ops->close(device);
}

Test(cuda, memory_is_zeroed_and_checked)
{
    struct device *device = NULL;
    OK(cuda_module()->open(&(struct device_request){.number = 0}, &device));
    const struct device_ops *ops = device->ops;
    void *memory = NULL, *pinned = NULL;
    unsigned char host[64];
    OK(ops->alloc(device, sizeof host, &memory));
    OK(ops->host_alloc(device, sizeof host, &pinned));
    memset(pinned, 1, sizeof host);
    OK(ops->copy(ops->compute(device), pinned, memory, sizeof host));
    cr_expect_eq(*(unsigned char *)pinned, 1, "work comes later");
    device_wait(device, ops->compute(device));
    for (size_t i = 0; i < sizeof host; i++)
        cr_expect_eq(((unsigned char *)pinned)[i], 0);
    cr_expect_eq(ops->copy(ops->compute(device), host, memory, sizeof host + 1), STATUS_INTERNAL);
    cr_expect_not_null(strstr(status_message(), "device cuda: a copy: invalid argument"), "%s", status_message());
    cr_expect_eq(ops->alloc(device, (size_t)1 << 40, &memory), STATUS_NO_MEMORY);
    cr_expect_null(memory);
    cr_expect_eq(ops->host_register(device, pinned, sizeof host), STATUS_UNAVAILABLE);
    struct device_export card;
    cr_expect_eq(ops->export_memory(device, pinned, &card), STATUS_UNAVAILABLE);
    ops->host_free(device, pinned);
    ops->close(device);
}

#if !defined(__SANITIZE_ADDRESS__) /* which takes the signal for its own */
/* The CPU can't touch what only queues may. */
Test(cuda, device_memory_is_not_for_the_cpu, .signal = SIGSEGV)
{
    struct device *device = NULL;
    void *memory = NULL;
    OK(cuda_module()->open(&(struct device_request){.number = 0}, &device));
    OK(device->ops->alloc(device, 64, &memory));
    *(volatile char *)memory = 1;
}
#endif
