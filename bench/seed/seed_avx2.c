/* SPDX-License-Identifier: Apache-2.0 */
/* The baseline's inner loops with AVX2, FMA and F16C. */
#include "seed.h"
#include "seed_kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#include <math.h>

#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define INLINE AVX2 static inline __attribute__((always_inline))

/* Eight channels of a cache row. */
INLINE __m256 load8(const char *row, int64_t d, int is_half) {
  if (is_half) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(row + 2 * d)));
  }
  return _mm256_loadu_ps((const float *)(const void *)(row + 4 * d));
}

/* exp for x <= 0: 2^n times a polynomial of degree 6 on [-ln2/2, ln2/2]; 0 below the smallest normal number. */
INLINE __m256 exp8(__m256 x) {
  const __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ);
  const __m256 n =
      _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.0f / 720.0f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  const __m256i power = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power));
  return _mm256_andnot_ps(tiny, p);
}

INLINE float max8(__m256 x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
}

INLINE float sum8(__m256 x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
}

/* Scores of eight keys: eight running products, then one transposing sum. */
INLINE __m256 dots8(const float *q, const char *k, size_t row_bytes, int64_t dim, int is_half) {
  __m256 acc[8];
  for (int j = 0; j < 8; j++) {
    acc[j] = _mm256_setzero_ps();
  }
  for (int64_t d = 0; d < dim; d += 8) {
    const __m256 x = _mm256_load_ps(q + d);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
      acc[j] = _mm256_fmadd_ps(x, load8(k + (size_t)j * row_bytes, d, is_half), acc[j]);
    }
  }
  const __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(acc[0], acc[1]), _mm256_hadd_ps(acc[2], acc[3]));
  const __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(acc[4], acc[5]), _mm256_hadd_ps(acc[6], acc[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

INLINE float dot1(const float *q, const char *k, int64_t dim, int is_half) {
  __m256 acc = _mm256_setzero_ps();
  for (int64_t d = 0; d < dim; d += 8) {
    acc = _mm256_fmadd_ps(_mm256_load_ps(q + d), load8(k, d, is_half), acc);
  }
  return sum8(acc);
}

/* `width` vectors of channels from d on: sums = sums * correction + weights . V */
INLINE void weigh(const float *weights, const char *v, size_t row_bytes, int64_t num_keys, int64_t d, int width,
                  float correction, float *sums, int is_half) {
  __m256 acc[8];
  const __m256 factor = _mm256_set1_ps(correction);
  for (int w = 0; w < width; w++) {
    acc[w] = _mm256_mul_ps(_mm256_loadu_ps(sums + d + 8 * w), factor);
  }
  for (int64_t j = 0; j < num_keys; j++) {
    const __m256 weight = _mm256_broadcast_ss(weights + j);
#pragma GCC unroll 8
    for (int w = 0; w < width; w++) {
      acc[w] = _mm256_fmadd_ps(weight, load8(v + (size_t)j * row_bytes, d + 8 * w, is_half), acc[w]);
    }
  }
  for (int w = 0; w < width; w++) {
    _mm256_storeu_ps(sums + d + 8 * w, acc[w]);
  }
}

INLINE void chunk(const float *q, const char *k, const char *v, const float *mask, int64_t num_keys, int64_t dim,
                  float scale, seed_state *state, float *sums, int is_half) {
  const size_t row_bytes = (size_t)dim * (is_half ? 2 : 4);
  _Alignas(32) float weights[SEED_CHUNK];
  int64_t j = 0;
  for (; j + 8 <= num_keys; j += 8) {
    const __m256 dots = dots8(q, k + (size_t)j * row_bytes, row_bytes, dim, is_half);
    _mm256_store_ps(weights + j, _mm256_fmadd_ps(dots, _mm256_set1_ps(scale), _mm256_loadu_ps(mask + j)));
  }
  for (; j < num_keys; j++) {
    weights[j] = dot1(q, k + (size_t)j * row_bytes, dim, is_half) * scale + mask[j];
  }
  for (; j % 8 != 0; j++) { /* keys past the end: never read, weight 0 */
    weights[j] = -INFINITY;
  }

  __m256 best = _mm256_set1_ps(state->max);
  for (int64_t i = 0; i < j; i += 8) {
    best = _mm256_max_ps(best, _mm256_load_ps(weights + i));
  }
  const float max = max8(best);
  const float correction = _mm256_cvtss_f32(exp8(_mm256_set1_ps(state->max - max)));
  __m256 sum = _mm256_setzero_ps();
  for (int64_t i = 0; i < j; i += 8) {
    const __m256 weight = exp8(_mm256_sub_ps(_mm256_load_ps(weights + i), _mm256_set1_ps(max)));
    _mm256_store_ps(weights + i, weight);
    sum = _mm256_add_ps(sum, weight);
  }
  state->sum = state->sum * correction + sum8(sum);
  state->max = max;

  int64_t d = 0;
  for (; d + 64 <= dim; d += 64) {
    weigh(weights, v, row_bytes, num_keys, d, 8, correction, sums, is_half);
  }
  for (; d + 32 <= dim; d += 32) {
    weigh(weights, v, row_bytes, num_keys, d, 4, correction, sums, is_half);
  }
  for (; d < dim; d += 8) {
    weigh(weights, v, row_bytes, num_keys, d, 1, correction, sums, is_half);
  }
}

AVX2 static void chunk_f32(const float *q, const void *k, const void *v, const float *mask, int64_t num_keys,
                           int64_t dim, float scale, seed_state *state, float *sums) {
  chunk(q, k, v, mask, num_keys, dim, scale, state, sums, 0);
}

AVX2 static void chunk_f16(const float *q, const void *k, const void *v, const float *mask, int64_t num_keys,
                           int64_t dim, float scale, seed_state *state, float *sums) {
  chunk(q, k, v, mask, num_keys, dim, scale, state, sums, 1);
}

AVX2 static void reduce(const float *sums, const float *weights, int64_t dim, float *out) {
  for (int64_t d = 0; d < dim; d += 8) {
    __m256 acc = _mm256_setzero_ps();
    for (int split = 0; split < SEED_SPLITS; split++) {
      acc = _mm256_fmadd_ps(_mm256_broadcast_ss(weights + split), _mm256_load_ps(sums + split * dim + d), acc);
    }
    _mm256_storeu_ps(out + d, acc);
  }
}

const seed_kernels *seed_kernels_avx2(void) {
  static const seed_kernels kernels = {"avx2", chunk_f32, chunk_f16, reduce};
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  /* Not every compiler knows "f16c" as a feature name. */
  const int has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) != 0;
  return has_f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kernels : NULL;
}

#else

const seed_kernels *seed_kernels_avx2(void) {
  return NULL;
}

#endif
