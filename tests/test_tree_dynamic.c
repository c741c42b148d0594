/* SPDX-License-Identifier: Apache-2.0 */
/* Dynamic growth is the published rule: the best k of each level are expanded, the best N of all are kept. */
#include <math.h>
#include <string.h>

#include <treeattn/tree.h>

#include "support/tree_trials.h"

enum { SALT = 0x6479, FILL = 0x3c, MAX_PROPOSED = 1200, MAX_CHILDREN = 12, MAX_FRONTIER = 12 };

/* A draft model: the children that a node gets depend on its path alone, which `path` stands for. */
typedef struct draft {
  uint64_t seed;
  int max_children;
  int num_levels_of_score; /* few: ties are common */
  bool ragged;
} draft;

typedef struct proposal {
  int count;
  int32_t tokens[MAX_CHILDREN];
  float log_probs[MAX_CHILDREN];
} proposal;

static proposal propose(const draft *d, uint64_t path) {
  rng r = {d->seed ^ path * UINT64_C(0x9e3779b97f4a7c15)};
  proposal p = {d->max_children, {0}, {0}};
  if (d->ragged) {
    p.count = rng_below(&r, d->max_children + 1);
  }
  for (int rank = 0; rank < p.count; rank++) {
    p.tokens[rank] = rng_below(&r, 1000);
    const int level = rng_below(&r, d->num_levels_of_score);
    p.log_probs[rank] = rng_chance(&r, 30) ? -INFINITY : -(float)level / 8.0f;
  }
  return p;
}

/* The rule written down once more, without any of the library's means: everything proposed, in order. */
typedef struct naive_growth {
  int num_proposed;
  int num_frontier;
  int32_t parents[MAX_PROPOSED];
  int32_t tokens[MAX_PROPOSED];
  double values[MAX_PROPOSED];
  uint64_t paths[MAX_PROPOSED];
  bool taken[MAX_PROPOSED];
  int32_t frontier[MAX_FRONTIER];
  int32_t drafted[MAX_PROPOSED];
  int num_drafted;
} naive_growth;

/* The best node of [begin, end) that is not taken, the first of equals; -1 if there is none. */
static int naive_best(const naive_growth *g, int begin, int end) {
  int best = -1;
  for (int i = begin; i < end; i++) {
    if (!g->taken[i] && (best < 0 || g->values[i] > g->values[best])) {
      best = i;
    }
  }
  return best;
}

static void naive_level(naive_growth *g, const draft *d, int top_k) {
  const int begin = g->num_proposed;
  for (int row = 0; row < g->num_frontier; row++) {
    const int32_t parent = g->frontier[row];
    const proposal p = propose(d, g->paths[parent]);
    for (int rank = 0; rank < p.count; rank++) {
      const int i = g->num_proposed++;
      g->parents[i] = parent;
      g->tokens[i] = p.tokens[rank];
      g->values[i] = g->values[parent] + (double)p.log_probs[rank];
      g->paths[i] = g->paths[parent] * 31 + (uint64_t)rank + 1;
      g->taken[i] = false;
    }
  }
  g->num_frontier = 0;
  for (int best; g->num_frontier < top_k && (best = naive_best(g, begin, g->num_proposed)) >= 0;) {
    g->taken[best] = true;
    g->frontier[g->num_frontier++] = best;
    g->drafted[g->num_drafted++] = best;
  }
}

static void naive_start(naive_growth *g, int32_t root_token) {
  memset(g, 0, sizeof *g);
  g->num_proposed = 1;
  g->num_frontier = 1;
  g->num_drafted = 1;
  g->parents[0] = -1;
  g->tokens[0] = root_token;
  g->paths[0] = 1;
}

/* keeps[i] for the best max_nodes of all. */
static int naive_select(naive_growth *g, int64_t max_nodes) {
  int num_kept = 0;
  memset(g->taken, 0, sizeof g->taken);
  for (int best; num_kept < max_nodes && (best = naive_best(g, 0, g->num_proposed)) >= 0; num_kept++) {
    g->taken[best] = true;
  }
  return num_kept;
}

