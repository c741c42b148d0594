/* SPDX-License-Identifier: Apache-2.0 */
/* The risk that a drafter breaks its contract, or does not find what it is there for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draft.h"
#include "tiny_model.h"

/* Each byte is a token. */
enum { VOCAB = 128, MAX_TOKENS = 512 };

static void read_text(const char *text, int32_t *tokens, int64_t *num_tokens) {
  *num_tokens = (int64_t)strlen(text);
  for (int64_t t = 0; t < *num_tokens; ++t) {
    tokens[t] = (unsigned char)text[t];
  }
}

static gen_drafter make_counter(void) {
  int32_t digits[10];
  for (int d = 0; d < 10; ++d) {
    digits[d] = '0' + d;
  }
  gen_drafter drafter;
  assert_int_equal(gen_drafter_count(digits, VOCAB, MAX_TOKENS, &drafter, NULL), TREEATTN_OK);
  return drafter;
}

static gen_drafter make_lookup(void) {
  gen_drafter drafter;
  assert_int_equal(gen_drafter_lookup(MAX_TOKENS, &drafter, NULL), TREEATTN_OK);
  return drafter;
}

/* The first candidates after a text of which all but the last `open` tokens are committed, as text. */
static void propose_after(gen_drafter drafter, const char *text, int64_t open, char *proposed) {
  int32_t tokens[MAX_TOKENS];
  int64_t num_tokens = 0;
  read_text(text, tokens, &num_tokens);
  for (int64_t n = 1; n < num_tokens - open; ++n) {
    (void)drafter.learn(drafter.context, tokens, n, tokens[n], true);
  }
  int32_t candidates[GEN_MAX_CHILDREN];
  float probabilities[GEN_MAX_CHILDREN];
  const int64_t num = drafter.propose(drafter.context, tokens, num_tokens, GEN_MAX_CHILDREN, candidates, probabilities);
  for (int64_t c = 0; c < num; ++c) {
    proposed[c] = (char)candidates[c];
  }
  proposed[num] = '\0';
}

static void expect_first(gen_drafter drafter, const char *text, int64_t open, char expected) {
  char proposed[GEN_MAX_CHILDREN + 1];
  propose_after(drafter, text, open, proposed);
  if (proposed[0] != expected) {
    fail_msg("after '%s' (%d of it open) comes '%s', not '%c' first", text, (int)open, proposed, expected);
  }
  drafter.destroy(drafter.context);
}

static void test_counting(void **state) {
  (void)state;
  expect_first(make_counter(), "1. one\n2. two\n", 0, '3');
  expect_first(make_counter(), "1. a\n2. b\n3. c\n", 5, '4'); /* the last line is a draft */
  expect_first(make_counter(), "1. one\n2. two\n3", 0, '.');
  expect_first(make_counter(), "8. x\n9. x\n", 0, '1');
  expect_first(make_counter(), "8. x\n9. x\n1", 0, '0');
  expect_first(make_counter(), "8. x\n9. x\n1", 1, '0');
  expect_first(make_counter(), "8. x\n9. x\n10", 0, '.');
  expect_first(make_counter(), "20: a, 18: b, 16: c, ", 0, '1');
  expect_first(make_counter(), "20: a, 18: b, 16: c, 1", 0, '4');
  expect_first(make_counter(), "a 3x 3 of b\na 4x ", 0, '4'); /* the other number of the line says how far */
  expect_first(make_counter(), "08:30 x\n09:30 x\n", 0, '1');
  expect_first(make_counter(), "007;008;", 0, '0');
  expect_first(make_counter(), "007;008;0", 0, '0');
  expect_first(make_counter(), "007;008;00", 0, '9');
}

static void test_counting_has_limits(void **state) {
  (void)state;
  char proposed[GEN_MAX_CHILDREN + 1];
  gen_drafter drafter = make_counter();
  propose_after(drafter, "a", 0, proposed);
  assert_string_equal(proposed, "");
  drafter.destroy(drafter.context);
  /* Below zero there is nothing; numbers too long for a number are cut, not overflown. */
  drafter = make_counter();
  propose_after(drafter, "x: 1\nx: 0\nx: ", 0, proposed);
  assert_null(strchr(proposed, '-'));
  drafter.destroy(drafter.context);
  drafter = make_counter();
  propose_after(drafter, "x 99999999999999999999999999\ny 99999999999999999999999999\nx 9999999", 0, proposed);
  drafter.destroy(drafter.context);
}

static void test_lookup(void **state) {
  (void)state;
  expect_first(make_lookup(), "the cat; the c", 0, 'a');
  expect_first(make_lookup(), "abcdefg xbcdefh abcdef", 0, 'g'); /* the longer match first */
  expect_first(make_lookup(), "say q; say ", 5, 'q');
  expect_first(make_lookup(), "return A; return B", 0, ';'); /* B is new: what stood before it tells */
}

