/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rest of a decoding step on an NVIDIA GPU, so that nothing is read back between one step and the next:
 *
 *     treeattn_cuda_expand     parents and prefix lengths  ->  depths, positions, masks
 *     (the model: its layers, then logits of all nodes)
 *     treeattn_cuda_verify     logits, drafts, uniforms    ->  accepted path, its tokens, the token after it
 *     treeattn_cuda_commit     accepted path               ->  rows moved in every layer, the next prefix lengths
 *
 * Each is one launch on the caller's stream. None allocates, waits or reads back, so all can be captured in a graph.
 *
 * The batch lies in device memory. Requests are one after another: the nodes of request r are the elements offsets[r]
 * .. offsets[r + 1] - 1 of every [num_nodes] array and rows of every matrix. What device memory holds may change
 * between replays of a graph: trees, their sizes, prefix lengths, settings, uniforms, page tables, pointers of
 * tensors. What stands in the argument structs may not: addresses, strides, num_requests, num_nodes, max_nodes.
 *
 * Results have the bits of the CPU's functions (tree.h, verify.h, commit.h), whatever the device, the batch or the
 * place in it. That includes every probability of a decision: sums over the vocabulary have the CPU's order.
 *
 * Errors come in two ways. What the host can know (sizes, strides, a NULL, a host pointer) is the returned status
 * with its message, and nothing is enqueued. What only the device can know (a parent, a NaN, a path, an offset) is
 * the outcome of that request alone, in device memory; its outputs are then left as they were and other requests are
 * not touched.
 */
#ifndef TREEATTN_CUDA_STEP_H
#define TREEATTN_CUDA_STEP_H

#include <treeattn/treeattn_cuda.h>
#include <treeattn/verify.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the batch --------------------------------------------------------------------------------------------- */

#define TREEATTN_CUDA_STEP_MAX_NODES 4096

typedef struct treeattn_cuda_batch {
  int64_t num_requests; /* 0 to 65535 */
  int64_t num_nodes;    /* elements of every [num_nodes] array, below 2^31; offsets may use fewer */
  int64_t max_nodes; /* of one request, at most TREEATTN_CUDA_STEP_MAX_NODES; a larger one is refused on the device */
  const int32_t *offsets; /* [num_requests + 1], device memory: from 0 up, never falling */
} treeattn_cuda_batch;

/* The array that an outcome speaks of, and what `index` and `column` say. -1 where there is nothing to say. */
typedef enum treeattn_cuda_field {
  TREEATTN_CUDA_FIELD_NONE = 0,
  TREEATTN_CUDA_FIELD_OFFSETS = 1,
  TREEATTN_CUDA_FIELD_PARENTS = 2, /* index: the node */
  TREEATTN_CUDA_FIELD_PREFIX_LENS = 3,
  TREEATTN_CUDA_FIELD_MASK = 4, /* its row_stride is below the columns. column: 0 bits, 1 bool, 2 f32 */
  TREEATTN_CUDA_FIELD_SETTINGS = 5,
  TREEATTN_CUDA_FIELD_TOKENS = 6,       /* index: the node */
  TREEATTN_CUDA_FIELD_ARGMAX = 7,       /* index: the node */
  TREEATTN_CUDA_FIELD_LOGITS = 8,       /* index: the node; column: the vocabulary index, -1: no token has a weight */
  TREEATTN_CUDA_FIELD_PROBS = 9,        /* likewise */
  TREEATTN_CUDA_FIELD_DRAFT_PROBS = 10, /* likewise; index -1: absent, but the method needs it */
  TREEATTN_CUDA_FIELD_UNIFORMS = 11,    /* index: the place in the request's uniforms, -1: absent */
  TREEATTN_CUDA_FIELD_NUM_PATH = 12,
  TREEATTN_CUDA_FIELD_PATH = 13,        /* index: the place in the path */
  TREEATTN_CUDA_FIELD_CACHE_INDEX = 14, /* index: the request that shares the sequence, -1: out of range */
  TREEATTN_CUDA_FIELD_PAGE_TABLE =
      15,                          /* index: the entry; column: the request that shares the page, -1: out of range */
  TREEATTN_CUDA_FIELD_TENSORS = 16 /* a NULL. index: the tensor; column: the group */
} treeattn_cuda_field;

/* What became of one request, written to device memory by every call. */
typedef struct treeattn_cuda_outcome {
  int32_t status; /* a treeattn_status */
  int32_t field;  /* a treeattn_cuda_field */
  int32_t index;
  int32_t column;
} treeattn_cuda_outcome;

