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

/* ---- scores: lanes are rows, keys are broadcast ---- */

/* Channels [begin, end) of a tile of scores; the first block sets them, later ones are added. */
INLINE void score_tile(const int vectors, const int keys, const float *qt, int64_t ldq, const float *k, int64_t ldk,
                       int64_t begin, int64_t end, float *s, int64_t lds) {
  vf even[SCORE_KEYS_MOST][SCORE_VECTORS];
  vf odd[SCORE_KEYS_MOST][SCORE_VECTORS];
  UNROLL
  for (int j = 0; j < keys; ++j) {
    UNROLL
    for (int n = 0; n < vectors; ++n) {
      even[j][n] = v_zero();
      odd[j][n] = v_zero();
    }
  }
  for (int64_t d = begin; d < end; d += 2) {
    vf q[SCORE_VECTORS];
    UNROLL
    for (int n = 0; n < vectors; ++n) {
      q[n] = v_load(qt + d * ldq + n * VW);
    }
    UNROLL
    for (int j = 0; j < keys; ++j) {
      const vf key = v_set1(k[j * ldk + d]);
      UNROLL
      for (int n = 0; n < vectors; ++n) {
        even[j][n] = v_fma(q[n], key, even[j][n]);
      }
    }
    UNROLL
    for (int n = 0; n < vectors; ++n) {
      q[n] = v_load(qt + (d + 1) * ldq + n * VW);
    }
    UNROLL
    for (int j = 0; j < keys; ++j) {
      const vf key = v_set1(k[j * ldk + d + 1]);
      UNROLL
      for (int n = 0; n < vectors; ++n) {
        odd[j][n] = v_fma(q[n], key, odd[j][n]);
      }
    }
  }
  UNROLL
  for (int j = 0; j < keys; ++j) {
    UNROLL
    for (int n = 0; n < vectors; ++n) {
      float *score = s + j * lds + n * VW;
      const vf block = v_add(even[j][n], odd[j][n]);
      v_store(score, begin == 0 ? block : v_add(v_load(score), block));
    }
  }
}

#define SCORE_CASE(vectors, n)                                                                 \
  case n:                                                                                      \
    score_tile(vectors, (n) < SCORE_KEYS_MOST ? (n) : 1, qt, ldq, k, ldk, begin, end, s, lds); \
    break;

#define SCORE_REST(name, vectors)                                                                          \
  static void name(int64_t keys, const float *qt, int64_t ldq, const float *k, int64_t ldk, int64_t begin, \
                   int64_t end, float *s, int64_t lds) {                                                   \
    switch (keys) {                                                                                        \
      SCORE_CASE(vectors, 1)                                                                               \
      SCORE_CASE(vectors, 2)                                                                               \
      SCORE_CASE(vectors, 3)                                                                               \
      SCORE_CASE(vectors, 4)                                                                               \
      SCORE_CASE(vectors, 5)                                                                               \
      SCORE_CASE(vectors, 6)                                                                               \
      SCORE_CASE(vectors, 7)                                                                               \
      SCORE_CASE(vectors, 8)                                                                               \
      SCORE_CASE(vectors, 9)                                                                               \
      SCORE_CASE(vectors, 10)                                                                              \
      SCORE_CASE(vectors, 11)                                                                              \
      default: break;                                                                                      \
    }                                                                                                      \
  }

SCORE_REST(NAME(score_rest_wide), SCORE_VECTORS)
SCORE_REST(NAME(score_rest_narrow), 1)

static void NAME(scores)(const float *qt, int64_t ldq, int64_t rows, const float *k, int64_t ldk, int64_t keys,
                         int64_t head_dim, float *s, int64_t lds, ta_ahead *ahead) {
  const int64_t wide = SCORE_VECTORS * VW;
  const int64_t lines =
      lines_per_step(ahead, (rows + wide - 1) / wide * (keys / (rows < wide ? SCORE_KEYS_NARROW : SCORE_KEYS)));
  for (int64_t begin = 0; begin < head_dim; begin += TA_CHANNELS) {
    const int64_t end = begin + TA_CHANNELS < head_dim ? begin + TA_CHANNELS : head_dim;
    int64_t r = 0;
    for (; r + SCORE_VECTORS * VW <= rows; r += SCORE_VECTORS * VW) {
      int64_t j = 0;
      for (; j + SCORE_KEYS <= keys; j += SCORE_KEYS) {
        ask_ahead(ahead, lines);
        score_tile(SCORE_VECTORS, SCORE_KEYS, qt + r, ldq, k + j * ldk, ldk, begin, end, s + j * lds + r, lds);
      }
      NAME(score_rest_wide)(keys - j, qt + r, ldq, k + j * ldk, ldk, begin, end, s + j * lds + r, lds);
    }
    for (; r < rows; r += VW) {
      int64_t j = 0;
      for (; j + SCORE_KEYS_NARROW <= keys; j += SCORE_KEYS_NARROW) {
        ask_ahead(ahead, lines);
        score_tile(1, SCORE_KEYS_NARROW, qt + r, ldq, k + j * ldk, ldk, begin, end, s + j * lds + r, lds);
      }
      NAME(score_rest_narrow)(keys - j, qt + r, ldq, k + j * ldk, ldk, begin, end, s + j * lds + r, lds);
    }
  }
}

