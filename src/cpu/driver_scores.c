/* SPDX-License-Identifier: Apache-2.0 */
/* Scores of a leaf: shared ones as matrix products, the others node by node. */
#include <string.h>

#include "driver.h"

static void load_key(const ta_block *b, int64_t slot, float *target) {
  const treeattn_plan *plan = b->plan;
  b->kernels->convert(plan->kv_dtype, ta_key_row(b, slot), plan->head_dim, target);
}

/* A few rows, as in plain decoding: as many keys of the segment as fill whole vectors. Returns how many. */
static int64_t score_few(const ta_block *b, const ta_segment *s) {
  const treeattn_plan *plan = b->plan;
  const int64_t lanes = b->kernels->row_vector;
  if (b->rows > b->kernels->few_rows || plan->head_dim % lanes != 0) {
    return 0;
  }
  ta_rows rows;
  const int64_t end = s->begin + (s->end - s->begin) / lanes * lanes;
  for (int64_t o = s->begin; o < end; o += TA_FEW_CHUNK) {
    const int64_t keys = ta_min_i64(TA_FEW_CHUNK, end - o);
    ta_list_keys(b, o, keys, rows.now);
    ta_ahead ahead = ta_ahead_of_keys(b, s, o + keys, TA_FEW_CHUNK, &rows);
    float *scores = b->memory.scores + o * b->shape.ld;
    b->kernels->scores_of_rows(b->memory.qt, b->shape.ld, b->rows, plan->kv_dtype, rows.now, keys, plan->head_dim,
                               scores, b->shape.ld, &ahead);
    if (b->cap > 0.0f) {
      b->kernels->softcap(scores, b->shape.ld, b->rows_padded, keys, b->cap);
    }
  }
  return end - s->begin;
}

static void score_common(const ta_block *b, const ta_segment *s) {
  ta_rows rows;
  const int64_t ld = b->shape.ld;
  for (int64_t o = s->begin + score_few(b, s); o < s->end; o += b->shape.keys_per_chunk) {
    const int64_t keys = ta_min_i64(b->shape.keys_per_chunk, s->end - o);
    ta_list_keys(b, o, keys, rows.now);
    for (int64_t j = 0; j < keys; ++j) {
      b->kernels->convert(b->plan->kv_dtype, rows.now[j], b->plan->head_dim, b->memory.converted + j * b->shape.ldk);
    }
    ta_ahead ahead = ta_ahead_of_keys(b, s, o + keys, b->shape.keys_per_chunk, &rows);
    float *scores = b->memory.scores + o * ld;
    b->kernels->scores(b->memory.qt, ld, b->rows_padded, b->memory.converted, b->shape.ldk, keys, b->plan->head_dim,
                       scores, ld, &ahead);
    if (b->cap > 0.0f) {
      b->kernels->softcap(scores, ld, b->rows_padded, keys, b->cap);
    }
  }
}

static void fill_node(const ta_block *b, int64_t n, int64_t o, float value) {
  float *cell = b->memory.scores + o * b->shape.ld + n * b->heads;
  for (int64_t h = 0; h < b->heads; ++h) {
    cell[h] = value;
  }
}

static void hide_mixed(const ta_block *b, const ta_segment *s) {
  for (int64_t n = 0; n < b->nodes; ++n) {
    const uint64_t *seen = b->memory.seen + n * TA_LEAF_WORDS;
    for (int64_t o = s->begin; o < s->end; ++o) {
      if (!ta_bit_of(seen, o)) {
        fill_node(b, n, o, -INFINITY);
      }
    }
  }
}

