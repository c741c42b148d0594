/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: an instruction set, or the caller's floating-point environment, changes a bit of the result. */
#include "support/check.h"

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "support/halves.h"
#include "support/harness.h"

static float *new_out(const problem *p) {
  return calloc((size_t)problem_rows(p) * (size_t)p->num_heads * (size_t)p->head_dim_v + 1, sizeof(float));
}

static float *new_lse(const problem *p) {
  return calloc((size_t)problem_rows(p) * (size_t)p->num_heads + 1, sizeof(float));
}

/* Every instruction set, in a layout of its own, against the scalar reference in the plainest one. */
static void against_scalar(const problem *p, rng *r) {
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  float *expected = new_out(p), *expected_lse = new_lse(p), *out = new_out(p), *lse = new_lse(p);
  layout plain = LAYOUT_INIT;
  plain.isa = TREEATTN_ISA_SCALAR;
  harness_once(p, &plain, expected, expected_lse);
  for (int n = 0; n < num_isas; n++) {
    thread_team team;
    rng order;
    layout how = layout_random(r, &team, &order);
    how.isa = isas[n];
    harness_once(p, &how, out, lse);
    char what[128];
    (void)snprintf(what, sizeof what, "%s, D %d/%d, H %d/%d, %s, window %lld, softcap %g", treeattn_isa_name(isas[n]),
                   p->head_dim, p->head_dim_v, p->num_heads, p->num_kv_heads, treeattn_dtype_name(p->kv_dtype),
                   (long long)p->window, (double)p->softcap);
    CHECK_SAME_BITS(what, out, expected, problem_rows(p) * p->num_heads, p->head_dim_v);
    CHECK_SAME_BITS(what, lse, expected_lse, problem_rows(p) * p->num_heads, 1);
  }
  free(expected);
  free(expected_lse);
  free(out);
  free(lse);
}

static void test_all_features(void **state) {
  (void)state;
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  for (int n = 0; n < trial_count(160, 12); n++) {
    rng r;
    int index = trial_begin(&r, 51, n);
    int num_kv_heads = rng_range(&r, 1, 2);
    problem p = problem_new(num_kv_heads * rng_range(&r, 1, 9), num_kv_heads, 8 * (1 + index % 20),
                            8 * rng_range(&r, 0, 20), dtypes[index % 3]);
    p.window = rng_chance(&r, 3) ? rng_range(&r, 1, 120) : 0;
    p.softcap = rng_chance(&r, 3) ? PICK(&r, ((const float[]){0.5f, 3.0f, 50.0f, 1e-3f, 1e30f})) : 0.0f;
    p.scale = rng_chance(&r, 6) ? 0.0f : p.scale;
    if (rng_chance(&r, 3)) {
      problem_set_sinks(&p, &r);
    }
    int requests = rng_range(&r, 1, 3);
    for (int k = 0; k < requests; k++) {
      (void)problem_add_tree(&p, rng_below(&r, rng_chance(&r, 4) ? 560 : 90), rng_range(&r, 0, 33),
                             (tree_shape)rng_below(&r, NUM_TREE_SHAPES), PICK(&r, ((const float[]){1.0f, 8.0f, 60.0f})),
                             &r);
    }
    against_scalar(&p, &r);
    problem_free(&p);
  }
}

