/* SPDX-License-Identifier: Apache-2.0 */
/* `treeattn check`: holds this machine to the promises. */
#include <getopt.h>
#include <math.h>
#include <string.h>

#include "check.h"

static const char usage[] =
    "Usage: treeattn check [OPTION]...\n"
    "Checks the promises of tree attention on this machine, through the public interface alone, on random requests "
    "and\n"
    "on real ones from a file. Each promise is a line with counts.\n"
    "\n"
    "      --quick        a few seconds instead of about a minute\n"
    "      --seed S       random seed (default 1); the same seed repeats the same checks\n"
    "      --isa ISA      auto, scalar, avx2, avx512 or neon: what is checked (default auto)\n"
    "      --input FILE   also every layer of that file (q, k, v and parents, or layerL.q and so on)\n"
    "      --json         one JSON object\n"
    "  -h, --help         show this help and exit\n"
    "\n"
    "Exit status: 0 if everything holds, 1 if something does not, 2 for a wrong command line.\n";

typedef struct options {
  const char *input;
  uint64_t seed;
  bool json;
} options;

/* -1: go on; anything else is an exit status. */
static int parse(int argc, char **argv, options *o, check_context *c) {
  enum { QUICK = 256, SEED, ISA, INPUT, TO_JSON };
  static const struct option table[] = {{"quick", no_argument, NULL, QUICK},
                                        {"seed", required_argument, NULL, SEED},
                                        {"isa", required_argument, NULL, ISA},
                                        {"input", required_argument, NULL, INPUT},
                                        {"json", no_argument, NULL, TO_JSON},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};
  static const char *const isas[] = {"auto", "scalar", "avx2", "avx512", "neon", NULL};
  int64_t seed = 1;
  int isa = 0;
  for (int option; (option = getopt_long(argc, argv, "h", table, NULL)) != -1;) {
    switch (option) {
      case QUICK: c->quick = true; break;
      case SEED:
        if (!cli_parse_i64("seed", optarg, 0, INT64_MAX, &seed)) {
          return CLI_USAGE;
        }
        break;
      case ISA:
        if (!cli_parse_choice("isa", optarg, isas, &isa)) {
          return CLI_USAGE;
        }
        break;
      case INPUT: o->input = optarg; break;
      case TO_JSON: o->json = true; break;
      case 'h': fputs(usage, stdout); return cli_finish(CLI_OK);
      default: return cli_try_help();
    }
  }
  if (optind < argc) {
    return cli_usage_error("unexpected argument '%s'", argv[optind]);
  }
  o->seed = (uint64_t)seed;
  c->isa = isa == 0 ? treeattn_isa_detect() : (treeattn_isa)isa;
  if (!treeattn_isa_available(c->isa)) {
    return cli_error("option --isa: this machine or this build has no %s", isas[isa]);
  }
  return -1;
}

