/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-level BPE: the vocabulary's tables, merging, and the way back to bytes. */
#include "tokenizer.h"

#include <gguf.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "model.h"
#include "tokenizer_words.h"
#include "unicode.h"

/* Open addressing with linear probing; sizes are powers of two and at least twice the entries. */
typedef struct merge {
  int32_t left, right, rank, merged; /* left -1: empty */
} merge;

struct gen_tokenizer {
  gen_vocabulary vocabulary;
  int32_t *by_name; /* hash of the name -> token, -1: empty */
  size_t by_name_mask;
  merge *merges;
  size_t merges_mask;
  int32_t byte_tokens[256]; /* -1: the vocabulary has no token for this byte */
  int16_t bytes_of[512];    /* character of the byte-level alphabet -> byte, -1: none */
  int32_t end;
  const char **owned_tokens, **owned_merges;
};

/* ---- tables ------------------------------------------------------------------------------------------------- */

static uint64_t hash_bytes(const char *text, size_t length) {
  uint64_t hash = UINT64_C(1469598103934665603);
  for (size_t b = 0; b < length; ++b) {
    hash = (hash ^ (unsigned char)text[b]) * UINT64_C(1099511628211);
  }
  return hash ^ hash >> 32;
}

static uint64_t hash_pair(int32_t left, int32_t right) {
  uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ hash >> 29;
}

static size_t table_size(int32_t entries) {
  size_t size = 16;
  while (size < (size_t)entries * 2) {
    size *= 2;
  }
  return size;
}

static int32_t find_name(const gen_tokenizer *tokenizer, const char *name, size_t length) {
  for (size_t slot = hash_bytes(name, length) & tokenizer->by_name_mask;; slot = (slot + 1) & tokenizer->by_name_mask) {
    const int32_t token = tokenizer->by_name[slot];
    if (token < 0) {
      return -1;
    }
    const char *candidate = tokenizer->vocabulary.tokens[token];
    if (strlen(candidate) == length && memcmp(candidate, name, length) == 0) {
      return token;
    }
  }
}

static const merge *find_merge(const gen_tokenizer *tokenizer, int32_t left, int32_t right) {
  for (size_t slot = hash_pair(left, right) & tokenizer->merges_mask;; slot = (slot + 1) & tokenizer->merges_mask) {
    const merge *entry = &tokenizer->merges[slot];
    if (entry->left < 0) {
      return NULL;
    }
    if (entry->left == left && entry->right == right) {
      return entry;
    }
  }
}

static void fill_names(gen_tokenizer *tokenizer) {
  for (int32_t token = 0; token < tokenizer->vocabulary.num_tokens; ++token) {
    const char *name = tokenizer->vocabulary.tokens[token];
    const size_t length = strlen(name);
    if (find_name(tokenizer, name, length) >= 0) {
      continue; /* a name that stands twice belongs to its first token */
    }
    size_t slot = hash_bytes(name, length) & tokenizer->by_name_mask;
    while (tokenizer->by_name[slot] >= 0) {
      slot = (slot + 1) & tokenizer->by_name_mask;
    }
    tokenizer->by_name[slot] = token;
  }
}

static treeattn_status fill_merges(gen_tokenizer *tokenizer, treeattn_error *error) {
  for (int32_t rank = 0; rank < tokenizer->vocabulary.num_merges; ++rank) {
    const char *text = tokenizer->vocabulary.merges[rank];
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
    entry.left = find_name(tokenizer, text, left_length);
    entry.right = find_name(tokenizer, space + 1, length - left_length - 1);
    entry.merged = find_name(tokenizer, joined, length - 1);
    entry.rank = rank;
    if (entry.left < 0 || entry.right < 0 || entry.merged < 0) {
      return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                      "merge %" PRId32 " ('%.40s') names a token that the vocabulary lacks", rank, text);
    }
    if (find_merge(tokenizer, entry.left, entry.right) != NULL) {
      continue;
    }
    size_t slot = hash_pair(entry.left, entry.right) & tokenizer->merges_mask;
    while (tokenizer->merges[slot].left >= 0) {
      slot = (slot + 1) & tokenizer->merges_mask;
    }
    tokenizer->merges[slot] = entry;
  }
  return TREEATTN_OK;
}

