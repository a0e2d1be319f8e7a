/* fake.h - a card in host memory: CUDA's runtime, cuDNN's execution and cuBLAS's product, for tests without a GPU.
 *
 * chorale-device-cuda.so in the build's folder fake/ is the real module, linked with these instead of the toolkit's
 * libraries, and with the kernels as tests/nn/cuda/shim compiles them. CHORALE_MODULES=BUILD/fake makes the program use it;
 * it is never installed, and calls its card "fake device".
 *
 * Device memory is a mapping of its own that only work in queues may touch: the CPU faults on it otherwise, and on what
 * lies before and after it. It is filled with NaN when it is taken. Queues run as late as they may, when somebody waits or
 * asks, and against each other in a random legal order: what is not ordered by an event shows. Copies are checked against
 * the ends of allocations, and know pinned from other host memory. Captures follow the rules of their thread, streams and
 * events those of their card, and allocations that are no multiple of 2 MiB share a block between processes. cuDNN's descriptors, heuristics and plans are the real
 * library's, of a described card; what a plan computes is read back from it and done by plain loops, and its workspace is
 * overwritten.
 *
 * CHORALE_FAKE in the environment, words apart by blanks: seed=N, cards=N, driver=VERSION (0: none), capability=NN,
 * drop=N (the Nth wait of a queue for an event is left out, counted from 1), refuse-capture, megabytes=N of the card,
 * clobber=0 (workspaces are left as they are), first=N (cards count from the machine's Nth), fail=N (the Nth plan that is
 * put fails, counted from 1), import=N (the Nth import of another process's memory and all after it fail), report=FOLDER (at exit a file of the process's number: how many plans were put).
 */
#ifndef CHORALE_TESTS_NN_CUDA_FAKE_H
#define CHORALE_TESTS_NN_CUDA_FAKE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_settings {
    uint64_t seed, drop, megabytes, fail, import;
    int cards, driver, capability, first;
    bool refuse_capture, clobber;
    char report[160];
};
const struct fake_settings *fake_settings(void);

/* Work of a stream. run() may come several times (graphs), release() comes once. */
struct fake_work {
    void (*run)(void *argument);
    void (*release)(void *argument);
    void *argument;
};

/* What tests read and change; found by dlsym(). */
struct fake_control {
    void (*configure)(const char *words); /* as CHORALE_FAKE, from its defaults; counters start at 0 */
    uint64_t (*waits)(void);              /* of queues for events, since then */
    uint64_t (*graphs)(void);             /* launched since then */
    uint64_t (*stalls)(void);             /* calls that may wait for the card or serialise with it, but for events:
                                           * allocations, copies of memory that is not pinned, waits for a stream */
    size_t (*allocated)(void);            /* bytes of device and pinned memory that are taken */
    uint64_t (*executions)(void);         /* plans of cuDNN that were put since then */
    int (*priority)(void *stream);        /* less is sooner */
    bool (*is_device)(const void *address);
    void (*at_capture)(void (*call)(void *context), void *context);        /* when one has begun, in its thread */
    cudaError_t (*put)(cudaStream_t stream, const struct fake_work *work); /* fake_put() */
};
#define FAKE_CONTROL_SYMBOL "chorale_fake"

/* cudaErrorInvalidResourceHandle for the default stream. The work is released in any case. */
cudaError_t fake_put(cudaStream_t stream, const struct fake_work *work);

/* Counts a plan that is put; false: it is the one that is to fail. */
bool fake_execution(void);

/* All of it lies in one allocation of device memory. */
bool fake_is_device(const void *address, size_t bytes);

/* One convolution; NHWC, filters KRSC. */
enum fake_direction { FAKE_FORWARD, FAKE_BACKWARD_DATA, FAKE_BACKWARD_FILTER };
struct fake_convolution {
    enum fake_direction direction;
    int type; /* cudnnDataType_t */
    int n, c, h, w, k, r, s, p, q;
    int padding, stride;
    void *x, *f, *y;
    void *workspace;
    size_t workspace_bytes;
    float alpha, beta; /* out = alpha * result + beta * out */
};
/* False: an address is not of the device, not aligned, or not large enough. */
bool fake_convolution_check(const struct fake_convolution *convolution);
void fake_convolution_run(const struct fake_convolution *convolution);

#endif
