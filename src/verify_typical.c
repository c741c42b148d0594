/* SPDX-License-Identifier: Apache-2.0 */
/* Typical acceptance: the deepest drafts that the target finds likely enough. Not the target's distribution. */
#include <float.h>
#include <math.h>

#include "verify.h"
#include "verify_math.h"

static void link_children(const treeattn_verify_request *request, ta_typical_nodes *nodes) {
  for (int64_t i = 0; i < request->num_nodes; i++) {
    nodes->first_child[i] = -1;
    nodes->log_probability[i] = NAN;
    nodes->depth[i] = 0;
  }
  for (int64_t i = request->num_nodes - 1; i > 0; i--) { /* backwards, so that siblings come out in order */
    const int32_t parent = request->parents[i];
    if (parent >= 0) {
      nodes->next_sibling[i] = nodes->first_child[parent];
      nodes->first_child[parent] = (int32_t)i;
    }
  }
}

/* Judges the children of an acceptable node. */
static void judge_children(const treeattn_verify_request *request, int32_t row, ta_typical_nodes *nodes,
                           const ta_weights *weights, ta_verify_output *output) {
  const double epsilon = request->typical_epsilon == 0 ? 0.09 : (double)request->typical_epsilon;
  const double delta = request->typical_delta == 0 ? 0.3 : (double)request->typical_delta;
  const double scaled = delta * ta_weights_exp_minus_entropy(weights);
  const double threshold = epsilon < scaled ? epsilon : scaled;
  for (int32_t i = nodes->first_child[row]; i >= 0; i = nodes->next_sibling[i]) {
    const double probability = ta_weights_probability(weights, request->tokens[i]);
    const bool accepted = probability > threshold;
    const treeattn_verify_decision decision = {row, i, request->tokens[i], accepted, probability, threshold, NAN};
    ta_output_decide(output, &decision);
    if (accepted) {
      const double floored = probability < DBL_MIN ? DBL_MIN : probability;
      nodes->log_probability[i] = nodes->log_probability[row] + ta_log_double(floored);
      nodes->depth[i] = nodes->depth[row] + 1;
    }
  }
}

treeattn_status ta_verify_walk_typical(const ta_verify_problem *problem, ta_typical_nodes *nodes, ta_weights *weights,
                                       ta_verify_output *output, treeattn_error *error) {
  const treeattn_verify_request *request = problem->request;
  ta_output_start(output);
  link_children(request, nodes);
  nodes->log_probability[0] = 0;
  int32_t best = 0;
  for (int32_t i = 0; i < (int32_t)request->num_nodes; i++) {
    if (isnan(nodes->log_probability[i])) {
      continue;
    }
    if (nodes->depth[i] > nodes->depth[best] ||
        (nodes->depth[i] == nodes->depth[best] && nodes->log_probability[i] > nodes->log_probability[best])) {
      best = i;
    }
    if (nodes->first_child[i] >= 0) {
      const treeattn_status status = ta_verify_target(problem, i, weights, error);
      if (status != TREEATTN_OK) {
        return status;
      }
      judge_children(request, i, nodes, weights, output);
    }
  }
  int32_t last_token = 0;
  const treeattn_status status = ta_verify_argmax(problem, best, &last_token, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  output->num_path = nodes->depth[best] + 1;
  for (int32_t i = best; i != 0; i = request->parents[i]) {
    output->path[nodes->depth[i]] = i;
    output->tokens[nodes->depth[i] - 1] = request->tokens[i];
  }
  const treeattn_verify_decision last = {best, -1, last_token, 1, 1, 0, NAN};
  ta_output_decide(output, &last);
  ta_output_finish(output, last_token);
  return TREEATTN_OK;
}
