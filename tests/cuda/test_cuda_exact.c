/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: the exact mode on the GPU gives other bits than the CPU, for some type, mask, page size, shape or option. */
#include "support.h"

#include <stdio.h>
#include <string.h>

static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
static const float amplitudes[] = {1.0f, 4.0f, 30.0f};

static int cycle(int index, int count, int level) {
  return (index / (level == 0 ? 1 : 1 + 2 * level) + index) % count;
}
#define CYCLE(array, index, level) ((array)[cycle((index), (int)(sizeof(array) / sizeof((array)[0])), (level))])

static double problem_cost(const problem *p) {
  double cost = 0;
  for (int n = 0; n < p->num_requests; n++) {
    cost += (double)p->requests[n].num_nodes * p->requests[n].num_slots * p->num_heads * (p->head_dim + p->head_dim_v);
  }
  return cost;
}

/* The CPU by its scalar reference, or where that takes too long by what has the same bits. */
static treeattn_isa reference_isa(const problem *p) {
  return problem_cost(p) > 6e7 ? TREEATTN_ISA_AUTO : TREEATTN_ISA_SCALAR;
}

/* One harness on both sides; the GPU's output, in any type, is the CPU's rounded once. */
static void compare(harness *h, rng *r, bool shared_kv) {
  const problem *p = h->source;
  const size_t count = (size_t)h->rows * (size_t)p->num_heads;
  float *cpu = calloc(count * (size_t)p->head_dim_v + 1, sizeof *cpu), *cpu_lse = calloc(count + 1, sizeof *cpu);
  float *gpu = calloc(count * (size_t)p->head_dim_v + 1, sizeof *gpu), *gpu_lse = calloc(count + 1, sizeof *gpu);
  harness_run(h);
  harness_read(h, cpu, cpu_lse);
  for (int pass = 0; pass < 2; pass++) {
    gpu_options how = {.mode = TREEATTN_MODE_EXACT, .shared_kv = shared_kv};
    gpu_options_random(&how, r);
    how.out_dtype = pass == 0 ? TREEATTN_F32 : PICK(r, dtypes);
    gpu_once(h, &how, gpu, gpu_lse);
    for (size_t n = 0; how.out_dtype != TREEATTN_F32 && n < count * (size_t)p->head_dim_v; n++) {
      cpu[n] = round_to(how.out_dtype, cpu[n]);
    }
    char what[160];
    (void)snprintf(what, sizeof what,
                   "kv %s, out %s, dims %d/%d, %d heads, page size %d, mask kind %d, %d multiprocessors",
                   treeattn_dtype_name(p->kv_dtype), treeattn_dtype_name(how.out_dtype), p->head_dim, p->head_dim_v,
                   p->num_heads, h->how.page_size, (int)h->how.encoding, (int)how.num_multiprocessors);
    CHECK_SAME_BITS(what, gpu, cpu, (int64_t)count, p->head_dim_v);
    if (!h->how.no_lse) {
      CHECK_SAME_BITS(what, gpu_lse, cpu_lse, (int64_t)count, 1);
    }
  }
  free(cpu);
  free(cpu_lse);
  free(gpu);
  free(gpu_lse);
}

static void check_problem(const problem *p, rng *r) {
  layout how = gpu_layout_random(r);
  how.isa = reference_isa(p);
  how.no_lse = rng_chance(r, 6);
  harness h;
  harness_build(&h, p, &how);
  compare(&h, r, false);
  harness_free(&h);
}

static void test_every_shape(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  static const int dims[] = {32, 64, 80, 96, 128, 192, 256, 512};
  static const int ratios[] = {1, 2, 3, 5, 6, 7, 8, 12, 16};
  static const int prefixes[] = {0,   1,   7,   8,   9,   15,  16,  17,  31,  32,  33,   63,   64,   65,   127,
                                 128, 129, 255, 256, 257, 510, 511, 512, 513, 600, 1023, 1024, 1025, 2500, 4097};
  for (int n = 0; n < trial_count(120, 10); n++) {
    rng r;
    const int index = trial_begin(&r, 101, n);
    const int dim = CYCLE(dims, index, 1);
    const int ratio = CYCLE(ratios, index, 2);
    const int prefix = CYCLE(prefixes, index, 3);
    const int num_kv_heads = ratio * dim > 1500 ? 1 : rng_range(&r, 1, 3);
    const int most = (int)(3e7 / (2.0 * ratio * num_kv_heads * dim * (prefix + 20))) + 1;
    problem p = problem_new(ratio * num_kv_heads, num_kv_heads, dim, 0, CYCLE(dtypes, index, 1));
    (void)problem_add_tree(&p, prefix, rng_range(&r, 1, most < 70 ? most : 70),
                           (tree_shape)cycle(index, NUM_TREE_SHAPES, 4), PICK(&r, amplitudes), &r);
    check_problem(&p, &r);
    problem_free(&p);
  }
}

