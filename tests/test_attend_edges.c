/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: the smallest, emptiest and largest legal inputs: empty rows and batches, sinks, extreme biases, shared memory, merging nothing. */
#include "support/check.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/harness.h"
#include "support/oracle.h"

static void zero_row(const float *row, int count, const char *what) {
  for (int d = 0; d < count; d++) {
    uint32_t bits;
    memcpy(&bits, &row[d], sizeof bits);
    CHECK(bits == 0, "%s: channel %d is %g (0x%08x) instead of +0", what, d, (double)row[d], (unsigned)bits);
  }
}

/* Runs one request with a bool mask over all of its slots, on every instruction set, into out [N][H][DV] and lse [N][H]. */
static void run_visibility(const problem *p, const uint8_t *sees, treeattn_isa isa, float *out, float *lse) {
  const request_data *data = &p->requests[0];
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = data->num_nodes;
  request.kv_seq_len = data->num_slots;
  request.mask_kind = TREEATTN_MASK_DENSE_BOOL;
  request.mask = sees;
  request.mask_bytes = (size_t)data->num_nodes * (size_t)data->num_slots;
  treeattn_plan_args args = problem_args(p);
  args.requests = &request;
  args.num_requests = 1;
  args.kv_capacity = data->num_slots;
  args.isa = isa;
  attend_simply(&args, data->q, data->k, data->v, p->sinks, out, lse);
}

/* Rows that see nothing among rows that do, in front, in the middle and at the end, with and without sinks. */
static void test_empty_rows(void **state) {
  (void)state;
  enum { NODES = 64, HEADS = 2, DIM = 32 };
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int place = 0; place < 3; place++) {
    for (int with_sinks = 0; with_sinks < 2; with_sinks++) {
      rng r;
      (void)trial_begin(&r, 81, place * 2 + with_sinks);
      problem p = problem_new(HEADS, 1, DIM, 0, TREEATTN_F32);
      request_data *data = problem_add_tree(&p, place * 250, NODES, TREE_CHAIN, 3.0f, &r);
      if (with_sinks != 0) {
        problem_set_sinks(&p, &r);
        p.sinks[0] = 2.0f;
      }
      size_t cells = NODES * (size_t)data->num_slots;
      uint8_t *full = malloc(cells), *holed = malloc(cells);
      memset(full, 1, cells);
      memcpy(holed, full, cells);
      int first = place == 0 ? 0 : (place == 1 ? 20 : NODES - 15);
      memset(holed + (size_t)first * (size_t)data->num_slots, 0, 15 * (size_t)data->num_slots);
      float *all = calloc(NODES * HEADS * DIM, sizeof *all), *out = calloc(NODES * HEADS * DIM, sizeof *out);
      float all_lse[NODES * HEADS], lse[NODES * HEADS];
      for (int n = 0; n < num_isas; n++) {
        run_visibility(&p, full, isas[n], all, all_lse);
        run_visibility(&p, holed, isas[n], out, lse);
        for (int i = 0; i < NODES; i++) {
          bool empty = i >= first && i < first + 15;
          if (empty) {
            zero_row(out + i * HEADS * DIM, HEADS * DIM, "an empty row");
            CHECK(lse[i * HEADS] == -INFINITY && lse[i * HEADS + 1] == -INFINITY, "lse of an empty row is %g",
                  (double)lse[i * HEADS]);
          } else {
            CHECK_SAME_BITS("a row beside empty ones", out + i * HEADS * DIM, all + i * HEADS * DIM, HEADS, DIM);
            CHECK_SAME_BITS("lse beside empty rows", lse + i * HEADS, all_lse + i * HEADS, 1, HEADS);
          }
        }
      }
      memset(holed, 0, cells);
      run_visibility(&p, holed, TREEATTN_ISA_AUTO, out, lse);
      zero_row(out, NODES * HEADS * DIM, "nothing is seen at all");
      free(full);
      free(holed);
      free(all);
      free(out);
      problem_free(&p);
    }
  }
}

