/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a thread block of the exact mode divides its work: each sum of the arithmetic is one chain in one thread's
 * register, so that tiling is free to be whatever the multiprocessor likes.
 */
#ifndef TA_CUDA_EXACT_CUH
#define TA_CUDA_EXACT_CUH

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../order.h"
#include "device.cuh"
#include "params.h"

namespace ta_exact {

enum {
  THREADS = 256,
  COLUMNS = 256, /* keys of a pass over the queries' channels, or value channels of as many chains of positions */
  DEPTH = 16,    /* the most channels of keys, or positions of values, in a tile */
  LEAF_BLOCKS = TA_LEAF / TA_BLOCK
};

/* A thread holds ROWS_ x COLUMNS_ chains. There are as many groups of rows as columns in a thread, so that 256 threads
 * always cover 256 columns. */
template <int ROWS_, int COLUMNS_>
struct shape {
  static constexpr int thread_rows = ROWS_;
  static constexpr int thread_columns = COLUMNS_;
  static constexpr int groups = COLUMNS_;
  static constexpr int rows = ROWS_ * COLUMNS_;
};

using shape_64 = shape<8, 8>;
using shape_32 = shape<8, 4>;
using shape_16 = shape<4, 4>;
using shape_8 = shape<4, 2>;
using shape_4 = shape<4, 1>;

/* What a block keeps on the chip. */
template <class SHAPE>
struct memory {
  float scores[TA_LEAF * SHAPE::rows];   /* by position, then row; later weights */
  float tiles[2][DEPTH * COLUMNS];       /* keys by channel, or values by position */
  float queries[2][DEPTH * SHAPE::rows]; /* by channel */
  int64_t key_element[TA_LEAF];          /* in K of each position's key; -1 where none is seen */
  int64_t value_element[TA_LEAF];
  int64_t query_element[SHAPE::rows]; /* -1: no such row */
  int64_t slot_element[SHAPE::rows];  /* of the row's state in scratch */
  float bias[TA_LEAF];
  float max_of_thread[THREADS];
  float block_sum[LEAF_BLOCKS * SHAPE::rows];
  float weight_a[SHAPE::rows]; /* how the leaf joins what is before it */
  float weight_b[SHAPE::rows];
  int32_t kind[SHAPE::rows];
  ta_state fold[2][SHAPE::rows]; /* of the leaves so far: of the group, and of the groups before it */
  uint32_t seen_blocks;
};

/* The thread's number, asked for anew: addresses made of it are then made where they are needed, and do not wait in
 * registers through a loop that can use them all. */
__device__ __forceinline__ int fresh_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

struct place {
  int row_group, column_group;
};

/* Lanes of a warp take a patch of row and column groups. Neighbours in lane bits 0 and 1 share a row or a column group,
 * which lets the shared memory serve two of them at once. */
template <int GROUPS>
__device__ __forceinline__ place place_of(int thread) {
  const int lane = thread & 31;
  const int warp = thread >> 5;
  if constexpr (GROUPS == 1) {
    return {0, thread};
  } else if constexpr (GROUPS == 2) {
    return {(lane >> 1) & 1, (lane & 1) | ((lane >> 1) & 14) | (warp << 4)};
  } else {
    const int row = ((lane >> 1) & 1) | ((lane >> 3) & 2);
    const int column = (lane & 1) | ((lane >> 1) & 6);
    if constexpr (GROUPS == 4) {
      return {row, column | (warp << 3)};
    } else {
      return {row | ((warp & 1) << 2), column | ((warp >> 1) << 3)};
    }
  }
}

/* Where the n-th of a thread's N rows or columns lies among `width`: eight are two runs of four, since a run of four is
 * what an instruction loads and runs of neighbours then lie beside each other. */
template <int N>
__device__ __forceinline__ int index_of(int group, int width, int n) {
  if constexpr (N == 8) {
    return n < 4 ? group * 4 + n : width / 2 + group * 4 + n - 4;
  } else {
    return group * N + n;
  }
}

/* Loads what a thread needs of one line of a tile. Column n lies at n ^ flip. */
template <int N>
__device__ __forceinline__ void load_line(const float *line, int group, int width, int flip, float (&out)[N]) {
  if constexpr (N >= 4) {
#pragma unroll
    for (int run = 0; run < N / 4; ++run) {
      const float4 four = *(const float4 *)(line + (index_of<N>(group, width, 4 * run) ^ flip));
      out[4 * run] = four.x;
      out[4 * run + 1] = four.y;
      out[4 * run + 2] = four.z;
      out[4 * run + 3] = four.w;
    }
  } else if constexpr (N == 2) {
    const float2 two = *(const float2 *)(line + ((group * 2) ^ flip));
    out[0] = two.x;
    out[1] = two.y;
  } else {
    out[0] = line[group ^ flip];
  }
}

/* Elements of the cache in 16 bytes, and the numbers that they mean. A tile is two such runs deep. */
template <int KV>
struct cache_type {
  static constexpr int bytes = 2;
  static constexpr int elements = 8;
  static constexpr int depth = DEPTH;

  __device__ __forceinline__ static void unpack(const uint4 &raw, float (&out)[8]) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if constexpr (KV == TREEATTN_BF16) {
        out[2 * n] = ta_float_from_bits(words[n] << 16);
        out[2 * n + 1] = ta_float_from_bits(words[n] & 0xffff0000u);
      } else {
        out[2 * n] = __half2float(__ushort_as_half((uint16_t)(words[n] & 0xffffu)));
        out[2 * n + 1] = __half2float(__ushort_as_half((uint16_t)(words[n] >> 16)));
      }
    }
  }
};

template <>
struct cache_type<TREEATTN_F32> {
  static constexpr int bytes = 4;
  static constexpr int elements = 4;
  static constexpr int depth = DEPTH / 2;

  __device__ __forceinline__ static void unpack(const uint4 &raw, float (&out)[4]) {
    out[0] = ta_float_from_bits(raw.x);
    out[1] = ta_float_from_bits(raw.y);
    out[2] = ta_float_from_bits(raw.z);
    out[3] = ta_float_from_bits(raw.w);
  }
};

/* Of one cache type, in its own source file. */
template <int KV>
cudaError_t launch(const ta_cuda_params &params, int num_multiprocessors, int64_t num_rows, cudaStream_t stream);

}  // namespace ta_exact

#endif
