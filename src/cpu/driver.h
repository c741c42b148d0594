/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocked CPU back end: one block of rows against a chunk of leaves, over a kernel table. Every load of K and V
 * is shared by the rows of the block. Within a leaf, positions fall into three kinds:
 *
 *   SHARED   every row of the block sees the same slot there       a matrix product without a mask
 *   MIXED    the rows that see something there see the same slot   scores as above, values node by node
 *   OWN      different nodes see different slots                   node by node
 *
 * Weights lie by position, so that each row's chain runs over ascending positions whatever the kinds are.
 */
#ifndef TA_CPU_DRIVER_H
#define TA_CPU_DRIVER_H

#include "backend.h"

typedef enum ta_segment_kind { TA_SEGMENT_NONE, TA_SEGMENT_SHARED, TA_SEGMENT_MIXED, TA_SEGMENT_OWN } ta_segment_kind;

typedef struct ta_segment {
  int64_t begin, end; /* offsets within the leaf */
  ta_segment_kind kind;
} ta_segment;

typedef struct ta_block_memory {
  float *qt, *scores, *node_scores, *converted;
  float *block_out, *leaf_out, *group_out, *total_out;
  float *leaf_max, *leaf_sum, *block_sum;
  ta_state *group, *total;
  uint64_t *seen; /* [nodes][TA_LEAF_WORDS] */
  ta_segment *segments;
  int32_t *common, *slots; /* [TA_LEAF]: the slot that all rows share, and one row's */
} ta_block_memory;

/* Sizes that follow from the plan. */
typedef struct ta_block_shape {
  int64_t rows_padded, ld, ldk, ldo, panels, keys_per_chunk, max_nodes;
} ta_block_shape;

typedef struct ta_block {
  const treeattn_plan *plan;
  const treeattn_run_args *run;
  const ta_kernels *kernels;
  const ta_task *task;
  ta_block_shape shape;
  ta_block_memory memory;
  float cap;
  int64_t nodes, heads, rows, rows_padded; /* of this block */
  int64_t base;                            /* first position of the leaf */
  int64_t num_segments;
} ta_block;

/* Keys of a chunk that a few rows take straight from the cache; what comes next is asked for a chunk ahead. */
enum { TA_FEW_CHUNK = 32, TA_MAX_CHUNK = 256 };

/* driver_segments.c: cuts the leaf into segments and records what each node of the block sees. */
TA_HIDDEN void ta_find_segments(ta_block *b, int64_t leaf);
/* The slots of a node's keys, by offset: the row's own walk. */
TA_HIDDEN const int32_t *ta_slots_of_node(const ta_block *b, int64_t n);
/* Offsets within a segment that a node sees; up to keys_per_chunk from *next on, which is moved past them. */
TA_HIDDEN int64_t ta_next_offsets(const ta_block *b, const ta_segment *s, const uint64_t *seen, int64_t *next,
                                  int32_t *offsets);
/* driver_scores.c: scores and maxima of the leaf. */
TA_HIDDEN void ta_score_leaf(ta_block *b);
/* driver_values.c: weights, their sums and the weighted values of the leaf. */
TA_HIDDEN void ta_value_leaf(const ta_block *b);

static inline int64_t ta_round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

static inline bool ta_bit_of(const uint64_t *bits, int64_t n) {
  return (bits[n / 64] >> (n % 64) & 1) != 0;
}

/* The slot at a position that is not OWN. */
static inline int64_t ta_common_slot(const ta_block *b, int64_t o) {
  const int64_t p = b->base + o;
  return p < b->task->request->prefix_len ? p : b->memory.common[o];
}

static inline const void *ta_key_row(const ta_block *b, int64_t slot) {
  const treeattn_plan *plan = b->plan;
  return ta_cache_row(plan, b->task->request, b->run->k, slot, b->task->g, plan->k_stride_page, plan->k_stride_head,
                      plan->k_stride_slot);
}

static inline const void *ta_value_row(const ta_block *b, int64_t slot) {
  const treeattn_plan *plan = b->plan;
  return ta_cache_row(plan, b->task->request, b->run->v, slot, b->task->g, plan->v_stride_page, plan->v_stride_head,
                      plan->v_stride_slot);
}

