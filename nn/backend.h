/* backend.h - what computes: forward, backward and evaluation of a model, behind one table of functions.
 *
 * cpu (oneDNN, f32, blocked layout; the embedded default), replay (sleeps for a profile's times), and what modules bring
 * (comm/device.h: chorale-device-NAME.so; nn/cuda).
 *
 * Arenas are flat vectors of floats: parameters and gradients of model->parameters elements in the backend's native
 * order, state (running statistics) of model->state elements. Those of a backend that was opened with a device lie in the
 * memory of that device, all others in host memory. They are the caller's; weights, gradients, momentum and all sums are
 * f32, whatever the precision.
 *
 * A host backend is done with a step on return. A device backend puts its work into device->ops->compute(device) and
 * returns at once:
 *
 *   step(k)  [exchange: ordered after the compute queue]  update(k)  collect() -> result of k - 1  step(k + 1) ...
 *
 * so that the device never waits for the host. Work put into the compute queue before and after by others keeps its order.
 *
 * Threads: a backend belongs to one thread at a time. It prints nothing.
 */
#ifndef CHORALE_NN_BACKEND_H
#define CHORALE_NN_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "nn/batch.h"
#include "nn/model.h"

struct backend;
struct device;

/* How activations and the working copies of weights are stored. */
enum precision {
    PRECISION_F32,
    PRECISION_TF32, /* f32 in memory, products of 10 bits of mantissa */
    PRECISION_BF16,
    PRECISION_F16
};
const char *precision_name(enum precision precision); /* "f32", "tf32", "bf16", "f16": as users write it */

/* Sums over the workers in the middle of a step: batch norms whose statistics are those of all batches together. */
struct worker_sums {
    void *context;
    /* Collective, in the same order on all workers: values[count] become their sums over the workers, with equal bits
     * everywhere. Blocks. */
    enum status (*add)(void *context, double *values, size_t count);
};

struct backend_request {
    const struct model *model; /* must outlive the backend */
    int batch;                 /* images per training step */
    int threads;               /* compute threads of a host backend, >= 1 */
    const char *profile;       /* replay: path of the profile file; else NULL */
    uint64_t seed;             /* replay: gradients are made from it          */
    double label_smoothing; /* training's targets are (1 - this) of the label and this / classes of every class; 0 to 1,
                                  1 excluded. Evaluation is without */

    const struct worker_sums *sums; /* of batch norms, must outlive the backend; NULL: each worker's own statistics.
                                       STATUS_REFUSED where the backend can't */

    struct device *device;    /* in whose memory arenas lie, must outlive the backend; NULL: host memory */
    enum precision precision; /* cpu: PRECISION_F32, else STATUS_REFUSED */
    float loss_scale;    /* f16: a power of two by which gradients are multiplied on their way back; else 1, or 0 */
    bool deterministic;  /* only kernels that give equal bits run after run      */
    bool legacy;         /* convolutions by cuDNN's legacy functions             */
    size_t workspace;    /* bytes at most for convolutions; 0: the backend's own */
    const char *engines; /* file that remembers which kernels were chosen; NULL: none */
    double patience;     /* seconds that others wait for this backend to open; 0: nobody does */
    void (*note)(void *context, const char *line); /* what the user should read, though it goes on; may be NULL */
    void *note_context;
};

/* One training step's result on this worker. */
struct step_result {
    double loss;                  /* mean cross-entropy over the batch; may be NaN or infinite; 0 of no images */
    size_t correct;               /* images whose largest logit is their label                 */
    double forward_s, backward_s; /* seconds of the two phases: wall time, of a device by its events */
    /* Of a device: every gradient that the updates put before this step have read was finite, whatever this step's own
     * loss: workers that update with equal gradients find the same here. Of a host: true. */
    bool updates_finite;
};

/* Who is told during a step how far its gradients are. Backward goes from the last layer to the first, tensors lie in the
 * order of the layers: gradients become complete from the end of the arena on. A host backend calls during forward, too, when
 * nothing is complete: whoever is told may have other work to drive between layers. */
struct gradient_watch {
    void *context;
    /* The gradients from element `offset` on are complete, or will be, on a device, when the work that was put into the
     * compute queue so far is done. Offsets fall from call to call, and may repeat. Called by the thread that called
     * step(); what it fails with is what the step fails with. */
    enum status (*ready)(void *context, size_t offset);
    /* Falling offsets at which a call is of use. A device is told of no others, since it has to cut its work there; a host
     * backend calls after each layer, forward with the size of the arena. */
    const size_t *cut;
    size_t cuts;
};

/* Sums over the images of a batch. */
struct evaluation {
    double loss_sum;
    size_t top1, top5; /* images whose label has the largest logit, one of the five largest; of equal ones the first */
};