static void test_query_types(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < trial_count(18, 6); n++) {
    rng r;
    const int index = trial_begin(&r, 102, n);
    const treeattn_dtype q_dtype = dtypes[index % 3];
    problem p = problem_new(6, 2, 64, 0, dtypes[index / 3 % 3]);
    (void)problem_add_tree(&p, rng_below(&r, 700), 20, TREE_RANDOM, 4.0f, &r);
    problem_round_queries(&p, q_dtype);
    layout how = gpu_layout_random(&r);
    how.isa = TREEATTN_ISA_SCALAR;
    harness h;
    harness_build(&h, &p, &how);
    harness_run(&h);
    const int64_t rows = h.rows * p.num_heads;
    float *cpu = calloc((size_t)(rows * p.head_dim_v), sizeof *cpu),
          *gpu = calloc((size_t)(rows * p.head_dim_v), sizeof *gpu);
    harness_read(&h, cpu, NULL);
    gpu_options options = {.mode = TREEATTN_MODE_EXACT, .q_dtype = q_dtype};
    gpu_options_random(&options, &r);
    gpu_once(&h, &options, gpu, NULL);
    CHECK_SAME_BITS(treeattn_dtype_name(q_dtype), gpu, cpu, rows, p.head_dim_v);
    free(cpu);
    free(gpu);
    harness_free(&h);
    problem_free(&p);
  }
}

static void test_unusual_head_dims(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  static const int dims[][2] = {{8, 8},     {24, 24},  {40, 40},  {1024, 1024}, {576, 512},
                                {192, 128}, {8, 1024}, {1024, 8}, {72, 136}};
  for (int n = 0; n < trial_count(27, 9); n++) {
    rng r;
    const int index = trial_begin(&r, 103, n);
    const int *dim = dims[index % 9];
    const int num_kv_heads = rng_range(&r, 1, 2);
    problem p = problem_new(num_kv_heads * rng_range(&r, 1, 4), num_kv_heads, dim[0], dim[1], dtypes[index / 9 % 3]);
    (void)problem_add_tree(&p, rng_below(&r, 600), rng_range(&r, 1, 12), TREE_RANDOM, PICK(&r, amplitudes), &r);
    check_problem(&p, &r);
    problem_free(&p);
  }
}

/* MLA: 16 or more heads over one key row of 576, whose first 512 are the value. */
static void test_shared_keys_and_values(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < trial_count(9, 3); n++) {
    rng r;
    const int index = trial_begin(&r, 104, n);
    problem p = problem_new(index % 2 == 0 ? 16 : 20, 1, 576, 512, dtypes[index % 3]);
    (void)problem_add_tree(&p, rng_below(&r, 1100), rng_range(&r, 1, 8), TREE_RANDOM, 4.0f, &r);
    problem_share_kv(&p);
    layout how = gpu_layout_random(&r);
    how.isa = reference_isa(&p);
    harness h;
    harness_build(&h, &p, &how);
    compare(&h, &r, true);
    harness_free(&h);
    problem_free(&p);
  }
}

/* Windows, softcaps, sinks, negative scales, and batches of requests of all lengths, empty ones among them. */
static void test_with_options(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  static const int windows[] = {0, 1, 2, 3, 16, 100, 511, 512, 513, 600};
  for (int n = 0; n < trial_count(80, 8); n++) {
    rng r;
    const int index = trial_begin(&r, 105, n);
    problem p = problem_new(4, 2, rng_chance(&r, 2) ? 64 : 32, 0, CYCLE(dtypes, index, 1));
    p.window = CYCLE(windows, index, 1);
    p.softcap = rng_chance(&r, 2) ? 0.0f : (rng_chance(&r, 2) ? 2.0f : 30.0f);
    p.scale *= rng_chance(&r, 4) ? -1.0f : 1.0f;
    if (rng_chance(&r, 2)) {
      problem_set_sinks(&p, &r);
    }
    const int requests = rng_range(&r, 1, 6);
    for (int k = 0; k < requests; k++) {
      (void)problem_add_tree(&p, rng_below(&r, rng_chance(&r, 3) ? 1600 : 60), rng_range(&r, 0, 30),
                             (tree_shape)rng_below(&r, NUM_TREE_SHAPES), PICK(&r, amplitudes), &r);
    }
    check_problem(&p, &r);
    problem_free(&p);
  }
}

