/* SPDX-License-Identifier: Apache-2.0 */
/* A tree written as intervals or as a mask, and read back. */
#include <string.h>

#include "tree.h"

/* The dense mask's two values, as attention.h documents them. */
#define ATTENDED 0.0f
#define HIDDEN (-65504.0f)

treeattn_status treeattn_tree_get_intervals(int64_t num_nodes, const int32_t *parents, int32_t *intervals,
                                            int64_t capacity_rows, treeattn_error *error) {
  treeattn_status status = ta_tree_check_parents(num_nodes, parents, "parents", error);
  if (status == TREEATTN_OK) {
    status = ta_tree_check_array("intervals", intervals, capacity_rows, num_nodes, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  /* Subtree sizes first, in the place of the ends. */
  for (int64_t i = 0; i < num_nodes; i++) {
    intervals[2 * i + 1] = 1;
  }
  for (int64_t i = num_nodes - 1; i >= 0; i--) {
    if (parents[i] >= 0) {
      intervals[2 * (int64_t)parents[i] + 1] += intervals[2 * i + 1];
    }
  }
  /* Once a node has its begin, its end holds where its next child begins; after the last child that is the end. */
  int32_t next_root = 0;
  for (int64_t i = 0; i < num_nodes; i++) {
    int32_t *next = parents[i] < 0 ? &next_root : &intervals[2 * (int64_t)parents[i] + 1];
    const int32_t begin = *next;
    *next += intervals[2 * i + 1];
    intervals[2 * i] = begin;
    intervals[2 * i + 1] = begin + 1;
  }
  return TREEATTN_OK;
}

/* ---- masks ---- */

/* Checks a mask of num_nodes rows of *row_stride elements, of which `columns` are needed, and settles a stride of 0. */
static treeattn_status check_mask(int64_t num_nodes, const void *mask, size_t mask_bytes, const char *field_name,
                                  int64_t columns, size_t element_bytes, int64_t *row_stride, treeattn_error *error) {
  if (*row_stride == 0) {
    *row_stride = columns;
  }
  if (*row_stride < columns) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "row_stride is %lld: a row has %lld elements",
                   (long long)*row_stride, (long long)columns);
  }
  size_t needed = 0;
  if (!ta_mul_size((size_t)num_nodes, (size_t)*row_stride, &needed) || !ta_mul_size(needed, element_bytes, &needed)) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "num_nodes %lld times row_stride %lld does not fit",
                   (long long)num_nodes, (long long)*row_stride);
  }
  if (needed > 0 && mask == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is NULL: it needs %zu bytes", field_name, needed);
  }
  if (mask_bytes < needed) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "%s has %zu bytes: it needs %zu", field_name, mask_bytes,
                   needed);
  }
  return TREEATTN_OK;
}

/* num_nodes has been checked. */
static treeattn_status check_columns(int64_t num_nodes, int64_t prefix_len, int64_t *columns, treeattn_error *error) {
  if (prefix_len < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "prefix_len is %lld: it must not be negative",
                   (long long)prefix_len);
  }
  /* Seven more, so that rounding up to bytes cannot wrap. */
  if (prefix_len > INT64_MAX - num_nodes - 7) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "prefix_len is %lld: with num_nodes %lld it does not fit",
                   (long long)prefix_len, (long long)num_nodes);
  }
  *columns = prefix_len + num_nodes;
  return TREEATTN_OK;
}

/* The first `count` bits, low bit first. */
static void set_first_bits(uint8_t *row, int64_t count) {
  memset(row, 0xff, (size_t)(count / 8));
  if (count % 8 != 0) {
    row[count / 8] = (uint8_t)((1u << (count % 8)) - 1u);
  }
}

