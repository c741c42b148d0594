/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: depths, positions or masks made on the GPU differ from the CPU's, a bad tree is not refused with its node,
 * or something is written that must not be. */
#include "step.h"

#include <limits.h>

/* The arrays that a call fills: as they must be, beginning as 0xff everywhere. */
typedef struct expansion {
  device_buffer depths, positions, bits, bools, dense, outcomes;
  int32_t *want_depths, *want_positions;
  uint8_t *want_bits, *want_bools;
  float *want_dense;
  int64_t bits_stride, bools_stride, dense_stride;
} expansion;

static void *all_ones(size_t bytes) {
  void *memory = step_calloc(bytes, 1);
  memset(memory, 0xff, bytes);
  return memory;
}

static void expansion_new(expansion *e, const step_batch *b, int64_t columns, rng *r) {
  const size_t nodes = (size_t)b->num_nodes;
  e->bits_stride = (columns + 7) / 8 + 1 + rng_below(r, 9);
  e->bools_stride = columns + 1 + rng_below(r, 5);
  e->dense_stride = columns + 1 + rng_below(r, 5);
  e->depths = td_alloc(nodes * sizeof(int32_t));
  e->positions = td_alloc(nodes * sizeof(int32_t));
  e->bits = td_alloc(nodes * (size_t)e->bits_stride);
  e->bools = td_alloc(nodes * (size_t)e->bools_stride);
  e->dense = td_alloc(nodes * (size_t)e->dense_stride * sizeof(float));
  e->outcomes = td_alloc((size_t)b->num_requests * sizeof(treeattn_cuda_outcome));
  e->want_depths = all_ones(e->depths.bytes);
  e->want_positions = all_ones(e->positions.bytes);
  e->want_bits = all_ones(e->bits.bytes);
  e->want_bools = all_ones(e->bools.bytes);
  e->want_dense = all_ones(e->dense.bytes);
}

static void expansion_free(expansion *e) {
  device_buffer *buffers[] = {&e->depths, &e->positions, &e->bits, &e->bools, &e->dense, &e->outcomes};
  for (size_t n = 0; n < sizeof buffers / sizeof buffers[0]; n++) {
    td_free(buffers[n]);
  }
  free(e->want_depths);
  free(e->want_positions);
  free(e->want_bits);
  free(e->want_bools);
  free(e->want_dense);
}

/* Request n by the functions of the CPU. */
static void expect(expansion *e, const step_batch *b, int n, int prefix_len, bool prefix_columns) {
  const int64_t begin = b->offsets[n];
  const int64_t nodes = step_nodes(b, n);
  const int32_t *parents = b->parents + begin;
  const int64_t prefix = prefix_columns ? prefix_len : 0;
  CHECK_OK(treeattn_tree_get_depths(nodes, parents, e->want_depths + begin, nodes, &error));
  CHECK_OK(treeattn_tree_get_positions(nodes, parents, prefix_len, e->want_positions + begin, nodes, &error));
  CHECK_OK(treeattn_tree_get_mask_bits(nodes, parents, prefix, e->want_bits + begin * e->bits_stride, e->bits_stride,
                                       (size_t)(nodes * e->bits_stride), &error));
  CHECK_OK(treeattn_tree_get_mask_bool(nodes, parents, prefix, e->want_bools + begin * e->bools_stride, e->bools_stride,
                                       (size_t)(nodes * e->bools_stride), &error));
  CHECK_OK(treeattn_tree_get_mask_f32(nodes, parents, prefix, e->want_dense + begin * e->dense_stride, e->dense_stride,
                                      (size_t)(nodes * e->dense_stride) * sizeof(float), &error));
}

