/* SPDX-License-Identifier: Apache-2.0 */
/* The checked commit plan, shared by the files that make it and the one that carries it out. */
#ifndef TA_COMMIT_PLAN_H
#define TA_COMMIT_PLAN_H

#include <treeattn/commit.h>

#include "common.h"

struct treeattn_commit_plan {
  void *owned; /* memory of treeattn_commit_plan_create, or NULL */
  bool paged;
  int64_t num_blocks;     /* sequences, or pages */
  int64_t rows_per_block; /* kv_capacity, or page_size */
  int64_t num_moves, num_rows, num_cycles;
  treeattn_commit_move *moves;
};

/* A block that holds nodes of a request. */
typedef struct ta_commit_use {
  int64_t block, request;
  bool moves; /* the request moves something */
} ta_commit_use;

/* Working memory for ordering one request's moves. */
typedef struct ta_commit_work {
  int32_t *reader; /* [num_nodes]: the i whose path[i] is this node, or -1 */
  uint8_t *done;   /* [path_len]: slot P+i has what it should */
} ta_commit_work;

/* commit_order.c: appends the moves of one request in a safe order. reader must be filled. */
TA_HIDDEN void ta_commit_order(treeattn_commit_plan *plan, const treeattn_commit_request *request,
                               const ta_commit_work *work);

/* commit_order.c: checks a path and fills reader[num_nodes]. Messages say requests[r] unless r is -1. */
TA_HIDDEN treeattn_status ta_commit_check_path(const int32_t *path, int64_t path_len, int64_t num_nodes,
                                               int32_t *reader, int64_t r, treeattn_error *error);

/* commit_overlap.c: refuses blocks with nodes of two requests if one of them moves, and pages that a request has twice.
 * Sorts `uses`. */
TA_HIDDEN treeattn_status ta_commit_check_overlap(ta_commit_use *uses, int64_t num_uses, bool paged,
                                                  treeattn_error *error);

/* commit_args.c: a struct in full; `given_bytes` more than this version knows must be zero beyond it. */
TA_HIDDEN treeattn_status ta_commit_copy_struct(void *copy, size_t copy_bytes, const void *given, size_t given_bytes,
                                                const char *field, treeattn_error *error);

/* commit_args.c: checks what is not in the requests, copies it and puts the defaults in. */
TA_HIDDEN treeattn_status ta_commit_check_args(treeattn_commit_args *args, const treeattn_commit_args *given,
                                               treeattn_error *error);
TA_HIDDEN treeattn_status ta_commit_get_request(const treeattn_commit_args *args, int64_t r,
                                                treeattn_commit_request *request, treeattn_error *error);
TA_HIDDEN treeattn_status ta_commit_check_request(const treeattn_commit_args *args, int64_t r,
                                                  const treeattn_commit_request *request, treeattn_error *error);

#endif
