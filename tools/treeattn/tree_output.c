/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that `treeattn tree` can write about a tree, on standard output or whole into files. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* open_memstream under -std=c11 */
#endif

#include "tree_output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <treeattn/tree.h>

#include "cli.h"
#include "io.h"
#include "tree_draw.h"
#include "tree_export.h"

/* Of packed words; nobody reads more of them from a terminal, and a pipe is better served by -o. */
enum { MAX_WORD_BYTES = 1 << 28 };

static bool has_extension(const char *path, const char *extension) {
  const size_t length = strlen(path);
  return length > strlen(extension) && strcasecmp(path + length - strlen(extension), extension) == 0;
}

bool tree_output_check(const tree_output *output) {
  if (output->mask_path != NULL && !has_extension(output->mask_path, ".png") &&
      !has_extension(output->mask_path, ".svg")) {
    (void)cli_usage_error("option --mask: %s ends neither in .png nor in .svg", output->mask_path);
    return false;
  }
  return output->data_path == NULL || has_extension(output->data_path, ".json") ||
         io_writer_check_path(output->data_path);
}

static bool out_of_memory(void) {
  (void)cli_out_of_memory();
  return false;
}

/* ---- derived arrays ---- */

typedef struct derived {
  treeattn_tree_counts counts;
  int32_t *depths;
  int32_t *positions;
  int32_t *intervals; /* [num_nodes][2] */
  int32_t *leaves;
  int64_t num_leaves;
} derived;

static void derived_free(derived *d) {
  cli_free(d->depths);
  cli_free(d->positions);
  cli_free(d->intervals);
  cli_free(d->leaves);
}

static bool derive(const tree_data *data, int64_t prefix_len, derived *d) {
  const int64_t n = data->num_nodes;
  const size_t scratch_bytes = treeattn_tree_counts_scratch_bytes(n);
  void *scratch = cli_malloc(scratch_bytes);
  d->depths = cli_malloc_array((size_t)n, sizeof(int32_t));
  d->positions = cli_malloc_array((size_t)n, sizeof(int32_t));
  d->intervals = cli_malloc_array((size_t)n, 2 * sizeof(int32_t));
  d->leaves = cli_malloc_array((size_t)n, sizeof(int32_t));
  if (scratch == NULL || d->depths == NULL || d->positions == NULL || d->intervals == NULL || d->leaves == NULL) {
    cli_free(scratch);
    return out_of_memory();
  }
  treeattn_error error;
  const bool good =
      treeattn_tree_get_counts(n, data->parents, &d->counts, scratch, scratch_bytes, &error) == TREEATTN_OK &&
      treeattn_tree_get_depths(n, data->parents, d->depths, n, &error) == TREEATTN_OK &&
      treeattn_tree_get_positions(n, data->parents, prefix_len, d->positions, n, &error) == TREEATTN_OK &&
      treeattn_tree_get_intervals(n, data->parents, d->intervals, n, &error) == TREEATTN_OK &&
      treeattn_tree_get_leaves(n, data->parents, d->leaves, n, &d->num_leaves, &error) == TREEATTN_OK;
  cli_free(scratch);
  if (!good) {
    (void)cli_library_error(NULL, &error);
  }
  return good;
}

/* ---- JSON ---- */

/* Text from json_dumps belongs to the allocator that jansson has been given. */
static void free_json_text(char *text) {
  json_malloc_t allocate = NULL;
  json_free_t release = NULL;
  json_get_alloc_funcs(&allocate, &release);
  release(text);
}

static json_t *integers(const int32_t *values, int64_t num) {
  json_t *array = json_array();
  for (int64_t k = 0; array != NULL && k < num; k++) {
    if (json_array_append_new(array, json_integer(values[k])) != 0) {
      json_decref(array);
      return NULL;
    }
  }
  return array;
}

static json_t *pairs(const int32_t *values, int64_t num) {
  json_t *array = json_array();
  for (int64_t k = 0; array != NULL && k < num; k++) {
    if (json_array_append_new(array, integers(values + 2 * k, 2)) != 0) {
      json_decref(array);
      return NULL;
    }
  }
  return array;
}

static json_t *texts_json(const tree_data *data) {
  json_t *array = json_array();
  for (int64_t i = 0; array != NULL && i < data->num_nodes; i++) {
    if (json_array_append_new(array, json_string(data->texts[i])) != 0) {
      json_decref(array);
      return NULL;
    }
  }
  return array;
}

