/* SPDX-License-Identifier: Apache-2.0 */
/* Peers beside the library on one workload: their times in turn with ours, and the facts about their results. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "bench_state.h"
#include "seed.h"

/* Threads spin after their work, ggml's for 130 ms, and would take the processors from whoever is timed next. */
void bench_rest(const bench_setup *setup) {
  if (bench_peers_count(setup->peers) > 0) {
    const struct timespec pause = {0, 200000000};
    (void)nanosleep(&pause, NULL);
  }
}

static size_t out_numbers(const problem *p) {
  return (size_t)(p->num_nodes * p->num_heads * p->head_dim_v);
}

/* Rows of [rows][dim] with a number that is NaN. */
static int64_t rows_with_nan(const float *out, int64_t rows, int64_t dim) {
  int64_t count = 0;
  for (int64_t r = 0; r < rows; r++) {
    bool spoiled = false;
    for (int64_t d = 0; d < dim; d++) {
      spoiled = spoiled || isnan(out[r * dim + d]);
    }
    count += spoiled;
  }
  return count;
}

int bench_beside_begin(bench_setup *setup, bench_state *state, bench_result *result) {
  const problem *p = state->p;
  result->num_peers = bench_peers_count(setup->peers);
  if (result->num_peers == 0) {
    return CLI_OK;
  }
  if (!bench_peers_set_cache(setup->peers, p) ||
      !bench_peers_set_nodes(setup->peers, p, state->dense, NULL, p->num_nodes)) {
    return CLI_FAILURE;
  }
  for (int n = 0; n < result->num_peers; n++) {
    bench_peer_result *r = &result->peers[n];
    (void)snprintf(r->name, sizeof r->name, "%s", bench_peer_name(setup->peers, n));
    if (p->head_dim != p->head_dim_v || p->sinks != NULL) {
      (void)snprintf(r->reason, sizeof r->reason, "sinks and a head_dim of V of its own are not in the protocol");
      continue;
    }
    const bench_peer_answer answer = bench_peer_load(setup->peers, n, setup->num_threads, r->reason);
    if (answer == BENCH_PEER_FAILED) {
      return CLI_FAILURE;
    }
    r->served = answer == BENCH_PEER_READY;
  }
  return CLI_OK;
}

int bench_beside_run(bench_setup *setup, bench_result *result, int64_t repeat) {
  for (int n = 0; n < result->num_peers; n++) {
    double seconds = 0.0;
    if (!result->peers[n].served) {
      continue;
    }
    bench_rest(setup);
    if (!bench_peer_run(setup->peers, n, &seconds)) {
      return CLI_FAILURE;
    }
    if (repeat >= 0) {
      result->peers[n].times.all[repeat] = seconds;
    }
  }
  return CLI_OK;
}

static bool load_and_run(bench_setup *setup, int peer) {
  char reason[BENCH_PEER_NAME];
  double seconds = 0.0;
  const bench_peer_answer answer = bench_peer_load(setup->peers, peer, setup->num_threads, reason);
  if (answer == BENCH_PEER_REFUSED) {
    return cli_error("peer %s: %s", bench_peer_name(setup->peers, peer), reason) == CLI_OK;
  }
  return answer == BENCH_PEER_READY && bench_peer_run(setup->peers, peer, &seconds);
}

/* Rows of single nodes over the same slots, against their bits in the batch. */
static bool peers_alone(bench_setup *setup, bench_state *state, bench_result *result, float *const *batch) {
  const problem *p = state->p;
  uint64_t random = setup->seed + 3;
  const int64_t count = p->num_nodes < BENCH_NODES_ALONE ? p->num_nodes : BENCH_NODES_ALONE;
  for (int64_t m = 0; m < count; m++) {
    const int64_t node = p->num_nodes <= BENCH_NODES_ALONE ? m : problem_random_below(&random, p->num_nodes);
    if (!bench_peers_set_nodes(setup->peers, p, state->dense, &node, 1)) {
      return false;
    }
    for (int n = 0; n < result->num_peers; n++) {
      bench_peer_result *r = &result->peers[n];
      if (!r->served) {
        continue;
      }
      if (!load_and_run(setup, n)) {
        return false;
      }
      const float *alone = bench_peers_out(setup->peers);
      for (int64_t h = 0; h < p->num_heads; h++) {
        const float *in_batch = batch[n] + (node * p->num_heads + h) * p->head_dim_v;
        r->rows_alone++;
        r->rows_same += memcmp(in_batch, alone + h * p->head_dim_v, (size_t)p->head_dim_v * sizeof *alone) == 0;
      }
    }
  }
  return true;
}

static void hide_slot(const problem *p, float *dense, int64_t slot, bool hide) {
  for (int64_t i = 0; i < p->num_nodes; i++) {
    dense[i * (p->prefix_len + p->num_nodes) + slot] = hide ? TREEATTN_MASK_HIDDEN : 0.0f;
  }
}

