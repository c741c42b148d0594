/* SPDX-License-Identifier: Apache-2.0 */
/* The index of the largest logit of a row, at the speed of reading the row. */
#include "argmax_scan.h"
#include "verify.h"

/* A block is scanned, and the one that holds the answer visited again, while it is in the first-level cache. */
enum { BLOCK = 2048 };

static ta_scan scan(const void *row, treeattn_dtype dtype, int64_t begin, int64_t count) {
  if (dtype == TREEATTN_F32) {
    return ta_scan_f32((const float *)row + begin, (size_t)count);
  }
  return ta_scan_16((const uint16_t *)row + begin, (size_t)count,
                    dtype == TREEATTN_F16 ? TA_KEY_INFINITY_F16 : TA_KEY_INFINITY_BF16);
}

static int32_t key_infinity(treeattn_dtype dtype) {
  switch (dtype) {
    case TREEATTN_F16: return TA_KEY_INFINITY_F16;
    case TREEATTN_BF16: return TA_KEY_INFINITY_BF16;
    default: return TA_KEY_INFINITY_F32;
  }
}

static int32_t key_at(const void *row, treeattn_dtype dtype, int64_t index) {
  return dtype == TREEATTN_F32 ? ta_key_f32((const float *)row + index) : ta_key_16(((const uint16_t *)row)[index]);
}

ta_argmax ta_row_argmax(const void *row, treeattn_dtype dtype, int64_t vocab_size) {
  const int32_t infinity = key_infinity(dtype);
  int32_t largest = -infinity;
  int64_t begin = -1;
  for (int64_t block = 0; block < vocab_size; block += BLOCK) {
    const ta_scan found = scan(row, dtype, block, ta_min_i64(BLOCK, vocab_size - block));
    if (found.has_nan) {
      int64_t t = block;
      while (key_at(row, dtype, t) <= infinity && key_at(row, dtype, t) >= -infinity) {
        t++;
      }
      return (ta_argmax){TA_ARGMAX_NAN, (int32_t)t};
    }
    if (found.largest > largest) {
      largest = found.largest;
      begin = block;
    }
  }
  if (begin < 0) {
    return (ta_argmax){TA_ARGMAX_NOTHING, 0};
  }
  while (key_at(row, dtype, begin) != largest) {
    begin++;
  }
  return (ta_argmax){TA_ARGMAX_TOKEN, (int32_t)begin};
}

typedef struct argmax_job {
  const treeattn_verify_rows *rows;
  int64_t vocab_size;
  ta_argmax *found;
} argmax_job;

static void argmax_task(void *arg, size_t index) {
  const argmax_job *job = arg;
  job->found[index] =
      ta_row_argmax(ta_rows_at(job->rows, (int64_t)index, job->vocab_size), ta_rows_dtype(job->rows), job->vocab_size);
}

size_t treeattn_logits_argmax_scratch_bytes(int64_t num_rows) {
  size_t bytes;
  if (num_rows <= 0 || (uint64_t)num_rows > SIZE_MAX || !ta_mul_size((size_t)num_rows, sizeof(ta_argmax), &bytes)) {
    return num_rows <= 0 ? 0 : SIZE_MAX;
  }
  return ta_add_size(bytes, _Alignof(ta_argmax) - 1, &bytes) ? bytes : SIZE_MAX;
}

treeattn_status treeattn_logits_argmax(const treeattn_verify_rows *rows, int64_t num_rows, int64_t vocab_size,
                                       const treeattn_executor *executor, void *scratch, size_t scratch_bytes,
                                       int32_t *argmax, treeattn_error *error) {
  if (rows == NULL || num_rows < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                   rows == NULL ? "rows is NULL" : "num_rows is %lld: it must not be negative", (long long)num_rows);
  }
  if (num_rows > 0 && (rows->data == NULL || argmax == NULL)) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is NULL: num_rows is %lld",
                   rows->data == NULL ? "rows.data" : "argmax", (long long)num_rows);
  }
  const treeattn_status status = ta_rows_check(rows, num_rows, vocab_size, "rows", error);
  if (status != TREEATTN_OK || num_rows == 0) {
    return status;
  }
  const size_t needed = treeattn_logits_argmax_scratch_bytes(num_rows);
  if (scratch == NULL || scratch_bytes < needed) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "scratch_bytes is %zu: %lld rows need %zu",
                   scratch == NULL ? (size_t)0 : scratch_bytes, (long long)num_rows, needed);
  }
  const size_t offset = (_Alignof(ta_argmax) - (uintptr_t)scratch % _Alignof(ta_argmax)) % _Alignof(ta_argmax);
  argmax_job job = {rows, vocab_size, (ta_argmax *)(void *)((unsigned char *)scratch + offset)};
  if (executor != NULL && executor->parallel_for != NULL) {
    const int failure = executor->parallel_for(executor->context, argmax_task, &job, (size_t)num_rows);
    if (failure != 0) {
      return ta_fail(error, TREEATTN_ERROR_BACKEND, "the executor returned %d", failure);
    }
  } else {
    for (int64_t row = 0; row < num_rows; row++) {
      argmax_task(&job, (size_t)row);
    }
  }
  for (int64_t row = 0; row < num_rows; row++) {
    if (job.found[row].kind == TA_ARGMAX_NAN) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_VALUE, "rows[%lld][%ld] is NaN", (long long)row,
                     (long)job.found[row].index);
    }
    if (job.found[row].kind == TA_ARGMAX_NOTHING) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_VALUE, "rows[%lld] is -infinity everywhere: it has no largest logit",
                     (long long)row);
    }
  }
  for (int64_t row = 0; row < num_rows; row++) {
    argmax[row] = job.found[row].index;
  }
  return TREEATTN_OK;
}
