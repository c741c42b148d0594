/* SPDX-License-Identifier: Apache-2.0 */
/* Tries merge equal prefixes and nothing else, number nodes as they come, and stop where they are told. */
#include <string.h>

#include <treeattn/tree.h>

#include "support/tree_trials.h"

enum { SALT = 0x7472, FILL = 0x3c, MAX_TOKENS = 600, MAX_SEQUENCES = 60 };

typedef struct sequences {
  int32_t tokens[MAX_TOKENS];
  int32_t lengths[MAX_SEQUENCES];
  int num_tokens;
  int num_sequences;
} sequences;

static void make_sequences(rng *r, sequences *s) {
  const int vocabulary = rng_chance(r, 4) ? INT32_MAX : rng_range(r, 1, 6);
  s->num_tokens = 0;
  s->num_sequences = rng_below(r, MAX_SEQUENCES + 1);
  for (int k = 0; k < s->num_sequences; k++) {
    s->lengths[k] = rng_below(r, 11);
    for (int place = 0; place < s->lengths[k]; place++) {
      s->tokens[s->num_tokens++] = rng_below(r, vocabulary);
    }
  }
}

typedef struct naive_tree {
  int num_nodes;
  int32_t parents[MAX_TOKENS + 1];
  int32_t tokens[MAX_TOKENS + 1];
} naive_tree;

/* The child by looking at every node; -1 if there is none and no room for it. */
static int naive_child(naive_tree *tree, int parent, int32_t token, int max_nodes) {
  for (int i = 0; i < tree->num_nodes; i++) {
    if (tree->parents[i] == parent && tree->tokens[i] == token) {
      return i;
    }
  }
  if (tree->num_nodes == max_nodes) {
    return -1;
  }
  tree->parents[tree->num_nodes] = parent;
  tree->tokens[tree->num_nodes] = token;
  return tree->num_nodes++;
}

static void naive_trie(const sequences *s, int32_t root_token, int max_nodes, naive_tree *tree, int32_t *last_nodes) {
  tree->num_nodes = 0;
  const int root = root_token < 0 ? -1 : naive_child(tree, -1, root_token, max_nodes);
  for (int k = 0, at = 0; k < s->num_sequences; at += s->lengths[k], k++) {
    int node = root;
    for (int place = 0; place < s->lengths[k]; place++) {
      const int child = naive_child(tree, node, s->tokens[at + place], max_nodes);
      if (child < 0) {
        break;
      }
      node = child;
    }
    last_nodes[k] = node;
  }
}

static void tries_are_what_insertion_makes(void **state) {
  (void)state;
  for (int index = 0; index < trial_count(1500, 200); index++) {
    rng r;
    sequences s;
    naive_tree expected;
    int32_t expected_last[MAX_SEQUENCES];
    trial_begin(&r, SALT, index);
    make_sequences(&r, &s);
    treeattn_trie_args args = TREEATTN_TRIE_ARGS_INIT;
    args.tokens = s.tokens;
    args.num_tokens = s.num_tokens;
    args.lengths = s.lengths;
    args.num_sequences = s.num_sequences;
    args.root_token = rng_chance(&r, 2) ? TREEATTN_NO_TOKEN : rng_below(&r, 3);
    args.max_nodes = rng_chance(&r, 2) ? 0 : rng_range(&r, 1, 40);
    naive_trie(&s, args.root_token, args.max_nodes == 0 ? MAX_TOKENS + 1 : (int)args.max_nodes, &expected,
               expected_last);

    const size_t scratch_bytes = treeattn_trie_scratch_bytes(&args);
    unsigned char *scratch = filled_array(scratch_bytes + 5, 1, FILL);
    int64_t n = -1;
    CHECK_OK(treeattn_tree_make_trie(&args, NULL, NULL, 0, NULL, &n, scratch + 5, scratch_bytes, &error));
    CHECK(n == expected.num_nodes, "%d nodes, not %d", (int)n, expected.num_nodes);
    int32_t *parents = filled_array((size_t)n, sizeof(int32_t), FILL);
    int32_t *tokens = filled_array((size_t)n, sizeof(int32_t), FILL);
    int32_t last[MAX_SEQUENCES + 1];
    CHECK_OK(treeattn_tree_make_trie(&args, parents, tokens, n, last, &n, scratch + 5, scratch_bytes, &error));
    CHECK_OK(treeattn_tree_check(n, parents, &error));
    assert_memory_equal(parents, expected.parents, (size_t)n * sizeof(int32_t));
    assert_memory_equal(tokens, expected.tokens, (size_t)n * sizeof(int32_t));
    assert_memory_equal(last, expected_last, (size_t)s.num_sequences * sizeof(int32_t));
    assert_true(still_filled(parents, (size_t)n, sizeof(int32_t), FILL));
    assert_true(still_filled(tokens, (size_t)n, sizeof(int32_t), FILL));
    assert_true(still_filled(scratch, scratch_bytes + 5, 1, FILL));
    free(parents);
    free(tokens);
    free(scratch);
  }
}

