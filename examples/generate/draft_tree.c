/* SPDX-License-Identifier: Apache-2.0 */
/* From the drafters' guesses to a tree: grown level by level, then cut to the size that pays. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draft.h"
#include "fail.h"

struct gen_draft {
  int64_t max_nodes, max_levels;
  void *growth_memory;
  size_t growth_bytes;
  int64_t max_proposed;
  int32_t *parents, *tokens, *frontier, *proposed_parents, *proposed_tokens, *children, *counts;
  float *log_probs;
  double *values, *proposed_values, *sorted;
};

static treeattn_growth_args growth_args(const gen_draft *draft, int32_t root_token) {
  treeattn_growth_args args = TREEATTN_GROWTH_ARGS_INIT;
  args.root_token = root_token;
  args.top_k = draft->max_nodes;
  args.max_children = GEN_MAX_CHILDREN;
  args.max_levels = draft->max_levels;
  return args;
}

treeattn_status gen_draft_create(int64_t max_nodes, int64_t max_levels, gen_draft **draft, treeattn_error *error) {
  *draft = NULL;
  gen_draft *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return gen_fail_memory(error);
  }
  made->max_nodes = max_nodes;
  made->max_levels = max_levels;
  made->max_proposed = 1 + max_nodes * GEN_MAX_CHILDREN * (max_levels < 1 ? 1 : max_levels);
  const treeattn_growth_args args = growth_args(made, 0);
  treeattn_status status = treeattn_growth_bytes(&args, &made->growth_bytes, error);
  if (status == TREEATTN_OK) {
    const size_t nodes = (size_t)max_nodes;
    const size_t proposed = (size_t)made->max_proposed;
    made->growth_memory = malloc(made->growth_bytes);
    made->parents = malloc(nodes * sizeof *made->parents);
    made->tokens = malloc(nodes * sizeof *made->tokens);
    made->values = malloc(nodes * sizeof *made->values);
    made->frontier = malloc(nodes * sizeof *made->frontier);
    made->counts = malloc(nodes * sizeof *made->counts);
    made->children = malloc(nodes * GEN_MAX_CHILDREN * sizeof *made->children);
    made->log_probs = malloc(nodes * GEN_MAX_CHILDREN * sizeof *made->log_probs);
    made->proposed_parents = malloc(proposed * sizeof *made->proposed_parents);
    made->proposed_tokens = malloc(proposed * sizeof *made->proposed_tokens);
    made->proposed_values = malloc(proposed * sizeof *made->proposed_values);
    made->sorted = malloc(proposed * sizeof *made->sorted);
    if (made->growth_memory == NULL || made->parents == NULL || made->tokens == NULL || made->values == NULL ||
        made->frontier == NULL || made->counts == NULL || made->children == NULL || made->log_probs == NULL ||
        made->proposed_parents == NULL || made->proposed_tokens == NULL || made->proposed_values == NULL ||
        made->sorted == NULL) {
      status = gen_fail_memory(error);
    }
  }
  if (status != TREEATTN_OK) {
    gen_draft_destroy(made);
    return status;
  }
  *draft = made;
  return TREEATTN_OK;
}

void gen_draft_destroy(gen_draft *draft) {
  if (draft == NULL) {
    return;
  }
  free(draft->growth_memory);
  free(draft->parents);
  free(draft->tokens);
  free(draft->values);
  free(draft->frontier);
  free(draft->counts);
  free(draft->children);
  free(draft->log_probs);
  free(draft->proposed_parents);
  free(draft->proposed_tokens);
  free(draft->proposed_values);
  free(draft->sorted);
  free(draft);
}

/* All drafters' candidates for one node, each token once, the likeliest kept. What the earlier drafters leave is shared by
 * the later ones; a token that several name is likelier than each of them says. */
static int32_t candidates_of(const gen_drafter *drafters, int num_drafters, const int32_t *tokens, int64_t num_tokens,
                             int64_t max_children, int32_t *children, float *log_probs) {
  int32_t all[GEN_MAX_DRAFTERS * GEN_MAX_CHILDREN];
  float probabilities[GEN_MAX_DRAFTERS * GEN_MAX_CHILDREN];
  int num = 0;
  float left = 1.0f;
  for (int d = 0; d < num_drafters; ++d) {
    int32_t found[GEN_MAX_CHILDREN];
    float claimed[GEN_MAX_CHILDREN];
    const int64_t num_found =
        drafters[d].propose(drafters[d].context, tokens, num_tokens, GEN_MAX_CHILDREN, found, claimed);
    float used = 0.0f;
    for (int64_t f = 0; f < num_found; ++f) {
      int at = 0;
      while (at < num && all[at] != found[f]) {
        ++at;
      }
      if (at == num) {
        all[num] = found[f];
        probabilities[num++] = 0.0f;
      }
      probabilities[at] += (1.0f - probabilities[at]) * left * claimed[f];
      used += claimed[f];
    }
    left *= fmaxf(1.0f - used, 1e-6f);
  }
  int32_t kept = 0;
  for (; kept < max_children && kept < num; ++kept) {
    int best = kept;
    for (int c = kept + 1; c < num; ++c) {
      best = probabilities[c] > probabilities[best] ? c : best;
    }
    const int32_t token = all[best];
    const float probability = probabilities[best];
    all[best] = all[kept];
    probabilities[best] = probabilities[kept];
    children[kept] = token;
    log_probs[kept] = fminf(logf(fmaxf(probability, 1e-30f)), 0.0f);
  }
  return kept;
}

