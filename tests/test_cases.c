/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: faults that other systems had. Each test is the smallest input that separates right from wrong; the expected values are exact. */
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/halves.h"
#include "support/harness.h"

static const float poisons[] = {NAN, INFINITY, -INFINITY, 3e38f, 65504.0f};

static void set_all(const problem *p, void *cache, int dim, float value) {
  for (int64_t n = 0; n < (int64_t)p->num_kv_heads * p->requests[0].num_slots * dim; n++) {
    element_store(p->kv_dtype, cache, n, value);
  }
}

/* K = 0 gives every seen key the same weight; V[j] is 1 at channel j, so that an output row is its weights. */
static void set_weights_visible(problem *p) {
  request_data *data = &p->requests[0];
  set_all(p, data->k, p->head_dim, 0.0f);
  set_all(p, data->v, p->head_dim_v, 0.0f);
  for (int g = 0; g < p->num_kv_heads; g++) {
    for (int j = 0; j < data->num_slots && j < p->head_dim_v; j++) {
      element_store(p->kv_dtype, data->v, ((int64_t)g * data->num_slots + j) * p->head_dim_v + j, 1.0f);
    }
  }
}

static float *new_floats(int64_t count) {
  return calloc((size_t)count + 1, sizeof(float));
}

/* An output row is 1/n over the seen slots and 0 elsewhere. */
static void expect_equal_weights(const float *row, const uint8_t *sees, int slots, const char *what) {
  int count = 0;
  for (int s = 0; s < slots; s++) {
    count += sees[s] != 0;
  }
  for (int s = 0; s < slots; s++) {
    float expected = sees[s] != 0 ? 1.0f / (float)count : 0.0f;
    CHECK(row[s] == expected, "%s: weight of slot %d is %.9g instead of %.9g", what, s, (double)row[s],
          (double)expected);
  }
}

static void test_poison_beyond_kv_len(void **state) {
  (void)state;
  static const int lengths[] = {1, 31, 32, 33, 63};
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int n = 0; n < 5 * 3 * 3; n++) {
    rng r;
    int index = trial_begin(&r, 101, n), length = lengths[index % 5];
    problem p = problem_new(4, 2, 64, 0, dtypes[(index / 5) % 3]);
    (void)problem_add_tree(&p, length - 1, 1, TREE_CHAIN, 3.0f, &r);
    float clean[4 * 64], out[4 * 64];
    for (int k = 0; k < num_isas; k++) {
      layout how = LAYOUT_INIT;
      how.isa = isas[k];
      how.extra_slots = (index / 15) == 0 ? 0 : ((index / 15) == 1 ? 1 : 64 - length);
      harness_once(&p, &how, clean, NULL);
      for (size_t b = 0; b < sizeof poisons / sizeof poisons[0]; b++) {
        how.poison = poisons[b];
        harness_once(&p, &how, out, NULL);
        CHECK_SAME_BITS("slots past kv_seq_len", out, clean, 4, 64);
      }
    }
    problem_free(&p);
  }
}

