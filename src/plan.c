/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments to a checked plan: sizes, strides, blocks, tasks and scratch. Pure. */
#include "plan.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/backend.h"

#define FAIL_ARGUMENT(...) ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

static treeattn_status check_heads(const treeattn_plan_args *args, treeattn_error *error) {
  if (args->num_heads <= 0 || args->num_heads > INT32_MAX) {
    return FAIL_ARGUMENT("num_heads is %lld: must be 1 to %d", (long long)args->num_heads, INT32_MAX);
  }
  if (args->num_kv_heads <= 0 || args->num_kv_heads > args->num_heads) {
    return FAIL_ARGUMENT("num_kv_heads is %lld: must be 1 to num_heads (%lld)", (long long)args->num_kv_heads,
                         (long long)args->num_heads);
  }
  if (args->num_heads % args->num_kv_heads != 0) {
    return FAIL_ARGUMENT("num_heads (%lld) must be divisible by num_kv_heads (%lld)", (long long)args->num_heads,
                         (long long)args->num_kv_heads);
  }
  const int64_t dims[2] = {args->head_dim, args->head_dim_v == 0 ? args->head_dim : args->head_dim_v};
  for (int n = 0; n < 2; ++n) {
    if (dims[n] < 8 || dims[n] > 1024 || dims[n] % 8 != 0) {
      return FAIL_ARGUMENT("%s is %lld: must be 8 to 1024 in steps of 8", n == 0 ? "head_dim" : "head_dim_v",
                           (long long)dims[n]);
    }
  }
  return TREEATTN_OK;
}

static treeattn_status check_numbers(const treeattn_plan_args *args, treeattn_error *error) {
  if (treeattn_dtype_bytes(args->kv_dtype) == 0) {
    return FAIL_ARGUMENT("kv_dtype is %d: must be TREEATTN_F32, TREEATTN_F16 or TREEATTN_BF16", (int)args->kv_dtype);
  }
  const treeattn_dtype float_types[2] = {args->q_dtype, args->out_dtype};
  for (int n = 0; n < 2; ++n) {
    const char *field = n == 0 ? "q_dtype" : "out_dtype";
    if ((int)float_types[n] != 0 && treeattn_dtype_bytes(float_types[n]) == 0) {
      return FAIL_ARGUMENT("%s is %d: not a treeattn_dtype", field, (int)float_types[n]);
    }
    if ((int)float_types[n] != 0 && float_types[n] != TREEATTN_F32) {
      return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "%s is %s: the CPU back end takes f32", field,
                     treeattn_dtype_name(float_types[n]));
    }
  }
  if (!(fabsf(args->scale) <= FLT_MAX / 2)) { /* also when multiplied by log2(e); false for NaN */
    return FAIL_ARGUMENT("scale is %g: must be finite and at most %g in magnitude", (double)args->scale,
                         (double)(FLT_MAX / 2));
  }
  if (!(args->softcap >= 0.0f && args->softcap <= FLT_MAX / 2)) {
    return FAIL_ARGUMENT("softcap is %g: must be 0 (off) or positive and at most %g", (double)args->softcap,
                         (double)(FLT_MAX / 2));
  }
  if (args->softcap > 0.0f && !(fabs((double)args->scale / (double)args->softcap) <= (double)FLT_MAX)) {
    return FAIL_ARGUMENT("scale (%g) / softcap (%g) overflows", (double)args->scale, (double)args->softcap);
  }
  if (args->window < 0) {
    return FAIL_ARGUMENT("window is %lld: must be 0 (off) or more", (long long)args->window);
  }
  if (args->num_workers < 0 || args->num_workers > 1024) {
    return FAIL_ARGUMENT("num_workers is %lld: must be 0 to 1024", (long long)args->num_workers);
  }
  if (args->mode != TREEATTN_MODE_EXACT && args->mode != TREEATTN_MODE_FAST) {
    return FAIL_ARGUMENT("mode is %d: not a treeattn_mode", (int)args->mode);
  }
  if (args->mode == TREEATTN_MODE_FAST) {
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED,
                   "mode is TREEATTN_MODE_FAST: the CPU back end has no fast mode in this build");
  }
  if (strcmp(treeattn_isa_name(args->isa), "unknown") == 0) {
    return FAIL_ARGUMENT("isa is %d: not a treeattn_isa", (int)args->isa);
  }
  if (!treeattn_isa_available(args->isa)) {
    return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "isa is %s: not available on this machine or in this build",
                   treeattn_isa_name(args->isa));
  }
  return TREEATTN_OK;
}

