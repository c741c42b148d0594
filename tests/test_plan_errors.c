/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: a wrong argument is accepted, or refused without saying which one and what it was. */
#include "support/check.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "support/harness.h"

/* A valid plan of one request of every kind that a test needs; each test spoils one field of a fresh copy. */
typedef struct fixture {
  treeattn_plan_args args;
  treeattn_request request;
  int32_t parents[6], intervals[12], positions[6], queries[3], pages[4];
  float mask[6 * 16];
  uint8_t bytes[6 * 16];
} fixture;

static void fixture_set(fixture *f) {
  problem p = problem_new(4, 2, 64, 0, TREEATTN_F16);
  static const int32_t parents[6] = {-1, 0, 0, 1, 1, 2};
  memset(f, 0, sizeof *f);
  f->args = problem_args(&p);
  f->args.requests = &f->request;
  f->args.num_requests = 1;
  f->args.kv_capacity = 16;
  f->request = (treeattn_request)TREEATTN_REQUEST_INIT;
  f->request.num_nodes = 6;
  f->request.prefix_len = 10;
  f->request.kv_seq_len = 16;
  f->request.mask_kind = TREEATTN_MASK_PARENTS;
  f->request.mask = f->parents;
  f->request.mask_bytes = sizeof f->parents;
  memcpy(f->parents, parents, sizeof parents);
  tree_intervals(parents, 6, f->intervals);
  int32_t depths[6];
  tree_depths(parents, 6, depths);
  for (int i = 0; i < 6; i++) {
    f->positions[i] = 10 + depths[i];
  }
  uint8_t sees[6 * 16];
  tree_visibility(parents, 6, 10, 0, sees);
  for (int n = 0; n < 6 * 16; n++) {
    f->bytes[n] = sees[n];
    f->mask[n] = sees[n] != 0 ? 0.0f : TREEATTN_MASK_HIDDEN;
  }
  memcpy(f->queries, (const int32_t[]){4, 0, 2}, sizeof f->queries);
  memcpy(f->pages, (const int32_t[]){3, 0, 5, 1}, sizeof f->pages);
}

static void use_mask(fixture *f, treeattn_mask_kind kind) {
  f->request.mask_kind = kind;
  f->request.prefix_len = kind < TREEATTN_MASK_DENSE_F32 ? 10 : TREEATTN_AUTO;
  f->request.mask = kind == TREEATTN_MASK_DENSE_F32 ? (const void *)f->mask : (const void *)f->bytes;
  f->request.mask_bytes = kind == TREEATTN_MASK_DENSE_F32 ? sizeof f->mask : sizeof f->bytes;
  if (kind == TREEATTN_MASK_INTERVALS) {
    f->request.mask = f->intervals;
    f->request.mask_bytes = sizeof f->intervals;
  }
}

static void use_pages(fixture *f) {
  f->args.page_size = 4;
  f->args.num_pages = 6;
  f->request.page_table = f->pages;
  f->request.page_table_len = 4;
}

/* All three ways to make a plan refuse it (the size query at least does not crash), and the fixture is fresh again. */
static void refuse(fixture *f, treeattn_status status, const char *field, const char *a, const char *b) {
  treeattn_plan *plan = (treeattn_plan *)(void *)f;
  CHECK_ERROR(treeattn_plan_create(&f->args, &plan, &error), status, field, a, b);
  CHECK(plan == NULL, "%s was refused but *plan is not NULL", field);
  CHECK(treeattn_plan_create(&f->args, &plan, NULL) == status, "%s: another status without an error to fill", field);
  size_t bytes = 0;
  treeattn_error sizes_error;
  treeattn_status size_status = treeattn_plan_bytes(&f->args, &bytes, &sizes_error);
  CHECK(size_status == status || size_status == TREEATTN_OK, "%s: plan_bytes says \"%s\": %s", field,
        treeattn_status_name(size_status), sizes_error.message);
  if (size_status == TREEATTN_OK) {
    void *memory = malloc(bytes + 1);
    plan = (treeattn_plan *)(void *)f;
    CHECK_ERROR(treeattn_plan_init(&f->args, memory, bytes, &plan, &error), status, field, a, b);
    CHECK(plan == NULL, "%s was refused by plan_init but *plan is not NULL", field);
    free(memory);
  }
  fixture_set(f);
}

