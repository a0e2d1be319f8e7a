/* toy.h - chorale-device-cuda.so without a card and without CUDA, for tests of the whole program: CHORALE_MODULES=BUILD/toy.
 *
 * Device memory is an address range that the processor can't touch; the toy works on a second mapping of it. Its queues run
 * late and in a random legal order. Its backend is the cpu backend, whose steps wait in the compute queue like all other
 * work: training with it gives the bits that --device=cpu gives, if the trainer orders everything as it has to be ordered.
 *
 * CHORALE_TOY="seed=7 cards=2 end=5 nan=3": the order of the queues; how many cards there are (1; 0: none); the step in
 * which the device is lost; the step in which rank 0's logits, and so its loss, become NaN.
 *
 * Any thread may call it: one lock guards everything.
 */
#ifndef CHORALE_TESTS_NN_TOY_TOY_H
#define CHORALE_TESTS_NN_TOY_TOY_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/device.h"
#include "nn/backend.h"

struct toy_settings {
    uint64_t seed;
    int cards;
    long long end, nan; /* -1: never */
};
const struct toy_settings *toy_settings(void);

/* Something wrong that a real device would not notice, or only by wrong results: said on stderr, and the end. */
_Noreturn void toy_fault(const char *what);

enum status toy_open(const struct device_request *request, struct device **device);

/* Work of the backend in the compute queue. `work` runs with the lock held; its memory is freed with free(). */
struct toy_work {
    void (*run)(struct toy_work *work);
    struct toy_work *next; /* the queue's */
};
void toy_put(struct device *device, struct toy_work *work);
/* All that stands in the compute queue is done on return. */
void toy_finish(struct device *device);
int toy_local_rank(const struct device *device);
/* Where the toy may touch `bytes` of device memory, or of pinned memory if `host`. The lock is held, or nothing else runs. */
void *toy_touch(const void *memory, size_t bytes, bool host);

#endif
