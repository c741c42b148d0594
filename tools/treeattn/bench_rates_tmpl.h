/* SPDX-License-Identifier: Apache-2.0 */
/* The measuring loops, included once for each instruction set with its verbs defined. No include guard on purpose. The
 * includer defines: NAME(x), ATTRIBUTE, VECTOR, LANES, CHAINS, SET1(x), LOAD(p), ADD(a, b), SUB(a, b), FMA(a, b, c),
 * SCALE_BY_POWER(p, t) (adds the low bits of t, shifted left by 23, to the bits of p) and SUM(v). */

/* `rounds` times CHAINS independent chains of multiply-adds. */
ATTRIBUTE static float NAME(multiply_add)(int64_t rounds) {
  VECTOR chain[CHAINS];
  const VECTOR factor = SET1(0.999f);
  const VECTOR addend = SET1(0.001f);
  for (int n = 0; n < CHAINS; n++) {
    chain[n] = SET1((float)n);
  }
  for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 16
    for (int n = 0; n < CHAINS; n++) {
      chain[n] = FMA(chain[n], factor, addend);
    }
  }
  VECTOR sum = chain[0];
  for (int n = 1; n < CHAINS; n++) {
    sum = ADD(sum, chain[n]);
  }
  return SUM(sum);
}

/* Sum of exp over `count` numbers, a multiple of 4 * LANES, that lie in a cache. */
ATTRIBUTE static float NAME(exponentials)(const float *x, int64_t count) {
  VECTOR sum[4] = {SET1(0.0f), SET1(0.0f), SET1(0.0f), SET1(0.0f)};
  const VECTOR magic = SET1(12582912.0f); /* 1.5 * 2^23: the rounded integer lands in the low bits */
  for (int64_t i = 0; i < count; i += 4 * LANES) {
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++) {
      const VECTOR value = LOAD(x + i + n * LANES);
      const VECTOR t = FMA(value, SET1(1.44269504f), magic);
      const VECTOR whole = SUB(t, magic);
      VECTOR r = FMA(whole, SET1(-0.693359375f), value);
      r = FMA(whole, SET1(2.12194440e-4f), r);
      VECTOR p = SET1(1.0f / 720.0f);
      p = FMA(p, r, SET1(1.0f / 120.0f));
      p = FMA(p, r, SET1(1.0f / 24.0f));
      p = FMA(p, r, SET1(1.0f / 6.0f));
      p = FMA(p, r, SET1(0.5f));
      p = FMA(p, r, SET1(1.0f));
      p = FMA(p, r, SET1(1.0f));
      sum[n] = ADD(sum[n], SCALE_BY_POWER(p, t));
    }
  }
  return SUM(ADD(ADD(sum[0], sum[1]), ADD(sum[2], sum[3])));
}

/* Reads `count` numbers, a multiple of 8 * LANES, once. */
ATTRIBUTE static float NAME(read_memory)(const float *x, int64_t count) {
  VECTOR sum[8];
  for (int n = 0; n < 8; n++) {
    sum[n] = SET1(0.0f);
  }
  for (int64_t i = 0; i < count; i += 8 * LANES) {
#pragma GCC unroll 8
    for (int n = 0; n < 8; n++) {
      sum[n] = ADD(sum[n], LOAD(x + i + n * LANES));
    }
  }
  VECTOR total = sum[0];
  for (int n = 1; n < 8; n++) {
    total = ADD(total, sum[n]);
  }
  return SUM(total);
}

static const loops NAME(loops) = {NAME_TEXT, LANES *CHAINS, NAME(multiply_add), NAME(exponentials), NAME(read_memory)};

#undef NAME
#undef NAME_TEXT
#undef ATTRIBUTE
#undef VECTOR
#undef LANES
#undef CHAINS
#undef SET1
#undef LOAD
#undef ADD
#undef SUB
#undef FMA
#undef SCALE_BY_POWER
#undef SUM
