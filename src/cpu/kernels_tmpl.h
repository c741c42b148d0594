/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of kernels.h, written once in verbs that each instruction set defines before including this file:
 *
 *   NAME(x)                     x with the suffix of the instruction set
 *   vf, VW                      a vector of f32 and its number of lanes
 *   v_load v_store v_set1 v_zero v_add v_sub v_mul v_div v_fma(a, b, c) = a * b + c
 *   v_max v_min                 return the second operand when either is NaN
 *   v_select_lt(a, b, x, y)     a < b ? x : y        v_abs   v_or_sign(x, y): |x| with the sign bits of y or-ed in
 *   v_bits_lt v_bits_eq         one bit for each lane where a < b, a == b; never where one is NaN
 *   v_exponent(x)               the bits of x shifted left by 23, as f32
 *   v_canonical(x)              x, with any NaN replaced by the one of ta_quiet_nan
 *   v_load_f16 v_load_bf16      VW elements, converted
 *   SCORE_VECTORS, SCORE_KEYS, SCORE_KEYS_NARROW, VALUE_ROWS, VALUE_VECTORS, MAX_ROWS       register tiles
 *   v_transpose(vf x[VW])       x[i] lane j becomes x[j] lane i
 *   TAIL8                       defined where VW is 16: v_load8 v_store8 v_load8_f16 v_load8_bf16 handle a last 8
 *
 * Loops over tile indices have constant bounds and are unrolled, so that the accumulators live in registers.
 */
#include <string.h>

#include "../elementary.h"
#include "kernels.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define INSTRUMENTED /* unrolled and instrumented, these loops take minutes to compile */
#endif
#endif

#if defined(INSTRUMENTED)
#define UNROLL
#define INLINE static inline
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define INLINE static inline __attribute__((always_inline))
#elif defined(__GNUC__)
#define UNROLL _Pragma("GCC unroll 32")
#define INLINE static inline __attribute__((always_inline))
#else
#define UNROLL
#define INLINE static inline
#endif

enum {
  PANEL = VW * VALUE_VECTORS,
  FEW_ROWS = VW < 6 ? VW : 6,
  SCORE_KEYS_MOST = SCORE_KEYS_NARROW > SCORE_KEYS ? SCORE_KEYS_NARROW : SCORE_KEYS
};

/* ---- memory ---- */

/* Cache lines to ask for at each of `steps`, so that all are under way at the last one. */
INLINE int64_t lines_per_step(const ta_ahead *ahead, int64_t steps) {
  const int64_t lines = (ahead->num_rows - ahead->row) * ((ahead->row_bytes + 63) / 64);
  return steps <= 0 ? 0 : (lines + steps - 1) / steps;
}

INLINE void ask_ahead(ta_ahead *ahead, int64_t lines) {
#if defined(__GNUC__)
  for (; lines > 0 && ahead->row < ahead->num_rows; --lines) {
    __builtin_prefetch((const char *)ahead->rows[ahead->row] + ahead->byte, 0, 3);
    ahead->byte += 64;
    if (ahead->byte >= ahead->row_bytes) {
      ahead->byte = 0;
      ++ahead->row;
    }
  }
#else
  (void)ahead, (void)lines;
#endif
}

/* ---- masks ---- */

static uint64_t NAME(scan_cells)(const float *cells, unsigned facts[2]) {
  /* All cells 0, as in most of a prefix: reading them is then all that it costs. NaN and infinities stay in sums. */
  vf sums[2] = {v_zero(), v_zero()};
  for (int n = 0; n < 64; n += 2 * VW) {
    sums[0] = v_add(sums[0], v_abs(v_load(cells + n)));
    sums[1] = v_add(sums[1], v_abs(v_load(cells + n + VW)));
  }
  if (v_bits_eq(v_add(sums[0], sums[1]), v_zero()) == (1u << VW) - 1u) {
    return ~(uint64_t)0;
  }
  uint64_t bits = 0;
  unsigned bias = 0;
  unsigned invalid = 0;
  for (int n = 0; n < 64; n += VW) {
    const vf cell = v_load(cells + n);
    const unsigned seen = v_bits_lt(v_set1(TREEATTN_MASK_HIDDEN), cell);
    const unsigned valid = v_bits_lt(cell, v_set1(TA_LARGEST_LOGIT)) | v_bits_eq(cell, v_set1(TA_LARGEST_LOGIT));
    bias |= seen & ~v_bits_eq(cell, v_zero());
    invalid |= ~valid & ((1u << VW) - 1u);
    bits |= (uint64_t)seen << n;
  }
  facts[0] |= bias;
  facts[1] |= invalid;
  return bits;
}

