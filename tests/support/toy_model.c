/* SPDX-License-Identifier: Apache-2.0 */
/* A deterministic model in which every bit of an output decides all later inputs. */
#include "toy_model.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "halves.h"
#include "trees.h"

static uint64_t mix(uint64_t state, uint64_t value) {
  rng r = {state ^ (value * UINT64_C(0xff51afd7ed558ccd))};
  return rng_next(&r);
}

static uint64_t mix_floats(uint64_t state, const float *values, int count) {
  for (int n = 0; n < count; n++) {
    uint32_t bits;
    memcpy(&bits, &values[n], sizeof bits);
    state = mix(state, bits);
  }
  return state;
}

static uint64_t token_state(const toy_model *model, int32_t token, int64_t position) {
  return mix(mix(model->seed, (uint64_t)token), (uint64_t)position);
}

size_t toy_row_bytes(const toy_model *model, bool is_v) {
  return (size_t)(is_v ? model->head_dim_v : model->head_dim) * treeattn_dtype_bytes(model->kv_dtype);
}

void toy_cache_new(toy_cache *cache, const toy_model *model, int num_requests, int64_t capacity, int64_t page_size,
                   rng *r) {
  *cache = (toy_cache){.model = model, .num_requests = num_requests, .page_size = page_size, .capacity = capacity};
  cache->page_table_len = page_size > 0 ? (capacity + page_size - 1) / page_size : 0;
  cache->num_blocks = (page_size > 0 ? num_requests * cache->page_table_len : num_requests) + rng_below(r, 3);
  int32_t *order = calloc((size_t)cache->num_blocks, sizeof *order);
  CHECK(order != NULL, "out of memory");
  for (int32_t n = 0; n < cache->num_blocks; n++) {
    order[n] = n;
  }
  rng_shuffle(r, order, (int)cache->num_blocks);
  int64_t next = 0;
  for (int n = 0; n < num_requests; n++) {
    if (page_size == 0) {
      cache->cache_index[n] = order[next++];
      continue;
    }
    cache->page_tables[n] = calloc((size_t)cache->page_table_len, sizeof(int32_t));
    CHECK(cache->page_tables[n] != NULL, "out of memory");
    for (int64_t entry = 0; entry < cache->page_table_len; entry++) {
      cache->page_tables[n][entry] = order[next++];
    }
  }
  free(order);
  const size_t rows =
      (size_t)cache->num_blocks * (size_t)model->num_kv_heads * (size_t)(page_size > 0 ? page_size : capacity);
  for (int layer = 0; layer < model->num_layers; layer++) {
    cache->k[layer] = guarded_new(rows * toy_row_bytes(model, false), rng_chance(r, 2));
    cache->v[layer] = guarded_new(rows * toy_row_bytes(model, true), rng_chance(r, 2));
  }
}

void toy_cache_free(toy_cache *cache) {
  for (int layer = 0; layer < cache->model->num_layers; layer++) {
    CHECK(guarded_intact(&cache->k[layer]) && guarded_intact(&cache->v[layer]), "layer %d: written outside the cache",
          layer);
    guarded_free(&cache->k[layer]);
    guarded_free(&cache->v[layer]);
  }
  for (int n = 0; n < cache->num_requests; n++) {
    free(cache->page_tables[n]);
  }
}

unsigned char *toy_cache_row(const toy_cache *cache, int layer, bool is_v, int request, int g, int64_t slot) {
  const int64_t rows_per_block = cache->page_size > 0 ? cache->page_size : cache->capacity;
  const int64_t block =
      cache->page_size > 0 ? cache->page_tables[request][slot / cache->page_size] : cache->cache_index[request];
  const int64_t row = (block * cache->model->num_kv_heads + g) * rows_per_block + slot % rows_per_block;
  return (is_v ? cache->v : cache->k)[layer].data + (size_t)row * toy_row_bytes(cache->model, is_v);
}

