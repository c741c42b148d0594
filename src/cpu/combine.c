/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a row: folding partial results in their fixed order, the sink, and the division. */
#include <string.h>

#include "backend.h"

void ta_join(ta_merge_fn merge, ta_state *state_a, float *out_a, ta_state state_b, const float *out_b, int64_t count) {
  const ta_merge how = ta_state_merge(state_a, state_b);
  if (how.kind == TA_MERGE_TAKE_B) {
    memcpy(out_a, out_b, (size_t)count * sizeof(float));
  } else if (how.kind == TA_MERGE_BOTH) {
    merge(out_a, out_b, count, how.weight_a, how.weight_b);
  }
}

void ta_finish_row(const treeattn_plan *plan, const treeattn_run_args *run, const ta_request *request, int64_t row,
                   int64_t h, ta_state state, float *out) {
  float *target = ta_out_row(plan, run, request, row, h);
  const int64_t width = plan->head_dim_v;
  if (ta_state_is_empty(state)) { /* sees nothing: the sink does not matter */
    memset(target, 0, (size_t)width * sizeof(float));
    ta_store_lse(plan, run, request, row, h, -INFINITY);
    return;
  }
  if (run->sinks != NULL && run->sinks[h] != -INFINITY) {
    const ta_merge how = ta_state_merge_sink(&state, run->sinks[h]);
    for (int64_t d = 0; d < width; ++d) {
      out[d] = out[d] * how.weight_a;
    }
  }
  (plan->kernels == NULL ? ta_scalar_finish : plan->kernels->finish)(out, width, state.sum, target);
  ta_store_lse(plan, run, request, row, h, ta_state_lse(state));
}

void ta_combine(const treeattn_plan *plan, const treeattn_run_args *run, const ta_task *task, void *worker_memory,
                const float *partial) {
  const ta_request *request = task->request;
  const int64_t width = plan->head_dim_v;
  const ta_merge_fn merge = plan->kernels == NULL ? ta_scalar_merge : plan->kernels->merge;
  float *group_out = worker_memory;
  float *total_out = group_out + width;
  for (int64_t row = task->row_begin; row < task->row_end; ++row) {
    for (int64_t h = task->head_begin; h < task->head_end; ++h) {
      ta_state total = ta_state_empty();
      ta_state group = ta_state_empty();
      for (int64_t chunk = 0; chunk < request->num_chunks; ++chunk) {
        const float *source = partial + ta_partial_index(plan, request, row, h, chunk);
        const ta_state state = {source[0], source[1]};
        const int64_t first_leaf = (request->leaf_begin / request->chunk_leaves + chunk) * request->chunk_leaves;
        if (first_leaf % TA_GROUP_LEAVES == 0) {
          ta_join(merge, &total, total_out, group, group_out, width);
          group = ta_state_empty();
        }
        ta_join(merge, &group, group_out, state, source + 2, width);
      }
      ta_join(merge, &total, total_out, group, group_out, width);
      ta_finish_row(plan, run, request, row, h, total, total_out);
    }
  }
}
