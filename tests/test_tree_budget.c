/* SPDX-License-Identifier: Apache-2.0 */
/* The tree that pays best is found: against every small tree, and against the recurrence solved division by division. */
#include <math.h>
#include <string.h>

#include <treeattn/tree.h>

#include "support/tree_trials.h"

enum { SALT = 0x6275, FILL = 0x3c, MAX_ALL = 21, MAX_LEVELS = 8, MAX_RANKS = 8, MAX_NODES = 64 };

typedef struct market {
  double acceptance[MAX_LEVELS * MAX_RANKS];
  double verify_cost[MAX_NODES];
  double draft_cost[MAX_LEVELS + 1];
  treeattn_budget_args args;
} market;

static double rng_unit(rng *r) {
  return (double)(rng_next(r) >> 11) / 9007199254740992.0;
}

/* Rates of ranks that exclude each other; with few different values ties are common. */
static void make_market(rng *r, market *m, int num_levels, int num_ranks, int max_nodes) {
  const bool coarse = rng_chance(r, 3);
  for (int level = 0; level < num_levels; level++) {
    double left = 1.0;
    for (int rank = 0; rank < num_ranks; rank++) {
      double rate = coarse ? rng_below(r, 4) / 8.0 : rng_unit(r) * (rng_chance(r, 4) ? 0.1 : 0.8);
      rate = rate > left ? left : rate;
      left -= rate;
      m->acceptance[level * MAX_RANKS + rank] = rate;
    }
  }
  /* The library's array is dense. */
  for (int level = 0; level < num_levels; level++) {
    memmove(m->acceptance + level * num_ranks, m->acceptance + level * MAX_RANKS, (size_t)num_ranks * sizeof(double));
  }
  double cost = 0.5 + rng_unit(r);
  const bool stepped = rng_chance(r, 2);
  for (int n = 0; n < max_nodes; n++) {
    cost += stepped ? (n % 4 == 0) * rng_unit(r) * 0.3 : rng_unit(r) * 0.1;
    m->verify_cost[n] = coarse ? 1.0 : cost;
  }
  cost = 0.0;
  for (int level = 0; level <= num_levels; level++) {
    m->draft_cost[level] = cost;
    cost += rng_unit(r) * 0.2;
  }
  m->args = (treeattn_budget_args){sizeof m->args,
                                   m->acceptance,
                                   num_levels,
                                   num_ranks,
                                   m->verify_cost,
                                   max_nodes,
                                   rng_chance(r, 3) ? NULL : m->draft_cost};
}

typedef struct bought {
  int32_t parents[MAX_NODES];
  int32_t ranks[MAX_NODES];
  treeattn_budget_result result;
} bought;

static void buy(const market *m, bought *b) {
  size_t bytes = 0;
  CHECK_OK(treeattn_budget_scratch_bytes(&m->args, &bytes, &error));
  unsigned char *scratch = filled_array(bytes + 3, 1, FILL);
  treeattn_budget_result only_size;
  CHECK_OK(treeattn_tree_make_budget(&m->args, NULL, NULL, 0, &only_size, scratch + 3, bytes, &error));
  CHECK_OK(treeattn_tree_make_budget(&m->args, b->parents, b->ranks, only_size.num_nodes, &b->result, scratch + 3,
                                     bytes, &error));
  assert_memory_equal(&only_size, &b->result, sizeof only_size);
  assert_true(still_filled(scratch, bytes + 3, 1, FILL));
  free(scratch);
}

static double total_cost(const treeattn_budget_args *args, int64_t num_nodes, int64_t num_levels) {
  return args->verify_cost[num_nodes - 1] + (args->draft_cost != NULL ? args->draft_cost[num_levels] : 0.0);
}

static bool close_to(double a, double b) {
  return fabs(a - b) <= 1e-12 * fmax(fabs(a), fabs(b));
}

