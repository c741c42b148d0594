/* SPDX-License-Identifier: Apache-2.0 */
/* One layer: the tree in one call, against its paths token by token, against NaN in what is not seen, and against the
 * clock. */
#include "demo_layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "demo_attend.h"
#include "seed.h"

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a;
  const double y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *seconds) {
  qsort(seconds, DEMO_REPEATS, sizeof *seconds, compare_doubles);
  return seconds[DEMO_REPEATS / 2];
}

static bool is_leaf(const problem *layer, int64_t node) {
  for (int64_t j = node + 1; j < layer->num_nodes; j++) {
    if (layer->parents[j] == node) {
      return false;
    }
  }
  return true;
}

static size_t cache_bytes(const problem *layer) {
  return (size_t)(layer->num_kv_heads * layer->kv_capacity * layer->head_dim) * treeattn_dtype_bytes(layer->kv_dtype);
}

/* A copy of K or V in which the path's tokens follow the prefix directly, as in a cache that never saw a tree. */
static void *lay_out_path(const problem *layer, const void *cache, const int32_t *path, int64_t length) {
  const size_t row_bytes = (size_t)layer->head_dim * treeattn_dtype_bytes(layer->kv_dtype);
  unsigned char *copy = cli_malloc(cache_bytes(layer));
  if (copy == NULL) {
    return NULL;
  }
  memcpy(copy, cache, cache_bytes(layer));
  for (int64_t g = 0; g < layer->num_kv_heads; g++) {
    const size_t first = (size_t)(g * layer->kv_capacity + layer->prefix_len) * row_bytes;
    for (int64_t n = 0; n < length; n++) {
      memcpy(copy + first + (size_t)n * row_bytes, (const unsigned char *)cache + first + (size_t)path[n] * row_bytes,
             row_bytes);
    }
  }
  return copy;
}

/* ---- paths, token by token ---------------------------------------------------------------------------------- */

/* Decodes one path: query n sees the prefix and the tokens before it. Adds to the figures and to *seconds. */
static bool decode_path(const problem *layer, const int32_t *path, int64_t length, const treeattn_executor *executor,
                        int64_t num_workers, const float *tree_out, double *seconds, demo_figures *figures) {
  void *k = lay_out_path(layer, layer->k, path, length);
  void *v = lay_out_path(layer, layer->v, path, length);
  float *q = cli_malloc_array((size_t)layer->num_heads, (size_t)layer->head_dim * sizeof *q);
  float *out = cli_malloc_array((size_t)layer->num_heads, (size_t)layer->head_dim * sizeof *out);
  bool ok = k != NULL && v != NULL && q != NULL && out != NULL;
  if (!ok) {
    cli_out_of_memory();
  }
  for (int64_t n = 0; n < length && ok; n++) {
    const int64_t node = path[n];
    for (int64_t h = 0; h < layer->num_heads; h++) {
      memcpy(q + h * layer->head_dim, layer->q + (h * layer->num_nodes + node) * layer->head_dim,
             (size_t)layer->head_dim * sizeof *q);
    }
    const treeattn_request request = demo_next_token_request(layer->prefix_len + n);
    demo_attention attention;
    ok = demo_attention_create(layer, &request, num_workers, &attention);
    if (!ok) {
      break;
    }
    const double start = cli_seconds();
    ok = demo_attention_run(&attention, q, k, v, executor, out);
    *seconds += cli_seconds() - start;
    demo_attention_destroy(&attention);
    for (int64_t h = 0; h < layer->num_heads && ok && figures != NULL; h++) {
      const float *in_tree = tree_out + (node * layer->num_heads + h) * layer->head_dim;
      figures->rows_compared++;
      figures->rows_same += memcmp(in_tree, out + h * layer->head_dim, (size_t)layer->head_dim * sizeof *out) == 0;
    }
    if (figures != NULL) {
      figures->num_queries++;
    }
  }
  cli_free(k);
  cli_free(v);
  cli_free(q);
  cli_free(out);
  return ok;
}

