/* SPDX-License-Identifier: Apache-2.0 */
/* Assertions that say which trial, which row and which bits; and the trials themselves. */
#define _GNU_SOURCE 1
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rng.h"

static uint64_t current_seed;

bool test_quick(void) {
  const char *value = getenv("TREEATTN_TEST_QUICK");
  return value != NULL && value[0] != '\0' && value[0] != '0';
}

int trial_count(int normal, int quick) {
  if (getenv("TREEATTN_TEST_SEED") != NULL) {
    return 1;
  }
  return test_quick() ? quick : normal;
}

int trial_begin(rng *r, uint64_t salt, int index) {
  const char *replay = getenv("TREEATTN_TEST_SEED");
  if (replay != NULL) {
    current_seed = strtoull(replay, NULL, 0);
  } else {
    rng mixer = {salt * UINT64_C(0x2545f4914f6cdd1d) + (uint64_t)index};
    current_seed = (rng_next(&mixer) & ~UINT64_C(0xffff)) | (uint64_t)(index & 0xffff);
  }
  r->state = current_seed;
  return (int)(current_seed & 0xffff);
}

uint64_t trial_seed(void) {
  return current_seed;
}

void check_failed(const char *file, int line, const char *format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  print_error("%s\n  TREEATTN_TEST_SEED=0x%016llx\n", text, (unsigned long long)current_seed);
  _fail(file, line);
}

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

void check_same_bits(const char *file, int line, const char *what, const float *actual, const float *expected,
                     int64_t rows, int64_t columns) {
  if (rows * columns == 0 || memcmp(actual, expected, (size_t)(rows * columns) * sizeof(float)) == 0) {
    return;
  }
  int64_t different = 0, first = -1;
  for (int64_t i = 0; i < rows * columns; i++) {
    if (bits_of(actual[i]) != bits_of(expected[i])) {
      first = first < 0 ? i : first;
      different++;
    }
  }
  check_failed(file, line,
               "%s: %lld of %lld values differ, first at row %lld channel %lld: 0x%08x (%.9g) instead of 0x%08x (%.9g)",
               what, (long long)different, (long long)(rows * columns), (long long)(first / columns),
               (long long)(first % columns), (unsigned)bits_of(actual[first]), (double)actual[first],
               (unsigned)bits_of(expected[first]), (double)expected[first]);
}

void check_error(const char *file, int line, treeattn_status actual, treeattn_status expected,
                 const treeattn_error *error, const char *word_a, const char *word_b, const char *word_c) {
  if (actual != expected) {
    check_failed(file, line, "status \"%s\" instead of \"%s\"; message: %s", treeattn_status_name(actual),
                 treeattn_status_name(expected), error->message);
  }
  if (error->status != expected) {
    check_failed(file, line, "the error says \"%s\" but \"%s\" was returned", treeattn_status_name(error->status),
                 treeattn_status_name(actual));
  }
  size_t length = strnlen(error->message, sizeof error->message);
  if (length == 0 || length == sizeof error->message || memchr(error->message, '\n', length) != NULL ||
      error->message[length - 1] == '.') {
    check_failed(file, line, "not one line without a final period: \"%s\"", error->message);
  }
  const char *words[3] = {word_a, word_b, word_c};
  for (int i = 0; i < 3; i++) {
    if (words[i] != NULL && strstr(error->message, words[i]) == NULL) {
      check_failed(file, line, "message \"%s\" does not contain \"%s\"", error->message, words[i]);
    }
  }
}
