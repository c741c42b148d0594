/* SPDX-License-Identifier: Apache-2.0 */
/* Compaction: every byte of the cache is where the path says or as it was, for any path, layout and executor. */
#define _GNU_SOURCE 1
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <treeattn/commit.h>

#include "support/check.h"
#include "support/commit_cache.h"
#include "support/threads.h"

static void apply(const treeattn_commit_plan *plan, const commit_cache *cache, treeattn_executor executor) {
  treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
  run.num_tensors = cache->num_tensors;
  run.tensors = cache->tensors;
  run.executor = executor;
  CHECK_OK(treeattn_commit_apply(plan, &run, &error));
}

/* One layer at a time, by tasks of the caller's own, last task first, with some that do not exist. */
static void apply_by_tasks(const treeattn_commit_plan *plan, const commit_cache *cache) {
  for (int t = 0; t < cache->num_tensors; t += 2) {
    treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
    run.num_tensors = t + 1 < cache->num_tensors ? 2 : 1;
    run.tensors = &cache->tensors[t];
    int64_t num_tasks = -1;
    int64_t num_heads = 0;
    CHECK_OK(treeattn_commit_check(plan, &run, &num_tasks, &error));
    for (int64_t n = 0; n < run.num_tensors; n++) {
      num_heads += run.tensors[n].num_heads;
    }
    CHECK(num_tasks == num_heads, "%lld tasks for %lld heads", (long long)num_tasks, (long long)num_heads);
    for (int64_t task = num_tasks; task >= -1; task--) {
      treeattn_commit_task(plan, &run, task);
    }
  }
}

/* As an engine with its own copies would: from the exported moves, one after another, with one row kept aside. */
static void apply_by_moves(const treeattn_commit_plan *plan, const commit_cache *cache) {
  treeattn_commit_plan_info info = TREEATTN_COMMIT_PLAN_INFO_INIT;
  CHECK_OK(treeattn_commit_plan_get_info(plan, &info, &error));
  treeattn_commit_move *moves = calloc((size_t)info.num_moves + 1, sizeof *moves);
  CHECK(moves != NULL, "out of memory");
  CHECK_OK(treeattn_commit_plan_get_moves(plan, moves, info.num_moves, &error));
  int64_t num_cycles = 0;
  int64_t num_rows = 0;
  for (int64_t m = 0; m < info.num_moves; m++) {
    const treeattn_commit_move *move = &moves[m];
    CHECK(move->src_block != move->dst_block || move->src_row != move->dst_row, "move %lld goes nowhere", (long long)m);
    CHECK(move->num_rows >= 1, "move %lld has %lld rows", (long long)m, (long long)move->num_rows);
    num_cycles += move->src_block == TREEATTN_COMMIT_TEMPORARY ? 1 : 0;
    num_rows += move->dst_block == TREEATTN_COMMIT_TEMPORARY ? 0 : move->num_rows;
  }
  CHECK(num_cycles == info.num_cycles && num_rows == info.num_rows,
        "%lld cycles and %lld rows instead of %lld and %lld", (long long)info.num_cycles, (long long)info.num_rows,
        (long long)num_cycles, (long long)num_rows);
  for (int t = 0; t < cache->num_tensors; t++) {
    const size_t row_bytes = cache->tensors[t].row_bytes;
    unsigned char *staged = malloc(row_bytes * 64);
    unsigned char *temporary = malloc(row_bytes);
    CHECK(staged != NULL && temporary != NULL, "out of memory");
    for (int64_t g = 0; g < cache->tensors[t].num_heads; g++) {
      for (int64_t m = 0; m < info.num_moves; m++) {
        const treeattn_commit_move *move = &moves[m];
        const bool to = move->dst_block == TREEATTN_COMMIT_TEMPORARY;
        const bool from = move->src_block == TREEATTN_COMMIT_TEMPORARY;
        CHECK(move->num_rows <= (to || from ? 1 : 64), "move %lld has %lld rows", (long long)m,
              (long long)move->num_rows);
        for (int64_t n = 0; n < move->num_rows; n++) {
          memcpy(staged + (size_t)n * row_bytes,
                 from ? temporary : commit_cache_row(cache, t, move->src_block, g, move->src_row + n), row_bytes);
        }
        for (int64_t n = 0; n < move->num_rows; n++) {
          memcpy(to ? temporary : commit_cache_row(cache, t, move->dst_block, g, move->dst_row + n),
                 staged + (size_t)n * row_bytes, row_bytes);
        }
      }
    }
    free(staged);
    free(temporary);
  }
  free(moves);
}

