/* SPDX-License-Identifier: Apache-2.0 */
/* `treeattn bench`: measures this machine and the library on it. */
#include <getopt.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

static const char usage[] =
    "Usage: treeattn bench [OPTION]...\n"
    "Measures tree attention on this machine: time, rates, the share of what the machine can do at most (measured in\n"
    "the same run), and the seed's algorithm beside it on the same data and threads.\n"
    "\n"
    "Workloads:\n"
    "  -w, --workload LIST   names out of A to F, or all (default all)\n"
    "      --heads H  --kv-heads G  --head-dim D  --nodes N  --kv-len T  --kv-dtype f32|f16|bf16\n"
    "                        change the chosen workloads; without --workload one of its own, starting from B\n"
    "      --input FILE      the tensors of a file instead: q, k, v and parents\n"
    "      --layer L         layerL.q, layerL.k, layerL.v of that file, or all of its layers\n"
    "\n"
    "Runs:\n"
    "  -t, --threads N       threads (default: one for each processor)\n"
    "  -r, --repeat N        timed runs of each workload, 1 to 1000 (default 9)\n"
    "      --isa ISA         auto, scalar, avx2, avx512 or neon (default auto)\n"
    "      --mask KIND       parents or dense: how the library is told the tree (default parents)\n"
    "      --no-seed         leave out the seed's algorithm\n"
    "      --peer COMMAND    another implementation beside ours, a program that speaks the protocol of\n"
    "                        bench/peers/peer.h; up to 8 of them\n"
    "      --seed S          random seed of data and trees (default 1)\n"
    "\n"
    "Output:\n"
    "      --csv             comma-separated values\n"
    "      --json            one JSON object, with every single time\n"
    "  -h, --help            show this help and exit\n"
    "\n"
    "Exit status: 0 if measured and every row decoded alone has the bits it had in the batch, 1 if not, 2 for a wrong\n"
    "command line.\n";

static const struct {
  const char *name;
  int64_t num_heads, num_kv_heads, head_dim, num_nodes, kv_len;
} named[] = {
    {"A", 40, 8, 128, 1, 8192},  {"B", 40, 8, 128, 64, 8192}, {"C", 40, 8, 128, 16, 32768},
    {"D", 16, 8, 256, 32, 4096}, {"E", 32, 8, 128, 64, 1024}, {"F", 4, 1, 256, 32, 2048},
};
enum { NUM_NAMED = sizeof named / sizeof *named, ALL_LAYERS = -2 };

typedef struct options {
  const char *workloads;                                        /* NULL: all */
  int64_t num_heads, num_kv_heads, head_dim, num_nodes, kv_len; /* 0: as named */
  treeattn_dtype kv_dtype;                                      /* 0: f16 */
  const char *input;
  int64_t layer; /* -1: none is named, -2: all */
  const char *peers[BENCH_MAX_PEERS];
  int num_peers;
  enum { TABLE, CSV, JSON } format;
} options;

static bool overrides(const options *o) {
  return o->num_heads != 0 || o->num_kv_heads != 0 || o->head_dim != 0 || o->num_nodes != 0 || o->kv_len != 0 ||
         o->kv_dtype != 0;
}