/* One row without keys among others: by -65504, by zero bits, by a window that leaves nothing. */
static void test_one_empty_row(void **state) {
  (void)state;
  enum { NODES = 6, EMPTY = 2, DIM = 32 };
  for (int n = 0; n < 2 * 3 * 2; n++) {
    rng r;
    int index = trial_begin(&r, 102, n), slots = 32 + index % 2;
    problem p = problem_new(2, 1, DIM, 0, TREEATTN_F32);
    request_data *data = problem_add_tree(&p, slots - NODES, NODES, TREE_CHAIN, 3.0f, &r);
    uint8_t sees[NODES * 33];
    tree_visibility(data->parents, NODES, slots - NODES, 0, sees);
    float normal[NODES * 2 * DIM], normal_lse[NODES * 2], out[NODES * 2 * DIM], lse[NODES * 2];
    layout plain = LAYOUT_INIT;
    plain.num_workers = index / 6 == 0 ? 1 : 4;
    p.window = index / 2 % 3 == 2 ? 4 : 0;
    harness_once(&p, &plain, normal, normal_lse);
    memset(sees + EMPTY * slots, 0, (size_t)slots);
    int32_t positions[NODES];
    for (int i = 0; i < NODES; i++) {
      positions[i] = slots - NODES + i;
    }
    if (p.window != 0) {
      sees[EMPTY * slots] = 1; /* slot 0 is seen by the mask, but it is far outside the window */
    }
    treeattn_mask_kind kind = index / 2 % 3 == 1 ? TREEATTN_MASK_BITS : TREEATTN_MASK_DENSE_F32;
    guarded mask =
        mask_encode(kind, sees, NODES, slots, slots, kind == TREEATTN_MASK_BITS ? (slots + 7) / 8 : slots, false);
    treeattn_request request = TREEATTN_REQUEST_INIT;
    request.num_nodes = NODES;
    request.kv_seq_len = slots;
    request.mask_kind = kind;
    request.mask = mask.data;
    request.mask_bytes = mask.bytes;
    request.positions = positions;
    treeattn_plan_args args = problem_args(&p);
    args.requests = &request;
    args.num_requests = 1;
    args.kv_capacity = slots;
    args.num_workers = plain.num_workers;
    attend_simply(&args, data->q, data->k, data->v, NULL, out, lse);
    for (int i = 0; i < NODES; i++) {
      if (i == EMPTY) {
        for (int d = 0; d < 2 * DIM; d++) {
          CHECK(out[i * 2 * DIM + d] == 0.0f && !signbit(out[i * 2 * DIM + d]), "the empty row has %g",
                (double)out[i * 2 * DIM + d]);
        }
        CHECK(lse[i * 2] == -INFINITY && lse[i * 2 + 1] == -INFINITY, "lse of the empty row is %g", (double)lse[i * 2]);
      } else {
        CHECK_SAME_BITS("a neighbour of the empty row", out + i * 2 * DIM, normal + i * 2 * DIM, 2, DIM);
        CHECK_SAME_BITS("lse of a neighbour", lse + i * 2, normal_lse + i * 2, 1, 2);
      }
    }
    guarded_free(&mask);
    problem_free(&p);
  }
}

/* The leading block is hidden as a whole: the running maximum is still nothing when the first score comes. */
static void test_first_block_hidden(void **state) {
  (void)state;
  static const int lengths[] = {33, 513, 4097, 4200};
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (size_t n = 0; n < 4; n++) {
    rng r;
    (void)trial_begin(&r, 103, (int)n);
    problem p = problem_new(1, 1, 8, 0, TREEATTN_F32);
    request_data *data = problem_add_tree(&p, lengths[n] - 1, 1, TREE_CHAIN, 3.0f, &r);
    set_all(&p, data->v, 8, 5.0f);
    for (int d = 0; d < 8; d++) {
      ((float *)data->v)[(lengths[n] - 1) * 8 + d] = 1.0f;
    }
    float *mask = new_floats(lengths[n]);
    for (int s = 0; s < lengths[n] - 1; s++) {
      mask[s] = TREEATTN_MASK_HIDDEN;
    }
    treeattn_request request = TREEATTN_REQUEST_INIT;
    request.num_nodes = 1;
    request.kv_seq_len = lengths[n];
    request.mask_kind = TREEATTN_MASK_DENSE_F32;
    request.mask = mask;
    request.mask_bytes = (size_t)lengths[n] * sizeof *mask;
    treeattn_plan_args args = problem_args(&p);
    args.requests = &request;
    args.num_requests = 1;
    args.kv_capacity = lengths[n];
    for (int k = 0; k < num_isas; k++) {
      float out[8];
      args.isa = isas[k];
      args.num_workers = 1 + k * 4;
      attend_simply(&args, data->q, data->k, data->v, NULL, out, NULL);
      for (int d = 0; d < 8; d++) {
        CHECK(out[d] == 1.0f, "%d slots, the last one seen: %g instead of 1", lengths[n], (double)out[d]);
      }
    }
    free(mask);
    problem_free(&p);
  }
}

