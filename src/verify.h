/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of verification share: rows as weights, the rules of rejection, and the walks. */
#ifndef TA_VERIFY_H
#define TA_VERIFY_H

#include <stdbool.h>

#include <treeattn/verify.h>

#include "common.h"

/* ---- rows of logits ---- */

/* What a scan of a row found. Exactly one of the three holds. */
typedef enum ta_argmax_kind { TA_ARGMAX_TOKEN, TA_ARGMAX_NAN, TA_ARGMAX_NOTHING } ta_argmax_kind;

typedef struct ta_argmax {
  ta_argmax_kind kind; /* NOTHING: every logit is -infinity */
  int32_t index;       /* of the largest logit, or of the first NaN */
} ta_argmax;

TA_HIDDEN ta_argmax ta_row_argmax(const void *row, treeattn_dtype dtype, int64_t vocab_size);

static inline treeattn_dtype ta_rows_dtype(const treeattn_verify_rows *rows) {
  return rows->dtype == 0 ? TREEATTN_F32 : rows->dtype;
}

static inline const void *ta_rows_at(const treeattn_verify_rows *rows, int64_t row, int64_t vocab_size) {
  const size_t stride = (size_t)(rows->row_stride == 0 ? vocab_size : rows->row_stride);
  return (const unsigned char *)rows->data + (size_t)row * stride * treeattn_dtype_bytes(ta_rows_dtype(rows));
}

/* Type, stride and size of a matrix that is present. `name` is what messages call it. */
TA_HIDDEN treeattn_status ta_rows_check(const treeattn_verify_rows *rows, int64_t num_rows, int64_t vocab_size,
                                        const char *name, treeattn_error *error);

/* ---- rows as weights ---- */

/*
 * A distribution up to its total: values[t] / total. Values are padded with zeros to whole blocks, so that every loop
 * over a block has one length; sums[b] is the sum of block b in one fixed order, total the sum of sums in ascending
 * order.
 */
enum { TA_WEIGHTS_BLOCK = 256 };

typedef struct ta_weights {
  double *values; /* [num_blocks][TA_WEIGHTS_BLOCK] */
  double *sums;   /* [num_blocks] */
  int64_t num_blocks;
  double total;
} ta_weights;

static inline int64_t ta_weights_num_blocks(int64_t vocab_size) {
  return (vocab_size + TA_WEIGHTS_BLOCK - 1) / TA_WEIGHTS_BLOCK;
}

static inline double ta_weights_probability(const ta_weights *weights, int64_t token) {
  return weights->values[token] / weights->total;
}

/* Where a row stands, for messages: "requests[3]." + "logits" + "[7]". */
typedef struct ta_row_name {
  const char *prefix;
  const char *field;
  int64_t node;
} ta_row_name;

/* softmax(row / temperature) up to its total, temperature > 0. */
TA_HIDDEN treeattn_status ta_weights_from_logits(ta_weights *weights, const void *row, treeattn_dtype dtype,
                                                 int64_t vocab_size, float temperature, ta_row_name name,
                                                 treeattn_error *error);
/* A row of probabilities. An all-zero row is an error unless zero_allowed. */
TA_HIDDEN treeattn_status ta_weights_from_probs(ta_weights *weights, const void *row, treeattn_dtype dtype,
                                                int64_t vocab_size, bool zero_allowed, ta_row_name name,
                                                treeattn_error *error);
/* The argmax of either, or the error that the function above would report. */
TA_HIDDEN treeattn_status ta_logits_row_argmax(const void *row, treeattn_dtype dtype, int64_t vocab_size,
                                               ta_row_name name, int32_t *token, treeattn_error *error);
TA_HIDDEN treeattn_status ta_probs_row_argmax(const void *row, treeattn_dtype dtype, int64_t vocab_size,
                                              ta_row_name name, int32_t *token, treeattn_error *error);
/* sums[block] anew, after its values have changed; the total only by ta_weights_sum. */
TA_HIDDEN void ta_weights_sum_block(ta_weights *weights, int64_t block);
TA_HIDDEN void ta_weights_sum(ta_weights *weights);
TA_HIDDEN void ta_weights_remove(ta_weights *weights, int64_t token);
/* The smallest token whose cumulative probability exceeds the uniform. Its weight is positive. */
TA_HIDDEN int32_t ta_weights_draw(const ta_weights *weights, double uniform);
/* exp(-H) of the distribution, H its entropy. */
TA_HIDDEN double ta_weights_exp_minus_entropy(const ta_weights *weights);

/* ---- rules ---- */

typedef struct ta_verify_state {
  ta_weights target; /* p */
  ta_weights draft;  /* q; total 0 and no values where the rule has none */
} ta_verify_state;

