/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of the fast mode between its two products, the same for every kernel.
 *
 * Scores of 16 rows x 64 positions lie in a warp as matrix instructions leave them: a thread has rows r = lane / 4 and
 * r + 8, and of each row the positions 8 j + 2 (lane % 4) + {0, 1}, j = 0 .. 7, in s[4 j + {0, 1}] and s[4 j + {2, 3}].
 * With c > 0 the scale in units of log2 and bias 0 where there is none,
 *
 *     max'   = max(max, largest t),  t = fma(bias, log2 e, s c)          over the positions seen
 *     p      = exp2(fma(s, c, fma(bias, log2 e, -max')))
 *     alpha  = exp2(max - max')
 *     sum'   = fma(sum, alpha, p summed over the tile)
 *
 * The sum over a tile: each thread adds its 8 even and its 8 odd positions in order, then both, then the four threads of a
 * row pairwise. A tile without a seen position changes nothing and is left out.
 */
#ifndef TA_CUDA_FAST_SOFTMAX_CUH
#define TA_CUDA_FAST_SOFTMAX_CUH

#include "../softmax_state.h"
#include "ptx.cuh"

/* tanh with an absolute error of a few 2^-23, from the stated errors of its two instructions: that, times the cap, is what a
 * score sees. Not ta_tanh, whose last bits cost registers. */
__device__ __forceinline__ float ta_fast_tanh(float x) {
  const float e = ta_fast_exp2(__fmul_rn(x, TA_TANH_2LOG2E));
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(__fadd_rn(e, 1.0f)));
  return __fmaf_rn(-2.0f, r, 1.0f);
}

/* {max, sum} of the two rows of a thread. */
struct ta_fast_rows {
  float max[2];
  float sum[2];
};

__device__ __forceinline__ void ta_fast_rows_clear(ta_fast_rows &rows) {
  rows.max[0] = rows.max[1] = TA_STATE_MAX_OF_NONE;
  rows.sum[0] = rows.sum[1] = 0.0f;
}

__device__ __forceinline__ float ta_quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float ta_quad_sum(float x) {
  x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* Scores of which every one is seen and none has a bias: s becomes p. Each row alone is a chain of dependent instructions:
 * with SIDE_BY_SIDE both are taken at once, which needs more registers. */
template <bool SIDE_BY_SIDE>
__device__ __forceinline__ void ta_fast_softmax(float (&s)[32], float c, ta_fast_rows &rows, float (&alpha)[2]) {
  if constexpr (!SIDE_BY_SIDE) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = s[2 * r];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        most = fmaxf(most, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      }
      const float max = fmaxf(rows.max[r], __fmul_rn(ta_quad_max(most), c));
      alpha[r] = ta_fast_exp2(__fsub_rn(rows.max[r], max));
      float evens = 0.0f;
      float odds = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float &p = s[4 * j + 2 * r];
        float &q = s[4 * j + 2 * r + 1];
        p = ta_fast_exp2(__fmaf_rn(p, c, -max));
        q = ta_fast_exp2(__fmaf_rn(q, c, -max));
        evens = __fadd_rn(evens, p);
        odds = __fadd_rn(odds, q);
      }
      rows.max[r] = max;
      rows.sum[r] = __fmaf_rn(rows.sum[r], alpha[r], ta_quad_sum(__fadd_rn(evens, odds)));
    }
  } else {
  float largest[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float part[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      part[q] = fmaxf(fmaxf(s[8 * q + 2 * r], s[8 * q + 2 * r + 1]), fmaxf(s[8 * q + 4 + 2 * r], s[8 * q + 5 + 2 * r]));
    }
    largest[r] = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
  }
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const float other[2] = {__shfl_xor_sync(0xffffffffu, largest[0], step),
                            __shfl_xor_sync(0xffffffffu, largest[1], step)};
    largest[0] = fmaxf(largest[0], other[0]);
    largest[1] = fmaxf(largest[1], other[1]);
  }
  float shift[2];
  float even[2] = {0.0f, 0.0f};
  float odd[2] = {0.0f, 0.0f};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float max = fmaxf(rows.max[r], __fmul_rn(largest[r], c));
    alpha[r] = ta_fast_exp2(__fsub_rn(rows.max[r], max));
    rows.max[r] = max;
    shift[r] = -max;
  }
#pragma unroll
  for (int n = 0; n < 32; ++n) {
    s[n] = ta_fast_exp2(__fmaf_rn(s[n], c, shift[n / 2 % 2]));
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      even[r] = __fadd_rn(even[r], s[4 * j + 2 * r]);
      odd[r] = __fadd_rn(odd[r], s[4 * j + 2 * r + 1]);
    }
  }
  float sum[2] = {__fadd_rn(even[0], odd[0]), __fadd_rn(even[1], odd[1])};
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const float other[2] = {__shfl_xor_sync(0xffffffffu, sum[0], step), __shfl_xor_sync(0xffffffffu, sum[1], step)};
    sum[0] = __fadd_rn(sum[0], other[0]);
    sum[1] = __fadd_rn(sum[1], other[1]);
  }
  rows.sum[0] = __fmaf_rn(rows.sum[0], alpha[0], sum[0]);
  rows.sum[1] = __fmaf_rn(rows.sum[1], alpha[1], sum[1]);
  }
}

