/* SPDX-License-Identifier: Apache-2.0 */
/* Samples two tokens after a prompt many times with trees, on a real model, and tests them against plain sampling's law. */
#include <cli.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"
#include "tokenizer.h"

static const char help[] =
    "Usage: treeattn-generate-law [OPTION]... MODEL.gguf PROMPT\n"
    "The law of the two tokens that follow the prompt is computed from plain decoding's logits: pairs that are "
    "expected\n"
    "five times or more are a class each, the pairs that begin likewise one, and all others one. Sampling with trees "
    "must\n"
    "then pass Pearson's chi-square test; its statistic is turned into a normal deviate, and 4 of them fail.\n"
    "\n"
    "      --runs N          continuations (2000)\n"
    "      --tree-nodes N    (4)\n"
    "      --temperature T   (0.8)\n"
    "      --seed N          (1)\n"
    "  -h, --help            show this help\n";

enum { MAX_FIRST = 512, MAX_PROMPT = 4096 };

typedef struct law {
  int64_t vocab_size, runs;
  double temperature;
  double *first;              /* [vocab_size] */
  int32_t *places;            /* [vocab_size]: which of the `second` rows, -1: none */
  double *second[MAX_FIRST];  /* [vocab_size] */
  int64_t *counts[MAX_FIRST]; /* [vocab_size] */
  int64_t num_second, others;
} law;

static void softmax(const law *with, const float *logits, double *probabilities) {
  double largest = (double)logits[0];
  double sum = 0.0;
  for (int64_t v = 1; v < with->vocab_size; ++v) {
    largest = fmax(largest, (double)logits[v]);
  }
  for (int64_t v = 0; v < with->vocab_size; ++v) {
    probabilities[v] = exp(((double)logits[v] - largest) / with->temperature);
    sum += probabilities[v];
  }
  for (int64_t v = 0; v < with->vocab_size; ++v) {
    probabilities[v] /= sum;
  }
}

/* Plain decoding's law: after the prompt, and after each first token that is not rare. */
static treeattn_status enumerate(law *with, gen_forward *forward, const int32_t *prompt, int64_t num_prompt,
                                 treeattn_error *error) {
  const float *logits = NULL;
  const gen_pass last = {prompt + num_prompt - 1, NULL, 1, num_prompt - 1, 1};
  treeattn_status status = gen_forward_run(forward, &last, &logits, error);
  if (status == TREEATTN_OK) {
    softmax(with, logits, with->first);
  }
  for (int64_t v = 0; v < with->vocab_size && status == TREEATTN_OK; ++v) {
    with->places[v] = -1;
    if (with->first[v] * (double)with->runs < 5.0 || with->num_second == MAX_FIRST) {
      continue;
    }
    const int32_t token = (int32_t)v;
    const gen_pass next = {&token, NULL, 1, num_prompt, 1};
    status = gen_forward_run(forward, &next, &logits, error);
    with->second[with->num_second] = malloc((size_t)with->vocab_size * sizeof(double));
    with->counts[with->num_second] = calloc((size_t)with->vocab_size, sizeof(int64_t));
    if (with->second[with->num_second] == NULL || with->counts[with->num_second] == NULL) {
      abort(); /* a test: out of memory is no result */
    }
    if (status == TREEATTN_OK) {
      softmax(with, logits, with->second[with->num_second]);
    }
    with->places[v] = (int32_t)with->num_second++;
  }
  return status;
}

typedef struct pearson {
  double sum;
  int64_t num_classes;
  double pooled_expected;
  int64_t pooled_count;
} pearson;

static void add_class(pearson *test, double expected, int64_t count) {
  if (expected < 5.0) {
    test->pooled_expected += expected;
    test->pooled_count += count;
    return;
  }
  test->sum += ((double)count - expected) * ((double)count - expected) / expected;
  ++test->num_classes;
}

static pearson judge(const law *with) {
  pearson test = {0};
  double left = (double)with->runs;
  for (int64_t v = 0; v < with->vocab_size; ++v) {
    if (with->places[v] < 0) {
      continue;
    }
    const double expected = with->first[v] * (double)with->runs;
    left -= expected;
    double rest = expected;
    int64_t rest_count = 0;
    for (int64_t w = 0; w < with->vocab_size; ++w) {
      const double pair = expected * with->second[with->places[v]][w];
      const int64_t count = with->counts[with->places[v]][w];
      if (pair >= 5.0) {
        add_class(&test, pair, count);
        rest -= pair;
      } else {
        rest_count += count;
      }
    }
    add_class(&test, rest, rest_count);
  }
  test.pooled_expected += left;
  test.pooled_count += with->others;
  if (test.pooled_expected > 0.0) {
    test.sum += ((double)test.pooled_count - test.pooled_expected) *
                ((double)test.pooled_count - test.pooled_expected) / test.pooled_expected;
    ++test.num_classes;
  }
  return test;
}

static treeattn_status sample(law *with, gen_session *session, const gen_decoding *chosen, int64_t num_prompt,
                              treeattn_error *error) {
  treeattn_status status = TREEATTN_OK;
  gen_decoding decoding = *chosen;
  for (int64_t run = 0; run < with->runs && status == TREEATTN_OK; ++run) {
    gen_session_rewind(session, num_prompt);
    decoding.request = (uint64_t)run;
    for (int64_t done = 0, emitted = 0; done < 2 && status == TREEATTN_OK; done += emitted) {
      status = gen_session_step(session, &decoding, INT64_MAX, NULL, &emitted, error);
    }
    const int32_t place = status == TREEATTN_OK ? with->places[session->tokens[num_prompt]] : -1;
    if (place >= 0) {
      ++with->counts[place][session->tokens[num_prompt + 1]];
    } else {
      ++with->others;
    }
  }
  return status;
}