/* ---- scores of a few rows: lanes are keys ---- */

/* VW keys against a few rows. The transposition is worth it because a row's lanes are then all used. */
INLINE void score_few(const int dtype, const int rows, const float *qt, int64_t ldq, const void *const *k,
                      int64_t head_dim, float *s, int64_t lds) {
  vf total[FEW_ROWS];
  UNROLL
  for (int r = 0; r < FEW_ROWS; ++r) {
    total[r] = v_zero();
  }
  for (int64_t begin = 0; begin < head_dim; begin += TA_CHANNELS) {
    const int64_t end = begin + TA_CHANNELS < head_dim ? begin + TA_CHANNELS : head_dim;
    vf even[FEW_ROWS];
    vf odd[FEW_ROWS];
    UNROLL
    for (int r = 0; r < rows; ++r) {
      even[r] = v_zero();
      odd[r] = v_zero();
    }
    for (int64_t d = begin; d < end; d += VW) {
      vf key[VW];
      UNROLL
      for (int j = 0; j < VW; ++j) {
        key[j] = load_as(dtype, k[j], d);
      }
      v_transpose(key);
      UNROLL
      for (int n = 0; n < VW; n += 2) {
        UNROLL
        for (int r = 0; r < rows; ++r) {
          even[r] = v_fma(v_set1(qt[(d + n) * ldq + r]), key[n], even[r]);
          odd[r] = v_fma(v_set1(qt[(d + n + 1) * ldq + r]), key[n + 1], odd[r]);
        }
      }
    }
    UNROLL
    for (int r = 0; r < rows; ++r) {
      const vf block = v_add(even[r], odd[r]);
      total[r] = begin == 0 ? block : v_add(total[r], block);
    }
  }
  vf row[VW];
  UNROLL
  for (int r = 0; r < VW; ++r) {
    row[r] = r < rows ? total[r < FEW_ROWS ? r : 0] : v_zero();
  }
  v_transpose(row);
  UNROLL
  for (int j = 0; j < VW; ++j) {
    v_store(s + j * lds, row[j]);
  }
}

#define SCORE_FEW_CASE(dtype, n)                                                                      \
  case n:                                                                                             \
    for (int64_t j = 0; j < keys; j += VW) {                                                          \
      ask_ahead(ahead, lines);                                                                        \
      score_few(dtype, (n) <= FEW_ROWS ? (n) : FEW_ROWS, qt, ldq, k + j, head_dim, s + j * lds, lds); \
    }                                                                                                 \
    break;

#define SCORES_OF_ROWS(name, dtype)                                                                                  \
  static void name(const float *qt, int64_t ldq, int64_t rows, const void *const *k, int64_t keys, int64_t head_dim, \
                   float *s, int64_t lds, ta_ahead *ahead) {                                                         \
    const int64_t lines = lines_per_step(ahead, keys / VW);                                                          \
    switch (rows) {                                                                                                  \
      SCORE_FEW_CASE(dtype, 1)                                                                                       \
      SCORE_FEW_CASE(dtype, 2)                                                                                       \
      SCORE_FEW_CASE(dtype, 3)                                                                                       \
      SCORE_FEW_CASE(dtype, 4)                                                                                       \
      SCORE_FEW_CASE(dtype, 5)                                                                                       \
      SCORE_FEW_CASE(dtype, 6)                                                                                       \
      default: break;                                                                                                \
    }                                                                                                                \
  }

