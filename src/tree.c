/* SPDX-License-Identifier: Apache-2.0 */
/* A parents array, checked, and what follows from it node by node. */
#include "tree.h"

treeattn_status ta_tree_check_num_nodes(int64_t num_nodes, treeattn_error *error) {
  if (num_nodes < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_nodes is %lld: it must not be negative",
                   (long long)num_nodes);
  }
  if (num_nodes > TREEATTN_TREE_MAX_NODES) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_TREE, "num_nodes is %lld: a tree has at most %lld nodes",
                   (long long)num_nodes, (long long)TREEATTN_TREE_MAX_NODES);
  }
  return TREEATTN_OK;
}

treeattn_status ta_tree_check_parents(int64_t num_nodes, const int32_t *parents, const char *field_name,
                                      treeattn_error *error) {
  const treeattn_status status = ta_tree_check_num_nodes(num_nodes, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (num_nodes > 0 && parents == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is NULL: num_nodes is %lld", field_name,
                   (long long)num_nodes);
  }
  for (int64_t i = 0; i < num_nodes; i++) {
    const int32_t parent = parents[i];
    if (parent >= -1 && parent < i) {
      continue;
    }
    const char *reason = "a parent must come before its child";
    if (parent < -1) {
      reason = "a parent is -1 for a root or the index of an earlier node";
    } else if (parent >= num_nodes) {
      reason = "there is no such node";
    } else if (parent == i) {
      reason = "a node cannot be its own parent";
    }
    return ta_fail(error, TREEATTN_ERROR_INVALID_TREE, "%s[%lld] is %ld: %s", field_name, (long long)i, (long)parent,
                   reason);
  }
  return TREEATTN_OK;
}

treeattn_status ta_tree_check_array(const char *field_name, const void *array, int64_t capacity, int64_t needed,
                                    treeattn_error *error) {
  if (needed == 0) {
    return TREEATTN_OK;
  }
  if (array == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is NULL: it needs %lld elements", field_name,
                   (long long)needed);
  }
  if (capacity < needed) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "%s has room for %lld elements: it needs %lld", field_name,
                   (long long)capacity, (long long)needed);
  }
  return TREEATTN_OK;
}

treeattn_status ta_tree_check_scratch(const void *scratch, size_t scratch_bytes, size_t needed, treeattn_error *error) {
  if (scratch == NULL || scratch_bytes < needed) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "scratch is %s%zu bytes: it needs %zu",
                   scratch == NULL ? "NULL, " : "", scratch_bytes, needed);
  }
  return TREEATTN_OK;
}

static treeattn_status check_tree_and_array(int64_t num_nodes, const int32_t *parents, const char *field_name,
                                            const void *array, int64_t capacity, treeattn_error *error) {
  const treeattn_status status = ta_tree_check_parents(num_nodes, parents, "parents", error);
  if (status != TREEATTN_OK) {
    return status;
  }
  return ta_tree_check_array(field_name, array, capacity, num_nodes, error);
}

treeattn_status treeattn_tree_check(int64_t num_nodes, const int32_t *parents, treeattn_error *error) {
  return ta_tree_check_parents(num_nodes, parents, "parents", error);
}

/* A parent's value is known before its children's, since it comes first. */
static void fill_depths(int64_t num_nodes, const int32_t *parents, int32_t root_value, int32_t *depths) {
  for (int64_t i = 0; i < num_nodes; i++) {
    depths[i] = parents[i] < 0 ? root_value : depths[parents[i]] + 1;
  }
}

treeattn_status treeattn_tree_get_depths(int64_t num_nodes, const int32_t *parents, int32_t *depths, int64_t capacity,
                                         treeattn_error *error) {
  const treeattn_status status = check_tree_and_array(num_nodes, parents, "depths", depths, capacity, error);
  if (status == TREEATTN_OK) {
    fill_depths(num_nodes, parents, 0, depths);
  }
  return status;
}

