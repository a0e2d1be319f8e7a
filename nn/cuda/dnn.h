/* dnn.h - the only door to cuDNN (9): convolutions on its graph API (or its legacy calls).
 *
 * A convolution is used in three steps: dnn_convolution_create() plans its directions and knows their workspace;
 * dnn_convolution_choose() times the candidates on this card, once for each distinct shape, unless the engine file knows
 * the answer; then dnn_convolution_forward(), _backward_data() and _backward_filter() only put work on the stream:
 * no allocation (as long as the addresses stay the same), no synchronisation, no choice.
 *
 * Layouts: activations NHWC; x (N, H, W, C), y (N, P, Q, K), P = (H + 2 padding - R) / stride + 1; filters (K, R, S, C).
 * Cross-correlation, no bias, f32 accumulation; outputs are overwritten. Addresses are of the device, 16-byte aligned;
 * channels of 16-bit types are padded to 8 (the stem's 3), which keeps tensor cores busy without a conversion.
 *
 * dw has the type of x and dy: none of cuDNN 9.19's 75 engines computes an f32 dw from 16-bit x and dy (asked for sm_90).
 *
 * Without a GPU: a device description (cuDNN's JSON of device properties, as dnn_description() writes it) is enough to
 * plan; dnn_planning() says that nothing can be run. With cuDNN's library of another major version, or a driver that is
 * missing, dnn_open() is STATUS_UNAVAILABLE with the library's words.
 *
 * Errors: STATUS_UNAVAILABLE no device or library; STATUS_REFUSED the library has no engine for it (the text says
 * what was asked); STATUS_NO_MEMORY; STATUS_INTERNAL a call that should not fail, with the library's words.
 * One thread at a time for a struct dnn and all that was made with it.
 */
/* For a stand-in of cuDNN's execution: only these calls need a device: cudnnCreate, cudnnDestroy, cudnnSetStream,
 * cudnnBackendExecute, cudnnGetConvolution{Forward,BackwardData,BackwardFilter}Algorithm_v7 and cudnnConvolution{Forward,
 * BackwardData,BackwardFilter}; with a description all others work without one.
 * What cudnnBackendExecute is to compute is in the plan's CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION: "operationGraph"
 * has "nodes"[0] ("operation", "pad", "stride", and the names of its tensors: "X" or "dX", "W" or "dW", "Y" or "dY") and
 * "tensors" ("name", "dataType", "dim" in the order n, c, h, w, "stride"); a name is the decimal of the unique id:
 * 'x' 120, 'w' 119, 'y' 121. (cuDNN 9.19 gives the operations of a graph back to nobody.) Addresses are in the variant
 * pack, which can't be read either: look on as cudnnBackendSetAttribute sets CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
 * _DATA_POINTERS and _WORKSPACE. Legacy descriptors can be read back by their Get functions. */
/* What this could become: fused graphs, asked of cuDNN 9.19 on a described sm_90 (no driver) for eleven convolutions of
 * ResNet-50 (1x1 and 3x3, strides 1 and 2, 56 to 7 pixels, batch 64). All finalise with precompiled engines in f16, in at
 * most this workspace; in bf16 none is offered, so a backend that builds on them needs f16 and a loss scale.
 *
 *     graph                                                                f16         bf16
 *     convolution + sums and sums of squares of y, for the batch norm       1.6 MB      none (with a driver: compiled ones)
 *     x scale + bias, ReLU, convolution, sums (the norm before it, too)     2.2 MB      none
 *     x scale + bias, ReLU, backward by filters                             1.0 MB      none
 *     backward by data, ReLU backward, sums for the norm's gradients        3.2 MB      none
 */