SCORES_OF_ROWS(NAME(scores_of_f32), TREEATTN_F32)
SCORES_OF_ROWS(NAME(scores_of_f16), TREEATTN_F16)
SCORES_OF_ROWS(NAME(scores_of_bf16), TREEATTN_BF16)

static void NAME(scores_of_rows)(const float *qt, int64_t ldq, int64_t rows, treeattn_dtype dtype, const void *const *k,
                                 int64_t keys, int64_t head_dim, float *s, int64_t lds, ta_ahead *ahead) {
  switch (dtype) {
    case TREEATTN_F32: NAME(scores_of_f32)(qt, ldq, rows, k, keys, head_dim, s, lds, ahead); break;
    case TREEATTN_F16: NAME(scores_of_f16)(qt, ldq, rows, k, keys, head_dim, s, lds, ahead); break;
    case TREEATTN_BF16: NAME(scores_of_bf16)(qt, ldq, rows, k, keys, head_dim, s, lds, ahead); break;
  }
}

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

/* ---- values: lanes are channels, weights are broadcast ---- */

INLINE void value_tile(const int whole, const int rows, const float *s, int64_t lds, const float *v, int64_t keys,
                       float *out, int64_t ldo) {
  vf sum[VALUE_ROWS][VALUE_VECTORS];
  UNROLL
  for (int r = 0; r < rows; ++r) {
    UNROLL
    for (int n = 0; n < VALUE_VECTORS; ++n) {
      sum[r][n] = whole ? v_zero() : v_load(out + r * ldo + n * VW);
    }
  }
  for (int64_t j = 0; j < keys; ++j) {
    vf value[VALUE_VECTORS];
    UNROLL
    for (int n = 0; n < VALUE_VECTORS; ++n) {
      value[n] = v_load(v + j * PANEL + n * VW);
    }
    UNROLL
    for (int r = 0; r < rows; ++r) {
      const vf weight = v_set1(s[j * lds + r]);
      UNROLL
      for (int n = 0; n < VALUE_VECTORS; ++n) {
        sum[r][n] = v_fma(weight, value[n], sum[r][n]);
      }
    }
  }
  UNROLL
  for (int r = 0; r < rows; ++r) {
    UNROLL
    for (int n = 0; n < VALUE_VECTORS; ++n) {
      float *channels = out + r * ldo + n * VW;
      v_store(channels, whole ? v_add(v_load(channels), sum[r][n]) : sum[r][n]);
    }
  }
}

#define VALUE_CASE(n) \
  case n: value_tile(whole, n, s, lds, v, keys, out, ldo); break;

INLINE void value_rest(const int whole, int64_t rows, const float *s, int64_t lds, const float *v, int64_t keys,
                       float *out, int64_t ldo) {
  switch (rows) {
    VALUE_CASE(1)
    VALUE_CASE(2)
    VALUE_CASE(3)
    VALUE_CASE(4)
    VALUE_CASE(5)
#if VALUE_ROWS > 6
    VALUE_CASE(6)
    VALUE_CASE(7)
    VALUE_CASE(8)
    VALUE_CASE(9)
    VALUE_CASE(10)
    VALUE_CASE(11)
#endif
    default: break;
  }
}

INLINE void value_panels(const int whole, const float *s, int64_t lds, int64_t rows, const float *v,
                         int64_t panel_stride, int64_t panels, int64_t keys, float *out, int64_t ldo, ta_ahead *ahead) {
  const int64_t lines = lines_per_step(ahead, panels * (rows / VALUE_ROWS));
  for (int64_t panel = 0; panel < panels; ++panel) {
    const float *values = v + panel * panel_stride;
    float *channels = out + panel * PANEL;
    int64_t r = 0;
    for (; r + VALUE_ROWS <= rows; r += VALUE_ROWS) {
      ask_ahead(ahead, lines);
      value_tile(whole, VALUE_ROWS, s + r, lds, values, keys, channels + r * ldo, ldo);
    }
    value_rest(whole, rows - r, s + r, lds, values, keys, channels + r * ldo, ldo);
  }
}

static void NAME(values)(bool whole, const float *s, int64_t lds, int64_t rows, const float *v, int64_t panel_stride,
                         int64_t panels, int64_t keys, float *out, int64_t ldo, ta_ahead *ahead) {
  if (whole) {
    value_panels(1, s, lds, rows, v, panel_stride, panels, keys, out, ldo, ahead);
  } else {
    value_panels(0, s, lds, rows, v, panel_stride, panels, keys, out, ldo, ahead);
  }
}

