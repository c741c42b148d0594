/* SPDX-License-Identifier: Apache-2.0 */
/* From a list of tensors to a file in the format that the path's extension names. */
#include "io_internal.h"

#include <string.h>

io_writer *io_writer_create(void) {
  io_writer *writer = cli_malloc(sizeof *writer);
  if (writer == NULL) {
    (void)cli_out_of_memory();
    return NULL;
  }
  *writer = (io_writer){0};
  return writer;
}

void io_writer_destroy(io_writer *writer) {
  if (writer == NULL) {
    return;
  }
  for (size_t n = 0; n < writer->num_items; ++n) {
    cli_free(writer->items[n].name);
    cli_free(writer->items[n].dtype_name);
  }
  cli_free(writer->items);
  json_decref(writer->metadata);
  cli_free(writer);
}

static bool grow(io_writer *writer) {
  if (writer->num_items < writer->capacity) {
    return true;
  }
  const size_t capacity = writer->capacity > 0 ? 2 * writer->capacity : 8;
  io_written *items = cli_realloc_array(writer->items, capacity, sizeof *items);
  if (items == NULL) {
    return false;
  }
  writer->items = items;
  writer->capacity = capacity;
  return true;
}

bool io_writer_add_tensor(io_writer *writer, const io_tensor *tensor) {
  for (size_t n = 0; n < writer->num_items; ++n) {
    if (strcmp(writer->items[n].name, tensor->name) == 0) {
      (void)cli_error("tensor '%s' would be written twice", tensor->name);
      return false;
    }
  }
  io_written item = {.tensor = *tensor, .name = cli_strdup(tensor->name), .dtype_name = cli_strdup(tensor->dtype_name)};
  if (item.name == NULL || item.dtype_name == NULL || !grow(writer)) {
    cli_free(item.name);
    cli_free(item.dtype_name);
    (void)cli_out_of_memory();
    return false;
  }
  item.tensor.name = item.name;
  item.tensor.dtype_name = item.dtype_name;
  writer->items[writer->num_items++] = item;
  return true;
}

bool io_writer_add(io_writer *writer, const char *name, io_dtype dtype, int num_dims, const int64_t *shape,
                   const void *data) {
  io_tensor tensor = {.name = name, .dtype = dtype, .num_dims = num_dims, .data = data};
  const io_dtype_row *row = io_dtype_rows;
  while (row->dtype != dtype && row->name != NULL) {
    ++row;
  }
  if (row->dtype == IO_OTHER || num_dims < 0 || num_dims > IO_MAX_DIMS ||
      !io_shape_size(num_dims, shape, row->bits, &tensor.num_elements, &tensor.bytes)) {
    (void)cli_error("tensor '%s': its type or size cannot be written", name);
    return false;
  }
  tensor.dtype_name = row->name;
  for (int d = 0; d < num_dims; ++d) {
    tensor.shape[d] = shape[d];
  }
  return io_writer_add_tensor(writer, &tensor);
}

bool io_writer_set_metadata(io_writer *writer, const char *key, const char *value) {
  if (writer->metadata == NULL) {
    writer->metadata = json_object();
  }
  if (writer->metadata == NULL || json_object_set_new(writer->metadata, key, json_string(value)) != 0) {
    (void)cli_error("metadata '%s': out of memory, or not UTF-8", key);
    return false;
  }
  return true;
}

bool io_writer_check_path(const char *path) {
  if (io_format_of_path(path) == IO_FORMAT_UNKNOWN) {
    (void)cli_usage_error("'%s': the output's extension must be .safetensors, .npz or .npy", path);
    return false;
  }
  return true;
}

bool io_path_is_npy(const char *path) {
  return io_format_of_path(path) == IO_FORMAT_NPY;
}

/* Wide elements first, so that no tensor's data is misaligned by one of odd length before it. */
bool io_writer_place(io_writer *writer, size_t *num_bytes) {
  size_t offset = 0, nth = 0;
  for (size_t alignment = 8; alignment > 0; alignment /= 2) {
    for (size_t n = 0; n < writer->num_items; ++n) {
      io_written *item = &writer->items[n];
      const size_t width = io_dtype_bytes(item->tensor.dtype);
      if ((width > 0 ? width : 1) != alignment) {
        continue;
      }
      if (offset > (size_t)INT64_MAX - item->tensor.bytes) {
        return false;
      }
      item->offset = offset;
      offset += item->tensor.bytes;
      writer->items[nth++].nth_item = n;
    }
  }
  *num_bytes = offset;
  return true;
}

/* ---- one function for each format ------------------------------------------------------------------------- */

