/* SPDX-License-Identifier: Apache-2.0 */
/* Carries a commit plan out on the tensors of a cache: checked addresses, then bytes. */
#include <string.h>

#include "commit_plan.h"

/* What a (tensor, head) task needs, with the defaults put in. */
typedef struct place {
  unsigned char *head; /* block 0, row 0 of the head */
  size_t stride_block, stride_row, row_bytes;
} place;

typedef struct shape {
  const char *field; /* of the stride, for messages */
  int64_t count;
  size_t stride;
} shape;

enum { BLOCK, HEAD, ROW, NUM_SHAPES };

/* Strides in bytes, the packed order where they are 0. Fails only if the packed order overflows or a stride is
 * negative. */
static treeattn_status get_shapes(const treeattn_commit_plan *plan, int64_t t, const treeattn_commit_tensor *tensor,
                                  shape shapes[NUM_SHAPES], treeattn_error *error) {
  const int64_t given[NUM_SHAPES] = {tensor->stride_block_bytes, tensor->stride_head_bytes, tensor->stride_row_bytes};
  shapes[BLOCK] = (shape){"stride_block_bytes", plan->num_blocks, 0};
  shapes[HEAD] = (shape){"stride_head_bytes", tensor->num_heads, 0};
  shapes[ROW] = (shape){"stride_row_bytes", plan->rows_per_block, 0};
  for (int s = NUM_SHAPES - 1; s >= 0; s--) {
    bool fits = true;
    if (given[s] < 0) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "tensors[%lld].%s is %lld: it must not be negative",
                     (long long)t, shapes[s].field, (long long)given[s]);
    }
    if (given[s] > 0) {
      shapes[s].stride = (size_t)given[s];
    } else if (s == ROW) {
      shapes[s].stride = tensor->row_bytes;
    } else {
      fits = ta_mul_size((size_t)shapes[s + 1].count, shapes[s + 1].stride, &shapes[s].stride);
    }
    if (!fits) {
      return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "tensors[%lld]: %s of the packed order overflows", (long long)t,
                     shapes[s].field);
    }
  }
  return TREEATTN_OK;
}

/* Rows must be apart: from the smallest stride up, each has to step over all that the smaller ones span. What they span
 * in the end is what the buffer must hold. */
static treeattn_status check_span(int64_t t, const treeattn_commit_tensor *tensor, const shape shapes[NUM_SHAPES],
                                  treeattn_error *error) {
  if (shapes[BLOCK].count == 0 || shapes[ROW].count == 0) {
    return TREEATTN_OK; /* an empty cache */
  }
  const shape *order[NUM_SHAPES] = {&shapes[ROW], &shapes[HEAD], &shapes[BLOCK]};
  for (int a = 1; a < NUM_SHAPES; a++) {
    for (int b = a; b > 0 && order[b]->stride < order[b - 1]->stride; b--) {
      const shape *swapped = order[b];
      order[b] = order[b - 1];
      order[b - 1] = swapped;
    }
  }
  size_t span = tensor->row_bytes;
  for (int s = 0; s < NUM_SHAPES; s++) {
    if (order[s]->count == 1) {
      continue;
    }
    if (order[s]->stride < span) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                     "tensors[%lld].%s is %zu: rows overlap, it must be at least %zu", (long long)t, order[s]->field,
                     order[s]->stride, span);
    }
    size_t reach = 0;
    if (!ta_mul_size((size_t)(order[s]->count - 1), order[s]->stride, &reach) || !ta_add_size(reach, span, &span)) {
      return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "tensors[%lld].%s is %zu: over %lld steps it overflows",
                     (long long)t, order[s]->field, order[s]->stride, (long long)order[s]->count);
    }
  }
  if (tensor->data == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "tensors[%lld].data is NULL", (long long)t);
  }
  if (tensor->bytes < span) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "tensors[%lld].bytes is %zu: the shape needs %zu",
                   (long long)t, tensor->bytes, span);
  }
  return TREEATTN_OK;
}