/* GPT-2's alphabet: a byte that prints is its own character, the others follow from U+0100 on. */
static void fill_bytes(gen_tokenizer *tokenizer) {
  memset(tokenizer->bytes_of, -1, sizeof tokenizer->bytes_of);
  uint32_t next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const uint32_t code = prints ? byte : next++;
    char name[4];
    tokenizer->byte_tokens[byte] = find_name(tokenizer, name, gen_utf8_encode(code, name));
    tokenizer->bytes_of[code] = (int16_t)byte;
  }
}

treeattn_status gen_tokenizer_create(const gen_vocabulary *vocabulary, gen_tokenizer **tokenizer,
                                     treeattn_error *error) {
  *tokenizer = NULL;
  gen_tokenizer *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return gen_fail_memory(error);
  }
  made->vocabulary = *vocabulary;
  made->end = -1;
  const size_t num_names = table_size(vocabulary->num_tokens);
  const size_t num_merges = table_size(vocabulary->num_merges);
  made->by_name = malloc(num_names * sizeof *made->by_name);
  made->merges = malloc(num_merges * sizeof *made->merges);
  made->by_name_mask = num_names - 1;
  made->merges_mask = num_merges - 1;
  treeattn_status status = TREEATTN_OK;
  if (made->by_name == NULL || made->merges == NULL) {
    status = gen_fail_memory(error);
  } else {
    memset(made->by_name, -1, num_names * sizeof *made->by_name);
    memset(made->merges, -1, num_merges * sizeof *made->merges);
    fill_names(made);
    fill_bytes(made);
    status = fill_merges(made, error);
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
  free(tokenizer->owned_tokens);
  free(tokenizer->owned_merges);
  free(tokenizer->by_name);
  free(tokenizer->merges);
  free(tokenizer);
}

/* ---- from a model file ---------------------------------------------------------------------------------------- */

static const char **strings_of(const struct gguf_context *file, int64_t field, int64_t length) {
  const char **strings = malloc((size_t)(length == 0 ? 1 : length) * sizeof *strings);
  for (int64_t s = 0; s < length && strings != NULL; ++s) {
    strings[s] = gguf_get_arr_str(file, field, (size_t)s);
  }
  return strings;
}

treeattn_status gen_tokenizer_from_file(const struct gguf_context *file, gen_tokenizer **tokenizer,
                                        treeattn_error *error) {
  *tokenizer = NULL;
  treeattn_error local;
  error = error == NULL ? &local : error;
  const char *kind = NULL;
  const char *words = NULL;
  int64_t fields[3] = {0};
  int64_t lengths[3] = {0};
  if (!gen_field_string(file, "tokenizer.ggml.model", &kind, error)) {
    return error->status;
  }
  if (strcmp(kind, "gpt2") != 0) {
    return gen_fail(error, TREEATTN_ERROR_UNSUPPORTED, "the tokenizer is '%.40s': gpt2 is served", kind);
  }
  if (!gen_field_string(file, "tokenizer.ggml.pre", &words, error) ||
      !gen_field_array(file, "tokenizer.ggml.tokens", GGUF_TYPE_STRING, &fields[0], &lengths[0], error) ||
      !gen_field_array(file, "tokenizer.ggml.merges", GGUF_TYPE_STRING, &fields[1], &lengths[1], error) ||
      !gen_field_array(file, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, &fields[2], &lengths[2], error)) {
    return error->status;
  }
  const bool single_digits = strcmp(words, "smollm") == 0;
  if (!single_digits && strcmp(words, "gpt-2") != 0) {
    return gen_fail(error, TREEATTN_ERROR_UNSUPPORTED,
                    "the tokenizer cuts words as '%.40s': smollm and gpt-2 are served", words);
  }
  if (lengths[2] != lengths[0] || lengths[0] > INT32_MAX / 4 || lengths[1] > INT32_MAX / 4) {
    return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                    "%" PRId64 " tokens with %" PRId64 " types and %" PRId64 " merges", lengths[0], lengths[2],
                    lengths[1]);
  }
  int64_t end = -1;
  if (gguf_find_key(file, "tokenizer.ggml.eos_token_id") >= 0 &&
      !gen_field_count(file, "tokenizer.ggml.eos_token_id", 0, lengths[0] - 1, &end, error)) {
    return error->status;
  }
  const char **tokens = strings_of(file, fields[0], lengths[0]);
  const char **merges = strings_of(file, fields[1], lengths[1]);
  const gen_vocabulary vocabulary = {(int32_t)lengths[0], tokens, gguf_get_arr_data(file, fields[2]),
                                     (int32_t)lengths[1], merges, single_digits};
  treeattn_status status =
      tokens == NULL || merges == NULL ? gen_fail_memory(error) : gen_tokenizer_create(&vocabulary, tokenizer, error);
  if (status != TREEATTN_OK) {
    free(tokens);
    free(merges);
    return status;
  }
  (*tokenizer)->owned_tokens = tokens;
  (*tokenizer)->owned_merges = merges;
  (*tokenizer)->end = (int32_t)end;
  return TREEATTN_OK;
}