static void apply_somehow(const treeattn_commit_plan *plan, const commit_cache *cache, int how, rng *r) {
  thread_team team = {3};
  switch (how % 5) {
    case 0: apply(plan, cache, (treeattn_executor){NULL, NULL}); break;
    case 1: apply(plan, cache, thread_team_executor(&team)); break;
    case 2: apply(plan, cache, shuffled_executor(r)); break;
    case 3: apply_by_tasks(plan, cache); break;
    default: apply_by_moves(plan, cache); break;
  }
}

static void test_random_batches(void **state) {
  (void)state;
  static const int page_sizes[] = {0, 1, 2, 3, 5, 16, 64};
  const int count = trial_count(4000, 700);
  for (int index = 0; index < count; index++) {
    rng r;
    const int trial = trial_begin(&r, 0x636f6d6d, index);
    commit_batch batch;
    commit_cache cache;
    guarded memory;
    commit_batch_random(&batch, page_sizes[trial % 7], &r);
    commit_cache_random(&cache, batch.num_blocks, batch.rows_per_block, trial % 11 == 0 ? 2000 : 100, &r);
    commit_cache_expect(&cache, &batch);
    treeattn_commit_plan *plan = commit_plan_new(&batch.args, &memory);
    /* The plan stands alone: what it was made from may go. */
    for (int n = 0; n < CACHE_MAX_REQUESTS; n++) {
      batch.requests[n] = (treeattn_commit_request){.path_len = -1};
      memset(batch.paths[n], 0xff, sizeof batch.paths[n]);
    }
    apply_somehow(plan, &cache, trial / 7, &r);
    commit_cache_check(&cache);
    treeattn_commit_plan_destroy(plan);
    guarded_free(&memory);
    commit_cache_free(&cache);
    commit_batch_free(&batch);
  }
}

/* Every path of at most six of six nodes: chains of all lengths, and every way that cycles can lie beside them. */
static void visit_paths(int32_t *path, int length, unsigned used, void (*visit)(const int32_t *path, int length)) {
  visit(path, length);
  for (int32_t node = 0; node < 6 && length < 6; node++) {
    if ((used >> node & 1u) == 0) {
      path[length] = node;
      visit_paths(path, length + 1, used | 1u << node, visit);
    }
  }
}

static int num_visited;

