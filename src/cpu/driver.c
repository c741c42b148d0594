/* SPDX-License-Identifier: Apache-2.0 */
/* A task of the blocked back end: its memory, its queries, and the fold over leaves. */
#include <string.h>

#include "driver.h"

static ta_block_shape shape_of(const treeattn_plan *plan) {
  const ta_kernels *kernels = plan->kernels;
  ta_block_shape shape;
  shape.rows_padded = ta_round_up(plan->max_block_rows, kernels->row_vector);
  /* One vector more, so that a node's rows can be read from any column; an odd number of cache lines, so that the
   * rows of a matrix do not share their sets. */
  shape.ld = ta_round_up(shape.rows_padded + kernels->row_vector, 16);
  shape.ld += shape.ld / 16 % 2 == 0 ? 16 : 0;
  shape.ldk = plan->head_dim + 16;
  shape.panels = (plan->head_dim_v + kernels->panel_width - 1) / kernels->panel_width;
  shape.ldo = shape.panels * kernels->panel_width;
  const int64_t widest = ta_max_i64(plan->head_dim, plan->head_dim_v);
  /* Few rows wait for memory: short chunks keep the converted keys in the first-level cache while the next ones
   * arrive. */
  const int64_t floats = shape.rows_padded <= 16 ? 3072 : 16384;
  shape.keys_per_chunk = ta_min_i64(ta_max_i64(floats / widest, 12), TA_MAX_CHUNK);
  shape.max_nodes = ta_max_i64(plan->max_block_nodes, 1);
  return shape;
}

static void take_memory(const ta_block_shape *shape, const treeattn_plan *plan, ta_arena *arena,
                        ta_block_memory *memory) {
  const int64_t keys = shape->keys_per_chunk;
  memory->qt = ta_arena_take(arena, plan->head_dim * shape->ld, sizeof(float));
  memory->scores = ta_arena_take(arena, TA_LEAF * shape->ld, sizeof(float));
  memory->node_scores = ta_arena_take(arena, ta_max_i64(keys, TA_BLOCK) * shape->ld, sizeof(float));
  memory->converted = ta_arena_take(arena, ta_max_i64(keys * shape->ldk, TA_BLOCK * shape->ldo), sizeof(float));
  memory->block_out = ta_arena_take(arena, shape->rows_padded * shape->ldo, sizeof(float));
  memory->leaf_out = ta_arena_take(arena, shape->rows_padded * shape->ldo, sizeof(float));
  memory->group_out = ta_arena_take(arena, shape->rows_padded * shape->ldo, sizeof(float));
  memory->total_out = ta_arena_take(arena, shape->rows_padded * shape->ldo, sizeof(float));
  memory->leaf_max = ta_arena_take(arena, shape->rows_padded, sizeof(float));
  memory->block_sum = ta_arena_take(arena, shape->rows_padded, sizeof(float));
  memory->leaf_sum = ta_arena_take(arena, shape->rows_padded, sizeof(float));
  memory->group = ta_arena_take(arena, shape->rows_padded, sizeof(ta_state));
  memory->total = ta_arena_take(arena, shape->rows_padded, sizeof(ta_state));
  memory->seen = ta_arena_take(arena, shape->max_nodes * TA_LEAF_WORDS, sizeof(uint64_t));
  memory->segments = ta_arena_take(arena, TA_LEAF, sizeof(ta_segment));
  memory->common = ta_arena_take(arena, TA_LEAF, sizeof(int32_t));
  memory->slots = ta_arena_take(arena, TA_LEAF, sizeof(int32_t));
}

size_t ta_driver_worker_bytes(const treeattn_plan *plan) {
  const ta_block_shape shape = shape_of(plan);
  ta_arena arena = {NULL, 0, false};
  ta_block_memory memory;
  take_memory(&shape, plan, &arena, &memory);
  /* The combine stage needs two out vectors, which the first of the arrays above always holds. */
  return (size_t)ta_round_up((int64_t)ta_max_i64((int64_t)arena.used, 2 * plan->head_dim_v * (int64_t)sizeof(float)),
                             TA_ARENA_ALIGNMENT);
}

