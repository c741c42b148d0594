/* SPDX-License-Identifier: Apache-2.0 */
/* The risk that text is cut or merged otherwise than the tokenizer's definition says, or does not come back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiny_model.h"
#include "tokenizer.h"
#include "tokenizer_words.h"
#include "unicode.h"

/* ---- words ------------------------------------------------------------------------------------------------------ */

/* Words of the text with '|' between them, as the `tokenizers` package cut them. */
static void check_words(const char *text, bool single_digits, const char *expected) {
  char got[256];
  size_t length = 0;
  for (size_t at = 0; text[at] != '\0';) {
    const size_t word = gen_word_length(text + at, strlen(text + at), single_digits);
    assert_true(word > 0 && word <= strlen(text + at));
    if (at > 0) {
      got[length++] = '|';
    }
    memcpy(got + length, text + at, word);
    length += word;
    at += word;
  }
  got[length] = '\0';
  assert_string_equal(got, expected);
}

static void test_words(void **state) {
  (void)state;
  check_words("I'll say it's 'fine', don't I?", true, "I|'ll| say| it|'s| '|fine|',| don|'t| I|?");
  check_words("x = 42;", true, "x| =| |4|2|;");
  check_words("x = 42;", false, "x| =| 42|;");
  check_words("a  b\n\n  c  ", true, "a| | b|\n\n | c|  ");
  check_words("a  12", true, "a|  |1|2");
  check_words("na\xc3\xafve \xe6\x96\x87\xe5\xad\x97\xe3\x80\x82", true,
              "na\xc3\xafve| \xe6\x96\x87\xe5\xad\x97|\xe3\x80\x82");
  check_words("e\xcc\x81 \xc2\xbd", true, "e|\xcc\x81| |\xc2\xbd");
}

static void test_words_of_any_bytes(void **state) {
  (void)state;
  uint64_t random = tiny_seed(21);
  for (int trial = 0; trial < 20000; ++trial) {
    char *text = malloc(24); /* exact, so that a sanitizer sees a read past the end */
    size_t left = 1 + (size_t)(tiny_random(&random) % 24);
    char *end = text + 24;
    for (size_t b = 0; b < 24; ++b) {
      static const char some[] = " \t\n'slabc19.\xc3\xa9\xe2\x80\x83\xf0\x9f\x98\x80\xff";
      text[b] = some[tiny_random(&random) % (sizeof some - 1)];
    }
    for (; left > 0; left -= gen_word_length(end - left, left, trial % 2 == 0)) {
      const size_t word = gen_word_length(end - left, left, trial % 2 == 0);
      assert_true(word > 0 && word <= left);
    }
    free(text);
  }
}

static void test_utf8(void **state) {
  (void)state;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code <= 0xdfff) {
      continue;
    }
    char text[4];
    uint32_t back = 0;
    const size_t bytes = gen_utf8_encode(code, text);
    assert_int_equal(gen_utf8_decode(text, bytes, &back), bytes);
    assert_int_equal(back, code);
  }
  static const char *const broken[] = {"\x80", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"};
  for (size_t b = 0; b < sizeof broken / sizeof broken[0]; ++b) {
    uint32_t code = 0;
    assert_int_equal(gen_utf8_decode(broken[b], strlen(broken[b]), &code), 1);
    assert_int_equal(code, 0xfffd);
  }
}

/* ---- merges ----------------------------------------------------------------------------------------------------- */

enum { NUM_LETTERS = 3, MAX_TOKENS = 64 };

typedef struct language {
  char names[MAX_TOKENS][64];
  char lines[MAX_TOKENS][130];
  const char *tokens[MAX_TOKENS], *merges[MAX_TOKENS];
  int32_t num_tokens, num_merges;
} language;

/* "left right", or "leftright" without a gap. */
static void join(char line[130], const char *left, const char *gap, const char *right) {
  const char *const parts[3] = {left, gap, right};
  size_t length = 0;
  for (int p = 0; p < 3; ++p) {
    const size_t bytes = strlen(parts[p]);
    assert_true(length + bytes < 130);
    memcpy(line + length, parts[p], bytes);
    length += bytes;
  }
  line[length] = '\0';
}

static void make_language(language *made, uint64_t *random) {
  made->num_tokens = NUM_LETTERS;
  made->num_merges = 0;
  for (int t = 0; t < MAX_TOKENS; ++t) {
    made->tokens[t] = made->names[t];
    made->merges[t] = made->lines[t];
  }
  for (int t = 0; t < NUM_LETTERS; ++t) {
    (void)snprintf(made->names[t], sizeof made->names[t], "%c", 'a' + t);
  }
  while (made->num_tokens < MAX_TOKENS) {
    const char *left = made->names[tiny_random(random) % (uint64_t)made->num_tokens];
    const char *right = made->names[tiny_random(random) % (uint64_t)made->num_tokens];
    char joined[130];
    join(joined, left, "", right);
    bool known = strlen(joined) > 12;
    for (int32_t t = 0; t < made->num_tokens; ++t) {
      known = known || strcmp(made->names[t], joined) == 0;
    }
    if (!known) {
      join(made->lines[made->num_merges++], left, " ", right);
      memcpy(made->names[made->num_tokens++], joined, strlen(joined) + 1);
    }
    if (known && tiny_random(random) % 64 == 0) {
      break;
    }
  }
}

