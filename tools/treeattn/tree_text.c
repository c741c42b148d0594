/* SPDX-License-Identifier: Apache-2.0 */
/* Token texts made safe to show. Models' tokens hold line breaks, halves of characters and worse. */
#include "tree_text.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The character at *text, which moves on behind it, or -1 after moving over one byte that belongs to none. */
static int32_t next_character(const unsigned char **text) {
  static const int32_t smallest[] = {0, 0x80, 0x800, 0x10000};
  const unsigned char *at = (*text)++;
  if (at[0] < 0x80) {
    return at[0];
  }
  const int more = at[0] >= 0xf0 ? 3 : (at[0] >= 0xe0 ? 2 : 1);
  if (at[0] < 0xc2 || at[0] > 0xf4) {
    return -1;
  }
  int32_t character = at[0] & (0x3f >> more);
  for (int k = 1; k <= more; k++) {
    if ((at[k] & 0xc0) != 0x80) {
      return -1;
    }
    character = character << 6 | (at[k] & 0x3f);
  }
  if (character < smallest[more] || character > 0x10ffff || (character >= 0xd800 && character <= 0xdfff)) {
    return -1;
  }
  *text += more;
  return character;
}

/* Controls, and what changes the look of its surroundings or has none: direction marks, joiners, tags, private use. */
static bool is_invisible(int32_t c) {
  return c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad || c == 0x61c || c == 0x180e ||
         (c >= 0x2000 && c <= 0x200f) || (c >= 0x2028 && c <= 0x202f) || (c >= 0x205f && c <= 0x206f) || c == 0x3000 ||
         c == 0xfeff || (c >= 0xfe00 && c <= 0xfe0f) || (c >= 0xe000 && c <= 0xf8ff) || (c >= 0xfff0 && c <= 0xffff) ||
         c >= 0xe0000;
}

static bool is_combining(int32_t c) {
  return (c >= 0x300 && c <= 0x36f) || (c >= 0x1ab0 && c <= 0x1aff) || (c >= 0x20d0 && c <= 0x20ff);
}

static bool is_wide(int32_t c) {
  return (c >= 0x1100 && c <= 0x115f) || (c >= 0x2e80 && c <= 0xa4cf) || (c >= 0xac00 && c <= 0xd7a3) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0xfe30 && c <= 0xfe6f) || (c >= 0xff01 && c <= 0xff60) ||
         (c >= 0x1f300 && c <= 0x1faff) || (c >= 0x20000 && c <= 0x3ffff);
}

enum { MAX_SHOWN_BYTES = 16 };

/* The next character as it is shown, before the escapes of DOT and XML. Returns its columns. */
static int next_shown(const unsigned char **text, bool ascii, char shown[MAX_SHOWN_BYTES]) {
  const unsigned char *begin = *text;
  const int32_t c = next_character(text);
  const char *const escapes = "\"\"\\\\\nn\rr\tt";
  for (const char *pair = escapes; *pair != '\0'; pair += 2) {
    if (c == (unsigned char)pair[0]) {
      return snprintf(shown, MAX_SHOWN_BYTES, "\\%c", pair[1]);
    }
  }
  if (c < 0 || (c < 0x80 && is_invisible(c))) {
    return snprintf(shown, MAX_SHOWN_BYTES, "\\x%02x", (unsigned)begin[0]);
  }
  if (is_invisible(c) || (ascii && c >= 0x80)) {
    return snprintf(shown, MAX_SHOWN_BYTES, "\\u{%x}", (unsigned)c);
  }
  const size_t bytes = (size_t)(*text - begin);
  memcpy(shown, begin, bytes);
  shown[bytes] = '\0';
  return is_combining(c) ? 0 : (is_wide(c) ? 2 : 1);
}

static void put(FILE *out, const char *shown, tree_text_style style) {
  for (; out != NULL && *shown != '\0'; shown++) {
    if (style == TREE_TEXT_DOT && (*shown == '\\' || *shown == '"')) {
      (void)fputc('\\', out);
    }
    if (style == TREE_TEXT_XML && strchr("&<>\"", *shown) != NULL) {
      (void)fprintf(out, "&#%d;", *shown);
    } else {
      (void)fputc(*shown, out);
    }
  }
}

int tree_text_put(FILE *out, const char *text, tree_text_style style, int max_columns) {
  const bool ascii = style == TREE_TEXT_ASCII;
  char shown[MAX_SHOWN_BYTES];
  int needed = 2;
  const unsigned char *at = (const unsigned char *)text;
  while (*at != '\0' && needed <= max_columns) {
    needed += next_shown(&at, ascii, shown);
  }
  const bool cut = needed > max_columns;
  const int dots = ascii ? 3 : 1;
  int columns = 2;
  put(out, "\"", style);
  at = (const unsigned char *)text;
  while (*at != '\0') {
    const int width = next_shown(&at, ascii, shown);
    if (cut && columns + width + dots > max_columns) {
      put(out, ascii ? "..." : "\u2026", style);
      columns += dots;
      break;
    }
    put(out, shown, style);
    columns += width;
  }
  put(out, "\"", style);
  return columns;
}
