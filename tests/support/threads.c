/* SPDX-License-Identifier: Apache-2.0 */
/* Executors of the tests. */
#include "threads.h"

#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

typedef struct job {
  void (*task)(void *arg, size_t index);
  void *arg;
  size_t num_tasks;
  atomic_size_t next;
} job;

static void *work(void *context) {
  job *shared = context;
  for (;;) {
    size_t index = atomic_fetch_add(&shared->next, 1);
    if (index >= shared->num_tasks) {
      return NULL;
    }
    shared->task(shared->arg, index);
  }
}

static int team_parallel_for(void *context, void (*task)(void *arg, size_t index), void *arg, size_t num_tasks) {
  const thread_team *team = context;
  job shared = {task, arg, num_tasks, 0};
  pthread_t threads[64];
  int started = 0;
  for (int i = 1; i < team->num_threads && i < 64; i++) {
    if (pthread_create(&threads[started], NULL, work, &shared) == 0) {
      started++;
    }
  }
  (void)work(&shared);
  for (int i = 0; i < started; i++) {
    (void)pthread_join(threads[i], NULL);
  }
  return 0;
}

treeattn_executor thread_team_executor(thread_team *team) {
  treeattn_executor executor = {team_parallel_for, team};
  return executor;
}

static int shuffled_parallel_for(void *context, void (*task)(void *arg, size_t index), void *arg, size_t num_tasks) {
  rng *r = context;
  int32_t *order = calloc(num_tasks + 1, sizeof *order);
  if (order == NULL) {
    return 1;
  }
  for (size_t i = 0; i < num_tasks; i++) {
    order[i] = (int32_t)i;
  }
  rng_shuffle(r, order, (int)num_tasks);
  for (size_t i = 0; i < num_tasks; i++) {
    task(arg, (size_t)order[i]);
  }
  free(order);
  return 0;
}

treeattn_executor shuffled_executor(rng *r) {
  treeattn_executor executor = {shuffled_parallel_for, r};
  return executor;
}

static int failing_parallel_for(void *context, void (*task)(void *arg, size_t index), void *arg, size_t num_tasks) {
  (void)context;
  (void)task;
  (void)arg;
  (void)num_tasks;
  return 7;
}

treeattn_executor failing_executor(void) {
  treeattn_executor executor = {failing_parallel_for, NULL};
  return executor;
}
