/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine can do at most, measured beside each workload: arithmetic, exponentials, reading memory. */
#ifndef TREEATTN_TOOL_BENCH_RATES_H
#define TREEATTN_TOOL_BENCH_RATES_H

#include <treeattn/attention.h>

typedef struct bench_rates {
  double flops;     /* f32 multiply-adds count two, per second */
  double exps;      /* exponentials of f32 per second */
  double bytes;     /* read from memory, per second */
  const char *name; /* the instructions that measured the first two: "avx512", "avx2", "neon", "portable" */
} bench_rates;

typedef struct bench_rates_meter bench_rates_meter;

/* Memory for the reading: many times the last-level cache. NULL when out of memory. */
bench_rates_meter *bench_rates_meter_create(void);
void bench_rates_meter_destroy(bench_rates_meter *meter);

/* Takes some tenths of a second on `num_threads` threads of `executor` and raises the rates that turn out higher:
 * `rates` starts as zeros and ends as the best that was seen. 0, or -1 if the executor fails. */
int bench_rates_measure(bench_rates_meter *meter, const treeattn_executor *executor, int64_t num_threads,
                        bench_rates *rates);

/* Bytes of the last-level cache, or a guess of 32 MiB. */
size_t bench_cache_bytes(void);

#endif
