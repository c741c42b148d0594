/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller pays for a paged cache or a dense mask instead of a contiguous cache and parents. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <treeattn/attention.h>

#include "cli.h"
#include "problem.h"

enum { MAX_REPEAT = 101, NUM_WAYS = 6 };

typedef struct workload {
  const char *name;
  int64_t num_heads, num_kv_heads, head_dim, num_nodes, kv_len;
} workload;

static const workload workloads[] = {
    {"A", 40, 8, 128, 1, 8192},  {"B", 40, 8, 128, 64, 8192}, {"C", 40, 8, 128, 16, 32768},
    {"D", 16, 8, 256, 32, 4096}, {"E", 32, 8, 128, 64, 1024}, {"F", 4, 1, 256, 32, 2048},
};

/* The way a plan is told what it is told: a page size (0: contiguous), and a dense mask or parents. */
typedef struct way {
  const char *name;
  int64_t page_size;
  bool dense;
  treeattn_plan *plan;
  treeattn_run_args run;
  int32_t *pages;
  void *k, *v; /* the pages' own copies */
  double times[MAX_REPEAT];
  double median;
} way;

static void fail(const char *what, const treeattn_error *error) {
  (void)fprintf(stderr, "%s: %s\n", what, error == NULL ? "out of memory" : error->message);
  exit(1);
}

static void *take(size_t bytes) {
  void *memory = malloc(bytes);
  if (memory == NULL) {
    fail("malloc", NULL);
  }
  return memory;
}

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a;
  const double y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *times, int count) {
  qsort(times, (size_t)count, sizeof *times, compare_doubles);
  return times[count / 2];
}

static float *dense_mask(const problem *p) {
  const int64_t slots = p->prefix_len + p->num_nodes;
  float *mask = take((size_t)(p->num_nodes * slots) * sizeof *mask);
  for (int64_t i = 0; i < p->num_nodes; i++) {
    for (int64_t t = 0; t < slots; t++) {
      mask[i * slots + t] = t < p->prefix_len ? 0.0f : TREEATTN_MASK_HIDDEN;
    }
    for (int64_t j = i; j >= 0; j = p->parents[j]) {
      mask[i * slots + p->prefix_len + j] = 0.0f;
    }
  }
  return mask;
}

/* The cache [G][T][D] as pages [page][G][page_size][D] in random order, with a page table. */
static void *paginate(const problem *p, const void *cache, int64_t page_size, const int32_t *pages, int64_t num_pages) {
  const int64_t slots = p->prefix_len + p->num_nodes;
  const size_t row = (size_t)p->head_dim * treeattn_dtype_bytes(p->kv_dtype);
  unsigned char *target = take((size_t)(num_pages * p->num_kv_heads * page_size) * row);
  for (int64_t t = 0; t < slots; t++) {
    for (int64_t g = 0; g < p->num_kv_heads; g++) {
      const int64_t to = (pages[t / page_size] * p->num_kv_heads + g) * page_size + t % page_size;
      memcpy(target + (size_t)to * row, (const unsigned char *)cache + (size_t)(g * p->kv_capacity + t) * row, row);
    }
  }
  return target;
}

static treeattn_request request_of(const problem *p, const float *mask) {
  treeattn_request request = TREEATTN_REQUEST_INIT;
  request.num_nodes = p->num_nodes;
  request.prefix_len = p->prefix_len;
  request.kv_seq_len = p->prefix_len + p->num_nodes;
  request.mask_kind = mask != NULL ? TREEATTN_MASK_DENSE_F32 : TREEATTN_MASK_PARENTS;
  request.mask = mask != NULL ? (const void *)mask : p->parents;
  request.mask_bytes = mask != NULL ? (size_t)(p->num_nodes * request.kv_seq_len) * sizeof *mask
                                    : (size_t)p->num_nodes * sizeof *p->parents;
  return request;
}

static treeattn_plan_args args_of(const problem *p, const treeattn_request *request, int64_t threads) {
  treeattn_plan_args args = TREEATTN_PLAN_ARGS_INIT;
  args.num_requests = 1;
  args.requests = request;
  args.request_bytes = sizeof *request;
  args.num_heads = p->num_heads;
  args.num_kv_heads = p->num_kv_heads;
  args.head_dim = p->head_dim;
  args.kv_dtype = p->kv_dtype;
  args.scale = p->scale;
  args.kv_capacity = p->kv_capacity;
  args.num_workers = threads;
  return args;
}

