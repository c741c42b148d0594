/* SPDX-License-Identifier: Apache-2.0 */
/* The lossless walk: candidate after candidate under a rule, with coins from outside. */
#include <math.h>

#include "verify.h"

treeattn_status ta_verify_target(const ta_verify_problem *problem, int64_t node, ta_weights *weights,
                                 treeattn_error *error) {
  const treeattn_verify_request *request = problem->request;
  if (request->logits.data != NULL) {
    return ta_weights_from_logits(weights, ta_rows_at(&request->logits, node, problem->vocab_size),
                                  ta_rows_dtype(&request->logits), problem->vocab_size, request->temperature,
                                  (ta_row_name){problem->prefix, "logits", node}, error);
  }
  return ta_weights_from_probs(weights, ta_rows_at(&request->probs, node, problem->vocab_size),
                               ta_rows_dtype(&request->probs), problem->vocab_size, false,
                               (ta_row_name){problem->prefix, "probs", node}, error);
}

static treeattn_status load_draft(const ta_verify_problem *problem, int64_t node, ta_weights *weights,
                                  treeattn_error *error) {
  const treeattn_verify_rows *rows = &problem->request->draft_probs;
  return ta_weights_from_probs(weights, ta_rows_at(rows, node, problem->vocab_size), ta_rows_dtype(rows),
                               problem->vocab_size, true, (ta_row_name){problem->prefix, "draft_probs", node}, error);
}

treeattn_status ta_verify_walk(const ta_verify_problem *problem, const ta_verify_rule *rule, const ta_chooser *chooser,
                               ta_verify_state *state, ta_verify_output *output, treeattn_error *error) {
  const treeattn_verify_request *request = problem->request;
  ta_output_start(output);
  int32_t stand = 0;
  bool draft_loaded = false;
  treeattn_status status = ta_verify_target(problem, stand, &state->target, error);
  /* Children come after their parent, so one ascending pass meets the whole path. */
  for (int64_t i = 1; i < request->num_nodes && status == TREEATTN_OK; i++) {
    if (request->parents[i] != stand) {
      continue;
    }
    if (rule->uses_draft && !draft_loaded) {
      status = load_draft(problem, stand, &state->draft, error);
      if (status != TREEATTN_OK) {
        break;
      }
      draft_loaded = true;
    }
    const int32_t token = request->tokens[i];
    treeattn_verify_decision decision = {stand, (int32_t)i, token, 0, rule->acceptance(state, token), 0, NAN};
    status = chooser->accept(chooser->context, &decision, error);
    if (status != TREEATTN_OK) {
      break;
    }
    if (!decision.accepted && !rule->reject(state, token)) {
      decision.accepted = 1;
      decision.probability = 1.0;
    }
    ta_output_decide(output, &decision);
    if (decision.accepted) {
      ta_output_accept(output, (int32_t)i, token);
      stand = (int32_t)i;
      draft_loaded = false;
      status = ta_verify_target(problem, stand, &state->target, error);
    }
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  treeattn_verify_decision last = {stand, -1, 0, 1, 0, 0, NAN};
  status = chooser->draw(chooser->context, &state->target, &last, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  last.probability = ta_weights_probability(&state->target, last.token);
  ta_output_decide(output, &last);
  ta_output_finish(output, last.token);
  return TREEATTN_OK;
}

/* Takes the next uniform and gives it to no other decision. */
static treeattn_status next_uniform(ta_uniform_source *source, treeattn_verify_decision *decision,
                                    treeattn_error *error) {
  const ta_verify_problem *problem = source->problem;
  const treeattn_verify_request *request = problem->request;
  if (source->next >= request->num_uniforms) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                   "%snum_uniforms is %lld: the walk needs another at node %ld; as many as nodes, %lld, always suffice",
                   problem->prefix, (long long)request->num_uniforms, (long)decision->row,
                   (long long)request->num_nodes);
  }
  const float uniform = request->uniforms[source->next];
  if (!(uniform >= 0.0f && uniform < 1.0f)) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_VALUE, "%suniforms[%lld] is %.9g: a uniform lies in [0, 1)",
                   problem->prefix, (long long)source->next, (double)uniform);
  }
  source->next++;
  decision->uniform = (double)uniform;
  return TREEATTN_OK;
}

static treeattn_status accept_by_uniform(void *context, treeattn_verify_decision *decision, treeattn_error *error) {
  const treeattn_status status = next_uniform(context, decision, error);
  decision->accepted = status == TREEATTN_OK && decision->uniform < decision->probability;
  return status;
}

static treeattn_status draw_by_uniform(void *context, const ta_weights *weights, treeattn_verify_decision *decision,
                                       treeattn_error *error) {
  const treeattn_status status = next_uniform(context, decision, error);
  if (status == TREEATTN_OK) {
    decision->token = ta_weights_draw(weights, decision->uniform);
  }
  return status;
}

ta_chooser ta_uniform_chooser(ta_uniform_source *source) {
  return (ta_chooser){source, accept_by_uniform, draw_by_uniform};
}
