/* SPDX-License-Identifier: Apache-2.0 */
/* Compaction: the moves that bring an accepted path to where decoding goes on. */
#ifndef TREEATTN_COMMIT_H
#define TREEATTN_COMMIT_H

#include <treeattn/attention.h>
#include <treeattn/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The problem
 *
 * A request has P tokens in cache slots 0 .. P-1 and N draft nodes, node i in slot P+i. Verification accepts a path
 * of nodes path[0], path[1], .. Afterwards decoding wants them to be ordinary tokens:
 *
 *     slot P+i holds what slot P+path[i] held, for every i below path_len
 *
 * and nothing else has changed: not slots from P+path_len on, not other requests, not the bytes between rows. Keys
 * keep the position that they were rotated for, since a node's position is P + depth and its new slot is just that.
 *
 * Two ways
 *
 *  - Moving rows: a commit plan, made once per step for the whole batch, then applied to every tensor of the cache
 *    (K and V of each layer, scales of a quantised cache, ..). Rows move as bytes; nothing is interpreted.
 *  - Moving names: engines that look up each token's slot in a table (pages of one slot) permute the table instead:
 *    treeattn_commit_remap.
 *
 * What is guaranteed: the result is that of reading every source row before writing any, in place and for every path,
 * increasing or not, that names no node twice. Applying allocates nothing and needs no scratch. The same plan may be
 * applied by several threads at once to different tensors.
 *
 * What is not: that a path is one of the draft tree (any distinct nodes are accepted), or that a row means the same
 * thing in another slot. Formats that share a scale between several tokens do not move by rows.
 */

/* ---- the plan --------------------------------------------------------------------------------------------- */

/* One request of a batch. Requests without nodes, or with an empty path, are welcome and move nothing. */
typedef struct treeattn_commit_request {
  int64_t prefix_len; /* P */
  int64_t num_nodes;  /* N, 0 or more */

  const int32_t *path; /* [path_len], distinct nodes, 0 <= path[i] < N */
  int64_t path_len;    /* 0 .. N */

  /* Contiguous cache: which sequence of the cache this request owns. Paged: ignored. */
  int64_t cache_index;
  /* Paged cache: page_table[s / page_size] is the page that holds slot s. Entries before P's page are not looked at. */
  const int32_t *page_table;
  int64_t page_table_len;
} treeattn_commit_request;

#define TREEATTN_COMMIT_REQUEST_INIT \
  { 0, 0, 0, 0, 0, 0, 0 }

typedef struct treeattn_commit_args {
  size_t struct_size;

  int64_t num_requests;
  const treeattn_commit_request *requests;
  size_t request_bytes; /* sizeof(treeattn_commit_request), so that the array can grow with later versions */

  int64_t page_size;     /* 0: contiguous cache. Otherwise slots per page, 1 or more */
  int64_t kv_capacity;   /* contiguous: slots per sequence, at least every P + N. Paged: ignored */
  int64_t num_sequences; /* contiguous: sequences in the cache; 0: num_requests. Paged: ignored */
  int64_t num_pages;     /* paged: pages in the cache. Contiguous: ignored */
} treeattn_commit_args;

#define TREEATTN_COMMIT_ARGS_INIT \
  { sizeof(treeattn_commit_args), 0, 0, sizeof(treeattn_commit_request), 0, 0, 0, 0 }

typedef struct treeattn_commit_plan treeattn_commit_plan;

/* The bytes that treeattn_commit_plan_init needs for these arguments. Checks sizes, not the content of paths. */
TREEATTN_API treeattn_status treeattn_commit_plan_bytes(const treeattn_commit_args *args, size_t *plan_bytes,
                                                        treeattn_error *error);

/*
 * Checks everything and makes a plan inside `memory` (any alignment, at least treeattn_commit_plan_bytes), which must
 * outlive the plan and not move. *plan points into it; there is nothing to destroy. All arrays of the arguments may
 * be released afterwards. On failure *plan is NULL.
 * Refused, naming request and value: a node that is out of range or named twice, a page out of range, slots beyond the
 * capacity or the page table, a page that holds nodes of a request twice, and a sequence or page with nodes of two
 * requests of which one moves anything. Pages of the prefix alone may be shared; they are not looked at.
 */
TREEATTN_API treeattn_status treeattn_commit_plan_init(const treeattn_commit_args *args, void *memory,
                                                       size_t memory_bytes, treeattn_commit_plan **plan,
                                                       treeattn_error *error);

/* The same with memory from malloc. Destroy with treeattn_commit_plan_destroy, which accepts NULL. */
TREEATTN_API treeattn_status treeattn_commit_plan_create(const treeattn_commit_args *args, treeattn_commit_plan **plan,
                                                         treeattn_error *error);
TREEATTN_API void treeattn_commit_plan_destroy(treeattn_commit_plan *plan);

/*
 * One move: num_rows consecutive rows, from row src_row of block src_block to row dst_row of block dst_block, for
 * every head of every tensor. A block is a sequence of a contiguous cache or a page of a paged one; a row is a slot
 * in it. Moves are made one after another, each as if all its rows were read before any is written. Rows that
 * already are where they belong do not appear, and a run never crosses a page edge. A path that is not increasing
 * can hold a cycle (path 1, 0 swaps two rows). Its first move then goes to the block TREEATTN_COMMIT_TEMPORARY, one
 * row that the engine keeps aside, and its last move comes from there; such moves are of one row each.
 */
typedef struct treeattn_commit_move {
  int64_t src_block, src_row;
  int64_t dst_block, dst_row;
  int64_t num_rows;
} treeattn_commit_move;

