/* SPDX-License-Identifier: Apache-2.0 */
/* SentencePiece's BPE: pieces with scores, spaces as U+2581, and bytes for what no piece has. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "tokenizer_kinds.h"
#include "tokenizer_merge.h"
#include "unicode.h"

static const char space_mark[] = "\xe2\x96\x81";
static const char replacement[] = "\xef\xbf\xbd";
enum { MARK_BYTES = 3, WORST_GROWTH = 3 };

struct gen_pieces {
  const gen_vocabulary *vocabulary;
  const gen_names *names;
  size_t longest; /* bytes of a piece that merging can make */
  int32_t *whole; /* [num_whole]: user-defined pieces, which are taken from the text before anything is merged */
  int32_t num_whole;
  int32_t byte_tokens[256]; /* -1: none */
  int16_t *bytes_of;        /* [num_tokens]: the byte of a byte token, -1: another token */
};

static bool is_piece(const gen_pieces *kind, int32_t token) {
  const int32_t type = kind->vocabulary->types == NULL ? GEN_TOKEN_NORMAL : kind->vocabulary->types[token];
  return type == GEN_TOKEN_NORMAL || type == GEN_TOKEN_USER;
}

static int32_t find_piece(const gen_pieces *kind, const char *text, size_t length) {
  const int32_t token = length > kind->longest ? -1 : gen_names_find(kind->names, text, length);
  return token >= 0 && is_piece(kind, token) ? token : -1;
}

/* ---- making ----------------------------------------------------------------------------------------------------- */

static treeattn_status read_token(gen_pieces *kind, int32_t token, treeattn_error *error) {
  const gen_vocabulary *vocabulary = kind->vocabulary;
  const int32_t type = vocabulary->types == NULL ? GEN_TOKEN_NORMAL : vocabulary->types[token];
  const char *name = vocabulary->tokens[token];
  const size_t length = strlen(name);
  kind->bytes_of[token] = -1;
  if (!isfinite(vocabulary->scores[token])) {
    return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "the score of token %" PRId32 " is %g", token,
                    (double)vocabulary->scores[token]);
  }
  if (type == GEN_TOKEN_UNUSED) {
    return gen_fail(error, TREEATTN_ERROR_UNSUPPORTED,
                    "token %" PRId32 " is an unused piece, and how such pieces fall apart again is not served", token);
  }
  if (type == GEN_TOKEN_BYTE) {
    unsigned byte = 0;
    int end = 0;
    if (length != 6 || sscanf(name, "<0x%2X>%n", &byte, &end) != 1 || end != 6) {
      return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "token %" PRId32 " stands for a byte, but is '%.40s'",
                      token, name);
    }
    kind->bytes_of[token] = (int16_t)byte;
    kind->byte_tokens[byte] = token;
  }
  if (type == GEN_TOKEN_USER && length > 0) {
    kind->whole[kind->num_whole++] = token;
  }
  if (is_piece(kind, token) && length > kind->longest) {
    kind->longest = length;
  }
  return TREEATTN_OK;
}

treeattn_status gen_pieces_create(const gen_vocabulary *vocabulary, const gen_names *names, gen_pieces **made,
                                  treeattn_error *error) {
  gen_pieces *kind = calloc(1, sizeof *kind);
  *made = kind;
  if (kind == NULL) {
    return gen_fail_memory(error);
  }
  const size_t num = (size_t)vocabulary->num_tokens + 1;
  kind->vocabulary = vocabulary;
  kind->names = names;
  kind->whole = malloc(num * sizeof *kind->whole);
  kind->bytes_of = malloc(num * sizeof *kind->bytes_of);
  memset(kind->byte_tokens, -1, sizeof kind->byte_tokens);
  treeattn_status status = kind->whole == NULL || kind->bytes_of == NULL ? gen_fail_memory(error) : TREEATTN_OK;
  for (int32_t token = 0; token < vocabulary->num_tokens && status == TREEATTN_OK; ++token) {
    status = read_token(kind, token, error);
  }
  return status;
}

void gen_pieces_destroy(gen_pieces *kind) {
  if (kind != NULL) {
    free(kind->whole);
    free(kind->bytes_of);
    free(kind);
  }
}

/* ---- encoding --------------------------------------------------------------------------------------------------- */

/* Spaces become their mark; a byte that begins no character becomes U+FFFD. Returns the bytes written. */
static size_t normalise(const char *text, size_t text_bytes, char *out) {
  size_t written = 0;
  for (size_t at = 0; at < text_bytes;) {
    uint32_t code = 0;
    const size_t bytes = gen_utf8_decode(text + at, text_bytes - at, &code);
    const bool broken = code == 0xfffd && bytes == 1;
    const char *from = text[at] == ' ' ? space_mark : broken ? replacement : text + at;
    const size_t num = text[at] == ' ' || broken ? MARK_BYTES : bytes;
    memcpy(out + written, from, num);
    written += num;
    at += bytes;
  }
  return written;
}