/* Two drafters and an n-gram: earlier sequences keep their order, the limit cuts the later ones. */
static void a_trie_by_hand(void **state) {
  (void)state;
  static const int32_t tokens[] = {5, 6, 7, 5, 6, 8, 9, 6, 5, 6, 7, 1};
  static const int32_t lengths[] = {3, 3, 0, 2, 4};
  static const int32_t expected_parents[] = {-1, 0, 1, 2, 2, 0, 5, 3};
  static const int32_t expected_tokens[] = {4, 5, 6, 7, 8, 9, 6, 1};
  static const int32_t expected_last[2][5] = {{3, 4, 0, 6, 7}, {3, 4, 0, 5, 3}};
  for (int limited = 0; limited <= 1; limited++) {
    treeattn_trie_args args = {sizeof args, tokens, 12, lengths, 5, 4, limited ? 6 : 0};
    unsigned char scratch[1024];
    int32_t parents[8];
    int32_t out[8];
    int32_t last[5];
    int64_t n = 0;
    CHECK_OK(treeattn_tree_make_trie(&args, parents, out, 8, last, &n, scratch, sizeof scratch, &error));
    assert_int_equal(n, limited ? 6 : 8);
    assert_memory_equal(parents, expected_parents, (size_t)n * sizeof(int32_t));
    assert_memory_equal(out, expected_tokens, (size_t)n * sizeof(int32_t));
    assert_memory_equal(last, expected_last[limited], sizeof last);
  }
}

