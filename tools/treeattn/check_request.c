/* SPDX-License-Identifier: Apache-2.0 */
/* One request against the promises about its bits: invariance, path, isolation, ISAs, encodings; and against
 * float64. */
#include <math.h>
#include <string.h>

#include "check.h"

/* The answer that all others are compared with, and room for another one. */
typedef struct answers {
  float *out, *lse;             /* the ISA under test, alone, contiguous, one thread */
  float *other_out, *other_lse; /* starts as something else each time */
  size_t num_out, num_lse;
} answers;

static bool allocate(answers *a, const problem *p) {
  a->num_lse = (size_t)(p->num_nodes * p->num_heads);
  a->num_out = a->num_lse * (size_t)p->head_dim_v;
  a->out = cli_malloc_array(a->num_out, sizeof *a->out);
  a->lse = cli_malloc_array(a->num_lse, sizeof *a->lse);
  a->other_out = cli_malloc_array(a->num_out, sizeof *a->other_out);
  a->other_lse = cli_malloc_array(a->num_lse, sizeof *a->other_lse);
  return a->out != NULL && a->lse != NULL && a->other_out != NULL && a->other_lse != NULL;
}

static void release(answers *a) {
  cli_free(a->out);
  cli_free(a->lse);
  cli_free(a->other_out);
  cli_free(a->other_lse);
}

/* Attends another way and compares all rows, or those of one node. */
static int attend_and_compare(check_context *c, int line, const problem *p, const check_way *way, int64_t node,
                              answers *a, const char *what) {
  memset(a->other_out, 0xa5, a->num_out * sizeof *a->other_out);
  memset(a->other_lse, 0xa5, a->num_lse * sizeof *a->other_lse);
  const int status = check_attend(c, p, way, a->other_out, a->other_lse);
  if (status == CLI_OK) {
    check_compare(c, line, p, node, a->other_out, a->other_lse, a->out, a->lse, what);
  }
  return status;
}

static int check_invariance(check_context *c, const problem *p, answers *a) {
  check_way way = {.isa = c->isa};
  int status = attend_and_compare(c, CHECK_P2, p, &way, -1, a, "a second run");
  for (way.team = 1; way.team < CHECK_NUM_TEAMS && status == CLI_OK; way.team++) {
    status = attend_and_compare(c, CHECK_P2, p, &way, -1, a, "another number of threads");
  }
  for (int64_t place = 0; place < 3 && status == CLI_OK; place++) {
    way = (check_way){.isa = c->isa, .team = (int)place, .num_before = 2 * place, .num_after = 3 - place};
    status = attend_and_compare(c, CHECK_P2, p, &way, -1, a, "within a batch");
  }
  /* Only some rows, backwards: the other rows are not even computed. */
  int32_t *nodes = cli_malloc_array((size_t)p->num_nodes, sizeof *nodes);
  if (nodes == NULL) {
    return cli_out_of_memory();
  }
  int64_t count = 0;
  for (int64_t i = p->num_nodes - 1; i >= 0; i -= 1 + problem_random_below(&c->random, 3)) {
    nodes[count++] = (int32_t)i;
  }
  way = (check_way){.isa = c->isa, .query_nodes = nodes, .num_queries = count};
  if (status == CLI_OK) {
    status = check_attend(c, p, &way, a->other_out, a->other_lse);
  }
  for (int64_t n = 0; n < count && status == CLI_OK; n++) {
    check_compare(c, CHECK_P2, p, nodes[n], a->other_out, a->other_lse, a->out, a->lse, "as one of fewer rows");
  }
  cli_free(nodes);
  return status;
}

/* The heads of one KV group as a problem of their own: how many heads are packed together must not matter. */
static int check_heads(check_context *c, const problem *p, answers *a) {
  const int64_t ratio = p->num_heads / p->num_kv_heads;
  const int64_t g = problem_random_below(&c->random, p->num_kv_heads);
  const size_t element = treeattn_dtype_bytes(p->kv_dtype);
  problem group = *p;
  group.num_heads = ratio;
  group.num_kv_heads = 1;
  group.q = p->q + g * ratio * p->num_nodes * p->head_dim;
  group.k = (char *)p->k + (size_t)(g * p->kv_capacity * p->head_dim) * element;
  group.v = (char *)p->v + (size_t)(g * p->kv_capacity * p->head_dim_v) * element;
  group.sinks = p->sinks != NULL ? p->sinks + g * ratio : NULL;
  const check_way way = {.isa = c->isa};
  const int status = check_attend(c, &group, &way, a->other_out, a->other_lse);
  for (int64_t i = 0; i < p->num_nodes && status == CLI_OK; i++) {
    for (int64_t h = 0; h < ratio; h++) {
      const int64_t row = i * p->num_heads + g * ratio + h;
      const int64_t other = i * ratio + h;
      const bool same = memcmp(a->out + row * p->head_dim_v, a->other_out + other * p->head_dim_v,
                               (size_t)p->head_dim_v * sizeof(float)) == 0 &&
                        memcmp(a->lse + row, a->other_lse + other, sizeof(float)) == 0;
      check_count(c, CHECK_P2, same, "%s: node %lld head %lld: with fewer heads", c->trial, (long long)i, (long long)h);
    }
  }
  return status;
}

