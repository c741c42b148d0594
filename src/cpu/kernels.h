/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an instruction set must bring: one const table of small kernels. Each kernel performs, for every output
 * element, the same sequence of operations as the scalar reference; width and tiling decide only which elements are
 * computed at once.
 */
#ifndef TA_CPU_KERNELS_H
#define TA_CPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include <treeattn/attention.h>

#include "../common.h"
#include "../mask.h"
#include "../order.h"

/*
 * Rows of the cache that are needed next. Kernels ask the memory for some of them between tiles: asking for all at once
 * would fill the queue of outstanding misses and stop the arithmetic until it drains.
 */
typedef struct ta_ahead {
  const void *const *rows;
  int64_t num_rows, row_bytes;
  int64_t row, byte; /* how far it has got */
} ta_ahead;

/*
 * Layouts, all f32:
 *   qt      [head_dim][ld]        scaled queries, rows of the block side by side: lanes are rows
 *   s       [position][ld]        scores, then weights
 *   kbuf    [key][ldk]            converted keys
 *   vbuf    [panel][key][panel_width]   converted values, zero beyond head_dim_v
 *   out     [row][ldo]            weighted values, ldo = panels * panel_width
 */
typedef struct ta_kernels {
  treeattn_isa isa;
  int64_t row_vector;  /* rows are padded to a multiple of this */
  int64_t panel_width; /* channels of a value panel */
  int64_t max_rows;    /* rows of a block, when the head is small */
  int64_t few_rows;    /* up to this many rows read the cache straight, lanes being keys */

  /* count elements of a 16- or 32-bit cache row into f32. */
  void (*convert)(treeattn_dtype dtype, const void *source, int64_t count, float *target);
  /* The same into panels: element d goes to target[(d / panel_width) * panel_stride + d % panel_width]. */
  void (*convert_panels)(treeattn_dtype dtype, const void *source, int64_t count, float *target, int64_t panel_stride);

  /* s[j][r]: for each TA_CHANNELS channels the chain over even d of fma(qt[d][r], k[j][d], .) from zero, plus the same
   * over odd d; such blocks added in order; r < rows (a multiple of row_vector), j < keys. */
  void (*scores)(const float *qt, int64_t ldq, int64_t rows, const float *k, int64_t ldk, int64_t keys,
                 int64_t head_dim, float *s, int64_t lds, ta_ahead *ahead);
  /* The same for 1 to few_rows rows, from cache rows: `keys` and head_dim are multiples of row_vector. */
  void (*scores_of_rows)(const float *qt, int64_t ldq, int64_t rows, treeattn_dtype dtype, const void *const *k,
                         int64_t keys, int64_t head_dim, float *s, int64_t lds, ta_ahead *ahead);
  /* s = cap * tanh(s) */
  void (*softcap)(float *s, int64_t lds, int64_t rows, int64_t keys, float cap);
  /* max[r] = max(max[r], s[j][r]) */
  void (*maximum)(const float *s, int64_t lds, int64_t rows, int64_t keys, float *max);
  /* s = exp2(s - max[r]); where sum is not NULL, sum[r] = sum[r] + chain over ascending j from zero: a whole block. */
  void (*weights)(float *s, int64_t lds, int64_t rows, int64_t keys, const float *max, float *sum);
  /*
   * The chain over j of fma(s[j][r], v[j][d], .): for a whole block from zero, and added to out[r][d]; otherwise on top
   * of what out holds. r < rows, any number.
   */
  void (*values)(bool whole, const float *s, int64_t lds, int64_t rows, const float *v, int64_t panel_stride,
                 int64_t panels, int64_t keys, float *out, int64_t ldo, ta_ahead *ahead);
  /* The same for 1 to few_rows rows, from cache rows of `count` elements: converting them costs less than storing
   * them. */
  void (*values_of_rows)(const float *s, int64_t lds, int64_t rows, treeattn_dtype dtype, const void *const *v,
                         int64_t keys, int64_t count, float *out, int64_t ldo, ta_ahead *ahead);
  /* a = a + b */
  void (*add)(float *a, const float *b, int64_t count);
  /* a = fma(b, weight_b, a * weight_a) */
  void (*merge)(float *a, const float *b, int64_t count, float weight_a, float weight_b);
  /* result = a / sum, NaN made canonical */
  void (*finish)(const float *a, int64_t count, float sum, float *result);
  /* Reading a dense mask: see mask.h. */
  ta_scan_cells_fn scan_cells;
} ta_kernels;

/* NULL where this machine cannot run them (or the build lacks them). */
TA_HIDDEN const ta_kernels *ta_kernels_for(treeattn_isa isa);

#ifdef TA_HAVE_AVX2
extern TA_HIDDEN const ta_kernels ta_kernels_avx2;
#endif
#ifdef TA_HAVE_AVX512
extern TA_HIDDEN const ta_kernels ta_kernels_avx512;
#endif
#ifdef TA_HAVE_NEON
extern TA_HIDDEN const ta_kernels ta_kernels_neon;
#endif

#endif
