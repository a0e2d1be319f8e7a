/* shim.h - CUDA kernels on the host: how tests steer what cuda_shim.h runs. C.
 *
 * Kernels are compiled unchanged by a C++ compiler with -DCHORALE_CUDA_SHIM; no toolkit is needed. Blocks run one after
 * the other, the threads of a block as fibers that take turns at barriers and warp operations, in an order that tests
 * choose: a result that depends on it is a race. Misuse ends the process by abort() with a line on stderr: a barrier or
 * warp operation that not all threads reach, or at two places; writing beyond dynamic shared memory; a warp
 * operation without the whole warp. Impossible launches return cudaErrorInvalidConfiguration. Dynamic shared memory is
 * filled with NaN for each block.
 * Not shown: races between blocks but for their order, memory ordering, alignment unless UBSan is on, speed.
 *
 * State is one a thread of the process: several may launch at the same time, each for itself.
 */
#ifndef CHORALE_TESTS_NN_CUDA_SHIM_H
#define CHORALE_TESTS_NN_CUDA_SHIM_H

#ifdef __cplusplus
extern "C" {
#endif

enum { SHIM_BAD_CONFIGURATION = 9 };

/* Order of blocks, and of the threads of a block: 0 rising, 1 falling, 2 odd ones first; anything else is the seed of a
 * random one, drawn anew after each barrier. Of the calling thread; 0 at first. */
void shim_set_order(unsigned order);

/* What happens at a launch: whoever sets this takes the kernel, calls shim_run(kernel) when the stream gets there, on any
 * thread, as often as the launch comes (a graph repeats it), and then shim_release(kernel). NULL, as at first: it runs at
 * once. Of the whole process. */
typedef void (*shim_launcher)(void *stream, void *kernel);
void shim_set_launcher(shim_launcher launcher);
void shim_run(void *kernel); /* the whole grid */
void shim_release(void *kernel);

#ifdef __cplusplus
}
#endif

#endif
