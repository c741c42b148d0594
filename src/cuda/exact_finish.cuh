/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stage 1 of the exact mode: one node and some heads of a KV head in a thread block. Leaves that the node does not
 * share with all others are computed here, then everything is folded in order of position and written.
 */
#ifndef TA_CUDA_EXACT_FINISH_CUH
#define TA_CUDA_EXACT_FINISH_CUH

#include "exact_leaf.cuh"

namespace ta_exact {

/* The values of the rows; their states are in the memory of the leaf. */
template <class SHAPE>
struct fold_on_chip {
  float *group_values, *total_values; /* [SHAPE::rows][width] */
  int width;

  __device__ __forceinline__ void take(const memory<SHAPE> &m, place at, int first_channel, int tile_width,
                                       const float (&leaf)[SHAPE::thread_rows][SHAPE::thread_columns]) {
#pragma unroll
    for (int i = 0; i < SHAPE::thread_rows; ++i) {
      const int row = index_of<SHAPE::thread_rows>(at.row_group, SHAPE::rows, i);
      const int kind = m.kind[row];
      const float weight_a = m.weight_a[row];
      const float weight_b = m.weight_b[row];
#pragma unroll
      for (int j = 0; j < SHAPE::thread_columns; ++j) {
        const int channel = first_channel + index_of<SHAPE::thread_columns>(at.column_group, tile_width, j);
        if (channel < width && kind != TA_MERGE_KEEP_A) {
          float *target = group_values + row * width + channel;
          *target = kind == TA_MERGE_BOTH ? fmaf(leaf[i][j], weight_b, __fmul_rn(*target, weight_a)) : leaf[i][j];
        }
      }
    }
  }
};

/* What the memory of a leaf, idle between leaves, holds while slots are folded: up to a group of them. */
template <class SHAPE>
struct slot_memory {
  ta_state state[TA_GROUP_LEAVES][SHAPE::rows];
  float weight_a[TA_GROUP_LEAVES][SHAPE::rows];
  float weight_b[TA_GROUP_LEAVES][SHAPE::rows];
  int32_t kind[TA_GROUP_LEAVES][SHAPE::rows];
};

template <class SHAPE, int KV>
struct finisher {
  const ta_cuda_params &params;
  const ta_image_header *header;
  memory<SHAPE> &m;
  fold_on_chip<SHAPE> fold;
  const ta_image_request *request;
  const ta_image_row *row;
  int64_t node_row; /* in the batch */
  int g, first_head, num_heads;

  /* Ends a group of leaves. */
  __device__ __forceinline__ void end_group() {
    __syncthreads();
    if (threadIdx.x < SHAPE::rows) {
      const ta_merge how = ta_state_merge(&m.fold[1][threadIdx.x], m.fold[0][threadIdx.x]);
      m.fold[0][threadIdx.x] = ta_state_empty();
      m.weight_a[threadIdx.x] = how.weight_a;
      m.weight_b[threadIdx.x] = how.weight_b;
      m.kind[threadIdx.x] = how.kind;
    }
    __syncthreads();
    for (int r = 0; r < num_heads; ++r) {
      const int kind = m.kind[r];
      if (kind != TA_MERGE_KEEP_A) {
        for (int channel = threadIdx.x; channel < params.head_dim_v; channel += THREADS) {
          float *target = fold.total_values + r * params.head_dim_v + channel;
          const float value = fold.group_values[r * params.head_dim_v + channel];
          *target = kind == TA_MERGE_BOTH ? fmaf(value, m.weight_b[r], __fmul_rn(*target, m.weight_a[r])) : value;
        }
      }
    }
    __syncthreads();
  }

