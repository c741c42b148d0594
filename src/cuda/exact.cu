/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher of the exact mode: from the type of the cache to its kernels. */
#include <cuda_runtime_api.h>

#include "exact.cuh"
#include "launch.h"

int32_t ta_cuda_exact_block_rows(void) {
  return ta_exact::shape_64::rows;
}

cudaError_t ta_cuda_exact_launch(const ta_cuda_params *params, int num_multiprocessors, int64_t num_rows,
                                 cudaStream_t stream) {
  if (params->kv_dtype == TREEATTN_F32) {
    return ta_exact::launch<TREEATTN_F32>(*params, num_multiprocessors, num_rows, stream);
  }
  if (params->kv_dtype == TREEATTN_F16) {
    return ta_exact::launch<TREEATTN_F16>(*params, num_multiprocessors, num_rows, stream);
  }
  return ta_exact::launch<TREEATTN_BF16>(*params, num_multiprocessors, num_rows, stream);
}
