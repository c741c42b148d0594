/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: a verification on the GPU decides otherwise than the CPU, for some method, type, vocabulary, batch or bad
 * value, or a failed request writes or disturbs others. */
#include "step.h"

#include <math.h>

static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};

typedef enum row_source { FROM_ARGMAX, FROM_LOGITS, FROM_PROBS } row_source;

typedef struct verify_batch {
  step_batch trees;
  int vocab_size;
  row_source source;
  treeattn_dtype dtype;
  int64_t stride, draft_stride;
  int32_t *tokens, *argmax;
  unsigned char *rows, *draft;
  size_t rows_bytes, draft_bytes;
  float *uniforms;
  treeattn_cuda_verify_settings settings[STEP_MAX_REQUESTS];
  bool one_setting, with_decisions;
  int salt; /* of the kinds of rows, so that p and q of a node are of the same kind */
} verify_batch;

/* Results as they must be: 0xff where nothing is written. */
typedef struct verify_result {
  int32_t *path, *path_tokens;
  treeattn_verify_decision *decisions;
  int32_t num_path[STEP_MAX_REQUESTS], last_tokens[STEP_MAX_REQUESTS], num_decisions[STEP_MAX_REQUESTS];
} verify_result;

/* ---- making batches ---------------------------------------------------------------------------------------- */

/* Rows with NaN between them. Few tokens are drafted, and these are likely. */
static unsigned char *make_rows(const verify_batch *v, int64_t stride, bool logits, rng *r, size_t *bytes) {
  const size_t element = treeattn_dtype_bytes(v->dtype);
  const int num_nodes = v->trees.num_nodes;
  *bytes = num_nodes == 0 ? 0 : ((size_t)(num_nodes - 1) * (size_t)stride + (size_t)v->vocab_size) * element;
  unsigned char *rows = step_calloc(*bytes, 1);
  memset(rows, 0xff, *bytes);
  for (int64_t i = 0; i < num_nodes; i++) {
    const int kind = (int)(i * 7 + v->salt) % 10;
    for (int64_t t = 0; t < v->vocab_size; t++) {
      float value =
          logits ? rng_signed(r) * 4.0f + (t < 6 ? 4.0f : 0.0f) : (float)(rng_below(r, 9) * (t < 6 ? 200 : 1));
      if (logits && kind == 0) {
        value = (float)rng_below(r, 3); /* many equal ones */
      }
      if (logits && kind == 1 && rng_chance(r, 2) && t > 0) {
        value = -INFINITY;
      }
      if (logits && kind == 2 && rng_chance(r, 5)) {
        value = INFINITY;
      }
      if (kind == 3) {
        value *= 1e-3f;
      }
      if (!logits && kind == 4) {
        value = 1e-30f * (float)rng_range(r, 1, 3); /* beside the 1 these are lost to rounding */
      }
      if (!logits && kind >= 7) {
        value = 1.0f; /* sums are exact, and uniforms meet them */
      }
      element_store(v->dtype, rows, i * stride + t, logits || t > 0 ? value : 1.0f);
    }
  }
  return rows;
}

static void make_settings(verify_batch *v, rng *r) {
  static const float temperatures[] = {0.0f, 1.0f, 0.7f, 0.25f, 3.0f};
  for (int n = 0; n < STEP_MAX_REQUESTS; n++) {
    treeattn_cuda_verify_settings *s = &v->settings[n];
    *s = v->settings[0];
    if (n > 0 && v->one_setting) {
      continue;
    }
    s->method = v->source == FROM_ARGMAX ? TREEATTN_VERIFY_GREEDY : rng_below(r, 5);
    s->temperature = v->source == FROM_LOGITS ? PICK(r, temperatures) : (rng_chance(r, 8) ? 0.0f : 1.0f);
    s->typical_epsilon = rng_chance(r, 2) ? 0.0f : 0.05f * (float)rng_below(r, 5);
    s->typical_delta = rng_chance(r, 2) ? 0.0f : 0.2f * (float)rng_below(r, 5);
  }
}

