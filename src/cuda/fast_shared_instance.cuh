/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher of one pair of head dimensions, stage 0: both cache types, queries of the cache's type or others. */
#include "fast_launch.h"
#include "fast_shared_sm90.cuh"

template <int D, int DV, bool BF16>
static cudaError_t ta_fast_launch_shared(const ta_cuda_params *params, int num_blocks, bool split, cudaStream_t stream) {
  if constexpr (TA_FAST_SPLITS(D)) {
    if (split) {
      return ta_fast::launch_shared<D, DV, BF16, true>(*params, num_blocks, stream);
    }
  }
  return split ? cudaErrorInvalidValue : ta_fast::launch_shared<D, DV, BF16, false>(*params, num_blocks, stream);
}

#define TA_FAST_SHARED_INSTANCE(D, DV)                                                              \
  cudaError_t TA_FAST_SHARED_NAME(D, DV)(const ta_cuda_params *params, int num_blocks, bool split,  \
                                         cudaStream_t stream) {                                     \
    return params->kv_dtype == TREEATTN_BF16                                                        \
               ? ta_fast_launch_shared<D, DV, true>(params, num_blocks, split, stream)              \
               : ta_fast_launch_shared<D, DV, false>(params, num_blocks, split, stream);            \
  }
