/* SPDX-License-Identifier: Apache-2.0 */
/* Hands one request to the library in any of the ways that must not matter. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "check.h"

enum { MAX_REQUESTS = 8, CANARY_BYTES = 256 };

void check_count(check_context *c, int line, bool same, const char *format, ...) {
  check_line *l = &c->lines[line];
  l->compared++;
  if (same) {
    return;
  }
  if (l->differing++ == 0) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(l->first, sizeof l->first, format, arguments);
    va_end(arguments);
  }
}

void check_compare(check_context *c, int line, const problem *p, int64_t node, const float *out, const float *lse,
                   const float *expected_out, const float *expected_lse, const char *what) {
  for (int64_t i = node < 0 ? 0 : node; i < (node < 0 ? p->num_nodes : node + 1); i++) {
    for (int64_t h = 0; h < p->num_heads; h++) {
      const int64_t row = i * p->num_heads + h;
      const bool same = memcmp(out + row * p->head_dim_v, expected_out + row * p->head_dim_v,
                               (size_t)p->head_dim_v * sizeof *out) == 0 &&
                        memcmp(lse + row, expected_lse + row, sizeof *lse) == 0;
      check_count(c, line, same, "%s: node %lld head %lld: %s", c->trial, (long long)i, (long long)h, what);
    }
  }
}

/* ---- layouts ----------------------------------------------------------------------------------------------- */

/* A batch in the making; everything in it is freed by release(). */
typedef struct batch {
  int64_t num_requests, place; /* place: which of them is the one that is looked at */
  const problem *problems[MAX_REQUESTS];
  problem others[MAX_REQUESTS];
  treeattn_request requests[MAX_REQUESTS];
  void *masks[MAX_REQUESTS];
  int32_t *page_tables[MAX_REQUESTS];
  int64_t num_pages, capacity, num_rows, first_row;
  float *q;
  unsigned char *k, *v;
  unsigned char *out, *lse, *scratch; /* with canaries before and after */
  treeattn_plan *plan;
} batch;

static void release(batch *b) {
  for (int64_t n = 0; n < b->num_requests; n++) {
    cli_free(b->masks[n]);
    cli_free(b->page_tables[n]);
    if (n != b->place) {
      problem_free(&b->others[n]);
    }
  }
  cli_free(b->q);
  cli_free(b->k);
  cli_free(b->v);
  cli_free(b->out);
  cli_free(b->lse);
  cli_free(b->scratch);
  treeattn_plan_destroy(b->plan);
}

static int64_t slots_of(const problem *p) {
  return p->prefix_len + p->num_nodes;
}

static int64_t rows_of(const batch *b, int64_t n) {
  return b->requests[n].query_nodes != NULL ? b->requests[n].num_queries : b->requests[n].num_nodes;
}

/* The page of each slot range, in a shuffled order, with pages in between that nobody owns. */
static bool deal_pages(check_context *c, batch *b, int64_t page_size) {
  int64_t owned = 0;
  for (int64_t n = 0; n < b->num_requests; n++) {
    owned += (slots_of(b->problems[n]) + page_size - 1) / page_size;
  }
  b->num_pages = owned + 3;
  int32_t *order = cli_malloc_array((size_t)b->num_pages, sizeof *order);
  if (order == NULL) {
    return false;
  }
  for (int64_t n = 0; n < b->num_pages; n++) {
    const int64_t other = problem_random_below(&c->random, n + 1);
    order[n] = order[other];
    order[other] = (int32_t)n;
  }
  int64_t next = 0;
  bool ok = true;
  for (int64_t n = 0; n < b->num_requests && ok; n++) {
    const int64_t count = (slots_of(b->problems[n]) + page_size - 1) / page_size;
    b->page_tables[n] = cli_malloc_array((size_t)count, sizeof **b->page_tables);
    ok = b->page_tables[n] != NULL;
    for (int64_t page = 0; page < count && ok; page++) {
      b->page_tables[n][page] = order[next++];
    }
    b->requests[n].page_table = b->page_tables[n];
    b->requests[n].page_table_len = count;
  }
  cli_free(order);
  return ok;
}

