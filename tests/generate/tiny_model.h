/* SPDX-License-Identifier: Apache-2.0 */
/* Model files of a few kilobytes with random weights, for tests that need no download. */
#ifndef TESTS_TINY_MODEL_H
#define TESTS_TINY_MODEL_H

#include <ggml.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tiny_shape {
  const char *architecture; /* "llama" or "gemma3" */
  int64_t num_layers, width, num_heads, num_kv_heads, head_dim, ffn_width, vocab_size, window;
  enum ggml_type type; /* of the matrices */
  uint64_t seed;
} tiny_shape;

/* Two layers, 256 wide, so that every quantised type fits; 64 tokens. */
tiny_shape tiny_default(void);
/* The bytes of a GGUF file, aligned to 64; free with free(). */
unsigned char *tiny_make(const tiny_shape *shape, size_t *bytes);

/* From TREEATTN_TEST_SEED, or the default; printed by the caller where a case fails. */
uint64_t tiny_seed(uint64_t otherwise);
/* The next of a sequence; `state` starts as the seed. */
uint64_t tiny_random(uint64_t *state);

#endif