/* figures NULL: only the time counts. */
static bool decode_paths(const problem *layer, const treeattn_executor *executor, int64_t num_workers,
                         const float *tree_out, double *seconds, demo_figures *figures) {
  int32_t *path = cli_malloc_array((size_t)layer->num_nodes, sizeof *path);
  bool ok = path != NULL;
  *seconds = 0.0;
  for (int64_t leaf = 0; leaf < layer->num_nodes && ok; leaf++) {
    if (is_leaf(layer, leaf)) {
      const int64_t length = problem_path(layer, leaf, path);
      ok = decode_path(layer, path, length, executor, num_workers, tree_out, seconds, figures);
      if (figures != NULL) {
        figures->num_paths++;
      }
    }
  }
  cli_free(path);
  return ok;
}

/* ---- NaN in what is not seen -------------------------------------------------------------------------------- */

static void fill_slot(const problem *layer, void *cache, int64_t slot, float value) {
  for (int64_t g = 0; g < layer->num_kv_heads; g++) {
    for (int64_t d = 0; d < layer->head_dim; d++) {
      problem_store_element(layer->kv_dtype, cache, (g * layer->kv_capacity + slot) * layer->head_dim + d, value);
    }
  }
}

/* For each node: NaN in K and V of every slot that it does not see. Its rows must not notice. */
static bool plant_nans(const problem *layer, const demo_attention *tree, const treeattn_executor *executor,
                       const float *tree_out, demo_figures *figures) {
  const size_t row_bytes = (size_t)(layer->num_heads * layer->head_dim) * sizeof(float);
  void *k = cli_malloc(cache_bytes(layer));
  void *v = cli_malloc(cache_bytes(layer));
  float *out = cli_malloc_array((size_t)layer->num_nodes, row_bytes);
  int32_t *path = cli_malloc_array((size_t)layer->num_nodes, sizeof *path);
  bool ok = k != NULL && v != NULL && out != NULL && path != NULL;
  if (!ok) {
    cli_out_of_memory();
  }
  for (int64_t node = 0; node < layer->num_nodes && ok; node++) {
    memcpy(k, layer->k, cache_bytes(layer));
    memcpy(v, layer->v, cache_bytes(layer));
    const int64_t length = problem_path(layer, node, path);
    for (int64_t j = 0, n = 0; j < layer->num_nodes; j++) {
      if (n < length && path[n] == j) {
        n++;
      } else {
        fill_slot(layer, k, layer->prefix_len + j, NAN);
        fill_slot(layer, v, layer->prefix_len + j, NAN);
        figures->nan_slots++;
      }
    }
    ok = demo_attention_run(tree, layer->q, k, v, executor, out);
    for (int64_t h = 0; h < layer->num_heads && ok; h++) {
      const int64_t row = (node * layer->num_heads + h) * layer->head_dim;
      figures->nan_rows++;
      figures->nan_rows_same += memcmp(out + row, tree_out + row, (size_t)layer->head_dim * sizeof *out) == 0;
    }
  }
  cli_free(k);
  cli_free(v);
  cli_free(out);
  cli_free(path);
  return ok;
}

/* ---- the clock ---------------------------------------------------------------------------------------------- */

static float *dense_mask(const problem *layer) {
  const int64_t num_slots = layer->prefix_len + layer->num_nodes;
  float *mask = cli_malloc_array((size_t)(layer->num_nodes * num_slots), sizeof *mask);
  for (int64_t i = 0; i < layer->num_nodes && mask != NULL; i++) {
    for (int64_t slot = 0; slot < num_slots; slot++) {
      mask[i * num_slots + slot] = slot < layer->prefix_len ? 0.0f : TREEATTN_MASK_HIDDEN;
    }
    for (int32_t j = (int32_t)i; j >= 0; j = layer->parents[j]) {
      mask[i * num_slots + layer->prefix_len + j] = 0.0f;
    }
  }
  return mask;
}

static bool run_seed(const problem *layer, const float *mask, const treeattn_executor *executor, float *out) {
  const int64_t num_slots = layer->prefix_len + layer->num_nodes;
  const seed_args args = {.num_heads = layer->num_heads,
                          .num_kv_heads = layer->num_kv_heads,
                          .head_dim = layer->head_dim,
                          .q_seq_len = layer->num_nodes,
                          .kv_seq_len = num_slots,
                          .kv_capacity = layer->kv_capacity,
                          .mask_stride = num_slots,
                          .scale = layer->scale,
                          .kv_dtype = layer->kv_dtype,
                          .q = layer->q,
                          .k = layer->k,
                          .v = layer->v,
                          .mask = mask,
                          .out = out,
                          .executor = *executor};
  return seed_tree_attention(&args) == 0;
}

