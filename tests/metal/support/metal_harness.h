/* SPDX-License-Identifier: Apache-2.0 */
/* A laid-out problem of the CPU's tests, run by the Metal back end. */
#ifndef TESTS_METAL_HARNESS_H
#define TESTS_METAL_HARNESS_H

#include <treeattn/treeattn_metal.h>

#include "device.h"
#include "support/harness.h"

/* The device of this program's tests, made on first use; metal_close lets it go. */
treeattn_metal *metal_of_tests(void);
void *metal_device_of_tests(void);
void metal_close(void);

/* The buffers of one problem, at random offsets among bytes of 0xff, and a run that refers to them. */
typedef struct metal_buffers {
  treeattn_metal_plan_info info;
  treeattn_metal_run_args run;
  size_t out_bytes, lse_bytes;
} metal_buffers;

/* Copies a built harness's inputs and writes the device part. */
void metal_buffers_new(metal_buffers *m, harness *h, rng *r);
/* Checks that nothing but rows was written, and reads them: out [T][H][DV], lse [T][H] or NULL. */
void metal_buffers_read(const metal_buffers *m, const harness *h, float *out, float *lse);
/* Fills out, lse and scratch with 0xff again. */
void metal_buffers_clear(const metal_buffers *m);
void metal_buffers_free(metal_buffers *m);

/* All at once, like harness_once. */
void metal_once(const problem *p, const layout *how, float *out, float *lse, rng *r);

#endif
