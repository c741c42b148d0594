/* SPDX-License-Identifier: Apache-2.0 */
/* Argmax over logits: the lowest index among equals, NaN never a token, nothing read or written beyond the rows. */
#include <math.h>
#include <string.h>

#include <treeattn/verify.h>

#include "argmax_scan.h"
#include "support/check.h"
#include "support/guard.h"
#include "support/halves.h"
#include "support/rng.h"
#include "support/threads.h"
#include "verify.h"

#if defined(__SSE2__)
#include <pmmintrin.h>
#endif

static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};

/* By comparing numbers; -1: NaN or nothing but -infinity. */
static int64_t plain_argmax(treeattn_dtype dtype, const void *row, int64_t count) {
  int64_t best = -1;
  float largest = -INFINITY;
  for (int64_t t = 0; t < count; t++) {
    const float value = element_load(dtype, row, t);
    if (isnan(value)) {
      return -1;
    }
    if (value > largest) {
      largest = value;
      best = t;
    }
  }
  return best;
}

static void argmax_is_right_at_every_length_and_place(void **state) {
  (void)state;
  static const int lengths[] = {1,   2,   3,   4,   7,   8,    15,   16,   17,   31,   32,   33,   63,   64,  65,
                                127, 128, 129, 255, 257, 1000, 2047, 2048, 2049, 2080, 4095, 4096, 4097, 6145};
  rng r;
  (void)trial_begin(&r, 1, 0);
  for (size_t d = 0; d < 3; d++) {
    const size_t bytes = treeattn_dtype_bytes(dtypes[d]);
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++) {
      const int count = lengths[n];
      guarded row = guarded_new((size_t)count * bytes, false); /* ends at an unmapped page */
      const int step = count < 300 ? 1 : 37;
      for (int place = 0; place < count; place += step) {
        const float top = rng_chance(&r, 2) ? -1.0f : 3.0f;
        for (int t = 0; t < count; t++) {
          element_store(dtypes[d], row.data, t, top - 0.5f - (float)rng_below(&r, 4));
        }
        element_store(dtypes[d], row.data, place, top);
        const int again = rng_below(&r, count); /* an equal one, which only counts if it stands before */
        element_store(dtypes[d], row.data, again, top);
        const ta_argmax found = ta_row_argmax(row.data, dtypes[d], count);
        const int expected = again < place ? again : place;
        CHECK(found.kind == TA_ARGMAX_TOKEN && found.index == expected, "%s, %d values: %d instead of %d",
              treeattn_dtype_name(dtypes[d]), count, (int)found.index, expected);
      }
      guarded_free(&row);
    }
  }
}

static void every_16_bit_pattern_has_its_place(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 2, 0);
  for (size_t d = 1; d < 3; d++) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
      uint16_t row[40];
      for (int t = 0; t < 40; t++) {
        row[t] = (uint16_t)rng_next(&r);
        if (isnan(element_load(dtypes[d], row, t))) {
          row[t] = 0xfbff; /* the lowest finite f16, an ordinary bf16 */
        }
      }
      const int place = rng_below(&r, 40);
      row[place] = (uint16_t)bits;
      const ta_argmax found = ta_row_argmax(row, dtypes[d], 40);
      const int64_t expected = plain_argmax(dtypes[d], row, 40);
      const bool is_nan = isnan(element_load(dtypes[d], row, place));
      CHECK(is_nan ? found.kind == TA_ARGMAX_NAN && found.index == place
                   : found.kind == TA_ARGMAX_TOKEN && found.index == expected,
            "%s pattern %04x: kind %d, index %d", treeattn_dtype_name(dtypes[d]), bits, (int)found.kind,
            (int)found.index);
    }
  }
}