/* Slots of a path, one after another behind the prefix: [G][C][dim] to [G][P + length][dim]. */
static void *gather_path(const problem *p, const void *cache, int64_t dim, const int32_t *path, int64_t length) {
  const size_t row_bytes = (size_t)dim * treeattn_dtype_bytes(p->kv_dtype);
  const size_t slots = (size_t)(p->prefix_len + length);
  unsigned char *gathered = cli_malloc_array((size_t)p->num_kv_heads * slots, row_bytes);
  for (int64_t g = 0; g < p->num_kv_heads && gathered != NULL; g++) {
    const unsigned char *from = (const unsigned char *)cache + (size_t)(g * p->kv_capacity) * row_bytes;
    unsigned char *to = gathered + (size_t)g * slots * row_bytes;
    memcpy(to, from, (size_t)p->prefix_len * row_bytes);
    for (int64_t n = 0; n < length; n++) {
      memcpy(to + (size_t)(p->prefix_len + n) * row_bytes, from + (size_t)(p->prefix_len + path[n]) * row_bytes,
             row_bytes);
    }
  }
  return gathered;
}

/* Plain sequential decoding of one node's token after its path: one query, a contiguous cache, no tree. */
static int check_path(check_context *c, const problem *p, int64_t node, treeattn_isa isa, int32_t *path, answers *a) {
  const int64_t length = problem_path(p, node, path);
  int32_t parent = -1;
  int32_t depth = 0;
  problem single = *p;
  single.num_nodes = 1;
  single.prefix_len = p->prefix_len + length - 1;
  single.kv_capacity = p->prefix_len + length;
  single.parents = &parent;
  single.depths = &depth;
  single.q = cli_malloc_array((size_t)p->num_heads, (size_t)p->head_dim * sizeof *single.q);
  single.k = gather_path(p, p->k, p->head_dim, path, length);
  single.v = gather_path(p, p->v, p->head_dim_v, path, length);
  int status = single.q == NULL || single.k == NULL || single.v == NULL ? cli_out_of_memory() : CLI_OK;
  if (status == CLI_OK) {
    for (int64_t h = 0; h < p->num_heads; h++) {
      memcpy(single.q + h * p->head_dim, p->q + (h * p->num_nodes + node) * p->head_dim,
             (size_t)p->head_dim * sizeof *p->q);
    }
    const check_way way = {.isa = isa, .encoding = CHECK_CHAIN};
    status = check_attend(c, &single, &way, a->other_out, a->other_lse);
  }
  if (status == CLI_OK) {
    /* The single row stands at the front of `other`; its peer is the node's. */
    check_compare(c, CHECK_P3, &single, 0, a->out + node * p->num_heads * p->head_dim_v, a->lse + node * p->num_heads,
                  a->other_out, a->other_lse, isa == TREEATTN_ISA_SCALAR ? "its path alone, scalar" : "its path alone");
  }
  cli_free(single.q);
  cli_free(single.k);
  cli_free(single.v);
  return status;
}

static int check_paths(check_context *c, const problem *p, answers *a) {
  int32_t *path = cli_malloc_array((size_t)p->num_nodes, sizeof *path);
  if (path == NULL) {
    return cli_out_of_memory();
  }
  int status = CLI_OK;
  for (int64_t i = 0; i < p->num_nodes && status == CLI_OK; i++) {
    status = check_path(c, p, i, c->isa, path, a);
    if (status == CLI_OK && c->isa != TREEATTN_ISA_SCALAR) {
      status = check_path(c, p, i, TREEATTN_ISA_SCALAR, path, a);
    }
  }
  cli_free(path);
  return status;
}

/* For some nodes in turn: everything that the node does not see is overwritten, other nodes' queries included. */
static int check_isolation(check_context *c, const problem *p, answers *a) {
  static const float poisons[] = {NAN, INFINITY, -INFINITY, 60000.0f};
  unsigned char *hidden = cli_malloc((size_t)p->num_nodes);
  if (hidden == NULL) {
    return cli_out_of_memory();
  }
  int status = CLI_OK;
  const int64_t count = p->num_nodes < 6 ? p->num_nodes : 6;
  for (int64_t n = 0; n < count && status == CLI_OK; n++) {
    const int64_t node = p->num_nodes <= 6 ? n : problem_random_below(&c->random, p->num_nodes);
    memset(hidden, 1, (size_t)p->num_nodes);
    for (int64_t j = node; j >= 0; j = p->parents[j]) {
      /* an ancestor further up than the window is not seen either */
      hidden[j] = p->window > 0 && p->depths[node] - p->depths[j] >= p->window;
    }
    hidden[node] = 0;
    const int64_t position = p->prefix_len + p->depths[node];
    const check_way way = {.isa = c->isa,
                           .team = (int)(n % CHECK_NUM_TEAMS),
                           .encoding = (check_encoding)(n % 2 == 0 ? CHECK_PARENTS : CHECK_DENSE),
                           .page_size = n % 3 == 2 ? 16 : 0,
                           .num_before = n % 2,
                           .num_after = 1,
                           .poison_nodes = hidden,
                           .poison_prefix = p->window > 0 ? position - p->window + 1 : 0,
                           .poison = poisons[n % 4]};
    status = attend_and_compare(c, CHECK_P4, p, &way, node, a, "what it does not see was overwritten");
  }
  cli_free(hidden);
  return status;
}

