/* SPDX-License-Identifier: Apache-2.0 */
/* What the first stage of the fast mode does with a finished leaf: folds it, and writes states to scratch. */
#ifndef TA_CUDA_FAST_LEAVES_SM90_CUH
#define TA_CUDA_FAST_LEAVES_SM90_CUH

#include "fast_load_sm90.cuh"
#include "fast_softmax.cuh"

namespace ta_fast {

/* Joins a state in front of the one in {rows, acc}; value(n) is its n-th number of this thread. */
template <int COUNT, typename VALUE>
__device__ __forceinline__ void join_in_front(float (&max)[2], float (&sum)[2], ta_fast_rows &rows, float (&acc)[COUNT],
                                              const VALUE &value) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const ta_fast_join how = ta_fast_join_rows(max[r], sum[r], rows.max[r], rows.sum[r]);
    rows.max[r] = max[r];
    rows.sum[r] = sum[r];
    if (!how.take_b) {
#pragma unroll
      for (int j = 0; j < COUNT / 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int n = 4 * j + 2 * r + e;
          const float front = value(n);
          acc[n] = how.keep_a ? front : __fmaf_rn(acc[n], how.wb, __fmul_rn(front, how.wa));
        }
      }
    }
  }
}

/* The partial results of a thread's two rows; a row beyond the last has none. */
struct targets {
  float *base;       /* of the request, at this thread's first channels */
  uint32_t row[2];   /* floats from base to slot 0 of the row, 0xffffffff: no row */
  int32_t channels;  /* of a slot, and 2 */
  int32_t first;     /* this thread's first channel: base less it is the head of a row; 0 writes the head */

  __device__ __forceinline__ float *at(int r, int slot) const { return base + row[r] + (int64_t)slot * channels; }

  template <int COUNT>
  __device__ __forceinline__ void write(int slot, const ta_fast_rows &rows, const float (&acc)[COUNT]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row[r] != 0xffffffffu) {
        float *state = at(r, slot);
        if (first == 0) {
          *(float2 *)state = make_float2(rows.max[r], rows.sum[r]);
        }
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j) {
          *(float2 *)(state + 2 + 8 * j) = make_float2(acc[4 * j + 2 * r], acc[4 * j + 2 * r + 1]);
        }
      }
    }
  }
};

/* Folds finished leaves: a group of 4 in shared memory (or, with many channels, in its slot), groups of 16 in their slot. */
template <int D, int DV>
struct folder {
  using shape = layout<D, DV>;
  float *folded; /* this thread's numbers of the group of 4 so far, 128 apart */
  ta_fast_rows folded_rows;

  __device__ __forceinline__ void finish_leaf(int unit_leaves, const unit &u, int leaf,
                                              const targets &target, ta_fast_rows rows,
                                              float (&acc)[shape::registers]) {
    int slot = u.chunk;
    bool join_slot = false;
    if (leaf >= u.closed) {
      slot = u.num_slots - 1;
    } else if (unit_leaves > 1) {
      const bool first = leaf % TA_FAST_GROUP_LEAVES == 0;
      if constexpr (shape::fold_in_shared) {
        const bool whole = leaf % TA_FAST_GROUP_LEAVES == TA_FAST_GROUP_LEAVES - 1;
        if (!first) {
          join_in_front(folded_rows.max, folded_rows.sum, rows, acc, [&](int n) { return folded[n * 128]; });
        }
        if (!whole && leaf + 1 < min(u.leaf_end, u.closed)) {
          folded_rows = rows;
#pragma unroll
          for (int n = 0; n < shape::registers; ++n) {
            folded[n * 128] = acc[n];
          }
          return;
        }
        if (unit_leaves > TA_FAST_GROUP_LEAVES) {
          slot = whole ? slot : u.num_chunks;
          join_slot = whole && leaf % TA_GROUP_LEAVES >= TA_FAST_GROUP_LEAVES;
        }
      } else {
        join_slot = !first;
      }
    }
    if (join_slot) {
      /* What lies in the slot was written by this thread, and its head by a neighbour. One row after the other: registers. */
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float max = 0.0f;
        float sum = 0.0f;
        const float *state = target.at(r, slot);
        if (target.row[r] != 0xffffffffu) {
          const float2 head = *(const float2 *)(state - target.first);
          max = head.x;
          sum = head.y;
        }
        const ta_fast_join how = ta_fast_join_rows(max, sum, rows.max[r], rows.sum[r]);
        rows.max[r] = max;
        rows.sum[r] = sum;
        if (!how.take_b) { /* never for a row beyond the last, whose state here is empty */
#pragma unroll
          for (int j = 0; j < shape::registers / 4; ++j) {
            const float2 front = *(const float2 *)(state + 2 + 8 * j);
            float &x = acc[4 * j + 2 * r];
            float &y = acc[4 * j + 2 * r + 1];
            x = how.keep_a ? front.x : __fmaf_rn(x, how.wb, __fmul_rn(front.x, how.wa));
            y = how.keep_a ? front.y : __fmaf_rn(y, how.wb, __fmul_rn(front.y, how.wa));
            asm volatile("" ::: "memory"); /* few loads at once */
          }
        }
      }
      if (shape::split_channels) {
        ta_named_barrier(3, 256); /* both groups have read the head before one writes it */
      } else {
        __syncwarp();
      }
    }
    target.write(slot, rows, acc);
    if (shape::split_channels) {
      ta_named_barrier(3, 256);
    } else {
      __syncwarp();
    }
  }
};

}  // namespace ta_fast

#endif