static bool write_safetensors(io_writer *writer, io_output *output, const char *path) {
  unsigned char *header = NULL;
  size_t header_bytes = 0, data_bytes = 0;
  io_reason reason = {""};
  if (!io_writer_place(writer, &data_bytes)) {
    (void)cli_error("%s: the data would be larger than 2^63 bytes", path);
    return false;
  }
  if (!io_safetensors_header(writer, &header, &header_bytes, &reason)) {
    (void)cli_error("%s: %s", path, reason.text);
    return false;
  }
  io_output_expect(output, header_bytes + data_bytes);
  bool good = io_output_write(output, header, header_bytes);
  cli_free(header);
  for (size_t n = 0; n < writer->num_items && good; ++n) {
    const io_tensor *tensor = &writer->items[writer->items[n].nth_item].tensor;
    good = io_output_write(output, tensor->data, tensor->bytes);
  }
  return good;
}

static bool write_npy(const io_writer *writer, io_output *output, const char *path) {
  if (writer->num_items != 1) {
    (void)cli_error("%s: an .npy file holds one tensor, not %zu", path, writer->num_items);
    return false;
  }
  const io_tensor *tensor = &writer->items[0].tensor;
  unsigned char *header = NULL;
  size_t header_bytes = 0;
  io_reason reason = {""};
  if (!io_npy_header(tensor, &header, &header_bytes, &reason)) {
    (void)cli_error("%s: %s", path, reason.text);
    return false;
  }
  io_output_expect(output, header_bytes + tensor->bytes);
  const bool good =
      io_output_write(output, header, header_bytes) && io_output_write(output, tensor->data, tensor->bytes);
  cli_free(header);
  return good;
}

static bool write_npz(const io_writer *writer, io_output *output, const char *path) {
  unsigned char *archive = NULL;
  size_t archive_bytes = 0;
  io_reason reason = {""};
  if (!io_npz_pack(writer, &archive, &archive_bytes, &reason)) {
    (void)cli_error("%s: %s", path, reason.text);
    return false;
  }
  io_output_expect(output, archive_bytes);
  const bool good = io_output_write(output, archive, archive_bytes);
  cli_free(archive);
  return good;
}

bool io_writer_save(io_writer *writer, const char *path) {
  const io_format format = io_format_of_path(path);
  if (format == IO_FORMAT_UNKNOWN) {
    (void)cli_error("%s: the output's extension must be .safetensors, .npz or .npy", path);
    return false;
  }
  io_output *output;
  if (!io_output_open(path, &output)) {
    return false;
  }
  const bool good = format == IO_FORMAT_NPY   ? write_npy(writer, output, path)
                    : format == IO_FORMAT_NPZ ? write_npz(writer, output, path)
                                              : write_safetensors(writer, output, path);
  if (!good) {
    io_output_abandon(output);
    return false;
  }
  return io_output_commit(output);
}

/* ---- a file again, with some tensors exchanged ------------------------------------------------------------ */

static const void *replaced_data(const io_tensor *tensor, const io_replacement *replacements, size_t num_replacements) {
  for (size_t r = num_replacements; r > 0; --r) {
    if (replacements[r - 1].tensor == tensor) {
      return replacements[r - 1].data;
    }
  }
  return NULL;
}

/* The file's bytes in order, with each replaced stretch taken from its replacement. Tensors tile the data, so that
 * going from one stretch to the next by place visits each once. */
static bool write_replaced_bytes(const io_file *file, const io_replacement *replacements, size_t num_replacements,
                                 io_output *output) {
  io_output_expect(output, file->num_bytes);
  size_t done = 0;
  while (done < file->num_bytes) {
    size_t next = file->num_bytes;
    const io_tensor *tensor = NULL;
    for (size_t r = 0; r < num_replacements; ++r) {
      const io_tensor *candidate = replacements[r].tensor;
      if (candidate->bytes > 0 && candidate->file_offset >= done && candidate->file_offset < next) {
        next = candidate->file_offset;
        tensor = candidate;
      }
    }
    if (!io_output_write(output, file->bytes + done, next - done)) {
      return false;
    }
    if (tensor == NULL) {
      return true;
    }
    if (!io_output_write(output, replaced_data(tensor, replacements, num_replacements), tensor->bytes)) {
      return false;
    }
    done = next + tensor->bytes;
  }
  return true;
}

bool io_save_replaced(const io_file *file, const io_replacement *replacements, size_t num_replacements,
                      const char *path) {
  if (io_format_of_path(path) != file->format) {
    (void)cli_error("%s: the output must have the format of the input %s", path, io_path(file));
    return false;
  }
  io_output *output;
  if (!io_output_open(path, &output)) {
    return false;
  }
  bool good = false;
  if (file->format == IO_FORMAT_NPZ) {
    unsigned char *archive = NULL;
    size_t archive_bytes = 0;
    io_reason reason = {""};
    good = io_npz_replace(file, replacements, num_replacements, &archive, &archive_bytes, &reason);
    if (good) {
      good = io_output_write(output, archive, archive_bytes);
    } else {
      (void)cli_error("%s: %s", path, reason.text);
    }
    cli_free(archive);
  } else {
    good = write_replaced_bytes(file, replacements, num_replacements, output);
  }
  if (!good) {
    io_output_abandon(output);
    return false;
  }
  return io_output_commit(output);
}
