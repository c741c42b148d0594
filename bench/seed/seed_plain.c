/* SPDX-License-Identifier: Apache-2.0 */
/* The baseline's inner loops in plain C, for machines without AVX2. */
#include <math.h>
#include <string.h>

#include "seed.h"
#include "seed_kernels.h"

float seed_half_to_float(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 31u;
  const uint32_t fraction = half & 1023u;
  uint32_t bits;
  float value;
  if (exponent == 31u) {
    bits = 0x7f800000u | fraction << 13;
  } else if (exponent != 0) {
    bits = (exponent + 112u) << 23 | fraction << 13;
  } else {
    value = (float)fraction * 0x1p-24f;
    memcpy(&bits, &value, sizeof bits);
  }
  bits |= sign;
  memcpy(&value, &bits, sizeof value);
  return value;
}

uint16_t seed_float_to_half(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) {
    return (uint16_t)(sign | 0x7e00u);
  }
  if (bits >= 0x477ff000u) { /* 65520 and above round to infinity */
    return (uint16_t)(sign | 0x7c00u);
  }
  if (bits < 0x38800000u) { /* below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits */
    float shifted;
    memcpy(&shifted, &bits, sizeof shifted);
    shifted += 0.5f;
    memcpy(&bits, &shifted, sizeof bits);
    return (uint16_t)(sign | (bits - 0x3f000000u));
  }
  const uint32_t odd = bits >> 13 & 1u;
  return (uint16_t)(sign | ((bits - 0x38000000u + 0xfffu + odd) >> 13));
}

static float load(const void *row, int64_t d, int is_half) {
  return is_half ? seed_half_to_float(((const uint16_t *)row)[d]) : ((const float *)row)[d];
}

static void chunk(const float *q, const void *k, const void *v, const float *mask, int64_t num_keys, int64_t dim,
                  float scale, seed_state *state, float *sums, int is_half) {
  const size_t row_bytes = (size_t)dim * (is_half ? 2 : 4);
  float weights[SEED_CHUNK];
  float max = state->max;
  for (int64_t j = 0; j < num_keys; j++) {
    const char *k_row = (const char *)k + (size_t)j * row_bytes;
    float dot = 0.0f;
    for (int64_t d = 0; d < dim; d++) {
      dot += q[d] * load(k_row, d, is_half);
    }
    weights[j] = dot * scale + mask[j];
    max = weights[j] > max ? weights[j] : max;
  }
  const float correction = expf(state->max - max);
  float sum = 0.0f;
  for (int64_t j = 0; j < num_keys; j++) {
    weights[j] = expf(weights[j] - max);
    sum += weights[j];
  }
  state->sum = state->sum * correction + sum;
  state->max = max;
  for (int64_t d = 0; d < dim; d++) {
    sums[d] *= correction;
  }
  for (int64_t j = 0; j < num_keys; j++) {
    const char *v_row = (const char *)v + (size_t)j * row_bytes;
    for (int64_t d = 0; d < dim; d++) {
      sums[d] += weights[j] * load(v_row, d, is_half);
    }
  }
}

static void chunk_f32(const float *q, const void *k, const void *v, const float *mask, int64_t num_keys, int64_t dim,
                      float scale, seed_state *state, float *sums) {
  chunk(q, k, v, mask, num_keys, dim, scale, state, sums, 0);
}

static void chunk_f16(const float *q, const void *k, const void *v, const float *mask, int64_t num_keys, int64_t dim,
                      float scale, seed_state *state, float *sums) {
  chunk(q, k, v, mask, num_keys, dim, scale, state, sums, 1);
}

static void reduce(const float *sums, const float *weights, int64_t dim, float *out) {
  for (int64_t d = 0; d < dim; d++) {
    out[d] = 0.0f;
  }
  for (int split = 0; split < SEED_SPLITS; split++) {
    for (int64_t d = 0; d < dim; d++) {
      out[d] += weights[split] * sums[split * dim + d];
    }
  }
}

const seed_kernels seed_kernels_plain = {"plain", chunk_f32, chunk_f16, reduce};
