/* dnn_internal.h - what the files behind dnn.h share: the handle, shapes with their plans, and two implementations. */
#ifndef CHORALE_NN_CUDA_DNN_INTERNAL_H
#define CHORALE_NN_CUDA_DNN_INTERNAL_H

#include <cudnn.h>

#include "nn/cuda/dnn.h"
#include "nn/cuda/engine_file.h"

struct dnn {
    cudnnHandle_t handle; /* NULL: planning only */
    cudaStream_t stream;
    cudnnBackendDescriptor_t device; /* its properties where they were described; NULL: the handle's device */
    char card[64], version[24];      /* "NVIDIA_H200", "9.19.0"; words of the engine file */
    struct engine_file engines;      /* what the file said, and every choice since */
    char *engine_path;               /* NULL: none */
    void (*note)(void *context, const char *line);
    void *context;
    struct shape *shapes;
};

/* STATUS_OK for CUDNN_STATUS_SUCCESS; else the library's words after the name of the call: STATUS_REFUSED not supported,
 * STATUS_NO_MEMORY, STATUS_INTERNAL. `call` may be a whole expression. */
enum status dnn_status(cudnnStatus_t code, const char *call) MUST_CHECK;
#define DNN_TRY(call) TRY(dnn_status((call), #call))
#define DNN_TRY_TO(label, call) TRY_TO(label, dnn_status((call), #call))

/* STATUS_UNAVAILABLE when a library of this version (cudnnGetVersion) can't do for what this was built with. */
enum status dnn_check_version(size_t version) MUST_CHECK;
/* Load the compiler `name` for good, for cuDNN to find: it looks where it lies itself, we beside the toolkit's libraries, too.
 * False: it is noted that there is none. */
bool dnn_find_compiler(const struct dnn *dnn, const char *name);
cudnnDataType_t dnn_data_type(enum dtype type);
/* Put the work on the stream once and wait for it. */
enum status dnn_run_once(struct dnn *dnn, enum status (*work)(void *argument), void *argument) MUST_CHECK;
/* STATUS_UNAVAILABLE with "WHAT needs a device" when planning only. */
enum status dnn_need_device(const struct dnn *dnn, const char *what) MUST_CHECK;

#define PLANS_MAX 16 /* candidates of one direction */

/* One way to compute one direction of a shape. */
struct plan {
    struct dnn_choice choice;
    cudnnBackendDescriptor_t config, execution; /* graph  */
    int algorithm;                              /* legacy */
    cudnnMathType_t math;
};

/* Graph: the operation of one direction; its descriptors stay as long as plans made from them. */
struct operation {
    cudnnBackendDescriptor_t x, w, y, convolution, node, graph;
};

/* Legacy: descriptors of all directions. The math type is set before each call. */
struct legacy {
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t convolution;
};

struct direction {
    struct plan plan[PLANS_MAX]; /* the heuristics' order; after the choice, the chosen one alone */
    size_t plans;                /* 0: not planned                                                */
    bool settled;                /* plan[0] is the choice                                         */
    bool proved;                 /* and has run here                                              */
    char failed[160];            /* an engine that has not: the file's word for it is not taken   */
};

/* Everything that convolutions of equal requests share. */
struct shape {
    struct dnn_convolution_request request; /* its name is not used */
    struct direction direction[DNN_DIRECTIONS];
    struct operation operation[DNN_DIRECTIONS];
    struct legacy legacy;
    size_t users;
    struct shape *next;
};

/* The addresses of one direction of one convolution (x or dx, ...; the direction says which is written). Graph: a variant
 * pack that is made anew when they change. */
struct addresses {
    void *x, *w, *y, *workspace;
};
struct pack {
    struct addresses addresses;
    cudnnBackendDescriptor_t variant;
};

struct dnn_convolution {
    struct dnn *dnn;
    struct shape *shape;
    char name[48];
    bool planned[DNN_DIRECTIONS]; /* asked for */
    struct pack pack[DNN_DIRECTIONS];
};

struct implementation {
    /* What a shape needs before it is planned, once. */
    enum status (*prepare)(struct dnn *dnn, struct shape *shape, enum dnn_direction direction);
    /* Up to `wanted` plans within the request's bounds, best first. STATUS_REFUSED: there is none, with the reason. */
    enum status (*candidates)(struct dnn *dnn, struct shape *shape, enum dnn_direction direction, size_t wanted);
    /* plan[0] from choice.engine's text. STATUS_REFUSED, STATUS_FORMAT: it is not to be had (any more). */
    enum status (*recall)(struct dnn *dnn, struct shape *shape, enum dnn_direction direction, const char *engine);
    enum status (*run)(struct dnn *dnn, struct shape *shape, enum dnn_direction direction, const struct plan *plan,
                       struct pack *pack, const struct addresses *addresses);
    void (*plan_release)(struct plan *plan);
    void (*release)(struct shape *shape);
    void (*pack_release)(struct pack *pack);
};

extern const struct implementation dnn_graph, dnn_legacy;

/* Rows and columns of y. */
int shape_out_height(const struct dnn_convolution_request *request);
int shape_out_width(const struct dnn_convolution_request *request);

#endif
