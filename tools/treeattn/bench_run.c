/* SPDX-License-Identifier: Apache-2.0 */
/* Times one workload: the library and the baseline in turn on the same data. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_state.h"

double bench_bytes(const problem *shape) {
  return (double)problem_kv_bytes(shape);
}

double bench_exps(const problem *shape) {
  return (double)shape->num_heads * (double)shape->num_nodes * (double)(shape->prefix_len + shape->num_nodes);
}

double bench_flops(const problem *shape) {
  return 2.0 * bench_exps(shape) * (double)(shape->head_dim + shape->head_dim_v);
}

double bench_floor(const problem *shape, const bench_rates *rates, bool *is_memory) {
  const double memory = bench_bytes(shape) / rates->bytes;
  const double arithmetic = bench_flops(shape) / rates->flops + bench_exps(shape) / rates->exps;
  *is_memory = memory > arithmetic;
  return memory > arithmetic ? memory : arithmetic;
}

double bench_unfused_bytes(const problem *shape) {
  return bench_exps(shape) * sizeof(float);
}

double bench_seed_bytes(const problem *shape) {
  return (double)shape->num_heads * (double)shape->num_nodes * 32.0 * (double)(shape->head_dim + 2) * sizeof(float);
}

double bench_steps(const bench_setup *setup) {
  return (double)setup->repeat + 4.0;
}

static void step(bench_setup *setup) {
  setup->steps_done += 1.0;
  cli_progress_update(&setup->progress, setup->steps_done);
}

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a;
  const double y = *(const double *)b;
  return (x > y) - (x < y);
}

static void summarise(bench_times *times, int64_t count) {
  double sorted[BENCH_MAX_REPEAT];
  memcpy(sorted, times->all, (size_t)count * sizeof *sorted);
  qsort(sorted, (size_t)count, sizeof *sorted, compare_doubles);
  times->minimum = sorted[0];
  times->median = 0.5 * (sorted[(count - 1) / 2] + sorted[count / 2]);
}

/* The mask that the baseline needs, and that --mask dense gives to the library: every node sees the prefix and its
 * path. */
static void fill_dense(const problem *p, float *dense) {
  const int64_t num_slots = p->prefix_len + p->num_nodes;
  for (int64_t i = 0; i < p->num_nodes; i++) {
    float *row = dense + i * num_slots;
    for (int64_t slot = 0; slot < num_slots; slot++) {
      row[slot] = slot < p->prefix_len ? 0.0f : TREEATTN_MASK_HIDDEN;
    }
    for (int64_t j = i; j >= 0; j = p->parents[j]) {
      row[p->prefix_len + j] = 0.0f;
    }
  }
}

treeattn_plan_args bench_plan_args(const bench_setup *setup, const problem *p, const treeattn_request *request) {
  treeattn_plan_args args = TREEATTN_PLAN_ARGS_INIT;
  args.num_requests = 1;
  args.requests = request;
  args.request_bytes = sizeof *request;
  args.num_heads = p->num_heads;
  args.num_kv_heads = p->num_kv_heads;
  args.head_dim = p->head_dim;
  args.head_dim_v = p->head_dim_v;
  args.kv_dtype = p->kv_dtype;
  args.scale = p->scale;
  args.kv_capacity = p->kv_capacity;
  args.isa = setup->isa;
  args.num_workers = setup->num_threads;
  return args;
}

treeattn_run_args bench_run_args(const problem *p, const treeattn_plan_info *info) {
  treeattn_run_args run = TREEATTN_RUN_ARGS_INIT;
  run.q = p->q;
  run.q_bytes = info->q_bytes;
  run.k = p->k;
  run.k_bytes = info->k_bytes;
  run.v = p->v;
  run.v_bytes = info->v_bytes;
  run.out_bytes = info->out_bytes;
  run.scratch_bytes = info->scratch_bytes;
  if (p->sinks != NULL) {
    run.sinks = p->sinks;
    run.sinks_bytes = (size_t)p->num_heads * sizeof *p->sinks;
  }
  return run;
}

treeattn_request bench_request(const problem *p, const float *dense) {
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = p->num_nodes;
  request.prefix_len = p->prefix_len;
  request.kv_seq_len = p->prefix_len + p->num_nodes;
  request.mask_kind = TREEATTN_MASK_DENSE_F32;
  request.mask = dense;
  request.mask_bytes = (size_t)(p->num_nodes * request.kv_seq_len) * sizeof *dense;
  return request;
}

