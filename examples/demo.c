/* SPDX-License-Identifier: Apache-2.0 */
/* treeattn-demo: one step of speculative decoding as a real model ran it, attended, checked and timed. */
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <treeattn/verify.h>

#include "cli.h"
#include "demo_layer.h"
#include "io.h"
#include "seed.h"
#include "tree_draw.h"
#include "tree_text.h"

enum { MAX_LAYERS = 64 };

/* What the file says beside its layers. */
typedef struct step {
  io_file *file;
  int64_t num_nodes;
  const int32_t *parents, *tokens, *argmax;
  json_t *texts;           /* list of strings, one a node */
  const char **node_texts; /* [N], into texts */
} step;

static void step_close(step *s) {
  json_decref(s->texts);
  cli_free(s->node_texts);
  io_close(s->file);
}

static bool step_open(const char *path, step *s) {
  const io_tensor *parents = NULL;
  if (!io_open(path, NULL, &s->file) ||
      !io_get_i32(s->file, "parents", 1, (const int64_t[]){IO_FREE}, &parents, &s->parents)) {
    return false;
  }
  s->num_nodes = parents->num_elements;
  if (!io_get_i32(s->file, "tokens", 1, &s->num_nodes, NULL, &s->tokens) ||
      !io_get_i32(s->file, "argmax", 1, &s->num_nodes, NULL, &s->argmax)) {
    return false;
  }
  const char *texts = io_metadata(s->file, "node_texts");
  s->texts = json_loads(texts != NULL ? texts : "", 0, NULL);
  s->node_texts = cli_malloc_array((size_t)s->num_nodes, sizeof *s->node_texts);
  if (s->node_texts == NULL) {
    cli_out_of_memory();
    return false;
  }
  for (int64_t i = 0; i < s->num_nodes; i++) {
    s->node_texts[i] = json_string_value(json_array_get(s->texts, (size_t)i));
    if (s->node_texts[i] == NULL) {
      cli_error("%s: metadata 'node_texts' has no text for node %lld", path, (long long)i);
      return false;
    }
  }
  return true;
}

/* Text that is as in the file where the metadata has it. */
static const char *metadata(const step *s, const char *key) {
  const char *value = io_metadata(s->file, key);
  return value != NULL ? value : "?";
}

/* Does the path equal the one in the file? True where the file names none. */
static bool is_expected_path(const step *s, const int32_t *path, int64_t num_path) {
  const char *text = io_metadata(s->file, "greedy_path");
  json_t *expected = text != NULL ? json_loads(text, 0, NULL) : NULL;
  bool same = text == NULL || json_array_size(expected) == (size_t)num_path;
  for (int64_t n = 0; n < num_path && same && text != NULL; n++) {
    same = json_integer_value(json_array_get(expected, (size_t)n)) == path[n];
  }
  json_decref(expected);
  return same;
}

static void print_accepted(const step *s, const int32_t *path, int64_t num_path, bool expected, tree_text_style style) {
  char text[1024] = "";
  size_t used = 0;
  for (int64_t n = 1; n < num_path && used < sizeof text; n++) {
    used += (size_t)snprintf(text + used, sizeof text - used, "%s", s->node_texts[path[n]]);
  }
  if (used < sizeof text) {
    (void)snprintf(text + used, sizeof text - used, "%s", metadata(s, "bonus_text"));
  }
  printf("\ngreedy verification accepts nodes");
  for (int64_t n = 0; n < num_path; n++) {
    printf(" %d", path[n]);
  }
  printf("\n  %lld drafts and the model's next token: %lld tokens from one step, the path in the file: %s\n  ",
         (long long)num_path - 1, (long long)num_path, expected ? "yes" : "NO");
  tree_text_put(stdout, text, style, 110);
  printf("\n");
}

static bool print_figures(const demo_figures *f, size_t num_layers) {
  const bool same = f->rows_compared > 0 && f->rows_same == f->rows_compared;
  const bool isolated = f->nan_rows > 0 && f->nan_rows_same == f->nan_rows;
  printf("\nsame bits as decoding each root-to-leaf path token by token\n"
         "  %lld paths on %zu layers, %lld single queries: %lld of %lld rows carry the bits of the one call  %s\n",
         (long long)f->num_paths / (long long)num_layers, num_layers, (long long)f->num_queries,
         (long long)f->rows_same, (long long)f->rows_compared, same ? "ok" : "FAILED");
  printf("NaN in K and V of every slot that a node does not see, node after node\n"
         "  %lld slots overwritten: %lld of %lld rows changed  %s\n",
         (long long)f->nan_slots, (long long)(f->nan_rows - f->nan_rows_same), (long long)f->nan_rows,
         isolated ? "ok" : "FAILED");
  const double layers = (double)num_layers;
  printf("\ntime for a layer (median of %d, the three in turn)            worst error of a row against float64\n",
         DEMO_REPEATS);
  printf("  the tree in one call                %8.3f ms                       %.1e\n", f->tree_seconds / layers * 1e3,
         f->tree_error);
  printf("  its paths, token by token           %8.3f ms  %5.1f times as long   %s\n", f->path_seconds / layers * 1e3,
         f->path_seconds / f->tree_seconds, same ? "the same bits" : "OTHER BITS");
  printf("  the seed's algorithm                %8.3f ms  %5.1f times as long   %.1e\n", f->seed_seconds / layers * 1e3,
         f->seed_seconds / f->tree_seconds, f->seed_error);
  return same && isolated;
}