static void test_empty_batches(void **state) {
  (void)state;
  for (int requests = 0; requests < 4; requests++) {
    for (int page_size = 0; page_size <= 16; page_size += 16) {
      rng r;
      (void)trial_begin(&r, 82, requests);
      problem p = problem_new(2, 1, 32, 0, TREEATTN_F16);
      for (int n = 0; n < requests; n++) {
        (void)problem_add_tree(&p, n * 20, 0, TREE_CHAIN, 1.0f, &r);
      }
      for (int kind = TREEATTN_MASK_CHAIN; kind <= TREEATTN_MASK_BITS; kind++) {
        layout how = LAYOUT_INIT;
        how.page_size = page_size;
        how.encoding = (treeattn_mask_kind)kind;
        harness h;
        harness_build(&h, &p, &how);
        CHECK(h.info.num_query_rows == 0 && h.info.out_bytes == 0 && h.info.q_bytes == 0,
              "an empty batch needs %zu bytes of output", h.info.out_bytes);
        harness_run(&h);
        CHECK_OK(treeattn_plan_get_positions(h.plan, NULL, 0, &error));
        harness_free(&h);
      }
      problem_free(&p);
    }
  }
}

/* Sinks from nothing to everything, against the oracle; -infinity is no sink, to the bit. */
static void test_sinks(void **state) {
  (void)state;
  static const float sinks[] = {-INFINITY, -0x1p127f, -1e30f, -200.0f, -1.0f, -0.0f,
                                0.0f,      1.0f,      30.0f,  200.0f,  1e30f, 0x1p127f};
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (size_t n = 0; n < sizeof sinks / sizeof sinks[0]; n++) {
    rng r;
    (void)trial_begin(&r, 83, (int)n);
    problem p = problem_new(2, 1, 32, 0, TREEATTN_F32);
    (void)problem_add_tree(&p, 530, 5, TREE_RANDOM, 3.0f, &r);
    float without[5 * 2 * 32], without_lse[10], out[5 * 2 * 32], lse[10];
    double expected[5 * 2 * 32], expected_lse[10];
    layout how = LAYOUT_INIT;
    harness_once(&p, &how, without, without_lse);
    problem_set_sinks(&p, &r);
    p.sinks[0] = p.sinks[1] = sinks[n];
    oracle_all(&p, expected, expected_lse);
    for (int k = 0; k < num_isas; k++) {
      how.isa = isas[k];
      harness_once(&p, &how, out, lse);
      if (sinks[n] == -INFINITY) {
        CHECK_SAME_BITS("a sink of -infinity", out, without, 10, 32);
        CHECK_SAME_BITS("lse with a sink of -infinity", lse, without_lse, 10, 1);
      }
      for (int row = 0; row < 10; row++) {
        double error = 0;
        for (int d = 0; d < 32; d++) { /* absolute: with a large sink the exact result is below the smallest float */
          error = fmax(error, fabs((double)out[row * 32 + d] - expected[row * 32 + d]));
          CHECK(out[row * 32 + d] == out[row * 32 + d], "sink %g: row %d channel %d is NaN", (double)sinks[n], row, d);
        }
        CHECK(error <= 1e-6, "sink %g: row %d is off by %g", (double)sinks[n], row, error);
        CHECK(fabs((double)lse[row] - expected_lse[row]) <= 2e-6 * fmax(1.0, fabs(expected_lse[row])),
              "sink %g: lse %.9g, not %.9g", (double)sinks[n], (double)lse[row], expected_lse[row]);
      }
    }
    problem_free(&p);
  }
}

