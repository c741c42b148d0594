/* SPDX-License-Identifier: Apache-2.0 */
/* A tree and its mask as files that other programs show. */
#ifndef TREEATTN_TOOL_TREE_EXPORT_H
#define TREEATTN_TOOL_TREE_EXPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tree_data.h"

/* More nodes than these make no picture that anybody could look at; the functions below expect the caller to have
 * checked. */
enum { TREE_MAX_SVG_NODES = 20000, TREE_MAX_MASK_PNG_NODES = 8192, TREE_MAX_MASK_SVG_NODES = 2048 };

/* Errors of writing are left in the stream; false: out of memory, reported. */
bool tree_export_dot(FILE *out, const tree_data *data);
bool tree_export_svg(FILE *out, const tree_data *data);
/* Rows and columns are nodes; a band on the left stands for the prefix where there is one. */
bool tree_export_mask_svg(FILE *out, const tree_data *data, int64_t prefix_len);
bool tree_export_mask_png(FILE *out, const tree_data *data, int64_t prefix_len);

#endif
