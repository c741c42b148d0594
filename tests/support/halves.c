/* SPDX-License-Identifier: Apache-2.0 */
/* 16-bit floats by arithmetic on doubles. */
#include "halves.h"

#include <math.h>
#include <string.h>

/* Value of a small IEEE format with `mantissa_bits` and an exponent of the given bias; not for exponents all ones. */
static double small_value(unsigned exponent, unsigned mantissa, int mantissa_bits, int bias) {
  if (exponent == 0) {
    return ldexp((double)mantissa, 1 - bias - mantissa_bits);
  }
  return ldexp(1.0 + ldexp((double)mantissa, -mantissa_bits), (int)exponent - bias);
}

static float small_to_float(uint16_t bits, int mantissa_bits, unsigned exponent_mask, int bias) {
  unsigned exponent = ((unsigned)bits >> mantissa_bits) & exponent_mask;
  unsigned mantissa = (unsigned)bits & ((1u << mantissa_bits) - 1u);
  double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
  if (exponent == exponent_mask) {
    return mantissa == 0 ? (float)(sign * HUGE_VAL) : NAN;
  }
  return (float)(sign * small_value(exponent, mantissa, mantissa_bits, bias));
}

float half_to_float(uint16_t bits) {
  return small_to_float(bits, 10, 0x1f, 15);
}

float bfloat_to_float(uint16_t bits) {
  return small_to_float(bits, 7, 0xff, 127);
}

static uint16_t float_to_small(float value, int mantissa_bits, int exponent_mask, int bias) {
  unsigned sign = signbit(value) != 0 ? 0x8000u : 0u;
  unsigned infinity = (unsigned)exponent_mask << mantissa_bits;
  if (isnan(value)) {
    return (uint16_t)(sign | infinity | (1u << (mantissa_bits - 1)));
  }
  double magnitude = fabs((double)value);
  if (magnitude == 0.0) {
    return (uint16_t)sign;
  }
  if (isinf(magnitude)) {
    return (uint16_t)(sign | infinity);
  }
  int exponent;
  (void)frexp(magnitude, &exponent); /* magnitude in [2^(exponent-1), 2^exponent) */
  int unit = exponent - 1 - mantissa_bits;
  int smallest_unit = 1 - bias - mantissa_bits;
  unit = unit < smallest_unit ? smallest_unit : unit;
  double steps = nearbyint(ldexp(magnitude, -unit)); /* exact scaling, then ties to even */
  /* Counting in units also carries into the exponent: the encoding of a positive float is its rank. */
  unsigned rank = (unsigned)steps + (unsigned)(unit - smallest_unit) * (1u << mantissa_bits);
  return (uint16_t)(sign | (rank > infinity ? infinity : rank));
}

uint16_t float_to_half(float value) {
  return float_to_small(value, 10, 0x1f, 15);
}

uint16_t float_to_bfloat(float value) {
  return float_to_small(value, 7, 0xff, 127);
}

/* Both conversions of every pattern: the oracle reads caches of millions of elements. Filled by the first call, from one thread. */
static const float *conversions(treeattn_dtype dtype) {
  static float tables[2][65536];
  static int filled;
  if (!filled) {
    for (uint32_t bits = 0; bits <= 0xffffu; bits++) {
      tables[0][bits] = half_to_float((uint16_t)bits);
      tables[1][bits] = bfloat_to_float((uint16_t)bits);
    }
    filled = 1;
  }
  return tables[dtype == TREEATTN_F16 ? 0 : 1];
}

float element_load(treeattn_dtype dtype, const void *base, int64_t index) {
  if (dtype == TREEATTN_F32) {
    return ((const float *)base)[index];
  }
  return conversions(dtype)[((const uint16_t *)base)[index]];
}

void element_store(treeattn_dtype dtype, void *base, int64_t index, float value) {
  if (dtype == TREEATTN_F32) {
    ((float *)base)[index] = value;
  } else {
    ((uint16_t *)base)[index] = dtype == TREEATTN_F16 ? float_to_half(value) : float_to_bfloat(value);
  }
}
