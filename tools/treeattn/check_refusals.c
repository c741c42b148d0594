/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input: a status, a message that names the field, and nothing written. */
#include <math.h>
#include <string.h>

#include "check.h"

/* A small request that is right in every field until a case breaks one. */
enum { H = 4, G = 2, D = 16, N = 4, P = 5, T = P + N };

typedef struct fixture {
  treeattn_plan_args args;
  treeattn_request request;
  int32_t parents[N];
  int32_t positions[N];
  int32_t queries[N];
  int32_t intervals[N][2];
  int32_t pages[T];
  float dense[N][T];
  float q[H * N * D], k[G * T * D], v[G * T * D];
  float sinks[H];
  float out[N * H * D], lse[N * H];
} fixture;

static void reset(fixture *f) {
  memset(f, 0, sizeof *f);
  static const int32_t parents[N] = {-1, 0, 0, 1};
  static const int32_t positions[N] = {P, P + 1, P + 1, P + 2};
  static const int32_t intervals[N][2] = {{0, 4}, {1, 3}, {3, 4}, {2, 3}};
  memcpy(f->parents, parents, sizeof parents);
  memcpy(f->positions, positions, sizeof positions);
  memcpy(f->intervals, intervals, sizeof intervals);
  for (int32_t n = 0; n < N; n++) {
    f->queries[n] = n;
  }
  for (int32_t n = 0; n < T; n++) {
    f->pages[n] = n;
  }
  f->request = (treeattn_request)TREEATTN_REQUEST_INIT;
  f->request.num_nodes = N;
  f->request.prefix_len = P;
  f->request.mask_kind = TREEATTN_MASK_PARENTS;
  f->request.mask = f->parents;
  f->request.mask_bytes = sizeof f->parents;
  f->args.struct_size = sizeof f->args;
  f->args.num_requests = 1;
  f->args.requests = &f->request;
  f->args.request_bytes = sizeof f->request;
  f->args.num_heads = H;
  f->args.num_kv_heads = G;
  f->args.head_dim = D;
  f->args.kv_dtype = TREEATTN_F32;
  f->args.scale = 0.25f;
  f->args.kv_capacity = T;
  f->args.num_workers = 2; /* an executor is then asked for */
}

static void use_dense(fixture *f) {
  f->request.mask_kind = TREEATTN_MASK_DENSE_F32;
  f->request.mask = f->dense;
  f->request.mask_bytes = sizeof f->dense;
}

static void use_intervals(fixture *f) {
  f->request.mask_kind = TREEATTN_MASK_INTERVALS;
  f->request.mask = f->intervals;
  f->request.mask_bytes = sizeof f->intervals;
}

static void use_pages(fixture *f) {
  f->args.page_size = 1;
  f->args.num_pages = T;
  f->request.page_table = f->pages;
  f->request.page_table_len = T;
}

/* Breaks the plan's arguments in the way of that number. Returns a word that the message must hold; NULL past the last
 * case. */
