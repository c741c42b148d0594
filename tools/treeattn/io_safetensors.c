/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors format: a JSON header that is believed only after every field of it has been checked. */
#include "io_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What the reference implementation accepts. */
static const uint64_t max_header_bytes = 100000000;

static const io_dtype_row *find_row(const char *name) {
  const io_dtype_row *row = io_dtype_rows;
  while (row->name != NULL && strcmp(row->name, name) != 0) {
    ++row;
  }
  return row;
}

static const char *json_type_name(const json_t *json) {
  switch (json_typeof(json)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_NULL: return "null";
    default: return "a boolean";
  }
}

static bool parse_shape(const json_t *json, io_tensor *tensor, io_reason *reason) {
  if (!json_is_array(json)) {
    return io_refuse(reason, "tensor '%s': shape is %s, not an array", tensor->name, json_type_name(json));
  }
  const size_t num_dims = json_array_size(json);
  if (num_dims > IO_MAX_DIMS) {
    return io_refuse(reason, "tensor '%s': shape has %zu dimensions, at most %d are supported", tensor->name, num_dims,
                     (int)IO_MAX_DIMS);
  }
  tensor->num_dims = (int)num_dims;
  for (size_t d = 0; d < num_dims; ++d) {
    const json_t *length = json_array_get(json, d);
    if (!json_is_integer(length)) {
      return io_refuse(reason, "tensor '%s': shape[%zu] is %s, not an integer", tensor->name, d,
                       json_type_name(length));
    }
    tensor->shape[d] = json_integer_value(length);
    if (tensor->shape[d] < 0) {
      return io_refuse(reason, "tensor '%s': shape[%zu] is %" PRId64 ": a length cannot be negative", tensor->name, d,
                       tensor->shape[d]);
    }
  }
  return true;
}

static bool parse_offsets(const json_t *json, size_t data_bytes, io_tensor *tensor, const unsigned char *data,
                          io_reason *reason) {
  if (!json_is_array(json) || json_array_size(json) != 2 || !json_is_integer(json_array_get(json, 0)) ||
      !json_is_integer(json_array_get(json, 1))) {
    return io_refuse(reason, "tensor '%s': data_offsets must be an array of two integers", tensor->name);
  }
  const int64_t begin = json_integer_value(json_array_get(json, 0));
  const int64_t end = json_integer_value(json_array_get(json, 1));
  if (begin < 0 || end < begin) {
    return io_refuse(reason, "tensor '%s': data_offsets [%" PRId64 ", %" PRId64 "] are out of order", tensor->name,
                     begin, end);
  }
  if ((uint64_t)end > data_bytes) {
    return io_refuse(reason,
                     "tensor '%s': data_offsets [%" PRId64 ", %" PRId64 "] end past the %zu bytes of data (is the file "
                     "truncated?)",
                     tensor->name, begin, end, data_bytes);
  }
  tensor->data = data + begin;
  tensor->bytes = (size_t)(end - begin);
  return true;
}

static bool check_dtype_name(const io_tensor *tensor, io_reason *reason) {
  const char *name = tensor->dtype_name;
  const size_t length = strlen(name);
  if (length == 0 || length > 31 || strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != length) {
    return io_refuse(reason, "tensor '%s': dtype '%.40s' is not the name of a type", tensor->name, name);
  }
  return true;
}

/* A type whose width is not known has whatever bytes its offsets give it. */
static bool check_size(io_tensor *tensor, io_reason *reason) {
  const io_dtype_row *row = find_row(tensor->dtype_name);
  const bool width_known = row->name != NULL;
  char shape[IO_MAX_DIMS * 24];
  io_format_shape(shape, sizeof shape, tensor->num_dims, tensor->shape);
  tensor->dtype = row->dtype;
  size_t num_bytes = 0;
  if (!io_shape_size(tensor->num_dims, tensor->shape, width_known ? row->bits : 8, &tensor->num_elements, &num_bytes)) {
    return io_refuse(reason, "tensor '%s': %s %s has a size in bytes that overflows or is not whole", tensor->name,
                     tensor->dtype_name, shape);
  }
  if (width_known && num_bytes != tensor->bytes) {
    return io_refuse(reason, "tensor '%s': %s %s needs %zu bytes, its data_offsets give %zu", tensor->name,
                     tensor->dtype_name, shape, num_bytes, tensor->bytes);
  }
  return true;
}

