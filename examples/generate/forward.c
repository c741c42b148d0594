/* SPDX-License-Identifier: Apache-2.0 */
/* One pass of the model: the plan, the memory, the threads, and the attention nodes that run inside ggml's graph. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* clock_gettime under -std=c11 */
#endif

#include "forward.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fail.h"
#include "graph.h"

static double seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- nodes of the graph --------------------------------------------------------------------------------------- */

static const gen_planned *planned_of(const gen_layer_run *run) {
  return &run->forward->planned[run->plan == run->forward->planned[0].plan ? 0 : 1];
}

void gen_node_store(struct ggml_tensor *dst, int ith, int nth, void *layer) {
  const gen_layer_run *run = layer;
  const gen_forward *forward = run->forward;
  const gen_cache *cache = &forward->cache;
  const int64_t l = run - forward->layers;
  ggml_fp16_t *stores[2] = {gen_cache_keys(cache, l), gen_cache_values(cache, l)};
  for (int64_t i = ith; i < forward->num_rows; i += nth) {
    for (int64_t g = 0; g < cache->num_kv_heads; ++g) {
      for (int t = 0; t < 2; ++t) {
        const float *rows = dst->src[t]->data;
        ggml_fp32_to_fp16_row(rows + (i * cache->num_kv_heads + g) * cache->head_dim,
                              stores[t] + (g * cache->capacity + forward->prefix_len + i) * cache->head_dim,
                              cache->head_dim);
      }
    }
  }
}

static void keep_queries(const gen_layer_run *run, int ith, int nth) {
  const gen_forward *forward = run->forward;
  const size_t row = (size_t)(forward->model->num_heads * forward->model->head_dim);
  float *kept = forward->kept_queries + (size_t)(run - forward->layers) * (size_t)forward->max_rows * row;
  const float *queries = run->run.q;
  for (int64_t i = ith; i < forward->num_rows; i += nth) {
    memcpy(kept + (size_t)i * row, queries + (size_t)i * row, row * sizeof *queries);
  }
}

void gen_node_attend(struct ggml_tensor *dst, int ith, int nth, void *layer) {
  (void)dst;
  gen_layer_run *run = layer;
  if (run->forward->kept_queries != NULL) {
    keep_queries(run, ith, nth);
  }
  if (ith == 0) {
    run->forward->attention_started = seconds();
  }
  const int64_t num_tasks = planned_of(run)->info.num_tasks[0];
  for (int64_t task = ith; task < num_tasks; task += nth) {
    treeattn_attend_task(run->plan, &run->run, 0, task, ith);
  }
}

void gen_node_combine(struct ggml_tensor *dst, const struct ggml_tensor *src, int ith, int nth, void *layer) {
  (void)dst;
  (void)src;
  gen_layer_run *run = layer;
  const int64_t num_tasks = planned_of(run)->info.num_tasks[1];
  for (int64_t task = ith; task < num_tasks; task += nth) {
    treeattn_attend_task(run->plan, &run->run, 1, task, ith);
  }
  if (ith == 0) {
    run->forward->attention_seconds += seconds() - run->forward->attention_started;
  }
}

/* ---- the plan --------------------------------------------------------------------------------------------------- */

static treeattn_status grow(void **memory, size_t *bytes, size_t needed, treeattn_error *error) {
  if (needed <= *bytes) {
    return TREEATTN_OK;
  }
  free(*memory);
  *bytes = 0;
  *memory = malloc(needed);
  if (*memory == NULL) {
    return gen_fail_memory(error);
  }
  *bytes = needed;
  return TREEATTN_OK;
}

static treeattn_status plan_window(gen_forward *forward, const gen_pass *pass, int64_t window, gen_planned *planned,
                                   treeattn_error *error) {
  const gen_model *model = forward->model;
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = pass->num_rows;
  request.prefix_len = pass->prefix_len;
  request.kv_seq_len = pass->prefix_len + pass->num_rows;
  if (pass->parents != NULL) {
    request.mask_kind = TREEATTN_MASK_PARENTS;
    request.mask = pass->parents;
    request.mask_bytes = (size_t)pass->num_rows * sizeof *pass->parents;
  }
  treeattn_plan_args args = TREEATTN_PLAN_ARGS_INIT;
  args.num_requests = 1;
  args.requests = &request;
  args.request_bytes = sizeof request;
  args.num_heads = model->num_heads;
  args.num_kv_heads = model->num_kv_heads;
  args.head_dim = model->head_dim;
  args.kv_dtype = TREEATTN_F16;
  args.scale = 1.0f / sqrtf((float)model->head_dim);
  args.window = window;
  args.kv_capacity = forward->cache.capacity;
  args.num_workers = forward->num_threads;
  /* ggml has a row's heads side by side. */
  args.q_stride_row = model->num_heads * model->head_dim;
  args.q_stride_head = model->head_dim;
  planned->plan = NULL;
  size_t bytes = 0;
  treeattn_status status = treeattn_plan_bytes(&args, &bytes, error);
  if (status == TREEATTN_OK) {
    status = grow(&planned->memory, &planned->memory_bytes, bytes, error);
  }
  if (status == TREEATTN_OK) {
    status = treeattn_plan_init(&args, planned->memory, planned->memory_bytes, &planned->plan, error);
  }
  if (status == TREEATTN_OK) {
    planned->info = (treeattn_plan_info)TREEATTN_PLAN_INFO_INIT;
    status = treeattn_plan_get_info(planned->plan, &planned->info, error);
  }
  if (status == TREEATTN_OK) {
    status = grow(&forward->scratch, &forward->scratch_bytes, planned->info.scratch_bytes, error);
  }
  return status;
}

