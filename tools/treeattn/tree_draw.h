/* SPDX-License-Identifier: Apache-2.0 */
/* A tree drawn with lines of text, for terminals. */
#ifndef TREEATTN_TOOL_TREE_DRAW_H
#define TREEATTN_TOOL_TREE_DRAW_H

#include <stdint.h>
#include <stdio.h>

/*
 * Draws the forest `parents` (a legal one: parents[i] < i). A run of only children stays on its line, a branching
 * opens lines below. Each node shows its number and its text, quoted and escaped; marked nodes carry a check mark.
 */
void tree_draw(FILE *out, int64_t num_nodes, const int32_t *parents, const char *const *texts /* may be NULL */,
               const unsigned char *marks /* may be NULL; nonzero: accepted */, int ascii);

#endif
