/* SPDX-License-Identifier: Apache-2.0 */
/* What the source files about trees share, and the check of a parents array that others may use. */
#ifndef TA_TREE_H
#define TA_TREE_H

#include <treeattn/tree.h>

#include "common.h"

/* Checks a parents array in one pass. Messages name `field_name` and the node. parents may be NULL when num_nodes is
 * 0. */
TA_HIDDEN treeattn_status ta_tree_check_parents(int64_t num_nodes, const int32_t *parents, const char *field_name,
                                                treeattn_error *error);
/* Only the number of nodes. */
TA_HIDDEN treeattn_status ta_tree_check_num_nodes(int64_t num_nodes, treeattn_error *error);

/* An array of the caller: not NULL unless nothing is needed, and with room for `needed` elements. */
TA_HIDDEN treeattn_status ta_tree_check_array(const char *field_name, const void *array, int64_t capacity,
                                              int64_t needed, treeattn_error *error);
TA_HIDDEN treeattn_status ta_tree_check_scratch(const void *scratch, size_t scratch_bytes, size_t needed,
                                                treeattn_error *error);

/* Scratch is cut into arrays that start at multiples of 8 bytes, whatever the alignment of the whole. */
#define TA_SCRATCH_ALIGN ((size_t)8)

/* Adds an array to a total of bytes; false on overflow. A total starts at TA_SCRATCH_ALIGN, the most that aligning
 * costs. */
static inline bool ta_scratch_add(size_t *total, int64_t num, size_t element_bytes) {
  size_t bytes = 0;
  return ta_mul_size((size_t)num, element_bytes, &bytes) && ta_add_size(bytes, TA_SCRATCH_ALIGN - 1, &bytes) &&
         ta_add_size(*total, bytes / TA_SCRATCH_ALIGN * TA_SCRATCH_ALIGN, total);
}

/* Takes the next array of a scratch whose size has been checked. */
static inline void *ta_scratch_take(unsigned char **next, int64_t num, size_t element_bytes) {
  const size_t misalignment = (size_t)((uintptr_t)*next % TA_SCRATCH_ALIGN);
  unsigned char *array = *next + (misalignment == 0 ? 0 : TA_SCRATCH_ALIGN - misalignment);
  *next = array + (size_t)num * element_bytes;
  return array;
}

/* Sorts items by a strict order `before`, in place and in at most O(n log n) comparisons, whatever the input. */
TA_HIDDEN void ta_sort_i32(int32_t *items, int64_t num_items, bool (*before)(const void *context, int32_t a, int32_t b),
                           const void *context);

#endif
