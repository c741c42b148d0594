/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: the bits of a row depend on the rows, requests, workers, tasks, strides or runs around it. */
#include "support/check.h"

#include <stdio.h>
#include <string.h>

#include "support/harness.h"

typedef struct results {
  float *out, *lse;
  int64_t rows;
} results;

static results results_new(int64_t rows, const problem *p) {
  results r = {calloc((size_t)(rows * p->num_heads * p->head_dim_v) + 1, sizeof(float)),
               calloc((size_t)(rows * p->num_heads) + 1, sizeof(float)), rows};
  return r;
}

static void results_free(results *r) {
  free(r->out);
  free(r->lse);
}

static results run_layout(const problem *p, const layout *how) {
  results r = results_new(problem_rows(p), p);
  harness_once(p, how, r.out, r.lse);
  return r;
}

/* Rows [from, from + rows) of `all` are those of `part`. */
static void same_rows(const char *what, const problem *p, const results *all, int64_t from, const results *part,
                      int64_t rows) {
  CHECK_SAME_BITS(what, all->out + from * p->num_heads * p->head_dim_v, part->out, rows * p->num_heads, p->head_dim_v);
  CHECK_SAME_BITS(what, all->lse + from * p->num_heads, part->lse, rows * p->num_heads, 1);
}

static problem random_problem(rng *r, int num_requests, int most_prefix, int most_nodes) {
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  static const int dims[] = {32, 64, 128};
  int num_kv_heads = rng_range(r, 1, 3);
  problem p = problem_new(num_kv_heads * rng_range(r, 1, 5), num_kv_heads, PICK(r, dims), 0, PICK(r, dtypes));
  p.window = rng_chance(r, 4) ? rng_range(r, 1, 300) : 0;
  p.softcap = rng_chance(r, 4) ? 20.0f : 0.0f;
  if (rng_chance(r, 3)) {
    problem_set_sinks(&p, r);
  }
  for (int n = 0; n < num_requests; n++) {
    int nodes = rng_chance(r, 4) ? rng_below(r, 2) : rng_range(r, 1, most_nodes);
    (void)problem_add_tree(&p, rng_below(r, most_prefix + 1), nodes, (tree_shape)rng_below(r, NUM_TREE_SHAPES), 4.0f,
                           r);
  }
  return p;
}

/* The same problem with only some of its requests, in the order given. The tensors stay those of the original. */
static problem subset_of(const problem *p, const int32_t *picks, int count) {
  problem some = *p;
  some.requests = calloc((size_t)count + 1, sizeof *some.requests);
  for (int n = 0; n < count; n++) {
    some.requests[n] = p->requests[picks[n]];
  }
  some.num_requests = count;
  return some;
}

static void test_place_in_the_batch(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(50, 6); n++) {
    rng r;
    (void)trial_begin(&r, 11, n);
    int count = rng_range(&r, 1, 7);
    problem p = random_problem(&r, count, rng_chance(&r, 3) ? 1100 : 100, 40);
    thread_team team;
    rng order;
    layout how = layout_random(&r, &team, &order);
    results all = run_layout(&p, &how);
    int64_t from = 0;
    for (int32_t k = 0; k < count; k++) { /* alone */
      problem one = subset_of(&p, &k, 1);
      how = layout_random(&r, &team, &order);
      results alone = run_layout(&one, &how);
      same_rows("a request alone", &p, &all, from, &alone, alone.rows);
      from += alone.rows;
      results_free(&alone);
      free(one.requests);
    }
    int32_t permutation[8];
    for (int32_t k = 0; k < count; k++) {
      permutation[k] = k;
    }
    rng_shuffle(&r, permutation, count);
    problem other = subset_of(&p, permutation, count);
    how = layout_random(&r, &team, &order);
    results moved = run_layout(&other, &how);
    int64_t at = 0;
    for (int k = 0; k < count; k++) { /* in another order */
      from = 0;
      for (int32_t before = 0; before < permutation[k]; before++) {
        from += p.requests[before].num_nodes;
      }
      results part = {moved.out + at * p.num_heads * p.head_dim_v, moved.lse + at * p.num_heads, 0};
      same_rows("a permuted batch", &p, &all, from, &part, other.requests[k].num_nodes);
      at += other.requests[k].num_nodes;
    }
    free(other.requests);
    results_free(&moved);
    results_free(&all);
    problem_free(&p);
  }
}