static treeattn_status check_cache_shape(const treeattn_plan_args *args, treeattn_error *error) {
  if (args->num_requests < 0 || args->num_requests > INT32_MAX) {
    return FAIL_ARGUMENT("num_requests is %lld: must be 0 to %d", (long long)args->num_requests, INT32_MAX);
  }
  if (args->num_requests > 0 && args->requests == NULL) {
    return FAIL_ARGUMENT("requests is NULL: num_requests is %lld", (long long)args->num_requests);
  }
  if (args->num_requests > 0 && args->request_bytes != sizeof(treeattn_request)) {
    return FAIL_ARGUMENT("request_bytes is %zu: must be sizeof(treeattn_request), %zu", args->request_bytes,
                         sizeof(treeattn_request));
  }
  const struct {
    const char *name;
    int64_t value;
  } counts[] = {{"page_size", args->page_size},
                {"kv_capacity", args->kv_capacity},
                {"num_sequences", args->num_sequences},
                {"num_pages", args->num_pages},
                {"q_stride_head", args->q_stride_head},
                {"q_stride_row", args->q_stride_row},
                {"out_stride_row", args->out_stride_row},
                {"out_stride_head", args->out_stride_head},
                {"lse_stride_row", args->lse_stride_row},
                {"lse_stride_head", args->lse_stride_head},
                {"k_stride_sequence", args->k_stride_sequence},
                {"k_stride_head", args->k_stride_head},
                {"k_stride_slot", args->k_stride_slot},
                {"v_stride_sequence", args->v_stride_sequence},
                {"v_stride_head", args->v_stride_head},
                {"v_stride_slot", args->v_stride_slot}};
  for (size_t n = 0; n < sizeof counts / sizeof *counts; ++n) {
    if (counts[n].value < 0) {
      return FAIL_ARGUMENT("%s is %lld: must not be negative", counts[n].name, (long long)counts[n].value);
    }
  }
  return TREEATTN_OK;
}

/* Elements from the first to the last of a 3-d tensor with rows of `row` elements, or false on overflow. */
static bool extent(const int64_t counts[3], const int64_t strides[3], int64_t row, int64_t *elements) {
  int64_t total = row;
  for (int n = 0; n < 3; ++n) {
    int64_t span = 0;
    if (counts[n] == 0) {
      *elements = 0;
      return true;
    }
    if (!ta_mul_i64(counts[n] - 1, strides[n], &span) || !ta_add_i64(total, span, &total)) {
      return false;
    }
  }
  *elements = total;
  return true;
}

static bool bytes_of(const int64_t counts[3], const int64_t strides[3], int64_t row, size_t element, size_t *bytes) {
  int64_t elements = 0;
  return extent(counts, strides, row, &elements) && (uint64_t)elements <= PTRDIFF_MAX / element &&
         ta_mul_size((size_t)elements, element, bytes);
}

/* A default stride, or false when it overflows. */
static bool default_stride(int64_t *stride, int64_t given, int64_t inner, int64_t count) {
  if (given != 0) {
    *stride = given;
    return true;
  }
  return ta_mul_i64(inner, count, stride);
}

static treeattn_status fail_overflow(const char *what, treeattn_error *error) {
  return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "%s: the product of its sizes overflows", what);
}

/* Two rows of an output that share an element would be written by two tasks. */
static bool rows_overlap(int64_t rows, int64_t stride_row, int64_t heads, int64_t stride_head, int64_t width) {
  int64_t span = 0;
  const bool head_inner = (heads <= 1 || stride_head >= width) &&
                          (rows <= 1 || (ta_mul_i64(heads - 1, stride_head, &span) && stride_row - width >= span));
  const bool row_inner = (rows <= 1 || stride_row >= width) &&
                         (heads <= 1 || (ta_mul_i64(rows - 1, stride_row, &span) && stride_head - width >= span));
  return !head_inner && !row_inner;
}