static void check_small_path(const int32_t *path, int length) {
  static const int32_t table[] = {4, 8, 1, 6, 0, 7, 3, 2, 5};
  num_visited++;
  for (int64_t page_size = 0; page_size <= 4; page_size++) {
    unsigned char data[9 * 4][3];
    unsigned char expected[9 * 4][3];
    for (int row = 0; row < 36; row++) {
      memset(data[row], row + 1, 3);
    }
    memcpy(expected, data, sizeof data);
    const int64_t prefix_len = 3;
    const treeattn_commit_request request = {prefix_len, 6, path, length, 0, table, 9};
    treeattn_commit_args args = TREEATTN_COMMIT_ARGS_INIT;
    args.num_requests = 1;
    args.requests = &request;
    args.page_size = page_size;
    args.kv_capacity = 36;
    args.num_pages = 9;
    int64_t num_rows = 0;
    for (int i = 0; i < length; i++) {
      int64_t row[2] = {prefix_len + i, prefix_len + path[i]};
      for (int side = 0; side < 2 && page_size > 0; side++) {
        row[side] = table[row[side] / page_size] * page_size + row[side] % page_size;
      }
      memset(expected[row[0]], (int)row[1] + 1, 3);
      num_rows += path[i] == i ? 0 : 1;
    }
    treeattn_commit_plan *plan = NULL;
    CHECK_OK(treeattn_commit_plan_create(&args, &plan, &error));
    treeattn_commit_plan_info info = TREEATTN_COMMIT_PLAN_INFO_INIT;
    CHECK_OK(treeattn_commit_plan_get_info(plan, &info, &error));
    CHECK(info.num_rows == num_rows, "%lld rows instead of %lld", (long long)info.num_rows, (long long)num_rows);
    treeattn_commit_tensor tensor = TREEATTN_COMMIT_TENSOR_INIT;
    tensor.data = data;
    tensor.bytes = page_size > 0 ? (size_t)(9 * page_size * 3) : sizeof data;
    tensor.row_bytes = 3;
    tensor.num_heads = 1;
    treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
    run.num_tensors = 1;
    run.tensors = &tensor;
    CHECK_OK(treeattn_commit_apply(plan, &run, &error));
    CHECK(memcmp(data, expected, sizeof data) == 0, "path %d %d %d %d %d %d (%d of them), page size %lld", (int)path[0],
          (int)path[1], (int)path[2], (int)path[3], (int)path[4], (int)path[5], length, (long long)page_size);
    treeattn_commit_plan_destroy(plan);
  }
}

static void test_every_small_path(void **state) {
  (void)state;
  int32_t path[6] = {0};
  num_visited = 0;
  visit_paths(path, 0, 0, check_small_path);
  assert_int_equal(num_visited, 1957);
}

/* Increasing paths, the usual ones, cost one move for each run of neighbours and never the temporary row. */
static void test_runs_of_neighbours_are_one_move(void **state) {
  (void)state;
  const int count = trial_count(500, 100);
  for (int index = 0; index < count; index++) {
    rng r;
    (void)trial_begin(&r, 0x72756e73, index);
    int32_t path[CACHE_MAX_NODES];
    const treeattn_commit_request request = {
        5, CACHE_MAX_NODES, path, commit_path_random(PATH_INCREASING, CACHE_MAX_NODES, &r, path), 0, NULL, 0};
    treeattn_commit_args args = TREEATTN_COMMIT_ARGS_INIT;
    args.num_requests = 1;
    args.requests = &request;
    args.kv_capacity = 5 + CACHE_MAX_NODES;
    int64_t runs = 0;
    for (int64_t i = 0; i < request.path_len; i++) {
      runs += path[i] != i && (i == 0 || path[i - 1] == i - 1 || path[i] != path[i - 1] + 1) ? 1 : 0;
    }
    treeattn_commit_plan *plan = NULL;
    CHECK_OK(treeattn_commit_plan_create(&args, &plan, &error));
    treeattn_commit_plan_info info = TREEATTN_COMMIT_PLAN_INFO_INIT;
    CHECK_OK(treeattn_commit_plan_get_info(plan, &info, &error));
    CHECK(info.num_moves == runs && info.num_cycles == 0, "%lld moves and %lld cycles instead of %lld and 0",
          (long long)info.num_moves, (long long)info.num_cycles, (long long)runs);
    treeattn_commit_plan_destroy(plan);
  }
}

static void one_path(treeattn_commit_args *args, treeattn_commit_request *request, const int32_t *path,
                     int64_t path_len, int64_t num_nodes) {
  *request = (treeattn_commit_request){2, num_nodes, path, path_len, 0, NULL, 0};
  *args = (treeattn_commit_args)TREEATTN_COMMIT_ARGS_INIT;
  args->num_requests = 1;
  args->requests = request;
  args->kv_capacity = 16;
}

