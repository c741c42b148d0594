/* SPDX-License-Identifier: Apache-2.0 */
/* Losslessness: the law of the emitted tokens, enumerated over all drafts and coins, is the target's. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/check.h"
#include "support/verify_law.h"
#include "support/verify_run.h"

#define TOLERANCE 1e-12

/* ---- the model ---- */

enum { GENERIC, ZEROS, ONE_HOT, WIDE, NUM_TARGET_STYLES, SAME = NUM_TARGET_STYLES, DISJOINT, NUM_DRAFT_STYLES };

static void make_row(int style, uint64_t seed, const int32_t *context, int length, int vocab_size, float *row) {
  const int always = (int)(verify_hash(seed, context, length, -1) % (uint32_t)vocab_size);
  for (int t = 0; t < vocab_size; t++) {
    const uint32_t h = verify_hash(seed, context, length, t);
    switch (style) {
      case GENERIC: row[t] = (float)(h % 1000 + 1) / 1000.0f; break;
      case ZEROS: row[t] = t == always || h % 2 == 0 ? (float)(h % 100 + 1) : 0.0f; break;
      case ONE_HOT: row[t] = t == always ? 0.3f : 0.0f; break;
      default: row[t] = powf(10.0f, -(float)(h % 30)); break;
    }
  }
}

static void target_row(const law_case *c, const int32_t *context, int length, float *row) {
  make_row(c->style / NUM_DRAFT_STYLES, c->seed, context, length, c->vocab_size, row);
  for (int t = 0; t < c->vocab_size && c->is_logits; t++) {
    row[t] = row[t] > 0 ? logf(row[t]) * 2.0f - 3.0f : -INFINITY;
  }
}

static void draft_row(const law_case *c, const int32_t *context, int length, float *row) {
  const int style = c->style % NUM_DRAFT_STYLES;
  if (style < NUM_TARGET_STYLES) {
    make_row(style, c->seed + 1, context, length, c->vocab_size, row);
    return;
  }
  target_row(c, context, length, row);
  bool empty = true;
  for (int t = 0; t < c->vocab_size && style == DISJOINT; t++) {
    row[t] = row[t] > 0 ? 0.0f : (float)(t + 1);
    empty = empty && row[t] == 0;
  }
  if (style == DISJOINT && empty) { /* the target is positive everywhere: draw what it likes least */
    float p[LAW_MAX_VOCAB];
    target_row(c, context, length, p);
    int least = 0;
    for (int t = 1; t < c->vocab_size; t++) {
      least = p[t] < p[least] ? t : least;
    }
    row[least] = 1;
  }
}

static void check_law(const law_case *c, const char *what, double *worst, int64_t *num_laws) {
  const law_result law = law_enumerate(c);
  char tree[256];
  int used = 0;
  for (int i = 0; i < c->num_nodes && i < 12; i++) {
    used += snprintf(tree + used, sizeof tree - (size_t)used, " %d:%d", (int)c->parents[i], (int)c->tokens[i]);
  }
  CHECK(law.worst <= TOLERANCE && fabs(law.total - 1) <= TOLERANCE,
        "%s: off by %.3g, total %.17g; vocabulary %d, style %d, seed %llu, parents and tokens%s", what, law.worst,
        law.total, c->vocab_size, c->style, (unsigned long long)c->seed, tree);
  *worst = fmax(*worst, law.worst);
  ++*num_laws;
}

/* Counts through all parent arrays; with node 0 as the only root unless `forests`. */
static bool next_tree(int32_t *parents, int num_nodes, bool forests) {
  for (int i = num_nodes - 1; i > 0; i--) {
    if (parents[i] + 1 < i) {
      parents[i]++;
      return true;
    }
    parents[i] = forests ? -1 : 0;
  }
  return false;
}

static bool next_tokens(int32_t *tokens, int num_nodes, int vocab_size) {
  for (int i = num_nodes - 1; i > 0; i--) {
    if (++tokens[i] < vocab_size) {
      return true;
    }
    tokens[i] = 0;
  }
  return false;
}

static const struct {
  treeattn_verify_method method;
  law_drafter drafter;
} drawn[] = {{TREEATTN_VERIFY_RESIDUAL, LAW_DRAWN_WITH},
             {TREEATTN_VERIFY_WITHOUT_REPLACEMENT, LAW_DRAWN_WITHOUT},
             {TREEATTN_VERIFY_WITHOUT_REPLACEMENT, LAW_DRAWN_WITH}}; /* a repeated token is then rejected for sure */
