/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that `treeattn tree` can write about a tree. */
#ifndef TREEATTN_TOOL_TREE_OUTPUT_H
#define TREEATTN_TOOL_TREE_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "tree_data.h"

typedef struct tree_output {
  bool draw;
  bool ascii;
  bool json;
  int word_bits;                                           /* 32, 64, or 0: no words */
  const char *dot_path, *svg_path, *mask_path, *data_path; /* NULL: not asked for; "-": standard output */
  int64_t prefix_len;
} tree_output;

/* Whether the paths have extensions that can be written; reports a usage error if not. */
bool tree_output_check(const tree_output *output);

/* Writes all that is asked for, or the drawing if nothing is. Reports errors and returns false. */
bool tree_output_write(const tree_output *output, const tree_data *data);

#endif