/* ---- encoding --------------------------------------------------------------------------------------------------- */

static void append(int32_t token, int32_t *tokens, int64_t capacity, int64_t *num_tokens) {
  if (*num_tokens < capacity) {
    tokens[*num_tokens] = token;
  }
  ++*num_tokens;
}

/* A word in the course of merging: a list of symbols, and a heap of the pairs that could merge, best rank first and
 * then leftmost. Entries of pairs that have changed since are recognised by the token they would make. */
typedef struct symbol {
  int32_t token, previous, next;
} symbol;

typedef struct candidate {
  int32_t rank, left, merged;
} candidate;

static bool before(candidate a, candidate b) {
  return a.rank < b.rank || (a.rank == b.rank && a.left < b.left);
}

static void push(candidate *heap, size_t *num, candidate added) {
  size_t at = (*num)++;
  while (at > 0 && before(added, heap[(at - 1) / 2])) {
    heap[at] = heap[(at - 1) / 2];
    at = (at - 1) / 2;
  }
  heap[at] = added;
}

static candidate pop(candidate *heap, size_t *num) {
  const candidate top = heap[0];
  const candidate moved = heap[--*num];
  size_t at = 0;
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= *num) {
      break;
    }
    child += child + 1 < *num && before(heap[child + 1], heap[child]) ? 1 : 0;
    if (!before(heap[child], moved)) {
      break;
    }
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = moved;
  return top;
}

static void offer(const gen_tokenizer *tokenizer, const symbol *symbols, int32_t left, candidate *heap, size_t *num) {
  if (left < 0 || symbols[left].next < 0) {
    return;
  }
  const merge *found = find_merge(tokenizer, symbols[left].token, symbols[symbols[left].next].token);
  if (found != NULL) {
    push(heap, num, (candidate){found->rank, left, found->merged});
  }
}

static void merge_word(const gen_tokenizer *tokenizer, symbol *symbols, int32_t num_symbols, candidate *heap) {
  size_t num = 0;
  for (int32_t s = 0; s + 1 < num_symbols; ++s) {
    offer(tokenizer, symbols, s, heap, &num);
  }
  while (num > 0) {
    const candidate best = pop(heap, &num);
    symbol *left = &symbols[best.left];
    if (left->token < 0 || left->next < 0) {
      continue;
    }
    symbol *right = &symbols[left->next];
    const merge *found = find_merge(tokenizer, left->token, right->token);
    if (found == NULL || found->rank != best.rank) {
      continue;
    }
    left->token = best.merged;
    right->token = -1;
    left->next = right->next;
    if (right->next >= 0) {
      symbols[right->next].previous = best.left;
    }
    offer(tokenizer, symbols, left->previous, heap, &num);
    offer(tokenizer, symbols, best.left, heap, &num);
  }
}