/* K, V and Q rows of a token in one layer. q may be NULL. */
static void write_rows(const toy_cache *cache, int layer, int request, int64_t slot, uint64_t state, float *q,
                       int64_t q_stride_head) {
  const toy_model *model = cache->model;
  rng r = {mix(state, 1000u + (uint64_t)layer)};
  for (int g = 0; g < model->num_kv_heads; g++) {
    for (int side = 0; side < 2; side++) {
      unsigned char *row = toy_cache_row(cache, layer, side == 1, request, g, slot);
      for (int d = 0; d < (side == 1 ? model->head_dim_v : model->head_dim); d++) {
        element_store(model->kv_dtype, row, d, rng_signed(&r));
      }
    }
  }
  for (int h = 0; h < model->num_heads && q != NULL; h++) {
    for (int d = 0; d < model->head_dim; d++) {
      q[h * q_stride_head + d] = 3.0f * rng_signed(&r);
    }
  }
}

void toy_prefill(const toy_cache *cache, int request, const int32_t *tokens, int64_t prefix_len) {
  for (int64_t p = 0; p < prefix_len; p++) {
    for (int layer = 0; layer < cache->model->num_layers; layer++) {
      write_rows(cache, layer, request, p, token_state(cache->model, tokens[p], p), NULL, 0);
    }
  }
}

typedef struct node_state {
  int request, node;
  int64_t slot;
  uint64_t state;
} node_state;

/* One pass of the model over the given rows: the nodes of all requests, or those of one level. */
static void run_rows(const toy_cache *cache, const toy_way *way, const treeattn_request *requests, int num_requests,
                     const toy_request *toys, node_state *rows, int num_rows, toy_output outputs[][TOY_MAX_NODES]) {
  const toy_model *model = cache->model;
  treeattn_plan_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.num_requests = num_requests;
  args.requests = requests;
  args.request_bytes = sizeof *requests;
  args.num_heads = model->num_heads;
  args.num_kv_heads = model->num_kv_heads;
  args.head_dim = model->head_dim;
  args.head_dim_v = model->head_dim_v;
  args.kv_dtype = model->kv_dtype;
  args.scale = model->scale;
  args.softcap = model->softcap;
  args.window = model->window;
  args.page_size = cache->page_size;
  args.kv_capacity = cache->capacity;
  args.num_sequences = cache->num_blocks;
  args.num_pages = cache->num_blocks;
  args.isa = way->isa;
  args.num_workers = way->num_workers;
  treeattn_plan *plan = NULL;
  CHECK_OK(treeattn_plan_create(&args, &plan, &error));
  treeattn_plan_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  CHECK_OK(treeattn_plan_get_info(plan, &info, &error));
  CHECK(info.num_query_rows == num_rows, "%lld rows instead of %d", (long long)info.num_query_rows, num_rows);
  guarded q = guarded_new(info.q_bytes, true);
  guarded out = guarded_new(info.out_bytes, false);
  guarded lse = guarded_new(info.lse_bytes, false);
  guarded scratch = guarded_new(info.scratch_bytes, false);
  const int64_t q_stride_head = (int64_t)num_rows * model->head_dim;
  const int out_width = model->num_heads * model->head_dim_v;
  for (int layer = 0; layer < model->num_layers; layer++) {
    for (int n = 0; n < num_rows; n++) {
      write_rows(cache, layer, toys[rows[n].request].request, rows[n].slot, rows[n].state,
                 (float *)(void *)q.data + n * model->head_dim, q_stride_head);
    }
    treeattn_run_args run;
    memset(&run, 0, sizeof run);
    run.struct_size = sizeof run;
    run.q = q.data;
    run.q_bytes = q.bytes;
    run.k = cache->k[layer].data;
    run.k_bytes = cache->k[layer].bytes;
    run.v = cache->v[layer].data;
    run.v_bytes = cache->v[layer].bytes;
    run.sinks = model->sinks;
    run.sinks_bytes = model->sinks == NULL ? 0 : (size_t)model->num_heads * sizeof(float);
    run.out = out.data;
    run.out_bytes = out.bytes;
    run.lse = (float *)(void *)lse.data;
    run.lse_bytes = lse.bytes;
    run.scratch = scratch.data;
    run.scratch_bytes = scratch.bytes;
    run.executor = way->executor;
    CHECK_OK(treeattn_attend(plan, &run, &error));
    for (int n = 0; n < num_rows; n++) {
      toy_output *output = &outputs[rows[n].request][rows[n].node];
      memcpy(output->out[layer], (const float *)(const void *)out.data + n * out_width,
             (size_t)out_width * sizeof(float));
      memcpy(output->lse[layer], (const float *)(const void *)lse.data + n * model->num_heads,
             (size_t)model->num_heads * sizeof(float));
      rows[n].state = mix_floats(rows[n].state, output->out[layer], out_width);
      rows[n].state = mix_floats(rows[n].state, output->lse[layer], model->num_heads);
      output->next_token = (int32_t)(rows[n].state % (uint64_t)model->vocab_size);
    }
  }
  treeattn_plan_destroy(plan);
  guarded_free(&q);
  guarded_free(&out);
  guarded_free(&lse);
  guarded_free(&scratch);
}