/* ---- conversion ---- */

INLINE vf load_as(const int dtype, const void *source, int64_t d) {
  if (dtype == TREEATTN_F16) {
    return v_load_f16((const uint16_t *)source + d);
  }
  if (dtype == TREEATTN_BF16) {
    return v_load_bf16((const uint16_t *)source + d);
  }
  return v_load((const float *)source + d);
}

#ifdef TAIL8
INLINE vf load8_as(const int dtype, const void *source, int64_t d) {
  if (dtype == TREEATTN_F16) {
    return v_load8_f16((const uint16_t *)source + d);
  }
  if (dtype == TREEATTN_BF16) {
    return v_load8_bf16((const uint16_t *)source + d);
  }
  return v_load8((const float *)source + d);
}
#endif

INLINE void convert_as(const int dtype, const void *source, int64_t count, float *target) {
  int64_t d = 0;
  for (; d + VW <= count; d += VW) {
    v_store(target + d, load_as(dtype, source, d));
  }
#ifdef TAIL8
  if (d < count) {
    v_store8(target + d, load8_as(dtype, source, d));
  }
#endif
}

static void NAME(convert)(treeattn_dtype dtype, const void *source, int64_t count, float *target) {
  switch (dtype) {
    case TREEATTN_F32: convert_as(TREEATTN_F32, source, count, target); break;
    case TREEATTN_F16: convert_as(TREEATTN_F16, source, count, target); break;
    case TREEATTN_BF16: convert_as(TREEATTN_BF16, source, count, target); break;
  }
}

INLINE void convert_panels_as(const int dtype, const void *source, int64_t count, float *target, int64_t panel_stride) {
  int64_t d = 0;
  for (; d + PANEL <= count; d += PANEL) {
    UNROLL
    for (int n = 0; n < VALUE_VECTORS; ++n) {
      v_store(target + n * VW, load_as(dtype, source, d + n * VW));
    }
    target += panel_stride;
  }
  if (d < count) { /* the last panel: what the row has, then zeros */
    for (int n = 0; n < VALUE_VECTORS; ++n, d += VW) {
      vf part = v_zero();
      if (d + VW <= count) {
        part = load_as(dtype, source, d);
      }
#ifdef TAIL8
      else if (d < count) {
        part = load8_as(dtype, source, d);
      }
#endif
      v_store(target + n * VW, part);
    }
  }
}

static void NAME(convert_panels)(treeattn_dtype dtype, const void *source, int64_t count, float *target,
                                 int64_t panel_stride) {
  switch (dtype) {
    case TREEATTN_F32: convert_panels_as(TREEATTN_F32, source, count, target, panel_stride); break;
    case TREEATTN_F16: convert_panels_as(TREEATTN_F16, source, count, target, panel_stride); break;
    case TREEATTN_BF16: convert_panels_as(TREEATTN_BF16, source, count, target, panel_stride); break;
  }
}

#include "scores_tmpl.h"

/* ---- elementwise: the operations of elementary.h, lane by lane ---- */

INLINE vf exp2_of(vf x) {
  const vf clamped = v_max(v_set1(TA_EXP2_LOWEST), x);
  const vf shifted = v_add(clamped, v_set1(TA_EXP2_MAGIC));
  const vf f = v_sub(clamped, v_sub(shifted, v_set1(TA_EXP2_MAGIC)));
  const vf scale = v_exponent(shifted);
  vf g = v_fma(v_set1(TA_EXP2_G5), f, v_set1(TA_EXP2_G4));
  g = v_fma(g, f, v_set1(TA_EXP2_G3));
  g = v_fma(g, f, v_set1(TA_EXP2_G2));
  g = v_fma(g, f, v_set1(TA_EXP2_G1));
  g = v_fma(g, f, v_set1(TA_EXP2_G0));
  return v_fma(scale, v_mul(g, f), scale);
}

