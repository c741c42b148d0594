/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of logits or probabilities as weights in double, shared out to a team: the operations of src/verify_weights.c
 * with their bits. A block of 256 weights is summed by 8 lanes, 32 additions each, and the lanes by a tree; the sums
 * of blocks are added one after another. So blocks can be anybody's, and only that last chain is walked by every team
 * member alone.
 */
#ifndef TA_CUDA_STEP_WEIGHTS_CUH
#define TA_CUDA_STEP_WEIGHTS_CUH

#include <float.h>
#include <math.h>
#include <string.h>

#include "../elementary.h"
#include "../verify_math.h"
#include "step_device.cuh"
#include "step_team.cuh"

enum {
  TA_VERIFY_THREADS = 512,
  TA_VERIFY_WARPS = TA_VERIFY_THREADS / 32,
  TA_STEP_LANES = 8,                   /* that sum a block */
  TA_WARP_BLOCKS = 32 / TA_STEP_LANES, /* blocks that a warp sums at once */
  TA_SUMS_TILE = TA_VERIFY_THREADS
};

struct ta_verify_shared {
  int32_t found[TA_VERIFY_WARPS];
  int32_t drawn;
  uint64_t candidates[TA_VERIFY_WARPS];
  double sums[TA_SUMS_TILE];
  double total;
};

struct ta_step_weights {
  double *values; /* [num_blocks][TA_STEP_BLOCK] */
  double *sums;   /* [num_blocks] */
  double total;
};

/* ---- elements of rows ---- */

__device__ __forceinline__ float ta_row_element(const void *row, int32_t dtype, int64_t t) {
  if (dtype == TREEATTN_F32) {
    return ((const float *)row)[t];
  }
  const uint16_t bits = ((const uint16_t *)row)[t];
  return dtype == TREEATTN_F16 ? ta_float_from_f16(bits) : ta_float_from_bf16(bits);
}

__device__ __forceinline__ const void *ta_row_of(const ta_verify_rows &rows, int64_t row) {
  return (const unsigned char *)rows.data + row * rows.stride * (rows.dtype == TREEATTN_F32 ? 4 : 2);
}

/* Numbers as integers in the same order, -0 being 0; what is refused lies above them all. */
enum : int32_t { TA_KEY_REFUSED = INT32_MAX, TA_KEY_INFINITY = 0x7f800000 };

__device__ __forceinline__ int32_t ta_logit_key(float value) {
  const int32_t bits = (int32_t)ta_float_to_bits(value);
  const int32_t key = bits < 0 ? -(bits & INT32_MAX) : bits;
  return value != value ? (int32_t)TA_KEY_REFUSED : key;
}

__device__ __forceinline__ bool ta_is_probability(float value) {
  return value >= 0.0f && value <= FLT_MAX;
}

__device__ __forceinline__ int32_t ta_prob_key(float value) {
  return ta_is_probability(value) ? ta_logit_key(value) : (int32_t)TA_KEY_REFUSED;
}

/* A key and its token as one number: the largest is the largest key at the lowest token. 0 is below all. */
__device__ __forceinline__ uint64_t ta_candidate(int32_t key, int64_t token) {
  return (uint64_t)((uint32_t)key ^ 0x80000000u) << 32 | (0xffffffffu - (uint32_t)token);
}

__device__ __forceinline__ int32_t ta_candidate_key(uint64_t candidate) {
  return (int32_t)((uint32_t)(candidate >> 32) ^ 0x80000000u);
}

__device__ __forceinline__ int32_t ta_candidate_token(uint64_t candidate) {
  return (int32_t)(0xffffffffu - (uint32_t)candidate);
}

/* ---- what a team does together ---- */

/* The largest of the team's candidates, in all threads. The team meets once in between; partials are taken in turns,
 * so that those of the next time do not overtake the readers of this one. */
__device__ __forceinline__ uint64_t ta_team_largest(const ta_team &team, ta_verify_shared &shared, uint64_t *partials,
                                                    int32_t *turn, uint64_t candidate) {
  for (int32_t step = 16; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, (unsigned long long)candidate, step);
    candidate = other > candidate ? other : candidate;
  }
  if (threadIdx.x % 32 == 0) {
    shared.candidates[threadIdx.x / 32] = candidate;
  }
  __syncthreads();
  uint64_t *mine = partials + *turn * TA_STEP_MAX_TEAM;
  if (threadIdx.x == 0) {
    uint64_t largest = 0;
    for (int32_t warp = 0; warp < TA_VERIFY_WARPS; warp++) {
      largest = shared.candidates[warp] > largest ? shared.candidates[warp] : largest;
    }
    mine[team.rank] = largest;
  }
  ta_team_meet(team);
  uint64_t largest = 0;
  for (int32_t rank = 0; rank < team.size; rank++) {
    largest = mine[rank] > largest ? mine[rank] : largest;
  }
  *turn = 1 - *turn;
  return largest;
}

/* key(t) for every token, shared out. */
template <typename Key>
__device__ __forceinline__ uint64_t ta_team_scan(const ta_team &team, ta_verify_shared &shared, uint64_t *partials,
                                                 int32_t *turn, int64_t vocab_size, Key key) {
  uint64_t largest = 0;
  const int64_t stride = (int64_t)team.size * TA_VERIFY_THREADS;
#pragma unroll 4
  for (int64_t t = (int64_t)team.rank * TA_VERIFY_THREADS + threadIdx.x; t < vocab_size; t += stride) {
    const uint64_t candidate = ta_candidate(key(t), t);
    largest = candidate > largest ? candidate : largest;
  }
  return ta_team_largest(team, shared, partials, turn, largest);
}

