/* SPDX-License-Identifier: Apache-2.0 */
/* Assertions that say which trial, which row and which bits. */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <treeattn/base.h>

#if defined(__GNUC__)
#define CHECK_PRINTF(format_index, first) __attribute__((format(printf, format_index, first)))
#else
#define CHECK_PRINTF(format_index, first)
#endif

void check_failed(const char *file, int line, const char *format, ...) CHECK_PRINTF(3, 4);

/* A condition with the values that explain it. */
#define CHECK(condition, ...)                        \
  do {                                               \
    if (!(condition)) {                              \
      check_failed(__FILE__, __LINE__, __VA_ARGS__); \
    }                                                \
  } while (0)

/* A call that must succeed; its message is printed if it does not. The call must use `error`. */
#define CHECK_OK(call)                                                                                          \
  do {                                                                                                          \
    treeattn_error error = {TREEATTN_OK, ""};                                                                   \
    treeattn_status check_status = (call);                                                                      \
    CHECK(check_status == TREEATTN_OK, "%s: %s: %s", #call, treeattn_status_name(check_status), error.message); \
  } while (0)

/* Both float arrays bit for bit; NaNs compare as bits as well. `what` names the comparison, the indices are row / channel. */
void check_same_bits(const char *file, int line, const char *what, const float *actual, const float *expected,
                     int64_t rows, int64_t columns);
#define CHECK_SAME_BITS(what, actual, expected, rows, columns) \
  check_same_bits(__FILE__, __LINE__, (what), (actual), (expected), (rows), (columns))

/* An error message: status, and that each of the words stands in the text (NULL words are skipped). */
void check_error(const char *file, int line, treeattn_status actual, treeattn_status expected,
                 const treeattn_error *error, const char *word_a, const char *word_b, const char *word_c);
#define CHECK_ERROR(call, expected, word_a, word_b, word_c)                                          \
  do {                                                                                               \
    treeattn_error error = {TREEATTN_OK, ""};                                                        \
    treeattn_status check_status = (call);                                                           \
    check_error(__FILE__, __LINE__, check_status, (expected), &error, (word_a), (word_b), (word_c)); \
  } while (0)

#endif
