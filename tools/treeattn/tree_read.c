/* SPDX-License-Identifier: Apache-2.0 */
/* Trees read from files: tensors named as elsewhere in this project, or JSON. */
#include <errno.h>
#include <string.h>
#include <strings.h>

#include <treeattn/tree.h>

#include "cli.h"
#include "io.h"
#include "tree_data.h"

static bool has_extension(const char *path, const char *extension) {
  const size_t length = strlen(path);
  return length > strlen(extension) && strcasecmp(path + length - strlen(extension), extension) == 0;
}

static bool out_of_memory(void) {
  (void)cli_out_of_memory();
  return false;
}

static bool check(const char *path, const tree_data *data) {
  treeattn_error error;
  if (treeattn_tree_check(data->num_nodes, data->parents, &error) != TREEATTN_OK) {
    (void)cli_library_error(path, &error);
    return false;
  }
  return true;
}

/* ---- JSON ---- */

/* NULL after saying where the text goes wrong. */
static json_t *parse_text(const char *path, const char *what, const char *text) {
  json_error_t error;
  json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
  if (json == NULL) {
    (void)cli_error("%s: %s: column %d: %s", path, what, error.column, error.text);
  }
  return json;
}

static json_t *parse_file(const char *path) {
  const bool from_stdin = strcmp(path, "-") == 0;
  FILE *file = from_stdin ? stdin : fopen(path, "rb");
  if (file == NULL) {
    (void)cli_error("%s: %s", path, strerror(errno));
    return NULL;
  }
  json_error_t error;
  json_t *json = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
  if (!from_stdin) {
    (void)fclose(file);
  }
  if (json == NULL) {
    (void)cli_error("%s: line %d, column %d: %s", path, error.line, error.column, error.text);
  }
  return json;
}

/* An array of integers of `num` elements, or any number if num is negative. `what` is named in errors. */
static bool read_integers(const char *path, const char *what, const json_t *array, int64_t num, int64_t minimum,
                          int32_t **values, int64_t *num_values) {
  if (!json_is_array(array)) {
    (void)cli_error("%s: %s must be a list of integers", path, what);
    return false;
  }
  const size_t size = json_array_size(array);
  if (num >= 0 && size != (size_t)num) {
    (void)cli_error("%s: %s has %zu elements, parents has %lld", path, what, size, (long long)num);
    return false;
  }
  *values = cli_malloc_array(size, sizeof **values);
  if (*values == NULL) {
    return out_of_memory();
  }
  for (size_t k = 0; k < size; k++) {
    const json_t *element = json_array_get(array, k);
    const json_int_t value = json_integer_value(element);
    if (!json_is_integer(element) || value < minimum || value > INT32_MAX) {
      (void)cli_error("%s: %s[%zu] must be an integer from %lld to %ld", path, what, k, (long long)minimum,
                      (long)INT32_MAX);
      return false;
    }
    (*values)[k] = (int32_t)value;
  }
  *num_values = (int64_t)size;
  return true;
}

/* Points data->texts into `array`, which data->document must keep alive. */
static bool read_texts(const char *path, const char *what, const json_t *array, tree_data *data) {
  if (!json_is_array(array) || json_array_size(array) != (size_t)data->num_nodes) {
    (void)cli_error("%s: %s must be a list of %lld texts", path, what, (long long)data->num_nodes);
    return false;
  }
  data->texts = cli_malloc_array((size_t)data->num_nodes, sizeof *data->texts);
  if (data->texts == NULL) {
    return out_of_memory();
  }
  for (int64_t i = 0; i < data->num_nodes; i++) {
    data->texts[i] = json_string_value(json_array_get(array, (size_t)i));
    if (data->texts[i] == NULL) {
      (void)cli_error("%s: %s[%lld] must be a text", path, what, (long long)i);
      return false;
    }
  }
  return true;
}

