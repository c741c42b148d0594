/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OpenBLAS as a peer, unfused: for each KV head a product of all its rows with K, a masked softmax, a product with V.
 * OpenBLAS has no 16-bit cache: it gets one in f32, converted outside the time. The softmax is as good as a compiler
 * makes it: one pass for the maximum, one for exponentials by a polynomial, rows spread over the same number of threads.
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
static float *keys, *values; /* [G][T][D] */
static float *hidden;        /* [N][T]: what is added to a score */
static float *scores;        /* [group * N][T] */
static float *mixed;         /* [group * N][D] */
static treeattn_pool *pool;
static int64_t kv_head;

static int64_t rows_of_kv_head(void) {
  return problem.num_heads / problem.num_kv_heads * problem.num_nodes;
}

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

static void softmax_task(void *arg, size_t row) {
  (void)arg;
  softmax(scores + (int64_t)row * problem.num_slots, hidden + (int64_t)row % problem.num_nodes * problem.num_slots,
          problem.num_slots);
}

/* Row (h, n) of the KV head to out [N][H][D]. */
static void store_task(void *arg, size_t row) {
  (void)arg;
  const int64_t h = kv_head * (problem.num_heads / problem.num_kv_heads) + (int64_t)row / problem.num_nodes;
  const int64_t n = (int64_t)row % problem.num_nodes;
  memcpy(problem.out + (n * problem.num_heads + h) * problem.head_dim, mixed + (int64_t)row * problem.head_dim,
         (size_t)problem.head_dim * sizeof *mixed);
}

static void for_each_row(void (*task)(void *, size_t)) {
  const treeattn_executor executor = treeattn_pool_executor(pool);
  if (executor.parallel_for(executor.context, task, NULL, (size_t)rows_of_kv_head()) != 0) {
    exit(1);
  }
}

static void run(void) {
  const int rows = (int)rows_of_kv_head();
  const int slots = (int)problem.num_slots;
  const int dim = (int)problem.head_dim;
  const int64_t cache = problem.num_slots * problem.head_dim;
  for (kv_head = 0; kv_head < problem.num_kv_heads; kv_head++) {
    const float *q = problem.q + kv_head * rows * dim;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, slots, dim, problem.scale, q, dim,
                keys + kv_head * cache, dim, 0.0f, scores, slots);
    for_each_row(softmax_task);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, dim, slots, 1.0f, scores, slots,
                values + kv_head * cache, dim, 0.0f, mixed, dim);
    for_each_row(store_task);
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
  const int64_t rows = rows_of_kv_head();
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
  openblas_set_num_threads(problem.num_threads);
  return NULL;
}

int main(void) {
  char name[128];
  const char *config = openblas_get_config(); /* "OpenBLAS 0.3.21 ... ", then how it was built */
  (void)snprintf(name, sizeof name, "%.*s (unfused; f32 cache)", (int)strcspn(config + 9, " ") + 9, config);
  return peer_serve(name, load, run);
}
