/* SPDX-License-Identifier: Apache-2.0 */
/* How the first stage of the fast mode is cut into units, and how their keys and values get into shared memory. */
#ifndef TA_CUDA_FAST_LOAD_SM90_CUH
#define TA_CUDA_FAST_LOAD_SM90_CUH

#include "../order.h"
#include "device.cuh"
#include "params.h"
#include "ptx.cuh"
#include "wgmma.cuh"

namespace ta_fast {

/* How a kernel for these head dimensions is laid out. */
template <int D, int DV>
struct layout {
  static constexpr bool split_channels = DV > 256;
  static constexpr int channels = split_channels ? DV / 2 : DV; /* of one multiplying group */
  static constexpr int registers = channels / 2;
  static constexpr int key_panels = (D + 63) / 64;
  static constexpr int value_panels = (DV + 63) / 64;
  static constexpr int slot_bytes = (key_panels > value_panels ? key_panels : value_panels) * TA_PANEL_BYTES;
  static constexpr bool fold_in_shared = channels <= 128 && !split_channels;
  static constexpr int fold_bytes = fold_in_shared ? registers * 128 * 4 : 0; /* of one multiplying group */
};

/* The piece of a panel row that 16 bytes of column `chunk` of row `row` lie in. */
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  return (uint32_t)((chunk >> 3) * TA_PANEL_BYTES + row * 128 + (((chunk & 7) ^ (row & 7)) << 4));
}

/* One unit of work, decoded, with what is needed of its request: memory is not asked again. */
struct unit {
  int64_t cache_index, pages, first_row, partial_base;
  int num_rows; /* nodes times heads of the group */
  int num_chunks, num_slots;
  int g, block, chunk;
  int closed, leaf_end; /* the first leaf that is not closed; the last leaf of the unit + 1, the open one included */
  int tile_begin, tile_end;
};

__device__ __forceinline__ unit decode_unit(const ta_image_header *header, const ta_cuda_params &params,
                                            int64_t index) {
  const ta_image_request &request =
      ((const ta_image_request *)(params.image + header->requests))[ta_request_of_unit(params, header, index, 0)];
  unit u;
  u.cache_index = request.cache_index;
  u.pages = request.pages;
  u.first_row = request.first_row;
  u.partial_base = request.partial_base;
  u.num_rows = request.num_rows * params.group;
  u.num_chunks = request.num_chunks;
  u.num_slots = request.num_slots;
  const uint32_t offset = (uint32_t)(index - request.first_unit);
  const uint32_t blocks = (uint32_t)request.num_row_blocks;
  const uint32_t column = offset / blocks;
  u.block = (int)(offset % blocks);
  u.g = (int)(column % (uint32_t)params.num_kv_heads);
  u.chunk = (int)(column / (uint32_t)params.num_kv_heads);
  const int unit_leaves = header->unit_leaves;
  const int first = request.shared_begin / TA_LEAF;
  const int last = (request.shared_end + TA_LEAF - 1) / TA_LEAF;
  const int chunk = first / unit_leaves + u.chunk;
  u.closed = request.shared_end / TA_LEAF;
  u.leaf_end = min(last, (chunk + 1) * unit_leaves);
  u.tile_begin = max(first, chunk * unit_leaves) * (TA_LEAF / TA_IMAGE_TILE);
  u.tile_end = min(u.leaf_end * (TA_LEAF / TA_IMAGE_TILE), request.shared_end / TA_IMAGE_TILE);
  return u;
}

/* Where the ring stands: slot and the parity of its barriers' phase. */
struct ring {
  int slot;
  uint32_t phase;

