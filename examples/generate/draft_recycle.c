/* SPDX-License-Identifier: Apache-2.0 */
/* Token recycling: a table of each token's likeliest successors, renewed from every row that a step computes anyway. */
#include <stdlib.h>
#include <string.h>

#include "draft.h"
#include "fail.h"

enum { NUM_SUCCESSORS = GEN_MAX_CHILDREN };

typedef struct recycle {
  int32_t (*successors)[NUM_SUCCESSORS]; /* [vocab_size], -1: none yet */
  int64_t vocab_size;
  double hits[NUM_SUCCESSORS], tries; /* how often each rank was right where nothing better had the token */
} recycle;

static int64_t propose(void *context, const int32_t *tokens, int64_t num_tokens, int64_t capacity, int32_t *candidates,
                       float *probabilities) {
  const recycle *table = context;
  const int32_t *row = table->successors[tokens[num_tokens - 1]];
  int64_t num = 0;
  while (num < NUM_SUCCESSORS && num < capacity && row[num] >= 0) {
    candidates[num] = row[num];
    /* Before anything is known: the first successor 1 in 4, each further one half of it. */
    const double prior = 1.0 / (double)((int64_t)4 << num);
    probabilities[num] = (float)((table->hits[num] + 8.0 * prior) / (table->tries + 8.0));
    ++num;
  }
  return num;
}

static bool learn(void *context, const int32_t *tokens, int64_t num_tokens, int32_t next, bool missed) {
  recycle *table = context;
  const int32_t *row = table->successors[tokens[num_tokens - 1]];
  if (row[0] < 0) {
    return false;
  }
  int64_t rank = 0;
  while (rank < NUM_SUCCESSORS && row[rank] != next) {
    ++rank;
  }
  if (missed) {
    table->tries += 1.0;
    if (rank < NUM_SUCCESSORS) {
      table->hits[rank] += 1.0;
    }
  }
  return rank < NUM_SUCCESSORS;
}

static void observe(void *context, int32_t token, const float *logits, int64_t vocab_size) {
  recycle *table = context;
  int32_t best[NUM_SUCCESSORS];
  int num = 0;
  for (int64_t v = 0; v < vocab_size; ++v) {
    if (num == NUM_SUCCESSORS && !(logits[v] > logits[best[num - 1]])) {
      continue;
    }
    int at = num < NUM_SUCCESSORS ? num++ : num - 1;
    for (; at > 0 && logits[v] > logits[best[at - 1]]; --at) {
      best[at] = best[at - 1];
    }
    best[at] = (int32_t)v;
  }
  for (int rank = 0; rank < NUM_SUCCESSORS; ++rank) {
    table->successors[token][rank] = rank < num ? best[rank] : -1;
  }
}

static void destroy(void *context) {
  recycle *table = context;
  free(table->successors);
  free(table);
}

treeattn_status gen_drafter_recycle(int64_t vocab_size, gen_drafter *drafter, treeattn_error *error) {
  recycle *table = calloc(1, sizeof *table);
  if (table == NULL) {
    return gen_fail_memory(error);
  }
  table->vocab_size = vocab_size;
  table->successors = malloc((size_t)vocab_size * sizeof *table->successors);
  if (table->successors == NULL) {
    destroy(table);
    return gen_fail_memory(error);
  }
  memset(table->successors, -1, (size_t)vocab_size * sizeof *table->successors);
  *drafter = (gen_drafter){"recycle", table, propose, learn, observe, destroy};
  return TREEATTN_OK;
}

/* ---- arbitrary tokens ------------------------------------------------------------------------------------------- */

typedef struct arbitrary {
  int64_t vocab_size;
} arbitrary;

static int64_t propose_arbitrary(void *context, const int32_t *tokens, int64_t num_tokens, int64_t capacity,
                                 int32_t *candidates, float *probabilities) {
  const arbitrary *source = context;
  int64_t num = 0;
  while (num < GEN_MAX_CHILDREN && num < capacity && num < source->vocab_size) {
    const uint64_t mixed =
        (uint64_t)(uint32_t)tokens[num_tokens - 1] * UINT64_C(2654435761) + (uint64_t)num_tokens * 97;
    candidates[num] = (int32_t)((mixed + (uint64_t)num) % (uint64_t)source->vocab_size);
    probabilities[num++] = 1e-6f;
  }
  return num;
}

static bool learn_nothing(void *context, const int32_t *tokens, int64_t num_tokens, int32_t next, bool missed) {
  (void)context;
  (void)tokens;
  (void)num_tokens;
  (void)next;
  (void)missed;
  return false;
}

treeattn_status gen_drafter_arbitrary(int64_t vocab_size, gen_drafter *drafter, treeattn_error *error) {
  arbitrary *source = malloc(sizeof *source);
  if (source == NULL) {
    return gen_fail_memory(error);
  }
  source->vocab_size = vocab_size;
  *drafter = (gen_drafter){"arbitrary", source, propose_arbitrary, learn_nothing, NULL, free};
  return TREEATTN_OK;
}
