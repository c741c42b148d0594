/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from the parents agrees with walking up from each node, and malformed parents are refused by number. */
#include <string.h>
#include <time.h>

#include <treeattn/tree.h>

#include "support/tree_trials.h"

enum { SALT = 0x7431, FILL = 0x5a };

static int naive_depth(const int32_t *parents, int i) {
  int depth = 0;
  while (parents[i] >= 0) {
    i = parents[i];
    depth++;
  }
  return depth;
}

static void depths_and_positions_follow_the_walk(void **state) {
  (void)state;
  for (int index = 0; index < tree_trial_count(); index++) {
    rng r;
    tree_trial t = tree_trial_new(&r, SALT, index);
    const int n = t.num_nodes;
    int32_t *depths = filled_array((size_t)n, sizeof(int32_t), FILL);
    int32_t *positions = filled_array((size_t)n, sizeof(int32_t), FILL);
    const int32_t prefix_len = rng_chance(&r, 4) ? INT32_MAX - n : rng_below(&r, 100000);
    CHECK_OK(treeattn_tree_check(n, t.parents, &error));
    CHECK_OK(treeattn_tree_get_depths(n, t.parents, depths, n, &error));
    CHECK_OK(treeattn_tree_get_positions(n, t.parents, prefix_len, positions, n, &error));
    for (int i = 0; i < n; i++) {
      const int expected = naive_depth(t.parents, i);
      CHECK(depths[i] == expected, "depth of node %d is %d, not %d", i, depths[i], expected);
      CHECK(positions[i] == prefix_len + expected, "position of node %d is %d", i, positions[i]);
    }
    assert_true(still_filled(depths, (size_t)n, sizeof(int32_t), FILL));
    assert_true(still_filled(positions, (size_t)n, sizeof(int32_t), FILL));
    free(depths);
    free(positions);
    tree_trial_free(&t);
  }
}

/* The children of `parent` by looking at every node. */
static int naive_children(const tree_trial *t, int parent, int32_t *children) {
  int count = 0;
  for (int i = 0; i < t->num_nodes; i++) {
    if (t->parents[i] == parent) {
      children[count++] = i;
    }
  }
  return count;
}

static void children_and_links_list_the_same(void **state) {
  (void)state;
  for (int index = 0; index < tree_trial_count(); index++) {
    rng r;
    tree_trial t = tree_trial_new(&r, SALT + 1, index);
    const int n = t.num_nodes;
    int32_t *begins = filled_array((size_t)n + 1, sizeof(int32_t), FILL);
    int32_t *children = filled_array((size_t)n, sizeof(int32_t), FILL);
    int32_t *first = filled_array((size_t)n, sizeof(int32_t), FILL);
    int32_t *next = filled_array((size_t)n, sizeof(int32_t), FILL);
    int32_t *expected = filled_array((size_t)n, sizeof(int32_t), 0);
    CHECK_OK(treeattn_tree_get_children(n, t.parents, begins, n + 1, children, n, &error));
    CHECK_OK(treeattn_tree_get_links(n, t.parents, first, next, n, &error));
    assert_int_equal(begins[n], n);
    for (int parent = -1; parent < n; parent++) {
      const int count = naive_children(&t, parent, expected);
      const int begin = parent < 0 ? 0 : begins[parent];
      CHECK(begins[parent + 1] - begin == count, "node %d has %d children, not %d", parent, begins[parent + 1] - begin,
            count);
      assert_memory_equal(children + begin, expected, (size_t)count * sizeof(int32_t));
      int32_t child = parent >= 0 ? first[parent] : (n > 0 ? 0 : -1);
      for (int k = 0; k < count; k++) {
        CHECK(child == expected[k], "child %d of node %d is %d, not %d", k, parent, child, expected[k]);
        child = next[child];
      }
      assert_int_equal(child, -1);
    }
    assert_true(still_filled(begins, (size_t)n + 1, sizeof(int32_t), FILL));
    assert_true(still_filled(children, (size_t)n, sizeof(int32_t), FILL));
    assert_true(still_filled(first, (size_t)n, sizeof(int32_t), FILL));
    assert_true(still_filled(next, (size_t)n, sizeof(int32_t), FILL));
    free(begins);
    free(children);
    free(first);
    free(next);
    free(expected);
    tree_trial_free(&t);
  }
}