/* An outcome that was copied to the host, in words: returns its status and, unless that is OK, fills *error. */
TREEATTN_API treeattn_status treeattn_cuda_outcome_explain(const treeattn_cuda_outcome *outcome, int64_t request,
                                                           treeattn_error *error);

/* ---- depths, positions, masks ------------------------------------------------------------------------------ */

/* Rows of a mask for all nodes of the batch; node i of request r is row offsets[r] + i. data NULL: not wanted. */
typedef struct treeattn_cuda_mask {
  void *data;
  size_t bytes;
  int64_t row_stride; /* elements (bits: bytes), at least the columns of every request. Rows are written in full */
} treeattn_cuda_mask;

typedef struct treeattn_cuda_expand_args {
  size_t struct_size;
  treeattn_cuda_batch batch;
  const int32_t *parents;     /* [num_nodes] */
  const int32_t *prefix_lens; /* [num_requests], or NULL: all 0 */
  int32_t *depths;            /* [num_nodes], or NULL */
  int32_t *positions;         /* [num_nodes], or NULL */
  /* As treeattn_tree_get_mask_bits, _bool and _f32 write them. Columns are the nodes of the request, the last N
   * slots; with prefix_columns not 0 those of the prefix come before them. */
  int32_t prefix_columns;
  treeattn_cuda_mask mask_bits, mask_bool, mask_f32;
  treeattn_cuda_outcome *outcomes; /* [num_requests] */
  treeattn_cuda_stream stream;
} treeattn_cuda_expand_args;

/* INVALID_TREE with the node's number for parents out of order or range (a cycle cannot be in order); OVERFLOW for
 * positions that do not fit int32_t. */
TREEATTN_API treeattn_status treeattn_cuda_expand(const treeattn_cuda_expand_args *args, treeattn_error *error);

/* ---- verification ------------------------------------------------------------------------------------------ */

/* As in treeattn_verify_request. */
typedef struct treeattn_cuda_verify_settings {
  int32_t method; /* a treeattn_verify_method */
  float temperature;
  float typical_epsilon; /* 0: 0.09 */
  float typical_delta;   /* 0: 0.3 */
} treeattn_cuda_verify_settings;

typedef struct treeattn_cuda_verify_args {
  size_t struct_size;
  treeattn_cuda_batch batch;
  int64_t vocab_size;     /* 1 to 2^31 - 1. May be 0 with argmax */
  const int32_t *parents; /* [num_nodes] */
  const int32_t *tokens;  /* [num_nodes]; those of nodes 0 are not read */
  /* Of all requests; or one for each, in device memory. */
  treeattn_cuda_verify_settings settings;
  const treeattn_cuda_verify_settings *request_settings; /* [num_requests], or NULL */
  /* Exactly one of the three, of all nodes of the batch. data is device memory. Only rows on the walked path are
   * read. */
  const int32_t *argmax; /* [num_nodes] */
  treeattn_verify_rows logits;
  treeattn_verify_rows probs;
  treeattn_verify_rows draft_probs; /* where a method needs it */
  const float *uniforms;            /* [num_nodes]: one for each decision of a request, in order; or NULL */
  /* Results of request r: path and path_tokens from offsets[r] on, num_path[r] entries of each. Later entries stay. */
  int32_t *path;                       /* [num_nodes] */
  int32_t *path_tokens;                /* [num_nodes] */
  int32_t *num_path;                   /* [num_requests] */
  int32_t *last_tokens;                /* [num_requests], or NULL: path_tokens[num_path - 1] of requests with nodes */
  treeattn_verify_decision *decisions; /* [num_nodes], or NULL; num_decisions[r] of them from offsets[r] on */
  int32_t *num_decisions;              /* [num_requests]; NULL if decisions is */
  treeattn_cuda_outcome *outcomes;     /* [num_requests] */
  void *scratch;                       /* aligned to 256; its content does not matter before or after */
  size_t scratch_bytes;
  treeattn_cuda_stream stream;
} treeattn_cuda_verify_args;

/* The scratch that treeattn_cuda_verify needs: about 8 bytes a vocabulary entry for each request, twice that with
 * draft_probs, little where settings say that all requests are greedy. Reads no device memory. */
TREEATTN_API treeattn_status treeattn_cuda_verify_scratch_bytes(const treeattn_cuda_verify_args *args,
                                                                size_t *scratch_bytes, treeattn_error *error);
TREEATTN_API treeattn_status treeattn_cuda_verify(const treeattn_cuda_verify_args *args, treeattn_error *error);

/* ---- compaction -------------------------------------------------------------------------------------------- */

