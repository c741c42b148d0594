/* SPDX-License-Identifier: Apache-2.0 */
/* Trees that grow where the draft model is confident, level by level. */
#include "tree.h"

/* Lies at the start of the caller's memory, the arrays behind it. Nodes are numbered as they are proposed. */
struct treeattn_growth {
  int64_t top_k;
  int64_t max_children;
  int64_t max_levels;
  int64_t num_levels;
  int64_t num_proposed;
  int64_t num_drafted;  /* expanded nodes and the frontier */
  int64_t num_frontier; /* the last ones of drafted */
  int32_t *parents;     /* [max_proposed], as the three below */
  int32_t *tokens;
  double *values;
  int32_t *places;  /* in drafted, or -1 */
  int32_t *drafted; /* [max_drafted] */
  int32_t *work;    /* [max_proposed], as the next */
  int32_t *renumbered;
};

typedef struct growth_limits {
  int64_t top_k;
  int64_t max_children;
  int64_t max_proposed;
  int64_t max_drafted;
} growth_limits;

static treeattn_status check_growth_args(const treeattn_growth_args *args, growth_limits *limits,
                                         treeattn_error *error) {
  if (args == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "args is NULL");
  }
  if (args->struct_size < sizeof *args) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "struct_size is %zu: set it with TREEATTN_GROWTH_ARGS_INIT",
                   args->struct_size);
  }
  if (args->root_token < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "root_token is %ld: a token is 0 or more",
                   (long)args->root_token);
  }
  if (args->top_k < 1) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "top_k is %lld: it must be 1 or more",
                   (long long)args->top_k);
  }
  if (args->max_children < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "max_children is %lld: it must not be negative",
                   (long long)args->max_children);
  }
  if (args->max_levels < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "max_levels is %lld: it must not be negative",
                   (long long)args->max_levels);
  }
  /* Nothing above the limit of nodes makes a difference. */
  limits->top_k = ta_min_i64(args->top_k, TREEATTN_TREE_MAX_NODES);
  limits->max_children = args->max_children == 0 ? args->top_k : args->max_children;
  limits->max_proposed = 1;
  limits->max_drafted = 1;
  int64_t num_frontier = 1;
  for (int64_t level = 0; level < args->max_levels; level++) {
    if (limits->max_children > (TREEATTN_TREE_MAX_NODES - limits->max_proposed) / num_frontier) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_TREE,
                     "top_k %lld, max_children %lld and max_levels %lld may propose more than %lld nodes",
                     (long long)args->top_k, (long long)limits->max_children, (long long)args->max_levels,
                     (long long)TREEATTN_TREE_MAX_NODES);
    }
    const int64_t width = num_frontier * limits->max_children;
    limits->max_proposed += width;
    num_frontier = ta_min_i64(limits->top_k, width);
    limits->max_drafted += num_frontier;
  }
  return TREEATTN_OK;
}

treeattn_status treeattn_growth_bytes(const treeattn_growth_args *args, size_t *bytes, treeattn_error *error) {
  growth_limits limits;
  const treeattn_status status = check_growth_args(args, &limits, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (bytes == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "bytes is NULL");
  }
  size_t total = TA_SCRATCH_ALIGN;
  bool fits = ta_scratch_add(&total, 1, sizeof(treeattn_growth)) &&
              ta_scratch_add(&total, limits.max_proposed, sizeof(double)) &&
              ta_scratch_add(&total, limits.max_drafted, sizeof(int32_t));
  for (int array = 0; array < 5; array++) {
    fits = fits && ta_scratch_add(&total, limits.max_proposed, sizeof(int32_t));
  }
  if (!fits) {
    return ta_fail(error, TREEATTN_ERROR_OVERFLOW, "the bytes of %lld nodes do not fit",
                   (long long)limits.max_proposed);
  }
  *bytes = total;
  return TREEATTN_OK;
}

treeattn_status treeattn_growth_init(const treeattn_growth_args *args, void *memory, size_t memory_bytes,
                                     treeattn_growth **growth, treeattn_error *error) {
  if (growth == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "growth is NULL");
  }
  size_t needed = 0;
  treeattn_status status = treeattn_growth_bytes(args, &needed, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (memory == NULL || memory_bytes < needed) {
    return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "memory is %s%zu bytes: it needs %zu",
                   memory == NULL ? "NULL, " : "", memory_bytes, needed);
  }
  growth_limits limits;
  (void)check_growth_args(args, &limits, NULL);
  unsigned char *next = memory;
  treeattn_growth *g = ta_scratch_take(&next, 1, sizeof *g);
  g->top_k = limits.top_k;
  g->max_children = limits.max_children;
  g->max_levels = args->max_levels;
  g->num_levels = 0;
  g->num_proposed = 1;
  g->num_drafted = 1;
  g->num_frontier = args->max_levels > 0 ? 1 : 0;
  g->values = ta_scratch_take(&next, limits.max_proposed, sizeof(double));
  g->parents = ta_scratch_take(&next, limits.max_proposed, sizeof(int32_t));
  g->tokens = ta_scratch_take(&next, limits.max_proposed, sizeof(int32_t));
  g->places = ta_scratch_take(&next, limits.max_proposed, sizeof(int32_t));
  g->work = ta_scratch_take(&next, limits.max_proposed, sizeof(int32_t));
  g->renumbered = ta_scratch_take(&next, limits.max_proposed, sizeof(int32_t));
  g->drafted = ta_scratch_take(&next, limits.max_drafted, sizeof(int32_t));
  g->parents[0] = -1;
  g->tokens[0] = args->root_token;
  g->values[0] = 0.0;
  g->places[0] = 0;
  g->drafted[0] = 0;
  *growth = g;
  return TREEATTN_OK;
}

