/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exact law of a verification: every draft that the drafter may draw and every outcome of every coin is walked through
 * the library's own walk, and the probabilities are added up per sequence of tokens. Nothing is sampled.
 */
#ifndef TESTS_VERIFY_LAW_H
#define TESTS_VERIFY_LAW_H

#include <stdbool.h>
#include <stdint.h>

#include "rng.h"
#include "verify.h"

enum { LAW_MAX_VOCAB = 64, LAW_MAX_NODES = 96, LAW_MAX_TUPLES = 1 << 16 };

typedef enum law_drafter {
  LAW_CHOSEN,             /* the tokens stand in law_case.tokens */
  LAW_DRAWN_WITH,         /* each sibling from q */
  LAW_DRAWN_WITHOUT,      /* each from q without the siblings before it; uniform over all tokens once q is exhausted */
  LAW_DRAWN_FROM_FILTERED /* each from the likelier half of q, although q is what the verifier is told: a wrong drafter */
} law_drafter;

typedef struct law_case {
  int vocab_size;
  int num_nodes;
  int32_t parents[LAW_MAX_NODES];
  int32_t tokens[LAW_MAX_NODES];
  law_drafter drafter;
  bool
      lazy; /* a star: a sibling is drawn only when the one before it is rejected, which keeps long families countable */
  const ta_verify_rule *rule;
  /* The model: row of a context, the tokens below node 0. p: weights, or logits if is_logits. */
  void (*target_row)(const struct law_case *c, const int32_t *context, int length, float *row);
  void (*draft_row)(const struct law_case *c, const int32_t *context, int length, float *row);
  bool is_logits;
  float temperature;
  uint64_t seed; /* for the model */
  int style;     /* for the model */
} law_case;

typedef struct law_result {
  double worst;                /* largest |law - target| over all sequences of depth + 1 tokens */
  double total;                /* of the law: 1 */
  double first[LAW_MAX_VOCAB]; /* the law of the first token */
  int64_t num_walks;
} law_result;

law_result law_enumerate(const law_case *c);

#endif
