/* SPDX-License-Identifier: Apache-2.0 */
/* Executors of the tests: plain threads, a shuffled serial order, and one that fails. */
#ifndef TESTS_THREADS_H
#define TESTS_THREADS_H

#include <treeattn/attention.h>

#include "rng.h"

/* num_threads threads, the caller among them, made for each call; the context is kept by the caller. */
typedef struct thread_team {
  int num_threads;
} thread_team;
treeattn_executor thread_team_executor(thread_team *team);

/* One after another, in a random order. */
treeattn_executor shuffled_executor(rng *r);

/* Runs nothing and reports failure. */
treeattn_executor failing_executor(void);

#endif
