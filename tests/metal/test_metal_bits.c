/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: the Metal kernels give other bits than the scalar reference, for some layout, encoding, type or size. */
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "metal_harness.h"
#include "support/capture.h"
#include "support/halves.h"

#ifndef __APPLE__
#include "standin/bridge.h"
#endif

static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};

/* The GPU's kernels, in a layout that must not matter, against the scalar reference in the plainest one. */
static void against_scalar(const problem *p, rng *r) {
  int64_t rows = problem_rows(p) * p->num_heads;
  size_t count = (size_t)(rows * p->head_dim_v) + 1;
  float *expected = calloc(count, sizeof(float)), *out = calloc(count, sizeof(float));
  float *expected_lse = calloc((size_t)rows + 1, sizeof(float)), *lse = calloc((size_t)rows + 1, sizeof(float));
  layout plain = LAYOUT_INIT;
  plain.isa = TREEATTN_ISA_SCALAR;
  harness_once(p, &plain, expected, expected_lse);
  thread_team team;
  rng order;
  layout how = layout_random(r, &team, &order);
  metal_once(p, &how, out, lse, r);
  char what[128];
  (void)snprintf(what, sizeof what, "Metal, D %d/%d, H %d/%d, %s, window %lld, softcap %g", p->head_dim, p->head_dim_v,
                 p->num_heads, p->num_kv_heads, treeattn_dtype_name(p->kv_dtype), (long long)p->window,
                 (double)p->softcap);
  CHECK_SAME_BITS(what, out, expected, rows, p->head_dim_v);
  CHECK_SAME_BITS(what, lse, expected_lse, rows, 1);
  free(expected);
  free(expected_lse);
  free(out);
  free(lse);
}

static void test_all_features(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(60, 10); n++) {
    rng r;
    int index = trial_begin(&r, 151, n);
    int num_kv_heads = rng_range(&r, 1, 2);
    problem p = problem_new(num_kv_heads * rng_range(&r, 1, 9), num_kv_heads, 8 * (1 + index % 20),
                            8 * rng_range(&r, 0, 20), dtypes[index % 3]);
    p.window = rng_chance(&r, 3) ? rng_range(&r, 1, 120) : 0;
    p.softcap = rng_chance(&r, 3) ? PICK(&r, ((const float[]){0.5f, 3.0f, 50.0f, 1e-3f, 1e30f})) : 0.0f;
    p.scale = rng_chance(&r, 6) ? 0.0f : p.scale;
    if (rng_chance(&r, 3)) {
      problem_set_sinks(&p, &r);
    }
    int requests = rng_range(&r, 1, 3);
    for (int k = 0; k < requests; k++) {
      (void)problem_add_tree(&p, rng_below(&r, rng_chance(&r, 4) ? 560 : 90), rng_range(&r, 0, 20),
                             (tree_shape)rng_below(&r, NUM_TREE_SHAPES), PICK(&r, ((const float[]){1.0f, 8.0f, 60.0f})),
                             &r);
    }
    against_scalar(&p, &r);
    problem_free(&p);
  }
}

/* Every head dimension that models have, with every cache type; also K and V that differ, as in MLA. */
static void test_head_dims(void **state) {
  (void)state;
  static const int dims[][2] = {{64, 64},   {80, 80},   {96, 96},   {128, 128}, {192, 192},
                                {256, 256}, {512, 512}, {576, 512}, {8, 1024},  {1024, 8}};
  const int count = (int)(sizeof dims / sizeof dims[0]);
  for (int n = 0; n < trial_count(3 * count, 3 * count); n++) {
    rng r;
    int index = trial_begin(&r, 152, n);
    int num_kv_heads = rng_range(&r, 1, 2);
    problem p = problem_new(num_kv_heads * rng_range(&r, 1, 5), num_kv_heads, dims[index % count][0],
                            dims[index % count][1], dtypes[index / count]);
    (void)problem_add_tree(&p, rng_below(&r, 150), rng_range(&r, 1, 6), TREE_RANDOM, 4.0f, &r);
    against_scalar(&p, &r);
    problem_free(&p);
  }
}

