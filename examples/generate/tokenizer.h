/* SPDX-License-Identifier: Apache-2.0 */
/* Text to tokens and back, as the byte-level BPE tokenizers of GPT-2's family do it. */
#ifndef GENERATE_TOKENIZER_H
#define GENERATE_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include <treeattn/base.h>

struct gguf_context;

typedef struct gen_tokenizer gen_tokenizer;

/* What a vocabulary says of its tokens; values as in GGUF files. */
enum {
  GEN_TOKEN_NORMAL = 1,
  GEN_TOKEN_UNKNOWN = 2,
  GEN_TOKEN_CONTROL = 3,
  GEN_TOKEN_USER = 4,
  GEN_TOKEN_UNUSED = 5,
  GEN_TOKEN_BYTE = 6
};

/* Everything is borrowed until destroy. tokens are in the byte-level alphabet, merges are "left right". */
typedef struct gen_vocabulary {
  int32_t num_tokens;
  const char *const *tokens;
  const int32_t *types; /* NULL: all normal */
  int32_t num_merges;
  const char *const *merges;
  bool single_digits; /* every number character is a word of its own */
} gen_vocabulary;

treeattn_status gen_tokenizer_create(const gen_vocabulary *vocabulary, gen_tokenizer **tokenizer,
                                     treeattn_error *error);
/* From the fields of a model file, which must stay open. */
treeattn_status gen_tokenizer_from_file(const struct gguf_context *file, gen_tokenizer **tokenizer,
                                        treeattn_error *error);
void gen_tokenizer_destroy(gen_tokenizer *tokenizer); /* NULL is legal */

/*
 * Appends the tokens of `text` to tokens[capacity] from *num_tokens on, and counts on past the capacity without writing, so that
 * a caller can tell how many there would have been. With `parse_control` the names of control tokens in the text become
 * these tokens; without it they are text like any other.
 */
treeattn_status gen_tokenizer_encode(const gen_tokenizer *tokenizer, const char *text, size_t text_bytes,
                                     bool parse_control, int32_t *tokens, int64_t capacity, int64_t *num_tokens,
                                     treeattn_error *error);

/* The bytes of a token, at most `capacity` of them written; returns how many there are. Control tokens have their name. */
size_t gen_tokenizer_decode(const gen_tokenizer *tokenizer, int32_t token, char *text, size_t capacity);

/* -1 if there is none. */
int32_t gen_tokenizer_find(const gen_tokenizer *tokenizer, const char *name);
bool gen_tokenizer_is_control(const gen_tokenizer *tokenizer, int32_t token);
int32_t gen_tokenizer_end(const gen_tokenizer *tokenizer); /* the token that ends a text, -1 if the file names none */

#endif
