/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: the device part of a plan says something else about lengths, trees, pages or biases than the plan does. Needs no GPU. */
#include "support/check.h"

#include <stdio.h>
#include <string.h>

#include "cuda/host.h"
#include "support.h"

static const treeattn_dtype halves[] = {TREEATTN_F16, TREEATTN_BF16};

typedef struct image {
  unsigned char *bytes;
  ta_image_header header;
  const ta_image_request *requests;
  const ta_image_row *rows;
  const int32_t *slots, *pages;
  const uint64_t *bits;
  const float *bias;
} image;

enum { CANARY = 64 };

static image image_new(const treeattn_plan *plan, const ta_cuda_settings *settings) {
  image i;
  ta_image_header again;
  memset(&i, 0, sizeof i);
  CHECK_OK(ta_cuda_lay_out_image(plan, settings, NULL, &i.header, &error));
  i.bytes = aligned_alloc(16, (size_t)i.header.image_bytes + CANARY);
  CHECK(i.bytes != NULL, "out of memory");
  memset(i.bytes, 0xa5, (size_t)i.header.image_bytes + CANARY);
  CHECK_OK(ta_cuda_lay_out_image(plan, settings, i.bytes, &again, &error));
  CHECK(memcmp(&again, &i.header, sizeof again) == 0, "the header changes from the first walk to the second");
  CHECK(memcmp(i.bytes, &again, sizeof again) == 0, "the header is not the image's beginning");
  for (int n = 0; n < CANARY; n++) {
    CHECK(i.bytes[i.header.image_bytes + (uint64_t)n] == 0xa5, "byte %d behind the image was written", n);
  }
  i.requests = (const void *)(i.bytes + i.header.requests);
  i.rows = (const void *)(i.bytes + i.header.rows);
  i.slots = (const void *)(i.bytes + i.header.slots);
  i.pages = (const void *)(i.bytes + i.header.pages);
  i.bits = (const void *)(i.bytes + i.header.bits);
  i.bias = (const void *)(i.bytes + i.header.bias);
  return i;
}

/* What the image says about one position, as kernels read it. */
static bool sees(const image *i, const ta_image_request *request, const ta_image_row *row, int64_t position,
                 int64_t *slot) {
  if (position < request->prefix_len) {
    *slot = position;
    return position >= row->prefix_first &&
           (row->bits < 0 || (i->bits[row->bits + position / 64] >> (position % 64) & 1) != 0);
  }
  const int64_t offset = position - request->prefix_len;
  if (offset >= row->tail_len || i->slots[row->slots + offset] < 0) {
    return false;
  }
  *slot = i->slots[row->slots + offset];
  return true;
}

static void check_row(const image *i, const treeattn_plan *plan, int64_t b, int64_t r) {
  const ta_request *request = &plan->requests[b];
  const ta_image_request *cut = &i->requests[b];
  const ta_image_row *row = &i->rows[request->first_row + r];
  const int64_t node = request->node_of_row == NULL ? r : request->node_of_row[r];
  CHECK(row->request == b, "row %lld belongs to request %d instead of %lld", (long long)r, (int)row->request,
        (long long)b);
  CHECK(row->position == request->row_position[r], "row %lld has position %d instead of %d", (long long)r,
        (int)row->position, (int)request->row_position[r]);
  const int64_t leaves = (request->prefix_len + request->num_nodes + request->num_tail + TA_LEAF) / TA_LEAF + 1;
  for (int64_t leaf = 0; leaf < leaves; leaf++) {
    uint64_t seen[TA_LEAF_WORDS];
    int32_t slots[TA_LEAF];
    memset(seen, 0, sizeof seen);
    ta_row_visible(request, r, leaf, seen, slots);
    for (int64_t bit = 0; bit < TA_LEAF; bit++) {
      const int64_t position = leaf * TA_LEAF + bit;
      const bool expected = (seen[bit / 64] >> (bit % 64) & 1) != 0;
      int64_t slot = -1;
      const bool actual = sees(i, cut, row, position, &slot);
      CHECK(actual == expected, "row %lld position %lld: the image says %d, the plan %d", (long long)r,
            (long long)position, actual, expected);
      const bool shared = position >= cut->shared_begin && position < cut->shared_end;
      CHECK(!shared || expected, "row %lld does not see the shared position %lld", (long long)r, (long long)position);
      if (!expected) {
        continue;
      }
      CHECK(position < request->prefix_len || slot == slots[bit], "row %lld position %lld: slot %lld instead of %d",
            (long long)r, (long long)position, (long long)slot, (int)slots[bit]);
      CHECK(leaf >= row->leaf_begin && leaf < row->leaf_end, "row %lld: leaf %lld is outside [%d, %d)", (long long)r,
            (long long)leaf, (int)row->leaf_begin, (int)row->leaf_end);
      const float bias = slot >= row->bias_first_slot ? i->bias[row->bias + slot] : 0.0f;
      const float wanted = request->bias != NULL && slot >= request->bias_first_slot
                               ? request->bias[node * request->bias_stride + slot - request->bias_first_slot]
                               : 0.0f;
      CHECK(memcmp(&bias, &wanted, sizeof bias) == 0, "row %lld slot %lld: bias %.9g instead of %.9g", (long long)r,
            (long long)slot, (double)bias, (double)wanted);
      CHECK(!shared || wanted == 0.0f, "row %lld has a bias at the shared position %lld", (long long)r,
            (long long)position);
    }
  }
}

