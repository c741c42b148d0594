/* SPDX-License-Identifier: Apache-2.0 */
/* The little of Unicode that a tokenizer needs: UTF-8, letters, numbers, white space. */
#include "unicode.h"

static bool continues(unsigned char byte) {
  return (byte & 0xc0) == 0x80;
}

size_t gen_utf8_decode(const char *text, size_t length, uint32_t *code) {
  const unsigned char *bytes = (const unsigned char *)text;
  const unsigned char lead = bytes[0];
  *code = 0xfffd;
  if (lead < 0x80) {
    *code = lead;
    return 1;
  }
  const size_t needed = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || length < needed) {
    return 1;
  }
  uint32_t value = lead & (0x7fu >> needed);
  for (size_t b = 1; b < needed; ++b) {
    if (!continues(bytes[b])) {
      return 1;
    }
    value = value << 6 | (bytes[b] & 0x3fu);
  }
  /* Overlong forms, surrogates and what lies past the last plane are no characters. */
  if ((needed == 3 && value < 0x800) || (needed == 4 && (value < 0x10000 || value > 0x10ffff)) ||
      (value >= 0xd800 && value <= 0xdfff)) {
    return 1;
  }
  *code = value;
  return needed;
}

size_t gen_utf8_encode(uint32_t code, char out[4]) {
  if (code < 0x80) {
    out[0] = (char)code;
    return 1;
  }
  const size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  static const unsigned leads[5] = {0, 0, 0xc0, 0xe0, 0xf0};
  for (size_t b = length - 1; b > 0; --b) {
    out[b] = (char)(0x80u | (code & 0x3fu));
    code >>= 6;
  }
  out[0] = (char)(leads[length] | code);
  return length;
}

static bool is_in(uint32_t code, const uint32_t (*ranges)[2], size_t num_ranges) {
  size_t low = 0;
  size_t high = num_ranges;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (code > ranges[middle][1]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < num_ranges && code >= ranges[low][0];
}

bool gen_is_letter(uint32_t code) {
  return is_in(code, gen_unicode_letters, gen_unicode_num_letters);
}

bool gen_is_number(uint32_t code) {
  return is_in(code, gen_unicode_numbers, gen_unicode_num_numbers);
}

bool gen_is_space(uint32_t code) {
  return (code >= 0x9 && code <= 0xd) || code == 0x20 || code == 0x85 || code == 0xa0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f ||
         code == 0x3000;
}
