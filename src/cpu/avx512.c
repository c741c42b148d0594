/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table for x86-64 with AVX-512 F, BW, DQ and VL. */
#include <immintrin.h>
#include <stdint.h>

#define NAME(x) x##_avx512
enum { VW = 16 };
typedef __m512 vf;

/* 24 accumulators, 2 loads and a broadcast fill 27 of 32 registers. */
enum { SCORE_VECTORS = 2, SCORE_KEYS = 6, SCORE_KEYS_NARROW = 12, MAX_ROWS = 192 };
#define VALUE_ROWS 12
#define VALUE_VECTORS 2
#define TAIL8

static inline vf v_load(const float *p) {
  return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, vf x) {
  _mm512_storeu_ps(p, x);
}
static inline vf v_load8(const float *p) {
  return _mm512_maskz_loadu_ps(0xff, p);
}
static inline void v_store8(float *p, vf x) {
  _mm512_mask_storeu_ps(p, 0xff, x);
}
static inline vf v_set1(float x) {
  return _mm512_set1_ps(x);
}
static inline vf v_zero(void) {
  return _mm512_setzero_ps();
}
static inline vf v_add(vf a, vf b) {
  return _mm512_add_ps(a, b);
}
static inline vf v_sub(vf a, vf b) {
  return _mm512_sub_ps(a, b);
}
static inline vf v_mul(vf a, vf b) {
  return _mm512_mul_ps(a, b);
}
static inline vf v_div(vf a, vf b) {
  return _mm512_div_ps(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
  return _mm512_fmadd_ps(a, b, c);
}
static inline vf v_max(vf a, vf b) {
  return _mm512_max_ps(a, b);
}
static inline vf v_min(vf a, vf b) {
  return _mm512_min_ps(a, b);
}
static inline vf v_select_lt(vf a, vf b, vf x, vf y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
static inline unsigned v_bits_lt(vf a, vf b) {
  return (unsigned)_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
static inline unsigned v_bits_eq(vf a, vf b) {
  return (unsigned)_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
static inline vf v_abs(vf x) {
  return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x);
}
static inline vf v_or_sign(vf x, vf y) {
  return _mm512_or_ps(x, _mm512_and_ps(_mm512_set1_ps(-0.0f), y));
}
static inline vf v_exponent(vf x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 23));
}
static inline vf v_canonical(vf x) {
  const vf nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x, nan);
}
static inline vf v_load_f16(const uint16_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline vf v_load8_f16(const uint16_t *p) {
  return _mm512_cvtph_ps(_mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
static inline vf v_load_bf16(const uint16_t *p) {
  const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
static inline vf v_load8_bf16(const uint16_t *p) {
  const __m256i half = _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

static inline void v_transpose(vf x[16]) {
  vf a[16];
  for (int n = 0; n < 16; n += 2) {
    a[n] = _mm512_unpacklo_ps(x[n], x[n + 1]);
    a[n + 1] = _mm512_unpackhi_ps(x[n], x[n + 1]);
  }
  for (int n = 0; n < 16; n += 4) {
    x[n] = _mm512_shuffle_ps(a[n], a[n + 2], 0x44);
    x[n + 1] = _mm512_shuffle_ps(a[n], a[n + 2], 0xee);
    x[n + 2] = _mm512_shuffle_ps(a[n + 1], a[n + 3], 0x44);
    x[n + 3] = _mm512_shuffle_ps(a[n + 1], a[n + 3], 0xee);
  }
  /* x[4 m + n] holds column n of each 128-bit quarter of rows 4 m .. 4 m + 3; left is to transpose the quarters. */
  for (int n = 0; n < 4; ++n) {
    const vf low = _mm512_shuffle_f32x4(x[n], x[n + 4], 0x88);
    const vf high = _mm512_shuffle_f32x4(x[n], x[n + 4], 0xdd);
    const vf low2 = _mm512_shuffle_f32x4(x[n + 8], x[n + 12], 0x88);
    const vf high2 = _mm512_shuffle_f32x4(x[n + 8], x[n + 12], 0xdd);
    a[n] = _mm512_shuffle_f32x4(low, low2, 0x88);
    a[n + 8] = _mm512_shuffle_f32x4(low, low2, 0xdd);
    a[n + 4] = _mm512_shuffle_f32x4(high, high2, 0x88);
    a[n + 12] = _mm512_shuffle_f32x4(high, high2, 0xdd);
  }
  for (int n = 0; n < 16; ++n) {
    x[n] = a[n];
  }
}

#include "kernels_tmpl.h"

const ta_kernels ta_kernels_avx512 = TABLE(TREEATTN_ISA_AVX512);
