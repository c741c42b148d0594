/* SPDX-License-Identifier: Apache-2.0 */
/* Prompt look-up: an index of all that has been seen so far, and how often each kind of match has been right. */
#include <stdlib.h>
#include <string.h>

#include "draft.h"
#include "fail.h"

enum { NUM_PATTERNS = 9, MAX_MATCHES = 8, HASH_BITS = 14 };

/* What has to be equal: `length` tokens, behind which `skipped` ones may be any, as where a list or a table has the same
 * words around another one. Asked in this order. */
typedef struct pattern {
  int length, skipped;
  double right; /* how often, before anything is known */
} pattern;

static const pattern patterns[NUM_PATTERNS] = {{6, 0, 0.7}, {5, 0, 0.6}, {4, 0, 0.5}, {3, 0, 0.5}, {2, 0, 0.4},
                                               {3, 1, 0.3}, {1, 0, 0.2}, {2, 1, 0.2}, {3, 2, 0.2}};

/* For each pattern, a chain of the places p whose tokens before p hash alike, latest first. */
typedef struct lookup {
  int32_t *history; /* what has been committed, as learn saw it */
  int64_t num_history, max_tokens;
  int32_t *heads[NUM_PATTERNS];    /* [1 << HASH_BITS], -1: none */
  int32_t *previous[NUM_PATTERNS]; /* [max_tokens] */
  double hits[NUM_PATTERNS], tries[NUM_PATTERNS];
} lookup;

static size_t hash(const int32_t *tokens, int length) {
  uint64_t mixed = (uint64_t)length;
  for (int t = 0; t < length; ++t) {
    mixed = (mixed ^ (uint32_t)tokens[t]) * UINT64_C(0x9e3779b97f4a7c15);
    mixed ^= mixed >> 29;
  }
  return (size_t)(mixed >> (64 - HASH_BITS));
}

/* The continuations of the text, latest first, each once; the weights say how often and how lately. */
static int64_t matches(const lookup *index, const int32_t *tokens, int64_t num_tokens, int which, int32_t *found,
                       float *weights) {
  const pattern *like = &patterns[which];
  const int reach = like->length + like->skipped;
  if (num_tokens < reach) {
    return 0;
  }
  const int32_t *equal = tokens + num_tokens - reach;
  int64_t num = 0;
  float weight = 1.0f;
  int looked_at = 0;
  for (int32_t p = index->heads[which][hash(equal, like->length)]; p >= 0 && looked_at < MAX_MATCHES;
       p = index->previous[which][p]) {
    if (memcmp(index->history + p - reach, equal, (size_t)like->length * sizeof *equal) != 0) {
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
  for (int which = 0; which < NUM_PATTERNS && num < capacity; ++which) {
    int32_t found[MAX_MATCHES];
    float weights[MAX_MATCHES];
    const int64_t num_found = matches(index, tokens, num_tokens, which, found, weights);
    if (num_found == 0) {
      continue;
    }
    float sum = 0.0f;
    for (int64_t f = 0; f < num_found; ++f) {
      sum += weights[f];
    }
    const float right = (float)((index->hits[which] + 2.0 * patterns[which].right) / (index->tries[which] + 2.0));
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
  for (int which = 0; which < NUM_PATTERNS && missed && !had_it; ++which) {
    int32_t found[MAX_MATCHES];
    float weights[MAX_MATCHES];
    const int64_t num_found = matches(index, tokens, num_tokens, which, found, weights);
    for (int64_t f = 0; f < num_found; ++f) {
      had_it = had_it || found[f] == next;
    }
    if (num_found > 0) {
      index->tries[which] += 1.0;
      index->hits[which] += had_it ? 1.0 : 0.0;
    }
  }
  if (num_tokens < index->max_tokens) {
    /* The history may be longer than what was learnt: the first call brings the first token. */
    memcpy(index->history + index->num_history, tokens + index->num_history,
           (size_t)(num_tokens - index->num_history) * sizeof *tokens);
    index->history[num_tokens] = next;
    index->num_history = num_tokens + 1;
    for (int which = 0; which < NUM_PATTERNS; ++which) {
      const int reach = patterns[which].length + patterns[which].skipped;
      if (reach <= num_tokens) {
        int32_t *head = &index->heads[which][hash(tokens + num_tokens - reach, patterns[which].length)];
        index->previous[which][num_tokens] = *head;
        *head = (int32_t)num_tokens;
      }
    }
  }
  return had_it;
}

static void destroy(void *context) {
  lookup *index = context;
  for (int which = 0; which < NUM_PATTERNS; ++which) {
    free(index->heads[which]);
    free(index->previous[which]);
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
  for (int which = 0; which < NUM_PATTERNS; ++which) {
    index->heads[which] = malloc(sizeof(int32_t) << HASH_BITS);
    index->previous[which] = malloc((size_t)max_tokens * sizeof(int32_t));
    complete = complete && index->heads[which] != NULL && index->previous[which] != NULL;
    if (complete) {
      memset(index->heads[which], -1, sizeof(int32_t) << HASH_BITS);
    }
  }
  if (!complete) {
    destroy(index);
    return gen_fail_memory(error);
  }
  *drafter = (gen_drafter){"lookup", index, propose, learn, NULL, destroy};
  return TREEATTN_OK;
}
