/* SPDX-License-Identifier: Apache-2.0 */
/* `treeattn info`: what this build and this machine can do, found out by asking the library and not from a list. */
#include <getopt.h>
#include <inttypes.h>
#include <string.h>
#include <treeattn/attention.h>
#include <treeattn/treeattn_cuda.h>

#include "cli.h"

static const char help[] =
    "Usage: treeattn info [--json]\n"
    "Shows the version, the instruction sets, threads and back ends, and what `attend` supports.\n"
    "The support matrix is asked from the library, a plan for each entry.\n"
    "\n"
    "      --json  print JSON\n"
    "  -h, --help  show this help\n"
    "\n"
    "Example: treeattn info --json | python3 -m json.tool\n";

/* ---- questions to the library ----------------------------------------------------------------------------- */

/* The smallest step that has everything: two nodes, of which one is the other's child, after two prefix tokens. */
enum { NUM_NODES = 2, NUM_SLOTS = 4 };

static const int32_t parents[NUM_NODES] = {-1, 0};
static const int32_t intervals[NUM_NODES][2] = {{0, 2}, {1, 2}};
static const float dense[NUM_NODES][NUM_SLOTS] = {{0, 0, 0, TREEATTN_MASK_HIDDEN}, {0, 0, 0, 0}};
static const float biased[NUM_NODES][NUM_SLOTS] = {{0, 0.5f, 0, TREEATTN_MASK_HIDDEN}, {0, 0, 0, 0}};
static const uint8_t flags[NUM_NODES][NUM_SLOTS] = {{1, 1, 1, 0}, {1, 1, 1, 1}};
static const uint8_t bits[NUM_NODES][1] = {{0x7}, {0xf}};
static const int32_t pages[NUM_SLOTS / 2] = {1, 0};

typedef struct mask_row {
  const char *name;
  treeattn_mask_kind kind;
  const void *mask;
  size_t mask_bytes;
} mask_row;

static const mask_row mask_rows[] = {
    {"chain", TREEATTN_MASK_CHAIN, NULL, 0},
    {"parents", TREEATTN_MASK_PARENTS, parents, sizeof parents},
    {"intervals", TREEATTN_MASK_INTERVALS, intervals, sizeof intervals},
    {"dense f32", TREEATTN_MASK_DENSE_F32, dense, sizeof dense},
    {"dense f32 with bias", TREEATTN_MASK_DENSE_F32, biased, sizeof biased},
    {"dense bool", TREEATTN_MASK_DENSE_BOOL, flags, sizeof flags},
    {"packed bits", TREEATTN_MASK_BITS, bits, sizeof bits},
};
static const size_t num_mask_rows = sizeof mask_rows / sizeof mask_rows[0];

typedef struct question {
  treeattn_request request;
  treeattn_plan_args args;
} question;

static question ask_plain(void) {
  const treeattn_request request = TREEATTN_REQUEST_INIT;
  const treeattn_plan_args args = TREEATTN_PLAN_ARGS_INIT;
  question asked = {request, args};
  asked.request.num_nodes = NUM_NODES;
  asked.request.kv_seq_len = NUM_SLOTS;
  asked.args.num_heads = 2;
  asked.args.num_kv_heads = 1;
  asked.args.head_dim = 64;
  asked.args.kv_dtype = TREEATTN_F32;
  asked.args.scale = 0.125f;
  asked.args.kv_capacity = NUM_SLOTS;
  return asked;
}

static bool is_served(question *asked) {
  asked->args.num_requests = 1;
  asked->args.requests = &asked->request;
  asked->args.request_bytes = sizeof asked->request;
  treeattn_plan *plan = NULL;
  const bool served = treeattn_plan_create(&asked->args, &plan, NULL) == TREEATTN_OK;
  treeattn_plan_destroy(plan);
  return served;
}

static bool is_kv_dtype_served(treeattn_dtype dtype) {
  question asked = ask_plain();
  asked.args.kv_dtype = dtype;
  return is_served(&asked);
}

static bool is_mask_served(const mask_row *row) {
  question asked = ask_plain();
  asked.request.mask_kind = row->kind;
  asked.request.mask = row->mask;
  asked.request.mask_bytes = row->mask_bytes;
  return is_served(&asked);
}

