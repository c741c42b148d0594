/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves the rows of accepted paths in all tensors. A path increases, so a row never moves up and no later move reads
 * what an earlier one wrote. A thread owns a column of bytes: it takes the rows in ascending order, a few of them
 * read before any is written, and needs no other thread's word.
 */
#ifndef TA_CUDA_STEP_COMMIT_CUH
#define TA_CUDA_STEP_COMMIT_CUH

#include "step_device.cuh"

enum {
  TA_COMMIT_THREADS = 256,
  TA_COMMIT_TILE = 64, /* moves whose addresses are worked out at once */
  TA_COMMIT_HELD = 8,  /* rows that a thread holds */
  TA_CONFLICT_LANES = 8
};

struct ta_commit_shared {
  int32_t found[TA_COMMIT_THREADS / 32];
  unsigned long long conflict;
  unsigned long long addresses;
  int64_t from[TA_COMMIT_TILE], to[TA_COMMIT_TILE];
};

/* The blocks of the cache that hold nodes of a request: one sequence, or entries first .. last of its page table. */
struct ta_commit_uses {
  int64_t first, last;
  const int32_t *blocks; /* blocks[first .. last], or NULL where the request itself is the sequence */
  int32_t request;
};

__device__ __forceinline__ int32_t ta_block_at(const ta_commit_uses &uses, int64_t entry) {
  return uses.blocks == nullptr ? uses.request : uses.blocks[entry];
}

/* False where the request has no nodes or its place cannot be told. */
__device__ __forceinline__ bool ta_uses_of(const ta_commit_params &params, int32_t request, int32_t num_nodes,
                                           int32_t prefix_len, ta_commit_uses *uses) {
  uses->request = request;
  uses->first = uses->last = 0;
  if (num_nodes <= 0 || prefix_len < 0) {
    return false;
  }
  if (params.page_size == 0) {
    uses->blocks = params.cache_indices == nullptr ? nullptr : params.cache_indices + request;
    return true;
  }
  uses->blocks = params.page_table + request * params.page_table_stride;
  uses->first = prefix_len / params.page_size;
  uses->last = ((int64_t)prefix_len + num_nodes - 1) / params.page_size;
  return uses->last < params.page_table_stride;
}

/* The lowest (entry, other request) that share a block, packed; ~0 if none do. A request may meet itself. */
__device__ __forceinline__ unsigned long long ta_find_conflict(const ta_commit_params &params, ta_commit_shared &shared,
                                                               const ta_commit_uses &own) {
  unsigned long long lowest = ~0ull;
  const int32_t lane = (int32_t)threadIdx.x % TA_CONFLICT_LANES;
  for (int32_t other = (int32_t)threadIdx.x / TA_CONFLICT_LANES; other < params.batch.num_requests;
       other += TA_COMMIT_THREADS / TA_CONFLICT_LANES) {
    const ta_step_span span = ta_step_span_of(params.batch, other);
    ta_commit_uses uses;
    if (!ta_uses_of(params, other, span.num_nodes, params.prefix_lens[other], &uses)) {
      continue;
    }
    for (int64_t theirs = uses.first + lane; theirs <= uses.last; theirs += TA_CONFLICT_LANES) {
      const int32_t block = ta_block_at(uses, theirs);
      for (int64_t entry = own.first; entry <= own.last; entry++) {
        if (ta_block_at(own, entry) == block && (other != own.request || theirs < entry)) {
          const unsigned long long here = (unsigned long long)entry << 32 | (uint32_t)other;
          lowest = here < lowest ? here : lowest;
        }
      }
    }
  }
  if (threadIdx.x == 0) {
    shared.conflict = ~0ull;
  }
  __syncthreads();
  if (lowest != ~0ull) {
    atomicMin(&shared.conflict, lowest);
  }
  __syncthreads();
  return shared.conflict;
}

/* All bits of the addresses of a group's tensors together, 0 if there is a NULL; then *null is the first. */
__device__ __forceinline__ unsigned long long ta_join_addresses(ta_commit_shared &shared, const ta_commit_group &group,
                                                                int32_t *null) {
  *null = group.num_tensors;
  if (group.tensors == nullptr) {
    return (unsigned long long)group.base | (group.num_tensors > 1 ? (unsigned long long)group.stride_tensor : 0);
  }
  *null = ta_step_first<TA_COMMIT_THREADS>(shared.found, 0, group.num_tensors,
                                           [&](int32_t t) { return group.tensors[t] == nullptr; });
  if (threadIdx.x == 0) {
    shared.addresses = 0;
  }
  __syncthreads();
  unsigned long long own = 0;
  for (int32_t t = (int32_t)threadIdx.x; t < group.num_tensors; t += TA_COMMIT_THREADS) {
    own |= (unsigned long long)group.tensors[t];
  }
  atomicOr(&shared.addresses, own);
  __syncthreads();
  const unsigned long long joined = shared.addresses;
  __syncthreads();
  return joined;
}

