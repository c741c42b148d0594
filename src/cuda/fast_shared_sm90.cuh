/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stage 0 of the fast mode on Hopper: blocks of rows over the leaves that all of them see whole, without any mask.
 *
 * A thread block has one group of four warps that loads and one or two that multiply, 64 rows each. Keys and values pass
 * through a ring of slots in shared memory, one tile of 64 positions in each; a barrier for each slot says that it is
 * full, another that it is free. A multiplying group keeps two products in flight: while the weights of tile t - 1
 * multiply its values, the scores of tile t are made and turned into weights.
 *
 * Above 256 value channels both groups take the same 64 rows and half of the channels each; scores are made twice.
 */
#ifndef TA_CUDA_FAST_SHARED_SM90_CUH
#define TA_CUDA_FAST_SHARED_SM90_CUH

#include "../order.h"
#include "device.cuh"
#include "fast.cuh"
#include "fast_leaves_sm90.cuh"
#include "fast_load_sm90.cuh"
#include "fast_softmax.cuh"
#include "params.h"
#include "ptx.cuh"
#include "wgmma.cuh"

namespace ta_fast {

/* ---- multiplying ---- */

/* Queries of 64 rows, 16-bit, rounded; with SPLIT what rounding left goes into a second set of panels. Rows beyond the
 * last are zero. */
template <int D, bool BF16, bool SPLIT>
__device__ __forceinline__ void load_queries(const ta_cuda_params &params, const unit &u, int first_row,
                                             unsigned char *high, unsigned char *low) {
  constexpr int chunks = D / 8;
  if (!SPLIT && params.scale_hi >= 0.0f && ((uintptr_t)params.q & 15) == 0 && params.q_stride_head % 8 == 0 &&
      params.q_stride_row % 8 == 0) { /* nothing to convert */
    for (int n = threadIdx.x & 127; n < 64 * chunks; n += 128) {
      const int row = first_row + n / chunks;
      unsigned char *place = high + swizzled(n / chunks, n % chunks);
      if (row < u.num_rows) {
        const int64_t element = (u.g * params.group + row % params.group) * params.q_stride_head +
                                (u.first_row + row / params.group) * params.q_stride_row + n % chunks * 8;
        ta_copy_16(ta_shared_address(place), (const unsigned char *)params.q + 2 * element);
      } else {
        *(uint4 *)place = make_uint4(0, 0, 0, 0);
      }
    }
    ta_copy_commit();
    ta_copy_wait<0>();
    return;
  }
  for (int n = threadIdx.x & 127; n < 64 * chunks; n += 128) {
    const int row = n / chunks;
    const int chunk = n % chunks;
    float q[8];
    ta_fast_load_query(params, u.first_row, u.g, first_row + row, u.num_rows, chunk * 8, q);
    uint4 packed;
    uint32_t *word = &packed.x;
    uint4 rest;
    uint32_t *rest_word = &rest.x;
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      word[d] = ta_pack<BF16>(q[2 * d], q[2 * d + 1]);
      rest_word[d] = ta_pack<BF16>(__fsub_rn(q[2 * d], ta_unpack_low<BF16>(word[d])),
                                   __fsub_rn(q[2 * d + 1], ta_unpack_high<BF16>(word[d])));
    }
    *(uint4 *)(high + swizzled(row, chunk)) = packed;
    if constexpr (SPLIT) {
      *(uint4 *)(low + swizzled(row, chunk)) = rest;
    }
  }
}

template <int D, bool BF16, bool SPLIT>
__device__ __forceinline__ void issue_scores(float (&s)[32], uint32_t high, uint32_t low, uint32_t keys) {
  uint32_t a = ta_row_descriptor(high);
  const uint32_t b = ta_row_descriptor(keys);
  asm volatile("" : "+r"(a)); /* made anew each time: sums that the compiler keeps would take registers */
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    const uint32_t offset = ((step / 4) * TA_PANEL_BYTES + (step % 4) * 32) >> 4;
    ta_group_scores<BF16>(s, a + offset, b + offset, step > 0);
  }
  if constexpr (SPLIT) {
    a = ta_row_descriptor(low);
    asm volatile("" : "+r"(a));
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      const uint32_t offset = ((step / 4) * TA_PANEL_BYTES + (step % 4) * 32) >> 4;
      ta_group_scores<BF16>(s, a + offset, b + offset, true);
    }
  }
}

