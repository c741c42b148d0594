/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: bytes that a row does not see change it, something outside the declared extents is touched, or an error leaves output behind. */
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/halves.h"
#include "support/harness.h"

static const float poisons[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 65504.0f};

static problem small_problem(rng *r, int prefix, int nodes) {
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  static const int dims[] = {8, 32, 64, 80, 128};
  int num_kv_heads = rng_range(r, 1, 2);
  problem p = problem_new(num_kv_heads * rng_range(r, 1, 3), num_kv_heads, PICK(r, dims), 0, PICK(r, dtypes));
  p.softcap = rng_chance(r, 3) ? 5.0f : 0.0f;
  (void)problem_add_tree(&p, prefix, nodes, (tree_shape)rng_below(r, NUM_TREE_SHAPES), 4.0f, r);
  return p;
}

/* For each row in turn, every slot that it does not see is poisoned; the row must not change. */
static void test_unseen_slots_of_each_row(void **state) {
  (void)state;
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int n = 0; n < trial_count(30, 4); n++) {
    rng r;
    int index = trial_begin(&r, 21, n);
    int prefix = rng_chance(&r, 3) ? 505 + rng_below(&r, 12) : rng_below(&r, 70);
    problem p = small_problem(&r, prefix, rng_range(&r, 2, 26));
    p.window = rng_chance(&r, 2) ? rng_range(&r, 1, 40) : 0;
    const request_data *request = &p.requests[0];
    thread_team team;
    rng order;
    layout how = layout_random(&r, &team, &order);
    how.isa = isas[index % num_isas];
    harness h;
    harness_build(&h, &p, &how);
    harness_run(&h);
    size_t row = (size_t)p.num_heads * (size_t)p.head_dim_v, rows = (size_t)request->num_nodes;
    float *clean = calloc(rows * row, sizeof *clean), *dirty = calloc(rows * row, sizeof *dirty);
    float *clean_lse = calloc(rows * (size_t)p.num_heads, sizeof *clean),
          *dirty_lse = calloc(rows * (size_t)p.num_heads, sizeof *clean);
    uint8_t *sees = calloc(rows * (size_t)request->num_slots, 1);
    tree_visibility(request->parents, request->num_nodes, prefix, p.window, sees);
    harness_read(&h, clean, clean_lse);
    for (int i = 0; i < request->num_nodes; i++) {
      float poison = poisons[(size_t)(i + index) % (sizeof poisons / sizeof poisons[0])];
      for (int slot = 0; slot < request->num_slots; slot++) {
        if (sees[i * request->num_slots + slot] == 0) {
          harness_poison_slot(&h, 0, slot, poison);
        }
      }
      harness_run(&h);
      harness_read(&h, dirty, dirty_lse);
      char what[128];
      (void)snprintf(what, sizeof what, "node %d, unseen slots hold %g", i, (double)poison);
      CHECK_SAME_BITS(what, dirty + (size_t)i * row, clean + (size_t)i * row, p.num_heads, p.head_dim_v);
      CHECK_SAME_BITS(what, dirty_lse + i * p.num_heads, clean_lse + i * p.num_heads, 1, p.num_heads);
      for (int slot = 0; slot < request->num_slots; slot++) {
        harness_restore_slot(&h, 0, slot);
      }
    }
    harness_free(&h);
    free(clean);
    free(dirty);
    free(clean_lse);
    free(dirty_lse);
    free(sees);
    problem_free(&p);
  }
}

/* Queries of other rows: NaN and infinities in one query reach no other row. */
static void test_other_queries(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(20, 4); n++) {
    rng r;
    (void)trial_begin(&r, 22, n);
    problem p = small_problem(&r, rng_below(&r, 600), rng_range(&r, 2, 40));
    const request_data *request = &p.requests[0];
    layout how = LAYOUT_INIT;
    harness h;
    harness_build(&h, &p, &how);
    harness_run(&h);
    size_t row = (size_t)p.num_heads * (size_t)p.head_dim_v, rows = (size_t)request->num_nodes;
    float *clean = calloc(rows * row, sizeof *clean), *dirty = calloc(rows * row, sizeof *dirty);
    harness_read(&h, clean, NULL);
    for (size_t k = 0; k < sizeof poisons / sizeof poisons[0]; k++) {
      int bad_head = rng_below(&r, p.num_heads), bad_node = rng_below(&r, request->num_nodes);
      float *q = harness_q_row(&h, bad_head, bad_node);
      float *kept = malloc((size_t)p.head_dim * sizeof *kept);
      memcpy(kept, q, (size_t)p.head_dim * sizeof *kept);
      for (int d = 0; d < p.head_dim; d++) {
        q[d] = poisons[k];
      }
      harness_run(&h);
      harness_read(&h, dirty, NULL);
      memcpy(q, kept, (size_t)p.head_dim * sizeof *kept);
      free(kept);
      memcpy(dirty + (size_t)bad_node * row + (size_t)(bad_head * p.head_dim_v),
             clean + (size_t)bad_node * row + (size_t)(bad_head * p.head_dim_v), (size_t)p.head_dim_v * sizeof *dirty);
      CHECK_SAME_BITS("rows beside a poisoned query", dirty, clean, (int64_t)rows * p.num_heads, p.head_dim_v);
    }
    harness_free(&h);
    free(clean);
    free(dirty);
    problem_free(&p);
  }
}