/* ---- checks ---- */

struct ta_commit_state {
  int32_t begin, num_nodes, path_len, prefix_len;
  int32_t first_move; /* path_len: the path is 0, 1, 2, .. and nothing moves */
  ta_commit_uses uses;
};

/* The same answer in all threads and thread blocks of a request. */
__device__ __forceinline__ treeattn_cuda_outcome ta_commit_check(const ta_commit_params &params,
                                                                 ta_commit_shared &shared, int32_t request,
                                                                 ta_commit_state *state) {
  const treeattn_cuda_outcome fine = ta_step_outcome(TREEATTN_OK, TREEATTN_CUDA_FIELD_NONE, -1, -1);
  const treeattn_status wrong = TREEATTN_ERROR_INVALID_ARGUMENT;
  const ta_step_span span = ta_step_span_of(params.batch, request);
  if (!span.valid) {
    return ta_step_outcome(wrong, TREEATTN_CUDA_FIELD_OFFSETS, -1, -1);
  }
  if (params.verified != nullptr && params.verified[request].status != TREEATTN_OK) {
    return params.verified[request];
  }
  state->begin = span.begin;
  state->num_nodes = span.num_nodes;
  state->path_len = params.num_path[request];
  state->prefix_len = params.prefix_lens[request];
  state->first_move = 0;
  if (state->prefix_len < 0) {
    return ta_step_outcome(wrong, TREEATTN_CUDA_FIELD_PREFIX_LENS, -1, -1);
  }
  if (state->path_len < 0 || state->path_len > span.num_nodes) {
    return ta_step_outcome(wrong, TREEATTN_CUDA_FIELD_NUM_PATH, -1, -1);
  }
  if (state->prefix_len > INT32_MAX - span.num_nodes) {
    return ta_step_outcome(TREEATTN_ERROR_OVERFLOW, TREEATTN_CUDA_FIELD_PREFIX_LENS, -1, -1);
  }
  const bool placed = ta_uses_of(params, request, span.num_nodes, state->prefix_len, &state->uses);
  if (span.num_nodes == 0) {
    return fine;
  }
  if (params.page_size == 0 && (int64_t)state->prefix_len + span.num_nodes > params.num_slots) {
    return ta_step_outcome(wrong, TREEATTN_CUDA_FIELD_PREFIX_LENS, -1, -1);
  }
  const treeattn_cuda_field field =
      params.page_size == 0 ? TREEATTN_CUDA_FIELD_CACHE_INDEX : TREEATTN_CUDA_FIELD_PAGE_TABLE;
  if (!placed) {
    return ta_step_outcome(wrong, field, (int32_t)params.page_table_stride, -1);
  }
  const int32_t *path = params.path + span.begin;
  const int32_t bad = ta_step_first<TA_COMMIT_THREADS>(shared.found, 0, state->path_len, [&](int32_t i) {
    return path[i] < 0 || path[i] >= span.num_nodes || (i > 0 && path[i] <= path[i - 1]);
  });
  if (bad < state->path_len) {
    return ta_step_outcome(wrong, TREEATTN_CUDA_FIELD_PATH, bad, -1);
  }
  /* Entries are below 2^31: a prefix is. */
  const int32_t first = (int32_t)state->uses.first;
  const int32_t end = (int32_t)state->uses.last + 1;
  const int32_t outside = ta_step_first<TA_COMMIT_THREADS>(shared.found, first, end, [&](int32_t entry) {
    const int32_t block = ta_block_at(state->uses, entry);
    return block < 0 || block >= params.num_blocks;
  });
  if (outside < end) {
    return ta_step_outcome(wrong, field, params.page_size == 0 ? -1 : outside, -1);
  }
  state->first_move =
      ta_step_first<TA_COMMIT_THREADS>(shared.found, 0, state->path_len, [&](int32_t i) { return path[i] != i; });
  if (state->first_move < state->path_len) {
    const unsigned long long conflict = ta_find_conflict(params, shared, state->uses);
    if (conflict != ~0ull) {
      const int32_t entry = (int32_t)(conflict >> 32);
      const int32_t other = (int32_t)(uint32_t)conflict;
      return params.page_size == 0 ? ta_step_outcome(wrong, field, other, -1)
                                   : ta_step_outcome(wrong, field, entry, other);
    }
  }
  for (int32_t g = 0; g < params.num_groups; g++) {
    int32_t null = 0;
    (void)ta_join_addresses(shared, params.groups[g], &null);
    if (null < params.groups[g].num_tensors) {
      return ta_step_outcome(wrong, TREEATTN_CUDA_FIELD_TENSORS, null, g);
    }
  }
  return fine;
}

/* ---- moves ---- */