/* The level that the frontier asks for, in rows. */
static void add_level(treeattn_growth *growth, const draft *d, const naive_growth *g, int row_stride) {
  int32_t tokens[MAX_FRONTIER * (MAX_CHILDREN + 2)];
  float log_probs[MAX_FRONTIER * (MAX_CHILDREN + 2)];
  int32_t counts[MAX_FRONTIER];
  for (int k = 0; k < MAX_FRONTIER * (MAX_CHILDREN + 2); k++) {
    tokens[k] = -7; /* what lies behind a row's count must not be looked at */
    log_probs[k] = NAN;
  }
  for (int row = 0; row < g->num_frontier; row++) {
    const proposal p = propose(d, g->paths[g->frontier[row]]);
    counts[row] = p.count;
    memcpy(tokens + row * row_stride, p.tokens, (size_t)p.count * sizeof(int32_t));
    memcpy(log_probs + row * row_stride, p.log_probs, (size_t)p.count * sizeof(float));
  }
  CHECK_OK(treeattn_growth_add_level(growth, tokens, log_probs, d->ragged ? counts : NULL, row_stride, &error));
}

static void check_frontier(const treeattn_growth *growth, const naive_growth *g, bool ended) {
  int32_t frontier[MAX_FRONTIER];
  int64_t num_frontier = -1;
  CHECK_OK(treeattn_growth_get_frontier(growth, frontier, MAX_FRONTIER, &num_frontier, &error));
  CHECK(num_frontier == (ended ? 0 : g->num_frontier), "frontier of %d", (int)num_frontier);
  assert_memory_equal(frontier, g->frontier, (size_t)num_frontier * sizeof(int32_t));
}

static void check_drafted(const treeattn_growth *growth, const naive_growth *g, int num_drafted) {
  int32_t parents[MAX_PROPOSED];
  int32_t proposed[MAX_PROPOSED];
  int64_t n = -1;
  CHECK_OK(treeattn_growth_get_drafted(growth, parents, proposed, MAX_PROPOSED, &n, &error));
  assert_int_equal(n, num_drafted);
  assert_memory_equal(proposed, g->drafted, (size_t)n * sizeof(int32_t));
  CHECK_OK(treeattn_tree_check(n, parents, &error));
  for (int64_t e = 1; e < n; e++) {
    assert_int_equal(proposed[parents[e]], g->parents[proposed[e]]);
  }
}

static void check_selection(treeattn_growth *growth, naive_growth *g, int64_t max_nodes) {
  int32_t parents[MAX_PROPOSED];
  int32_t tokens[MAX_PROPOSED];
  int32_t proposed[MAX_PROPOSED];
  double values[MAX_PROPOSED];
  int64_t n = -1;
  const int expected = naive_select(g, max_nodes);
  CHECK_OK(treeattn_growth_select(growth, max_nodes, NULL, NULL, NULL, NULL, 0, &n, &error));
  assert_int_equal(n, expected);
  CHECK_OK(treeattn_growth_select(growth, max_nodes, parents, tokens, values, proposed, n, &n, &error));
  assert_int_equal(n, expected);
  CHECK_OK(treeattn_tree_check(n, parents, &error));
  int at = 0;
  for (int i = 0; i < g->num_proposed; i++) {
    if (!g->taken[i]) {
      continue;
    }
    CHECK(at < n && proposed[at] == i, "kept node %d is %d, not %d", at, proposed[at], i);
    assert_int_equal(tokens[at], g->tokens[i]);
    assert_true(values[at] == g->values[i]);
    CHECK(i == 0 ? parents[at] == -1 : proposed[parents[at]] == g->parents[i], "the parent of kept node %d is wrong",
          at);
    at++;
  }
}

