/* SPDX-License-Identifier: Apache-2.0 */
/* One request with its tensors in plain layouts, random or from a file, and its answer in float64. */
#ifndef TREEATTN_TOOL_PROBLEM_H
#define TREEATTN_TOOL_PROBLEM_H

#include <stdbool.h>

#include <treeattn/attention.h>

typedef struct problem {
  int64_t num_heads;    /* H */
  int64_t num_kv_heads; /* G */
  int64_t head_dim;     /* D */
  int64_t head_dim_v;   /* DV */
  int64_t num_nodes;    /* N */
  int64_t prefix_len;   /* P */
  int64_t kv_capacity;  /* C, at least P + N */
  treeattn_dtype kv_dtype;
  float scale;
  float softcap;
  int64_t window;
  int32_t *parents; /* [N] */
  int32_t *depths;  /* [N] */
  float *q;         /* [H][N][D] */
  void *k;          /* [G][C][D] */
  void *v;          /* [G][C][DV] */
  float *sinks;     /* [H] or NULL */
} problem;

/* splitmix64: the random numbers of bench and check. */
uint64_t problem_random(uint64_t *state);
/* 0 .. n - 1 */
int64_t problem_random_below(uint64_t *state, int64_t n);

/* Bytes of K and V together, from slot 0 to P + N - 1. */
size_t problem_kv_bytes(const problem *p);

/*
 * Takes sizes, dtype and parents (NULL: each parent any earlier node, node 0 the root) from `sizes` and fills a
 * problem of its own: K and V normal with deviation 1, Q likewise times `q_amplitude`. False when out of memory,
 * without a message.
 */
bool problem_create_random(const problem *sizes, float q_amplitude, uint64_t seed, problem *p);

/*
 * Reads q [H][N][D] f32, k and v [G][C][D] and, if there, parents [N] i32 (a chain otherwise) and sinks [H]; layer -1
 * takes these names, L takes layerL.q and so on. P is C - N and the scale 1/sqrt(D). False after reporting an error.
 */
bool problem_load(const char *path, int64_t layer, problem *p);
/* The layers of a file: numbers L with a tensor layerL.q, ascending, at most `capacity` of them. False after reporting
 * an error. */
bool problem_list_layers(const char *path, int64_t *layers, size_t capacity, size_t *num_layers);

/* Frees everything and leaves zeros. */
void problem_free(problem *p);

/* The nodes from the root to `node`; returns their number, depth + 1. */
int64_t problem_path(const problem *p, int64_t node, int32_t *path);

/* One element of a cache as a float, and the nearest element to a float. */
float problem_load_element(treeattn_dtype dtype, const void *cache, int64_t index);
void problem_store_element(treeattn_dtype dtype, void *cache, int64_t index, float value);

/* Row (node, head) in double precision on the cache as it is: out [DV]. `scores` has room for P + N numbers. max_score
 * may be NULL and becomes the largest magnitude of a score. */
void problem_oracle(const problem *p, int64_t node, int64_t head, double *scores, double *out, double *lse,
                    double *max_score);

/* |out - expected| / |expected|; NaN unless all are finite. */
double problem_relative_error(const float *out, const double *expected, int64_t dim);

#endif
