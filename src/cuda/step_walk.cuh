/* SPDX-License-Identifier: Apache-2.0 */
/* The walks of src/verify_greedy.c, verify_stochastic.c and verify_typical.c by a team of thread blocks. Every
 * thread takes every decision, from the same numbers; rows are shared out. */
#ifndef TA_CUDA_STEP_WALK_CUH
#define TA_CUDA_STEP_WALK_CUH

#include "step_request.cuh"

/* The first child of `stand` from node `from` on, else num_nodes. */
__device__ __forceinline__ int32_t ta_next_child(const ta_verify_params &params, ta_verify_shared &shared,
                                                 const ta_request_state &state, int32_t stand, int32_t from) {
  const int32_t *parents = params.parents + state.begin;
  return ta_step_first<TA_VERIFY_THREADS>(shared.found, from, state.num_nodes,
                                          [&](int32_t i) { return parents[i] == stand; });
}

/* Returns where the walk ends, or -1 for a failure; *last is the token that follows. */
__device__ __forceinline__ int32_t ta_walk_greedy(const ta_verify_params &params, ta_verify_shared &shared,
                                                  ta_request_state &state, int32_t *last) {
  const int32_t *tokens = params.tokens + state.begin;
  int32_t stand = 0;
  int32_t expected = 0;
  int32_t i = 1;
  bool arrived = true;
  for (;;) {
    if (arrived && !ta_row_argmax(params, shared, state, stand, &expected)) {
      return -1;
    }
    i = ta_next_child(params, shared, state, stand, i);
    if (i >= state.num_nodes) {
      break;
    }
    arrived = tokens[i] == expected;
    ta_decide(params, state, stand, i, tokens[i], arrived, arrived ? 1.0 : 0.0, 0.0, ta_no_uniform());
    stand = arrived ? i : stand;
    i++;
  }
  ta_decide(params, state, stand, -1, expected, true, 1.0, 0.0, ta_no_uniform());
  *last = expected;
  return stand;
}

/* ---- rejection ---- */

/* Below this a mass is what rounding has left of zero. */
#define TA_SMALLEST_MASS 0x1.0p-900

/* p <- norm(max(p - q, 0)), up to its total. */
__device__ __forceinline__ void ta_subtract_draft(const ta_verify_params &params, ta_verify_shared &shared,
                                                  ta_request_state &state) {
  const double target_scale = state.target.total;
  const double draft_scale = state.draft.total;
  double *p = state.target.values;
  const double *q = state.draft.values;
  ta_team_meet(state.team);
  ta_team_sum_blocks(state.team, params.num_blocks, state.target.sums, [&](int64_t t) {
    const double difference = p[t] / target_scale - q[t] / draft_scale;
    const double rest = difference > 0 ? difference : 0.0;
    p[t] = rest;
    return rest;
  });
  ta_team_meet(state.team);
  state.target.total = ta_chain_sums(shared, state.target.sums, params.num_blocks);
}

/* The next uniform of the request. There are as many as nodes, which always suffice. */
__device__ __forceinline__ bool ta_next_uniform(const ta_verify_params &params, ta_request_state &state, int32_t *place,
                                                double *uniform) {
  const float given = params.uniforms[state.begin + *place];
  if (!(given >= 0.0f && given < 1.0f)) {
    return ta_fail_request(state, TREEATTN_ERROR_INVALID_VALUE, TREEATTN_CUDA_FIELD_UNIFORMS, *place, -1);
  }
  *uniform = (double)given;
  ++*place;
  return true;
}

/* As ta_walk_greedy. The last token is drawn by the first block of the team alone; *last is right there. */
__device__ __forceinline__ int32_t ta_walk_stochastic(const ta_verify_params &params, ta_verify_shared &shared,
                                                      ta_request_state &state, int32_t *last) {
  const int32_t *tokens = params.tokens + state.begin;
  const bool uses_draft = ta_uses_draft(state.settings.method);
  int32_t stand = 0;
  int32_t i = 1;
  int32_t place = 0;
  bool arrived = true;
  bool draft_loaded = false;
  double uniform = 0;
  for (;;) {
    if (arrived) {
      const bool loaded = params.logits.data != nullptr ? ta_target_from_logits(params, shared, state, stand)
                                                        : ta_weights_from_probs(params, shared, state, stand, false);
      if (!loaded) {
        return -1;
      }
      draft_loaded = false;
    }
    i = ta_next_child(params, shared, state, stand, i);
    if (i >= state.num_nodes) {
      break;
    }
    if (uses_draft && !draft_loaded) {
      if (!ta_weights_from_probs(params, shared, state, stand, true)) {
        return -1;
      }
      draft_loaded = true;
    }
    const int32_t token = tokens[i];
    const bool was_drawn = uses_draft && state.draft.values[token] > 0;
    double probability = state.target.values[token] / state.target.total;
    if (was_drawn) {
      const double drawn = state.draft.values[token] / state.draft.total;
      probability = probability < drawn ? probability / drawn : 1.0;
    }
    if (!ta_next_uniform(params, state, &place, &uniform)) {
      return -1;
    }
    arrived = uniform < probability;
    if (!arrived) {
      if (was_drawn) {
        ta_subtract_draft(params, shared, state);
      } else {
        ta_team_remove(state.team, shared, params.num_blocks, state.target, token);
      }
      if (was_drawn && state.settings.method == TREEATTN_VERIFY_WITHOUT_REPLACEMENT) {
        ta_team_remove(state.team, shared, params.num_blocks, state.draft, token);
      }
      if (!(state.target.total > TA_SMALLEST_MASS)) {
        arrived = true;
        probability = 1.0;
      }
    }
    ta_decide(params, state, stand, i, token, arrived, probability, 0.0, uniform);
    stand = arrived ? i : stand;
    i++;
  }
  if (!ta_next_uniform(params, state, &place, &uniform)) {
    return -1;
  }
  if (state.team.rank == 0) {
    *last = ta_draw(shared, params.num_blocks, state.target, uniform);
    ta_decide(params, state, stand, -1, *last, true, state.target.values[*last] / state.target.total, 0.0, uniform);
  }
  return stand;
}

