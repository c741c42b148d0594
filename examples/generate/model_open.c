/* SPDX-License-Identifier: Apache-2.0 */
/* From the bytes of a GGUF file to a model whose every tensor has been found, checked and given its place in the map. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* mmap under -std=c11 */
#endif

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fail.h"
#include "model.h"

/* Far above the models that this is for, and low enough that no product of two overflows. */
enum { MAX_LAYERS = 512, MAX_WIDTH = 1 << 17, MAX_HEADS = 1024, MAX_VOCAB = 1 << 22, MAX_CONTEXT = 1 << 24 };
enum { WINDOW_PERIOD = 6 }; /* Gemma 3: every sixth layer sees everything */
static const float window_rope_base = 10000.0f;

typedef struct loader {
  gen_model *model;
  treeattn_error *error;
} loader;

/* ---- tensors ------------------------------------------------------------------------------------------------ */

static bool is_served(enum ggml_type type) {
  switch (type) {
    case GGML_TYPE_F32:
    case GGML_TYPE_F16:
    case GGML_TYPE_Q4_0:
    case GGML_TYPE_Q4_1:
    case GGML_TYPE_Q5_0:
    case GGML_TYPE_Q5_1:
    case GGML_TYPE_Q8_0:
    case GGML_TYPE_Q4_K:
    case GGML_TYPE_Q5_K:
    case GGML_TYPE_Q6_K: return true;
    default: return false;
  }
}

/* num_rows 0: a vector of f32. */
static bool take(loader *loading, const char *name, int64_t num_columns, int64_t num_rows,
                 struct ggml_tensor **tensor) {
  const gen_model *model = loading->model;
  treeattn_error *error = loading->error;
  struct ggml_tensor *found = ggml_get_tensor(model->tensors, name);
  const int64_t id = gguf_find_tensor(model->file, name);
  if (found == NULL || id < 0) {
    (void)gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "tensor '%s' is missing", name);
    return false;
  }
  if (num_rows == 0 ? found->type != GGML_TYPE_F32 : !is_served(found->type)) {
    (void)gen_fail(error, TREEATTN_ERROR_UNSUPPORTED, "tensor '%s' is of type %s, which is not served%s", name,
                   ggml_type_name(found->type), num_rows == 0 ? " here (f32 is)" : "");
    return false;
  }
  const int64_t rows = num_rows == 0 ? 1 : num_rows;
  if (found->ne[0] != num_columns || found->ne[1] != rows || found->ne[2] != 1 || found->ne[3] != 1) {
    (void)gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                   "tensor '%s' is %" PRId64 " x %" PRId64 " x %" PRId64 " x %" PRId64 ", not %" PRId64 " x %" PRId64,
                   name, found->ne[0], found->ne[1], found->ne[2], found->ne[3], num_columns, rows);
    return false;
  }
  const size_t begin = gguf_get_data_offset(model->file);
  const size_t offset = gguf_get_tensor_offset(model->file, id);
  const size_t bytes = ggml_nbytes(found);
  if (begin > model->map_bytes || offset > model->map_bytes - begin || bytes > model->map_bytes - begin - offset) {
    (void)gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                   "tensor '%s' ends past the file's %zu bytes: the file has been cut", name, model->map_bytes);
    return false;
  }
  if ((begin + offset) % 32 != 0) {
    (void)gen_fail(error, TREEATTN_ERROR_UNSUPPORTED, "tensor '%s' begins at byte %zu, which no 32 bytes align", name,
                   begin + offset);
    return false;
  }
  found->data = (char *)model->map + begin + offset;
  *tensor = found;
  return true;
}

static bool take_of_layer(loader *loading, int64_t layer, const char *name, int64_t num_columns, int64_t num_rows,
                          struct ggml_tensor **tensor) {
  char full[64];
  (void)snprintf(full, sizeof full, "blk.%" PRId64 ".%s.weight", layer, name);
  return take(loading, full, num_columns, num_rows, tensor);
}