static void verify_batch_random(verify_batch *v, int most_requests, int most_nodes, int most_vocab, rng *r) {
  memset(v, 0, sizeof *v);
  step_batch_random(&v->trees, most_requests, most_nodes, r);
  const size_t nodes = (size_t)v->trees.num_nodes;
  v->vocab_size = rng_chance(r, 4) ? rng_range(r, 1, 5) : rng_range(r, 1, most_vocab);
  if (rng_chance(r, 6) && most_vocab > 1024) {
    v->vocab_size = 256 << rng_below(r, 3);
  }
  v->salt = rng_below(r, 10);
  v->source = rng_chance(r, 6) ? FROM_ARGMAX : (rng_chance(r, 2) ? FROM_LOGITS : FROM_PROBS);
  v->dtype = PICK(r, dtypes);
  v->stride = v->vocab_size + rng_below(r, 4);
  v->draft_stride = v->vocab_size + rng_below(r, 4);
  v->one_setting = rng_chance(r, 3);
  v->with_decisions = !rng_chance(r, 4);
  v->tokens = step_calloc(nodes, sizeof *v->tokens);
  v->argmax = step_calloc(nodes, sizeof *v->argmax);
  v->uniforms = step_calloc(nodes, sizeof *v->uniforms);
  const int few = v->vocab_size < 6 ? v->vocab_size : 6;
  for (size_t i = 0; i < nodes; i++) {
    v->tokens[i] = rng_chance(r, 10) ? rng_below(r, v->vocab_size) : rng_below(r, few);
    v->argmax[i] = rng_below(r, few);
  }
  CHECK_OK(treeattn_uniforms_fill(rng_next(r), 0, 0, 0, v->trees.num_nodes, v->uniforms, &error));
  for (size_t i = 0; i < nodes; i++) {
    static const float round_uniforms[] = {0.0f, 0.25f, 0.5f, 0.75f, 0x1.fffffep-1f};
    v->uniforms[i] = rng_chance(r, 3) ? PICK(r, round_uniforms) : v->uniforms[i];
  }
  make_settings(v, r);
  v->rows = make_rows(v, v->stride, v->source == FROM_LOGITS, r, &v->rows_bytes);
  v->draft = make_rows(v, v->draft_stride, false, r, &v->draft_bytes);
}

static void verify_batch_free(verify_batch *v) {
  step_batch_free(&v->trees);
  free(v->tokens);
  free(v->argmax);
  free(v->uniforms);
  free(v->rows);
  free(v->draft);
}

static treeattn_verify_rows rows_of(const void *base, size_t bytes, treeattn_dtype dtype, int64_t stride,
                                    int64_t begin) {
  const size_t offset = (size_t)(begin * stride) * treeattn_dtype_bytes(dtype);
  return (treeattn_verify_rows){(const unsigned char *)base + offset, bytes > offset ? bytes - offset : 0, dtype,
                                stride};
}

/* ---- the CPU ----------------------------------------------------------------------------------------------- */

