/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: an index times a stride wraps at 32 bits, or a product of sizes at 64. */
#define _GNU_SOURCE 1
#include "support/check.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "support/halves.h"
#include "support/harness.h"

/* Address space without memory behind it: pages come into being where they are touched, and read as zero. */
static unsigned char *sparse_new(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    print_message("this machine does not lend %zu bytes of address space\n", bytes);
    skip();
  }
  return memory;
}

/* V of KV head g (and of page or sequence b) is a constant in the slots in use: out tells where it was read. K is zero. */
static void store_constant(unsigned char *cache, int64_t offset, int dim, treeattn_dtype dtype, float value) {
  for (int d = 0; d < dim; d++) {
    element_store(dtype, cache + (size_t)offset * element_bytes(dtype), d, value);
  }
}

static void check_constants(const float *out, int rows, int heads, int per_kv_head, int dim, const float *expected) {
  for (int row = 0; row < rows; row++) {
    for (int h = 0; h < heads; h++) {
      for (int d = 0; d < dim; d++) {
        float value = out[(row * heads + h) * dim + d];
        CHECK(value == expected[h / per_kv_head], "row %d head %d channel %d: %g instead of %g", row, h, d,
              (double)value, (double)expected[h / per_kv_head]);
      }
    }
  }
}

/* KV heads far apart: element offsets of 2^31 and 2^32, and byte offsets that alone pass 2^32. */
static void heads_far_apart(int64_t capacity, treeattn_dtype dtype, treeattn_isa isa) {
  enum { DIM = 64, SLOTS = 8 };
  problem p = problem_new(4, 2, DIM, 0, dtype);
  size_t bytes = (size_t)2 * (size_t)capacity * DIM * element_bytes(dtype);
  unsigned char *k = sparse_new(bytes), *v = sparse_new(bytes);
  const float constants[2] = {3.0f, 7.0f};
  for (int g = 0; g < 2; g++) {
    for (int slot = 0; slot < SLOTS; slot++) {
      store_constant(v, (g * capacity + slot) * DIM, DIM, dtype, constants[g]);
    }
  }
  float q[4 * 2 * DIM] = {0}, out[2 * 4 * DIM];
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = 2;
  request.prefix_len = SLOTS - 2;
  treeattn_plan_args args = problem_args(&p);
  args.requests = &request;
  args.num_requests = 1;
  args.kv_capacity = capacity;
  args.isa = isa;
  attend_simply(&args, q, k, v, NULL, out, NULL);
  check_constants(out, 2, 4, 2, DIM, constants);
  (void)munmap(k, bytes);
  (void)munmap(v, bytes);
}

static void test_kv_heads_past_32_bits(void **state) {
  (void)state;
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int n = 0; n < num_isas; n++) {
    heads_far_apart(INT64_C(1) << 26, TREEATTN_F16, isas[n]);  /* element offset 2^32 */
    heads_far_apart(INT64_C(1) << 25, TREEATTN_F16, isas[n]);  /* element offset 2^31, byte offset 2^32 */
    heads_far_apart(INT64_C(1) << 24, TREEATTN_F32, isas[n]);  /* element offset 2^30, byte offset 2^32 */
    heads_far_apart(INT64_C(1) << 24, TREEATTN_BF16, isas[n]); /* byte offset 2^31 */
  }
}