enum { NUM_DRAWN = sizeof drawn / sizeof drawn[0] };

/* All trees of num_nodes nodes under one style: the two rules for draws, and target-only for every choice of tokens. */
static void all_trees(int vocab_size, int num_nodes, bool forests, int style, double *worst, int64_t *num_laws) {
  law_case c = {.vocab_size = vocab_size, .num_nodes = num_nodes, .target_row = target_row, .style = style};
  for (int i = 0; i < num_nodes; i++) {
    c.parents[i] = i == 0 || forests ? -1 : 0;
  }
  do {
    c.seed++;
    c.draft_row = draft_row;
    memset(c.tokens, 0, sizeof c.tokens);
    for (int d = 0; d < NUM_DRAWN; d++) {
      c.drafter = drawn[d].drafter;
      c.rule = ta_verify_rule_of(drawn[d].method);
      check_law(&c, treeattn_verify_method_name(drawn[d].method), worst, num_laws);
    }
    if (style % NUM_DRAFT_STYLES != 0) {
      continue; /* the draft's style does not matter to what was chosen */
    }
    c.drafter = LAW_CHOSEN;
    c.draft_row = NULL;
    c.rule = ta_verify_rule_of(TREEATTN_VERIFY_TARGET_ONLY);
    do {
      check_law(&c, "target-only", worst, num_laws);
    } while (next_tokens(c.tokens, num_nodes, vocab_size));
  } while (next_tree(c.parents, num_nodes, forests));
}

static void every_small_tree_keeps_the_target(void **state) {
  (void)state;
  double worst = 0;
  int64_t num_laws = 0;
  for (int style = 0; style < NUM_TARGET_STYLES * NUM_DRAFT_STYLES; style++) {
    for (int vocab_size = 2; vocab_size <= 4; vocab_size++) {
      for (int num_nodes = 1; num_nodes <= 4; num_nodes++) {
        all_trees(vocab_size, num_nodes, vocab_size == 2 || num_nodes < 4, style, &worst, &num_laws);
      }
    }
    if (!test_quick()) {
      all_trees(2, 5, false, style, &worst, &num_laws);
    }
  }
  if (!test_quick()) {
    all_trees(3, 5, false, GENERIC * NUM_DRAFT_STYLES + ZEROS, &worst, &num_laws);
    all_trees(3, 5, false, ZEROS * NUM_DRAFT_STYLES + GENERIC, &worst, &num_laws);
    all_trees(4, 5, false, GENERIC * NUM_DRAFT_STYLES + GENERIC, &worst, &num_laws);
  }
  print_message("%lld laws, worst difference %.3g\n", (long long)num_laws, worst);
}

static void logits_at_any_temperature_keep_the_target(void **state) {
  (void)state;
  static const float temperatures[] = {0.05f, 0.7f, 1.0f, 3.0f, 1e6f};
  double worst = 0;
  int64_t num_laws = 0;
  for (int n = 0; n < 5; n++) {
    for (int ts = 0; ts < NUM_TARGET_STYLES; ts++) {
      law_case c = {.vocab_size = 3,
                    .num_nodes = 4,
                    .parents = {-1, 0, 0, 1},
                    .target_row = target_row,
                    .draft_row = draft_row,
                    .is_logits = true,
                    .temperature = temperatures[n],
                    .style = ts * NUM_DRAFT_STYLES + GENERIC,
                    .seed = (uint64_t)n};
      for (int d = 0; d < NUM_DRAWN; d++) {
        c.drafter = drawn[d].drafter;
        c.rule = ta_verify_rule_of(drawn[d].method);
        check_law(&c, "logits", &worst, &num_laws);
      }
      c.drafter = LAW_CHOSEN;
      c.rule = ta_verify_rule_of(TREEATTN_VERIFY_TARGET_ONLY);
      do {
        check_law(&c, "logits", &worst, &num_laws);
      } while (next_tokens(c.tokens, 4, 3));
    }
  }
}