static bool measure_layers(const char *path, const int64_t *layers, size_t num_layers, int64_t num_workers,
                           demo_figures *figures) {
  treeattn_pool *pool = NULL;
  treeattn_executor executor = {NULL, NULL};
  treeattn_error error;
  if (num_workers > 1) {
    if (treeattn_pool_create(num_workers, &pool, &error) != TREEATTN_OK) {
      cli_library_error(NULL, &error);
      return false;
    }
    executor = treeattn_pool_executor(pool);
  }
  bool ok = true;
  for (size_t n = 0; n < num_layers && ok; n++) {
    problem layer;
    ok = problem_load(path, layers[n], &layer);
    if (ok) {
      ok = demo_layer_measure(&layer, &executor, num_workers, figures);
      problem_free(&layer);
    }
  }
  treeattn_pool_destroy(pool);
  return ok;
}

static int show(const char *path, step *s) {
  const int ascii = strcmp(nl_langinfo(CODESET), "UTF-8") != 0;
  int64_t layers[MAX_LAYERS];
  size_t num_layers = 0;
  if (!step_open(path, s) || !problem_list_layers(path, layers, MAX_LAYERS, &num_layers)) {
    return CLI_FAILURE;
  }
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  const int64_t num_workers = online < 1 ? 1 : online > 16 ? 16 : online;
  printf("%s: %s tokens in the cache, %lld nodes; %s heads on %s KV heads of %s,\n%zu layers; treeattn %s with %s, "
         "%lld thread%s\n",
         metadata(s, "model"), metadata(s, "prefix_len"), (long long)s->num_nodes, metadata(s, "num_heads"),
         metadata(s, "num_kv_heads"), metadata(s, "head_dim"), num_layers, treeattn_version(),
         treeattn_isa_name(treeattn_isa_detect()), (long long)num_workers, num_workers == 1 ? "" : "s");

  int32_t *walked = cli_malloc_array(2 * (size_t)s->num_nodes, sizeof *walked);
  unsigned char *marks = cli_malloc((size_t)s->num_nodes);
  int64_t num_path = 0;
  treeattn_error error;
  int status = walked == NULL || marks == NULL ? cli_out_of_memory() : CLI_OK;
  if (status == CLI_OK && treeattn_verify_greedy(s->num_nodes, s->parents, s->tokens, s->argmax, walked,
                                                 walked + s->num_nodes, &num_path, &error) != TREEATTN_OK) {
    status = cli_library_error(path, &error);
  }
  if (status == CLI_OK) {
    memset(marks, 0, (size_t)s->num_nodes);
    for (int64_t n = 0; n < num_path; n++) {
      marks[walked[n]] = 1;
    }
    printf("\nthe draft tree, below the last committed token (%s accepted)\n", ascii ? "*" : "\u2713");
    tree_draw(stdout, s->num_nodes, s->parents, s->node_texts, marks, ascii);
    demo_figures figures;
    memset(&figures, 0, sizeof figures);
    status = num_layers > 0 ? CLI_OK : cli_error("%s: no tensors layerL.q, layerL.k, layerL.v", path);
    if (status == CLI_OK && !measure_layers(path, layers, num_layers, num_workers, &figures)) {
      status = CLI_FAILURE;
    }
    if (status == CLI_OK) {
      const bool kept = print_figures(&figures, num_layers);
      const bool expected = is_expected_path(s, walked, num_path);
      print_accepted(s, walked, num_path, expected, ascii ? TREE_TEXT_ASCII : TREE_TEXT_UTF8);
      status = kept && expected ? CLI_OK : CLI_FAILURE;
    }
  }
  cli_free(walked);
  cli_free(marks);
  return status;
}

int main(int argc, char **argv) {
  (void)setlocale(LC_CTYPE, "");
  cli_set_command("demo");
  if (argc != 2) {
    (void)fprintf(stderr, "Usage: %s examples/data/code.safetensors\n", argv[0]);
    return CLI_USAGE;
  }
  step s = {.file = NULL};
  const int status = cli_finish(show(argv[1], &s));
  step_close(&s);
  return status;
}
