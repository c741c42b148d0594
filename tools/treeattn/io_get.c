/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors by name, with type and shape held against what a command needs. */
#include "io_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* "f32, f16 or bf16" */
static void format_dtypes(char *text, size_t capacity, unsigned dtypes) {
  size_t used = 0;
  text[0] = '\0';
  unsigned left = dtypes & ~(unsigned)IO_OTHER;
  for (const io_dtype_row *row = io_dtype_rows; row->dtype != IO_OTHER && used < capacity; ++row) {
    if ((left & (unsigned)row->dtype) != 0) {
      left &= ~(unsigned)row->dtype;
      const char *joint = used == 0 ? "" : left == 0 ? " or " : ", ";
      const int written = snprintf(text + used, capacity - used, "%s%s", joint, row->lower);
      used += written > 0 ? (size_t)written : 0;
    }
  }
}

/* Lower case without knowing the type, for types that are only carried along. */
static const char *found_dtype(const io_tensor *tensor) {
  return tensor->dtype == IO_OTHER ? tensor->dtype_name : io_dtype_name(tensor->dtype);
}

static bool matches(const io_tensor *tensor, unsigned dtypes, int num_dims, const int64_t *shape) {
  if (((unsigned)tensor->dtype & dtypes) == 0 || (num_dims >= 0 && tensor->num_dims != num_dims)) {
    return false;
  }
  for (int d = 0; d < num_dims; ++d) {
    if (shape[d] != IO_FREE && shape[d] != tensor->shape[d]) {
      return false;
    }
  }
  return true;
}

bool io_get_optional(const io_file *file, const char *name, unsigned dtypes, int num_dims, const int64_t *shape,
                     const io_tensor **tensor) {
  *tensor = NULL;
  const io_tensor *found = io_find(file, name);
  if (found == NULL) {
    return true;
  }
  if (!matches(found, dtypes, num_dims, shape)) {
    char wanted_types[160], wanted_shape[IO_MAX_DIMS * 24] = "", found_shape[IO_MAX_DIMS * 24];
    format_dtypes(wanted_types, sizeof wanted_types, dtypes);
    io_format_shape(found_shape, sizeof found_shape, found->num_dims, found->shape);
    if (num_dims >= 0) {
      io_format_shape(wanted_shape, sizeof wanted_shape, num_dims, shape);
    }
    (void)cli_error("%s: tensor '%s': expected %s%s%s, found %s %s", io_path(file), name, wanted_types,
                    num_dims >= 0 ? " " : "", wanted_shape, found_dtype(found), found_shape);
    return false;
  }
  *tensor = found;
  return true;
}

bool io_get(const io_file *file, const char *name, unsigned dtypes, int num_dims, const int64_t *shape,
            const io_tensor **tensor) {
  if (!io_get_optional(file, name, dtypes, num_dims, shape, tensor)) {
    return false;
  }
  if (*tensor == NULL) {
    (void)cli_error("%s: there is no tensor '%s'", io_path(file), name);
  }
  return *tensor != NULL;
}

/* ---- conversions ------------------------------------------------------------------------------------------ */

