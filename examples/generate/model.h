/* SPDX-License-Identifier: Apache-2.0 */
/* A language model in a GGUF file: its shape and its weights, which stay where the file is mapped. */
#ifndef GENERATE_MODEL_H
#define GENERATE_MODEL_H

#include <ggml.h>
#include <gguf.h>
#include <stdbool.h>
#include <stdint.h>

#include <treeattn/base.h>

typedef enum gen_architecture {
  GEN_LLAMA, /* SmolLM2 and its like: RoPE over pairs (2i, 2i+1), SwiGLU */
  GEN_GEMMA3 /* norms around both halves of a layer and on Q and K, window layers, GeGLU, RoPE over halves */
} gen_architecture;

/* Absent tensors are NULL. */
typedef struct gen_layer {
  struct ggml_tensor *attn_norm, *query, *key, *value, *query_norm, *key_norm, *attn_output, *post_attn_norm;
  struct ggml_tensor *ffn_norm, *gate, *up, *down, *post_ffn_norm;
  int64_t window; /* 0: the layer sees everything */
  float rope_base;
} gen_layer;

typedef struct gen_model {
  gen_architecture architecture;
  int64_t num_layers, width, num_heads, num_kv_heads, head_dim, ffn_width, vocab_size, context_len;
  float norm_epsilon;
  float embedding_scale; /* 1: embeddings are taken as they are */
  gen_layer *layers;
  struct ggml_tensor *embedding, *output_norm, *output; /* output may be the embedding */

  struct gguf_context *file; /* the tokenizer reads its fields too */
  struct ggml_context *tensors;
  void *map;
  size_t map_bytes;
  bool owns_map;
} gen_model;

/* Maps the file and checks every field that is used; the message names it. INVALID_ARGUMENT: the file cannot be read or
 * is damaged; UNSUPPORTED: another architecture, tensor type or variant. */
treeattn_status gen_model_open(const char *path, gen_model **model, treeattn_error *error);
/* The same for a file's bytes, which must outlive the model. `data` is aligned to 32 bytes. */
treeattn_status gen_model_open_bytes(const void *data, size_t bytes, gen_model **model, treeattn_error *error);
void gen_model_close(gen_model *model); /* NULL is legal */

/* ---- typed fields of the file, shared with the tokenizer ---- */

/* False after filling `error` if the field is absent or of another type. */
bool gen_field_string(const struct gguf_context *file, const char *key, const char **value, treeattn_error *error);
bool gen_field_count(const struct gguf_context *file, const char *key, int64_t minimum, int64_t maximum, int64_t *value,
                     treeattn_error *error);
bool gen_field_float(const struct gguf_context *file, const char *key, float *value, treeattn_error *error);
/* An absent field leaves the value as it is. */
bool gen_field_flag(const struct gguf_context *file, const char *key, bool *value, treeattn_error *error);
/* The place and length of an array whose elements have this type. */
bool gen_field_array(const struct gguf_context *file, const char *key, enum gguf_type type, int64_t *field,
                     int64_t *length, treeattn_error *error);

#endif