static void check_path(const tree_trial *t, int leaf, const int32_t *path, int64_t path_len) {
  int i = leaf;
  for (int64_t place = path_len - 1; place >= 0; place--) {
    CHECK(path[place] == i, "path of node %d has %d at place %d, not %d", leaf, path[place], (int)place, i);
    i = t->parents[i];
  }
  CHECK(i == -1, "path of node %d does not begin at a root", leaf);
}

static void leaves_paths_and_counts(void **state) {
  (void)state;
  for (int index = 0; index < tree_trial_count(); index++) {
    rng r;
    tree_trial t = tree_trial_new(&r, SALT + 2, index);
    const int n = t.num_nodes;
    treeattn_tree_counts expected = {0, 0, 0, 0};
    int32_t *work = filled_array((size_t)n, sizeof(int32_t), 0);
    int32_t *leaves = filled_array((size_t)n, sizeof(int32_t), FILL);
    int64_t num_leaves = -1;
    CHECK_OK(treeattn_tree_get_leaves(n, t.parents, leaves, n, &num_leaves, &error));
    assert_true(still_filled(leaves, (size_t)n, sizeof(int32_t), FILL));
    for (int i = 0; i < n; i++) {
      const int count = naive_children(&t, i, work);
      if (count == 0) {
        CHECK(expected.num_leaves < num_leaves && leaves[expected.num_leaves] == i, "leaf %d is missing", i);
        expected.num_leaves++;
      }
      expected.max_children = count > expected.max_children ? count : expected.max_children;
      const int levels = naive_depth(t.parents, i) + 1;
      expected.num_levels = levels > expected.num_levels ? levels : expected.num_levels;
      expected.num_roots += t.parents[i] < 0;
    }
    assert_int_equal(num_leaves, expected.num_leaves);

    treeattn_tree_counts counts;
    const size_t scratch_bytes = treeattn_tree_counts_scratch_bytes(n);
    unsigned char *scratch = filled_array(scratch_bytes + 1, 1, FILL);
    CHECK_OK(treeattn_tree_get_counts(n, t.parents, &counts, scratch + 1, scratch_bytes, &error));
    assert_true(still_filled(scratch, scratch_bytes + 1, 1, FILL));
    assert_memory_equal(&counts, &expected, sizeof counts);
    free(scratch);

    const int64_t stride = expected.num_levels + rng_below(&r, 3);
    const size_t elements = (size_t)(num_leaves * stride);
    if (elements < 4000000) {
      int32_t *paths = filled_array(elements, sizeof(int32_t), FILL);
      int32_t *path = filled_array((size_t)n, sizeof(int32_t), FILL);
      CHECK_OK(treeattn_tree_get_paths(n, t.parents, leaves, num_leaves, paths, stride, (int64_t)elements, &error));
      assert_true(still_filled(paths, elements, sizeof(int32_t), FILL));
      for (int64_t row = 0; row < num_leaves; row++) {
        int64_t length = -1;
        CHECK_OK(treeattn_tree_get_path(n, t.parents, leaves[row], path, n, &length, &error));
        check_path(&t, leaves[row], path, length);
        assert_memory_equal(path, paths + row * stride, (size_t)length * sizeof(int32_t));
        for (int64_t place = length; place < stride; place++) {
          assert_int_equal(paths[row * stride + place], -1);
        }
      }
      free(paths);
      free(path);
    }
    free(work);
    free(leaves);
    tree_trial_free(&t);
  }
}

/* Siblings share a position, the root has P itself, whatever the node's number. */
static void positions_follow_depth_not_slot(void **state) {
  (void)state;
  static const int32_t parents[] = {-1, 0, 0, 1, 1, 2};
  static const int32_t expected[] = {0, 1, 1, 2, 2, 2};
  static const int64_t prefixes[] = {7, 0};
  for (int k = 0; k < 2; k++) {
    int32_t positions[6];
    CHECK_OK(treeattn_tree_get_positions(6, parents, prefixes[k], positions, 6, &error));
    for (int i = 0; i < 6; i++) {
      assert_int_equal(positions[i], prefixes[k] + expected[i]);
    }
  }
}

