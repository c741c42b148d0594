/* SPDX-License-Identifier: Apache-2.0 */
/* Intervals and masks say what walking up says, at every word edge, and lead back to the parents. */
#include <string.h>

#include <treeattn/attention.h>
#include <treeattn/tree.h>

#include "support/tree_trials.h"

enum { SALT = 0x6d61, FILL = 0xa5 };

static void intervals_are_the_ancestor_relation(void **state) {
  (void)state;
  for (int index = 0; index < tree_trial_count(); index++) {
    rng r;
    tree_trial t = tree_trial_new(&r, SALT, index);
    const int n = t.num_nodes;
    int32_t *intervals = filled_array(2 * (size_t)n, sizeof(int32_t), FILL);
    int32_t *expected = filled_array(2 * (size_t)n, sizeof(int32_t), FILL);
    unsigned char *sees = filled_array((size_t)n, 1, 0);
    CHECK_OK(treeattn_tree_get_intervals(n, t.parents, intervals, n, &error));
    assert_true(still_filled(intervals, 2 * (size_t)n, sizeof(int32_t), FILL));
    tree_intervals(t.parents, n, expected);
    assert_memory_equal(intervals, expected, 2 * (size_t)n * sizeof(int32_t));
    for (int i = 0; i < n; i++) {
      tree_trial_row(&t, i, sees);
      for (int j = 0; j < n; j++) {
        const bool inside = intervals[2 * j] <= intervals[2 * i] && intervals[2 * i] < intervals[2 * j + 1];
        CHECK(inside == (sees[j] != 0), "node %d sees node %d: %d by intervals", i, j, inside);
      }
    }
    free(intervals);
    free(expected);
    free(sees);
    tree_trial_free(&t);
  }
}

/* Spreads begins and ends over the integers, order kept, and pushes ends as far as nesting allows. */
static void stretch_intervals(rng *r, int n, int32_t *intervals) {
  int32_t *place = filled_array((size_t)n + 1, sizeof(int32_t), 0);
  int32_t at = -1000000;
  for (int k = 0; k <= n; k++) {
    at += rng_range(r, 1, 50);
    place[k] = at;
  }
  for (int k = 0; k < 2 * n; k++) {
    intervals[k] = place[intervals[k]];
  }
  free(place);
}

static void intervals_lead_back(void **state) {
  (void)state;
  for (int index = 0; index < tree_trial_count(); index++) {
    rng r;
    tree_trial t = tree_trial_new(&r, SALT + 1, index);
    const int n = t.num_nodes;
    const size_t scratch_bytes = treeattn_tree_from_intervals_scratch_bytes(n);
    unsigned char *scratch = filled_array(scratch_bytes + 8, 1, FILL);
    const size_t offset = (size_t)rng_below(&r, 8);
    int32_t *intervals = filled_array(2 * (size_t)n, sizeof(int32_t), FILL);
    int32_t *back = filled_array((size_t)n, sizeof(int32_t), FILL);
    CHECK_OK(treeattn_tree_get_intervals(n, t.parents, intervals, n, &error));
    if (index % 2 == 1) {
      stretch_intervals(&r, n, intervals);
    }
    CHECK_OK(treeattn_tree_from_intervals(n, intervals, back, n, scratch + offset, scratch_bytes, &error));
    assert_memory_equal(back, t.parents, (size_t)n * sizeof(int32_t));
    assert_true(still_filled(back, (size_t)n, sizeof(int32_t), FILL));
    assert_true(still_filled(scratch, scratch_bytes + 8, 1, FILL));
    free(scratch);
    free(intervals);
    free(back);
    tree_trial_free(&t);
  }
}

static void check_mask_rows(const tree_trial *t, int prefix_len, const uint8_t *bits, int64_t bits_stride,
                            const uint8_t *mask, int64_t mask_stride, const float *dense, int64_t dense_stride) {
  const int n = t->num_nodes;
  unsigned char *sees = filled_array((size_t)n, 1, 0);
  for (int i = 0; i < n; i++) {
    tree_trial_row(t, i, sees);
    for (int64_t c = 0; c < 8 * bits_stride; c++) {
      const bool expected = c < prefix_len || (c < prefix_len + n && sees[c - prefix_len] != 0);
      const bool bit = (bits[i * bits_stride + c / 8] >> (c % 8) & 1) != 0;
      CHECK(bit == expected, "row %d column %d: bit %d", i, (int)c, bit);
      CHECK(c >= mask_stride || mask[i * mask_stride + c] == expected, "row %d column %d: bool", i, (int)c);
      if (c < dense_stride) {
        const float value = dense[i * dense_stride + c];
        CHECK(value == (expected ? 0.0f : TREEATTN_MASK_HIDDEN), "row %d column %d: %g", i, (int)c, (double)value);
      }
    }
  }
  free(sees);
}