/* Everything that is not data: slots past kv_seq_len, pads, spare pages and sequences, mask pads; in buffers that end, and that begin, at an
 * unmapped page. harness_run checks the guards. */
static void test_poisoned_pads_and_guard_pages(void **state) {
  (void)state;
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int n = 0; n < trial_count(60, 6); n++) {
    rng r;
    int index = trial_begin(&r, 23, n);
    problem p = small_problem(&r, rng_below(&r, 200), rng_range(&r, 1, 40));
    (void)problem_add_tree(&p, rng_below(&r, 40), rng_range(&r, 0, 9), TREE_RANDOM, 4.0f, &r);
    size_t count = (size_t)problem_rows(&p) * (size_t)p.num_heads * (size_t)p.head_dim_v;
    float *clean = calloc(count, sizeof *clean), *dirty = calloc(count, sizeof *dirty);
    thread_team team;
    rng order;
    layout how = layout_random(&r, &team, &order);
    how.isa = isas[index % num_isas];
    how.extra_slots = rng_range(&r, 0, 3);
    how.poison = 0.0f;
    harness_once(&p, &how, clean, NULL);
    for (size_t k = 0; k < sizeof poisons / sizeof poisons[0]; k++) {
      how.poison = poisons[k];
      how.guards_at_begin = k % 2 == 1;
      harness_once(&p, &how, dirty, NULL);
      CHECK_SAME_BITS("poison in what is not data", dirty, clean, (int64_t)(problem_rows(&p) * p.num_heads),
                      p.head_dim_v);
    }
    free(clean);
    free(dirty);
    problem_free(&p);
  }
}

static void expect_untouched(harness *h, treeattn_run_args run, treeattn_status expected, const char *field,
                             const char *a, const char *b) {
  memset(h->out.data, 0xab, h->out.bytes);
  memset(h->lse.data, 0xab, h->lse.bytes);
  CHECK_ERROR(treeattn_attend(h->plan, &run, &error), expected, field, a, b);
  CHECK_ERROR(treeattn_attend_check(h->plan, &run, &error), expected, field, a, b);
  CHECK(treeattn_attend(h->plan, &run, NULL) == expected, "another status without an error to fill");
  for (size_t n = 0; n < h->out.bytes; n++) {
    CHECK(h->out.data[n] == 0xab, "byte %zu of out was written although %s was refused", n, field);
  }
  for (size_t n = 0; n < h->lse.bytes; n++) {
    CHECK(h->lse.data[n] == 0xab, "byte %zu of lse was written although %s was refused", n, field);
  }
}

static void expect_too_small(harness *h, size_t *size, treeattn_run_args *run, const char *field) {
  size_t needed = *size;
  char have[32], need[32];
  *size = needed - 1;
  (void)snprintf(have, sizeof have, "%zu", needed - 1);
  (void)snprintf(need, sizeof need, "%zu", needed);
  expect_untouched(h, *run, TREEATTN_ERROR_BUFFER_TOO_SMALL, field, have, need);
  *size = 0;
  expect_untouched(h, *run, TREEATTN_ERROR_BUFFER_TOO_SMALL, field, "0", need);
  *size = needed;
}

