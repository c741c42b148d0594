/* SPDX-License-Identifier: Apache-2.0 */
/* TREEATTN_TEST_FILTER picks the cases of a test program by name, with * and ?. Part of every program; nothing calls it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void __attribute__((constructor)) set_filter(void) {
  const char *pattern = getenv("TREEATTN_TEST_FILTER");
  if (pattern != NULL) {
    cmocka_set_test_filter(pattern);
  }
}