treeattn_status treeattn_tree_get_mask_bits(int64_t num_nodes, const int32_t *parents, int64_t prefix_len,
                                            uint8_t *bits, int64_t row_stride, size_t bits_bytes,
                                            treeattn_error *error) {
  int64_t columns = 0;
  treeattn_status status = ta_tree_check_parents(num_nodes, parents, "parents", error);
  if (status == TREEATTN_OK) {
    status = check_columns(num_nodes, prefix_len, &columns, error);
  }
  if (status == TREEATTN_OK) {
    status = check_mask(num_nodes, bits, bits_bytes, "bits", (columns + 7) / 8, 1, &row_stride, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  /* A row is its parent's row and the node itself. */
  for (int64_t i = 0; i < num_nodes; i++) {
    uint8_t *row = bits + i * row_stride;
    if (parents[i] < 0) {
      memset(row, 0, (size_t)row_stride);
      set_first_bits(row, prefix_len);
    } else {
      memcpy(row, bits + parents[i] * row_stride, (size_t)row_stride);
    }
    const int64_t column = prefix_len + i;
    row[column / 8] = (uint8_t)(row[column / 8] | (1u << (column % 8)));
  }
  return TREEATTN_OK;
}

treeattn_status treeattn_tree_get_mask_bool(int64_t num_nodes, const int32_t *parents, int64_t prefix_len,
                                            uint8_t *mask, int64_t row_stride, size_t mask_bytes,
                                            treeattn_error *error) {
  int64_t columns = 0;
  treeattn_status status = ta_tree_check_parents(num_nodes, parents, "parents", error);
  if (status == TREEATTN_OK) {
    status = check_columns(num_nodes, prefix_len, &columns, error);
  }
  if (status == TREEATTN_OK) {
    status = check_mask(num_nodes, mask, mask_bytes, "mask", columns, 1, &row_stride, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  for (int64_t i = 0; i < num_nodes; i++) {
    uint8_t *row = mask + i * row_stride;
    memset(row, 0, (size_t)row_stride);
    memset(row, 1, (size_t)prefix_len);
    for (int64_t j = i; j >= 0; j = parents[j]) {
      row[prefix_len + j] = 1;
    }
  }
  return TREEATTN_OK;
}

treeattn_status treeattn_tree_get_mask_f32(int64_t num_nodes, const int32_t *parents, int64_t prefix_len, float *mask,
                                           int64_t row_stride, size_t mask_bytes, treeattn_error *error) {
  int64_t columns = 0;
  treeattn_status status = ta_tree_check_parents(num_nodes, parents, "parents", error);
  if (status == TREEATTN_OK) {
    status = check_columns(num_nodes, prefix_len, &columns, error);
  }
  if (status == TREEATTN_OK) {
    status = check_mask(num_nodes, mask, mask_bytes, "mask", columns, sizeof(float), &row_stride, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  for (int64_t i = 0; i < num_nodes; i++) {
    float *row = mask + i * row_stride;
    for (int64_t column = 0; column < row_stride; column++) {
      row[column] = column < prefix_len ? ATTENDED : HIDDEN;
    }
    for (int64_t j = i; j >= 0; j = parents[j]) {
      row[prefix_len + j] = ATTENDED;
    }
  }
  return TREEATTN_OK;
}

/* ---- back ---- */

size_t treeattn_tree_from_intervals_scratch_bytes(int64_t num_nodes) {
  size_t total = TA_SCRATCH_ALIGN;
  if (ta_tree_check_num_nodes(num_nodes, NULL) != TREEATTN_OK || !ta_scratch_add(&total, num_nodes, sizeof(int32_t)) ||
      !ta_scratch_add(&total, num_nodes, sizeof(int32_t))) {
    return 0;
  }
  return total;
}

static bool begins_before(const void *context, int32_t a, int32_t b) {
  const int32_t *intervals = context;
  const int32_t begin_a = intervals[2 * (int64_t)a];
  const int32_t begin_b = intervals[2 * (int64_t)b];
  return begin_a != begin_b ? begin_a < begin_b : a < b;
}

/* found[i] for all nodes, walking them by begin: the parent is the last interval that is still open. */
static treeattn_status find_interval_parents(int64_t num_nodes, const int32_t *intervals, const int32_t *order,
                                             int32_t *found, treeattn_error *error) {
  int32_t previous = -1;
  for (int64_t place = 0; place < num_nodes; place++) {
    const int32_t i = order[place];
    const int32_t begin = intervals[2 * (int64_t)i];
    const int32_t end = intervals[2 * (int64_t)i + 1];
    if (previous >= 0 && intervals[2 * (int64_t)previous] == begin) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_TREE, "intervals[%ld] begins at %ld, and so does intervals[%ld]",
                     (long)i, (long)begin, (long)previous);
    }
    int32_t parent = previous;
    while (parent >= 0 && intervals[2 * (int64_t)parent + 1] <= begin) {
      parent = found[parent];
    }
    if (parent >= 0 && end > intervals[2 * (int64_t)parent + 1]) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_TREE,
                     "intervals[%ld] is [%ld, %ld): it must nest in intervals[%ld], which is [%ld, %ld)", (long)i,
                     (long)begin, (long)end, (long)parent, (long)intervals[2 * (int64_t)parent],
                     (long)intervals[2 * (int64_t)parent + 1]);
    }
    if (parent > i) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_TREE,
                     "intervals[%ld] lies in intervals[%ld]: an ancestor must have the smaller index", (long)i,
                     (long)parent);
    }
    found[i] = parent;
    previous = i;
  }
  return TREEATTN_OK;
}