static int run_law(law *with, const gen_model *model, const gen_tokenizer *tokenizer, const char *path,
                   const gen_decoding *decoding) {
  static char text[1 << 14];
  static int32_t prompt[MAX_PROMPT];
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    return cli_error("%s: cannot be opened", path);
  }
  const size_t length = fread(text, 1, sizeof text, file);
  (void)fclose(file);
  int64_t num_prompt = 0;
  treeattn_error error;
  gen_forward *forward = NULL;
  gen_session *session = NULL;
  with->vocab_size = model->vocab_size;
  with->first = malloc((size_t)model->vocab_size * sizeof *with->first);
  with->places = malloc((size_t)model->vocab_size * sizeof *with->places);
  if (with->first == NULL || with->places == NULL) {
    return cli_out_of_memory();
  }
  treeattn_status status =
      gen_tokenizer_encode_prompt(tokenizer, text, length, prompt, MAX_PROMPT, &num_prompt, &error);
  if (status == TREEATTN_OK) {
    status = gen_forward_create(model, MAX_PROMPT + 2 * GEN_MAX_TREE, GEN_PREFILL_ROWS, 1, &forward, &error);
  }
  if (status == TREEATTN_OK) {
    status = gen_session_create(forward, &session, &error);
  }
  if (status == TREEATTN_OK) {
    status = gen_session_add_default_drafters(session, tokenizer, &error);
  }
  if (status == TREEATTN_OK) {
    status = gen_session_prompt(session, prompt, num_prompt, false, &error);
  }
  if (status == TREEATTN_OK) {
    status = enumerate(with, forward, prompt, num_prompt, &error);
  }
  if (status == TREEATTN_OK) {
    status = sample(with, session, decoding, num_prompt, &error);
  }
  int result = status == TREEATTN_OK ? CLI_OK : cli_library_error(path, &error);
  if (result == CLI_OK) {
    const pearson test = judge(with);
    const double freedom = (double)test.num_classes - 1.0;
    /* Wilson and Hilferty: the cube root of chi-square over its degrees is nearly normal. */
    const double deviate = (cbrt(test.sum / freedom) - (1.0 - 2.0 / (9.0 * freedom))) / sqrt(2.0 / (9.0 * freedom));
    (void)printf(
        "%" PRId64 " continuations, trees of up to %" PRId64 " nodes, %.2f tokens a step, temperature %g, seed %" PRIu64
        ": chi-square %.1f with %.0f degrees of freedom, a deviate of %.2f\n",
        with->runs, decoding->max_nodes, (double)session->totals.num_emitted / (double)session->totals.num_steps,
        with->temperature, decoding->seed, test.sum, freedom, deviate);
    if (!(deviate < 4.0) || !(freedom >= 5.0)) {
      result = cli_error("the law of sampling with trees is not that of plain sampling");
    }
  }
  gen_session_destroy(session);
  gen_forward_destroy(forward);
  for (int64_t s = 0; s < with->num_second; ++s) {
    free(with->second[s]);
    free(with->counts[s]);
  }
  free(with->first);
  free(with->places);
  return result;
}

enum { OPTION_RUNS = 256, OPTION_NODES, OPTION_TEMPERATURE, OPTION_SEED };

int main(int argc, char **argv) {
  static const struct option long_options[] = {
      {"runs", required_argument, NULL, OPTION_RUNS},
      {"tree-nodes", required_argument, NULL, OPTION_NODES},
      {"temperature", required_argument, NULL, OPTION_TEMPERATURE},
      {"seed", required_argument, NULL, OPTION_SEED},
      {"help", no_argument, NULL, 'h'},
      {NULL, 0, NULL, 0},
  };
  static law with = {.runs = 2000, .temperature = 0.8};
  int64_t nodes = 4;
  int64_t seed = 1;
  bool good = true;
  int option = 0;
  cli_set_command("generate-law");
  while (good && (option = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
    switch (option) {
      case OPTION_RUNS: good = cli_parse_i64("runs", optarg, 100, 1 << 20, &with.runs); break;
      case OPTION_NODES: good = cli_parse_i64("tree-nodes", optarg, 1, GEN_MAX_TREE, &nodes); break;
      case OPTION_TEMPERATURE: good = cli_parse_f64("temperature", optarg, 0.01, 100.0, &with.temperature); break;
      case OPTION_SEED: good = cli_parse_i64("seed", optarg, 0, INT64_MAX, &seed); break;
      case 'h': (void)fputs(help, stdout); return cli_finish(CLI_OK);
      default: return cli_try_help();
    }
  }
  if (!good) {
    return CLI_USAGE;
  }
  if (argc - optind != 2) {
    return cli_usage_error("a model and a prompt file are needed");
  }
  gen_model *model = NULL;
  gen_tokenizer *tokenizer = NULL;
  treeattn_error error;
  int status = CLI_OK;
  if (gen_model_open(argv[optind], &model, &error) != TREEATTN_OK ||
      gen_tokenizer_from_file(model->file, &tokenizer, &error) != TREEATTN_OK) {
    status = cli_library_error(argv[optind], &error);
  } else {
    const gen_decoding decoding = {nodes, GEN_MAX_CHILDREN, false, (float)with.temperature, (uint64_t)seed, 0};
    status = run_law(&with, model, tokenizer, argv[optind + 1], &decoding);
  }
  gen_tokenizer_destroy(tokenizer);
  gen_model_close(model);
  return cli_finish(status);
}