/* One request alone. On failure nothing is written and *error says why. */
static treeattn_status verify_here(const verify_batch *v, int n, verify_result *want, treeattn_error *error) {
  const int64_t begin = v->trees.offsets[n];
  const int64_t nodes = step_nodes(&v->trees, n);
  const treeattn_cuda_verify_settings *s = &v->settings[v->one_setting ? 0 : n];
  treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
  request.method = (treeattn_verify_method)s->method;
  request.temperature = s->temperature;
  request.typical_epsilon = s->typical_epsilon;
  request.typical_delta = s->typical_delta;
  request.num_nodes = nodes;
  request.parents = v->trees.parents + begin;
  request.tokens = v->tokens + begin;
  request.uniforms = v->uniforms + begin;
  request.num_uniforms = nodes;
  if (v->source == FROM_ARGMAX) {
    request.argmax = v->argmax + begin;
  } else if (nodes > 0) {
    *(v->source == FROM_LOGITS ? &request.logits : &request.probs) =
        rows_of(v->rows, v->rows_bytes, v->dtype, v->stride, begin);
  }
  request.draft_probs = rows_of(v->draft, v->draft_bytes, v->dtype, v->draft_stride, begin);
  treeattn_verify_result result = TREEATTN_VERIFY_RESULT_INIT;
  result.path = want->path + begin;
  result.tokens = want->path_tokens + begin;
  result.capacity = nodes;
  result.decisions = v->with_decisions ? want->decisions + begin : NULL;
  result.decisions_capacity = nodes;
  treeattn_verify_args args = TREEATTN_VERIFY_ARGS_INIT;
  args.vocab_size = v->vocab_size;
  args.num_requests = 1;
  args.requests = &request;
  args.results = &result;
  treeattn_status status = treeattn_verify_scratch_bytes(&args, &args.scratch_bytes, error);
  if (status == TREEATTN_OK) {
    args.scratch = step_calloc(args.scratch_bytes, 1);
    status = treeattn_verify(&args, error);
    free(args.scratch);
  }
  if (status == TREEATTN_OK) {
    want->num_path[n] = (int32_t)result.num_path;
    want->num_decisions[n] = v->with_decisions ? (int32_t)result.num_decisions : -1;
    want->last_tokens[n] = nodes == 0 ? -1 : result.tokens[result.num_path - 1];
  }
  return status;
}

static void result_new(verify_result *want, const verify_batch *v) {
  const size_t nodes = (size_t)v->trees.num_nodes;
  memset(want, 0xff, sizeof *want);
  want->path = step_calloc(nodes, sizeof *want->path);
  want->path_tokens = step_calloc(nodes, sizeof *want->path_tokens);
  want->decisions = step_calloc(nodes, sizeof *want->decisions);
  memset(want->path, 0xff, nodes * sizeof *want->path);
  memset(want->path_tokens, 0xff, nodes * sizeof *want->path_tokens);
  memset(want->decisions, 0xff, nodes * sizeof *want->decisions);
}

static void result_free(verify_result *want) {
  free(want->path);
  free(want->path_tokens);
  free(want->decisions);
}

/* ---- the GPU ----------------------------------------------------------------------------------------------- */

typedef struct verify_there {
  device_buffer tokens, argmax, rows, draft, uniforms, settings, path, path_tokens, num_path, last_tokens, decisions,
      num_decisions, outcomes, scratch;
  treeattn_cuda_verify_args args;
} verify_there;