static treeattn_status lay_out_rows(const treeattn_plan_args *args, treeattn_plan *plan, treeattn_error *error) {
  const int64_t rows = plan->num_rows;
  const int64_t heads = plan->num_heads;
  if (!default_stride(&plan->q_stride_row, args->q_stride_row, plan->head_dim, 1) ||
      !default_stride(&plan->q_stride_head, args->q_stride_head, plan->q_stride_row, ta_max_i64(rows, 1)) ||
      !bytes_of((int64_t[3]){1, heads, rows}, (int64_t[3]){0, plan->q_stride_head, plan->q_stride_row}, plan->head_dim,
                sizeof(float), &plan->q_bytes)) {
    return fail_overflow("q (num_heads, query rows, head_dim)", error);
  }
  if (!default_stride(&plan->out_stride_head, args->out_stride_head, plan->head_dim_v, 1) ||
      !default_stride(&plan->out_stride_row, args->out_stride_row, plan->out_stride_head, heads) ||
      !bytes_of((int64_t[3]){1, heads, rows}, (int64_t[3]){0, plan->out_stride_head, plan->out_stride_row},
                plan->head_dim_v, sizeof(float), &plan->out_bytes)) {
    return fail_overflow("out (query rows, num_heads, head_dim_v)", error);
  }
  if (!default_stride(&plan->lse_stride_head, args->lse_stride_head, 1, 1) ||
      !default_stride(&plan->lse_stride_row, args->lse_stride_row, plan->lse_stride_head, heads) ||
      !bytes_of((int64_t[3]){1, heads, rows}, (int64_t[3]){0, plan->lse_stride_head, plan->lse_stride_row}, 1,
                sizeof(float), &plan->lse_bytes)) {
    return fail_overflow("lse (query rows, num_heads)", error);
  }
  if (rows_overlap(rows, plan->out_stride_row, heads, plan->out_stride_head, plan->head_dim_v)) {
    return FAIL_ARGUMENT("out_stride_row (%lld) and out_stride_head (%lld) make rows of head_dim_v (%lld) overlap",
                         (long long)plan->out_stride_row, (long long)plan->out_stride_head,
                         (long long)plan->head_dim_v);
  }
  if (rows_overlap(rows, plan->lse_stride_row, heads, plan->lse_stride_head, 1)) {
    return FAIL_ARGUMENT("lse_stride_row (%lld) and lse_stride_head (%lld) make elements overlap",
                         (long long)plan->lse_stride_row, (long long)plan->lse_stride_head);
  }
  return TREEATTN_OK;
}

static treeattn_status lay_out_cache(const treeattn_plan_args *args, treeattn_plan *plan, treeattn_error *error) {
  plan->paged = args->page_size != 0;
  plan->page_size = plan->paged ? args->page_size : args->kv_capacity;
  const int64_t sequences = args->num_sequences == 0 ? args->num_requests : args->num_sequences;
  const int64_t pages = plan->paged ? args->num_pages : sequences;
  const int64_t counts[3] = {plan->page_size == 0 ? 0 : pages, plan->num_kv_heads, plan->page_size};
  const size_t element = treeattn_dtype_bytes(plan->kv_dtype);
  if (!default_stride(&plan->k_stride_slot, args->k_stride_slot, plan->head_dim, 1) ||
      !default_stride(&plan->k_stride_head, args->k_stride_head, plan->k_stride_slot, plan->page_size) ||
      !default_stride(&plan->k_stride_page, args->k_stride_sequence, plan->k_stride_head, plan->num_kv_heads) ||
      !bytes_of(counts, (int64_t[3]){plan->k_stride_page, plan->k_stride_head, plan->k_stride_slot}, plan->head_dim,
                element, &plan->k_bytes)) {
    return fail_overflow("k (sequences or pages, num_kv_heads, kv_capacity or page_size, head_dim)", error);
  }
  if (!default_stride(&plan->v_stride_slot, args->v_stride_slot, plan->head_dim_v, 1) ||
      !default_stride(&plan->v_stride_head, args->v_stride_head, plan->v_stride_slot, plan->page_size) ||
      !default_stride(&plan->v_stride_page, args->v_stride_sequence, plan->v_stride_head, plan->num_kv_heads) ||
      !bytes_of(counts, (int64_t[3]){plan->v_stride_page, plan->v_stride_head, plan->v_stride_slot}, plan->head_dim_v,
                element, &plan->v_bytes)) {
    return fail_overflow("v (sequences or pages, num_kv_heads, kv_capacity or page_size, head_dim_v)", error);
  }
  return TREEATTN_OK;
}

