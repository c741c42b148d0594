/* SPDX-License-Identifier: Apache-2.0 */
/* The little of Unicode that a tokenizer needs: UTF-8, letters, numbers, white space. */
#ifndef GENERATE_UNICODE_H
#define GENERATE_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern const uint32_t gen_unicode_letters[][2];
extern const size_t gen_unicode_num_letters;
extern const uint32_t gen_unicode_numbers[][2];
extern const size_t gen_unicode_num_numbers;

/* Decodes one character, `length` 1 or more; returns its bytes. A byte that begins no character of UTF-8 is one of its
 * own, *code 0xfffd: text from anywhere can be cut into pieces. */
size_t gen_utf8_decode(const char *text, size_t length, uint32_t *code);
/* Writes 1 to 4 bytes. */
size_t gen_utf8_encode(uint32_t code, char out[4]);

bool gen_is_letter(uint32_t code); /* \p{L} */
bool gen_is_number(uint32_t code); /* \p{N} */
bool gen_is_space(uint32_t code);  /* \s: the property White_Space */

#endif