/* The longest user-defined piece that the text begins with, or one character. */
static gen_symbol symbol_at(const gen_pieces *kind, const char *text, size_t length) {
  gen_symbol made = {.token = -1};
  for (int32_t w = 0; w < kind->num_whole; ++w) {
    const char *name = kind->vocabulary->tokens[kind->whole[w]];
    if (name[0] != text[0]) {
      continue;
    }
    const size_t bytes = strlen(name);
    if (bytes > made.bytes && bytes <= length && memcmp(name, text, bytes) == 0) {
      made.token = kind->whole[w];
      made.bytes = bytes;
      made.frozen = true;
    }
  }
  if (!made.frozen) {
    uint32_t code = 0;
    made.bytes = gen_utf8_decode(text, length, &code);
    made.token = find_piece(kind, text, made.bytes);
  }
  return made;
}

typedef struct finding {
  const gen_pieces *kind;
  const char *text;
} finding;

static bool find_pair(const void *context, const gen_symbol *left, const gen_symbol *right, gen_pair *pair) {
  const finding *with = context;
  if (left->frozen || right->frozen) {
    return false;
  }
  pair->token = find_piece(with->kind, with->text + left->begin, left->bytes + right->bytes);
  if (pair->token < 0) {
    return false;
  }
  pair->order = -(double)with->kind->vocabulary->scores[pair->token];
  return true;
}

static treeattn_status put_symbol(const gen_pieces *kind, const char *text, const gen_symbol *symbol, gen_sink *sink,
                                  treeattn_error *error) {
  if (symbol->token >= 0) {
    gen_sink_put(sink, symbol->token);
    return TREEATTN_OK;
  }
  for (size_t b = 0; b < symbol->bytes; ++b) {
    const unsigned byte = (unsigned char)text[symbol->begin + b];
    if (kind->byte_tokens[byte] < 0) {
      return gen_fail(error, TREEATTN_ERROR_UNSUPPORTED, "the vocabulary has no token for byte 0x%02x", byte);
    }
    gen_sink_put(sink, kind->byte_tokens[byte]);
  }
  return TREEATTN_OK;
}

treeattn_status gen_pieces_encode(const gen_pieces *kind, const char *text, size_t text_bytes, gen_sink *sink,
                                  treeattn_error *error) {
  if (text_bytes == 0) {
    return TREEATTN_OK;
  }
  if (text_bytes > INT32_MAX / 8) {
    return gen_fail(error, TREEATTN_ERROR_OVERFLOW, "a text of %zu bytes", text_bytes);
  }
  char *normal = malloc(WORST_GROWTH * text_bytes);
  gen_symbol *symbols = malloc(text_bytes * sizeof *symbols);
  treeattn_status status = normal == NULL || symbols == NULL ? gen_fail_memory(error) : TREEATTN_OK;
  if (status == TREEATTN_OK) {
    const size_t length = normalise(text, text_bytes, normal);
    int32_t num = 0;
    for (size_t at = 0; at < length; at += symbols[num++].bytes) {
      symbols[num] = symbol_at(kind, normal + at, length - at);
      symbols[num].begin = at;
      symbols[num].previous = num - 1;
      symbols[num].next = at + symbols[num].bytes < length ? num + 1 : -1;
    }
    const finding with = {kind, normal};
    status = gen_merge(symbols, num, find_pair, &with, error);
    for (int32_t s = 0; s >= 0 && status == TREEATTN_OK; s = symbols[s].next) {
      status = put_symbol(kind, normal, &symbols[s], sink, error);
    }
  }
  free(normal);
  free(symbols);
  return status;
}

/* ---- decoding --------------------------------------------------------------------------------------------------- */

size_t gen_pieces_decode(const gen_pieces *kind, int32_t token, char *text, size_t capacity) {
  const char *name = kind->vocabulary->tokens[token];
  if (kind->bytes_of[token] >= 0) {
    if (capacity > 0) {
      text[0] = (char)kind->bytes_of[token];
    }
    return 1;
  }
  const size_t length = strlen(name);
  size_t written = 0;
  for (size_t at = 0; at < length; ++written) {
    const bool space = length - at >= MARK_BYTES && memcmp(name + at, space_mark, MARK_BYTES) == 0;
    if (written < capacity) {
      text[written] = space ? ' ' : name[at];
    }
    at += space ? MARK_BYTES : 1;
  }
  return written;
}
