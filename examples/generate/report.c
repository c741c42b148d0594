/* SPDX-License-Identifier: Apache-2.0 */
/* The summary that ends `treeattn generate`. */
#include <inttypes.h>
#include <sys/resource.h>

#include "command.h"

static double share(double part, double whole) {
  return whole > 0.0 ? part / whole : 0.0;
}

static double peak_bytes(void) {
  struct rusage usage;
  return getrusage(RUSAGE_SELF, &usage) == 0 ? (double)usage.ru_maxrss * 1024.0 : 0.0;
}

static double plan_bytes(const gen_forward *forward) {
  double bytes = (double)forward->scratch_bytes;
  for (int m = 0; m < GEN_NUM_PLANS; ++m) {
    bytes += (double)forward->planned[m].memory_bytes;
  }
  return bytes;
}

static void print_text(const gen_forward *forward, const gen_run *runs, int num_runs) {
  (void)fprintf(stderr, "\n%-6s %7s %6s %12s %11s %9s %9s %7s\n", "", "tokens", "steps", "tokens/step", "nodes/step",
                "tokens/s", "attention", "drafts");
  for (int r = 0; r < num_runs; ++r) {
    const gen_totals *totals = &runs[r].totals;
    (void)fprintf(stderr, "%-6s %7" PRId64 " %6" PRId64 " %12.2f %11.1f %9.1f %8.1f%% %6.1f%%\n", runs[r].name,
                  totals->num_emitted, totals->num_steps, share((double)totals->num_emitted, (double)totals->num_steps),
                  share((double)totals->num_nodes, (double)totals->num_steps),
                  share((double)totals->num_emitted, totals->seconds),
                  100.0 * share(totals->attention_seconds, totals->seconds),
                  100.0 * share(totals->draft_seconds, totals->seconds));
  }
  if (runs[0].cost[0] > 0.0) {
    (void)fprintf(stderr, "cost of a step, by nodes:");
    for (int n = 1; n <= GEN_MAX_TREE; n *= 2) {
      (void)fprintf(stderr, " %d: %.0f ms%s", n, 1e3 * runs[0].cost[n - 1], n == GEN_MAX_TREE ? "\n" : ",");
    }
  }
  const double mega = 1e6;
  (void)fprintf(stderr,
                "memory: weights %.1f MB mapped, cache %.1f MB for %" PRId64
                " tokens, activations %.1f MB, plan and scratch %.1f MB; peak resident %.1f MB\n",
                (double)forward->model->map_bytes / mega, (double)forward->cache.bytes / mega, forward->cache.capacity,
                (double)gen_forward_activation_bytes(forward) / mega, plan_bytes(forward) / mega, peak_bytes() / mega);
}

static json_t *run_json(const gen_run *run) {
  const gen_totals *totals = &run->totals;
  json_t *tokens = json_array();
  for (int64_t t = 0; t < run->num_tokens && tokens != NULL; ++t) {
    (void)json_array_append_new(tokens, json_integer(run->tokens[t]));
  }
  json_t *cost = json_array();
  for (int n = 0; n < GEN_MAX_TREE && run->cost[0] > 0.0 && cost != NULL; ++n) {
    (void)json_array_append_new(cost, cli_json_real(run->cost[n]));
  }
  return json_pack("{s:s, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", run->name, "token_ids",
                   tokens, "cost_seconds", cost, "steps", (json_int_t)totals->num_steps, "nodes",
                   (json_int_t)totals->num_nodes, "seconds", cli_json_real(totals->seconds), "prompt_seconds",
                   cli_json_real(totals->prompt_seconds), "draft_seconds", cli_json_real(totals->draft_seconds),
                   "forward_seconds", cli_json_real(totals->forward_seconds), "attention_seconds",
                   cli_json_real(totals->attention_seconds), "verify_seconds", cli_json_real(totals->verify_seconds),
                   "commit_seconds", cli_json_real(totals->commit_seconds));
}

static int print_json(const gen_forward *forward, const gen_run *runs, int num_runs) {
  json_t *list = json_array();
  for (int r = 0; r < num_runs && list != NULL; ++r) {
    (void)json_array_append_new(list, run_json(&runs[r]));
  }
  json_t *memory =
      json_pack("{s:I, s:I, s:I, s:o, s:o}", "weights_bytes", (json_int_t)forward->model->map_bytes, "cache_bytes",
                (json_int_t)forward->cache.bytes, "activation_bytes", (json_int_t)gen_forward_activation_bytes(forward),
                "plan_bytes", cli_json_real(plan_bytes(forward)), "peak_bytes", cli_json_real(peak_bytes()));
  return cli_json_print(json_pack("{s:o, s:o}", "runs", list, "memory", memory), 2);
}

int gen_report(const gen_options *options, const gen_forward *forward, const gen_run *runs, int num_runs) {
  if (options->json) {
    return print_json(forward, runs, num_runs);
  }
  print_text(forward, runs, num_runs);
  return CLI_OK;
}
