/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the measurements as CSV or as JSON; bench_table.c does it for readers. */
#include <math.h>
#include <string.h>

#include "bench.h"
#include "seed.h"

bench_figures bench_figures_of(const bench_setup *setup, const bench_result *r) {
  bench_figures f = {.is_memory = false};
  f.floor = bench_floor(&r->shape, &setup->rates, &f.is_memory);
  f.share = f.floor / r->library.median;
  f.gigabytes = bench_bytes(&r->shape) / r->library.median / 1e9;
  f.gigaflops = bench_flops(&r->shape) / r->library.median / 1e9;
  f.ratio = r->has_seed ? r->seed.median / r->library.median : NAN;
  return f;
}

int64_t bench_kv_len(const bench_result *r) {
  return r->shape.prefix_len + r->shape.num_nodes;
}

const char *bench_cpu_name(char *line, size_t bytes) {
  FILE *file = fopen("/proc/cpuinfo", "r");
  while (file != NULL && fgets(line, (int)bytes, file) != NULL) {
    char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) == 0 && colon != NULL && colon[1] == ' ') {
      colon[strcspn(colon, "\n")] = '\0';
      fclose(file);
      return colon + 2;
    }
  }
  if (file != NULL) {
    fclose(file);
  }
  return "unknown processor";
}

int bench_print_csv(const bench_setup *setup, const bench_result *results, size_t num_results) {
  printf(
      "workload,heads,kv_heads,head_dim,nodes,kv_len,kv_dtype,threads,isa,repeat,copies,median_ms,min_ms,floor_ms,"
      "floor_kind,"
      "share,gb_per_s,gflop_per_s,seed_median_ms,seed_min_ms,seed_ratio,plan_us,plan_bytes,scratch_bytes,unfused_bytes,"
      "seed_bytes,error,seed_error,rows_alone,rows_same,rows_spoiled,peak_gflop_per_s,peak_gexp_per_s,memory_gb_per_"
      "s\n");
  for (size_t n = 0; n < num_results; n++) {
    const bench_result *r = &results[n];
    const bench_figures f = bench_figures_of(setup, r);
    printf("%s,%lld,%lld,%lld,%lld,%lld,%s,%lld,%s,%lld,%lld,%.6g,%.6g,%.6g,%s,%.4f,%.6g,%.6g,", r->name,
           (long long)r->shape.num_heads, (long long)r->shape.num_kv_heads, (long long)r->shape.head_dim,
           (long long)r->shape.num_nodes, (long long)bench_kv_len(r), treeattn_dtype_name(r->shape.kv_dtype),
           (long long)setup->num_threads, treeattn_isa_name(r->isa), (long long)setup->repeat, (long long)r->num_copies,
           r->library.median * 1e3, r->library.minimum * 1e3, f.floor * 1e3, f.is_memory ? "memory" : "arithmetic",
           f.share, f.gigabytes, f.gigaflops);
    if (r->has_seed) {
      printf("%.6g,%.6g,%.4f,", r->seed.median * 1e3, r->seed.minimum * 1e3, f.ratio);
    } else {
      printf(",,,");
    }
    printf("%.3f,%zu,%zu,%.0f,%.0f,%.3g,", r->plan_seconds * 1e6, r->plan_bytes, r->scratch_bytes,
           bench_unfused_bytes(&r->shape), bench_seed_bytes(&r->shape), r->error);
    if (r->has_seed) {
      printf("%.3g", r->seed_error);
    }
    printf(",%lld,%lld,%lld,%.6g,%.6g,%.6g\n", (long long)r->rows_alone, (long long)r->rows_same,
           (long long)r->rows_spoiled, setup->rates.flops / 1e9, setup->rates.exps / 1e9, setup->rates.bytes / 1e9);
  }
  return cli_finish(CLI_OK);
}

/* Takes over `value`. jansson refuses NULL, so that one failed allocation shows as a failed report. */
static bool put(json_t *object, const char *key, json_t *value) {
  return json_object_set_new(object, key, value) == 0;
}

static json_t *times_json(const bench_times *times, int64_t repeat) {
  json_t *object = json_object();
  json_t *all = json_array();
  bool ok = object != NULL && all != NULL;
  for (int64_t n = 0; n < repeat && ok; n++) {
    ok = json_array_append_new(all, cli_json_real(times->all[n] * 1e3)) == 0;
  }
  ok = ok && put(object, "median_ms", cli_json_real(times->median * 1e3)) &&
       put(object, "min_ms", cli_json_real(times->minimum * 1e3)) && put(object, "all_ms", json_incref(all));
  json_decref(all);
  if (!ok) {
    json_decref(object);
    return NULL;
  }
  return object;
}

static json_t *peers_json(const bench_setup *setup, const bench_result *r) {
  json_t *array = json_array();
  bool ok = array != NULL;
  for (int n = 0; n < r->num_peers && ok; n++) {
    const bench_peer_result *p = &r->peers[n];
    json_t *object = json_object();
    ok = object != NULL && put(object, "name", json_string(p->name));
    if (ok && p->served) {
      ok = put(object, "times", times_json(&p->times, setup->repeat)) &&
           put(object, "error", cli_json_real(p->error)) && put(object, "rows_alone", json_integer(p->rows_alone)) &&
           put(object, "rows_same", json_integer(p->rows_same));
      ok = ok && (!r->has_spoiled || put(object, "rows_spoiled", json_integer(p->rows_spoiled)));
    } else if (ok) {
      ok = put(object, "refused", json_string(p->reason));
    }
    ok = ok && json_array_append(array, object) == 0;
    json_decref(object);
  }
  if (!ok) {
    json_decref(array);
    return NULL;
  }
  return array;
}