/* Sizes around the edges of everything that may be done in blocks. */
static bool random_request(check_context *c, int trial, problem *p) {
  static const int64_t dims[] = {8, 32, 64, 80, 96, 128, 192, 256};
  static const int64_t ratios[] = {1, 2, 3, 5, 8};
  static const int64_t prefixes[] = {0, 1, 15, 16, 17, 63, 64, 65, 127, 255, 257, 511, 512, 513, 640, 1023, 1024, 1025};
  static const int64_t long_prefixes[] = {20000, 4097, 8191, 9300, 16385, 8192};
  static const int64_t nodes[] = {1, 2, 3, 7, 16, 17, 24, 33};
  problem sizes = {.kv_dtype = (treeattn_dtype)(TREEATTN_F32 + trial % 3)};
  sizes.num_nodes = nodes[problem_random_below(&c->random, c->quick ? 6 : 8)];
  sizes.prefix_len = prefixes[problem_random_below(&c->random, c->quick ? 12 : 18)];
  sizes.head_dim = dims[problem_random_below(&c->random, 8)];
  sizes.head_dim_v = trial % 4 == 1 ? dims[problem_random_below(&c->random, 8)] : sizes.head_dim;
  sizes.num_kv_heads = 1 + problem_random_below(&c->random, 2);
  if (trial % 9 == 8) { /* long enough that partial results of many positions are merged */
    sizes.num_nodes = trial % 18 == 8 ? 1 + problem_random_below(&c->random, 5) : 24;
    sizes.prefix_len = long_prefixes[trial / 9 % 6];
    sizes.head_dim = 64;
    sizes.num_kv_heads = 1;
  }
  sizes.num_heads = sizes.num_kv_heads * ratios[problem_random_below(&c->random, 5)];
  sizes.kv_capacity = sizes.prefix_len + sizes.num_nodes;
  sizes.scale = (float)(1.0 / sqrt((double)sizes.head_dim));
  sizes.softcap = trial % 5 == 2 ? 5.0f : 0.0f;
  const bool has_window = trial % 9 == 8 ? trial / 9 % 3 == 1 : trial % 3 == 2;
  sizes.window = has_window ? 1 + problem_random_below(&c->random, sizes.prefix_len + 4) : 0;
  int32_t parents[64];
  const int64_t shape = problem_random_below(&c->random, 5);
  for (int64_t i = 0; i < sizes.num_nodes; i++) {
    /* chain, star, comb, forest, any earlier node */
    const int64_t parent = shape == 0   ? i - 1
                           : shape == 1 ? 0
                           : shape == 2 ? (i % 2 == 0 ? i - 2 : i - 1)
                           : shape == 3 ? problem_random_below(&c->random, i + 1) - 1
                                        : problem_random_below(&c->random, i > 0 ? i : 1);
    parents[i] = i == 0 || parent < 0 ? -1 : (int32_t)parent;
  }
  sizes.parents = parents;
  const float amplitude = trial % 2 == 0 ? 1.0f : 3.0f;
  if (!problem_create_random(&sizes, amplitude, problem_random(&c->random), p)) {
    return false;
  }
  if (trial % 3 == 1) {
    p->sinks = cli_malloc_array((size_t)p->num_heads, sizeof *p->sinks);
    if (p->sinks == NULL) {
      problem_free(p);
      return false;
    }
    for (int64_t h = 0; h < p->num_heads; h++) {
      p->sinks[h] = h % 4 == 3 ? -INFINITY : (float)problem_random_below(&c->random, 9) - 4.0f;
    }
  }
  return true;
}

static int check_random_requests(check_context *c, int count) {
  for (int trial = 0; trial < count; trial++) {
    problem p;
    if (!random_request(c, trial, &p)) {
      return cli_out_of_memory();
    }
    char name[160];
    (void)snprintf(
        name, sizeof name, "request %d (%lld/%lld heads, dims %lld/%lld, %lld nodes after %lld, %s, window %lld)",
        trial, (long long)p.num_heads, (long long)p.num_kv_heads, (long long)p.head_dim, (long long)p.head_dim_v,
        (long long)p.num_nodes, (long long)p.prefix_len, treeattn_dtype_name(p.kv_dtype), (long long)p.window);
    c->trial = name;
    const int status = check_request(c, &p);
    c->trial = "";
    problem_free(&p);
    cli_progress_update(&c->progress, 3.0 + trial);
    if (status != CLI_OK) {
      return status;
    }
  }
  return CLI_OK;
}

static int check_file(check_context *c, const char *path, double done, size_t *num_layers) {
  int64_t layers[256];
  if (!problem_list_layers(path, layers, sizeof layers / sizeof *layers, num_layers)) {
    return CLI_FAILURE;
  }
  if (*num_layers == 0) {
    layers[(*num_layers)++] = -1;
  }
  for (size_t n = 0; n < *num_layers; n++) {
    problem p;
    if (!problem_load(path, layers[n], &p)) {
      return CLI_FAILURE;
    }
    char name[160];
    (void)snprintf(name, sizeof name, layers[n] < 0 ? "%s" : "%s layer %lld", path, (long long)layers[n]);
    c->trial = name;
    const int status = check_request(c, &p);
    c->trial = "";
    problem_free(&p);
    cli_progress_update(&c->progress, done + (double)n);
    if (status != CLI_OK) {
      return status;
    }
  }
  return CLI_OK;
}

