/* SPDX-License-Identifier: Apache-2.0 */
/* Stage 0 of the exact mode: the units of the image, whose leaves all rows of a request see whole. */
#ifndef TA_CUDA_EXACT_SHARED_CUH
#define TA_CUDA_EXACT_SHARED_CUH

#include "exact_leaf.cuh"

namespace ta_exact {

/* Leaves are folded from left to right into the unit's slot. The values of a row are in scratch all the time: one
 * thread reads and writes an element, leaf after leaf. */
template <class SHAPE>
struct fold_to_slot {
  const ta_cuda_params &params;
  const int &num_rows;

  __device__ __forceinline__ void take(const memory<SHAPE> &m, place at, int first_channel, int tile_width,
                                       const float (&leaf)[SHAPE::thread_rows][SHAPE::thread_columns]) {
#pragma unroll
    for (int i = 0; i < SHAPE::thread_rows; ++i) {
      const int row = index_of<SHAPE::thread_rows>(at.row_group, SHAPE::rows, i);
      if (row >= num_rows || m.kind[row] == TA_MERGE_KEEP_A) {
        continue;
      }
      const bool both = m.kind[row] == TA_MERGE_BOTH;
      const float weight_a = m.weight_a[row];
      const float weight_b = m.weight_b[row];
#pragma unroll
      for (int j = 0; j < SHAPE::thread_columns; j += 2) {
        const int channel = first_channel + index_of<SHAPE::thread_columns>(at.column_group, tile_width, j);
        if (channel < params.head_dim_v) {
          float2 *target = (float2 *)(params.scratch + m.slot_element[row] + 2 + channel); /* both even: aligned */
          float2 values = make_float2(leaf[i][j], leaf[i][j + 1]);
          if (both) {
            const float2 before = *target;
            values.x = fmaf(values.x, weight_b, __fmul_rn(before.x, weight_a));
            values.y = fmaf(values.y, weight_b, __fmul_rn(before.y, weight_a));
          }
          *target = values;
        }
      }
    }
  }
};

/* The unit at work, and some of its rows. It lies in shared memory in front of the rest and costs no registers there. */
struct unit {
  int64_t index; /* not a unit: the end */
  const ta_image_request *request;
  int g, chunk;
  int leaf_begin, leaf_end;
  int row_begin, row_end; /* node * group + head of the group */
  int num_rows;           /* of those, from row_begin on, that are computed at once */
  int32_t request_index;
};

enum { UNIT_BYTES = (sizeof(unit) + 15) / 16 * 16 };

/* Goes on to the next rows of the unit, or to the block's next unit. */
__device__ __forceinline__ void next_unit(const ta_cuda_params &params, const ta_image_header *header, int max_rows,
                                          unit &u) {
  u.row_begin += max_rows;
  if (u.row_begin >= u.row_end) {
    u.index += gridDim.x;
    if (u.index >= header->num_units) {
      return;
    }
    u.request_index = ta_request_of_unit(params, header, u.index, u.request_index);
    u.request = (const ta_image_request *)(params.image + header->requests) + u.request_index;
    const int64_t local = u.index - u.request->first_unit;
    const int64_t rest = local / u.request->num_row_blocks;
    u.g = (int)(rest % params.num_kv_heads);
    u.chunk = (int)(rest / params.num_kv_heads);
    const int shared_begin = u.request->shared_begin / TA_LEAF;
    const int chunk_begin = (shared_begin / header->unit_leaves + u.chunk) * header->unit_leaves;
    u.leaf_begin = max(shared_begin, chunk_begin);
    u.leaf_end = min(u.request->shared_end / TA_LEAF, chunk_begin + header->unit_leaves);
    u.row_begin = (int)(local % u.request->num_row_blocks) * header->block_rows;
    u.row_end = min(u.row_begin + header->block_rows, u.request->num_rows * params.group);
  }
  u.num_rows = min(u.row_end - u.row_begin, max_rows);
}

template <class SHAPE, int KV>
__device__ __forceinline__ void compute_unit(const ta_cuda_params &params, const ta_image_header *header, const unit &u,
                                             unsigned char *bytes) {
  memory<SHAPE> &m = *(memory<SHAPE> *)bytes;
  if (threadIdx.x < SHAPE::rows) {
    const int row = u.row_begin + (int)threadIdx.x;
    const int64_t node = row / params.group;
    const int64_t h = u.g * params.group + row % params.group;
    const bool valid = (int)threadIdx.x < u.num_rows;
    m.query_element[threadIdx.x] =
        valid ? h * params.q_stride_head + (u.request->first_row + node) * params.q_stride_row : -1;
    m.fold[0][threadIdx.x] = ta_state_empty();
    m.slot_element[threadIdx.x] =
        u.request->partial_base +
        ((node * params.num_heads + h) * u.request->num_slots + u.chunk) * (int64_t)(params.head_dim_v + 2);
  }
  leaf_worker<SHAPE, KV> worker(params, m);
  fold_to_slot<SHAPE> fold = {params, u.num_rows};
  for (int leaf = u.leaf_begin; leaf < u.leaf_end; ++leaf) {
    for (int n = threadIdx.x; n < TA_LEAF; n += THREADS) {
      const int slot = leaf * TA_LEAF + n;
      m.key_element[n] = ta_cache_element(params, header, u.request, slot, u.g, params.k_stride_page,
                                          params.k_stride_head, params.k_stride_slot);
      m.value_element[n] = ta_cache_element(params, header, u.request, slot, u.g, params.v_stride_page,
                                            params.v_stride_head, params.v_stride_slot);
      m.bias[n] = 0.0f;
    }
    worker.run(0xffu, true, fold);
  }
  if ((int)threadIdx.x < u.num_rows) {
    *(float2 *)(params.scratch + m.slot_element[threadIdx.x]) = *(const float2 *)&m.fold[0][threadIdx.x];
  }
}

/* Devices before 9.0 have no shared memory for the largest shape, whose code needs more registers there. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
using largest_shape = shape_32;
#else
using largest_shape = shape_64;
#endif

template <int KV>
__global__ void __launch_bounds__(THREADS, 1) shared_kernel(const __grid_constant__ ta_cuda_params params, int rows) {
  extern __shared__ __align__(16) unsigned char exact_memory[];
  const ta_image_header *header = ta_image_check(params);
  if (header == nullptr) {
    return;
  }
  const int max_rows = min(rows, (int)largest_shape::rows);
  unit &u = *(unit *)exact_memory;
  if (threadIdx.x == 0) {
    u.index = (int64_t)blockIdx.x - gridDim.x;
    u.request_index = 0;
    u.row_begin = u.row_end = 0;
  }
  for (;;) {
    __syncthreads(); /* the rows before are done with */
    if (threadIdx.x == 0) {
      next_unit(params, header, max_rows, u);
    }
    __syncthreads();
    if (u.index >= header->num_units) {
      break;
    }
    /* The smallest shape that holds the rows. */
    if (u.num_rows > shape_32::rows) {
      compute_unit<largest_shape, KV>(params, header, u, exact_memory + UNIT_BYTES);
    } else if (u.num_rows > shape_16::rows) {
      compute_unit<shape_32, KV>(params, header, u, exact_memory + UNIT_BYTES);
    } else if (u.num_rows > shape_8::rows) {
      compute_unit<shape_16, KV>(params, header, u, exact_memory + UNIT_BYTES);
    } else {
      compute_unit<shape_8, KV>(params, header, u, exact_memory + UNIT_BYTES);
    }
  }
}

}  // namespace ta_exact

#endif
