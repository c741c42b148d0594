/* SPDX-License-Identifier: Apache-2.0 */
/* `treeattn tree`: makes or reads a draft tree, draws it, and writes it and its mask in other forms. */
#include <getopt.h>
#include <string.h>

#include <treeattn/tree.h>

#include "cli.h"
#include "tree_data.h"
#include "tree_output.h"

static const char help[] = "Usage: treeattn tree [OPTION]... FILE\n"
                           "       treeattn tree [OPTION]... --chain N | --kary K --depth D | --branching LIST |\n"
                           "                     --choices FILE | --shape NAME | --random N\n"
                           "Makes or reads a draft tree, and draws it.\n"
                           "\n"
                           "FILE is a .safetensors, .npz or .npy file with a tensor\n"
                           "  parents  [N]  i32 or i64   -1 for a root, otherwise parents[i] < i\n"
                           "and, of a .safetensors file, optionally `tokens` [N] and in the metadata node_texts and\n"
                           "greedy_path; or JSON, from standard input if FILE is -: a list of parents, or an object\n"
                           "with the lists parents and optionally tokens, texts, ranks and path.\n"
                           "\n"
                           "Shapes:\n"
                           "      --chain N          N nodes, each the child of the one before\n"
                           "      --kary K           K children for every node above the last level\n"
                           "      --depth D          of --kary: levels below the root\n"
                           "      --branching LIST   such as 3,2,1: children of a node of each level\n"
                           "      --choices FILE     JSON: a list of paths of child ranks, such as [[0], [0, 0], [1]]\n"
                           "      --shape NAME       a published list of choices; --shape list prints the names\n"
                           "      --medusa           --shape medusa-mc_sim_7b_63\n"
                           "      --eagle            --shape eagle-mc_sim_7b_63\n"
                           "      --random N         N nodes, each the child of any before it\n"
                           "      --seed S           of --random (default: 0)\n"
                           "\n"
                           "Output, a drawing unless something else is asked for:\n"
                           "      --draw             the drawing too\n"
                           "      --ascii            draw without line characters and letters outside of ASCII\n"
                           "      --json             the tree and what follows from it\n"
                           "      --words BITS       the mask, a row for each node, as words of 32 or 64 bits,\n"
                           "                         lowest column first and in the lowest bit\n"
                           "      --dot FILE         the tree for Graphviz\n"
                           "      --svg FILE         the tree as a picture\n"
                           "      --mask FILE        the mask as a picture: .png or .svg\n"
                           "  -o, --output FILE      parents, positions, intervals and what is known of the nodes, as\n"
                           "                         .safetensors, .npz or .json\n"
                           "      --prefix-len P     tokens before the tree: where positions begin, and columns of\n"
                           "                         --words and --mask that every node sees (default: 0)\n"
                           "      --mark NODES       mark a path as accepted, such as 0,1,29\n"
                           "  -h, --help             show this help\n"
                           "\n"
                           "Example: treeattn tree step.safetensors --mask mask.png --svg tree.svg --draw\n";

enum {
  OPTION_CHAIN = 256, /* the sources first */
  OPTION_KARY,
  OPTION_BRANCHING,
  OPTION_CHOICES,
  OPTION_SHAPE,
  OPTION_MEDUSA,
  OPTION_EAGLE,
  OPTION_RANDOM,
  OPTION_LAST_SOURCE = OPTION_RANDOM,
  OPTION_DEPTH,
  OPTION_SEED,
  OPTION_DRAW,
  OPTION_ASCII,
  OPTION_JSON,
  OPTION_WORDS,
  OPTION_DOT,
  OPTION_SVG,
  OPTION_MASK,
  OPTION_PREFIX_LEN,
  OPTION_MARK
};

