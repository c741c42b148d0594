/* SPDX-License-Identifier: Apache-2.0 */
/* Fixed shapes are the ones that their definitions say, and lists of choices are merged, ordered and refused as promised. */
#include <stdio.h>
#include <string.h>

#include <treeattn/tree.h>

#include "support/tree_trials.h"

enum { SALT = 0x7368, FILL = 0x3c };

/* Lists in the published form: paths of child ranks, written as text with a blank between entries. */
typedef struct choice_text {
  int32_t ranks[2048];
  int32_t lengths[512];
  treeattn_tree_choices choices;
} choice_text;

static void parse_choices(const char *text, choice_text *list) {
  int64_t num_ranks = 0;
  int64_t num_choices = 0;
  for (const char *at = text; *at != '\0'; at++) {
    if (*at == '[') {
      list->lengths[num_choices++] = 0;
    } else if (*at >= '0' && *at <= '9') {
      char *end = NULL;
      list->ranks[num_ranks++] = (int32_t)strtol(at, &end, 10);
      list->lengths[num_choices - 1]++;
      at = end - 1;
    }
  }
  list->choices = (treeattn_tree_choices){list->ranks, num_ranks, list->lengths, num_choices};
}

static const char medusa_mc_sim_7b_63[] =
    "[0][0,0][1][0,1][2][0,0,0][1,0][0,2][3][0,3][4][0,4][2,0][0,5][0,0,1][5][0,6][6][0,7][0,1,0][1,1][7][0,8][0,0,2]"
    "[3,0][0,9][8][9][1,0,0][0,2,0][1,2][0,0,3][4,0][2,1][0,0,4][0,0,5][0,0,0,0][0,1,1][0,0,6][0,3,0][5,0][1,3][0,0,7]"
    "[0,0,8][0,0,9][6,0][0,4,0][1,4][7,0][0,1,2][2,0,0][3,1][2,2][8,0][0,5,0][1,5][1,0,1][0,2,1][9,0][0,6,0][0,0,0,1]"
    "[1,6][0,7,0]";

static const char eagle_mc_sim_7b_63[] =
    "[0][1][2][3][0,0][0,1][0,2][1,0][1,1][2,0][2,1][3,0][0,0,0][0,0,1][0,0,2][0,1,0][0,1,1][0,2,0][0,2,1][1,0,0]"
    "[0,0,0,0][0,0,0,1][0,0,0,2][0,0,0,0,0][0,0,0,0,1]";

typedef struct made_tree {
  int64_t num_nodes;
  int32_t *parents;
  int32_t *ranks;
} made_tree;

static made_tree make_choices(const treeattn_tree_choices *choices) {
  made_tree made = {-1, NULL, NULL};
  const size_t scratch_bytes = treeattn_tree_choices_scratch_bytes(choices->num_choices);
  unsigned char *scratch = filled_array(scratch_bytes + 3, 1, FILL);
  CHECK_OK(treeattn_tree_make_choices(choices, NULL, NULL, 0, &made.num_nodes, scratch + 3, scratch_bytes, &error));
  const size_t n = (size_t)made.num_nodes;
  made.parents = filled_array(n, sizeof(int32_t), FILL);
  made.ranks = filled_array(n, sizeof(int32_t), FILL);
  int64_t again = -1;
  CHECK_OK(treeattn_tree_make_choices(choices, made.parents, made.ranks, made.num_nodes, &again, scratch + 3,
                                      scratch_bytes, &error));
  assert_int_equal(again, made.num_nodes);
  assert_true(still_filled(scratch, scratch_bytes + 3, 1, FILL));
  assert_true(still_filled(made.parents, n, sizeof(int32_t), FILL));
  assert_true(still_filled(made.ranks, n, sizeof(int32_t), FILL));
  free(scratch);
  CHECK_OK(treeattn_tree_check(made.num_nodes, made.parents, &error));
  return made;
}

static void free_made(made_tree *made) {
  free(made->parents);
  free(made->ranks);
}

