/* SPDX-License-Identifier: Apache-2.0 */
/* Risk: compaction on the GPU moves rows for a request that must be refused, or says something else than what is wrong. */
#include "step.h"

#include <treeattn/commit.h>

static const int32_t *words(const device_buffer *buffer) {
  return (const int32_t *)(const void *)buffer->data;
}

enum { SMALL_NODES = 6, SMALL_SLOTS = 16, SMALL_ROW = 8 };

typedef struct small_case {
  const char *what;
  int page_size;
  int32_t path[2][3], num_path[2], prefix_lens[2], cache_indices[2], page_table[2][4], verified[2];
  bool null_tensor;
  treeattn_cuda_outcome want[2];
} small_case;

#define FINE \
  { TREEATTN_OK, TREEATTN_CUDA_FIELD_NONE, -1, -1 }
#define WRONG(field, index, column) \
  { TREEATTN_ERROR_INVALID_ARGUMENT, TREEATTN_CUDA_FIELD_##field, index, column }

static const small_case small_cases[] = {
    {"nothing wrong", 0, {{0, 2, 4}, {0, 1, 5}}, {3, 3}, {3, 4}, {1, 0}, {{0}}, {0, 0}, false, {FINE, FINE}},
    {"a path that falls",
     0,
     {{0, 4, 2}, {0, 1, 5}},
     {3, 3},
     {3, 4},
     {1, 0},
     {{0}},
     {0, 0},
     false,
     {WRONG(PATH, 2, -1), FINE}},
    {"a node twice",
     0,
     {{0, 2, 4}, {0, 5, 5}},
     {3, 3},
     {3, 4},
     {1, 0},
     {{0}},
     {0, 0},
     false,
     {FINE, WRONG(PATH, 2, -1)}},
    {"no such node",
     0,
     {{0, 2, 6}, {0, 1, 5}},
     {3, 3},
     {3, 4},
     {1, 0},
     {{0}},
     {0, 0},
     false,
     {WRONG(PATH, 2, -1), FINE}},
    {"a negative node",
     0,
     {{-1, 2, 4}, {0, 1, 5}},
     {3, 3},
     {3, 4},
     {1, 0},
     {{0}},
     {0, 0},
     false,
     {WRONG(PATH, 0, -1), FINE}},
    {"a long path",
     0,
     {{0, 2, 4}, {0, 1, 5}},
     {7, 3},
     {3, 4},
     {1, 0},
     {{0}},
     {0, 0},
     false,
     {WRONG(NUM_PATH, -1, -1), FINE}},
    {"a negative path",
     0,
     {{0, 2, 4}, {0, 1, 5}},
     {3, -1},
     {3, 4},
     {1, 0},
     {{0}},
     {0, 0},
     false,
     {FINE, WRONG(NUM_PATH, -1, -1)}},
    {"a negative prefix",
     0,
     {{0, 2, 4}, {0, 1, 5}},
     {3, 3},
     {-1, 4},
     {1, 0},
     {{0}},
     {0, 0},
     false,
     {WRONG(PREFIX_LENS, -1, -1), FINE}},
    {"no room",
     0,
     {{0, 2, 4}, {0, 1, 5}},
     {3, 3},
     {3, 11},
     {1, 0},
     {{0}},
     {0, 0},
     false,
     {FINE, WRONG(PREFIX_LENS, -1, -1)}},
    {"no such sequence",
     0,
     {{0, 2, 4}, {0, 1, 5}},
     {3, 3},
     {3, 4},
     {2, 0},
     {{0}},
     {0, 0},
     false,
     {WRONG(CACHE_INDEX, -1, -1), FINE}},
    {"one sequence",
     0,
     {{0, 2, 4}, {0, 1, 2}},
     {3, 3},
     {3, 4},
     {1, 1},
     {{0}},
     {0, 0},
     false,
     {WRONG(CACHE_INDEX, 1, -1), FINE}},
    {"not verified",
     0,
     {{0, 2, 4}, {0, 1, 5}},
     {3, 3},
     {3, 4},
     {1, 0},
     {{0}},
     {0, 4},
     false,
     {FINE, {TREEATTN_ERROR_INVALID_VALUE, TREEATTN_CUDA_FIELD_LOGITS, 2, 17}}},
    {"a NULL",
     0,
     {{0, 2, 4}, {0, 1, 5}},
     {3, 3},
     {3, 4},
     {1, 0},
     {{0}},
     {0, 0},
     true,
     {WRONG(TENSORS, 1, 0), WRONG(TENSORS, 1, 0)}},
    {"pages",
     4,
     {{0, 2, 4}, {0, 1, 5}},
     {3, 3},
     {3, 4},
     {0, 0},
     {{7, 1, 3, -1}, {7, 4, 2, -1}},
     {0, 0},
     false,
     {FINE, FINE}},
    {"no such page",
     4,
     {{0, 2, 4}, {0, 1, 5}},
     {3, 3},
     {3, 4},
     {0, 0},
     {{7, 8, 3, -1}, {9, 4, 2, -1}},
     {0, 0},
     false,
     {WRONG(PAGE_TABLE, 1, -1), FINE}},
    {"a short table",
     4,
     {{0, 2, 4}, {0, 1, 5}},
     {3, 3},
     {3, 11},
     {0, 0},
     {{7, 1, 3, -1}, {9, 4, 2, 5}},
     {0, 0},
     false,
     {FINE, WRONG(PAGE_TABLE, 4, -1)}},
    {"a page twice",
     4,
     {{0, 2, 4}, {0, 1, 5}},
     {3, 3},
     {3, 4},
     {0, 0},
     {{7, 1, 7, -1}, {9, 4, 2, -1}},
     {0, 0},
     false,
     {WRONG(PAGE_TABLE, 2, 0), FINE}},
    {"a shared page",
     4,
     {{0, 2, 4}, {0, 1, 5}},
     {3, 3},
     {3, 4},
     {0, 0},
     {{7, 1, 3, -1}, {9, 4, 1, -1}},
     {0, 0},
     false,
     {WRONG(PAGE_TABLE, 1, 1), WRONG(PAGE_TABLE, 2, 0)}}};

/* Two requests of six nodes in two tensors of two sequences, or of eight pages; a request that is refused moves
 * nothing. */
static void run_small(const small_case *c) {
  enum { NUM_BLOCKS = 8, BYTES = NUM_BLOCKS * SMALL_SLOTS * SMALL_ROW };
  static unsigned char here[2][BYTES];
  const int32_t offsets[3] = {0, SMALL_NODES, 2 * SMALL_NODES};
  const int slots = c->page_size == 0 ? SMALL_SLOTS : c->page_size;
  const int blocks = c->page_size == 0 ? 2 : NUM_BLOCKS;
  const size_t bytes = (size_t)blocks * (size_t)slots * SMALL_ROW;
  int32_t path[2 * SMALL_NODES], next[2] = {-1, -1};
  treeattn_cuda_outcome verified[2] = {FINE, FINE}, outcomes[2];
  rng r = {3};
  memset(path, 0xff, sizeof path);
  for (int n = 0; n < 2; n++) {
    memcpy(path + n * SMALL_NODES, c->path[n], sizeof c->path[n]);
    if (c->verified[n] != 0) {
      verified[n] = (treeattn_cuda_outcome){c->verified[n], TREEATTN_CUDA_FIELD_LOGITS, 2, 17};
    }
    for (size_t b = 0; b < bytes; b++) {
      here[n][b] = (unsigned char)rng_next(&r);
    }
  }
  device_buffer tensors[2] = {td_alloc_copy(here[0], bytes), td_alloc_copy(here[1], bytes)};
  void *const pointers[2] = {tensors[0].data, c->null_tensor ? NULL : tensors[1].data};
  device_buffer there[] = {td_alloc_copy(offsets, sizeof offsets),
                           td_alloc_copy(path, sizeof path),
                           td_alloc_copy(c->num_path, sizeof c->num_path),
                           td_alloc_copy(c->prefix_lens, sizeof c->prefix_lens),
                           td_alloc_copy(c->cache_indices, sizeof c->cache_indices),
                           td_alloc_copy(c->page_table, sizeof c->page_table),
                           td_alloc_copy(verified, sizeof verified),
                           td_alloc_copy(pointers, sizeof pointers),
                           td_alloc(sizeof next),
                           td_alloc(sizeof outcomes)};
  const treeattn_cuda_commit_group group = {.tensors = (void *const *)(const void *)there[7].data,
                                            .num_tensors = 2,
                                            .bytes = bytes,
                                            .row_bytes = SMALL_ROW,
                                            .num_heads = 1};
  treeattn_cuda_commit_args args = TREEATTN_CUDA_COMMIT_ARGS_INIT;
  args.batch = (treeattn_cuda_batch){2, 2 * SMALL_NODES, SMALL_NODES, words(&there[0])};
  args.path = words(&there[1]);
  args.num_path = words(&there[2]);
  args.prefix_lens = words(&there[3]);
  args.cache_indices = words(&there[4]);
  args.page_table = words(&there[5]);
  args.page_table_stride = 4;
  args.verified = (const treeattn_cuda_outcome *)(const void *)there[6].data;
  args.page_size = c->page_size;
  args.kv_capacity = SMALL_SLOTS;
  args.num_sequences = 2;
  args.num_pages = NUM_BLOCKS;
  args.groups = &group;
  args.num_groups = 1;
  args.next_prefix_lens = (int32_t *)(void *)there[8].data;
  args.outcomes = (treeattn_cuda_outcome *)(void *)there[9].data;
  CHECK_OK(treeattn_cuda_commit(&args, &error));
  td_sync();
  td_download(outcomes, there[9].data, sizeof outcomes);
  for (int n = 0; n < 2; n++) {
    step_check_outcome(&outcomes[n], n, (treeattn_status)c->want[n].status, (treeattn_cuda_field)c->want[n].field,
                       c->want[n].index, c->want[n].column);
    if (c->want[n].status != TREEATTN_OK) {
      continue;
    }
    next[n] = c->prefix_lens[n] + c->num_path[n];
    for (int i = 0; i < c->num_path[n]; i++) {
      const int slot[2] = {c->prefix_lens[n] + i, c->prefix_lens[n] + c->path[n][i]};
      size_t row[2];
      for (int end = 0; end < 2; end++) {
        const int block = c->page_size == 0 ? c->cache_indices[n] : c->page_table[n][slot[end] / slots];
        row[end] = (size_t)(block * slots + (c->page_size == 0 ? slot[end] : slot[end] % slots)) * SMALL_ROW;
      }
      for (int t = 0; t < 2; t++) {
        memmove(here[t] + row[0], here[t] + row[1], SMALL_ROW);
      }
    }
  }
  step_check_bytes(c->what, &tensors[0], here[0]);
  step_check_bytes(c->what, &tensors[1], here[1]);
  step_check_bytes("next_prefix_lens", &there[8], next);
  td_free(&tensors[0]);
  td_free(&tensors[1]);
  for (size_t n = 0; n < sizeof there / sizeof there[0]; n++) {
    td_free(&there[n]);
  }
}

static void test_device_refusals(void **state) {
  (void)state;
  TD_NEED_DEVICE();
  for (size_t n = 0; n < sizeof small_cases / sizeof small_cases[0]; n++) {
    print_message("  %s\n", small_cases[n].what);
    run_small(&small_cases[n]);
  }
}

static void test_host_refusals(void **state) {
  (void)state;
  static int32_t memory[64];
  static unsigned char cache[256];
  static treeattn_cuda_outcome outcomes[1];
  treeattn_cuda_commit_group group = {
      .base = cache, .num_tensors = 2, .bytes = 64, .row_bytes = 8, .num_heads = 1, .stride_tensor_bytes = 64};
  const treeattn_cuda_commit_group good_group = group;
  treeattn_cuda_commit_args good = TREEATTN_CUDA_COMMIT_ARGS_INIT;
  good.batch = (treeattn_cuda_batch){1, 4, 4, memory};
  good.path = memory + 2;
  good.num_path = memory + 6;
  good.prefix_lens = memory + 7;
  good.kv_capacity = 8;
  good.groups = &group;
  good.num_groups = 1;
  good.outcomes = outcomes;
  if (treeattn_cuda_compiled() == 0) {
    skip();
  }
#define REFUSED(status, word_a, word_b)                                                   \
  do {                                                                                    \
    CHECK_ERROR(treeattn_cuda_commit(&args, &error), (status), (word_a), (word_b), NULL); \
    args = good;                                                                          \
    group = good_group;                                                                   \
  } while (0)
  treeattn_cuda_commit_args args = good;
  args.struct_size = 0;
  REFUSED(TREEATTN_ERROR_INVALID_ARGUMENT, "struct_size", "0");
  args.num_groups = 9;
  REFUSED(TREEATTN_ERROR_INVALID_ARGUMENT, "num_groups", "9");
  args.group_bytes = 8;
  REFUSED(TREEATTN_ERROR_INVALID_ARGUMENT, "group_bytes", "8");
  args.kv_capacity = -1;
  REFUSED(TREEATTN_ERROR_INVALID_ARGUMENT, "kv_capacity", "-1");
  args.page_size = 4;
  args.num_pages = 2;
  args.page_table_stride = 3;
  REFUSED(TREEATTN_ERROR_INVALID_ARGUMENT, "page_table is NULL", "3");
  args.next_prefix_lens = memory + 7;
  REFUSED(TREEATTN_ERROR_INVALID_ARGUMENT, "next_prefix_lens and prefix_lens", "overlap");
  group.bytes = 63;
  REFUSED(TREEATTN_ERROR_BUFFER_TOO_SMALL, "groups[0].bytes", "63");
  group.row_bytes = 0;
  REFUSED(TREEATTN_ERROR_INVALID_ARGUMENT, "groups[0].row_bytes", "0");
  group.num_heads = 0;
  REFUSED(TREEATTN_ERROR_INVALID_ARGUMENT, "groups[0].num_heads", "0");
  group.stride_row_bytes = 7;
  REFUSED(TREEATTN_ERROR_INVALID_ARGUMENT, "groups[0].stride_row_bytes", "overlap");
  group.stride_tensor_bytes = 63;
  REFUSED(TREEATTN_ERROR_INVALID_ARGUMENT, "groups[0].stride_tensor_bytes", "63");
  group.base = NULL;
  REFUSED(TREEATTN_ERROR_INVALID_ARGUMENT, "groups[].base is NULL", NULL);
  group.stride_block_bytes = INT64_MAX;
  args.num_sequences = 3;
  REFUSED(TREEATTN_ERROR_OVERFLOW, "groups[0].stride_block_bytes", NULL);
#undef REFUSED
  TD_NEED_DEVICE();
  CHECK_ERROR(treeattn_cuda_commit(&args, &error), TREEATTN_ERROR_INVALID_ARGUMENT, "batch.offsets",
              "not device memory", NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_device_refusals),
      cmocka_unit_test(test_host_refusals),
  };
  return cmocka_run_group_tests_name("cuda_commit_errors", tests, NULL, NULL);
}
