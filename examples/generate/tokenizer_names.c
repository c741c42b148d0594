/* SPDX-License-Identifier: Apache-2.0 */
/* The table of names: open addressing with linear probing. */
#include "tokenizer_names.h"

#include <stdlib.h>
#include <string.h>

#include "fail.h"

static uint64_t hash_bytes(const char *text, size_t length) {
  uint64_t hash = UINT64_C(1469598103934665603);
  for (size_t b = 0; b < length; ++b) {
    hash = (hash ^ (unsigned char)text[b]) * UINT64_C(1099511628211);
  }
  return hash ^ hash >> 32;
}

size_t gen_table_size(int32_t entries) {
  size_t size = 16;
  while (size < (size_t)entries * 2) {
    size *= 2;
  }
  return size;
}

/* The slot of the name, or the empty one where it would be. */
static size_t slot_of(const gen_names *names, const char *name, size_t length) {
  size_t slot = hash_bytes(name, length) & names->mask;
  while (names->slots[slot] >= 0) {
    const char *candidate = names->tokens[names->slots[slot]];
    if (strlen(candidate) == length && memcmp(candidate, name, length) == 0) {
      break;
    }
    slot = (slot + 1) & names->mask;
  }
  return slot;
}

treeattn_status gen_names_create(gen_names *names, const char *const *tokens, int32_t num_tokens,
                                 treeattn_error *error) {
  const size_t size = gen_table_size(num_tokens);
  *names = (gen_names){tokens, malloc(size * sizeof *names->slots), size - 1};
  if (names->slots == NULL) {
    return gen_fail_memory(error);
  }
  memset(names->slots, -1, size * sizeof *names->slots);
  for (int32_t token = 0; token < num_tokens; ++token) {
    int32_t *slot = &names->slots[slot_of(names, tokens[token], strlen(tokens[token]))];
    *slot = *slot < 0 ? token : *slot;
  }
  return TREEATTN_OK;
}

void gen_names_destroy(gen_names *names) {
  free(names->slots);
  names->slots = NULL;
}

int32_t gen_names_find(const gen_names *names, const char *name, size_t length) {
  return names->slots[slot_of(names, name, length)];
}