/* Capping must neither bring hidden keys back nor let padding into the denominator. */
static void test_softcap_and_hidden_keys(void **state) {
  (void)state;
  static const int lengths[] = {1, 4, 31, 33, 63, 65, 127, 129, 511, 513};
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int k = 0; k < num_isas; k++) {
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++) {
      for (int visible = 0; visible < 2; visible++) { /* all keys; one key of V = 1 among hidden ones of V = 0 */
        rng r;
        (void)trial_begin(&r, 104, (int)n);
        problem p = problem_new(1, 1, 8, 0, TREEATTN_F32);
        request_data *data = problem_add_tree(&p, lengths[n] - 1, 1, TREE_CHAIN, 1.0f, &r);
        p.softcap = 2.0f;
        set_all(&p, data->k, 8, 0.0f);
        set_all(&p, data->v, 8, visible == 0 ? 1.0f : 0.0f);
        uint8_t *sees = calloc((size_t)lengths[n], 1);
        memset(sees, visible == 0, (size_t)lengths[n]);
        sees[lengths[n] / 2] = 1;
        for (int d = 0; d < 8; d++) {
          ((float *)data->v)[lengths[n] / 2 * 8 + d] = 1.0f;
        }
        treeattn_request request = TREEATTN_REQUEST_INIT;
        request.num_nodes = 1;
        request.kv_seq_len = lengths[n];
        request.mask_kind = TREEATTN_MASK_DENSE_BOOL;
        request.mask = sees;
        request.mask_bytes = (size_t)lengths[n];
        treeattn_plan_args args = problem_args(&p);
        args.requests = &request;
        args.num_requests = 1;
        args.kv_capacity = lengths[n];
        args.isa = isas[k];
        float out[8];
        attend_simply(&args, data->q, data->k, data->v, NULL, out, NULL);
        for (int d = 0; d < 8; d++) {
          CHECK(out[d] == 1.0f, "%d keys, %s seen: %.9g instead of 1", lengths[n], visible == 0 ? "all" : "one",
                (double)out[d]);
        }
        free(sees);
        problem_free(&p);
      }
    }
  }
}

static void test_window_counts_keys(void **state) {
  (void)state;
  enum { SLOTS = 10, DIM = 16 };
  static const int64_t windows[] = {1, 2, 4, 9, 10, 11, 2147483647, INT64_MAX};
  static const int nodes[] = {1, 4};
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int n = 0; n < 8 * 2 * 6; n++) {
    rng r;
    int index = trial_begin(&r, 105, n), num_nodes = nodes[index % 2];
    problem p = problem_new(1, 1, DIM, 0, TREEATTN_F32);
    request_data *data = problem_add_tree(&p, SLOTS - num_nodes, num_nodes, TREE_CHAIN, 1.0f, &r);
    p.window = windows[index / 2 % 8];
    set_weights_visible(&p);
    uint8_t sees[4 * SLOTS];
    tree_visibility(data->parents, num_nodes, SLOTS - num_nodes, p.window, sees);
    for (int k = 0; k < num_isas; k++) {
      for (int variant = 0; variant < 4; variant++) {
        layout how = LAYOUT_INIT;
        how.isa = isas[k];
        how.encoding = (treeattn_mask_kind)(index / 16);
        how.page_size = variant == 1 ? 3 : 0;
        how.written_window = variant == 2;
        how.pass_positions = variant == 3;
        float out[4 * DIM];
        harness_once(&p, &how, out, NULL);
        for (int i = 0; i < num_nodes; i++) {
          char what[96];
          (void)snprintf(what, sizeof what, "window %lld, node %d of %d, encoding %d, variant %d", (long long)p.window,
                         i, num_nodes, (int)how.encoding, variant);
          expect_equal_weights(out + i * DIM, sees + i * SLOTS, SLOTS, what);
        }
      }
    }
    problem_free(&p);
  }
}