void toy_run(const toy_cache *cache, const toy_way *way, const toy_request *toys, int num_requests,
             toy_output outputs[][TOY_MAX_NODES]) {
  treeattn_request requests[TOY_MAX_REQUESTS];
  int32_t depths[TOY_MAX_REQUESTS][TOY_MAX_NODES];
  int32_t queries[TOY_MAX_REQUESTS][TOY_MAX_NODES];
  int num_levels = 1;
  bool by_level = false;
  for (int n = 0; n < num_requests; n++) {
    memset(&requests[n], 0, sizeof requests[n]);
    requests[n].num_nodes = toys[n].num_nodes;
    requests[n].prefix_len = toys[n].prefix_len;
    requests[n].kv_seq_len = TREEATTN_AUTO;
    requests[n].mask_kind = TREEATTN_MASK_PARENTS;
    requests[n].mask = toys[n].parents;
    requests[n].mask_bytes = (size_t)toys[n].num_nodes * sizeof(int32_t);
    requests[n].cache_index = cache->cache_index[toys[n].request];
    requests[n].page_table = cache->page_tables[toys[n].request];
    requests[n].page_table_len = cache->page_table_len;
    tree_depths(toys[n].parents, toys[n].num_nodes, depths[n]);
    by_level = by_level || toys[n].by_level;
    for (int i = 0; i < toys[n].num_nodes; i++) {
      num_levels = depths[n][i] + 1 > num_levels ? depths[n][i] + 1 : num_levels;
    }
  }
  for (int level = 0; level < (by_level ? num_levels : 1); level++) {
    node_state rows[TOY_MAX_REQUESTS * TOY_MAX_NODES];
    int num_rows = 0;
    for (int n = 0; n < num_requests; n++) {
      int64_t num_queries = 0;
      for (int32_t i = 0; i < toys[n].num_nodes; i++) {
        if (by_level && depths[n][i] != level) {
          continue;
        }
        rows[num_rows++] =
            (node_state){n, i, toys[n].prefix_len + i,
                         token_state(cache->model, toys[n].tokens[i], toys[n].prefix_len + depths[n][i])};
        queries[n][num_queries++] = i;
      }
      requests[n].query_nodes = by_level ? queries[n] : NULL;
      requests[n].num_queries = num_queries;
    }
    run_rows(cache, way, requests, num_requests, toys, rows, num_rows, outputs);
  }
}

void toy_check_same(const toy_model *model, const char *what, int64_t position, const toy_output *actual,
                    const toy_output *expected) {
  for (int layer = 0; layer < model->num_layers; layer++) {
    const size_t out_bytes = (size_t)(model->num_heads * model->head_dim_v) * sizeof(float);
    const size_t lse_bytes = (size_t)model->num_heads * sizeof(float);
    CHECK(memcmp(actual->out[layer], expected->out[layer], out_bytes) == 0 &&
              memcmp(actual->lse[layer], expected->lse[layer], lse_bytes) == 0,
          "%s: position %lld, layer %d: not the bits of plain decoding", what, (long long)position, layer);
  }
  CHECK(actual->next_token == expected->next_token, "%s: position %lld: another token", what, (long long)position);
}
