/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stage 1 of the fast mode: one node and up to 16 heads of a KV head in a thread block. What the node does not share with
 * all others (its branch of the tree, the edge of a window, what a mask hides) is gathered by position and multiplied by
 * mma.sync, whose rows have the bits of wgmma's; then everything is folded in order of position and written.
 */
#ifndef TA_CUDA_FAST_FINISH_CUH
#define TA_CUDA_FAST_FINISH_CUH

#include <cfloat>

#include "../order.h"
#include "device.cuh"
#include "fast.cuh"
#include "fast_softmax.cuh"
#include "params.h"
#include "ptx.cuh"

namespace ta_fast {

template <int D, int DV>
struct finish_layout {
  static constexpr int num_warps = DV > 128 ? 8 : 4;
  static constexpr int threads = 32 * num_warps;
  /* Registers for three on a multiprocessor also let one start beside a block of the first stage that has 64 rows. */
  static constexpr int min_blocks = DV <= 128 ? 3 : 1;
  static constexpr int blocks = DV / 8 / num_warps; /* of 8 value channels, in a warp */
  static constexpr int key_stride = D + 8;          /* 16-bit elements; the odd 16 bytes spread the banks */
  static constexpr int value_stride = DV + 8;
  static constexpr int score_stride = 72;
  static constexpr int keys = 0;
  /* With many channels values take the place of keys that have been used. */
  static constexpr bool tight = DV > 256;
  static constexpr bool park = DV > 256 || DV <= 128;
  static constexpr int values = tight ? keys : keys + 64 * key_stride * 2;
  static constexpr int query_high = values + 64 * (tight ? key_stride : value_stride) * 2;
  static constexpr int query_low = query_high + 16 * key_stride * 2;
  static constexpr int scores = query_low + 16 * key_stride * 2;
  static constexpr int bias = scores + 16 * score_stride * 4;
  static constexpr int slots = bias + 64 * 4;
  static constexpr int parked = slots + 64 * 4; /* a state of every thread, or two */
  static constexpr int bytes = parked + (park ? 2 : 1) * threads * (4 * blocks + 4) * 4;
  static_assert(!tight || key_stride >= value_stride, "values must fit in the place of keys");
};

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

/* Everything about the item that a block works on, by value: memory is not asked again. */
struct item {
  int64_t node_row;     /* in the batch */
  int64_t first_row;    /* of the request */
  const float *scratch; /* slot 0 of the first head; heads are num_slots * (DV + 2) floats apart */
  const unsigned char *keys, *values; /* of the KV head, and of the sequence in a contiguous cache */
  const int32_t *pages;
  const int32_t *tail;  /* slots from position prefix_len on */
  const uint64_t *bits; /* of the prefix, or NULL */
  const float *bias;    /* by slot, or NULL */
  int bias_first_slot;
  int g, first_head, num_heads; /* heads of the group: first_head .. + num_heads, at most 16 */
  int num_rows;                 /* of the request, times heads of the group */
  int num_slots, num_chunks;
  int shared_begin, shared_end;
  int prefix_len, prefix_first, tail_len;
  int leaf_begin, leaf_end, last_position; /* of the row; the position behind the last that it may see */
};

__device__ __forceinline__ item find_item(const ta_cuda_params &params, const ta_image_header *header, int64_t n,
                                          int dv) {
  const int head_blocks = (params.group + 15) / 16;
  item it;
  it.node_row = n % header->num_rows; /* nodes side by side read the same keys */
  const int rest = (int)(n / header->num_rows);
  it.g = rest / head_blocks;
  it.first_head = rest % head_blocks * 16;
  it.num_heads = min(16, params.group - it.first_head);
  const ta_image_row &row = ((const ta_image_row *)(params.image + header->rows))[it.node_row];
  const ta_image_request &request = ((const ta_image_request *)(params.image + header->requests))[row.request];
  it.first_row = request.first_row;
  it.num_rows = request.num_rows * params.group;
  it.num_slots = request.num_slots;
  it.num_chunks = request.num_chunks;
  it.shared_begin = request.shared_begin;
  it.shared_end = request.shared_end;
  it.prefix_len = request.prefix_len;
  it.prefix_first = row.prefix_first;
  it.tail_len = row.tail_len;
  it.leaf_begin = row.leaf_begin;
  it.leaf_end = row.leaf_end;
  it.last_position = it.prefix_len + it.tail_len;
  it.tail = (const int32_t *)(params.image + header->slots) + row.slots;
  it.bits = row.bits < 0 ? nullptr : (const uint64_t *)(params.image + header->bits) + row.bits;
  it.bias_first_slot = row.bias_first_slot;
  it.bias = row.bias_first_slot == INT32_MAX ? nullptr : (const float *)(params.image + header->bias) + row.bias;
  it.pages = params.paged ? (const int32_t *)(params.image + header->pages) + request.pages : nullptr;
  const int64_t sequence = params.paged ? 0 : request.cache_index;
  it.keys = (const unsigned char *)params.k + 2 * (sequence * params.k_stride_page + it.g * params.k_stride_head);
  it.values = (const unsigned char *)params.v + 2 * (sequence * params.v_stride_page + it.g * params.v_stride_head);
  it.scratch = params.scratch + request.partial_base +
               ((it.node_row - it.first_row) * params.num_heads + (int64_t)it.g * params.group + it.first_head) *
                   it.num_slots * (dv + 2);
  return it;
}

/* Reads the state of a slot from scratch; `source` is the slot of this thread's first row, at its first channel, the second
 * row is 8 heads further. Past the first-level cache, which may hold what another multiprocessor has replaced. */
template <int BLOCKS>
__device__ __forceinline__ void read_slot(const item &it, const float *source, int64_t eight_heads, int first_channel,
                                          state<BLOCKS> &out) {
  const int head = (threadIdx.x & 31) / 4;
  out.clear();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (head + 8 * r < it.num_heads) {
      const float *place = source + r * eight_heads;
      const float2 ends = __ldcg((const float2 *)(place - first_channel));
      out.rows.max[r] = ends.x;
      out.rows.sum[r] = ends.y;
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) {
        const float2 values = __ldcg((const float2 *)(place + 2 + 8 * b));
        out.out[b][2 * r] = values.x;
        out.out[b][2 * r + 1] = values.y;
      }
    }
  }
}