/*
 * Tensors of one shape: the keys of all layers, say. They are found through pointers in device memory or from the
 * first one by a stride. The shape is that of treeattn_commit_tensor, with its defaults; rows move as bytes. Not
 * checked: that pointers in device memory lead to `bytes` bytes each, and that no tensor is there twice.
 */
typedef struct treeattn_cuda_commit_group {
  void *const *tensors; /* [num_tensors] device pointers, in device memory; NULL: */
  void *base;           /* tensor t is at base + t * stride_tensor_bytes */
  int64_t stride_tensor_bytes;
  int64_t num_tensors;
  size_t bytes;                                                    /* of each tensor */
  size_t row_bytes;                                                /* 1 or more */
  int64_t num_heads;                                               /* 1 or more */
  int64_t stride_block_bytes, stride_head_bytes, stride_row_bytes; /* 0: packed */
} treeattn_cuda_commit_group;

#define TREEATTN_CUDA_COMMIT_MAX_GROUPS 8

typedef struct treeattn_cuda_commit_args {
  size_t struct_size;
  treeattn_cuda_batch batch;
  const int32_t *path; /* [num_nodes], as treeattn_cuda_verify writes it: a path must increase, as all from a root do */
  const int32_t *num_path; /* [num_requests] */
  /* [num_requests], or NULL: what the verification said. A request that is not OK there moves nothing and has that
   * outcome. */
  const treeattn_cuda_outcome *verified;
  const int32_t *prefix_lens; /* [num_requests] */
  /* The cache, as in treeattn_commit_args. */
  int64_t page_size;
  int64_t kv_capacity;
  int64_t num_sequences; /* 0: num_requests */
  int64_t num_pages;
  const int32_t *cache_indices; /* contiguous: [num_requests], or NULL: request r is sequence r */
  const int32_t *page_table;    /* paged: [num_requests][page_table_stride] */
  int64_t page_table_stride;
  /* Host memory, read before the call returns. */
  const treeattn_cuda_commit_group *groups; /* [num_groups] */
  int64_t num_groups;                       /* 0 to TREEATTN_CUDA_COMMIT_MAX_GROUPS */
  size_t group_bytes;                       /* sizeof(treeattn_cuda_commit_group) */
  int32_t *next_prefix_lens;       /* [num_requests], or NULL: prefix_lens[r] + num_path[r]. Not prefix_lens itself */
  treeattn_cuda_outcome *outcomes; /* [num_requests] */
  treeattn_cuda_stream stream;
} treeattn_cuda_commit_args;

/* Moves rows as treeattn_commit_apply does. A request that moves something and shares a sequence, or a page that
 * holds nodes, with another is refused. */
TREEATTN_API treeattn_status treeattn_cuda_commit(const treeattn_cuda_commit_args *args, treeattn_error *error);

#ifdef __cplusplus
}

static inline treeattn_cuda_expand_args treeattn_cuda_expand_args_init() {
  treeattn_cuda_expand_args value = treeattn_cuda_expand_args();
  value.struct_size = sizeof value;
  return value;
}

static inline treeattn_cuda_verify_args treeattn_cuda_verify_args_init() {
  treeattn_cuda_verify_args value = treeattn_cuda_verify_args();
  value.struct_size = sizeof value;
  value.settings.temperature = 1.0f;
  return value;
}

static inline treeattn_cuda_commit_args treeattn_cuda_commit_args_init() {
  treeattn_cuda_commit_args value = treeattn_cuda_commit_args();
  value.struct_size = sizeof value;
  value.group_bytes = sizeof(treeattn_cuda_commit_group);
  return value;
}
#define TREEATTN_CUDA_EXPAND_ARGS_INIT treeattn_cuda_expand_args_init()
#define TREEATTN_CUDA_VERIFY_ARGS_INIT treeattn_cuda_verify_args_init()
#define TREEATTN_CUDA_COMMIT_ARGS_INIT treeattn_cuda_commit_args_init()
#else
#define TREEATTN_CUDA_EXPAND_ARGS_INIT \
  { .struct_size = sizeof(treeattn_cuda_expand_args) }
#define TREEATTN_CUDA_VERIFY_ARGS_INIT                                                   \
  {                                                                                      \
    .struct_size = sizeof(treeattn_cuda_verify_args), .settings = {.temperature = 1.0f } \
  }
#define TREEATTN_CUDA_COMMIT_ARGS_INIT \
  { .struct_size = sizeof(treeattn_cuda_commit_args), .group_bytes = sizeof(treeattn_cuda_commit_group) }
#endif
#endif
