/* SPDX-License-Identifier: Apache-2.0 */
/* A tree as DOT for Graphviz, and as an SVG that grows from left to right like text. */
#include "tree_export.h"

#include <string.h>

#include <treeattn/tree.h>

#include "cli.h"
#include "tree_text.h"

enum { TEXT_COLUMNS = 28, ROW_HEIGHT = 30, BOX_HEIGHT = 22, GAP = 26, MARGIN = 16, TEXT_PADDING = 8 };

/* Width of a column of a 12 px monospaced font, in tenths of a pixel. */
#define COLUMN_TENTHS 73

static bool is_marked(const tree_data *data, int64_t i) {
  return data->marks != NULL && data->marks[i] != 0;
}

static int put_label(FILE *out, const tree_data *data, int64_t i, tree_text_style style) {
  char number[24];
  int columns = snprintf(number, sizeof number, "%lld", (long long)i);
  if (out != NULL) {
    (void)fputs(number, out);
  }
  if (data->texts != NULL) {
    if (out != NULL) {
      (void)fputc(' ', out);
    }
    columns += 1 + tree_text_put(out, data->texts[i], style, TEXT_COLUMNS);
  }
  return columns;
}

bool tree_export_dot(FILE *out, const tree_data *data) {
  (void)fputs("digraph tree {\n"
              "  rankdir=LR;\n"
              "  node [shape=box, style=\"rounded,filled\", fillcolor=\"#f4f6f8\", color=\"#8a96a3\","
              " fontname=\"monospace\"];\n"
              "  edge [arrowhead=none, color=\"#8a96a3\"];\n",
              out);
  for (int64_t i = 0; i < data->num_nodes; i++) {
    (void)fprintf(out, "  n%lld [label=\"", (long long)i);
    (void)put_label(out, data, i, TREE_TEXT_DOT);
    (void)fputs(is_marked(data, i) ? "\", fillcolor=\"#d7f0dd\", color=\"#2e8b57\"];\n" : "\"];\n", out);
  }
  for (int64_t i = 0; i < data->num_nodes; i++) {
    if (data->parents[i] >= 0) {
      (void)fprintf(out, "  n%ld -> n%lld%s;\n", (long)data->parents[i], (long long)i,
                    is_marked(data, i) ? " [color=\"#2e8b57\", penwidth=2]" : "");
    }
  }
  (void)fputs("}\n", out);
  return true;
}

/* ---- SVG ---- */

typedef struct svg_layout {
  int32_t *depths;
  int32_t *level_x;   /* [num_nodes + 1]: left edge of each level, and the right edge of all */
  int32_t *y;         /* twice the middle of each box, so that the middle of two rows is whole */
  int32_t *intervals; /* [num_nodes][2] */
  int32_t *by_begin;  /* [num_nodes]: nodes in the order of the walk */
} svg_layout;

static bool layout_allocate(svg_layout *layout, int64_t num_nodes) {
  const size_t n = (size_t)num_nodes + 1;
  layout->depths = cli_malloc_array(n, sizeof(int32_t));
  layout->level_x = cli_malloc_array(n, sizeof(int32_t));
  layout->y = cli_malloc_array(n, sizeof(int32_t));
  layout->intervals = cli_malloc_array(2 * n, sizeof(int32_t));
  layout->by_begin = cli_malloc_array(n, sizeof(int32_t));
  return layout->depths != NULL && layout->level_x != NULL && layout->y != NULL && layout->intervals != NULL &&
         layout->by_begin != NULL;
}

static void layout_free(svg_layout *layout) {
  cli_free(layout->depths);
  cli_free(layout->level_x);
  cli_free(layout->y);
  cli_free(layout->intervals);
  cli_free(layout->by_begin);
}

static int box_width(const tree_data *data, int64_t i) {
  return put_label(NULL, data, i, TREE_TEXT_XML) * COLUMN_TENTHS / 10 + 2 * TEXT_PADDING;
}

/* Leaves take a row each, in the order of the walk; a parent stands in the middle of its first and last child. */
static int32_t place_rows(const tree_data *data, svg_layout *layout) {
  const int64_t n = data->num_nodes;
  int32_t num_rows = 0;
  for (int64_t i = 0; i < n; i++) {
    layout->by_begin[layout->intervals[2 * i]] = (int32_t)i;
  }
  for (int64_t place = 0; place < n; place++) {
    const int32_t i = layout->by_begin[place];
    if (layout->intervals[2 * (int64_t)i + 1] - layout->intervals[2 * (int64_t)i] == 1) {
      layout->y[i] = 2 * num_rows++;
    } else {
      layout->y[i] = -1;
    }
  }
  /* Backwards in the walk, the last child comes first and the first child last. */
  for (int64_t place = n - 1; place >= 0; place--) {
    const int32_t i = layout->by_begin[place];
    const int32_t parent = data->parents[i];
    if (parent < 0) {
      continue;
    }
    const bool first = layout->intervals[2 * (int64_t)i] == layout->intervals[2 * (int64_t)parent] + 1;
    if (layout->y[parent] < 0) {
      layout->y[parent] = layout->y[i];
    }
    if (first) {
      layout->y[parent] = (layout->y[parent] + layout->y[i]) / 2;
    }
  }
  return num_rows;
}