static void name_lines(check_context *c) {
  static const char *const names[CHECK_NUM_LINES] = {"P1 parity",    "P2 invariance", "P3 path",
                                                     "P4 isolation", "P5 one answer", "P6 encodings",
                                                     "P7 refusals",  "P8 lossless",   "accuracy"};
  static const char *const units[CHECK_NUM_LINES] = {"rows", "rows",   "rows",    "checks", "rows",
                                                     "rows", "inputs", "results", "outputs"};
  static const char *const texts[CHECK_NUM_LINES] = {
      "an explicit causal or window mask against the implicit one",
      "1, 2 and 7 threads, any place in a batch, other rows, fewer heads",
      "each node against its path decoded alone, by this ISA and by scalar",
      "NaN, infinities, 60000 in all that a row does not see; canaries",
      "", /* depends on the machine */
      "parents, chain, intervals, dense, bool, bits; contiguous and paged",
      "bad input: a status, a message naming the field, nothing written",
      "greedy against plain decoding; sampling laws, every outcome enumerated",
      "", /* known at the end */
  };
  for (int n = 0; n < CHECK_NUM_LINES; n++) {
    c->lines[n].name = names[n];
    c->lines[n].unit = units[n];
    (void)snprintf(c->lines[n].what, sizeof c->lines[n].what, "%s", texts[n]);
  }
  char *what = c->lines[CHECK_P5].what;
  const size_t room = sizeof c->lines[CHECK_P5].what;
  size_t used = (size_t)snprintf(what, room, "%s against", treeattn_isa_name(c->isa));
  for (size_t n = 0; n < c->num_isas; n++) {
    if (c->isas[n] != c->isa) {
      used += (size_t)snprintf(what + used, room - used, " %s", treeattn_isa_name(c->isas[n]));
    }
  }
}

static bool line_holds(const check_line *line) {
  return line->compared > 0 && line->differing == 0;
}

static int report_text(const check_context *c, const options *o, int count, size_t num_layers) {
  printf("treeattn %s, isa %s, seed %llu: %d random requests", treeattn_version(), treeattn_isa_name(c->isa),
         (unsigned long long)o->seed, count);
  if (o->input != NULL) {
    printf(" and %zu of %s", num_layers, o->input);
  }
  printf("\n\n");
  for (int n = 0; n < CHECK_NUM_LINES; n++) {
    const check_line *line = &c->lines[n];
    printf("%-14s %-72s %9lld %-8s %5lld differ  %s\n", line->name, line->what, (long long)line->compared, line->unit,
           (long long)line->differing,
           line_holds(line)      ? "ok"
           : line->compared == 0 ? "NOT CHECKED"
                                 : "FAILED");
    if (line->differing > 0) {
      printf("%-14s first: %s\n", "", line->first);
    }
  }
  return cli_finish(CLI_OK);
}

static int report_json(const check_context *c, const options *o, int count, size_t num_layers) {
  json_t *root = json_object();
  json_t *lines = json_array();
  bool ok = root != NULL && lines != NULL;
  for (int n = 0; n < CHECK_NUM_LINES && ok; n++) {
    const check_line *line = &c->lines[n];
    json_t *object = json_pack("{s:s, s:s, s:s, s:I, s:I, s:b}", "name", line->name, "what", line->what, "unit",
                               line->unit, "compared", (json_int_t)line->compared, "differing",
                               (json_int_t)line->differing, "holds", line_holds(line) ? 1 : 0);
    if (object != NULL && line->differing > 0) {
      ok = json_object_set_new(object, "first", json_string(line->first)) == 0;
    }
    ok = json_array_append_new(lines, object) == 0 && ok;
  }
  ok = ok && json_object_set_new(root, "version", json_string(treeattn_version())) == 0 &&
       json_object_set_new(root, "isa", json_string(treeattn_isa_name(c->isa))) == 0 &&
       json_object_set_new(root, "seed", json_integer((json_int_t)o->seed)) == 0 &&
       json_object_set_new(root, "random_requests", json_integer(count)) == 0 &&
       json_object_set_new(root, "file_requests", json_integer((json_int_t)num_layers)) == 0 &&
       json_object_set_new(root, "worst_error", cli_json_real(c->worst_error)) == 0 &&
       json_object_set_new(root, "worst_error_bound", cli_json_real(c->worst_bound)) == 0 &&
       json_object_set_new(root, "lines", json_incref(lines)) == 0;
  json_decref(lines);
  if (!ok) {
    json_decref(root);
    return cli_out_of_memory();
  }
  return cli_finish(cli_json_print(root, 2));
}

