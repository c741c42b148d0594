/* SPDX-License-Identifier: Apache-2.0 */
/* A batch of trees with its tensors in logical form. */
#include "problem.h"

#include <math.h>
#include <string.h>

#include "check.h"
#include "halves.h"

float fill_value(uint32_t i, uint32_t seed) {
  uint32_t x = i * UINT32_C(2654435761) + seed * UINT32_C(2246822519);
  x ^= x >> 15;
  x *= UINT32_C(2246822519);
  x ^= x >> 13;
  return (float)((double)(x >> 8) / 8388608.0 - 1.0);
}

size_t element_bytes(treeattn_dtype dtype) {
  return dtype == TREEATTN_F32 ? 4 : 2;
}

static void *test_alloc(int64_t count, size_t size) {
  void *memory = calloc((size_t)count + 1, size);
  CHECK(memory != NULL, "out of memory for %lld elements of %zu bytes", (long long)count, size);
  return memory;
}

problem problem_new(int num_heads, int num_kv_heads, int head_dim, int head_dim_v, treeattn_dtype kv_dtype) {
  problem p;
  memset(&p, 0, sizeof p);
  p.num_heads = num_heads;
  p.num_kv_heads = num_kv_heads;
  p.head_dim = head_dim;
  p.head_dim_v = head_dim_v == 0 ? head_dim : head_dim_v;
  p.kv_dtype = kv_dtype;
  p.scale = (float)(1.0 / sqrt((double)head_dim));
  return p;
}

static void *random_cache(treeattn_dtype dtype, int64_t count, uint32_t seed) {
  void *cache = test_alloc(count, element_bytes(dtype));
  for (int64_t i = 0; i < count; i++) {
    element_store(dtype, cache, i, fill_value((uint32_t)i, seed));
  }
  return cache;
}

request_data *problem_add(problem *p, int prefix_len, int num_nodes, const int32_t *parents, float q_amplitude,
                          rng *r) {
  p->requests = realloc(p->requests, (size_t)(p->num_requests + 1) * sizeof *p->requests);
  CHECK(p->requests != NULL, "out of memory for %d requests", p->num_requests + 1);
  request_data *request = &p->requests[p->num_requests++];
  request->num_nodes = num_nodes;
  request->prefix_len = prefix_len;
  request->num_slots = prefix_len + num_nodes;
  request->parents = test_alloc(num_nodes, sizeof *request->parents);
  request->depths = test_alloc(num_nodes, sizeof *request->depths);
  if (num_nodes > 0) {
    memcpy(request->parents, parents, (size_t)num_nodes * sizeof *parents);
  }
  tree_depths(request->parents, num_nodes, request->depths);
  int64_t q_count = (int64_t)p->num_heads * num_nodes * p->head_dim;
  uint32_t seed = (uint32_t)rng_next(r);
  request->q = test_alloc(q_count, sizeof *request->q);
  for (int64_t i = 0; i < q_count; i++) {
    request->q[i] = q_amplitude * fill_value((uint32_t)i, seed);
  }
  request->k = random_cache(p->kv_dtype, (int64_t)p->num_kv_heads * request->num_slots * p->head_dim, seed + 1);
  request->v = random_cache(p->kv_dtype, (int64_t)p->num_kv_heads * request->num_slots * p->head_dim_v, seed + 2);
  return request;
}

request_data *problem_add_tree(problem *p, int prefix_len, int num_nodes, tree_shape shape, float q_amplitude, rng *r) {
  int32_t *parents = test_alloc(num_nodes, sizeof *parents);
  tree_make(shape, num_nodes, r, parents);
  request_data *request = problem_add(p, prefix_len, num_nodes, parents, q_amplitude, r);
  free(parents);
  return request;
}

void problem_set_sinks(problem *p, rng *r) {
  p->sinks = test_alloc(p->num_heads, sizeof *p->sinks);
  for (int h = 0; h < p->num_heads; h++) {
    p->sinks[h] = rng_chance(r, 5) ? -INFINITY : 4.0f * rng_signed(r);
  }
}

void problem_free(problem *p) {
  for (int n = 0; n < p->num_requests; n++) {
    request_data *request = &p->requests[n];
    free(request->parents);
    free(request->depths);
    free(request->q);
    free(request->k);
    free(request->v);
  }
  free(p->requests);
  free(p->sinks);
  memset(p, 0, sizeof *p);
}

