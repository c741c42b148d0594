/* SPDX-License-Identifier: Apache-2.0 */
/* From uniforms to decisions: the edges of every comparison, the order in which coins are used, and what a row means. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/check.h"
#include "support/halves.h"
#include "support/verify_run.h"
#include "verify.h"
#include "verify_math.h"

static const float just_under_one = 1.0f - 0x1.0p-24f;

/* A star of `num_tokens` drafts in which every node has the same row. */
static treeattn_verify_request star(treeattn_verify_method method, const int32_t *tokens, int num_tokens,
                                    int vocab_size, const float *p, const float *q, const float *uniforms,
                                    int num_uniforms) {
  static int32_t parents[VERIFY_MAX_NODES], all_tokens[VERIFY_MAX_NODES];
  static float probs[1 << 16], drafts[1 << 16];
  treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
  const int num_nodes = num_tokens + 1;
  CHECK(num_nodes * vocab_size <= 1 << 16, "too large");
  for (int i = 0; i < num_nodes; i++) {
    parents[i] = i == 0 ? -1 : 0;
    all_tokens[i] = i == 0 ? -3 : tokens[i - 1]; /* the root's is not read */
    memcpy(probs + i * vocab_size, p, (size_t)vocab_size * sizeof *p);
    if (q != NULL) {
      memcpy(drafts + i * vocab_size, q, (size_t)vocab_size * sizeof *q);
    }
  }
  request.method = method;
  request.num_nodes = num_nodes;
  request.parents = parents;
  request.tokens = all_tokens;
  request.probs = verify_rows_f32(probs, num_nodes, vocab_size);
  if (q != NULL) {
    request.draft_probs = verify_rows_f32(drafts, num_nodes, vocab_size);
  }
  request.uniforms = uniforms;
  request.num_uniforms = num_uniforms;
  return request;
}

static bool accepts(treeattn_verify_method method, int32_t token, int vocab_size, const float *p, const float *q,
                    float uniform) {
  static verify_outcome outcome;
  const float uniforms[] = {uniform, 0.5f};
  const treeattn_verify_request request = star(method, &token, 1, vocab_size, p, q, uniforms, 2);
  CHECK_OK(verify_run(&request, vocab_size, &outcome, &error));
  return outcome.num_path == 2;
}

static int32_t draws(int vocab_size, const float *p, float uniform) {
  static verify_outcome outcome;
  const treeattn_verify_request request = star(TREEATTN_VERIFY_TARGET_ONLY, NULL, 0, vocab_size, p, NULL, &uniform, 1);
  CHECK_OK(verify_run(&request, vocab_size, &outcome, &error));
  return outcome.tokens[0];
}

static void a_coin_accepts_below_the_probability_only(void **state) {
  (void)state;
  const treeattn_verify_method chosen = TREEATTN_VERIFY_TARGET_ONLY;
  const float quarter[] = {0.25f, 0.75f};
  assert_true(accepts(chosen, 0, 2, quarter, NULL, 0.0f));
  assert_true(accepts(chosen, 0, 2, quarter, NULL, nextafterf(0.25f, 0.0f)));
  assert_false(accepts(chosen, 0, 2, quarter, NULL, 0.25f));
  assert_false(accepts(chosen, 0, 2, quarter, NULL, just_under_one));
  const float sure[] = {0.0f, 3.0f};
  assert_true(accepts(chosen, 1, 2, sure, NULL, 0.0f));
  assert_true(accepts(chosen, 1, 2, sure, NULL, just_under_one));
  assert_false(accepts(chosen, 0, 2, sure, NULL, 0.0f));
  assert_true(accepts(chosen, 1, 2, sure, NULL, -0.0f)); /* -0 is 0 */
  for (int m = TREEATTN_VERIFY_RESIDUAL; m <= TREEATTN_VERIFY_WITHOUT_REPLACEMENT; m++) {
    const treeattn_verify_method drawn = (treeattn_verify_method)m;
    const float half[] = {0.5f, 0.5f};
    assert_true(accepts(drawn, 1, 2, quarter, half, just_under_one)); /* p > q */
    assert_true(accepts(drawn, 0, 2, quarter, half, nextafterf(0.5f, 0.0f)));
    assert_false(accepts(drawn, 0, 2, quarter, half, 0.5f));
    const float other[] = {1.0f, 0.0f};
    assert_false(accepts(drawn, 0, 2, sure, other, 0.0f));                      /* disjoint */
    assert_true(accepts(drawn, 1, 2, sure, other, just_under_one));             /* q = 0, p = 1: as target-only */
    assert_true(accepts(drawn, 1, 2, quarter, other, nextafterf(0.75f, 0.0f))); /* q = 0: as target-only, */
    assert_false(accepts(drawn, 1, 2, quarter, other, 0.75f));                  /* not accepted blindly */
  }
}

