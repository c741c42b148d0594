/* SPDX-License-Identifier: Apache-2.0 */
/* Scores of a leaf, and their weights: what docs/arithmetic.md says before the values. */
#ifndef TA_METAL_SCORES
#define TA_METAL_SCORES

#include "cache.metal"

/* A position that a row does not see. No score or weight has these bits: a NaN among them is the one quiet NaN. */
#define TA_HIDDEN_BITS 0xffffffffu

/* Each lane takes one key of a block and half of the rows. */
enum { TA_ROWS_OF_LANE = TA_METAL_ROWS * TA_BLOCK / TA_METAL_LANES };

inline bool is_hidden(float x) {
  return as_type<uint>(x) == TA_HIDDEN_BITS;
}

/* Channels [panel, panel + width) of the tile's queries, scaled. A lane is a channel. */
inline void load_queries(constant ta_metal_params &params, work_on_leaf w, device const float *q,
                         threadgroup ta_metal_shared *shared, uint panel, uint width) {
  for (int r = 0; r < TA_METAL_ROWS && w.lane < width; ++r) {
    float scaled = 0.0f;
    if (r < w.tile->num_rows) {
      const int row = w.request->first_row + node_of_row(params, w, r);
      const float x = q[head_of_row(params, w, r) * params.q_stride_head + row * params.q_stride_row + panel + w.lane];
      scaled = fma(x, params.scale_hi, x * params.scale_lo);
    }
    shared->query[r * TA_CHANNELS + w.lane] = scaled;
  }
}

inline float bias_of(constant ta_metal_params &params, work_on_leaf w, int r, int slot) {
  if (w.request->bias == 0 || slot < w.request->bias_first_slot) {
    return params.zero;
  }
  device const float *bias = (device const float *)(w.plan + w.request->bias);
  return bias[node_of_row(params, w, r) * w.request->bias_columns + slot - w.request->bias_first_slot];
}

/* The two chains of TA_ROWS_OF_LANE rows go on over the channels of a slice; `query` is at its first channel. */
inline void multiply_slice(threadgroup const float *key, threadgroup const float *query, uint channels,
                           thread float *even, thread float *odd) {
  for (uint c = 0; c < channels; c += 4) {
    const float4 k = *(threadgroup const float4 *)(key + c);
    for (int j = 0; j < TA_ROWS_OF_LANE; ++j) {
      const float4 x = *(threadgroup const float4 *)(query + j * TA_CHANNELS + c);
      even[j] = fma(x.x, k.x, even[j]);
      odd[j] = fma(x.y, k.y, odd[j]);
      even[j] = fma(x.z, k.z, even[j]);
      odd[j] = fma(x.w, k.w, odd[j]);
    }
  }
}

/* Scores of up to TA_BLOCK keys against the tile's rows, over one panel of channels. Every element of K is loaded once
 * for all rows. */