static bool take_layer(loader *loading, int64_t l) {
  const gen_model *model = loading->model;
  gen_layer *layer = &model->layers[l];
  const int64_t width = model->width;
  const int64_t query_width = model->num_heads * model->head_dim;
  const int64_t key_width = model->num_kv_heads * model->head_dim;
  const bool gemma = model->architecture == GEN_GEMMA3;
  return take_of_layer(loading, l, "attn_norm", width, 0, &layer->attn_norm) &&
         take_of_layer(loading, l, "attn_q", width, query_width, &layer->query) &&
         take_of_layer(loading, l, "attn_k", width, key_width, &layer->key) &&
         take_of_layer(loading, l, "attn_v", width, key_width, &layer->value) &&
         take_of_layer(loading, l, "attn_output", query_width, width, &layer->attn_output) &&
         take_of_layer(loading, l, "ffn_norm", width, 0, &layer->ffn_norm) &&
         take_of_layer(loading, l, "ffn_gate", width, model->ffn_width, &layer->gate) &&
         take_of_layer(loading, l, "ffn_up", width, model->ffn_width, &layer->up) &&
         take_of_layer(loading, l, "ffn_down", model->ffn_width, width, &layer->down) &&
         (!gemma || (take_of_layer(loading, l, "attn_q_norm", model->head_dim, 0, &layer->query_norm) &&
                     take_of_layer(loading, l, "attn_k_norm", model->head_dim, 0, &layer->key_norm) &&
                     take_of_layer(loading, l, "post_attention_norm", width, 0, &layer->post_attn_norm) &&
                     take_of_layer(loading, l, "post_ffw_norm", width, 0, &layer->post_ffn_norm)));
}

static bool take_tensors(loader *loading) {
  gen_model *model = loading->model;
  if (!take(loading, "token_embd.weight", model->width, model->vocab_size, &model->embedding) ||
      !take(loading, "output_norm.weight", model->width, 0, &model->output_norm)) {
    return false;
  }
  model->output = model->embedding;
  if (gguf_find_tensor(model->file, "output.weight") >= 0 &&
      !take(loading, "output.weight", model->width, model->vocab_size, &model->output)) {
    return false;
  }
  for (int64_t l = 0; l < model->num_layers; ++l) {
    if (!take_layer(loading, l)) {
      return false;
    }
  }
  /* Whatever else there is (biases, scaled frequencies, experts) would change the result if it were left out. */
  for (int64_t t = 0; t < gguf_get_n_tensors(model->file); ++t) {
    const char *name = gguf_get_tensor_name(model->file, t);
    const struct ggml_tensor *tensor = ggml_get_tensor(model->tensors, name);
    if (tensor == NULL || tensor->data == NULL) {
      (void)gen_fail(loading->error, TREEATTN_ERROR_UNSUPPORTED,
                     "tensor '%s' has no place in the models that are served", name);
      return false;
    }
  }
  return true;
}

/* ---- fields ------------------------------------------------------------------------------------------------- */

static const char *key_of(const char *prefix, const char *name, char key[96]) {
  (void)snprintf(key, 96, "%s.%s", prefix, name);
  return key;
}