static void check_image(const treeattn_plan *plan, const ta_cuda_settings *settings) {
  image i = image_new(plan, settings);
  int64_t units = 0, partials = 0;
  for (int64_t b = 0; b < plan->num_requests; b++) {
    const ta_request *request = &plan->requests[b];
    const ta_image_request *cut = &i.requests[b];
    CHECK(cut->prefix_len == request->prefix_len && cut->num_rows == request->num_rows &&
              cut->first_row == request->first_row && cut->cache_index == request->cache_index,
          "request %lld is not the plan's", (long long)b);
    /* Equal: nothing is shared, wherever that is. */
    CHECK(cut->shared_begin % TA_LEAF == 0 && cut->shared_begin >= 0 &&
              (cut->shared_end == cut->shared_begin ||
               (cut->shared_end > cut->shared_begin && cut->shared_end <= cut->prefix_len &&
                cut->shared_end % settings->tile == 0)),
          "request %lld shares [%d, %d) of a prefix of %d", (long long)b, (int)cut->shared_begin, (int)cut->shared_end,
          (int)cut->prefix_len);
    CHECK(cut->first_unit == units && cut->partial_base == partials, "request %lld begins at unit %lld and float %lld",
          (long long)b, (long long)cut->first_unit, (long long)cut->partial_base);
    /* Every shared leaf lies in one chunk. */
    const int64_t closed = cut->shared_end / TA_LEAF - cut->shared_begin / TA_LEAF;
    CHECK(cut->num_chunks * (int64_t)i.header.unit_leaves >= closed && (cut->num_chunks == 0) == (closed == 0),
          "%d chunks of %d leaves for %lld", (int)cut->num_chunks, (int)i.header.unit_leaves, (long long)closed);
    CHECK(cut->num_slots == cut->num_chunks + (cut->shared_end % TA_LEAF != 0 ? 1 : 0), "%d slots for %d chunks",
          (int)cut->num_slots, (int)cut->num_chunks);
    CHECK((int64_t)cut->num_row_blocks * settings->block_rows >= request->num_rows * plan->group, "%d blocks of rows",
          (int)cut->num_row_blocks);
    units += (int64_t)cut->num_unit_chunks * cut->num_row_blocks * plan->num_kv_heads;
    partials += request->num_rows * plan->num_heads * cut->num_slots * (plan->head_dim_v + 2);
    CHECK((cut->pages >= 0) == plan->paged, "pages begin at %lld", (long long)cut->pages);
    const int64_t pages = plan->paged ? (request->kv_seq_len + plan->page_size - 1) / plan->page_size : 0;
    CHECK(pages == 0 || memcmp(i.pages + cut->pages, request->page_table, (size_t)pages * sizeof(int32_t)) == 0,
          "request %lld has other pages", (long long)b);
    for (int64_t r = 0; r < request->num_rows; r++) {
      check_row(&i, plan, b, r);
    }
  }
  CHECK(i.header.num_units == units, "%lld units instead of %lld", (long long)i.header.num_units, (long long)units);
  CHECK(i.header.scratch_bytes >= (uint64_t)partials * sizeof(float), "%llu bytes of scratch for %lld floats",
        (unsigned long long)i.header.scratch_bytes, (long long)partials);
  free(i.bytes);
}