/* The cache slot of a position, or -1 where the row does not see it. */
__device__ __forceinline__ int visible_slot(const item &it, int position) {
  if (position >= it.prefix_len) {
    return position - it.prefix_len < it.tail_len ? it.tail[position - it.prefix_len] : -1;
  }
  if (position < it.prefix_first) {
    return -1;
  }
  return it.bits == nullptr || (it.bits[position / 64] >> (position % 64) & 1) != 0 ? position : -1;
}

/* What the node sees of positions 64 tile .. + 64: slots by position in shared memory, and a bit for each. */
__device__ __forceinline__ uint64_t find_seen(const item &it, int tile, int32_t *slots, float *bias) {
  const int lane = threadIdx.x & 31;
  const int low = visible_slot(it, 64 * tile + lane);
  const int high = visible_slot(it, 64 * tile + 32 + lane);
  if (threadIdx.x < 32) {
    slots[lane] = low;
    slots[32 + lane] = high;
    if (it.bias != nullptr) {
      bias[lane] = low >= it.bias_first_slot ? it.bias[low] : 0.0f;
      bias[32 + lane] = high >= it.bias_first_slot ? it.bias[high] : 0.0f;
    }
  }
  return (uint64_t)__ballot_sync(0xffffffffu, low >= 0) | (uint64_t)__ballot_sync(0xffffffffu, high >= 0) << 32;
}

