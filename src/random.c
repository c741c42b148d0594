/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers that are a function of their key and counter, so that they do not depend on who draws them when. */
#include <treeattn/verify.h>

#include "common.h"

static void multiply(uint32_t a, uint32_t b, uint32_t *high, uint32_t *low) {
  const uint64_t product = (uint64_t)a * b;
  *high = (uint32_t)(product >> 32);
  *low = (uint32_t)product;
}

void treeattn_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t output[4]) {
  uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; round++) {
    uint32_t high0, low0, high1, low1;
    multiply(0xd2511f53u, x0, &high0, &low0);
    multiply(0xcd9e8d57u, x2, &high1, &low1);
    x0 = high1 ^ x1 ^ k0;
    x1 = low1;
    x2 = high0 ^ x3 ^ k1;
    x3 = low0;
    k0 += 0x9e3779b9u; /* the golden ratio's and the square root of three's first bits: a Weyl sequence of keys */
    k1 += 0xbb67ae85u;
  }
  output[0] = x0;
  output[1] = x1;
  output[2] = x2;
  output[3] = x3;
}

treeattn_status treeattn_uniforms_fill(uint64_t seed, uint64_t request, uint32_t position, uint32_t stream,
                                       int64_t count, float *uniforms, treeattn_error *error) {
  if (stream > TREEATTN_STREAM_MAX) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "stream is %lu: it is at most %lu", (unsigned long)stream,
                   (unsigned long)TREEATTN_STREAM_MAX);
  }
  if (count < 0 || count > TREEATTN_UNIFORMS_MAX) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "count is %lld: it lies in 0 to %lld", (long long)count,
                   (long long)TREEATTN_UNIFORMS_MAX);
  }
  if (count > 0 && uniforms == NULL) {
    return ta_fail(error, TREEATTN_ERROR_INVALID_ARGUMENT, "uniforms is NULL: count is %lld", (long long)count);
  }
  const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
  uint32_t counter[4] = {0, position, (uint32_t)request, (uint32_t)(request >> 32)};
  uint32_t output[4];
  for (int64_t i = 0; i < count; i++) {
    if (i % 4 == 0) {
      counter[0] = stream << 24 | (uint32_t)(i / 4);
      treeattn_philox4x32(counter, key, output);
    }
    uniforms[i] = (float)(output[i % 4] >> 8) * 0x1.0p-24f;
  }
  return TREEATTN_OK;
}
