/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: compaction on the GPU leaves another byte in a cache than the CPU's, in some layout. */
#include "step.h"

#include "support/commit_cache.h"

/* Everything that a call reads, in device memory. */
typedef struct commit_there {
  device_buffer offsets, path, num_path, verified, prefix_lens, cache_indices, page_table, next_prefix_lens, outcomes;
  device_buffer tensors[CACHE_MAX_TENSORS], pointers[CACHE_MAX_TENSORS];
  treeattn_cuda_commit_group groups[CACHE_MAX_TENSORS];
  treeattn_cuda_commit_args args;
  int num_tensors;
} commit_there;

static const int32_t *words(const device_buffer *buffer) {
  return (const int32_t *)(const void *)buffer->data;
}

/* A batch whose paths increase, as verification makes them. */
static void make_increasing(commit_batch *batch, rng *r) {
  for (int64_t n = 0; n < batch->args.num_requests; n++) {
    treeattn_commit_request *request = &batch->requests[n];
    const path_kind kind = rng_chance(r, 6) ? PATH_IDENTITY : PATH_INCREASING;
    request->path_len = commit_path_random(kind, (int)request->num_nodes, r, batch->paths[n]);
  }
}

static void upload_batch(commit_there *g, const commit_batch *batch) {
  const int num_requests = (int)batch->args.num_requests;
  int32_t offsets[CACHE_MAX_REQUESTS + 1] = {0}, num_path[CACHE_MAX_REQUESTS], prefix_lens[CACHE_MAX_REQUESTS];
  int32_t cache_indices[CACHE_MAX_REQUESTS];
  int64_t stride = 1;
  for (int n = 0; n < num_requests; n++) {
    const treeattn_commit_request *request = &batch->requests[n];
    offsets[n + 1] = offsets[n] + (int32_t)request->num_nodes;
    num_path[n] = (int32_t)request->path_len;
    prefix_lens[n] = (int32_t)request->prefix_len;
    cache_indices[n] = (int32_t)request->cache_index;
    stride = request->page_table_len > stride ? request->page_table_len : stride;
  }
  const size_t requests = (size_t)num_requests;
  int32_t *path = step_calloc((size_t)offsets[num_requests], sizeof *path);
  int32_t *pages = step_calloc(requests * (size_t)stride, sizeof *pages);
  memset(path, 0xff, (size_t)offsets[num_requests] * sizeof *path);
  for (int n = 0; n < num_requests; n++) {
    const treeattn_commit_request *request = &batch->requests[n];
    memcpy(path + offsets[n], batch->paths[n], (size_t)request->path_len * sizeof *path);
    for (int64_t entry = 0; batch->args.page_size > 0 && entry < stride; entry++) {
      pages[n * stride + entry] = entry < request->page_table_len ? request->page_table[entry] : -1;
    }
  }
  g->offsets = td_alloc_copy(offsets, (requests + 1) * sizeof *offsets);
  g->path = td_alloc_copy(path, (size_t)offsets[num_requests] * sizeof *path);
  g->num_path = td_alloc_copy(num_path, requests * sizeof *num_path);
  g->prefix_lens = td_alloc_copy(prefix_lens, requests * sizeof *prefix_lens);
  g->cache_indices = td_alloc_copy(cache_indices, requests * sizeof *cache_indices);
  g->page_table = td_alloc_copy(pages, requests * (size_t)stride * sizeof *pages);
  g->next_prefix_lens = td_alloc(requests * sizeof(int32_t));
  g->outcomes = td_alloc(requests * sizeof(treeattn_cuda_outcome));
  free(path);
  free(pages);
  treeattn_cuda_commit_args *a = &g->args;
  *a = (treeattn_cuda_commit_args)TREEATTN_CUDA_COMMIT_ARGS_INIT;
  a->batch = (treeattn_cuda_batch){num_requests, offsets[num_requests], CACHE_MAX_NODES, words(&g->offsets)};
  a->path = words(&g->path);
  a->num_path = words(&g->num_path);
  a->prefix_lens = words(&g->prefix_lens);
  a->page_size = batch->args.page_size;
  a->kv_capacity = batch->args.kv_capacity;
  a->num_sequences = batch->args.num_sequences;
  a->num_pages = batch->args.num_pages;
  a->cache_indices = words(&g->cache_indices);
  a->page_table = words(&g->page_table);
  a->page_table_stride = stride;
  a->next_prefix_lens = (int32_t *)(void *)g->next_prefix_lens.data;
  a->outcomes = (treeattn_cuda_outcome *)(void *)g->outcomes.data;
  a->groups = g->groups;
}

