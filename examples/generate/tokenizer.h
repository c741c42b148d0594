/* SPDX-License-Identifier: Apache-2.0 */
/* Text to tokens and back: byte-level BPE as in GPT-2's family, or SentencePiece's BPE as Gemma has it. */
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

/* Everything is borrowed until destroy. Without scores, tokens are in the byte-level alphabet and merges are
 * "left right"; with them, tokens are SentencePiece's pieces and there are no merges. */
typedef struct gen_vocabulary {
  int32_t num_tokens;
  const char *const *tokens;
  const int32_t *types; /* NULL: all normal */
  int32_t num_merges;
  const char *const *merges;
  bool single_digits;  /* every number character is a word of its own */
  const float *scores; /* the higher, the earlier two neighbours are merged into this piece; NULL: byte-level */
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

/* A text from its beginning: the same with control tokens, behind the token that every text begins with, if there is one. */
treeattn_status gen_tokenizer_encode_prompt(const gen_tokenizer *tokenizer, const char *text, size_t text_bytes,
                                            int32_t *tokens, int64_t capacity, int64_t *num_tokens,
                                            treeattn_error *error);

/* The bytes of a token, at most `capacity` of them written; returns how many there are. Control tokens have their name. */
size_t gen_tokenizer_decode(const gen_tokenizer *tokenizer, int32_t token, char *text, size_t capacity);

/* -1 if there is none. */
int32_t gen_tokenizer_find(const gen_tokenizer *tokenizer, const char *name);
bool gen_tokenizer_is_control(const gen_tokenizer *tokenizer, int32_t token);
/* The token that every text begins with, -1 if the file asks for none; encode does not add it. */
int32_t gen_tokenizer_begin(const gen_tokenizer *tokenizer);
int32_t gen_tokenizer_end(const gen_tokenizer *tokenizer); /* the token that ends a text, -1 if the file names none */

#endif