static const char *break_plan(fixture *f, int number) {
  treeattn_plan_args *a = &f->args;
  treeattn_request *r = &f->request;
  const treeattn_isa foreign = treeattn_isa_available(TREEATTN_ISA_NEON) ? TREEATTN_ISA_AVX2 : TREEATTN_ISA_NEON;
  switch (number) {
    case 0: a->num_heads = 0; return "num_heads";
    case 1: a->num_kv_heads = 0; return "num_kv_heads";
    case 2: a->num_kv_heads = 3; return "num_kv_heads";
    case 3: a->head_dim = 12; return "head_dim";
    case 4: a->head_dim = 1032; return "head_dim";
    case 5: a->head_dim = -8; return "head_dim";
    case 6: a->head_dim_v = 7; return "head_dim_v";
    case 7: a->kv_dtype = (treeattn_dtype)9; return "kv_dtype";
    case 8: a->scale = NAN; return "scale";
    case 9: a->scale = INFINITY; return "scale";
    case 10: a->softcap = -1.0f; return "softcap";
    case 11: a->softcap = NAN; return "softcap";
    case 12: a->window = -1; return "window";
    case 13: a->page_size = -1; return "page_size";
    case 14: a->kv_capacity = T - 1; return "kv_capacity";
    case 15: a->num_requests = -1; return "num_requests";
    case 16: a->requests = NULL; return "requests";
    case 17: a->num_workers = 5000; return "num_workers";
    case 18: a->isa = foreign; return "isa";
    case 19: a->isa = (treeattn_isa)77; return "isa";
    case 20: a->struct_size = 8; return "struct_size";
    case 21:
      a->num_heads = INT64_C(1) << 62;
      a->num_kv_heads = INT64_C(1) << 62;
      return "num_heads";
    case 22: a->kv_capacity = INT64_C(1) << 61; return "k";
    case 23: a->q_stride_row = -1; return "q_stride_row";
    case 24: r->num_nodes = -1; return "num_nodes";
    case 25: r->prefix_len = -7; return "prefix_len";
    case 26: r->kv_seq_len = T - 1; return "kv_seq_len";
    case 27:
      r->prefix_len = TREEATTN_AUTO;
      r->kv_seq_len = TREEATTN_AUTO;
      return "prefix_len";
    case 28: f->parents[2] = 2; return "parents[2]";
    case 29: f->parents[1] = 3; return "parents[1]";
    case 30: f->parents[3] = -2; return "parents[3]";
    case 31: f->parents[2] = 1 << 30; return "parents[2]";
    case 32: r->mask = NULL; return "mask";
    case 33: r->mask_bytes--; return "mask";
    case 34: r->mask_kind = (treeattn_mask_kind)42; return "mask_kind";
    case 35: r->cache_index = 1; return "cache_index";
    case 36:
      use_dense(f);
      f->dense[2][3] = NAN;
      return "mask";
    case 37:
      use_dense(f);
      f->dense[3][1] = INFINITY;
      return "mask";
    case 38:
      use_dense(f);
      r->mask_stride = T - 1;
      return "mask_stride";
    case 39:
      use_dense(f);
      r->mask_columns = T + 1;
      return "mask_columns";
    case 40:
      use_dense(f);
      r->mask_bytes = sizeof f->dense - 1;
      return "mask";
    case 41:
      use_intervals(f);
      f->intervals[1][1] = 4;
      f->intervals[2][0] = 2;
      return "intervals";
    case 42:
      use_intervals(f);
      f->intervals[3][0] = 1;
      return "intervals";
    case 43:
      use_intervals(f);
      f->intervals[2][1] = 3;
      return "intervals";
    case 44:
      f->positions[1] = P + 2;
      r->positions = f->positions;
      return "positions[1]";
    case 45:
      f->queries[1] = N;
      r->query_nodes = f->queries;
      r->num_queries = N;
      return "query_nodes[1]";
    case 46:
      f->queries[3] = 0;
      r->query_nodes = f->queries;
      r->num_queries = N;
      return "query_nodes[3]";
    case 47:
      r->query_nodes = f->queries;
      r->num_queries = -1;
      return "num_queries";
    case 48:
      use_pages(f);
      r->page_table_len = T - 1;
      return "page_table";
    case 49:
      use_pages(f);
      f->pages[4] = T;
      return "page_table[4]";
    case 50:
      use_pages(f);
      f->pages[0] = -1;
      return "page_table[0]";
    case 51:
      use_pages(f);
      r->page_table = NULL;
      return "page_table";
    default: return NULL;
  }
}

static int failing_parallel_for(void *context, void (*task)(void *arg, size_t index), void *arg, size_t num_tasks) {
  (void)context;
  (void)task;
  (void)arg;
  (void)num_tasks;
  return 1;
}

static const char *break_run(fixture *f, treeattn_run_args *run, int number) {
  switch (number) {
    case 0: run->q_bytes--; return "q";
    case 1: run->k_bytes--; return "k";
    case 2: run->v_bytes--; return "v";
    case 3: run->out_bytes--; return "out";
    case 4: run->lse_bytes--; return "lse";
    case 5: run->scratch_bytes = 0; return "scratch";
    case 6: run->q = NULL; return "q";
    case 7: run->k = NULL; return "k";
    case 8: run->v = NULL; return "v";
    case 9:
      run->out = NULL;
      run->out_bytes = 0;
      return "out";
    case 10: run->sinks_bytes--; return "sinks";
    case 11: f->sinks[2] = NAN; return "sinks[2]";
    case 12: f->sinks[1] = INFINITY; return "sinks[1]";
    case 13: run->struct_size = 8; return "struct_size";
    case 14: run->executor.parallel_for = failing_parallel_for; return "executor";
    default: return NULL;
  }
}

