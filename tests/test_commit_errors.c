/* SPDX-License-Identifier: Apache-2.0 */
/* Compaction refuses what is wrong, names it, and leaves every byte alone. */
#include <stdio.h>
#include <string.h>

#include <treeattn/commit.h>
#include <treeattn/tree.h>

#include "support/check.h"
#include "support/threads.h"

#define INVALID TREEATTN_ERROR_INVALID_ARGUMENT

static const int32_t good_path[] = {0, 2, 5};
static const int32_t table_a[] = {3, 1, 4};
static const int32_t table_b[] = {0, 5, 2};

/* Two good requests, in sequences of 10 slots or in 6 pages of 4. */
typedef struct fixture {
  treeattn_commit_request requests[2];
  treeattn_commit_args args;
} fixture;

static fixture good(bool paged) {
  fixture f;
  f.requests[0] = (treeattn_commit_request){4, 6, good_path, 3, 0, table_a, 3};
  f.requests[1] = (treeattn_commit_request){3, 6, good_path, 2, 1, table_b, 3};
  f.args = (treeattn_commit_args)TREEATTN_COMMIT_ARGS_INIT;
  f.args.num_requests = 2;
  f.args.kv_capacity = 10;
  if (paged) {
    f.args.page_size = 4;
    f.args.num_pages = 6;
  }
  return f;
}

/* The plan is refused, the same way by whichever function finds it first, and *plan is NULL. */
static void refuse(fixture f, treeattn_status status, const char *word_a, const char *word_b, const char *word_c) {
  _Alignas(16) unsigned char memory[4096];
  treeattn_commit_plan *plan = (treeattn_commit_plan *)(void *)memory;
  if (f.args.requests == NULL) {
    f.args.requests = f.requests;
  }
  CHECK_ERROR(treeattn_commit_plan_init(&f.args, memory, sizeof memory, &plan, &error), status, word_a, word_b, word_c);
  assert_null(plan);
  plan = (treeattn_commit_plan *)(void *)memory;
  CHECK_ERROR(treeattn_commit_plan_create(&f.args, &plan, &error), status, word_a, word_b, word_c);
  assert_null(plan);
  plan = (treeattn_commit_plan *)(void *)memory;
  assert_int_equal(treeattn_commit_plan_init(&f.args, memory, sizeof memory, &plan, NULL), status);
}

static void accept(fixture f) {
  treeattn_commit_plan *plan = NULL;
  f.args.requests = f.requests;
  CHECK_OK(treeattn_commit_plan_create(&f.args, &plan, &error));
  treeattn_commit_plan_destroy(plan);
}

static void test_good_arguments_are_accepted(void **state) {
  (void)state;
  accept(good(false));
  accept(good(true));
}

static void test_paths(void **state) {
  (void)state;
  static const int32_t low[] = {0, -1, 2}, high[] = {0, 1, 6}, twice[] = {2, 0, 2}, far[] = {INT32_MAX, 0, 1};
  fixture f = good(false);
  f.requests[1].path = low;
  refuse(f, INVALID, "requests[1].path[1] is -1", "num_nodes (6)", NULL);
  f.requests[1].path = high;
  f.requests[1].path_len = 3;
  refuse(f, INVALID, "requests[1].path[2] is 6", "num_nodes (6)", NULL);
  f.requests[1].path = twice;
  refuse(f, INVALID, "requests[1].path[2] is 2", "path[0]", NULL);
  f.requests[1].path = far;
  refuse(f, INVALID, "requests[1].path[0] is 2147483647", NULL, NULL);
  f.requests[1].path = NULL;
  refuse(f, INVALID, "requests[1].path is NULL", "3", NULL);
  f.requests[1].path_len = 7;
  refuse(f, INVALID, "requests[1].path_len is 7", "num_nodes (6)", NULL);
  f.requests[1].path_len = -1;
  refuse(f, INVALID, "requests[1].path_len is -1", NULL, NULL);
  f.requests[1].path_len = 0;
  accept(f);
}

