/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the model loader and the tokenizer's tables. Build with -DTREEATTN_FUZZ=ON -DTREEATTN_BUILD_GENERATE=ON. */
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "tiny_model.h"
#include "tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t capacity, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t capacity);

/* Starts from a file that loads, where the input is none: nothing else gets past the first checks. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t capacity, unsigned seed) {
  static unsigned char *good;
  static size_t good_bytes;
  if (good == NULL) {
    tiny_shape shape = tiny_default();
    shape.num_layers = 1;
    shape.width = 32;
    shape.head_dim = 8;
    shape.ffn_width = 32;
    shape.vocab_size = 8;
    good = tiny_make(&shape, &good_bytes);
  }
  (void)seed;
  if (bytes < 64 && good_bytes <= capacity) {
    memcpy(data, good, good_bytes);
    bytes = good_bytes;
  }
  return LLVMFuzzerMutate(data, bytes, capacity);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  unsigned char *copy = aligned_alloc(32, (bytes + 32) / 32 * 32);
  if (copy == NULL) {
    return 0;
  }
  memcpy(copy, data, bytes);
  gen_model *model = NULL;
  gen_tokenizer *tokenizer = NULL;
  treeattn_error error;
  if (gen_model_open_bytes(copy, bytes, &model, &error) == TREEATTN_OK &&
      gen_tokenizer_from_file(model->file, &tokenizer, &error) == TREEATTN_OK) {
    int32_t tokens[16];
    int64_t num_tokens = 0;
    (void)gen_tokenizer_encode(tokenizer, "!\"#a<", 5, true, tokens, 16, &num_tokens, &error);
    for (int64_t t = 0; t < num_tokens && t < 16; ++t) {
      char text[8];
      (void)gen_tokenizer_decode(tokenizer, tokens[t], text, sizeof text);
    }
  }
  gen_tokenizer_destroy(tokenizer);
  gen_model_close(model);
  free(copy);
  return 0;
}
