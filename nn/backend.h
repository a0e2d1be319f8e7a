/* backend.h - what computes: forward, backward and evaluation of a model, behind one table of functions.
 *
 * cpu (oneDNN, f32, blocked layout; the embedded default), replay (sleeps for a profile's times), and later cuda.
 * A backend belongs to one thread at a time. It prints nothing.
 */
#ifndef CHORALE_NN_BACKEND_H
#define CHORALE_NN_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "nn/model.h"

struct backend;

struct backend_request {
    const struct model *model; /* must outlive the backend */
    int batch;                 /* images per training step */
    int threads;               /* compute threads, >= 1    */
    const char *profile;       /* replay: path of the profile file; else NULL */
    uint64_t seed;             /* replay: gradients are made from it          */
};

/* One training step's result on this worker. */
struct step_result {
    double loss;                  /* mean cross-entropy over the batch          */
    size_t correct;               /* images whose largest logit is their label  */
    double forward_s, backward_s; /* wall time of the two phases, seconds    */
};

struct backend_ops {
    const char *name;

    enum status (*open)(const struct backend_request *request, struct backend **backend);
    void (*close)(struct backend *backend); /* accepts NULL */

    /* Reorder one whole parameter arena between canonical and native order (out of place; NULL: they are the same).
     * Gradients use the same native order as parameters. */
    enum status (*to_native)(struct backend *backend, const float *canonical, float *native);
    enum status (*to_canonical)(struct backend *backend, const float *native, float *canonical);

    /* Forward and backward of one batch. images (batch, 3, S, S) canonical f32; labels (batch);
     * parameters and gradients are native arenas of model->parameters elements; gradients are overwritten with the
     * gradient of the MEAN loss over this worker's batch. state (running statistics) is updated with momentum 0.1,
     * variance by n/(n-1) (a channel with one value keeps the biased variance). */
    enum status (*step)(struct backend *backend, const float *parameters, float *state, const float *images,
                        const int32_t *labels, float *gradients, struct step_result *result);

    /* Sum of losses and count of correct images with the running statistics; count <= batch images, any count >= 1.
     * NULL where the backend can't evaluate (replay). */
    enum status (*evaluate)(struct backend *backend, const float *parameters, const float *state, const float *images,
                            const int32_t *labels, int count, double *loss_sum, size_t *correct);

    /* Layer times measured since open, as the text of a profile file (README, "Files"); NULL if it can't. */
    enum status (*profile)(struct backend *backend, struct text *text);

    /* "oneDNN 2.6.3, AVX2": stored with every result. */
    void (*describe)(struct backend *backend, struct text *text);
};

extern const struct backend_ops backend_cpu;
extern const struct backend_ops backend_replay;

#endif