/* Each tensor as a group of its own, found in one of the two ways. */
static void upload_cache(commit_there *g, const commit_cache *cache, rng *r) {
  g->num_tensors = cache->num_tensors;
  g->args.num_groups = cache->num_tensors;
  for (int t = 0; t < cache->num_tensors; t++) {
    const treeattn_commit_tensor *tensor = &cache->tensors[t];
    g->tensors[t] = td_alloc_copy(tensor->data, tensor->bytes);
    void *pointer = g->tensors[t].data;
    g->pointers[t] = td_alloc_copy(&pointer, sizeof pointer);
    treeattn_cuda_commit_group *group = &g->groups[t];
    *group = (treeattn_cuda_commit_group){.num_tensors = 1,
                                          .bytes = tensor->bytes,
                                          .row_bytes = tensor->row_bytes,
                                          .num_heads = tensor->num_heads,
                                          .stride_block_bytes = tensor->stride_block_bytes,
                                          .stride_head_bytes = tensor->stride_head_bytes,
                                          .stride_row_bytes = tensor->stride_row_bytes};
    if (rng_chance(r, 2)) {
      group->tensors = (void *const *)(const void *)g->pointers[t].data;
    } else {
      group->base = pointer;
    }
  }
}

static void there_free(commit_there *g) {
  device_buffer *buffers[] = {&g->offsets,       &g->path,       &g->num_path,         &g->verified, &g->prefix_lens,
                              &g->cache_indices, &g->page_table, &g->next_prefix_lens, &g->outcomes};
  for (size_t n = 0; n < sizeof buffers / sizeof buffers[0]; n++) {
    td_free(buffers[n]);
  }
  for (int t = 0; t < g->num_tensors; t++) {
    td_free(&g->tensors[t]);
    td_free(&g->pointers[t]);
  }
}

static void apply_here(const commit_batch *batch, const commit_cache *cache) {
  guarded memory;
  treeattn_commit_plan *plan = commit_plan_new(&batch->args, &memory);
  treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
  run.num_tensors = cache->num_tensors;
  run.tensors = cache->tensors;
  CHECK_OK(treeattn_commit_apply(plan, &run, &error));
  guarded_free(&memory);
}

static void check_there(const commit_there *g, const commit_batch *batch, const commit_cache *cache) {
  for (int t = 0; t < cache->num_tensors; t++) {
    step_check_bytes("a tensor", &g->tensors[t], cache->tensors[t].data);
  }
  treeattn_cuda_outcome outcomes[CACHE_MAX_REQUESTS];
  int32_t next[CACHE_MAX_REQUESTS];
  td_download(outcomes, g->outcomes.data, g->outcomes.bytes);
  td_download(next, g->next_prefix_lens.data, g->next_prefix_lens.bytes);
  for (int n = 0; n < batch->args.num_requests; n++) {
    step_check_outcome(&outcomes[n], n, TREEATTN_OK, TREEATTN_CUDA_FIELD_NONE, -1, -1);
    CHECK(next[n] == batch->requests[n].prefix_len + batch->requests[n].path_len, "request %d: next prefix is %d", n,
          (int)next[n]);
  }
}

static void test_random_batches(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  static const int page_sizes[] = {0, 1, 2, 3, 5, 16, 64};
  for (int index = 0; index < trial_count(500, 60); index++) {
    rng r;
    const int trial = trial_begin(&r, 321, index);
    commit_batch batch;
    commit_cache cache;
    commit_there g;
    memset(&g, 0, sizeof g);
    commit_batch_random(&batch, page_sizes[trial % 7], &r);
    make_increasing(&batch, &r);
    commit_cache_random(&cache, batch.num_blocks, batch.rows_per_block, trial % 11 == 0 ? 2000 : 100, &r);
    upload_batch(&g, &batch);
    upload_cache(&g, &cache, &r);
    CHECK_OK(treeattn_cuda_commit(&g.args, &error));
    td_sync();
    apply_here(&batch, &cache);
    check_there(&g, &batch, &cache);
    there_free(&g);
    commit_cache_free(&cache);
    commit_batch_free(&batch);
  }
}

/* ---- layers of a model ------------------------------------------------------------------------------------- */

enum { LAYERS = 7, HEADS = 4, PAGES = 40, PAGE = 16, NODES = 100, REQUESTS = 3 };

