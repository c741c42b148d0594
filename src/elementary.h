/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The elementary functions whose bits are a promise: exp2, tanh, log and the 16-bit conversions, in scalar form.
 * Vector code repeats the same sequence of operations with the same constants; nothing here may be re-associated.
 * Polynomials are minimax fits of our own; fmaf is the fused operation wherever it is written and nowhere else.
 */
#ifndef TA_ELEMENTARY_H
#define TA_ELEMENTARY_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* GPU code is compiled from the same lines, without contraction of products and sums. */
#if defined(__CUDACC__)
#define TA_FUNCTION static __host__ __device__ inline
#else
#define TA_FUNCTION static inline
#endif

#define TA_LOG2E 1.44269504088896340736
#define TA_LOG2E_F 0x1.715476p+0f
#define TA_LN2_HI 0x1.62e430p-1f   /* ln 2 rounded to f32 */
#define TA_LN2_LO -0x1.05c610p-29f /* ln 2 - TA_LN2_HI */

/* exp2(f) = 1 + f * g(f) on [-1/2, 1/2]; g has degree 5, relative error of the fit 3.0e-9. */
#define TA_EXP2_LOWEST -127.0f
#define TA_EXP2_MAGIC 12583039.0f /* 1.5 * 2^23 + 127: rounds to an integer and leaves integer + 127 in the low bits */
#define TA_EXP2_G0 0x1.62e430p-1f
#define TA_EXP2_G1 0x1.ebfbdcp-3f
#define TA_EXP2_G2 0x1.c6af7cp-5f
#define TA_EXP2_G3 0x1.3b2de0p-7f
#define TA_EXP2_G4 0x1.5f082ep-10f
#define TA_EXP2_G5 0x1.416b5ep-13f

/* tanh(x) = x + x u P(u) with u = x^2 below the switch; P has degree 4, relative error of the fit 4.4e-9. */
#define TA_TANH_SWITCH 0.625f
#define TA_TANH_LIMIT 10.0f /* tanh rounds to 1 well before */
#define TA_TANH_2LOG2E 0x1.715476p+1f
#define TA_TANH_P0 -0x1.555532p-2f
#define TA_TANH_P1 0x1.110726p-3f
#define TA_TANH_P2 -0x1.b83c5ap-5f
#define TA_TANH_P3 0x1.52269cp-6f
#define TA_TANH_P4 -0x1.75e1cep-8f

TA_FUNCTION float ta_float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

TA_FUNCTION uint32_t ta_float_to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* The one NaN that results hold. */
TA_FUNCTION float ta_quiet_nan(void) {
  return ta_float_from_bits(0x7fc00000u);
}

/*
 * 2^x for x <= 127 within 1.05 units in the last place; +0 at and below -126.5 (so for -infinity), NaN for NaN.
 * The scale 2^n is multiplied in by the last fused operation, which lets a NaN through whatever its payload.
 */
TA_FUNCTION float ta_exp2(float x) {
  const float clamped = x < TA_EXP2_LOWEST ? TA_EXP2_LOWEST : x; /* false for NaN, which stays */
  const float shifted = clamped + TA_EXP2_MAGIC;
  const float f = clamped - (shifted - TA_EXP2_MAGIC);
  const float scale = ta_float_from_bits(ta_float_to_bits(shifted) << 23);
  float g = fmaf(TA_EXP2_G5, f, TA_EXP2_G4);
  g = fmaf(g, f, TA_EXP2_G3);
  g = fmaf(g, f, TA_EXP2_G2);
  g = fmaf(g, f, TA_EXP2_G1);
  g = fmaf(g, f, TA_EXP2_G0);
  return fmaf(scale, g * f, scale);
}

/* tanh within 2 units in the last place; odd, NaN for NaN. */
TA_FUNCTION float ta_tanh(float x) {
  const uint32_t sign = ta_float_to_bits(x) & 0x80000000u;
  const float magnitude = ta_float_from_bits(ta_float_to_bits(x) & 0x7fffffffu);
  const float u = magnitude * magnitude;
  float poly = fmaf(TA_TANH_P4, u, TA_TANH_P3);
  poly = fmaf(poly, u, TA_TANH_P2);
  poly = fmaf(poly, u, TA_TANH_P1);
  poly = fmaf(poly, u, TA_TANH_P0);
  const float small = fmaf(magnitude * u, poly, magnitude);
  const float limited = magnitude > TA_TANH_LIMIT ? TA_TANH_LIMIT : magnitude;
  const float large = 1.0f - 2.0f / (ta_exp2(limited * TA_TANH_2LOG2E) + 1.0f);
  const float result = magnitude < TA_TANH_SWITCH ? small : large;
  return ta_float_from_bits(ta_float_to_bits(result) | sign);
}

/* ln x for normal x > 0 within 2 units in the last place; NaN for NaN. */
TA_FUNCTION float ta_log(float x) {
  if (x != x) {
    return x;
  }
  /* x = 2^e m with m in [sqrt(1/2), sqrt(2)). */
  const uint32_t bits = ta_float_to_bits(x) - 0x3f3504f3u;
  const float e = (float)((int32_t)bits >> 23);
  const float m = ta_float_from_bits((bits & 0x007fffffu) + 0x3f3504f3u);
  const float r = m - 1.0f;
  float q = fmaf(0x1.1457acp-4f, r, -0x1.de3c16p-4f);
  q = fmaf(q, r, 0x1.e6f06ap-4f);
  q = fmaf(q, r, -0x1.fc2206p-4f);
  q = fmaf(q, r, 0x1.233768p-3f);
  q = fmaf(q, r, -0x1.555c4ep-3f);
  q = fmaf(q, r, 0x1.99a4b6p-3f);
  q = fmaf(q, r, -0x1.000006p-2f);
  q = fmaf(q, r, 0x1.555548p-2f);
  const float y = fmaf(r * r, fmaf(r, q, -0.5f), r);
  return fmaf(e, TA_LN2_HI, fmaf(e, TA_LN2_LO, y));
}

/* binary16 to binary32, exact for every pattern; a signalling NaN becomes quiet, as conversion instructions do. */
TA_FUNCTION float ta_float_from_f16(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  const uint32_t rest = half & 0x7fffu;
  if (rest >= 0x7c00u) {
    const uint32_t quiet = rest > 0x7c00u ? 0x00400000u : 0;
    return ta_float_from_bits(sign | 0x7f800000u | ((rest & 0x03ffu) << 13) | quiet);
  }
  if (rest < 0x0400u) { /* zero or subnormal: rest * 2^-24, exact in f32 */
    return ta_float_from_bits(sign | ta_float_to_bits((float)rest * 0x1.0p-24f));
  }
  return ta_float_from_bits(sign | ((rest << 13) + 0x38000000u));
}

TA_FUNCTION float ta_float_from_bf16(uint16_t half) {
  return ta_float_from_bits((uint32_t)half << 16);
}

#endif
