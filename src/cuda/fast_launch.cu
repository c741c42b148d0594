/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the fast kernels for the head dimensions of a run. */
#include "fast_launch.h"

#include <treeattn/attention.h>

#include "launch.h"

bool ta_cuda_fast_serves(int32_t head_dim, int32_t head_dim_v) {
#define TA_SERVES(D, DV)                          \
  if (head_dim == (D) && head_dim_v == (DV)) {    \
    return true;                                  \
  }
  TA_FAST_DIMS(TA_SERVES)
#undef TA_SERVES
  return false;
}

bool ta_cuda_fast_shares(int32_t head_dim, int32_t q_dtype, int32_t kv_dtype) {
  return q_dtype == kv_dtype || TA_FAST_SPLITS(head_dim);
}

cudaError_t ta_cuda_fast_launch(const ta_cuda_params *params, int num_multiprocessors, int64_t num_rows, bool wgmma,
                                cudaStream_t stream) {
  /* A query that the cache's type holds exactly needs one product, any other a second one for what rounding loses. */
  const bool split = params->q_dtype != params->kv_dtype;
#define TA_LAUNCH(D, DV)                                                                                       \
  if (params->head_dim == (D) && params->head_dim_v == (DV)) {                                                 \
    if (wgmma && (!split || TA_FAST_SPLITS(D))) {                                                                                               \
      const cudaError_t code = TA_FAST_SHARED_NAME(D, DV)(params, num_multiprocessors, split, stream);         \
      if (code != cudaSuccess) {                                                                               \
        return code;                                                                                           \
      }                                                                                                        \
    }                                                                                                          \
    return TA_FAST_FINISH_NAME(D, DV)(params, num_multiprocessors, num_rows, split, wgmma, stream);            \
  }
  TA_FAST_DIMS(TA_LAUNCH)
#undef TA_LAUNCH
  return cudaErrorInvalidValue;
}
