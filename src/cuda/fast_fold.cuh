/* SPDX-License-Identifier: Apache-2.0 */
/* States of rows in a warp, and the order in which the second stage of the fast mode folds them. */
#ifndef TA_CUDA_FAST_FOLD_CUH
#define TA_CUDA_FAST_FOLD_CUH

#include "../order.h"
#include "fast_softmax.cuh"
#include "image.h"

namespace ta_fast {

/* A state in a warp: rows lane / 4 and + 8, its share of the value channels. */
template <int BLOCKS>
struct state {
  ta_fast_rows rows;
  float out[BLOCKS][4];

  __device__ __forceinline__ void clear() {
    ta_fast_rows_clear(rows);
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        out[b][e] = 0.0f;
      }
    }
  }

  __device__ __forceinline__ void join(const state &other) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const ta_fast_join how = ta_fast_join_rows(rows.max[r], rows.sum[r], other.rows.max[r], other.rows.sum[r]);
      if (!how.keep_a) {
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) {
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e) {
            out[b][e] = how.take_b ? other.out[b][e]
                                   : __fmaf_rn(other.out[b][e], how.wb, __fmul_rn(out[b][e], how.wa));
          }
        }
      }
    }
  }
};

/* A state that lies in shared memory while it is not needed, each thread's numbers a row of threads apart. */
template <int BLOCKS, int THREADS>
struct parked_state {
  float *place;

  __device__ __forceinline__ void put(const state<BLOCKS> &from) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      place[(4 * BLOCKS + r) * THREADS] = from.rows.max[r];
      place[(4 * BLOCKS + 2 + r) * THREADS] = from.rows.sum[r];
    }
#pragma unroll
    for (int n = 0; n < 4 * BLOCKS; ++n) {
      place[n * THREADS] = from.out[n / 4][n % 4];
    }
  }

  __device__ __forceinline__ void get(state<BLOCKS> &to) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      to.rows.max[r] = place[(4 * BLOCKS + r) * THREADS];
      to.rows.sum[r] = place[(4 * BLOCKS + 2 + r) * THREADS];
    }
#pragma unroll
    for (int n = 0; n < 4 * BLOCKS; ++n) {
      to.out[n / 4][n % 4] = place[n * THREADS];
    }
  }
};

/* The two levels of groups and what is in front of them; with PARK groups of 16 lie in shared memory too. */
template <int BLOCKS, int THREADS, bool PARK>
struct folds {
  parked_state<BLOCKS, THREADS> total, parked_sixteen;
  state<PARK ? 1 : BLOCKS> sixteen;
  state<BLOCKS> four;
  bool has_total;

  __device__ __forceinline__ void clear(float *place) {
    total.place = place;
    parked_sixteen.place = place + THREADS * (4 * BLOCKS + 4);
    has_total = false;
    four.clear();
    clear_sixteen();
  }

  __device__ __forceinline__ void clear_sixteen() {
    if constexpr (PARK) {
      parked_sixteen.put(four); /* empty whenever this is called */
    } else {
      sixteen.clear();
    }
  }

  __device__ __forceinline__ void join_sixteen(const state<BLOCKS> &part) {
    if constexpr (PARK) {
      state<BLOCKS> group;
      parked_sixteen.get(group);
      group.join(part);
      parked_sixteen.put(group);
    } else {
      sixteen.join(part);
    }
  }

  __device__ __forceinline__ void end_sixteen() {
    state<BLOCKS> group;
    if constexpr (PARK) {
      parked_sixteen.get(group);
    } else {
      group = sixteen;
    }
    if (has_total) {
      state<BLOCKS> front;
      total.get(front);
      front.join(group);
      total.put(front);
    } else {
      total.put(group);
      has_total = true;
    }
    clear_sixteen();
  }

  __device__ __forceinline__ void end_four() {
    if (__any_sync(0xffffffffu, four.rows.sum[0] != 0.0f || four.rows.sum[1] != 0.0f)) {
      join_sixteen(four);
      four.clear();
    }
  }

  /* Ends the groups that do not go on at `leaf`. */
  __device__ __forceinline__ void end_groups(int leaf) {
    if (leaf % TA_FAST_GROUP_LEAVES == 0) {
      end_four();
      if (leaf % TA_GROUP_LEAVES == 0) {
        end_sixteen();
      }
    }
  }
};

}  // namespace ta_fast

#endif