static void test_the_fixture_is_valid(void **state) {
  (void)state;
  fixture f;
  for (int kind = TREEATTN_MASK_CHAIN; kind <= TREEATTN_MASK_BITS; kind++) {
    for (int variant = 0; variant < 8; variant++) {
      fixture_set(&f);
      if (kind != TREEATTN_MASK_PARENTS) {
        use_mask(&f, (treeattn_mask_kind)kind);
      }
      if (kind == TREEATTN_MASK_CHAIN) {
        f.request.mask = NULL;
        f.request.mask_bytes = 0;
      }
      if ((variant & 1) != 0) {
        use_pages(&f);
      }
      if ((variant & 2) != 0 && kind != TREEATTN_MASK_CHAIN && kind != TREEATTN_MASK_BITS) {
        f.request.positions = f.positions;
      }
      if ((variant & 4) != 0) {
        f.request.query_nodes = f.queries;
        f.request.num_queries = 3;
      }
      treeattn_plan *plan = NULL;
      CHECK_OK(treeattn_plan_create(&f.args, &plan, &error));
      treeattn_plan_destroy(plan);
    }
  }
}

static void test_numbers_of_the_plan(void **state) {
  (void)state;
  const treeattn_status bad = TREEATTN_ERROR_INVALID_ARGUMENT;
  fixture f;
  fixture_set(&f);
  struct {
    int64_t *field;
    const char *name;
    int64_t values[6];
    int count;
  } const wrong[] = {
      {&f.args.num_requests, "num_requests", {-1, INT64_MIN, INT64_MAX}, 3},
      {&f.args.num_heads, "num_heads", {0, -1, INT64_MIN, 3, 5, INT64_MAX}, 6},
      {&f.args.num_kv_heads, "num_kv_heads", {0, -2, INT64_MIN, 8, 3, INT64_MAX}, 6},
      {&f.args.head_dim, "head_dim", {0, -8, 4, 12, 1032, INT64_MAX}, 6},
      {&f.args.head_dim_v, "head_dim_v", {-8, 4, 12, 1032, INT64_MIN, INT64_MAX}, 6},
      {&f.args.window, "window", {-1, INT64_MIN}, 2},
      {&f.args.page_size, "page_size", {-1, INT64_MIN}, 2},
      {&f.args.kv_capacity, "kv_capacity", {0, 15, -1, INT64_MIN}, 4},
      {&f.args.num_sequences, "num_sequences", {-1, INT64_MIN}, 2},
      {&f.args.num_workers, "num_workers", {-1, 1025, INT64_MIN, INT64_MAX}, 4},
      {&f.args.q_stride_head, "q_stride_head", {-1, INT64_MIN}, 2},
      {&f.args.q_stride_row, "q_stride_row", {-1, INT64_MIN}, 2},
      {&f.args.out_stride_row, "out_stride_row", {-1, INT64_MIN, 1}, 3},
      {&f.args.out_stride_head, "out_stride_head", {-1, INT64_MIN, 1}, 3},
      {&f.args.lse_stride_row, "lse_stride_row", {-1, INT64_MIN, 1}, 3},
      {&f.args.lse_stride_head, "lse_stride_head", {-1, INT64_MIN}, 2},
      {&f.args.k_stride_sequence, "k_stride_sequence", {-1, INT64_MIN}, 2},
      {&f.args.k_stride_head, "k_stride_head", {-1, INT64_MIN}, 2},
      {&f.args.k_stride_slot, "k_stride_slot", {-1, INT64_MIN}, 2},
      {&f.args.v_stride_sequence, "v_stride_sequence", {-1, INT64_MIN}, 2},
      {&f.args.v_stride_head, "v_stride_head", {-1, INT64_MIN}, 2},
      {&f.args.v_stride_slot, "v_stride_slot", {-1, INT64_MIN}, 2},
      {&f.request.num_nodes, "num_nodes", {-1, INT64_MIN, INT64_MAX}, 3},
      {&f.request.prefix_len, "prefix_len", {-2, 11, INT64_MIN, INT64_MAX}, 4},
      {&f.request.kv_seq_len, "kv_seq_len", {-2, 15, 0, INT64_MIN, INT64_MAX}, 5},
      {&f.request.cache_index, "cache_index", {-1, 1, INT64_MIN, INT64_MAX}, 4},
  };
  for (size_t n = 0; n < sizeof wrong / sizeof wrong[0]; n++) {
    for (int v = 0; v < wrong[n].count; v++) {
      char value[32];
      (void)snprintf(value, sizeof value, "%lld", (long long)wrong[n].values[v]);
      *wrong[n].field = wrong[n].values[v];
      refuse(&f, bad, wrong[n].name, value, NULL);
    }
  }
  use_pages(&f);
  f.args.num_pages = -1;
  refuse(&f, bad, "num_pages", "-1", NULL);
}