static void nan_is_found_wherever_it_stands(void **state) {
  (void)state;
  enum { COUNT = 4200 };
  static float row[COUNT];
  static const uint32_t patterns[] = {0x7fc00000, 0x7f800001, 0x7fffffff, 0xffc00000, 0xff800001, 0xffffffff};
  for (int t = 0; t < COUNT; t++) {
    row[t] = t % 2 == 0 ? INFINITY : -1.0f;
  }
  for (int place = 0; place < COUNT; place++) {
    const float kept = row[place];
    memcpy(&row[place], &patterns[place % 6], sizeof row[place]);
    const ta_argmax found = ta_row_argmax(row, TREEATTN_F32, COUNT);
    CHECK(found.kind == TA_ARGMAX_NAN && found.index == place, "NaN at %d: kind %d, index %d", place, (int)found.kind,
          (int)found.index);
    row[place] = kept;
  }
  assert_int_equal(ta_row_argmax(row, TREEATTN_F32, COUNT).kind, TA_ARGMAX_TOKEN);
}

static void zeros_and_infinities(void **state) {
  (void)state;
  const float zeros[] = {-1.0f, -0.0f, 0.0f, -0.0f};
  assert_int_equal(ta_row_argmax(zeros, TREEATTN_F32, 4).index, 1);
  const float infinite[] = {3.0f, INFINITY, INFINITY};
  assert_int_equal(ta_row_argmax(infinite, TREEATTN_F32, 3).index, 1);
  float forbidden[70];
  for (int t = 0; t < 70; t++) {
    forbidden[t] = -INFINITY;
  }
  assert_int_equal(ta_row_argmax(forbidden, TREEATTN_F32, 70).kind, TA_ARGMAX_NOTHING);
  forbidden[69] = -3.4028235e38f;
  assert_int_equal(ta_row_argmax(forbidden, TREEATTN_F32, 70).index, 69);
  const uint16_t forbidden_half[] = {0xfc00, 0xfc00};
  assert_int_equal(ta_row_argmax(forbidden_half, TREEATTN_F16, 2).kind, TA_ARGMAX_NOTHING);
}

/* Makes this thread treat subnormals as zeros where it can be told to; gives what to restore. */
static uint64_t set_flushing(bool flush) {
#if defined(__SSE2__)
  const unsigned int control = _mm_getcsr();
  _mm_setcsr(flush ? control | 0x8040u : control);
  return control;
#elif defined(__aarch64__)
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  const uint64_t changed = flush ? control | UINT64_C(1) << 24 : control;
  __asm__ volatile("msr fpcr, %0" : : "r"(changed));
  return control;
#else
  (void)flush;
  return 0;
#endif
}

static void restore_flushing(uint64_t control) {
#if defined(__SSE2__)
  _mm_setcsr((unsigned int)control);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(control));
#else
  (void)control;
#endif
}

/* A thread that flushes subnormals to zero still tells them from zero and from each other. */
static void subnormals_count_whatever_the_thread_does(void **state) {
  (void)state;
  float row[64];
  for (int flush = 0; flush < 2; flush++) {
    int32_t found[2];
    for (int t = 0; t < 64; t++) {
      const uint32_t bits = t == 41 ? 3u : t % 3 == 0 ? 0u : 0x80000002u; /* 4e-45 among 0 and -3e-45 */
      memcpy(&row[t], &bits, sizeof row[t]);
    }
    uint64_t control = set_flushing(flush == 1);
    found[0] = ta_row_argmax(row, TREEATTN_F32, 64).index;
    restore_flushing(control);
    for (int t = 0; t < 64; t++) {
      const uint32_t bits = t == 17 ? 0x80000001u : t % 3 == 0 ? 0xbf800000u : 0x80000002u;
      memcpy(&row[t], &bits, sizeof row[t]);
    }
    control = set_flushing(flush == 1);
    found[1] = ta_row_argmax(row, TREEATTN_F32, 64).index;
    restore_flushing(control);
    CHECK(found[0] == 41 && found[1] == 17, "flush %d: %d and %d instead of 41 and 17", flush, (int)found[0],
          (int)found[1]);
  }
}