/* Batch norm is not asked of cuDNN: kernels/norm.cu joins it with addition and ReLU in every type. cuDNN's calls that do so
 * (cudnnBatchNormalization{ForwardTraining,Backward}Ex, deprecated in 9) would want more memory and more passes in this
 * backend: y kept until backward, where one bit an element is kept; dx and dz beside dy, where the gradient stays in its
 * place; the two gradients behind a shortcut added up before (2 tensors read, 1 written, in each of 16 blocks of
 * ResNet-50), where the kernel adds them on the way; dgamma and dbeta divided by the loss scale after; a reserve for each
 * norm. In forward it reads and writes the same tensors as ours, unless x fits on the chip. Its persistent mode may overflow
 * on ordinary values (its header), and whether it takes bf16 only a card can say. */
#ifndef CHORALE_NN_CUDA_DNN_H
#define CHORALE_NN_CUDA_DNN_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/dtype.h"
#include "base/status.h"
#include "base/text.h"

struct dnn; /* a handle on one device and one stream, the plans of all shapes, and what the engine file says */

struct dnn_request {
    bool planning;           /* no device is touched: description is needed */
    int device;              /* CUDA's number of the device, already set by the caller for this thread */
    cudaStream_t stream;     /* all work is put on it; owned by the caller */
    const char *description; /* the device's properties (JSON text); NULL: the device is asked */
    const char *engine_file; /* read at open if it is there, written by dnn_remember(); NULL: none */
    void (*note)(void *context, const char *line); /* what the user should read, though it goes on; NULL: nobody does */
    void *context;
};

/* STATUS_FORMAT (with file and line) when the engine file is damaged. Where libnvrtc, which some engines are compiled by, is
 * not to be found beside the toolkit's other libraries, that is noted, and they are left out. */
enum status dnn_open(const struct dnn_request *request, struct dnn **dnn) MUST_CHECK;
void dnn_close(struct dnn *dnn); /* accepts NULL; after everything made with it */
bool dnn_planning(const struct dnn *dnn);
/* "cuDNN 9.19.0" */
void dnn_describe(const struct dnn *dnn, struct text *text);
/* The device's properties in cuDNN's JSON: what `description` takes. */
enum status dnn_description(const struct dnn *dnn, struct text *text) MUST_CHECK;

/* What the file says by now, besides what this handle has found out since. */
enum status dnn_reread(struct dnn *dnn) MUST_CHECK;
/* See engine_file_lock(); without a file STATUS_OK and -1. */
enum status dnn_lock(const struct dnn *dnn, double seconds, int *lock) MUST_CHECK;
void dnn_unlock(int lock);
/* For whoever opened the handle. */
void dnn_note(const struct dnn *dnn, const char *line);

/* Time for one piece of work on the stream, microseconds: warm-up, then the median of a few runs between events. It
 * synchronises with the stream: for choosing, before training. `work` puts the work on the stream once. */
enum status dnn_measure(struct dnn *dnn, enum status (*work)(void *argument), void *argument,
                        double *microseconds) MUST_CHECK;

/* ---- convolutions ---- */

enum dnn_direction { DNN_FORWARD, DNN_BACKWARD_DATA, DNN_BACKWARD_FILTER, DNN_DIRECTIONS };
enum dnn_implementation { DNN_GRAPH, DNN_LEGACY };

const char *dnn_direction_name(enum dnn_direction direction);                /* "forward", "backward-data", ... */
const char *dnn_implementation_name(enum dnn_implementation implementation); /* "graph", "legacy" */

struct dnn_convolution_request {
    const char *name;                       /* of the layer, for messages */
    enum dtype type;                        /* of x, w, y, dx, dy, dw: f32, bf16 or f16 */
    bool tf32;                              /* f32: products may be rounded to 10 bits of mantissa (tensor cores) */
    int batch;                              /* N */
    int in_channels;                        /* C: padded already */
    int in_height, in_width;                /* H, W */
    int out_channels;                       /* K */
    int kernel_height, kernel_width;        /* R, S */
    int stride, padding;                    /* the same both ways */
    bool no_backward_data;                  /* the first layer needs no dx: not planned, no workspace */
    bool no_backward;                       /* forward only (evaluation of another batch size) */
    bool deterministic;                     /* engines that add up in no fixed order are left out; part of the key */
    size_t workspace_cap;                   /* bytes; engines that want more are left out */
    int candidates;                         /* how many engines are timed for each direction; 0: 8 */
    enum dnn_implementation implementation; /* legacy needs a device */
};

