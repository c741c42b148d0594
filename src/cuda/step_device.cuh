/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of the step share: where a request lies in the batch, and searches by a whole thread block. */
#ifndef TA_CUDA_STEP_DEVICE_CUH
#define TA_CUDA_STEP_DEVICE_CUH

#include "step.h"

/* The nodes of one request. */
struct ta_step_span {
  int32_t begin, num_nodes;
  bool valid;
};

__device__ __forceinline__ ta_step_span ta_step_span_of(const ta_step_batch &batch, int32_t request) {
  const int32_t begin = batch.offsets[request];
  const int32_t end = batch.offsets[request + 1];
  const bool valid = begin >= 0 && end >= begin && end <= batch.num_nodes && end - begin <= batch.max_nodes;
  return {begin, valid ? end - begin : 0, valid};
}

__device__ __forceinline__ treeattn_cuda_outcome ta_step_outcome(treeattn_status status, treeattn_cuda_field field,
                                                                 int32_t index, int32_t column) {
  return {(int32_t)status, (int32_t)field, index, column};
}

/* The smallest i in [from, to) for which `is` holds, else `to`; the same answer in all THREADS threads of the block. */
template <int THREADS, typename Predicate>
__device__ __forceinline__ int32_t ta_step_first(int32_t (&found)[THREADS / 32], int32_t from, int32_t to,
                                                 Predicate is) {
  const int32_t thread = (int32_t)threadIdx.x;
  for (int32_t base = from; base < to; base += THREADS) {
    const int32_t i = base + thread;
    const bool here = i < to && is(i);
    const uint32_t lanes = __ballot_sync(0xffffffffu, here);
    if (thread % 32 == 0) {
      found[thread / 32] = lanes == 0 ? to : i + __ffs((int)lanes) - 1;
    }
    __syncthreads();
    int32_t first = to;
    for (int32_t warp = 0; warp < THREADS / 32; warp++) {
      first = found[warp] < first ? found[warp] : first;
    }
    __syncthreads();
    if (first < to) {
      return first;
    }
  }
  return to;
}

#endif
