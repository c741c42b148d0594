/* SPDX-License-Identifier: Apache-2.0 */
/* Greedy verification: exactly the tokens of greedy decoding, whatever the tree and wherever the ids come from. */
#include <math.h>
#include <string.h>

#include "support/check.h"
#include "support/guard.h"
#include "support/halves.h"
#include "support/trees.h"
#include "support/verify_run.h"

enum { V = 8 };

/* ---- scripted ---- */

typedef struct script {
  const char *name;
  int num_nodes;
  int32_t parents[6];
  int32_t tokens[6];
  float logits[6][V];
  int expected_length;
  int32_t expected_path[6];
  int32_t expected_tokens[6];
} script;

#define PEAK0 \
  { 9, 1, 2, 3, 4, 5, 6, 7 }
#define PEAK1 \
  { 1, 9, 2, 3, 4, 5, 6, 7 }
#define PEAK2 \
  { 1, 2, 9, 3, 4, 5, 6, 7 }
#define PEAK3 \
  { 1, 2, 3, 9, 4, 5, 6, 7 }
#define PEAK4 \
  { 1, 2, 3, 4, 9, 5, 6, 7 }
#define PEAK7 \
  { 1, 2, 3, 4, 5, 6, 7, 9 }
#define TIE25 \
  { 0, 1, 9, 1, 1, 9, 1, 0 }
#define NEGATIVE3 \
  { -8, -7, -6, -1, -2, -3, -4, -5 }

static const script scripts[] = {
    {"the first draft is rejected", 3, {-1, 0, 1}, {0, 5, 6}, {PEAK4, PEAK0, PEAK0}, 1, {0}, {4}},
    {"all drafts of a chain are accepted",
     4,
     {-1, 0, 1, 2},
     {0, 1, 2, 3},
     {PEAK1, PEAK2, PEAK3, PEAK7},
     4,
     {0, 1, 2, 3},
     {1, 2, 3, 7}},
    {"a prefix is accepted", 4, {-1, 0, 1, 2}, {0, 1, 2, 3}, {PEAK1, PEAK2, PEAK7, PEAK4}, 3, {0, 1, 2}, {1, 2, 7}},
    {"the right token is the second sibling",
     5,
     {-1, 0, 0, 1, 2},
     {0, 5, 1, 1, 2},
     {PEAK1, PEAK1, PEAK2, PEAK7, PEAK3},
     3,
     {0, 2, 4},
     {1, 2, 3}},
    {"a tie goes to the lowest id", 3, {-1, 0, 0}, {0, 5, 2}, {TIE25, PEAK7, PEAK4}, 2, {0, 2}, {2, 4}},
    {"a tie in the last row too", 1, {-1}, {0}, {TIE25}, 1, {0}, {2}},
    {"logits that are all negative", 2, {-1, 0}, {0, 3}, {NEGATIVE3, NEGATIVE3}, 2, {0, 1}, {3, 3}},
    {"a tree of one node", 1, {-1}, {6}, {PEAK7}, 1, {0}, {7}},
    {"of duplicate siblings the first",
     5,
     {-1, 0, 0, 1, 2},
     {0, 1, 1, 2, 3},
     {PEAK1, PEAK3, PEAK3, PEAK0, PEAK0},
     2,
     {0, 1},
     {1, 3}},
    {"other roots are out of reach", 4, {-1, -1, 1, 0}, {0, 1, 1, 2}, {PEAK1, PEAK1, PEAK1, PEAK1}, 1, {0}, {1}},
    {"children that do not follow their parent at once",
     5,
     {-1, 0, 0, 1, 1},
     {0, 1, 2, 3, 4},
     {PEAK1, PEAK4, PEAK0, PEAK0, PEAK7},
     3,
     {0, 1, 4},
     {1, 4, 7}},
    {"the root's token is no candidate", 2, {-1, 0}, {1, 2}, {PEAK1, PEAK0}, 1, {0}, {1}},
};

static void check_outcome(const script *s, const char *source, int64_t num_path, const int32_t *path,
                          const int32_t *tokens) {
  CHECK(num_path == s->expected_length, "%s, from %s: %lld tokens instead of %d", s->name, source, (long long)num_path,
        s->expected_length);
  for (int n = 0; n < s->expected_length; n++) {
    CHECK(path[n] == s->expected_path[n] && tokens[n] == s->expected_tokens[n],
          "%s, from %s: entry %d is node %d, token %d", s->name, source, n, (int)path[n], (int)tokens[n]);
  }
}