static void masks_agree_in_every_column(void **state) {
  (void)state;
  static const int prefixes[] = {0, 0, 1, 5, 7, 8, 9, 31, 32, 33, 63, 64, 65, 100};
  for (int index = 0; index < tree_trial_count(); index++) {
    rng r;
    tree_trial t = tree_trial_new(&r, SALT + 2, index);
    const int n = t.num_nodes;
    const int prefix_len = PICK(&r, prefixes);
    const int64_t columns = prefix_len + n;
    const int64_t word_bytes = (int64_t[]){1, 4, 8}[rng_below(&r, 3)];
    const int64_t bits_stride =
        ((columns + 7) / 8 + word_bytes - 1) / word_bytes * word_bytes + rng_below(&r, 2) * word_bytes;
    const int64_t mask_stride = columns + rng_below(&r, 9);
    const int64_t dense_stride = columns + rng_below(&r, 9);
    uint8_t *bits = filled_array((size_t)(n * bits_stride), 1, FILL);
    uint8_t *mask = filled_array((size_t)(n * mask_stride), 1, FILL);
    float *dense = filled_array((size_t)(n * dense_stride), sizeof(float), FILL);
    const int64_t packed = mask_stride == columns ? 0 : mask_stride;
    CHECK_OK(
        treeattn_tree_get_mask_bits(n, t.parents, prefix_len, bits, bits_stride, (size_t)(n * bits_stride), &error));
    CHECK_OK(treeattn_tree_get_mask_bool(n, t.parents, prefix_len, mask, packed, (size_t)(n * mask_stride), &error));
    CHECK_OK(treeattn_tree_get_mask_f32(n, t.parents, prefix_len, dense, dense_stride,
                                        (size_t)(n * dense_stride) * sizeof(float), &error));
    check_mask_rows(&t, prefix_len, bits, bits_stride, mask, mask_stride, dense, dense_stride);
    assert_true(still_filled(bits, (size_t)(n * bits_stride), 1, FILL));
    assert_true(still_filled(mask, (size_t)(n * mask_stride), 1, FILL));
    assert_true(still_filled(dense, (size_t)(n * dense_stride), sizeof(float), FILL));
    free(bits);
    free(mask);
    free(dense);
    tree_trial_free(&t);
  }
}

/* One bit turned makes another tree or none, never the same one. */
static void turn_one_bit(rng *r, const tree_trial *t, int prefix_len, uint8_t *bits, int64_t stride, int32_t *back) {
  const int n = t->num_nodes;
  const int64_t columns = prefix_len + n;
  const size_t bytes = (size_t)(n * stride);
  const int row = rng_below(r, n);
  const int64_t turned = rng_below(r, (int)columns);
  treeattn_error refusal = {TREEATTN_OK, ""};
  bits[row * stride + turned / 8] ^= (uint8_t)(1u << (turned % 8));
  memset(back, FILL, (size_t)n * sizeof(int32_t));
  if (treeattn_tree_from_mask_bits(n, prefix_len, bits, stride, bytes, back, n, &refusal) != TREEATTN_OK) {
    assert_int_equal(refusal.status, TREEATTN_ERROR_INVALID_TREE);
    assert_true(still_filled(back, 0, 1, FILL));
    return;
  }
  CHECK(memcmp(back, t->parents, (size_t)n * sizeof(int32_t)) != 0, "row %d column %d turned", row, (int)turned);
  uint8_t *again = filled_array(bytes, 1, FILL);
  CHECK_OK(treeattn_tree_get_mask_bits(n, back, prefix_len, again, stride, bytes, &error));
  for (int64_t i = 0; i < n; i++) {
    for (int64_t c = 0; c < columns; c++) {
      CHECK(((again[i * stride + c / 8] ^ bits[i * stride + c / 8]) >> (c % 8) & 1) == 0, "row %d column %d", (int)i,
            (int)c);
    }
  }
  free(again);
}

static void bits_lead_back(void **state) {
  (void)state;
  for (int index = 0; index < tree_trial_count(); index++) {
    rng r;
    tree_trial t = tree_trial_new(&r, SALT + 3, index);
    const int n = t.num_nodes;
    const int prefix_len = rng_chance(&r, 2) ? 0 : rng_below(&r, 70);
    const int64_t stride = (prefix_len + n + 7) / 8 + rng_below(&r, 5);
    const size_t bytes = (size_t)(n * stride);
    uint8_t *bits = filled_array(bytes, 1, FILL);
    int32_t *back = filled_array((size_t)n, sizeof(int32_t), FILL);
    CHECK_OK(treeattn_tree_get_mask_bits(n, t.parents, prefix_len, bits, stride, bytes, &error));
    /* What stands after the last column is nobody's business. */
    const int64_t columns = prefix_len + n;
    for (int i = 0; i < n; i++) {
      for (int64_t c = columns; c < 8 * stride; c++) {
        if (rng_chance(&r, 2)) {
          bits[i * stride + c / 8] ^= (uint8_t)(1u << (c % 8));
        }
      }
    }
    CHECK_OK(treeattn_tree_from_mask_bits(n, prefix_len, bits, stride, bytes, back, n, &error));
    assert_memory_equal(back, t.parents, (size_t)n * sizeof(int32_t));
    assert_true(still_filled(back, (size_t)n, sizeof(int32_t), FILL));

    if (n > 0) {
      turn_one_bit(&r, &t, prefix_len, bits, stride, back);
    }
    free(bits);
    free(back);
    tree_trial_free(&t);
  }
}

