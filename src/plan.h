/* SPDX-License-Identifier: Apache-2.0 */
/* The checked plan: sizes, strides, what each row sees, and how the work is cut. Written once by plan.c, read by back
 * ends. */
#ifndef TA_PLAN_H
#define TA_PLAN_H

#include <treeattn/attention.h>

#include "common.h"
#include "order.h"

/* What one request's rows see. Arrays are indexed by query row unless they say node. */
typedef struct ta_request {
  int64_t num_nodes, num_rows, first_row; /* first_row: in the batch */
  int64_t prefix_len, kv_seq_len, cache_index;
  const int32_t *page_table;
  int64_t leaf_begin, leaf_end; /* leaves in which any row may see a key */

  const int32_t *node_of_row; /* NULL: row r is node r */
  const int32_t *row_position;
  const int32_t *first_visible; /* no key at a lower position is seen (window) */
  const int32_t *prefix_first;  /* the row sees prefix positions [prefix_first, prefix_len) ... */
  const uint64_t *prefix_bits;  /* ... unless this is not NULL: bit p of the row's prefix_words words */
  int64_t prefix_words;

  /* Trees: by node. A run is a maximal chain of nodes, each the parent of the next and the one before it by index. */
  const int32_t *parent, *run_start;
  /* Masks: bit j of a row's tail_words words says that it sees slot prefix_len + j. */
  const uint64_t *tail_bits;
  int64_t num_tail, tail_words;
  const int32_t *tail_position; /* of slot prefix_len + j; NULL: the k-th seen has position prefix_len + k */

  const float *bias; /* of row's node i and slot s: bias[i * bias_stride + s - bias_first_slot]; NULL: none */
  int64_t bias_stride, bias_first_slot;

  /* The cut: rows into blocks, leaves into chunks. */
  int64_t nodes_per_block, heads_per_block, num_blocks;
  int64_t chunk_leaves; /* leaves of a chunk: all of them (0), TA_GROUP_LEAVES or 1 */
  int64_t num_chunks;
  int64_t first_task[2];
  size_t partial_offset; /* floats, into the partial results; chunks of a (row, head) lie beside each other */
} ta_request;

struct ta_kernels;

struct treeattn_plan {
  bool owned; /* memory from treeattn_plan_create */
  int64_t num_requests;
  ta_request *requests;
  int64_t num_rows;
  int64_t num_heads, num_kv_heads, group, head_dim, head_dim_v;
  treeattn_dtype q_dtype, out_dtype, kv_dtype;
  treeattn_backend backend;
  float scale, softcap;
  int64_t window;
  int64_t page_size; /* contiguous: the capacity, so that a slot is always (page, offset) */
  bool paged;
  int64_t q_stride_head, q_stride_row, out_stride_row, out_stride_head, lse_stride_row, lse_stride_head;
  int64_t k_stride_page, k_stride_head, k_stride_slot, v_stride_page, v_stride_head, v_stride_slot;
  treeattn_mode mode;
  treeattn_isa isa;
  const struct ta_kernels *kernels; /* NULL: the scalar reference */
  int64_t num_workers, num_tasks[2];
  int64_t max_block_rows, max_block_nodes;
  size_t worker_bytes, partial_bytes, scratch_bytes;
  size_t q_bytes, k_bytes, v_bytes, out_bytes, lse_bytes;
};

/* One block of rows of one KV head over one chunk of leaves. */
typedef struct ta_task {
  const ta_request *request;
  int64_t g, block, chunk;
  int64_t row_begin, row_end;   /* query rows of the request */
  int64_t head_begin, head_end; /* query heads */
  int64_t leaf_begin, leaf_end;
} ta_task;

/* Decodes a task number of a stage; false if it is out of range. */
TA_HIDDEN bool ta_plan_task(const treeattn_plan *plan, int stage, int64_t index, ta_task *task);

/*
 * The keys that a row sees in a leaf: bit b of `seen` for position leaf * TA_LEAF + b, and for positions from
 * prefix_len on the slot in slots[b]. Entries of `slots` that belong to the prefix or to keys that are not seen are
 * left alone.
 */
TA_HIDDEN void ta_row_visible(const ta_request *request, int64_t row, int64_t leaf, uint64_t seen[TA_LEAF_WORDS],
                              int32_t slots[TA_LEAF]);

/* Address arithmetic of the cache: elements from the base to row (slot, g). */
static inline int64_t ta_cache_offset(const treeattn_plan *plan, const ta_request *request, int64_t slot, int64_t g,
                                      int64_t stride_page, int64_t stride_head, int64_t stride_slot) {
  if (!plan->paged) {
    return request->cache_index * stride_page + g * stride_head + slot * stride_slot;
  }
  const int64_t page = request->page_table[slot / plan->page_size];
  return page * stride_page + g * stride_head + (slot % plan->page_size) * stride_slot;
}

/* A bump allocator over the caller's memory that also runs dry (base NULL) to find out how much is needed. */
typedef struct ta_arena {
  unsigned char *base;
  size_t used;
  bool overflow;
} ta_arena;

enum { TA_ARENA_ALIGNMENT = 64 };

static inline void *ta_arena_take(ta_arena *arena, int64_t count, size_t element_bytes) {
  size_t bytes = 0;
  size_t end = 0;
  const size_t start = (arena->used + TA_ARENA_ALIGNMENT - 1) / TA_ARENA_ALIGNMENT * TA_ARENA_ALIGNMENT;
  if (arena->overflow || start < arena->used || count < 0 || !ta_mul_size((size_t)count, element_bytes, &bytes) ||
      !ta_add_size(start, bytes, &end)) {
    arena->overflow = true;
    return NULL;
  }
  arena->used = end;
  return arena->base == NULL ? NULL : arena->base + start;
}

/* The parts of making a plan, in order: plan_check.c, plan_request.c, plan_layout.c, plan_cut.c. */
TA_HIDDEN treeattn_status ta_plan_check_args(const treeattn_plan_args *args, treeattn_error *error);
TA_HIDDEN treeattn_status ta_plan_lay_out_rows(const treeattn_plan_args *args, treeattn_plan *plan,
                                               treeattn_error *error);
TA_HIDDEN treeattn_status ta_plan_lay_out_cache(const treeattn_plan_args *args, treeattn_plan *plan,
                                                treeattn_error *error);
TA_HIDDEN treeattn_status ta_plan_cut_work(treeattn_plan *plan, treeattn_error *error);
TA_HIDDEN treeattn_status ta_plan_fail_overflow(const char *what, treeattn_error *error);

/* plan_request.c: checks one request and fills its record; with a dry arena (base NULL) only sizes. */
TA_HIDDEN treeattn_status ta_plan_request(const treeattn_plan_args *args, int64_t index, const treeattn_request *in,
                                          ta_arena *arena, ta_request *out, treeattn_error *error);

#endif
