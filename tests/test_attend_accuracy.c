/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: results drift from the exact ones further than the contract allows. */
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/harness.h"
#include "support/oracle.h"

/* ||out - ref|| / ||ref|| of f32 arithmetic while scores stay within 16; beyond, it may grow as max|s| * 2^-23. */
#define BOUND 2e-6

typedef struct worst_case {
  double error, lse_error;
  char where[160];
} worst_case;

static worst_case worst;

/* Every instruction set has the same bits (another test), so the strongest stands for all. */
static void measure(const problem *p, int64_t row_limit) {
  int64_t rows = problem_rows(p) * p->num_heads;
  CHECK(rows <= row_limit, "%lld rows are too many to print", (long long)rows);
  float *out = calloc((size_t)(rows * p->head_dim_v), sizeof *out), *lse = calloc((size_t)rows, sizeof *lse);
  double *expected = calloc((size_t)(rows * p->head_dim_v), sizeof *expected),
         *expected_lse = calloc((size_t)rows, sizeof *expected_lse);
  layout how = LAYOUT_INIT;
  harness_once(p, &how, out, lse);
  oracle_all(p, expected, expected_lse);
  double score = largest_score(p);
  double bound = score <= 16 ? BOUND : fmax(BOUND, score * ldexp(1.0, -23));
  char where[160];
  (void)snprintf(where, sizeof where, "P %d, N %d, D %d/%d, H %d/%d, %s, softcap %g, largest score %.3g",
                 p->requests[0].prefix_len, p->requests[0].num_nodes, p->head_dim, p->head_dim_v, p->num_heads,
                 p->num_kv_heads, treeattn_dtype_name(p->kv_dtype), (double)p->softcap, score);
  double error = relative_error(out, expected, rows * p->head_dim_v);
  CHECK(error <= bound, "relative error %.3g, at most %.3g allowed: %s", error, bound, where);
  double lse_error = 0;
  for (int64_t n = 0; n < rows; n++) {
    if (expected_lse[n] < -1e300) {
      CHECK(lse[n] == -INFINITY, "row %lld without keys has lse %g", (long long)n, (double)lse[n]);
    } else {
      double difference = fabs((double)lse[n] - expected_lse[n]) / fmax(1.0, fmax(fabs(expected_lse[n]), score));
      CHECK(difference <= BOUND, "lse of row %lld is %.9g instead of %.9g: %s", (long long)n, (double)lse[n],
            expected_lse[n], where);
      lse_error = fmax(lse_error, difference);
    }
  }
  if (error > worst.error) {
    worst.error = error;
    memcpy(worst.where, where, sizeof where);
  }
  worst.lse_error = fmax(worst.lse_error, lse_error);
  free(out);
  free(lse);
  free(expected);
  free(expected_lse);
}

/* Q scaled so that the largest score is `target`. */
static void set_largest_score(problem *p, double target) {
  double factor = target / largest_score(p);
  for (int n = 0; n < p->num_requests; n++) {
    request_data *data = &p->requests[n];
    for (int64_t e = 0; e < (int64_t)p->num_heads * data->num_nodes * p->head_dim; e++) {
      data->q[e] = (float)((double)data->q[e] * factor);
    }
  }
}

static void print_worst(const char *name) {
  print_message("%s: worst relative error %.3g (lse %.3g) at %s\n", name, worst.error, worst.lse_error, worst.where);
  memset(&worst, 0, sizeof worst);
}

static void test_random_trees(void **state) {
  (void)state;
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  static const int dims[] = {8, 32, 64, 80, 96, 128, 192, 256, 512, 1024};
  for (int n = 0; n < trial_count(120, 10); n++) {
    rng r;
    int index = trial_begin(&r, 61, n);
    int num_kv_heads = rng_range(&r, 1, 2);
    problem p = problem_new(num_kv_heads * rng_range(&r, 1, 3), num_kv_heads, dims[index % 10], 0, dtypes[index % 3]);
    p.softcap = rng_chance(&r, 3) ? PICK(&r, ((const float[]){1.0f, 15.0f, 50.0f})) : 0.0f;
    p.window = rng_chance(&r, 4) ? rng_range(&r, 1, 400) : 0;
    if (rng_chance(&r, 4)) {
      problem_set_sinks(&p, &r);
    }
    (void)problem_add_tree(&p, rng_below(&r, 700), rng_range(&r, 1, 8), (tree_shape)rng_below(&r, NUM_TREE_SHAPES),
                           1.0f, &r);
    set_largest_score(&p, PICK(&r, ((const double[]){0.5, 4.0, 16.0, 16.0})));
    measure(&p, 100);
    problem_free(&p);
  }
  print_worst("random trees, scores to 16");
}