static bool parse_entry(const char *name, json_t *entry, size_t data_bytes, const unsigned char *data,
                        io_tensor *tensor, io_reason *reason) {
  tensor->name = name;
  if (!json_is_object(entry)) {
    return io_refuse(reason, "tensor '%s': its header entry is %s, not an object", name, json_type_name(entry));
  }
  const json_t *dtype = json_object_get(entry, "dtype");
  const json_t *shape = json_object_get(entry, "shape");
  const json_t *offsets = json_object_get(entry, "data_offsets");
  if (dtype == NULL || shape == NULL || offsets == NULL) {
    return io_refuse(reason, "tensor '%s': its header entry has no %s", name,
                     dtype == NULL   ? "dtype"
                     : shape == NULL ? "shape"
                                     : "data_offsets");
  }
  if (json_object_size(entry) != 3) {
    return io_refuse(reason, "tensor '%s': its header entry has fields beyond dtype, shape and data_offsets", name);
  }
  if (!json_is_string(dtype)) {
    return io_refuse(reason, "tensor '%s': dtype is %s, not a string", name, json_type_name(dtype));
  }
  tensor->dtype_name = json_string_value(dtype);
  return check_dtype_name(tensor, reason) && parse_shape(shape, tensor, reason) &&
         parse_offsets(offsets, data_bytes, tensor, data, reason) && check_size(tensor, reason);
}

static bool parse_metadata(io_file *file, json_t *metadata, io_reason *reason) {
  if (!json_is_object(metadata)) {
    return io_refuse(reason, "__metadata__ is %s, not an object", json_type_name(metadata));
  }
  file->metadata = cli_malloc_array(json_object_size(metadata), 2 * sizeof *file->metadata);
  if (file->metadata == NULL) {
    return io_refuse(reason, "out of memory");
  }
  const char *key;
  json_t *value;
  json_object_foreach(metadata, key, value) {
    if (!json_is_string(value)) {
      return io_refuse(reason, "__metadata__: '%s' is %s, not a string", key, json_type_name(value));
    }
    file->metadata[2 * file->num_metadata] = key;
    file->metadata[2 * file->num_metadata + 1] = json_string_value(value);
    ++file->num_metadata;
  }
  return true;
}

