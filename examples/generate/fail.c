/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of the generator in the library's own form: a status and one line. */
#include "fail.h"

#include <stdarg.h>
#include <stdio.h>

treeattn_status gen_fail(treeattn_error *error, treeattn_status status, const char *format, ...) {
  if (error != NULL) {
    error->status = status;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
  }
  return status;
}

treeattn_status gen_fail_memory(treeattn_error *error) {
  return gen_fail(error, TREEATTN_ERROR_OUT_OF_MEMORY, "out of memory");
}