static void scripted_logits(void **state) {
  (void)state;
  static verify_outcome outcome;
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  for (size_t c = 0; c < sizeof scripts / sizeof scripts[0]; c++) {
    const script *s = &scripts[c];
    int32_t argmax[6];
    float probs[6][V];
    for (int i = 0; i < s->num_nodes; i++) {
      argmax[i] = 0;
      for (int t = 0; t < V; t++) {
        argmax[i] = s->logits[i][t] > s->logits[i][argmax[i]] ? t : argmax[i];
        probs[i][t] = expf(s->logits[i][t]);
      }
    }
    treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
    request.num_nodes = s->num_nodes;
    request.parents = s->parents;
    request.tokens = s->tokens;
    request.argmax = argmax;
    CHECK_OK(verify_run(&request, V, &outcome, &error));
    check_outcome(s, "argmax", outcome.num_path, outcome.path, outcome.tokens);
    CHECK_OK(verify_run(&request, 0, &outcome, &error));
    check_outcome(s, "argmax without vocab_size", outcome.num_path, outcome.path, outcome.tokens);
    int32_t path[6], tokens[6];
    int64_t num_path;
    CHECK_OK(treeattn_verify_greedy(s->num_nodes, s->parents, s->tokens, argmax, path, tokens, &num_path, &error));
    check_outcome(s, "treeattn_verify_greedy", num_path, path, tokens);
    request.argmax = NULL;
    for (int d = 0; d < 3; d++) {
      guarded data = guarded_new((size_t)(s->num_nodes * V) * treeattn_dtype_bytes(dtypes[d]), false);
      for (int i = 0; i < s->num_nodes * V; i++) {
        element_store(dtypes[d], data.data, i, s->logits[i / V][i % V]);
      }
      request.logits = (treeattn_verify_rows){data.data, data.bytes, dtypes[d], 0};
      CHECK_OK(verify_run(&request, V, &outcome, &error));
      check_outcome(s, treeattn_dtype_name(dtypes[d]), outcome.num_path, outcome.path, outcome.tokens);
      /* Any method at temperature 0, without uniforms and draft probabilities. */
      for (int m = TREEATTN_VERIFY_GREEDY; m <= TREEATTN_VERIFY_TYPICAL_LOSSY; m++) {
        request.method = (treeattn_verify_method)m;
        request.temperature = 0;
        CHECK_OK(verify_run(&request, V, &outcome, &error));
        check_outcome(s, treeattn_verify_method_name(request.method), outcome.num_path, outcome.path, outcome.tokens);
      }
      request.method = TREEATTN_VERIFY_GREEDY;
      request.temperature = NAN; /* ignored */
      CHECK_OK(verify_run(&request, V, &outcome, &error));
      guarded_free(&data);
    }
    request.temperature = 1;
    request.logits.data = NULL;
    request.probs = verify_rows_f32(&probs[0][0], s->num_nodes, V);
    CHECK_OK(verify_run(&request, V, &outcome, &error));
    check_outcome(s, "probs", outcome.num_path, outcome.path, outcome.tokens);
  }
}

/* ---- random trees against decoding one by one ---- */

static int32_t decode_next(uint64_t seed, const int32_t *context, int length, int vocab_size) {
  int32_t best = 0;
  for (int t = 1; t < vocab_size; t++) {
    if (verify_hash(seed, context, length, t) % 50 > verify_hash(seed, context, length, best) % 50) { /* with ties */
      best = t;
    }
  }
  return best;
}