static void test_types_and_features_of_the_plan(void **state) {
  (void)state;
  const treeattn_status bad = TREEATTN_ERROR_INVALID_ARGUMENT, unsupported = TREEATTN_ERROR_UNSUPPORTED;
  fixture f;
  fixture_set(&f);
  f.args.struct_size = 0;
  refuse(&f, bad, "struct_size", "0", NULL);
  f.args.struct_size = 7;
  refuse(&f, bad, "struct_size", "7", NULL);
  f.args.struct_size += 8;
  char value[32];
  (void)snprintf(value, sizeof value, "%zu", f.args.struct_size);
  refuse(&f, bad, "struct_size", value, NULL);
  f.args.request_bytes = 8;
  refuse(&f, bad, "request_bytes", "8", NULL);
  f.args.requests = NULL;
  refuse(&f, bad, "requests", "NULL", NULL);
  f.args.kv_dtype = (treeattn_dtype)0;
  refuse(&f, bad, "kv_dtype", "0", NULL);
  f.args.kv_dtype = (treeattn_dtype)4;
  refuse(&f, bad, "kv_dtype", "4", NULL);
  f.args.q_dtype = TREEATTN_F16;
  refuse(&f, unsupported, "q_dtype", "f16", NULL);
  f.args.out_dtype = TREEATTN_BF16;
  refuse(&f, unsupported, "out_dtype", "bf16", NULL);
  f.args.q_dtype = (treeattn_dtype)9;
  refuse(&f, bad, "q_dtype", "9", NULL);
  f.args.out_dtype = (treeattn_dtype)-1;
  refuse(&f, bad, "out_dtype", "-1", NULL);
  f.args.mode = (treeattn_mode)2;
  refuse(&f, bad, "mode", "2", NULL);
  f.args.isa = (treeattn_isa)5;
  refuse(&f, bad, "isa", "5", NULL);
  f.args.isa = (treeattn_isa)-1;
  refuse(&f, bad, "isa", "-1", NULL);
  f.request.mask_kind = (treeattn_mask_kind)6;
  refuse(&f, bad, "mask_kind", "6", NULL);
  f.request.mask_kind = (treeattn_mask_kind)-1;
  refuse(&f, bad, "mask_kind", "-1", NULL);
  static const float scales[] = {NAN, INFINITY, -INFINITY};
  for (size_t n = 0; n < 3; n++) {
    f.args.scale = scales[n];
    refuse(&f, bad, "scale", n == 0 ? "nan" : "inf", NULL);
    f.args.softcap = scales[n];
    refuse(&f, bad, "softcap", n == 0 ? "nan" : "inf", NULL);
  }
  f.args.softcap = -0.5f;
  refuse(&f, bad, "softcap", "-0.5", NULL);
  treeattn_plan *plan = NULL;
  size_t bytes;
  CHECK_ERROR(treeattn_plan_create(NULL, &plan, &error), bad, "args", "NULL", NULL);
  CHECK_ERROR(treeattn_plan_create(&f.args, NULL, &error), bad, "plan", "NULL", NULL);
  CHECK_ERROR(treeattn_plan_bytes(NULL, &bytes, &error), bad, "args", "NULL", NULL);
  CHECK_ERROR(treeattn_plan_bytes(&f.args, NULL, &error), bad, "plan_bytes", "NULL", NULL);
  treeattn_plan_destroy(NULL);
}