INLINE vf tanh_of(vf x) {
  const vf magnitude = v_abs(x);
  const vf u = v_mul(magnitude, magnitude);
  vf poly = v_fma(v_set1(TA_TANH_P4), u, v_set1(TA_TANH_P3));
  poly = v_fma(poly, u, v_set1(TA_TANH_P2));
  poly = v_fma(poly, u, v_set1(TA_TANH_P1));
  poly = v_fma(poly, u, v_set1(TA_TANH_P0));
  const vf small = v_fma(v_mul(magnitude, u), poly, magnitude);
  const vf limited = v_min(v_set1(TA_TANH_LIMIT), magnitude);
  const vf one = v_set1(1.0f);
  const vf power = exp2_of(v_mul(limited, v_set1(TA_TANH_2LOG2E)));
  const vf large = v_sub(one, v_div(v_set1(2.0f), v_add(power, one)));
  return v_or_sign(v_select_lt(magnitude, v_set1(TA_TANH_SWITCH), small, large), x);
}

static void NAME(softcap)(float *s, int64_t lds, int64_t rows, int64_t keys, float cap) {
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t r = 0; r < rows; r += VW) {
      float *cell = s + j * lds + r;
      v_store(cell, v_mul(v_set1(cap), tanh_of(v_load(cell))));
    }
  }
}

static void NAME(maximum)(const float *s, int64_t lds, int64_t rows, int64_t keys, float *max) {
  for (int64_t r = 0; r < rows; r += VW) {
    vf a = v_load(max + r);
    vf b = a;
    int64_t j = 0;
    for (; j + 2 <= keys; j += 2) {
      a = v_max(v_load(s + j * lds + r), a);
      b = v_max(v_load(s + (j + 1) * lds + r), b);
    }
    if (j < keys) {
      a = v_max(v_load(s + j * lds + r), a);
    }
    v_store(max + r, v_max(b, a));
  }
}

static void NAME(weights)(float *s, int64_t lds, int64_t rows, int64_t keys, const float *max, float *sum) {
  for (int64_t r = 0; r < rows; r += VW) {
    const vf m = v_load(max + r);
    vf total = v_zero();
    for (int64_t j = 0; j < keys; ++j) {
      float *cell = s + j * lds + r;
      const vf weight = exp2_of(v_sub(v_load(cell), m));
      total = v_add(total, weight);
      v_store(cell, weight);
    }
    if (sum != NULL) {
      v_store(sum + r, v_add(v_load(sum + r), total));
    }
  }
}

#include "values_tmpl.h"

/* ---- per row ---- */

static void NAME(add)(float *a, const float *b, int64_t count) {
  int64_t d = 0;
  for (; d + VW <= count; d += VW) {
    v_store(a + d, v_add(v_load(a + d), v_load(b + d)));
  }
#ifdef TAIL8
  if (d < count) {
    v_store8(a + d, v_add(v_load8(a + d), v_load8(b + d)));
  }
#endif
}

static void NAME(merge)(float *a, const float *b, int64_t count, float weight_a, float weight_b) {
  const vf wa = v_set1(weight_a);
  const vf wb = v_set1(weight_b);
  int64_t d = 0;
  for (; d + VW <= count; d += VW) {
    v_store(a + d, v_fma(v_load(b + d), wb, v_mul(v_load(a + d), wa)));
  }
#ifdef TAIL8
  if (d < count) {
    v_store8(a + d, v_fma(v_load8(b + d), wb, v_mul(v_load8(a + d), wa)));
  }
#endif
}

static void NAME(finish)(const float *a, int64_t count, float sum, float *result) {
  const vf divisor = v_set1(sum);
  int64_t d = 0;
  for (; d + VW <= count; d += VW) {
    v_store(result + d, v_canonical(v_div(v_load(a + d), divisor)));
  }
#ifdef TAIL8
  if (d < count) {
    v_store8(result + d, v_canonical(v_div(v_load8(a + d), divisor)));
  }
#endif
}

#define TABLE(isa_value)                                                                                               \
  {                                                                                                                    \
    isa_value, VW, PANEL, MAX_ROWS, FEW_ROWS, NAME(convert), NAME(convert_panels), NAME(scores), NAME(scores_of_rows), \
        NAME(softcap), NAME(maximum), NAME(weights), NAME(values), NAME(values_of_rows), NAME(add), NAME(merge),       \
        NAME(finish), NAME(scan_cells)                                                                                 \
  }
