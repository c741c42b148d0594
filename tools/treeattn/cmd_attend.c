/* SPDX-License-Identifier: Apache-2.0 */
/* `treeattn attend`: the operator from tensor file to tensor file. */
#include <float.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>

#include "attend_cuda.h"
#include "attend_input.h"
#include "attend_run.h"
#include "cli.h"

static const char help[] =
    "Usage: treeattn attend [OPTION]... IN -o OUT\n"
    "Attends all nodes of a draft tree in one call.\n"
    "\n"
    "IN is a .safetensors or .npz file with the tensors\n"
    "  q         [H][N][D]         f32              queries of N nodes and H heads\n"
    "  k         [G][capacity][D]  f32, f16, bf16   prefix in slots 0 to P-1, node i in slot P+i\n"
    "  v         [G][capacity][E]  the type of k    E is usually D\n"
    "  parents   [N]               i32 or i64       -1 for a root, otherwise parents[i] < i\n"
    "  mask      [N][stride]       f32 or bool      instead of parents; stride at least the length of the cache;\n"
    "                                               f32: -65504 and below hide, other values are added; the\n"
    "                                               rows are the last N slots\n"
    "  sinks     [H]               f32              optional\n"
    "  positions [N]               i32 or i64       optional\n"
    "Without parents and mask the nodes are a chain. OUT gets\n"
    "  out       [N][H][E]         f32\n"
    "  lse       [N][H]            f32\n"
    "in the format of its extension: .safetensors, .npz, or .npy, which holds `out` alone.\n"
    "\n"
    "  -o, --output FILE   the output; never left half written, may be IN\n"
    "      --prefix-len P  tokens before the nodes (default: kv-len - N; with a mask that is fixed)\n"
    "      --kv-len T      slots that hold data (default: capacity; with a mask and --prefix-len: P + N)\n"
    "      --layer L       take layerL.q, layerL.k and layerL.v, and layerL.mask, layerL.sinks and\n"
    "                      layerL.positions where present, otherwise the ones without prefix\n"
    "      --scale X       factor of the scores (default: 1/sqrt(D))\n"
    "      --softcap X     scores s become X * tanh(s / X) (default: 0, off)\n"
    "      --window W      see keys less than W positions back, the own included (default: 0, all)\n"
    "      --threads T     threads (default: all processors); the result does not depend on it\n"
    "      --isa NAME      auto, scalar, avx2, avx512 or neon (default: auto); neither on this\n"
    "      --mode NAME     exact or fast (default: exact)\n"
    "      --backend NAME  cpu, or cuda where it is built in: the first GPU, exact or fast\n"
    "                      (default: cpu); --threads and --isa say nothing about a GPU\n"
    "      --q FILE, --k FILE, --v FILE, --parents FILE, --mask FILE, --sinks FILE, --positions FILE\n"
    "                      take this tensor from a file of its own, such as an .npy\n"
    "  -v, --verbose       say on stderr what was done and how long it took\n"
    "  -h, --help          show this help\n"
    "\n"
    "Example: treeattn attend step.safetensors --layer 7 --prefix-len 1063 -o out.safetensors\n";

typedef struct attend_options {
  attend_source source;
  const char *output;
  bool has_scale;
  float scale, softcap;
  int64_t window;
  int64_t num_threads; /* 0: all processors */
  treeattn_isa isa;
  treeattn_mode mode;
  treeattn_backend backend;
  bool verbose;
} attend_options;

/* ---- options ---------------------------------------------------------------------------------------------- */

enum {
  OPTION_PREFIX_LEN = 256,
  OPTION_KV_LEN,
  OPTION_LAYER,
  OPTION_SCALE,
  OPTION_SOFTCAP,
  OPTION_WINDOW,
  OPTION_THREADS,
  OPTION_ISA,
  OPTION_MODE,
  OPTION_BACKEND,
  OPTION_ROLE /* and the roles that follow */
};

