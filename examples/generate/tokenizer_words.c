/* SPDX-License-Identifier: Apache-2.0 */
/* How a text falls into words, within which merges happen. */
#include "tokenizer_words.h"

#include <string.h>

#include "unicode.h"

typedef enum kind { END, SPACE, LETTER, NUMBER, OTHER } kind;

static kind kind_at(const char *text, size_t length, size_t at, size_t *bytes) {
  if (at >= length) {
    *bytes = 0;
    return END;
  }
  uint32_t code = 0;
  *bytes = gen_utf8_decode(text + at, length - at, &code);
  return gen_is_space(code) ? SPACE : gen_is_letter(code) ? LETTER : gen_is_number(code) ? NUMBER : OTHER;
}

static size_t contraction(const char *text, size_t length) {
  static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
  for (size_t e = 0; e < sizeof endings / sizeof endings[0]; ++e) {
    const size_t bytes = strlen(endings[e]);
    if (bytes <= length && memcmp(text, endings[e], bytes) == 0) {
      return bytes;
    }
  }
  return 0;
}

/* White space to its end, without the last character where something else follows: that one may open a word. */
static size_t space_length(const char *text, size_t length, bool single_digits) {
  size_t end = 0;
  size_t last = 0;
  size_t bytes = 0;
  kind next = kind_at(text, length, 0, &bytes);
  while (next == SPACE) {
    last = end;
    end += bytes;
    next = kind_at(text, length, end, &bytes);
  }
  const bool followed = next != END && !(single_digits && next == NUMBER);
  return followed && last > 0 ? last : end;
}

size_t gen_word_length(const char *text, size_t length, bool single_digits) {
  const size_t contracted = contraction(text, length);
  if (contracted != 0) {
    return contracted;
  }
  size_t first_bytes = 0;
  size_t at = 0;
  kind first = kind_at(text, length, 0, &first_bytes);
  if (first == NUMBER && single_digits) {
    return first_bytes;
  }
  if (text[0] == ' ') {
    size_t next_bytes = 0;
    const kind next = kind_at(text, length, 1, &next_bytes);
    if (next != SPACE && next != END && !(next == NUMBER && single_digits)) {
      first = next;
      at = 1;
    }
  }
  if (first == SPACE) {
    return space_length(text, length, single_digits);
  }
  size_t bytes = 0;
  while (kind_at(text, length, at, &bytes) == first) {
    at += bytes;
  }
  return at;
}