/* Fields that this version does not know were seen to be zero by the check. */
static treeattn_commit_tensor get_tensor(const treeattn_commit_run_args *run, int64_t t) {
  treeattn_commit_tensor tensor;
  const size_t stride = run->tensor_bytes == 0 ? sizeof tensor : run->tensor_bytes;
  memcpy(&tensor, (const unsigned char *)run->tensors + (size_t)t * stride, sizeof tensor);
  return tensor;
}

static treeattn_status check_tensor(const treeattn_commit_plan *plan, const treeattn_commit_run_args *run, int64_t t,
                                    treeattn_error *error) {
  const size_t stride = run->tensor_bytes == 0 ? sizeof(treeattn_commit_tensor) : run->tensor_bytes;
  treeattn_commit_tensor tensor;
  treeattn_status status = ta_commit_copy_struct(
      &tensor, sizeof tensor, (const unsigned char *)run->tensors + (size_t)t * stride, stride, "tensor_bytes", error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (tensor.row_bytes == 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "tensors[%lld].row_bytes is 0: it must be at least 1",
                   (long long)t);
  }
  if (tensor.num_heads < 1) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "tensors[%lld].num_heads is %lld: it must be at least 1",
                   (long long)t, (long long)tensor.num_heads);
  }
  shape shapes[NUM_SHAPES];
  status = get_shapes(plan, t, &tensor, shapes, error);
  return status == TREEATTN_OK ? check_span(t, &tensor, shapes, error) : status;
}

/* Passing a tensor twice would scramble it. [*lowest, *highest] holds all data seen so far, so that tensors in the
 * order of their addresses, either way, cost no search. */
static treeattn_status check_repeated(const treeattn_commit_run_args *run, int64_t t, uintptr_t *lowest,
                                      uintptr_t *highest, treeattn_error *error) {
  const uintptr_t data = (uintptr_t)get_tensor(run, t).data;
  if (t > 0 && data != 0 && data >= *lowest && data <= *highest) {
    for (int64_t earlier = 0; earlier < t; earlier++) {
      if ((uintptr_t)get_tensor(run, earlier).data == data) {
        return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                       "tensors[%lld].data is that of tensors[%lld]: its rows would move twice", (long long)t,
                       (long long)earlier);
      }
    }
  }
  *lowest = t == 0 || data < *lowest ? data : *lowest;
  *highest = data > *highest ? data : *highest;
  return TREEATTN_OK;
}

treeattn_status treeattn_commit_check(const treeattn_commit_plan *plan, const treeattn_commit_run_args *run,
                                      int64_t *num_tasks, treeattn_error *error) {
  if (plan == NULL || run == NULL || num_tasks == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is NULL",
                   plan == NULL ? "plan" : (run == NULL ? "run" : "num_tasks"));
  }
  treeattn_commit_run_args known;
  treeattn_status status = ta_commit_copy_struct(&known, sizeof known, run, run->struct_size, "run.struct_size", error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (run->num_tensors < 0 || (run->num_tensors > 0 && run->tensors == NULL)) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_tensors is %lld: %s", (long long)run->num_tensors,
                   run->num_tensors < 0 ? "it must not be negative" : "tensors is NULL");
  }
  int64_t count = 0;
  uintptr_t lowest = 0;
  uintptr_t highest = 0;
  for (int64_t t = 0; t < run->num_tensors; t++) {
    status = check_tensor(plan, run, t, error);
    if (status != TREEATTN_OK) {
      return status;
    }
    const treeattn_commit_tensor tensor = get_tensor(run, t);
    status = check_repeated(run, t, &lowest, &highest, error);
    if (status != TREEATTN_OK) {
      return status;
    }
    if (!ta_add_i64(count, tensor.num_heads, &count)) {
      return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "tensors[%lld].num_heads is %lld: the sum of heads overflows",
                     (long long)t, (long long)tensor.num_heads);
    }
  }
  *num_tasks = count;
  return TREEATTN_OK;
}

static unsigned char *row_at(const place *at, int64_t block, int64_t row) {
  return at->head + (size_t)block * at->stride_block + (size_t)row * at->stride_row;
}