static void test_number_of_workers(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(8, 1); n++) {
    rng r;
    int index = trial_begin(&r, 12, n);
    problem p = random_problem(&r, rng_range(&r, 1, 4), index % 2 == 0 ? 1300 : 200, index % 4 == 1 ? 150 : 20);
    layout how = LAYOUT_INIT;
    results first = run_layout(&p, &how);
    for (int workers = 1; workers <= 16; workers++) {
      thread_team team = {workers};
      how.num_workers = workers;
      how.executor = workers % 2 == 0 ? thread_team_executor(&team) : (treeattn_executor){NULL, NULL};
      results again = run_layout(&p, &how);
      char what[64];
      (void)snprintf(what, sizeof what, "num_workers %d", workers);
      same_rows(what, &p, &first, 0, &again, first.rows);
      results_free(&again);
    }
    how.num_workers = 1024;
    how.executor = (treeattn_executor){NULL, NULL};
    results most = run_layout(&p, &how);
    same_rows("num_workers 1024", &p, &first, 0, &most, first.rows);
    results_free(&most);
    results_free(&first);
    problem_free(&p);
  }
}

static void test_long_context_is_shared_by_workers(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 13, 0);
  problem p = problem_new(2, 1, 32, 0, TREEATTN_F16);
  (void)problem_add_tree(&p, test_quick() ? 5000 : 13000, 3, TREE_RANDOM, 4.0f, &r);
  layout how = LAYOUT_INIT;
  results first = run_layout(&p, &how);
  static const int counts[] = {2, 3, 7, 16, 64};
  for (size_t n = 0; n < sizeof counts / sizeof counts[0]; n++) {
    thread_team team = {counts[n]};
    how.num_workers = counts[n];
    how.executor = thread_team_executor(&team);
    results again = run_layout(&p, &how);
    same_rows("a long context on several workers", &p, &first, 0, &again, first.rows);
    results_free(&again);
  }
  results_free(&first);
  problem_free(&p);
}

/* The tasks by hand: any order within a stage, any worker number, and indices out of range that do nothing. */
static void test_tasks_in_any_order(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(24, 4); n++) {
    rng r;
    (void)trial_begin(&r, 14, n);
    problem p = random_problem(&r, rng_range(&r, 1, 3), 1500, 30);
    layout how = LAYOUT_INIT;
    results first = run_layout(&p, &how);
    how.num_workers = rng_range(&r, 1, 16);
    harness h;
    harness_build(&h, &p, &how);
    memset(h.out.data, 0xff, h.out.bytes);
    memset(h.lse.data, 0xff, h.lse.bytes);
    CHECK_OK(treeattn_attend_check(h.plan, &h.run, &error));
    for (int stage = 0; stage < 2; stage++) {
      int count = (int)h.info.num_tasks[stage];
      int32_t *order = calloc((size_t)count + 1, sizeof *order);
      for (int32_t k = 0; k < count; k++) {
        order[k] = k;
      }
      rng_shuffle(&r, order, count);
      for (int k = 0; k < count; k++) {
        treeattn_attend_task(h.plan, &h.run, stage, order[k], rng_below(&r, how.num_workers));
      }
      static const int64_t beyond[] = {-1, INT64_MIN, INT64_MAX};
      treeattn_attend_task(h.plan, &h.run, stage, count, 0);
      for (size_t k = 0; k < sizeof beyond / sizeof beyond[0]; k++) {
        treeattn_attend_task(h.plan, &h.run, stage, beyond[k], 0);
        treeattn_attend_task(h.plan, &h.run, 2, beyond[k], 0);
        treeattn_attend_task(h.plan, &h.run, -1, beyond[k], 0);
        treeattn_attend_task(h.plan, &h.run, stage, 0, beyond[k]);
        treeattn_attend_task(h.plan, &h.run, stage, 0, how.num_workers);
      }
      treeattn_attend_task(h.plan, &h.run, 2, 0, 0);
      treeattn_attend_task(h.plan, &h.run, -1, 0, 0);
      free(order);
    }
    results again = results_new(first.rows, &p);
    harness_read(&h, again.out, again.lse);
    same_rows("tasks in random order", &p, &first, 0, &again, first.rows);
    CHECK(guarded_intact(&h.scratch) && guarded_intact(&h.out) && guarded_intact(&h.lse),
          "tasks wrote outside their buffers");
    harness_free(&h);
    results_free(&again);
    results_free(&first);
    problem_free(&p);
  }
}

