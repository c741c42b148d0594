/* SPDX-License-Identifier: Apache-2.0 */
/* The graph of one pass: which operator follows which, for both architectures. */
#include "graph.h"

#include <math.h>

#include "fail.h"

/* Nodes of a layer with everything that either architecture has, and to spare. */
enum { NODES_OF_LAYER = 48, OTHER_NODES = 64 };

static size_t max_nodes(const gen_model *model) {
  return (size_t)model->num_layers * NODES_OF_LAYER + OTHER_NODES;
}

size_t gen_graph_memory_bytes(const gen_model *model) {
  return ggml_tensor_overhead() * max_nodes(model) + ggml_graph_overhead_custom(max_nodes(model), false) + 65536;
}

typedef struct builder {
  gen_forward *forward;
  gen_graph *graph;
  const gen_pass *pass;
} builder;

static struct ggml_tensor *norm(const builder *b, struct ggml_tensor *x, struct ggml_tensor *weight) {
  return ggml_mul(b->graph->context, ggml_rms_norm(b->graph->context, x, b->forward->model->norm_epsilon), weight);
}

static struct ggml_tensor *heads(const builder *b, struct ggml_tensor *x, int64_t num_heads) {
  return ggml_reshape_3d(b->graph->context, x, b->forward->model->head_dim, num_heads, b->pass->num_rows);
}

static struct ggml_tensor *rotate(const builder *b, struct ggml_tensor *x, float base) {
  const gen_model *model = b->forward->model;
  const int mode = model->architecture == GEN_LLAMA ? GGML_ROPE_TYPE_NORMAL : GGML_ROPE_TYPE_NEOX;
  return ggml_rope_ext(b->graph->context, x, b->graph->positions, NULL, (int)model->head_dim, mode, 0, base, 1.0f, 0.0f,
                       1.0f, 0.0f, 0.0f);
}

/* ---- attention ---------------------------------------------------------------------------------------------- */

static struct ggml_tensor *attend_tree(const builder *b, gen_layer_run *run, struct ggml_tensor *stored) {
  const gen_model *model = b->forward->model;
  struct ggml_context *context = b->graph->context;
  struct ggml_tensor *sources[2] = {run->query, stored};
  /* The two stages share one output: the second node is a view of the first, so that ggml keeps its memory. */
  struct ggml_tensor *attended =
      ggml_custom_4d(context, GGML_TYPE_F32, model->num_heads * model->head_dim, b->pass->num_rows, 1, 1, sources, 2,
                     gen_node_attend, GGML_N_TASKS_MAX, run);
  run->attended = attended;
  return ggml_map_custom1_inplace(context, attended, gen_node_combine, GGML_N_TASKS_MAX, run);
}

/* The cache as ggml sees it: [num_kv_heads][slots][head_dim] with the capacity between heads. */
static struct ggml_tensor *cached(const builder *b, void *data) {
  const gen_cache *cache = &b->forward->cache;
  const int64_t num_slots = b->pass->prefix_len + b->pass->num_rows;
  struct ggml_tensor *tensor =
      ggml_new_tensor_3d(b->graph->context, GGML_TYPE_F16, cache->head_dim, num_slots, cache->num_kv_heads);
  tensor->nb[2] = (size_t)cache->capacity * tensor->nb[1];
  tensor->nb[3] = tensor->nb[2] * (size_t)cache->num_kv_heads;
  tensor->data = data;
  return tensor;
}

static struct ggml_tensor *attend_ggml(const builder *b, int64_t l, struct ggml_tensor *query) {
  const gen_model *model = b->forward->model;
  struct ggml_context *context = b->graph->context;
  struct ggml_tensor *mask = b->graph->masks[model->layers[l].window == 0 ? 0 : 1];
  struct ggml_tensor *keys = cached(b, gen_cache_keys(&b->forward->cache, l));
  struct ggml_tensor *values = cached(b, gen_cache_values(&b->forward->cache, l));
  struct ggml_tensor *by_head = ggml_permute(context, query, 0, 2, 1, 3);
  const float scale = 1.0f / sqrtf((float)model->head_dim);
  struct ggml_tensor *out = NULL;
  if (b->forward->attention == GEN_ATTENTION_GGML_FLASH) {
    out = ggml_flash_attn_ext(context, by_head, keys, values, mask, scale, 0.0f, 0.0f);
  } else {
    struct ggml_tensor *scores = ggml_soft_max_ext(context, ggml_mul_mat(context, keys, by_head), mask, scale, 0.0f);
    struct ggml_tensor *mixed = ggml_mul_mat(context, ggml_cont(context, ggml_transpose(context, values)), scores);
    out = ggml_cont(context, ggml_permute(context, mixed, 0, 2, 1, 3));
  }
  return ggml_reshape_2d(context, out, model->num_heads * model->head_dim, b->pass->num_rows);
}