int64_t problem_rows(const problem *p) {
  int64_t rows = 0;
  for (int n = 0; n < p->num_requests; n++) {
    rows += p->requests[n].num_nodes;
  }
  return rows;
}

treeattn_plan_args problem_args(const problem *p) {
  treeattn_plan_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.request_bytes = sizeof(treeattn_request);
  args.num_heads = p->num_heads;
  args.num_kv_heads = p->num_kv_heads;
  args.head_dim = p->head_dim;
  args.head_dim_v = p->head_dim_v;
  args.kv_dtype = p->kv_dtype;
  args.scale = p->scale;
  args.softcap = p->softcap;
  args.window = p->window;
  return args;
}

treeattn_plan_info plan_info(const treeattn_plan *plan) {
  treeattn_plan_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  CHECK_OK(treeattn_plan_get_info(plan, &info, &error));
  return info;
}

void attend_simply(const treeattn_plan_args *args, const void *q, const void *k, const void *v, const float *sinks,
                   float *out, float *lse) {
  treeattn_plan *plan = NULL;
  CHECK_OK(treeattn_plan_create(args, &plan, &error));
  const treeattn_plan_info info = plan_info(plan);
  treeattn_run_args run;
  memset(&run, 0, sizeof run);
  run.struct_size = sizeof run;
  run.q = q;
  run.q_bytes = info.q_bytes;
  run.k = k;
  run.k_bytes = info.k_bytes;
  run.v = v;
  run.v_bytes = info.v_bytes;
  run.sinks = sinks;
  run.sinks_bytes = sinks == NULL ? 0 : (size_t)args->num_heads * sizeof *sinks;
  run.out = out;
  run.out_bytes = info.out_bytes;
  run.lse = lse;
  run.lse_bytes = lse == NULL ? 0 : info.lse_bytes;
  run.scratch = test_alloc((int64_t)info.scratch_bytes, 1);
  run.scratch_bytes = info.scratch_bytes;
  CHECK_OK(treeattn_attend(plan, &run, &error));
  free(run.scratch);
  treeattn_plan_destroy(plan);
}

/* Copies the slots of a path for each KV head: [G][P + N][dim] to [G][length][dim]. */
static void *gather_path(const problem *p, const request_data *request, const void *cache, int dim, const int32_t *path,
                         int path_len) {
  size_t row_bytes = (size_t)dim * element_bytes(p->kv_dtype);
  int length = request->prefix_len + path_len;
  unsigned char *gathered = test_alloc((int64_t)p->num_kv_heads * length, row_bytes);
  for (int g = 0; g < p->num_kv_heads; g++) {
    const unsigned char *from = (const unsigned char *)cache + (size_t)g * (size_t)request->num_slots * row_bytes;
    unsigned char *to = gathered + (size_t)g * (size_t)length * row_bytes;
    memcpy(to, from, (size_t)request->prefix_len * row_bytes);
    for (int n = 0; n < path_len; n++) {
      memcpy(to + (size_t)(request->prefix_len + n) * row_bytes,
             from + (size_t)(request->prefix_len + path[n]) * row_bytes, row_bytes);
    }
  }
  return gathered;
}

void path_decode(const problem *p, int request_index, int node, treeattn_isa isa, float *out, float *lse) {
  const request_data *data = &p->requests[request_index];
  int path_len = data->depths[node] + 1;
  int32_t *path = test_alloc(path_len, sizeof *path);
  for (int j = node, n = path_len - 1; j >= 0; j = data->parents[j], n--) {
    path[n] = j;
  }
  void *k = gather_path(p, data, data->k, p->head_dim, path, path_len);
  void *v = gather_path(p, data, data->v, p->head_dim_v, path, path_len);
  float *q = test_alloc((int64_t)p->num_heads * p->head_dim, sizeof *q);
  for (int h = 0; h < p->num_heads; h++) {
    memcpy(q + (size_t)h * (size_t)p->head_dim,
           data->q + ((size_t)h * (size_t)data->num_nodes + (size_t)node) * (size_t)p->head_dim,
           (size_t)p->head_dim * sizeof *q);
  }
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = 1;
  request.prefix_len = data->prefix_len + path_len - 1;
  treeattn_plan_args args = problem_args(p);
  args.requests = &request;
  args.num_requests = 1;
  args.kv_capacity = data->prefix_len + path_len;
  args.isa = isa;
  attend_simply(&args, q, k, v, p->sinks, out, lse);
  free(path);
  free(k);
  free(v);
  free(q);
}
