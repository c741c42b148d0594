/* SPDX-License-Identifier: Apache-2.0 */
/* `treeattn generate`: from options to text. */
#include <errno.h>
#include <inttypes.h>
#include <io.h>
#include <string.h>
#include <unistd.h>

#include "capture.h"
#include "command.h"

enum { MAX_PROMPT_BYTES = 1 << 24, MAX_RUNS = 3 };

typedef struct opened {
  gen_model *model;
  gen_tokenizer *tokenizer;
  gen_forward *forward;
  int32_t *prompt;
  int64_t num_prompt;
} opened;

/* ---- the prompt ----------------------------------------------------------------------------------------------- */

static char *read_prompt(const char *path, size_t *length) {
  FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
  char *text = file == NULL ? NULL : cli_malloc(MAX_PROMPT_BYTES);
  if (file == NULL) {
    (void)cli_error("%s: cannot be opened: %s", path, strerror(errno));
    return NULL;
  }
  if (text == NULL) {
    (void)cli_out_of_memory();
  } else {
    *length = fread(text, 1, MAX_PROMPT_BYTES, file);
    if (ferror(file) || *length == MAX_PROMPT_BYTES) {
      (void)cli_error("%s: %s", path, ferror(file) ? strerror(errno) : "longer than any context");
      cli_free(text);
      text = NULL;
    }
  }
  if (file != stdin) {
    (void)fclose(file);
  }
  return text;
}

/* The template of ChatML, which the models with these two control tokens were taught. */
static bool encode(const opened *with, const gen_options *options, const char *text, size_t length, int32_t *tokens,
                   int64_t capacity, int64_t *num_tokens, treeattn_error *error) {
  const bool chat = !options->raw && gen_tokenizer_find(with->tokenizer, "<|im_start|>") >= 0 &&
                    gen_tokenizer_find(with->tokenizer, "<|im_end|>") >= 0;
  static const char before[] = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n";
  static const char after[] = "<|im_end|>\n<|im_start|>assistant\n";
  if (!chat) {
    return gen_tokenizer_encode_prompt(with->tokenizer, text, length, tokens, capacity, num_tokens, error) ==
           TREEATTN_OK;
  }
  return gen_tokenizer_encode_prompt(with->tokenizer, before, sizeof before - 1, tokens, capacity, num_tokens, error) ==
             TREEATTN_OK &&
         gen_tokenizer_encode(with->tokenizer, text, length, false, tokens, capacity, num_tokens, error) ==
             TREEATTN_OK &&
         gen_tokenizer_encode(with->tokenizer, after, sizeof after - 1, true, tokens, capacity, num_tokens, error) ==
             TREEATTN_OK;
}

static int take_prompt(opened *with, const gen_options *options) {
  const char *subject = options->prompt != NULL ? "--prompt" : options->prompt_file;
  size_t length = options->prompt != NULL ? strlen(options->prompt) : 0;
  char *text = options->prompt != NULL ? cli_strdup(options->prompt) : read_prompt(options->prompt_file, &length);
  if (text == NULL) {
    return options->prompt != NULL ? cli_out_of_memory() : CLI_FAILURE;
  }
  const int64_t limit = options->context_len != 0 ? options->context_len : with->model->context_len;
  with->prompt = cli_malloc_array((size_t)limit, sizeof *with->prompt);
  treeattn_error error;
  int status = CLI_OK;
  if (with->prompt == NULL) {
    status = cli_out_of_memory();
  } else if (!encode(with, options, text, length, with->prompt, limit, &with->num_prompt, &error)) {
    status = cli_library_error(subject, &error);
  } else if (with->num_prompt == 0) {
    status = cli_error("%s: the prompt is empty", subject);
  } else if (with->num_prompt >= limit) {
    status = cli_error("%s: the prompt has %" PRId64 " tokens, and the context of %" PRId64 " leaves no room to go on",
                       subject, with->num_prompt, limit);
  }
  cli_free(text);
  return status;
}

/* ---- opening -------------------------------------------------------------------------------------------------- */

