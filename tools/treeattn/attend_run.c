/* SPDX-License-Identifier: Apache-2.0 */
/* Hands out a plan's tasks one by one, as an engine with threads of its own would, and counts them for a progress
 * bar. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* pthread_self under -std=c11 */
#endif

#include "attend_run.h"

#include <pthread.h>
#include <stdatomic.h>

#include "cli.h"

typedef struct job {
  const treeattn_plan *plan;
  const treeattn_run_args *run;
  int stage;
  int64_t num_tasks;
  atomic_int_fast64_t next;
  pthread_t caller; /* the only thread that draws */
  cli_progress progress;
} job;

static void work(void *arg, size_t worker) {
  job *shared = arg;
  for (;;) {
    const int64_t task = atomic_fetch_add_explicit(&shared->next, 1, memory_order_relaxed);
    if (task >= shared->num_tasks) {
      return;
    }
    treeattn_attend_task(shared->plan, shared->run, shared->stage, task, (int64_t)worker);
    if (pthread_equal(pthread_self(), shared->caller)) {
      cli_progress_update(&shared->progress, (double)task);
    }
  }
}

treeattn_status attend_run(const treeattn_plan *plan, const treeattn_run_args *run, treeattn_pool *pool,
                           treeattn_error *error) {
  treeattn_plan_info info = TREEATTN_PLAN_INFO_INIT;
  treeattn_status status = treeattn_plan_get_info(plan, &info, error);
  if (status == TREEATTN_OK) {
    status = treeattn_attend_check(plan, run, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  const treeattn_executor executor = treeattn_pool_executor(pool);
  for (int stage = 0; stage < 2; ++stage) {
    job shared = {
        .plan = plan, .run = run, .stage = stage, .num_tasks = info.num_tasks[stage], .caller = pthread_self()};
    atomic_init(&shared.next, 0);
    cli_progress_start(&shared.progress, stage == 0 ? "attending" : "combining", (double)shared.num_tasks);
    if (executor.parallel_for == NULL || info.num_workers == 1 ||
        executor.parallel_for(executor.context, work, &shared, (size_t)info.num_workers) != 0) {
      /* No threads, or none that could be started: what is left is done here. */
      work(&shared, 0);
    }
    cli_progress_end(&shared.progress);
  }
  return TREEATTN_OK;
}
