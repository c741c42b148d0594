/* SPDX-License-Identifier: Apache-2.0 */
/* Token recycling: the likeliest successors of the last 1 to 3 tokens, from every row that a step computes anyway. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draft.h"
#include "fail.h"

enum {
  NUM_SUCCESSORS = GEN_MAX_CHILDREN,
  NUM_ORDERS = GEN_OBSERVED_TOKENS,
  SLOT_BITS = 14,
  PROBES = 8,
  MAX_SEEN = 1024
};

typedef struct row {
  uint64_t key; /* 0: empty */
  int32_t tokens[NUM_SUCCESSORS];
  float shares[NUM_SUCCESSORS]; /* of the probability, as far as these successors have it */
} row;

typedef struct recycle {
  row *rows; /* [1 << SLOT_BITS], of all orders */
  /* By the number of tokens that were alike; 0: of another token's row. */
  double promised[NUM_ORDERS + 1], kept[NUM_ORDERS + 1];
  const struct ggml_tensor *embedding;
  float *directions; /* [MAX_SEEN][width]: of the tokens seen last, of length 1; then one to work with */
  int32_t seen[MAX_SEEN];
  int64_t num_seen; /* ever */
} recycle;

static uint64_t key_of(const int32_t *tokens, int64_t num_tokens, int order) {
  uint64_t mixed = (uint64_t)order;
  for (int64_t t = num_tokens - order; t < num_tokens; ++t) {
    mixed = (mixed ^ (uint32_t)tokens[t]) * UINT64_C(0x9e3779b97f4a7c15);
    mixed ^= mixed >> 29;
  }
  return mixed | 1;
}

static row *find(const recycle *table, uint64_t key) {
  for (uint64_t probe = 0; probe < PROBES; ++probe) {
    row *at = &table->rows[((key >> 20) + probe) & ((1 << SLOT_BITS) - 1)];
    if (at->key == key) {
      return at;
    }
  }
  return NULL;
}

static double scale_of(const recycle *table, int order) {
  static const double prior[NUM_ORDERS + 1] = {0.25, 0.35, 0.6, 0.75};
  return (table->kept[order] + 4.0 * prior[order]) / (table->promised[order] + 4.0);
}

/* ---- tokens that are new -------------------------------------------------------------------------------------------- */

static void direction_of(const recycle *table, int32_t token, float *direction) {
  const struct ggml_tensor *embedding = table->embedding;
  const int64_t width = embedding->ne[0];
  const char *data = (const char *)embedding->data + (size_t)token * embedding->nb[1];
  if (embedding->type == GGML_TYPE_F32) {
    memcpy(direction, data, (size_t)width * sizeof *direction);
  } else {
    ggml_get_type_traits(embedding->type)->to_float(data, direction, width);
  }
  float sum = 1e-20f;
  for (int64_t d = 0; d < width; ++d) {
    sum += direction[d] * direction[d];
  }
  for (int64_t d = 0; d < width; ++d) {
    direction[d] /= sqrtf(sum);
  }
}

static void see(recycle *table, int32_t token) {
  if (table->embedding != NULL) {
    const int64_t slot = table->num_seen++ % MAX_SEEN;
    table->seen[slot] = token;
    direction_of(table, token, table->directions + slot * table->embedding->ne[0]);
  }
}

/* The row of the token that is most like this one by the model's own embedding. */
static const row *find_alike(const recycle *table, int32_t token) {
  if (table->embedding == NULL || table->num_seen == 0) {
    return NULL;
  }
  const int64_t width = table->embedding->ne[0];
  const int64_t num = table->num_seen < MAX_SEEN ? table->num_seen : MAX_SEEN;
  float *direction = table->directions + (int64_t)MAX_SEEN * width;
  direction_of(table, token, direction);
  int64_t best = 0;
  float best_cosine = -2.0f;
  for (int64_t s = 0; s < num; ++s) {
    const float *other = table->directions + s * width;
    float cosine = 0.0f;
    for (int64_t d = 0; d < width; ++d) {
      cosine += direction[d] * other[d];
    }
    if (cosine > best_cosine) {
      best_cosine = cosine;
      best = s;
    }
  }
  return find(table, key_of(&table->seen[best], 1, 1));
}

/* The row behind the last `order` tokens; 0: behind a token like the last one, if that is new. */
static const row *row_of(const recycle *table, const int32_t *tokens, int64_t num_tokens, int order) {
  if (order > 0) {
    return num_tokens < order ? NULL : find(table, key_of(tokens, num_tokens, order));
  }
  return find(table, key_of(tokens, num_tokens, 1)) == NULL ? find_alike(table, tokens[num_tokens - 1]) : NULL;
}

/* ---- the drafter ------------------------------------------------------------------------------------------------------ */