static void move_run(const place *at, const treeattn_commit_move *move) {
  unsigned char *dst = row_at(at, move->dst_block, move->dst_row);
  const unsigned char *src = row_at(at, move->src_block, move->src_row);
  const size_t num_rows = (size_t)move->num_rows;
  if (at->stride_row == at->row_bytes) {
    memmove(dst, src, num_rows * at->row_bytes);
    return;
  }
  /* Rows one by one, away from those still to be read. */
  const bool down = move->src_block == move->dst_block && move->dst_row > move->src_row;
  for (size_t n = 0; n < num_rows; n++) {
    const size_t step = (down ? num_rows - 1 - n : n) * at->stride_row;
    memcpy(dst + step, src + step, at->row_bytes);
  }
}

/* A cycle of rows, turned a stretch of bytes at a time, so that rows of any size need no memory of the caller's.
 * moves[0] goes to the temporary row; returns the number of moves up to the one that comes from it. */
static int64_t turn_cycle(const place *at, const treeattn_commit_move *moves) {
  int64_t last = 1;
  while (moves[last].src_block != TREEATTN_COMMIT_TEMPORARY) {
    last++;
  }
  unsigned char kept[512];
  for (size_t offset = 0; offset < at->row_bytes; offset += sizeof kept) {
    const size_t left = at->row_bytes - offset;
    const size_t bytes = left < sizeof kept ? left : sizeof kept;
    memcpy(kept, row_at(at, moves[0].src_block, moves[0].src_row) + offset, bytes);
    for (int64_t m = 1; m < last; m++) {
      memcpy(row_at(at, moves[m].dst_block, moves[m].dst_row) + offset,
             row_at(at, moves[m].src_block, moves[m].src_row) + offset, bytes);
    }
    memcpy(row_at(at, moves[last].dst_block, moves[last].dst_row) + offset, kept, bytes);
  }
  return last + 1;
}

static void move_head(const treeattn_commit_plan *plan, const treeattn_commit_tensor *tensor, int64_t head) {
  shape shapes[NUM_SHAPES];
  if (get_shapes(plan, 0, tensor, shapes, NULL) != TREEATTN_OK) {
    return; /* an unchecked call */
  }
  const place at = {(unsigned char *)tensor->data + (size_t)head * shapes[HEAD].stride, shapes[BLOCK].stride,
                    shapes[ROW].stride, tensor->row_bytes};
  for (int64_t m = 0; m < plan->num_moves;) {
    if (plan->moves[m].dst_block == TREEATTN_COMMIT_TEMPORARY) {
      m += turn_cycle(&at, &plan->moves[m]);
    } else {
      move_run(&at, &plan->moves[m]);
      m++;
    }
  }
}

void treeattn_commit_task(const treeattn_commit_plan *plan, const treeattn_commit_run_args *run, int64_t task) {
  if (task < 0) {
    return;
  }
  for (int64_t t = 0; t < run->num_tensors; t++) {
    const treeattn_commit_tensor tensor = get_tensor(run, t);
    if (task < tensor.num_heads) {
      move_head(plan, &tensor, task);
      return;
    }
    task -= tensor.num_heads;
  }
}

typedef struct job {
  const treeattn_commit_plan *plan;
  const treeattn_commit_run_args *run;
} job;

static void run_task(void *arg, size_t index) {
  const job *work = arg;
  treeattn_commit_task(work->plan, work->run, (int64_t)index);
}

treeattn_status treeattn_commit_apply(const treeattn_commit_plan *plan, const treeattn_commit_run_args *run,
                                      treeattn_error *error) {
  int64_t num_tasks = 0;
  const treeattn_status status = treeattn_commit_check(plan, run, &num_tasks, error);
  if (status != TREEATTN_OK || plan->num_moves == 0) {
    return status;
  }
  if (run->executor.parallel_for != NULL) {
    job work = {plan, run};
    const int result = run->executor.parallel_for(run->executor.context, run_task, &work, (size_t)num_tasks);
    if (result != 0) {
      return ta_fail(error, TREEATTN_ERROR_BACKEND, "executor.parallel_for returned %d", result);
    }
    return TREEATTN_OK;
  }
  for (int64_t t = 0; t < run->num_tensors; t++) {
    const treeattn_commit_tensor tensor = get_tensor(run, t);
    for (int64_t g = 0; g < tensor.num_heads; g++) {
      move_head(plan, &tensor, g);
    }
  }
  return TREEATTN_OK;
}