static void test_sequences_past_32_bits(void **state) {
  (void)state;
  enum { DIM = 64, SLOTS = 5 };
  const int64_t capacity = INT64_C(1) << 24;
  problem p = problem_new(1, 1, DIM, 0, TREEATTN_F16);
  size_t bytes = (size_t)5 * (size_t)capacity * DIM * 2;
  unsigned char *k = sparse_new(bytes), *v = sparse_new(bytes);
  treeattn_request requests[2] = {TREEATTN_REQUEST_INIT, TREEATTN_REQUEST_INIT};
  const float constants[2] = {5.0f, 9.0f};
  for (int n = 0; n < 2; n++) {
    requests[n].num_nodes = 1;
    requests[n].prefix_len = SLOTS - 1;
    requests[n].cache_index = n * 4; /* element offset 2^32 */
    for (int slot = 0; slot < SLOTS; slot++) {
      store_constant(v, (n * 4 * capacity + slot) * DIM, DIM, TREEATTN_F16, constants[n]);
    }
  }
  float q[2 * DIM] = {0}, out[2 * DIM];
  treeattn_plan_args args = problem_args(&p);
  args.requests = requests;
  args.num_requests = 2;
  args.num_sequences = 5;
  args.kv_capacity = capacity;
  attend_simply(&args, q, k, v, NULL, out, NULL);
  check_constants(out, 1, 2, 1, DIM, constants); /* two rows of one head lie as one row of two */
  (void)munmap(k, bytes);
  (void)munmap(v, bytes);
}

static void test_pages_past_32_bits(void **state) {
  (void)state;
  enum { DIM = 64, PAGE = 16 };
  const int64_t num_pages = (INT64_C(1) << 22) + 2;
  problem p = problem_new(2, 1, DIM, 0, TREEATTN_F16);
  size_t bytes = (size_t)num_pages * PAGE * DIM * 2;
  unsigned char *k = sparse_new(bytes), *v = sparse_new(bytes);
  static const int32_t ids[] = {1 << 21, 1 << 22, (1 << 22) + 1, 0}; /* element offsets 2^31, 2^32, beyond, 0 */
  treeattn_isa isas[8];
  int num_isas = available_isas(isas);
  for (int n = 0; n < num_isas; n++) {
    for (size_t which = 0; which < 4; which++) {
      const float constant = (float)which + 2.0f;
      for (int slot = 0; slot < PAGE; slot++) {
        store_constant(v, ((int64_t)ids[which] * PAGE + slot) * DIM, DIM, TREEATTN_F16, constant);
      }
      treeattn_request request = TREEATTN_REQUEST_INIT;
      request.num_nodes = 3;
      request.prefix_len = PAGE - 3;
      request.page_table = &ids[which];
      request.page_table_len = 1;
      float q[2 * 3 * DIM] = {0}, out[3 * 2 * DIM];
      treeattn_plan_args args = problem_args(&p);
      args.requests = &request;
      args.num_requests = 1;
      args.page_size = PAGE;
      args.num_pages = num_pages;
      args.isa = isas[n];
      attend_simply(&args, q, k, v, NULL, out, NULL);
      check_constants(out, 3, 2, 2, DIM, &constant);
    }
  }
  (void)munmap(k, bytes);
  (void)munmap(v, bytes);
}

/* Mask rows 2^31 elements apart: the second and the third row lie past 2^31 and 2^32. */
static void test_mask_rows_past_32_bits(void **state) {
  (void)state;
  enum { NODES = 3, SLOTS = 5, DIM = 8 };
  const int64_t stride = INT64_C(1) << 31;
  problem p = problem_new(1, 1, DIM, 0, TREEATTN_F32);
  float k[SLOTS * DIM] = {0}, v[SLOTS * DIM] = {0}, q[NODES * DIM] = {0}, out[NODES * DIM];
  for (int slot = 0; slot < SLOTS; slot++) {
    v[slot * DIM + slot] = 1.0f;
  }
  static const treeattn_mask_kind kinds[] = {TREEATTN_MASK_DENSE_F32, TREEATTN_MASK_DENSE_BOOL, TREEATTN_MASK_BITS};
  for (size_t n = 0; n < 3; n++) {
    size_t element = kinds[n] == TREEATTN_MASK_DENSE_F32 ? 4 : 1;
    size_t bytes = ((size_t)2 * (size_t)stride + SLOTS) * element;
    unsigned char *mask = sparse_new(bytes);
    for (int i = 0; i < NODES; i++) { /* row i sees slot i alone */
      unsigned char *row = mask + (size_t)i * (size_t)stride * element;
      for (int s = 0; s < SLOTS; s++) {
        if (kinds[n] == TREEATTN_MASK_DENSE_F32) {
          float value = s == i ? 0.0f : TREEATTN_MASK_HIDDEN;
          memcpy(row + (size_t)s * 4, &value, 4);
        } else if (s == i) {
          row[kinds[n] == TREEATTN_MASK_BITS ? 0 : s] = kinds[n] == TREEATTN_MASK_BITS ? (unsigned char)(1u << s) : 1;
        }
      }
    }
    treeattn_request request = TREEATTN_REQUEST_INIT;
    request.num_nodes = NODES;
    request.kv_seq_len = SLOTS;
    request.mask_kind = kinds[n];
    request.mask = mask;
    request.mask_bytes = bytes;
    request.mask_stride = stride;
    treeattn_plan_args args = problem_args(&p);
    args.requests = &request;
    args.num_requests = 1;
    args.kv_capacity = SLOTS;
    attend_simply(&args, q, k, v, NULL, out, NULL);
    for (int i = 0; i < NODES; i++) {
      for (int d = 0; d < DIM; d++) {
        CHECK(out[i * DIM + d] == (d == i ? 1.0f : 0.0f), "mask kind %d, row %d: weight of slot %d is %g",
              (int)kinds[n], i, d, (double)out[i * DIM + d]);
      }
    }
    (void)munmap(mask, bytes);
  }
}