/* The vectors against the portable form that other machines run. */
static void vector_scans_equal_scalar_scans(void **state) {
  (void)state;
  for (int trial = 0; trial < 4000; trial++) {
    rng r;
    (void)trial_begin(&r, 3, trial);
    float values[200];
    uint16_t halves[200];
    const int count = rng_range(&r, 1, 200);
    for (int t = 0; t < count; t++) {
      uint32_t bits = (uint32_t)rng_next(&r);
      if (trial % 4 != 0 && (bits & 0x7f800000u) == 0x7f800000u) {
        bits &= 0xff800000u;
      }
      if (trial % 4 == 1) {
        bits &= 0x807fffffu; /* zeros and subnormals */
      }
      memcpy(&values[t], &bits, sizeof bits);
      halves[t] = (uint16_t)(bits >> 16);
      if (trial % 4 != 0 && (halves[t] & 0x7c00u) == 0x7c00u) {
        halves[t] &= 0xfc00u;
      }
    }
    const ta_scan a = ta_scan_f32(values, (size_t)count);
    const ta_scan b = ta_scan_f32_keys(values, (size_t)count);
    CHECK(a.has_nan == b.has_nan && (a.has_nan || a.largest == b.largest), "f32, %d values, seed %llu", count,
          (unsigned long long)trial_seed());
    const ta_scan c = ta_scan_16(halves, (size_t)count, TA_KEY_INFINITY_F16);
    const ta_scan d = ta_scan_16_keys(halves, (size_t)count, TA_KEY_INFINITY_F16);
    CHECK(c.has_nan == d.has_nan && c.largest == d.largest, "16 bits, %d values, seed %llu", count,
          (unsigned long long)trial_seed());
  }
}

static void rows_in_parallel_with_strides(void **state) {
  (void)state;
  for (int trial = 0; trial < 60; trial++) {
    rng r;
    (void)trial_begin(&r, 4, trial);
    const treeattn_dtype dtype = dtypes[trial % 3];
    const int num_rows = rng_below(&r, 12);
    const int vocab_size = rng_range(&r, 1, 3000);
    const int stride = vocab_size + rng_below(&r, 3);
    const int64_t elements = num_rows == 0 ? 0 : (int64_t)(num_rows - 1) * stride + vocab_size;
    guarded data = guarded_new((size_t)elements * treeattn_dtype_bytes(dtype), false); /* NaN between the rows */
    for (int64_t i = 0; i < num_rows; i++) {
      for (int64_t t = 0; t < vocab_size; t++) {
        element_store(dtype, data.data, i * stride + t, (float)rng_range(&r, -40, 40));
      }
    }
    const treeattn_verify_rows rows = {data.data, data.bytes, dtype, stride};
    const size_t scratch_bytes = treeattn_logits_argmax_scratch_bytes(num_rows);
    guarded scratch = guarded_new(scratch_bytes, rng_chance(&r, 2));
    int32_t argmax[16];
    thread_team team = {3};
    const treeattn_executor executors[] = {{NULL, NULL}, shuffled_executor(&r), thread_team_executor(&team)};
    for (int e = 0; e < 4; e++) {
      memset(argmax, 0xff, sizeof argmax);
      CHECK_OK(treeattn_logits_argmax(&rows, num_rows, vocab_size, e == 3 ? NULL : &executors[e], scratch.data,
                                      scratch_bytes, argmax, &error));
      for (int i = 0; i < num_rows; i++) {
        const void *row = (const unsigned char *)data.data + (size_t)i * (size_t)stride * treeattn_dtype_bytes(dtype);
        CHECK(argmax[i] == plain_argmax(dtype, row, vocab_size), "row %d: %d, seed %llu", i, (int)argmax[i],
              (unsigned long long)trial_seed());
      }
      assert_int_equal(argmax[num_rows], -1);
    }
    assert_true(guarded_intact(&scratch));
    guarded_free(&scratch);
    guarded_free(&data);
  }
}