static void there_new(verify_there *g, verify_batch *v) {
  const size_t nodes = (size_t)v->trees.num_nodes;
  const size_t requests = (size_t)v->trees.num_requests;
  memset(g, 0, sizeof *g);
  step_batch_upload(&v->trees);
  g->tokens = td_alloc_copy(v->tokens, nodes * sizeof *v->tokens);
  g->argmax = td_alloc_copy(v->argmax, nodes * sizeof *v->argmax);
  g->rows = td_alloc_copy(v->rows, v->rows_bytes);
  g->draft = td_alloc_copy(v->draft, v->draft_bytes);
  g->uniforms = td_alloc_copy(v->uniforms, nodes * sizeof *v->uniforms);
  g->settings = td_alloc_copy(v->settings, requests * sizeof *v->settings);
  g->path = td_alloc(nodes * sizeof(int32_t));
  g->path_tokens = td_alloc(nodes * sizeof(int32_t));
  g->num_path = td_alloc(requests * sizeof(int32_t));
  g->last_tokens = td_alloc(requests * sizeof(int32_t));
  g->decisions = td_alloc(nodes * sizeof(treeattn_verify_decision));
  g->num_decisions = td_alloc(requests * sizeof(int32_t));
  g->outcomes = td_alloc(requests * sizeof(treeattn_cuda_outcome));
  treeattn_cuda_verify_args *a = &g->args;
  *a = (treeattn_cuda_verify_args)TREEATTN_CUDA_VERIFY_ARGS_INIT;
  a->batch = step_batch_args(&v->trees);
  a->vocab_size = v->vocab_size;
  a->parents = (const int32_t *)(const void *)v->trees.parents_there.data;
  a->tokens = (const int32_t *)(const void *)g->tokens.data;
  if (v->one_setting) {
    a->settings = v->settings[0];
  } else {
    a->request_settings = (const treeattn_cuda_verify_settings *)(const void *)g->settings.data;
  }
  if (v->source == FROM_ARGMAX) {
    a->argmax = (const int32_t *)(const void *)g->argmax.data;
  } else {
    *(v->source == FROM_LOGITS ? &a->logits : &a->probs) = rows_of(g->rows.data, g->rows.bytes, v->dtype, v->stride, 0);
  }
  a->draft_probs = rows_of(g->draft.data, g->draft.bytes, v->dtype, v->draft_stride, 0);
  a->uniforms = (const float *)(const void *)g->uniforms.data;
  a->path = (int32_t *)(void *)g->path.data;
  a->path_tokens = (int32_t *)(void *)g->path_tokens.data;
  a->num_path = (int32_t *)(void *)g->num_path.data;
  a->last_tokens = (int32_t *)(void *)g->last_tokens.data;
  a->decisions = v->with_decisions ? (treeattn_verify_decision *)(void *)g->decisions.data : NULL;
  a->num_decisions = v->with_decisions ? (int32_t *)(void *)g->num_decisions.data : NULL;
  a->outcomes = (treeattn_cuda_outcome *)(void *)g->outcomes.data;
  CHECK_OK(treeattn_cuda_verify_scratch_bytes(a, &a->scratch_bytes, &error));
  g->scratch = td_alloc(a->scratch_bytes);
  a->scratch = g->scratch.data;
}

static void there_free(verify_there *g) {
  device_buffer *buffers[] = {&g->tokens,    &g->argmax,        &g->rows,        &g->draft,    &g->uniforms,
                              &g->settings,  &g->path,          &g->path_tokens, &g->num_path, &g->last_tokens,
                              &g->decisions, &g->num_decisions, &g->outcomes,    &g->scratch};
  for (size_t n = 0; n < sizeof buffers / sizeof buffers[0]; n++) {
    td_free(buffers[n]);
  }
}

static void check_results(const verify_there *g, const verify_result *want) {
  step_check_bytes("num_path", &g->num_path, want->num_path);
  step_check_bytes("path", &g->path, want->path);
  step_check_bytes("path_tokens", &g->path_tokens, want->path_tokens);
  step_check_bytes("last_tokens", &g->last_tokens, want->last_tokens);
  step_check_bytes("num_decisions", &g->num_decisions, want->num_decisions);
  step_check_bytes("decisions", &g->decisions, want->decisions);
  CHECK(td_intact(&g->scratch), "bytes around the scratch were written");
}

/* "logits[3][17]" must stand in the CPU's message, which counts the one request as the batch. */
static void check_same_failure(const treeattn_cuda_outcome *outcome, int n, const treeattn_error *here) {
  treeattn_error there = {TREEATTN_OK, ""};
  char words[TREEATTN_ERROR_MESSAGE_BYTES];
  CHECK(treeattn_cuda_outcome_explain(outcome, n, &there) == here->status, "request %d: %s there, here %s", n,
        there.message, here->message);
  const char *place = strchr(there.message, '.');
  CHECK(place != NULL, "the words are \"%s\"", there.message);
  const size_t length = strcspn(place + 1, ":");
  memcpy(words, place + 1, length);
  words[length] = '\0';
  CHECK(strcmp(words, "settings") == 0 || strstr(here->message, words) != NULL, "request %d: \"%s\" there, here \"%s\"",
        n, there.message, here->message);
}

