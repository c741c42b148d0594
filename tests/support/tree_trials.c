/* SPDX-License-Identifier: Apache-2.0 */
/* The trees that every test about trees walks: sizes around word edges, all shapes, then random ones. */
#include "tree_trials.h"

#include <string.h>

static const int edge_sizes[] = {0,  1,   2,   3,   7,   8,   9,   15,  16,  17,  31,   32,   33,   63,   64,
                                 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 2048, 3001};

enum { NUM_EDGES = (int)(sizeof edge_sizes / sizeof edge_sizes[0]), NUM_RANDOM = 120, OVERRUN_BYTES = 64 };

int tree_trial_count(void) {
  return trial_count(NUM_EDGES * NUM_TREE_SHAPES + NUM_RANDOM, NUM_EDGES + NUM_RANDOM / 4);
}

void tree_trial_row(const tree_trial *trial, int i, unsigned char *sees) {
  memset(sees, 0, (size_t)trial->num_nodes);
  for (int j = i; j >= 0; j = trial->parents[j]) {
    sees[j] = 1;
  }
}

tree_trial tree_trial_new(rng *r, uint64_t salt, int index) {
  tree_trial trial = {0, NULL};
  index = trial_begin(r, salt, index);
  tree_shape shape = (tree_shape)(index / NUM_EDGES);
  if (index < NUM_EDGES * NUM_TREE_SHAPES && !test_quick()) {
    trial.num_nodes = edge_sizes[index % NUM_EDGES];
  } else if (test_quick() && index < NUM_EDGES) {
    trial.num_nodes = edge_sizes[index];
    shape = (tree_shape)(index % NUM_TREE_SHAPES);
  } else {
    trial.num_nodes = rng_chance(r, 3) ? rng_range(r, 0, 1025) : rng_range(r, 0, 80);
    shape = (tree_shape)rng_below(r, NUM_TREE_SHAPES);
  }
  trial.parents = malloc(((size_t)trial.num_nodes + 1) * sizeof *trial.parents);
  assert_non_null(trial.parents);
  tree_make(shape, trial.num_nodes, r, trial.parents);
  return trial;
}

void tree_trial_free(tree_trial *trial) {
  free(trial->parents);
}

void *filled_array(size_t num, size_t size, int byte) {
  unsigned char *array = malloc(num * size + OVERRUN_BYTES);
  assert_non_null(array);
  memset(array, byte, num * size + OVERRUN_BYTES);
  return array;
}

bool still_filled(const void *array, size_t num, size_t size, int byte) {
  const unsigned char *bytes = (const unsigned char *)array + num * size;
  for (size_t k = 0; k < OVERRUN_BYTES; k++) {
    if (bytes[k] != byte) {
      return false;
    }
  }
  return true;
}
