/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: the fast mode breaks a promise: parity, invariance, path exactness, isolation, one meaning of encodings, accuracy. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/oracle.h"

static const treeattn_dtype halves[] = {TREEATTN_F16, TREEATTN_BF16};
static const treeattn_dtype row_types[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
static const int dims[][2] = {{64, 64}, {96, 96}, {128, 128}, {192, 192}, {256, 256}, {512, 512}, {576, 512}};
/* ||out - ref|| / ||ref||, both types */
static const double LIMIT = 4e-4;
enum { NUM_DIMS = sizeof dims / sizeof dims[0] };
static const int prefixes[] = {0,   1,   15,  16,  17,  63,  64,   65,   127,  128,  300,  511,
                               512, 513, 575, 576, 640, 700, 1023, 1024, 1100, 2000, 4096, 4130};
static const int ratios[] = {1, 2, 3, 4, 5, 7, 8, 16};

typedef struct results {
  float *out, *lse;
  int64_t rows, width; /* rows: (node, head) */
} results;

static results results_new(const harness *h) {
  results r = {NULL, NULL, h->rows * h->source->num_heads, h->source->head_dim_v};
  r.out = calloc((size_t)(r.rows * r.width) + 1, sizeof(float));
  r.lse = calloc((size_t)r.rows + 1, sizeof(float));
  return r;
}

static void results_free(results *r) {
  free(r->out);
  free(r->lse);
}

/* A problem of trial `index`: every served dimension, both types, ratios and prefixes in turn. */
static problem make_problem(int index, int most_nodes, bool with_options, rng *r) {
  const int *dim = dims[index % NUM_DIMS];
  const int ratio = ratios[index / 2 % 8];
  const int num_kv_heads = dim[0] == 576 ? 1 : rng_range(r, 1, 2);
  problem p = problem_new(ratio * num_kv_heads, num_kv_heads, dim[0], dim[1], halves[index % 2]);
  if (with_options) {
    static const int windows[] = {0, 0, 1, 40, 512, 700};
    p.window = PICK(r, windows);
    p.softcap = rng_chance(r, 3) ? 20.0f : 0.0f;
    if (rng_chance(r, 3)) {
      problem_set_sinks(&p, r);
    }
  }
  (void)problem_add_tree(&p, prefixes[index % (int)(sizeof prefixes / sizeof prefixes[0])], rng_range(r, 1, most_nodes),
                         (tree_shape)rng_below(r, NUM_TREE_SHAPES), rng_chance(r, 2) ? 1.0f : 3.0f, r);
  if (dim[0] == 576) {
    problem_share_kv(&p);
  }
  return p;
}

static gpu_options plain_options(const problem *p) {
  const gpu_options how = {.mode = TREEATTN_MODE_FAST, .shared_kv = p->head_dim == 576};
  return how;
}

/* Queries are 16-bit numbers, so that the operands of the products are what the oracle is given. */
static treeattn_dtype round_for(problem *p) {
  problem_round_queries(p, p->kv_dtype);
  return p->kv_dtype;
}

static void run_plain(const problem *p, const layout *how, const gpu_options *options, results *into) {
  harness h;
  harness_build(&h, p, how);
  gpu_once(&h, options, into->out, into->lse);
  harness_free(&h);
}

static void test_accuracy(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  double worst = 0;
  for (int n = 0; n < trial_count(70, 14); n++) {
    rng r;
    const int index = trial_begin(&r, 201, n);
    problem p = make_problem(index, 24, true, &r);
    (void)round_for(&p);
    layout how = gpu_layout_random(&r);
    harness h;
    harness_build(&h, &p, &how);
    results got = results_new(&h);
    double *expected = calloc((size_t)(got.rows * got.width) + 1, sizeof *expected);
    double *expected_lse = calloc((size_t)got.rows + 1, sizeof *expected_lse);
    oracle_all(&p, expected, expected_lse);
    gpu_options options = plain_options(&p);
    gpu_options_random(&options, &r);
    options.q_dtype = rng_chance(&r, 2) ? p.kv_dtype : TREEATTN_F32;
    gpu_once(&h, &options, got.out, got.lse);
    const double error = relative_error(got.out, expected, got.rows * got.width);
    worst = error > worst ? error : worst;
    CHECK(error <= LIMIT, "%s %d/%d, %d heads over %d, prefix %d, %d nodes: relative error %g",
          treeattn_dtype_name(p.kv_dtype), p.head_dim, p.head_dim_v, p.num_heads, p.num_kv_heads,
          p.requests[0].prefix_len, p.requests[0].num_nodes, error);
    for (int64_t row = 0; !how.no_lse && row < got.rows; row++) {
      const double wanted = expected_lse[row];
      CHECK(wanted < -1e300 ? got.lse[row] == -INFINITY
                            : fabs((double)got.lse[row] - wanted) <= 2e-3 + 1e-4 * fabs(wanted),
            "row %lld: lse %.9g instead of %.9g", (long long)row, (double)got.lse[row], wanted);
    }
    free(expected);
    free(expected_lse);
    results_free(&got);
    harness_free(&h);
    problem_free(&p);
  }
  print_message("largest relative error: %.2e\n", worst);
}

/* The types of queries and outputs: f16 and bf16 outputs are the f32 output rounded once, queries of any type with the same
 * values give the same bits. */
static void test_row_types(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < trial_count(14, 7); n++) {
    rng r;
    const int index = trial_begin(&r, 202, n);
    problem p = make_problem(index, 20, false, &r);
    const treeattn_dtype q_dtype = round_for(&p);
    const layout how = LAYOUT_INIT;
    harness h;
    harness_build(&h, &p, &how);
    results wide = results_new(&h), other = results_new(&h);
    gpu_options options = plain_options(&p);
    gpu_once(&h, &options, wide.out, wide.lse);
    options.q_dtype = q_dtype;
    for (int k = 0; k < 3; k++) {
      options.out_dtype = row_types[k];
      gpu_once(&h, &options, other.out, other.lse);
      for (int64_t i = 0; i < wide.rows * wide.width; i++) {
        CHECK(other.out[i] == round_to(row_types[k], wide.out[i]), "value %lld is %.9g as %s and %.9g as f32",
              (long long)i, (double)other.out[i], treeattn_dtype_name(row_types[k]), (double)wide.out[i]);
      }
      CHECK_SAME_BITS("lse", other.lse, wide.lse, wide.rows, 1);
    }
    results_free(&wide);
    results_free(&other);
    harness_free(&h);
    problem_free(&p);
  }
}