/* A message is one line without a period at its end that holds the word. */
static bool is_refusal(treeattn_status status, const treeattn_error *error, const char *word) {
  const size_t length = strnlen(error->message, sizeof error->message);
  return status != TREEATTN_OK && error->status == status && length > 0 && length < sizeof error->message &&
         strchr(error->message, '\n') == NULL && strstr(error->message, word) != NULL;
}

static void check_plans(check_context *c, fixture *f) {
  for (int number = -1;; number++) {
    reset(f);
    const char *word = number < 0 ? "" : break_plan(f, number);
    if (word == NULL) {
      return;
    }
    treeattn_plan *plan = NULL;
    treeattn_error error = {TREEATTN_OK, ""};
    const treeattn_status status = treeattn_plan_create(&f->args, &plan, &error);
    if (number < 0) {
      check_count(c, CHECK_P7, status == TREEATTN_OK, "a good plan was refused: %s", error.message);
    } else {
      check_count(c, CHECK_P7, is_refusal(status, &error, word) && plan == NULL,
                  "plan with a bad %s (case %d): %s, \"%s\"", word, number, treeattn_status_name(status),
                  error.message);
    }
    treeattn_plan_destroy(plan);
  }
}

static bool untouched(const void *memory, size_t bytes) {
  for (size_t n = 0; n < bytes; n++) {
    if (((const unsigned char *)memory)[n] != 0xa5) {
      return false;
    }
  }
  return true;
}

static int check_runs(check_context *c, fixture *f) {
  for (int number = -1;; number++) {
    reset(f);
    treeattn_plan *plan = NULL;
    treeattn_plan_info info = TREEATTN_PLAN_INFO_INIT;
    treeattn_error error = {TREEATTN_OK, ""};
    if (treeattn_plan_create(&f->args, &plan, &error) != TREEATTN_OK ||
        treeattn_plan_get_info(plan, &info, &error) != TREEATTN_OK) {
      treeattn_plan_destroy(plan);
      return cli_library_error("refusals", &error);
    }
    void *scratch = cli_malloc(info.scratch_bytes);
    treeattn_run_args run = TREEATTN_RUN_ARGS_INIT;
    run.q = f->q;
    run.q_bytes = sizeof f->q;
    run.k = f->k;
    run.k_bytes = sizeof f->k;
    run.v = f->v;
    run.v_bytes = sizeof f->v;
    run.sinks = f->sinks;
    run.sinks_bytes = sizeof f->sinks;
    run.out = f->out;
    run.out_bytes = sizeof f->out;
    run.lse = f->lse;
    run.lse_bytes = sizeof f->lse;
    run.scratch = scratch;
    run.scratch_bytes = info.scratch_bytes;
    const char *word = number < 0 ? "" : break_run(f, &run, number);
    if (word == NULL || scratch == NULL) {
      treeattn_plan_destroy(plan);
      cli_free(scratch);
      return word == NULL ? CLI_OK : cli_out_of_memory();
    }
    memset(f->out, 0xa5, sizeof f->out);
    memset(f->lse, 0xa5, sizeof f->lse);
    const treeattn_status status = treeattn_attend(plan, &run, &error);
    if (number < 0) {
      check_count(c, CHECK_P7, status == TREEATTN_OK, "a good run was refused: %s", error.message);
    } else {
      const bool clean = untouched(f->out, sizeof f->out) && untouched(f->lse, sizeof f->lse);
      check_count(c, CHECK_P7, is_refusal(status, &error, word) && clean, "run with a bad %s (case %d): %s, \"%s\"%s",
                  word, number, treeattn_status_name(status), error.message, clean ? "" : ", output written");
    }
    treeattn_plan_destroy(plan);
    cli_free(scratch);
  }
}

/* The one-call operator with the list of refusals that its users know. */
typedef struct one_call {
  treeattn_tree_attention_params params;
  treeattn_tensor q, k, v, mask, output, tmp;
} one_call;