static int compare_places(const void *left, const void *right) {
  const io_tensor *a = *(const io_tensor *const *)left;
  const io_tensor *b = *(const io_tensor *const *)right;
  const uintptr_t a_begin = (uintptr_t)a->data, b_begin = (uintptr_t)b->data;
  if (a_begin != b_begin) {
    return a_begin < b_begin ? -1 : 1;
  }
  return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

/* The tensors must tile the data: bytes that belong to none could hide something, bytes of two are a fault of the
 * writer. */
static bool check_tiling(const io_file *file, const unsigned char *data, size_t data_bytes, io_reason *reason) {
  const io_tensor **order = cli_malloc_array(file->num_tensors, sizeof *order);
  if (order == NULL) {
    return io_refuse(reason, "out of memory");
  }
  for (size_t t = 0; t < file->num_tensors; ++t) {
    order[t] = &file->tensors[t];
  }
  qsort(order, file->num_tensors, sizeof(const io_tensor *), compare_places);
  size_t expected = 0;
  bool good = true;
  for (size_t t = 0; t < file->num_tensors && good; ++t) {
    const size_t begin = (size_t)((const unsigned char *)order[t]->data - data);
    if (begin < expected) {
      good = io_refuse(reason, "tensor '%s': its data at offset %zu overlaps that of tensor '%s'", order[t]->name,
                       begin, order[t - 1]->name);
    } else if (begin > expected) {
      good = io_refuse(reason, "tensor '%s': %zu bytes before its data at offset %zu belong to no tensor",
                       order[t]->name, begin - expected, begin);
    }
    expected = begin + order[t]->bytes;
  }
  cli_free(order);
  if (good && expected != data_bytes) {
    return io_refuse(reason, "%zu bytes at the end belong to no tensor", data_bytes - expected);
  }
  return good;
}

static bool parse_header(io_file *file, io_reason *reason) {
  const unsigned char *data = file->bytes + file->data_start;
  const size_t data_bytes = file->num_bytes - file->data_start;
  const size_t num_entries = json_object_size(file->header);
  file->tensors = cli_malloc_array(num_entries, sizeof *file->tensors);
  if (file->tensors == NULL) {
    return io_refuse(reason, "out of memory");
  }
  const char *name;
  json_t *entry;
  json_object_foreach(file->header, name, entry) {
    if (strcmp(name, "__metadata__") == 0) {
      if (!parse_metadata(file, entry, reason)) {
        return false;
      }
      continue;
    }
    io_tensor *tensor = &file->tensors[file->num_tensors];
    *tensor = (io_tensor){0};
    if (!parse_entry(name, entry, data_bytes, data, tensor, reason)) {
      return false;
    }
    tensor->file_offset = (size_t)((const unsigned char *)tensor->data - file->bytes);
    ++file->num_tensors;
  }
  return check_tiling(file, data, data_bytes, reason);
}

bool io_parse_safetensors(io_file *file, io_reason *reason) {
  if (file->num_bytes < 8) {
    return io_refuse(reason, "not a safetensors file: %zu bytes are fewer than the 8 of a header length",
                     file->num_bytes);
  }
  uint64_t header_bytes = 0;
  memcpy(&header_bytes, file->bytes, sizeof header_bytes);
  if (header_bytes > max_header_bytes) {
    return io_refuse(reason, "not a safetensors file: a header length of %" PRIu64 " is above the limit of %" PRIu64,
                     header_bytes, max_header_bytes);
  }
  if (header_bytes > file->num_bytes - 8) {
    return io_refuse(reason,
                     "a header length of %" PRIu64 " exceeds the %zu bytes that follow (is the file truncated?)",
                     header_bytes, file->num_bytes - 8);
  }
  const char *text = (const char *)file->bytes + 8;
  if (header_bytes < 2 || text[0] != '{') {
    return io_refuse(reason, "not a safetensors file: the header does not begin with '{'");
  }
  json_error_t error;
  file->data_start = 8 + (size_t)header_bytes;
  const uint64_t failures_before = cli_num_failed_allocations();
  file->header = json_loadb(text, (size_t)header_bytes, JSON_REJECT_DUPLICATES, &error);
  if (file->header == NULL) {
    /* jansson takes a token that it had no memory for to be a fault of the text, and would blame the file. */
    if (cli_num_failed_allocations() != failures_before) {
      return io_refuse(reason, "out of memory");
    }
    return io_refuse(reason, "header, byte %d: %s", error.position, error.text);
  }
  return parse_header(file, reason);
}

/* Setters take their value over even when they fail, so only what is not yet in a container is released here. */
static json_t *make_entry(const io_written *item) {
  const io_tensor *tensor = &item->tensor;
  json_t *entry = json_object();
  json_t *shape = json_array();
  json_t *offsets = json_array();
  bool built =
      shape != NULL && offsets != NULL && json_object_set_new(entry, "dtype", json_string(tensor->dtype_name)) == 0;
  for (int d = 0; d < tensor->num_dims; ++d) {
    built = built && json_array_append_new(shape, json_integer(tensor->shape[d])) == 0;
  }
  built = built && json_array_append_new(offsets, json_integer((json_int_t)item->offset)) == 0 &&
          json_array_append_new(offsets, json_integer((json_int_t)(item->offset + tensor->bytes))) == 0;
  built = json_object_set_new(entry, "shape", shape) == 0 && built;
  built = json_object_set_new(entry, "data_offsets", offsets) == 0 && built;
  if (!built) {
    json_decref(entry);
    return NULL;
  }
  return entry;
}

bool io_safetensors_header(const io_writer *writer, unsigned char **header, size_t *num_bytes, io_reason *reason) {
  json_t *root = json_object();
  bool built = root != NULL;
  if (writer->metadata != NULL) {
    built = built && json_object_set(root, "__metadata__", writer->metadata) == 0;
  }
  for (size_t n = 0; n < writer->num_items && built; ++n) {
    const io_written *item = &writer->items[n];
    built = json_object_set_new(root, item->tensor.name, make_entry(item)) == 0;
  }
  /* Measured first and then written into one block: json_dumps() can lose a key when its buffer cannot grow. */
  const size_t flags = JSON_COMPACT | JSON_PRESERVE_ORDER;
  const size_t text_bytes = built ? json_dumpb(root, NULL, 0, flags) : 0;
  /* Blanks up to a multiple of 8 keep the data aligned for readers that map the file. */
  const size_t padded = (text_bytes + 7) / 8 * 8;
  *header = text_bytes > 0 ? cli_malloc(8 + padded) : NULL;
  if (*header == NULL || json_dumpb(root, (char *)*header + 8, text_bytes, flags) != text_bytes) {
    cli_free(*header);
    *header = NULL;
    json_decref(root);
    return io_refuse(reason, "out of memory");
  }
  json_decref(root);
  const uint64_t length = padded;
  memcpy(*header, &length, 8);
  memset(*header + 8 + text_bytes, ' ', padded - text_bytes);
  *num_bytes = 8 + padded;
  return true;
}