static treeattn_status encode_word(const gen_tokenizer *tokenizer, const char *text, size_t length, int32_t *tokens,
                                   int64_t capacity, int64_t *num_tokens, treeattn_error *error) {
  if (length > INT32_MAX / 4) {
    return gen_fail(error, TREEATTN_ERROR_OVERFLOW, "a word of %zu bytes", length);
  }
  symbol *symbols = malloc(length * sizeof *symbols);
  candidate *heap = malloc(3 * length * sizeof *heap); /* n - 1 pairs at first, two more for each of n - 1 merges */
  treeattn_status status = symbols == NULL || heap == NULL ? gen_fail_memory(error) : TREEATTN_OK;
  int32_t num_symbols = 0;
  for (size_t b = 0; b < length && status == TREEATTN_OK; ++b) {
    const int32_t token = tokenizer->byte_tokens[(unsigned char)text[b]];
    if (token < 0) {
      status = gen_fail(error, TREEATTN_ERROR_UNSUPPORTED, "the vocabulary has no token for byte 0x%02x",
                        (unsigned)(unsigned char)text[b]);
    }
    symbols[num_symbols] = (symbol){token, num_symbols - 1, b + 1 < length ? num_symbols + 1 : -1};
    ++num_symbols;
  }
  if (status == TREEATTN_OK) {
    merge_word(tokenizer, symbols, num_symbols, heap);
    for (int32_t s = 0; s >= 0; s = symbols[s].next) {
      append(symbols[s].token, tokens, capacity, num_tokens);
    }
  }
  free(symbols);
  free(heap);
  return status;
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
  treeattn_status status = TREEATTN_OK;
  size_t at = 0;
  while (at < text_bytes && status == TREEATTN_OK) {
    /* The text up to the next control token stands alone: no word reaches over it. */
    size_t end = text_bytes;
    size_t control_bytes = 0;
    int32_t control = -1;
    for (size_t c = at; parse_control && c < text_bytes && control < 0; ++c) {
      if (text[c] == '<') {
        control = control_at(tokenizer, text + c, text_bytes - c, &control_bytes);
        end = control >= 0 ? c : text_bytes;
      }
    }
    while (at < end && status == TREEATTN_OK) {
      const size_t length = gen_word_length(text + at, end - at, tokenizer->vocabulary.single_digits);
      status = encode_word(tokenizer, text + at, length, tokens, capacity, num_tokens, error);
      at += length;
    }
    if (control >= 0 && status == TREEATTN_OK) {
      append(control, tokens, capacity, num_tokens);
      at = end + control_bytes;
    }
  }
  return status;
}

/* ---- decoding --------------------------------------------------------------------------------------------------- */

bool gen_tokenizer_is_control(const gen_tokenizer *tokenizer, int32_t token) {
  return tokenizer->vocabulary.types != NULL && tokenizer->vocabulary.types[token] == GEN_TOKEN_CONTROL;
}

size_t gen_tokenizer_decode(const gen_tokenizer *tokenizer, int32_t token, char *text, size_t capacity) {
  if (token < 0 || token >= tokenizer->vocabulary.num_tokens) {
    return 0;
  }
  const char *name = tokenizer->vocabulary.tokens[token];
  const size_t length = strlen(name);
  const bool literal = gen_tokenizer_is_control(tokenizer, token);
  size_t written = 0;
  for (size_t at = 0; at < length;) {
    uint32_t code = 0;
    const size_t bytes = gen_utf8_decode(name + at, length - at, &code);
    if (!literal && code < 512 && tokenizer->bytes_of[code] >= 0) {
      if (written < capacity) {
        text[written] = (char)tokenizer->bytes_of[code];
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

int32_t gen_tokenizer_find(const gen_tokenizer *tokenizer, const char *name) {
  return find_name(tokenizer, name, strlen(name));
}

int32_t gen_tokenizer_end(const gen_tokenizer *tokenizer) {
  return tokenizer->end;
}
