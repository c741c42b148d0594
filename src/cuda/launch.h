/* SPDX-License-Identifier: Apache-2.0 */
/* The launchers that a run chooses from. Each enqueues both stages and returns what the runtime said. */
#ifndef TA_CUDA_LAUNCH_H
#define TA_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>

#include "params.h"

/* The bits of the CPU's scalar reference, any cache type, any head dimension. */
cudaError_t ta_cuda_exact_launch(const ta_cuda_params *params, int num_multiprocessors, int64_t num_rows,
                                 cudaStream_t stream);
/* Rows of a block of the exact kernel. */
int32_t ta_cuda_exact_block_rows(void);

/* Tensor cores. `wgmma` says that the device has them in the Hopper way. Returns cudaErrorInvalidValue for shapes outside
 * ta_cuda_fast_serves. */
cudaError_t ta_cuda_fast_launch(const ta_cuda_params *params, int num_multiprocessors, int64_t num_rows, bool wgmma,
                                cudaStream_t stream);
bool ta_cuda_fast_serves(int32_t head_dim, int32_t head_dim_v);
/* Whether rows share passes over the cache; otherwise stage 1 does all the work. */
bool ta_cuda_fast_shares(int32_t head_dim, int32_t q_dtype, int32_t kv_dtype);

#endif
