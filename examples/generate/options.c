/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of `treeattn generate`. */
#include <getopt.h>
#include <string.h>
#include <unistd.h>

#include "command.h"

static const char help[] =
    "Usage: treeattn generate [OPTION]... MODEL.gguf\n"
    "Continues a text with a language model, several tokens a step: drafts that need no second model are verified as\n"
    "a tree. Without --temperature the text is that of plain decoding, token by token and bit by bit.\n"
    "\n"
    "  -p, --prompt TEXT           the text to continue\n"
    "  -f, --prompt-file FILE      the same from a file ('-': standard input)\n"
    "      --raw                   take the text as it is; otherwise a chat model is asked it as a question\n"
    "  -n, --tokens N              generate at most N tokens (128)\n"
    "      --tree-nodes N          trees of up to N nodes, 1 to 64; without it, each tree is as large as pays by the\n"
    "                              cost of a step, which is measured first\n"
    "      --chain                 one line of drafts instead of a tree\n"
    "      --plain                 no drafts\n"
    "      --temperature T         sample at temperature T, 0 to 100 (0: take the likeliest token)\n"
    "      --seed N                of the random numbers (0)\n"
    "  -t, --threads N             threads (one for each processor)\n"
    "      --context N             slots of the cache (as many as the run can need)\n"
    "      --compare               decode three times, with trees, chains and plainly; greedy texts must not differ\n"
    "      --attention WHOSE       tree, ggml-flash or ggml-softmax (tree)\n"
    "      --mark HOW              show accepted drafts: auto, never, color, brackets (auto: color on a terminal)\n"
    "      --capture FILE          write the inputs of attention in one step to FILE.safetensors\n"
    "      --capture-layers A,B..  of these layers (0)\n"
    "      --capture-step N        in step N, from 0 (the one that accepts most)\n"
    "      --capture-logits        and the logits of its nodes\n"
    "      --json                  print text and summary as JSON\n"
    "  -h, --help                  show this help\n"
    "\n"
    "Example: treeattn generate -p 'Write a limerick about a tree.' SmolLM2-135M-Instruct.Q4_1.gguf\n";

enum {
  OPTION_RAW = 256,
  OPTION_TREE_NODES,
  OPTION_CHAIN,
  OPTION_PLAIN,
  OPTION_TEMPERATURE,
  OPTION_SEED,
  OPTION_CONTEXT,
  OPTION_COMPARE,
  OPTION_ATTENTION,
  OPTION_MARK,
  OPTION_CAPTURE,
  OPTION_CAPTURE_LAYERS,
  OPTION_CAPTURE_STEP,
  OPTION_CAPTURE_LOGITS,
  OPTION_JSON
};

static const struct option long_options[] = {
    {"prompt", required_argument, NULL, 'p'},
    {"prompt-file", required_argument, NULL, 'f'},
    {"raw", no_argument, NULL, OPTION_RAW},
    {"tokens", required_argument, NULL, 'n'},
    {"tree-nodes", required_argument, NULL, OPTION_TREE_NODES},
    {"chain", no_argument, NULL, OPTION_CHAIN},
    {"plain", no_argument, NULL, OPTION_PLAIN},
    {"temperature", required_argument, NULL, OPTION_TEMPERATURE},
    {"seed", required_argument, NULL, OPTION_SEED},
    {"threads", required_argument, NULL, 't'},
    {"context", required_argument, NULL, OPTION_CONTEXT},
    {"compare", no_argument, NULL, OPTION_COMPARE},
    {"attention", required_argument, NULL, OPTION_ATTENTION},
    {"mark", required_argument, NULL, OPTION_MARK},
    {"capture", required_argument, NULL, OPTION_CAPTURE},
    {"capture-layers", required_argument, NULL, OPTION_CAPTURE_LAYERS},
    {"capture-step", required_argument, NULL, OPTION_CAPTURE_STEP},
    {"capture-logits", no_argument, NULL, OPTION_CAPTURE_LOGITS},
    {"json", no_argument, NULL, OPTION_JSON},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static const char *const attentions[] = {"tree", "ggml-flash", "ggml-softmax", NULL};
static const char *const marks[] = {"auto", "never", "color", "brackets", NULL};

static bool take_option(int option, gen_options *options) {
  switch (option) {
    case 'p': options->prompt = optarg; return true;
    case 'f': options->prompt_file = optarg; return true;
    case 'n': return cli_parse_i64("tokens", optarg, 1, 1 << 20, &options->num_tokens);
    case 't': return cli_parse_i64("threads", optarg, 1, 512, &options->num_threads);
    case OPTION_RAW: options->raw = true; return true;
    case OPTION_TREE_NODES:
      options->measured_size = false;
      return cli_parse_i64("tree-nodes", optarg, 1, GEN_MAX_TREE, &options->tree_nodes);
    case OPTION_CHAIN: options->max_children = 1; return true;
    case OPTION_PLAIN:
      options->tree_nodes = 1;
      options->measured_size = false;
      return true;
    case OPTION_TEMPERATURE: return cli_parse_f64("temperature", optarg, 0.0, 100.0, &options->temperature);
    case OPTION_SEED: return cli_parse_i64("seed", optarg, 0, INT64_MAX, &options->seed);
    case OPTION_CONTEXT: return cli_parse_i64("context", optarg, 2, 1 << 24, &options->context_len);
    case OPTION_COMPARE: options->compare = true; return true;
    case OPTION_ATTENTION: return cli_parse_choice("attention", optarg, attentions, &options->attention);
    case OPTION_MARK: return cli_parse_choice("mark", optarg, marks, &options->mark);
    case OPTION_CAPTURE: options->capture_path = optarg; return true;
    case OPTION_CAPTURE_LAYERS:
      cli_free(options->capture_layers);
      options->capture_layers = NULL;
      return cli_parse_i64_list("capture-layers", optarg, 0, 511, &options->capture_layers,
                                &options->num_capture_layers);
    case OPTION_CAPTURE_STEP: return cli_parse_i64("capture-step", optarg, 0, INT64_MAX, &options->capture_step);
    case OPTION_CAPTURE_LOGITS: options->with_logits = true; return true;
    default: options->json = true; return true;
  }
}

int gen_parse_options(int argc, char **argv, gen_options *options, bool *done) {
  memset(options, 0, sizeof *options);
  options->num_tokens = 128;
  options->tree_nodes = GEN_MAX_TREE;
  options->measured_size = true;
  options->max_children = GEN_MAX_CHILDREN;
  options->capture_step = -1;
  *done = true;
  int option = 0;
  optind = 1;
  while ((option = getopt_long(argc, argv, "p:f:n:t:h", long_options, NULL)) != -1) {
    if (option == 'h') {
      (void)fputs(help, stdout);
      return cli_finish(CLI_OK);
    }
    if (option == '?' || option == ':') {
      return cli_try_help();
    }
    if (!take_option(option, options)) {
      return CLI_USAGE;
    }
  }
  if (argc - optind != 1) {
    return cli_usage_error("one model file is needed, %d were given", argc - optind);
  }
  options->model_path = argv[optind];
  if ((options->prompt == NULL) == (options->prompt_file == NULL)) {
    return cli_usage_error("either --prompt or --prompt-file is needed");
  }
  if (options->attention != GEN_ATTENTION_TREE && options->capture_path != NULL) {
    return cli_usage_error("option --capture: only --attention tree shows its inputs");
  }
  if (options->num_threads == 0) {
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    options->num_threads = processors < 1 ? 1 : processors > 512 ? 512 : processors;
  }
  *done = false;
  return CLI_OK;
}