/* A window beside an explicit mask: the columns are read from the same slots, and the result is that of both combined by hand. */
static void test_window_beside_a_mask(void **state) {
  (void)state;
  static const int prefixes[] = {100, 0, 7, 513};
  for (int n = 0; n < 4; n++) {
    rng r;
    int index = trial_begin(&r, 106, n);
    problem p = problem_new(4, 2, 64, 0, TREEATTN_F16);
    (void)problem_add_tree(&p, prefixes[index % 4], 8, TREE_COMB, 3.0f, &r);
    p.window = 16;
    float expected[8 * 4 * 64], out[8 * 4 * 64];
    layout how = LAYOUT_INIT;
    how.isa = TREEATTN_ISA_SCALAR;
    how.encoding = TREEATTN_MASK_DENSE_F32;
    how.written_window = true; /* combined by hand */
    harness_once(&p, &how, expected, NULL);
    how.written_window = false;
    how.isa = TREEATTN_ISA_AUTO;
    for (int kind = TREEATTN_MASK_PARENTS; kind <= TREEATTN_MASK_BITS; kind++) {
      for (int square = 0; square < 2; square++) {
        how.encoding = (treeattn_mask_kind)kind;
        how.square_mask = square != 0;
        harness_once(&p, &how, out, NULL);
        CHECK_SAME_BITS("window and mask", out, expected, 32, 64);
      }
    }
    problem_free(&p);
  }
}

static void test_heads_of_any_ratio(void **state) {
  (void)state;
  static const int heads[][2] = {{12, 2}, {10, 2}, {14, 2}, {6, 2}, {24, 4}, {32, 1}, {9, 3}, {7, 7}, {48, 3}};
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  static const int dims[] = {64, 128, 256, 512};
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int n = 0; n < 9 * 3 * 4; n++) {
    rng r;
    int index = trial_begin(&r, 107, n);
    const int *head = heads[index % 9];
    problem p = problem_new(head[0], head[1], dims[index / 27 % 4], 0, dtypes[index / 9 % 3]);
    request_data *data = problem_add_tree(&p, 5 + index % 3, 3, TREE_STAR, 1.0f, &r);
    set_all(&p, data->k, p.head_dim, 0.0f);
    for (int64_t e = 0; e < (int64_t)p.num_kv_heads * data->num_slots * p.head_dim; e++) {
      element_store(p.kv_dtype, data->v, e, (float)(e / ((int64_t)data->num_slots * p.head_dim)));
    }
    float *out = new_floats((int64_t)3 * p.num_heads * p.head_dim);
    for (int k = 0; k < num_isas; k++) {
      layout how = LAYOUT_INIT;
      how.isa = isas[k];
      how.num_workers = 1 + index % 3;
      harness_once(&p, &how, out, NULL);
      for (int e = 0; e < 3 * p.num_heads * p.head_dim; e++) {
        int h = e / p.head_dim % p.num_heads;
        CHECK(out[e] == (float)(h / (p.num_heads / p.num_kv_heads)), "H %d, G %d: head %d reads KV head %g",
              p.num_heads, p.num_kv_heads, h, (double)out[e]);
      }
    }
    free(out);
    problem_free(&p);
  }
}

