/* SPDX-License-Identifier: Apache-2.0 */
/* Test data made where it is used, and the rate of the device's memory. */
#include "fill.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "bench.h"

static __device__ uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

template <typename T>
static __global__ void fill(T *data, int64_t count, uint32_t seed) {
  const int64_t step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint32_t a = mix((uint32_t)i * 2u + mix(seed));
    const uint32_t b = mix((uint32_t)i * 2u + 1u + mix(seed));
    const float radius = sqrtf(-2.0f * logf(((float)(a >> 8) + 0.5f) / 16777216.0f));
    data[i] = (T)(radius * cospif(2.0f * (float)(b >> 8) / 16777216.0f));
  }
}

void fill_normal(void *data, int64_t count, bool bfloat, uint32_t seed) {
  if (bfloat) {
    fill<<<1024, 256>>>((__nv_bfloat16 *)data, count, seed);
  } else {
    fill<<<1024, 256>>>((__half *)data, count, seed);
  }
  CUDA(cudaGetLastError());
}

double measure_copy_rate(void) {
  const size_t bytes = (size_t)1 << 30;
  void *from = nullptr;
  void *to = nullptr;
  cudaEvent_t begin, end;
  CUDA(cudaMalloc(&from, bytes));
  CUDA(cudaMalloc(&to, bytes));
  CUDA(cudaMemset(from, 1, bytes));
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int n = 0; n < 12; ++n) {
    float ms = 0;
    CUDA(cudaEventRecord(begin));
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice));
    CUDA(cudaEventRecord(end));
    CUDA(cudaEventSynchronize(end));
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms);
  }
  std::sort(times.begin() + 2, times.end());
  CUDA(cudaEventDestroy(begin));
  CUDA(cudaEventDestroy(end));
  CUDA(cudaFree(from));
  CUDA(cudaFree(to));
  return 2.0 * (double)bytes / (1e-3 * times[7]);
}
