/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: each request's result is its own, whatever the company, workers and threads; errors leave everything as it was. */
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/check.h"
#include "support/guard.h"
#include "support/halves.h"
#include "support/threads.h"
#include "support/trees.h"
#include "support/verify_run.h"

#if defined(__SSE2__)
#include <pmmintrin.h>
#endif

enum { MAX_REQUESTS = 24, MAX_NODES = 40, MAX_VOCAB = 600 };

typedef struct entry {
  int32_t parents[MAX_NODES], tokens[MAX_NODES], argmax[MAX_NODES];
  guarded rows, draft;
  float uniforms[MAX_NODES];
  int32_t path[MAX_NODES + 1], emitted[MAX_NODES + 1];
  treeattn_verify_decision decisions[MAX_NODES];
} entry;

typedef struct batch {
  int vocab_size, num_requests;
  entry entries[MAX_REQUESTS];
  treeattn_verify_request requests[MAX_REQUESTS];
  treeattn_verify_result results[MAX_REQUESTS];
} batch;

static batch b;

/* Rows with a stride of their own, NaN between them, ending at an unmapped page. */
static treeattn_verify_rows make_rows(rng *r, treeattn_dtype dtype, int num_nodes, int vocab_size, bool logits,
                                      guarded *data) {
  const int stride = vocab_size + rng_below(r, 4);
  const int64_t elements = num_nodes == 0 ? 0 : (int64_t)(num_nodes - 1) * stride + vocab_size;
  *data = guarded_new((size_t)elements * treeattn_dtype_bytes(dtype), false);
  for (int64_t i = 0; i < num_nodes; i++) {
    for (int64_t t = 0; t < vocab_size; t++) {
      const float value = logits ? rng_signed(r) * 4.0f : (float)rng_below(r, 9);
      element_store(dtype, data->data, i * stride + t, logits || t > 0 ? value : 1.0f);
    }
  }
  return (treeattn_verify_rows){data->data, data->bytes, dtype, stride};
}

static void make_request(rng *r, int n, int vocab_size) {
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  entry *e = &b.entries[n];
  treeattn_verify_request *request = &b.requests[n];
  const int num_nodes = rng_chance(r, 6) ? rng_below(r, 2) : rng_range(r, 1, MAX_NODES);
  *request = (treeattn_verify_request)TREEATTN_VERIFY_REQUEST_INIT;
  request->method = (treeattn_verify_method)rng_below(r, 5);
  request->temperature = rng_chance(r, 6) ? 0.0f : 1.0f;
  request->num_nodes = num_nodes;
  request->parents = e->parents;
  request->tokens = e->tokens;
  request->uniforms = e->uniforms;
  request->num_uniforms = num_nodes;
  tree_make((tree_shape)rng_below(r, NUM_TREE_SHAPES), num_nodes, r, e->parents);
  CHECK_OK(treeattn_uniforms_fill(rng_next(r), 0, 0, 0, num_nodes, e->uniforms, &error));
  for (int i = 0; i < num_nodes; i++) {
    e->tokens[i] = rng_below(r, vocab_size < 6 ? vocab_size : 6);
    e->argmax[i] = rng_below(r, vocab_size < 6 ? vocab_size : 6);
  }
  const treeattn_dtype dtype = dtypes[rng_below(r, 3)];
  const bool greedy = request->method == TREEATTN_VERIFY_GREEDY || request->temperature == 0;
  const bool logits = rng_chance(r, 2);
  if (greedy && rng_chance(r, 2)) {
    request->argmax = e->argmax;
    e->rows = guarded_new(0, false);
  } else {
    treeattn_verify_rows rows = make_rows(r, dtype, num_nodes, vocab_size, logits, &e->rows);
    *(logits ? &request->logits : &request->probs) = rows;
    if (logits && !greedy) {
      request->temperature = 0.5f + (float)rng_below(r, 3);
    }
  }
  request->draft_probs = make_rows(r, dtype, num_nodes, vocab_size, false, &e->draft);
}

static void make_batch(rng *r) {
  b.num_requests = rng_below(r, MAX_REQUESTS + 1);
  b.vocab_size = rng_chance(r, 3) ? rng_range(r, 1, 5) : rng_range(r, 1, MAX_VOCAB);
  for (int n = 0; n < b.num_requests; n++) {
    make_request(r, n, b.vocab_size);
  }
}

static void free_batch(void) {
  for (int n = 0; n < b.num_requests; n++) {
    guarded_free(&b.entries[n].rows);
    guarded_free(&b.entries[n].draft);
  }
}

