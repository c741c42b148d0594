/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pass over a stretch of logits: its largest value and whether it holds a NaN. Every machine of the two common
 * families has vectors without asking, so the choice is made when compiling.
 *
 * Values are compared as integer keys, the same order as the numbers', -0 and +0 being one: a float's bits, with the
 * magnitude negated where the sign is set. Keys do not depend on the floating-point environment.
 */
#ifndef TA_ARGMAX_SCAN_H
#define TA_ARGMAX_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__) && !defined(TA_SCAN_PORTABLE)
#include <emmintrin.h>
#define TA_SCAN_SSE2
#elif defined(__ARM_NEON) && defined(__aarch64__) && !defined(TA_SCAN_PORTABLE)
#include <arm_neon.h>
#define TA_SCAN_NEON
#endif

/* Of at least one value. */
typedef struct ta_scan {
  int32_t largest; /* a key; meaningless if there is a NaN */
  bool has_nan;
} ta_scan;

static inline int32_t ta_key_f32(const float *value) {
  int32_t bits;
  memcpy(&bits, value, sizeof bits);
  return bits < 0 ? -(bits & INT32_MAX) : bits;
}

static inline int32_t ta_key_16(uint16_t bits) {
  return (bits & 0x8000u) != 0 ? -(int32_t)(bits & 0x7fffu) : (int32_t)bits;
}

/* The magnitude of infinity; NaNs lie beyond. */
#define TA_KEY_INFINITY_F32 INT32_C(0x7f800000)
#define TA_KEY_INFINITY_F16 INT32_C(0x7c00)
#define TA_KEY_INFINITY_BF16 INT32_C(0x7f80)

static inline ta_scan ta_scan_f32_keys(const float *values, size_t count) {
  int32_t largest = -INT32_MAX;
  int32_t smallest = INT32_MAX;
  for (size_t t = 0; t < count; t++) {
    const int32_t key = ta_key_f32(&values[t]);
    largest = key > largest ? key : largest;
    smallest = key < smallest ? key : smallest;
  }
  return (ta_scan){largest, largest > TA_KEY_INFINITY_F32 || smallest < -TA_KEY_INFINITY_F32};
}

static inline ta_scan ta_scan_16_keys(const uint16_t *values, size_t count, int32_t infinity) {
  int32_t largest = -INT32_MAX;
  int32_t smallest = INT32_MAX;
  for (size_t t = 0; t < count; t++) {
    const int32_t key = ta_key_16(values[t]);
    largest = key > largest ? key : largest;
    smallest = key < smallest ? key : smallest;
  }
  return (ta_scan){largest, largest > infinity || smallest < -infinity};
}

static inline ta_scan ta_scan_join(ta_scan a, ta_scan b) {
  return (ta_scan){a.largest > b.largest ? a.largest : b.largest, a.has_nan || b.has_nan};
}

#if defined(TA_SCAN_SSE2)

enum { TA_SCAN_STEP_F32 = 16, TA_SCAN_STEP_16 = 32 };

static inline void ta_vector_scan_f32(const float *values, size_t count, float lanes[4], bool *has_nan) {
  const __m128 lowest = _mm_set1_ps(-__builtin_inff());
  __m128 m0 = lowest, m1 = lowest, m2 = lowest, m3 = lowest;
  __m128 nan = _mm_setzero_ps();
  for (size_t t = 0; t < count; t += TA_SCAN_STEP_F32) {
    const __m128 a = _mm_loadu_ps(values + t), b = _mm_loadu_ps(values + t + 4);
    const __m128 c = _mm_loadu_ps(values + t + 8), d = _mm_loadu_ps(values + t + 12);
    m0 = _mm_max_ps(a, m0); /* gives the second operand where either is NaN */
    m1 = _mm_max_ps(b, m1);
    m2 = _mm_max_ps(c, m2);
    m3 = _mm_max_ps(d, m3);
    nan = _mm_or_ps(nan, _mm_or_ps(_mm_cmpunord_ps(a, b), _mm_cmpunord_ps(c, d)));
  }
  _mm_storeu_ps(lanes, _mm_max_ps(_mm_max_ps(m0, m1), _mm_max_ps(m2, m3)));
  *has_nan = _mm_movemask_ps(nan) != 0;
}

static inline __m128i ta_vector_key_16(const uint16_t *values) {
  const __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)values);
  const __m128i sign = _mm_srai_epi16(bits, 15);
  return _mm_sub_epi16(_mm_xor_si128(_mm_and_si128(bits, _mm_set1_epi16(0x7fff)), sign), sign);
}

