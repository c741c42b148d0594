/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: working memory grows with the cache, or beyond what a thread's share of the machine's caches bears. */
#include "support/check.h"

#include <stdio.h>

#include "support/harness.h"
#include "support/shapes.h"

static const int64_t worker_counts[] = {1, 2, 4, 16, 64};
enum { NUM_COUNTS = sizeof worker_counts / sizeof *worker_counts };

static treeattn_plan_info info_of(const workload_shape *shape, treeattn_isa isa, int64_t workers) {
  treeattn_plan *plan = shape_plan(shape, isa, workers, 0);
  const treeattn_plan_info info = plan_info(plan);
  treeattn_plan_destroy(plan);
  return info;
}

static void test_at_most_a_mebibyte_for_each_thread(void **state) {
  (void)state;
  treeattn_isa isas[8];
  const int num_isas = available_isas(isas);
  for (int i = 0; i < num_isas; i++) {
    for (int n = 0; n < NUM_WORKLOAD_SHAPES; n++) {
      for (int w = 0; w < NUM_COUNTS; w++) {
        const treeattn_plan_info info = info_of(&workload_shapes[n], isas[i], worker_counts[w]);
        const size_t limit = (size_t)worker_counts[w] << 20;
        CHECK(info.scratch_bytes <= limit, "workload %s, %s, %lld workers: %zu bytes of scratch",
              workload_shapes[n].name, treeattn_isa_name(isas[i]), (long long)worker_counts[w], info.scratch_bytes);
      }
    }
  }
}

/* All scratch is a worker's own memory, which the length does not enter, and partial results: none for one worker, and
 * at most a state and a value row for each leaf of 512 positions otherwise. */
static void test_grows_with_the_cache_by_partial_results_only(void **state) {
  (void)state;
  for (int n = 0; n < NUM_WORKLOAD_SHAPES; n++) {
    for (int w = 0; w < NUM_COUNTS; w++) {
      workload_shape shape = workload_shapes[n];
      for (shape.kv_len = 1024; shape.kv_len <= 1 << 20; shape.kv_len *= 4) {
        const treeattn_plan_info info = info_of(&shape, TREEATTN_ISA_AUTO, worker_counts[w]);
        const size_t rows = (size_t)(shape.num_heads * shape.num_nodes);
        const size_t leaves = (size_t)shape.kv_len / 512 + 1;
        const size_t partial = worker_counts[w] == 1 ? 0 : rows * leaves * (size_t)(shape.head_dim + 2) * sizeof(float);
        CHECK(info.partial_bytes <= partial, "workload %s at %lld keys, %lld workers: %zu bytes of partial results",
              shape.name, (long long)shape.kv_len, (long long)worker_counts[w], info.partial_bytes);
        CHECK(info.worker_bytes <= (size_t)1 << 20, "workload %s at %lld keys: %zu bytes a worker", shape.name,
              (long long)shape.kv_len, info.worker_bytes);
        CHECK(info.scratch_bytes <= info.partial_bytes + info.worker_bytes * (size_t)worker_counts[w] + 256,
              "workload %s at %lld keys: scratch is more than its parts", shape.name, (long long)shape.kv_len);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_at_most_a_mebibyte_for_each_thread),
      cmocka_unit_test(test_grows_with_the_cache_by_partial_results_only),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
