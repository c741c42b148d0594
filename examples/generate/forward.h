/* SPDX-License-Identifier: Apache-2.0 */
/* One pass of the model over a chain or a tree of tokens: ggml's operators around the library's attention. */
#ifndef GENERATE_FORWARD_H
#define GENERATE_FORWARD_H

#include <ggml-alloc.h>
#include <ggml-cpu.h>
#include <treeattn/attention.h>

#include "cache.h"
#include "model.h"

/* Whose attention: the other two are there to be compared with. */
typedef enum gen_attention { GEN_ATTENTION_TREE, GEN_ATTENTION_GGML_FLASH, GEN_ATTENTION_GGML_SOFTMAX } gen_attention;

/* Two plans at most: one for layers that see everything, one for layers with a window. */
enum { GEN_NUM_PLANS = 2 };

typedef struct gen_planned {
  treeattn_plan *plan;
  void *memory;
  size_t memory_bytes;
  treeattn_plan_info info;
} gen_planned;

typedef struct gen_forward gen_forward;

/* What an attention node of the graph finds behind its pointer. */
typedef struct gen_layer_run {
  gen_forward *forward;
  const treeattn_plan *plan;
  treeattn_run_args run;
  struct ggml_tensor *query, *attended;
} gen_layer_run;

struct gen_forward {
  const gen_model *model;
  gen_cache cache;
  gen_attention attention;
  int num_threads;
  int64_t max_rows;

  gen_planned planned[GEN_NUM_PLANS];
  gen_layer_run *layers;
  int64_t prefix_len, num_rows; /* of the pass that runs */

  struct ggml_threadpool *pool;
  ggml_gallocr_t allocator;
  void *graph_memory; /* tensors and graph, without their data */
  size_t graph_memory_bytes;
  void *work, *scratch;
  size_t work_bytes, scratch_bytes;

  float *
      kept_queries; /* [num_layers][max_rows][num_heads * head_dim], written by each pass; NULL: not kept. The caller's */

  double attention_seconds, total_seconds; /* since the start; the attention's are those of one thread */
  double attention_started;
};

/* Makes room for `capacity` cache slots and passes of up to max_rows rows. */
treeattn_status gen_forward_create(const gen_model *model, int64_t capacity, int64_t max_rows, int num_threads,
                                   gen_forward **forward, treeattn_error *error);
void gen_forward_destroy(gen_forward *forward);

typedef struct gen_pass {
  const int32_t *tokens;  /* [num_rows] */
  const int32_t *parents; /* NULL: a chain */
  int64_t num_rows;
  int64_t prefix_len;     /* slots 0 .. prefix_len - 1 are seen; row i goes to slot prefix_len + i */
  int64_t num_logit_rows; /* the last ones of the rows */
} gen_pass;

/* *logits is [num_logit_rows][vocab_size] and stays until the next pass. */
treeattn_status gen_forward_run(gen_forward *forward, const gen_pass *pass, const float **logits,
                                treeattn_error *error);

/* Bytes of the arrays that ggml reuses between the operators of a pass. */
size_t gen_forward_activation_bytes(const gen_forward *forward);

#endif
