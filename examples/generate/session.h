/* SPDX-License-Identifier: Apache-2.0 */
/* The decoding loop: draft a tree, run the model over it, verify, compact, and once more. */
#ifndef GENERATE_SESSION_H
#define GENERATE_SESSION_H

#include <treeattn/verify.h>

#include "draft.h"
#include "forward.h"
#include "tokenizer.h"

enum { GEN_MAX_TREE = 64, GEN_MAX_LEVELS = 32, GEN_PREFILL_ROWS = 128 };

/* How a text is continued. */
typedef struct gen_decoding {
  int64_t max_nodes;    /* of a tree, root included; 1: plain decoding */
  int64_t max_children; /* 1: chains; otherwise GEN_MAX_CHILDREN */
  bool measured_size;   /* each tree as large as pays with the costs that gen_session_measure found */
  float temperature;    /* 0: greedy */
  uint64_t seed, request;
} gen_decoding;

/* What a step is about, for those who look on: before compaction, while the rows of the tree are where they were
 * computed. */
typedef struct gen_step {
  const gen_tree *tree;
  int64_t prefix_len;
  const int32_t *path, *emitted; /* [num_path]: accepted nodes from node 0 on; their tokens and the last token */
  int64_t num_path;
  const float *logits; /* [num_nodes][vocab_size] */
} gen_step;

typedef struct gen_watcher {
  /* Anything but TREEATTN_OK ends the step. */
  treeattn_status (*on_step)(void *context, const gen_step *step, treeattn_error *error);
  void *context;
} gen_watcher;

typedef struct gen_totals {
  int64_t num_steps, num_nodes, num_emitted; /* of steps, the prompt aside */
  double seconds, draft_seconds, forward_seconds, attention_seconds, verify_seconds, commit_seconds, prompt_seconds;
} gen_totals;

typedef struct gen_session {
  gen_forward *forward;
  gen_drafter drafters[GEN_MAX_DRAFTERS];
  int num_drafters;
  gen_draft *draft;
  int32_t *tokens; /* [capacity + GEN_MAX_LEVELS + 1]: all so far; the last one's keys are not in the cache yet */
  int64_t num_tokens, num_learnt;
  bool frozen; /* drafters learn no more */
  double cost[GEN_MAX_TREE];
  bool cost_known;
  gen_totals totals;

  int32_t path[GEN_MAX_TREE], emitted[GEN_MAX_TREE];
  float uniforms[GEN_MAX_TREE];
  void *scratch; /* of verification */
  size_t scratch_bytes;
} gen_session;

/* The forward is borrowed. */
treeattn_status gen_session_create(gen_forward *forward, gen_session **session, treeattn_error *error);
void gen_session_destroy(gen_session *session);

/* The session owns the drafter from here on, also after a failure. */
treeattn_status gen_session_add_drafter(gen_session *session, const gen_drafter *drafter, treeattn_error *error);
/* Look-up, counting and recycling. The tokenizer tells which tokens are digits; NULL: no counting. */
treeattn_status gen_session_add_default_drafters(gen_session *session, const gen_tokenizer *tokenizer,
                                                 treeattn_error *error);

/* Takes the prompt, 1 token or more. `cached`: the forward holds its keys and values from an earlier session. */
treeattn_status gen_session_prompt(gen_session *session, const int32_t *tokens, int64_t num_tokens, bool cached,
                                   treeattn_error *error);
/* Back to an earlier length, 1 or more, to continue another way. Drafters keep what they know and learn no more. */
void gen_session_rewind(gen_session *session, int64_t num_tokens);
/* Measures a step's cost for every tree size at the present length, without changing the text. */
treeattn_status gen_session_measure(gen_session *session, treeattn_error *error);
/* One step, which emits at most `limit` tokens; they are at tokens[num_tokens before the step]. */
treeattn_status gen_session_step(gen_session *session, const gen_decoding *decoding, int64_t limit,
                                 const gen_watcher *watcher, int64_t *num_emitted, treeattn_error *error);

double gen_seconds(void);

#endif