static void forty_siblings_keep_the_target(void **state) {
  (void)state;
  double worst = 0;
  int64_t num_laws = 0;
  for (int trial = 0; trial < 12; trial++) {
    rng r;
    (void)trial_begin(&r, 6, trial);
    law_case c = {.vocab_size = 50,
                  .num_nodes = 41,
                  .parents = {-1},
                  .target_row = target_row,
                  .drafter = LAW_CHOSEN,
                  .rule = ta_verify_rule_of(TREEATTN_VERIFY_TARGET_ONLY),
                  .style = trial % NUM_TARGET_STYLES * NUM_DRAFT_STYLES,
                  .seed = rng_next(&r)};
    for (int i = 1; i < 41; i++) {
      c.tokens[i] = rng_below(&r, 50); /* some twice */
    }
    check_law(&c, "40 siblings, chosen", &worst, &num_laws);
  }
  for (int style = 0; style < NUM_TARGET_STYLES * NUM_DRAFT_STYLES; style++) {
    for (int d = 0; d < NUM_DRAWN; d++) {
      law_case c = {.vocab_size = 2,
                    .num_nodes = 41,
                    .parents = {-1},
                    .target_row = target_row,
                    .draft_row = draft_row,
                    .drafter = drawn[d].drafter,
                    .rule = ta_verify_rule_of(drawn[d].method),
                    .style = style,
                    .lazy = true,
                    .seed = (uint64_t)style};
      check_law(&c, "40 siblings, drawn", &worst, &num_laws);
    }
  }
}

static void depth_five_keeps_the_target(void **state) {
  (void)state;
  double worst = 0;
  int64_t num_laws = 0;
  for (int style = 0; style < NUM_TARGET_STYLES * NUM_DRAFT_STYLES; style++) {
    for (int d = 0; d < NUM_DRAWN; d++) {
      law_case c = {.vocab_size = 3,
                    .num_nodes = 6,
                    .parents = {-1, 0, 1, 2, 3, 4},
                    .target_row = target_row,
                    .draft_row = draft_row,
                    .drafter = drawn[d].drafter,
                    .rule = ta_verify_rule_of(drawn[d].method),
                    .style = style,
                    .seed = (uint64_t)style};
      check_law(&c, "a chain of five drafts", &worst, &num_laws);
    }
  }
  for (int trial = 0; trial < 20; trial++) {
    rng r;
    (void)trial_begin(&r, 7, trial);
    law_case c = {.vocab_size = 3,
                  .num_nodes = 63,
                  .parents = {-1},
                  .target_row = target_row,
                  .drafter = LAW_CHOSEN,
                  .rule = ta_verify_rule_of(TREEATTN_VERIFY_TARGET_ONLY),
                  .style = trial % NUM_TARGET_STYLES * NUM_DRAFT_STYLES,
                  .seed = rng_next(&r)};
    for (int i = 1; i < 63; i++) {
      c.parents[i] = (i - 1) / 2;
      c.tokens[i] = rng_below(&r, 3);
    }
    check_law(&c, "a binary tree of depth five", &worst, &num_laws);
  }
}

/* ---- wrong verifiers and wrong drafters, which the law must betray ---- */

static void published_target(const law_case *c, const int32_t *context, int length, float *row) {
  (void)c, (void)context, (void)length;
  memcpy(row, (const float[]){0.6f, 0.2f, 0.1f, 0.1f}, 4 * sizeof *row);
}

static void published_draft(const law_case *c, const int32_t *context, int length, float *row) {
  (void)c, (void)context, (void)length;
  memcpy(row, (const float[]){0.7f, 0.2f, 0.05f, 0.05f}, 4 * sizeof *row);
}

static bool finish(ta_verify_state *state) {
  ta_weights_sum_block(&state->target, 0);
  ta_weights_sum(&state->target);
  return state->target.total > 0;
}

static bool reject_subtracting_one_token(ta_verify_state *state, int32_t token) {
  const double rest = ta_weights_probability(&state->target, token) - ta_weights_probability(&state->draft, token);
  state->target.values[token] = rest > 0 ? rest * state->target.total : 0;
  return finish(state);
}

static bool reject_with_softmax(ta_verify_state *state, int32_t token) {
  (void)token;
  for (int t = 0; t < 4; t++) {
    const double rest = ta_weights_probability(&state->target, t) - ta_weights_probability(&state->draft, t);
    state->target.values[t] = exp(rest > 0 ? rest : 0);
  }
  return finish(state);
}

static bool reject_without_change(ta_verify_state *state, int32_t token) {
  (void)state, (void)token;
  return true;
}

