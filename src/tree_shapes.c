/* SPDX-License-Identifier: Apache-2.0 */
/* Trees of fixed shape: chains, regular branchings and lists of choices. */
#include <stdio.h>
#include <string.h>

#include "tree.h"

treeattn_status treeattn_tree_make_chain(int64_t num_nodes, int32_t *parents, int64_t capacity, treeattn_error *error) {
  treeattn_status status = ta_tree_check_num_nodes(num_nodes, error);
  if (status == TREEATTN_OK) {
    status = ta_tree_check_array("parents", parents, capacity, num_nodes, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  for (int64_t i = 0; i < num_nodes; i++) {
    parents[i] = (int32_t)(i - 1);
  }
  return TREEATTN_OK;
}

/* Children of a node of this level. */
typedef struct branching_rule {
  const int32_t *branching; /* NULL: arity everywhere */
  int64_t num_levels;
  int64_t arity;
} branching_rule;

static int64_t children_at(const branching_rule *rule, int64_t level) {
  return rule->branching != NULL ? rule->branching[level] : rule->arity;
}

static treeattn_status count_branching(const branching_rule *rule, int64_t *num_nodes, treeattn_error *error) {
  int64_t width = 1;
  int64_t total = 1;
  for (int64_t level = 0; level < rule->num_levels && width > 0; level++) {
    const int64_t children = children_at(rule, level);
    if (children < 0) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "branching[%lld] is %lld: it must not be negative",
                     (long long)level, (long long)children);
    }
    /* The width is below the limit, or the loop would have ended, so the product cannot wrap. */
    if (children > TREEATTN_TREE_MAX_NODES || width * children > TREEATTN_TREE_MAX_NODES - total) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_TREE, "level %lld of the branching brings more than %lld nodes",
                     (long long)(level + 1), (long long)TREEATTN_TREE_MAX_NODES);
    }
    width *= children;
    total += width;
  }
  *num_nodes = total;
  return TREEATTN_OK;
}

static treeattn_status make_branching(const branching_rule *rule, int32_t *parents, int64_t capacity,
                                      int64_t *num_nodes, treeattn_error *error) {
  if (num_nodes == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_nodes is NULL");
  }
  int64_t total = 0;
  treeattn_status status = count_branching(rule, &total, error);
  if (status == TREEATTN_OK && parents != NULL) {
    status = ta_tree_check_array("parents", parents, capacity, total, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  *num_nodes = total;
  if (parents == NULL) {
    return TREEATTN_OK;
  }
  parents[0] = -1;
  int64_t next = 1;
  int64_t level_begin = 0;
  for (int64_t level = 0; next < total; level++) {
    const int64_t level_end = next;
    for (int64_t i = level_begin; i < level_end; i++) {
      for (int64_t rank = children_at(rule, level); rank > 0; rank--) {
        parents[next++] = (int32_t)i;
      }
    }
    level_begin = level_end;
  }
  return TREEATTN_OK;
}

treeattn_status treeattn_tree_make_branching(const int32_t *branching, int64_t num_levels, int32_t *parents,
                                             int64_t capacity, int64_t *num_nodes, treeattn_error *error) {
  if (num_levels < 0 || (num_levels > 0 && branching == NULL)) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_levels is %lld and branching is %s",
                   (long long)num_levels, branching == NULL ? "NULL" : "given");
  }
  const branching_rule rule = {branching, num_levels, 0};
  return make_branching(&rule, parents, capacity, num_nodes, error);
}

treeattn_status treeattn_tree_make_kary(int64_t arity, int64_t depth, int32_t *parents, int64_t capacity,
                                        int64_t *num_nodes, treeattn_error *error) {
  if (arity < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "arity is %lld: it must not be negative", (long long)arity);
  }
  if (depth < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "depth is %lld: it must not be negative", (long long)depth);
  }
  const branching_rule rule = {NULL, depth, arity};
  return make_branching(&rule, parents, capacity, num_nodes, error);
}

/* ---- choices ---- */

typedef struct choice_list {
  const treeattn_tree_choices *choices;
  const int64_t *begins; /* [num_choices]: where each path begins in ranks */
} choice_list;