template <int N, bool BF16, int COUNT>
__device__ __forceinline__ void issue_values(float (&acc)[COUNT], const uint32_t (&high)[4][4],
                                             const uint32_t (&low)[4][4], uint32_t values, bool add) {
  const uint32_t b = ta_column_descriptor(values);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    ta_group_values<BF16, N>::add(acc, high[step], b + step * (2048 >> 4), add || step > 0);
  }
  if constexpr (BF16) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ta_group_values<BF16, N>::add(acc, low[step], b + step * (2048 >> 4), true);
    }
  }
}

/* The scores of a tile on their way to weights: scaling into units of log2 is ta_fast_softmax's. */
__device__ __forceinline__ void cap_scores(const ta_cuda_params &params, float (&s)[32]) {
  if (params.cap > 0.0f) {
    const float scale = fabsf(params.scale_hi);
#pragma unroll
    for (int n = 0; n < 32; ++n) {
      s[n] = ta_fast_tanh(__fmul_rn(s[n], scale));
    }
  }
}

template <int D, int DV, bool BF16, bool SPLIT>
__device__ __forceinline__ void multiply_units(const ta_cuda_params &params, const ta_image_header *header,
                                               unit &u, unsigned char *queries, float *folded, uint32_t slots, uint32_t full,
                                               uint32_t empty, int num_slots, int group, int num_groups) {
  using shape = layout<D, DV>;
  constexpr int query_bytes = shape::key_panels * TA_PANEL_BYTES;
  const int row_group = shape::split_channels ? 0 : group;
  const int first_channel = shape::split_channels ? group * shape::channels : 0;
  unsigned char *high = queries + row_group * query_bytes;
  unsigned char *low = queries + ((shape::split_channels ? 1 : num_groups) + row_group) * query_bytes;
  const uint32_t high_address = ta_shared_address(high);
  const uint32_t low_address = ta_shared_address(low);
  const float c = params.cap > 0.0f ? params.cap : fabsf(params.scale_hi);
  const bool elected = (threadIdx.x & 31) == 0;
  const int warp = (threadIdx.x & 127) / 32;
  const uint32_t value_offset = (uint32_t)(first_channel / TA_PANEL_COLUMNS * TA_PANEL_BYTES);

  ring at = {0, 0};
  float acc[shape::registers];
  float s[32];
  uint32_t weights[4][4];
  uint32_t rest[4][4];
  float alpha[2];
  ta_fast_rows rows;
  folder<D, DV> fold;
  fold.folded = folded + group * (shape::fold_bytes / 4) + (threadIdx.x & 127);

  const auto wait_item = [&]() { ta_barrier_wait(full + 8 * at.slot, at.phase); };
  const auto free_slot = [&](int slot) {
    if (elected) {
      ta_barrier_arrive(empty + 8 * slot);
    }
  };

  const int unit_leaves = header->unit_leaves;
  const int num_units = (int)header->num_units;
#pragma unroll 1
  for (int index = blockIdx.x; index < num_units; index += gridDim.x) {
    ta_named_barrier(1 + group, 128); /* the unit before is used up */
    if ((threadIdx.x & 127) == 0) {
      u = decode_unit(header, params, index);
    }
    ta_named_barrier(1 + group, 128);
    const int tiles = u.tile_end - u.tile_begin;
    const int num_rows = u.num_rows;
    const int first_row = u.block * params.block_rows + row_group * 64;
    if (first_row >= num_rows) { /* nothing to multiply: only let the ring go on */
      for (int n = 0; n < 2 * tiles; ++n) {
        wait_item();
        free_slot(at.slot);
        at.advance(num_slots);
      }
      continue;
    }
    /* The group's products of the unit before are done, so its queries may be replaced. */
    if (!shape::split_channels || group == 0) {
      load_queries<D, BF16, SPLIT>(params, u, first_row, high, low);
    }
    ta_fence_shared_for_matrix_unit();
    if (shape::split_channels) {
      ta_named_barrier(3, 256);
    } else {
      ta_named_barrier(1 + group, 128);
    }
    targets target;
    target.channels = DV + 2;
    target.first = first_channel + 2 * (threadIdx.x & 3);
    target.base = params.scratch + u.partial_base + target.first;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + warp * 16 + (threadIdx.x & 31) / 4 + 8 * r;
      const int node = row / params.group;
      const int h = u.g * params.group + row % params.group;
      target.row[r] = row < num_rows
                          ? (uint32_t)(node * params.num_heads + h) * (uint32_t)(u.num_slots * (DV + 2))
                          : 0xffffffffu;
    }
    ta_fast_rows_clear(rows);

    /* Scores of the first tile. */
    wait_item();
    ta_fence_shared_for_matrix_unit();
    ta_group_fence();
    issue_scores<D, BF16, SPLIT>(s, high_address, low_address, slots + at.slot * shape::slot_bytes);
    ta_group_commit();
    ta_group_wait<0>();
    ta_group_hold(s);
    free_slot(at.slot);
    at.advance(num_slots);
    cap_scores(params, s);
    ta_fast_softmax<(shape::registers < 96)>(s, c, rows, alpha);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      ta_fast_weights<BF16>(s, n, weights[n], rest[n]);
    }

    bool add = false; /* whether the leaf has values already */
    for (int t = 1; t < tiles; ++t) {
      /* Scores of tile t and values of tile t - 1 run at once. */
      wait_item();
      ta_fence_shared_for_matrix_unit();
      const int key_slot = at.slot;
      ta_group_fence();
      issue_scores<D, BF16, SPLIT>(s, high_address, low_address, slots + at.slot * shape::slot_bytes);
      ta_group_commit();
      at.advance(num_slots);
      wait_item();
      ta_fence_shared_for_matrix_unit();
      const int value_slot = at.slot;
      ta_group_fence();
      issue_values<shape::channels, BF16>(acc, weights, rest, slots + at.slot * shape::slot_bytes + value_offset, add);
      ta_group_commit();
      at.advance(num_slots);
      ta_group_wait<1>();
      ta_group_hold(s);
      free_slot(key_slot);
      const bool new_leaf = (u.tile_begin + t) % (TA_LEAF / TA_IMAGE_TILE) == 0;
      const ta_fast_rows leaf_rows = rows;
      if (new_leaf) {
        ta_fast_rows_clear(rows);
      }
      cap_scores(params, s);
      ta_fast_softmax<(shape::registers < 96)>(s, c, rows, alpha);
      /* Sums are never negative; but a branch on them is what keeps the wait below from being moved in front of the
       * exponentials, which are to run beside the product. With 96 accumulators registers do not suffice for both. */
      if (shape::registers < 96 && (rows.sum[0] < 0.0f || rows.sum[1] < 0.0f)) {
        asm volatile("trap;");
      }
      ta_group_wait<0>();
      ta_group_hold(acc);
      free_slot(value_slot);
      add = !new_leaf;
      if (new_leaf) {
        fold.finish_leaf(unit_leaves, u, (u.tile_begin + t - 1) / (TA_LEAF / TA_IMAGE_TILE), target, leaf_rows, acc);
      } else {
#pragma unroll
        for (int n = 0; n < shape::registers; ++n) {
          acc[n] = __fmul_rn(acc[n], alpha[n / 2 % 2]);
        }
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        ta_fast_weights<BF16>(s, n, weights[n], rest[n]);
      }
    }
    wait_item();
    ta_fence_shared_for_matrix_unit();
    ta_group_fence();
    issue_values<shape::channels, BF16>(acc, weights, rest, slots + at.slot * shape::slot_bytes + value_offset, add);
    ta_group_commit();
    ta_group_wait<0>();
    ta_group_hold(acc);
    free_slot(at.slot);
    at.advance(num_slots);
    fold.finish_leaf(unit_leaves, u, (u.tile_end - 1) / (TA_LEAF / TA_IMAGE_TILE), target, rows, acc);
  }
}