static int run(check_context *c, const options *o, int count, size_t *num_layers) {
  cli_progress_start(&c->progress, "check", 3.0 + count + (o->input != NULL ? 6.0 : 0.0));
  int status = check_parity(c);
  cli_progress_update(&c->progress, 1.0);
  if (status == CLI_OK) {
    status = check_refusals(c);
  }
  if (status == CLI_OK) {
    status = check_verification(c);
  }
  cli_progress_update(&c->progress, 2.0);
  if (status == CLI_OK) {
    status = check_random_requests(c, count);
  }
  if (status == CLI_OK && o->input != NULL) {
    status = check_file(c, o->input, 3.0 + count, num_layers);
  }
  cli_progress_end(&c->progress);
  return status;
}

int cmd_check(int argc, char **argv) {
  options o = {.input = NULL};
  check_context c = {.team_sizes = {1, 2, 7}, .trial = "", .worst_bound = 1.0};
  int status = parse(argc, argv, &o, &c);
  if (status >= 0) {
    return status;
  }
  c.random = o.seed;
  static const treeattn_isa all[CHECK_MAX_ISAS] = {TREEATTN_ISA_SCALAR, TREEATTN_ISA_AVX2, TREEATTN_ISA_AVX512,
                                                   TREEATTN_ISA_NEON};
  for (size_t n = 0; n < CHECK_MAX_ISAS; n++) {
    if (treeattn_isa_available(all[n])) {
      c.isas[c.num_isas++] = all[n];
    }
  }
  name_lines(&c);

  treeattn_pool *pools[CHECK_NUM_TEAMS] = {NULL};
  treeattn_error error;
  status = CLI_OK;
  for (int n = 1; n < CHECK_NUM_TEAMS && status == CLI_OK; n++) {
    const treeattn_status made = treeattn_pool_create(c.team_sizes[n], &pools[n], &error);
    if (made == TREEATTN_OK) {
      c.teams[n] = treeattn_pool_executor(pools[n]);
    } else {
      status = cli_library_error(NULL, &error);
    }
  }
  const int count = c.quick ? 9 : 60;
  size_t num_layers = 0;
  if (status == CLI_OK) {
    status = run(&c, &o, count, &num_layers);
  }
  for (int n = 1; n < CHECK_NUM_TEAMS; n++) {
    treeattn_pool_destroy(pools[n]);
  }
  if (status != CLI_OK) {
    return status;
  }
  (void)snprintf(c.lines[CHECK_ACCURACY].what, sizeof c.lines[CHECK_ACCURACY].what,
                 "against float64; closest to its bound: error %.2e, bound %.2e", c.worst_error, c.worst_bound);
  status = o.json ? report_json(&c, &o, count, num_layers) : report_text(&c, &o, count, num_layers);
  for (int n = 0; n < CHECK_NUM_LINES && status == CLI_OK; n++) {
    /* One ISA alone has nothing to be compared with. */
    const bool vacuous = n == CHECK_P5 && c.num_isas == 1;
    status = line_holds(&c.lines[n]) || vacuous ? CLI_OK : CLI_FAILURE;
  }
  return status;
}