/* Leaves, groups of leaves, and what is at their edges; as many threadgroups as there can be, and as few. */
static void test_long_contexts(void **state) {
  (void)state;
  static const int prefixes[] = {510, 511, 512, 1023, 1024, 1500, 8190, 8192, 8700, 16380, 17000};
  const int count = (int)(sizeof prefixes / sizeof prefixes[0]);
  for (int n = 0; n < trial_count(2 * count, 8); n++) {
    rng r;
    int index = trial_begin(&r, 153, n);
    problem p = problem_new(2, 1, 8, 0, dtypes[index % 3]);
    p.window = index % 5 == 4 ? rng_range(&r, 400, 9000) : 0;
    (void)problem_add_tree(&p, prefixes[index % count], rng_range(&r, 1, 6), TREE_DEEP, 30.0f, &r);
    int64_t rows = problem_rows(&p) * p.num_heads;
    float *expected = calloc((size_t)(rows * 8), sizeof(float)), *out = calloc((size_t)(rows * 8), sizeof(float));
    layout how = LAYOUT_INIT;
    how.isa = TREEATTN_ISA_SCALAR;
    harness_once(&p, &how, expected, NULL);
    how.isa = TREEATTN_ISA_AUTO;
    how.num_workers = index % 2 == 0 ? 1 : 1024;
    how.page_size = rng_chance(&r, 2) ? 16 : 0;
    how.encoding = rng_chance(&r, 2) ? TREEATTN_MASK_BITS : TREEATTN_MASK_PARENTS;
    metal_once(&p, &how, out, NULL, &r);
    CHECK_SAME_BITS("a long context", out, expected, rows, 8);
    free(expected);
    free(out);
    problem_free(&p);
  }
}

/* Trees so wide that a position has more keys than a block has positions. */
static void test_wide_trees(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(6, 2); n++) {
    rng r;
    int index = trial_begin(&r, 154, n);
    problem p = problem_new(1 + index % 3, 1, 16, 0, dtypes[index % 3]);
    (void)problem_add_tree(&p, rng_below(&r, 80), 150, index % 2 == 0 ? TREE_ROOTS : TREE_STAR, 4.0f, &r);
    against_scalar(&p, &r);
    problem_free(&p);
  }
}

/* Scores far apart, tied, equal, huge, tiny. */
static void test_extreme_values(void **state) {
  (void)state;
  static const float q_values[] = {0.0f, -0.0f, 1.0f, 1e-38f, 1e-45f, 1e20f, -1e20f, 3e38f, 1e-20f, 65504.0f};
  static const float k_values[] = {0.0f, -0.0f, 1.0f, -1.0f, 1e-40f, 6e-8f, 1e-7f, 65504.0f, -65504.0f, 3e38f, 1e30f};
  for (int n = 0; n < trial_count(60, 10); n++) {
    rng r;
    int index = trial_begin(&r, 155, n);
    problem p = problem_new(2, 1, 8 * rng_range(&r, 1, 6), 0, dtypes[index % 3]);
    request_data *data = problem_add_tree(&p, rng_below(&r, 50), rng_range(&r, 1, 12), TREE_RANDOM, 1.0f, &r);
    bool mixed = rng_chance(&r, 2);
    float q_one = PICK(&r, q_values), k_one = PICK(&r, k_values);
    for (int i = 0; i < p.num_heads * data->num_nodes * p.head_dim; i++) {
      data->q[i] = rng_chance(&r, 2) ? (mixed ? PICK(&r, q_values) : q_one) : data->q[i];
    }
    for (int i = 0; i < data->num_slots * p.head_dim; i++) {
      if (rng_chance(&r, 2)) {
        float value = mixed ? PICK(&r, k_values) : k_one;
        element_store(p.kv_dtype, data->k, i,
                      p.kv_dtype == TREEATTN_F16 ? fmaxf(fminf(value, 65504.0f), -65504.0f) : value);
      }
      if (rng_chance(&r, 3)) {
        element_store(p.kv_dtype, data->v, i, PICK(&r, k_values));
      }
    }
    p.softcap = rng_chance(&r, 3) ? 10.0f : 0.0f;
    against_scalar(&p, &r);
    problem_free(&p);
  }
}