/* Rows of the cache by position into shared memory, 8 threads for 128 bytes; what is not seen is zero. */
template <int CHUNKS, int STRIDE, int THREADS>
__device__ __forceinline__ void gather(const ta_cuda_params &params, const item &it, const int32_t *slots,
                                       const unsigned char *base, int64_t stride_page, int64_t stride_slot,
                                       unsigned char *target) {
  const int chunk = threadIdx.x & 7;
  const uint32_t page_size = params.page_size < INT32_MAX ? (uint32_t)params.page_size : (uint32_t)INT32_MAX;
  const uint32_t address = ta_shared_address(target) + chunk * 16;
#pragma unroll 1
  for (int row = threadIdx.x / 8; row < 64; row += THREADS / 8) {
    const int slot = slots[row];
    const uint32_t place = address + row * STRIDE * 2;
    if (slot < 0) {
#pragma unroll
      for (int panel = 0; panel < CHUNKS; panel += 8) {
        if (panel + 8 <= CHUNKS || chunk < CHUNKS - panel) {
          asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(place + panel * 16), "r"(0) : "memory");
        }
      }
    } else {
      const unsigned char *source = base + chunk * 16;
      if (it.pages != nullptr) {
        const uint32_t index = (uint32_t)slot / page_size;
        source += 2 * (it.pages[index] * stride_page + ((uint32_t)slot - index * page_size) * stride_slot);
      } else {
        source += 2 * slot * stride_slot;
      }
#pragma unroll
      for (int panel = 0; panel < CHUNKS; panel += 8) {
        if (panel + 8 <= CHUNKS || chunk < CHUNKS - panel) {
          ta_copy_16(place + panel * 16, source + panel * 16);
        }
      }
    }
  }
}

template <int D, int DV, bool BF16>
struct finisher {
  using shape = finish_layout<D, DV>;
  static constexpr int threads = shape::threads;

  const ta_cuda_params &params;
  int unit_leaves;
  unsigned char *memory;
  bool split;

