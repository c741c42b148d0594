/* SPDX-License-Identifier: Apache-2.0 */
/* The trees that every test about trees walks: sizes around word edges, all shapes, then random ones. */
#ifndef TESTS_TREE_TRIALS_H
#define TESTS_TREE_TRIALS_H

#include "check.h"
#include "rng.h"
#include "trees.h"

typedef struct tree_trial {
  int num_nodes;
  int32_t *parents; /* [num_nodes] */
} tree_trial;

/* How many trials there are, and the index-th. Free what it holds with tree_trial_free. */
int tree_trial_count(void);
tree_trial tree_trial_new(rng *r, uint64_t salt, int index);
void tree_trial_free(tree_trial *trial);

/* sees[num_nodes]: 1 for i and its ancestors, found by walking up. */
void tree_trial_row(const tree_trial *trial, int i, unsigned char *sees);

/* num elements that hold `byte` in each byte, and as many more behind them as catch an overrun. */
void *filled_array(size_t num, size_t size, int byte);
/* Whether what follows the num elements, or everything if num is 0, still holds the byte. */
bool still_filled(const void *array, size_t num, size_t size, int byte);

#endif
