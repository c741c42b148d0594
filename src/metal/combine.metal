/* SPDX-License-Identifier: Apache-2.0 */
/* The second pass: one row's partial results folded in their fixed order, the sink, and the division. */
#include "cache.metal"

/* Grid: (query rows, heads). Lanes are channels of the output. */
kernel void treeattn_combine(constant ta_metal_params &params [[buffer(0)]],
                             device const ta_metal_plan *plan [[buffer(1)]], device const float *partial [[buffer(2)]],
                             device const float *sinks [[buffer(3)]], device float *out [[buffer(4)]],
                             device float *lse [[buffer(5)]], uint2 place [[threadgroup_position_in_grid]],
                             uint lane [[thread_index_in_threadgroup]]) {
  device const uchar *base = (device const uchar *)plan;
  const int row = int(place.x);
  const int h = int(place.y);
  const int index = ((device const int32_t *)(base + plan->request_of_row))[row];
  device const ta_metal_request *request = (device const ta_metal_request *)(base + plan->requests) + index;
  const int chunks = request->num_chunks;
  const int64_t floats = int64_t(head_dim_v) + 2;
  device const float *first =
      partial + request->partial + (int64_t(row - request->first_row) * params.num_heads + h) * chunks * floats;

  for (uint d = lane; d < head_dim_v; d += TA_METAL_LANES) {
    state_of_row total = {TA_STATE_MAX_OF_NONE, 0.0f};
    state_of_row group = {TA_STATE_MAX_OF_NONE, 0.0f};
    float total_out = 0.0f;
    float group_out = 0.0f;
    for (int chunk = 0; chunk <= chunks; ++chunk) {
      const int leaf = (request->leaf_begin / request->chunk_leaves + chunk) * request->chunk_leaves;
      if (chunk == chunks || leaf % TA_GROUP_LEAVES == 0) { /* the group is complete */
        const join_of_states join = join_states(total, group);
        total_out = join.kind == TA_JOIN ? join_outs(join, total_out, group_out)
                                         : (join.kind == TA_TAKE_B ? group_out : total_out);
        group.max = TA_STATE_MAX_OF_NONE;
        group.sum = 0.0f;
      }
      if (chunk < chunks) {
        device const float *source = first + chunk * floats;
        const state_of_row state = {source[0], source[1]};
        const join_of_states join = join_states(group, state);
        if (join.kind != TA_KEEP_A) { /* the out vector of an empty state was never written */
          group_out = join.kind == TA_JOIN ? join_outs(join, group_out, source[2 + d]) : source[2 + d];
        }
      }
    }

    const bool empty = total.sum == 0.0f; /* sees nothing: the sink does not matter */
    if (!empty && params.has_sinks != 0 && sinks[h] != -INFINITY) {
      const float sink = sinks[h];
      const state_of_row state = {fma(sink, TA_LOG2E_HI, sink * TA_LOG2E_LO), params.one};
      total_out = total_out * join_states(total, state).weight_a;
    }
    out[row * params.out_stride_row + h * params.out_stride_head + d] =
        empty ? 0.0f : with_one_nan(total_out / total.sum);
    if (params.has_lse != 0 && d == 0) {
      const float value = fma(total.max, TA_LN2_HI, fma(total.max, TA_LN2_LO, log_of(total.sum)));
      lse[row * params.lse_stride_row + h * params.lse_stride_head] = empty ? -INFINITY : with_one_nan(value);
    }
  }
}