/* The tokens on the way to a proposed node, behind the text. */
static int64_t write_path(const gen_draft *draft, int32_t node, int32_t *tokens, int64_t num_tokens) {
  int64_t depth = 0;
  for (int32_t i = node; i > 0; i = draft->proposed_parents[i]) {
    ++depth;
  }
  int64_t at = num_tokens + depth;
  for (int32_t i = node; i > 0; i = draft->proposed_parents[i]) {
    tokens[--at] = draft->proposed_tokens[i];
  }
  return num_tokens + depth;
}

static int descending(const void *a, const void *b) {
  const double left = *(const double *)a;
  const double right = *(const double *)b;
  return left < right ? 1 : left > right ? -1 : 0;
}

/* A node of less value than this will not be in the tree, nor will what is below it: there are max_nodes better ones, or
 * it emits fewer tokens for what it costs than plain decoding does. */
static double least_value(const gen_draft *draft, int64_t num_proposed, const gen_tree_options *options) {
  double least = -INFINITY;
  if (num_proposed > options->max_nodes) {
    memcpy(draft->sorted, draft->proposed_values, (size_t)num_proposed * sizeof *draft->sorted);
    qsort(draft->sorted, (size_t)num_proposed, sizeof *draft->sorted, descending);
    least = draft->sorted[options->max_nodes - 1];
  }
  if (options->cost != NULL) {
    double cheapest = options->cost[0];
    for (int64_t n = 1; n < options->max_nodes; ++n) {
      cheapest = fmin(cheapest, options->cost[n] - options->cost[n - 1]);
    }
    least = fmax(least, log(fmax(cheapest, 0.0) / options->cost[0]));
  }
  return least;
}

static treeattn_status add_level(gen_draft *draft, treeattn_growth *growth, const gen_drafter *drafters,
                                 int num_drafters, int32_t *tokens, int64_t num_tokens, const gen_tree_options *options,
                                 bool *grew, treeattn_error *error) {
  int64_t num_frontier = 0;
  int64_t num_proposed = 0;
  treeattn_status status =
      treeattn_growth_get_frontier(growth, draft->frontier, draft->max_nodes, &num_frontier, error);
  if (status == TREEATTN_OK) {
    status = treeattn_growth_get_proposed(growth, draft->proposed_parents, draft->proposed_tokens,
                                          draft->proposed_values, draft->max_proposed, &num_proposed, error);
  }
  *grew = false;
  if (status != TREEATTN_OK || num_frontier == 0) {
    return status;
  }
  const double least = least_value(draft, num_proposed, options);
  for (int64_t f = 0; f < num_frontier; ++f) {
    draft->counts[f] = 0;
    if (draft->proposed_values[draft->frontier[f]] >= least) {
      const int64_t length = write_path(draft, draft->frontier[f], tokens, num_tokens);
      draft->counts[f] = candidates_of(drafters, num_drafters, tokens, length, options->max_children,
                                       draft->children + f * GEN_MAX_CHILDREN, draft->log_probs + f * GEN_MAX_CHILDREN);
    }
    *grew = *grew || draft->counts[f] > 0;
  }
  return treeattn_growth_add_level(growth, draft->children, draft->log_probs, draft->counts, 0, error);
}

/* A node's value is the logarithm of the probability that verification reaches it, so the best n nodes are worth the sum
 * of theirs. */
static int64_t size_that_pays(double *values, int64_t num_nodes, const double *cost) {
  qsort(values, (size_t)num_nodes, sizeof *values, descending);
  int64_t best = 1;
  double best_rate = 0.0;
  double expected = 0.0;
  for (int64_t n = 1; n <= num_nodes; ++n) {
    expected += exp(values[n - 1]);
    if (expected / cost[n - 1] > best_rate) {
      best_rate = expected / cost[n - 1];
      best = n;
    }
  }
  return best;
}

treeattn_status gen_draft_grow(gen_draft *draft, const gen_drafter *drafters, int num_drafters, int32_t *tokens,
                               int64_t num_tokens, const gen_tree_options *options, gen_tree *tree,
                               treeattn_error *error) {
  treeattn_growth *growth = NULL;
  treeattn_growth_args args = growth_args(draft, tokens[num_tokens - 1]);
  args.top_k = options->max_nodes < 1 ? 1 : options->max_nodes;
  args.max_levels = options->max_levels < options->max_nodes - 1 ? options->max_levels : options->max_nodes - 1;
  if (options->max_nodes < 1 || options->max_nodes > draft->max_nodes || args.max_levels > draft->max_levels) {
    return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "a tree of %lld nodes and %lld levels",
                    (long long)options->max_nodes, (long long)options->max_levels);
  }
  treeattn_status status = treeattn_growth_init(&args, draft->growth_memory, draft->growth_bytes, &growth, error);
  bool grew = args.max_levels > 0;
  while (status == TREEATTN_OK && grew) {
    status = add_level(draft, growth, drafters, num_drafters, tokens, num_tokens, options, &grew, error);
  }
  tree->parents = draft->parents;
  tree->tokens = draft->tokens;
  int64_t max_nodes = options->max_nodes;
  if (status == TREEATTN_OK && options->cost != NULL) {
    status = treeattn_growth_select(growth, max_nodes, draft->parents, NULL, draft->values, NULL, draft->max_nodes,
                                    &tree->num_nodes, error);
    max_nodes = status == TREEATTN_OK ? size_that_pays(draft->values, tree->num_nodes, options->cost) : max_nodes;
  }
  if (status == TREEATTN_OK) {
    status = treeattn_growth_select(growth, max_nodes, draft->parents, draft->tokens, draft->values, NULL,
                                    draft->max_nodes, &tree->num_nodes, error);
  }
  tree->expected_tokens = 0.0;
  for (int64_t i = 0; status == TREEATTN_OK && i < tree->num_nodes; ++i) {
    tree->expected_tokens += exp(draft->values[i]);
  }
  return status;
}