static void merging_leaves_no_duplicate_siblings(void **state) {
  (void)state;
  for (int index = 0; index < trial_count(600, 100); index++) {
    rng r;
    trial_begin(&r, SALT + 1, index);
    const int n = rng_range(&r, 0, MAX_TOKENS);
    const int vocabulary = rng_range(&r, 1, 8);
    int32_t parents[MAX_TOKENS + 1];
    int32_t tokens[MAX_TOKENS + 1];
    tree_make((tree_shape)rng_below(&r, NUM_TREE_SHAPES), n, &r, parents);
    for (int i = 0; i < n; i++) {
      tokens[i] = rng_below(&r, vocabulary);
    }
    naive_tree expected;
    int32_t went[MAX_TOKENS + 1];
    expected.num_nodes = 0;
    for (int i = 0; i < n; i++) {
      went[i] = naive_child(&expected, parents[i] < 0 ? -1 : went[parents[i]], tokens[i], MAX_TOKENS);
    }
    const size_t scratch_bytes = treeattn_tree_merge_scratch_bytes(n);
    unsigned char *scratch = filled_array(scratch_bytes, 1, FILL);
    int32_t *merged_parents = filled_array((size_t)n, sizeof(int32_t), FILL);
    int32_t *merged_tokens = filled_array((size_t)n, sizeof(int32_t), FILL);
    int32_t *merged_nodes = filled_array((size_t)n, sizeof(int32_t), FILL);
    int64_t num_merged = -1;
    CHECK_OK(treeattn_tree_merge_duplicates(n, parents, tokens, NULL, NULL, 0, NULL, &num_merged, scratch,
                                            scratch_bytes, &error));
    assert_int_equal(num_merged, expected.num_nodes);
    CHECK_OK(treeattn_tree_merge_duplicates(n, parents, tokens, merged_parents, merged_tokens, num_merged, merged_nodes,
                                            &num_merged, scratch, scratch_bytes, &error));
    assert_memory_equal(merged_parents, expected.parents, (size_t)num_merged * sizeof(int32_t));
    assert_memory_equal(merged_tokens, expected.tokens, (size_t)num_merged * sizeof(int32_t));
    assert_memory_equal(merged_nodes, went, (size_t)n * sizeof(int32_t));
    assert_true(still_filled(merged_parents, (size_t)num_merged, sizeof(int32_t), FILL));
    assert_true(still_filled(merged_nodes, (size_t)n, sizeof(int32_t), FILL));
    assert_true(still_filled(scratch, scratch_bytes, 1, FILL));
    free(scratch);
    free(merged_parents);
    free(merged_tokens);
    free(merged_nodes);
  }
}

/* A star of 2^20 - 1 different tokens and one chain of as many: the table must not slow down with either. */
static void the_largest_tries_take_bounded_time(void **state) {
  (void)state;
  const int64_t n = test_quick() ? TREEATTN_TREE_MAX_NODES / 8 : TREEATTN_TREE_MAX_NODES;
  int32_t *tokens = malloc((size_t)n * sizeof *tokens);
  int32_t *lengths = malloc((size_t)n * sizeof *lengths);
  int32_t *parents = malloc((size_t)n * sizeof *parents);
  int32_t *out = malloc((size_t)n * sizeof *out);
  assert_true(tokens != NULL && lengths != NULL && parents != NULL && out != NULL);
  for (int64_t k = 0; k < n; k++) {
    tokens[k] = (int32_t)k;
    lengths[k] = 1;
  }
  treeattn_trie_args args = {sizeof args, tokens, n - 1, lengths, n - 1, 7, 0};
  const size_t scratch_bytes = treeattn_trie_scratch_bytes(&args);
  unsigned char *scratch = malloc(scratch_bytes);
  assert_non_null(scratch);
  int64_t made = 0;
  CHECK_OK(treeattn_tree_make_trie(&args, parents, out, n, NULL, &made, scratch, scratch_bytes, &error));
  assert_int_equal(made, n);
  assert_int_equal(parents[n - 1], 0);
  const int32_t whole[] = {(int32_t)(n - 1)};
  args.lengths = whole;
  args.num_sequences = 1;
  CHECK_OK(treeattn_tree_make_trie(&args, parents, out, n, NULL, &made, scratch, scratch_bytes, &error));
  assert_int_equal(made, n);
  assert_int_equal(parents[n - 1], n - 2);
  if (!test_quick()) {
    const int32_t longer[] = {(int32_t)n};
    args.lengths = longer;
    args.num_tokens = n;
    CHECK_ERROR(treeattn_tree_make_trie(&args, parents, out, n, NULL, &made, scratch, scratch_bytes, &error),
                TREEATTN_ERROR_INVALID_TREE, "1048576", "max_nodes", NULL);
  }
  free(tokens);
  free(lengths);
  free(parents);
  free(out);
  free(scratch);
}