/* The result describes the tree that came with it: no rank twice, levels in order, tokens and cost as it says. */
static void check_bought(const market *m, const bought *b) {
  const treeattn_budget_args *args = &m->args;
  const int64_t n = b->result.num_nodes;
  double worth[MAX_NODES];
  int32_t depths[MAX_NODES];
  double expected = 0.0;
  CHECK_OK(treeattn_tree_get_depths(n, b->parents, depths, MAX_NODES, &error));
  for (int64_t i = 0; i < n; i++) {
    CHECK(i == 0 || (b->parents[i] >= b->parents[i - 1] && b->parents[i] >= 0), "node %d is out of order", (int)i);
    for (int64_t j = 1; j < i; j++) {
      CHECK(b->parents[j] != b->parents[i] || b->ranks[j] != b->ranks[i], "nodes %d and %d are one", (int)j, (int)i);
    }
    worth[i] = i == 0 ? 1.0 : worth[b->parents[i]] * args->acceptance[(depths[i] - 1) * args->num_ranks + b->ranks[i]];
    expected += worth[i];
  }
  const double cost = total_cost(args, n, depths[n - 1]);
  CHECK(depths[n - 1] == b->result.num_levels, "%d levels", depths[n - 1]);
  CHECK(close_to(b->result.expected_tokens, expected), "%.17g expected tokens, not %.17g", b->result.expected_tokens,
        expected);
  CHECK(b->result.cost == cost, "cost %.17g, not %.17g", b->result.cost, cost);
  CHECK(close_to(b->result.tokens_per_cost, expected / cost), "%.17g a cost", b->result.tokens_per_cost);
}

/* All nodes that there could be, level by level: the full tree of all ranks. */
typedef struct full_tree {
  int num_nodes;
  int parents[MAX_ALL];
  int depths[MAX_ALL];
  double worth[MAX_ALL];
} full_tree;

static full_tree make_full_tree(const treeattn_budget_args *args) {
  full_tree full = {1, {-1}, {0}, {1.0}};
  for (int i = 0; i < full.num_nodes; i++) {
    if (full.depths[i] == args->num_levels) {
      break;
    }
    for (int rank = 0; rank < args->num_ranks; rank++) {
      const int child = full.num_nodes++;
      full.parents[child] = i;
      full.depths[child] = full.depths[i] + 1;
      full.worth[child] = full.worth[i] * args->acceptance[full.depths[i] * args->num_ranks + rank];
    }
  }
  return full;
}

/* The best of all trees, each a set of nodes of the full tree that has every node's parent. */
static double best_of_all(const treeattn_budget_args *args, const full_tree *full) {
  double best = 0.0;
  for (uint32_t set = 1; set < UINT32_C(1) << full->num_nodes; set += 2) {
    double expected = 0.0;
    int num_nodes = 0;
    int levels = 0;
    bool whole = true;
    for (int i = 0; whole && i < full->num_nodes; i++) {
      if ((set >> i & 1) != 0) {
        whole = i == 0 || (set >> full->parents[i] & 1) != 0;
        expected += full->worth[i];
        levels = full->depths[i];
        num_nodes++;
      }
    }
    if (whole && num_nodes <= args->max_nodes) {
      best = fmax(best, expected / total_cost(args, num_nodes, levels));
    }
  }
  return best;
}

static void no_small_tree_is_better(void **state) {
  (void)state;
  static const int sizes[][2] = {{1, 1}, {1, 4}, {2, 1}, {2, 2}, {2, 3}, {3, 2}, {4, 1}, {7, 1}, {1, 8}};
  for (int index = 0; index < trial_count(500, 60); index++) {
    rng r;
    market m;
    bought b;
    trial_begin(&r, SALT, index);
    const int *size = PICK(&r, sizes);
    make_market(&r, &m, size[0], size[1], rng_range(&r, 1, 16));
    const full_tree full = make_full_tree(&m.args);
    buy(&m, &b);
    check_bought(&m, &b);
    const double best = best_of_all(&m.args, &full);
    CHECK(close_to(b.result.tokens_per_cost, best), "%.17g a cost, but %.17g is possible", b.result.tokens_per_cost,
          best);
  }
}

