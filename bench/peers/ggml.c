/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ggml as a peer: flash_attn_ext, or with the argument `unfused` two matrix products around soft_max_ext. V lies
 * transposed for the unfused way, as engines on ggml keep it.
 */
#include <ggml-cpu.h>
#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peer.h"

static peer_problem problem;
static bool unfused;
static struct ggml_context *context;
static struct ggml_cgraph *graph;
static struct ggml_threadpool *pool;
static struct ggml_cplan plan;
static struct ggml_tensor *result;
static int num_pool_threads;

static void run(void) {
  if (ggml_graph_compute(graph, &plan) != GGML_STATUS_SUCCESS) {
    exit(1);
  }
  memcpy(problem.out, result->data, ggml_nbytes(result));
}

static void fill_mask(struct ggml_tensor *mask) {
  ggml_fp16_t *cells = mask->data;
  const ggml_fp16_t zero = ggml_fp32_to_fp16(0.0f);
  const ggml_fp16_t minus_infinity = ggml_fp32_to_fp16(-INFINITY);
  for (int64_t n = 0; n < problem.num_nodes * problem.num_slots; n++) {
    cells[n] = problem.seen[n] != 0 ? zero : minus_infinity;
  }
}

static void *transposed(const void *cache, size_t element) {
  const int64_t slots = problem.num_slots;
  const int64_t dim = problem.head_dim;
  char *target = malloc((size_t)(problem.num_kv_heads * slots * dim) * element);
  for (int64_t g = 0; target != NULL && g < problem.num_kv_heads; g++) {
    for (int64_t t = 0; t < slots; t++) {
      for (int64_t d = 0; d < dim; d++) {
        memcpy(target + (size_t)((g * dim + d) * slots + t) * element,
               (const char *)cache + (size_t)((g * slots + t) * dim + d) * element, element);
      }
    }
  }
  return target;
}

static const char *load(const peer_problem *next) {
  static void *values;
  problem = *next;
  const bool wide = strcmp(problem.dtype, "f32") == 0;
  if (strcmp(problem.dtype, "bf16") == 0) {
    return "it reads f16 and f32 caches here";
  }
  const enum ggml_type type = wide ? GGML_TYPE_F32 : GGML_TYPE_F16;
  const int64_t rows = problem.num_heads * problem.num_nodes;
  const size_t floats = (size_t)(4 * rows * problem.head_dim + (unfused ? 2 * rows * problem.num_slots : 0));
  const size_t cells = (size_t)(problem.num_nodes * problem.num_slots);
  const struct ggml_init_params params = {floats * sizeof(float) + cells * 2 + ((size_t)1 << 20), NULL, false};
  ggml_free(context);
  context = ggml_init(params);
  if (context == NULL) {
    return "out of memory";
  }
  struct ggml_tensor *q =
      ggml_new_tensor_3d(context, GGML_TYPE_F32, problem.head_dim, problem.num_nodes, problem.num_heads);
  struct ggml_tensor *mask = ggml_new_tensor_2d(context, GGML_TYPE_F16, problem.num_slots, problem.num_nodes);
  memcpy(q->data, problem.q, ggml_nbytes(q));
  fill_mask(mask);
  /* The caches are read where they are. */
  ggml_set_no_alloc(context, true);
  struct ggml_tensor *k = ggml_new_tensor_3d(context, type, problem.head_dim, problem.num_slots, problem.num_kv_heads);
  struct ggml_tensor *v =
      unfused ? ggml_new_tensor_3d(context, type, problem.num_slots, problem.head_dim, problem.num_kv_heads)
              : ggml_new_tensor_3d(context, type, problem.head_dim, problem.num_slots, problem.num_kv_heads);
  ggml_set_no_alloc(context, false);
  free(values);
  values = unfused ? transposed(problem.v, wide ? 4 : 2) : NULL;
  k->data = (void *)(uintptr_t)problem.k;
  v->data = unfused ? values : (void *)(uintptr_t)problem.v;
  if (v->data == NULL) {
    return "out of memory";
  }
  if (unfused) {
    struct ggml_tensor *weights = ggml_soft_max_ext(context, ggml_mul_mat(context, k, q), mask, problem.scale, 0.0f);
    result = ggml_cont(context, ggml_permute(context, ggml_mul_mat(context, v, weights), 0, 2, 1, 3));
  } else {
    result = ggml_flash_attn_ext(context, q, k, v, mask, problem.scale, 0.0f, 0.0f);
  }
  graph = ggml_new_graph(context);
  ggml_build_forward_expand(graph, result);
  if (num_pool_threads != problem.num_threads) {
    ggml_threadpool_free(pool);
    struct ggml_threadpool_params threads = ggml_threadpool_params_default(problem.num_threads);
    pool = ggml_threadpool_new(&threads);
    num_pool_threads = problem.num_threads;
  }
  free(plan.work_data);
  plan = ggml_graph_plan(graph, problem.num_threads, pool);
  plan.work_data = plan.work_size > 0 ? malloc(plan.work_size) : NULL;
  return plan.work_size > 0 && plan.work_data == NULL ? "out of memory" : NULL;
}

int main(int argc, char **argv) {
  unfused = argc > 1 && strcmp(argv[1], "unfused") == 0;
  char name[128];
  (void)snprintf(name, sizeof name, "ggml %s (%s)", ggml_version(), unfused ? "unfused" : "flash_attn_ext");
  return peer_serve(name, load, run);
}
