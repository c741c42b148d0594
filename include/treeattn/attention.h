/* SPDX-License-Identifier: Apache-2.0 */
/* Tree attention: a plan made once per decoding step, and a run for each layer. */
#ifndef TREEATTN_ATTENTION_H
#define TREEATTN_ATTENTION_H

#include <treeattn/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The operator
 *
 * A request has a prefix of P tokens, in cache slots 0 .. P-1, and N draft nodes, node i in slot P+i. A prefix
 * token's position is its slot; a node's position is P + depth(node), the depth of a root being 0.
 * A row is one (node, query head h); its KV head is g = h / (num_heads / num_kv_heads). The row sees
 *
 *     prefix token p   if  pos(i) - p < window          (no window: always)
 *     node j           if  j is i or an ancestor of i, and pos(i) - pos(j) < window
 *
 * and computes, over the keys that it sees,
 *
 *     s      = cap(scale * q.k) + bias        cap(x) = softcap * tanh(x / softcap), or x without a softcap
 *     output = sum exp(s) v / (sum exp(s) + exp(sink_h))
 *     lse    = ln(sum exp(s) + exp(sink_h))
 *
 * A row that sees nothing gives output 0 and lse -infinity, with or without a sink.
 *
 * What is guaranteed
 *
 *  - The bits of a row depend on its query and on what it sees and on nothing else: not on other rows or requests,
 *    their number or order, num_workers, the task that computes it, pages, strides, or a previous run. They are
 *    the bits that decoding the row's path sequentially, one token at a time, gives.
 *  - What a row does not see cannot change it, whatever its bytes are (NaN and infinities included). Nothing outside
 *    the declared extents is read, nothing outside the output rows is written.
 *  - Every ISA gives the same bits as the scalar reference. A NaN in a result is always the same quiet NaN.
 *  - The caller's floating-point environment (rounding, flush-to-zero) neither changes the result nor is changed.
 *
 * What is not guaranteed: the same bits from one version of the library to the next (NEWS says when they change);
 * the fast modes (TREEATTN_MODE_FAST) keep all of the above within the mode only.
 */

/* ---- what a row sees ------------------------------------------------------------------------------------- */

/* The dense f32 mask: 0 is attended, this value and anything below it (and -infinity) is hidden. Any value above it is
 * a bias that is added to the score after scale and softcap. NaN, +infinity and what is above 2^127 are errors. */
#define TREEATTN_MASK_HIDDEN (-65504.0f)

typedef enum treeattn_mask_kind {
  /* Node i's parent is i-1: causal attention. `mask` is NULL. */
  TREEATTN_MASK_CHAIN = 0,
  /* `mask` is int32_t parents[N]: -1 for a root, otherwise parents[i] < i. A forest is allowed. */
  TREEATTN_MASK_PARENTS = 1,
  /* `mask` is int32_t intervals[N][2] = {begin, end} from a depth-first walk: node j is node i or an ancestor of it
   * exactly when begin[j] <= begin[i] < end[j]. Begins are distinct, intervals nest, and an ancestor has the smaller
   * index. */
  TREEATTN_MASK_INTERVALS = 2,
  /* `mask` is float [N][mask_stride]; see TREEATTN_MASK_HIDDEN. Column c is slot kv_seq_len - mask_columns + c. */
  TREEATTN_MASK_DENSE_F32 = 3,
  /* `mask` is uint8_t [N][mask_stride]: 0 is hidden, anything else attended. Columns as above. */
  TREEATTN_MASK_DENSE_BOOL = 4,
  /* `mask` is uint8_t [N][mask_stride], one bit a column, low bit first: column c is (row[c / 8] >> (c % 8)) & 1.
   * On little-endian machines this is also an array of 32- or 64-bit words. Columns as above; mask_stride counts
   * bytes. */
  TREEATTN_MASK_BITS = 5
} treeattn_mask_kind;

/*
 * One request of a batch. With a dense, bool or bit mask the N rows are the last N slots: P = kv_seq_len - N, or 0
 * when N > kv_seq_len, and prefix_len must be TREEATTN_AUTO or agree. The k-th of the last min(N, kv_seq_len) slots
 * that a row sees then has position P + k, which is its depth for a tree, and the row's own position is that of the
 * last one it sees (P if it sees none of them).
 * Where a mask also hides ancestors (a window written out), pass `positions`.
 */