/* best(levels left, n) by trying every division of the nodes among the ranks, one rank after another. */
static double best_by_recurrence(const treeattn_budget_args *args, int last_level, double best[MAX_NODES + 1]) {
  const int max_nodes = (int)args->max_nodes;
  double below[MAX_NODES + 1];
  for (int depth = last_level; depth >= 0; depth--) {
    memcpy(below, best, sizeof below);
    double divided[MAX_NODES + 1]; /* the best of the ranks so far that use exactly so many nodes, -1 if none can */
    for (int n = 0; n <= max_nodes; n++) {
      divided[n] = n == 0 ? 0.0 : -1.0;
    }
    for (int rank = 0; depth < last_level && rank < args->num_ranks; rank++) {
      for (int n = max_nodes - 1; n > 0; n--) {
        for (int a = 1; a <= n; a++) {
          if (divided[n - a] >= 0.0 && below[a] >= 0.0) {
            divided[n] = fmax(divided[n], divided[n - a] + args->acceptance[depth * args->num_ranks + rank] * below[a]);
          }
        }
      }
    }
    best[0] = -1.0;
    for (int n = 1; n <= max_nodes; n++) {
      best[n] = divided[n - 1] >= 0.0 ? 1.0 + divided[n - 1] : -1.0;
    }
  }
  double rate = 0.0;
  for (int n = 1; n <= max_nodes; n++) {
    rate = best[n] > 0.0 ? fmax(rate, best[n] / total_cost(args, n, last_level)) : rate;
  }
  return rate;
}

static void the_recurrence_agrees(void **state) {
  (void)state;
  for (int index = 0; index < trial_count(150, 25); index++) {
    rng r;
    market m;
    bought b;
    trial_begin(&r, SALT + 1, index);
    make_market(&r, &m, rng_below(&r, MAX_LEVELS + 1), rng_range(&r, 0, MAX_RANKS), rng_range(&r, 1, MAX_NODES));
    buy(&m, &b);
    check_bought(&m, &b);
    double rate = 0.0;
    for (int levels = 0; levels <= m.args.num_levels; levels++) {
      double best[MAX_NODES + 1] = {0};
      rate = fmax(rate, best_by_recurrence(&m.args, levels, best));
    }
    CHECK(close_to(b.result.tokens_per_cost, rate), "%.17g a cost, %.17g by the recurrence", b.result.tokens_per_cost,
          rate);
  }
}

/* Small cases that can be read off. */
static void budgets_by_hand(void **state) {
  (void)state;
  static const double rates[] = {.5, .25, .5, .25};
  static const double flat[] = {1, 1, 1, 1, 1, 1, 1};
  static const double steep[] = {1, 2, 3, 4, 5, 6, 7};
  static const double drafting[] = {0, .1, 10};
  bought b;
  market m = {.args = {sizeof m.args, rates, 2, 2, flat, 7, NULL}};
  buy(&m, &b);
  static const int32_t parents[] = {-1, 0, 0, 1, 1, 2, 2};
  static const int32_t ranks[] = {-1, 0, 1, 0, 1, 0, 1};
  assert_int_equal(b.result.num_nodes, 7);
  assert_memory_equal(b.parents, parents, sizeof parents);
  assert_memory_equal(b.ranks, ranks, sizeof ranks);
  assert_true(b.result.expected_tokens == 1 + .5 + .25 + .25 + .125 + .125 + .0625);

  m.args.max_nodes = 4;
  buy(&m, &b);
  assert_int_equal(b.result.num_nodes, 4);
  assert_true(b.result.expected_tokens == 2.0);

  m.args.verify_cost = steep;
  buy(&m, &b);
  assert_int_equal(b.result.num_nodes, 1);
  assert_int_equal(b.result.num_levels, 0);

  m.args.verify_cost = flat;
  m.args.draft_cost = drafting;
  buy(&m, &b);
  assert_int_equal(b.result.num_nodes, 3);
  assert_int_equal(b.result.num_levels, 1);
  assert_true(b.result.cost == 1.1);

  static const double nothing[] = {0, 0, 0, 0};
  m.args.acceptance = nothing;
  m.args.draft_cost = NULL;
  buy(&m, &b);
  assert_int_equal(b.result.num_nodes, 1);

  static const double certain[] = {0, 1, 1, 0};
  static const int32_t certain_ranks[] = {-1, 1, 0};
  m.args.acceptance = certain; /* the second rank, then the first: ranks may have gaps */
  buy(&m, &b);
  assert_int_equal(b.result.num_nodes, 3);
  assert_memory_equal(b.ranks, certain_ranks, sizeof certain_ranks);
}