/* One request's rows of K or V into the batch's cache. */
static void place_cache(const batch *b, int64_t n, int64_t page_size, const void *from, int64_t dim, unsigned char *to,
                        const check_way *way) {
  const problem *p = b->problems[n];
  const size_t row_bytes = (size_t)dim * treeattn_dtype_bytes(p->kv_dtype);
  const bool poisoned = n == b->place && way->poison_nodes != NULL;
  for (int64_t g = 0; g < p->num_kv_heads; g++) {
    for (int64_t slot = 0; slot < slots_of(p); slot++) {
      int64_t row = (b->requests[n].cache_index * p->num_kv_heads + g) * b->capacity + slot;
      if (page_size > 0) {
        row = (b->page_tables[n][slot / page_size] * p->num_kv_heads + g) * page_size + slot % page_size;
      }
      memcpy(to + (size_t)row * row_bytes,
             (const unsigned char *)from + (size_t)(g * p->kv_capacity + slot) * row_bytes, row_bytes);
      const int64_t j = slot - p->prefix_len;
      if (poisoned && (j < 0 ? slot < way->poison_prefix : way->poison_nodes[j] != 0)) {
        for (int64_t d = 0; d < dim; d++) {
          problem_store_element(p->kv_dtype, to, row * dim + d, way->poison);
        }
      }
    }
  }
}

static void place_queries(const batch *b, int64_t n, int64_t first_row, const check_way *way) {
  const problem *p = b->problems[n];
  const treeattn_request *request = &b->requests[n];
  for (int64_t h = 0; h < p->num_heads; h++) {
    for (int64_t row = 0; row < rows_of(b, n); row++) {
      const int64_t node = request->query_nodes != NULL ? request->query_nodes[row] : row;
      float *to = b->q + (h * b->num_rows + first_row + row) * p->head_dim;
      memcpy(to, p->q + (h * p->num_nodes + node) * p->head_dim, (size_t)p->head_dim * sizeof *to);
      if (n == b->place && way->poison_nodes != NULL && way->poison_nodes[node] != 0) {
        for (int64_t d = 0; d < p->head_dim; d++) {
          to[d] = way->poison;
        }
      }
    }
  }
}

static unsigned char *with_canaries(size_t bytes) {
  unsigned char *memory = cli_malloc(bytes + 2 * CANARY_BYTES);
  if (memory != NULL) {
    memset(memory, 0xa5, bytes + 2 * CANARY_BYTES);
  }
  return memory;
}

static bool canaries_live(const unsigned char *memory, size_t bytes) {
  for (size_t n = 0; n < CANARY_BYTES; n++) {
    if (memory[n] != 0xa5 || memory[CANARY_BYTES + bytes + n] != 0xa5) {
      return false;
    }
  }
  return true;
}

/* Chooses the requests of the batch and encodes what each sees. */
static bool gather_requests(check_context *c, const problem *p, const check_way *way, batch *b) {
  b->num_requests = way->num_before + 1 + way->num_after;
  b->place = way->num_before;
  for (int64_t n = 0; n < b->num_requests; n++) {
    b->problems[n] = p;
    if (n != b->place) {
      problem sizes = *p;
      sizes.parents = NULL;
      sizes.num_nodes = problem_random_below(&c->random, 6);
      sizes.prefix_len = problem_random_below(&c->random, 100);
      sizes.kv_capacity = sizes.prefix_len + sizes.num_nodes + 1;
      if (!problem_create_random(&sizes, 1.0f, problem_random(&c->random), &b->others[n])) {
        return false;
      }
      b->problems[n] = &b->others[n];
    }
    treeattn_request *request = &b->requests[n];
    *request = (treeattn_request)TREEATTN_REQUEST_INIT;
    request->num_nodes = b->problems[n]->num_nodes;
    request->prefix_len = b->problems[n]->prefix_len;
    request->kv_seq_len = slots_of(b->problems[n]);
    request->cache_index = b->num_requests - 1 - n;
    if (n == b->place && way->query_nodes != NULL) {
      request->query_nodes = way->query_nodes;
      request->num_queries = way->num_queries;
    }
    b->masks[n] = check_encode_mask(b->problems[n], n == b->place ? way->encoding : CHECK_PARENTS, request);
    if (b->masks[n] == NULL) {
      return false;
    }
    b->first_row = n == b->place ? b->num_rows : b->first_row;
    b->num_rows += rows_of(b, n);
    const int64_t slots = slots_of(b->problems[n]) + 2;
    b->capacity = slots > b->capacity ? slots : b->capacity;
  }
  return way->page_size == 0 || deal_pages(c, b, way->page_size);
}

