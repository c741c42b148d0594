/* SPDX-License-Identifier: Apache-2.0 */
/* A plan and a run through the public interface. */
#ifndef EXAMPLES_DEMO_ATTEND_H
#define EXAMPLES_DEMO_ATTEND_H

#include "problem.h"

typedef struct demo_attention {
  treeattn_plan *plan;
  treeattn_plan_info info;
  void *scratch;
} demo_attention;

/* What a step attends: all nodes of the layer's tree, or the one token that follows `tokens_before` others. */
treeattn_request demo_tree_request(const problem *layer);
treeattn_request demo_next_token_request(int64_t tokens_before);

/* Both return false after reporting an error. `layer` gives sizes; the run reads q, k and v from where it is told. */
bool demo_attention_create(const problem *layer, const treeattn_request *request, int64_t num_workers,
                           demo_attention *a);
bool demo_attention_run(const demo_attention *a, const float *q, const void *k, const void *v,
                        const treeattn_executor *executor, float *out);
void demo_attention_destroy(demo_attention *a);

#endif
