/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OpenBLAS as a peer, unfused: for each KV head a product of all its rows with K, a masked softmax, a product with V.
 * KV heads, and where these are too few parts of their rows, go to threads; each product runs on one of them, which is
 * faster than products that are spread over threads one after another.
 * OpenBLAS has no 16-bit cache: it gets one in f32, converted outside the time. The softmax is as good as a compiler
 * makes it: one pass for the maximum, one for exponentials by a polynomial.
 */
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <treeattn/attention.h>

#include "peer.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define EACH_PROCESSOR __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define EACH_PROCESSOR
#endif

static peer_problem problem;
static float *keys, *values;   /* [G][T][D] */
static float *hidden;          /* [N][T]: what is added to a score */
static float *scores;          /* [H * N][T] */
static float *mixed;           /* [H * N][D] */
static int64_t rows_per_head;  /* of a KV head: group * N */
static int64_t parts_per_head; /* tasks that a KV head's rows make */
static treeattn_pool *pool;

/* s = exp(s + mask) / sum, -1e30 in the mask standing for hidden. */
EACH_PROCESSOR static void softmax(float *s, const float *mask, int64_t count) {
  float max = -1e30f;
  for (int64_t t = 0; t < count; t++) {
    const float x = s[t] + mask[t];
    s[t] = x;
    max = x > max ? x : max;
  }
  float sum = 0.0f;
  for (int64_t t = 0; t < count; t++) {
    float x = (s[t] - max) * 1.44269504f;
    const float seen = x < -126.0f ? 0.0f : 1.0f;
    x = x < -126.0f ? -126.0f : x;
    const int32_t n = (int32_t)(x - 0.5f);
    const float f = x - (float)n;
    float p = 1.5403530e-4f;
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    const int32_t bits = (n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    const float weight = p * power * seen;
    s[t] = weight;
    sum += weight;
  }
  const float inverse = 1.0f / sum;
  for (int64_t t = 0; t < count; t++) {
    s[t] *= inverse;
  }
}

/* Some rows of a KV head, which lie one after another as [head][node]. */
static void task(void *arg, size_t index) {
  const int64_t g = (int64_t)index / parts_per_head;
  const int64_t part = (int64_t)index % parts_per_head;
  const int64_t first = g * rows_per_head + rows_per_head * part / parts_per_head;
  const int64_t end = g * rows_per_head + rows_per_head * (part + 1) / parts_per_head;
  const int rows = (int)(end - first);
  const int slots = (int)problem.num_slots;
  const int dim = (int)problem.head_dim;
  const int64_t cache = g * problem.num_slots * problem.head_dim;
  float *s = scores + first * slots;
  float *out = mixed + first * dim;
  (void)arg;
  if (rows == 0) {
    return;
  }
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, slots, dim, problem.scale, problem.q + first * dim, dim,
              keys + cache, dim, 0.0f, s, slots);
  for (int64_t row = first; row < end; row++) {
    softmax(scores + row * slots, hidden + row % problem.num_nodes * slots, slots);
  }
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, dim, slots, 1.0f, s, slots, values + cache, dim, 0.0f,
              out, dim);
  for (int64_t row = first; row < end; row++) {
    const int64_t h = row / problem.num_nodes;
    const int64_t n = row % problem.num_nodes;
    memcpy(problem.out + (n * problem.num_heads + h) * dim, mixed + row * dim, (size_t)dim * sizeof *mixed);
  }
}

static void run(void) {
  const treeattn_executor executor = treeattn_pool_executor(pool);
  const size_t tasks = (size_t)(problem.num_kv_heads * parts_per_head);
  if (executor.parallel_for == NULL) {
    for (size_t n = 0; n < tasks; n++) {
      task(NULL, n);
    }
  } else if (executor.parallel_for(executor.context, task, NULL, tasks) != 0) {
    exit(1);
  }
}

static bool take(float **array, int64_t count) {
  free(*array);
  *array = malloc((size_t)count * sizeof **array);
  return *array != NULL;
}

static const char *load(const peer_problem *next) {
  problem = *next;
  const int64_t cache = problem.num_kv_heads * problem.num_slots * problem.head_dim;
  const int64_t rows = problem.num_heads * problem.num_nodes;
  if (!take(&keys, cache) || !take(&values, cache) || !take(&hidden, problem.num_nodes * problem.num_slots) ||
      !take(&scores, rows * problem.num_slots) || !take(&mixed, rows * problem.head_dim)) {
    return "out of memory";
  }
  for (int64_t n = 0; n < cache; n++) {
    keys[n] = peer_element(problem.dtype, problem.k, n);
    values[n] = peer_element(problem.dtype, problem.v, n);
  }
  for (int64_t n = 0; n < problem.num_nodes * problem.num_slots; n++) {
    hidden[n] = problem.seen[n] != 0 ? 0.0f : -1e30f;
  }
  treeattn_pool_destroy(pool);
  if (treeattn_pool_create(problem.num_threads, &pool, NULL) != TREEATTN_OK) {
    return "no thread pool";
  }
  rows_per_head = rows / problem.num_kv_heads;
  parts_per_head = (problem.num_threads + problem.num_kv_heads - 1) / problem.num_kv_heads;
  openblas_set_num_threads(1);
  return NULL;
}

int main(void) {
  char name[128];
  const char *config = openblas_get_config(); /* "OpenBLAS 0.3.21 ... ", then how it was built */
  (void)snprintf(name, sizeof name, "%.*s (unfused; f32 cache)", (int)strcspn(config + 9, " ") + 9, config);
  return peer_serve(name, load, run);
}
