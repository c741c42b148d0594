/* SPDX-License-Identifier: Apache-2.0 */
/* Whether what was timed is right: sampled rows against float64, and rows decoded alone against their bits in the
 * batch. */
#include <string.h>

#include "bench_state.h"

enum { SAMPLED_ROWS = 16 };

/* Rows drawn at random, each against the definition in double precision. */
int bench_error_of(const bench_setup *setup, const problem *p, const float *out, double *error) {
  double *scores = cli_malloc_array((size_t)(p->prefix_len + p->num_nodes), sizeof *scores);
  double *expected = cli_malloc_array((size_t)p->head_dim_v, sizeof *expected);
  if (scores == NULL || expected == NULL) {
    cli_free(scores);
    cli_free(expected);
    return cli_out_of_memory();
  }
  uint64_t random = setup->seed + 1;
  for (int n = 0; n < SAMPLED_ROWS; n++) {
    const int64_t node = problem_random_below(&random, p->num_nodes);
    const int64_t head = problem_random_below(&random, p->num_heads);
    const int64_t row = (node * p->num_heads + head) * p->head_dim_v;
    double lse = 0.0;
    problem_oracle(p, node, head, scores, expected, &lse, NULL);
    const double one = problem_relative_error(out + row, expected, p->head_dim_v);
    *error = !(one <= *error) ? one : *error; /* a NaN stays */
  }
  cli_free(scores);
  cli_free(expected);
  return CLI_OK;
}

int bench_measure_errors(const bench_setup *setup, const bench_state *state, bench_result *result) {
  result->rows_sampled = SAMPLED_ROWS;
  const int status = bench_error_of(setup, state->p, state->out, &result->error);
  return status != CLI_OK || !result->has_seed ? status
                                               : bench_error_of(setup, state->p, state->seed_out, &result->seed_error);
}

/* Brings the slots of `path` to P, P + 1, ... for every KV head; `saved` is what the last N slots held. */
static void place_path(const problem *p, void *cache, int64_t dim, const unsigned char *saved, const int32_t *path,
                       int64_t length) {
  const size_t row_bytes = (size_t)dim * treeattn_dtype_bytes(p->kv_dtype);
  for (int64_t g = 0; g < p->num_kv_heads; g++) {
    unsigned char *to = (unsigned char *)cache + (size_t)(g * p->kv_capacity + p->prefix_len) * row_bytes;
    const unsigned char *from = saved + (size_t)(g * p->num_nodes) * row_bytes;
    for (int64_t n = 0; n < length; n++) {
      memcpy(to + (size_t)n * row_bytes, from + (size_t)path[n] * row_bytes, row_bytes);
    }
  }
}

static void save_nodes(const problem *p, const void *cache, int64_t dim, unsigned char *saved) {
  const size_t row_bytes = (size_t)dim * treeattn_dtype_bytes(p->kv_dtype);
  for (int64_t g = 0; g < p->num_kv_heads; g++) {
    const unsigned char *from = (const unsigned char *)cache + (size_t)(g * p->kv_capacity + p->prefix_len) * row_bytes;
    memcpy(saved + (size_t)(g * p->num_nodes) * row_bytes, from, (size_t)p->num_nodes * row_bytes);
  }
}

/* One node's token after its path in plain sequential decoding, on one thread: do its rows carry the same bits? */
static int decode_alone(const bench_setup *setup, const bench_state *state, int64_t node, int64_t length,
                        bench_result *result) {
  const problem *p = state->p;
  bench_setup alone = *setup;
  alone.num_threads = 1;
  problem single = *p;
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = 1;
  request.prefix_len = p->prefix_len + length - 1;
  request.kv_seq_len = p->prefix_len + length;
  treeattn_plan_args args = bench_plan_args(&alone, p, &request);
  treeattn_plan *plan = NULL;
  treeattn_plan_info info = TREEATTN_PLAN_INFO_INIT;
  treeattn_error error;
  if (treeattn_plan_create(&args, &plan, &error) != TREEATTN_OK ||
      treeattn_plan_get_info(plan, &info, &error) != TREEATTN_OK) {
    treeattn_plan_destroy(plan);
    return cli_library_error(NULL, &error);
  }
  int status = CLI_OK;
  single.q = cli_malloc_array((size_t)p->num_heads, (size_t)p->head_dim * sizeof *single.q);
  float *out = cli_malloc(info.out_bytes);
  void *scratch = cli_malloc(info.scratch_bytes);
  if (single.q == NULL || out == NULL || scratch == NULL) {
    status = cli_out_of_memory();
  } else {
    for (int64_t h = 0; h < p->num_heads; h++) {
      memcpy(single.q + h * p->head_dim, p->q + (h * p->num_nodes + node) * p->head_dim,
             (size_t)p->head_dim * sizeof *p->q);
    }
    treeattn_run_args run = bench_run_args(&single, &info);
    run.out = out;
    run.scratch = scratch;
    status = treeattn_attend(plan, &run, &error) == TREEATTN_OK ? CLI_OK : cli_library_error(NULL, &error);
  }
  for (int64_t h = 0; h < p->num_heads && status == CLI_OK; h++) {
    const float *in_batch = state->out + (node * p->num_heads + h) * p->head_dim_v;
    result->rows_alone++;
    result->rows_same += memcmp(in_batch, out + h * p->head_dim_v, (size_t)p->head_dim_v * sizeof *out) == 0;
  }
  cli_free(single.q);
  cli_free(out);
  cli_free(scratch);
  treeattn_plan_destroy(plan);
  return status;
}

int bench_check_bits(const bench_setup *setup, const bench_state *state, bench_result *result) {
  const problem *p = state->p;
  const size_t element = treeattn_dtype_bytes(p->kv_dtype);
  const size_t saved_rows = (size_t)(p->num_kv_heads * p->num_nodes);
  unsigned char *saved_k = cli_malloc_array(saved_rows, (size_t)p->head_dim * element);
  unsigned char *saved_v = cli_malloc_array(saved_rows, (size_t)p->head_dim_v * element);
  int32_t *path = cli_malloc_array((size_t)p->num_nodes, sizeof *path);
  int status = saved_k == NULL || saved_v == NULL || path == NULL ? cli_out_of_memory() : CLI_OK;
  if (status == CLI_OK) {
    save_nodes(p, p->k, p->head_dim, saved_k);
    save_nodes(p, p->v, p->head_dim_v, saved_v);
  }
  uint64_t random = setup->seed + 2;
  const int64_t count = p->num_nodes < BENCH_NODES_ALONE ? p->num_nodes : BENCH_NODES_ALONE;
  for (int64_t n = 0; n < count && status == CLI_OK; n++) {
    const int64_t node = p->num_nodes <= BENCH_NODES_ALONE ? n
                         : n == 0                          ? p->num_nodes - 1
                                                           : problem_random_below(&random, p->num_nodes);
    const int64_t length = problem_path(p, node, path);
    place_path(p, p->k, p->head_dim, saved_k, path, length);
    place_path(p, p->v, p->head_dim_v, saved_v, path, length);
    status = decode_alone(setup, state, node, length, result);
  }
  cli_free(saved_k);
  cli_free(saved_v);
  cli_free(path);
  return status;
}
