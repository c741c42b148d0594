/* SPDX-License-Identifier: Apache-2.0 */
/* One request as a verification meets it: its place, its settings, its rows as weights, its outcome. */
#ifndef TA_CUDA_STEP_REQUEST_CUH
#define TA_CUDA_STEP_REQUEST_CUH

#include "step_weights.cuh"

/* What every thread of the team knows, in its registers. */
struct ta_request_state {
  ta_team team;
  int32_t begin, num_nodes;
  treeattn_cuda_verify_settings settings;
  unsigned char *scratch;
  int32_t turn;          /* of partials */
  int32_t num_decisions; /* counted by all, written by one */
  ta_step_weights target, draft;
  treeattn_cuda_outcome outcome;
};

__device__ __forceinline__ uint64_t *ta_partials(const ta_verify_params &params, const ta_request_state &state) {
  return (uint64_t *)(state.scratch + params.parts.partials);
}

__device__ __forceinline__ bool ta_fail_request(ta_request_state &state, treeattn_status status,
                                                treeattn_cuda_field field, int32_t index, int32_t column) {
  state.outcome = ta_step_outcome(status, field, index, column);
  return false;
}

/* ---- arguments ---- */

__device__ __forceinline__ bool ta_uses_draft(int32_t method) {
  return method == TREEATTN_VERIFY_RESIDUAL || method == TREEATTN_VERIFY_WITHOUT_REPLACEMENT;
}

/* At temperature 0 any method is greedy. */
__device__ __forceinline__ int32_t ta_method_of(const treeattn_cuda_verify_settings &settings) {
  return settings.temperature == 0 ? (int32_t)TREEATTN_VERIFY_GREEDY : settings.method;
}

__device__ __forceinline__ bool ta_is_finite_and_not_negative(float value) {
  return value >= 0 && value <= FLT_MAX;
}

__device__ __forceinline__ bool ta_settings_are_legal(const ta_verify_params &params,
                                                      const treeattn_cuda_verify_settings &settings) {
  if (settings.method < TREEATTN_VERIFY_GREEDY || settings.method > TREEATTN_VERIFY_TYPICAL_LOSSY) {
    return false;
  }
  if (settings.method == TREEATTN_VERIFY_GREEDY) {
    return true;
  }
  if (!ta_is_finite_and_not_negative(settings.temperature) ||
      (params.probs.data != nullptr && settings.temperature != 0 && settings.temperature != 1)) {
    return false;
  }
  if (settings.method == TREEATTN_VERIFY_TYPICAL_LOSSY && !(ta_is_finite_and_not_negative(settings.typical_epsilon) &&
                                                            ta_is_finite_and_not_negative(settings.typical_delta))) {
    return false;
  }
  return ta_method_of(settings) == TREEATTN_VERIFY_GREEDY || params.argmax == nullptr;
}

/* In the order in which the CPU checks. */
__device__ __forceinline__ bool ta_check_request(const ta_verify_params &params, ta_verify_shared &shared,
                                                 ta_request_state &state) {
  const int32_t num_nodes = state.num_nodes;
  const int32_t *parents = params.parents + state.begin;
  const int32_t *tokens = params.tokens + state.begin;
  const int32_t orphan = ta_step_first<TA_VERIFY_THREADS>(
      shared.found, 0, num_nodes, [&](int32_t i) { return parents[i] < -1 || parents[i] >= i; });
  if (orphan < num_nodes) {
    return ta_fail_request(state, TREEATTN_ERROR_INVALID_TREE, TREEATTN_CUDA_FIELD_PARENTS, orphan, -1);
  }
  if (num_nodes == 0) {
    return true;
  }
  if (!ta_settings_are_legal(params, state.settings)) {
    return ta_fail_request(state, TREEATTN_ERROR_INVALID_ARGUMENT, TREEATTN_CUDA_FIELD_SETTINGS, -1, -1);
  }
  const int32_t method = ta_method_of(state.settings);
  if (ta_uses_draft(method) && params.draft.data == nullptr) {
    return ta_fail_request(state, TREEATTN_ERROR_INVALID_ARGUMENT, TREEATTN_CUDA_FIELD_DRAFT_PROBS, -1, -1);
  }
  const int32_t stranger = ta_step_first<TA_VERIFY_THREADS>(shared.found, 1, num_nodes, [&](int32_t i) {
    return tokens[i] < 0 || (params.vocab_size > 0 && tokens[i] >= params.vocab_size);
  });
  if (stranger < num_nodes) {
    return ta_fail_request(state, TREEATTN_ERROR_INVALID_ARGUMENT, TREEATTN_CUDA_FIELD_TOKENS, stranger, -1);
  }
  if (method != TREEATTN_VERIFY_GREEDY && method != TREEATTN_VERIFY_TYPICAL_LOSSY && params.uniforms == nullptr) {
    return ta_fail_request(state, TREEATTN_ERROR_INVALID_ARGUMENT, TREEATTN_CUDA_FIELD_UNIFORMS, -1, -1);
  }
  return true;
}

/* ---- rows ---- */

/* What a scan found wrong, if anything: a refused element, or a row of which the largest key is not above `nothing`. */
__device__ __forceinline__ bool ta_check_row(ta_request_state &state, uint64_t largest, int32_t nothing,
                                             treeattn_cuda_field field, int32_t node) {
  const int32_t key = ta_candidate_key(largest);
  if (largest != 0 && key == TA_KEY_REFUSED) {
    return ta_fail_request(state, TREEATTN_ERROR_INVALID_VALUE, field, node, ta_candidate_token(largest));
  }
  if (largest == 0 || key <= nothing) {
    return ta_fail_request(state, TREEATTN_ERROR_INVALID_VALUE, field, node, -1);
  }
  return true;
}

