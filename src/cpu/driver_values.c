/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a leaf and the values that they weigh. */
#include <string.h>

#include "driver.h"

static void load_value(const ta_block *b, int64_t slot, int64_t key) {
  const treeattn_plan *plan = b->plan;
  b->kernels->convert_panels(plan->kv_dtype, ta_value_row(b, slot), plan->head_dim_v,
                             b->memory.converted + key * b->kernels->panel_width,
                             b->shape.keys_per_chunk * b->kernels->panel_width);
}

/* A few rows, as in plain decoding: converting a value costs less than storing and loading it again. */
static void value_few(const ta_block *b, const ta_segment *s) {
  ta_rows rows;
  for (int64_t o = s->begin; o < s->end; o += TA_FEW_CHUNK) {
    const int64_t keys = ta_min_i64(TA_FEW_CHUNK, s->end - o);
    ta_list_values(b, o, keys, rows.now);
    ta_ahead ahead = ta_ahead_of_values(b, s, o + keys, TA_FEW_CHUNK, &rows);
    b->kernels->values_of_rows(b->memory.scores + o * b->shape.ld, b->shape.ld, b->rows, b->plan->kv_dtype, rows.now,
                               keys, b->plan->head_dim_v, b->memory.leaf_out, b->shape.ldo, &ahead);
  }
}

static void value_shared(const ta_block *b, const ta_segment *s) {
  if (b->rows <= b->kernels->few_rows) {
    value_few(b, s);
    return;
  }
  ta_rows rows;
  const int64_t ld = b->shape.ld;
  const int64_t panel_stride = b->shape.keys_per_chunk * b->kernels->panel_width;
  for (int64_t o = s->begin; o < s->end; o += b->shape.keys_per_chunk) {
    const int64_t keys = ta_min_i64(b->shape.keys_per_chunk, s->end - o);
    for (int64_t j = 0; j < keys; ++j) {
      load_value(b, ta_common_slot(b, o + j), j);
    }
    ta_ahead ahead = ta_ahead_of_values(b, s, o + keys, b->shape.keys_per_chunk, &rows);
    b->kernels->values(b->memory.scores + o * ld, ld, b->rows, b->memory.converted, panel_stride, b->shape.panels, keys,
                       b->memory.leaf_out, b->shape.ldo, &ahead);
  }
}

/* Adds `keys` weights, ld apart, to the sums of one node's rows, and their values to its out vectors. */
static void value_node_keys(const ta_block *b, int64_t n, const float *weights, int64_t first_key, int64_t keys) {
  const int64_t ld = b->shape.ld;
  ta_ahead ahead = ta_ahead_none();
  float *sum = b->memory.leaf_sum + n * b->heads;
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t h = 0; h < b->heads; ++h) {
      sum[h] += weights[j * ld + h];
    }
  }
  b->kernels->values(weights, ld, b->heads, b->memory.converted + first_key * b->kernels->panel_width,
                     b->shape.keys_per_chunk * b->kernels->panel_width, b->shape.panels, keys,
                     b->memory.leaf_out + n * b->heads * b->shape.ldo, b->shape.ldo, &ahead);
}

/* A hidden key's value is skipped, not multiplied by zero: it may hold anything. */
static void value_mixed(const ta_block *b, const ta_segment *s) {
  const int64_t ld = b->shape.ld;
  for (int64_t o = s->begin; o < s->end; o += b->shape.keys_per_chunk) {
    const int64_t keys = ta_min_i64(b->shape.keys_per_chunk, s->end - o);
    for (int64_t j = 0; j < keys; ++j) {
      load_value(b, ta_common_slot(b, o + j), j);
    }
    for (int64_t n = 0; n < b->nodes; ++n) {
      const uint64_t *seen = b->memory.seen + n * TA_LEAF_WORDS;
      for (int64_t j = 0; j < keys;) {
        const int64_t first = j;
        while (j < keys && ta_bit_of(seen, o + j)) {
          ++j;
        }
        if (j > first) {
          value_node_keys(b, n, b->memory.scores + (o + first) * ld + n * b->heads, first, j - first);
        } else {
          ++j;
        }
      }
    }
  }
}

static void value_own(const ta_block *b, const ta_segment *s) {
  int32_t offsets[TA_MAX_CHUNK];
  const int64_t ld = b->shape.ld;
  for (int64_t n = 0; n < b->nodes; ++n) {
    const uint64_t *seen = b->memory.seen + n * TA_LEAF_WORDS;
    const int32_t *slots = ta_slots_of_node(b, n);
    for (int64_t next = s->begin; next < s->end;) {
      const int64_t keys = ta_next_offsets(b, s, seen, &next, offsets);
      for (int64_t j = 0; j < keys; ++j) {
        load_value(b, slots[offsets[j]], j);
        memcpy(b->memory.node_scores + j * ld, b->memory.scores + offsets[j] * ld + n * b->heads,
               (size_t)b->heads * sizeof(float));
      }
      if (keys > 0) {
        value_node_keys(b, n, b->memory.node_scores, 0, keys);
      }
    }
  }
}

void ta_value_leaf(const ta_block *b) {
  memset(b->memory.leaf_sum, 0, (size_t)b->rows_padded * sizeof(float));
  memset(b->memory.leaf_out, 0, (size_t)(b->rows * b->shape.ldo) * sizeof(float));
  for (int64_t n = 0; n < b->num_segments; ++n) {
    const ta_segment *s = &b->memory.segments[n];
    float *scores = b->memory.scores + s->begin * b->shape.ld;
    float *sum = s->kind == TA_SEGMENT_SHARED ? b->memory.leaf_sum : NULL;
    b->kernels->weights(scores, b->shape.ld, b->rows_padded, s->end - s->begin, b->memory.leaf_max, sum);
    switch (s->kind) {
      case TA_SEGMENT_SHARED: value_shared(b, s); break;
      case TA_SEGMENT_MIXED: value_mixed(b, s); break;
      case TA_SEGMENT_OWN: value_own(b, s); break;
      case TA_SEGMENT_NONE: break;
    }
  }
}
