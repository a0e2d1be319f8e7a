/* misuse.h - see misuse.cu. */
#ifndef CHORALE_TESTS_NN_CUDA_MISUSE_H
#define CHORALE_TESTS_NN_CUDA_MISUSE_H

#ifdef __cplusplus
extern "C" {
#endif

#include <stdbool.h>
#include <stddef.h>

enum misuse { HALF_AT_BARRIER, TWO_BARRIERS, HALF_A_WARP, LANES_LEAVE, BEYOND_SHARED };

int misuse_reverse(int *x, unsigned blocks, unsigned threads, bool barrier);
int misuse_warp_sum(int *x, unsigned blocks, unsigned threads); /* each element becomes its warp's sum */
int misuse_run(enum misuse misuse, int *x);
int misuse_garbage(float *x, unsigned blocks, unsigned threads); /* what shared memory holds at first */
int misuse_launch(unsigned grid_x, unsigned grid_y, unsigned block_x, unsigned block_z, size_t shared);

#ifdef __cplusplus
}
#endif

#endif