/* The node's most likely next token. */
__device__ __forceinline__ bool ta_row_argmax(const ta_verify_params &params, ta_verify_shared &shared,
                                              ta_request_state &state, int32_t node, int32_t *token) {
  if (params.argmax != nullptr) {
    *token = params.argmax[state.begin + node];
    if (*token < 0 || (params.vocab_size > 0 && *token >= params.vocab_size)) {
      return ta_fail_request(state, TREEATTN_ERROR_INVALID_ARGUMENT, TREEATTN_CUDA_FIELD_ARGMAX, node, -1);
    }
    return true;
  }
  const bool is_logits = params.logits.data != nullptr;
  const int32_t dtype = is_logits ? params.logits.dtype : params.probs.dtype;
  const void *row = ta_row_of(is_logits ? params.logits : params.probs, (int64_t)state.begin + node);
  const uint64_t largest =
      ta_team_scan(state.team, shared, ta_partials(params, state), &state.turn, params.vocab_size, [&](int64_t t) {
        const float value = ta_row_element(row, dtype, t);
        return is_logits ? ta_logit_key(value) : ta_prob_key(value);
      });
  *token = ta_candidate_token(largest);
  return ta_check_row(state, largest, is_logits ? -TA_KEY_INFINITY : 0,
                      is_logits ? TREEATTN_CUDA_FIELD_LOGITS : TREEATTN_CUDA_FIELD_PROBS, node);
}

/* softmax(row / temperature) up to its total. The scan lets the team meet before anything is written. */
__device__ __forceinline__ bool ta_target_from_logits(const ta_verify_params &params, ta_verify_shared &shared,
                                                      ta_request_state &state, int32_t node) {
  int32_t top = 0;
  if (!ta_row_argmax(params, shared, state, node, &top)) {
    return false;
  }
  const void *row = ta_row_of(params.logits, (int64_t)state.begin + node);
  const int32_t dtype = params.logits.dtype;
  const double largest = (double)ta_row_element(row, dtype, top);
  const double inverse = 1.0 / (double)state.settings.temperature;
  double *values = state.target.values;
  ta_team_sum_blocks(state.team, params.num_blocks, state.target.sums, [&](int64_t t) {
    const float logit = t < params.vocab_size ? ta_row_element(row, dtype, t) : -INFINITY;
    const double value =
        largest > (double)FLT_MAX ? (logit > FLT_MAX ? 1.0 : 0.0) : ta_exp_double(((double)logit - largest) * inverse);
    values[t] = value;
    return value;
  });
  ta_team_meet(state.team);
  state.target.total = ta_chain_sums(shared, state.target.sums, params.num_blocks);
  return true;
}

/* A row of probabilities as weights: the same for p and q. */
__device__ __forceinline__ bool ta_weights_from_probs(const ta_verify_params &params, ta_verify_shared &shared,
                                                      ta_request_state &state, int32_t node, bool is_draft) {
  const void *row = ta_row_of(is_draft ? params.draft : params.probs, (int64_t)state.begin + node);
  const int32_t dtype = is_draft ? params.draft.dtype : params.probs.dtype;
  const treeattn_cuda_field field = is_draft ? TREEATTN_CUDA_FIELD_DRAFT_PROBS : TREEATTN_CUDA_FIELD_PROBS;
  double *values = is_draft ? state.draft.values : state.target.values;
  double *sums = is_draft ? state.draft.sums : state.target.sums;
  uint64_t refused = 0;
  ta_team_meet(state.team);
  ta_team_sum_blocks(state.team, params.num_blocks, sums, [&](int64_t t) {
    const float prob = t < params.vocab_size ? ta_row_element(row, dtype, t) : 0.0f;
    if (!ta_is_probability(prob)) {
      const uint64_t candidate = ta_candidate(TA_KEY_REFUSED, t);
      refused = candidate > refused ? candidate : refused;
    }
    values[t] = (double)prob;
    return (double)prob;
  });
  refused = ta_team_largest(state.team, shared, ta_partials(params, state), &state.turn, refused);
  if (refused != 0) {
    return ta_fail_request(state, TREEATTN_ERROR_INVALID_VALUE, field, node, ta_candidate_token(refused));
  }
  const double total = ta_chain_sums(shared, sums, params.num_blocks);
  if (is_draft) {
    state.draft.total = total;
    return true;
  }
  state.target.total = total;
  return total > 0 || ta_fail_request(state, TREEATTN_ERROR_INVALID_VALUE, field, node, -1);
}

/* ---- decisions ---- */

__device__ __forceinline__ void ta_decide(const ta_verify_params &params, ta_request_state &state, int32_t row,
                                          int32_t node, int32_t token, bool accepted, double probability,
                                          double threshold, double uniform) {
  if (params.decisions != nullptr && state.team.rank == 0 && threadIdx.x == 0) {
    treeattn_verify_decision *decision =
        (treeattn_verify_decision *)(state.scratch + params.parts.decisions) + state.num_decisions;
    *decision = {row, node, token, accepted ? 1 : 0, probability, threshold, uniform};
  }
  state.num_decisions++;
}

/* What stands for a coin that was not thrown. */
__device__ __forceinline__ double ta_no_uniform() {
  return ta_double_from_bits(INT64_C(0x7ff8000000000000));
}

#endif