static const char *break_one_call(one_call *o, int number) {
  switch (number) {
    case 0: o->params.head_dim = 64; return "head_dim";
    case 1: o->params.num_heads = 0; return "num_heads";
    case 2: o->params.num_kv_heads = 0; return "num_kv_heads";
    case 3: o->params.num_kv_heads = 3; return "num_kv_heads";
    case 4: o->params.kv_seq_len = 0; return "kv_seq_len";
    case 5: o->params.kv_capacity = 1; return "kv_capacity";
    case 6: o->params.q_seq_len = 0; return "q_seq_len";
    case 7: o->params.mask_stride = 1; return "mask_stride";
    case 8: o->q.dtype = TREEATTN_F16; return "q";
    case 9: o->k.dtype = (treeattn_dtype)7; return "k";
    case 10: o->v.dtype = TREEATTN_F16; return "v";
    case 11: o->mask.dtype = TREEATTN_F16; return "mask";
    case 12: o->output.dtype = TREEATTN_BF16; return "output";
    case 13: o->q.bytes--; return "q";
    case 14: o->k.bytes--; return "k";
    case 15: o->v.bytes--; return "v";
    case 16: o->mask.bytes--; return "mask";
    case 17: o->output.bytes--; return "output";
    case 18: o->tmp.bytes--; return "tmp";
    case 19: o->params.kv_capacity = UINT32_MAX; return "k";
    case 20:
      o->params.num_heads = UINT32_MAX;
      o->params.num_kv_heads = UINT32_MAX;
      o->params.kv_capacity = UINT32_MAX;
      return "";
    default: return NULL;
  }
}

static int check_one_calls(check_context *c) {
  enum { HEADS = 2, DIM = 128, KEYS = 3, QUERIES = 2 };
  const size_t rows_bytes = HEADS * QUERIES * DIM * sizeof(float);
  const size_t kv_bytes = HEADS * KEYS * DIM * sizeof(float);
  const size_t tmp_bytes = treeattn_tmp_buffer_bytes(HEADS, DIM, QUERIES);
  float mask[QUERIES * KEYS] = {0.0f};
  unsigned char *memory = cli_malloc(2 * rows_bytes + kv_bytes + tmp_bytes);
  if (memory == NULL) {
    return cli_out_of_memory();
  }
  memset(memory, 0, 2 * rows_bytes + kv_bytes + tmp_bytes);
  unsigned char *output = memory + rows_bytes + kv_bytes;
  for (int number = -1;; number++) {
    one_call o = {.params = {HEADS, HEADS, DIM, KEYS, KEYS, 0.1f, QUERIES, KEYS},
                  .q = {memory, rows_bytes, TREEATTN_F32},
                  .k = {memory + rows_bytes, kv_bytes, TREEATTN_F32},
                  .v = {memory + rows_bytes, kv_bytes, TREEATTN_F32},
                  .mask = {mask, sizeof mask, TREEATTN_F32},
                  .output = {output, rows_bytes, TREEATTN_F32},
                  .tmp = {output + rows_bytes, tmp_bytes, TREEATTN_F32}};
    const char *word = number < 0 ? "" : break_one_call(&o, number);
    if (word == NULL) {
      break;
    }
    memset(output, 0xa5, rows_bytes);
    treeattn_error error = {TREEATTN_OK, ""};
    const treeattn_status status =
        treeattn_tree_attention(&o.params, &o.q, &o.k, &o.v, &o.mask, &o.output, &o.tmp, NULL, &error);
    if (number < 0) {
      check_count(c, CHECK_P7, status == TREEATTN_OK, "a good call was refused: %s", error.message);
    } else {
      const bool clean = untouched(output, rows_bytes);
      check_count(c, CHECK_P7, is_refusal(status, &error, word) && clean,
                  "tree_attention with a bad %s (case %d): %s, \"%s\"%s", word, number, treeattn_status_name(status),
                  error.message, clean ? "" : ", output written");
    }
  }
  cli_free(memory);
  return CLI_OK;
}

int check_refusals(check_context *c) {
  fixture *f = cli_malloc(sizeof *f);
  if (f == NULL) {
    return cli_out_of_memory();
  }
  check_plans(c, f);
  int status = check_runs(c, f);
  if (status == CLI_OK) {
    status = check_one_calls(c);
  }
  cli_free(f);
  return status;
}