/* The path of ranks from the root to a node, as text. */
static void print_node(const made_tree *made, int64_t node, char *text, size_t bytes) {
  int32_t path[64];
  int length = 0;
  for (int64_t i = node; i > 0; i = made->parents[i]) {
    path[length++] = made->ranks[i];
  }
  size_t used = (size_t)snprintf(text, bytes, "[");
  for (int k = length - 1; k >= 0; k--) {
    used += (size_t)snprintf(text + used, bytes - used, k > 0 ? "%d," : "%d", path[k]);
  }
  (void)snprintf(text + used, bytes - used, "]");
}

/* Every published entry is a node, every node but the root is an entry. */
static void check_published(const char *name, const char *text, int64_t num_choices) {
  choice_text list;
  parse_choices(text, &list);
  assert_int_equal(list.choices.num_choices, num_choices);
  made_tree made = make_choices(&list.choices);
  assert_int_equal(made.num_nodes, num_choices + 1);
  for (int64_t node = 1; node < made.num_nodes; node++) {
    char path[64];
    print_node(&made, node, path, sizeof path);
    CHECK(strstr(text, path) != NULL, "node %d is %s", (int)node, path);
  }
  int32_t *named = filled_array((size_t)made.num_nodes, sizeof(int32_t), FILL);
  int64_t num_named = -1;
  CHECK_OK(treeattn_tree_make_named(name, NULL, 0, &num_named, &error));
  assert_int_equal(num_named, made.num_nodes);
  CHECK_OK(treeattn_tree_make_named(name, named, num_named, &num_named, &error));
  assert_memory_equal(named, made.parents, (size_t)num_named * sizeof(int32_t));
  free(named);
  free_made(&made);
}

static void published_lists_are_reproduced(void **state) {
  (void)state;
  check_published("medusa-mc_sim_7b_63", medusa_mc_sim_7b_63, 63);
  check_published("eagle-mc_sim_7b_63", eagle_mc_sim_7b_63, 25);
}

/* All named shapes are whole, and level by level, which is what their order by length means. */
static void named_shapes_are_whole(void **state) {
  (void)state;
  int64_t index = 0;
  for (const char *name; (name = treeattn_tree_named_at(index)) != NULL; index++) {
    int32_t parents[64];
    int32_t depths[64];
    int64_t num_nodes = -1;
    CHECK_OK(treeattn_tree_make_named(name, parents, 64, &num_nodes, &error));
    CHECK(num_nodes == (strncmp(name, "medusa", 6) == 0 ? 64 : 26), "%s has %d nodes", name, (int)num_nodes);
    CHECK_OK(treeattn_tree_get_depths(num_nodes, parents, depths, 64, &error));
    for (int64_t i = 1; i < num_nodes; i++) {
      CHECK(parents[i] >= parents[i - 1] && depths[i] >= depths[i - 1], "%s: node %d out of order", name, (int)i);
    }
    CHECK(depths[num_nodes - 1] <= 5, "%s has depth %d", name, depths[num_nodes - 1]);
  }
  assert_int_equal(index, 10);
  assert_null(treeattn_tree_named_at(-1));
  int32_t parents[64];
  int64_t num_nodes = 5;
  CHECK_ERROR(treeattn_tree_make_named("medusa", parents, 64, &num_nodes, &error), TREEATTN_ERROR_INVALID_ARGUMENT,
              "medusa", "no shape", NULL);
  CHECK_ERROR(treeattn_tree_make_named(NULL, parents, 64, &num_nodes, &error), TREEATTN_ERROR_INVALID_ARGUMENT,
              "name is NULL", NULL, NULL);
  CHECK_ERROR(treeattn_tree_make_named("eagle-mc_sim_7b_63", parents, 25, &num_nodes, &error),
              TREEATTN_ERROR_BUFFER_TOO_SMALL, "25", "26", NULL);
  assert_int_equal(num_nodes, 5);
}

