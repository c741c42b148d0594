/* SPDX-License-Identifier: Apache-2.0 */
/* Reading logits for their argmax, and verifying over them, beside plainly reading them: the last is the limit. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <treeattn/verify.h>

#include "cli.h"

enum { MAX_RUNS = 64 };

typedef struct workload {
  int64_t vocab_size, num_nodes, num_requests, num_threads, num_runs;
  treeattn_dtype dtype;
  unsigned char *logits; /* [num_requests][num_nodes][vocab_size] */
  size_t row_bytes;
  treeattn_executor executor;
  void *scratch;
  int32_t *argmax, *parents, *tokens, *path, *emitted;
  uint64_t *sums;
  treeattn_verify_request *requests;
  treeattn_verify_result *results;
  treeattn_verify_args args;
} workload;

static void sum_row(void *arg, size_t index) {
  const workload *w = arg;
  const unsigned char *row = w->logits + index * w->row_bytes;
  uint64_t a = 0, b = 0, c = 0, d = 0;
  for (size_t at = 0; at + 32 <= w->row_bytes; at += 32) {
    uint64_t words[4];
    memcpy(words, row + at, sizeof words);
    a += words[0];
    b += words[1];
    c += words[2];
    d += words[3];
  }
  w->sums[index] = a + b + c + d;
}

static void read_all(workload *w) {
  const size_t rows = (size_t)(w->num_requests * w->num_nodes);
  if (w->executor.parallel_for != NULL) {
    (void)w->executor.parallel_for(w->executor.context, sum_row, w, rows);
    return;
  }
  for (size_t row = 0; row < rows; row++) {
    sum_row(w, row);
  }
}

static void fail(const treeattn_error *error) {
  (void)fprintf(stderr, "treeattn-argmax: %s\n", error->message);
  exit(1);
}

static void argmax_all(workload *w) {
  const int64_t rows = w->num_requests * w->num_nodes;
  const treeattn_verify_rows all = {w->logits, (size_t)rows * w->row_bytes, w->dtype, 0};
  treeattn_error error;
  if (treeattn_logits_argmax(&all, rows, w->vocab_size, &w->executor, w->scratch,
                             treeattn_logits_argmax_scratch_bytes(rows), w->argmax, &error) != TREEATTN_OK) {
    fail(&error);
  }
}

static void walk_all(workload *w) {
  treeattn_error error;
  if (treeattn_verify(&w->args, &error) != TREEATTN_OK) {
    fail(&error);
  }
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double median_seconds(workload *w, void (*work)(workload *w)) {
  double seconds[MAX_RUNS];
  work(w);
  for (int64_t n = 0; n < w->num_runs; n++) {
    const double started = cli_seconds();
    work(w);
    seconds[n] = cli_seconds() - started;
  }
  qsort(seconds, (size_t)w->num_runs, sizeof seconds[0], ascending);
  return seconds[w->num_runs / 2];
}

/* Gaussian-like logits in every type: the sum of four bytes, scaled. */
static void fill(workload *w) {
  uint64_t state = 1;
  const int64_t count = w->num_requests * w->num_nodes * w->vocab_size;
  for (int64_t n = 0; n < count; n++) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    const uint32_t bytes = (uint32_t)(state >> 32);
    const float value =
        (float)((bytes & 255) + (bytes >> 8 & 255) + (bytes >> 16 & 255) + (bytes >> 24)) / 32.0f - 16.0f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (w->dtype == TREEATTN_F32) {
      memcpy(w->logits + n * 4, &bits, 4);
      continue;
    }
    /* All values are multiples of 1/32 below 16: exact in binary16, and truncated to bfloat16. */
    const uint16_t half =
        bits << 1 == 0 ? 0 : (uint16_t)((bits >> 16 & 0x8000u) | (((bits & 0x7fffffffu) - 0x38000000u) >> 13));
    const uint16_t stored = w->dtype == TREEATTN_F16 ? half : (uint16_t)(bits >> 16);
    memcpy(w->logits + n * 2, &stored, 2);
  }
}

static void *allocate(size_t bytes) {
  void *memory = malloc(bytes);
  if (memory == NULL) {
    (void)fprintf(stderr, "treeattn-argmax: out of memory: %zu bytes\n", bytes);
    exit(1);
  }
  memset(memory, 0, bytes);
  return memory;
}

/* Every node a child of the one before it, with the right token for `accepted` of them. */
static void set_requests(workload *w, int64_t accepted) {
  for (int64_t r = 0; r < w->num_requests; r++) {
    for (int64_t i = 0; i < w->num_nodes; i++) {
      const int64_t at = r * w->num_nodes + i;
      w->parents[at] = (int32_t)(i - 1);
      w->tokens[at] = i == 0 ? 0 : w->argmax[at - 1];
      if (i > accepted) {
        w->tokens[at] = (w->tokens[at] + 1) % (int32_t)w->vocab_size;
      }
    }
    treeattn_verify_request *request = &w->requests[r];
    *request = (treeattn_verify_request)TREEATTN_VERIFY_REQUEST_INIT;
    request->num_nodes = w->num_nodes;
    request->parents = w->parents + r * w->num_nodes;
    request->tokens = w->tokens + r * w->num_nodes;
    request->logits.data = w->logits + (size_t)(r * w->num_nodes) * w->row_bytes;
    request->logits.bytes = (size_t)w->num_nodes * w->row_bytes;
    request->logits.dtype = w->dtype;
    w->results[r] = (treeattn_verify_result)TREEATTN_VERIFY_RESULT_INIT;
    w->results[r].path = w->path + r * w->num_nodes;
    w->results[r].tokens = w->emitted + r * w->num_nodes;
    w->results[r].capacity = w->num_nodes;
  }
}

