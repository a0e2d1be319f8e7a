/* support_cuda.h - the cuda backend on the fake device, as a test sees it: through the module that the program loads. */
#ifndef CHORALE_TESTS_NN_CUDA_SUPPORT_CUDA_H
#define CHORALE_TESTS_NN_CUDA_SUPPORT_CUDA_H

#include "comm/device.h"
#include "nn/backend.h"
#include "nn/model.h"

/* As fake/fake.h has it. */
struct fake_control {
    void (*configure)(const char *words);
    uint64_t (*waits)(void);
    uint64_t (*graphs)(void);
    uint64_t (*stalls)(void);
    size_t (*allocated)(void);
    uint64_t (*executions)(void);
    int (*priority)(void *stream);
    bool (*is_device)(const void *address);
    void (*at_capture)(void (*call)(void *context), void *context);
};

#define OK(call) cr_assert_geq((call), 0, "%s: %s", #call, status_message())

/* CHORALE_CARD=1: the tests run on a real card (tests/card.sh) by the module beside the program; those that steer the fake
 * device are skipped. */
bool on_card(void);
/* The module of the build's folder fake/, or that of the program; it stays loaded. */
const struct device_module *cuda_module(void);
const struct fake_control *fake_control(void);

/* Stem, pools, bottlenecks with and without a projection, one of stride 2, a linear layer: every kind of layer and fusion.
 * image_size >= 16. */
struct model *small_resnet(int image_size);

/* A backend with arenas. On the cpu they are host memory; on the fake device, `host` copies are made to look at them. */
struct rig {
    const struct backend_ops *ops;
    struct device *device; /* NULL: the cpu */
    struct backend *backend;
    const struct model *model;
    int batch;
    float *parameters, *gradients, *state, *velocity;
    float *images;   /* (batch, 3, S, S), pinned on a device */
    int32_t *labels; /* (batch), pinned on a device */
};

struct rig rig_open(const struct model *model, const struct backend_request *request, bool cuda);
void rig_close(struct rig *rig);
/* Initial values by the seed; images and labels by `seed`, too. */
void rig_fill(struct rig *rig, uint64_t seed);
struct batch rig_batch(const struct rig *rig, int count);
struct step_result rig_step(struct rig *rig);
void rig_update(struct rig *rig, const struct update *update);

/* Arenas in host memory: in canonical order, or as it is (state). Free with free(). */
float *rig_canonical(struct rig *rig, const float *native);
float *rig_state(struct rig *rig);

/* |a - b| / |b|, Euclidean. */
double distance(const float *a, const float *b, size_t count);
/* Of the bits. */
uint64_t fingerprint(const float *values, size_t count);

#endif