static const int32_t tiles[] = {TA_LEAF, TA_IMAGE_TILE};
static const int32_t multiprocessors[] = {1, 8, 132, 1000};

static void check_plan(harness *h, rng *r) {
  h->args.backend = TREEATTN_BACKEND_CUDA;
  h->args.mode = h->source->kv_dtype == TREEATTN_F32 || rng_chance(r, 2) ? TREEATTN_MODE_EXACT : TREEATTN_MODE_FAST;
  treeattn_plan *plan = NULL;
  CHECK_OK(treeattn_plan_create(&h->args, &plan, &error));
  for (int pass = 0; pass < 2; pass++) {
    const ta_cuda_settings settings = {PICK(r, multiprocessors), rng_chance(r, 2) ? 64 : 128, tiles[pass]};
    check_image(plan, &settings);
  }
  treeattn_plan_destroy(plan);
}

static void test_trees(void **state) {
  (void)state;
  static const int prefixes[] = {0, 1, 63, 64, 65, 511, 512, 513, 575, 576, 1023, 1024, 1025, 1500, 2048, 9000};
  static const int windows[] = {0, 0, 1, 5, 64, 511, 512, 513, 900};
  for (int n = 0; n < trial_count(160, 16); n++) {
    rng r;
    const int index = trial_begin(&r, 221, n);
    problem p = problem_new(4, rng_chance(&r, 2) ? 1 : 2, 8, 0, PICK(&r, halves));
    p.window = PICK(&r, windows);
    const int requests = rng_range(&r, 1, 4);
    for (int k = 0; k < requests; k++) {
      (void)problem_add_tree(&p, k == 0 ? prefixes[index % 16] : rng_below(&r, 1200), rng_range(&r, 0, 40),
                             (tree_shape)rng_below(&r, NUM_TREE_SHAPES), 1.0f, &r);
    }
    const layout how = gpu_layout_random(&r);
    harness h;
    harness_build(&h, &p, &how);
    check_plan(&h, &r);
    harness_free(&h);
    problem_free(&p);
  }
}

static void test_free_masks(void **state) {
  (void)state;
  static const int prefixes[] = {0, 1, 64, 300, 512, 1100, 2100};
  for (int n = 0; n < trial_count(80, 8); n++) {
    rng r;
    const int index = trial_begin(&r, 222, n);
    problem p = problem_new(2, 1, 8, 0, PICK(&r, halves));
    p.window = rng_chance(&r, 3) ? rng_range(&r, 1, 900) : 0;
    const request_data *data = problem_add_tree(&p, prefixes[index % 7], rng_range(&r, 1, 30), TREE_CHAIN, 1.0f, &r);
    const layout how = gpu_layout_random(&r);
    harness h;
    harness_build(&h, &p, &how);
    const int cells = data->num_nodes * data->num_slots;
    uint8_t *seen = calloc((size_t)cells + 1, 1);
    float *bias = calloc((size_t)cells + 1, sizeof *bias);
    /* Holes and biases in some stretches only, so that leaves remain that all rows see. */
    const int begin = rng_below(&r, data->num_slots), end = begin + rng_below(&r, 700);
    for (int c = 0; c < cells; c++) {
      const int slot = c % data->num_slots;
      const bool touched = (slot >= begin && slot < end) || slot >= data->prefix_len;
      seen[c] = !touched || !rng_chance(&r, 3);
      bias[c] = touched && rng_chance(&r, 2) ? rng_signed(&r) : 0.0f;
    }
    const treeattn_mask_kind kind = (treeattn_mask_kind)rng_range(&r, TREEATTN_MASK_DENSE_F32, TREEATTN_MASK_BITS);
    harness_set_mask(&h, 0, kind, seen, rng_chance(&r, 2) ? bias : NULL);
    check_plan(&h, &r);
    free(seen);
    free(bias);
    harness_free(&h);
    problem_free(&p);
  }
}

