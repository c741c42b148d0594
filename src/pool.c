/* SPDX-License-Identifier: Apache-2.0 */
/* Threads for callers without a pool of their own, from the pthreadpool library. */
#include <stdlib.h>

#include "common.h"

#include <treeattn/attention.h>

#ifdef TA_HAVE_PTHREADPOOL
#include <pthreadpool.h>

struct treeattn_pool {
  pthreadpool_t threads;
};

treeattn_status treeattn_pool_create(int64_t num_threads, treeattn_pool **pool, treeattn_error *error) {
  if (pool == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "pool is NULL");
  }
  *pool = NULL;
  if (num_threads < 0 || num_threads > 1024) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "num_threads is %lld: must be 0 to 1024",
                   (long long)num_threads);
  }
  treeattn_pool *made = malloc(sizeof *made);
  if (made == NULL) {
    return ta_fail(error, TREEATTN_ERROR_OUT_OF_MEMORY, "pool: %zu bytes could not be allocated", sizeof *made);
  }
  made->threads = pthreadpool_create((size_t)num_threads);
  if (made->threads == NULL) {
    free(made);
    return ta_fail(error, TREEATTN_ERROR_OUT_OF_MEMORY, "pool: %lld threads could not be started",
                   (long long)num_threads);
  }
  *pool = made;
  return TREEATTN_OK;
}

void treeattn_pool_destroy(treeattn_pool *pool) {
  if (pool != NULL) {
    pthreadpool_destroy(pool->threads);
    free(pool);
  }
}

int64_t treeattn_pool_num_threads(const treeattn_pool *pool) {
  return pool == NULL ? 1 : (int64_t)pthreadpool_get_threads_count(pool->threads);
}

static int pool_parallel_for(void *context, void (*task)(void *arg, size_t index), void *arg, size_t num_tasks) {
  const treeattn_pool *pool = context;
  pthreadpool_parallelize_1d(pool->threads, task, arg, num_tasks, 0);
  return 0;
}

treeattn_executor treeattn_pool_executor(treeattn_pool *pool) {
  const treeattn_executor executor = {pool == NULL ? NULL : pool_parallel_for, pool};
  return executor;
}

#else

treeattn_status treeattn_pool_create(int64_t num_threads, treeattn_pool **pool, treeattn_error *error) {
  if (pool != NULL) {
    *pool = NULL;
  }
  (void)num_threads;
  return ta_fail(error, TREEATTN_ERROR_UNSUPPORTED,
                 "pool: this build has no thread pool; give an executor of your own");
}

void treeattn_pool_destroy(treeattn_pool *pool) {
  (void)pool;
}

int64_t treeattn_pool_num_threads(const treeattn_pool *pool) {
  (void)pool;
  return 1;
}

treeattn_executor treeattn_pool_executor(treeattn_pool *pool) {
  const treeattn_executor executor = {NULL, NULL};
  (void)pool;
  return executor;
}

#endif
