/* SPDX-License-Identifier: Apache-2.0 */
/* The risk that a damaged, cut or foreign model file crashes the loader, or is taken for a good one. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS under -std=c11 */
#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "session.h"
#include "tiny_model.h"
#include "tokenizer.h"

/* The file that the tests damage: one of two. */
static unsigned char *good;
static size_t good_bytes;

/* A copy that ends where readable memory ends: reading past a cut file is then a crash. */
typedef struct guarded {
  unsigned char *map, *data;
  size_t map_bytes;
} guarded;

static guarded guard_make(const unsigned char *data, size_t bytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const size_t rounded = (bytes + page - 1) / page * page;
  guarded made = {NULL, NULL, rounded + page};
  made.map = mmap(NULL, made.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(made.map != MAP_FAILED);
  assert_int_equal(mprotect(made.map + rounded, page, PROT_NONE), 0);
  /* Weights need 32 bytes of alignment, so up to 31 bytes lie between the end and the guard. */
  made.data = made.map + (rounded - bytes) / 32 * 32;
  if (bytes > 0) {
    memcpy(made.data, data, bytes);
  }
  return made;
}

/* Opens, and where that works reads everything that the generator reads. */
static treeattn_status open_and_use(const unsigned char *data, size_t bytes, treeattn_error *error) {
  guarded copy = guard_make(data, bytes);
  gen_model *model = NULL;
  memset(error, 0, sizeof *error);
  treeattn_status status = gen_model_open_bytes(copy.data, bytes, &model, error);
  if (status == TREEATTN_OK) {
    gen_tokenizer *tokenizer = NULL;
    status = gen_tokenizer_from_file(model->file, &tokenizer, error);
    if (status == TREEATTN_OK) {
      int32_t tokens[16];
      int64_t num_tokens = 0;
      treeattn_error ignored;
      (void)gen_tokenizer_encode_prompt(tokenizer, "#!\"a <b\xe2", 8, tokens, 16, &num_tokens, &ignored);
      for (int32_t t = 0; t < model->vocab_size; ++t) {
        char text[8];
        (void)gen_tokenizer_decode(tokenizer, t, text, sizeof text);
      }
      gen_tokenizer_destroy(tokenizer);
    }
    gen_forward *forward = NULL;
    treeattn_error ignored;
    /* A shape that a damaged header asks for may be larger than the machine; the small ones are run. */
    if (model->num_layers <= 4 && gen_forward_create(model, 16, 4, 1, &forward, &ignored) == TREEATTN_OK) {
      const int32_t tokens[3] = {0, 1, 2};
      const float *logits = NULL;
      const gen_pass pass = {tokens, NULL, 3, 0, 3};
      (void)gen_forward_run(forward, &pass, &logits, &ignored);
      gen_forward_destroy(forward);
    }
  }
  if (status != TREEATTN_OK) {
    assert_int_equal(error->status, status);
    assert_true(strlen(error->message) > 10);
    assert_null(strchr(error->message, '\n'));
  }
  gen_model_close(model);
  (void)munmap(copy.map, copy.map_bytes);
  return status;
}

static int set_up(const char *architecture) {
  tiny_shape shape = tiny_default();
  shape.architecture = architecture;
  shape.num_layers = 1;
  shape.width = 64;
  shape.head_dim = 16;
  shape.ffn_width = 64;
  shape.window = strcmp(architecture, "gemma3") == 0 ? 3 : 0;
  good = tiny_make(&shape, &good_bytes);
  return 0;
}

static int set_up_llama(void **state) {
  (void)state;
  return set_up("llama");
}

static int set_up_gemma(void **state) {
  (void)state;
  return set_up("gemma3");
}

static int tear_down(void **state) {
  (void)state;
  free(good);
  return 0;
}

static void test_good_file_opens(void **state) {
  (void)state;
  treeattn_error error;
  if (open_and_use(good, good_bytes, &error) != TREEATTN_OK) {
    fail_msg("%s", error.message);
  }
}

static void test_every_cut_is_refused(void **state) {
  (void)state;
  treeattn_error error;
  /* The file ends with up to 63 bytes of padding. */
  for (size_t bytes = 0; bytes + 64 < good_bytes; bytes += bytes < 4096 ? 1 : 997) {
    if (open_and_use(good, bytes, &error) == TREEATTN_OK) {
      fail_msg("a file cut to %zu of %zu bytes was opened", bytes, good_bytes);
    }
  }
}

static void test_random_damage_ends_in_an_answer(void **state) {
  (void)state;
  const uint64_t first = tiny_seed(100);
  const int trials = getenv("TREEATTN_TEST_SEED") == NULL ? 3000 : 1;
  unsigned char *copy = malloc(good_bytes);
  size_t header = good_bytes < 6000 ? good_bytes : 6000;
  for (int trial = 0; trial < trials; ++trial) {
    uint64_t random = first + (uint64_t)trial;
    memcpy(copy, good, good_bytes);
    const int num = 1 + (int)(tiny_random(&random) % 4);
    for (int k = 0; k < num; ++k) {
      const size_t at = tiny_random(&random) % header;
      static const unsigned char bytes[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
      const uint64_t how = tiny_random(&random) % 8;
      copy[at] = how < 5 ? bytes[how] : (unsigned char)tiny_random(&random);
      if (how == 7 && at + 8 < good_bytes) {
        const uint64_t large = UINT64_MAX >> tiny_random(&random) % 64;
        memcpy(copy + at, &large, sizeof large);
      }
    }
    /* Should it crash, the last line says how to have it again. */
    if (trial % 500 == 0) {
      print_message("damage from TREEATTN_TEST_SEED=%llu on\n", (unsigned long long)(first + (uint64_t)trial));
    }
    treeattn_error error;
    (void)open_and_use(copy, good_bytes, &error);
  }
  free(copy);
}

/* The bytes of a text in the file, replaced by another of the same length. */
static void expect_refusal(const char *text, const char *replacement, treeattn_status expected, const char *words) {
  unsigned char *copy = malloc(good_bytes);
  memcpy(copy, good, good_bytes);
  const size_t length = strlen(text);
  assert_int_equal(length, strlen(replacement));
  int num = 0;
  for (size_t at = 0; at + length <= good_bytes; ++at) {
    if (memcmp(copy + at, text, length) == 0) {
      memcpy(copy + at, replacement, length);
      ++num;
    }
  }
  assert_true(num > 0);
  treeattn_error error;
  const treeattn_status status = open_and_use(copy, good_bytes, &error);
  if (status != expected || strstr(error.message, words) == NULL) {
    fail_msg("'%s' for '%s': %s: %s", replacement, text, treeattn_status_name(status), error.message);
  }
  free(copy);
}

static void test_foreign_files_are_named(void **state) {
  (void)state;
  expect_refusal("llama", "gpt99", TREEATTN_ERROR_UNSUPPORTED, "architecture is 'gpt99'");
  expect_refusal("GGUF", "GGML", TREEATTN_ERROR_INVALID_ARGUMENT, "not a GGUF file");
  expect_refusal("blk.0.attn_q.weight", "blk.0.attn_x.weight", TREEATTN_ERROR_INVALID_ARGUMENT,
                 "'blk.0.attn_q.weight' is missing");
  expect_refusal("llama.block_count", "llama.block_coun!", TREEATTN_ERROR_INVALID_ARGUMENT,
                 "'llama.block_count' is missing");
  expect_refusal("tokenizer.ggml.tokens", "tokenizer.ggml.tokenz", TREEATTN_ERROR_INVALID_ARGUMENT,
                 "'tokenizer.ggml.tokens' is missing");
}

static void test_foreign_pieces_are_named(void **state) {
  (void)state;
  expect_refusal("tokenizer.ggml.scores", "tokenizer.ggml.scorez", TREEATTN_ERROR_INVALID_ARGUMENT,
                 "'tokenizer.ggml.scores' is missing");
  expect_refusal("tokenizer.ggml.add_space_prefix", "tokenizer.ggml.add_space_prefiz", TREEATTN_ERROR_UNSUPPORTED,
                 "puts a space before the text");
  expect_refusal("<0x20>", "<0x2G>", TREEATTN_ERROR_INVALID_ARGUMENT, "stands for a byte, but is '<0x2G>'");
  expect_refusal("sliding_window", "sliding_windo!", TREEATTN_ERROR_INVALID_ARGUMENT,
                 "'gemma3.attention.sliding_window' is missing");
}

static void test_types_that_are_not_served(void **state) {
  (void)state;
  tiny_shape shape = tiny_default();
  shape.num_layers = 1;
  shape.type = GGML_TYPE_Q3_K;
  size_t bytes = 0;
  unsigned char *file = tiny_make(&shape, &bytes);
  treeattn_error error;
  assert_int_equal(open_and_use(file, bytes, &error), TREEATTN_ERROR_UNSUPPORTED);
  assert_non_null(strstr(error.message, "is of type q3_K, which is not served"));
  free(file);
}

static void test_paths(void **state) {
  (void)state;
  gen_model *model = NULL;
  treeattn_error error;
  assert_int_equal(gen_model_open("/nowhere/model.gguf", &model, &error), TREEATTN_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "cannot be opened"));
  assert_int_equal(gen_model_open("/", &model, &error), TREEATTN_ERROR_INVALID_ARGUMENT);
  assert_null(model);
}

int main(void) {
  const struct CMUnitTest llama[] = {
      cmocka_unit_test(test_good_file_opens),
      cmocka_unit_test(test_every_cut_is_refused),
      cmocka_unit_test(test_random_damage_ends_in_an_answer),
      cmocka_unit_test(test_foreign_files_are_named),
      cmocka_unit_test(test_types_that_are_not_served),
      cmocka_unit_test(test_paths),
  };
  const struct CMUnitTest gemma[] = {
      cmocka_unit_test(test_good_file_opens),
      cmocka_unit_test(test_every_cut_is_refused),
      cmocka_unit_test(test_random_damage_ends_in_an_answer),
      cmocka_unit_test(test_foreign_pieces_are_named),
  };
  const int failed = cmocka_run_group_tests(llama, set_up_llama, tear_down);
  return cmocka_run_group_tests(gemma, set_up_gemma, tear_down) + failed;
}