static bool is_head_dim_served(int64_t head_dim, int64_t head_dim_v) {
  question asked = ask_plain();
  asked.args.head_dim = head_dim;
  asked.args.head_dim_v = head_dim_v;
  return is_served(&asked);
}

static bool is_mode_served(treeattn_mode mode) {
  question asked = ask_plain();
  asked.args.mode = mode;
  return is_served(&asked);
}

static bool is_feature_served(const char *feature) {
  question asked = ask_plain();
  if (strcmp(feature, "softcap") == 0) {
    asked.args.softcap = 30.0f;
  } else if (strcmp(feature, "window") == 0) {
    asked.args.window = 2;
  } else if (strcmp(feature, "paged cache") == 0) {
    asked.args.page_size = 2;
    asked.args.num_pages = 2;
    asked.args.kv_capacity = 0;
    asked.request.page_table = pages;
    asked.request.page_table_len = sizeof pages / sizeof pages[0];
  } else if (strcmp(feature, "grouped heads, any ratio") == 0) {
    asked.args.num_heads = 7;
  } else {
    asked.args.head_dim = 576;
    asked.args.head_dim_v = 512;
  }
  return is_served(&asked);
}

static const char *const feature_names[] = {"softcap", "window", "paged cache", "grouped heads, any ratio",
                                            "K and V of different dims"};
static const size_t num_features = sizeof feature_names / sizeof feature_names[0];

/* Smallest, largest and the step between, over everything up to a dimension that nobody uses. */
typedef struct dim_range {
  int64_t first, last, step;
  bool regular;
} dim_range;

static dim_range find_head_dims(void) {
  enum { BEYOND = 2048 };
  dim_range range = {0, 0, 0, true};
  for (int64_t dim = 1; dim <= BEYOND; ++dim) {
    if (!is_head_dim_served(dim, dim)) {
      continue;
    }
    if (range.first == 0) {
      range.first = dim;
    } else if (range.step == 0) {
      range.step = dim - range.last;
    } else if (dim - range.last != range.step) {
      range.regular = false;
    }
    range.last = dim;
  }
  return range;
}

/* ---- answers ---------------------------------------------------------------------------------------------- */

static const treeattn_isa isas[] = {TREEATTN_ISA_SCALAR, TREEATTN_ISA_AVX2, TREEATTN_ISA_AVX512, TREEATTN_ISA_NEON};
static const treeattn_dtype kv_dtypes[] = {TREEATTN_F32, TREEATTN_F16, TREEATTN_BF16};

static const char *compiler(void) {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#else
  return "unknown";
#endif
}

static const char *architecture(void) {
#if defined(__x86_64__)
  return "x86-64";
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "other";
#endif
}

/* 0: a build without the pool library. */
static int64_t pool_threads(void) {
  treeattn_pool *pool = NULL;
  if (treeattn_pool_create(0, &pool, NULL) != TREEATTN_OK) {
    return 0;
  }
  const int64_t num_threads = treeattn_pool_num_threads(pool);
  treeattn_pool_destroy(pool);
  return num_threads;
}

/* Number of GPUs that CUDA knows; `reason` says why there is none, and why one is not usable. */
static int32_t count_cuda_devices(char *reason, size_t bytes) {
  treeattn_error error;
  int32_t count = 0;
  reason[0] = '\0';
  if (!treeattn_cuda_compiled()) {
    (void)snprintf(reason, bytes, "not in this build");
  } else if (treeattn_cuda_device_count(&count, &error) != TREEATTN_OK) {
    (void)snprintf(reason, bytes, "%s", error.message);
    count = 0;
  } else if (count == 0) {
    (void)snprintf(reason, bytes, "in this build, but there is no device, or no driver for it");
  }
  return count;
}

static treeattn_cuda_device get_cuda_device(int32_t index) {
  treeattn_error error;
  treeattn_cuda_device device = TREEATTN_CUDA_DEVICE_INIT;
  if (treeattn_cuda_get_device(index, &device, &error) != TREEATTN_OK) {
    const treeattn_cuda_device fresh = TREEATTN_CUDA_DEVICE_INIT;
    device = fresh;
    (void)snprintf(device.name, sizeof device.name, "device %" PRId32, index);
    (void)snprintf(device.reason, sizeof device.reason, "%.127s", error.message);
  }
  return device;
}

