/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures of four colours as PNG files, without a library. */
#ifndef TREEATTN_TOOL_TREE_PNG_H
#define TREEATTN_TOOL_TREE_PNG_H

#include <stdint.h>
#include <stdio.h>

typedef struct tree_png {
  uint32_t width;  /* 1 or more */
  uint32_t height; /* 1 or more; width * height below 2^32 */
  uint8_t palette[4][3];
  /* Fills pixels[width] of row y with numbers from 0 to 3. */
  void (*row)(const void *context, uint32_t y, uint8_t *pixels);
  const void *context;
} tree_png;

/* `pixels` has room for a row. Errors are left in the stream. */
void tree_png_write(FILE *out, const tree_png *png, uint8_t *pixels);

#endif
