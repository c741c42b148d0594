/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: a node of a tree gets other bits than decoding its path alone, one token at a time, gives. */
#include "support/check.h"

#include <stdio.h>
#include <string.h>

#include "support/harness.h"

/* The value of trial `index` from a list of `count`: each run of `count` trials has every value once, in changing company. */
static int cycle(int index, int count, int step) {
  return (index + (index / count) * step) % count;
}
#define CYCLE(array, index, step) ((array)[cycle((index), (int)(sizeof(array) / sizeof((array)[0])), (step))])

static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};

static void compare_node(const problem *p, int request, int node, int64_t row, treeattn_isa isa, const float *out,
                         const float *lse) {
  const request_data *data = &p->requests[request];
  float *path_out = calloc((size_t)p->num_heads * (size_t)p->head_dim_v, sizeof *path_out);
  float *path_lse = calloc((size_t)p->num_heads, sizeof *path_lse);
  path_decode(p, request, node, isa, path_out, path_lse);
  char what[256];
  (void)snprintf(what, sizeof what,
                 "node %d of %d (depth %d, request %d, prefix %d, D %d/%d, H %d/%d, %s) against its path by %s", node,
                 data->num_nodes, (int)data->depths[node], request, data->prefix_len, p->head_dim, p->head_dim_v,
                 p->num_heads, p->num_kv_heads, treeattn_dtype_name(p->kv_dtype), treeattn_isa_name(isa));
  CHECK_SAME_BITS(what, out + row * p->num_heads * p->head_dim_v, path_out, p->num_heads, p->head_dim_v);
  CHECK_SAME_BITS(what, lse + row * p->num_heads, path_lse, p->num_heads, 1);
  free(path_out);
  free(path_lse);
}

/* Every node against the fastest decoder's path; against the scalar one the first, the last, the deepest and as many others as the
 * budget of multiply-adds allows. */
static void compare_with_paths(const problem *p, const float *out, const float *lse, double budget, rng *r) {
  int64_t row = 0;
  for (int n = 0; n < p->num_requests; n++) {
    const request_data *data = &p->requests[n];
    int32_t *order = calloc((size_t)data->num_nodes + 1, sizeof *order);
    int deepest = 0;
    for (int i = 0; i < data->num_nodes; i++) {
      order[i] = i;
      deepest = data->depths[i] > data->depths[deepest] ? i : deepest;
      compare_node(p, n, i, row + i, TREEATTN_ISA_AUTO, out, lse);
    }
    rng_shuffle(r, order, data->num_nodes);
    for (int k = 0; k < data->num_nodes; k++) {
      int i = order[k];
      double cost = (double)p->num_heads * (data->prefix_len + data->depths[i] + 1) * (p->head_dim + p->head_dim_v);
      budget -= cost;
      if (budget > 0 || i == 0 || i == data->num_nodes - 1 || i == deepest) {
        compare_node(p, n, i, row + i, TREEATTN_ISA_SCALAR, out, lse);
      }
    }
    row += data->num_nodes;
    free(order);
  }
}

/* One problem on every instruction set, each time in another layout; all bits equal, and equal to the paths. */
static void check_problem(const problem *p, rng *r, double budget) {
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  size_t count = (size_t)problem_rows(p) * (size_t)p->num_heads;
  float *first = calloc(count * (size_t)p->head_dim_v + 1, sizeof *first);
  float *first_lse = calloc(count + 1, sizeof *first_lse);
  float *out = calloc(count * (size_t)p->head_dim_v + 1, sizeof *out);
  float *lse = calloc(count + 1, sizeof *lse);
  for (int n = num_isas - 1; n >= 0; n--) {
    double cost = 0;
    for (int k = 0; k < p->num_requests; k++) {
      cost +=
          (double)p->requests[k].num_nodes * p->requests[k].num_slots * p->num_heads * (p->head_dim + p->head_dim_v);
    }
    if (n != num_isas - 1 && isas[n] == TREEATTN_ISA_SCALAR && cost > budget) {
      continue; /* the paths below are decoded by it anyway */
    }
    thread_team team;
    rng order;
    layout how = layout_random(r, &team, &order);
    how.isa = isas[n];
    bool is_first = n == num_isas - 1;
    harness_once(p, &how, is_first ? first : out, is_first ? first_lse : lse);
    if (!is_first) {
      CHECK_SAME_BITS(treeattn_isa_name(isas[n]), out, first, (int64_t)count, p->head_dim_v);
      CHECK_SAME_BITS(treeattn_isa_name(isas[n]), lse, first_lse, (int64_t)count, 1);
    }
  }
  compare_with_paths(p, first, first_lse, budget, r);
  free(first);
  free(first_lse);
  free(out);
  free(lse);
}

static const float amplitudes[] = {1.0f, 4.0f, 30.0f};

