/* SPDX-License-Identifier: Apache-2.0 */
/* Reading mask encodings: a stretch of a mask row becomes bits, wherever it comes from. */
#ifndef TA_MASK_H
#define TA_MASK_H

#include <treeattn/attention.h>

#include "common.h"

/* The largest bias or sink: times log2(e) it must still be finite, with room for a score. */
#define TA_LARGEST_LOGIT 0x1p127f

/* What a stretch of a dense f32 mask holds besides visibility. */
typedef struct ta_mask_facts {
  bool has_bias;    /* some attended cell is not zero */
  bool has_invalid; /* some cell is NaN or above TA_LARGEST_LOGIT */
} ta_mask_facts;

/* 64 cells of a dense f32 mask as bits; sets facts[0] where an attended cell is not zero and facts[1] where a cell is
 * invalid. One of the kernels of an instruction set, or NULL. */
typedef uint64_t (*ta_scan_cells_fn)(const float *cells, unsigned facts[2]);

/* Bits of columns [column, column + count), count <= 64, of a mask row; facts are joined into *facts (dense f32
 * only). */
TA_HIDDEN uint64_t ta_mask_bits(treeattn_mask_kind kind, const void *row, int64_t column, int64_t count,
                                ta_scan_cells_fn scan, ta_mask_facts *facts);

/* The same for num_words * 64 columns from `column` on. */
TA_HIDDEN void ta_mask_words(treeattn_mask_kind kind, const void *row, int64_t column, int64_t num_words,
                             uint64_t *words, ta_scan_cells_fn scan, ta_mask_facts *facts);

/* Turns intervals [N][2] into parents. `order` is working memory for N numbers. */
TA_HIDDEN treeattn_status ta_mask_intervals_to_parents(int64_t num_nodes, const int32_t *intervals, int32_t *order,
                                                       int32_t *parents, treeattn_error *error);

#endif