static const char *yes(bool answer) {
  return answer ? "yes" : "no";
}

static void print_cuda(void) {
  char reason[TREEATTN_ERROR_MESSAGE_BYTES];
  const int32_t count = count_cuda_devices(reason, sizeof reason);
  if (count == 0) {
    (void)printf("  cuda         %s\n", reason);
  }
  for (int32_t n = 0; n < count; ++n) {
    const treeattn_cuda_device device = get_cuda_device(n);
    (void)printf("  cuda %-7" PRId32 " %s, compute capability %d.%d, %d multiprocessors, %.1f GiB%s%s\n", n,
                 device.name, (int)device.major, (int)device.minor, (int)device.num_multiprocessors,
                 (double)device.memory_bytes / 1073741824.0, device.usable ? "" : "; not usable: ", device.reason);
  }
}

static int print_text(void) {
  (void)printf("treeattn %s\n", treeattn_version());
  (void)printf("  built with   %s for %s, headers %s\n", compiler(), architecture(), TREEATTN_VERSION_STRING);
  (void)printf("\nBack ends\n");
  (void)printf("  cpu          yes\n");
  print_cuda();
  (void)printf("  metal        not in this build\n");
  (void)printf("\nInstruction sets\n");
  for (size_t n = 0; n < sizeof isas / sizeof isas[0]; ++n) {
    (void)printf("  %-12s %s%s\n", treeattn_isa_name(isas[n]), yes(treeattn_isa_available(isas[n]) != 0),
                 isas[n] == treeattn_isa_detect() ? ", chosen" : "");
  }
  const int64_t num_threads = pool_threads();
  (void)printf("\nThreads\n");
  if (num_threads > 0) {
    (void)printf("  pool         pthreadpool, %" PRId64 " threads\n", num_threads);
  } else {
    (void)printf("  pool         not in this build\n");
  }
  (void)printf("\nModes\n");
  (void)printf("  exact        %s\n  fast         %s\n", yes(is_mode_served(TREEATTN_MODE_EXACT)),
               yes(is_mode_served(TREEATTN_MODE_FAST)));
  (void)printf("\nAttention\n");
  const dim_range dims = find_head_dims();
  (void)printf("  head dims    %" PRId64 " to %" PRId64 " in steps of %" PRId64 "%s\n", dims.first, dims.last,
               dims.step, dims.regular ? "" : ", with gaps");
  (void)printf("  KV types    ");
  for (size_t n = 0; n < sizeof kv_dtypes / sizeof kv_dtypes[0]; ++n) {
    if (is_kv_dtype_served(kv_dtypes[n])) {
      (void)printf(" %s", treeattn_dtype_name(kv_dtypes[n]));
    }
  }
  (void)printf("\n");
  for (size_t n = 0; n < num_mask_rows; ++n) {
    (void)printf("  %-26s %s\n", mask_rows[n].name, yes(is_mask_served(&mask_rows[n])));
  }
  for (size_t n = 0; n < num_features; ++n) {
    (void)printf("  %-26s %s\n", feature_names[n], yes(is_feature_served(feature_names[n])));
  }
  return cli_finish(CLI_OK);
}

/* Puts `value`, which may be NULL for want of memory, into an object; *built stays true only if all went well. */
static void put(json_t *object, const char *key, json_t *value, bool *built) {
  *built = json_object_set_new(object, key, value) == 0 && *built;
}

static void append(json_t *array, const char *text, bool *built) {
  *built = json_array_append_new(array, json_string(text)) == 0 && *built;
}

static json_t *backends_json(bool *built) {
  json_t *backends = json_object();
  put(backends, "cpu", json_true(), built);
  put(backends, "cuda", json_boolean(treeattn_cuda_compiled()), built);
  put(backends, "metal", json_false(), built);
  return backends;
}