static inline void ta_vector_scan_16(const uint16_t *values, size_t count, int16_t largest[8], int16_t smallest[8]) {
  __m128i h0 = _mm_set1_epi16(-0x7fff), h1 = h0;
  __m128i l0 = _mm_set1_epi16(0x7fff), l1 = l0;
  for (size_t t = 0; t < count; t += TA_SCAN_STEP_16) {
    const __m128i a = ta_vector_key_16(values + t), b = ta_vector_key_16(values + t + 8);
    const __m128i c = ta_vector_key_16(values + t + 16), d = ta_vector_key_16(values + t + 24);
    h0 = _mm_max_epi16(h0, _mm_max_epi16(a, b));
    h1 = _mm_max_epi16(h1, _mm_max_epi16(c, d));
    l0 = _mm_min_epi16(l0, _mm_min_epi16(a, b));
    l1 = _mm_min_epi16(l1, _mm_min_epi16(c, d));
  }
  _mm_storeu_si128((__m128i *)(void *)largest, _mm_max_epi16(h0, h1));
  _mm_storeu_si128((__m128i *)(void *)smallest, _mm_min_epi16(l0, l1));
}

#elif defined(TA_SCAN_NEON)

enum { TA_SCAN_STEP_F32 = 16, TA_SCAN_STEP_16 = 32 };

static inline void ta_vector_scan_f32(const float *values, size_t count, float lanes[4], bool *has_nan) {
  float32x4_t m0 = vdupq_n_f32(-__builtin_inff()), m1 = m0, m2 = m0, m3 = m0;
  for (size_t t = 0; t < count; t += TA_SCAN_STEP_F32) {
    m0 = vmaxq_f32(m0, vld1q_f32(values + t)); /* a NaN stays in its lane */
    m1 = vmaxq_f32(m1, vld1q_f32(values + t + 4));
    m2 = vmaxq_f32(m2, vld1q_f32(values + t + 8));
    m3 = vmaxq_f32(m3, vld1q_f32(values + t + 12));
  }
  const float32x4_t m = vmaxq_f32(vmaxq_f32(m0, m1), vmaxq_f32(m2, m3));
  *has_nan = vminvq_u32(vceqq_f32(m, m)) == 0;
  vst1q_f32(lanes, m);
}

static inline int16x8_t ta_vector_key_16(const uint16_t *values) {
  const int16x8_t bits = vreinterpretq_s16_u16(vld1q_u16(values));
  const int16x8_t sign = vshrq_n_s16(bits, 15);
  return vsubq_s16(veorq_s16(vandq_s16(bits, vdupq_n_s16(0x7fff)), sign), sign);
}

static inline void ta_vector_scan_16(const uint16_t *values, size_t count, int16_t largest[8], int16_t smallest[8]) {
  int16x8_t h0 = vdupq_n_s16(-0x7fff), h1 = h0;
  int16x8_t l0 = vdupq_n_s16(0x7fff), l1 = l0;
  for (size_t t = 0; t < count; t += TA_SCAN_STEP_16) {
    const int16x8_t a = ta_vector_key_16(values + t), b = ta_vector_key_16(values + t + 8);
    const int16x8_t c = ta_vector_key_16(values + t + 16), d = ta_vector_key_16(values + t + 24);
    h0 = vmaxq_s16(h0, vmaxq_s16(a, b));
    h1 = vmaxq_s16(h1, vmaxq_s16(c, d));
    l0 = vminq_s16(l0, vminq_s16(a, b));
    l1 = vminq_s16(l1, vminq_s16(c, d));
  }
  vst1q_s16(largest, vmaxq_s16(h0, h1));
  vst1q_s16(smallest, vminq_s16(l0, l1));
}

#endif

#if defined(TA_SCAN_SSE2) || defined(TA_SCAN_NEON)

static inline ta_scan ta_scan_f32(const float *values, size_t count) {
  const size_t whole = count - count % TA_SCAN_STEP_F32;
  const ta_scan rest = ta_scan_f32_keys(values + whole, count - whole);
  float lanes[4];
  bool has_nan;
  ta_vector_scan_f32(values, whole, lanes, &has_nan);
  ta_scan result = ta_scan_f32_keys(lanes, 4);
  /* A thread that treats subnormals as zeros has compared them so: where that can matter, only keys are right. */
  if (!has_nan && result.largest > -INT32_C(0x00800000) && result.largest < INT32_C(0x00800000)) {
    result = ta_scan_f32_keys(values, whole);
  }
  result.has_nan = has_nan;
  return ta_scan_join(result, rest);
}

static inline ta_scan ta_scan_16(const uint16_t *values, size_t count, int32_t infinity) {
  const size_t whole = count - count % TA_SCAN_STEP_16;
  ta_scan result = ta_scan_16_keys(values + whole, count - whole, infinity);
  int16_t largest[8], smallest[8];
  ta_vector_scan_16(values, whole, largest, smallest);
  for (int lane = 0; lane < 8; lane++) {
    result.largest = largest[lane] > result.largest ? largest[lane] : result.largest;
    result.has_nan = result.has_nan || largest[lane] > infinity || smallest[lane] < -infinity;
  }
  return result;
}

#else

static inline ta_scan ta_scan_f32(const float *values, size_t count) {
  return ta_scan_f32_keys(values, count);
}

static inline ta_scan ta_scan_16(const uint16_t *values, size_t count, int32_t infinity) {
  return ta_scan_16_keys(values, count, infinity);
}

#endif

#endif