static void pack_queries(const ta_block *b) {
  const treeattn_plan *plan = b->plan;
  const ta_query_scale scale = ta_plan_query_scale(plan);
  const int64_t ld = b->shape.ld;
  float *qt = b->memory.qt;
  memset(qt, 0, (size_t)(plan->head_dim * ld) * sizeof(float));
  for (int64_t n = 0; n < b->nodes; ++n) {
    for (int64_t h = 0; h < b->heads; ++h) {
      const float *q = ta_query_row(plan, b->run, b->task->request, b->task->row_begin + n, b->task->head_begin + h);
      float *column = qt + n * b->heads + h;
      for (int64_t d = 0; d < plan->head_dim; ++d) {
        column[d * ld] = fmaf(q[d], scale.hi, q[d] * scale.lo);
      }
    }
  }
}

static void close_group(const ta_block *b) {
  for (int64_t r = 0; r < b->rows; ++r) {
    ta_join(b->kernels->merge, &b->memory.total[r], b->memory.total_out + r * b->shape.ldo, b->memory.group[r],
            b->memory.group_out + r * b->shape.ldo, b->plan->head_dim_v);
    b->memory.group[r] = ta_state_empty();
  }
}

static void store_rows(const ta_block *b, float *partial) {
  const ta_request *request = b->task->request;
  for (int64_t r = 0; r < b->rows; ++r) {
    const int64_t row = b->task->row_begin + r / b->heads;
    const int64_t h = b->task->head_begin + r % b->heads;
    const ta_state state = b->memory.total[r];
    float *out = b->memory.total_out + r * b->shape.ldo;
    if (request->num_chunks == 1) {
      ta_finish_row(b->plan, b->run, request, row, h, state, out);
    } else {
      float *target = partial + ta_partial_index(b->plan, request, row, h, b->task->chunk);
      target[0] = state.max;
      target[1] = state.sum;
      memcpy(target + 2, out, (size_t)b->plan->head_dim_v * sizeof(float));
    }
  }
}

void ta_driver_attend(const treeattn_plan *plan, const treeattn_run_args *run, const ta_task *task, void *worker_memory,
                      float *partial) {
  ta_block b;
  memset(&b, 0, sizeof b);
  b.plan = plan;
  b.run = run;
  b.kernels = plan->kernels;
  b.task = task;
  b.shape = shape_of(plan);
  b.cap = ta_plan_query_scale(plan).cap;
  b.nodes = task->row_end - task->row_begin;
  b.heads = task->head_end - task->head_begin;
  b.rows = b.nodes * b.heads;
  b.rows_padded = ta_round_up(b.rows, plan->kernels->row_vector);
  ta_arena arena = {worker_memory, 0, false};
  take_memory(&b.shape, plan, &arena, &b.memory);

  pack_queries(&b);
  for (int64_t r = 0; r < b.rows; ++r) {
    b.memory.group[r] = ta_state_empty();
    b.memory.total[r] = ta_state_empty();
  }
  for (int64_t leaf = task->leaf_begin; leaf < task->leaf_end; ++leaf) {
    if (leaf % TA_GROUP_LEAVES == 0) {
      close_group(&b);
    }
    b.base = leaf * TA_LEAF;
    ta_find_segments(&b, leaf);
    if (b.num_segments == 0) {
      continue;
    }
    ta_score_leaf(&b);
    ta_value_leaf(&b);
    for (int64_t r = 0; r < b.rows; ++r) {
      const ta_state state = {b.memory.leaf_max[r], b.memory.leaf_sum[r]};
      ta_join(plan->kernels->merge, &b.memory.group[r], b.memory.group_out + r * b.shape.ldo, state,
              b.memory.leaf_out + r * b.shape.ldo, plan->head_dim_v);
    }
  }
  close_group(&b);
  store_rows(&b, partial);
}