/* K and V of all layers, in rows of the widths that caches have: K through pointers, V by a stride. */
static void test_layers(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  static const int widths[][2] = {{256, 256}, {512, 128}, {1152, 1024}, {24, 40}, {6, 10}, {7, 1}};
  for (int index = 0; index < trial_count(24, 6); index++) {
    rng r;
    const int trial = trial_begin(&r, 322, index);
    const size_t width[2] = {(size_t)widths[trial % 6][0], (size_t)widths[trial % 6][1]};
    treeattn_commit_request requests[REQUESTS];
    int32_t paths[REQUESTS][NODES], tables[REQUESTS][12], order[PAGES];
    commit_there g;
    memset(&g, 0, sizeof g);
    commit_batch batch = {.args = TREEATTN_COMMIT_ARGS_INIT};
    for (int n = 0; n < PAGES; n++) {
      order[n] = n;
    }
    rng_shuffle(&r, order, PAGES);
    for (int n = 0; n < REQUESTS; n++) {
      requests[n] = (treeattn_commit_request)TREEATTN_COMMIT_REQUEST_INIT;
      requests[n].prefix_len = rng_below(&r, 80);
      requests[n].num_nodes = rng_range(&r, 1, NODES);
      requests[n].path_len = commit_path_random(PATH_INCREASING, (int)requests[n].num_nodes, &r, paths[n]);
      requests[n].path = paths[n];
      memcpy(tables[n], order + 12 * n, sizeof tables[n]);
      requests[n].page_table = tables[n];
      requests[n].page_table_len = 12;
    }
    /* The helpers' batch holds fewer nodes: everything is laid out here. */
    int32_t offsets[REQUESTS + 1] = {0}, num_path[REQUESTS], prefix_lens[REQUESTS], path[REQUESTS * NODES];
    for (int n = 0; n < REQUESTS; n++) {
      offsets[n + 1] = offsets[n] + (int32_t)requests[n].num_nodes;
      num_path[n] = (int32_t)requests[n].path_len;
      prefix_lens[n] = (int32_t)requests[n].prefix_len;
      memcpy(path + offsets[n], paths[n], (size_t)num_path[n] * sizeof *path);
    }
    g.offsets = td_alloc_copy(offsets, sizeof offsets);
    g.path = td_alloc_copy(path, (size_t)offsets[REQUESTS] * sizeof *path);
    g.num_path = td_alloc_copy(num_path, sizeof num_path);
    g.prefix_lens = td_alloc_copy(prefix_lens, sizeof prefix_lens);
    g.page_table = td_alloc_copy(tables, sizeof tables);
    g.outcomes = td_alloc(REQUESTS * sizeof(treeattn_cuda_outcome));
    treeattn_cuda_commit_args args = TREEATTN_CUDA_COMMIT_ARGS_INIT;
    args.batch = (treeattn_cuda_batch){REQUESTS, offsets[REQUESTS], NODES, words(&g.offsets)};
    args.path = words(&g.path);
    args.num_path = words(&g.num_path);
    args.prefix_lens = words(&g.prefix_lens);
    args.page_size = PAGE;
    args.num_pages = PAGES;
    args.page_table = words(&g.page_table);
    args.page_table_stride = 12;
    args.groups = g.groups;
    args.num_groups = 2;
    args.outcomes = (treeattn_cuda_outcome *)(void *)g.outcomes.data;
    batch.args.num_requests = REQUESTS;
    batch.args.requests = requests;
    batch.args.page_size = PAGE;
    batch.args.num_pages = PAGES;
    unsigned char *here[2];
    size_t bytes[2];
    device_buffer there[2];
    void *pointers[LAYERS];
    treeattn_commit_tensor tensors[2 * LAYERS];
    for (int kind = 0; kind < 2; kind++) {
      bytes[kind] = (size_t)PAGES * HEADS * PAGE * width[kind];
      here[kind] = step_calloc(LAYERS * bytes[kind], 1);
      for (size_t n = 0; n < LAYERS * bytes[kind]; n++) {
        here[kind][n] = (unsigned char)rng_next(&r);
      }
      there[kind] = td_alloc_copy(here[kind], LAYERS * bytes[kind]);
      for (int layer = 0; layer < LAYERS; layer++) {
        tensors[kind * LAYERS + layer] = (treeattn_commit_tensor){
            here[kind] + (size_t)layer * bytes[kind], bytes[kind], width[kind], HEADS, 0, 0, 0};
      }
      g.groups[kind] = (treeattn_cuda_commit_group){
          .num_tensors = LAYERS, .bytes = bytes[kind], .row_bytes = width[kind], .num_heads = HEADS};
    }
    for (int layer = 0; layer < LAYERS; layer++) {
      pointers[layer] = there[0].data + (size_t)(LAYERS - 1 - layer) * bytes[0];
    }
    device_buffer pointers_there = td_alloc_copy(pointers, sizeof pointers);
    g.groups[0].tensors = (void *const *)(const void *)pointers_there.data;
    g.groups[1].base = there[1].data;
    g.groups[1].stride_tensor_bytes = (int64_t)bytes[1];
    CHECK_OK(treeattn_cuda_commit(&args, &error));
    td_sync();
    guarded memory;
    treeattn_commit_plan *plan = commit_plan_new(&batch.args, &memory);
    treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
    run.num_tensors = 2 * LAYERS;
    run.tensors = tensors;
    CHECK_OK(treeattn_commit_apply(plan, &run, &error));
    guarded_free(&memory);
    for (int kind = 0; kind < 2; kind++) {
      step_check_bytes(kind == 0 ? "keys" : "values", &there[kind], here[kind]);
      td_free(&there[kind]);
      free(here[kind]);
    }
    td_free(&pointers_there);
    there_free(&g);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_batches),
      cmocka_unit_test(test_layers),
  };
  return cmocka_run_group_tests_name("cuda_commit", tests, NULL, NULL);
}