static void test_lengths_of_a_request(void **state) {
  (void)state;
  const treeattn_status bad = TREEATTN_ERROR_INVALID_ARGUMENT;
  fixture f;
  fixture_set(&f);
  f.request.prefix_len = f.request.kv_seq_len = TREEATTN_AUTO;
  refuse(&f, bad, "prefix_len", "kv_seq_len", NULL);
  for (int kind = TREEATTN_MASK_DENSE_F32; kind <= TREEATTN_MASK_BITS; kind++) {
    use_mask(&f, (treeattn_mask_kind)kind);
    f.request.prefix_len = 9;
    refuse(&f, bad, "prefix_len", "9", "10");
    use_mask(&f, (treeattn_mask_kind)kind);
    f.request.mask_columns = 17;
    refuse(&f, bad, "mask_columns", "17", "16");
    use_mask(&f, (treeattn_mask_kind)kind);
    f.request.mask_columns = -1;
    refuse(&f, bad, "mask_columns", "-1", NULL);
    use_mask(&f, (treeattn_mask_kind)kind);
    f.request.mask_stride = kind == TREEATTN_MASK_BITS ? 1 : 15;
    refuse(&f, bad, "mask_stride", kind == TREEATTN_MASK_BITS ? "1" : "15", kind == TREEATTN_MASK_BITS ? "2" : "16");
    use_mask(&f, (treeattn_mask_kind)kind);
    f.request.mask_stride = -1;
    refuse(&f, bad, "mask_stride", "-1", NULL);
    use_mask(&f, (treeattn_mask_kind)kind);
    f.request.mask_stride = INT64_MAX;
    refuse(&f, TREEATTN_ERROR_OVERFLOW, "mask_stride", "9223372036854775807", NULL);
    use_mask(&f, (treeattn_mask_kind)kind);
    f.request.mask_stride = INT64_MAX / 64;
    refuse(&f, TREEATTN_ERROR_BUFFER_TOO_SMALL, "mask_bytes", kind == TREEATTN_MASK_DENSE_F32 ? "384" : "96", NULL);
  }
  f.request.query_nodes = f.queries;
  f.request.num_queries = -1;
  refuse(&f, bad, "num_queries", "-1", NULL);
  f.request.query_nodes = f.queries;
  f.request.num_queries = 7;
  refuse(&f, bad, "num_queries", "7", "6");
  f.request.query_nodes = f.queries;
  f.request.num_queries = 3;
  f.queries[1] = 6;
  refuse(&f, bad, "query_nodes[1]", "6", NULL);
  f.request.query_nodes = f.queries;
  f.request.num_queries = 3;
  f.queries[2] = -1;
  refuse(&f, bad, "query_nodes[2]", "-1", NULL);
  f.request.query_nodes = f.queries;
  f.request.num_queries = 3;
  f.queries[2] = 4;
  refuse(&f, bad, "query_nodes[2]", "4", NULL);
  use_pages(&f);
  f.request.page_table_len = 3;
  refuse(&f, bad, "page_table_len", "3", "4");
  use_pages(&f);
  f.request.page_table = NULL;
  refuse(&f, bad, "page_table", "NULL", NULL);
  static const int32_t pages[] = {6, -1, INT32_MAX, INT32_MIN};
  for (size_t n = 0; n < 4; n++) {
    char value[32];
    use_pages(&f);
    f.pages[3] = pages[n];
    (void)snprintf(value, sizeof value, "%d", (int)pages[n]);
    refuse(&f, bad, "page_table[3]", value, "6");
  }
}