/* NULL for the empty path, so that no pointer is made from an empty list. */
static const int32_t *path_of(const choice_list *list, int32_t entry) {
  return list->choices->lengths[entry] == 0 ? NULL : list->choices->ranks + list->begins[entry];
}

static int compare_ranks(const int32_t *a, const int32_t *b, int64_t length) {
  for (int64_t place = 0; place < length; place++) {
    if (a[place] != b[place]) {
      return a[place] < b[place] ? -1 : 1;
    }
  }
  return 0;
}

static bool choice_before(const void *context, int32_t a, int32_t b) {
  const choice_list *list = context;
  const int32_t length_a = list->choices->lengths[a];
  const int32_t length_b = list->choices->lengths[b];
  if (length_a != length_b) {
    return length_a < length_b;
  }
  const int order = compare_ranks(path_of(list, a), path_of(list, b), length_a);
  return order != 0 ? order < 0 : a < b;
}

/* The place in `order` of the first entry that is not before the path ranks[0 .. length). */
static int64_t find_path(const choice_list *list, const int32_t *order, const int32_t *ranks, int32_t length) {
  int64_t low = 0;
  int64_t high = list->choices->num_choices;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    const int32_t entry = order[middle];
    const int32_t entry_length = list->choices->lengths[entry];
    const bool before =
        entry_length != length ? entry_length < length : compare_ranks(path_of(list, entry), ranks, length) < 0;
    if (before) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

static bool is_path(const choice_list *list, int32_t entry, const int32_t *ranks, int32_t length) {
  return list->choices->lengths[entry] == length && compare_ranks(path_of(list, entry), ranks, length) == 0;
}

/* "[0, 2, 1]", cut with dots where it is long. */
static void print_path(char *text, size_t text_bytes, const int32_t *ranks, int32_t length) {
  size_t used = (size_t)snprintf(text, text_bytes, "[");
  for (int32_t place = 0; place < length; place++) {
    if (used + 24 > text_bytes) {
      used += (size_t)snprintf(text + used, text_bytes - used, ", ...");
      break;
    }
    used += (size_t)snprintf(text + used, text_bytes - used, "%s%ld", place == 0 ? "" : ", ", (long)ranks[place]);
  }
  (void)snprintf(text + used, text_bytes - used, "]");
}

size_t treeattn_tree_choices_scratch_bytes(int64_t num_choices) {
  size_t total = TA_SCRATCH_ALIGN;
  if (num_choices < 0 || num_choices > INT32_MAX || !ta_scratch_add(&total, num_choices, sizeof(int64_t)) ||
      !ta_scratch_add(&total, num_choices, sizeof(int32_t)) || !ta_scratch_add(&total, num_choices, sizeof(int32_t))) {
    return 0;
  }
  return total;
}

static treeattn_status check_choices(const treeattn_tree_choices *choices, treeattn_error *error) {
  if (choices == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "choices is NULL");
  }
  if (choices->num_choices < 0 || choices->num_choices > INT32_MAX) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_choices is %lld: it must be from 0 to %ld",
                   (long long)choices->num_choices, (long)INT32_MAX);
  }
  if (choices->num_choices > 0 && choices->lengths == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "lengths is NULL: num_choices is %lld",
                   (long long)choices->num_choices);
  }
  if (choices->num_ranks < 0 || (choices->num_ranks > 0 && choices->ranks == NULL)) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_ranks is %lld and ranks is %s",
                   (long long)choices->num_ranks, choices->ranks == NULL ? "NULL" : "given");
  }
  int64_t begin = 0;
  for (int64_t entry = 0; entry < choices->num_choices; entry++) {
    const int32_t length = choices->lengths[entry];
    if (length < 0 || length > choices->num_ranks - begin) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "lengths[%lld] is %ld: %lld of num_ranks %lld are left",
                     (long long)entry, (long)length, (long long)(choices->num_ranks - begin),
                     (long long)choices->num_ranks);
    }
    for (int32_t place = 0; place < length; place++) {
      if (choices->ranks[begin + place] < 0) {
        return ta_fail(error, TREEATTN_ERROR_INVALID_TREE, "choices[%lld][%ld] is %ld: a rank is 0 or more",
                       (long long)entry, (long)place, (long)choices->ranks[begin + place]);
      }
    }
    begin += length;
  }
  if (begin != choices->num_ranks) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_ranks is %lld: the lengths add up to %lld",
                   (long long)choices->num_ranks, (long long)begin);
  }
  return TREEATTN_OK;
}