static void test_every_shape(void **state) {
  (void)state;
  static const int dims[] = {32, 64, 80, 96, 128, 192, 256, 512};
  static const int ratios[] = {1, 2, 3, 5, 6, 7, 8, 12, 16};
  static const int prefixes[] = {0,   1,   7,   8,   9,   15,  16,  17,  31,  32,  33,  63,   64,   65,
                                 127, 128, 129, 255, 256, 257, 510, 511, 512, 513, 600, 1023, 1024, 1025};
  for (int n = 0; n < trial_count(168, 16); n++) {
    rng r;
    int index = trial_begin(&r, 1, n);
    int dim = CYCLE(dims, index, 1);
    int ratio = CYCLE(ratios, index, 2);
    int prefix = CYCLE(prefixes, index, 3);
    int num_kv_heads = ratio * dim > 1500 ? 1 : rng_range(&r, 1, 3);
    double row_cost = 2.0 * ratio * num_kv_heads * dim * (prefix + 20);
    int most = (int)(6e6 / row_cost) + 1;
    problem p = problem_new(ratio * num_kv_heads, num_kv_heads, dim, 0, CYCLE(dtypes, index, 1));
    (void)problem_add_tree(&p, prefix, rng_range(&r, 1, most < 40 ? most : 40),
                           (tree_shape)cycle(index, NUM_TREE_SHAPES, 4), PICK(&r, amplitudes), &r);
    check_problem(&p, &r, 3e6);
    problem_free(&p);
  }
}

/* The tail of a path crosses the edges of leaves (512) and of groups of leaves (4096). */
static void test_tails_across_block_edges(void **state) {
  (void)state;
  static const int edges[] = {512, 1024, 4096, 8192};
  static const int before[] = {40, 17, 8, 2, 1, 0, -1};
  static const tree_shape shapes[] = {TREE_CHAIN, TREE_COMB, TREE_DEEP, TREE_RANDOM, TREE_FOREST};
  for (int n = 0; n < trial_count(28, 4); n++) {
    rng r;
    int index = trial_begin(&r, 2, n);
    int edge = CYCLE(edges, index, 1);
    problem p = problem_new(2, rng_range(&r, 1, 2), edge > 2000 ? 32 : 64, 0, CYCLE(dtypes, index, 1));
    (void)problem_add_tree(&p, edge - CYCLE(before, index, 2), edge > 2000 ? 24 : 48, CYCLE(shapes, index, 1),
                           PICK(&r, amplitudes), &r);
    check_problem(&p, &r, 3e6);
    problem_free(&p);
  }
}

static void test_large_trees(void **state) {
  (void)state;
  static const int counts[] = {63, 64, 65, 127, 128, 129, 255, 256, 257, 512, 513, 1024, 1025};
  for (int n = 0; n < trial_count(26, 3); n++) {
    rng r;
    int index = trial_begin(&r, 3, n);
    problem p = problem_new(2, 1, 32, 0, CYCLE(dtypes, index, 1));
    (void)problem_add_tree(&p, PICK(&r, ((const int[]){0, 1, 100, 511, 512})), CYCLE(counts, index, 1),
                           (tree_shape)cycle(index, NUM_TREE_SHAPES, 1), PICK(&r, amplitudes), &r);
    check_problem(&p, &r, 2e6);
    problem_free(&p);
  }
}

static void test_unusual_head_dims(void **state) {
  (void)state;
  static const int dims[][2] = {{8, 8},     {24, 24},  {40, 40},  {1024, 1024}, {576, 512},
                                {192, 128}, {8, 1024}, {1024, 8}, {72, 136}};
  for (int n = 0; n < trial_count(27, 9); n++) {
    rng r;
    int index = trial_begin(&r, 4, n);
    const int *dim = dims[cycle(index, 9, 0)];
    int num_kv_heads = rng_range(&r, 1, 2);
    problem p =
        problem_new(num_kv_heads * rng_range(&r, 1, 4), num_kv_heads, dim[0], dim[1], CYCLE(dtypes, index / 3, 0));
    (void)problem_add_tree(&p, rng_below(&r, 40), rng_range(&r, 1, 12), TREE_RANDOM, PICK(&r, amplitudes), &r);
    check_problem(&p, &r, 3e6);
    problem_free(&p);
  }
}

static void test_with_options(void **state) {
  (void)state;
  static const int windows[] = {0, 1, 2, 3, 16, 100, 511, 512, 513, 600};
  for (int n = 0; n < trial_count(60, 8); n++) {
    rng r;
    int index = trial_begin(&r, 5, n);
    problem p = problem_new(4, 2, rng_chance(&r, 2) ? 64 : 32, 0, CYCLE(dtypes, index, 1));
    p.window = CYCLE(windows, index, 1);
    p.softcap = rng_chance(&r, 2) ? 0.0f : (rng_chance(&r, 2) ? 2.0f : 30.0f);
    p.scale *= rng_chance(&r, 4) ? -1.0f : 1.0f;
    if (rng_chance(&r, 2)) {
      problem_set_sinks(&p, &r);
    }
    int requests = rng_range(&r, 1, 3);
    for (int k = 0; k < requests; k++) {
      (void)problem_add_tree(&p, rng_below(&r, rng_chance(&r, 3) ? 700 : 60), rng_range(&r, 0, 30),
                             (tree_shape)rng_below(&r, NUM_TREE_SHAPES), PICK(&r, amplitudes), &r);
    }
    check_problem(&p, &r, 3e6);
    problem_free(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_shape),  cmocka_unit_test(test_tails_across_block_edges),
      cmocka_unit_test(test_large_trees),  cmocka_unit_test(test_unusual_head_dims),
      cmocka_unit_test(test_with_options),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
