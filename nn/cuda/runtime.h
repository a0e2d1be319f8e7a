/* runtime.h - calls of the CUDA runtime, checked.
 *
 * A call that fails becomes one line: what was tried, and CUDA's words. What a kernel does wrong is told by a later call;
 * CHORALE_CUDA_SYNC=1 waits after each launch, so that the line names the layer at fault (net.h).
 */
#ifndef CHORALE_NN_CUDA_RUNTIME_H
#define CHORALE_NN_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#include "base/status.h"

/* STATUS_OK, STATUS_NO_MEMORY, else STATUS_INTERNAL with "device cuda: WHAT: CUDA's words". An error that does not stay
 * with the process is cleared, so that no later call is blamed for it. */
enum status cuda_check(cudaError_t code, const char *what) MUST_CHECK;
/* The same for what functions of kernels.h return. */
enum status cuda_launched(int code, const char *what) MUST_CHECK;

#endif