/* Biases up to the largest allowed: the key with it takes all the weight, nothing becomes NaN. Beyond it: an error. */
static void test_extreme_biases(void **state) {
  (void)state;
  static const float biases[] = {1e4f, 1e10f, 1e30f, 0x1p126f, 0x1p127f, 0x1.000002p127f, 2.4e38f, FLT_MAX};
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (size_t n = 0; n < sizeof biases / sizeof biases[0]; n++) {
    enum { SLOTS = 20, DIM = 8 };
    problem p = problem_new(1, 1, DIM, 0, TREEATTN_F32);
    float q[DIM], k[SLOTS * DIM], v[SLOTS * DIM], out[DIM], mask[SLOTS] = {0}, lse;
    for (int e = 0; e < SLOTS * DIM; e++) {
      q[e % DIM] = fill_value((uint32_t)e, 1);
      k[e] = fill_value((uint32_t)e, 2);
      v[e] = fill_value((uint32_t)e, 3);
    }
    mask[13] = biases[n];
    treeattn_request request = TREEATTN_REQUEST_INIT;
    request.num_nodes = 1;
    request.kv_seq_len = SLOTS;
    request.mask_kind = TREEATTN_MASK_DENSE_F32;
    request.mask = mask;
    request.mask_bytes = sizeof mask;
    treeattn_plan_args args = problem_args(&p);
    args.requests = &request;
    args.num_requests = 1;
    args.kv_capacity = SLOTS;
    for (int isa = 0; isa < num_isas; isa++) {
      args.isa = isas[isa];
      if (biases[n] > 0x1p127f) {
        treeattn_plan *plan = NULL;
        CHECK_ERROR(treeattn_plan_create(&args, &plan, &error), TREEATTN_ERROR_INVALID_MASK, "mask", "column 13", NULL);
        continue;
      }
      attend_simply(&args, q, k, v, NULL, out, &lse);
      char what[64];
      (void)snprintf(what, sizeof what, "the key with bias %g", (double)biases[n]);
      CHECK_SAME_BITS(what, out, v + 13 * DIM, 1, DIM);
      CHECK(fabs((double)lse - (double)biases[n]) <= 3 + 2e-6 * (double)biases[n], "%s: lse is %.9g", what,
            (double)lse);
    }
  }
}

/* MLA: V is the first channels of K, in the same memory. */
static void test_v_inside_k(void **state) {
  (void)state;
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  for (int n = 0; n < trial_count(6, 3); n++) {
    rng r;
    int index = trial_begin(&r, 84, n);
    problem p = problem_new(rng_range(&r, 1, 16), 1, 576, 512, dtypes[index % 3]);
    request_data *data = problem_add_tree(&p, rng_range(&r, 0, 40), rng_range(&r, 1, 12), TREE_RANDOM, 3.0f, &r);
    size_t element = element_bytes(p.kv_dtype);
    for (int s = 0; s < data->num_slots; s++) {
      memcpy((unsigned char *)data->v + (size_t)s * 512 * element, (unsigned char *)data->k + (size_t)s * 576 * element,
             512 * element);
    }
    size_t count = (size_t)data->num_nodes * (size_t)p.num_heads;
    float *expected = calloc(count * 512, sizeof *expected), *out = calloc(count * 512, sizeof *out);
    layout how = LAYOUT_INIT;
    harness_once(&p, &how, expected, NULL);
    treeattn_request request = TREEATTN_REQUEST_INIT;
    request.num_nodes = data->num_nodes;
    request.prefix_len = data->prefix_len;
    request.mask_kind = TREEATTN_MASK_PARENTS;
    request.mask = data->parents;
    request.mask_bytes = (size_t)data->num_nodes * sizeof(int32_t);
    treeattn_plan_args args = problem_args(&p);
    args.requests = &request;
    args.num_requests = 1;
    args.kv_capacity = data->num_slots;
    args.v_stride_slot = 576;
    args.v_stride_head = args.v_stride_sequence = 576 * (int64_t)data->num_slots;
    attend_simply(&args, data->q, data->k, data->k, NULL, out, NULL);
    CHECK_SAME_BITS("V inside K", out, expected, (int64_t)count, 512);
    free(expected);
    free(out);
    problem_free(&p);
  }
}

