/* SPDX-License-Identifier: Apache-2.0 */
/* The tree whose expected tokens are worth its cost the most, by dynamic programming over the levels. */
#include <math.h>

#include "tree.h"

/*
 * Let best(d, n) be the most that a subtree of n nodes is worth whose root has depth d, the levels ending at D:
 *
 *     best(d, 0) = 0
 *     best(d, n) = 1 + max over a_0 + a_1 + ... = n - 1 of  sum over ranks r of  rate(d, r) * best(d + 1, a_r)
 *
 * gain(d, n) = best(d, n) - best(d, n - 1) never grows with n and starts at 1: at the last level there is only the
 * root's 1; above it the maximum over divisions of sums of such sequences, scaled by rates of at most 1, takes the
 * gains of all ranks in falling order. So gain(d, .) is 1 followed by the merge of rate(d, r) * gain(d + 1, .), and no
 * division has to be tried.
 */
typedef struct merge_entry {
  double gain;
  int64_t rank;
  int64_t taken; /* nodes that the rank has got */
} merge_entry;

typedef struct budget {
  int64_t max_nodes;
  int64_t max_levels;
  int64_t num_ranks;
  const double *acceptance;
  double *gains;          /* [max_levels + 1][max_nodes]: gain(d, n + 1), as far as num_gains says */
  int32_t *picks;         /* [max_levels + 1][max_nodes]: the rank that node n + 1 of a subtree belongs to */
  int64_t *num_gains;     /* [max_levels + 1] */
  merge_entry *heap;      /* [num_ranks] */
  int32_t *child_of_rank; /* [num_ranks], -1 outside of build_tree's loop */
  int32_t *subtree_nodes; /* [max_nodes], as the next */
  int32_t *depths;
} budget;

static bool entry_before(const merge_entry *a, const merge_entry *b) {
  return a->gain != b->gain ? a->gain > b->gain : a->rank < b->rank;
}

static void heap_sift_down(merge_entry *heap, int64_t size, int64_t top) {
  const merge_entry entry = heap[top];
  for (;;) {
    int64_t child = 2 * top + 1;
    if (child >= size) {
      break;
    }
    if (child + 1 < size && entry_before(&heap[child + 1], &heap[child])) {
      child++;
    }
    if (!entry_before(&heap[child], &entry)) {
      break;
    }
    heap[top] = heap[child];
    top = child;
  }
  heap[top] = entry;
}

/* The ranks of a node of depth d, each with its first node's gain. */
static int64_t merge_start(const budget *b, int64_t depth) {
  int64_t size = 0;
  for (int64_t rank = 0; rank < b->num_ranks; rank++) {
    const double rate = b->acceptance[depth * b->num_ranks + rank];
    if (rate > 0.0) {
      const merge_entry entry = {rate, rank, 0};
      b->heap[size++] = entry;
    }
  }
  for (int64_t top = size / 2 - 1; top >= 0; top--) {
    heap_sift_down(b->heap, size, top);
  }
  return size;
}

/* Gives one node more to the rank on top and returns how many ranks are still to be served. */
static int64_t merge_advance(const budget *b, int64_t depth, int64_t size) {
  merge_entry *top = &b->heap[0];
  top->taken++;
  if (top->taken < b->num_gains[depth + 1]) {
    const double rate = b->acceptance[depth * b->num_ranks + top->rank];
    top->gain = rate * b->gains[(depth + 1) * b->max_nodes + top->taken];
  } else {
    *top = b->heap[--size];
  }
  if (size > 0) {
    heap_sift_down(b->heap, size, 0);
  }
  return size;
}

/* gain(d, .) and where each gain comes from, for all levels of trees that end at `last_level`. */
static void fill_gains(const budget *b, int64_t last_level) {
  b->gains[last_level * b->max_nodes] = 1.0;
  b->num_gains[last_level] = 1;
  for (int64_t depth = last_level - 1; depth >= 0; depth--) {
    double *gains = b->gains + depth * b->max_nodes;
    int32_t *picks = b->picks + depth * b->max_nodes;
    int64_t count = 0;
    gains[count++] = 1.0;
    int64_t size = merge_start(b, depth);
    while (count < b->max_nodes && size > 0 && b->heap[0].gain > 0.0) {
      gains[count] = b->heap[0].gain;
      picks[count++] = (int32_t)b->heap[0].rank;
      size = merge_advance(b, depth, size);
    }
    b->num_gains[depth] = count;
  }
}

