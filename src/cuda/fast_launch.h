/* SPDX-License-Identifier: Apache-2.0 */
/* The head dimensions that the fast mode serves, written once, and the launchers that each of them instantiates. */
#ifndef TA_CUDA_FAST_LAUNCH_H
#define TA_CUDA_FAST_LAUNCH_H

#include <cuda_runtime_api.h>

#include "params.h"

/* X(head_dim, head_dim_v) */
#define TA_FAST_DIMS(X) \
  X(64, 64)             \
  X(96, 96)             \
  X(128, 128)           \
  X(192, 192)           \
  X(256, 256)           \
  X(512, 512)           \
  X(576, 512)

/* Whether shared memory holds queries of this size twice: rounded to the cache's type, and what rounding lost. */
#define TA_FAST_SPLITS(D) ((D) <= 256)

#define TA_FAST_SHARED_NAME(D, DV) ta_fast_shared_##D##_##DV
#define TA_FAST_FINISH_NAME(D, DV) ta_fast_finish_##D##_##DV

#define TA_FAST_DECLARE(D, DV)                                                                                    \
  cudaError_t TA_FAST_SHARED_NAME(D, DV)(const ta_cuda_params *params, int num_blocks, bool split,                \
                                         cudaStream_t stream);                                                    \
  cudaError_t TA_FAST_FINISH_NAME(D, DV)(const ta_cuda_params *params, int num_multiprocessors, int64_t num_rows, \
                                         bool split, bool overlap, cudaStream_t stream);
TA_FAST_DIMS(TA_FAST_DECLARE)
#undef TA_FAST_DECLARE

#endif
