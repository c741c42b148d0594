/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stage 1 of the fast mode: one node and up to 16 heads of a KV head in a thread block. What the node does not share with
 * all others (its branch of the tree, the edge of a window, what a mask hides) is gathered by position and multiplied by
 * mma.sync, whose rows have the bits of wgmma's; then everything is folded in order of position and written.
 */
#ifndef TA_CUDA_FAST_FINISH_CUH
#define TA_CUDA_FAST_FINISH_CUH

#include "../order.h"
#include "device.cuh"
#include "fast.cuh"
#include "fast_fold.cuh"
#include "fast_item.cuh"
#include "fast_softmax.cuh"
#include "params.h"
#include "ptx.cuh"

namespace ta_fast {

template <int D, int DV>
struct finish_layout {
  static constexpr int num_warps = DV > 128 ? 8 : 4;
  static constexpr int threads = 32 * num_warps;
  /* Registers for three on a multiprocessor also let one start beside a block of the first stage that has 64 rows. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr int min_blocks = 1; /* there is no first stage to start beside */
#else
  static constexpr int min_blocks = DV <= 128 ? 3 : 1;
#endif
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