/* Strides of Q, output and LSE that put rows and heads past 2^31 and 2^32 elements. */
static void test_row_strides_past_32_bits(void **state) {
  (void)state;
  enum { DIM = 8, ROWS = 2, HEADS = 2 };
  const int64_t far = INT64_C(1) << 31;
  problem p = problem_new(HEADS, 1, DIM, 0, TREEATTN_F32);
  rng r;
  (void)trial_begin(&r, 71, 0);
  request_data *data = problem_add_tree(&p, 3, ROWS, TREE_CHAIN, 3.0f, &r);
  float expected[ROWS * HEADS * DIM], expected_lse[ROWS * HEADS];
  layout plain = LAYOUT_INIT;
  harness_once(&p, &plain, expected, expected_lse);
  for (int swapped = 0; swapped < 2; swapped++) {
    int64_t head = swapped == 0 ? far : far / 2, row = swapped == 0 ? far / 2 : far;
    size_t bytes = (size_t)(head + row + DIM) * 4;
    float *q = (float *)(void *)sparse_new(bytes), *out = (float *)(void *)sparse_new(bytes),
          *lse = (float *)(void *)sparse_new(bytes);
    treeattn_request request = TREEATTN_REQUEST_INIT;
    request.num_nodes = ROWS;
    request.prefix_len = 3;
    treeattn_plan_args args = problem_args(&p);
    args.requests = &request;
    args.num_requests = 1;
    args.kv_capacity = 3 + ROWS;
    args.q_stride_head = args.out_stride_head = args.lse_stride_head = head;
    args.q_stride_row = args.out_stride_row = args.lse_stride_row = row;
    for (int h = 0; h < HEADS; h++) {
      for (int i = 0; i < ROWS; i++) {
        memcpy(q + h * head + i * row, data->q + (h * ROWS + i) * DIM, DIM * sizeof *q);
      }
    }
    attend_simply(&args, q, data->k, data->v, NULL, out, lse);
    for (int i = 0; i < ROWS; i++) {
      for (int h = 0; h < HEADS; h++) {
        CHECK_SAME_BITS("a row far away", out + h * head + i * row, expected + (i * HEADS + h) * DIM, 1, DIM);
        CHECK_SAME_BITS("an lse far away", lse + h * head + i * row, expected_lse + i * HEADS + h, 1, 1);
      }
    }
    (void)munmap(q, bytes);
    (void)munmap(out, bytes);
    (void)munmap(lse, bytes);
  }
  problem_free(&p);
}