/* ---- refusals ---- */

typedef struct bad_tree {
  int num_nodes;
  int32_t parents[6];
  const char *word;
  const char *reason;
} bad_tree;

static const bad_tree bad_trees[] = {
    {3, {-1, 0, 3}, "parents[2] is 3", "no such node"},
    {3, {-1, 0, 1000000}, "parents[2] is 1000000", "no such node"},
    {3, {-1, INT32_MAX, 0}, "parents[1] is 2147483647", "no such node"},
    {3, {-1, -2, 0}, "parents[1] is -2", "-1 for a root"},
    {3, {-1, 0, INT32_MIN}, "parents[2] is -2147483648", "-1 for a root"},
    {2, {-1, 1}, "parents[1] is 1", "its own parent"},
    {1, {0}, "parents[0] is 0", "its own parent"},
    {2, {1, 0}, "parents[0] is 1", "before its child"},
    {4, {-1, 2, 1, 0}, "parents[1] is 2", "before its child"},
    {6, {-1, 0, 0, 4, 3, 5}, "parents[3] is 4", "before its child"},
};

/* Every function that takes parents says the same about them and writes nothing. */
static void malformed_trees_are_refused_by_number(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof bad_trees / sizeof bad_trees[0]; k++) {
    const bad_tree *bad = &bad_trees[k];
    const int n = bad->num_nodes;
    unsigned char out[1024];
    unsigned char clean[sizeof out];
    unsigned char scratch[1024];
    int64_t number = 77;
    treeattn_tree_counts counts = {7, 7, 7, 7};
    memset(out, FILL, sizeof out);
    memset(clean, FILL, sizeof clean);
    int32_t *ints = (int32_t *)(void *)out;
    int32_t *more = ints + 32;
    const treeattn_status invalid = TREEATTN_ERROR_INVALID_TREE;
#define REFUSED(call) CHECK_ERROR(call, invalid, bad->word, bad->reason, NULL)
    REFUSED(treeattn_tree_check(n, bad->parents, &error));
    REFUSED(treeattn_tree_get_depths(n, bad->parents, ints, 32, &error));
    REFUSED(treeattn_tree_get_positions(n, bad->parents, 5, ints, 32, &error));
    REFUSED(treeattn_tree_get_counts(n, bad->parents, &counts, scratch, sizeof scratch, &error));
    REFUSED(treeattn_tree_get_children(n, bad->parents, ints, 32, more, 32, &error));
    REFUSED(treeattn_tree_get_links(n, bad->parents, ints, more, 32, &error));
    REFUSED(treeattn_tree_get_leaves(n, bad->parents, ints, 32, &number, &error));
    REFUSED(treeattn_tree_get_path(n, bad->parents, n - 1, ints, 32, &number, &error));
    REFUSED(treeattn_tree_get_paths(n, bad->parents, bad->parents, 0, ints, 8, 64, &error));
    REFUSED(treeattn_tree_get_intervals(n, bad->parents, ints, 32, &error));
    REFUSED(treeattn_tree_get_mask_bits(n, bad->parents, 3, out, 0, sizeof out, &error));
    REFUSED(treeattn_tree_get_mask_bool(n, bad->parents, 3, out, 0, sizeof out, &error));
    REFUSED(treeattn_tree_get_mask_f32(n, bad->parents, 3, (float *)(void *)out, 0, sizeof out, &error));
    REFUSED(treeattn_tree_merge_duplicates(n, bad->parents, more, ints, ints + 8, 8, ints + 16, &number, scratch,
                                           sizeof scratch, &error));
#undef REFUSED
    assert_memory_equal(out, clean, sizeof out);
    assert_int_equal(number, 77);
    assert_int_equal(counts.num_roots, 7);
    assert_int_equal(treeattn_tree_check(n, bad->parents, NULL), invalid);
  }
}

