/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: two encodings that say the same thing give other bits, or a mask says something else than it means. */
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/harness.h"
#include "support/oracle.h"

/* A request with a mask of its own over `slots` slots, described by visibility and bias. */
typedef struct mask_case {
  int num_nodes, slots;
  uint8_t *sees; /* [N][slots] */
  float *bias;   /* [N][slots] */
  problem p;     /* one request whose prefix_len is slots - N; its tree is unused */
} mask_case;

static mask_case mask_case_new(rng *r, int prefix, int nodes, treeattn_dtype dtype) {
  mask_case c;
  c.num_nodes = nodes;
  c.slots = prefix + nodes;
  c.sees = calloc((size_t)nodes * (size_t)c.slots + 1, 1);
  c.bias = calloc((size_t)nodes * (size_t)c.slots + 1, sizeof *c.bias);
  int num_kv_heads = rng_range(r, 1, 2);
  c.p = problem_new(num_kv_heads * rng_range(r, 1, 3), num_kv_heads, 32, 0, dtype);
  (void)problem_add_tree(&c.p, prefix, nodes, TREE_CHAIN, 4.0f, r);
  return c;
}

static void mask_case_free(mask_case *c) {
  free(c->sees);
  free(c->bias);
  problem_free(&c->p);
}

/* Any visibility: about one in `one_in` cells is hidden in the prefix; the tail is anything, also keys "after" the row. */
static void random_visibility(mask_case *c, rng *r, bool prefix_holes) {
  int prefix = c->slots - c->num_nodes;
  int one_in = rng_range(r, 2, 8);
  for (int i = 0; i < c->num_nodes; i++) {
    for (int s = 0; s < c->slots; s++) {
      bool seen = s < prefix ? !prefix_holes || !rng_chance(r, one_in) : rng_chance(r, 2);
      c->sees[i * c->slots + s] = seen;
    }
    if (prefix_holes && rng_chance(r, 8)) {
      memset(c->sees + (size_t)i * (size_t)c->slots, 0, (size_t)c->slots); /* an empty row */
    }
  }
}

typedef struct mask_run {
  treeattn_mask_kind kind;
  treeattn_isa isa;
  int64_t columns; /* 0: all */
  int64_t stride;  /* 0: packed */
  const int32_t *positions;
  float hidden; /* what a hidden f32 cell holds */
  bool with_bias;
} mask_run;

#define MASK_RUN_INIT \
  { .kind = TREEATTN_MASK_DENSE_F32, .hidden = TREEATTN_MASK_HIDDEN }

static treeattn_request mask_request(const mask_case *c, const mask_run *how, guarded *mask) {
  int columns = how->columns == 0 ? c->slots : (int)how->columns;
  int64_t stride = how->stride != 0 ? how->stride : (how->kind == TREEATTN_MASK_BITS ? (columns + 7) / 8 : columns);
  *mask = mask_encode(how->kind, c->sees, c->num_nodes, c->slots, columns, stride, false);
  for (int i = 0; how->kind == TREEATTN_MASK_DENSE_F32 && i < c->num_nodes; i++) {
    float *row = (float *)(void *)mask->data + i * stride;
    for (int column = 0; column < columns; column++) {
      int cell = i * c->slots + c->slots - columns + column;
      row[column] = c->sees[cell] == 0 ? how->hidden : (how->with_bias ? c->bias[cell] : 0.0f);
    }
  }
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = c->num_nodes;
  request.kv_seq_len = c->slots;
  request.mask_kind = how->kind;
  request.mask = mask->data;
  request.mask_bytes = mask->bytes;
  request.mask_columns = how->columns;
  request.mask_stride = how->stride;
  request.positions = how->positions;
  return request;
}

static void run_mask(const mask_case *c, const mask_run *how, float *out, float *lse) {
  guarded mask;
  treeattn_request request = mask_request(c, how, &mask);
  treeattn_plan_args args = problem_args(&c->p);
  args.requests = &request;
  args.num_requests = 1;
  args.kv_capacity = c->slots;
  args.isa = how->isa;
  const request_data *data = &c->p.requests[0];
  attend_simply(&args, data->q, data->k, data->v, c->p.sinks, out, lse);
  guarded_free(&mask);
}