static int open_all(const gen_options *options, opened *with) {
  treeattn_error error;
  if (gen_model_open(options->model_path, &with->model, &error) != TREEATTN_OK ||
      gen_tokenizer_from_file(with->model->file, &with->tokenizer, &error) != TREEATTN_OK) {
    return cli_library_error(options->model_path, &error);
  }
  if (options->context_len > with->model->context_len) {
    return cli_usage_error("option --context: %" PRId64 " is more than the model's %" PRId64, options->context_len,
                           with->model->context_len);
  }
  for (size_t k = 0; k < options->num_capture_layers; ++k) {
    if (options->capture_layers[k] >= with->model->num_layers) {
      return cli_usage_error("option --capture-layers: layer %" PRId64 ", but there are %" PRId64,
                             options->capture_layers[k], with->model->num_layers);
    }
  }
  int status = take_prompt(with, options);
  if (status != CLI_OK) {
    return status;
  }
  int64_t capacity = options->context_len;
  if (capacity == 0) {
    capacity = with->num_prompt + options->num_tokens + GEN_MAX_TREE;
    capacity = capacity < with->model->context_len ? capacity : with->model->context_len;
  }
  if (gen_forward_create(with->model, capacity, GEN_PREFILL_ROWS, (int)options->num_threads, &with->forward, &error) !=
      TREEATTN_OK) {
    return cli_library_error(options->model_path, &error);
  }
  with->forward->attention = (gen_attention)options->attention;
  if (options->capture_path != NULL) {
    with->forward->kept_queries =
        cli_malloc_array((size_t)(with->model->num_layers * with->forward->max_rows),
                         (size_t)(with->model->num_heads * with->model->head_dim) * sizeof(float));
    return with->forward->kept_queries == NULL ? cli_out_of_memory() : CLI_OK;
  }
  return CLI_OK;
}

static void close_all(opened *with) {
  if (with->forward != NULL) {
    cli_free(with->forward->kept_queries);
  }
  gen_forward_destroy(with->forward);
  gen_tokenizer_destroy(with->tokenizer);
  gen_model_close(with->model);
  cli_free(with->prompt);
}

/* ---- running -------------------------------------------------------------------------------------------------- */

typedef struct watching {
  gen_capture *capture; /* or NULL */
  bool failed;
} watching;

static treeattn_status watch(void *context, const gen_step *step, treeattn_error *error) {
  watching *state = context;
  (void)error;
  if (state->capture != NULL && !gen_capture_step(state->capture, step)) {
    state->failed = true;
    return TREEATTN_ERROR_BACKEND;
  }
  return TREEATTN_OK;
}

/* The last token of a step is the model's own; those before it were drafts. */
static void show(const opened *with, const gen_options *options, const int32_t *tokens, int64_t num_tokens) {
  const bool color = options->mark == GEN_MARK_COLOR || (options->mark == GEN_MARK_AUTO && isatty(STDOUT_FILENO) == 1);
  const char *begin = color ? "\033[32m" : options->mark == GEN_MARK_BRACKETS ? "[" : "";
  const char *end = color ? "\033[0m" : options->mark == GEN_MARK_BRACKETS ? "]" : "";
  for (int64_t t = 0; t < num_tokens; ++t) {
    char text[1024];
    size_t bytes = gen_tokenizer_decode(with->tokenizer, tokens[t], text, sizeof text);
    bytes = bytes < sizeof text ? bytes : sizeof text;
    const bool draft = t + 1 < num_tokens;
    if (draft) {
      (void)fputs(begin, stdout);
    }
    (void)fwrite(text, 1, bytes, stdout);
    if (draft) {
      (void)fputs(end, stdout);
    }
  }
  (void)fflush(stdout);
}

static int run_session(const opened *with, const gen_options *options, gen_session *session, gen_run *run, bool visible,
                       watching *state) {
  treeattn_error error;
  const gen_watcher watcher = {watch, state};
  treeattn_status status = TREEATTN_OK;
  if (run->decoding.max_nodes > 1) {
    status = gen_session_add_default_drafters(session, with->tokenizer, &error);
  }
  if (status == TREEATTN_OK) {
    status = gen_session_prompt(session, with->prompt, with->num_prompt, false, &error);
  }
  if (status == TREEATTN_OK && run->decoding.measured_size) {
    status = gen_session_measure(session, &error);
  }
  const int32_t end = gen_tokenizer_end(with->tokenizer);
  const int64_t capacity = with->forward->cache.capacity;
  bool ended = false;
  while (status == TREEATTN_OK && !ended && run->num_tokens < options->num_tokens && session->num_tokens <= capacity) {
    const int64_t before = session->num_tokens;
    int64_t num_emitted = 0;
    status = gen_session_step(session, &run->decoding, options->num_tokens - run->num_tokens, &watcher, &num_emitted,
                              &error);
    int64_t kept = 0;
    while (kept < num_emitted && !ended) {
      ended = session->tokens[before + kept] == end;
      kept += ended ? 0 : 1;
    }
    memcpy(run->tokens + run->num_tokens, session->tokens + before, (size_t)kept * sizeof *run->tokens);
    run->num_tokens += kept;
    if (visible) {
      show(with, options, session->tokens + before, kept);
    }
  }
  run->totals = session->totals;
  memcpy(run->cost, session->cost, sizeof run->cost);
  if (status != TREEATTN_OK) {
    return state->failed ? CLI_FAILURE : cli_library_error(options->model_path, &error);
  }
  return CLI_OK;
}

