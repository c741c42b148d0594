/* SPDX-License-Identifier: Apache-2.0 */
/* A tokenizer from the fields of a GGUF file. */
#include <gguf.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "model.h"
#include "tokenizer_kinds.h"

static const char **strings_of(const struct gguf_context *file, int64_t field, int64_t length) {
  const char **strings = malloc((size_t)(length == 0 ? 1 : length) * sizeof *strings);
  for (int64_t s = 0; s < length && strings != NULL; ++s) {
    strings[s] = gguf_get_arr_str(file, field, (size_t)s);
  }
  return strings;
}

/* The merges and the way in which words are cut. */
static bool read_byte_level(const struct gguf_context *file, gen_vocabulary *vocabulary, const char ***merges,
                            treeattn_error *error) {
  const char *words = NULL;
  int64_t field = 0;
  int64_t length = 0;
  if (!gen_field_string(file, "tokenizer.ggml.pre", &words, error) ||
      !gen_field_array(file, "tokenizer.ggml.merges", GGUF_TYPE_STRING, &field, &length, error)) {
    return false;
  }
  vocabulary->single_digits = strcmp(words, "smollm") == 0;
  if (!vocabulary->single_digits && strcmp(words, "gpt-2") != 0) {
    (void)gen_fail(error, TREEATTN_ERROR_UNSUPPORTED,
                   "the tokenizer cuts words as '%.40s': smollm and gpt-2 are served", words);
    return false;
  }
  if (length > INT32_MAX / 4) {
    (void)gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%" PRId64 " merges", length);
    return false;
  }
  *merges = strings_of(file, field, length);
  if (*merges == NULL) {
    (void)gen_fail_memory(error);
    return false;
  }
  vocabulary->merges = *merges;
  vocabulary->num_merges = (int32_t)length;
  return true;
}

/* The scores, and that the text is taken as it is: what else SentencePiece can do to it is not served. */
static bool read_pieces(const struct gguf_context *file, gen_vocabulary *vocabulary, treeattn_error *error) {
  int64_t field = 0;
  int64_t length = 0;
  bool space_before = true;
  bool spaces_removed = false;
  if (!gen_field_array(file, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, &field, &length, error) ||
      !gen_field_flag(file, "tokenizer.ggml.add_space_prefix", &space_before, error) ||
      !gen_field_flag(file, "tokenizer.ggml.remove_extra_whitespaces", &spaces_removed, error)) {
    return false;
  }
  if (space_before || spaces_removed || gguf_find_key(file, "tokenizer.ggml.precompiled_charsmap") >= 0) {
    (void)gen_fail(error, TREEATTN_ERROR_UNSUPPORTED, "the tokenizer %s, which is not served",
                   space_before     ? "puts a space before the text"
                   : spaces_removed ? "removes spaces"
                                    : "maps characters to others");
    return false;
  }
  if (length != vocabulary->num_tokens) {
    (void)gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%" PRId32 " tokens with %" PRId64 " scores",
                   vocabulary->num_tokens, length);
    return false;
  }
  vocabulary->scores = gguf_get_arr_data(file, field);
  return true;
}

static bool read_tokens(const struct gguf_context *file, gen_vocabulary *vocabulary, const char ***tokens,
                        treeattn_error *error) {
  int64_t fields[2] = {0};
  int64_t lengths[2] = {0};
  if (!gen_field_array(file, "tokenizer.ggml.tokens", GGUF_TYPE_STRING, &fields[0], &lengths[0], error) ||
      !gen_field_array(file, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, &fields[1], &lengths[1], error)) {
    return false;
  }
  if (lengths[1] != lengths[0] || lengths[0] > INT32_MAX / 4) {
    (void)gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%" PRId64 " tokens with %" PRId64 " types", lengths[0],
                   lengths[1]);
    return false;
  }
  *tokens = strings_of(file, fields[0], lengths[0]);
  if (*tokens == NULL) {
    (void)gen_fail_memory(error);
    return false;
  }
  vocabulary->num_tokens = (int32_t)lengths[0];
  vocabulary->tokens = *tokens;
  vocabulary->types = gguf_get_arr_data(file, fields[1]);
  return true;
}

/* -1 where the file has no such field. */
static bool read_special(const struct gguf_context *file, const char *key, int32_t num_tokens, int32_t *token,
                         treeattn_error *error) {
  int64_t value = -1;
  if (gguf_find_key(file, key) >= 0 && !gen_field_count(file, key, 0, (int64_t)num_tokens - 1, &value, error)) {
    return false;
  }
  *token = (int32_t)value;
  return true;
}

treeattn_status gen_tokenizer_from_file(const struct gguf_context *file, gen_tokenizer **tokenizer,
                                        treeattn_error *error) {
  *tokenizer = NULL;
  treeattn_error local;
  error = error == NULL ? &local : error;
  const char *kind = NULL;
  if (!gen_field_string(file, "tokenizer.ggml.model", &kind, error)) {
    return error->status;
  }
  const bool pieces = strcmp(kind, "llama") == 0;
  if (!pieces && strcmp(kind, "gpt2") != 0) {
    return gen_fail(error, TREEATTN_ERROR_UNSUPPORTED, "the tokenizer is '%.40s': gpt2 and llama are served", kind);
  }
  gen_vocabulary vocabulary = {0};
  const char **tokens = NULL;
  const char **merges = NULL;
  int32_t begin = -1;
  int32_t end = -1;
  bool begins = false;
  treeattn_status status = TREEATTN_OK;
  if (!read_tokens(file, &vocabulary, &tokens, error) ||
      !(pieces ? read_pieces(file, &vocabulary, error) : read_byte_level(file, &vocabulary, &merges, error)) ||
      !gen_field_flag(file, "tokenizer.ggml.add_bos_token", &begins, error) ||
      !read_special(file, "tokenizer.ggml.bos_token_id", vocabulary.num_tokens, &begin, error) ||
      !read_special(file, "tokenizer.ggml.eos_token_id", vocabulary.num_tokens, &end, error)) {
    status = error->status;
  }
  if (status == TREEATTN_OK) {
    status = gen_tokenizer_create(&vocabulary, tokenizer, error);
  }
  if (status != TREEATTN_OK) {
    free(tokens);
    free(merges);
    return status;
  }
  (*tokenizer)->owned_tokens = tokens;
  (*tokenizer)->owned_merges = merges;
  (*tokenizer)->begin = begins ? begin : -1;
  (*tokenizer)->end = end;
  return TREEATTN_OK;
}