static void test_errors_of_a_run_leave_the_output(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 24, 0);
  for (int pages = 0; pages < 2; pages++) {
    problem p = problem_new(4, 2, 32, 0, TREEATTN_F16);
    (void)problem_add_tree(&p, 20, 6, TREE_RANDOM, 4.0f, &r);
    problem_set_sinks(&p, &r);
    layout how = LAYOUT_INIT;
    how.page_size = pages * 8;
    how.num_workers = 2; /* so that the executor that fails is asked at all */
    harness h;
    harness_build(&h, &p, &how);
    treeattn_run_args run = h.run;
    expect_too_small(&h, &run.q_bytes, &run, "q_bytes");
    expect_too_small(&h, &run.k_bytes, &run, "k_bytes");
    expect_too_small(&h, &run.v_bytes, &run, "v_bytes");
    expect_too_small(&h, &run.out_bytes, &run, "out_bytes");
    expect_too_small(&h, &run.lse_bytes, &run, "lse_bytes");
    expect_too_small(&h, &run.scratch_bytes, &run, "scratch_bytes");
    expect_too_small(&h, &run.sinks_bytes, &run, "sinks_bytes");
    run.q = NULL;
    expect_untouched(&h, run, TREEATTN_ERROR_INVALID_ARGUMENT, "q", NULL, NULL);
    run = h.run;
    run.k = NULL;
    expect_untouched(&h, run, TREEATTN_ERROR_INVALID_ARGUMENT, "k", NULL, NULL);
    run = h.run;
    run.v = NULL;
    expect_untouched(&h, run, TREEATTN_ERROR_INVALID_ARGUMENT, "v", NULL, NULL);
    run = h.run;
    run.out = NULL;
    expect_untouched(&h, run, TREEATTN_ERROR_INVALID_ARGUMENT, "out", NULL, NULL);
    run = h.run;
    if (run.scratch_bytes > 0) {
      run.scratch = NULL;
      expect_untouched(&h, run, TREEATTN_ERROR_INVALID_ARGUMENT, "scratch", NULL, NULL);
    }
    run = h.run;
    run.struct_size = 8;
    expect_untouched(&h, run, TREEATTN_ERROR_INVALID_ARGUMENT, "struct_size", "8", NULL);
    run = h.run;
    float bad[4] = {0.0f, 1.0f, NAN, 2.0f};
    run.sinks = bad;
    expect_untouched(&h, run, TREEATTN_ERROR_INVALID_VALUE, "sinks[2]", NULL, NULL);
    bad[2] = INFINITY;
    expect_untouched(&h, run, TREEATTN_ERROR_INVALID_VALUE, "sinks[2]", NULL, NULL);
    CHECK_ERROR(treeattn_attend(NULL, &h.run, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "plan", NULL, NULL);
    CHECK_ERROR(treeattn_attend(h.plan, NULL, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "run", NULL, NULL);
    run = h.run;
    run.executor = failing_executor();
    CHECK_ERROR(treeattn_attend(h.plan, &run, &error), TREEATTN_ERROR_BACKEND, "executor", "7", NULL);
    harness_run(&h); /* and nothing was spoilt */
    harness_free(&h);
    problem_free(&p);
  }
}

/* Plan memory and scratch may have any alignment. */
static void test_unaligned_memory(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 25, 0);
  problem p = problem_new(3, 1, 64, 0, TREEATTN_F16);
  (void)problem_add_tree(&p, 700, 9, TREE_RANDOM, 4.0f, &r);
  layout how = LAYOUT_INIT;
  how.num_workers = 3;
  harness h;
  harness_build(&h, &p, &how);
  harness_run(&h);
  float *clean = malloc(h.out.bytes);
  memcpy(clean, h.out.data, h.out.bytes);
  size_t plan_bytes = 0;
  CHECK_OK(treeattn_plan_bytes(&h.args, &plan_bytes, &error));
  for (size_t shift = 1; shift < 64; shift += 2) {
    unsigned char *plan_memory = malloc(plan_bytes + 64), *scratch = malloc(h.info.scratch_bytes + 64);
    treeattn_plan *plan = NULL;
    CHECK_OK(treeattn_plan_init(&h.args, plan_memory + shift, plan_bytes, &plan, &error));
    treeattn_run_args run = h.run;
    run.scratch = scratch + 64 - shift;
    memset(h.out.data, 0xff, h.out.bytes);
    CHECK_OK(treeattn_attend(plan, &run, &error));
    CHECK_SAME_BITS("memory at an odd address", (const float *)(void *)h.out.data, clean, 27, 64);
    free(plan_memory);
    free(scratch);
  }
  free(clean);
  harness_free(&h);
  problem_free(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_unseen_slots_of_each_row),
      cmocka_unit_test(test_other_queries),
      cmocka_unit_test(test_poisoned_pads_and_guard_pages),
      cmocka_unit_test(test_errors_of_a_run_leave_the_output),
      cmocka_unit_test(test_unaligned_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