/* A random tree as a list: every path once or more, in any order, gives back the tree level by level. */
static void any_order_gives_one_tree(void **state) {
  (void)state;
  for (int index = 0; index < trial_count(300, 60); index++) {
    rng r;
    trial_begin(&r, SALT, index);
    const int n = rng_range(&r, 1, 60);
    int32_t parents[60];
    int32_t rank[60];
    int32_t next_rank[60] = {0};
    parents[0] = -1;
    for (int i = 1; i < n; i++) {
      parents[i] = rng_chance(&r, 2) ? rng_below(&r, i) : i - 1;
      next_rank[parents[i]] += rng_chance(&r, 4) ? rng_range(&r, 1, 5) : 0; /* a gap */
      rank[i] = next_rank[parents[i]]++;
    }
    int32_t order[120];
    const int num_entries = n + rng_below(&r, n + 1);
    for (int k = 0; k < num_entries; k++) {
      order[k] = k < n ? k : rng_below(&r, n); /* the root is listed too, as the empty path */
    }
    rng_shuffle(&r, order, num_entries);
    int32_t *ranks = filled_array((size_t)num_entries * 60, sizeof(int32_t), 0);
    int32_t lengths[120];
    int64_t num_ranks = 0;
    for (int k = 0; k < num_entries; k++) {
      int32_t path[60];
      int length = 0;
      for (int i = order[k]; i > 0; i = parents[i]) {
        path[length++] = rank[i];
      }
      lengths[k] = length;
      while (length > 0) {
        ranks[num_ranks++] = path[--length];
      }
    }
    const treeattn_tree_choices choices = {ranks, num_ranks, lengths, num_entries};
    made_tree made = make_choices(&choices);
    assert_int_equal(made.num_nodes, n);
    /* Ordered by length, then by the parent's place and the rank: both follow from lexicographic order. */
    int32_t depths[60];
    CHECK_OK(treeattn_tree_get_depths(n, made.parents, depths, 60, &error));
    assert_int_equal(made.ranks[0], -1);
    for (int i = 1; i < n; i++) {
      const bool later = depths[i] > depths[i - 1] || made.parents[i] > made.parents[i - 1] ||
                         (made.parents[i] == made.parents[i - 1] && made.ranks[i] > made.ranks[i - 1]);
      CHECK(depths[i] >= depths[i - 1] && made.parents[i] >= made.parents[i - 1] && later, "node %d is out of order",
            i);
    }
    /* Each listed path leads from the root to a node. */
    for (int k = 0, at = 0; k < num_entries; at += lengths[k], k++) {
      int32_t node = 0;
      for (int place = 0; place < lengths[k]; place++) {
        int32_t child = -1;
        for (int i = 1; i < n; i++) {
          child = made.parents[i] == node && made.ranks[i] == ranks[at + place] ? i : child;
        }
        CHECK(child > 0, "entry %d is not in the tree", k);
        node = child;
      }
    }
    free_made(&made);
    free(ranks);
  }
}

static void choices_that_are_no_tree_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *text;
    const char *entry;
    const char *reason;
  } bad[] = {
      {"[0][1][1,2,0][1,1]", "choices[2] is [1, 2, 0]", "its ancestor [1, 2] is not in the list"},
      {"[0,0]", "choices[0] is [0, 0]", "its ancestor [0]"},
      {"[0][0,0,0,0][0,0]", "choices[1] is [0, 0, 0, 0]", "its ancestor [0, 0, 0]"},
      {"[2][1][2,0][0,0]", "choices[3] is [0, 0]", "its ancestor [0]"},
      {"[0][0,3,1][0,0,1]", "choices[1]", "[0, 3]"},
  };
  unsigned char scratch[4096];
  for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
    choice_text list;
    int32_t parents[8] = {9, 9, 9, 9, 9, 9, 9, 9};
    int64_t num_nodes = 9;
    parse_choices(bad[k].text, &list);
    CHECK_ERROR(
        treeattn_tree_make_choices(&list.choices, parents, NULL, 8, &num_nodes, scratch, sizeof scratch, &error),
        TREEATTN_ERROR_INVALID_TREE, bad[k].entry, bad[k].reason, NULL);
    assert_int_equal(parents[0], 9);
    assert_int_equal(num_nodes, 9);
  }
  /* A path too long to print is cut, not overrun. */
  static int32_t deep[200];
  const int32_t deep_length[] = {200};
  int64_t num_nodes = 9;
  for (int k = 0; k < 200; k++) {
    deep[k] = INT32_MAX - k;
  }
  const treeattn_tree_choices choices = {deep, 200, deep_length, 1};
  CHECK_ERROR(treeattn_tree_make_choices(&choices, NULL, NULL, 0, &num_nodes, scratch, sizeof scratch, &error),
              TREEATTN_ERROR_INVALID_TREE, "choices[0]", "...", "is not in the list");
}

