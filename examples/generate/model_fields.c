/* SPDX-License-Identifier: Apache-2.0 */
/* Typed fields of a GGUF file: ggml's own getters end the program where a type differs. */
#include <inttypes.h>
#include <math.h>

#include "fail.h"
#include "model.h"

static bool find(const struct gguf_context *file, const char *key, int64_t *field, treeattn_error *error) {
  *field = gguf_find_key(file, key);
  if (*field < 0) {
    (void)gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "field '%s' is missing", key);
    return false;
  }
  return true;
}

static bool wrong_type(const struct gguf_context *file, const char *key, int64_t field, const char *expected,
                       treeattn_error *error) {
  (void)gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "field '%s' is of type %s, not %s", key,
                 gguf_type_name(gguf_get_kv_type(file, field)), expected);
  return false;
}

bool gen_field_string(const struct gguf_context *file, const char *key, const char **value, treeattn_error *error) {
  int64_t field = 0;
  if (!find(file, key, &field, error)) {
    return false;
  }
  if (gguf_get_kv_type(file, field) != GGUF_TYPE_STRING) {
    return wrong_type(file, key, field, "a string", error);
  }
  *value = gguf_get_val_str(file, field);
  return true;
}

bool gen_field_count(const struct gguf_context *file, const char *key, int64_t minimum, int64_t maximum, int64_t *value,
                     treeattn_error *error) {
  int64_t field = 0;
  if (!find(file, key, &field, error)) {
    return false;
  }
  if (gguf_get_kv_type(file, field) != GGUF_TYPE_UINT32) {
    return wrong_type(file, key, field, "u32", error);
  }
  const int64_t count = (int64_t)gguf_get_val_u32(file, field);
  if (count < minimum || count > maximum) {
    (void)gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "field '%s' is %" PRId64 ", outside %" PRId64 " to %" PRId64,
                   key, count, minimum, maximum);
    return false;
  }
  *value = count;
  return true;
}

bool gen_field_float(const struct gguf_context *file, const char *key, float *value, treeattn_error *error) {
  int64_t field = 0;
  if (!find(file, key, &field, error)) {
    return false;
  }
  if (gguf_get_kv_type(file, field) != GGUF_TYPE_FLOAT32) {
    return wrong_type(file, key, field, "f32", error);
  }
  const float number = gguf_get_val_f32(file, field);
  if (!(number > 0.0f) || !isfinite(number)) {
    (void)gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "field '%s' is %g: a finite number above 0 is needed", key,
                   (double)number);
    return false;
  }
  *value = number;
  return true;
}

bool gen_field_array(const struct gguf_context *file, const char *key, enum gguf_type type, int64_t *field,
                     int64_t *length, treeattn_error *error) {
  if (!find(file, key, field, error)) {
    return false;
  }
  if (gguf_get_kv_type(file, *field) != GGUF_TYPE_ARRAY) {
    return wrong_type(file, key, *field, "an array", error);
  }
  if (gguf_get_arr_type(file, *field) != type) {
    (void)gen_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "field '%s' is an array of %s, not of %s", key,
                   gguf_type_name(gguf_get_arr_type(file, *field)), gguf_type_name(type));
    return false;
  }
  *length = (int64_t)gguf_get_arr_n(file, *field);
  return true;
}

bool gen_field_flag(const struct gguf_context *file, const char *key, bool *value, treeattn_error *error) {
  const int64_t field = gguf_find_key(file, key);
  if (field >= 0 && gguf_get_kv_type(file, field) != GGUF_TYPE_BOOL) {
    return wrong_type(file, key, field, "bool", error);
  }
  *value = field >= 0 ? gguf_get_val_bool(file, field) : *value;
  return true;
}
