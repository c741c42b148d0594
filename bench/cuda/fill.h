/* SPDX-License-Identifier: Apache-2.0 */
/* What the measurement does on the GPU besides attending. */
#ifndef BENCH_CUDA_FILL_H
#define BENCH_CUDA_FILL_H

#include <stdint.h>

/* Standard normal numbers of stream `seed` in f16 or bf16. */
void fill_normal(void *data, int64_t count, bool bfloat, uint32_t seed);

/* Bytes read and written in a second by a copy within the device's memory. */
double measure_copy_rate(void);

#endif
