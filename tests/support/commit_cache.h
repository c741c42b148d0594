/* SPDX-License-Identifier: Apache-2.0 */
/* Random caches and batches for compaction, and what must be in them afterwards, worked out one row at a time. */
#ifndef TESTS_COMMIT_CACHE_H
#define TESTS_COMMIT_CACHE_H

#include <treeattn/commit.h>

#include "guard.h"
#include "rng.h"

enum { CACHE_MAX_REQUESTS = 5, CACHE_MAX_TENSORS = 6, CACHE_MAX_NODES = 48 };

typedef struct commit_batch {
  treeattn_commit_args args;
  treeattn_commit_request requests[CACHE_MAX_REQUESTS];
  int32_t paths[CACHE_MAX_REQUESTS][CACHE_MAX_NODES];
  int32_t *page_tables[CACHE_MAX_REQUESTS]; /* NULL when contiguous */
  int64_t num_blocks, rows_per_block;
} commit_batch;

typedef enum path_kind {
  PATH_INCREASING, /* what verification gives */
  PATH_ANY,        /* distinct nodes in any order */
  PATH_PERMUTATION,
  PATH_ROTATION, /* one or more long cycles */
  PATH_SHIFT,    /* node i to slot i + n behind others: a descending run */
  PATH_IDENTITY,
  NUM_PATH_KINDS
} path_kind;

/* Fills path and returns its length. */
int commit_path_random(path_kind kind, int num_nodes, rng *r, int32_t *path);

/* A random batch over a cache with room to spare; page_size 0 is contiguous. */
void commit_batch_random(commit_batch *batch, int page_size, rng *r);
void commit_batch_free(commit_batch *batch);

typedef struct commit_cache {
  int num_tensors;
  treeattn_commit_tensor tensors[CACHE_MAX_TENSORS];
  size_t stride_block[CACHE_MAX_TENSORS], stride_head[CACHE_MAX_TENSORS], stride_row[CACHE_MAX_TENSORS];
  guarded buffers[CACHE_MAX_TENSORS];
  unsigned char *expected[CACHE_MAX_TENSORS];
} commit_cache;

/* Tensors of any number of heads, row size, order of strides and padding, in buffers that end (or begin) at a guard
 * page. */
void commit_cache_random(commit_cache *cache, int64_t num_blocks, int64_t rows_per_block, int max_row_bytes, rng *r);
/* Works out what the batch must leave in the cache. */
void commit_cache_expect(commit_cache *cache, const commit_batch *batch);
/* Every byte of every buffer, and the guards. */
void commit_cache_check(const commit_cache *cache);
void commit_cache_free(commit_cache *cache);
unsigned char *commit_cache_row(const commit_cache *cache, int t, int64_t block, int64_t head, int64_t row);

/* Makes a plan in memory of exactly the size that was asked for, at an odd address. Free the memory after the plan's
 * last use. */
treeattn_commit_plan *commit_plan_new(const treeattn_commit_args *args, guarded *memory);

#endif
