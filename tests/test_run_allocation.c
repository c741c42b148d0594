/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: a run allocates. Every way to memory is counted while runs of the measured workloads go by. */
#include "support/check.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support/problem.h"
#include "support/shapes.h"
#include "support/threads.h"

/* The build puts these between the library and the C library; workers count too. */
static _Atomic int num_allocations;

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **memory, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes);
void *__real_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);

void *__wrap_malloc(size_t bytes) {
  num_allocations++;
  return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes) {
  num_allocations++;
  return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes) {
  num_allocations++;
  return __real_realloc(old, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
  num_allocations++;
  return __real_aligned_alloc(alignment, bytes);
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes) {
  num_allocations++;
  return __real_posix_memalign(memory, alignment, bytes);
}

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
  num_allocations++;
  return __real_mmap(address, bytes, protection, flags, file, offset);
}

/* An executor that runs everything here: the threads of a team are made, and so allocate, outside the library. */
static int run_here(void *context, void (*task)(void *arg, size_t index), void *arg, size_t num_tasks) {
  (void)context;
  for (size_t n = 0; n < num_tasks; n++) {
    task(arg, n);
  }
  return 0;
}

/* One run of a plan on zeros, and the same as tasks: what is in the cache does not decide whether memory is asked for. */
static int allocations_of_run(const treeattn_plan *plan) {
  const treeattn_plan_info info = plan_info(plan);
  treeattn_run_args run = TREEATTN_RUN_ARGS_INIT;
  run.q_bytes = info.q_bytes;
  run.k_bytes = info.k_bytes;
  run.v_bytes = info.v_bytes;
  run.out_bytes = info.out_bytes;
  run.lse_bytes = info.lse_bytes;
  run.scratch_bytes = info.scratch_bytes;
  void *q = calloc(1, info.q_bytes);
  void *k = calloc(1, info.k_bytes);
  void *v = calloc(1, info.v_bytes);
  void *scratch = malloc(info.scratch_bytes);
  run.q = q;
  run.k = k;
  run.v = v;
  run.out = malloc(info.out_bytes);
  run.lse = malloc(info.lse_bytes);
  run.scratch = scratch;
  run.executor.parallel_for = run_here;
  CHECK(q != NULL && k != NULL && v != NULL && run.out != NULL && run.lse != NULL && scratch != NULL, "no memory");
  num_allocations = 0;
  CHECK_OK(treeattn_attend(plan, &run, &error));
  CHECK_OK(treeattn_attend_check(plan, &run, &error));
  for (int stage = 0; stage < 2; stage++) {
    for (int64_t task = 0; task < info.num_tasks[stage]; task += 7) {
      treeattn_attend_task(plan, &run, stage, task, task % info.num_workers);
    }
  }
  const int counted = num_allocations;
  CHECK(((float *)run.out)[0] == 0.0f, "zeros average to %g", (double)((float *)run.out)[0]);
  free(q);
  free(k);
  free(v);
  free(run.out);
  free(run.lse);
  free(scratch);
  return counted;
}

static void test_runs_allocate_nothing(void **state) {
  (void)state;
  static const int64_t workers[] = {1, 16};
  static const int64_t page_sizes[] = {0, 16};
  for (int n = 0; n < NUM_WORKLOAD_SHAPES; n++) {
    workload_shape shape = workload_shapes[n];
    shape.kv_len = test_quick() ? 256 : shape.kv_len;
    for (size_t w = 0; w < sizeof workers / sizeof *workers; w++) {
      const int64_t page_size = page_sizes[(n + (int)w) % 2];
      treeattn_plan *plan = shape_plan(&shape, TREEATTN_ISA_AUTO, workers[w], page_size);
      const int counted = allocations_of_run(plan);
      CHECK(counted == 0, "workload %s, %lld workers, page size %lld: a run allocates %d times", shape.name,
            (long long)workers[w], (long long)page_size, counted);
      treeattn_plan_destroy(plan);
    }
  }
}

/* The counter sees the library: what is known to allocate is counted. */
static void test_counter_sees_the_library(void **state) {
  (void)state;
  num_allocations = 0;
  treeattn_plan *plan = shape_plan(&workload_shapes[0], TREEATTN_ISA_AUTO, 1, 0);
  CHECK(num_allocations == 1, "treeattn_plan_create allocates %d times", num_allocations);
  treeattn_plan_destroy(plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_runs_allocate_nothing),
      cmocka_unit_test(test_counter_sees_the_library),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