/* Buffers behind masks: one byte less than promised, and guard pages show that nothing beyond is read. */
static void test_small_masks(void **state) {
  (void)state;
  fixture f;
  fixture_set(&f);
  for (int kind = TREEATTN_MASK_PARENTS; kind <= TREEATTN_MASK_BITS; kind++) {
    for (int stride = 0; stride <= 32; stride += 32) {
      if (kind != TREEATTN_MASK_PARENTS) {
        use_mask(&f, (treeattn_mask_kind)kind);
      }
      size_t row = kind == TREEATTN_MASK_BITS ? 2 : 16, element = kind == TREEATTN_MASK_DENSE_F32 ? 4 : 1;
      size_t need = (5 * (stride == 0 ? row : 32) + row) * element;
      need = kind == TREEATTN_MASK_PARENTS ? 24 : (kind == TREEATTN_MASK_INTERVALS ? 48 : need);
      char have[32], text[32];
      guarded mask = guarded_new(need, false);
      memset(mask.data, 0, need);
      memcpy(mask.data, f.request.mask, need < f.request.mask_bytes ? need : f.request.mask_bytes);
      f.request.mask = mask.data;
      f.request.mask_stride = kind >= TREEATTN_MASK_DENSE_F32 ? stride : 0;
      f.request.mask_bytes = need;
      treeattn_plan *plan = NULL;
      CHECK_OK(treeattn_plan_create(&f.args, &plan, &error));
      treeattn_plan_destroy(plan);
      f.request.mask_bytes = need - 1;
      (void)snprintf(have, sizeof have, "%zu", need - 1);
      (void)snprintf(text, sizeof text, "%zu", need);
      refuse(&f, TREEATTN_ERROR_BUFFER_TOO_SMALL, "mask_bytes", have, text);
      guarded_free(&mask);
    }
  }
  f.request.mask = NULL;
  refuse(&f, TREEATTN_ERROR_INVALID_ARGUMENT, "mask", "NULL", NULL);
}

static void test_malformed_trees(void **state) {
  (void)state;
  static const struct {
    int node;
    int32_t parent;
  } wrong[] = {{0, 0}, {0, 1}, {0, 5},         {0, -2},        {3, 3},  {3, 4},
               {3, 6}, {5, 6}, {5, INT32_MAX}, {5, INT32_MIN}, {2, -2}, {1, 2}};
  fixture f;
  fixture_set(&f);
  for (size_t n = 0; n < sizeof wrong / sizeof wrong[0]; n++) {
    char name[32], value[32];
    f.parents[wrong[n].node] = wrong[n].parent;
    (void)snprintf(name, sizeof name, "parents[%d]", wrong[n].node);
    (void)snprintf(value, sizeof value, "%d", (int)wrong[n].parent);
    refuse(&f, TREEATTN_ERROR_INVALID_TREE, name, value, NULL);
  }
  f.parents[1] = 2; /* a cycle of two */
  f.parents[2] = 1;
  refuse(&f, TREEATTN_ERROR_INVALID_TREE, "parents[1]", "2", NULL);
  for (int node = 0; node < 6; node++) {
    char name[32], value[32];
    f.request.positions = f.positions;
    f.positions[node] += node % 2 == 0 ? 1 : -1;
    (void)snprintf(name, sizeof name, "positions[%d]", node);
    (void)snprintf(value, sizeof value, "%d", (int)f.positions[node]);
    refuse(&f, TREEATTN_ERROR_INVALID_TREE, name, value, NULL);
  }
  for (int kind = TREEATTN_MASK_DENSE_F32; kind <= TREEATTN_MASK_DENSE_BOOL; kind++) {
    static const int32_t outside[] = {9, 16, INT32_MIN, INT32_MAX};
    for (size_t n = 0; n < 4; n++) {
      char value[32];
      use_mask(&f, (treeattn_mask_kind)kind);
      f.request.positions = f.positions;
      f.positions[4] = outside[n];
      (void)snprintf(value, sizeof value, "%d", (int)outside[n]);
      refuse(&f, TREEATTN_ERROR_INVALID_TREE, "positions[4]", value, NULL);
    }
    use_mask(&f, (treeattn_mask_kind)kind);
    f.request.positions = f.positions;
    f.positions[3] = f.positions[1]; /* node 3 sees node 1: the same position twice on one path */
    refuse(&f, TREEATTN_ERROR_INVALID_TREE, "positions", "11", NULL);
  }
}

