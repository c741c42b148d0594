/* SPDX-License-Identifier: Apache-2.0 */
/* Rows, splits and the final reduce of the baseline. */
#include "seed.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "seed_kernels.h"

typedef struct job {
  const seed_args *args;
  const seed_kernels *kernels;
  seed_chunk_fn *chunk;
  size_t element_bytes;
} job;

static const seed_kernels *kernels_for(seed_isa isa) {
  if (isa == SEED_ISA_PLAIN) {
    return &seed_kernels_plain;
  }
  const seed_kernels *avx2 = seed_kernels_avx2();
  if (avx2 == NULL && isa == SEED_ISA_AUTO) {
    return &seed_kernels_plain;
  }
  return avx2;
}

const char *seed_isa_detect(void) {
  return kernels_for(SEED_ISA_AUTO)->name;
}

static int chunk_is_hidden(const float *mask, int64_t num_keys) {
  for (int64_t i = 0; i < num_keys; i++) {
    if (!(mask[i] <= TREEATTN_MASK_HIDDEN)) {
      return 0;
    }
  }
  return 1;
}

/* One row: (node, head). Nodes of one head are neighbours, so that a KV head stays in the cache while its rows read
 * it. */
static void attend_row(void *arg, size_t index) {
  const job *work = arg;
  const seed_args *a = work->args;
  const int64_t head = (int64_t)index / a->q_seq_len;
  const int64_t node = (int64_t)index % a->q_seq_len;
  const int64_t kv_head = head / (a->num_heads / a->num_kv_heads);
  const int64_t dim = a->head_dim;

  /* Queries pass through half precision whatever the cache holds. */
  _Alignas(64) float q[SEED_MAX_HEAD_DIM];
  const float *q_row = a->q + (head * a->q_seq_len + node) * dim;
  for (int64_t d = 0; d < dim; d++) {
    q[d] = seed_half_to_float(seed_float_to_half(q_row[d]));
  }

  const size_t row_bytes = (size_t)dim * work->element_bytes;
  const char *k = (const char *)a->k + (size_t)(kv_head * a->kv_capacity) * row_bytes;
  const char *v = (const char *)a->v + (size_t)(kv_head * a->kv_capacity) * row_bytes;
  const float *mask = a->mask + node * a->mask_stride;

  _Alignas(64) float sums[SEED_SPLITS * SEED_MAX_HEAD_DIM];
  seed_state states[SEED_SPLITS];
  memset(sums, 0, (size_t)(SEED_SPLITS * dim) * sizeof(float));
  for (int split = 0; split < SEED_SPLITS; split++) {
    states[split] = (seed_state){-FLT_MAX / 2, 0.0f};
  }

  /* Splits do not meet before the reduce, so that their chunks may be visited in the order of memory. */
  for (int64_t first = 0; first < a->kv_seq_len; first += SEED_CHUNK) {
    const int64_t left = a->kv_seq_len - first;
    const int64_t num_keys = left < SEED_CHUNK ? left : SEED_CHUNK;
    if (chunk_is_hidden(mask + first, num_keys)) {
      continue;
    }
    const int64_t split = first / SEED_CHUNK % SEED_SPLITS;
    work->chunk(q, k + (size_t)first * row_bytes, v + (size_t)first * row_bytes, mask + first, num_keys, dim, a->scale,
                &states[split], sums + split * dim);
  }

  float max = -FLT_MAX / 2;
  for (int split = 0; split < SEED_SPLITS; split++) {
    max = states[split].max > max ? states[split].max : max;
  }
  float weights[SEED_SPLITS];
  float sum = 0.0f;
  for (int split = 0; split < SEED_SPLITS; split++) {
    weights[split] = expf(states[split].max - max);
    sum += states[split].sum * weights[split];
  }
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  for (int split = 0; split < SEED_SPLITS; split++) {
    weights[split] *= inverse;
  }
  work->kernels->reduce(sums, weights, dim, a->out + (node * a->num_heads + head) * dim);
}

int seed_tree_attention(const seed_args *a) {
  const int64_t limit = INT64_C(1) << 31;
  if (a->num_heads < 1 || a->num_kv_heads < 1 || a->num_heads % a->num_kv_heads != 0 || a->num_heads > limit ||
      a->head_dim < 8 || a->head_dim > SEED_MAX_HEAD_DIM || a->head_dim % 8 != 0 || a->q_seq_len < 1 ||
      a->q_seq_len > limit || a->kv_seq_len < 1 || a->kv_capacity < a->kv_seq_len || a->mask_stride < a->kv_seq_len ||
      (a->kv_dtype != TREEATTN_F32 && a->kv_dtype != TREEATTN_F16)) {
    return -1;
  }
  job work = {.args = a, .kernels = kernels_for(a->isa), .element_bytes = treeattn_dtype_bytes(a->kv_dtype)};
  if (work.kernels == NULL) {
    return -1;
  }
  work.chunk = a->kv_dtype == TREEATTN_F16 ? work.kernels->chunk_f16 : work.kernels->chunk_f32;
  const size_t num_rows = (size_t)(a->num_heads * a->q_seq_len);
  if (a->executor.parallel_for != NULL) {
    return a->executor.parallel_for(a->executor.context, attend_row, &work, num_rows) == 0 ? 0 : -1;
  }
  for (size_t row = 0; row < num_rows; row++) {
    attend_row(&work, row);
  }
  return 0;
}
