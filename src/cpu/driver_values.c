/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a leaf and the values that they weigh. */
#include <string.h>

#include "driver.h"

/* Values of a block lie in panels of TA_BLOCK keys. */
static int64_t panel_stride_of(const ta_block *b) {
  return TA_BLOCK * b->kernels->panel_width;
}

static void load_value(const ta_block *b, const void *row, int64_t key) {
  b->kernels->convert_panels(b->plan->kv_dtype, row, b->plan->head_dim_v,
                             b->memory.converted + key * b->kernels->panel_width, panel_stride_of(b));
}

/* Positions that all rows see, and, where nothing else of the block is seen, a whole block: added to the leaf. */
static void value_shared(const ta_block *b, const ta_segment *s, int64_t begin, int64_t end, bool whole) {
  ta_rows rows;
  const int64_t keys = end - begin;
  const float *weights = b->memory.scores + begin * b->shape.ld;
  ta_list_values(b, begin, keys, rows.now);
  ta_ahead ahead = ta_ahead_of_values(b, s, end, TA_BLOCK, &rows);
  if (whole && b->rows <= b->kernels->few_rows) {
    b->kernels->values_of_rows(weights, b->shape.ld, b->rows, b->plan->kv_dtype, rows.now, keys, b->plan->head_dim_v,
                               b->memory.leaf_out, b->shape.ldo, &ahead);
    return;
  }
  for (int64_t j = 0; j < keys; ++j) {
    load_value(b, rows.now[j], j);
  }
  b->kernels->values(whole, weights, b->shape.ld, b->rows, b->memory.converted, panel_stride_of(b), b->shape.panels,
                     keys, whole ? b->memory.leaf_out : b->memory.block_out, b->shape.ldo, &ahead);
}

/* Continues the chains of one node's rows: `keys` weights, ld apart, with the values of converted keys first_key .. */
static void value_node_keys(const ta_block *b, int64_t n, const float *weights, int64_t first_key, int64_t keys) {
  const int64_t ld = b->shape.ld;
  ta_ahead ahead = ta_ahead_none();
  float *sum = b->memory.block_sum + n * b->heads;
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t h = 0; h < b->heads; ++h) {
      sum[h] += weights[j * ld + h];
    }
  }
  b->kernels->values(false, weights, ld, b->heads, b->memory.converted + first_key * b->kernels->panel_width,
                     panel_stride_of(b), b->shape.panels, keys, b->memory.block_out + n * b->heads * b->shape.ldo,
                     b->shape.ldo, &ahead);
}

/* A hidden key's value is skipped, not multiplied by zero: it may hold anything. */
static void value_mixed(const ta_block *b, int64_t begin, int64_t end) {
  const int64_t ld = b->shape.ld;
  for (int64_t o = begin; o < end; ++o) {
    load_value(b, ta_value_row(b, ta_common_slot(b, o)), o - begin);
  }
  for (int64_t n = 0; n < b->nodes; ++n) {
    const uint64_t *seen = b->memory.seen + n * TA_LEAF_WORDS;
    for (int64_t o = begin; o < end;) {
      const int64_t first = o;
      while (o < end && ta_bit_of(seen, o)) {
        ++o;
      }
      if (o > first) {
        value_node_keys(b, n, b->memory.scores + first * ld + n * b->heads, first - begin, o - first);
      } else {
        ++o;
      }
    }
  }
}

static void value_own(const ta_block *b, int64_t begin, int64_t end) {
  const int64_t ld = b->shape.ld;
  for (int64_t n = 0; n < b->nodes; ++n) {
    const uint64_t *seen = b->memory.seen + n * TA_LEAF_WORDS;
    const int32_t *slots = ta_slots_of_node(b, n);
    int64_t keys = 0;
    for (int64_t o = begin; o < end; ++o) {
      if (ta_bit_of(seen, o)) {
        load_value(b, ta_value_row(b, slots[o]), keys);
        memcpy(b->memory.node_scores + keys * ld, b->memory.scores + o * ld + n * b->heads,
               (size_t)b->heads * sizeof(float));
        ++keys;
      }
    }
    if (keys > 0) {
      value_node_keys(b, n, b->memory.node_scores, 0, keys);
    }
  }
}

/* The part of a segment within a block of positions. */
static void value_piece(const ta_block *b, const ta_segment *s, int64_t begin, int64_t end, bool whole) {
  float *scores = b->memory.scores + begin * b->shape.ld;
  const bool shared = s->kind == TA_SEGMENT_SHARED;
  float *sum = whole ? b->memory.leaf_sum : b->memory.block_sum;
  b->kernels->weights(scores, b->shape.ld, b->rows_padded, end - begin, b->memory.leaf_max, whole ? sum : NULL);
  if (shared && !whole) {
    for (int64_t o = begin; o < end; ++o) {
      b->kernels->add(sum, b->memory.scores + o * b->shape.ld, b->rows_padded);
    }
  }
  switch (s->kind) {
    case TA_SEGMENT_SHARED: value_shared(b, s, begin, end, whole); break;
    case TA_SEGMENT_MIXED: value_mixed(b, begin, end); break;
    case TA_SEGMENT_OWN: value_own(b, begin, end); break;
    case TA_SEGMENT_NONE: break;
  }
}

/* One block of positions: its chains start at zero, and what they come to is added to the leaf. */
static void value_block(const ta_block *b, int64_t first_segment, int64_t begin) {
  const int64_t end = begin + TA_BLOCK;
  int64_t last = first_segment;
  while (last < b->num_segments && b->memory.segments[last].begin < end) {
    ++last;
  }
  const bool whole = last == first_segment + 1 && b->memory.segments[first_segment].kind == TA_SEGMENT_SHARED;
  if (!whole) {
    memset(b->memory.block_sum, 0, (size_t)b->rows_padded * sizeof(float));
    memset(b->memory.block_out, 0, (size_t)(b->rows * b->shape.ldo) * sizeof(float));
  }
  for (int64_t n = first_segment; n < last; ++n) {
    const ta_segment *s = &b->memory.segments[n];
    value_piece(b, s, ta_max_i64(begin, s->begin), ta_min_i64(end, s->end), whole);
  }
  if (!whole) {
    b->kernels->add(b->memory.leaf_sum, b->memory.block_sum, b->rows_padded);
    b->kernels->add(b->memory.leaf_out, b->memory.block_out, b->rows * b->shape.ldo);
  }
}

void ta_value_leaf(const ta_block *b) {
  memset(b->memory.leaf_sum, 0, (size_t)b->rows_padded * sizeof(float));
  memset(b->memory.leaf_out, 0, (size_t)(b->rows * b->shape.ldo) * sizeof(float));
  int64_t n = 0;
  for (int64_t begin = 0; begin < TA_LEAF; begin += TA_BLOCK) {
    while (n < b->num_segments && b->memory.segments[n].end <= begin) {
      ++n;
    }
    if (n < b->num_segments && b->memory.segments[n].begin < begin + TA_BLOCK) {
      value_block(b, n, begin);
    }
  }
}
