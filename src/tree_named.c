/* SPDX-License-Identifier: Apache-2.0 */
/* The choice lists that Medusa and EAGLE publish with their models, by name. */
#include <string.h>

#include "tree.h"

/*
 * No list has a gap in its ranks, so the number of children of each node, level by level and in lexicographic order,
 * says all of it. Zeros at the end are left out.
 */
typedef struct named_shape {
  const char *name;
  int32_t num_nodes; /* the choices and the root */
  uint8_t children[56];
} named_shape;

static const named_shape shapes[] = {
    {"medusa-mc_sim_7b_63", 64, {10, 10, 7, 3, 2, 1, 1, 1, 1, 1, 1, 10, 3, 2, 1, 1, 1, 1, 1, 0,
                                 0,  2,  0, 0, 0, 0, 0, 0, 1, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 2}},
    {"medusa-vicuna_7b_stage1", 64, {10, 10, 7, 4, 3, 2, 2, 1, 1, 1, 1, 9, 3, 2, 1, 1, 1, 0, 0, 0, 0, 2,
                                     0,  0,  0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}},
    {"medusa-vicuna_7b_stage1_ablation", 64, {10, 10, 4, 2, 2, 1, 1, 1, 0, 0, 0, 10, 4, 2, 1, 1, 1, 0, 0, 0, 0, 3,
                                              1,  0,  0, 1, 0, 1, 0, 0, 0, 0, 4, 1,  1, 0, 0, 0, 0, 0, 0, 0, 1}},
    {"medusa-vicuna_7b_stage2", 64, {10, 10, 5, 2, 2, 1, 1, 1, 1, 0, 0, 9, 4, 2, 1, 1, 1, 0, 0, 0, 0, 3,
                                     1,  0,  0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4, 1, 1, 0, 0, 0, 0, 0, 0, 1}},
    {"medusa-vicuna_13b_stage1", 64, {10, 10, 7, 4, 2, 2, 1, 1, 1, 1, 0, 10, 4, 2, 1, 1, 1, 0, 0, 0, 0,
                                      2,  1,  0, 0, 0, 0, 0, 1, 0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 1}},
    {"medusa-vicuna_13b_stage2", 64, {10, 10, 4, 2, 1, 1, 1, 0, 0, 0, 0, 10, 4, 2, 1, 1, 1, 0, 0, 0, 0, 3, 1, 0, 0,
                                      1,  0,  1, 0, 0, 4, 2, 1, 0, 0, 0, 0,  0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1}},
    {"medusa-vicuna_33b_stage1", 64, {10, 10, 8, 5, 3, 2, 2, 1, 1, 1, 1, 9, 3, 2, 1,
                                      1,  0,  0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1}},
    {"medusa-vicuna_33b_stage2", 64, {10, 10, 5, 3, 2, 1, 1, 1, 1, 0, 0, 10, 4, 2, 1, 1, 1, 0, 0, 0, 0, 3, 1,
                                      0,  0,  0, 1, 0, 0, 0, 0, 0, 0, 0, 0,  3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1}},
    {"medusa-zephyr_stage2", 64, {10, 10, 6, 4, 2, 2, 1, 1, 1, 0, 0, 10, 4, 2, 1, 1, 1, 0, 0, 0,
                                  0,  2,  1, 0, 0, 0, 0, 1, 0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 2, 1}},
    {"eagle-mc_sim_7b_63", 26, {4, 3, 2, 2, 1, 3, 2, 2, 1, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2}},
};

#define NUM_SHAPES ((int64_t)(sizeof shapes / sizeof shapes[0]))

const char *treeattn_tree_named_at(int64_t index) {
  return index >= 0 && index < NUM_SHAPES ? shapes[index].name : NULL;
}

treeattn_status treeattn_tree_make_named(const char *name, int32_t *parents, int64_t capacity, int64_t *num_nodes,
                                         treeattn_error *error) {
  if (name == NULL || num_nodes == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is NULL", name == NULL ? "name" : "num_nodes");
  }
  const named_shape *shape = NULL;
  for (int64_t index = 0; index < NUM_SHAPES; index++) {
    if (strcmp(shapes[index].name, name) == 0) {
      shape = &shapes[index];
    }
  }
  if (shape == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "name is \"%.80s\": there is no shape of that name", name);
  }
  if (parents != NULL) {
    const treeattn_status status = ta_tree_check_array("parents", parents, capacity, shape->num_nodes, error);
    if (status != TREEATTN_OK) {
      return status;
    }
    int32_t next = 0;
    parents[next++] = -1;
    for (int32_t i = 0; next < shape->num_nodes; i++) {
      for (int rank = 0; rank < shape->children[i]; rank++) {
        parents[next++] = i;
      }
    }
  }
  *num_nodes = shape->num_nodes;
  return TREEATTN_OK;
}
