/* SPDX-License-Identifier: Apache-2.0 */
/* A batch of trees with its tensors in logical form, free of any layout, and what decoding one path of it alone gives. */
#ifndef TESTS_PROBLEM_H
#define TESTS_PROBLEM_H

#include <treeattn/attention.h>

#include "rng.h"
#include "trees.h"

typedef struct request_data {
  int num_nodes;    /* N */
  int prefix_len;   /* P */
  int num_slots;    /* P + N */
  int32_t *parents; /* [N] */
  int32_t *depths;  /* [N] */
  float *q;         /* [H][N][D] */
  void *k;          /* [G][P + N][D] of kv_dtype */
  void *v;          /* [G][P + N][DV] */
} request_data;

typedef struct problem {
  int num_heads, num_kv_heads, head_dim, head_dim_v;
  treeattn_dtype kv_dtype;
  float scale, softcap;
  int64_t window;
  float *sinks; /* [H] or NULL */
  int num_requests;
  request_data *requests;
} problem;

/* The fill of the shared cases: value number i of stream `seed`, in [-1, 1). */
float fill_value(uint32_t i, uint32_t seed);

/* A problem without requests; scale 1/sqrt(head_dim). head_dim_v 0: head_dim. */
problem problem_new(int num_heads, int num_kv_heads, int head_dim, int head_dim_v, treeattn_dtype kv_dtype);
/* Adds a request with random Q, K, V; parents are copied. q_amplitude scales Q, and with it the scores. */
request_data *problem_add(problem *p, int prefix_len, int num_nodes, const int32_t *parents, float q_amplitude, rng *r);
request_data *problem_add_tree(problem *p, int prefix_len, int num_nodes, tree_shape shape, float q_amplitude, rng *r);
void problem_set_sinks(problem *p, rng *r);
void problem_free(problem *p);
/* T */
int64_t problem_rows(const problem *p);

/* The arguments that do not depend on a layout. */
treeattn_plan_args problem_args(const problem *p);

/* What a plan decided. */
treeattn_plan_info plan_info(const treeattn_plan *plan);

/* Plans, runs and forgets: the shortest way through the public API. lse may be NULL. Everything must succeed. */
void attend_simply(const treeattn_plan_args *args, const void *q, const void *k, const void *v, const float *sinks,
                   float *out, float *lse);

/* The path of a node, laid out contiguously and decoded alone, one query as a chain: out [H][DV], lse [H]. */
void path_decode(const problem *p, int request, int node, treeattn_isa isa, float *out, float *lse);

size_t element_bytes(treeattn_dtype dtype);

#endif
