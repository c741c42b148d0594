/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher of one pair of head dimensions, stage 1: both cache types. */
#include "fast_finish.cuh"
#include "fast_launch.h"

#define TA_FAST_FINISH_INSTANCE(D, DV)                                                                                \
  cudaError_t TA_FAST_FINISH_NAME(D, DV)(const ta_cuda_params *params, int num_multiprocessors, int64_t num_rows,     \
                                         bool split, bool overlap, cudaStream_t stream) {                             \
    return params->kv_dtype == TREEATTN_BF16                                                                          \
               ? ta_fast::launch_finish<D, DV, true>(*params, num_multiprocessors, num_rows, split, overlap, stream)  \
               : ta_fast::launch_finish<D, DV, false>(*params, num_multiprocessors, num_rows, split, overlap, stream); \
  }