  __device__ __forceinline__ void advance(int num_slots) {
    if (++slot == num_slots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

/* ---- loading ---- */

/* Rows of one cache, K or V, for the units of one KV head: 8 threads take 128 bytes of a row, so that a thread has rows
 * thread / 8 + 16 n of every tile and always the same swizzle. */
template <int CHUNKS>
struct loader {
  static constexpr int panels = (CHUNKS + 7) / 8;
  const unsigned char *base; /* of the KV head (and the sequence, in a contiguous cache), at this thread's column */
  int64_t stride_slot, stride_page; /* bytes */

  __device__ __forceinline__ void begin(const ta_cuda_params &params, const unit &u, const void *cache,
                                        int64_t stride_page_elements, int64_t stride_head, int64_t stride_slot_elements) {
    stride_slot = 2 * stride_slot_elements;
    stride_page = 2 * stride_page_elements;
    base = (const unsigned char *)cache + 2 * u.g * stride_head + 16 * (threadIdx.x & 7) +
           (params.paged ? 0 : u.cache_index * stride_page);
  }

  __device__ __forceinline__ void copy_row(uint32_t target, const unsigned char *source) const {
    const int chunk = threadIdx.x & 7;
#pragma unroll
    for (int panel = 0; panel < panels; ++panel) {
      if (CHUNKS % 8 == 0 || panel + 1 < panels || chunk < CHUNKS % 8) {
        ta_copy_16(target + panel * TA_PANEL_BYTES, source + panel * 128);
      }
    }
  }

  __device__ __forceinline__ void load(const ta_cuda_params &params, const int32_t *pages, uint32_t page_size,
                                       int page_shift, int tile, uint32_t slot) const {
    const int thread = threadIdx.x & 127;
    const uint32_t target = slot + (thread / 8) * 128 + ((((uint32_t)thread & 7) ^ ((uint32_t)(thread / 8) & 7)) << 4);
    const uint32_t position = (uint32_t)(tile * TA_IMAGE_TILE + thread / 8);
    if (!params.paged) {
      const unsigned char *source = base + position * stride_slot;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        copy_row(target + n * 2048, source + n * 16 * stride_slot);
      }
      return;
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const uint32_t p = position + 16 * n;
      const uint32_t index = page_shift >= 0 ? p >> page_shift : p / page_size;
      copy_row(target + n * 2048, base + pages[index] * stride_page + (p - index * page_size) * stride_slot);
    }
  }
};

template <int D, int DV>
__device__ __forceinline__ void load_units(const ta_cuda_params &params, const ta_image_header *header, uint32_t slots,
                                           uint32_t full, uint32_t empty, int num_slots) {
  ring at = {0, 0};
  const int32_t *page_tables = (const int32_t *)(params.image + header->pages);
  const int64_t num_units = header->num_units;
  /* Slots are below 2^31: a larger page holds them all. */
  const uint32_t page_size = params.page_size < INT32_MAX ? (uint32_t)params.page_size : (uint32_t)INT32_MAX;
  const int page_shift = (page_size & (page_size - 1)) == 0 ? 31 - __clz((int)page_size) : -1;
  for (int64_t index = blockIdx.x; index < num_units; index += gridDim.x) {
    const unit u = decode_unit(header, params, index);
    loader<D / 8> keys;
    loader<DV / 8> values;
    keys.begin(params, u, params.k, params.k_stride_page, params.k_stride_head, params.k_stride_slot);
    values.begin(params, u, params.v, params.v_stride_page, params.v_stride_head, params.v_stride_slot);
    const int32_t *pages = page_tables + max(u.pages, (int64_t)0);
    const auto take_slot = [&]() {
      ta_barrier_wait(empty + 8 * at.slot, at.phase ^ 1);
      return slots + at.slot * layout<D, DV>::slot_bytes;
    };
    const auto fill_slot = [&]() {
      ta_copy_arrive(full + 8 * at.slot);
      at.advance(num_slots);
    };
    /* K0, then K1 V0, K2 V1, ..., and the last V. */
    keys.load(params, pages, page_size, page_shift, u.tile_begin, take_slot());
    fill_slot();
    for (int tile = u.tile_begin; tile < u.tile_end; ++tile) {
      if (tile + 1 < u.tile_end) {
        keys.load(params, pages, page_size, page_shift, tile + 1, take_slot());
        fill_slot();
      }
      values.load(params, pages, page_size, page_shift, tile, take_slot());
      fill_slot();
    }
  }
  ta_copy_wait<0>(); /* nothing may be on its way into shared memory when the block ends */
}

}  // namespace ta_fast

#endif