/* prefix_len and kv_seq_len may each be left to the other; slots past P + N hold no data. */
static void test_automatic_lengths(void **state) {
  (void)state;
  rng r;
  (void)trial_begin(&r, 85, 0);
  problem p = problem_new(2, 1, 32, 0, TREEATTN_F32);
  request_data *data = problem_add_tree(&p, 10, 5, TREE_COMB, 3.0f, &r);
  float expected[5 * 2 * 32], out[5 * 2 * 32];
  layout how = LAYOUT_INIT;
  harness_once(&p, &how, expected, NULL);
  static const int64_t lengths[][2] = {{10, TREEATTN_AUTO}, {TREEATTN_AUTO, 15}, {10, 15}, {10, 18}};
  float *k = calloc(18 * 32, sizeof *k), *v = calloc(18 * 32, sizeof *v);
  memcpy(k, data->k, 15 * 32 * sizeof *k);
  memcpy(v, data->v, 15 * 32 * sizeof *v);
  for (int e = 15 * 32; e < 18 * 32; e++) {
    k[e] = v[e] = NAN;
  }
  for (size_t n = 0; n < 4; n++) {
    treeattn_request request = TREEATTN_REQUEST_INIT;
    request.num_nodes = 5;
    request.prefix_len = lengths[n][0];
    request.kv_seq_len = lengths[n][1];
    request.mask_kind = TREEATTN_MASK_PARENTS;
    request.mask = data->parents;
    request.mask_bytes = 5 * sizeof(int32_t);
    treeattn_plan_args args = problem_args(&p);
    args.requests = &request;
    args.num_requests = 1;
    args.kv_capacity = 18;
    attend_simply(&args, data->q, k, v, NULL, out, NULL);
    CHECK_SAME_BITS("automatic lengths", out, expected, 10, 32);
  }
  free(k);
  free(v);
  problem_free(&p);
}

static float merge_value(uint32_t n) {
  return fill_value(n, 9);
}

static void test_merging_states(void **state) {
  (void)state;
  enum { ROWS = 7, DIM = 24 };
  float a[ROWS * DIM], b[ROWS * DIM], lse_a[ROWS], lse_b[ROWS], kept[ROWS * DIM], kept_lse[ROWS];
  for (uint32_t n = 0; n < ROWS * DIM; n++) {
    a[n] = merge_value(n);
    b[n] = merge_value(n + 1000);
  }
  a[0] = -0.0f;
  for (int row = 0; row < ROWS; row++) {
    lse_a[row] = (float)row;
    lse_b[row] = row == 3 ? 3.0f : -2.0f * (float)row;
  }
  memcpy(kept, a, sizeof a);
  memcpy(kept_lse, lse_a, sizeof lse_a);
  CHECK_OK(treeattn_merge_states(ROWS, DIM, a, lse_a, b, lse_b, &error));
  for (int row = 0; row < ROWS; row++) {
    double weight_a = exp((double)kept_lse[row]), weight_b = exp((double)lse_b[row]);
    for (int d = 0; d < DIM; d++) {
      double expected =
          ((double)kept[row * DIM + d] * weight_a + (double)b[row * DIM + d] * weight_b) / (weight_a + weight_b);
      CHECK(fabs((double)a[row * DIM + d] - expected) <= 1e-6, "row %d channel %d: %.9g instead of %.9g", row, d,
            (double)a[row * DIM + d], expected);
    }
    CHECK(fabs((double)lse_a[row] - log(weight_a + weight_b)) <= 2e-6, "lse of row %d is %.9g", row,
          (double)lse_a[row]);
  }
  /* Empty sides: whatever their buffers hold. */
  float garbage[DIM], nothing = -INFINITY, side[DIM], side_lse = 1.25f, copy[DIM];
  for (int d = 0; d < DIM; d++) {
    garbage[d] = d % 2 == 0 ? NAN : INFINITY;
    side[d] = d == 3 ? -0.0f : merge_value((uint32_t)d);
  }
  memcpy(copy, side, sizeof side);
  CHECK_OK(treeattn_merge_states(1, DIM, side, &side_lse, garbage, &nothing, &error));
  CHECK_SAME_BITS("merging nothing into a state", side, copy, 1, DIM);
  CHECK(side_lse == 1.25f, "lse became %g", (double)side_lse);
  float other_lse = 1.25f;
  nothing = -INFINITY;
  CHECK_OK(treeattn_merge_states(1, DIM, garbage, &nothing, copy, &other_lse, &error));
  CHECK_SAME_BITS("merging a state into nothing", garbage, copy, 1, DIM);
  CHECK(nothing == 1.25f, "lse became %g", (double)nothing);
  float empty_a[DIM] = {0}, empty_b[DIM] = {0}, empty_lse_a = -INFINITY, empty_lse_b = -INFINITY;
  CHECK_OK(treeattn_merge_states(1, DIM, empty_a, &empty_lse_a, empty_b, &empty_lse_b, &error));
  zero_row(empty_a, DIM, "merging nothing with nothing");
  CHECK(empty_lse_a == -INFINITY, "lse of nothing is %g", (double)empty_lse_a);
  CHECK_OK(treeattn_merge_states(0, DIM, NULL, NULL, NULL, NULL, &error));
  const treeattn_status bad = TREEATTN_ERROR_INVALID_ARGUMENT;
  CHECK_ERROR(treeattn_merge_states(-1, DIM, a, lse_a, b, lse_b, &error), bad, "num_rows", "-1", NULL);
  CHECK_ERROR(treeattn_merge_states(1, 0, a, lse_a, b, lse_b, &error), bad, "head_dim_v", "0", NULL);
  CHECK_ERROR(treeattn_merge_states(1, DIM, NULL, lse_a, b, lse_b, &error), bad, "out_a", NULL, NULL);
  CHECK_ERROR(treeattn_merge_states(1, DIM, a, NULL, b, lse_b, &error), bad, "lse_a", NULL, NULL);
  CHECK_ERROR(treeattn_merge_states(1, DIM, a, lse_a, NULL, lse_b, &error), bad, "out_b", NULL, NULL);
  CHECK_ERROR(treeattn_merge_states(1, DIM, a, lse_a, b, NULL, &error), bad, "lse_b", NULL, NULL);
}