static void errors_name_the_row_and_write_nothing(void **state) {
  (void)state;
  float data[4][5] = {{0}};
  unsigned char scratch[256];
  int32_t argmax[4] = {-7, -7, -7, -7};
  treeattn_verify_rows rows = {data, sizeof data, TREEATTN_F32, 0};
  const treeattn_executor failing = failing_executor();
#define ARGMAX(bytes, executor) treeattn_logits_argmax(&rows, 4, 5, executor, scratch, bytes, argmax, &error)
  data[2][3] = NAN;
  data[3][0] = NAN;
  CHECK_ERROR(ARGMAX(sizeof scratch, NULL), TREEATTN_ERROR_INVALID_VALUE, "rows[2][3]", "NaN", NULL);
  data[2][3] = 0;
  data[3][0] = 0;
  for (int t = 0; t < 5; t++) {
    data[1][t] = -INFINITY;
  }
  CHECK_ERROR(ARGMAX(sizeof scratch, NULL), TREEATTN_ERROR_INVALID_VALUE, "rows[1]", "-infinity", NULL);
  CHECK_ERROR(ARGMAX(sizeof scratch, &failing), TREEATTN_ERROR_BACKEND, "executor", NULL, NULL);
  CHECK_ERROR(ARGMAX(3, NULL), TREEATTN_ERROR_BUFFER_TOO_SMALL, "scratch_bytes", "3", NULL);
  rows.bytes--;
  CHECK_ERROR(ARGMAX(sizeof scratch, NULL), TREEATTN_ERROR_BUFFER_TOO_SMALL, "rows.bytes", "79", "80");
  rows.bytes++;
  rows.row_stride = 4;
  CHECK_ERROR(ARGMAX(sizeof scratch, NULL), TREEATTN_ERROR_INVALID_ARGUMENT, "row_stride", "4", "5");
  rows.row_stride = INT64_MAX / 2;
  CHECK_ERROR(ARGMAX(sizeof scratch, NULL), TREEATTN_ERROR_OVERFLOW, "rows", NULL, NULL);
  rows.row_stride = INT64_MAX / 4; /* fits as elements, not as bytes */
  CHECK_ERROR(ARGMAX(sizeof scratch, NULL), TREEATTN_ERROR_OVERFLOW, "rows", NULL, NULL);
  rows.row_stride = 0;
  rows.dtype = (treeattn_dtype)9;
  CHECK_ERROR(ARGMAX(sizeof scratch, NULL), TREEATTN_ERROR_INVALID_ARGUMENT, "rows.dtype", "9", NULL);
  rows.dtype = TREEATTN_F32;
  rows.data = NULL;
  CHECK_ERROR(ARGMAX(sizeof scratch, NULL), TREEATTN_ERROR_INVALID_ARGUMENT, "rows.data", NULL, NULL);
  rows.data = (const unsigned char *)data + 1;
  rows.bytes = sizeof data - 1;
  CHECK_ERROR(treeattn_logits_argmax(&rows, 1, 5, NULL, scratch, sizeof scratch, argmax, &error),
              TREEATTN_ERROR_INVALID_ARGUMENT, "rows.data", "aligned", NULL);
  rows.data = data;
  CHECK_ERROR(treeattn_logits_argmax(NULL, 1, 5, NULL, scratch, sizeof scratch, argmax, &error),
              TREEATTN_ERROR_INVALID_ARGUMENT, "rows", NULL, NULL);
  CHECK_ERROR(treeattn_logits_argmax(&rows, -1, 5, NULL, scratch, sizeof scratch, argmax, &error),
              TREEATTN_ERROR_INVALID_ARGUMENT, "num_rows", "-1", NULL);
  CHECK_ERROR(treeattn_logits_argmax(&rows, 1, 0, NULL, scratch, sizeof scratch, argmax, &error),
              TREEATTN_ERROR_INVALID_ARGUMENT, "vocab_size", "0", NULL);
  CHECK_ERROR(treeattn_logits_argmax(&rows, 1, INT64_C(1) << 31, NULL, scratch, sizeof scratch, argmax, &error),
              TREEATTN_ERROR_INVALID_ARGUMENT, "vocab_size", "2147483648", NULL);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(argmax[i], -7);
  }
  assert_true(treeattn_logits_argmax_scratch_bytes(INT64_MAX) == SIZE_MAX);
  assert_true(treeattn_logits_argmax_scratch_bytes(-1) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(argmax_is_right_at_every_length_and_place),
      cmocka_unit_test(every_16_bit_pattern_has_its_place),
      cmocka_unit_test(nan_is_found_wherever_it_stands),
      cmocka_unit_test(zeros_and_infinities),
      cmocka_unit_test(subnormals_count_whatever_the_thread_does),
      cmocka_unit_test(vector_scans_equal_scalar_scans),
      cmocka_unit_test(rows_in_parallel_with_strides),
      cmocka_unit_test(errors_name_the_row_and_write_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
