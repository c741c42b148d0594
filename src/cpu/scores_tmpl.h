/* SPDX-License-Identifier: Apache-2.0 */
/* The part of kernels_tmpl.h that makes scores; included by it and by nothing else. */

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
