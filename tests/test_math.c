/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: an elementary function leaves its stated error bound somewhere in its domain. */
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/elementary.h"
#include "support/halves.h"
#include "support/rng.h"

/* Every bit pattern with TREEATTN_TEST_EXHAUSTIVE=1, about a minute; otherwise every n-th for a prime n, which meets all exponents. */
static uint32_t pattern_step(void) {
  const char *value = getenv("TREEATTN_TEST_EXHAUSTIVE");
  if (value != NULL && value[0] == '1') {
    return 1;
  }
  return test_quick() ? 4099 : 251;
}

/* The distance between f32 numbers at the magnitude of x. */
static double unit_at(double x) {
  int exponent;
  (void)frexp(x, &exponent);
  int unit = exponent - 24;
  return ldexp(1.0, unit < -149 ? -149 : unit);
}

typedef struct worst_case {
  double units;
  float at;
  uint64_t count;
} worst_case;

static void meet(worst_case *worst, float at, float actual, double expected) {
  double units = fabs((double)actual - expected) / unit_at(expected);
  worst->count++;
  if (!(units <= worst->units)) {
    worst->units = units;
    worst->at = at;
  }
}

static void report(const char *name, const worst_case *worst, double bound) {
  print_message("%s: worst error %.4f units in the last place at %a, %llu inputs\n", name, worst->units,
                (double)worst->at, (unsigned long long)worst->count);
  CHECK(worst->count > 0 && worst->units <= bound, "%s: error %.4f units in the last place at %a, at most %g allowed",
        name, worst->units, (double)worst->at, bound);
}