static void prepare(const problem *p, const float *mask, int64_t threads, const treeattn_executor *executor, way *w) {
  const int64_t slots = p->prefix_len + p->num_nodes;
  treeattn_request request = request_of(p, w->dense ? mask : NULL);
  treeattn_plan_args args = args_of(p, &request, threads);
  w->run = (treeattn_run_args)TREEATTN_RUN_ARGS_INIT;
  w->run.q = p->q;
  w->run.k = p->k;
  w->run.v = p->v;
  if (w->page_size > 0) {
    const int64_t num_pages = (slots + w->page_size - 1) / w->page_size;
    uint64_t random = (uint64_t)w->page_size;
    w->pages = take((size_t)num_pages * sizeof *w->pages);
    for (int64_t n = 0; n < num_pages; n++) {
      const int64_t other = problem_random_below(&random, n + 1);
      w->pages[n] = w->pages[other];
      w->pages[other] = (int32_t)n;
    }
    w->k = paginate(p, p->k, w->page_size, w->pages, num_pages);
    w->v = paginate(p, p->v, w->page_size, w->pages, num_pages);
    w->run.k = w->k;
    w->run.v = w->v;
    args.page_size = w->page_size;
    args.num_pages = num_pages;
    request.page_table = w->pages;
    request.page_table_len = num_pages;
  }
  treeattn_error error;
  treeattn_plan_info info = TREEATTN_PLAN_INFO_INIT;
  if (treeattn_plan_create(&args, &w->plan, &error) != TREEATTN_OK ||
      treeattn_plan_get_info(w->plan, &info, &error) != TREEATTN_OK) {
    fail(w->name, &error);
  }
  w->run.q_bytes = info.q_bytes;
  w->run.k_bytes = info.k_bytes;
  w->run.v_bytes = info.v_bytes;
  w->run.out = take(info.out_bytes);
  w->run.out_bytes = info.out_bytes;
  w->run.scratch = take(info.scratch_bytes);
  w->run.scratch_bytes = info.scratch_bytes;
  w->run.executor = *executor;
}

static void run(way *w, int repeat) {
  treeattn_error error;
  const double start = cli_seconds();
  if (treeattn_attend(w->plan, &w->run, &error) != TREEATTN_OK) {
    fail(w->name, &error);
  }
  if (repeat >= 0) {
    w->times[repeat] = cli_seconds() - start;
  }
}

/* One workload every way, in turn. False where the bits differ. */
static bool measure(const workload *load, int repeat, int64_t threads, const treeattn_executor *executor) {
  way ways[NUM_WAYS] = {{.name = "parents"},
                        {.name = "dense", .dense = true},
                        {.name = "pages of 16", .page_size = 16},
                        {.name = "pages of 32", .page_size = 32},
                        {.name = "pages of 64", .page_size = 64},
                        {.name = "pages of 256", .page_size = 256}};
  const problem sizes = {.num_heads = load->num_heads,
                         .num_kv_heads = load->num_kv_heads,
                         .head_dim = load->head_dim,
                         .head_dim_v = load->head_dim,
                         .num_nodes = load->num_nodes,
                         .prefix_len = load->kv_len - load->num_nodes,
                         .kv_capacity = load->kv_len,
                         .kv_dtype = TREEATTN_F16,
                         .scale = (float)(1.0 / sqrt((double)load->head_dim))};
  problem p;
  if (!problem_create_random(&sizes, 1.0f, 1, &p)) {
    fail(load->name, NULL);
  }
  float *mask = dense_mask(&p);
  for (int n = 0; n < NUM_WAYS; n++) {
    prepare(&p, mask, threads, executor, &ways[n]);
  }
  for (int repetition = -1; repetition < repeat; repetition++) {
    for (int n = 0; n < NUM_WAYS; n++) {
      run(&ways[n], repetition);
    }
  }
  bool same = true;
  for (int n = 0; n < NUM_WAYS; n++) {
    ways[n].median = median(ways[n].times, repeat);
    same = same && memcmp(ways[n].run.out, ways[0].run.out, ways[0].run.out_bytes) == 0;
  }
  printf("| %s | %.2f |", load->name, ways[0].median * 1e3);
  for (int n = 1; n < NUM_WAYS; n++) {
    printf(" %.2f (%+.1f %%) |", ways[n].median * 1e3, 100.0 * (ways[n].median / ways[0].median - 1.0));
  }
  printf(" %s |\n", same ? "same" : "DIFFER");
  for (int n = 0; n < NUM_WAYS; n++) {
    treeattn_plan_destroy(ways[n].plan);
    free(ways[n].run.out);
    free(ways[n].run.scratch);
    free(ways[n].pages);
    free(ways[n].k);
    free(ways[n].v);
  }
  free(mask);
  problem_free(&p);
  return same;
}