/* Rows of a block: what fits into a share of a core's second-level cache together with its scores and partial
 * results. */
static int64_t choose_block_rows(const treeattn_plan *plan) {
  if (plan->kernels == NULL) {
    return plan->group;
  }
  const int64_t budget_floats = 160 * 1024;
  const int64_t floats_per_row = plan->head_dim + TA_LEAF + 3 * plan->head_dim_v;
  const int64_t rows = ta_min_i64(budget_floats / floats_per_row, plan->kernels->max_rows);
  const int64_t vector = plan->kernels->row_vector;
  return ta_max_i64(rows / vector * vector, vector);
}

static int64_t div_up(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

/* Cuts a request's rows into blocks of about equal size: whole nodes with all heads of a group, or some heads of one
 * node. */
static void cut_rows(const treeattn_plan *plan, int64_t block_rows, ta_request *request) {
  if (plan->group <= block_rows) {
    const int64_t blocks = div_up(request->num_rows, block_rows / plan->group);
    request->nodes_per_block = blocks == 0 ? 1 : div_up(request->num_rows, blocks);
    request->heads_per_block = plan->group;
  } else {
    request->nodes_per_block = 1;
    request->heads_per_block = div_up(plan->group, div_up(plan->group, block_rows));
  }
  request->num_blocks =
      div_up(request->num_rows, request->nodes_per_block) * div_up(plan->group, request->heads_per_block);
}

static int64_t chunks_of(const ta_request *request, int64_t chunk_leaves) {
  if (request->leaf_end <= request->leaf_begin || chunk_leaves == 0) {
    return 1;
  }
  return (request->leaf_end - 1) / chunk_leaves - request->leaf_begin / chunk_leaves + 1;
}

/*
 * Cuts the keys of long requests, so that every worker has several tasks of about equal weight. A finer cut costs
 * memory for the partial results and changes no bit: a chunk is a whole number of groups or one leaf.
 */
static void cut_leaves(const treeattn_plan *plan, double weight_limit, ta_request *request) {
  const double block_rows = (double)(request->nodes_per_block * request->heads_per_block);
  const int64_t leaves = ta_max_i64(request->leaf_end - request->leaf_begin, 0);
  request->chunk_leaves = 0;
  if (plan->num_workers > 1 && block_rows * (double)leaves > weight_limit && leaves > 1) {
    const bool groups_do = block_rows * TA_GROUP_LEAVES <= weight_limit && leaves > TA_GROUP_LEAVES;
    request->chunk_leaves = groups_do ? TA_GROUP_LEAVES : 1;
  }
  request->num_chunks = chunks_of(request, request->chunk_leaves);
}

static treeattn_status cut_work(treeattn_plan *plan, treeattn_error *error) {
  const int64_t block_rows = choose_block_rows(plan);
  double total = 0;
  for (int64_t b = 0; b < plan->num_requests; ++b) {
    ta_request *request = &plan->requests[b];
    cut_rows(plan, block_rows, request);
    total += (double)request->num_rows * (double)plan->num_heads *
             (double)ta_max_i64(request->leaf_end - request->leaf_begin, 0);
    const int64_t rows = request->nodes_per_block * request->heads_per_block;
    plan->max_block_rows = ta_max_i64(plan->max_block_rows, rows);
  }
  const double weight_limit = total / (double)(4 * plan->num_workers);
  size_t partial_floats = 0;
  for (int64_t b = 0; b < plan->num_requests; ++b) {
    ta_request *request = &plan->requests[b];
    cut_leaves(plan, weight_limit, request);
    request->first_task[0] = plan->num_tasks[0];
    request->first_task[1] = plan->num_tasks[1];
    int64_t tasks = 0;
    int64_t split_tasks = 0;
    if (!ta_mul_i64(request->num_blocks, plan->num_kv_heads, &split_tasks) ||
        !ta_mul_i64(split_tasks, request->num_chunks, &tasks) ||
        !ta_add_i64(plan->num_tasks[0], tasks, &plan->num_tasks[0])) {
      return fail_overflow("tasks (rows, num_kv_heads, leaves)", error);
    }
    if (request->num_chunks > 1) {
      size_t floats = 0;
      request->partial_offset = partial_floats;
      if (!ta_mul_size((size_t)request->num_rows * (size_t)plan->num_heads, (size_t)request->num_chunks, &floats) ||
          !ta_mul_size(floats, (size_t)ta_partial_floats(plan), &floats) ||
          !ta_add_size(partial_floats, floats, &partial_floats)) {
        return fail_overflow("partial results (query rows, num_heads, leaves, head_dim_v)", error);
      }
      plan->num_tasks[1] += split_tasks;
    }
  }
  plan->worker_bytes = plan->kernels == NULL ? ta_scalar_worker_bytes(plan) : ta_driver_worker_bytes(plan);
  size_t workers = 0;
  if (!ta_mul_size(partial_floats, sizeof(float), &plan->partial_bytes) ||
      !ta_mul_size(plan->worker_bytes, (size_t)plan->num_workers, &workers) ||
      !ta_add_size(plan->partial_bytes, workers, &plan->scratch_bytes) ||
      !ta_add_size(plan->scratch_bytes, 2 * TA_ARENA_ALIGNMENT, &plan->scratch_bytes)) {
    return fail_overflow("scratch", error);
  }
  return TREEATTN_OK;
}

static treeattn_status check_args(const treeattn_plan_args *args, treeattn_error *error) {
  if (args == NULL) {
    return FAIL_ARGUMENT("args is NULL");
  }
  if (args->struct_size != sizeof(treeattn_plan_args)) {
    return FAIL_ARGUMENT("struct_size is %zu: must be sizeof(treeattn_plan_args), %zu; use TREEATTN_PLAN_ARGS_INIT",
                         args->struct_size, sizeof(treeattn_plan_args));
  }
  treeattn_status status = check_heads(args, error);
  if (status == TREEATTN_OK) {
    status = check_numbers(args, error);
  }
  return status == TREEATTN_OK ? check_cache_shape(args, error) : status;
}

/* Goes through the requests in order, dry or filling; `requests` may be NULL when dry. */
static treeattn_status plan_requests(const treeattn_plan_args *args, ta_arena *arena, ta_request *requests,
                                     int64_t *num_rows, treeattn_error *error) {
  *num_rows = 0;
  for (int64_t b = 0; b < args->num_requests; ++b) {
    ta_request record;
    const treeattn_status status = ta_plan_request(args, b, &args->requests[b], arena, &record, error);
    if (status != TREEATTN_OK) {
      return status;
    }
    record.first_row = *num_rows;
    if (!ta_add_i64(*num_rows, record.num_rows, num_rows)) {
      return fail_overflow("query rows of the batch", error);
    }
    if (requests != NULL) {
      requests[b] = record;
    }
  }
  return TREEATTN_OK;
}

treeattn_status treeattn_plan_bytes(const treeattn_plan_args *args, size_t *plan_bytes, treeattn_error *error) {
  if (plan_bytes == NULL) {
    return FAIL_ARGUMENT("plan_bytes is NULL");
  }
  treeattn_status status = check_args(args, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  ta_arena arena = {NULL, TA_ARENA_ALIGNMENT, false}; /* the caller's memory may need aligning */
  (void)ta_arena_take(&arena, 1, sizeof(treeattn_plan));
  (void)ta_arena_take(&arena, args->num_requests, sizeof(ta_request));
  int64_t num_rows = 0;
  status = plan_requests(args, &arena, NULL, &num_rows, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (arena.overflow) {
    return fail_overflow("requests", error);
  }
  *plan_bytes = arena.used;
  return TREEATTN_OK;
}

static treeattn_status fill_plan(const treeattn_plan_args *args, ta_arena *arena, treeattn_plan *plan,
                                 treeattn_error *error) {
  memset(plan, 0, sizeof *plan);
  plan->num_requests = args->num_requests;
  plan->requests = ta_arena_take(arena, args->num_requests, sizeof(ta_request));
  treeattn_status status = plan_requests(args, arena, plan->requests, &plan->num_rows, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  plan->num_heads = args->num_heads;
  plan->num_kv_heads = args->num_kv_heads;
  plan->group = args->num_heads / args->num_kv_heads;
  plan->head_dim = args->head_dim;
  plan->head_dim_v = args->head_dim_v == 0 ? args->head_dim : args->head_dim_v;
  plan->kv_dtype = args->kv_dtype;
  plan->scale = args->scale;
  plan->softcap = args->softcap;
  plan->window = args->window;
  plan->mode = args->mode;
  plan->isa = args->isa == TREEATTN_ISA_AUTO ? treeattn_isa_detect() : args->isa;
  plan->kernels = ta_kernels_for(plan->isa);
  plan->num_workers = ta_max_i64(args->num_workers, 1);
  status = lay_out_rows(args, plan, error);
  if (status == TREEATTN_OK) {
    status = lay_out_cache(args, plan, error);
  }
  return status == TREEATTN_OK ? cut_work(plan, error) : status;
}

treeattn_status treeattn_plan_init(const treeattn_plan_args *args, void *memory, size_t memory_bytes,
                                   treeattn_plan **plan, treeattn_error *error) {
  size_t need = 0;
  if (plan == NULL) {
    return FAIL_ARGUMENT("plan is NULL");
  }
  *plan = NULL;
  treeattn_status status = treeattn_plan_bytes(args, &need, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (memory == NULL || memory_bytes < need) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "memory_bytes is %zu: the plan needs %zu",
                   memory == NULL ? 0 : memory_bytes, need);
  }
  const size_t misaligned = (size_t)((uintptr_t)memory % TA_ARENA_ALIGNMENT);
  ta_arena arena = {(unsigned char *)memory + (misaligned == 0 ? 0 : TA_ARENA_ALIGNMENT - misaligned), 0, false};
  treeattn_plan *made = ta_arena_take(&arena, 1, sizeof(treeattn_plan));
  status = fill_plan(args, &arena, made, error);
  if (status == TREEATTN_OK) {
    *plan = made;
  }
  return status;
}

treeattn_status treeattn_plan_create(const treeattn_plan_args *args, treeattn_plan **plan, treeattn_error *error) {
  size_t need = 0;
  if (plan == NULL) {
    return FAIL_ARGUMENT("plan is NULL");
  }
  *plan = NULL;
  treeattn_status status = treeattn_plan_bytes(args, &need, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  /* The pointer that malloc gave is kept in front of the plan, which is aligned further than malloc aligns. */
  const size_t front = TA_ARENA_ALIGNMENT;
  unsigned char *memory = need > SIZE_MAX - front ? NULL : malloc(front + need);
  if (memory == NULL) {
    return ta_fail(error, TREEATTN_ERROR_OUT_OF_MEMORY, "plan: %zu bytes could not be allocated", need);
  }
  status = treeattn_plan_init(args, memory + front, need, plan, error);
  if (status != TREEATTN_OK) {
    free(memory);
    return status;
  }
  memcpy((unsigned char *)*plan - sizeof memory, &memory, sizeof memory);
  (*plan)->owned = true;
  return TREEATTN_OK;
}

void treeattn_plan_destroy(treeattn_plan *plan) {
  if (plan != NULL && plan->owned) {
    unsigned char *memory = NULL;
    memcpy(&memory, (unsigned char *)plan - sizeof memory, sizeof memory);
    free(memory);
  }
}

treeattn_status treeattn_plan_get_info(const treeattn_plan *plan, treeattn_plan_info *info, treeattn_error *error) {
  if (plan == NULL || info == NULL) {
    return FAIL_ARGUMENT("%s is NULL", plan == NULL ? "plan" : "info");
  }
  if (info->struct_size != sizeof(treeattn_plan_info)) {
    return FAIL_ARGUMENT("struct_size is %zu: must be sizeof(treeattn_plan_info), %zu; use TREEATTN_PLAN_INFO_INIT",
                         info->struct_size, sizeof(treeattn_plan_info));
  }
  info->scratch_bytes = plan->scratch_bytes;
  info->worker_bytes = plan->worker_bytes;
  info->partial_bytes = plan->partial_bytes;
  info->num_query_rows = plan->num_rows;
  info->num_tasks[0] = plan->num_tasks[0];
  info->num_tasks[1] = plan->num_tasks[1];
  info->num_workers = plan->num_workers;
  info->isa = plan->isa;
  info->mode = plan->mode;
  info->q_bytes = plan->q_bytes;
  info->k_bytes = plan->k_bytes;
  info->v_bytes = plan->v_bytes;
  info->out_bytes = plan->out_bytes;
  info->lse_bytes = plan->lse_bytes;
  return TREEATTN_OK;
}

treeattn_status treeattn_plan_get_positions(const treeattn_plan *plan, int32_t *positions, int64_t capacity,
                                            treeattn_error *error) {
  if (plan == NULL) {
    return FAIL_ARGUMENT("plan is NULL");
  }
  if (capacity < plan->num_rows || (positions == NULL && plan->num_rows > 0)) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "capacity is %lld: the plan has %lld query rows",
                   (long long)(positions == NULL ? 0 : capacity), (long long)plan->num_rows);
  }
  for (int64_t b = 0; b < plan->num_requests; ++b) {
    const ta_request *request = &plan->requests[b];
    for (int64_t r = 0; r < request->num_rows; ++r) {
      positions[request->first_row + r] = request->row_position[r];
    }
  }
  return TREEATTN_OK;
}

bool ta_plan_task(const treeattn_plan *plan, int stage, int64_t index, ta_task *task) {
  if ((stage != 0 && stage != 1) || index < 0 || index >= plan->num_tasks[stage]) {
    return false;
  }
  /* The last request whose first task is not beyond the index; requests without tasks share their successor's number.
   * */
  int64_t low = 0;
  int64_t high = plan->num_requests - 1;
  while (low < high) {
    const int64_t middle = high - (high - low) / 2;
    if (plan->requests[middle].first_task[stage] <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const ta_request *request = &plan->requests[low];
  const int64_t chunks = stage == 0 ? request->num_chunks : 1;
  const int64_t local = index - request->first_task[stage];
  task->request = request;
  task->block = local % request->num_blocks;
  task->chunk = local / request->num_blocks % chunks;
  task->g = local / request->num_blocks / chunks;
  const int64_t head_blocks = div_up(plan->group, request->heads_per_block);
  task->row_begin = task->block / head_blocks * request->nodes_per_block;
  task->row_end = ta_min_i64(task->row_begin + request->nodes_per_block, request->num_rows);
  task->head_begin = task->g * plan->group + task->block % head_blocks * request->heads_per_block;
  task->head_end = ta_min_i64(task->head_begin + request->heads_per_block, (task->g + 1) * plan->group);
  task->leaf_begin = request->leaf_begin;
  task->leaf_end = request->leaf_end;
  if (stage == 0 && request->chunk_leaves != 0) {
    const int64_t first = (request->leaf_begin / request->chunk_leaves + task->chunk) * request->chunk_leaves;
    task->leaf_begin = ta_max_i64(first, request->leaf_begin);
    task->leaf_end = ta_min_i64(first + request->chunk_leaves, request->leaf_end);
  }
  return true;
}
