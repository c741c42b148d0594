/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of the generator in the library's own form: a status and one line. */
#ifndef GENERATE_FAIL_H
#define GENERATE_FAIL_H

#include <treeattn/base.h>

#if defined(__GNUC__)
#define GEN_PRINTF(format_index, first) __attribute__((format(printf, format_index, first)))
#else
#define GEN_PRINTF(format_index, first)
#endif

/* Fills `error` (may be NULL) and returns `status`: `return gen_fail(error, ...)`. */
treeattn_status gen_fail(treeattn_error *error, treeattn_status status, const char *format, ...) GEN_PRINTF(3, 4);
treeattn_status gen_fail_memory(treeattn_error *error);

#endif
