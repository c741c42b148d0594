/* SPDX-License-Identifier: Apache-2.0 */
/* The three inner loops of the baseline, once in plain C and once for AVX2. */
#ifndef BENCH_SEED_KERNELS_H
#define BENCH_SEED_KERNELS_H

#include <stdint.h>

/* What one split has gathered of one row, apart from its D sums. */
typedef struct seed_state {
  float max; /* starts at -FLT_MAX / 2 */
  float sum;
} seed_state;

/* Visits `num_keys` keys (1 to SEED_CHUNK) that lie one after another at `k` and `v`, with their cells of the mask row:
 * scores, online softmax, weighted sum. */
typedef void seed_chunk_fn(const float *q, const void *k, const void *v, const float *mask, int64_t num_keys,
                           int64_t head_dim, float scale, seed_state *state, float *sums);

typedef struct seed_kernels {
  const char *name;
  seed_chunk_fn *chunk_f32;
  seed_chunk_fn *chunk_f16;
  /* out[d] = sum over splits of weights[split] * sums[split][d] */
  void (*reduce)(const float *sums, const float *weights, int64_t head_dim, float *out);
} seed_kernels;

extern const seed_kernels seed_kernels_plain;
/* NULL where the compiler or the machine has no AVX2, FMA and F16C. */
const seed_kernels *seed_kernels_avx2(void);

/* IEEE binary16 to and from binary32, round to nearest even. */
float seed_half_to_float(uint16_t half);
uint16_t seed_float_to_half(float value);

#endif