/* K and V of each token side by side in one buffer, heads inside tokens: [slot][k or v][head][4]. */
static void test_interleaved_k_and_v(void **state) {
  (void)state;
  static const int32_t path[] = {1, 4, 0};
  enum { SLOTS = 16, HEADS = 3, BYTES = 4 };
  unsigned char data[SLOTS][2][HEADS][BYTES];
  unsigned char expected[SLOTS][2][HEADS][BYTES];
  for (size_t b = 0; b < sizeof data; b++) {
    ((unsigned char *)data)[b] = (unsigned char)(b * 37 + 11);
  }
  memcpy(expected, data, sizeof data);
  memcpy(expected[2], data[3], sizeof data[0]);
  memcpy(expected[3], data[6], sizeof data[0]);
  memcpy(expected[4], data[2], sizeof data[0]);
  treeattn_commit_args args;
  treeattn_commit_request request;
  one_path(&args, &request, path, 3, 5);
  treeattn_commit_plan *plan = NULL;
  CHECK_OK(treeattn_commit_plan_create(&args, &plan, &error));
  treeattn_commit_tensor tensors[2];
  for (int side = 0; side < 2; side++) {
    tensors[side] = (treeattn_commit_tensor){
        data[0][side], sizeof data - (size_t)side * sizeof data[0][0], BYTES, HEADS, 0, BYTES, sizeof data[0]};
  }
  treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
  run.num_tensors = 2;
  run.tensors = tensors;
  CHECK_OK(treeattn_commit_apply(plan, &run, &error));
  assert_memory_equal(data, expected, sizeof data);
  treeattn_commit_plan_destroy(plan);
}

/* A transposed V, [channel][slot]: each channel is a head with rows of one element. */
static void test_transposed_v(void **state) {
  (void)state;
  static const int32_t path[] = {0, 2, 3, 7};
  uint16_t data[8][16];
  uint16_t expected[8][16];
  for (int d = 0; d < 8; d++) {
    for (int slot = 0; slot < 16; slot++) {
      data[d][slot] = (uint16_t)(1000 * d + slot);
    }
    memcpy(expected[d], data[d], sizeof data[d]);
    expected[d][3] = data[d][4];
    expected[d][4] = data[d][5];
    expected[d][5] = data[d][9];
  }
  treeattn_commit_args args;
  treeattn_commit_request request;
  one_path(&args, &request, path, 4, 8);
  treeattn_commit_plan *plan = NULL;
  CHECK_OK(treeattn_commit_plan_create(&args, &plan, &error));
  treeattn_commit_tensor tensor = TREEATTN_COMMIT_TENSOR_INIT;
  tensor.data = data;
  tensor.bytes = sizeof data;
  tensor.row_bytes = sizeof data[0][0];
  tensor.num_heads = 8;
  treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
  run.num_tensors = 1;
  run.tensors = &tensor;
  CHECK_OK(treeattn_commit_apply(plan, &run, &error));
  assert_memory_equal(data, expected, sizeof data);
  treeattn_commit_plan_destroy(plan);
}