static struct ggml_tensor *attention(const builder *b, int64_t l, struct ggml_tensor *x) {
  const gen_model *model = b->forward->model;
  const gen_layer *layer = &model->layers[l];
  struct ggml_context *context = b->graph->context;
  gen_layer_run *run = &b->forward->layers[l];
  struct ggml_tensor *query = heads(b, ggml_mul_mat(context, layer->query, x), model->num_heads);
  struct ggml_tensor *key = heads(b, ggml_mul_mat(context, layer->key, x), model->num_kv_heads);
  struct ggml_tensor *value = heads(b, ggml_mul_mat(context, layer->value, x), model->num_kv_heads);
  if (layer->query_norm != NULL) {
    query = norm(b, query, layer->query_norm);
    key = norm(b, key, layer->key_norm);
  }
  query = rotate(b, query, layer->rope_base);
  key = rotate(b, key, layer->rope_base);
  run->query = query;
  struct ggml_tensor *sources[2] = {key, value};
  struct ggml_tensor *stored =
      ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, sources, 2, gen_node_store, GGML_N_TASKS_MAX, run);
  if (b->forward->attention == GEN_ATTENTION_TREE) {
    return ggml_mul_mat(context, layer->attn_output, attend_tree(b, run, stored));
  }
  /* ggml does not see that attention reads what this node writes; nodes run in the order in which they are added. */
  ggml_build_forward_expand(b->graph->graph, stored);
  return ggml_mul_mat(context, layer->attn_output, attend_ggml(b, l, query));
}

/* ---- layers ------------------------------------------------------------------------------------------------- */

static struct ggml_tensor *feed_forward(const builder *b, const gen_layer *layer, struct ggml_tensor *x) {
  struct ggml_context *context = b->graph->context;
  struct ggml_tensor *gate = ggml_mul_mat(context, layer->gate, x);
  struct ggml_tensor *up = ggml_mul_mat(context, layer->up, x);
  struct ggml_tensor *gated = b->forward->model->architecture == GEN_LLAMA ? ggml_swiglu_split(context, gate, up)
                                                                           : ggml_geglu_split(context, gate, up);
  return ggml_mul_mat(context, layer->down, gated);
}

static struct ggml_tensor *layer_of(const builder *b, int64_t l, struct ggml_tensor *x) {
  const gen_layer *layer = &b->forward->model->layers[l];
  struct ggml_context *context = b->graph->context;
  struct ggml_tensor *mixed = attention(b, l, norm(b, x, layer->attn_norm));
  if (layer->post_attn_norm != NULL) {
    mixed = norm(b, mixed, layer->post_attn_norm);
  }
  x = ggml_add(context, x, mixed);
  struct ggml_tensor *fed = feed_forward(b, layer, norm(b, x, layer->ffn_norm));
  if (layer->post_ffn_norm != NULL) {
    fed = norm(b, fed, layer->post_ffn_norm);
  }
  return ggml_add(context, x, fed);
}

static struct ggml_tensor *input(struct ggml_context *context, int64_t length) {
  struct ggml_tensor *tensor = ggml_new_tensor_1d(context, GGML_TYPE_I32, length);
  ggml_set_input(tensor);
  return tensor;
}

treeattn_status gen_graph_build(gen_forward *forward, const gen_pass *pass, gen_graph *graph, treeattn_error *error) {
  const gen_model *model = forward->model;
  const struct ggml_init_params params = {forward->graph_memory_bytes, forward->graph_memory, true};
  *graph = (gen_graph){0};
  graph->context = ggml_init(params);
  if (graph->context == NULL) {
    return gen_fail(error, TREEATTN_ERROR_OUT_OF_MEMORY, "ggml has no context left for a graph");
  }
  struct ggml_context *context = graph->context;
  graph->graph = ggml_new_graph_custom(context, max_nodes(model), false);
  graph->tokens = input(context, pass->num_rows);
  graph->positions = input(context, pass->num_rows);
  if (forward->attention != GEN_ATTENTION_TREE) {
    const int64_t num_slots = pass->prefix_len + pass->num_rows;
    for (int m = 0; m < GEN_NUM_PLANS; ++m) {
      if (forward->planned[m].plan != NULL) {
        graph->masks[m] = ggml_new_tensor_2d(context, GGML_TYPE_F16, num_slots, pass->num_rows);
        ggml_set_input(graph->masks[m]);
      }
    }
  }
  const builder b = {forward, graph, pass};
  struct ggml_tensor *x = ggml_get_rows(context, model->embedding, graph->tokens);
  if (model->architecture == GEN_GEMMA3) {
    x = ggml_scale(context, x, model->embedding_scale);
  }
  for (int64_t l = 0; l < model->num_layers; ++l) {
    x = layer_of(&b, l, x);
  }
  if (pass->num_logit_rows != pass->num_rows) {
    graph->logit_rows = input(context, pass->num_logit_rows);
    x = ggml_get_rows(context, x, graph->logit_rows);
  }
  graph->logits = ggml_mul_mat(context, model->output, norm(&b, x, model->output_norm));
  ggml_set_output(graph->logits);
  ggml_build_forward_expand(graph->graph, graph->logits);
  return TREEATTN_OK;
}