static void test_sizes(void **state) {
  (void)state;
  fixture f = good(false);
  f.requests[0].prefix_len = -1;
  refuse(f, INVALID, "requests[0].prefix_len is -1", NULL, NULL);
  f.requests[0].prefix_len = INT64_MAX - 5;
  refuse(f, TREEATTN_ERROR_OVERFLOW, "requests[0].prefix_len is 9223372036854775802", "6 nodes", NULL);
  f.requests[0].prefix_len = 5;
  refuse(f, INVALID, "requests[0] has 11 slots", "prefix_len 5", "kv_capacity is 10");
  f = good(false);
  f.requests[0].num_nodes = -1;
  refuse(f, INVALID, "requests[0].num_nodes is -1", NULL, NULL);
  f.requests[0].num_nodes = TREEATTN_TREE_MAX_NODES + 1;
  refuse(f, INVALID, "requests[0].num_nodes is 1048577", "1048576", NULL);
  f = good(false);
  f.requests[1].cache_index = 2;
  refuse(f, INVALID, "requests[1].cache_index is 2", "num_sequences (2)", NULL);
  f.requests[1].cache_index = -1;
  refuse(f, INVALID, "requests[1].cache_index is -1", NULL, NULL);
  f = good(false);
  f.args.kv_capacity = -3;
  refuse(f, INVALID, "kv_capacity is -3", NULL, NULL);
  f = good(false);
  f.args.num_sequences = -1;
  refuse(f, INVALID, "num_sequences is -1", NULL, NULL);
  f = good(false);
  f.args.page_size = -4;
  refuse(f, INVALID, "page_size is -4", NULL, NULL);
  f = good(false);
  f.args.num_requests = -2;
  refuse(f, INVALID, "num_requests is -2", NULL, NULL);
  /* Requests without nodes need no cache. */
  f = good(false);
  f.requests[0] = (treeattn_commit_request){1000, 0, NULL, 0, 77, NULL, 0};
  accept(f);
}

static void test_pages(void **state) {
  (void)state;
  static const int32_t low[] = {3, -1, 4}, high[] = {3, 1, 6}, unused[] = {99, 1, 4};
  fixture f = good(true);
  f.requests[0].page_table = low;
  refuse(f, INVALID, "requests[0].page_table[1] is -1", "num_pages (6)", NULL);
  f.requests[0].page_table = high;
  refuse(f, INVALID, "requests[0].page_table[2] is 6", "num_pages (6)", NULL);
  f.requests[0].page_table = NULL;
  refuse(f, INVALID, "requests[0].page_table is NULL", "page_size is 4", NULL);
  f.requests[0].page_table_len = 2;
  refuse(f, INVALID, "requests[0].page_table_len is 2", "10 slots", "need 3");
  f = good(true);
  f.args.num_pages = -1;
  refuse(f, INVALID, "num_pages is -1", NULL, NULL);
  /* Entries before the prefix's end are none of our business. */
  f = good(true);
  f.requests[0].page_table = unused;
  accept(f);
}

static void test_shared_blocks(void **state) {
  (void)state;
  static const int32_t twice[] = {3, 1, 1}, meets[] = {0, 5, 4}, prefix_only[] = {3, 5, 2};
  static const int32_t prefix_twice[] = {1, 1, 4};
  fixture f = good(true);
  f.requests[0].page_table = twice;
  refuse(f, INVALID, "requests[0].page_table holds page 1 twice", NULL, NULL);
  f = good(true);
  f.requests[1].page_table = meets;
  refuse(f, INVALID, "page 4 holds nodes of requests[0] and requests[1]", NULL, NULL);
  f.requests[0].path_len = 1; /* node 0 stays where it is, but request 1 still moves */
  f.requests[1].path = &good_path[1];
  f.requests[1].path_len = 1;
  refuse(f, INVALID, "page 4 holds nodes of requests[0] and requests[1]", NULL, NULL);
  f.requests[1].path_len = 0;
  accept(f);
  f = good(true);
  f.requests[1].prefix_len = 4; /* page 3 holds prefixes only, and they may be one */
  f.requests[1].page_table = prefix_only;
  accept(f);
  /* A page that holds both the end of the prefix and nodes of the same request further on. */
  f = good(true);
  f.requests[0].prefix_len = 2;
  f.requests[0].page_table = prefix_twice;
  refuse(f, INVALID, "requests[0].page_table holds page 1 twice", NULL, NULL);
  f = good(false);
  f.requests[1].cache_index = 0;
  refuse(f, INVALID, "cache_index 0 holds nodes of requests[0] and requests[1]", NULL, NULL);
}