/* Every encoding of a chain is causal attention, and every encoding of a tree is the tree: pages, pads, order of storage and cuts
 * change nothing. */
static void test_encodings_layouts_and_cuts(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < trial_count(42, 7); n++) {
    rng r;
    const int index = trial_begin(&r, 203, n);
    problem p = make_problem(index, 70, true, &r);
    if (rng_chance(&r, 2)) { /* a causal chain */
      request_data *data = &p.requests[0];
      tree_make(TREE_CHAIN, data->num_nodes, &r, data->parents);
      tree_depths(data->parents, data->num_nodes, data->depths);
    }
    layout how = LAYOUT_INIT;
    how.encoding = TREEATTN_MASK_CHAIN;
    harness h;
    harness_build(&h, &p, &how);
    results first = results_new(&h), other = results_new(&h);
    gpu_options options = plain_options(&p);
    gpu_case g;
    gpu_build(&g, &h, &options);
    gpu_run(&g);
    gpu_read(&g, first.out, first.lse);
    gpu_run(&g);
    gpu_read(&g, other.out, other.lse);
    CHECK_SAME_BITS("a second run", other.out, first.out, first.rows, first.width);
    gpu_free(&g);
    harness_free(&h);
    for (int kind = TREEATTN_MASK_CHAIN; kind <= TREEATTN_MASK_BITS; kind++) {
      how = gpu_layout_random(&r);
      how.encoding = (treeattn_mask_kind)kind;
      how.no_lse = false;
      gpu_options_random(&options, &r);
      run_plain(&p, &how, &options, &other);
      char what[160];
      (void)snprintf(what, sizeof what, "mask kind %d, page size %d, block_rows %d, %d multiprocessors, dims %d/%d",
                     kind, how.page_size, (int)options.block_rows, (int)options.num_multiprocessors, p.head_dim,
                     p.head_dim_v);
      CHECK_SAME_BITS(what, other.out, first.out, first.rows, first.width);
      CHECK_SAME_BITS(what, other.lse, first.lse, first.rows, 1);
    }
    results_free(&first);
    results_free(&other);
    problem_free(&p);
  }
}