treeattn_status treeattn_tree_get_positions(int64_t num_nodes, const int32_t *parents, int64_t prefix_len,
                                            int32_t *positions, int64_t capacity, treeattn_error *error) {
  const treeattn_status status = check_tree_and_array(num_nodes, parents, "positions", positions, capacity, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (prefix_len < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "prefix_len is %lld: it must not be negative",
                   (long long)prefix_len);
  }
  if (prefix_len > INT32_MAX - num_nodes) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "prefix_len is %lld: with num_nodes %lld positions do not fit int32",
                   (long long)prefix_len, (long long)num_nodes);
  }
  fill_depths(num_nodes, parents, (int32_t)prefix_len, positions);
  return TREEATTN_OK;
}

size_t treeattn_tree_counts_scratch_bytes(int64_t num_nodes) {
  size_t total = TA_SCRATCH_ALIGN;
  if (ta_tree_check_num_nodes(num_nodes, NULL) != TREEATTN_OK || !ta_scratch_add(&total, num_nodes, sizeof(int32_t))) {
    return 0;
  }
  return total;
}

treeattn_status treeattn_tree_get_counts(int64_t num_nodes, const int32_t *parents, treeattn_tree_counts *counts,
                                         void *scratch, size_t scratch_bytes, treeattn_error *error) {
  treeattn_status status = ta_tree_check_parents(num_nodes, parents, "parents", error);
  if (status == TREEATTN_OK && counts == NULL) {
    status = ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "counts is NULL");
  }
  if (status == TREEATTN_OK) {
    status = ta_tree_check_scratch(scratch, scratch_bytes, treeattn_tree_counts_scratch_bytes(num_nodes), error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  unsigned char *next = scratch;
  int32_t *values = ta_scratch_take(&next, num_nodes, sizeof(int32_t));
  treeattn_tree_counts result = {0, 0, 0, 0};
  for (int64_t i = 0; i < num_nodes; i++) {
    values[i] = 0;
    if (parents[i] < 0) {
      result.num_roots++;
    } else {
      values[parents[i]]++;
    }
  }
  for (int64_t i = 0; i < num_nodes; i++) {
    result.num_leaves += values[i] == 0;
    result.max_children = ta_max_i64(result.max_children, values[i]);
  }
  fill_depths(num_nodes, parents, 1, values);
  for (int64_t i = 0; i < num_nodes; i++) {
    result.num_levels = ta_max_i64(result.num_levels, values[i]);
  }
  *counts = result;
  return TREEATTN_OK;
}

treeattn_status treeattn_tree_get_children(int64_t num_nodes, const int32_t *parents, int32_t *begins,
                                           int64_t begins_capacity, int32_t *children, int64_t children_capacity,
                                           treeattn_error *error) {
  treeattn_status status = check_tree_and_array(num_nodes, parents, "children", children, children_capacity, error);
  if (status == TREEATTN_OK) {
    status = ta_tree_check_array("begins", begins, begins_capacity, num_nodes + 1, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  /* A counting sort by parent, the roots being bucket 0. Filling a bucket moves its begin to its end, which is
   * where the next bucket begins: exactly the number that begins[] is to hold. */
  for (int64_t bucket = 0; bucket <= num_nodes; bucket++) {
    begins[bucket] = 0;
  }
  for (int64_t i = 0; i < num_nodes; i++) {
    begins[parents[i] + 1]++;
  }
  int32_t begin = 0;
  for (int64_t bucket = 0; bucket <= num_nodes; bucket++) {
    const int32_t count = begins[bucket];
    begins[bucket] = begin;
    begin += count;
  }
  for (int64_t i = 0; i < num_nodes; i++) {
    children[begins[parents[i] + 1]++] = (int32_t)i;
  }
  return TREEATTN_OK;
}

treeattn_status treeattn_tree_get_links(int64_t num_nodes, const int32_t *parents, int32_t *first_child,
                                        int32_t *next_sibling, int64_t capacity, treeattn_error *error) {
  treeattn_status status = check_tree_and_array(num_nodes, parents, "first_child", first_child, capacity, error);
  if (status == TREEATTN_OK) {
    status = ta_tree_check_array("next_sibling", next_sibling, capacity, num_nodes, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  int32_t first_root = -1;
  for (int64_t i = 0; i < num_nodes; i++) {
    first_child[i] = -1;
  }
  for (int64_t i = num_nodes - 1; i >= 0; i--) {
    int32_t *head = parents[i] < 0 ? &first_root : &first_child[parents[i]];
    next_sibling[i] = *head;
    *head = (int32_t)i;
  }
  return TREEATTN_OK;
}

treeattn_status treeattn_tree_get_leaves(int64_t num_nodes, const int32_t *parents, int32_t *leaves, int64_t capacity,
                                         int64_t *num_leaves, treeattn_error *error) {
  const treeattn_status status = check_tree_and_array(num_nodes, parents, "leaves", leaves, capacity, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (num_leaves == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_leaves is NULL");
  }
  for (int64_t i = 0; i < num_nodes; i++) {
    leaves[i] = 1;
    if (parents[i] >= 0) {
      leaves[parents[i]] = 0;
    }
  }
  /* The list never overtakes the flags that it is made from. */
  int64_t count = 0;
  for (int64_t i = 0; i < num_nodes; i++) {
    if (leaves[i] != 0) {
      leaves[count++] = (int32_t)i;
    }
  }
  *num_leaves = count;
  return TREEATTN_OK;
}

static int64_t path_length(const int32_t *parents, int64_t node) {
  int64_t length = 1;
  for (int64_t i = parents[node]; i >= 0; i = parents[i]) {
    length++;
  }
  return length;
}

static void fill_path(const int32_t *parents, int64_t node, int64_t length, int32_t *path) {
  for (int64_t place = length - 1, i = node; place >= 0; place--, i = parents[i]) {
    path[place] = (int32_t)i;
  }
}

treeattn_status treeattn_tree_get_path(int64_t num_nodes, const int32_t *parents, int64_t node, int32_t *path,
                                       int64_t capacity, int64_t *path_len, treeattn_error *error) {
  treeattn_status status = ta_tree_check_parents(num_nodes, parents, "parents", error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (node < 0 || node >= num_nodes) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "node is %lld: num_nodes is %lld", (long long)node,
                   (long long)num_nodes);
  }
  if (path_len == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "path_len is NULL");
  }
  const int64_t length = path_length(parents, node);
  status = ta_tree_check_array("path", path, capacity, length, error);
  if (status == TREEATTN_OK) {
    fill_path(parents, node, length, path);
    *path_len = length;
  }
  return status;
}

treeattn_status treeattn_tree_get_paths(int64_t num_nodes, const int32_t *parents, const int32_t *nodes,
                                        int64_t num_rows, int32_t *paths, int64_t row_stride, int64_t capacity,
                                        treeattn_error *error) {
  treeattn_status status = ta_tree_check_parents(num_nodes, parents, "parents", error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (num_rows < 0 || (num_rows > 0 && nodes == NULL)) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_rows is %lld and nodes is %s", (long long)num_rows,
                   nodes == NULL ? "NULL" : "given");
  }
  for (int64_t row = 0; row < num_rows; row++) {
    if (nodes[row] < 0 || nodes[row] >= num_nodes) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "nodes[%lld] is %ld: num_nodes is %lld", (long long)row,
                     (long)nodes[row], (long long)num_nodes);
    }
    const int64_t length = path_length(parents, nodes[row]);
    if (length > row_stride) {
      return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL,
                     "row_stride is %lld: the path to nodes[%lld] has %lld nodes", (long long)row_stride,
                     (long long)row, (long long)length);
    }
  }
  int64_t needed = 0;
  if (num_rows > 0 && !ta_mul_i64(num_rows, row_stride, &needed)) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "num_rows %lld times row_stride %lld does not fit",
                   (long long)num_rows, (long long)row_stride);
  }
  status = ta_tree_check_array("paths", paths, capacity, needed, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  for (int64_t row = 0; row < num_rows; row++) {
    int32_t *path = paths + row * row_stride;
    const int64_t length = path_length(parents, nodes[row]);
    fill_path(parents, nodes[row], length, path);
    for (int64_t place = length; place < row_stride; place++) {
      path[place] = -1;
    }
  }
  return TREEATTN_OK;
}