static void growth_is_the_published_rule(void **state) {
  (void)state;
  for (int index = 0; index < trial_count(1200, 150); index++) {
    rng r;
    naive_growth g;
    trial_begin(&r, SALT, index);
    const int top_k = rng_range(&r, 1, 10);
    const draft d = {rng_next(&r), rng_range(&r, 1, 10), rng_chance(&r, 2) ? 4 : 1000000, rng_chance(&r, 3)};
    const int max_levels = rng_below(&r, 7);
    treeattn_growth_args args = TREEATTN_GROWTH_ARGS_INIT;
    args.root_token = rng_below(&r, 1000);
    args.top_k = top_k;
    args.max_children = d.max_children == top_k ? 0 : d.max_children;
    args.max_levels = max_levels;
    size_t bytes = 0;
    CHECK_OK(treeattn_growth_bytes(&args, &bytes, &error));
    unsigned char *memory = filled_array(bytes + 8, 1, FILL);
    treeattn_growth *growth = NULL;
    CHECK_OK(treeattn_growth_init(&args, memory + rng_below(&r, 8), bytes, &growth, &error));
    naive_start(&g, args.root_token);
    const int stride = d.max_children + rng_below(&r, 3);
    for (int level = 0; level < max_levels && g.num_frontier > 0; level++) {
      const int drafted = g.num_drafted;
      check_frontier(growth, &g, false);
      add_level(growth, &d, &g, stride);
      naive_level(&g, &d, top_k);
      const bool ended = level + 1 == max_levels;
      check_frontier(growth, &g, ended);
      check_drafted(growth, &g, ended ? drafted : g.num_drafted);
      check_selection(growth, &g, rng_below(&r, g.num_proposed + 2));
      /* Selecting in the naive growth used up its marks; the next level marks only its own nodes. */
    }
    int32_t parents[MAX_PROPOSED];
    int64_t n = -1;
    CHECK_OK(treeattn_growth_get_proposed(growth, parents, NULL, NULL, MAX_PROPOSED, &n, &error));
    assert_int_equal(n, g.num_proposed);
    assert_memory_equal(parents, g.parents, (size_t)n * sizeof(int32_t));
    check_selection(growth, &g, 0);
    check_selection(growth, &g, 1);
    check_selection(growth, &g, INT64_MAX);
    assert_true(still_filled(memory, bytes + 8, 1, FILL));
    free(memory);
  }
}

/* The tree of a queue that pops the best node and admits all its children, as {parent, token} in order of popping. */
static int queue_tree(const float *probabilities, int max_nodes, int32_t *parents, int32_t *tokens) {
  naive_growth g;
  naive_start(&g, 0);
  int num_popped = 0;
  int32_t place[MAX_PROPOSED];
  for (int best; num_popped < max_nodes && (best = naive_best(&g, 0, g.num_proposed)) >= 0; num_popped++) {
    g.taken[best] = true;
    place[best] = num_popped;
    parents[num_popped] = best == 0 ? -1 : place[g.parents[best]];
    tokens[num_popped] = g.tokens[best];
    for (int rank = 0; rank < 2; rank++) {
      const int i = g.num_proposed++;
      g.parents[i] = best;
      g.tokens[i] = 2 * g.tokens[best] + 1 + rank;
      g.values[i] = g.values[best] + log((double)probabilities[g.tokens[i]]);
      g.taken[i] = false;
    }
  }
  return num_popped;
}

/*
 * Tokens are numbered like a heap: 0 has the children 1 and 2, 1 has 3 and 4, 2 has 5 and 6. With one expansion a level, node 2
 * is proposed and kept but never expanded, so its likely child 5 is never proposed. A queue that admits every child of
 * what it pops takes 5, worth .45 * .9, before 3, worth .5 * .6, and needs a draft step for node 2 that the rule does not grant.
 */