/* Runs of one plan with dirty scratch. */
static void test_repeated_runs(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(10, 2); n++) {
    rng r;
    (void)trial_begin(&r, 15, n);
    problem p = random_problem(&r, 2, 700, 30);
    thread_team team;
    rng order;
    layout how = layout_random(&r, &team, &order);
    harness h;
    harness_build(&h, &p, &how);
    harness_run(&h);
    results first = results_new(problem_rows(&p), &p), again = results_new(problem_rows(&p), &p);
    harness_read(&h, first.out, first.lse);
    static const int fills[] = {0x00, 0xff, 0x7f, 0x80, 0x01};
    for (size_t k = 0; k < sizeof fills / sizeof fills[0]; k++) {
      memset(h.scratch.data, fills[k], h.scratch.bytes);
      harness_run(&h);
      harness_read(&h, again.out, again.lse);
      same_rows("a run with dirty scratch", &p, &first, 0, &again, first.rows);
    }
    harness_free(&h);
    results_free(&first);
    results_free(&again);
    problem_free(&p);
  }
}

typedef struct simultaneous {
  const treeattn_plan *plan;
  treeattn_run_args runs[4];
  treeattn_status statuses[4];
} simultaneous;

static void run_one(void *arg, size_t index) {
  simultaneous *all = arg;
  all->statuses[index] = treeattn_attend(all->plan, &all->runs[index], NULL);
}

/* One plan, four runs at the same time, each with its own scratch and outputs. */
static void test_runs_of_one_plan_at_once(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(6, 2); n++) {
    rng r;
    (void)trial_begin(&r, 20, n);
    problem p = random_problem(&r, 2, 700, 30);
    layout how = LAYOUT_INIT;
    harness h;
    harness_build(&h, &p, &how);
    harness_run(&h);
    simultaneous all = {.plan = h.plan};
    for (int k = 0; k < 4; k++) {
      all.runs[k] = h.run;
      all.runs[k].out = calloc(h.info.out_bytes + 1, 1);
      all.runs[k].lse = calloc(h.info.lse_bytes + 1, 1);
      all.runs[k].scratch = malloc(h.info.scratch_bytes + 1);
    }
    thread_team team = {4};
    treeattn_executor executor = thread_team_executor(&team);
    CHECK(executor.parallel_for(executor.context, run_one, &all, 4) == 0, "the threads did not start");
    for (int k = 0; k < 4; k++) {
      CHECK(all.statuses[k] == TREEATTN_OK, "run %d of 4 at once: %s", k, treeattn_status_name(all.statuses[k]));
      CHECK_SAME_BITS("runs at once", all.runs[k].out, (const float *)(void *)h.out.data,
                      problem_rows(&p) * p.num_heads, p.head_dim_v);
      CHECK_SAME_BITS("lse of runs at once", all.runs[k].lse, (const float *)(void *)h.lse.data, problem_rows(&p),
                      p.num_heads);
      free(all.runs[k].out);
      free(all.runs[k].lse);
      free(all.runs[k].scratch);
    }
    harness_free(&h);
    problem_free(&p);
  }
}

static void test_strides_pages_and_encodings(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(16, 2); n++) {
    rng r;
    (void)trial_begin(&r, 16, n);
    problem p = random_problem(&r, rng_range(&r, 1, 3), 600, 30);
    layout plain = LAYOUT_INIT;
    results first = run_layout(&p, &plain);
    for (int k = 0; k < 12; k++) {
      thread_team team;
      rng order;
      layout how = layout_random(&r, &team, &order);
      how.no_lse = rng_chance(&r, 5);
      results again = run_layout(&p, &how);
      CHECK_SAME_BITS("another layout", again.out, first.out, first.rows * p.num_heads, p.head_dim_v);
      if (!how.no_lse) {
        CHECK_SAME_BITS("lse in another layout", again.lse, first.lse, first.rows * p.num_heads, 1);
      }
      results_free(&again);
    }
    results_free(&first);
    problem_free(&p);
  }
}

/* Some nodes only, in any order: their rows, nothing else. */
static void test_query_subsets(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(40, 6); n++) {
    rng r;
    (void)trial_begin(&r, 17, n);
    int count = rng_range(&r, 1, 4);
    problem p = random_problem(&r, count, 300, 60);
    layout plain = LAYOUT_INIT;
    results all = run_layout(&p, &plain);
    thread_team team;
    rng order;
    layout how = layout_random(&r, &team, &order);
    int32_t *nodes[4];
    int64_t num_queries[4];
    int64_t rows = 0;
    for (int k = 0; k < count; k++) {
      int num_nodes = p.requests[k].num_nodes;
      nodes[k] = calloc((size_t)num_nodes + 1, sizeof **nodes);
      for (int32_t i = 0; i < num_nodes; i++) {
        nodes[k][i] = i;
      }
      rng_shuffle(&r, nodes[k], num_nodes);
      num_queries[k] = rng_below(&r, num_nodes + 1);
      rows += num_queries[k];
    }
    how.query_nodes = (const int32_t *const *)nodes;
    how.num_queries = num_queries;
    results some = results_new(rows, &p);
    harness_once(&p, &how, some.out, some.lse);
    int64_t from = 0, at = 0;
    for (int k = 0; k < count; k++) {
      for (int64_t q = 0; q < num_queries[k]; q++, at++) {
        results part = {some.out + at * p.num_heads * p.head_dim_v, some.lse + at * p.num_heads, 0};
        same_rows("a chosen node", &p, &all, from + nodes[k][q], &part, 1);
      }
      from += p.requests[k].num_nodes;
      free(nodes[k]);
    }
    results_free(&some);
    results_free(&all);
    problem_free(&p);
  }
}