inline void score_keys(constant ta_metal_params &params, work_on_leaf w, device const uchar *k,
                       threadgroup ta_metal_shared *shared, int first, int count, uint panel, uint width) {
  const uint key = w.lane % TA_BLOCK;
  const uint first_row = w.lane / TA_BLOCK * TA_ROWS_OF_LANE;
  float even[TA_ROWS_OF_LANE];
  float odd[TA_ROWS_OF_LANE];
  for (int j = 0; j < TA_ROWS_OF_LANE; ++j) {
    even[j] = odd[j] = params.zero;
  }

  fetch_keys(params, w, shared, first, count, params.k_stride_page, params.k_stride_head, params.k_stride_slot);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint place = int(key) < count ? shared->key_place[key] : 0u;
  const int slot = int(key) < count ? shared->key_slot[key] : 0;
  for (uint c = 0; c < width; c += TA_METAL_SLICE) {
    const uint channels = min(width - c, uint(TA_METAL_SLICE));
    const uint quads = channels / 4; /* neighbouring lanes load neighbouring channels */
    for (uint n = w.lane; n < uint(count) * quads; n += TA_METAL_LANES) {
      const uint row = n / quads;
      const uint channel = n % quads * 4;
      *(threadgroup float4 *)(shared->slice + row * TA_METAL_SLICE_STRIDE + channel) =
          load4(k, shared->key_offset[row] + panel + c + channel);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (int(key) < count) {
      multiply_slice(shared->slice + key * TA_METAL_SLICE_STRIDE, shared->query + first_row * TA_CHANNELS + c, channels,
                     even, odd);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (int(key) >= count) {
    return;
  }
  threadgroup float *scores = shared->scores + (place & 0xffffu) * TA_METAL_ROWS;
  for (int j = 0; j < TA_ROWS_OF_LANE; ++j) {
    const int r = int(first_row) + j;
    if ((place >> (16 + r) & 1) == 0) {
      continue;
    }
    float t = even[j] + odd[j];
    if (panel != 0) {
      t = scores[r] + t;
    }
    if (panel + width == head_dim) {
      if (params.cap > 0.0f) {
        t = params.cap * tanh_of(t, params.zero);
      }
      t = fma(bias_of(params, w, r, slot), TA_LOG2E_HI, t);
    }
    scores[r] = with_one_nan(t);
  }
}

inline void score_leaf(constant ta_metal_params &params, work_on_leaf w, device const float *q, device const uchar *k,
                       threadgroup ta_metal_shared *shared) {
  for (int n = int(w.lane); n < TA_LEAF * TA_METAL_ROWS; n += TA_METAL_LANES) {
    shared->scores[n] = as_type<float>(TA_HIDDEN_BITS);
  }
  for (uint panel = 0; panel < head_dim; panel += TA_CHANNELS) {
    const uint width = min(head_dim - panel, uint(TA_CHANNELS));
    load_queries(params, w, q, shared, panel, width);
    for (int block = 0; block < TA_LEAF_WORDS; ++block) {
      const int end = first_key(w, block + 1);
      for (int first = first_key(w, block); first < end; first += TA_BLOCK) {
        score_keys(params, w, k, shared, first, min(end - first, int(TA_BLOCK)), panel, width);
      }
    }
  }
}

/* Scores become weights; the state {max, sum} of each row takes in the leaf's. */
inline void weigh_leaf(work_on_leaf w, threadgroup ta_metal_shared *shared) {
  enum { LANES_OF_ROW = TA_METAL_LANES / TA_METAL_ROWS };
  const int r = int(w.lane) / LANES_OF_ROW;
  const int part = int(w.lane) % LANES_OF_ROW;
  threadgroup float *scores = shared->scores + r;

  threadgroup_barrier(mem_flags::mem_threadgroup);
  float largest = TA_STATE_MAX_OF_NONE;
  for (int n = part; n < TA_LEAF; n += LANES_OF_ROW) {
    const float x = scores[n * TA_METAL_ROWS];
    largest = x > largest ? x : largest; /* false for NaN, and for what is hidden */
  }
  for (ushort distance = LANES_OF_ROW / 2; distance > 0; distance /= 2) {
    const float x = simd_shuffle_xor(largest, distance);
    largest = x > largest ? x : largest;
  }
  for (int n = part; n < TA_LEAF; n += LANES_OF_ROW) {
    const float x = scores[n * TA_METAL_ROWS];
    if (!is_hidden(x)) {
      scores[n * TA_METAL_ROWS] = with_one_nan(exp2_of(x - largest));
    }
  }
  if (part == 0) {
    shared->leaf_max[r] = largest;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (w.lane < TA_METAL_ROWS * TA_LEAF_WORDS) { /* a chain over the positions of each block */
    const int block = int(w.lane) / TA_METAL_ROWS;
    float sum = 0.0f;
    for (int n = block * TA_BLOCK; n < (block + 1) * TA_BLOCK; ++n) {
      const float weight = shared->scores[n * TA_METAL_ROWS + w.lane % TA_METAL_ROWS];
      sum = is_hidden(weight) ? sum : sum + weight;
    }
    shared->block_sum[w.lane] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (w.lane < TA_METAL_ROWS) {
    state_of_row leaf = {shared->leaf_max[w.lane], 0.0f};
    for (int block = 0; block < TA_LEAF_WORDS; ++block) {
      leaf.sum = leaf.sum + shared->block_sum[block * TA_METAL_ROWS + w.lane];
    }
    state_of_row state = {shared->max[w.lane], shared->sum[w.lane]};
    const join_of_states join = join_states(state, leaf);
    shared->max[w.lane] = state.max;
    shared->sum[w.lane] = state.sum;
    shared->kind[w.lane] = join.kind;
    shared->weight_a[w.lane] = join.weight_a;
    shared->weight_b[w.lane] = join.weight_b;
  }
}

#endif