static void test_some_queries(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(40, 6); n++) {
    rng r;
    (void)trial_begin(&r, 223, n);
    problem p = problem_new(2, 1, 8, 0, PICK(&r, halves));
    const int num_nodes = rng_range(&r, 1, 60);
    (void)problem_add_tree(&p, rng_below(&r, 1200), num_nodes, TREE_RANDOM, 1.0f, &r);
    int32_t *nodes = calloc((size_t)num_nodes, sizeof *nodes);
    for (int32_t i = 0; i < num_nodes; i++) {
      nodes[i] = i;
    }
    rng_shuffle(&r, nodes, num_nodes);
    const int32_t *lists[1] = {nodes};
    const int64_t counts[1] = {rng_range(&r, 0, num_nodes)};
    layout how = gpu_layout_random(&r);
    how.query_nodes = lists;
    how.num_queries = counts;
    harness h;
    harness_build(&h, &p, &how);
    check_plan(&h, &r);
    harness_free(&h);
    free(nodes);
    problem_free(&p);
  }
}

/* Without a device every entry point that needs one says so and writes nothing. */
static void test_without_a_device(void **state) {
  (void)state;
  if (td_available()) {
    skip();
  }
  rng r;
  (void)trial_begin(&r, 224, 0);
  problem p = problem_new(2, 1, 64, 0, TREEATTN_F16);
  (void)problem_add_tree(&p, 100, 5, TREE_RANDOM, 1.0f, &r);
  const layout how = LAYOUT_INIT;
  harness h;
  harness_build(&h, &p, &how);
  h.args.backend = TREEATTN_BACKEND_CUDA;
  treeattn_plan *plan = NULL;
  CHECK_OK(treeattn_plan_create(&h.args, &plan, &error));
  int32_t count = -1;
  CHECK_OK(treeattn_cuda_device_count(&count, &error));
  assert_int_equal(count, 0);
  treeattn_cuda_device device = TREEATTN_CUDA_DEVICE_INIT;
  CHECK_ERROR(treeattn_cuda_get_device(0, &device, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "index", "0", NULL);
  treeattn_cuda_needs needs = TREEATTN_CUDA_NEEDS_INIT, kept = needs;
  CHECK_ERROR(treeattn_cuda_get_needs(plan, NULL, &needs, &error), TREEATTN_ERROR_UNSUPPORTED, "no CUDA device", NULL,
              NULL);
  assert_memory_equal(&needs, &kept, sizeof needs);
  unsigned char bytes[64];
  memset(bytes, 0xa5, sizeof bytes);
  CHECK_ERROR(treeattn_cuda_write_image(plan, NULL, bytes, sizeof bytes, &error), TREEATTN_ERROR_UNSUPPORTED,
              "no CUDA device", NULL, NULL);
  for (size_t n = 0; n < sizeof bytes; n++) {
    assert_int_equal(bytes[n], 0xa5);
  }
  treeattn_cuda_run_args run = TREEATTN_CUDA_RUN_ARGS_INIT;
  CHECK_ERROR(treeattn_cuda_attend(plan, NULL, &run, &error), TREEATTN_ERROR_UNSUPPORTED, "no CUDA device", NULL, NULL);
  CHECK_ERROR(treeattn_attend(plan, &h.run, &error), TREEATTN_ERROR_UNSUPPORTED, "backend", NULL, NULL);
  treeattn_plan_destroy(plan);
  harness_free(&h);
  problem_free(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_trees),
      cmocka_unit_test(test_free_masks),
      cmocka_unit_test(test_some_queries),
      cmocka_unit_test(test_without_a_device),
  };
  return cmocka_run_group_tests_name("cuda_image", tests, NULL, NULL);
}
