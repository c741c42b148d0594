/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor files: reading .safetensors, .npy and .npz with every field checked, and writing them whole or not at all. */
#ifndef TREEATTN_TOOL_IO_H
#define TREEATTN_TOOL_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <treeattn/base.h>

/*
 * All functions that return bool report what went wrong through cli_error(), naming file and tensor, and return false;
 * the command then returns CLI_FAILURE. Nothing here exits.
 */

/* Element types are bits, so that an accessor can be given a set of them: IO_F32 | IO_F16. */
typedef enum io_dtype {
  IO_F64 = 1 << 0,
  IO_F32 = 1 << 1,
  IO_F16 = 1 << 2,
  IO_BF16 = 1 << 3,
  IO_I64 = 1 << 4,
  IO_I32 = 1 << 5,
  IO_I16 = 1 << 6,
  IO_I8 = 1 << 7,
  IO_U64 = 1 << 8,
  IO_U32 = 1 << 9,
  IO_U16 = 1 << 10,
  IO_U8 = 1 << 11,
  IO_BOOL = 1 << 12, /* one byte, 0 or 1 by convention; any byte other than 0 is true */
  IO_OTHER = 1 << 13 /* a type that is only carried along, e.g. F8_E4M3: see dtype_name */
} io_dtype;

#define IO_ANY ((1u << 14) - 1u)
#define IO_KV (IO_F32 | IO_F16 | IO_BF16)

/* Lower case, as in messages: "f32". "other" for IO_OTHER. */
const char *io_dtype_name(io_dtype dtype);
/* Bytes of an element; 0 for IO_OTHER. */
size_t io_dtype_bytes(io_dtype dtype);
/* TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16; 0 for any other type. */
treeattn_dtype io_dtype_to_treeattn(io_dtype dtype);

enum { IO_MAX_DIMS = 16 };

/* Belongs to its io_file, like all that it points to. */
typedef struct io_tensor {
  const char *name;
  const char *dtype_name; /* as in a safetensors header: "F32", "F8_E4M3" */
  io_dtype dtype;
  int num_dims;               /* 0: a scalar */
  int64_t shape[IO_MAX_DIMS]; /* row-major */
  int64_t num_elements;
  size_t bytes;
  const void *data;   /* aligned to the element size (copied at open where the file is not); never NULL */
  size_t file_offset; /* where the bytes begin in a .safetensors or .npy file */
} io_tensor;

/* For main, once: an input file that shrinks while it is mapped, or a limit on the size of files, ends the command
 * with a message and without a trace of a half-written output. */
void io_guard_signals(void);

/* ---- reading ---------------------------------------------------------------------------------------------- */

typedef struct io_file io_file;

/* The format follows from the extension, or from the first bytes where the extension says nothing. Tensors of an .npz
 * are named without ".npy"; the one tensor of an .npy is named `npy_name`, or after the file if that is NULL
 * (dir/q.npy: "q"). Close with io_close. */
bool io_open(const char *path, const char *npy_name, io_file **file);
void io_close(io_file *file); /* NULL is legal */

const char *io_path(const io_file *file);
/* In the order of the file's header (safetensors) or of its members (.npz). */
size_t io_num_tensors(const io_file *file);
const io_tensor *io_tensor_at(const io_file *file, size_t index);
/* NULL if there is none: not an error. */
const io_tensor *io_find(const io_file *file, const char *name);

/* Strings of safetensors' __metadata__, in file order. NULL if the key is absent; none for other formats. */
const char *io_metadata(const io_file *file, const char *key);
size_t io_num_metadata(const io_file *file);
const char *io_metadata_key(const io_file *file, size_t index);
const char *io_metadata_value(const io_file *file, size_t index);

