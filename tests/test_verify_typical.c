/* SPDX-License-Identifier: Apache-2.0 */
/* Typical acceptance: the published threshold, the deepest path, and what happens at equals. */
#include <math.h>
#include <string.h>

#include "support/check.h"
#include "support/halves.h"
#include "support/trees.h"
#include "support/verify_run.h"

typedef struct row {
  long double p[64];
  long double threshold;
} row;

static row row_of_logits(const float *logits, int vocab_size, float temperature, double epsilon, double delta) {
  row result = {{0}, 0};
  long double largest = -INFINITY, total = 0, entropy = 0;
  for (int t = 0; t < vocab_size; t++) {
    largest = fmaxl(largest, (long double)logits[t]);
  }
  for (int t = 0; t < vocab_size; t++) {
    result.p[t] = expl(((long double)logits[t] - largest) / (long double)temperature);
    total += result.p[t];
  }
  for (int t = 0; t < vocab_size; t++) {
    result.p[t] /= total;
    entropy -= result.p[t] > 0 ? result.p[t] * logl(result.p[t]) : 0;
  }
  result.threshold = fminl((long double)epsilon, (long double)delta * expl(-entropy));
  return result;
}

static void random_trees_follow_the_published_rule(void **state) {
  (void)state;
  static const int sizes[] = {1, 2, 5, 33, 64, 300};
  static verify_outcome outcome;
  static int32_t parents[300], tokens[300], depth[300];
  static float logits[300 * 64], probs[300 * 64];
  static row rows[300];
  int64_t accepted = 0;
  const int trials = trial_count(300, 60);
  for (int trial = 0; trial < trials; trial++) {
    rng r;
    const int index = trial_begin(&r, 13, trial);
    const int num_nodes = sizes[index % 6];
    const int vocab_size = rng_range(&r, 1, 64);
    const bool defaults = index % 4 == 0;
    const float epsilon = defaults ? 0.09f : 0.02f + 0.3f * (float)rng_below(&r, 2);
    const float delta = defaults ? 0.3f : 0.1f + 0.7f * (float)rng_below(&r, 2);
    const float temperature = index % 3 == 0 ? 1.0f : 0.4f + (float)rng_below(&r, 3);
    tree_make((tree_shape)(index / 6 % NUM_TREE_SHAPES), num_nodes, &r, parents);
    for (int i = 0; i < num_nodes; i++) {
      for (int t = 0; t < vocab_size; t++) {
        logits[i * vocab_size + t] = rng_signed(&r) * 6.0f;
      }
      /* 0.09 in the library is the double, of the caller's float what the float is */
      rows[i] = row_of_logits(logits + i * vocab_size, vocab_size, temperature, defaults ? 0.09 : (double)epsilon,
                              defaults ? 0.3 : (double)delta);
      tokens[i] = rng_below(&r, vocab_size);
      for (int t = 0; t < vocab_size && parents[i] >= 0 && !rng_chance(&r, 3); t++) {
        tokens[i] = rows[parents[i]].p[t] > rows[parents[i]].p[tokens[i]] ? t : tokens[i];
      }
    }
    /* By the rule, over all nodes. */
    static long double likelihood[300];
    static bool good[300];
    int best = 0;
    for (int i = 0; i < num_nodes; i++) {
      good[i] = i == 0;
      depth[i] = 0;
      likelihood[i] = 0;
      if (parents[i] >= 0 && good[parents[i]]) {
        const long double p = rows[parents[i]].p[tokens[i]];
        CHECK(fabsl(p - rows[parents[i]].threshold) > 1e-12L, "too close to call, seed %llu",
              (unsigned long long)trial_seed());
        good[i] = p > rows[parents[i]].threshold;
        depth[i] = depth[parents[i]] + 1;
        likelihood[i] = likelihood[parents[i]] + logl(p);
      }
      if (good[i] &&
          (depth[i] > depth[best] || (depth[i] == depth[best] && likelihood[i] > likelihood[best] + 1e-12L))) {
        best = i;
      }
    }
    treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
    request.method = TREEATTN_VERIFY_TYPICAL_LOSSY;
    request.temperature = temperature;
    request.num_nodes = num_nodes;
    request.parents = parents;
    request.tokens = tokens;
    request.logits = verify_rows_f32(logits, num_nodes, vocab_size);
    request.typical_epsilon = defaults ? 0.0f : epsilon;
    request.typical_delta = defaults ? 0.0f : delta;
    CHECK_OK(verify_run(&request, vocab_size, &outcome, &error));
    CHECK(outcome.num_path == depth[best] + 1 && outcome.path[outcome.num_path - 1] == best,
          "ends at node %d instead of %d, seed %llu", (int)outcome.path[outcome.num_path - 1], best,
          (unsigned long long)trial_seed());
    for (int n = 1; n < outcome.num_path; n++) {
      assert_int_equal(parents[outcome.path[n]], outcome.path[n - 1]);
      assert_int_equal(tokens[outcome.path[n]], outcome.tokens[n - 1]);
    }
    const int32_t last = outcome.tokens[outcome.num_path - 1];
    for (int t = 0; t < vocab_size; t++) {
      const float *logits_of_best = logits + best * vocab_size;
      CHECK(logits_of_best[t] < logits_of_best[last] || t == last ||
                (logits_of_best[t] == logits_of_best[last] && t > last),
            "the last token is no argmax");
    }
    for (int n = 0; n + 1 < outcome.num_decisions; n++) {
      const treeattn_verify_decision *d = &outcome.decisions[n];
      CHECK(fabs(d->threshold - (double)rows[d->row].threshold) < 1e-12 &&
                fabs(d->probability - (double)rows[d->row].p[d->token]) < 1e-12 && d->accepted == good[d->node],
            "decision %d, seed %llu", n, (unsigned long long)trial_seed());
    }
    accepted += outcome.num_path - 1;
    /* The same from probabilities, as far as they are the same numbers. */
    if (temperature == 1.0f) {
      for (int n = 0; n < num_nodes * vocab_size; n++) {
        probs[n] = (float)rows[n / vocab_size].p[n % vocab_size];
      }
      request.logits.data = NULL;
      request.probs = verify_rows_f32(probs, num_nodes, vocab_size);
      CHECK_OK(verify_run(&request, vocab_size, &outcome, &error));
      assert_int_equal(outcome.num_path, depth[best] + 1);
    }
  }
  CHECK(accepted > trials, "only %lld drafts accepted in %d trials", (long long)accepted, trials);
}