/* The same where some positions are hidden: bit p of `seen` for position p, one word for both rows. bias[position], the
 * same for both rows. With `rows_used` 1 the second row is left alone. */
template <bool BIAS>
__device__ __forceinline__ void ta_fast_softmax_masked(float (&s)[32], float c, uint64_t seen, const float *bias,
                                                       int rows_used, ta_fast_rows &rows, float (&alpha)[2]) {
  const int first = 2 * (threadIdx.x & 3);
  const uint32_t words[2] = {(uint32_t)seen >> first, (uint32_t)(seen >> 32) >> first};
  alpha[1] = 1.0f;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (r < rows_used) {
      float largest = -INFINITY;
#pragma unroll
      for (int n = 0; n < 16; ++n) {
        float t = __fmul_rn(s[4 * (n / 2) + 2 * r + n % 2], c);
        if constexpr (BIAS) {
          t = __fmaf_rn(bias[8 * (n / 2) + first + n % 2], TA_LOG2E_F, t);
        }
        largest = (words[n / 8] & (1u << (8 * (n / 2 % 4) + n % 2))) != 0 ? fmaxf(largest, t) : largest;
      }
      const float max = fmaxf(rows.max[r], ta_quad_max(largest));
      alpha[r] = ta_fast_exp2(__fsub_rn(rows.max[r], max));
      float sum[2] = {0.0f, 0.0f};
#pragma unroll
      for (int n = 0; n < 16; ++n) {
        float &w = s[4 * (n / 2) + 2 * r + n % 2];
        float shift = -max;
        if constexpr (BIAS) {
          shift = __fmaf_rn(bias[8 * (n / 2) + first + n % 2], TA_LOG2E_F, shift);
        }
        w = ta_fast_exp2(__fmaf_rn(w, c, shift));
        w = (words[n / 8] & (1u << (8 * (n / 2 % 4) + n % 2))) != 0 ? w : 0.0f;
        sum[n % 2] = __fadd_rn(sum[n % 2], w);
      }
      rows.max[r] = max;
      rows.sum[r] = __fmaf_rn(rows.sum[r], alpha[r], ta_quad_sum(__fadd_rn(sum[0], sum[1])));
    }
  }
}

/* Weights as the left operand of 16 positions, step n of the tile: rounded, and for bf16 what rounding left, as a second
 * operand. */
template <bool BF16>
__device__ __forceinline__ void ta_fast_weights(const float (&p)[32], int n, uint32_t (&high)[4], uint32_t (&low)[4]) {
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float a = p[8 * n + 2 * (q & 1) + 4 * (q >> 1)];
    const float b = p[8 * n + 2 * (q & 1) + 4 * (q >> 1) + 1];
    high[q] = ta_pack<BF16>(a, b);
    if constexpr (BF16) {
      low[q] = ta_pack<BF16>(__fsub_rn(a, ta_unpack_low<BF16>(high[q])), __fsub_rn(b, ta_unpack_high<BF16>(high[q])));
    }
  }
}

/* How two states of a row are joined: out = fma(b, wb, a * wa); an empty side leaves the other bit for bit. */
struct ta_fast_join {
  float wa, wb;
  bool keep_a, take_b;
};

__device__ __forceinline__ ta_fast_join ta_fast_join_rows(float &max_a, float &sum_a, float max_b, float sum_b) {
  ta_fast_join join = {1.0f, 0.0f, false, false};
  if (sum_b == 0.0f) {
    join.keep_a = true;
  } else if (sum_a == 0.0f) {
    join.take_b = true;
    max_a = max_b;
    sum_a = sum_b;
  } else {
    const float max = fmaxf(max_a, max_b);
    join.wa = ta_fast_exp2(__fsub_rn(max_a, max));
    join.wb = ta_fast_exp2(__fsub_rn(max_b, max));
    max_a = max;
    sum_a = __fmaf_rn(sum_b, join.wb, __fmul_rn(sum_a, join.wa));
  }
  return join;
}

__device__ __forceinline__ float ta_fast_join_values(const ta_fast_join &join, float a, float b) {
  return join.keep_a ? a : join.take_b ? b : __fmaf_rn(b, join.wb, __fmul_rn(a, join.wa));
}

#endif
