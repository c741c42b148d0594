/* SPDX-License-Identifier: Apache-2.0 */
/* Draft trees of many shapes, and the encodings that say the same about them. */
#ifndef TESTS_TREES_H
#define TESTS_TREES_H

#include <stdbool.h>
#include <stdint.h>

#include "rng.h"

typedef enum tree_shape {
  TREE_CHAIN,
  TREE_STAR, /* one root, all others its children */
  TREE_COMB, /* a chain with a leaf at each node */
  TREE_BINARY,
  TREE_TERNARY,
  TREE_FOREST, /* several roots, random below */
  TREE_RANDOM, /* each parent any earlier node */
  TREE_DEEP,   /* each parent one of the last few nodes */
  TREE_ROOTS,  /* only roots */
  NUM_TREE_SHAPES
} tree_shape;

void tree_make(tree_shape shape, int num_nodes, rng *r, int32_t *parents);
void tree_depths(const int32_t *parents, int num_nodes, int32_t *depths);
/* {begin, end} of each node in a depth-first walk, children in order of index. */
void tree_intervals(const int32_t *parents, int num_nodes, int32_t *intervals);
/* sees[i][s] over slots 0 .. prefix_len + num_nodes - 1; window 0: none. */
void tree_visibility(const int32_t *parents, int num_nodes, int prefix_len, int64_t window, uint8_t *sees);

#endif