static treeattn_cuda_expand_args expand_args(const expansion *e, const step_batch *b, const device_buffer *prefix_lens,
                                             bool prefix_columns) {
  treeattn_cuda_expand_args args = TREEATTN_CUDA_EXPAND_ARGS_INIT;
  args.batch = step_batch_args(b);
  args.parents = (const int32_t *)(const void *)b->parents_there.data;
  args.prefix_lens = (const int32_t *)(const void *)prefix_lens->data;
  args.depths = (int32_t *)(void *)e->depths.data;
  args.positions = (int32_t *)(void *)e->positions.data;
  args.prefix_columns = prefix_columns;
  args.mask_bits = (treeattn_cuda_mask){e->bits.data, e->bits.bytes, e->bits_stride};
  args.mask_bool = (treeattn_cuda_mask){e->bools.data, e->bools.bytes, e->bools_stride};
  args.mask_f32 = (treeattn_cuda_mask){e->dense.data, e->dense.bytes, e->dense_stride};
  args.outcomes = (treeattn_cuda_outcome *)(void *)e->outcomes.data;
  return args;
}

static void check_expansion(const expansion *e, const step_batch *b, const treeattn_cuda_outcome *want) {
  treeattn_cuda_outcome outcomes[STEP_MAX_REQUESTS];
  td_download(outcomes, e->outcomes.data, e->outcomes.bytes);
  for (int n = 0; n < b->num_requests; n++) {
    step_check_outcome(&outcomes[n], n, (treeattn_status)want[n].status, (treeattn_cuda_field)want[n].field,
                       want[n].index, want[n].column);
  }
  step_check_bytes("depths", &e->depths, e->want_depths);
  step_check_bytes("positions", &e->positions, e->want_positions);
  step_check_bytes("bits", &e->bits, e->want_bits);
  step_check_bytes("bool mask", &e->bools, e->want_bools);
  step_check_bytes("f32 mask", &e->dense, e->want_dense);
}

/* Breaks a tree in one of the ways there are. Returns the node. */
static int break_tree(int32_t *parents, int num_nodes, rng *r) {
  const int node = rng_below(r, num_nodes);
  const int32_t wrong[] = {node, node + 1, num_nodes, -2, INT_MIN, INT_MAX};
  parents[node] = PICK(r, wrong);
  return node;
}

static void run_random(rng *r, int most_requests, int most_nodes, int most_prefix) {
  static const treeattn_cuda_outcome fine = {TREEATTN_OK, TREEATTN_CUDA_FIELD_NONE, -1, -1};
  treeattn_cuda_outcome want[STEP_MAX_REQUESTS];
  int32_t prefix_lens[STEP_MAX_REQUESTS];
  step_batch b;
  expansion e;
  const bool prefix_columns = rng_chance(r, 2);
  step_batch_random(&b, most_requests, most_nodes, r);
  for (int n = 0; n < b.num_requests; n++) {
    prefix_lens[n] = rng_chance(r, 4) ? 0 : rng_below(r, most_prefix);
  }
  expansion_new(&e, &b, b.max_nodes + (prefix_columns ? most_prefix : 0), r);
  for (int n = 0; n < b.num_requests; n++) {
    const int nodes = step_nodes(&b, n);
    want[n] = fine;
    if (nodes > 0 && rng_chance(r, 4)) {
      want[n] = (treeattn_cuda_outcome){TREEATTN_ERROR_INVALID_TREE, TREEATTN_CUDA_FIELD_PARENTS,
                                        break_tree(b.parents + b.offsets[n], nodes, r), -1};
      CHECK_ERROR(treeattn_tree_check(nodes, b.parents + b.offsets[n], &error), TREEATTN_ERROR_INVALID_TREE, "parents",
                  NULL, NULL);
    } else if (rng_chance(r, 8)) {
      const bool overflows = nodes > 0 && rng_chance(r, 2);
      prefix_lens[n] = overflows ? INT_MAX - nodes + 1 : -1;
      want[n] = (treeattn_cuda_outcome){overflows ? TREEATTN_ERROR_OVERFLOW : TREEATTN_ERROR_INVALID_ARGUMENT,
                                        TREEATTN_CUDA_FIELD_PREFIX_LENS, -1, -1};
    } else {
      expect(&e, &b, n, prefix_lens[n], prefix_columns);
    }
  }
  step_batch_upload(&b);
  device_buffer lens = td_alloc_copy(prefix_lens, (size_t)b.num_requests * sizeof(int32_t));
  const treeattn_cuda_expand_args args = expand_args(&e, &b, &lens, prefix_columns);
  CHECK_OK(treeattn_cuda_expand(&args, &error));
  td_sync();
  check_expansion(&e, &b, want);
  expansion_free(&e);
  td_free(&lens);
  step_batch_free(&b);
}