static void choice_sizes_are_checked(void **state) {
  (void)state;
  unsigned char scratch[4096];
  int64_t num_nodes = 9;
  int32_t parents[4];
  choice_text list;
  parse_choices("[0][1][0,0]", &list);
  const treeattn_status invalid = TREEATTN_ERROR_INVALID_ARGUMENT;
#define REFUSED(status, word_a, word_b)                                                                         \
  CHECK_ERROR(                                                                                                  \
      treeattn_tree_make_choices(&list.choices, parents, NULL, 3, &num_nodes, scratch, sizeof scratch, &error), \
      status, word_a, word_b, NULL)
  REFUSED(TREEATTN_ERROR_BUFFER_TOO_SMALL, "parents has room for 3", "4");
  list.ranks[2] = -1;
  REFUSED(TREEATTN_ERROR_INVALID_TREE, "choices[2][0] is -1", NULL);
  list.ranks[2] = 0;
  list.choices.num_ranks = 3;
  REFUSED(invalid, "lengths[2] is 2", "1 of num_ranks 3");
  list.choices.num_ranks = 5;
  REFUSED(invalid, "num_ranks is 5", "add up to 4");
  list.choices.num_ranks = 4;
  list.lengths[1] = -1;
  REFUSED(invalid, "lengths[1] is -1", NULL);
  list.lengths[1] = 1;
  list.choices.num_choices = -1;
  REFUSED(invalid, "num_choices is -1", NULL);
  list.choices.num_choices = 3;
  list.choices.ranks = NULL;
  REFUSED(invalid, "ranks is NULL", NULL);
  list.choices.ranks = list.ranks;
  list.choices.lengths = NULL;
  REFUSED(invalid, "lengths is NULL", NULL);
#undef REFUSED
  list.choices.lengths = list.lengths;
  CHECK_ERROR(treeattn_tree_make_choices(&list.choices, NULL, NULL, 0, &num_nodes, scratch, 8, &error),
              TREEATTN_ERROR_BUFFER_TOO_SMALL, "scratch is 8", NULL, NULL);
  CHECK_ERROR(treeattn_tree_make_choices(NULL, NULL, NULL, 0, &num_nodes, scratch, 8, &error), invalid,
              "choices is NULL", NULL, NULL);
  assert_int_equal(num_nodes, 9);

  /* Nothing but the root. */
  const treeattn_tree_choices empty = {NULL, 0, NULL, 0};
  CHECK_OK(treeattn_tree_make_choices(&empty, parents, NULL, 4, &num_nodes, scratch, sizeof scratch, &error));
  assert_int_equal(num_nodes, 1);
  assert_int_equal(parents[0], -1);
}

static void chains_and_regular_branchings(void **state) {
  (void)state;
  static const int chain_sizes[] = {0, 1, 2, 31, 32, 33, 64, 1000};
  int32_t parents[4096];
  int64_t num_nodes = -1;
  for (size_t k = 0; k < sizeof chain_sizes / sizeof chain_sizes[0]; k++) {
    CHECK_OK(treeattn_tree_make_chain(chain_sizes[k], parents, 4096, &error));
    for (int i = 0; i < chain_sizes[k]; i++) {
      assert_int_equal(parents[i], i - 1);
    }
  }
  for (int arity = 1; arity <= 5; arity++) {
    for (int depth = 0; depth <= 5; depth++) {
      int64_t expected = 1;
      for (int64_t level = 1, width = 1; level <= depth; level++) {
        expected += width *= arity;
      }
      CHECK_OK(treeattn_tree_make_kary(arity, depth, NULL, 0, &num_nodes, &error));
      CHECK(num_nodes == expected, "%d-ary, depth %d: %d nodes", arity, depth, (int)num_nodes);
      CHECK_OK(treeattn_tree_make_kary(arity, depth, parents, num_nodes, &num_nodes, &error));
      for (int64_t i = 1; i < num_nodes; i++) {
        assert_int_equal(parents[i], (i - 1) / arity); /* a heap's numbering */
      }
    }
  }
  static const int32_t branching[] = {3, 2, 1};
  static const int32_t expected[] = {-1, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9};
  CHECK_OK(treeattn_tree_make_branching(branching, 3, parents, 16, &num_nodes, &error));
  assert_int_equal(num_nodes, 16);
  assert_memory_equal(parents, expected, sizeof expected);
  static const int32_t stopped[] = {2, 0, 1000000000};
  CHECK_OK(treeattn_tree_make_branching(stopped, 3, parents, 3, &num_nodes, &error));
  assert_int_equal(num_nodes, 3);
  CHECK_OK(treeattn_tree_make_branching(NULL, 0, parents, 1, &num_nodes, &error));
  assert_int_equal(num_nodes, 1);
  CHECK_OK(treeattn_tree_make_kary(0, 1000, parents, 1, &num_nodes, &error));
  assert_int_equal(num_nodes, 1);
}

