/* SPDX-License-Identifier: Apache-2.0 */
/* The cut of a plan into tasks: blocks of rows, chunks of leaves, and the scratch that they need. */
#include "cpu/backend.h"
#include "plan.h"

/* Rows of a block: what fits into a share of a core's second-level cache with its scores and partial results. */
static int64_t most_block_rows(const treeattn_plan *plan) {
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

static int64_t leaves_of(const ta_request *request) {
  return ta_max_i64(request->leaf_end - request->leaf_begin, 0);
}

/*
 * Cuts a request's rows into blocks of about equal size and at most block_rows rows: whole nodes with all heads of a
 * group, or some heads of one node.
 */
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

static void cut_leaves(int64_t chunk_leaves, ta_request *request) {
  request->chunk_leaves = leaves_of(request) <= 1 ? 0 : chunk_leaves;
  request->num_chunks = request->chunk_leaves == 0 ? 1
                                                   : (request->leaf_end - 1) / request->chunk_leaves -
                                                         request->leaf_begin / request->chunk_leaves + 1;
}

/*
 * What a task of a request costs, in rows times leaves: reading and converting the cache weighs as much as some rows,
 * a partial result as a part of one.
 */
static double task_cost(const treeattn_plan *plan, const ta_request *request) {
  const double rows = (double)(request->nodes_per_block * request->heads_per_block);
  const double vector = plan->kernels == NULL ? 1 : (double)plan->kernels->row_vector;
  const double padded = (double)(int64_t)((rows + vector - 1) / vector) * vector;
  const int64_t chunk = request->chunk_leaves == 0 ? leaves_of(request) : request->chunk_leaves;
  const double leaves = (double)ta_min_i64(chunk, leaves_of(request));
  return leaves * (padded + 16) + (request->num_chunks > 1 ? 0.2 * rows : 0);
}

/*
 * Cuts one request so that tasks of at most `limit` cost result if they can, as coarsely as that allows: first the
 * rows as they best fit, then groups of leaves, then leaves, then fewer rows. No cut changes a bit of the result.
 */
static void cut_request(const treeattn_plan *plan, int64_t block_rows, double limit, ta_request *request) {
  static const int64_t chunk_leaves[] = {0, TA_GROUP_LEAVES, 1};
  const int64_t vector = plan->kernels == NULL ? 1 : plan->kernels->row_vector;
  for (int64_t rows = block_rows;; rows = ta_max_i64(rows / 2 / vector * vector, vector)) {
    cut_rows(plan, rows, request);
    for (size_t n = 0; n < sizeof chunk_leaves / sizeof *chunk_leaves; ++n) {
      cut_leaves(chunk_leaves[n], request);
      if (task_cost(plan, request) <= limit) {
        return;
      }
    }
    if (rows <= 2 * vector) {
      return;
    }
  }
}

/* Time of a lone request on the plan's workers, in units of task_cost. */
static double span_of(const treeattn_plan *plan, const ta_request *request) {
  const int64_t tasks = request->num_blocks * plan->num_kv_heads * request->num_chunks;
  return (double)div_up(tasks, plan->num_workers) * task_cost(plan, request);
}

/* Whether the scratch that a cut of a lone request asks for stays within a mebibyte for each worker. */
static bool is_frugal(const treeattn_plan *plan, const ta_request *request) {
  treeattn_plan cut = *plan;
  cut.max_block_rows = request->nodes_per_block * request->heads_per_block;
  cut.max_block_nodes = request->nodes_per_block;
  const double rows = (double)request->num_rows * (double)plan->num_heads;
  const double partial =
      request->num_chunks > 1 ? rows * (double)request->num_chunks * (double)ta_partial_floats(plan) * 4.0 : 0.0;
  const size_t worker = plan->kernels == NULL ? ta_scalar_worker_bytes(&cut) : ta_driver_worker_bytes(&cut);
  const double limit = (double)plan->num_workers * (1 << 20) - 2 * TA_ARENA_ALIGNMENT;
  return partial + (double)worker * (double)plan->num_workers <= limit;
}

/*
 * A lone request: the cut with the shortest span, the coarsest among equals, frugal ones first. Two tasks a worker let
 * a slow one be helped.
 */
static void cut_lone_request(const treeattn_plan *plan, int64_t block_rows, ta_request *request) {
  static const int64_t chunk_leaves[] = {0, TA_GROUP_LEAVES, 1};
  const int64_t vector = plan->kernels == NULL ? 1 : plan->kernels->row_vector;
  ta_request best = *request;
  double best_span = 0;
  bool best_frugal = false;
  for (size_t n = 0; n < sizeof chunk_leaves / sizeof *chunk_leaves; ++n) {
    for (int64_t rows = block_rows; rows >= vector && 4 * rows >= block_rows; rows -= vector) {
      ta_request candidate = *request;
      cut_rows(plan, rows, &candidate);
      cut_leaves(chunk_leaves[n], &candidate);
      const int64_t tasks = candidate.num_blocks * plan->num_kv_heads * candidate.num_chunks;
      const double span = span_of(plan, &candidate) * (tasks < 2 * plan->num_workers ? 1.25 : 1.0);
      const bool frugal = is_frugal(plan, &candidate);
      if (best_span == 0 || (frugal && !best_frugal) || (frugal == best_frugal && span < 0.98 * best_span)) {
        best = candidate;
        best_span = span;
        best_frugal = frugal;
      }
    }
  }
  *request = best;
}

treeattn_status ta_plan_cut_work(treeattn_plan *plan, treeattn_error *error) {
  const int64_t block_rows = most_block_rows(plan);
  double total = 0;
  for (int64_t b = 0; b < plan->num_requests; ++b) {
    ta_request *request = &plan->requests[b];
    cut_rows(plan, block_rows, request);
    cut_leaves(0, request);
    total += (double)request->num_blocks * (double)plan->num_kv_heads * task_cost(plan, request);
  }
  size_t partial_floats = 0;
  for (int64_t b = 0; b < plan->num_requests; ++b) {
    ta_request *request = &plan->requests[b];
    if (plan->num_workers > 1 && plan->num_requests == 1) {
      cut_lone_request(plan, block_rows, request);
    } else if (plan->num_workers > 1) {
      cut_request(plan, block_rows, total / (double)(3 * plan->num_workers), request);
    }
    plan->max_block_rows = ta_max_i64(plan->max_block_rows, request->nodes_per_block * request->heads_per_block);
    plan->max_block_nodes = ta_max_i64(plan->max_block_nodes, request->nodes_per_block);
    request->first_task[0] = plan->num_tasks[0];
    request->first_task[1] = plan->num_tasks[1];
    int64_t tasks = 0;
    int64_t split_tasks = 0;
    if (!ta_mul_i64(request->num_blocks, plan->num_kv_heads, &split_tasks) ||
        !ta_mul_i64(split_tasks, request->num_chunks, &tasks) ||
        !ta_add_i64(plan->num_tasks[0], tasks, &plan->num_tasks[0])) {
      return ta_plan_fail_overflow("tasks (rows, num_kv_heads, leaves)", error);
    }
    if (request->num_chunks > 1) {
      size_t floats = 0;
      request->partial_offset = partial_floats;
      if (!ta_mul_size((size_t)request->num_rows * (size_t)plan->num_heads, (size_t)request->num_chunks, &floats) ||
          !ta_mul_size(floats, (size_t)ta_partial_floats(plan), &floats) ||
          !ta_add_size(partial_floats, floats, &partial_floats)) {
        return ta_plan_fail_overflow("partial results (query rows, num_heads, leaves, head_dim_v)", error);
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
    return ta_plan_fail_overflow("scratch", error);
  }
  return TREEATTN_OK;
}

bool ta_plan_task(const treeattn_plan *plan, int stage, int64_t index, ta_task *task) {
  if ((stage != 0 && stage != 1) || index < 0 || index >= plan->num_tasks[stage]) {
    return false;
  }
  /* The last request whose first task is not beyond the index; one without tasks shares its successor's number. */
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