static bool read_path(const char *path, const char *what, const json_t *array, tree_data *data) {
  int32_t *nodes = NULL;
  int64_t num_nodes = 0;
  int64_t *wide = NULL;
  char *subject = cli_format("%s: %s", path, what);
  bool good = subject != NULL && read_integers(path, what, array, -1, 0, &nodes, &num_nodes);
  if (good) {
    wide = cli_malloc_array((size_t)num_nodes, sizeof *wide);
    good = wide != NULL;
    for (int64_t place = 0; good && place < num_nodes; place++) {
      wide[place] = nodes[place];
    }
    good = good ? tree_data_mark(data, subject, wide, (size_t)num_nodes) : out_of_memory();
  } else if (subject == NULL) {
    (void)out_of_memory();
  }
  cli_free(subject);
  cli_free(wide);
  cli_free(nodes);
  return good;
}

static bool read_json(const char *path, tree_data *data) {
  data->document = parse_file(path);
  if (data->document == NULL) {
    return false;
  }
  const json_t *document = data->document;
  const json_t *parents = json_is_object(document) ? json_object_get(document, "parents") : document;
  if (parents == NULL) {
    (void)cli_error("%s: there is no \"parents\"", path);
    return false;
  }
  if (!read_integers(path, "parents", parents, -1, INT32_MIN, &data->parents, &data->num_nodes) || !check(path, data)) {
    return false;
  }
  int64_t num = 0;
  const json_t *tokens = json_object_get(document, "tokens");
  const json_t *ranks = json_object_get(document, "ranks");
  const json_t *texts = json_object_get(document, "texts");
  const json_t *marked = json_object_get(document, "path");
  return (tokens == NULL || read_integers(path, "tokens", tokens, data->num_nodes, 0, &data->tokens, &num)) &&
         (ranks == NULL || read_integers(path, "ranks", ranks, data->num_nodes, -1, &data->ranks, &num)) &&
         (texts == NULL || read_texts(path, "texts", texts, data)) &&
         (marked == NULL || read_path(path, "path", marked, data));
}

/* ---- tensors ---- */

static bool copy_values(const int32_t *values, int64_t num, int32_t **copy) {
  *copy = cli_malloc_array((size_t)num, sizeof **copy);
  if (*copy == NULL) {
    return out_of_memory();
  }
  memcpy(*copy, values, (size_t)num * sizeof **copy);
  return true;
}

static bool read_metadata(const char *path, const io_file *file, tree_data *data) {
  const char *texts = io_metadata(file, "node_texts");
  if (texts != NULL) {
    data->document = parse_text(path, "node_texts", texts);
    if (data->document == NULL || !read_texts(path, "node_texts", data->document, data)) {
      return false;
    }
  }
  const char *marked = io_metadata(file, "greedy_path");
  if (marked == NULL) {
    return true;
  }
  json_t *nodes = parse_text(path, "greedy_path", marked);
  const bool good = nodes != NULL && read_path(path, "greedy_path", nodes, data);
  json_decref(nodes);
  return good;
}

static bool read_tensors(const char *path, tree_data *data) {
  io_file *file = NULL;
  if (!io_open(path, "parents", &file)) {
    return false;
  }
  const int64_t any[] = {IO_FREE};
  const io_tensor *tensor = NULL;
  const int32_t *parents = NULL;
  const int32_t *tokens = NULL;
  bool good = io_get_i32(file, "parents", 1, any, &tensor, &parents);
  if (good) {
    data->num_nodes = tensor->shape[0];
    good = copy_values(parents, data->num_nodes, &data->parents) && check(path, data) &&
           io_get_i32_optional(file, "tokens", 1, &data->num_nodes, NULL, &tokens) &&
           (tokens == NULL || copy_values(tokens, data->num_nodes, &data->tokens)) && read_metadata(path, file, data);
  }
  io_close(file);
  return good;
}