/* -1: go on; anything else is an exit status. */
static int parse(int argc, char **argv, options *o, bench_setup *setup) {
  enum {
    HEADS = 256,
    KV_HEADS,
    HEAD_DIM,
    NODES,
    KV_LEN,
    KV_DTYPE,
    INPUT,
    LAYER,
    ISA,
    MASK,
    NO_SEED,
    PEER,
    SEED,
    TO_CSV,
    TO_JSON
  };
  static const struct option table[] = {{"workload", required_argument, NULL, 'w'},
                                        {"heads", required_argument, NULL, HEADS},
                                        {"kv-heads", required_argument, NULL, KV_HEADS},
                                        {"head-dim", required_argument, NULL, HEAD_DIM},
                                        {"nodes", required_argument, NULL, NODES},
                                        {"kv-len", required_argument, NULL, KV_LEN},
                                        {"kv-dtype", required_argument, NULL, KV_DTYPE},
                                        {"input", required_argument, NULL, INPUT},
                                        {"layer", required_argument, NULL, LAYER},
                                        {"threads", required_argument, NULL, 't'},
                                        {"repeat", required_argument, NULL, 'r'},
                                        {"isa", required_argument, NULL, ISA},
                                        {"mask", required_argument, NULL, MASK},
                                        {"no-seed", no_argument, NULL, NO_SEED},
                                        {"peer", required_argument, NULL, PEER},
                                        {"seed", required_argument, NULL, SEED},
                                        {"csv", no_argument, NULL, TO_CSV},
                                        {"json", no_argument, NULL, TO_JSON},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};
  static const char *const dtypes[] = {"f32", "f16", "bf16", NULL};
  static const char *const isas[] = {"auto", "scalar", "avx2", "avx512", "neon", NULL};
  static const char *const masks[] = {"parents", "dense", NULL};
  int choice = 0;
  int64_t number = 0;
  for (int c; (c = getopt_long(argc, argv, "w:t:r:h", table, NULL)) != -1;) {
    bool ok = true;
    switch (c) {
      case 'w': o->workloads = optarg; break;
      case HEADS: ok = cli_parse_i64("heads", optarg, 1, 1 << 16, &o->num_heads); break;
      case KV_HEADS: ok = cli_parse_i64("kv-heads", optarg, 1, 1 << 16, &o->num_kv_heads); break;
      case HEAD_DIM: ok = cli_parse_i64("head-dim", optarg, 8, 1024, &o->head_dim); break;
      case NODES: ok = cli_parse_i64("nodes", optarg, 1, 1 << 20, &o->num_nodes); break;
      case KV_LEN: ok = cli_parse_i64("kv-len", optarg, 1, 1 << 30, &o->kv_len); break;
      case KV_DTYPE:
        ok = cli_parse_choice("kv-dtype", optarg, dtypes, &choice);
        o->kv_dtype = ok ? (treeattn_dtype)(choice + 1) : o->kv_dtype;
        break;
      case INPUT: o->input = optarg; break;
      case LAYER:
        if (strcmp(optarg, "all") == 0) {
          o->layer = ALL_LAYERS;
        } else {
          ok = cli_parse_i64("layer", optarg, 0, 9999, &o->layer);
        }
        break;
      case 't': ok = cli_parse_i64("threads", optarg, 1, 1024, &setup->num_threads); break;
      case 'r': ok = cli_parse_i64("repeat", optarg, 1, BENCH_MAX_REPEAT, &setup->repeat); break;
      case ISA:
        ok = cli_parse_choice("isa", optarg, isas, &choice);
        setup->isa = ok ? (treeattn_isa)choice : setup->isa;
        break;
      case MASK:
        ok = cli_parse_choice("mask", optarg, masks, &choice);
        setup->dense_mask = ok ? choice == 1 : setup->dense_mask;
        break;
      case NO_SEED: setup->with_seed = false; break;
      case PEER:
        if (o->num_peers == BENCH_MAX_PEERS) {
          return cli_usage_error("option --peer: %d at most", BENCH_MAX_PEERS);
        }
        o->peers[o->num_peers++] = optarg;
        break;
      case SEED:
        ok = cli_parse_i64("seed", optarg, 0, INT64_MAX, &number);
        setup->seed = ok ? (uint64_t)number : setup->seed;
        break;
      case TO_CSV: o->format = CSV; break;
      case TO_JSON: o->format = JSON; break;
      case 'h': fputs(usage, stdout); return cli_finish(CLI_OK);
      default: return cli_try_help();
    }
    if (!ok) {
      return CLI_USAGE;
    }
  }
  if (optind < argc) {
    return cli_usage_error("unexpected argument '%s'", argv[optind]);
  }
  if (o->input != NULL && (o->workloads != NULL || overrides(o))) {
    return cli_usage_error("option --input: the file gives the workload; leave out --workload and its sizes");
  }
  if (o->layer != -1 && o->input == NULL) {
    return cli_usage_error("option --layer: needs --input");
  }
  return -1;
}

