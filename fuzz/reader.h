/* SPDX-License-Identifier: Apache-2.0 */
/* What the fuzzers of the tensor readers share: read everything that a file claims to hold, and hold the reader to
 * it. */
#ifndef TREEATTN_FUZZ_READER_H
#define TREEATTN_FUZZ_READER_H

#include <stdlib.h>
#include <string.h>

#include "io_internal.h"

#define FUZZ_REQUIRE(condition) ((condition) ? (void)0 : abort())

/* Exactly as long as the input and from malloc, so that one byte too far is seen. */
static inline void *fuzz_copy(const uint8_t *data, size_t num_bytes) {
  void *copy = malloc(num_bytes > 0 ? num_bytes : 1);
  FUZZ_REQUIRE(copy != NULL);
  if (num_bytes > 0) {
    memcpy(copy, data, num_bytes);
  }
  return copy;
}

/* Touches every byte of a tensor and converts it where that is possible. */
static inline void fuzz_read_tensor(const io_tensor *tensor) {
  FUZZ_REQUIRE(tensor->data != NULL && tensor->num_elements >= 0);
  const size_t width = io_dtype_bytes(tensor->dtype);
  FUZZ_REQUIRE(width == 0 || tensor->bytes == (size_t)tensor->num_elements * width);
  FUZZ_REQUIRE(width < 2 || (uintptr_t)tensor->data % width == 0);
  void *copy = fuzz_copy(tensor->data, tensor->bytes);
  free(copy);
  if (width > 0) {
    void *values = malloc((size_t)tensor->num_elements * 4 + 1);
    FUZZ_REQUIRE(values != NULL);
    size_t at = 0;
    (void)io_convert_i32(tensor, values, &at);
    (void)io_convert_f32(tensor, values);
    free(values);
  }
}

/* Parses the input; NULL if it is refused, which must come with a reason. */
static inline io_file *fuzz_parse(const void *bytes, size_t num_bytes, io_format format) {
  io_file *file = NULL;
  io_reason reason = {""};
  if (!io_parse(bytes, num_bytes, format, "array", &file, &reason)) {
    FUZZ_REQUIRE(file == NULL && reason.text[0] != '\0');
    return NULL;
  }
  for (size_t t = 0; t < io_num_tensors(file); ++t) {
    fuzz_read_tensor(io_tensor_at(file, t));
  }
  return file;
}

/* Both hold the same tensors. */
static inline void fuzz_compare(const io_tensor *a, const io_tensor *b) {
  FUZZ_REQUIRE(strcmp(a->name, b->name) == 0 && strcmp(a->dtype_name, b->dtype_name) == 0);
  FUZZ_REQUIRE(a->num_dims == b->num_dims && a->bytes == b->bytes && a->num_elements == b->num_elements);
  FUZZ_REQUIRE(memcmp(a->shape, b->shape, (size_t)a->num_dims * sizeof a->shape[0]) == 0);
  FUZZ_REQUIRE(memcmp(a->data, b->data, a->bytes) == 0);
}

#endif