static void measure(workload *w) {
  const size_t rows = (size_t)(w->num_requests * w->num_nodes);
  w->row_bytes = (size_t)w->vocab_size * treeattn_dtype_bytes(w->dtype);
  const double gigabytes = (double)rows * (double)w->row_bytes * 1e-9;
  fill(w);
  const double reading = median_seconds(w, read_all);
  const double finding = median_seconds(w, argmax_all);
  const double again = median_seconds(w, read_all);
  const double limit = reading < again ? reading : again;
  (void)printf("%-5s %8.3f %10.1f %10.1f %8.1f %10.2f", treeattn_dtype_name(w->dtype), gigabytes, 1e3 * limit,
               1e3 * finding, gigabytes / finding, finding / limit);
  for (int64_t accepted = 4; accepted < w->num_nodes; accepted += w->num_nodes - 5) {
    set_requests(w, accepted);
    const double walking = median_seconds(w, walk_all);
    for (int64_t r = 0; r < w->num_requests; r++) {
      if (w->results[r].num_path != accepted + 1) {
        (void)fprintf(stderr, "treeattn-argmax: request %" PRId64 " accepts %" PRId64 " nodes\n", r,
                      w->results[r].num_path);
        exit(1);
      }
    }
    const double part = (double)(accepted + 1) / (double)w->num_nodes;
    (void)printf(" %10.2f %10.2f", 1e3 * walking, walking / (limit * part));
  }
  (void)printf("\n");
  (void)fflush(stdout);
}

int main(int argc, char **argv) {
  workload w = {.vocab_size = 262144, .num_nodes = 64, .num_requests = 16, .num_threads = 0, .num_runs = 7};
  int64_t *numbers[] = {&w.num_requests, &w.num_threads, &w.num_runs, &w.vocab_size, &w.num_nodes};
  static const char *const names[] = {"requests", "threads", "runs", "vocabulary", "nodes"};
  for (int n = 1; n < argc; n++) {
    if (n > 5 || !cli_parse_i64(names[n - 1], argv[n],
                                n == 2   ? 0
                                : n == 5 ? 6
                                         : 1,
                                n == 3 ? MAX_RUNS : 1 << 20, numbers[n - 1])) {
      (void)fprintf(stderr, "Usage: treeattn-argmax [REQUESTS [THREADS [RUNS [VOCABULARY [NODES]]]]]\n");
      return 2;
    }
  }
  treeattn_error error;
  treeattn_pool *pool = NULL;
  if (w.num_threads != 1 && treeattn_pool_create(w.num_threads, &pool, &error) != TREEATTN_OK) {
    fail(&error);
  }
  const int64_t rows = w.num_requests * w.num_nodes;
  if (pool != NULL) {
    w.executor = treeattn_pool_executor(pool);
  }
  w.logits = allocate((size_t)(rows * w.vocab_size) * sizeof(float));
  w.scratch = allocate(treeattn_logits_argmax_scratch_bytes(rows));
  w.argmax = allocate((size_t)rows * sizeof *w.argmax);
  w.parents = allocate((size_t)rows * sizeof *w.parents);
  w.tokens = allocate((size_t)rows * sizeof *w.tokens);
  w.path = allocate((size_t)rows * sizeof *w.path);
  w.emitted = allocate((size_t)rows * sizeof *w.emitted);
  w.sums = allocate((size_t)rows * sizeof *w.sums);
  w.requests = allocate((size_t)w.num_requests * sizeof *w.requests);
  w.results = allocate((size_t)w.num_requests * sizeof *w.results);
  w.args = (treeattn_verify_args)TREEATTN_VERIFY_ARGS_INIT;
  w.args.vocab_size = w.vocab_size;
  w.args.num_requests = w.num_requests;
  w.args.requests = w.requests;
  w.args.results = w.results;
  w.args.num_workers = pool == NULL ? 1 : treeattn_pool_num_threads(pool);
  w.args.executor = w.executor;
  w.dtype = TREEATTN_F32;
  w.row_bytes = (size_t)w.vocab_size * sizeof(float);
  set_requests(&w, 0);
  if (treeattn_verify_scratch_bytes(&w.args, &w.args.scratch_bytes, &error) != TREEATTN_OK) {
    fail(&error);
  }
  w.args.scratch = allocate(w.args.scratch_bytes);
  (void)printf("%" PRId64 " requests of %" PRId64 " nodes, vocabulary %" PRId64 ", %" PRId64 " threads\n",
               w.num_requests, w.num_nodes, w.vocab_size, w.args.num_workers);
  (void)printf(
      "type        GB    read ms  argmax ms     GB/s  of reading    5 rows ms  of reading   all rows ms  of reading\n");
  static const treeattn_dtype dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};
  for (int d = 0; d < 3; d++) {
    w.dtype = dtypes[d];
    measure(&w);
  }
  return 0;
}
