/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exp and log in double for sampling, the same bits on every machine: additions, multiplications, divisions and integer
 * arithmetic only, each rounded by itself (no contraction), in loops that compilers turn into vectors.
 */
#ifndef TA_VERIFY_MATH_H
#define TA_VERIFY_MATH_H

#include <stdint.h>
#include <string.h>

#include "elementary.h" /* TA_FUNCTION */

#define TA_LN2_DOUBLE_HI 0x1.62e42fefa0000p-1 /* 36 bits, so that its product with an exponent is exact */
#define TA_LN2_DOUBLE_LO 0x1.cf79abc9e3b3ap-40

TA_FUNCTION int64_t ta_double_to_bits(double value) {
  int64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

TA_FUNCTION double ta_double_from_bits(int64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

#define TA_EXP_DOUBLE_LOWEST -708.0

/* e^x for -708 <= x <= 0 within 1 unit in the last place. */
TA_FUNCTION double ta_exp_double_in_range(double x) {
  const double magic = 0x1.8p52; /* leaves the nearest integer in the low bits */
  const double shifted = x * 0x1.71547652b82fep0 + magic;
  const double n = shifted - magic;
  const double r = x - n * TA_LN2_DOUBLE_HI - n * TA_LN2_DOUBLE_LO;
  /* The Taylor series up to r^13 / 13!: |r| <= ln(2) / 2 leaves a relative error of 5e-18. */
  double y = 0x1.6124613a86d09p-33;
  y = y * r + 0x1.1eed8eff8d898p-29;
  y = y * r + 0x1.ae64567f544e4p-26;
  y = y * r + 0x1.27e4fb7789f5cp-22;
  y = y * r + 0x1.71de3a556c734p-19;
  y = y * r + 0x1.a01a01a01a01ap-16;
  y = y * r + 0x1.a01a01a01a01ap-13;
  y = y * r + 0x1.6c16c16c16c17p-10;
  y = y * r + 0x1.1111111111111p-7;
  y = y * r + 0x1.5555555555555p-5;
  y = y * r + 0x1.5555555555555p-3;
  y = y * r + 0.5;
  y = y * r * r + r + 1.0;
  /* Unsigned, since shifting the bits above the integer out is the point. */
  const uint64_t exponent = (uint64_t)ta_double_to_bits(shifted) << 52;
  return ta_double_from_bits((int64_t)((uint64_t)ta_double_to_bits(y) + exponent));
}

/* e^x for x <= 0; +0 below -708, so that subnormals never occur. */
TA_FUNCTION double ta_exp_double(double x) {
  return x < TA_EXP_DOUBLE_LOWEST ? 0.0 : ta_exp_double_in_range(x);
}

/* ln x for normal x > 0 within 2 units in the last place. */
TA_FUNCTION double ta_log_double(double x) {
  /* x = 2^e m with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh(f), f = (m - 1) / (m + 1), |f| < 0.172. */
  const uint64_t half_sqrt = UINT64_C(0x3fe6a09e667f3bcd);
  const uint64_t fraction = UINT64_C(0x000fffffffffffff);
  /* e + 1023 in the upper bits. It becomes a double as the low bits of 2^52: vectors convert no 64-bit integers. */
  const uint64_t bits = (uint64_t)ta_double_to_bits(x) + (UINT64_C(1023) << 52) - half_sqrt;
  const double e = ta_double_from_bits((int64_t)(bits >> 52 | UINT64_C(0x4330000000000000))) - (0x1.0p52 + 1023.0);
  const double m = ta_double_from_bits((int64_t)((bits & fraction) + half_sqrt));
  const double f = (m - 1.0) / (m + 1.0);
  const double u = f * f;
  /* 2 / (2k + 1) up to f^23: the remainder is below 2^-57 of the whole. */
  double y = 2.0 / 23.0;
  y = y * u + 2.0 / 21.0;
  y = y * u + 2.0 / 19.0;
  y = y * u + 2.0 / 17.0;
  y = y * u + 2.0 / 15.0;
  y = y * u + 2.0 / 13.0;
  y = y * u + 2.0 / 11.0;
  y = y * u + 2.0 / 9.0;
  y = y * u + 2.0 / 7.0;
  y = y * u + 2.0 / 5.0;
  y = y * u + 2.0 / 3.0;
  return e * TA_LN2_DOUBLE_HI + (e * TA_LN2_DOUBLE_LO + (y * u * f + 2.0 * f));
}

#endif
