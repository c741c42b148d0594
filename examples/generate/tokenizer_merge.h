/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-pair merging: of all neighbours that can become one token, the best pair first, and of equals the leftmost. */
#ifndef GENERATE_TOKENIZER_MERGE_H
#define GENERATE_TOKENIZER_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <treeattn/base.h>

/* A list in the order of the text. */
typedef struct gen_symbol {
  int32_t token; /* -1: the vocabulary has none */
  int32_t previous, next;
  size_t begin, bytes; /* in the text; 0 bytes: merged into the one before */
  bool frozen;         /* never merged */
} gen_symbol;

typedef struct gen_pair {
  double order; /* lower is merged earlier */
  int32_t token;
} gen_pair;

/* Whether two neighbours can become one. The pair that it gives tells the two from any other two at their place. */
typedef bool (*gen_pair_finder)(const void *context, const gen_symbol *left, const gen_symbol *right, gen_pair *pair);

/* Merges symbols[num_symbols] until no pair is left; what remains is linked by `next`, from symbol 0 on. */
treeattn_status gen_merge(gen_symbol *symbols, int32_t num_symbols, gen_pair_finder find, const void *context,
                          treeattn_error *error);

#endif