typedef struct ta_verify_rule {
  bool uses_draft;
  /* The probability with which the candidate is accepted, 0 to 1. */
  double (*acceptance)(const ta_verify_state *state, int32_t token);
  /* What the rejection leaves of p and q. False if nothing is left of p. */
  bool (*reject)(ta_verify_state *state, int32_t token);
} ta_verify_rule;

/* NULL for methods that throw no coins. */
TA_HIDDEN const ta_verify_rule *ta_verify_rule_of(treeattn_verify_method method);

/* ---- walks ---- */

/* Who decides: the caller's uniforms, or a test that visits every outcome. */
typedef struct ta_chooser {
  void *context;
  /* Fills accepted and uniform of *decision, whose other fields are set. */
  treeattn_status (*accept)(void *context, treeattn_verify_decision *decision, treeattn_error *error);
  /* Fills token and uniform of *decision. */
  treeattn_status (*draw)(void *context, const ta_weights *weights, treeattn_verify_decision *decision,
                          treeattn_error *error);
} ta_chooser;

/* Where a walk writes: path and tokens have num_nodes entries, decisions too or is NULL. */
typedef struct ta_verify_output {
  int32_t *path;
  int32_t *tokens;
  treeattn_verify_decision *decisions;
  int64_t num_path;
  int64_t num_decisions;
} ta_verify_output;

static inline void ta_output_start(ta_verify_output *output) {
  output->path[0] = 0;
  output->num_path = 1;
  output->num_decisions = 0;
}

static inline void ta_output_decide(ta_verify_output *output, const treeattn_verify_decision *decision) {
  if (output->decisions != NULL) {
    output->decisions[output->num_decisions++] = *decision;
  }
}

/* The node follows the path so far. */
static inline void ta_output_accept(ta_verify_output *output, int32_t node, int32_t token) {
  output->tokens[output->num_path - 1] = token;
  output->path[output->num_path++] = node;
}

static inline void ta_output_finish(ta_verify_output *output, int32_t last_token) {
  output->tokens[output->num_path - 1] = last_token;
}

/* One request whose arguments have been checked, of 1 node or more. */
typedef struct ta_verify_problem {
  const treeattn_verify_request *request;
  int64_t vocab_size;
  const char *prefix; /* what messages put in front of a field, e.g. "requests[3]." */
} ta_verify_problem;

/* The node's most likely next token. */
TA_HIDDEN treeattn_status ta_verify_argmax(const ta_verify_problem *problem, int64_t node, int32_t *token,
                                           treeattn_error *error);
/* The node's row as weights. */
TA_HIDDEN treeattn_status ta_verify_target(const ta_verify_problem *problem, int64_t node, ta_weights *weights,
                                           treeattn_error *error);

TA_HIDDEN treeattn_status ta_verify_walk_greedy(const ta_verify_problem *problem, ta_verify_output *output,
                                                treeattn_error *error);
TA_HIDDEN treeattn_status ta_verify_walk(const ta_verify_problem *problem, const ta_verify_rule *rule,
                                         const ta_chooser *chooser, ta_verify_state *state, ta_verify_output *output,
                                         treeattn_error *error);

/* Coins from the request's uniforms, in order. */
typedef struct ta_uniform_source {
  const ta_verify_problem *problem;
  int64_t next;
} ta_uniform_source;

TA_HIDDEN ta_chooser ta_uniform_chooser(ta_uniform_source *source);

/* Working memory of a typical walk, [num_nodes] each. */
typedef struct ta_typical_nodes {
  double *log_probability; /* of the path to an acceptable node; NaN for the others */
  int32_t *first_child;
  int32_t *next_sibling;
  int32_t *depth;
} ta_typical_nodes;

TA_HIDDEN treeattn_status ta_verify_walk_typical(const ta_verify_problem *problem, ta_typical_nodes *nodes,
                                                 ta_weights *weights, ta_verify_output *output, treeattn_error *error);

/* ---- arguments ---- */

static inline const treeattn_verify_request *ta_verify_request_at(const treeattn_verify_args *args, int64_t index) {
  return (const void *)((const unsigned char *)args->requests + (size_t)index * args->request_bytes);
}

static inline treeattn_verify_result *ta_verify_result_at(const treeattn_verify_args *args, int64_t index) {
  return (void *)((unsigned char *)args->results + (size_t)index * args->result_bytes);
}

/* What is done: at temperature 0 any method is greedy. */
static inline treeattn_verify_method ta_verify_effective_method(const treeattn_verify_request *request) {
  return request->temperature == 0 ? TREEATTN_VERIFY_GREEDY : request->method;
}

enum { TA_VERIFY_PREFIX_BYTES = 40 };
/* "requests[3]." */
TA_HIDDEN void ta_verify_prefix(char prefix[TA_VERIFY_PREFIX_BYTES], int64_t index);

/* Everything that can be known without reading rows, argmax or uniforms. */
TA_HIDDEN treeattn_status ta_verify_check_args(const treeattn_verify_args *args, treeattn_error *error);

#endif
