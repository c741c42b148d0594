/* SPDX-License-Identifier: Apache-2.0 */
/* How a text falls into words, within which merges happen. */
#ifndef GENERATE_TOKENIZER_WORDS_H
#define GENERATE_TOKENIZER_WORDS_H

#include <stdbool.h>
#include <stddef.h>

/* The bytes of the first word of a text that is not empty. GPT-2's pattern
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * and with single_digits every \p{N} cut out of the text beforehand. */
size_t gen_word_length(const char *text, size_t length, bool single_digits);

#endif