static int make_plan(bench_setup *setup, bench_state *state, bench_result *result) {
  const problem *p = state->p;
  treeattn_request request = bench_request(p, state->dense);
  if (!setup->dense_mask) {
    request.mask_kind = TREEATTN_MASK_PARENTS;
    request.mask = p->parents;
    request.mask_bytes = (size_t)p->num_nodes * sizeof *p->parents;
  }
  const treeattn_plan_args args = bench_plan_args(setup, p, &request);
  treeattn_error error;
  if (treeattn_plan_bytes(&args, &result->plan_bytes, &error) != TREEATTN_OK) {
    return cli_library_error(NULL, &error);
  }
  state->plan_memory = cli_malloc(result->plan_bytes);
  if (state->plan_memory == NULL) {
    return cli_out_of_memory();
  }
  enum { PLANS = 9 };
  bench_times times;
  for (int n = 0; n < PLANS; n++) {
    const double start = cli_seconds();
    if (treeattn_plan_init(&args, state->plan_memory, result->plan_bytes, &state->plan, &error) != TREEATTN_OK) {
      return cli_library_error(NULL, &error);
    }
    times.all[n] = cli_seconds() - start;
  }
  summarise(&times, PLANS);
  result->plan_seconds = times.median;
  state->info = (treeattn_plan_info)TREEATTN_PLAN_INFO_INIT;
  if (treeattn_plan_get_info(state->plan, &state->info, &error) != TREEATTN_OK) {
    return cli_library_error(NULL, &error);
  }
  result->isa = state->info.isa;
  result->scratch_bytes = state->info.scratch_bytes;
  state->scratch = cli_malloc(state->info.scratch_bytes);
  return state->scratch == NULL ? cli_out_of_memory() : CLI_OK;
}

/* A model's layers each have a cache of their own, so that a step reads K and V from memory. Where reading takes at
 * least half as long as arithmetic, the runs go through copies that no cache holds together. */
static int make_copies(const bench_setup *setup, bench_state *state) {
  const problem *p = state->p;
  const double reading = bench_bytes(p) / setup->rates.bytes;
  const bool matters = 2.0 * reading > bench_flops(p) / setup->rates.flops + bench_exps(p) / setup->rates.exps;
  state->k[0] = p->k;
  state->v[0] = p->v;
  state->num_copies = 1;
  const size_t bytes = problem_kv_bytes(p);
  const size_t wanted = 8 * bench_cache_bytes();
  const size_t k_bytes = (size_t)(p->num_kv_heads * p->kv_capacity * p->head_dim) * treeattn_dtype_bytes(p->kv_dtype);
  const size_t v_bytes = (size_t)(p->num_kv_heads * p->kv_capacity * p->head_dim_v) * treeattn_dtype_bytes(p->kv_dtype);
  while (matters && state->num_copies < BENCH_MAX_COPIES && (size_t)state->num_copies * bytes < wanted) {
    void *k = cli_malloc(k_bytes);
    void *v = cli_malloc(v_bytes);
    if (k == NULL || v == NULL) {
      cli_free(k);
      cli_free(v);
      return cli_out_of_memory();
    }
    memcpy(k, p->k, k_bytes);
    memcpy(v, p->v, v_bytes);
    state->k[state->num_copies] = k;
    state->v[state->num_copies++] = v;
  }
  return CLI_OK;
}

static int run_library(const bench_setup *setup, bench_state *state, int64_t copy, double *seconds) {
  treeattn_run_args run = bench_run_args(state->p, &state->info);
  run.k = state->k[copy];
  run.v = state->v[copy];
  run.out = state->out;
  run.scratch = state->scratch;
  run.executor = setup->executor;
  treeattn_error error;
  const double start = cli_seconds();
  if (treeattn_attend(state->plan, &run, &error) != TREEATTN_OK) {
    return cli_library_error(NULL, &error);
  }
  *seconds = cli_seconds() - start;
  return CLI_OK;
}

seed_args bench_seed_args(const bench_setup *setup, const bench_state *state) {
  const problem *p = state->p;
  const int64_t num_slots = p->prefix_len + p->num_nodes;
  const seed_args args = {.num_heads = p->num_heads,
                          .num_kv_heads = p->num_kv_heads,
                          .head_dim = p->head_dim,
                          .q_seq_len = p->num_nodes,
                          .kv_seq_len = num_slots,
                          .kv_capacity = p->kv_capacity,
                          .mask_stride = num_slots,
                          .scale = p->scale,
                          .kv_dtype = p->kv_dtype,
                          .q = p->q,
                          .k = p->k,
                          .v = p->v,
                          .mask = state->dense,
                          .out = state->seed_out,
                          .executor = setup->executor};
  return args;
}

