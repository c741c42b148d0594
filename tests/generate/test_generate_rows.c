/* SPDX-License-Identifier: Apache-2.0 */
/* The risk that a row's bits depend on the rows beside it, on threads, or on the drafts: in ggml's operators as in ours. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"
#include "tiny_model.h"

enum { PREFIX = 37, MAX_ROWS = 65, VOCAB = 64 };

typedef struct fixture {
  unsigned char *file;
  gen_model *model;
  int32_t prefix[PREFIX], tokens[MAX_ROWS], parents[MAX_ROWS];
} fixture;

static void open_tiny(fixture *with, const char *architecture, int64_t window, enum ggml_type type, uint64_t seed) {
  tiny_shape shape = tiny_default();
  shape.architecture = architecture;
  shape.window = window;
  shape.type = type;
  shape.seed = seed;
  if (window != 0) {
    shape.num_layers = 6; /* the sixth sees everything */
  }
  size_t bytes = 0;
  with->file = tiny_make(&shape, &bytes);
  treeattn_error error;
  const treeattn_status status = gen_model_open_bytes(with->file, bytes, &with->model, &error);
  if (status != TREEATTN_OK) {
    fail_msg("%s", error.message);
  }
  uint64_t state = seed;
  for (int i = 0; i < PREFIX; ++i) {
    with->prefix[i] = (int32_t)(tiny_random(&state) % VOCAB);
  }
  for (int i = 0; i < MAX_ROWS; ++i) {
    with->tokens[i] = (int32_t)(tiny_random(&state) % VOCAB);
    with->parents[i] = i == 0 ? -1 : (int32_t)(tiny_random(&state) % (uint64_t)i);
  }
}

static void close_tiny(fixture *with) {
  gen_model_close(with->model);
  free(with->file);
}

static gen_forward *forward_of(const fixture *with, int num_threads) {
  gen_forward *forward = NULL;
  treeattn_error error;
  if (gen_forward_create(with->model, 256, GEN_PREFILL_ROWS, num_threads, &forward, &error) != TREEATTN_OK) {
    fail_msg("%s", error.message);
  }
  return forward;
}

static const float *run(gen_forward *forward, const gen_pass *pass) {
  const float *logits = NULL;
  treeattn_error error;
  if (gen_forward_run(forward, pass, &logits, &error) != TREEATTN_OK) {
    fail_msg("%s", error.message);
  }
  return logits;
}

/* Every node of a tree, in one pass behind a prefix in one pass, against its path token by token. */
static void check_rows(const char *architecture, int64_t window, enum ggml_type type) {
  const uint64_t seed = tiny_seed(11);
  fixture with;
  open_tiny(&with, architecture, window, type, seed);
  gen_forward *alone = forward_of(&with, 1);
  float *expected = malloc(sizeof(float) * MAX_ROWS * VOCAB);
  for (int p = 0; p < PREFIX; ++p) {
    const gen_pass pass = {with.prefix + p, NULL, 1, p, 1};
    (void)run(alone, &pass);
  }
  for (int i = 0; i < MAX_ROWS; ++i) {
    int path[MAX_ROWS];
    int length = 0;
    for (int j = i; j >= 0; j = with.parents[j]) {
      path[length++] = j;
    }
    const float *logits = NULL;
    for (int k = length - 1; k >= 0; --k) {
      const gen_pass pass = {&with.tokens[path[k]], NULL, 1, PREFIX + length - 1 - k, 1};
      logits = run(alone, &pass);
    }
    memcpy(expected + i * VOCAB, logits, sizeof(float) * VOCAB);
  }
  static const int64_t sizes[] = {1, 2, 3, 4, 7, 8, 16, 31, 64, 65};
  for (int threads = 1; threads <= 2; ++threads) {
    gen_forward *forward = forward_of(&with, threads);
    const gen_pass prefix = {with.prefix, NULL, PREFIX, 0, 1};
    (void)run(forward, &prefix);
    /* ggml's threads meet at spinning barriers, which is slow on a busy machine: a few sizes do for two of them. */
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s += threads == 1 ? 1 : 4) {
      const gen_pass pass = {with.tokens, with.parents, sizes[s], PREFIX, sizes[s]};
      const float *logits = run(forward, &pass);
      for (int64_t v = 0; v < sizes[s] * VOCAB; ++v) {
        if (memcmp(&logits[v], &expected[v], sizeof(float)) != 0) {
          fail_msg("%s %s, %d threads, %d rows, node %d, logit %d: %a instead of %a (TREEATTN_TEST_SEED=%llu)",
                   architecture, ggml_type_name(type), threads, (int)sizes[s], (int)(v / VOCAB), (int)(v % VOCAB),
                   (double)logits[v], (double)expected[v], (unsigned long long)seed);
        }
      }
    }
    gen_forward_destroy(forward);
  }
  free(expected);
  gen_forward_destroy(alone);
  close_tiny(&with);
}

static void test_rows_of_every_type(void **state) {
  (void)state;
  static const enum ggml_type types[] = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
                                         GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K,
                                         GGML_TYPE_Q5_K, GGML_TYPE_Q6_K};
  for (size_t t = 0; t < sizeof types / sizeof types[0]; ++t) {
    check_rows("llama", 0, types[t]);
  }
}

static void test_rows_behind_windows(void **state) {
  (void)state;
  check_rows("gemma3", 9, GGML_TYPE_Q8_0);
  check_rows("gemma3", 64, GGML_TYPE_Q5_0);
}

