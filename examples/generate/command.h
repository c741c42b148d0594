/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of `treeattn generate` share: its options and the opened model. */
#ifndef GENERATE_COMMAND_H
#define GENERATE_COMMAND_H

#include <cli.h>

#include "session.h"
#include "tokenizer.h"

typedef enum gen_mark { GEN_MARK_AUTO, GEN_MARK_NEVER, GEN_MARK_COLOR, GEN_MARK_BRACKETS } gen_mark;

typedef struct gen_options {
  const char *model_path, *prompt, *prompt_file, *capture_path;
  bool raw, compare, json, with_logits;
  int64_t num_tokens, num_threads, context_len, tree_nodes, capture_step;
  bool measured_size;
  int64_t max_children;
  double temperature;
  int64_t seed;
  int attention, mark;
  int64_t *capture_layers;
  size_t num_capture_layers;
} gen_options;

/* Parses the command line; *done: nothing is left to do, and the result is the exit status. */
int gen_parse_options(int argc, char **argv, gen_options *options, bool *done);

/* One way of decoding, run over the same prompt. */
typedef struct gen_run {
  const char *name;
  gen_decoding decoding;
  gen_totals totals;
  int32_t *tokens; /* what was generated */
  int64_t num_tokens;
  double cost[GEN_MAX_TREE]; /* seconds of a step with 1, 2 .. nodes, if measured */
} gen_run;

/* The summary that ends a run, on stderr, or as JSON on stdout. */
int gen_report(const gen_options *options, const gen_forward *forward, const gen_run *runs, int num_runs);

int cmd_generate(int argc, char **argv);

#endif