static void clear_results(bool with_decisions) {
  for (int n = 0; n < b.num_requests; n++) {
    entry *e = &b.entries[n];
    memset(e->path, 0x5a, sizeof e->path);
    memset(e->emitted, 0x5a, sizeof e->emitted);
    memset(e->decisions, 0x5a, sizeof e->decisions);
    b.results[n] = (treeattn_verify_result)TREEATTN_VERIFY_RESULT_INIT;
    b.results[n].path = e->path;
    b.results[n].tokens = e->emitted;
    b.results[n].capacity = b.requests[n].num_nodes;
    b.results[n].decisions = with_decisions || n % 2 == 0 ? e->decisions : NULL;
    b.results[n].decisions_capacity = b.requests[n].num_nodes;
    b.results[n].num_path = -77;
  }
}

static treeattn_verify_args batch_args(int64_t num_workers, treeattn_executor executor) {
  treeattn_verify_args args = TREEATTN_VERIFY_ARGS_INIT;
  args.vocab_size = b.vocab_size;
  args.num_requests = b.num_requests;
  args.requests = b.requests;
  args.results = b.results;
  args.num_workers = num_workers;
  args.executor = executor;
  return args;
}

static treeattn_status run_batch(int64_t num_workers, treeattn_executor executor, bool scratch_at_begin,
                                 treeattn_error *error) {
  treeattn_verify_args args = batch_args(num_workers, executor);
  treeattn_status status = treeattn_verify_scratch_bytes(&args, &args.scratch_bytes, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  guarded scratch = guarded_new(args.scratch_bytes, scratch_at_begin);
  args.scratch = scratch.data;
  status = treeattn_verify(&args, error);
  CHECK(guarded_intact(&scratch), "bytes around the scratch have changed");
  guarded_free(&scratch);
  return status;
}

static void check_against_alone(const char *what) {
  static verify_outcome alone;
  for (int n = 0; n < b.num_requests; n++) {
    const treeattn_verify_result *result = &b.results[n];
    if (b.requests[n].num_nodes == 0) {
      CHECK(result->num_path == 0 && result->num_decisions == 0, "a request without nodes emits %lld tokens",
            (long long)result->num_path);
      continue;
    }
    CHECK_OK(verify_run(&b.requests[n], b.vocab_size, &alone, &error));
    const size_t count = (size_t)alone.num_path;
    CHECK(result->num_path == alone.num_path && memcmp(result->path, alone.path, count * sizeof(int32_t)) == 0 &&
              memcmp(result->tokens, alone.tokens, count * sizeof(int32_t)) == 0,
          "%s: request %d differs from itself alone, seed %llu", what, n, (unsigned long long)trial_seed());
    CHECK(result->num_decisions == (result->decisions == NULL ? 0 : alone.num_decisions) &&
              (result->decisions == NULL || memcmp(result->decisions, alone.decisions,
                                                   (size_t)alone.num_decisions * sizeof *result->decisions) == 0),
          "%s: decisions of request %d, seed %llu", what, n, (unsigned long long)trial_seed());
    for (int64_t rest = result->num_path; rest <= MAX_NODES; rest++) {
      CHECK(result->path[rest] == 0x5a5a5a5a && result->tokens[rest] == 0x5a5a5a5a, "%s: entry %lld is written", what,
            (long long)rest);
    }
  }
}

static void company_and_threads_change_nothing(void **state) {
  (void)state;
  for (int trial = 0; trial < trial_count(120, 25); trial++) {
    rng r;
    (void)trial_begin(&r, 14, trial);
    make_batch(&r);
    thread_team team = {3};
    const treeattn_executor serial = {NULL, NULL};
    const struct {
      const char *name;
      int64_t num_workers;
      treeattn_executor executor;
    } ways[] = {{"one worker", 0, serial},
                {"two workers, serial", 2, serial},
                {"seven workers, shuffled", 7, shuffled_executor(&r)},
                {"more workers than requests, threads", 1024, thread_team_executor(&team)}};
    for (int w = 0; w < 4; w++) {
      clear_results(w % 2 == 0);
      CHECK_OK(run_batch(ways[w].num_workers, ways[w].executor, w % 2 == 1, &error));
      check_against_alone(ways[w].name);
    }
    free_batch();
  }
}

/* Larger structs of a later version: only what this one knows is read and written. */
static void structs_may_be_larger(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 15, 0);
  b.vocab_size = 7;
  b.num_requests = 3;
  for (int n = 0; n < 3; n++) {
    make_request(&r, n, 7);
  }
  clear_results(true);
  CHECK_OK(run_batch(1, (treeattn_executor){NULL, NULL}, false, &error));
  struct {
    treeattn_verify_request request;
    double more[3];
  } requests[3];
  struct {
    treeattn_verify_result result;
    char more[8];
  } results[3];
  memset(requests, 0xff, sizeof requests);
  memset(results, 0xff, sizeof results);
  int32_t paths[3][2][MAX_NODES];
  for (int n = 0; n < 3; n++) {
    requests[n].request = b.requests[n];
    results[n].result = (treeattn_verify_result){paths[n][0], paths[n][1], MAX_NODES, NULL, 0, 0, 0};
  }
  treeattn_verify_args args = batch_args(1, (treeattn_executor){NULL, NULL});
  args.struct_size += 16;
  args.requests = &requests[0].request;
  args.request_bytes = sizeof requests[0];
  args.results = &results[0].result;
  args.result_bytes = sizeof results[0];
  static unsigned char scratch[1 << 17];
  args.scratch = scratch + 1; /* any alignment */
  CHECK_OK(treeattn_verify_scratch_bytes(&args, &args.scratch_bytes, &error));
  CHECK(args.scratch_bytes < sizeof scratch, "scratch of %zu bytes", args.scratch_bytes);
  CHECK_OK(treeattn_verify(&args, &error));
  for (int n = 0; n < 3; n++) {
    assert_int_equal(results[n].result.num_path, b.results[n].num_path);
    assert_memory_equal(paths[n][0], b.results[n].path, (size_t)b.results[n].num_path * sizeof(int32_t));
    assert_memory_equal(results[n].more, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
  }
  args.scratch_bytes--;
  CHECK_ERROR(treeattn_verify(&args, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL, "scratch_bytes", NULL, NULL);
  free_batch();
}

static void the_first_bad_request_is_named(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 16, 0);
  b.vocab_size = 5;
  b.num_requests = 9;
  float nan_row[5] = {0, NAN, 0, 0, 0};
  for (int n = 0; n < 9; n++) {
    make_request(&r, n, 5);
  }
  for (int n = 4; n < 9; n += 2) { /* 4, 6 and 8 are bad */
    b.requests[n].num_nodes = 1;
    b.entries[n].parents[0] = -1;
    b.requests[n].argmax = NULL;
    b.requests[n].probs.data = NULL;
    b.requests[n].logits = verify_rows_f32(nan_row, 1, 5);
  }
  thread_team team = {3};
  const treeattn_executor executors[] = {{NULL, NULL}, shuffled_executor(&r), thread_team_executor(&team)};
  for (int64_t num_workers = 1; num_workers < 10; num_workers++) {
    for (int e = 0; e < 3; e++) {
      clear_results(true);
      static batch before;
      before = b;
      CHECK_ERROR(run_batch(num_workers, executors[e], false, &error), TREEATTN_ERROR_INVALID_VALUE,
                  "requests[4].logits[0][1]", "NaN", "node 0");
      CHECK(memcmp(&before, &b, sizeof b) == 0, "a failed batch has written results");
    }
  }
  b.num_requests = 4;
  clear_results(true);
  CHECK_ERROR(run_batch(2, failing_executor(), false, &error), TREEATTN_ERROR_BACKEND, "executor", NULL, NULL);
  assert_int_equal(b.results[0].num_path, -77);
  b.num_requests = 9;
  free_batch();
}

/* Rounding and flushing of the calling thread neither change the result nor are changed. */
static void floating_point_environment(void **state) {
  (void)state;
  static batch expected;
  for (int trial = 0; trial < 20; trial++) {
    rng r;
    (void)trial_begin(&r, 17, trial);
    make_batch(&r);
    clear_results(true);
    CHECK_OK(run_batch(1, (treeattn_executor){NULL, NULL}, false, &error));
    expected = b;
    clear_results(true);
    (void)fesetround(FE_UPWARD);
#if defined(__SSE2__)
    _mm_setcsr(_mm_getcsr() | 0x8040u);
    const unsigned int set = _mm_getcsr() & 0xffc0u;
#endif
    CHECK_OK(run_batch(1, (treeattn_executor){NULL, NULL}, false, &error));
    const int rounding = fegetround();
#if defined(__SSE2__)
    const unsigned int kept = _mm_getcsr() & 0xffc0u;
#endif
    (void)fesetenv(FE_DFL_ENV);
    CHECK(rounding == FE_UPWARD, "the rounding mode is %d", rounding);
#if defined(__SSE2__)
    CHECK(kept == set, "the control register is %x instead of %x", kept, set);
#endif
    CHECK(memcmp(&b, &expected, sizeof b) == 0, "the environment changes results, seed %llu",
          (unsigned long long)trial_seed());
    free_batch();
  }
}

/* ---- arguments ---- */

typedef struct good {
  int32_t parents[3], tokens[3], argmax[3], path[3], emitted[3];
  float rows[3][4], uniforms[3];
  treeattn_verify_request request;
  treeattn_verify_result result;
  treeattn_verify_args args;
  unsigned char scratch[32768];
} good;

static void make_good(good *g, treeattn_verify_method method) {
  memset(g, 0, sizeof *g);
  g->parents[0] = -1;
  for (int n = 0; n < 12; n++) {
    g->rows[n / 4][n % 4] = 0.25f;
  }
  g->request = (treeattn_verify_request)TREEATTN_VERIFY_REQUEST_INIT;
  g->request.method = method;
  g->request.num_nodes = 3;
  g->request.parents = g->parents;
  g->request.tokens = g->tokens;
  g->request.probs = verify_rows_f32(&g->rows[0][0], 3, 4);
  g->request.draft_probs = verify_rows_f32(&g->rows[0][0], 3, 4);
  g->request.uniforms = g->uniforms;
  g->request.num_uniforms = 3;
  g->result = (treeattn_verify_result){g->path, g->emitted, 3, NULL, 0, -77, -77};
  g->args = (treeattn_verify_args)TREEATTN_VERIFY_ARGS_INIT;
  g->args.vocab_size = 4;
  g->args.num_requests = 1;
  g->args.requests = &g->request;
  g->args.results = &g->result;
  g->args.scratch = g->scratch;
  g->args.scratch_bytes = sizeof g->scratch;
}

static void every_argument_is_checked(void **state) {
  (void)state;
  static good g;
  const treeattn_verify_method drawn = TREEATTN_VERIFY_RESIDUAL;
#define REFUSES(change, status, word_a, word_b)                                  \
  do {                                                                           \
    make_good(&g, drawn);                                                        \
    CHECK_OK(treeattn_verify(&g.args, &error));                                  \
    make_good(&g, drawn);                                                        \
    change;                                                                      \
    CHECK_ERROR(treeattn_verify(&g.args, &error), status, word_a, word_b, NULL); \
    CHECK(g.result.num_path == -77 && g.path[0] == 0, "results are written");    \
  } while (0)
  const treeattn_status argument = TREEATTN_ERROR_INVALID_ARGUMENT;
  REFUSES(g.args.struct_size--, argument, "struct_size", NULL);
  REFUSES(g.args.request_bytes = 8, argument, "request_bytes", "8");
  REFUSES(g.args.result_bytes = 8, argument, "result_bytes", "8");
  REFUSES(g.args.vocab_size = -1, argument, "vocab_size", "-1");
  REFUSES(g.args.vocab_size = 0, argument, "vocab_size", "0");
  REFUSES(g.args.vocab_size = INT64_C(1) << 31, argument, "vocab_size", "2147483648");
  REFUSES(g.args.num_workers = -1, argument, "num_workers", "-1");
  REFUSES(g.args.num_workers = 1025, argument, "num_workers", "1025");
  REFUSES(g.args.num_requests = -1, argument, "num_requests", "-1");
  REFUSES(g.args.requests = NULL, argument, "requests", "NULL");
  REFUSES(g.args.results = NULL, argument, "results", "NULL");
  REFUSES(g.args.scratch = NULL, TREEATTN_ERROR_BUFFER_TOO_SMALL, "scratch_bytes", "0");
  REFUSES(g.args.scratch_bytes = 100, TREEATTN_ERROR_BUFFER_TOO_SMALL, "scratch_bytes", "100");
  REFUSES(g.request.method = (treeattn_verify_method)5, argument, "requests[0].method", "5");
  REFUSES(g.request.method = (treeattn_verify_method)-1, argument, "requests[0].method", "-1");
  REFUSES(g.request.temperature = NAN, argument, "requests[0].temperature", "nan");
  REFUSES(g.request.temperature = -0.5f, argument, "requests[0].temperature", "-0.5");
  REFUSES(g.request.temperature = INFINITY, argument, "requests[0].temperature", "inf");
  REFUSES(g.request.temperature = 0.5f, argument, "requests[0].temperature", "0.5");
  REFUSES(g.request.num_nodes = -1, argument, "num_nodes", "-1");
  REFUSES(g.request.parents = NULL, argument, "requests[0].parents", "NULL");
  REFUSES(g.parents[2] = 2, TREEATTN_ERROR_INVALID_TREE, "requests[0].parents[2]", "2");
  REFUSES(g.parents[1] = 2, TREEATTN_ERROR_INVALID_TREE, "requests[0].parents[1]", "2");
  REFUSES(g.parents[1] = -2, TREEATTN_ERROR_INVALID_TREE, "requests[0].parents[1]", "-2");
  REFUSES(g.parents[0] = 0, TREEATTN_ERROR_INVALID_TREE, "requests[0].parents[0]", "0");
  REFUSES(g.request.tokens = NULL, argument, "requests[0].tokens", "NULL");
  REFUSES(g.tokens[2] = 4, argument, "requests[0].tokens[2]", "4");
  REFUSES(g.tokens[1] = -1, argument, "requests[0].tokens[1]", "-1");
  REFUSES(g.request.probs.data = NULL, argument, "argmax, logits and probs", "absent");
  REFUSES(g.request.logits = g.request.probs, argument, "argmax, logits and probs", "exactly one");
  REFUSES(g.request.probs.data = NULL; g.request.argmax = g.argmax, argument, "method is residual", "argmax");
  REFUSES(g.request.probs.bytes--, TREEATTN_ERROR_BUFFER_TOO_SMALL, "requests[0].probs.bytes", "47");
  REFUSES(g.request.probs.row_stride = 3, argument, "requests[0].probs.row_stride", "3");
  REFUSES(g.request.probs.dtype = (treeattn_dtype)7, argument, "requests[0].probs.dtype", "7");
  REFUSES(g.request.probs.row_stride = INT64_MAX, TREEATTN_ERROR_OVERFLOW, "requests[0].probs", NULL);
  REFUSES(g.request.draft_probs.data = NULL, argument, "requests[0].draft_probs", "residual");
  REFUSES(g.request.draft_probs.bytes = 1, TREEATTN_ERROR_BUFFER_TOO_SMALL, "requests[0].draft_probs.bytes", "1");
  REFUSES(g.request.num_uniforms = -1, argument, "requests[0].num_uniforms", "-1");
  REFUSES(g.request.uniforms = NULL, argument, "requests[0].num_uniforms", "NULL");
  REFUSES(g.request.uniforms = NULL; g.request.num_uniforms = 0, argument, "requests[0].num_uniforms", "0");
  REFUSES(g.result.path = NULL, argument, "results[0].path", "NULL");
  REFUSES(g.result.tokens = NULL, argument, "results[0].tokens", "NULL");
  REFUSES(g.result.capacity = 2, TREEATTN_ERROR_BUFFER_TOO_SMALL, "results[0].capacity", "2");
  static treeattn_verify_decision decisions[2];
  REFUSES(g.result.decisions = decisions;
          g.result.decisions_capacity = 2, TREEATTN_ERROR_BUFFER_TOO_SMALL, "results[0].decisions_capacity", "2");
  REFUSES(g.rows[0][2] = NAN, TREEATTN_ERROR_INVALID_VALUE, "requests[0].probs[0][2]", "NaN");
  static float bad_drafts[3][4];
  bad_drafts[0][1] = -0.25f;
  REFUSES(g.request.draft_probs = verify_rows_f32(&bad_drafts[0][0], 3, 4), TREEATTN_ERROR_INVALID_VALUE,
          "requests[0].draft_probs[0][1]", "-0.25");
  CHECK_ERROR(treeattn_verify(NULL, &error), argument, "args", "NULL", NULL);
  make_good(&g, drawn);
  CHECK_ERROR(treeattn_verify_scratch_bytes(&g.args, NULL, &error), argument, "scratch_bytes", "NULL", NULL);
  assert_int_equal(treeattn_verify_scratch_bytes(NULL, NULL, NULL), argument); /* no error struct */
  assert_string_equal(treeattn_verify_method_name(TREEATTN_VERIFY_TYPICAL_LOSSY), "typical");
  assert_string_equal(treeattn_verify_method_name((treeattn_verify_method)9), "unknown");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(company_and_threads_change_nothing), cmocka_unit_test(structs_may_be_larger),
      cmocka_unit_test(the_first_bad_request_is_named),     cmocka_unit_test(floating_point_environment),
      cmocka_unit_test(every_argument_is_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
