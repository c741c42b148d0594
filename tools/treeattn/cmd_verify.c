/* SPDX-License-Identifier: Apache-2.0 */
/* `treeattn verify`: which drafts of a file are accepted, as JSON. */
#include <float.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cli.h"
#include "io.h"
#include "verify_input.h"

static const char help[] =
    "Usage: treeattn verify [OPTION]... IN\n"
    "Says which drafts of a tree a target model accepts, and which token follows them.\n"
    "\n"
    "IN is a .safetensors or .npz file. Node 0 is the last committed token, the drafts are\n"
    "below it, and row i says what follows node i:\n"
    "  parents      [N]     i32 or i64          -1 for a root, otherwise parents[i] < i\n"
    "  tokens       [N]     i32 or i64\n"
    "  argmax       [N]     i32 or i64          for greedy\n"
    "  logits       [N][V]  f32, f16, bf16      or\n"
    "  probs        [N][V]  f32, f16, bf16\n"
    "  draft_probs  [N][V]  f32, f16, bf16      what the children of node i were drawn from, for\n"
    "                                           residual and without-replacement\n"
    "  uniforms     [M]     f32, in [0, 1)      for the methods that draw: one for each child that\n"
    "                                           is considered, in order, then one for the last\n"
    "                                           token; N always suffice, more are ignored\n"
    "               [R][M]                      R verifications\n"
    "Prints a line of JSON for each verification: path, the nodes from node 0 on, and tokens, the\n"
    "accepted drafts and then the last token.\n"
    "\n"
    "  -m, --method NAME     greedy               the argmax of each row (default)\n"
    "                        target-only          drafts that were chosen, not drawn\n"
    "                        residual             siblings drawn independently\n"
    "                        without-replacement  siblings drawn one after another\n"
    "                        typical              typical acceptance. Lossy: not the target's law\n"
    "  -t, --temperature T   softmax(logits / T) (default: 1); 0: greedy\n"
    "      --from NAME       argmax, logits or probs, where IN has more than one\n"
    "      --seed S          uniforms of the library's generator instead of the tensor\n"
    "      --runs R          as many verifications, each with its own uniforms; needs --seed\n"
    "      --epsilon X, --delta X   of typical: p > min(X, X exp(-H(p))) (default: 0.09, 0.3)\n"
    "      --explain         also print every decision with its probability and uniform\n"
    "      --threads T       threads for many verifications (default: all processors)\n"
    "  -h, --help            show this help\n"
    "\n"
    "Example: treeattn verify step.safetensors --method greedy\n";

typedef struct verify_options {
  const char *path;
  verify_source source;
  treeattn_verify_method method;
  float temperature, epsilon, delta;
  bool has_seed, explain;
  int64_t seed, num_runs, num_threads;
} verify_options;

/* ---- options ---------------------------------------------------------------------------------------------- */

enum { OPTION_FROM = 256, OPTION_SEED, OPTION_RUNS, OPTION_EPSILON, OPTION_DELTA, OPTION_EXPLAIN, OPTION_THREADS };