static float *new_floats(int64_t count) {
  return calloc((size_t)count + 1, sizeof(float));
}

static int64_t out_count(const mask_case *c) {
  return (int64_t)c->num_nodes * c->p.num_heads * c->p.head_dim_v;
}

static int64_t lse_count(const mask_case *c) {
  return (int64_t)c->num_nodes * c->p.num_heads;
}

/* Against the oracle, row by row; empty rows exactly. */
static void compare_with_oracle(const mask_case *c, const float *out, const float *lse, bool with_bias) {
  const problem *p = &c->p;
  double *expected = calloc((size_t)p->head_dim_v, sizeof *expected);
  for (int i = 0; i < c->num_nodes; i++) {
    for (int h = 0; h < p->num_heads; h++) {
      double expected_lse;
      const float *row = out + (i * p->num_heads + h) * p->head_dim_v;
      float row_lse = lse[i * p->num_heads + h];
      oracle_row(p, &p->requests[0], i, h, c->sees + (size_t)i * (size_t)c->slots,
                 with_bias ? c->bias + (size_t)i * (size_t)c->slots : NULL, expected, &expected_lse);
      double error = relative_error(row, expected, p->head_dim_v);
      CHECK(error <= 4e-6, "node %d head %d: relative error %g", i, h, error);
      CHECK(expected_lse < -1e300 ? row_lse == -INFINITY
                                  : fabs((double)row_lse - expected_lse) <= 1e-5 + 2e-6 * fabs(expected_lse),
            "node %d head %d: lse %.9g instead of %.9g", i, h, (double)row_lse, expected_lse);
    }
  }
  free(expected);
}

/* Masks that no tree explains: holes anywhere, keys after the row, empty rows. All encodings, all instruction sets, one set of bits. */
static void test_masks_that_are_no_tree(void **state) {
  (void)state;
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  static const int prefixes[] = {0, 1, 5, 31, 64, 200, 480, 500, 512, 700, 1030};
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int n = 0; n < trial_count(44, 6); n++) {
    rng r;
    int index = trial_begin(&r, 31, n);
    mask_case c = mask_case_new(&r, prefixes[index % 11], rng_range(&r, 1, 70), PICK(&r, dtypes));
    bool holes = index % 3 != 0;
    random_visibility(&c, &r, holes);
    c.p.softcap = rng_chance(&r, 3) ? 8.0f : 0.0f;
    if (rng_chance(&r, 3)) {
      problem_set_sinks(&c.p, &r);
    }
    float *first = new_floats(out_count(&c)), *first_lse = new_floats(lse_count(&c));
    float *out = new_floats(out_count(&c)), *lse = new_floats(lse_count(&c));
    mask_run how = MASK_RUN_INIT;
    how.isa = TREEATTN_ISA_SCALAR;
    run_mask(&c, &how, first, first_lse);
    compare_with_oracle(&c, first, first_lse, false);
    for (int k = 0; k < num_isas; k++) {
      how.isa = isas[k];
      for (int kind = TREEATTN_MASK_DENSE_F32; kind <= TREEATTN_MASK_BITS; kind++) {
        how.kind = (treeattn_mask_kind)kind;
        how.columns = !holes && rng_chance(&r, 2) ? c.num_nodes : 0;
        how.stride = rng_chance(&r, 2) ? 0 : c.slots + rng_below(&r, 40);
        how.hidden = PICK(&r, ((const float[]){TREEATTN_MASK_HIDDEN, -65505.0f, -1e30f, -3.4e38f, -INFINITY}));
        run_mask(&c, &how, out, lse);
        char what[64];
        (void)snprintf(what, sizeof what, "mask kind %d, %s", kind, treeattn_isa_name(isas[k]));
        CHECK_SAME_BITS(what, out, first, lse_count(&c), c.p.head_dim_v);
        CHECK_SAME_BITS(what, lse, first_lse, lse_count(&c), 1);
      }
    }
    free(first);
    free(first_lse);
    free(out);
    free(lse);
    mask_case_free(&c);
  }
}