/*
 * Checked access. `dtypes` is a set of io_dtype. `shape` has num_dims entries; an entry of IO_FREE accepts any length
 * (read it from the tensor). num_dims -1 accepts any shape. A mismatch reads like
 *
 *     code.safetensors: tensor 'k': expected f32, f16 or bf16 [3][*][64], found i32 [3][1111][64]
 *
 * io_get reports a tensor that is not there; io_get_optional then returns true with *tensor NULL.
 */
#define IO_FREE ((int64_t)-1)
bool io_get(const io_file *file, const char *name, unsigned dtypes, int num_dims, const int64_t *shape,
            const io_tensor **tensor);
bool io_get_optional(const io_file *file, const char *name, unsigned dtypes, int num_dims, const int64_t *shape,
                     const io_tensor **tensor);

/* The same with the elements converted where needed into memory that the file owns. i32 accepts every integer type (a
 * value that does not fit is an error that names index and value); f32 accepts f64 (rounded), f32, f16 and bf16.
 * *tensor (may be NULL) gives the shape; its dtype is that of the file. For *_optional, *values is NULL if absent. */
bool io_get_i32(io_file *file, const char *name, int num_dims, const int64_t *shape, const io_tensor **tensor,
                const int32_t **values);
bool io_get_i32_optional(io_file *file, const char *name, int num_dims, const int64_t *shape, const io_tensor **tensor,
                         const int32_t **values);
bool io_get_f32(io_file *file, const char *name, int num_dims, const int64_t *shape, const io_tensor **tensor,
                const float **values);
bool io_get_f32_optional(io_file *file, const char *name, int num_dims, const int64_t *shape, const io_tensor **tensor,
                         const float **values);

/* Integers of any type to i32, and floats of 16, 32 or 64 bits to f32: the conversions behind io_get_*.
 * `at` is the index of the first value that does not fit, on failure. Nothing is reported. */
bool io_convert_i32(const io_tensor *tensor, int32_t *values, size_t *at);
bool io_convert_f32(const io_tensor *tensor, float *values);

/* ---- writing ---------------------------------------------------------------------------------------------- */

/*
 * Collects tensors and writes them in one go: to a temporary file in the folder of `path`, synced, then renamed over
 * it. After a failure, and after SIGINT or SIGTERM, `path` is as it was and no temporary file is left. The extension
 * chooses the format: .safetensors, .npz, or .npy (exactly one tensor). It may be the path of a file that is still
 * open for reading.
 */
typedef struct io_writer io_writer;

io_writer *io_writer_create(void); /* NULL after reporting out of memory */
void io_writer_destroy(io_writer *writer);
/* `data` is borrowed until io_writer_save has returned. Names must differ. `dtype` not IO_OTHER. */
bool io_writer_add(io_writer *writer, const char *name, io_dtype dtype, int num_dims, const int64_t *shape,
                   const void *data);
/* A tensor as it is, of any type. */
bool io_writer_add_tensor(io_writer *writer, const io_tensor *tensor);
/* A string of __metadata__ (safetensors only; dropped by the other formats). A key set twice keeps the later value. */
bool io_writer_set_metadata(io_writer *writer, const char *key, const char *value);
bool io_writer_save(io_writer *writer, const char *path);

/* Says whether `path` has an extension that can be written; reports a usage error if not. Call before the work. */
bool io_writer_check_path(const char *path);

/* Whether the extension is .npy, which holds one tensor. */
bool io_path_is_npy(const char *path);

/* Writes the file again with the bytes of some tensors replaced (same shape and type) and everything else, a
 * safetensors header included, byte for byte as it was. The output's format must be the input's. */
typedef struct io_replacement {
  const io_tensor *tensor; /* one of the file's */
  const void *data;        /* tensor->bytes of them */
} io_replacement;
bool io_save_replaced(const io_file *file, const io_replacement *replacements, size_t num_replacements,
                      const char *path);

/* A text or binary file (SVG, PNG, CSV ...) written whole or not at all, like a tensor file. */
bool io_write_bytes(const char *path, const void *data, size_t bytes);

#endif
