/* SPDX-License-Identifier: Apache-2.0 */
/* The two kinds of tokenizer behind tokenizer.h: byte-level BPE, and SentencePiece's BPE. */
#ifndef GENERATE_TOKENIZER_KINDS_H
#define GENERATE_TOKENIZER_KINDS_H

#include "tokenizer.h"
#include "tokenizer_names.h"

/* Where tokens go: counted on past the capacity without being written. */
typedef struct gen_sink {
  int32_t *tokens;
  int64_t capacity, num_tokens;
} gen_sink;

void gen_sink_put(gen_sink *sink, int32_t token);

typedef struct gen_byte_level gen_byte_level;

treeattn_status gen_byte_level_create(const gen_vocabulary *vocabulary, const gen_names *names, gen_byte_level **made,
                                      treeattn_error *error);
void gen_byte_level_destroy(gen_byte_level *kind);
treeattn_status gen_byte_level_encode(const gen_byte_level *kind, const char *text, size_t text_bytes, gen_sink *sink,
                                      treeattn_error *error);
size_t gen_byte_level_decode(const gen_byte_level *kind, int32_t token, char *text, size_t capacity);

typedef struct gen_pieces gen_pieces;

treeattn_status gen_pieces_create(const gen_vocabulary *vocabulary, const gen_names *names, gen_pieces **made,
                                  treeattn_error *error);
void gen_pieces_destroy(gen_pieces *kind);
treeattn_status gen_pieces_encode(const gen_pieces *kind, const char *text, size_t text_bytes, gen_sink *sink,
                                  treeattn_error *error);
size_t gen_pieces_decode(const gen_pieces *kind, int32_t token, char *text, size_t capacity);

struct gen_tokenizer {
  gen_vocabulary vocabulary;
  gen_names names;
  gen_byte_level *byte_level; /* one of these two, the other NULL */
  gen_pieces *pieces;
  int32_t begin, end;
  const char **owned_tokens, **owned_merges; /* NULL where the caller owns them */
};

#endif
