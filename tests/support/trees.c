/* SPDX-License-Identifier: Apache-2.0 */
/* Draft trees of many shapes, and the encodings that say the same about them. */
#include "trees.h"

#include <string.h>

static int32_t make_parent(tree_shape shape, int i, rng *r) {
  switch (shape) {
    case TREE_CHAIN: return i - 1;
    case TREE_STAR: return 0;
    case TREE_COMB: return (i % 2 == 1) ? i - 1 : i - 2;
    case TREE_BINARY: return (i - 1) / 2;
    case TREE_TERNARY: return (i - 1) / 3;
    case TREE_FOREST: return rng_chance(r, 5) ? -1 : rng_below(r, i);
    case TREE_RANDOM: return rng_below(r, i);
    case TREE_DEEP: return i - 1 - rng_below(r, i < 4 ? i : 4);
    case TREE_ROOTS:
    case NUM_TREE_SHAPES: break;
  }
  return -1;
}

void tree_make(tree_shape shape, int num_nodes, rng *r, int32_t *parents) {
  for (int i = 0; i < num_nodes; i++) {
    parents[i] = i == 0 ? -1 : make_parent(shape, i, r);
  }
}

void tree_depths(const int32_t *parents, int num_nodes, int32_t *depths) {
  for (int i = 0; i < num_nodes; i++) {
    depths[i] = parents[i] < 0 ? 0 : depths[parents[i]] + 1;
  }
}

void tree_intervals(const int32_t *parents, int num_nodes, int32_t *intervals) {
  /* Sizes of subtrees from the leaves up, then begins from the roots down. */
  int32_t *size = calloc((size_t)num_nodes + 1, sizeof *size);
  int32_t *next = calloc((size_t)num_nodes + 1, sizeof *next); /* where the next child begins; [0] is for roots */
  for (int i = num_nodes - 1; i >= 0; i--) {
    size[i] += 1;
    if (parents[i] >= 0) {
      size[parents[i]] += size[i];
    }
  }
  for (int i = 0; i < num_nodes; i++) {
    int32_t *cursor = &next[parents[i] + 1];
    intervals[2 * i] = *cursor;
    intervals[2 * i + 1] = *cursor + size[i];
    *cursor += size[i];
    next[i + 1] = intervals[2 * i] + 1;
  }
  free(size);
  free(next);
}

void tree_visibility(const int32_t *parents, int num_nodes, int prefix_len, int64_t window, uint8_t *sees) {
  int columns = prefix_len + num_nodes;
  int32_t *depths = calloc((size_t)num_nodes + 1, sizeof *depths);
  tree_depths(parents, num_nodes, depths);
  memset(sees, 0, (size_t)num_nodes * (size_t)columns);
  for (int i = 0; i < num_nodes; i++) {
    uint8_t *row = sees + (size_t)i * (size_t)columns;
    int64_t position = prefix_len + depths[i];
    for (int p = 0; p < prefix_len; p++) {
      row[p] = window == 0 || position - p < window;
    }
    for (int j = i; j >= 0; j = parents[j]) {
      row[prefix_len + j] = window == 0 || depths[i] - depths[j] < window;
    }
  }
  free(depths);
}
