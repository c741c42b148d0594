/* SPDX-License-Identifier: Apache-2.0 */
/* What all kernels read and write in the same way: the image, what a row sees, addresses, queries, results. */
#ifndef TA_CUDA_DEVICE_CUH
#define TA_CUDA_DEVICE_CUH

#define CUDA_NO_HALF /* its short names would be shadowed by everybody */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <treeattn/base.h>

#include "../softmax_state.h"
#include "params.h"

/* Whether the image is one that this run was made for: a treeattn_status. The image may have been replaced since the
 * run was captured, so that only the device can tell. */
__device__ __forceinline__ int32_t ta_image_status(const ta_cuda_params &params) {
  const ta_image_header *header = (const ta_image_header *)params.image;
  if (params.image_bytes < sizeof *header || header->magic != TA_IMAGE_MAGIC || header->num_heads != params.num_heads ||
      header->num_kv_heads != params.num_kv_heads || header->head_dim != params.head_dim ||
      header->head_dim_v != params.head_dim_v || header->kv_dtype != params.kv_dtype || header->fast != params.fast ||
      header->block_rows != params.block_rows) {
    return TREEATTN_ERROR_INVALID_ARGUMENT;
  }
  if (header->image_bytes > params.image_bytes || header->scratch_bytes > params.scratch_bytes ||
      header->num_rows > params.max_rows) {
    return TREEATTN_ERROR_BUFFER_TOO_SMALL;
  }
  return TREEATTN_OK;
}

/* The header of the image, or NULL where the run must write nothing but its status. */
__device__ __forceinline__ const ta_image_header *ta_image_check(const ta_cuda_params &params) {
  return ta_image_status(params) == TREEATTN_OK ? (const ta_image_header *)params.image : nullptr;
}

/* The request that a unit of stage 0 belongs to: the last one whose first unit is not behind it, since requests without
 * units share their number with the next. `first` is a request known not to be behind it. */
__device__ __forceinline__ int32_t ta_request_of_unit(const ta_cuda_params &params, const ta_image_header *header,
                                                      int64_t unit, int32_t first) {
  const ta_image_request *requests = (const ta_image_request *)(params.image + header->requests);
  int32_t low = first;
  int32_t high = header->num_requests;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (requests[middle].first_unit <= unit) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* The cache slot of the key that a row sees at a position, or -1 if it sees none there. */
__device__ __forceinline__ int32_t ta_visible_slot(const ta_cuda_params &params, const ta_image_header *header,
                                                   const ta_image_request *request, const ta_image_row *row,
                                                   int32_t position) {
  if (position >= request->prefix_len) {
    const int32_t offset = position - request->prefix_len;
    return offset < row->tail_len ? ((const int32_t *)(params.image + header->slots))[row->slots + offset] : -1;
  }
  if (position < row->prefix_first) {
    return -1;
  }
  if (row->bits >= 0) {
    const uint64_t *bits = (const uint64_t *)(params.image + header->bits) + row->bits;
    return (bits[position / 64] >> (position % 64) & 1) != 0 ? position : -1;
  }
  return position;
}

/* The bias of a seen slot, in natural units; 0 where the request has none. */
__device__ __forceinline__ float ta_bias_of(const ta_cuda_params &params, const ta_image_header *header,
                                            const ta_image_row *row, int32_t slot) {
  return slot < row->bias_first_slot ? 0.0f : ((const float *)(params.image + header->bias))[row->bias + slot];
}

/* Elements from the start of K or V to the row of (slot, KV head g). */
__device__ __forceinline__ int64_t ta_cache_element(const ta_cuda_params &params, const ta_image_header *header,
                                                    const ta_image_request *request, int32_t slot, int32_t g,
                                                    int64_t stride_page, int64_t stride_head, int64_t stride_slot) {
  if (!params.paged) {
    return request->cache_index * stride_page + g * stride_head + slot * stride_slot;
  }
  /* Slots are below 2^31: a larger page holds them all. */
  const uint32_t page_size = params.page_size < INT32_MAX ? (uint32_t)params.page_size : (uint32_t)INT32_MAX;
  const uint32_t page = (uint32_t)slot / page_size;
  const int32_t *pages = (const int32_t *)(params.image + header->pages) + request->pages;
  return pages[page] * stride_page + g * stride_head + (int64_t)((uint32_t)slot - page * page_size) * stride_slot;
}

/* The bits of element `element` of q as they lie in memory: what is loaded ahead of its use. */
__device__ __forceinline__ uint32_t ta_load_query_bits(const ta_cuda_params &params, int64_t element) {
  return params.q_dtype == TREEATTN_F32 ? ((const uint32_t *)params.q)[element] : ((const uint16_t *)params.q)[element];
}

/* The number that they mean, exactly. */
__device__ __forceinline__ float ta_query_from_bits(const ta_cuda_params &params, uint32_t bits) {
  if (params.q_dtype == TREEATTN_F32) {
    return ta_float_from_bits(bits);
  }
  return params.q_dtype == TREEATTN_F16 ? __half2float(__ushort_as_half((uint16_t)bits))
                                        : ta_float_from_bits(bits << 16);
}

/* Stores element `element` of out, rounded to nearest even; a NaN is always the same one. */
__device__ __forceinline__ void ta_store_out(const ta_cuda_params &params, int64_t element, float value) {
  const bool nan = value != value;
  if (params.out_dtype == TREEATTN_F32) {
    ((float *)params.out)[element] = nan ? ta_quiet_nan() : value;
  } else if (params.out_dtype == TREEATTN_F16) {
    ((uint16_t *)params.out)[element] = nan ? (uint16_t)0x7e00 : __half_as_ushort(__float2half_rn(value));
  } else {
    ((uint16_t *)params.out)[element] = nan ? (uint16_t)0x7fc0 : __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
}

/* The end of a row: joins the sink of head h into *state and returns what the row's values are multiplied by. An empty
 * row stays empty. */
__device__ __forceinline__ float ta_join_sink(const ta_cuda_params &params, int32_t h, ta_state *state) {
  if (params.sinks == nullptr || ta_state_is_empty(*state) || params.sinks[h] == -INFINITY) {
    return 1.0f;
  }
  return ta_state_merge_sink(state, params.sinks[h]).weight_a;
}

/* An element of out from its sum, the factor of ta_join_sink and the state that it left. */
__device__ __forceinline__ float ta_finish_element(float sum_of_values, float factor, ta_state state) {
  return ta_state_is_empty(state) ? 0.0f : __fdiv_rn(__fmul_rn(sum_of_values, factor), state.sum);
}

/* Stores the lse of a row, if it is asked for. `row` counts the nodes of the batch. */
__device__ __forceinline__ void ta_store_lse(const ta_cuda_params &params, int64_t row, int32_t h, ta_state state) {
  if (params.lse != nullptr) {
    params.lse[row * params.lse_stride_row + h * params.lse_stride_head] = ta_state_lse(state);
  }
}

#endif