static void compare(verify_batch *v) {
  verify_there g;
  verify_result want;
  treeattn_error errors[STEP_MAX_REQUESTS];
  treeattn_cuda_outcome outcomes[STEP_MAX_REQUESTS];
  memset(errors, 0, sizeof errors);
  result_new(&want, v);
  for (int n = 0; n < v->trees.num_requests; n++) {
    (void)verify_here(v, n, &want, &errors[n]);
  }
  there_new(&g, v);
  CHECK_OK(treeattn_cuda_verify(&g.args, &error));
  td_sync();
  td_download(outcomes, g.outcomes.data, g.outcomes.bytes);
  for (int n = 0; n < v->trees.num_requests; n++) {
    if (errors[n].status == TREEATTN_OK) {
      step_check_outcome(&outcomes[n], n, TREEATTN_OK, TREEATTN_CUDA_FIELD_NONE, -1, -1);
    } else {
      check_same_failure(&outcomes[n], n, &errors[n]);
    }
  }
  check_results(&g, &want);
  there_free(&g);
  result_free(&want);
}

/* ---- tests ------------------------------------------------------------------------------------------------- */

static void test_random_batches(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < trial_count(300, 30); n++) {
    rng r;
    verify_batch v;
    (void)trial_begin(&r, 311, n);
    verify_batch_random(&v, n % 5 == 0 ? STEP_MAX_REQUESTS : 3, n % 4 == 0 ? 40 : 12, n % 3 == 0 ? 3000 : 600, &r);
    compare(&v);
    verify_batch_free(&v);
  }
}

/* Rows that a whole team shares, of a length that is no multiple of anything. */
static void test_large_vocabularies(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  static const int sizes[] = {32000, 65536, 128256, 151936, 262145};
  for (int n = 0; n < trial_count(15, 2); n++) {
    rng r;
    verify_batch v;
    const int index = trial_begin(&r, 312, n);
    verify_batch_random(&v, 2, 6, 2, &r);
    free(v.rows);
    free(v.draft);
    v.vocab_size = sizes[index % 5];
    v.stride = v.vocab_size + rng_below(&r, 4);
    v.draft_stride = v.vocab_size;
    v.rows = make_rows(&v, v.stride, v.source == FROM_LOGITS, &r, &v.rows_bytes);
    v.draft = make_rows(&v, v.draft_stride, false, &r, &v.draft_bytes);
    compare(&v);
    verify_batch_free(&v);
  }
}

/* Uniforms that meet a partial sum exactly, at the ends of blocks of the sum and within them. */
static void test_exact_sums(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < 64; n++) {
    rng r;
    verify_batch v;
    (void)trial_begin(&r, 315, n);
    do {
      verify_batch_random(&v, 3, 1, 2, &r);
    } while (v.source != FROM_PROBS && (verify_batch_free(&v), true));
    free(v.rows);
    free(v.draft);
    v.vocab_size = 1024;
    v.stride = v.draft_stride = 1024;
    v.salt = 7;
    v.rows = make_rows(&v, v.stride, false, &r, &v.rows_bytes);
    v.draft = make_rows(&v, v.draft_stride, false, &r, &v.draft_bytes);
    for (int i = 0; i < v.trees.num_nodes; i++) {
      v.uniforms[i] = (float)(n % 16) / 16.0f;
    }
    for (int request = 0; request < STEP_MAX_REQUESTS; request++) {
      v.settings[request].method = TREEATTN_VERIFY_TARGET_ONLY;
      v.settings[request].temperature = 1.0f;
    }
    compare(&v);
    verify_batch_free(&v);
  }
}

/* More nodes than a thread block has threads. */
static void test_many_nodes(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < trial_count(6, 1); n++) {
    rng r;
    verify_batch v;
    (void)trial_begin(&r, 313, n);
    verify_batch_random(&v, 2, n % 2 == 0 ? 700 : 1300, 40, &r);
    compare(&v);
    verify_batch_free(&v);
  }
}