/* Scores far apart, tied, equal, huge, tiny. */
static void test_extreme_values(void **state) {
  (void)state;
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  static const float q_values[] = {0.0f, -0.0f, 1.0f, 1e-38f, 1e-45f, 1e20f, -1e20f, 3e38f, 1e-20f, 65504.0f};
  static const float k_values[] = {0.0f, -0.0f, 1.0f, -1.0f, 1e-40f, 6e-8f, 1e-7f, 65504.0f, -65504.0f, 3e38f, 1e30f};
  for (int n = 0; n < trial_count(80, 10); n++) {
    rng r;
    int index = trial_begin(&r, 52, n);
    problem p = problem_new(2, 1, 8 * rng_range(&r, 1, 6), 0, dtypes[index % 3]);
    request_data *data = problem_add_tree(&p, rng_below(&r, 50), rng_range(&r, 1, 20), TREE_RANDOM, 1.0f, &r);
    bool mixed = rng_chance(&r, 2);
    float q_one = PICK(&r, q_values), k_one = PICK(&r, k_values);
    for (int i = 0; i < p.num_heads * data->num_nodes * p.head_dim; i++) {
      if (rng_chance(&r, 2)) {
        data->q[i] = mixed ? PICK(&r, q_values) : q_one;
      }
    }
    for (int i = 0; i < data->num_slots * p.head_dim; i++) {
      if (rng_chance(&r, 2)) {
        float value = mixed ? PICK(&r, k_values) : k_one;
        element_store(p.kv_dtype, data->k, i,
                      p.kv_dtype == TREEATTN_F16 ? fmaxf(fminf(value, 65504.0f), -65504.0f) : value);
      }
      if (rng_chance(&r, 3)) {
        element_store(p.kv_dtype, data->v, i, PICK(&r, k_values));
      }
    }
    p.softcap = rng_chance(&r, 3) ? 10.0f : 0.0f;
    against_scalar(&p, &r);
    problem_free(&p);
  }
}

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* NaN and infinities in keys that are seen: the same quiet NaN everywhere, whatever its payload was. */
static void test_nan_in_seen_keys(void **state) {
  (void)state;
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  static const uint32_t f32_nans[] = {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u,
                                      0x7fffffffu, 0xffffffffu, 0x7f800000u, 0xff800000u};
  static const uint16_t f16_nans[] = {0x7e00, 0xfe00, 0x7c01, 0xfc01, 0x7fff, 0xffff, 0x7c00, 0xfc00};
  static const uint16_t bf16_nans[] = {0x7fc0, 0xffc0, 0x7f81, 0xff81, 0x7fff, 0xffff, 0x7f80, 0xff80};
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int n = 0; n < trial_count(48, 8); n++) {
    rng r;
    int index = trial_begin(&r, 53, n);
    problem p = problem_new(4, 2, 32, 0, dtypes[index % 3]);
    p.softcap = rng_chance(&r, 3) ? 4.0f : 0.0f;
    if (rng_chance(&r, 3)) {
      problem_set_sinks(&p, &r);
    }
    request_data *data =
        problem_add_tree(&p, PICK(&r, ((const int[]){4, 30, 520})), rng_range(&r, 1, 20), TREE_RANDOM, 2.0f, &r);
    bool in_v = rng_chance(&r, 2);
    int slot = rng_chance(&r, 2) ? rng_below(&r, data->prefix_len) : rng_below(&r, data->num_slots);
    int kind = (index / 3) % 8, channel = rng_below(&r, p.head_dim);
    int64_t at = (int64_t)(rng_below(&r, 2) * data->num_slots + slot) * p.head_dim + channel;
    void *cache = in_v ? data->v : data->k;
    if (p.kv_dtype == TREEATTN_F32) {
      memcpy((float *)cache + at, &f32_nans[kind], 4);
    } else {
      ((uint16_t *)cache)[at] = p.kv_dtype == TREEATTN_F16 ? f16_nans[kind] : bf16_nans[kind];
    }
    against_scalar(&p, &r);
    float *out = new_out(&p), *lse = new_lse(&p);
    for (int k = 0; k < num_isas; k++) {
      layout how = LAYOUT_INIT;
      how.isa = isas[k];
      harness_once(&p, &how, out, lse);
      int64_t rows = problem_rows(&p) * p.num_heads, num_nans = 0;
      for (int64_t e = 0; e < rows * p.head_dim_v; e++) {
        num_nans += out[e] != out[e];
        CHECK(out[e] == out[e] || bits_of(out[e]) == 0x7fc00000u, "%s: NaN 0x%08x in out", treeattn_isa_name(isas[k]),
              (unsigned)bits_of(out[e]));
      }
      for (int64_t e = 0; e < rows; e++) {
        CHECK(lse[e] == lse[e] || bits_of(lse[e]) == 0x7fc00000u, "%s: NaN 0x%08x in lse", treeattn_isa_name(isas[k]),
              (unsigned)bits_of(lse[e]));
      }
      if (kind < 6 &&
          slot < data->prefix_len) { /* everyone sees it: all rows of its KV head, in V one channel of them */
        int64_t expected = data->num_nodes * (p.num_heads / p.num_kv_heads) * (in_v ? 1 : p.head_dim_v);
        CHECK(num_nans == expected, "%s: %lld NaNs instead of %lld for a NaN in %s", treeattn_isa_name(isas[k]),
              (long long)num_nans, (long long)expected, in_v ? "V" : "K");
      }
    }
    free(out);
    free(lse);
    problem_free(&p);
  }
}

