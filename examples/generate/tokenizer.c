/* SPDX-License-Identifier: Apache-2.0 */
/* What both kinds of tokenizer share: names, control tokens in the text, and the hand-over to the kind. */
#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "tokenizer_kinds.h"

void gen_sink_put(gen_sink *sink, int32_t token) {
  if (sink->num_tokens < sink->capacity) {
    sink->tokens[sink->num_tokens] = token;
  }
  ++sink->num_tokens;
}

treeattn_status gen_tokenizer_create(const gen_vocabulary *vocabulary, gen_tokenizer **tokenizer,
                                     treeattn_error *error) {
  *tokenizer = NULL;
  gen_tokenizer *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return gen_fail_memory(error);
  }
  made->vocabulary = *vocabulary;
  made->begin = -1;
  made->end = -1;
  treeattn_status status = gen_names_create(&made->names, vocabulary->tokens, vocabulary->num_tokens, error);
  if (status == TREEATTN_OK) {
    status = vocabulary->scores == NULL
                 ? gen_byte_level_create(&made->vocabulary, &made->names, &made->byte_level, error)
                 : gen_pieces_create(&made->vocabulary, &made->names, &made->pieces, error);
  }
  if (status != TREEATTN_OK) {
    gen_tokenizer_destroy(made);
    return status;
  }
  *tokenizer = made;
  return TREEATTN_OK;
}

void gen_tokenizer_destroy(gen_tokenizer *tokenizer) {
  if (tokenizer == NULL) {
    return;
  }
  gen_byte_level_destroy(tokenizer->byte_level);
  gen_pieces_destroy(tokenizer->pieces);
  gen_names_destroy(&tokenizer->names);
  free(tokenizer->owned_tokens);
  free(tokenizer->owned_merges);
  free(tokenizer);
}

/* The longest control token that the text begins with. */
static int32_t control_at(const gen_tokenizer *tokenizer, const char *text, size_t length, size_t *token_length) {
  int32_t best = -1;
  *token_length = 0;
  for (int32_t token = 0; token < tokenizer->vocabulary.num_tokens; ++token) {
    if (!gen_tokenizer_is_control(tokenizer, token)) {
      continue;
    }
    const size_t bytes = strlen(tokenizer->vocabulary.tokens[token]);
    if (bytes > *token_length && bytes <= length && memcmp(tokenizer->vocabulary.tokens[token], text, bytes) == 0) {
      best = token;
      *token_length = bytes;
    }
  }
  return best;
}

treeattn_status gen_tokenizer_encode(const gen_tokenizer *tokenizer, const char *text, size_t text_bytes,
                                     bool parse_control, int32_t *tokens, int64_t capacity, int64_t *num_tokens,
                                     treeattn_error *error) {
  gen_sink sink = {tokens, capacity, *num_tokens};
  treeattn_status status = TREEATTN_OK;
  size_t at = 0;
  while (at < text_bytes && status == TREEATTN_OK) {
    /* The text up to the next control token stands alone: nothing is merged over it. */
    size_t end = text_bytes;
    size_t control_bytes = 0;
    int32_t control = -1;
    for (size_t c = at; parse_control && c < text_bytes && control < 0; ++c) {
      if (text[c] == '<') {
        control = control_at(tokenizer, text + c, text_bytes - c, &control_bytes);
        end = control >= 0 ? c : text_bytes;
      }
    }
    status = tokenizer->pieces != NULL
                 ? gen_pieces_encode(tokenizer->pieces, text + at, end - at, &sink, error)
                 : gen_byte_level_encode(tokenizer->byte_level, text + at, end - at, &sink, error);
    at = end + control_bytes;
    if (control >= 0 && status == TREEATTN_OK) {
      gen_sink_put(&sink, control);
    }
  }
  *num_tokens = sink.num_tokens;
  return status;
}

treeattn_status gen_tokenizer_encode_prompt(const gen_tokenizer *tokenizer, const char *text, size_t text_bytes,
                                            int32_t *tokens, int64_t capacity, int64_t *num_tokens,
                                            treeattn_error *error) {
  *num_tokens = 0;
  const int32_t begin = gen_tokenizer_begin(tokenizer);
  if (begin >= 0) {
    gen_sink sink = {tokens, capacity, 0};
    gen_sink_put(&sink, begin);
    *num_tokens = sink.num_tokens;
  }
  return gen_tokenizer_encode(tokenizer, text, text_bytes, true, tokens, capacity, num_tokens, error);
}

size_t gen_tokenizer_decode(const gen_tokenizer *tokenizer, int32_t token, char *text, size_t capacity) {
  if (token < 0 || token >= tokenizer->vocabulary.num_tokens) {
    return 0;
  }
  if (gen_tokenizer_is_control(tokenizer, token)) {
    const size_t length = strlen(tokenizer->vocabulary.tokens[token]);
    memcpy(text, tokenizer->vocabulary.tokens[token], length < capacity ? length : capacity);
    return length;
  }
  return tokenizer->pieces != NULL ? gen_pieces_decode(tokenizer->pieces, token, text, capacity)
                                   : gen_byte_level_decode(tokenizer->byte_level, token, text, capacity);
}

bool gen_tokenizer_is_control(const gen_tokenizer *tokenizer, int32_t token) {
  return tokenizer->vocabulary.types != NULL && tokenizer->vocabulary.types[token] == GEN_TOKEN_CONTROL;
}

int32_t gen_tokenizer_find(const gen_tokenizer *tokenizer, const char *name) {
  return gen_names_find(&tokenizer->names, name, strlen(name));
}

int32_t gen_tokenizer_begin(const gen_tokenizer *tokenizer) {
  return tokenizer->begin;
}

int32_t gen_tokenizer_end(const gen_tokenizer *tokenizer) {
  return tokenizer->end;
}
