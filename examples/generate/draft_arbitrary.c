/* SPDX-License-Identifier: Apache-2.0 */
/* Arbitrary tokens as drafts, so that every tree is full: for tests of what must not depend on the drafts. */
#include <stdlib.h>

#include "draft.h"
#include "fail.h"

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