/* A row of such a mask depends on its own visibility alone: computed as the only row of its batch it has the same bits. */
static void test_mask_rows_alone(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(12, 3); n++) {
    rng r;
    (void)trial_begin(&r, 32, n);
    mask_case c = mask_case_new(&r, rng_below(&r, 600), rng_range(&r, 2, 40), TREEATTN_F16);
    random_visibility(&c, &r, true);
    float *all = new_floats(out_count(&c)), *lse = new_floats(lse_count(&c)), *one = new_floats(out_count(&c));
    mask_run how = MASK_RUN_INIT;
    run_mask(&c, &how, all, lse);
    guarded mask;
    treeattn_request request = mask_request(&c, &how, &mask);
    const problem *p = &c.p;
    float *q = new_floats((int64_t)p->num_heads * p->head_dim);
    for (int32_t i = 0; i < c.num_nodes; i++) {
      request.query_nodes = &i;
      request.num_queries = 1;
      treeattn_plan_args args = problem_args(p);
      args.requests = &request;
      args.num_requests = 1;
      args.kv_capacity = c.slots;
      args.isa = rng_chance(&r, 2) ? TREEATTN_ISA_AUTO : TREEATTN_ISA_SCALAR;
      for (int h = 0; h < p->num_heads; h++) {
        memcpy(q + h * p->head_dim, p->requests[0].q + (h * c.num_nodes + i) * p->head_dim,
               (size_t)p->head_dim * sizeof *q);
      }
      attend_simply(&args, q, p->requests[0].k, p->requests[0].v, NULL, one, NULL);
      CHECK_SAME_BITS("a mask row alone", one, all + i * p->num_heads * p->head_dim_v, p->num_heads, p->head_dim_v);
    }
    guarded_free(&mask);
    free(q);
    free(all);
    free(lse);
    free(one);
    mask_case_free(&c);
  }
}

static void test_biases(void **state) {
  (void)state;
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int n = 0; n < trial_count(24, 4); n++) {
    rng r;
    int index = trial_begin(&r, 33, n);
    mask_case c = mask_case_new(&r, PICK(&r, ((const int[]){0, 3, 60, 500, 515})), rng_range(&r, 1, 40), TREEATTN_F32);
    random_visibility(&c, &r, index % 2 == 0);
    c.p.softcap = index % 3 == 0 ? 3.0f : 0.0f;
    for (int cell = 0; cell < c.num_nodes * c.slots; cell++) {
      c.bias[cell] = rng_chance(&r, 3) ? 0.0f : 6.0f * rng_signed(&r);
    }
    float *first = new_floats(out_count(&c)), *lse = new_floats(lse_count(&c)), *out = new_floats(out_count(&c));
    mask_run how = MASK_RUN_INIT;
    how.with_bias = true;
    how.isa = TREEATTN_ISA_SCALAR;
    run_mask(&c, &how, first, lse);
    compare_with_oracle(&c, first, lse, true);
    for (int k = 0; k < num_isas; k++) {
      how.isa = isas[k];
      how.stride = rng_chance(&r, 2) ? 0 : c.slots + rng_below(&r, 40);
      run_mask(&c, &how, out, lse);
      CHECK_SAME_BITS("bias", out, first, lse_count(&c), c.p.head_dim_v);
    }
    free(first);
    free(out);
    free(lse);
    mask_case_free(&c);
  }
}

