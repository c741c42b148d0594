/* SPDX-License-Identifier: Apache-2.0 */
/* An open tensor file: from a path or from memory to a checked list of tensors. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* mmap, fstat under -std=c11 */
#endif

#include "io_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

io_format io_format_of_path(const char *path) {
  const char *base = strrchr(path, '/');
  const char *dot = strrchr(base != NULL ? base : path, '.');
  if (dot == NULL) {
    return IO_FORMAT_UNKNOWN;
  }
  return strcasecmp(dot, ".safetensors") == 0 ? IO_FORMAT_SAFETENSORS
         : strcasecmp(dot, ".npy") == 0       ? IO_FORMAT_NPY
         : strcasecmp(dot, ".npz") == 0       ? IO_FORMAT_NPZ
                                              : IO_FORMAT_UNKNOWN;
}

io_format io_format_of_bytes(const unsigned char *bytes, size_t num_bytes) {
  if (num_bytes >= 6 && memcmp(bytes, "\x93NUMPY", 6) == 0) {
    return IO_FORMAT_NPY;
  }
  if (num_bytes >= 4 && (memcmp(bytes, "PK\3\4", 4) == 0 || memcmp(bytes, "PK\5\6", 4) == 0)) {
    return IO_FORMAT_NPZ;
  }
  return IO_FORMAT_SAFETENSORS;
}

void *io_own(io_file *file, size_t num_bytes) {
  if (file->num_owned == file->owned_capacity) {
    const size_t capacity = file->owned_capacity > 0 ? 2 * file->owned_capacity : 8;
    void **owned = cli_realloc_array(file->owned, capacity, sizeof *owned);
    if (owned == NULL) {
      return NULL;
    }
    file->owned = owned;
    file->owned_capacity = capacity;
  }
  void *memory = cli_malloc(num_bytes);
  if (memory != NULL) {
    file->owned[file->num_owned++] = memory;
  }
  return memory;
}

bool io_align_tensors(io_file *file, io_reason *reason) {
  for (size_t t = 0; t < file->num_tensors; ++t) {
    io_tensor *tensor = &file->tensors[t];
    const size_t alignment = io_dtype_bytes(tensor->dtype);
    if (alignment > 1 && (uintptr_t)tensor->data % alignment != 0) {
      void *copy = io_own(file, tensor->bytes);
      if (copy == NULL) {
        return io_refuse(reason, "out of memory");
      }
      memcpy(copy, tensor->data, tensor->bytes);
      tensor->data = copy;
    }
  }
  return true;
}

static bool parse(io_file *file, const char *npy_name, io_reason *reason) {
  bool good = false;
  switch (file->format) {
    case IO_FORMAT_NPY: good = io_parse_npy(file, npy_name, reason); break;
    case IO_FORMAT_NPZ: good = io_parse_npz(file, reason); break;
    default: good = io_parse_safetensors(file, reason); break;
  }
  return good && io_align_tensors(file, reason);
}

static io_file *create(void) {
  io_file *file = cli_malloc(sizeof *file);
  if (file != NULL) {
    *file = (io_file){0};
  }
  return file;
}

bool io_parse(const void *bytes, size_t num_bytes, io_format format, const char *npy_name, io_file **file,
              io_reason *reason) {
  *file = NULL;
  io_file *fresh = create();
  if (fresh == NULL) {
    return io_refuse(reason, "out of memory");
  }
  fresh->bytes = bytes;
  fresh->num_bytes = num_bytes;
  fresh->format = format != IO_FORMAT_UNKNOWN ? format : io_format_of_bytes(bytes, num_bytes);
  if (!parse(fresh, npy_name, reason)) {
    io_close(fresh);
    return false;
  }
  *file = fresh;
  return true;
}

void io_close(io_file *file) {
  if (file == NULL) {
    return;
  }
  if (file->mapping != NULL) {
    (void)munmap(file->mapping, file->num_bytes);
  }
  for (size_t n = 0; n < file->num_owned; ++n) {
    cli_free(file->owned[n]);
  }
  json_decref(file->header);
  cli_free(file->owned);
  cli_free(file->metadata);
  cli_free(file->tensors);
  cli_free(file->heap);
  cli_free(file->path);
  cli_free(file);
}

/* ---- bytes from a path ------------------------------------------------------------------------------------ */

