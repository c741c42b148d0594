/* SPDX-License-Identifier: Apache-2.0 */
/* Model files of a few kilobytes with random weights, for tests that need no download. */
#include "tiny_model.h"

#include <ggml-cpu.h>
#include <gguf.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t tiny_random(uint64_t *state) {
  uint64_t mixed = (*state += UINT64_C(0x9e3779b97f4a7c15));
  mixed = (mixed ^ mixed >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94d049bb133111eb);
  return mixed ^ mixed >> 31;
}

uint64_t tiny_seed(uint64_t otherwise) {
  const char *text = getenv("TREEATTN_TEST_SEED");
  return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

tiny_shape tiny_default(void) {
  const tiny_shape shape = {"llama", 2, 256, 4, 2, 64, 512, 64, 0, GGML_TYPE_Q8_0, 1};
  return shape;
}

typedef struct maker {
  const tiny_shape *shape;
  struct gguf_context *file;
  struct ggml_context *context;
  uint64_t state;
} maker;

static float uniform(maker *making) {
  return (float)(tiny_random(&making->state) >> 40) * 0x1p-24f * 2.0f - 1.0f;
}

/* rows 0: a norm's weights, around 1. */
static void add(maker *making, const char *name, int64_t columns, int64_t rows, float scale) {
  const enum ggml_type type = rows == 0 ? GGML_TYPE_F32 : making->shape->type;
  struct ggml_tensor *tensor = rows == 0 ? ggml_new_tensor_1d(making->context, type, columns)
                                         : ggml_new_tensor_2d(making->context, type, columns, rows);
  (void)ggml_set_name(tensor, name);
  const int64_t num = columns * (rows == 0 ? 1 : rows);
  float *values = malloc((size_t)num * sizeof *values);
  for (int64_t v = 0; v < num; ++v) {
    values[v] = rows == 0 ? 1.0f + 0.3f * uniform(making) : scale * uniform(making);
  }
  if (type == GGML_TYPE_F32) {
    memcpy(tensor->data, values, (size_t)num * sizeof *values);
  } else {
    (void)ggml_quantize_chunk(type, values, tensor->data, 0, rows, columns, NULL);
  }
  free(values);
  gguf_add_tensor(making->file, tensor);
}

static void add_of_layer(maker *making, int64_t layer, const char *name, int64_t columns, int64_t rows, float scale) {
  char full[64];
  (void)snprintf(full, sizeof full, "blk.%d.%s.weight", (int)layer, name);
  add(making, full, columns, rows, scale);
}

static void add_tensors(maker *making) {
  const tiny_shape *shape = making->shape;
  const int gemma = strcmp(shape->architecture, "gemma3") == 0;
  const int64_t query = shape->num_heads * shape->head_dim;
  const int64_t key = shape->num_kv_heads * shape->head_dim;
  const float scale = 2.0f / sqrtf((float)shape->width);
  add(making, "token_embd.weight", shape->width, shape->vocab_size, 1.0f);
  add(making, "output_norm.weight", shape->width, 0, 0.0f);
  for (int64_t l = 0; l < shape->num_layers; ++l) {
    add_of_layer(making, l, "attn_norm", shape->width, 0, 0.0f);
    /* Queries and keys large enough that attention is peaked. */
    add_of_layer(making, l, "attn_q", shape->width, query, 3.0f * scale);
    add_of_layer(making, l, "attn_k", shape->width, key, 3.0f * scale);
    add_of_layer(making, l, "attn_v", shape->width, key, scale);
    add_of_layer(making, l, "attn_output", query, shape->width, scale);
    add_of_layer(making, l, "ffn_norm", shape->width, 0, 0.0f);
    add_of_layer(making, l, "ffn_gate", shape->width, shape->ffn_width, scale);
    add_of_layer(making, l, "ffn_up", shape->width, shape->ffn_width, scale);
    add_of_layer(making, l, "ffn_down", shape->ffn_width, shape->width, scale);
    if (gemma) {
      add_of_layer(making, l, "attn_q_norm", shape->head_dim, 0, 0.0f);
      add_of_layer(making, l, "attn_k_norm", shape->head_dim, 0, 0.0f);
      add_of_layer(making, l, "post_attention_norm", shape->width, 0, 0.0f);
      add_of_layer(making, l, "post_ffw_norm", shape->width, 0, 0.0f);
    }
  }
}

static void set_u32(maker *making, const char *name, int64_t value) {
  char key[96];
  (void)snprintf(key, sizeof key, "%s.%s", making->shape->architecture, name);
  gguf_set_val_u32(making->file, key, (uint32_t)value);
}

static void set_f32(maker *making, const char *name, float value) {
  char key[96];
  (void)snprintf(key, sizeof key, "%s.%s", making->shape->architecture, name);
  gguf_set_val_f32(making->file, key, value);
}

/* The last tokens of SentencePiece's vocabulary, one of each type. */
static void set_last(char (*names)[16], int32_t *types, float *scores, int64_t num) {
  static const char *const last[] = {"!\"", "#!", "<0x20>", "<bos>"};
  static const int32_t kinds[] = {1, 4, 6, 3};
  for (int64_t t = 0; t < 4 && t < num; ++t) {
    (void)snprintf(names[num - 1 - t], sizeof names[0], "%s", last[t]);
    types[num - 1 - t] = kinds[t];
    scores[num - 1 - t] = 1.0f;
  }
}

/* Printable bytes stand for themselves; there is one merge: gpt2's tables for llama, SentencePiece's for gemma3. */
static void set_tokens(maker *making) {
  const bool pieces = strcmp(making->shape->architecture, "gemma3") == 0;
  const int64_t num = making->shape->vocab_size;
  char(*names)[16] = malloc((size_t)num * sizeof *names);
  const char **pointers = malloc((size_t)num * sizeof *pointers);
  int32_t *types = malloc((size_t)num * sizeof *types);
  float *scores = malloc((size_t)num * sizeof *scores);
  for (int64_t t = 0; t < num; ++t) {
    if (t < 94) {
      (void)snprintf(names[t], sizeof names[t], "%c", (char)(0x21 + t));
    } else {
      (void)snprintf(names[t], sizeof names[t], "token%d", (int)t);
    }
    pointers[t] = names[t];
    types[t] = 1;
    scores[t] = -(float)t;
  }
  if (num > 2) {
    (void)snprintf(names[num - 1], sizeof names[0], "!\"");
  }
  if (pieces) {
    set_last(names, types, scores, num);
    gguf_set_arr_data(making->file, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores, (size_t)num);
    gguf_set_val_bool(making->file, "tokenizer.ggml.add_space_prefix", false);
    gguf_set_val_bool(making->file, "tokenizer.ggml.add_bos_token", true);
    gguf_set_val_u32(making->file, "tokenizer.ggml.bos_token_id", (uint32_t)(num < 4 ? 0 : num - 4));
  } else {
    const char *merges[1] = {"! \""};
    gguf_set_arr_str(making->file, "tokenizer.ggml.merges", merges, num > 2 ? 1 : 0);
  }
  gguf_set_val_str(making->file, "tokenizer.ggml.model", pieces ? "llama" : "gpt2");
  gguf_set_val_str(making->file, "tokenizer.ggml.pre", pieces ? "default" : "smollm");
  gguf_set_arr_str(making->file, "tokenizer.ggml.tokens", pointers, (size_t)num);
  gguf_set_arr_data(making->file, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, (size_t)num);
  free(names);
  free(pointers);
  free(types);
  free(scores);
}

unsigned char *tiny_make(const tiny_shape *shape, size_t *bytes) {
  ggml_cpu_init();
  const struct ggml_init_params params = {(size_t)64 << 20, NULL, false};
  maker making = {shape, gguf_init_empty(), ggml_init(params), shape->seed};
  gguf_set_val_str(making.file, "general.architecture", shape->architecture);
  set_u32(&making, "block_count", shape->num_layers);
  set_u32(&making, "context_length", 1024);
  set_u32(&making, "embedding_length", shape->width);
  set_u32(&making, "feed_forward_length", shape->ffn_width);
  set_u32(&making, "attention.head_count", shape->num_heads);
  set_u32(&making, "attention.head_count_kv", shape->num_kv_heads);
  set_u32(&making, "attention.key_length", shape->head_dim);
  set_u32(&making, "attention.value_length", shape->head_dim);
  set_f32(&making, "attention.layer_norm_rms_epsilon", 1e-5f);
  set_f32(&making, "rope.freq_base", 100000.0f);
  if (shape->window != 0) {
    set_u32(&making, "attention.sliding_window", shape->window);
  }
  set_tokens(&making);
  add_tensors(&making);
  const size_t header = gguf_get_meta_size(making.file);
  size_t end = header;
  for (int64_t t = 0; t < gguf_get_n_tensors(making.file); ++t) {
    const size_t last = header + gguf_get_tensor_offset(making.file, t) + gguf_get_tensor_size(making.file, t);
    end = last > end ? last : end;
  }
  *bytes = (end + 63) / 64 * 64;
  unsigned char *data = aligned_alloc(64, *bytes);
  memset(data, 0, *bytes);
  gguf_get_meta_data(making.file, data);
  for (int64_t t = 0; t < gguf_get_n_tensors(making.file); ++t) {
    const struct ggml_tensor *tensor = ggml_get_tensor(making.context, gguf_get_tensor_name(making.file, t));
    memcpy(data + header + gguf_get_tensor_offset(making.file, t), tensor->data, ggml_nbytes(tensor));
  }
  gguf_free(making.file);
  ggml_free(making.context);
  return data;
}