/* A row alone, among some of the rows, and in a batch with other requests. */
static void test_rows_alone_and_in_batches(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < trial_count(28, 7); n++) {
    rng r;
    const int index = trial_begin(&r, 204, n);
    problem p = make_problem(index, 60, true, &r);
    const int num_nodes = p.requests[0].num_nodes;
    for (int k = 0; k < 3; k++) {
      (void)problem_add_tree(&p, rng_below(&r, 900), rng_range(&r, 0, 30), TREE_RANDOM, 2.0f, &r);
    }
    if (p.head_dim == 576) {
      problem_share_kv(&p);
    }
    layout how = LAYOUT_INIT;
    harness h;
    harness_build(&h, &p, &how);
    results all = results_new(&h), part = results_new(&h);
    gpu_options options = plain_options(&p);
    gpu_once(&h, &options, all.out, all.lse);
    harness_free(&h);
    for (int pass = 0; pass < 6; pass++) {
      int32_t *order = calloc((size_t)num_nodes, sizeof *order);
      for (int32_t i = 0; i < num_nodes; i++) {
        order[i] = i;
      }
      rng_shuffle(&r, order, num_nodes);
      problem one = p;
      one.num_requests = 1;
      const int32_t *lists[1] = {order};
      const int64_t counts[1] = {pass < 3 ? 1 : rng_range(&r, 1, num_nodes)};
      how = gpu_layout_random(&r);
      how.no_lse = false;
      how.query_nodes = lists;
      how.num_queries = counts;
      gpu_options_random(&options, &r);
      run_plain(&one, &how, &options, &part);
      for (int64_t row = 0; row < counts[0]; row++) {
        char what[96];
        (void)snprintf(what, sizeof what, "node %d, one of %lld rows", (int)order[row], (long long)counts[0]);
        CHECK_SAME_BITS(what, part.out + row * p.num_heads * part.width,
                        all.out + (int64_t)order[row] * p.num_heads * all.width, p.num_heads, all.width);
        CHECK_SAME_BITS(what, part.lse + row * p.num_heads, all.lse + (int64_t)order[row] * p.num_heads, p.num_heads,
                        1);
      }
      free(order);
    }
    results_free(&all);
    results_free(&part);
    problem_free(&p);
  }
}

/* Each node against its path decoded as a single query over a contiguous cache. */
static void test_paths(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < trial_count(48, 7); n++) {
    rng r;
    const int index = trial_begin(&r, 205, n);
    problem p = make_problem(index, index % 3 == 0 ? 70 : 30, true, &r);
    layout how = gpu_layout_random(&r);
    how.no_lse = false;
    harness h;
    harness_build(&h, &p, &how);
    results tree = results_new(&h);
    gpu_options options = plain_options(&p);
    gpu_options_random(&options, &r);
    gpu_once(&h, &options, tree.out, tree.lse);
    harness_free(&h);
    float *out = calloc((size_t)(p.num_heads * p.head_dim_v), sizeof *out),
          *lse = calloc((size_t)p.num_heads, sizeof *lse);
    const int step = p.requests[0].num_nodes / 12 + 1;
    for (int i = rng_below(&r, step); i < p.requests[0].num_nodes; i += step) {
      gpu_path_decode(&p, 0, i, &options, out, lse);
      char what[96];
      (void)snprintf(what, sizeof what, "node %d of %d behind %d, dims %d/%d", i, p.requests[0].num_nodes,
                     p.requests[0].prefix_len, p.head_dim, p.head_dim_v);
      CHECK_SAME_BITS(what, tree.out + (int64_t)i * p.num_heads * p.head_dim_v, out, p.num_heads, p.head_dim_v);
      CHECK_SAME_BITS(what, tree.lse + (int64_t)i * p.num_heads, lse, p.num_heads, 1);
    }
    free(out);
    free(lse);
    results_free(&tree);
    problem_free(&p);
  }
}

static const float poisons[] = {NAN, INFINITY, -INFINITY, 65504.0f, -65504.0f, 3e38f};

