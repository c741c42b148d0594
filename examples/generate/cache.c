/* SPDX-License-Identifier: Apache-2.0 */
/* The KV cache of all layers, in the library's contiguous layout, and its compaction after a step. */
#include "cache.h"

#include <stdlib.h>
#include <string.h>
#include <treeattn/commit.h>

#include "fail.h"

enum { ELEMENT_BYTES = 2, ALIGNMENT = 64 };

treeattn_status gen_cache_create(gen_cache *cache, int64_t num_layers, int64_t num_kv_heads, int64_t head_dim,
                                 int64_t capacity, treeattn_error *error) {
  memset(cache, 0, sizeof *cache);
  /* The model loader bounds the other factors; the capacity is what a user may overdo. */
  if (capacity < 1 || capacity > INT32_MAX / 2) {
    return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "a cache of %lld slots", (long long)capacity);
  }
  cache->num_layers = num_layers;
  cache->num_kv_heads = num_kv_heads;
  cache->head_dim = head_dim;
  cache->capacity = capacity;
  const size_t slot_bytes = (size_t)num_kv_heads * (size_t)head_dim * ELEMENT_BYTES;
  if ((size_t)capacity > SIZE_MAX / 4 / slot_bytes / (size_t)num_layers) {
    return gen_fail(error, TREEATTN_ERROR_OVERFLOW, "a cache of %lld slots", (long long)capacity);
  }
  cache->tensor_bytes = slot_bytes * (size_t)capacity;
  cache->bytes = cache->tensor_bytes * (size_t)num_layers * 2;
  const size_t rounded = (cache->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  cache->data = aligned_alloc(ALIGNMENT, rounded);
  return cache->data == NULL
             ? gen_fail(error, TREEATTN_ERROR_OUT_OF_MEMORY, "out of memory: a cache of %zu bytes", rounded)
             : TREEATTN_OK;
}

void gen_cache_destroy(gen_cache *cache) {
  free(cache->data);
  memset(cache, 0, sizeof *cache);
}

void *gen_cache_keys(const gen_cache *cache, int64_t layer) {
  return cache->data + (size_t)layer * 2 * cache->tensor_bytes;
}

void *gen_cache_values(const gen_cache *cache, int64_t layer) {
  return cache->data + ((size_t)layer * 2 + 1) * cache->tensor_bytes;
}

treeattn_status gen_cache_commit(gen_cache *cache, int64_t prefix_len, int64_t num_nodes, const int32_t *path,
                                 int64_t path_len, treeattn_error *error) {
  treeattn_commit_request request = TREEATTN_COMMIT_REQUEST_INIT;
  request.prefix_len = prefix_len;
  request.num_nodes = num_nodes;
  request.path = path;
  request.path_len = path_len;
  treeattn_commit_args args = TREEATTN_COMMIT_ARGS_INIT;
  args.num_requests = 1;
  args.requests = &request;
  args.kv_capacity = cache->capacity;
  treeattn_commit_plan *plan = NULL;
  treeattn_status status = treeattn_commit_plan_create(&args, &plan, error);
  treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
  for (int64_t l = 0; l < cache->num_layers && status == TREEATTN_OK; ++l) {
    treeattn_commit_tensor tensors[2] = {TREEATTN_COMMIT_TENSOR_INIT, TREEATTN_COMMIT_TENSOR_INIT};
    tensors[0].data = gen_cache_keys(cache, l);
    tensors[1].data = gen_cache_values(cache, l);
    for (int t = 0; t < 2; ++t) {
      tensors[t].bytes = cache->tensor_bytes;
      tensors[t].row_bytes = (size_t)cache->head_dim * ELEMENT_BYTES;
      tensors[t].num_heads = cache->num_kv_heads;
    }
    run.num_tensors = 2;
    run.tensors = tensors;
    status = treeattn_commit_apply(plan, &run, error);
  }
  treeattn_commit_plan_destroy(plan);
  return status;
}
