/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table for AArch64, whose base instruction set has fused multiply-adds and f16 conversion. */
#include <arm_neon.h>
#include <stdint.h>

#define NAME(x) x##_neon
enum { VW = 4 };
typedef float32x4_t vf;

/* 24 accumulators, 4 loads and a broadcast fill 29 of 32 registers. */
enum { SCORE_VECTORS = 4, SCORE_KEYS = 3, SCORE_KEYS_NARROW = 12, MAX_ROWS = 128 };
#define VALUE_ROWS 6
#define VALUE_VECTORS 4

static inline vf v_load(const float *p) {
  return vld1q_f32(p);
}
static inline void v_store(float *p, vf x) {
  vst1q_f32(p, x);
}
static inline vf v_set1(float x) {
  return vdupq_n_f32(x);
}
static inline vf v_zero(void) {
  return vdupq_n_f32(0.0f);
}
static inline vf v_add(vf a, vf b) {
  return vaddq_f32(a, b);
}
static inline vf v_sub(vf a, vf b) {
  return vsubq_f32(a, b);
}
static inline vf v_mul(vf a, vf b) {
  return vmulq_f32(a, b);
}
static inline vf v_div(vf a, vf b) {
  return vdivq_f32(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
  return vfmaq_f32(c, a, b);
}
/* The NEON maximum returns NaN for any NaN; the template asks for the second operand, as a select gives it. */
static inline vf v_max(vf a, vf b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
static inline vf v_min(vf a, vf b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}
static inline vf v_select_lt(vf a, vf b, vf x, vf y) {
  return vbslq_f32(vcltq_f32(a, b), x, y);
}
static inline unsigned lane_bits(uint32x4_t lanes) {
  const uint32x4_t weights = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(lanes, weights));
}
static inline unsigned v_bits_lt(vf a, vf b) {
  return lane_bits(vcltq_f32(a, b));
}
static inline unsigned v_bits_eq(vf a, vf b) {
  return lane_bits(vceqq_f32(a, b));
}
static inline vf v_abs(vf x) {
  return vabsq_f32(x);
}
static inline vf v_or_sign(vf x, vf y) {
  const uint32x4_t sign = vandq_u32(vreinterpretq_u32_f32(y), vdupq_n_u32(0x80000000u));
  return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(x), sign));
}
static inline vf v_exponent(vf x) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(x), 23));
}
static inline vf v_canonical(vf x) {
  return vbslq_f32(vceqq_f32(x, x), x, vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000u)));
}
static inline vf v_load_f16(const uint16_t *p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline vf v_load_bf16(const uint16_t *p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

static inline void v_transpose(vf x[4]) {
  const float32x4_t a0 = vtrn1q_f32(x[0], x[1]);
  const float32x4_t a1 = vtrn2q_f32(x[0], x[1]);
  const float32x4_t a2 = vtrn1q_f32(x[2], x[3]);
  const float32x4_t a3 = vtrn2q_f32(x[2], x[3]);
  x[0] = vcombine_f32(vget_low_f32(a0), vget_low_f32(a2));
  x[1] = vcombine_f32(vget_low_f32(a1), vget_low_f32(a3));
  x[2] = vcombine_f32(vget_high_f32(a0), vget_high_f32(a2));
  x[3] = vcombine_f32(vget_high_f32(a1), vget_high_f32(a3));
}

#include "kernels_tmpl.h"

const ta_kernels ta_kernels_neon = TABLE(TREEATTN_ISA_NEON);