static void a_draw_takes_the_first_sum_above_the_uniform(void **state) {
  (void)state;
  const float p[] = {0.25f, 0.25f, 0.5f};
  assert_int_equal(draws(3, p, 0.0f), 0);
  assert_int_equal(draws(3, p, nextafterf(0.25f, 0.0f)), 0);
  assert_int_equal(draws(3, p, 0.25f), 1);
  assert_int_equal(draws(3, p, nextafterf(0.5f, 0.0f)), 1);
  assert_int_equal(draws(3, p, 0.5f), 2);
  assert_int_equal(draws(3, p, just_under_one), 2);
  const float gaps[] = {0.0f, 1.0f, 0.0f, 1.0f, 0.0f};
  assert_int_equal(draws(5, gaps, 0.0f), 1);
  assert_int_equal(draws(5, gaps, nextafterf(0.5f, 0.0f)), 1);
  assert_int_equal(draws(5, gaps, 0.5f), 3);
  assert_int_equal(draws(5, gaps, just_under_one), 3);
  float even[1024]; /* four blocks of the library's, whose edges are sums that a uniform hits exactly */
  for (int t = 0; t < 1024; t++) {
    even[t] = 1.0f;
  }
  for (int t = 1; t < 1024; t++) {
    assert_int_equal(draws(1024, even, (float)t / 1024.0f), t);
    assert_int_equal(draws(1024, even, nextafterf((float)t / 1024.0f, 0.0f)), t - 1);
  }
}

/* Rows of many blocks, with blocks of zeros, against sums in long double. */
static void draws_follow_the_cumulative_sum(void **state) {
  (void)state;
  static const int sizes[] = {1, 2, 255, 256, 257, 511, 512, 513, 1000, 4096};
  for (int n = 0; n < trial_count(600, 100); n++) {
    rng r;
    const int index = trial_begin(&r, 8, n);
    const int vocab_size = sizes[index % 10];
    static float p[4096];
    static long double sums[4096];
    long double total = 0;
    const int dense = rng_below(&r, 3);
    for (int t = 0; t < vocab_size; t++) {
      const bool zero = dense == 0 ? !rng_chance(&r, 100) : dense == 1 && t / 256 % 2 == 0;
      p[t] = zero && t != vocab_size / 2 ? 0.0f : ldexpf((float)rng_range(&r, 1, 1000), -rng_below(&r, 20));
      total += (long double)p[t];
      sums[t] = total;
    }
    for (int k = 0; k < 20; k++) {
      float uniform = (float)(rng_next(&r) >> 40) * 0x1.0p-24f;
      if (k < 2) {
        uniform = k == 0 ? 0.0f : just_under_one;
      } else if (k < 10) { /* a uniform next to a sum */
        uniform = (float)(sums[rng_below(&r, vocab_size)] / total);
        uniform = fminf(k % 2 == 0 ? uniform : nextafterf(uniform, 0.0f), just_under_one);
      }
      const int32_t token = draws(vocab_size, p, uniform);
      const long double wanted = (long double)uniform * total;
      const long double slack = total * 1e-15L;
      CHECK(p[token] > 0, "token %d has probability 0, seed %llu", (int)token, (unsigned long long)trial_seed());
      CHECK(sums[token] >= wanted - slack && (token == 0 || sums[token - 1] <= wanted + slack),
            "uniform %.9g gives token %d of %d, seed %llu", (double)uniform, (int)token, vocab_size,
            (unsigned long long)trial_seed());
    }
  }
}