/* Once for all layers. */
static treeattn_status plan_pass(gen_forward *forward, const gen_pass *pass, treeattn_error *error) {
  int64_t window = 0;
  for (int64_t l = 0; l < forward->model->num_layers; ++l) {
    window = forward->model->layers[l].window != 0 ? forward->model->layers[l].window : window;
  }
  treeattn_status status = plan_window(forward, pass, 0, &forward->planned[0], error);
  if (status == TREEATTN_OK && window != 0) {
    status = plan_window(forward, pass, window, &forward->planned[1], error);
  }
  for (int64_t l = 0; l < forward->model->num_layers; ++l) {
    forward->layers[l].forward = forward;
    forward->layers[l].plan = forward->planned[forward->model->layers[l].window == 0 ? 0 : 1].plan;
  }
  return status;
}

/* ---- a pass ----------------------------------------------------------------------------------------------------- */

/* What ggml's attention is told instead of a plan. */
static void fill_mask(const gen_pass *pass, int64_t window, const int32_t *positions, ggml_fp16_t *mask) {
  const int64_t num_slots = pass->prefix_len + pass->num_rows;
  const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY);
  const ggml_fp16_t seen = ggml_fp32_to_fp16(0.0f);
  for (int64_t i = 0; i < pass->num_rows; ++i) {
    ggml_fp16_t *row = mask + i * num_slots;
    for (int64_t p = 0; p < num_slots; ++p) {
      row[p] = p < pass->prefix_len && (window == 0 || positions[i] - p < window) ? seen : hidden;
    }
    for (int64_t j = i; j >= 0; j = pass->parents == NULL ? j - 1 : pass->parents[j]) {
      row[pass->prefix_len + j] = window == 0 || positions[i] - positions[j] < window ? seen : hidden;
    }
  }
}