/* Stars and chains as arrays of words, checked in every lane and not only at the edges. */
static void words_hold_stars_and_chains(void **state) {
  (void)state;
  static const int sizes[] = {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256, 257, 1025};
  for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
    const int n = sizes[k];
    const int words = (n + 63) / 64;
    int32_t *parents = filled_array((size_t)n, sizeof(int32_t), 0);
    uint8_t *bits = filled_array((size_t)(n * words), 8, FILL);
    for (int star = 0; star <= 1; star++) {
      for (int i = 0; i < n; i++) {
        parents[i] = i == 0 ? -1 : (star ? 0 : i - 1);
      }
      CHECK_OK(treeattn_tree_get_mask_bits(n, parents, 0, bits, 8 * words, (size_t)(8 * n * words), &error));
      for (int i = 0; i < n; i++) {
        for (int w = 0; w < words; w++) {
          uint64_t word = 0;
          for (int byte = 0; byte < 8; byte++) {
            word |= (uint64_t)bits[(i * words + w) * 8 + byte] << (8 * byte);
          }
          uint64_t expected = 0;
          for (int lane = 0; lane < 64; lane++) {
            const int j = 64 * w + lane;
            expected |= (uint64_t)(star ? j == 0 || j == i : j <= i) << lane;
          }
          CHECK(word == expected, "%s of %d: row %d word %d is %016llx, not %016llx", star ? "star" : "chain", n, i, w,
                (unsigned long long)word, (unsigned long long)expected);
        }
      }
    }
    free(parents);
    free(bits);
  }
}

/* ---- refusals ---- */

static void intervals_that_are_no_tree_are_refused(void **state) {
  (void)state;
  static const struct {
    int32_t intervals[4][2];
    const char *node;
    const char *reason;
  } bad[] = {
      {{{0, 4}, {1, 2}, {1, 3}, {3, 4}}, "intervals[2]", "so does intervals[1]"},
      {{{0, 4}, {1, 3}, {2, 4}, {3, 4}}, "intervals[2]", "nest in intervals[1]"},
      {{{1, 2}, {0, 2}, {2, 3}, {3, 4}}, "intervals[0]", "smaller index"},
      {{{0, 4}, {1, 1}, {2, 3}, {3, 4}}, "intervals[1]", "not be empty"},
      {{{0, 4}, {1, 2}, {3, 2}, {3, 4}}, "intervals[2]", "not be empty"},
      {{{0, 4}, {1, 2}, {2, 3}, {3, INT32_MAX}}, "intervals[3]", "nest in intervals[0]"},
      {{{INT32_MIN, INT32_MAX}, {1, 2}, {2, 3}, {INT32_MIN, 3}}, "intervals[3]", "so does intervals[0]"},
  };
  for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
    int32_t back[4] = {7, 7, 7, 7};
    unsigned char scratch[128];
    CHECK_ERROR(treeattn_tree_from_intervals(4, &bad[k].intervals[0][0], back, 4, scratch, sizeof scratch, &error),
                TREEATTN_ERROR_INVALID_TREE, bad[k].node, bad[k].reason, NULL);
    assert_int_equal(back[0] + back[1] + back[2] + back[3], 28);
  }
}

static void bits_that_are_no_tree_are_refused(void **state) {
  (void)state;
  static const struct {
    uint8_t rows[4];
    int prefix_len;
    const char *node;
    const char *column;
  } bad[] = {
      {{0x01, 0x02, 0x00, 0x08}, 0, "node 2", "column 2"}, /* does not see itself */
      {{0x01, 0x03, 0x0f, 0x08}, 0, "node 2", "column 3"}, /* sees a later node */
      {{0x01, 0x02, 0x07, 0x08}, 0, "node 2", "column 0"}, /* two parents */
      {{0x01, 0x03, 0x06, 0x08}, 0, "node 2", "column 0"}, /* not the grandparent */
      {{0x03, 0x02, 0x04, 0x08}, 0, "node 0", "column 1"}, /* a cycle of two */
      {{0x07, 0x0f, 0x10, 0x23}, 2, "node 2", "column 0"}, /* a prefix that is not seen */
      {{0x07, 0x0f, 0x13, 0x21}, 2, "node 3", "column 1"},
  };
  for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
    int32_t back[4] = {7, 7, 7, 7};
    CHECK_ERROR(treeattn_tree_from_mask_bits(4, bad[k].prefix_len, bad[k].rows, 1, 4, back, 4, &error),
                TREEATTN_ERROR_INVALID_TREE, bad[k].node, bad[k].column, NULL);
    assert_int_equal(back[0] + back[1] + back[2] + back[3], 28);
  }
}