static void random_trees_equal_decoding_one_by_one(void **state) {
  (void)state;
  static const int sizes[] = {1, 2, 3, 31, 32, 33, 63, 64, 65, 128, 257, 1025};
  static verify_outcome outcome;
  static int32_t parents[VERIFY_MAX_NODES], tokens[VERIFY_MAX_NODES], context[VERIFY_MAX_NODES + 1];
  int64_t emitted = 0;
  const int trials = trial_count(400, 60);
  for (int trial = 0; trial < trials; trial++) {
    rng r;
    const int index = trial_begin(&r, 5, trial);
    const int num_nodes = sizes[index % 12];
    const int vocab_size = rng_range(&r, 1, 20);
    const uint64_t seed = rng_next(&r);
    tree_make((tree_shape)(index / 12 % NUM_TREE_SHAPES), num_nodes, &r, parents);
    float *logits = malloc((size_t)(num_nodes * vocab_size) * sizeof *logits);
    CHECK(logits != NULL, "out of memory");
    for (int i = 0; i < num_nodes; i++) {
      tokens[i] = rng_below(&r, vocab_size);
      if (parents[i] >= 0 && !rng_chance(&r, 4)) { /* often the right guess */
        const int length = verify_context(parents, tokens, parents[i], context);
        tokens[i] = decode_next(seed, context, length, vocab_size);
      }
      const int length = verify_context(parents, tokens, i, context);
      for (int t = 0; t < vocab_size; t++) {
        logits[i * vocab_size + t] = (float)(verify_hash(seed, context, length, t) % 50) - 30.0f;
      }
    }
    treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
    request.num_nodes = num_nodes;
    request.parents = parents;
    request.tokens = tokens;
    request.logits = verify_rows_f32(logits, num_nodes, vocab_size);
    CHECK_OK(verify_run(&request, vocab_size, &outcome, &error));
    context[0] = tokens[0];
    for (int n = 0; n < outcome.num_path; n++) {
      const int32_t next = decode_next(seed, context, n + 1, vocab_size);
      CHECK(outcome.tokens[n] == next, "token %d is %d instead of %d", n, (int)outcome.tokens[n], (int)next);
      context[n + 1] = next;
    }
    for (int n = 1; n < outcome.num_path; n++) {
      const int32_t node = outcome.path[n];
      CHECK(parents[node] == outcome.path[n - 1] && tokens[node] == outcome.tokens[n - 1], "node %d is off the path",
            (int)node);
    }
    /* The longest match: no child of the last node would have gone on. */
    const int32_t last = outcome.path[outcome.num_path - 1];
    for (int i = 0; i < num_nodes; i++) {
      CHECK(parents[i] != last || tokens[i] != outcome.tokens[outcome.num_path - 1], "node %d was passed over", i);
    }
    emitted += outcome.num_path;
    free(logits);
  }
  CHECK(emitted > 2 * trials, "only %lld tokens in %d trials", (long long)emitted, trials);
}

/* ---- what is not read, and what is refused ---- */

