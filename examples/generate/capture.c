/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what attention was given in one step, for the command line's attend, check and bench. */
#include "capture.h"

#include <cli.h>
#include <inttypes.h>
#include <io.h>
#include <math.h>
#include <string.h>

enum { NAME_BYTES = 48, MAX_TEXT = 512 };

/* Everything that must live until the file has been written. */
typedef struct arrays {
  float *queries;    /* [num_layers][num_heads][num_nodes][head_dim] */
  uint16_t *rows[2]; /* K, V: [num_layers][num_kv_heads][num_slots][head_dim] */
  char (*names)[3][NAME_BYTES];
  int32_t positions[GEN_MAX_TREE], argmax[GEN_MAX_TREE];
} arrays;

static bool make_arrays(const gen_capture *capture, const gen_step *step, arrays *made) {
  const gen_forward *forward = capture->session->forward;
  const gen_model *model = forward->model;
  const size_t nodes = (size_t)step->tree->num_nodes;
  const size_t slots = (size_t)step->prefix_len + nodes;
  const size_t head_dim = (size_t)model->head_dim;
  made->queries = cli_malloc_array(capture->num_layers * (size_t)model->num_heads * nodes, head_dim * sizeof(float));
  for (int t = 0; t < 2; ++t) {
    made->rows[t] = cli_malloc_array(capture->num_layers * (size_t)model->num_kv_heads * slots, head_dim * 2);
  }
  made->names = cli_malloc_array(capture->num_layers, sizeof *made->names);
  if (made->queries == NULL || made->rows[0] == NULL || made->rows[1] == NULL || made->names == NULL) {
    return cli_out_of_memory() == CLI_OK;
  }
  for (size_t k = 0; k < capture->num_layers; ++k) {
    const size_t l = (size_t)capture->layers[k];
    const float *kept = forward->kept_queries + l * (size_t)forward->max_rows * (size_t)model->num_heads * head_dim;
    for (size_t h = 0; h < (size_t)model->num_heads; ++h) {
      for (size_t i = 0; i < nodes; ++i) {
        memcpy(made->queries + ((k * (size_t)model->num_heads + h) * nodes + i) * head_dim,
               kept + (i * (size_t)model->num_heads + h) * head_dim, head_dim * sizeof(float));
      }
    }
    const uint16_t *stores[2] = {gen_cache_keys(&forward->cache, (int64_t)l),
                                 gen_cache_values(&forward->cache, (int64_t)l)};
    for (size_t g = 0; g < (size_t)model->num_kv_heads; ++g) {
      for (int t = 0; t < 2; ++t) {
        memcpy(made->rows[t] + (k * (size_t)model->num_kv_heads + g) * slots * head_dim,
               stores[t] + g * (size_t)forward->cache.capacity * head_dim, slots * head_dim * 2);
      }
    }
  }
  const gen_tree *tree = step->tree;
  for (int64_t i = 0; i < tree->num_nodes; ++i) {
    made->positions[i] = tree->parents[i] < 0 ? (int32_t)step->prefix_len : made->positions[tree->parents[i]] + 1;
  }
  const treeattn_verify_rows rows = {step->logits, nodes * (size_t)model->vocab_size * sizeof *step->logits,
                                     TREEATTN_F32, 0};
  unsigned char scratch[GEN_MAX_TREE * 64];
  treeattn_error error;
  if (treeattn_logits_argmax(&rows, tree->num_nodes, model->vocab_size, NULL, scratch, sizeof scratch, made->argmax,
                             &error) != TREEATTN_OK) {
    (void)cli_library_error(capture->path, &error);
    return false;
  }
  return true;
}

static bool add_layers(const gen_capture *capture, const gen_step *step, const arrays *made, io_writer *writer) {
  const gen_model *model = capture->session->forward->model;
  const int64_t nodes = step->tree->num_nodes;
  const int64_t slots = step->prefix_len + nodes;
  const int64_t query_shape[3] = {model->num_heads, nodes, model->head_dim};
  const int64_t row_shape[3] = {model->num_kv_heads, slots, model->head_dim};
  for (size_t k = 0; k < capture->num_layers; ++k) {
    static const char *const letters[3] = {"q", "k", "v"};
    for (int t = 0; t < 3; ++t) {
      (void)snprintf(made->names[k][t], NAME_BYTES, "layer%" PRId64 ".%s", capture->layers[k], letters[t]);
    }
    const int64_t place = (int64_t)k;
    if (!io_writer_add(writer, made->names[k][0], IO_F32, 3, query_shape,
                       made->queries + place * model->num_heads * nodes * model->head_dim) ||
        !io_writer_add(writer, made->names[k][1], IO_F16, 3, row_shape,
                       made->rows[0] + place * model->num_kv_heads * slots * model->head_dim) ||
        !io_writer_add(writer, made->names[k][2], IO_F16, 3, row_shape,
                       made->rows[1] + place * model->num_kv_heads * slots * model->head_dim)) {
      return false;
    }
  }
  return true;
}