typedef struct environment {
  int rounding;
  bool flush;
} environment;

static void set_environment(environment e) {
  (void)fesetround(e.rounding);
#if defined(__x86_64__)
  _mm_setcsr((_mm_getcsr() & ~0x8040u) | (e.flush ? 0x8040u : 0u));
#elif defined(__aarch64__)
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  control = (control & ~(UINT64_C(1) << 24)) | (e.flush ? UINT64_C(1) << 24 : 0);
  __asm__ volatile("msr fpcr, %0" : : "r"(control));
#endif
}

static uint64_t read_environment(void) {
#if defined(__x86_64__)
  return _mm_getcsr() & ~0x3fu; /* without the sticky exception flags */
#elif defined(__aarch64__)
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  return control;
#else
  return (uint64_t)fegetround();
#endif
}

/* Flush-to-zero and directed rounding in the calling thread: no bit changes, and the caller finds them as they were. Denormals are
 * among the values, or flushing could not show. */
static void test_floating_point_environment(void **state) {
  (void)state;
  static const environment environments[] = {
      {FE_TONEAREST, true}, {FE_UPWARD, false}, {FE_DOWNWARD, true}, {FE_TOWARDZERO, false}};
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int n = 0; n < trial_count(18, 3); n++) {
    rng r;
    int index = trial_begin(&r, 54, n);
    problem p =
        problem_new(4, 2, 32, 0, PICK(&r, ((const treeattn_dtype[]){TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16})));
    request_data *data = problem_add_tree(&p, PICK(&r, ((const int[]){0, 20, 530})), 12, TREE_RANDOM, 3.0f, &r);
    p.softcap = index % 2 == 0 ? 9.0f : 0.0f;
    for (int64_t e = 0; e < (int64_t)p.num_kv_heads * data->num_slots * p.head_dim; e++) {
      element_store(p.kv_dtype, data->v, e,
                    element_load(p.kv_dtype, data->v, e) * (p.kv_dtype == TREEATTN_F16 ? 3e-6f : 2e-38f));
    }
    for (int k = 0; k < num_isas; k++) {
      layout how = LAYOUT_INIT;
      how.isa = isas[k];
      harness h;
      float *expected = new_out(&p), *expected_lse = new_lse(&p), *out = new_out(&p), *lse = new_lse(&p);
      harness_build(&h, &p, &how);
      harness_run(&h);
      harness_read(&h, expected, expected_lse);
      for (size_t e = 0; e < sizeof environments / sizeof environments[0]; e++) {
        set_environment(environments[e]);
        uint64_t before = read_environment();
        treeattn_status status = treeattn_attend(h.plan, &h.run, NULL);
        uint64_t after = read_environment();
        set_environment((environment){FE_TONEAREST, false});
        CHECK(status == TREEATTN_OK, "the run failed in environment %zu", e);
        CHECK(before == after, "the caller's environment 0x%llx became 0x%llx", (unsigned long long)before,
              (unsigned long long)after);
        harness_read(&h, out, lse);
        CHECK_SAME_BITS("another floating-point environment", out, expected, problem_rows(&p) * p.num_heads,
                        p.head_dim_v);
        CHECK_SAME_BITS("lse in another environment", lse, expected_lse, problem_rows(&p) * p.num_heads, 1);
      }
      harness_free(&h);
      free(expected);
      free(expected_lse);
      free(out);
      free(lse);
    }
    problem_free(&p);
  }
}