/* Channels [d, d + vectors * VW) of a few rows; the conversion is part of the load. */
INLINE void value_strip(const int dtype, const int rows, const int vectors, const float *s, int64_t lds,
                        const void *const *v, int64_t keys, int64_t d, float *out, int64_t ldo) {
  vf sum[VALUE_ROWS][VALUE_VECTORS];
  UNROLL
  for (int r = 0; r < rows; ++r) {
    UNROLL
    for (int n = 0; n < vectors; ++n) {
      sum[r][n] = v_zero();
    }
  }
  for (int64_t j = 0; j < keys; ++j) {
    vf value[VALUE_VECTORS];
    UNROLL
    for (int n = 0; n < vectors; ++n) {
      value[n] = load_as(dtype, v[j], d + n * VW);
    }
    UNROLL
    for (int r = 0; r < rows; ++r) {
      const vf weight = v_set1(s[j * lds + r]);
      UNROLL
      for (int n = 0; n < vectors; ++n) {
        sum[r][n] = v_fma(weight, value[n], sum[r][n]);
      }
    }
  }
  UNROLL
  for (int r = 0; r < rows; ++r) {
    UNROLL
    for (int n = 0; n < vectors; ++n) {
      float *channels = out + r * ldo + d + n * VW;
      v_store(channels, v_add(v_load(channels), sum[r][n]));
    }
  }
}

INLINE void value_strips(const int dtype, const int rows, const float *s, int64_t lds, const void *const *v,
                         int64_t keys, int64_t count, float *out, int64_t ldo, ta_ahead *ahead) {
  const int64_t lines = lines_per_step(ahead, count / PANEL);
  int64_t d = 0;
  for (; d + PANEL <= count; d += PANEL) {
    ask_ahead(ahead, lines);
    value_strip(dtype, rows, VALUE_VECTORS, s, lds, v, keys, d, out, ldo);
  }
  for (; d + VW <= count; d += VW) {
    value_strip(dtype, rows, 1, s, lds, v, keys, d, out, ldo);
  }
#ifdef TAIL8
  for (int r = 0; d < count && r < rows; ++r) {
    vf sum = v_zero();
    for (int64_t j = 0; j < keys; ++j) {
      sum = v_fma(v_set1(s[j * lds + r]), load8_as(dtype, v[j], d), sum);
    }
    v_store8(out + r * ldo + d, v_add(v_load8(out + r * ldo + d), sum));
  }
#endif
}

#define FEW_CASE(dtype, n)                                           \
  case n:                                                            \
    value_strips(dtype, n, s, lds, v, keys, count, out, ldo, ahead); \
    break;

#define VALUES_OF_ROWS(name, dtype)                                                                              \
  static void name(const float *s, int64_t lds, int64_t rows, const void *const *v, int64_t keys, int64_t count, \
                   float *out, int64_t ldo, ta_ahead *ahead) {                                                   \
    switch (rows) {                                                                                              \
      FEW_CASE(dtype, 1)                                                                                         \
      FEW_CASE(dtype, 2)                                                                                         \
      FEW_CASE(dtype, 3)                                                                                         \
      FEW_CASE(dtype, 4)                                                                                         \
      FEW_CASE(dtype, 5)                                                                                         \
      FEW_CASE(dtype, 6)                                                                                         \
      default: break;                                                                                            \
    }                                                                                                            \
  }

VALUES_OF_ROWS(NAME(values_of_f32), TREEATTN_F32)
VALUES_OF_ROWS(NAME(values_of_f16), TREEATTN_F16)
VALUES_OF_ROWS(NAME(values_of_bf16), TREEATTN_BF16)

static void NAME(values_of_rows)(const float *s, int64_t lds, int64_t rows, treeattn_dtype dtype, const void *const *v,
                                 int64_t keys, int64_t count, float *out, int64_t ldo, ta_ahead *ahead) {
  switch (dtype) {
    case TREEATTN_F32: NAME(values_of_f32)(s, lds, rows, v, keys, count, out, ldo, ahead); break;
    case TREEATTN_F16: NAME(values_of_f16)(s, lds, rows, v, keys, count, out, ldo, ahead); break;
    case TREEATTN_BF16: NAME(values_of_bf16)(s, lds, rows, v, keys, count, out, ldo, ahead); break;
  }
}

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