static void test_malformed_intervals(void **state) {
  (void)state;
  static const struct {
    int node;
    int32_t begin, end;
  } wrong[] = {
      {0, 0, 0},                 /* empty: does not hold itself */
      {3, 2, 1},                 /* ends before it begins */
      {3, -1, 1},                /* negative */
      {3, INT32_MIN, INT32_MAX}, /* both ends out of range */
      {2, 1, 4},                 /* the begin of node 1 */
      {1, 1, 7},                 /* reaches beyond the tree */
      {1, 1, 5},                 /* crosses node 2 */
      {5, INT32_MAX, INT32_MIN},
  };
  fixture f;
  fixture_set(&f);
  for (size_t n = 0; n < sizeof wrong / sizeof wrong[0]; n++) {
    use_mask(&f, TREEATTN_MASK_INTERVALS);
    f.intervals[2 * wrong[n].node] = wrong[n].begin;
    f.intervals[2 * wrong[n].node + 1] = wrong[n].end;
    refuse(&f, TREEATTN_ERROR_INVALID_TREE, "intervals[", NULL, NULL);
  }
  use_mask(&f, TREEATTN_MASK_INTERVALS); /* an ancestor with the larger index */
  memcpy(f.intervals, (const int32_t[]){1, 2, 0, 2, 2, 3, 3, 4, 4, 5, 5, 6}, sizeof f.intervals);
  refuse(&f, TREEATTN_ERROR_INVALID_TREE, "intervals[", NULL, NULL);
}

/* Random rubbish for trees must end in bounded time, with an error or a plan. */
static void test_random_trees_end(void **state) {
  (void)state;
  clock_t start = clock();
  for (int n = 0; n < trial_count(300, 40); n++) {
    rng r;
    (void)trial_begin(&r, 91, n);
    int nodes = rng_range(&r, 1, 3000);
    int32_t *data = calloc((size_t)nodes * 2, sizeof *data);
    bool intervals = rng_chance(&r, 2);
    for (int i = 0; i < nodes * 2; i++) {
      data[i] = rng_chance(&r, 50) ? (int32_t)rng_next(&r) : rng_range(&r, -1, nodes);
    }
    problem p = problem_new(1, 1, 8, 0, TREEATTN_F32);
    treeattn_request request = TREEATTN_REQUEST_INIT;
    request.num_nodes = nodes;
    request.prefix_len = 3;
    request.mask_kind = intervals ? TREEATTN_MASK_INTERVALS : TREEATTN_MASK_PARENTS;
    request.mask = data;
    request.mask_bytes = (size_t)nodes * (intervals ? 8 : 4);
    treeattn_plan_args args = problem_args(&p);
    args.requests = &request;
    args.num_requests = 1;
    args.kv_capacity = nodes + 3;
    treeattn_plan *plan = NULL;
    treeattn_status status = treeattn_plan_create(&args, &plan, NULL);
    CHECK(status == TREEATTN_OK || status == TREEATTN_ERROR_INVALID_TREE, "random parents: %s",
          treeattn_status_name(status));
    treeattn_plan_destroy(plan);
    free(data);
  }
  double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
  CHECK(seconds < 60, "malformed trees took %g s", seconds);
}