static treeattn_status check_handle(const treeattn_growth *growth, const int64_t *num_nodes, treeattn_error *error) {
  if (growth == NULL || num_nodes == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is NULL", growth == NULL ? "growth" : "num_nodes");
  }
  return TREEATTN_OK;
}

treeattn_status treeattn_growth_get_frontier(const treeattn_growth *growth, int32_t *nodes, int64_t capacity,
                                             int64_t *num_nodes, treeattn_error *error) {
  treeattn_status status = check_handle(growth, num_nodes, error);
  if (status == TREEATTN_OK) {
    status = ta_tree_check_array("nodes", nodes, capacity, growth->num_frontier, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  const int32_t *frontier = growth->drafted + growth->num_drafted - growth->num_frontier;
  for (int64_t row = 0; row < growth->num_frontier; row++) {
    nodes[row] = frontier[row];
  }
  *num_nodes = growth->num_frontier;
  return TREEATTN_OK;
}

static int64_t count_at(const treeattn_growth *growth, const int32_t *counts, int64_t row) {
  return counts != NULL ? counts[row] : growth->max_children;
}

static treeattn_status check_level(const treeattn_growth *growth, const int32_t *tokens, const float *log_probs,
                                   const int32_t *counts, int64_t row_stride, treeattn_error *error) {
  int64_t node = growth->num_proposed;
  for (int64_t row = 0; row < growth->num_frontier; row++) {
    const int64_t count = count_at(growth, counts, row);
    if (count < 0 || count > growth->max_children) {
      return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                     "counts[%lld] is %lld: it must be from 0 to max_children %lld", (long long)row, (long long)count,
                     (long long)growth->max_children);
    }
    for (int64_t rank = 0; rank < count; rank++, node++) {
      const int32_t token = tokens[row * row_stride + rank];
      const float log_prob = log_probs[row * row_stride + rank];
      if (token < 0) {
        return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                       "tokens[%lld][%lld] of node %lld is %ld: a token is 0 or more", (long long)row, (long long)rank,
                       (long long)node, (long)token);
      }
      if (!(log_prob <= 0.0f)) {
        return ta_fail(error, TREEATTN_ERROR_INVALID_VALUE,
                       "log_probs[%lld][%lld] of node %lld is %g: a logarithm of a probability is at most 0",
                       (long long)row, (long long)rank, (long long)node, (double)log_prob);
      }
    }
  }
  return TREEATTN_OK;
}

static bool value_before(const void *context, int32_t a, int32_t b) {
  const double *values = context;
  return values[a] != values[b] ? values[a] > values[b] : a < b;
}

static bool index_before(const void *context, int32_t a, int32_t b) {
  (void)context;
  return a < b;
}

treeattn_status treeattn_growth_add_level(treeattn_growth *growth, const int32_t *tokens, const float *log_probs,
                                          const int32_t *counts, int64_t row_stride, treeattn_error *error) {
  if (growth == NULL || tokens == NULL || log_probs == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "%s is NULL",
                   growth == NULL ? "growth" : (tokens == NULL ? "tokens" : "log_probs"));
  }
  if (growth->num_frontier == 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT,
                   "the frontier is empty: the tree has %lld of max_levels %lld", (long long)growth->num_levels,
                   (long long)growth->max_levels);
  }
  if (row_stride == 0) {
    row_stride = growth->max_children;
  }
  if (row_stride < growth->max_children) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "row_stride is %lld: max_children is %lld",
                   (long long)row_stride, (long long)growth->max_children);
  }
  const treeattn_status status = check_level(growth, tokens, log_probs, counts, row_stride, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  const int32_t *frontier = growth->drafted + growth->num_drafted - growth->num_frontier;
  int64_t width = 0;
  for (int64_t row = 0; row < growth->num_frontier; row++) {
    const int32_t parent = frontier[row];
    const int64_t count = count_at(growth, counts, row);
    for (int64_t rank = 0; rank < count; rank++) {
      const int64_t node = growth->num_proposed++;
      growth->parents[node] = parent;
      growth->tokens[node] = tokens[row * row_stride + rank];
      growth->values[node] = growth->values[parent] + (double)log_probs[row * row_stride + rank];
      growth->places[node] = -1;
      growth->work[width++] = (int32_t)node;
    }
  }
  growth->num_levels++;
  growth->num_frontier = growth->num_levels < growth->max_levels ? ta_min_i64(growth->top_k, width) : 0;
  ta_sort_i32(growth->work, width, value_before, growth->values);
  for (int64_t row = 0; row < growth->num_frontier; row++) {
    growth->places[growth->work[row]] = (int32_t)growth->num_drafted;
    growth->drafted[growth->num_drafted++] = growth->work[row];
  }
  return TREEATTN_OK;
}