static json_t *marked_json(const tree_data *data) {
  json_t *array = json_array();
  for (int64_t i = 0; array != NULL && i < data->num_nodes; i++) {
    if (data->marks[i] != 0 && json_array_append_new(array, json_integer(i)) != 0) {
      json_decref(array);
      return NULL;
    }
  }
  return array;
}

/* NULL when out of memory. */
static json_t *describe(const tree_data *data, const derived *d, int64_t prefix_len) {
  const int64_t n = data->num_nodes;
  json_t *object = json_object();
  bool good = object != NULL && json_object_set_new(object, "num_nodes", json_integer(n)) == 0 &&
              json_object_set_new(object, "num_roots", json_integer(d->counts.num_roots)) == 0 &&
              json_object_set_new(object, "num_leaves", json_integer(d->counts.num_leaves)) == 0 &&
              json_object_set_new(object, "num_levels", json_integer(d->counts.num_levels)) == 0 &&
              json_object_set_new(object, "max_children", json_integer(d->counts.max_children)) == 0 &&
              json_object_set_new(object, "prefix_len", json_integer(prefix_len)) == 0 &&
              json_object_set_new(object, "parents", integers(data->parents, n)) == 0 &&
              json_object_set_new(object, "depths", integers(d->depths, n)) == 0 &&
              json_object_set_new(object, "positions", integers(d->positions, n)) == 0 &&
              json_object_set_new(object, "intervals", pairs(d->intervals, n)) == 0 &&
              json_object_set_new(object, "leaves", integers(d->leaves, d->num_leaves)) == 0;
  good = good && (data->ranks == NULL || json_object_set_new(object, "ranks", integers(data->ranks, n)) == 0) &&
         (data->tokens == NULL || json_object_set_new(object, "tokens", integers(data->tokens, n)) == 0) &&
         (data->texts == NULL || json_object_set_new(object, "texts", texts_json(data)) == 0) &&
         (data->marks == NULL || json_object_set_new(object, "path", marked_json(data)) == 0);
  if (!good) {
    json_decref(object);
    return NULL;
  }
  return object;
}

/* ---- files ---- */

typedef bool (*export_fn)(FILE *out, const tree_data *data, int64_t prefix_len);

static bool export_dot(FILE *out, const tree_data *data, int64_t prefix_len) {
  (void)prefix_len;
  return tree_export_dot(out, data);
}

static bool export_svg(FILE *out, const tree_data *data, int64_t prefix_len) {
  (void)prefix_len;
  return tree_export_svg(out, data);
}

/* Into memory first, so that a file is written whole or not at all. */
static bool export_file(const char *path, export_fn export, const tree_data *data, int64_t prefix_len) {
  if (strcmp(path, "-") == 0) {
    return export(stdout, data, prefix_len);
  }
  char *bytes = NULL;
  size_t num_bytes = 0;
  FILE *out = open_memstream(&bytes, &num_bytes);
  if (out == NULL) {
    return out_of_memory();
  }
  bool good = export(out, data, prefix_len);
  const bool failed = ferror(out) != 0;
  if (fclose(out) != 0 || failed) {
    good = good ? out_of_memory() : false;
  }
  good = good && io_write_bytes(path, bytes, num_bytes);
  free(bytes);
  return good;
}

static bool export_picture(const char *path, const char *what, int64_t max_nodes, export_fn export,
                           const tree_data *data, int64_t prefix_len) {
  if (data->num_nodes > max_nodes || data->num_nodes == 0) {
    (void)cli_error("%s: %s of %lld nodes is not drawn: at least 1 and at most %lld", path, what,
                    (long long)data->num_nodes, (long long)max_nodes);
    return false;
  }
  return export_file(path, export, data, prefix_len);
}

static bool save_json(const char *path, const tree_data *data, const derived *d, int64_t prefix_len) {
  json_t *json = describe(data, d, prefix_len);
  char *text = json == NULL ? NULL : json_dumps(json, JSON_COMPACT);
  json_decref(json);
  if (text == NULL) {
    return out_of_memory();
  }
  const bool good = io_write_bytes(path, text, strlen(text));
  free_json_text(text);
  return good;
}