static json_t *cuda_json(bool *built) {
  char reason[TREEATTN_ERROR_MESSAGE_BYTES];
  const int32_t count = count_cuda_devices(reason, sizeof reason);
  json_t *devices = json_array();
  for (int32_t n = 0; n < count; ++n) {
    const treeattn_cuda_device device = get_cuda_device(n);
    json_t *entry = json_object();
    put(entry, "name", json_string(device.name), built);
    put(entry, "major", json_integer(device.major), built);
    put(entry, "minor", json_integer(device.minor), built);
    put(entry, "multiprocessors", json_integer(device.num_multiprocessors), built);
    put(entry, "memory_bytes", json_integer((json_int_t)device.memory_bytes), built);
    put(entry, "usable", json_boolean(device.usable), built);
    put(entry, "reason", json_string(device.reason), built);
    *built = json_array_append_new(devices, entry) == 0 && *built;
  }
  json_t *cuda = json_object();
  put(cuda, "devices", devices, built);
  put(cuda, "reason", json_string(reason), built);
  return cuda;
}

static json_t *isa_json(bool *built) {
  json_t *available = json_array();
  for (size_t n = 0; n < sizeof isas / sizeof isas[0]; ++n) {
    if (treeattn_isa_available(isas[n]) != 0) {
      append(available, treeattn_isa_name(isas[n]), built);
    }
  }
  json_t *isa = json_object();
  put(isa, "available", available, built);
  put(isa, "chosen", json_string(treeattn_isa_name(treeattn_isa_detect())), built);
  return isa;
}

static json_t *modes_json(bool *built) {
  json_t *modes = json_object();
  put(modes, "exact", json_boolean(is_mode_served(TREEATTN_MODE_EXACT)), built);
  put(modes, "fast", json_boolean(is_mode_served(TREEATTN_MODE_FAST)), built);
  return modes;
}

static json_t *attention_json(bool *built) {
  const dim_range dims = find_head_dims();
  json_t *head_dims = json_object();
  put(head_dims, "min", json_integer(dims.first), built);
  put(head_dims, "max", json_integer(dims.last), built);
  put(head_dims, "step", json_integer(dims.step), built);
  json_t *types = json_array();
  for (size_t n = 0; n < sizeof kv_dtypes / sizeof kv_dtypes[0]; ++n) {
    if (is_kv_dtype_served(kv_dtypes[n])) {
      append(types, treeattn_dtype_name(kv_dtypes[n]), built);
    }
  }
  json_t *masks = json_object();
  for (size_t n = 0; n < num_mask_rows; ++n) {
    put(masks, mask_rows[n].name, json_boolean(is_mask_served(&mask_rows[n])), built);
  }
  json_t *features = json_object();
  for (size_t n = 0; n < num_features; ++n) {
    put(features, feature_names[n], json_boolean(is_feature_served(feature_names[n])), built);
  }
  json_t *attention = json_object();
  put(attention, "head_dims", head_dims, built);
  put(attention, "kv_dtypes", types, built);
  put(attention, "masks", masks, built);
  put(attention, "features", features, built);
  return attention;
}

static int print_json(void) {
  bool built = true;
  json_t *root = json_object();
  put(root, "version", json_string(treeattn_version()), &built);
  put(root, "compiler", json_string(compiler()), &built);
  put(root, "architecture", json_string(architecture()), &built);
  put(root, "backends", backends_json(&built), &built);
  put(root, "cuda", cuda_json(&built), &built);
  put(root, "isa", isa_json(&built), &built);
  put(root, "pool_threads", json_integer(pool_threads()), &built);
  put(root, "modes", modes_json(&built), &built);
  put(root, "attention", attention_json(&built), &built);
  if (!built) {
    json_decref(root);
    root = NULL;
  }
  return cli_finish(cli_json_print(root, 2));
}

int cmd_info(int argc, char **argv) {
  static const struct option long_options[] = {
      {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
  bool json = false;
  int option;
  while ((option = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
    switch (option) {
      case 'h': (void)fputs(help, stdout); return cli_finish(CLI_OK);
      case 'j': json = true; break;
      default: return cli_try_help();
    }
  }
  if (optind < argc) {
    return cli_usage_error("unexpected argument '%s'", argv[optind]);
  }
  return json ? print_json() : print_text();
}