/* Parts of a context, each attended with its own plan and merged, make the whole to within rounding; parts without keys included. */
static void test_merging_parts_of_a_context(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(8, 2); n++) {
    rng r;
    (void)trial_begin(&r, 86, n);
    problem p = problem_new(3, 1, 32, 0, TREEATTN_F32);
    request_data *data = problem_add_tree(&p, rng_range(&r, 10, 600), 6, TREE_RANDOM, 3.0f, &r);
    size_t cells = 6 * (size_t)data->num_slots;
    uint8_t *whole = calloc(cells, 1), *part = calloc(cells, 1);
    tree_visibility(data->parents, 6, data->prefix_len, 0, whole);
    float out[6 * 3 * 32], lse[18], merged[6 * 3 * 32], merged_lse[18], piece[6 * 3 * 32], piece_lse[18];
    run_visibility(&p, whole, TREEATTN_ISA_AUTO, out, lse);
    int cuts[] = {0, 0, data->num_slots / 3, data->num_slots / 3, data->num_slots - 4, data->num_slots};
    for (int c = 0; c < 5; c++) {
      memset(part, 0, cells);
      for (int i = 0; i < 6; i++) {
        for (int s = cuts[c]; s < cuts[c + 1]; s++) {
          part[i * data->num_slots + s] = whole[i * data->num_slots + s];
        }
      }
      run_visibility(&p, part, TREEATTN_ISA_AUTO, c == 0 ? merged : piece, c == 0 ? merged_lse : piece_lse);
      if (c > 0) {
        CHECK_OK(treeattn_merge_states(18, 32, merged, merged_lse, piece, piece_lse, &error));
      }
    }
    for (int e = 0; e < 6 * 3 * 32; e++) {
      CHECK(fabsf(merged[e] - out[e]) <= 2e-6f, "element %d: %.9g from parts, %.9g whole", e, (double)merged[e],
            (double)out[e]);
    }
    free(whole);
    free(part);
    problem_free(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_empty_rows),     cmocka_unit_test(test_empty_batches),
      cmocka_unit_test(test_sinks),          cmocka_unit_test(test_extreme_biases),
      cmocka_unit_test(test_v_inside_k),     cmocka_unit_test(test_automatic_lengths),
      cmocka_unit_test(test_merging_states), cmocka_unit_test(test_merging_parts_of_a_context),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
