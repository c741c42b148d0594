/* SPDX-License-Identifier: Apache-2.0 */
/* What every kernel of a run is given by value: pointers of the layer and the shapes that all layers share. */
#ifndef TA_CUDA_PARAMS_H
#define TA_CUDA_PARAMS_H

#include <stdint.h>

#include "image.h"

typedef struct ta_cuda_params {
  const unsigned char *image;
  const void *q, *k, *v;
  const float *sinks; /* or NULL */
  void *out;
  float *lse; /* or NULL */
  float *scratch;
  int32_t *status;                     /* or NULL */
  uint64_t image_bytes, scratch_bytes; /* of the caller's buffers */
  int64_t max_rows;                    /* query nodes that q, out and lse hold */
  int64_t q_stride_head, q_stride_row, out_stride_row, out_stride_head, lse_stride_row, lse_stride_head;
  int64_t k_stride_page, k_stride_head, k_stride_slot, v_stride_page, v_stride_head, v_stride_slot;
  int64_t page_size; /* contiguous: the capacity */
  int32_t paged;
  int32_t num_heads, num_kv_heads, group, head_dim, head_dim_v;
  int32_t q_dtype, out_dtype, kv_dtype;
  int32_t fast, block_rows;
  /* Scores are in units of log2: exact mode scales queries by hi + lo, fast mode scores by hi; then cap * tanh(score)
   * where cap is not 0. */
  float scale_hi, scale_lo, cap;
} ta_cuda_params;

#endif