static void test_recycling(void **state) {
  (void)state;
  float rows[VOCAB][4] = {{0.0f}};
  for (int t = 0; t < VOCAB; ++t) {
    rows[t][t % 3] = 1.0f;
    rows[t][3] = (float)t / VOCAB;
  }
  rows['y'][0] = rows['x'][0] + 0.01f;
  rows['y'][1] = rows['x'][1];
  rows['y'][2] = rows['x'][2];
  rows['y'][3] = rows['x'][3];
  struct ggml_tensor embedding = {.type = GGML_TYPE_F32, .ne = {4, VOCAB, 1, 1}, .nb = {4, 16, 0, 0}, .data = rows};
  gen_drafter drafter;
  assert_int_equal(gen_drafter_recycle(&embedding, &drafter, NULL), TREEATTN_OK);
  static float logits[VOCAB];
  static const char *const seen[][2] = {{"bax", "1"}, {"cax", "2"}, {"dex", "3"}, {"q", "4"}};
  for (size_t s = 0; s < sizeof seen / sizeof seen[0]; ++s) {
    int32_t tokens[4];
    int64_t num_tokens = 0;
    read_text(seen[s][0], tokens, &num_tokens);
    memset(logits, 0, sizeof logits);
    logits[(int)seen[s][1][0]] = 9.0f;
    drafter.observe(drafter.context, tokens, num_tokens, logits, VOCAB);
  }
  static const char *const asked[][2] = {{"bax", "1"}, {"cax", "2"}, {"zax", "2"},
                                         {"zzx", "3"}, {"q", "4"},   {"zy", "3"}};
  for (size_t a = 0; a < sizeof asked / sizeof asked[0]; ++a) {
    char proposed[GEN_MAX_CHILDREN + 1] = "";
    int32_t tokens[4];
    int64_t num_tokens = 0;
    read_text(asked[a][0], tokens, &num_tokens);
    int32_t candidates[GEN_MAX_CHILDREN];
    float probabilities[GEN_MAX_CHILDREN];
    assert_true(drafter.propose(drafter.context, tokens, num_tokens, GEN_MAX_CHILDREN, candidates, probabilities) > 0);
    proposed[0] = (char)candidates[0];
    assert_string_equal(proposed, asked[a][1]);
  }
  drafter.destroy(drafter.context);
}

/* On any text: candidates are tokens, each once, and their probabilities are probabilities. */
static void test_contract(void **state) {
  (void)state;
  const uint64_t first = tiny_seed(31);
  for (uint64_t trial = 0; trial < 400; ++trial) {
    uint64_t random = first + trial;
    gen_drafter drafters[3] = {make_lookup(), make_counter()};
    assert_int_equal(gen_drafter_recycle(NULL, &drafters[2], NULL), TREEATTN_OK);
    int32_t tokens[MAX_TOKENS];
    int64_t num_tokens = 1;
    tokens[0] = 'a';
    static float logits[VOCAB];
    while (num_tokens < 200) {
      static const char some[] = "0123456789 ab\n.";
      const int32_t next = some[tiny_random(&random) % (trial % 2 == 0 ? sizeof some - 1 : 12)];
      for (int d = 0; d < 3; ++d) {
        int32_t candidates[GEN_MAX_CHILDREN];
        float probabilities[GEN_MAX_CHILDREN];
        const int64_t capacity = 1 + (int64_t)(tiny_random(&random) % GEN_MAX_CHILDREN);
        const int64_t num =
            drafters[d].propose(drafters[d].context, tokens, num_tokens, capacity, candidates, probabilities);
        double sum = 0.0;
        bool good = num >= 0 && num <= capacity;
        for (int64_t c = 0; c < num && good; ++c) {
          good = candidates[c] >= 0 && candidates[c] < VOCAB && probabilities[c] >= 0.0f;
          sum += (double)probabilities[c];
          for (int64_t b = 0; b < c; ++b) {
            good = good && candidates[b] != candidates[c];
          }
        }
        if (!good || !(sum <= 1.0 + 1e-6)) {
          fail_msg("%s gives %d candidates of probability %g (TREEATTN_TEST_SEED=%llu)", drafters[d].name, (int)num,
                   sum, (unsigned long long)(first + trial));
        }
        (void)drafters[d].learn(drafters[d].context, tokens, num_tokens, next, tiny_random(&random) % 2 == 0);
      }
      tokens[num_tokens++] = next;
      for (int v = 0; v < VOCAB; ++v) {
        logits[v] = (float)(tiny_random(&random) % 1000) * (trial % 3 == 0 ? 1.0f : 0.01f);
      }
      const int64_t behind = num_tokens < GEN_OBSERVED_TOKENS ? num_tokens : GEN_OBSERVED_TOKENS;
      drafters[2].observe(drafters[2].context, tokens + num_tokens - behind, behind, logits, VOCAB);
    }
    for (int d = 0; d < 3; ++d) {
      drafters[d].destroy(drafters[d].context);
    }
  }
}