static void rows_off_the_path_are_not_read(void **state) {
  (void)state;
  static verify_outcome outcome;
  const int32_t parents[] = {-1, 0, 0, 1, 2};
  const int32_t tokens[] = {0, 1, 2, 3, 4};
  float logits[5][V];
  memset(logits, 0xff, sizeof logits); /* NaN */
  memcpy(logits[0], (float[V])PEAK2, sizeof logits[0]);
  memcpy(logits[2], (float[V])PEAK4, sizeof logits[2]);
  memcpy(logits[4], (float[V])PEAK0, sizeof logits[4]);
  treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
  request.num_nodes = 5;
  request.parents = parents;
  request.tokens = tokens;
  request.logits = verify_rows_f32(&logits[0][0], 5, V);
  CHECK_OK(verify_run(&request, V, &outcome, &error));
  assert_int_equal(outcome.num_path, 3);
  assert_int_equal(outcome.tokens[2], 0);
  logits[4][6] = NAN;
  CHECK_ERROR(verify_run(&request, V, &outcome, &error), TREEATTN_ERROR_INVALID_VALUE, "logits[4][6]", "NaN", "node 4");
  for (int t = 0; t < V; t++) {
    logits[4][t] = -INFINITY;
  }
  CHECK_ERROR(verify_run(&request, V, &outcome, &error), TREEATTN_ERROR_INVALID_VALUE, "logits[4]", "-infinity",
              "node 4");
  logits[4][3] = INFINITY;
  CHECK_OK(verify_run(&request, V, &outcome, &error));
  assert_int_equal(outcome.tokens[2], 3);
  const int32_t argmax[] = {2, -9, 4, 99, 8};
  request.logits.data = NULL;
  request.argmax = argmax;
  CHECK_ERROR(verify_run(&request, V, &outcome, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "argmax[4]", "8", NULL);
  CHECK_OK(verify_run(&request, 0, &outcome, &error)); /* no vocabulary, no bound */
  assert_int_equal(outcome.tokens[2], 8);
}

static void bad_probabilities_are_refused(void **state) {
  (void)state;
  static verify_outcome outcome;
  const int32_t parents[] = {-1, 0};
  const int32_t tokens[] = {0, 1};
  float probs[2][3] = {{0.25f, 0.5f, 0.25f}, {0, 0, 0}};
  treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
  request.num_nodes = 2;
  request.parents = parents;
  request.tokens = tokens;
  request.probs = verify_rows_f32(&probs[0][0], 2, 3);
  CHECK_ERROR(verify_run(&request, 3, &outcome, &error), TREEATTN_ERROR_INVALID_VALUE, "probs[1]", "0", "node 1");
  static const float bad[] = {NAN, -0.25f, INFINITY, -INFINITY};
  for (int n = 0; n < 4; n++) {
    probs[1][2] = bad[n];
    CHECK_ERROR(verify_run(&request, 3, &outcome, &error), TREEATTN_ERROR_INVALID_VALUE, "probs[1][2]", NULL, NULL);
  }
  probs[1][2] = 1e-45f;
  CHECK_OK(verify_run(&request, 3, &outcome, &error));
  assert_int_equal(outcome.tokens[1], 2);
}

static void decisions_tell_the_walk(void **state) {
  (void)state;
  static verify_outcome outcome;
  const int32_t parents[] = {-1, 0, 0, 0, 2};
  const int32_t tokens[] = {0, 5, 6, 6, 1};
  const int32_t argmax[] = {6, 0, 3, 0, 0};
  treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
  request.num_nodes = 5;
  request.parents = parents;
  request.tokens = tokens;
  request.argmax = argmax;
  CHECK_OK(verify_run(&request, 0, &outcome, &error));
  static const int32_t expected[][4] = {{0, 1, 5, 0}, {0, 2, 6, 1}, {2, 4, 1, 0}, {2, -1, 3, 1}};
  assert_int_equal(outcome.num_decisions, 4);
  for (int n = 0; n < 4; n++) {
    const treeattn_verify_decision *d = &outcome.decisions[n];
    CHECK(d->row == expected[n][0] && d->node == expected[n][1] && d->token == expected[n][2] &&
              d->accepted == expected[n][3] && d->probability == expected[n][3] && isnan(d->uniform),
          "decision %d: row %d, node %d, token %d", n, (int)d->row, (int)d->node, (int)d->token);
  }
}

static void the_short_form_refuses_without_writing(void **state) {
  (void)state;
  const int32_t parents[] = {-1, 0, 1};
  const int32_t tokens[] = {-5, 1, 2}; /* the root's is not read */
  int32_t argmax[] = {1, 2, 3};
  int32_t path[3] = {-7, -7, -7}, out[3] = {-7, -7, -7};
  int64_t num_path = -7;
#define GREEDY(n, par, tok, arg, pat, ou, num) treeattn_verify_greedy(n, par, tok, arg, pat, ou, num, &error)
  CHECK_ERROR(GREEDY(-1, parents, tokens, argmax, path, out, &num_path), TREEATTN_ERROR_INVALID_ARGUMENT, "num_nodes",
              "-1", NULL);
  CHECK_ERROR(GREEDY(3, NULL, tokens, argmax, path, out, &num_path), TREEATTN_ERROR_INVALID_ARGUMENT, "parents", "NULL",
              NULL);
  CHECK_ERROR(GREEDY(3, parents, NULL, argmax, path, out, &num_path), TREEATTN_ERROR_INVALID_ARGUMENT, "tokens", "NULL",
              NULL);
  CHECK_ERROR(GREEDY(3, parents, tokens, NULL, path, out, &num_path), TREEATTN_ERROR_INVALID_ARGUMENT, "argmax", "NULL",
              NULL);
  CHECK_ERROR(GREEDY(3, parents, tokens, argmax, NULL, out, &num_path), TREEATTN_ERROR_INVALID_ARGUMENT, "path", "NULL",
              NULL);
  CHECK_ERROR(GREEDY(3, parents, tokens, argmax, path, NULL, &num_path), TREEATTN_ERROR_INVALID_ARGUMENT, "tokens_out",
              "NULL", NULL);
  CHECK_ERROR(GREEDY(3, parents, tokens, argmax, path, out, NULL), TREEATTN_ERROR_INVALID_ARGUMENT, "num_path", "NULL",
              NULL);
  const int32_t cycle[] = {-1, 2, 1};
  CHECK_ERROR(GREEDY(3, cycle, tokens, argmax, path, out, &num_path), TREEATTN_ERROR_INVALID_TREE, "parents[1]", "2",
              NULL);
  argmax[2] = -1;
  CHECK_ERROR(GREEDY(3, parents, tokens, argmax, path, out, &num_path), TREEATTN_ERROR_INVALID_ARGUMENT, "argmax[2]",
              "-1", NULL);
  const int32_t negative[] = {0, 1, -2};
  argmax[2] = 0;
  CHECK_ERROR(GREEDY(3, parents, negative, argmax, path, out, &num_path), TREEATTN_ERROR_INVALID_ARGUMENT, "tokens[2]",
              "-2", NULL);
  assert_true(num_path == -7 && path[0] == -7 && out[0] == -7);
  CHECK_OK(GREEDY(3, parents, tokens, argmax, path, out, &num_path));
  assert_int_equal(num_path, 3);
  CHECK_OK(GREEDY(0, NULL, NULL, NULL, NULL, NULL, &num_path));
  assert_int_equal(num_path, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(scripted_logits),
      cmocka_unit_test(random_trees_equal_decoding_one_by_one),
      cmocka_unit_test(rows_off_the_path_are_not_read),
      cmocka_unit_test(bad_probabilities_are_refused),
      cmocka_unit_test(decisions_tell_the_walk),
      cmocka_unit_test(the_short_form_refuses_without_writing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
