/* SPDX-License-Identifier: Apache-2.0 */
/* What both stages of the fast mode read in the same way: queries. */
#ifndef TA_CUDA_FAST_CUH
#define TA_CUDA_FAST_CUH

#include "device.cuh"
#include "params.h"
#include "ptx.cuh"

/* Channels [d, d + 8) of the query of row (node * group + head of the group); zero beyond num_rows. Negated where the
 * scale is negative, so that what follows may take its magnitude: the order of scores decides their maximum. */
__device__ __forceinline__ void ta_fast_load_query(const ta_cuda_params &params, int64_t first_row, int g, int row,
                                                   int num_rows, int d, float (&q)[8]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    q[n] = 0.0f;
  }
  if (row >= num_rows) {
    return;
  }
  const int node = row / params.group;
  const int h = g * params.group + row % params.group;
  const int64_t element = h * params.q_stride_head + (first_row + node) * params.q_stride_row + d;
  if (params.q_dtype == TREEATTN_F32) {
    const float *source = (const float *)params.q + element;
    if (((uintptr_t)source & 15) == 0) {
      const float4 a = *(const float4 *)source;
      const float4 b = *(const float4 *)(source + 4);
      q[0] = a.x, q[1] = a.y, q[2] = a.z, q[3] = a.w, q[4] = b.x, q[5] = b.y, q[6] = b.z, q[7] = b.w;
    } else {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        q[n] = source[n];
      }
    }
  } else {
    const uint16_t *source = (const uint16_t *)params.q + element;
    uint32_t word[4];
    if (((uintptr_t)source & 15) == 0) {
      const uint4 all = *(const uint4 *)source;
      word[0] = all.x, word[1] = all.y, word[2] = all.z, word[3] = all.w;
    } else {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        word[n] = (uint32_t)source[2 * n] | (uint32_t)source[2 * n + 1] << 16;
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const bool bf16 = params.q_dtype == TREEATTN_BF16;
      q[2 * n] = bf16 ? ta_unpack_low<true>(word[n]) : ta_unpack_low<false>(word[n]);
      q[2 * n + 1] = bf16 ? ta_unpack_high<true>(word[n]) : ta_unpack_high<false>(word[n]);
    }
  }
  if (params.scale_hi < 0.0f) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      q[n] = -q[n];
    }
  }
}

#endif
