/* SPDX-License-Identifier: Apache-2.0 */
/* The graph of one pass. */
#ifndef GENERATE_GRAPH_H
#define GENERATE_GRAPH_H

#include "forward.h"

typedef struct gen_graph {
  struct ggml_context *context;
  struct ggml_cgraph *graph;
  struct ggml_tensor *tokens, *positions, *logit_rows; /* inputs, i32 */
  struct ggml_tensor *masks[GEN_NUM_PLANS];            /* inputs of ggml's attention, or NULL */
  struct ggml_tensor *logits;
} gen_graph;

size_t gen_graph_memory_bytes(const gen_model *model);
/* Describes the pass; nothing has data afterwards but weights and cache. */
treeattn_status gen_graph_build(gen_forward *forward, const gen_pass *pass, gen_graph *graph, treeattn_error *error);

/* What forward.c runs inside the graph, ith of nth threads. */
void gen_node_store(struct ggml_tensor *dst, int ith, int nth, void *layer);
void gen_node_attend(struct ggml_tensor *dst, int ith, int nth, void *layer);
void gen_node_combine(struct ggml_tensor *dst, const struct ggml_tensor *src, int ith, int nth, void *layer);

#endif