/* The smallest bias is the first float above the hidden value; it is added, not hidden: alone it changes nothing but the lse. */
static void test_bias_just_above_hidden(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 34, 0);
  mask_case c = mask_case_new(&r, 0, 1, TREEATTN_F32);
  c.sees[0] = 1;
  float *plain = new_floats(out_count(&c)), *out = new_floats(out_count(&c)), *lse = new_floats(lse_count(&c));
  mask_run how = MASK_RUN_INIT;
  how.with_bias = true;
  run_mask(&c, &how, plain, lse);
  c.bias[0] = nextafterf(TREEATTN_MASK_HIDDEN, 0.0f);
  run_mask(&c, &how, out, lse);
  CHECK_SAME_BITS("a single key with a large negative bias", out, plain, lse_count(&c), c.p.head_dim_v);
  CHECK(lse[0] < -65000.0f && lse[0] > -66000.0f, "lse is %g", (double)lse[0]);
  c.bias[0] = TREEATTN_MASK_HIDDEN;
  run_mask(&c, &how, out, lse);
  for (int64_t d = 0; d < out_count(&c); d++) {
    CHECK(out[d] == 0.0f && !signbit(out[d]), "a hidden key gives %g at channel %lld", (double)out[d], (long long)d);
  }
  CHECK(lse[0] == -INFINITY, "lse of a row without keys is %g", (double)lse[0]);
  free(plain);
  free(out);
  free(lse);
  mask_case_free(&c);
}

/* A dense f32 mask without biases may be released after planning; one with biases is read by the run. */
static void test_forbidden_mask_values(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 35, 0);
  static const float forbidden[] = {NAN, INFINITY};
  for (int n = 0; n < 40; n++) {
    mask_case c = mask_case_new(&r, rng_below(&r, 600), rng_range(&r, 1, 20), TREEATTN_F32);
    random_visibility(&c, &r, true);
    mask_run how = MASK_RUN_INIT;
    how.stride = c.slots + rng_below(&r, 3);
    guarded mask;
    treeattn_request request = mask_request(&c, &how, &mask);
    treeattn_plan_args args = problem_args(&c.p);
    args.requests = &request;
    args.num_requests = 1;
    args.kv_capacity = c.slots;
    int row = rng_below(&r, c.num_nodes), column = rng_below(&r, c.slots);
    ((float *)(void *)mask.data)[row * how.stride + column] = forbidden[n % 2];
    char node[32], cell[32];
    (void)snprintf(node, sizeof node, "%d", row);
    (void)snprintf(cell, sizeof cell, "%d", column);
    treeattn_plan *plan = NULL;
    CHECK_ERROR(treeattn_plan_create(&args, &plan, &error), TREEATTN_ERROR_INVALID_MASK, "mask", node, cell);
    CHECK(plan == NULL, "a refused mask left a plan");
    guarded_free(&mask);
    mask_case_free(&c);
  }
}

/* More rows than slots: P is 0 and every slot belongs to the tail. */
static void test_more_rows_than_slots(void **state) {
  (void)state;
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int n = 0; n < trial_count(12, 3); n++) {
    rng r;
    (void)trial_begin(&r, 36, n);
    int slots = rng_range(&r, 1, 20), rows = slots + rng_range(&r, 1, 60);
    problem p = problem_new(2, 1, 32, 0, TREEATTN_F16);
    (void)problem_add_tree(&p, 0, rows, TREE_CHAIN, 4.0f, &r); /* the cache holds more slots than the request uses */
    request_data *data = &p.requests[0];
    uint8_t *sees = calloc((size_t)rows * (size_t)slots, 1), *full = calloc((size_t)rows * (size_t)data->num_slots, 1);
    for (int i = 0; i < rows; i++) {
      for (int s = 0; s < slots; s++) {
        sees[i * slots + s] = full[i * data->num_slots + s] = rng_chance(&r, 2);
      }
    }
    float *first = new_floats((int64_t)rows * 2 * 32), *out = new_floats((int64_t)rows * 2 * 32),
          *lse = new_floats(rows * 2);
    for (int k = 0; k < num_isas; k++) {
      for (int kind = TREEATTN_MASK_DENSE_F32; kind <= TREEATTN_MASK_BITS; kind++) {
        int64_t stride = kind == TREEATTN_MASK_BITS ? (slots + 7) / 8 : slots;
        guarded mask = mask_encode((treeattn_mask_kind)kind, sees, rows, slots, slots, stride, false);
        treeattn_request request = TREEATTN_REQUEST_INIT;
        request.num_nodes = rows;
        request.kv_seq_len = slots;
        request.mask_kind = (treeattn_mask_kind)kind;
        request.mask = mask.data;
        request.mask_bytes = mask.bytes;
        treeattn_plan_args args = problem_args(&p);
        args.requests = &request;
        args.num_requests = 1;
        args.kv_capacity = data->num_slots;
        args.isa = isas[k];
        bool is_first = k == 0 && kind == TREEATTN_MASK_DENSE_F32;
        attend_simply(&args, data->q, data->k, data->v, NULL, is_first ? first : out, lse);
        if (!is_first) {
          CHECK_SAME_BITS("more rows than slots", out, first, rows * 2, 32);
        }
        guarded_free(&mask);
      }
    }
    for (int i = 0; i < rows; i++) {
      for (int h = 0; h < 2; h++) {
        double expected[32], expected_lse;
        oracle_row(&p, data, i, h, full + (size_t)i * (size_t)data->num_slots, NULL, expected, &expected_lse);
        double error = relative_error(first + (i * 2 + h) * 32, expected, 32);
        CHECK(error <= 4e-6, "row %d of %d over %d slots: relative error %g", i, rows, slots, error);
      }
    }
    free(first);
    free(out);
    free(lse);
    free(sees);
    free(full);
    problem_free(&p);
  }
}

