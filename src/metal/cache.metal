/* SPDX-License-Identifier: Apache-2.0 */
/* How the first pass reaches the KV cache: which keys a tile of rows sees, where they lie, and loads in f32. */
#ifndef TA_METAL_CACHE
#define TA_METAL_CACHE

#include "elementary.metal"

/* Known when a pipeline is built, so that loops have fixed lengths and one load verb is left. */
constant uint head_dim [[function_constant(0)]];
constant uint head_dim_v [[function_constant(1)]];
constant uint kv_type [[function_constant(2)]]; /* a treeattn_dtype */

enum { TA_KV_F32 = 1, TA_KV_F16 = 2 };

/* Elements are aligned, rows are not: strides are free. Packed vectors ask for no more than that. */
inline float4 load4(device const uchar *cache, int64_t element) {
  if (kv_type == TA_KV_F32) {
    return float4(*(device const packed_float4 *)(cache + 4 * element));
  }
  if (kv_type == TA_KV_F16) {
    return float4(half4(*(device const packed_half4 *)(cache + 2 * element)));
  }
  return as_type<float4>(uint4(ushort4(*(device const packed_ushort4 *)(cache + 2 * element))) << 16);
}

inline float load1(device const uchar *cache, int64_t element) {
  if (kv_type == TA_KV_F32) {
    return *(device const float *)(cache + 4 * element);
  }
  if (kv_type == TA_KV_F16) {
    return float(*(device const half *)(cache + 2 * element));
  }
  return as_type<float>(uint(*(device const ushort *)(cache + 2 * element)) << 16);
}

/* One threadgroup's work on one leaf. */
struct work_on_leaf {
  device const uchar *plan; /* offsets of the device part count from here */
  device const ta_metal_request *request;
  device const ta_metal_tile *tile;
  device const ta_metal_leaf *leaf; /* nullptr: plain */
  int g;
  int base; /* the leaf's first position */
  uint lane;
};

inline int first_key(work_on_leaf w, int block) {
  return w.leaf == nullptr ? block * TA_BLOCK : w.leaf->block_first[block];
}

inline uint rows_of_tile(work_on_leaf w) {
  return (1u << w.tile->num_rows) - 1;
}

/* Rows of a tile are (node, head) pairs. */
inline int node_of_row(constant ta_metal_params &params, work_on_leaf w, int r) {
  return (w.tile->first + r) / params.group;
}

inline int head_of_row(constant ta_metal_params &params, work_on_leaf w, int r) {
  return w.g * params.group + (w.tile->first + r) % params.group;
}

/* Lays out `count` keys from number `first` on, one a lane: where they lie in K or V, and which rows see them. */
inline void fetch_keys(constant ta_metal_params &params, work_on_leaf w, threadgroup ta_metal_shared *shared, int first,
                       int count, int64_t stride_page, int64_t stride_head, int64_t stride_slot) {
  if (int(w.lane) >= count) {
    return;
  }
  const int n = first + int(w.lane);
  int slot = w.base + n;
  uint place = uint(n) | rows_of_tile(w) << 16;
  if (w.leaf != nullptr) {
    device const ta_metal_key *keys =
        (device const ta_metal_key *)(w.plan + ((device const ta_metal_plan *)w.plan)->keys) + w.leaf->keys;
    slot = keys[n].slot;
    place = keys[n].place;
  }
  int64_t page = w.request->cache_index;
  int within = slot;
  if (params.page_size != 0) {
    page = ((device const int32_t *)(w.plan + w.request->page_table))[slot / params.page_size];
    within = slot % params.page_size;
  }
  shared->key_offset[w.lane] = page * stride_page + w.g * stride_head + within * stride_slot;
  shared->key_slot[w.lane] = slot;
  shared->key_place[w.lane] = place;
}

#endif