static void place_levels(const tree_data *data, svg_layout *layout) {
  int32_t *x = layout->level_x;
  memset(x, 0, ((size_t)data->num_nodes + 1) * sizeof *x);
  for (int64_t i = 0; i < data->num_nodes; i++) {
    const int32_t width = box_width(data, i);
    int32_t *widest = &x[layout->depths[i]];
    *widest = width > *widest ? width : *widest;
  }
  int32_t left = MARGIN;
  for (int64_t level = 0; level <= data->num_nodes; level++) {
    const int32_t width = x[level];
    x[level] = left;
    if (width == 0) {
      break;
    }
    left += width + GAP;
  }
}

static int middle_y(const svg_layout *layout, int64_t i) {
  return MARGIN + ROW_HEIGHT / 2 + layout->y[i] * ROW_HEIGHT / 2;
}

static void put_edges(FILE *out, const tree_data *data, const svg_layout *layout) {
  for (int64_t i = 0; i < data->num_nodes; i++) {
    const int64_t parent = data->parents[i];
    if (parent < 0) {
      continue;
    }
    const int from = layout->level_x[layout->depths[parent]] + box_width(data, parent);
    const int to = layout->level_x[layout->depths[i]];
    const int bend = to - GAP / 2;
    (void)fprintf(out, "<path class=\"%s\" d=\"M%d %d H%d C%d %d %d %d %d %d\"/>\n", is_marked(data, i) ? "e a" : "e",
                  from, middle_y(layout, parent), to - GAP, bend, middle_y(layout, parent), bend, middle_y(layout, i),
                  to, middle_y(layout, i));
  }
}

static void put_boxes(FILE *out, const tree_data *data, const svg_layout *layout) {
  for (int64_t i = 0; i < data->num_nodes; i++) {
    const int x = layout->level_x[layout->depths[i]];
    const int y = middle_y(layout, i);
    (void)fprintf(out, "<g class=\"%s\"><title>node %lld, depth %ld", is_marked(data, i) ? "n a" : "n", (long long)i,
                  (long)layout->depths[i]);
    if (data->tokens != NULL) {
      (void)fprintf(out, ", token %ld", (long)data->tokens[i]);
    }
    (void)fprintf(out, "</title><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"5\"/>", x, y - BOX_HEIGHT / 2,
                  box_width(data, i), BOX_HEIGHT);
    (void)fprintf(out, "<text x=\"%d\" y=\"%d\">", x + TEXT_PADDING, y + 4);
    (void)put_label(out, data, i, TREE_TEXT_XML);
    (void)fputs("</text></g>\n", out);
  }
}

static void put_svg(FILE *out, const tree_data *data, svg_layout *layout) {
  const int32_t num_rows = place_rows(data, layout);
  place_levels(data, layout);
  int32_t num_levels = 0;
  for (int64_t i = 0; i < data->num_nodes; i++) {
    num_levels = layout->depths[i] >= num_levels ? layout->depths[i] + 1 : num_levels;
  }
  const int width = data->num_nodes == 0 ? 2 * MARGIN : layout->level_x[num_levels] - GAP + MARGIN;
  const int height = 2 * MARGIN + num_rows * ROW_HEIGHT;
  (void)fprintf(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                "xml:space=\"preserve\">\n"
                "<style>\n"
                "rect{fill:#f4f6f8;stroke:#8a96a3}\n"
                "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1b2733;white-space:pre}\n"
                ".e{fill:none;stroke:#8a96a3}\n"
                ".a rect{fill:#d7f0dd;stroke:#2e8b57}\n"
                ".e.a{stroke:#2e8b57;stroke-width:2.5}\n"
                "</style>\n"
                "<rect width=\"100%%\" height=\"100%%\" style=\"fill:#fff;stroke:none\"/>\n",
                width, height, width, height);
  put_edges(out, data, layout);
  put_boxes(out, data, layout);
  (void)fputs("</svg>\n", out);
}

bool tree_export_svg(FILE *out, const tree_data *data) {
  const int64_t n = data->num_nodes;
  svg_layout layout = {NULL, NULL, NULL, NULL, NULL};
  treeattn_error error;
  bool good = layout_allocate(&layout, n);
  if (!good) {
    (void)cli_out_of_memory();
  } else if (treeattn_tree_get_depths(n, data->parents, layout.depths, n, &error) != TREEATTN_OK ||
             treeattn_tree_get_intervals(n, data->parents, layout.intervals, n, &error) != TREEATTN_OK) {
    (void)cli_library_error(NULL, &error);
    good = false;
  } else {
    put_svg(out, data, &layout);
  }
  layout_free(&layout);
  return good;
}
