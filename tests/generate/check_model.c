/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes prompts with trees of many sizes and compares every token and every logit with plain decoding's, bit by bit. */
#include <cli.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "check_log.h"
#include "session.h"
#include "tokenizer.h"

static const char help[] =
    "Usage: treeattn-generate-check [OPTION]... MODEL.gguf PROMPT...\n"
    "Decodes each prompt file greedily with trees and compares with plain decoding on one thread: token ids, and all\n"
    "logits of every row that an accepted token or the last token came from. Trees are always full: where the "
    "drafters\n"
    "have too few candidates, arbitrary tokens fill them. Text ends do not end the decoding.\n"
    "\n"
    "  -n, --tokens N       decode N tokens of each prompt (128)\n"
    "      --trees A,B,..   tree sizes (1,4,8,16,32,64)\n"
    "      --threads A,B,.. numbers of threads (1,2)\n"
    "      --attention WHOSE  tree, ggml-flash or ggml-softmax (tree): differences fail the check for `tree` only\n"
    "      --unfilled       only the drafters' own candidates, as in use: what counts are then the steps\n"
    "      --verbose        a line for each prompt too\n"
    "      --log FILE       append a line to FILE for each prompt and tree as soon as it is counted, and take what "
    "FILE\n"
    "                       holds already from there: for one model and build, so that a long run can be resumed\n"
    "  -h, --help           show this help\n";

static const char *const attentions[] = {"tree", "ggml-flash", "ggml-softmax", NULL};

typedef struct checker {
  const gen_model *model;
  const gen_tokenizer *tokenizer;
  int64_t num_tokens;
  int attention;
  bool unfilled, verbose;
  const char *log;
  int64_t *trees, *threads;
  size_t num_trees, num_threads;
  int32_t *expected; /* plain decoding's tokens [num_tokens] */
  float *rows;       /* plain decoding's logits [num_tokens][vocab_size] */
  int64_t num_prompt;
  bool recording, diverged;
  check_tally *now;
} checker;

/* The row of path[k] says what follows the token at prefix_len + k. */
static treeattn_status compare(void *context, const gen_step *step, treeattn_error *error) {
  checker *check = context;
  (void)error;
  const int64_t vocab_size = check->model->vocab_size;
  for (int64_t k = 0; k < step->num_path; ++k) {
    const int64_t row = step->prefix_len + k - (check->num_prompt - 1);
    if (row >= check->num_tokens) {
      break;
    }
    const float *logits = step->logits + step->path[k] * vocab_size;
    float *expected = check->rows + row * vocab_size;
    if (check->recording) {
      memcpy(expected, logits, (size_t)vocab_size * sizeof *logits);
      check->expected[row] = step->emitted[k];
      continue;
    }
    ++check->now->num_tokens;
    /* After a token that differs the rest is another text; its logits cannot be compared. */
    if (!check->diverged) {
      check->now->num_logits += vocab_size;
      if (memcmp(expected, logits, (size_t)vocab_size * sizeof *logits) != 0) {
        for (int64_t v = 0; v < vocab_size; ++v) {
          check->now->wrong_logits += memcmp(&expected[v], &logits[v], sizeof *logits) != 0 ? 1 : 0;
        }
      }
    }
    if (step->emitted[k] != check->expected[row]) {
      check->diverged = true;
      ++check->now->wrong_tokens;
    }
  }
  return TREEATTN_OK;
}

static treeattn_status add_drafters(const checker *check, gen_session *session, treeattn_error *error) {
  treeattn_status status = gen_session_add_default_drafters(session, check->tokenizer, error);
  gen_drafter drafter;
  if (status == TREEATTN_OK && !check->unfilled) {
    status = gen_drafter_arbitrary(check->model->vocab_size, &drafter, error);
    if (status == TREEATTN_OK) {
      status = gen_session_add_drafter(session, &drafter, error);
    }
  }
  return status;
}

static treeattn_status decode(checker *check, gen_forward *forward, const int32_t *prompt, bool cached, int64_t nodes,
                              check_tally *sum, treeattn_error *error) {
  gen_session *session = NULL;
  check_tally now = {0};
  check->now = &now;
  check->diverged = false;
  treeattn_status status = gen_session_create(forward, &session, error);
  if (status == TREEATTN_OK && nodes > 1) {
    status = add_drafters(check, session, error);
  }
  if (status == TREEATTN_OK) {
    status = gen_session_prompt(session, prompt, check->num_prompt, cached, error);
  }
  const gen_decoding decoding = {nodes, GEN_MAX_CHILDREN, false, 0.0f, 0, 0};
  const gen_watcher watcher = {compare, check};
  /* No limit on the last step: its tree is as full as the others. */
  for (int64_t done = 0, emitted = 0; done < check->num_tokens && status == TREEATTN_OK; done += emitted) {
    status = gen_session_step(session, &decoding, INT64_MAX, &watcher, &emitted, error);
  }
  if (status == TREEATTN_OK) {
    now.num_steps = session->totals.num_steps;
    now.num_nodes = session->totals.num_nodes;
    now.seconds = session->totals.seconds;
    check_tally_add(sum, &now);
  }
  gen_session_destroy(session);
  return status;
}

