/* SPDX-License-Identifier: Apache-2.0 */
/* Element types and shapes of tensor files: names, sizes, and products that cannot wrap. */
#include "io_internal.h"

#include <inttypes.h>
#include <stdarg.h>

const io_dtype_row io_dtype_rows[] = {
    {IO_F64, "F64", "f64", "<f8", 64},         {IO_F32, "F32", "f32", "<f4", 32},
    {IO_F16, "F16", "f16", "<f2", 16},         {IO_BF16, "BF16", "bf16", NULL, 16},
    {IO_I64, "I64", "i64", "<i8", 64},         {IO_I32, "I32", "i32", "<i4", 32},
    {IO_I16, "I16", "i16", "<i2", 16},         {IO_I8, "I8", "i8", "|i1", 8},
    {IO_U64, "U64", "u64", "<u8", 64},         {IO_U32, "U32", "u32", "<u4", 32},
    {IO_U16, "U16", "u16", "<u2", 16},         {IO_U8, "U8", "u8", "|u1", 8},
    {IO_BOOL, "BOOL", "bool", "|b1", 8},       {IO_OTHER, "F8_E4M3", "f8_e4m3", NULL, 8},
    {IO_OTHER, "F8_E5M2", "f8_e5m2", NULL, 8}, {IO_OTHER, "F8_E8M0", "f8_e8m0", NULL, 8},
    {IO_OTHER, "F6_E2M3", "f6_e2m3", NULL, 6}, {IO_OTHER, "F6_E3M2", "f6_e3m2", NULL, 6},
    {IO_OTHER, "F4", "f4", NULL, 4},           {IO_OTHER, "C64", "c64", NULL, 64},
    {IO_OTHER, NULL, NULL, NULL, 0},
};

const char *io_dtype_name(io_dtype dtype) {
  for (const io_dtype_row *row = io_dtype_rows; row->dtype != IO_OTHER; ++row) {
    if (row->dtype == dtype) {
      return row->lower;
    }
  }
  return "other";
}

size_t io_dtype_bytes(io_dtype dtype) {
  for (const io_dtype_row *row = io_dtype_rows; row->dtype != IO_OTHER; ++row) {
    if (row->dtype == dtype) {
      return row->bits / 8;
    }
  }
  return 0;
}

treeattn_dtype io_dtype_to_treeattn(io_dtype dtype) {
  switch (dtype) {
    case IO_F32: return TREEATTN_F32;
    case IO_F16: return TREEATTN_F16;
    case IO_BF16: return TREEATTN_BF16;
    default: return (treeattn_dtype)0;
  }
}

bool io_shape_size(int num_dims, const int64_t *shape, unsigned bits, int64_t *num_elements, size_t *num_bytes) {
  /* An empty tensor is empty whatever its other dimensions are, so zeros come before the products. */
  bool empty = false;
  for (int d = 0; d < num_dims; ++d) {
    if (shape[d] < 0) {
      return false;
    }
    empty = empty || shape[d] == 0;
  }
  uint64_t count = empty ? 0 : 1;
  for (int d = 0; d < num_dims && !empty; ++d) {
    const uint64_t length = (uint64_t)shape[d];
    if (count > (uint64_t)INT64_MAX / length) {
      return false;
    }
    count *= length;
  }
  if (count > UINT64_MAX / bits || count * bits % 8 != 0 || count * bits / 8 > SIZE_MAX / 2) {
    return false;
  }
  *num_elements = (int64_t)count;
  *num_bytes = (size_t)(count * bits / 8);
  return true;
}

void io_format_shape(char *text, size_t capacity, int num_dims, const int64_t *shape) {
  size_t used = 0;
  (void)snprintf(text, capacity, "%s", num_dims == 0 ? "[]" : "");
  for (int d = 0; d < num_dims && used < capacity; ++d) {
    const int written = shape[d] == IO_FREE ? snprintf(text + used, capacity - used, "[*]")
                                            : snprintf(text + used, capacity - used, "[%" PRId64 "]", shape[d]);
    used += written > 0 ? (size_t)written : 0;
  }
}

bool io_refuse(io_reason *reason, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(reason->text, sizeof reason->text, format, arguments);
  va_end(arguments);
  return false;
}