/* Rows whose offsets, in bytes or in rows, pass 31 and 32 bits. Where an offset wraps, other constants stand. */
static void check_far(int64_t page_size, int64_t num_blocks, int64_t rows_per_block, size_t row_bytes,
                      int64_t prefix_len, const int32_t *page_table, int64_t page_table_len) {
  static const int32_t path[] = {2, 0, 1, 5};
  const size_t bytes = (size_t)num_blocks * 2 * (size_t)rows_per_block * row_bytes;
  unsigned char *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(data != MAP_FAILED, "mmap of %zu bytes failed", bytes);
  const treeattn_commit_request request = {prefix_len, 6, path, 4, num_blocks - 1, page_table, page_table_len};
  treeattn_commit_args args = TREEATTN_COMMIT_ARGS_INIT;
  args.num_requests = 1;
  args.requests = &request;
  args.page_size = page_size;
  args.kv_capacity = rows_per_block;
  args.num_sequences = num_blocks;
  args.num_pages = num_blocks;
  unsigned char *rows[2][6];
  for (int head = 0; head < 2; head++) {
    for (int64_t i = 0; i < 6; i++) {
      const int64_t slot = prefix_len + i;
      const int64_t block = page_size > 0 ? page_table[slot / page_size] : num_blocks - 1;
      const int64_t row = page_size > 0 ? slot % page_size : slot;
      const size_t offset = (((size_t)block * 2 + (size_t)head) * (size_t)rows_per_block + (size_t)row) * row_bytes;
      rows[head][i] = data + offset;
      memset(data + (offset & 0xffffffffu), 0xee, row_bytes);
      memset(data + (offset & 0x7fffffffu), 0xee, row_bytes);
    }
  }
  for (int head = 0; head < 2; head++) {
    for (int i = 0; i < 6; i++) {
      memset(rows[head][i], 16 * head + i + 1, row_bytes);
    }
  }
  treeattn_commit_plan *plan = NULL;
  CHECK_OK(treeattn_commit_plan_create(&args, &plan, &error));
  treeattn_commit_tensor tensor = TREEATTN_COMMIT_TENSOR_INIT;
  tensor.data = data;
  tensor.bytes = bytes;
  tensor.row_bytes = row_bytes;
  tensor.num_heads = 2;
  treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
  run.num_tensors = 1;
  run.tensors = &tensor;
  CHECK_OK(treeattn_commit_apply(plan, &run, &error));
  static const int expected[6] = {3, 1, 2, 6, 5, 6};
  for (int head = 0; head < 2; head++) {
    for (int i = 0; i < 6; i++) {
      for (size_t b = 0; b < row_bytes; b++) {
        CHECK(rows[head][i][b] == 16 * head + expected[i], "head %d row %d holds 0x%02x", head, i, rows[head][i][b]);
      }
    }
  }
  treeattn_commit_plan_destroy(plan);
  (void)munmap(data, bytes);
}

static void test_offsets_past_32_bits(void **state) {
  (void)state;
  static int32_t table[3] = {0, 40000000, 70000000};
  const int64_t far = (int64_t)1 << 25;
  check_far(0, 1, far + 64, 128, far, NULL, 0);                                 /* byte offset of head 1 past 2^32 */
  check_far(0, 3, far + 64, 64, far - 3, NULL, 0);                              /* the last sequence */
  check_far(0, 1, ((int64_t)1 << 32) + 64, 1, ((int64_t)1 << 32) - 2, NULL, 0); /* slot past 2^32 */
  check_far(4, 70000001, 4, 32, 2, table, 3);                                   /* page x page size x bytes past 2^33 */
}

static void test_remap(void **state) {
  (void)state;
  static const int32_t path[] = {0, 2, 5};
  static const int32_t slots[] = {70, 10, 30, 90, 20, 50};
  int32_t remapped[6];
  int32_t scratch[6];
  CHECK_OK(treeattn_commit_remap(6, path, 3, slots, remapped, scratch, &error));
  assert_memory_equal(remapped, ((const int32_t[]){70, 30, 50, 10, 90, 20}), sizeof remapped);
  CHECK_OK(treeattn_commit_remap(6, path, 3, NULL, remapped, scratch, &error));
  assert_memory_equal(remapped, ((const int32_t[]){0, 2, 5, 1, 3, 4}), sizeof remapped);
  CHECK_OK(treeattn_commit_remap(6, NULL, 0, slots, remapped, scratch, &error));
  assert_memory_equal(remapped, slots, sizeof remapped);
  CHECK_OK(treeattn_commit_remap(0, NULL, 0, NULL, NULL, NULL, &error));
}