static void test_random_trees(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < trial_count(120, 25); n++) {
    rng r;
    (void)trial_begin(&r, 301, n);
    run_random(&r, 8, n % 3 == 0 ? 9 : 130, n % 4 == 0 ? 1200 : 70);
  }
}

static void test_large_trees(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int n = 0; n < trial_count(6, 1); n++) {
    rng r;
    (void)trial_begin(&r, 302, n);
    run_random(&r, 2, n % 2 == 0 ? 1100 : TREEATTN_CUDA_STEP_MAX_NODES, 33);
  }
}

/* One valid request of four nodes; the named field is spoilt in turn. */
static void test_device_refusals(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  rng r = {7};
  step_batch b;
  expansion e;
  memset(&b, 0, sizeof b);
  b.num_requests = 2;
  b.num_nodes = 8;
  b.max_nodes = 4;
  b.parents = step_calloc(8, sizeof(int32_t));
  tree_make(TREE_RANDOM, 4, &r, b.parents);
  tree_make(TREE_RANDOM, 4, &r, b.parents + 4);
  const int32_t offsets[][3] = {{0, 5, 8}, {0, 4, 9}, {0, -1, 4}, {4, 3, 7}, {-1, 4, 8}};
  const bool bad[][2] = {{true, false}, {false, true}, {true, true}, {true, false}, {true, false}};
  const int32_t prefix_lens[2] = {3, 4};
  for (size_t n = 0; n < sizeof offsets / sizeof offsets[0]; n++) {
    treeattn_cuda_outcome want[2];
    memcpy(b.offsets, offsets[n], sizeof offsets[n]);
    expansion_new(&e, &b, 4, &r);
    for (int request = 0; request < 2; request++) {
      want[request] = (treeattn_cuda_outcome){TREEATTN_OK, TREEATTN_CUDA_FIELD_NONE, -1, -1};
      if (bad[n][request]) {
        want[request].status = TREEATTN_ERROR_INVALID_ARGUMENT;
        want[request].field = TREEATTN_CUDA_FIELD_OFFSETS;
      } else if (treeattn_tree_check(step_nodes(&b, request), b.parents + b.offsets[request], NULL) == TREEATTN_OK) {
        expect(&e, &b, request, prefix_lens[request], false);
      } else {
        /* Nodes of a neighbour: their parents count from another begin. */
        int node = 0;
        while (b.parents[b.offsets[request] + node] < node && b.parents[b.offsets[request] + node] >= -1) {
          node++;
        }
        want[request] = (treeattn_cuda_outcome){TREEATTN_ERROR_INVALID_TREE, TREEATTN_CUDA_FIELD_PARENTS, node, -1};
      }
    }
    step_batch_upload(&b);
    device_buffer lens = td_alloc_copy(prefix_lens, sizeof prefix_lens);
    const treeattn_cuda_expand_args args = expand_args(&e, &b, &lens, false);
    CHECK_OK(treeattn_cuda_expand(&args, &error));
    td_sync();
    check_expansion(&e, &b, want);
    expansion_free(&e);
    td_free(&lens);
    td_free(&b.offsets_there);
    td_free(&b.parents_there);
  }
  free(b.parents);
}

