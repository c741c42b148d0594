/* SPDX-License-Identifier: Apache-2.0 */
/* `treeattn compact`: the moves of an accepted path on the cache tensors of a file. */
#include <getopt.h>
#include <inttypes.h>
#include <string.h>

#include <treeattn/commit.h>

#include "cli.h"
#include "io.h"

static const char help[] =
    "Usage: treeattn compact [OPTION]... IN -o OUT --prefix-len P --path NODES\n"
    "Moves the cache rows of an accepted path to where decoding goes on: afterwards slot\n"
    "P+i holds what slot P+NODES[i] held.\n"
    "\n"
    "IN is a .safetensors or .npz file. The moves are made in every tensor named k, v,\n"
    "layerL.k or layerL.v, of any type, since rows move as bytes:\n"
    "  [G][capacity][D]          a contiguous cache\n"
    "  [pages][G][page_size][D]  a cache in pages\n"
    "A file is taken to be in pages if --page-table is given or it has a tensor\n"
    "  page_table  [entries]     i32 or i64: the page that holds slots entry * page_size on\n"
    "Where there is a tensor `parents` [N], nodes from N on are refused. Everything else, other\n"
    "tensors, metadata and the order of both, is in OUT byte for byte as it was in IN.\n"
    "\n"
    "  -o, --output FILE       the output; never left half written, may be IN; the format of IN\n"
    "      --prefix-len P      tokens before the nodes\n"
    "      --path NODES        the accepted nodes in order, such as 0,2,5\n"
    "      --page-table PAGES  such as 3,0,2; goes before the tensor page_table\n"
    "      --tensor NAME       move rows in this tensor too, the scales of a quantised cache, say:\n"
    "                          [G][capacity]... or [pages][G][page_size]...; may be repeated\n"
    "  -v, --verbose           say on stderr what was moved\n"
    "  -h, --help              show this help\n"
    "\n"
    "Example: treeattn compact step.safetensors -o next.safetensors --prefix-len 1063 \\\n"
    "           --path \"$(treeattn verify step.safetensors --method greedy | jq -r '.path | join(\",\")')\"\n";

typedef struct compact_options {
  const char *input, *output;
  int64_t prefix_len; /* -1: not given */
  int32_t *path;
  size_t path_len;
  int32_t *page_table; /* NULL: not given */
  size_t page_table_len;
  const char **extra; /* names from --tensor */
  size_t num_extra;
  bool verbose;
} compact_options;

/* What the tensors have in common. */
typedef struct compact_cache {
  bool paged;
  const char *first; /* the tensor that num_blocks and rows_per_block are from; NULL before there is one */
  int64_t num_blocks, rows_per_block;
} compact_cache;

/* ---- options ---------------------------------------------------------------------------------------------- */

static bool parse_i32_list(const char *option, const char *text, int32_t **values, size_t *num_values) {
  int64_t *wide = NULL;
  if (!cli_parse_i64_list(option, text, 0, INT32_MAX, &wide, num_values)) {
    return false;
  }
  cli_free(*values);
  *values = cli_malloc_array(*num_values, sizeof **values);
  for (size_t n = 0; n < *num_values && *values != NULL; ++n) {
    (*values)[n] = (int32_t)wide[n];
  }
  cli_free(wide);
  if (*values == NULL) {
    (void)cli_out_of_memory();
  }
  return *values != NULL;
}

static bool add_extra(compact_options *options, const char *name) {
  const char **extra = cli_realloc_array(options->extra, options->num_extra + 1, sizeof *extra);
  if (extra == NULL) {
    (void)cli_out_of_memory();
    return false;
  }
  options->extra = extra;
  options->extra[options->num_extra++] = name;
  return true;
}

enum { OPTION_PREFIX_LEN = 256, OPTION_PATH, OPTION_PAGE_TABLE, OPTION_TENSOR };

