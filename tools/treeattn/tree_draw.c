/* SPDX-License-Identifier: Apache-2.0 */
/* A tree drawn with lines of text. It depends on nothing but the library, so that examples can take it along. */
#include "tree_draw.h"

#include <stdbool.h>
#include <stdlib.h>

#include <treeattn/tree.h>

#include "tree_text.h"

enum {
  LINE_COLUMNS = 100, /* a run of only children goes on in a new line after that */
  TEXT_COLUMNS = 32,
  SHOWN_LEVELS = 20 /* of indentation; deeper ones show the last of it, so that a line's length has a bound */
};

typedef struct drawing {
  FILE *out;
  const int32_t *parents;
  const char *const *texts;
  const unsigned char *marks;
  bool ascii;
  int32_t *first_child;
  int32_t *next_sibling;
  unsigned char *bars; /* for each level of indentation: a line goes on below */
  int64_t num_levels;
} drawing;

static int put(FILE *out, const char *text, int columns) {
  (void)fputs(text, out);
  return columns;
}

static int put_node(const drawing *d, int64_t i) {
  int columns = fprintf(d->out, "%lld", (long long)i);
  if (d->texts != NULL && d->texts[i] != NULL) {
    columns += put(d->out, " ", 1);
    columns += tree_text_put(d->out, d->texts[i], d->ascii ? TREE_TEXT_ASCII : TREE_TEXT_UTF8, TEXT_COLUMNS);
  }
  if (d->marks != NULL && d->marks[i] != 0) {
    columns += put(d->out, d->ascii ? " *" : " \u2713", 2);
  }
  return columns;
}

static int put_indent(const drawing *d) {
  int64_t level = 0;
  int columns = 0;
  if (d->num_levels > SHOWN_LEVELS) {
    level = d->num_levels - SHOWN_LEVELS;
    columns += fprintf(d->out, "(+%lld) ", (long long)level);
  }
  for (; level < d->num_levels; level++) {
    columns += put(d->out, d->bars[level] != 0 ? (d->ascii ? "|  " : "\u2502  ") : "   ", 3);
  }
  return columns;
}

static bool has_one_child(const drawing *d, int64_t i) {
  return d->first_child[i] >= 0 && d->next_sibling[d->first_child[i]] < 0;
}

/* The line of a node and of the only children below it. Returns the last of them. */
static int64_t put_run(const drawing *d, int64_t head) {
  int columns = put_indent(d);
  if (d->parents[head] >= 0) {
    const bool last = d->next_sibling[head] < 0;
    columns += put(d->out, d->ascii ? (last ? "`- " : "|- ") : (last ? "\u2514\u2500 " : "\u251c\u2500 "), 3);
  }
  int64_t i = head;
  columns += put_node(d, i);
  while (has_one_child(d, i)) {
    i = d->first_child[i];
    columns += put(d->out, d->ascii ? " -" : " \u2500", 2);
    if (columns > LINE_COLUMNS) {
      (void)fputc('\n', d->out);
      columns = put_indent(d);
      if (d->parents[head] >= 0) {
        columns += put(d->out, d->next_sibling[head] < 0 ? "   " : (d->ascii ? "|  " : "\u2502  "), 3);
      }
      columns += put(d->out, "  ", 2);
    } else {
      columns += put(d->out, " ", 1);
    }
    columns += put_node(d, i);
  }
  (void)fputc('\n', d->out);
  return i;
}

static void draw(drawing *d) {
  int64_t head = 0;
  while (head >= 0) {
    const int64_t end = put_run(d, head);
    if (d->first_child[end] >= 0) {
      if (d->parents[head] >= 0) {
        d->bars[d->num_levels++] = d->next_sibling[head] >= 0;
      }
      head = d->first_child[end];
      continue;
    }
    while (head >= 0 && d->next_sibling[head] < 0) {
      head = d->parents[head];
      while (head >= 0 && d->parents[head] >= 0 && has_one_child(d, d->parents[head])) {
        head = d->parents[head];
      }
      if (head >= 0 && d->parents[head] >= 0) {
        d->num_levels--;
      }
    }
    head = head < 0 ? -1 : d->next_sibling[head];
  }
}

/* Without memory for the walk the same facts still come out, a node a line. */
static void draw_list(const drawing *d, int64_t num_nodes) {
  for (int64_t i = 0; i < num_nodes; i++) {
    (void)put_node(d, i);
    (void)fprintf(d->out, " (parent %ld)\n", (long)d->parents[i]);
  }
}

void tree_draw(FILE *out, int64_t num_nodes, const int32_t *parents, const char *const *texts,
               const unsigned char *marks, int ascii) {
  if (num_nodes <= 0 || treeattn_tree_check(num_nodes, parents, NULL) != TREEATTN_OK) {
    return;
  }
  drawing d = {out, parents, texts, marks, ascii != 0, NULL, NULL, NULL, 0};
  d.first_child = malloc((size_t)num_nodes * sizeof *d.first_child);
  d.next_sibling = malloc((size_t)num_nodes * sizeof *d.next_sibling);
  d.bars = malloc((size_t)num_nodes);
  if (d.first_child != NULL && d.next_sibling != NULL && d.bars != NULL &&
      treeattn_tree_get_links(num_nodes, parents, d.first_child, d.next_sibling, num_nodes, NULL) == TREEATTN_OK) {
    draw(&d);
  } else {
    draw_list(&d, num_nodes);
  }
  free(d.first_child);
  free(d.next_sibling);
  free(d.bars);
}