  __device__ __forceinline__ void load_queries(const item &it) {
    if (!split && params.scale_hi >= 0.0f && ((uintptr_t)params.q & 15) == 0 && params.q_stride_head % 8 == 0 &&
        params.q_stride_row % 8 == 0) { /* nothing to convert */
      const unsigned char *base =
          (const unsigned char *)params.q +
          2 * ((int64_t)(it.g * params.group + it.first_head) * params.q_stride_head + it.node_row * params.q_stride_row);
      for (int n = threadIdx.x; n < 16 * (D / 8); n += threads) {
        const int head = n / (D / 8);
        const int chunk = n % (D / 8);
        unsigned char *place = memory + shape::query_high + (head * shape::key_stride + chunk * 8) * 2;
        if (head < it.num_heads) {
          ta_copy_16(ta_shared_address(place), base + 2 * (head * params.q_stride_head + chunk * 8));
        } else {
          *(uint4 *)place = make_uint4(0, 0, 0, 0);
        }
      }
      return; /* the first tile's copies are waited for with these */
    }
    for (int n = threadIdx.x; n < 16 * (D / 8); n += threads) {
      const int head = n / (D / 8);
      const int chunk = n % (D / 8);
      const int row = (int)(it.node_row - it.first_row) * params.group + it.first_head + head;
      float q[8];
      ta_fast_load_query(params, it.first_row, it.g, head < it.num_heads ? row : it.num_rows, it.num_rows, chunk * 8, q);
      uint32_t high[4];
      uint32_t low[4];
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        high[d] = ta_pack<BF16>(q[2 * d], q[2 * d + 1]);
        low[d] = ta_pack<BF16>(__fsub_rn(q[2 * d], ta_unpack_low<BF16>(high[d])),
                               __fsub_rn(q[2 * d + 1], ta_unpack_high<BF16>(high[d])));
      }
      const int offset = (head * shape::key_stride + chunk * 8) * 2;
      *(uint4 *)(memory + shape::query_high + offset) = make_uint4(high[0], high[1], high[2], high[3]);
      *(uint4 *)(memory + shape::query_low + offset) = make_uint4(low[0], low[1], low[2], low[3]);
    }
  }

  /* Scores of 16 rows and 8 positions: all steps of the rounded queries, then all of the rest. */
  __device__ __forceinline__ void score(int first_position, float (&s)[4]) {
    const int lane = threadIdx.x & 31;
    const uint32_t keys =
        ta_shared_address(memory + shape::keys) + ((first_position + (lane & 7)) * shape::key_stride + (lane / 8) * 8) * 2;
    s[0] = s[1] = s[2] = s[3] = 0.0f;
    for (int part = 0; part < (split ? 2 : 1); ++part) {
      const uint32_t queries = ta_shared_address(memory + (part == 0 ? shape::query_high : shape::query_low)) +
                               ((lane & 15) * shape::key_stride + (lane / 16) * 8) * 2;
#pragma unroll 4
      for (int step = 0; step < D / 32; ++step) {
        uint32_t k[4];
        uint32_t q[4];
        ta_load_matrices(keys + step * 64, k);
        ta_load_matrices(queries + step * 64, q);
        ta_warp_product<BF16>(s, q, k[0], k[1]);
        ta_load_matrices(queries + step * 64 + 32, q);
        ta_warp_product<BF16>(s, q, k[2], k[3]);
      }
    }
  }

  __device__ __forceinline__ void add_values(const uint32_t (&weights)[4][4], state<shape::blocks> &leaf) {
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x / 32;
    const uint32_t values = ta_shared_address(memory + shape::values) +
                            (lane * shape::value_stride + warp * shape::blocks * 8) * 2;
#pragma unroll
    for (int b = 0; b < shape::blocks; ++b) {
#pragma unroll
      for (int half = 0; half < 2; ++half) { /* positions 0 .. 31, 32 .. 63 */
        uint32_t v[4];
        ta_load_matrices_transposed(values + (half * 32 * shape::value_stride + b * 8) * 2, v);
        ta_warp_product<BF16>(leaf.out[b], weights[2 * half], v[0], v[1]);
        ta_warp_product<BF16>(leaf.out[b], weights[2 * half + 1], v[2], v[3]);
      }
    }
  }

  /* Begins to copy the keys and values of a tile; returns what the row sees of it. */
  __device__ __forceinline__ uint64_t begin_tile(const item &it, int tile) {
    int32_t *slots = (int32_t *)(memory + shape::slots);
    __syncthreads(); /* the tile before is used up */
    const uint64_t seen = find_seen(it, tile, slots, (float *)(memory + shape::bias));
    if (seen != 0) {
      __syncthreads();
      gather<D / 8, shape::key_stride, threads>(params, it, slots, it.keys, params.k_stride_page, params.k_stride_slot,
                                                memory + shape::keys);
      if (!shape::tight) {
        gather_values(it);
      }
    }
    ta_copy_commit();
    return seen;
  }

  __device__ __forceinline__ void gather_values(const item &it) {
    gather<DV / 8, shape::value_stride, threads>(params, it, (const int32_t *)(memory + shape::slots), it.values,
                                                 params.v_stride_page, params.v_stride_slot, memory + shape::values);
  }

  /* Multiplies it. */
  __device__ __forceinline__ void end_tile(const item &it, uint64_t seen, state<shape::blocks> &leaf) {
    if (seen == 0) {
      return;
    }
    float *scores = (float *)(memory + shape::scores);
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x / 32;
    ta_copy_wait<0>();
    __syncthreads();
    for (int block = warp; block < 8; block += shape::num_warps) {
      float s[4];
      score(8 * block, s);
      const int column = 8 * block + 2 * (lane & 3);
      *(float2 *)(scores + (lane / 4) * shape::score_stride + column) = make_float2(s[0], s[1]);
      *(float2 *)(scores + (lane / 4 + 8) * shape::score_stride + column) = make_float2(s[2], s[3]);
    }
    __syncthreads();
    if (shape::tight) {
      gather_values(it);
      ta_copy_commit();
      ta_copy_wait<0>();
      __syncthreads();
    }
    float s[32];
    const float scale = fabsf(params.scale_hi);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 pair =
            *(const float2 *)(scores + (lane / 4 + 8 * r) * shape::score_stride + 8 * j + 2 * (lane & 3));
        s[4 * j + 2 * r] = pair.x;
        s[4 * j + 2 * r + 1] = pair.y;
      }
    }
    if (params.cap > 0.0f) {
#pragma unroll
      for (int n = 0; n < 32; ++n) {
        s[n] = ta_fast_tanh(__fmul_rn(s[n], scale));
      }
    }
    float alpha[2];
    const float c = params.cap > 0.0f ? params.cap : scale;
    const int rows_used = it.num_heads > 8 ? 2 : 1;
    if (it.bias == nullptr) {
      ta_fast_softmax_masked<false>(s, c, seen, nullptr, rows_used, leaf.rows, alpha);
    } else {
      ta_fast_softmax_masked<true>(s, c, seen, (const float *)(memory + shape::bias), rows_used, leaf.rows, alpha);
    }
