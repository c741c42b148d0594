/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: rows stop sharing the loads of K and V. Counts the bytes that lanes read from the cache, exactly. */
#include "support/check.h"

#include "metal_harness.h"
#include "standin/bridge.h"

/* Bytes of K and V that one run reads. */
static uint64_t bytes_of_run(int num_nodes, int group, int num_kv_heads, int head_dim, int kv_len, rng *r) {
  problem p = problem_new(group * num_kv_heads, num_kv_heads, head_dim, 0, TREEATTN_F16);
  (void)problem_add_tree(&p, kv_len - num_nodes, num_nodes, TREE_CHAIN, 1.0f, r);
  layout how = LAYOUT_INIT;
  harness h;
  metal_buffers m;
  harness_build(&h, &p, &how);
  metal_buffers_new(&m, &h, r);
  uint64_t before = standin_bytes_read("treeattn_attend", 3) + standin_bytes_read("treeattn_attend", 4);
  CHECK_OK(treeattn_metal_attend(metal_of_tests(), h.plan, &m.run, &error));
  uint64_t after = standin_bytes_read("treeattn_attend", 3) + standin_bytes_read("treeattn_attend", 4);
  metal_buffers_free(&m);
  harness_free(&h);
  problem_free(&p);
  return after - before;
}

static void test_cache_is_read_once_for_a_tile(void **state) {
  (void)state;
  static const int nodes[] = {1, 16, 64}, groups[] = {1, 2, 4, 5, 8};
  const int kv_len = test_quick() ? 560 : 1100, head_dim = 32;
  rng r;
  (void)trial_begin(&r, 201, 0);
  for (size_t n = 0; n < sizeof nodes / sizeof nodes[0]; n++) {
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
      uint64_t read = bytes_of_run(nodes[n], groups[g], 1, head_dim, kv_len, &r);
      /* Every tile of 8 (node, head) pairs reads each key that one of its nodes sees, once: for a chain, up to the last. */
      uint64_t expected = 0;
      int pairs = nodes[n] * groups[g];
      for (int first = 0; first < pairs; first += 8) {
        int last_node = ((first + 8 < pairs ? first + 8 : pairs) - 1) / groups[g];
        expected += (uint64_t)(kv_len - nodes[n] + last_node + 1) * (uint64_t)head_dim * 2 * 2;
      }
      CHECK(read == expected, "%d nodes of %d heads read %llu bytes of K and V instead of %llu", nodes[n], groups[g],
            (unsigned long long)read, (unsigned long long)expected);
      uint64_t each_row = (uint64_t)pairs * (uint64_t)kv_len * (uint64_t)head_dim * 2 * 2;
      print_message("N %2d, %d heads a KV head, %d keys: %9llu bytes, one row at a time %9llu, ratio %.2f\n", nodes[n],
                    groups[g], kv_len, (unsigned long long)read, (unsigned long long)each_row,
                    (double)each_row / (double)read);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_cache_is_read_once_for_a_tile)};
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  metal_close();
  return failed;
}
