/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device part of a plan: what kernels read about lengths, trees and pages. Plain C, read by C and CUDA code alike.
 * Offsets are bytes from the start of the image, so that it can be copied anywhere.
 */
#ifndef TA_CUDA_IMAGE_H
#define TA_CUDA_IMAGE_H

#include <stdint.h>

enum {
  TA_IMAGE_MAGIC = 0x31494154, /* "TAI1" */
  TA_IMAGE_TILE = 64,          /* positions that the tensor-core kernels take at once */
  TA_FAST_GROUP_LEAVES = 4 /* fast mode folds leaves in groups of 4, and those in groups of TA_GROUP_LEAVES leaves */
};

/*
 * Stage 0 computes the shared leaves of a request: those of which every row sees every key and in which no key has a
 * bias. They are cut into chunks of unit_leaves leaves aligned to multiples of it, and rows into blocks of block_rows
 * (row = query node * group + head within the group); a unit is one (chunk, KV head, block), in that order, blocks
 * innermost, so that units that run side by side read the same keys.
 *
 * In fast mode the shared range may end inside a leaf, at a multiple of TA_IMAGE_TILE: that leaf is `open`, its state is
 * not folded into its chunk but handed to stage 1 in a slot of its own, the last one.
 *
 * Folding inside a unit must be what folding leaf by leaf gives. Units of 16 leaves of the fast mode fold groups of 4, so a
 * group of 4 that the shared range leaves incomplete, at its end, has a slot of its own, behind those of the chunks.
 * A unit longer than a leaf is only used where every shared range begins at a multiple of it.
 *
 * Stage 1 computes, for each row, the leaves (or the rest of the open one) that are not shared, folds everything in
 * order of position, and writes the row.
 *
 * Scratch: for each (row, query head) of a request num_slots states {max, sum, out[head_dim_v]} of f32, at
 * partial_base + ((row * num_heads + h) * num_slots + slot) * (head_dim_v + 2) floats.
 */
typedef struct ta_image_header {
  uint32_t magic;
  int32_t num_requests;
  uint64_t image_bytes, scratch_bytes;
  int64_t num_rows;  /* T: query nodes of the batch */
  int64_t num_units; /* of stage 0 */
  int32_t unit_leaves, block_rows;
  /* What the kernel was chosen for; compared before anything is done. */
  int32_t num_heads, num_kv_heads, head_dim, head_dim_v;
  int32_t kv_dtype, fast;
  uint64_t requests, rows, slots, pages, bits, bias; /* offsets of the arrays below */
} ta_image_header;

typedef struct ta_image_request {
  int64_t first_unit;   /* of stage 0 */
  int64_t first_row;    /* in the batch */
  int64_t cache_index;  /* contiguous cache */
  int64_t pages;        /* index of the page table's first entry in `pages`, or -1 */
  int64_t partial_base; /* floats */
  int32_t num_rows;     /* query nodes */
  int32_t prefix_len;
  int32_t shared_begin, shared_end; /* positions; begin is a multiple of a leaf; equal: nothing is shared */
  int32_t num_row_blocks;
  int32_t num_chunks;      /* of closed shared leaves */
  int32_t num_slots;       /* num_chunks, one more for an incomplete group of 4, one more if a leaf is open */
  int32_t num_unit_chunks; /* chunks that units are made of: num_chunks, and one more if the open leaf is in none of
                              them */
} ta_image_request;

typedef struct ta_image_row {
  int64_t slots; /* index in `slots` of position prefix_len: cache slots by position, -1 where the row sees nothing */
  int64_t bits;  /* index in `bits` of the row's words: bit p says that prefix position p is seen; or -1: all */
  int64_t bias;  /* index in `bias` of slot 0's bias (it may point before the array); valid from bias_first_slot on */
  int32_t bias_first_slot; /* INT32_MAX: no bias */
  int32_t request;
  int32_t position;
  int32_t prefix_first;         /* prefix positions before it are not seen */
  int32_t tail_len;             /* positions from prefix_len on that `slots` covers */
  int32_t leaf_begin, leaf_end; /* leaves in which the row may see a key */
  int32_t reserved;
} ta_image_row;

#endif
