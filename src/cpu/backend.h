/* SPDX-License-Identifier: Apache-2.0 */
/* The two CPU back ends behind a plan: the scalar reference and the blocked driver over a kernel table. */
#ifndef TA_CPU_BACKEND_H
#define TA_CPU_BACKEND_H

#include "../plan.h"
#include "../softmax_state.h"
#include "kernels.h"

/* Working memory of one worker. */
TA_HIDDEN size_t ta_scalar_worker_bytes(const treeattn_plan *plan);
TA_HIDDEN size_t ta_driver_worker_bytes(const treeattn_plan *plan);

/* Computes a task of stage 0; with several chunks the result is partial. worker_memory is aligned to
 * TA_ARENA_ALIGNMENT. */
TA_HIDDEN void ta_scalar_attend(const treeattn_plan *plan, const treeattn_run_args *run, const ta_task *task,
                                void *worker_memory, float *partial);
TA_HIDDEN void ta_driver_attend(const treeattn_plan *plan, const treeattn_run_args *run, const ta_task *task,
                                void *worker_memory, float *partial);
/* Stage 1: folds the chunks of a block's rows in their fixed order and finishes them. */
TA_HIDDEN void ta_combine(const treeattn_plan *plan, const treeattn_run_args *run, const ta_task *task,
                          void *worker_memory, const float *partial);

/* The two per-row operations of the kernel table, in scalar form. */
TA_HIDDEN void ta_scalar_merge(float *a, const float *b, int64_t count, float weight_a, float weight_b);
TA_HIDDEN void ta_scalar_finish(const float *a, int64_t count, float sum, float *result);

typedef void (*ta_merge_fn)(float *a, const float *b, int64_t count, float weight_a, float weight_b);

/* Merges {state_b, out_b} into {*state_a, out_a}. */
TA_HIDDEN void ta_join(ta_merge_fn merge, ta_state *state_a, float *out_a, ta_state state_b, const float *out_b,
                       int64_t count);

/* The end of a row: joins the sink, divides, and writes out and lse. `out` may be changed. */
TA_HIDDEN void ta_finish_row(const treeattn_plan *plan, const treeattn_run_args *run, const ta_request *request,
                             int64_t row, int64_t h, ta_state state, float *out);

/* A partial result is a state and head_dim_v numbers. */
static inline int64_t ta_partial_floats(const treeattn_plan *plan) {
  return plan->head_dim_v + 2;
}

static inline size_t ta_partial_index(const treeattn_plan *plan, const ta_request *request, int64_t row, int64_t h,
                                      int64_t chunk) {
  return request->partial_offset +
         (size_t)(((row * plan->num_heads + h) * request->num_chunks + chunk) * ta_partial_floats(plan));
}

/* The scale that queries are multiplied by, in two parts: scores come out in units of log2, or of softcap. */
typedef struct ta_query_scale {
  float hi, lo;
  float cap; /* softcap in units of log2; 0: none */
} ta_query_scale;

static inline ta_query_scale ta_plan_query_scale(const treeattn_plan *plan) {
  const double factor =
      plan->softcap > 0.0f ? (double)plan->scale / (double)plan->softcap : (double)plan->scale * 1.44269504088896340736;
  ta_query_scale scale;
  scale.hi = (float)factor;
  scale.lo = (float)(factor - (double)scale.hi);
  scale.cap = plan->softcap > 0.0f ? (float)((double)plan->softcap * 1.44269504088896340736) : 0.0f;
  return scale;
}

/* Where the rows of a batch lie in q and out. */
static inline const float *ta_query_row(const treeattn_plan *plan, const treeattn_run_args *run,
                                        const ta_request *request, int64_t row, int64_t h) {
  return (const float *)run->q + h * plan->q_stride_head + (request->first_row + row) * plan->q_stride_row;
}

static inline float *ta_out_row(const treeattn_plan *plan, const treeattn_run_args *run, const ta_request *request,
                                int64_t row, int64_t h) {
  return (float *)run->out + (request->first_row + row) * plan->out_stride_row + h * plan->out_stride_head;
}

static inline void ta_store_lse(const treeattn_plan *plan, const treeattn_run_args *run, const ta_request *request,
                                int64_t row, int64_t h, float lse) {
  if (run->lse != NULL) {
    run->lse[(request->first_row + row) * plan->lse_stride_row + h * plan->lse_stride_head] = lse;
  }
}

static inline const char *ta_cache_row(const treeattn_plan *plan, const ta_request *request, const void *base,
                                       int64_t slot, int64_t g, int64_t stride_page, int64_t stride_head,
                                       int64_t stride_slot) {
  const int64_t element = ta_cache_offset(plan, request, slot, g, stride_page, stride_head, stride_slot);
  return (const char *)base + (size_t)element * (plan->kv_dtype == TREEATTN_F32 ? 4u : 2u);
}

#endif
