/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses, types and versions in words. */
#include <stdarg.h>
#include <stdio.h>

#include "common.h"

const char *treeattn_status_name(treeattn_status status) {
  switch (status) {
    case TREEATTN_OK: return "ok";
    case TREEATTN_ERROR_INVALID_ARGUMENT: return "invalid argument";
    case TREEATTN_ERROR_INVALID_TREE: return "invalid tree";
    case TREEATTN_ERROR_INVALID_MASK: return "invalid mask";
    case TREEATTN_ERROR_INVALID_VALUE: return "invalid value";
    case TREEATTN_ERROR_UNSUPPORTED: return "unsupported";
    case TREEATTN_ERROR_BUFFER_TOO_SMALL: return "buffer too small";
    case TREEATTN_ERROR_OVERFLOW: return "overflow";
    case TREEATTN_ERROR_OUT_OF_MEMORY: return "out of memory";
    case TREEATTN_ERROR_BACKEND: return "back end failure";
  }
  return "unknown status";
}

const char *treeattn_dtype_name(treeattn_dtype dtype) {
  switch (dtype) {
    case TREEATTN_F32: return "f32";
    case TREEATTN_F16: return "f16";
    case TREEATTN_BF16: return "bf16";
  }
  return "unknown";
}

size_t treeattn_dtype_bytes(treeattn_dtype dtype) {
  switch (dtype) {
    case TREEATTN_F32: return 4;
    case TREEATTN_F16:
    case TREEATTN_BF16: return 2;
  }
  return 0;
}

const char *treeattn_version(void) {
  return TREEATTN_VERSION_STRING;
}

treeattn_status ta_fail(treeattn_error *error, treeattn_status status, const char *format, ...) {
  if (error != NULL) {
    va_list arguments;
    va_start(arguments, format);
    error->status = status;
    (void)vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
  }
  return status;
}