/* What computes one direction. */
struct dnn_choice {
    char engine[160];    /* graph: "62:2=4,13=0", engine and knobs; legacy: "1:tensor-core", algorithm and math type */
    size_t workspace;    /* bytes */
    bool tensor_core;    /* by the engine's numerical notes */
    bool deterministic;  /* no note of the contrary */
    bool chosen;         /* by timing or from the engine file; else the heuristics' first */
    double microseconds; /* measured; 0: never */
};

struct dnn_convolution;

/* Convolutions of equal shape share their plans. *convolution holds what it needs of the request. */
enum status dnn_convolution_create(struct dnn *dnn, const struct dnn_convolution_request *request,
                                   struct dnn_convolution **convolution) MUST_CHECK;
void dnn_convolution_destroy(struct dnn_convolution *convolution); /* accepts NULL */

/* Bytes of workspace that any direction may want: the largest candidate until dnn_convolution_choose(), then what was
 * chosen. One workspace, sized for the largest convolution, serves all (they follow each other on the stream); 256-byte
 * aligned. */
size_t dnn_convolution_workspace(const struct dnn_convolution *convolution);

/* Device memory for timing. x and y are also dx and dy; ALL of it but w may be overwritten, so it is called before
 * training with memory that holds nothing yet. Contents don't matter, as long as they are finite. */
struct dnn_buffers {
    void *x, *w, *y, *dw;
    void *workspace;
    size_t workspace_bytes;
};

/* Whether the file knows an engine for each direction of such a convolution. */
enum status dnn_convolution_known(struct dnn *dnn, const struct dnn_convolution_request *request,
                                  bool *known) MUST_CHECK;
/* Whether a direction has no engine yet that has run here. */
bool dnn_convolution_unproved(const struct dnn_convolution *convolution);
/* Whether a direction is still to be timed: false for what the file knows or an equal shape has settled already. */
bool dnn_convolution_undecided(const struct dnn_convolution *convolution);
/* What is undecided, and the file knows by now (dnn_reread()), becomes as the file says. */
enum status dnn_convolution_recall(struct dnn_convolution *convolution) MUST_CHECK;
/* Run what the file has told once and wait for it. What fails is noted, forgotten, and undecided: its candidates may want
 * more workspace. */
enum status dnn_convolution_prove(struct dnn_convolution *convolution, const struct dnn_buffers *buffers) MUST_CHECK;
/* Time the candidates of each direction and keep the fastest; without `measure` keep the first that runs, which is not
 * remembered. Nothing to do: returns at once. Synchronises. A candidate that fails to run is left out (noted, when it would
 * have been taken untimed); STATUS_REFUSED when all fail. STATUS_UNAVAILABLE when planning only. */
enum status dnn_convolution_choose(struct dnn_convolution *convolution, const struct dnn_buffers *buffers,
                                   bool measure) MUST_CHECK;

/* The choice at hand; NULL for a direction that was not asked for. Valid until the next choose. */
const struct dnn_choice *dnn_convolution_choice(const struct dnn_convolution *convolution,
                                                enum dnn_direction direction);

/* y = x * w */
enum status dnn_convolution_forward(struct dnn_convolution *convolution, const void *x, const void *w, void *y,
                                    void *workspace) MUST_CHECK;
/* dx from w and dy */
enum status dnn_convolution_backward_data(struct dnn_convolution *convolution, const void *w, const void *dy, void *dx,
                                          void *workspace) MUST_CHECK;
/* dw from x and dy */
enum status dnn_convolution_backward_filter(struct dnn_convolution *convolution, const void *x, const void *dy,
                                            void *dw, void *workspace) MUST_CHECK;

/* Write what was chosen into the engine file (none: nothing to do), beside what others have written there meanwhile.
 * Several workers may do so at once: the file is always whole; a line that is lost is measured again. */
enum status dnn_remember(struct dnn *dnn) MUST_CHECK;

#endif
