/* SPDX-License-Identifier: Apache-2.0 */
/* From a token's name to its number. */
#ifndef GENERATE_TOKENIZER_NAMES_H
#define GENERATE_TOKENIZER_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include <treeattn/base.h>

typedef struct gen_names {
  const char *const *tokens; /* borrowed */
  int32_t *slots;            /* hash of the name -> token, -1: empty */
  size_t mask;
} gen_names;

treeattn_status gen_names_create(gen_names *names, const char *const *tokens, int32_t num_tokens,
                                 treeattn_error *error);
void gen_names_destroy(gen_names *names);
/* -1 if there is none; of tokens with one name the first. */
int32_t gen_names_find(const gen_names *names, const char *name, size_t length);

/* Slots of a hash table: a power of two, and at least twice the entries. */
size_t gen_table_size(int32_t entries);

#endif
