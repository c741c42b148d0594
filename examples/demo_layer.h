/* SPDX-License-Identifier: Apache-2.0 */
/* What one layer of the capture shows. */
#ifndef EXAMPLES_DEMO_LAYER_H
#define EXAMPLES_DEMO_LAYER_H

#include "problem.h"

enum { DEMO_REPEATS = 15 };

/* Counts and times; counts add up over layers. */
typedef struct demo_figures {
  int64_t num_paths, num_queries;   /* root-to-leaf paths, and the single queries that decoding them takes */
  int64_t rows_compared, rows_same; /* rows of sequential decoding, and those with the bits of the one call */
  int64_t nan_slots;                /* slots that were overwritten, over all nodes */
  int64_t nan_rows, nan_rows_same;
  double tree_seconds, path_seconds, seed_seconds; /* sums over layers of medians */
  double tree_error, seed_error;                   /* worst relative error of a row against float64 */
} demo_figures;

/* Adds one layer. False after reporting an error. */
bool demo_layer_measure(const problem *layer, const treeattn_executor *executor, int64_t num_workers,
                        demo_figures *figures);

#endif