static treeattn_plan_args plan_args(const check_context *c, const problem *p, const check_way *way, const batch *b) {
  treeattn_plan_args args = TREEATTN_PLAN_ARGS_INIT;
  args.num_requests = b->num_requests;
  args.requests = b->requests;
  args.request_bytes = sizeof b->requests[0];
  args.num_heads = p->num_heads;
  args.num_kv_heads = p->num_kv_heads;
  args.head_dim = p->head_dim;
  args.head_dim_v = p->head_dim_v;
  args.kv_dtype = p->kv_dtype;
  args.scale = p->scale;
  args.softcap = p->softcap;
  args.window = p->window;
  args.page_size = way->page_size;
  args.num_pages = b->num_pages;
  args.kv_capacity = b->capacity;
  args.isa = way->isa;
  args.num_workers = c->team_sizes[way->team];
  return args;
}

static int run_batch(check_context *c, const problem *p, const check_way *way, batch *b, float *out, float *lse) {
  const treeattn_plan_args args = plan_args(c, p, way, b);
  treeattn_plan_info info = TREEATTN_PLAN_INFO_INIT;
  treeattn_error error;
  if (treeattn_plan_create(&args, &b->plan, &error) != TREEATTN_OK ||
      treeattn_plan_get_info(b->plan, &info, &error) != TREEATTN_OK) {
    return cli_library_error(c->trial, &error);
  }
  b->q = cli_malloc(info.q_bytes);
  b->k = cli_malloc(info.k_bytes);
  b->v = cli_malloc(info.v_bytes);
  b->out = with_canaries(info.out_bytes);
  b->lse = with_canaries(info.lse_bytes);
  b->scratch = with_canaries(info.scratch_bytes);
  if (b->q == NULL || b->k == NULL || b->v == NULL || b->out == NULL || b->lse == NULL || b->scratch == NULL) {
    return cli_out_of_memory();
  }
  memset(b->k, 0xff, info.k_bytes);
  memset(b->v, 0xff, info.v_bytes);
  int64_t row = 0;
  for (int64_t n = 0; n < b->num_requests; n++) {
    place_cache(b, n, way->page_size, b->problems[n]->k, p->head_dim, b->k, way);
    place_cache(b, n, way->page_size, b->problems[n]->v, p->head_dim_v, b->v, way);
    place_queries(b, n, row, way);
    row += rows_of(b, n);
  }
  treeattn_run_args run = TREEATTN_RUN_ARGS_INIT;
  run.q = b->q;
  run.q_bytes = info.q_bytes;
  run.k = b->k;
  run.k_bytes = info.k_bytes;
  run.v = b->v;
  run.v_bytes = info.v_bytes;
  run.sinks = p->sinks;
  run.sinks_bytes = p->sinks != NULL ? (size_t)p->num_heads * sizeof *p->sinks : 0;
  run.out = b->out + CANARY_BYTES;
  run.out_bytes = info.out_bytes;
  run.lse = (float *)(void *)(b->lse + CANARY_BYTES);
  run.lse_bytes = info.lse_bytes;
  run.scratch = b->scratch + CANARY_BYTES;
  run.scratch_bytes = info.scratch_bytes;
  run.executor = c->teams[way->team];
  if (treeattn_attend(b->plan, &run, &error) != TREEATTN_OK) {
    return cli_library_error(c->trial, &error);
  }
  check_count(c, CHECK_P4, canaries_live(b->out, info.out_bytes), "%s: bytes beside the output were written", c->trial);
  check_count(c, CHECK_P4, canaries_live(b->lse, info.lse_bytes), "%s: bytes beside lse were written", c->trial);
  check_count(c, CHECK_P4, canaries_live(b->scratch, info.scratch_bytes), "%s: bytes beside the scratch were written",
              c->trial);
  for (int64_t n = 0; n < rows_of(b, b->place); n++) {
    const int64_t node = way->query_nodes != NULL ? way->query_nodes[n] : n;
    memcpy(out + node * p->num_heads * p->head_dim_v,
           (const float *)run.out + (b->first_row + n) * p->num_heads * p->head_dim_v,
           (size_t)(p->num_heads * p->head_dim_v) * sizeof *out);
    memcpy(lse + node * p->num_heads, run.lse + (b->first_row + n) * p->num_heads, (size_t)p->num_heads * sizeof *lse);
  }
  return CLI_OK;
}

int check_attend(check_context *c, const problem *p, const check_way *way, float *out, float *lse) {
  batch b = {.num_requests = 0};
  const int status = gather_requests(c, p, way, &b) ? run_batch(c, p, way, &b, out, lse) : cli_out_of_memory();
  release(&b);
  return status;
}
