/* SPDX-License-Identifier: Apache-2.0 */
/* Compaction allocates in one place only, and says so when that fails. */
#include <stdbool.h>
#include <stdlib.h>

#include <treeattn/commit.h>

#include "support/check.h"

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);

static int num_allocations;
static bool fail_next;

void *__wrap_malloc(size_t bytes) {
  num_allocations++;
  if (fail_next) {
    fail_next = false;
    return NULL;
  }
  return __real_malloc(bytes);
}

static void test_only_create_allocates(void **state) {
  (void)state;
  static const int32_t path[] = {2, 0, 1, 5};
  static unsigned char memory[4096];
  unsigned char data[16][2] = {{0}};
  const treeattn_commit_request request = {4, 6, path, 4, 0, NULL, 0};
  treeattn_commit_args args = TREEATTN_COMMIT_ARGS_INIT;
  args.num_requests = 1;
  args.requests = &request;
  args.kv_capacity = 16;
  const treeattn_commit_tensor tensor = {data, sizeof data, 2, 1, 0, 0, 0};
  treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
  run.num_tensors = 1;
  run.tensors = &tensor;
  treeattn_commit_plan *plan = NULL;
  size_t bytes = 0;
  treeattn_commit_move moves[8];
  treeattn_commit_plan_info info = TREEATTN_COMMIT_PLAN_INFO_INIT;
  int32_t remapped[6];
  int32_t scratch[6];

  num_allocations = 0;
  CHECK_OK(treeattn_commit_plan_bytes(&args, &bytes, &error));
  CHECK_OK(treeattn_commit_plan_init(&args, memory, sizeof memory, &plan, &error));
  CHECK_OK(treeattn_commit_plan_get_info(plan, &info, &error));
  CHECK_OK(treeattn_commit_plan_get_moves(plan, moves, 8, &error));
  CHECK_OK(treeattn_commit_apply(plan, &run, &error));
  CHECK_OK(treeattn_commit_remap(6, path, 4, NULL, remapped, scratch, &error));
  treeattn_commit_plan_destroy(plan); /* of the caller's memory: harmless */
  assert_int_equal(num_allocations, 0);

  fail_next = true;
  CHECK_ERROR(treeattn_commit_plan_create(&args, &plan, &error), TREEATTN_ERROR_OUT_OF_MEMORY, "malloc", NULL, NULL);
  assert_null(plan);
  assert_int_equal(num_allocations, 1);
  CHECK_OK(treeattn_commit_plan_create(&args, &plan, &error));
  assert_int_equal(num_allocations, 2);
  treeattn_commit_plan_destroy(plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_only_create_allocates),
  };
  return cmocka_run_group_tests_name("commit allocation", tests, NULL, NULL);
}