/* NaN of every kind, and infinities, in one element of a key or a value. */
static void test_nan_in_keys(void **state) {
  (void)state;
  static const uint32_t f32_nans[] = {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u,
                                      0x7fffffffu, 0xffffffffu, 0x7f800000u, 0xff800000u};
  static const uint16_t f16_nans[] = {0x7e00, 0xfe00, 0x7c01, 0xfc01, 0x7fff, 0xffff, 0x7c00, 0xfc00};
  static const uint16_t bf16_nans[] = {0x7fc0, 0xffc0, 0x7f81, 0xff81, 0x7fff, 0xffff, 0x7f80, 0xff80};
  for (int n = 0; n < trial_count(48, 24); n++) {
    rng r;
    int index = trial_begin(&r, 156, n);
    problem p = problem_new(4, 2, 32, 0, dtypes[index % 3]);
    p.softcap = rng_chance(&r, 3) ? 4.0f : 0.0f;
    request_data *data =
        problem_add_tree(&p, PICK(&r, ((const int[]){4, 30, 520})), rng_range(&r, 1, 12), TREE_RANDOM, 2.0f, &r);
    int kind = (index / 3) % 8;
    int64_t at = (int64_t)(rng_below(&r, 2) * data->num_slots + rng_below(&r, data->num_slots)) * p.head_dim +
                 rng_below(&r, p.head_dim);
    void *cache = rng_chance(&r, 2) ? data->v : data->k;
    if (p.kv_dtype == TREEATTN_F32) {
      memcpy((float *)cache + at, &f32_nans[kind], 4);
    } else {
      ((uint16_t *)cache)[at] = p.kv_dtype == TREEATTN_F16 ? f16_nans[kind] : bf16_nans[kind];
    }
    against_scalar(&p, &r);
    problem_free(&p);
  }
}

/* A dense mask with biases, and one that no tree explains. */
static void test_dense_masks(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(30, 8); n++) {
    rng r;
    int index = trial_begin(&r, 157, n);
    problem p = problem_new(4, 2, 24, 0, dtypes[index % 3]);
    request_data *data =
        problem_add_tree(&p, PICK(&r, ((const int[]){0, 7, 70, 515})), rng_range(&r, 1, 12), TREE_CHAIN, 3.0f, &r);
    p.softcap = rng_chance(&r, 3) ? 6.0f : 0.0f;
    layout how = LAYOUT_INIT;
    how.encoding = TREEATTN_MASK_DENSE_F32;
    how.square_mask = index % 4 == 0;
    how.mask_pad = rng_below(&r, 4);
    how.num_workers = rng_range(&r, 1, 64);
    int32_t order[16];
    for (int i = 0; i < data->num_nodes; i++) {
      order[i] = i;
    }
    rng_shuffle(&r, order, data->num_nodes);
    const int32_t *queries[] = {order};
    const int64_t num_queries[] = {rng_range(&r, 1, data->num_nodes)};
    how.query_nodes = rng_chance(&r, 2) ? queries : NULL;
    how.num_queries = num_queries;
    float *expected = calloc((size_t)(12 * 4 * 24), sizeof(float)), *out = calloc((size_t)(12 * 4 * 24), sizeof(float));
    for (int pass = 0; pass < 2; pass++) { /* the same cells for the reference and for the GPU */
      harness h;
      how.isa = pass == 0 ? TREEATTN_ISA_SCALAR : TREEATTN_ISA_AUTO;
      harness_build(&h, &p, &how);
      rng cells = {r.state};
      int columns = how.square_mask ? data->num_nodes : data->num_slots;
      for (int i = 0; i < data->num_nodes; i++) {
        for (int c = 0; c < columns; c++) {
          float cell =
              rng_chance(&cells, 3) ? TREEATTN_MASK_HIDDEN : (rng_chance(&cells, 2) ? 4.0f * rng_signed(&cells) : 0.0f);
          memcpy(h.masks[0].data + (size_t)(i * (columns + how.mask_pad) + c) * sizeof cell, &cell, sizeof cell);
        }
      }
      treeattn_plan_destroy(h.plan);
      CHECK_OK(treeattn_plan_create(&h.args, &h.plan, &error));
      if (pass == 0) {
        h.info = plan_info(h.plan);
        harness_run(&h);
        harness_read(&h, expected, NULL);
      } else {
        metal_buffers m;
        metal_buffers_new(&m, &h, &r);
        CHECK_OK(treeattn_metal_attend(metal_of_tests(), h.plan, &m.run, &error));
        metal_buffers_read(&m, &h, out, NULL);
        metal_buffers_free(&m);
      }
      CHECK(h.rows <= 12, "too many rows for this test");
      if (pass == 1) {
        CHECK_SAME_BITS("a dense mask with biases", out, expected, h.rows * 4, 24);
      }
      harness_free(&h);
    }
    free(expected);
    free(out);
    problem_free(&p);
  }
}

