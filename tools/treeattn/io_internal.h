/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of io.h share: an open file, reasons without a file name, the formats, whole-file output. */
#ifndef TREEATTN_TOOL_IO_INTERNAL_H
#define TREEATTN_TOOL_IO_INTERNAL_H

#include <jansson.h>
#include <stdio.h>

#include "cli.h"
#include "io.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensor files hold little-endian numbers, and this tool reads them in place"
#endif

typedef enum io_format { IO_FORMAT_UNKNOWN, IO_FORMAT_SAFETENSORS, IO_FORMAT_NPY, IO_FORMAT_NPZ } io_format;

/* Why bytes are not a good file, without the file's name: readers work on memory, which has none. */
typedef struct io_reason {
  char text[768];
} io_reason;

/* Always false, so that checks read `return io_refuse(...)`. */
bool io_refuse(io_reason *reason, const char *format, ...) CLI_PRINTF(2, 3);

struct io_file {
  char *path;
  io_format format;

  /* The file's bytes: mapped, or read into `heap`, or borrowed from a caller. */
  const unsigned char *bytes;
  size_t num_bytes;
  void *mapping;
  void *heap;
  size_t data_start; /* safetensors and npy: where the header ends */

  io_tensor *tensors;
  size_t num_tensors;
  json_t *header;        /* safetensors: owns names, type names and metadata */
  const char **metadata; /* key, value, key, value ... */
  size_t num_metadata;

  void **owned; /* copies and conversions */
  size_t num_owned, owned_capacity;
};

/* ---- types ---- */

typedef struct io_dtype_row {
  io_dtype dtype;
  const char *name;      /* in safetensors */
  const char *lower;     /* in messages */
  const char *npy_descr; /* NULL: .npy has no such type */
  unsigned bits;
} io_dtype_row;

/* Ends with a row whose name is NULL. Types narrower or stranger than io_dtype knows are IO_OTHER. */
extern const io_dtype_row io_dtype_rows[];

/* num_elements (>= 0) and the bytes they take, or false when either does not fit (or the bits do not fill bytes). */
bool io_shape_size(int num_dims, const int64_t *shape, unsigned bits, int64_t *num_elements, size_t *num_bytes);
/* "[3][*][64]"; "[]" for a scalar. */
void io_format_shape(char *text, size_t capacity, int num_dims, const int64_t *shape);

/* ---- reading ---- */

/* Parses bytes that outlive the file. On failure *file is NULL and the reason is set. */
bool io_parse(const void *bytes, size_t num_bytes, io_format format, const char *npy_name, io_file **file,
              io_reason *reason);
io_format io_format_of_path(const char *path);
io_format io_format_of_bytes(const unsigned char *bytes, size_t num_bytes);

bool io_parse_safetensors(io_file *file, io_reason *reason);
bool io_parse_npy(io_file *file, const char *name, io_reason *reason);
bool io_parse_npz(io_file *file, io_reason *reason);
/* One array of num_bytes bytes: fills all but the tensor's name. `data_start` is where its elements begin. */
bool io_parse_npy_array(const unsigned char *bytes, size_t num_bytes, io_tensor *tensor, size_t *data_start,
                        io_reason *reason);

/* Memory that io_close frees; NULL when out of memory. */
void *io_own(io_file *file, size_t num_bytes);
/* Gives every tensor data that is aligned to its element. */
bool io_align_tensors(io_file *file, io_reason *reason);

/* ---- writing ---- */

/* A file that appears under its name only when it is complete. */
typedef struct io_output io_output;
bool io_output_open(const char *path, io_output **output);
/* How many bytes are to come, for the progress bar. */
void io_output_expect(io_output *output, size_t num_bytes);
bool io_output_write(io_output *output, const void *data, size_t num_bytes);
/* Makes the file appear. Releases the output in any case. */
bool io_output_commit(io_output *output);
/* Leaves no trace. NULL is legal. */
void io_output_abandon(io_output *output);

typedef struct io_written {
  io_tensor tensor;
  char *name;
  char *dtype_name;
  size_t offset;   /* in the data of a safetensors file */
  size_t nth_item; /* slot n of this array tells which item's data is the n-th in the file */
} io_written;

struct io_writer {
  io_written *items;
  size_t num_items, capacity;
  json_t *metadata; /* NULL: none */
};

/* Gives each item its place in the data of a safetensors file. False when the data would not fit in 63 bits. */
bool io_writer_place(io_writer *writer, size_t *data_bytes);
/* The header of an array, magic and padding included, from cli_malloc. False when the type has none, or out of
 * memory. */
bool io_npy_header(const io_tensor *tensor, unsigned char **header, size_t *num_bytes, io_reason *reason);
/* The header with its length, from cli_malloc, for items that have been placed. Names stay in the order they were
 * added in. */
bool io_safetensors_header(const io_writer *writer, unsigned char **header, size_t *num_bytes, io_reason *reason);
/* A whole archive, from cli_malloc. */
bool io_npz_pack(const io_writer *writer, unsigned char **archive, size_t *num_bytes, io_reason *reason);
/* `archive` with some members exchanged and the others as they are. */
bool io_npz_replace(const io_file *file, const io_replacement *replacements, size_t num_replacements,
                    unsigned char **archive, size_t *num_bytes, io_reason *reason);

#endif
