/* device.h - an accelerator's memory and queues, as collectives and the trainer need them.
 *
 * A device is opened by a module that is loaded on demand (nn/cuda: "cuda"), or made by a test. Work is put into queues:
 * each runs its work in order, several run beside each other and are ordered by events alone. Putting work into a queue
 * does not wait for it: an error of the work itself may be told by any later call. Device memory is an address that only
 * work in queues may read or write.
 *
 * Threads: a queue and an event belong to one thread at a time; the functions of the device itself may be called from any.
 */
#ifndef CHORALE_COMM_DEVICE_H
#define CHORALE_COMM_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/dtype.h"
#include "base/status.h"
#include "base/text.h"

struct device;
struct device_queue;
struct device_event;

/* Device memory as another process of this host can ask for it (CUDA: an IPC handle). */
struct device_export {
    unsigned char bytes[64];
};

/* One operand of a chain of reductions, see reduce and mix. */
struct device_term {
    const void *data;
    double divisor; /* reduce: as kernel_reduce() has it */
    double weight;  /* mix: as kernel_axpy() has it      */
};

/* Of one chain, at most. */
#define DEVICE_TERMS 16

struct device_ops {
    const char *name; /* "cuda" */

    void (*close)(struct device *device);                             /* whoever uses it must be done */
    void (*describe)(const struct device *device, struct text *text); /* card, driver, libraries: stored with results */

    /* --- memory --- */

    /* `bytes` of device memory, zeroed, the base of an allocation of its own. STATUS_NO_MEMORY says what is needed and
     * what is free. */
    enum status (*alloc)(struct device *device, size_t bytes, void **memory);
    void (*free)(struct device *device, void *memory); /* accepts NULL */
    /* Host memory that copies reach directly (pinned), zeroed. */
    enum status (*host_alloc)(struct device *device, size_t bytes, void **memory);
    void (*host_free)(struct device *device, void *memory); /* accepts NULL */
    /* The same for memory that is there already, whole pages. STATUS_UNAVAILABLE: it can't be. */
    enum status (*host_register)(struct device *device, void *memory, size_t bytes);
    void (*host_unregister)(struct device *device, void *memory);

    /* Between processes of this host. STATUS_UNAVAILABLE with the reason: not on this device. `memory` is what alloc()
     * gave. An import is to be given back before its owner frees; it does not work in the exporting process. */
    enum status (*export_memory)(struct device *device, void *memory, struct device_export *card);
    enum status (*import_memory)(struct device *device, const struct device_export *card, void **memory);
    void (*import_release)(struct device *device, void *memory);

    /* --- queues and events --- */

    /* Before the device's own in the choice of what runs next, where there is such a choice: what it does is short, and others
     * wait for it. */
    enum status (*queue_create)(struct device *device, struct device_queue **queue);
    void (*queue_destroy)(struct device_queue *queue);      /* accepts NULL; its work must be done */
    struct device_queue *(*compute)(struct device *device); /* where a backend computes: the device's own */
    void *(*native)(struct device_queue *queue);            /* as libraries of the device call it: cudaStream_t */

    enum status (*event_create)(struct device *device, struct device_event **event);
    void (*event_destroy)(struct device_event *event); /* accepts NULL */
    enum status (*record)(struct device_queue *queue,
                          struct device_event *event); /* happens when all before it is done */
    /* What is put from then on waits for what the event stands for at that time: it may be recorded anew at once. */
    enum status (*order)(struct device_queue *queue, struct device_event *event);
    enum status (*query)(struct device_event *event); /* STATUS_AGAIN: not yet      */
    enum status (*wait)(struct device_event *event);  /* blocks the caller          */

    /* --- work --- */

    /* Either end may be device or host memory. Host memory that is not pinned: the call may block. */
    enum status (*copy)(struct device_queue *queue, void *to, const void *from, size_t bytes);
    /* The mathematics of comm/kernels.h, to the same bits; ranges lie in device memory, or in imported memory for what is
     * only read. out may be first or a term, else they don't overlap.
     * reduce: out = (..(first (op) term[0]) (op) term[1]..), each with its divisor; mix: out = first + weight * term ...
     * (f32 and f64); terms 1 to DEVICE_TERMS. */
    enum status (*reduce)(struct device_queue *queue, enum dtype dtype, enum reduce_op op, void *out, const void *first,
                          const struct device_term *term, size_t terms, size_t count);
    enum status (*mix)(struct device_queue *queue, enum dtype dtype, void *out, const void *first,
                       const struct device_term *term, size_t terms, size_t count);
    enum status (*scale)(struct device_queue *queue, enum dtype dtype, void *out, const void *from, double weight,
                         size_t count);
    enum status (*divide)(struct device_queue *queue, enum dtype dtype, void *out, const void *from, int divisor,
                          size_t count);
    /* Between f32 and f16 or bf16, rounding to nearest even. */
    enum status (*convert)(struct device_queue *queue, enum dtype to_type, void *to, enum dtype from_type,
                           const void *from, size_t count);
};

/* The module's own data follow. */
struct device {
    const struct device_ops *ops;
    int number; /* of the card as this process counts them: others may count otherwise (CUDA_VISIBLE_DEVICES) */
    unsigned char identity[16]; /* of the card, wherever it is seen (CUDA: its UUID); zeros: host and number are all */
};

/* ---- modules ---- */

#define DEVICE_MODULE_VERSION 2u
#define DEVICE_MODULE_SYMBOL "chorale_device"

struct device_request {
    int number;     /* the card; negative: local_rank modulo the number of cards */
    int local_rank; /* of this worker on its host */
};

struct backend_ops;

/* What chorale-device-NAME.so exports. It has its own copy of base/: `share` makes fail() in it speak where the
 * program's does, and is called first. */
struct device_module {
    unsigned version;
    void (*share)(status_buffer_fn *buffer);
    /* STATUS_UNAVAILABLE: no driver, no card, a library of another version; the message tells what to do. */
    enum status (*open)(const struct device_request *request, struct device **device);
    const struct backend_ops *backend; /* computes on such devices (nn/backend.h) */
};

/* Load chorale-device-NAME.so (base/module.h tells where it is sought). It stays loaded. STATUS_UNAVAILABLE: there is
 * none here, or it can't be loaded. */
enum status device_module_load(const char *name, const struct device_module **module) MUST_CHECK;

#endif
