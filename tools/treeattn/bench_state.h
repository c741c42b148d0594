/* SPDX-License-Identifier: Apache-2.0 */
/* What one workload owns while it is measured. */
#ifndef TREEATTN_TOOL_BENCH_STATE_H
#define TREEATTN_TOOL_BENCH_STATE_H

#include "bench.h"

#include "seed.h"

enum { BENCH_MAX_COPIES = 16, BENCH_NODES_ALONE = 4 };

typedef struct bench_state {
  problem *p;
  void *k[BENCH_MAX_COPIES]; /* copies; the first ones are the problem's own */
  void *v[BENCH_MAX_COPIES];
  int64_t num_copies;
  int64_t next_copy;
  float *dense;          /* [N][T] */
  float *out, *seed_out; /* [N][H][DV] */
  void *plan_memory, *scratch;
  treeattn_plan *plan;
  treeattn_plan_info info;
} bench_state;

/* Arguments of a plan for one request of the problem, and of a run without out, scratch and executor. */
treeattn_plan_args bench_plan_args(const bench_setup *setup, const problem *p, const treeattn_request *request);
treeattn_run_args bench_run_args(const problem *p, const treeattn_plan_info *info);

/* The request with its dense mask [N][T]. */
treeattn_request bench_request(const problem *p, const float *dense);
seed_args bench_seed_args(const bench_setup *setup, const bench_state *state);

/* The worst error against float64 of rows of out [N][H][DV] drawn at random. An exit status. */
int bench_error_of(const bench_setup *setup, const problem *p, const float *out, double *error);

/* Peers: preparing them, one run of each (repeat -1: not recorded), and the facts about their results and ours. Exit
 * statuses. The last one leaves the problem as it was. */
int bench_beside_begin(bench_setup *setup, bench_state *state, bench_result *result);
int bench_beside_run(bench_setup *setup, bench_result *result, int64_t repeat);
int bench_beside_facts(bench_setup *setup, bench_state *state, bench_result *result);
/* Before a timed run, where there are peers. */
void bench_rest(const bench_setup *setup);

/* Fill the errors and the bit counts of `result` from state->out and state->seed_out. Exit statuses. */
int bench_measure_errors(const bench_setup *setup, const bench_state *state, bench_result *result);
/* Moves slots of the problem's own cache: nothing may use it afterwards. */
int bench_check_bits(const bench_setup *setup, const bench_state *state, bench_result *result);

#endif
