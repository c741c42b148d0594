/* SPDX-License-Identifier: Apache-2.0 */
/* The two launches of the exact mode for one type of cache. */
#ifndef TA_CUDA_EXACT_LAUNCH_CUH
#define TA_CUDA_EXACT_LAUNCH_CUH

#include <cuda_runtime_api.h>

#include "exact_finish.cuh"
#include "exact_shared.cuh"

namespace ta_exact {

typedef void (*kernel)(const ta_cuda_params, int);

/* A kernel and the shared memory that it needs. */
struct choice {
  kernel run;
  size_t bytes;
  int rows;
};

static inline cudaError_t launch_kernel(const choice &chosen, const ta_cuda_params &params, int64_t num_blocks,
                                        cudaStream_t stream) {
  const void *function = (const void *)chosen.run;
  const cudaError_t code =
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)chosen.bytes);
  if (code != cudaSuccess) {
    return code;
  }
  ta_cuda_params copy = params;
  int rows = chosen.rows;
  void *arguments[] = {&copy, &rows};
  return cudaLaunchKernel(function, dim3((unsigned)num_blocks), dim3(THREADS), arguments, chosen.bytes, stream);
}

template <int KV>
cudaError_t launch(const ta_cuda_params &params, int num_multiprocessors, int64_t num_rows, cudaStream_t stream) {
  int device = 0;
  int most = 0; /* bytes of shared memory of a block; differs between devices */
  cudaError_t code = cudaGetDevice(&device);
  code = code != cudaSuccess ? code : cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (code != cudaSuccess) {
    return code;
  }
  const choice shared[] = {{shared_kernel<KV>, UNIT_BYTES + sizeof(memory<shape_64>), shape_64::rows},
                           {shared_kernel<KV>, UNIT_BYTES + sizeof(memory<shape_32>), shape_32::rows},
                           {shared_kernel<KV>, UNIT_BYTES + sizeof(memory<shape_16>), shape_16::rows}};
  const size_t row_bytes = 2 * sizeof(float) * (size_t)params.head_dim_v; /* two states' values */
  const choice finish[] = {
      {finish_kernel<shape_16, KV>, sizeof(memory<shape_16>) + shape_16::rows * row_bytes, shape_16::rows},
      {finish_kernel<shape_8, KV>, sizeof(memory<shape_8>) + shape_8::rows * row_bytes, shape_8::rows},
      {finish_kernel<shape_4, KV>, sizeof(memory<shape_4>) + shape_4::rows * row_bytes, shape_4::rows}};
  int n = 0;
  while (n < 2 && shared[n].bytes > (size_t)most) {
    ++n;
  }
  code = launch_kernel(shared[n], params, num_multiprocessors, stream);
  /* The fewest rows that hold the heads of a group, or the most that fit. */
  n = params.group > shape_8::rows ? 0 : params.group > shape_4::rows ? 1 : 2;
  while (n < 2 && finish[n].bytes > (size_t)most) {
    ++n;
  }
  const int64_t items = num_rows * params.num_kv_heads * ((params.group + finish[n].rows - 1) / finish[n].rows);
  const int64_t most_blocks = (int64_t)num_multiprocessors * 64;
  return code != cudaSuccess ? code
                             : launch_kernel(finish[n], params, items < most_blocks ? items : most_blocks, stream);
}

}  // namespace ta_exact

#endif
