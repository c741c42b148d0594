/* SPDX-License-Identifier: Apache-2.0 */
/* The part of kernels_tmpl.h that weighs values; included by it and by nothing else. */

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

/* Keys after which a strip asks for what comes next. */
enum { STRIP_STEP = 8 };

/* Channels [d, d + vectors * VW) of a few rows; the conversion is part of the load. */
INLINE void value_strip(const int dtype, const int rows, const int vectors, const float *s, int64_t lds,
                        const void *const *v, int64_t keys, int64_t d, float *out, int64_t ldo, ta_ahead *ahead,
                        int64_t lines) {
  vf sum[VALUE_ROWS][VALUE_VECTORS];
  UNROLL
  for (int r = 0; r < rows; ++r) {
    UNROLL
    for (int n = 0; n < vectors; ++n) {
      sum[r][n] = v_zero();
    }
  }
  for (int64_t j = 0; j < keys; ++j) {
    if (j % STRIP_STEP == 0) {
      ask_ahead(ahead, lines);
    }
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
  const int64_t lines = lines_per_step(ahead, count / PANEL * ((keys + STRIP_STEP - 1) / STRIP_STEP));
  int64_t d = 0;
  for (; d + PANEL <= count; d += PANEL) {
    value_strip(dtype, rows, VALUE_VECTORS, s, lds, v, keys, d, out, ldo, ahead, lines);
  }
  for (; d + VW <= count; d += VW) {
    value_strip(dtype, rows, 1, s, lds, v, keys, d, out, ldo, ahead, 0);
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
