/* SPDX-License-Identifier: Apache-2.0 */
/* One node and some of its heads, for the second stage of the fast mode: what it sees and where that lies. */
#ifndef TA_CUDA_FAST_ITEM_CUH
#define TA_CUDA_FAST_ITEM_CUH

#include "device.cuh"
#include "fast_fold.cuh"
#include "params.h"
#include "ptx.cuh"

namespace ta_fast {

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

}  // namespace ta_fast

#endif