static void sizes_are_checked_before_anything_is_read(void **state) {
  (void)state;
  int32_t parents[1] = {-1};
  int32_t out[1] = {42};
  CHECK_ERROR(treeattn_tree_check(TREEATTN_TREE_MAX_NODES + 1, parents, &error), TREEATTN_ERROR_INVALID_TREE, "1048577",
              "1048576", NULL);
  CHECK_ERROR(treeattn_tree_check(INT64_MAX, parents, &error), TREEATTN_ERROR_INVALID_TREE, "num_nodes", NULL, NULL);
  CHECK_ERROR(treeattn_tree_check(-1, parents, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "num_nodes is -1", NULL, NULL);
  CHECK_ERROR(treeattn_tree_check(3, NULL, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "parents is NULL", "3", NULL);
  CHECK_ERROR(treeattn_tree_get_depths(1, parents, out, 0, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL, "depths", "1",
              "0");
  CHECK_ERROR(treeattn_tree_get_depths(1, parents, NULL, 1, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "depths is NULL",
              NULL, NULL);
  CHECK_ERROR(treeattn_tree_get_positions(1, parents, -1, out, 1, &error), TREEATTN_ERROR_INVALID_ARGUMENT,
              "prefix_len is -1", NULL, NULL);
  CHECK_ERROR(treeattn_tree_get_positions(1, parents, INT32_MAX, out, 1, &error), TREEATTN_ERROR_OVERFLOW, "prefix_len",
              "2147483647", NULL);
  CHECK_ERROR(treeattn_tree_get_positions(1, parents, INT64_MAX, out, 1, &error), TREEATTN_ERROR_OVERFLOW, "prefix_len",
              NULL, NULL);
  int64_t length = 9;
  CHECK_ERROR(treeattn_tree_get_path(1, parents, 1, out, 1, &length, &error), TREEATTN_ERROR_INVALID_ARGUMENT,
              "node is 1", "num_nodes is 1", NULL);
  CHECK_ERROR(treeattn_tree_get_path(1, parents, -1, out, 1, &length, &error), TREEATTN_ERROR_INVALID_ARGUMENT,
              "node is -1", NULL, NULL);
  CHECK_ERROR(treeattn_tree_get_path(1, parents, 0, out, 0, &length, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL, "path",
              "1", NULL);
  const int32_t rows[] = {0, 1};
  CHECK_ERROR(treeattn_tree_get_paths(1, parents, rows, 2, out, 1, 1, &error), TREEATTN_ERROR_INVALID_ARGUMENT,
              "nodes[1] is 1", NULL, NULL);
  CHECK_ERROR(treeattn_tree_get_paths(1, parents, rows, 1, out, 0, 1, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL,
              "row_stride is 0", "1 nodes", NULL);
  CHECK_ERROR(treeattn_tree_get_paths(1, parents, rows, 1, out, INT64_MAX, 1, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL,
              "paths", NULL, NULL);
  treeattn_tree_counts counts;
  CHECK_ERROR(treeattn_tree_get_counts(1, parents, &counts, NULL, 100, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL,
              "scratch is NULL", NULL, NULL);
  unsigned char scratch[64];
  CHECK_ERROR(treeattn_tree_get_counts(1, parents, &counts, scratch, treeattn_tree_counts_scratch_bytes(1) - 1, &error),
              TREEATTN_ERROR_BUFFER_TOO_SMALL, "scratch", NULL, NULL);
  assert_int_equal(out[0], 42);
  assert_int_equal(length, 9);
  assert_int_equal(treeattn_tree_counts_scratch_bytes(-1), 0);
  assert_int_equal(treeattn_tree_counts_scratch_bytes(TREEATTN_TREE_MAX_NODES + 1), 0);
}

/* Empty, single and star trees have documented answers, and none of them is an error. */
static void degenerate_trees_have_answers(void **state) {
  (void)state;
  treeattn_tree_counts counts = {9, 9, 9, 9};
  unsigned char scratch[64];
  int64_t num_leaves = 9;
  int32_t begins[2] = {9, 9};
  CHECK_OK(treeattn_tree_check(0, NULL, &error));
  CHECK_OK(treeattn_tree_get_depths(0, NULL, NULL, 0, &error));
  CHECK_OK(treeattn_tree_get_positions(0, NULL, 7, NULL, 0, &error));
  CHECK_OK(treeattn_tree_get_children(0, NULL, begins, 1, NULL, 0, &error));
  CHECK_OK(treeattn_tree_get_leaves(0, NULL, NULL, 0, &num_leaves, &error));
  CHECK_OK(treeattn_tree_get_counts(0, NULL, &counts, scratch, treeattn_tree_counts_scratch_bytes(0), &error));
  CHECK_OK(treeattn_tree_get_paths(0, NULL, NULL, 0, NULL, 0, 0, &error));
  CHECK_OK(treeattn_tree_get_intervals(0, NULL, NULL, 0, &error));
  CHECK_OK(treeattn_tree_get_mask_bits(0, NULL, 5, NULL, 0, 0, &error));
  CHECK_OK(treeattn_tree_get_mask_f32(0, NULL, 5, NULL, 0, 0, &error));
  assert_int_equal(begins[0], 0);
  assert_int_equal(num_leaves, 0);
  assert_int_equal(counts.num_levels, 0);

  const int32_t star[] = {-1, 0, 0, 0};
  CHECK_OK(treeattn_tree_get_counts(4, star, &counts, scratch, sizeof scratch, &error));
  assert_int_equal(counts.num_roots, 1);
  assert_int_equal(counts.num_leaves, 3);
  assert_int_equal(counts.num_levels, 2);
  assert_int_equal(counts.max_children, 3);
}

/* The largest trees are answered, and the largest malformed ones refused, in far less than a second. */
static void the_largest_trees_take_bounded_time(void **state) {
  (void)state;
  const int64_t n = TREEATTN_TREE_MAX_NODES;
  int32_t *parents = malloc((size_t)n * sizeof *parents);
  int32_t *out = malloc((size_t)(2 * n + 2) * sizeof *out);
  unsigned char *scratch = malloc(treeattn_tree_from_intervals_scratch_bytes(n));
  assert_non_null(parents);
  assert_non_null(out);
  assert_non_null(scratch);
  const clock_t started = clock();
  CHECK_OK(treeattn_tree_make_chain(n, parents, n, &error));
  CHECK_OK(treeattn_tree_get_depths(n, parents, out, n, &error));
  assert_int_equal(out[n - 1], n - 1);
  CHECK_OK(treeattn_tree_get_intervals(n, parents, out, n, &error));
  assert_int_equal(out[2 * (n - 1)], n - 1);
  assert_int_equal(out[1], n);
  int32_t *back = malloc((size_t)n * sizeof *back);
  assert_non_null(back);
  CHECK_OK(
      treeattn_tree_from_intervals(n, out, back, n, scratch, treeattn_tree_from_intervals_scratch_bytes(n), &error));
  assert_memory_equal(back, parents, (size_t)n * sizeof *back);
  parents[n - 1] = (int32_t)(n - 1);
  CHECK_ERROR(treeattn_tree_get_intervals(n, parents, out, n, &error), TREEATTN_ERROR_INVALID_TREE, "parents[1048575]",
              NULL, NULL);
  const double seconds = (double)(clock() - started) / CLOCKS_PER_SEC;
  CHECK(seconds < 10.0, "%g seconds", seconds);
  free(parents);
  free(out);
  free(scratch);
  free(back);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(depths_and_positions_follow_the_walk),
      cmocka_unit_test(children_and_links_list_the_same),
      cmocka_unit_test(leaves_paths_and_counts),
      cmocka_unit_test(positions_follow_depth_not_slot),
      cmocka_unit_test(malformed_trees_are_refused_by_number),
      cmocka_unit_test(sizes_are_checked_before_anything_is_read),
      cmocka_unit_test(degenerate_trees_have_answers),
      cmocka_unit_test(the_largest_trees_take_bounded_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