static treeattn_status fill_inputs(gen_forward *forward, const gen_pass *pass, const gen_graph *graph,
                                   treeattn_error *error) {
  memcpy(graph->tokens->data, pass->tokens, (size_t)pass->num_rows * sizeof *pass->tokens);
  const treeattn_status status =
      treeattn_plan_get_positions(forward->planned[0].plan, graph->positions->data, pass->num_rows, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (graph->logit_rows != NULL) {
    int32_t *rows = graph->logit_rows->data;
    for (int64_t r = 0; r < pass->num_logit_rows; ++r) {
      rows[r] = (int32_t)(pass->num_rows - pass->num_logit_rows + r);
    }
  }
  for (int64_t l = 0; l < forward->model->num_layers; ++l) {
    const int64_t window = forward->model->layers[l].window;
    const struct ggml_tensor *mask = graph->masks[window == 0 ? 0 : 1];
    if (mask != NULL) {
      fill_mask(pass, window, graph->positions->data, mask->data);
    }
  }
  return TREEATTN_OK;
}

/* ggml has given every array its place by now. */
static treeattn_status bind_layers(gen_forward *forward, treeattn_error *error) {
  const gen_cache *cache = &forward->cache;
  for (int64_t l = 0; l < forward->model->num_layers; ++l) {
    gen_layer_run *layer = &forward->layers[l];
    treeattn_run_args *run = &layer->run;
    *run = (treeattn_run_args)TREEATTN_RUN_ARGS_INIT;
    run->q = layer->query->data;
    run->q_bytes = ggml_nbytes(layer->query);
    run->k = gen_cache_keys(cache, l);
    run->k_bytes = cache->tensor_bytes;
    run->v = gen_cache_values(cache, l);
    run->v_bytes = cache->tensor_bytes;
    run->out = layer->attended->data;
    run->out_bytes = ggml_nbytes(layer->attended);
    run->scratch = forward->scratch;
    run->scratch_bytes = forward->scratch_bytes;
    const treeattn_status status = treeattn_attend_check(layer->plan, run, error);
    if (status != TREEATTN_OK) {
      return status;
    }
  }
  return TREEATTN_OK;
}

static treeattn_status compute(gen_forward *forward, const gen_pass *pass, gen_graph *graph, treeattn_error *error) {
  if (!ggml_gallocr_alloc_graph(forward->allocator, graph->graph)) {
    return gen_fail_memory(error);
  }
  treeattn_status status = fill_inputs(forward, pass, graph, error);
  if (status == TREEATTN_OK && forward->attention == GEN_ATTENTION_TREE) {
    status = bind_layers(forward, error);
  }
  struct ggml_cplan plan = ggml_graph_plan(graph->graph, forward->num_threads, forward->pool);
  if (status == TREEATTN_OK) {
    status = grow(&forward->work, &forward->work_bytes, plan.work_size, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  plan.work_data = forward->work;
  if (ggml_graph_compute(graph->graph, &plan) != GGML_STATUS_SUCCESS) {
    return gen_fail(error, TREEATTN_ERROR_BACKEND, "ggml could not compute the graph");
  }
  return TREEATTN_OK;
}

treeattn_status gen_forward_run(gen_forward *forward, const gen_pass *pass, const float **logits,
                                treeattn_error *error) {
  if (pass->num_rows < 1 || pass->num_rows > forward->max_rows || pass->num_logit_rows < 1 ||
      pass->num_logit_rows > pass->num_rows) {
    return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%" PRId64 " rows, %" PRId64 " with logits", pass->num_rows,
                    pass->num_logit_rows);
  }
  if (pass->prefix_len < 0 || pass->num_rows > forward->cache.capacity - pass->prefix_len) {
    return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                    "%" PRId64 " tokens and %" PRId64 " rows do not fit in a cache of %" PRId64 " slots",
                    pass->prefix_len, pass->num_rows, forward->cache.capacity);
  }
  for (int64_t i = 0; i < pass->num_rows; ++i) {
    if (pass->tokens[i] < 0 || pass->tokens[i] >= forward->model->vocab_size) {
      return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "tokens[%" PRId64 "] is %" PRId32, i, pass->tokens[i]);
    }
  }
  const double started = seconds();
  forward->prefix_len = pass->prefix_len;
  forward->num_rows = pass->num_rows;
  treeattn_status status = plan_pass(forward, pass, error);
  if (status == TREEATTN_OK) {
    gen_graph graph;
    status = gen_graph_build(forward, pass, &graph, error);
    if (status == TREEATTN_OK) {
      status = compute(forward, pass, &graph, error);
      *logits = status == TREEATTN_OK ? graph.logits->data : NULL;
      ggml_free(graph.context);
    }
  }
  forward->total_seconds += seconds() - started;
  return status;
}

/* ---- making --------------------------------------------------------------------------------------------------- */

treeattn_status gen_forward_create(const gen_model *model, int64_t capacity, int64_t max_rows, int num_threads,
                                   gen_forward **forward, treeattn_error *error) {
  *forward = NULL;
  gen_forward *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return gen_fail_memory(error);
  }
  made->model = model;
  made->num_threads = num_threads;
  made->max_rows = max_rows;
  made->layers = calloc((size_t)model->num_layers, sizeof *made->layers);
  made->graph_memory_bytes = gen_graph_memory_bytes(model);
  made->graph_memory = malloc(made->graph_memory_bytes);
  ggml_cpu_init();
  made->allocator = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
  struct ggml_threadpool_params params = ggml_threadpool_params_default(num_threads);
  made->pool = ggml_threadpool_new(&params);
  treeattn_status status = TREEATTN_OK;
  if (made->layers == NULL || made->graph_memory == NULL || made->allocator == NULL || made->pool == NULL) {
    status = gen_fail_memory(error);
  } else {
    status = gen_cache_create(&made->cache, model->num_layers, model->num_kv_heads, model->head_dim, capacity, error);
  }
  if (status != TREEATTN_OK) {
    gen_forward_destroy(made);
    return status;
  }
  *forward = made;
  return TREEATTN_OK;
}

void gen_forward_destroy(gen_forward *forward) {
  if (forward == NULL) {
    return;
  }
  if (forward->pool != NULL) {
    ggml_threadpool_free(forward->pool);
  }
  if (forward->allocator != NULL) {
    ggml_gallocr_free(forward->allocator);
  }
  for (int m = 0; m < GEN_NUM_PLANS; ++m) {
    free(forward->planned[m].memory);
  }
  gen_cache_destroy(&forward->cache);
  free(forward->graph_memory);
  free(forward->work);
  free(forward->scratch);
  free(forward->layers);
  free(forward);
}

size_t gen_forward_activation_bytes(const gen_forward *forward) {
  return ggml_gallocr_get_buffer_size(forward->allocator, 0);
}