/* Every ancestor is there when every parent is. */
static treeattn_status check_ancestors(const choice_list *list, const int32_t *order, treeattn_error *error) {
  const treeattn_tree_choices *choices = list->choices;
  for (int64_t entry = 0; entry < choices->num_choices; entry++) {
    const int32_t length = choices->lengths[entry];
    if (length < 2) {
      continue;
    }
    const int32_t *ranks = path_of(list, (int32_t)entry);
    const int64_t place = find_path(list, order, ranks, length - 1);
    if (place == choices->num_choices || !is_path(list, order[place], ranks, length - 1)) {
      char path[80];
      char ancestor[80];
      print_path(path, sizeof path, ranks, length);
      print_path(ancestor, sizeof ancestor, ranks, length - 1);
      return ta_fail(error, TREEATTN_ERROR_INVALID_TREE, "choices[%lld] is %s: its ancestor %s is not in the list",
                     (long long)entry, path, ancestor);
    }
  }
  return TREEATTN_OK;
}

/* nodes[place] of every place in `order`, equal paths sharing a node; the number of nodes with the root. */
static int64_t number_nodes(const choice_list *list, const int32_t *order, int32_t *nodes) {
  int64_t num_nodes = 1;
  for (int64_t place = 0; place < list->choices->num_choices; place++) {
    const int32_t entry = order[place];
    const int32_t length = list->choices->lengths[entry];
    const bool repeats = place > 0 && is_path(list, order[place - 1], path_of(list, entry), length);
    if (length > 0 && !repeats) {
      num_nodes++;
    }
    nodes[place] = (int32_t)(num_nodes - 1);
  }
  return num_nodes;
}

treeattn_status treeattn_tree_make_choices(const treeattn_tree_choices *choices, int32_t *parents, int32_t *node_ranks,
                                           int64_t capacity, int64_t *num_nodes, void *scratch, size_t scratch_bytes,
                                           treeattn_error *error) {
  treeattn_status status = check_choices(choices, error);
  if (status == TREEATTN_OK && num_nodes == NULL) {
    status = ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_nodes is NULL");
  }
  if (status == TREEATTN_OK) {
    status =
        ta_tree_check_scratch(scratch, scratch_bytes, treeattn_tree_choices_scratch_bytes(choices->num_choices), error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  unsigned char *next = scratch;
  int64_t *begins = ta_scratch_take(&next, choices->num_choices, sizeof(int64_t));
  int32_t *order = ta_scratch_take(&next, choices->num_choices, sizeof(int32_t));
  int32_t *nodes = ta_scratch_take(&next, choices->num_choices, sizeof(int32_t));
  int64_t begin = 0;
  for (int64_t entry = 0; entry < choices->num_choices; entry++) {
    begins[entry] = begin;
    order[entry] = (int32_t)entry;
    begin += choices->lengths[entry];
  }
  const choice_list list = {choices, begins};
  ta_sort_i32(order, choices->num_choices, choice_before, &list);
  status = check_ancestors(&list, order, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  const int64_t total = number_nodes(&list, order, nodes);
  status = ta_tree_check_num_nodes(total, error);
  if (status == TREEATTN_OK && parents != NULL) {
    status = ta_tree_check_array("parents", parents, capacity, total, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  *num_nodes = total;
  if (parents == NULL) {
    return TREEATTN_OK;
  }
  parents[0] = -1;
  if (node_ranks != NULL) {
    node_ranks[0] = -1;
  }
  for (int64_t place = 0; place < choices->num_choices; place++) {
    const int32_t length = choices->lengths[order[place]];
    if (length == 0) {
      continue;
    }
    const int32_t *ranks = path_of(&list, order[place]);
    parents[nodes[place]] = length == 1 ? 0 : nodes[find_path(&list, order, ranks, length - 1)];
    if (node_ranks != NULL) {
      node_ranks[nodes[place]] = ranks[length - 1];
    }
  }
  return TREEATTN_OK;
}