static bool read_heads(gen_model *model, const char *prefix, treeattn_error *error) {
  const struct gguf_context *file = model->file;
  char key[96];
  if (!gen_field_count(file, key_of(prefix, "attention.head_count", key), 1, MAX_HEADS, &model->num_heads, error) ||
      !gen_field_count(file, key_of(prefix, "attention.head_count_kv", key), 1, MAX_HEADS, &model->num_kv_heads,
                       error)) {
    return false;
  }
  if (model->num_heads % model->num_kv_heads != 0) {
    (void)gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                   "%" PRId64 " query heads are no multiple of %" PRId64 " KV heads", model->num_heads,
                   model->num_kv_heads);
    return false;
  }
  model->head_dim = model->width / model->num_heads;
  if (gguf_find_key(file, key_of(prefix, "attention.key_length", key)) >= 0) {
    int64_t value_dim = 0;
    if (!gen_field_count(file, key, 8, 1024, &model->head_dim, error) ||
        !gen_field_count(file, key_of(prefix, "attention.value_length", key), 8, 1024, &value_dim, error)) {
      return false;
    }
    if (value_dim != model->head_dim) {
      (void)gen_fail(error, TREEATTN_ERROR_UNSUPPORTED, "field '%s' is %" PRId64 ", but key_length is %" PRId64, key,
                     value_dim, model->head_dim);
      return false;
    }
  }
  if (model->head_dim < 8 || model->head_dim > 1024 || model->head_dim % 8 != 0) {
    (void)gen_fail(error, TREEATTN_ERROR_UNSUPPORTED,
                   "the head dimension is %" PRId64 ": 8 to 1024 in steps of 8 are served", model->head_dim);
    return false;
  }
  int64_t rotated = model->head_dim;
  if (gguf_find_key(file, key_of(prefix, "rope.dimension_count", key)) >= 0 &&
      !gen_field_count(file, key, 1, 1024, &rotated, error)) {
    return false;
  }
  if (rotated != model->head_dim) {
    (void)gen_fail(error, TREEATTN_ERROR_UNSUPPORTED, "field '%s' is %" PRId64 ", not the head dimension %" PRId64, key,
                   rotated, model->head_dim);
    return false;
  }
  return true;
}

static bool refuse(const gen_model *model, const char *prefix, const char *name, treeattn_error *error) {
  char key[96];
  if (gguf_find_key(model->file, key_of(prefix, name, key)) < 0) {
    return true;
  }
  (void)gen_fail(error, TREEATTN_ERROR_UNSUPPORTED, "field '%s' is set, and what it asks for is not served", key);
  return false;
}

static bool read_fields(gen_model *model, treeattn_error *error) {
  const struct gguf_context *file = model->file;
  const char *prefix = NULL;
  if (!gen_field_string(file, "general.architecture", &prefix, error)) {
    return false;
  }
  if (strcmp(prefix, "llama") == 0) {
    model->architecture = GEN_LLAMA;
  } else if (strcmp(prefix, "gemma3") == 0) {
    model->architecture = GEN_GEMMA3;
  } else {
    (void)gen_fail(error, TREEATTN_ERROR_UNSUPPORTED, "the architecture is '%.40s': llama and gemma3 are served",
                   prefix);
    return false;
  }
  char key[96];
  int64_t field = 0;
  float rope_base = 0.0f;
  if (!gen_field_count(file, key_of(prefix, "block_count", key), 1, MAX_LAYERS, &model->num_layers, error) ||
      !gen_field_count(file, key_of(prefix, "context_length", key), 1, MAX_CONTEXT, &model->context_len, error) ||
      !gen_field_count(file, key_of(prefix, "embedding_length", key), 1, MAX_WIDTH, &model->width, error) ||
      !gen_field_count(file, key_of(prefix, "feed_forward_length", key), 1, MAX_WIDTH, &model->ffn_width, error) ||
      !gen_field_float(file, key_of(prefix, "attention.layer_norm_rms_epsilon", key), &model->norm_epsilon, error) ||
      !gen_field_float(file, key_of(prefix, "rope.freq_base", key), &rope_base, error) ||
      !gen_field_array(file, "tokenizer.ggml.tokens", GGUF_TYPE_STRING, &field, &model->vocab_size, error) ||
      !read_heads(model, prefix, error)) {
    return false;
  }
  if (model->vocab_size < 1 || model->vocab_size > MAX_VOCAB) {
    (void)gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "the vocabulary has %" PRId64 " tokens", model->vocab_size);
    return false;
  }
  int64_t window = 0;
  model->embedding_scale = 1.0f;
  if (model->architecture == GEN_GEMMA3) {
    model->embedding_scale = sqrtf((float)model->width);
    if (!gen_field_count(file, key_of(prefix, "attention.sliding_window", key), 1, MAX_CONTEXT, &window, error)) {
      return false;
    }
  }
  if (!refuse(model, prefix, "rope.scaling.type", error) || !refuse(model, prefix, "rope.scaling.factor", error) ||
      !refuse(model, prefix, "expert_count", error) || !refuse(model, prefix, "attn_logit_softcapping", error) ||
      !refuse(model, prefix, "final_logit_softcapping", error)) {
    return false;
  }
  model->layers = calloc((size_t)model->num_layers, sizeof *model->layers);
  if (model->layers == NULL) {
    (void)gen_fail_memory(error);
    return false;
  }
  for (int64_t l = 0; l < model->num_layers; ++l) {
    const bool windowed = window != 0 && (l + 1) % WINDOW_PERIOD != 0;
    model->layers[l].window = windowed ? window : 0;
    model->layers[l].rope_base = windowed ? window_rope_base : rope_base;
  }
  return true;
}