static void growth_is_not_a_best_first_queue(void **state) {
  (void)state;
  static const float probabilities[] = {1, .5f, .45f, .6f, .4f, .9f, .1f, .5f, .5f, .5f, .5f, .5f, .5f, .5f, .5f};
  treeattn_growth_args args = {sizeof args, 0, 1, 2, 2};
  unsigned char memory[1024];
  treeattn_growth *growth = NULL;
  CHECK_OK(treeattn_growth_init(&args, memory, sizeof memory, &growth, &error));
  int32_t frontier[1];
  int64_t n = 0;
  for (;;) {
    CHECK_OK(treeattn_growth_get_frontier(growth, frontier, 1, &n, &error));
    if (n == 0) {
      break;
    }
    int32_t all[8];
    int64_t num_all = 0;
    CHECK_OK(treeattn_growth_get_proposed(growth, NULL, all, NULL, 8, &num_all, &error));
    const int32_t first = 2 * all[frontier[0]] + 1;
    const int32_t tokens[] = {first, first + 1};
    const float log_probs[] = {logf(probabilities[first]), logf(probabilities[first + 1])};
    CHECK_OK(treeattn_growth_add_level(growth, tokens, log_probs, NULL, 0, &error));
  }
  static const int32_t kept_parents[] = {-1, 0, 0, 1};
  static const int32_t kept_tokens[] = {0, 1, 2, 3};
  int32_t parents[8];
  int32_t tokens[8];
  CHECK_OK(treeattn_growth_select(growth, 4, parents, tokens, NULL, NULL, 8, &n, &error));
  assert_int_equal(n, 4);
  assert_memory_equal(parents, kept_parents, sizeof kept_parents);
  assert_memory_equal(tokens, kept_tokens, sizeof kept_tokens);

  static const int32_t queued_parents[] = {-1, 0, 0, 2};
  static const int32_t queued_tokens[] = {0, 1, 2, 5};
  assert_int_equal(queue_tree(probabilities, 4, parents, tokens), 4);
  assert_memory_equal(parents, queued_parents, sizeof queued_parents);
  assert_memory_equal(tokens, queued_tokens, sizeof queued_tokens);
}

static void bad_scores_are_refused_with_the_node(void **state) {
  (void)state;
  treeattn_growth_args args = {sizeof args, 3, 2, 2, 3};
  unsigned char memory[1024];
  treeattn_growth *growth = NULL;
  CHECK_OK(treeattn_growth_init(&args, memory, sizeof memory, &growth, &error));
  static const int32_t tokens[] = {1, 2, 3, 4};
  static const float good[] = {-.5f, -INFINITY, -1, 0};
  CHECK_OK(treeattn_growth_add_level(growth, tokens, good, NULL, 0, &error));
  static const float bad[][4] = {{-1, NAN, -1, -1}, {-1, -1, -1, INFINITY}, {-1, -1, 0.25f, -1}};
  static const char *const nodes[] = {"node 4", "node 6", "node 5"};
  unsigned char before[sizeof memory];
  memcpy(before, memory, sizeof memory);
  for (int k = 0; k < 3; k++) {
    CHECK_ERROR(treeattn_growth_add_level(growth, tokens, bad[k], NULL, 0, &error), TREEATTN_ERROR_INVALID_VALUE,
                nodes[k], "log_probs", "at most 0");
  }
  static const int32_t bad_tokens[] = {1, 2, -3, 4};
  static const int32_t bad_counts[] = {1, 3};
  CHECK_ERROR(treeattn_growth_add_level(growth, bad_tokens, good, NULL, 0, &error), TREEATTN_ERROR_INVALID_ARGUMENT,
              "tokens[1][0]", "node 5", "-3");
  CHECK_ERROR(treeattn_growth_add_level(growth, tokens, good, bad_counts, 0, &error), TREEATTN_ERROR_INVALID_ARGUMENT,
              "counts[1] is 3", "max_children 2", NULL);
  CHECK_ERROR(treeattn_growth_add_level(growth, tokens, good, NULL, 1, &error), TREEATTN_ERROR_INVALID_ARGUMENT,
              "row_stride is 1", "2", NULL);
  CHECK_ERROR(treeattn_growth_add_level(growth, NULL, good, NULL, 0, &error), TREEATTN_ERROR_INVALID_ARGUMENT,
              "tokens is NULL", NULL, NULL);
  assert_memory_equal(before, memory, sizeof memory);
  /* -infinity is a value like another: such nodes come last, the lower index first. */
  int32_t parents[8];
  int32_t proposed[8];
  double values[8];
  int64_t n = 0;
  CHECK_OK(treeattn_growth_add_level(growth, tokens, good, NULL, 0, &error));
  CHECK_OK(treeattn_growth_select(growth, 5, parents, NULL, values, proposed, 8, &n, &error));
  static const int32_t expected[] = {0, 1, 2, 3, 4};
  assert_memory_equal(proposed, expected, sizeof expected);
  assert_true(values[2] == -INFINITY && values[4] == -INFINITY && values[3] == -1.0);
}