/* Follows the picks from the root down. A node's children come in the order of their rates; nodes level by level. */
static void build_tree(const budget *b, int64_t num_nodes, int32_t *parents, int32_t *node_ranks) {
  int64_t made = 1;
  parents[0] = -1;
  if (node_ranks != NULL) {
    node_ranks[0] = -1;
  }
  b->depths[0] = 0;
  b->subtree_nodes[0] = (int32_t)num_nodes;
  for (int64_t i = 0; i < num_nodes; i++) {
    const int32_t *picks = b->picks + b->depths[i] * b->max_nodes;
    for (int64_t n = 1; n < b->subtree_nodes[i]; n++) {
      int32_t child = b->child_of_rank[picks[n]];
      if (child < 0) {
        child = (int32_t)made++;
        b->child_of_rank[picks[n]] = child;
        parents[child] = (int32_t)i;
        if (node_ranks != NULL) {
          node_ranks[child] = picks[n];
        }
        b->depths[child] = b->depths[i] + 1;
        b->subtree_nodes[child] = 0;
      }
      b->subtree_nodes[child]++;
    }
    for (int64_t n = 1; n < b->subtree_nodes[i]; n++) {
      b->child_of_rank[picks[n]] = -1;
    }
  }
}

static treeattn_status check_costs(const treeattn_budget_args *args, treeattn_error *error) {
  for (int64_t n = 0; n < args->max_nodes; n++) {
    if (!isfinite(args->verify_cost[n]) || args->verify_cost[n] <= 0.0) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_VALUE, "verify_cost[%lld] is %g: a cost is finite and above 0",
                     (long long)n, args->verify_cost[n]);
    }
  }
  for (int64_t level = 0; args->draft_cost != NULL && level <= args->num_levels; level++) {
    if (!isfinite(args->draft_cost[level]) || args->draft_cost[level] < 0.0) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_VALUE, "draft_cost[%lld] is %g: a cost is finite and not negative",
                     (long long)level, args->draft_cost[level]);
    }
    if (level > 0 && args->draft_cost[level] < args->draft_cost[level - 1]) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_VALUE, "draft_cost[%lld] is %g, below draft_cost[%lld], which is %g",
                     (long long)level, args->draft_cost[level], (long long)(level - 1), args->draft_cost[level - 1]);
    }
  }
  return TREEATTN_OK;
}

/* The sizes alone. */
static treeattn_status check_sizes(const treeattn_budget_args *args, treeattn_error *error) {
  if (args == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "args is NULL");
  }
  if (args->struct_size < sizeof *args) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "struct_size is %zu: set it with TREEATTN_BUDGET_ARGS_INIT",
                   args->struct_size);
  }
  if (args->max_nodes < 1 || args->max_nodes > TREEATTN_TREE_MAX_NODES) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "max_nodes is %lld: it must be from 1 to %lld",
                   (long long)args->max_nodes, (long long)TREEATTN_TREE_MAX_NODES);
  }
  if (args->num_levels < 0 || args->num_levels > TREEATTN_TREE_MAX_NODES) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_levels is %lld: it must be from 0 to %lld",
                   (long long)args->num_levels, (long long)TREEATTN_TREE_MAX_NODES);
  }
  if (args->num_ranks < 0 || args->num_ranks > INT32_MAX) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_ranks is %lld: it must be from 0 to %ld",
                   (long long)args->num_ranks, (long)INT32_MAX);
  }
  return TREEATTN_OK;
}

static treeattn_status check_rates(const treeattn_budget_args *args, treeattn_error *error) {
  if (args->verify_cost == NULL || (args->acceptance == NULL && args->num_levels > 0 && args->num_ranks > 0)) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is NULL",
                   args->verify_cost == NULL ? "verify_cost" : "acceptance");
  }
  for (int64_t level = 0; level < args->num_levels; level++) {
    for (int64_t rank = 0; rank < args->num_ranks; rank++) {
      const double rate = args->acceptance[level * args->num_ranks + rank];
      if (!(rate >= 0.0 && rate <= 1.0)) {
        return ta_fail(error, TREEATTN_ERROR_INVALID_VALUE, "acceptance[%lld][%lld] is %g: a rate is from 0 to 1",
                       (long long)level, (long long)rank, rate);
      }
    }
  }
  return check_costs(args, error);
}