static void mask_sizes_are_checked(void **state) {
  (void)state;
  static const int32_t parents[] = {-1, 0, 0};
  uint8_t bits[8] = {9, 9, 9, 9, 9, 9, 9, 9};
  float dense[4] = {9, 9, 9, 9};
  int32_t back[3] = {9, 9, 9};
  const treeattn_status invalid = TREEATTN_ERROR_INVALID_ARGUMENT;
  const treeattn_status small = TREEATTN_ERROR_BUFFER_TOO_SMALL;
  const treeattn_status overflow = TREEATTN_ERROR_OVERFLOW;
  CHECK_ERROR(treeattn_tree_get_mask_bits(3, parents, 6, bits, 1, 8, &error), invalid, "row_stride is 1", "2", NULL);
  CHECK_ERROR(treeattn_tree_get_mask_bits(3, parents, 6, bits, 0, 5, &error), small, "bits has 5", "6", NULL);
  CHECK_ERROR(treeattn_tree_get_mask_bits(3, parents, -1, bits, 0, 8, &error), invalid, "prefix_len is -1", NULL, NULL);
  CHECK_ERROR(treeattn_tree_get_mask_bits(3, parents, INT64_MAX - 2, bits, 0, 8, &error), overflow, "prefix_len", NULL,
              NULL);
  CHECK_ERROR(treeattn_tree_get_mask_bits(3, parents, 0, bits, INT64_MAX, 8, &error), overflow, "row_stride", NULL,
              NULL);
  CHECK_ERROR(treeattn_tree_get_mask_bits(3, parents, 0, bits, -4, 8, &error), invalid, "row_stride is -4", NULL, NULL);
  CHECK_ERROR(treeattn_tree_get_mask_bits(3, parents, 0, NULL, 0, 8, &error), invalid, "bits is NULL", NULL, NULL);
  CHECK_ERROR(treeattn_tree_get_mask_bool(3, parents, 0, bits, 0, 8, &error), small, "mask has 8", "9", NULL);
  CHECK_ERROR(treeattn_tree_get_mask_f32(3, parents, 0, dense, 0, sizeof dense, &error), small, "mask has 16", "36",
              NULL);
  CHECK_ERROR(treeattn_tree_get_mask_f32(3, parents, 0, dense, (int64_t)1 << 61, sizeof dense, &error), overflow,
              "row_stride", NULL, NULL);
  CHECK_ERROR(treeattn_tree_from_mask_bits(3, 0, bits, 0, 2, back, 3, &error), small, "bits has 2", "3", NULL);
  CHECK_ERROR(treeattn_tree_from_mask_bits(3, 0, bits, 0, 8, back, 2, &error), small, "parents", "3", NULL);
  CHECK_ERROR(treeattn_tree_from_mask_bits(TREEATTN_TREE_MAX_NODES + 1, 0, bits, 0, 8, back, 3, &error),
              TREEATTN_ERROR_INVALID_TREE, "1048577", NULL, NULL);
  CHECK_ERROR(treeattn_tree_from_intervals(3, back, back, 2, bits, 8, &error), small, "parents", "3", NULL);
  CHECK_ERROR(treeattn_tree_from_intervals(3, NULL, back, 3, bits, 8, &error), invalid, "intervals is NULL", NULL,
              NULL);
  CHECK_ERROR(treeattn_tree_from_intervals(3, back, back, 3, bits, 8, &error), small, "scratch", NULL, NULL);
  CHECK_ERROR(treeattn_tree_get_intervals(3, parents, back, 2, &error), small, "intervals", "3", NULL);
  for (int k = 0; k < 8; k++) {
    assert_int_equal(bits[k], 9);
  }
  assert_true(dense[0] == 9 && dense[3] == 9);
  assert_int_equal(back[0] + back[1] + back[2], 27);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(intervals_are_the_ancestor_relation), cmocka_unit_test(intervals_lead_back),
      cmocka_unit_test(masks_agree_in_every_column),         cmocka_unit_test(bits_lead_back),
      cmocka_unit_test(words_hold_stars_and_chains),         cmocka_unit_test(intervals_that_are_no_tree_are_refused),
      cmocka_unit_test(bits_that_are_no_tree_are_refused),   cmocka_unit_test(mask_sizes_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