/* A layer of a real model with its draft tree. */
static void test_real_inputs(void **state) {
  (void)state;
  capture c;
  CHECK(capture_open(&c, TA_SOURCE_DIR "/examples/data/code.safetensors"), "the example data is missing");
  rng r;
  int layers = 0;
  for (int layer = 0; layer < 64; layer++) {
    problem p;
    if (capture_layer(&c, layer, &p)) {
      (void)trial_begin(&r, 158, layer);
      if (layers++ == 0 || !test_quick()) {
        against_scalar(&p, &r);
      }
      problem_free(&p);
    }
  }
  CHECK(layers > 0, "the example data has no layer");
  capture_close(&c);
}

#ifndef __APPLE__
/* The kernels of this program were compiled as its name says: a product and a sum are fused, or they are not. */
static void test_contraction_is_what_it_is_called(void **state) {
  (void)state;
  static const char text[] = "kernel void product_and_sum(device float *x [[buffer(0)]])";
  float x[4] = {1.0f + 0x1p-12f, 1.0f + 0x1p-12f, -1.0f - 0x1p-11f, 0.0f};
  standin_source *source = standin_source_new(text);
  standin_dispatch dispatch;
  memset(&dispatch, 0, sizeof dispatch);
  dispatch.source = source;
  dispatch.kernel = "product_and_sum";
  dispatch.data[0] = (unsigned char *)x;
  dispatch.bytes[0] = sizeof x;
  dispatch.grid[0] = dispatch.grid[1] = dispatch.grid[2] = dispatch.lanes = 1;
  const char *report = standin_run(&dispatch);
  CHECK(report[0] == '\0', "%s", report);
  CHECK(x[3] == (TA_CONTRACTED ? 0x1p-24f : 0.0f), "the product and the sum gave %g", (double)x[3]);
  standin_source_free(source);
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
#ifndef __APPLE__
      cmocka_unit_test(test_contraction_is_what_it_is_called),
#endif
      cmocka_unit_test(test_all_features),
      cmocka_unit_test(test_head_dims),
      cmocka_unit_test(test_long_contexts),
      cmocka_unit_test(test_wide_trees),
      cmocka_unit_test(test_extreme_values),
      cmocka_unit_test(test_nan_in_keys),
      cmocka_unit_test(test_dense_masks),
      cmocka_unit_test(test_real_inputs),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  metal_close();
  return failed;
}
