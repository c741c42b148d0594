/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-level BPE: the table of merges, words to tokens, and the way back to bytes. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "tokenizer_kinds.h"
#include "tokenizer_merge.h"
#include "tokenizer_words.h"
#include "unicode.h"

/* Open addressing with linear probing; sizes are powers of two and at least twice the entries. */
typedef struct merge {
  int32_t left, right, rank, merged; /* left -1: empty */
} merge;

struct gen_byte_level {
  const gen_vocabulary *vocabulary;
  const gen_names *names;
  merge *merges;
  size_t merges_mask;
  int32_t byte_tokens[256]; /* -1: the vocabulary has no token for this byte */
  int16_t bytes_of[512];    /* character of the byte-level alphabet -> byte, -1: none */
};

/* ---- tables ------------------------------------------------------------------------------------------------- */

static uint64_t hash_pair(int32_t left, int32_t right) {
  uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ hash >> 29;
}

static const merge *find_merge(const gen_byte_level *kind, int32_t left, int32_t right) {
  for (size_t slot = hash_pair(left, right) & kind->merges_mask;; slot = (slot + 1) & kind->merges_mask) {
    const merge *entry = &kind->merges[slot];
    if (entry->left < 0) {
      return NULL;
    }
    if (entry->left == left && entry->right == right) {
      return entry;
    }
  }
}

static treeattn_status fill_merges(gen_byte_level *kind, treeattn_error *error) {
  for (int32_t rank = 0; rank < kind->vocabulary->num_merges; ++rank) {
    const char *text = kind->vocabulary->merges[rank];
    const size_t length = strlen(text);
    const char *space = length < 2 ? NULL : strchr(text + 1, ' ');
    char joined[1024];
    if (space == NULL || length >= sizeof joined) {
      return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "merge %" PRId32 " is not two tokens", rank);
    }
    const size_t left_length = (size_t)(space - text);
    memcpy(joined, text, left_length);
    memcpy(joined + left_length, space + 1, length - left_length - 1);
    merge entry;
    entry.left = gen_names_find(kind->names, text, left_length);
    entry.right = gen_names_find(kind->names, space + 1, length - left_length - 1);
    entry.merged = gen_names_find(kind->names, joined, length - 1);
    entry.rank = rank;
    if (entry.left < 0 || entry.right < 0 || entry.merged < 0) {
      return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                      "merge %" PRId32 " ('%.40s') names a token that the vocabulary lacks", rank, text);
    }
    if (find_merge(kind, entry.left, entry.right) != NULL) {
      continue;
    }
    size_t slot = hash_pair(entry.left, entry.right) & kind->merges_mask;
    while (kind->merges[slot].left >= 0) {
      slot = (slot + 1) & kind->merges_mask;
    }
    kind->merges[slot] = entry;
  }
  return TREEATTN_OK;
}

/* GPT-2's alphabet: a byte that prints is its own character, the others follow from U+0100 on. */
static void fill_bytes(gen_byte_level *kind) {
  memset(kind->bytes_of, -1, sizeof kind->bytes_of);
  uint32_t next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const uint32_t code = prints ? byte : next++;
    char name[4];
    kind->byte_tokens[byte] = gen_names_find(kind->names, name, gen_utf8_encode(code, name));
    kind->bytes_of[code] = (int16_t)byte;
  }
}

treeattn_status gen_byte_level_create(const gen_vocabulary *vocabulary, const gen_names *names, gen_byte_level **made,
                                      treeattn_error *error) {
  gen_byte_level *kind = calloc(1, sizeof *kind);
  *made = kind;
  if (kind == NULL) {
    return gen_fail_memory(error);
  }
  const size_t num_merges = gen_table_size(vocabulary->num_merges);
  kind->vocabulary = vocabulary;
  kind->names = names;
  kind->merges = malloc(num_merges * sizeof *kind->merges);
  kind->merges_mask = num_merges - 1;
  if (kind->merges == NULL) {
    return gen_fail_memory(error);
  }
  memset(kind->merges, -1, num_merges * sizeof *kind->merges);
  fill_bytes(kind);
  return fill_merges(kind, error);
}

void gen_byte_level_destroy(gen_byte_level *kind) {
  if (kind != NULL) {
    free(kind->merges);
    free(kind);
  }
}

/* ---- encoding --------------------------------------------------------------------------------------------------- */

static bool find_pair(const void *context, const gen_symbol *left, const gen_symbol *right, gen_pair *pair) {
  const merge *found = find_merge(context, left->token, right->token);
  if (found != NULL) {
    *pair = (gen_pair){(double)found->rank, found->merged};
  }
  return found != NULL;
}

static treeattn_status encode_word(const gen_byte_level *kind, const char *text, size_t length, gen_sink *sink,
                                   treeattn_error *error) {
  if (length > INT32_MAX / 4) {
    return gen_fail(error, TREEATTN_ERROR_OVERFLOW, "a word of %zu bytes", length);
  }
  gen_symbol *symbols = malloc(length * sizeof *symbols);
  treeattn_status status = symbols == NULL ? gen_fail_memory(error) : TREEATTN_OK;
  int32_t num = 0;
  for (size_t b = 0; b < length && status == TREEATTN_OK; ++b, ++num) {
    const int32_t token = kind->byte_tokens[(unsigned char)text[b]];
    if (token < 0) {
      status = gen_fail(error, TREEATTN_ERROR_UNSUPPORTED, "the vocabulary has no token for byte 0x%02x",
                        (unsigned)(unsigned char)text[b]);
    }
    symbols[num] = (gen_symbol){token, num - 1, b + 1 < length ? num + 1 : -1, b, 1, false};
  }
  if (status == TREEATTN_OK) {
    status = gen_merge(symbols, num, find_pair, kind, error);
  }
  for (int32_t s = 0; s >= 0 && status == TREEATTN_OK; s = symbols[s].next) {
    gen_sink_put(sink, symbols[s].token);
  }
  free(symbols);
  return status;
}

treeattn_status gen_byte_level_encode(const gen_byte_level *kind, const char *text, size_t text_bytes, gen_sink *sink,
                                      treeattn_error *error) {
  treeattn_status status = TREEATTN_OK;
  for (size_t at = 0; at < text_bytes && status == TREEATTN_OK;) {
    const size_t length = gen_word_length(text + at, text_bytes - at, kind->vocabulary->single_digits);
    status = encode_word(kind, text + at, length, sink, error);
    at += length;
  }
  return status;
}

/* ---- decoding --------------------------------------------------------------------------------------------------- */

size_t gen_byte_level_decode(const gen_byte_level *kind, int32_t token, char *text, size_t capacity) {
  const char *name = kind->vocabulary->tokens[token];
  const size_t length = strlen(name);
  size_t written = 0;
  for (size_t at = 0; at < length;) {
    uint32_t code = 0;
    const size_t bytes = gen_utf8_decode(name + at, length - at, &code);
    if (code < 512 && kind->bytes_of[code] >= 0) {
      if (written < capacity) {
        text[written] = (char)kind->bytes_of[code];
      }
      ++written;
    } else {
      for (size_t b = 0; b < bytes; ++b, ++written) {
        if (written < capacity) {
          text[written] = name[at + b];
        }
      }
    }
    at += bytes;
  }
  return written;
}