static const struct option long_options[] = {
    {"output", required_argument, NULL, 'o'},
    {"prefix-len", required_argument, NULL, OPTION_PREFIX_LEN},
    {"kv-len", required_argument, NULL, OPTION_KV_LEN},
    {"layer", required_argument, NULL, OPTION_LAYER},
    {"scale", required_argument, NULL, OPTION_SCALE},
    {"softcap", required_argument, NULL, OPTION_SOFTCAP},
    {"window", required_argument, NULL, OPTION_WINDOW},
    {"threads", required_argument, NULL, OPTION_THREADS},
    {"isa", required_argument, NULL, OPTION_ISA},
    {"mode", required_argument, NULL, OPTION_MODE},
    {"backend", required_argument, NULL, OPTION_BACKEND},
    {"q", required_argument, NULL, OPTION_ROLE + ATTEND_Q},
    {"k", required_argument, NULL, OPTION_ROLE + ATTEND_K},
    {"v", required_argument, NULL, OPTION_ROLE + ATTEND_V},
    {"parents", required_argument, NULL, OPTION_ROLE + ATTEND_PARENTS},
    {"mask", required_argument, NULL, OPTION_ROLE + ATTEND_MASK},
    {"sinks", required_argument, NULL, OPTION_ROLE + ATTEND_SINKS},
    {"positions", required_argument, NULL, OPTION_ROLE + ATTEND_POSITIONS},
    {"verbose", no_argument, NULL, 'v'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* A number that f32 can hold; one that would become 0 on the way is refused, since 0 has a meaning of its own. */
static bool parse_f32(const char *option, const char *text, double minimum, float *value) {
  double wide = 0.0;
  if (!cli_parse_f64(option, text, minimum, FLT_MAX, &wide)) {
    return false;
  }
  if (wide != 0.0 && (float)wide == 0.0f) {
    (void)cli_usage_error("option --%s: %s is too small for an f32", option, text);
    return false;
  }
  *value = (float)wide;
  return true;
}

static bool parse_backend(const char *text, treeattn_backend *backend) {
  static const char *const names[] = {"cpu", "cuda", "metal", NULL};
  int index = 0;
  if (!cli_parse_choice("backend", text, names, &index)) {
    return false;
  }
  if (index == 2 || (index == 1 && !treeattn_cuda_compiled())) {
    (void)cli_usage_error("option --backend: %s is not in this build", names[index]);
    return false;
  }
  *backend = index == 1 ? TREEATTN_BACKEND_CUDA : TREEATTN_BACKEND_CPU;
  return true;
}

static bool parse_option(int option, const char *text, attend_options *options) {
  static const char *const isa_names[] = {"auto", "scalar", "avx2", "avx512", "neon", NULL};
  static const treeattn_isa isas[] = {TREEATTN_ISA_AUTO, TREEATTN_ISA_SCALAR, TREEATTN_ISA_AVX2, TREEATTN_ISA_AVX512,
                                      TREEATTN_ISA_NEON};
  static const char *const mode_names[] = {"exact", "fast", NULL};
  int index = 0;
  switch (option) {
    case 'o': options->output = text; return true;
    case 'v': options->verbose = true; return true;
    case OPTION_PREFIX_LEN: return cli_parse_i64("prefix-len", text, 0, INT64_MAX, &options->source.prefix_len);
    case OPTION_KV_LEN: return cli_parse_i64("kv-len", text, 0, INT64_MAX, &options->source.kv_len);
    case OPTION_LAYER: return cli_parse_i64("layer", text, 0, INT32_MAX, &options->source.layer);
    case OPTION_SCALE: options->has_scale = true; return parse_f32("scale", text, -FLT_MAX, &options->scale);
    case OPTION_SOFTCAP: return parse_f32("softcap", text, 0.0, &options->softcap);
    case OPTION_WINDOW: return cli_parse_i64("window", text, 0, INT64_MAX, &options->window);
    case OPTION_THREADS: return cli_parse_i64("threads", text, 1, 1024, &options->num_threads);
    case OPTION_BACKEND: return parse_backend(text, &options->backend);
    case OPTION_ISA:
      if (!cli_parse_choice("isa", text, isa_names, &index)) {
        return false;
      }
      options->isa = isas[index];
      return true;
    case OPTION_MODE:
      if (!cli_parse_choice("mode", text, mode_names, &index)) {
        return false;
      }
      options->mode = index == 0 ? TREEATTN_MODE_EXACT : TREEATTN_MODE_FAST;
      return true;
    default: options->source.role_paths[option - OPTION_ROLE] = text; return true;
  }
}

/* What the options leave to be checked once all are known. */
static int check_options(const attend_options *options, int num_files) {
  if (num_files > 1) {
    return cli_usage_error("one input file is expected, %d are given", num_files);
  }
  if (options->source.path == NULL) {
    for (int role = ATTEND_Q; role <= ATTEND_V; ++role) {
      if (options->source.role_paths[role] == NULL) {
        return cli_usage_error("an input file is needed, or --q, --k and --v");
      }
    }
  }
  if (options->output == NULL) {
    return cli_usage_error("an output file is needed: -o FILE");
  }
  return io_writer_check_path(options->output) ? CLI_OK : CLI_USAGE;
}

/* ---- the work --------------------------------------------------------------------------------------------- */

static int save(const attend_options *options, const attend_input *input, const float *out, const float *lse) {
  const int64_t out_shape[] = {input->num_nodes, input->num_heads, input->head_dim_v};
  io_writer *writer = io_writer_create();
  bool good = writer != NULL && io_writer_add(writer, "out", IO_F32, 3, out_shape, out);
  if (good && !io_path_is_npy(options->output)) {
    good = io_writer_add(writer, "lse", IO_F32, 2, out_shape, lse);
  }
  good = good && io_writer_save(writer, options->output);
  io_writer_destroy(writer);
  return good ? CLI_OK : CLI_FAILURE;
}

/* On which processor, and for how long. */
static int run_on(const attend_options *options, const treeattn_plan *plan, const treeattn_run_args *run,
                  treeattn_pool *pool, double *seconds) {
  if (options->backend == TREEATTN_BACKEND_CUDA) {
    return attend_cuda_run(plan, run, seconds);
  }
  treeattn_error error;
  const double started = cli_seconds();
  if (attend_run(plan, run, pool, &error) != TREEATTN_OK) {
    return cli_library_error(NULL, &error);
  }
  *seconds = cli_seconds() - started;
  return CLI_OK;
}

static void say_what_was_done(const attend_options *options, const attend_input *input, const treeattn_plan_info *info,
                              double seconds) {
  char where[64];
  if (options->backend == TREEATTN_BACKEND_CUDA) {
    (void)snprintf(where, sizeof where, "cuda");
  } else {
    (void)snprintf(where, sizeof where, "%s, %" PRId64 " threads", treeattn_isa_name(info->isa), info->num_workers);
  }
  (void)fprintf(stderr,
                "treeattn attend: %" PRId64 " nodes, %" PRId64 " heads on %" PRId64 " KV heads (%s), %" PRId64
                " slots, %s: %.3f ms\n",
                input->num_nodes, input->num_heads, input->num_kv_heads, treeattn_dtype_name(input->kv_dtype),
                input->request.kv_seq_len, where, 1e3 * seconds);
}

static int run_plan(const attend_options *options, const attend_input *input, const treeattn_plan *plan,
                    treeattn_pool *pool) {
  treeattn_error error;
  treeattn_plan_info info = TREEATTN_PLAN_INFO_INIT;
  if (treeattn_plan_get_info(plan, &info, &error) != TREEATTN_OK) {
    return cli_library_error(NULL, &error);
  }
  float *out = cli_malloc(info.out_bytes);
  float *lse = cli_malloc(info.lse_bytes);
  void *scratch = cli_malloc(info.scratch_bytes);
  int status = CLI_OK;
  if (out == NULL || lse == NULL || scratch == NULL) {
    status = cli_error("out of memory: %zu bytes for the output and %zu to work in", info.out_bytes + info.lse_bytes,
                       info.scratch_bytes);
  } else {
    treeattn_run_args run = TREEATTN_RUN_ARGS_INIT;
    run.q = input->q->data;
    run.q_bytes = input->q->bytes;
    run.k = input->k->data;
    run.k_bytes = input->k->bytes;
    run.v = input->v->data;
    run.v_bytes = input->v->bytes;
    run.sinks = input->sinks;
    run.sinks_bytes = input->sinks != NULL ? (size_t)input->num_heads * sizeof(float) : 0;
    run.out = out;
    run.out_bytes = info.out_bytes;
    run.lse = lse;
    run.lse_bytes = info.lse_bytes;
    run.scratch = scratch;
    run.scratch_bytes = info.scratch_bytes;
    double seconds = 0.0;
    status = run_on(options, plan, &run, pool, &seconds);
    if (status == CLI_OK && options->verbose) {
      say_what_was_done(options, input, &info, seconds);
    }
    status = status == CLI_OK ? save(options, input, out, lse) : status;
  }
  cli_free(scratch);
  cli_free(lse);
  cli_free(out);
  return status;
}

/* A build without a pool library works on one thread, unless more were asked for by name. */
static int make_pool(const attend_options *options, treeattn_pool **pool) {
  treeattn_error error;
  *pool = NULL;
  if (options->num_threads == 1 || options->backend != TREEATTN_BACKEND_CPU) {
    return CLI_OK;
  }
  const treeattn_status status = treeattn_pool_create(options->num_threads, pool, &error);
  if (status == TREEATTN_OK || (status == TREEATTN_ERROR_UNSUPPORTED && options->num_threads == 0)) {
    return CLI_OK;
  }
  return cli_library_error(NULL, &error);
}

static int attend(const attend_options *options, const attend_input *input) {
  treeattn_pool *pool;
  int status = make_pool(options, &pool);
  if (status != CLI_OK) {
    return status;
  }
  treeattn_plan_args args = TREEATTN_PLAN_ARGS_INIT;
  args.num_requests = 1;
  args.requests = &input->request;
  args.request_bytes = sizeof input->request;
  args.num_heads = input->num_heads;
  args.num_kv_heads = input->num_kv_heads;
  args.head_dim = input->head_dim;
  args.head_dim_v = input->head_dim_v;
  args.kv_dtype = input->kv_dtype;
  args.scale = options->scale;
  if (!options->has_scale && input->head_dim > 0) {
    args.scale = (float)(1.0 / sqrt((double)input->head_dim));
  }
  args.softcap = options->softcap;
  args.window = options->window;
  args.kv_capacity = input->kv_capacity;
  args.mode = options->mode;
  args.isa = options->isa;
  args.backend = options->backend;
  const int64_t most_workers = 1024, num_threads = treeattn_pool_num_threads(pool);
  args.num_workers = num_threads < most_workers ? num_threads : most_workers;
  treeattn_plan *plan = NULL;
  treeattn_error error;
  if (treeattn_plan_create(&args, &plan, &error) != TREEATTN_OK) {
    status = cli_library_error(input->files[ATTEND_NUM_ROLES] != NULL ? io_path(input->files[ATTEND_NUM_ROLES]) : NULL,
                               &error);
  } else {
    status = run_plan(options, input, plan, pool);
  }
  treeattn_plan_destroy(plan);
  treeattn_pool_destroy(pool);
  return status;
}

int cmd_attend(int argc, char **argv) {
  attend_options options = {.source = {.layer = -1, .prefix_len = -1, .kv_len = -1}};
  int option;
  while ((option = getopt_long(argc, argv, "o:vh", long_options, NULL)) != -1) {
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
  if (optind < argc) {
    options.source.path = argv[optind];
  }
  int status = check_options(&options, argc - optind);
  if (status != CLI_OK) {
    return status;
  }
  if (options.backend == TREEATTN_BACKEND_CUDA) {
    treeattn_cuda_device device;
    status = attend_cuda_find_device(&device);
    if (status != CLI_OK) {
      return status;
    }
  }
  attend_input input;
  status = attend_input_open(&options.source, &input);
  if (status == CLI_OK) {
    status = attend(&options, &input);
  }
  attend_input_close(&input);
  return status;
}