static double worst_error(const problem *layer, const float *out, double *scores, double *expected) {
  double worst = 0.0;
  for (int64_t row = 0; row < layer->num_nodes * layer->num_heads; row++) {
    double lse = 0.0;
    problem_oracle(layer, row / layer->num_heads, row % layer->num_heads, scores, expected, &lse, NULL);
    const double error = problem_relative_error(out + row * layer->head_dim, expected, layer->head_dim);
    worst = !(error <= worst) ? error : worst; /* a NaN stays */
  }
  return worst;
}

/* The ways in turn, so that a change of the machine's mood meets them all. */
static bool take_times(const problem *layer, const demo_attention *tree, const treeattn_executor *executor,
                       int64_t num_workers, float *tree_out, float *seed_out, const float *mask,
                       demo_figures *figures) {
  double tree_seconds[DEMO_REPEATS];
  double path_seconds[DEMO_REPEATS];
  double path_alone_seconds[DEMO_REPEATS];
  const treeattn_executor alone = {NULL, NULL};
  double seed_seconds[DEMO_REPEATS];
  for (int n = 0; n < DEMO_REPEATS; n++) {
    double start = cli_seconds();
    if (!demo_attention_run(tree, layer->q, layer->k, layer->v, executor, tree_out)) {
      return false;
    }
    tree_seconds[n] = cli_seconds() - start;
    start = cli_seconds();
    if (!run_seed(layer, mask, executor, seed_out)) {
      cli_error("the seed's algorithm refused the layer");
      return false;
    }
    seed_seconds[n] = cli_seconds() - start;
    if (!decode_paths(layer, executor, num_workers, tree_out, &path_seconds[n], NULL) ||
        !decode_paths(layer, &alone, 1, tree_out, &path_alone_seconds[n], NULL)) {
      return false;
    }
  }
  figures->tree_seconds += median(tree_seconds);
  /* Single queries are short: threads may cost them more than they save. */
  figures->path_seconds += fmin(median(path_seconds), median(path_alone_seconds));
  figures->seed_seconds += median(seed_seconds);
  return true;
}

bool demo_layer_measure(const problem *layer, const treeattn_executor *executor, int64_t num_workers,
                        demo_figures *figures) {
  const size_t num_out = (size_t)(layer->num_nodes * layer->num_heads * layer->head_dim);
  const treeattn_request request = demo_tree_request(layer);
  demo_attention tree;
  if (!demo_attention_create(layer, &request, num_workers, &tree)) {
    return false;
  }
  float *tree_out = cli_malloc_array(num_out, sizeof *tree_out);
  float *seed_out = cli_malloc_array(num_out, sizeof *seed_out);
  float *mask = dense_mask(layer);
  double *scores = cli_malloc_array((size_t)(layer->prefix_len + layer->num_nodes), sizeof *scores);
  double *expected = cli_malloc_array((size_t)layer->head_dim, sizeof *expected);
  double ignored = 0.0;
  bool ok = tree_out != NULL && seed_out != NULL && mask != NULL && scores != NULL && expected != NULL;
  if (!ok) {
    cli_out_of_memory();
  }
  ok = ok && demo_attention_run(&tree, layer->q, layer->k, layer->v, executor, tree_out) &&
       decode_paths(layer, executor, num_workers, tree_out, &ignored, figures) &&
       plant_nans(layer, &tree, executor, tree_out, figures) &&
       take_times(layer, &tree, executor, num_workers, tree_out, seed_out, mask, figures);
  if (ok) {
    figures->tree_error = fmax(figures->tree_error, worst_error(layer, tree_out, scores, expected));
    figures->seed_error = fmax(figures->seed_error, worst_error(layer, seed_out, scores, expected));
  }
  cli_free(tree_out);
  cli_free(seed_out);
  cli_free(mask);
  cli_free(scores);
  cli_free(expected);
  demo_attention_destroy(&tree);
  return ok;
}
