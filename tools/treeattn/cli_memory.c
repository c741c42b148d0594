/* SPDX-License-Identifier: Apache-2.0 */
/* One gate for the tool's allocations, so that a test can make any of them fail. */
#include "cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static uint64_t num_failed;

uint64_t cli_num_failed_allocations(void) {
  return num_failed;
}

#if defined(TREEATTN_TESTING)
static uint64_t allocations_until_failure;
static int64_t live_allocations;

void cli_fail_allocation(uint64_t n) {
  allocations_until_failure = n;
}

int64_t cli_live_allocations(void) {
  return live_allocations;
}

static bool allocation_fails(void) {
  return allocations_until_failure > 0 && --allocations_until_failure == 0;
}

static void count_allocation(const void *fresh) {
  live_allocations += fresh != NULL;
}

static void count_release(const void *pointer) {
  live_allocations -= pointer != NULL;
}
#else
static bool allocation_fails(void) {
  return false;
}

static void count_allocation(const void *fresh) {
  (void)fresh;
}

static void count_release(const void *pointer) {
  (void)pointer;
}
#endif

static void *failed(void) {
  ++num_failed;
  return NULL;
}

void *cli_malloc(size_t bytes) {
  void *fresh = allocation_fails() ? NULL : malloc(bytes > 0 ? bytes : 1);
  count_allocation(fresh);
  return fresh != NULL ? fresh : failed();
}

void *cli_malloc_array(size_t num, size_t size) {
  if (size != 0 && num > SIZE_MAX / size) {
    return failed();
  }
  return cli_malloc(num * size);
}

void *cli_realloc_array(void *pointer, size_t num, size_t size) {
  if (pointer == NULL) {
    return cli_malloc_array(num, size);
  }
  if ((size != 0 && num > SIZE_MAX / size) || allocation_fails()) {
    return failed();
  }
  void *grown = realloc(pointer, num * size > 0 ? num * size : 1);
  return grown != NULL ? grown : failed();
}

void cli_free(void *pointer) {
  count_release(pointer);
  free(pointer);
}

char *cli_strdup(const char *text) {
  const size_t bytes = strlen(text) + 1;
  char *copy = cli_malloc(bytes);
  if (copy != NULL) {
    memcpy(copy, text, bytes);
  }
  return copy;
}

char *cli_format(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  if (length < 0) {
    return NULL;
  }
  char *text = cli_malloc((size_t)length + 1);
  if (text != NULL) {
    va_start(arguments, format);
    (void)vsnprintf(text, (size_t)length + 1, format, arguments);
    va_end(arguments);
  }
  return text;
}

void cli_hook_json(void) {
  json_set_alloc_funcs(cli_malloc, cli_free);
}