/* A tree of max_nodes nodes has no level beyond. */
static int64_t usable_levels(const treeattn_budget_args *args) {
  return ta_min_i64(args->num_levels, args->max_nodes - 1);
}

treeattn_status treeattn_budget_scratch_bytes(const treeattn_budget_args *args, size_t *bytes, treeattn_error *error) {
  const treeattn_status status = check_sizes(args, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (bytes == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "bytes is NULL");
  }
  /* Both factors are at most 2^20. */
  const int64_t num_gains = (usable_levels(args) + 1) * args->max_nodes;
  size_t total = TA_SCRATCH_ALIGN;
  if (!ta_scratch_add(&total, num_gains, sizeof(double)) || !ta_scratch_add(&total, num_gains, sizeof(int32_t)) ||
      !ta_scratch_add(&total, usable_levels(args) + 1, sizeof(int64_t)) ||
      !ta_scratch_add(&total, args->num_ranks, sizeof(merge_entry)) ||
      !ta_scratch_add(&total, args->num_ranks, sizeof(int32_t)) ||
      !ta_scratch_add(&total, args->max_nodes, sizeof(int32_t)) ||
      !ta_scratch_add(&total, args->max_nodes, sizeof(int32_t))) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "max_nodes %lld times %lld levels does not fit",
                   (long long)args->max_nodes, (long long)usable_levels(args));
  }
  *bytes = total;
  return TREEATTN_OK;
}

static budget take_budget(const treeattn_budget_args *args, void *scratch) {
  unsigned char *next = scratch;
  budget b;
  b.max_nodes = args->max_nodes;
  b.max_levels = usable_levels(args);
  b.num_ranks = args->num_ranks;
  b.acceptance = args->acceptance;
  b.gains = ta_scratch_take(&next, (b.max_levels + 1) * b.max_nodes, sizeof(double));
  b.picks = ta_scratch_take(&next, (b.max_levels + 1) * b.max_nodes, sizeof(int32_t));
  b.num_gains = ta_scratch_take(&next, b.max_levels + 1, sizeof(int64_t));
  b.heap = ta_scratch_take(&next, b.num_ranks, sizeof(merge_entry));
  b.child_of_rank = ta_scratch_take(&next, b.num_ranks, sizeof(int32_t));
  b.subtree_nodes = ta_scratch_take(&next, b.max_nodes, sizeof(int32_t));
  b.depths = ta_scratch_take(&next, b.max_nodes, sizeof(int32_t));
  for (int64_t rank = 0; rank < b.num_ranks; rank++) {
    b.child_of_rank[rank] = -1;
  }
  return b;
}

treeattn_status treeattn_tree_make_budget(const treeattn_budget_args *args, int32_t *parents, int32_t *node_ranks,
                                          int64_t capacity, treeattn_budget_result *result, void *scratch,
                                          size_t scratch_bytes, treeattn_error *error) {
  size_t needed = 0;
  treeattn_status status = treeattn_budget_scratch_bytes(args, &needed, error);
  if (status == TREEATTN_OK) {
    status = check_rates(args, error);
  }
  if (status == TREEATTN_OK && result == NULL) {
    status = ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "result is NULL");
  }
  if (status == TREEATTN_OK) {
    status = ta_tree_check_scratch(scratch, scratch_bytes, needed, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  const budget b = take_budget(args, scratch);
  treeattn_budget_result best = {0, 0, 0.0, 0.0, -1.0};
  for (int64_t levels = 0; levels <= b.max_levels; levels++) {
    fill_gains(&b, levels);
    double expected = 0.0;
    for (int64_t n = 0; n < b.num_gains[0]; n++) {
      expected += b.gains[n];
      const double cost = args->verify_cost[n] + (args->draft_cost != NULL ? args->draft_cost[levels] : 0.0);
      if (expected / cost > best.tokens_per_cost) {
        const treeattn_budget_result better = {n + 1, levels, expected, cost, expected / cost};
        best = better;
      }
    }
  }
  if (parents != NULL) {
    status = ta_tree_check_array("parents", parents, capacity, best.num_nodes, error);
    if (status != TREEATTN_OK) {
      return status;
    }
    fill_gains(&b, best.num_levels);
    build_tree(&b, best.num_nodes, parents, node_ranks);
  }
  *result = best;
  return TREEATTN_OK;
}