static int run_seed(const bench_setup *setup, bench_state *state, int64_t copy, double *seconds) {
  seed_args args = bench_seed_args(setup, state);
  args.k = state->k[copy];
  args.v = state->v[copy];
  const double start = cli_seconds();
  if (seed_tree_attention(&args) != 0) {
    return cli_error("the baseline refused the workload");
  }
  *seconds = cli_seconds() - start;
  return CLI_OK;
}

static int64_t take_copy(bench_state *state) {
  const int64_t copy = state->next_copy;
  state->next_copy = (copy + 1) % state->num_copies;
  return copy;
}

/* One run of the library, the baseline and each peer. */
static int run_all(bench_setup *setup, bench_state *state, bench_result *result, double *library, double *seed,
                   int64_t repeat) {
  bench_rest(setup);
  if (run_library(setup, state, take_copy(state), library) != CLI_OK) {
    return CLI_FAILURE;
  }
  if (result->has_seed) {
    bench_rest(setup);
    if (run_seed(setup, state, take_copy(state), seed) != CLI_OK) {
      return CLI_FAILURE;
    }
  }
  const int status = bench_beside_run(setup, result, repeat);
  step(setup);
  return status;
}

static int time_all(bench_setup *setup, bench_state *state, bench_result *result) {
  double ignored = 0.0;
  int status = run_all(setup, state, result, &ignored, &ignored, -1);
  for (int64_t n = 0; n < setup->repeat && status == CLI_OK; n++) {
    status = run_all(setup, state, result, &result->library.all[n], &result->seed.all[n], n);
  }
  if (status != CLI_OK) {
    return status;
  }
  summarise(&result->library, setup->repeat);
  if (result->has_seed) {
    summarise(&result->seed, setup->repeat);
  }
  for (int n = 0; n < result->num_peers; n++) {
    if (result->peers[n].served) {
      summarise(&result->peers[n].times, setup->repeat);
    }
  }
  return CLI_OK;
}

int bench_run(bench_setup *setup, problem *p, bench_result *result) {
  bench_state state = {.p = p};
  result->shape = *p;
  result->has_seed = setup->with_seed && p->kv_dtype != TREEATTN_BF16 && p->head_dim == p->head_dim_v &&
                     p->sinks == NULL && p->head_dim <= SEED_MAX_HEAD_DIM;
  const size_t num_out = (size_t)(p->num_nodes * p->num_heads * p->head_dim_v);
  state.out = cli_malloc_array(num_out, sizeof *state.out);
  state.seed_out = cli_malloc_array(num_out, sizeof *state.seed_out);
  state.dense = cli_malloc_array((size_t)p->num_nodes, (size_t)(p->prefix_len + p->num_nodes) * sizeof *state.dense);
  int status = state.out == NULL || state.seed_out == NULL || state.dense == NULL ? cli_out_of_memory() : CLI_OK;
  if (status == CLI_OK) {
    fill_dense(p, state.dense);
    status = make_plan(setup, &state, result);
  }
  if (status == CLI_OK && bench_rates_measure(setup->meter, &setup->executor, setup->num_threads, &setup->rates) != 0) {
    status = cli_error("the thread pool failed");
  }
  if (status == CLI_OK) {
    status = make_copies(setup, &state);
    result->num_copies = state.num_copies;
    step(setup);
  }
  if (status == CLI_OK) {
    status = bench_beside_begin(setup, &state, result);
  }
  if (status == CLI_OK) {
    status = time_all(setup, &state, result);
  }
  if (status == CLI_OK && bench_rates_measure(setup->meter, &setup->executor, setup->num_threads, &setup->rates) != 0) {
    status = cli_error("the thread pool failed");
  }
  if (status == CLI_OK) {
    status = bench_measure_errors(setup, &state, result);
    step(setup);
  }
  if (status == CLI_OK) {
    status = bench_beside_facts(setup, &state, result);
  }
  if (status == CLI_OK) {
    status = bench_check_bits(setup, &state, result);
    step(setup);
  }
  for (int64_t n = 1; n < state.num_copies; n++) {
    cli_free(state.k[n]);
    cli_free(state.v[n]);
  }
  cli_free(state.dense);
  cli_free(state.out);
  cli_free(state.seed_out);
  cli_free(state.plan_memory);
  cli_free(state.scratch);
  return status;
}