/* Reading through the remapped table finds what moving the rows would have put there. */
static void test_remap_says_what_moves_do(void **state) {
  (void)state;
  const int count = trial_count(500, 100);
  for (int index = 0; index < count; index++) {
    rng r;
    (void)trial_begin(&r, 0x6d61703f, index);
    int32_t path[CACHE_MAX_NODES], table[CACHE_MAX_NODES], remapped[CACHE_MAX_NODES], scratch[CACHE_MAX_NODES];
    unsigned char data[CACHE_MAX_NODES], moved[CACHE_MAX_NODES];
    const int num_nodes = rng_range(&r, 1, CACHE_MAX_NODES);
    const int64_t path_len = commit_path_random((path_kind)rng_below(&r, NUM_PATH_KINDS), num_nodes, &r, path);
    for (int32_t i = 0; i < num_nodes; i++) {
      table[i] = i;
      moved[i] = data[i] = (unsigned char)(i + 1);
    }
    rng_shuffle(&r, table, num_nodes);
    CHECK_OK(treeattn_commit_remap(num_nodes, path, path_len, table, remapped, scratch, &error));
    const treeattn_commit_request request = {0, num_nodes, path, path_len, 0, table, num_nodes};
    treeattn_commit_args args = TREEATTN_COMMIT_ARGS_INIT;
    args.num_requests = 1;
    args.requests = &request;
    args.page_size = 1;
    args.num_pages = num_nodes;
    treeattn_commit_plan *plan = NULL;
    CHECK_OK(treeattn_commit_plan_create(&args, &plan, &error));
    treeattn_commit_tensor tensor = TREEATTN_COMMIT_TENSOR_INIT;
    tensor.data = moved;
    tensor.bytes = (size_t)num_nodes;
    tensor.row_bytes = 1;
    tensor.num_heads = 1;
    treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
    run.num_tensors = 1;
    run.tensors = &tensor;
    CHECK_OK(treeattn_commit_apply(plan, &run, &error));
    bool seen[CACHE_MAX_NODES] = {false};
    for (int64_t i = 0; i < num_nodes; i++) {
      CHECK(!seen[remapped[i]], "slot %d appears twice", (int)remapped[i]);
      seen[remapped[i]] = true;
      CHECK(i >= path_len || data[remapped[i]] == moved[table[i]], "token %lld differs", (long long)i);
    }
    treeattn_commit_plan_destroy(plan);
  }
}

static void test_rewind(void **state) {
  (void)state;
  for (int64_t page_size = 0; page_size <= 5; page_size++) {
    for (int64_t length = 0; length <= 23; length++) {
      for (int64_t dropped = 0; dropped <= length; dropped++) {
        treeattn_commit_rewound rewound = {-1, -1, -1};
        CHECK_OK(treeattn_commit_rewind(length, dropped, page_size, &rewound, &error));
        int64_t used = 0;
        int64_t used_before = 0;
        for (int64_t page = 0; page * page_size < length && page_size > 0; page++) {
          used_before++;
          used += page * page_size < length - dropped ? 1 : 0;
        }
        CHECK(rewound.kv_seq_len == length - dropped && rewound.num_pages == used &&
                  rewound.num_freed_pages == used_before - used,
              "%lld - %lld in pages of %lld: %lld, %lld, %lld", (long long)length, (long long)dropped,
              (long long)page_size, (long long)rewound.kv_seq_len, (long long)rewound.num_pages,
              (long long)rewound.num_freed_pages);
      }
    }
  }
}

static void test_nothing_to_do(void **state) {
  (void)state;
  treeattn_commit_args args = TREEATTN_COMMIT_ARGS_INIT;
  treeattn_commit_plan *plan = NULL;
  CHECK_OK(treeattn_commit_plan_create(&args, &plan, &error));
  treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
  run.executor = failing_executor(); /* not asked: there is no work */
  CHECK_OK(treeattn_commit_apply(plan, &run, &error));
  treeattn_commit_plan_destroy(plan);
  treeattn_commit_plan_destroy(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_batches),
      cmocka_unit_test(test_every_small_path),
      cmocka_unit_test(test_runs_of_neighbours_are_one_move),
      cmocka_unit_test(test_interleaved_k_and_v),
      cmocka_unit_test(test_transposed_v),
      cmocka_unit_test(test_offsets_past_32_bits),
      cmocka_unit_test(test_remap),
      cmocka_unit_test(test_remap_says_what_moves_do),
      cmocka_unit_test(test_rewind),
      cmocka_unit_test(test_nothing_to_do),
  };
  return cmocka_run_group_tests_name("commit", tests, NULL, NULL);
}