/* Linux promises more memory than there is; whoever believes it is killed later. */
static bool fits_memory(const problem *p) {
  const double rows = (double)p->num_heads * (double)p->num_nodes;
  const double bytes = (double)p->num_kv_heads * (double)p->kv_capacity * (double)(p->head_dim + p->head_dim_v) *
                           (double)treeattn_dtype_bytes(p->kv_dtype) +
                       rows * 3.0 * (double)p->head_dim * sizeof(float) +
                       (double)p->num_nodes * (double)p->kv_capacity * sizeof(float);
  return bytes < 0.9 * (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

/* The workloads that the options ask for, as sizes with names. An exit status. */
static int choose(const options *o, bench_result *results, size_t *num_results) {
  bool wanted[NUM_NAMED] = {false};
  const char *rest = o->workloads != NULL ? o->workloads : overrides(o) ? "B" : "all";
  while (*rest != '\0') {
    const size_t length = strcspn(rest, ",");
    bool known = length == 3 && strncmp(rest, "all", 3) == 0;
    for (size_t n = 0; n < NUM_NAMED; n++) {
      const bool match = known || (length == 1 && (rest[0] & ~0x20) == named[n].name[0]);
      wanted[n] = wanted[n] || match;
    }
    for (size_t n = 0; n < NUM_NAMED; n++) {
      known = known || (length == 1 && (rest[0] & ~0x20) == named[n].name[0]);
    }
    if (!known) {
      return cli_usage_error("option --workload: '%.*s' is none of A to F, nor all", (int)length, rest);
    }
    rest += length + (rest[length] == ',');
  }
  *num_results = 0;
  for (size_t n = 0; n < NUM_NAMED; n++) {
    if (!wanted[n]) {
      continue;
    }
    bench_result *r = &results[(*num_results)++];
    problem *p = &r->shape;
    const int64_t length = o->kv_len != 0 ? o->kv_len : named[n].kv_len;
    (void)snprintf(r->name, sizeof r->name, "%s%s", o->workloads == NULL && overrides(o) ? "custom" : named[n].name,
                   o->workloads != NULL && overrides(o) ? "*" : "");
    p->num_heads = o->num_heads != 0 ? o->num_heads : named[n].num_heads;
    p->num_kv_heads = o->num_kv_heads != 0 ? o->num_kv_heads : named[n].num_kv_heads;
    p->head_dim = o->head_dim != 0 ? o->head_dim : named[n].head_dim;
    p->head_dim_v = p->head_dim;
    p->num_nodes = o->num_nodes != 0 ? o->num_nodes : named[n].num_nodes;
    p->kv_dtype = o->kv_dtype != 0 ? o->kv_dtype : TREEATTN_F16;
    p->kv_capacity = length;
    p->prefix_len = length - p->num_nodes;
    p->scale = (float)(1.0 / sqrt((double)p->head_dim));
    if (p->num_heads % p->num_kv_heads != 0 || p->head_dim % 8 != 0 || p->num_nodes > length) {
      return cli_usage_error(
          "workload %s: %lld heads over %lld KV heads, head_dim %lld, %lld nodes in %lld slots cannot be", r->name,
          (long long)p->num_heads, (long long)p->num_kv_heads, (long long)p->head_dim, (long long)p->num_nodes,
          (long long)length);
    }
    if (!fits_memory(p)) {
      return cli_error("workload %s: does not fit into the memory of this machine", r->name);
    }
  }
  return *num_results > 0 ? CLI_OK : cli_usage_error("option --workload: names no workload");
}

/* The layers of a file that --layer asks for, as names and numbers. An exit status. */
static int choose_layers(const options *o, bench_result *results, size_t *num_results) {
  int64_t layers[BENCH_MAX_WORKLOADS] = {o->layer};
  *num_results = 1;
  if (o->layer == ALL_LAYERS) {
    if (!problem_list_layers(o->input, layers, BENCH_MAX_WORKLOADS, num_results)) {
      return CLI_FAILURE;
    }
    if (*num_results == 0) {
      return cli_error("%s: holds no layerL.q", o->input);
    }
  }
  for (size_t n = 0; n < *num_results; n++) {
    results[n].layer = layers[n];
    (void)snprintf(results[n].name, sizeof results[n].name, layers[n] < 0 ? "input" : "layer %lld",
                   (long long)layers[n]);
  }
  return CLI_OK;
}

static int measure(bench_setup *setup, const options *o, bench_result *results, size_t num_results) {
  cli_progress_start(&setup->progress, "bench", bench_steps(setup) * (double)num_results);
  int status = CLI_OK;
  for (size_t n = 0; n < num_results && status == CLI_OK; n++) {
    problem p;
    const problem sizes = results[n].shape;
    if (o->input != NULL) {
      if (!problem_load(o->input, results[n].layer, &p)) {
        return CLI_FAILURE;
      }
    } else if (!problem_create_random(&sizes, 1.0f, setup->seed, &p)) {
      return cli_out_of_memory();
    }
    setup->steps_done += 1.0;
    cli_progress_update(&setup->progress, setup->steps_done);
    status = bench_run(setup, &p, &results[n]);
    problem_free(&p);
  }
  cli_progress_end(&setup->progress);
  return status;
}

int cmd_bench(int argc, char **argv) {
  options o = {.layer = -1};
  bench_setup setup = {.repeat = 9, .with_seed = true, .seed = 1};
  int status = parse(argc, argv, &o, &setup);
  if (status >= 0) {
    return status;
  }
  bench_result *results = cli_malloc_array(BENCH_MAX_WORKLOADS, sizeof *results);
  setup.meter = bench_rates_meter_create();
  if (results == NULL || setup.meter == NULL) {
    cli_free(results);
    bench_rates_meter_destroy(setup.meter);
    return cli_out_of_memory();
  }
  memset(results, 0, BENCH_MAX_WORKLOADS * sizeof *results);
  size_t num_results = 1;
  status = o.input != NULL ? choose_layers(&o, results, &num_results) : choose(&o, results, &num_results);
  if (status == CLI_OK && o.num_peers > 0) {
    setup.peers = bench_peers_open(o.peers, o.num_peers);
    status = setup.peers == NULL ? CLI_FAILURE : CLI_OK;
  }

  treeattn_pool *pool = NULL;
  treeattn_error error;
  if (setup.num_threads == 0) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    setup.num_threads = online < 1 ? 1 : online > 1024 ? 1024 : online;
  }
  if (status == CLI_OK && setup.num_threads > 1) {
    if (treeattn_pool_create(setup.num_threads, &pool, &error) != TREEATTN_OK) {
      status = cli_library_error("--threads", &error);
    } else {
      setup.executor = treeattn_pool_executor(pool);
    }
  }
  if (status == CLI_OK) {
    status = measure(&setup, &o, results, num_results);
  }
  bool all_same = true;
  for (size_t n = 0; n < num_results && status == CLI_OK; n++) {
    all_same = all_same && results[n].rows_same == results[n].rows_alone;
  }
  if (status == CLI_OK) {
    status = o.format == CSV    ? bench_print_csv(&setup, results, num_results)
             : o.format == JSON ? bench_print_json(&setup, results, num_results, argc, argv)
                                : bench_print_table(&setup, results, num_results);
  }
  if (status == CLI_OK && !all_same) {
    status = cli_error("rows decoded alone do not carry the bits that they had in the batch");
  }
  bench_peers_close(setup.peers);
  treeattn_pool_destroy(pool);
  bench_rates_meter_destroy(setup.meter);
  cli_free(results);
  return status;
}