#pragma unroll
    for (int b = 0; b < shape::blocks; ++b) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        leaf.out[b][e] = __fmul_rn(leaf.out[b][e], alpha[e / 2]);
      }
    }
    uint32_t weights[4][4];
    uint32_t rest[4][4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      ta_fast_weights<BF16>(s, n, weights[n], rest[n]);
    }
    add_values(weights, leaf);
    if constexpr (BF16) {
      add_values(rest, leaf);
    }
  }

  /* This thread's place in slot 0 of its first row. */
  __device__ __forceinline__ const float *slot_place(const item &it, int first_channel) const {
    const int head = (threadIdx.x & 31) / 4;
    return it.scratch + (int64_t)head * it.num_slots * (DV + 2) + first_channel;
  }

  /* Folds the slots of the closed shared leaves, several asked for at once. `shift` is log2 of a unit's leaves. */
  __device__ __forceinline__ void fold_slots(const item &it, folds<shape::blocks, threads, shape::park> &fold,
                                             int closed_begin, int closed_end) {
    constexpr int at_once = shape::blocks > 4 ? 1 : shape::park ? 2 : 3;
    const int first_channel = threadIdx.x / 32 * shape::blocks * 8 + 2 * (threadIdx.x & 3);
    const int shift = unit_leaves == 1 ? 0 : unit_leaves == TA_FAST_GROUP_LEAVES ? 2 : 4;
    /* In units of 16 leaves, an incomplete group of 4 at the end has a slot of its own, behind the chunks'. */
    const int whole_end = shift == 4 ? closed_end & ~(TA_FAST_GROUP_LEAVES - 1) : closed_end;
    const int num_slots = it.num_slots - (it.shared_end % TA_LEAF != 0 ? 1 : 0);
    const float *place = slot_place(it, first_channel);
    const int64_t eight_heads = (int64_t)8 * it.num_slots * (DV + 2);
    int leaf = closed_begin;
#pragma unroll 1
    for (int first = 0; first < num_slots; first += at_once) {
      state<shape::blocks> part[at_once];
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        const int slot = first + k;
        /* The slot of a last chunk that is nothing but the incomplete group is not written. */
        const bool written = slot < num_slots && !(slot + 1 == it.num_chunks && shift == 4 &&
                                                   (slot + closed_begin / 16) * 16 >= whole_end);
        if (written) {
          read_slot(it, place + slot * (DV + 2), eight_heads, first_channel, part[k]);
        }
      }
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        const int slot = first + k;
        if (slot < num_slots && leaf < closed_end) {
          fold.end_groups(leaf);
          if (leaf < whole_end) {
            const int next = ((leaf >> shift) + 1) << shift;
            if (shift == 4 || (shift == 2 && next <= whole_end)) { /* nothing else joins the group of 4 */
              fold.join_sixteen(part[k]);
            } else {
              fold.four.join(part[k]);
            }
            leaf = min(next, whole_end);
          } else if (slot == it.num_chunks) {
            fold.four.join(part[k]);
            leaf = closed_end;
          }
        }
      }
    }
  }

  __device__ __forceinline__ void run(const item &it) {
    const int first_channel = threadIdx.x / 32 * shape::blocks * 8;
    const int closed_begin = it.shared_begin / TA_LEAF;
    const int closed_end = it.shared_end / TA_LEAF;
    const int tiles_end = (it.last_position + TA_IMAGE_TILE - 1) / TA_IMAGE_TILE;
    constexpr int leaf_tiles = TA_LEAF / TA_IMAGE_TILE;
    ta_copy_wait<0>(); /* an item without keys of its own has not waited for its queries */
    __syncthreads();
    load_queries(it);
    /* The first tile of the row's own is copied while the first stage still runs. */
    const bool shared = it.shared_end > it.shared_begin;
    const bool own_first = !shared || it.leaf_begin < it.shared_begin / TA_LEAF;
    const int begun = shape::tight ? -1 : own_first ? it.leaf_begin * leaf_tiles : it.shared_end / TA_IMAGE_TILE;
    uint64_t seen = 0;
    if (begun >= 0 && begun < tiles_end) {
      seen = begin_tile(it, begun);
    }
    ta_wait_for_dependencies();
    folds<shape::blocks, threads, shape::park> fold;
    fold.clear((float *)(memory + shape::parked) + threadIdx.x);
    int leaf = own_first ? it.leaf_begin : closed_begin;
    while (leaf < it.leaf_end) {
      if (leaf >= closed_begin && leaf < closed_end) {
        fold_slots(it, fold, closed_begin, closed_end);
        leaf = closed_end;
        continue;
      }
      fold.end_groups(leaf);
      state<shape::blocks> part;
      part.clear();
      int tile = leaf * leaf_tiles;
      if (shared && leaf == closed_end && it.shared_end % TA_LEAF != 0) { /* the open leaf goes on */
        const int channel = first_channel + 2 * (threadIdx.x & 3);
        read_slot(it, slot_place(it, channel) + (it.num_slots - 1) * (DV + 2), (int64_t)8 * it.num_slots * (DV + 2),
                  channel, part);
        tile = it.shared_end / TA_IMAGE_TILE;
      }
      const int end = min((leaf + 1) * leaf_tiles, tiles_end);
      for (; tile < end; ++tile) {
        if (tile != begun) {
          seen = begin_tile(it, tile);
        }
        end_tile(it, seen, part);
      }
      fold.four.join(part);
      ++leaf;
    }
    fold.end_four();
    fold.end_sixteen();
    state<shape::blocks> total;
    fold.total.get(total);
    write_rows(it, total, first_channel);
  }

  __device__ __forceinline__ void write_rows(const item &it, state<shape::blocks> &total, int first_channel) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = lane / 4 + 8 * r;
      if (head < it.num_heads) {
        const int h = it.g * params.group + it.first_head + head;
        ta_state end = {total.rows.max[r], total.rows.sum[r]};
        const float factor = ta_join_sink(params, h, &end);
        const int64_t element = it.node_row * params.out_stride_row + h * params.out_stride_head;
        const float scale = __fmul_rn(factor, __frcp_rn(end.sum));
#pragma unroll
        for (int b = 0; b < shape::blocks; ++b) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float value = ta_state_is_empty(end) ? 0.0f : __fmul_rn(total.out[b][2 * r + e], scale);
            ta_store_out(params, element + first_channel + 8 * b + 2 * (lane & 3) + e, value);
          }
        }
        if (threadIdx.x < 32 && (lane & 3) == 0) {
          ta_store_lse(params, it.node_row, h, end);
        }
      }
    }
  }
};

