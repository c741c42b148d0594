/* SPDX-License-Identifier: Apache-2.0 */
/* A deterministic model of several layers in which every bit of an output decides all later inputs, and its cache. */
#ifndef TESTS_TOY_MODEL_H
#define TESTS_TOY_MODEL_H

#include <treeattn/attention.h>

#include "guard.h"
#include "rng.h"

enum { TOY_MAX_LAYERS = 3, TOY_MAX_REQUESTS = 4, TOY_MAX_NODES = 32 };

typedef struct toy_model {
  int num_layers, num_heads, num_kv_heads, head_dim, head_dim_v, vocab_size;
  treeattn_dtype kv_dtype;
  float scale, softcap;
  int64_t window;
  const float *sinks; /* [num_heads] or NULL */
  uint64_t seed;
} toy_model;

/* A cache for several requests. Rows that nobody has written are NaN. */
typedef struct toy_cache {
  const toy_model *model;
  int num_requests;
  int64_t page_size, capacity; /* page_size 0: contiguous */
  int64_t num_blocks;          /* sequences, or pages */
  int32_t cache_index[TOY_MAX_REQUESTS];
  int32_t *page_tables[TOY_MAX_REQUESTS];
  int64_t page_table_len;
  guarded k[TOY_MAX_LAYERS], v[TOY_MAX_LAYERS];
} toy_cache;

void toy_cache_new(toy_cache *cache, const toy_model *model, int num_requests, int64_t capacity, int64_t page_size,
                   rng *r);
void toy_cache_free(toy_cache *cache);
/* Row `slot` of K (or V) of one layer, KV head and request. */
unsigned char *toy_cache_row(const toy_cache *cache, int layer, bool is_v, int request, int g, int64_t slot);
size_t toy_row_bytes(const toy_model *model, bool is_v);

/* Fills slots 0 .. prefix_len-1 of a request with rows that depend on the tokens and positions. */
void toy_prefill(const toy_cache *cache, int request, const int32_t *tokens, int64_t prefix_len);

/* What the model makes of one token at one place. */
typedef struct toy_output {
  float out[TOY_MAX_LAYERS][128]; /* [num_heads][head_dim_v] of each layer */
  float lse[TOY_MAX_LAYERS][8];
  int32_t next_token;
} toy_output;

/* A batch of nodes to run through all layers. */
typedef struct toy_request {
  int request; /* in the cache */
  int64_t prefix_len;
  int num_nodes;
  const int32_t *parents;
  const int32_t *tokens;
  bool by_level; /* attend level by level, as a drafter that grows the tree does */
} toy_request;

typedef struct toy_way {
  treeattn_isa isa;
  int num_workers;
  treeattn_executor executor;
} toy_way;

/* outputs[n][node]. All requests by_level, or none. */
void toy_run(const toy_cache *cache, const toy_way *way, const toy_request *requests, int num_requests,
             toy_output outputs[][TOY_MAX_NODES]);

/* Every bit of two outputs; `what` and `position` go into the message. */
void toy_check_same(const toy_model *model, const char *what, int64_t position, const toy_output *actual,
                    const toy_output *expected);

#endif