typedef struct treeattn_request {
  int64_t num_nodes;  /* N, 0 or more */
  int64_t prefix_len; /* P; TREEATTN_AUTO: kv_seq_len - num_nodes */
  int64_t kv_seq_len; /* slots that hold data, at least P + N; TREEATTN_AUTO: P + N. Not both may be AUTO */

  treeattn_mask_kind mask_kind;
  const void *mask;
  size_t mask_bytes;    /* size of the buffer behind `mask` (for CHAIN 0) */
  int64_t mask_stride;  /* dense, bool: elements between rows; bits: bytes. 0: rows are packed */
  int64_t mask_columns; /* dense, bool, bits: the columns are the last mask_columns slots, earlier slots are seen by
                           every row. 0: kv_seq_len. N gives the square tree mask that other systems pass */

  /* int32_t [N], P <= positions[i] < P + N, or NULL. Trees: must be P + depth. Masks: the position of node i's slot. */
  const int32_t *positions;

  /* The nodes to compute, each once, in any order, or NULL for all of them in order: growing a tree level by level
   * attends only the new level. Q and output then have num_queries rows for this request. */
  const int32_t *query_nodes;
  int64_t num_queries; /* ignored when query_nodes is NULL */

  /* Contiguous cache: which sequence of the cache this request reads. Paged: ignored. */
  int64_t cache_index;
  /* Paged cache: page_table[s / page_size] is the page that holds slot s. */
  const int32_t *page_table;
  int64_t page_table_len;
} treeattn_request;