static int parse_options(int argc, char **argv, compact_options *options, bool *done) {
  static const struct option long_options[] = {
      {"output", required_argument, NULL, 'o'},
      {"prefix-len", required_argument, NULL, OPTION_PREFIX_LEN},
      {"path", required_argument, NULL, OPTION_PATH},
      {"page-table", required_argument, NULL, OPTION_PAGE_TABLE},
      {"tensor", required_argument, NULL, OPTION_TENSOR},
      {"verbose", no_argument, NULL, 'v'},
      {"help", no_argument, NULL, 'h'},
      {NULL, 0, NULL, 0},
  };
  int option;
  while ((option = getopt_long(argc, argv, "o:vh", long_options, NULL)) != -1) {
    bool good = true;
    switch (option) {
      case 'h':
        *done = true;
        (void)fputs(help, stdout);
        return cli_finish(CLI_OK);
      case 'o': options->output = optarg; break;
      case 'v': options->verbose = true; break;
      case OPTION_PREFIX_LEN: good = cli_parse_i64("prefix-len", optarg, 0, INT64_MAX, &options->prefix_len); break;
      case OPTION_PATH: good = parse_i32_list("path", optarg, &options->path, &options->path_len); break;
      case OPTION_PAGE_TABLE:
        good = parse_i32_list("page-table", optarg, &options->page_table, &options->page_table_len);
        break;
      case OPTION_TENSOR: good = add_extra(options, optarg); break;
      default: return cli_try_help();
    }
    if (!good) {
      return CLI_USAGE;
    }
  }
  if (argc - optind != 1) {
    return cli_usage_error("one input file is expected, %d are given", argc - optind);
  }
  options->input = argv[optind];
  if (options->output == NULL) {
    return cli_usage_error("an output file is needed: -o FILE");
  }
  if (options->prefix_len < 0) {
    return cli_usage_error("option --prefix-len is needed");
  }
  if (options->path == NULL) {
    return cli_usage_error("option --path is needed");
  }
  return io_writer_check_path(options->output) ? CLI_OK : CLI_USAGE;
}

/* ---- which tensors ---------------------------------------------------------------------------------------- */

/* "k", "v", "layer12.k", "layer12.v" */
static bool is_cache_name(const char *name) {
  if (strncmp(name, "layer", 5) == 0) {
    const size_t digits = strspn(name + 5, "0123456789");
    if (digits == 0 || name[5 + digits] != '.') {
      return false;
    }
    name += 5 + digits + 1;
  }
  return strcmp(name, "k") == 0 || strcmp(name, "v") == 0;
}

static bool is_chosen(const compact_options *options, const char *name) {
  for (size_t n = 0; n < options->num_extra; ++n) {
    if (strcmp(options->extra[n], name) == 0) {
      return true;
    }
  }
  return is_cache_name(name);
}

/* Holds a tensor's shape against the layout and the tensors before it. `rows` is where its rows are among the
 * dimensions. */
static bool check_tensor(const io_file *file, const io_tensor *tensor, compact_cache *cache) {
  const int rows = cache->paged ? 2 : 1;
  const bool named = is_cache_name(tensor->name);
  if (named ? tensor->num_dims != rows + 2 : tensor->num_dims < rows + 1) {
    (void)cli_error("%s: tensor '%s' has %d dimensions: a cache %s has %s%d", io_path(file), tensor->name,
                    tensor->num_dims, cache->paged ? "in pages" : "without a page table", named ? "" : "at least ",
                    named ? rows + 2 : rows + 1);
    return false;
  }
  const int64_t num_blocks = cache->paged ? tensor->shape[0] : 1;
  if (cache->first == NULL) {
    cache->first = tensor->name;
    cache->num_blocks = num_blocks;
    cache->rows_per_block = tensor->shape[rows];
  }
  if (num_blocks != cache->num_blocks || tensor->shape[rows] != cache->rows_per_block) {
    (void)cli_error("%s: tensor '%s' has %" PRId64 " page(s) of %" PRId64 " slots: '%s' has %" PRId64 " of %" PRId64,
                    io_path(file), tensor->name, num_blocks, tensor->shape[rows], cache->first, cache->num_blocks,
                    cache->rows_per_block);
    return false;
  }
  return true;
}