/* Pointers to cache rows: those of a chunk, and those of the chunk that comes after it. */
typedef struct ta_rows {
  const void *now[TA_MAX_CHUNK];
  const void *next[TA_MAX_CHUNK];
} ta_rows;

/* Cache rows of the shared positions [o, o + keys) of the leaf. Neighbouring slots of the prefix, or of a page of it,
 * are a stride apart: dividing by the page size for each would cost as much as a tenth of a key's arithmetic. */
static inline void ta_list_rows(const ta_block *b, const void *base, int64_t stride_page, int64_t stride_head,
                                int64_t stride_slot, int64_t o, int64_t keys, const void **rows) {
  const treeattn_plan *plan = b->plan;
  const ta_request *request = b->task->request;
  const int64_t step = stride_slot * (plan->kv_dtype == TREEATTN_F32 ? 4 : 2);
  for (int64_t j = 0; j < keys;) {
    const int64_t p = b->base + o + j;
    const int64_t slot = ta_common_slot(b, o + j);
    int64_t run = 1;
    if (p < request->prefix_len) {
      run = ta_min_i64(keys - j, request->prefix_len - p);
      run = plan->paged ? ta_min_i64(run, plan->page_size - slot % plan->page_size) : run;
    }
    const char *row = ta_cache_row(plan, request, base, slot, b->task->g, stride_page, stride_head, stride_slot);
    for (; run > 0; --run) {
      rows[j++] = row;
      row += step;
    }
  }
}

static inline void ta_list_keys(const ta_block *b, int64_t o, int64_t keys, const void **rows) {
  const treeattn_plan *plan = b->plan;
  ta_list_rows(b, b->run->k, plan->k_stride_page, plan->k_stride_head, plan->k_stride_slot, o, keys, rows);
}

static inline void ta_list_values(const ta_block *b, int64_t o, int64_t keys, const void **rows) {
  const treeattn_plan *plan = b->plan;
  ta_list_rows(b, b->run->v, plan->v_stride_page, plan->v_stride_head, plan->v_stride_slot, o, keys, rows);
}

static inline ta_ahead ta_ahead_none(void) {
  const ta_ahead ahead = {NULL, 0, 0, 0, 0};
  return ahead;
}

/* After keys [.., o) of a segment: its next keys, or its first values. */
static inline ta_ahead ta_ahead_of_keys(const ta_block *b, const ta_segment *s, int64_t o, int64_t chunk,
                                        ta_rows *rows) {
  const treeattn_plan *plan = b->plan;
  const int64_t element = plan->kv_dtype == TREEATTN_F32 ? 4 : 2;
  ta_ahead ahead = {rows->next, 0, 0, 0, 0};
  if (o < s->end) {
    ahead.num_rows = ta_min_i64(chunk, s->end - o);
    ahead.row_bytes = plan->head_dim * element;
    ta_list_keys(b, o, ahead.num_rows, rows->next);
  } else {
    ahead.num_rows = ta_min_i64(chunk, s->end - s->begin);
    ahead.row_bytes = plan->head_dim_v * element;
    ta_list_values(b, s->begin, ahead.num_rows, rows->next);
  }
  return ahead;
}

/* After values [.., o) of a segment: its next values, or the next leaf's first keys where they are known to be seen. */
static inline ta_ahead ta_ahead_of_values(const ta_block *b, const ta_segment *s, int64_t o, int64_t chunk,
                                          ta_rows *rows) {
  const treeattn_plan *plan = b->plan;
  const int64_t element = plan->kv_dtype == TREEATTN_F32 ? 4 : 2;
  ta_ahead ahead = {rows->next, 0, 0, 0, 0};
  if (o < s->end) {
    ahead.num_rows = ta_min_i64(chunk, s->end - o);
    ahead.row_bytes = plan->head_dim_v * element;
    ta_list_values(b, o, ahead.num_rows, rows->next);
  } else if (s->end == TA_LEAF && b->base + 2 * TA_LEAF <= b->task->leaf_end * TA_LEAF) {
    const int64_t left = b->task->request->prefix_len - (b->base + TA_LEAF);
    ahead.num_rows = ta_max_i64(0, ta_min_i64(chunk, left));
    ahead.row_bytes = plan->head_dim * element;
    ta_list_keys(b, TA_LEAF, ahead.num_rows, rows->next);
  }
  return ahead;
}

#endif