static void coins_are_used_in_order_and_once(void **state) {
  (void)state;
  static verify_outcome outcome;
  const float p[] = {0.25f, 0.25f, 0.25f, 0.25f};
  const float q[] = {0.7f, 0.1f, 0.1f, 0.1f};
  const int32_t tokens[] = {0, 0, 1, 0, 2};
  /* After two rejections of token 0 the others have p = 1/3: 0.9 rejects 1, token 0 has nothing left, 0.1 accepts 2. */
  float uniforms[] = {0.8f, 0.0f, 0.9f, 0.0f, 0.1f, 0.6f, NAN, NAN};
  for (int given = 0; given <= 8; given++) {
    const treeattn_verify_request request = star(TREEATTN_VERIFY_TARGET_ONLY, tokens, 5, 4, p, q, uniforms, given);
    if (given < 6) {
      CHECK_ERROR(verify_run(&request, 4, &outcome, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "num_uniforms", "6",
                  given == 5 ? "node 5" : "node 0");
      continue;
    }
    CHECK_OK(verify_run(&request, 4, &outcome, &error));
    assert_int_equal(outcome.num_decisions, 6);
    static const struct {
      int row, node, token, accepted;
      double probability;
    } expected[] = {{0, 1, 0, 0, 0.25}, {0, 2, 0, 0, 0.0}, {0, 3, 1, 0, 1.0 / 3},
                    {0, 4, 0, 0, 0.0},  {0, 5, 2, 1, 0.5}, {5, -1, 2, 1, 0.25}};
    for (int n = 0; n < 6; n++) {
      const treeattn_verify_decision *d = &outcome.decisions[n];
      CHECK(d->row == expected[n].row && d->node == expected[n].node && d->token == expected[n].token &&
                d->accepted == expected[n].accepted && fabs(d->probability - expected[n].probability) < 1e-15 &&
                d->uniform == (double)uniforms[n] && d->threshold == 0,
            "decision %d: row %d, node %d, token %d, accepted %d, probability %.17g, uniform %g", n, (int)d->row,
            (int)d->node, (int)d->token, (int)d->accepted, d->probability, d->uniform);
    }
  }
  static const float bad[] = {NAN, -1e-45f, -1.0f, 1.0f, INFINITY, -INFINITY};
  for (int place = 0; place < 6; place++) {
    const float kept = uniforms[place];
    for (int n = 0; n < 6; n++) {
      uniforms[place] = bad[n];
      const treeattn_verify_request request = star(TREEATTN_VERIFY_TARGET_ONLY, tokens, 5, 4, p, q, uniforms, 8);
      char word[32];
      (void)snprintf(word, sizeof word, "uniforms[%d]", place);
      CHECK_ERROR(verify_run(&request, 4, &outcome, &error), TREEATTN_ERROR_INVALID_VALUE, word, "[0, 1)", NULL);
    }
    uniforms[place] = kept;
  }
}

/* Every candidate rejected: the most decisions that a tree can ask for, as many as it has nodes. */
static void as_many_uniforms_as_nodes_suffice(void **state) {
  (void)state;
  static verify_outcome outcome;
  const float p[] = {0.0f, 1.0f};
  int32_t tokens[1024] = {0};
  float uniforms[1025] = {0};
  for (int m = TREEATTN_VERIFY_TARGET_ONLY; m <= TREEATTN_VERIFY_WITHOUT_REPLACEMENT; m++) {
    const float q[] = {1.0f, 0.0f};
    treeattn_verify_request request = star((treeattn_verify_method)m, tokens, 1024, 2, p, q, uniforms, 1025);
    CHECK_OK(verify_run(&request, 2, &outcome, &error));
    assert_int_equal(outcome.num_decisions, 1025);
    assert_int_equal(outcome.tokens[0], 1);
    request.num_uniforms = 1024;
    CHECK_ERROR(verify_run(&request, 2, &outcome, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "num_uniforms", "1024",
                "1025");
  }
}

static void equal_rows_accept_whatever_the_coin(void **state) {
  (void)state;
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  static verify_outcome outcome;
  for (int n = 0; n < trial_count(300, 60); n++) {
    rng r;
    const int index = trial_begin(&r, 9, n);
    const int vocab_size = rng_range(&r, 1, 700);
    static uint32_t row[2][700];
    int32_t token = rng_below(&r, vocab_size);
    const treeattn_dtype dtype = dtypes[index % 3];
    for (int t = 0; t < vocab_size; t++) {
      const float value =
          rng_chance(&r, 3) && t != token ? 0.0f : ldexpf((float)rng_range(&r, 1, 2000), -rng_below(&r, 18));
      element_store(dtype, row, t, value);
      element_store(dtype, row, vocab_size + t, value);
    }
    const int32_t parents[] = {-1, 0};
    const int32_t tokens[] = {0, token};
    const float uniforms[] = {just_under_one, 0.5f};
    treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
    request.num_nodes = 2;
    request.parents = parents;
    request.tokens = tokens;
    request.probs = (treeattn_verify_rows){row, sizeof row, dtype, 0};
    request.draft_probs = request.probs;
    request.uniforms = uniforms;
    request.num_uniforms = 2;
    for (int m = TREEATTN_VERIFY_RESIDUAL; m <= TREEATTN_VERIFY_WITHOUT_REPLACEMENT; m++) {
      request.method = (treeattn_verify_method)m;
      CHECK_OK(verify_run(&request, vocab_size, &outcome, &error));
      CHECK(outcome.decisions[0].accepted == 1 && outcome.decisions[0].probability == 1.0,
            "accepted with %.17g, seed %llu", outcome.decisions[0].probability, (unsigned long long)trial_seed());
    }
  }
}

/* ---- a rejection that leaves nothing ---- */

static treeattn_status reject_all(void *context, treeattn_verify_decision *decision, treeattn_error *error) {
  (void)error;
  *(double *)context = decision->probability;
  decision->accepted = 0;
  return TREEATTN_OK;
}

static treeattn_status draw_zero(void *context, const ta_weights *weights, treeattn_verify_decision *decision,
                                 treeattn_error *error) {
  (void)context, (void)weights, (void)error;
  decision->token = 0;
  return TREEATTN_OK;
}

/* p and q are equal but for a factor of 3. Where the rounding of their sums puts every p(x) a little below q(x), a is under
 * 1 and a rejection leaves nothing. */
static void a_rejection_that_leaves_nothing_is_none(void **state) {
  (void)state;
  double asked = 0;
  const ta_chooser chooser = {&asked, reject_all, draw_zero};
  int found = 0;
  for (int n = 0; n < 2000; n++) {
    rng r;
    (void)trial_begin(&r, 12, n);
    float p[4], q[4];
    for (int t = 0; t < 4; t++) {
      q[t] = ldexpf((float)rng_range(&r, 1, 1 << 22), -rng_below(&r, 40));
      p[t] = 3.0f * q[t];
    }
    const int32_t token = 1;
    const treeattn_verify_request request = star(TREEATTN_VERIFY_RESIDUAL, &token, 1, 4, p, q, NULL, 0);
    static double values[2][TA_WEIGHTS_BLOCK];
    double sums[2];
    ta_verify_state walk_state = {{values[0], &sums[0], 1, 0}, {values[1], &sums[1], 1, 0}};
    int32_t path[2], tokens[2];
    treeattn_verify_decision decisions[2];
    ta_verify_output output = {path, tokens, decisions, 0, 0};
    const ta_verify_problem problem = {&request, 4, ""};
    for (int m = TREEATTN_VERIFY_RESIDUAL; m <= TREEATTN_VERIFY_WITHOUT_REPLACEMENT; m++) {
      CHECK_OK(ta_verify_walk(&problem, ta_verify_rule_of((treeattn_verify_method)m), &chooser, &walk_state, &output,
                              &error));
      CHECK(asked > 1 - 1e-14, "accepted with %.17g, seed %llu", asked, (unsigned long long)trial_seed());
      if (output.num_path == 2) {
        CHECK(decisions[0].accepted == 1 && decisions[0].probability == 1.0, "seed %llu",
              (unsigned long long)trial_seed());
        found += asked < 1;
      }
    }
  }
  assert_true(found > 0);
  /* The one token that has everything, rejected all the same. */
  const float sure[] = {0.0f, 1.0f};
  const int32_t token = 1;
  const treeattn_verify_request request = star(TREEATTN_VERIFY_TARGET_ONLY, &token, 1, 2, sure, NULL, NULL, 0);
  static double values[TA_WEIGHTS_BLOCK];
  double sum;
  ta_verify_state walk_state = {{values, &sum, 1, 0}, {NULL, NULL, 0, 0}};
  int32_t path[2], tokens[2];
  ta_verify_output output = {path, tokens, NULL, 0, 0};
  const ta_verify_problem problem = {&request, 2, ""};
  CHECK_OK(
      ta_verify_walk(&problem, ta_verify_rule_of(TREEATTN_VERIFY_TARGET_ONLY), &chooser, &walk_state, &output, &error));
  assert_int_equal(output.num_path, 2);
}

/* ---- rows of logits ---- */

static void logits_mean_their_softmax(void **state) {
  (void)state;
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  static const float temperatures[] = {1.0f, 0.6f, 2.0f, 0.01f, 1e-30f, 1e30f, FLT_MAX, 1e-45f};
  static verify_outcome outcome;
  for (int n = 0; n < trial_count(400, 80); n++) {
    rng r;
    const int index = trial_begin(&r, 10, n);
    const int vocab_size = rng_range(&r, 1, 600);
    const treeattn_dtype dtype = dtypes[index % 3];
    const float temperature = temperatures[index / 3 % 8];
    static uint32_t row[600];
    static long double weights[600];
    long double largest = -INFINITY;
    for (int t = 0; t < vocab_size; t++) {
      float value = rng_signed(&r) * (index % 5 == 0 ? 1000.0f : 12.0f);
      value = rng_chance(&r, 20) && t > 0 ? -INFINITY : value;
      element_store(dtype, row, t, value);
      largest = fmaxl(largest, (long double)element_load(dtype, row, t));
    }
    long double total = 0;
    for (int t = 0; t < vocab_size; t++) {
      weights[t] = expl(((long double)element_load(dtype, row, t) - largest) / (long double)temperature);
      total += weights[t];
    }
    const int32_t parents[] = {-1};
    const float uniform = (float)(rng_next(&r) >> 40) * 0x1.0p-24f;
    treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
    request.method = TREEATTN_VERIFY_TARGET_ONLY;
    request.temperature = temperature;
    request.num_nodes = 1;
    request.parents = parents;
    request.tokens = parents;
    request.logits = (treeattn_verify_rows){row, sizeof row, dtype, 0};
    request.uniforms = &uniform;
    request.num_uniforms = 1;
    CHECK_OK(verify_run(&request, vocab_size, &outcome, &error));
    const long double expected = weights[outcome.tokens[0]] / total;
    /* the error of an exponential grows with its argument: 2^-53 of it */
    const double tolerance = 1e-13 + (double)fabsl(logl(expected)) * 4e-16;
    CHECK(fabs(outcome.decisions[0].probability - (double)expected) <= tolerance * (double)expected,
          "probability %.17g instead of %.17Lg, temperature %g, seed %llu", outcome.decisions[0].probability, expected,
          (double)temperature, (unsigned long long)trial_seed());
  }
}

static void infinite_logits_share_everything(void **state) {
  (void)state;
  static verify_outcome outcome;
  const int32_t parents[] = {-1};
  float logits[] = {5.0f, INFINITY, -INFINITY, INFINITY, 3e38f};
  float uniform = 0;
  treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
  request.method = TREEATTN_VERIFY_TARGET_ONLY;
  request.num_nodes = 1;
  request.parents = parents;
  request.tokens = parents;
  request.logits = verify_rows_f32(logits, 1, 5);
  request.uniforms = &uniform;
  request.num_uniforms = 1;
  static const struct {
    float uniform;
    int token;
  } cases[] = {{0.0f, 1}, {0.4999f, 1}, {0.5f, 3}, {just_under_one, 3}};
  for (int n = 0; n < 4; n++) {
    uniform = cases[n].uniform;
    CHECK_OK(verify_run(&request, 5, &outcome, &error));
    assert_int_equal(outcome.tokens[0], cases[n].token);
    assert_true(outcome.decisions[0].probability == 0.5);
  }
  logits[2] = NAN;
  CHECK_ERROR(verify_run(&request, 5, &outcome, &error), TREEATTN_ERROR_INVALID_VALUE, "logits[0][2]", "NaN", "node 0");
  for (int t = 0; t < 5; t++) {
    logits[t] = -INFINITY;
  }
  CHECK_ERROR(verify_run(&request, 5, &outcome, &error), TREEATTN_ERROR_INVALID_VALUE, "logits[0]", "-infinity",
              "node 0");
}

static void exp_and_log_are_accurate(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 11, 0);
  double worst_exp = 0, worst_log = 0;
  for (int n = 0; n < trial_count(1000000, 100000); n++) {
    const double unit = (double)(rng_next(&r) >> 11) * 0x1.0p-53;
    const double x = -708.0 * unit * unit * unit;
    const long double e = expl((long double)x);
    worst_exp = fmax(worst_exp, (double)(fabsl((long double)ta_exp_double(x) - e) / e));
    const double y = n % 2 == 0 ? ldexp(0.5 + unit, rng_range(&r, -1000, 1000)) : 0.7 + unit;
    const long double l = logl((long double)y);
    if (l != 0) {
      worst_log = fmax(worst_log, (double)(fabsl((long double)ta_log_double(y) - l) / fabsl(l)));
    }
  }
  CHECK(worst_exp <= 0x1.8p-53, "exp is off by %g", worst_exp);
  CHECK(worst_log <= 0x1.0p-51, "log is off by %g", worst_log);
  assert_true(ta_exp_double(0.0) == 1.0 && ta_exp_double(-708.0) > 0 && ta_exp_double(-708.1) == 0.0);
  assert_true(ta_exp_double(-INFINITY) == 0.0 && ta_log_double(1.0) == 0.0);
  /* Bits that every machine must give. */
  uint64_t sum = 0;
  for (int n = 0; n < 100000; n++) {
    const double x = -(double)n * 0.00701;
    sum = (sum ^ (uint64_t)ta_double_to_bits(ta_exp_double(x))) * UINT64_C(0x100000001b3);
    sum = (sum ^ (uint64_t)ta_double_to_bits(ta_log_double(1e-3 + (double)n * 0.37))) * UINT64_C(0x100000001b3);
  }
  CHECK(sum == UINT64_C(0x9f6841666ae9801f), "the bits of exp and log hash to %llx", (unsigned long long)sum);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_coin_accepts_below_the_probability_only),
      cmocka_unit_test(a_draw_takes_the_first_sum_above_the_uniform),
      cmocka_unit_test(draws_follow_the_cumulative_sum),
      cmocka_unit_test(coins_are_used_in_order_and_once),
      cmocka_unit_test(as_many_uniforms_as_nodes_suffice),
      cmocka_unit_test(equal_rows_accept_whatever_the_coin),
      cmocka_unit_test(a_rejection_that_leaves_nothing_is_none),
      cmocka_unit_test(logits_mean_their_softmax),
      cmocka_unit_test(infinite_logits_share_everything),
      cmocka_unit_test(exp_and_log_are_accurate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