static verify_outcome outcome;

static treeattn_verify_request scripted(int num_nodes, const int32_t *parents, const int32_t *tokens,
                                        const float *probs) {
  treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
  request.method = TREEATTN_VERIFY_TYPICAL_LOSSY;
  request.num_nodes = num_nodes;
  request.parents = parents;
  request.tokens = tokens;
  request.probs = verify_rows_f32(probs, num_nodes, 4);
  return request;
}

static void equals_and_thresholds(void **state) {
  (void)state;
  /* One-hot: H = 0, so the threshold is min(epsilon, delta). */
  const int32_t parents[] = {-1, 0, 0, 1, 2};
  const int32_t tokens[] = {0, 0, 1, 2, 3};
  float probs[5][4] = {{0.5f, 0.5f, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}, {1, 0, 0, 0}, {0, 1, 0, 0}};
  treeattn_verify_request request = scripted(5, parents, tokens, &probs[0][0]);
  CHECK_OK(verify_run(&request, 4, &outcome, &error));
  assert_int_equal(outcome.num_path, 3);
  assert_int_equal(outcome.path[2], 3); /* equally deep, equally probable: the lower index */
  assert_int_equal(outcome.tokens[2], 0);
  probs[0][1] = 0.75f;
  probs[0][0] = 0.25f;
  CHECK_OK(verify_run(&request, 4, &outcome, &error));
  assert_int_equal(outcome.path[2], 4); /* the more probable path */
  request.typical_epsilon = 0.25f;
  request.typical_delta = 4.0f;
  CHECK_OK(verify_run(&request, 4, &outcome, &error));
  assert_int_equal(outcome.decisions[0].accepted, 0); /* p must exceed the threshold, not reach it */
  assert_true(outcome.decisions[0].probability == 0.25 && outcome.decisions[0].threshold == 0.25);
  assert_true(isnan(outcome.decisions[0].uniform));
  request.typical_epsilon = nextafterf(0.25f, 0.0f);
  CHECK_OK(verify_run(&request, 4, &outcome, &error));
  assert_int_equal(outcome.decisions[0].accepted, 1);
  request.typical_epsilon = 2.0f; /* nothing is that likely */
  CHECK_OK(verify_run(&request, 4, &outcome, &error));
  assert_int_equal(outcome.num_path, 1);
  assert_int_equal(outcome.tokens[0], 1);
}

static void bad_input_is_refused(void **state) {
  (void)state;
  const int32_t parents[] = {-1, 0, 1};
  const int32_t tokens[] = {0, 0, 0};
  float probs[3][4] = {{1, 0, 0, 0}, {1, 0, 0, 0}, {0, 0, 1, 0}};
  treeattn_verify_request request = scripted(3, parents, tokens, &probs[0][0]);
  probs[2][1] = NAN; /* the row of the last token */
  CHECK_ERROR(verify_run(&request, 4, &outcome, &error), TREEATTN_ERROR_INVALID_VALUE, "probs[2][1]", "NaN", NULL);
  probs[2][1] = 0;
  probs[1][3] = NAN;
  CHECK_ERROR(verify_run(&request, 4, &outcome, &error), TREEATTN_ERROR_INVALID_VALUE, "probs[1][3]", "NaN", NULL);
  probs[0][0] = 0;
  probs[0][1] = 1; /* now row 1 is not reached */
  CHECK_OK(verify_run(&request, 4, &outcome, &error));
  assert_int_equal(outcome.num_path, 1);
  const float bad[] = {NAN, -0.1f, INFINITY};
  for (int n = 0; n < 3; n++) {
    request.typical_epsilon = bad[n];
    CHECK_ERROR(verify_run(&request, 4, &outcome, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "typical_epsilon", NULL,
                NULL);
    request.typical_epsilon = 0;
    request.typical_delta = bad[n];
    CHECK_ERROR(verify_run(&request, 4, &outcome, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "typical_delta", NULL,
                NULL);
    request.typical_delta = 0;
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_trees_follow_the_published_rule),
      cmocka_unit_test(equals_and_thresholds),
      cmocka_unit_test(bad_input_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