/* Siblings with the same query see the same if their own K and V are the same: their bits must be equal as well. */
static void test_equal_rows_have_equal_bits(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(6, 2); n++) {
    rng r;
    (void)trial_begin(&r, 18, n);
    problem p = problem_new(6, 2, 64, 0, TREEATTN_F16);
    request_data *request = problem_add_tree(&p, rng_range(&r, 500, 530), 130, TREE_STAR, 8.0f, &r);
    size_t q_row = (size_t)p.head_dim * sizeof(float), kv_row = (size_t)p.head_dim * 2;
    for (int i = 2; i < 130; i++) {
      for (int h = 0; h < p.num_heads; h++) {
        unsigned char *base = (unsigned char *)request->q + (size_t)h * 130 * q_row;
        memcpy(base + (size_t)i * q_row, base + q_row, q_row);
      }
      for (int g = 0; g < p.num_kv_heads; g++) {
        unsigned char *k = (unsigned char *)request->k +
                           ((size_t)g * (size_t)request->num_slots + (size_t)request->prefix_len) * kv_row;
        unsigned char *v = (unsigned char *)request->v +
                           ((size_t)g * (size_t)request->num_slots + (size_t)request->prefix_len) * kv_row;
        memcpy(k + (size_t)i * kv_row, k + kv_row, kv_row);
        memcpy(v + (size_t)i * kv_row, v + kv_row, kv_row);
      }
    }
    treeattn_isa isas[8];
    int num_isas = available_isas(isas);
    for (int k = 0; k < num_isas; k++) {
      layout how = LAYOUT_INIT;
      how.isa = isas[k];
      results all = run_layout(&p, &how);
      size_t row = (size_t)p.num_heads * (size_t)p.head_dim_v;
      for (size_t i = 2; i < 130; i++) {
        CHECK_SAME_BITS("an equal sibling", all.out + i * row, all.out + row, p.num_heads, p.head_dim_v);
      }
      results_free(&all);
    }
    problem_free(&p);
  }
}

static void test_pool(void **state) {
  (void)state;
  treeattn_pool *pool = NULL;
  treeattn_error error;
  treeattn_status status = treeattn_pool_create(3, &pool, &error);
  if (status == TREEATTN_ERROR_UNSUPPORTED) {
    print_message("this build has no pool: treeattn_pool_create says \"%s\"\n", error.message);
    CHECK(pool == NULL, "an unsupported pool is not NULL");
    skip();
  }
  CHECK(status == TREEATTN_OK && pool != NULL, "pool of 3: %s", error.message);
  CHECK(treeattn_pool_num_threads(pool) == 3, "a pool of 3 has %lld threads",
        (long long)treeattn_pool_num_threads(pool));
  rng r;
  (void)trial_begin(&r, 19, 0);
  problem p = random_problem(&r, 3, 1200, 40);
  layout how = LAYOUT_INIT;
  results first = run_layout(&p, &how);
  how.num_workers = 3;
  how.executor = treeattn_pool_executor(pool);
  for (int n = 0; n < 5; n++) {
    results again = run_layout(&p, &how);
    same_rows("the pool", &p, &first, 0, &again, first.rows);
    results_free(&again);
  }
  results_free(&first);
  problem_free(&p);
  treeattn_pool_destroy(pool);
  treeattn_pool_destroy(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_place_in_the_batch),
      cmocka_unit_test(test_number_of_workers),
      cmocka_unit_test(test_long_context_is_shared_by_workers),
      cmocka_unit_test(test_tasks_in_any_order),
      cmocka_unit_test(test_repeated_runs),
      cmocka_unit_test(test_runs_of_one_plan_at_once),
      cmocka_unit_test(test_strides_pages_and_encodings),
      cmocka_unit_test(test_query_subsets),
      cmocka_unit_test(test_equal_rows_have_equal_bits),
      cmocka_unit_test(test_pool),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
