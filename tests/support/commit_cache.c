/* SPDX-License-Identifier: Apache-2.0 */
/* Random caches and batches for compaction, and what must be in them afterwards. */
#include "commit_cache.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

static void identity(int32_t *items, int count) {
  for (int i = 0; i < count; i++) {
    items[i] = i;
  }
}

int commit_path_random(path_kind kind, int num_nodes, rng *r, int32_t *path) {
  int length = 0;
  if (num_nodes == 0) {
    return 0;
  }
  switch (kind) {
    case PATH_INCREASING: {
      const int one_in = rng_range(r, 1, 5);
      for (int32_t i = 0; i < num_nodes; i++) {
        if (rng_chance(r, one_in)) {
          path[length++] = i;
        }
      }
      break;
    }
    case PATH_ANY:
      identity(path, num_nodes);
      rng_shuffle(r, path, num_nodes);
      length = rng_range(r, 0, num_nodes);
      break;
    case PATH_PERMUTATION:
      identity(path, num_nodes);
      rng_shuffle(r, path, num_nodes);
      length = num_nodes;
      break;
    case PATH_ROTATION: {
      const int step = rng_below(r, num_nodes);
      for (int i = 0; i < num_nodes; i++) {
        path[i] = (i + step) % num_nodes;
      }
      length = num_nodes;
      break;
    }
    case PATH_SHIFT: {
      const int step = rng_range(r, 0, num_nodes / 2);
      length = rng_range(r, step, num_nodes - step);
      for (int i = 0; i < step; i++) {
        path[i] = num_nodes - step + i;
      }
      for (int i = step; i < length; i++) {
        path[i] = i - step;
      }
      break;
    }
    case PATH_IDENTITY:
    default:
      length = rng_range(r, 0, num_nodes);
      identity(path, length);
      break;
  }
  return length;
}

void commit_batch_random(commit_batch *batch, int page_size, rng *r) {
  *batch = (commit_batch){0};
  const int num_requests = rng_range(r, 0, CACHE_MAX_REQUESTS);
  const int max_nodes = PICK(r, ((const int[]){1, 4, 16, CACHE_MAX_NODES}));
  const int max_prefix = PICK(r, ((const int[]){0, 3, 40}));
  int64_t pages_needed = 0;
  int64_t longest = 0;
  for (int n = 0; n < num_requests; n++) {
    treeattn_commit_request *request = &batch->requests[n];
    request->prefix_len = rng_range(r, 0, max_prefix);
    request->num_nodes = rng_range(r, 0, max_nodes);
    request->path_len =
        commit_path_random((path_kind)rng_below(r, NUM_PATH_KINDS), (int)request->num_nodes, r, batch->paths[n]);
    request->path = batch->paths[n];
    const int64_t num_slots = request->prefix_len + request->num_nodes;
    longest = num_slots > longest ? num_slots : longest;
    if (page_size > 0) {
      request->page_table_len = (num_slots + page_size - 1) / page_size + rng_below(r, 3);
      pages_needed += request->page_table_len;
    }
  }
  /* Blocks in random order, with some that nobody uses between them. */
  const int spare = rng_range(r, 0, 3);
  batch->num_blocks = (page_size > 0 ? pages_needed : num_requests) + spare;
  batch->rows_per_block = page_size > 0 ? page_size : longest + rng_below(r, 4);
  int32_t *order = calloc((size_t)batch->num_blocks + 1, sizeof *order);
  CHECK(order != NULL, "out of memory");
  identity(order, (int)batch->num_blocks);
  rng_shuffle(r, order, (int)batch->num_blocks);
  int64_t next = 0;
  for (int n = 0; n < num_requests; n++) {
    treeattn_commit_request *request = &batch->requests[n];
    if (page_size == 0) {
      request->cache_index = order[next++];
      continue;
    }
    batch->page_tables[n] = calloc((size_t)request->page_table_len + 1, sizeof(int32_t));
    CHECK(batch->page_tables[n] != NULL, "out of memory");
    for (int64_t entry = 0; entry < request->page_table_len; entry++) {
      batch->page_tables[n][entry] = order[next++];
    }
    request->page_table = batch->page_tables[n];
  }
  free(order);
  batch->args = (treeattn_commit_args)TREEATTN_COMMIT_ARGS_INIT;
  batch->args.num_requests = num_requests;
  batch->args.requests = batch->requests;
  batch->args.page_size = page_size;
  if (page_size > 0) {
    batch->args.num_pages = batch->num_blocks;
  } else {
    batch->args.kv_capacity = batch->rows_per_block;
    batch->args.num_sequences = batch->num_blocks;
    batch->num_blocks = batch->num_blocks == 0 ? num_requests : batch->num_blocks;
  }
}

void commit_batch_free(commit_batch *batch) {
  for (int n = 0; n < CACHE_MAX_REQUESTS; n++) {
    free(batch->page_tables[n]);
  }
}

/* Strides for the dimensions in the order given, innermost first, with padding now and then. Returns the bytes
 * spanned. */
static size_t lay_out(size_t row_bytes, const int64_t *counts, const int *order, bool packed, rng *r, size_t *strides) {
  size_t inner = row_bytes;
  size_t span = row_bytes;
  for (int d = 0; d < 3; d++) {
    const int which = order[d];
    strides[which] = inner + (packed ? 0 : (size_t)rng_below(r, 5));
    span += counts[which] > 0 ? (size_t)(counts[which] - 1) * strides[which] : 0;
    inner = strides[which] * (size_t)(counts[which] > 0 ? counts[which] : 1);
  }
  return counts[0] * counts[1] * counts[2] == 0 ? 0 : span;
}