template <int D, int DV, bool BF16>
__global__ void __launch_bounds__(finish_layout<D, DV>::threads, finish_layout<D, DV>::min_blocks)
    finish_kernel(const __grid_constant__ ta_cuda_params params, int split) {
  extern __shared__ __align__(16) unsigned char raw[];
  unsigned char *memory = raw;
  const ta_image_header *header = ta_image_check(params);
  if (blockIdx.x == 0 && threadIdx.x == 0 && params.status != nullptr) {
    *params.status = ta_image_status(params);
  }
  if (header == nullptr) {
    ta_wait_for_dependencies();
    return;
  }
  const int64_t num_items = header->num_rows * params.num_kv_heads * ((params.group + 15) / 16);
  finisher<D, DV, BF16> finish = {params, header->unit_leaves, memory, split != 0};
  __shared__ item it; /* the same for all threads: not worth their registers */
  for (int64_t n = blockIdx.x; n < num_items; n += gridDim.x) {
    __syncthreads();
    if (threadIdx.x == 0) {
      it = find_item(params, header, n, DV);
    }
    __syncthreads();
    finish.run(it);
  }
}

template <int D, int DV, bool BF16>
cudaError_t launch_finish(const ta_cuda_params &params, int num_multiprocessors, int64_t num_rows, bool split,
                          bool overlap, cudaStream_t stream) {
  using shape = finish_layout<D, DV>;
  const int bytes = shape::bytes;
  cudaError_t code = cudaFuncSetAttribute(finish_kernel<D, DV, BF16>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (code != cudaSuccess) {
    return code;
  }
  const int64_t items = num_rows * params.num_kv_heads * ((params.group + 15) / 16);
  const int64_t most = (int64_t)num_multiprocessors * 16;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((unsigned)(items < most ? items : most));
  config.blockDim = dim3(32 * shape::num_warps);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, finish_kernel<D, DV, BF16>, params, (int)split);
}

}  // namespace ta_fast

#endif