/* A copy of the tensor's data and its description for the library. A row's elements need not fill whole bytes. */
static bool copy_tensor(const io_file *file, const io_tensor *tensor, const compact_cache *cache,
                        treeattn_commit_tensor *copy) {
  const int64_t num_heads = tensor->shape[cache->paged ? 1 : 0];
  *copy = (treeattn_commit_tensor)TREEATTN_COMMIT_TENSOR_INIT;
  const size_t num_rows = (size_t)cache->num_blocks * (size_t)num_heads * (size_t)cache->rows_per_block;
  if (num_rows == 0 || tensor->bytes == 0 || tensor->bytes % num_rows != 0) {
    (void)cli_error("%s: tensor '%s': its %zu bytes are not %zu rows of whole bytes", io_path(file), tensor->name,
                    tensor->bytes, num_rows);
    return false;
  }
  copy->data = cli_malloc(tensor->bytes);
  if (copy->data == NULL) {
    (void)cli_out_of_memory();
    return false;
  }
  memcpy(copy->data, tensor->data, tensor->bytes);
  copy->bytes = tensor->bytes;
  copy->row_bytes = tensor->bytes / num_rows;
  copy->num_heads = num_heads;
  return true;
}

/* ---- the work --------------------------------------------------------------------------------------------- */

/* The plan's arguments from options and file. */
static int make_plan(const compact_options *options, io_file *file, const compact_cache *cache,
                     treeattn_commit_plan **plan) {
  static const int64_t free_shape[] = {IO_FREE};
  const io_tensor *parents = NULL;
  if (!io_get_optional(file, "parents", IO_I32 | IO_I64, 1, free_shape, &parents)) {
    return CLI_FAILURE;
  }
  int64_t highest = 0;
  for (size_t n = 0; n < options->path_len; ++n) {
    highest = options->path[n] > highest ? options->path[n] : highest;
  }
  if (parents != NULL && highest >= parents->shape[0]) {
    return cli_error("%s: option --path: node %" PRId64 " is not one of the %" PRId64 " of 'parents'", io_path(file),
                     highest, parents->shape[0]);
  }
  const int64_t page_size = cache->paged ? cache->rows_per_block : 0;
  int64_t num_slots = cache->rows_per_block;
  if (cache->paged && (int64_t)options->page_table_len <= INT64_MAX / page_size) {
    num_slots = (int64_t)options->page_table_len * page_size;
  }
  if (options->prefix_len >= num_slots || highest >= num_slots - options->prefix_len) {
    return cli_error("%s: option --path: node %" PRId64 " is behind the %" PRId64
                     " slots of the cache when --prefix-len is %" PRId64,
                     io_path(file), highest, num_slots, options->prefix_len);
  }
  treeattn_commit_request request = TREEATTN_COMMIT_REQUEST_INIT;
  request.prefix_len = options->prefix_len;
  request.num_nodes = highest + 1;
  request.path = options->path;
  request.path_len = (int64_t)options->path_len;
  request.page_table = options->page_table;
  request.page_table_len = (int64_t)options->page_table_len;
  if (request.path_len > request.num_nodes) {
    request.num_nodes = request.path_len; /* a node is named twice: let the library say which */
  }
  treeattn_commit_args args = TREEATTN_COMMIT_ARGS_INIT;
  args.num_requests = 1;
  args.requests = &request;
  args.page_size = page_size;
  args.kv_capacity = cache->paged ? 0 : cache->rows_per_block;
  args.num_pages = cache->paged ? cache->num_blocks : 0;
  treeattn_error error;
  if (treeattn_commit_plan_create(&args, plan, &error) != TREEATTN_OK) {
    return cli_library_error(io_path(file), &error);
  }
  return CLI_OK;
}