static bool set_number(io_writer *writer, const char *key, int64_t value) {
  char text[32];
  (void)snprintf(text, sizeof text, "%" PRId64, value);
  return io_writer_set_metadata(writer, key, text);
}

static bool set_json(io_writer *writer, const char *key, json_t *json) {
  char *text = json == NULL ? NULL : json_dumps(json, JSON_COMPACT);
  json_decref(json);
  if (text == NULL) {
    return cli_out_of_memory() == CLI_OK;
  }
  const bool good = io_writer_set_metadata(writer, key, text);
  cli_free(text);
  return good;
}

static bool add_windows(const gen_capture *capture, io_writer *writer) {
  bool good = true;
  for (size_t k = 0; k < capture->num_layers && good; ++k) {
    const int64_t window = capture->session->forward->model->layers[capture->layers[k]].window;
    char key[NAME_BYTES];
    (void)snprintf(key, sizeof key, "layer%" PRId64 ".window", capture->layers[k]);
    good = window == 0 || set_number(writer, key, window);
  }
  return good;
}

static bool add_texts(const gen_capture *capture, const gen_step *step, io_writer *writer) {
  const gen_model *model = capture->session->forward->model;
  json_t *texts = json_array();
  json_t *path = json_array();
  for (int64_t i = 0; i < step->tree->num_nodes && texts != NULL; ++i) {
    char text[MAX_TEXT];
    size_t bytes = gen_tokenizer_decode(capture->tokenizer, step->tree->tokens[i], text, sizeof text);
    bytes = bytes < sizeof text ? bytes : sizeof text;
    /* A token can be a part of a character; JSON then takes a replacement for it. */
    json_t *string = json_stringn(text, bytes);
    (void)json_array_append_new(texts, string != NULL ? string : json_string("\xef\xbf\xbd"));
  }
  for (int64_t i = 0; i < step->num_path && path != NULL; ++i) {
    (void)json_array_append_new(path, json_integer(step->path[i]));
  }
  char scale[32];
  (void)snprintf(scale, sizeof scale, "%.17g", 1.0 / sqrt((double)model->head_dim));
  const bool texts_set = set_json(writer, "node_texts", texts);
  const bool path_set = set_json(writer, "greedy_path", path);
  return texts_set && path_set && io_writer_set_metadata(writer, "model", capture->model_name) &&
         io_writer_set_metadata(writer, "scale", scale) && set_number(writer, "num_heads", model->num_heads) &&
         set_number(writer, "num_kv_heads", model->num_kv_heads) && set_number(writer, "head_dim", model->head_dim) &&
         set_number(writer, "prefix_len", step->prefix_len) && set_number(writer, "num_nodes", step->tree->num_nodes) &&
         set_number(writer, "bonus_token", step->emitted[step->num_path - 1]);
}

static bool write_step(const gen_capture *capture, const gen_step *step, const arrays *made, io_writer *writer) {
  const gen_tree *tree = step->tree;
  const int64_t nodes[1] = {tree->num_nodes};
  const int64_t prefix[1] = {step->prefix_len};
  const int64_t logits[2] = {tree->num_nodes, capture->session->forward->model->vocab_size};
  return io_writer_add(writer, "parents", IO_I32, 1, nodes, tree->parents) &&
         io_writer_add(writer, "tokens", IO_I32, 1, nodes, tree->tokens) &&
         io_writer_add(writer, "positions", IO_I32, 1, nodes, made->positions) &&
         io_writer_add(writer, "prefix_tokens", IO_I32, 1, prefix, capture->session->tokens) &&
         io_writer_add(writer, "argmax", IO_I32, 1, nodes, made->argmax) &&
         (!capture->with_logits || io_writer_add(writer, "logits", IO_F32, 2, logits, step->logits)) &&
         add_layers(capture, step, made, writer) && add_windows(capture, writer) && add_texts(capture, step, writer) &&
         io_writer_save(writer, capture->path);
}

bool gen_capture_step(gen_capture *capture, const gen_step *step) {
  const int64_t number = capture->session->totals.num_steps;
  const bool wanted = capture->at_step < 0 ? step->num_path > capture->best_path : number == capture->at_step;
  if (!wanted) {
    return true;
  }
  arrays made;
  memset(&made, 0, sizeof made);
  io_writer *writer = io_writer_create();
  const bool good = writer != NULL && make_arrays(capture, step, &made) && write_step(capture, step, &made, writer);
  io_writer_destroy(writer);
  cli_free(made.queries);
  cli_free(made.rows[0]);
  cli_free(made.rows[1]);
  cli_free(made.names);
  capture->best_path = step->num_path;
  capture->written = capture->written || good;
  return good;
}