#define TREEATTN_COMMIT_TEMPORARY ((int64_t)-1)

typedef struct treeattn_commit_plan_info {
  size_t struct_size;
  int64_t num_moves;
  int64_t num_rows;   /* rows written in each head of each tensor, the temporary row not counted */
  int64_t num_cycles; /* times that the temporary row is used; 0 for increasing paths */
} treeattn_commit_plan_info;

#define TREEATTN_COMMIT_PLAN_INFO_INIT \
  { sizeof(treeattn_commit_plan_info), 0, 0, 0 }

TREEATTN_API treeattn_status treeattn_commit_plan_get_info(const treeattn_commit_plan *plan,
                                                           treeattn_commit_plan_info *info, treeattn_error *error);

/* The moves in order, for engines that make them with their own code (on a device, say). capacity counts moves. */
TREEATTN_API treeattn_status treeattn_commit_plan_get_moves(const treeattn_commit_plan *plan,
                                                            treeattn_commit_move *moves, int64_t capacity,
                                                            treeattn_error *error);

/* ---- moving rows ------------------------------------------------------------------------------------------ */

/*
 * One tensor of the cache. Its row of (block, head, row) is row_bytes bytes at
 *
 *     data + block * stride_block_bytes + head * stride_head_bytes + row * stride_row_bytes
 *
 * A stride of 0 is that of the packed order [blocks][num_heads][rows][row_bytes]. Other orders are served too: tokens
 * outside heads, K and V interleaved in one buffer, or a transposed V (each channel as a head with rows of one
 * element). Rows of one tensor, and of different tensors of one call, must not overlap; where V is a part of K's
 * rows (MLA), pass K alone.
 */
typedef struct treeattn_commit_tensor {
  void *data;
  size_t bytes;      /* what the caller owns from data on; checked against the shape */
  size_t row_bytes;  /* 1 or more */
  int64_t num_heads; /* KV heads, 1 or more */
  int64_t stride_block_bytes, stride_head_bytes, stride_row_bytes;
} treeattn_commit_tensor;

#define TREEATTN_COMMIT_TENSOR_INIT \
  { 0, 0, 0, 0, 0, 0, 0 }

typedef struct treeattn_commit_run_args {
  size_t struct_size;
  int64_t num_tensors;
  const treeattn_commit_tensor *tensors;
  size_t tensor_bytes;        /* sizeof(treeattn_commit_tensor) */
  treeattn_executor executor; /* tasks are the (tensor, head) pairs */
} treeattn_commit_run_args;

#define TREEATTN_COMMIT_RUN_ARGS_INIT                                         \
  {                                                                           \
    sizeof(treeattn_commit_run_args), 0, 0, sizeof(treeattn_commit_tensor), { \
      0, 0                                                                    \
    }                                                                         \
  }

/* Makes the moves of the plan in every head of every tensor. Call it once for a whole cache or once for each layer.
 * Refused, with nothing moved: a buffer smaller than its shape, strides that let rows overlap, two tensors with the
 * same data. */
TREEATTN_API treeattn_status treeattn_commit_apply(const treeattn_commit_plan *plan,
                                                   const treeattn_commit_run_args *run, treeattn_error *error);

/* The same as independent tasks, for engines whose threads already run: check once, then call the task for every index
 * below *num_tasks. Tasks check nothing and cannot fail; an index out of range does nothing. */
TREEATTN_API treeattn_status treeattn_commit_check(const treeattn_commit_plan *plan,
                                                   const treeattn_commit_run_args *run, int64_t *num_tasks,
                                                   treeattn_error *error);
TREEATTN_API void treeattn_commit_task(const treeattn_commit_plan *plan, const treeattn_commit_run_args *run,
                                       int64_t task);

/* ---- moving names ----------------------------------------------------------------------------------------- */

/*
 * The commit of an engine that finds each token's row through a table: no row moves. The new order of the N nodes is
 * the path, then the nodes that were not accepted, ascending:
 *
 *     remapped[i] = slots[order of i]       i < path_len: a token of the sequence; from path_len on: free to use again
 *
 * `slots` is [num_nodes], where the nodes are now (the part of a page table from P on, for pages of one slot), or
 * NULL for 0, 1, 2, .. so that `remapped` is the order itself. `remapped` and `scratch` are [num_nodes] and overlap
 * no input.
 */
TREEATTN_API treeattn_status treeattn_commit_remap(int64_t num_nodes, const int32_t *path, int64_t path_len,
                                                   const int32_t *slots, int32_t *remapped, int32_t *scratch,
                                                   treeattn_error *error);

/* ---- going back ------------------------------------------------------------------------------------------- */

/* Where a request stands once its last tokens are dropped. Rows stay as they are: slots past kv_seq_len are never
 * read. */
typedef struct treeattn_commit_rewound {
  int64_t kv_seq_len;
  int64_t num_pages;       /* page table entries still in use: [0, num_pages). 0 for a contiguous cache */
  int64_t num_freed_pages; /* entries [num_pages, num_pages + num_freed_pages) hold nothing any more */
} treeattn_commit_rewound;

/* Drops the last num_tokens of kv_seq_len slots: rejected drafts after a commit (num_nodes - path_len), or tokens
 * that the caller takes back. page_size 0: contiguous cache. */
TREEATTN_API treeattn_status treeattn_commit_rewind(int64_t kv_seq_len, int64_t num_tokens, int64_t page_size,
                                                    treeattn_commit_rewound *rewound, treeattn_error *error);

#ifdef __cplusplus
}
#endif
#endif
