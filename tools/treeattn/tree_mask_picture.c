/* SPDX-License-Identifier: Apache-2.0 */
/* The mask of a tree as a picture: which node sees which. */
#include <string.h>

#include "cli.h"
#include "tree_export.h"
#include "tree_png.h"

enum { HIDDEN, PREFIX, ANCESTOR, SELF, NUM_COLOURS };

static const uint8_t colours[NUM_COLOURS][3] = {
    {0xee, 0xf1, 0xf5}, {0xb9, 0xc9, 0xe8}, {0x5b, 0x8d, 0xef}, {0x1f, 0x4e, 0x9c}};

enum { BAND_CELLS = 3 }; /* of the prefix, whatever its length */

/* ---- PNG ---- */

typedef struct mask_picture {
  const tree_data *data;
  uint32_t cell;
  uint32_t band; /* pixels */
} mask_picture;

/* Cells that are large enough keep their last pixel row and column free, which shows as a grid. */
static void fill_row(const void *context, uint32_t y, uint8_t *pixels) {
  const mask_picture *picture = context;
  const uint32_t cell = picture->cell;
  const uint32_t filled = cell >= 5 ? cell - 1 : cell;
  const uint32_t width = picture->band + (uint32_t)picture->data->num_nodes * cell;
  memset(pixels, HIDDEN, width);
  if (y % cell >= filled) {
    return;
  }
  const int32_t i = (int32_t)(y / cell);
  if (picture->band > 0) {
    memset(pixels, PREFIX, picture->band - cell);
  }
  for (int32_t j = i; j >= 0; j = picture->data->parents[j]) {
    memset(pixels + picture->band + (uint32_t)j * cell, j == i ? SELF : ANCESTOR, filled);
  }
}

bool tree_export_mask_png(FILE *out, const tree_data *data, int64_t prefix_len) {
  mask_picture picture = {data, 1024 / (uint32_t)(data->num_nodes + 1), 0};
  picture.cell = picture.cell < 1 ? 1 : (picture.cell > 16 ? 16 : picture.cell);
  picture.band = prefix_len > 0 ? (BAND_CELLS + 1) * picture.cell : 0;
  tree_png png = {picture.band + (uint32_t)data->num_nodes * picture.cell,
                  (uint32_t)data->num_nodes * picture.cell,
                  {{0}},
                  fill_row,
                  &picture};
  memcpy(png.palette, colours, sizeof colours);
  uint8_t *pixels = cli_malloc(png.width);
  if (pixels == NULL) {
    (void)cli_out_of_memory();
    return false;
  }
  tree_png_write(out, &png, pixels);
  cli_free(pixels);
  return true;
}

/* ---- SVG ---- */

enum { CELL = 14, MARGIN = 28, MAX_LABELLED = 96 };

static void put_labels(FILE *out, const tree_data *data, int left) {
  if (data->num_nodes > MAX_LABELLED) {
    return;
  }
  for (int64_t i = 0; i < data->num_nodes; i++) {
    const int middle = MARGIN + (int)i * CELL + CELL / 2;
    (void)fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%lld</text>\n", MARGIN - 4, middle + 3,
                  (long long)i);
    (void)fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%lld</text>\n", left + (int)i * CELL + CELL / 2,
                  MARGIN - 5, (long long)i);
  }
}

static void put_cells(FILE *out, const tree_data *data, int left) {
  for (int64_t i = 0; i < data->num_nodes; i++) {
    const int y = MARGIN + (int)i * CELL;
    (void)fprintf(out, "<path class=\"s\" d=\"M%d %dh%dv%dh-%dz\"/>", left + (int)i * CELL, y, CELL - 1, CELL - 1,
                  CELL - 1);
    if (data->parents[i] >= 0) {
      (void)fputs("<path class=\"v\" d=\"", out);
      for (int32_t j = data->parents[i]; j >= 0; j = data->parents[j]) {
        (void)fprintf(out, "M%d %dh%dv%dh-%dz", left + (int)j * CELL, y, CELL - 1, CELL - 1, CELL - 1);
      }
      (void)fputs("\"/>", out);
    }
    (void)fputc('\n', out);
  }
}

bool tree_export_mask_svg(FILE *out, const tree_data *data, int64_t prefix_len) {
  const int band = prefix_len > 0 ? BAND_CELLS * CELL : 0;
  const int left = MARGIN + (band > 0 ? band + CELL / 2 : 0);
  const int side = (int)data->num_nodes * CELL;
  const int width = left + side + MARGIN;
  const int height = side + 2 * MARGIN;
  (void)fprintf(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n"
                "<style>text{font:9px ui-monospace,Menlo,Consolas,monospace;fill:#1b2733}"
                ".h{fill:#%02x%02x%02x}.p{fill:#%02x%02x%02x}.v{fill:#%02x%02x%02x}.s{fill:#%02x%02x%02x}</style>\n"
                "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
                "<rect class=\"h\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
                width, height, width, height, colours[HIDDEN][0], colours[HIDDEN][1], colours[HIDDEN][2],
                colours[PREFIX][0], colours[PREFIX][1], colours[PREFIX][2], colours[ANCESTOR][0], colours[ANCESTOR][1],
                colours[ANCESTOR][2], colours[SELF][0], colours[SELF][1], colours[SELF][2], left, MARGIN, side, side);
  if (band > 0) {
    (void)fprintf(out, "<rect class=\"p\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", MARGIN, MARGIN, band,
                  side);
    (void)fprintf(out, "<text x=\"%d\" y=\"%d\">P=%lld</text>\n", MARGIN, height - MARGIN + 12, (long long)prefix_len);
  }
  put_labels(out, data, left);
  put_cells(out, data, left);
  (void)fputs("</svg>\n", out);
  return true;
}