/* For some rows, every slot that the row does not see is poisoned, a whole window or the other branches. */
static void test_unseen_slots(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < trial_count(28, 7); n++) {
    rng r;
    const int index = trial_begin(&r, 206, n);
    problem p = make_problem(index, 40, true, &r);
    const request_data *data = &p.requests[0];
    layout how = gpu_layout_random(&r);
    how.no_lse = false;
    harness h;
    harness_build(&h, &p, &how);
    results clean = results_new(&h), dirty = results_new(&h);
    gpu_options options = plain_options(&p);
    gpu_options_random(&options, &r);
    gpu_case g;
    gpu_build(&g, &h, &options);
    gpu_run(&g);
    gpu_read(&g, clean.out, clean.lse);
    uint8_t *sees = calloc((size_t)data->num_nodes * (size_t)data->num_slots, 1);
    tree_visibility(data->parents, data->num_nodes, data->prefix_len, p.window, sees);
    const int step = data->num_nodes / 6 + 1;
    for (int i = rng_below(&r, step); i < data->num_nodes; i += step) {
      const float poison = poisons[(i + index) % 6];
      for (int slot = 0; slot < data->num_slots; slot++) {
        if (sees[i * data->num_slots + slot] == 0) {
          harness_poison_slot(&h, 0, slot, poison);
        }
      }
      gpu_refresh(&g);
      gpu_run(&g);
      gpu_read(&g, dirty.out, dirty.lse);
      char what[96];
      (void)snprintf(what, sizeof what, "node %d, unseen slots hold %g", i, (double)poison);
      CHECK_SAME_BITS(what, dirty.out + (int64_t)i * p.num_heads * p.head_dim_v,
                      clean.out + (int64_t)i * p.num_heads * p.head_dim_v, p.num_heads, p.head_dim_v);
      CHECK_SAME_BITS(what, dirty.lse + (int64_t)i * p.num_heads, clean.lse + (int64_t)i * p.num_heads, p.num_heads, 1);
      for (int slot = 0; slot < data->num_slots; slot++) {
        harness_restore_slot(&h, 0, slot);
      }
    }
    gpu_free(&g);
    harness_free(&h);
    free(sees);
    results_free(&clean);
    results_free(&dirty);
    problem_free(&p);
  }
}

/* Slots past kv_seq_len, spare and stale pages, pads: whatever is there, the same bits. */
static void test_what_is_no_data(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < trial_count(28, 7); n++) {
    rng r;
    const int index = trial_begin(&r, 207, n);
    problem p = make_problem(index, 20, true, &r);
    layout how = gpu_layout_random(&r);
    how.no_lse = false;
    how.extra_slots = rng_range(&r, 0, 70);
    how.poison = 0.0f;
    gpu_options options = plain_options(&p);
    gpu_options_random(&options, &r);
    harness h;
    harness_build(&h, &p, &how);
    results clean = results_new(&h), dirty = results_new(&h);
    harness_free(&h);
    run_plain(&p, &how, &options, &clean);
    for (int k = 0; k < 3; k++) {
      how.poison = poisons[(index + k) % 6];
      run_plain(&p, &how, &options, &dirty);
      CHECK_SAME_BITS("poison in what is no data", dirty.out, clean.out, clean.rows, clean.width);
      CHECK_SAME_BITS("poison in what is no data: lse", dirty.lse, clean.lse, clean.rows, 1);
    }
    results_free(&clean);
    results_free(&dirty);
    problem_free(&p);
  }
}

/* NaN and infinities in one query reach no other row. */
static void test_other_queries(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < trial_count(14, 7); n++) {
    rng r;
    const int index = trial_begin(&r, 208, n);
    problem p = make_problem(index, 30, false, &r);
    const request_data *data = &p.requests[0];
    const layout how = LAYOUT_INIT;
    harness h;
    harness_build(&h, &p, &how);
    results clean = results_new(&h), dirty = results_new(&h);
    gpu_options options = plain_options(&p);
    gpu_case g;
    gpu_build(&g, &h, &options);
    gpu_run(&g);
    gpu_read(&g, clean.out, clean.lse);
    for (int k = 0; k < 3; k++) {
      const int head = rng_below(&r, p.num_heads), node = rng_below(&r, data->num_nodes);
      float *q = harness_q_row(&h, head, node);
      float *kept = malloc((size_t)p.head_dim * sizeof *kept);
      memcpy(kept, q, (size_t)p.head_dim * sizeof *kept);
      for (int d = 0; d < p.head_dim; d++) {
        q[d] = poisons[k];
      }
      gpu_refresh(&g);
      gpu_run(&g);
      gpu_read(&g, dirty.out, dirty.lse);
      memcpy(q, kept, (size_t)p.head_dim * sizeof *kept);
      free(kept);
      const int64_t row = (int64_t)node * p.num_heads + head;
      memcpy(dirty.out + row * clean.width, clean.out + row * clean.width, (size_t)clean.width * sizeof(float));
      CHECK_SAME_BITS("rows beside a poisoned query", dirty.out, clean.out, clean.rows, clean.width);
    }
    gpu_free(&g);
    harness_free(&h);
    results_free(&clean);
    results_free(&dirty);
    problem_free(&p);
  }
}

