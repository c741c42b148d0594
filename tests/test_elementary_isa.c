/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: exp2 or tanh of a vector instruction set leaves the scalar specification at some input. */
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/cpu/kernels.h"
#include "../src/elementary.h"
#include "support/rng.h"

enum { BATCH = 4096, KEYS = 64, ROWS = BATCH / KEYS };

/* Every bit pattern with TREEATTN_TEST_EXHAUSTIVE=1 (`make exhaustive`); otherwise every n-th for a prime n. */
static uint32_t pattern_step(void) {
  const char *value = getenv("TREEATTN_TEST_EXHAUSTIVE");
  if (value != NULL && value[0] == '1') {
    return 1;
  }
  return test_quick() ? 4099 : 251;
}

typedef void (*apply_fn)(const ta_kernels *kernels, float *values);
typedef float (*specify_fn)(float x);

/* exp2 has no kernel of its own: a weight is exp2(score - max), and x - 0 is x. */
static void apply_exp2(const ta_kernels *kernels, float *values) {
  const float zeros[ROWS] = {0};
  kernels->weights(values, ROWS, ROWS, KEYS, zeros, NULL);
}

static void apply_tanh(const ta_kernels *kernels, float *values) {
  kernels->softcap(values, ROWS, ROWS, KEYS, 1.0f);
}

static float specify_exp2(float x) {
  return ta_exp2(x - 0.0f);
}

/* Compares a batch; any NaN is as good as another, since results hold one NaN only. */
static void compare(const char *name, const ta_kernels *kernels, apply_fn apply, specify_fn specify, const float *x) {
  float values[BATCH];
  memcpy(values, x, sizeof values);
  apply(kernels, values);
  for (int n = 0; n < BATCH; n++) {
    const float expected = specify(x[n]);
    const bool same =
        expected != expected ? values[n] != values[n] : memcmp(&values[n], &expected, sizeof expected) == 0;
    CHECK(same, "%s of %s at %a (0x%08x): %a instead of %a", name, treeattn_isa_name(kernels->isa), (double)x[n],
          (unsigned)ta_float_to_bits(x[n]), (double)values[n], (double)expected);
  }
}

/* exp2 of a weight is only ever asked for inputs that are not above 0, and defined up to 127. */
static void walk(const char *name, apply_fn apply, specify_fn specify, float highest) {
  const uint32_t step = pattern_step();
  float x[BATCH];
  int num_isas = 0;
  for (int isa = TREEATTN_ISA_AVX2; isa <= TREEATTN_ISA_NEON; isa++) {
    const ta_kernels *kernels = ta_kernels_for((treeattn_isa)isa);
    if (kernels == NULL) {
      continue;
    }
    uint64_t inputs = 0;
    num_isas++;
    int filled = 0;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += step) {
      const float value = ta_float_from_bits((uint32_t)bits);
      if (value > highest) {
        continue;
      }
      x[filled++] = value;
      if (filled == BATCH) {
        compare(name, kernels, apply, specify, x);
        inputs += BATCH;
        filled = 0;
      }
    }
    inputs += (uint64_t)filled;
    while (filled > 0 && filled < BATCH) {
      x[filled++] = 0.0f;
    }
    if (filled > 0) {
      compare(name, kernels, apply, specify, x);
    }
    print_message("%s: %s carries the bits of the scalar specification at %llu inputs\n", name,
                  treeattn_isa_name(kernels->isa), (unsigned long long)inputs);
    CHECK(inputs > 0, "%s: no input was compared", name);
  }
  if (num_isas == 0) {
    skip(); /* there is the scalar specification alone */
  }
}

static void test_exp2_of_every_isa(void **state) {
  (void)state;
  walk("exp2", apply_exp2, specify_exp2, 127.0f);
}

static void test_tanh_of_every_isa(void **state) {
  (void)state;
  walk("tanh", apply_tanh, ta_tanh, INFINITY);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_exp2_of_every_isa),
      cmocka_unit_test(test_tanh_of_every_isa),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