static void spoil(verify_batch *v, int n, rng *r) {
  static const float bad_uniforms[] = {1.0f, -1e-7f, NAN, INFINITY};
  static const float bad_probs[] = {-1.0f, NAN, INFINITY};
  const int nodes = step_nodes(&v->trees, n);
  const int begin = v->trees.offsets[n];
  const int64_t node = begin + rng_below(r, rng_chance(r, 2) ? 1 : nodes);
  const int64_t token = rng_below(r, v->vocab_size);
  treeattn_cuda_verify_settings *s = &v->settings[v->one_setting ? 0 : n];
  switch (rng_below(r, 10)) {
    case 0: v->trees.parents[node] = (int32_t)(node - begin); break;
    case 1: v->tokens[node] = rng_chance(r, 2) ? -1 : v->vocab_size; break;
    case 2: v->uniforms[node] = PICK(r, bad_uniforms); break;
    case 3: v->argmax[node] = rng_chance(r, 2) ? -1 : v->vocab_size; break;
    case 4: s->method = rng_chance(r, 2) ? -1 : 5; break;
    case 5: s->temperature = rng_chance(r, 2) ? NAN : -1.0f; break;
    case 6: s->typical_delta = INFINITY; break;
    case 7: element_store(v->dtype, v->draft, node * v->draft_stride + token, PICK(r, bad_probs)); break;
    case 8:
      for (int64_t t = 0; t < v->vocab_size; t++) {
        element_store(v->dtype, v->rows, node * v->stride + t, v->source == FROM_LOGITS ? -INFINITY : 0.0f);
      }
      break;
    default:
      element_store(v->dtype, v->rows, node * v->stride + token, v->source == FROM_LOGITS ? NAN : PICK(r, bad_probs));
      break;
  }
}

/* Bad values in some requests: they fail as on the CPU, alone, and those that are not read change nothing. */
static void test_bad_values(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  int failures = 0;
  const int count = trial_count(300, 30);
  for (int n = 0; n < count; n++) {
    rng r;
    verify_batch v;
    (void)trial_begin(&r, 314, n);
    verify_batch_random(&v, 6, 10, 400, &r);
    for (int request = 0; request < v.trees.num_requests; request++) {
      if (step_nodes(&v.trees, request) > 0 && rng_chance(&r, 2)) {
        spoil(&v, request, &r);
        failures++;
      }
    }
    compare(&v);
    verify_batch_free(&v);
  }
  CHECK(failures > count / 4, "only %d requests were spoilt", failures);
}

/* Arrays that settings in device memory ask for and that are not there. */
static void test_absent_arrays(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int which = 0; which < 2; which++) {
    rng r = {5};
    verify_batch v;
    verify_there g;
    verify_result want;
    treeattn_cuda_outcome outcomes[STEP_MAX_REQUESTS];
    do {
      verify_batch_random(&v, 3, 9, 50, &r);
    } while ((v.trees.num_requests < 2 || step_nodes(&v.trees, 0) == 0 || step_nodes(&v.trees, 1) == 0 ||
              v.one_setting || v.source != FROM_LOGITS) &&
             (verify_batch_free(&v), true));
    for (int n = 0; n < v.trees.num_requests; n++) {
      v.settings[n].temperature = 1.0f;
      v.settings[n].method = n == 0 ? TREEATTN_VERIFY_RESIDUAL : TREEATTN_VERIFY_GREEDY;
    }
    result_new(&want, &v);
    for (int n = 1; n < v.trees.num_requests; n++) {
      treeattn_error error;
      CHECK(verify_here(&v, n, &want, &error) == TREEATTN_OK, "%s", error.message);
    }
    there_new(&g, &v);
    if (which == 0) {
      g.args.draft_probs.data = NULL;
    } else {
      g.args.uniforms = NULL;
    }
    CHECK_OK(treeattn_cuda_verify(&g.args, &error));
    td_sync();
    td_download(outcomes, g.outcomes.data, g.outcomes.bytes);
    step_check_outcome(&outcomes[0], 0, TREEATTN_ERROR_INVALID_ARGUMENT,
                       which == 0 ? TREEATTN_CUDA_FIELD_DRAFT_PROBS : TREEATTN_CUDA_FIELD_UNIFORMS, -1, -1);
    check_results(&g, &want);
    there_free(&g);
    result_free(&want);
    verify_batch_free(&v);
  }
}