/* Adds the sums of the 8 lanes of each block of a warp: the tree of block_sum. */
__device__ __forceinline__ double ta_join_lanes(double sum) {
  sum += __shfl_xor_sync(0xffffffffu, sum, 4);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  return sum;
}

/* sums[block] of term(t) for every token of every block, padding included, shared out. Whoever calls it lets the
 * team meet before, where somebody may still read what is written, and after. */
template <typename Term>
__device__ __forceinline__ void ta_team_sum_blocks(const ta_team &team, int64_t num_blocks, double *sums, Term term) {
  const int32_t lane = (int32_t)threadIdx.x % TA_STEP_LANES;
  const int64_t warp = (int64_t)team.rank * TA_VERIFY_WARPS + threadIdx.x / 32;
  const int64_t stride = (int64_t)team.size * TA_VERIFY_WARPS * TA_WARP_BLOCKS;
  for (int64_t first = warp * TA_WARP_BLOCKS; first < num_blocks; first += stride) {
    const int64_t block = first + threadIdx.x % 32 / TA_STEP_LANES;
    double sum = 0;
    if (block < num_blocks) {
#pragma unroll 4
      for (int32_t t = lane; t < TA_STEP_BLOCK; t += TA_STEP_LANES) {
        sum += term(block * TA_STEP_BLOCK + t);
      }
    }
    sum = ta_join_lanes(sum);
    if (lane == 0 && block < num_blocks) {
      sums[block] = sum;
    }
  }
}

/* The sums one after another, in all threads of the block. */
__device__ __forceinline__ double ta_chain_sums(ta_verify_shared &shared, const double *sums, int64_t num_blocks) {
  double total = 0;
  for (int64_t tile = 0; tile < num_blocks; tile += TA_SUMS_TILE) {
    const int64_t left = num_blocks - tile;
    const int32_t count = left < TA_SUMS_TILE ? (int32_t)left : (int32_t)TA_SUMS_TILE;
    if ((int32_t)threadIdx.x < count) {
      shared.sums[threadIdx.x] = sums[tile + threadIdx.x];
    }
    __syncthreads();
    if (threadIdx.x < 32) {
#pragma unroll 8
      for (int32_t n = 0; n < count; n++) {
        total += shared.sums[n];
      }
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    shared.total = total;
  }
  __syncthreads();
  return shared.total;
}

/* Takes a token out of the weights. */
__device__ __forceinline__ void ta_team_remove(const ta_team &team, ta_verify_shared &shared, int64_t num_blocks,
                                               ta_step_weights &weights, int32_t token) {
  ta_team_meet(team);
  if (team.rank == 0 && threadIdx.x < 32) {
    const int64_t block = token / TA_STEP_BLOCK;
    double sum = 0;
    if (threadIdx.x < TA_STEP_LANES) {
      for (int32_t t = (int32_t)threadIdx.x; t < TA_STEP_BLOCK; t += TA_STEP_LANES) {
        const int64_t other = block * TA_STEP_BLOCK + t;
        sum += other == token ? 0.0 : weights.values[other];
      }
    }
    sum = ta_join_lanes(sum);
    if (threadIdx.x == 0) {
      weights.values[token] = 0;
      weights.sums[block] = sum;
    }
  }
  ta_team_meet(team);
  weights.total = ta_chain_sums(shared, weights.sums, num_blocks);
}

/* The smallest token whose cumulative probability exceeds the uniform; by one block, in all its threads. */
__device__ __forceinline__ int32_t ta_draw(ta_verify_shared &shared, int64_t num_blocks, const ta_step_weights &weights,
                                           double uniform) {
  if (threadIdx.x < 32) {
    const int32_t lane = (int32_t)threadIdx.x;
    const double target = uniform * weights.total;
    double before = 0;
    int64_t chosen = 0;
    bool found = false;
    for (int64_t first = 0; first < num_blocks && !found; first += 32) {
      const double own = first + lane < num_blocks ? weights.sums[first + lane] : 0.0;
      for (int32_t n = 0; n < 32 && !found; n++) {
        const double sum = __shfl_sync(0xffffffffu, own, n);
        if (sum > 0) {
          chosen = first + n;
          found = before + sum > target;
          before = found ? before : before + sum;
        }
      }
    }
    /* The sum of tokens may end a rounding error below the block's own: the last token with a weight then takes what is
     * missing. */
    const double *values = weights.values + chosen * TA_STEP_BLOCK;
    int32_t token = 0;
    found = false;
    for (int32_t first = 0; first < TA_STEP_BLOCK && !found; first += 32) {
      const double own = values[first + lane];
      for (int32_t n = 0; n < 32 && !found; n++) {
        const double value = __shfl_sync(0xffffffffu, own, n);
        if (value > 0) {
          token = first + n;
          before += value;
          found = before > target;
        }
      }
    }
    if (lane == 0) {
      shared.drawn = (int32_t)(chosen * TA_STEP_BLOCK + token);
    }
  }
  __syncthreads();
  return shared.drawn;
}

#endif