static void check_positions(const treeattn_plan_args *args, const int32_t *expected, int64_t count, const char *what) {
  treeattn_plan *plan = NULL;
  CHECK_OK(treeattn_plan_create(args, &plan, &error));
  int32_t *positions = calloc((size_t)count + 1, sizeof *positions);
  CHECK_OK(treeattn_plan_get_positions(plan, positions, count, &error));
  for (int64_t i = 0; i < count; i++) {
    CHECK(positions[i] == expected[i], "%s: position of row %lld is %d instead of %d", what, (long long)i,
          (int)positions[i], (int)expected[i]);
  }
  if (count > 0) {
    char have[32], need[32];
    (void)snprintf(have, sizeof have, "%lld", (long long)(count - 1));
    (void)snprintf(need, sizeof need, "%lld", (long long)count);
    positions[0] = -77;
    CHECK_ERROR(treeattn_plan_get_positions(plan, positions, count - 1, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL,
                "capacity", have, need);
    CHECK(positions[0] == -77, "positions were written although they do not fit");
  }
  free(positions);
  treeattn_plan_destroy(plan);
}

/* Positions follow depth in every encoding. */
static void test_positions_of_every_encoding(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(20, 4); n++) {
    rng r;
    int index = trial_begin(&r, 37, n);
    problem p = problem_new(1, 1, 8, 0, TREEATTN_F32);
    (void)problem_add_tree(&p, rng_below(&r, 100), rng_range(&r, 1, 80), (tree_shape)(index % NUM_TREE_SHAPES), 1.0f,
                           &r);
    const request_data *data = &p.requests[0];
    int32_t *expected = calloc((size_t)data->num_nodes, sizeof *expected);
    for (int i = 0; i < data->num_nodes; i++) {
      expected[i] = data->prefix_len + data->depths[i];
    }
    for (int kind = TREEATTN_MASK_CHAIN; kind <= TREEATTN_MASK_BITS; kind++) {
      layout how = LAYOUT_INIT;
      how.encoding = (treeattn_mask_kind)kind;
      harness h;
      harness_build(&h, &p, &how);
      check_positions(&h.args, expected, data->num_nodes, "an encoding");
      harness_free(&h);
    }
    free(expected);
    problem_free(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_masks_that_are_no_tree),
      cmocka_unit_test(test_mask_rows_alone),
      cmocka_unit_test(test_biases),
      cmocka_unit_test(test_bias_just_above_hidden),
      cmocka_unit_test(test_forbidden_mask_values),
      cmocka_unit_test(test_more_rows_than_slots),
      cmocka_unit_test(test_positions_of_every_encoding),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