template <int D, int DV, bool BF16, bool SPLIT>
__global__ void __launch_bounds__(384, 1) shared_kernel(const __grid_constant__ ta_cuda_params params, int num_slots) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using shape = layout<D, DV>;
  extern __shared__ unsigned char raw[];
  __shared__ __align__(8) uint64_t barriers[2 * 16];
  __shared__ unit units[2]; /* of the multiplying groups: not worth the registers of every thread */
  unsigned char *memory = raw + (-ta_shared_address(raw) & 1023);
  const ta_image_header *header = ta_image_check(params);
  if (header == nullptr) {
    return; /* stage 1 tells */
  }
  const int num_groups = blockDim.x / 128 - 1;
  const int num_query_sets = (shape::split_channels ? 1 : num_groups) * (SPLIT ? 2 : 1);
  const uint32_t full = ta_shared_address(barriers);
  const uint32_t empty = ta_shared_address(barriers + 16);
  const int query_bytes = num_query_sets * shape::key_panels * TA_PANEL_BYTES;
  float *folded = (float *)(memory + query_bytes);
  const uint32_t slots = ta_shared_address(memory) + query_bytes + num_groups * shape::fold_bytes;
  if (threadIdx.x == 0) {
    for (int n = 0; n < num_slots; ++n) {
      ta_barrier_init(full + 8 * n, 128);
      ta_barrier_init(empty + 8 * n, 4 * num_groups);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  ta_launch_dependents();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    load_units<D, DV>(params, header, slots, full, empty, num_slots);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    multiply_units<D, DV, BF16, SPLIT>(params, header, units[threadIdx.x / 128 - 1], memory, folded, slots, full, empty,
                                       num_slots, threadIdx.x / 128 - 1, num_groups);
  }
#endif
}

