/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the measurements for readers: the library on each workload, memory, and everybody else beside it. */
#include "bench.h"
#include "seed.h"

static void print_library(const bench_setup *setup, const bench_result *results, size_t num_results) {
  printf("%-8s %3s %3s %4s %4s %6s %-5s|%9s %8s %8s %5s|%6s %7s|%8s %6s|%7s|%8s %7s|%9s\n", "workload", "H", "HKV", "D",
         "N", "KV", "cache", "median ms", "min ms", "floor ms", "share", "GB/s", "GFLOP/s", "seed ms", "ratio",
         "plan us", "error", "seed's", "same bits");
  for (size_t n = 0; n < num_results; n++) {
    const bench_result *r = &results[n];
    const bench_figures f = bench_figures_of(setup, r);
    printf("%-8s %3lld %3lld %4lld %4lld %6lld %-5s|%9.2f %8.2f %7.2f%c %4.0f%%|%6.1f %7.1f|", r->name,
           (long long)r->shape.num_heads, (long long)r->shape.num_kv_heads, (long long)r->shape.head_dim,
           (long long)r->shape.num_nodes, (long long)bench_kv_len(r), treeattn_dtype_name(r->shape.kv_dtype),
           r->library.median * 1e3, r->library.minimum * 1e3, f.floor * 1e3, f.is_memory ? 'm' : 'a', f.share * 100.0,
           f.gigabytes, f.gigaflops);
    if (r->has_seed) {
      printf("%8.2f %5.2fx|", r->seed.median * 1e3, f.ratio);
    } else {
      printf("%8s %6s|", "-", "-");
    }
    printf("%7.1f|%8.1e ", r->plan_seconds * 1e6, r->error);
    if (r->has_seed) {
      printf("%7.1e|", r->seed_error);
    } else {
      printf("%7s|", "-");
    }
    printf("%4lld/%-4lld\n", (long long)r->rows_same, (long long)r->rows_alone);
  }
  printf(
      "\nfloor: m what memory, a what arithmetic and exponentials need at the rates above. error: worst of %lld "
      "sampled rows against float64.\nsame bits: rows decoded alone, after their path, on one thread, that carry the "
      "bits they had in the batch.\n",
      (long long)results[0].rows_sampled);
}

static void print_memory(const bench_setup *setup, const bench_result *results, size_t num_results) {
  printf("\n%-8s|%11s %12s|%11s %9s\n", "MB", "our scratch", "for a thread", "all scores", "the seed");
  for (size_t n = 0; n < num_results; n++) {
    const bench_result *r = &results[n];
    printf("%-8s|%11.2f %12.2f|%11.2f %9.2f\n", r->name, (double)r->scratch_bytes / 1e6,
           (double)r->scratch_bytes / 1e6 / (double)setup->num_threads, bench_unfused_bytes(&r->shape) / 1e6,
           bench_seed_bytes(&r->shape) / 1e6);
  }
  printf("\nall scores: what a product, a softmax and a product keep between them, N * H * KV floats.\n");
}

static void print_spoiled(const bench_result *r, int64_t rows) {
  if (r->has_spoiled) {
    printf("%6lld/%lld\n", (long long)rows, (long long)r->rows);
  } else {
    printf("%6s\n", "-");
  }
}

static void print_beside(const bench_result *r) {
  const double ours = r->library.median;
  printf("%-8s %-36s|%9.2f %6.2fx|%8.1e|%4lld/%-4lld |", r->name, "treeattn", ours * 1e3, 1.0, r->error,
         (long long)r->rows_same, (long long)r->rows_alone);
  print_spoiled(r, r->rows_spoiled);
  if (r->has_seed) {
    printf("%-8s %-36s|%9.2f %6.2fx|%8.1e|%9s |", "", "the seed's algorithm", r->seed.median * 1e3,
           r->seed.median / ours, r->seed_error, "-");
    print_spoiled(r, r->seed_rows_spoiled);
  }
  for (int n = 0; n < r->num_peers; n++) {
    const bench_peer_result *p = &r->peers[n];
    if (!p->served) {
      printf("%-8s %-36s| not served: %s\n", "", p->name, p->reason);
      continue;
    }
    printf("%-8s %-36s|%9.2f %6.2fx|%8.1e|%4lld/%-4lld |", "", p->name, p->times.median * 1e3, p->times.median / ours,
           p->error, (long long)p->rows_same, (long long)p->rows_alone);
    print_spoiled(r, p->rows_spoiled);
  }
}

int bench_print_table(const bench_setup *setup, const bench_result *results, size_t num_results) {
  char line[256];
  printf("treeattn %s, %s, %lld thread%s, isa %s, seed's algorithm with %s, median of %lld runs in turn\n",
         treeattn_version(), bench_cpu_name(line, sizeof line), (long long)setup->num_threads,
         setup->num_threads == 1 ? "" : "s", treeattn_isa_name(results[0].isa), seed_isa_detect(),
         (long long)setup->repeat);
  printf("machine, best seen in this run: %.0f GFLOP/s and %.1f Gexp/s (%s), reads memory at %.1f GB/s\n\n",
         setup->rates.flops / 1e9, setup->rates.exps / 1e9, setup->rates.name, setup->rates.bytes / 1e9);
  print_library(setup, results, num_results);
  print_memory(setup, results, num_results);
  printf("\n%-8s %-36s|%9s %7s|%8s|%10s|%s\n", "workload", "", "median ms", "ratio", "error", "same bits",
         "spoiled by a NaN");
  for (size_t n = 0; n < num_results; n++) {
    print_beside(&results[n]);
  }
  printf("\nsame bits: rows of a node alone that carry the bits they had in the batch (ours: decoded after its path; "
         "peers: over the same slots).\nspoiled: rows with a NaN after one was put into V for each KV head, in a slot "
         "that every row masks.\n");
  return cli_finish(CLI_OK);
}
