/* SPDX-License-Identifier: Apache-2.0 */
/* The risk that text is cut or merged otherwise than the tokenizer's definition says, or does not come back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
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
    const gen_vocabulary vocabulary = {with.num_tokens, with.tokens, NULL, with.num_merges, with.merges, true, NULL};
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
  const gen_vocabulary vocabulary = {6, tokens, types, 0, NULL, true, NULL};
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
    const gen_vocabulary vocabulary = {3, tokens, NULL, 1, merges[m], true, NULL};
    gen_tokenizer *tokenizer = NULL;
    treeattn_error error;
    assert_int_equal(gen_tokenizer_create(&vocabulary, &tokenizer, &error), TREEATTN_ERROR_INVALID_ARGUMENT);
    assert_null(tokenizer);
    assert_non_null(strstr(error.message, "merge 0"));
  }
}

/* ---- pieces ----------------------------------------------------------------------------------------------------- */

/* The definition: of all neighbours that are one piece together, the pair of the highest score, and of these the leftmost. */
static int define_pieces(const language *with, const float *scores, const char *text, int32_t *tokens) {
  char parts[64][64];
  int num = 0;
  for (; text[num] != '\0'; ++num) {
    (void)snprintf(parts[num], sizeof parts[num], "%c", text[num]);
  }
  for (;;) {
    int best = -1;
    int32_t best_token = -1;
    for (int p = 0; p + 1 < num; ++p) {
      char joined[130];
      join(joined, parts[p], "", parts[p + 1]);
      for (int32_t t = 0; t < with->num_tokens; ++t) {
        if (strcmp(with->names[t], joined) == 0 && (best < 0 || scores[t] > scores[best_token])) {
          best = p;
          best_token = t;
        }
      }
    }
    if (best < 0) {
      break;
    }
    memcpy(parts[best], with->names[best_token], strlen(with->names[best_token]) + 1);
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

static void test_pieces_follow_the_definition(void **state) {
  (void)state;
  const uint64_t first = tiny_seed(23);
  for (uint64_t trial = 0; trial < 300; ++trial) {
    uint64_t random = first + trial;
    static language with;
    make_language(&with, &random);
    float scores[MAX_TOKENS];
    for (int32_t t = 0; t < with.num_tokens; ++t) {
      scores[t] = (float)(tiny_random(&random) % (trial % 2 == 0 ? 4 : 1000)); /* few values: many ties */
    }
    const gen_vocabulary vocabulary = {with.num_tokens, with.tokens, NULL, 0, NULL, false, scores};
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
      const int num = define_pieces(&with, scores, text, expected);
      assert_int_equal(gen_tokenizer_encode(tokenizer, text, length, false, tokens, 64, &num_tokens, &error), 0);
      if (num_tokens != num || memcmp(tokens, expected, sizeof tokens[0] * (size_t)num) != 0) {
        fail_msg("'%s' becomes other tokens (TREEATTN_TEST_SEED=%llu)", text, (unsigned long long)(first + trial));
      }
    }
    gen_tokenizer_destroy(tokenizer);
  }
}

static void expect_pieces(const gen_tokenizer *tokenizer, const char *text, size_t length, const char *expected) {
  int32_t tokens[32];
  int64_t num = 0;
  treeattn_error error;
  assert_int_equal(gen_tokenizer_encode(tokenizer, text, length, true, tokens, 32, &num, &error), TREEATTN_OK);
  char got[128] = "";
  for (int64_t t = 0; t < num; ++t) {
    (void)snprintf(got + strlen(got), sizeof got - strlen(got), t == 0 ? "%d" : " %d", tokens[t]);
  }
  assert_string_equal(got, expected);
}

static void test_spaces_bytes_and_whole_pieces(void **state) {
  (void)state;
#define MARK "\xe2\x96\x81"
  enum { ZERO = 9, C3, A9, EF, BF, BD };
  static const char *const tokens[] = {"a",      "b",      MARK,     "ab",     MARK "a", MARK MARK, "b" MARK, "<eos>",
                                       "a" MARK, "<0x00>", "<0xC3>", "<0xA9>", "<0xEF>", "<0xBF>",  "<0xBD>"};
  static const int32_t types[] = {1, 1, 1, 1, 1, GEN_TOKEN_USER, 1, GEN_TOKEN_CONTROL, 1, 6, 6, 6, 6, 6, 6};
  static const float scores[] = {0, 0, 0, 5, 6, 0, 4, 9, 1, 0, 0, 0, 0, 0, 0};
  const gen_vocabulary vocabulary = {15, tokens, types, 0, NULL, false, scores};
  gen_tokenizer *tokenizer = NULL;
  treeattn_error error;
  assert_int_equal(gen_tokenizer_create(&vocabulary, &tokenizer, &error), TREEATTN_OK);
  expect_pieces(tokenizer, "a", 1, "0");
  expect_pieces(tokenizer, "ab", 2, "3");
  expect_pieces(tokenizer, " ab", 3, "4 1");        /* the higher score first */
  expect_pieces(tokenizer, "a  ab", 5, "0 5 3");    /* a user-defined piece merges with nothing */
  expect_pieces(tokenizer, "a   ab", 6, "0 5 4 1"); /* the longest from the left */
  expect_pieces(tokenizer, "b<eos>a", 7, "1 7 0");
  expect_pieces(tokenizer,
                "\xc3\xa9"
                "a\0",
                4, "10 11 0 9");                      /* no piece has these characters */
  expect_pieces(tokenizer, "a\xc3", 2, "0 12 13 14"); /* cut UTF-8 is U+FFFD */
  expect_pieces(tokenizer, "", 0, "");
  char text[8];
  assert_int_equal(gen_tokenizer_decode(tokenizer, 4, text, sizeof text), 2);
  assert_memory_equal(text, " a", 2);
  assert_int_equal(gen_tokenizer_decode(tokenizer, C3, text, sizeof text), 1);
  assert_memory_equal(text, "\xc3", 1);
  assert_int_equal(gen_tokenizer_decode(tokenizer, 7, text, 2), 5); /* a name, as much of it as there is room for */
  assert_memory_equal(text, "<e", 2);
  int32_t got[4];
  int64_t num = 0;
  assert_int_equal(gen_tokenizer_encode(tokenizer, "c", 1, true, got, 4, &num, &error), TREEATTN_ERROR_UNSUPPORTED);
  assert_string_equal(error.message, "the vocabulary has no token for byte 0x63");
  gen_tokenizer_destroy(tokenizer);
#undef MARK
}

static void test_bad_pieces_are_named(void **state) {
  (void)state;
  static const char *const tokens[] = {"a", "b", "<0x2>"};
  static const float good[] = {0, 0, 0};
  static const float bad[] = {0, NAN, 0};
  static const int32_t normal[] = {1, 1, 1};
  static const int32_t unused[] = {1, GEN_TOKEN_UNUSED, 1};
  static const int32_t byte[] = {1, 1, GEN_TOKEN_BYTE};
  const gen_vocabulary cases[] = {{3, tokens, normal, 0, NULL, false, bad},
                                  {3, tokens, unused, 0, NULL, false, good},
                                  {3, tokens, byte, 0, NULL, false, good}};
  static const char *const words[] = {"the score of token 1", "token 1 is an unused piece",
                                      "token 2 stands for a byte"};
  for (size_t c = 0; c < 3; ++c) {
    gen_tokenizer *tokenizer = NULL;
    treeattn_error error;
    assert_int_not_equal(gen_tokenizer_create(&cases[c], &tokenizer, &error), TREEATTN_OK);
    assert_null(tokenizer);
    assert_non_null(strstr(error.message, words[c]));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_words),
      cmocka_unit_test(test_words_of_any_bytes),
      cmocka_unit_test(test_utf8),
      cmocka_unit_test(test_merges_follow_the_definition),
      cmocka_unit_test(test_control_tokens),
      cmocka_unit_test(test_bad_merges_are_named),
      cmocka_unit_test(test_pieces_follow_the_definition),
      cmocka_unit_test(test_spaces_bytes_and_whole_pieces),
      cmocka_unit_test(test_bad_pieces_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