static int move_rows(const compact_options *options, io_file *file, const compact_cache *cache,
                     const treeattn_commit_tensor *tensors, size_t num_tensors) {
  treeattn_error error;
  treeattn_commit_plan *plan = NULL;
  int status = make_plan(options, file, cache, &plan);
  if (status == CLI_OK) {
    treeattn_commit_run_args run = TREEATTN_COMMIT_RUN_ARGS_INIT;
    run.num_tensors = (int64_t)num_tensors;
    run.tensors = tensors;
    if (treeattn_commit_apply(plan, &run, &error) != TREEATTN_OK) {
      status = cli_library_error(io_path(file), &error);
    }
  }
  if (status == CLI_OK && options->verbose) {
    treeattn_commit_plan_info info = TREEATTN_COMMIT_PLAN_INFO_INIT;
    if (treeattn_commit_plan_get_info(plan, &info, &error) == TREEATTN_OK) {
      (void)fprintf(stderr,
                    "treeattn compact: tensors: %zu, rows moved in each head: %" PRId64 ", moves: %" PRId64
                    "; tokens 0 to %" PRId64 " are in place\n",
                    num_tensors, info.num_rows, info.num_moves, options->prefix_len + (int64_t)options->path_len - 1);
    }
  }
  treeattn_commit_plan_destroy(plan);
  return status;
}

static int compact_file(compact_options *options, io_file *file, treeattn_commit_tensor *tensors,
                        io_replacement *replacements, size_t *num_tensors) {
  for (size_t n = 0; n < options->num_extra; ++n) {
    if (io_find(file, options->extra[n]) == NULL) {
      return cli_error("%s: there is no tensor '%s'", io_path(file), options->extra[n]);
    }
  }
  compact_cache cache = {.paged = options->page_table != NULL};
  if (!cache.paged) {
    static const int64_t free_shape[] = {IO_FREE};
    const io_tensor *table = NULL;
    const int32_t *entries = NULL;
    if (!io_get_i32_optional(file, "page_table", 1, free_shape, &table, &entries)) {
      return CLI_FAILURE;
    }
    if (entries != NULL) {
      cache.paged = true;
      options->page_table_len = (size_t)table->num_elements;
      options->page_table = cli_malloc_array(options->page_table_len, sizeof *entries);
      if (options->page_table == NULL) {
        return cli_out_of_memory();
      }
      memcpy(options->page_table, entries, options->page_table_len * sizeof *entries);
    }
  }
  for (size_t n = 0; n < io_num_tensors(file); ++n) {
    const io_tensor *tensor = io_tensor_at(file, n);
    if (!is_chosen(options, tensor->name)) {
      continue;
    }
    if (!check_tensor(file, tensor, &cache) || !copy_tensor(file, tensor, &cache, &tensors[*num_tensors])) {
      return CLI_FAILURE;
    }
    replacements[*num_tensors] = (io_replacement){tensor, tensors[*num_tensors].data};
    ++*num_tensors;
  }
  if (*num_tensors == 0) {
    return cli_error("%s: there is no tensor 'k', 'v', 'layerL.k' or 'layerL.v'", io_path(file));
  }
  const int status = move_rows(options, file, &cache, tensors, *num_tensors);
  if (status != CLI_OK) {
    return status;
  }
  return io_save_replaced(file, replacements, *num_tensors, options->output) ? CLI_OK : CLI_FAILURE;
}

static int compact(compact_options *options) {
  io_file *file = NULL;
  if (!io_open(options->input, NULL, &file)) {
    return CLI_FAILURE;
  }
  const size_t capacity = io_num_tensors(file);
  treeattn_commit_tensor *tensors = cli_malloc_array(capacity, sizeof *tensors);
  io_replacement *replacements = cli_malloc_array(capacity, sizeof *replacements);
  size_t num_tensors = 0;
  int status = CLI_OK;
  if (tensors == NULL || replacements == NULL) {
    status = cli_out_of_memory();
  } else {
    status = compact_file(options, file, tensors, replacements, &num_tensors);
  }
  for (size_t t = 0; t < num_tensors; ++t) {
    cli_free(tensors[t].data);
  }
  cli_free(tensors);
  cli_free(replacements);
  io_close(file);
  return status;
}

int cmd_compact(int argc, char **argv) {
  compact_options options = {.prefix_len = -1};
  bool done = false;
  int status = parse_options(argc, argv, &options, &done);
  if (status == CLI_OK && !done) {
    status = compact(&options);
  }
  cli_free(options.path);
  cli_free(options.page_table);
  cli_free(options.extra);
  return status;
}