/* Sizes whose products do not fit in 64 bits: an error from every function that takes them, whatever the field. */
static void test_products_past_64_bits(void **state) {
  (void)state;
  problem p = problem_new(2, 1, 512, 0, TREEATTN_F32);
  const int64_t huge = INT64_C(1) << 62;
  for (int which = 0; which < 16; which++) {
    treeattn_request request = TREEATTN_REQUEST_INIT;
    int32_t page = 0;
    request.num_nodes = 2;
    request.prefix_len = 2;
    request.page_table = &page;
    request.page_table_len = 1;
    treeattn_plan_args args = problem_args(&p);
    args.requests = &request;
    args.num_requests = 1;
    args.kv_capacity = 8;
    const char *field = NULL;
    switch (which) {
      case 0:
        args.kv_capacity = huge;
        field = "k";
        break;
      case 1:
        args.num_sequences = huge;
        field = "k";
        break;
      case 2:
        args.page_size = huge;
        args.num_pages = 1;
        field = "k";
        break;
      case 3:
        args.page_size = 8;
        args.num_pages = huge;
        field = "k";
        break;
      case 4:
        args.q_stride_head = huge;
        field = "q";
        break;
      case 5:
        args.q_stride_row = huge;
        field = "q";
        break;
      case 6:
        args.out_stride_row = huge;
        field = "out";
        break;
      case 7:
        args.out_stride_head = huge;
        field = "out";
        break;
      case 8:
        args.lse_stride_row = huge;
        field = "lse";
        break;
      case 9:
        args.lse_stride_head = huge;
        field = "lse";
        break;
      case 10:
        args.k_stride_head = huge;
        args.k_stride_sequence = huge;
        args.num_kv_heads = 2;
        field = "k";
        break;
      case 11:
        args.k_stride_slot = huge;
        field = "k";
        break;
      case 12:
        args.v_stride_slot = huge;
        field = "v";
        break;
      case 13:
        args.v_stride_sequence = huge;
        args.num_sequences = 3;
        field = "v";
        break;
      case 14:
        args.num_heads = args.num_kv_heads = huge;
        field = "num_heads";
        break;
      default:
        args.num_heads = huge;
        field = "num_heads";
        break;
    }
    treeattn_plan *plan = NULL;
    treeattn_error error = {TREEATTN_OK, ""};
    treeattn_status status = treeattn_plan_create(&args, &plan, &error);
    CHECK((status == TREEATTN_ERROR_OVERFLOW || status == TREEATTN_ERROR_INVALID_ARGUMENT) && plan == NULL,
          "size %d was accepted or refused as \"%s\": %s", which, treeattn_status_name(status), error.message);
    CHECK(strstr(error.message, field) != NULL, "size %d: \"%s\" does not name %s", which, error.message, field);
    size_t bytes = 77;
    CHECK(treeattn_plan_bytes(&args, &bytes, &error) != TREEATTN_OK || which != 0 || bytes != 77,
          "plan_bytes of size %d", which);
  }
}

/* The wrap that hides: 2^31 x 2^31 x 512 x 4 is 0 modulo 2^64. */
static void test_products_that_wrap_to_little(void **state) {
  (void)state;
  problem p = problem_new(1, 1, 512, 0, TREEATTN_F32);
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = 1;
  request.prefix_len = 0;
  treeattn_plan_args args = problem_args(&p);
  args.requests = &request;
  args.num_requests = 1;
  args.kv_capacity = INT64_C(1) << 31;
  args.num_sequences = INT64_C(1) << 31;
  treeattn_plan *plan = NULL;
  CHECK_ERROR(treeattn_plan_create(&args, &plan, &error), TREEATTN_ERROR_OVERFLOW, "k", NULL, NULL);
  CHECK(plan == NULL, "a plan was left");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_kv_heads_past_32_bits),        cmocka_unit_test(test_sequences_past_32_bits),
      cmocka_unit_test(test_pages_past_32_bits),           cmocka_unit_test(test_mask_rows_past_32_bits),
      cmocka_unit_test(test_row_strides_past_32_bits),     cmocka_unit_test(test_products_past_64_bits),
      cmocka_unit_test(test_products_that_wrap_to_little),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
