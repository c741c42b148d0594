/* SPDX-License-Identifier: Apache-2.0 */
/* Drafters, which guess what comes next without a model of their own, and the tree that grows from their guesses. */
#ifndef GENERATE_DRAFT_H
#define GENERATE_DRAFT_H

#include <ggml.h>
#include <stdbool.h>
#include <stdint.h>

#include <treeattn/tree.h>

enum { GEN_MAX_DRAFTERS = 4, GEN_MAX_CHILDREN = 8, GEN_OBSERVED_TOKENS = 3 };

/*
 * A drafter. Several are asked one after another: each gives candidates for the token after tokens[0 .. num_tokens - 1]
 * with the probabilities that they have if none of the earlier drafters' candidates is right.
 */
typedef struct gen_drafter {
  const char *name;
  void *context;
  /* Distinct candidates, likeliest first, at most `capacity`; their probabilities sum to at most 1. */
  int64_t (*propose)(void *context, const int32_t *tokens, int64_t num_tokens, int64_t capacity, int32_t *candidates,
                     float *probabilities);
  /* `next` has been committed after these tokens, of the prompt too. `missed`: no earlier drafter had it. Returns
   * whether this one did. */
  bool (*learn)(void *context, const int32_t *tokens, int64_t num_tokens, int32_t next, bool missed);
  /* The target's row behind these tokens, the last of a longer text: of any verified node, rejected ones too. NULL if
   * the drafter does not care. */
  void (*observe)(void *context, const int32_t *tokens, int64_t num_tokens, const float *logits, int64_t vocab_size);
  void (*destroy)(void *context);
} gen_drafter;

/* What followed earlier occurrences of the last 1 to 6 tokens, or of those 1 or 2 before them (prompt look-up). */
treeattn_status gen_drafter_lookup(int64_t max_tokens, gen_drafter *drafter, treeattn_error *error);
/* What followed earlier places that differ in their numbers alone, numbers counted on. digit_tokens: of 0 to 9, -1: none. */
treeattn_status gen_drafter_count(const int32_t digit_tokens[10], int64_t vocab_size, int64_t max_tokens,
                                  gen_drafter *drafter, treeattn_error *error);
/* The likeliest successors in the target's row behind the last 1 to 3 tokens (token recycling, arXiv 2408.08696), or for a
 * token that was never seen behind the one most like it. embedding: a row for each token; NULL: nothing for new tokens. */
treeattn_status gen_drafter_recycle(const struct ggml_tensor *embedding, gen_drafter *drafter, treeattn_error *error);
/* Arbitrary tokens, so that every tree is full: for tests of what must not depend on the drafts. */
treeattn_status gen_drafter_arbitrary(int64_t vocab_size, gen_drafter *drafter, treeattn_error *error);

/* ---- the tree ------------------------------------------------------------------------------------------------- */

typedef struct gen_tree_options {
  int64_t max_nodes; /* root included */
  int64_t max_levels;
  int64_t max_children; /* 1: a chain */
  const double *cost;   /* [max_nodes] of a step with 1, 2 .. nodes: the size of most expected tokens per cost is
                             taken. NULL: max_nodes, as far as there are candidates */
} gen_tree_options;

typedef struct gen_tree {
  int64_t num_nodes;
  int32_t *parents, *tokens; /* [max_nodes] */
  double expected_tokens;    /* as the drafters see it */
} gen_tree;

typedef struct gen_draft gen_draft; /* working memory of the growth */

treeattn_status gen_draft_create(int64_t max_nodes, int64_t max_levels, gen_draft **draft, treeattn_error *error);
void gen_draft_destroy(gen_draft *draft);

/* Grows a tree below the last of the tokens. The tree's arrays belong to `draft` and stay until the next call.
 * tokens[num_tokens .. num_tokens + max_levels] is working memory. */
treeattn_status gen_draft_grow(gen_draft *draft, const gen_drafter *drafters, int num_drafters, int32_t *tokens,
                               int64_t num_tokens, const gen_tree_options *options, gen_tree *tree,
                               treeattn_error *error);

#endif
