/* SPDX-License-Identifier: Apache-2.0 */
/* The risk that sampling with trees has another law than plain sampling: counted against the law itself, enumerated. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"
#include "tiny_model.h"

enum { VOCAB = 5, PROMPT = 3, TRIALS = 12000 };
static const double temperature = 0.8;

typedef struct fixture {
  unsigned char *file;
  gen_model *model;
  gen_forward *forward;
  int32_t prompt[PROMPT];
  double law[VOCAB][VOCAB]; /* of the two tokens after the prompt */
} fixture;

static void softmax(const float *logits, double probabilities[VOCAB]) {
  double sum = 0.0;
  for (int v = 0; v < VOCAB; ++v) {
    probabilities[v] = exp((double)(logits[v] - logits[0]) / temperature);
    sum += probabilities[v];
  }
  for (int v = 0; v < VOCAB; ++v) {
    probabilities[v] /= sum;
  }
}

static void enumerate(fixture *with) {
  treeattn_error error;
  const float *logits = NULL;
  double first[VOCAB];
  const gen_pass pass = {with->prompt, NULL, PROMPT, 0, 1};
  assert_int_equal(gen_forward_run(with->forward, &pass, &logits, &error), TREEATTN_OK);
  softmax(logits, first);
  for (int32_t v = 0; v < VOCAB; ++v) {
    const gen_pass next = {&v, NULL, 1, PROMPT, 1};
    assert_int_equal(gen_forward_run(with->forward, &next, &logits, &error), TREEATTN_OK);
    double second[VOCAB];
    softmax(logits, second);
    for (int w = 0; w < VOCAB; ++w) {
      with->law[v][w] = first[v] * second[w];
    }
  }
}

static void open_tiny(fixture *with) {
  tiny_shape shape = tiny_default();
  shape.vocab_size = VOCAB;
  shape.num_layers = 1;
  shape.width = 64;
  shape.head_dim = 16;
  shape.ffn_width = 64;
  size_t bytes = 0;
  with->file = tiny_make(&shape, &bytes);
  treeattn_error error;
  if (gen_model_open_bytes(with->file, bytes, &with->model, &error) != TREEATTN_OK ||
      gen_forward_create(with->model, 128, GEN_PREFILL_ROWS, 1, &with->forward, &error) != TREEATTN_OK) {
    fail_msg("%s", error.message);
  }
  for (int i = 0; i < PROMPT; ++i) {
    with->prompt[i] = i % VOCAB;
  }
  /* The weights are small: sharpen the output so that the law is far from uniform. */
  float *norm = with->model->output_norm->data;
  for (int d = 0; d < 64; ++d) {
    norm[d] *= 0.12f;
  }
  enumerate(with);
}

static void close_tiny(fixture *with) {
  gen_forward_destroy(with->forward);
  gen_model_close(with->model);
  free(with->file);
}

/* Pearson's statistic with 24 degrees of freedom passes 61.7 once in 30,000 runs; the seed is fixed, so a failure is a
 * defect and comes again. */
static double statistic(const fixture *with, int64_t nodes, int64_t children, double shift, uint64_t seed) {
  static int64_t counts[VOCAB][VOCAB];
  memset(counts, 0, sizeof counts);
  gen_session *session = NULL;
  gen_drafter arbitrary;
  treeattn_error error;
  assert_int_equal(gen_session_create(with->forward, &session, &error), TREEATTN_OK);
  assert_int_equal(gen_drafter_recycle(NULL, &arbitrary, &error), TREEATTN_OK);
  assert_int_equal(gen_session_add_drafter(session, &arbitrary, &error), TREEATTN_OK);
  assert_int_equal(gen_drafter_arbitrary(VOCAB, &arbitrary, &error), TREEATTN_OK);
  assert_int_equal(gen_session_add_drafter(session, &arbitrary, &error), TREEATTN_OK);
  assert_int_equal(gen_session_prompt(session, with->prompt, PROMPT, false, &error), TREEATTN_OK);
  for (uint64_t trial = 0; trial < TRIALS; ++trial) {
    gen_session_rewind(session, PROMPT);
    const gen_decoding decoding = {nodes, children, false, (float)(temperature + shift), seed, trial};
    int64_t emitted = 0;
    for (int64_t done = 0; done < 2; done += emitted) {
      if (gen_session_step(session, &decoding, INT64_MAX, NULL, &emitted, &error) != TREEATTN_OK) {
        fail_msg("%s", error.message);
      }
    }
    ++counts[session->tokens[PROMPT]][session->tokens[PROMPT + 1]];
  }
  gen_session_destroy(session);
  double sum = 0.0;
  for (int v = 0; v < VOCAB; ++v) {
    for (int w = 0; w < VOCAB; ++w) {
      const double expected = with->law[v][w] * TRIALS;
      assert_true(expected > 5.0);
      sum += ((double)counts[v][w] - expected) * ((double)counts[v][w] - expected) / expected;
    }
  }
  return sum;
}

static void test_law_of_two_tokens(void **state) {
  (void)state;
  fixture with;
  memset(&with, 0, sizeof with);
  open_tiny(&with);
  const uint64_t seed = tiny_seed(17);
  static const int64_t shapes[][2] = {{1, 1}, {3, 1}, {4, GEN_MAX_CHILDREN}, {9, GEN_MAX_CHILDREN}};
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
    const double sum = statistic(&with, shapes[s][0], shapes[s][1], 0.0, seed);
    if (!(sum < 61.7)) {
      fail_msg("trees of %d nodes: chi-square %.1f with 24 degrees of freedom (TREEATTN_TEST_SEED=%llu)",
               (int)shapes[s][0], sum, (unsigned long long)seed);
    }
    print_message("trees of %d nodes, %d children: chi-square %.1f with 24 degrees of freedom, seed %llu\n",
                  (int)shapes[s][0], (int)shapes[s][1], sum, (unsigned long long)seed);
  }
  /* The test can fail: a slightly different temperature is another law. */
  assert_true(statistic(&with, 4, GEN_MAX_CHILDREN, 0.2, seed) > 61.7);
  close_tiny(&with);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_law_of_two_tokens)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