static float float_at(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static void exp2_one(worst_case *worst, float x) {
  float y = ta_exp2(x);
  if (x != x) {
    CHECK(y != y, "exp2 of NaN is %a", (double)y);
  } else if (x <= -126.5f) {
    CHECK(bits_of(y) == 0, "exp2(%a) is %a (0x%08x) instead of +0", (double)x, (double)y, (unsigned)bits_of(y));
  } else if (x <= 127.0f) {
    meet(worst, x, y, exp2((double)x));
  }
}

static void test_exp2_within_its_bound(void **state) {
  (void)state;
  worst_case worst = {0, 0, 0};
  const uint32_t step = pattern_step();
  uint64_t bits = 0;
  for (; bits <= UINT32_MAX; bits += step) {
    exp2_one(&worst, float_at((uint32_t)bits));
  }
  /* All inputs near the rounding boundaries n + 1/2 and the integers, whatever the step. */
  for (int n = -256; n <= 254; n++) {
    for (int32_t near = -64; near <= 64; near++) {
      float x = (float)n * 0.5f;
      uint32_t around = bits_of(x) + (uint32_t)near;
      if (n != 0 || near >= 0) {
        exp2_one(&worst, float_at(around));
      }
    }
  }
  /* The fraction decides the error and is largest here: all inputs from 0.4 to 0.5 in magnitude. */
  for (uint32_t magnitude = bits_of(0.4f); magnitude <= bits_of(0.5f); magnitude += test_quick() ? 61 : 1) {
    exp2_one(&worst, float_at(magnitude));
    exp2_one(&worst, float_at(magnitude | 0x80000000u));
  }
  exp2_one(&worst, -INFINITY);
  exp2_one(&worst, NAN);
  report("exp2", &worst, 1.05);
}

static void test_exp2_of_zero_is_one(void **state) {
  (void)state;
  CHECK(bits_of(ta_exp2(0.0f)) == bits_of(1.0f), "exp2(0) is %a", (double)ta_exp2(0.0f));
  CHECK(bits_of(ta_exp2(-0.0f)) == bits_of(1.0f), "exp2(-0) is %a", (double)ta_exp2(-0.0f));
  for (int n = -126; n <= 127; n++) {
    float y = ta_exp2((float)n);
    CHECK((double)y == ldexp(1.0, n), "exp2(%d) is %a", n, (double)y);
  }
}

/* A weight never exceeds 1: scores minus their maximum are not positive. */
static void test_exp2_not_above_one_for_negative(void **state) {
  (void)state;
  for (uint64_t bits = 0x80000000u; bits <= 0xff800000u; bits += test_quick() ? 4099 : 257) {
    float y = ta_exp2(float_at((uint32_t)bits));
    CHECK(y >= 0.0f && y <= 1.0f, "exp2(%a) is %a", (double)float_at((uint32_t)bits), (double)y);
  }
}

static void test_tanh_within_its_bound(void **state) {
  (void)state;
  worst_case worst = {0, 0, 0};
  const uint32_t step = pattern_step();
  for (uint64_t bits = 0; bits <= 0x7f800000u; bits += step) {
    float x = float_at((uint32_t)bits);
    float y = ta_tanh(x);
    meet(&worst, x, y, tanh((double)x));
    CHECK(y >= 0.0f && y <= 1.0f, "tanh(%a) is %a", (double)x, (double)y);
    CHECK(bits_of(ta_tanh(-x)) == (bits_of(y) ^ 0x80000000u), "tanh is not odd at %a", (double)x);
  }
  for (int32_t near = -2000; near <= 2000; near++) {
    float x = float_at(bits_of(TA_TANH_SWITCH) + (uint32_t)near);
    meet(&worst, x, ta_tanh(x), tanh((double)x));
    x = float_at(bits_of(TA_TANH_LIMIT) + (uint32_t)near);
    meet(&worst, x, ta_tanh(x), tanh((double)x));
  }
  CHECK(ta_tanh(INFINITY) == 1.0f && ta_tanh(-INFINITY) == -1.0f, "tanh(inf) is %a", (double)ta_tanh(INFINITY));
  float of_nan = ta_tanh(NAN);
  CHECK(of_nan != of_nan, "tanh(NaN) is %a", (double)of_nan);
  report("tanh", &worst, 2.0);
}

static void test_log_within_its_bound(void **state) {
  (void)state;
  worst_case worst = {0, 0, 0};
  const uint32_t step = pattern_step();
  for (uint64_t bits = 0x00800000u; bits < 0x7f800000u; bits += step) {
    float x = float_at((uint32_t)bits);
    if (x != 1.0f) {
      meet(&worst, x, ta_log(x), log((double)x));
    }
  }
  for (int32_t near = -200000; near <= 200000; near++) {
    float x = float_at(bits_of(1.0f) + (uint32_t)near);
    if (x != 1.0f) {
      meet(&worst, x, ta_log(x), log((double)x));
    }
  }
  CHECK(bits_of(ta_log(1.0f)) == 0, "log(1) is %a", (double)ta_log(1.0f));
  report("log", &worst, 2.0);
}

static void test_half_conversions_over_all_patterns(void **state) {
  (void)state;
  for (uint32_t bits = 0; bits <= 0xffffu; bits++) {
    float half = ta_float_from_f16((uint16_t)bits);
    float expected = half_to_float((uint16_t)bits);
    if (expected != expected) {
      CHECK(half != half && (bits_of(half) & 0x00400000u) != 0, "f16 0x%04x is 0x%08x, not a quiet NaN", (unsigned)bits,
            (unsigned)bits_of(half));
    } else {
      CHECK(bits_of(half) == bits_of(expected), "f16 0x%04x is %a instead of %a", (unsigned)bits, (double)half,
            (double)expected);
      CHECK(float_to_half(expected) == bits, "f16 0x%04x does not come back", (unsigned)bits);
    }
    float bfloat = ta_float_from_bf16((uint16_t)bits);
    expected = bfloat_to_float((uint16_t)bits);
    if (expected != expected) {
      CHECK(bfloat != bfloat, "bf16 0x%04x is %a, not NaN", (unsigned)bits, (double)bfloat);
    } else {
      CHECK(bits_of(bfloat) == bits_of(expected), "bf16 0x%04x is %a instead of %a", (unsigned)bits, (double)bfloat,
            (double)expected);
      CHECK(float_to_bfloat(expected) == bits, "bf16 0x%04x does not come back", (unsigned)bits);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_exp2_within_its_bound),
      cmocka_unit_test(test_exp2_of_zero_is_one),
      cmocka_unit_test(test_exp2_not_above_one_for_negative),
      cmocka_unit_test(test_tanh_within_its_bound),
      cmocka_unit_test(test_log_within_its_bound),
      cmocka_unit_test(test_half_conversions_over_all_patterns),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
