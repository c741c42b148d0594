/* SPDX-License-Identifier: Apache-2.0 */
/* Prompt look-up: an index of all n-grams seen so far, and how often each order of match has been right. */
#include <stdlib.h>
#include <string.h>

#include "draft.h"
#include "fail.h"

enum { MAX_ORDER = 6, MAX_MATCHES = 8, HASH_BITS = 16 };

/* For each order n, a chain of the places p whose n tokens before p hash alike, latest first. */
typedef struct lookup {
  int32_t *history; /* what has been committed, as learn saw it */
  int64_t num_history, max_tokens;
  int32_t *heads[MAX_ORDER];    /* [1 << HASH_BITS], -1: none */
  int32_t *previous[MAX_ORDER]; /* [max_tokens] */
  double hits[MAX_ORDER], tries[MAX_ORDER];
} lookup;

static size_t hash(const int32_t *tokens, int order) {
  uint64_t mixed = (uint64_t)order;
  for (int t = 0; t < order; ++t) {
    mixed = (mixed ^ (uint32_t)tokens[t]) * UINT64_C(0x9e3779b97f4a7c15);
    mixed ^= mixed >> 29;
  }
  return (size_t)(mixed >> (64 - HASH_BITS));
}

/* The continuations of the last `order` tokens, latest first, each once; the weights say how often and how lately. */
static int64_t matches(const lookup *index, const int32_t *tokens, int64_t num_tokens, int order, int32_t *found,
                       float *weights) {
  if (num_tokens < order) {
    return 0;
  }
  const int32_t *suffix = tokens + num_tokens - order;
  int64_t num = 0;
  float weight = 1.0f;
  int looked_at = 0;
  for (int32_t p = index->heads[order - 1][hash(suffix, order)]; p >= 0 && looked_at < MAX_MATCHES;
       p = index->previous[order - 1][p]) {
    if (memcmp(index->history + p - order, suffix, (size_t)order * sizeof *suffix) != 0) {
      continue;
    }
    ++looked_at;
    int64_t at = 0;
    while (at < num && found[at] != index->history[p]) {
      ++at;
    }
    if (at == num) {
      found[num] = index->history[p];
      weights[num++] = 0.0f;
    }
    weights[at] += weight;
    weight *= 0.7f;
  }
  return num;
}

static int64_t propose(void *context, const int32_t *tokens, int64_t num_tokens, int64_t capacity, int32_t *candidates,
                       float *probabilities) {
  const lookup *index = context;
  int64_t num = 0;
  float left = 1.0f; /* the probability that no longer match was right */
  for (int order = MAX_ORDER; order >= 1 && num < capacity; --order) {
    int32_t found[MAX_MATCHES];
    float weights[MAX_MATCHES];
    const int64_t num_found = matches(index, tokens, num_tokens, order, found, weights);
    if (num_found == 0) {
      continue;
    }
    float sum = 0.0f;
    for (int64_t f = 0; f < num_found; ++f) {
      sum += weights[f];
    }
    const float right = (float)((index->hits[order - 1] + 1.0) / (index->tries[order - 1] + 2.0));
    for (int64_t f = 0; f < num_found && num < capacity; ++f) {
      bool known = false;
      for (int64_t c = 0; c < num; ++c) {
        known = known || candidates[c] == found[f];
      }
      if (!known) {
        candidates[num] = found[f];
        probabilities[num++] = left * right * weights[f] / sum;
      }
    }
    left *= 1.0f - right;
  }
  return num;
}

static bool learn(void *context, const int32_t *tokens, int64_t num_tokens, int32_t next, bool missed) {
  lookup *index = context;
  bool had_it = false;
  for (int order = MAX_ORDER; order >= 1 && missed && !had_it; --order) {
    int32_t found[MAX_MATCHES];
    float weights[MAX_MATCHES];
    const int64_t num_found = matches(index, tokens, num_tokens, order, found, weights);
    for (int64_t f = 0; f < num_found; ++f) {
      had_it = had_it || found[f] == next;
    }
    if (num_found > 0) {
      index->tries[order - 1] += 1.0;
      index->hits[order - 1] += had_it ? 1.0 : 0.0;
    }
  }
  if (num_tokens < index->max_tokens) {
    /* The history may be longer than what was learnt: the first call brings the first token. */
    memcpy(index->history + index->num_history, tokens + index->num_history,
           (size_t)(num_tokens - index->num_history) * sizeof *tokens);
    index->history[num_tokens] = next;
    index->num_history = num_tokens + 1;
    for (int order = 1; order <= MAX_ORDER && order <= num_tokens; ++order) {
      int32_t *head = &index->heads[order - 1][hash(tokens + num_tokens - order, order)];
      index->previous[order - 1][num_tokens] = *head;
      *head = (int32_t)num_tokens;
    }
  }
  return had_it;
}

static void destroy(void *context) {
  lookup *index = context;
  for (int order = 0; order < MAX_ORDER; ++order) {
    free(index->heads[order]);
    free(index->previous[order]);
  }
  free(index->history);
  free(index);
}

treeattn_status gen_drafter_lookup(int64_t max_tokens, gen_drafter *drafter, treeattn_error *error) {
  lookup *index = calloc(1, sizeof *index);
  if (index == NULL) {
    return gen_fail_memory(error);
  }
  index->max_tokens = max_tokens;
  index->history = malloc((size_t)max_tokens * sizeof *index->history);
  bool complete = index->history != NULL;
  for (int order = 0; order < MAX_ORDER; ++order) {
    index->heads[order] = malloc(sizeof(int32_t) << HASH_BITS);
    index->previous[order] = malloc((size_t)max_tokens * sizeof(int32_t));
    complete = complete && index->heads[order] != NULL && index->previous[order] != NULL;
    if (complete) {
      memset(index->heads[order], -1, sizeof(int32_t) << HASH_BITS);
    }
  }
  if (!complete) {
    destroy(index);
    return gen_fail_memory(error);
  }
  *drafter = (gen_drafter){"lookup", index, propose, learn, NULL, destroy};
  return TREEATTN_OK;
}