/* ---- typical acceptance ---- */

/* exp(-H) of the target. The sums of the draft, which this method has no use for, hold those of p ln p. */
__device__ __forceinline__ double ta_exp_minus_entropy(const ta_verify_params &params, ta_verify_shared &shared,
                                                       const ta_request_state &state) {
  const double *values = state.target.values;
  const double total = state.target.total;
  ta_team_sum_blocks(state.team, params.num_blocks, state.draft.sums, [&](int64_t t) {
    const double p = values[t] / total;
    return p * ta_log_double(p < DBL_MIN ? DBL_MIN : p);
  });
  ta_team_meet(state.team);
  const double sum = ta_chain_sums(shared, state.draft.sums, params.num_blocks);
  return ta_exp_double(sum < 0 ? sum : 0.0);
}

/* As ta_walk_greedy. Each block of the team keeps what it knows of the nodes for itself. */
__device__ __forceinline__ int32_t ta_walk_typical(const ta_verify_params &params, ta_verify_shared &shared,
                                                   ta_request_state &state, int32_t *last) {
  const int32_t *tokens = params.tokens + state.begin;
  const int32_t max_nodes = params.batch.max_nodes;
  /* Of the path to an acceptable node; NaN for the others. */
  double *logs = (double *)(state.scratch + params.parts.log_probabilities) + (int64_t)state.team.rank * max_nodes;
  int32_t *depths = (int32_t *)(state.scratch + params.parts.depths) + (int64_t)state.team.rank * max_nodes;
  for (int32_t i = (int32_t)threadIdx.x; i < state.num_nodes; i += TA_VERIFY_THREADS) {
    logs[i] = i == 0 ? 0.0 : ta_no_uniform();
    depths[i] = 0;
  }
  __syncthreads();
  const treeattn_cuda_verify_settings &settings = state.settings;
  const double epsilon = settings.typical_epsilon == 0 ? 0.09 : (double)settings.typical_epsilon;
  const double delta = settings.typical_delta == 0 ? 0.3 : (double)settings.typical_delta;
  int32_t best = 0;
  for (int32_t i = 0; i < state.num_nodes; i++) {
    i = ta_step_first<TA_VERIFY_THREADS>(shared.found, i, state.num_nodes,
                                         [&](int32_t n) { return logs[n] == logs[n]; });
    if (i >= state.num_nodes) {
      break;
    }
    if (depths[i] > depths[best] || (depths[i] == depths[best] && logs[i] > logs[best])) {
      best = i;
    }
    int32_t child = ta_next_child(params, shared, state, i, i + 1);
    if (child >= state.num_nodes) {
      continue;
    }
    const bool loaded = params.logits.data != nullptr ? ta_target_from_logits(params, shared, state, i)
                                                      : ta_weights_from_probs(params, shared, state, i, false);
    if (!loaded) {
      return -1;
    }
    const double scaled = delta * ta_exp_minus_entropy(params, shared, state);
    const double threshold = epsilon < scaled ? epsilon : scaled;
    while (child < state.num_nodes) {
      const double probability = state.target.values[tokens[child]] / state.target.total;
      const bool accepted = probability > threshold;
      ta_decide(params, state, i, child, tokens[child], accepted, probability, threshold, ta_no_uniform());
      if (accepted && threadIdx.x == 0) {
        logs[child] = logs[i] + ta_log_double(probability < DBL_MIN ? DBL_MIN : probability);
        depths[child] = depths[i] + 1;
      }
      child = ta_next_child(params, shared, state, i, child + 1);
    }
    __syncthreads();
  }
  if (!ta_row_argmax(params, shared, state, best, last)) {
    return -1;
  }
  ta_decide(params, state, best, -1, *last, true, 1.0, 0.0, ta_no_uniform());
  return best;
}

#endif