/* The search for blocks in common is more than a look at neighbours. */
static void test_shared_blocks_among_many(void **state) {
  (void)state;
  static const int32_t path[] = {1};
  enum { MOST = 24 };
  treeattn_commit_request requests[MOST];
  treeattn_commit_args args = TREEATTN_COMMIT_ARGS_INIT;
  const int count = trial_count(3000, 600);
  int refused = 0;
  for (int index = 0; index < count; index++) {
    rng r;
    (void)trial_begin(&r, 0x73686172, index);
    const int num_requests = rng_range(&r, 2, MOST);
    args.num_requests = num_requests;
    args.requests = requests;
    args.kv_capacity = 8;
    args.num_sequences = PICK(&r, ((const int[]){30, 300}));
    bool clash = false;
    for (int n = 0; n < num_requests; n++) {
      requests[n] = (treeattn_commit_request)TREEATTN_COMMIT_REQUEST_INIT;
      requests[n].num_nodes = rng_below(&r, 3);
      requests[n].path = path;
      requests[n].path_len = requests[n].num_nodes == 2 && rng_chance(&r, 3) ? 1 : 0;
      requests[n].cache_index = rng_below(&r, (int)args.num_sequences);
      for (int other = 0; other < n; other++) {
        const treeattn_commit_request *a = &requests[n];
        const treeattn_commit_request *b = &requests[other];
        clash = clash || (a->cache_index == b->cache_index && a->path_len + b->path_len > 0 && a->num_nodes > 0 &&
                          b->num_nodes > 0);
      }
    }
    treeattn_commit_plan *plan = NULL;
    const treeattn_status status = treeattn_commit_plan_create(&args, &plan, NULL);
    CHECK(status == (clash ? INVALID : TREEATTN_OK), "status is %s, the batch %s", treeattn_status_name(status),
          clash ? "clashes" : "does not clash");
    refused += clash ? 1 : 0;
    treeattn_commit_plan_destroy(plan);
  }
  CHECK(count == 1 || (refused > 0 && refused < count), "%d of %d refused: no test of both", refused, count);
}