static void growth_sizes_are_checked(void **state) {
  (void)state;
  unsigned char memory[4096];
  treeattn_growth *growth = NULL;
  size_t bytes = 9;
  const treeattn_growth_args good = {sizeof good, 0, 2, 0, 1};
  treeattn_growth_args args = good;
  const treeattn_status invalid = TREEATTN_ERROR_INVALID_ARGUMENT;
#define REFUSED(status, word_a, word_b)                                                    \
  CHECK_ERROR(treeattn_growth_bytes(&args, &bytes, &error), status, word_a, word_b, NULL); \
  CHECK_ERROR(treeattn_growth_init(&args, memory, sizeof memory, &growth, &error), status, word_a, word_b, NULL)
  args.top_k = 0;
  REFUSED(invalid, "top_k is 0", NULL);
  args = good;
  args.max_children = -1;
  REFUSED(invalid, "max_children is -1", NULL);
  args = good;
  args.max_levels = -1;
  REFUSED(invalid, "max_levels is -1", NULL);
  args = good;
  args.root_token = -1;
  REFUSED(invalid, "root_token is -1", NULL);
  args = good;
  args.struct_size = 1;
  REFUSED(invalid, "struct_size is 1", NULL);
  args = good;
  args.top_k = 1024;
  args.max_levels = 3;
  REFUSED(TREEATTN_ERROR_INVALID_TREE, "top_k 1024", "1048576");
  args = good;
  args.max_levels = INT64_MAX;
  REFUSED(TREEATTN_ERROR_INVALID_TREE, "max_levels", NULL);
  args = good;
  args.max_children = INT64_MAX;
  REFUSED(TREEATTN_ERROR_INVALID_TREE, "max_children", NULL);
  args.max_children = 0;
  args.top_k = INT64_MAX;
  REFUSED(TREEATTN_ERROR_INVALID_TREE, "top_k", NULL);
#undef REFUSED
  assert_null(growth);
  assert_int_equal(bytes, 9);
  args = good;
  args.top_k = INT64_MAX;
  args.max_children = 3;
  CHECK_OK(treeattn_growth_bytes(&args, &bytes, &error));
  CHECK_ERROR(treeattn_growth_init(&args, memory, bytes - 1, &growth, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL,
              "memory", NULL, NULL);
  CHECK_OK(treeattn_growth_init(&args, memory, bytes, &growth, &error));
  static const int32_t tokens[] = {1, 2, 3};
  static const float log_probs[] = {-1, -2, -3};
  CHECK_OK(treeattn_growth_add_level(growth, tokens, log_probs, NULL, 0, &error));
  CHECK_ERROR(treeattn_growth_add_level(growth, tokens, log_probs, NULL, 0, &error), invalid, "frontier is empty",
              "1 of max_levels 1", NULL);
  int32_t parents[4];
  int64_t n = 9;
  CHECK_ERROR(treeattn_growth_select(growth, 4, parents, NULL, NULL, NULL, 3, &n, &error),
              TREEATTN_ERROR_BUFFER_TOO_SMALL, "3", "4", NULL);
  CHECK_ERROR(treeattn_growth_select(growth, -1, parents, NULL, NULL, NULL, 3, &n, &error), invalid, "max_nodes is -1",
              NULL, NULL);
  CHECK_ERROR(treeattn_growth_get_proposed(growth, parents, NULL, NULL, 3, &n, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL,
              "3", "4", NULL);
  CHECK_ERROR(treeattn_growth_get_frontier(NULL, parents, 3, &n, &error), invalid, "growth is NULL", NULL, NULL);
  assert_int_equal(n, 9);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(growth_is_the_published_rule),
      cmocka_unit_test(growth_is_not_a_best_first_queue),
      cmocka_unit_test(bad_scores_are_refused_with_the_node),
      cmocka_unit_test(growth_sizes_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
