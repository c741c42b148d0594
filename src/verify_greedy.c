/* SPDX-License-Identifier: Apache-2.0 */
/* The greedy walk: the drafts that argmax decoding would have produced, and the token after them. */
#include <math.h>

#include "tree.h"
#include "verify.h"

treeattn_status ta_verify_argmax(const ta_verify_problem *problem, int64_t node, int32_t *token,
                                 treeattn_error *error) {
  const treeattn_verify_request *request = problem->request;
  if (request->argmax != NULL) {
    *token = request->argmax[node];
    if (*token < 0 || (problem->vocab_size > 0 && *token >= problem->vocab_size)) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%sargmax[%lld] is %ld: it is no token", problem->prefix,
                     (long long)node, (long)*token);
    }
    return TREEATTN_OK;
  }
  if (request->logits.data != NULL) {
    return ta_logits_row_argmax(ta_rows_at(&request->logits, node, problem->vocab_size),
                                ta_rows_dtype(&request->logits), problem->vocab_size,
                                (ta_row_name){problem->prefix, "logits", node}, token, error);
  }
  return ta_probs_row_argmax(ta_rows_at(&request->probs, node, problem->vocab_size), ta_rows_dtype(&request->probs),
                             problem->vocab_size, (ta_row_name){problem->prefix, "probs", node}, token, error);
}

treeattn_status ta_verify_walk_greedy(const ta_verify_problem *problem, ta_verify_output *output,
                                      treeattn_error *error) {
  const treeattn_verify_request *request = problem->request;
  ta_output_start(output);
  int32_t stand = 0;
  int32_t expected = 0;
  treeattn_status status = ta_verify_argmax(problem, stand, &expected, error);
  /* Children come after their parent, so one ascending pass meets the whole path. */
  for (int64_t i = 1; i < request->num_nodes && status == TREEATTN_OK; i++) {
    if (request->parents[i] != stand) {
      continue;
    }
    const bool accepted = request->tokens[i] == expected;
    const treeattn_verify_decision decision = {stand, (int32_t)i, request->tokens[i], accepted, accepted, 0, NAN};
    ta_output_decide(output, &decision);
    if (accepted) {
      ta_output_accept(output, (int32_t)i, expected);
      stand = (int32_t)i;
      status = ta_verify_argmax(problem, stand, &expected, error);
    }
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  const treeattn_verify_decision last = {stand, -1, expected, 1, 1, 0, NAN};
  ta_output_decide(output, &last);
  ta_output_finish(output, expected);
  return TREEATTN_OK;
}

treeattn_status treeattn_verify_greedy(int64_t num_nodes, const int32_t *parents, const int32_t *tokens,
                                       const int32_t *argmax, int32_t *path, int32_t *tokens_out, int64_t *num_path,
                                       treeattn_error *error) {
  const treeattn_status status = ta_tree_check_parents(num_nodes, parents, "parents", error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (num_path == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_path is NULL");
  }
  if (num_nodes == 0) {
    *num_path = 0;
    return TREEATTN_OK;
  }
  if (tokens == NULL || argmax == NULL || path == NULL || tokens_out == NULL) {
    const char *field = tokens == NULL ? "tokens" : argmax == NULL ? "argmax" : path == NULL ? "path" : "tokens_out";
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is NULL: num_nodes is %lld", field,
                   (long long)num_nodes);
  }
  /* Checked to the end first: once the walk writes, it must not fail. */
  for (int64_t i = 0; i < num_nodes; i++) {
    if (argmax[i] < 0 || (i > 0 && tokens[i] < 0)) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s[%lld] is %ld: it is no token",
                     argmax[i] < 0 ? "argmax" : "tokens", (long long)i, (long)(argmax[i] < 0 ? argmax[i] : tokens[i]));
    }
  }
  treeattn_verify_request request = TREEATTN_VERIFY_REQUEST_INIT;
  request.num_nodes = num_nodes;
  request.parents = parents;
  request.tokens = tokens;
  request.argmax = argmax;
  const ta_verify_problem problem = {&request, 0, ""};
  ta_verify_output output = {path, tokens_out, NULL, 0, 0};
  const treeattn_status walked = ta_verify_walk_greedy(&problem, &output, error);
  *num_path = output.num_path;
  return walked;
}
