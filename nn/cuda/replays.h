/* replays.h - sequences of work that are captured once as CUDA graphs and then replayed, which costs the host one call
 * instead of hundreds.
 *
 * A sequence is captured when it comes with the same addresses for the third time: before, libraries load their kernels.
 * Where capturing fails, work is put piece by piece as before, and describe() says why.
 */
#ifndef CHORALE_NN_CUDA_REPLAYS_H
#define CHORALE_NN_CUDA_REPLAYS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "base/status.h"
#include "base/text.h"

struct cuda_replays;

/* A sequence is known by its number, by which part of it this is, and by the addresses that it works on. */
struct cuda_sequence {
    int number, begin, end;
    const void *address[3];
};

/* capture false: never, as `reason` says. */
enum status cuda_replays_create(cudaStream_t stream, bool capture, const char *reason,
                                struct cuda_replays **replays) MUST_CHECK;
void cuda_replays_destroy(struct cuda_replays *replays); /* accepts NULL; what was put must be done */

/* Put the work of `put`, which goes into the stream and depends on nothing but the sequence. */
enum status cuda_replays_run(struct cuda_replays *replays, const struct cuda_sequence *sequence,
                             enum status (*put)(void *argument), void *argument) MUST_CHECK;

/* "graphs", or "no graphs (reason)". */
void cuda_replays_describe(const struct cuda_replays *replays, struct text *text);

#endif
