/* SPDX-License-Identifier: Apache-2.0 */
/* Strides of the tensors and the smallest buffers that hold them. */
#include "plan.h"

#define FAIL_ARGUMENT(...) ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

treeattn_status ta_plan_fail_overflow(const char *what, treeattn_error *error) {
  return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "%s: the product of its sizes overflows", what);
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

/* Two rows of an output that share an element would be written by two tasks. */
static bool rows_overlap(int64_t rows, int64_t stride_row, int64_t heads, int64_t stride_head, int64_t width) {
  int64_t span = 0;
  const bool head_inner = (heads <= 1 || stride_head >= width) &&
                          (rows <= 1 || (ta_mul_i64(heads - 1, stride_head, &span) && stride_row - width >= span));
  const bool row_inner = (rows <= 1 || stride_row >= width) &&
                         (heads <= 1 || (ta_mul_i64(rows - 1, stride_row, &span) && stride_head - width >= span));
  return !head_inner && !row_inner;
}

treeattn_status ta_plan_lay_out_rows(const treeattn_plan_args *args, treeattn_plan *plan, treeattn_error *error) {
  const int64_t rows = plan->num_rows;
  const int64_t heads = plan->num_heads;
  if (!default_stride(&plan->q_stride_row, args->q_stride_row, plan->head_dim, 1) ||
      !default_stride(&plan->q_stride_head, args->q_stride_head, plan->q_stride_row, ta_max_i64(rows, 1)) ||
      !bytes_of((int64_t[3]){1, heads, rows}, (int64_t[3]){0, plan->q_stride_head, plan->q_stride_row}, plan->head_dim,
                treeattn_dtype_bytes(plan->q_dtype), &plan->q_bytes)) {
    return ta_plan_fail_overflow("q (num_heads, query rows, head_dim)", error);
  }
  if (!default_stride(&plan->out_stride_head, args->out_stride_head, plan->head_dim_v, 1) ||
      !default_stride(&plan->out_stride_row, args->out_stride_row, plan->out_stride_head, heads) ||
      !bytes_of((int64_t[3]){1, heads, rows}, (int64_t[3]){0, plan->out_stride_head, plan->out_stride_row},
                plan->head_dim_v, treeattn_dtype_bytes(plan->out_dtype), &plan->out_bytes)) {
    return ta_plan_fail_overflow("out (query rows, num_heads, head_dim_v)", error);
  }
  if (!default_stride(&plan->lse_stride_head, args->lse_stride_head, 1, 1) ||
      !default_stride(&plan->lse_stride_row, args->lse_stride_row, plan->lse_stride_head, heads) ||
      !bytes_of((int64_t[3]){1, heads, rows}, (int64_t[3]){0, plan->lse_stride_head, plan->lse_stride_row}, 1,
                sizeof(float), &plan->lse_bytes)) {
    return ta_plan_fail_overflow("lse (query rows, num_heads)", error);
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

treeattn_status ta_plan_lay_out_cache(const treeattn_plan_args *args, treeattn_plan *plan, treeattn_error *error) {
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
    return ta_plan_fail_overflow("k (sequences or pages, num_kv_heads, kv_capacity or page_size, head_dim)", error);
  }
  if (!default_stride(&plan->v_stride_slot, args->v_stride_slot, plan->head_dim_v, 1) ||
      !default_stride(&plan->v_stride_head, args->v_stride_head, plan->v_stride_slot, plan->page_size) ||
      !default_stride(&plan->v_stride_page, args->v_stride_sequence, plan->v_stride_head, plan->num_kv_heads) ||
      !bytes_of(counts, (int64_t[3]){plan->v_stride_page, plan->v_stride_head, plan->v_stride_slot}, plan->head_dim_v,
                element, &plan->v_bytes)) {
    return ta_plan_fail_overflow("v (sequences or pages, num_kv_heads, kv_capacity or page_size, head_dim_v)", error);
  }
  return TREEATTN_OK;
}