static void test_mask_smaller_than_promised(void **state) {
  (void)state;
  enum { NODES = 10, SLOTS = 20, DIM = 32 };
  static const int strides[] = {SLOTS, SLOTS + 1, 32, 255, 256};
  rng r;
  (void)trial_begin(&r, 108, 0);
  problem p = problem_new(2, 1, DIM, 0, TREEATTN_F32);
  request_data *data = problem_add_tree(&p, SLOTS - NODES, NODES, TREE_RANDOM, 3.0f, &r);
  uint8_t sees[NODES * SLOTS];
  tree_visibility(data->parents, NODES, SLOTS - NODES, 0, sees);
  float expected[NODES * 2 * DIM], out[NODES * 2 * DIM];
  layout plain = LAYOUT_INIT;
  harness_once(&p, &plain, expected, NULL);
  static const treeattn_mask_kind kinds[] = {TREEATTN_MASK_DENSE_F32, TREEATTN_MASK_DENSE_BOOL, TREEATTN_MASK_BITS};
  for (int n = 0; n < 15; n++) {
    treeattn_mask_kind kind = kinds[n % 3];
    guarded mask = mask_encode(kind, sees, NODES, SLOTS, SLOTS, strides[n / 3],
                               false); /* pads are NaN or ones; an unmapped page follows */
    treeattn_request request = TREEATTN_REQUEST_INIT;
    request.num_nodes = NODES;
    request.kv_seq_len = SLOTS;
    request.mask_kind = kind;
    request.mask = mask.data;
    request.mask_bytes = mask.bytes;
    request.mask_stride = strides[n / 3];
    treeattn_plan_args args = problem_args(&p);
    args.requests = &request;
    args.num_requests = 1;
    args.kv_capacity = SLOTS;
    attend_simply(&args, data->q, data->k, data->v, NULL, out, NULL);
    CHECK_SAME_BITS("a mask with pads", out, expected, NODES * 2, DIM);
    treeattn_plan *plan = NULL;
    request.mask_bytes =
        (size_t)NODES * 15 / (kind == TREEATTN_MASK_BITS ? 8 : 1) * (kind == TREEATTN_MASK_DENSE_F32 ? 4 : 1);
    CHECK_ERROR(treeattn_plan_create(&args, &plan, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL, "mask_bytes", NULL, NULL);
    guarded_free(&mask);
  }
  problem_free(&p);
}

/* Stars and chains across the edges of 32- and 64-bit words, every node. V[j] counts j twice, by remainder and by quotient of 64. */
static void test_mask_word_edges(void **state) {
  (void)state;
  enum { DIM = 128 };
  static const int counts[] = {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256, 257, 1025};
  int num_counts = test_quick() ? 9 : 14;
  for (int n = 0; n < num_counts * 2; n++) {
    rng r;
    int index = trial_begin(&r, 109, n), num_nodes = counts[index / 2];
    problem p = problem_new(1, 1, 8, DIM, TREEATTN_F16);
    request_data *data = problem_add_tree(&p, 0, num_nodes, index % 2 == 0 ? TREE_STAR : TREE_CHAIN, 1.0f, &r);
    set_all(&p, data->k, 8, 0.0f);
    set_all(&p, data->v, DIM, 0.0f);
    for (int j = 0; j < num_nodes; j++) {
      element_store(TREEATTN_F16, data->v, (int64_t)j * DIM + j % 64, 1.0f);
      element_store(TREEATTN_F16, data->v, (int64_t)j * DIM + 64 + j / 64, 1.0f);
    }
    float *out = new_floats((int64_t)num_nodes * DIM);
    for (int kind = TREEATTN_MASK_CHAIN; kind <= TREEATTN_MASK_BITS; kind++) {
      layout how = LAYOUT_INIT;
      how.encoding = (treeattn_mask_kind)kind;
      how.mask_pad = index / 2 % 3 * 4;
      harness_once(&p, &how, out, NULL);
      for (int i = 0; i < num_nodes; i++) {
        int expected[DIM] = {0}, total = 0;
        for (int j = 0; j <= i; j++) {
          if (index % 2 == 1 || j == 0 || j == i) {
            expected[j % 64]++;
            expected[64 + j / 64]++;
            total++;
          }
        }
        for (int d = 0; d < DIM; d++) {
          float weight = (float)expected[d] / (float)total;
          CHECK(out[i * DIM + d] == weight, "%s of %d, node %d, encoding %d: %g in channel %d instead of %g",
                index % 2 == 0 ? "star" : "chain", num_nodes, i, kind, (double)out[i * DIM + d], d, (double)weight);
        }
      }
    }
    free(out);
    problem_free(&p);
  }
}

/* The second stage writes every row of every request once, where the strides say, and nowhere else. */
static void test_rows_of_the_second_stage(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(12, 3); n++) {
    rng r;
    int index = trial_begin(&r, 111, n);
    problem p = problem_new(4, 2, 32, 0, TREEATTN_F32);
    for (int k = 0; k < 2 + index % 2; k++) {
      (void)problem_add_tree(&p, k == 1 ? 20 : 9000, 3, TREE_STAR, 3.0f, &r);
    }
    int64_t rows = problem_rows(&p);
    float *expected = new_floats(rows * 4 * 32), *out = new_floats(rows * 4 * 32);
    layout how = LAYOUT_INIT;
    harness_once(&p, &how, expected, NULL);
    how.num_workers = 64;
    how.stride_pad = index % 3 * 3;
    harness h;
    harness_build(&h, &p, &how);
    CHECK(h.info.num_tasks[1] > 0, "64 workers do not share a request: nothing is tested");
    harness_run(&h);
    harness_read(&h, out, NULL);
    harness_free(&h);
    CHECK_SAME_BITS("rows joined from parts", out, expected, rows * 4, 32);
    free(expected);
    free(out);
    problem_free(&p);
  }
}