/* Bytes from the start of a tensor to a slot's row of head 0. */
__device__ __forceinline__ int64_t ta_row_offset(const ta_commit_params &params, const ta_commit_group &group,
                                                 const ta_commit_uses &uses, int64_t slot) {
  const int64_t entry = params.page_size == 0 ? 0 : slot / params.page_size;
  const int64_t row = params.page_size == 0 ? slot : slot - entry * params.page_size;
  return ta_block_at(uses, entry) * group.stride_block + row * group.stride_row;
}

/* A tile of moves in the columns of a group, which are T wide. */
template <typename T>
__device__ __forceinline__ void ta_move_columns(const ta_commit_params &params, const ta_commit_shared &shared,
                                                const ta_commit_group &group, int32_t member, int32_t count) {
  const uint32_t chunks = (uint32_t)(group.row_bytes / (int64_t)sizeof(T));
  const uint32_t columns = (uint32_t)group.num_heads * chunks;
  const uint32_t all = (uint32_t)group.num_tensors * columns;
  const uint32_t step = (uint32_t)params.team * TA_COMMIT_THREADS;
  for (uint32_t column = (uint32_t)member * TA_COMMIT_THREADS + threadIdx.x; column < all; column += step) {
    const uint32_t tensor = column / columns;
    const uint32_t head = column % columns / chunks;
    const uint32_t chunk = column % columns % chunks;
    unsigned char *data =
        group.tensors != nullptr ? (unsigned char *)group.tensors[tensor] : group.base + tensor * group.stride_tensor;
    data += head * group.stride_head + (int64_t)chunk * (int64_t)sizeof(T);
    for (int32_t m = 0; m < count; m += TA_COMMIT_HELD) {
      T held[TA_COMMIT_HELD];
#pragma unroll
      for (int32_t n = 0; n < TA_COMMIT_HELD; n++) {
        if (m + n < count) {
          held[n] = *(const T *)(data + shared.from[m + n]);
        }
      }
#pragma unroll
      for (int32_t n = 0; n < TA_COMMIT_HELD; n++) {
        if (m + n < count) {
          *(T *)(data + shared.to[m + n]) = held[n];
        }
      }
    }
  }
}

__device__ __forceinline__ void ta_move_group(const ta_commit_params &params, ta_commit_shared &shared,
                                              const ta_commit_state &state, const ta_commit_group &group,
                                              int32_t member) {
  int32_t null = 0;
  const unsigned long long bits = ta_join_addresses(shared, group, &null) | (unsigned long long)group.stride_block |
                                  (unsigned long long)group.stride_head | (unsigned long long)group.stride_row |
                                  (unsigned long long)group.row_bytes;
  const int32_t *path = params.path + state.begin;
  for (int32_t tile = state.first_move; tile < state.path_len; tile += TA_COMMIT_TILE) {
    const int32_t left = state.path_len - tile;
    const int32_t count = left < TA_COMMIT_TILE ? left : (int32_t)TA_COMMIT_TILE;
    __syncthreads();
    if ((int32_t)threadIdx.x < count) {
      const int32_t i = tile + (int32_t)threadIdx.x;
      shared.from[threadIdx.x] = ta_row_offset(params, group, state.uses, (int64_t)state.prefix_len + path[i]);
      shared.to[threadIdx.x] = ta_row_offset(params, group, state.uses, (int64_t)state.prefix_len + i);
    }
    __syncthreads();
    if ((bits & 15) == 0) {
      ta_move_columns<uint4>(params, shared, group, member, count);
    } else if ((bits & 7) == 0) {
      ta_move_columns<uint2>(params, shared, group, member, count);
    } else if ((bits & 3) == 0) {
      ta_move_columns<uint32_t>(params, shared, group, member, count);
    } else if ((bits & 1) == 0) {
      ta_move_columns<uint16_t>(params, shared, group, member, count);
    } else {
      ta_move_columns<uint8_t>(params, shared, group, member, count);
    }
  }
}

static __global__ void __launch_bounds__(TA_COMMIT_THREADS)
    ta_commit_kernel(const __grid_constant__ ta_commit_params params) {
  __shared__ ta_commit_shared shared;
  const int32_t request = (int32_t)(blockIdx.x / (uint32_t)params.team);
  const int32_t member = (int32_t)(blockIdx.x % (uint32_t)params.team);
  ta_commit_state state;
  const treeattn_cuda_outcome outcome = ta_commit_check(params, shared, request, &state);
  if (member == 0 && threadIdx.x == 0) {
    params.outcomes[request] = outcome;
    if (outcome.status == TREEATTN_OK && params.next_prefix_lens != nullptr) {
      params.next_prefix_lens[request] = state.prefix_len + state.path_len;
    }
  }
  if (outcome.status != TREEATTN_OK || state.num_nodes == 0 || state.first_move >= state.path_len) {
    return;
  }
  for (int32_t g = 0; g < params.num_groups; g++) {
    ta_move_group(params, shared, state, params.groups[g], member);
  }
}

#endif