bool io_convert_i32(const io_tensor *tensor, int32_t *values, size_t *at) {
  const void *data = tensor->data;
  const size_t count = (size_t)tensor->num_elements;
  for (size_t e = 0; e < count; ++e) {
    int64_t value = INT64_MAX;
    switch (tensor->dtype) {
      case IO_I64: value = ((const int64_t *)data)[e]; break;
      case IO_I32: value = ((const int32_t *)data)[e]; break;
      case IO_I16: value = ((const int16_t *)data)[e]; break;
      case IO_I8: value = ((const int8_t *)data)[e]; break;
      case IO_U32: value = ((const uint32_t *)data)[e]; break;
      case IO_U16: value = ((const uint16_t *)data)[e]; break;
      case IO_U8: value = ((const uint8_t *)data)[e]; break;
      case IO_U64:
        value = ((const uint64_t *)data)[e] <= INT32_MAX ? (int64_t)((const uint64_t *)data)[e] : INT64_MAX;
        break;
      default: break;
    }
    if (value < INT32_MIN || value > INT32_MAX) {
      *at = e;
      return false;
    }
    values[e] = (int32_t)value;
  }
  return true;
}

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static float f16_to_f32(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t fraction = half & 0x3ffu;
  if (exponent == 0) {
    /* Zero and subnormals: exact, since f32 reaches far below. */
    const float magnitude = ldexpf((float)fraction, -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 0x1f) {
    return from_bits(sign | 0x7f800000u | fraction << 13);
  }
  return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

bool io_convert_f32(const io_tensor *tensor, float *values) {
  const void *data = tensor->data;
  const size_t count = (size_t)tensor->num_elements;
  for (size_t e = 0; e < count; ++e) {
    switch (tensor->dtype) {
      case IO_F64: values[e] = (float)((const double *)data)[e]; break;
      case IO_F32: values[e] = ((const float *)data)[e]; break;
      case IO_F16: values[e] = f16_to_f32(((const uint16_t *)data)[e]); break;
      case IO_BF16: values[e] = from_bits((uint32_t)((const uint16_t *)data)[e] << 16); break;
      default: return false;
    }
  }
  return true;
}

static bool out_of_memory_for(const io_file *file, const char *name) {
  (void)cli_error("%s: tensor '%s': out of memory", io_path(file), name);
  return false;
}

/* Names the value that does not fit, in the tensor's own type. */
static void report_misfit(const io_file *file, const io_tensor *tensor, size_t at) {
  if (tensor->dtype == IO_U64) {
    (void)cli_error("%s: tensor '%s': element %zu is %" PRIu64 ", which does not fit in an i32", io_path(file),
                    tensor->name, at, ((const uint64_t *)tensor->data)[at]);
    return;
  }
  const int64_t value =
      tensor->dtype == IO_I64 ? ((const int64_t *)tensor->data)[at] : (int64_t)((const uint32_t *)tensor->data)[at];
  (void)cli_error("%s: tensor '%s': element %zu is %" PRId64 ", which does not fit in an i32", io_path(file),
                  tensor->name, at, value);
}

static const unsigned integers = IO_I64 | IO_I32 | IO_I16 | IO_I8 | IO_U64 | IO_U32 | IO_U16 | IO_U8;
static const unsigned floats = IO_F64 | IO_F32 | IO_F16 | IO_BF16;

bool io_get_i32_optional(io_file *file, const char *name, int num_dims, const int64_t *shape, const io_tensor **tensor,
                         const int32_t **values) {
  const io_tensor *found;
  *values = NULL;
  if (tensor != NULL) {
    *tensor = NULL;
  }
  if (!io_get_optional(file, name, integers, num_dims, shape, &found)) {
    return false;
  }
  if (found == NULL) {
    return true;
  }
  if (found->dtype == IO_I32) {
    *values = found->data;
  } else {
    const bool fits = (size_t)found->num_elements <= SIZE_MAX / sizeof(int32_t);
    int32_t *converted = fits ? io_own(file, (size_t)found->num_elements * sizeof *converted) : NULL;
    if (converted == NULL) {
      return out_of_memory_for(file, name);
    }
    size_t at = 0;
    if (!io_convert_i32(found, converted, &at)) {
      report_misfit(file, found, at);
      return false;
    }
    *values = converted;
  }
  if (tensor != NULL) {
    *tensor = found;
  }
  return true;
}

bool io_get_f32_optional(io_file *file, const char *name, int num_dims, const int64_t *shape, const io_tensor **tensor,
                         const float **values) {
  const io_tensor *found;
  *values = NULL;
  if (tensor != NULL) {
    *tensor = NULL;
  }
  if (!io_get_optional(file, name, floats, num_dims, shape, &found)) {
    return false;
  }
  if (found == NULL) {
    return true;
  }
  if (found->dtype == IO_F32) {
    *values = found->data;
  } else {
    const bool fits = (size_t)found->num_elements <= SIZE_MAX / sizeof(float);
    float *converted = fits ? io_own(file, (size_t)found->num_elements * sizeof *converted) : NULL;
    if (converted == NULL) {
      return out_of_memory_for(file, name);
    }
    (void)io_convert_f32(found, converted);
    *values = converted;
  }
  if (tensor != NULL) {
    *tensor = found;
  }
  return true;
}

bool io_get_i32(io_file *file, const char *name, int num_dims, const int64_t *shape, const io_tensor **tensor,
                const int32_t **values) {
  if (io_find(file, name) == NULL) {
    (void)cli_error("%s: there is no tensor '%s'", io_path(file), name);
    return false;
  }
  return io_get_i32_optional(file, name, num_dims, shape, tensor, values);
}

bool io_get_f32(io_file *file, const char *name, int num_dims, const int64_t *shape, const io_tensor **tensor,
                const float **values) {
  if (io_find(file, name) == NULL) {
    (void)cli_error("%s: there is no tensor '%s'", io_path(file), name);
    return false;
  }
  return io_get_f32_optional(file, name, num_dims, shape, tensor, values);
}