static int run_once(const opened *with, const gen_options *options, gen_run *run, bool first) {
  treeattn_error error;
  gen_session *session = NULL;
  run->tokens = cli_malloc_array((size_t)options->num_tokens + GEN_MAX_TREE, sizeof *run->tokens);
  if (run->tokens == NULL) {
    return cli_out_of_memory();
  }
  if (gen_session_create(with->forward, &session, &error) != TREEATTN_OK) {
    return cli_library_error(options->model_path, &error);
  }
  static const int64_t first_layer[1] = {0};
  gen_capture capture = {.path = options->capture_path,
                         .model_name = options->model_path,
                         .layers = options->capture_layers == NULL ? first_layer : options->capture_layers,
                         .num_layers = options->capture_layers == NULL ? 1 : options->num_capture_layers,
                         .at_step = options->capture_step,
                         .with_logits = options->with_logits,
                         .tokenizer = with->tokenizer,
                         .session = session};
  watching state = {first && options->capture_path != NULL ? &capture : NULL, false};
  int status = run_session(with, options, session, run, first && !options->json, &state);
  if (status == CLI_OK && state.capture != NULL && !capture.written) {
    status = cli_error("%s: there was no step %" PRId64, options->capture_path, options->capture_step);
  }
  gen_session_destroy(session);
  return status;
}

static int run_all(const opened *with, const gen_options *options) {
  gen_run runs[MAX_RUNS];
  memset(runs, 0, sizeof runs);
  static const char *const names[MAX_RUNS] = {"trees", "chains", "plain"};
  const int num_runs = options->compare ? MAX_RUNS : 1;
  int status = CLI_OK;
  int done = 0;
  for (; done < num_runs && status == CLI_OK; ++done) {
    gen_run *run = &runs[done];
    run->name = options->compare ? names[done] : options->tree_nodes == 1 ? "plain" : names[options->max_children == 1];
    run->decoding = (gen_decoding){options->tree_nodes,         options->max_children,   options->measured_size,
                                   (float)options->temperature, (uint64_t)options->seed, 0};
    if (options->compare) {
      run->decoding.max_children = done == 1 ? 1 : run->decoding.max_children;
      run->decoding.max_nodes = done == 2 ? 1 : run->decoding.max_nodes;
      run->decoding.measured_size = run->decoding.measured_size && done != 2;
    }
    status = run_once(with, options, run, done == 0);
  }
  if (!options->json) {
    (void)putchar('\n');
    (void)fflush(stdout);
  }
  if (status == CLI_OK) {
    status = gen_report(options, with->forward, runs, done);
  }
  for (int r = 1; r < done && status == CLI_OK && options->temperature == 0.0; ++r) {
    if (runs[r].num_tokens != runs[0].num_tokens ||
        memcmp(runs[r].tokens, runs[0].tokens, (size_t)runs[0].num_tokens * sizeof *runs[0].tokens) != 0) {
      status = cli_error("the text with %s differs from the text with %s", runs[r].name, runs[0].name);
    }
  }
  for (int r = 0; r < MAX_RUNS; ++r) {
    cli_free(runs[r].tokens);
  }
  return status;
}

int cmd_generate(int argc, char **argv) {
  gen_options options;
  bool done = false;
  int status = gen_parse_options(argc, argv, &options, &done);
  if (!done && options.capture_path != NULL && !io_writer_check_path(options.capture_path)) {
    done = true;
    status = CLI_USAGE;
  }
  if (!done) {
    opened with;
    memset(&with, 0, sizeof with);
    status = open_all(&options, &with);
    if (status == CLI_OK) {
      status = run_all(&with, &options);
    }
    close_all(&with);
  }
  cli_free(options.capture_layers);
  return cli_finish(status);
}
