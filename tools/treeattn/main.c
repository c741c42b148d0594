/* SPDX-License-Identifier: Apache-2.0 */
/* From the command line to a subcommand. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "io.h"

typedef struct command {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *summary;
} command;

#ifdef TREEATTN_WITH_GENERATE
int cmd_generate(int argc, char **argv); /* examples/generate */
#endif

static const command commands[] = {
    {"attend", cmd_attend, "attend all nodes of a draft tree, from tensor file to tensor file"},
    {"tree", cmd_tree, "make, read and draw draft trees"},
    {"verify", cmd_verify, "say which drafts a target model accepts"},
    {"compact", cmd_compact, "move an accepted path to where decoding goes on"},
    {"check", cmd_check, "test the library's promises on this machine"},
    {"bench", cmd_bench, "measure speed beside this machine's limits"},
    {"info", cmd_info, "show what this build and this machine can do"},
#ifdef TREEATTN_WITH_GENERATE
    {"generate", cmd_generate, "continue a text with a language model and draft trees"},
#endif
};
static const size_t num_commands = sizeof commands / sizeof commands[0];

static void print_help(FILE *stream) {
  (void)fputs("Usage: treeattn COMMAND [OPTION]... [FILE]...\n"
              "Tree attention for speculative decoding.\n"
              "\n"
              "Commands:\n",
              stream);
  for (size_t c = 0; c < num_commands; ++c) {
    (void)fprintf(stream, "  %-9s %s\n", commands[c].name, commands[c].summary);
  }
  (void)fputs("\n"
              "Options:\n"
              "  -h, --help     show this help\n"
              "  -V, --version  show the version\n"
              "\n"
              "'treeattn COMMAND --help' tells more about a command.\n"
              "Exit status: 0 on success, 1 on failure, 2 if the command line is wrong.\n",
              stream);
}

static int run_command(const command *chosen, int argc, char **argv) {
  char *name = cli_format("treeattn %s", chosen->name);
  if (name == NULL) {
    return cli_out_of_memory();
  }
  cli_set_command(chosen->name);
  argv[0] = name;
  const int status = cli_finish(chosen->run(argc, argv));
  cli_free(name);
  return status;
}

static const command *find_command(const char *name) {
  for (size_t c = 0; c < num_commands; ++c) {
    if (strcmp(commands[c].name, name) == 0) {
      return &commands[c];
    }
  }
  return NULL;
}

static int help_command(int argc, char **argv) {
  const command *chosen = argc > 2 ? find_command(argv[2]) : NULL;
  if (argc > 2 && chosen == NULL) {
    return cli_usage_error("unknown command '%s'", argv[2]);
  }
  if (chosen == NULL) {
    print_help(stdout);
    return cli_finish(CLI_OK);
  }
  char help[] = "--help";
  char *arguments[] = {NULL, help, NULL};
  return run_command(chosen, 2, arguments);
}

int main(int argc, char **argv) {
  cli_hook_json();
  io_guard_signals();
#if defined(TREEATTN_TESTING)
  const char *failing = getenv("TREEATTN_TEST_FAIL_ALLOCATION");
  if (failing != NULL) {
    cli_fail_allocation(strtoull(failing, NULL, 10));
  }
#endif
  if (argc < 2) {
    print_help(stderr);
    return CLI_USAGE;
  }
  const char *name = argv[1];
  if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
    print_help(stdout);
    return cli_finish(CLI_OK);
  }
  if (strcmp(name, "help") == 0) {
    return help_command(argc, argv);
  }
  if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
    (void)printf("treeattn %s\n", treeattn_version());
    return cli_finish(CLI_OK);
  }
  const command *chosen = find_command(name);
  if (chosen == NULL) {
    return cli_usage_error("unknown %s '%s'", name[0] == '-' ? "option" : "command", name);
  }
  return run_command(chosen, argc - 1, argv + 1);
}