/* Another implementation of the same operator: near, and not more than that is asked of it. */
static void check_near_ggml(const char *architecture, int64_t window, gen_attention attention) {
  fixture with;
  open_tiny(&with, architecture, window, GGML_TYPE_F32, tiny_seed(12));
  gen_forward *ours = forward_of(&with, 1);
  gen_forward *theirs = forward_of(&with, 1);
  theirs->attention = attention;
  const gen_pass prefix = {with.prefix, NULL, PREFIX, 0, 1};
  (void)run(ours, &prefix);
  (void)run(theirs, &prefix);
  const gen_pass pass = {with.tokens, with.parents, MAX_ROWS, PREFIX, MAX_ROWS};
  const float *logits = run(ours, &pass);
  const float *expected = run(theirs, &pass);
  double error = 0.0;
  double size = 0.0;
  for (int v = 0; v < MAX_ROWS * VOCAB; ++v) {
    error = fmax(error, fabs((double)logits[v] - (double)expected[v]));
    size = fmax(size, fabs((double)expected[v]));
  }
  /* The cache and ggml's queries are f16: 2^-11 relative, over a few layers. */
  if (!(error <= 0.02 * size) || !(size > 1.0)) {
    fail_msg("%s with window %d: logits differ by %g of %g", architecture, (int)window, error, size);
  }
  gen_forward_destroy(ours);
  gen_forward_destroy(theirs);
  close_tiny(&with);
}

static void test_near_ggml(void **state) {
  (void)state;
  check_near_ggml("llama", 0, GEN_ATTENTION_GGML_SOFTMAX);
  check_near_ggml("llama", 0, GEN_ATTENTION_GGML_FLASH);
  check_near_ggml("gemma3", 9, GEN_ATTENTION_GGML_SOFTMAX);
}

/* ---- whole texts ------------------------------------------------------------------------------------------------ */

typedef struct recording {
  int64_t num;
  float rows[96][VOCAB];
} recording;

static treeattn_status record(void *context, const gen_step *step, treeattn_error *error) {
  recording *to = context;
  (void)error;
  for (int64_t k = 0; k < step->num_path && to->num < 96; ++k) {
    memcpy(to->rows[to->num++], step->logits + step->path[k] * VOCAB, sizeof to->rows[0]);
  }
  return TREEATTN_OK;
}

static void decode(const fixture *with, int threads, int64_t nodes, int64_t children, bool measured, int32_t text[96],
                   recording *rows) {
  gen_forward *forward = forward_of(with, threads);
  gen_session *session = NULL;
  gen_drafter arbitrary;
  treeattn_error error;
  memset(rows, 0, sizeof *rows);
  assert_int_equal(gen_session_create(forward, &session, &error), TREEATTN_OK);
  assert_int_equal(gen_session_add_default_drafters(session, NULL, &error), TREEATTN_OK);
  assert_int_equal(gen_drafter_arbitrary(VOCAB, &arbitrary, &error), TREEATTN_OK);
  assert_int_equal(gen_session_add_drafter(session, &arbitrary, &error), TREEATTN_OK);
  assert_int_equal(gen_session_prompt(session, with->prefix, PREFIX, false, &error), TREEATTN_OK);
  if (measured) {
    assert_int_equal(gen_session_measure(session, &error), TREEATTN_OK);
  }
  const gen_decoding decoding = {nodes, children, measured, 0.0f, 0, 0};
  const gen_watcher watcher = {record, rows};
  int64_t emitted = 0;
  for (int64_t done = 0; done < 96; done += emitted) {
    if (gen_session_step(session, &decoding, 96 - done, &watcher, &emitted, &error) != TREEATTN_OK) {
      fail_msg("%s", error.message);
    }
    assert_true(emitted >= 1 && emitted <= 96 - done);
  }
  memcpy(text, session->tokens + PREFIX, sizeof(int32_t) * 96);
  gen_session_destroy(session);
  gen_forward_destroy(forward);
}

static void test_greedy_text_is_plain_text(void **state) {
  (void)state;
  fixture with;
  const uint64_t seed = tiny_seed(13);
  open_tiny(&with, "llama", 0, GGML_TYPE_Q4_1, seed);
  static recording plain;
  static recording rows;
  int32_t expected[96];
  int32_t text[96];
  decode(&with, 1, 1, GEN_MAX_CHILDREN, false, expected, &plain);
  static const int64_t sizes[] = {1, 4, 8, 16, 32, 64};
  for (int threads = 1; threads <= 2; ++threads) {
    for (size_t s = threads == 1 ? 0 : 6; s < 2 * sizeof sizes / sizeof sizes[0] + 1; s += threads == 1 ? 1 : 3) {
      const int64_t nodes = sizes[s / 2 % 6];
      decode(&with, threads, s == 12 ? 64 : nodes, s % 2 == 0 ? GEN_MAX_CHILDREN : 1, s == 12, text, &rows);
      if (memcmp(text, expected, sizeof text) != 0 || memcmp(rows.rows, plain.rows, sizeof rows.rows) != 0) {
        fail_msg("%d threads, trees of %d nodes: text or logits differ (TREEATTN_TEST_SEED=%llu)", threads, (int)nodes,
                 (unsigned long long)seed);
      }
    }
  }
  close_tiny(&with);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rows_of_every_type),
      cmocka_unit_test(test_rows_behind_windows),
      cmocka_unit_test(test_near_ggml),
      cmocka_unit_test(test_greedy_text_is_plain_text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