/* Tasks on their own, plans and merges made in such an environment. */
static void test_environment_of_tasks_and_plans(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 55, 0);
  problem p = problem_new(4, 2, 64, 0, TREEATTN_F32);
  p.softcap = 3.0f;
  (void)problem_add_tree(&p, 1200, 20, TREE_RANDOM, 3.0f, &r);
  float *expected = new_out(&p), *out = new_out(&p);
  layout how = LAYOUT_INIT;
  how.num_workers = 4;
  harness_once(&p, &how, expected, NULL);
  harness h;
  set_environment((environment){FE_UPWARD, true});
  uint64_t before = read_environment();
  harness_build(&h, &p, &how);
  for (int stage = 0; stage < 2; stage++) {
    for (int64_t task = 0; task < h.info.num_tasks[stage]; task++) {
      treeattn_attend_task(h.plan, &h.run, stage, task, task % 4);
    }
  }
  uint64_t after = read_environment();
  set_environment((environment){FE_TONEAREST, false});
  CHECK(before == after, "the caller's environment 0x%llx became 0x%llx", (unsigned long long)before,
        (unsigned long long)after);
  harness_read(&h, out, NULL);
  harness_free(&h);
  CHECK_SAME_BITS("tasks in another environment", out, expected, problem_rows(&p) * p.num_heads, p.head_dim_v);
  float a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[8] = {8, 7, 6, 5, 4, 3, 2, 1}, a_again[8], lse_a = 0.3f, lse_b = -0.2f,
        lse_again = 0.3f;
  memcpy(a_again, a, sizeof a);
  CHECK_OK(treeattn_merge_states(1, 8, a, &lse_a, b, &lse_b, &error));
  set_environment((environment){FE_DOWNWARD, true});
  treeattn_status status = treeattn_merge_states(1, 8, a_again, &lse_again, b, &lse_b, NULL);
  set_environment((environment){FE_TONEAREST, false});
  CHECK(status == TREEATTN_OK, "merging failed");
  CHECK_SAME_BITS("merging in another environment", a_again, a, 1, 8);
  CHECK_SAME_BITS("lse of merging in another environment", &lse_again, &lse_a, 1, 1);
  free(expected);
  free(out);
  problem_free(&p);
}

static void test_names_and_detection(void **state) {
  (void)state;
  CHECK(treeattn_isa_available(TREEATTN_ISA_AUTO) == 1 && treeattn_isa_available(TREEATTN_ISA_SCALAR) == 1,
        "no scalar reference");
  CHECK(treeattn_isa_available((treeattn_isa)77) == 0 && treeattn_isa_available((treeattn_isa)-1) == 0,
        "unknown ISAs are available");
  CHECK(treeattn_isa_available(treeattn_isa_detect()) == 1, "the detected ISA is not available");
  print_message("detected: %s; tested:", treeattn_isa_name(treeattn_isa_detect()));
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int n = 0; n < num_isas; n++) {
    print_message(" %s", treeattn_isa_name(isas[n]));
    CHECK(isas[n] <= treeattn_isa_detect(), "%s is available but not detected as the strongest",
          treeattn_isa_name(isas[n]));
  }
  print_message("\n");
  problem p = problem_new(1, 1, 8, 0, TREEATTN_F32);
  treeattn_plan_args args = problem_args(&p);
  for (int isa = TREEATTN_ISA_SCALAR; isa <= TREEATTN_ISA_NEON; isa++) {
    treeattn_plan *plan = NULL;
    args.isa = (treeattn_isa)isa;
    if (treeattn_isa_available(args.isa)) {
      CHECK_OK(treeattn_plan_create(&args, &plan, &error));
      const treeattn_plan_info info = plan_info(plan);
      CHECK(info.isa == args.isa, "asked for %s, got %s", treeattn_isa_name(args.isa), treeattn_isa_name(info.isa));
      treeattn_plan_destroy(plan);
    } else {
      CHECK_ERROR(treeattn_plan_create(&args, &plan, &error), TREEATTN_ERROR_UNSUPPORTED, "isa",
                  treeattn_isa_name(args.isa), NULL);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_names_and_detection),
      cmocka_unit_test(test_all_features),
      cmocka_unit_test(test_extreme_values),
      cmocka_unit_test(test_nan_in_seen_keys),
      cmocka_unit_test(test_floating_point_environment),
      cmocka_unit_test(test_environment_of_tasks_and_plans),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