static void print_tally(const char *name, int64_t threads, int64_t nodes, const check_tally *sum) {
  (void)printf("%-28s %7" PRId64 " %5" PRId64 " %8" PRId64 " %7" PRId64 " %10.3f %10.1f %8" PRId64 " %13" PRId64
               " %13" PRId64 " %8.1f\n",
               name, threads, nodes, sum->num_tokens, sum->num_steps,
               (double)sum->num_steps / (double)(sum->num_tokens == 0 ? 1 : sum->num_tokens),
               (double)sum->num_nodes / (double)(sum->num_steps == 0 ? 1 : sum->num_steps), sum->wrong_tokens,
               sum->num_logits, sum->wrong_logits, sum->seconds);
  (void)fflush(stdout);
}

static treeattn_status create_forward(const checker *check, int64_t threads, gen_forward **forward,
                                      treeattn_error *error) {
  const treeattn_status status =
      gen_forward_create(check->model, check->num_prompt + check->num_tokens + 2 * GEN_MAX_TREE, GEN_PREFILL_ROWS,
                         (int)threads, forward, error);
  if (status == TREEATTN_OK) {
    (*forward)->attention = (gen_attention)check->attention;
  }
  return status;
}

/* Plain decoding on one thread, whatever the trees have. */
static treeattn_status record(checker *check, const int32_t *prompt, treeattn_error *error) {
  gen_forward *forward = NULL;
  check_tally unused = {0};
  treeattn_status status = create_forward(check, 1, &forward, error);
  check->recording = true;
  if (status == TREEATTN_OK) {
    status = decode(check, forward, prompt, false, 1, &unused, error);
  }
  check->recording = false;
  gen_forward_destroy(forward);
  return status;
}

/* The forward is made at the first use, and holds the prompt's keys and values from then on. */
static treeattn_status check_tree(checker *check, const int32_t *prompt, const check_case *about, gen_forward **forward,
                                  bool *recorded, check_tally *tally, treeattn_error *error) {
  treeattn_status status = *recorded ? TREEATTN_OK : record(check, prompt, error);
  *recorded = status == TREEATTN_OK;
  const bool cached = *forward != NULL;
  if (status == TREEATTN_OK && !cached) {
    status = create_forward(check, about->threads, forward, error);
  }
  return status == TREEATTN_OK ? decode(check, *forward, prompt, cached, about->tree, tally, error) : status;
}

static int check_prompt(checker *check, const char *path, check_tally *sums) {
  treeattn_error error;
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    return cli_error("%s: cannot be opened", path);
  }
  static char text[1 << 16];
  const size_t length = fread(text, 1, sizeof text, file);
  (void)fclose(file);
  static int32_t prompt[1 << 14];
  if (gen_tokenizer_encode_prompt(check->tokenizer, text, length, prompt, 1 << 14, &check->num_prompt, &error) !=
      TREEATTN_OK) {
    return cli_library_error(path, &error);
  }
  if (check->num_prompt < 1 || check->num_prompt > 1 << 14) {
    return cli_error("%s: %" PRId64 " tokens", path, check->num_prompt);
  }
  treeattn_status status = TREEATTN_OK;
  const char *name = strrchr(path, '/') == NULL ? path : strrchr(path, '/') + 1;
  bool recorded = false;
  for (size_t t = 0; t < check->num_threads && status == TREEATTN_OK; ++t) {
    gen_forward *forward = NULL;
    for (size_t n = 0; n < check->num_trees && status == TREEATTN_OK; ++n) {
      const check_case about = {
          name, check->num_tokens, check->threads[t], check->trees[n], attentions[check->attention], check->unfilled};
      check_tally one = {0};
      if (!check_log_find(check->log, &about, &one)) {
        status = check_tree(check, prompt, &about, &forward, &recorded, &one, &error);
        if (status == TREEATTN_OK && !check_log_append(check->log, &about, &one)) {
          gen_forward_destroy(forward);
          return cli_error("%s: cannot be written", check->log);
        }
      }
      check_tally_add(&sums[t * check->num_trees + n], &one);
      if (check->verbose && status == TREEATTN_OK) {
        print_tally(name, about.threads, about.tree, &one);
      }
    }
    gen_forward_destroy(forward);
  }
  return status == TREEATTN_OK ? CLI_OK : cli_library_error(path, &error);
}