/* The longest sums over channels: their rounding errors grow with the square root of head_dim and with the score. */
static void test_wide_heads(void **state) {
  (void)state;
  static const int dims[] = {256, 512, 1024};
  for (int n = 0; n < trial_count(24, 6); n++) {
    rng r;
    int index = trial_begin(&r, 65, n);
    problem p = problem_new(2, 1, dims[index % 3], 0, TREEATTN_F16);
    (void)problem_add_tree(&p, index % 2 == 0 ? 200 : 1000, 4, TREE_RANDOM, 1.0f, &r);
    set_largest_score(&p, 16.0);
    measure(&p, 100);
    problem_free(&p);
  }
  print_worst("wide heads, scores to 16");
}

static void test_large_scores(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(40, 6); n++) {
    rng r;
    (void)trial_begin(&r, 62, n);
    problem p = problem_new(2, 1, 64, 0, TREEATTN_F32);
    (void)problem_add_tree(&p, rng_below(&r, 1200), 4, TREE_RANDOM, 1.0f, &r);
    set_largest_score(&p, PICK(&r, ((const double[]){20.0, 40.0, 100.0, 1000.0, 20000.0})));
    measure(&p, 100);
    problem_free(&p);
  }
  print_worst("scores to 20000");
}

/* Values that average out are the hard case: the result is small against the terms of the sum. */
static void test_long_contexts(void **state) {
  (void)state;
  static const int lengths[] = {1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20};
  static const double scores[] = {1.0, 16.0};
  for (int n = 0; n < trial_count(10, 4); n++) {
    rng r;
    int index = trial_begin(&r, 63, n);
    int length = lengths[(index / 2) % 5];
    problem p = problem_new(2, 1, length > 100000 ? 8 : 32, 0, index % 4 < 2 ? TREEATTN_F16 : TREEATTN_BF16);
    (void)problem_add_tree(&p, length - 3, 3, TREE_STAR, 1.0f, &r);
    set_largest_score(&p, scores[index % 2]);
    measure(&p, 100);
    print_message("%d keys, scores to %g: relative error %.3g\n", length, scores[index % 2], worst.error);
    problem_free(&p);
    memset(&worst, 0, sizeof worst);
  }
}

/* All keys alike: the weights are 1/n and the value must come through, at any length. */
static void test_equal_keys(void **state) {
  (void)state;
  static const int lengths[] = {1, 2, 3, 511, 512, 513, 4095, 4096, 4097, 70000, 300001};
  for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++) {
    rng r;
    (void)trial_begin(&r, 64, (int)n);
    problem p = problem_new(1, 1, 8, 0, TREEATTN_F32);
    request_data *data = problem_add_tree(&p, lengths[n] - 1, 1, TREE_CHAIN, 1.0f, &r);
    for (int e = 0; e < data->num_slots * 8; e++) {
      ((float *)data->k)[e] = 0.0f;
      ((float *)data->v)[e] = (float)(e % 8) - 3.1f;
    }
    float out[8], lse;
    layout how = LAYOUT_INIT;
    harness_once(&p, &how, out, &lse);
    for (int d = 0; d < 8; d++) {
      double expected = (double)((float)d - 3.1f);
      CHECK(fabs((double)out[d] - expected) <= BOUND * fabs(expected),
            "%d equal keys: channel %d is %.9g instead of %.9g", lengths[n], d, (double)out[d], expected);
    }
    CHECK(fabs((double)lse - log((double)lengths[n])) <= BOUND * fmax(1.0, log((double)lengths[n])),
          "%d equal keys: lse %.9g", lengths[n], (double)lse);
    problem_free(&p);
  }
}

/* The comparison itself must see NaN on either side and a missing value. */
static void test_comparison_meets_nan(void **state) {
  (void)state;
  const float number[2] = {1.0f, 2.0f}, with_nan[2] = {1.0f, NAN}, with_inf[2] = {INFINITY, 2.0f},
              zero[2] = {0.0f, 0.0f};
  const double reference[2] = {1.0, 2.0}, reference_nan[2] = {NAN, 2.0}, reference_zero[2] = {0.0, 0.0};
  CHECK(relative_error(number, reference, 2) == 0.0, "equal numbers differ");
  CHECK(!(relative_error(with_nan, reference, 2) <= 1.0), "a NaN in the result was not seen");
  CHECK(!(relative_error(number, reference_nan, 2) <= 1.0), "a NaN in the reference was not seen");
  CHECK(!(relative_error(with_nan, reference_nan, 2) <= 1.0), "NaN on both sides passed");
  CHECK(!(relative_error(with_inf, reference, 2) <= 1.0), "an infinity was not seen");
  CHECK(relative_error(zero, reference_zero, 2) == 0.0 && relative_error(number, reference_zero, 2) > 1e300, "zeros");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_comparison_meets_nan), cmocka_unit_test(test_random_trees),
      cmocka_unit_test(test_wide_heads),           cmocka_unit_test(test_large_scores),
      cmocka_unit_test(test_long_contexts),        cmocka_unit_test(test_equal_keys),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