static void test_memory_and_pointers(void **state) {
  (void)state;
  fixture f = good(true);
  unsigned char memory[4096];
  size_t bytes = 0;
  treeattn_commit_plan *plan = NULL;
  f.args.requests = f.requests;
  CHECK_OK(treeattn_commit_plan_bytes(&f.args, &bytes, &error));
  assert_true(bytes > 16 && bytes <= sizeof memory);
  char words[40];
  (void)snprintf(words, sizeof words, "needs %zu", bytes);
  CHECK_ERROR(treeattn_commit_plan_init(&f.args, memory, bytes - 32, &plan, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL,
              "memory_bytes", words, NULL);
  CHECK_ERROR(treeattn_commit_plan_init(&f.args, memory, 0, &plan, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL,
              "memory_bytes is 0", words, NULL);
  CHECK_ERROR(treeattn_commit_plan_init(&f.args, NULL, bytes, &plan, &error), INVALID, "memory is NULL", NULL, NULL);
  CHECK_ERROR(treeattn_commit_plan_init(&f.args, memory, bytes, NULL, &error), INVALID, "plan is NULL", NULL, NULL);
  CHECK_ERROR(treeattn_commit_plan_create(&f.args, NULL, &error), INVALID, "plan is NULL", NULL, NULL);
  CHECK_ERROR(treeattn_commit_plan_init(NULL, memory, bytes, &plan, &error), INVALID, "args is NULL", NULL, NULL);
  CHECK_ERROR(treeattn_commit_plan_bytes(&f.args, NULL, &error), INVALID, "plan_bytes is NULL", NULL, NULL);
  f.args.requests = NULL;
  CHECK_ERROR(treeattn_commit_plan_bytes(&f.args, &bytes, &error), INVALID, "requests is NULL", "2", NULL);

  f = good(true);
  f.args.requests = f.requests;
  CHECK_OK(treeattn_commit_plan_create(&f.args, &plan, &error));
  treeattn_commit_plan_info info = {sizeof info - 1, 5, 5, 5};
  CHECK_ERROR(treeattn_commit_plan_get_info(plan, &info, &error), INVALID, "info.struct_size", NULL, NULL);
  CHECK_ERROR(treeattn_commit_plan_get_info(NULL, &info, &error), INVALID, "plan is NULL", NULL, NULL);
  CHECK_ERROR(treeattn_commit_plan_get_info(plan, NULL, &error), INVALID, "info is NULL", NULL, NULL);
  assert_int_equal(info.num_moves, 5);
  treeattn_commit_move moves[8];
  memset(moves, 0x55, sizeof moves);
  CHECK_ERROR(treeattn_commit_plan_get_moves(plan, moves, 1, &error), TREEATTN_ERROR_BUFFER_TOO_SMALL, "capacity is 1",
              "3 moves", NULL);
  CHECK_ERROR(treeattn_commit_plan_get_moves(plan, NULL, 8, &error), INVALID, "moves is NULL", "3", NULL);
  CHECK_ERROR(treeattn_commit_plan_get_moves(NULL, moves, 8, &error), INVALID, "plan is NULL", NULL, NULL);
  assert_int_equal(moves[0].num_rows, 0x5555555555555555);
  treeattn_commit_plan_destroy(plan);
}

/* Callers built against a later header: what they leave at zero is fine, what they set is not known here. */
static void test_struct_sizes(void **state) {
  (void)state;
  struct {
    treeattn_commit_request known;
    int64_t later;
  } requests[2];
  struct {
    treeattn_commit_args known;
    int64_t later;
  } args;
  memset(requests, 0, sizeof requests);
  memset(&args, 0, sizeof args);
  fixture f = good(false);
  for (int n = 0; n < 2; n++) {
    requests[n].known = f.requests[n];
  }
  args.known = f.args;
  args.known.struct_size = sizeof args;
  args.known.requests = &requests[0].known;
  args.known.request_bytes = sizeof requests[0];
  size_t bytes = 0;
  CHECK_OK(treeattn_commit_plan_bytes(&args.known, &bytes, &error));
  requests[1].later = 1;
  CHECK_ERROR(treeattn_commit_plan_bytes(&args.known, &bytes, &error), TREEATTN_ERROR_UNSUPPORTED, "request_bytes",
              NULL, NULL);
  requests[1].later = 0;
  args.later = 1;
  CHECK_ERROR(treeattn_commit_plan_bytes(&args.known, &bytes, &error), TREEATTN_ERROR_UNSUPPORTED, "struct_size", NULL,
              NULL);
  f.args.struct_size = 8;
  refuse(f, INVALID, "args.struct_size is 8", NULL, NULL);
  f = good(false);
  f.args.request_bytes = 8;
  refuse(f, INVALID, "request_bytes is 8", NULL, NULL);
  f.args.request_bytes = 0;
  accept(f);
}

enum { BYTES = 2 * 10 * 3 * 2 };

typedef struct run_fixture {
  treeattn_commit_plan *plan;
  unsigned char data[2][BYTES]; /* [2 sequences][3 heads][10 slots][2] */
  treeattn_commit_tensor tensors[2];
  treeattn_commit_run_args run;
} run_fixture;

static void run_reset(run_fixture *f) {
  for (int t = 0; t < 2; t++) {
    for (size_t b = 0; b < BYTES; b++) {
      f->data[t][b] = (unsigned char)(b + 1);
    }
    f->tensors[t] = (treeattn_commit_tensor){f->data[t], BYTES, 2, 3, 0, 0, 0};
  }
  f->run = (treeattn_commit_run_args)TREEATTN_COMMIT_RUN_ARGS_INIT;
  f->run.num_tensors = 2;
  f->run.tensors = f->tensors;
}

/* Nothing may have moved, not even in the tensors before the faulty one. */
static void run_refuse(run_fixture *f, treeattn_status status, const char *word_a, const char *word_b) {
  CHECK_ERROR(treeattn_commit_apply(f->plan, &f->run, &error), status, word_a, word_b, NULL);
  assert_int_equal(treeattn_commit_apply(f->plan, &f->run, NULL), status);
  for (int t = 0; t < 2; t++) {
    for (size_t b = 0; b < BYTES; b++) {
      CHECK(f->data[t][b] == (unsigned char)(b + 1), "tensor %d byte %zu was written", t, b);
    }
  }
  run_reset(f);
}

static void test_tensors(void **state) {
  (void)state;
  fixture plan_fixture = good(false);
  run_fixture f;
  plan_fixture.args.requests = plan_fixture.requests;
  CHECK_OK(treeattn_commit_plan_create(&plan_fixture.args, &f.plan, &error));
  run_reset(&f);
  f.tensors[1].bytes--;
  run_refuse(&f, TREEATTN_ERROR_BUFFER_TOO_SMALL, "tensors[1].bytes is 119", "needs 120");
  f.tensors[1].data = NULL;
  run_refuse(&f, INVALID, "tensors[1].data is NULL", NULL);
  f.tensors[1].data = f.data[0];
  run_refuse(&f, INVALID, "tensors[1].data is that of tensors[0]", NULL);
  f.tensors[1].row_bytes = 0;
  run_refuse(&f, INVALID, "tensors[1].row_bytes is 0", NULL);
  f.tensors[1].row_bytes = SIZE_MAX;
  run_refuse(&f, TREEATTN_ERROR_OVERFLOW, "tensors[1]", "overflows");
  f.tensors[1].num_heads = 0;
  run_refuse(&f, INVALID, "tensors[1].num_heads is 0", NULL);
  f.tensors[1].num_heads = INT64_MAX;
  run_refuse(&f, TREEATTN_ERROR_OVERFLOW, "tensors[1]", "overflows");
  f.tensors[1].stride_block_bytes = -60;
  run_refuse(&f, INVALID, "tensors[1].stride_block_bytes is -60", NULL);
  f.tensors[1].stride_head_bytes = -1;
  run_refuse(&f, INVALID, "tensors[1].stride_head_bytes is -1", NULL);
  f.tensors[1].stride_row_bytes = -1;
  run_refuse(&f, INVALID, "tensors[1].stride_row_bytes is -1", NULL);
  f.tensors[1].stride_row_bytes = 1;
  run_refuse(&f, INVALID, "tensors[1].stride_row_bytes is 1: rows overlap", "at least 2");
  f.tensors[1].stride_head_bytes = 19;
  run_refuse(&f, INVALID, "tensors[1].stride_head_bytes is 19: rows overlap", "at least 20");
  f.tensors[1].stride_block_bytes = 59;
  run_refuse(&f, INVALID, "tensors[1].stride_block_bytes is 59: rows overlap", "at least 60");
  f.tensors[1].stride_block_bytes = INT64_MAX;
  run_refuse(&f, TREEATTN_ERROR_BUFFER_TOO_SMALL, "tensors[1].bytes is 120", NULL);
  f.tensors[1].stride_head_bytes = INT64_MAX;
  f.tensors[1].stride_block_bytes = 60;
  run_refuse(&f, TREEATTN_ERROR_OVERFLOW, "tensors[1].stride_head_bytes", "overflows");
  f.run.num_tensors = -1;
  run_refuse(&f, INVALID, "num_tensors is -1", NULL);
  f.run.tensors = NULL;
  run_refuse(&f, INVALID, "num_tensors is 2", "tensors is NULL");
  f.run.tensor_bytes = 8;
  run_refuse(&f, INVALID, "tensor_bytes is 8", NULL);
  f.run.struct_size = 8;
  run_refuse(&f, INVALID, "run.struct_size is 8", NULL);
  f.run.executor = failing_executor();
  run_refuse(&f, TREEATTN_ERROR_BACKEND, "executor.parallel_for returned 7", NULL);
  int64_t num_tasks = 77;
  CHECK_ERROR(treeattn_commit_check(f.plan, &f.run, NULL, &error), INVALID, "num_tasks is NULL", NULL, NULL);
  CHECK_ERROR(treeattn_commit_check(NULL, &f.run, &num_tasks, &error), INVALID, "plan is NULL", NULL, NULL);
  CHECK_ERROR(treeattn_commit_check(f.plan, NULL, &num_tasks, &error), INVALID, "run is NULL", NULL, NULL);
  CHECK_ERROR(treeattn_commit_apply(f.plan, NULL, &error), INVALID, "run is NULL", NULL, NULL);
  assert_int_equal(num_tasks, 77);
  treeattn_commit_plan_destroy(f.plan);
}

static void test_remap_and_rewind(void **state) {
  (void)state;
  static const int32_t twice[] = {4, 1, 4}, high[] = {0, 6};
  int32_t remapped[6];
  int32_t scratch[6];
  memset(remapped, 0x55, sizeof remapped);
  CHECK_ERROR(treeattn_commit_remap(6, twice, 3, NULL, remapped, scratch, &error), INVALID, "path[2] is 4", "path[0]",
              NULL);
  CHECK_ERROR(treeattn_commit_remap(6, high, 2, NULL, remapped, scratch, &error), INVALID, "path[1] is 6",
              "num_nodes (6)", NULL);
  CHECK_ERROR(treeattn_commit_remap(6, high, 7, NULL, remapped, scratch, &error), INVALID, "path_len is 7",
              "num_nodes (6)", NULL);
  CHECK_ERROR(treeattn_commit_remap(-6, high, 2, NULL, remapped, scratch, &error), INVALID, "num_nodes is -6", NULL,
              NULL);
  CHECK_ERROR(treeattn_commit_remap(6, NULL, 2, NULL, remapped, scratch, &error), INVALID, "path is NULL", "2", NULL);
  CHECK_ERROR(treeattn_commit_remap(6, high, 2, NULL, NULL, scratch, &error), INVALID, "remapped is NULL", NULL, NULL);
  CHECK_ERROR(treeattn_commit_remap(6, high, 2, NULL, remapped, NULL, &error), INVALID, "scratch is NULL", NULL, NULL);
  for (int i = 0; i < 6; i++) {
    assert_int_equal(remapped[i], 0x55555555);
  }
  treeattn_commit_rewound rewound = {7, 8, 9};
  CHECK_ERROR(treeattn_commit_rewind(10, 11, 4, &rewound, &error), INVALID, "num_tokens is 11", "kv_seq_len (10)",
              NULL);
  CHECK_ERROR(treeattn_commit_rewind(10, -1, 4, &rewound, &error), INVALID, "num_tokens is -1", NULL, NULL);
  CHECK_ERROR(treeattn_commit_rewind(-10, 0, 4, &rewound, &error), INVALID, "kv_seq_len is -10", NULL, NULL);
  CHECK_ERROR(treeattn_commit_rewind(10, 1, -4, &rewound, &error), INVALID, "page_size is -4", NULL, NULL);
  CHECK_ERROR(treeattn_commit_rewind(10, 1, 4, NULL, &error), INVALID, "rewound is NULL", NULL, NULL);
  assert_true(rewound.kv_seq_len == 7 && rewound.num_pages == 8 && rewound.num_freed_pages == 9);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_good_arguments_are_accepted),
      cmocka_unit_test(test_paths),
      cmocka_unit_test(test_sizes),
      cmocka_unit_test(test_pages),
      cmocka_unit_test(test_shared_blocks),
      cmocka_unit_test(test_shared_blocks_among_many),
      cmocka_unit_test(test_memory_and_pointers),
      cmocka_unit_test(test_struct_sizes),
      cmocka_unit_test(test_tensors),
      cmocka_unit_test(test_remap_and_rewind),
  };
  return cmocka_run_group_tests_name("commit errors", tests, NULL, NULL);
}
