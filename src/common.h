/* SPDX-License-Identifier: Apache-2.0 */
/* What every source file may need: error reporting and size arithmetic that cannot wrap. */
#ifndef TA_COMMON_H
#define TA_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <treeattn/base.h>

#if defined(__GNUC__)
#define TA_PRINTF(format_index, first) __attribute__((format(printf, format_index, first)))
#define TA_HIDDEN __attribute__((visibility("hidden")))
#else
#define TA_PRINTF(format_index, first)
#define TA_HIDDEN
#endif

#ifdef __cplusplus
extern "C" {
#endif
/* Fills *error (if not NULL) with a one-line message and returns `status`, so that checks read `return ta_fail(...)`.
 * */
TA_HIDDEN treeattn_status ta_fail(treeattn_error *error, treeattn_status status, const char *format, ...)
    TA_PRINTF(3, 4);
#ifdef __cplusplus
}
#endif

/* Products and sums of sizes. They return false, leaving *result alone, when the result does not fit. */
static inline bool ta_mul_size(size_t a, size_t b, size_t *result) {
  if (b != 0 && a > SIZE_MAX / b) {
    return false;
  }
  *result = a * b;
  return true;
}

static inline bool ta_add_size(size_t a, size_t b, size_t *result) {
  if (a > SIZE_MAX - b) {
    return false;
  }
  *result = a + b;
  return true;
}

/* Both operands must not be negative. */
static inline bool ta_mul_i64(int64_t a, int64_t b, int64_t *result) {
  if (b != 0 && a > INT64_MAX / b) {
    return false;
  }
  *result = a * b;
  return true;
}

static inline bool ta_add_i64(int64_t a, int64_t b, int64_t *result) {
  if (a > INT64_MAX - b) {
    return false;
  }
  *result = a + b;
  return true;
}

static inline int64_t ta_min_i64(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static inline int64_t ta_max_i64(int64_t a, int64_t b) {
  return a > b ? a : b;
}

#endif