static const struct option long_options[] = {
    {"chain", required_argument, NULL, OPTION_CHAIN},
    {"kary", required_argument, NULL, OPTION_KARY},
    {"branching", required_argument, NULL, OPTION_BRANCHING},
    {"choices", required_argument, NULL, OPTION_CHOICES},
    {"shape", required_argument, NULL, OPTION_SHAPE},
    {"medusa", no_argument, NULL, OPTION_MEDUSA},
    {"eagle", no_argument, NULL, OPTION_EAGLE},
    {"random", required_argument, NULL, OPTION_RANDOM},
    {"depth", required_argument, NULL, OPTION_DEPTH},
    {"seed", required_argument, NULL, OPTION_SEED},
    {"draw", no_argument, NULL, OPTION_DRAW},
    {"ascii", no_argument, NULL, OPTION_ASCII},
    {"json", no_argument, NULL, OPTION_JSON},
    {"words", required_argument, NULL, OPTION_WORDS},
    {"dot", required_argument, NULL, OPTION_DOT},
    {"svg", required_argument, NULL, OPTION_SVG},
    {"mask", required_argument, NULL, OPTION_MASK},
    {"output", required_argument, NULL, 'o'},
    {"prefix-len", required_argument, NULL, OPTION_PREFIX_LEN},
    {"mark", required_argument, NULL, OPTION_MARK},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

typedef struct tree_options {
  int source; /* an option, or 0: the file */
  int num_sources;
  const char *path; /* the file, the choices or the name of a shape */
  int64_t number;   /* of --chain, --kary and --random */
  int64_t depth;    /* -1: not given */
  int64_t seed;     /* -1: not given */
  int64_t *branching;
  size_t num_levels;
  int64_t *marked;
  size_t num_marked;
  tree_output output;
} tree_options;

static bool parse_source(int option, const char *text, tree_options *options) {
  options->source = option;
  options->num_sources++;
  switch (option) {
    case OPTION_CHAIN: return cli_parse_i64("chain", text, 0, TREEATTN_TREE_MAX_NODES, &options->number);
    case OPTION_KARY: return cli_parse_i64("kary", text, 0, TREEATTN_TREE_MAX_NODES, &options->number);
    case OPTION_RANDOM: return cli_parse_i64("random", text, 0, TREEATTN_TREE_MAX_NODES, &options->number);
    case OPTION_MEDUSA: options->path = "medusa-mc_sim_7b_63"; return true;
    case OPTION_EAGLE: options->path = "eagle-mc_sim_7b_63"; return true;
    case OPTION_BRANCHING:
      cli_free(options->branching);
      options->branching = NULL;
      return cli_parse_i64_list("branching", text, 0, INT32_MAX, &options->branching, &options->num_levels);
    default: options->path = text; return true;
  }
}

static bool parse_option(int option, const char *text, tree_options *options) {
  static const char *const widths[] = {"32", "64", NULL};
  int index = 0;
  if (option >= OPTION_CHAIN && option <= OPTION_LAST_SOURCE) {
    return parse_source(option, text, options);
  }
  switch (option) {
    case OPTION_DEPTH: return cli_parse_i64("depth", text, 0, TREEATTN_TREE_MAX_NODES, &options->depth);
    case OPTION_SEED: return cli_parse_i64("seed", text, 0, INT64_MAX, &options->seed);
    case OPTION_PREFIX_LEN: return cli_parse_i64("prefix-len", text, 0, INT32_MAX, &options->output.prefix_len);
    case OPTION_DRAW: options->output.draw = true; return true;
    case OPTION_ASCII: options->output.ascii = true; return true;
    case OPTION_JSON: options->output.json = true; return true;
    case OPTION_DOT: options->output.dot_path = text; return true;
    case OPTION_SVG: options->output.svg_path = text; return true;
    case OPTION_MASK: options->output.mask_path = text; return true;
    case 'o': options->output.data_path = text; return true;
    case OPTION_WORDS:
      if (!cli_parse_choice("words", text, widths, &index)) {
        return false;
      }
      options->output.word_bits = index == 0 ? 32 : 64;
      return true;
    case OPTION_MARK:
      cli_free(options->marked);
      options->marked = NULL;
      return cli_parse_i64_list("mark", text, 0, INT32_MAX, &options->marked, &options->num_marked);
    default: return false;
  }
}

/* What can only be said once all options are known. */
static int check_options(const tree_options *options, int num_files) {
  if (num_files > 1) {
    return cli_usage_error("one file is expected, %d are given", num_files);
  }
  if (options->num_sources + num_files == 0) {
    return cli_usage_error("a file or a shape is needed");
  }
  if (options->num_sources + num_files > 1) {
    return cli_usage_error("a file and a shape, or two shapes, are given: one tree is expected");
  }
  if ((options->source == OPTION_KARY) != (options->depth >= 0)) {
    return cli_usage_error("--kary and --depth belong together");
  }
  if (options->seed >= 0 && options->source != OPTION_RANDOM) {
    return cli_usage_error("--seed belongs to --random");
  }
  return tree_output_check(&options->output) ? CLI_OK : CLI_USAGE;
}

static int print_names(void) {
  const char *name = NULL;
  for (int64_t index = 0; (name = treeattn_tree_named_at(index)) != NULL; index++) {
    (void)puts(name);
  }
  return CLI_OK;
}

static bool get_tree(const tree_options *options, tree_data *data) {
  switch (options->source) {
    case OPTION_CHAIN: return tree_data_make_chain(options->number, data);
    case OPTION_KARY: return tree_data_make_kary(options->number, options->depth, data);
    case OPTION_BRANCHING: return tree_data_make_branching(options->branching, options->num_levels, data);
    case OPTION_CHOICES: return tree_data_read_choices(options->path, data);
    case OPTION_RANDOM:
      return tree_data_make_random(options->number, options->seed < 0 ? 0 : (uint64_t)options->seed, data);
    case 0: return tree_data_read(options->path, data);
    default: return tree_data_make_named(options->path, data);
  }
}

static int run(const tree_options *options) {
  if (options->source == OPTION_SHAPE && strcmp(options->path, "list") == 0) {
    return print_names();
  }
  tree_data data = {0, NULL, NULL, NULL, NULL, NULL, NULL};
  const bool good =
      get_tree(options, &data) &&
      (options->marked == NULL || tree_data_mark(&data, "--mark", options->marked, options->num_marked)) &&
      tree_output_write(&options->output, &data);
  tree_data_free(&data);
  return good ? CLI_OK : CLI_FAILURE;
}

int cmd_tree(int argc, char **argv) {
  tree_options options = {.depth = -1, .seed = -1};
  int status = CLI_OK;
  int option = 0;
  optind = 1;
  while (status == CLI_OK && (option = getopt_long(argc, argv, "o:h", long_options, NULL)) != -1) {
    if (option == 'h') {
      (void)fputs(help, stdout);
      cli_free(options.branching);
      cli_free(options.marked);
      return CLI_OK;
    }
    if (option == '?' || option == ':') {
      status = cli_try_help();
    } else if (!parse_option(option, optarg, &options)) {
      status = CLI_USAGE;
    }
  }
  if (status == CLI_OK) {
    status = check_options(&options, argc - optind);
  }
  if (status == CLI_OK) {
    if (optind < argc) {
      options.path = argv[optind];
    }
    status = run(&options);
  }
  cli_free(options.branching);
  cli_free(options.marked);
  return status;
}
