/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of `treeattn bench` share: one workload's measurements, and the run that they came from. */
#ifndef TREEATTN_TOOL_BENCH_H
#define TREEATTN_TOOL_BENCH_H

#include "bench_peer.h"
#include "bench_rates.h"
#include "cli.h"
#include "problem.h"

enum { BENCH_MAX_REPEAT = 1000, BENCH_MAX_WORKLOADS = 64 };

typedef struct bench_times {
  double median, minimum; /* seconds */
  double all[BENCH_MAX_REPEAT];
} bench_times;

/* Another implementation on the same workload. */
typedef struct bench_peer_result {
  char name[BENCH_PEER_NAME];
  bool served;
  char reason[BENCH_PEER_NAME]; /* why not */
  bench_times times;
  double error;
  int64_t rows_alone, rows_same; /* rows of single nodes over the same slots, and those with their bits in the batch */
  int64_t rows_spoiled;          /* as below */
} bench_peer_result;

typedef struct bench_result {
  char name[32];
  int64_t layer; /* of a file; -1: none is named */
  problem shape; /* sizes only */
  treeattn_isa isa;
  int64_t num_copies; /* caches that the runs take in turn */
  bench_times library, seed;
  bool has_seed;
  double plan_seconds; /* median */
  size_t plan_bytes, scratch_bytes;
  double error, seed_error; /* worst relative error of a sampled row against float64 */
  int64_t rows_sampled;
  int64_t rows_alone, rows_same; /* rows decoded alone, and those of them with the bits that they had in the batch */
  int64_t rows;                  /* N * H */
  bool has_spoiled;
  int64_t rows_spoiled, seed_rows_spoiled; /* rows with a NaN after one was put into a slot that every row masks */
  int num_peers;
  bench_peer_result peers[BENCH_MAX_PEERS];
} bench_result;

typedef struct bench_setup {
  int64_t num_threads;
  int64_t repeat;
  treeattn_isa isa;
  bool dense_mask;
  bool with_seed;
  uint64_t seed;
  treeattn_executor executor;
  bench_rates_meter *meter;
  bench_rates rates;  /* the best of the whole run */
  bench_peers *peers; /* NULL: none */
  cli_progress progress;
  double steps_done;
} bench_setup;

/* Bytes of K and V, 4 N H T D flops, and N H T exponentials: what the floor is made of. */
double bench_bytes(const problem *shape);
double bench_flops(const problem *shape);
double bench_exps(const problem *shape);
/* Seconds that this machine needs at least; *is_memory says what sets it. */
double bench_floor(const problem *shape, const bench_rates *rates, bool *is_memory);

/* Floats that other ways need for working memory: scores of all rows at once, and the seed's splits. Bytes. */
double bench_unfused_bytes(const problem *shape);
double bench_seed_bytes(const problem *shape);

/* Steps that a workload adds to the progress bar. */
double bench_steps(const bench_setup *setup);

/* Measures one problem; `result->name` is set. An exit status. */
int bench_run(bench_setup *setup, problem *p, bench_result *result);

typedef struct bench_figures {
  double floor, share, gigabytes, gigaflops, ratio;
  bool is_memory;
} bench_figures;
bench_figures bench_figures_of(const bench_setup *setup, const bench_result *result);
int64_t bench_kv_len(const bench_result *result);
/* The processor's name, or what is known of it. */
const char *bench_cpu_name(char *line, size_t bytes);

/* The three forms of the report. They return an exit status. */
int bench_print_table(const bench_setup *setup, const bench_result *results, size_t num_results);
int bench_print_csv(const bench_setup *setup, const bench_result *results, size_t num_results);
int bench_print_json(const bench_setup *setup, const bench_result *results, size_t num_results, int argc, char **argv);

#endif
