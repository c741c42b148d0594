/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors that `treeattn attend` works on, checked against one another. */
#ifndef TREEATTN_TOOL_ATTEND_INPUT_H
#define TREEATTN_TOOL_ATTEND_INPUT_H

#include <treeattn/attention.h>

#include "io.h"

typedef enum attend_role {
  ATTEND_Q,
  ATTEND_K,
  ATTEND_V,
  ATTEND_PARENTS,
  ATTEND_MASK,
  ATTEND_SINKS,
  ATTEND_POSITIONS,
  ATTEND_NUM_ROLES
} attend_role;

/* Names of the tensors, and of the options that give each a file of its own. */
extern const char *const attend_role_names[ATTEND_NUM_ROLES];

/* What the command line says about the input. */
typedef struct attend_source {
  const char *path;                         /* the file with all tensors; NULL if each has its own */
  const char *role_paths[ATTEND_NUM_ROLES]; /* a file for one tensor; NULL: it is in `path` */
  int64_t layer;                            /* -1: tensors without a prefix */
  int64_t prefix_len, kv_len;               /* -1: not given */
} attend_source;

typedef struct attend_input {
  io_file *files[ATTEND_NUM_ROLES + 1]; /* the last is the one with all tensors */
  int64_t num_heads, num_nodes, head_dim, num_kv_heads, kv_capacity, head_dim_v;
  treeattn_dtype kv_dtype;
  const io_tensor *q, *k, *v;
  const float *sinks; /* NULL: none */
  treeattn_request request;
} attend_input;

/* Opens and checks; reports what is wrong. Close in either case. Returns an exit status. */
int attend_input_open(const attend_source *source, attend_input *input);
void attend_input_close(attend_input *input);

#endif