/* Seconds to read `bytes` once, as fast as the compiler makes it: a sum of 64-bit words. */
static double read_once(const void *data, size_t bytes) {
  static volatile uint64_t sink;
  const uint64_t *words = data;
  uint64_t sum = 0;
  const double start = cli_seconds();
  for (size_t n = 0; n < bytes / sizeof *words; n++) {
    sum += words[n];
  }
  const double seconds = cli_seconds() - start;
  sink = sum;
  (void)sink;
  return seconds;
}

/* Plans of 64 nodes over 131,072 keys from each kind of mask; 0 and 1 bytes, and packed bits, say what the floats say. */
static void measure_plans(int repeat) {
  enum { N = 64, T = 131072 };
  const problem sizes = {.num_heads = 32,
                         .num_kv_heads = 8,
                         .head_dim = 128,
                         .head_dim_v = 128,
                         .num_nodes = N,
                         .prefix_len = T - N,
                         .kv_capacity = T,
                         .kv_dtype = TREEATTN_F16,
                         .scale = 0.088f};
  problem p = sizes;
  int32_t parents[N];
  for (int32_t i = 0; i < N; i++) {
    parents[i] = i == 0 ? -1 : (i - 1) / 2;
  }
  p.parents = parents;
  float *mask = dense_mask(&p);
  uint8_t *bytes = take((size_t)N * T);
  uint8_t *bits = take((size_t)N * T / 8);
  memset(bits, 0, (size_t)N * T / 8);
  for (size_t n = 0; n < (size_t)N * T; n++) {
    bytes[n] = mask[n] > TREEATTN_MASK_HIDDEN;
    bits[n / 8] |= (uint8_t)(bytes[n] << (n % 8));
  }
  const struct {
    const char *name;
    treeattn_mask_kind kind;
    const void *mask;
    size_t bytes;
  } kinds[] = {{"parents", TREEATTN_MASK_PARENTS, parents, sizeof parents},
               {"dense f32", TREEATTN_MASK_DENSE_F32, mask, (size_t)N * T * sizeof *mask},
               {"dense bool", TREEATTN_MASK_DENSE_BOOL, bytes, (size_t)N * T},
               {"packed bits", TREEATTN_MASK_BITS, bits, (size_t)N * T / 8}};
  printf("\nPlans of %d nodes over %d keys, one thread:\n\n| mask | MB | plan us | GB/s of mask | reading it once, "
         "GB/s |\n"
         "|---|--:|--:|--:|--:|\n",
         N, T);
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    treeattn_request request = request_of(&p, NULL);
    request.mask_kind = kinds[k].kind;
    request.mask = kinds[k].mask;
    request.mask_bytes = kinds[k].bytes;
    treeattn_plan_args args = args_of(&p, &request, 2);
    treeattn_error error;
    treeattn_plan *plan = NULL;
    size_t plan_bytes = 0;
    if (treeattn_plan_bytes(&args, &plan_bytes, &error) != TREEATTN_OK) {
      fail(kinds[k].name, &error);
    }
    void *memory = take(plan_bytes);
    double plans[MAX_REPEAT];
    double reads[MAX_REPEAT];
    for (int n = -1; n < repeat; n++) {
      const double start = cli_seconds();
      if (treeattn_plan_init(&args, memory, plan_bytes, &plan, &error) != TREEATTN_OK) {
        fail(kinds[k].name, &error);
      }
      const double seconds = cli_seconds() - start;
      const double reading = read_once(kinds[k].mask, kinds[k].bytes);
      if (n >= 0) {
        plans[n] = seconds;
        reads[n] = reading;
      }
    }
    const double plan_seconds = median(plans, repeat);
    printf("| %s | %.3f | %.1f | ", kinds[k].name, (double)kinds[k].bytes / 1e6, plan_seconds * 1e6);
    if (kinds[k].kind == TREEATTN_MASK_PARENTS) {
      printf("– | – |\n");
    } else {
      printf("%.1f | %.1f |\n", (double)kinds[k].bytes / plan_seconds / 1e9,
             (double)kinds[k].bytes / median(reads, repeat) / 1e9);
    }
    free(memory);
  }
  free(mask);
  free(bytes);
  free(bits);
}

/* What memory gives to whoever reads it in pieces: the limit of plain decoding on a paged cache, where a piece is what
 * one KV head has in one page. */