static void test_narrow_masks(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (int which = 0; which < 3; which++) {
    rng r = {11};
    step_batch b;
    expansion e;
    memset(&b, 0, sizeof b);
    b.num_requests = 2;
    b.num_nodes = b.max_nodes = 20;
    b.offsets[1] = 4;
    b.offsets[2] = 20;
    b.parents = step_calloc(20, sizeof(int32_t));
    tree_make(TREE_CHAIN, 4, &r, b.parents);
    tree_make(TREE_STAR, 16, &r, b.parents + 4);
    expansion_new(&e, &b, 16, &r);
    int64_t *const strides[] = {&e.bits_stride, &e.bools_stride, &e.dense_stride};
    *strides[which] = which == 0 ? 1 : 15;
    const int32_t prefix_lens[2] = {100, 0};
    expect(&e, &b, 0, 100, false);
    step_batch_upload(&b);
    device_buffer lens = td_alloc_copy(prefix_lens, sizeof prefix_lens);
    const treeattn_cuda_expand_args args = expand_args(&e, &b, &lens, false);
    CHECK_OK(treeattn_cuda_expand(&args, &error));
    td_sync();
    const treeattn_cuda_outcome want[2] = {{TREEATTN_OK, TREEATTN_CUDA_FIELD_NONE, -1, -1},
                                           {TREEATTN_ERROR_INVALID_ARGUMENT, TREEATTN_CUDA_FIELD_MASK, -1, which}};
    check_expansion(&e, &b, want);
    expansion_free(&e);
    td_free(&lens);
    step_batch_free(&b);
  }
}

/* What the host refuses, before any device is asked. */
static void test_host_refusals(void **state) {
  (void)state;
  int32_t words[64] = {0};
  treeattn_cuda_outcome outcomes[2];
  treeattn_cuda_expand_args good = TREEATTN_CUDA_EXPAND_ARGS_INIT;
  good.batch = (treeattn_cuda_batch){1, 4, 4, words};
  good.parents = words + 2;
  good.depths = words + 8;
  good.outcomes = outcomes;
  treeattn_cuda_expand_args args = good;
  CHECK_ERROR(treeattn_cuda_expand(NULL, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "args", "NULL", NULL);
  args.struct_size = 8;
  CHECK_ERROR(treeattn_cuda_expand(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "struct_size", "8", NULL);
  args = good;
  args.batch.num_requests = 65536;
  CHECK_ERROR(treeattn_cuda_expand(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "num_requests", "65536", NULL);
  args = good;
  args.batch.max_nodes = 4097;
  CHECK_ERROR(treeattn_cuda_expand(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "max_nodes", "4097", NULL);
  args = good;
  args.batch.num_nodes = -1;
  CHECK_ERROR(treeattn_cuda_expand(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "num_nodes", "-1", NULL);
  args = good;
  args.parents = NULL;
  CHECK_ERROR(treeattn_cuda_expand(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "parents is NULL", "4", NULL);
  args = good;
  args.outcomes = NULL;
  CHECK_ERROR(treeattn_cuda_expand(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "outcomes is NULL", NULL, NULL);
  args = good;
  args.positions = words + 10;
  CHECK_ERROR(treeattn_cuda_expand(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "positions", "depths", "overlap");
  args = good;
  args.mask_bits = (treeattn_cuda_mask){words + 20, 3, 1};
  CHECK_ERROR(treeattn_cuda_expand(&args, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL, "mask_bits.bytes", "3", "4");
  args.mask_bits.row_stride = 0;
  CHECK_ERROR(treeattn_cuda_expand(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "mask_bits.row_stride", "0", NULL);
  args.mask_bits.row_stride = INT64_MAX;
  CHECK_ERROR(treeattn_cuda_expand(&args, &error), TREEATTN_ERROR_OVERFLOW, "mask_bits", NULL, NULL);
  args = good;
  args.mask_f32 = (treeattn_cuda_mask){(unsigned char *)words + 81, 64, 4};
  CHECK_ERROR(treeattn_cuda_expand(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "mask_f32", "aligned", NULL);
  TD_NEED_DEVICE();
  CHECK_ERROR(treeattn_cuda_expand(&good, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "batch.offsets",
              "not device memory", NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_trees), cmocka_unit_test(test_large_trees),   cmocka_unit_test(test_device_refusals),
      cmocka_unit_test(test_narrow_masks), cmocka_unit_test(test_host_refusals),
  };
  return cmocka_run_group_tests_name("cuda_step", tests, NULL, NULL);
}