/* One step of SGD with momentum, as nn/optimizer.h has it. */
struct update {
    double rate, momentum;
    double weight_decay, norm_decay, bias_decay; /* of weights that decay, of batch norms, of biases */
    bool nesterov;
    double trust; /* LARS: the trust coefficient; 0: plain */
};

/* Bytes of device memory that a training step has to read and write at least: every tensor of each operation once, in its
 * type, as if nothing stayed in a cache from one operation to the next. Images on their way in and exchanges are not
 * counted, nor what an algorithm reads twice or keeps between. */
enum moved_part {
    MOVED_CONV_FORWARD,
    MOVED_CONV_DATA,    /* backward by the input   */
    MOVED_CONV_WEIGHTS, /* backward by the filters */
    MOVED_LINEAR,       /* all three               */
    MOVED_NORM,         /* batch norms with ReLUs and additions, both ways */
    MOVED_POOL,
    MOVED_LOSS,
    MOVED_UPDATE, /* plain SGD with momentum, and the working copies of weights */
    MOVED_PARTS
};
const char *moved_part_name(enum moved_part part); /* "conv_forward" */

struct moved {
    uint64_t bytes[MOVED_PARTS];
};

/* Functions that are NULL are not offered. All of them may fail with what the device tells, also of work put before. */
struct backend_ops {
    const char *name;
    bool stored;  /* takes stored images (struct batch): resizes, normalises and flips them itself */
    bool partial; /* steps with fewer images than the request's, and with a divisor, see step() */

    enum status (*open)(const struct backend_request *request, struct backend **backend);
    void (*close)(struct backend *backend); /* accepts NULL; a device has done its work on return */

    /* Reorder one whole parameter arena between canonical order in host memory and native order in the backend's memory
     * (out of place; NULL: they are the same). Bits are kept. Gradients use the same native order as parameters. Blocks
     * until done. */
    enum status (*to_native)(struct backend *backend, const float *canonical, float *native);
    enum status (*to_canonical)(struct backend *backend, const float *native, float *canonical);

    /* Forward and backward of one batch; batch->count is that of the request, where `partial` 0 to that. gradients are
     * overwritten with the gradient of the MEAN loss over this worker's batch, or of what batch->divisor says (f32, without
     * the loss scale); without images with zeros. state is updated with momentum 0.1, variance by n/(n-1) (a channel with
     * one value keeps the biased variance; without images it stays). replay reads nothing of the batch. With sums of
     * batch norms all workers have the same divisor, or each its count; together they have an image at least.
     *
     * parameters are read anew in each step and evaluation, as they are by then in the compute queue: not only update()
     * writes them (gossip mixes them).
     *
     * Device: arenas belong to the step until it is done in the compute queue; the memory of the batch must stay as it is
     * until the step's result is collected. At most two steps are uncollected, of a host backend one. A label that is no
     * class is told here or by collect().
     *
     * watch: NULL, or who is told of gradients; the time that it takes counts to the backward phase of a host backend. */
    enum status (*step)(struct backend *backend, const float *parameters, float *state, const struct batch *batch,
                        float *gradients, const struct gradient_watch *watch);
    /* The result of the oldest uncollected step; waits for it. STATUS_INTERNAL: there is none. */
    enum status (*collect)(struct backend *backend, struct step_result *result);

    /* The optimizer's step on the device, put into the compute queue, to the bits of nn/optimizer.c (rate, momentum and
     * decay as floats); LARS to its rounding: norms are added up in another order. velocity is a native arena like the others,
     * zeroed by the caller. NULL where arenas lie in host memory. */
    enum status (*update)(struct backend *backend, const struct update *update, const float *gradient, float *velocity,
                          float *parameters);
    /* True in *finite while every gradient that update() has read was finite. Waits for the updates put so far. */
    enum status (*updates_finite)(struct backend *backend, bool *finite);

    /* Losses and correct images with the running statistics; batch->count from 1 to the request's. Blocks
     * until done; no step may be uncollected. NULL where the backend can't evaluate (replay). */
    enum status (*evaluate)(struct backend *backend, const float *parameters, const float *state,
                            const struct batch *batch, struct evaluation *sum);

    /* Layer times measured since open, as the text of a profile file (README, "Files"); NULL if it can't. */
    enum status (*profile)(struct backend *backend, struct text *text);

    /* "oneDNN 2.6.3, AVX2": stored with every result. */
    void (*describe)(struct backend *backend, struct text *text);

    /* Bytes of device memory that the backend has taken, the caller's arenas not among them. NULL: none. */
    size_t (*memory)(struct backend *backend);

    /* What a training step of this worker moves. NULL: nobody has counted. */
    void (*moved)(struct backend *backend, struct moved *moved);
};

extern const struct backend_ops backend_cpu;
extern const struct backend_ops backend_replay;

#endif
