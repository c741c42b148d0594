/* SPDX-License-Identifier: Apache-2.0 */
/* A sort of node numbers that needs no memory and has no bad inputs. */
#include "tree.h"

/* Restores the heap (last in order on top) below `top`, the only place where it may be broken. */
static void sift_down(int32_t *items, int64_t num_items, int64_t top,
                      bool (*before)(const void *context, int32_t a, int32_t b), const void *context) {
  const int32_t item = items[top];
  for (;;) {
    int64_t child = 2 * top + 1;
    if (child >= num_items) {
      break;
    }
    if (child + 1 < num_items && before(context, items[child], items[child + 1])) {
      child++;
    }
    if (!before(context, item, items[child])) {
      break;
    }
    items[top] = items[child];
    top = child;
  }
  items[top] = item;
}

void ta_sort_i32(int32_t *items, int64_t num_items, bool (*before)(const void *context, int32_t a, int32_t b),
                 const void *context) {
  for (int64_t top = num_items / 2 - 1; top >= 0; top--) {
    sift_down(items, num_items, top, before, context);
  }
  for (int64_t last = num_items - 1; last > 0; last--) {
    const int32_t item = items[0];
    items[0] = items[last];
    items[last] = item;
    sift_down(items, last, 0, before, context);
  }
}