/* Pipes and the like have no size and cannot be mapped. */
static bool read_stream(io_file *file, int descriptor, io_reason *reason) {
  size_t capacity = 0;
  for (;;) {
    if (file->num_bytes == capacity) {
      capacity = capacity > 0 ? 2 * capacity : (size_t)1 << 16;
      void *heap = cli_realloc_array(file->heap, capacity, 1);
      if (heap == NULL) {
        return io_refuse(reason, "out of memory");
      }
      file->heap = heap;
      file->bytes = heap;
    }
    const ssize_t got = read(descriptor, (unsigned char *)file->heap + file->num_bytes, capacity - file->num_bytes);
    if (got < 0 && errno != EINTR) {
      return io_refuse(reason, "%s", strerror(errno));
    }
    if (got == 0) {
      return true;
    }
    file->num_bytes += got > 0 ? (size_t)got : 0;
  }
}

static bool load(io_file *file, io_reason *reason) {
  const int descriptor = open(file->path, O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (descriptor < 0 || fstat(descriptor, &status) != 0) {
    const int failure = errno;
    if (descriptor >= 0) {
      (void)close(descriptor);
    }
    return io_refuse(reason, "%s", strerror(failure));
  }
  bool good = true;
  if (S_ISDIR(status.st_mode)) {
    good = io_refuse(reason, "%s", strerror(EISDIR));
  } else if (S_ISREG(status.st_mode) && status.st_size > 0) {
    void *mapping = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (mapping == MAP_FAILED) {
      good = read_stream(file, descriptor, reason);
    } else {
      file->mapping = mapping;
      file->bytes = mapping;
      file->num_bytes = (size_t)status.st_size;
    }
  } else {
    good = read_stream(file, descriptor, reason);
  }
  (void)close(descriptor);
  return good;
}

/* "dir/q.npy" -> "q" */
static char *name_of_path(const char *path) {
  const char *slash = strrchr(path, '/');
  char *name = cli_strdup(slash != NULL ? slash + 1 : path);
  char *dot = name != NULL ? strrchr(name, '.') : NULL;
  if (dot != NULL) {
    *dot = '\0';
  }
  return name;
}

bool io_open(const char *path, const char *npy_name, io_file **file) {
  *file = NULL;
  io_file *fresh = create();
  char *own_name = npy_name != NULL ? cli_strdup(npy_name) : name_of_path(path);
  if (fresh != NULL) {
    fresh->path = cli_strdup(path);
  }
  bool good = fresh != NULL && own_name != NULL && fresh->path != NULL;
  io_reason reason = {"out of memory"};
  good = good && load(fresh, &reason);
  if (good) {
    fresh->format = io_format_of_path(path);
    if (fresh->format == IO_FORMAT_UNKNOWN) {
      fresh->format = io_format_of_bytes(fresh->bytes, fresh->num_bytes);
    }
    good = parse(fresh, own_name, &reason);
  }
  cli_free(own_name);
  if (!good) {
    (void)cli_error("%s: %s", path, reason.text);
    io_close(fresh);
    return false;
  }
  *file = fresh;
  return true;
}

/* ---- what is in it ---------------------------------------------------------------------------------------- */

const char *io_path(const io_file *file) {
  return file->path != NULL ? file->path : "memory";
}

size_t io_num_tensors(const io_file *file) {
  return file->num_tensors;
}

const io_tensor *io_tensor_at(const io_file *file, size_t index) {
  return &file->tensors[index];
}

const io_tensor *io_find(const io_file *file, const char *name) {
  for (size_t t = 0; t < file->num_tensors; ++t) {
    if (strcmp(file->tensors[t].name, name) == 0) {
      return &file->tensors[t];
    }
  }
  return NULL;
}

size_t io_num_metadata(const io_file *file) {
  return file->num_metadata;
}

const char *io_metadata_key(const io_file *file, size_t index) {
  return file->metadata[2 * index];
}

const char *io_metadata_value(const io_file *file, size_t index) {
  return file->metadata[2 * index + 1];
}

const char *io_metadata(const io_file *file, const char *key) {
  for (size_t m = 0; m < file->num_metadata; ++m) {
    if (strcmp(io_metadata_key(file, m), key) == 0) {
      return io_metadata_value(file, m);
    }
  }
  return NULL;
}