bool tree_data_read(const char *path, tree_data *data) {
  static const char *const extensions[] = {".safetensors", ".npz", ".npy"};
  for (int k = 0; k < 3; k++) {
    if (has_extension(path, extensions[k])) {
      return read_tensors(path, data);
    }
  }
  return read_json(path, data);
}

/* ---- choices ---- */

typedef struct choice_arrays {
  int32_t *ranks;
  int32_t *lengths;
  treeattn_tree_choices choices;
} choice_arrays;

static bool flatten_choices(const char *path, const json_t *list, choice_arrays *arrays) {
  const size_t num_choices = json_array_size(list);
  size_t num_ranks = 0;
  for (size_t entry = 0; entry < num_choices; entry++) {
    num_ranks += json_array_size(json_array_get(list, entry));
  }
  arrays->ranks = cli_malloc_array(num_ranks, sizeof *arrays->ranks);
  arrays->lengths = cli_malloc_array(num_choices, sizeof *arrays->lengths);
  if (arrays->ranks == NULL || arrays->lengths == NULL) {
    return out_of_memory();
  }
  size_t at = 0;
  for (size_t entry = 0; entry < num_choices; entry++) {
    const json_t *ranks = json_array_get(list, entry);
    if (!json_is_array(ranks)) {
      (void)cli_error("%s: choices[%zu] must be a list of child ranks", path, entry);
      return false;
    }
    arrays->lengths[entry] = (int32_t)json_array_size(ranks);
    for (size_t place = 0; place < json_array_size(ranks); place++) {
      const json_t *rank = json_array_get(ranks, place);
      const json_int_t value = json_integer_value(rank);
      if (!json_is_integer(rank) || value < 0 || value > INT32_MAX) {
        (void)cli_error("%s: choices[%zu][%zu] must be an integer from 0 to %ld", path, entry, place, (long)INT32_MAX);
        return false;
      }
      arrays->ranks[at++] = (int32_t)value;
    }
  }
  arrays->choices = (treeattn_tree_choices){arrays->ranks, (int64_t)num_ranks, arrays->lengths, (int64_t)num_choices};
  return true;
}

static bool make_choices(const char *path, const treeattn_tree_choices *choices, tree_data *data) {
  treeattn_error error;
  const size_t scratch_bytes = treeattn_tree_choices_scratch_bytes(choices->num_choices);
  void *scratch = cli_malloc(scratch_bytes);
  if (scratch == NULL) {
    return out_of_memory();
  }
  int64_t num_nodes = 0;
  treeattn_status status =
      treeattn_tree_make_choices(choices, NULL, NULL, 0, &num_nodes, scratch, scratch_bytes, &error);
  if (status == TREEATTN_OK) {
    data->parents = cli_malloc_array((size_t)num_nodes, sizeof *data->parents);
    data->ranks = cli_malloc_array((size_t)num_nodes, sizeof *data->ranks);
    if (data->parents == NULL || data->ranks == NULL) {
      cli_free(scratch);
      return out_of_memory();
    }
    status = treeattn_tree_make_choices(choices, data->parents, data->ranks, num_nodes, &data->num_nodes, scratch,
                                        scratch_bytes, &error);
  }
  cli_free(scratch);
  if (status != TREEATTN_OK) {
    (void)cli_library_error(path, &error);
  }
  return status == TREEATTN_OK;
}

bool tree_data_read_choices(const char *path, tree_data *data) {
  json_t *document = parse_file(path);
  if (document == NULL) {
    return false;
  }
  const json_t *list = json_is_object(document) ? json_object_get(document, "choices") : document;
  choice_arrays arrays = {NULL, NULL, {NULL, 0, NULL, 0}};
  bool good = json_is_array(list);
  if (!good) {
    (void)cli_error("%s: a list of choices is expected, such as [[0], [0, 0], [1]]", path);
  }
  good = good && flatten_choices(path, list, &arrays) && make_choices(path, &arrays.choices, data);
  cli_free(arrays.ranks);
  cli_free(arrays.lengths);
  json_decref(document);
  return good;
}