/* Legal but degenerate trees see what they should. */
static void test_degenerate_trees(void **state) {
  (void)state;
  static const struct {
    int nodes, prefix;
    tree_shape shape;
  } trees[] = {{1, 0, TREE_CHAIN}, {1, 5, TREE_CHAIN},    {12, 0, TREE_STAR},    {12, 3, TREE_ROOTS},
               {2, 0, TREE_ROOTS}, {1000, 0, TREE_CHAIN}, {1000, 24, TREE_CHAIN}};
  for (size_t n = 0; n < sizeof trees / sizeof trees[0]; n++) {
    rng r;
    (void)trial_begin(&r, 112, (int)n);
    problem p = problem_new(1, 1, 8, 1024, TREEATTN_F16);
    request_data *data = problem_add_tree(&p, trees[n].prefix, trees[n].nodes, trees[n].shape, 1.0f, &r);
    set_weights_visible(&p);
    uint8_t *sees = calloc((size_t)data->num_nodes * (size_t)data->num_slots, 1);
    tree_visibility(data->parents, data->num_nodes, data->prefix_len, 0, sees);
    float *out = new_floats((int64_t)data->num_nodes * 1024);
    layout how = LAYOUT_INIT;
    harness_once(&p, &how, out, NULL);
    for (int i = 0; i < data->num_nodes; i++) {
      expect_equal_weights(out + (int64_t)i * 1024, sees + (int64_t)i * data->num_slots, data->num_slots,
                           "a degenerate tree");
    }
    free(sees);
    free(out);
    problem_free(&p);
  }
}

static void test_positions_follow_depth(void **state) {
  (void)state;
  static const int32_t parents[6] = {-1, 0, 0, 1, 1, 2}, depths[6] = {0, 1, 1, 2, 2, 2};
  for (int prefix = 0; prefix <= 7; prefix += 7) {
    rng r;
    (void)trial_begin(&r, 113, prefix);
    problem p = problem_new(1, 1, 8, 0, TREEATTN_F32);
    (void)problem_add(&p, prefix, 6, parents, 1.0f, &r);
    for (int kind = TREEATTN_MASK_PARENTS; kind <= TREEATTN_MASK_BITS; kind++) {
      layout how = LAYOUT_INIT;
      how.encoding = (treeattn_mask_kind)kind;
      harness h;
      int32_t positions[6];
      harness_build(&h, &p, &how);
      CHECK_OK(treeattn_plan_get_positions(h.plan, positions, 6, &error));
      for (int i = 0; i < 6; i++) {
        CHECK(positions[i] == prefix + depths[i], "node %d has position %d instead of %d", i, (int)positions[i],
              prefix + (int)depths[i]);
      }
      harness_free(&h);
    }
    problem_free(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_poison_beyond_kv_len), cmocka_unit_test(test_one_empty_row),
      cmocka_unit_test(test_first_block_hidden),   cmocka_unit_test(test_softcap_and_hidden_keys),
      cmocka_unit_test(test_window_counts_keys),   cmocka_unit_test(test_window_beside_a_mask),
      cmocka_unit_test(test_heads_of_any_ratio),   cmocka_unit_test(test_mask_smaller_than_promised),
      cmocka_unit_test(test_mask_word_edges),      cmocka_unit_test(test_rows_of_the_second_stage),
      cmocka_unit_test(test_degenerate_trees),     cmocka_unit_test(test_positions_follow_depth),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