  /* Folds slots [slot, slot + count), all of one group of leaves, into the group. */
  __device__ __forceinline__ void take_slots(int slot, int count) {
    slot_memory<SHAPE> &s = *(slot_memory<SHAPE> *)m.scores;
    __syncthreads();
    if ((int)threadIdx.x < count * SHAPE::rows) {
      const int r = threadIdx.x % SHAPE::rows;
      const int n = threadIdx.x / SHAPE::rows;
      ta_state state = ta_state_empty();
      if (r < num_heads) {
        const float2 pair = *(const float2 *)(params.scratch + slot_element(r, slot + n));
        state.max = pair.x;
        state.sum = pair.y;
      }
      s.state[n][r] = state;
    }
    __syncthreads();
    if (threadIdx.x < SHAPE::rows) {
      for (int n = 0; n < count; ++n) {
        const ta_merge how = ta_state_merge(&m.fold[0][threadIdx.x], s.state[n][threadIdx.x]);
        s.weight_a[n][threadIdx.x] = how.weight_a;
        s.weight_b[n][threadIdx.x] = how.weight_b;
        s.kind[n][threadIdx.x] = how.kind;
      }
    }
    __syncthreads();
    for (int r = 0; r < num_heads; ++r) {
      const float *values = params.scratch + slot_element(r, slot) + 2;
      for (int channel = threadIdx.x; channel < params.head_dim_v; channel += THREADS) {
        float *target = fold.group_values + r * params.head_dim_v + channel;
        float sum = *target; /* means nothing while the group is empty, and is then not used */
#pragma unroll 4
        for (int n = 0; n < count; ++n) {
          const int kind = s.kind[n][r];
          if (kind != TA_MERGE_KEEP_A) {
            const float value = values[n * (int64_t)(params.head_dim_v + 2) + channel];
            sum = kind == TA_MERGE_BOTH ? fmaf(value, s.weight_b[n][r], __fmul_rn(sum, s.weight_a[n][r])) : value;
          }
        }
        *target = sum;
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ int64_t slot_element(int r, int slot) const {
    const int64_t row_and_head = (node_row - request->first_row) * params.num_heads + g * params.group + first_head + r;
    return request->partial_base + (row_and_head * request->num_slots + slot) * (int64_t)(params.head_dim_v + 2);
  }

  /* Finds what the node sees of a leaf: a bit for each block in which it sees a key. */
  __device__ __forceinline__ uint32_t find_seen(int leaf) {
    __syncthreads();
    if (threadIdx.x == 0) {
      m.seen_blocks = 0;
    }
    __syncthreads();
    uint32_t seen = 0;
    for (int n = threadIdx.x; n < TA_LEAF; n += THREADS) {
      const int32_t slot = ta_visible_slot(params, header, request, row, leaf * TA_LEAF + n);
      int64_t key = -1;
      int64_t value = -1;
      float bias = 0.0f;
      if (slot >= 0) {
        seen |= 1u << (n / TA_BLOCK);
        key = ta_cache_element(params, header, request, slot, g, params.k_stride_page, params.k_stride_head,
                               params.k_stride_slot);
        value = ta_cache_element(params, header, request, slot, g, params.v_stride_page, params.v_stride_head,
                                 params.v_stride_slot);
        bias = ta_bias_of(params, header, row, slot);
      }
      m.key_element[n] = key;
      m.value_element[n] = value;
      m.bias[n] = bias;
    }
    if (seen != 0) {
      atomicOr(&m.seen_blocks, seen);
    }
    __syncthreads();
    return m.seen_blocks;
  }

  __device__ __forceinline__ void write_rows() {
    if ((int)threadIdx.x < num_heads) {
      const int h = g * params.group + first_head + (int)threadIdx.x;
      ta_state state = m.fold[1][threadIdx.x];
      m.weight_a[threadIdx.x] = ta_join_sink(params, h, &state);
      m.weight_b[threadIdx.x] = state.sum;
      ta_store_lse(params, node_row, h, state);
    }
    __syncthreads();
    for (int r = 0; r < num_heads; ++r) {
      const ta_state state = {0.0f, m.weight_b[r]};
      const int64_t h = g * params.group + first_head + r;
      const int64_t element = node_row * params.out_stride_row + h * params.out_stride_head;
      for (int channel = threadIdx.x; channel < params.head_dim_v; channel += THREADS) {
        const float value = fold.total_values[r * params.head_dim_v + channel];
        ta_store_out(params, element + channel, ta_finish_element(value, m.weight_a[r], state));
      }
    }
  }

  __device__ __forceinline__ void run() {
    __syncthreads(); /* the node before is used up */
    if (threadIdx.x < SHAPE::rows) {
      const int64_t h = g * params.group + first_head + (int)threadIdx.x;
      m.query_element[threadIdx.x] =
          (int)threadIdx.x < num_heads ? h * params.q_stride_head + node_row * params.q_stride_row : -1;
      m.fold[0][threadIdx.x] = m.fold[1][threadIdx.x] = ta_state_empty();
    }
    leaf_worker<SHAPE, KV> worker(params, m);
    const int shared_begin = request->shared_begin / TA_LEAF;
    const int shared_end = request->shared_end / TA_LEAF;
    const int unit_leaves = header->unit_leaves;
    int leaf = row->leaf_begin;
    while (leaf < row->leaf_end) {
      const int group_end = leaf / TA_GROUP_LEAVES * TA_GROUP_LEAVES + TA_GROUP_LEAVES;
      if (leaf >= shared_begin && leaf < shared_end) {
        const int end = min(group_end, shared_end);
        const int first = leaf / unit_leaves;
        take_slots(first - shared_begin / unit_leaves, (end - 1) / unit_leaves - first + 1);
        leaf = end;
      } else {
        const uint32_t blocks = find_seen(leaf);
        if (blocks != 0) {
          worker.run(blocks, false, fold);
        }
        ++leaf;
      }
      if (leaf == group_end) {
        end_group();
      }
    }
    end_group();
    write_rows();
  }
};

template <class SHAPE, int KV>
__global__ void __launch_bounds__(THREADS, SHAPE::rows > 8 ? 1 : 2)
    finish_kernel(const __grid_constant__ ta_cuda_params params, int unused) {
  extern __shared__ __align__(16) unsigned char exact_memory[];
  (void)unused;
  const ta_image_header *header = ta_image_check(params);
  if (blockIdx.x == 0 && threadIdx.x == 0 && params.status != nullptr) {
    *params.status = ta_image_status(params);
  }
  if (header == nullptr) {
    return;
  }
  float *values = (float *)(exact_memory + sizeof(memory<SHAPE>));
  const fold_on_chip<SHAPE> fold = {values, values + SHAPE::rows * params.head_dim_v, params.head_dim_v};
  finisher<SHAPE, KV> finish = {params, header, *(memory<SHAPE> *)exact_memory, fold, nullptr, nullptr, 0, 0, 0, 0};
  const int head_blocks = (params.group + SHAPE::rows - 1) / SHAPE::rows;
  const int64_t num_items = header->num_rows * params.num_kv_heads * head_blocks;
  for (int64_t n = blockIdx.x; n < num_items; n += gridDim.x) {
    finish.node_row = n % header->num_rows; /* nodes side by side read the same keys */
    const int64_t rest = n / header->num_rows;
    finish.g = (int)(rest / head_blocks);
    finish.first_head = (int)(rest % head_blocks) * SHAPE::rows;
    finish.num_heads = min(SHAPE::rows, params.group - finish.first_head);
    finish.row = (const ta_image_row *)(params.image + header->rows) + finish.node_row;
    finish.request = (const ta_image_request *)(params.image + header->requests) + finish.row->request;
    finish.run();
  }
}

}  // namespace ta_exact

#endif
