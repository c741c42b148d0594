/* SPDX-License-Identifier: Apache-2.0 */
/* Depths, positions and masks from parents: a warp for each node walks from it to its root. */
#ifndef TA_CUDA_STEP_EXPAND_CUH
#define TA_CUDA_STEP_EXPAND_CUH

#include "step_device.cuh"

/* Nodes of a thread block. Every block checks the whole tree, so that they agree on writing nothing. */
enum { TA_EXPAND_TILE = 4, TA_EXPAND_THREADS = 32 * TA_EXPAND_TILE };

struct ta_expand_shared {
  int32_t found[TA_EXPAND_TILE];
  int32_t parents[TREEATTN_CUDA_STEP_MAX_NODES];
};

/* Byte `byte` of a row of bits that sees the first `prefix` columns and no others. */
__device__ __forceinline__ uint8_t ta_prefix_bits(int64_t prefix, int64_t byte) {
  const int64_t left = prefix - 8 * byte;
  return left >= 8 ? 0xff : left <= 0 ? 0 : (uint8_t)((1u << left) - 1u);
}

/* A row that sees the first `prefix` columns: all lanes of a warp. */
__device__ __forceinline__ void ta_expand_fill(const ta_expand_params &params, int64_t row, int64_t prefix,
                                               int32_t lane) {
  if (params.bits.data != nullptr) {
    uint8_t *bits = (uint8_t *)params.bits.data + row * params.bits.row_stride;
    for (int64_t byte = lane; byte < params.bits.row_stride; byte += 32) {
      bits[byte] = ta_prefix_bits(prefix, byte);
    }
  }
  if (params.bools.data != nullptr) {
    uint8_t *cells = (uint8_t *)params.bools.data + row * params.bools.row_stride;
    for (int64_t column = lane; column < params.bools.row_stride; column += 32) {
      cells[column] = column < prefix;
    }
  }
  if (params.dense.data != nullptr) {
    float *cells = (float *)params.dense.data + row * params.dense.row_stride;
    for (int64_t column = lane; column < params.dense.row_stride; column += 32) {
      cells[column] = column < prefix ? 0.0f : TREEATTN_MASK_HIDDEN;
    }
  }
}

/* Marks the node and its ancestors; one lane. Returns the depth. Ancestors come in falling order, so that a byte of
 * bits is complete when the walk leaves it. */
__device__ __forceinline__ int32_t ta_expand_walk(const ta_expand_params &params, const int32_t *parents, int64_t row,
                                                  int64_t prefix, int32_t node) {
  uint8_t *bits = (uint8_t *)params.bits.data + row * params.bits.row_stride;
  uint8_t *bools = (uint8_t *)params.bools.data + row * params.bools.row_stride;
  float *dense = (float *)params.dense.data + row * params.dense.row_stride;
  int64_t byte = (prefix + node) / 8;
  uint32_t pending = 0;
  int32_t depth = -1;
  for (int32_t j = node; j >= 0; j = parents[j]) {
    const int64_t column = prefix + j;
    depth++;
    if (params.bools.data != nullptr) {
      bools[column] = 1;
    }
    if (params.dense.data != nullptr) {
      dense[column] = 0.0f;
    }
    if (params.bits.data != nullptr && column / 8 != byte) {
      bits[byte] = (uint8_t)(pending | ta_prefix_bits(prefix, byte));
      byte = column / 8;
      pending = 0;
    }
    pending |= 1u << (column % 8);
  }
  if (params.bits.data != nullptr) {
    bits[byte] = (uint8_t)(pending | ta_prefix_bits(prefix, byte));
  }
  return depth;
}

/* The same answer in all threads. */
__device__ __forceinline__ treeattn_cuda_outcome ta_expand_check(const ta_expand_params &params,
                                                                 ta_expand_shared &shared, const ta_step_span &span,
                                                                 int32_t prefix_len) {
  if (!span.valid) {
    return ta_step_outcome(TREEATTN_ERROR_INVALID_ARGUMENT, TREEATTN_CUDA_FIELD_OFFSETS, -1, -1);
  }
  const int32_t num_nodes = span.num_nodes;
  for (int32_t i = (int32_t)threadIdx.x; i < num_nodes; i += TA_EXPAND_THREADS) {
    shared.parents[i] = params.parents[span.begin + i];
  }
  __syncthreads();
  const int32_t bad = ta_step_first<TA_EXPAND_THREADS>(
      shared.found, 0, num_nodes, [&](int32_t i) { return shared.parents[i] < -1 || shared.parents[i] >= i; });
  if (bad < num_nodes) {
    return ta_step_outcome(TREEATTN_ERROR_INVALID_TREE, TREEATTN_CUDA_FIELD_PARENTS, bad, -1);
  }
  if (prefix_len < 0) {
    return ta_step_outcome(TREEATTN_ERROR_INVALID_ARGUMENT, TREEATTN_CUDA_FIELD_PREFIX_LENS, -1, -1);
  }
  if (prefix_len > INT32_MAX - num_nodes) {
    return ta_step_outcome(TREEATTN_ERROR_OVERFLOW, TREEATTN_CUDA_FIELD_PREFIX_LENS, -1, -1);
  }
  const int64_t columns = num_nodes == 0 ? 0 : (params.prefix_columns != 0 ? prefix_len : 0) + (int64_t)num_nodes;
  const bool fits[3] = {params.bits.data == nullptr || params.bits.row_stride >= (columns + 7) / 8,
                        params.bools.data == nullptr || params.bools.row_stride >= columns,
                        params.dense.data == nullptr || params.dense.row_stride >= columns};
  if (!fits[0] || !fits[1] || !fits[2]) {
    return ta_step_outcome(TREEATTN_ERROR_INVALID_ARGUMENT, TREEATTN_CUDA_FIELD_MASK, -1,
                           !fits[0]   ? 0
                           : !fits[1] ? 1
                                      : 2);
  }
  return ta_step_outcome(TREEATTN_OK, TREEATTN_CUDA_FIELD_NONE, -1, -1);
}

static __global__ void __launch_bounds__(TA_EXPAND_THREADS)
    ta_expand_kernel(const __grid_constant__ ta_expand_params params) {
  __shared__ ta_expand_shared shared;
  const int32_t request = (int32_t)(blockIdx.x / (uint32_t)params.num_tiles);
  const int32_t tile = (int32_t)(blockIdx.x % (uint32_t)params.num_tiles);
  const int32_t lane = (int32_t)threadIdx.x % 32;
  const ta_step_span span = ta_step_span_of(params.batch, request);
  const int32_t prefix_len = params.prefix_lens == nullptr ? 0 : params.prefix_lens[request];
  const treeattn_cuda_outcome outcome = ta_expand_check(params, shared, span, prefix_len);
  if (tile == 0 && threadIdx.x == 0) {
    params.outcomes[request] = outcome;
  }
  const int32_t node = tile * TA_EXPAND_TILE + (int32_t)threadIdx.x / 32;
  if (outcome.status != TREEATTN_OK || node >= span.num_nodes) {
    return;
  }
  const int64_t row = (int64_t)span.begin + node;
  const int64_t prefix = params.prefix_columns != 0 ? prefix_len : 0;
  ta_expand_fill(params, row, prefix, lane);
  __syncwarp();
  if (lane == 0) {
    const int32_t depth = ta_expand_walk(params, shared.parents, row, prefix, node);
    if (params.depths != nullptr) {
      params.depths[row] = depth;
    }
    if (params.positions != nullptr) {
      params.positions[row] = prefix_len + depth;
    }
  }
}

#endif