/* The definition: as long as any pair of neighbours has a merge, the one of lowest rank, and of these the leftmost. */
static int define(const language *with, const char *text, int32_t *tokens) {
  char parts[64][64];
  int num = 0;
  for (; text[num] != '\0'; ++num) {
    (void)snprintf(parts[num], sizeof parts[num], "%c", text[num]);
  }
  for (;;) {
    int best = -1;
    int32_t best_rank = with->num_merges;
    for (int p = 0; p + 1 < num; ++p) {
      char line[130];
      join(line, parts[p], " ", parts[p + 1]);
      for (int32_t rank = 0; rank < best_rank; ++rank) {
        if (strcmp(with->merges[rank], line) == 0) {
          best = p;
          best_rank = rank;
        }
      }
    }
    if (best < 0) {
      break;
    }
    const size_t length = strlen(parts[best]);
    memcpy(parts[best] + length, parts[best + 1], strlen(parts[best + 1]) + 1);
    memmove(parts[best + 1], parts[best + 2], sizeof parts[0] * (size_t)(num - best - 2));
    --num;
  }
  for (int p = 0; p < num; ++p) {
    for (int32_t t = 0; t < with->num_tokens; ++t) {
      if (strcmp(with->names[t], parts[p]) == 0) {
        tokens[p] = t;
      }
    }
  }
  return num;
}

static void test_merges_follow_the_definition(void **state) {
  (void)state;
  const uint64_t first = tiny_seed(22);
  for (uint64_t trial = 0; trial < 300; ++trial) {
    uint64_t random = first + trial;
    static language with;
    make_language(&with, &random);
    const gen_vocabulary vocabulary = {with.num_tokens, with.tokens, NULL, with.num_merges, with.merges, true};
    gen_tokenizer *tokenizer = NULL;
    treeattn_error error;
    if (gen_tokenizer_create(&vocabulary, &tokenizer, &error) != TREEATTN_OK) {
      fail_msg("%s", error.message);
    }
    for (int t = 0; t < 40; ++t) {
      char text[61];
      const size_t length = 1 + (size_t)(tiny_random(&random) % 60);
      for (size_t b = 0; b < length; ++b) {
        text[b] = (char)('a' + tiny_random(&random) % (t % 2 == 0 ? 1 : NUM_LETTERS));
      }
      text[length] = '\0';
      int32_t expected[64];
      int32_t tokens[64];
      int64_t num_tokens = 0;
      const int num = define(&with, text, expected);
      assert_int_equal(gen_tokenizer_encode(tokenizer, text, length, false, tokens, 64, &num_tokens, &error), 0);
      if (num_tokens != num || memcmp(tokens, expected, sizeof tokens[0] * (size_t)num) != 0) {
        fail_msg("'%s' becomes other tokens (TREEATTN_TEST_SEED=%llu)", text, (unsigned long long)(first + trial));
      }
      char back[64];
      size_t bytes = 0;
      for (int64_t k = 0; k < num_tokens; ++k) {
        bytes += gen_tokenizer_decode(tokenizer, tokens[k], back + bytes, sizeof back - bytes);
      }
      assert_int_equal(bytes, length);
      assert_memory_equal(back, text, length);
    }
    gen_tokenizer_destroy(tokenizer);
  }
}

static void test_control_tokens(void **state) {
  (void)state;
  static const char *const tokens[] = {"<", "|", ">", "x", "<|x|>", "<|x|><|x|>"};
  static const int32_t types[] = {1, 1, 1, 1, GEN_TOKEN_CONTROL, GEN_TOKEN_CONTROL};
  const gen_vocabulary vocabulary = {6, tokens, types, 0, NULL, true};
  gen_tokenizer *tokenizer = NULL;
  treeattn_error error;
  assert_int_equal(gen_tokenizer_create(&vocabulary, &tokenizer, &error), TREEATTN_OK);
  int32_t got[8];
  int64_t num = 0;
  assert_int_equal(gen_tokenizer_encode(tokenizer, "x<|x|>x<|x|><|x|>", 17, true, got, 8, &num, &error), TREEATTN_OK);
  assert_int_equal(num, 4);
  assert_int_equal(got[1], 4);
  assert_int_equal(got[3], 5); /* the longest name wins */
  num = 0;
  assert_int_equal(gen_tokenizer_encode(tokenizer, "<|x|>", 5, false, got, 3, &num, &error), TREEATTN_OK);
  assert_int_equal(num, 5); /* counted on past the capacity */
  num = 0;
  assert_int_equal(gen_tokenizer_encode(tokenizer, "y", 1, false, got, 8, &num, &error), TREEATTN_ERROR_UNSUPPORTED);
  assert_string_equal(error.message, "the vocabulary has no token for byte 0x79");
  gen_tokenizer_destroy(tokenizer);
}

static void test_bad_merges_are_named(void **state) {
  (void)state;
  static const char *const tokens[] = {"a", "b", "ab"};
  static const char *const merges[][1] = {{"ab"}, {"a "}, {"b a"}, {"a c"}};
  for (size_t m = 0; m < sizeof merges / sizeof merges[0]; ++m) {
    const gen_vocabulary vocabulary = {3, tokens, NULL, 1, merges[m], true};
    gen_tokenizer *tokenizer = NULL;
    treeattn_error error;
    assert_int_equal(gen_tokenizer_create(&vocabulary, &tokenizer, &error), TREEATTN_ERROR_INVALID_ARGUMENT);
    assert_null(tokenizer);
    assert_non_null(strstr(error.message, "merge 0"));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_words),          cmocka_unit_test(test_words_of_any_bytes),
      cmocka_unit_test(test_utf8),           cmocka_unit_test(test_merges_follow_the_definition),
      cmocka_unit_test(test_control_tokens), cmocka_unit_test(test_bad_merges_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
