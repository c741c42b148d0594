/* SPDX-License-Identifier: Apache-2.0 */
/* One verification in exactly the scratch that it asks for, and a model whose rows follow from the path's tokens. */
#ifndef TESTS_VERIFY_RUN_H
#define TESTS_VERIFY_RUN_H

#include <treeattn/verify.h>

#include "rng.h"

enum { VERIFY_MAX_NODES = 1100 };

typedef struct verify_outcome {
  int64_t num_path;
  int64_t num_decisions;
  int32_t path[VERIFY_MAX_NODES];
  int32_t tokens[VERIFY_MAX_NODES];
  treeattn_verify_decision decisions[VERIFY_MAX_NODES];
} verify_outcome;

/* On failure *outcome is checked to be as it was. */
treeattn_status verify_run(const treeattn_verify_request *request, int64_t vocab_size, verify_outcome *outcome,
                           treeattn_error *error);

treeattn_verify_rows verify_rows_f32(const float *data, int64_t num_rows, int64_t vocab_size);

/* Tokens on the path from the root to the node, the root's own included; returns how many. */
int verify_context(const int32_t *parents, const int32_t *tokens, int32_t node, int32_t *context);
/* A number in [0, 2^32) that depends on the seed, the context, and t. */
uint32_t verify_hash(uint64_t seed, const int32_t *context, int length, int t);

#endif