static void test_host_refusals(void **state) {
  (void)state;
  static int32_t words[256];
  static treeattn_cuda_outcome outcomes[1];
  treeattn_cuda_verify_args good = TREEATTN_CUDA_VERIFY_ARGS_INIT;
  size_t bytes = 0;
  good.batch = (treeattn_cuda_batch){1, 4, 4, words};
  good.vocab_size = 10;
  good.parents = words + 2;
  good.tokens = words + 6;
  good.logits = (treeattn_verify_rows){words + 64, 160, TREEATTN_F32, 0};
  good.settings.method = TREEATTN_VERIFY_TARGET_ONLY;
  good.uniforms = (const float *)(const void *)(words + 10);
  good.path = words + 14;
  good.path_tokens = words + 18;
  good.num_path = words + 22;
  good.outcomes = outcomes;
  if (treeattn_cuda_compiled() == 0) {
    skip();
  }
  CHECK_OK(treeattn_cuda_verify_scratch_bytes(&good, &bytes, &error));
  CHECK(bytes >= 256 * sizeof(double), "the scratch is %zu bytes", bytes);
  treeattn_cuda_verify_args args = good;
  CHECK_ERROR(treeattn_cuda_verify(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "scratch is NULL", NULL, NULL);
  args.struct_size--;
  CHECK_ERROR(treeattn_cuda_verify(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "struct_size", NULL, NULL);
  args = good;
  args.vocab_size = -1;
  CHECK_ERROR(treeattn_cuda_verify(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "vocab_size", "-1", NULL);
  args = good;
  args.argmax = words;
  CHECK_ERROR(treeattn_cuda_verify(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "exactly one", "2", NULL);
  args = good;
  args.logits.data = NULL;
  CHECK_ERROR(treeattn_cuda_verify(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "exactly one", "0", NULL);
  args = good;
  args.logits.bytes = 159;
  CHECK_ERROR(treeattn_cuda_verify(&args, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL, "logits.bytes", "159", "160");
  args = good;
  args.logits.row_stride = 9;
  CHECK_ERROR(treeattn_cuda_verify(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "logits.row_stride", "9", "10");
  args = good;
  args.logits.dtype = (treeattn_dtype)7;
  CHECK_ERROR(treeattn_cuda_verify(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "logits.dtype", "7", NULL);
  args = good;
  args.path = good.path_tokens;
  CHECK_ERROR(treeattn_cuda_verify_scratch_bytes(&args, NULL, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "scratch_bytes",
              NULL, NULL);
  CHECK_ERROR(treeattn_cuda_verify(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "path", "overlap", NULL);
  args = good;
  args.num_path = NULL;
  CHECK_ERROR(treeattn_cuda_verify(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "num_path is NULL", NULL, NULL);
  TD_NEED_DEVICE();
  device_buffer scratch = td_alloc(bytes);
  args = good;
  args.scratch = scratch.data;
  args.scratch_bytes = bytes - 1;
  CHECK_ERROR(treeattn_cuda_verify(&args, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL, "scratch_bytes", NULL, NULL);
  args.scratch_bytes = bytes;
  CHECK_ERROR(treeattn_cuda_verify(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "not device memory", NULL, NULL);
  td_free(&scratch);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_batches), cmocka_unit_test(test_large_vocabularies),
      cmocka_unit_test(test_exact_sums),     cmocka_unit_test(test_many_nodes),
      cmocka_unit_test(test_bad_values),     cmocka_unit_test(test_absent_arrays),
      cmocka_unit_test(test_host_refusals),
  };
  return cmocka_run_group_tests_name("cuda_verify", tests, NULL, NULL);
}
