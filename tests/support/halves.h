/* SPDX-License-Identifier: Apache-2.0 */
/* 16-bit floats, converted here by arithmetic on doubles so that nothing is shared with the library's conversions. */
#ifndef TESTS_HALVES_H
#define TESTS_HALVES_H

#include <stddef.h>
#include <stdint.h>

#include <treeattn/base.h>

float half_to_float(uint16_t bits);
float bfloat_to_float(uint16_t bits);
/* To nearest, ties to even, overflowing to infinity; NaN stays NaN. */
uint16_t float_to_half(float value);
uint16_t float_to_bfloat(float value);

/* One element of a cache. */
float element_load(treeattn_dtype dtype, const void *base, int64_t index);
void element_store(treeattn_dtype dtype, void *base, int64_t index, float value);

#endif