/* Enqueues the kernel with as many slots as shared memory holds. */
template <int D, int DV, bool BF16, bool SPLIT>
cudaError_t launch_shared(const ta_cuda_params &params, int num_blocks, cudaStream_t stream) {
  using shape = layout<D, DV>;
  constexpr int limit = 227 * 1024 - 1024 - 768; /* what a block may have, less alignment and barriers */
  const int groups = shape::split_channels ? 2 : params.block_rows / 64;
  const int query_bytes = (shape::split_channels ? 1 : groups) * (SPLIT ? 2 : 1) * shape::key_panels * TA_PANEL_BYTES;
  const int fixed_bytes = query_bytes + groups * shape::fold_bytes;
  /* A block of 64 rows leaves room for one of the second stage, which then starts, and loads what it can, before this
   * kernel ends. */
  const int left_bytes = groups == 1 && DV <= 128 ? 64 * 1024 : 0;
  int num_slots = (limit - left_bytes - fixed_bytes) / shape::slot_bytes;
  num_slots = num_slots > 16 ? 16 : num_slots;
  if (num_slots < 2) {
    return cudaErrorInvalidValue;
  }
  const int bytes = fixed_bytes + num_slots * shape::slot_bytes + 1024;
  const auto kernel = shared_kernel<D, DV, BF16, SPLIT>;
  const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (code != cudaSuccess) {
    return code;
  }
  kernel<<<num_blocks, 128 * (groups + 1), bytes, stream>>>(params, num_slots);
  return cudaGetLastError();
}

}  // namespace ta_fast

#endif