/* ---- the tree --------------------------------------------------------------------------------------------------- */

enum { BRANCHES = 3, LEVELS = 4, ENUMERATED = 1 + 3 + 9 + 27 + 81 };

/* Three children for every text, with probabilities that depend on all of it behind the first token. */
static int64_t propose_any(void *context, const int32_t *tokens, int64_t num_tokens, int64_t capacity,
                           int32_t *candidates, float *probabilities) {
  uint64_t random = *(const uint64_t *)context;
  for (int64_t t = 1; t < num_tokens; ++t) {
    random = random * 31 + (uint64_t)tokens[t];
  }
  float left = 1.0f;
  for (int64_t c = 0; c < BRANCHES && c < capacity; ++c) {
    candidates[c] = (int32_t)(c + 1);
    probabilities[c] = left * (float)(1 + tiny_random(&random) % 1000) / 1001.0f;
    left -= probabilities[c];
  }
  return capacity < BRANCHES ? capacity : BRANCHES;
}

/* The values of all nodes down to the last level. */
static int enumerate(uint64_t *seed, int32_t *tokens, int64_t num_tokens, double value, double *values) {
  int32_t candidates[BRANCHES];
  float probabilities[BRANCHES];
  int num = 0;
  values[num++] = value;
  if (num_tokens == 1 + LEVELS) {
    return num;
  }
  (void)propose_any(seed, tokens, num_tokens, BRANCHES, candidates, probabilities);
  for (int c = 0; c < BRANCHES; ++c) {
    tokens[num_tokens] = candidates[c];
    num += enumerate(seed, tokens, num_tokens + 1, value * (double)probabilities[c], values + num);
  }
  return num;
}

static int descending(const void *a, const void *b) {
  const double left = *(const double *)a;
  const double right = *(const double *)b;
  return left < right ? 1 : left > right ? -1 : 0;
}

static void test_trees_are_the_best(void **state) {
  (void)state;
  const uint64_t first = tiny_seed(41);
  gen_draft *draft = NULL;
  assert_int_equal(gen_draft_create(64, LEVELS, &draft, NULL), TREEATTN_OK);
  for (uint64_t trial = 0; trial < 500; ++trial) {
    uint64_t seed = first + trial;
    const gen_drafter drafter = {"any", &seed, propose_any, NULL, NULL, NULL};
    int32_t tokens[2 + LEVELS] = {0};
    double values[ENUMERATED];
    assert_int_equal(enumerate(&seed, tokens, 1, 1.0, values), ENUMERATED);
    qsort(values, ENUMERATED, sizeof values[0], descending);
    /* Costs that rise slowly, at once, or by steps, as where rows share work. */
    double cost[64];
    uint64_t random = seed;
    const double slope = 0.002 * (double)(tiny_random(&random) % 500);
    for (int n = 0; n < 64; ++n) {
      cost[n] = 1.0 + slope * (double)(trial % 3 == 0 ? n / 8 : n);
    }
    const int64_t most = 1 + (int64_t)(tiny_random(&random) % 64);
    const bool priced = trial % 2 == 1;
    int64_t size = most;
    double best = 0.0;
    double expected = 0.0;
    for (int64_t n = 1; n <= most && priced; ++n) {
      expected += values[n - 1];
      size = expected / cost[n - 1] > best ? n : size;
      best = expected / cost[n - 1] > best ? expected / cost[n - 1] : best;
    }
    expected = 0.0;
    for (int64_t n = 0; n < size; ++n) {
      expected += values[n];
    }
    const gen_tree_options options = {most, LEVELS, GEN_MAX_CHILDREN, priced ? cost : NULL};
    gen_tree tree;
    treeattn_error error;
    if (gen_draft_grow(draft, &drafter, 1, tokens, 1, &options, &tree, &error) != TREEATTN_OK) {
      fail_msg("%s", error.message);
    }
    if (tree.num_nodes != size || !(fabs(tree.expected_tokens - expected) < 1e-4 * expected)) {
      fail_msg("%d nodes worth %g, not %d worth %g (TREEATTN_TEST_SEED=%llu)", (int)tree.num_nodes,
               tree.expected_tokens, (int)size, expected, (unsigned long long)(first + trial));
    }
  }
  gen_draft_destroy(draft);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_counting), cmocka_unit_test(test_counting_has_limits),
      cmocka_unit_test(test_lookup),   cmocka_unit_test(test_recycling),
      cmocka_unit_test(test_contract), cmocka_unit_test(test_trees_are_the_best),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