/* Free masks with biases: all encodings agree, a row alone has its bits, and the values are right. */
static void test_free_masks(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < trial_count(28, 7); n++) {
    rng r;
    const int index = trial_begin(&r, 209, n);
    problem p = make_problem(index, 20, false, &r);
    (void)round_for(&p);
    const request_data *data = &p.requests[0];
    const int cells = data->num_nodes * data->num_slots;
    uint8_t *sees = calloc((size_t)cells + 1, 1);
    float *bias = calloc((size_t)cells + 1, sizeof *bias);
    const int one_in = rng_range(&r, 2, 9);
    const bool holes = rng_chance(&r, 2);
    const bool biased = rng_chance(&r, 2);
    for (int c = 0; c < cells; c++) {
      sees[c] = c % data->num_slots < data->prefix_len && !holes ? 1 : !rng_chance(&r, one_in);
      bias[c] = !biased || rng_chance(&r, 2) ? 0.0f : 4.0f * rng_signed(&r);
    }
    layout how = gpu_layout_random(&r);
    how.no_lse = false;
    harness h;
    harness_build(&h, &p, &how);
    results first = results_new(&h), other = results_new(&h);
    gpu_options options = plain_options(&p);
    harness_set_mask(&h, 0, TREEATTN_MASK_DENSE_F32, sees, bias);
    gpu_once(&h, &options, first.out, first.lse);
    double *expected = calloc((size_t)first.width, sizeof *expected);
    double difference = 0, norm = 0;
    for (int64_t row = 0; row < first.rows; row++) {
      double lse = 0;
      const int node = (int)(row / p.num_heads);
      oracle_row(&p, data, node, (int)(row % p.num_heads), sees + (size_t)node * (size_t)data->num_slots,
                 bias + (size_t)node * (size_t)data->num_slots, expected, &lse);
      for (int64_t d = 0; d < first.width; d++) {
        const double delta = (double)first.out[row * first.width + d] - expected[d];
        difference += delta * delta;
        norm += expected[d] * expected[d];
      }
    }
    const double error = norm == 0.0 && difference == 0.0 ? 0.0 : sqrt(difference / norm);
    CHECK(error <= LIMIT, "relative error %g", error);
    for (int kind = TREEATTN_MASK_DENSE_F32; kind <= TREEATTN_MASK_BITS; kind++) {
      if (biased && kind != TREEATTN_MASK_DENSE_F32) {
        continue;
      }
      harness_set_mask(&h, 0, (treeattn_mask_kind)kind, sees, bias);
      gpu_options_random(&options, &r);
      gpu_once(&h, &options, other.out, other.lse);
      CHECK_SAME_BITS("another encoding or cut of a mask", other.out, first.out, first.rows, first.width);
      CHECK_SAME_BITS("another encoding or cut of a mask: lse", other.lse, first.lse, first.rows, 1);
    }
    free(expected);
    free(sees);
    free(bias);
    results_free(&first);
    results_free(&other);
    harness_free(&h);
    problem_free(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_accuracy),
      cmocka_unit_test(test_row_types),
      cmocka_unit_test(test_encodings_layouts_and_cuts),
      cmocka_unit_test(test_rows_alone_and_in_batches),
      cmocka_unit_test(test_paths),
      cmocka_unit_test(test_unseen_slots),
      cmocka_unit_test(test_what_is_no_data),
      cmocka_unit_test(test_other_queries),
      cmocka_unit_test(test_free_masks),
  };
  return cmocka_run_group_tests_name("cuda_fast", tests, NULL, NULL);
}