/* Scores `keys` converted keys, which stand at the given offsets, for the rows of one node. */
static void score_node_keys(const ta_block *b, int64_t n, const int32_t *offsets, int64_t keys) {
  const int64_t ld = b->shape.ld;
  const int64_t rows = ta_round_up(b->heads, b->kernels->row_vector);
  float *scores = b->memory.node_scores;
  ta_ahead ahead = ta_ahead_none();
  b->kernels->scores(b->memory.qt + n * b->heads, ld, rows, b->memory.converted, b->shape.ldk, keys, b->plan->head_dim,
                     scores, ld, &ahead);
  if (b->cap > 0.0f) {
    b->kernels->softcap(scores, ld, rows, keys, b->cap);
  }
  for (int64_t j = 0; j < keys; ++j) {
    memcpy(b->memory.scores + offsets[j] * ld + n * b->heads, scores + j * ld, (size_t)b->heads * sizeof(float));
  }
}

static void score_own(const ta_block *b, const ta_segment *s) {
  int32_t offsets[TA_MAX_CHUNK];
  for (int64_t n = 0; n < b->nodes; ++n) {
    for (int64_t o = s->begin; o < s->end; ++o) {
      fill_node(b, n, o, -INFINITY);
    }
    const uint64_t *seen = b->memory.seen + n * TA_LEAF_WORDS;
    const int32_t *slots = ta_slots_of_node(b, n);
    for (int64_t next = s->begin; next < s->end;) {
      const int64_t keys = ta_next_offsets(b, s, seen, &next, offsets);
      for (int64_t j = 0; j < keys; ++j) {
        load_key(b, slots[offsets[j]], b->memory.converted + j * b->shape.ldk);
      }
      if (keys > 0) {
        score_node_keys(b, n, offsets, keys);
      }
    }
  }
}

static void add_bias(const ta_block *b) {
  const ta_request *request = b->task->request;
  for (int64_t n = 0; n < b->nodes; ++n) {
    const int64_t row = b->task->row_begin + n;
    const int64_t node = request->node_of_row == NULL ? row : request->node_of_row[row];
    const float *bias = request->bias + node * request->bias_stride;
    const uint64_t *seen = b->memory.seen + n * TA_LEAF_WORDS;
    const int32_t *slots = b->base + TA_LEAF > request->prefix_len ? ta_slots_of_node(b, n) : NULL;
    for (int64_t o = 0; o < TA_LEAF; ++o) {
      if (!ta_bit_of(seen, o)) {
        continue;
      }
      const int64_t slot = b->base + o < request->prefix_len ? b->base + o : slots[o];
      if (slot < request->bias_first_slot || bias[slot - request->bias_first_slot] == 0.0f) {
        continue;
      }
      float *cell = b->memory.scores + o * b->shape.ld + n * b->heads;
      for (int64_t h = 0; h < b->heads; ++h) {
        cell[h] = fmaf(bias[slot - request->bias_first_slot], TA_LOG2E_F, cell[h]);
      }
    }
  }
}

void ta_score_leaf(ta_block *b) {
  const ta_segment *segments = b->memory.segments;
  for (int64_t n = 0; n < b->num_segments;) {
    if (segments[n].kind == TA_SEGMENT_OWN) {
      score_own(b, &segments[n++]);
      continue;
    }
    /* Neighbours that differ only in how their values are taken are scored together. */
    ta_segment joined = segments[n];
    const int64_t first = n++;
    while (n < b->num_segments && segments[n].kind != TA_SEGMENT_OWN && segments[n].begin == joined.end) {
      joined.end = segments[n++].end;
    }
    score_common(b, &joined);
    for (int64_t m = first; m < n; ++m) {
      if (segments[m].kind == TA_SEGMENT_MIXED) {
        hide_mixed(b, &segments[m]);
      }
    }
  }
  if (b->task->request->bias != NULL) {
    add_bias(b);
  }
  for (int64_t r = 0; r < b->rows_padded; ++r) {
    b->memory.leaf_max[r] = TA_STATE_MAX_OF_NONE;
  }
  for (int64_t n = 0; n < b->num_segments; ++n) {
    b->kernels->maximum(b->memory.scores + segments[n].begin * b->shape.ld, b->shape.ld, b->rows_padded,
                        segments[n].end - segments[n].begin, b->memory.leaf_max);
  }
}
