/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of a verification: a team of thread blocks for each request, results only when all went well. */
#ifndef TA_CUDA_STEP_VERIFY_CUH
#define TA_CUDA_STEP_VERIFY_CUH

#include "step_walk.cuh"

/* Decisions as words, so that threads can share the copy. */
enum { TA_DECISION_WORDS = sizeof(treeattn_verify_decision) / sizeof(uint64_t) };
static_assert(sizeof(treeattn_verify_decision) % sizeof(uint64_t) == 0, "decisions are copied word by word");

/* The path from node 0 to `stand`, the tokens on it, and the one after it; by one block. */
__device__ __forceinline__ void ta_write_result(const ta_verify_params &params, const ta_request_state &state,
                                                int32_t request, int32_t stand, int32_t last) {
  if (threadIdx.x == 0) {
    const int32_t *parents = params.parents + state.begin;
    const int32_t *tokens = params.tokens + state.begin;
    int32_t *path = params.path + state.begin;
    int32_t *path_tokens = params.path_tokens + state.begin;
    int32_t depth = 0;
    for (int32_t i = stand; i != 0; i = parents[i]) {
      depth++;
    }
    path_tokens[depth] = last;
    params.num_path[request] = depth + 1;
    for (int32_t i = stand; depth > 0; i = parents[i], depth--) {
      path[depth] = i;
      path_tokens[depth - 1] = tokens[i];
    }
    path[0] = 0;
    if (params.last_tokens != nullptr) {
      params.last_tokens[request] = last;
    }
    if (params.num_decisions != nullptr) {
      params.num_decisions[request] = state.num_decisions;
    }
  }
  if (params.decisions != nullptr) {
    __syncthreads();
    const uint64_t *from = (const uint64_t *)(state.scratch + params.parts.decisions);
    uint64_t *to = (uint64_t *)(params.decisions + state.begin);
    for (int32_t n = (int32_t)threadIdx.x; n < state.num_decisions * TA_DECISION_WORDS; n += TA_VERIFY_THREADS) {
      to[n] = from[n];
    }
  }
}

static __global__ void __launch_bounds__(TA_VERIFY_THREADS)
    ta_verify_kernel(const __grid_constant__ ta_verify_params params) {
  __shared__ ta_verify_shared shared;
  ta_request_state state;
  state.team = ta_team_get();
  const int32_t request = (int32_t)(blockIdx.x / (uint32_t)state.team.size);
  const ta_step_span span = ta_step_span_of(params.batch, request);
  state.begin = span.begin;
  state.num_nodes = span.num_nodes;
  state.settings = params.request_settings != nullptr ? params.request_settings[request] : params.settings;
  state.scratch = params.scratch + (uint64_t)request * params.parts.bytes;
  state.turn = 0;
  state.num_decisions = 0;
  state.target = {(double *)(state.scratch + params.parts.target_values),
                  (double *)(state.scratch + params.parts.target_sums), 0};
  state.draft = {(double *)(state.scratch + params.parts.draft_values),
                 (double *)(state.scratch + params.parts.draft_sums), 0};
  state.outcome = ta_step_outcome(TREEATTN_OK, TREEATTN_CUDA_FIELD_NONE, -1, -1);
  bool good =
      span.valid || ta_fail_request(state, TREEATTN_ERROR_INVALID_ARGUMENT, TREEATTN_CUDA_FIELD_OFFSETS, -1, -1);
  good = good && ta_check_request(params, shared, state);
  int32_t stand = -1;
  int32_t last = 0;
  if (good && state.num_nodes > 0) {
    switch (ta_method_of(state.settings)) {
      case TREEATTN_VERIFY_GREEDY: stand = ta_walk_greedy(params, shared, state, &last); break;
      case TREEATTN_VERIFY_TYPICAL_LOSSY: stand = ta_walk_typical(params, shared, state, &last); break;
      default: stand = ta_walk_stochastic(params, shared, state, &last); break;
    }
  }
  if (state.team.rank != 0) {
    return;
  }
  if (stand >= 0) {
    ta_write_result(params, state, request, stand, last);
  } else if (good && state.num_nodes == 0 && threadIdx.x == 0) {
    params.num_path[request] = 0;
    if (params.num_decisions != nullptr) {
      params.num_decisions[request] = 0;
    }
  }
  if (threadIdx.x == 0) {
    params.outcomes[request] = state.outcome;
  }
}

#endif