static json_t *result_json(const bench_setup *setup, const bench_result *r) {
  const bench_figures f = bench_figures_of(setup, r);
  json_t *object = json_object();
  bool ok =
      object != NULL && put(object, "name", json_string(r->name)) &&
      put(object, "heads", json_integer(r->shape.num_heads)) &&
      put(object, "kv_heads", json_integer(r->shape.num_kv_heads)) &&
      put(object, "head_dim", json_integer(r->shape.head_dim)) &&
      put(object, "nodes", json_integer(r->shape.num_nodes)) && put(object, "kv_len", json_integer(bench_kv_len(r))) &&
      put(object, "kv_dtype", json_string(treeattn_dtype_name(r->shape.kv_dtype))) &&
      put(object, "isa", json_string(treeattn_isa_name(r->isa))) &&
      put(object, "cache_copies", json_integer(r->num_copies)) &&
      put(object, "bytes", cli_json_real(bench_bytes(&r->shape))) &&
      put(object, "flops", cli_json_real(bench_flops(&r->shape))) &&
      put(object, "exponentials", cli_json_real(bench_exps(&r->shape))) &&
      put(object, "library", times_json(&r->library, setup->repeat)) &&
      put(object, "floor_ms", cli_json_real(f.floor * 1e3)) &&
      put(object, "floor_kind", json_string(f.is_memory ? "memory" : "arithmetic")) &&
      put(object, "share_of_floor", cli_json_real(f.share)) && put(object, "gb_per_s", cli_json_real(f.gigabytes)) &&
      put(object, "gflop_per_s", cli_json_real(f.gigaflops)) &&
      put(object, "plan_us", cli_json_real(r->plan_seconds * 1e6)) &&
      put(object, "plan_bytes", json_integer((json_int_t)r->plan_bytes)) &&
      put(object, "scratch_bytes", json_integer((json_int_t)r->scratch_bytes)) &&
      put(object, "unfused_bytes", cli_json_real(bench_unfused_bytes(&r->shape))) &&
      put(object, "seed_bytes", cli_json_real(bench_seed_bytes(&r->shape))) &&
      put(object, "rows", json_integer(r->rows)) && put(object, "error", cli_json_real(r->error)) &&
      put(object, "rows_sampled", json_integer(r->rows_sampled)) &&
      put(object, "rows_alone", json_integer(r->rows_alone)) && put(object, "rows_same", json_integer(r->rows_same));
  if (ok && r->has_spoiled) {
    ok = put(object, "rows_spoiled", json_integer(r->rows_spoiled)) &&
         (!r->has_seed || put(object, "seed_rows_spoiled", json_integer(r->seed_rows_spoiled)));
  }
  if (ok && r->num_peers > 0) {
    ok = put(object, "peers", peers_json(setup, r));
  }
  if (ok && r->has_seed) {
    ok = put(object, "seed", times_json(&r->seed, setup->repeat)) &&
         put(object, "seed_ratio", cli_json_real(f.ratio)) && put(object, "seed_error", cli_json_real(r->seed_error));
  }
  if (!ok) {
    json_decref(object);
    return NULL;
  }
  return object;
}

int bench_print_json(const bench_setup *setup, const bench_result *results, size_t num_results, int argc, char **argv) {
  char line[256];
  json_t *root = json_object();
  json_t *workloads = json_array();
  json_t *command = json_array();
  bool ok = root != NULL && workloads != NULL && command != NULL;
  for (int n = 0; n < argc && ok; n++) {
    ok = json_array_append_new(command, json_string(argv[n])) == 0;
  }
  for (size_t n = 0; n < num_results && ok; n++) {
    ok = json_array_append_new(workloads, result_json(setup, &results[n])) == 0;
  }
  ok = ok && put(root, "version", json_string(treeattn_version())) && put(root, "command", json_incref(command)) &&
       put(root, "cpu", json_string(bench_cpu_name(line, sizeof line))) &&
       put(root, "threads", json_integer(setup->num_threads)) && put(root, "repeat", json_integer(setup->repeat)) &&
       put(root, "seed_isa", json_string(seed_isa_detect())) &&
       put(root, "mask", json_string(setup->dense_mask ? "dense" : "parents")) &&
       put(root, "peak_instructions", json_string(setup->rates.name)) &&
       put(root, "peak_gflop_per_s", cli_json_real(setup->rates.flops / 1e9)) &&
       put(root, "peak_gexp_per_s", cli_json_real(setup->rates.exps / 1e9)) &&
       put(root, "memory_gb_per_s", cli_json_real(setup->rates.bytes / 1e9)) &&
       put(root, "workloads", json_incref(workloads));
  json_decref(command);
  json_decref(workloads);
  if (!ok) {
    json_decref(root);
    return cli_out_of_memory();
  }
  return cli_finish(cli_json_print(root, 2));
}