static int64_t propose(void *context, const int32_t *tokens, int64_t num_tokens, int64_t capacity, int32_t *candidates,
                       float *probabilities) {
  const recycle *table = context;
  int64_t num = 0;
  double left = 1.0;
  for (int order = NUM_ORDERS; order >= 0 && num < capacity; --order) {
    const row *found = row_of(table, tokens, num_tokens, order);
    if (found == NULL) {
      continue;
    }
    const double scale = scale_of(table, order);
    double used = 0.0;
    for (int rank = 0; rank < NUM_SUCCESSORS && num < capacity; ++rank) {
      bool known = false;
      for (int64_t c = 0; c < num; ++c) {
        known = known || candidates[c] == found->tokens[rank];
      }
      if (!known) {
        candidates[num] = found->tokens[rank];
        probabilities[num++] = (float)(left * scale * (double)found->shares[rank]);
      }
      used += scale * (double)found->shares[rank];
    }
    left *= used < 1.0 ? 1.0 - used : 0.0;
  }
  return num;
}

static bool learn(void *context, const int32_t *tokens, int64_t num_tokens, int32_t next, bool missed) {
  recycle *table = context;
  bool had_it = false;
  for (int order = NUM_ORDERS; order >= 0 && !had_it; --order) {
    const row *found = row_of(table, tokens, num_tokens, order);
    if (found == NULL) {
      continue;
    }
    double promised = 0.0;
    for (int rank = 0; rank < NUM_SUCCESSORS; ++rank) {
      promised += (double)found->shares[rank];
      had_it = had_it || found->tokens[rank] == next;
    }
    if (missed) {
      table->promised[order] += promised;
      table->kept[order] += had_it ? 1.0 : 0.0;
    }
  }
  return had_it;
}

static void keep(recycle *table, uint64_t key, const row *seen) {
  row *at = find(table, key);
  for (uint64_t probe = 0; probe < PROBES && at == NULL; ++probe) {
    row *slot = &table->rows[((key >> 20) + probe) & ((1 << SLOT_BITS) - 1)];
    at = slot->key == 0 ? slot : NULL;
  }
  if (at == NULL) {
    at = &table->rows[(key >> 20) & ((1 << SLOT_BITS) - 1)];
  }
  *at = *seen;
  at->key = key;
}

static void observe(void *context, const int32_t *tokens, int64_t num_tokens, const float *logits, int64_t vocab_size) {
  recycle *table = context;
  row seen = {0};
  int num = 0;
  for (int64_t v = 0; v < vocab_size; ++v) {
    if (num == NUM_SUCCESSORS && !(logits[v] > logits[seen.tokens[num - 1]])) {
      continue;
    }
    int at = num < NUM_SUCCESSORS ? num++ : num - 1;
    for (; at > 0 && logits[v] > logits[seen.tokens[at - 1]]; --at) {
      seen.tokens[at] = seen.tokens[at - 1];
    }
    seen.tokens[at] = (int32_t)v;
  }
  float sum = 0.0f;
  for (int rank = 0; rank < num; ++rank) {
    seen.shares[rank] = expf(logits[seen.tokens[rank]] - logits[seen.tokens[0]]);
    sum += seen.shares[rank];
  }
  for (int rank = 0; rank < NUM_SUCCESSORS; ++rank) {
    seen.shares[rank] /= sum;
    seen.tokens[rank] = rank < num ? seen.tokens[rank] : seen.tokens[0];
  }
  if (find(table, key_of(tokens, num_tokens, 1)) == NULL) {
    see(table, tokens[num_tokens - 1]);
  }
  for (int order = 1; order <= NUM_ORDERS && order <= num_tokens; ++order) {
    keep(table, key_of(tokens, num_tokens, order), &seen);
  }
}

static void destroy(void *context) {
  recycle *table = context;
  free(table->rows);
  free(table->directions);
  free(table);
}

treeattn_status gen_drafter_recycle(const struct ggml_tensor *embedding, gen_drafter *drafter, treeattn_error *error) {
  recycle *table = calloc(1, sizeof *table);
  if (table == NULL) {
    return gen_fail_memory(error);
  }
  table->embedding = embedding;
  table->rows = calloc((size_t)1 << SLOT_BITS, sizeof *table->rows);
  table->directions =
      embedding == NULL ? NULL : malloc((size_t)(MAX_SEEN + 1) * (size_t)embedding->ne[0] * sizeof *table->directions);
  if (table->rows == NULL || (embedding != NULL && table->directions == NULL)) {
    destroy(table);
    return gen_fail_memory(error);
  }
  *drafter = (gen_drafter){"recycle", table, propose, learn, observe, destroy};
  return TREEATTN_OK;
}