/* One NaN for each KV head: the first channel of V in a slot that the mask hides from every row. */
static void plant_nan(const problem *p, void *v, int64_t capacity, int64_t slot, float *saved, bool plant) {
  for (int64_t g = 0; g < p->num_kv_heads; g++) {
    const int64_t index = (g * capacity + slot) * p->head_dim_v;
    if (plant) {
      saved[g] = problem_load_element(p->kv_dtype, v, index);
    }
    problem_store_element(p->kv_dtype, v, index, plant ? NAN : saved[g]);
  }
}

static bool peers_spoiled(bench_setup *setup, bench_state *state, bench_result *result) {
  const problem *p = state->p;
  if (!bench_peers_set_nodes(setup->peers, p, state->dense, NULL, p->num_nodes)) {
    return false;
  }
  for (int n = 0; n < result->num_peers; n++) {
    if (!result->peers[n].served) {
      continue;
    }
    if (!load_and_run(setup, n)) {
      return false;
    }
    result->peers[n].rows_spoiled =
        rows_with_nan(bench_peers_out(setup->peers), p->num_nodes * p->num_heads, p->head_dim_v);
  }
  return true;
}

/* The library with the dense mask that hides the slot, and the baseline. */
static int own_spoiled(const bench_setup *setup, bench_state *state, bench_result *result) {
  const problem *p = state->p;
  const int64_t rows = p->num_nodes * p->num_heads;
  const size_t out_bytes = out_numbers(p) * sizeof(float);
  treeattn_request request = bench_request(p, state->dense);
  const treeattn_plan_args args = bench_plan_args(setup, p, &request);
  treeattn_plan *plan = NULL;
  treeattn_plan_info info = TREEATTN_PLAN_INFO_INIT;
  treeattn_error error;
  if (treeattn_plan_create(&args, &plan, &error) != TREEATTN_OK ||
      treeattn_plan_get_info(plan, &info, &error) != TREEATTN_OK) {
    treeattn_plan_destroy(plan);
    return cli_library_error(NULL, &error);
  }
  float *out = cli_malloc(out_bytes);
  void *scratch = cli_malloc(info.scratch_bytes);
  int status = out == NULL || scratch == NULL ? cli_out_of_memory() : CLI_OK;
  if (status == CLI_OK) {
    treeattn_run_args run = bench_run_args(p, &info);
    run.out = out;
    run.scratch = scratch;
    run.executor = setup->executor;
    status = treeattn_attend(plan, &run, &error) == TREEATTN_OK ? CLI_OK : cli_library_error(NULL, &error);
  }
  if (status == CLI_OK) {
    result->rows_spoiled = rows_with_nan(out, rows, p->head_dim_v);
    if (result->has_seed) {
      seed_args seed = bench_seed_args(setup, state);
      seed.out = out;
      status = seed_tree_attention(&seed) == 0 ? CLI_OK : cli_error("the baseline refused the workload");
      result->seed_rows_spoiled = rows_with_nan(out, rows, p->head_dim_v);
    }
  }
  cli_free(out);
  cli_free(scratch);
  treeattn_plan_destroy(plan);
  return status;
}

int bench_beside_facts(bench_setup *setup, bench_state *state, bench_result *result) {
  problem *p = state->p;
  float *batch[BENCH_MAX_PEERS] = {NULL};
  float *saved = cli_malloc_array((size_t)p->num_kv_heads, sizeof *saved);
  int status = saved == NULL ? cli_out_of_memory() : CLI_OK;
  for (int n = 0; n < result->num_peers && status == CLI_OK; n++) {
    bench_peer_result *r = &result->peers[n];
    if (!r->served) {
      continue;
    }
    batch[n] = cli_malloc_array(out_numbers(p), sizeof *batch[n]);
    status = batch[n] == NULL ? cli_out_of_memory() : load_and_run(setup, n) ? CLI_OK : CLI_FAILURE;
    if (status == CLI_OK) {
      memcpy(batch[n], bench_peers_out(setup->peers), out_numbers(p) * sizeof *batch[n]);
      status = bench_error_of(setup, p, batch[n], &r->error);
    }
  }
  if (status == CLI_OK && result->num_peers > 0) {
    status = peers_alone(setup, state, result, batch) ? CLI_OK : CLI_FAILURE;
  }
  result->rows = p->num_nodes * p->num_heads;
  if (status == CLI_OK && p->prefix_len > 1) {
    const int64_t slot = p->prefix_len / 2;
    result->has_spoiled = true;
    hide_slot(p, state->dense, slot, true);
    plant_nan(p, p->v, p->kv_capacity, slot, saved, true);
    status = own_spoiled(setup, state, result);
    plant_nan(p, p->v, p->kv_capacity, slot, saved, false);
    if (status == CLI_OK && result->num_peers > 0) {
      const int64_t slots = p->prefix_len + p->num_nodes;
      plant_nan(p, bench_peers_values(setup->peers), slots, slot, saved, true);
      status = peers_spoiled(setup, state, result) ? CLI_OK : CLI_FAILURE;
      plant_nan(p, bench_peers_values(setup->peers), slots, slot, saved, false);
    }
    hide_slot(p, state->dense, slot, false);
  }
  for (int n = 0; n < BENCH_MAX_PEERS; n++) {
    cli_free(batch[n]);
  }
  cli_free(saved);
  return status;
}
