/* SPDX-License-Identifier: Apache-2.0 */
/* One verification through the public functions. */
#include "verify_run.h"

#include <string.h>

#include "check.h"
#include "guard.h"

treeattn_status verify_run(const treeattn_verify_request *request, int64_t vocab_size, verify_outcome *outcome,
                           treeattn_error *error) {
  static verify_outcome before;
  memset(outcome, 0x5a, sizeof *outcome);
  before = *outcome;
  treeattn_verify_result result = TREEATTN_VERIFY_RESULT_INIT;
  result.path = outcome->path;
  result.tokens = outcome->tokens;
  result.capacity = request->num_nodes;
  result.decisions = outcome->decisions;
  result.decisions_capacity = request->num_nodes;
  result.num_path = result.num_decisions = -77;
  treeattn_verify_args args = TREEATTN_VERIFY_ARGS_INIT;
  args.vocab_size = vocab_size;
  args.num_requests = 1;
  args.requests = request;
  args.results = &result;
  treeattn_status status = treeattn_verify_scratch_bytes(&args, &args.scratch_bytes, error);
  if (status == TREEATTN_OK) {
    guarded scratch = guarded_new(args.scratch_bytes, false);
    args.scratch = scratch.data;
    status = treeattn_verify(&args, error);
    CHECK(guarded_intact(&scratch), "bytes around the scratch have changed");
    guarded_free(&scratch);
  }
  if (status != TREEATTN_OK) {
    CHECK(memcmp(outcome, &before, sizeof before) == 0, "a failed call has written results");
    CHECK(result.num_path == -77 && result.num_decisions == -77, "a failed call has written counts");
    return status;
  }
  outcome->num_path = result.num_path;
  outcome->num_decisions = result.num_decisions;
  for (int64_t n = result.num_path; n < VERIFY_MAX_NODES; n++) {
    CHECK(outcome->path[n] == before.path[n] && outcome->tokens[n] == before.tokens[n], "entry %lld is written",
          (long long)n);
  }
  return TREEATTN_OK;
}

treeattn_verify_rows verify_rows_f32(const float *data, int64_t num_rows, int64_t vocab_size) {
  treeattn_verify_rows rows = TREEATTN_VERIFY_ROWS_INIT;
  rows.data = data;
  rows.bytes = (size_t)(num_rows * vocab_size) * sizeof *data;
  return rows;
}

int verify_context(const int32_t *parents, const int32_t *tokens, int32_t node, int32_t *context) {
  int length = 0;
  for (int32_t i = node; i >= 0; i = parents[i]) {
    length++;
  }
  int place = length;
  for (int32_t i = node; i >= 0; i = parents[i]) {
    context[--place] = tokens[i];
  }
  return length;
}

uint32_t verify_hash(uint64_t seed, const int32_t *context, int length, int t) {
  rng r = {seed};
  for (int n = 0; n < length; n++) {
    r.state ^= rng_next(&r) + (uint64_t)(uint32_t)context[n] * UINT64_C(0x9e3779b97f4a7c15);
  }
  r.state ^= rng_next(&r) + (uint64_t)(uint32_t)t;
  return (uint32_t)(rng_next(&r) >> 32);
}