treeattn_status treeattn_tree_from_intervals(int64_t num_nodes, const int32_t *intervals, int32_t *parents,
                                             int64_t capacity, void *scratch, size_t scratch_bytes,
                                             treeattn_error *error) {
  treeattn_status status = ta_tree_check_num_nodes(num_nodes, error);
  if (status == TREEATTN_OK) {
    status = ta_tree_check_array("intervals", intervals, num_nodes, num_nodes, error);
  }
  if (status == TREEATTN_OK) {
    status = ta_tree_check_array("parents", parents, capacity, num_nodes, error);
  }
  if (status == TREEATTN_OK) {
    status =
        ta_tree_check_scratch(scratch, scratch_bytes, treeattn_tree_from_intervals_scratch_bytes(num_nodes), error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  unsigned char *next = scratch;
  int32_t *order = ta_scratch_take(&next, num_nodes, sizeof(int32_t));
  int32_t *found = ta_scratch_take(&next, num_nodes, sizeof(int32_t));
  for (int64_t i = 0; i < num_nodes; i++) {
    if (intervals[2 * i] >= intervals[2 * i + 1]) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_TREE, "intervals[%lld] is [%ld, %ld): it must not be empty",
                     (long long)i, (long)intervals[2 * i], (long)intervals[2 * i + 1]);
    }
    order[i] = (int32_t)i;
  }
  ta_sort_i32(order, num_nodes, begins_before, intervals);
  status = find_interval_parents(num_nodes, intervals, order, found, error);
  if (status == TREEATTN_OK && num_nodes > 0) {
    memcpy(parents, found, (size_t)num_nodes * sizeof(int32_t));
  }
  return status;
}

static bool bit_is_set(const uint8_t *row, int64_t column) {
  return (((unsigned)row[column / 8] >> (column % 8)) & 1u) != 0;
}

/* The last set bit of [begin, end), or -1. */
static int64_t last_set_bit(const uint8_t *row, int64_t begin, int64_t end) {
  int64_t column = end - 1;
  while (column >= begin) {
    if (column % 8 == 7 && row[column / 8] == 0) {
      column -= 8;
    } else if (bit_is_set(row, column)) {
      return column;
    } else {
      column--;
    }
  }
  return -1;
}

/* The first column in [0, columns) in which a row differs from another one, or -1. other NULL: from a row without
 * nodes. */
static int64_t first_difference(const uint8_t *row, const uint8_t *other, int64_t prefix_len, int64_t columns) {
  int64_t column = 0;
  while (column < columns) {
    if (other != NULL && column % 8 == 0 && columns - column >= 8 && row[column / 8] == other[column / 8]) {
      column += 8;
      continue;
    }
    const bool expected = other != NULL ? bit_is_set(other, column) : column < prefix_len;
    if (bit_is_set(row, column) != expected) {
      return column;
    }
    column++;
  }
  return -1;
}

/* The first column that keeps row i from being its parent's row and itself, or -1. */
static int64_t first_fault(const uint8_t *bits, int64_t row_stride, int64_t prefix_len, int64_t columns, int64_t i,
                           int64_t parent) {
  const uint8_t *row = bits + i * row_stride;
  const int64_t own = prefix_len + i;
  if (!bit_is_set(row, own)) {
    return own;
  }
  const int64_t later = last_set_bit(row, own + 1, columns);
  if (later >= 0) {
    return later;
  }
  return first_difference(row, parent < 0 ? NULL : bits + parent * row_stride, prefix_len, own);
}

treeattn_status treeattn_tree_from_mask_bits(int64_t num_nodes, int64_t prefix_len, const uint8_t *bits,
                                             int64_t row_stride, size_t bits_bytes, int32_t *parents, int64_t capacity,
                                             treeattn_error *error) {
  int64_t columns = 0;
  treeattn_status status = ta_tree_check_num_nodes(num_nodes, error);
  if (status == TREEATTN_OK) {
    status = check_columns(num_nodes, prefix_len, &columns, error);
  }
  if (status == TREEATTN_OK) {
    status = check_mask(num_nodes, bits, bits_bytes, "bits", (columns + 7) / 8, 1, &row_stride, error);
  }
  if (status == TREEATTN_OK) {
    status = ta_tree_check_array("parents", parents, capacity, num_nodes, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  for (int64_t i = 0; i < num_nodes; i++) {
    const int64_t column = last_set_bit(bits + i * row_stride, prefix_len, prefix_len + i);
    const int64_t parent = column < 0 ? -1 : column - prefix_len;
    const int64_t fault = first_fault(bits, row_stride, prefix_len, columns, i, parent);
    if (fault < 0) {
      continue;
    }
    if (parent < 0) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_TREE,
                     "bits: column %lld of node %lld's row is wrong: a root sees the prefix and itself",
                     (long long)fault, (long long)i);
    }
    return ta_fail(error, TREEATTN_ERROR_INVALID_TREE,
                   "bits: column %lld of node %lld's row is wrong: it sees node %lld last, so it sees what that sees",
                   (long long)fault, (long long)i, (long long)parent);
  }
  for (int64_t i = 0; i < num_nodes; i++) {
    const int64_t column = last_set_bit(bits + i * row_stride, prefix_len, prefix_len + i);
    parents[i] = column < 0 ? -1 : (int32_t)(column - prefix_len);
  }
  return TREEATTN_OK;
}
