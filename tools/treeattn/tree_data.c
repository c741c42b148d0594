/* SPDX-License-Identifier: Apache-2.0 */
/* Trees made from a description in numbers. */
#include "tree_data.h"

#include <string.h>

#include <treeattn/tree.h>

#include "cli.h"

void tree_data_free(tree_data *data) {
  cli_free(data->parents);
  cli_free(data->ranks);
  cli_free(data->tokens);
  cli_free(data->texts);
  cli_free(data->marks);
  json_decref(data->document);
  memset(data, 0, sizeof *data);
}

/* Room for the parents of a tree whose size the library has told. */
static bool allocate(tree_data *data, int64_t num_nodes) {
  data->parents = cli_malloc_array((size_t)num_nodes, sizeof *data->parents);
  if (data->parents == NULL) {
    (void)cli_out_of_memory();
    return false;
  }
  data->num_nodes = num_nodes;
  return true;
}

static bool report(treeattn_status status, const treeattn_error *error) {
  if (status != TREEATTN_OK) {
    (void)cli_library_error(NULL, error);
  }
  return status == TREEATTN_OK;
}

bool tree_data_make_chain(int64_t num_nodes, tree_data *data) {
  treeattn_error error;
  return allocate(data, num_nodes) &&
         report(treeattn_tree_make_chain(num_nodes, data->parents, num_nodes, &error), &error);
}

bool tree_data_make_kary(int64_t arity, int64_t depth, tree_data *data) {
  treeattn_error error;
  int64_t num_nodes = 0;
  return report(treeattn_tree_make_kary(arity, depth, NULL, 0, &num_nodes, &error), &error) &&
         allocate(data, num_nodes) &&
         report(treeattn_tree_make_kary(arity, depth, data->parents, num_nodes, &num_nodes, &error), &error);
}

bool tree_data_make_branching(const int64_t *branching, size_t num_levels, tree_data *data) {
  treeattn_error error;
  int64_t num_nodes = 0;
  int32_t *narrow = cli_malloc_array(num_levels, sizeof *narrow);
  if (narrow == NULL) {
    (void)cli_out_of_memory();
    return false;
  }
  for (size_t level = 0; level < num_levels; level++) {
    narrow[level] = (int32_t)branching[level];
  }
  const int64_t levels = (int64_t)num_levels;
  const bool good =
      report(treeattn_tree_make_branching(narrow, levels, NULL, 0, &num_nodes, &error), &error) &&
      allocate(data, num_nodes) &&
      report(treeattn_tree_make_branching(narrow, levels, data->parents, num_nodes, &num_nodes, &error), &error);
  cli_free(narrow);
  return good;
}

bool tree_data_make_named(const char *name, tree_data *data) {
  treeattn_error error;
  int64_t num_nodes = 0;
  return report(treeattn_tree_make_named(name, NULL, 0, &num_nodes, &error), &error) && allocate(data, num_nodes) &&
         report(treeattn_tree_make_named(name, data->parents, num_nodes, &num_nodes, &error), &error);
}

static uint64_t next_random(uint64_t *state) {
  uint64_t x = (*state += UINT64_C(0x9e3779b97f4a7c15));
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

bool tree_data_make_random(int64_t num_nodes, uint64_t seed, tree_data *data) {
  if (!allocate(data, num_nodes)) {
    return false;
  }
  for (int64_t i = 0; i < num_nodes; i++) {
    /* The modulo prefers no node by more than 2^20 in 2^64. */
    data->parents[i] = i == 0 ? -1 : (int32_t)(next_random(&seed) % (uint64_t)i);
  }
  return true;
}

bool tree_data_mark(tree_data *data, const char *subject, const int64_t *path, size_t path_len) {
  unsigned char *marks = cli_malloc((size_t)data->num_nodes);
  if (marks == NULL) {
    (void)cli_out_of_memory();
    return false;
  }
  memset(marks, 0, (size_t)data->num_nodes);
  for (size_t place = 0; place < path_len; place++) {
    const int64_t parent = place == 0 ? -1 : path[place - 1];
    if (path[place] < 0 || path[place] >= data->num_nodes || data->parents[path[place]] != parent) {
      cli_free(marks);
      (void)cli_error("%s: %lld is not a %s", subject, (long long)path[place],
                      place == 0 ? "root of the tree" : "child of the node before it");
      return false;
    }
    marks[path[place]] = 1;
  }
  cli_free(data->marks);
  data->marks = marks;
  return true;
}