static const struct option long_options[] = {
    {"method", required_argument, NULL, 'm'},
    {"temperature", required_argument, NULL, 't'},
    {"from", required_argument, NULL, OPTION_FROM},
    {"seed", required_argument, NULL, OPTION_SEED},
    {"runs", required_argument, NULL, OPTION_RUNS},
    {"epsilon", required_argument, NULL, OPTION_EPSILON},
    {"delta", required_argument, NULL, OPTION_DELTA},
    {"explain", no_argument, NULL, OPTION_EXPLAIN},
    {"threads", required_argument, NULL, OPTION_THREADS},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* A number that f32 can hold; one that would become 0 on the way is refused, since 0 has a meaning of its own. */
static bool parse_f32(const char *option, const char *text, float *value) {
  double wide = 0.0;
  if (!cli_parse_f64(option, text, 0.0, FLT_MAX, &wide)) {
    return false;
  }
  if (wide != 0.0 && (float)wide == 0.0f) {
    (void)cli_usage_error("option --%s: %s is too small for an f32", option, text);
    return false;
  }
  *value = (float)wide;
  return true;
}

static bool parse_option(int option, const char *text, verify_options *options) {
  static const char *const methods[] = {"greedy", "target-only", "residual", "without-replacement", "typical", NULL};
  static const char *const sources[] = {"argmax", "logits", "probs", NULL};
  int index = 0;
  switch (option) {
    case 'm':
      if (!cli_parse_choice("method", text, methods, &index)) {
        return false;
      }
      options->method = (treeattn_verify_method)index;
      return true;
    case OPTION_FROM:
      if (!cli_parse_choice("from", text, sources, &index)) {
        return false;
      }
      options->source = (verify_source)(VERIFY_FROM_ARGMAX + index);
      return true;
    case 't': return parse_f32("temperature", text, &options->temperature);
    case OPTION_EPSILON: return parse_f32("epsilon", text, &options->epsilon);
    case OPTION_DELTA: return parse_f32("delta", text, &options->delta);
    case OPTION_EXPLAIN: options->explain = true; return true;
    case OPTION_SEED: options->has_seed = true; return cli_parse_i64("seed", text, 0, INT64_MAX, &options->seed);
    case OPTION_RUNS: return cli_parse_i64("runs", text, 0, INT64_MAX, &options->num_runs);
    default: return cli_parse_i64("threads", text, 1, 1024, &options->num_threads);
  }
}

static int check_options(const verify_options *options, int num_files) {
  if (num_files != 1) {
    return cli_usage_error("one input file is expected, %d are given", num_files);
  }
  if (options->num_runs >= 0 && !options->has_seed) {
    return cli_usage_error("option --runs needs --seed");
  }
  if (options->source == VERIFY_FROM_ARGMAX && options->method != TREEATTN_VERIFY_GREEDY && options->temperature != 0) {
    return cli_usage_error("option --from: argmax serves greedy alone");
  }
  return CLI_OK;
}

/* ---- printing --------------------------------------------------------------------------------------------- */

/* jansson takes over a value that is set or appended even where that fails, and fails where either is NULL. */

static json_t *integers(const int32_t *values, int64_t count) {
  json_t *array = json_array();
  for (int64_t n = 0; n < count; ++n) {
    if (json_array_append_new(array, json_integer(values[n])) != 0) {
      json_decref(array);
      return NULL;
    }
  }
  return array;
}

static json_t *decision_to_json(const treeattn_verify_decision *decision, bool typical) {
  json_t *object = json_object();
  bool good = object != NULL && json_object_set_new(object, "row", json_integer(decision->row)) == 0;
  good =
      good && json_object_set_new(object, "node", decision->node < 0 ? json_null() : json_integer(decision->node)) == 0;
  good = good && json_object_set_new(object, "token", json_integer(decision->token)) == 0;
  good = good && json_object_set_new(object, "probability", cli_json_real(decision->probability)) == 0;
  if (typical && decision->node >= 0) {
    good = good && json_object_set_new(object, "threshold", cli_json_real(decision->threshold)) == 0;
  }
  json_t *uniform = isnan(decision->uniform) ? json_null() : cli_json_real(decision->uniform);
  good = json_object_set_new(object, "uniform", uniform) == 0 && good;
  good = good && json_object_set_new(object, "accepted", json_boolean(decision->accepted)) == 0;
  if (!good) {
    json_decref(object);
    return NULL;
  }
  return object;
}

static int print_result(const treeattn_verify_result *result, bool typical) {
  json_t *object = json_object();
  bool good = object != NULL && json_object_set_new(object, "path", integers(result->path, result->num_path)) == 0;
  good = good && json_object_set_new(object, "tokens", integers(result->tokens, result->num_path)) == 0;
  if (result->decisions != NULL) {
    json_t *decisions = json_array();
    for (int64_t n = 0; good && n < result->num_decisions; ++n) {
      good = json_array_append_new(decisions, decision_to_json(&result->decisions[n], typical)) == 0;
    }
    good = json_object_set_new(object, "decisions", decisions) == 0 && good;
  }
  if (!good) {
    json_decref(object);
    object = NULL;
  }
  return cli_json_print(object, 0);
}

/* ---- the work --------------------------------------------------------------------------------------------- */

/* Verifications are made and printed in portions, so that memory does not grow with their number. */
enum { MOST_AT_ONCE = 256 };

typedef struct verify_work {
  const verify_options *options;
  const verify_input *input;
  int64_t at_once;
  int32_t *numbers;                    /* [at_once][2][num_nodes] */
  treeattn_verify_decision *decisions; /* [at_once][num_nodes] */
  float *uniforms;                     /* [at_once][num_nodes], from the generator; NULL: from the file */
  treeattn_verify_request *requests;
  treeattn_verify_result *results;
  treeattn_verify_args args;
  treeattn_pool *pool;
} verify_work;

/* The library speaks of requests[k]; here it is the verification with that number, or none where there is but one. */
static int report(const verify_work *work, const treeattn_error *error, int64_t first, int64_t num_runs) {
  long long index = 0;
  int length = 0;
  treeattn_error shown = *error;
  if (sscanf(error->message, "requests[%lld].%n", &index, &length) == 1 && length > 0) {
    if (num_runs > 1) {
      (void)snprintf(shown.message, sizeof shown.message, "verification %" PRId64 ": %.200s", first + (int64_t)index,
                     error->message + length);
    } else {
      memmove(shown.message, error->message + length, strlen(error->message + length) + 1);
    }
  }
  return cli_library_error(io_path(work->input->file), &shown);
}

/* Requests and results of `count` verifications from number `first` on. */
static bool set_portion(verify_work *work, int64_t first, int64_t count) {
  const verify_input *input = work->input;
  const int64_t num_nodes = input->request.num_nodes;
  for (int64_t n = 0; n < count; ++n) {
    treeattn_verify_request *request = &work->requests[n];
    *request = input->request;
    request->num_uniforms = input->num_uniforms;
    request->uniforms = input->uniforms != NULL ? input->uniforms + (first + n) * input->num_uniforms : NULL;
    if (work->uniforms != NULL) {
      treeattn_error error;
      float *uniforms = work->uniforms + n * num_nodes;
      if (treeattn_uniforms_fill((uint64_t)work->options->seed, (uint64_t)(first + n), 0, TREEATTN_STREAM_VERIFY,
                                 num_nodes, uniforms, &error) != TREEATTN_OK) {
        (void)cli_library_error(NULL, &error);
        return false;
      }
      request->uniforms = uniforms;
      request->num_uniforms = num_nodes;
    }
    treeattn_verify_result *result = &work->results[n];
    *result = (treeattn_verify_result)TREEATTN_VERIFY_RESULT_INIT;
    result->path = work->numbers + 2 * n * num_nodes;
    result->tokens = result->path + num_nodes;
    result->capacity = num_nodes;
    if (work->decisions != NULL) {
      result->decisions = work->decisions + n * num_nodes;
      result->decisions_capacity = num_nodes;
    }
  }
  work->args.num_requests = count;
  return true;
}

static int run_portions(verify_work *work, int64_t num_runs) {
  treeattn_error error;
  cli_progress progress = {0};
  int status = CLI_OK;
  cli_progress_start(&progress, "verify", (double)num_runs);
  for (int64_t first = 0; first < num_runs && status == CLI_OK; first += work->at_once) {
    const int64_t count = num_runs - first < work->at_once ? num_runs - first : work->at_once;
    if (!set_portion(work, first, count)) {
      status = CLI_FAILURE;
      break;
    }
    if (work->args.scratch == NULL) { /* the first portion is the largest */
      if (treeattn_verify_scratch_bytes(&work->args, &work->args.scratch_bytes, &error) != TREEATTN_OK) {
        status = report(work, &error, first, num_runs);
        break;
      }
      work->args.scratch = cli_malloc(work->args.scratch_bytes);
      if (work->args.scratch == NULL) {
        status = cli_out_of_memory();
        break;
      }
    }
    if (treeattn_verify(&work->args, &error) != TREEATTN_OK) {
      status = report(work, &error, first, num_runs);
    }
    for (int64_t n = 0; n < count && status == CLI_OK; ++n) {
      status = print_result(&work->results[n], work->options->method == TREEATTN_VERIFY_TYPICAL_LOSSY);
    }
    cli_progress_update(&progress, (double)(first + count));
  }
  cli_progress_end(&progress);
  return status;
}

/* A build without a pool library works on one thread, unless more were asked for by name. */
static int make_pool(verify_work *work, int64_t num_runs) {
  const int64_t num_threads = work->options->num_threads;
  treeattn_error error;
  if (num_runs < 2 || num_threads == 1) {
    return CLI_OK;
  }
  const treeattn_status status = treeattn_pool_create(num_threads, &work->pool, &error);
  if (status == TREEATTN_ERROR_UNSUPPORTED && num_threads == 0) {
    return CLI_OK;
  }
  if (status != TREEATTN_OK) {
    return cli_library_error(NULL, &error);
  }
  const int64_t most_workers = 1024, num_workers = treeattn_pool_num_threads(work->pool);
  work->args.num_workers = num_workers < most_workers ? num_workers : most_workers;
  work->args.executor = treeattn_pool_executor(work->pool);
  return CLI_OK;
}

static bool draws(const verify_options *options) {
  return options->temperature != 0 && options->method != TREEATTN_VERIFY_GREEDY &&
         options->method != TREEATTN_VERIFY_TYPICAL_LOSSY;
}

static int verify(const verify_options *options, const verify_input *input) {
  if (draws(options) && !options->has_seed && input->uniforms == NULL) {
    return cli_error("%s: has no tensor uniforms, which %s needs: give one, or --seed", io_path(input->file),
                     treeattn_verify_method_name(options->method));
  }
  const int64_t num_runs = options->num_runs >= 0 ? options->num_runs : input->num_runs;
  const int64_t num_nodes = input->request.num_nodes;
  verify_work work = {.options = options, .input = input, .args = TREEATTN_VERIFY_ARGS_INIT};
  int status = make_pool(&work, num_runs);
  if (status != CLI_OK) {
    return status;
  }
  work.at_once = num_runs < MOST_AT_ONCE ? num_runs : MOST_AT_ONCE;
  const size_t at_once = (size_t)work.at_once,
               nodes = (size_t)num_nodes; /* num_nodes is the length of a tensor in memory */
  work.numbers = cli_malloc_array(at_once, 2 * nodes * sizeof *work.numbers);
  work.decisions = options->explain ? cli_malloc_array(at_once, nodes * sizeof *work.decisions) : NULL;
  work.uniforms = options->has_seed ? cli_malloc_array(at_once, nodes * sizeof *work.uniforms) : NULL;
  work.requests = cli_malloc_array(at_once, sizeof *work.requests);
  work.results = cli_malloc_array(at_once, sizeof *work.results);
  if (work.numbers == NULL || (options->explain && work.decisions == NULL) ||
      (options->has_seed && work.uniforms == NULL) || work.requests == NULL || work.results == NULL) {
    status = cli_out_of_memory();
  } else {
    work.args.vocab_size = input->vocab_size;
    work.args.requests = work.requests;
    work.args.results = work.results;
    status = run_portions(&work, num_runs);
  }
  cli_free(work.args.scratch);
  cli_free(work.results);
  cli_free(work.requests);
  cli_free(work.uniforms);
  cli_free(work.decisions);
  cli_free(work.numbers);
  treeattn_pool_destroy(work.pool);
  return status;
}

int cmd_verify(int argc, char **argv) {
  verify_options options = {.temperature = 1.0f, .num_runs = -1};
  int option;
  while ((option = getopt_long(argc, argv, "m:t:h", long_options, NULL)) != -1) {
    if (option == 'h') {
      (void)fputs(help, stdout);
      return cli_finish(CLI_OK);
    }
    if (option == '?') {
      return cli_try_help();
    }
    if (!parse_option(option, optarg, &options)) {
      return CLI_USAGE;
    }
  }
  int status = check_options(&options, argc - optind);
  if (status != CLI_OK) {
    return status;
  }
  verify_input input = {.request = TREEATTN_VERIFY_REQUEST_INIT};
  input.request.method = options.method;
  input.request.temperature = options.temperature;
  input.request.typical_epsilon = options.epsilon;
  input.request.typical_delta = options.delta;
  status = verify_input_open(argv[optind], options.source, &input) ? verify(&options, &input) : CLI_FAILURE;
  verify_input_close(&input);
  return cli_finish(status);
}