/* Masks that no tree explains, with and without biases, in each encoding. */
static void test_free_masks(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  static const int prefixes[] = {0, 1, 31, 64, 200, 500, 512, 700, 1030, 1700};
  for (int n = 0; n < trial_count(60, 6); n++) {
    rng r;
    const int index = trial_begin(&r, 106, n);
    problem p = problem_new(6, index % 2 == 0 ? 2 : 3, 32, 0, PICK(&r, dtypes));
    const request_data *data = problem_add_tree(&p, prefixes[index % 10], rng_range(&r, 1, 50), TREE_CHAIN, 4.0f, &r);
    p.softcap = rng_chance(&r, 3) ? 8.0f : 0.0f;
    layout how = gpu_layout_random(&r);
    how.isa = reference_isa(&p);
    harness h;
    harness_build(&h, &p, &how);
    const int cells = data->num_nodes * data->num_slots;
    uint8_t *sees = calloc((size_t)cells + 1, 1);
    float *bias = calloc((size_t)cells + 1, sizeof *bias);
    const int one_in = rng_range(&r, 2, 9);
    const bool holes = rng_chance(&r, 2);
    for (int c = 0; c < cells; c++) {
      sees[c] = c % data->num_slots < data->prefix_len && !holes ? 1 : !rng_chance(&r, one_in);
      bias[c] = rng_chance(&r, 2) ? 0.0f : 6.0f * rng_signed(&r);
    }
    static const treeattn_mask_kind kinds[] = {TREEATTN_MASK_DENSE_F32, TREEATTN_MASK_DENSE_BOOL, TREEATTN_MASK_BITS};
    const bool biased = index % 2 == 0;
    h.how.encoding = biased ? TREEATTN_MASK_DENSE_F32 : kinds[index / 2 % 3];
    harness_set_mask(&h, 0, h.how.encoding, sees, biased ? bias : NULL);
    compare(&h, &r, false);
    free(sees);
    free(bias);
    harness_free(&h);
    problem_free(&p);
  }
}

/* Some of the nodes, in any order. */
static void test_some_queries(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < trial_count(24, 4); n++) {
    rng r;
    const int index = trial_begin(&r, 107, n);
    problem p = problem_new(4, 2, 64, 0, dtypes[index % 3]);
    p.window = rng_chance(&r, 3) ? rng_range(&r, 1, 600) : 0;
    int32_t *nodes[3];
    int64_t counts[3];
    for (int k = 0; k < 3; k++) {
      const int num_nodes = rng_range(&r, 1, 40);
      (void)problem_add_tree(&p, rng_below(&r, 1100), num_nodes, TREE_RANDOM, 4.0f, &r);
      nodes[k] = calloc((size_t)num_nodes, sizeof(int32_t));
      for (int32_t i = 0; i < num_nodes; i++) {
        nodes[k][i] = i;
      }
      rng_shuffle(&r, nodes[k], num_nodes);
      counts[k] = rng_range(&r, 0, num_nodes);
    }
    layout how = gpu_layout_random(&r);
    how.isa = reference_isa(&p);
    how.query_nodes = (const int32_t *const *)nodes;
    how.num_queries = counts;
    harness h;
    harness_build(&h, &p, &how);
    compare(&h, &r, false);
    harness_free(&h);
    for (int k = 0; k < 3; k++) {
      free(nodes[k]);
    }
    problem_free(&p);
  }
}

/* Long caches, where units fold many leaves, and many nodes. */
static void test_long_and_wide(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  static const int prefixes[] = {8191, 8192, 8200, 20000, 33000};
  static const int nodes[] = {1, 3, 5, 65, 130};
  for (int n = 0; n < trial_count(10, 2); n++) {
    rng r;
    const int index = trial_begin(&r, 108, n);
    problem p = problem_new(4, 1, 64, 0, dtypes[index % 3]);
    const int count = nodes[index % 5];
    (void)problem_add_tree(&p, count > 10 ? 3000 : prefixes[index % 5], count, TREE_RANDOM, 4.0f, &r);
    check_problem(&p, &r);
    problem_free(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_shape),       cmocka_unit_test(test_query_types),
      cmocka_unit_test(test_unusual_head_dims), cmocka_unit_test(test_shared_keys_and_values),
      cmocka_unit_test(test_with_options),      cmocka_unit_test(test_free_masks),
      cmocka_unit_test(test_some_queries),      cmocka_unit_test(test_long_and_wide),
  };
  return cmocka_run_group_tests_name("cuda_exact", tests, NULL, NULL);
}
