/* SPDX-License-Identifier: Apache-2.0 */
/* Token texts made safe to show: in a terminal, in a DOT string, in XML. */
#ifndef TREEATTN_TOOL_TREE_TEXT_H
#define TREEATTN_TOOL_TREE_TEXT_H

#include <stdio.h>

typedef enum tree_text_style {
  TREE_TEXT_UTF8,  /* printable characters as they are */
  TREE_TEXT_ASCII, /* nothing but ASCII */
  TREE_TEXT_DOT,   /* UTF-8 inside a double-quoted DOT string */
  TREE_TEXT_XML    /* UTF-8 inside XML text or an attribute */
} tree_text_style;

/*
 * Writes `text` in double quotes with backslash escapes for quotes, backslashes, control and invisible characters and
 * bytes that are not UTF-8, cut with dots where it would need more than max_columns columns. Returns the columns that
 * it takes. out NULL: only the answer.
 */
int tree_text_put(FILE *out, const char *text, tree_text_style style, int max_columns);

#endif