static bool save_tensors(const char *path, const tree_data *data, const derived *d) {
  const int64_t shape[] = {data->num_nodes, 2};
  io_writer *writer = io_writer_create();
  if (writer == NULL) {
    return false;
  }
  char *texts = NULL;
  bool good = io_writer_add(writer, "parents", IO_I32, 1, shape, data->parents) &&
              io_writer_add(writer, "positions", IO_I32, 1, shape, d->positions) &&
              io_writer_add(writer, "intervals", IO_I32, 2, shape, d->intervals) &&
              (data->ranks == NULL || io_writer_add(writer, "ranks", IO_I32, 1, shape, data->ranks)) &&
              (data->tokens == NULL || io_writer_add(writer, "tokens", IO_I32, 1, shape, data->tokens));
  if (good && data->texts != NULL) {
    json_t *json = texts_json(data);
    texts = json == NULL ? NULL : json_dumps(json, JSON_COMPACT);
    json_decref(json);
    good = texts != NULL ? io_writer_set_metadata(writer, "node_texts", texts) : out_of_memory();
  }
  good = good && io_writer_save(writer, path);
  io_writer_destroy(writer);
  free_json_text(texts);
  return good;
}

/* ---- words ---- */

static bool print_words(const tree_data *data, int64_t prefix_len, int word_bits) {
  const int64_t n = data->num_nodes;
  const int64_t word_bytes = word_bits / 8;
  const int64_t num_words = (prefix_len + n + word_bits - 1) / word_bits;
  const int64_t stride = num_words * word_bytes;
  if (n > 0 && stride > MAX_WORD_BYTES / n) {
    (void)cli_error("--words: a mask of %lld rows and %lld columns is not printed: at most %d bytes", (long long)n,
                    (long long)(prefix_len + n), MAX_WORD_BYTES);
    return false;
  }
  uint8_t *bits = cli_malloc_array((size_t)n, (size_t)stride);
  if (bits == NULL) {
    return out_of_memory();
  }
  treeattn_error error;
  const bool good = treeattn_tree_get_mask_bits(n, data->parents, prefix_len, bits, stride, (size_t)(n * stride),
                                                &error) == TREEATTN_OK;
  if (!good) {
    (void)cli_library_error("--words", &error);
  }
  for (int64_t row = 0; good && row < n; row++) {
    for (int64_t word = 0; word < num_words; word++) {
      (void)fputs(word == 0 ? "0x" : " 0x", stdout);
      for (int64_t byte = word_bytes - 1; byte >= 0; byte--) {
        (void)printf("%02x", (unsigned)bits[row * stride + word * word_bytes + byte]);
      }
    }
    (void)putchar('\n');
  }
  cli_free(bits);
  return good;
}

/* ---- all of it ---- */

static bool write_described(const tree_output *output, const tree_data *data) {
  derived d = {{0, 0, 0, 0}, NULL, NULL, NULL, NULL, 0};
  bool good = derive(data, output->prefix_len, &d);
  if (good && output->data_path != NULL) {
    good = has_extension(output->data_path, ".json") ? save_json(output->data_path, data, &d, output->prefix_len)
                                                     : save_tensors(output->data_path, data, &d);
  }
  if (good && output->json) {
    good = cli_json_print(describe(data, &d, output->prefix_len), 0) == CLI_OK;
  }
  derived_free(&d);
  return good;
}

bool tree_output_write(const tree_output *output, const tree_data *data) {
  const bool nothing_else = !output->json && output->word_bits == 0 && output->dot_path == NULL &&
                            output->svg_path == NULL && output->mask_path == NULL && output->data_path == NULL;
  if (output->draw || nothing_else) {
    tree_draw(stdout, data->num_nodes, data->parents, data->texts, data->marks, output->ascii);
  }
  const bool png = output->mask_path != NULL && has_extension(output->mask_path, ".png");
  return ((!output->json && output->data_path == NULL) || write_described(output, data)) &&
         (output->word_bits == 0 || print_words(data, output->prefix_len, output->word_bits)) &&
         (output->dot_path == NULL || export_file(output->dot_path, export_dot, data, output->prefix_len)) &&
         (output->svg_path == NULL ||
          export_picture(output->svg_path, "a tree", TREE_MAX_SVG_NODES, export_svg, data, output->prefix_len)) &&
         (output->mask_path == NULL ||
          export_picture(output->mask_path, "the mask", png ? TREE_MAX_MASK_PNG_NODES : TREE_MAX_MASK_SVG_NODES,
                         png ? tree_export_mask_png : tree_export_mask_svg, data, output->prefix_len));
}