static bool reject_without_renormalising_q(ta_verify_state *state, int32_t token) {
  const double total = state->draft.total;
  const bool left = ta_verify_rule_of(TREEATTN_VERIFY_WITHOUT_REPLACEMENT)->reject(state, token);
  state->draft.total = total;
  return left;
}

static double accept_always(const ta_verify_state *state, int32_t token) {
  return ta_weights_probability(&state->target, token) > 0 ? 1.0 : 0.0;
}

static double accept_by_target(const ta_verify_state *state, int32_t token) {
  return ta_weights_probability(&state->target, token);
}

static law_case published_case(law_drafter drafter, const ta_verify_rule *rule) {
  return (law_case){.vocab_size = 4,
                    .num_nodes = 2,
                    .parents = {-1, 0},
                    .target_row = published_target,
                    .draft_row = published_draft,
                    .drafter = drafter,
                    .rule = rule};
}

static void published_faults_are_seen(void **state) {
  (void)state;
  const ta_verify_rule *right = ta_verify_rule_of(TREEATTN_VERIFY_RESIDUAL);
  const ta_verify_rule one_token = {true, right->acceptance, reject_subtracting_one_token};
  const ta_verify_rule softmaxed = {true, right->acceptance, reject_with_softmax};
  const ta_verify_rule plain = {true, right->acceptance, reject_without_change};
  const struct {
    const char *name;
    law_drafter drafter;
    const ta_verify_rule *rule;
    double law[4];
  } cases[] = {
      {"only the token is subtracted", LAW_DRAWN_WITH, &one_token, {0.6, 0.25, 0.075, 0.075}},
      {"the residual goes through softmax", LAW_DRAWN_WITH, &softmaxed, {0.6244, 0.2244, 0.0756, 0.0756}},
      {"plain p after a rejection", LAW_DRAWN_WITH, &plain, {0.66, 0.22, 0.06, 0.06}},
      {"q before the drafter's filter", LAW_DRAWN_FROM_FILTERED, right, {0.6667, 0.2222, 0.0556, 0.0556}},
      {"none", LAW_DRAWN_WITH, right, {0.6, 0.2, 0.1, 0.1}},
      {"none", LAW_DRAWN_WITHOUT, ta_verify_rule_of(TREEATTN_VERIFY_WITHOUT_REPLACEMENT), {0.6, 0.2, 0.1, 0.1}},
  };
  for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
    const law_case c = published_case(cases[n].drafter, cases[n].rule);
    const law_result law = law_enumerate(&c);
    const bool right_one = strcmp(cases[n].name, "none") == 0;
    for (int t = 0; t < 4; t++) {
      CHECK(fabs(law.first[t] - cases[n].law[t]) < 1e-4, "%s: token %d has %.6f", cases[n].name, t, law.first[t]);
    }
    CHECK(right_one ? law.worst <= TOLERANCE : law.worst > 1e-3, "%s: off by %.3g", cases[n].name, law.worst);
  }
}

/* Faults that need more than one draft to show. Each must be far from the target in some small tree. */
static void subtler_faults_are_seen(void **state) {
  (void)state;
  const ta_verify_rule *with = ta_verify_rule_of(TREEATTN_VERIFY_RESIDUAL);
  const ta_verify_rule *without = ta_verify_rule_of(TREEATTN_VERIFY_WITHOUT_REPLACEMENT);
  const ta_verify_rule *chosen = ta_verify_rule_of(TREEATTN_VERIFY_TARGET_ONLY);
  const ta_verify_rule q_kept_whole = {true, without->acceptance, reject_without_renormalising_q};
  const ta_verify_rule first_p_kept = {false, chosen->acceptance, reject_without_change};
  const ta_verify_rule accepts_all = {true, accept_always, with->reject};
  const ta_verify_rule mixed = {true, accept_by_target, with->reject};
  const struct {
    const char *name;
    law_drafter drafter;
    const ta_verify_rule *rule;
  } cases[] = {
      {"draws without replacement under the rule for draws with", LAW_DRAWN_WITHOUT, with},
      {"q without the token is not renormalised", LAW_DRAWN_WITHOUT, &q_kept_whole},
      {"the rejected token stays in p", LAW_CHOSEN, &first_p_kept},
      {"drafts are accepted unverified", LAW_DRAWN_WITH, &accepts_all},
      {"acceptance of one rule, residual of another", LAW_DRAWN_WITH, &mixed},
  };
  for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
    double worst = 0;
    for (uint64_t seed = 0; seed < 10; seed++) {
      const law_case c = {.vocab_size = 4,
                          .num_nodes = 4,
                          .parents = {-1, 0, 0, 0},
                          .tokens = {0, 1, 1, 2},
                          .target_row = target_row,
                          .draft_row = draft_row,
                          .drafter = cases[n].drafter,
                          .rule = cases[n].rule,
                          .seed = seed};
      worst = fmax(worst, law_enumerate(&c).worst);
    }
    CHECK(worst > 1e-3, "%s: off by only %.3g", cases[n].name, worst);
  }
}