static void bad_rates_and_costs_are_refused(void **state) {
  (void)state;
  double rates[] = {.5, .25, .5, .25};
  double verify[] = {1, 1, 1};
  double draft[] = {0, .1, .2};
  int32_t parents[3] = {9, 9, 9};
  unsigned char scratch[1024];
  treeattn_budget_result result = {9, 9, 9, 9, 9};
  const treeattn_budget_args good = {sizeof good, rates, 2, 2, verify, 3, draft};
  treeattn_budget_args args = good;
  const treeattn_status invalid = TREEATTN_ERROR_INVALID_ARGUMENT;
  const treeattn_status value = TREEATTN_ERROR_INVALID_VALUE;
#define REFUSED(status, word_a, word_b)                                                                             \
  CHECK_ERROR(treeattn_tree_make_budget(&args, parents, NULL, 3, &result, scratch, sizeof scratch, &error), status, \
              word_a, word_b, NULL)
  static const double bad[] = {NAN, -.5, 1.5, INFINITY};
  for (int k = 0; k < 4; k++) {
    rates[2] = bad[k];
    REFUSED(value, "acceptance[1][0]", "0 to 1");
  }
  rates[2] = .5;
  static const double bad_cost[] = {NAN, -1, 0, INFINITY};
  for (int k = 0; k < 4; k++) {
    verify[1] = bad_cost[k];
    REFUSED(value, "verify_cost[1]", "finite");
  }
  verify[1] = 1;
  draft[2] = .05;
  REFUSED(value, "draft_cost[2] is 0.05", "draft_cost[1]");
  draft[2] = NAN;
  REFUSED(value, "draft_cost[2]", "finite");
  draft[2] = .2;
  args.struct_size = 2;
  REFUSED(invalid, "struct_size is 2", NULL);
  args = good;
  args.max_nodes = 0;
  REFUSED(invalid, "max_nodes is 0", NULL);
  args.max_nodes = TREEATTN_TREE_MAX_NODES + 1;
  REFUSED(invalid, "max_nodes is 1048577", NULL);
  args = good;
  args.num_levels = -1;
  REFUSED(invalid, "num_levels is -1", NULL);
  args.num_levels = INT64_MAX;
  REFUSED(invalid, "num_levels", NULL);
  args = good;
  args.num_ranks = -1;
  REFUSED(invalid, "num_ranks is -1", NULL);
  args = good;
  args.acceptance = NULL;
  REFUSED(invalid, "acceptance is NULL", NULL);
  args = good;
  args.verify_cost = NULL;
  REFUSED(invalid, "verify_cost is NULL", NULL);
#undef REFUSED
  CHECK_ERROR(treeattn_tree_make_budget(&good, parents, NULL, 2, &result, scratch, sizeof scratch, &error),
              TREEATTN_ERROR_BUFFER_TOO_SMALL, "parents has room for 2", "3", NULL);
  CHECK_ERROR(treeattn_tree_make_budget(&good, parents, NULL, 3, &result, scratch, 30, &error),
              TREEATTN_ERROR_BUFFER_TOO_SMALL, "scratch is 30", NULL, NULL);
  CHECK_ERROR(treeattn_tree_make_budget(&good, parents, NULL, 3, NULL, scratch, sizeof scratch, &error), invalid,
              "result is NULL", NULL, NULL);
  assert_int_equal(parents[0] + parents[1] + parents[2], 27);
  assert_int_equal(result.num_nodes, 9);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_small_tree_is_better),
      cmocka_unit_test(the_recurrence_agrees),
      cmocka_unit_test(budgets_by_hand),
      cmocka_unit_test(bad_rates_and_costs_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