/* ---- opening ------------------------------------------------------------------------------------------------ */

/* ggml tells what is wrong with a file through its log; the last line of it is what a user should see. */
static char last_log[192];

static void keep_log(enum ggml_log_level level, const char *text, void *context) {
  (void)context;
  if (level == GGML_LOG_LEVEL_ERROR) {
    const char *colon = strstr(text, ": ");
    (void)snprintf(last_log, sizeof last_log, "%s", colon == NULL ? text : colon + 2);
    last_log[strcspn(last_log, "\n")] = '\0';
  }
}

static treeattn_status load(gen_model *model, treeattn_error *error) {
  static const char magic[4] = {'G', 'G', 'U', 'F'};
  if (model->map_bytes < sizeof magic || memcmp(model->map, magic, sizeof magic) != 0) {
    return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "not a GGUF file: it does not begin with 'GGUF'");
  }
  last_log[0] = '\0';
  ggml_log_set(keep_log, NULL);
  const struct gguf_init_params params = {true, &model->tensors};
  model->file = gguf_init_from_buffer(model->map, model->map_bytes, params);
  ggml_log_set(NULL, NULL);
  if (model->file == NULL || model->tensors == NULL) {
    return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "the GGUF header is damaged or cut: %s",
                    last_log[0] == '\0' ? "no reason is known" : last_log);
  }
  treeattn_error local;
  loader loading = {model, error == NULL ? &local : error};
  if (!read_fields(model, loading.error) || !take_tensors(&loading)) {
    return loading.error->status;
  }
  return TREEATTN_OK;
}

treeattn_status gen_model_open_bytes(const void *data, size_t bytes, gen_model **model, treeattn_error *error) {
  *model = NULL;
  gen_model *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return gen_fail_memory(error);
  }
  /* Weights are read only; ggml's tensors carry a pointer without const. */
  made->map = (void *)(uintptr_t)data;
  made->map_bytes = bytes;
  const treeattn_status status = load(made, error);
  if (status != TREEATTN_OK) {
    made->map = NULL;
    gen_model_close(made);
    return status;
  }
  *model = made;
  return TREEATTN_OK;
}

treeattn_status gen_model_open(const char *path, gen_model **model, treeattn_error *error) {
  *model = NULL;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "cannot be opened: %s", strerror(errno));
  }
  struct stat about;
  if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size <= 0) {
    (void)close(file);
    return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "is no file with anything in it");
  }
  const size_t bytes = (size_t)about.st_size;
  void *map = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  (void)close(file);
  if (map == MAP_FAILED) {
    return gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "cannot be mapped: %s", strerror(errno));
  }
  const treeattn_status status = gen_model_open_bytes(map, bytes, model, error);
  if (status != TREEATTN_OK) {
    (void)munmap(map, bytes);
    return status;
  }
  (*model)->owns_map = true;
  return TREEATTN_OK;
}

void gen_model_close(gen_model *model) {
  if (model == NULL) {
    return;
  }
  if (model->tensors != NULL) {
    ggml_free(model->tensors);
  }
  if (model->file != NULL) {
    gguf_free(model->file);
  }
  if (model->owns_map) {
    (void)munmap(model->map, model->map_bytes);
  }
  free(model->layers);
  free(model);
}
