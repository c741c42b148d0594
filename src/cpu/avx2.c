/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table for x86-64 with AVX2, FMA and F16C. */
#include <immintrin.h>
#include <stdint.h>

#define NAME(x) x##_avx2
enum { VW = 8 };
typedef __m256 vf;

/* 12 accumulators, 2 loads and a broadcast fill 15 of 16 registers. */
enum { SCORE_VECTORS = 2, SCORE_KEYS = 3, SCORE_KEYS_NARROW = 6, MAX_ROWS = 128 };
#define VALUE_ROWS 6
#define VALUE_VECTORS 2

static inline vf v_load(const float *p) {
  return _mm256_loadu_ps(p);
}
static inline void v_store(float *p, vf x) {
  _mm256_storeu_ps(p, x);
}
static inline vf v_set1(float x) {
  return _mm256_set1_ps(x);
}
static inline vf v_zero(void) {
  return _mm256_setzero_ps();
}
static inline vf v_add(vf a, vf b) {
  return _mm256_add_ps(a, b);
}
static inline vf v_sub(vf a, vf b) {
  return _mm256_sub_ps(a, b);
}
static inline vf v_mul(vf a, vf b) {
  return _mm256_mul_ps(a, b);
}
static inline vf v_div(vf a, vf b) {
  return _mm256_div_ps(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
  return _mm256_fmadd_ps(a, b, c);
}
static inline vf v_max(vf a, vf b) {
  return _mm256_max_ps(a, b);
}
static inline vf v_min(vf a, vf b) {
  return _mm256_min_ps(a, b);
}
static inline vf v_select_lt(vf a, vf b, vf x, vf y) {
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
static inline unsigned v_bits_lt(vf a, vf b) {
  return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
static inline unsigned v_bits_eq(vf a, vf b) {
  return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}
static inline vf v_abs(vf x) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}
static inline vf v_or_sign(vf x, vf y) {
  return _mm256_or_ps(x, _mm256_and_ps(_mm256_set1_ps(-0.0f), y));
}
static inline vf v_exponent(vf x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23));
}
static inline vf v_canonical(vf x) {
  const vf nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
static inline vf v_load_f16(const uint16_t *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
static inline vf v_load_bf16(const uint16_t *p) {
  const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)p);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

static inline void v_transpose(vf x[8]) {
  vf a[8];
  vf b[8];
  for (int n = 0; n < 8; n += 2) {
    a[n] = _mm256_unpacklo_ps(x[n], x[n + 1]);
    a[n + 1] = _mm256_unpackhi_ps(x[n], x[n + 1]);
  }
  for (int n = 0; n < 8; n += 4) {
    b[n] = _mm256_shuffle_ps(a[n], a[n + 2], 0x44);
    b[n + 1] = _mm256_shuffle_ps(a[n], a[n + 2], 0xee);
    b[n + 2] = _mm256_shuffle_ps(a[n + 1], a[n + 3], 0x44);
    b[n + 3] = _mm256_shuffle_ps(a[n + 1], a[n + 3], 0xee);
  }
  for (int n = 0; n < 4; ++n) {
    x[n] = _mm256_permute2f128_ps(b[n], b[n + 4], 0x20);
    x[n + 4] = _mm256_permute2f128_ps(b[n], b[n + 4], 0x31);
  }
}

#include "kernels_tmpl.h"

const ta_kernels ta_kernels_avx2 = TABLE(TREEATTN_ISA_AVX2);
