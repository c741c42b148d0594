/* SPDX-License-Identifier: Apache-2.0 */
/* What the host hands to the Metal kernels: the layouts and sizes that both sides of the language border must agree on. */
#ifndef TA_METAL_PARAMS_H
#define TA_METAL_PARAMS_H

#ifndef __METAL_VERSION__
#include <stdint.h>
#endif

#include "../order.h"

/* One threadgroup of the first pass holds a tile of rows against a leaf. */
enum {
  TA_METAL_ROWS = 8,          /* (node, head) pairs that share each load of K and V */
  TA_METAL_LANES = 128,       /* threads of a threadgroup */
  TA_METAL_SLICE = 32,        /* channels of K that wait in threadgroup memory at a time ... */
  TA_METAL_SLICE_STRIDE = 36, /* ... padded, so that keys do not share a memory bank, in steps of a float4 */
  TA_METAL_ALL_ROWS = (1 << TA_METAL_ROWS) - 1,
  TA_METAL_MAGIC = 0x74616d31
};

/* Argument indices. Buffer 0 is always ta_metal_params, buffer 1 the device part of the plan. */
enum {
  TA_METAL_PARAMS = 0,
  TA_METAL_PLAN = 1,
  TA_METAL_ATTEND_Q = 2,
  TA_METAL_ATTEND_K = 3,
  TA_METAL_ATTEND_V = 4,
  TA_METAL_ATTEND_PARTIAL = 5,
  TA_METAL_COMBINE_PARTIAL = 2,
  TA_METAL_COMBINE_SINKS = 3,
  TA_METAL_COMBINE_OUT = 4,
  TA_METAL_COMBINE_LSE = 5
};

/* Function constants. */
enum { TA_METAL_HEAD_DIM = 0, TA_METAL_HEAD_DIM_V = 1, TA_METAL_KV_TYPE = 2 };

/* Strides count elements. */
typedef struct ta_metal_params {
  int64_t q_stride_head, q_stride_row;
  int64_t out_stride_row, out_stride_head, lse_stride_row, lse_stride_head;
  int64_t k_stride_page, k_stride_head, k_stride_slot;
  int64_t v_stride_page, v_stride_head, v_stride_slot;
  int32_t num_heads, group; /* group: query heads of a KV head */
  int32_t page_size;        /* 0: contiguous */
  int32_t has_sinks, has_lse;
  float scale_hi, scale_lo; /* what queries are multiplied by, in two parts */
  float cap;                /* softcap in units of log2, 0: none */
  float one, zero;          /* 1 and 0, which the compiler must not know: see elementary.metal */
} ta_metal_params;

/* ---- the device part of a plan: a header, then arrays at byte offsets from it ---- */

typedef struct ta_metal_plan {
  int64_t bytes, scratch_bytes;                 /* of the device part, and of the partial results */
  int64_t requests, tiles, leaves, keys;        /* offsets: ta_metal_request [], ta_metal_tile [], ... */
  int64_t request_of_row;                       /* offset: int32_t [num_rows] */
  int64_t q_bytes, k_bytes, v_bytes, out_bytes; /* the plan that it was written for */
  int32_t num_rows, num_tiles, num_kv_heads, num_heads;
  int32_t num_chunks; /* the most that any request has */
  int32_t magic;
} ta_metal_plan;

typedef struct ta_metal_request {
  int64_t partial;    /* floats before its partial results, [row][head][chunk][2 + head_dim_v] */
  int64_t page_table; /* offset: int32_t []; 0: contiguous */
  int64_t bias;       /* offset: float [row][bias_columns]; 0: none */
  int64_t bias_columns;
  int64_t cache_index;
  int32_t bias_first_slot;
  int32_t first_row;
  int32_t leaf_begin, leaf_end;
  int32_t chunk_leaves, num_chunks; /* a chunk is the work of one threadgroup: 1 leaf or TA_GROUP_LEAVES */
} ta_metal_request;

/* Up to TA_METAL_ROWS neighbours in the order row * group + head, for every KV head. */
typedef struct ta_metal_tile {
  int64_t leaves; /* the first of its ta_metal_leaf, which are those of the request's leaves that are not plain */
  int32_t first;  /* in that order */
  int32_t request, num_rows;
  int32_t plain_begin, plain_end; /* leaves of which every row sees every position, all of them prefix */
  int32_t unused;
} ta_metal_tile;

/* Keys of a leaf that some row of the tile sees, by ascending position; block b has those from block_first[b] to
 * block_first[b + 1], counted from `keys`. Where rows differ in the slot at a position, each slot is a key. */
typedef struct ta_metal_leaf {
  int64_t keys;
  int32_t block_first[TA_LEAF_WORDS + 1];
  int32_t unused;
} ta_metal_leaf;

typedef struct ta_metal_key {
  int32_t slot;
  uint32_t place; /* offset in the leaf, and from bit 16 on the rows of the tile that see it */
} ta_metal_key;

/* ---- threadgroup memory of the first pass ---- */

typedef struct ta_metal_shared {
  float scores[TA_LEAF * TA_METAL_ROWS];          /* [position][row]: scores, then weights */
  float query[TA_METAL_ROWS * TA_CHANNELS];       /* [row][channel] */
  float slice[TA_BLOCK * TA_METAL_SLICE_STRIDE];  /* [key][channel] of K */
  float block_sum[TA_LEAF_WORDS * TA_METAL_ROWS]; /* [block][row] */
  int64_t key_offset[TA_BLOCK];                   /* of the keys at hand: element of K or V, slot, place */
  int64_t partial_offset[TA_METAL_ROWS];          /* of the row's {max, sum, out}, in floats */
  int32_t key_slot[TA_BLOCK];
  uint32_t key_place[TA_BLOCK];
  float leaf_max[TA_METAL_ROWS];
  float max[TA_METAL_ROWS], sum[TA_METAL_ROWS];           /* the state over the leaves so far */
  float weight_a[TA_METAL_ROWS], weight_b[TA_METAL_ROWS]; /* how the leaf joins it */
  int32_t kind[TA_METAL_ROWS];
} ta_metal_shared;

#endif