static int check_encodings(check_context *c, const problem *p, answers *a) {
  bool is_chain = true;
  for (int64_t i = 0; i < p->num_nodes; i++) {
    is_chain = is_chain && p->parents[i] == (int32_t)i - 1;
  }
  int status = CLI_OK;
  for (int encoding = CHECK_PARENTS; encoding < CHECK_NUM_ENCODINGS && status == CLI_OK; encoding++) {
    if (encoding == CHECK_CHAIN && !is_chain) {
      continue;
    }
    const check_way way = {.isa = c->isa, .encoding = (check_encoding)encoding};
    status = attend_and_compare(c, CHECK_P6, p, &way, -1, a, "another encoding");
  }
  static const int64_t page_sizes[] = {1, 16, 37, 256};
  for (size_t n = 0; n < sizeof page_sizes / sizeof *page_sizes && status == CLI_OK; n++) {
    const check_way way = {.isa = c->isa, .page_size = page_sizes[n], .num_after = (int64_t)n % 2};
    status = attend_and_compare(c, CHECK_P6, p, &way, -1, a, "in pages");
  }
  return status;
}

/* The whole output in the norm of the contract: 2e-6 while no score exceeds 16, then growing as the scores do. */
static int check_accuracy(check_context *c, const problem *p, const answers *a) {
  double *scores = cli_malloc_array((size_t)(p->prefix_len + p->num_nodes), sizeof *scores);
  double *expected = cli_malloc_array((size_t)p->head_dim_v, sizeof *expected);
  double difference = 0.0;
  double norm = 0.0;
  double magnitude = 0.0;
  double lse_difference = 0.0;
  double lse_norm = 0.0;
  if (scores == NULL || expected == NULL) {
    cli_free(scores);
    cli_free(expected);
    return cli_out_of_memory();
  }
  for (int64_t row = 0; row < p->num_nodes * p->num_heads; row++) {
    double lse = 0.0;
    double largest = 0.0;
    problem_oracle(p, row / p->num_heads, row % p->num_heads, scores, expected, &lse, &largest);
    magnitude = fmax(magnitude, largest);
    for (int64_t d = 0; d < p->head_dim_v; d++) {
      const double x = (double)a->out[row * p->head_dim_v + d] - expected[d];
      difference += x * x;
      norm += expected[d] * expected[d];
    }
    lse_difference += ((double)a->lse[row] - lse) * ((double)a->lse[row] - lse);
    lse_norm += fmax(1.0, lse * lse); /* a logarithm near 0 has no relative error to speak of */
  }
  cli_free(scores);
  cli_free(expected);
  const double bound = fmax(2e-6, magnitude * 0x1p-23);
  const double error = sqrt(difference / norm);
  const double lse_error = sqrt(lse_difference / lse_norm);
  const double worse = !(error >= lse_error) ? lse_error : error;
  check_count(c, CHECK_ACCURACY, error <= bound, "%s: relative error %.2e, scores up to %.0f", c->trial, error,
              magnitude);
  check_count(c, CHECK_ACCURACY, lse_error <= bound, "%s: error of lse %.2e, scores up to %.0f", c->trial, lse_error,
              magnitude);
  if (!(worse / bound <= c->worst_error / c->worst_bound)) {
    c->worst_error = worse;
    c->worst_bound = bound;
  }
  return CLI_OK;
}

static int check_isas(check_context *c, const problem *p, answers *a) {
  int status = CLI_OK;
  for (size_t n = 0; n < c->num_isas && status == CLI_OK; n++) {
    if (c->isas[n] != c->isa) {
      const check_way way = {.isa = c->isas[n], .team = (int)(n % CHECK_NUM_TEAMS)};
      status = attend_and_compare(c, CHECK_P5, p, &way, -1, a, treeattn_isa_name(c->isas[n]));
    }
  }
  return status;
}

int check_request(check_context *c, const problem *p) {
  answers a = {.out = NULL};
  const check_way way = {.isa = c->isa};
  int status = allocate(&a, p) ? check_attend(c, p, &way, a.out, a.lse) : cli_out_of_memory();
  static int (*const parts[])(check_context *, const problem *, answers *) = {
      check_invariance, check_heads, check_paths, check_isolation, check_isas, check_encodings};
  for (size_t n = 0; n < sizeof parts / sizeof *parts && status == CLI_OK; n++) {
    status = parts[n](c, p, &a);
  }
  if (status == CLI_OK) {
    status = check_accuracy(c, p, &a);
  }
  release(&a);
  return status;
}