#define TREEATTN_AUTO ((int64_t)-1)
#define TREEATTN_REQUEST_INIT \
  { 0, TREEATTN_AUTO, TREEATTN_AUTO, TREEATTN_MASK_CHAIN, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* ---- the plan --------------------------------------------------------------------------------------------- */

/* Where runs of the plan happen. A plan of another back end than the CPU is refused by treeattn_attend. */
typedef enum treeattn_backend {
  TREEATTN_BACKEND_CPU = 0,
  TREEATTN_BACKEND_CUDA = 1 /* treeattn_cuda.h */
} treeattn_backend;

/* Arithmetic. EXACT is one answer on every machine. FAST may use matrix units with 16-bit operands and keeps
 * every promise within itself; it is UNSUPPORTED where no such unit is served. */
typedef enum treeattn_mode { TREEATTN_MODE_EXACT = 0, TREEATTN_MODE_FAST = 1 } treeattn_mode;

/* Instruction sets of the CPU back end. AUTO takes the strongest that the machine has. Results do not depend on it. */
typedef enum treeattn_isa {
  TREEATTN_ISA_AUTO = 0,
  TREEATTN_ISA_SCALAR = 1, /* the reference: portable C, slow */
  TREEATTN_ISA_AVX2 = 2,   /* x86-64 with AVX2, FMA and F16C */
  TREEATTN_ISA_AVX512 = 3, /* x86-64 with AVX-512 F, BW, DQ and VL */
  TREEATTN_ISA_NEON = 4    /* AArch64 */
} treeattn_isa;

TREEATTN_API const char *treeattn_isa_name(treeattn_isa isa);
/* 1 if this build has the ISA and this machine can run it, otherwise 0. AUTO and SCALAR: 1. */
TREEATTN_API int treeattn_isa_available(treeattn_isa isa);
/* The ISA that AUTO takes here. */
TREEATTN_API treeattn_isa treeattn_isa_detect(void);

/*
 * Everything that the layers of one decoding step share. Default layouts, used where a stride is 0
 * (T is the number of query rows of the batch, requests one after another):
 *
 *   q       [num_heads][T][head_dim]                                 f32
 *   out     [T][num_heads][head_dim_v]                               f32
 *   lse     [T][num_heads]                                           f32
 *   k       [num_sequences][num_kv_heads][kv_capacity][head_dim]     kv_dtype, contiguous cache
 *   v       [num_sequences][num_kv_heads][kv_capacity][head_dim_v]
 *   k       [num_pages][num_kv_heads][page_size][head_dim]           kv_dtype, paged cache
 *   v       [num_pages][num_kv_heads][page_size][head_dim_v]
 *
 * Rows of one (token, head) are contiguous in every tensor; all other strides are free.
 */
typedef struct treeattn_plan_args {
  size_t struct_size;

  int64_t num_requests;
  const treeattn_request *requests;
  size_t request_bytes; /* sizeof(treeattn_request), so that the array can grow with later versions */

  int64_t num_heads;
  int64_t num_kv_heads;     /* divides num_heads */
  int64_t head_dim;         /* of Q and K: 8 to 1024 in steps of 8 */
  int64_t head_dim_v;       /* of V and the output, likewise; 0: head_dim */
  treeattn_dtype q_dtype;   /* CPU: F32. CUDA: any. 0: F32 */
  treeattn_dtype out_dtype; /* CPU: F32. CUDA: any. 0: F32 */
  treeattn_dtype kv_dtype;  /* F32, F16 or BF16 */

  float scale;    /* finite; 0 is taken literally. TREEATTN_PLAN_ARGS_INIT leaves 0: set it, usually 1/sqrt(head_dim) */
  float softcap;  /* > 0, or 0: off */
  int64_t window; /* keys that a row sees by position, itself included; 0: no window */
  int64_t page_size;     /* 0: contiguous cache. Otherwise slots per page, 1 or more */
  int64_t kv_capacity;   /* contiguous: slots per (sequence, KV head), at least every kv_seq_len */
  int64_t num_sequences; /* contiguous: sequences in the cache; 0: num_requests. Paged: ignored */
  int64_t num_pages;     /* paged: pages in the cache */

  int64_t q_stride_head, q_stride_row;
  int64_t out_stride_row, out_stride_head;
  int64_t lse_stride_row, lse_stride_head;
  int64_t k_stride_sequence, k_stride_head, k_stride_slot; /* sequence: or page */
  int64_t v_stride_sequence, v_stride_head, v_stride_slot;

  treeattn_mode mode;
  treeattn_isa isa;
  /* How many tasks run at once, at most 1024. 0: 1. Changes scratch and tasks, never a bit of the result. */
  int64_t num_workers;
  treeattn_backend backend;
} treeattn_plan_args;

#ifdef __cplusplus
static inline treeattn_plan_args treeattn_plan_args_init(void) {
  treeattn_plan_args value = treeattn_plan_args();
  value.struct_size = sizeof value;
  return value;
}
#define TREEATTN_PLAN_ARGS_INIT treeattn_plan_args_init()
#else
#define TREEATTN_PLAN_ARGS_INIT \
  { .struct_size = sizeof(treeattn_plan_args) }
#endif

typedef struct treeattn_plan treeattn_plan;

/* The bytes that treeattn_plan_init needs for these arguments. Checks sizes, not the content of masks.
 * For trees the answer is close to what is used; for dense masks it is the worst case over contents. */
TREEATTN_API treeattn_status treeattn_plan_bytes(const treeattn_plan_args *args, size_t *plan_bytes,
                                                 treeattn_error *error);

/*
 * Checks everything and makes a plan inside `memory` (any alignment, at least treeattn_plan_bytes), which must
 * outlive the plan and not move. *plan points into it; there is nothing to destroy. All arrays of the arguments may
 * be released afterwards, except a dense f32 mask that holds biases, which runs read again, and page tables, likewise.
 * Errors: any of the argument, tree, mask, size and support errors above; *plan is then NULL.
 */
TREEATTN_API treeattn_status treeattn_plan_init(const treeattn_plan_args *args, void *memory, size_t memory_bytes,
                                                treeattn_plan **plan, treeattn_error *error);

/* The same with memory from malloc. Destroy with treeattn_plan_destroy, which accepts NULL. */
TREEATTN_API treeattn_status treeattn_plan_create(const treeattn_plan_args *args, treeattn_plan **plan,
                                                  treeattn_error *error);
TREEATTN_API void treeattn_plan_destroy(treeattn_plan *plan);

/* What the plan decided. */
typedef struct treeattn_plan_info {
  size_t struct_size;
  size_t scratch_bytes;   /* working memory of a run, for all workers */
  size_t worker_bytes;    /* the part of it that each worker has for itself */
  size_t partial_bytes;   /* the part that holds partial results between the two stages */
  int64_t num_query_rows; /* T */
  int64_t num_tasks[2];   /* independent tasks in stage 0 (attend) and stage 1 (combine; may be 0) */
  int64_t num_workers;
  treeattn_isa isa;
  treeattn_mode mode;
  size_t q_bytes, k_bytes, v_bytes, out_bytes, lse_bytes; /* the smallest buffers that the shapes and strides allow */
} treeattn_plan_info;

#ifdef __cplusplus
static inline treeattn_plan_info treeattn_plan_info_init(void) {
  treeattn_plan_info value = treeattn_plan_info();
  value.struct_size = sizeof value;
  return value;
}
#define TREEATTN_PLAN_INFO_INIT treeattn_plan_info_init()
#else
#define TREEATTN_PLAN_INFO_INIT \
  { .struct_size = sizeof(treeattn_plan_info) }
#endif

TREEATTN_API treeattn_status treeattn_plan_get_info(const treeattn_plan *plan, treeattn_plan_info *info,
                                                    treeattn_error *error);

/* Positions of the T query rows (what RoPE is given), in order. capacity counts elements. */
TREEATTN_API treeattn_status treeattn_plan_get_positions(const treeattn_plan *plan, int32_t *positions,
                                                         int64_t capacity, treeattn_error *error);

/* ---- the run ---------------------------------------------------------------------------------------------- */

/*
 * Runs task(arg, index) once for each index in [0, num_tasks), in any order, at most num_workers of them at once or
 * all one after another, and returns when all are done: 0, or anything else if the work could not be started, in
 * which case no task may have run.
 */
typedef int (*treeattn_parallel_for_fn)(void *context, void (*task)(void *arg, size_t index), void *arg,
                                        size_t num_tasks);

typedef struct treeattn_executor {
  treeattn_parallel_for_fn parallel_for; /* NULL: the calling thread does everything */
  void *context;
} treeattn_executor;

/* One layer. Buffer sizes are what the caller owns from the pointer on; they are checked against the plan. */
typedef struct treeattn_run_args {
  size_t struct_size;
  const void *q;
  size_t q_bytes;
  const void *k;
  size_t k_bytes;
  const void *v; /* may overlap k (MLA) */
  size_t v_bytes;
  /* [num_heads], or NULL for none. -infinity: no sink for this head. NaN and magnitudes above 2^127 are errors. */
  const float *sinks;
  size_t sinks_bytes;
  void *out; /* overlaps none of the inputs */
  size_t out_bytes;
  float *lse; /* or NULL */
  size_t lse_bytes;
  void *scratch; /* any alignment, at least scratch_bytes of the plan; its content does not matter before or after */
  size_t scratch_bytes;
  treeattn_executor executor;
} treeattn_run_args;

#ifdef __cplusplus
static inline treeattn_run_args treeattn_run_args_init(void) {
  treeattn_run_args value = treeattn_run_args();
  value.struct_size = sizeof value;
  return value;
}
#define TREEATTN_RUN_ARGS_INIT treeattn_run_args_init()
#else
#define TREEATTN_RUN_ARGS_INIT \
  { .struct_size = sizeof(treeattn_run_args) }
#endif

/* Attends every query row of the plan. Allocates nothing. Runs of one plan may overlap if their scratch and outputs
 * do not. */
TREEATTN_API treeattn_status treeattn_attend(const treeattn_plan *plan, const treeattn_run_args *run,
                                             treeattn_error *error);

/*
 * The same as independent tasks, for engines whose threads already run and meet at a barrier of their own:
 *
 *     treeattn_attend_check(plan, run, &error)                           once, anywhere
 *     treeattn_attend_task(plan, run, 0, task, worker)                   for every task of stage 0
 *     barrier
 *     treeattn_attend_task(plan, run, 1, task, worker)                   for every task of stage 1
 *
 * `worker` is a number below num_workers that no other running task uses. Tasks check nothing and cannot fail;
 * indices out of range do nothing.
 */
TREEATTN_API treeattn_status treeattn_attend_check(const treeattn_plan *plan, const treeattn_run_args *run,
                                                   treeattn_error *error);
TREEATTN_API void treeattn_attend_task(const treeattn_plan *plan, const treeattn_run_args *run, int stage, int64_t task,
                                       int64_t worker);

/* ---- threads ---------------------------------------------------------------------------------------------- */

/* A pool of threads from the pthreadpool library, for callers without one of their own. UNSUPPORTED in builds without
 * it. */
typedef struct treeattn_pool treeattn_pool;
/* num_threads counts the calling thread; 0: one for each processor. */
TREEATTN_API treeattn_status treeattn_pool_create(int64_t num_threads, treeattn_pool **pool, treeattn_error *error);
TREEATTN_API void treeattn_pool_destroy(treeattn_pool *pool);
TREEATTN_API int64_t treeattn_pool_num_threads(const treeattn_pool *pool);
TREEATTN_API treeattn_executor treeattn_pool_executor(treeattn_pool *pool);

/* ---- the two operators with an explicit dense mask or a computed causal mask, in one call ------------------ */

/*
 * Parameters, tensors, checks and messages as engines on the one-call interface know them:
 *
 *   q       [num_heads][q_seq_len][head_dim]          f32
 *   k, v    [num_kv_heads][kv_capacity][head_dim]     f32 or f16 (bf16 too), both the same;
 *                                                     rows >= kv_seq_len are not data
 *   mask    [q_seq_len][mask_stride]                  f32, see TREEATTN_MASK_HIDDEN;
 *                                                     its rows are the last q_seq_len slots
 *   output  [q_seq_len][num_heads][head_dim]          f32: query-outer, unlike q
 *   tmp     treeattn_tmp_buffer_bytes(...)
 *
 * Rejected, naming field and values: head_dim outside {128, 256, 512}; num_heads or num_kv_heads 0; num_heads not a
 * multiple of num_kv_heads; kv_seq_len 0; kv_capacity < kv_seq_len; q_seq_len 0; mask_stride < kv_seq_len; a wrong
 * type; a buffer smaller than its shape needs; a product of sizes that overflows.
 *
 * Where the explicit mask says what causal (or window) visibility says, both operators give the same bytes.
 */
typedef struct treeattn_tensor {
  void *data;
  size_t bytes;
  treeattn_dtype dtype;
} treeattn_tensor;

typedef struct treeattn_tree_attention_params {
  uint32_t num_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t kv_seq_len;
  uint32_t kv_capacity;
  float scale;
  uint32_t q_seq_len;
  uint32_t mask_stride;
} treeattn_tree_attention_params;

typedef struct treeattn_flash_attn_vec_params {
  uint32_t num_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t kv_seq_len;
  uint32_t kv_capacity;
  float scale;
  uint32_t q_seq_len;      /* at most kv_seq_len: query i has position kv_seq_len - q_seq_len + i */
  uint32_t sliding_window; /* keys seen, the query's own included; 0: causal without a window */
  float softcap;           /* 0: off */
} treeattn_flash_attn_vec_params;

/* num_heads * q_seq_len * 32 * (head_dim + 2) * 4, saturating at SIZE_MAX. */
TREEATTN_API size_t treeattn_tmp_buffer_bytes(uint32_t num_heads, uint32_t head_dim, uint32_t q_seq_len);

/* These two plan and run in one call. They use tmp where it is large enough for plan and scratch and malloc
 * otherwise; callers who repeat a mask over layers, or who must not allocate, make a plan instead. `executor` may be
 * NULL. */
TREEATTN_API treeattn_status treeattn_tree_attention(const treeattn_tree_attention_params *params,
                                                     const treeattn_tensor *q, const treeattn_tensor *k,
                                                     const treeattn_tensor *v, const treeattn_tensor *mask,
                                                     const treeattn_tensor *output, const treeattn_tensor *tmp,
                                                     const treeattn_executor *executor, treeattn_error *error);
TREEATTN_API treeattn_status treeattn_flash_attn_vec(const treeattn_flash_attn_vec_params *params,
                                                     const treeattn_tensor *q, const treeattn_tensor *k,
                                                     const treeattn_tensor *v, const treeattn_tensor *output,
                                                     const treeattn_tensor *tmp, const treeattn_executor *executor,
                                                     treeattn_error *error);

/* ---- merging partial results ------------------------------------------------------------------------------ */

/*
 * Merges two partial attention results over disjoint sets of keys, rows of head_dim_v f32 with their lse, as cascade
 * and context-parallel callers do: out_a/lse_a become the merged result. An empty side (lse -infinity) leaves the
 * other bit for bit; two empty sides stay empty. Exact in the limit only: unlike a single run it rounds between the
 * parts.
 */
TREEATTN_API treeattn_status treeattn_merge_states(int64_t num_rows, int64_t head_dim_v, float *out_a, float *lse_a,
                                                   const float *out_b, const float *lse_b, treeattn_error *error);

#ifdef __cplusplus
}
#endif
#endif