/* Arrays that the caller may leave out. */
static treeattn_status check_outputs(const void *const *arrays, int num_arrays, int64_t capacity, int64_t needed,
                                     treeattn_error *error) {
  for (int index = 0; index < num_arrays; index++) {
    if (arrays[index] != NULL && capacity < needed) {
      return ta_fail(error, TREEATTN_ERROR_BUFFER_TOO_SMALL, "capacity is %lld: there are %lld nodes",
                     (long long)capacity, (long long)needed);
    }
  }
  return TREEATTN_OK;
}

treeattn_status treeattn_growth_get_proposed(const treeattn_growth *growth, int32_t *parents, int32_t *tokens,
                                             double *values, int64_t capacity, int64_t *num_nodes,
                                             treeattn_error *error) {
  const void *const outputs[] = {parents, tokens, values};
  treeattn_status status = check_handle(growth, num_nodes, error);
  if (status == TREEATTN_OK) {
    status = check_outputs(outputs, 3, capacity, growth->num_proposed, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  for (int64_t node = 0; node < growth->num_proposed; node++) {
    if (parents != NULL) {
      parents[node] = growth->parents[node];
    }
    if (tokens != NULL) {
      tokens[node] = growth->tokens[node];
    }
    if (values != NULL) {
      values[node] = growth->values[node];
    }
  }
  *num_nodes = growth->num_proposed;
  return TREEATTN_OK;
}

treeattn_status treeattn_growth_get_drafted(const treeattn_growth *growth, int32_t *parents, int32_t *proposed,
                                            int64_t capacity, int64_t *num_nodes, treeattn_error *error) {
  const void *const outputs[] = {parents, proposed};
  treeattn_status status = check_handle(growth, num_nodes, error);
  if (status == TREEATTN_OK) {
    status = check_outputs(outputs, 2, capacity, growth->num_drafted, error);
  }
  if (status != TREEATTN_OK) {
    return status;
  }
  for (int64_t place = 0; place < growth->num_drafted; place++) {
    const int32_t node = growth->drafted[place];
    if (parents != NULL) {
      parents[place] = node == 0 ? -1 : growth->places[growth->parents[node]];
    }
    if (proposed != NULL) {
      proposed[place] = node;
    }
  }
  *num_nodes = growth->num_drafted;
  return TREEATTN_OK;
}

treeattn_status treeattn_growth_select(treeattn_growth *growth, int64_t max_nodes, int32_t *parents, int32_t *tokens,
                                       double *values, int32_t *proposed, int64_t capacity, int64_t *num_nodes,
                                       treeattn_error *error) {
  treeattn_status status = check_handle(growth, num_nodes, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  if (max_nodes < 0) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "max_nodes is %lld: it must not be negative",
                   (long long)max_nodes);
  }
  const void *const outputs[] = {parents, tokens, values, proposed};
  const int64_t num_kept = ta_min_i64(max_nodes, growth->num_proposed);
  status = check_outputs(outputs, parents != NULL ? 4 : 0, capacity, num_kept, error);
  if (status != TREEATTN_OK) {
    return status;
  }
  *num_nodes = num_kept;
  if (parents == NULL) {
    return TREEATTN_OK;
  }
  int32_t *kept = growth->work;
  for (int64_t node = 0; node < growth->num_proposed; node++) {
    kept[node] = (int32_t)node;
  }
  ta_sort_i32(kept, growth->num_proposed, value_before, growth->values);
  ta_sort_i32(kept, num_kept, index_before, NULL);
  for (int64_t i = 0; i < num_kept; i++) {
    const int32_t node = kept[i];
    growth->renumbered[node] = (int32_t)i;
    parents[i] = node == 0 ? -1 : growth->renumbered[growth->parents[node]];
    if (tokens != NULL) {
      tokens[i] = growth->tokens[node];
    }
    if (values != NULL) {
      values[i] = growth->values[node];
    }
    if (proposed != NULL) {
      proposed[i] = node;
    }
  }
  return TREEATTN_OK;
}
