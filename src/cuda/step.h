/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of the step are given by value, with all defaults put in. */
#ifndef TA_CUDA_STEP_H
#define TA_CUDA_STEP_H

#include <treeattn/treeattn_cuda_step.h>

#include <stdint.h>

/* How a vocabulary is summed: TA_WEIGHTS_BLOCK of the CPU, which test_cuda_step holds it to by comparing bits. */
enum { TA_STEP_BLOCK = 256 };

typedef struct ta_step_batch {
  const int32_t *offsets;
  int32_t num_requests, num_nodes, max_nodes;
} ta_step_batch;

typedef struct ta_expand_params {
  ta_step_batch batch;
  const int32_t *parents;
  const int32_t *prefix_lens; /* or NULL */
  int32_t *depths, *positions;
  treeattn_cuda_mask bits, bools, dense;
  int32_t prefix_columns;
  int32_t num_tiles; /* of one request */
  treeattn_cuda_outcome *outcomes;
} ta_expand_params;

typedef struct ta_verify_rows {
  const void *data; /* or NULL */
  int64_t stride;
  int32_t dtype;
} ta_verify_rows;

/* Where the parts of one request's scratch lie, in bytes from its start. */
typedef struct ta_verify_scratch {
  uint64_t target_values, target_sums; /* double [num_blocks][TA_STEP_BLOCK], [num_blocks] */
  uint64_t draft_values, draft_sums;   /* likewise */
  uint64_t partials;                   /* uint64_t [2][TA_STEP_MAX_TEAM] */
  uint64_t log_probabilities, depths;  /* double, int32_t [TA_STEP_MAX_TEAM][max_nodes] */
  uint64_t decisions;                  /* treeattn_verify_decision [max_nodes] */
  uint64_t bytes;                      /* of one request */
} ta_verify_scratch;

/* Thread blocks that may share a request: what a cluster holds everywhere. */
enum { TA_STEP_MAX_TEAM = 8 };

typedef struct ta_verify_params {
  ta_step_batch batch;
  int64_t vocab_size;
  int64_t num_blocks; /* of TA_STEP_BLOCK */
  const int32_t *parents, *tokens, *argmax;
  ta_verify_rows logits, probs, draft;
  const float *uniforms;
  treeattn_cuda_verify_settings settings;
  const treeattn_cuda_verify_settings *request_settings;
  int32_t *path, *path_tokens, *num_path, *last_tokens;
  treeattn_verify_decision *decisions;
  int32_t *num_decisions;
  treeattn_cuda_outcome *outcomes;
  unsigned char *scratch;
  ta_verify_scratch parts;
} ta_verify_params;

typedef struct ta_commit_group {
  void *const *tensors; /* or NULL */
  unsigned char *base;
  int64_t stride_tensor, stride_block, stride_head, stride_row;
  int64_t row_bytes;
  int32_t num_tensors, num_heads;
} ta_commit_group;

typedef struct ta_commit_params {
  ta_step_batch batch;
  const int32_t *path, *num_path, *prefix_lens, *cache_indices, *page_table;
  const treeattn_cuda_outcome *verified;
  int64_t page_size; /* 0: contiguous */
  int64_t num_slots; /* contiguous: of a sequence */
  int64_t num_blocks;
  int64_t page_table_stride;
  int32_t *next_prefix_lens;
  treeattn_cuda_outcome *outcomes;
  int32_t team; /* thread blocks for each request */
  int32_t num_groups;
  ta_commit_group groups[TREEATTN_CUDA_COMMIT_MAX_GROUPS];
} ta_commit_params;

#endif