static void shapes_that_do_not_fit_are_refused(void **state) {
  (void)state;
  int32_t parents[4] = {9, 9, 9, 9};
  int64_t num_nodes = 9;
  const treeattn_status too_large = TREEATTN_ERROR_INVALID_TREE;
  const treeattn_status invalid = TREEATTN_ERROR_INVALID_ARGUMENT;
  static const int32_t negative[] = {2, -1};
  static const int32_t huge[] = {INT32_MAX, INT32_MAX};
  CHECK_OK(treeattn_tree_make_kary(2, 19, NULL, 0, &num_nodes, &error));
  assert_int_equal(num_nodes, TREEATTN_TREE_MAX_NODES - 1);
  CHECK_OK(treeattn_tree_make_kary(1, TREEATTN_TREE_MAX_NODES - 1, NULL, 0, &num_nodes, &error));
  assert_int_equal(num_nodes, TREEATTN_TREE_MAX_NODES);
  num_nodes = 9;
  CHECK_ERROR(treeattn_tree_make_kary(2, 20, NULL, 0, &num_nodes, &error), too_large, "level 20", "1048576", NULL);
  CHECK_ERROR(treeattn_tree_make_kary(1, INT64_MAX, NULL, 0, &num_nodes, &error), too_large, "level 1048576", NULL,
              NULL);
  CHECK_ERROR(treeattn_tree_make_kary(INT64_MAX, 5, NULL, 0, &num_nodes, &error), too_large, "level 1", NULL, NULL);
  CHECK_ERROR(treeattn_tree_make_branching(huge, 2, NULL, 0, &num_nodes, &error), too_large, "level 1", NULL, NULL);
  CHECK_ERROR(treeattn_tree_make_branching(negative, 2, parents, 4, &num_nodes, &error), invalid, "branching[1] is -1",
              NULL, NULL);
  CHECK_ERROR(treeattn_tree_make_branching(NULL, 2, parents, 4, &num_nodes, &error), invalid, "branching is NULL", NULL,
              NULL);
  CHECK_ERROR(treeattn_tree_make_kary(-1, 2, parents, 4, &num_nodes, &error), invalid, "arity is -1", NULL, NULL);
  CHECK_ERROR(treeattn_tree_make_kary(2, -1, parents, 4, &num_nodes, &error), invalid, "depth is -1", NULL, NULL);
  CHECK_ERROR(treeattn_tree_make_kary(2, 2, parents, 4, &num_nodes, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL, "4", "7",
              NULL);
  CHECK_ERROR(treeattn_tree_make_kary(2, 2, parents, 4, NULL, &error), invalid, "num_nodes is NULL", NULL, NULL);
  CHECK_ERROR(treeattn_tree_make_chain(-1, parents, 4, &error), invalid, "num_nodes is -1", NULL, NULL);
  CHECK_ERROR(treeattn_tree_make_chain(5, parents, 4, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL, "4", "5", NULL);
  CHECK_ERROR(treeattn_tree_make_chain(TREEATTN_TREE_MAX_NODES + 1, parents, 4, &error), too_large, "1048577", NULL,
              NULL);
  assert_int_equal(num_nodes, 9);
  assert_int_equal(parents[0] + parents[1] + parents[2] + parents[3], 36);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(published_lists_are_reproduced),     cmocka_unit_test(named_shapes_are_whole),
      cmocka_unit_test(any_order_gives_one_tree),           cmocka_unit_test(choices_that_are_no_tree_are_refused),
      cmocka_unit_test(choice_sizes_are_checked),           cmocka_unit_test(chains_and_regular_branchings),
      cmocka_unit_test(shapes_that_do_not_fit_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
