/* SPDX-License-Identifier: Apache-2.0 */
/* The three lossless rules: with which probability a draft is accepted, and what its rejection leaves. */
#include "verify.h"

/* Below this a mass is what rounding has left of zero. */
static const double smallest_mass = 0x1.0p-900;

static double acceptance_target_only(const ta_verify_state *state, int32_t token) {
  return ta_weights_probability(&state->target, token);
}

static bool reject_target_only(ta_verify_state *state, int32_t token) {
  ta_weights_remove(&state->target, token);
  return state->target.total > smallest_mass;
}

static bool was_drawn(const ta_verify_state *state, int32_t token) {
  return state->draft.values[token] > 0;
}

/* The same two roundings for p and q, so that equal rows give equal numbers and a ratio of exactly 1. */
static double acceptance_drawn(const ta_verify_state *state, int32_t token) {
  if (!was_drawn(state, token)) {
    return acceptance_target_only(state, token);
  }
  const double p = ta_weights_probability(&state->target, token);
  const double q = ta_weights_probability(&state->draft, token);
  return p < q ? p / q : 1.0;
}

static bool subtract_draft(ta_verify_state *state) {
  const double target_scale = state->target.total;
  const double draft_scale = state->draft.total;
  for (int64_t block = 0; block < state->target.num_blocks; block++) {
    double *restrict p = state->target.values + block * TA_WEIGHTS_BLOCK;
    const double *restrict q = state->draft.values + block * TA_WEIGHTS_BLOCK;
    for (int t = 0; t < TA_WEIGHTS_BLOCK; t++) {
      const double rest = p[t] / target_scale - q[t] / draft_scale;
      p[t] = rest > 0 ? rest : 0.0;
    }
    ta_weights_sum_block(&state->target, block);
  }
  ta_weights_sum(&state->target);
  return state->target.total > smallest_mass;
}

static bool reject_residual(ta_verify_state *state, int32_t token) {
  return was_drawn(state, token) ? subtract_draft(state) : reject_target_only(state, token);
}

static bool reject_without_replacement(ta_verify_state *state, int32_t token) {
  if (!was_drawn(state, token)) {
    return reject_target_only(state, token);
  }
  const bool left = subtract_draft(state);
  ta_weights_remove(&state->draft, token);
  return left;
}

const ta_verify_rule *ta_verify_rule_of(treeattn_verify_method method) {
  static const ta_verify_rule target_only = {false, acceptance_target_only, reject_target_only};
  static const ta_verify_rule residual = {true, acceptance_drawn, reject_residual};
  static const ta_verify_rule without_replacement = {true, acceptance_drawn, reject_without_replacement};
  switch (method) {
    case TREEATTN_VERIFY_TARGET_ONLY: return &target_only;
    case TREEATTN_VERIFY_RESIDUAL: return &residual;
    case TREEATTN_VERIFY_WITHOUT_REPLACEMENT: return &without_replacement;
    default: return NULL;
  }
}