/* Exactly the bytes that the query says are enough, one less is refused, and nothing else is needed or touched. */
static void test_memory_of_a_plan(void **state) {
  (void)state;
  for (int n = 0; n < trial_count(60, 10); n++) {
    rng r;
    (void)trial_begin(&r, 92, n);
    problem p = problem_new(4, 2, 32, 0, TREEATTN_F16);
    int requests = rng_range(&r, 0, 4);
    for (int k = 0; k < requests; k++) {
      (void)problem_add_tree(&p, rng_below(&r, 900), rng_below(&r, 60), (tree_shape)rng_below(&r, NUM_TREE_SHAPES),
                             1.0f, &r);
    }
    p.window = rng_chance(&r, 3) ? 50 : 0;
    thread_team team;
    rng order;
    layout how = layout_random(&r, &team, &order);
    harness h;
    harness_build(&h, &p, &how);
    harness_run(&h);
    size_t bytes = 0, count = (size_t)h.rows * 4;
    float *expected = calloc(count * 32 + 1, sizeof *expected), *out = calloc(count * 32 + 1, sizeof *out);
    harness_read(&h, expected, NULL);
    CHECK_OK(treeattn_plan_bytes(&h.args, &bytes, &error));
    guarded memory = guarded_new(bytes, rng_chance(&r, 2));
    treeattn_plan *kept = h.plan, *plan = kept;
    char have[32], need[32];
    (void)snprintf(have, sizeof have, "%zu", bytes - 1);
    (void)snprintf(need, sizeof need, "%zu", bytes);
    CHECK_ERROR(treeattn_plan_init(&h.args, memory.data, bytes - 1, &plan, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL,
                "memory_bytes", have, need);
    CHECK(plan == NULL, "a plan in too little memory is not NULL");
    CHECK_ERROR(treeattn_plan_init(&h.args, NULL, bytes, &plan, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "memory",
                NULL, NULL);
    CHECK_OK(treeattn_plan_init(&h.args, memory.data, bytes, &plan, &error));
    CHECK(guarded_intact(&memory), "plan_init wrote outside its memory");
    /* What the header lets go may go: all arrays but page tables. */
    for (int k = 0; k < requests; k++) {
      guarded_free(&h.masks[k]);
    }
    treeattn_request *copy = h.requests;
    h.requests = calloc((size_t)requests + 1, sizeof *copy);
    memcpy(h.requests, copy, (size_t)requests * sizeof *copy);
    memset(copy, 0xee, (size_t)requests * sizeof *copy);
    free(copy);
    h.plan = plan;
    harness_run(&h);
    harness_read(&h, out, NULL);
    CHECK_SAME_BITS("a plan in the caller's memory", out, expected, (int64_t)count, 32);
    h.plan = kept;
    harness_free(&h);
    guarded_free(&memory);
    free(expected);
    free(out);
    problem_free(&p);
  }
}

static void test_info(void **state) {
  (void)state;
  fixture f;
  fixture_set(&f);
  treeattn_plan *plan = NULL;
  CHECK_OK(treeattn_plan_create(&f.args, &plan, &error));
  treeattn_plan_info info = plan_info(plan);
  CHECK(info.q_bytes == 4 * 6 * 64 * 4 && info.out_bytes == info.q_bytes && info.lse_bytes == 4 * 6 * 4,
        "q %zu, out %zu, lse %zu", info.q_bytes, info.out_bytes, info.lse_bytes);
  CHECK(info.k_bytes == 2 * 16 * 64 * 2 && info.v_bytes == info.k_bytes, "k %zu, v %zu", info.k_bytes, info.v_bytes);
  CHECK(info.num_query_rows == 6 && info.num_workers == 1 && info.mode == TREEATTN_MODE_EXACT,
        "rows %lld, workers %lld", (long long)info.num_query_rows, (long long)info.num_workers);
  CHECK(info.scratch_bytes >= info.worker_bytes + info.partial_bytes, "scratch %zu", info.scratch_bytes);
  info.struct_size = 3;
  CHECK_ERROR(treeattn_plan_get_info(plan, &info, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "struct_size", "3", NULL);
  CHECK_ERROR(treeattn_plan_get_info(plan, NULL, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "info", NULL, NULL);
  CHECK_ERROR(treeattn_plan_get_info(NULL, &info, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "plan", NULL, NULL);
  int32_t positions[6];
  CHECK_ERROR(treeattn_plan_get_positions(NULL, positions, 6, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "plan", NULL,
              NULL);
  CHECK_ERROR(treeattn_plan_get_positions(plan, NULL, 6, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "positions", NULL,
              NULL);
  treeattn_plan_destroy(plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_fixture_is_valid),
      cmocka_unit_test(test_numbers_of_the_plan),
      cmocka_unit_test(test_types_and_features_of_the_plan),
      cmocka_unit_test(test_lengths_of_a_request),
      cmocka_unit_test(test_small_masks),
      cmocka_unit_test(test_malformed_trees),
      cmocka_unit_test(test_malformed_intervals),
      cmocka_unit_test(test_random_trees_end),
      cmocka_unit_test(test_memory_of_a_plan),
      cmocka_unit_test(test_info),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
