/* SPDX-License-Identifier: Apache-2.0 */
/* The first pass: a tile of rows against one chunk of leaves, from zero to a partial result. */
#include "scores.metal"

/* The address space and the attribute have the same name, which one macro cannot stand for: whoever makes address spaces
 * macros defines this one as well. */
#ifndef TA_THREADGROUP_ARGUMENT
#define TA_THREADGROUP_ARGUMENT [[threadgroup(0)]]
#endif

/* One channel of the values of up to TA_BLOCK keys, every element loaded once for all rows of the tile. The chain of a
 * row runs over the keys that it sees, which come by ascending position. */
inline void add_values(work_on_leaf w, device const uchar *v, threadgroup ta_metal_shared *shared, int count, uint d,
                       thread float *chain) {
  const uint all = rows_of_tile(w);
  for (int n = 0; n < count; ++n) {
    const float x = load1(v, shared->key_offset[n] + d);
    const uint place = shared->key_place[n];
    threadgroup const float4 *weights =
        (threadgroup const float4 *)(shared->scores + (place & 0xffffu) * TA_METAL_ROWS);
    const float4 low = weights[0];
    const float4 high = weights[1];
    const float weight[TA_METAL_ROWS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const uint rows = place >> 16;
    for (int r = 0; r < TA_METAL_ROWS; ++r) {
      /* Not seen is not added: a product with zero would let NaN through. */
      chain[r] = rows == all || (rows >> r & 1) != 0 ? fma(weight[r], x, chain[r]) : chain[r];
    }
  }
}

/* Weighted values of a leaf, and their fold into the partial results. A lane is a channel. */
inline void value_leaf(constant ta_metal_params &params, work_on_leaf w, device const uchar *v, device float *partial,
                       threadgroup ta_metal_shared *shared) {
  for (uint panel = 0; panel < head_dim_v; panel += TA_METAL_LANES) {
    const uint d = panel + w.lane;
    float out[TA_METAL_ROWS] = {};
    for (int block = 0; block < TA_LEAF_WORDS; ++block) {
      float chain[TA_METAL_ROWS];
      for (int r = 0; r < TA_METAL_ROWS; ++r) {
        chain[r] = params.zero;
      }
      const int end = first_key(w, block + 1);
      for (int first = first_key(w, block); first < end; first += TA_BLOCK) {
        const int count = min(end - first, int(TA_BLOCK));
        fetch_keys(params, w, shared, first, count, params.v_stride_page, params.v_stride_head, params.v_stride_slot);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (d < head_dim_v) {
          add_values(w, v, shared, count, d, chain);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      for (int r = 0; r < TA_METAL_ROWS; ++r) {
        out[r] = out[r] + chain[r];
      }
    }
    for (int r = 0; r < w.tile->num_rows && d < head_dim_v; ++r) {
      const join_of_states join = {shared->kind[r], shared->weight_a[r], shared->weight_b[r]};
      device float *target = partial + shared->partial_offset[r] + 2 + d;
      if (join.kind != TA_KEEP_A) {
        *target = join.kind == TA_JOIN ? join_outs(join, *target, out[r]) : out[r];
      }
    }
  }
}

/* Grid: (tiles, KV heads, chunks). */
kernel void treeattn_attend(constant ta_metal_params &params [[buffer(0)]],
                            device const ta_metal_plan *plan [[buffer(1)]], device const float *q [[buffer(2)]],
                            device const uchar *k [[buffer(3)]], device const uchar *v [[buffer(4)]],
                            device float *partial [[buffer(5)]],
                            threadgroup ta_metal_shared *shared TA_THREADGROUP_ARGUMENT,
                            uint3 place [[threadgroup_position_in_grid]], uint lane [[thread_index_in_threadgroup]]) {
  work_on_leaf w;
  w.plan = (device const uchar *)plan;
  w.tile = (device const ta_metal_tile *)(w.plan + plan->tiles) + place.x;
  w.request = (device const ta_metal_request *)(w.plan + plan->requests) + w.tile->request;
  w.g = int(place.y);
  w.lane = lane;
  const int chunk = int(place.z);
  if (chunk >= w.request->num_chunks) {
    return;
  }
  const int aligned = (w.request->leaf_begin / w.request->chunk_leaves + chunk) * w.request->chunk_leaves;
  const int begin = max(aligned, w.request->leaf_begin);
  const int end = min(aligned + w.request->chunk_leaves, w.request->leaf_end);

  if (lane < TA_METAL_ROWS) {
    const int64_t pair =
        int64_t(node_of_row(params, w, int(lane))) * params.num_heads + head_of_row(params, w, int(lane));
    shared->partial_offset[lane] =
        w.request->partial + (pair * w.request->num_chunks + chunk) * (int64_t(head_dim_v) + 2);
    shared->max[lane] = TA_STATE_MAX_OF_NONE;
    shared->sum[lane] = 0.0f;
  }
  for (int leaf = begin; leaf < end; ++leaf) {
    w.base = leaf * TA_LEAF;
    w.leaf = nullptr;
    if (leaf < w.tile->plain_begin || leaf >= w.tile->plain_end) {
      const int plain = leaf < w.tile->plain_begin ? 0 : w.tile->plain_end - w.tile->plain_begin;
      w.leaf = (device const ta_metal_leaf *)(w.plan + plan->leaves) + w.tile->leaves +
               (leaf - w.request->leaf_begin - plain);
      if (w.leaf->block_first[TA_LEAF_WORDS] == 0) {
        continue; /* the tile sees nothing here */
      }
    }
    score_leaf(params, w, q, k, shared);
    weigh_leaf(w, shared);
    value_leaf(params, w, v, partial, shared);
  }
  if (int(lane) < w.tile->num_rows) {
    device float *target = partial + shared->partial_offset[lane];
    target[0] = shared->max[lane];
    target[1] = shared->sum[lane];
  }
}