/* ---- through the public function ---- */

static int draw_token(const double *p, int count, double uniform) {
  double sum = 0;
  for (int t = 0; t < count; t++) {
    sum += p[t];
    if (uniform < sum) {
      return t;
    }
  }
  return count - 1;
}

static void two_hundred_thousand_draws(void **state) {
  (void)state;
  enum { DRAWS = 200000 };
  static const double p[4] = {0.6, 0.2, 0.1, 0.1};
  static const double q[4] = {0.7, 0.2, 0.05, 0.05};
  float probs[4][4], draft_probs[4][4];
  for (int n = 0; n < 16; n++) {
    probs[n / 4][n % 4] = (float)p[n % 4];
    draft_probs[n / 4][n % 4] = (float)q[n % 4];
  }
  const int32_t parents[4] = {-1, 0, 0, 0};
  const treeattn_verify_method methods[] = {TREEATTN_VERIFY_TARGET_ONLY, TREEATTN_VERIFY_RESIDUAL,
                                            TREEATTN_VERIFY_WITHOUT_REPLACEMENT};
  for (int m = 0; m < 3; m++) {
    int counts[4] = {0};
    unsigned char scratch[65536];
    for (uint32_t n = 0; n < DRAWS; n++) {
      float uniforms[4], drafting[4];
      CHECK_OK(treeattn_uniforms_fill(99, (uint64_t)m, n, TREEATTN_STREAM_VERIFY, 4, uniforms, &error));
      CHECK_OK(treeattn_uniforms_fill(99, (uint64_t)m, n, TREEATTN_STREAM_DRAFT, 4, drafting, &error));
      int32_t tokens[4] = {0};
      double left[4];
      memcpy(left, q, sizeof left);
      for (int i = 1; i < 4; i++) {
        double total = left[0] + left[1] + left[2] + left[3];
        tokens[i] = m == 0 ? i : draw_token(left, 4, (double)drafting[i] * total);
        left[tokens[i]] = methods[m] == TREEATTN_VERIFY_WITHOUT_REPLACEMENT ? 0 : left[tokens[i]];
      }
      treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
      request.method = methods[m];
      request.num_nodes = 4;
      request.parents = parents;
      request.tokens = tokens;
      request.probs = verify_rows_f32(&probs[0][0], 4, 4);
      request.draft_probs = verify_rows_f32(&draft_probs[0][0], 4, 4);
      request.uniforms = uniforms;
      request.num_uniforms = 4;
      int32_t path[4], emitted[4];
      treeattn_verify_result result = TREEATTN_VERIFY_RESULT_INIT;
      result.path = path;
      result.tokens = emitted;
      result.capacity = 4;
      treeattn_verify_args args = TREEATTN_VERIFY_ARGS_INIT;
      args.vocab_size = 4;
      args.num_requests = 1;
      args.requests = &request;
      args.results = &result;
      args.scratch = scratch;
      args.scratch_bytes = sizeof scratch;
      CHECK_OK(treeattn_verify(&args, &error));
      counts[emitted[0]]++;
    }
    for (int t = 0; t < 4; t++) {
      const double deviation = fabs(counts[t] - DRAWS * p[t]) / sqrt(DRAWS * p[t] * (1 - p[t]));
      CHECK(deviation < 4, "%s: token %d came %d times, %.1f standard deviations off",
            treeattn_verify_method_name(methods[m]), t, counts[t], deviation);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_small_tree_keeps_the_target), cmocka_unit_test(logits_at_any_temperature_keep_the_target),
      cmocka_unit_test(forty_siblings_keep_the_target),    cmocka_unit_test(depth_five_keeps_the_target),
      cmocka_unit_test(published_faults_are_seen),         cmocka_unit_test(subtler_faults_are_seen),
      cmocka_unit_test(two_hundred_thousand_draws),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