static void bad_sequences_are_refused(void **state) {
  (void)state;
  int32_t tokens[] = {1, 2, 3};
  int32_t lengths[] = {1, 2};
  int32_t parents[4] = {9, 9, 9, 9};
  int32_t out[4] = {9, 9, 9, 9};
  int32_t last[2] = {9, 9};
  int64_t n = 9;
  unsigned char scratch[512];
  const treeattn_trie_args good = {sizeof good, tokens, 3, lengths, 2, TREEATTN_NO_TOKEN, 0};
  const treeattn_status invalid = TREEATTN_ERROR_INVALID_ARGUMENT;
  treeattn_trie_args args = good;
#define REFUSED(status, word_a, word_b)                                                                           \
  CHECK_ERROR(treeattn_tree_make_trie(&args, parents, out, 4, last, &n, scratch, sizeof scratch, &error), status, \
              word_a, word_b, NULL)
  tokens[1] = -5;
  REFUSED(invalid, "tokens[1] is -5", NULL);
  tokens[1] = 2;
  lengths[1] = 3;
  REFUSED(invalid, "lengths[1] is 3", "2 of num_tokens 3");
  lengths[1] = -1;
  REFUSED(invalid, "lengths[1] is -1", NULL);
  lengths[1] = 1;
  REFUSED(invalid, "num_tokens is 3", "add up to 2");
  lengths[1] = 2;
  args.num_tokens = -1;
  REFUSED(invalid, "num_tokens is -1", NULL);
  args = good;
  args.tokens = NULL;
  REFUSED(invalid, "tokens is NULL", NULL);
  args = good;
  args.lengths = NULL;
  REFUSED(invalid, "lengths is NULL", NULL);
  args = good;
  args.num_sequences = -1;
  REFUSED(invalid, "num_sequences is -1", NULL);
  args = good;
  args.root_token = -2;
  REFUSED(invalid, "root_token is -2", NULL);
  args = good;
  args.max_nodes = TREEATTN_TREE_MAX_NODES + 1;
  REFUSED(invalid, "max_nodes is 1048577", NULL);
  args.max_nodes = -1;
  REFUSED(invalid, "max_nodes is -1", NULL);
  args = good;
  args.struct_size = 0;
  REFUSED(invalid, "struct_size is 0", NULL);
  assert_int_equal(treeattn_trie_scratch_bytes(&args), 0);
  assert_int_equal(treeattn_trie_scratch_bytes(NULL), 0);
#undef REFUSED
  CHECK_ERROR(treeattn_tree_make_trie(&good, parents, out, 2, last, &n, scratch, sizeof scratch, &error),
              TREEATTN_ERROR_BUFFER_TOO_SMALL, "parents has room for 2", "3", NULL);
  CHECK_ERROR(treeattn_tree_make_trie(&good, parents, NULL, 4, last, &n, scratch, sizeof scratch, &error), invalid,
              "tokens is NULL", NULL, NULL);
  CHECK_ERROR(treeattn_tree_make_trie(&good, parents, out, 4, last, &n, scratch, 16, &error),
              TREEATTN_ERROR_BUFFER_TOO_SMALL, "scratch is 16", NULL, NULL);
  static const int32_t chain[] = {-1, 0, 1};
  tokens[2] = -1;
  CHECK_ERROR(
      treeattn_tree_merge_duplicates(3, chain, tokens, parents, out, 4, NULL, &n, scratch, sizeof scratch, &error),
      invalid, "tokens[2] is -1", NULL, NULL);
  tokens[2] = 3;
  CHECK_ERROR(
      treeattn_tree_merge_duplicates(3, chain, tokens, parents, out, 2, NULL, &n, scratch, sizeof scratch, &error),
      TREEATTN_ERROR_BUFFER_TOO_SMALL, "merged_parents", "3", NULL);
  assert_int_equal(n, 9);
  assert_int_equal(parents[0] + out[0] + last[0], 27);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tries_are_what_insertion_makes),
      cmocka_unit_test(a_trie_by_hand),
      cmocka_unit_test(merging_leaves_no_duplicate_siblings),
      cmocka_unit_test(the_largest_tries_take_bounded_time),
      cmocka_unit_test(bad_sequences_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