void commit_cache_random(commit_cache *cache, int64_t num_blocks, int64_t rows_per_block, int max_row_bytes, rng *r) {
  static const int orders[6][3] = {{2, 1, 0}, {1, 2, 0}, {2, 0, 1}, {0, 2, 1}, {1, 0, 2}, {0, 1, 2}};
  *cache = (commit_cache){0};
  cache->num_tensors = rng_range(r, 0, CACHE_MAX_TENSORS);
  for (int t = 0; t < cache->num_tensors; t++) {
    treeattn_commit_tensor *tensor = &cache->tensors[t];
    tensor->row_bytes = (size_t)rng_range(r, 1, rng_chance(r, 4) ? max_row_bytes : (max_row_bytes + 19) / 20);
    tensor->num_heads = rng_range(r, 1, 4);
    const int64_t counts[3] = {num_blocks, tensor->num_heads, rows_per_block};
    const bool defaults = rng_chance(r, 3);
    size_t strides[3];
    tensor->bytes = lay_out(tensor->row_bytes, counts, orders[defaults ? 0 : rng_below(r, 6)],
                            defaults || rng_chance(r, 2), r, strides);
    cache->stride_block[t] = strides[0];
    cache->stride_head[t] = strides[1];
    cache->stride_row[t] = strides[2];
    if (!defaults) {
      tensor->stride_block_bytes = (int64_t)strides[0];
      tensor->stride_head_bytes = (int64_t)strides[1];
      tensor->stride_row_bytes = (int64_t)strides[2];
    }
    cache->buffers[t] = guarded_new(tensor->bytes, rng_chance(r, 2));
    tensor->data = cache->buffers[t].data;
    for (size_t b = 0; b < tensor->bytes; b++) {
      cache->buffers[t].data[b] = (unsigned char)rng_next(r);
    }
  }
}

unsigned char *commit_cache_row(const commit_cache *cache, int t, int64_t block, int64_t head, int64_t row) {
  return cache->buffers[t].data + (size_t)block * cache->stride_block[t] + (size_t)head * cache->stride_head[t] +
         (size_t)row * cache->stride_row[t];
}

static unsigned char *slot_row(const commit_cache *cache, const commit_batch *batch, int n, int t, int64_t head,
                               int64_t slot) {
  const treeattn_commit_request *request = &batch->requests[n];
  if (batch->args.page_size == 0) {
    return commit_cache_row(cache, t, request->cache_index, head, slot);
  }
  return commit_cache_row(cache, t, request->page_table[slot / batch->args.page_size], head,
                          slot % batch->args.page_size);
}

void commit_cache_expect(commit_cache *cache, const commit_batch *batch) {
  for (int t = 0; t < cache->num_tensors; t++) {
    const unsigned char *before = cache->buffers[t].data;
    free(cache->expected[t]);
    cache->expected[t] = malloc(cache->tensors[t].bytes + 1);
    CHECK(cache->expected[t] != NULL, "out of memory");
    memcpy(cache->expected[t], before, cache->tensors[t].bytes);
    for (int n = 0; n < batch->args.num_requests; n++) {
      const treeattn_commit_request *request = &batch->requests[n];
      for (int64_t g = 0; g < cache->tensors[t].num_heads; g++) {
        for (int64_t i = 0; i < request->path_len; i++) {
          const unsigned char *src = slot_row(cache, batch, n, t, g, request->prefix_len + request->path[i]);
          const unsigned char *dst = slot_row(cache, batch, n, t, g, request->prefix_len + i);
          memcpy(cache->expected[t] + (dst - before), src, cache->tensors[t].row_bytes);
        }
      }
    }
  }
}

void commit_cache_check(const commit_cache *cache) {
  for (int t = 0; t < cache->num_tensors; t++) {
    for (size_t b = 0; b < cache->tensors[t].bytes; b++) {
      CHECK(cache->buffers[t].data[b] == cache->expected[t][b],
            "tensor %d, byte %zu of %zu is 0x%02x instead of 0x%02x", t, b, cache->tensors[t].bytes,
            cache->buffers[t].data[b], cache->expected[t][b]);
    }
    CHECK(guarded_intact(&cache->buffers[t]), "tensor %d: bytes outside the buffer were written", t);
  }
}

void commit_cache_free(commit_cache *cache) {
  for (int t = 0; t < cache->num_tensors; t++) {
    guarded_free(&cache->buffers[t]);
    free(cache->expected[t]);
  }
}

treeattn_commit_plan *commit_plan_new(const treeattn_commit_args *args, guarded *memory) {
  size_t plan_bytes = 0;
  treeattn_commit_plan *plan = NULL;
  CHECK_OK(treeattn_commit_plan_bytes(args, &plan_bytes, &error));
  *memory = guarded_new(plan_bytes + 1, true);
  CHECK_OK(treeattn_commit_plan_init(args, memory->data + 1, plan_bytes, &plan, &error));
  CHECK(memory->data[0] == 0xff && guarded_intact(memory), "the plan wrote outside its memory");
  return plan;
}