typedef struct pieces {
  const unsigned char *data;
  const int32_t *order;
  size_t bytes, count;
  size_t threads;
  uint64_t *sums;
} pieces;

static void read_pieces(void *arg, size_t thread) {
  const pieces *p = arg;
  uint64_t sum = 0;
  for (size_t n = p->count * thread / p->threads; n < p->count * (thread + 1) / p->threads; n++) {
    const unsigned char *piece = p->data + (size_t)p->order[n] * p->bytes;
    const unsigned char *next = p->data + (size_t)p->order[n + 2 < p->count ? n + 2 : n] * p->bytes;
    for (size_t at = 0; at < p->bytes; at += 64) {
      uint64_t words[8];
#if defined(__GNUC__)
      __builtin_prefetch(next + at, 0, 3);
#endif
      memcpy(words, piece + at, sizeof words);
      sum += words[0] ^ words[1] ^ words[2] ^ words[3] ^ words[4] ^ words[5] ^ words[6] ^ words[7];
    }
  }
  p->sums[thread] = sum;
}

static void measure_pieces(int64_t threads, const treeattn_executor *executor) {
  enum { ROUNDS = 5 };
  const size_t total = (size_t)512 << 20;
  static const size_t kib[] = {4, 4, 8, 16, 64};
  unsigned char *data = take(total);
  int32_t *order = take(total / 4096 * sizeof *order);
  uint64_t *sums = take((size_t)threads * sizeof *sums);
  memset(data, 1, total);
  printf("\nReading 512 MiB in pieces, asked for two pieces ahead, GB/s:\n\n| | in order |");
  for (size_t k = 1; k < sizeof kib / sizeof *kib; k++) {
    printf(" %zu KiB at random |", kib[k]);
  }
  printf("\n|---|--:|--:|--:|--:|--:|\n| %lld threads |", (long long)threads);
  for (size_t k = 0; k < sizeof kib / sizeof *kib; k++) {
    pieces p = {data, order, kib[k] << 10, total / (kib[k] << 10), (size_t)threads, sums};
    uint64_t random = 1;
    for (size_t n = 0; n < p.count; n++) {
      const size_t other = k == 0 ? n : (size_t)problem_random_below(&random, (int64_t)n + 1);
      order[n] = order[other];
      order[other] = (int32_t)n;
    }
    double best = INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
      const double start = cli_seconds();
      if (executor->parallel_for == NULL) {
        read_pieces(&p, 0);
      } else if (executor->parallel_for(executor->context, read_pieces, &p, (size_t)threads) != 0) {
        fail("parallel_for", NULL);
      }
      best = fmin(best, cli_seconds() - start);
    }
    printf(" %.1f |", (double)total / best / 1e9);
  }
  printf("\n");
  free(data);
  free(order);
  free(sums);
}

int main(int argc, char **argv) {
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  const int64_t threads = argc > 1 ? atoll(argv[1]) : online;
  const int repeat = argc > 2 ? atoi(argv[2]) : 15;
  const char *only = argc > 3 ? argv[3] : "ABCDEF";
  if (threads < 1 || threads > 1024 || repeat < 1 || repeat > MAX_REPEAT) {
    (void)fprintf(stderr, "usage: treeattn-encodings [THREADS [REPEAT (to %d) [WORKLOADS]]]\n", MAX_REPEAT);
    return 2;
  }
  treeattn_pool *pool = NULL;
  treeattn_error error;
  if (threads > 1 && treeattn_pool_create(threads, &pool, &error) != TREEATTN_OK) {
    fail("pool", &error);
  }
  const treeattn_executor executor = treeattn_pool_executor(pool);
  printf("treeattn %s, %lld threads, %s, medians of %d runs in turn, milliseconds:\n\n", treeattn_version(),
         (long long)threads, treeattn_isa_name(treeattn_isa_detect()), repeat);
  printf("| | parents, contiguous | dense f32 mask | pages of 16 | pages of 32 | pages of 64 | pages of 256 | bits |\n"
         "|---|--:|--:|--:|--:|--:|--:|---|\n");
  bool same = true;
  for (size_t n = 0; n < sizeof workloads / sizeof *workloads; n++) {
    if (strstr(only, workloads[n].name) != NULL) {
      same = measure(&workloads[n], repeat, threads, &executor) && same;
    }
  }
  measure_plans(repeat);
  measure_pieces(threads, &executor);
  treeattn_pool_destroy(pool);
  return same ? 0 : 1;
}