static int check_all(checker *check, char **paths, int num_paths) {
  check_tally *sums = calloc(check->num_threads * check->num_trees, sizeof *sums);
  check->expected = malloc((size_t)check->num_tokens * sizeof *check->expected);
  check->rows = malloc((size_t)check->num_tokens * (size_t)check->model->vocab_size * sizeof *check->rows);
  if (sums == NULL || check->expected == NULL || check->rows == NULL) {
    return cli_out_of_memory();
  }
  (void)printf("%-28s %7s %5s %8s %7s %10s %10s %8s %13s %13s %8s\n", "prompts", "threads", "tree", "tokens", "steps",
               "steps/tok", "nodes/step", "differ", "logits", "differ", "seconds");
  int status = CLI_OK;
  for (int p = 0; p < num_paths && status == CLI_OK; ++p) {
    status = check_prompt(check, paths[p], sums);
  }
  bool same = true;
  char name[32];
  (void)snprintf(name, sizeof name, "all %d", num_paths);
  for (size_t t = 0; t < check->num_threads && status == CLI_OK; ++t) {
    for (size_t n = 0; n < check->num_trees; ++n) {
      const check_tally *sum = &sums[t * check->num_trees + n];
      same = same && sum->wrong_tokens == 0 && sum->wrong_logits == 0 && sum->num_tokens > 0;
      print_tally(name, check->threads[t], check->trees[n], sum);
    }
  }
  free(sums);
  free(check->expected);
  free(check->rows);
  if (status == CLI_OK && !same && check->attention == GEN_ATTENTION_TREE) {
    status = cli_error("trees and plain decoding differ");
  }
  return status;
}

enum { OPTION_TREES = 256, OPTION_THREADS, OPTION_ATTENTION, OPTION_UNFILLED, OPTION_VERBOSE, OPTION_LOG };

int main(int argc, char **argv) {
  static const struct option long_options[] = {
      {"tokens", required_argument, NULL, 'n'},
      {"trees", required_argument, NULL, OPTION_TREES},
      {"threads", required_argument, NULL, OPTION_THREADS},
      {"attention", required_argument, NULL, OPTION_ATTENTION},
      {"unfilled", no_argument, NULL, OPTION_UNFILLED},
      {"verbose", no_argument, NULL, OPTION_VERBOSE},
      {"log", required_argument, NULL, OPTION_LOG},
      {"help", no_argument, NULL, 'h'},
      {NULL, 0, NULL, 0},
  };
  static int64_t default_trees[] = {1, 4, 8, 16, 32, 64};
  static int64_t default_threads[] = {1, 2};
  checker check = {
      .num_tokens = 128, .trees = default_trees, .num_trees = 6, .threads = default_threads, .num_threads = 2};
  cli_set_command("generate-check");
  int option = 0;
  bool good = true;
  while (good && (option = getopt_long(argc, argv, "n:h", long_options, NULL)) != -1) {
    switch (option) {
      case 'n': good = cli_parse_i64("tokens", optarg, 1, 1 << 14, &check.num_tokens); break;
      case OPTION_TREES:
        good = cli_parse_i64_list("trees", optarg, 1, GEN_MAX_TREE, &check.trees, &check.num_trees);
        break;
      case OPTION_THREADS:
        good = cli_parse_i64_list("threads", optarg, 1, 512, &check.threads, &check.num_threads);
        break;
      case OPTION_ATTENTION: good = cli_parse_choice("attention", optarg, attentions, &check.attention); break;
      case OPTION_UNFILLED: check.unfilled = true; break;
      case OPTION_VERBOSE: check.verbose = true; break;
      case OPTION_LOG: check.log = optarg; break;
      case 'h': (void)fputs(help, stdout); return cli_finish(CLI_OK);
      default: return cli_try_help();
    }
  }
  if (!good) {
    return CLI_USAGE;
  }
  if (argc - optind < 2) {
    return cli_usage_error("a model and at least one prompt are needed");
  }
  treeattn_error error;
  gen_model *model = NULL;
  gen_tokenizer *tokenizer = NULL;
  int status = CLI_OK;
  if (gen_model_open(argv[optind], &model, &error) != TREEATTN_OK ||
      gen_tokenizer_from_file(model->file, &tokenizer, &error) != TREEATTN_OK) {
    status = cli_library_error(argv[optind], &error);
  } else {
    check.model = model;
    check.tokenizer = tokenizer;
    status = check_all(&check, argv + optind + 1, argc - optind - 1);
  }
  gen_tokenizer_destroy(tokenizer);
  gen_model_close(model);
  if (check.trees != default_trees) {
    cli_free(check.trees);
  }
  if (check.threads != default_threads) {
    cli_free(check.threads);
  }
  return cli_finish(status);
}
