/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scalar reference: the specification of every bit, one row, one leaf and one key at a time. It is written to be
 * read; every other path is compared with it byte by byte.
 */
#include <string.h>

#include "backend.h"

/* Working memory for one row. `leaf`, `group` and `total` are the out vectors of three states. */
typedef struct scalar_memory {
  float query[1024];
  float block[1024], leaf[1024], group[1024], total[1024];
  float key[1024], value[1024];
  float scores[TA_LEAF];
  int32_t slots[TA_LEAF];
} scalar_memory;

size_t ta_scalar_worker_bytes(const treeattn_plan *plan) {
  (void)plan;
  return (sizeof(scalar_memory) + TA_ARENA_ALIGNMENT - 1) / TA_ARENA_ALIGNMENT * TA_ARENA_ALIGNMENT;
}

void ta_scalar_merge(float *a, const float *b, int64_t count, float weight_a, float weight_b) {
  for (int64_t d = 0; d < count; ++d) {
    a[d] = fmaf(b[d], weight_b, a[d] * weight_a);
  }
}

void ta_scalar_finish(const float *a, int64_t count, float sum, float *result) {
  for (int64_t d = 0; d < count; ++d) {
    const float quotient = a[d] / sum;
    result[d] = quotient != quotient ? ta_quiet_nan() : quotient;
  }
}

/* The reference works on copies of K and V rows: memory that is never a float cannot be read as one. */
static void load_row(const treeattn_plan *plan, const char *source, int64_t count, float *target) {
  if (plan->kv_dtype == TREEATTN_F32) {
    memcpy(target, source, (size_t)count * sizeof(float));
    return;
  }
  for (int64_t d = 0; d < count; ++d) {
    uint16_t half;
    memcpy(&half, source + 2 * d, sizeof half);
    target[d] = plan->kv_dtype == TREEATTN_F16 ? ta_float_from_f16(half) : ta_float_from_bf16(half);
  }
}

static int64_t slot_of(const ta_request *request, const int32_t *slots, int64_t base, int64_t offset) {
  return base + offset < request->prefix_len ? base + offset : slots[offset];
}

/* The score of one key in units of log2. */
static float score(const treeattn_plan *plan, const ta_query_scale *scale, const float *query, const float *key,
                   float bias) {
  float t = 0.0f;
  for (int64_t begin = 0; begin < plan->head_dim; begin += TA_CHANNELS) {
    const int64_t end = ta_min_i64(begin + TA_CHANNELS, plan->head_dim);
    float even = 0.0f;
    float odd = 0.0f;
    for (int64_t d = begin; d < end; d += 2) {
      even = fmaf(query[d], key[d], even);
      odd = fmaf(query[d + 1], key[d + 1], odd);
    }
    t = begin == 0 ? even + odd : t + (even + odd);
  }
  if (scale->cap > 0.0f) {
    t = scale->cap * ta_tanh(t);
  }
  return fmaf(bias, TA_LOG2E_F, t);
}

static float bias_of(const ta_request *request, int64_t row, int64_t slot) {
  if (request->bias == NULL || slot < request->bias_first_slot) {
    return 0.0f;
  }
  const int64_t node = request->node_of_row == NULL ? row : request->node_of_row[row];
  return request->bias[node * request->bias_stride + slot - request->bias_first_slot];
}

/* One leaf of one row, from zero. */
static ta_state attend_leaf(const treeattn_plan *plan, const treeattn_run_args *run, const ta_request *request,
                            int64_t row, int64_t g, int64_t leaf, const ta_query_scale *scale, scalar_memory *memory) {
  const int64_t base = leaf * TA_LEAF;
  uint64_t seen[TA_LEAF_WORDS];
  ta_row_visible(request, row, leaf, seen, memory->slots);

  ta_state state = ta_state_empty();
  for (int64_t n = 0; n < TA_LEAF; ++n) {
    if (seen[n / 64] >> (n % 64) & 1) {
      const int64_t slot = slot_of(request, memory->slots, base, n);
      load_row(
          plan,
          ta_cache_row(plan, request, run->k, slot, g, plan->k_stride_page, plan->k_stride_head, plan->k_stride_slot),
          plan->head_dim, memory->key);
      memory->scores[n] = score(plan, scale, memory->query, memory->key, bias_of(request, row, slot));
      state.max = memory->scores[n] > state.max ? memory->scores[n] : state.max;
    }
  }
  memset(memory->leaf, 0, (size_t)plan->head_dim_v * sizeof(float));
  for (int64_t begin = 0; begin < TA_LEAF; begin += TA_BLOCK) {
    float sum = 0.0f;
    memset(memory->block, 0, (size_t)plan->head_dim_v * sizeof(float));
    for (int64_t n = begin; n < begin + TA_BLOCK; ++n) {
      if (seen[n / 64] >> (n % 64) & 1) {
        const int64_t slot = slot_of(request, memory->slots, base, n);
        const float weight = ta_exp2(memory->scores[n] - state.max);
        load_row(
            plan,
            ta_cache_row(plan, request, run->v, slot, g, plan->v_stride_page, plan->v_stride_head, plan->v_stride_slot),
            plan->head_dim_v, memory->value);
        sum += weight;
        for (int64_t d = 0; d < plan->head_dim_v; ++d) {
          memory->block[d] = fmaf(weight, memory->value[d], memory->block[d]);
        }
      }
    }
    state.sum += sum;
    for (int64_t d = 0; d < plan->head_dim_v; ++d) {
      memory->leaf[d] += memory->block[d];
    }
  }
  return state;
}

void ta_scalar_attend(const treeattn_plan *plan, const treeattn_run_args *run, const ta_task *task, void *worker_memory,
                      float *partial) {
  scalar_memory *memory = worker_memory;
  const ta_request *request = task->request;
  const ta_query_scale scale = ta_plan_query_scale(plan);
  const int64_t width = plan->head_dim_v;
  for (int64_t row = task->row_begin; row < task->row_end; ++row) {
    for (int64_t h = task->head_begin; h < task->head_end; ++h) {
      const float *q = ta_query_row(plan, run, request, row, h);
      for (int64_t d = 0; d < plan->head_dim; ++d) {
        memory->query[d] = fmaf(q[d], scale.hi, q[d] * scale.lo);
      }
      ta_state total = ta_state_empty();
      ta_state group = ta_state_empty();
      for (int64_t leaf = task->leaf_begin; leaf < task->leaf_end; ++leaf) {
        if (leaf % TA_GROUP_LEAVES == 0) {
          ta_join(ta_scalar_merge, &total, memory->total, group, memory->group, width);
          group = ta_state_empty();
        }
        const ta_state state = attend_leaf(plan, run, request, row, task->g, leaf, &scale, memory);
        ta_join(ta_scalar_merge, &group, memory->group, state, memory->leaf, width);
      }
      ta_join(ta_scalar_merge, &total, memory->total, group, memory->group, width);
      if (request->num_chunks == 1) {
        ta_finish_row(plan, run, request, row, h, total, memory->total);
      } else {
        float *target = partial + ta_partial_index(plan, request, row, h, task->chunk);
        target[0] = total.max;
        target[1] = total.sum;
        memcpy(target + 2, memory->total, (size_t)width * sizeof(float));
      }
    }
  }
}
