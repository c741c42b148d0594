/* SPDX-License-Identifier: Apache-2.0 */
/* The KV cache of all layers, in the library's contiguous layout, and its compaction after a step. */
#ifndef GENERATE_CACHE_H
#define GENERATE_CACHE_H

#include <stdint.h>

#include <treeattn/base.h>

typedef struct gen_cache {
  int64_t num_layers, num_kv_heads, capacity, head_dim;
  size_t tensor_bytes; /* one layer's K, or V: [num_kv_heads][capacity][head_dim] f16 */
  size_t bytes;        /* all of it; pages are touched as slots are used */
  unsigned char *data; /* K of layer 0, V of layer 0, K of layer 1 .. */
} gen_cache;

treeattn_status gen_cache_create(gen_cache *cache, int64_t num_layers, int64_t num_kv_heads, int64_t head_dim,
                                 int64_t capacity, treeattn_error *error);
void gen_cache_destroy(gen_cache *cache);

void *gen_cache_keys(const gen_cache *cache, int64_t layer);
void *gen_cache_values(const gen_cache *cache, int64_t layer);

/* Moves the accepted path's rows to where decoding goes on, in every layer. */
treeattn_status gen_cache_commit(gen_cache *cache, int64_t prefix_len, int64_t num_nodes, const int32_t *path,
                                 int64_t path_len, treeattn_error *error);

#endif
